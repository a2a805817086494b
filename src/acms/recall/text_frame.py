"""The tokens of recalled items as joined text, in which a speaker's name and a separator surround each item."""

from __future__ import annotations

from collections.abc import Sequence

from acms.log.in_force import FACT
from acms.model import Part, Role, Source
from acms.ports import TokenCounter
from acms.prompt_types import SEPARATOR, prefix_speaker
from acms.results import ContextItem

CUT = " […] "
"""Marks text left out because it did not fit."""


class TextFrame:
    """Counts the tokens that joined text adds to an item: `speaker: ` before it and a blank line after it."""

    def __init__(self, counter: TokenCounter) -> None:
        self._count = counter.count
        self._separator_cost = counter.count(SEPARATOR)
        self._costs_by_speaker: dict[str | None, int] = {}

    def cost(self, role: Role | None, parts: Sequence[Part], speaker: str | None = None) -> int:
        """Return the tokens of the speaker's name and the separator."""
        name = speaker or role
        cost = self._costs_by_speaker.get(name)
        if cost is None:
            cost = self._count(prefix_speaker(name, "")) + self._separator_cost
            self._costs_by_speaker[name] = cost
        return cost


def speaker_of_item(item: ContextItem) -> str | None:
    """Return the name that a frame counts for an item."""
    return FACT if item.source is Source.FACT else item.actor_id
