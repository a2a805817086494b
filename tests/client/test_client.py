"""The client: a session over HTTP says and gives what a session in the same process does."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from datetime import UTC, datetime
from enum import Enum
from typing import Any, TypeAlias

import pytest

from acms import (
    ACMS,
    ACMSError,
    Change,
    ConfigurationError,
    Delta,
    Diff,
    Entry,
    Media,
    Reasoning,
    SessionNotFoundError,
    Text,
    ToolCall,
    ValidationError,
    View,
    open_storage,
    sync,
)
from acms.branches import export
from acms.client import Client, RemoteSession, RemoteView
from acms.contract import RenderRequest
from acms.model import client_supplied_key
from tests.server.serving import Service, serving
from tests.support.talk import session_on

Session: TypeAlias = ACMS | RemoteSession
Reader: TypeAlias = View | RemoteView


# ── one door is like the other ──────────────────────────────────────────────────────────────────────────────────────


async def tell_story(session: Session) -> AsyncIterator[Any]:
    """Use every verb once, and yield its results."""
    await session.ingest("system", "You are the orders team's assistant.")
    first = await session.ingest(
        "user",
        "Which database should the orders service use?",
        actor_id="ann",
        metadata={"Nested": {"a_b": [1, None, "ü"]}, "run_id": 12},
        markers=["goal", "custom:orders"],
        created_at=datetime(2026, 3, 1, 9, 30, tzinfo=UTC),
        idempotency_key="q-1",
    )
    yield session.last_receipt
    yield (
        await session.ingest(
            "user",
            "Which database should the orders service use?",
            idempotency_key="q-1",
            actor_id="ann",
            metadata={"Nested": {"a_b": [1, None, "ü"]}, "run_id": 12},
            markers=["goal", "custom:orders"],
            created_at=datetime(2026, 3, 1, 9, 30, tzinfo=UTC),
        )
        == first
    )
    yield await session.ingest_many(
        [
            {
                "role": "assistant",
                "tool_calls": [{"id": "c1", "name": "disk", "arguments": '{"host": "db1"}'}],
            },
            {"role": "tool", "content": "40% used", "tool_call_id": "c1"},
            {
                "role": "assistant",
                "parts": [Reasoning("hm", "sig"), Text("Decision: PostgreSQL 18."), ToolCall("c2", "now")],
            },
        ],
        idempotency_key="batch",
        last_message=session.last_receipt.message_id if session.last_receipt else None,
    )
    yield await session.ingest(
        "user", "", parts=[Media("image/png", "s3://plan.png", "ab", 85)], privacy="redact", origin="external"
    )
    yield await session.tag("before"), await session.tag("start", 1), await session.tags()
    fork = await session.fork(at="before", session_id="what-if")
    await fork.ingest("user", "And MySQL?")
    yield await session.close_episode("topic"), await session.episodes()
    fact = await session.ingest("user", "My favourite editor is Emacs. We must not deploy on Fridays.")
    await session.close_episode()
    await session.wait(await session.reflect(), timeout=60)
    yield await session.facts(), await session.facts(history=True)
    retracted = await session.retract(fact, reason="wrong")
    yield retracted, await session.retract(fact), await session.window(100), await session.undo(retracted)
    edited = await session.replace(fact, "My favourite editor is vim.")
    yield edited, await session.get(edited), await session.get(fact)
    yield (
        fork.session_id,
        await session.forks(),
        await session.tree(),
        await fork.ancestry(),
        await fork.tags(),
    )
    yield (
        await session.diff(fork),
        await session.diff(4),
        await fork.diff("start"),
        str(await session.at(9).diff(5)),
    )  # type: ignore[arg-type]
    yield str(await session.merge(fork, dry_run=True)), str(await fork.merge(session.at(9), dry_run=True))
    await fork.ingest("user", "Mail ann@example.org, or bob@example.org.", privacy="redact")
    await fork.ingest("user", "My diagnosis.", privacy="block")
    yield await fork.window(1000), await fork.recall("Who is to be mailed?"), await fork.history()
    yield await session.set_policy(preserve_recent_count=2, budget=4000), await session.policy()
    for number in range(12):
        await session.ingest(
            "assistant", f"Step {number}: move the {number} tables of the orders service. " * 3
        )
    done = await session.wait(await session.compact(preserve_recent_count=3), timeout=60)
    yield done, await session.compactions(), await session.history(limit=5), await session.history(after=20)
    assert done is not None
    yield await session.undo(done.version), [one.in_force for one in await session.compactions()]
    for items in (
        await session.recall("which database?", token_budget=120),
        await session.recall("which database?", relevant_only=True, exclude=[first], min_relevance=0.1),
        await session.window(60, keep=["system"]),
        await session.at(4).window(60),
    ):
        ledger = items.ledger
        yield list(items), items.version, items.budget, items.tokens, items.coverage, items.band
        yield ledger.certainty, ledger.warnings, ledger.omitted, [ledger.why(one.id) for one in items]
        yield sorted(ledger.candidates.values(), key=lambda one: (one.version, one.id))
    yield await session.messages("which database?", budget=120), await session.get_session_stats()
    flat = await session.copy(at=3, session_id="flat")
    yield await flat.get_session_stats(), await flat.window(500)
    await session.untag("start")
    yield await session.tags(), await fork.delete(), await session.forks()
    yield await session.erase(first, verify=True), await session.get(first)
    yield await session.clear(), await session.window(100), await session.get_session_stats()
    yield await session.delete(), await session.history()


_ID = re.compile(r"\b(?:ep|[a-z])_[0-9a-z]{10,}(?:_[0-9a-z]+)*\b")


async def outcome_of_call(call: Awaitable[Any]) -> Any:
    try:
        return await call
    except ACMSError as error:
        field = getattr(error, "field", None)
        return (
            type(error),
            error.code,
            error.retryable,
            field and re.sub(r"_(.)", lambda m: m[1].upper(), field),
        )


async def hand_over_lists(session: Session) -> AsyncIterator[Any]:
    """Hand over messages of providers and lists of frameworks, and name entries by the caller's keys."""
    ask = {"id": "c1", "type": "function", "function": {"name": "now", "arguments": "{}"}}
    theirs: list[dict[str, Any]] = [
        {"role": "assistant", "content": None, "tool_calls": [ask]},
        {"role": "tool", "tool_call_id": "c1", "content": "noon"},
        {
            "type": "message",
            "id": "msg_1",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "Noon."}],
        },
        {"type": "function_call", "call_id": "c2", "name": "now", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c2", "output": "one"},
        {
            "role": "assistant",
            "content": [{"type": "tool_use", "id": t, "name": "now", "input": {}} for t in ("t1", "t2")],
        },
        {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": t, "content": t} for t in ("t1", "t2")],
        },
    ]
    for message in theirs:
        yield await session.ingest(message), session.last_receipt
    image = {"type": "image_url", "image_url": {"url": "https://example.org/plan.png"}}
    said = {"role": "user", "content": [{"type": "text", "text": "See:"}, image], "name": "ann"}
    yield await session.ingest(said, metadata={"a_b": 1}, markers=["goal"], idempotency_key="a/ü ?")
    yield await session.ingest_many([said, theirs[6]], idempotency_key="batch")
    yield await session.get("a/ü ?"), await session.get("msg_1"), await session.get("batch:1")
    yield await session.replace("msg_1", "Twelve."), await session.get("msg_1")
    yield await session.retract("a/ü ?", reason="wrong"), await session.retract("a/ü ?")
    kept = [{"role": "user", "content": f"turn {n}", "id": f"k{n}"} for n in range(4)]
    yield await session.sync(kept), await session.sync(kept)
    edited = [kept[1], {**kept[2], "content": "turn two"}, {"role": "user", "content": "new", "key": "k9"}]
    yield await session.sync(edited, gone="retract"), await session.history(limit=200)
    for wrong in (
        session.ingest({"role": "user", "content": "x", "privcay": "block"}),
        session.ingest({"role": "user", "content": 5}),
        session.ingest({"role": "user", "content": "x"}, "y"),
        session.ingest_many(
            [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,x"}}]}]
        ),
        session.sync(edited[::-1] + kept, insert="refuse"),
        session.sync(edited, gone="away"),  # type: ignore[arg-type]
        session.sync("no list"),  # type: ignore[arg-type]
    ):
        yield (await outcome_of_call(wrong))[:2]  # what is at fault has its name on the wire
    yield await session.get_session_stats()


async def story_results(session: Session) -> list[Any]:
    """The stories as values that do not depend on where it was told: ids by the order in which they come, no times."""
    names: dict[str, str] = {}

    def plain(value: Any, field: str = "") -> Any:
        if field == "key" and re.fullmatch(r"[0-9a-f]{32}:\d+", str(value)):
            return None  # every append of the client has one
        if isinstance(value, type):
            return value
        if field == "salt":
            return None  # it stays in the store
        if isinstance(value, datetime | bytes) or field == "chain_hash":
            return type(value).__name__
        if field in ("durability", "proof", "rewritten", "unreached"):
            return ""  # the store's
        if isinstance(value, Enum):
            return value
        if isinstance(value, str) and re.match(r"\d{4}-\d\d-\d\dT.*\.\d+\+", value):
            return "datetime"  # of a fact
        if isinstance(value, str):
            return _ID.sub(lambda found: names.setdefault(found[0], f"id{len(names)}"), value)
        if is_dataclass(value):
            found = {one.name: plain(getattr(value, one.name), one.name) for one in fields(value)}
            return type(value), found
        if isinstance(value, Mapping):
            return {name: plain(item) for name, item in value.items()}
        return [plain(item) for item in value] if isinstance(value, Sequence) else value

    return [plain(value) for tell in (tell_story, hand_over_lists) async for value in tell(session)]


@pytest.fixture(scope="module")
def in_process() -> list[Any]:
    """The story as it is told without a service."""

    async def tell() -> list[Any]:
        async with open_storage("memory://") as storage, session_on(storage) as session:
            return await story_results(session)

    return asyncio.run(tell())


async def test_the_same_story_gives_the_same_nouns(service: Service, in_process: list[Any]) -> None:
    async with Client(service.url) as client:
        assert await story_results(client.session("user_123")) == in_process


async def test_a_compaction_of_a_provider_has_the_same_receipts(service: Service) -> None:
    made = {"role": "assistant", "content": [{"type": "compaction", "content": "They spoke of tea."}]}
    sealed = {"type": "compaction", "id": "cmp_1", "encrypted_content": "gAAA"}

    async def receipts(session: Session) -> list[Any]:
        await session.ingest_many([{"role": "user", "content": text} for text in "abc"])
        found = [*await session.ingest_many([made]), *await session.ingest_many([sealed])]
        await session.ingest({**made, "content": [*made["content"], {"type": "text", "text": "And now?"}]})
        assert session.last_receipt is not None
        found.append(session.last_receipt)
        return [(one.version, one.position, one.episode_id[-2:], one.tokens, one.markers) for one in found]

    async with (
        open_storage("memory://") as storage,
        session_on(storage) as local,
        Client(service.url) as client,
    ):
        assert await receipts(client.session("compacted")) == await receipts(local)


# ── reads of one and the same log ───────────────────────────────────────────────────────────────────────────────────

READS: dict[str, Callable[[Any], Awaitable[Any]]] = {
    "recall": lambda s: s.recall("which database?", token_budget=60),
    "recall of all": lambda s: s.recall("which database?", scope="namespace", include_current_episode=False),
    "recall of nothing": lambda s: s.recall("zebra", token_budget=100, min_relevance=1.0),
    "window": lambda s: s.window(30),
    "window of one": lambda s: s.window(1, keep=["system", "developer"]),
    "messages": lambda s: s.messages("which database?", budget=90),
    "history": lambda s: s.history(limit=3, after=2),
    "episodes": lambda s: s.episodes(),
    "closed episodes": lambda s: s.episodes("closed"),
    "facts": lambda s: s.facts(),
    "facts by address": lambda s: s.facts(subject="user", attribute="editor", history=True),
    "profile": lambda s: s.facts(scope="namespace"),
    "forks": lambda s: s.forks(),
    "ancestry": lambda s: s.ancestry(),
    "tree": lambda s: s.tree(),
    "tags": lambda s: s.tags(),
    "diff with a tag": lambda s: s.diff("start"),
    "diff with a version": lambda s: s.diff(7),
    "diff with itself": lambda s: s.diff(s),
    "compactions": lambda s: s.compactions(),
    "policy": lambda s: s.policy(),
    "stats": lambda s: s.get_session_stats(),
    "a page that is none": lambda s: s.history(limit=0),
    "a budget that is none": lambda s: s.window(-1),
    "a status that is none": lambda s: s.episodes("half"),
    "a scope that is none": lambda s: s.facts(scope="world"),
    "an unknown tag": lambda s: s.diff("nowhere"),
    "a version to come": lambda s: s.diff(1000),
    "an unknown entry": lambda s: s.get("m_nobody"),
    "no query": lambda s: s.recall(None),
    "half a character": lambda s: s.recall("\ud800"),
}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Service, str]]:
    """A service that holds a session of everything, and the URL of its store."""
    url = f"sqlite:///{tmp_path_factory.mktemp('client') / 'log.db'}"

    async def fill(service: Service) -> None:
        async with Client(service.url) as client:
            session = client.session("user_123")
            await session.ingest("system", "You are the orders team's assistant.")
            for number in range(6):
                await session.ingest(
                    "user", f"We move table {number} of the orders database on day {number}."
                )
            await session.ingest("user", "My favourite editor is Emacs. We must not deploy on Fridays.")
            await session.tag("start", 2)
            await session.close_episode("topic")
            await session.wait(await session.reflect(), timeout=60)
            await session.fork(at=3, session_id="what-if")
            await session.wait(await session.compact(preserve_recent_count=2), timeout=60)
            await session.ingest("user", "Which database did we choose?")
            await client.session("other").ingest("user", "We decided: the database is PostgreSQL.")

    with serving(url) as service:
        asyncio.run(fill(service))
        yield service, url


PLACES = (None, 0, 9, 1000)
TWO = {
    "an unknown tag",
    "an unknown entry",
    "no query",
    "half a character",
    "diff with a tag",
    "recall of nothing",
    "recall of all",
    "profile",
}
"""Where the place is wrong too, either may be told."""


def failing_places(name: str) -> list[int | None]:
    return [at for at in PLACES if not (at and name in TWO)]


def without_salts(found: Any) -> Any:
    """Return an answer without the salts of its entries and generated keys, which stay in the store."""
    if isinstance(found, Entry):
        return replace(found, salt=None, key=client_supplied_key(found.key))
    if isinstance(found, Diff | Delta | Change):
        return replace(found, **{one.name: without_salts(getattr(found, one.name)) for one in fields(found)})
    return tuple([without_salts(one) for one in found]) if type(found) is tuple else found


@pytest.mark.parametrize("name", READS)
async def test_a_read_gives_what_the_log_itself_gives(home: tuple[Service, str], name: str) -> None:
    service, url = home
    async with Client(service.url) as client, session_on(open_storage(url)) as own:
        remote, read = client.session("user_123"), READS[name]
        for at in failing_places(name):
            over_http = await outcome_of_call(read(remote if at is None else remote.at(at)))
            assert over_http == without_salts(
                await outcome_of_call(read(own if at is None else own.at(at)))
            ), at


@pytest.mark.parametrize("name", READS)
async def test_a_session_that_does_not_exist_yet_reads_like_one_in_process(
    home: tuple[Service, str], name: str
) -> None:
    async with (
        Client(home[0].url) as client,
        session_on(open_storage("memory://"), name, namespace="nobody") as own,
    ):
        remote, read = client.session(name, namespace="nobody"), READS[name]
        for at in failing_places(name):
            over_http = await outcome_of_call(read(remote if at is None else remote.at(at)))
            in_process = await outcome_of_call(read(own if at is None else own.at(at)))
            assert over_http == in_process, at


# ── the rest of a client ────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_session_is_found_by_the_id_of_its_context_too(sqlite_service: Service) -> None:
    context = sqlite_service.talk("a", "b")
    async with Client(sqlite_service.url) as client, client.session(context) as session:
        assert await session.ingest("user", "c")
        assert [one.preview for one in (await session.history()).entries] == ["a", "b", "c"]
        assert session.session_id == context
        assert (await session.get_session_stats()).session_id == context


async def test_a_deleted_session_begins_anew_under_its_name(sqlite_service: Service) -> None:
    async with Client(sqlite_service.url) as client:
        session, other = client.session("again"), client.session("again")
        await session.ingest("user", "a")
        assert await other.delete() == []
        with pytest.raises(SessionNotFoundError):
            await session.ingest("user", "b")
        await other.ingest("user", "c")
        assert [one.preview for one in (await other.history()).entries] == ["c"]


async def test_many_first_writes_make_one_context(sqlite_service: Service) -> None:
    async with Client(sqlite_service.url) as client:
        one, two = client.session("race", namespace="races"), client.session("race", namespace="races")
        await asyncio.gather(*[(one, two)[n % 2].ingest("user", f"{n}") for n in range(8)])
        assert (await one.get_session_stats()).version == 8
        assert [found.key async for found in client.contexts(namespace="races")] == ["race"]


async def test_contexts_are_listed_newest_first(sqlite_service: Service) -> None:
    async with Client(sqlite_service.url) as client:
        made = [sqlite_service.create(namespace="listed", name=f"n{n}") for n in range(3)]
        found = [one async for one in client.contexts(namespace="listed")]
        assert [one.id for one in found] == made[::-1]
        assert (found[0].name, found[0].message_count, found[0].counter) == ("n2", 0, "o200k_base")
        parent = client.session(made[0])
        await parent.ingest("user", "a")
        fork = await parent.fork(session_id="fork")
        (listed,) = [one async for one in client.contexts(parent=made[0])]
        assert (listed.key, listed.parent_id, listed.fork_version) == (fork.session_id, made[0], 1)


async def test_an_export_is_what_the_engine_writes_and_restores_elsewhere(home: tuple[Service, str]) -> None:
    service, url = home
    async with Client(service.url) as client, open_storage(url) as storage:
        lines = [line async for line in client.export(client.session("user_123"))]
        assert lines == [line async for line in export.export(storage, "user_123")]
        everything = [line async for line in client.export(namespace="default")]
        assert set(lines) < set(everything)
        with serving("memory://") as elsewhere:
            async with Client(elsewhere.url) as there:
                with pytest.raises(ValidationError, match="would instruct the model"):
                    await there.restore(everything)
                restored = await there.restore(everything, trust=True)
                assert {one.key for one in restored} >= {"user_123", "what-if", "other"}
                again = [line async for line in there.export(there.session("user_123"))]
                assert again == lines
                with pytest.raises(ValidationError):
                    await there.restore(lines[:-1], trust=True)


async def test_a_line_may_hold_other_ends_of_lines(sqlite_service: Service) -> None:
    async with Client(sqlite_service.url) as client:
        session = client.session("ends")
        await session.ingest("user", "one\u2028two\x85three\x0bfour\r\nfive")
        lines = [line async for line in client.export(session)]
        assert len(lines) == 2
        assert (await client.restore(lines))[0].message_count == 1


async def test_an_export_of_nothing_is_refused(sqlite_service: Service) -> None:
    async with Client(sqlite_service.url) as client:
        with pytest.raises(ValidationError):
            [line async for line in client.export()]
        with pytest.raises(SessionNotFoundError):
            [line async for line in client.export("c_nobody")]


async def test_the_contract_is_answered_from_sessions(home: tuple[Service, str]) -> None:
    request = {
        "version": "v0",
        "id": "6f3b6f21-7a5f-4e3f-9af0-1b2c3d4e5f60",
        "request_id": "req-1",
        "intent": "which database did we choose?",
        "budgets": {"tokens_max": 300, "time_ms": 5000},
    }
    async with Client(home[0].url) as client:
        reply = await client.render(request, [client.session("user_123")])
        assert reply["request_id"] == "req-1"
        assert any("database" in one["text"] for one in reply["fragments"])
        assert (await client.render(RenderRequest.of(request), [client.session("user_123")]))["fragments"]
        with pytest.raises(ValidationError) as caught:
            await client.render({**request, "version": "v9"}, [client.session("user_123")])
        assert caught.value.field == "version"


async def test_reasons_can_be_left_out(home: tuple[Service, str]) -> None:
    async with Client(home[0].url) as client, Client(home[0].url, why=False) as brief:
        query, budget = "which database?", 40
        full = await client.session("user_123").recall(query, token_budget=budget)
        short = await brief.session("user_123").recall(query, token_budget=budget)
        assert (full, full.confidence) == (short, short.confidence)
        assert full.ledger.why(full[0].id).included
        with pytest.raises(ConfigurationError):
            short.ledger.why(short[0].id)


async def test_the_blocking_door_is_the_same(home: tuple[Service, str]) -> None:
    def talk() -> None:
        with sync.Client(home[0].url) as client, client.session("blocking", namespace="sync") as session:
            session.ingest("user", "We decided on PostgreSQL.")
            fork = session.fork(session_id="branch")
            assert fork.session_id == "branch"
            fork.ingest("user", "Or MySQL?")
            assert len(session.diff(fork).messages.added) == 1
            assert session.at(1).window(100)[0].content == "We decided on PostgreSQL."
            assert session.recall("which database?", token_budget=50)
            assert {one.key for one in client.contexts(namespace="sync")} == {"blocking", "branch"}
            lines = list(client.export(session))
            assert len(lines) == 2
            assert client.restore(lines)[0].key == "blocking"
            next(client.export(session))  # not read to its end
            assert [one.session_id for one in session.forks()] == ["branch"]

    await asyncio.to_thread(talk)
