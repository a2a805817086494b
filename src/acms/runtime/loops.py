"""What belongs to an event loop, for an object that is used from several: one after the other, or in threads."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

__all__ = ["PerLoop", "current_loop", "waiting"]

T = TypeVar("T")

waiting: list[asyncio.AbstractEventLoop] = []
"""Event loops that stand still because a function on them waits for another: what they are asked is done later."""


def current_loop() -> asyncio.AbstractEventLoop | None:
    """Return the event loop that runs in this thread; None where there is none."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


class PerLoop(Generic[T]):
    """A value for each event loop, made by its first use there, or set.

    What loops left behind that were closed is given to `end` when another loop comes.
    """

    def __init__(self, make: Callable[[], T] | None = None, end: Callable[[T], object] | None = None) -> None:
        self._make = make
        self._end = end
        self._values: dict[asyncio.AbstractEventLoop, T] = {}
        self._lock = threading.Lock()

    def here(self) -> T:
        """Return the value of the running event loop."""
        loop = asyncio.get_running_loop()
        found = self._values.get(loop)
        return self._new(loop) if found is None else found

    def get(self) -> T | None:
        """Return the value of the running event loop, if there is one yet."""
        return self._values.get(asyncio.get_running_loop())

    def set(self, value: T) -> None:
        """Give the running event loop its value."""
        self._values[asyncio.get_running_loop()] = value
        self.tidy()

    def _new(self, loop: asyncio.AbstractEventLoop) -> T:
        self.tidy()
        assert self._make is not None
        found = self._values[loop] = self._make()
        return found

    def tidy(self) -> None:
        """End what belongs to event loops that were closed."""
        with self._lock:
            ended = [self._values.pop(loop) for loop in list(self._values) if loop.is_closed()]
        if self._end is not None:
            for value in ended:
                self._end(value)

    def pop(self) -> T | None:
        """Take the value away from the running event loop."""
        return self._values.pop(asyncio.get_running_loop(), None)

    def all(self) -> list[tuple[asyncio.AbstractEventLoop, T]]:
        """Return every value and its event loop."""
        return list(self._values.items())

    def clear(self) -> list[tuple[asyncio.AbstractEventLoop, T]]:
        """Take all values away and return them."""
        found, self._values = self.all(), {}
        return found
