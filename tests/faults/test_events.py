"""Readers of events and of webhooks, while the processes that tell them are killed.

pytest -m faults tests/faults/test_events.py      the long run: 30 kills, then 20, then 20
"""

from __future__ import annotations

import asyncio
import json
import random
import threading
import time
from collections.abc import Callable, Coroutine
from datetime import timedelta
from http.server import BaseHTTPRequestHandler
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from acms import open_storage
from acms.events.webhooks import Webhooks
from acms.model import Append, Context, Done, Failed, JobDraft, Receipt
from acms.ports import StorageBackend
from acms.results import LogEvent
from acms.sync import Client
from acms.testing.logs import append_drafts, create_log, draft_message
from tests.events.receiver import OK, Receiver, running_receiver

from ._process import finish_process, start_python
from ._service import Crowd, Service, create_contexts, read_messages, running_service


class Reader:
    """Follows a log in a thread of its own, by a client that is never told of a kill."""

    def __init__(self, where: Service, context: str) -> None:
        self._url, self._context = where.url, context
        self._ends = threading.Event()
        self.found: list[LogEvent] = []
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        with Client(self._url) as client:
            for event in client.session(self._context).events():
                self.found.append(event)
                if self._ends.is_set():
                    return

    def versions(self, upto: int) -> list[int]:
        """Return the versions that it was told, once it was told of the last one."""
        ends, told = time.monotonic() + 60, list[int]()
        while time.monotonic() < ends:
            told = [one.entry.version for one in list(self.found) if one.entry is not None]
            if told and told[-1] >= upto:
                return told
            time.sleep(0.02)
        raise AssertionError(f"only {len(told)} of {upto} were told")

    def end(self) -> None:
        """End it with one more message: it must not go on asking for a service that is gone."""
        self._ends.set()
        with Client(self._url) as client:
            client.session(self._context).ingest("user", "That is all.")
        self._thread.join(60)
        assert not self._thread.is_alive()


def kill_streaming_service(path: Path, kills: int) -> None:
    """Kill a service that streams again and again: messages are stored once, and each reader gets each one once."""
    rng = random.Random(kills)
    with running_service(f"sqlite:///{path}") as one:
        ids = create_contexts(one, 3)
        readers = [Reader(one, id) for id in ids]
        crowd = Crowd(one, ids)
        for _ in range(kills):
            crowd.wait(rng.randrange(20, 60))
            crowd.pause()
            one.kill()
            one.start()
            crowd.resume()
        crowd.wait(20)
        crowd.end()
        for id, reader in zip(ids, readers, strict=True):
            last = len(crowd.ledger[id])
            assert reader.versions(last) == list(range(1, last + 1))
        with one.client() as client:
            for context, told in crowd.ledger.items():
                found = read_messages(client, context)
                assert [(said["content"], said["id"]) for said in found] == told
        assert one.stop() == 0
        one.start()
        for reader in readers:
            reader.end()
    print(f"{kills} kills, {crowd.acknowledged} messages: each was told once to each reader")


def test_a_reader_misses_nothing_and_is_told_nothing_twice_when_the_service_is_killed(tmp_path: Path) -> None:
    kill_streaming_service(tmp_path / "log.db", 1)


@pytest.mark.faults
def test_thirty_kills_leave_no_gap_in_a_stream(tmp_path: Path) -> None:
    kill_streaming_service(tmp_path / "log.db", 30)


async def kill_delivering_worker(url: str, receiver: Receiver, kills: int, count: int) -> None:
    """Kill the worker that delivers again and again; each entry arrives, in order, at most the last one again."""
    rng = random.Random(kills)
    async with open_storage(url) as storage:
        _, secret = await Webhooks(storage).add(receiver.url, private=True)
        ids = [await create_log(storage) for _ in range(3)]
        receiver.answer = answer_slowly(rng)
        worker = start_python("-m", "acms.cli", "worker", "--db", url, "--concurrency", "2")
        try:
            for n in range(count):
                for context in ids:
                    await append_drafts(storage, context, draft_message(str(n)))
                if n % (count // kills) == 0:
                    seen = len(receiver.requests)
                    while len(receiver.requests) < seen + 2:  # in the middle of it
                        await asyncio.sleep(0.005)
                    worker.kill()
                    finish_process(worker)
                    worker = start_python("-m", "acms.cli", "worker", "--db", url, "--concurrency", "2")
            ends = time.monotonic() + 90
            while any(count not in receiver.versions(context.id) for context in ids):
                assert time.monotonic() < ends, "the deliveries do not end"
                await asyncio.sleep(0.05)
        finally:
            worker.kill()
            finish_process(worker)
        again = 0
        for context in ids:
            arrived = receiver.versions(context.id)
            assert sorted(set(arrived)) == list(range(1, count + 1))
            assert all(later in (earlier, earlier + 1) for earlier, later in pairwise(arrived))
            again += len(arrived) - count
        assert receiver.verified(secret)
        await storage.aclose()
    print(f"{kills} kills, {3 * count} entries: each arrived, in the order of its log, {again} of them twice")


def answer_slowly(rng: random.Random) -> Any:
    """Take a few milliseconds for an answer, so that some are under way when a worker is killed."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        time.sleep(rng.random() / 50)
        OK(handler)

    return answer


@pytest.fixture
def _short_leases(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a job of a worker that was killed be taken over soon."""
    monkeypatch.setenv("ACMS_WORKER_LEASE_SECONDS", "0.5")
    monkeypatch.setenv("ACMS_WORKER_POLL_SECONDS", "0.1")


class Jobs:
    """Jobs of some logs that a test takes and ends itself, in every way in which a job can end."""

    def __init__(self, storage: StorageBackend, contexts: list[Context]) -> None:
        self._storage = storage
        self._contexts = contexts
        #: How each job stood at last, by its number, and the version that it appended.
        self.ended: dict[str, tuple[str, int | None]] = {}

    async def one(self, number: int) -> None:
        """Ask for a job and end it."""
        context = self._contexts[number % len(self._contexts)].id
        drafts = (draft_message(str(number)),) if number % 2 else ()
        await self._storage.append(
            [Append(context=context, drafts=drafts, jobs=(JobDraft(kind="tidy", dedupe=str(number)),))]
        )
        (lease,) = await self._storage.claim(["tidy"], lease=timedelta(minutes=5))
        if number % 3 == 0:
            (done,) = await self._storage.append(
                [Append(context=context, drafts=(draft_message("of a job"),), finish=lease)]
            )
            assert isinstance(done, Receipt)
            self.ended[lease.job.id] = ("done", done.head.version)
        elif number % 3 == 1:
            await self._storage.settle(lease, Failed(error="it broke"))
            self.ended[lease.job.id] = ("failed", None)
        else:
            await self._storage.settle(lease, Done(reason="nothing to do"))
            self.ended[lease.job.id] = ("done", None)

    def all_told(self, receiver: Receiver) -> bool:
        """Return whether everything arrived."""
        arrived = {(one["id"], one.get("state")) for one in received_data(receiver)}
        return all((id, state) in arrived for id, (state, _) in self.ended.items())

    def check(self, receiver: Receiver) -> int:
        """Check the order of what arrived; return how often something came again."""
        ranks = {"ready": 0, "running": 1, "done": 2, "failed": 2}
        place: dict[str, int] = {}
        versions: dict[str, set[int]] = {context.id: set() for context in self._contexts}
        again, last = 0, dict[str, Any]()
        for one in received_data(receiver):
            again += last.get(one["contextId"]) == one
            last[one["contextId"]] = one
            if "state" not in one:
                versions[one["contextId"]].add(one["version"])
                continue
            assert place.get(one["id"], 0) <= ranks[one["state"]], f"job {one['id']} was told backwards"
            place[one["id"]] = ranks[one["state"]]
            state, version = self.ended[one["id"]]
            if one["state"] == state and version is not None:
                assert version in versions[one["contextId"]], "a job was told before what it appended"
        return again


def received_data(receiver: Receiver) -> list[dict[str, Any]]:
    """Return what arrived, in order."""
    return [json.loads(body)["data"] for _, body in list(receiver.requests)]


async def kill_notifying_worker(url: str, receiver: Receiver, kills: int, count: int) -> None:
    """Kill the notifying worker again and again; the end of each job is reported after the entries it appended."""
    rng = random.Random(kills)
    worker = ("-m", "acms.cli", "worker", "--db", url, "--concurrency", "2", "--kinds", "webhook")
    async with open_storage(url) as storage:
        _, secret = await Webhooks(storage).add(receiver.url, private=True)
        jobs = Jobs(storage, [await create_log(storage) for _ in range(2)])
        receiver.answer = answer_slowly(rng)
        process = start_python(*worker)
        try:
            for number in range(count):
                await jobs.one(number)
                if number % (count // kills) == 0:
                    seen, ends = len(receiver.requests), time.monotonic() + 60
                    while len(receiver.requests) < seen + 1:
                        assert time.monotonic() < ends, "nothing is delivered"
                        await asyncio.sleep(0.005)
                    process.kill()
                    finish_process(process)
                    process = start_python(*worker)
            ends = time.monotonic() + 120
            while not jobs.all_told(receiver):
                assert time.monotonic() < ends, "the deliveries do not end"
                await asyncio.sleep(0.05)
        finally:
            process.kill()
            finish_process(process)
        again = jobs.check(receiver)
        assert receiver.verified(secret)
        await storage.aclose()
    print(f"{kills} kills, {count} jobs: the end of each arrived, {again} times something twice")


Run: TypeAlias = Callable[[str, Receiver, int, int], Coroutine[Any, Any, None]]


@pytest.mark.usefixtures("_short_leases")
@pytest.mark.parametrize(
    ("run", "count"),
    [(kill_delivering_worker, 10), pytest.param(kill_notifying_worker, 6, marks=pytest.mark.faults)],
)
def test_a_worker_that_is_killed_while_it_delivers_loses_nothing_and_keeps_the_order(
    tmp_path: Path, run: Run, count: int
) -> None:
    with running_receiver() as receiver:
        asyncio.run(run(f"sqlite:///{tmp_path / 'log.db'}", receiver, 1, count))


@pytest.mark.faults
@pytest.mark.usefixtures("_short_leases")
@pytest.mark.parametrize(("run", "count"), [(kill_delivering_worker, 200), (kill_notifying_worker, 100)])
def test_twenty_kills_lose_nothing_that_was_to_be_told(url: str, run: Run, count: int) -> None:
    with running_receiver() as receiver:
        asyncio.run(run(url, receiver, 20, count))
