"""The stores of the tenants a service serves, and the sessions that are kept ready on them."""

from __future__ import annotations

import asyncio
import sys
from collections import OrderedDict
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal
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
from acms.storage.kv_home import InMemoryKV, KVHome
from acms.storage.shards import Shards

__all__ = ["OWN", "Engine", "Lease", "Stores", "Tenant"]

OWN = validation.RESERVED_NAMESPACE
"""Name of what the service keeps for itself: the tenant of its keys, and in every tenant the namespace of its audit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """What the sessions of a service are made with: decided by the operator, never by a request."""

    config: ACMSConfig
    embedder: Embedder | Literal["auto"] | None = "auto"
    reflector: Reflector | None = None
    reranker: Reranker | None = None
    summarizer: Summarizer | None = None
    #: What the contract asks besides the memory that a request names: the same for every tenant.
    sources: tuple[KnowledgeSource, ...] = ()


@dataclass(slots=True, eq=False)
class _Ready:
    """A session that is kept ready."""

    session: ACMS
    #: Requests that use it.
    users: int = 0
    #: Whether it is closed when the last of them ends.
    gone: bool = False


@dataclass(slots=True, eq=False, kw_only=True)
class Lease:
    """A request under way."""

    #: The tenant whose data it uses; the service also makes requests of its own.
    tenant: str
    #: The namespaces that it may use, and its action there.
    access: Access
    action: Action
    #: The sessions that it uses.
    sessions: list[_Ready] = field(default_factory=list[_Ready])


_LEASE: ContextVar[Lease | None] = ContextVar("acms_lease", default=None)
"""The request under way; None for what the service does for itself."""


class Tenant:
    """The data of one tenant: its store, its values under keys, its sessions."""

    def __init__(self, name: str, handle: Handle, kv: KVMemory, engine: Engine, ready: int) -> None:
        self.name = name
        self.handle = handle
        self._kv = kv
        self.engine = engine
        self._ready = ready
        self._sessions: OrderedDict[str, _Ready] = OrderedDict()
        self._contracts: OrderedDict[tuple[str, ...], tuple[tuple[int, ...], list[ACMS], ACS]] = OrderedDict()
        #: Closings under way.
        self._leaving: set[asyncio.Future[None]] = set()
        #: Requests under way: a store in use is not closed.
        self.users = 0
        self._works = False
        self._commits = 0

    @property
    def bound(self) -> bool:
        """Whether the request under way is bound to namespaces."""
        return self._access.granted is not None

    @property
    def _access(self) -> Access:
        lease = _LEASE.get()
        return EVERYWHERE if lease is None or lease.tenant != self.name else lease.access

    @property
    def kv(self) -> KVMemory:
        """Values under keys, which belong to the whole tenant: pins and what they name."""
        if self.bound:
            raise PermissionDeniedError(
                "pins belong to the whole tenant, and the key is bound to namespaces",
                options=("use a key that is bound to none",),
            )
        return self._kv

    async def context(self, id: str) -> Context:
        """Return a live context by its id; `SessionNotFoundError` also for one that the request may not know of.

        `PermissionDeniedError` when it may only read there, and does more.
        """
        if "\0" in id:  # PostgreSQL could not even be asked about it
            raise _build_unknown_error(id)
        found = await self.handle.context(id)
        if found.id != id or found.deleted_at is not None or not self.sees(found.namespace):
            raise _build_unknown_error(id)
        self.check(found.namespace)
        return found

    async def contexts(self, query: ContextQuery) -> Page[Context]:
        """Return a page of the contexts that the request under way may see.

        Newest first; of who is bound to several namespaces one namespace after the other.
        """
        granted = self._access.granted
        if granted is None:
            page = await self.handle.contexts(query)
            return replace(page, items=tuple([one for one in page.items if one.namespace != OWN]))
        names = sorted([name for name in granted if self.sees(name) and query.namespace in (None, name)])
        after, found = query.after, list[Context]()
        if after is not None:
            begun = (await self.handle.context(after)).namespace
            if begun not in names:
                raise _build_unknown_error(after)
            names = names[names.index(begun) :]
        for name in names:
            if len(found) == query.limit:
                return Page(items=tuple(found), next_after=found[-1].id)
            asked = replace(query, namespace=name, after=after, limit=query.limit - len(found))
            page, after = await self.handle.contexts(asked), None
            found += page.items
            if page.next_after is not None:
                return Page(items=tuple(found), next_after=page.next_after)
        return Page(items=tuple(found), next_after=None)

    def sees(self, namespace: str) -> bool:
        """Return whether the request under way may know of a namespace; of the service's own none may."""
        return namespace != OWN and self._access.allows(namespace)

    async def knows(self, context: str) -> bool:
        """Return whether the request under way may know what a context holds, be it deleted or not."""
        try:
            return self.sees((await self.handle.context(context)).namespace)
        except SessionNotFoundError:  # a fork outlives it
            return not self.bound

    def check(self, namespace: str) -> None:
        """Raise `PermissionDeniedError` if the current request may not perform its action in a namespace."""
        lease = _LEASE.get()
        if lease is not None and not self._access.allows(namespace, lease.action):
            raise PermissionDeniedError(
                f"the namespace {namespace!r} is not open to you for this: it takes {lease.action.value!r}",
                options=("ask who shares the namespace for a grant",),
            )

    def enter(self, access: Access = EVERYWHERE, action: Action = Action.READ) -> Lease:
        """Begin a request: neither the store nor a session that it asks for is closed before it leaves."""
        self.users += 1
        lease = Lease(tenant=self.name, access=access, action=action)
        _LEASE.set(lease)
        return lease

    def leave(self, lease: Lease) -> None:
        """End a request."""
        _LEASE.set(None)
        self.users -= 1
        for one in lease.sessions:
            one.users -= 1
            if one.gone and not one.users:
                self._leave(one.session)

    async def session(self, id: str) -> ACMS:
        """Return the session of a live context by the context's id."""
        found = self._sessions.get(id)
        if found is None:
            made = self.over(await self.context(id))
            try:
                await made.tags()  # finds its context
            except BaseException:
                self._leave(made)
                raise
            found = self._sessions.setdefault(id, _Ready(made))
            if found.session is not made:  # another request was first
                self._leave(made)
        elif not self.sees(found.session.namespace):
            raise _build_unknown_error(id)
        else:
            self.check(found.session.namespace)
            self._sessions.move_to_end(id)
        lease = _LEASE.get()
        if lease is not None:
            found.users += 1
            lease.sessions.append(found)
        while len(self._sessions) > self._ready:
            self.forget(next(iter(self._sessions)))
        return found.session

    def over(self, context: Context) -> ACMS:
        """Return a session on a context."""
        engine = self.engine
        return ACMS(
            context.id,
            self.handle,
            engine.embedder,
            reflector=engine.reflector,
            reranker=engine.reranker,
            summarizer=engine.summarizer,
            token_counter=token_counter(context.counter),
            config=engine.config,
            namespace=context.namespace,
        )

    def forget(self, id: str) -> None:
        """Let go of a session, which is closed when no request uses it any more."""
        found = self._sessions.pop(id, None)
        if found is None:
            return
        found.gone = True
        if not found.users:
            self._leave(found.session)

    def _leave(self, session: ACMS) -> None:
        task = asyncio.ensure_future(session.close())
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    async def contract(self, ids: tuple[str, ...]) -> ACS:
        """Return the object that answers the contract from the memory of some contexts.

        The same contexts get the same object, which keeps the results of earlier attempts, until any process erases
        something of theirs.
        """
        contexts = [await self.context(id) for id in ids]
        epochs = tuple([(await self.handle.head(one.id)).epoch for one in contexts])
        sessions = [await self.session(id) for id in ids]
        known = self._contracts.get(ids)
        if known is not None and known[:2] == (epochs, sessions):
            self._contracts.move_to_end(ids)
            return known[2]
        made = await asyncio.to_thread(ACS, [*sessions, *self.engine.sources])
        self._contracts[ids] = (epochs, sessions, made)
        while len(self._contracts) > self._ready:
            self._contracts.popitem(last=False)
        return made

    def unlearn(self) -> None:
        """Discard the cached contract objects: their results of earlier attempts may quote erased content."""
        self._contracts.clear()

    async def open(self) -> None:
        """Open the store."""
        await self.handle.__aenter__()
        self.work()

    def work(self) -> None:
        """Run the due jobs, including those that another process left; do nothing if workers run elsewhere."""
        engine = self.engine
        config = engine.config
        if not config.worker.enabled:
            return
        one = get_background_worker(self.handle, self.handle, config.worker, config.retry, config.on_event)
        if not self._works:
            self._works = True
            summarizers = () if engine.summarizer is None else (engine.summarizer,)
            reflectors = () if engine.reflector is None else (engine.reflector,)
            found = compose.handlers(
                config,
                summarizers,
                handles.get_shared_state(self.handle).counters,
                reflectors=reflectors,
                handle=self.handle,
            )
            for kind, handler in found.items():
                one.serve(kind, handler)
        one.poke()

    async def changed(self) -> bool:
        """Return whether anything was committed since this was asked last; False of a store that cannot tell."""
        if not isinstance(self.handle, HasCommits):
            return False
        before, self._commits = self._commits, await self.handle.commits()
        return self._commits != before

    async def close(self) -> None:
        """Close every session and the store."""
        while self._sessions:
            _, one = self._sessions.popitem()
            await one.session.close()
        if self._leaving:
            await asyncio.wait(self._leaving)
        await self.handle.__aexit__(None, None, None)
        await self._kv.aclose()


def _build_unknown_error(id: str) -> SessionNotFoundError:
    """Return the error for a missing context, worded as a store does, so that it does not reveal the reason."""
    return SessionNotFoundError(f"no session or context is named {id!r}")


class Stores:
    """The stores of all tenants, by the URL of one of them; each is opened when it is first asked for."""

    def __init__(
        self, url: str, engine: Engine, *, most: int = 256, ready: int = 1024, read_only: bool = False
    ) -> None:
        self.url = urls.read_only(url) if read_only else url
        self.engine = engine
        self._most = sys.maxsize if url.startswith("memory:") else most  # closing it would lose its data
        self._ready = ready
        self._tenants: OrderedDict[str, Tenant] = OrderedDict()
        self._opening: dict[str, asyncio.Future[Tenant]] = {}
        scheme = urlsplit(url).scheme
        file = url.partition("?")[0]
        self._shards = Shards(file, read_only=read_only) if not scheme and file.endswith(".toml") else None
        given = dict(parse_qsl(urlsplit(url).query))
        if "tenant" in given:
            raise ConfigurationError(
                "the store of a service belongs to no one tenant: the key says whose data is meant",
                options=("leave tenant= out of the URL",),
            )
        #: The handle whose connections the others share, where they can.
        self._first: Handle | None = None

    def handle(self, tenant: str) -> Handle:
        """Return a handle on a tenant's data; where it can it shares the connections of the others."""
        validation.validate_name(tenant, "tenant")
        if self._shards is not None:
            return self._shards.of(tenant)
        share: Callable[[str], Handle] | None = getattr(self._first, "for_tenant", None)
        if share is not None:
            return share(tenant)
        made = open_storage(f"{self.url}{'&' if '?' in self.url else '?'}tenant={quote(tenant, safe='')}")
        self._first = self._first or made
        return made

    def kv(self, handle: Handle) -> KVHome:
        """Return the values under keys that lie beside a log."""
        make: Callable[[], KVHome] | None = getattr(handle, "kv", None)
        if make is not None:
            return make()
        path: Path | None = getattr(handle, "path", None)
        if path is None:
            return InMemoryKV()
        from acms.storage.sqlite.kv import SQLiteKV

        read_only: bool = getattr(handle, "read_only", False)
        return SQLiteKV(path, tenant=handle.tenant, durability=handle.durability, read_only=read_only)

    async def of(self, name: str) -> Tenant:
        """Return the data of a tenant, open."""
        found = self._tenants.get(name)
        if found is not None:
            self._tenants.move_to_end(name)
            return found
        opening = self._opening.get(name)
        if opening is None:
            opening = self._opening[name] = asyncio.ensure_future(self._open(name))
            opening.add_done_callback(lambda _: self._opening.pop(name, None))
        return await asyncio.shield(opening)

    async def _open(self, name: str) -> Tenant:
        handle = self.handle(name)
        tenant = Tenant(name, handle, self.kv(handle), self.engine, self._ready)
        await tenant.open()
        self._tenants[name] = tenant
        for other in [one for one in self._tenants.values() if not one.users and one is not tenant]:
            if len(self._tenants) <= self._most:
                break
            del self._tenants[other.name]
            await other.close()
        return tenant

    def open(self) -> list[Tenant]:
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
    """Return an engine whose sessions work off the jobs they ask for, or leave them to workers elsewhere."""
    worker = replace(engine.config.worker, enabled=works)
    return replace(engine, config=replace(engine.config, worker=worker))
