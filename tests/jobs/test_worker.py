"""The worker around a handler: alone, next to others, and in the background of sessions."""

from __future__ import annotations

import asyncio
import gc
import logging
import weakref
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from acms import (
    ACMS,
    ACMSConfig,
    ACMSError,
    ConfigurationError,
    ConflictError,
    GoneError,
    Job,
    JobState,
    ProviderError,
    RetryConfig,
    SessionNotFoundError,
    StorageBusyError,
    ValidationError,
    WorkerConfig,
    open_storage,
)
from acms.errors import LeaseLostError, StorageReadOnlyError
from acms.jobs.worker import Background, Handler, Worker, get_background_worker
from acms.model import Append, Context, Done, Failed, JobDraft, JobQuery, Lease, Retry
from acms.observability import Event, JobFailed, JobFinished
from acms.ports import Handle, StorageBackend
from acms.storage import MemoryStorage, SQLiteStorage, WrapperStorage
from acms.testing import ManualClock, sound
from acms.testing.logs import append_drafts, create_log, draft_message
from tests.support.faulty import FaultyStorage
from tests.support.talk import Storage

AT_ONCE = RetryConfig(base_delay=0, max_delay=0)
SHORT = WorkerConfig(lease_seconds=0.15, max_attempts=3)
DAY = timedelta(days=1)


async def enqueue_jobs(
    store: StorageBackend, context: Context, *names: str, kind: str = "k", **fields: Any
) -> None:
    """Enqueue jobs of one kind."""
    await append_drafts(
        store, context, jobs=tuple(JobDraft(kind=kind, dedupe=name, **fields) for name in names)
    )


async def append_effect(store: StorageBackend, lease: Lease) -> None:
    """Append one entry that says which job it is the effect of."""
    op = Append(context=lease.job.context, drafts=(draft_message(lease.job.dedupe),), finish=lease)
    (result,) = await store.append([op])
    if isinstance(result, ACMSError):
        raise result


async def list_jobs(store: StorageBackend) -> list[Job]:
    return list(reversed((await store.jobs(JobQuery(limit=500))).items))


async def effect_contents(store: StorageBackend, context: Context) -> list[str]:
    return [entry.content for entry in await sound(store, context.id)]


@dataclass
class Hall:
    """A handler that waits in the middle, to be watched and let go."""

    entered: asyncio.Event = field(default_factory=asyncio.Event)
    leave: asyncio.Event = field(default_factory=asyncio.Event)
    ran: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)

    async def __call__(self, store: StorageBackend, lease: Lease) -> None:
        self.ran.append(lease.job.dedupe)
        self.entered.set()
        try:
            await self.leave.wait()
        except asyncio.CancelledError:
            self.cancelled.append(lease.job.dedupe)
            raise
        await append_effect(store, lease)
        self.left.append(lease.job.dedupe)


def raising_handler(*errors: BaseException) -> tuple[list[int], Handler]:
    """Return a list of attempts and a handler that raises one error after the other, then has its effect."""
    attempts: list[int] = []

    async def handler(store: StorageBackend, lease: Lease) -> None:
        attempts.append(lease.attempt)
        if len(attempts) <= len(errors):
            raise errors[len(attempts) - 1]
        await append_effect(store, lease)

    return attempts, handler


# ── outcomes ────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_draining_works_off_everything_that_is_due(storage: Storage) -> None:
    context = await create_log(storage)
    await enqueue_jobs(storage, context, *"abcd")
    await enqueue_jobs(storage, context, "later", not_before=datetime.now(UTC) + DAY)
    await enqueue_jobs(storage, context, "unknown", kind="nobody knows")
    events: list[Event] = []
    await Worker(storage, {"k": append_effect}, on_event=events.append).drain()
    assert await effect_contents(storage, context) == [*"abcd"]
    assert [job.state for job in await list_jobs(storage)] == [JobState.DONE] * 4 + [JobState.READY] * 2
    assert events == [
        JobFinished(context_id=context.id, job_id=job.id, kind="k", attempt=1)
        for job in (await list_jobs(storage))[:4]
    ]


async def test_a_job_that_enqueues_its_successor_is_drained_too(storage: Storage) -> None:
    context = await create_log(storage)
    await enqueue_jobs(storage, context, "3")

    async def count(store: StorageBackend, lease: Lease) -> None:
        left = int(lease.job.dedupe)
        more = (JobDraft(kind="k", dedupe=str(left - 1)),) if left else ()
        await append_drafts(store, context, draft_message(str(left)), jobs=more, finish=lease)

    await Worker(storage, {"k": count}).drain()
    assert await effect_contents(storage, context) == ["3", "2", "1", "0"]


async def test_what_a_handler_returns_is_settled(storage: Storage) -> None:
    context = await create_log(storage)
    due = datetime.now(UTC) + DAY
    outcomes: dict[str, Done | Retry | Failed] = {
        "done": Done(),
        "retry": Retry(error="not yet", not_before=due),
        "failed": Failed(error="never"),
        "cancelled": Failed(error="unwanted", cancelled=True),
    }
    await enqueue_jobs(storage, context, *outcomes)

    async def handler(store: StorageBackend, lease: Lease) -> Done | Retry | Failed:
        return outcomes[lease.job.dedupe]

    await Worker(storage, {"k": handler}).drain()
    assert [(job.state.value, job.error, job.not_before == due) for job in await list_jobs(storage)] == [
        ("done", None, False),
        ("ready", "not yet", True),
        ("failed", "never", False),
        ("cancelled", "unwanted", False),
    ]


async def test_a_handler_that_returns_none_and_finished_nothing_has_failed(storage: Storage) -> None:
    context = await create_log(storage)
    await enqueue_jobs(storage, context, "d")

    async def nothing(store: StorageBackend, lease: Lease) -> None:
        return None

    await Worker(storage, {"k": nothing}).drain()
    (job,) = await list_jobs(storage)
    assert (job.state, job.error) == (JobState.FAILED, "the handler returned None without finishing the job")


@pytest.mark.parametrize(
    "error",
    [
        ProviderError("overloaded", provider="p", retryable=True),
        ConflictError(),
        StorageBusyError(),
        TimeoutError(),
        RuntimeError("x"),
        asyncio.CancelledError(),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_what_may_pass_is_tried_again(storage: Storage, error: BaseException) -> None:
    context = await create_log(storage)
    await enqueue_jobs(storage, context, "d")
    attempts, handler = raising_handler(error, error)
    events: list[Event] = []
    await Worker(storage, {"k": handler}, retry=AT_ONCE, on_event=events.append).drain()
    assert attempts == [1, 2, 3]
    assert await effect_contents(storage, context) == ["d"]
    assert [type(event) for event in events] == [JobFailed, JobFailed, JobFinished]
    assert isinstance(events[0], JobFailed)
    assert events[0].state == "ready"


@pytest.mark.parametrize(
    ("error", "state", "kept"),
    [
        (ValidationError("is wrong", field="budget"), JobState.FAILED, "VALIDATION: budget: is wrong"),
        (ConfigurationError("no model"), JobState.FAILED, "CONFIGURATION: no model"),
        (ProviderError("no such model", provider="p"), JobState.FAILED, "PROVIDER: no such model"),
        (SessionNotFoundError("deleted"), JobState.CANCELLED, "SESSION_NOT_FOUND: deleted"),
        (GoneError("erased"), JobState.CANCELLED, "GONE: erased"),
    ],
    ids=lambda value: type(value).__name__,
)
async def test_what_can_never_succeed_ends_at_once(
    storage: Storage, error: ACMSError, state: JobState, kept: str
) -> None:
    context = await create_log(storage)
    await enqueue_jobs(storage, context, "d")
    attempts, handler = raising_handler(error)
    await Worker(storage, {"k": handler}, retry=AT_ONCE).drain()
    (job,) = await list_jobs(storage)
    assert (attempts, job.state, job.error) == ([1], state, kept)


async def test_t07_the_job_of_a_deleted_context_ends_cancelled(storage: Storage) -> None:
    context = await create_log(storage)
    await enqueue_jobs(storage, context, "d")
    await storage.settings(context.id, {"deleted": True}, rev=0)
    await Worker(storage, {"k": append_effect}).drain()
    (job,) = await list_jobs(storage)
    assert job.state is JobState.CANCELLED
    back = await storage.settings(context.id, {"deleted": False}, rev=1)
    assert await effect_contents(storage, back) == []


async def test_a_job_that_never_succeeds_becomes_a_dead_letter(storage: Storage) -> None:
    context = await create_log(storage)
    await enqueue_jobs(storage, context, "bad")
    await enqueue_jobs(storage, context, "good", kind="g")
    attempts, handler = raising_handler(*[RuntimeError("the user's secret words")] * 9)
    events: list[Event] = []
    worker = Worker(
        storage, {"k": handler, "g": append_effect}, config=SHORT, retry=AT_ONCE, on_event=events.append
    )
    await worker.drain()
    bad, good = await list_jobs(storage)
    assert (attempts, bad.state, bad.attempt, good.state) == ([1, 2, 3], JobState.FAILED, 3, JobState.DONE)
    assert bad.error is not None
    assert bad.error.startswith("RuntimeError at test_worker.py:")
    assert "secret" not in f"{bad} {events}"


async def test_attempts_are_spread_out_more_and_more(storage: Storage) -> None:
    context = await create_log(storage)
    await enqueue_jobs(storage, context, "d")
    now = datetime.now(UTC)
    _, handler = raising_handler(*[RuntimeError()] * 9)
    retry = RetryConfig(base_delay=1000, max_delay=3000, exponential_base=2)
    delays: list[float] = []
    for fraction in (0.0, 1.0, 1.0):
        await Worker(
            storage, {"k": handler}, retry=retry, clock=lambda: now, fraction=lambda f=fraction: f
        ).drain()
        (job,) = await list_jobs(storage)
        delays.append((job.not_before - now).total_seconds())
        due = Lease(job=job, attempt=job.attempt, until=now)
        await storage.settle(due, Retry(error="by hand", not_before=now))
    assert delays == [500, 2000, 3000]


async def test_a_job_retried_by_hand_after_its_last_attempt_has_one_more(storage: Storage) -> None:
    context = await create_log(storage)
    await enqueue_jobs(storage, context, "d")
    attempts, handler = raising_handler(*[RuntimeError()] * 4)
    for more in range(3):
        await Worker(storage, {"k": handler}, config=SHORT, retry=AT_ONCE).drain()
        (job,) = await list_jobs(storage)
        assert attempts == [1, 2, 3, 4, 5][: 3 + more]
        if more < 2:
            assert job.state is JobState.FAILED
            again = Lease(job=job, attempt=job.attempt, until=job.updated_at)
            await storage.settle(again, Retry(error="by hand", not_before=datetime.now(UTC)))
    assert job.state is JobState.DONE
    assert await effect_contents(storage, context) == ["d"]


async def test_t30_a_job_that_silenced_too_many_workers_is_not_run_again(storage: Storage) -> None:
    context = await create_log(storage)
    await enqueue_jobs(storage, context, "poison", "good")
    for _ in range(SHORT.max_attempts):  # each of these workers was killed
        (lease,) = await storage.claim(["k"], lease=timedelta(0))
        assert lease.job.dedupe == "poison"
    await Worker(storage, {"k": append_effect}, config=SHORT).drain()
    poison, _ = await list_jobs(storage)
    assert (poison.state, poison.attempt) == (JobState.FAILED, 4)
    assert poison.error == "attempt 3 ended without an answer: its worker died or was too slow"
    assert await effect_contents(storage, context) == ["good"]


async def test_t30_a_job_whose_last_attempt_fell_silent_runs_alone(storage: Storage) -> None:
    """If it kills its worker once more, no other job has a silent attempt because of it."""
    context = await create_log(storage)
    await enqueue_jobs(storage, context, "beside")
    hall = Hall()
    now: list[str] = []
    seen: list[list[str]] = []

    async def suspect(store: StorageBackend, lease: Lease) -> None:
        now.append(lease.job.dedupe)
        seen.append([*now, *(name for name in hall.ran if name not in hall.left)])
        await append_effect(store, lease)
        now.remove(lease.job.dedupe)

    worker = Worker(storage, {"k": hall, "s": suspect}, concurrency=3)
    working = asyncio.create_task(worker.drain())
    await hall.entered.wait()
    await enqueue_jobs(storage, context, "one", "two", kind="s")
    await storage.claim(["s"], lease=timedelta(0), limit=2)  # by a worker that was killed
    worker.poke()
    await enqueue_jobs(storage, context, "three", kind="s")
    asyncio.get_running_loop().call_later(0.01, hall.leave.set)
    await working
    assert seen == [["one"], ["two"], ["three"]]


async def test_what_a_listener_raises_changes_nothing(
    storage: Storage, caplog: pytest.LogCaptureFixture
) -> None:
    context = await create_log(storage)
    await enqueue_jobs(storage, context, "a", "b")

    def deaf(event: Event) -> None:
        raise RuntimeError

    with caplog.at_level(logging.INFO, "acms"):
        await Worker(storage, {"k": append_effect}, on_event=deaf).drain()
    assert await effect_contents(storage, context) == ["a", "b"]
    names = [record.getMessage() for record in caplog.records]
    assert names == ["job_finished", "on_event_failed"] * 2
    assert caplog.records[0].__dict__["acms"] == {
        "context_id": context.id,
        "job_id": (await list_jobs(storage))[0].id,
        "kind": "k",
        "attempt": 1,
    }


@pytest.mark.parametrize(
    ("ahead", "seconds"),
    [(0, 30), (10, 20), (31, 1), (-20, 30)],
    ids=["the same clock", "the store is behind", "the store is far behind", "the store is ahead"],
)
async def test_a_worker_with_nothing_to_do_knows_when_what_others_hold_is_due(
    ahead: int, seconds: float
) -> None:
    """With a clock of its own, which is some seconds ahead of that of the store."""
    clock = ManualClock()
    store = MemoryStorage(clock=clock)
    context = await create_log(store)
    worker = Worker(store, {"k": append_effect}, clock=lambda: clock.now + timedelta(seconds=ahead))
    await worker.drain(retries=True)
    assert worker.seconds_until_due is None
    await enqueue_jobs(store, context, "d")
    await enqueue_jobs(store, context, "sooner, and done by others", kind="other")
    await store.claim(["k"], lease=timedelta(seconds=30))
    await store.claim(["other"], lease=timedelta(seconds=5))
    await worker.drain(retries=True)
    assert worker.seconds_until_due == pytest.approx(seconds, abs=0.02)
    clock.advance(seconds=30)
    await worker.drain(retries=True)
    assert (worker.seconds_until_due, await effect_contents(store, context)) == (None, ["d"])


async def test_among_very_many_jobs_it_looks_again_after_a_lease() -> None:
    store = MemoryStorage()
    context = await create_log(store)
    await enqueue_jobs(store, context, "hidden", not_before=datetime.now(UTC) + timedelta(seconds=20))
    await enqueue_jobs(store, context, *map(str, range(500)), kind="other")
    worker = Worker(store, {"k": append_effect}, config=SHORT)
    await worker.drain(retries=True)
    assert worker.seconds_until_due == SHORT.lease_seconds


# ── leases ──────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_lease_is_prolonged_while_its_handler_runs(storage: Storage) -> None:
    context = await create_log(storage)
    await enqueue_jobs(storage, context, "d")
    hall = Hall()
    extended = asyncio.Event()

    class Watched(WrapperStorage):
        async def extend(self, lease: Lease, *, by: timedelta) -> Lease:
            found = await super().extend(lease, by=by)
            if datetime.now(UTC) > first:
                extended.set()
            return found

    first = datetime.now(UTC) + timedelta(seconds=SHORT.lease_seconds * 2)
    working = asyncio.create_task(Worker(Watched(storage), {"k": hall}, config=SHORT).drain())
    await extended.wait()  # two leases later
    assert await storage.claim(["k"], lease=timedelta(minutes=1)) == []
    hall.leave.set()
    await working
    (job,) = await list_jobs(storage)
    assert (job.state, job.attempt, hall.ran) == (JobState.DONE, 1, ["d"])
    assert await effect_contents(storage, context) == ["d"]


async def test_a_worker_that_lost_its_lease_stops_and_says_nothing() -> None:
    clock = ManualClock()
    store = MemoryStorage(clock=clock)
    context = await create_log(store)
    await enqueue_jobs(store, context, "d")
    hall = Hall()
    events: list[Event] = []
    working = asyncio.create_task(
        Worker(store, {"k": hall}, config=SHORT, on_event=events.append, clock=clock).drain()
    )
    await hall.entered.wait()
    clock.advance(hours=1)
    (other,) = await store.claim(["k"], lease=DAY)
    await working
    assert (hall.cancelled, hall.left, events) == (["d"], [], [])
    await append_effect(store, other)
    assert await effect_contents(store, context) == ["d"]


async def test_a_zombie_is_fenced_when_it_wakes(storage: Storage) -> None:
    context = await create_log(storage)
    await enqueue_jobs(storage, context, "d")
    refused: list[str] = []

    async def zombie(store: StorageBackend, lease: Lease) -> None:
        (first,) = await list_jobs(store)
        assert first.attempt == 1
        (other,) = await claim_again(store, lease)
        await append_effect(store, other)
        try:
            await append_effect(store, lease)
        except LeaseLostError as error:
            refused.append(error.code)
            raise

    async def claim_again(store: StorageBackend, lease: Lease) -> list[Lease]:
        await store.settle(lease, Retry(error="as if it had run out", not_before=lease.job.not_before))
        return await store.claim(["k"], lease=DAY)

    events: list[Event] = []
    await Worker(storage, {"k": zombie}, on_event=events.append).drain()
    assert (refused, events) == (["LEASE_LOST"], [])
    assert await effect_contents(storage, context) == ["d"]
    (job,) = await list_jobs(storage)
    assert (job.state, job.attempt) == (JobState.DONE, 2)


async def test_a_handler_that_tidies_up_after_its_effect_is_left_alone(storage: Storage) -> None:
    context = await create_log(storage)
    await enqueue_jobs(storage, context, "d")
    looked = asyncio.Event()
    tidied: list[bool] = []

    class Watched(WrapperStorage):
        async def extend(self, lease: Lease, *, by: timedelta) -> Lease:
            looked.set()
            return await super().extend(lease, by=by)

    async def handler(store: StorageBackend, lease: Lease) -> None:
        await append_effect(store, lease)
        looked.clear()
        await looked.wait()
        for _ in range(20):
            await asyncio.sleep(0)
        tidied.append(True)

    events: list[Event] = []
    await Worker(Watched(storage), {"k": handler}, config=SHORT, on_event=events.append).drain()
    assert tidied == [True]
    assert [type(event) for event in events] == [JobFinished]


async def test_a_cancelled_job_stops_its_handler(storage: Storage) -> None:
    context = await create_log(storage)
    await enqueue_jobs(storage, context, "d")
    hall = Hall()
    events: list[Event] = []
    working = asyncio.create_task(Worker(storage, {"k": hall}, config=SHORT, on_event=events.append).drain())
    await hall.entered.wait()
    (job,) = await list_jobs(storage)
    await storage.settle(
        Lease(job=job, attempt=job.attempt, until=job.updated_at), Failed(error="by hand", cancelled=True)
    )
    await working
    assert (hall.cancelled, events) == (["d"], [])
    assert [job.state for job in await list_jobs(storage)] == [JobState.CANCELLED]
    assert await effect_contents(storage, context) == []


@pytest.mark.parametrize("jump", [timedelta(hours=-1), timedelta(days=1)], ids=["-1 h", "+1 day"])
async def test_t32_a_clock_that_jumps_leaves_one_effect_of_each_job(tmp_path: Path, jump: timedelta) -> None:
    clock = ManualClock()
    for store in (MemoryStorage(clock=clock), SQLiteStorage(tmp_path / "a.db", clock=clock)):
        async with store:
            context = await create_log(store)
            _, failing = raising_handler(RuntimeError())
            hall = Hall()
            await enqueue_jobs(store, context, "running")
            await enqueue_jobs(store, context, "put off", kind="f")
            await enqueue_jobs(store, context, "waiting", kind="w")
            retry = RetryConfig(base_delay=60, jitter=False)
            kinds = {"k": hall, "f": failing}
            slow = Worker(store, kinds, concurrency=2, retry=retry, clock=clock)
            working = asyncio.create_task(slow.drain())
            await hall.entered.wait()
            while [(job.attempt, job.state) for job in await list_jobs(store)][1] != (1, JobState.READY):
                await asyncio.sleep(0)
            clock.now += jump
            await Worker(
                store, {"k": append_effect, "f": append_effect, "w": append_effect}, clock=clock
            ).drain()
            hall.leave.set()
            await working
            assert sorted(await effect_contents(store, context)) == ["put off", "running", "waiting"]
            assert {job.state for job in await list_jobs(store)} == {JobState.DONE}
        clock.now -= jump


# ── stopping ────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_worker_runs_until_it_is_stopped(storage: Storage) -> None:
    context = await create_log(storage)
    done = asyncio.Event()
    worker = Worker(
        storage, {"k": append_effect}, config=WorkerConfig(poll_seconds=9999), on_event=lambda _: done.set()
    )
    running = asyncio.create_task(worker.run())
    for name in "ab":
        await enqueue_jobs(storage, context, name)
        worker.poke()
        await done.wait()
        done.clear()
    worker.stop()
    await running
    assert worker.stopping
    assert await effect_contents(storage, context) == ["a", "b"]


async def test_a_worker_finds_by_itself_what_others_asked_for(storage: Storage) -> None:
    context = await create_log(storage)
    done = asyncio.Event()
    worker = Worker(
        storage, {"k": append_effect}, config=WorkerConfig(poll_seconds=0.01), on_event=lambda _: done.set()
    )
    running = asyncio.create_task(worker.run())
    await asyncio.sleep(0)
    await enqueue_jobs(storage, context, "a")
    await done.wait()
    worker.stop()
    await running
    assert await effect_contents(storage, context) == ["a"]


async def test_what_runs_may_finish_when_a_worker_is_stopped(storage: Storage) -> None:
    context = await create_log(storage)
    await enqueue_jobs(storage, context, "a", "b")
    hall = Hall()
    worker = Worker(storage, {"k": hall})
    running = asyncio.create_task(worker.run())
    await hall.entered.wait()
    worker.stop(grace=60)
    hall.leave.set()
    await running
    assert (hall.ran, hall.left) == (["a"], ["a"])
    assert [job.state for job in await list_jobs(storage)] == [JobState.DONE, JobState.READY]


@pytest.mark.parametrize("how", ["stop", "stop twice", "cancel"])
async def test_what_does_not_finish_in_time_is_handed_back(storage: Storage, how: str) -> None:
    context = await create_log(storage)
    await enqueue_jobs(storage, context, "a")
    hall = Hall()
    worker = Worker(storage, {"k": hall})
    running = asyncio.create_task(worker.run())
    await hall.entered.wait()
    if how == "cancel":
        running.cancel()
    elif how == "stop":
        worker.stop(grace=0.01)
    else:
        worker.stop(grace=60)
        asyncio.get_running_loop().call_soon(lambda: worker.stop(grace=0))
    (result,) = await asyncio.gather(running, return_exceptions=True)
    assert isinstance(result, asyncio.CancelledError) is (how == "cancel")
    assert hall.cancelled == ["a"]
    (job,) = await list_jobs(storage)
    assert (job.state, job.error) == (JobState.READY, "the worker was stopped")
    await Worker(storage, {"k": append_effect}).drain()  # another has it at once
    assert await effect_contents(storage, context) == ["a"]


async def test_a_worker_that_is_cancelled_at_any_point_leaves_no_job_behind() -> None:
    for steps in range(40):
        store = MemoryStorage()
        context = await create_log(store)
        await enqueue_jobs(store, context, *"abc")
        handler = append_effect if steps % 2 else Hall()  # which never leaves
        running = asyncio.create_task(Worker(store, {"k": handler}, concurrency=2).run())
        for _ in range(steps // 2):
            await asyncio.sleep(0)
        running.cancel()
        await asyncio.wait([running], timeout=60)
        assert running.done()
        assert JobState.RUNNING not in {job.state for job in await list_jobs(store)}
        await Worker(store, {"k": append_effect}).drain()
        assert sorted(await effect_contents(store, context)) == [*"abc"]


async def test_what_is_claimed_while_a_worker_is_told_to_stop_is_handed_back(storage: Storage) -> None:
    context = await create_log(storage)
    await enqueue_jobs(storage, context, "a", "b")
    hall = Hall()

    class Late(WrapperStorage):
        async def claim(self, kinds: Sequence[str], *, lease: timedelta, limit: int = 1) -> list[Lease]:
            found = await super().claim(kinds, lease=lease, limit=limit)
            worker.stop(grace=0)
            return found

    worker = Worker(Late(storage), {"k": hall}, concurrency=2)
    await worker.run()
    assert hall.ran == []
    assert [(job.state, job.attempt) for job in await list_jobs(storage)] == [
        (JobState.READY, 1),
        (JobState.READY, 0),
    ]


def test_an_event_loop_that_ends_hands_its_jobs_back(url: str) -> None:
    storage = open_storage(url)

    async def begin() -> None:
        context = await create_log(storage)
        await enqueue_jobs(storage, context, "a")
        hall = Hall()
        running = asyncio.create_task(Worker(storage, {"k": hall}).run())
        await hall.entered.wait()
        assert running is not None  # asyncio.run cancels it, and all it began

    async def state() -> tuple[JobState, int]:
        (job,) = await list_jobs(storage)
        await storage.aclose()
        return job.state, job.attempt

    asyncio.run(begin())
    assert asyncio.run(state()) == (JobState.READY, 1)


# ── a store that fails ──────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_busy_store_is_asked_again() -> None:
    store = FaultyStorage(MemoryStorage())
    context = await create_log(store)
    await enqueue_jobs(store, context, "a")
    store.fail("claim", 1, StorageBusyError())
    store.fail("settle", 1, StorageBusyError())

    async def done(store: StorageBackend, lease: Lease) -> Done:
        return Done()

    await Worker(store, {"k": done}, retry=AT_ONCE).drain()
    assert [(job.state, job.attempt) for job in await list_jobs(store)] == [(JobState.DONE, 1)]


async def test_an_outcome_that_cannot_be_stored_is_left_to_the_next_attempt(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = FaultyStorage(MemoryStorage())
    context = await create_log(store)
    await enqueue_jobs(store, context, "a")
    store.fail("settle", 1, StorageReadOnlyError())
    attempts: list[int] = []

    async def done(store: StorageBackend, lease: Lease) -> Done:
        attempts.append(lease.attempt)
        return Done()

    with caplog.at_level(logging.ERROR, "acms"):
        await Worker(store, {"k": done}, config=WorkerConfig(lease_seconds=0.02)).drain(retries=True)
    assert attempts == [1, 2]
    assert [record.getMessage() for record in caplog.records] == ["settle_failed"]
    assert [(job.state, job.attempt) for job in await list_jobs(store)] == [(JobState.DONE, 2)]


async def test_a_store_that_cannot_prolong_a_lease_for_a_while_stops_nobody(storage: Storage) -> None:
    context = await create_log(storage)
    await enqueue_jobs(storage, context, "a")
    store = FaultyStorage(storage)
    hall = Hall()
    store.fail("extend", 1, StorageBusyError())
    config = WorkerConfig(lease_seconds=0.3)
    working = asyncio.create_task(Worker(store, {"k": hall}, config=config).drain())
    await hall.entered.wait()
    while store.calls["extend"] < 2:
        await asyncio.sleep(0)
    hall.leave.set()
    await working
    assert (hall.left, hall.cancelled) == (["a"], [])


async def test_a_store_that_stays_broken_ends_the_worker() -> None:
    store = FaultyStorage(MemoryStorage())
    store.fail("claim", 1, StorageReadOnlyError())
    with pytest.raises(StorageReadOnlyError):
        await Worker(store, {"k": append_effect}).run()


# ── several workers ─────────────────────────────────────────────────────────────────────────────────────────────────


async def test_several_workers_share_the_jobs_out(any_url: str) -> None:
    shared = any_url == "memory://"
    stores = [open_storage(any_url)] * 3 if shared else [open_storage(any_url) for _ in range(3)]
    context = await create_log(stores[0])
    names = [str(n) for n in range(60)]
    await enqueue_jobs(stores[0], context, *names)
    most = running = 0

    async def counted(store: StorageBackend, lease: Lease) -> None:
        nonlocal most, running
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        await append_effect(store, lease)
        running -= 1

    workers = [Worker(store, {"k": counted}, concurrency=2) for store in stores]
    await asyncio.gather(*(worker.drain() for worker in workers))
    assert sorted(await effect_contents(stores[0], context)) == sorted(names)
    assert {job.attempt for job in await list_jobs(stores[0])} == {1}
    assert 1 < most <= 6
    for store in stores:
        await store.aclose()


async def test_as_many_run_at_a_time_as_was_said(storage: Storage) -> None:
    context = await create_log(storage)
    await enqueue_jobs(storage, context, *"abcde")
    hall = Hall()
    working = asyncio.create_task(Worker(storage, {"k": hall}, concurrency=3).drain())
    while len(hall.ran) < 3:
        await asyncio.sleep(0)
    for _ in range(50):
        await asyncio.sleep(0)
    assert hall.ran == [*"abc"]
    hall.leave.set()
    await working
    assert sorted(hall.left) == [*"abcde"]
    with pytest.raises(ValidationError):
        Worker(storage, {}, concurrency=0)


# ── in the background of sessions ───────────────────────────────────────────────────────────────────────────────────


class Heard(list[Event]):
    """Events, and a way to wait for the next one."""

    def __init__(self) -> None:
        super().__init__()
        self._came = asyncio.Event()

    def __call__(self, event: Event) -> None:
        if isinstance(event, JobFinished | JobFailed):
            self.append(event)
            self._came.set()

    async def wait(self, count: int) -> None:
        while len(self) < count:
            self._came.clear()
            await self._came.wait()


@pytest.fixture
async def handle(url: str) -> AsyncIterator[Handle]:
    store = open_storage(url)
    yield store
    await store.aclose()


def is_open(handle: Any) -> bool:
    return handle._file.is_open if isinstance(handle, SQLiteStorage) else handle._db.opened


def background_of(session: ACMS) -> Background:
    return session._shared.background


def background_tasks() -> list[str]:
    return [task.get_name() for task in asyncio.all_tasks() if task.get_name() == "acms-background"]


async def test_the_background_works_while_there_is_work_and_no_longer(handle: Handle) -> None:
    heard = Heard()
    async with ACMS("a", handle, config=ACMSConfig(on_event=heard)) as session:
        await session.ingest("user", "hello")
        context = await handle.context("a")
        background_of(session).serve("k", append_effect)
        assert background_tasks() == []
        await enqueue_jobs(handle, context, "one")
        background_of(session).poke()
        background_of(session).poke()
        assert background_tasks() == ["acms-background"]
        await heard.wait(1)
        while background_tasks():
            await asyncio.sleep(0)
        await enqueue_jobs(handle, context, "two")
        background_of(session).poke()
        await heard.wait(2)
    assert background_tasks() == []
    assert not is_open(handle), "closed with its last user"
    assert (await effect_contents(handle, context))[1:] == ["one", "two"]


async def test_the_background_comes_back_for_a_retry(handle: Handle) -> None:
    heard = Heard()
    retry = RetryConfig(base_delay=0.01, jitter=False)
    async with ACMS("a", handle, config=ACMSConfig(on_event=heard, retry=retry)) as session:
        await session.ingest("user", "hello")
        context = await handle.context("a")
        attempts, handler = raising_handler(RuntimeError(), RuntimeError())
        background_of(session).serve("k", handler)
        background_of(session).serve("k", append_effect)  # the first one given stays
        await enqueue_jobs(handle, context, "d")
        background_of(session).poke()
        await heard.wait(3)
    assert attempts == [1, 2, 3]
    assert (await effect_contents(handle, context))[1:] == ["d"]


async def test_a_poke_that_comes_while_it_ends_is_not_lost(handle: Handle) -> None:
    context = await create_log(handle)
    heard = Heard()
    own = Background(handle, WorkerConfig(), RetryConfig(), heard)
    own.serve("k", append_effect)
    for n in range(60):
        await enqueue_jobs(handle, context, str(n))
        own.poke()
        for _ in range(n % 12):
            await asyncio.sleep(0)
    await heard.wait(60)
    await own.stop()
    assert len(await effect_contents(handle, context)) == 60


async def test_only_the_last_session_of_a_handle_stops_its_background(handle: Handle) -> None:
    heard = Heard()
    one = ACMS("one", handle, config=ACMSConfig(on_event=heard))
    two = ACMS("two", handle)
    await one.ingest("user", "hello")
    await two.ingest("user", "hello")
    assert background_of(one) is background_of(two)
    hall = Hall()
    background_of(one).serve("k", hall)
    context = await handle.context("two")
    await enqueue_jobs(handle, context, "d")
    background_of(two).poke()
    await hall.entered.wait()
    await one.close()
    assert background_tasks() == ["acms-background"]
    closing = asyncio.create_task(two.close())
    await asyncio.sleep(0)
    hall.leave.set()
    await closing
    assert (background_tasks(), is_open(handle)) == ([], False)
    assert (await effect_contents(handle, context))[1:] == ["d"]


async def test_a_block_around_a_session_that_closed_stops_the_background_too(handle: Handle) -> None:
    async with handle:
        async with ACMS("a", handle) as session:
            await session.ingest("user", "hello")
            hall = Hall()
            background_of(session).serve("k", hall)
            context = await handle.context("a")
            await enqueue_jobs(handle, context, "d")
            background_of(session).poke()
            await hall.entered.wait()
        assert background_tasks() == ["acms-background"]
        asyncio.get_running_loop().call_later(0.01, hall.leave.set)
    assert (background_tasks(), is_open(handle)) == ([], False)
    assert (await effect_contents(handle, context))[1:] == ["d"]


async def test_a_session_that_comes_while_the_background_stops_keeps_the_handle(
    handle: Handle,
) -> None:
    one = ACMS("one", handle)
    await one.ingest("user", "hello")
    hall = Hall()
    own = background_of(one)
    own.serve("k", hall)
    own.serve("other", append_effect)
    context = await handle.context("one")
    await enqueue_jobs(handle, context, "d")
    own.poke()
    await hall.entered.wait()
    closing = asyncio.create_task(one.close())
    while own._worker is None or not own._worker.stopping:
        await asyncio.sleep(0)
    two = ACMS("two", handle)
    await two.ingest("user", "hello")
    await enqueue_jobs(handle, context, "e", kind="other")
    background_of(two).poke()
    hall.leave.set()
    await closing
    assert is_open(handle)
    while (await handle.head(context.id)).version < 3:
        await asyncio.sleep(0)
    await two.close()
    assert (background_tasks(), is_open(handle)) == ([], False)


async def test_what_the_background_cannot_finish_in_time_is_handed_back(handle: Handle) -> None:
    context = await create_log(handle)
    hall = Hall()
    own = Background(handle, WorkerConfig(), RetryConfig())
    own.serve("k", hall)
    await enqueue_jobs(handle, context, "d")
    own.poke()
    await hall.entered.wait()
    await own.stop(grace=0)
    assert [(job.state, job.error) for job in await list_jobs(handle)] == [
        (JobState.READY, "the worker was stopped")
    ]


async def test_what_a_dead_worker_held_is_taken_over_when_its_lease_ends(handle: Handle) -> None:
    context = await create_log(handle)
    heard = Heard()
    own = Background(handle, WorkerConfig(), RetryConfig(), heard)
    own.serve("k", append_effect)
    await enqueue_jobs(handle, context, "d")
    (dead,) = await handle.claim(["k"], lease=timedelta(seconds=0.3))
    own.poke()
    async with asyncio.timeout(300):
        await heard.wait(1)
    assert datetime.now(UTC) >= dead.until
    assert (await list_jobs(handle))[0].attempt == 2
    assert await effect_contents(handle, context) == ["d"]
    with pytest.raises(LeaseLostError):
        await append_effect(handle, dead)
    await own.wait_until_idle()
    assert own._alarm is None, "nothing is left to wait for"


async def test_what_a_dead_worker_had_put_off_is_done_when_it_is_due(handle: Handle) -> None:
    context = await create_log(handle)
    heard = Heard()
    own = Background(handle, WorkerConfig(), RetryConfig(), heard)
    own.serve("k", append_effect)
    await enqueue_jobs(handle, context, "d")
    (lease,) = await handle.claim(["k"], lease=timedelta(minutes=1))
    due = datetime.now(UTC) + timedelta(seconds=0.3)
    await handle.settle(lease, Retry(error="busy", not_before=due))
    own.poke()
    async with asyncio.timeout(300):
        await heard.wait(1)
    assert datetime.now(UTC) >= due
    assert await effect_contents(handle, context) == ["d"]
    await own.stop()


async def test_a_lease_that_is_prolonged_elsewhere_is_left_alone(handle: Handle) -> None:
    context = await create_log(handle)
    own = Background(handle, WorkerConfig(), RetryConfig())
    own.serve("k", append_effect)
    await enqueue_jobs(handle, context, "d")
    (lease,) = await handle.claim(["k"], lease=timedelta(seconds=30))
    own.poke()
    await own.wait_until_idle()
    assert own._alarm is not None
    assert own._alarm.when() < asyncio.get_running_loop().time() + 40
    await handle.extend(lease, by=DAY)
    own.poke()  # as its alarm does
    await own.wait_until_idle()
    assert own._alarm is not None
    assert own._alarm.when() > asyncio.get_running_loop().time() + 50
    assert (await list_jobs(handle))[0].attempt == 1
    await own.stop()


async def test_a_handle_that_is_closed_is_not_opened_again_for_what_others_hold(handle: Handle) -> None:
    async with ACMS("a", handle) as session:
        await session.ingest("user", "hello")
        context = await handle.context("a")
        background_of(session).serve("k", append_effect)
        await enqueue_jobs(handle, context, "d")
        await handle.claim(["k"], lease=DAY)
        background_of(session).poke()
        await background_of(session).wait_until_idle()
        alarm = background_of(session)._alarm
        assert alarm is not None
    assert alarm.cancelled()
    assert background_of(session)._alarm is None
    assert not is_open(handle)


async def test_what_others_hold_keeps_no_store_that_nobody_has(caplog: pytest.LogCaptureFixture) -> None:
    store = MemoryStorage()
    await enqueue_jobs(store, await create_log(store), "d")
    await store.claim(["k"], lease=DAY)
    own = get_background_worker(store, store, WorkerConfig(), RetryConfig())
    own.serve("k", append_effect)
    own.poke()
    await own.wait_until_idle()
    alarm = own._alarm
    assert alarm is not None
    left = weakref.ref(own)
    del own, store
    gc.collect()
    assert left() is None
    alarm._run()  # as when a day has passed
    alarm.cancel()
    assert caplog.records == []


async def test_waiting_for_what_is_pending_takes_over_what_a_dead_process_held(handle: Handle) -> None:
    async with ACMS("a", handle) as session:
        await session.ingest("user", "hello")
        context = await handle.context("a")
        background_of(session).serve("k", append_effect)
        await enqueue_jobs(handle, context, "mine")
        await handle.claim(["k"], lease=timedelta(seconds=0.3))
        await enqueue_jobs(handle, context, "nobody's", kind="nobody knows")
        await handle.claim(["nobody knows"], lease=DAY)
        async with asyncio.timeout(300):
            await session.wait_pending()
        assert (await effect_contents(handle, context))[1:] == ["mine"]


async def test_waiting_for_what_is_pending_ends_when_the_session_is_closed(handle: Handle) -> None:
    session = ACMS("a", handle)
    await session.ingest("user", "hello")
    context = await handle.context("a")
    background_of(session).serve("k", append_effect)
    await enqueue_jobs(handle, context, "d")
    await handle.claim(["k"], lease=DAY)
    waiting = asyncio.create_task(session.wait_pending())
    while background_of(session)._alarm is None:
        await asyncio.sleep(0.01)
    await session.close()
    async with asyncio.timeout(300):
        await waiting
    assert not is_open(handle)


async def test_waiting_for_what_is_pending_ends_when_the_store_refuses(handle: Handle) -> None:
    store = FaultyStorage(handle)
    async with ACMS("a", store) as session:
        await session.ingest("user", "hello")
        context = await handle.context("a")
        background_of(session).serve("k", append_effect)
        await enqueue_jobs(handle, context, "d")
        await handle.claim(["k"], lease=DAY)
        for n in range(2, 9):
            store.fail("claim", n, StorageReadOnlyError("no"))
        waiting = asyncio.create_task(session.wait_pending())
        async with asyncio.timeout(300):
            while background_of(session)._alarm is None:
                await asyncio.sleep(0)
            background_of(session).poke()  # as the alarm does
            await waiting
    assert await effect_contents(handle, context) == ["hello"]


async def test_a_background_that_is_switched_off_does_nothing_until_a_session_allows_it(
    handle: Handle,
) -> None:
    context = await create_log(handle)
    heard = Heard()
    off = get_background_worker(handle, handle, WorkerConfig(enabled=False), RetryConfig(), heard)
    off.serve("k", append_effect)
    await enqueue_jobs(handle, context, "d")
    off.poke()
    assert background_tasks() == []
    on = get_background_worker(handle, handle, WorkerConfig(), RetryConfig())
    assert on is off
    on.poke()
    await heard.wait(1)
    await on.stop()
    assert await effect_contents(handle, context) == ["d"]


async def test_two_backgrounds_on_one_file_have_one_effect_of_each_job(url: str) -> None:
    heard = Heard()
    handles = [open_storage(url) for _ in range(2)]
    sessions = [ACMS("a", store, config=ACMSConfig(on_event=heard)) for store in handles]
    await sessions[0].ingest("user", "hello")
    await sessions[1].ingest("user", "hello")
    context = await handles[0].context("a")
    for n in range(30):
        await enqueue_jobs(handles[n % 2], context, str(n))
        for session in sessions:
            background_of(session).serve("k", append_effect)
            background_of(session).poke()
    await heard.wait(30)
    assert sorted((await effect_contents(handles[0], context))[2:], key=int) == [str(n) for n in range(30)]
    for session in sessions:
        await session.close()
    assert background_tasks() == []


async def test_a_background_whose_store_is_broken_says_so(
    handle: Handle, caplog: pytest.LogCaptureFixture
) -> None:
    store = FaultyStorage(MemoryStorage())
    store.fail("claim", 1, StorageReadOnlyError("no"))
    own = Background(store, WorkerConfig(), RetryConfig())
    own.serve("k", append_effect)
    with caplog.at_level(logging.INFO, "acms"):
        own.poke()
        while background_tasks():
            await asyncio.sleep(0)
        await asyncio.sleep(0)
    assert [record.getMessage() for record in caplog.records] == ["background_failed"]
    assert caplog.records[0].__dict__["acms"] == {"error": "STORAGE_READ_ONLY: no"}


def test_a_background_starts_again_on_the_next_event_loop(url: str) -> None:
    storage = open_storage(url)

    async def once(name: str, close: bool) -> None:
        heard = Heard()
        context = await create_log(storage, "a")
        own = get_background_worker(storage, storage, WorkerConfig(), RetryConfig())
        own._on_event = heard
        own.serve("k", append_effect)
        await enqueue_jobs(storage, context, name)
        own.poke()
        await heard.wait(1)
        if close:
            await own.stop()
            await storage.aclose()

    for n in range(3):
        asyncio.run(once(str(n), close=n > 0))
    gc.collect()

    async def found() -> list[str]:
        result = await effect_contents(storage, await storage.context("a"))
        await storage.aclose()
        return result

    assert asyncio.run(found()) == ["0", "1", "2"]
