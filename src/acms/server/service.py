"""The service behind its HTTP interface: stores of tenants, keys, audit, metrics, start and stop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from time import perf_counter

from acms.errors import ACMSError, ConfigurationError
from acms.log.validation import PAGE
from acms.model import ContextQuery, JobQuery, JobState, Json
from acms.observability.logging import log_event
from acms.providers.addresses import is_loopback_host
from acms.providers.tokens import default_counter
from acms.server.audit import Audit
from acms.server.auth import Gate
from acms.server.config import ServerConfig
from acms.server.grants import Grants
from acms.server.keys import Keys
from acms.server.metrics import Metrics
from acms.server.oidc import Tokens
from acms.server.rights import Rights
from acms.server.streams import Streams
from acms.server.tenants import SERVICE_TENANT, Engine, Stores, with_worker_enabled

LOOK_SECONDS = 15.0
"""Time between two checks for due jobs that other processes left without a commit, such as those of a dead worker."""
GLANCE_SECONDS = 1.0
"""Time between two checks for new commits in a store, after which jobs are looked for at once."""
QUIET_SECONDS = 1.0
"""Time after the last answer until the service counts as quiet."""


class Service:
    """The service over one store, whatever the protocol of its requests."""

    def __init__(
        self, url: str, config: ServerConfig, engine: Engine, describe: Callable[[], Mapping[str, Json]]
    ) -> None:
        self.config = config
        self.metrics = Metrics()
        counting_config = replace(engine.config, on_event=self.metrics.make_listener(engine.config.on_event))
        self.stores = Stores(
            url,
            with_worker_enabled(replace(engine, config=counting_config), config.works),
            max_ready_sessions=config.ready_sessions,
            read_only=not config.writes,
        )
        self.audit = Audit(self.stores)
        self.keys = Keys(self.stores, self.audit)
        self.grants = Grants(self.stores, self.keys)
        self.tokens = None if config.oidc is None else Tokens(config.oidc)
        self.gate = Gate(config, self.keys, self.grants, self.tokens)
        self.rights = Rights(self.gate, self.stores)
        self.streams = Streams(config.limits.key_streams)
        #: Returns the OpenAPI document.
        self.describe = describe
        #: Requests under way.
        self.open_requests = 0
        #: When the last one was answered.
        self.answered = 0.0
        self._tasks: list[asyncio.Task[None]] = []
        self.idle = asyncio.Event()
        self.idle.set()

    async def start(self) -> None:
        """Open a store, so that a wrong URL fails at once; raise `ConfigurationError` if no key was ever created."""
        default_counter().count("a")  # loads its vocabulary before the first request
        if self.config.auth == "off":
            await self.stores.tenant(self.config.tenant)
        elif self.tokens is not None:
            await self.tokens.open()
        elif not await self.keys.any():
            raise ConfigurationError(
                "a key is required, but none exists: acms keys create --tenant NAME",
                options=("acms keys create --tenant NAME, then serve", self._suggest_no_keys()),
            )
        self._tasks.append(asyncio.create_task(self.rights.run(), name="acms-server-rights"))
        if self.config.works:
            self._tasks.append(asyncio.create_task(self._run_due_jobs(), name="acms-server-jobs"))

    def _suggest_no_keys(self) -> str:
        """Return the option that serves without keys, which only a loopback address may."""
        if is_loopback_host(self.config.host):
            return "leave --auth out: without keys, only this machine is served"
        return "--host 127.0.0.1: on an address of this machine no key is needed"

    async def _run_due_jobs(self) -> None:
        """Run jobs that other processes requested, delayed or left unfinished.

        Stores that report changes are checked every `GLANCE_SECONDS`, and all stores every `LOOK_SECONDS`.
        """
        next_look = perf_counter() + LOOK_SECONDS
        while True:
            await asyncio.sleep(min(GLANCE_SECONDS, LOOK_SECONDS))
            looks_at_all = perf_counter() >= next_look
            if looks_at_all:
                next_look = perf_counter() + LOOK_SECONDS
            for tenant in self.stores.list_open():
                # Errors of a store are reported by the next request to its tenant.
                with suppress(ACMSError):
                    if looks_at_all or await tenant.has_changed():
                        tenant.start_worker()

    def is_quiet(self) -> bool:
        """Return whether no request was active for `QUIET_SECONDS`; open streams do not count."""
        had_pause = perf_counter() - self.answered > QUIET_SECONDS
        return had_pause and self.open_requests <= self.streams.count()

    async def measure_store(self) -> float:
        """Return the seconds that the store takes to answer; raise its error, or `TimeoutError` after two seconds."""
        began = perf_counter()
        async with asyncio.timeout(2.0):
            tenant = await self.stores.tenant(
                SERVICE_TENANT if self.config.auth == "required" else self.config.tenant
            )
            await tenant.handle.contexts(ContextQuery(limit=1))
        return perf_counter() - began

    async def serialize_metrics(self) -> bytes:
        """Return the metrics in the Prometheus format."""
        tenants = self.stores.list_open()
        due_jobs = JobQuery(states=(JobState.READY,), limit=PAGE)
        pages = await asyncio.gather(*[tenant.handle.jobs(due_jobs) for tenant in tenants])
        self.metrics.waiting.set(sum(len(page.items) for page in pages))
        return await asyncio.to_thread(self.metrics.serialize)

    async def stop(self) -> None:
        """Wait for open requests for at most `grace_seconds`, cancel the rest and close the stores."""
        self.streams.end()
        try:
            async with asyncio.timeout(self.config.grace_seconds):
                await self.idle.wait()
                await self.audit.idle()
        except TimeoutError:
            log_event(logging.WARNING, "stopped_with_requests", open=self.open_requests)
        await self.audit.stop()
        for task in self._tasks:
            task.cancel()
        if self.tokens is not None:
            await self.tokens.aclose()
        await self.stores.aclose()
