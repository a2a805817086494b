"""Opening a PostgreSQL store: what a URL may say, who may do what, and what each refusal says to do."""

from __future__ import annotations

import asyncio
import json
import secrets
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from acms import ACMSError, ConfigurationError, State, WorkerConfig
from acms.cli.commands import app
from acms.errors import SchemaVersionError, StorageUnavailableError
from acms.jobs.worker import Worker
from acms.model import Done, JobDraft
from acms.ports import HasHints, HasMigrations
from acms.storage import PostgresStorage, open_storage
from acms.storage.postgres.migrate import ROLES
from acms.testing import sound
from acms.testing.logs import append_drafts, create_log, draft_message, fork_log
from tests.servers.postgres import Databases, Server
from tests.servers.stores import run_inside

PASSWORD = "s3cr et/@:%"
WRITTEN = "s3cr%20et%2F%40%3A%25"


async def assert_store_works(url: str) -> None:
    """Do with a store what every user does."""
    async with open_storage(url) as store:
        context = await create_log(store)
        await append_drafts(
            store, context, draft_message("one", key="1"), jobs=(JobDraft(kind="k", dedupe="d", payload={}),)
        )
        child = await fork_log(store, context)
        await append_drafts(store, child, draft_message("two"))
        assert len(await sound(store, child.id)) == 2
        await store.blank(context.id, [1], to=State.ERASED, audit={"by": "test"})
        (lease,) = await store.claim(["k"], lease=timedelta(seconds=30))
        await store.settle(lease, Done())


async def open_error(url: str) -> ACMSError:
    """Return the error of a store that cannot be opened; it says what to do, and no secret."""
    store = open_storage(url)
    with pytest.raises(ACMSError) as caught:
        async with store:
            pass
    await store.aclose()
    shown = f"{caught.value!r} {caught.value} {caught.value.options} {store!r}"
    assert "s3cr" not in shown
    assert caught.value.options
    return caught.value


# ── what a URL may say ──────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("option", "wanted"),
    [
        ("durability=paper", "durability must be one of disk, quorum, relaxed"),
        ("hints=maybe", "hints must be on or off"),
        ("pool_size=0", "pool_size must be from 1 to 1000"),
        ("pool_size=x", "pool_size must be from 1 to 1000"),
        ("retry_seconds=-1", "retry_seconds must be from 0"),
        ("retry_seconds=nan", "retry_seconds must be from 0"),
        ("nonsense=1", "nonsense"),
    ],
)
def test_an_option_that_makes_no_sense_is_refused_without_the_password(option: str, wanted: str) -> None:
    with pytest.raises(ConfigurationError, match=wanted) as caught:
        open_storage(f"postgresql://u:{WRITTEN}@h/db?{option}")
    assert "s3cr" not in f"{caught.value} {caught.value.options}"
    assert caught.value.options


@pytest.mark.parametrize(
    "url", ["postgresql://u:s3cr%zz@h/db", "postgresql://u:s3cr@h:port/db", "postgresql://u:s3cr@[h/db"]
)
def test_a_url_that_is_none_is_refused_without_the_password(url: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        open_storage(url)
    assert "s3cr" not in f"{caught.value} {caught.value.options}"
    assert caught.value.options


async def test_the_options_of_a_url_reach_the_store(postgres_url: str) -> None:
    url = f"{postgres_url}?tenant=a&hints=on&pool_size=2&retry_seconds=1.5&durability=relaxed&application_name=mine"
    async with open_storage(url) as store:
        assert isinstance(store, PostgresStorage)
        assert isinstance(store, HasMigrations)
        assert isinstance(store, HasHints)
        assert (store.tenant, store.durability) == ("a", "relaxed")
        assert (store._jobs.hints, store._db.pool.size, store._db.pool.patience) == (True, 2, 1.5)
        assert ("mine",) in run_inside(postgres_url, "SELECT application_name FROM pg_stat_activity")


# ── a worker that is told ───────────────────────────────────────────────────────────────────────────────────────────


async def test_a_worker_is_woken_by_a_job_of_another_handle(postgres_url: str) -> None:
    done = asyncio.Event()

    async def handle(store: Any, lease: Any) -> Done:
        done.set()
        return Done()

    async with open_storage(postgres_url) as mine, open_storage(f"{postgres_url}?hints=on") as other:
        worker = Worker(mine, {"k": handle}, config=WorkerConfig(poll_seconds=3600))
        running = asyncio.create_task(worker.run())
        listening = "SELECT 1 FROM pg_stat_activity WHERE query LIKE 'LISTEN%'"
        async with asyncio.timeout(300):
            while not await asyncio.to_thread(run_inside, postgres_url, listening):
                await asyncio.sleep(0)
        context = await create_log(other)
        await append_drafts(
            other, context, draft_message("hello"), jobs=(JobDraft(kind="k", dedupe="d", payload={}),)
        )
        async with asyncio.timeout(300):
            await done.wait()
        worker.stop()
        await running


async def test_a_worker_behind_a_pooler_does_not_listen(pgbouncer_url: str, postgres_url: str) -> None:
    async with open_storage(pgbouncer_url) as store:
        assert isinstance(store, HasHints)
        async with store.hints(lambda: None):
            await store.claim(["k"], lease=timedelta(seconds=30))
            assert run_inside(postgres_url, "SELECT 1 FROM pg_stat_activity WHERE query LIKE 'LISTEN%'") == []


# ── what can be wrong ───────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_server_that_is_down_is_said_to_be(tmp_path: Path) -> None:
    error = await open_error(f"postgresql://u:{WRITTEN}@127.0.0.1:1/db?retry_seconds=0")
    assert isinstance(error, StorageUnavailableError)
    assert "server is running" in " ".join(error.options)


@pytest.mark.parametrize("option", ["sslmode=x", "target_session_attrs=x"])
async def test_an_option_that_the_driver_refuses_is_named_at_once(option: str) -> None:
    error = await open_error(f"postgresql://u:{WRITTEN}@127.0.0.1:1/db?{option}&retry_seconds=3600")
    assert isinstance(error, ConfigurationError)
    assert option.partition("=")[0] in str(error)


async def test_a_database_that_is_missing_is_named_at_once(postgres_url: str) -> None:
    error = await open_error(f"{postgres_url}_not?retry_seconds=3600")
    assert isinstance(error, ConfigurationError)
    assert "does not exist" in str(error)
    assert any("CREATE DATABASE" in option for option in error.options)


@pytest.fixture(scope="module")
def strict() -> Iterator[Server]:
    """A server of this file's own, on which no role of ours exists before a test asks for it."""
    with Server() as server:
        yield server


class Town:
    """A database on the strict server, with users who may do this and that."""

    def __init__(self, server: Databases) -> None:
        self.server = server
        self.admin = server.create_database()
        self.name = self.admin.rpartition("/")[2]
        self.users: list[str] = []

    def user(self, rights: str = "") -> str:
        """Make a user; return the URL as whom it connects."""
        name = f"u_{secrets.token_hex(4)}"
        self.server.execute(f"CREATE ROLE {name} LOGIN {rights}")
        self.users.append(name)
        return self.admin.replace("postgres@", f"{name}:{WRITTEN}@") + "?retry_seconds=0"

    def run(self, *statements: str) -> None:
        for statement in statements:
            run_inside(self.admin, statement)

    def close(self) -> None:
        self.server.drop_database(self.admin)
        there = {name for (name,) in self.server.execute("SELECT rolname FROM pg_roles")}
        for name in (*self.users, *(role for role in ROLES if role in there)):
            self.server.execute(f"DROP ROLE {name}")


@pytest.fixture
def town(strict: Server) -> Iterator[Town]:
    one = Town(strict)
    yield one
    one.close()


def user_of_url(url: str) -> str:
    return url.partition("://")[2].partition(":")[0]


def run_migrate(url: str, *options: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["migrate", "--db", url, *options])
    assert "s3cr" not in done.output + done.stderr
    return done.exit_code, done.stdout + done.stderr


async def test_a_plain_owner_who_may_make_roles_needs_no_administrator(town: Town) -> None:
    owner = town.user("CREATEROLE")
    town.run(f"GRANT CREATE ON DATABASE {town.name} TO {user_of_url(owner)}")
    await assert_store_works(owner)
    assert run_inside(
        town.admin, "SELECT pg_get_userbyid(datdba) FROM pg_database WHERE datname = current_database()"
    ) == [("postgres",)]


async def test_an_administrator_can_prepare_everything_for_an_owner_without_rights(town: Town) -> None:
    owner = town.user()
    error = await open_error(owner)
    assert isinstance(error, ConfigurationError)
    (advice,) = error.options
    assert advice.startswith("let an administrator run in this database: ")
    town.run(*advice.partition(": ")[2].split("; "))
    await assert_store_works(owner)
    inherits = "SELECT pg_has_role('{}', '{}', 'USAGE')"
    assert run_inside(town.admin, inherits.format(user_of_url(owner), "acms_app")) == [(True,)]
    assert run_inside(town.admin, inherits.format(user_of_url(owner), "acms_search")) == [(False,)]


async def test_a_member_works_with_what_the_owner_made_and_may_not_migrate_it(town: Town) -> None:
    owner, member = town.user("CREATEROLE"), town.user()
    town.run(f"CREATE SCHEMA acms AUTHORIZATION {user_of_url(owner)}")
    error = await asyncio.to_thread(run_migrate, member)
    assert error[0] == 1
    assert "run acms migrate --db URL as the owner" in error[1]
    assert (await asyncio.to_thread(run_migrate, owner))[0] == 0
    denied = await open_error(member)
    assert isinstance(denied, ConfigurationError)
    assert any("GRANT acms_app TO" in option for option in denied.options)
    town.run(f"GRANT acms_app TO {user_of_url(member)}")
    await assert_store_works(member)
    assert (await asyncio.to_thread(run_migrate, member, "--status"))[0] == 0
    code, told = await asyncio.to_thread(
        run_migrate, member
    )  # the vectors, which wait for an administrator, are left to do
    assert code == 1
    assert f"run acms migrate --db URL as {user_of_url(owner)}" in told
    town.run("CREATE EXTENSION vector")
    assert "applied 2, 3" in (await asyncio.to_thread(run_migrate, owner))[1]
    assert "nothing to do" in (await asyncio.to_thread(run_migrate, member))[1]
    await assert_store_works(member)


async def test_a_role_that_was_not_restored_is_named(town: Town) -> None:
    user = town.user()
    town.run(
        *(f"CREATE ROLE {role} NOLOGIN" for role in ROLES),
        f"GRANT acms_app TO {user_of_url(user)}",
        f"GRANT acms_search TO {user_of_url(user)} WITH INHERIT FALSE, SET TRUE",
        f"CREATE SCHEMA acms AUTHORIZATION {user_of_url(user)}",
    )
    await assert_store_works(user)
    town.run("DROP OWNED BY acms_app", "DROP ROLE acms_app")
    async with open_storage(user) as store:
        with pytest.raises(ConfigurationError, match="acms_app") as caught:
            await store.head("c_none")
    assert any("CREATE ROLE acms_app" in option for option in caught.value.options)


async def test_a_wrong_password_is_said_at_once_and_not_shown(town: Town) -> None:
    user = town.user("PASSWORD 'another'")
    rules = town.server.execute("SHOW hba_file")[0][0]
    before = Path(rules).read_text()
    Path(rules).write_text(f"host all {user_of_url(user)} all scram-sha-256\n{before}")
    try:
        town.server.execute("SELECT pg_reload_conf()")
        error = await open_error(user.replace("retry_seconds=0", "retry_seconds=3600"))
    finally:
        Path(rules).write_text(before)
        town.server.execute("SELECT pg_reload_conf()")
    assert isinstance(error, ConfigurationError)
    assert "password authentication failed" in str(error)


async def test_an_older_schema_names_the_command(postgres_url: str) -> None:
    await assert_store_works(postgres_url)
    run_inside(postgres_url, "DELETE FROM acms.migrations WHERE version = 1")
    error = await open_error(postgres_url)
    assert isinstance(error, SchemaVersionError)
    assert "run acms migrate" in error.options


WITHOUT = """
import sys
sys.modules["psycopg"] = None
from acms.cli import main
main()
"""


def test_a_driver_that_is_not_installed_is_named(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WITHOUT, "sessions", "--db", f"postgresql://u:{WRITTEN}@h/db", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 1
    error = json.loads(done.stderr)["error"]
    assert error["code"] == "MISSING_EXTRA"
    assert ".[postgres]" in error["message"] + " ".join(error["options"])
    assert "s3cr" not in done.stderr
