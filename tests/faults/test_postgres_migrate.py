"""T46: the schema of a PostgreSQL database is made by one, taken up by the next, and refused when unknown."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import Callable
from contextlib import suppress

import pytest

from acms import ACMSError, SessionNotFoundError, StorageBusyError
from acms.errors import SchemaVersionError, StorageUnavailableError
from acms.storage import PostgresStorage
from acms.storage.postgres import migrate as postgres_migrate
from acms.storage.postgres.migrate import apply_migrations, list_known_migrations, read_migration_status
from acms.storage.postgres.pool import Pool
from acms.testing import sound
from acms.testing.logs import append_drafts, create_log, draft_message
from tests.servers.postgres import Databases
from tests.servers.stores import run_inside

from ._process import finish_process, start_python
from ._proxy import Wire


def port_of(url: str) -> int:
    return int(url.rpartition(":")[2].partition("/")[0])


def schema_of_database(url: str) -> list[tuple[object, ...]]:
    """What a database holds: tables, columns, indexes, policies, and the list of migrations."""
    return run_inside(
        url,
        "SELECT c.relname, c.relkind, string_agg(a.attname || ':' || a.atttypid::regtype, ',' ORDER BY a.attnum),"
        " (SELECT count(*) FROM pg_policy WHERE polrelid = c.oid)"
        " FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
        " LEFT JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0"
        " WHERE n.nspname = 'acms' GROUP BY c.oid, c.relname, c.relkind ORDER BY c.relname",
    )


async def assert_store_works(url: str) -> None:
    async with PostgresStorage(url) as store:
        context = await create_log(store)
        await append_drafts(store, context, draft_message("one", key="1"))
        assert len(await sound(store, context.id)) == 1


async def killed_everywhere(postgres: Databases, step: int) -> None:
    """Cut the wire of a migrator at one message after the other; the next one finishes its work."""
    right = postgres.create_database()
    await assert_store_works(right)
    wanted = schema_of_database(right)
    postgres.drop_database(right)
    cuts = 0
    async with Wire(port_of(right)) as wire:
        for side in ("client", "server"):
            for nth in range(1, 200, step):
                url = postgres.create_database()
                before = wire.cuts
                wire.arm(side, nth, forwarded=nth % 2 == 0)
                hasty = PostgresStorage(wire.url(url), retry_seconds=0)
                with suppress(
                    StorageBusyError, StorageUnavailableError, SessionNotFoundError
                ):  # cut, or answered before the cut
                    await hasty.head("c_none")
                wire.disarm()
                await hasty.aclose()
                await assert_store_works(url)
                await upgrade_schema(url)  # what only adds speed is left to whoever migrates
                assert schema_of_database(url) == wanted
                postgres.drop_database(url)
                if wire.cuts == before:
                    break
                cuts += 1
    assert cuts >= 30 // step


async def test_t46_a_migration_cut_at_any_message_is_taken_up_again(postgres: Databases) -> None:
    await killed_everywhere(postgres, 120)


@pytest.mark.faults
async def test_t46_a_migration_cut_at_every_message_is_taken_up_again(postgres: Databases) -> None:
    await killed_everywhere(postgres, 1)


OPEN = """
import asyncio, sys
from acms.storage.postgres.store import PostgresStorage
print("ready", flush=True)
sys.stdin.readline()
asyncio.run(PostgresStorage(sys.argv[1]).__aenter__())
"""


@pytest.mark.parametrize("rounds", [1, pytest.param(20, marks=pytest.mark.faults)])
async def test_t46_a_migrator_process_that_is_killed_leaves_work_for_the_next(
    postgres: Databases, rounds: int
) -> None:
    rng = random.Random(46)
    for _ in range(rounds):
        url = postgres.create_database()
        processes = [start_python("-c", OPEN, url) for _ in range(2)]
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
        await asyncio.sleep(rng.uniform(0, 0.15))  # the moment of the kill, not a wait for anything
        os.kill(processes[0].pid, signal.SIGKILL)
        finish_process(processes[0])
        await assert_store_works(url)
        assert finish_process(processes[1]) == 0
        postgres.drop_database(url)


@pytest.mark.parametrize("owner", [False, True], ids=["superuser", "owner"])
async def test_t46_of_many_that_open_an_empty_database_one_makes_the_schema_and_all_work(
    postgres: Databases, owner: bool
) -> None:
    """Also on several databases at once: the role belongs to all of them."""
    urls = [postgres.create_database() for _ in range(2)]
    name = f"migrator_{urls[0].rpartition('_')[2]}"
    postgres.execute(f"CREATE ROLE {name} LOGIN CREATEROLE")
    there = {role for (role,) in postgres.execute("SELECT rolname FROM pg_roles")}
    for role in postgres_migrate.ROLES:
        if role in there:
            postgres.execute(f"GRANT {role} TO {name} WITH ADMIN OPTION")
    try:
        for url in urls:
            postgres.execute(f"GRANT CREATE ON DATABASE {url.rpartition('/')[2]} TO {name}")
            run_inside(url, "CREATE EXTENSION vector")  # which an owner may not
        chosen = [url.replace("postgres@", f"{name}@") if owner else url for url in urls]
        await asyncio.gather(*(assert_store_works(url) for url in chosen for _ in range(3)))
        for url in urls:
            applied = run_inside(url, "SELECT version FROM acms.migrations")
            wanted = [(number,) for number, *_ in list_known_migrations()]
            assert applied == wanted
    finally:
        for url in urls:
            postgres.drop_database(url)
        postgres.execute(f"DROP OWNED BY {name} CASCADE")
        postgres.execute(f"DROP ROLE {name}")


@pytest.fixture
def release(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Become a release that knows more migrations: (needs, script) of each."""
    real = list_known_migrations()

    def become(*more: tuple[int, str]) -> None:
        found = list(real)
        for needs, script in more:
            found.append((len(found) + 1, needs, f"checksum of {script}", script))
        monkeypatch.setattr(postgres_migrate, "list_known_migrations", lambda: found)

    return become


async def upgrade_schema(url: str) -> list[int]:
    pool = Pool(url, size=1, patience=30, statement_seconds=30)
    try:
        return [step.version for step in await apply_migrations(pool)]
    finally:
        await pool.close()


async def test_t46_an_older_schema_is_refused_until_it_is_migrated(
    postgres_url: str, release: Callable[..., None]
) -> None:
    await assert_store_works(postgres_url)
    last = len(list_known_migrations())
    release((last, "CREATE TABLE acms.later (x int)"))
    with pytest.raises(SchemaVersionError) as caught:
        await assert_store_works(postgres_url)
    assert "run acms migrate" in caught.value.options
    assert await upgrade_schema(postgres_url) == [last + 1]
    assert await upgrade_schema(postgres_url) == []
    await assert_store_works(postgres_url)


async def test_t46_a_newer_schema_is_accepted_when_it_says_so_and_else_refused(
    postgres_url: str, release: Callable[..., None]
) -> None:
    last = len(list_known_migrations())
    release((last, "CREATE TABLE acms.later (x int)"))
    await assert_store_works(postgres_url)
    release()
    await assert_store_works(postgres_url)  # it may go on beside the newer one
    release((last, "CREATE TABLE acms.later (x int)"), (last + 2, "CREATE TABLE acms.last (x int)"))
    assert await upgrade_schema(postgres_url) == [last + 2]
    before = schema_of_database(postgres_url)
    release()
    with pytest.raises(SchemaVersionError) as caught:
        await assert_store_works(postgres_url)
    assert "upgrade acms-engine" in caught.value.options
    with pytest.raises(SchemaVersionError):
        await upgrade_schema(postgres_url)
    assert schema_of_database(postgres_url) == before


async def test_t46_a_database_that_another_release_migrated_otherwise_is_refused(
    postgres_url: str, release: Callable[..., None]
) -> None:
    release((1, "CREATE TABLE acms.later (x int)"))
    await assert_store_works(postgres_url)
    release((1, "CREATE TABLE acms.later (y int)"))
    before = schema_of_database(postgres_url)
    for attempt in (assert_store_works, upgrade_schema):
        with pytest.raises(SchemaVersionError, match="different release"):
            await attempt(postgres_url)
    assert schema_of_database(postgres_url) == before


async def test_t46_a_migration_that_fails_changes_nothing_and_can_be_repeated(
    postgres_url: str, release: Callable[..., None]
) -> None:
    await assert_store_works(postgres_url)
    before = schema_of_database(postgres_url)
    last = len(list_known_migrations())
    release((last, "CREATE TABLE acms.later (x int); SELECT 1 / 0"))
    with pytest.raises(ACMSError, match=f"migration {last + 1} failed"):
        await upgrade_schema(postgres_url)
    assert schema_of_database(postgres_url) == before
    release((last, "CREATE TABLE acms.later (x int)"))
    assert await asyncio.gather(*(upgrade_schema(postgres_url) for _ in range(4))) in [
        [[last + 1] if n == winner else [] for n in range(4)] for winner in range(4)
    ]


async def test_t46_the_state_of_a_database_can_be_asked_for(postgres_url: str) -> None:
    pool = Pool(postgres_url, size=1, patience=30, statement_seconds=30)
    try:
        before = await pool.retry(read_migration_status, may_repeat=True)
        assert [(step.version, step.applied) for step in before] == [
            (n, False) for n, *_ in list_known_migrations()
        ]
        await apply_migrations(pool, partitions=2)
        after = await pool.retry(read_migration_status, may_repeat=True)
        assert all(step.applied for step in after)
    finally:
        await pool.close()
