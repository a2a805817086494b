"""Reflections whose workers are killed anywhere: every fact once, every episode once, and a bounded number of calls.

pytest -m faults tests/faults/test_reflection.py      the long run
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections import Counter
from pathlib import Path

import pytest

from acms import ACMS, ACMSConfig, EpisodeBoundaryConfig, JobState, Kind, WorkerConfig
from acms.facts import backlog as reflect
from acms.log import facts as known_messages
from acms.log.active_entries import Replacements
from acms.log.read import PROFILE
from acms.model import JobQuery
from acms.ports import StorageBackend
from acms.testing import sound

from ._process import finish_process, start_python
from ._reflector import Chars
from ._work import open_at

LEASE = 0.4


class Absent:
    """The name of a reflector that other processes have."""

    model = "learner"

    async def reflect(self, request: object) -> None:
        """Never asked here."""
        raise AssertionError


async def write_episodes(storage: StorageBackend, name: str, episodes: int) -> str:
    """Talk for some episodes, one of whose two messages each is about the namespace; return the context."""
    config = ACMSConfig(episodes=EpisodeBoundaryConfig(max_turns=2), worker=WorkerConfig(enabled=False))
    given = {"namespace": "team", "reflector": Absent(), "token_counter": Chars(), "config": config}
    session = ACMS(name, storage, **given)  # type: ignore[arg-type]
    for number in range(episodes):
        await session.ingest("user", f"{name} thing {number % 5} is {number}")
        await session.ingest("user", f"we: {name} {number} is known")
    found = await session._shared.find()
    assert found is not None
    return found


async def assert_facts_once(storage: StorageBackend, context: str, name: str, episodes: int) -> None:
    """Assert that a log has every fact and every mark once, the newest at each address in force."""
    entries = await sound(storage, context)
    facts = [entry for entry in entries if entry.kind is Kind.FACT]
    assert [fact.content for fact in facts] == [f"{name} thing {n % 5} is {n}" for n in range(episodes)]
    replacements = Replacements([entry for entry in entries if entry.replaces])
    assert [fact.content for fact in known_messages.active_facts(facts, replacements)] == [
        f"{name} thing {n % 5} is {n}" for n in range(max(0, episodes - 5), episodes)
    ]
    marks = [entry for entry in entries if entry.kind is Kind.SUMMARY and reflect.is_reflection_mark(entry)]
    assert [mark.episode for mark in marks] == list(range(1, episodes + 1))


async def kill_reflectors(
    url: str, calls: Path, sessions: int, episodes: int, workers: int, seed: int
) -> None:
    """Let workers reflect while they are killed at random points."""
    rng = random.Random(seed)
    storage = open_at(url)
    contexts = {
        f"s{number}": await write_episodes(storage, f"s{number}", episodes) for number in range(sessions)
    }
    processes = [
        start_python("-m", "tests.faults._reflector", "work", url, str(LEASE), str(calls))
        for _ in range(workers)
    ]
    kills = 0
    try:
        while (await storage.jobs(JobQuery(states=(JobState.READY, JobState.RUNNING), limit=1))).items:
            victim = rng.randrange(workers)
            process = processes[victim]
            assert process.stdout is not None
            assert await asyncio.to_thread(process.stdout.readline) == "ready\n"
            await asyncio.sleep(rng.random() / 5)  # somewhere in its work: the point of the test
            os.kill(process.pid, signal.SIGKILL)
            assert finish_process(process) == -signal.SIGKILL
            processes[victim] = start_python(
                "-m", "tests.faults._reflector", "work", url, str(LEASE), str(calls)
            )
            kills += 1
            assert kills < 1000, "the queue does not drain"
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
            finish_process(process)
    for name, context in contexts.items():
        await assert_facts_once(storage, context, name, episodes)
    profile = await sound(storage, (await storage.context(PROFILE, namespace="team")).id)
    expected = [f"we: s{m} {n} is known" for m in range(sessions) for n in range(episodes)]
    assert Counter(one.content for one in profile if one.kind is Kind.FACT) == Counter(expected)
    asked = len(calls.read_text().splitlines())
    assert sessions * episodes <= asked <= sessions * episodes + 2 * (kills + workers), (
        "a stretch was asked about too often"
    )
    states = Counter(job.state for job in (await storage.jobs(JobQuery(limit=500))).items)
    assert set(states) == {JobState.DONE}
    print(f"{sessions} x {episodes} episodes, {kills} kills, {asked} calls: nothing lost, nothing twice")
    await storage.aclose()


@pytest.mark.parametrize("url", ["sqlite", pytest.param("postgres", marks=pytest.mark.faults)], indirect=True)
async def test_reflections_whose_workers_are_killed_say_everything_once(url: str, tmp_path: Path) -> None:
    await kill_reflectors(url, tmp_path / "calls", sessions=2, episodes=4, workers=2, seed=1)


@pytest.mark.faults
@pytest.mark.parametrize("seed", range(5))
async def test_many_reflections_whose_workers_are_killed_say_everything_once(
    url: str, tmp_path: Path, seed: int
) -> None:
    await kill_reflectors(url, tmp_path / "calls", sessions=6, episodes=40, workers=3, seed=seed)
