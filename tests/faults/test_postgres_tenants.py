"""T33, T34: tenants that share connections see nothing of each other, even without the predicates of the queries."""

from __future__ import annotations

import asyncio
import io
import logging
import random
import re
import secrets
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from acms import ACMSError, GoneError, SessionNotFoundError, State, StorageError
from acms.model import Append, Context, ContextQuery, Derived, Done, Failed, JobDraft, JobQuery, Lease, Search
from acms.observability import JSONFormatter
from acms.storage import PostgresStorage
from acms.testing import sound
from acms.testing.logs import append_drafts, create_log, draft_fact, draft_message, fork_log
from tests.servers.postgres import Databases
from tests.servers.stores import run_inside

MINUTE = timedelta(minutes=1)
MINE = re.compile(r"\b(?:\w+\.)?tenant_id = %\(tenant\)s")
"""The predicate every query has."""
FUNCTIONS = ("places", "nearest")
"""Queries that hand the tenant to a function."""


@pytest.fixture(scope="module")
def home(postgres: Databases) -> Iterator[str]:
    """A database of these tests."""
    url = postgres.create_database()
    yield url
    postgres.drop_database(url)


@pytest.fixture
async def pair(home: str) -> AsyncIterator[tuple[PostgresStorage, PostgresStorage]]:
    """Two tenants on one pool."""
    name = secrets.token_hex(6)
    async with (
        PostgresStorage(home, tenant=f"alpha-{name}", pool_size=4) as one,
        one.for_tenant(f"omega-{name}") as two,
    ):
        yield one, two


async def do_random_thing(store: PostgresStorage, word: str, rng: random.Random) -> list[Any]:
    """Do one random thing with names that every tenant uses; return whatever was answered."""
    key = f"talk-{rng.randrange(4)}"
    context = await create_log(store, key)
    version = (await store.head(context.id)).version
    dice = rng.randrange(13)
    try:
        if dice < 4:
            draft = rng.choice((draft_message, draft_fact))(
                f"{word} said it", key=f"k{rng.randrange(40)}", actor=word
            )
            return [await store.append([Append(context=context.id, drafts=(draft,), tail={"who": word})])]
        if dice == 4:
            draft = JobDraft(kind="k", dedupe=f"{key}:{rng.randrange(9)}", payload={"who": word})
            return [await append_drafts(store, context, jobs=(draft,))]
        if dice == 5:
            leases = await store.claim(["k"], lease=MINUTE, limit=3)
            settled = [
                await store.settle(one, rng.choice((Done(), Failed(error=f"{word} failed"))))
                for one in leases
            ]
            return [leases, settled]
        if dice == 6:
            return [(await store.jobs(JobQuery(limit=50))).items]
        if dice == 7:
            return [(await store.contexts(ContextQuery(limit=50, deleted=True))).items]
        if dice == 8 and version:
            row = Derived(version=rng.randint(1, version), space="s", data=word.encode())
            return [await store.put_derived(context.id, [row]), await store.derived(context.id, "s")]
        if dice == 9:
            query = Search(namespace="default", terms=("said",))
            return [await store.search(query), await store.missing("s", limit=100)]
        if dice == 10 and version:
            return [
                await store.blank(context.id, [rng.randint(1, version)], to=State.ERASED, audit={"who": word})
            ]
        if dice == 11:
            return [await fork_log(store, context, key=f"fork-{rng.randrange(3)}")]
        rev = (await store.context(context.id)).settings_rev
        return [await store.settings(context.id, {"who": word}, rev=rev), await store.read(context.id)]
    except ACMSError as error:
        return [error]


async def test_t33_fifty_tasks_of_two_tenants_on_one_pool_see_nothing_of_each_other(
    pair: tuple[PostgresStorage, PostgresStorage],
) -> None:
    told = io.StringIO()
    handler = logging.StreamHandler(told)
    handler.setFormatter(JSONFormatter())
    logging.getLogger("acms").addHandler(handler)
    secret = {pair[0].tenant: "zanzibar", pair[1].tenant: "timbuktu"}
    try:

        async def task(number: int) -> None:
            store, other = pair if number % 2 else pair[::-1]
            rng = random.Random(number)
            for _ in range(3):
                answer = await do_random_thing(store, secret[store.tenant], rng)
                assert secret[other.tenant] not in str(answer)
                if rng.random() < 0.2:
                    foreign = (await other.contexts(ContextQuery(limit=1))).items
                    for context in foreign:  # its real ids open nothing
                        await nothing_of(store, context)

        await asyncio.gather(*(task(number) for number in range(50)))
    finally:
        logging.getLogger("acms").removeHandler(handler)
    assert not any(word in told.getvalue() for word in secret.values())
    for store in pair:
        found = (await store.contexts(ContextQuery(limit=100, deleted=True))).items
        assert {context.key for context in found} >= {f"talk-{n}" for n in range(4)}
        for context in found:
            entries = await sound(store, context.id)
            live = [entry for entry in entries if entry.state is State.LIVE]
            assert {entry.content for entry in live} <= {f"{secret[store.tenant]} said it"}
    assert len(pair[0]._db.pool.bind().all) <= 4


async def nothing_of(store: PostgresStorage, context: Context) -> None:
    """Assert that a context of another tenant does not exist for a store, whatever it is asked."""
    entry = f"m_{context.id.removeprefix('c_')}_1_aaaaaa"
    calls: list[Callable[[], Awaitable[Any]]] = [
        lambda: store.context(context.id),
        lambda: store.head(context.id),
        lambda: store.read(context.id),
        lambda: store.derived(context.id, "s"),
        lambda: store.missing("s", context=context.id, limit=5),
        lambda: store.settings(context.id, {"x": 1}, rev=context.settings_rev),
        lambda: store.blank(context.id, [1], to=State.ERASED, audit={}),
        lambda: append_drafts(store, context, draft_message("intruder")),
        lambda: fork_log(store, context),
        lambda: store.put_derived(context.id, [Derived(version=1, space="s", data=b"x")]),
    ]
    for call in calls:
        with pytest.raises(SessionNotFoundError):
            await call()
    assert await store.get([entry]) == [None]


async def test_t33_without_the_predicates_of_the_queries_row_level_security_shows_nothing(
    pair: tuple[PostgresStorage, PostgresStorage],
) -> None:
    """The net under every query: the tenant is taken out of all of them, and still nothing of the other is there."""
    one, two = pair
    context = await create_log(one, "talk")
    await append_drafts(
        one,
        context,
        draft_message("zanzibar", key="k"),
        draft_fact("zanzibar"),
        jobs=(JobDraft(kind="k", dedupe="d"),),
    )
    await one.put_derived(context.id, [Derived(version=1, space="s", data=b"zanzibar")])
    await one.blank(context.id, [2], to=State.EXPIRED, audit={"who": "zanzibar"})
    left = {name: MINE.sub("TRUE", text) for name, text in two._db._sql.items()}
    bare = [name for name, text in two._db._sql.items() if left[name] == text]
    assert set(bare) <= {"insert_context", "insert_entry", "insert_audit", "horizon", "hint", *FUNCTIONS}, (
        bare
    )
    two._db._sql = left
    await nothing_of(two, context)
    assert (await two.contexts(ContextQuery(deleted=True))).items == ()
    assert (await two.contexts(ContextQuery(parent=context.id))).items == ()
    assert (await two.contexts(ContextQuery(root=context.id))).items == ()
    assert (await two.jobs(JobQuery())).items == ()
    assert await two.claim(["k"], lease=MINUTE) == []
    assert await two.search(Search(namespace="default", terms=("zanzibar",))) == []
    assert await two.missing("s", limit=10) == []
    assert (await two.feed()).items == ()
    (job,) = (await one.jobs(JobQuery())).items
    with pytest.raises(GoneError):
        await two.settle(Lease(job=job, attempt=job.attempt, until=job.not_before), Failed(error="theirs"))
    assert await one.read(context.id) == await sound(one, context.id)


async def test_t33_no_row_can_be_written_for_another_tenant(
    pair: tuple[PostgresStorage, PostgresStorage],
) -> None:
    """The policy also checks writes."""
    one, two = pair
    await create_log(one, "talk")
    theirs = f"'{one.tenant}'"
    two._db._sql = {name: text.replace("%(tenant)s", theirs) for name, text in two._db._sql.items()}
    with pytest.raises((StorageError, ACMSError)):
        await create_log(two, "another")
    assert [context.key for context in (await one.contexts(ContextQuery())).items] == ["talk"]


async def test_t33_naming_another_tenant_to_a_search_finds_nothing(
    pair: tuple[PostgresStorage, PostgresStorage],
) -> None:
    """Also where a function looks into an index that no policy guards."""
    one, two = pair
    context = await create_log(one, "talk")
    receipt = await append_drafts(
        one, context, draft_fact("zanzibar is warm"), *(draft_fact(f"padding {n}") for n in range(5))
    )
    space = "m/4/f32/p"
    vector = struct.pack("<4f", 1, 0, 0, 0)
    await one.put_derived(context.id, [Derived(version=receipt.versions[0], space=space, data=vector)])
    queries = [
        Search(namespace="default", terms=("zanzibar",)),
        Search(namespace="default", vector=(1.0, 0.0, 0.0, 0.0), space=space),
    ]
    for query in queries:
        assert [hit.id for hit in await one.search(query)][:1] == [receipt.ids[0]]
    theirs = f"'{one.tenant}'"
    two._db._sql = {name: text.replace("%(tenant)s", theirs) for name, text in two._db._sql.items()}
    for query in queries:
        assert await two.search(query) == []


async def test_t33_neither_the_role_nor_the_owner_of_the_tables_is_above_the_policy(
    postgres: Databases, postgres_url: str
) -> None:
    name = postgres_url.rpartition("/")[2]
    owner = f"owner_{name}"
    postgres.execute(f"CREATE ROLE {owner} LOGIN CREATEROLE")
    for (role,) in postgres.execute("SELECT rolname FROM pg_roles WHERE rolname LIKE 'acms\\_%'"):
        # As a member that inherits he would be shown what the role of the search function is shown.
        postgres.execute(f"GRANT {role} TO {owner} WITH INHERIT FALSE, SET TRUE")
    postgres.execute(f"GRANT CREATE ON DATABASE {name} TO {owner}")
    try:
        async with PostgresStorage(postgres_url.replace("postgres@", f"{owner}@"), tenant="alpha") as store:
            await append_drafts(store, await create_log(store, "talk"), draft_message("zanzibar"))
        tables = ("contexts", "entries", "derived", "jobs", "audit", "entries_0")
        with psycopg.connect(postgres_url.replace("postgres@", f"{owner}@"), autocommit=True) as connection:
            for table in tables[:5]:  # as the owner, without a tenant and with another one
                assert connection.execute(f"SELECT * FROM acms.{table}").fetchall() == []  # type: ignore[arg-type]  # noqa: S608
            with connection.transaction():
                connection.execute("SET LOCAL ROLE acms_app")
                for table in tables[:4]:  # who may not even ask for the record of erasures
                    assert connection.execute(f"SELECT * FROM acms.{table}").fetchall() == []  # type: ignore[arg-type]  # noqa: S608
            connection.execute("SET ROLE acms_app")
            for table in tables[
                4:
            ]:  # nobody reads the record of erasures; a partition by itself has no policy
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    connection.execute(f"SELECT * FROM acms.{table}")  # type: ignore[arg-type]  # noqa: S608
        role = postgres.execute(
            "SELECT rolsuper, rolbypassrls, rolcanlogin, rolinherit FROM pg_roles WHERE rolname = 'acms_app'"
        )
        assert role == [(False, False, False, False)]
        bound = run_inside(
            postgres_url,
            "SELECT relname FROM pg_class JOIN pg_namespace n ON n.oid = relnamespace WHERE nspname = 'acms'"
            " AND relkind IN ('r', 'p') AND NOT relispartition AND NOT (relrowsecurity AND relforcerowsecurity)",
        )
        assert bound == [("migrations",)]
    finally:
        run_inside(postgres_url, f"DROP OWNED BY {owner} CASCADE")
        postgres.execute(f"DROP OWNED BY {owner} CASCADE")
        postgres.execute(f"DROP ROLE {owner}")


# ── T34: connections that are used again ────────────────────────────────────────────────────────────────────────────


async def state_of(store: PostgresStorage) -> list[tuple[Any, ...]]:
    """The settings that idle connections of a pool still carry."""
    found = []
    for connection in list(store._db.pool.bind().idle):
        cursor = await connection.execute(
            "SELECT nullif(current_setting('acms.tenant', true), ''), current_user,"
            " current_setting('statement_timeout'), pg_current_xact_id_if_assigned()"
        )
        found.append(tuple(await cursor.fetchone() or ()))
    return found


CLEAN = (None, "postgres", "0", None)


async def test_t34_after_an_exception_in_a_transaction_nothing_of_it_is_left(
    pair: tuple[PostgresStorage, PostgresStorage],
) -> None:
    one, two = pair
    context = await create_log(one, "talk")

    class Own(Exception):
        pass

    async def raising(connection: Any) -> None:
        await one._db.query_in(connection, "lock_context", {"context": context.id})
        raise Own

    async def failing(connection: Any) -> None:
        await connection.execute("SELECT 1 / 0")

    for work, error in ((raising, Own), (failing, ACMSError)):
        with pytest.raises(error):
            await one._db.run_transaction(work)
        assert set(await state_of(one)) <= {CLEAN}
        assert await two.read((await create_log(two, "talk")).id) == []
        await append_drafts(one, context, draft_message("goes on"))  # no lock is left
    assert set(await state_of(one)) <= {CLEAN}


async def test_t34_cancelled_at_any_moment_a_call_leaves_no_connection_busy(
    pair: tuple[PostgresStorage, PostgresStorage], postgres: Databases
) -> None:
    one, two = pair
    context = await create_log(one, "talk")
    source = (await append_drafts(one, context, draft_message("first"))).ids[0]
    rng = random.Random(34)

    async def lease() -> Any:
        (found,) = await one.claim(["k"], lease=MINUTE)
        return found

    calls: list[Callable[[int], Awaitable[Any]]] = [
        lambda n: append_drafts(one, context, draft_message(f"m{n}")),
        lambda n: append_drafts(one, context, draft_fact(f"f{n}", sources=(source,))),
        lambda n: one.blank(context.id, [2], to=State.ERASED, audit={}),
        lambda n: one.read(context.id),
        lambda n: one.put_derived(context.id, [Derived(version=1, space="s", data=b"x")]),
        lambda n: one.claim(["k"], lease=MINUTE),
    ]
    cancelled = 0
    for n in range(60):
        tasks = [asyncio.ensure_future(call(n)) for call in rng.sample(calls, 3)]
        for _ in range(rng.randrange(25)):
            await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        cancelled += sum(isinstance(result, asyncio.CancelledError) for result in results)
        assert not [error for error in results if isinstance(error, ACMSError)]
    assert cancelled > 60
    while one._appender._tasks:
        await asyncio.gather(*one._appender._tasks)
    pool = one._db.pool
    lane = pool.bind()
    assert lane.free._value == pool.size, "a permit was lost"
    assert len(lane.all) == len(lane.idle) <= pool.size, "a connection is busy for ever"
    assert set(await state_of(one)) <= {CLEAN}
    name = one._db.pool.name.rpartition("/")[2]
    of_clients = f"datname = '{name}' AND backend_type = 'client backend'"  # not autovacuum
    busy = f"SELECT state, query FROM pg_stat_activity WHERE {of_clients} AND state <> 'idle'"  # noqa: S608
    assert postgres.execute(busy) == []
    assert await two.read((await create_log(two, "talk")).id) == []
    await sound(one, context.id)


async def test_t34_a_handle_that_is_closed_while_calls_run_leaves_no_connection(postgres: Databases) -> None:
    url = postgres.create_database()
    async with AsyncExitStack() as stack:
        store = await stack.enter_async_context(PostgresStorage(url, retry_seconds=5))
        context = await create_log(store)
        calls = [
            asyncio.ensure_future(append_drafts(store, context, draft_message(f"m{n}"))) for n in range(20)
        ]
        await asyncio.sleep(0)
        await store.aclose()
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert not [error for error in results if isinstance(error, BaseException)]
        assert len(await sound(store, context.id)) == 20
    name = url.rpartition("/")[2]
    count = f"SELECT count(*) FROM pg_stat_activity WHERE datname = '{name}'"  # noqa: S608
    while postgres.execute(count) != [(0,)]:
        await asyncio.sleep(0.01)
    postgres.drop_database(url)
