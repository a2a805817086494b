"""`acms migrate`: what it shows, what it would run, what it does, and what it leaves alone."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import apsw
import psycopg
import pytest
from typer.testing import CliRunner, Result

from acms import ACMS, open_storage
from acms.cli import base
from acms.cli.commands import app
from acms.storage.sql import load_migrations
from acms.storage.sqlite.schema import APPLICATION_ID

STEPS = len(load_migrations("postgres"))
OF_FILES = len(load_migrations("sqlite"))
ALL = ", ".join(map(str, range(1, OF_FILES + 1)))
REST = ALL.removeprefix("1, ")
"""What a new file and one of the first release are brought through, as the command names it."""


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("ACMS_DB", "ACMS_DEBUG", "NO_COLOR", "FORCE_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))


def run(*arguments: str, code: int = 0) -> Result:
    result = CliRunner().invoke(app, ["migrate", *arguments])
    assert result.exit_code == code, (result.output, result.exception)
    assert "Traceback" not in result.output
    return result


def call(*arguments: str, code: int = 0) -> dict[str, Any]:
    return json.loads(run(*arguments, "--json", code=code).stdout)


def applied(*arguments: str) -> list[bool]:
    (store,) = call("--status", *arguments)["stores"]
    return [step["applied"] for step in store["migrations"]]


def old_file(path: Path) -> str:
    """Make a file of the first release; return its URL."""
    connection = apsw.Connection(str(path))
    version, checksum, script = load_migrations("sqlite")[0]
    connection.pragma("journal_mode", "wal")
    for _ in connection.execute(script):
        pass
    connection.execute("INSERT INTO migrations VALUES (?, ?, 0)", (version, checksum))
    connection.pragma("application_id", APPLICATION_ID)
    connection.pragma("user_version", version)
    connection.close()
    return base.file_url(path)


def seen(folder: Path) -> dict[str, tuple[bytes, int]]:
    """Everything in a folder, to the byte, and when it was written; but for the notes of who reads beside writers."""
    files = [file for file in folder.iterdir() if not file.name.endswith("-shm")]
    return {file.name: (file.read_bytes(), file.stat().st_mtime_ns) for file in files}


async def talk(url: str) -> int:
    async with open_storage(url) as storage, ACMS("talk", storage) as session:
        await session.ingest("user", "hello")
        return len((await session.history()).entries)


# ── files ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_status_and_dry_run_neither_make_a_file_nor_change_one(tmp_path: Path) -> None:
    fresh = base.file_url(tmp_path / "new.db")
    old = old_file(tmp_path / "old.db")
    before = seen(tmp_path)
    assert applied("--db", fresh) == [False] * OF_FILES
    assert applied("--db", old) == [True, *[False] * (OF_FILES - 1)]
    assert "CREATE TABLE contexts" in run("--dry-run", "--db", fresh).stdout
    assert "CREATE TABLE contexts" not in run("--dry-run", "--db", old).stdout
    assert seen(tmp_path) == before
    assert {file.name for file in tmp_path.iterdir()} == {"old.db"}


def test_status_reads_a_file_that_others_are_writing_to(tmp_path: Path) -> None:
    db = base.file_url(tmp_path / "a.db")

    async def beside() -> None:
        async with open_storage(db) as storage, ACMS("talk", storage) as session:
            await session.ingest("user", "hello")
            before = seen(tmp_path)
            assert all(step.applied for step in await open_storage(db).migrations())
            assert seen(tmp_path) == before
            await session.ingest("user", "still here")

    asyncio.run(beside())


def test_what_a_dry_run_prints_makes_a_file_that_the_store_accepts(tmp_path: Path) -> None:
    path = tmp_path / "by-hand.db"
    db = base.file_url(path)
    connection = apsw.Connection(str(path))
    for _ in connection.execute(run("--dry-run", "--db", db).stdout):
        pass
    connection.close()
    assert applied("--db", db) == [True] * OF_FILES
    assert run("--dry-run", "--db", db).stdout == "-- nothing to do\n"
    assert asyncio.run(talk(db)) == 1


def test_a_file_is_made_and_brought_up_to_date(tmp_path: Path) -> None:
    old = old_file(tmp_path / "old.db")
    assert run("--db", old).stdout == f"applied {REST}; the schema is at {OF_FILES}\n"
    assert run("--db", old).stdout == f"nothing to do: the schema is at {OF_FILES}\n"
    assert run().stdout == f"applied {ALL}; the schema is at {OF_FILES}\n"
    assert base.data_file().exists()
    assert asyncio.run(talk(old)) == 1


def test_a_table_says_what_is_there_and_what_is_missing(tmp_path: Path) -> None:
    old = old_file(tmp_path / "old.db")
    lines = run("--status", "--db", old).stdout.splitlines()
    assert lines[0].split() == ["version", "applied", "needs", "checksum"]
    for line, (number, checksum, _), there in zip(
        lines[1:-1], load_migrations("sqlite"), ["yes", *["no"] * (OF_FILES - 1)], strict=True
    ):
        assert line.split() == [str(number), there, str(number), checksum[:12]]
    assert lines[-1] == f"{OF_FILES - 1} to apply: acms migrate --db {old}"


def test_a_file_that_is_opened_read_only_is_not_migrated(tmp_path: Path) -> None:
    old = old_file(tmp_path / "old.db")
    before = seen(tmp_path)
    assert applied("--db", f"{old}?mode=ro") == [True, *[False] * (OF_FILES - 1)]
    assert "STORAGE_READ_ONLY" in run("--db", f"{old}?mode=ro", code=1).stderr
    assert seen(tmp_path) == before


@pytest.mark.parametrize("how", [(), ("--status",), ("--dry-run",)])
def test_the_file_of_a_later_release_is_refused_and_left_alone(tmp_path: Path, how: tuple[str, ...]) -> None:
    old = old_file(tmp_path / "old.db")
    connection = apsw.Connection(str(tmp_path / "old.db"))
    connection.pragma("user_version", 99)
    connection.close()
    before = seen(tmp_path)
    error = json.loads(run(*how, "--json", "--db", old, code=1).stderr)["error"]
    assert error["code"] == "SCHEMA_VERSION"
    assert error["options"] == ["upgrade acms-engine"]
    assert seen(tmp_path) == before


def test_what_is_no_store_of_ours_is_refused(tmp_path: Path) -> None:
    (tmp_path / "note.db").write_text("this is no database, but a note of some length")
    assert "CORRUPT_RECORD" in run("--status", "--db", base.file_url(tmp_path / "note.db"), code=1).stderr
    assert "is not the URL of a store" in run("--status", "--db", "nonsense", code=2).stderr


def test_memory_has_nothing_to_migrate() -> None:
    for how in ((), ("--status",)):
        assert run(*how, "--db", "memory://").stdout == "this store has no schema: nothing to migrate\n"
    assert call("--db", "memory://") == {
        "ok": True,
        "stores": [{"shard": None, "migrations": [], "applied": []}],
    }


def test_wrong_usage_leaves_with_2(tmp_path: Path) -> None:
    db = base.file_url(tmp_path / "a.db")
    run("--status", "--dry-run", "--db", db, code=2)
    run("--status", "--partitions", "4", "--db", db, code=2)
    run("--partitions", "0", "--db", db, code=2)
    run("--shard", "eu", "--db", db, code=2)
    assert list(tmp_path.iterdir()) == []


def test_a_file_has_no_partitions(tmp_path: Path) -> None:
    db = base.file_url(tmp_path / "a.db")
    assert "an SQLite file has no partitions" in run("--partitions", "4", "--db", db, code=1).stderr
    assert list(tmp_path.iterdir()) == []


# ── a server ────────────────────────────────────────────────────────────────────────────────────────────────────────


def scalar(url: str, query: str) -> Any:
    with psycopg.connect(url, autocommit=True) as connection:
        row = connection.execute(query.encode()).fetchone()
        assert row is not None
        return row[0]


def test_status_and_dry_run_do_not_touch_an_empty_server_database(postgres_url: str) -> None:
    assert applied("--db", postgres_url) == [False] * STEPS
    assert "CREATE TABLE acms.contexts" in run("--dry-run", "--db", postgres_url).stdout
    assert scalar(postgres_url, "SELECT to_regnamespace('acms') IS NULL")


def test_what_a_dry_run_prints_makes_a_database_that_the_store_accepts(postgres_url: str) -> None:
    written = run("--dry-run", "--partitions", "3", "--db", postgres_url).stdout
    assert ":partitions" not in written
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(written.encode())
    assert all(applied("--db", postgres_url))
    assert run("--dry-run", "--db", postgres_url).stdout == "-- nothing to do\n"
    assert run("--db", postgres_url).stdout == f"nothing to do: the schema is at {STEPS}\n"
    assert asyncio.run(talk(postgres_url)) == 1
    assert scalar(postgres_url, PARTITIONS) == 3


PARTITIONS = "SELECT count(*) FROM pg_inherits WHERE inhparent = 'acms.entries'::regclass"


def test_only_an_empty_database_gets_a_number_of_partitions(postgres_url: str) -> None:
    assert "from 1 to 1024" in run("--partitions", "1025", "--db", postgres_url, code=1).stderr
    assert call("--partitions", "5", "--db", postgres_url)["stores"][0]["applied"] == [*range(1, STEPS + 1)]
    assert scalar(postgres_url, PARTITIONS) == 5
    for how in ((), ("--dry-run",)):
        error = run(*how, "--partitions", "5", "--db", postgres_url, code=1).stderr
        assert "only for an empty database" in error
    assert asyncio.run(talk(postgres_url)) == 1


def test_steps_of_a_later_release_that_this_one_can_work_beside_are_listed(postgres_url: str) -> None:
    run("--db", postgres_url)
    later = STEPS + 1
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        insert = "INSERT INTO acms.migrations (version, needs, checksum) VALUES (%s, %s, 'abc')"
        connection.execute(insert, (later, STEPS))
        assert applied("--db", postgres_url) == [True] * later
        assert run("--db", postgres_url).stdout == f"nothing to do: the schema is at {later}\n"
        connection.execute(insert, (later + 1, later + 1))
    assert "SCHEMA_VERSION" in run("--status", "--db", postgres_url, code=1).stderr


# ── shards ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def shards(tmp_path: Path) -> str:
    old_file(tmp_path / "b.db")
    file = tmp_path / "shards.toml"
    file.write_text('[shards]\na = "sqlite:///a.db"\nb = "sqlite:///b.db"\n[tenants]\nacme = "b"\n')
    return str(file)


def test_every_shard_is_migrated_in_turn(shards: str) -> None:
    said = run("--status", "--db", shards).stdout.splitlines()
    assert [line for line in said if len(line) == 1] == ["a", "b"]
    assert run("--db", shards).stdout.splitlines() == [
        f"a: applied {ALL}; the schema is at {OF_FILES}",
        f"b: applied {REST}; the schema is at {OF_FILES}",
    ]
    assert [store["shard"] for store in call("--status", "--db", shards)["stores"]] == ["a", "b"]
    assert asyncio.run(talk(f"{shards}?tenant=acme")) == 1


def test_one_shard_alone_is_migrated(shards: str, tmp_path: Path) -> None:
    assert run("--shard", "b", "--db", shards).stdout == f"b: applied {REST}; the schema is at {OF_FILES}\n"
    assert not (tmp_path / "a.db").exists()
    assert "there is no shard 'c'" in run("--shard", "c", "--db", shards, code=1).stderr
    assert run("--dry-run", "--shard", "b", "--db", shards).stdout == "-- shard b\n-- nothing to do\n"


def test_a_shard_that_fails_does_not_keep_the_others_waiting(shards: str, tmp_path: Path) -> None:
    (tmp_path / "a.db").write_text("this is no database, but a note of some length")
    result = run("--db", shards, code=1)
    assert result.stdout.splitlines() == ["a: failed", f"b: applied {REST}; the schema is at {OF_FILES}"]
    assert "CORRUPT_RECORD" in result.stderr
    found = call("--db", shards, code=1)
    assert found["ok"] is False
    assert [store.get("error", {}).get("code") for store in found["stores"]] == ["CORRUPT_RECORD", None]


def test_a_shard_whose_password_is_not_set_is_named(tmp_path: Path) -> None:
    file = tmp_path / "shards.toml"
    file.write_text('[shards]\na = "${NOT_SET_AT_ALL}"\nb = "sqlite:///b.db"\n')
    result = run("--status", "--db", str(file), code=1)
    assert "a: failed" in result.stdout
    assert "NOT_SET_AT_ALL is not set" in result.stderr
