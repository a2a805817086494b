"""The door: names, pages, sizes, slowness, and what every answer carries."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace

import psutil
import pytest

from acms import ConfigurationError
from acms.server import Limits, ServerConfig
from acms.server.connections import MAX_PIPELINED, build_bounded_protocol
from acms.server.operation import Scope
from tests.faults._service import running_service as process
from tests.server.guarded import GUARDED, Guarded, guarded_service

PAGE = "https://app.example.org"
OPEN = ServerConfig(auth="off")


@pytest.fixture(scope="module")
async def open_service() -> AsyncIterator[Guarded]:
    async with guarded_service("memory://", OPEN) as running:
        yield running


@pytest.fixture(scope="module")
async def service() -> AsyncIterator[Guarded]:
    async with guarded_service("memory://", replace(GUARDED, origins=(PAGE,))) as running:
        yield running


# ── names ───────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_without_keys_only_names_of_this_machine_are_answered(open_service: Guarded) -> None:
    client = await open_service.client()
    for host in ("localhost", "LOCALHOST:8000", "127.0.0.1", "127.0.0.1:1", "[::1]:8000", "localhost."):
        assert (await client.get("/contexts", headers={"Host": host})).status_code == 200, host
    for host in ("evil.example", "localhost.evil.example", "127.0.0.1.nip.io:8000", "", "[::2]", "0.0.0.0"):
        for path in ("/contexts", f"{open_service.url}/health", "/nowhere"):
            reply = await client.get(path, headers={"Host": host})
            assert (reply.status_code, reply.json()["code"]) == (403, "FORBIDDEN"), host


async def test_with_keys_any_name_will_do_unless_names_are_listed(service: Guarded) -> None:
    client = await service.key("acme")
    assert (await client.get("/contexts", headers={"Host": "api.example.org"})).status_code == 200
    async with guarded_service("memory://", replace(GUARDED, hosts=("API.example.org",))) as listed:
        client = await listed.key("acme")
        assert (await client.get("/contexts", headers={"Host": "api.example.org:443"})).status_code == 200
        assert (await client.get("/contexts", headers={"Host": "localhost"})).status_code == 403


# ── pages ───────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_page_that_is_not_listed_changes_nothing_and_reads_nothing(service: Guarded) -> None:
    client = await service.key("acme")
    for origin in (
        "https://evil.example",
        "null",
        PAGE + ".evil.example",
        PAGE.upper(),
        "http://app.example.org",
    ):
        refused = await client.post("/contexts", json={"key": "x"}, headers={"Origin": origin})
        assert refused.status_code == 403, origin
        read = await client.get("/contexts", headers={"Origin": origin})
        preflight = await client.options(
            "/contexts", headers={"Origin": origin, "Access-Control-Request-Method": "POST"}
        )
        assert (read.status_code, preflight.status_code) == (200, 403)
        for reply in (refused, read, preflight):
            assert not [name for name in reply.headers if name.startswith("access-control-")]
    assert (await client.get("/contexts", params={"key": "x"})).json()["data"] == []


async def test_a_page_that_is_listed_may_do_what_its_key_may(service: Guarded) -> None:
    nobody, client = await service.client(), await service.key("acme", [Scope.APPEND])
    preflight = await nobody.options(
        "/contexts", headers={"Origin": PAGE, "Access-Control-Request-Method": "POST"}
    )
    assert preflight.status_code == 204
    assert preflight.headers["access-control-allow-origin"] == PAGE
    assert "authorization" in preflight.headers["access-control-allow-headers"]
    assert "access-control-allow-credentials" not in preflight.headers
    done = await client.post("/contexts", json={}, headers={"Origin": PAGE})
    forbidden = await client.get("/contexts", headers={"Origin": PAGE})
    unknown = await nobody.post("/contexts", json={}, headers={"Origin": PAGE})
    assert [one.status_code for one in (done, forbidden, unknown)] == [201, 403, 401]
    for reply in (done, forbidden, unknown):
        assert reply.headers["access-control-allow-origin"] == PAGE
        assert reply.headers["vary"] == "Origin"
        assert "etag" in reply.headers["access-control-expose-headers"]


@pytest.mark.parametrize("origin", ["*", "null", "https://app.example.org/", "app.example.org", ""])
def test_only_the_origin_of_a_page_can_be_listed(origin: str) -> None:
    with pytest.raises(ConfigurationError, match="origin"):
        ServerConfig(origins=(origin,))


# ── answers ─────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_every_answer_tells_browsers_to_keep_off_and_nothing_of_the_server(service: Guarded) -> None:
    nobody, client = await service.client(), await service.key("acme")
    for reply in (
        await client.get("/contexts"),
        await client.get("/contexts/c_0000000000000000"),
        await nobody.get("/contexts"),
        await nobody.get("/nowhere"),
        await nobody.put("/contexts"),
        await nobody.get(f"{service.url}/health"),
        await client.post("/contexts", content=b"{", headers={"Content-Type": "application/json"}),
    ):
        assert reply.headers["x-content-type-options"] == "nosniff"
        assert reply.headers["content-security-policy"].startswith("default-src 'none'")
        assert reply.headers["cache-control"] == "no-store"
        assert "server" not in reply.headers
        assert "x-powered-by" not in reply.headers


# ── sizes ───────────────────────────────────────────────────────────────────────────────────────────────────────────

JSON = {"Content-Type": "application/json"}


async def test_a_body_that_is_too_large_is_not_read() -> None:
    async with guarded_service("memory://", replace(GUARDED, limits=Limits(body_bytes=1000))) as service:
        client = await service.key("acme")

        async def endless() -> AsyncIterator[bytes]:
            for _ in range(1000):
                yield b" " * 100

        told = await client.post("/contexts", content=b" " * 1001, headers=JSON)
        assert (told.status_code, told.json()["code"]) == (413, "TOO_LARGE")
        found = await client.post("/contexts", content=endless(), headers=JSON)
        assert (found.status_code, found.json()["code"]) == (413, "TOO_LARGE")
        assert (await client.post("/contexts", json={})).status_code == 201


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 100_000,
        b'{"metadata":' * 10_000 + b"1" + b"}" * 10_000,
        b'{"metadata":{"a":' + b"[" * 500 + b"]" * 500 + b"}}",
        b'{"metadata":{"a":' + b"9" * 10_000 + b"}}",
        b'{"metadata":{"a":1e999}}',
        b'{"metadata":{"a":NaN}}',
        b'{"name":"\\ud800"}',
        b'{"name":"\\u0000"}',
        b'{"name":"\xff"}',
        b'{"name":1}',
        b'{"unknown":1}',
        b"\xef\xbb\xbf{}",
        b"null",
        b"",
        b"\0",
    ],
    ids=range(15),
)
async def test_a_body_that_is_odd_is_refused(open_service: Guarded, body: bytes) -> None:
    client = await open_service.client()
    reply = await client.post("/contexts", content=body, headers=JSON)
    if reply.status_code == 201:
        assert body == b"", "an empty one is left out"
    else:
        assert (reply.status_code, reply.json()["code"]) in {(400, "VALIDATION"), (413, "TOO_LARGE")}
    assert (await client.get("/contexts")).status_code == 200


async def test_a_body_that_does_not_arrive_is_given_up() -> None:
    async with guarded_service(
        "memory://", replace(GUARDED, limits=Limits(deadline_seconds=0.05))
    ) as service:
        _, secret = await service.app.keys.create("acme")
        client = await service.client(secret)

        host, _, port = service.url.partition("//")[2].partition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(
            f"POST /api/v1/contexts HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {secret}\r\n"
            'Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{"na'.encode()
        )
        assert (await reader.readline()).split()[1] == b"503"
        writer.close()
        await writer.wait_closed()
        async with asyncio.timeout(300):  # each try has as little time
            while (await client.post("/contexts", json={})).status_code != 201:
                pass


async def test_odd_requests_break_nothing(open_service: Guarded) -> None:
    client = await open_service.client()
    base = open_service.url
    for method, path in (
        ("GET", "/contexts?" + "&".join(f"a{n}=1" for n in range(200))),
        ("GET", "/contexts?limit=%FF"),
        ("GET", "/contexts?limit=1&limit=2"),
        ("GET", "/contexts?cursor=%00"),
        ("GET", "/contexts/%00"),
        ("GET", "/contexts/%ED%A0%80"),
        ("GET", "/contexts/" + "x" * 5000),
        ("GET", "/contexts/..%2f..%2fetc%2fpasswd"),
        ("DELETE", "/contexts"),
        ("TRACE", "/contexts"),
        ("GET", f"{base}//api/v1/contexts"),
    ):
        reply = await client.request(method, path)
        assert 400 <= reply.status_code < 500, (method, path, reply.status_code)
        assert reply.headers["content-type"] == "application/problem+json"
    assert (await client.get("/contexts")).status_code == 200


# ── connections ─────────────────────────────────────────────────────────────────────────────────────────────────────


async def _send_pieces(url: str, *pieces: bytes) -> bytes:
    """Send pieces over a connection of its own and return everything that is said until it is closed.

    An empty piece waits for an answer.
    """
    host, _, port = url.partition("//")[2].partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    found = b""
    with suppress(ConnectionError):
        for piece in pieces:
            found += b"" if piece else await reader.readuntil(b"}")
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0.005)  # so that it is read by itself
        while piece := await reader.read(65_536):
            found += piece
    writer.close()
    with suppress(ConnectionError):
        await writer.wait_closed()
    return found


GET = b"GET /health HTTP/1.1\r\nHost: localhost\r\n"


POST = b"POST /api/v1/contexts HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n\r\n"
NOWHERE = b"POST /nowhere HTTP/1.1\r\nHost: localhost\r\n" + CHUNKED
LINE, LINES = b"x: " + b"a" * 5000, b"a: b\r\n" * 1000


@pytest.fixture(scope="module")
async def short() -> AsyncIterator[str]:
    """A service whose connections have little time."""
    async with guarded_service(
        "memory://", OPEN, http=build_bounded_protocol(head_bytes=4096, head_seconds=0.2)
    ) as running:
        yield running.url


@pytest.fixture(scope="module")
async def narrow() -> AsyncIterator[str]:
    """A service whose connections have little room, and time enough."""
    async with guarded_service(
        "memory://", OPEN, http=build_bounded_protocol(head_bytes=4096, head_seconds=60)
    ) as running:
        yield running.url


@pytest.mark.parametrize("piece", [LINE, LINE + b"\r\n\r\n", LINES, LINES + b"\r\n"])
async def test_header_fields_beyond_their_size_are_refused(narrow: str, piece: bytes) -> None:
    assert (await _send_pieces(narrow, GET, piece)).startswith(b"HTTP/1.1 431 ")
    said = await _send_pieces(narrow, GET + b"\r\n", b"", GET, piece)
    assert said.startswith(b"HTTP/1.1 200 ")
    assert said.count(b"HTTP/1.1 431 ") == 1


@pytest.mark.parametrize("piece", [b"G" * 5000, b"GET /" + b"x" * 5000, b"\r\n" * 2500])
async def test_a_request_line_beyond_its_size_is_refused(narrow: str, piece: bytes) -> None:
    assert (await _send_pieces(narrow, piece)).startswith((b"HTTP/1.1 431 ", b"HTTP/1.1 400 "))


@pytest.mark.parametrize(
    "piece",
    [
        b"0\r\n" + LINE,
        b"0\r\n" + LINE + b"\r\n\r\n",
        b"0\r\n" + LINES,
        b"0\r\n" + LINES + b"\r\n",
        b"2;a=" + b"b" * 5000,
    ],
    ids=["line", "line that ends", "lines", "lines that end", "chunk"],
)
async def test_what_follows_a_body_is_bounded_like_what_precedes_it(narrow: str, piece: bytes) -> None:
    said = await _send_pieces(narrow, POST + CHUNKED + b"2\r\n{}\r\n", piece)
    assert said.startswith(b"HTTP/1.1 431 ")
    said = await _send_pieces(narrow, GET + b"\r\n", b"", POST + CHUNKED + b"2\r\n{}\r\n", piece)
    assert said.startswith(b"HTTP/1.1 200 ")
    assert said.count(b"HTTP/1.1 431 ") == 1
    # It was answered before: nothing can be said any more.
    said = await _send_pieces(narrow, NOWHERE + b"2\r\n{}\r\n", b"", piece)
    assert said.startswith(b"HTTP/1.1 404 ")
    assert said.count(b"HTTP/1.1") == 1


@pytest.mark.parametrize("piece", [LINE, LINES])
async def test_header_fields_after_a_body_that_nobody_read_are_bounded(narrow: str, piece: bytes) -> None:
    said = await _send_pieces(narrow, NOWHERE + b"2\r\n{}\r\n", b"", b"0\r\n\r\n" + GET, piece)
    assert said.startswith(b"HTTP/1.1 404 ")
    assert said.count(b"HTTP/1.1 431 ") == 1


def _post_request(body: bytes) -> bytes:
    return POST + b"Content-Length: %d\r\n\r\n" % len(body) + body


@pytest.mark.parametrize(
    ("head", "field"),
    [
        (b"GET /api/v1/contexts HTTP/1.1\r\n", "host"),
        (b"GET /api/v1/contexts HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n", "host"),
        (
            b"GET /api/v1/contexts HTTP/1.1\r\nHost: a\r\nAuthorization: a\r\nauthorization: b\r\n",
            "authorization",
        ),
        (b"GET /api/v1/contexts?limit=1_000 HTTP/1.1\r\nHost: localhost\r\n", "limit"),
        (b"GET /api/v1/contexts?limit=%2B1 HTTP/1.1\r\nHost: localhost\r\n", "limit"),
        (b"GET /api/v1/contexts?limit=1&limit=1 HTTP/1.1\r\nHost: localhost\r\n", "limit"),
        (_post_request(b'{"key":"a","key":"b"}'), "body"),
        (_post_request(rb'{"metadata":{"a":1,"\u0061":2}}'), "body"),
    ],
    ids=range(8),
)
async def test_what_may_be_read_in_two_ways_is_refused(
    open_service: Guarded, head: bytes, field: str
) -> None:
    end = b"" if head.startswith(b"POST") else b"\r\n"
    said = await _send_pieces(
        open_service.url, head + end, b"", b"GET / HTTP/1.0\r\nConnection: close\r\n\r\n"
    )
    assert said.startswith(b"HTTP/1.1 400 "), said
    assert f'"field":"{field}"'.encode() in said
    assert b'"code":"VALIDATION"' in said


async def test_requests_that_wait_for_their_turn_are_bounded(narrow: str) -> None:
    said = await _send_pieces(
        narrow, (GET + b"\r\n") * (MAX_PIPELINED + 1), b"", (GET + b"\r\n") * 10 * MAX_PIPELINED
    )
    assert 0 < said.count(b"HTTP/1.1 200 ") <= MAX_PIPELINED + 1
    assert b"HTTP/1.1 4" not in said, "it would be taken for the answer to another request"


def test_trailer_fields_that_never_end_do_not_fill_the_memory() -> None:
    """Without a key 40 MB of them once took a gigabyte."""
    with process("memory://", "--auth", "off") as service, service.client() as client:
        assert client.get("/contexts").status_code == 200
        held = psutil.Process(service.process.pid).memory_info().rss
        block = b"".join(b"x-t%06d: " % number + b"a" * 64 + b"\r\n" for number in range(800))
        sent, address = 0, ("127.0.0.1", int(service.url.rpartition(":")[2]))
        with socket.create_connection(address, timeout=60) as connection, suppress(OSError):
            connection.sendall(POST + CHUNKED + b"2\r\n{}\r\n0\r\n")
            while sent < 40_000_000:
                connection.sendall(block)
                sent += len(block)
        assert sent < 40_000_000
        assert psutil.Process(service.process.pid).memory_info().rss < held + 32_000_000


async def test_trailer_fields_are_no_header_fields(service: Guarded) -> None:
    _, secret = await service.app.keys.create("acme")
    key = f"Authorization: Bearer {secret}\r\n".encode()
    close, body = b"Connection: close\r\n", b"2\r\n{}\r\n0\r\n"
    said = await _send_pieces(service.url, POST + close + CHUNKED + body + key + b"\r\n")
    assert said.startswith(b"HTTP/1.1 401 ")
    said = await _send_pieces(
        service.url, POST + close + key + CHUNKED + body + b"Authorization: none\r\n\r\n"
    )
    assert said.startswith(b"HTTP/1.1 201 ")


async def test_header_fields_that_do_not_arrive_are_given_up(short: str) -> None:
    for pieces in ((), (b"G",), (GET,), (GET + b"X-A: 1\r\n",), (GET + b"\r\n", b"", GET)):
        assert b"HTTP/1.1 408 " in await _send_pieces(short, *pieces), pieces


async def test_a_body_that_nobody_waits_for_does_not_keep_a_connection(short: str) -> None:
    head = b"POST /nowhere HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n"
    said = await _send_pieces(short, head + b"x", b"", b"x" * 1000)
    assert said.startswith(b"HTTP/1.1 404 ")
    assert said.count(b"HTTP/1.1") == 1


async def test_a_long_body_is_no_long_header(short: str) -> None:
    data = b'{"name":"' + b"x" * 200 + b'"}' + b" " * 100_000
    head = b"POST /api/v1/contexts HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    said = await _send_pieces(
        short, head + b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(data), data
    )
    assert said.startswith(b"HTTP/1.1 201 ")
    again = GET + b"\r\n"
    assert (await _send_pieces(short, *[again] * 50, GET + b"Connection: close\r\n\r\n")).count(
        b"HTTP/1.1 200 "
    ) == 51
