"""What a session refuses, a session over HTTP refuses too: with the same error, the same field, the same advice."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from datetime import datetime
from functools import partial
from typing import Any

import httpx2
import pytest

from acms import ACMS, ACMSError, EntryNotFoundError, RetryConfig, ToolCall, ValidationError, open_storage
from acms.client import Client
from acms.errors import UnreachableError
from tests.server.serving import Service
from tests.support.talk import session_on

REFUSED: dict[str, Callable[[Any], Awaitable[Any]]] = {
    "nobody's role": lambda s: s.ingest("bot", "x"),
    "no text": lambda s: s.ingest("user", ""),
    "a text that is none": lambda s: s.ingest("user", 7),
    "NUL in metadata": lambda s: s.ingest("user", "x", metadata={"a": {"b": "\0"}}),
    "deep metadata": lambda s: s.ingest("user", "x", metadata={"a": [[[[[[[[[[1]]]]]]]]]]}),
    "no number in metadata": lambda s: s.ingest("user", "x", metadata={"a": float("nan")}),
    "no JSON in metadata": lambda s: s.ingest("user", "x", metadata={"a": {1}}),
    "metadata that is a list": lambda s: s.ingest("user", "x", metadata=[1]),
    "an unknown marker": lambda s: s.ingest("user", "x", markers=["nope"]),
    "a marker for markers": lambda s: s.ingest("user", "x", markers="goal"),
    "a time without a zone": lambda s: s.ingest("user", "x", created_at=datetime(2026, 1, 1)),
    "a time that is none": lambda s: s.ingest("user", "x", created_at="yesterday"),
    "an unknown origin": lambda s: s.ingest("user", "x", origin="space"),
    "an unknown privacy": lambda s: s.ingest("user", "x", privacy="x"),
    "a user who calls tools": lambda s: s.ingest("user", "", tool_calls=[{"id": "1", "name": "n"}]),
    "a call without a name": lambda s: s.ingest("assistant", "", tool_calls=[{"id": "1"}]),
    "a user's part that is a call": lambda s: s.ingest("user", "", parts=[ToolCall("1", "n")]),
    "a part that is none": lambda s: s.ingest("user", "", parts=["x"]),
    "an empty key": lambda s: s.ingest("user", "x", idempotency_key=""),
    "an empty actor": lambda s: s.ingest("user", "x", actor_id=""),
    "one bad message of two": lambda s: s.ingest_many(
        [{"role": "user", "content": "a"}, {"role": "user", "content": "b", "origin": "mars"}]
    ),
    "a message that is a text": lambda s: s.ingest_many(["a"]),
    "a text for messages": lambda s: s.ingest_many("abc"),
    "an empty key of many": lambda s: s.ingest_many([{"role": "user", "content": "a"}], idempotency_key=""),
    "another newest message": lambda s: s.ingest_many(
        [{"role": "user", "content": "a"}], last_message="m_nobody"
    ),
    "a log that is not empty": lambda s: s.ingest_many([{"role": "user", "content": "a"}], last_message=None),
    "retracting nothing": lambda s: s.retract("m_x"),
    "replacing nothing": lambda s: s.replace("m_x", "y"),
    "erasing nothing": lambda s: s.erase("m_x"),
    "undoing nothing": lambda s: s.undo(77),
    "undoing a message": lambda s: s.undo(1),
    "a tag that is a number": lambda s: s.tag("7"),
    "a tag that is taken": lambda s: s.tag("first", 2),
    "no such tag": lambda s: s.untag("nope"),
    "a fork of what is to come": lambda s: s.fork(at=1000),
    "a fork of nowhere": lambda s: s.fork(at="nope"),
    "a fork by a name that is taken": lambda s: s.fork(at=1, session_id="taken"),
    "a policy with an unknown field": lambda s: s.set_policy(thresh=1),
    "a policy out of bounds": lambda s: s.set_policy(threshold=2),
    "a compaction out of bounds": lambda s: s.compact(keep=3),
    "an episode without a reason": lambda s: s.close_episode(""),
    "a place that is none": lambda s: s.at(-1).window(10),
    "names that are a text": lambda s: s.state("a", "b", "c", names="abc"),
    "sources that are a text": lambda s: s.state("a", "b", "c", sources="m_x"),
    "a newest message that is no id": lambda s: s.ingest_many(
        [{"role": "user", "content": "a"}], last_message="ü"
    ),
    "an entry without a name": lambda s: s.get(None),
    "an entry by a number": lambda s: s.get(5),
    "a job by a number": lambda s: s.job(1),
    "a version that is a text": lambda s: s.undo("3"),
    "a version that is a truth": lambda s: s.undo(True),
    "undoing what is before the first": lambda s: s.undo(0),
    "a summary at a text": lambda s: s.expand("x"),
    "keys of numbers": lambda s: s.keys([1]),
    "keys of a text": lambda s: s.keys("abc"),
    "merging nothing": lambda s: s.merge(None),
    "a tag of what is to come": lambda s: s.tag("next", 99),
    "a tag before the first": lambda s: s.tag("next", -1),
    "a fork without a name": lambda s: s.fork(at=1, session_id=""),
    "a filter that is no JSON": lambda s: s.recall("x", budget=9, min_relevance=float("nan")),
    "a time without a zone in a filter": lambda s: s.recall(
        "x", budget=9, where={"after": datetime(2026, 1, 1)}
    ),
    "roles in one text": lambda s: s.window(9, keep=["user,assistant"]),
    "a blank query": lambda s: s.recall(" "),
    "a query that is none": lambda s: s.recall(None),
    "a budget in quotes": lambda s: s.recall("x", budget="5"),
    "a budget with a point": lambda s: s.recall("x", budget=5.0),
    "a budget that is a truth": lambda s: s.window(True),
    "a budget that is no number": lambda s: s.window(float("nan")),
    "a limit in quotes": lambda s: s.recall("x", limit="3"),
    "a past that is to come": lambda s: s.at(99).recall("x"),
    "tags of what is to come": lambda s: s.at(99).tags(),
    "a summary of what is to come": lambda s: s.expand(99),
    "a difference to what is to come": lambda s: s.diff(99),
    "facts of what is to come": lambda s: s.facts(as_of=99),
    "a time that is a number": lambda s: s.ingest("user", "x", created_at=5),
    "superseded or not": lambda s: s.recall("x", include_superseded="no"),
    "alone or not": lambda s: s.retract("m_x", alone="no"),
    "moved or not": lambda s: s.tag("next", 1, move="no"),
    "verified or not": lambda s: s.erase("m_x", verify=1),
    "with its history or not": lambda s: s.facts(history="no"),
    "waiting for nothing": lambda s: s.wait(None),
    "roles that are none": lambda s: s.window(9, keep=None),
    "parts that are a number": lambda s: s.ingest("user", "x", parts=5),
    "a difference to nothing": lambda s: s.diff([]),
    "private or not": lambda s: s.set_private(None),
    "an episode for no reason": lambda s: s.close_episode(None),
}
UNKNOWN = (
    "retracting nothing",
    "replacing nothing",
    "erasing nothing",
    "undoing nothing",
    "no such tag",
    "a fork of nowhere",
    "a compaction out of bounds",
)
"""What a session that does not exist yet refuses too."""


async def test_errors_name_sessions_and_messages_and_not_what_the_service_calls_them(
    service: Service,
) -> None:
    async def told(session: Any) -> list[str]:
        await session.ingest("user", "a", idempotency_key="a")
        fork = await session.fork(session_id="merged")
        await session.replace("a", "here")
        await fork.replace("a", "there")
        found: list[str] = []
        for call in (
            lambda: session.merge(fork),
            lambda: session.ingest_many(
                [{"role": "user", "content": "new"}, {"role": "user", "content": "b", "key": "a"}]
            ),
        ):
            with pytest.raises(ACMSError) as caught:
                await call()
            found.append(re.sub(r"m_\w+", "m_", str(caught.value)))
        return found

    async with open_storage("memory://") as storage, Client(service.url) as client:
        local = await told(ACMS("conflicts", storage, None))
        assert local[0] == "1 conflict with merged v2: message m_ (modify/modify)"
        assert local[1] == "some keys of this append are new and others are not: message 0 is new"
        assert await told(client.session("conflicts")) == local


async def described_refusal(call: Callable[[Any], Awaitable[Any]], session: Any) -> Any:
    with pytest.raises(ACMSError) as caught:
        await call(session)
    error = caught.value
    return type(error), error.code, error.retryable, getattr(error, "field", None)


@pytest.mark.parametrize("name", REFUSED)
async def test_what_a_session_refuses(sqlite_service: Service, name: str) -> None:
    async with Client(sqlite_service.url) as client, open_storage("memory://") as storage:
        told: list[Any] = []
        for open_session in (client.session, partial(session_on, storage)):
            session, taken = open_session(name), open_session("taken")
            await taken.ingest("user", "a")
            for content in ("We decided on PostgreSQL.", "Noted."):
                await session.ingest("user", content)
            await session.tag("first", 1)
            told.append(await described_refusal(REFUSED[name], session))
            assert (await session.get_session_stats()).version == 2
        assert told[0] == told[1]


@pytest.mark.parametrize("name", UNKNOWN)
async def test_what_a_session_that_does_not_exist_yet_refuses(sqlite_service: Service, name: str) -> None:
    async with Client(sqlite_service.url) as client, open_storage("memory://") as storage:
        over_http = await described_refusal(REFUSED[name], client.session(f"no {name}"))
        assert over_http == await described_refusal(REFUSED[name], session_on(storage, f"no {name}"))
        assert [one.key async for one in client.contexts() if one.key == f"no {name}"] == []


async def test_a_message_of_a_tool_names_its_call_over_http(sqlite_service: Service) -> None:
    async with Client(sqlite_service.url) as client:
        with pytest.raises(ACMSError) as caught:
            await client.session("tools").ingest("tool", "40% used")
        assert (caught.value.code, getattr(caught.value, "field", "")) == ("VALIDATION", "tool_call_id")


async def test_errors_name_the_session_and_what_to_do_as_the_caller_knows_them(
    sqlite_service: Service,
) -> None:
    said: list[list[tuple[str, tuple[str, ...]]]] = []
    async with Client(sqlite_service.url) as client, open_storage("memory://") as storage:
        for open_session in (client.session, partial(session_on, storage)):
            session = open_session("words")
            await session.ingest("user", "a", idempotency_key="k")
            await session.tag("first", 0)
            kept = [{"role": "user", "content": "a", "key": "k"}]
            calls = (
                session.get("nope"),
                session.retract("nope"),
                session.undo(77),
                session.tag("first", 1),
                session.fork(1, "words"),
                session.ingest_many([{"role": "user", "content": "b", "key": "k"}]),
                session.recall("a", budget=9, scope="namespace"),
                session.ingest("user"),
                session.sync([{"role": "user", "content": "new"}, *kept], insert="refuse"),
            )
            found: list[tuple[str, tuple[str, ...]]] = []
            for call in calls:
                with pytest.raises(ACMSError) as caught:
                    await call
                found.append((str(caught.value), caught.value.options))
            said.append(found)
    assert said[0] == said[1]


async def test_a_budget_of_nothing_is_one(sqlite_service: Service) -> None:
    async with Client(sqlite_service.url) as client, open_storage("memory://") as storage:
        for open_session in (client.session, partial(session_on, storage)):
            session = open_session("nothing")
            await session.ingest("user", "a")
            assert [one.tokens for one in (await session.recall("b", budget=0), await session.window(0))] == [
                0,
                0,
            ]


async def test_a_name_that_no_address_can_hold_is_refused_and_does_nothing_else(
    sqlite_service: Service,
) -> None:
    async with Client(sqlite_service.url) as client:
        session = client.session("places")
        await session.ingest("user", "precious")
        for name in ("", ".", ".."):
            calls: dict[str, Callable[[], Awaitable[Any]]] = {
                "name": partial(session.untag, name),
                "id": partial(session.erase, name),
                "message_id": partial(session.retract, name),
            }
            for field, call in calls.items():
                with pytest.raises(ValidationError) as caught:
                    await call()
                assert caught.value.field == field
            for ask in (session.tag, session.get, session.job, session.sent):
                with pytest.raises(ValidationError):
                    await ask(name)
        assert (await session.get_session_stats()).active_messages == 1
        # Whoever sends such an address all the same names an entry or a tag by it.
        context, url = await session.log.require_id(), httpx2.URL(sqlite_service.url)
        for below in ("tags/..", "tags/%2e%2e", "entries/..", "tags/%2e%2e%2f.."):
            reader, writer = await asyncio.open_connection(url.host, url.port)
            line = f"DELETE /api/v1/contexts/{context}/{below} HTTP/1.1"
            writer.write(f"{line}\r\nhost: {url.host}\r\nconnection: close\r\n\r\n".encode())
            assert (await reader.read()).startswith(b"HTTP/1.1 404"), below
            writer.close()
        assert (await session.get_session_stats()).active_messages == 1


async def test_errors_say_what_to_do_at_every_door(sqlite_service: Service) -> None:
    async with (
        Client(sqlite_service.url) as client,
        session_on(open_storage("memory://"), "told") as own,
    ):
        for session in (client.session("told"), own):
            await session.ingest("user", "x")
            with pytest.raises(ValidationError, match=r"^role: must come before") as caught:
                await session.ingest("hello")
            assert caught.value.options[0] == 'ingest("user", "…")'
            with pytest.raises(EntryNotFoundError, match="session 'told' has no entry 'nope'"):
                await session.erase("nope")
    async with Client("http://127.0.0.1:1", retry=RetryConfig(max_attempts=1)) as nobody:
        with pytest.raises(UnreachableError, match="cannot be reached") as unreachable:
            await nobody.sessions()
    assert unreachable.value.options == ("acms serve", "check the address")
