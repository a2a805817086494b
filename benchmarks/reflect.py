"""What reflection costs those who write: durable ingest with a reflector and without, in turns.

    python benchmarks/reflect.py              # two minutes
    python benchmarks/reflect.py --quick --json

Two files on one disk, one event loop. Short blocks of messages go to the one and to the other in turns, so that both
see the same machine; after each everything in the background is finished, and before each both rest for as long: a
disk that was idle is faster for a while. "ratio of blocks" is the median over pairs.
"flat out" is one message after the other, "paced" one every 10 ms. The reflectors are a model that thinks for 300 ms,
and the offline one, which works on the event loop itself. Counted are ingests that waited more than 5 ms while a
worker's transaction was under way, and those that a call of the model held up.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import random
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter
from typing import Any

from acms import ACMS, ACMSConfig
from acms.errors import ACMSError
from acms.knowledge import Proposal, Reflection
from acms.model import Append, Kind, Lease, Receipt
from acms.ports import ReflectionRequest
from acms.providers.offline.reflector import OfflineReflector
from acms.storage import SQLiteStorage
from acms.storage.wrapper import WrapperStorage

REST = 0.5
"""Seconds without anything to do before each block."""
SLOW = 0.005
"""Seconds that no ingest may wait for a worker's transaction."""
THINKS = 0.3
HELD = 0.05
"""Seconds of a call after which an ingest that ends behind it was held up by it."""
PLACES = ("orders", "billing", "search", "the cache", "login", "mail", "the queue", "reports")
THINGS = ("PostgreSQL", "Redis", "SQLite", "Kafka", "Go", "Rust", "Django", "nginx")
FILLER = (
    "the page was slow again this morning and nobody knows why yet, so we looked at the plan of the query and at the "
    "index it should have used, then at the replica, and found that it lagged by some forty rows at the time"
).split()

Interval = tuple[float, float]


def text(rng: random.Random) -> str:
    """Return about 60 tokens, now and then with something to be known."""
    said = " ".join(rng.choice(FILLER) for _ in range(50))
    if rng.random() < 0.2:
        said = f"Decision: we use {rng.choice(THINGS)} for {rng.choice(PLACES)}. {said}"
    return said


class Timed(WrapperStorage):
    """Notes when a worker's transactions were under way."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.worker: list[Interval] = []

    async def append(self, ops: Sequence[Append]) -> list[Receipt | ACMSError]:
        """Append; what no session wrote is a worker's."""
        if any(draft.kind is Kind.MESSAGE for op in ops for draft in op.drafts):
            return await super().append(ops)
        began = perf_counter()
        found = await super().append(ops)
        self.worker.append((began, perf_counter()))
        return found

    async def claim(self, kinds: Sequence[str], **given: Any) -> list[Lease]:
        """Take jobs."""
        began = perf_counter()
        found = await super().claim(kinds, **given)
        if found:
            self.worker.append((began, perf_counter()))
        return found

    async def settle(self, *given: Any) -> Any:
        """End an attempt."""
        began = perf_counter()
        found = await super().settle(*given)
        self.worker.append((began, perf_counter()))
        return found


@dataclass
class Model:
    """Thinks for a while, then knows one thing."""

    model: str = "slow"
    calls: list[Interval] = field(default_factory=list)

    async def reflect(self, request: ReflectionRequest) -> Reflection:
        """Return one fact."""
        began = perf_counter()
        await asyncio.sleep(THINKS)
        self.calls.append((began, perf_counter()))
        first = request.turns[0]
        found = Proposal(
            content=" ".join(first.text.split()[:12]), subject=f"thing {first.version % 40}",
            attribute="state", value=str(first.version), cardinality="one", sources=(first.version,),
        )  # fmt: skip
        return Reflection(proposals=(found,))


def overlap(one: Interval, other: Interval) -> float:
    """Return the seconds two intervals share."""
    return min(one[1], other[1]) - max(one[0], other[0])


async def block(session: ACMS, rng: random.Random, size: int, pause: float) -> list[Interval]:
    """Ingest some messages and return when each was under way."""
    found: list[Interval] = []
    for number in range(size):
        content = text(rng)
        began = perf_counter()
        await session.ingest(("user", "assistant")[number % 2], content)
        found.append((began, perf_counter()))
        if pause:
            await asyncio.sleep(pause)
    return found


async def compare(folder: Path, reflector: Any, blocks: int, size: int, pause: float) -> dict[str, float]:
    """Time ingests with a reflector and without, in turns."""
    rng = random.Random(5)
    timed = Timed(SQLiteStorage(folder / "on.db"))
    plain = Timed(SQLiteStorage(folder / "off.db"))
    config = ACMSConfig()
    took: dict[str, list[Interval]] = {"on": [], "off": []}
    medians: dict[str, list[float]] = {"on": [], "off": []}
    async with (
        ACMS("on", timed, None, reflector=reflector, config=config) as on,
        ACMS("off", plain, None, config=config) as off,
    ):
        for session in (on, off):
            await block(session, rng, 60, 0)
        await on.wait_pending()
        for _ in range(blocks):
            for name in rng.sample(("on", "off"), 2):
                await asyncio.sleep(REST)
                found = await block({"on": on, "off": off}[name], rng, size, pause)
                took[name] += found
                medians[name].append(statistics.median(end - began for began, end in found))
                await on.wait_pending()
        facts = await timed.read((await timed.context("on")).id, kinds=(Kind.FACT,))
    seconds = {name: sorted(end - began for began, end in found) for name, found in took.items()}
    worker = [
        one
        for one in took["on"]
        if one[1] - one[0] > SLOW and any(overlap(one, other) > SLOW for other in timed.worker)
    ]
    calls: list[Interval] = getattr(reflector, "calls", [])
    model = [
        one for one in took["on"] if any(overlap(one, call) > HELD and one[1] >= call[1] for call in calls)
    ]
    p50 = {name: statistics.median(found) for name, found in seconds.items()}
    return {
        "ingests with": len(seconds["on"]),
        "p50 without (us)": p50["off"] * 1e6,
        "p50 with (us)": p50["on"] * 1e6,
        "ratio of blocks": statistics.median(
            on / off for on, off in zip(medians["on"], medians["off"], strict=True)
        ),
        "ratio": p50["on"] / p50["off"],
        "p95 without (us)": seconds["off"][int(len(seconds["off"]) * 0.95)] * 1e6,
        "p95 with (us)": seconds["on"][int(len(seconds["on"]) * 0.95)] * 1e6,
        "longer than 5 ms without": sum(1 for one in seconds["off"] if one > SLOW),
        "longer than 5 ms with": sum(1 for one in seconds["on"] if one > SLOW),
        "waited > 5 ms for a worker's transaction": len(worker),
        "waited for the model": len(model),
        "transactions of the worker": len(timed.worker),
        "calls of the model": len(calls),
        "facts": len(facts),
    }


async def main() -> None:
    """Run what was asked for and print it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="fewer messages")
    parser.add_argument("--dir", default=None, help="folder on the disk to measure")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    blocks = 6 if options.quick else 16
    report: dict[str, Any] = {
        "date": datetime.now(UTC).date().isoformat(),
        "machine": f"{os.cpu_count()} CPUs, {platform.system()}, Python {platform.python_version()}",
        "goal": "both ratios <= 1.1; nothing waits for the model",
    }
    with tempfile.TemporaryDirectory(dir=options.dir) as name:
        for who, make in (("a model of 300 ms", Model), ("offline", OfflineReflector)):
            for how, size, pause in (("flat out", 900, 0.0), ("paced", 60, 0.01)):
                reflector = make()
                folder = Path(name) / f"{who} {how}"
                folder.mkdir()
                report[f"{who}, {how}"] = await compare(folder, reflector, blocks, size, pause)
    if options.json:
        print(json.dumps(report, indent=2))
        return
    for title, found in report.items():
        if not isinstance(found, dict):
            print(f"{title}: {found}")
            continue
        print(f"\n{title}")
        for row, value in found.items():
            print(f"  {row:<45} {value:10.2f}")


if __name__ == "__main__":
    asyncio.run(main())
