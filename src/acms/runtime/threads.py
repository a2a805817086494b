"""Threads: long work off the event loop, so that it holds the loop for milliseconds only."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Generator
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from time import perf_counter, sleep
from typing import Any, TypeVar

Y = TypeVar("Y")
T = TypeVar("T")

INLINE = 8_000
"""Characters that are read on the event loop, about 2 ms; more go to a thread."""
EACH = 4
"""Characters for which an entry counts whose text is not read."""
BREATH, PAUSE = 0.002, 0.0001
"""Seconds of work after which a thread pauses, and for how long."""

_busy = threading.local()


async def in_thread(work: Callable[[], T]) -> T:
    """Run a function in a daemon thread of its own, with the caller's context variables.

    The default executor of the loop is not used: other work that fills it would delay a reply. When the caller is
    cancelled, the function still runs to its end and its result is discarded.
    """
    loop = asyncio.get_running_loop()
    result: asyncio.Future[T] = loop.create_future()
    context = copy_context()

    def settle(end: Callable[[], None]) -> None:
        if not result.done():
            end()

    def run() -> None:
        sleep(PAUSE)  # the loop, which waits for the thread to start, goes on before the work begins
        _busy.until = perf_counter() + BREATH
        try:
            end = partial(result.set_result, context.run(work))
        except BaseException as error:
            end = partial(result.set_exception, error)
        with suppress(RuntimeError):  # the loop is closed: no caller waits any more
            loop.call_soon_threadsafe(settle, end)

    threading.Thread(target=run, name="acms-work", daemon=True).start()
    return await result


async def off_loop(work: Callable[[], T], size: int) -> T:
    """Run a function on the event loop if it is short, else in a thread; `size` is the characters it reads, roughly."""
    return work() if size <= INLINE else await in_thread(work)


async def drive_generator(
    steps: Generator[Y, Any, T], answer: Callable[[Y], Awaitable[object]], size: Callable[[], int]
) -> T:
    """Run a generator to its end; what it yields is passed to `answer`, and the result sent back.

    Each step runs as `off_loop` does; `size` returns the characters that the next one reads, roughly.
    """
    last_answer: object = None
    results: list[T] = []

    def work() -> list[Y]:
        try:
            return [steps.send(last_answer)]
        except StopIteration as end:
            results.append(end.value)
            return []

    while requests := await off_loop(work, size()):
        last_answer = await answer(requests[0])
    return results[0]


def pause_if_busy() -> None:
    """Pause when this is a thread of `in_thread` and was busy for `BREATH` seconds; on the event loop do nothing.

    The interpreter lets other threads in every 5 ms only, and a thread that calls into C again and again may take it
    back before the event loop has woken up.
    """
    pause_at: float | None = getattr(_busy, "until", None)
    if pause_at is not None and perf_counter() > pause_at:
        sleep(PAUSE)
        _busy.until = perf_counter() + BREATH


class Building(asyncio.Lock):
    """A lock for builders, held until the work in a thread has ended, even if its caller has stopped waiting."""

    _running: asyncio.Future[None] | None = None

    async def off_loop(self, work: Callable[[], None]) -> None:
        """Run a long function in a thread."""
        self._running = asyncio.ensure_future(asyncio.to_thread(work))
        await asyncio.shield(self._running)

    def release(self) -> None:
        """Release the lock once the thread has ended, which a cancelled caller does not wait for."""
        if self._running is None or self._running.done():
            super().release()
        else:
            self._running.add_done_callback(lambda _: super(Building, self).release())
