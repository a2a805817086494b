"""A process that is killed in the middle of a compaction: `_compactor.py WHERE LEASE`, started by `_process.py`.

It prints a line once its summarizer was asked, which never answers.
"""

from __future__ import annotations

import asyncio
import sys

from acms import ACMS, ACMSConfig, WorkerConfig, open_storage
from acms.ports import SummaryRequest

MODEL = "m-1"


class Silent:
    """A summarizer that never answers."""

    model = MODEL

    async def summarize(self, request: SummaryRequest) -> str:
        """Say that it was asked, and wait."""
        print("asked", flush=True)
        await asyncio.Event().wait()
        raise AssertionError


async def main(url: str, lease: str) -> None:
    """Talk, ask for a compaction, and wait for it."""
    config = ACMSConfig(worker=WorkerConfig(lease_seconds=float(lease)))
    session = ACMS("talk", open_storage(url), None, summarizer=Silent(), config=config)
    for number in range(40):
        await session.ingest("user", f"On day {number} the team looked at part {number} of the old service.")
    await session.wait(await session.compact())


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
