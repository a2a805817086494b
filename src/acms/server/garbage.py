"""Garbage collection in a server process: full collections run only while no request waits."""

from __future__ import annotations

import asyncio
import ctypes
import gc
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress

__all__ = ["defer_full_collections"]

LOOK = 1.0
"""Seconds between two looks whether there is enough to be collected."""
PAUSE = 0.05
"""Seconds between two checks for waiting requests."""
LONGEST = 60.0
"""Seconds after which it is collected all the same."""
WHOLE = 600.0
"""Seconds after which all is looked at again, once it is quiet."""
TRIMMED = 60.0
"""Seconds between two returns of free memory: one takes 30 ms where there are 300 MB."""
NEVER = 1_000_000_000
LARGE = 128 * 1024
"""Bytes from which a block is mapped on its own and unmapped when it is free: glibc's limit when a process starts."""
M_MMAP_THRESHOLD = -3
"""The name of that limit in `mallopt(3)`."""


@asynccontextmanager
async def defer_full_collections(quiet: Callable[[], bool]) -> AsyncGenerator[None]:
    """Let collections of the oldest objects wait inside the block until it is quiet, for a minute at most.

    One looks at every object that may hold others and stops all threads meanwhile, for 70 ms where there are 130,000.
    So what one that was quiet leaves is taken to stay, and the next ones look only at what came since; at all of it
    again after ten minutes, when it is quiet. Young objects are collected as ever. It is for a process of one's own.
    """
    keep_large_blocks_apart()
    first, second, enough = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(first, second, NEVER)
    task = asyncio.create_task(_collect_when_quiet(quiet, enough), name="acms-garbage")
    try:
        yield
    finally:
        task.cancel()
        gc.set_threshold(first, second, enough)
        gc.unfreeze()


async def _collect_when_quiet(quiet: Callable[[], bool], enough: int) -> None:
    now = asyncio.get_running_loop().time
    whole, trimmed = now() + WHOLE, 0.0
    while True:
        await asyncio.sleep(LOOK)
        if gc.get_count()[2] < enough:
            continue
        ends = now() + LONGEST
        while not quiet() and now() < ends:
            await asyncio.sleep(PAUSE)
        calm = quiet()
        if calm and now() >= whole:
            gc.unfreeze()
            whole = now() + WHOLE
        gc.collect()
        if calm:
            gc.freeze()
        if now() >= trimmed:
            trim_heap()
            trimmed = now() + TRIMMED


def keep_large_blocks_apart() -> None:
    """Keep glibc from raising the limit from which it maps a block on its own to the largest that was freed.

    Else all up to that size lie among small ones from then on, and the holes they leave grow the heap.
    """
    with suppress(AttributeError, OSError, TypeError):  # another C library, or another system
        ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, LARGE)


def trim_heap() -> None:
    """Give free memory back to the system, where the C library is glibc, which keeps what threads have freed."""
    with suppress(AttributeError, OSError, TypeError):  # another C library, or another system
        ctypes.CDLL(None).malloc_trim(0)
