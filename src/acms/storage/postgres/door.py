"""How a handle enters a pool of connections: the schema is looked at first, and the last one to leave closes it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from acms.storage.postgres.migrate import check
from acms.storage.postgres.pool import Pool


class Door:
    """One handle's way into a pool, which it may share; opened by its first use, and again after it was closed."""

    def __init__(self, pool: Pool, accept: Callable[[], None] = lambda: None) -> None:
        self._pool = pool
        #: Refuses a server that is not as the handle wants it.
        self._accept = accept
        self._opening: asyncio.Task[None] | None = None
        self._opened = False

    async def open(self) -> None:
        """Make sure of the connections and the schema; calls at the same time do it once."""
        self._pool.bind()
        if self._opened:
            return
        opening = self._opening
        if opening is None or opening.done() or opening.get_loop() is not asyncio.get_running_loop():
            opening = self._opening = asyncio.ensure_future(self._start())
            opening.add_done_callback(_noticed)
        await asyncio.shield(opening)  # one caller that gives up does not close it to the others

    async def _start(self) -> None:
        try:
            await check(self._pool)
            self._accept()
        except BaseException:
            if not self._pool.users:
                await self._pool.close()
            raise
        self._pool.users.add(self)
        self._opened = True

    async def close(self) -> None:
        """Leave the pool; the last one closes its connections."""
        if self._pool.here() and self._opening is not None and not self._opening.done():
            self._opening.cancel()
            await asyncio.wait((self._opening,))
        self._opened = False
        self._pool.users.discard(self)
        if not self._pool.users:
            await self._pool.close()


def _noticed(task: asyncio.Task[None]) -> None:
    """Take note of how it ended: whoever waited may be gone."""
    if not task.cancelled():
        task.exception()
