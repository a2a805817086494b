"""The write queue of an SQLite file: one writer thread with group commit, and the answers to its callers.

The writer takes everything that is waiting, runs each function in a savepoint of one transaction, commits once and has
all callers answered on their event loop.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from contextvars import Context
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, TypeAlias

import apsw

from acms.errors import ACMSError, ConflictError
from acms.storage import append_rules
from acms.storage.sqlite.guard import translated

Function: TypeAlias = Callable[[apsw.Connection], Any]

GROUP = 1024
"""Functions one transaction may hold."""
DEFER_SECONDS = 0.05
"""How long work that nobody waits for may wait for another commit."""


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
