"""Pacing: how work in the background leaves the event loop to those who write messages."""

from __future__ import annotations

import asyncio
from time import monotonic

from acms.storage.handles import Shared

BUSY = 0.25
"""Seconds after an append of this process for which the event loop is left to more of them."""
SHARE = 9
"""While it is busy a reflection rests for so many times what it worked."""
LONGEST_REST = 0.1


class Pace:
    """Leaves the event loop to those who write: works in slices, and rests between them while messages arrive."""

    def __init__(self, shared: Shared | None) -> None:
        self.shared = shared
        self._began = monotonic()

    @property
    def busy(self) -> bool:
        """Whether messages are arriving in this process, and nobody waits for the work."""
        shared = self.shared
        return shared is not None and not shared.waiting and monotonic() - shared.appended < BUSY

    def enter(self, context: str) -> None:
        """Say that a log will be looked at again before the work ends: nobody need wake a worker for it."""
        if self.shared is not None:
            self.shared.reflecting.add(context)

    def leave(self, context: str) -> None:
        """Say that what is asked for from now on may not be seen."""
        if self.shared is not None:
            self.shared.reflecting.discard(context)

    def begin(self) -> None:
        """Start a slice of work."""
        self._began = monotonic()

    async def rest(self) -> None:
        """End a slice and start the next one."""
        worked = monotonic() - self._began
        await asyncio.sleep(min(LONGEST_REST, SHARE * worked) if self.busy else 0)
        self._began = monotonic()

    async def pause(self) -> None:
        """Let more arrive before it is looked at again."""
        await asyncio.sleep(LONGEST_REST if self.busy else 0)
        self._began = monotonic()
