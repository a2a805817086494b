"""The servers of Debian's packages, and every launcher as a normal user."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import psycopg
import pytest
from redis import Redis
from redis.exceptions import ConnectionError

from tests.faults._process import ROOT, SOURCE
from tests.servers import debian
from tests.servers.pgbouncer import PgBouncer
from tests.servers.process import NOBODY, ServerError, is_root
from tests.servers.redis import RedisServer


def test_redis_answers(redis_url: str) -> None:
    with Redis.from_url(redis_url) as client:
        assert client.dbsize() == 0
        client.set("a", "b")
        assert client.get("a") == b"b"


def test_redis_can_be_stopped_killed_and_started_again(redis_server: RedisServer) -> None:
    with Redis.from_url(redis_server.url, retry=None) as client:
        client.set("a", "b")
        redis_server.stop()
        with pytest.raises(ConnectionError):
            client.get("a")
        redis_server.start()
        assert client.get("a") == b"b"
        redis_server.kill()
        redis_server.start()
        assert client.get("a") == b"b"


def test_pgbouncer_gives_its_connections_to_transactions(pgbouncer_url: str) -> None:
    with ExitStack() as stack:
        clients = [stack.enter_context(psycopg.connect(pgbouncer_url)) for _ in range(12)]
        backends = set()
        for client in clients:  # all connected at once, each in a transaction after the other
            with client.transaction():
                backends.add(client.execute("SELECT pg_backend_pid()").fetchone())
        assert len(backends) <= 4


def test_pgbouncer_keeps_no_session(postgres_url: str) -> None:
    with (
        PgBouncer(postgres_url, connections=1) as pool,
        psycopg.connect(pool.url, autocommit=True) as one,
        psycopg.connect(pool.url, autocommit=True) as other,
    ):
        one.execute("SET work_mem = '7MB'")
        assert other.execute("SHOW work_mem").fetchone() == ("7MB",)  # what code behind it must be safe from


def test_a_program_that_cannot_be_had_names_its_package(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(debian, "installed_program", lambda place: None)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ServerError, match="install pgbouncer"):
        debian.find_program("usr/sbin/pgbouncer", tmp_path)


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user may enter, unlike pytest's; the user of these tests owns `cache` in it."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "cache").mkdir()
        if is_root():
            os.chown(folder / "cache", NOBODY, NOBODY)
        yield folder


def _as_user(*arguments: str | Path, **env: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.servers._as_user", *map(str, arguments)],
        cwd=ROOT,
        env={**os.environ, **env, "PYTHONPATH": f"{SOURCE}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_every_server_runs_for_a_normal_user(open_folder: Path) -> None:
    assert _as_user("run", open_folder) == ["18 2.0 b'b'", "18 2.0 b'b'"]


@pytest.mark.slow
def test_a_normal_user_fetches_the_programs_on_a_machine_without_lists_of_packages(open_folder: Path) -> None:
    (open_folder / "none").mkdir()
    (open_folder / "apt.conf").write_text(f'Dir::State::Lists "{open_folder}/none";')
    said = _as_user(
        "fetch",
        open_folder,
        XDG_CACHE_HOME=str(open_folder / "cache"),
        APT_CONFIG=str(open_folder / "apt.conf"),
    )
    assert said == ["15 b'b'", "15 b'b'"]
