"""The stores of the tenants a service serves, and the sessions that are kept ready on them."""

from __future__ import annotations

import asyncio
import sys
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal
from urllib.parse import parse_qsl, quote, urlsplit

from acms import compose
from acms.config import ACMSConfig
from acms.contract.engine import ACS
from acms.contract.providers import KnowledgeSource
from acms.errors import ConfigurationError, PermissionDeniedError, SessionNotFoundError
from acms.jobs.worker import get_background_worker
from acms.log import validation
from acms.model import Context, ContextQuery, Page
from acms.ports import Embedder, Handle, HasCommits, KVMemory, Reflector, Reranker, Summarizer
from acms.providers.tokens import token_counter
from acms.server.principal import EVERYWHERE, Access, Action
from acms.session import ACMS
from acms.storage import handles, open_storage, urls
from acms.storage.kv_base import BaseKV, InMemoryKV
from acms.storage.records import unknown_session_error
from acms.storage.shards import Shards

__all__ = ["SERVICE_NAMESPACE", "SERVICE_TENANT", "Engine", "Lease", "Stores", "Tenant"]

SERVICE_TENANT = validation.RESERVED_NAMESPACE
"""The tenant of the service itself, which holds the API keys and grants."""
SERVICE_NAMESPACE = validation.RESERVED_NAMESPACE
"""The namespace of the service's own data in every tenant: the audit trail."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """The configuration of a service's sessions, chosen by the operator, never by a request."""

    config: ACMSConfig
    embedder: Embedder | Literal["auto"] | None = "auto"
    reflector: Reflector | None = None
    reranker: Reranker | None = None
    summarizer: Summarizer | None = None
    #: Sources that the contract asks besides the contexts of a request, the same for every tenant.
    sources: tuple[KnowledgeSource, ...] = ()


@dataclass(slots=True, eq=False)
class _ReadySession:
    """A session that is kept ready."""

    session: ACMS
    #: Requests that use it.
    users: int = 0
    #: Whether it is closed when the last of them ends.
    is_removed: bool = False


@dataclass(slots=True, eq=False, kw_only=True)
class Lease:
    """A request under way."""

    #: The tenant whose data it uses; the service also makes requests of its own.
    tenant: str
    #: The namespaces that it may use, and its action there.
    access: Access
    action: Action
    #: The sessions that it uses.
    sessions: list[_ReadySession] = field(default_factory=list[_ReadySession])


_LEASE: ContextVar[Lease | None] = ContextVar("acms_lease", default=None)
"""The current request, or None for the service's own work."""


class Tenant:
    """The data of one tenant: its store, its key-value store, its sessions."""

    def __init__(
        self, name: str, handle: Handle, kv: KVMemory, engine: Engine, max_ready_sessions: int
    ) -> None:
        self.name = name
        self.handle = handle
        self._kv = kv
        self.engine = engine
        self._max_ready_sessions = max_ready_sessions
        self._sessions: OrderedDict[str, _ReadySession] = OrderedDict()
        self._contracts: OrderedDict[tuple[str, ...], tuple[tuple[int, ...], list[ACMS], ACS]] = OrderedDict()
        #: Sessions that are being closed.
        self._closing: set[asyncio.Future[None]] = set()
        #: Requests under way: a store in use is not closed.
        self.users = 0
        self._has_job_handlers = False
        self._commits = 0

    @property
    def bound(self) -> bool:
        """Whether the current request is bound to namespaces."""
        return self._access.granted is not None

    @property
    def _access(self) -> Access:
        lease = _LEASE.get()
        return EVERYWHERE if lease is None or lease.tenant != self.name else lease.access

    @property
    def kv(self) -> KVMemory:
        """The key-value store, which belongs to the whole tenant: pins and their values."""
        if self.bound:
            raise PermissionDeniedError(
                "pins belong to the whole tenant, but the key is bound to namespaces",
                options=("use a key without a binding",),
            )
        return self._kv

    async def context(self, id: str) -> Context:
        """Return a live context by its id.

        Raises `SessionNotFoundError` if it does not exist or the request may not see it, with one text for both.
        Raises `PermissionDeniedError` if the request may see it, but may not perform its action there.
        """
        context = await self.live_or_deleted_context(id)
        if context.deleted_at is not None:
            raise unknown_session_error(id)
        return context

    async def live_or_deleted_context(self, id: str) -> Context:
        """Return a context by its id, deleted or not; the errors are those of `context`."""
        if "\0" in id:  # PostgreSQL does not accept it in a query
            raise unknown_session_error(id)
        context = await self.handle.context(id)
        if context.id != id or not self.may_see(context.namespace):
            raise unknown_session_error(id)
        self.check(context.namespace)
        return context

    async def contexts(self, query: ContextQuery) -> Page[Context]:
        """Return a page of the contexts that the current request may see, newest first.

        For a request that is bound to several namespaces, the contexts of one namespace follow those of another.
        """
        granted = self._access.granted
        if granted is None:
            page = await self.handle.contexts(query)
            return replace(
                page, items=tuple([item for item in page.items if item.namespace != SERVICE_NAMESPACE])
            )
        namespaces = sorted(filter(self.may_see, granted))
        if query.namespace is not None:
            namespaces = [name for name in namespaces if name == query.namespace]
        after = query.after
        if after is not None:
            current = (await self.handle.context(after)).namespace
            if current not in namespaces:
                raise unknown_session_error(after)
            namespaces = namespaces[namespaces.index(current) :]
        items: list[Context] = []
        for name in namespaces:
            if len(items) == query.limit:
                return Page(items=tuple(items), next_after=items[-1].id)
            page = await self.handle.contexts(
                replace(query, namespace=name, after=after, limit=query.limit - len(items))
            )
            after = None  # applies to the first namespace only
            items += page.items
            is_full = page.next_after is not None
            if is_full:
                return Page(items=tuple(items), next_after=page.next_after)
        return Page(items=tuple(items), next_after=None)

    def may_see(self, namespace: str) -> bool:
        """Return whether the current request may see a namespace; the service's own is never visible."""
        return namespace != SERVICE_NAMESPACE and self._access.allows(namespace)

    async def may_see_context(self, context: str) -> bool:
        """Return whether the current request may see a context, deleted or not."""
        try:
            namespace = (await self.handle.context(context)).namespace
        except SessionNotFoundError:
            return not self.bound  # erased, with a fork that still has its entries: its namespace is unknown
        return self.may_see(namespace)

    def check(self, namespace: str) -> None:
        """Raise `PermissionDeniedError` if the current request may not perform its action in a namespace."""
        lease = _LEASE.get()
        if lease is not None and not self._access.allows(namespace, lease.action):
            raise PermissionDeniedError(
                f"the namespace {namespace!r} is not open to you for this: it takes {lease.action.value!r}",
                options=("ask who shares the namespace for a grant",),
            )

    def enter(self, access: Access = EVERYWHERE, action: Action = Action.READ) -> Lease:
        """Begin a request, and return its lease; the store and the sessions that it uses stay open until it ends."""
        self.users += 1
        lease = Lease(tenant=self.name, access=access, action=action)
        _LEASE.set(lease)
        return lease

    def leave(self, lease: Lease) -> None:
        """End a request: release its sessions, and close those that were removed in the meantime."""
        _LEASE.set(None)
        self.users -= 1
        for ready_session in lease.sessions:
            ready_session.users -= 1
            if ready_session.is_removed and not ready_session.users:
                self._close_session(ready_session.session)

    async def session(self, id: str) -> ACMS:
        """Return the session of a live context by the context's id."""
        ready_session = self._sessions.get(id)
        if ready_session is None:
            ready_session = await self._open_session(id)
        elif not self.may_see(ready_session.session.namespace):
            raise unknown_session_error(id)
        else:
            self.check(ready_session.session.namespace)
            self._sessions.move_to_end(id)
        lease = _LEASE.get()
        if lease is not None:
            ready_session.users += 1
            lease.sessions.append(ready_session)
        while len(self._sessions) > self._max_ready_sessions:
            self.forget(next(iter(self._sessions)))
        return ready_session.session

    async def _open_session(self, id: str) -> _ReadySession:
        """Open the session of a context and keep it open; if another request did the same, keep the first one."""
        session = self._new_session(await self.context(id))
        try:
            await session.tags()  # any read: it makes the session find its context now
        except BaseException:
            self._close_session(session)
            raise
        ready_session = self._sessions.setdefault(id, _ReadySession(session))
        if ready_session.session is not session:  # another request was first
            self._close_session(session)
        return ready_session

    @asynccontextmanager
    async def words_session(self, id: str) -> AsyncGenerator[ACMS]:
        """Open a session of a live context that ranks by words alone, until the block ends."""
        session = self._new_session(await self.context(id), words_only=True)
        try:
            yield session
        finally:
            self._close_session(session)

    def _new_session(self, context: Context, *, words_only: bool = False) -> ACMS:
        """Return a session on a context, with `words_only` one without an embedder."""
        engine = self.engine
        return ACMS(
            context.id,
            self.handle,
            None if words_only else engine.embedder,
            reflector=engine.reflector,
            reranker=engine.reranker,
            summarizer=engine.summarizer,
            token_counter=token_counter(context.counter),
            config=engine.config,
            namespace=context.namespace,
        )

    def forget(self, id: str) -> None:
        """Remove a session, which is closed when no request uses it any more."""
        ready_session = self._sessions.pop(id, None)
        if ready_session is None:
            return
        ready_session.is_removed = True
        if not ready_session.users:
            self._close_session(ready_session.session)

    def _close_session(self, session: ACMS) -> None:
        task = asyncio.ensure_future(session.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def contract(self, ids: tuple[str, ...]) -> ACS:
        """Return the `ACS` that answers requests of the contract from some contexts.

        It is cached with the results of earlier attempts, until any process erases an entry of these contexts.
        """
        contexts = [await self.context(id) for id in ids]
        epochs = tuple([(await self.handle.head(context.id)).epoch for context in contexts])
        sessions = [await self.session(id) for id in ids]
        cached = self._contracts.get(ids)
        if cached is not None:
            known_epochs, known_sessions, contract = cached
            if known_epochs == epochs and known_sessions == sessions:
                self._contracts.move_to_end(ids)
                return contract
        contract = await asyncio.to_thread(ACS, [*sessions, *self.engine.sources])
        self._contracts[ids] = (epochs, sessions, contract)
        while len(self._contracts) > self._max_ready_sessions:
            self._contracts.popitem(last=False)
        return contract

    def forget_contracts(self) -> None:
        """Discard the cached contract objects: their results of earlier attempts may quote erased content."""
        self._contracts.clear()

    async def open(self) -> None:
        """Open the store."""
        await self.handle.__aenter__()
        self.start_worker()

    def start_worker(self) -> None:
        """Start the worker, or wake it up to run the due jobs; do nothing if workers run elsewhere."""
        config = self.engine.config
        if not config.worker.enabled:
            return
        worker = get_background_worker(self.handle, self.handle, config.worker, config.retry, config.on_event)
        if not self._has_job_handlers:
            self._has_job_handlers = True
            for kind, handler in self._create_job_handlers().items():
                worker.serve(kind, handler)
        worker.poke()

    def _create_job_handlers(self) -> Mapping[str, Any]:
        """Return the handlers of the tenant's jobs, by kind."""
        engine = self.engine
        summarizers = () if engine.summarizer is None else (engine.summarizer,)
        reflectors = () if engine.reflector is None else (engine.reflector,)
        counters = handles.get_shared_state(self.handle).counters
        return compose.handlers(
            engine.config, summarizers, counters, reflectors=reflectors, handle=self.handle
        )

    async def has_changed(self) -> bool:
        """Return whether anything was committed since the last call; False if the store does not count commits."""
        if not isinstance(self.handle, HasCommits):
            return False
        previous = self._commits
        self._commits = await self.handle.commits()
        return self._commits != previous

    async def close(self) -> None:
        """Close every session and the store."""
        while self._sessions:
            _, ready_session = self._sessions.popitem()
            await ready_session.session.close()
        if self._closing:
            await asyncio.wait(self._closing)
        await self.handle.__aexit__(None, None, None)
        await self._kv.aclose()


class Stores:
    """The stores of all tenants, by the URL of one of them; each is opened on first use."""

    def __init__(
        self,
        url: str,
        engine: Engine,
        *,
        max_open: int = 256,
        max_ready_sessions: int = 1024,
        read_only: bool = False,
    ) -> None:
        self.url = urls.read_only(url) if read_only else url
        self.engine = engine
        # Closing a store in memory would lose its data.
        self._max_open = sys.maxsize if url.startswith("memory:") else max_open
        self._max_ready_sessions = max_ready_sessions
        self._tenants: OrderedDict[str, Tenant] = OrderedDict()
        self._opening: dict[str, asyncio.Future[Tenant]] = {}
        scheme = urlsplit(url).scheme
        file = url.partition("?")[0]
        self._shards = Shards(file, read_only=read_only) if not scheme and file.endswith(".toml") else None
        parameters = dict(parse_qsl(urlsplit(url).query, keep_blank_values=True))
        if "tenant" in parameters:
            raise ConfigurationError(
                "the URL of a service's store must not name a tenant: the key determines the tenant",
                options=("remove tenant= from the URL",),
            )
        #: The handle whose connections the others share, where they can.
        self._shared_handle: Handle | None = None

    def handle(self, tenant: str) -> Handle:
        """Return a handle on a tenant's data, which shares the connections of the other handles if the store can."""
        validation.validate_name(tenant, "tenant")
        if self._shards is not None:
            return self._shards.of(tenant)
        for_tenant: Callable[[str], Handle] | None = getattr(self._shared_handle, "for_tenant", None)
        if for_tenant is not None:
            return for_tenant(tenant)
        separator = "&" if "?" in self.url else "?"
        handle = open_storage(f"{self.url}{separator}tenant={quote(tenant, safe='')}")
        self._shared_handle = self._shared_handle or handle
        return handle

    def kv(self, handle: Handle) -> BaseKV:
        """Return the key-value store that belongs to the storage of a handle."""
        create_kv: Callable[[], BaseKV] | None = getattr(handle, "kv", None)
        if create_kv is not None:
            return create_kv()
        path: Path | None = getattr(handle, "path", None)
        if path is None:
            return InMemoryKV()
        from acms.storage.sqlite.kv import SQLiteKV

        read_only: bool = getattr(handle, "read_only", False)
        return SQLiteKV(path, tenant=handle.tenant, durability=handle.durability, read_only=read_only)

    async def tenant(self, name: str) -> Tenant:
        """Return the open store of a tenant; concurrent calls share one opening."""
        tenant = self._tenants.get(name)
        if tenant is not None:
            self._tenants.move_to_end(name)
            return tenant
        opening = self._opening.get(name)
        if opening is None:
            opening = asyncio.ensure_future(self._open(name))
            self._opening[name] = opening
            opening.add_done_callback(lambda _: self._opening.pop(name, None))
        return await asyncio.shield(opening)

    async def _open(self, name: str) -> Tenant:
        """Open the store of a tenant; beyond the limit of open stores, close those without requests."""
        handle = self.handle(name)
        tenant = Tenant(name, handle, self.kv(handle), self.engine, self._max_ready_sessions)
        await tenant.open()
        self._tenants[name] = tenant
        idle = [
            idle_tenant
            for idle_tenant in self._tenants.values()
            if not idle_tenant.users and idle_tenant is not tenant
        ]
        for idle_tenant in idle:
            if len(self._tenants) <= self._max_open:
                break
            del self._tenants[idle_tenant.name]
            await idle_tenant.close()
        return tenant

    def list_open(self) -> list[Tenant]:
        """Return the tenants whose stores are open."""
        return list(self._tenants.values())

    async def aclose(self) -> None:
        """Close everything."""
        while self._tenants:
            _, tenant = self._tenants.popitem()
            await tenant.close()
        if self._shards is not None:
            await self._shards.aclose()


def with_worker_enabled(engine: Engine, works: bool) -> Engine:
    """Return an engine whose sessions run their jobs, or leave them to workers elsewhere."""
    worker = replace(engine.config.worker, enabled=works)
    return replace(engine, config=replace(engine.config, worker=worker))
