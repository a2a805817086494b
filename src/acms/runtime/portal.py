"""One event loop in a background thread, for code that cannot await."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine, Generator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from acms.runtime.loops import current_loop, waiting

R = TypeVar("R")

GRACE = 5.0
"""Seconds that an interrupted caller waits for its work to end."""


@contextmanager
def _waiting_here() -> Generator[None]:
    """Mark, inside the block, the event loop of this thread as blocked, if it has one."""
    loop = current_loop()
    if loop is not None:
        waiting.append(loop)
    try:
        yield
    finally:
        if loop is not None:
            waiting.remove(loop)


async def _wait_for_task(work: Coroutine[Any, Any, Any]) -> None:
    """Wait until the task of a coroutine has ended."""
    if tasks := [task for task in asyncio.all_tasks() if task.get_coro() is work]:
        await asyncio.wait(tasks)


class _Portal:
    """An event loop in a daemon thread, started by its first call and again after `os.fork()`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pid = 0
        self._loop: asyncio.AbstractEventLoop | None = None

    def run(self, work: Coroutine[Any, Any, R]) -> R:
        """Run a coroutine to its end while the caller's thread is blocked; interrupting the caller cancels it.

        An interrupted caller continues once the coroutine has ended: resources it held, such as a generator, are free
        again.
        """
        with _waiting_here():
            loop = self._running()
            future = asyncio.run_coroutine_threadsafe(work, loop)
            try:
                return future.result()
            except BaseException:
                if future.cancel():
                    with suppress(TimeoutError):
                        asyncio.run_coroutine_threadsafe(_wait_for_task(work), loop).result(GRACE)
                raise

    def _running(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None or self._pid != os.getpid():
                self._loop = asyncio.new_event_loop()
                self._pid = os.getpid()
                threading.Thread(target=self._loop.run_forever, name="acms-portal", daemon=True).start()
            return self._loop


run_in_portal = _Portal().run
