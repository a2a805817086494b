"""The redaction stage of a session: every entry passes it before its text is shown, sent or distilled.

Results are cached by entry, so a text is searched only once. Entries to which no mode applies, which are most of
them, cost nothing.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING

from acms.model import Entry, Privacy, State
from acms.ports import StorageBackend, TokenCounter
from acms.privacy.modes import Cleared, mode_of
from acms.runtime.threads import off_loop
from acms.storage import handles

if TYPE_CHECKING:
    from acms.knowledge import Fact

__all__ = ["OPEN", "Stage"]

KEPT_BYTES = 8 * 1024 * 1024
"""Most bytes of the cached redacted entries of a storage handle."""
_ROW_BYTES = 600
"""Bytes of a cached entry without its text."""

PIECE = 1_000
"""Entries that are read at a time."""

_Key = tuple[str, Privacy, str]


class Kept:
    """An LRU cache of redacted entries; the value is None for entries that need no redaction."""

    def __init__(self, max_bytes: int = KEPT_BYTES) -> None:
        self.max_bytes = max_bytes
        self.bytes = 0
        self._rows: OrderedDict[_Key, tuple[Cleared | None, int]] = OrderedDict()
        self._lock = Lock()  # large batches are searched in a thread

    def __len__(self) -> int:
        return len(self._rows)

    def __contains__(self, key: _Key) -> bool:
        return key in self._rows

    def find(self, key: _Key) -> tuple[Cleared | None] | None:
        """Return the cached result for an entry in a tuple, or None if there is none."""
        with self._lock:
            row = self._rows.get(key)
            if row is None:
                return None
            self._rows.move_to_end(key)
            return (row[0],)

    def keep(self, key: _Key, made: Cleared | None) -> None:
        """Cache the result for an entry and evict the least recently used ones above `max_bytes`."""
        size = _ROW_BYTES if made is None else _ROW_BYTES + len(made.content) * (3 if made.parts else 1)
        with self._lock:
            self.bytes += size - self._rows.pop(key, (None, 0))[1]
            self._rows[key] = made, size
            while self.bytes > self.max_bytes and self._rows:
                self.bytes -= self._rows.popitem(last=False)[1][1]

    def forget(self, ids: Iterable[str]) -> None:
        """Remove erased entries from the cache."""
        gone = frozenset(ids)
        with self._lock:
            for key in [key for key in self._rows if key[0] in gone]:
                self.bytes -= self._rows.pop(key)[1]


class Stage:
    """Redacts the entries of a session, in the mode of its configuration or in an entry's own mode if stricter."""

    def __init__(self, mode: Privacy | None, counter: TokenCounter | None, kept: Kept | None) -> None:
        #: The mode of the configuration, or None if it requires no redaction.
        self.mode = mode
        self._counter = counter
        self._kept = kept

    def entry(self, entry: Entry) -> Entry:
        """Return an entry after redaction."""
        counter, kept = self._counter, self._kept
        if counter is None or kept is None:
            return entry
        mode = mode_of(self.mode, entry.privacy)
        if mode is None or entry.state is not State.LIVE:
            return entry
        key = entry.id, mode, counter.name
        known = kept.find(key)
        if known is not None:
            return known[0] or entry
        from acms.privacy.redact_entry import apply_privacy_mode

        made = apply_privacy_mode(entry, mode, counter.count)
        kept.keep(key, made if isinstance(made, Cleared) else None)
        return made

    def entries(self, entries: Sequence[Entry]) -> Sequence[Entry]:
        """Return entries after redaction; the same list if no mode applies to any of them."""
        return [self.entry(entry) for entry in entries] if self.asks(entries) else entries

    def asks(self, entries: Iterable[Entry]) -> bool:
        """Return whether any of some entries may need redaction."""
        return self.mode is not None or any(entry.privacy is not Privacy.ALLOW for entry in entries)

    def unread(self, entries: Sequence[Entry]) -> int:
        """Return the number of characters to search in entries that are not cached yet."""
        kept, counter = self._kept, self._counter
        if kept is None or counter is None or not self.asks(entries):
            return 0
        modes = ((entry, mode_of(self.mode, entry.privacy)) for entry in entries)
        return sum(
            len(entry.content)
            for entry, mode in modes
            if mode is not None and (entry.id, mode, counter.name) not in kept
        )

    def facts(self, facts: Iterable[Fact], entries: Iterable[Entry]) -> list[Fact]:
        """Return facts with the redactions of their entries."""
        rows = {entry.id: self.entry(entry) for entry in entries}
        found = list(facts)
        if not any(isinstance(row, Cleared) for row in rows.values()):
            return found
        from acms.privacy.redact_entry import redact_fact

        return [redact_fact(one, rows[one.id]) for one in found]

    def text(self, text: str) -> str:
        """Redact a text of the caller for a provider, in the mode of the configuration."""
        if self.mode is None:
            return text
        from acms.privacy.detect import redact_text

        return redact_text(text, self.mode).text

    def forget(self, ids: Iterable[str]) -> None:
        """Remove erased entries from the cache of this stage."""
        if self._kept is not None:
            self._kept.forget(ids)


async def read_redacted_entries(
    storage: StorageBackend, ids: Sequence[str], stage: Stage
) -> dict[str, Entry]:
    """Return entries by id after redaction by a stage, without those that do not exist."""
    found: list[Entry] = []
    for at in range(0, len(ids), PIECE):
        found += [entry for entry in await storage.get(ids[at : at + PIECE]) if entry is not None]
        if len(ids) > PIECE:
            await asyncio.sleep(0)
    shown: Sequence[Entry] = found
    if stage.asks(found):
        shown = await off_loop(partial(stage.entries, found), stage.unread(found))
    return {entry.id: entry for entry in shown}


OPEN = Stage(None, None, None)
"""A stage that redacts nothing: for owners of the data, and for callers with a stage of their own."""


def create_redaction_stage(storage: StorageBackend, mode: Privacy | None, counter: TokenCounter) -> Stage:
    """Return the stage of a session; its cache is shared by all sessions on the storage handle."""
    shared = handles.get_shared_state(storage)
    if shared.redactions is None:
        shared.redactions = Kept()
    return Stage(mode, counter, shared.redactions)
