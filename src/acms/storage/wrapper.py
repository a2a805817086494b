"""A store in front of another one: keeps the same promise, passes the same suite."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import timedelta
from typing import Self

from acms.errors import ACMSError
from acms.model import (
    Append,
    Context,
    ContextDraft,
    ContextQuery,
    Derived,
    Done,
    Durability,
    Entry,
    Failed,
    Head,
    Hit,
    Job,
    JobQuery,
    Json,
    Kind,
    Lease,
    Page,
    Receipt,
    Retry,
    Search,
    State,
)
from acms.ports import HasRecords, StorageBackend
from acms.storage import handles
from acms.storage.reading import Read


class WrapperStorage:
    """Hands every call to the store inside; it keeps records when that one does."""

    def __init__(self, inner: StorageBackend) -> None:
        self.inner = inner
        self.tenant = inner.tenant
        if isinstance(inner, HasRecords):  # else the wrapper must not look as if it could
            self.record, self.put_record = inner.record, inner.put_record

    @property
    def durability(self) -> Durability:
        """What an acknowledged append survives: a server says so when the handle is opened."""
        return self.inner.durability

    async def __aenter__(self) -> Self:
        """Keep the handle open until the block ends."""
        handles.retain(self)
        return self

    async def __aexit__(self, *error: object) -> None:
        """Let go of the handle."""
        await handles.release(self)

    async def create(self, context: ContextDraft) -> Context:
        """See `StorageBackend.create`."""
        return await self.inner.create(context)

    async def context(self, id_or_key: str, *, namespace: str = "default") -> Context:
        """See `StorageBackend.context`."""
        return await self.inner.context(id_or_key, namespace=namespace)

    async def contexts(self, query: ContextQuery) -> Page[Context]:
        """See `StorageBackend.contexts`."""
        return await self.inner.contexts(query)

    async def settings(self, context: str, change: Mapping[str, Json], *, rev: int) -> Context:
        """See `StorageBackend.settings`."""
        return await self.inner.settings(context, change, rev=rev)

    async def head(self, context: str) -> Head:
        """See `StorageBackend.head`."""
        return await self.inner.head(context)

    async def append(self, ops: Sequence[Append]) -> list[Receipt | ACMSError]:
        """See `StorageBackend.append`."""
        return await self.inner.append(ops)

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
        """See `StorageBackend.read`."""
        return await Read(at, after, before, kinds, replacing, newest, limit, deleted).of(self.inner, context)

    async def get(self, ids: Sequence[str]) -> list[Entry | None]:
        """See `StorageBackend.get`."""
        return await self.inner.get(ids)

    async def put_derived(self, context: str, rows: Sequence[Derived], *, wait: bool = True) -> int:
        """See `StorageBackend.put_derived`."""
        return await self.inner.put_derived(context, rows, wait=wait)

    async def derived(
        self, context: str, space: str, *, after: int = 0, at: int | None = None
    ) -> list[Derived]:
        """See `StorageBackend.derived`."""
        return await self.inner.derived(context, space, after=after, at=at)

    async def missing(
        self, space: str, *, context: str | None = None, limit: int, after: int = 0
    ) -> list[tuple[str, int]]:
        """See `StorageBackend.missing`."""
        return await self.inner.missing(space, context=context, limit=limit, after=after)

    async def blank(
        self, context: str, versions: Sequence[int], *, to: State, audit: Mapping[str, Json]
    ) -> int:
        """See `StorageBackend.blank`."""
        return await self.inner.blank(context, versions, to=to, audit=audit)

    async def restore(self, context: Context, entries: AsyncIterator[Entry]) -> None:
        """See `StorageBackend.restore`."""
        await self.inner.restore(context, entries)

    async def search(self, query: Search) -> list[Hit]:
        """See `StorageBackend.search`."""
        return await self.inner.search(query)

    async def claim(self, kinds: Sequence[str], *, lease: timedelta, limit: int = 1) -> list[Lease]:
        """See `StorageBackend.claim`."""
        return await self.inner.claim(kinds, lease=lease, limit=limit)

    async def extend(self, lease: Lease, *, by: timedelta) -> Lease:
        """See `StorageBackend.extend`."""
        return await self.inner.extend(lease, by=by)

    async def settle(self, lease: Lease, outcome: Retry | Failed | Done) -> Job:
        """See `StorageBackend.settle`."""
        return await self.inner.settle(lease, outcome)

    async def jobs(self, query: JobQuery) -> Page[Job]:
        """See `StorageBackend.jobs`."""
        return await self.inner.jobs(query)

    async def aclose(self) -> None:
        """See `StorageBackend.aclose`."""
        await self.inner.aclose()
