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

import numpy as np
from numpy.typing import NDArray

from acms.errors import SessionNotFoundError
from acms.log.active_entries import NO_DEMOTIONS, Demotions, IndexedEntry, Replacements
from acms.log.encoding import entry_id, parse_entry_id
from acms.log.policy import PRIVATE
from acms.log.read import PROFILE
from acms.log.validity import Period
from acms.model import ContextQuery, Derived, Head, Kind, SessionHead
from acms.ports import HasHeads, StorageBackend
from acms.recall.corpus import Corpus, IndexedLog, mask_documents_by_kind, reading_order
from acms.recall.index import Ints, Segment, Snapshot, grow_array
from acms.recall.index_cache import THREAD_ABOVE, Indexes, IndexRecords
from acms.runtime.threads import Building
from acms.text import index_record

REBUILD_ABOVE = 256
"""If more entries than this, and than are indexed, are new, the index is built again."""
PAGE = 500
"""Sessions listed at a time from a store that cannot list their heads."""
NO_DOCUMENTS = np.zeros(0, np.int64)


class NamespaceSegment(Segment):
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
        """Append runs of (number of a log, first version, index records); return the new documents of each run."""
        start = self.count
        total = start + sum(len(records) for *_, records in runs)
        self.log, self.version = grow_array(self.log, total), grow_array(self.version, total)
        documents_by_run: list[Ints] = []
        end = start
        for number, first_version, records in runs:
            documents = np.arange(end, end + len(records))
            self.log[documents] = number
            self.version[documents] = first_version + np.arange(len(records))
            documents_by_run.append(documents)
            end += len(records)
        self.extend([record for *_, records in runs for record in records])
        # Episodes of two logs are different ones: each gets the number of its log into its upper bits.
        episode = self.columns["episode"][start:total]
        logs = (self.log[start:total] + 1).astype(np.uint64) << np.uint64(32)
        episode[:] = np.where(episode > 0, episode | logs, episode)
        return documents_by_run

    def _group(self, document: int, data: bytes) -> int:
        """Make names of tool groups and addresses of facts unique to their log, and add the document to its group."""
        name, _, links = data.partition(b"\0")
        return super()._group(document, b"%s\x01%d\0%s" % (name, self.log[document], links))


class NamespaceSnapshot(Snapshot):
    """The view one reader has of the entries of a namespace."""

    def __init__(self, segment: NamespaceSegment, visible: Mapping[str, tuple[int, Ints]]) -> None:
        """Take the visible logs, by owner: the first version, and the documents from that one on."""
        super().__init__([("", segment, segment.count)])
        self._segment = segment
        self._visible = visible
        self.logs = segment.log[: segment.count]

    def version(self, document: int) -> int:
        """Return the version of a document in its log."""
        return int(self._segment.version[document])

    def documents(self) -> Iterable[int]:
        """Return the documents of all visible logs, also inactive ones."""
        return [document for _, documents in self._visible.values() for document in documents.tolist()]

    def find(self, id: str) -> int | None:
        """Return the document of an entry; None if it is not visible."""
        owner, version = parse_entry_id(id) or ("", 0)
        first, documents = self._visible.get(owner, (0, NO_DOCUMENTS))
        if not 0 <= version - first < len(documents):
            return None
        document = int(documents[version - first])
        return document if self.doc(document).id == id else None

    def mask_owned(self, owners: Iterable[str]) -> NDArray[np.bool_]:
        """Return which documents are entries that some contexts own."""
        owner_set = set(owners)
        numbers = [number for number, owner in enumerate(self._segment.owners) if owner in owner_set]
        return np.isin(self._segment.log[: self.count], numbers)

    def locate(self, document: int) -> tuple[str, int]:
        """Return the context that owns a document, and its version there."""
        return self._segment.owners[int(self._segment.log[document])], self.version(document)

    def _doc(self, owner: str, segment: Segment, position: int, version: int) -> IndexedEntry:
        doc = super()._doc(owner, segment, position, version)
        nonce: str = segment.columns["nonce"].item(position).decode()
        return doc._replace(id=entry_id(doc.kind, *self.locate(position), nonce))


@dataclass(slots=True)
class _LogState:
    """The cached state of one log."""

    number: int
    #: First version it owns, and the documents from that one on.
    first: int
    epoch: int
    documents: Ints = field(default_factory=lambda: NO_DOCUMENTS)
    #: Version, rewrites, derived and epoch of its head when it was read.
    stamp: tuple[int, ...] = ()
    #: `Head.derived` up to which rows were read, by space.
    read_up_to: dict[str, int] = field(default_factory=dict[str, int])
    #: Vectors that were cached before they could be read from the store.
    pending_vectors: Sequence[Derived] = ()
    #: Documents of its active messages and facts, in reading order; None if that has to be computed again.
    order: Ints | None = None
    facts: Ints = field(default_factory=lambda: NO_DOCUMENTS)
    #: The validity periods of these facts, by version.
    times: Mapping[int, Period] = field(default_factory=dict[int, Period])
    stale: Demotions = NO_DEMOTIONS

    @property
    def last(self) -> int:
        """Last version that was read."""
        return self.first + len(self.documents) - 1


@dataclass(slots=True)
class _LogUpdate:
    """New data read from one log."""

    log: _LogState
    head: Head
    records: IndexRecords
    vectors: dict[str, list[Derived]]
    #: `Head.derived` before it was read, by space whose rows were available.
    read_up_to: dict[str, int]
    pending_vectors: Sequence[Derived] = ()
    replacements: Replacements | None = None
    times: Mapping[int, Period] = field(default_factory=dict[int, Period])
    stale: Demotions = NO_DEMOTIONS


class NamespaceIndex:
    """The index of one namespace."""

    def __init__(self, indexes: Indexes, namespace: str) -> None:
        self._indexes = indexes
        self._namespace = namespace
        self._lock = Building()
        self._reset()

    def _reset(self) -> None:
        self.segment = NamespaceSegment()
        self._logs: dict[str, _LogState] = {}
        #: The last result, and its cache key: the heads of all sessions and the reader.
        self._cached_log: tuple[object, IndexedLog] | None = None

    def forget_order(self) -> None:
        """Mark the active entries for recomputation, after content was found to be deleted."""
        self._cached_log = None
        for log in self._logs.values():
            log.order = None

    async def load_corpus(self, counter: str, spaces: Sequence[str], context: str | None) -> IndexedLog:
        """Return the active entries of all sessions as the session with the log `context` sees them."""
        await self._indexes.write_records()
        async with self._lock:
            all_heads = await _list_session_heads(self._indexes.storage, self._namespace)
            stamp = all_heads, counter, context, tuple(spaces), self._indexes.additions
            if self._cached_log is not None and self._cached_log[0] == stamp:
                return self._cached_log[1]
            heads = [head for head in all_heads if head.counter == counter and head.key != PROFILE]
            # A reader that is no live session of this namespace has no log of its own here.
            own_head = next((head for head in heads if head.context == context), None)
            ancestors = () if own_head is None else (await self._indexes.lineage(own_head.context))[1]
            await self._refresh(heads, own_head, ancestors, spaces)
            log = await self._build_corpus(heads, own_head, ancestors)
            self._cached_log = stamp, log
            return log

    # ── reading new data ────────────────────────────────────────────────────────────────────────────────────────────

    async def _refresh(
        self,
        heads: Sequence[SessionHead],
        own_head: SessionHead | None,
        ancestors: Sequence[tuple[str, int]],
        spaces: Sequence[str],
    ) -> None:
        """Read new data from every log that has changed; start again with an empty index if that is cheaper."""
        live_logs = [self._logs[head.context] for head in heads if head.context in self._logs]
        live_documents = sum(len(log.documents) for log in live_logs)
        if self.segment.count > 2 * live_documents + THREAD_ABOVE:  # most are of deleted logs or erased
            self._reset()
        requests = _list_requests(heads, own_head, ancestors)
        changed_requests = [request for request in requests if self._has_changed(request, spaces)]
        if not changed_requests:
            return
        limit = asyncio.Semaphore(16)  # sessions that are read concurrently

        async def read(request: _ReadRequest) -> _LogUpdate | None:
            async with limit:
                return await self._read_update(request, spaces)

        updates = [
            update for update in await asyncio.gather(*map(read, changed_requests)) if update is not None
        ]
        added_count = sum(len(update.records[0]) for update in updates)
        indexed_count = self.segment.count
        # If most entries are new, building a segment in one piece is faster.
        if indexed_count and added_count > max(indexed_count, REBUILD_ABOVE):
            self._reset()
            await self._refresh(heads, own_head, ancestors, spaces)
        elif added_count > THREAD_ABOVE:
            await self._lock.off_loop(partial(self._add, updates))
        else:
            self._add(updates)

    def _has_changed(self, request: _ReadRequest, spaces: Sequence[str]) -> bool:
        """Return whether a log has data that was not read yet."""
        log = self._logs.get(request.owner)
        epoch = request.stamp[-1]
        if log is None or log.epoch != epoch or log.last < request.last:
            return True
        is_own_log = request.via == request.owner
        if is_own_log and (log.order is None or log.stamp != request.stamp):
            return True
        if not spaces:
            return False
        # The list is replaced whenever vectors are added.
        has_new_vectors = self._indexes.pending_vectors(request.via) is not log.pending_vectors
        has_unread_spaces = not log.read_up_to.keys() >= set(spaces)
        return has_new_vectors or has_unread_spaces

    async def _read_update(self, request: _ReadRequest, spaces: Sequence[str]) -> _LogUpdate | None:
        """Read the missing data of a log; None if it was deleted meanwhile."""
        indexes, via = self._indexes, request.via
        is_own_log = via == request.owner
        try:
            head = await indexes.storage.head(via)
            log = self._logs.get(request.owner)
            if log is None or log.epoch != head.epoch:
                # The number -1 is replaced once all reads have succeeded.
                log = _LogState(-1, request.first, head.epoch)
            last = head.version if is_own_log else request.last
            start = log.last + 1
            records: IndexRecords = ([], [])
            if start <= last:
                after = log.read_up_to.get(index_record.SPACE, 0)
                ranges = [(request.owner, start, last)]
                (records,) = await indexes.index_records(via, ranges, head, after, releases_records=False)
            update = _LogUpdate(log, head, records, {}, {index_record.SPACE: head.derived})
            update.pending_vectors = indexes.pending_vectors(via)
            for space in spaces:
                rows = await indexes.vectors(via, head, space, log.read_up_to.get(space, 0))
                if rows is not None:
                    update.vectors[space] = rows
                    update.read_up_to[space] = head.derived
            if is_own_log:
                update.replacements, update.stale = await indexes.load_active_state(via, head, head.version)
            if is_own_log and head.version > head.messages:  # else there are no facts
                update.times = await indexes.load_valid_times(via, head, head.version)
        except SessionNotFoundError:
            return None
        if log.number < 0:
            log.number = len(self.segment.owners)
            self.segment.owners.append(request.owner)
            self._logs[request.owner] = log
        return update

    def _add(self, updates: Sequence[_LogUpdate]) -> None:
        """Add the new data of logs to the segment, and compute their active entries again."""
        segment = self.segment
        grown_updates = [update for update in updates if update.records[0]]
        runs = [(update.log.number, update.log.last + 1, update.records[0]) for update in grown_updates]
        documents_by_run = segment.add(runs) if runs else []
        for update, documents in zip(grown_updates, documents_by_run, strict=True):
            log = update.log
            start = log.last + 1
            segment.blanked.update(int(documents[version - start]) for version in update.records[1])
            log.documents = np.concatenate([log.documents, documents])
        for update in updates:
            self._add_vectors(update)
        snapshot = Snapshot([("", segment, segment.count)])
        has_content, messages = mask_documents_by_kind(snapshot, Kind.MESSAGE)
        _, facts = mask_documents_by_kind(snapshot, Kind.FACT)
        for update in updates:
            log = update.log
            log.read_up_to.update(update.read_up_to)
            log.pending_vectors = update.pending_vectors
            log.stamp = _stamp_of(update.head)
            log.order = NO_DOCUMENTS
            if update.replacements is None:
                continue
            documents, first, replacements = log.documents, log.first, update.replacements
            log.order = documents[
                reading_order(has_content[documents], messages[documents], replacements, Kind.MESSAGE, first)
            ]
            log.facts = documents[
                reading_order(has_content[documents], facts[documents], replacements, Kind.FACT, first)
            ]
            log.times, log.stale = update.times, update.stale

    def _add_vectors(self, update: _LogUpdate) -> None:
        log = update.log
        for space, rows in update.vectors.items():
            self.segment.add_vectors(
                space,
                [
                    (int(log.documents[row.version - log.first]) + 1, row.part, row.data)
                    for row in rows
                    if log.first <= row.version <= log.last
                ],
            )

    # ── the view of one session ─────────────────────────────────────────────────────────────────────────────────────

    async def _build_corpus(
        self, heads: Sequence[SessionHead], own_head: SessionHead | None, ancestors: Sequence[tuple[str, int]]
    ) -> IndexedLog:
        """Build the corpus of a reader: active entries of the other sessions, oldest session first, then its own.

        Entries that the reader's log inherited are not repeated under their own sessions.
        """
        segment = self.segment
        inherited_versions = dict(ancestors)  # last inherited version by ancestor
        other_logs = self._list_other_logs(heads, own_head)
        visible = {owner: (log.first, log.documents) for owner, log in other_logs}
        stales = [log.stale for _, log in other_logs if log.stale]
        orders = [NO_DOCUMENTS]
        facts = [NO_DOCUMENTS]
        times: dict[int, Period] = {}
        for owner, log in other_logs:
            inherited_version = inherited_versions.get(owner, 0)
            orders.append(_select_newer_documents(segment, _active_documents(log), inherited_version))
            facts.append(_select_newer_documents(segment, log.facts, inherited_version))
            times |= _index_periods(log.times, log.documents, log.first)
        start = sum(map(len, orders))
        own_log = None if own_head is None else self._logs.get(own_head.context)
        if own_head is not None and own_log is not None:
            visible[own_head.context] = (own_log.first, own_log.documents)
            stales.append(own_log.stale)
            own_order, own_facts, own_times = await self._order_own_log(
                own_head.context, own_log, ancestors, visible
            )
            orders.append(own_order)
            facts.append(own_facts)
            times |= own_times
        snapshot = NamespaceSnapshot(segment, visible)
        corpus = Corpus(
            snapshot,
            Replacements(()),
            order=np.concatenate(orders),
            facts=np.concatenate(facts),
            start=start,
        )
        return IndexedLog(corpus, NO_DEMOTIONS.merge_for_index(stales, snapshot.find), times)

    def _list_other_logs(
        self, heads: Sequence[SessionHead], own_head: SessionHead | None
    ) -> list[tuple[str, _LogState]]:
        """Return the logs of the other sessions that are not private, in the order of their first messages."""
        minutes = self.segment.columns["minute"]

        def first_minute(pair: tuple[str, _LogState]) -> int:
            documents = pair[1].documents
            return int(minutes[documents[0]]) if len(documents) else 0

        public = [head.context for head in heads if head is not own_head and not head.private]
        logs = [(context, self._logs[context]) for context in public if context in self._logs]
        return sorted(logs, key=first_minute)

    async def _order_own_log(
        self,
        context: str,
        log: _LogState,
        ancestors: Sequence[tuple[str, int]],
        visible: dict[str, tuple[int, Ints]],
    ) -> tuple[Ints, Ints, dict[int, Period]]:
        """Return the active messages and facts of the reader's log, and the validity periods of its facts.

        Entries that the log inherits are added to `visible`, also those hidden from other readers.
        """
        if not ancestors:
            return _active_documents(log), log.facts, _index_periods(log.times, log.documents, log.first)
        inherited = [self._inherit_documents(owner, last, visible) for owner, last in ancestors]
        documents = np.concatenate([*inherited, log.documents])
        version = len(documents)
        head = await self._indexes.storage.head(context)
        replacements, _ = await self._indexes.load_active_state(context, head, version)
        snapshot = Snapshot([("", self.segment, self.segment.count)])
        orders: list[Ints] = []
        for kind in (Kind.MESSAGE, Kind.FACT):
            has_content, is_of_kind = mask_documents_by_kind(snapshot, kind)
            orders.append(
                documents[reading_order(has_content[documents], is_of_kind[documents], replacements, kind)]
            )
        times = await self._indexes.load_valid_times(context, head, version)
        return orders[0], orders[1], _index_periods(times, documents, 1)

    def _inherit_documents(self, owner: str, last: int, visible: dict[str, tuple[int, Ints]]) -> Ints:
        """Return the documents that a log inherits from an ancestor, visible to it even if hidden from others."""
        log = self._logs.get(owner)
        if log is None:
            return NO_DOCUMENTS
        documents = log.documents[: last - log.first + 1]
        visible.setdefault(owner, (log.first, documents))
        return documents


@dataclass(frozen=True, slots=True)
class _ReadRequest:
    """The entries wanted of one owner."""

    #: The log through which they are read.
    via: str
    owner: str
    #: First and last version.
    first: int
    last: int
    stamp: tuple[int, ...]


def _list_requests(
    heads: Sequence[SessionHead], own_head: SessionHead | None, ancestors: Sequence[tuple[str, int]]
) -> list[_ReadRequest]:
    """Return requests for the entries of all sessions, and for entries that a reader inherits from other logs."""
    requests = [
        _ReadRequest(head.context, head.context, head.fork + 1, head.version, _stamp_of(head))
        for head in heads
    ]
    if own_head is None:
        return requests
    live_contexts = {head.context for head in heads}
    first = 1
    for owner, last in ancestors:
        if owner not in live_contexts:  # its session is deleted or lies outside the namespace
            requests.append(
                _ReadRequest(
                    own_head.context, owner, first, last, (last, 0, own_head.derived, own_head.epoch)
                )
            )
        first = last + 1
    return requests


def _stamp_of(head: Head | SessionHead) -> tuple[int, ...]:
    return (head.version, head.rewrites, head.derived, head.epoch)


def _active_documents(log: _LogState) -> Ints:
    return NO_DOCUMENTS if log.order is None else log.order


def _index_periods(times: Mapping[int, Period], documents: Ints, first: int) -> dict[int, Period]:
    """Convert validity periods by version to periods by document + 1.

    `documents` are those of the log from its version `first` on.
    """
    return {
        int(documents[version - first]) + 1: period
        for version, period in times.items()
        if 0 <= version - first < len(documents)
    }


def _select_newer_documents(segment: NamespaceSegment, documents: Ints, version: int) -> Ints:
    """Return the documents of a log that came after a version of it."""
    return documents[segment.version[documents] > version] if version else documents


async def _list_session_heads(storage: StorageBackend, namespace: str) -> list[SessionHead]:
    """Return the heads of the sessions of a namespace, oldest first."""
    if isinstance(storage, HasHeads):
        return await storage.heads(namespace)
    heads: list[SessionHead] = []
    after: str | None = None
    while True:
        page = await storage.contexts(ContextQuery(namespace=namespace, after=after, limit=PAGE))
        for context in page.items:
            try:
                head = await storage.head(context.id)
            except SessionNotFoundError:  # deleted meanwhile
                continue
            heads.append(
                SessionHead(
                    context.id,
                    context.key,
                    context.counter,
                    context.fork or 0,
                    head.version,
                    head.rewrites,
                    head.derived,
                    head.epoch,
                    bool(context.settings.get(PRIVATE)),
                )
            )
        after = page.next_after
        if after is None:
            return heads[::-1]


class Namespaces:
    """The indexes of the namespaces of a storage handle; the least recently used ones are evicted first."""

    def __init__(self, indexes: Indexes) -> None:
        self._indexes = indexes
        self._by_namespace: OrderedDict[str, NamespaceIndex] = OrderedDict()

    @property
    def bytes(self) -> int:
        """Bytes they take in memory."""
        return sum(index.segment.bytes for index in self._by_namespace.values())

    def forget_order(self) -> None:
        """Mark the active entries for recomputation, after content was found to be deleted."""
        for index in self._by_namespace.values():
            index.forget_order()

    async def load_corpus(
        self, namespace: str, counter: str, spaces: Sequence[str], context: str | None
    ) -> IndexedLog:
        """Return the active entries of a namespace as the session with the log `context` sees them.

        Sessions with another token `counter` are not included. The vectors of `spaces` are read too.
        """
        index = self._by_namespace.get(namespace)
        if index is None:
            index = self._by_namespace[namespace] = NamespaceIndex(self._indexes, namespace)
        self._by_namespace.move_to_end(namespace)
        log = await index.load_corpus(counter, spaces, context)
        while len(self._by_namespace) > 1 and self.bytes > self._indexes.max_bytes:
            self._by_namespace.popitem(last=False)
        return log
