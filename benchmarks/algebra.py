"""Forks, time travel and compaction: what they cost, beside copying rows and LangGraph's SqliteSaver.

    python benchmarks/algebra.py                   # a log of a million messages, several minutes
    python benchmarks/algebra.py --messages 20000  # a shorter look

Needs `pip install langgraph langgraph-checkpoint-sqlite` for the peer; without them its lines are left out.

All durable (synchronous=FULL) and interleaved: one operation of every system per round, medians. A fork is measured at
the head of a log of 100 messages and of a long one, beside one append to the same file and one raw commit of a row on a
thread of its own. Copying is `INSERT … SELECT` of 10,000 messages with the same columns. Windows hold 4,000 tokens,
are read at random versions without a cache, from a log that was never forked and from forks of depth 1, 8 and 64 whose
segments share the log evenly. LangGraph's thread has 10,000 messages in one channel; a fork is an update of a past
checkpoint, a past version is read with `get_state`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import apsw
from ingest import text

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.support.agentlog import STYLES, agent_log

from acms import ACMS, ACMSConfig, CacheConfig, WorkerConfig, open_storage

PEER = 10_000
"""Messages of the peer's thread, and of the rows that are copied."""
QUIET = ACMSConfig(cache=CacheConfig(enabled=False), worker=WorkerConfig(enabled=False))

Samples = dict[str, list[float]]


def folded(samples: Samples) -> dict[str, dict[str, float]]:
    """Return median and p95 in microseconds."""
    found: dict[str, dict[str, float]] = {}
    for name, times in samples.items():
        ordered = sorted(times)
        p95 = ordered[min(len(ordered) - 1, int(len(ordered) * 0.95))]
        found[name] = {"p50": statistics.median(ordered) * 1e6, "p95": p95 * 1e6}
    return found


async def timed(samples: Samples, name: str, work: Callable[[], Awaitable[Any]]) -> None:
    """Run something once and note how long it took."""
    start = time.perf_counter()
    await work()
    samples.setdefault(name, []).append(time.perf_counter() - start)


async def filled(session: ACMS, count: int, rng: random.Random) -> None:
    """Append messages until a session has so many."""
    for start in range(0, count, 1000):
        size = min(1000, count - start)
        await session.ingest_many([{"role": "user", "content": text(rng)} for _ in range(size)])


class Copied:
    """Forking by copying rows, the alternative: the same columns, one statement, one commit."""

    def __init__(self, path: Path, source: Path, base: int) -> None:
        self.connection = apsw.Connection(str(path))
        self.connection.pragma("journal_mode", "wal")
        self.connection.pragma("synchronous", "full")
        self.connection.execute("ATTACH ? AS source", (str(source),))
        (sql,) = self.connection.execute(
            "SELECT sql FROM source.sqlite_master WHERE name = 'entries'"
        ).fetchall()[0]
        self.connection.execute(sql)
        columns = [row[1] for row in self.connection.execute("PRAGMA source.table_info(entries)")][1:]
        self.names = ", ".join(columns)
        self.base = base
        self.forks = 0

    def fork(self) -> None:
        """Copy the first rows of the source under a new context."""
        self.forks += 1
        self.connection.execute(
            f"INSERT INTO main.entries (row, {self.names}) SELECT row + ?, {self.names} FROM source.entries "  # noqa: S608
            "WHERE row > ? AND row <= ?",
            (self.forks << 32, self.base, self.base + PEER),
        )


class Raw:
    """One row, one commit, on a thread: what durability costs by itself."""

    def __init__(self, path: Path) -> None:
        self.connection = apsw.Connection(str(path))
        self.connection.pragma("journal_mode", "wal")
        self.connection.pragma("synchronous", "full")
        self.connection.execute("CREATE TABLE rows (id INTEGER PRIMARY KEY, text TEXT)")

    def commit(self) -> None:
        """Insert a row of the size of a fork."""
        self.connection.execute("INSERT INTO rows (text) VALUES (?)", ("x" * 300,))


class Peer:
    """A LangGraph thread with one channel of messages."""

    def __init__(self, path: Path) -> None:
        from langchain_core.messages import HumanMessage
        from langgraph.checkpoint.sqlite import SqliteSaver
        from langgraph.graph import START, MessagesState, StateGraph

        self.path = path
        self.message = HumanMessage
        self.connection = sqlite3.connect(path, check_same_thread=False)
        self.connection.execute("PRAGMA synchronous=FULL")
        builder = StateGraph(MessagesState)
        builder.add_node("agent", lambda state: {})
        builder.add_edge(START, "agent")
        self.graph = builder.compile(checkpointer=SqliteSaver(self.connection))
        self.config: Any = {"configurable": {"thread_id": "long"}}
        self.states: list[Any] = []

    def fill(self, rng: random.Random) -> None:
        """Give the thread its messages, and a few checkpoints behind them."""
        rows = [self.message(text(rng), id=str(n)) for n in range(PEER)]
        self.graph.update_state(self.config, {"messages": rows}, as_node="agent")
        for _ in range(5):
            self.append(rng)

    def append(self, rng: random.Random) -> None:
        """Add one message as a new checkpoint."""
        found = self.graph.update_state(self.config, {"messages": [self.message(text(rng))]}, as_node="agent")
        self.states.append(found)

    def size(self) -> int:
        """Return the bytes on disk."""
        self.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return self.path.stat().st_size

    def fork(self, rng: random.Random) -> None:
        """Go on from a past checkpoint."""
        self.graph.update_state(rng.choice(self.states[:5]), {"messages": []}, as_node="agent")

    def read(self, rng: random.Random) -> None:
        """Read a past checkpoint."""
        assert len(self.graph.get_state(rng.choice(self.states[:5])).values["messages"]) >= PEER


def peer_of(path: Path, rng: random.Random) -> Peer | None:
    """Return a filled thread of the peer, if it is installed."""
    try:
        peer = Peer(path)
    except ImportError:
        return None
    peer.fill(rng)
    return peer


def size_of(path: Path) -> int:
    """Return the bytes of a database after everything was moved into it."""
    connection = apsw.Connection(str(path))
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    return path.stat().st_size


async def forks(folder: Path, options: argparse.Namespace, peer: Peer | None) -> dict[str, Any]:
    """Measure forks."""
    rng = random.Random(7)
    samples: Samples = {}
    path = folder / "forks.db"
    async with open_storage(f"sqlite:///{path}") as storage:
        short, long = ACMS("short", storage, None, config=QUIET), ACMS("long", storage, None, config=QUIET)
        await filled(short, 100, rng)
        await filled(long, options.messages, rng)
        deep = short
        for n in range(15):  # a chain of forks: the next one has depth 16
            await deep.ingest("user", "one more")
            deep = await deep.fork(session_id=f"deep-{n}")
        await deep.ingest("user", "one more")
        raw = Raw(folder / "raw.db")
        bases = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
        (base,) = bases.execute(
            "SELECT ref << 32 FROM contexts WHERE key = ?", ("long" if options.messages >= PEER else "short",)
        ).fetchall()[0]
        bases.close()
        copied = Copied(folder / "copied.db", path, base)
        for n in range(options.rounds):
            await timed(samples, "raw commit", lambda: asyncio.to_thread(raw.commit))
            await timed(samples, "one append", lambda: short.ingest("user", text(rng)))
            await timed(samples, "fork of 100", lambda n=n: short.fork(session_id=f"s{n}"))
            await timed(samples, f"fork of {options.messages:,}", lambda n=n: long.fork(session_id=f"l{n}"))
            await timed(samples, "fork at depth 16", lambda n=n: deep.fork(session_id=f"d{n}"))
            if n % 10 == 0:
                await timed(samples, f"copying {PEER:,} rows", lambda: asyncio.to_thread(copied.fork))
                if peer is not None:
                    await timed(samples, "LangGraph fork", lambda: asyncio.to_thread(peer.fork, rng))
        before = size_of(path)
        for n in range(2000):
            await deep.fork(session_id=f"sized-{n}")
        sizes = {"bytes of a fork at depth 16": (size_of(path) - before) / 2000}
        for one in (short, long):
            await one.close()
    return {**folded(samples), **sizes}


async def windows(folder: Path, options: argparse.Namespace, peer: Peer | None) -> dict[str, Any]:
    """Measure windows at random versions."""
    rng = random.Random(9)
    samples: Samples = {}
    count = 20_000
    path = folder / "windows.db"
    depths = (1, 8, 64)
    async with open_storage(f"sqlite:///{path}") as storage:
        plain = ACMS("plain", storage, None, config=QUIET)
        await filled(plain, count, rng)
        sessions = {0: plain}
        for depth in depths:
            session = ACMS(f"fork-{depth}", storage, None, config=QUIET)
            for n in range(depth + 1):
                await filled(session, count // (depth + 1), rng)
                if n < depth:
                    session = await session.fork(session_id=f"fork-{depth}-{n}")
            sessions[depth] = session
        for _ in range(options.rounds * 4):
            version = rng.randint(200, count // 65 * 65)
            for depth, session in sessions.items():
                name = f"depth {depth}" if depth else "never forked"
                await timed(samples, name, lambda s=session, v=version: s.at(v).window(4000))
        if peer is not None:
            for _ in range(max(3, options.rounds // 10)):
                await timed(samples, "LangGraph get_state", lambda: asyncio.to_thread(peer.read, rng))
        for session in sessions.values():
            await session.close()
    return folded(samples)


async def sizes(folder: Path, peer: Peer | None) -> dict[str, float]:
    """Measure bytes a turn behind 10,000 turns."""
    rng = random.Random(11)
    found: dict[str, float] = {}
    path = folder / "sizes.db"
    async with open_storage(f"sqlite:///{path}") as storage:
        session = ACMS("one", storage, None, config=QUIET)
        await filled(session, PEER, rng)
        before = size_of(path)
        for _ in range(1000):
            await session.ingest("user", text(rng))
        found["bytes a turn"] = (size_of(path) - before) / 1000
        await session.close()
    if peer is not None:
        before = peer.size()
        for _ in range(5):
            peer.append(rng)
        found["LangGraph bytes a turn"] = (peer.size() - before) / 5
    return found


async def compacting(folder: Path) -> dict[str, float]:
    """Measure one compaction of 10,000 messages of each style, by the in-process worker, median of three."""
    config = ACMSConfig(cache=CacheConfig(enabled=False))
    found: dict[str, float] = {}
    for style in STYLES:
        turns, _ = agent_log(random.Random(f"{style} speed"), style=style, turns=PEER, tokens=60)
        path = folder / f"compact-{style}.db"
        async with ACMS("long", open_storage(f"sqlite:///{path}"), None, config=config) as session:
            for start in range(0, PEER, 1000):
                part = turns[start : start + 1000]
                await session.ingest_many([{"role": "user", "content": turn.text} for turn in part])
            seconds: list[float] = []
            for _ in range(3):
                began = time.perf_counter()
                done = await session.wait(await session.compact())
                seconds.append(time.perf_counter() - began)
                assert done is not None
                found[f"{style}: tokens before"] = done.tokens_before
                found[f"{style}: tokens after"] = done.tokens_after
                await session.undo(done.version)
            found[f"{style}: seconds"] = statistics.median(seconds)
    return found


async def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--only", choices=("compaction",), help="leave out the rest")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        report: dict[str, Any] = {}
        if options.only is None:
            peer = peer_of(folder / "peer.db", random.Random(3))
            report["forks"] = await forks(folder, options, peer)
            report["windows of 4,000 tokens at a random version"] = await windows(folder, options, peer)
            report["bytes"] = await sizes(folder, peer)
        report["compaction of 10,000 messages"] = await compacting(folder)
    if options.json:
        print(json.dumps(report, indent=2))
        return
    for title, rows in report.items():
        print(title)
        for what, found in rows.items():
            if isinstance(found, dict):
                print(f"  {what:<36} p50 {found['p50']:12,.0f} us   p95 {found['p95']:12,.0f} us")
            else:
                print(f"  {what:<36} {found:12,.2f}")


if __name__ == "__main__":
    asyncio.run(main())
