"""A store that fails on purpose: at the n-th call of a method, before or after it took effect."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import timedelta

from acms.errors import ACMSError
from acms.model import (
    Append,
    Context,
    ContextDraft,
    ContextQuery,
    Derived,
    Done,
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
from acms.ports import StorageBackend
from acms.storage.wrapper import WrapperStorage


class FaultyStorage(WrapperStorage):
    """Raises what it was told to; without faults it is the store inside.

    store.fail("append", 3, StorageBusyError())                 the third append is refused
    store.fail("append", 3, StorageError(), after=True)         it is stored, but its answer is lost
    """

    def __init__(self, inner: StorageBackend) -> None:
        super().__init__(inner)
        self._faults: dict[tuple[str, int], tuple[Exception, bool]] = {}
        #: How often each method was called.
        self.calls: Counter[str] = Counter()

    def fail(self, method: str, nth: int, error: Exception, *, after: bool = False) -> None:
        """Raise `error` at the n-th call of a method from now on, counted from 1."""
        if method not in vars(FaultyStorage):
            raise ValueError(f"{method!r} is not a method that can fail")
        self._faults[method, self.calls[method] + nth] = (error, after)

    def _begin(self, method: str) -> tuple[str, int]:
        self.calls[method] += 1
        place = (method, self.calls[method])
        error, after = self._faults.get(place, (None, True))
        if error is not None and not after:
            raise error
        return place

    def _end(self, place: tuple[str, int]) -> None:
        fault = self._faults.get(place)
        if fault is not None:
            raise fault[0]

    async def create(self, context: ContextDraft) -> Context:
        """See `StorageBackend.create`."""
        place = self._begin("create")
        result = await super().create(context)
        self._end(place)
        return result

    async def context(self, id_or_key: str, *, namespace: str = "default") -> Context:
        """See `StorageBackend.context`."""
        place = self._begin("context")
        result = await super().context(id_or_key, namespace=namespace)
        self._end(place)
        return result

    async def contexts(self, query: ContextQuery) -> Page[Context]:
        """See `StorageBackend.contexts`."""
        place = self._begin("contexts")
        result = await super().contexts(query)
        self._end(place)
        return result

    async def settings(self, context: str, change: Mapping[str, Json], *, rev: int) -> Context:
        """See `StorageBackend.settings`."""
        place = self._begin("settings")
        result = await super().settings(context, change, rev=rev)
        self._end(place)
        return result

    async def head(self, context: str) -> Head:
        """See `StorageBackend.head`."""
        place = self._begin("head")
        result = await super().head(context)
        self._end(place)
        return result

    async def append(self, ops: Sequence[Append]) -> list[Receipt | ACMSError]:
        """See `StorageBackend.append`."""
        place = self._begin("append")
        result = await super().append(ops)
        self._end(place)
        return result

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
        place = self._begin("read")
        result = await super().read(
            context,
            at=at,
            after=after,
            before=before,
            kinds=kinds,
            replacing=replacing,
            newest=newest,
            limit=limit,
            deleted=deleted,
        )
        self._end(place)
        return result

    async def get(self, ids: Sequence[str]) -> list[Entry | None]:
        """See `StorageBackend.get`."""
        place = self._begin("get")
        result = await super().get(ids)
        self._end(place)
        return result

    async def put_derived(self, context: str, rows: Sequence[Derived], *, wait: bool = True) -> int:
        """See `StorageBackend.put_derived`."""
        place = self._begin("put_derived")
        result = await super().put_derived(context, rows, wait=wait)
        self._end(place)
        return result

    async def derived(
        self, context: str, space: str, *, after: int = 0, at: int | None = None
    ) -> list[Derived]:
        """See `StorageBackend.derived`."""
        place = self._begin("derived")
        result = await super().derived(context, space, after=after, at=at)
        self._end(place)
        return result

    async def missing(
        self, space: str, *, context: str | None = None, limit: int, after: int = 0
    ) -> list[tuple[str, int]]:
        """See `StorageBackend.missing`."""
        place = self._begin("missing")
        result = await super().missing(space, context=context, limit=limit, after=after)
        self._end(place)
        return result

    async def blank(
        self, context: str, versions: Sequence[int], *, to: State, audit: Mapping[str, Json]
    ) -> int:
        """See `StorageBackend.blank`."""
        place = self._begin("blank")
        result = await super().blank(context, versions, to=to, audit=audit)
        self._end(place)
        return result

    async def restore(self, context: Context, entries: AsyncIterator[Entry]) -> None:
        """See `StorageBackend.restore`."""
        place = self._begin("restore")
        await super().restore(context, entries)
        self._end(place)

    async def search(self, query: Search) -> list[Hit]:
        """See `StorageBackend.search`."""
        place = self._begin("search")
        result = await super().search(query)
        self._end(place)
        return result

    async def claim(self, kinds: Sequence[str], *, lease: timedelta, limit: int = 1) -> list[Lease]:
        """See `StorageBackend.claim`."""
        place = self._begin("claim")
        result = await super().claim(kinds, lease=lease, limit=limit)
        self._end(place)
        return result

    async def extend(self, lease: Lease, *, by: timedelta) -> Lease:
        """See `StorageBackend.extend`."""
        place = self._begin("extend")
        result = await super().extend(lease, by=by)
        self._end(place)
        return result

    async def jobs(self, query: JobQuery) -> Page[Job]:
        """See `StorageBackend.jobs`."""
        place = self._begin("jobs")
        result = await super().jobs(query)
        self._end(place)
        return result

    async def settle(self, lease: Lease, outcome: Retry | Failed | Done) -> Job:
        """See `StorageBackend.settle`."""
        place = self._begin("settle")
        result = await super().settle(lease, outcome)
        self._end(place)
        return result
