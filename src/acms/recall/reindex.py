"""Rebuild the derived rows of a log: cards, and the vectors of an embedder, wherever they are kept.

A log can be read without them; they are needed to rank it as well and as fast as possible. Only rows that are missing
or disagree with the log are written, so an interrupted call is continued by the same call.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias, runtime_checkable

from acms.errors import ProviderError, SessionNotFoundError
from acms.model import Context, ContextQuery, Derived, Entry, Kind, Privacy, State
from acms.ports import Embedder, Progress, StorageBackend
from acms.recall.embeddings import BATCH, Embedding
from acms.storage.wrapper import WrapperStorage
from acms.text import index_record as cards

__all__ = ["Reindexed", "VectorHome", "reindex"]

PAGE = 256
"""Entries read at a time."""
ALONE = 2
"""Texts that may be refused in a row before it is not a matter of the texts."""

_Parts: TypeAlias = Mapping[int, tuple[int, int, int]]
"""Of an entry's vectors by part: first and last character, and length in bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reindexed:
    """The rebuilt rows."""

    contexts: int = 0
    #: Entries that were looked at, each once although several forks may read it.
    entries: int = 0
    #: Cards that were missing or disagreed with the log.
    cards: int = 0
    #: Vectors that were missing or disagreed with the log.
    vectors: int = 0
    #: Vectors that went from the store to the place where vectors are kept.
    moved: int = 0
    #: Vectors of erased entries that were still kept there.
    pruned: int = 0
    #: Entries that the embedder refused.
    left: int = 0


@runtime_checkable
class VectorHome(Protocol):
    """A place beside a store where vectors are kept."""

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
    progress: Progress = lambda done, total: None,
) -> Reindexed:
    """Rebuild the derived rows of a context, or of every live one, so that they agree with the log.

    Without an embedder only cards are rebuilt. Entries that may not be sent to it, by their own mode or by `privacy`,
    the mode of the configuration, are not sent and lose their vectors. `ProviderError` is raised when the embedder
    fails; rows written until then stay stored.
    """
    work = _Work(storage, None if embedder is None else Embedding(storage, embedder, privacy))
    home: StorageBackend | None = storage
    while home is not None and not isinstance(home, VectorHome):
        home = home.inner if isinstance(home, WrapperStorage) else None
    plan = await _plan_ranges(storage, context)
    total = sum(high - low + 1 for _, ranges in plan for low, high in ranges)
    for id, ranges in plan:
        try:
            if home is not None and work.embedding is not None:
                work.done["moved"] += await home.adopt(id, work.embedding.space)
            for low, high in ranges:
                await work.run(id, low, high, lambda: progress(work.done["entries"], total))
        except SessionNotFoundError:
            if context is not None:
                raise
            continue  # deleted meanwhile
        work.done["contexts"] += 1
    if home is not None:
        work.done["pruned"] = await home.prune()
    return Reindexed(**work.done)


async def _plan_ranges(
    storage: StorageBackend, context: str | None
) -> list[tuple[str, list[tuple[int, int]]]]:
    """Return the version ranges to process per context; versions shared by forks are included once."""
    found = (
        [one async for one in _iterate_contexts(storage)]
        if context is None
        else [await storage.context(context)]
    )
    through: dict[str, int] = {}
    plan: list[tuple[str, list[tuple[int, int]]]] = []
    for one in found:
        first = 1
        ranges: list[tuple[int, int]] = []
        head = await storage.head(one.id)
        for owner, last in (*one.lineage, (one.id, head.version)):
            low = max(first, through.get(owner, 0) + 1)
            if low <= last:
                ranges.append((low, last))
                through[owner] = last
            first = last + 1
        plan.append((one.id, ranges))
    return plan


async def _iterate_contexts(storage: StorageBackend) -> AsyncIterator[Context]:
    after: str | None = None
    while True:
        page = await storage.contexts(ContextQuery(after=after, limit=500))
        for one in page.items:
            yield one
        after = page.next_after
        if after is None:
            return


@dataclass(slots=True)
class _Work:
    storage: StorageBackend
    embedding: Embedding | None
    done: Counter[str] = field(default_factory=Counter[str])

    async def run(self, context: str, low: int, high: int, tell: Callable[[], None]) -> None:
        """Go through some versions of a context."""
        written = {row.version: row.data for row in await self.storage.derived(context, cards.SPACE, at=high)}
        known: dict[int, dict[int, tuple[int, int, int]]] = {}
        if self.embedding is not None:
            for row in await self.storage.derived(context, self.embedding.space, at=high):
                if row.data or row.part == 0:
                    known.setdefault(row.version, {})[row.part] = row.start, row.end, len(row.data)
        drafts: list[tuple[int, Entry]] = []
        while low <= high:
            entries = await self.storage.read(context, after=low - 1, before=min(low + PAGE, high + 1))
            await self._cards(context, [entry for entry in entries if entry.state is State.LIVE], written)
            for entry in entries:
                if self.embedding is not None and self._lacks(entry, known.get(entry.version, {})):
                    drafts.append((entry.version, entry))
                    if len(drafts) == BATCH:
                        await self._embed(context, drafts, known)
                        drafts = []
            low += len(entries)
            self.done["entries"] += len(entries)
            tell()
        if drafts:
            await self._embed(context, drafts, known)

    async def _cards(self, context: str, entries: Sequence[Entry], written: Mapping[int, bytes]) -> None:
        rows: list[Derived] = []
        for entry in entries:
            card = cards.encode_index_record(entry, entry.id.rsplit("_", 1)[-1])
            if written.get(entry.version) != card:
                rows.append(Derived(version=entry.version, space=cards.SPACE, data=card))
        if rows:
            self.done["cards"] += await self.storage.put_derived(context, rows)

    def _lacks(self, entry: Entry, known: _Parts) -> bool:
        assert self.embedding is not None
        said = entry.kind in (Kind.MESSAGE, Kind.FACT, Kind.SUMMARY) and entry.content
        if entry.state is not State.LIVE or not said:
            return False
        size = 2 * self.embedding.dimension
        parts = {
            part: (passage.start, passage.end, size)
            for part, passage in enumerate(self.embedding.passages(entry))
        } or {0: (0, 0, 0)}
        return parts != known

    async def _embed(
        self, context: str, drafts: Sequence[tuple[int, Entry]], known: Mapping[int, _Parts]
    ) -> None:
        assert self.embedding is not None
        rows = await self.embedding.possible(drafts)
        if not rows and len(drafts) > ALONE:
            raise ProviderError(
                f"the embedder refused {len(drafts)} texts in a row",
                provider=self.embedding.space,
                retryable=True,
                options=("the same call goes on where this one stopped",),
            )
        self.done["left"] += len({version for version, _ in drafts} - {row.version for row in rows})
        made = {(row.version, row.part) for row in rows}
        emptied = [
            Derived(version=version, space=self.embedding.space, part=part, data=b"")
            for version in {row.version for row in rows}
            for part in known.get(version, ())
            if (version, part) not in made
        ]
        if rows:
            self.done["vectors"] += await self.storage.put_derived(context, [*rows, *emptied])
