from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from acms import open_storage
from acms.errors import ConflictError, SchemaVersionError, SessionNotFoundError
from acms.model import Context, State
from acms.storage.postgres.store import PostgresStorage
from acms.testing import StorageBackendTests, run_story
from acms.testing.logs import fork, new, put, said
from tests.servers.postgres import Databases
from tests.servers.stores import another, inside


class TestPostgres(StorageBackendTests):
    crowd = (8, 400)

    @pytest.fixture
    async def store(self, tenant_url):
        async with open_storage(tenant_url) as store:
            yield store

    @pytest.fixture
    async def other_tenant(self, store):
        async with store.for_tenant(f"{store.tenant}-other") as other:
            yield other


@pytest.mark.slow
class TestPostgresOfManyWriters(TestPostgres):
    """The same with as many writers as every other store has."""

    crowd = StorageBackendTests.crowd


class TestPostgres15(TestPostgres):
    """The oldest server, without pgvector."""

    crowd = (4, 40)

    @pytest.fixture
    async def store(self, postgres15_home):
        async with open_storage(another(postgres15_home)) as store:
            yield store


@pytest.mark.parametrize("examples", [4, pytest.param(100, marks=pytest.mark.slow)])
def test_the_postgres_store_and_plain_lists_tell_the_same_story(postgres_home, examples):
    run_story(lambda: open_storage(another(postgres_home)), max_examples=examples, steps=35)


@pytest.fixture(scope="module")
def shared_url(postgres: Databases) -> Iterator[str]:
    """A database for the tests that look at, or hold, every row of it."""
    url = postgres.create_database()
    yield url
    postgres.drop_database(url)


async def test_a_log_that_is_known_is_read_in_one_round_trip(
    shared_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with PostgresStorage(shared_url) as store:
        context = await new(store)
        await put(store, context, said("one"), said("two"))
        child = await fork(store, context, 1)
        await put(store, child, said("other"))
        trips: list[int] = []
        ask = store._db.ask

        async def counted(*arguments: Any, **options: Any) -> Any:
            trips.append(len(arguments))
            return await ask(*arguments, **options)

        monkeypatch.setattr(store._db, "ask", counted)
        assert [entry.content for entry in await store.read(context.id)] == ["one", "two"]
        assert [entry.content for entry in await store.read(child.id)] == ["one", "other"]
        assert [entry.content for entry in await store.read(child.id, newest=1)] == ["other"]
        assert await store.read(child.id, after=5) == []
        assert trips == [2, 3, 2, 2]
        assert [entry.content for entry in await store.read(child.id, newest=2)] == ["one", "other"]
        assert trips == [2, 3, 2, 2, 2, 1]  # the older run only when it is needed
        await store.settings(child.id, {"deleted": True}, rev=0)
        with pytest.raises(SessionNotFoundError):
            await store.read(child.id)
        assert len(await store.read(child.id, deleted=True)) == 2
        assert await store.read(context.id, at=10**30, newest=1) == await store.read(context.id, after=1)


@pytest.mark.parametrize("change", [{"deleted": True}, {"name": "A"}], ids=["delete", "rename"])
async def test_of_two_writers_of_the_same_settings_at_once_one_is_refused(
    shared_url: str, change: dict[str, Any]
) -> None:
    """Both have read the settings and wait for the row; the one that comes second has changed nothing."""
    async with PostgresStorage(shared_url) as one, PostgresStorage(shared_url) as other:
        context = await new(one)
        async with (
            await psycopg.AsyncConnection.connect(shared_url) as holder,
            await psycopg.AsyncConnection.connect(shared_url, autocommit=True) as watch,
        ):
            await holder.execute("SELECT 1 FROM acms.contexts FOR UPDATE")
            tasks = [asyncio.ensure_future(s.settings(context.id, change, rev=0)) for s in (one, other)]
            query = (
                "SELECT count(*) FROM pg_stat_activity"
                " WHERE wait_event_type = 'Lock' AND datname = current_database()"
            )
            while (await (await watch.execute(query)).fetchall())[0][0] < 2:
                await asyncio.sleep(0.01)
            await holder.rollback()
        done = await asyncio.gather(*tasks, return_exceptions=True)
        assert {type(result) for result in done} == {ConflictError, Context}
        assert (await one.context(context.id)).settings_rev == 1


@pytest.mark.parametrize("how", ["erase", "delete"])
async def test_no_record_stays_behind_an_erasure_it_raced_with(shared_url: str, how: str) -> None:
    """Whichever comes first: what was put goes with it, or is refused."""
    async with PostgresStorage(shared_url) as one, PostgresStorage(shared_url) as other:
        context = await new(one)
        for n in range(1, 5):
            await put(one, context, said(str(n)))
            await one.put_record(context.id, "a", {}, rev=0)
            async with await psycopg.AsyncConnection.connect(shared_url) as holder:
                await holder.execute("SELECT 1 FROM acms.contexts FOR UPDATE")
                gone: Any = (
                    other.blank(context.id, [n], to=State.ERASED, audit={})
                    if how == "erase"
                    else other.settings(context.id, {"deleted": True}, rev=2 * n - 2)
                )
                both: list[Any] = [one.put_record(context.id, "a", {"late": n}, rev=1), gone]
                tasks = [asyncio.ensure_future(call) for call in (both if n % 2 else reversed(both))]
                await asyncio.sleep(0.1)
                await holder.rollback()
            await asyncio.gather(*tasks, return_exceptions=True)
            assert inside(shared_url, "SELECT count(*) FROM acms.records") == [(0,)]
            if how == "delete":
                await other.settings(context.id, {"deleted": False}, rev=2 * n - 1)


async def test_a_database_without_records_gets_them_by_a_migration(postgres_url: str) -> None:
    partitions = "SELECT count(*) FROM pg_inherits WHERE inhparent = 'acms.records'::regclass"
    store = PostgresStorage(postgres_url)
    await store.migrate(partitions=3)
    async with store:
        context = await new(store)
        await put(store, context, said("one"))
    inside(postgres_url, "DROP TABLE acms.records")
    inside(postgres_url, "DELETE FROM acms.migrations WHERE version = 4")
    with pytest.raises(SchemaVersionError) as refused:
        await store.record(context.id, "a")
    assert refused.value.options == ("run acms migrate",)
    assert [step.version for step in await store.migrate()] == [4]
    assert inside(postgres_url, partitions) == [(3,)]
    async with store:
        assert (await store.put_record(context.id, "a", {"n": 1}, rev=0)).rev == 1
        assert len(await store.read(context.id)) == 1
