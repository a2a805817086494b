"""A store that caches recently read entries of the store inside in memory.

Entries are immutable, so a cache of them can be incomplete but never stale: every read first asks the store for the
head row. An entry is served from memory if the context's epoch, which rises with every erasure anywhere in its fork
tree, is the one it was read under (rule 2.1). Missing entries are read in runs.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from operator import attrgetter
from time import monotonic

from acms.errors import ACMSError
from acms.log.active_entries import Replacements
from acms.model import Entry, Head, Kind
from acms.ports import StorageBackend
from acms.storage import append_rules
from acms.storage.append_rules import Read, parse_entry_ids
from acms.storage.checked import CheckedStorage
from acms.storage.wrapper import WrapperStorage

_version = attrgetter("version")


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheStats:
    """Statistics of a cache, counted in entries."""

    hits: int
    misses: int
    bytes: int
    contexts: int

    @property
    def hit_rate(self) -> float:
        """Share of the entries that came from memory; 0 before the first read."""
        total = self.hits + self.misses
        return self.hits / total if total else 0.0


@dataclass(slots=True)
class _CachedLog:
    """The cached entries of one context under one epoch."""

    epoch: int
    #: By the clock of the cache.
    born: float = 0.0
    entries: dict[int, Entry] = field(default_factory=dict)
    #: Those that were asked for by id: apart, so that they do not cut the runs in which a log is read.
    single: dict[int, Entry] = field(default_factory=dict)
    bytes: int = 0
    count: int = 0
    #: All replacing entries up to a version.
    replacing: list[Entry] = field(default_factory=list)
    replacing_up_to: int = 0
    #: `Head.rewrites` at that version.
    rewrites: int = 0
    #: The replacements of the first of them, by whether they are for searching.
    replacements: dict[bool, Replacements] = field(default_factory=dict)
    #: True once it was evicted: readers still iterating over it no longer count its bytes.
    evicted: bool = False

    def get(self, version: int) -> Entry | None:
        """Return a cached entry."""
        return self.entries.get(version) or self.single.get(version)


class CachedStorage(WrapperStorage):
    """Caches recently read entries in memory and evicts the least recently used contexts first.

    Entries cached for `ttl_seconds` are read again; None keeps them until they are evicted. With `max_entries` None,
    only `max_bytes` limits the cache.
    """

    def __init__(
        self,
        inner: StorageBackend,
        *,
        max_bytes: int = 64 * 1024 * 1024,
        max_entries: int | None = None,
        ttl_seconds: float | None = None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        super().__init__(inner)
        #: Reads what is not cached.
        self._checked = CheckedStorage(inner)
        self.max_bytes = max_bytes
        self.max_entries = max_entries
        self.ttl_seconds = ttl_seconds
        self._clock = clock
        self._count = 0
        #: Held while cached logs are changed: several event loops run in several threads.
        self._lock = threading.Lock()
        self._logs: OrderedDict[str, _CachedLog] = OrderedDict()
        self._bytes = 0
        self._hits = 0
        self._misses = 0

    @property
    def stats(self) -> CacheStats:
        """Return hits, misses and size."""
        return CacheStats(hits=self._hits, misses=self._misses, bytes=self._bytes, contexts=len(self._logs))

    async def read(
        self,
        context: str,
        *,
        at: int | None = None,
        after: int = 0,
        before: int | None = None,
        kinds: Sequence[Kind] | None = None,
        replacing: bool = False,
        newest: int | None = None,
        limit: int | None = None,
        deleted: bool = False,
    ) -> list[Entry]:
        """Read entries: from memory those cached under the head's epoch, the rest from the store."""
        append_rules.check_read(newest, limit)
        request = Read(at, after, before, kinds, replacing, newest, limit, deleted)
        if deleted:  # rare, and without a head there is no epoch to trust
            return await request.run(self._checked, context)
        head = await self.inner.head(context)
        first, last = max(1, after + 1), request.last_version(head.version)
        if first > last:
            return []
        cached = self._cached_log(context, head)
        if replacing:
            # All replacing entries of the log are cached, in the order of their versions.
            all_replacing = await self._read_replacing(context, head, cached)
            start = bisect_left(all_replacing, first, key=_version)
            return request.select(all_replacing[start : bisect_right(all_replacing, last, key=_version)])
        # The store finds rare kinds by an index; here every message between them would be fetched.
        if kinds is not None and Kind.MESSAGE not in kinds:
            return await request._replace(at=last).run(self._checked, context)
        return await self._read_by_version(context, cached, request, first, last)

    async def replacements(self, context: str, head: Head, version: int, *, searchable: bool) -> Replacements:
        """Return which entries are superseded at a version.

        The result for the newest version is cached: newer replacing entries extend it.
        """
        cached = self._cached_log(context, head)
        replacing = await self._read_replacing(context, head, cached)
        wanted_count = bisect_right(replacing, version, key=_version)
        replacements = cached.replacements.get(searchable)
        included_count = 0 if replacements is None else len(replacements.replacing)
        # Replacements can be extended by newer entries, but not be cut back to an older version.
        if replacements is None or included_count > wanted_count:
            extended = Replacements(replacing[:wanted_count], searchable=searchable)
        elif included_count < wanted_count:
            extended = replacements.apply_newer(replacing[included_count:wanted_count])
        else:
            extended = replacements
        if included_count < wanted_count:  # an older version must not displace what newer ones extend
            cached.replacements[searchable] = extended
        return extended

    async def get(self, ids: Sequence[str]) -> list[Entry | None]:
        """Return entries by id, from memory where they are there and their context's epoch is still the same."""
        location_of = parse_entry_ids(ids)
        cached_logs = await self._find_cached_logs(Counter([owner for owner, _ in location_of.values()]))
        entries: dict[str, Entry] = {}
        for id, (owner, version) in location_of.items():
            cached = cached_logs.get(owner)
            entry = None if cached is None else cached.get(version)
            if entry is not None and entry.id == id:
                entries[id] = entry
        self._hits += len(entries)
        missing = [id for id in location_of if id not in entries]
        if missing:
            fetched = [entry for entry in await self._checked.get(missing) if entry is not None]
            self._misses += len(fetched)
            entries.update({entry.id: entry for entry in fetched})
            for owner, cached in cached_logs.items():
                self._cache_entries(
                    cached, [entry for entry in fetched if entry.context == owner], cached.single
                )
            self._evict_logs()
        return [entries.get(id) for id in ids]

    async def _find_cached_logs(self, wanted_counts: Mapping[str, int]) -> dict[str, _CachedLog]:
        """Return the cached entries of contexts, by id; `wanted_counts` says how many entries of each are wanted.

        A context is left out where asking for its head, which proves that the cache is valid, would cost more than
        it saves.
        """
        cached_logs: dict[str, _CachedLog] = {}
        for context, count in wanted_counts.items():
            if count == 1 and context not in self._logs:  # one entry costs no more than one head
                continue
            with suppress(ACMSError):  # of a deleted context: the store still knows its entries
                cached_logs[context] = self._cached_log(context, await self.inner.head(context))
        return cached_logs

    def _cached_log(self, context: str, head: Head) -> _CachedLog:
        """Return the cached entries of a context.

        An empty cache replaces one that has expired or was read under another epoch.
        """
        with self._lock:
            cached = self._logs.get(context)
            if cached is None or cached.epoch != head.epoch or self._is_expired(cached):
                if cached is not None:
                    self._discard_log(cached)
                cached = self._logs[context] = _CachedLog(head.epoch, self._clock())
            self._logs.move_to_end(context)
            return cached

    async def _read_replacing(self, context: str, head: Head, cached: _CachedLog) -> list[Entry]:
        """Return the replacing entries of a log, at least up to a head; only those after the cached ones are read."""
        if head.rewrites == 0:
            return []
        cached_entries, cached_up_to = cached.replacing, cached.replacing_up_to
        if cached_up_to >= head.version or cached.rewrites == head.rewrites:
            self._hits += len(cached_entries)
            return cached_entries
        newer = await self._checked.read(context, at=head.version, after=cached_up_to, replacing=True)
        self._hits += len(cached_entries)
        self._misses += len(newer)
        replacing = [*cached_entries, *newer]
        if head.version > cached.replacing_up_to:  # another reader may have been further meanwhile
            cached.replacing, cached.replacing_up_to, cached.rewrites = replacing, head.version, head.rewrites
        return replacing

    async def _read_by_version(
        self, context: str, cached: _CachedLog, request: Read, first: int, last: int
    ) -> list[Entry]:
        """Read versions first to last, in the order asked for, until enough entries of the wanted kinds are found.

        Versions have no gaps, so a version that is not cached begins a run of missing entries, which is fetched at
        once.
        """
        backward = request.newest is not None
        limit = request.newest if backward else request.limit
        step = -1 if backward else 1
        version, end = (last, first - 1) if backward else (first, last + 1)
        entries: list[Entry] = []
        fetched = 0
        while version != end and (limit is None or len(entries) < limit):
            entry = cached.entries.get(version)
            if entry is None:
                max_length = None
                if limit is not None:
                    max_length = (
                        limit - len(entries) + 8
                    )  # a few more, since entries of other kinds do not count
                first_missing, last_missing = _missing_run(cached.entries, version, end, max_length)
                missing = await self._checked.read(context, at=last_missing, after=first_missing - 1)
                # The log was deleted or erased meanwhile: leave the whole request to the store.
                if len(missing) != last_missing - first_missing + 1:
                    return await request._replace(at=last).run(self._checked, context)
                fetched += len(missing)
                self._cache_entries(cached, missing, cached.entries)
                entry = cached.entries[version]
            if request.kinds is None or entry.kind in request.kinds:
                entries.append(entry)
            version += step
        self._misses += fetched
        self._hits += max(0, len(entries) - fetched)
        if backward:
            entries.reverse()
        self._evict_logs()
        return entries

    def _cache_entries(self, cached: _CachedLog, entries: Sequence[Entry], target: dict[int, Entry]) -> None:
        """Add entries to a cached log, in `target`: either its `entries`, or its `single` ones; count their size."""
        with self._lock:  # two readers may fetch the same run, whose size must be counted once
            added = [
                entry
                for entry in entries
                if entry.version not in cached.entries and entry.version not in target
            ]
            target.update({entry.version: entry for entry in added})
            # An entry that was cached by itself moves into a run; its size was counted before.
            if target is cached.entries:
                added = [entry for entry in added if cached.single.pop(entry.version, None) is None]
            if cached.evicted:
                return
            size = sum(_size_of_entry(entry) for entry in added)
            cached.bytes += size
            cached.count += len(added)
            self._bytes += size
            self._count += len(added)

    def _is_expired(self, cached: _CachedLog) -> bool:
        return self.ttl_seconds is not None and self._clock() - cached.born >= self.ttl_seconds

    def _discard_log(self, cached: _CachedLog) -> None:
        """Take a cached log out of the totals; readers that still use it no longer count what they add."""
        self._bytes -= cached.bytes
        self._count -= cached.count
        cached.bytes = cached.count = 0
        cached.evicted = True

    def _evict_logs(self) -> None:
        with self._lock:
            while self._logs and (self._is_full() or self._is_expired(next(iter(self._logs.values())))):
                _, cached = self._logs.popitem(last=False)
                self._discard_log(cached)

    def _is_full(self) -> bool:
        has_too_many = self.max_entries is not None and self._count > self.max_entries
        return has_too_many or self._bytes > self.max_bytes


def _missing_run(
    entries: Mapping[int, Entry], version: int, end: int, max_length: int | None
) -> tuple[int, int]:
    """Return the first and last version of the run of uncached entries from `version` towards `end`.

    `end` itself is not part of it, and it has at most `max_length` versions.
    """
    step = 1 if end > version else -1
    stop = version
    if max_length is not None:
        furthest = version + step * max_length
        end = min(end, furthest) if step > 0 else max(end, furthest)
    while stop != end and stop not in entries:
        stop += step
    return (version, stop - 1) if step > 0 else (stop + 1, version)


def _size_of_entry(entry: Entry) -> int:
    """Return about how many bytes an entry takes in memory: 1,500 and its text, which parts repeat."""
    copies = 2 if entry.parts else 1
    return 1_500 + copies * len(entry.content)
