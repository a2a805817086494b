"""Condense what tools were given and what they returned, when it is larger than its room.

Logs, tables, listings and JSON say much the same in every record. What is worth its tokens is how they begin, how they
end, what the question names, and what is unlike the rest: the error among a thousand lines of success. A record stands
out by words that few others have (inverse document frequency within the text, Spärck Jones, 1972); words with digits
are names and numbers, which are new in every record, and make no record stand out.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from math import log

from acms.model import Json
from acms.ports import TokenCounter
from acms.text.tokenizer import spans

CUT = "[…]"
"""Stands for what was left out; the first mark in an output says how much that is, and of which entry."""
MARK = re.compile(r"\[…[^\]\n]*\]")
"""Any mark of a cut."""
FEWEST = 6
"""Records of a text that has a structure, at least."""
KNOWN = 4096
"""Texts of which it is remembered what was chosen."""
ENDS = 2
"""Records at the beginning and at the end that are shown before any other."""
LINES = 6
"""Lines of a text whose cut is told in lines, at least; of others it is told in characters."""
SHORT_STRING = 40
"""Characters of a string in a call's arguments that is never cut: ids, names, paths."""

_BETWEEN = re.compile(r"(?<=[}\]]),\s*")
"""Between two records of a text in one line: JSON."""
_PLAIN_WORD = re.compile(r"[^\W\d_]{3,}(?![\w-]*\d)")
_ANY_WORD = re.compile(r"\w{2,}")

Stretch = tuple[int, int]
"""Where a part of a text starts and ends."""


def split_records(text: str) -> list[Stretch]:
    """Return where the sentences, lines and records of a text start and end; together they are the whole text."""
    found: list[Stretch] = []
    for start, end in spans(text):
        ends = [match.end() for match in _BETWEEN.finditer(text, start, end)]
        found += zip([start, *ends], [*ends, end], strict=True)
    return [(start, end) for start, end in found if start < end]


def find_level(costs: Sequence[int], room: int) -> int:
    """Return the most that each of some costs may keep so that together they take no more than a room."""
    left = room
    ascending = sorted(costs)
    for place, cost in enumerate(ascending):
        share = left // (len(ascending) - place)
        if cost > share:
            return max(0, share)
        left -= cost
    return ascending[-1] if ascending else room


# ── outputs of tools ────────────────────────────────────────────────────────────────────────────────────────────────


def condense_output(
    text: str, tokens: int, counter: TokenCounter, *, question: str = "", entry: str = ""
) -> str:
    """Return the output of a tool within so many tokens: itself when it fits, "" when not even a mark does.

    Its first and last records are kept, then by turns what shares rare words with the question and what stands out,
    until the room is filled. The first mark says how much is left out, and the id of the entry that holds all of it.
    What was chosen is remembered by stretches, without the text: a history shows the same outputs turn after turn.
    """
    if len(text) <= tokens:
        return text
    key = hash(text), len(text), tokens, counter.name, question, len(entry)
    shown = _known.get(key)
    if shown is None:
        if len(_known) >= KNOWN:
            _known.clear()
        shown = _known[key] = _choose(text, tokens, counter, question, entry)
    return _write(text, shown, entry) if shown else ""


_known: dict[tuple[int, int, int, str, str, int], list[Stretch]] = {}


def _choose(text: str, tokens: int, counter: TokenCounter, question: str, entry: str) -> list[Stretch]:
    """Return the stretches of a text that are shown."""
    if len(text) <= 16 * tokens and counter.count(text) <= tokens:
        return [(0, len(text))]

    def fits(shown: Sequence[Stretch]) -> bool:
        return counter.count(_write(text, shown, entry)) <= tokens

    records = split_records(text)
    if len(records) >= FEWEST:
        order = _order_records(text, records, question)
        count = _largest(len(order), lambda size: fits(_in_order(records, order[:size])))
        if count > 2 * ENDS:
            return _in_order(records, order[:count])
    return _choose_ends(text, tokens, fits)


def _in_order(records: Sequence[Stretch], places: Sequence[int]) -> list[Stretch]:
    return [records[place] for place in sorted(places)]


def _choose_ends(text: str, tokens: int, fits: Callable[[Sequence[Stretch]], bool]) -> list[Stretch]:
    """Return the head and the tail of a text, two thirds and one third."""

    def ends(kept: int) -> list[Stretch]:
        tail = kept // 3
        return [(0, kept - tail), (len(text) - tail, len(text))]

    kept = _largest(min(len(text) - 1, 16 * max(tokens, 0)), lambda size: fits(ends(size)))
    return ends(kept) if kept else []


def _largest(most: int, holds: Callable[[int], bool]) -> int:
    """Return the largest number up to `most` for which something holds, 0 if for none; bisected from below."""
    low, high = 0, min(most, 8)
    while high < most and holds(high):
        low, high = high, min(most, 2 * high)
    while low < high:
        middle = (low + high + 1) // 2
        if holds(middle):
            low = middle
        else:
            high = middle - 1
    return low


def _order_records(text: str, records: Sequence[Stretch], question: str) -> list[int]:
    """Return the places of records, those first that are shown first."""
    last = len(records)
    ends = [*range(ENDS), *range(last - ENDS, last)]
    asked = _matching(text, records, question)
    distinctive = _distinctive(text, records)
    by_turns = [place for both in zip(asked, distinctive, strict=False) for place in both]
    return list(dict.fromkeys([*ends, *by_turns, *asked, *distinctive]))


def _matching(text: str, records: Sequence[Stretch], question: str) -> list[int]:
    """Return the places of records that share words with a question, the rarest words first."""
    asked = set(map(str.casefold, _ANY_WORD.findall(question)))
    if not asked:
        return []
    said = [asked.intersection(map(str.casefold, _ANY_WORD.findall(text, *one))) for one in records]
    often = Counter(word for one in said for word in one)
    worth = [sum(log(len(records) / often[word]) for word in one) for one in said]
    found = [place for place, value in enumerate(worth) if value > 0]
    return sorted(found, key=lambda place: (-worth[place], place))


def _distinctive(text: str, records: Sequence[Stretch]) -> list[int]:
    """Return the places of all records, those first whose words the fewest others have."""
    said = [set(map(str.casefold, _PLAIN_WORD.findall(text, *one))) for one in records]
    often = Counter(word for one in said for word in one)
    rare = [sum(log(len(records) / often[word]) for word in one) / (len(one) or 1) for one in said]
    return sorted(range(len(records)), key=lambda place: (-rare[place], place))


def _write(text: str, shown: Sequence[Stretch], entry: str) -> str:
    """Return some stretches in their order, with marks where something is left out."""
    if list(shown) == [(0, len(text))]:
        return text
    parts: list[str] = []
    mark = _tell_cut(text, shown, entry)
    last = 0
    for start, end in [*shown, (len(text), len(text))]:
        if text[last:start].strip():
            parts = ["".join(parts).rstrip(), f"\n{mark}\n", text[start:end].lstrip()]
            mark = CUT
        else:
            parts.append(text[start:end])
        last = end
    return "".join(parts).strip()


def _tell_cut(text: str, shown: Sequence[Stretch], entry: str) -> str:
    """Return the mark that says how much of a text is left out, and which entry holds it."""
    source = f"; entry {entry}" if entry else ""
    lines = text.count("\n") + 1
    if lines >= LINES:
        kept = sum(len(text[start:end].strip().splitlines()) for start, end in shown)
        return f"[… {max(1, lines - kept):,} of {lines:,} lines left out{source}]"
    left_out = len(text) - sum(end - start for start, end in shown)
    return f"[… {left_out:,} of {len(text):,} characters left out{source}]"


# ── arguments of calls ──────────────────────────────────────────────────────────────────────────────────────────────


def condense_arguments(arguments: str, tokens: int, counter: TokenCounter) -> str:
    """Return the arguments of a call with its long strings cut, within so many tokens or as near as that gets.

    JSON stays valid: only strings in it become shorter, each with a mark that says by how much. Arguments that are no
    JSON are one text.
    """
    if len(arguments) <= tokens or (
        len(arguments) <= 16 * max(tokens, 0) and counter.count(arguments) <= tokens
    ):
        return arguments
    try:
        value: Json = json.loads(arguments)
    except ValueError:
        value = None
    if isinstance(value, dict | list):

        def write(size: int) -> str:
            return _dump(_shorten_strings(value, size))

        longest = max(map(len, _strings(value)), default=0)
    else:

        def write(size: int) -> str:
            return _shorten_string(arguments, size)

        longest = len(arguments)
    size = _largest(
        max(0, longest - SHORT_STRING), lambda size: counter.count(write(SHORT_STRING + size)) <= tokens
    )
    written = write(SHORT_STRING + size)
    return written if len(written) < len(arguments) else arguments


def _dump(value: Json) -> str:
    """Return JSON with characters as they are; escaped where one is half a surrogate pair, which no text may hold."""
    text = json.dumps(value, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(value)
    return text


def _shorten_strings(value: Json, size: int) -> Json:
    if isinstance(value, str):
        return _shorten_string(value, size)
    if isinstance(value, list):
        return [_shorten_strings(one, size) for one in value]
    if isinstance(value, dict):
        return {name: _shorten_strings(one, size) for name, one in value.items()}
    return value


def _shorten_string(text: str, size: int) -> str:
    """Return the head and the tail of a text, with a mark of how much is missing; itself if that is no shorter."""
    tail = size // 3
    mark = f" [… {len(text) - size:,} of {len(text):,} characters left out] "
    cut = text[: size - tail] + mark + text[len(text) - tail :]
    return cut if len(cut) < len(text) else text


def _strings(value: Json) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for one in value:
            yield from _strings(one)
    elif isinstance(value, dict):
        for one in value.values():
            yield from _strings(one)
