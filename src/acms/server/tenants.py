"""The stores of the tenants a service serves, and the sessions that are kept ready on them."""

from __future__ import annotations

import asyncio
import sys
from collections import OrderedDict
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal
from urllib.parse import parse_qsl, quote, urlsplit

from acms import compose
from acms.config import ACMSConfig
from acms.contract.engine import ACS
from acms.contract.providers import KnowledgeSource
from acms.errors import ConfigurationError, SessionNotFoundError
from acms.jobs.worker import background
from acms.log import validation
from acms.model import Context
from acms.ports import Embedder, Handle, KVMemory, Reflector, Reranker, Summarizer
from acms.providers.tokens import token_counter
from acms.session import ACMS
from acms.storage import handles, open_storage
from acms.storage.kv_home import InMemoryKV, KVHome
from acms.storage.shards import Shards

__all__ = ["OWN", "Engine", "Stores", "Tenant"]

OWN = "@acms"
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


_LEASE: ContextVar[list[_Ready] | None] = ContextVar("acms_lease", default=None)
"""The sessions that the request under way uses."""


class Tenant:
    """The data of one tenant: its store, its values under keys, its sessions."""

    def __init__(self, name: str, handle: Handle, kv: KVMemory, engine: Engine, ready: int) -> None:
        self.name = name
        self.handle = handle
        #: Values under keys: pins and what they name.
        self.kv = kv
        self.engine = engine
        self._ready = ready
        self._sessions: OrderedDict[str, _Ready] = OrderedDict()
        self._contracts: OrderedDict[tuple[str, ...], tuple[tuple[int, ...], list[ACMS], ACS]] = OrderedDict()
        #: Closings under way.
        self._leaving: set[asyncio.Future[None]] = set()
        #: Requests under way: a store in use is not closed.
        self.users = 0
        self._works = False

    async def context(self, id: str) -> Context:
        """Return a live context by its id; `SessionNotFoundError` also for one of the service's own."""
        found = await self.handle.context(id)
        if found.id != id or found.deleted_at is not None or found.namespace == OWN:
            raise SessionNotFoundError(f"no context has the id {id!r}")
        return found

    def enter(self) -> list[_Ready]:
        """Begin a request: neither the store nor a session that it asks for is closed before it leaves."""
        self.users += 1
        lease: list[_Ready] = []
        _LEASE.set(lease)
        return lease

    def leave(self, lease: list[_Ready]) -> None:
        """End a request."""
        _LEASE.set(None)
        self.users -= 1
        for one in lease:
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
        else:
            self._sessions.move_to_end(id)
        lease = _LEASE.get()
        if lease is not None:
            found.users += 1
            lease.append(found)
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
        """Return what answers the contract from the memory of some contexts.

        The same object for the same ones, as it knows what attempts have brought; another one once something of theirs
        was erased, by whichever process.
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
        """Forget what attempts at the contract have brought: it may quote what was erased."""
        self._contracts.clear()

    async def open(self) -> None:
        """Open the store."""
        await self.handle.__aenter__()
        self.work()

    def work(self) -> None:
        """Work off what is due, also what another process left; nothing when workers run elsewhere."""
        engine = self.engine
        config = engine.config
        if not config.worker.enabled:
            return
        one = background(self.handle, self.handle, config.worker, config.retry, config.on_event)
        if not self._works:
            self._works = True
            summarizers = () if engine.summarizer is None else (engine.summarizer,)
            reflectors = () if engine.reflector is None else (engine.reflector,)
            found = compose.handlers(
                config,
                summarizers,
                handles.shared(self.handle).counters,
                reflectors=reflectors,
                handle=self.handle,
            )
            for kind, handler in found.items():
                one.serve(kind, handler)
        one.poke()

    async def close(self) -> None:
        """Close every session and the store."""
        while self._sessions:
            _, one = self._sessions.popitem()
            await one.session.close()
        if self._leaving:
            await asyncio.wait(self._leaving)
        await self.handle.__aexit__(None, None, None)
        await self.kv.aclose()


class Stores:
    """The stores of all tenants, by the URL of one of them; each is opened when it is first asked for."""

    def __init__(self, url: str, engine: Engine, *, most: int = 256, ready: int = 1024) -> None:
        self.url = url
        self.engine = engine
        self._most = sys.maxsize if url.startswith("memory:") else most  # what it holds would be gone
        self._ready = ready
        self._tenants: OrderedDict[str, Tenant] = OrderedDict()
        self._opening: dict[str, asyncio.Future[Tenant]] = {}
        scheme = urlsplit(url).scheme
        file = url.partition("?")[0]
        self._shards = Shards(file) if not scheme and file.endswith(".toml") else None
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
        validation.name(tenant, "tenant")
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

        return SQLiteKV(path, tenant=handle.tenant, durability=handle.durability)

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


def working(engine: Engine, works: bool) -> Engine:
    """Return an engine whose sessions work off the jobs they ask for, or leave them to workers elsewhere."""
    worker = replace(engine.config.worker, enabled=works)
    return replace(engine, config=replace(engine.config, worker=worker))
