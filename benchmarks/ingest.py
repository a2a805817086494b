"""Durable ingest against the raw floor and a peer, interleaved in one run.

    python benchmarks/ingest.py                    # all tables, about three minutes
    python benchmarks/ingest.py --quick --json

Every round runs one durable append of each system, in a shuffled order, on the same disk; medians over the rounds.
"raw" is one apsw transaction (WAL, synchronous=FULL) that inserts the row and its FTS5 row; "raw in a thread" is the
same through `asyncio.to_thread`, the only way to use it from asyncio without blocking. The peer, openai-agents
`SQLiteSession`, stores text only; it is left out, and that is said, when it is not installed.
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
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import apsw

from acms import ACMS, open_storage

WORDS = (
    "the a we it on in at db row log key lag run to of is as up 12 40 99 new old set get put one two has had can may "
    "job disk read slow next page plan test node more orders replica tenant cache index budget"
).split()


def text(rng: random.Random) -> str:
    """Return about 260 characters that are about 61 tokens, like a turn of a real conversation."""
    return " ".join(rng.choice(WORDS) for _ in range(62))


class Raw:
    """One transaction by apsw: the row and its full-text row."""

    def __init__(self, path: Path) -> None:
        self.db = apsw.Connection(str(path))
        self.db.pragma("journal_mode", "wal")
        self.db.pragma("synchronous", "full")
        self.db.execute(
            "CREATE TABLE m (context INTEGER, version INTEGER, role TEXT, content TEXT, created REAL,"
            " PRIMARY KEY (context, version));"
            "CREATE VIRTUAL TABLE f USING fts5 (content, content='', contentless_delete=1);"
        )
        self.version = 0

    def append(self, content: str) -> None:
        """Append one row durably."""
        self.version += 1
        db = self.db
        db.execute("BEGIN IMMEDIATE")
        db.execute("INSERT INTO m VALUES (1, ?, 'user', ?, ?)", (self.version, content, time.time()))
        db.execute("INSERT INTO f (rowid, content) VALUES (?, ?)", (self.version, content))
        db.execute("COMMIT")


def fold(samples: list[float]) -> dict[str, float]:
    """Return median and p95 in microseconds."""
    ordered = sorted(samples)
    return {"p50": statistics.median(ordered) * 1e6, "p95": ordered[int(len(ordered) * 0.95)] * 1e6}


async def one_by_one(folder: Path, rounds: int, history: int) -> dict[str, dict[str, float]]:
    """Time single appends after a history written one by one, one append of each system per round."""
    rng = random.Random(7)
    raw, threaded = Raw(folder / "raw.db"), Raw(folder / "thread.db")
    peer = peer_session(folder / "peer.db", "peer")
    samples: dict[str, list[float]] = {}
    async with ACMS("bench", open_storage(f"sqlite:///{folder}/acms.db"), None) as session:

        async def ours(content: str) -> None:
            await session.ingest("user", content)

        async def floor(content: str) -> None:
            raw.append(content)

        async def in_thread(content: str) -> None:
            await asyncio.to_thread(threaded.append, content)

        async def other(content: str) -> None:
            await peer.add_items([{"role": "user", "content": content}])

        systems: dict[str, Callable[[str], Awaitable[None]]] = {
            "acms": ours, "raw": floor, "raw in a thread": in_thread,
        }  # fmt: skip
        if peer is not None:
            systems["openai-agents"] = other
        for _ in range(history):  # one by one, so that every write-ahead log has been filled and started over
            for append in systems.values():
                await append(text(rng))
        names = list(systems)
        for _ in range(rounds):
            rng.shuffle(names)
            for name in names:
                content = text(rng)
                start = time.perf_counter()
                await systems[name](content)
                samples.setdefault(name, []).append(time.perf_counter() - start)
    return {name: fold(found) for name, found in samples.items()}


def peer_session(path: Path, name: str) -> Any:
    """Return the peer's session, None when it is not installed."""
    os.environ.setdefault("OPENAI_AGENTS_DISABLE_TRACING", "1")
    try:
        from agents import SQLiteSession
    except ImportError:
        return None
    return SQLiteSession(name, path)


async def many_tasks(folder: Path, total: int, contexts: int, tasks: int = 64) -> dict[str, float]:
    """Return appends per second from many tasks on some contexts."""
    rng = random.Random(9)
    contents = [text(rng) for _ in range(total)]
    async with open_storage(f"sqlite:///{folder}/many-{contexts}.db") as storage:
        sessions = [ACMS(f"s{number}", storage, None) for number in range(contexts)]
        for session in sessions:
            await session.ingest("user", "start")

        async def work(number: int) -> None:
            session = sessions[number % contexts]
            for content in contents[number::tasks]:
                await session.ingest("user", content)

        start = time.perf_counter()
        await asyncio.gather(*[work(number) for number in range(tasks)])
        ours = total / (time.perf_counter() - start)
        for session in sessions:
            await session.close()
    return {"acms": ours}


async def many_tasks_peer(folder: Path, total: int, contexts: int, tasks: int = 64) -> dict[str, float]:
    """Return the same for the peer."""
    path = folder / f"peer-{contexts}.db"
    sessions = [peer_session(path, f"s{number}") for number in range(contexts)]
    if sessions[0] is None:
        return {}
    rng = random.Random(9)
    contents = [text(rng) for _ in range(total)]

    async def work(number: int) -> None:
        session = sessions[number % contexts]
        for content in contents[number::tasks]:
            await session.add_items([{"role": "user", "content": content}])

    start = time.perf_counter()
    await asyncio.gather(*[work(number) for number in range(tasks)])
    rate = total / (time.perf_counter() - start)
    for session in sessions:
        session.close()
    return {"openai-agents": rate}


async def growth(folder: Path, rounds: int, sizes: tuple[int, ...]) -> dict[str, dict[str, float]]:
    """Time single appends on sessions of different length, interleaved; and what a message takes on disk."""
    rng = random.Random(11)
    found: dict[str, list[float]] = {}
    sessions: dict[int, ACMS] = {}
    for size in sizes:
        session = sessions[size] = ACMS(
            f"s{size}", open_storage(f"sqlite:///{folder}/growth-{size}.db"), None
        )
        for batch in range(0, size, 1000):
            await session.ingest_many(
                [{"role": "user", "content": text(rng)} for _ in range(min(1000, size - batch))]
            )
    for _ in range(rounds):
        for size in rng.sample(sizes, len(sizes)):
            content = text(rng)
            start = time.perf_counter()
            await sessions[size].ingest("user", content)
            found.setdefault(str(size), []).append(time.perf_counter() - start)
    for session in sessions.values():
        await session.close()
    return {str(size): fold(found[str(size)]) for size in sizes}


async def disk(folder: Path, messages: int) -> dict[str, float]:
    """Return bytes per message on disk, ours and a bare row with the same text, both one by one and then closed."""
    rng = random.Random(13)
    contents = [text(rng) for _ in range(messages)]
    db = apsw.Connection(str(folder / "bytes-raw.db"))
    db.pragma("journal_mode", "wal")
    db.execute(
        "CREATE TABLE m (context INTEGER, version INTEGER, role TEXT, content TEXT, created REAL,"
        " PRIMARY KEY (context, version)) WITHOUT ROWID"
    )
    db.execute("BEGIN")
    db.executemany(
        "INSERT INTO m VALUES (1, ?, 'user', ?, ?)", [(n, c, time.time()) for n, c in enumerate(contents)]
    )
    db.execute("COMMIT")
    db.close()
    async with ACMS("bytes", open_storage(f"sqlite:///{folder}/bytes-acms.db"), None) as session:
        for batch in range(0, messages, 1000):
            await session.ingest_many(
                [{"role": "user", "content": c} for c in contents[batch : batch + 1000]]
            )
    raw = (folder / "bytes-raw.db").stat().st_size / messages
    ours = (folder / "bytes-acms.db").stat().st_size / messages
    return {"raw": raw, "acms": ours, "over raw": ours - raw}


async def main() -> None:
    """Run what was asked for and print it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="fewer rounds, histories up to 10,000")
    parser.add_argument(
        "--dir", default=None, help="folder on the disk to measure; default: the temporary folder"
    )
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rounds, largest = (150, 10_000) if options.quick else (1_000, 100_000)
    report: dict[str, Any] = {
        "date": datetime.now(UTC).date().isoformat(),
        "machine": f"{os.cpu_count()} CPUs, {platform.system()}, Python {platform.python_version()}",
    }
    with tempfile.TemporaryDirectory(dir=options.dir) as name:
        folder = Path(name)
        report["one by one, 1,000 messages before (us)"] = await one_by_one(folder, rounds, 1_000)
        report["growth: messages before (us)"] = await growth(folder, rounds, (100, largest))
        for contexts in (1, 64):
            runs: list[dict[str, float]] = []
            for run in range(3):
                place = folder / f"run-{contexts}-{run}"
                place.mkdir()
                ours = await many_tasks(place, 4_000 if options.quick else 20_000, contexts)
                runs.append(
                    {**ours, **await many_tasks_peer(place, 1_000 if options.quick else 4_000, contexts)}
                )
            report[f"64 tasks, {contexts} sessions (messages/s)"] = {
                system: statistics.median(run[system] for run in runs) for system in runs[0]
            }
        report["bytes a message, text only"] = await disk(folder, 10_000)
    single = report["one by one, 1,000 messages before (us)"]
    ours = single["acms"]["p50"]
    report["ratios"] = {
        "over raw (us)": ours - single["raw"]["p50"],
        "to raw in a thread": ours / single["raw in a thread"]["p50"],
    }
    sizes = list(report["growth: messages before (us)"].values())
    report["ratios"]["longest to shortest"] = sizes[-1]["p50"] / sizes[0]["p50"]
    if "openai-agents" in single:
        report["ratios"]["to openai-agents"] = ours / single["openai-agents"]["p50"]
        for contexts in (1, 64):
            rates = report[f"64 tasks, {contexts} sessions (messages/s)"]
            report["ratios"][f"64 tasks, {contexts} sessions, to openai-agents"] = (
                rates["acms"] / rates["openai-agents"]
            )
    else:
        report["openai-agents"] = "not installed, left out"
    if options.json:
        print(json.dumps(report, indent=2))
        return
    for title, found in report.items():
        if not isinstance(found, dict):
            print(f"{title}: {found}")
            continue
        print(f"\n{title}")
        for row, value in found.items():
            shown = (
                "  ".join(f"{k} {v:8.1f}" for k, v in value.items())
                if isinstance(value, dict)
                else f"{value:10.2f}"
            )
            print(f"  {row:<45} {shown}")


if __name__ == "__main__":
    asyncio.run(main())
