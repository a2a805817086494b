"""Summary levels: one summary in several lengths, and which of them fits a budget.

The content of a summary entry is its longest text. Shorter ones lie in its data, made with it; a summary that was
written before there were levels has its content alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from acms.model import Entry, Json

LEVELS = "levels"
"""Name of the shorter texts in the data of a summary."""


class Level(NamedTuple):
    """One of the texts of a summary."""

    content: str
    #: Of the content, by the counter of its log.
    tokens: int


def to_json(shorter: Sequence[Level]) -> list[Json]:
    """Return shorter texts as they are stored, the shortest first."""
    return [
        {"tokens": one.tokens, "content": one.content} for one in sorted(shorter, key=lambda one: one.tokens)
    ]


def read_shorter_levels(data: Mapping[str, Any]) -> list[Level]:
    """Read the shorter texts from the data of a summary, the shortest first."""
    return [Level(one["content"], one["tokens"]) for one in data.get(LEVELS, ())]


def levels_of_summary(entry: Entry) -> list[Level]:
    """Return every text a summary can be shown with, the shortest first; the last one is its content."""
    return [*read_shorter_levels(entry.data), Level(entry.content, entry.tokens)]


def choose_level(entry: Entry, tokens: int) -> Level:
    """Return the longest text of a summary that has at most `tokens` tokens, or its shortest if none has.

    The caller must then cut the shortest text and mark it as cut.
    """
    found = levels_of_summary(entry)
    return next((one for one in reversed(found) if one.tokens <= tokens), found[0])


def at_level(entry: Entry, level: Level) -> Entry:
    """Return a summary with one of its texts as its content."""
    if level.content == entry.content:
        return entry
    return replace(entry, content=level.content, tokens=level.tokens)
