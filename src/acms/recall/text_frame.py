"""The tokens of recalled items as joined text, in which a speaker's name and a separator surround each item."""

from __future__ import annotations

from collections.abc import Sequence

from acms.log.active_entries import FACT
from acms.model import Part, Role, Source
from acms.ports import TokenCounter
from acms.prompt_types import SEPARATOR, prefix_speaker
from acms.results import ContextItem, format_item, is_external, join_items, new_days

CUT = " […] "
"""Marks text left out because it did not fit."""
MOST_CACHED_COUNTS = 16_384
"""Cached counts of items: a few megabytes."""


class TextFrame:
    """Counts the tokens that joined text adds to an item: `speaker: ` before it and a blank line after it."""

    def __init__(self, counter: TokenCounter) -> None:
        self._count = counter.count
        self._separator_cost = counter.count(SEPARATOR)
        self._costs_by_speaker: dict[str | None, int] = {}
        #: Whether the counts of paragraphs that begin with a letter add up.
        self._counts_add_up = bool(getattr(counter, "paragraphs", False))
        #: Counts of such paragraphs: an item shown again is not counted again.
        self._known_counts: dict[tuple[str, Role | None, str | None, str | None, bool, int], int] = {}

    def cost(self, role: Role | None, parts: Sequence[Part], speaker: str | None = None) -> int:
        """Return the tokens of the speaker's name and the separator."""
        name = speaker or role
        cost = self._costs_by_speaker.get(name)
        if cost is None:
            cost = self._count(prefix_speaker(name, "")) + self._separator_cost
            self._costs_by_speaker[name] = cost
        return cost

    def count_joined(self, items: Sequence[ContextItem]) -> int:
        """Return the exact number of tokens of the joined text of some items."""
        visible = [item for item in items if item.content]
        if not visible:
            return 0
        if not self._counts_add_up or not all(map(_starts_with_ascii_alpha, visible)):
            return self._count(join_items(visible))
        *earlier_items, last_item = visible
        days = new_days(visible)
        total = self._count(format_item(last_item, days[-1]))
        for item, day in zip(earlier_items, days, strict=False):
            total += self._count_paragraph(item, day)
        return total

    def _count_paragraph(self, item: ContextItem, day: str | None) -> int:
        """Return the tokens of an item with its separator, from the cache if it was counted before."""
        # An entry may be cut, redacted or labelled, and a tool's answer be shown as text of the user.
        key = item.id, item.role, item.actor_id, day, is_external(item), hash(item.content)
        count = self._known_counts.get(key)
        if count is None:
            if len(self._known_counts) >= MOST_CACHED_COUNTS:
                self._known_counts.clear()
            count = self._count(format_item(item, day) + SEPARATOR)
            self._known_counts[key] = count
        return count


def _starts_with_ascii_alpha(item: ContextItem) -> bool:
    first = (item.speaker or " ")[0]
    return first.isascii() and first.isalpha()


def speaker_of_item(item: ContextItem) -> str | None:
    """Return the name that a frame counts for an item."""
    return FACT if item.source is Source.FACT else item.actor_id
