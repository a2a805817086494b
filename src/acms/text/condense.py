"""Condensing: a long output of a tool as its head, its tail and the records in it that stand out.

Logs, tables, listings and JSON say much the same in every record. What is worth its tokens is how they begin, how they
end, and what is unlike the rest: the error among a thousand lines of success. A record stands out by the words that few
others have (inverse document frequency within the text, Spärck Jones, 1972); words with digits are names and numbers,
which are new in every record, and say nothing.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from math import log

from acms.ports import TokenCounter
from acms.text.tokenizer import spans

CUT = "[…]"
"""Stands for what was left out."""
FEWEST = 6
"""Records of a text that has a structure, at least."""
KNOWN = 4096
"""Texts of which it is remembered what was chosen."""
ENDS = 2
"""Records at the beginning and at the end that are shown before any other."""

_BETWEEN = re.compile(r"(?<=[}\]]),\s*")
"""Between two records of a text in one line: JSON."""
_WORD = re.compile(r"[^\W\d_]{3,}(?![\w-]*\d)")


def records(text: str) -> list[tuple[int, int]]:
    """Return where the sentences, lines and records of a text start and end; together they are the whole text."""
    found: list[tuple[int, int]] = []
    for start, end in spans(text):
        ends = [match.end() for match in _BETWEEN.finditer(text, start, end)]
        found += zip([start, *ends], [*ends, end], strict=True)
    return [(start, end) for start, end in found if start < end]


def condensed(text: str, tokens: int, counter: TokenCounter) -> str:
    """Return a text of no more than so many tokens: itself when it fits, "" when it has no structure to go by.

    What was chosen is remembered by stretches, without the text: a history shows the same outputs turn after turn.
    """
    if len(text) <= tokens:
        return text
    key = hash(text), len(text), tokens, counter.name
    shown = _known.get(key)
    if shown is None:
        if len(_known) >= KNOWN:
            _known.clear()
        shown = _known[key] = _chosen(text, tokens, counter)
    return _joined(text, shown)


_known: dict[tuple[int, int, int, str], list[tuple[int, int]]] = {}


def _chosen(text: str, tokens: int, counter: TokenCounter) -> list[tuple[int, int]]:
    """Return the stretches of a text that are shown."""
    if len(text) <= 16 * tokens and counter.count(text) <= tokens:
        return [(0, len(text))]
    found = records(text)
    if len(found) < FEWEST:
        return []
    order = [*range(ENDS), *range(len(found) - ENDS, len(found))]
    order += [place for place in _distinctive(text, found) if place not in order]

    def first(count: int) -> list[tuple[int, int]]:
        return [found[place] for place in sorted(order[:count])]

    low, high = 0, len(order)
    while low < high:
        middle = (low + high + 1) // 2
        if counter.count(_joined(text, first(middle))) <= tokens:
            low = middle
        else:
            high = middle - 1
    return first(low) if low > 2 * ENDS else []


def _distinctive(text: str, found: Sequence[tuple[int, int]]) -> list[int]:
    """Return the places of records, those first whose words the fewest others have."""
    said = [set(map(str.casefold, _WORD.findall(text, *one))) for one in found]
    often = Counter(word for one in said for word in one)
    rare = [sum(log(len(found) / often[word]) for word in one) / (len(one) or 1) for one in said]
    return sorted(range(len(found)), key=lambda place: (-rare[place], place))


def _joined(text: str, shown: Sequence[tuple[int, int]]) -> str:
    """Return some stretches in their order, with a mark where something between them is left out."""
    if shown == [(0, len(text))]:
        return text
    written = ""
    last = 0
    for start, end in shown:
        part = text[start:end]
        written = (
            f"{written.rstrip()}\n{CUT}\n{part.lstrip()}" if text[last:start].strip() else written + part
        )
        last = end
    return written.strip()
