"""A worker process to be killed, started by `_process.py`.

work WHERE LEASE ATTEMPTS   work off the jobs of a file or a URL until killed or told to stop by SIGTERM
once WHERE LEASE ATTEMPTS   work off the due jobs, and end

The job says what happens: "effect" appends one entry, after a few milliseconds; "zombie" does so too, but its first
attempt is out for longer than its lease and blocks its renewal; "poison" kills its own process.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
import time

from acms import ACMSError, RetryConfig, WorkerConfig
from acms.jobs.worker import Worker
from acms.model import Append, Draft, Lease
from acms.ports import StorageBackend

from ._work import NOW, open_at


async def append_effect(storage: StorageBackend, lease: Lease) -> None:
    """Append the one entry of a job; it has no key, so nothing but the lease keeps it from being there twice."""
    await asyncio.sleep(random.random() / 100)
    draft = Draft(content=lease.job.dedupe, created_at=NOW, tokens=1)
    (result,) = await storage.append([Append(context=lease.job.context, drafts=(draft,), finish=lease)])
    await asyncio.sleep(random.random() / 200)
    if isinstance(result, ACMSError):
        raise result


async def outlive_lease(storage: StorageBackend, lease: Lease) -> None:
    """Outlive the lease with the whole process, then try to have the effect all the same."""
    if lease.attempt == 1:
        time.sleep(1.5 * (lease.until - lease.job.updated_at).total_seconds())
    await append_effect(storage, lease)


async def kill_worker(storage: StorageBackend, lease: Lease) -> None:
    """Kill the worker, after a note that it was run."""
    print("poisoned", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)


async def main(what: str, path: str, lease: str, attempts: str) -> None:
    """Work."""
    storage = open_at(path)
    worker = Worker(
        storage,
        {"effect": append_effect, "zombie": outlive_lease, "poison": kill_worker},
        config=WorkerConfig(lease_seconds=float(lease), max_attempts=int(attempts), poll_seconds=0.05),
        retry=RetryConfig(base_delay=0.05),
        concurrency=2,
    )
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, worker.stop)
    print("ready", flush=True)
    await (worker.run() if what == "work" else worker.drain())
    await storage.aclose()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
