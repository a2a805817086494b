"""One event loop in a background thread, for code that cannot await."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine, Generator
from contextlib import contextmanager
from typing import Any, TypeVar

from acms.runtime.loops import running, waiting

R = TypeVar("R")


@contextmanager
def _waiting_here() -> Generator[None]:
    """Say inside the block that the event loop of this thread stands still, if it has one."""
    loop = running()
    if loop is not None:
        waiting.append(loop)
    try:
        yield
    finally:
        if loop is not None:
            waiting.remove(loop)


class _Portal:
    """An event loop in a daemon thread, started by its first call and again after `os.fork()`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pid = 0
        self._loop: asyncio.AbstractEventLoop | None = None

    def run(self, work: Coroutine[Any, Any, R]) -> R:
        """Run a coroutine to its end; interrupting the caller cancels it. Whatever the caller's thread does waits."""
        with _waiting_here():
            future = asyncio.run_coroutine_threadsafe(work, self._running())
            try:
                return future.result()
            except BaseException:
                future.cancel()
                raise

    def _running(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None or self._pid != os.getpid():
                self._loop = asyncio.new_event_loop()
                self._pid = os.getpid()
                threading.Thread(target=self._loop.run_forever, name="acms-portal", daemon=True).start()
            return self._loop


blocked = _Portal().run
