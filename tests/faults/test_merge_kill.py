"""A merge that is killed has appended everything or nothing, and doing it again completes it."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections import Counter
from pathlib import Path

import pytest

from acms import ACMS, Kind, open_storage
from acms.log.active_entries import is_merge_record

from ._process import finish_process, start_python

MESSAGES = 400
KILLS = 12


async def write_branches(path: Path) -> None:
    async with open_storage(f"sqlite:///{path}") as storage:
        ours = ACMS("ours", storage, None)
        first = await ours.ingest("user", "hello")
        theirs = await ours.fork(session_id="theirs")
        await theirs.replace(first, "hello again")
        await theirs.ingest_many([{"role": "user", "content": f"message {n}"} for n in range(MESSAGES)])
        await ours.close()
        await theirs.close()


async def count_copies(path: Path, *, again: bool) -> tuple[int, int]:
    """Return how many copies and records the log has, after merging again if that is asked for."""
    async with open_storage(f"sqlite:///{path}") as storage:
        ours, theirs = ACMS("ours", storage, None), ACMS("theirs", storage, None)
        if again:
            await ours.merge(theirs)
        entries = await storage.read(await ours.context_id() or "")
        await ours.close()
        await theirs.close()
    return (
        sum(1 for entry in entries if entry.kind is Kind.MESSAGE and entry.sources),
        sum(map(is_merge_record, entries)),
    )


@pytest.mark.faults
def test_a_killed_merge_leaves_all_or_nothing(tmp_path: Path) -> None:
    seen: Counter[int] = Counter()
    for round_ in range(KILLS):
        path = tmp_path / f"{round_}.db"
        asyncio.run(write_branches(path))
        process = start_python("-m", "tests.faults._merger", str(path))
        assert process.stdout is not None
        assert process.stdout.readline() == "go\n"
        time.sleep(random.Random(round_).uniform(0, 0.25))
        os.kill(process.pid, signal.SIGKILL)
        finish_process(process)
        found = asyncio.run(count_copies(path, again=False))
        assert found in ((0, 0), (MESSAGES + 1, 1))
        seen[found[1]] += 1
        assert asyncio.run(count_copies(path, again=True)) == (MESSAGES + 1, 1)
    assert sum(seen.values()) == KILLS
