"""T29, T30: workers that are killed, fall silent or are poisoned, many of them on one store.

pytest -m faults tests/faults/test_jobs.py      the long run: 8 workers, 2000 jobs, a kill every 250 ms
"""

from __future__ import annotations

import asyncio
import os
import random
import select
import signal
import subprocess
import time
from collections import Counter
from datetime import timedelta
from pathlib import Path

import apsw
import pytest

from acms import ACMS, ACMSConfig, Entry, Job, JobState, StorageBusyError, WorkerConfig, open_storage
from acms.model import Append, ContextQuery, JobDraft, JobQuery
from acms.ports import HasIntegrity, StorageBackend, SummaryRequest
from acms.storage import SQLiteStorage
from acms.testing import sound

from . import _compactor
from ._process import finish_process, start_python
from ._work import open_at, shared_contexts

ON_EACH = pytest.mark.parametrize(
    "url", ["sqlite", pytest.param("postgres", marks=pytest.mark.faults)], indirect=True
)
LEASE = 0.4
KILL_EVERY = 0.25
ORPHANED = 1.0
"""Seconds for which a process that was killed still holds its job."""


def start_worker(where: str | Path, what: str = "work", attempts: int = 100) -> subprocess.Popen[str]:
    """Start a worker process."""
    return start_python("-m", "tests.faults._worker", what, str(where), str(LEASE), str(attempts))


def stop_worker(process: subprocess.Popen[str]) -> None:
    """Stop a worker in order."""
    process.terminate()
    assert finish_process(process) == 0


async def enqueue_jobs(storage: StorageBackend, jobs: list[JobDraft]) -> list[str]:
    """Enqueue jobs for three contexts that share them."""
    ids = await shared_contexts(storage, 3)
    ops = [Append(context=id, drafts=(), jobs=tuple(jobs[n::3])) for n, id in enumerate(ids)]
    assert not [result for result in await storage.append(ops) if isinstance(result, Exception)]
    return ids


async def list_jobs(storage: StorageBackend, *states: JobState) -> list[Job]:
    """Return all jobs in some states, or all of them."""
    found: list[Job] = []
    after: str | None = None
    while True:
        page = await storage.jobs(JobQuery(states=states, after=after, limit=500))
        found += page.items
        after = page.next_after
        if after is None:
            return found


async def has_unfinished_jobs(storage: StorageBackend) -> bool:
    """Return whether there is a job that waits or runs."""
    query = JobQuery(states=(JobState.READY, JobState.RUNNING), limit=1)
    return bool((await storage.jobs(query)).items)


async def all_entries(storage: StorageBackend, ids: list[str]) -> list[Entry]:
    """Return the entries of the contexts, after the checks that hold for every store."""
    if isinstance(storage, HasIntegrity):
        assert await storage.integrity() == []
    return [entry for id in ids for entry in await sound(storage, id)]


async def kill_workers(url: str, workers: int, count: int, every: float = KILL_EVERY) -> None:
    """Let workers do jobs while one of them is killed now and then; each job has one effect, the queue drains."""
    rng = random.Random(count)
    storage = open_at(url)
    jobs = [JobDraft(kind="effect" if n % 20 else "zombie", dedupe=str(n)) for n in range(count)]
    ids = await enqueue_jobs(storage, jobs)
    began = time.monotonic()
    processes = [start_worker(url) for _ in range(workers)]
    beats = kills = 0
    try:
        while await has_unfinished_jobs(storage):
            beats += 1
            due = began + every * beats  # the rhythm of the kills, not a wait for anything
            await asyncio.sleep(due - time.monotonic())
            assert beats < 4000, "the queue does not drain"
            # Where starting takes longer than a beat, all would be killed before their first job.
            ready = [n for n, one in enumerate(processes) if select.select([one.stdout], (), (), 0)[0]]
            if len(ready) < 2:
                continue
            victim = rng.choice(ready)
            os.kill(processes[victim].pid, signal.SIGKILL)
            assert finish_process(processes[victim]) == -signal.SIGKILL
            processes[victim] = start_worker(url)
            kills += 1
        seconds = time.monotonic() - began
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            stop_worker(process)
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
                finish_process(process)
    found = await list_jobs(storage)
    assert Counter(job.state for job in found) == {JobState.DONE: count}
    effects = Counter(entry.content for entry in await all_entries(storage, ids))
    assert effects == {str(n): 1 for n in range(count)}, "a job without an effect, or with two"
    again = Counter(job.attempt for job in found)
    print(
        f"{workers} workers, {count} jobs, {kills} kills in {seconds:.0f} s: each job has one effect; "
        f"{count - again[1]} were tried again, one of them {max(again)} times; "
        f"{sum(1 for job in found if job.kind == 'zombie')} outlived their lease"
    )
    assert again[1] < count, "no zombie was overtaken"
    await storage.aclose()


@ON_EACH
async def test_t29_workers_that_are_killed_have_one_effect_of_each_job(url: str) -> None:
    # A worker on a server is longer at work before its first job: three of them would be killed before it.
    await kill_workers(url, 3, 40, every=KILL_EVERY if url.startswith("sqlite") else 1.0)


@pytest.mark.faults
async def test_t29_eight_workers_killed_every_250_ms_have_one_effect_of_each_of_2000_jobs(url: str) -> None:
    await kill_workers(url, 8, 2000)


@ON_EACH
async def test_t30_a_job_that_kills_its_workers_becomes_a_dead_letter_and_starves_nobody(url: str) -> None:
    storage = open_at(url)
    good = [JobDraft(kind="effect", dedupe=str(n)) for n in range(30)]
    ids = await enqueue_jobs(storage, [JobDraft(kind="poison", dedupe="poison"), *good])
    poisoned = deaths = 0
    while await has_unfinished_jobs(storage):
        process = start_worker(url, "once", attempts=3)
        assert process.stdout is not None
        poisoned += process.stdout.read().splitlines().count("poisoned")
        deaths += finish_process(process) == -signal.SIGKILL
    assert (poisoned, deaths) == (3, 3)
    (letter,) = await list_jobs(storage, JobState.FAILED)
    assert (letter.dedupe, letter.attempt) == ("poison", 4)
    assert letter.error == "attempt 3 ended without an answer: its worker died or was too slow"
    effects = Counter(entry.content for entry in await all_entries(storage, ids))
    assert effects == {str(n): 1 for n in range(30)}
    await storage.aclose()


@ON_EACH
async def test_a_worker_told_to_stop_in_the_middle_of_a_job_leaves_in_order(url: str) -> None:
    storage = open_at(url)
    ids = await enqueue_jobs(storage, [JobDraft(kind="effect", dedupe=str(n)) for n in range(3000)])
    process = start_worker(url)
    while not await list_jobs(storage, JobState.DONE):
        await asyncio.sleep(0.01)
    stop_worker(process)
    found = Counter(job.state for job in await list_jobs(storage))
    assert found[JobState.RUNNING] == 0, "what ran was finished"
    assert found[JobState.READY] > 0, "nothing new was begun"
    assert len(await all_entries(storage, ids)) == found[JobState.DONE]
    await storage.aclose()


class Answers:
    """A summarizer of the model whose caller was killed."""

    model = _compactor.MODEL

    async def summarize(self, request: SummaryRequest) -> str:
        """Answer at once."""
        return "The team looked at the old service."


WAYS = ("wait", "wait_pending", "nobody waits")


@pytest.mark.parametrize(
    ("url", "way"),
    [
        ("sqlite", "wait"),
        ("sqlite", "nobody waits"),
        pytest.param("sqlite", "wait_pending", marks=pytest.mark.faults),
        *(pytest.param("postgres", way, marks=pytest.mark.faults) for way in WAYS),
    ],
    indirect=["url"],
)
async def test_a_compaction_whose_process_was_killed_is_taken_over_when_its_lease_ends(
    url: str, way: str
) -> None:
    """The next process comes at once, while the dead one still holds the job, and no further request is made."""
    process = start_python("-m", "tests.faults._compactor", url, str(ORPHANED))
    assert process.stdout is not None
    assert process.stdout.readline() == "asked\n"
    process.kill()
    assert finish_process(process) == -signal.SIGKILL
    storage = open_at(url)
    (job,) = await list_jobs(storage)
    assert (job.state, job.attempt) == (JobState.RUNNING, 1)
    await storage.aclose()
    config = ACMSConfig(worker=WorkerConfig(lease_seconds=3_600))
    async with ACMS("talk", open_storage(url), summarizer=Answers(), config=config) as session:
        async with asyncio.timeout(300):
            if way == "wait_pending":
                await session.wait_pending()
            else:
                asked = await session.compact()
                assert asked.id == job.id
            if way == "wait":
                await session.wait(asked)
            while await has_unfinished_jobs(session.storage):
                assert way == "nobody waits"
                await asyncio.sleep(0.01)
        (job,) = await list_jobs(session.storage)
        assert (job.state, job.attempt) == (JobState.DONE, 2)
        (made,) = await session.compactions()
        assert made.summary.startswith("The team looked at the old service.")
        (context,) = (await session.storage.contexts(ContextQuery())).items
        assert len([one for one in await sound(session.storage, context.id) if one.replaces]) == 1


async def test_an_idle_worker_disturbs_no_writer(tmp_path: Path) -> None:
    """A claim that finds nothing takes no lock: it is answered while another process holds the file to write."""
    path = tmp_path / "a.db"
    storage = SQLiteStorage(path, busy_seconds=0)
    await enqueue_jobs(storage, [JobDraft(kind="other", dedupe="d")])
    other = apsw.Connection(str(path))
    other.execute("BEGIN IMMEDIATE").fetchall()
    try:
        assert await storage.claim(["k"], lease=timedelta(minutes=1)) == []
        with pytest.raises(StorageBusyError):
            await storage.claim(["other"], lease=timedelta(minutes=1))
    finally:
        other.execute("ROLLBACK").fetchall()
        other.close()
    assert len(await storage.claim(["other"], lease=timedelta(minutes=1))) == 1
    await storage.aclose()
