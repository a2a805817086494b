"""What the writer of a SQLite file is given, and how its callers are answered on their event loop."""

from __future__ import annotations

import asyncio
import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from contextvars import Context
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any

import apsw


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

    def __init__(self, functions: Sequence[Callable[[apsw.Connection], Any]]) -> None:
        self.functions = functions
        #: Who waits for it; only the event loop's thread touches it.
        self.future: Answer | None = None
        self.done: list[Any] = []


@dataclass(slots=True)
class State:
    """What exists while the file is open."""

    pid: int
    loop: asyncio.AbstractEventLoop
    writer: apsw.Connection
    reader: apsw.Connection
    large: apsw.Connection
    lock: asyncio.Lock
    file: tuple[int, int] | None
    queue: SimpleQueue[Work | None] = field(default_factory=SimpleQueue)
    thread: threading.Thread | None = None
    #: What is committed and not answered yet.
    answered: deque[Sequence[Work]] = field(default_factory=deque)
    #: File descriptor by which the writer wakes the event loop; None where there is no such thing.
    bell: int | None = None
    riders: deque[Callable[[apsw.Connection], Any]] = field(default_factory=deque)
    ride: asyncio.TimerHandle | None = None
    #: What is posted while many callers are resumed: the writer gets it when all of them had their turn.
    held: list[Work] | None = None

    def post(self, work: Work) -> None:
        """Give work to the writer, at the end of this turn of the event loop when many are being resumed."""
        if self.held is None:
            self.queue.put(work)
        else:
            self.held.append(work)

    def hold(self) -> None:
        """Collect what is posted from now on; `release` must follow."""
        if self.held is None:
            self.held = []

    def release(self) -> None:
        """Give the writer what was held back."""
        held, self.held = self.held, None
        for work in held or ():
            self.queue.put(work)

    def stop(self) -> None:
        """Let the writer end when it has done what was posted."""
        self.release()
        self.queue.put(None)

    def hang_bell(self) -> None:
        """Let the writer wake the event loop directly: a callback from a thread takes two system calls more."""
        if not hasattr(os, "eventfd"):
            return
        bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        try:
            self.loop.add_reader(bell, self.answer)
        except NotImplementedError:  # of a loop without selectors
            os.close(bell)
        else:
            self.bell = bell

    def ring(self, works: Sequence[Work]) -> None:
        """Have the event loop answer; called by the writer."""
        self.answered.append(works)
        if self.bell is not None:
            os.eventfd_write(self.bell, 1)
            return
        with suppress(RuntimeError):  # the loop was closed while its callers were waiting
            self.loop.call_soon_threadsafe(self.answer)

    def answer(self) -> None:
        """Answer whoever waits for what is committed."""
        while self.answered:
            _answer(self, self.answered.popleft())
        if self.bell is not None:
            os.eventfd_read(self.bell)  # not before: nobody waits for this
            while self.answered:  # what was committed meanwhile has rung before
                _answer(self, self.answered.popleft())

    def take_bell_down(self) -> None:
        """Give the file descriptor back, when the writer has ended."""
        bell, self.bell = self.bell, None
        if bell is None:
            return
        if not self.loop.is_closed():
            self.loop.remove_reader(bell)
            self.loop.call_soon(self.answer)  # it may have rung and not been heard yet
        os.close(bell)


def _answer(state: State, works: Sequence[Work]) -> None:
    if len(works) == 1 and works[0].future is not None:
        works[0].future.answer(works[0].done)
        return
    for work in works:  # many: whoever runs first must not keep the others waiting
        if work.future is not None and not work.future.done():
            work.future.set_result(work.done)
    # Most of them post again when they are resumed. A writer that woke up for the first would commit it alone, and
    # fight the others for the interpreter meanwhile.
    state.hold()
    state.loop.call_soon(state.release)
