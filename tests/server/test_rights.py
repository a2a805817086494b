"""A request ends with the right to make it: event streams, exports, imports, waits for jobs, calls over MCP."""

from __future__ import annotations

import asyncio
import secrets
import socket
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import httpx2
import pytest
from mcp.server import Server

from acms import ACMSConfig
from acms.erasure import erase_context
from acms.errors import AuthenticationError, StorageUnavailableError
from acms.mcp.http import mount_mcp_server
from acms.server import keys, rights
from acms.server.audit import Audit
from acms.server.grants import Grants
from acms.server.keys import USUAL, Key, Keys
from acms.server.operation import Principal, Scope
from acms.server.rights import UNKNOWN_SECONDS, Right, Rights
from acms.server.tenants import Engine, Stores
from tests.server.guarded import Guarded, guarded_service, store_url
from tests.server.test_oidc import Signer, oidc_config
from tests.support.identity import serve_pages


@pytest.fixture(scope="module", params=["memory", "sqlite", "postgres"])
async def service(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Guarded]:
    async with guarded_service(store_url(request, tmp_path_factory)) as running:
        yield running


@pytest.fixture(autouse=True)
def _look_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rights, "LOOK_SECONDS", 0.02)
    monkeypatch.setattr(keys, "FRESH", 0.0)


@asynccontextmanager
async def rights_of_other_process(service: Guarded) -> AsyncGenerator[tuple[Keys, Grants]]:
    """Return keys and grants as another process has them; those of a store in memory are in this one alone."""
    if service.app.stores.url.startswith("memory"):
        yield service.app.keys, service.app.grants
        return
    stores = Stores(service.app.stores.url, Engine(config=ACMSConfig()))
    found = Keys(stores, Audit(stores))
    yield found, Grants(stores, found)
    await stores.aclose()


class Reader:
    """A key, a log that it may read, and its administrator."""

    def __init__(self, service: Guarded, tenant: str, key: Key, client: httpx2.AsyncClient) -> None:
        self.service, self.tenant, self.key, self.client = service, tenant, key, client
        self.admin = client
        self.context = ""

    @property
    def path(self) -> str:
        return f"/contexts/{self.context}/events"


async def reader_of(
    service: Guarded, *texts: str, namespaces: tuple[str, ...] | None = None, scopes: Any = USUAL
) -> Reader:
    """Make a tenant with one log in the namespace `orders`, and a key that reads it."""
    tenant = f"t-{secrets.token_hex(6)}"
    key, secret = await service.app.keys.create(tenant, scopes=scopes, namespaces=namespaces)
    found = Reader(service, tenant, key, await service.client(secret))
    found.admin = await service.key(tenant)
    made = await found.admin.post("/contexts", json={"key": "log", "namespace": "orders"})
    found.context = made.json()["data"]["id"]
    for text in texts:
        said = {"messages": [{"role": "user", "content": text}]}
        reply = await found.admin.post(f"/contexts/{found.context}/messages", json=said)
        assert reply.status_code == 201, reply.text
    return found


async def read_to_its_end(reader: Reader, withdraw: Callable[[], Awaitable[object]]) -> str:
    """Open a stream, withdraw the right to it once it has told everything, and return what came up to its end."""
    text = ""
    async with reader.client.stream("GET", reader.path) as reply:
        assert reply.status_code == 200
        async for piece in reply.aiter_text():
            text += piece
            if ": 1-" in text and "retry" in text and withdraw is not None:
                await withdraw()
                withdraw = _do_nothing
    while reader.service.app.streams.count():
        await asyncio.sleep(0.01)
    return text


async def _do_nothing() -> None:
    pass


def request_of(reader: Reader, method: str, path: str, *fields: str) -> bytes:
    """Return the head of a request, without the empty line at its end."""
    authorization = f"Authorization: {reader.client.headers['authorization']}"
    lines = (f"{method} /api/v1{path} HTTP/1.1", "Host: 127.0.0.1", authorization, *fields)
    return "".join([f"{line}\r\n" for line in lines]).encode()


# ── event streams ───────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("how", ["revoked", "expired"])
async def test_a_stream_ends_when_another_process_revokes_or_ends_its_key(service: Guarded, how: str) -> None:
    reader = await reader_of(service, "before")
    async with rights_of_other_process(service) as (others, _):

        async def withdraw() -> None:
            if how == "revoked":
                await others.revoke(reader.key.id)
            else:
                await others.rotate(reader.key.id, overlap=timedelta(0))

        assert "before" in await read_to_its_end(reader, withdraw)
    assert (await reader.client.get(reader.path)).status_code == 401


async def test_a_stream_ends_when_the_grant_is_withdrawn(service: Guarded) -> None:
    reader = await reader_of(service, "before", namespaces=("other",))
    grant = f"/namespaces/orders/grants/{reader.key.id}"
    assert (await reader.admin.put(grant, json={"actions": ["read"]})).status_code == 200
    async with rights_of_other_process(service) as (_, grants):
        await read_to_its_end(reader, lambda: grants.revoke(reader.tenant, "orders", reader.key.id))
    assert (await reader.client.get(reader.path)).status_code == 404


@pytest.mark.parametrize("how", ["delete", "erase", "erase entry"])
async def test_a_stream_ends_when_its_log_is_deleted_or_erased(service: Guarded, how: str) -> None:
    reader = await reader_of(service, "before")
    log = (await service.app.stores.tenant(reader.tenant)).handle

    async def withdraw() -> None:
        if how == "delete":
            assert (await reader.admin.delete(f"/contexts/{reader.context}")).status_code == 200
        elif how == "erase":
            await erase_context(log, reader.context)
        else:
            (entry,) = await log.read(reader.context)
            await reader.admin.delete(f"/contexts/{reader.context}/entries/{entry.id}")

    await read_to_its_end(reader, withdraw)
    status = (await reader.client.get(reader.path, params={"follow": False})).status_code
    assert status == (404 if how == "delete" else 200)


async def test_a_stream_ends_when_its_access_token_expires() -> None:
    async with serve_pages() as provider:
        signer = Signer("1")
        provider.publish(signer.published)
        async with guarded_service("memory://", oidc_config(provider.issuer, skew_seconds=0)) as service:
            reader = await reader_of(service, "before")
            end = int(time.time()) + 3600
            token = signer.token(provider.issuer, exp=end, tenant=reader.tenant, roles=["reader"])
            reader.client = await service.client(token)
            tokens = service.app.tokens
            assert tokens is not None

            async def let_it_expire() -> None:
                tokens.clock = lambda: end

            await read_to_its_end(reader, let_it_expire)
            assert (await reader.client.get(reader.path)).status_code == 401


async def test_a_stream_that_nobody_takes_ends_with_its_right_too(service: Guarded) -> None:
    reader = await reader_of(service, *["x" * 250_000] * 12)
    port = httpx2.URL(service.url).port
    with socket.socket() as deaf:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(deaf, ("127.0.0.1", port))
        await loop.sock_sendall(deaf, request_of(reader, "GET", reader.path) + b"\r\n")
        while not service.app.streams.count():
            await asyncio.sleep(0.01)
        async with rights_of_other_process(service) as (others, _):
            await others.revoke(reader.key.id)
        while service.app.streams.count():
            await asyncio.sleep(0.01)
        taken = 0
        try:
            while piece := await loop.sock_recv(deaf, 65_536):
                taken += len(piece)
        except ConnectionResetError:
            pass
        assert taken < 12 * 250_000, "the connection is dropped, with what it held"


# ── what lasts otherwise ────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_wait_for_a_job_ends_with_the_right(
    service: Guarded, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = await reader_of(service, "one", "two")
    tenant = await service.app.stores.tenant(reader.tenant)
    waiting = asyncio.Event()

    async def wait_for_ever(*_: Any, **__: Any) -> None:
        waiting.set()
        await asyncio.Event().wait()

    session = await tenant.session(reader.context)
    monkeypatch.setattr(session, "wait", wait_for_ever)
    asking = asyncio.ensure_future(
        reader.client.post(f"/contexts/{reader.context}/compact", json={}, headers={"Prefer": "wait=20"})
    )
    await waiting.wait()
    await service.app.keys.revoke(reader.key.id)
    assert (await asking).status_code == 401


async def test_an_import_ends_with_the_right(service: Guarded) -> None:
    reader = await reader_of(service, "one")
    line = b'{"role": "user", "content": "imported"}\n'
    head = request_of(reader, "POST", f"/import?contextId={reader.context}", "Transfer-Encoding: chunked")
    head += b"Content-Type: application/x-ndjson\r\n\r\n"
    taking, sending = await asyncio.open_connection("127.0.0.1", httpx2.URL(service.url).port)
    sending.write(head + b"%x\r\n%b\r\n" % (len(line), line))
    await sending.drain()
    while not service.app.open_requests:
        await asyncio.sleep(0.01)
    await service.app.keys.revoke(reader.key.id)
    assert b" 401 " in await taking.readline(), "the rest of the body is not waited for"
    sending.close()


async def test_an_export_breaks_off_with_the_right(service: Guarded) -> None:
    reader = await reader_of(service, *["x" * 250_000] * 12, scopes=tuple(Scope))
    port = httpx2.URL(service.url).port
    with socket.socket() as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(slow, ("127.0.0.1", port))
        path = f"/export?contextId={reader.context}"
        await loop.sock_sendall(slow, request_of(reader, "GET", path) + b"\r\n")
        text = await loop.sock_recv(slow, 100)
        await service.app.keys.revoke(reader.key.id)
        while service.app.open_requests:
            await asyncio.sleep(0.01)
        try:
            while piece := await loop.sock_recv(slow, 65_536):
                text += piece
        except ConnectionResetError:
            pass
        assert not text.endswith(b"0\r\n\r\n"), "the client sees that it is not whole"


async def test_a_call_over_mcp_ends_with_the_right() -> None:
    called = asyncio.Event()

    async def hang(*_: Any) -> Any:
        called.set()
        await asyncio.Event().wait()

    async with guarded_service("memory://") as service:
        mount_mcp_server(service.app, Server("hanging", on_call_tool=hang))
        key, secret = await service.app.keys.create("acme")
        client = await service.client(secret, Accept="application/json, text/event-stream")
        call = {
            "jsonrpc": "2.0",
            "id": 1,
            "method": "tools/call",
            "params": {"name": "any", "arguments": {}},
        }
        asking = asyncio.ensure_future(client.post(f"{service.url}/mcp/log", json=call))
        await called.wait()
        await service.app.keys.revoke(key.id)
        reply = await asking
        assert reply.status_code == 401, reply.text


# ── look-ups ────────────────────────────────────────────────────────────────────────────────────────────────────────


class _Gate:
    """A gate that answers as a test wants it."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.asked = 0

    async def confirm(self, *_: Any) -> Any:
        self.asked += 1
        if self.error is not None:
            raise self.error


async def hold_right(found: Rights, key: str, began: asyncio.Event) -> None:
    with Right(found, Principal(tenant="acme", key=key, scopes=frozenset()), {}):
        began.set()
        await asyncio.Event().wait()


async def test_a_right_that_cannot_be_looked_up_is_believed_for_a_while() -> None:
    gate, seconds, began = _Gate(), [0.0], asyncio.Event()
    found = Rights(gate, None, elapsed=lambda: seconds[0])  # type: ignore[arg-type]  # no context is named
    holding = asyncio.ensure_future(hold_right(found, "k", began))
    await began.wait()
    gate.error = StorageUnavailableError("down")
    seconds[0] = UNKNOWN_SECONDS / 2
    await found.recheck()
    assert not holding.done()
    gate.error = None
    await found.recheck()
    gate.error = StorageUnavailableError("down")
    seconds[0] = UNKNOWN_SECONDS
    await found.recheck()
    assert not holding.done()
    seconds[0] = 2 * UNKNOWN_SECONDS
    await found.recheck()
    with pytest.raises(StorageUnavailableError):
        await holding


async def test_requests_with_one_key_share_a_look_up_and_end_together() -> None:
    gate, seconds = _Gate(), [0.0]
    found = Rights(gate, None, elapsed=lambda: seconds[0])  # type: ignore[arg-type]  # no context is named
    holding: list[asyncio.Future[None]] = []
    for _ in range(64):
        began = asyncio.Event()
        holding.append(asyncio.ensure_future(hold_right(found, "k", began)))
        await began.wait()
    await found.recheck()
    assert gate.asked == 0, "they were admitted just now"
    seconds[0] = 1.0
    gate.error = AuthenticationError()
    await found.recheck()
    assert gate.asked == 1
    for one in holding:
        with pytest.raises(AuthenticationError):
            await one
    await found.recheck()
    assert gate.asked == 1
