"""Key-value memory on servers: PostgreSQL and Redis, also when they are not there (T47)."""

from __future__ import annotations

import asyncio
import logging
import os
import signal

import psycopg
import pytest

from acms.errors import (
    ConfigurationError,
    HandleError,
    StorageBusyError,
    StorageError,
    StorageReadOnlyError,
    StorageUnavailableError,
    ValidationError,
)
from acms.kv import PostgresKV, open_kv, update_entry
from acms.testing import KVMemoryTests
from tests.storage.test_kv import counted_by_processes, counting


class TestPostgresKV(KVMemoryTests):
    takes_clock = True

    @pytest.fixture
    async def store(self, postgres_url, clock):
        async with PostgresKV(postgres_url, clock=clock) as store:
            yield store

    @pytest.fixture
    async def second(self, postgres_url, store, clock):
        async with PostgresKV(postgres_url, clock=clock) as second:
            yield second

    @pytest.fixture
    async def other_tenant(self, postgres_url, store):
        async with PostgresKV(postgres_url, tenant="other") as other:
            yield other


# ── PostgreSQL ──────────────────────────────────────────────────────────────────────────────────────────────────────


def execute(url, statement):
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(statement)
        return cursor.fetchall() if cursor.description else []


def end_connections(url):
    """End every other connection to a database, as a server that restarts does."""
    execute(
        url,
        "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity"
        " WHERE datname = current_database() AND pid <> pg_backend_pid()",
    )


async def test_processes_on_one_database_lose_nothing(postgres_url):
    assert await counted_by_processes(postgres_url, times=10) == list(range(1, 41))


async def test_handles_that_start_together_make_one_table(postgres_url):
    handles = [PostgresKV(postgres_url, connections=1) for _ in range(8)]
    await asyncio.gather(*(update_entry(handle, "n", counting) for handle in handles))
    assert (await handles[0].get("n")).data == 8
    await asyncio.gather(*(handle.aclose() for handle in handles))


async def test_the_calls_of_a_handle_that_is_being_opened_open_it_once(postgres_url):
    async with PostgresKV(postgres_url) as store:
        await asyncio.gather(*(store.set(f"k{n}", n) for n in range(20)))
        (backends,) = execute(
            postgres_url, "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
        )[0]
        assert backends <= 1 + 4, "this one, and the pool"


async def test_without_a_tenant_the_application_sees_nothing(postgres_url):
    async with PostgresKV(postgres_url, tenant="acme") as store:
        await store.set("a", 1)
    seen = {}
    with psycopg.connect(postgres_url) as connection:
        connection.execute("SET ROLE acms_app")
        for tenant in (None, "", "other", "acme"):
            if tenant is not None:
                connection.execute("SELECT set_config('acms.tenant', %s, true)", (tenant,))
            seen[tenant] = connection.execute("SELECT tenant_id, key FROM acms.kv").fetchall()
        assert seen == {None: [], "": [], "other": [], "acme": [("acme", "a")]}
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute("INSERT INTO acms.kv VALUES ('other', 'b', '1', NULL, 0, 0, 'r')")


async def test_a_handle_leaves_no_setting_on_its_connection(postgres_url):
    async with PostgresKV(postgres_url, connections=1) as store:
        await store.set("a", 1)
        pool = await store._pool()
        async with pool.connection() as connection:
            cursor = await connection.execute(
                "SELECT current_setting('acms.tenant', true), current_user = session_user"
            )
            assert await cursor.fetchone() == ("", True)


async def test_calls_survive_connections_that_were_cut(postgres_url):
    async with PostgresKV(postgres_url) as store:
        await asyncio.gather(*(store.set(f"k{n}", n) for n in range(8)))
        stored = await store.set("a", 1)
        for call in (
            lambda: store.get("a"),
            lambda: store.set("a", 1),
            lambda: update_entry(store, "a", counting),
        ):
            end_connections(postgres_url)
            assert (await call()).created_at == stored.created_at
        end_connections(postgres_url)
        with pytest.raises(StorageUnavailableError) as lost:
            await store.delete("a")
        assert lost.value.retryable
        assert (await store.get("a")).data == 2
        assert await store.delete("a")


async def test_a_write_whose_answer_was_lost_may_be_sent_again(postgres_url):
    """What a repeated statement finds from its first run is no conflict."""
    async with PostgresKV(postgres_url) as store:
        for how, expect in (("new", None), ("known", "r1"), ("any", None)):
            values = {"key": "a", "data": "1", "metadata": None, "now": 1, "expect": expect}
            for revision, stored in ((f"r{expect}", True), (f"r{expect}", True), ("another", how == "any")):
                if how == "known" and revision == "rr1":
                    await store._put("any", {**values, "revision": "r1"})
                    assert await store._put(how, {**values, "revision": revision}) == (1, 1)
                found = await store._put(how, {**values, "revision": revision})
                assert (found is not None) is stored
            await store.delete("a")


async def test_a_server_that_only_reads_says_so(postgres_url):
    async with PostgresKV(postgres_url) as store:
        stored = await store.set("a", 1)
    name = postgres_url.rpartition("/")[2]
    execute(postgres_url, f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    async with PostgresKV(postgres_url) as store:
        assert await store.get("a") == stored
        with pytest.raises(StorageReadOnlyError):
            await store.set("a", 2)


async def test_who_may_not_make_the_table_is_told_so(postgres_url):
    execute(postgres_url, "DROP ROLE IF EXISTS acms_kv_guest")
    execute(postgres_url, "CREATE ROLE acms_kv_guest LOGIN PASSWORD 'guest'")
    try:
        guest = postgres_url.replace("postgres@", "acms_kv_guest:guest@", 1)
        async with PostgresKV(guest) as store:
            with pytest.raises(StorageError) as refused:
                await store.get("a")
            assert not refused.value.retryable
        async with PostgresKV(postgres_url) as owner:
            await owner.set("a", 1)
        execute(postgres_url, "GRANT acms_app TO acms_kv_guest")
        async with PostgresKV(guest) as store:
            assert (await store.get("a")).data == 1
    finally:
        execute(postgres_url, "DROP ROLE acms_kv_guest")


async def test_a_server_that_is_not_there_is_a_typed_error_at_once(caplog):
    async with PostgresKV("postgresql://ana:secret@127.0.0.1:9/x") as store:
        for call in (store.get("a"), store.set("a", 1), store.delete("a")):
            with pytest.raises(StorageUnavailableError) as refused:
                await call
            assert refused.value.retryable
            assert "secret" not in str(refused.value)


async def test_a_table_that_is_locked_is_a_typed_error_in_time(postgres_url):
    async with PostgresKV(postgres_url, timeout_seconds=0.3) as store:
        await store.set("a", 1)
        with psycopg.connect(postgres_url) as other:
            other.execute("LOCK TABLE acms.kv")
            with pytest.raises(StorageUnavailableError) as late:
                await store.get("a")
            assert late.value.retryable
        assert (await store.get("a")).data == 1


async def test_a_postgres_handle_serves_one_event_loop_and_then_another(postgres_url):
    store = PostgresKV(postgres_url)
    await store.set("a", 1)

    async def elsewhere():
        with pytest.raises(HandleError):
            await store.get("a")
        with pytest.raises(HandleError):
            await store.aclose()

    await asyncio.to_thread(asyncio.run, elsewhere())
    assert (await store.get("a")).data == 1
    await store.aclose()

    async def alone():
        assert (await store.get("a")).data == 1
        await store.aclose()

    await asyncio.to_thread(asyncio.run, alone())
    assert (await store.get("a")).data == 1
    await store.aclose()
