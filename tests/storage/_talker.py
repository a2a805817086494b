"""Random talk for the history checker, also as a process of its own: python -m tests.storage._talker PATH SEED OPS."""

from __future__ import annotations

import asyncio
import random
import sys

from acms.model import Append, Draft
from acms.ports import StorageBackend
from acms.testing.logs import create_log, draft_message, fork_log
from tests.faults._work import open_at
from tests.storage.suite.checker import RecordingStorage, dump_history

TASKS = 6
TALKS = 3
MOST_FORKS = 12


async def run_operations(store: RecordingStorage, seed: int, operations: int) -> None:
    """Ask for some thousand things from several tasks: appends, retries, reads at the head and in the past, forks."""
    known = [await create_log(store, f"talk-{n}") for n in range(TALKS)]
    sent: list[tuple[str, tuple[Draft, ...]]] = []
    left = operations

    async def task(number: int) -> None:
        nonlocal left
        rng = random.Random(f"{seed}/{number}")
        own = made = 0
        while left > 0:
            left -= 1
            context = rng.choice(known)
            dice = rng.random()
            if dice < 0.45:
                ops: list[Append] = []
                for target in rng.sample(known, min(len(known), rng.choice((1, 1, 1, 2)))):
                    own += 1
                    keys = [f"{seed}.{number}.{own}.{n}" for n in range(rng.choice((1, 1, 1, 3)))]
                    drafts = tuple(
                        draft_message(f"this is {key}", key=key if rng.random() < 0.7 else None)
                        for key in keys
                    )
                    ops.append(
                        Append(context=target.id, drafts=drafts, tail={"own": own} if own % 2 else None)
                    )
                    if all(draft.key for draft in drafts):  # others may repeat it while it is under way
                        sent.append((target.id, drafts))
                await store.append(ops)
            elif dice < 0.55 and sent:
                target, drafts = rng.choice(sent)
                await store.append([Append(context=target, drafts=drafts)])
            elif dice < 0.6:
                await store.head(context.id)
            elif dice < 0.61 and len(known) < MOST_FORKS:
                at = None if rng.random() < 0.5 else rng.randint(0, (await store.head(context.id)).version)
                made += 1  # a key of its own: two tasks that used the same one would get the same fork
                known.append(await fork_log(store, context, at, key=f"fork-{seed}-{number}-{made}"))
            elif dice < 0.8:
                await store.read(context.id, newest=rng.randint(1, 12))
            else:
                version = (await store.head(context.id)).version
                at = rng.randint(0, version)
                await store.read(context.id, at=at, after=max(0, at - rng.randint(1, 12)))
            if rng.random() < 0.2:
                await asyncio.sleep(0)  # lets the others in, also on a store that never waits

    await asyncio.gather(*(task(number) for number in range(TASKS)))
    for context in known:
        await store.read(context.id)


async def record_history(inner: StorageBackend, seed: int, operations: int) -> RecordingStorage:
    """Return a recorder with the history of a talk."""
    store = RecordingStorage(inner)
    await run_operations(store, seed, operations)
    return store


async def main(path: str, seed: str, operations: str) -> None:
    """Talk and write the history to stdout."""
    async with open_at(path, durability="relaxed") as store:
        print("ready", flush=True)
        sys.stdin.readline()
        found = await record_history(store, int(seed), int(operations))
        sys.stdout.writelines(dump_history(found.history))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
