"""The writer of a SQLite file: one thread that commits queued work, and the ports of the event loops that wait for it.

The writer takes everything that is waiting, runs each function in a savepoint of one transaction, commits once and has
all callers answered on their event loop.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from contextvars import Context
from queue import SimpleQueue
from time import monotonic
from typing import Any, TypeVar

import apsw

from acms.errors import ACMSError, StorageBusyError
from acms.storage.sqlite.database import CommitHooks, ErrorTranslation, Function, run_transaction

T = TypeVar("T")

GROUP = 1024
"""Functions one transaction may hold."""


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
        """Set the result and run the waiting callback at once, instead of in the loop's next turn.

        Call it outside of tasks, as the last thing.
        """
        if self.done():
            return
        waiter, self._waiter = self._waiter, None
        if waiter is None:
            self.set_result(result)
            return
        callback, context = waiter
        # A waiter that was removed meanwhile is not called. Remove it here to avoid a second call.
        still_waits = self.remove_done_callback(callback) > 0
        self.set_result(result)
        if still_waits:
            context.run(callback, self)


class StoppedError(Exception):
    """Another event loop closed the file while a call waited; the call wrote nothing."""


class Work:
    """One unit of the writer: functions that run in the same transaction, each in its own savepoint."""

    __slots__ = ("functions", "future", "port", "posted_at", "results")

    def __init__(self, functions: Sequence[Function], port: Port | None = None) -> None:
        self.functions = functions
        #: Receives the answer; None if no caller waits for it.
        self.port = port
        #: Future of the caller; only the event loop's thread touches it.
        self.future: Answer | None = None
        #: A result or an error for each function, once they have run.
        self.results: list[Any] = []
        #: From here on it waits for its commit.
        self.posted_at = monotonic()


class Port:
    """An event loop's access to an open file: two connections that read, and the answers to its writes."""

    def __init__(
        self,
        reader: apsw.Connection,
        large: apsw.Connection,
        queue: WriteQueue | None,
        errors: ErrorTranslation,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        #: None when nothing may be written.
        self.queue = queue
        self.reader, self._large = reader, large
        self._errors = errors
        self.closed = False
        #: One large read at a time.
        self._lock = asyncio.Lock()
        #: Work posted while many callers are resumed: the writer gets it when all of them have run.
        self._postponed: list[Work] | None = None
        #: Deadline for giving the writer the work without a waiting caller.
        self._timer: asyncio.TimerHandle | None = None
        #: Committed work that is not answered yet.
        self._committed: deque[Sequence[Work]] = deque()
        #: File descriptor by which the writer wakes the event loop; None where there is no such thing.
        self._event = self._open_event()
        self._guard = threading.Lock()
        #: Resolved when it is closed; set when closing waits for a large read to end.
        self._ended: Future[None] | None = None

    # ── on the event loop ───────────────────────────────────────────────────────────────────────────────────────────

    async def read(self, function: Callable[[apsw.Connection], T]) -> T:
        """Run a function that may take long in a thread; `StoppedError` if the port is closed already."""
        async with self._lock:
            if self.closed:
                raise StoppedError
            try:
                with self._errors:
                    return await asyncio.to_thread(function, self._large)
            finally:
                # It was to be closed while the function ran: the connection could not be taken from under it.
                if self._ended is not None:
                    self.close(self._ended)

    def post(self, queue: WriteQueue, functions: Sequence[Function]) -> Answer:
        """Give functions to the writer, at the end of this turn of the event loop when many are being resumed."""
        work = Work(functions, self)
        if self._postponed is not None:
            self._postponed.append(work)
        elif not queue.put(work):
            raise StoppedError
        # Made while the writer wakes up: only this thread looks at it.
        work.future = Answer(loop=self._loop)
        return work.future

    def defer(self, queue: WriteQueue, function: Function) -> None:
        """Have a function run in the next commit, or soon."""
        queue.deferred.append(function)
        if self._timer is None or self._timer.when() < self._loop.time():
            # In 50 ms, unless another commit takes it along before.
            self._timer = self._loop.call_later(0.05, queue.put, Work(()))

    def stop(self, queue: WriteQueue) -> None:
        """Hand postponed work to the writer before the writer ends."""
        if self._timer is not None:
            self._timer.cancel()
        self._post_postponed(queue)

    def close(self, closed: Future[None] | None = None) -> None:
        """Close the connections and the event's file descriptor: on the port's event loop, or when that does not run.

        `closed` is resolved at the end.
        """
        self.closed = True
        with self._guard:
            event, self._event = self._event, None
        if event is not None:
            if not self._loop.is_closed():
                self._loop.remove_reader(event)
                # Work may have been committed whose event was not read yet: answer it without the event.
                self._loop.call_soon_threadsafe(self._answer_committed)
            os.close(event)
        for connection in (self._large, self.reader):
            with suppress(apsw.Error):
                connection.close()
        if closed is not None:
            closed.set_result(None)

    def end(self, closed: Future[None]) -> None:
        """Close it now, or after the large read that is under way; no task does so, since its loop may stop first."""
        if self._lock.locked():
            self._ended = closed
        else:
            self.close(closed)

    def _post_postponed(self, queue: WriteQueue) -> None:
        """Give the collected work to the writer; its callers get `StoppedError` if that was stopped."""
        postponed, self._postponed = self._postponed, None
        for work in postponed or ():
            if queue.put(work):
                continue
            if work.future is not None and not work.future.done():
                work.future.set_exception(StoppedError())

    def _open_event(self) -> int | None:
        """Let the writer wake the event loop directly: a callback from a thread takes two system calls more."""
        if not hasattr(os, "eventfd"):
            return None
        event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        try:
            self._loop.add_reader(event, self._answer_committed)
        except NotImplementedError:  # of a loop without selectors
            os.close(event)
            return None
        return event

    def _answer_committed(self) -> None:
        """Answer the callers whose work is committed."""
        while self._committed:
            self._answer_works(self._committed.popleft())
        if self._event is not None:
            os.eventfd_read(self._event)  # after the answers: no caller waits for this
            while self._committed:  # committed meanwhile: its signal was read above
                self._answer_works(self._committed.popleft())

    def _answer_works(self, works: Sequence[Work]) -> None:
        """Answer the callers of the works of one commit.

        A single caller is resumed at once. Many are resumed in the loop's next turn, and what they post then is
        collected.
        """
        if len(works) == 1 and works[0].future is not None:
            works[0].future.answer(works[0].results)
            return
        for work in works:
            if work.future is not None and not work.future.done():
                work.future.set_result(work.results)
        # Most of them post again when they are resumed. A writer that woke up for the first would commit it alone, and
        # fight the others for the interpreter meanwhile.
        if self._postponed is None:
            self._postponed = []
        assert self.queue is not None  # its writer has done the work
        self._loop.call_soon(self._post_postponed, self.queue)

    # ── on the writer thread ────────────────────────────────────────────────────────────────────────────────────────

    def notify_committed(self, works: Sequence[Work]) -> None:
        """Have works answered on their event loop."""
        self._committed.append(works)
        with self._guard:
            if self._event is not None:
                os.eventfd_write(self._event, 1)
                return
        with suppress(RuntimeError):  # the loop was closed while its callers were waiting
            self._loop.call_soon_threadsafe(self._answer_committed)


class WriteQueue:
    """The work that waits to be written to an open file, and the thread that writes it for every event loop."""

    def __init__(
        self, writer: apsw.Connection, errors: ErrorTranslation, hooks: CommitHooks, busy: int
    ) -> None:
        self._writer = writer
        self._errors = errors
        self._hooks = hooks
        #: Milliseconds that a work waits for another process.
        self._busy = busy
        self._queue: SimpleQueue[Work | None] = SimpleQueue()
        #: Functions without a waiting caller.
        self.deferred: deque[Function] = deque()
        self._stopped = False
        self._guard = threading.Lock()
        self.thread = threading.Thread(target=self._run_writer, name="acms-writer", daemon=True)
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

    def _run_writer(self) -> None:
        """Commit what is queued, in the writer thread, until the queue is stopped."""
        is_last = False
        while not is_last:
            works, is_last = self._take_works()
            if self.deferred:  # a loop may add one meanwhile
                works.append(Work([self.deferred.popleft() for _ in range(len(self.deferred))]))
            if works:
                self._commit(works)

    def _take_works(self) -> tuple[list[Work], bool]:
        """Wait for work and take all that is there, up to `GROUP` functions; return it, and whether it is the last."""
        works: list[Work] = []
        size = 0
        while True:
            work = self._queue.get()
            if work is None:
                return works, True
            works.append(work)
            size += len(work.functions)
            if size >= GROUP or self._queue.empty():  # this thread is the only consumer
                return works, False

    def _commit(self, works: Sequence[Work]) -> None:
        """Run works in one transaction and have their callers answered.

        Each waits for another process as long as `busy` says, counted from when it was posted: those that have waited
        so long get the error, and the others try on.
        """
        while works:
            functions = [function for work in works for function in work.functions]
            waited = int((monotonic() - min(work.posted_at for work in works)) * 1000)
            self._writer.set_busy_timeout(max(0, self._busy - waited))
            late_works: Sequence[Work] = works
            try:
                results = run_transaction(self._writer, functions, self._hooks, self._errors)
            except StorageBusyError as error:
                expired = monotonic() - self._busy / 1000
                late_works = [work for work in works if work.posted_at <= expired] or works
                results = [error] * sum(len(work.functions) for work in late_works)
            except ACMSError as error:
                results = [error] * len(functions)
            else:
                self._writer.set_busy_timeout(self._busy)
                self._hooks.after_commit(self._writer)
            self._answer(late_works, results)
            works = [work for work in works if work not in late_works]

    def _answer(self, works: Sequence[Work], results: list[Any]) -> None:
        """Have the callers of works answered; `results` has one for each of their functions."""
        start = 0
        works_of_port: dict[Port, list[Work]] = {}
        for work in works:
            end = start + len(work.functions)
            work.results = results[start:end]
            start = end
            if work.port is not None:
                works_of_port.setdefault(work.port, []).append(work)
        for port, works_of_loop in works_of_port.items():
            port.notify_committed(works_of_loop)
