"""Key-value memory on servers: PostgreSQL and Redis, also when they are not there (T47)."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import psycopg
import pytest
from redis.asyncio import Redis

from acms import ConfigurationError, ConflictError, StorageError, ValidationError
from acms.errors import CorruptRecordError, StorageFullError, StorageReadOnlyError, StorageUnavailableError
from acms.kv import PostgresKV, RedisKV, open_kv, update_entry
from acms.storage import PostgresStorage
from acms.testing import sound
from acms.testing.logs import append_drafts, create_log, draft_message
from tests.servers.pgbouncer import PgBouncer
from tests.servers.stores import another
from tests.storage.suite import KVMemoryTests
from tests.storage.test_kv import counted_by_processes, next_count


@pytest.fixture(scope="module")
def shared_url(postgres):
    """A database for all tests that need no empty one: making the schema takes longer than they do."""
    url = postgres.create_database()
    yield url
    postgres.drop_database(url)


async def await_available(call: Callable[[], Awaitable[Any]]) -> Any:
    """Return what a store with little patience answers, once its server does so in time."""
    async with asyncio.timeout(300):
        while True:
            with suppress(StorageUnavailableError):
                return await call()


class TestPostgresKV(KVMemoryTests):
    takes_clock = True

    @pytest.fixture
    async def store(self, shared_url, clock):
        async with PostgresKV(shared_url, tenant=secrets.token_hex(8), clock=clock) as store:
            yield store

    @pytest.fixture
    async def second(self, shared_url, store, clock):
        async with PostgresKV(shared_url, tenant=store.tenant, clock=clock) as second:
            yield second

    @pytest.fixture
    async def other_tenant(self, shared_url, store):
        async with PostgresKV(shared_url, tenant=secrets.token_hex(8)) as other:
            yield other


class TestRedisKV(KVMemoryTests):
    takes_clock = True

    @pytest.fixture
    async def store(self, redis_url, clock):
        async with RedisKV(redis_url, clock=clock) as store:
            yield store

    @pytest.fixture
    async def second(self, redis_url, store, clock):
        async with RedisKV(redis_url, clock=clock) as second:
            yield second

    @pytest.fixture
    async def other_tenant(self, redis_url, store):
        async with RedisKV(redis_url, prefix="other:kv:") as other:
            yield other


@pytest.fixture(scope="module")
def pgbouncer_home(postgres_home):
    """The URL of a database behind a PgBouncer in transaction mode, which keeps connections to it."""
    with PgBouncer(postgres_home) as pool:
        yield pool.url


@pytest.fixture(params=["postgres", "postgres15", "pgbouncer", "redis"])
def url(request):
    """The URL of an empty store on a server; PgBouncer gives a connection away after each transaction."""
    if request.param == "redis":
        return request.getfixturevalue("redis_url")
    return another(request.getfixturevalue(f"{request.param}_home"))


async def test_processes_on_one_server_lose_nothing(url):
    assert await counted_by_processes(url, processes=2, times=12) == list(range(1, 25))


async def test_cancelled_calls_do_not_mix_up_answers(url):
    async with open_kv(url) as store:
        for n in range(10):
            await store.set(f"k{n}", n)
        for turn in range(40):
            calls = [asyncio.create_task(store.get(f"k{n}")) for n in range(10)]
            for _ in range(turn % 8):
                await asyncio.sleep(0)
            for call in calls[turn % 3 :: 2]:
                call.cancel()
            found = await asyncio.gather(*calls, return_exceptions=True)
            for n, entry in enumerate(found):
                assert isinstance(entry, asyncio.CancelledError) or entry.data == n
        assert [(await store.get(f"k{n}")).data for n in range(10)] == list(range(10))


async def test_a_handle_serves_two_event_loops_at_once_and_one_after_the_other(url):
    store = open_kv(url)
    await store.set("a", 1)

    async def elsewhere():
        assert (await store.get("a")).data == 1
        entries = await asyncio.gather(*(store.set(f"there{n}", n) for n in range(10)))
        assert await store.delete("a")
        await store.aclose()  # the other one goes on
        return entries

    there = asyncio.create_task(asyncio.to_thread(asyncio.run, elsewhere()))
    here = await asyncio.gather(*(store.set(f"here{n}", n) for n in range(10)))
    for entry in (*here, *await there):
        assert await store.get(entry.key) == entry
    assert await store.get("a") is None
    await store.aclose()

    async def alone():
        assert (await store.get("here1")).data == 1
        await store.aclose()

    await asyncio.to_thread(asyncio.run, alone())
    assert (await store.get("here1")).data == 1
    await store.aclose()


async def test_a_write_whose_answer_was_lost_may_be_sent_again(url):
    """What a repeated call finds of itself is no conflict; here all calls of a handle are repetitions of one."""
    async with (
        open_kv(url) as store,
        kv_with_fixed_entropy(url, b"\1") as first,
        kv_with_fixed_entropy(url, b"\2") as second,
    ):
        created = await first.compare_and_set("a", 1, expect=None)
        assert (await first.compare_and_set("a", 1, expect=None)).revision == created.revision
        changed = await second.compare_and_set("a", 2, expect=created.revision)
        assert (
            await second.compare_and_set("a", 2, expect=created.revision)
        ).created_at == created.created_at
        for late in (first.compare_and_set("a", 1, expect=None), first.compare_and_set("a", 1, expect="r")):
            with pytest.raises(ConflictError):
                await late
        found = await store.get("a")
        assert (found.data, found.revision) == (2, changed.revision)


def kv_with_fixed_entropy(url, digit):
    """A handle whose writes all have the same revision, as a call has that is sent again."""
    if not url.startswith("postgresql"):
        return RedisKV(url, entropy=lambda length: digit * length)
    place, _, tenant = url.partition("?tenant=")
    return PostgresKV(place, tenant=tenant, entropy=lambda length: digit * length)


@pytest.mark.parametrize("url", ["postgres", "redis"], indirect=True)  # one check of each kind of handle
def test_a_handle_is_refused_in_a_forked_child(url):
    done = subprocess.run([sys.executable, "-c", _FORK, url], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split() == ["HandleError", "child-closed", "1"]


_FORK = """
import asyncio, os, sys, warnings
from acms.errors import HandleError
from acms.kv import open_kv

warnings.simplefilter("ignore")  # newer interpreters warn of os.fork() beside threads; that is what is tested
store = open_kv(sys.argv[1])
loop = asyncio.new_event_loop()
loop.run_until_complete(store.set("a", 1))
child = os.fork()
if child == 0:
    async def use():
        try:
            await store.get("a")
        except HandleError:
            print("HandleError", flush=True)
        await store.aclose()
        print("child-closed", flush=True)
    asyncio.run(use())
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
print(loop.run_until_complete(store.get("a")).data)
loop.run_until_complete(store.aclose())
loop.close()
"""


# ── PostgreSQL ──────────────────────────────────────────────────────────────────────────────────────────────────────


def run_statement(url, statement):
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(statement)
        return cursor.fetchall() if cursor.description else []


def count_connections(url, wanted):
    """Count the connections of others to a database; those that were closed take a moment to go."""
    query = (
        "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'"  # not autovacuum
        " AND datname = current_database() AND pid <> pg_backend_pid()"
    )
    for _ in range(500):
        found = run_statement(url, query)[0][0]
        if found == wanted:
            break
    return found


def end_connections(url):
    """End every other connection to a database, as a server that restarts does."""
    run_statement(
        url,
        "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity"
        " WHERE datname = current_database() AND pid <> pg_backend_pid()",
    )


async def test_handles_that_start_together_make_one_table(postgres_url):
    handles = [PostgresKV(postgres_url, connections=1) for _ in range(8)]
    await asyncio.gather(*(update_entry(handle, "n", next_count) for handle in handles))
    assert (await handles[0].get("n")).data == 8
    await asyncio.gather(*(handle.aclose() for handle in handles))


@pytest.mark.parametrize("first", ["log", "values", "together"])
async def test_values_and_logs_share_a_database(postgres_url, first):
    async with PostgresStorage(postgres_url) as logs, PostgresKV(postgres_url) as store:

        async def log():
            await append_drafts(logs, await create_log(logs, "a"), draft_message("one"))

        async def values():
            await store.set("a", 1)

        if first == "together":
            await asyncio.gather(log(), values())
        else:
            for work in (log, values) if first == "log" else (values, log):
                await work()
        assert len(await sound(logs, (await logs.context("a")).id)) == 1
        assert (await store.get("a")).data == 1


async def test_the_calls_of_a_handle_that_is_being_opened_open_it_once(shared_url):
    async with PostgresKV(shared_url) as store:
        await asyncio.gather(*(store.set(f"k{n}", n) for n in range(20)))
        (backends,) = run_statement(
            shared_url,
            "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'"
            " AND datname = current_database()",
        )[0]
        assert backends <= 1 + 4, "this one, and the pool"


async def test_without_a_tenant_the_application_sees_nothing(shared_url):
    async with PostgresKV(shared_url, tenant="acme") as store:
        await store.set("a", 1)
    seen = {}
    with psycopg.connect(shared_url) as connection:
        connection.execute("SET ROLE acms_app")
        for tenant in (None, "", "other", "acme"):
            if tenant is not None:
                connection.execute("SELECT set_config('acms.tenant', %s, true)", (tenant,))
            seen[tenant] = connection.execute("SELECT tenant_id, key FROM acms.kv").fetchall()
        assert seen == {None: [], "": [], "other": [], "acme": [("acme", "a")]}
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute("INSERT INTO acms.kv VALUES ('other', 'b', '1', NULL, 0, 0, 'r')")


async def test_a_handle_leaves_no_setting_on_its_connection(shared_url):
    async with PostgresKV(shared_url, connections=1) as store:
        await store.set("a", 1)
        async with store._db.pool.connection() as connection:
            cursor = await connection.execute(
                "SELECT current_setting('acms.tenant', true), current_user = session_user"
            )
            assert await cursor.fetchone() == ("", True)


async def test_calls_survive_connections_that_were_cut(shared_url):
    async with PostgresKV(shared_url) as store:
        await asyncio.gather(*(store.set(f"k{n}", n) for n in range(8)))
        stored = await store.set("a", 1)
        for call in (
            lambda: store.get("a"),
            lambda: store.set("a", 1),
            lambda: update_entry(store, "a", next_count),
        ):
            end_connections(shared_url)
            assert (await call()).created_at == stored.created_at
        assert (await store.get("a")).data == 2


async def test_a_delete_whose_answer_was_lost_is_not_sent_again(shared_url):
    """The second one would find nothing, and say that nothing had been there."""
    async with PostgresKV(shared_url) as store:
        await store.set("a", 1)
        with psycopg.connect(shared_url) as other:
            other.execute("LOCK TABLE acms.kv")
            call = asyncio.ensure_future(store.delete("a"))
            waiting = (
                "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
            )
            while not await asyncio.to_thread(run_statement, shared_url, waiting):
                await asyncio.sleep(0.005)
            with pytest.raises(StorageUnavailableError, match="not known") as lost:
                await call
            assert lost.value.retryable
        assert await store.delete("a") is True


async def test_values_share_the_connections_of_a_log_store(shared_url):
    async with PostgresStorage(shared_url, tenant="acme", pool_size=1) as logs:
        await append_drafts(logs, await create_log(logs, "a"), draft_message("one"))
        store = logs.kv()
        await store.set("a", 1)
        assert store.tenant == "acme"
        assert count_connections(shared_url, 1) == 1
        await store.aclose()
        assert len(await sound(logs, (await logs.context("a")).id)) == 1
        async with logs.kv() as again:
            await logs.aclose()
            assert (await again.get("a")).data == 1
    assert count_connections(shared_url, 0) == 0


async def test_tenants_behind_one_pooled_connection_stay_apart(pgbouncer_home):
    tenants = [f"t{n}" for n in range(12)]
    handles = [PostgresKV(pgbouncer_home, tenant=tenant, connections=2) for tenant in tenants]

    async def work(handle):
        for n in range(5):
            await handle.set("a", [handle.tenant, n])
            assert (await handle.get("a")).data == [handle.tenant, n]

    await asyncio.gather(*map(work, handles))
    assert [(await handle.get("a")).data for handle in handles] == [[tenant, 4] for tenant in tenants]
    await asyncio.gather(*(handle.aclose() for handle in handles))


async def test_a_server_that_only_reads_says_so(postgres_url):
    async with PostgresKV(postgres_url) as store:
        stored = await store.set("a", 1)
    name = postgres_url.rpartition("/")[2]
    run_statement(postgres_url, f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    async with PostgresKV(postgres_url) as store:
        assert await store.get("a") == stored
        with pytest.raises(StorageReadOnlyError):
            await store.set("a", 2)


async def test_who_may_not_make_the_table_is_told_so(postgres_url):
    run_statement(postgres_url, "DROP ROLE IF EXISTS acms_kv_guest")
    run_statement(postgres_url, "CREATE ROLE acms_kv_guest LOGIN PASSWORD 'guest'")
    try:
        guest = postgres_url.replace("postgres@", "acms_kv_guest:guest@", 1)
        async with PostgresKV(guest) as store:
            with pytest.raises(ConfigurationError, match="acms_app") as refused:
                await store.get("a")
            assert refused.value.options
        async with PostgresKV(postgres_url) as owner:
            await owner.set("a", 1)
        run_statement(postgres_url, "GRANT acms_app TO acms_kv_guest")
        async with PostgresKV(guest) as store:
            assert (await store.get("a")).data == 1
    finally:
        run_statement(postgres_url, "DROP ROLE acms_kv_guest")


async def test_a_server_that_is_not_there_is_a_typed_error_in_time():
    async with PostgresKV("postgresql://ana:secret@127.0.0.1:9/x", timeout_seconds=0.3) as store:
        for call in (store.get("a"), store.set("a", 1), store.delete("a")):
            with pytest.raises(StorageUnavailableError) as refused:
                await call
            assert refused.value.retryable
            assert "secret" not in str(refused.value)


async def test_a_table_that_is_locked_is_a_typed_error_in_time(shared_url):
    async with PostgresKV(shared_url) as patient:
        await patient.set("a", 1)
    async with PostgresKV(shared_url, timeout_seconds=0.3) as store:
        await await_available(lambda: store.get("a"))
        with psycopg.connect(shared_url) as other:
            other.execute("LOCK TABLE acms.kv")
            with pytest.raises(StorageUnavailableError) as late:
                await store.get("a")
            assert late.value.retryable
        assert (await await_available(lambda: store.get("a"))).data == 1


# ── Redis ───────────────────────────────────────────────────────────────────────────────────────────────────────────


async def send_command(url, *words):
    """Send a command as somebody else."""
    async with Redis.from_url(url, decode_responses=True) as client:
        return await client.execute_command(*words)


@pytest.fixture
async def store(redis_url):
    async with RedisKV(redis_url) as store:
        yield store


async def test_an_entry_is_one_hash_under_the_prefix(redis_url, store):
    await store.set("a", {"n": 1}, {"x": 1})
    assert await send_command(redis_url, "KEYS", "*") == ["acms:kv:a"]
    found = await send_command(redis_url, "HGETALL", "acms:kv:a")
    assert (found["data"], found["metadata"]) == ('{"n":1}', '{"x":1}')
    async with RedisKV(redis_url, prefix="") as bare:
        assert (await bare.get("acms:kv:a")).data == {"n": 1}


async def test_a_value_goes_when_its_time_is_over(redis_url, store):
    async with RedisKV(redis_url, ttl_seconds=100) as short:
        await short.set("a", 1)
        await send_command(redis_url, "EXPIRE", "acms:kv:a", 5)
        entry = await short.set("a", 2)
        assert 5 < await send_command(redis_url, "TTL", "acms:kv:a") <= 100, "each write starts the time anew"
        await send_command(redis_url, "EXPIRE", "acms:kv:a", 0)
        assert await short.get("a") is None
        with pytest.raises(ConflictError):
            await short.compare_and_set("a", 3, expect=entry.revision)
        await short.set("a", 4)
    await store.set("a", 5)
    assert await send_command(redis_url, "TTL", "acms:kv:a") == -1, (
        "a handle without a time keeps what it writes"
    )


@pytest.mark.parametrize(
    "damage",
    [
        ("SET", "acms:kv:a", "{}"),
        ("HSET", "acms:kv:a", "data", "{"),
        ("HSET", "acms:kv:a", "data", b"\x80"),
        ("HSET", "acms:kv:a", "created_at", "soon"),
        ("HDEL", "acms:kv:a", "updated_at"),
        ("HDEL", "acms:kv:a", "revision"),
    ],
    ids=lambda damage: " ".join(map(str, damage)),
)
async def test_what_nobody_of_ours_wrote_is_reported_and_can_be_replaced(redis_url, store, damage):
    await store.set("a", 1)
    await send_command(redis_url, *damage)
    with pytest.raises(CorruptRecordError) as found:
        await store.get("a")
    assert found.value.options
    assert await store.delete("a")
    assert (await store.set("a", 2)).data == 2


@pytest.mark.parametrize(
    ("setting", "value", "normal", "kind"),
    [
        ("maxmemory", "1", "0", StorageFullError),
        ("min-replicas-to-write", "1", "0", StorageReadOnlyError),
    ],
)
async def test_a_server_that_takes_no_writes_says_why(redis_url, store, setting, value, normal, kind):
    stored = await store.set("a", 1)
    await send_command(redis_url, "CONFIG", "SET", setting, value)
    try:
        with pytest.raises(kind):
            await store.set("a", 2)
        assert await store.get("a") == stored
    finally:
        await send_command(redis_url, "CONFIG", "SET", setting, normal)


async def test_a_replica_that_takes_no_writes_says_so(redis_server):
    async with RedisKV(redis_server.url) as store:
        stored = await store.set("a", 1)
        await send_command(redis_server.url, "REPLICAOF", "127.0.0.1", "9")
        for call in (
            store.set("a", 2),
            store.delete("a"),
            store.compare_and_set("a", 2, expect=stored.revision),
        ):
            with pytest.raises(StorageReadOnlyError):
                await call
        assert await store.get("a") == stored


async def test_who_may_not_write_is_told_so(redis_url, store):
    await store.set("a", 1)
    await send_command(redis_url, "ACL", "SETUSER", "guest", "on", ">guest", "~*", "+@read", "+@connection")
    try:
        guest = redis_url.replace("redis://", "redis://guest:guest@")
        async with RedisKV(guest) as reading:
            assert (await reading.get("a")).data == 1
            with pytest.raises(StorageError) as refused:
                await reading.set("a", 2)
            assert not refused.value.retryable
        async with RedisKV(guest.replace("guest@", "wrong@")) as nobody:
            with pytest.raises(StorageError) as refused:
                await nobody.get("a")
            assert not refused.value.retryable
            assert "wrong" not in str(refused.value)
    finally:
        await send_command(redis_url, "ACL", "DELUSER", "guest")


async def test_t47_without_a_server_every_call_is_refused_at_once_and_may_be_repeated(redis_server):
    async with RedisKV(redis_server.url) as store:
        await store.set("a", 1)
        await asyncio.to_thread(redis_server.kill)
        for call in (
            store.get("a"),
            store.set("a", 2),
            store.delete("a"),
            store.compare_and_set("a", 2, expect=None),
            update_entry(store, "a", next_count),
        ):
            with pytest.raises(StorageUnavailableError) as refused:
                await call
            assert refused.value.retryable
            assert refused.value.options
        await asyncio.to_thread(redis_server.start)
        await store.set("a", 3)
        assert (await store.get("a")).data == 3


async def test_t47_a_server_that_was_restarted_is_used_again_as_if_nothing_had_been(redis_server):
    async with RedisKV(redis_server.url) as store:
        await asyncio.gather(*(store.set(f"k{n}", n) for n in range(10)))
        stored = await store.set("a", 1)
        await asyncio.to_thread(redis_server.restart)
        assert await store.get("a") == stored
        assert (await store.compare_and_set("a", 2, expect=stored.revision)).created_at == stored.created_at
        assert [(await store.get(f"k{n}")).data for n in range(10)] == list(range(10))


async def test_t47_a_server_that_hangs_is_left_in_time(redis_server):
    async with RedisKV(redis_server.url, connections=2, timeout_seconds=0.3) as store:
        await await_available(lambda: store.set("a", 1))
        os.kill(redis_server.pid, signal.SIGSTOP)
        try:
            found = await asyncio.gather(
                *(call("a") for call in (store.get, store.delete, store.get) * 2), return_exceptions=True
            )
            assert {type(error) for error in found} == {StorageUnavailableError}
        finally:
            os.kill(redis_server.pid, signal.SIGCONT)
        assert (await await_available(lambda: store.set("b", 1))).data == 1


async def test_t47_a_server_that_was_emptied_is_an_empty_store(redis_url, store):
    stored = await store.set("a", 1)
    await update_entry(store, "index", next_count)
    await send_command(redis_url, "FLUSHALL")
    await send_command(redis_url, "SCRIPT", "FLUSH")
    assert await store.get("a") is None
    assert await store.delete("a") is False
    with pytest.raises(ConflictError):
        await store.compare_and_set("a", 2, expect=stored.revision)
    assert (await update_entry(store, "index", next_count)).data == 1
    assert (await store.compare_and_set("a", 2, expect=None)).data == 2


async def test_t47_a_server_with_last_weeks_data_is_noticed_by_who_read_todays(redis_url, store):
    """A revision never comes back, not even when counters would."""
    await store.set("a", "last week")
    old = await send_command(redis_url, "HGETALL", "acms:kv:a")
    today = await store.set("a", "today")
    await send_command(redis_url, "HSET", "acms:kv:a", *(word for pair in old.items() for word in pair))
    with pytest.raises(ConflictError):
        await store.compare_and_set("a", "tomorrow", expect=today.revision)
    assert (await store.get("a")).data == "last week"


async def test_more_calls_than_connections_wait_for_their_turn(redis_url):
    async with RedisKV(redis_url, connections=2) as store:
        await asyncio.gather(*(store.set(f"k{n}", n) for n in range(100)))
        found = await asyncio.gather(*(store.get(f"k{n}") for n in range(100)))
        assert [entry.data for entry in found] == list(range(100))


def test_a_redis_handle_refuses_arguments_that_make_no_sense():
    for arguments in (
        {"prefix": "\0"},
        {"prefix": "x" * 256},
        {"ttl_seconds": 0},
        {"ttl_seconds": 1.5},
        {"connections": 0},
    ):
        with pytest.raises(ValidationError):
            RedisKV("redis://localhost", **arguments)
    with pytest.raises(ConfigurationError):
        RedisKV("http://localhost")
