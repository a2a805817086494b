"""Streams that go on: how many a key has open, and when they end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from acms.errors import RateLimitError

__all__ = ["Streams"]

AGAIN = 5.0
"""Seconds after which a key that has too many streams open may ask again."""


class Streams:
    """The streams of events that are open in this process."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._open: Counter[str] = Counter()
        self._ended = False

    def begin(self, key: str) -> Callable[[], None]:
        """Count one more stream of a key and return what ends it; `RateLimitError` when it has too many."""
        if self._open[key] >= self._most:
            raise RateLimitError(
                f"{self._most} streams of events are open with this key: close one", retry_after=AGAIN
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
