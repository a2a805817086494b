"""What a session is called over HTTP, how it is found by that, and what else the newest verbs ask for."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime

import pytest

from acms import (
    ACMS,
    ConflictError,
    GoneError,
    NotFoundError,
    PreconditionError,
    ValidationError,
    open_storage,
    sync,
)
from acms.client import Client
from tests.server.serving import Service
from tests.support.talk import session_on


async def test_sessions_are_called_and_listed_as_in_process(service: Service) -> None:
    async with Client(service.url) as client:
        made = [
            client.session(f"s{n}", namespace="listed", labels=["support", f"l{n}"], metadata={"run": n})
            for n in range(3)
        ]
        for one in made:
            await one.ingest("user", "hello")
        named = client.session("s0", namespace="listed", name="Orders", labels=["a,b"])
        await named.ingest("user", "again")
        page = await client.sessions(namespace="listed", limit=2)
        rest = await client.sessions(namespace="listed", limit=2, after=page.next_after)
        assert [one.session_id for one in (*page.sessions, *rest.sessions)] == ["s2", "s1", "s0"]
        assert rest.next_after is None
        zero = rest.sessions[0]
        assert (zero.name, zero.labels, zero.metadata) == ("Orders", ("a,b",), {"run": 0})
        for where, keys in (
            ({"label": ["support", "l1"]}, ["s1"]),
            ({"label": "a,b", "run": 0}, ["s0"]),
            ({"name": "Orders"}, ["s0"]),
            ({"run": True}, []),
        ):
            found = await client.sessions(namespace="listed", where=where)
            assert [one.key for one in found.sessions] == keys, where
        with pytest.raises(ValidationError) as caught:
            await client.sessions(after="nothing")
        assert caught.value.field == "after"
        with pytest.raises(ValidationError, match="not by time"):
            await client.sessions(where={"after": "2026-01-01"})

        held = await client.set_namespace_policy("listed", legal_hold=True, keep=0.25)
        assert held.policy.keep == 0.25
        assert held.legal_hold is (await client.namespace_policy("listed")).legal_hold is True
        assert (await made[0].policy()).levels["legal_hold"] == "namespace"
        await client.set_namespace_policy("listed", legal_hold=None)
        context = await made[2].log.require_id()
        await made[2].delete()
        deleted = (await client.sessions(namespace="listed", deleted=True)).sessions[0]
        assert (deleted.id, deleted.key, deleted.message_count) == (context, "s2", 1)
        assert len((await client.erase_session(context)).ids) == 1

    def waiting() -> object:
        with sync.Client(service.url) as blocking:
            return blocking.sessions(namespace="listed", where={"name": "Orders"}).sessions

    assert await asyncio.to_thread(waiting) == (zero,)


async def test_an_id_opens_no_log_of_another_namespace(service: Service) -> None:
    async with Client(service.url) as client:
        own = client.session("own", namespace="user:alice")
        await own.ingest("user", "The pin is 4711.")
        (id,) = [one.id for one in (await client.sessions(namespace="user:alice")).sessions]
        other = client.session(id, namespace="user:bob")
        for asked in (lambda: other.window(100), lambda: other.ingest("user", "hi"), other.fork):
            with pytest.raises(ValidationError, match="is the id of a log of another one") as caught:
                await asked()
            assert caught.value.field == "namespace"
        assert (await own.get_session_stats()).version == 1
        assert len(await client.session(id).window(100)) == 1
    for query, field in ({"where": "[]"}, "where"), ({"where": '{"label": 1}'}, "where.label"):
        reply = service.client.get("/contexts", params=query)
        assert (reply.status_code, reply.json()["errors"][0]["field"]) == (400, field)
    listed = service.get("/contexts", namespace="listed", label="support", name="nobody")
    assert listed["data"] == []


async def test_a_recall_says_all_that_it_is_asked(service: Service) -> None:
    async with Client(service.url) as client:
        here, there = (
            client.session("here", namespace="recalled"),
            client.session("there", namespace="recalled"),
        )
        said = datetime(2026, 1, 2, tzinfo=UTC)
        await here.ingest("user", "I live in Lyon with my cat Minou.", created_at=said, metadata={"k": "v"})
        await here.ingest("assistant", "Lyon is lovely, and so is Minou.")
        await there.ingest("user", "hello")
        items = await there.recall("Lyon Minou", budget=500, scope="namespace", where={"role": "user"})
        assert [one.session_id for one in items if "Lyon" in one.content] == ["here"]
        assert items.budget == 500
        asked = {"after": said, "before": "2026-01-03", "role": ("user",), "metadata": {"k": "v"}}
        assert [one.content[:6] for one in await here.recall("Lyon", where=asked)] == ["I live"]
        assert len(await here.recall("Lyon", limit=1)) == 1
        lyon = items[0].id
        await here.state("Minou", "city", "Lyon", sources=[lyon], scope="namespace")
        await here.set_private()
        with pytest.raises(ConflictError, match="private") as refused:
            await here.state("Minou", "city", "Lyon", sources=[lyon], scope="namespace")
        assert refused.value.options[0] == 'state it with scope="session"'
        assert await there.facts(scope="namespace") == []
        assert service.get(f"/contexts/{here.log.id}")["data"]["private"] is True
        assert not [
            one for one in await there.recall("Lyon Minou", scope="namespace") if "Lyon" in one.content
        ]
        await here.set_private(False)
        assert await there.facts(scope="namespace") == []
        await here.state("Minou", "city", "Lyon", sources=[lyon], scope="namespace")
        assert [fact.value for fact in await there.facts(scope="namespace")] == ["Lyon"]
        assert [one for one in await there.recall("Lyon Minou", scope="namespace") if "Lyon" in one.content]
        with pytest.raises(TypeError, match="not both"):
            await here.recall("Lyon", budget=1, token_budget=1)
        with pytest.raises(ValidationError, match="is not a filter"):
            await here.recall("Lyon", where={"k": "v"})
    for body, field in (
        ({"budget": 1, "tokenBudget": 1}, "tokenBudget"),
        ({"where": {"k": "v"}}, "where"),
        ({"where": {"role": "nobody"}}, "where.role"),
        ({"where": []}, "where"),
        ({"limit": 0}, "limit"),
    ):
        reply = service.client.post(f"/contexts/{here.log.id}/recall", json={"query": "q", **body})
        assert (reply.status_code, reply.json()["errors"][0]["field"]) == (400, field), reply.text


async def test_a_remote_view_ends_at_a_tag_for_good(service: Service) -> None:
    async with Client(service.url) as client:
        session = client.session("tagged")
        await session.ingest("user", "first")
        await session.tag("then")
        view = session.at("then")
        await session.ingest("user", "second")
        assert [one.content for one in await view.window(budget=100)] == ["first"]
        assert view.ends_at == 1
        await session.tag("then", 2, move=True)
        assert (await view.get_session_stats()).messages == 1
        assert not await session.diff(session.at("then"))
        with pytest.raises(NotFoundError, match="there are: then"):
            await session.at("never").tags()
        with pytest.raises(NotFoundError, match="there are no tags"):
            await client.session("unwritten").at("then").history()


async def test_a_job_is_told_as_it_is_now(service: Service) -> None:
    async with Client(service.url) as client:
        session, other = client.session("working"), client.session("idle")
        await session.ingest_many([{"role": "user", "content": "short"}] * 3)
        await other.ingest("user", "x")
        job = await session.compact()
        assert await session.wait(job, timeout=60) is None
        now = await session.job(job.id)
        assert (now.state.value, bool(now.reason)) == ("done", True)
        for one, id in ((other, job.id), (session, "j_nothing")):
            with pytest.raises(GoneError):
                await one.job(id)


async def test_what_a_session_is_called_over_http_is_read_in_process(sqlite_service: Service) -> None:
    sqlite_service.create(key="about", name="About", labels=["one"], metadata={"a": 1})
    store = open_storage(sqlite_service.app.stores.url)
    async with ACMS("about", store, None, labels=["one"]) as session:
        await session.ingest("user", "x")
        page = await store.sessions(where={"label": "one"})
    assert [(one.name, one.metadata) for one in page.sessions] == [("About", {"a": 1})]


async def test_keys_that_nobody_gave_are_not_shown(service: Service) -> None:
    async with Client(service.url) as client, open_storage("memory://") as storage:
        for session in (client.session("keyless"), session_on(storage, "keyless")):
            system = await session.ingest("system", "Be brief.")
            said = await session.ingest("user", "Ready?")
            named = await session.ingest("user", "Now?", idempotency_key="k1")
            assert [(await session.get(one)).key for one in (system, said, named)] == [None, None, "k1"]
            assert await session.keys([system, said, named]) == {named: "k1"}
            told = [one.entry.key async for one in session.events(follow=False) if one.entry]
            assert told == [None, None, "k1"]
            done = await session.sync(
                [
                    {"role": "system", "content": "Be brief and polite."},
                    {"role": "user", "content": "Ready?", "id": "framework-2"},
                ]
            )
            assert (len(done.replaced), len(done.unchanged), done.appended) == (1, 1, ())
        exported = [line async for line in client.export(client.session("keyless"))]
        assert [json.loads(line).get("key") for line in exported[1:4]] == [None, None, "k1"]
        assert "@once:" not in "".join(exported)


async def test_what_is_recalled_says_what_it_says_in_process(service: Service) -> None:
    found: list[object] = []
    async with Client(service.url) as client, open_storage("memory://") as storage:
        for session in (client.session("parts"), session_on(storage, "parts")):
            assert (await session.messages("part 7", budget=300)).sources == []
            for number in range(30):
                role = "user" if number % 2 == 0 else "assistant"
                text = f"Turn {number}: we talk about part {number} of the database migration."
                await session.ingest(role, text)
                if number == 15:
                    await session.close_episode()
            items = await session.recall("part 7", budget=100)
            messages = await session.messages("part 7", budget=300)
            assert len(messages.sources) == len(messages)
            shown = [[id.split("_")[2] for id in ids] for ids in messages.sources]
            found.append(([(one.version, one.score, one.relevance) for one in items], list(messages), shown))
            assert items
    assert found[0] == found[1]


async def test_facts_are_stated_over_http_as_in_process(service: Service) -> None:
    async with Client(service.url) as client:
        session = client.session("stated", namespace="team")
        assert await session.unstate("orders", "database") == []
        said = await session.ingest("user", "We chose PostgreSQL.", idempotency_key="k1")
        fact = await session.state(
            "orders service",
            "database",
            "PostgreSQL",
            names=("orders db",),
            valid_from=datetime(2026, 3, 1, tzinfo=UTC),
            valid_to="2027-01-01",
            sources=[said],
        )
        assert (fact.value, fact.valid_from) == ("PostgreSQL", datetime(2026, 3, 1, tzinfo=UTC))
        assert await session.keys([said, fact.id]) == {said: "k1"}
        with pytest.raises(PreconditionError):
            await session.state("orders service", "database", "MySQL", expected=0)
        newer = await session.state("orders service", "database", "MySQL", expected=fact.version)
        shared = await session.state("team", "lead", "Ada", scope="namespace")
        assert [one.id for one in await session.facts(scope="namespace")] == [shared.id]
        assert [one.id for one in await session.unstate("team", "lead", scope="namespace")] == [shared.id]
        then = datetime(2026, 4, 1, tzinfo=UTC)
        assert [one.value for one in await session.facts(as_of=fact.version)] == ["PostgreSQL"]
        assert [one.value for one in await session.facts(as_of=fact.version, valid_at=then)] == ["PostgreSQL"]
        assert await session.facts(as_of=then) == []
        assert [one.id for one in await session.unstate("Orders Service", "database")] == [newer.id]
        assert await session.facts() == []
        for wrong in ({"valid_from": "soon"}, {"cardinality": "some"}):
            with pytest.raises(ValidationError) as caught:
                await session.state("a", "b", "c", **wrong)
            assert caught.value.field == next(iter(wrong))
    reply = service.client.get(f"/contexts/{session.log.id}/facts", params={"asOf": "soon"})
    assert (reply.status_code, reply.json()["errors"][0]["field"]) == (400, "asOf")
