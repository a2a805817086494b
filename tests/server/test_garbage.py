"""Whole collections of garbage wait until it is quiet, and no longer than they may; time is virtual."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
from collections.abc import Iterator
from time import perf_counter
from typing import Any

import pytest

from acms.server import ServerConfig, create_app, garbage, service
from acms.server.garbage import defer_full_collections
from tests.support.virtual_time import VIRTUAL_TIME


@pytest.fixture(scope="module")
def anyio_backend() -> tuple[str, dict[str, object]]:
    return VIRTUAL_TIME


@pytest.fixture
def whole() -> Iterator[list[int]]:
    """Return how many objects were taken to stay at the end of each whole collection."""
    found: list[int] = []

    def collected(phase: str, info: dict[str, Any]) -> None:
        if phase == "stop" and info["generation"] == 2:
            found.append(gc.get_freeze_count())

    gc.callbacks.append(collected)
    thresholds = gc.get_threshold()
    gc.set_threshold(700, 10, 10)
    yield found
    gc.set_threshold(*thresholds)
    gc.callbacks.remove(collected)
    gc.freeze()  # as it was, or every collection of later tests would read all again


def fill_middle_generation() -> None:
    """Make the middle generation be collected as often as a whole collection waits for."""
    kept: list[list[int]] = []
    while gc.get_count()[2] < 12:
        kept.append([])


async def test_whole_collections_wait_until_it_is_quiet(whole: list[int]) -> None:
    quiet = False
    async with defer_full_collections(lambda: quiet):
        del whole[:]  # the one with which it begins
        fill_middle_generation()
        await asyncio.sleep(garbage.MAX_WAIT_SECONDS / 2)
        assert whole == []
        assert gc.get_count()[2] >= 12, "the young are collected as ever"
        stays = gc.get_freeze_count()
        quiet = True
        await asyncio.sleep(2 * garbage.CHECK_SECONDS)
        assert len(whole) == 1
        assert whole[0] > 0.9 * stays, "what was there already is not looked at"
        assert gc.get_freeze_count() > stays
    assert gc.get_freeze_count() == 0
    assert gc.get_threshold() == (700, 10, 10)


FREED = """
from pathlib import Path
from acms.server.garbage import trim_heap

def megabytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 // 1_000_000

blocks = [bytes(3_000) for _ in range(40_000)]
kept = blocks[::100]  # so that the C library cannot take its heap down
del blocks
before = megabytes()
trim_heap()
print(before - megabytes())
"""


@pytest.mark.skipif(
    sys.platform != "linux", reason="the C library of others gives memory back by itself, or never"
)
def test_what_is_free_goes_back_to_the_system() -> None:
    done = subprocess.run([sys.executable, "-c", FREED], capture_output=True, text=True, check=True)
    assert int(done.stdout) > 60, "of 120 MB"


MAPPED = """
import ctypes, sys
from acms.server.garbage import keep_large_blocks_apart

class Mallinfo(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in ("arena", "free", "small", "mapped", *"abcdef")]

def mapped():
    look = ctypes.CDLL(None).mallinfo2
    look.restype = Mallinfo
    return look().mapped

if sys.argv[1:]:
    keep_large_blocks_apart()
block = bytes(1_000_000)
del block  # from now on glibc would keep blocks of this size on its heap
before = mapped()
block = bytes(1_000_000)
print(mapped() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="what is mapped is a matter of glibc")
@pytest.mark.parametrize(("given", "mapped"), [((), 0), (("apart",), 1)], ids=["as it is", "kept apart"])
def test_large_blocks_are_mapped_on_their_own_after_one_was_freed(
    given: tuple[str, ...], mapped: int
) -> None:
    command = [sys.executable, "-c", MAPPED, *given]
    assert int(subprocess.run(command, capture_output=True, text=True, check=True).stdout) == mapped


async def test_memory_is_given_back_after_a_collection_once_a_minute(
    whole: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[float] = []
    monkeypatch.setattr(garbage, "trim_heap", lambda: given.append(asyncio.get_running_loop().time()))
    async with defer_full_collections(lambda: True):
        del whole[:]
        for _ in range(3):
            fill_middle_generation()
            await asyncio.sleep(2 * garbage.CHECK_SECONDS)
        assert (len(whole), len(given)) == (3, 1)
        await asyncio.sleep(garbage.TRIM_SECONDS)
        fill_middle_generation()
        await asyncio.sleep(2 * garbage.CHECK_SECONDS)
        assert len(given) == 2


async def test_where_it_is_never_quiet_they_come_after_a_while(whole: list[int]) -> None:
    async with defer_full_collections(lambda: False):
        del whole[:]
        stays = gc.get_freeze_count()
        fill_middle_generation()
        await asyncio.sleep(1.5 * garbage.MAX_WAIT_SECONDS)
        assert len(whole) == 1
        assert 0.9 * stays < whole[0] <= stays
        assert gc.get_freeze_count() <= stays


async def test_in_the_long_run_all_is_looked_at_again(whole: list[int]) -> None:
    async with defer_full_collections(lambda: True):
        await asyncio.sleep(garbage.FULL_SCAN_SECONDS)
        del whole[:]
        fill_middle_generation()
        await asyncio.sleep(2 * garbage.CHECK_SECONDS)
        assert whole == [0]


def test_a_service_is_quiet_when_nobody_was_answered_for_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    app = create_app("memory://", ServerConfig(auth="off"), embedder=None)
    monkeypatch.setattr(service, "QUIET_SECONDS", 3600.0)
    app.answered = perf_counter()
    assert not app.is_quiet()
    monkeypatch.setattr(service, "QUIET_SECONDS", 0.0)
    assert app.is_quiet()
    app.open_requests = 1
    assert not app.is_quiet()
    app.streams.begin("a stream that goes on")
    assert app.is_quiet()
