"""A vector store in Chroma, in front of any store that keeps the other data. Needs the extra `chroma`.

A vector row is kept twice. The inner store has its version, part, offset in the text and number, with a mark of 21
bytes instead of the vector. Chroma has the vector under (tenant, context that owns the entry, version, part). The mark
is a checksum, so a vector that Chroma lost, or holds in an outdated version, is detected: such a row is not returned
and counts as missing until it is written again. Everything in Chroma can be rebuilt from the log (decision 0024).

A call that Chroma does not answer in time fails, and all other calls fail without being tried for the next seconds: a
search falls back on words, and vectors written in the background are dropped and found missing later.
"""

from __future__ import annotations

import logging
import struct
from base64 import b64encode
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from acms.errors import ValidationError, VectorsUnavailableError
from acms.log.validation import validate_name
from acms.model import Context, ContextQuery, Derived, Entry, Hit, Json, Kind, Search, State
from acms.observability.logging import log_event
from acms.ports import StorageBackend
from acms.runtime.loops import PerLoop
from acms.storage import append_rules
from acms.storage.chroma import client as chroma_client
from acms.storage.chroma.client import READ, Chroma, FoundVector
from acms.storage.chroma.write_queue import WRITE, WriteQueue
from acms.storage.search import score_cosines
from acms.storage.wrapper import WrapperStorage
from acms.text import index_record

MOST_GAP = 8
"""Greatest distance of two versions that one read fetches, because another call would cost more."""

_MARK = struct.Struct("<4sI13s")
"""Sign, dimension, checksum. 21 bytes: no vector of 16- or 32-bit numbers has that length."""
_SIGN = b"\0vec"
_HALF = "/f16/"
"""In the name of a space of 16-bit floats; others have 32 bits."""


class _Vector(NamedTuple):
    """A vector row on its way to Chroma."""

    row: Derived
    values: NDArray[np.float32]


class ChromaVectors(WrapperStorage):
    """Keeps the bytes of vectors in Chroma and everything else in the store inside.

        ChromaVectors(storage, path="vectors")                  a folder, of one process at a time
        ChromaVectors(storage, url="http://vectors:8000")       a server, for many
        ChromaVectors(storage, client=client)                   a client of yours; it is not closed

    The vectors of one space are one collection, whose name starts with `collection`. A call may take `timeout` seconds;
    after one that failed none is tried for `backoff` seconds.
    """

    def __init__(
        self,
        inner: StorageBackend,
        client: Any = None,
        *,
        path: str | Path | None = None,
        url: str | None = None,
        collection: str = "acms",
        timeout: float = 2.0,
        backoff: float = 5.0,
    ) -> None:
        super().__init__(inner)
        self._chroma = Chroma(
            client, path=path, url=url, collection=collection, timeout=timeout, backoff=backoff
        )
        self._contexts: dict[str, Context] = {}
        self._queues = PerLoop(lambda: WriteQueue(partial(self._write_rows, wait=False)))

    # ── writing ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def put_derived(self, context: str, rows: Sequence[Derived], *, wait: bool = True) -> int:
        """Store rows; without `wait`, vectors are written in the background, in order, or dropped with a warning.

        With `wait`, `VectorsUnavailableError` means that nothing was stored.
        """
        if wait:
            await self._queues.here().drain()
            return await self._write_rows(context, rows, wait=True)
        # Rows without vectors need no Chroma.
        if all(row.space == index_record.SPACE for row in rows):
            return await self.inner.put_derived(context, rows, wait=False)
        queue = self._queues.here()
        # The same, unless vectors wait in the queue: the order must be kept.
        if not queue.is_busy and all(_decode_values(row) is None for row in rows):
            return await self.inner.put_derived(context, rows, wait=False)
        return queue.put(context, rows)

    async def _write_rows(self, context: str, rows: Sequence[Derived], *, wait: bool) -> int:
        """Write vectors to Chroma, and to the store inside a row with a mark in place of each vector.

        A mark holds the number of dimensions and a checksum of the vector; rows without a vector are stored as they
        are.
        """
        vectors: list[_Vector] = []
        marked_rows: list[Derived] = []
        for row in rows:
            values = _decode_values(row)
            if values is None:
                marked_rows.append(row)
            else:
                vectors.append(_Vector(row, values))
                marked_rows.append(replace(row, data=_build_mark(len(values), row.data)))
        if not vectors:
            return await self.inner.put_derived(context, rows, wait=wait)
        head = await self.inner.head(context)
        entries = await self._read_entries(context, {row.version for row in rows}, head.version)
        live_entries = {version: entry for version, entry in entries.items() if entry.state is State.LIVE}
        # Chroma first: a mark without its vector would be read as a loss, a vector without its mark is not read at all.
        await self._write_vectors(
            [vector for vector in vectors if vector.row.version in live_entries], live_entries
        )
        count = await self.inner.put_derived(context, marked_rows, wait=wait)
        # An erasure raises the epoch: an entry may have been erased while its vector was written.
        if (await self.inner.head(context)).epoch != head.epoch:
            await self._forget_erased(context, live_entries, head.version)
        return count

    async def _write_vectors(self, vectors: Sequence[_Vector], entries: Mapping[int, Entry]) -> None:
        """Write vectors of these entries, each collection in calls of at most `WRITE`."""
        collections: dict[tuple[str, int], list[_Vector]] = {}
        for vector in vectors:
            collections.setdefault((vector.row.space, len(vector.values)), []).append(vector)
        for (space, dimension), members in collections.items():
            for start in range(0, len(members), WRITE):
                await self._upsert(space, dimension, members[start : start + WRITE], entries)

    async def _forget_erased(self, context: str, versions: Iterable[int], last: int) -> None:
        """Delete the vectors of those of the versions that were erased while they were written."""
        entries = await self._read_entries(context, versions, last)
        erased = [version for version, entry in entries.items() if entry.state is State.ERASED]
        if erased:
            await self._forget(context, erased)

    async def _upsert(
        self, space: str, dimension: int, vectors: Sequence[_Vector], entries: Mapping[int, Entry]
    ) -> None:
        """Write vectors with the metadata by which searches filter; of several with one id, the last is written."""
        owners = [await self._load_context(entries[vector.row.version].context) for vector in vectors]
        vector_of_id = {
            self._id(owner.id, vector.row): (vector, owner)
            for vector, owner in zip(vectors, owners, strict=True)
        }
        metadatas: list[dict[str, Any]] = []
        for vector, owner in vector_of_id.values():
            entry = entries[vector.row.version]
            metadata: dict[str, Any] = {
                "tenant": self.tenant,
                "namespace": owner.namespace,
                "context": owner.id,
                "version": entry.version,
                "entry": entry.id,
                "found": _is_searchable(entry),
            }
            if _HALF not in space:  # rounding does not bring these back to the last bit
                metadata["exact"] = b64encode(vector.row.data).decode()
            metadatas.append(metadata)
        values = np.stack([vector.values for vector, _ in vector_of_id.values()])
        await self._chroma.write(
            space, dimension, ids=list(vector_of_id), embeddings=values, metadatas=metadatas
        )

    # ── reading ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def derived(
        self, context: str, space: str, *, after: int = 0, at: int | None = None
    ) -> list[Derived]:
        """Return the derived rows of one space by sequence number, without those whose vector Chroma has lost.

        `VectorsUnavailableError` when Chroma does not answer: a later call may have them.
        """
        rows = await self.inner.derived(context, space, after=after, at=at)
        marked_rows = [row for row in rows if _is_marked(row)]
        if not marked_rows:
            return rows
        vectors = await self._read_vectors(context, space, marked_rows)
        found_rows: list[Derived] = []
        for row in rows:
            if not _is_marked(row):
                found_rows.append(row)
            elif (row.version, row.part) in vectors:
                found_rows.append(replace(row, data=vectors[row.version, row.part]))
        lost = len(rows) - len(found_rows)
        if lost:
            log_event(logging.WARNING, "vectors_lost", context=context, space=space, rows=lost)
        return found_rows

    async def _read_vectors(
        self, context: str, space: str, marked: Sequence[Derived]
    ) -> dict[tuple[int, int], bytes]:
        """Return the vectors of those of the marked rows that Chroma has as they were written, by version and part."""
        owner_of: dict[int, str] = {}
        for owner, versions in await self._split_by_owner(context, {row.version for row in marked}):
            owner_of.update(dict.fromkeys(versions, owner))
        rows_by_dimension: dict[int, dict[str, Derived]] = {}
        for row in marked:
            dimension = _MARK.unpack(row.data)[1]
            id = self._id(owner_of[row.version], row)
            rows_by_dimension.setdefault(dimension, {})[id] = row
        vectors: dict[tuple[int, int], bytes] = {}
        for dimension, row_of in rows_by_dimension.items():
            collection = self._chroma.name(space, dimension)
            ids = list(row_of)
            for start in range(0, len(ids), READ):
                read_rows = partial(
                    chroma_client.read_vectors, ids=ids[start : start + READ], half=_HALF in space
                )
                for id, data in await self._chroma.work(collection, read_rows) or ():
                    row = row_of[id]
                    if _build_mark(dimension, data) == row.data:
                        vectors[row.version, row.part] = data
        return vectors

    async def missing(
        self, space: str, *, context: str | None = None, limit: int, after: int = 0
    ) -> list[tuple[str, int]]:
        """Return live entries without a row in the space, and those that have one whose vector is not in Chroma."""
        missing_inside = await self.inner.missing(space, context=context, limit=limit, after=after)
        if space == index_record.SPACE or limit == 0:
            return missing_inside
        # The store inside counts an entry whose vector Chroma lost as stored.
        by_context: dict[str, set[int]] = {}
        for owner, version in missing_inside:
            by_context.setdefault(owner, set()).add(version)
        if context is not None:
            by_context.setdefault(context, set()).update(await self._find_lost(space, context, after, limit))
        else:
            async for live_context in self._iterate_live_contexts():
                lost = await self._find_lost(
                    space, live_context.id, max(after, live_context.fork or 0), limit
                )
                by_context.setdefault(live_context.id, set()).update(lost)
        missing: list[tuple[str, int]] = []
        for owner, versions in by_context.items():
            missing += [(owner, version) for version in sorted(versions)]
        return missing[:limit]

    async def _find_lost(self, space: str, context: str, after: int, limit: int) -> list[int]:
        """Return the first versions of live entries some of whose vectors are not in Chroma."""
        derived = await self.inner.derived(context, space)
        rows = [row for row in derived if row.version > after and _is_marked(row)]
        rows.sort(key=lambda row: row.version)
        lost: list[int] = []
        for start in range(0, len(rows), READ):
            batch = rows[start : start + READ]
            vectors = await self._read_vectors(context, space, batch)
            absent_versions = {row.version for row in batch if (row.version, row.part) not in vectors} - set(
                lost
            )
            entries = await self._read_entries(context, absent_versions, max(absent_versions, default=0))
            for version, entry in sorted(entries.items()):
                if entry.state is State.LIVE and entry.content:
                    lost.append(version)
            if len(lost) >= limit:
                break
        return lost[:limit]

    async def _iterate_live_contexts(self) -> AsyncIterator[Context]:
        """Yield every live context of the tenant, read page by page."""
        after: str | None = None
        while True:
            page = await self.inner.contexts(ContextQuery(after=after, limit=READ))
            for context in page.items:
                yield context
            after = page.next_after
            if after is None:
                return

    async def search(self, query: Search) -> list[Hit]:
        """Search words in the store inside and vectors in Chroma; without an answer from Chroma by words alone.

        Chroma chooses the nearest vectors, approximately; their cosines are then computed as every store does.
        """
        best = {hit.id: hit for hit in await self.inner.search(query)}
        if query.vector and query.space and query.limit > 0:
            try:
                nearest = await self._nearest(query, query.space, query.vector)
            except VectorsUnavailableError:  # which is logged: words must do
                nearest = []
            for hit in nearest:
                if hit.id not in best or hit.score > best[hit.id].score:
                    best[hit.id] = hit
        return sorted(best.values(), key=lambda hit: (-hit.score, hit.id))[: max(0, query.limit)]

    async def _nearest(self, query: Search, space: str, vector: tuple[float, ...]) -> list[Hit]:
        """Return the entries of a namespace whose vectors are nearest to one, scored exactly.

        Asks again for more records, and without contexts that turn out to be deleted, until `query.limit` entries
        are found.
        """
        if not _is_comparable(np.asarray(vector, np.float64)):
            return []
        try:
            namespace = validate_name(query.namespace, "namespace")
        except ValidationError:  # there can be none of that name
            return []
        collection, half = self._chroma.name(space, len(vector)), _HALF in space
        conditions: list[dict[str, Any]] = [
            {"tenant": self.tenant}, {"namespace": namespace}, {"found": True},
        ]  # fmt: skip
        excluded_count = 0
        most_records = 64  # vectors; more are asked for when several of them belong to one entry
        while True:
            where = {"$and": list(conditions)}
            query_nearest = partial(
                chroma_client.query_nearest, vector=vector, size=most_records, where=where, half=half
            )
            records = await self._chroma.work(collection, query_nearest) or []
            hits, hidden = await self._score_records(vector, records, namespace)
            if len(hits) >= query.limit or excluded_count >= 100:  # conditions of one query
                return hits
            if hidden:  # deleted contexts: ask again without them
                excluded_count += len(hidden)
                conditions += [{"context": {"$ne": context}} for context in hidden]
            elif len(records) == most_records and most_records < 4_096:  # vectors of one answer
                most_records *= 4
            else:
                break
        # An approximate index may miss some where there are few, or many alike: the first thousand are all compared.
        sample = partial(chroma_client.sample_records, where=where, half=half)
        records = await self._chroma.work(collection, sample) or []
        sampled, _ = await self._score_records(vector, records, namespace)
        return list({hit.id: hit for hit in (*hits, *sampled)}.values())

    async def _score_records(
        self, vector: Sequence[float], records: Sequence[FoundVector], namespace: str
    ) -> tuple[list[Hit], list[str]]:
        """Score the records Chroma found; leave out entries that are gone, and return the contexts that are hidden."""
        scores: dict[str, float] = {}
        query = Search(namespace=namespace, space="", vector=tuple(vector))
        for (id, _), score in score_cosines(query, ((record.entry, 0, record.data) for record in records)):
            scores[id] = max(scores.get(id, 0.0), score)
        is_live: dict[str, bool] = {}
        hits: list[Hit] = []
        for entry in await self.inner.get(list(scores)):
            if entry is None or entry.state is not State.LIVE:
                continue
            if entry.context not in is_live:
                owner = await self.inner.context(entry.context)
                is_live[entry.context] = owner.deleted_at is None and owner.namespace == namespace
            if is_live[entry.context] and scores[entry.id] > 0 and _is_searchable(entry):
                hits.append(Hit(context=entry.context, id=entry.id, score=scores[entry.id]))
        return hits, [context for context, live in is_live.items() if not live]

    # ── erasure and maintenance ─────────────────────────────────────────────────────────────────────────────────────

    async def blank(
        self, context: str, versions: Sequence[int], *, to: State, audit: Mapping[str, Json]
    ) -> int:
        """Delete content; of erased entries the vectors in Chroma too. A copy it could not delete is logged."""
        count = await self.inner.blank(context, versions, to=to, audit=audit)
        if to is State.ERASED:
            try:
                await self._forget(context, versions)
            except VectorsUnavailableError as error:
                log_event(
                    logging.ERROR,
                    "vectors_not_erased",
                    context=context,
                    code=error.code,
                    entries=len(versions),
                )
        return count

    async def _forget(self, context: str, versions: Iterable[int]) -> None:
        """Delete the vectors of entries from every collection."""
        for owner, owned_versions in await self._split_by_owner(context, versions):
            for start in range(0, len(owned_versions), READ):
                where = self._where(owner, owned_versions[start : start + READ])
                for collection in await self._chroma.names():
                    await self._chroma.work(collection, partial(chroma_client.delete_rows, where=where))

    async def residue(self, ids: Sequence[str], texts: Sequence[bytes]) -> list[str]:
        """Return where Chroma still has vectors of erased entries."""
        del texts
        versions_of: dict[str, list[int]] = {}
        for owner, version in append_rules.parse_entry_ids(ids).values():
            versions_of.setdefault(owner, []).append(version)
        remains: list[str] = []
        try:
            for owner, versions in versions_of.items():
                remains += await self._count_remains(owner, versions)
        except VectorsUnavailableError:
            remains.append("Chroma did not answer, and may have vectors: acms reindex deletes them")
        return remains

    async def _count_remains(self, owner: str, versions: Sequence[int]) -> list[str]:
        """Return how many vectors of some entries of a context each collection has."""
        remains: list[str] = []
        for start in range(0, len(versions), READ):
            count_rows = partial(
                chroma_client.count_rows, where=self._where(owner, versions[start : start + READ])
            )
            for collection in await self._chroma.names():
                count = await self._chroma.work(collection, count_rows)
                if count:
                    remains.append(f"{owner}: {count} vectors in Chroma")
        return remains

    async def adopt(self, context: str, space: str) -> int:
        """Move the vectors of a log that still lie in the store inside to Chroma; return how many."""
        rows = await self.inner.derived(context, space)
        moving = [row for row in rows if _decode_values(row) is not None]
        for start in range(0, len(moving), WRITE):
            await self.put_derived(context, moving[start : start + WRITE])
        return len(moving)

    async def prune(self) -> int:
        """Delete vectors of this tenant whose entry is gone from the store inside; return how many.

        Chroma has such when it did not answer while an entry was erased, or got a vector from a call given up before.
        """
        deleted = 0
        for collection in await self._chroma.names():
            start = 0
            while True:
                read_page = partial(chroma_client.read_id_page, where={"tenant": self.tenant}, start=start)
                records = await self._chroma.work(collection, read_page) or []
                entries = await self.inner.get([entry for _, entry in records])
                stale = [
                    id
                    for (id, _), entry in zip(records, entries, strict=True)
                    if entry is None or entry.state is State.ERASED
                ]
                if stale:
                    await self._chroma.work(collection, partial(chroma_client.delete_rows, ids=stale))
                    deleted += len(stale)
                if len(records) < READ:
                    break
                start += len(records) - len(stale)
        return deleted

    async def aclose(self) -> None:
        """Write the queued rows and release everything."""
        await self._queues.here().drain()
        await self._chroma.close()
        await self.inner.aclose()

    # ── entries and contexts ──────────────────────────────────────────────────────────────────────────────────────────

    async def _load_context(self, id: str) -> Context:
        """Return a context from the cache; the fields used here never change."""
        context = self._contexts.get(id)
        if context is None:
            if len(self._contexts) >= 4_096:  # a few megabytes
                self._contexts.clear()
            context = self._contexts[id] = await self.inner.context(id)
        return context

    async def _read_entries(self, context: str, versions: Iterable[int], last: int) -> dict[int, Entry]:
        """Read entries by version; versions at most `MOST_GAP` apart share a read."""
        sorted_versions = sorted(version for version in set(versions) if 1 <= version <= last)
        entry_of: dict[int, Entry] = {}
        start = 0
        for index in range(1, len(sorted_versions) + 1):
            # A read ends where the next version is far away: what lies between would be read for nothing.
            if (
                index == len(sorted_versions)
                or sorted_versions[index] - sorted_versions[index - 1] > MOST_GAP
            ):
                first, end = sorted_versions[start], sorted_versions[index - 1]
                for entry in await self.inner.read(context, after=first - 1, before=end + 1):
                    entry_of[entry.version] = entry
                start = index
        return {version: entry_of[version] for version in sorted_versions if version in entry_of}

    async def _split_by_owner(self, context: str, versions: Iterable[int]) -> list[tuple[str, list[int]]]:
        """Return which context owns which of some versions."""
        sorted_versions = sorted({version for version in versions if 1 <= version < 2**32})
        if not sorted_versions:
            return []
        loaded = await self._load_context(context)
        newest = sorted_versions[-1]
        segments = append_rules.split_segments(context, loaded.lineage, sorted_versions[0], newest)
        return [
            (owner, [version for version in sorted_versions if first <= version <= last])
            for owner, first, last in segments
        ]

    def _id(self, owner: str, row: Derived) -> str:
        return f"{self.tenant}/{owner}/{row.version}/{row.part}"

    def _where(self, owner: str, versions: Sequence[int]) -> dict[str, Any]:
        return {"$and": [{"tenant": self.tenant}, {"context": owner}, {"version": {"$in": list(versions)}}]}


# ── rows ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _decode_values(row: Derived) -> NDArray[np.float32] | None:
    """Return the numbers of a vector; None for a row that stays inside: it is none, or Chroma could not compare it."""
    half = _HALF in row.space
    if row.space == index_record.SPACE or not row.data or len(row.data) % (2 if half else 4):
        return None
    values = np.frombuffer(row.data, "<f2" if half else "<f4")
    return values.astype(np.float32) if _is_comparable(values) else None


def _is_comparable(values: NDArray[np.floating]) -> bool:
    """Return whether the square of a vector's length is a number that 32 bits hold, and not zero."""
    if not np.isfinite(values).all():
        return False
    wide = values.astype(np.float64)
    return bool(1e-30 < float(np.dot(wide, wide)) < 1e30)


def _build_mark(dimension: int, data: bytes) -> bytes:
    return _MARK.pack(_SIGN, dimension, blake2b(data, digest_size=13).digest())


def _is_marked(row: Derived) -> bool:
    return len(row.data) == _MARK.size and row.data.startswith(_SIGN)


def _is_searchable(entry: Entry) -> bool:
    """Return whether a search across contexts may find an entry."""
    return entry.kind in (Kind.FACT, Kind.SUMMARY) or (entry.kind is Kind.MESSAGE and bool(entry.markers))
