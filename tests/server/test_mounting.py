"""The service as an ASGI application: its paths, applications mounted below it, its lifespan."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route, Router
from starlette.staticfiles import StaticFiles

from acms.server import App, ServerConfig, create_app
from acms.server.routes.table import OPERATIONS

OPEN = ServerConfig(auth="off")


async def _echo_request(request: Request) -> Response:
    made = PlainTextResponse((await request.body()) + request.url.path.encode())
    made.headers["content-security-policy"] = "default-src 'self'"
    made.set_cookie("a", "1")
    made.set_cookie("b", "2")
    return made


async def _raise_error(request: Request) -> Response:
    raise RuntimeError(request.url.path)


OTHER = Router([Route("/", _echo_request, methods=["GET", "POST"]), Route("/breaks", _raise_error)])


def _client_of_app(app: App) -> httpx2.AsyncClient:
    transport = httpx2.ASGITransport(app=app)
    return httpx2.AsyncClient(transport=transport, base_url="http://localhost", verify=False)


@pytest.fixture
async def app() -> AsyncIterator[App]:
    made = create_app("memory://", OPEN, embedder=None)
    async with made.lifespan_context(made):
        yield made


def _http_scope(method: str = "GET", path: str = "/health") -> dict[str, Any]:
    return {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "scheme": "http",
        "path": path, "query_string": b"", "root_path": "", "headers": [(b"host", b"localhost")],
    }  # fmt: skip


async def _ask_app(app: App, scope: dict[str, Any], **pieces: Any) -> list[Any]:
    """Call the app without a client and return the messages it sends."""
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", **pieces}

    async def send(message: Any) -> None:
        sent.append(message)

    await app(scope, receive, send)
    return sent


# ── paths ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "path",
    [
        "", "/", "//health", "/health/", "/health\n", "/API/v1/contexts", "/api/v1", "/api/v1/", "//api/v1/contexts",
        "/api/v1//contexts", "/api/v1/contexts/", "/api/v1/contexts/\n/messages/", "/api/v1/contexts//messages",
        "/api/v1/contexts/x/messages\n", "/api/v1/contexts/x/../y", "/api/v1/pins/a/b",
    ],
)  # fmt: skip
async def test_a_path_is_what_it_says_and_nothing_near_it(app: App, path: str) -> None:
    start, _ = await _ask_app(app, _http_scope(path=path))
    assert start["status"] == 404


async def test_every_path_leads_to_its_own_operations(app: App) -> None:
    for one in OPERATIONS:
        path = one.path if one.rooted else f"/api/v1{one.path}"
        first = next(route for route in app.routes if route.matches(_http_scope(path=path))[1])
        assert isinstance(first, Route)
        assert first.path == path, f"{first.path} stands in the way of {path}"


async def test_a_method_that_a_path_lacks_is_told_which_it_has(app: App) -> None:
    async with _client_of_app(app) as client:
        for method in ("DELETE", "OPTIONS", "BREW"):
            refused = await client.request(method, "/api/v1/contexts")
            assert (refused.status_code, refused.headers["allow"]) == (405, "GET, POST")


async def test_head_is_get_without_its_body(app: App) -> None:
    async with _client_of_app(app) as client:
        await client.post("/api/v1/contexts", json={"key": "k"})
        for path in ("/openapi.json", "/api/v1/contexts", "/nowhere", "/api/v1/export?namespace=default"):
            got, head = await client.get(path), await client.head(path)
            assert head.content == b""
            assert head.status_code == got.status_code
            assert head.headers.get("content-length") == got.headers.get("content-length"), path


async def test_a_web_socket_is_closed(app: App) -> None:
    app.mount("/other", OTHER)
    for path in ("/api/v1/contexts", "/other/"):
        sent = await _ask_app(app, {**_http_scope(path=path), "type": "websocket"})
        assert sent == [{"type": "websocket.close", "code": 1000}]


async def test_a_request_leaves_nothing_to_the_garbage_collector(app: App) -> None:
    for path in ("/health", "/nowhere", "/api/v1/contexts"):

        async def ask(path: str = path) -> None:
            scope = _http_scope(path=path)
            scope["connection"] = connection = [scope]  # as a server's connection knows its scope

            async def send(message: Any) -> None:
                assert connection, message

            await app(scope, lambda: asyncio.sleep(0, {"type": "http.request"}), send)
            connection.clear()

        await ask()
        gc.collect()
        gc.disable()
        try:
            for _ in range(10):
                await ask()
            assert gc.collect() < 10, path
        finally:
            gc.enable()


async def test_an_export_that_is_left_halfway_ends(app: App) -> None:
    async with _client_of_app(app) as client:
        await client.post("/api/v1/contexts", json={"key": "k"})
    sent: list[Any] = []
    began = asyncio.Event()

    async def receive() -> dict[str, Any]:
        await began.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)
        began.set()
        await asyncio.Event().wait()

    scope = {**_http_scope(path="/api/v1/export"), "query_string": b"namespace=default"}
    async with asyncio.timeout(300):
        await app(scope, receive, send)
    assert [one["type"] for one in sent] == ["http.response.start"]
    assert app.open_requests == 0
    assert (await app.stores.tenant(app.config.tenant)).users == 0


# ── mounted applications ────────────────────────────────────────────────────────────────────────────────────────────


async def test_another_application_is_served_below_a_path_and_the_service_is_as_before(app: App) -> None:
    async with _client_of_app(app) as client:
        before = await client.get("/openapi.json")
        app.mount("/other", OTHER)
        answer = await client.post("/other/", content=b"hello from ")
        assert (answer.status_code, answer.text) == (200, "hello from /other/")
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["x-request-id"].startswith("req_")
        assert answer.headers["content-security-policy"] == "default-src 'self'", "it said so itself"
        assert len(answer.headers.get_list("set-cookie")) == 2
        assert (await client.get("/openapi.json")).content == before.content
        assert (await client.post("/api/v1/contexts", json={})).status_code == 201
        assert (await client.get("/api/v1/contexts/")).status_code == 404
        moved = await client.get("/other")
        assert (moved.status_code, moved.headers["location"]) == (307, "http://localhost/other/")


async def test_what_is_mounted_at_the_root_does_not_hide_the_service(app: App, tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text("<p>page</p>")
    (tmp_path / "health").write_text("ill")
    app.mount("/", StaticFiles(directory=tmp_path, html=True))
    async with _client_of_app(app) as client:
        assert (await client.get("/")).text == "<p>page</p>"
        assert (await client.get("/health")).json()["status"] == "ok"
        assert (await client.get("/nowhere")).status_code == 404
        assert (await client.post("/api/v1/contexts", json={})).status_code == 201


async def test_what_is_mounted_is_behind_names_and_pages_but_not_behind_keys() -> None:
    app = create_app("memory://", ServerConfig(hosts=("localhost",)), embedder=None)
    app.mount("/other", OTHER)
    async with _client_of_app(app) as client:
        assert (await client.get("/api/v1/contexts")).status_code == 401
        assert (await client.get("/other/")).status_code == 200
        assert (await client.get("/other/", headers={"Host": "evil.example"})).status_code == 403
        page = {"Origin": "https://evil.example"}
        assert (await client.post("/other/", headers=page)).status_code == 403
    await app.stop()


async def test_what_breaks_in_a_mounted_application_is_a_problem(app: App) -> None:
    app.mount("/other", OTHER)
    async with _client_of_app(app) as client:
        answer = await client.get("/other/breaks")
    assert (answer.status_code, answer.json()["code"]) == (500, "ACMS")


# ── lifespan ────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_service_that_cannot_start_says_why_and_quotes_nobody() -> None:
    app = create_app("memory://", ServerConfig(), embedder=None)
    messages = [{"type": "lifespan.startup"}]
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return messages.pop(0)

    async def send(message: Any) -> None:
        sent.append(message)

    with pytest.raises(RuntimeError, match="a key is required"):
        await app({"type": "lifespan"}, receive, send)
    assert sent[0]["type"] == "lifespan.startup.failed"
    assert "acms keys create" in sent[0]["message"]
