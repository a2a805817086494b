"""A service that asks for keys, in the event loop of the test: a real server on a free port, and clients with keys."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import httpx2
import pytest
import uvicorn

from acms import ACMSConfig
from acms.server import App, Limits, ServerConfig, create_app
from acms.server.connections import build_bounded_protocol
from acms.server.operation import Scope

GUARDED = ServerConfig(auth="required", limits=Limits(key_rate=1e6, key_burst=10**6, stranger_burst=1000))
"""A key is needed; limits are out of the way."""


def store_url(request: pytest.FixtureRequest, folders: pytest.TempPathFactory) -> str:
    """Return the URL of a store of the kind that the fixture's parameter names, for all tenants."""
    if request.param == "postgres":
        return str(request.getfixturevalue("postgres_home"))
    return "memory://" if request.param == "memory" else f"sqlite:///{folders.mktemp('service') / 'log.db'}"


@dataclass(kw_only=True)
class Guarded:
    """A service that runs."""

    app: App
    url: str
    stack: AsyncExitStack = field(default_factory=AsyncExitStack)

    async def client(self, secret: str = "", **headers: str) -> httpx2.AsyncClient:
        """Return a client with a key, or without; its paths begin below /api/v1."""
        if secret:
            headers = {"Authorization": f"Bearer {secret}", **headers}
        made = httpx2.AsyncClient(
            base_url=f"{self.url}/api/v1", headers=headers, timeout=60, verify=False, trust_env=False
        )
        return await self.stack.enter_async_context(made)

    async def key(
        self, tenant: str, scopes: Iterable[Scope] = tuple(Scope), expires: timedelta | None = None
    ) -> httpx2.AsyncClient:
        """Make a key and return a client with it."""
        _, secret = await self.app.keys.create(tenant, scopes=scopes, expires=expires)
        return await self.client(secret)


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listens = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        try:
            await super().startup(sockets)
        finally:
            self.listens.set()


@asynccontextmanager
async def guarded_service(url: str, config: ServerConfig = GUARDED, **given: Any) -> AsyncIterator[Guarded]:
    """Serve a store until the block ends; the operator's own key exists already."""
    http = given.pop("http", None) or build_bounded_protocol()
    app = create_app(url, config, engine=given.pop("engine", ACMSConfig()), **given)
    if config.auth == "required":
        await app.keys.create("operator", scopes=[Scope.ADMIN])
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.bind(("127.0.0.1", 0))
    server = _Server(
        uvicorn.Config(app, log_config=None, access_log=False, server_header=False, lifespan="on", http=http)
    )
    running = asyncio.ensure_future(server.serve(sockets=[listening]))
    try:
        await server.listens.wait()
        assert server.started
        service = Guarded(app=app, url=f"http://127.0.0.1:{listening.getsockname()[1]}")
        async with service.stack:
            yield service
    finally:
        server.should_exit = True
        await running
        listening.close()
