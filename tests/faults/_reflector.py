"""A worker process that reflects, to be killed, started by `_process.py`.

work WHERE LEASE CALLS   reflect until killed or told to stop by SIGTERM; each call of the reflector is a line in CALLS

The reflector learns "A is B" of every turn that says so; of the namespace when it begins with "we:".
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys

from acms import ACMSConfig, ReflectionConfig, RetryConfig, WorkerConfig
from acms.facts.job import make_reflection_handler
from acms.jobs.worker import Worker
from acms.ports import Proposal, Reflection, ReflectionRequest

from ._work import open_at

CONFIG = ReflectionConfig(max_turns=2, max_active_facts=1000)
"""One episode is read at a time."""


class Chars:
    """Counts characters."""

    name = "chars"

    def count(self, text: str) -> int:
        """Return how many there are."""
        return len(text)


class Learner:
    """Learns plain statements."""

    model = "learner"

    def __init__(self, calls: str) -> None:
        self.calls = os.open(calls, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    async def reflect(self, request: ReflectionRequest) -> Reflection:
        """Return one proposal a turn, after a few milliseconds."""
        os.write(self.calls, b"call\n")
        await asyncio.sleep(random.random() / 100)
        return Reflection(
            proposals=tuple(
                Proposal(
                    content=turn.text,
                    subject=turn.text.partition(" is ")[0],
                    attribute="value",
                    value=turn.text.partition(" is ")[2],
                    cardinality="one",
                    scope="namespace" if turn.text.startswith("we:") else "session",
                    sources=(turn.version,),
                )
                for turn in request.turns
            )
        )


async def main(what: str, path: str, lease: str, calls: str) -> None:
    """Work."""
    storage = open_at(path)
    config = ACMSConfig(reflection=CONFIG)
    worker = Worker(
        storage,
        {"reflect:learner": make_reflection_handler(config, Learner(calls), {"chars": Chars()})},
        config=WorkerConfig(lease_seconds=float(lease), max_attempts=10_000, poll_seconds=0.05),
        retry=RetryConfig(base_delay=0.05, max_delay=0.2),
        concurrency=2,
    )
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, worker.stop)
    print("ready", flush=True)
    await (worker.run() if what == "work" else worker.drain())
    await storage.aclose()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
