"""A real server over loopback: uvicorn in a thread of the test process, and a client that calls it."""

from __future__ import annotations

import asyncio
import signal
import socket
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import httpx2
import pytest
import uvicorn
from sse_starlette.sse import AppStatus
from typer.testing import CliRunner, Result

from acms import ACMSConfig
from acms.cli.commands import app as commands
from acms.server import App, ServerConfig, create_app
from acms.server.connections import StoppingServer
from acms.server.tenants import Tenant
from tests.support.talk import LONG_EPISODES, PATIENT

T = TypeVar("T")

OPEN = ServerConfig(auth="off")
"""No key is needed: what is asked for is seen by everybody on this machine."""


@dataclass(frozen=True, kw_only=True)
class Service:
    """A service that runs, and a client of it whose paths begin below /api/v1."""

    app: App
    #: Of the server, without a slash at its end: `service.url + "/health"`.
    url: str
    client: httpx2.Client
    #: The event loop it runs on, in a thread of its own.
    loop: asyncio.AbstractEventLoop

    def inside(self, work: Callable[[Tenant], Awaitable[T]]) -> T:
        """Do something with the data it serves without a key, past its routes: what only the engine can set up."""

        async def worked() -> T:
            return await work(await self.app.stores.tenant(self.app.config.tenant))

        return asyncio.run_coroutine_threadsafe(worked(), self.loop).result(30)

    def create(self, **body: Any) -> str:
        """Create a context and return its id."""
        reply = self.client.post("/contexts", json=body)
        assert reply.status_code == 201, reply.text
        return str(reply.json()["data"]["id"])

    def say(self, context: str, *contents: str, role: str = "user") -> list[dict[str, Any]]:
        """Append messages and return them as they were stored."""
        body = {"messages": [{"role": role, "content": content} for content in contents]}
        reply = self.client.post(f"/contexts/{context}/messages", json=body)
        assert reply.status_code == 201, reply.text
        return list(reply.json()["data"])

    def talk(self, *contents: str, **body: Any) -> str:
        """Create a context that holds messages of a user, and return its id."""
        context = self.create(**body)
        if contents:
            self.say(context, *contents)
        return context

    def get(self, path: str, **query: Any) -> Any:
        """Return what a path answers with 200."""
        reply = self.client.get(path, params=query)
        assert reply.status_code == 200, reply.text
        return reply.json()


class _Server(uvicorn.Server):
    """A server that says when it listens."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listens = threading.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, and say so also when it failed."""
        self.loop = asyncio.get_running_loop()
        try:
            await super().startup(sockets)
        finally:
            self.listens.set()


@contextmanager
def serving(
    url: str,
    config: ServerConfig = OPEN,
    *,
    headers: Any = None,
    around: Callable[[App], App] = lambda app: app,
    **given: Any,
) -> Generator[Service]:
    """Serve a store on a free port until the block ends; `given` are the engine, the embedder… of `create_app`.

    `around` may mount something beside the API.

    Unless an engine is given, episodes end only by hand and what fails is tried again at once.
    """
    given.setdefault("engine", ACMSConfig(episodes=LONG_EPISODES, retry=PATIENT))
    app = around(create_app(url, config, **given))
    listening = socket.socket(
        socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP
    )  # asyncio sends at once on these
    listening.bind(("127.0.0.1", 0))
    server = _Server(
        uvicorn.Config(app, log_config=None, access_log=False, server_header=False, lifespan="on")
    )
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, name="service")
    thread.start()
    try:
        assert server.listens.wait(60)
        assert server.started, "the service did not start"
        at = f"http://127.0.0.1:{listening.getsockname()[1]}"
        with httpx2.Client(base_url=f"{at}/api/v1", headers=headers, timeout=60, verify=False) as client:
            yield Service(app=app, url=at, client=client, loop=server.loop)
    finally:
        server.should_exit = True
        thread.join(60)
        listening.close()
        assert not thread.is_alive(), "the service does not stop"


def visited(
    patch: pytest.MonkeyPatch, visit: Callable[[httpx2.AsyncClient, App], Awaitable[None]], *words: str
) -> Result:
    """Run a command that serves in this process, visit it once it listens, and stop it with SIGTERM."""
    serve = StoppingServer.serve
    patch.setattr(
        AppStatus, "should_exit", False
    )  # SIGTERM sets it, and no stream of MCP would begin any more

    async def served(self: StoppingServer, sockets: list[socket.socket]) -> None:
        running = asyncio.ensure_future(serve(self, sockets))
        try:
            at = f"http://127.0.0.1:{sockets[0].getsockname()[1]}"
            async with httpx2.AsyncClient(base_url=at, timeout=60, verify=False, trust_env=False) as client:
                assert (await client.get("/health")).status_code in (200, 403)  # it answers
                await visit(client, self.config.app)
            signal.raise_signal(signal.SIGTERM)
        finally:
            self.should_exit = True
            await running

    @asynccontextmanager
    async def collecting(_: object) -> AsyncGenerator[None]:
        yield  # what it does to the garbage of a whole process is not for the tests that come after

    def outside(number: int, _: object) -> None:
        reached.append(number)

    reached: list[int] = []
    before = signal.signal(signal.SIGTERM, outside)
    try:
        with patch.context() as patched:
            patched.setattr(StoppingServer, "serve", served)
            patched.setattr("acms.server.garbage.defer_full_collections", collecting)
            # It takes the signal for the end of the process: streams of events of later tests would end at once.
            patched.setattr("sse_starlette.sse.AppStatus.should_exit", False)
            done = CliRunner().invoke(commands, list(words))
        assert signal.getsignal(signal.SIGTERM) is outside, "it leaves signals as they were"
    finally:
        signal.signal(signal.SIGTERM, before)
    assert done.exit_code == 0, (done.output, done.exception)
    assert reached == [], "the signal ends the server, and the command ends by itself"
    return done
