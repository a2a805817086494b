"""Exposure: the privacy mode in which an item is shown or stored, and reports about redactions.

`acms.privacy.redact_entry` decides what a mode removes. It is a separate module because every session needs the modes,
and few need the detection rules.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from acms.model import Entry, Privacy, Redaction, Span
from acms.prompt_types import Redacted

_STRICT = {None: -1, Privacy.ALLOW: 0, Privacy.REDACT: 1, Privacy.BLOCK: 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cleared(Entry):
    """A redacted entry: `privacy` is the mode it is shown under, and its tokens are those of the redacted content."""

    redaction: Redaction
    #: Replaced spans of the stored content, each with the length of its replacement in characters.
    moves: tuple[tuple[int, int, int], ...] = ()

    def moved(self, found: Sequence[Span]) -> list[Span]:
        """Map spans of the stored content to the redacted content; a span that begins in a mark includes all of it."""
        return [(self._place(start, 0), self._place(end, 1)) for start, end in found]

    def _place(self, at: int, side: int) -> int:
        shift = 0
        for start, end, length in self.moves:
            if at <= start:
                break
            if at < end:
                return start + shift + side * length
            shift += length - (end - start)
        return at + shift


def mode_of(configured: Privacy | None, item: Privacy) -> Privacy | None:
    """Return the mode an item is shown under: the stricter one, or None if neither requires one (decision 0046)."""
    if configured is None:
        return None if item is Privacy.ALLOW else item
    return stricter_mode(configured, item)


Mode = TypeVar("Mode", Privacy, "Privacy | None")


def stricter_mode(one: Mode, other: Mode) -> Mode:
    """Return the stricter of two modes; None is the least strict."""
    return max(one, other, key=_STRICT.__getitem__)


def stored_mode(configured: Privacy | None, item: Privacy) -> Privacy:
    """Return the mode in which an item is redacted before it is stored: a blocked item as under `redact`."""
    found = mode_of(configured or Privacy.ALLOW, item)
    return Privacy.REDACT if found is Privacy.BLOCK else found or Privacy.ALLOW


def list_redactions(shown: Iterable[str], told: Mapping[str, object]) -> tuple[Redacted, ...]:
    """Return the redactions of the shown entries, each once; `told` maps ids to the entries as shown."""
    found: dict[str, Redacted] = {}
    for id in shown:
        redaction: Redaction | None = getattr(told.get(id), "redaction", None)
        if redaction is not None:
            found[id] = Redacted(id, redaction.mode, redaction.kinds)
    return tuple(found.values())


def describe_redaction(one: Redacted) -> str:
    """Describe the redaction of an entry in words."""
    if one.mode is Privacy.BLOCK:
        return "its text was withheld"
    counts = ", ".join(f"{count} {kind}" for kind, count in one.kinds)
    return f"redacted: {counts}" if counts else "redacted"


def privacy_of_sources(entries: Iterable[Entry]) -> Privacy:
    """Return the privacy of a text derived from some entries; blocked entries are not part of it."""
    return Privacy.REDACT if any(entry.privacy is Privacy.REDACT for entry in entries) else Privacy.ALLOW
