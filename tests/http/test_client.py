"""The client: a session over HTTP says and gives what a session in the same process does."""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from datetime import UTC, datetime
from typing import Any, TypeAlias

import pytest

from acms import (
    ACMS,
    ACMSError,
    Media,
    Reasoning,
    SessionNotFoundError,
    Text,
    ToolCall,
    ValidationError,
    View,
    open_storage,
    transfer,
)
from acms.client import Client, RemoteSession, RemoteView
from tests.flows.talk import session_on
from tests.http.serving import Service, serving

Session: TypeAlias = ACMS | RemoteSession
Reader: TypeAlias = View | RemoteView

NOT_OVER_HTTP = {"entries", "expand", "said", "wait_pending"}
"""What needs the store itself: the parts that prompts are built from, and the worker of this process."""


# ── one door is like the other ──────────────────────────────────────────────────────────────────────────────────────


def verbs(of: type) -> dict[str, list[tuple[str, Any, Any]]]:
    return {
        name: [(one.name, one.kind, one.default) for one in inspect.signature(member).parameters.values()]
        for name, member in inspect.getmembers(of, callable)
        if not name.startswith("_")
    }


@pytest.mark.parametrize(("remote", "own"), [(RemoteSession, ACMS), (RemoteView, View)])
def test_a_remote_session_has_the_verbs_of_a_session_with_the_same_signatures(
    remote: type, own: type
) -> None:
    ours, theirs = verbs(remote), verbs(own)
    assert theirs.keys() - ours.keys() == NOT_OVER_HTTP & theirs.keys()
    assert not ours.keys() - theirs.keys()
    for name, signature in ours.items():
        assert signature == theirs[name], name
        assert inspect.getdoc(getattr(remote, name)), name


async def story(session: Session) -> AsyncIterator[Any]:
    """Use every verb once, and yield what it gave."""
    await session.ingest("system", "You are the orders team's assistant.")
    first = await session.ingest(
        "user",
        "Which database should the orders service use?",
        actor_id="ann",
        metadata={"run_id": 12, "Nested": {"a_b": [1, None, "ü"]}},
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
            metadata={"run_id": 12, "Nested": {"a_b": [1, None, "ü"]}},
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


async def told(session: Session) -> list[str]:
    """The story as text that does not depend on where it was told: ids by the order in which they come, no times."""
    names: dict[str, str] = {}

    def name(found: re.Match[str]) -> str:
        return names.setdefault(found[0], f"id{len(names)}")

    lines: list[str] = []
    async for value in story(session):
        text = re.sub(r"datetime\.datetime\([^)]*\)", "T", repr(value))
        text = re.sub(r"mappingproxy\((\{.*?\})\)", r"\1", text)
        text = re.sub(r"\b(?:ep|[a-z])_[0-9a-z]{10,}(?:_[0-9a-z]+)*\b", name, text)
        text = re.sub(r"\b[0-9a-f]{64}\b|b'(?:[^'\\]|\\.)*'|b\"(?:[^\"\\]|\\.)*\"", "H", text)
        text = text.replace("boost=0,", "boost=0.0,")
        text = re.sub(r"key='[0-9a-f]{32}:\d+'", "key=None", text)  # every append of the client has one
        lines.append(re.sub(r"durability='\w+'", "durability", text))
    return lines


@pytest.fixture(scope="module")
def in_process() -> list[str]:
    """The story as it is told without a service."""

    async def tell() -> list[str]:
        async with open_storage("memory://") as storage, session_on(storage) as session:
            return await told(session)

    return asyncio.run(tell())


async def test_the_same_story_gives_the_same_nouns(service: Service, in_process: list[str]) -> None:
    async with Client(service.url) as client:
        assert await told(client.session("user_123")) == in_process


# ── reads of one and the same log ───────────────────────────────────────────────────────────────────────────────────

READS: dict[str, Callable[[Any], Awaitable[Any]]] = {
    "recall": lambda s: s.recall("which database?", token_budget=60),
    "recall of all": lambda s: s.recall("which database?", scope="namespace", include_current_episode=False),
    "recall of nothing": lambda s: s.recall("", token_budget=100, min_relevance=1.0),
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
            (await session.fork(at=3, session_id="what-if")).session_id
            await session.wait(await session.compact(preserve_recent_count=2), timeout=60)
            await session.ingest("user", "Which database did we choose?")
            await client.session("other").ingest("user", "We decided: the database is PostgreSQL.")

    with serving(url) as service:
        asyncio.run(fill(service))
        yield service, url


async def outcome(call: Awaitable[Any]) -> Any:
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


@pytest.mark.parametrize("at", [None, 9, 0, 1000], ids=lambda at: "head" if at is None else f"v{at}")
@pytest.mark.parametrize("read", READS.values(), ids=READS.keys())
async def test_a_read_gives_what_the_log_itself_gives(
    home: tuple[Service, str], read: Callable[[Any], Awaitable[Any]], at: int | None
) -> None:
    service, url = home
    async with Client(service.url) as client, session_on(open_storage(url)) as own:
        remote = client.session("user_123")
        over_http = await outcome(read(remote if at is None else remote.at(at)))
        assert over_http == await outcome(read(own if at is None else own.at(at)))


@pytest.mark.parametrize("at", [None, 0, 3], ids=lambda at: "head" if at is None else f"v{at}")
@pytest.mark.parametrize("read", READS.values(), ids=READS.keys())
async def test_a_session_that_does_not_exist_yet_reads_like_one_in_process(
    home: tuple[Service, str], read: Callable[[Any], Awaitable[Any]], at: int | None
) -> None:
    service, url = home
    async with Client(service.url) as client, session_on(open_storage(url), "nobody") as own:
        remote = client.session("nobody")
        over_http = await outcome(read(remote if at is None else remote.at(at)))
        in_process = await outcome(read(own if at is None else own.at(at)))
        assert over_http == in_process
