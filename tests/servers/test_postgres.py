"""The PostgreSQL launcher itself."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil
import psycopg
import pytest

from tests.faults._process import finish_process, start_python
from tests.servers.postgres import Databases, Server, databases_of_environment, wheel_folder


def _wait_until(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def _is_gone(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_pgvector_can_be_created(postgres_url: str) -> None:
    with psycopg.connect(postgres_url) as connection:
        connection.execute("CREATE EXTENSION vector")
        row = connection.execute("SELECT extversion FROM pg_extension WHERE extname = 'vector'").fetchone()
    assert row is not None
    assert tuple(map(int, row[0].split("."))) >= (0, 8, 2)


def test_a_database_is_empty_and_gone_after_the_test(postgres: Databases) -> None:
    url = postgres.create_database()
    with psycopg.connect(url) as connection:
        tables = connection.execute("SELECT relname FROM pg_class WHERE oid >= 16384").fetchall()
        connection.execute("CREATE TABLE a (b int)")
        connection.commit()
        postgres.drop_database(url)  # although somebody is connected
    assert tables == []
    assert (url.rpartition("/")[2],) not in postgres.execute("SELECT datname FROM pg_database")


def test_what_was_committed_outlives_kill_stop_and_restart_on_the_same_port() -> None:
    with Server(settings={"work_mem": "7MB"}) as server:
        url = server.create_database()
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("CREATE TABLE a (b int)")
            connection.execute("INSERT INTO a VALUES (1)")
            server.kill()
            with pytest.raises(psycopg.OperationalError):
                connection.execute("SELECT 1")
        server.start()
        server.restart()
        server.stop()
        server.start()
        with psycopg.connect(url) as connection:
            assert connection.execute("SELECT b FROM a").fetchall() == [(1,)]
        assert server.execute("SHOW work_mem") == [("7MB",)]
        assert server.execute("SHOW fsync") == [("off",)]
        folder = server.folder
    assert not folder.exists()


def test_no_server_and_no_folder_is_left_when_the_tests_are_killed() -> None:
    tests = start_python("-m", "tests.servers")
    assert tests.stdout is not None
    url = tests.stdout.readline().strip()
    with psycopg.connect(url) as connection:
        row = connection.execute(
            "SELECT pg_postmaster_start_time(), current_setting('data_directory')"
        ).fetchone()
    assert row is not None
    folder = Path(row[1]).parent
    postmaster = int((folder / "data" / "postmaster.pid").read_text().split()[0])
    tests.kill()
    finish_process(tests)
    _wait_until(lambda: _is_gone(postmaster) and not folder.exists())


def test_ctrl_c_ends_the_server_by_hand() -> None:
    tests = start_python("-m", "tests.servers")
    assert tests.stdout is not None
    url = tests.stdout.readline().strip()
    tests.send_signal(signal.SIGINT)
    assert finish_process(tests) == 0
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(url)


def test_a_server_changes_nothing_of_the_system() -> None:
    def system() -> list[object]:
        places = [
            Path(sys.prefix),
            wheel_folder() / "pginstall18" / "bin" / "postgres",
            Path(tempfile.gettempdir()),
        ]
        folders = {folder for place in places for folder in (place, *place.resolve().parents)}
        modes = sorted((str(folder), os.stat(folder).st_mode, os.stat(folder).st_uid) for folder in folders)
        return [Path("/etc/passwd").read_bytes(), Path("/etc/group").read_bytes(), *modes]

    before = system()
    with Server(fsync=True) as server:
        during = system()
        assert server.execute("SHOW fsync") == [("on",)]
        users: set[int] = set()
        for process in (psutil.Process(server.pid), *psutil.Process(server.pid).children()):
            with suppress(psutil.NoSuchProcess):  # a child may have ended
                users.add(process.uids().real)
        assert users == {os.getuid() or 65534}
    assert during == before
    assert system() == before


def test_a_server_is_named_by_the_environment(monkeypatch: pytest.MonkeyPatch, postgres: Databases) -> None:
    monkeypatch.delenv("ACMS_TEST_PG_URL", raising=False)
    assert databases_of_environment() is None
    monkeypatch.setenv("ACMS_TEST_PG_URL", postgres.url())
    named = databases_of_environment()
    assert named is not None
    url = named.create_database()
    with psycopg.connect(url) as connection:
        assert connection.execute("SELECT current_database()").fetchone() == (url.rpartition("/")[2],)
    named.drop_database(url)


def test_postgresql_15_of_debian_has_no_pgvector(postgres15_url: str) -> None:
    with psycopg.connect(postgres15_url) as connection:
        assert connection.info.server_version // 10000 == 15
        with pytest.raises(psycopg.errors.FeatureNotSupported):
            connection.execute("CREATE EXTENSION vector")
