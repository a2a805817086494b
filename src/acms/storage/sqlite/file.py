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
from concurrent.futures import Future
from contextlib import closing, suppress
from contextvars import Context
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache, partial
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
from acms.runtime.loops import PerLoop, waiting
from acms.storage import append_rules
from acms.storage.files import create_file
from acms.storage.sessions import json_contains
from acms.storage.sqlite import schema
from acms.storage.sqlite.backup import backup_database

T = TypeVar("T")
Function: TypeAlias = Callable[[apsw.Connection], Any]

_FULL = (errno.ENOSPC, errno.EDQUOT)
_REFUSED = (errno.EACCES, errno.EPERM, errno.EROFS)

GROUP = 1024
"""Functions one transaction may hold."""
DEFER_SECONDS = 0.05
"""Seconds that work without a waiting caller may wait for another commit."""


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
        if isinstance(error, UnicodeDecodeError):  # bytes that are no text, in a row not written by ACMS
            raise CorruptRecordError(f"{self.path}: {error}", options=("acms verify",)) from error
        if isinstance(
            error, UnicodeEncodeError | OverflowError
        ):  # a name or number that nothing stored can have
            raise append_rules.wrap_unexpected_error(error) from error
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


def _empty_results(*_: object) -> Sequence[Any]:
    return ()


@dataclass(slots=True)
class Steps:
    """Hooks around the functions of a commit, called on the writer's thread."""

    #: Run a batch of the functions from an index on and return their results in order; none if none can be batched.
    together: Callable[[apsw.Connection, Sequence[Function], int], Sequence[Any]] = _empty_results
    #: Clear the caches after a transaction was rolled back, in part or whole.
    undone: Callable[[], object] = _empty_results
    #: Do what must not be done inside a transaction, before the callers are answered.
    committed: Callable[[apsw.Connection], object] = _empty_results


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
        # A waiter that was removed meanwhile is not called. Remove it here to avoid a second call.
        waits = waiter is not None and self.remove_done_callback(waiter[0]) > 0
        self.set_result(result)
        if waiter is not None and waits:
            waiter[1].run(waiter[0], self)


class StoppedError(Exception):
    """Another event loop closed the file while a call waited; the call wrote nothing."""


class Work:
    """One unit of the writer: functions that run in the same transaction, each in its own savepoint."""

    __slots__ = ("done", "functions", "future", "port")

    def __init__(self, functions: Sequence[Function], port: Port | None = None) -> None:
        self.functions = functions
        #: Receives the answer; None if no caller waits for it.
        self.port = port
        #: Who waits for it; only the event loop's thread touches it.
        self.future: Answer | None = None
        self.done: list[Any] = []


class Port:
    """What an event loop has of an open file: connections that read, and where its answers come in."""

    def __init__(
        self, reader: apsw.Connection, large: apsw.Connection, queue: WriteQueue | None, errors: translated
    ) -> None:
        self._loop = asyncio.get_running_loop()
        #: None when nothing may be written.
        self.queue = queue
        self.reader, self._large = reader, large
        self._errors = errors
        self.closed = False
        #: One large read at a time.
        self._lock = asyncio.Lock()
        #: Work posted while many callers are resumed: the writer gets it when all of them had their turn.
        self._held: list[Work] | None = None
        #: Deadline for giving the writer the work without a waiting caller.
        self._timer: asyncio.TimerHandle | None = None
        #: Committed work that is not answered yet.
        self._answered: deque[Sequence[Work]] = deque()
        #: File descriptor by which the writer wakes the event loop; None where there is no such thing.
        self._event = self._open_event()
        self._guard = threading.Lock()
        self._ended: Future[None] | None = None  # whom it tells that it has ended

    # ── on the event loop ───────────────────────────────────────────────────────────────────────────────────────────

    async def read(self, function: Callable[[apsw.Connection], T]) -> T:
        """Run a function in a thread that may take long; `StoppedError` when it was closed before."""
        async with self._lock:
            if self.closed:
                raise StoppedError
            try:
                with self._errors:
                    return await asyncio.to_thread(function, self._large)
            finally:
                if self._ended is not None:
                    self.close(self._ended)

    def post(self, queue: WriteQueue, functions: Sequence[Function]) -> Answer:
        """Give functions to the writer, at the end of this turn of the event loop when many are being resumed."""
        work = Work(functions, self)
        if self._held is not None:
            self._held.append(work)
        elif not queue.put(work):
            raise StoppedError
        # While the writer wakes up: it is looked at on this thread only.
        work.future = Answer(loop=self._loop)
        return work.future

    def defer(self, queue: WriteQueue, function: Function) -> None:
        """Have a function run in the next commit, or soon."""
        queue.deferred.append(function)
        if self._timer is None or self._timer.when() < self._loop.time():
            self._timer = self._loop.call_later(DEFER_SECONDS, queue.put, Work(()))

    def stop(self, queue: WriteQueue) -> None:
        """Hand held work to the writer before the writer ends."""
        if self._timer is not None:
            self._timer.cancel()
        self._release(queue)

    def close(self, ended: Future[None] | None = None) -> None:
        """Close its connections and give the file descriptor back: on its event loop, or when that does not run."""
        self.closed = True
        with self._guard:
            event, self._event = self._event, None
        if event is not None:
            if not self._loop.is_closed():
                self._loop.remove_reader(event)
                self._loop.call_soon_threadsafe(self._answer)  # it may have been set and not been seen yet
            os.close(event)
        for connection in (self._large, self.reader):
            with suppress(apsw.Error):
                connection.close()
        if ended is not None:
            ended.set_result(None)

    def end(self, ended: Future[None]) -> None:
        """Close it and say so, now or after the large read that is under way; no task: its loop may stop before one."""
        if self._lock.locked():
            self._ended = ended
        else:
            self.close(ended)

    def _release(self, queue: WriteQueue) -> None:
        held, self._held = self._held, None
        for work in held or ():
            if not queue.put(work) and work.future is not None and not work.future.done():
                work.future.set_exception(StoppedError())

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
        """Answer the callers whose work is committed."""
        while self._answered:
            self._answer_all(self._answered.popleft())
        if self._event is not None:
            os.eventfd_read(self._event)  # not before the answers: no caller waits for this
            while self._answered:  # committed meanwhile: its signal was read above
                self._answer_all(self._answered.popleft())

    def _answer_all(self, works: Sequence[Work]) -> None:
        if len(works) == 1 and works[0].future is not None:
            works[0].future.answer(works[0].done)
            return
        for work in works:  # many: the first to run must not keep the others waiting
            if work.future is not None and not work.future.done():
                work.future.set_result(work.done)
        # Most of them post again when they are resumed. A writer that woke up for the first would commit it alone, and
        # fight the others for the interpreter meanwhile.
        if self._held is None:
            self._held = []
        assert self.queue is not None  # its writer has done the work
        self._loop.call_soon(self._release, self.queue)

    # ── on the writer thread ────────────────────────────────────────────────────────────────────────────────────────

    def committed(self, works: Sequence[Work]) -> None:
        """Have works answered on their event loop."""
        self._answered.append(works)
        with self._guard:
            if self._event is not None:
                os.eventfd_write(self._event, 1)
                return
        with suppress(RuntimeError):  # the loop was closed while its callers were waiting
            self._loop.call_soon_threadsafe(self._answer)


class WriteQueue:
    """What waits to be written to an open file, and the thread that writes it for every event loop."""

    def __init__(self, writer: apsw.Connection, errors: translated, steps: Steps) -> None:
        self._writer = writer
        self._errors = errors
        self._steps = steps
        self._queue: SimpleQueue[Work | None] = SimpleQueue()
        #: Functions without a waiting caller.
        self.deferred: deque[Function] = deque()
        self._stopped = False
        self._guard = threading.Lock()
        self.thread = threading.Thread(target=self._run, name="acms-writer", daemon=True)
        self.thread.start()

    def put(self, work: Work) -> bool:
        """Hand over a work; False when the writer ends and would not see it."""
        with self._guard:
            if not self._stopped:
                self._queue.put(work)
            return not self._stopped

    def stop(self) -> None:
        """Let the writer end after it has processed the posted work."""
        with self._guard:
            self._stopped = True
            self._queue.put(None)

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
                if size >= GROUP or queue.empty():  # this thread is the only consumer
                    break
                work = queue.get()
            else:
                last = True
            if self.deferred:  # a loop may add one meanwhile
                works.append(Work([self.deferred.popleft() for _ in range(len(self.deferred))]))
            if not works:
                continue
            error = self._commit(works)
            if error is None:
                self._steps.committed(self._writer)
            else:
                for work in works:
                    work.done = [error] * len(work.functions)
            answers: dict[Port, list[Work]] = {}
            for work in works:
                if work.port is not None:
                    answers.setdefault(work.port, []).append(work)
            for port, some in answers.items():
                port.committed(some)

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
            return append_rules.wrap_unexpected_error(error)
        at = 0
        for work in works:
            work.done = done[at : at + len(work.functions)]
            at += len(work.functions)
        return None

    def _attempt(self, writer: apsw.Connection, function: Function, alone: bool) -> Any:
        """Run one function so that a refusal rolls back only its own changes."""
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
            result = append_rules.wrap_unexpected_error(error)
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


CLOSING = 5.0
"""Seconds that closing waits for another event loop to let go of the file."""


_process = os.getpid()
"""The number of this process: to ask for it is a system call."""
_open_files: list[tuple[int, int]] = []
"""Device and inode of the files this process has open, once per open handle."""
_inherited: set[tuple[int, int]] = set()
"""The files that were open when this process was forked from its parent."""


def _mark_files_inherited() -> None:
    """Keep SQLite away from the files of the parent.

    SQLite notes per process and inode which locks it holds. A child inherits the notes but not the locks: a new
    connection to the same file would believe it is protected, and the parent's close would delete the WAL under it.
    """
    global _process
    _process = os.getpid()
    _inherited.update(_open_files)
    _open_files.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_mark_files_inherited)


@dataclass(slots=True)
class _Opened:
    """What exists while the file is open, for all event loops."""

    pid: int
    writer: apsw.Connection
    identity: tuple[int, int] | None
    #: None when nothing may be written.
    queue: WriteQueue | None
    #: What each event loop has of it.
    ports: PerLoop[Port]


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
        self._translated = translated(self.path)
        self.durability: Durability = durability
        self.read_only = read_only
        #: Milliseconds that a statement waits for another process.
        self.busy = int(busy_seconds * 1000)
        #: Hooks around the functions of a commit; set before the file is opened.
        self.steps = Steps()
        self._clock = clock
        self._state: _Opened | None = None
        #: Who opens the file for an event loop, or opens it there.
        self._opening: PerLoop[asyncio.Task[Port]] = PerLoop()
        #: Who is told each step of the schema, in the thread that applies it.
        self._applied: Callable[[int], None] | None = None
        #: Held while the file is opened.
        self._guard = threading.Lock()

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
        # Someone may have closed the handle before this caller was resumed.
        state = self._state
        if state is not None and state.ports.get() is port:
            return port
        port.close()
        return await self.open()

    async def _start(self) -> Port:
        state, reader, large = await asyncio.to_thread(self._connected)
        port = Port(reader, large, state.queue, self._translated)
        state.ports.set(port)
        return port

    def _connected(self) -> tuple[_Opened, apsw.Connection, apsw.Connection]:
        """Open the file unless it is open; return two connections that read besides."""
        with self._guard:
            state = self._state
            if state is not None:
                with translated(self.path):
                    opened: list[apsw.Connection] = []
                    connect = (
                        partial(self._connect_read_only, opened) if self.read_only else self._connect_reader
                    )
                    return state, connect(), connect()
            writer, reader, large = self._connect()
            identity = self._identity()
            if identity is not None:
                _open_files.append(identity)
            queue = None if self.read_only else WriteQueue(writer, self._translated, self.steps)
            self._state = state = _Opened(os.getpid(), writer, identity, queue, PerLoop(end=Port.close))
            return state, reader, large

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
                    schema.check_schema(first, self.path, read_only=True)
                    return first, self._connect_read_only(opened), self._connect_read_only(opened)
                except BaseException:
                    for connection in opened:
                        connection.close()
                    self._tidy()
                    raise
            if not self.path.parent.is_dir():
                raise StorageError(f"the folder {self.path.parent} does not exist", options=("create it",))
            schema.check_header(self.path)
            create_file(self.path)
            writer = _open_connection(str(self.path), apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE)
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
        reader = _open_connection(str(self.path), apsw.SQLITE_OPEN_READWRITE)
        reader.set_busy_timeout(self.busy)
        reader.pragma("query_only", True)
        return reader

    def _connect_read_only(self, opened: list[apsw.Connection]) -> apsw.Connection:
        schema.check_header(self.path)
        if not self.path.is_file():
            raise StorageError(f"{self.path} does not exist", options=("open it writable once to create it",))
        try:
            reader = _open_connection(str(self.path), apsw.SQLITE_OPEN_READONLY)
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
            return _open_connection(uri, apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI)

    def _tidy(self) -> None:
        """Remove the empty WAL that read-only connections leave behind: only a writable one may do it safely."""
        wal = self.path.with_name(self.path.name + "-wal")
        if wal.is_file() and self._wal_size() == 0 and os.access(self.path, os.W_OK):
            flags = apsw.SQLITE_OPEN_READWRITE
            with suppress(apsw.Error), closing(apsw.Connection(str(self.path), flags=flags)) as connection:
                connection.pragma("user_version")

    # ── the schema ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def migrations(self, partitions: int | None) -> list[Migration]:
        """Return every step of the schema; the file is read, or left alone where there is none."""
        schema.check_partitions(partitions)

        def look() -> list[Migration]:
            with self._translated:
                return schema.list_schema_steps(self.path)

        return await asyncio.to_thread(look)

    async def migrate(
        self, partitions: int | None, progress: Callable[[Migration], None] | None
    ) -> list[Migration]:
        """Open the file, which applies the missing migrations; return the applied ones."""
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
        """Finish queued work and close the file, for every event loop."""
        if self._opening.get() is not None:
            with suppress(ACMSError):
                await self.open()
        with self._guard:
            state, self._state = self._state, None
        if state is None or state.pid != os.getpid():
            return
        own = state.ports.pop()
        if state.queue is not None:
            if own is not None:
                own.stop(state.queue)
            state.queue.stop()
            await asyncio.to_thread(state.queue.thread.join)
        here = [(asyncio.get_running_loop(), own)] if own is not None else []
        for loop, port in (*here, *state.ports.clear()):
            ended: Future[None] = Future()
            if loop in waiting:  # for this to end, and uses nothing of it meanwhile
                port.end(ended)
            elif loop.is_running():
                with suppress(RuntimeError):  # it was closed just now
                    loop.call_soon_threadsafe(port.end, ended)
                    await asyncio.wait([asyncio.wrap_future(ended)], timeout=None if port is own else CLOSING)
            if not (ended.done() or loop.is_running()):
                port.close()
        with suppress(apsw.Error):
            state.writer.close()
        if state.identity in _open_files:
            _open_files.remove(state.identity)
        if self.read_only:
            self._tidy()

    # ── reading and writing ─────────────────────────────────────────────────────────────────────────────────────────

    async def _port(self) -> Port:
        state = self._state
        port = None if state is None or state.pid != _process else state.ports.get()
        return port or await self.open()

    async def read(self, function: Callable[[apsw.Connection], T], *, large: bool = False) -> T:
        """Run a function on a connection that only reads: here, or in a thread when it may take long."""
        while True:
            port = await self._port()
            if not large:
                with self._translated:
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

    # ── upkeep ──────────────────────────────────────────────────────────────────────────────────────────────────────

    async def backup(self, to: str | os.PathLike[str], progress: Callable[[int, int], None] | None) -> None:
        """Copy the whole file while it is in use; `progress` receives (pages done, pages in all).

        What fails leaves nothing behind.
        """
        await self.read(lambda source: backup_database(source, Path(to), progress), large=True)

    async def integrity(self) -> list[str]:
        """Return the problems that SQLite finds in the file; empty if there are none."""
        rows = await self.read(
            lambda connection: connection.execute("PRAGMA integrity_check").fetchall(), large=True
        )
        return [str(row[0]) for row in rows if row[0] != "ok"]


def _open_connection(file: str, flags: int) -> apsw.Connection:
    """Open a file and plan each query once: built with sampled statistics, SQLite replans joins for every value."""
    connection = apsw.Connection(file, flags=flags)
    connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, True)
    connection.create_scalar_function("holds", _settings_contain, 2, deterministic=True)
    return connection


_parsed = lru_cache(16)(json.loads)


def _settings_contain(*given: Any) -> bool:
    """Return whether the settings of a context contain all wanted values."""
    settings, wanted = given
    return settings is not None and json_contains(json.loads(settings), _parsed(wanted))
