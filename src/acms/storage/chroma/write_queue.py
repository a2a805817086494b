"""A queue of vector rows that are written to Chroma in the background, in order."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

from acms.model import Derived
from acms.observability.logging import log_event
from acms.storage.chroma.client import code_of_error

WRITE = 500
"""Vectors of one call that writes."""
QUEUED = 1_024
"""Calls that may wait to be written."""


class WriteQueue:
    """The rows that wait in one event loop; rows that cannot be written are dropped with a warning."""

    def __init__(self, write_rows: Callable[[str, Sequence[Derived]], Awaitable[object]]) -> None:
        self._write_rows = write_rows
        self._waiting: deque[tuple[str, Sequence[Derived]]] = deque()
        self._task: asyncio.Task[None] | None = None

    @property
    def is_busy(self) -> bool:
        """Whether rows wait or are being written."""
        return self._task is not None and not self._task.done()

    def put(self, context: str, rows: Sequence[Derived]) -> int:
        """Add rows of a context; return their number, 0 if the queue is full."""
        if len(self._waiting) >= QUEUED:
            _log_dropped(context, len(rows), "QUEUE_FULL")
            return 0
        self._waiting.append((context, rows))
        if not self.is_busy:
            self._task = asyncio.get_running_loop().create_task(self._write_waiting())
        return len(rows)

    async def drain(self) -> None:
        """Wait until all rows are written."""
        while self._task is not None and not self._task.done():
            await asyncio.wait([self._task])

    async def _write_waiting(self) -> None:
        """Write rows until none wait; adjacent ones of the same context share a call."""
        while self._waiting:
            context, rows = self._waiting.popleft()
            while self._waiting and len(rows) < WRITE:
                next_context, next_rows = self._waiting[0]
                if next_context != context:
                    break
                self._waiting.popleft()
                rows = [*rows, *next_rows]
            try:
                await self._write_rows(context, rows)
            except Exception as error:
                _log_dropped(context, len(rows), code_of_error(error))


def _log_dropped(context: str, rows: int, code: str) -> None:
    log_event(logging.WARNING, "vectors_not_stored", context=context, code=code, rows=rows)
