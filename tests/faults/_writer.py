"""A process to be killed, started by `_process.py`.

write WHERE NOTES NAME SEED   append for ever; NOTES gets "try" before and "ack" after each append
open                          per line of stdin: open that file, write one message, answer "ok"
die PATH NTH                  open PATH and kill itself at the n-th call that changes a file
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
from itertools import count

from acms import ACMSError
from acms.storage import SQLiteStorage

from ._vfs import FaultyVFS
from ._work import append_keys, append_of_keys, open_at, shared_contexts
from ._work import draw_batch as some

CONTEXTS = 3
TASKS = 4


async def append_until_killed(path: str, notes: str, name: str, seed: str) -> None:
    """Append from several tasks until killed."""
    storage = open_at(path)
    # One write() per line: what the kernel has survives SIGKILL, as the pages of the database do.
    file = os.open(notes, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    ids = await shared_contexts(storage, CONTEXTS)

    async def task(number: int) -> None:
        rng = random.Random(f"{seed}/{name}/{number}")
        for n in count():
            chosen = rng.sample(ids, rng.choice((1, 1, 2)))
            keys = [some(f"{name}-{seed}-{number}-{n}-{i}", rng) for i in range(len(chosen))]
            ops = [append_of_keys(context, batch) for context, batch in zip(chosen, keys, strict=True)]
            for context, batch in zip(chosen, keys, strict=True):
                os.write(file, f"try {context} {','.join(batch)}\n".encode())
            results = await storage.append(ops)
            for context, batch, result in zip(chosen, keys, results, strict=True):
                if isinstance(result, ACMSError):
                    os.write(file, f"error {context} {result!r}\n".encode())
                    continue
                rows = zip(range(result.versions[0], result.versions[1] + 1), result.ids, batch, strict=True)
                lines = [f"ack {context} {version} {id} {key}\n" for version, id, key in rows]
                os.write(file, "".join(lines).encode())
            if n == 0 and number == 0:
                print("ready", flush=True)

    await asyncio.gather(*(task(number) for number in range(TASKS)))


async def reopen_files() -> None:
    """Open one file after another, each at the moment a line names it."""
    for line in sys.stdin:
        path, key = line.split()
        storage = SQLiteStorage(path)
        try:
            (context,) = await shared_contexts(storage, 1)
            await append_keys(storage, context, key)
            answer = "ok"
        except ACMSError as error:
            answer = repr(error)
        finally:
            await storage.aclose()
        print(answer, flush=True)


async def open_and_die(path: str, nth: str) -> None:
    """Open a file and be killed while doing so; say so when the opening was over before."""
    faults = FaultyVFS()
    changing = {"open", "write", "sync", "truncate", "delete"}
    faults.arm(changing, int(nth), lambda: os.kill(os.getpid(), signal.SIGKILL))
    storage = SQLiteStorage(path)
    await storage.integrity()
    faults.disarm()
    print("survived", flush=True)
    await storage.aclose()


if __name__ == "__main__":
    what, *arguments = sys.argv[1:]
    asyncio.run({"write": append_until_killed, "open": reopen_files, "die": open_and_die}[what](*arguments))
