"""What the local embedder costs: the writer, whose acknowledgement does not wait for it, and a message, in vectors.

    python benchmarks/embedding.py            the median of `ingest` on SQLite, with the local embedder and without

Blocks of messages go in turns to a session with `embedder="auto"` and to one with None, on files of their own; before
each block the vectors of the one before are waited for. "Turn": the messages of one turn, right after each other;
"talk": with a pause between two, into which the making of vectors falls; "import": so many that vectors are made
meanwhile. Then texts of two lengths are embedded alone and in batches, on one thread and on two. The goal for turn and
talk is a ratio of 1.1 at most.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from pathlib import Path
from statistics import median, quantiles
from time import perf_counter

from acms import ACMS, ACMSConfig, open_storage
from acms.providers import LocalEmbedder

SHORT = "Decision: the orders service runs on PostgreSQL, we need transactions. Ticket ORD-{} has the plan for March."
CONFIG = ACMSConfig()
PAUSE = 0.3
"""Seconds between two messages of a talk."""
LONG = 3_000
"""Messages of an import: they take longer than appends can hold up the vectors."""


async def block(session: ACMS, start: int, size: int, pause: float) -> list[float]:
    """Ingest some messages and return the seconds of each."""
    took: list[float] = []
    for number in range(start, start + size):
        begin = perf_counter()
        await session.ingest("user" if number % 2 else "assistant", SHORT.format(number))
        took.append(perf_counter() - begin)
        if pause:
            await asyncio.sleep(pause)
    return took


async def ingest(folder: Path, kind: str, blocks: int, size: int, pause: float = 0.0) -> None:
    """Print the medians of both sessions, written in turns."""
    took: dict[str, list[float]] = {"auto": [], "none": []}
    ratios: list[float] = []
    url = f"sqlite:///{folder}/{kind}"
    async with (
        ACMS("auto", open_storage(f"{url}-auto.db"), "auto", config=CONFIG) as auto,
        ACMS("none", open_storage(f"{url}-none.db"), None, config=CONFIG) as none,
    ):
        sessions = {"auto": auto, "none": none}
        for number in range(-1 if blocks > 1 else 0, blocks):  # the first round is a warm-up
            found: dict[str, float] = {}
            for name in sorted(sessions, reverse=number % 2 == 0):
                some = await block(sessions[name], number * size, size, pause)
                found[name] = median(some)
                if number >= 0:
                    took[name] += some
                if blocks > 1:
                    await auto.wait_pending()
            if number >= 0:
                ratios.append(found["auto"] / found["none"])
        stats = await auto.get_session_stats()
        print(f"{kind}: {blocks} blocks of {size} in turns, tier {stats.tier!r}")
    for name, some in took.items():
        p95 = quantiles(some, n=20)[-1]
        print(f"  {name}: p50 {1000 * median(some):.3f} ms, p95 {1000 * p95:.3f} ms")
    ratio = median(took["auto"]) / median(took["none"])
    print(f"  ratio of p50: {ratio:.3f}; of each block, median: {median(ratios):.3f}")


async def texts() -> None:
    """Print what a text costs by its length, alone and in a batch, on one thread and on two."""
    sentence = (
        "The orders service runs on PostgreSQL because we need transactions, and we expect two terabytes. "
    )
    for length in (137, 835):
        some = [(f"{number} " + sentence * 9)[:length] for number in range(32)]
        for threads in (1, 2):
            embedder = LocalEmbedder(threads)
            await embedder.embed(some[:1])
            alone, batch = [], []
            for _ in range(5):
                begin = perf_counter()
                await embedder.embed(some[:1])
                alone.append(perf_counter() - begin)
                begin = perf_counter()
                await embedder.embed(some)
                batch.append((perf_counter() - begin) / len(some))
            print(
                f"{length} characters, {threads} thread{'s'[: threads - 1]}: "
                f"alone {1000 * min(alone):.1f} ms, in a batch of {len(some)} {1000 * min(batch):.1f} ms each"
            )


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--blocks", type=int, default=12, help="blocks of each session")
    parser.add_argument("--size", type=int, default=60, help="messages of a block")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        await ingest(Path(folder), "turn", options.blocks, options.size)
        await ingest(Path(folder), "talk", options.blocks, options.size // 4, PAUSE)
        await ingest(Path(folder), "import", 1, LONG)
    await texts()


if __name__ == "__main__":
    asyncio.run(main())
