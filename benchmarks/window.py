"""Read a window of 4,000 tokens at any version of a long log.

    python benchmarks/window.py                 # 100,000 messages, about a minute

Medians and p95 over random versions, with the cache warm, and without a cache. The floor in the same rounds is one SQL
query for the same rows by apsw, as plain tuples.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import tempfile
import time
from pathlib import Path

import apsw
from ingest import text

from acms import ACMS, ACMSConfig, CacheConfig, open_storage


def fold(samples: list[float]) -> dict[str, float]:
    """Return median and p95 in microseconds."""
    ordered = sorted(samples)
    return {"p50": statistics.median(ordered) * 1e6, "p95": ordered[int(len(ordered) * 0.95)] * 1e6}


async def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=400)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rng = random.Random(5)
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "window.db"
        url = f"sqlite:///{path}"
        async with ACMS("long", open_storage(url), None) as session:
            for start in range(0, options.messages, 1000):
                size = min(1000, options.messages - start)
                await session.ingest_many([{"role": "user", "content": text(rng)} for _ in range(size)])
        floor = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
        base = floor.execute("SELECT min(row) FROM entries").fetchall()[0][0] - 1
        samples: dict[str, list[float]] = {
            "uncached": [],
            "cached, seen before": [],
            "head of the log": [],
            "sql": [],
        }
        off = ACMSConfig(cache=CacheConfig(enabled=False))
        async with (
            ACMS("long", open_storage(url), None, config=off) as cold,
            ACMS("long", open_storage(url), None) as warm,
        ):
            for _ in range(options.rounds):
                version = rng.randint(100, options.messages)
                await warm.at(version).window(4000)
                start = time.perf_counter()
                shown = await cold.at(version).window(4000)
                samples["uncached"].append(time.perf_counter() - start)
                start = time.perf_counter()
                await warm.at(version).window(4000)
                samples["cached, seen before"].append(time.perf_counter() - start)
                start = time.perf_counter()
                await warm.window(4000)
                samples["head of the log"].append(time.perf_counter() - start)
                start = time.perf_counter()
                rows = floor.execute(
                    "SELECT * FROM entries WHERE row <= ? ORDER BY row DESC LIMIT ?",
                    (base + version, len(shown)),
                ).fetchall()
                samples["sql"].append(time.perf_counter() - start)
                assert len(rows) == len(shown)
    report = {name: fold(found) for name, found in samples.items()}
    if options.json:
        print(json.dumps(report, indent=2))
        return
    print(f"window(4000) of {options.messages} messages, microseconds")
    for name, found in report.items():
        print(f"  {name:<24} p50 {found['p50']:8.0f}   p95 {found['p95']:8.0f}")


if __name__ == "__main__":
    asyncio.run(main())
