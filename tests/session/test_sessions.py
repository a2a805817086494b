"""What a session is called and listed by, views at a tag, deleting; and one line that says what an object is."""

from __future__ import annotations

from typing import Any

import pytest

from acms import ACMS, ContextItems, NotFoundError, SessionNotFoundError, ValidationError, open_storage
from acms.errors import HandleError
from acms.kv import InMemoryKV, PostgresKV, RedisKV, SQLiteKV
from acms.model import ContextQuery
from acms.ports import HasHeads
from acms.storage import CachedStorage, SQLiteStorage
from acms.storage.sessions import compose_session_page
from tests.support.faulty import FaultyStorage


def texts_of_items(items: ContextItems) -> list[str]:
    return [item.content for item in items]


async def create_session(storage: Any, session_id: str, **about: Any) -> None:
    async with ACMS(session_id, storage, None, **about) as session:
        await session.ingest("user", f"I am {session_id}.")


async def session_ids(storage: Any, **asked: Any) -> list[str]:
    return [one.session_id for one in (await storage.sessions(**asked)).sessions]


async def test_a_session_is_found_by_its_labels_its_name_and_its_metadata(url: str) -> None:
    async with open_storage(url) as storage:
        await create_session(storage, "plain")
        gold = {"tier": "gold", "open": True, "n": 1}
        await create_session(
            storage, "a", namespace="user:1", name="Case A", labels=["support", "new"], metadata=gold
        )
        await create_session(
            storage, "b", namespace="user:1", labels=["support"], metadata={"tier": "free", "n": 1.0}
        )
        await create_session(storage, "c", namespace="user:2", labels=["sales"], metadata={"tier": ["gold"]})
        async with ACMS("a", storage, None, namespace="user:1") as parent:
            await (await parent.fork(session_id="a2")).close()
        for store in (storage, CachedStorage(storage), FaultyStorage(storage)):
            assert await session_ids(store) == ["a2", "c", "b", "a", "plain"]
            assert await session_ids(store, namespace="user:1") == ["a2", "b", "a"]
            assert await session_ids(store, where={"label": "support"}) == ["b", "a"]
            assert await session_ids(store, where={"label": ["new", "support"]}) == ["a"]
            assert await session_ids(store, where={"label": "support", "tier": "free"}) == ["b"]
            assert await session_ids(store, where={"metadata": {"tier": "gold"}}) == ["a"], (
                "and no list of it"
            )
            assert await session_ids(store, where={"n": 1}) == ["b", "a"], "1 and 1.0 are the same number"
            assert await session_ids(store, where={"open": 1}) == [], "True is no number"
            assert await session_ids(store, where={"name": "Case A"}, namespace="user:2") == []
        (found,) = (await storage.sessions(where={"name": "Case A"})).sessions
        assert (found.name, found.labels, dict(found.metadata)) == ("Case A", ("support", "new"), gold)
        assert (found.message_count, found.namespace, found.session_id) == (1, "user:1", "a")


async def test_an_id_opens_no_log_of_another_namespace(url: str) -> None:
    async with open_storage(url) as storage:
        async with ACMS("a", storage, None, namespace="user:alice") as alice:
            await alice.ingest("user", "The pin is 4711.")
            id = str(await alice.context_id())
            async with ACMS(id, storage, None, namespace="user:bob") as bob:
                for asked in (
                    lambda: bob.window(100),
                    lambda: bob.recall("pin", budget=100),
                    lambda: bob.ingest("user", "hi"),
                    lambda: bob.state("a", "b", "c"),
                    bob.fork,
                    bob.delete,
                ):
                    with pytest.raises(ValidationError, match="is the id of a log of another one") as caught:
                        await asked()
                    assert (caught.value.field, len(caught.value.options)) == ("namespace", 2)
            assert (await alice.get_session_stats()).version == 1
        for namespace in ("user:alice", "default"):
            async with ACMS(id, storage, None, namespace=namespace) as again:
                assert "4711" in (await again.window(100)).text()
                assert again.namespace == "user:alice"


async def test_what_was_never_written_to_says_what_to_do(url: str) -> None:
    async with open_storage(url) as storage, ACMS("never", storage, None) as session:
        for asked in (
            session.fork,
            lambda: session.tag("t"),
            session.compact,
        ):
            with pytest.raises(SessionNotFoundError, match="does not exist yet") as caught:
                await asked()
            assert caught.value.options[0] == "store a message in it: that creates it"


async def test_a_page_says_of_each_session_what_its_context_and_its_head_say(url: str) -> None:
    async with open_storage(url) as storage:
        await create_session(storage, "a", name="One", labels=["x", "y"], metadata={"k": [1, None]})
        async with ACMS("a", storage, None) as parent:
            await parent.ingest("assistant", "Hello.")
            for name, at in (("head", None), ("earlier", 1), ("empty", 0)):
                async with await parent.fork(session_id=name, at=at) as child:
                    await (await child.fork(session_id=f"{name} again")).close()
        await create_session(storage, "gone")
        async with ACMS("gone", storage, None) as session:
            await session.delete()
        assert isinstance(storage, HasHeads)
        after: str | None = None
        for size, more in ((4, True), (3, False)):
            query = ContextQuery(spoken=True, limit=size, after=after)
            page = await storage.session_page(query)
            assert page == await compose_session_page(storage, query)
            assert (len(page.sessions), page.next_after is not None) == (size, more)
            after = page.next_after


async def test_what_is_said_of_a_session_is_changed_by_its_next_write(url: str) -> None:
    async with open_storage(url) as storage:
        await create_session(storage, "a", name="One", labels=["x"], metadata={"k": 1})
        async with ACMS("a", storage, None, name="Two", labels=[], metadata={"l": 2}) as session:
            assert await session.history(), "reading changes nothing"
            assert (await storage.sessions()).sessions[0].name == "One"
            await session.ingest("user", "Again.")
        (found,) = (await storage.sessions()).sessions
        assert (found.name, found.labels, dict(found.metadata)) == ("Two", (), {"l": 2})
        await create_session(storage, "a")  # nothing is said: nothing changes
        assert (await storage.sessions()).sessions[0].name == "Two"


async def test_sessions_come_page_by_page_without_what_a_namespace_keeps_for_itself(url: str) -> None:
    async with open_storage(url) as storage:
        for number in range(7):
            await create_session(storage, f"s{number}", labels=["odd"] if number % 2 else [])
        async with ACMS("s3", storage, None) as session:
            from acms.log import policy

            await policy.change_namespace(storage, "default", {"enabled": False})
            await session.delete()
        found: list[str] = []
        after: str | None = None
        while True:
            page = await storage.sessions(after=after, limit=2)
            found += [one.session_id for one in page.sessions]
            after = page.next_after
            if after is None:
                break
        assert found == ["s6", "s5", "s4", "s2", "s1", "s0"]
        page = await storage.sessions(where={"label": "odd"}, limit=1)
        assert [one.session_id for one in page.sessions] == ["s5"]
        assert await session_ids(storage, where={"label": "odd"}, after=page.next_after) == ["s1"]


@pytest.mark.parametrize(
    ("asked", "field"),
    [
        ({"limit": 0}, "limit"),
        ({"limit": 501}, "limit"),
        ({"after": "nobody"}, "after"),
        ({"where": ["label"]}, "where"),
        ({"where": {"label": 1}}, "where.label"),
        ({"where": {"after": "2026-01-01"}}, "where.after"),
        ({"where": {"metadata": 3}}, "where.metadata"),
        ({"namespace": ""}, "namespace"),
    ],
)
async def test_a_question_that_makes_no_sense_is_refused(url: str, asked: dict[str, Any], field: str) -> None:
    async with open_storage(url) as storage:
        with pytest.raises(ValidationError) as refused:
            await storage.sessions(**asked)
        assert refused.value.field == field


@pytest.mark.parametrize("about", [{"labels": "support"}, {"labels": [""]}, {"metadata": 1}, {"name": 1}])
def test_what_is_said_of_a_session_is_checked_at_once(about: dict[str, Any]) -> None:
    with pytest.raises(ValidationError) as refused:
        ACMS("a", "memory://", None, **about)
    assert refused.value.field in about


async def test_a_view_at_a_tag_is_that_of_its_version(url: str) -> None:
    async with ACMS("s", open_storage(url), None) as session:
        await session.ingest("user", "We use MySQL.")
        await session.tag("before")
        await session.ingest("user", "We use PostgreSQL.")
        view, plain = session.at("before"), session.at(1)
        assert repr(view).endswith("at='before')")
        assert (
            texts_of_items(await view.window(100))
            == texts_of_items(await plain.window(100))
            == ["We use MySQL."]
        )
        assert await session.at("before").get_session_stats() == await plain.get_session_stats()
        assert texts_of_items(await session.at("before").recall("what do we use?")) == ["We use MySQL."]
        assert (await session.at("before").diff("before")).messages.added == ()
        assert len((await session.at("before").diff(session)).messages.added) == 1
        await session.tag("before", move=True)
        assert texts_of_items(await view.window(100)) == ["We use MySQL."], "it stays where it was"
        for use in (session.at("after").window(100), session.fork(at="after"), session.diff("after")):
            with pytest.raises(NotFoundError, match="there are: before"):
                await use
        with pytest.raises(ValidationError):
            session.at("")
    async with ACMS("nobody", open_storage(url), None) as nobody:
        with pytest.raises(NotFoundError, match="there are no tags"):
            await nobody.at("before").history()


async def test_a_deleted_session_is_gone_and_its_name_is_free(url: str) -> None:
    async with open_storage(url) as storage:
        async with ACMS("s", storage, None) as session:
            await session.ingest("user", "Old.")
            child = await session.fork(session_id="child")
            assert [branch.session_id for branch in await session.delete()] == ["child"]
            assert await session_ids(storage) == ["child"]
            await child.close()
            with pytest.raises(SessionNotFoundError):
                await session.delete()
            await session.ingest("user", "New.")
            assert texts_of_items(await session.window(100)) == ["New."]
        with pytest.raises(HandleError):
            await session.delete()


def test_one_line_says_what_an_object_is_and_no_secret() -> None:
    storage = open_storage("postgresql://user:hunter2@db.example/acms?tenant=acme")
    told = [
        (storage, "PostgresStorage(db.example/acms, tenant='acme')"),
        (SQLiteStorage("memory.db"), "SQLiteStorage('memory.db', tenant='default')"),
        (
            CachedStorage(open_storage("memory://")),
            "CachedStorage(MemoryStorage(tenant='default'))",
        ),
        (InMemoryKV(), "InMemoryKV(0 keys)"),
        (SQLiteKV("a.db", read_only=True), "SQLiteKV('a.db', tenant='default', read_only=True)"),
        (PostgresKV("postgresql://u:hunter2@db/acms"), "PostgresKV(db/acms, tenant='default')"),
        (RedisKV("redis://:hunter2@cache:6379/0"), "RedisKV('redis://cache:6379/0', prefix='acms:kv:')"),
        (
            ACMS("s", SQLiteStorage("memory.db"), None, namespace="user:1"),
            "ACMS('s', SQLiteStorage('memory.db', tenant='default'), namespace='user:1')",
        ),
    ]
    for one, line in told:
        assert repr(one) == line


async def test_a_result_is_one_short_line() -> None:
    async with ACMS("s", "memory://", None) as session:
        for text in ("We use PostgreSQL.\n" * 1000, "Lunch was at noon."):
            id = await session.ingest("user", text)
        fork = await session.fork(session_id="f")
        synced = await session.sync([{"role": "user", "content": f"message {n}"} for n in range(99)])
        edited = await session.replace(id, "x" * 10_000)
        stated = await session.state("s" * 200, "a" * 200, "v" * 200, sources=[id])
        job = await session.compact(preserve_recent_count=2)
        items = await session.recall("PostgreSQL", budget=50)
        diff = await session.diff(fork)
        results: list[Any] = [
            session.last_receipt, synced, await session.get(edited), stated, job, await session.wait(job),
            await session.history(), (await session.history()).entries[0], (await session.episodes())[0],
            diff, diff.messages, items, items.ledger, await session.get_session_stats(), await session.tree(),
            (await session.forks())[0], await session.merge(fork, dry_run=True), await session.erase(edited),
            await session.storage.sessions(namespace="default"),
            *[event async for event in session.events(follow=False)][:3],
        ]  # fmt: skip
    for result in results:
        assert len(repr(result)) < 400, repr(result)
        assert "\n" not in repr(result)
    assert repr(synced).startswith("<Synced appended=99, replaced=0, retracted=0, ")
    shown = sum(verdict.included for verdict in items.ledger)
    assert repr(items.ledger).startswith(f"<Ledger {shown} shown, ")


async def test_an_item_shows_no_more_than_the_beginning_of_its_text() -> None:
    async with ACMS("s", "memory://", None) as session:
        await session.ingest(
            "user", "The migration of the orders service begins at nine.\nNobody knows when it ends."
        )
        (item,) = items = await session.window(100)
        assert "orders" in repr(item)
        assert "Nobody" not in repr(item) + repr(items)
        assert await session.window(5) == []
        (item,) = cut = await session.window(6)
        assert item.truncated
        assert "was cut to fit" in cut.ledger.warnings[0]
