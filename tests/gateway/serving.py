"""A gateway and its upstream over loopback, each in a thread of its own."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import httpx2
import uvicorn
from starlette.types import ASGIApp

from acms import ACMS
from acms.config import ACMSConfig
from acms.gateway import Gateway, GatewayConfig, create_gateway
from tests.gateway.upstream import Received, Upstream

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Running:
    """A gateway that runs, and its upstream."""

    gateway: Gateway
    upstream: Upstream
    url: str
    upstream_url: str
    client: httpx2.Client
    loop: asyncio.AbstractEventLoop

    def inside(self, work: Callable[[], Awaitable[T]]) -> T:
        """Do something on the loop of the gateway."""

        async def worked() -> T:
            return await work()

        return asyncio.run_coroutine_threadsafe(worked(), self.loop).result(60)

    def settle(self) -> None:
        """Wait until everything that was answered is stored."""

        async def waited() -> None:
            memory = await self.gateway.tenants.memory("default")
            await memory.idle()

        self.inside(waited)

    def sessions(self) -> dict[str, list[str]]:
        """Return the texts of all sessions by name."""
        self.settle()

        async def read() -> dict[str, list[str]]:
            memory = await self.gateway.tenants.memory("default")
            storage = memory.sessions.storage
            found: dict[str, list[str]] = {}
            page = await storage.sessions()
            for one in page.sessions:
                async with ACMS(one.session_id, storage, None, namespace=one.namespace) as session:
                    entries = await session.entries()
                    found[one.session_id] = [entry.content for entry in entries]
            return found

        return self.inside(read)

    @property
    def newest(self) -> Received:
        """What the upstream received last."""
        return self.upstream.received[-1]


@contextmanager
def serve_app(app: ASGIApp, lifespan: str = "on") -> Generator[tuple[str, asyncio.AbstractEventLoop]]:
    """Serve an application in a thread; yield its URL and its loop."""
    options: dict[str, Any] = {"log_level": "error", "ws": "wsproto" if lifespan == "ws" else "none"}
    config = uvicorn.Config(
        app,
        host="127.0.0.1",
        port=0,
        lifespan="on" if lifespan == "on" else "off",
        server_header=False,
        timeout_keep_alive=60,  # seconds: an idle connection outlives a pause of a busy machine
        **options,
    )
    server = uvicorn.Server(config)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=lambda: loop.run_until_complete(server.serve()), daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive(), "the server did not start"
        time.sleep(0.005)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}", loop
    finally:
        server.should_exit = True
        thread.join(20)
        loop.close()


@contextmanager
def running_gateway(
    config: GatewayConfig | None = None,
    url: str = "memory://",
    engine: ACMSConfig | None = None,
    memory_timeout: float = 60.0,
) -> Generator[Running]:
    """Serve a gateway in front of a scripted upstream; its memory may take a minute, however busy the machine is."""
    upstream = Upstream()
    with serve_app(upstream.app, "off") as (upstream_url, _):
        upstreams = {"anthropic": upstream_url, "openai": upstream_url}
        made = create_gateway(
            url,
            replace(config or GatewayConfig(), upstreams=upstreams, memory_timeout=memory_timeout),
            engine=engine,
            embedder=None,
        )
        with serve_app(made) as (gateway_url, loop):
            headers = {"authorization": "Bearer sk-test"}
            with httpx2.Client(base_url=gateway_url, headers=headers, timeout=60) as client:
                yield Running(
                    gateway=made,
                    upstream=upstream,
                    url=gateway_url,
                    upstream_url=upstream_url,
                    client=client,
                    loop=loop,
                )
