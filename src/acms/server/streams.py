"""Open event streams: their number per key, and their end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from time import monotonic

from acms.errors import RateLimitError
from acms.server.rates import Buckets

__all__ = ["PIECE_BYTES", "Streams"]


PIECE_BYTES = 65_536
"""Bytes of a stream that are sent at once: a connection buffers as much for a client that reads nothing."""


class Streams:
    """The open event streams of this process."""

    def __init__(self, max_streams: int, *, elapsed: Callable[[], float] = monotonic) -> None:
        self._max_streams = max_streams
        # All streams of a key may reconnect twice in a row, and again every 16 seconds: opening one costs a read.
        self._openings = Buckets(max_streams / 16, 2 * max_streams, clock=elapsed)
        self._open: Counter[str] = Counter()
        self._ended = False

    def begin(self, key: str) -> Callable[[], None]:
        """Count one more open stream of a key, and return the function to call at its end.

        Raises `RateLimitError` if the key has too many streams, or opens them too often.
        """
        if self._open[key] >= self._max_streams:
            raise RateLimitError(
                f"{self._max_streams} streams of events are open with this key: close one", retry_after=5.0
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

    def count(self) -> int:
        """Return the number of open streams."""
        return self._open.total()

    def is_ending(self) -> bool:
        """Return whether the service is stopping, which ends all streams."""
        return self._ended

    def end(self) -> None:
        """End every stream within a second, because the service is stopping."""
        self._ended = True
