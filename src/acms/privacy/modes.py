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

_STRICTNESS = {None: -1, Privacy.ALLOW: 0, Privacy.REDACT: 1, Privacy.BLOCK: 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class RedactedEntry(Entry):
    """A redacted entry: `privacy` is the mode it is shown under, and its tokens are those of the redacted content."""

    redaction: Redaction
    #: Replaced spans of the stored content, each with the length of its replacement in characters.
    moves: tuple[tuple[int, int, int], ...] = ()

    def map_spans(self, spans: Sequence[Span]) -> list[Span]:
        """Map spans of the stored content to the redacted content.

        A span that begins or ends inside a replaced span is widened to the whole redaction mark.
        """
        return [
            (self._map_offset(start, is_end=False), self._map_offset(end, is_end=True))
            for start, end in spans
        ]

    def _map_offset(self, offset: int, *, is_end: bool) -> int:
        """Return an offset of the stored content in the redacted one; inside a mark, its start or its end."""
        shift = 0
        for start, end, length in self.moves:
            if offset <= start:
                break
            if offset < end:
                return start + shift + (length if is_end else 0)
            shift += length - (end - start)
        return offset + shift


def mode_of(configured: Privacy | None, item: Privacy) -> Privacy | None:
    """Return the mode an item is shown under: the stricter one, or None if neither requires one (decision 0046)."""
    if configured is None:
        return None if item is Privacy.ALLOW else item
    return stricter_mode(configured, item)


Mode = TypeVar("Mode", Privacy, "Privacy | None")


def stricter_mode(first: Mode, second: Mode) -> Mode:
    """Return the stricter of two modes; None is the least strict."""
    return max(first, second, key=_STRICTNESS.__getitem__)


def strictest_mode(*modes: Privacy) -> Privacy:
    """Return the strictest of some modes, such as those of a request, its tenant and an item; `allow` if none."""
    return max(modes, key=_STRICTNESS.__getitem__, default=Privacy.ALLOW)


def stored_mode(configured: Privacy | None, item: Privacy) -> Privacy:
    """Return the mode in which an item is redacted before it is stored.

    A blocked item is stored as under `redact`: `block` hides it when it is shown, and would leave nothing to store.
    """
    mode = stricter_mode(configured or Privacy.ALLOW, item)
    return Privacy.REDACT if mode is Privacy.BLOCK else mode


def list_redactions(ids: Iterable[str], entries: Mapping[str, object]) -> tuple[Redacted, ...]:
    """Return the redactions of some entries, each once; `entries` maps ids to the entries after redaction."""
    redactions: list[Redacted] = []
    for id in dict.fromkeys(ids):
        redaction: Redaction | None = getattr(entries.get(id), "redaction", None)
        if redaction is not None:
            redactions.append(Redacted(id, redaction.mode, redaction.kinds))
    return tuple(redactions)


def describe_redaction(redacted: Redacted) -> str:
    """Describe the redaction of an entry in words."""
    if redacted.mode is Privacy.BLOCK:
        return "its text was withheld"
    counts = ", ".join(f"{count} {kind}" for kind, count in redacted.kinds)
    return f"redacted: {counts}" if counts else "redacted"


def privacy_of_sources(entries: Iterable[Entry]) -> Privacy:
    """Return the privacy of a text derived from some entries; no text is ever derived from a blocked entry."""
    return Privacy.REDACT if any(entry.privacy is Privacy.REDACT for entry in entries) else Privacy.ALLOW
