"""Check and rebuild the derived rows of a log: index records and vectors.

A log can be read without them; they make its ranking better and faster. Only rows that are missing or disagree with the
log are written, so after an interruption the same call continues.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias, runtime_checkable

from acms.errors import ProviderError, SessionNotFoundError
from acms.model import Context, ContextQuery, Derived, Entry, Kind, Privacy, State
from acms.ports import Embedder, HasStrayRows, Progress, StorageBackend
from acms.recall.embeddings import BATCH_TEXTS, Embedding
from acms.storage.wrapper import find_layer
from acms.text import index_record

__all__ = ["DerivedCheck", "ReindexResult", "VectorHome", "check_derived_rows", "reindex"]


_Parts: TypeAlias = dict[int, tuple[int, int, int]]
"""The vectors of an entry by part: first and last character, and length in bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReindexResult:
    """The rebuilt rows."""

    contexts: int = 0
    #: Entries that were looked at, each once although several forks may read it.
    entries: int = 0
    #: Index records that were missing or disagreed with the log.
    cards: int = 0
    #: Vectors that were missing or disagreed with the log.
    vectors: int = 0
    #: Vectors that were moved from the log to the store of vectors.
    moved: int = 0
    #: Vectors of erased entries that were still kept there.
    pruned: int = 0
    #: Derived rows that belonged to no entry, and were deleted.
    strays: int = 0
    #: Entries that the embedder refused.
    left: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DerivedCheck:
    """How the derived rows of a session differ from its log."""

    #: The versions at fault, each with a description. `reindex` repairs them.
    faults: tuple[tuple[int, str], ...] = ()
    #: Entries without an index record; the next recall makes it.
    missing: int = 0


@runtime_checkable
class VectorHome(Protocol):
    """A store of vectors that is separate from the log."""

    async def adopt(self, context: str, space: str) -> int:
        """Take over the vectors of a log that lie in the store; return how many."""
        ...

    async def prune(self) -> int:
        """Delete vectors whose entry is gone from the store; return how many."""
        ...


async def reindex(
    storage: StorageBackend,
    context: str | None = None,
    *,
    embedder: Embedder | None = None,
    privacy: Privacy | None = None,
    progress: Progress = lambda counts, total: None,
) -> ReindexResult:
    """Rebuild the derived rows of a context, or of every live one, so that they agree with the log.

    Without an embedder only index records are rebuilt. Entries that may not be sent to it, by their own mode or by
    `privacy`, the mode of the configuration, are not sent and lose their vectors. `ProviderError` is raised if the
    embedder fails; rows written until then stay stored.
    """
    embedding = None if embedder is None else Embedding(storage, embedder, privacy)
    reindexer = _Reindexer(storage, embedding)
    counts = reindexer.counts
    home = find_layer(storage, VectorHome)
    stray_store = find_layer(storage, HasStrayRows)
    plan = await _plan_ranges(storage, context)
    total = sum(last - first + 1 for _, ranges in plan for first, last in ranges)
    for id, ranges in plan:
        try:
            if home is not None and embedding is not None:
                counts["moved"] += await home.adopt(id, embedding.space)
            for first, last in ranges:
                await reindexer.run(id, first, last, lambda: progress(counts["entries"], total))
            if stray_store is not None:
                counts["strays"] += await stray_store.delete_stray_rows(id)
        except SessionNotFoundError:
            if context is not None:
                raise
            continue  # deleted meanwhile
        counts["contexts"] += 1
    if home is not None:
        counts["pruned"] = await home.prune()
    return ReindexResult(**counts)


async def check_derived_rows(
    storage: StorageBackend, context: Context, *, progress: Progress = lambda counts, total: None
) -> DerivedCheck:
    """Compare the derived rows of a context's own entries with its log.

    Every index record is made again from its entry. Of vectors, only those without an entry are found.
    """
    faults: list[tuple[int, str]] = []
    stray_store = find_layer(storage, HasStrayRows)
    if stray_store is not None:
        for space, version in await stray_store.stray_rows(context.id):
            faults.append((version, f"a derived row of {space!r} belongs to no entry with content"))
    records = {row.version: row.data for row in await storage.derived(context.id, index_record.SPACE)}
    missing = 0
    start, last = context.fork or 0, (await storage.head(context.id)).version
    done = start
    while done < last:
        entries = await storage.read(context.id, after=done, at=last, limit=256)
        if not entries:
            break
        for entry in entries:
            if entry.state is not State.LIVE:
                continue
            record = records.get(entry.version)
            if record is None:
                missing += 1
            elif record != index_record.encode_index_record(entry, entry.id):
                faults.append((entry.version, "its index record differs from its text"))
        done = entries[-1].version
        progress(done - start, last - start)
    return DerivedCheck(faults=tuple(faults), missing=missing)


async def _plan_ranges(
    storage: StorageBackend, context_id: str | None
) -> list[tuple[str, list[tuple[int, int]]]]:
    """Return (context id, version ranges to process) pairs; versions that forks share are included once."""
    if context_id is None:
        contexts = [context async for context in _iterate_contexts(storage)]
    else:
        contexts = [await storage.context(context_id)]
    planned_up_to: dict[str, int] = {}
    plan: list[tuple[str, list[tuple[int, int]]]] = []
    for context in contexts:
        ranges: list[tuple[int, int]] = []
        head = await storage.head(context.id)
        # The log of a context consists of segments, each owned by an ancestor up to a last version, or by itself.
        segments = (*context.lineage, (context.id, head.version))
        segment_start = 1
        for owner, segment_end in segments:
            unplanned_start = max(segment_start, planned_up_to.get(owner, 0) + 1)
            if unplanned_start <= segment_end:
                ranges.append((unplanned_start, segment_end))
                planned_up_to[owner] = segment_end
            segment_start = segment_end + 1
        plan.append((context.id, ranges))
    return plan


async def _iterate_contexts(storage: StorageBackend) -> AsyncIterator[Context]:
    """Yield every context of a store, page by page."""
    after: str | None = None
    while True:
        page = await storage.contexts(ContextQuery(after=after, limit=500))
        for context in page.items:
            yield context
        after = page.next_after
        if after is None:
            return


@dataclass(slots=True)
class _Reindexer:
    storage: StorageBackend
    embedding: Embedding | None
    counts: Counter[str] = field(default_factory=Counter[str])

    async def run(self, context: str, first: int, last: int, report: Callable[[], None]) -> None:
        """Write the missing rows of the versions of a context from `first` to `last`, 256 entries at a time.

        `report` is called after each step.
        """
        stored_rows = await self.storage.derived(context, index_record.SPACE, at=last)
        records = {row.version: row.data for row in stored_rows}
        parts = {} if self.embedding is None else await self._load_parts(context, self.embedding, last)
        to_embed: list[tuple[int, Entry]] = []
        while first <= last:
            end = min(first + 256, last + 1)
            entries = await self.storage.read(context, after=first - 1, before=end)
            live = [entry for entry in entries if entry.state is State.LIVE]
            await self._write_records(context, live, records)
            if self.embedding is not None:
                for entry in live:
                    if self._lacks_vectors(entry, self.embedding, parts.get(entry.version, {})):
                        to_embed.append((entry.version, entry))
                while len(to_embed) >= BATCH_TEXTS:
                    await self._write_vectors(context, self.embedding, to_embed[:BATCH_TEXTS], parts)
                    to_embed = to_embed[BATCH_TEXTS:]
            first += len(entries)
            self.counts["entries"] += len(entries)
            report()
        if self.embedding is not None and to_embed:
            await self._write_vectors(context, self.embedding, to_embed, parts)

    async def _load_parts(self, context: str, embedding: Embedding, high: int) -> dict[int, _Parts]:
        """Return the stored vectors of a context, by version and part."""
        parts: dict[int, _Parts] = {}
        for row in await self.storage.derived(context, embedding.space, at=high):
            if row.data or row.part == 0:
                parts.setdefault(row.version, {})[row.part] = row.start, row.end, len(row.data)
        return parts

    async def _write_records(
        self, context: str, entries: Sequence[Entry], stored_records: Mapping[int, bytes]
    ) -> None:
        """Store the index records of some entries that are missing or differ from `stored_records`, by version."""
        rows: list[Derived] = []
        for entry in entries:
            record = index_record.encode_index_record(entry, entry.id)
            if stored_records.get(entry.version) != record:
                rows.append(Derived(version=entry.version, space=index_record.SPACE, data=record))
        if rows:
            self.counts["cards"] += await self.storage.put_derived(context, rows)

    def _lacks_vectors(self, entry: Entry, embedding: Embedding, stored_parts: _Parts) -> bool:
        """Return whether the stored vectors of an entry differ from those that it should have."""
        has_text = entry.kind in (Kind.MESSAGE, Kind.FACT, Kind.SUMMARY) and entry.content
        if not has_text:
            return False
        size = 2 * embedding.dimension
        expected_parts: _Parts = {}
        for part, passage in enumerate(embedding.passages(entry)):
            expected_parts[part] = passage.start, passage.end, size
        if not expected_parts:
            expected_parts[0] = 0, 0, 0  # an empty row marks an entry with nothing to embed
        return expected_parts != stored_parts

    async def _write_vectors(
        self,
        context: str,
        embedding: Embedding,
        drafts: Sequence[tuple[int, Entry]],
        stored_parts: Mapping[int, _Parts],
    ) -> None:
        """Embed entries and store their vectors; empty rows replace stored parts that are not needed any more."""
        rows = await embedding.embed_accepted(drafts)
        has_failed = not rows and len(drafts) > 2  # one or two texts may be refused
        if has_failed:
            raise ProviderError(
                f"the embedder refused {len(drafts)} texts in a row",
                provider=embedding.space,
                retryable=True,
                options=("the same call goes on where this one stopped",),
            )
        written_parts = {(row.version, row.part) for row in rows}
        versions = {row.version for row in rows}
        self.counts["left"] += len({version for version, _ in drafts} - versions)
        for version in versions:
            for part in stored_parts.get(version, ()):
                if (version, part) not in written_parts:
                    rows.append(Derived(version=version, space=embedding.space, part=part, data=b""))
        if rows:
            self.counts["vectors"] += await self.storage.put_derived(context, rows)
