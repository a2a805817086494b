"""The index of a namespace: the messages of all its sessions, found and ranked as if they were one log.

Each entry is in it once, under the session in which it was said, however many forks inherit it. A reader sees its own
log up to its end, and of every other session the active entries. A private session is visible only to itself. Before
each use one read returns the heads of all sessions, and those that changed since are read: so an answer never waits for
a notification, and entries written by another process are found at once.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from acms.errors import SessionNotFoundError
from acms.log.encoding import entry_id, parse_entry_id
from acms.log.in_force import NONE, Cover, Doc, Stale
from acms.log.policy import PRIVATE
from acms.log.read import PROFILE
from acms.log.validity import Period
from acms.model import ContextQuery, Derived, Head, Kind, SessionHead
from acms.ports import HasHeads, StorageBackend
from acms.recall.corpus import Field, mask_documents_by_kind, reading_order
from acms.recall.index import Ints, Segment, Snapshot
from acms.recall.index_cache import Indexes, IndexRecords
from acms.runtime.threads import Building
from acms.text import index_record

AT_ONCE = 16
"""Sessions that are read beside each other."""
THREAD_ABOVE = 4_096
"""Adding more entries than this leaves the event loop to others."""
ANEW = 256
"""More entries than this, and than there are, are not added one by one."""
PAGE = 500
"""Sessions listed at a time from a store that does not tell of all at once."""
NOBODY = np.zeros(0, np.int64)


class Shelf(Segment):
    """The entries of many logs, in the order in which they were read."""

    def __init__(self) -> None:
        super().__init__(0)
        self.columns["episode"] = self.columns["episode"].astype(np.uint64)
        #: Contexts by number.
        self.owners: list[str] = []
        #: Number of the log of each document, and its version there.
        self.log = np.zeros(64, np.int64)
        self.version = np.zeros(64, np.int64)

    def add(self, runs: Sequence[tuple[int, int, Sequence[bytes | None]]]) -> list[Ints]:
        """Add runs of (number of a log, first version, index records); return the documents of each."""
        start = self.count
        sizes = [len(cards) for *_, cards in runs]
        ends = start + np.cumsum(sizes)
        total = int(ends[-1])
        while len(self.log) < total:
            self.log = np.concatenate([self.log, np.zeros_like(self.log)])
            self.version = np.concatenate([self.version, np.zeros_like(self.version)])
        found = [np.arange(end - size, end) for end, size in zip(ends.tolist(), sizes, strict=True)]
        for documents, (number, first, _) in zip(found, runs, strict=True):
            self.log[documents] = number
            self.version[documents] = first + np.arange(len(documents))
        self.extend([card for *_, cards in runs for card in cards])
        episode = self.columns["episode"][start:total]
        logs = (self.log[start:total] + 1).astype(np.uint64) << np.uint64(32)
        episode[:] = np.where(episode > 0, episode | logs, episode)  # those of two logs are different ones
        return found

    def _group(self, document: int, data: bytes) -> int:
        """Tell tool groups and addresses of facts of one log from those of another."""
        name, _, links = data.partition(b"\0")
        return super()._group(document, b"%s\x01%d\0%s" % (name, self.log[document], links))


class NamespaceSnapshot(Snapshot):
    """The view one reader has of a shelf."""

    def __init__(self, shelf: Shelf, visible: Mapping[str, tuple[int, Ints]]) -> None:
        """Take the logs that it sees, by owner: the first version, and the documents from that one on."""
        super().__init__([("", shelf, shelf.count)])
        self._shelf = shelf
        self._visible = visible
        self.logs = shelf.log[: shelf.count]

    def version(self, document: int) -> int:
        """Return the version of a document in its log."""
        return int(self._shelf.version[document])

    def documents(self) -> Iterable[int]:
        """Return the documents of all logs that are seen, also those that are out of force."""
        return [document for _, documents in self._visible.values() for document in documents.tolist()]

    def find(self, id: str) -> int | None:
        """Return the document of an entry; None when it is not seen."""
        owner, version = parse_entry_id(id) or ("", 0)
        first, documents = self._visible.get(owner, (0, NOBODY))
        if not 0 <= version - first < len(documents):
            return None
        document = int(documents[version - first])
        return document if self.doc(document).id == id else None

    def of(self, owners: Iterable[str]) -> NDArray[np.bool_]:
        """Return which documents are entries that some contexts own."""
        wanted = set(owners)
        numbers = [number for number, owner in enumerate(self._shelf.owners) if owner in wanted]
        return np.isin(self._shelf.log[: self.count], numbers)

    def place(self, document: int) -> tuple[str, int]:
        """Return the context that owns a document, and its version there."""
        return self._shelf.owners[int(self._shelf.log[document])], self.version(document)

    def _doc(self, owner: str, segment: Segment, place: int, version: int) -> Doc:
        found = super()._doc(owner, segment, place, version)
        nonce: str = segment.columns["nonce"].item(place).decode()
        return found._replace(id=entry_id(found.kind, *self.place(place), nonce))


@dataclass(slots=True)
class _Log:
    """The cached state of one log."""

    number: int
    #: First version it owns, and the documents from that one on.
    first: int
    epoch: int
    documents: Ints = field(default_factory=lambda: NOBODY)
    #: Where it stood when it was read: version, rewrites, derived, epoch.
    stamp: tuple[int, ...] = ()
    #: `Head.derived` up to which rows were read, by space.
    seen: dict[str, int] = field(default_factory=dict[str, int])
    #: Vectors that it had before the store showed them.
    learned: Sequence[Derived] = ()
    #: Documents of its messages and facts in force, as they are read; None when that has to be found out anew.
    order: Ints | None = None
    facts: Ints = field(default_factory=lambda: NOBODY)
    #: Of these facts by their versions: when each is so.
    times: Mapping[int, Period] = field(default_factory=dict[int, Period])
    stale: Stale = NONE


@dataclass(slots=True)
class _News:
    """New data read from one log."""

    log: _Log
    head: Head
    cards: IndexRecords
    vectors: dict[str, list[Derived]]
    #: `Head.derived` before it was read, where rows of a space could be had.
    seen: dict[str, int]
    learned: Sequence[Derived] = ()
    cover: Cover | None = None
    times: Mapping[int, Period] = field(default_factory=dict[int, Period])
    stale: Stale = NONE


class Seen(NamedTuple):
    """The view one reader has of a namespace."""

    field: Field
    #: Messages with outdated statements.
    stale: Stale
    #: The facts in force, by their places in the field, and when each of them is so.
    times: Mapping[int, Period]


class Index:
    """The index of one namespace."""

    def __init__(self, indexes: Indexes, namespace: str) -> None:
        self._indexes = indexes
        self._namespace = namespace
        self._lock = Building()
        self._begin()

    def _begin(self) -> None:
        self.shelf = Shelf()
        self._logs: dict[str, _Log] = {}
        #: Cache key of the active entries: the heads of all sessions and the reader; then the result.
        self._made: tuple[object, Seen] | None = None

    def forget_order(self) -> None:
        """Mark the active entries for recomputation, after content was found to be deleted."""
        self._made = None
        for log in self._logs.values():
            log.order = None

    async def field(self, counter: str, spaces: Sequence[str], context: str | None) -> Seen:
        """Return the active entries of all sessions, as one of them sees it, and which of them are outdated."""
        await self._indexes.write_records()
        async with self._lock:
            stood = await _list_session_heads(self._indexes.storage, self._namespace)
            stamp = stood, counter, context, tuple(spaces), self._indexes.lessons
            if self._made is not None and self._made[0] == stamp:
                return self._made[1]
            heads = [one for one in stood if one.counter == counter and one.key != PROFILE]
            # Of a reader that is no live session of this namespace any more nothing is its own.
            own = next((one for one in heads if one.context == context), None)
            inherited = () if own is None else (await self._indexes.lineage(own.context))[1]
            await self._refresh(heads, own, inherited, spaces)
            made = await self._field(heads, own, inherited)
            self._made = stamp, made
            return made

    # ── reading new data ────────────────────────────────────────────────────────────────────────────────────────────

    async def _refresh(
        self,
        heads: Sequence[SessionHead],
        own: SessionHead | None,
        inherited: Sequence[tuple[str, int]],
        spaces: Sequence[str],
    ) -> None:
        """Read new data from every log."""
        live = sum(len(self._logs[one.context].documents) for one in heads if one.context in self._logs)
        if (
            self.shelf.count > 2 * live + THREAD_ABOVE
        ):  # most of it is of logs that are gone, or were erased in
            self._begin()
        here = {one.context for one in heads}
        wanted = [
            _Wanted(one.context, one.context, one.fork + 1, one.version, tuple(one[4:8])) for one in heads
        ]
        first = 1
        for owner, last in inherited:
            if own is not None and owner not in here:  # said in a session that is deleted, or elsewhere
                wanted.append(_Wanted(own.context, owner, first, last, (last, 0, own.derived, own.epoch)))
            first = last + 1
        changed = [one for one in wanted if self._moved(one, spaces)]
        if not changed:
            return
        limit = asyncio.Semaphore(AT_ONCE)

        async def read(one: _Wanted) -> _News | None:
            async with limit:
                return await self._read(one, spaces)

        news = [one for one in await asyncio.gather(*map(read, changed)) if one is not None]
        came = sum(len(one.cards[0]) for one in news)
        if came > max(self.shelf.count, ANEW) and self.shelf.count:  # made anew in one piece, it is faster
            self._begin()
            await self._refresh(heads, own, inherited, spaces)
        elif came > THREAD_ABOVE:
            await self._lock.off_loop(partial(self._add, news))
        else:
            self._add(news)

    def _moved(self, one: _Wanted, spaces: Sequence[str]) -> bool:
        log = self._logs.get(one.owner)
        if log is None or log.epoch != one.stamp[-1] or _last_version_of(log) < one.last:
            return True
        if one.via == one.owner and (log.order is None or log.stamp != one.stamp):
            return True
        learned = self._indexes.learned(one.via) is not log.learned
        return bool(spaces) and (learned or any(space not in log.seen for space in spaces))

    async def _read(self, one: _Wanted, spaces: Sequence[str]) -> _News | None:
        """Read the missing data of a log; None when it was deleted meanwhile."""
        indexes = self._indexes
        try:
            head = await indexes.storage.head(one.via)
            log = self._logs.get(one.owner)
            if log is None or log.epoch != head.epoch:
                log = _Log(-1, one.first, head.epoch)
            last = head.version if one.via == one.owner else one.last
            start = _last_version_of(log) + 1
            cards: IndexRecords = ([], [])
            if start <= last:
                after = log.seen.get(index_record.SPACE, 0)
                (cards,) = await indexes.index_records(
                    one.via, [(one.owner, start, last)], head, after, taken=False
                )
            news = _News(log, head, cards, {}, {index_record.SPACE: head.derived})
            news.learned = indexes.learned(one.via)
            for space in spaces:
                rows = await indexes.vectors(one.via, head, space, log.seen.get(space, 0))
                if rows is not None:
                    news.vectors[space] = rows
                    news.seen[space] = head.derived
            if one.via == one.owner:
                now = await indexes.in_force(one.via, head, head.version)
                news.cover, news.stale = now.cover, now.stale
                if head.version > head.messages:  # else there are no facts
                    news.times = await indexes.valid_times(one.via, head, head.version)
        except SessionNotFoundError:
            return None
        if log.number < 0:
            log.number = len(self.shelf.owners)
            self.shelf.owners.append(one.owner)
            self._logs[one.owner] = log
        return news

    def _add(self, news: Sequence[_News]) -> None:
        """Add the new data, and recompute the active entries of each log."""
        shelf = self.shelf
        grown = [one for one in news if one.cards[0]]
        runs = [(one.log.number, _last_version_of(one.log) + 1, one.cards[0]) for one in grown]
        for one, documents in zip(grown, shelf.add(runs) if runs else (), strict=True):
            shelf.blanked.update(
                int(documents[version - _last_version_of(one.log) - 1]) for version in one.cards[1]
            )
            one.log.documents = np.concatenate([one.log.documents, documents])
        for one in news:
            self._add_vectors(one)
        seen = Snapshot([("", shelf, shelf.count)])
        there, said = mask_documents_by_kind(seen, Kind.MESSAGE)
        _, known = mask_documents_by_kind(seen, Kind.FACT)
        for one in news:
            log, head = one.log, one.head
            log.seen.update(one.seen)
            log.learned = one.learned
            log.stamp = (head.version, head.rewrites, head.derived, head.epoch)
            log.order = NOBODY
            if one.cover is not None:
                own, base = log.documents, log.first - 1
                log.order = own[reading_order(there[own], said[own], one.cover, Kind.MESSAGE, base)]
                log.facts = own[reading_order(there[own], known[own], one.cover, Kind.FACT, base)]
                log.times, log.stale = one.times, one.stale

    def _add_vectors(self, one: _News) -> None:
        log = one.log
        for space, rows in one.vectors.items():
            self.shelf.add_vectors(
                space,
                [
                    (int(log.documents[row.version - log.first]) + 1, row.part, row.data)
                    for row in rows
                    if log.first <= row.version <= _last_version_of(log)
                ],
            )

    # ── the view of one session ─────────────────────────────────────────────────────────────────────────────────────

    async def _field(
        self, heads: Sequence[SessionHead], own: SessionHead | None, inherited: Sequence[tuple[str, int]]
    ) -> Seen:
        shelf, upto = self.shelf, dict(inherited)
        others = [
            (one.context, log)
            for one in heads
            if one is not own and not one.private and (log := self._logs.get(one.context)) is not None
        ]
        minutes = shelf.columns["minute"]
        # By the time at which each began; those that began at once as they were made.
        others.sort(key=lambda pair: int(minutes[pair[1].documents[0]]) if len(pair[1].documents) else 0)
        visible = {owner: (log.first, log.documents) for owner, log in others}
        orders = [
            _select_newer_documents(shelf, _active_documents(log), upto.get(owner, 0))
            for owner, log in others
        ]
        facts = [_select_newer_documents(shelf, log.facts, upto.get(owner, 0)) for owner, log in others]
        start = sum(map(len, orders))
        stales = [log.stale for _, log in others if log.stale]
        times: dict[int, Period] = {}
        for _, log in others:
            times |= _index_periods(log.times, log.documents, log.first)
        mine = None if own is None else self._logs.get(own.context)
        if own is not None and mine is not None:
            visible[own.context] = (mine.first, mine.documents)
            stales.append(mine.stale)
            if not inherited:
                orders.append(_active_documents(mine))
                facts.append(mine.facts)
                times |= _index_periods(mine.times, mine.documents, mine.first)
            else:
                head = await self._indexes.storage.head(own.context)
                log = np.concatenate([*(self._inherited(*one, visible) for one in inherited), mine.documents])
                now = await self._indexes.in_force(own.context, head, len(log))
                seen = Snapshot([("", shelf, shelf.count)])
                for kind, found in ((Kind.MESSAGE, orders), (Kind.FACT, facts)):
                    there, kept = mask_documents_by_kind(seen, kind)
                    order = reading_order(there[log], kept[log], now.cover, kind)
                    found.append(log[order])
                when = await self._indexes.valid_times(own.context, head, len(log))
                times |= _index_periods(when, log, 1)
        snapshot = NamespaceSnapshot(shelf, visible)
        made = Field(
            snapshot,
            Cover(()),
            order=np.concatenate([NOBODY, *orders]),
            facts=np.concatenate([NOBODY, *facts]),
            start=start,
        )
        return Seen(made, NONE.of_many(stales, snapshot.find), times)

    def _inherited(self, owner: str, last: int, visible: dict[str, tuple[int, Ints]]) -> Ints:
        """Return the documents that a log inherits from an ancestor, visible to it even if hidden from others."""
        log = self._logs.get(owner)
        if log is None:
            return NOBODY
        documents = log.documents[: last - log.first + 1]
        visible.setdefault(owner, (log.first, documents))
        return documents


@dataclass(frozen=True, slots=True)
class _Wanted:
    """The data wanted of one log: the log to read it through, the owner, and the first and last version."""

    via: str
    owner: str
    first: int
    last: int
    stamp: tuple[int, ...]


def _last_version_of(log: _Log) -> int:
    """Return the last version of a log that is on the shelf."""
    return log.first + len(log.documents) - 1


def _active_documents(log: _Log) -> Ints:
    return NOBODY if log.order is None else log.order


def _index_periods(times: Mapping[int, Period], documents: Ints, first: int) -> dict[int, Period]:
    """Return the validity periods of a log's entries, by their version on a shelf; `first` is its first version."""
    return {
        int(documents[version - first]) + 1: period
        for version, period in times.items()
        if 0 <= version - first < len(documents)
    }


def _select_newer_documents(shelf: Shelf, documents: Ints, version: int) -> Ints:
    """Return those of some documents that came after a version of their log."""
    return documents[shelf.version[documents] > version] if version else documents


async def _list_session_heads(storage: StorageBackend, namespace: str) -> list[SessionHead]:
    """Return where the sessions of a namespace stand, oldest first."""
    if isinstance(storage, HasHeads):
        return await storage.heads(namespace)
    found: list[SessionHead] = []
    after: str | None = None
    while True:
        page = await storage.contexts(ContextQuery(namespace=namespace, after=after, limit=PAGE))
        for one in page.items:
            try:
                head = await storage.head(one.id)
            except SessionNotFoundError:  # deleted meanwhile
                continue
            stood = (one.id, one.key, one.counter, one.fork or 0, head.version, head.rewrites)
            private = bool(one.settings.get(PRIVATE))
            found.append(SessionHead(*stood, head.derived, head.epoch, private))
        after = page.next_after
        if after is None:
            return found[::-1]


class Namespaces:
    """The indexes of the namespaces of a storage handle; the least recently used ones go first."""

    def __init__(self, indexes: Indexes) -> None:
        self._indexes = indexes
        self._found: OrderedDict[str, Index] = OrderedDict()

    @property
    def bytes(self) -> int:
        """Bytes they take in memory."""
        return sum(one.shelf.bytes for one in self._found.values())

    def forget_order(self) -> None:
        """Mark the active entries for recomputation, after content was found to be deleted."""
        for one in self._found.values():
            one.forget_order()

    async def field(self, namespace: str, counter: str, spaces: Sequence[str], context: str | None) -> Seen:
        """Return the active entries of a namespace, as one session sees them, and which of them are outdated.

        Messages counted by another token counter are not included. With `spaces` vectors are read too.
        """
        index = self._found.get(namespace)
        if index is None:
            index = self._found[namespace] = Index(self._indexes, namespace)
        self._found.move_to_end(namespace)
        found = await index.field(counter, spaces, context)
        while len(self._found) > 1 and self.bytes > self._indexes.max_bytes:
            self._found.popitem(last=False)
        return found
