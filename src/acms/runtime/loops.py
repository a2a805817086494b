"""Values that belong to one event loop, for an object that is used from several: one after another, or in threads."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

__all__ = ["PerLoop", "current_loop", "waiting"]

T = TypeVar("T")

waiting: list[asyncio.AbstractEventLoop] = []
"""Event loops that are blocked now, because a function on them waits for work on the portal's loop."""


def current_loop() -> asyncio.AbstractEventLoop | None:
    """Return the event loop that runs in this thread; None where there is none."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


class PerLoop(Generic[T]):
    """A value for each event loop, created by `make` on first use there, or set.

    Values of closed loops are passed to `end` when a value for another loop is added.
    """

    def __init__(self, make: Callable[[], T] | None = None, end: Callable[[T], object] | None = None) -> None:
        self._make = make
        self._end = end
        self._values: dict[asyncio.AbstractEventLoop, T] = {}
        self._lock = threading.Lock()

    def here(self) -> T:
        """Return the value of the running event loop."""
        loop = asyncio.get_running_loop()
        value = self._values.get(loop)
        return self._new(loop) if value is None else value

    def get(self) -> T | None:
        """Return the value of the running event loop, if there is one yet."""
        return self._values.get(asyncio.get_running_loop())

    def set(self, value: T) -> None:
        """Set the value of the running event loop."""
        self._values[asyncio.get_running_loop()] = value
        self.tidy()

    def _new(self, loop: asyncio.AbstractEventLoop) -> T:
        self.tidy()
        assert self._make is not None
        value = self._values[loop] = self._make()
        return value

    def tidy(self) -> None:
        """Remove the values of closed event loops, and end them."""
        with self._lock:
            ended_values = [self._values.pop(loop) for loop in list(self._values) if loop.is_closed()]
        if self._end is not None:
            for value in ended_values:
                self._end(value)

    def pop(self) -> T | None:
        """Remove and return the value of the running event loop; None if it has none."""
        return self._values.pop(asyncio.get_running_loop(), None)

    def all(self) -> list[tuple[asyncio.AbstractEventLoop, T]]:
        """Return every value and its event loop."""
        return list(self._values.items())

    def clear(self) -> list[tuple[asyncio.AbstractEventLoop, T]]:
        """Remove all values and return them, each with its event loop."""
        values, self._values = self.all(), {}
        return values
