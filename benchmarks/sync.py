"""How long `session.sync` takes for a list that has not changed: in a process that knows the log, and in a new one.

    python benchmarks/sync.py [--messages 10000]

Prints the median of a few runs in milliseconds; targets: 50 warm, 300 cold, for 10,000 messages on SQLite.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
from pathlib import Path
from time import perf_counter
from typing import Any

from acms import ACMS, open_storage

RUNS = 5


def conversation(size: int) -> list[dict[str, Any]]:
    """Return messages as a framework holds them; every tenth says no more than "ok"."""
    roles = ("user", "assistant")
    said = [
        f"Message {n} says something about order {n * 7919 % 10_007} and its database." for n in range(size)
    ]
    return [{"role": roles[n % 2], "content": "ok" if n % 10 == 9 else text} for n, text in enumerate(said)]


async def once(url: str, messages: list[dict[str, Any]], runs: int) -> list[float]:
    """Return the milliseconds of some syncs of one list in one session."""
    found: list[float] = []
    async with ACMS("bench", open_storage(url), None) as session:
        for _ in range(runs):
            started = perf_counter()
            done = await session.sync(messages)
            found.append((perf_counter() - started) * 1_000)
            assert len(done.unchanged) == len(messages)
    return found


async def measure(size: int) -> dict[str, float]:
    """Return the figures for a list of so many messages."""
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{Path(folder) / 'sync.db'}"
        messages = conversation(size)
        async with ACMS("bench", open_storage(url), None) as session:
            started = perf_counter()
            await session.sync(messages)
            first = perf_counter() - started
        cold = [(await once(url, messages, 1))[0] for _ in range(RUNS)]
        warm = (await once(url, messages, RUNS + 1))[1:]
        keyed = [{**message, "id": f"m{n}"} for n, message in enumerate(messages)]
        url = f"sqlite:///{Path(folder) / 'keyed.db'}"
        async with ACMS("bench", open_storage(url), None) as session:
            await session.sync(keyed)
        known = await once(url, keyed, RUNS + 1)
    return {
        "messages": size,
        "append": round(first * 1_000, 1),
        "cold": round(statistics.median(cold), 1),
        "warm": round(statistics.median(warm), 1),
        "keyed_cold": round(known[0], 1),
        "keyed_warm": round(statistics.median(known[1:]), 1),
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--messages", type=int, default=10_000)
    print(json.dumps(asyncio.run(measure(parser.parse_args().messages))))
