"""The handle on one SQLite file: opening it safely, its readers and its write queue.

Nothing is answered before it is committed (`synchronous=FULL`: an acknowledged message survives a power cut). Small
reads run on the event loop from a connection of their own, since a WAL reader never waits; large ones run in a thread.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import apsw

from acms.errors import ACMSError, HandleError, StorageError, StorageReadOnlyError, ValidationError
from acms.model import Durability, Migration
from acms.runtime.loops import PerLoop, waiting
from acms.storage.files import create_file
from acms.storage.sqlite import schema
from acms.storage.sqlite.backup import backup_database, check_database
from acms.storage.sqlite.database import CommitHooks, ErrorTranslation, Function, open_connection
from acms.storage.sqlite.writer import Port, StoppedError, WriteQueue

T = TypeVar("T")

CLOSING = 5.0
"""Seconds that closing waits for another event loop to let go of the file."""


_pid = os.getpid()
"""The number of this process, cached: asking for it at every call would be a system call each time."""
_open_files: list[tuple[int, int]] = []
"""Device and inode of the files this process has open, once per open handle."""
_inherited: set[tuple[int, int]] = set()
"""The files that were open when this process was forked from its parent."""


def _mark_files_inherited() -> None:
    """Keep SQLite away from the files of the parent.

    SQLite notes per process and inode which locks it holds. A child inherits the notes but not the locks: a new
    connection to the same file would believe it is protected, and the parent's close would delete the WAL under it.
    """
    global _pid
    _pid = os.getpid()
    _inherited.update(_open_files)
    _open_files.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_mark_files_inherited)


@dataclass(slots=True)
class _Opened:
    """The state of an open file, shared by all event loops."""

    pid: int
    writer: apsw.Connection
    identity: tuple[int, int] | None
    #: None when nothing may be written.
    queue: WriteQueue | None
    #: The port of each event loop.
    ports: PerLoop[Port]


async def _close_port(loop: asyncio.AbstractEventLoop, port: Port, *, timeout: float | None) -> None:
    """Close the port of an event loop, on that loop if it runs; wait at most `timeout` seconds for it."""
    closed: Future[None] = Future()
    if loop in waiting:  # it is blocked until this call ends, and uses nothing of the port meanwhile
        port.end(closed)
    elif loop.is_running():
        with suppress(RuntimeError):  # it was closed just now
            loop.call_soon_threadsafe(port.end, closed)
            await asyncio.wait([asyncio.wrap_future(closed)], timeout=timeout)
    if not (closed.done() or loop.is_running()):
        port.close()


class SQLiteFile:
    """The handle on an SQLite file, opened by its first use; any event loops and threads of one process may use it."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        durability: Durability,
        read_only: bool,
        busy_seconds: float,
        clock: Callable[[], datetime],
    ) -> None:
        if durability not in ("disk", "relaxed"):
            raise ValidationError("must be disk or relaxed", field="durability")
        self.path = Path(path)
        self._errors = ErrorTranslation(str(self.path))
        self.durability: Durability = durability
        self.read_only = read_only
        #: Milliseconds that a statement waits for another process.
        self.busy = int(busy_seconds * 1000)
        #: Hooks around the functions of a commit; set before the file is opened.
        self.hooks = CommitHooks()
        self._clock = clock
        self._state: _Opened | None = None
        #: Who opens the file for an event loop, or opens it there.
        self._opening: PerLoop[asyncio.Task[Port]] = PerLoop()
        #: Called with each applied migration, in the thread that applies it.
        self._applied: Callable[[int], None] | None = None
        #: Held while the file is opened.
        self._opening_lock = threading.Lock()

    @property
    def is_open(self) -> bool:
        """Whether its connections are open."""
        return self._state is not None

    # ── opening and closing ─────────────────────────────────────────────────────────────────────────────────────────

    async def open(self) -> Port:
        """Return this event loop's port to the file, opened on first use; raise `HandleError` in another process."""
        state = self._state
        if state is not None and state.pid != os.getpid():
            raise HandleError(
                "this handle was opened before os.fork(): SQLite files break when both processes use it",
                options=("close it before os.fork() and open the store in the child process",),
            )
        port = None if state is None else state.ports.get()
        if port is not None:
            return port
        opening = self._opening.get()
        if opening is None:
            opening = asyncio.get_running_loop().create_task(self._start())
            self._opening.set(opening)
        try:
            port = await asyncio.shield(opening)
        finally:
            if opening.done() and self._opening.get() is opening:
                self._opening.pop()
        # Another caller may have closed the handle before this one was resumed: then it is opened once more.
        state = self._state
        if state is not None and state.ports.get() is port:
            return port
        port.close()
        return await self.open()

    async def _start(self) -> Port:
        state, reader, large = await asyncio.to_thread(self._open_connections)
        port = Port(reader, large, state.queue, self._errors)
        state.ports.set(port)
        return port

    def _open_connections(self) -> tuple[_Opened, apsw.Connection, apsw.Connection]:
        """Open the file unless it is open; return two connections for reading."""
        with self._opening_lock:
            state = self._state
            if state is not None:
                with self._errors:
                    opened: list[apsw.Connection] = []
                    connect = (
                        partial(self._connect_read_only, opened) if self.read_only else self._connect_reader
                    )
                    return state, connect(), connect()
            writer, reader, large = self._connect()
            identity = self._identity()
            if identity is not None:
                _open_files.append(identity)
            self.hooks.before_commit = partial(self._check_place, identity)
            queue = None if self.read_only else WriteQueue(writer, self._errors, self.hooks, self.busy)
            self._state = state = _Opened(os.getpid(), writer, identity, queue, PerLoop(end=Port.close))
            return state, reader, large

    def _connect(self) -> tuple[apsw.Connection, apsw.Connection, apsw.Connection]:
        """Open the file, and create or migrate it if needed.

        Returns the writer, a reader, and a reader for large reads; a read-only file has three readers.
        """
        with self._errors:
            if self._identity() in _inherited:
                raise HandleError(
                    f"{self.path} was open when this process was forked: messages would be lost",
                    options=("close every handle before os.fork()", "start the process by spawn or exec"),
                )
            if self.read_only:
                opened: list[apsw.Connection] = []
                try:
                    reader = self._connect_read_only(opened)
                    schema.check_schema(reader, self.path, read_only=True)
                    return reader, self._connect_read_only(opened), self._connect_read_only(opened)
                except BaseException:
                    for connection in opened:
                        connection.close()
                    self._remove_leftovers()
                    raise
            if not self.path.parent.is_dir():
                raise StorageError(f"the folder {self.path.parent} does not exist", options=("create it",))
            schema.check_header(self.path)
            create_file(self.path)
            writer = open_connection(str(self.path), apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE)
            try:
                writer.set_busy_timeout(self.busy)
                schema.check_schema(writer, self.path)
                if writer.readonly("main"):
                    raise StorageReadOnlyError(
                        f"{self.path} cannot be written", options=("open it with ?mode=ro",)
                    )
                self._use_wal(writer)
                writer.pragma("synchronous", "full" if self.durability == "disk" else "normal")
                writer.pragma("trusted_schema", False)
                writer.pragma("secure_delete", True)  # overwrite deleted content with zeros
                schema.migrate_file(writer, self._clock, self._applied)
                return writer, self._connect_reader(), self._connect_reader()
            except BaseException:
                # Closing would move the commits of a WAL into a file that was just refused.
                writer.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, self._wal_size() > 0)
                writer.close()
                raise

    def _identity(self) -> tuple[int, int] | None:
        try:
            status = self.path.stat()
        except OSError:
            return None
        return status.st_dev, status.st_ino

    def _check_place(self, identity: tuple[int, int] | None) -> None:
        """Raise `HandleError` if the path no longer names the open file, which `identity` names.

        SQLite would go on writing to a file that was moved or deleted, where no later opening finds the messages. The
        check costs one system call a commit, about 5 µs.
        """
        if self._identity() != identity:
            raise HandleError(
                f"{self.path} was moved, deleted or replaced while it was open: nothing was written",
                options=(
                    "close the store, put the file back together with its -wal file, and open it again",
                ),
            )

    def _use_wal(self, writer: apsw.Connection) -> None:
        """Switch a fresh file to WAL; SQLite does not wait here when two processes do so at once, so we do."""
        # The usual case: the file remembers the mode.
        if writer.pragma("journal_mode") == "wal":
            return
        deadline = time.monotonic() + self.busy / 1000
        while True:
            try:
                writer.pragma("journal_mode", "wal")
                return
            except apsw.BusyError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.005)

    def _wal_size(self) -> int:
        """Return the size of the write-ahead log in bytes; 0 if there is none."""
        try:
            return self.path.with_name(self.path.name + "-wal").stat().st_size
        except OSError:
            return 0

    def _connect_reader(self) -> apsw.Connection:
        reader = open_connection(str(self.path), apsw.SQLITE_OPEN_READWRITE)
        reader.set_busy_timeout(self.busy)
        reader.pragma("query_only", True)
        return reader

    def _connect_read_only(self, opened: list[apsw.Connection]) -> apsw.Connection:
        """Open a connection that cannot write, and add it to `opened`.

        Where not even the WAL's index can be created, the file is read as immutable, provided that the WAL is
        empty.
        """
        schema.check_header(self.path)
        if not self.path.is_file():
            raise StorageError(f"{self.path} does not exist", options=("open it writable once to create it",))
        try:
            reader = open_connection(str(self.path), apsw.SQLITE_OPEN_READONLY)
            opened.append(reader)
            reader.set_busy_timeout(self.busy)
            reader.pragma("user_version")
            return reader
        except (apsw.CantOpenError, apsw.ReadOnlyError, apsw.IOError):
            if self._wal_size() > 0:
                raise StorageReadOnlyError(
                    f"{self.path.name}-wal holds commits that cannot be read here: the file system is read-only",
                    options=("copy both files to a writable folder",),
                ) from None
            uri = f"{self.path.absolute().as_uri()}?immutable=1"
            reader = open_connection(uri, apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI)
            opened.append(reader)
            return reader

    def _remove_leftovers(self) -> None:
        """Remove the empty WAL that read-only connections leave behind: only a writable one may do it safely."""
        wal = self.path.with_name(self.path.name + "-wal")
        if wal.is_file() and self._wal_size() == 0 and os.access(self.path, os.W_OK):
            flags = apsw.SQLITE_OPEN_READWRITE
            with suppress(apsw.Error), closing(apsw.Connection(str(self.path), flags=flags)) as connection:
                connection.pragma("user_version")

    # ── the schema ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def migrations(self, partitions: int | None) -> list[Migration]:
        """Return every migration of the schema; a file that does not exist is not created."""
        schema.check_partitions(partitions)

        def list_steps() -> list[Migration]:
            with self._errors:
                return schema.list_schema_steps(self.path)

        return await asyncio.to_thread(list_steps)

    async def migrate(
        self, partitions: int | None, progress: Callable[[Migration], None] | None
    ) -> list[Migration]:
        """Open the file, which applies the missing migrations; return the applied ones."""
        missing_steps = {step.version: step for step in await self.migrations(partitions) if not step.applied}
        if missing_steps and self.read_only:
            raise StorageReadOnlyError(f"{self.path} was opened read-only", options=("leave ?mode=ro out",))
        applied: list[Migration] = []

        def note_applied(version: int) -> None:
            applied.append(missing_steps[version])
            if progress is not None:
                progress(missing_steps[version])

        self._applied = note_applied
        try:
            await self.open()
        finally:
            self._applied = None
        return applied

    async def aclose(self) -> None:
        """Finish queued work and close the file, for every event loop."""
        # Being opened: wait, so that nothing is left open.
        if self._opening.get() is not None:
            with suppress(ACMSError):
                await self.open()
        with self._opening_lock:
            state, self._state = self._state, None
        if state is None or state.pid != os.getpid():
            return
        port = state.ports.pop()
        if state.queue is not None:
            if port is not None:
                port.stop(state.queue)
            state.queue.stop()
            await asyncio.to_thread(state.queue.thread.join)
        if port is not None:
            await _close_port(asyncio.get_running_loop(), port, timeout=None)
        for loop, other_port in state.ports.clear():
            await _close_port(loop, other_port, timeout=CLOSING)
        with suppress(apsw.Error):
            state.writer.close()
        if state.identity in _open_files:
            _open_files.remove(state.identity)
        if self.read_only:
            self._remove_leftovers()

    # ── reading and writing ─────────────────────────────────────────────────────────────────────────────────────────

    async def _port(self) -> Port:
        state = self._state
        port = None if state is None or state.pid != _pid else state.ports.get()
        return port or await self.open()

    async def read(self, function: Callable[[apsw.Connection], T], *, large: bool = False) -> T:
        """Run a function on a connection that only reads: here, or in a thread when it may take long."""
        while True:
            port = await self._port()
            if not large:
                with self._errors:
                    return function(port.reader)
            with suppress(StoppedError):  # closed by another event loop: the file is opened again
                return await port.read(function)

    async def write_all(self, functions: Sequence[Function]) -> list[Any]:
        """Run functions in one transaction, each undone on its own when it fails; return results and refusals."""
        while True:
            port, queue = await self._writing()
            with suppress(StoppedError):
                return await port.post(queue, functions)

    async def write(self, function: Callable[[apsw.Connection], T]) -> T:
        """Run a function in the next commit."""
        (result,) = await self.write_all([function])
        if isinstance(result, ACMSError):
            raise result
        return result

    async def defer(self, function: Function) -> None:
        """Run a function in the next commit, or soon, without waiting for it."""
        port, queue = await self._writing()
        port.defer(queue, function)

    async def _writing(self) -> tuple[Port, WriteQueue]:
        port = await self._port()
        if port.queue is None:
            raise StorageReadOnlyError(f"{self.path} was opened read-only")
        return port, port.queue

    # ── maintenance ─────────────────────────────────────────────────────────────────────────────────────────────────

    async def backup(self, to: str | os.PathLike[str], progress: Callable[[int, int], None] | None) -> None:
        """Copy the whole file while it is in use; `progress` receives (pages done, pages in all).

        What fails leaves nothing behind.
        """
        await self.read(lambda source: backup_database(source, self.path, Path(to), progress), large=True)

    async def integrity(self) -> list[str]:
        """Return the problems that SQLite finds in the file; empty if there are none."""
        return await self.read(partial(check_database, pragma="integrity_check"), large=True)
