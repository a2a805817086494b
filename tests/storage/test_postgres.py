from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any, NoReturn

import psycopg
import pytest

from acms import ConflictError, SessionNotFoundError, State, ValidationError, open_storage
from acms.errors import SchemaVersionError, StorageUnavailableError
from acms.model import Append, Context, Derived, JobDraft, Receipt
from acms.storage import PostgresStorage
from acms.storage.postgres import append as appending
from acms.storage.postgres.append import Appender
from acms.storage.postgres.pool import UnknownOutcomeError
from acms.testing import run_story, sound
from acms.testing.logs import append_drafts, create_log, draft_fact, draft_message, fork_log
from tests.servers.postgres import Databases
from tests.servers.stores import another, run_inside
from tests.storage.suite import StorageBackendTests


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


@pytest.mark.slow
class TestPostgres15(TestPostgres):
    """The oldest server, without pgvector."""

    crowd = (4, 40)

    @pytest.fixture
    async def store(self, postgres15_home):
        async with open_storage(another(postgres15_home)) as store:
            yield store


def test_a_store_on_the_oldest_server_and_plain_lists_tell_the_same_story(postgres15_home):
    run_story(lambda: open_storage(another(postgres15_home)), max_examples=2, steps=35)


@pytest.mark.parametrize("examples", [2, pytest.param(100, marks=pytest.mark.slow)])
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
        context = await create_log(store)
        await append_drafts(store, context, draft_message("one"), draft_message("two"))
        child = await fork_log(store, context, 1)
        await append_drafts(store, child, draft_message("other"))
        trips: list[int] = []
        query_all = store._db.query_all

        async def counted(*arguments: Any, **options: Any) -> Any:
            trips.append(len(arguments))
            return await query_all(*arguments, **options)

        monkeypatch.setattr(store._db, "query_all", counted)
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
        context = await create_log(one)
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


async def test_derived_rows_without_an_entry_are_found_and_deleted(shared_url: str) -> None:
    async with PostgresStorage(shared_url) as store:
        context = await create_log(store)
        await append_drafts(store, context, draft_message("one"), draft_message("two"))
        await store.put_derived(context.id, [Derived(version=n, space="s", data=b"x") for n in (1, 2)])
        assert await store.stray_rows(context.id) == []
        run_inside(shared_url, "UPDATE acms.derived SET version = 9 WHERE version = 2")
        assert await store.stray_rows(context.id) == [("s", 9)]
        assert await store.delete_stray_rows(context.id) == 1
        assert await store.stray_rows(context.id) == []
        assert [row.version for row in await store.derived(context.id, "s")] == [1]


@pytest.mark.parametrize("how", ["erase", "delete"])
async def test_no_record_stays_behind_an_erasure_it_raced_with(shared_url: str, how: str) -> None:
    """Whichever comes first: what was put goes with it, or is refused."""
    async with PostgresStorage(shared_url) as one, PostgresStorage(shared_url) as other:
        context = await create_log(one)
        for n in range(1, 5):
            await append_drafts(one, context, draft_message(str(n)))
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
            assert run_inside(shared_url, "SELECT count(*) FROM acms.records") == [(0,)]
            if how == "delete":
                await other.settings(context.id, {"deleted": False}, rev=2 * n - 1)


async def test_a_database_without_records_gets_them_by_a_migration(postgres_url: str) -> None:
    partitions = "SELECT count(*) FROM pg_inherits WHERE inhparent = 'acms.records'::regclass"
    store = PostgresStorage(postgres_url)
    await store.migrate(partitions=3)
    async with store:
        context = await create_log(store)
        await append_drafts(store, context, draft_message("one"))
    run_inside(postgres_url, "DROP TABLE acms.records")
    run_inside(postgres_url, "DELETE FROM acms.migrations WHERE version = 4")
    with pytest.raises(SchemaVersionError) as refused:
        await store.record(context.id, "a")
    assert refused.value.options == ("run acms migrate",)
    assert [step.version for step in await store.migrate()] == [4]
    assert run_inside(postgres_url, partitions) == [(3,)]
    async with store:
        assert (await store.put_record(context.id, "a", {"n": 1}, rev=0)).rev == 1
        assert len(await store.read(context.id)) == 1


# ── appends that do not come through at once ────────────────────────────────────────────────────────────────────────


def tenant_of(url: str, **given: Any) -> PostgresStorage:
    home, _, tenant = url.partition("?tenant=")
    return PostgresStorage(home, tenant=tenant, **given)


def raise_unavailable(*_: Any, **__: Any) -> NoReturn:
    raise StorageUnavailableError("nobody answers")


def keyed_append(context: Context, key: str) -> Append:
    return Append(context=context.id, drafts=(draft_message(f"under {key}", key=key),))


async def test_an_append_whose_keys_cannot_be_looked_up_is_refused_and_its_neighbours_are_not(
    tenant_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with tenant_of(tenant_url) as store:
        context = await create_log(store)
        await append_drafts(store, context, draft_message("first"))
        child = await fork_log(store, context)
        with monkeypatch.context() as broken:
            broken.setattr(store._db, "query_all", raise_unavailable)
            plain = Append(context=context.id, drafts=(draft_message("plain"),))
            refused, receipt = await store.append([keyed_append(child, "k"), plain])
        assert isinstance(refused, StorageUnavailableError)
        assert isinstance(receipt, Receipt)
        assert [entry.content for entry in await store.read(context.id)] == ["first", "plain"]
        assert len(await store.read(child.id)) == 1
        assert (await append_drafts(store, child, draft_message("under k", key="k"))).versions == (2, 2)


async def test_what_waits_behind_a_statement_that_nobody_answered_is_not_sent(
    tenant_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Patience ended once: each of them would have to wait as long again."""
    monkeypatch.setattr(appending, "LANES", 1)
    monkeypatch.setattr(appending, "TOGETHER", 2)
    async with tenant_of(tenant_url) as store:
        contexts = [await create_log(store) for _ in range(5)]
        ops = [Append(context=one.id, drafts=(draft_message("one"),)) for one in contexts]
        with monkeypatch.context() as broken:
            broken.setattr(store._db, "commit_queries", raise_unavailable)
            for result in await store.append(ops):
                assert isinstance(result, StorageUnavailableError)
                assert not result.unknown
                assert "was not sent" in str(result)
        assert all(isinstance(result, Receipt) for result in await store.append(ops))


async def test_an_append_of_which_nobody_knows_is_told_as_such(
    tenant_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a message or a key nothing says whether it was written; with one it is looked for until patience ends."""

    async def lost(*_: Any) -> NoReturn:
        raise UnknownOutcomeError("the connection was lost")

    monkeypatch.setattr(Appender, "_send_single", lost)
    async with tenant_of(tenant_url) as store:
        context = await create_log(store)
        later = Append(context=context.id, drafts=(), jobs=(JobDraft(kind="k", dedupe="d"),))
        for patience in (10.0, 0.0):
            monkeypatch.setattr(store._db.pool, "patience", patience)
            (result,) = await store.append([later if patience else keyed_append(context, "k")])
            assert isinstance(result, UnknownOutcomeError)
        assert await store.read(context.id) == []


async def test_an_append_that_others_outrun_every_time_ends(
    tenant_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[Any] = []

    async def refused(_: Any, one: Any) -> None:
        tries.append(one)

    monkeypatch.setattr(Appender, "_send_single", refused)
    async with tenant_of(tenant_url) as store:
        context = await create_log(store)
        with pytest.raises(ConflictError, match="first in every attempt"):
            await append_drafts(store, context, draft_message("one"))
        assert len(tries) == appending.TRIES + 1


async def test_a_repetition_of_what_is_erased_in_this_moment_is_said_anew(
    tenant_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with tenant_of(tenant_url) as store:
        context = await create_log(store)
        await append_drafts(store, context, draft_message("under k", key="k"))
        run_query = store._db.query

        async def raced(query: str, values: Any) -> Any:
            rows = await run_query(query, values)
            if query == "keyed" and rows:
                await store.blank(context.id, [1], to=State.ERASED, audit={})
            return rows

        monkeypatch.setattr(store._db, "query", raced)
        (receipt,) = await store.append([keyed_append(context, "k")])
        assert isinstance(receipt, Receipt)
        assert (receipt.versions, receipt.repeated) == ((2, 2), False)
        assert [entry.content for entry in await store.read(context.id)] == ["", "under k"]


async def test_a_log_that_is_full_says_so(postgres_home: str) -> None:
    async with tenant_of(another(postgres_home)) as store:
        context = await create_log(store, "a full log")
        run_inside(postgres_home, "UPDATE acms.contexts SET version = 4294967295 WHERE key = 'a full log'")
        with pytest.raises(ValidationError, match="the log is full"):
            await append_drafts(store, context, draft_message("one more"))


async def test_a_handle_that_forgets_where_it_left_its_logs_goes_on_with_them(
    tenant_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(appending, "HEADS", 1)
    async with tenant_of(tenant_url) as store:
        contexts = [await create_log(store) for _ in range(3)]
        for _ in range(2):
            await asyncio.gather(
                *[append_drafts(store, one, draft_message("one"), draft_message("two")) for one in contexts]
            )
        for one in contexts:
            assert len(await sound(store, one.id)) == 4


async def test_what_was_made_from_something_outside_of_every_log_is_kept(tenant_url: str) -> None:
    async with tenant_of(tenant_url) as store:
        context = await create_log(store)
        await append_drafts(store, context, draft_fact("from a file", sources=("a file",)))
        assert [entry.sources for entry in await store.read(context.id)] == [("a file",)]


async def test_the_jobs_of_appends_that_were_sent_together_wake_whoever_listens(tenant_url: str) -> None:
    async with tenant_of(tenant_url, hints=True) as store, tenant_of(tenant_url) as other:
        contexts = [await create_log(store) for _ in range(2)]
        woken = asyncio.Event()
        async with other.hints(woken.set):
            for n in range(6_000):  # a hint may be missed
                jobs = [(JobDraft(kind="k", dedupe=f"d{n}"),), ()]
                ops = [
                    Append(context=one.id, drafts=(draft_message("one"),), jobs=some)
                    for one, some in zip(contexts, jobs, strict=True)
                ]
                assert all(isinstance(result, Receipt) for result in await store.append(ops))
                if woken.is_set():
                    break
                await asyncio.sleep(0.01)
        assert woken.is_set()
