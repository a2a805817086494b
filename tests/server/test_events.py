"""The stream of events over HTTP: server-sent events that a reader resumes, within its rights."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import httpx2
import pytest

from acms import NotFoundError, open_storage
from acms.client import Client
from acms.errors import RateLimitError
from acms.events import follow, pages
from acms.privacy.redactor import NO_REDACTION
from acms.server import Limits, ServerConfig, dispatch
from acms.server.operation import Scope
from acms.server.routes import events
from acms.server.streams import PIECE_BYTES, Streams
from acms.sync import Client as BlockingClient
from acms.testing.logs import append_drafts, create_log, draft_message
from tests.server.guarded import guarded_service
from tests.server.serving import Service, serving


def parse_events(text: str) -> list[dict[str, str]]:
    """Read server-sent events, each as its fields; comments are under the name ""."""
    found = [block.split("\n") for block in text.split("\n\n") if block]
    return [
        {name: value.removeprefix(" ") for name, _, value in (line.partition(":") for line in one)}
        for one in found
    ]


def read_events(service: Service, context: str, after: str = "0", **headers: str) -> list[dict[str, str]]:
    """Return the events up to the end of a log."""
    reply = service.client.get(
        f"/contexts/{context}/events", params={"after": after, "follow": "false"}, headers=headers
    )
    assert reply.status_code == 200, reply.text
    assert reply.headers["content-type"].startswith("text/event-stream")
    return [one for one in parse_events(reply.text) if "data" in one]


def test_entries_and_jobs_come_as_events_whose_ids_resume_the_stream(service: Service) -> None:
    context = service.talk("one", "two")
    service.client.post(
        f"/contexts/{context}/messages",
        json={"messages": [{"role": "user", "content": "card 4111 1111 1111 1111", "privacy": "redact"}]},
    )
    service.client.delete(f"/contexts/{context}/entries/{service.say(context, 'gone')[0]['id']}")
    found = read_events(service, context)
    entries = [json.loads(one["data"]) for one in found if one["event"] == "entry"]
    assert [(one["version"], one["content"]) for one in entries] == [
        (1, "one"), (2, "two"), (3, "card [REDACTED: credit_card]"), (4, ""),
    ]  # fmt: skip
    assert entries[3]["state"] == "erased"
    assert entries[0]["id"].startswith("m_")
    for at, one in enumerate(found):
        assert read_events(service, context, one["id"]) == found[at + 1 :]
        assert read_events(service, context, "0", **{"Last-Event-ID": one["id"]}) == found[at + 1 :]
    for after in ("x", "1-"):
        reply = service.client.get(f"/contexts/{context}/events", params={"after": after})
        assert (reply.status_code, reply.json()["errors"][0]["field"]) == (400, "after")
    assert service.client.get(f"/contexts/{context}/events", params={"after": "99"}).status_code == 404
    assert service.client.head(f"/contexts/{context}/events").status_code == 200
    wait_until_closed(service)


def wait_until_closed(service: Service) -> None:
    """Wait until no stream is open any more."""
    for _ in range(200):
        if service.app.streams.count() == 0:
            return
        threading.Event().wait(0.02)
    raise AssertionError("a stream goes on without its reader")


@contextmanager
def open_stream(service: Service, context: str, after: str = "0") -> Generator[Iterator[str]]:
    """Open a stream, and return its lines."""
    with service.client.stream("GET", f"/contexts/{context}/events", params={"after": after}) as reply:
        assert reply.status_code == 200
        yield reply.iter_lines()


def test_a_stream_goes_on_with_what_happens_and_ends_with_its_reader(sqlite_service: Service) -> None:
    service = sqlite_service
    context = service.talk("one")
    with open_stream(service, context) as lines:
        assert next(lines) == "retry: 2000"
        assert [next(lines) for _ in range(3)][1:] == ["event: entry", "id: 1"]
        while not next(lines).startswith(": "):  # everything was told so far
            pass
        assert next(lines) == "id: 1-0"
        assert service.app.streams.count() == 1
        service.say(context, "two")
        while not (line := next(lines)).startswith("data"):
            pass
        assert json.loads(line[6:])["content"] == "two"
        job = service.client.post(f"/contexts/{context}/compact", json={}).json()["data"]["job"]
        states: list[str] = []
        while "done" not in states:
            if (line := next(lines)).startswith("data"):
                shown = json.loads(line[6:])
                assert (shown["id"], shown["kind"]) == (job["id"], "compact")
                states.append(shown["state"])
    wait_until_closed(service)


async def test_a_stream_is_bound_by_scope_tenant_and_number() -> None:
    limits = Limits(key_rate=1e6, key_burst=10**6, key_streams=2)
    async with guarded_service("memory://", ServerConfig(auth="required", limits=limits)) as service:
        one, other = await service.key("acme"), await service.key("other")
        made = await one.post("/contexts", json={"key": "user_123"})
        path = f"/contexts/{made.json()['data']['id']}/events"
        assert (await other.get(path)).status_code == 404
        assert (await (await service.client()).get(path)).status_code == 401
        blind = await service.key("acme", [Scope.APPEND])
        assert (await blind.get(path)).status_code == 403
        async with one.stream("GET", path) as first, one.stream("GET", path) as second:
            assert (first.status_code, second.status_code) == (200, 200)
            refused = await one.get(path)
            assert (refused.status_code, refused.headers["retry-after"]) == (429, "5")
            again = await service.key("acme")
            async with again.stream("GET", path) as third:
                assert third.status_code == 200
        while service.app.streams.count():
            await asyncio.sleep(0.01)
        assert (await one.get(path, params={"follow": "false"})).status_code == 200


def test_who_does_not_read_is_cut_off_and_the_rest_is_not_read_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dispatch, "SEND_SECONDS", 0.3)
    with serving("memory://") as service:
        context = service.create()
        for _ in range(40):
            service.say(context, "x" * 250_000)
        at = urlsplit(service.url)
        with socket.socket() as deaf:
            deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            deaf.connect((at.hostname, at.port))
            deaf.sendall(
                f"GET /api/v1/contexts/{context}/events HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode()
            )
            while service.app.streams.count() == 0:
                threading.Event().wait(0.01)
            wait_until_closed(service)


class Stalled:
    """A stream whose client takes the first piece of an entry and no more."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.stalls = asyncio.Event()

    async def receive(self) -> Any:
        await asyncio.Event().wait()

    async def send(self, message: Any) -> None:
        self.pieces.append(message.get("body", b""))
        if b"event: entry" in self.pieces[-1]:
            self.stalls.set()
            await asyncio.Event().wait()


async def test_clients_that_take_nothing_hold_one_page_together_which_is_read_and_serialized_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read: list[int] = []
    serialized: list[int] = []
    monkeypatch.setattr(pages, "FRESH", 3600.0)
    read_page, serialize = pages.PageReader._load, events.serialize_entry

    async def counted_read(self: Any, *given: Any) -> pages.Page:
        page = await read_page(self, *given)
        read.append(len(page.entries))
        return page

    def counted_serialize(entry: Any) -> bytes:
        serialized.append(entry.version)
        return serialize(entry)

    monkeypatch.setattr(pages.PageReader, "_load", counted_read)
    monkeypatch.setattr(events, "serialize_entry", counted_serialize)
    async with (
        guarded_service("memory://", ServerConfig(auth="off")) as service,
        Client(service.url) as client,
    ):
        session = client.session("user_123")
        await session.ingest_many([{"role": "user", "content": "x" * 200_000}] * 4)
        path = f"/api/v1/contexts/{await session.log.require_id()}/events"
        scope = {
            "type": "http", "method": "GET", "path": path, "raw_path": path.encode(), "query_string": b"",
            "headers": [(b"host", b"127.0.0.1")], "http_version": "1.1", "scheme": "http", "root_path": "",
        }  # fmt: skip
        stalled = [Stalled() for _ in range(64)]
        running = [
            asyncio.ensure_future(service.app({**scope}, one.receive, one.send))  # type: ignore[arg-type]
            for one in stalled
        ]
        for one in stalled:
            await one.stalls.wait()
        assert (read, serialized) == ([1], [1])
        assert {max(map(len, one.pieces)) for one in stalled} == {PIECE_BYTES}
        assert service.app.streams.count() == 64
        for one in running:
            one.cancel()
        await asyncio.wait(running)


async def test_a_page_has_few_characters_whatever_the_entries_have() -> None:
    async with open_storage("memory://") as storage:
        context = await create_log(storage)
        await append_drafts(
            storage, context, *[draft_message("short")] * 40, *[draft_message("x" * 40_000)] * 5
        )
        reader = pages.get_page_reader(storage)

        async def size(after: int) -> int:
            span = pages.PageSpan(
                context=context.id, after=after, version=45, epoch=0, limit=pages.PAGE_ENTRIES
            )
            return len((await reader.read(span, NO_REDACTION)).entries)

        assert [await size(after) for after in (0, 30, 40, 44)] == [16, 11, 1, 1]


def test_a_key_opens_streams_as_often_as_it_may_keep_them_open_and_then_waits() -> None:
    seconds = [0.0]
    streams = Streams(8, elapsed=lambda: seconds[0])
    for _ in range(16):
        streams.begin("busy")()
    with pytest.raises(RateLimitError, match="resume with Last-Event-ID") as refused:
        streams.begin("busy")
    assert refused.value.retry_after == 2.0
    streams.begin("other")()
    seconds[0] += refused.value.retry_after
    streams.begin("busy")()
    assert streams.count() == 0


async def test_a_client_goes_on_where_it_was_and_tells_what_cannot_pass(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(follow, "POLL_SECONDS", (0.02, 0.05))
    async with (
        guarded_service("memory://", ServerConfig(auth="off")) as service,
        Client(service.url) as client,
    ):
        session = client.session("user_123")
        with pytest.raises(NotFoundError):
            await anext(session.events())
        await session.ingest_many([{"role": "user", "content": str(n)} for n in range(50)])
        found = [one async for one in session.events(follow=False)]
        assert [one.entry.version for one in found if one.entry] == list(range(1, 51))
        assert found[6].entry == await session.get(found[6].entry.id) if found[6].entry else False
        rest = [one async for one in session.events(after=found[6].cursor, follow=False)]
        assert rest == found[7:]
        with pytest.raises(NotFoundError, match="the log ends at version 50"):
            await anext(session.events(after=99))
        live = session.events(after=50)
        waiting = asyncio.ensure_future(anext(live))
        await session.ingest("user", "later")
        event = await asyncio.wait_for(waiting, 60)
        assert event.entry is not None
        assert event.entry.content == "later"
        await live.aclose()


def test_code_without_a_loop_reads_the_same(sqlite_service: Service) -> None:
    with BlockingClient(sqlite_service.url) as client:
        session = client.session("blocking")
        session.ingest("user", "one")
        session.ingest("user", "two")
        found: list[Any] = []
        for event in session.events():
            found.append(event)
            if len(found) == 2:
                break
        assert [one.entry.content for one in found] == ["one", "two"]
        assert [one.cursor for one in session.events(after=found[0].cursor, follow=False)] == [
            found[1].cursor
        ]


def test_a_page_of_another_origin_may_send_the_id_of_its_last_event() -> None:
    with serving("memory://", ServerConfig(auth="off", origins=("https://app.example.org",))) as service:
        asked = {
            "Origin": "https://app.example.org",
            "Access-Control-Request-Method": "GET",
            "Access-Control-Request-Headers": "last-event-id",
        }
        reply = httpx2.options(f"{service.url}/api/v1/contexts/c/events", headers=asked)
        assert "last-event-id" in reply.headers["access-control-allow-headers"]
