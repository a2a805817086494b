"""The handle on one SQLite file: opening it safely, its readers, its write queue, and its errors as ours.

Nothing is answered before it is committed (`synchronous=FULL`: an acknowledged message survives a power cut). Small
reads run on the event loop from a connection of their own, since a WAL reader never waits; large ones run in a thread.
The one writer thread takes everything that is waiting, runs each function in a savepoint of one transaction, commits
once and has all callers answered on their event loop.
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from contextvars import Context
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from queue import SimpleQueue
from typing import Any, TypeAlias, TypeVar

import apsw

from acms.errors import (
    ACMSError,
    ConflictError,
    CorruptRecordError,
    HandleError,
    StorageBusyError,
    StorageError,
    StorageFullError,
    StorageReadOnlyError,
    ValidationError,
)
from acms.model import Durability, Migration
from acms.storage import append_rules
from acms.storage.files import create
from acms.storage.sessions import contains
from acms.storage.sqlite import schema

Function: TypeAlias = Callable[[apsw.Connection], Any]

_FULL = (errno.ENOSPC, errno.EDQUOT)
_REFUSED = (errno.EACCES, errno.EPERM, errno.EROFS)

GROUP = 1024
"""Functions one transaction may hold."""
DEFER_SECONDS = 0.05
"""How long work that nobody waits for may wait for another commit."""


class translated:
    """Turn the errors of SQLite into ours."""

    __slots__ = ("path",)

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> None:
        return None

    def __exit__(self, _type: object, error: BaseException | None, _trace: object) -> None:
        if error is None:
            return
        if isinstance(error, UnicodeDecodeError):  # bytes that are no text, in a row somebody else wrote
            raise CorruptRecordError(f"{self.path}: {error}", options=("acms verify",)) from error
        if isinstance(
            error, UnicodeEncodeError | OverflowError
        ):  # a name or number that nothing stored can have
            raise append_rules.unexpected(error) from error
        if isinstance(error, ACMSError) or not isinstance(error, apsw.Error | OSError):
            return
        raise self._ours(error) from error

    def _ours(self, error: BaseException) -> StorageError:
        text = f"{self.path}: {error}"
        number = error.errno if isinstance(error, OSError) else None
        if isinstance(error, apsw.FullError) or number in _FULL:
            return StorageFullError(
                f"{text}; nothing of this commit was written",
                options=("free some space and repeat the call",),
            )
        if isinstance(error, apsw.BusyError | apsw.LockedError):
            return StorageBusyError(f"{text}; nothing was written", options=("repeat the call",))
        short = getattr(error, "extendedresult", 0) == apsw.SQLITE_IOERR_SHORT_READ
        if short or isinstance(error, apsw.CorruptError | apsw.NotADBError):
            return CorruptRecordError(text, options=("acms verify", "restore the file from a backup"))
        refused = isinstance(error, apsw.ReadOnlyError | apsw.PermissionsError | apsw.CantOpenError)
        if refused or number in _REFUSED:
            return StorageReadOnlyError(
                text, options=("check the permissions of the folder", "open it with ?mode=ro")
            )
        return StorageError(text)


def _nothing(*_: object) -> Sequence[Any]:
    return ()


@dataclass(slots=True)
class Steps:
    """What is done around the functions of a commit, on the writer's thread."""

    #: Run some of the functions from a place on at once and return their results, in order; none if none can be.
    together: Callable[[apsw.Connection, Sequence[Function], int], Sequence[Any]] = _nothing
    #: Forget what was remembered of a transaction: it was rolled back, in part or whole.
    undone: Callable[[], object] = _nothing
    #: Do what must not be done inside a transaction, before the callers are answered.
    committed: Callable[[apsw.Connection], object] = _nothing


class Answer(asyncio.Future[list[Any]]):
    """A future that resumes the task that waits for it at once, not in the next turn of the event loop.

    Everything else (cancelling, other callbacks, a loop that ends) is left to `asyncio.Future`.
    """

    _waiter: tuple[Callable[[asyncio.Future[list[Any]]], object], Context] | None = None

    def add_done_callback(
        self, fn: Callable[[asyncio.Future[list[Any]]], object], /, *, context: Context | None = None
    ) -> None:
        """Remember the callback: that of a waiting task resumes it."""
        super().add_done_callback(fn, context=context)
        if context is not None:
            self._waiter = (fn, context)

    def answer(self, result: list[Any]) -> None:
        """Set the result and resume the waiter here and now; call it outside of tasks, as the last thing."""
        if self.done():
            return
        waiter, self._waiter = self._waiter, None
        # Whoever was removed meanwhile is not called; removed here, so that it is not called a second time.
        waits = waiter is not None and self.remove_done_callback(waiter[0]) > 0
        self.set_result(result)
        if waiter is not None and waits:
            waiter[1].run(waiter[0], self)


class Work:
    """One unit of the writer: functions that run in the same transaction, each in its own savepoint."""

    __slots__ = ("done", "functions", "future")

    def __init__(self, functions: Sequence[Function]) -> None:
        self.functions = functions
        #: Who waits for it; only the event loop's thread touches it.
        self.future: Answer | None = None
        self.done: list[Any] = []


class WriteQueue:
    """What waits to be written to an open file, and the thread that writes it; made on the event loop it answers."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, writer: apsw.Connection, errors: translated, steps: Steps
    ) -> None:
        self._loop = loop
        self._writer = writer
        self._errors = errors
        self._steps = steps
        self._queue: SimpleQueue[Work | None] = SimpleQueue()
        #: What is posted while many callers are resumed: the writer gets it when all of them had their turn.
        self._held: list[Work] | None = None
        #: Functions that nobody waits for, and when the writer is given them at the latest.
        self._deferred: deque[Function] = deque()
        self._timer: asyncio.TimerHandle | None = None
        #: What is committed and not answered yet.
        self._answered: deque[Sequence[Work]] = deque()
        #: File descriptor by which the writer wakes the event loop; None where there is no such thing.
        self._event = self._open_event()
        self.thread = threading.Thread(target=self._run, name="acms-writer", daemon=True)
        self.thread.start()

    # ── on the event loop ───────────────────────────────────────────────────────────────────────────────────────────

    def post(self, functions: Sequence[Function]) -> Answer:
        """Give functions to the writer, at the end of this turn of the event loop when many are being resumed."""
        work = Work(functions)
        if self._held is None:
            self._queue.put(work)
        else:
            self._held.append(work)
        # While the writer wakes up: it is looked at on this thread only.
        work.future = Answer(loop=self._loop)
        return work.future

    def defer(self, function: Function) -> None:
        """Have a function run in the next commit, or soon."""
        self._deferred.append(function)
        if self._timer is None or self._timer.when() < self._loop.time():
            self._timer = self._loop.call_later(DEFER_SECONDS, self._queue.put, Work(()))

    def stop(self) -> None:
        """Let the writer end when it has done what was posted."""
        if self._timer is not None:
            self._timer.cancel()
        self._release()
        self._queue.put(None)

    def close(self) -> None:
        """Give the file descriptor back, when the writer has ended."""
        event, self._event = self._event, None
        if event is None:
            return
        if not self._loop.is_closed():
            self._loop.remove_reader(event)
            self._loop.call_soon(self._answer)  # it may have been set and not been seen yet
        os.close(event)

    def _release(self) -> None:
        held, self._held = self._held, None
        for work in held or ():
            self._queue.put(work)

    def _open_event(self) -> int | None:
        """Let the writer wake the event loop directly: a callback from a thread takes two system calls more."""
        if not hasattr(os, "eventfd"):
            return None
        event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        try:
            self._loop.add_reader(event, self._answer)
        except NotImplementedError:  # of a loop without selectors
            os.close(event)
            return None
        return event

    def _answer(self) -> None:
        """Answer whoever waits for what is committed."""
        while self._answered:
            self._answer_all(self._answered.popleft())
        if self._event is not None:
            os.eventfd_read(self._event)  # not before: nobody waits for this
            while self._answered:  # what was committed meanwhile has set it before
                self._answer_all(self._answered.popleft())

    def _answer_all(self, works: Sequence[Work]) -> None:
        if len(works) == 1 and works[0].future is not None:
            works[0].future.answer(works[0].done)
            return
        for work in works:  # many: whoever runs first must not keep the others waiting
            if work.future is not None and not work.future.done():
                work.future.set_result(work.done)
        # Most of them post again when they are resumed. A writer that woke up for the first would commit it alone, and
        # fight the others for the interpreter meanwhile.
        if self._held is None:
            self._held = []
        self._loop.call_soon(self._release)

    # ── on the writer thread ────────────────────────────────────────────────────────────────────────────────────────

    def _run(self) -> None:
        queue = self._queue
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
            if self._deferred:  # the loop may add one meanwhile
                works.append(Work([self._deferred.popleft() for _ in range(len(self._deferred))]))
            if not works:
                continue
            error = self._commit(works)
            if error is None:
                self._steps.committed(self._writer)
            else:
                for work in works:
                    work.done = [error] * len(work.functions)
            self._answered.append(works)
            if self._event is not None:
                os.eventfd_write(self._event, 1)
                continue
            with suppress(RuntimeError):  # the loop was closed while its callers were waiting
                self._loop.call_soon_threadsafe(self._answer)

    def _commit(self, works: Sequence[Work]) -> ACMSError | None:
        """Run all works in one transaction; return the error that spoiled all of it, if any."""
        writer, steps = self._writer, self._steps
        functions = [function for work in works for function in work.functions]
        alone = len(functions) == 1
        done: list[Any] = []
        try:
            with self._errors:
                writer.execute("BEGIN IMMEDIATE")
                try:
                    while len(done) < len(functions):
                        done += ([] if alone else steps.together(writer, functions, len(done))) or [
                            self._attempt(writer, functions[len(done)], alone)
                        ]
                    writer.execute("COMMIT")
                except BaseException:
                    steps.undone()
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

    def _attempt(self, writer: apsw.Connection, function: Function, alone: bool) -> Any:
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
            self._steps.undone()
            if alone:
                writer.execute("ROLLBACK").fetchall()
                writer.execute("BEGIN").fetchall()
            else:
                writer.execute("ROLLBACK TO op").fetchall()
        if not alone:
            writer.execute("RELEASE op").fetchall()
        return result


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
            schema.check_header(self.path)
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
        schema.check_header(self.path)
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

        def look() -> list[Migration]:
            with self._translated:
                return schema.steps(self.path)

        return await asyncio.to_thread(look)

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
    connection.create_scalar_function("holds", _holds, 2, deterministic=True)
    return connection


_parsed = lru_cache(16)(json.loads)


def _holds(settings: str | None, wanted: str) -> bool:
    """Return whether the settings of a context hold all of what is wanted."""
    return settings is not None and contains(json.loads(settings), _parsed(wanted))
