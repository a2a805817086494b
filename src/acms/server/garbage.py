"""Garbage collection in a server process: full collections run only while no request waits."""

from __future__ import annotations

import asyncio
import ctypes
import gc
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress

__all__ = ["defer_full_collections"]

CHECK_SECONDS = 1.0
"""Time between two checks whether a full collection is due."""
MAX_WAIT_SECONDS = 60.0
"""Longest time that a due collection waits for a quiet moment."""
FULL_SCAN_SECONDS = 600.0
"""Time between two collections that also scan the objects that earlier ones left."""
TRIM_SECONDS = 60.0
"""Time between two returns of free memory to the system: one takes 30 ms with 300 MB."""
LARGE = 128 * 1024
"""Bytes from which a block is mapped on its own and unmapped when freed: glibc's limit when a process starts."""
M_MMAP_THRESHOLD = -3
"""The name of that limit in `mallopt(3)`."""


@asynccontextmanager
async def defer_full_collections(quiet: Callable[[], bool]) -> AsyncGenerator[None]:
    """Delay full garbage collections inside the block until the service is quiet, for a minute at most.

    A full collection scans every container object and stops all threads, for 70 ms with 130,000 objects. Therefore
    objects that survive a quiet collection are frozen, and the next ones scan only newer objects; every ten minutes a
    quiet collection scans all again. Young objects are collected as usual. Use it only in a process that belongs to the
    service alone.
    """
    keep_large_blocks_apart()
    young_threshold, middle_threshold, full_threshold = gc.get_threshold()
    gc.collect()
    gc.freeze()
    # With this threshold the interpreter starts no full collection itself.
    gc.set_threshold(young_threshold, middle_threshold, 1_000_000_000)
    task = asyncio.create_task(_collect_when_quiet(quiet, full_threshold), name="acms-garbage")
    try:
        yield
    finally:
        task.cancel()
        gc.set_threshold(young_threshold, middle_threshold, full_threshold)
        gc.unfreeze()


async def _collect_when_quiet(quiet: Callable[[], bool], threshold: int) -> None:
    """Run a full collection after `threshold` collections of the middle generation, when the service is quiet.

    If it is never quiet, collect after `MAX_WAIT_SECONDS`.
    """
    now = asyncio.get_running_loop().time
    next_full_scan, next_trim = now() + FULL_SCAN_SECONDS, 0.0
    while True:
        await asyncio.sleep(CHECK_SECONDS)
        _, _, collections = gc.get_count()
        if collections < threshold:
            continue
        latest = now() + MAX_WAIT_SECONDS
        while not quiet() and now() < latest:
            await asyncio.sleep(0.05)
        is_quiet = quiet()
        if is_quiet and now() >= next_full_scan:
            gc.unfreeze()
            next_full_scan = now() + FULL_SCAN_SECONDS
        gc.collect()
        if is_quiet:
            gc.freeze()
        if now() >= next_trim:
            trim_heap()
            next_trim = now() + TRIM_SECONDS


def keep_large_blocks_apart() -> None:
    """Prevent glibc from raising its limit for separately mapped blocks to the size of the largest freed block.

    Otherwise large blocks are allocated among small ones from then on, and the holes they leave grow the heap.
    """
    with suppress(AttributeError, OSError, TypeError):  # another C library, or another system
        ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, LARGE)


def trim_heap() -> None:
    """Give free memory back to the system, where the C library is glibc, which keeps what threads have freed."""
    with suppress(AttributeError, OSError, TypeError):  # another C library, or another system
        ctypes.CDLL(None).malloc_trim(0)
