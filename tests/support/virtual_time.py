"""An event loop whose time is virtual: a timer fires as soon as nothing else can happen, and computing takes no time.

A test module asks for it by its own `anyio_backend`:

    @pytest.fixture(scope="module")
    def anyio_backend() -> tuple[str, dict[str, object]]:
        return VIRTUAL_TIME

It knows which work it gave to threads, and waits for that. It knows nothing of servers, other processes and the threads
of SQLite: a test that talks to them needs real time.
"""

from __future__ import annotations

import asyncio
import selectors
import threading
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any

import pytest

LOOK_SECONDS = 0.001
"""Between two looks whether a thread still works."""


class _Selector(selectors.DefaultSelector):
    """Lets time pass instead of waiting for it."""

    def __init__(self, loop: VirtualTimeLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None or timeout <= 0:
            return super().select(timeout)
        while True:
            working = self._loop.has_working_threads()
            if events := super().select(LOOK_SECONDS if working else 0):
                return events
            if not working:
                self._loop.pass_time(timeout)
                return []


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An event loop that never waits for a timer."""

    def __init__(self) -> None:
        self._now = 0.0
        self._given: set[asyncio.Future[Any]] = set()
        super().__init__(_Selector(self))

    def time(self) -> float:
        """Return the virtual time in seconds."""
        return self._now

    def pass_time(self, seconds: float) -> None:
        """See the function of this name."""
        self._now += seconds

    def has_working_threads(self) -> bool:
        """Whether a thread works for this loop: its timers wait for that."""
        return bool(self._given) or any(thread.name == "acms-work" for thread in threading.enumerate())

    def run_in_executor(  # type: ignore[override]  # typeshed has a TypeVarTuple here
        self, executor: Executor | None, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        """Run a function in a thread; no time passes until it has returned."""
        future = super().run_in_executor(executor, func, *args)
        self._given.add(future)
        future.add_done_callback(self._given.discard)
        return future


def pass_time(seconds: float) -> None:
    """Let time pass, as if the running loop had been held."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    loop.pass_time(seconds)


VIRTUAL_TIME: tuple[str, dict[str, object]] = ("asyncio", {"loop_factory": VirtualTimeLoop})
"""For `anyio_backend`."""

REAL_TIME = pytest.mark.parametrize("anyio_backend", ["asyncio"])
"""Marks a test of such a module that needs real time."""


def advance_loop_time(patch: pytest.MonkeyPatch, seconds: float) -> None:
    """Let so many seconds pass at once on the running loop: its timers that are due by then fire next."""
    loop = asyncio.get_running_loop()
    time = loop.time
    patch.setattr(loop, "time", lambda: time() + seconds)
