"""What a process holds and how long a list of sessions takes, without a model.

    python benchmarks/scale.py first                 # memory after the first ingest, step by step
    python benchmarks/scale.py soak --turns 20000    # memory of sessions of twenty messages, one after the other
    python benchmarks/scale.py sessions              # all pages of 100,000 sessions

The soak holds what may be cached to a megabyte each, so that what still grows is no cache that fills. Beside the memory
it prints the objects that Python's collector knows: nothing may grow with the number of sessions.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import random
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

import psutil

WORDS = "orders table index region latency budget invoice customer deploy rollback cache token queue shard".split()
PROCESS = psutil.Process()


def held(what: str) -> None:
    """Print the memory of this process."""
    print(
        f"{what:32} {PROCESS.memory_info().rss / 1e6:6.1f} MB, {len(gc.get_objects()):,} objects", flush=True
    )


async def first(folder: Path, exact: bool) -> None:
    """Ingest one message."""
    held("python, asyncio, psutil")
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


async def sessions(folder: Path, most: int) -> None:
    """Make sessions and list all of them, a page of five hundred after the other."""
    from acms import open_storage
    from acms.model import ContextDraft

    now = datetime.now(UTC)
    storage = open_storage(f"sqlite:///{folder}/log.db")
    for start in range(0, most, 1_000):
        drafts = [ContextDraft(key=f"s{start + one}", counter="none", created_at=now) for one in range(1_000)]
        await asyncio.gather(*(storage.create(draft) for draft in drafts))
    began, after, pages, slowest = time.process_time(), None, 0, 0.0
    while True:
        started = time.process_time()
        page = await storage.sessions(after=after, limit=500)
        slowest = max(slowest, time.process_time() - started)
        pages, after = pages + len(page.sessions), page.next_after
        if after is None:
            break
    print(
        f"{pages:,} sessions in {time.process_time() - began:.2f} s, the slowest page {1e3 * slowest:.1f} ms"
    )
    await storage.aclose()


def main() -> None:
    """Measure what is asked for, in a folder that is removed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("what", choices=("first", "soak", "sessions"))
    parser.add_argument("--turns", type=int, default=20_000)
    parser.add_argument("--sessions", type=int, default=100_000)
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
        else:
            asyncio.run(sessions(folder, given.sessions))


if __name__ == "__main__":
    main()
