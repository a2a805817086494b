"""Exposure: under which mode of privacy an item is shown or stored, and what is told of that.

What a mode takes out is decided in `acms.privacy.redact_entry`.

Apart from there because every session asks it, and few need the rules that find what is sensitive.
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
    """An entry as it may leave: its `privacy` is the mode it is shown under, its tokens are those of what is left."""

    redaction: Redaction
    #: Stretches of the stored content, and the characters that stand in the place of each.
    moves: tuple[tuple[int, int, int], ...] = ()

    def moved(self, found: Sequence[Span]) -> list[Span]:
        """Return stretches of the stored content as stretches of this one; one that begins in a mark has all of it."""
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
    """Return the mode an item is shown under: the strictest; None where neither asks for anything (decision 0046)."""
    if configured is None:
        return None if item is Privacy.ALLOW else item
    return stricter_mode(configured, item)


Mode = TypeVar("Mode", Privacy, "Privacy | None")


def stricter_mode(one: Mode, other: Mode) -> Mode:
    """Return the one of two modes under which less is shown; None asks for less than any."""
    return max(one, other, key=_STRICT.__getitem__)


def stored_mode(configured: Privacy | None, item: Privacy) -> Privacy:
    """Return what is taken out of an item before it is stored: of a blocked one as much as under `redact`."""
    found = mode_of(configured or Privacy.ALLOW, item)
    return Privacy.REDACT if found is Privacy.BLOCK else found or Privacy.ALLOW


def list_redactions(shown: Iterable[str], told: Mapping[str, object]) -> tuple[Redacted, ...]:
    """Return what was taken out of the entries that are shown, each once; `told` has them as they are shown, by id."""
    found: dict[str, Redacted] = {}
    for id in shown:
        redaction: Redaction | None = getattr(told.get(id), "redaction", None)
        if redaction is not None:
            found[id] = Redacted(id, redaction.mode, redaction.kinds)
    return tuple(found.values())


def describe_redaction(one: Redacted) -> str:
    """Return what was taken out of an entry, in words."""
    if one.mode is Privacy.BLOCK:
        return "its text was withheld"
    counts = ", ".join(f"{count} {kind}" for kind, count in one.kinds)
    return f"redacted: {counts}" if counts else "redacted"


def privacy_of_sources(entries: Iterable[Entry]) -> Privacy:
    """Return how private a text made from some entries is: a blocked one is not part of it."""
    return Privacy.REDACT if any(entry.privacy is Privacy.REDACT for entry in entries) else Privacy.ALLOW
