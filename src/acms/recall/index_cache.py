"""The indexes of one storage handle: caught up with the log before each use, shared by sessions and forks.

An index is a cache with a protocol (rules 2.1 to 2.11). Every use starts from a head row: a higher version means that
entries were added, a higher `derived` that cards or vectors were added, another `epoch` that content was erased and
everything is read again. Missing rows are healed: cards are rewritten from the entries, vectors by the embedder.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeAlias
from weakref import WeakValueDictionary

from acms.errors import VectorsUnavailableError
from acms.log.in_force import NONE, Cover, Stale, find_demotions
from acms.log.read import cover_at, find_profile, valid_times_at
from acms.log.validation import UNNAMED
from acms.log.validity import Period
from acms.model import Context, Derived, Draft, Head, State
from acms.observability.logging import log_event, safe_error
from acms.ports import StorageBackend
from acms.results import IndexStats
from acms.runtime.threads import Building
from acms.storage import handles
from acms.text import index_record

if TYPE_CHECKING:  # they bring numpy: loaded by the first recall
    from acms.recall.corpus import Field
    from acms.recall.index import Segment

ABSENT = 2.0
"""Seconds for which it is believed that a namespace has none."""
NAMESPACES = 4096
"""Namespaces, and askers without a profile, of which it is remembered."""


class Profiles:
    """Which context holds the facts of a namespace: its id is remembered for good, that there is none for a moment."""

    def __init__(self, storage: StorageBackend) -> None:
        self._storage = storage
        self._found: dict[str, str] = {}
        #: Until when there is none, by namespace and by who asked.
        self._absent: dict[tuple[str, object], float] = {}

    async def find(self, namespace: str, asking: object = None) -> str | None:
        """Return the id of a namespace's profile; None when it has none, or is unnamed.

        `asking` is the caller's state of its own log: when it has changed, the store is asked again.
        """
        if namespace == UNNAMED:
            return None
        found = self._found.get(namespace)
        if found is not None:
            return found
        key, now = (namespace, asking), asyncio.get_running_loop().time()
        if now < self._absent.get(key, 0.0):
            return None
        context = await find_profile(self._storage, namespace)
        if context is None:
            if len(self._absent) >= NAMESPACES:
                self._absent.clear()
            self._absent[key] = now + ABSENT
            return None
        if len(self._found) >= NAMESPACES:
            self._found.clear()
        self._found[namespace] = context.id
        return context.id

    def forget(self, namespace: str) -> None:
        """Ask the store again: the profile was deleted."""
        self._found.pop(namespace, None)

    def look(self) -> None:
        """Ask the store again where none was: one was made."""
        self._absent = {}


def record_new_profile(handle: StorageBackend) -> None:
    """Let all that read by a storage handle, in any event loop, find the profile that one of them made."""
    for _, here in handles.get_shared_state(handle).loops.all():
        if here.indexes is not None:
            here.indexes.profiles.look()


SMALL = 256
"""Logs with fewer messages are read again each time: they are not cached."""
THREAD_ABOVE = 4_096
"""Building from more cards than this, or ranking more entries, leaves the event loop to others."""
IDLE_SECONDS = 0.02
"""How long after a message its card is written."""
FLUSH = 64
"""IndexRecords of one log that are stored together."""
UNSTORED = 1_024
"""IndexRecords of all logs that may wait to be stored."""
KEPT = 4_096
"""IndexRecords kept in memory until an index takes them."""


LEARNED = 1_024
"""Vectors kept in memory until the store shows them."""


COVERS = 256
"""Logs whose superseded and retracted entries are cached."""


NO_ROWS: list[Derived] = []

IndexRecords: TypeAlias = tuple[list[bytes | None], list[int]]
"""IndexRecords of versions that follow each other, and which of these versions are gone."""


class InForce(NamedTuple):
    """The superseded or retracted entries of a log, and its messages with outdated statements."""

    cover: Cover
    stale: Stale


NOTHING = InForce(Cover((), searchable=True), NONE)


@dataclass(slots=True)
class _Sight:
    """The cached state of one log."""

    epoch: int
    #: (owner, first version, last version) of inherited entries, oldest first, then its own without an end.
    lineage: tuple[tuple[str, int, int | None], ...]
    parts: list[Segment]
    #: `Head.derived` up to which rows were read, by space.
    seen: dict[str, int] = field(default_factory=dict)
    #: The last field built from it, and its cache key.
    made: tuple[tuple[int, int], Field] | None = None


class Indexes:
    """All indexes of a storage handle."""

    def __init__(self, storage: StorageBackend, max_bytes: int) -> None:
        self.storage = storage
        self.max_bytes = max_bytes
        self._sights: OrderedDict[str, _Sight] = OrderedDict()
        self._parts: WeakValueDictionary[str, Segment] = WeakValueDictionary()
        #: Root, lineage and name of each log.
        self._lineages: dict[str, tuple[str, tuple[tuple[str, int], ...], str]] = {}
        #: One builds, the others wait: by root of the fork tree.
        self._locks: WeakValueDictionary[str, Building] = WeakValueDictionary()
        #: Entries ingested here that have no card yet: (context, epoch, version, id, draft).
        self._written: deque[tuple[str, int, int, str, Draft]] = deque()
        #: IndexRecords that no index has taken yet, with the epoch they were written under, and those not yet stored.
        self._fresh: OrderedDict[tuple[str, int], tuple[int, bytes]] = OrderedDict()
        self._unstored: dict[str, list[tuple[int, bytes]]] = {}
        self._waiting = 0
        #: Logs with enough cards to be stored.
        self._full: set[str] = set()
        #: Where the facts of a namespace are.
        self.profiles = Profiles(storage)
        self._timer: asyncio.TimerHandle | None = None
        #: Vectors on their way to the store, with the epoch they were made under: recall must not wait for a commit.
        self._learned: OrderedDict[str, tuple[int, list[Derived]]] = OrderedDict()
        #: How often vectors came.
        self.lessons = 0
        #: By log, with the count of rewrites and the epoch it was made under.
        self._in_force: OrderedDict[str, tuple[tuple[int, int], InForce]] = OrderedDict()
        #: The same of its facts, with the count of entries that are no messages.
        self._valid_times: OrderedDict[str, tuple[tuple[int, int, int], dict[int, Period]]] = OrderedDict()
        self._hits = self._builds = self._healed = 0
        #: What all parts took when each was used last; those that are gone since are still in it.
        self._counted = 0

    @property
    def stats(self) -> IndexStats:
        """Return hits, builds and size."""
        return IndexStats(
            hits=self._hits,
            builds=self._builds,
            bytes=sum(part.bytes for part in self._parts.values()),
            contexts=len(self._sights),
            healed=self._healed,
        )

    # ── writing cards ───────────────────────────────────────────────────────────────────────────────────────────────

    def note(self, context: str, epoch: int, version: int, id: str, draft: Draft) -> None:
        """Remember a stored entry; its card is written a moment later, when the event loop is idle."""
        self._written.append((context, epoch, version, id, draft))
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(IDLE_SECONDS, self._idle)

    def _idle(self) -> None:
        self.work(FLUSH)
        self._timer = asyncio.get_running_loop().call_later(0, self._idle) if self._written else None

    def learn(self, context: str, epoch: int, rows: Sequence[Derived]) -> None:
        """Remember vectors that the store was given and may not show yet."""
        self.lessons += 1
        before, known = self._learned.pop(context, (epoch, []))
        self._learned[context] = epoch, [*(known if before == epoch else ()), *rows][-LEARNED:]
        while len(self._learned) > 1 and sum(len(found) for _, found in self._learned.values()) > LEARNED:
            self._learned.popitem(last=False)

    def work(self, most: int = 2) -> None:
        """Write the cards of a few entries."""
        for _ in range(min(most, len(self._written))):
            context, epoch, version, id, draft = self._written.popleft()
            self._keep(
                context, version, epoch, index_record.encode_index_record(draft, id.rsplit("_", 1)[-1])
            )

    def _keep(self, context: str, version: int, epoch: int, card: bytes) -> None:
        self._fresh[context, version] = epoch, card
        if len(self._fresh) > KEPT:
            self._fresh.popitem(last=False)
        unstored = self._unstored.setdefault(context, [])
        unstored.append((version, card))
        self._waiting += 1
        if len(unstored) >= FLUSH:
            self._full.add(context)

    @property
    def due(self) -> bool:
        """Whether enough cards wait to be stored, of one log or in all."""
        return bool(self._full) or self._waiting >= UNSTORED or len(self._written) >= UNSTORED

    async def flush(self, *, everything: bool = True) -> None:
        """Write all cards and hand them to the store, or those of logs that have many; the next commit keeps them."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.work(len(self._written))
        if self._waiting >= UNSTORED or everything:
            unstored, self._unstored = self._unstored, {}
        else:
            unstored = {context: self._unstored.pop(context, []) for context in self._full}
        self._full.clear()
        self._waiting -= sum(map(len, unstored.values()))
        for context, found in unstored.items():
            rows = [Derived(version=version, space=index_record.SPACE, data=card) for version, card in found]
            try:
                await self.storage.put_derived(context, rows, wait=False)
            except Exception as error:  # they can be computed again
                told = safe_error(error)
                log_event(logging.WARNING, "cards_not_stored", context=context, error=told, cards=len(rows))

    def leave(self) -> bool:
        """Let go of an event loop that was closed; return whether another one may go on with them.

        Not where it was closed while something was being built, perhaps in a thread that is still at work.
        """
        self._timer = None
        return not any(lock.locked() for lock in self._locks.values())

    async def write_records(self) -> None:
        """Write the waiting cards, and pass them to the store when there are many."""
        if self._written:
            self.work(len(self._written))
        if self.due:
            await self.flush(everything=False)

    # ── reading ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def in_force(self, context: str, head: Head, version: int) -> InForce:
        """Return the superseded or retracted entries at a version, and the messages with outdated statements.

        The head counts all entries that replace others, so at the head both are valid until that count changes.
        """
        if not head.rewrites:
            return NOTHING
        stamp = head.rewrites, head.epoch
        known = self._in_force.get(context)
        if known is not None and known[0] == stamp and version == head.version:
            self._in_force.move_to_end(context)
            return known[1]
        cover = await cover_at(self.storage, context, head, version, searchable=True)
        found = InForce(cover, find_demotions(cover))
        if version == head.version:
            self._in_force[context] = stamp, found
            if len(self._in_force) > COVERS:
                self._in_force.popitem(last=False)
        return found

    async def valid_times(self, context: str, head: Head, version: int) -> Mapping[int, Period]:
        """Return the facts in force at a version, by version, and when each of them is so; as `valid_times_at`.

        No message changes them, so at the head they hold until something else is appended.
        """
        stamp = head.version - head.messages, head.rewrites, head.epoch
        known = self._valid_times.get(context)
        if known is not None and known[0] == stamp and version == head.version:
            self._valid_times.move_to_end(context)
            return known[1]
        found = await valid_times_at(self.storage, context, head, version)
        if version == head.version:
            self._valid_times[context] = stamp, found
            if len(self._valid_times) > COVERS:
                self._valid_times.popitem(last=False)
        return found

    async def field(
        self, context: str, head: Head, version: int, cover: Cover, spaces: Sequence[str]
    ) -> Field:
        """Return the index of a log at a version, caught up with a head row."""
        from acms.recall.corpus import Field
        from acms.recall.index import Snapshot

        await self.write_records()
        root, inherited, _ = await self.lineage(context)
        lock = self._locks.setdefault(root, Building())
        async with lock:
            sight = self._sights.get(context)
            small = head.messages < SMALL
            if sight is None or sight.epoch != head.epoch:
                self._builds += 1
                sight = self._sight(context, inherited, head.epoch, small)
            else:
                self._hits += 1
            made = (version, head.rewrites)
            grown = await self._catch_up(context, sight, head, spaces, lock)
            if not small:
                self._sights[context] = sight
                self._sights.move_to_end(context)
                self._evict(sight)
            if sight.made is None or sight.made[0] != made or grown:
                pieces = [
                    (owner, part, min(last or version, version) - part.base)
                    for (owner, first, last), part in zip(sight.lineage, sight.parts, strict=True)
                    if first <= version
                ]
                sight.made = made, Field(Snapshot(pieces), cover)
            return sight.made[1]

    async def lineage(self, context: str) -> tuple[str, tuple[tuple[str, int], ...], str]:
        """Return the root of a log, its ancestors with the versions it inherits, and the name of its session."""
        found = self._lineages.get(context)
        if found is None:
            found = self.know(await self.storage.context(context))
        return found

    def know(self, context: Context) -> tuple[str, tuple[tuple[str, int], ...], str]:
        """Remember the result of `lineage` for a context that was read: it never changes."""
        if len(self._lineages) >= KEPT:
            self._lineages.clear()
        found = self._lineages[context.id] = (context.root, context.lineage, context.key or context.id)
        return found

    async def session_of(self, context: str) -> str:
        """Return the name of the session that a context is the log of, also of one that is deleted."""
        return (await self.lineage(context))[2]

    def _sight(self, context: str, inherited: tuple[tuple[str, int], ...], epoch: int, small: bool) -> _Sight:
        from acms.recall.index import Segment

        lineage: list[tuple[str, int, int | None]] = []
        parts: list[Segment] = []
        first = 1
        for owner, last in (*inherited, (context, None)):
            part = self._parts.get(owner)
            if part is None or part.epoch != epoch or part.base != first - 1:
                part = Segment(first - 1)
                part.epoch = epoch
                if not small:
                    self._parts[owner] = part
            lineage.append((owner, first, last))
            parts.append(part)
            first = (last or 0) + 1
        return _Sight(epoch, tuple(lineage), parts)

    async def _catch_up(
        self, context: str, sight: _Sight, head: Head, spaces: Sequence[str], lock: Building
    ) -> bool:
        """Read new rows; return whether there were any."""
        came = await self._extend(context, sight, head, lock)
        for space in spaces:
            after = sight.seen.get(space, 0)
            if after < head.derived:
                try:
                    rows = await self.storage.derived(context, space, after=after)
                except VectorsUnavailableError:  # words must do until they can be had
                    continue
                sight.seen[space] = head.derived
                if rows:
                    came = True
                    await self._add(sight, space, rows, head.version, lock)
        epoch, learned = self._learned.get(context, (0, []))
        if learned and epoch == head.epoch:
            if head.messages >= SMALL:  # the segment keeps them
                del self._learned[context]
            for space in spaces:
                rows = [row for row in learned if row.space == space]
                came = came or bool(rows)
                await self._add(sight, space, rows, head.version, lock)
        return came

    async def _add(
        self, sight: _Sight, space: str, rows: Sequence[Derived], version: int, lock: Building
    ) -> None:
        def add() -> None:
            for (_, first, last), part in zip(sight.lineage, sight.parts, strict=True):
                end = min(last or version, version)
                part.add_vectors(
                    space, [(row.version, row.part, row.data) for row in rows if first <= row.version <= end]
                )

        if len(rows) > THREAD_ABOVE:
            await lock.off_loop(add)
        else:
            add()

    async def _extend(self, context: str, sight: _Sight, head: Head, lock: Building) -> bool:
        wanted: list[tuple[str, int, int]] = []
        parts: list[Segment] = []
        for (owner, _, last), part in zip(sight.lineage, sight.parts, strict=True):
            end = min(last or head.version, head.version)
            if part.base + part.count < end:
                wanted.append((owner, part.base + part.count + 1, end))
                parts.append(part)
        if not wanted:
            return False
        kept = head.messages >= SMALL  # by the segment; one that is rebuilt each time may need a card again
        after = sight.seen.get(index_record.SPACE, 0)
        for part, (own, gone) in zip(
            parts, await self.index_records(context, wanted, head, after, kept), strict=True
        ):
            part.blanked.update(version - part.base - 1 for version in gone)
            if len(own) > THREAD_ABOVE:
                await lock.off_loop(partial(part.extend, own))
            else:
                part.extend(own)
        sight.seen[index_record.SPACE] = head.derived
        return True

    async def index_records(
        self, context: str, wanted: Sequence[tuple[str, int, int]], head: Head, after: int, taken: bool
    ) -> list[IndexRecords]:
        """Return the cards of ranges of a log, by owner, first and last version; empty ones for deleted entries.

        Stored cards are read above `after`, the others are rewritten. Cards in memory are released when they are
        `taken`.
        """
        found: dict[int, bytes] = {}
        live: set[int] = set()
        for owner, start, end in wanted:
            for version in range(start, end + 1) if self._fresh else ():
                epoch, card = self._fresh.get((owner, version), (-1, b""))
                if taken:
                    self._fresh.pop((owner, version), None)
                if epoch == head.epoch:
                    found[version] = card
                    live.add(version)
        if any(start not in found for _, start, _ in wanted):
            for row in await self.storage.derived(context, index_record.SPACE, after=after):
                found.setdefault(row.version, row.data)
        answer: list[IndexRecords] = []
        for owner, start, end in wanted:
            own = [found.get(version) for version in range(start, end + 1)]
            # Where anything was ever erased or has expired, a stored card does not say that its entry is still there.
            sure = live if head.epoch else found.keys()
            certain = [start + number in sure for number in range(len(own))]
            answer.append((own, await self._heal(context, owner, head.epoch, start, own, certain)))
        return answer

    async def _heal(
        self,
        context: str,
        owner: str,
        epoch: int,
        start: int,
        found: list[bytes | None],
        sure: list[bool],
    ) -> list[int]:
        """Write the cards that are not sure to be right, from the entries, run by run; return the versions gone."""
        gone: list[int] = []
        at = 0
        while at < len(found):
            if sure[at]:
                at += 1
                continue
            end = at
            while end < len(found) and not sure[end] and end - at < 1000:
                end += 1
            for entry in await self.storage.read(context, after=start + at - 1, before=start + end):
                place = entry.version - start
                if entry.state is not State.LIVE:
                    found[place] = index_record.encode_index_record(entry, entry.id.rsplit("_", 1)[-1])
                    gone.append(entry.version)
                elif found[place] is None:
                    card = found[place] = index_record.encode_index_record(entry, entry.id.rsplit("_", 1)[-1])
                    self._keep(owner, entry.version, epoch, card)
                    self._healed += 1
            at = end
        return gone

    def learned(self, context: str) -> Sequence[Derived]:
        """Return the vectors of a log that the store may not show yet: another list when more have come."""
        return self._learned.get(context, (0, NO_ROWS))[1]

    async def vectors(self, context: str, head: Head, space: str, after: int) -> list[Derived] | None:
        """Return the vectors of a log stored above `after`, and those on their way; None when they cannot be had."""
        rows: list[Derived] = []
        if after < head.derived:
            try:
                rows = await self.storage.derived(context, space, after=after)
            except VectorsUnavailableError:  # words must do until they can be had
                return None
        if self._learned.get(context, (-1,))[0] == head.epoch:
            rows = [*rows, *(row for row in self.learned(context) if row.space == space)]
        return rows

    def _evict(self, used: _Sight) -> None:
        """Let the least recently used ones go; all are counted only when there may be too many bytes."""
        self._count(used.parts)
        while len(self._sights) > 1 and self._counted > self.max_bytes:
            self._counted = sum(part.counted for part in self._parts.values())
            self._count(self._parts.values())
            if self._counted > self.max_bytes:
                self._sights.popitem(last=False)

    def _count(self, parts: Iterable[Segment]) -> None:
        for part in parts:
            size = part.bytes
            self._counted += size - part.counted
            part.counted = size

    def blank(self, context: str, field: Field, ids: Sequence[str]) -> None:
        """Take entries out whose content was found to be gone: expired, or erased while it was being read."""
        for id in ids:
            document = field.snapshot.find(id)
            if document is not None:
                _, segment, place = field.snapshot.where(document)
                segment.blanked.add(place)
        sight = self._sights.get(context)
        if sight is not None:
            sight.made = None
