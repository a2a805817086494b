"""The client when the network or the service fails: one effect each, typed errors, and the key is never shown."""

from __future__ import annotations

import asyncio
import json
import logging
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial

import pytest

from acms import (
    ACMSError,
    ConfigurationError,
    IdempotencyMismatchError,
    RetryConfig,
    StorageBusyError,
    ValidationError,
)
from acms.client import Client
from acms.client.transport import Transport, build_api_path
from acms.errors import (
    AuthenticationError,
    DeadlineError,
    HandleError,
    RateLimitError,
    StorageUnavailableError,
)
from tests.server.serving import Service

AT_ONCE = RetryConfig(max_attempts=4, base_delay=0)
KEY = "acms_0123456789abcdef_" + "s3cr3t" * 6


# ── a wire that loses answers ───────────────────────────────────────────────────────────────────────────────────────


@dataclass
class Wire:
    """Between a client and a service: passes requests on, and loses the answers to some."""

    target: int
    #: Requests whose answers are still to be lost, by what they begin with.
    lose: dict[bytes, int] = field(default_factory=dict)
    #: First lines of the requests that were passed on.
    requests: list[bytes] = field(default_factory=list)

    async def accept(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        server, to_server = await asyncio.open_connection("127.0.0.1", self.target)
        try:
            while request := await _read_message(client):
                to_server.write(request)
                reply = await _read_message(server)  # by now it was done
                self.requests.append(request.partition(b"\r\n")[0])
                wanted = next(
                    (head for head, left in self.lose.items() if left and request.startswith(head)), None
                )
                if wanted is not None:
                    self.lose[wanted] -= 1
                    return
                to_client.write(reply)
        finally:
            to_client.transport.abort()
            to_server.transport.abort()


async def _read_message(stream: asyncio.StreamReader) -> bytes:
    """Read one request or answer; nothing at the end."""
    try:
        head = await stream.readuntil(b"\r\n\r\n")
    except (asyncio.IncompleteReadError, ConnectionError):
        return b""
    length = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    return head + (await stream.readexactly(int(length[0].partition(b":")[2])) if length else b"")


@asynccontextmanager
async def listening_server(accept: Callable[..., object]) -> AsyncIterator[str]:
    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        await server.wait_closed()


@asynccontextmanager
async def lossy_client(service: Service, **given: object) -> AsyncIterator[tuple[Wire, Client]]:
    wire = Wire(int(service.url.rpartition(":")[2]))
    async with listening_server(wire.accept) as url, Client(url, retry=AT_ONCE, **given) as client:  # type: ignore[arg-type]
        yield wire, client


async def history_previews(client: Client, name: str) -> list[str]:
    return [one.preview for one in (await client.session(name).history(limit=500)).entries]


async def test_an_append_whose_answer_is_lost_stores_one_message(service: Service) -> None:
    async with lossy_client(service) as (wire, client):
        session = client.session("lost")
        await session.ingest("user", "a")
        wire.lose[b"POST /api/v1/contexts/"] = 2
        id = await session.ingest("user", "b")
        assert session.last_receipt is not None
        assert session.last_receipt.repeated
        assert [line.split()[0] for line in wire.requests[-3:]] == [b"POST"] * 3
        assert await history_previews(client, "lost") == ["a", "b"]
        assert (await session.get(id)).content == "b"


async def test_a_precondition_that_was_met_is_met_again(sqlite_service: Service) -> None:
    async with lossy_client(sqlite_service) as (wire, client):
        session = client.session("seen")
        first = await session.ingest("user", "a")
        wire.lose[b"POST /api/v1/contexts/"] = 1
        (receipt,) = await session.ingest_many([{"role": "user", "content": "b"}], last_message=first)
        assert receipt.repeated
        assert await history_previews(client, "seen") == ["a", "b"]


async def test_the_first_write_creates_one_context_whatever_is_lost(sqlite_service: Service) -> None:
    async with lossy_client(sqlite_service) as (wire, client):
        wire.lose[b"POST /api/v1/contexts"] = 2
        await client.session("first", namespace="firsts").ingest("user", "a")
        assert [one.message_count async for one in client.contexts(namespace="firsts")] == [1]


async def test_forks_jobs_and_tags_are_made_once(sqlite_service: Service) -> None:
    async with lossy_client(sqlite_service) as (wire, client):
        session = client.session("branching")
        for number in range(12):
            await session.ingest("user", f"The orders table {number} moves on day {number}.")
        wire.lose[b"POST /api/v1/contexts/"] = 1
        fork = await session.fork(at=3)
        wire.lose[b"POST /api/v1/contexts/"] = 1
        job = await session.compact(preserve_recent_count=2)
        await session.wait(job)
        wire.lose[b"PUT"] = 1
        assert await session.tag("here", 5) == 5
        wire.lose[b"DELETE"] = 1
        gone = await session.erase((await fork.history()).entries[0].id)
        assert gone.contexts
        assert len(await session.forks()) == len(await session.compactions()) == 1


async def test_what_would_do_something_else_again_is_sent_once(sqlite_service: Service) -> None:
    async with lossy_client(sqlite_service) as (wire, client):
        session = client.session("once")
        first = await session.ingest("user", "a")
        wire.lose[b"PATCH"] = 1
        with pytest.raises(StorageUnavailableError, match="may have arrived"):
            await session.replace(first, "b")
        assert (await session.get_session_stats()).version == 2, "it did arrive, and once"
        assert [one.content for one in await session.window(10)] == ["b"]
        await session.state("orders", "database", "MySQL")
        fork = await session.fork(at=2, session_id="of once")
        await fork.ingest("user", "c")
        changes: list[Callable[[], Awaitable[object]]] = [
            partial(session.cite, first),
            partial(session.merge, fork),
            partial(session.unstate, "orders", "database"),
            session.reflect,
            session.clear,
            session.close_episode,
            session.delete,
        ]
        for change in changes:
            wire.lose = {b"POST": 1, b"DELETE": 1}
            with pytest.raises(StorageUnavailableError):
                await change()
            if change is changes[0]:
                assert [one.count for one in await session.citations()] == [1]


async def test_a_list_that_was_handed_over_is_stored_once(sqlite_service: Service) -> None:
    async with lossy_client(sqlite_service) as (wire, client):
        session = client.session("synced")
        await session.ingest("user", "a")
        wire.lose[b"POST /api/v1/contexts/"] = 1
        done = await session.sync([{"role": "user", "content": "a"}, {"role": "user", "content": "b"}])
        assert len(done.unchanged) == 2, "the answer to the repeat"
        assert await history_previews(client, "synced") == ["a", "b"]


async def test_fifty_at_once_under_one_key_store_one_message(sqlite_service: Service) -> None:
    async with lossy_client(sqlite_service) as (wire, client):
        session = client.session("fifty")
        await session.ingest("user", "before")
        wire.lose[b"POST /api/v1/contexts/"] = 10
        ids = await asyncio.gather(
            *[session.ingest("user", "the same", idempotency_key="k") for _ in range(50)]
        )
        assert len(set(ids)) == 1
        assert await history_previews(client, "fifty") == ["before", "the same"]
        with pytest.raises(IdempotencyMismatchError):
            await session.ingest("user", "another", idempotency_key="k")


# ── a service that answers as it is told ────────────────────────────────────────────────────────────────────────────


@dataclass
class Script:
    """Answers each request with the next of some answers, the last one for ever; None hangs up."""

    answers: Sequence[bytes | None]
    requests: list[bytes] = field(default_factory=list)

    async def accept(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        try:
            while request := await _read_message(client):
                answer = self.answers[min(len(self.requests), len(self.answers) - 1)]
                self.requests.append(request)
                if answer is None:
                    return
                to_client.write(answer)
        finally:
            to_client.transport.abort()


def http_answer(status: int, body: str = "", **headers: str) -> bytes:
    written = body.encode("utf-8", "surrogatepass")
    lines = [f"HTTP/1.1 {status} X", f"Content-Length: {len(written)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode() + written


def problem_answer(status: int, code: str, **headers: str) -> bytes:
    body = f'{{"status": {status}, "code": "{code}", "detail": "as told", "retryable": true}}'
    return http_answer(status, body, Content_Type="application/problem+json", **headers)


FOUND = http_answer(200, '{"data": {"id": "c_1"}}')


def _summary_of_answer(given: bytes) -> str:
    head, _, body = given.partition(b"\r\n\r\n")
    return f"{head[9:12].decode()} {body[:24].decode()}"


async def test_lists_are_read_page_by_page() -> None:
    def page(*keys: str, cursor: str) -> bytes:
        shown = {"namespace": "n", "messageCount": 0, "totalTokens": 0, "latestVersion": 0, "counter": "none"}
        data = [{"id": key, "key": key, "createdAt": "2026-11-22T12:00:00Z", **shown} for key in keys]
        return http_answer(200, json.dumps({"data": data, "nextCursor": cursor or None}))

    script = Script([page("a", "b", cursor="after b"), page("c", cursor="")])
    async with listening_server(script.accept) as url, Client(url) as client:
        assert [one.key async for one in client.contexts(namespace="n")] == ["a", "b", "c"]
    assert [b"cursor=after" in request for request in script.requests] == [False, True]


async def test_it_waits_as_the_service_asks_and_otherwise_a_little_longer_each_time() -> None:
    script = Script(
        [
            problem_answer(429, "RATE_LIMITED", Retry_After="7"),
            problem_answer(503, "STORAGE_BUSY"),
            None,
            http_answer(502, "<html>nobody there</html>"),
            http_answer(503, "", Retry_After="Wed, 21 Oct 2015 07:28:00 GMT"),
            FOUND,
        ]
    )
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    retry = RetryConfig(max_attempts=6, base_delay=0.5, max_delay=30)
    async with listening_server(script.accept) as url:
        transport = Transport(
            url, None, timeout=30, retry=retry, why=True, verify=None, sleep=sleep, fraction=lambda: 1.0
        )
        try:
            reply = await transport.call(
                "POST", build_api_path("contexts"), body={}, headers={"idempotency-key": "same"}
            )
        finally:
            await transport.aclose()
    assert reply.data == {"id": "c_1"}
    assert slept == [7, 1, 2, 4, 8]
    assert all(b"idempotency-key: same" in request.lower() for request in script.requests)


async def test_who_asks_for_more_patience_than_there_is_gets_an_error_that_says_how_much() -> None:
    script = Script([problem_answer(429, "RATE_LIMITED", Retry_After="3600"), FOUND])
    async with listening_server(script.accept) as url, Client(url, retry=AT_ONCE) as client:
        with pytest.raises(RateLimitError) as caught:
            await client.session("s").tags()
    assert caught.value.retry_after == 3600
    assert len(script.requests) == 1


@pytest.mark.parametrize(
    ("given", "kind", "attempts"),
    [
        (problem_answer(503, "STORAGE_BUSY"), StorageBusyError, 4),
        (None, StorageUnavailableError, 4),
        (http_answer(504), StorageUnavailableError, 4),
        (problem_answer(409, "CONFLICT"), ACMSError, 1),
        (problem_answer(500, "ACMS"), ACMSError, 1),
        (http_answer(500, "<html>"), ACMSError, 1),
        (http_answer(401, "who?"), AuthenticationError, 1),
        (http_answer(301, Location="http://127.0.0.1:1/"), ConfigurationError, 1),
        (http_answer(200, "no JSON"), ACMSError, 1),
        (http_answer(200, '{"data": 7}'), ACMSError, 1),
        (http_answer(200, "[]"), ACMSError, 1),
        (http_answer(200, '{"data": {"id": "\\ud800"}}'), ACMSError, 1),
        (http_answer(200, '{"data": {"id": "\ud800"}}'), ACMSError, 1),
        (http_answer(200, '{"data": [{"id": "c_1"}]}'), ACMSError, 1),
        (http_answer(404, '{"code": "FROM_THE_FUTURE", "detail": "?"}'), ACMSError, 1),
        (problem_answer(400, "VALIDATION"), ValidationError, 1),
    ],
    ids=lambda value: (
        value.partition(b"\r\n\r\n")[2][:20].decode(errors="replace") or value[9:12].decode()
        if isinstance(value, bytes)
        else None
    ),
)
async def test_every_failure_is_a_typed_error(
    given: bytes | None, kind: type[ACMSError], attempts: int
) -> None:
    script = Script([given])
    async with listening_server(script.accept) as url, Client(url, retry=AT_ONCE) as client:
        with pytest.raises(kind) as caught:
            await client.session("s").tags()
    assert isinstance(caught.value, ACMSError)
    assert len(script.requests) == attempts


async def test_nobody_there_and_nobody_answering_are_told_apart() -> None:
    async with listening_server(Script([FOUND]).accept) as url:
        pass
    async with Client(url, retry=AT_ONCE) as client:
        with pytest.raises(StorageUnavailableError, match="cannot be reached"):
            await client.session("s").ingest("user", "a")

    silent: list[asyncio.StreamWriter] = []
    async with listening_server(lambda reader, writer: silent.append(writer)) as url:
        async with Client(url, timeout=0.05, retry=AT_ONCE) as client:
            with pytest.raises(DeadlineError):
                await client.session("s").ingest("user", "a")
        for writer in silent:
            writer.transport.abort()


async def test_a_service_that_is_silent_is_asked_again() -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    silent: list[asyncio.StreamWriter] = []
    async with listening_server(lambda reader, writer: silent.append(writer)) as url:
        transport = Transport(
            url, None, timeout=0.05, retry=AT_ONCE, why=True, verify=None, sleep=sleep, fraction=lambda: 1.0
        )
        try:
            with pytest.raises(DeadlineError):
                await transport.call(
                    "POST", build_api_path("contexts"), body={}, headers={"idempotency-key": "same"}
                )
        finally:
            await transport.aclose()
        for writer in silent:
            writer.transport.abort()
    assert len(slept) == AT_ONCE.max_attempts - 1


async def test_half_a_character_is_no_name_of_anything(sqlite_service: Service) -> None:
    async with Client(sqlite_service.url) as client:
        session = client.session("s")
        await session.ingest("user", "a")
        await session.tag("a?")
        with pytest.raises(ValidationError) as caught:
            await session.untag("a\ud800")
        assert caught.value.field == "name"
        with pytest.raises(ValidationError) as caught:
            [one async for one in client.contexts(namespace="\ud800")]
        assert caught.value.field == "namespace"


async def test_a_stream_that_is_no_text_is_told() -> None:
    async with listening_server(Script([http_answer(200, "\ud800\n")]).accept) as url, Client(url) as client:
        with pytest.raises(ACMSError, match="bytes that are not text"):
            [line async for line in client.export("c_1")]


async def test_a_stream_that_breaks_is_told() -> None:
    broken = b'HTTP/1.1 200 X\r\nContent-Length: 100\r\n\r\n{"acms": 1}\n'
    lines: list[str] = []

    async def cut(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await _read_message(reader)
        writer.write(broken)
        await writer.drain()
        writer.close()

    async def read(client: Client) -> None:
        async for line in client.export("c_1"):
            lines.append(line)

    async with listening_server(cut) as url, Client(url, retry=AT_ONCE) as client:
        with pytest.raises(StorageUnavailableError):
            await read(client)
        with pytest.raises(ACMSError):
            await client.restore([])
    assert lines == ['{"acms": 1}\n']


async def test_what_the_callers_lines_raise_is_raised(sqlite_service: Service) -> None:
    async def lines() -> AsyncIterator[str]:
        yield "{}\n"
        raise ZeroDivisionError

    async with Client(sqlite_service.url) as client:
        with pytest.raises(ZeroDivisionError):
            await client.restore(lines())


# ── what must not be seen ───────────────────────────────────────────────────────────────────────────────────────────


async def test_the_key_is_in_the_request_and_nowhere_else(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    script = Script(
        [
            http_answer(401, f"no such key: {KEY}"),
            None,
            http_answer(302, Location="http://elsewhere.example/"),
        ]
    )
    seen: list[str] = []
    async with listening_server(script.accept) as url, Client(url, api_key=KEY) as client:
        for _ in script.answers:
            try:
                await client.session("s").tags()
            except ACMSError as error:
                seen.append("".join(traceback.format_exception(error)) + repr(error.__dict__))
                cause: BaseException | None = error
                while cause is not None:
                    seen.append(repr(vars(cause)))
                    cause = cause.__cause__ or cause.__context__
        session = client.session("s")
        seen += [repr(client), repr(session), repr(vars(client)), repr(vars(vars(client)["_transport"]))]
    assert all(f"authorization: bearer {KEY}".encode() in one.lower() for one in script.requests)
    assert script.requests[0].lower().count(b"user-agent: acms-python/") == 1
    assert "s3cr3t" not in "".join(seen) + caplog.text


@pytest.mark.parametrize(
    "url",
    [
        "localhost:8000",
        "ftp://127.0.0.1",
        "http://",
        "http://user:pw@127.0.0.1",
        "http://127.0.0.1/?key=1",
        "http://a:b",
    ],
)
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Client(url)
    assert "pw" not in str(caught.value)


@pytest.mark.parametrize("key", ["", "two words", "line\nbreak", "schlüssel"])
def test_a_key_that_is_none_is_refused_and_not_shown(key: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Client("http://127.0.0.1:8000", api_key=key)
    assert not key or key not in str(caught.value)


def test_a_client_belongs_to_one_loop(sqlite_service: Service) -> None:
    client = Client(sqlite_service.url)

    async def use() -> None:
        await client.session("s").tags()

    with asyncio.Runner() as one, asyncio.Runner() as two:
        one.run(use())
        with pytest.raises(HandleError):
            two.run(use())
        one.run(client.aclose())
        two.run(use())
        two.run(client.aclose())
