"""Summary levels: one summary in several lengths, and which of them fits a budget.

The content of a summary entry is its longest text. Its data hold the shorter texts, which are written with it. A
summary from before there were levels has only its content.
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
    #: Tokens of the content, by the counter of its log.
    tokens: int


def to_json(shorter: Sequence[Level]) -> list[Json]:
    """Return shorter texts as they are stored, the shortest first."""
    return [
        {"tokens": level.tokens, "content": level.content}
        for level in sorted(shorter, key=lambda level: level.tokens)
    ]


def read_shorter_levels(data: Mapping[str, Any]) -> list[Level]:
    """Read the shorter texts from the data of a summary, the shortest first."""
    return [Level(item["content"], item["tokens"]) for item in data.get(LEVELS, ())]


def levels_of_summary(entry: Entry) -> list[Level]:
    """Return every text a summary can be shown with, the shortest first; the last one is its content."""
    return [*read_shorter_levels(entry.data), Level(entry.content, entry.tokens)]


def choose_level(entry: Entry, max_tokens: int) -> Level:
    """Return the longest text of a summary that has at most `max_tokens`, or its shortest text if none has.

    The caller must then cut the shortest text and mark it as cut.
    """
    levels = levels_of_summary(entry)
    return next((level for level in reversed(levels) if level.tokens <= max_tokens), levels[0])


def summary_at_level(entry: Entry, level: Level) -> Entry:
    """Return a summary with one of its texts as its content."""
    if level.content == entry.content:
        return entry
    return replace(entry, content=level.content, tokens=level.tokens)
