"""Condense the arguments and results of tools when they exceed their token budget.

Logs, tables, listings and JSON repeat much of the same in every record. The records worth their tokens are the first,
the last, those that the question names, and those unlike the rest: the error among a thousand lines of success. A
record stands out by words that few others have (inverse document frequency within the text, Spärck Jones, 1972); words
with digits are names and numbers, which are new in every record, and make no record stand out.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Sequence
from math import log

from acms.log.encoding import quote_json
from acms.ports import TokenCounter
from acms.text.tokenizer import find_sentence_spans

CUT = "[…]"
"""Marks omitted text; the first mark in an output says how much was omitted, and from which entry."""
MARK = re.compile(r"\[…[^\]\n]*\]")
"""Any mark of a cut."""
FEWEST = 6
"""Records of a text that has a structure, at least."""
KNOWN = 4096
"""Texts whose choice is remembered, at most."""
ENDS = 2
"""Records at the beginning and at the end that are shown before any other."""
LONGEST_TOKEN = 64
"""Characters of a token, at most: longer runs of blanks or dashes are several."""
LINES = 6
"""From so many lines on, a cut is told in lines, else in characters."""
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
    for start, end in find_sentence_spans(text):
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
    """Return a tool's output within `tokens`: unchanged if it fits, "" if not even a mark fits.

    The first and last records are kept, then alternately records that share rare words with the question and records
    that stand out, until the budget is filled. The first mark says how much is left out, and the id of the entry that
    holds all of it. The choice is cached as stretches, without the text: a history shows the same outputs every turn.
    """
    if _fits_limit(text, tokens, counter):
        return text
    key = hash(text), len(text), tokens, counter.name, hash(question), entry
    shown = _known.get(key)
    if shown is None:
        if len(_known) >= KNOWN:
            _known.clear()
        shown = _known[key] = _choose_stretches(text, tokens, counter, question, entry)
    return _join_stretches(text, shown, entry) if shown else ""


_known: dict[tuple[int, int, int, str, int, str], list[Stretch]] = {}


def _fits_limit(text: str, tokens: int, counter: TokenCounter) -> bool:
    """Return whether a text has no more than so many tokens; a text far too long is not counted."""
    if len(text) <= tokens and text.isascii():
        return True
    return len(text) <= LONGEST_TOKEN * max(tokens, 0) and counter.count(text) <= tokens


def _choose_stretches(
    text: str, tokens: int, counter: TokenCounter, question: str, entry: str
) -> list[Stretch]:
    """Return the stretches of a text that are shown."""

    def fits(shown: Sequence[Stretch]) -> bool:
        return counter.count(_join_stretches(text, shown, entry)) <= tokens

    records = split_records(text)
    if len(records) >= FEWEST:
        order = _order_records(text, records, question)
        count = bisect_largest(len(order), lambda size: fits(_sort_records(records, order[:size])))
        if count > 2 * ENDS:
            return _sort_records(records, order[:count])
    return _choose_ends(text, tokens, fits)


def _sort_records(records: Sequence[Stretch], places: Sequence[int]) -> list[Stretch]:
    return [records[place] for place in sorted(places)]


def _choose_ends(text: str, tokens: int, fits: Callable[[Sequence[Stretch]], bool]) -> list[Stretch]:
    """Return the head and the tail of a text, two thirds and one third."""

    def ends(kept: int) -> list[Stretch]:
        tail = kept // 3
        return [(0, kept - tail), (len(text) - tail, len(text))]

    kept = bisect_largest(min(len(text) - 1, 16 * max(tokens, 0)), lambda size: fits(ends(size)))
    return ends(kept) if kept else []


def bisect_largest(most: int, holds: Callable[[int], bool]) -> int:
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
    asked = _rank_by_question(text, records, question)
    distinctive = _rank_by_rarity(text, records)
    by_turns = [place for both in zip(asked, distinctive, strict=False) for place in both]
    return list(dict.fromkeys([*ends, *by_turns, *asked, *distinctive]))


def _rank_by_question(text: str, records: Sequence[Stretch], question: str) -> list[int]:
    """Return the places of records that share words with a question, the rarest words first."""
    asked = set(map(str.casefold, _ANY_WORD.findall(question)))
    if not asked:
        return []
    said = [asked.intersection(map(str.casefold, _ANY_WORD.findall(text, *one))) for one in records]
    often = Counter(word for one in said for word in one)
    worth = [sum(log(len(records) / often[word]) for word in one) for one in said]
    found = [place for place, value in enumerate(worth) if value > 0]
    return sorted(found, key=lambda place: (-worth[place], place))


def _rank_by_rarity(text: str, records: Sequence[Stretch]) -> list[int]:
    """Return the places of all records, those first whose words the fewest others have."""
    said = [set(map(str.casefold, _PLAIN_WORD.findall(text, *one))) for one in records]
    often = Counter(word for one in said for word in one)
    rare = [sum(log(len(records) / often[word]) for word in one) / (len(one) or 1) for one in said]
    return sorted(range(len(records)), key=lambda place: (-rare[place], place))


def _join_stretches(text: str, shown: Sequence[Stretch], entry: str) -> str:
    """Return some stretches in their order, with marks where something is left out."""
    parts: list[str] = []
    mark = _format_mark(text, shown, entry)
    last = 0
    for start, end in [*shown, (len(text), len(text))]:
        stretch = text[start:end]
        if text[last:start].strip():
            within_line = text[start - 1 : start] != "\n"
            parts = ["".join(parts).rstrip(), f"\n{mark}\n", stretch.lstrip() if within_line else stretch]
            mark = CUT
        else:
            parts.append(text[last:start] + stretch)
        last = end
    return "".join(parts).strip("\n")


def _format_mark(text: str, shown: Sequence[Stretch], entry: str) -> str:
    """Return the mark that says how much of a text is left out, and which entry holds it.

    In lines where only whole lines are left out, else in characters.
    """
    source = f"; entry {entry}" if entry else ""
    ends = [0, *(end for _, end in shown)]
    starts = [*(start for start, _ in shown), len(text)]
    gaps = [(end, start) for end, start in zip(ends, starts, strict=True) if text[end:start].strip()]
    lines = text.rstrip("\n").count("\n") + 1
    whole = all(_begins_line(text, start) and _begins_line(text, end) for start, end in gaps)
    if whole and lines >= LINES:
        left_out = sum(text[start:end].strip("\n").count("\n") + 1 for start, end in gaps)
        return f"[… {left_out:,} of {lines:,} lines left out{source}]"
    left_out = sum(end - start for start, end in gaps)
    return f"[… {left_out:,} of {len(text):,} characters left out{source}]"


def _begins_line(text: str, place: int) -> bool:
    return place in (0, len(text)) or "\n" in (text[place - 1], text[place])


# ── arguments of calls ──────────────────────────────────────────────────────────────────────────────────────────────


def condense_arguments(arguments: str, tokens: int, counter: TokenCounter) -> str:
    """Return the arguments of a call with its long strings cut, within so many tokens or as near as that gets.

    Of JSON only string values change, each to its head and tail with a mark of how much is missing; names, numbers and
    all else stay as written. Arguments that are no JSON are cut as one text.
    """
    if _fits_limit(arguments, tokens, counter):
        return arguments
    strings = _find_string_values(arguments) if _is_json(arguments) else None
    longest = max((len(text) for _, text in strings), default=0) if strings is not None else len(arguments)

    def write(size: int) -> str:
        if strings is None:
            return _shorten_string(arguments, size)
        return _replace_strings(arguments, strings, size)

    most = max(0, longest - SHORT_STRING)
    size = bisect_largest(most, lambda size: counter.count(write(SHORT_STRING + size)) <= tokens)
    written = write(SHORT_STRING + size)
    return written if len(written) < len(arguments) else arguments


_STRING = re.compile(r'("(?:[^"\\]|\\.)*")(\s*:)?', re.DOTALL)
"""A string of JSON, and the colon behind the name of a field."""


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    except RecursionError:  # it is JSON up to there, and nested deeper than can be read
        return True
    return True


def _find_string_values(text: str) -> list[tuple[Stretch, str]]:
    """Return where the string values of a JSON text stand, and what each says."""
    values = [match for match in _STRING.finditer(text) if match[2] is None]
    found = [(match.span(1), json.loads(match[1], strict=False)) for match in values]
    return [(span, said) for span, said in found if len(said) > SHORT_STRING]


def _replace_strings(text: str, strings: Sequence[tuple[Stretch, str]], size: int) -> str:
    """Return a JSON text in which strings longer than so many characters are cut."""
    parts: list[str] = []
    last = 0
    for (start, end), said in strings:
        cut = _shorten_string(said, size)
        parts += [text[last:start], text[start:end] if cut == said else quote_json(cut)]
        last = end
    return "".join([*parts, text[last:]])


def _shorten_string(text: str, size: int) -> str:
    """Return head, mark and tail of a text, or the text if that is no shorter."""
    tail = size // 3
    mark = f" [… {len(text) - size:,} of {len(text):,} characters left out] "
    cut = text[: size - tail] + mark + text[len(text) - tail :]
    return cut if len(cut) < len(text) else text
