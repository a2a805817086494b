"""The indexes of one storage handle: updated from the log before each use, shared by sessions and forks.

An index is a cache with a protocol (rules 2.1 to 2.11). Every use starts from a head row. A higher version means that
entries were added, a higher `derived` that index records or vectors were added, another `epoch` that content was erased
and everything must be read again. Missing rows are created again: index records from the entries, vectors by the
embedder.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, TypeAlias, TypeVar
from weakref import WeakValueDictionary

from acms.errors import VectorsUnavailableError
from acms.log.active_entries import NO_DEMOTIONS, Demotions, Replacements, find_demotions
from acms.log.read import find_profile, replacements_at, valid_times_at
from acms.log.validation import UNNAMED
from acms.log.validity import Period
from acms.model import Context, Derived, Draft, Head, State
from acms.observability.logging import log_event, safe_error
from acms.ports import StorageBackend
from acms.results import IndexStats
from acms.runtime.threads import INLINE, Building, in_thread
from acms.storage import handles
from acms.text import index_record

if TYPE_CHECKING:  # they bring numpy: loaded by the first recall
    from acms.recall.corpus import Corpus
    from acms.recall.index import Segment

MAX_CACHED = 4_096
"""Profiles, lineages, index records and vectors kept in memory, at most, of each: a few megabytes."""


class Profiles:
    """Find the profile of a namespace, the context that holds its facts; an absence is cached for two seconds."""

    def __init__(self, storage: StorageBackend) -> None:
        self._storage = storage
        self._ids: dict[str, str] = {}
        #: Until when a profile is assumed to be absent, by namespace and by who asked.
        self._absent: dict[tuple[str, object], float] = {}

    async def find(self, namespace: str, asking: object = None) -> str | None:
        """Return the id of a namespace's profile; None if it has none, or the namespace is unnamed.

        An absence is cached with `asking`, the state of the caller's own log: when that changes, the store is read.
        """
        if namespace == UNNAMED:
            return None
        id = self._ids.get(namespace)
        if id is not None:
            return id
        key, now = (namespace, asking), asyncio.get_running_loop().time()
        if now < self._absent.get(key, 0.0):
            return None
        context = await find_profile(self._storage, namespace)
        if context is None:
            if len(self._absent) >= MAX_CACHED:
                self._absent.clear()
            self._absent[key] = now + 2.0  # seconds
            return None
        if len(self._ids) >= MAX_CACHED:
            self._ids.clear()
        self._ids[namespace] = context.id
        return context.id

    def forget(self, namespace: str) -> None:
        """Ask the store again: the profile was deleted."""
        self._ids.pop(namespace, None)

    def forget_absences(self) -> None:
        """Ask the store again for all absent profiles: one was created."""
        self._absent = {}


def record_new_profile(handle: StorageBackend) -> None:
    """Let all readers of a storage handle, in any event loop, find the profile that one of them created."""
    for _, state in handles.get_shared_state(handle).loops.all():
        if state.indexes is not None:
            state.indexes.profiles.forget_absences()


SMALL = 256
"""Logs with fewer messages are not cached: reading them again takes little."""
THREAD_ABOVE = 4_096
"""Adding more index records or vectors than this is done off the event loop."""
FLUSH = 64
"""Index records of one log that are stored together."""
UNSTORED = 1_024
"""Index records of all logs that may wait to be stored."""


CACHED_LOGS = 256
"""Logs whose superseded and retracted entries are cached."""


V = TypeVar("V")
IndexRecords: TypeAlias = tuple[list[bytes | None], list[int]]
"""The index records of a range of versions, and which of these versions are gone."""
Lineage: TypeAlias = tuple[str, tuple[tuple[str, int], ...], str]
"""The root of a log, its ancestors with the versions it inherits, and the name of its session."""


@dataclass(slots=True)
class _LogIndex:
    """The cached index of one log."""

    epoch: int
    #: (owner, first version, last version) of inherited entries, oldest first, then its own without an end.
    lineage: tuple[tuple[str, int, int | None], ...]
    segments: list[Segment]
    #: `Head.derived` up to which rows were read, by space.
    read_up_to: dict[str, int] = field(default_factory=dict[str, int])
    #: The last corpus built from it, and its cache key.
    cached_corpus: tuple[tuple[int, int], Corpus] | None = None

    def ranges_up_to(self, version: int) -> list[tuple[str, Segment, int, int]]:
        """Return (owner, segment, first, last) for each log of the lineage, `last` being at most `version`.

        A log that begins later is included, with last < first.
        """
        ranges: list[tuple[str, Segment, int, int]] = []
        for (owner, first, last), segment in zip(self.lineage, self.segments, strict=True):
            ranges.append((owner, segment, first, version if last is None else min(last, version)))
        return ranges


async def _load_cached(
    cache: OrderedDict[str, tuple[tuple[int, ...], V]],
    context: str,
    stamp: tuple[int, ...],
    load: Callable[[], Awaitable[V]],
) -> V:
    """Return the cached value of a log, or load and cache it if the cached one has another stamp."""
    cached_value = cache.get(context)
    if cached_value is not None and cached_value[0] == stamp:
        cache.move_to_end(context)
        return cached_value[1]
    value = await load()
    cache[context] = stamp, value
    if len(cache) > CACHED_LOGS:
        cache.popitem(last=False)
    return value


class Indexes:
    """All indexes of a storage handle."""

    def __init__(self, storage: StorageBackend, max_bytes: int) -> None:
        self.storage = storage
        self.max_bytes = max_bytes
        self._logs: OrderedDict[str, _LogIndex] = OrderedDict()
        self._segments: WeakValueDictionary[str, Segment] = WeakValueDictionary()
        self._lineages: dict[str, Lineage] = {}
        #: By root of the fork tree: one task builds, the others wait.
        self._locks: WeakValueDictionary[str, Building] = WeakValueDictionary()
        #: Stored entries whose index record is not written yet: (context, epoch, version, id, draft).
        self._unindexed_entries: deque[tuple[str, int, int, str, Draft]] = deque()
        #: Writes the record of the long entry that is next in the queue.
        self._long_task: asyncio.Task[None] | None = None
        #: Index records that no index has taken yet, with their erasure generation, and those not yet stored.
        self._new_records: OrderedDict[tuple[str, int], tuple[int, bytes]] = OrderedDict()
        self._unstored_records: dict[str, list[tuple[int, bytes]]] = {}
        self._waiting_count = 0
        #: Logs with enough index records to be stored.
        self._full_logs: set[str] = set()
        self.profiles = Profiles(storage)
        self._timer: asyncio.TimerHandle | None = None
        #: Vectors on their way to the store, with their erasure generation: recall must not wait for a commit.
        self._pending_vectors: OrderedDict[str, tuple[int, list[Derived]]] = OrderedDict()
        #: Number of times that vectors were added: changes whenever a corpus may have grown.
        self.additions = 0
        #: By log, with the count of rewrites and the erasure generation.
        self._active_states: OrderedDict[str, tuple[tuple[int, ...], tuple[Replacements, Demotions]]] = (
            OrderedDict()
        )
        #: By log, with the count of entries that are no messages as well.
        self._valid_times: OrderedDict[str, tuple[tuple[int, ...], Mapping[int, Period]]] = OrderedDict()
        self._hit_count = self._build_count = self._healed_count = 0
        #: Estimated bytes of all segments, including some that were evicted since.
        self._estimated_bytes = 0

    @property
    def stats(self) -> IndexStats:
        """Return hits, builds and size."""
        return IndexStats(
            hits=self._hit_count,
            builds=self._build_count,
            bytes=sum(segment.bytes for segment in self._segments.values()),
            contexts=len(self._logs),
            healed=self._healed_count,
        )

    # ── writing records ─────────────────────────────────────────────────────────────────────────────────────────────

    def note(self, context: str, epoch: int, version: int, id: str, draft: Draft) -> None:
        """Queue a stored entry; its index record is written a moment later, when the event loop is idle."""
        self._unindexed_entries.append((context, epoch, version, id, draft))
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(0.02, self._write_idle)

    def _write_idle(self) -> None:
        self.work(FLUSH)
        self._timer = None
        if self._begins_with_long():
            self._write_long()
        elif self._unindexed_entries:
            self._timer = asyncio.get_running_loop().call_later(0, self._write_idle)

    def _begins_with_long(self) -> bool:
        """Return whether the next entry of the queue is long, so that its record is written in a thread."""
        return bool(self._unindexed_entries) and len(self._unindexed_entries[0][-1].content) > INLINE

    def _write_long(self) -> asyncio.Task[None]:
        """Write the index record of the long entry that is next in the queue, and then of the others."""
        if self._long_task is None or self._long_task.done():
            self._long_task = asyncio.get_running_loop().create_task(self._encode_long())
        return self._long_task

    async def _encode_long(self) -> None:
        context, epoch, version, id, draft = self._unindexed_entries[0]
        try:
            record = await in_thread(partial(index_record.encode_index_record, draft, id))
        except Exception:
            self._unindexed_entries.popleft()
            raise
        self._unindexed_entries.popleft()
        self._keep(context, version, epoch, record)
        if self._unindexed_entries and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(0, self._write_idle)

    async def _write_all(self) -> None:
        """Write the index records of all queued entries."""
        while self._unindexed_entries:
            self.work(len(self._unindexed_entries))
            if self._begins_with_long():
                await asyncio.shield(self._write_long())

    def learn(self, context: str, epoch: int, rows: Sequence[Derived]) -> None:
        """Cache vectors that were sent to the store and may not be readable there yet.

        Cached vectors of another erasure generation (`epoch`) are dropped: their entries may be erased.
        """
        self.additions += 1
        cached_epoch, cached_rows = self._pending_vectors.pop(context, (epoch, []))
        if cached_epoch != epoch:
            cached_rows = []
        self._pending_vectors[context] = epoch, [*cached_rows, *rows][-MAX_CACHED:]
        total = sum(len(rows) for _, rows in self._pending_vectors.values())
        while len(self._pending_vectors) > 1 and total > MAX_CACHED:
            _, (_, dropped_rows) = self._pending_vectors.popitem(last=False)
            total -= len(dropped_rows)

    def work(self, limit: int = 2) -> None:
        """Write the index records of a few entries, up to the first long one."""
        for _ in range(min(limit, len(self._unindexed_entries))):
            if self._begins_with_long():
                return
            context, epoch, version, id, draft = self._unindexed_entries.popleft()
            self._keep(context, version, epoch, index_record.encode_index_record(draft, id))

    def _keep(self, context: str, version: int, epoch: int, record: bytes) -> None:
        """Cache an index record for the next index that reads it, and queue it for the store."""
        self._new_records[context, version] = epoch, record
        if len(self._new_records) > MAX_CACHED:
            self._new_records.popitem(last=False)
        unstored_records = self._unstored_records.setdefault(context, [])
        unstored_records.append((version, record))
        self._waiting_count += 1
        if len(unstored_records) >= FLUSH:
            self._full_logs.add(context)

    @property
    def is_flush_due(self) -> bool:
        """Whether enough index records wait to be stored, of one log or in all."""
        return (
            bool(self._full_logs)
            or self._waiting_count >= UNSTORED
            or len(self._unindexed_entries) >= UNSTORED
        )

    async def flush(self, *, everything: bool = True) -> None:
        """Write all queued index records, and pass them to the store, whose next commit stores them.

        Without `everything`, only those of logs with many are passed, unless very many wait in all.
        """
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        await self._write_all()
        if self._waiting_count >= UNSTORED or everything:
            unstored_records, self._unstored_records = self._unstored_records, {}
        else:
            unstored_records = {
                context: self._unstored_records.pop(context, []) for context in self._full_logs
            }
        self._full_logs.clear()
        self._waiting_count -= sum(map(len, unstored_records.values()))
        for context, records in unstored_records.items():
            rows = [
                Derived(version=version, space=index_record.SPACE, data=data) for version, data in records
            ]
            try:
                await self.storage.put_derived(context, rows, wait=False)
            except Exception as error:  # they can be computed again
                reason = safe_error(error)
                log_event(
                    logging.WARNING, "index_records_not_stored", context=context, error=reason, rows=len(rows)
                )

    def detach(self) -> bool:
        """Detach from a closed event loop; return whether another loop may use the indexes.

        It may not if the loop was closed during a build, which may still run in a thread.
        """
        self._timer = self._long_task = None
        return not any(lock.locked() for lock in self._locks.values())

    async def write_records(self) -> None:
        """Write the queued index records, and pass them to the store if there are many."""
        await self._write_all()
        if self.is_flush_due:
            await self.flush(everything=False)

    # ── reading ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def load_active_state(
        self, context: str, head: Head, version: int
    ) -> tuple[Replacements, Demotions]:
        """Return the superseded or retracted entries at a version, and the messages with outdated statements.

        At the head both are cached until the number of entries that replace others changes.
        """
        if not head.rewrites:
            return Replacements((), searchable=True), NO_DEMOTIONS

        async def load() -> tuple[Replacements, Demotions]:
            replacements = await replacements_at(self.storage, context, head, version, searchable=True)
            return replacements, find_demotions(replacements)

        if version != head.version:
            return await load()
        return await _load_cached(self._active_states, context, (head.rewrites, head.epoch), load)

    async def load_valid_times(self, context: str, head: Head, version: int) -> Mapping[int, Period]:
        """Return the validity periods of the active facts at a version, by version, as `valid_times_at` does.

        At the head they are cached until an entry other than a message is appended.
        """
        load = partial(valid_times_at, self.storage, context, head, version)
        if version != head.version:
            return await load()
        stamp = head.version - head.messages, head.rewrites, head.epoch
        return await _load_cached(self._valid_times, context, stamp, load)

    async def load_corpus(
        self, context: str, head: Head, version: int, replacements: Replacements, spaces: Sequence[str]
    ) -> Corpus:
        """Return the corpus of a log at a version, from an index that is updated to the log's head."""
        from acms.recall.corpus import Corpus
        from acms.recall.index import Snapshot

        await self.write_records()
        root, ancestors, _ = await self.lineage(context)
        lock = self._locks.setdefault(root, Building())
        async with lock:
            log = self._logs.get(context)
            is_small = head.messages < SMALL
            if log is None or log.epoch != head.epoch:
                self._build_count += 1
                log = self._start_index(context, ancestors, head.epoch, is_small)
            else:
                self._hit_count += 1
            has_grown = await self._catch_up(context, log, head, spaces, lock)
            if not is_small:
                self._logs[context] = log
                self._logs.move_to_end(context)
                self._evict(log)
            key = (version, head.rewrites)
            if has_grown or log.cached_corpus is None or log.cached_corpus[0] != key:
                pieces = [
                    (owner, segment, last - segment.base)
                    for owner, segment, first, last in log.ranges_up_to(version)
                    if first <= version
                ]
                log.cached_corpus = key, Corpus(Snapshot(pieces), replacements)
            return log.cached_corpus[1]

    async def lineage(self, context: str) -> Lineage:
        """Return the lineage of a log, which never changes."""
        lineage = self._lineages.get(context)
        if lineage is None:
            lineage = self.cache_lineage(await self.storage.context(context))
        return lineage

    def cache_lineage(self, context: Context) -> Lineage:
        """Cache the result of `lineage` for a context that was read: it never changes."""
        if len(self._lineages) >= MAX_CACHED:
            self._lineages.clear()
        lineage = self._lineages[context.id] = (context.root, context.lineage, context.key or context.id)
        return lineage

    async def session_of(self, context: str) -> str:
        """Return the name of the session that a context is the log of, also of a deleted one."""
        _, _, name = await self.lineage(context)
        return name

    def _start_index(
        self, context: str, ancestors: tuple[tuple[str, int], ...], epoch: int, is_small: bool
    ) -> _LogIndex:
        """Return a new index of a log, which shares the segments that other logs of its lineage already have."""
        from acms.recall.index import Segment

        lineage: list[tuple[str, int, int | None]] = []
        segments: list[Segment] = []
        first_version = 1
        for owner, last in (*ancestors, (context, None)):
            segment = self._segments.get(owner)
            if segment is None or segment.epoch != epoch or segment.base != first_version - 1:
                segment = Segment(first_version - 1)
                segment.epoch = epoch
                if not is_small:
                    self._segments[owner] = segment
            lineage.append((owner, first_version, last))
            segments.append(segment)
            first_version = (last or 0) + 1
        return _LogIndex(epoch, tuple(lineage), segments)

    async def _catch_up(
        self, context: str, log: _LogIndex, head: Head, spaces: Sequence[str], lock: Building
    ) -> bool:
        """Read the new index records and vectors of a log; return whether there were any."""
        has_grown = await self._extend(context, log, head, lock)
        for space in spaces:
            after = log.read_up_to.get(space, 0)
            if after >= head.derived:
                continue
            try:
                rows = await self.storage.derived(context, space, after=after)
            except VectorsUnavailableError:  # ranked by words until they are available
                continue
            log.read_up_to[space] = head.derived
            has_grown = has_grown or bool(rows)
            await self._add_vectors(log, space, rows, head.version, lock)
        epoch, pending = self._pending_vectors.get(context, (0, []))
        if not pending or epoch != head.epoch:
            return has_grown
        if head.messages >= SMALL:  # the segment keeps them
            del self._pending_vectors[context]
        for space in spaces:
            rows = [row for row in pending if row.space == space]
            has_grown = has_grown or bool(rows)
            await self._add_vectors(log, space, rows, head.version, lock)
        return has_grown

    async def _add_vectors(
        self, log: _LogIndex, space: str, rows: Sequence[Derived], version: int, lock: Building
    ) -> None:
        """Add vectors of a log to the segments that own their entries, off the event loop if there are many."""

        def add() -> None:
            for _, segment, first, last in log.ranges_up_to(version):
                own_rows = [row for row in rows if first <= row.version <= last]
                segment.add_vectors(space, [(row.version, row.part, row.data) for row in own_rows])

        if len(rows) > THREAD_ABOVE:
            await lock.off_loop(add)
        else:
            add()

    async def _extend(self, context: str, log: _LogIndex, head: Head, lock: Building) -> bool:
        """Add the index records of new entries to the segments; return whether there were any."""
        ranges: list[tuple[str, int, int]] = []
        segments: list[Segment] = []
        for owner, segment, _, last in log.ranges_up_to(head.version):
            start = segment.base + segment.count + 1
            if start <= last:
                ranges.append((owner, start, last))
                segments.append(segment)
        if not ranges:
            return False
        is_cached = head.messages >= SMALL  # an index that is rebuilt each time may need a record again
        after = log.read_up_to.get(index_record.SPACE, 0)
        records_by_range = await self.index_records(context, ranges, head, after, is_cached)
        for segment, (records, gone_versions) in zip(segments, records_by_range, strict=True):
            segment.blanked.update(version - segment.base - 1 for version in gone_versions)
            if len(records) > THREAD_ABOVE:
                await lock.off_loop(partial(segment.extend, records))
            else:
                segment.extend(records)
        log.read_up_to[index_record.SPACE] = head.derived
        return True

    async def index_records(
        self,
        context: str,
        ranges: Sequence[tuple[str, int, int]],
        head: Head,
        after: int,
        releases_records: bool,
    ) -> list[IndexRecords]:
        """Return the index records of some (owner, first version, last version) ranges of a log.

        Stored records are read above the row number `after`; missing ones are created again. The record of a deleted
        entry is blank. With `releases_records`, new records are removed from memory: the caller keeps them.
        """
        new_records: dict[int, bytes] = {}
        for owner, start, end in ranges:
            new_records |= self._find_new_records(owner, start, end, head.epoch, releases_records)
        known_records = dict(new_records)
        if any(start not in new_records for _, start, _ in ranges):
            for row in await self.storage.derived(context, index_record.SPACE, after=after):
                known_records.setdefault(row.version, row.data)
        # After an erasure or an expiry, a stored record does not prove that its entry still exists.
        certain = new_records.keys() if head.epoch else known_records.keys()
        records_by_range: list[IndexRecords] = []
        for owner, start, end in ranges:
            records = [known_records.get(version) for version in range(start, end + 1)]
            uncertain = [version for version in range(start, end + 1) if version not in certain]
            gone_versions = await self._heal(context, owner, head.epoch, start, records, uncertain)
            records_by_range.append((records, gone_versions))
        return records_by_range

    def _find_new_records(
        self, owner: str, start: int, end: int, epoch: int, releases_records: bool
    ) -> dict[int, bytes]:
        """Return by version the index records of a range that are in memory, and release them if `releases_records`."""
        records: dict[int, bytes] = {}
        if not self._new_records:
            return records
        for version in range(start, end + 1):
            key = owner, version
            record_epoch, record = self._new_records.get(key, (-1, b""))
            if releases_records:
                self._new_records.pop(key, None)
            if record_epoch == epoch:
                records[version] = record
        return records

    async def _heal(
        self,
        context: str,
        owner: str,
        epoch: int,
        start: int,
        records: list[bytes | None],
        uncertain: Sequence[int],
    ) -> list[int]:
        """Check the entries of uncertain versions: create missing index records again, and blank those of lost entries.

        `records` are those of the versions from `start` on. Returns the versions of the lost entries.
        """
        gone_versions: list[int] = []
        for first, last in _group_runs(uncertain):
            for entry in await self.storage.read(context, after=first - 1, before=last + 1):
                index = entry.version - start
                if entry.state is not State.LIVE:
                    records[index] = index_record.encode_index_record(entry, entry.id)
                    gone_versions.append(entry.version)
                elif records[index] is None:
                    record = records[index] = index_record.encode_index_record(entry, entry.id)
                    self._keep(owner, entry.version, epoch, record)
                    self._healed_count += 1
        return gone_versions

    def pending_vectors(self, context: str) -> Sequence[Derived]:
        """Return the vectors of a log that the store may not show yet: a new list whenever some were added."""
        return self._pending_vectors[context][1] if context in self._pending_vectors else ()

    async def vectors(self, context: str, head: Head, space: str, after: int) -> list[Derived] | None:
        """Return the vectors of a log stored above `after`, and its pending ones; None if vectors are unavailable."""
        rows: list[Derived] = []
        if after < head.derived:
            try:
                rows = await self.storage.derived(context, space, after=after)
            except VectorsUnavailableError:  # ranked by words until they are available
                return None
        epoch, pending = self._pending_vectors.get(context, (-1, []))
        if epoch == head.epoch:
            rows = [*rows, *(row for row in pending if row.space == space)]
        return rows

    def _evict(self, used_log: _LogIndex) -> None:
        """Evict the least recently used logs until all segments have at most `max_bytes`."""
        self._update_estimate(used_log.segments)
        while len(self._logs) > 1 and self._estimated_bytes > self.max_bytes:
            # The estimate may include segments that are gone, and old sizes: measure the segments that are left.
            self._estimated_bytes = sum(segment.counted_bytes for segment in self._segments.values())
            self._update_estimate(self._segments.values())
            if self._estimated_bytes > self.max_bytes:
                self._logs.popitem(last=False)

    def _update_estimate(self, segments: Iterable[Segment]) -> None:
        for segment in segments:
            size = segment.bytes
            self._estimated_bytes += size - segment.counted_bytes
            segment.counted_bytes = size

    def blank(self, context: str, corpus: Corpus, ids: Sequence[str]) -> None:
        """Blank entries whose content was found to be gone: expired, or erased while it was being read."""
        for id in ids:
            document = corpus.snapshot.find(id)
            if document is not None:
                _, segment, position = corpus.snapshot.find_segment(document)
                segment.blanked.add(position)
        log = self._logs.get(context)
        if log is not None:
            log.cached_corpus = None


def _group_runs(versions: Sequence[int]) -> list[tuple[int, int]]:
    """Group ascending versions into (first, last) runs of consecutive ones, each of at most 1,000."""
    runs: list[tuple[int, int]] = []
    for version in versions:
        if runs and version == runs[-1][1] + 1 and version - runs[-1][0] < 1_000:
            runs[-1] = runs[-1][0], version
        else:
            runs.append((version, version))
    return runs
