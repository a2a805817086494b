"""Reflection: every closed episode is read once, in order, whatever fails, restarts or is rewritten meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import pytest

from acms import (
    ACMS,
    ACMSConfig,
    ACMSError,
    ConflictError,
    Decision,
    Entry,
    EpisodeBoundaryConfig,
    Fact,
    GoneError,
    IdempotencyMismatchError,
    Job,
    JobState,
    Kind,
    Origin,
    Privacy,
    ProviderError,
    ReflectionConfig,
    RetryConfig,
    StorageBusyError,
    StorageError,
    WorkerConfig,
    compose,
    open_storage,
    sync,
)
from acms.errors import JobFailedError
from acms.facts import backlog as reflect
from acms.facts.job import make_reflection_handler
from acms.jobs.requests import cancel_job_by_id
from acms.jobs.worker import Worker
from acms.log import facts as known_messages
from acms.log.active_entries import Replacements
from acms.log.read import PROFILE
from acms.model import Append, JobQuery, Receipt
from acms.observability import Event, JobFailed, JobFinished, Reflected
from acms.ports import Proposal, Reflection, ReflectionRequest, StorageBackend
from acms.storage import WrapperStorage
from tests.support.talk import LONG_EPISODES, PATIENT, Storage, Words, ingest_texts, session_on

BY_HAND = WorkerConfig(enabled=False, max_attempts=3)


def reflection_config(**given: Any) -> ACMSConfig:
    """Episodes end by hand, what failed is tried again at once."""
    reflection = {name: given.pop(name) for name in list(given) if name in ReflectionConfig.__slots__}
    return ACMSConfig(
        **{"episodes": LONG_EPISODES, "retry": PATIENT, **given}, reflection=ReflectionConfig(**reflection)
    )


class Notes:
    """A reflector that learns "A is B" from every turn that says so; can wait, fail, and answer otherwise."""

    def __init__(self, model: str = "notes/1") -> None:
        self.model = model
        self.requests: list[ReflectionRequest] = []
        #: What the next calls do instead: raise it, or answer it.
        self.instead: list[Any] = []
        self.gate: asyncio.Event | None = None
        self.called = asyncio.Event()
        self.scope: Any = "session"

    async def reflect(self, request: ReflectionRequest) -> Any:
        self.requests.append(request)
        self.called.set()
        if self.gate is not None:
            await self.gate.wait()
        if self.instead:
            answer = self.instead.pop(0)
            if isinstance(answer, BaseException):
                raise answer
            return answer
        found: list[Proposal] = []
        for turn in request.turns:
            subject, is_, value = turn.text.partition(" is ")
            if is_:
                found.append(
                    Proposal(
                        content=turn.text, subject=subject, attribute="value", value=value, cardinality="one",
                        scope=self.scope, sources=(turn.version,),
                    )
                )  # fmt: skip
        return Reflection(proposals=tuple(found))

    @property
    def read(self) -> list[list[str]]:
        """The texts of each call."""
        return [[turn.text for turn in request.turns] for request in self.requests]


@pytest.fixture
def notes() -> Notes:
    return Notes()


def open_session(
    storage: Any, reflector: Any, name: str = "user_123", *, namespace: str = "team", **given: Any
) -> ACMS:
    config = reflection_config(**given)
    return session_on(storage, name, words=True, namespace=namespace, reflector=reflector, config=config)


async def write_episode(session: ACMS, *texts: str) -> list[str]:
    ids = await ingest_texts(session, *texts)
    await session.close_episode()
    return ids


async def context_of(session: ACMS) -> str:
    found = await session._shared.find()
    assert found is not None
    return found


async def facts_of(storage: StorageBackend, context: str) -> list[Entry]:
    entries = await storage.read(context)
    return known_messages.active_facts(
        [one for one in entries if one.kind is Kind.FACT],
        Replacements([one for one in entries if one.replaces]),
    )


async def fact_contents(session: ACMS) -> list[str]:
    return [one.content for one in await facts_of(session._shared.storage, await context_of(session))]


async def episode_marks(session: ACMS) -> list[Entry]:
    entries = await session._shared.storage.read(await context_of(session), kinds=(Kind.SUMMARY,))
    return [one for one in entries if reflect.is_reflection_mark(one)]


async def list_jobs(session: ACMS, *states: JobState) -> list[Job]:
    page = await session._shared.storage.jobs(JobQuery(states=states, limit=500))
    return [job for job in page.items if job.kind.startswith("reflect")]


# ── what comes of an episode ────────────────────────────────────────────────────────────────────────────────────────


async def test_a_closed_episode_becomes_facts_and_a_summary(storage: Storage, notes: Notes) -> None:
    async with open_session(storage, notes) as session:
        ids = await write_episode(session, "the database is PostgreSQL", "ok")
        await session.wait_pending()
        (fact,) = await facts_of(storage, await context_of(session))
        assert (fact.content, fact.sources) == ("the database is PostgreSQL", (ids[0],))
        (mark,) = await episode_marks(session)
        assert (mark.covers, mark.key, mark.episode, mark.sources) == ((1, 2), "episode:1", 1, tuple(ids))
        assert mark.data["reflector"] == "notes/1"
        (closed,) = await session.episodes()
        assert closed.summary == mark.content
        assert "PostgreSQL" in mark.content
        assert [item.content for item in await session.window(1000)] == ["the database is PostgreSQL", "ok"]


async def test_the_open_episode_is_not_read(storage: Storage, notes: Notes) -> None:
    async with open_session(storage, notes) as session:
        await ingest_texts(session, "the database is PostgreSQL", "ok")
        job = await session.reflect()
        assert await session.wait(job) is None
        assert (notes.requests, await fact_contents(session)) == ([], [])


async def test_without_a_reflector_nothing_is_asked_for(storage: Storage) -> None:
    async with session_on(storage) as session:
        await write_episode(session, "the database is PostgreSQL", "ok")
        assert await list_jobs(session) == []


async def test_switched_off_an_episode_asks_for_nothing_and_reflect_still_does(
    storage: Storage, notes: Notes
) -> None:
    async with open_session(storage, notes, enabled=False) as session:
        await write_episode(session, "the database is PostgreSQL", "ok")
        assert await list_jobs(session) == []
        await session.wait(await session.reflect())
        assert await fact_contents(session) == ["the database is PostgreSQL"]


@pytest.mark.parametrize("how", ["turns", "silence", "by hand"])
async def test_the_commit_that_ends_an_episode_asks_for_its_reflection(
    storage: Storage, notes: Notes, how: str
) -> None:
    rules = EpisodeBoundaryConfig(max_turns=2 if how == "turns" else 50)
    async with open_session(storage, notes, worker=BY_HAND, episodes=rules) as session:
        await session.ingest("user", "one", created_at="2026-01-01T10:00:00Z")
        assert await list_jobs(session) == []
        await session.ingest(
            "user",
            "two",
            created_at="2026-01-01T12:00:00Z" if how == "silence" else "2026-01-01T10:01:00Z",
        )
        if how == "by hand":
            assert await list_jobs(session) == []
            await session.close_episode()
        (job,) = await list_jobs(session)
        assert (job.kind, job.state) == ("reflect:notes/1", JobState.READY)


async def test_gleanr_10_three_quick_episodes_leave_one_fact_about_one_thing(
    storage: Storage, notes: Notes
) -> None:
    async with open_session(storage, notes) as session:
        for value in ("MySQL", "MongoDB", "PostgreSQL"):
            await write_episode(session, f"the database is {value}", "ok")
        await session.wait_pending()
        assert await fact_contents(session) == ["the database is PostgreSQL"]
        assert [mark.episode for mark in await episode_marks(session)] == [1, 2, 3]


async def test_episodes_are_read_in_order_though_they_close_while_the_model_thinks(
    storage: Storage, notes: Notes
) -> None:
    async with open_session(storage, notes, max_turns=2) as session:
        notes.gate = asyncio.Event()
        await write_episode(session, "the database is MySQL", "ok")
        await notes.called.wait()
        for value in ("MongoDB", "PostgreSQL"):
            await write_episode(session, f"the database is {value}", "ok")
        assert len(notes.requests) == 1
        notes.gate.set()
        await session.wait_pending()
        assert [texts[0] for texts in notes.read] == [
            f"the database is {value}" for value in ("MySQL", "MongoDB", "PostgreSQL")
        ]
        assert await fact_contents(session) == ["the database is PostgreSQL"]


async def test_one_call_reads_several_episodes_up_to_its_limits(storage: Storage, notes: Notes) -> None:
    async with open_session(storage, notes, max_turns=6, max_tokens=30, worker=BY_HAND) as session:
        for number in range(4):
            await write_episode(session, f"thing {number} is {number}", "ok")
        await write_episode(session, "long " * 50, "ok")
        await write_episode(session, "short", "ok")
        await Worker(
            storage, {"reflect:notes/1": make_reflection_handler(session._shared.config, notes, COUNTERS)}
        ).drain()
        assert [len(texts) for texts in notes.read] == [6, 2, 2, 2]
        assert len(await episode_marks(session)) == 6


COUNTERS = {"words": Words()}


# ── short episodes ──────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_short_episode_is_read_together_with_the_next_also_after_a_restart(
    any_url: str, notes: Notes
) -> None:
    async with open_storage(any_url) as storage:
        async with open_session(storage, notes, min_episode_turns=4) as session:
            await write_episode(session, "the database is PostgreSQL")
            await session.wait_pending()
            assert (notes.requests, await episode_marks(session)) == ([], [])
        again = storage if any_url == "memory://" else open_storage(any_url)
        async with again, open_session(again, notes, min_episode_turns=4) as session:
            await write_episode(session, "a", "b", "c")
            await session.wait_pending()
            assert notes.read == [["the database is PostgreSQL", "a", "b", "c"]]
            assert [mark.covers for mark in await episode_marks(session)] == [(1, 1), (3, 5)]
            assert all(one.summary for one in await session.episodes())


async def test_short_episodes_wait_until_they_are_enough_or_somebody_asks(
    storage: Storage, notes: Notes
) -> None:
    async with open_session(storage, notes, min_episode_turns=4) as session:
        for number in range(3):
            await write_episode(session, f"thing {number} is {number}")
        await session.wait_pending()
        assert notes.requests == []
        await session.wait(await session.reflect())
        assert [len(texts) for texts in notes.read] == [3]
        await write_episode(session, "thing 3 is 3")
        await session.wait_pending()
        assert len(notes.requests) == 1


# ── failure ─────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_gleanr_11_a_reflection_that_fails_is_tried_again_and_seen(
    storage: Storage, notes: Notes
) -> None:
    heard: list[Event] = []
    notes.instead = [RuntimeError("secret words"), ProviderError("busy", provider="p", retryable=True)]
    async with open_session(storage, notes, on_event=heard.append) as session:
        await write_episode(session, "the database is PostgreSQL", "ok")
        await session.wait_pending()
        assert await fact_contents(session) == ["the database is PostgreSQL"]
    failed = [one for one in heard if isinstance(one, JobFailed)]
    assert [one.state for one in failed] == ["ready", "ready"]
    assert not any("secret" in one.error for one in failed)
    assert [type(one) for one in heard if isinstance(one, JobFinished | Reflected)] == [
        Reflected,
        JobFinished,
    ]


async def test_what_was_given_up_is_read_with_the_next_episode(storage: Storage, notes: Notes) -> None:
    async with open_session(storage, notes, worker=WorkerConfig(max_attempts=2)) as session:
        notes.instead = [RuntimeError("down")] * 2
        await write_episode(session, "the database is PostgreSQL", "ok")
        await session.wait_pending()
        (job,) = await list_jobs(session)
        assert (job.state, await fact_contents(session)) == (JobState.FAILED, [])
        assert [item.content for item in await session.recall("which database?")] != []
        with pytest.raises(JobFailedError):
            await session.wait(job)
        await write_episode(session, "the cache is Redis", "ok")
        await session.wait_pending()
        assert await fact_contents(session) == ["the database is PostgreSQL", "the cache is Redis"]


async def test_close_waits_for_no_model_and_the_next_session_goes_on(any_url: str, notes: Notes) -> None:
    notes.gate = asyncio.Event()
    async with open_storage(any_url) as keeps:
        store = keeps if any_url == "memory://" else open_storage(any_url)
        session = open_session(store, notes)
        async with session:
            await write_episode(session, "the database is PostgreSQL", "ok")
            await notes.called.wait()
        if any_url == "memory://":  # it is still in use
            await session._shared.background.stop()
        (job,) = (await keeps.jobs(JobQuery())).items
        assert (job.state, job.error) == (JobState.READY, "the worker was stopped")
        notes.gate.set()
        async with open_session(keeps, notes) as session:
            await session.get_session_stats()  # the first touch
            await session.wait_pending()
            assert await fact_contents(session) == ["the database is PostgreSQL"]


async def test_what_waits_for_a_model_that_is_gone_is_taken_over(storage: Storage) -> None:
    async with open_session(storage, Notes("old/1"), worker=BY_HAND) as session:
        await write_episode(session, "the database is PostgreSQL", "ok")
    async with open_session(storage, Notes("new/1")) as session:
        await session.window(100)
        await session.wait_pending()
        assert await fact_contents(session) == ["the database is PostgreSQL"]
        assert {job.kind: job.state for job in await list_jobs(session)} == {
            "reflect:old/1": JobState.CANCELLED,
            "reflect:new/1": JobState.DONE,
        }


async def test_a_take_over_that_was_cut_short_is_completed_by_the_next_session(storage: Storage) -> None:
    async with open_session(storage, Notes("old/1"), worker=BY_HAND) as session:
        await write_episode(session, "the database is PostgreSQL", "ok")

    class Cut(WrapperStorage):
        """Ends with the process between the withdrawal of a job and the request for another."""

        async def append(self, ops: Sequence[Append]) -> list[Receipt | ACMSError]:
            raise StorageBusyError("the process was killed")

    async with open_session(Cut(storage), Notes("new/1")) as session:
        await session.window(100)
        assert [job.state for job in await list_jobs(session)] == [JobState.CANCELLED]
    async with open_session(storage, Notes("new/1")) as session:
        await session.window(100)
        await session.wait_pending()
        assert await fact_contents(session) == ["the database is PostgreSQL"]
        assert [job.state for job in await list_jobs(session)] == [JobState.DONE, JobState.CANCELLED]
    async with open_session(storage, Notes("new/1")) as session:  # and only once
        await session.window(100)
        assert len(await list_jobs(session)) == 2


async def test_what_somebody_cancelled_is_not_asked_for_again(storage: Storage, notes: Notes) -> None:
    async with open_session(storage, notes, worker=BY_HAND) as session:
        await write_episode(session, "the database is PostgreSQL", "ok")
        (job,) = await list_jobs(session)
        await cancel_job_by_id(storage, job.id)
    async with open_session(storage, notes) as session:
        await session.window(100)
        assert [job.state for job in await list_jobs(session)] == [JobState.CANCELLED]


# ── waiting ─────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_inline_an_ingest_that_ends_an_episode_waits_for_its_facts(
    storage: Storage, notes: Notes
) -> None:
    rules = EpisodeBoundaryConfig(max_turns=2)
    async with open_session(storage, notes, inline=True, episodes=rules) as session:
        await ingest_texts(session, "the database is PostgreSQL", "ok")
        assert await fact_contents(session) == ["the database is PostgreSQL"]
        await ingest_texts(session, "the cache is Redis")
        await session.close_episode()
        await ingest_texts(session, "a", "b")
        assert await fact_contents(session) == ["the database is PostgreSQL", "the cache is Redis"]


async def test_inline_a_failure_does_not_fail_the_ingest(storage: Storage, notes: Notes) -> None:
    notes.instead = [RuntimeError("down")]
    slow = RetryConfig(base_delay=0.2, jitter=False)
    async with open_session(storage, notes, inline=True, retry=slow) as session:
        await write_episode(session, "the database is PostgreSQL", "ok")
        assert notes.requests
        await session.wait_pending()
        assert await fact_contents(session) == ["the database is PostgreSQL"]


def test_blocking_code_reflects_too(any_url: str) -> None:
    notes = Notes()
    with sync.ACMS("s", open_storage(any_url), reflector=notes, config=reflection_config()) as session:
        session.ingest("user", "the database is PostgreSQL")
        session.close_episode()
        assert session.wait(session.reflect()) is None
        assert notes.read == [["the database is PostgreSQL"]]


async def test_asked_twice_there_is_one_job(storage: Storage, notes: Notes) -> None:
    async with open_session(storage, notes, worker=BY_HAND) as session:
        await write_episode(session, "the database is PostgreSQL")
        (waiting,) = await list_jobs(session)
        one, two = await session.reflect(), await session.reflect()
        assert one.id == two.id != waiting.id
        assert [job.state for job in await list_jobs(session)] == [JobState.READY, JobState.CANCELLED]


# ── many at once ────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_many_sessions_and_handles_on_one_log_ask_a_model_once(url: str) -> None:
    notes = Notes()
    async with open_storage(url) as left, open_storage(url) as right:
        sessions = [open_session(store, notes) for store in (left, right, left)]
        await sessions[0].ingest("user", "hello")
        for number in range(9):
            await write_episode(sessions[number % 3], f"thing {number} is {number}", "ok")
        for session in sessions:
            await session.wait_pending()
        while await list_jobs(sessions[0], JobState.READY, JobState.RUNNING):
            await asyncio.sleep(0.01)
        read = [text for texts in notes.read for text in texts]
        assert read == ["hello", *(text for n in range(9) for text in (f"thing {n} is {n}", "ok"))]
        assert sorted(await fact_contents(sessions[0])) == [f"thing {n} is {n}" for n in range(9)]
        for session in sessions:
            await session.close()


async def test_two_attempts_at_once_say_it_once(storage: Storage, notes: Notes) -> None:
    """A worker that lost its lease while the model thought appends nothing a second time."""
    async with open_session(storage, notes, worker=BY_HAND) as session:
        await write_episode(session, "the database is PostgreSQL", "ok")
        run = make_reflection_handler(session._shared.config, notes, COUNTERS)
        from datetime import timedelta

        notes.gate = asyncio.Event()
        (first,) = await storage.claim(["reflect:notes/1"], lease=timedelta(milliseconds=1))
        late = asyncio.ensure_future(run(storage, first))
        await notes.called.wait()
        while not (again := await storage.claim(["reflect:notes/1"], lease=timedelta(minutes=1))):
            await asyncio.sleep(0.001)
        notes.called.clear()
        other = asyncio.ensure_future(run(storage, again[0]))
        await notes.called.wait()
        notes.gate.set()
        done = await asyncio.gather(late, other, return_exceptions=True)
        assert [type(one).__name__ for one in done] == ["LeaseLostError", "NoneType"]
        assert await fact_contents(session) == ["the database is PostgreSQL"]
        assert len(await episode_marks(session)) == 1


class Meanwhile(WrapperStorage):
    """Does something right before an append that meets a condition, once."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.when: Any = None
        self.do: Any = None

    async def append(self, ops: Sequence[Append]) -> list[Receipt | ACMSError]:
        if self.do is not None and any(self.when(op) for op in ops):
            do, self.do = self.do, None
            await do()
        return await super().append(ops)


async def worked_off(session: ACMS, storage: Any, notes: Notes) -> None:
    run = make_reflection_handler(session._shared.config, notes, COUNTERS)
    await Worker(storage, {"reflect:notes/1": run}, retry=PATIENT).drain()


async def test_an_episode_closed_during_the_last_append_is_not_forgotten(
    storage: Storage, notes: Notes
) -> None:
    async with open_session(storage, notes, worker=BY_HAND) as session:
        await write_episode(session, "the database is MySQL", "ok")
        between = Meanwhile(storage)
        between.when = lambda op: op.finish is not None
        between.do = lambda: write_episode(session, "the database is PostgreSQL", "ok")
        await worked_off(session, between, notes)
        assert await fact_contents(session) == ["the database is PostgreSQL"]
        assert await list_jobs(session, JobState.READY, JobState.RUNNING) == []


def facts_in(op: Append) -> bool:
    return any(draft.kind is Kind.FACT for draft in op.drafts)


async def test_a_rewrite_elsewhere_asks_no_model_again(storage: Storage, notes: Notes) -> None:
    async with open_session(storage, notes, worker=BY_HAND) as session:
        await ingest_texts(session, "hello")
        ids = await write_episode(session, "the database is MySQL", "ok")
        await worked_off(session, storage, notes)
        await write_episode(session, "the database is PostgreSQL", "ok")
        between = Meanwhile(storage)
        between.when = facts_in
        between.do = lambda: session.retract(ids[1])
        await worked_off(session, between, notes)
        assert len(notes.requests) == 2
        assert await fact_contents(session) == ["the database is PostgreSQL"]


async def test_what_is_retracted_while_the_model_thinks_is_not_learned(
    storage: Storage, notes: Notes
) -> None:
    async with open_session(storage, notes, worker=BY_HAND) as session:
        ids = await write_episode(session, "the database is MySQL", "the cache is Redis")
        between = Meanwhile(storage)
        between.when = facts_in
        between.do = lambda: session.retract(ids[0])
        await worked_off(session, between, notes)
        assert await fact_contents(session) == ["the cache is Redis"]
        assert notes.read[1] == ["the cache is Redis"]


async def test_what_is_erased_while_the_model_thinks_is_not_learned(storage: Storage, notes: Notes) -> None:
    async with open_session(storage, notes, worker=BY_HAND) as session:
        ids = await write_episode(session, "the database is MySQL", "the cache is Redis")
        between = Meanwhile(storage)
        between.when = facts_in
        between.do = lambda: session.erase(ids[0])
        await worked_off(session, between, notes)
        assert await fact_contents(session) == ["the cache is Redis"]
        assert all("MySQL" not in one.content for one in await storage.read(await context_of(session)))


async def test_an_erased_mark_still_says_how_far_was_read(storage: Storage, notes: Notes) -> None:
    async with open_session(storage, notes) as session:
        ids = await write_episode(session, "the database is MySQL", "ok")
        await session.wait_pending()
        await session.erase(ids[0])
        assert (await fact_contents(session), [mark.content for mark in await episode_marks(session)]) == (
            [],
            [""],
        )
        assert [one.summary for one in await session.episodes()] == [None]
        await write_episode(session, "the cache is Redis", "ok")
        await session.wait_pending()
        assert notes.read[1:] == [["the cache is Redis", "ok"]]
        assert await fact_contents(session) == ["the cache is Redis"]


async def test_what_was_compacted_is_read_as_it_was_said(storage: Storage, notes: Notes) -> None:
    async with open_session(storage, notes, worker=BY_HAND) as session:
        await write_episode(session, *(f"thing {number} is {number} {'word ' * 40}" for number in range(30)))
        compacting = await session.compact()
        await Worker(storage, jobs_of(session)).drain()
        assert await session.wait(compacting) is not None
        assert [len(texts) for texts in notes.read] == [30]
        assert len(await fact_contents(session)) == 10
        assert len(await episode_marks(session)) == 1
        assert len(await session.compactions()) == 1


async def test_cleared_and_retracted_messages_are_not_read(storage: Storage, notes: Notes) -> None:
    async with open_session(storage, notes, worker=BY_HAND) as session:
        await write_episode(session, "the database is MySQL", "ok")
        await session.clear()
        await write_episode(session, "the cache is Redis", "ok")
        await worked_off(session, storage, notes)
        assert notes.read == [["the cache is Redis", "ok"]]
        assert [mark.episode for mark in await episode_marks(session)] == [1, 2]


async def test_a_busy_store_costs_no_second_call(storage: Storage, notes: Notes) -> None:
    async with open_session(storage, notes, worker=BY_HAND) as session:
        await write_episode(session, "the database is MySQL", "ok")
        between = Meanwhile(storage)
        between.when = facts_in
        between.do = raise_busy
        await worked_off(session, between, notes)
        assert await fact_contents(session) == ["the database is MySQL"]
        assert len(notes.requests) == 1
        assert [job.attempt for job in await list_jobs(session)] == [1]


async def raise_busy() -> None:
    raise StorageBusyError


def make_raiser(error: ACMSError) -> Any:
    async def fail() -> None:
        raise error

    return fail


@pytest.mark.parametrize(
    ("scope", "error", "calls", "attempts"),
    [
        ("session", GoneError("a source was erased"), 2, 1),
        ("namespace", GoneError("a source was erased"), 2, 1),
        ("session", ConflictError("refused for another reason"), 2, 2),
        ("namespace", ConflictError("somebody was first"), 1, 1),
    ],
)
async def test_facts_that_cannot_be_stored_are_learned_all_the_same(
    storage: Storage, notes: Notes, scope: str, error: ACMSError, calls: int, attempts: int
) -> None:
    notes.scope = scope
    async with open_session(storage, notes, worker=BY_HAND) as session:
        await write_episode(session, "the database is MySQL", "ok")
        between = Meanwhile(storage)
        between.when = facts_in
        between.do = make_raiser(error)
        await worked_off(session, between, notes)
        assert [fact.value for fact in await session.facts(scope=scope)] == ["MySQL"]
        assert len(notes.requests) == calls
        assert [(job.state, job.attempt) for job in await list_jobs(session)] == [(JobState.DONE, attempts)]
        assert len(await episode_marks(session)) == 1


@pytest.mark.parametrize("scope", ["session", "namespace"])
async def test_what_a_store_refused_for_good_is_learned_when_somebody_asks(
    storage: Storage, notes: Notes, scope: str
) -> None:
    notes.scope = scope
    async with open_session(storage, notes, worker=BY_HAND) as session:
        await write_episode(session, "the database is MySQL", "ok")
        between = Meanwhile(storage)
        between.when = facts_in
        between.do = make_raiser(StorageError("the disk is full"))
        await worked_off(session, between, notes)
        assert [(job.state, job.error) for job in await list_jobs(session)] == [
            (JobState.FAILED, "STORAGE: the disk is full")
        ]
        assert (await session.facts(scope=scope), await episode_marks(session)) == ([], [])
        await session.reflect()
        await worked_off(session, storage, notes)
        assert [fact.value for fact in await session.facts(scope=scope)] == ["MySQL"]


async def test_what_another_attempt_has_said_is_not_said_again(storage: Storage, notes: Notes) -> None:
    async with open_session(storage, notes, worker=BY_HAND) as session:
        await write_episode(session, "the database is MySQL", "ok")
        between = Meanwhile(storage)
        between.when = facts_in
        between.do = make_raiser(IdempotencyMismatchError("another text under the same key"))
        await worked_off(session, between, notes)
        assert await fact_contents(session) == ["the database is MySQL"]
        notes.scope = "namespace"
        await write_episode(session, "the cache is Redis", "ok")
        between.do = make_raiser(IdempotencyMismatchError("another text under the same key"))
        await worked_off(session, between, notes)
        assert await session.facts(scope="namespace") == []  # it lies in the profile of that attempt
        assert (len(notes.requests), len(await episode_marks(session))) == (3, 2)


class Gone(Meanwhile):
    """Rejects every fact, as if its sources were always gone."""

    async def append(self, ops: Sequence[Append]) -> list[Receipt | ACMSError]:
        if any(map(facts_in, ops)):
            return [GoneError("a source was erased") for _ in ops]
        return await super().append(ops)


async def test_a_log_that_changes_under_every_call_ends_the_attempt(storage: Storage, notes: Notes) -> None:
    async with open_session(storage, notes, worker=BY_HAND) as session:
        await write_episode(session, "the database is MySQL", "ok")
        await worked_off(session, Gone(storage), notes)
        (job,) = await list_jobs(session)
        assert job.state is JobState.FAILED
        assert "changes faster than it can be reflected on" in (job.error or "")
        assert len(notes.requests) == 9 * job.attempt
        assert await episode_marks(session) == []


async def test_how_much_is_read_at_a_time_changes_nothing(
    storage: Storage, notes: Notes, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [f"thing {number} is {number}, and more was said of it" for number in range(7)]
    found: list[Any] = []
    for name in ("whole", "pieces"):
        async with open_session(storage, notes, name) as session:
            await write_episode(session, *texts)
            await session.wait_pending()
            found.append(
                (await fact_contents(session), [mark.content for mark in await episode_marks(session)])
            )
        monkeypatch.setattr("acms.facts.job.CHUNK", 2)
        monkeypatch.setattr("acms.facts.job.THREAD_MIN_CHARS", 10)
    assert found[0] == found[1]
    assert notes.read == [texts, texts]


def jobs_of(session: ACMS) -> dict[str, Any]:
    """The handlers of every kind of job, as a session knows them."""

    shared = session._shared
    reflector = shared.reflector
    assert reflector is not None
    return compose.handlers(shared.config, counters=COUNTERS, reflectors=[reflector])


async def test_an_edit_is_read_with_the_next_episode_or_when_somebody_asks(
    storage: Storage, notes: Notes
) -> None:
    async with open_session(storage, notes) as session:
        ids = await write_episode(session, "the database is MySQL", "ok")
        await session.wait_pending()
        await session.replace(ids[0], "the database is PostgreSQL")
        await write_episode(session, "the cache is Redis", "ok")
        await session.wait_pending()
        assert notes.read[1] == ["the database is PostgreSQL", "the cache is Redis", "ok"]
        await session.replace(ids[0], "the database is SQLite")
        await session.wait(await session.reflect())
        assert notes.read[2:] == [["the database is SQLite"]]
        await session.wait(await session.reflect())
        assert len(notes.requests) == 3
        assert sorted(await fact_contents(session)) == ["the cache is Redis", "the database is SQLite"]


# ── what a reflector is shown, and what it may answer ───────────────────────────────────────────────────────────────


async def test_what_is_blocked_or_was_rendered_is_not_shown(storage: Storage, notes: Notes) -> None:
    async with open_session(storage, notes) as session:
        await session.ingest("user", "the password is hunter2", privacy=Privacy.BLOCK)
        await session.ingest("user", "mine is this\n\n<recalled>\nthe database is MySQL\n</recalled>")
        await session.ingest("tool", "the weather is bad", origin=Origin.EXTERNAL)
        await session.close_episode()
        await session.wait_pending()
        assert notes.read == [["mine is this", "the weather is bad"]]
        assert [turn.origin for turn in notes.requests[0].turns] == [Origin.USER, Origin.EXTERNAL]
        (mark,) = await episode_marks(session)
        assert "hunter2" not in mark.content


async def test_an_episode_of_which_nothing_may_be_shown_is_passed_over(
    storage: Storage, notes: Notes
) -> None:
    async with open_session(storage, notes) as session:
        for number in range(2):
            await session.ingest("user", f"the password is {number}", privacy=Privacy.BLOCK)
        await session.close_episode()
        await session.wait_pending()
        assert notes.requests == []
        assert [(one.status, one.summary) for one in await session.episodes()] == [("closed", None)]
        assert len(await episode_marks(session)) == 1


async def test_facts_in_force_are_shown_those_with_the_same_words_first() -> None:
    turns = [reflect.Turn(speaker="user", text="our printers are blue", version=1)]
    found = [Fact(id=str(n), content=f"number {n}") for n in range(50)] + [Fact(id="p", content="printers")]
    assert reflect.select_known_facts(found[:40], turns) == tuple(found[:40])
    shown = reflect.select_known_facts(found, turns)
    assert (len(shown), shown[0].id) == (40, "p")


async def test_the_summary_of_the_reflector_is_kept_within_its_limit(storage: Storage, notes: Notes) -> None:
    async with open_session(storage, notes) as session:
        notes.instead = [
            Reflection(summary="They chose\0 a database."),
            Reflection(summary="A sentence that says this. " * 100),
        ]
        for _ in range(2):
            await write_episode(session, "the database is PostgreSQL", "ok")
            await session.wait_pending()
        one, two = await session.episodes()
        assert one.summary == "They chose a database."
        assert [mark.data["summarizer"] for mark in await episode_marks(session)] == ["notes/1"] * 2
        assert two.summary is not None
        assert 0 < len(two.summary.split()) <= notes.requests[1].max_summary_tokens


@pytest.mark.parametrize(
    ("answer", "kept", "told"),
    [
        (None, 0, 1),
        ("text", 0, 1),
        (Reflection(proposals=None), 0, 1),  # type: ignore[arg-type]
        ([Proposal(content="a"), Fact(content="b", confidence=0.9), 7], 2, 1),
        (Reflection(proposals=(Proposal(content=None), Proposal(content="a"))), 1, 1),  # type: ignore[arg-type]
        (Reflection(proposals=(Proposal(content="a", confidence="high"),)), 0, 1),  # type: ignore[arg-type]
        (Reflection(proposals=(Proposal(content="a", confidence=None),)), 0, 1),  # type: ignore[arg-type]
        (Reflection(proposals=(Proposal(content="a", confidence=float("nan")),)), 0, 0),
        (Reflection(proposals=(Proposal(action=None, content="a"),)), 0, 1),  # type: ignore[arg-type]
        (Reflection(proposals=(Proposal(action=["add"], content="a"),)), 0, 1),  # type: ignore[arg-type]
        (Reflection(proposals=(Proposal(content="a", sources=("x",)),)), 0, 1),  # type: ignore[arg-type]
        (Reflection(proposals=(Proposal(content="a", sources=(99,)),)), 1, 0),
        (Reflection(proposals=(Proposal(content="a\ud800\0b"),), summary=3), 1, 1),  # type: ignore[arg-type]
        (Reflection(unreadable=("half of it", 3)), 0, 1),  # type: ignore[arg-type]
    ],
)
async def test_what_cannot_be_read_of_an_answer_is_passed_over_and_told(
    storage: Storage, notes: Notes, answer: Any, kept: int, told: int
) -> None:
    heard: list[Event] = []
    notes.instead = [answer]
    async with open_session(storage, notes, on_event=heard.append) as session:
        await write_episode(session, "hello", "ok")
        await session.wait_pending()
        (trace,) = [one for one in heard if isinstance(one, Reflected)]
        assert (len(await fact_contents(session)), len(trace.unreadable)) == (kept, told)
        assert len(await episode_marks(session)) == len(notes.requests) == 1


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"negative": "no"}, "negative is a str"),
        ({"fact_id": 7}, "fact_id is a int"),
        ({"valid_from": "2026-03-01"}, "valid_from is no time with a time zone"),
        ({"valid_to": datetime(2026, 3, 1)}, "valid_to is no time with a time zone"),
        ({"names": None}, "names is no list of texts"),
        ({"depends_on": "f1"}, "depends_on is no list of texts"),
    ],
)
def test_a_proposal_that_cannot_be_read_says_why(given: dict[str, Any], why: str) -> None:
    found = reflect.parse_answer([Proposal(content="a", **given), Proposal(content="b")], {})
    assert [one.content for one in found.proposals] == ["b"]
    assert found.unreadable == (f"proposal 1: {why}",)


def test_a_fact_that_cites_no_list_is_no_proposal() -> None:
    listed, alone = Fact(content="a", sources=("m_1", "m_9")), Fact(content="a", sources="m_1")  # type: ignore[arg-type]
    found = reflect.parse_answer([listed, alone], {"m_1": 3})
    assert [one.sources for one in found.proposals] == [(3,)]
    assert found.unreadable == ("proposal 2: sources are not versions",)


def test_of_an_endless_answer_the_first_proposals_are_read() -> None:
    answer = Reflection(proposals=(Proposal(content="a"),) * (reflect.MAX_PROPOSALS + 3), unreadable=7)  # type: ignore[arg-type]
    found = reflect.parse_answer(answer, {})
    assert len(found.proposals) == reflect.MAX_PROPOSALS
    assert found.unreadable == ("3 proposals beyond the first 1000",)


class SeedShaped:
    """With the simpler shape that is accepted too."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, list[Any]]] = []

    async def reflect(self, episode: Any, turns: list[Any]) -> list[Fact]:
        self.calls.append((episode, turns))
        return [Fact(content=f"{turn.role} said {turn.content}", sources=(turn.id,)) for turn in turns]


async def test_a_reflector_of_the_seeds_shape_adds_facts(storage: Storage) -> None:
    seed = SeedShaped()
    async with open_session(storage, seed) as session:
        ids = await write_episode(session, "one", "two")
        await session.wait_pending()
        assert await fact_contents(session) == ["user said one", "user said two"]
        found = await facts_of(storage, await context_of(session))
        assert [fact.sources for fact in found] == [(id,) for id in ids]
        ((read, turns),) = seed.calls
        assert (read.ordinal, read.messages, len(turns)) == (1, 2, 2)


# ── profile, traces ─────────────────────────────────────────────────────────────────────────────────────────────────


async def test_facts_of_the_namespace_lie_in_its_profile(storage: Storage, notes: Notes) -> None:
    notes.scope = "namespace"
    async with open_session(storage, notes, "a") as one, open_session(storage, notes, "b") as two:
        await write_episode(one, "the city is Berlin", "ok")
        await one.wait_pending()
        await write_episode(two, "the city is Munich", "ok")
        await two.wait_pending()
        profile = await storage.context(PROFILE, namespace="team")
        (fact,) = await facts_of(storage, profile.id)
        assert fact.content == "the city is Munich"
        assert [shown.content for shown in notes.requests[1].facts] == ["the city is Berlin"]
        assert (await fact_contents(one), await fact_contents(two)) == ([], [])
        assert len(await episode_marks(one)) == len(await episode_marks(two)) == 1


@pytest.mark.parametrize("verb", ["retract", "replace", "clear", "erase"])
async def test_what_goes_while_it_is_said_in_the_profile_is_not_known_there(
    storage: Storage, notes: Notes, verb: str
) -> None:
    """The erasure of a message reads the profile before the fact made from it is stored."""
    notes.scope = "namespace"
    async with open_session(storage, notes, worker=BY_HAND) as session:
        source, _ = await write_episode(session, "the city is Berlin", "the tea is green")
        verbs: dict[str, Any] = {
            "retract": lambda: session.retract(source),
            "replace": lambda: session.replace(source, "no city"),
            "clear": lambda: session.clear(),
            "erase": lambda: session.erase(source),
        }
        between = Meanwhile(storage)
        between.when = facts_in
        between.do = verbs[verb]
        await worked_off(session, between, notes)
        found = await facts_of(storage, (await storage.context(PROFILE, namespace="team")).id)
        assert "the city is Berlin" not in [one.content for one in found]
        if verb == "retract":  # what brings the message back brings back what was learned of it
            (gone,) = await storage.read(await context_of(session), replacing=True)
            await session.undo(gone.version)
            found = await facts_of(storage, (await storage.context(PROFILE, namespace="team")).id)
            assert "the city is Berlin" in [one.content for one in found]


async def test_a_rewrite_elsewhere_takes_nothing_back_from_the_profile(
    storage: Storage, notes: Notes
) -> None:
    notes.scope = "namespace"
    async with open_session(storage, notes, worker=BY_HAND) as session:
        ids = await write_episode(session, "good morning", "ok")
        await worked_off(session, storage, notes)
        await write_episode(session, "the city is Berlin", "ok")
        between = Meanwhile(storage)
        between.when = facts_in
        between.do = lambda: session.retract(ids[0])
        await worked_off(session, between, notes)
        assert [fact.value for fact in await session.facts(scope="namespace")] == ["Berlin"]
        assert len(notes.requests) == 2


async def test_what_a_private_session_teaches_stays_in_it(storage: Storage, notes: Notes) -> None:
    notes.scope = "namespace"
    async with open_session(storage, notes, "a") as one, open_session(storage, notes, "b") as two:
        await write_episode(two, "the tea is green", "ok")
        await two.wait_pending()
        await one.set_private()
        await write_episode(one, "the city is Berlin", "the tea is black")
        await one.wait_pending()
        profile = await facts_of(storage, (await storage.context(PROFILE, namespace="team")).id)
        assert [fact.content for fact in profile] == ["the tea is green"]
        assert await fact_contents(one) == ["the city is Berlin", "the tea is black"]
        assert {fact.scope for fact in await one.facts()} == {"session"}


async def test_a_session_that_becomes_private_while_it_is_reflected_on_teaches_nobody(
    storage: Storage, notes: Notes
) -> None:
    """The change to private reads the profile before the fact is stored."""
    notes.scope = "namespace"
    async with open_session(storage, notes, worker=BY_HAND) as session:
        await write_episode(session, "the city is Berlin", "ok")
        between = Meanwhile(storage)
        between.when = facts_in
        between.do = session.set_private
        await worked_off(session, between, notes)
        assert await facts_of(storage, (await storage.context(PROFILE, namespace="team")).id) == []
        assert await fact_contents(session) == ["the city is Berlin"]


async def test_a_profile_changed_meanwhile_is_consolidated_again(storage: Storage, notes: Notes) -> None:
    notes.scope = "namespace"
    async with (
        open_session(storage, notes, "a", worker=BY_HAND) as one,
        open_session(storage, notes, "b") as two,
    ):
        await write_episode(one, "the city is Berlin", "ok")

        async def other() -> None:
            await write_episode(two, "the city is Munich", "ok")
            await two.wait_pending()

        between = Meanwhile(storage)
        between.when = facts_in
        between.do = other
        await worked_off(one, between, notes)
        (fact,) = await facts_of(storage, (await storage.context(PROFILE, namespace="team")).id)
        assert fact.content == "the city is Berlin"
        assert len(notes.requests) == 2


async def test_a_trace_says_what_was_read_proposed_and_decided(storage: Storage, notes: Notes) -> None:
    heard: list[Event] = []
    async with open_session(storage, notes, on_event=heard.append) as session:
        await write_episode(session, "the database is PostgreSQL", "ok")
        await session.wait_pending()
        context = await context_of(session)
        (fact,) = await facts_of(storage, context)
        notes.instead = [
            Reflection(proposals=(Proposal(content=fact.content), Proposal(content="the cache is Redis")))
        ]
        await write_episode(session, "both again", "ok")
        await session.wait_pending()
    first, second = [one for one in heard if isinstance(one, Reflected)]
    assert (first.context_id, first.reflector, first.episodes, first.turns) == (
        context,
        "notes/1",
        (1,),
        (1, 2),
    )
    assert (first.known, first.versions) == ((), (4, 5))
    (decision,) = first.decisions
    assert (decision.outcome, decision.fact_id, decision.draft) == ("added", fact.id, 0)
    assert second.known == (fact.id,)
    assert [one.outcome for one in second.decisions] == ["duplicate", "added"]
    assert 0 <= second.call_seconds <= second.seconds


async def test_a_listener_that_fails_changes_nothing(storage: Storage, notes: Notes) -> None:
    def fails(event: Event) -> None:
        raise RuntimeError("deaf")

    async with open_session(storage, notes, on_event=fails) as session:
        await write_episode(session, "the database is PostgreSQL", "ok")
        await session.wait_pending()
        assert await fact_contents(session) == ["the database is PostgreSQL"]
        assert [job.state for job in await list_jobs(session)] == [JobState.DONE]


async def test_a_fork_does_not_read_again_what_its_parent_has_read(storage: Storage, notes: Notes) -> None:
    async with open_session(storage, notes) as session:
        await write_episode(session, "the database is PostgreSQL", "ok")
        await session.wait_pending()
        child = await session.fork()
        async with child:
            await write_episode(child, "the cache is Redis", "ok")
            await child.wait_pending()
            assert notes.read[1:] == [["the cache is Redis", "ok"]]
            assert await fact_contents(child) == ["the database is PostgreSQL", "the cache is Redis"]


async def test_a_fork_takes_over_late_facts_before_it_reflects_itself(storage: Storage, notes: Notes) -> None:
    async with open_session(storage, notes) as session:
        await write_episode(session, "the database is PostgreSQL", "ok")
        child = await session.fork()
        await session.wait_pending()
        async with child:
            await write_episode(child, "the cache is Redis", "ok")
            await child.wait_pending()
            assert notes.read == [["the database is PostgreSQL", "ok"], ["the cache is Redis", "ok"]]
            assert await fact_contents(child) == ["the database is PostgreSQL", "the cache is Redis"]


async def test_a_fork_of_a_log_without_messages_learns_for_itself(storage: Storage, notes: Notes) -> None:
    async with open_session(storage, notes) as session:
        stated = await session.state("project", "language", "Go")
        async with await session.fork() as child:
            await write_episode(child, "the cache is Redis", "ok")
            await child.wait_pending()
            assert await fact_contents(child) == [stated.content, "the cache is Redis"]


def test_a_decision_names_the_fact_it_became() -> None:
    made = Decision(proposal=Proposal(content="a"), outcome="added", draft=1)
    kept = Decision(proposal=Proposal(content="b"), outcome="kept", fact_id="f")
    assert [one.fact_id for one in reflect.resolve_fact_ids([made, kept], ["x", "y"])] == ["y", "f"]
