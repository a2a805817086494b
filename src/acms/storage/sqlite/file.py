"""The handle on one SQLite file: opening it safely, its readers, and its write queue.

Nothing is answered before it is committed (`synchronous=FULL`: an acknowledged message survives a power cut). Small
reads run on the event loop from a connection of their own, since a WAL reader never waits; large ones run in a thread.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

import apsw

from acms.errors import ACMSError, HandleError, StorageError, StorageReadOnlyError, ValidationError
from acms.model import Durability, Migration
from acms.storage.files import create
from acms.storage.sqlite import schema
from acms.storage.sqlite.guard import check_header, translated
from acms.storage.sqlite.queue import Function, Steps, WriteQueue

T = TypeVar("T")

_process = os.getpid()
"""The number of this process: to ask for it is a system call."""
_open_files: list[tuple[int, int]] = []
"""Device and inode of the files this process has open, once per open handle."""
_inherited: set[tuple[int, int]] = set()
"""The files that were open when this process was forked from its parent."""


def _forked() -> None:
    """Keep SQLite away from the files of the parent.

    SQLite notes per process and inode which locks it holds. A child inherits the notes but not the locks: a new
    connection to the same file would believe it is protected, and the parent's close would delete the WAL under it.
    """
    global _process
    _process = os.getpid()
    _inherited.update(_open_files)
    _open_files.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


@dataclass(slots=True)
class _Opened:
    """What exists while the file is open."""

    pid: int
    loop: asyncio.AbstractEventLoop
    writer: apsw.Connection
    reader: apsw.Connection
    large: apsw.Connection
    lock: asyncio.Lock
    identity: tuple[int, int] | None
    #: None when nothing may be written.
    queue: WriteQueue | None


class SQLiteFile:
    """The handle on an SQLite file, opened by its first use and bound to one event loop of one process."""

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
        self._translated = translated(self.path)
        self.durability: Durability = durability
        self.read_only = read_only
        #: Milliseconds that a statement waits for another process.
        self.busy = int(busy_seconds * 1000)
        #: What is done around the functions of a commit; set before the file is opened.
        self.steps = Steps()
        self._clock = clock
        self._state: _Opened | None = None
        self._opening: asyncio.Task[_Opened] | None = None
        #: Who is told each step of the schema, in the thread that applies it.
        self._applied: Callable[[int], None] | None = None
        #: Two event loops run in two threads.
        self._guard = threading.Lock()

    @property
    def is_open(self) -> bool:
        """Whether its connections are open."""
        return self._state is not None

    # ── opening and closing ─────────────────────────────────────────────────────────────────────────────────────────

    async def open(self) -> _Opened:
        """Return the open state, opening the file on first use; refuse another process or event loop."""
        state = self._state
        if state is not None:
            if state.pid != os.getpid():
                raise HandleError(
                    "this handle was opened before os.fork(): SQLite files break when both processes use it",
                    options=("close it before os.fork() and open the store in the child process",),
                )
            if state.loop is not asyncio.get_running_loop():
                if not state.loop.is_closed():
                    raise HandleError(
                        "this handle belongs to another event loop",
                        options=("open one handle per event loop",),
                    )
                self._abandon(state)
            else:
                return state
        loop = asyncio.get_running_loop()
        with self._guard:
            opening = self._opening
            if opening is not None and opening.get_loop() is not loop:
                if not opening.get_loop().is_closed():
                    raise HandleError(
                        "another event loop is opening this handle",
                        options=("open one handle per event loop",),
                    )
                opening = None
            if opening is None:
                opening = self._opening = loop.create_task(self._start(loop))
        try:
            state = await asyncio.shield(opening)
        finally:
            if opening.done() and self._opening is opening:
                self._opening = None
        # Someone may have closed the handle before this caller was resumed.
        return state if self._state is state else await self.open()

    async def _start(self, loop: asyncio.AbstractEventLoop) -> _Opened:
        writer, reader, large = await asyncio.to_thread(self._connect)
        identity = self._identity()
        if identity is not None:
            _open_files.append(identity)
        queue = None if self.read_only else WriteQueue(loop, writer, self._translated, self.steps)
        state = _Opened(os.getpid(), loop, writer, reader, large, asyncio.Lock(), identity, queue)
        self._state = state
        return state

    def _connect(self) -> tuple[apsw.Connection, apsw.Connection, apsw.Connection]:
        with translated(self.path):
            if self._identity() in _inherited:
                raise HandleError(
                    f"{self.path} was open when this process was forked: messages would be lost",
                    options=("close every handle before os.fork()", "start the process by spawn or exec"),
                )
            if self.read_only:
                opened: list[apsw.Connection] = []
                try:
                    first = self._connect_read_only(opened)
                    schema.check(first, self.path, read_only=True)
                    return first, self._connect_read_only(opened), self._connect_read_only(opened)
                except BaseException:
                    for connection in opened:
                        connection.close()
                    self._tidy()
                    raise
            if not self.path.parent.is_dir():
                raise StorageError(f"the folder {self.path.parent} does not exist", options=("create it",))
            check_header(self.path)
            create(self.path)
            writer = _opened(str(self.path), apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE)
            try:
                writer.set_busy_timeout(self.busy)
                schema.check(writer, self.path)
                if writer.readonly("main"):
                    raise StorageReadOnlyError(
                        f"{self.path} cannot be written", options=("open it with ?mode=ro",)
                    )
                self._use_wal(writer)
                writer.pragma("synchronous", "full" if self.durability == "disk" else "normal")
                writer.pragma("trusted_schema", False)
                writer.pragma("secure_delete", True)  # zeros over what is deleted, not only a free place
                schema.migrate(writer, self._clock, self._applied)
                return writer, self._connect_reader(), self._connect_reader()
            except BaseException:
                # Closing would move the commits of a WAL into a file that was just refused.
                writer.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, self._wal_size() > 0)
                writer.close()
                raise

    def _identity(self) -> tuple[int, int] | None:
        try:
            found = self.path.stat()
        except OSError:
            return None
        return found.st_dev, found.st_ino

    def _use_wal(self, writer: apsw.Connection) -> None:
        """Switch a fresh file to WAL; SQLite does not wait here when two processes do so at once, so we do."""
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
        """Return how many bytes of commits lie beside the file; 0 when there is no WAL."""
        try:
            return self.path.with_name(self.path.name + "-wal").stat().st_size
        except OSError:
            return 0

    def _connect_reader(self) -> apsw.Connection:
        reader = _opened(str(self.path), apsw.SQLITE_OPEN_READWRITE)
        reader.set_busy_timeout(self.busy)
        reader.pragma("query_only", True)
        return reader

    def _connect_read_only(self, opened: list[apsw.Connection]) -> apsw.Connection:
        check_header(self.path)
        if not self.path.is_file():
            raise StorageError(f"{self.path} does not exist", options=("open it writable once to create it",))
        try:
            reader = _opened(str(self.path), apsw.SQLITE_OPEN_READONLY)
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
            return _opened(uri, apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI)

    def _tidy(self) -> None:
        """Remove the empty WAL that read-only connections leave behind: only a writable one may do it safely."""
        wal = self.path.with_name(self.path.name + "-wal")
        if wal.is_file() and self._wal_size() == 0 and os.access(self.path, os.W_OK):
            with suppress(apsw.Error):
                connection = apsw.Connection(str(self.path), flags=apsw.SQLITE_OPEN_READWRITE)
                try:
                    connection.pragma("user_version")
                finally:
                    connection.close()

    # ── the schema ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def migrations(self, partitions: int | None) -> list[Migration]:
        """Return every step of the schema; the file is read, or left alone where there is none."""
        schema.check_partitions(partitions)
        return await asyncio.to_thread(schema.steps, self.path)

    async def migrate(
        self, partitions: int | None, progress: Callable[[Migration], None] | None
    ) -> list[Migration]:
        """Open the file, which applies what is missing; return what was."""
        missing = {step.version: step for step in await self.migrations(partitions) if not step.applied}
        if missing and self.read_only:
            raise StorageReadOnlyError(f"{self.path} was opened read-only", options=("leave ?mode=ro out",))
        done: list[Migration] = []

        def applied(version: int) -> None:
            done.append(missing[version])
            if progress is not None:
                progress(missing[version])

        self._applied = applied
        try:
            await self.open()
        finally:
            self._applied = None
        return done

    async def aclose(self) -> None:
        """Finish what is queued and close the file."""
        if self._opening is not None:
            with suppress(ACMSError):
                await self.open()
        state = self._state
        if state is not None and state.pid == os.getpid() and not state.loop.is_closed():
            await self.open()  # refuses to close what belongs to another event loop
        self._state = None
        if state is None or state.pid != os.getpid():
            return
        if state.queue is not None:
            state.queue.stop()
            await asyncio.to_thread(state.queue.thread.join)
        async with state.lock:
            self._close(state)

    def _close(self, state: _Opened) -> None:
        if state.queue is not None:
            state.queue.close()
        for connection in (state.large, state.reader, state.writer):
            with suppress(apsw.Error):
                connection.close()
        if state.identity in _open_files:
            _open_files.remove(state.identity)
        if self.read_only:
            self._tidy()

    def _abandon(self, state: _Opened) -> None:
        """Close what an event loop that ended without `aclose` left open."""
        self._state = None
        if state.queue is not None:
            state.queue.stop()
            state.queue.thread.join()
        self._close(state)

    # ── reading and writing ─────────────────────────────────────────────────────────────────────────────────────────

    async def read(self, function: Callable[[apsw.Connection], T], *, large: bool = False) -> T:
        """Run a function on a connection that only reads: here, or in a thread when it may take long."""
        state = self._state
        if state is None or state.pid != _process or state.loop is not asyncio.get_running_loop():
            state = await self.open()
        if not large:
            with self._translated:
                return function(state.reader)
        async with state.lock:
            with self._translated:
                return await asyncio.to_thread(function, state.large)

    async def write_all(self, functions: Sequence[Function]) -> list[Any]:
        """Run functions in one transaction, each undone on its own when it fails; return results and refusals."""
        state = self._state
        if state is None or state.pid != _process or state.loop is not asyncio.get_running_loop():
            state = await self.open()
        return await self._queue(state).post(functions)

    async def write(self, function: Callable[[apsw.Connection], T]) -> T:
        """Run a function in the next commit."""
        (result,) = await self.write_all([function])
        if isinstance(result, ACMSError):
            raise result
        return result

    async def defer(self, function: Function) -> None:
        """Run a function in the next commit, or soon; nobody waits for it."""
        self._queue(await self.open()).defer(function)

    def _queue(self, state: _Opened) -> WriteQueue:
        if state.queue is None:
            raise StorageReadOnlyError(f"{self.path} was opened read-only")
        return state.queue

    # ── upkeep ──────────────────────────────────────────────────────────────────────────────────────────────────────

    async def backup(self, to: str | os.PathLike[str], progress: Callable[[int, int], None] | None) -> None:
        """Copy the whole file while it is in use; `progress` receives (pages done, pages in all)."""
        target = Path(to)

        def work(source: apsw.Connection) -> None:
            if not create(target):
                raise StorageError(f"{target} exists", options=("choose another name",))
            destination = apsw.Connection(str(target))
            try:
                with destination.backup("main", source, "main") as copy:
                    while not copy.done:
                        copy.step(512)
                        if progress is not None:
                            progress(copy.page_count - copy.remaining, copy.page_count)
            finally:
                destination.close()

        await self.read(work, large=True)

    async def integrity(self) -> list[str]:
        """Return what SQLite finds wrong with the file; nothing when it is sound."""
        rows = await self.read(
            lambda connection: connection.execute("PRAGMA integrity_check").fetchall(), large=True
        )
        return [str(row[0]) for row in rows if row[0] != "ok"]


def _opened(file: str, flags: int) -> apsw.Connection:
    """Open a file and plan each query once: built with sampled statistics SQLite plans joins anew for every value."""
    connection = apsw.Connection(file, flags=flags)
    connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, True)
    return connection
