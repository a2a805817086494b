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
from acms.privacy.modes import RedactedEntry, mode_of
from acms.runtime.threads import off_loop
from acms.storage import handles

if TYPE_CHECKING:
    from acms.knowledge import Fact

PAGE_ENTRIES = 1_000
"""Entries that are read at a time."""

_Key = tuple[str, Privacy, str]


class RedactionCache:
    """An LRU cache of redacted entries; the value is None for entries that need no redaction."""

    def __init__(self, max_bytes: int = 8 * 1024 * 1024) -> None:
        self.max_bytes = max_bytes
        self.bytes = 0
        self._rows: OrderedDict[_Key, tuple[RedactedEntry | None, int]] = OrderedDict()
        self._lock = Lock()  # large batches are searched in a thread

    def __len__(self) -> int:
        return len(self._rows)

    def __contains__(self, key: _Key) -> bool:
        return key in self._rows

    def find(self, key: _Key) -> tuple[RedactedEntry | None] | None:
        """Return the cached result for an entry in a tuple, or None if there is none."""
        with self._lock:
            row = self._rows.get(key)
            if row is None:
                return None
            self._rows.move_to_end(key)
            return (row[0],)

    def add(self, key: _Key, redacted: RedactedEntry | None) -> None:
        """Cache the result for an entry and evict the least recently used ones above `max_bytes`."""
        size = 600  # bytes of an entry without its text
        if redacted is not None:
            # An entry with parts holds its text in the content and in the parts.
            size += len(redacted.content) * (3 if redacted.parts else 1)
        with self._lock:
            _, previous_size = self._rows.pop(key, (None, 0))
            self.bytes += size - previous_size
            self._rows[key] = redacted, size
            while self.bytes > self.max_bytes and self._rows:
                _, (_, evicted_size) = self._rows.popitem(last=False)
                self.bytes -= evicted_size

    def forget(self, ids: Iterable[str]) -> None:
        """Remove erased entries from the cache."""
        erased = frozenset(ids)
        with self._lock:
            for key in [key for key in self._rows if key[0] in erased]:
                _, size = self._rows.pop(key)
                self.bytes -= size


class Redactor:
    """Redacts the entries of a session, in the mode of its configuration or in an entry's own mode if stricter."""

    def __init__(
        self, mode: Privacy | None, counter: TokenCounter | None, cache: RedactionCache | None
    ) -> None:
        #: The mode of the configuration, or None if it requires no redaction.
        self.mode = mode
        self._counter = counter
        self._cache = cache

    def redact_entry(self, entry: Entry) -> Entry:
        """Return an entry after redaction."""
        counter, cache = self._counter, self._cache
        if counter is None or cache is None:
            return entry
        mode = mode_of(self.mode, entry.privacy)
        if mode is None or entry.state is not State.LIVE:
            return entry
        key = entry.id, mode, counter.name
        cached = cache.find(key)
        if cached is not None:
            return cached[0] or entry
        from acms.privacy.redact_entry import apply_privacy_mode

        redacted = apply_privacy_mode(entry, mode, counter.count)
        cache.add(key, redacted if isinstance(redacted, RedactedEntry) else None)
        return redacted

    def redact_entries(self, entries: Sequence[Entry]) -> Sequence[Entry]:
        """Return entries after redaction; the same list if no mode applies to any of them."""
        return [self.redact_entry(entry) for entry in entries] if self.may_redact(entries) else entries

    def may_redact(self, entries: Iterable[Entry]) -> bool:
        """Return whether any of some entries may need redaction."""
        return self.mode is not None or any(entry.privacy is not Privacy.ALLOW for entry in entries)

    def count_unredacted_characters(self, entries: Sequence[Entry]) -> int:
        """Return the number of characters to search in entries that are not cached yet."""
        cache, counter = self._cache, self._counter
        if cache is None or counter is None or not self.may_redact(entries):
            return 0
        characters = 0
        for entry in entries:
            mode = mode_of(self.mode, entry.privacy)
            if mode is not None and (entry.id, mode, counter.name) not in cache:
                characters += len(entry.content)
        return characters

    def redact_facts(self, facts: Iterable[Fact], entries: Iterable[Entry]) -> list[Fact]:
        """Return facts with the redactions of their entries."""
        redacted = {entry.id: self.redact_entry(entry) for entry in entries}
        if not any(isinstance(entry, RedactedEntry) for entry in redacted.values()):
            return list(facts)
        from acms.privacy.redact_entry import redact_fact

        return [redact_fact(fact, redacted[fact.id]) for fact in facts]

    def redact_text(self, text: str) -> str:
        """Redact a text of the caller for a provider, in the mode of the configuration."""
        if self.mode is None:
            return text
        from acms.privacy.detect import redact_text

        return redact_text(text, self.mode).text

    def forget(self, ids: Iterable[str]) -> None:
        """Remove erased entries from the cache of this stage."""
        if self._cache is not None:
            self._cache.forget(ids)


async def read_redacted_entries(
    storage: StorageBackend, ids: Sequence[str], redactor: Redactor
) -> dict[str, Entry]:
    """Return entries by id after redaction by a stage, without those that do not exist."""
    entries: list[Entry] = []
    for start in range(0, len(ids), PAGE_ENTRIES):
        page = await storage.get(ids[start : start + PAGE_ENTRIES])
        entries += [entry for entry in page if entry is not None]
        if len(ids) > PAGE_ENTRIES:
            await asyncio.sleep(0)  # a long read: let other tasks run
    redacted: Sequence[Entry] = entries
    if redactor.may_redact(entries):
        redacted = await off_loop(
            partial(redactor.redact_entries, entries), redactor.count_unredacted_characters(entries)
        )
    return {entry.id: entry for entry in redacted}


NO_REDACTION = Redactor(None, None, None)
"""A redactor that redacts nothing: for owners of the data, and for callers with a redactor of their own."""


def create_redaction_stage(storage: StorageBackend, mode: Privacy | None, counter: TokenCounter) -> Redactor:
    """Return the redactor of a session; all sessions on the storage handle share its cache."""
    shared = handles.get_shared_state(storage)
    if shared.redactions is None:
        shared.redactions = RedactionCache()
    return Redactor(mode, counter, shared.redactions)
