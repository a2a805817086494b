"""Streams that go on: how many a key has open, and when they end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from time import monotonic

from acms.errors import RateLimitError
from acms.server.rates import Buckets

__all__ = ["Streams"]

AGAIN = 5.0
"""Seconds after which a key that has too many streams open may ask again."""
REFILL_SECONDS = 16.0
"""In which a key may open as many streams again as it may have open: all of them may reconnect twice in a row."""


class Streams:
    """The streams of events that are open in this process."""

    def __init__(self, most: int, *, elapsed: Callable[[], float] = monotonic) -> None:
        self._most = most
        #: How often a key may open one: opening costs more than other requests, as a page is read.
        self._openings = Buckets(most / REFILL_SECONDS, 2 * most, clock=elapsed)
        self._open: Counter[str] = Counter()
        self._ended = False

    def begin(self, key: str) -> Callable[[], None]:
        """Count one more stream of a key and return what ends it; `RateLimitError` when it has too many."""
        if self._open[key] >= self._most:
            raise RateLimitError(
                f"{self._most} streams of events are open with this key: close one", retry_after=AGAIN
            )
        seconds = self._openings.take(key)
        if seconds:
            raise RateLimitError(
                f"streams of events are opened too often with this key: keep them open, wait {seconds:.1f} seconds,"
                " and resume with Last-Event-ID",
                retry_after=seconds,
            )
        self._open[key] += 1
        return lambda: self._leave(key)

    def _leave(self, key: str) -> None:
        self._open[key] -= 1
        if not self._open[key]:
            del self._open[key]

    def open(self) -> int:
        """Return how many are open."""
        return self._open.total()

    def ended(self) -> bool:
        """Return whether the service is being stopped: no stream goes on then."""
        return self._ended

    def end(self) -> None:
        """End every stream within a second: the service is being stopped."""
        self._ended = True
