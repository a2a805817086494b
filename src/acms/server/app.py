"""The HTTP service as an ASGI application: `create_app(url)` for any server; `acms serve` runs it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from time import perf_counter

from acms.config import ACMSConfig
from acms.contract.providers import KnowledgeSource
from acms.errors import ConfigurationError
from acms.log.validation import PAGE
from acms.model import ContextQuery, JobQuery, JobState, Json
from acms.observability.logging import log, shown
from acms.ports import Embedder, Reflector, Reranker, Summarizer
from acms.providers.tokens import default_counter
from acms.server.asgi import Receive, Scope, Send
from acms.server.audit import Audit
from acms.server.auth import Gate
from acms.server.config import ServerConfig
from acms.server.dispatch import Door
from acms.server.keys import Keys
from acms.server.metrics import Metrics
from acms.server.openapi import document
from acms.server.routes.table import OPERATIONS
from acms.server.tenants import OWN, Engine, Stores, working

__all__ = ["App", "create_app"]

LOOK_SECONDS = 15.0
"""How often jobs are looked for that nobody in this process asked for."""
READY_SECONDS = 2.0
"""How long the store may take to answer before the service counts as unable to serve."""


class App:
    """The HTTP service over one store; an ASGI application with a lifespan."""

    def __init__(self, url: str, config: ServerConfig, engine: Engine) -> None:
        self.config = config
        self.metrics = Metrics()
        told = replace(engine.config, on_event=self.metrics.listener(engine.config.on_event))
        self.stores = Stores(
            url,
            working(replace(engine, config=told), config.works),
            most=config.open_tenants,
            ready=config.ready_sessions,
        )
        self.audit = Audit(self.stores)
        self.keys = Keys(self.stores, self.audit)
        self.gate = Gate(config, self.keys)
        #: The OpenAPI document.
        self.document: Mapping[str, Json] = document(OPERATIONS, version("acms-engine"))
        self._door = Door(self, OPERATIONS)
        #: Requests under way.
        self._open = 0
        self._looking: asyncio.Task[None] | None = None
        self._idle = asyncio.Event()
        self._idle.set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or start and stop with the server."""
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif scope["type"] == "http":
            self._open += 1
            self._idle.clear()
            try:
                await self._door(scope, receive, send)
            finally:
                self._open -= 1
                if not self._open:
                    self._idle.set()
        else:
            await send({"type": "websocket.close", "code": 1000})

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                try:
                    await self.start()
                except Exception as error:
                    log(logging.ERROR, "start_failed", error=shown(error))
                    await send({"type": "lifespan.startup.failed", "message": shown(error)})
                    return
                await send({"type": "lifespan.startup.complete"})
            else:
                await self.stop()
                await send({"type": "lifespan.shutdown.complete"})
                return

    async def start(self) -> None:
        """Open a store, so that a wrong URL is found out at once; `ConfigurationError` when nobody has a key."""
        default_counter().count("a")  # reads its vocabulary before somebody waits for it
        if self.config.auth == "off":
            await self.stores.of(self.config.tenant)
        elif not await self.keys.any():
            raise ConfigurationError(
                "a key is required, and none was ever made: acms keys create --tenant NAME",
                options=("App.keys.create(tenant), before it starts", "auth='off' on this machine"),
            )
        if self.config.works:
            self._looking = asyncio.create_task(self._look(), name="acms-server-jobs")

    async def _look(self) -> None:
        """Look for jobs that others left: of processes that died, or that put something off."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            for tenant in self.stores.open():
                tenant.work()

    async def ready(self) -> float:
        """Return how many seconds the store takes to answer; raises what is wrong with it."""
        began = perf_counter()
        async with asyncio.timeout(READY_SECONDS):
            tenant = await self.stores.of(OWN if self.config.auth == "required" else self.config.tenant)
            await tenant.handle.contexts(ContextQuery(limit=1))
        return perf_counter() - began

    async def numbers(self) -> bytes:
        """Return what was counted, as Prometheus reads it."""
        tenants = self.stores.open()
        self.metrics.tenants.set(len(tenants))
        self.metrics.open.set(self._open)
        due = JobQuery(states=(JobState.READY,), limit=PAGE)
        pages = await asyncio.gather(*[tenant.handle.jobs(due) for tenant in tenants])
        self.metrics.waiting.set(sum(len(page.items) for page in pages))
        return await asyncio.to_thread(self.metrics.written)

    async def stop(self) -> None:
        """Wait for what is under way, for at most `grace_seconds`, give up the rest and close the stores."""
        try:
            async with asyncio.timeout(self.config.grace_seconds):
                await self._idle.wait()
                await self.audit.idle()
        except TimeoutError:
            log(logging.WARNING, "stopped_with_requests", open=self._open)
        await self.audit.stop()
        if self._looking is not None:
            self._looking.cancel()
        await self.stores.aclose()


def create_app(
    url: str,
    config: ServerConfig | None = None,
    *,
    engine: ACMSConfig | None = None,
    embedder: Embedder | None = None,
    reflector: Reflector | None = None,
    reranker: Reranker | None = None,
    summarizer: Summarizer | None = None,
    sources: Sequence[KnowledgeSource] = (),
) -> App:
    """Return the HTTP service over the store a URL names.

    Keys are required unless `config` says otherwise. Models are the operator's choice: no request can change them.
    `sources` are asked by `/orchestration/render` for every tenant, beside the contexts that a request names.
    `ConfigurationError` when it would be open to the network without keys.
    """
    return App(
        url,
        config or ServerConfig(),
        Engine(
            config=engine or ACMSConfig(),
            embedder=embedder,
            reflector=reflector,
            reranker=reranker,
            summarizer=summarizer,
            sources=tuple(sources),
        ),
    )
