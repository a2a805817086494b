"""Deadlines of requests: all take the same time, so one timer serves them all, in the order in which they came.

`asyncio.timeout` sets a timer of its own and takes it away again, which costs a request 5 to 10 µs each time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from types import TracebackType
from typing import TypeVar

from acms.errors import DeadlineError

__all__ = ["Deadline", "Deadlines", "run_within_deadline"]

T = TypeVar("T")


async def run_within_deadline(
    work: Awaitable[T], deadlines: Deadlines | None, error_prefix: str = "it took more than"
) -> T:
    """Await `work` and return its result; raise `DeadlineError` at the deadline.

    The text of the error is `error_prefix` and the seconds.
    """
    if deadlines is None:
        return await work
    deadline = Deadline(deadlines)
    try:
        with deadline:
            return await work
    except TimeoutError:
        if not deadline.expired:
            raise
        raise DeadlineError(f"{error_prefix} {deadlines.seconds:g} seconds") from None


class Deadlines:
    """The running deadlines of a service, all of the same number of seconds, and their one timer."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        #: The deadlines in progress, oldest first, with the loop times at which they expire.
        self.running: dict[Deadline, float] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        #: Whether a timer is set. It is never cancelled: if all deadlines were met, it finds none that is due.
        self._timer_is_set = False

    def start(self, deadline: Deadline) -> None:
        """Start a deadline. All take the same number of seconds, so one timer for the oldest is enough."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:  # the previous loop has ended, and its timers with it
            self._loop = loop
            self._timer_is_set = False
            self.running.clear()
        end = loop.time() + self.seconds
        self.running[deadline] = end
        if not self._timer_is_set:
            self._timer_is_set = True
            loop.call_at(end, self._expire_due)

    def _expire_due(self) -> None:
        """Expire the deadlines that are due, oldest first, and set the timer for the next one."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        while self.running:
            deadline, end = next(iter(self.running.items()))
            if end > now:
                loop.call_at(end, self._expire_due)
                return
            del self.running[deadline]
            deadline.expire()
        self._timer_is_set = False


class Deadline:
    """A block that raises `TimeoutError` when it takes too long, as `asyncio.timeout` does."""

    __slots__ = ("_cancelling", "_deadlines", "_task", "expired")

    def __init__(self, deadlines: Deadlines) -> None:
        self._deadlines = deadlines
        #: Whether the block took too long.
        self.expired = False

    def __enter__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._cancelling = task.cancelling()  # cancellations by other code, which must stay in effect
        self._deadlines.start(self)

    def expire(self) -> None:
        """End the block: its time is up."""
        self.expired = True
        self._task.cancel()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._deadlines.running.pop(self, None)
        # If other code cancelled the task too, it stays cancelled.
        if self.expired and self._task.uncancel() <= self._cancelling and kind is asyncio.CancelledError:
            raise TimeoutError from error
