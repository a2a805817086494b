"""What a process holds and how long a list of sessions takes, without a model.

    python benchmarks/scale.py first                 # memory after the first ingest, step by step
    python benchmarks/scale.py soak --turns 20000    # memory of sessions of twenty messages, one after the other
    python benchmarks/scale.py sessions              # all pages of 100,000 sessions; --url for PostgreSQL
    python benchmarks/scale.py long                  # a log of a million messages, opened by a new process

The soak holds what may be cached to a megabyte each, so that what still grows is no cache that fills. Beside the memory
it prints the objects that Python's collector knows: nothing may grow with the number of sessions. `long` writes the log
once (minutes) and keeps it where `--file` says; then the first recall and the second one are measured.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import random
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

WORDS = "orders table index region latency budget invoice customer deploy rollback cache token queue shard".split()


def resident() -> int:
    """Return the bytes of this process that are in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def held(what: str) -> None:
    """Print the memory of this process."""
    print(f"{what:32} {resident() / 1e6:6.1f} MB, {len(gc.get_objects()):,} objects", flush=True)


async def first(folder: Path, exact: bool) -> None:
    """Ingest one message."""
    held("python, asyncio")
    from acms import ACMS, open_storage
    from acms.providers.tokens import EstimatingTokenCounter

    held("import acms")
    counter = None if exact else EstimatingTokenCounter()
    async with ACMS("s", open_storage(f"sqlite:///{folder}/log.db"), None, token_counter=counter) as session:
        await session.ingest("user", "We use PostgreSQL for orders.")
        held("first ingest")
        await session.recall("which database?", budget=100)
        held("first recall")


async def soak(folder: Path, turns: int) -> None:
    """Talk to one session after the other."""
    from acms import ACMS, ACMSConfig, CacheConfig, open_storage

    draw, storage = random.Random(1), open_storage(f"sqlite:///{folder}/log.db")
    config = ACMSConfig(cache=CacheConfig(max_bytes=1_000_000))
    for number in range(turns // 20):
        async with ACMS(f"s{number}", storage, None, config=config) as session:
            for turn in range(20):
                await session.ingest("user", " ".join(draw.choices(WORDS, k=draw.randrange(5, 60))))
                if turn % 5 == 4:
                    await session.recall(" ".join(draw.choices(WORDS, k=2)), budget=500)
                    await session.messages(draw.choice(WORDS), budget=400)
        if number % (turns // 200) == 0:
            gc.collect()
            held(f"{20 * number:,} turns")
    await storage.aclose()


async def sessions(url: str, most: int) -> None:
    """Make sessions and list all of them, a page of five hundred after the other."""
    from acms import open_storage
    from acms.model import ContextDraft

    now = datetime.now(UTC)
    storage = open_storage(url)
    for start in range(0, most, 1_000):
        drafts = [ContextDraft(key=f"s{start + one}", counter="none", created_at=now) for one in range(1_000)]
        await asyncio.gather(*(storage.create(draft) for draft in drafts))
    began, wall, after, pages, slowest = time.process_time(), time.perf_counter(), None, 0, 0.0
    while True:
        started = time.process_time()
        page = await storage.sessions(after=after, limit=500)
        slowest = max(slowest, time.process_time() - started)
        pages, after = pages + len(page.sessions), page.next_after
        if after is None:
            break
    print(
        f"{pages:,} sessions in {time.process_time() - began:.2f} s of CPU, {time.perf_counter() - wall:.2f} s,"
        f" the slowest page {1e3 * slowest:.1f} ms of CPU"
    )
    await storage.aclose()


async def write_long(file: Path, messages: int) -> None:
    """Write a log of messages of about sixty tokens."""
    from recall import Talk, fill, opened

    async with opened(file, "none") as session:
        await fill(session, Talk(None).messages(messages, sentences=False), messages)
        await session.wait_pending()


async def read_long(file: Path) -> None:
    """Open the log and recall."""
    from acms import ACMS, ACMSConfig, CacheConfig, open_storage
    from acms.providers.tokens import default_counter

    default_counter().count("load the vocabulary")
    config = ACMSConfig(cache=CacheConfig(index_bytes=1 << 33))
    storage = open_storage(f"sqlite:///{file}")
    async with ACMS("warm-up", storage, None, config=config) as session:
        await session.ingest("user", "Imports what a recall needs.")
        await session.recall("imports", token_budget=100)
    before = resident()
    async with ACMS("long", storage, None, config=config) as session:
        for which in ("first", "second"):
            began, wall = time.process_time(), time.perf_counter()
            await session.recall("bakolu tizi revo gapu nalo?", token_budget=4000)
            used = time.process_time() - began
            print(f"{which} recall {time.perf_counter() - wall:.2f} s, {used:.2f} s of CPU", flush=True)
        count = (await session.get_session_stats()).messages
        gc.collect()
        grown = resident() - before
        print(f"{count:,} messages, {grown / count:.0f} bytes of memory each", flush=True)
    await storage.aclose()


def long(file: Path, messages: int) -> None:
    """Write a long log unless it is there, and read it in another process."""
    for step in ("write", "read"):
        if step == "read" or not file.exists():
            command = [
                sys.executable,
                __file__,
                "long",
                "--step",
                step,
                "--file",
                file,
                "--messages",
                str(messages),
            ]
            subprocess.run(command, check=True)


def main() -> None:
    """Measure what is asked for, in a folder that is removed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("what", choices=("first", "soak", "sessions", "long"))
    parser.add_argument("--turns", type=int, default=20_000)
    parser.add_argument("--sessions", type=int, default=100_000)
    parser.add_argument("--url", help="an empty store for the sessions; a file of its own when left out")
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--file", type=Path, help="where the long log is kept")
    parser.add_argument("--step", choices=("write", "read"), help=argparse.SUPPRESS)
    parser.add_argument(
        "--estimate", action="store_true", help="count with EstimatingTokenCounter, which has no table"
    )
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if given.what == "first":
            asyncio.run(first(folder, not given.estimate))
        elif given.what == "soak":
            asyncio.run(soak(folder, given.turns))
        elif given.what == "sessions":
            asyncio.run(sessions(given.url or f"sqlite:///{folder}/log.db", given.sessions))
        elif given.step == "write":
            asyncio.run(write_long(given.file, given.messages))
        elif given.step == "read":
            asyncio.run(read_long(given.file))
        else:
            long(given.file or folder / "long.db", given.messages)


if __name__ == "__main__":
    main()
