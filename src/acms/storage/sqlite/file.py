"""One SQLite file: opening it safely, one writer thread with group commit, readers beside it.

The writer takes everything that is waiting, runs each operation in a savepoint of one transaction, commits once
(`synchronous=FULL`: an acknowledged message survives a power cut) and answers all callers. Small reads run on the event
loop from a connection of their own, since a WAL reader never waits; large ones run in a thread.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

import apsw

from acms.errors import (
    ACMSError,
    ConflictError,
    HandleError,
    StorageError,
    StorageReadOnlyError,
    ValidationError,
)
from acms.model import Durability, Migration
from acms.storage import append_rules
from acms.storage.files import create
from acms.storage.sqlite import schema
from acms.storage.sqlite.guard import check_header, translated
from acms.storage.sqlite.queue import Answer, State, Work

T = TypeVar("T")
Row = Sequence[Any]

GROUP = 1024
"""Operations one transaction may hold."""
RIDE_SECONDS = 0.05
"""How long work that nobody waits for may wait for another commit."""

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


class SQLiteFile:
    """An SQLite file, opened by its first use and bound to one event loop of one process."""

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
        self._busy = int(busy_seconds * 1000)
        self._clock = clock
        self._state: State | None = None
        self._opening: asyncio.Task[State] | None = None
        #: Who is told each step of the schema, in the thread that applies it.
        self._applied: Callable[[int], None] | None = None
        #: Two event loops run in two threads.
        self._guard = threading.Lock()

    def _undone(self) -> None:
        """Forget what was remembered of a transaction: it was rolled back, in part or whole."""

    def _together(
        self, writer: apsw.Connection, functions: Sequence[Callable[[apsw.Connection], Any]], start: int
    ) -> list[Any]:
        """Run some of the functions from `start` on at once and return their results, in order; none if none can be."""
        return []

    def _committed(self, writer: apsw.Connection) -> None:
        """Do what must not be done inside a transaction, before the callers are answered."""

    # ── opening and closing ─────────────────────────────────────────────────────────────────────────────────────────

    async def _open(self) -> State:
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
        return state if self._state is state else await self._open()

    async def _start(self, loop: asyncio.AbstractEventLoop) -> State:
        connections = await asyncio.to_thread(self._connect)
        state = State(os.getpid(), loop, *connections, asyncio.Lock(), self._identity())
        if state.file is not None:
            _open_files.append(state.file)
        if not self.read_only:
            state.hang_bell()
            state.thread = threading.Thread(
                target=self._write_loop, args=(state,), name="acms-writer", daemon=True
            )
            state.thread.start()
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
                writer.set_busy_timeout(self._busy)
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
        deadline = time.monotonic() + self._busy / 1000
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
        reader.set_busy_timeout(self._busy)
        reader.pragma("query_only", True)
        return reader

    def _connect_read_only(self, opened: list[apsw.Connection]) -> apsw.Connection:
        check_header(self.path)
        if not self.path.is_file():
            raise StorageError(f"{self.path} does not exist", options=("open it writable once to create it",))
        try:
            reader = _opened(str(self.path), apsw.SQLITE_OPEN_READONLY)
            opened.append(reader)
            reader.set_busy_timeout(self._busy)
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

    async def migrations(self, *, partitions: int | None = None) -> list[Migration]:
        """Return every step of the schema; the file is read, or left alone where there is none."""
        schema.check_partitions(partitions)
        return await asyncio.to_thread(schema.steps, self.path)

    async def migrate(
        self, *, partitions: int | None = None, progress: Callable[[Migration], None] | None = None
    ) -> list[Migration]:
        """Open the file, which applies what is missing; return what was."""
        missing = {
            step.version: step for step in await self.migrations(partitions=partitions) if not step.applied
        }
        if missing and self.read_only:
            raise StorageReadOnlyError(f"{self.path} was opened read-only", options=("leave ?mode=ro out",))
        done: list[Migration] = []

        def applied(version: int) -> None:
            done.append(missing[version])
            if progress is not None:
                progress(missing[version])

        self._applied = applied
        try:
            await self._open()
        finally:
            self._applied = None
        return done

    async def aclose(self) -> None:
        """Finish what is queued and close the file."""
        if self._opening is not None:
            with suppress(ACMSError):
                await self._open()
        state = self._state
        if state is not None and state.pid == os.getpid() and not state.loop.is_closed():
            await self._open()  # refuses to close what belongs to another event loop
        self._state = None
        if state is None or state.pid != os.getpid():
            return
        if state.ride is not None:
            state.ride.cancel()
        if state.thread is not None:
            state.stop()
            await asyncio.to_thread(state.thread.join)
        async with state.lock:
            self._close(state)

    def _close(self, state: State) -> None:
        state.take_bell_down()
        for connection in (state.large, state.reader, state.writer):
            with suppress(apsw.Error):
                connection.close()
        if state.file in _open_files:
            _open_files.remove(state.file)
        if self.read_only:
            self._tidy()

    def _abandon(self, state: State) -> None:
        """Close what an event loop that ended without `aclose` left open."""
        self._state = None
        if state.thread is not None:
            state.stop()
            state.thread.join()
        self._close(state)

    # ── the writer thread ───────────────────────────────────────────────────────────────────────────────────────────

    def _write_loop(self, state: State) -> None:
        queue = state.queue
        last = False
        while not last:
            works: list[Work] = []
            work = queue.get()
            size = 0
            while work is not None:
                works.append(work)
                size += len(work.functions)
                if size >= GROUP or queue.empty():  # nobody else takes from it
                    break
                work = queue.get()
            else:
                last = True
            if state.riders:  # the loop may add one meanwhile
                works.append(Work([state.riders.popleft() for _ in range(len(state.riders))]))
            if not works:
                continue
            error = self._commit(state.writer, works)
            if error is None:
                self._committed(state.writer)
            else:
                for work in works:
                    work.done = [error] * len(work.functions)
            state.ring(works)

    def _commit(self, writer: apsw.Connection, works: Sequence[Work]) -> ACMSError | None:
        """Run all works in one transaction; return the error that spoiled all of it, if any."""
        functions = [function for work in works for function in work.functions]
        alone = len(functions) == 1
        done: list[Any] = []
        try:
            with self._translated:
                writer.execute("BEGIN IMMEDIATE")
                try:
                    while len(done) < len(functions):
                        done += ([] if alone else self._together(writer, functions, len(done))) or [
                            self._attempt(writer, functions[len(done)], alone)
                        ]
                    writer.execute("COMMIT")
                except BaseException:
                    self._undone()
                    if writer.in_transaction:
                        writer.execute("ROLLBACK").fetchall()
                    raise
        except ACMSError as error:
            return error
        except Exception as error:
            return append_rules.unexpected(error)
        at = 0
        for work in works:
            work.done = done[at : at + len(work.functions)]
            at += len(work.functions)
        return None

    def _attempt(
        self, writer: apsw.Connection, function: Callable[[apsw.Connection], Any], alone: bool
    ) -> Any:
        """Run one function so that a refusal undoes only what it did itself."""
        if not alone:
            writer.execute("SAVEPOINT op")
        try:
            result = function(writer)
        except ACMSError as error:
            result = error
        except apsw.ConstraintError as error:
            result = ConflictError(f"another writer was first: {error}")
            result.__cause__ = error
        except apsw.Error:  # of the medium: it spoils the whole commit
            raise
        except Exception as error:  # of what the caller gave: it must not take its neighbours along
            result = append_rules.unexpected(error)
        if isinstance(result, ACMSError):
            self._undone()
            if alone:
                writer.execute("ROLLBACK").fetchall()
                writer.execute("BEGIN").fetchall()
            else:
                writer.execute("ROLLBACK TO op").fetchall()
        if not alone:
            writer.execute("RELEASE op").fetchall()
        return result

    async def _write_all(self, functions: Sequence[Callable[[apsw.Connection], Any]]) -> list[Any]:
        state = self._state
        if state is None or state.pid != _process or state.loop is not asyncio.get_running_loop():
            state = await self._open()
        if state.thread is None:
            raise StorageReadOnlyError(f"{self.path} was opened read-only")
        work = Work(functions)
        state.post(work)
        work.future = Answer(
            loop=state.loop
        )  # while the writer wakes up: it is looked at on this thread only
        return await work.future

    async def _write(self, function: Callable[[apsw.Connection], T]) -> T:
        (result,) = await self._write_all([function])
        if isinstance(result, ACMSError):
            raise result
        return result

    async def _read(self, function: Callable[[apsw.Connection], T], *, large: bool = False) -> T:
        state = self._state
        if state is None or state.pid != _process or state.loop is not asyncio.get_running_loop():
            state = await self._open()
        if not large:
            with self._translated:
                return function(state.reader)
        async with state.lock:
            with self._translated:
                return await asyncio.to_thread(function, state.large)

    async def _ride(self, function: Callable[[apsw.Connection], Any]) -> None:
        """Run a function in the next commit, or soon; nobody waits for it."""
        state = await self._open()
        if state.thread is None:
            raise StorageReadOnlyError(f"{self.path} was opened read-only")
        state.riders.append(function)
        if state.ride is None or state.ride.when() < state.loop.time():
            state.ride = state.loop.call_later(RIDE_SECONDS, state.queue.put, Work(()))


def _opened(file: str, flags: int) -> apsw.Connection:
    """Open a file and plan each query once: built with sampled statistics SQLite plans joins anew for every value."""
    connection = apsw.Connection(file, flags=flags)
    connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, True)
    return connection
