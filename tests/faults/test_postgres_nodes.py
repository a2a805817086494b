"""T14: three nodes in quorum commit lose no acknowledged message, whatever happens before the primary is lost.

pytest tests/faults/test_postgres_nodes.py                 one round
pytest -s -m slow tests/faults/test_postgres_nodes.py      twenty, with the time without answers in each
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from contextlib import ExitStack

import pytest

from acms import ACMS, ACMSError
from acms.storage import PostgresStorage
from acms.testing import sound

from ._cluster import Cluster

CONTEXTS, WRITERS, BETWEEN = 4, 8, 40
WAITING = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
ENDED = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'acms'"


class Writers:
    """Sessions that write one message after the other, each until it is acknowledged."""

    def __init__(self, store: PostgresStorage) -> None:
        self._store = store
        #: Context, key and id of what was acknowledged as on two machines, in this order, and when.
        self.acked: list[tuple[str, str, str]] = []
        self.when: list[float] = []
        self.errors = Counter[str]()
        self.weaker = 0
        self.stopped = False

    async def write(self, number: int) -> None:
        name, loop = f"c{number % CONTEXTS}", asyncio.get_running_loop()
        async with ACMS(name, self._store) as session:
            n = 0
            while not self.stopped:
                n += 1
                key = f"{number}-{n}"
                while not self.stopped:
                    try:
                        id = await session.ingest("user", f"text of {key}", idempotency_key=key)
                    except ACMSError as error:
                        assert error.retryable, error
                        self.errors[type(error).__name__] += 1
                        await asyncio.sleep(0.05)
                        continue
                    receipt = session.last_receipt
                    assert receipt is not None
                    self.weaker += receipt.durability != "quorum"
                    self.acked.append((name, key, id))
                    self.when.append(loop.time())
                    break

    async def some(self, count: int = BETWEEN) -> None:
        """Wait until so many more are acknowledged."""
        goal = len(self.acked) + count
        async with asyncio.timeout(300):
            while len(self.acked) < goal:
                await asyncio.sleep(0.01)


async def inject_fault(cluster: Cluster, kind: str, writers: Writers, within: ExitStack) -> None:
    """Inject a fault before the primary is lost; stopped servers go on when `within` ends."""
    primary, (one, other) = cluster.servers[cluster.primary], cluster.standbys
    if kind == "a frozen standby":
        within.enter_context(cluster.frozen([one]))
        await writers.some()  # the other one answers for both
    elif kind == "ended backends":
        await asyncio.to_thread(primary.execute, ENDED)
    elif kind == "frozen standbys and ended waits":
        within.enter_context(cluster.frozen([one, other]))
        for _ in range(4):
            await asyncio.sleep(0.1)
            await asyncio.to_thread(primary.execute, WAITING)
    else:
        cluster.wires[cluster.primary].cut()
        await asyncio.sleep(0.3)
        await asyncio.to_thread(primary.execute, WAITING)


async def run_failovers(kinds: list[str]) -> None:
    """Write, inject a fault, lose the primary, promote, go on: every acknowledged message is there at the end."""
    async with Cluster() as cluster:
        # Off the event loop: the wires to the standbys, for which this waits, are on it.
        url = await asyncio.to_thread(cluster.servers[cluster.primary].create_database)
        database = url.rpartition("/")[2]
        loop = asyncio.get_running_loop()
        async with PostgresStorage(cluster.url(database), durability="quorum", retry_seconds=60) as store:
            writers = Writers(store)
            tasks = [asyncio.create_task(writers.write(number)) for number in range(WRITERS)]
            for round, kind in enumerate(kinds, 1):
                await writers.some()
                lost = cluster.primary
                with ExitStack() as within:
                    await inject_fault(cluster, kind, writers, within)
                    await cluster.lose()
                before, began = len(writers.acked), loop.time()
                await cluster.promote()
                await writers.some()
                print(f"{round}. {kind}: {lost} lost, {writers.when[before] - began:.2f} s without an answer")
                if round < len(kinds):
                    await cluster.rejoin(lost)
            writers.stopped = True
            await asyncio.gather(*tasks)
            await assert_acknowledged(store, writers)


async def assert_acknowledged(store: PostgresStorage, writers: Writers) -> None:
    """Assert that each acknowledged message is there once, under its id, in logs without a gap."""
    lost: list[str] = []
    for number in range(CONTEXTS):
        name = f"c{number}"
        entries = await sound(store, (await store.context(name)).id)
        keys = Counter(entry.key for entry in entries)
        assert keys.most_common(1)[0][1] == 1, "written twice"
        there = {(name, entry.key, entry.id) for entry in entries}
        lost += [key for of, key, id in writers.acked if of == name and (of, key, id) not in there]
    print(f"{len(writers.acked)} acknowledged, {len(lost)} lost; on the way {dict(writers.errors)}")
    assert lost == []
    assert writers.weaker == 0, "answered without a second machine"


@pytest.mark.faults
async def test_t14_a_failover_of_three_nodes_loses_nothing_acknowledged() -> None:
    await run_failovers(["a cut link"])


@pytest.mark.slow
async def test_t14_twenty_failovers_of_three_nodes_lose_nothing_acknowledged() -> None:
    kinds = ["a frozen standby", "ended backends", "frozen standbys and ended waits", "a cut link"] * 5
    random.Random(7).shuffle(kinds)
    await run_failovers(kinds)
