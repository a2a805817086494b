"""Compaction: a summary stands for the older part of a log, and nothing is ever lost by it.

Names that start with t11 … t28 are the cases of the reliability page.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from acms import (
    ACMS,
    ACMSConfig,
    CompactionPolicy,
    ConflictError,
    EntryNotFoundError,
    GoneError,
    Job,
    JobState,
    Kind,
    NotFoundError,
    ProviderError,
    State,
    StorageError,
    ToolCall,
    ToolResult,
    ValidationError,
    WorkerConfig,
)
from acms.compaction import job as room
from acms.compose import handlers
from acms.errors import ExpiredError, JobFailedError
from acms.jobs import requests
from acms.jobs.requests import compaction_kind
from acms.jobs.worker import Worker
from acms.model import Append, JobQuery
from acms.observability import JobFinished
from acms.observability.events import Compacted
from acms.ports import SummaryRequest
from acms.storage import WrapperStorage
from acms.text.chat_messages import wrap_summary
from tests.support.faulty import FaultyStorage
from tests.support.talk import (
    LONG_EPISODES,
    PATIENT,
    Storage,
    Words,
    comparable_answers,
    contents_of,
    session_on,
    tool_turn,
    versions_of,
)

BY_HAND = WorkerConfig(enabled=False, max_attempts=3)


def compaction_config(**policy: Any) -> ACMSConfig:
    """Episodes end by hand, jobs are worked off when the test says so."""
    return ACMSConfig(
        episodes=LONG_EPISODES, retry=PATIENT, worker=BY_HAND, compaction=CompactionPolicy(**policy)
    )


class Toy:
    """A summarizer that says how many turns it read; can wait, fail and misbehave."""

    model = "toy"

    def __init__(self, answer: Any = None, window: int | None = None) -> None:
        self.answer = answer
        self.window = window
        self.requests: list[SummaryRequest] = []
        self.called = asyncio.Event()
        self.gate: asyncio.Event | None = None

    async def summarize(self, request: SummaryRequest) -> str:
        self.requests.append(request)
        self.called.set()
        if self.gate is not None:
            await self.gate.wait()
        if isinstance(self.answer, BaseException):
            raise self.answer
        if self.answer is not None:
            found: str = self.answer
            return found
        return f"so far: {len(request.turns)} turns"


def make_worker(session: ACMS, storage: Any, summarizer: Toy) -> Worker:
    config = session._shared.config
    handler = room.make_compaction_handler(config, summarizer, {"words": Words()})
    return Worker(storage, {compaction_kind(summarizer): handler}, config=config.worker, retry=PATIENT)


@pytest.fixture
def toy() -> Toy:
    return Toy()


@pytest.fixture
async def session(storage: Storage, toy: Toy) -> AsyncIterator[ACMS]:
    async with session_on(storage, words=True, config=compaction_config(), summarizer=toy) as one:
        yield one


def word_for_number(number: int) -> str:
    """A word of its own for each number that does not look like a detail."""
    return "word" + "".join("abcdefghij"[int(digit)] for digit in str(number))


async def say_messages(session: ACMS, count: int, words: int = 12, start: int = 0) -> None:
    for n in range(start, start + count):
        await session.ingest(("user", "assistant")[n % 2], " ".join([word_for_number(n)] * words))


async def begin_compaction(
    session: ACMS, storage: Any, toy: Toy
) -> tuple[Job, asyncio.Future[None], asyncio.Event]:
    """Start a compaction whose summarizer waits; return its job, its worker, and what lets it go on."""
    toy.gate = asyncio.Event()
    job = await session.compact()
    working = asyncio.ensure_future(make_worker(session, storage, toy).drain())
    await toy.called.wait()
    return job, working, toy.gate


async def compact_session(session: ACMS, storage: Any, toy: Toy, **overrides: Any) -> Any:
    job = await session.compact(**overrides)
    await make_worker(session, storage, toy).drain()
    return await session.wait(job)


# ── what a compaction is ────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_summary_stands_before_the_newest_messages(session: ACMS, storage: Storage, toy: Toy) -> None:
    await say_messages(session, 30)
    done = await compact_session(session, storage, toy)
    assert (done.version, done.replaces, done.removed, done.preserved) == (31, (1, 20), 20, 10)
    assert (done.tokens_before, done.tokens_after) == (360, 124)
    assert (done.summary, done.summarizer, done.in_force) == ("so far: 20 turns", "toy", True)
    assert done.policy["preserve_recent_count"] == 10
    window = await session.window(10_000)
    assert contents_of(window)[0] == "so far: 20 turns"
    assert versions_of(window) == [31, *range(21, 31)]
    assert (await session.messages("what?", budget=10_000))[0] == {
        "role": "user",
        "content": wrap_summary("so far: 20 turns"),
    }


async def test_contradiction_6_the_summary_is_read_at_the_place_of_what_it_stands_for(
    session: ACMS, storage: Storage, toy: Toy
) -> None:
    """Appended as the newest system message and read in that order it would follow what came after it."""
    await session.ingest("system", "You are the orders team's assistant.")
    await say_messages(session, 30)
    await compact_session(session, storage, toy)
    await say_messages(session, 3, start=30)
    found = await session.window(10_000)
    assert [item.source for item in found][:3] == ["window"] * 3
    assert versions_of(found)[:3] == [1, 32, 22]
    assert versions_of(found)[-1] == 35


async def test_contradiction_5_compaction_changes_no_read_below_its_version(
    session: ACMS, storage: Storage, toy: Toy
) -> None:
    """Marking compacted messages as deleted would empty every version inside the range."""
    await say_messages(session, 30)
    before = {at: await comparable_answers(session.at(at)) for at in (0, 1, 5, 20, 21, 30)}
    await compact_session(session, storage, toy)
    await say_messages(session, 30, start=30)
    await compact_session(session, storage, toy)
    for at, what in before.items():
        assert await comparable_answers(session.at(at)) == what, f"v{at} reads otherwise after a compaction"
    child = await session.fork(at=5)
    async with child:
        assert versions_of(await child.window(10_000)) == [1, 2, 3, 4, 5]


async def test_t11_a_version_between_two_compactions_keeps_the_first_summary(
    session: ACMS, storage: Storage, toy: Toy
) -> None:
    await say_messages(session, 30)
    await compact_session(session, storage, toy)
    at = 31
    before = await comparable_answers(session.at(at))
    for _ in range(5):
        await say_messages(session, 20)
        await compact_session(session, storage, toy)
    assert await comparable_answers(session.at(at)) == before


async def test_what_a_summary_stands_for_can_still_be_recalled(
    session: ACMS, storage: Storage, toy: Toy
) -> None:
    await say_messages(session, 5)
    asked = await session.ingest("assistant", "the failover host of the billing service is db-7")
    await say_messages(session, 40, start=5)
    await compact_session(session, storage, toy)
    assert asked not in [item.id for item in await session.window(10_000)]
    found = await session.recall("which host is the failover of billing?", token_budget=60)
    assert asked in [item.id for item in found]
    prompt = await session.messages("which host is the failover of billing?", budget=150)
    assert any("db-7" in str(message["content"]) for message in prompt)


async def test_a_retracted_message_is_neither_summarised_nor_recalled(
    session: ACMS, storage: Storage, toy: Toy
) -> None:
    await say_messages(session, 5)
    wrong = await session.ingest("assistant", "zanzibar is the host of billing")
    await say_messages(session, 30, start=5)
    await session.retract(wrong)
    await compact_session(session, storage, toy)
    assert all("zanzibar" not in turn.text for request in toy.requests for turn in request.turns)
    assert wrong not in [item.id for item in await session.recall("zanzibar billing host")]


async def test_a_summarised_message_can_still_be_retracted(session: ACMS, storage: Storage, toy: Toy) -> None:
    await say_messages(session, 5)
    wrong = await session.ingest("assistant", "zanzibar is the host of billing")
    await say_messages(session, 30, start=5)
    done = await compact_session(session, storage, toy)
    version = await session.retract(wrong)
    assert version > done.version
    assert await session.retract(wrong) == version
    assert wrong not in [item.id for item in await session.recall("zanzibar billing host")]
    await session.undo(done.version)
    assert wrong not in [item.id for item in await session.window(10_000)]
    await session.undo(version)
    assert wrong in [item.id for item in await session.window(10_000)]


async def test_marked_messages_stay_verbatim(session: ACMS, storage: Storage, toy: Toy) -> None:
    await say_messages(session, 5)
    marked = await session.ingest("assistant", "Decision: orders go to PostgreSQL", markers=["decision"])
    await say_messages(session, 30, start=5)
    await compact_session(session, storage, toy)
    assert marked in [item.id for item in await session.window(10_000)]


async def test_marked_messages_that_are_too_many_are_quoted(
    session: ACMS, storage: Storage, toy: Toy
) -> None:
    for n in range(40):
        text = f"Decision: service number {n} listens on port {7000 + n}"
        await session.ingest("assistant", text, markers=["decision"])
    done = await compact_session(session, storage, toy)
    assert "port 7000" in done.summary
    window = (await session.window(10_000)).text()
    assert sum(f"port {7000 + n}" in window for n in range(40)) >= 27


async def test_a_short_log_has_nothing_to_compact(session: ACMS, storage: Storage, toy: Toy) -> None:
    await say_messages(session, 5)
    assert await compact_session(session, storage, toy) is None
    assert toy.requests == []
    assert (await session.get_session_stats()).version == 5
    (job,) = (await storage.jobs(JobQuery())).items
    assert str(job.reason).startswith("0 of 5 messages could be summarised")
    assert (await session.job(job.id), job.error) == (job, None)
    with pytest.raises(GoneError):
        await session.job("99")


async def test_compactions_are_listed_with_their_policy(session: ACMS, storage: Storage, toy: Toy) -> None:
    await say_messages(session, 30)
    first = await compact_session(session, storage, toy)
    await say_messages(session, 30, start=30)
    second = await compact_session(session, storage, toy, preserve_recent_count=2)
    assert await session.compactions() == [first, second]
    assert second.policy["preserve_recent_count"] == 2
    assert await session.at(first.version).compactions() == [first]


async def test_a_wrong_override_is_refused(session: ACMS) -> None:
    await say_messages(session, 1)
    with pytest.raises(ValidationError, match="keep"):
        await session.compact(keep=2)
    with pytest.raises(ValidationError, match="nonsense"):
        await session.compact(nonsense=2)


async def test_other_settings_than_those_of_what_is_under_way_are_refused(session: ACMS) -> None:
    await say_messages(session, 30)
    job = await session.compact(preserve_recent_count=2)
    assert (await session.compact(preserve_recent_count=2)).id == job.id
    assert (await session.compact()).id == job.id
    with pytest.raises(ConflictError, match=f"job {job.id}") as refused:
        await session.compact(preserve_recent_count=2, summary_tokens=40)
    assert refused.value.retryable


async def test_what_was_cancelled_and_made_due_again_is_what_is_under_way(
    session: ACMS, storage: Storage
) -> None:
    """Not the newer one, which was cancelled in between."""
    await say_messages(session, 30)
    first = await session.compact(preserve_recent_count=2)
    await requests.cancel_job_by_id(storage, first.id)
    second = await session.compact(preserve_recent_count=2)
    assert second.id != first.id
    await requests.cancel_job_by_id(storage, second.id)
    await requests.retry_job_by_id(storage, first.id)
    async with asyncio.timeout(300):
        assert (await session.compact(preserve_recent_count=2)).id == first.id
        with pytest.raises(ConflictError, match=f"job {first.id}"):
            await session.compact(preserve_recent_count=2, summary_tokens=40)


# ── undo, expand, levels ────────────────────────────────────────────────────────────────────────────────────────────


async def test_undo_brings_everything_back(session: ACMS, storage: Storage, toy: Toy) -> None:
    await say_messages(session, 30)
    before = versions_of(await session.window(10_000))
    done = await compact_session(session, storage, toy)
    undone = await session.undo(done.version)
    assert versions_of(await session.window(10_000)) == before
    assert [one.in_force for one in await session.compactions()] == [False]
    assert versions_of(await session.at(done.version).window(10_000))[0] == done.version
    await session.undo(undone)  # the undoing is an entry like any other
    assert versions_of(await session.window(10_000))[0] == done.version


async def test_only_the_newest_rewrite_can_be_undone(session: ACMS, storage: Storage, toy: Toy) -> None:
    await say_messages(session, 30)
    first = await compact_session(session, storage, toy)
    for n in range(4):
        await say_messages(session, 20, start=30 + 20 * n)
        last = await compact_session(session, storage, toy)
    assert last.replaces[0] == 1
    with pytest.raises(ConflictError) as refused:
        await session.undo(first.version)
    assert refused.value.options == (f"undo({last.version}) first",)
    await session.undo(last.version)
    assert first.in_force
    await session.undo(first.version)
    assert versions_of(await session.window(10_000))[:20] == list(range(1, 21))


async def test_undo_of_what_replaces_nothing_is_refused(session: ACMS) -> None:
    await say_messages(session, 2)
    with pytest.raises(ValidationError, match="replaces nothing"):
        await session.undo(1)
    with pytest.raises(NotFoundError, match="ends at version 2"):
        await session.undo(3)


async def test_undo_of_an_edit_and_of_a_retraction(session: ACMS) -> None:
    await say_messages(session, 3)
    (first, *_) = await session.window(1000)
    await session.replace(first.id, "corrected")
    await session.undo(4)
    assert contents_of(await session.window(1000))[0] == first.content
    version = await session.retract(first.id)
    await session.undo(version)
    assert contents_of(await session.window(1000))[0] == first.content


async def test_undo_over_expired_content_is_refused(session: ACMS, storage: Storage, toy: Toy) -> None:
    await say_messages(session, 30)
    done = await compact_session(session, storage, toy)
    await storage.blank(session._shared.context_id or "", [3], to=State.EXPIRED, audit={})
    with pytest.raises(ExpiredError, match="v3"):
        await session.undo(done.version)
    assert (await session.compactions())[0].in_force


async def test_a_summarised_span_can_be_expanded(session: ACMS, storage: Storage, toy: Toy) -> None:
    await say_messages(session, 30)
    edited = await session.replace((await session.get((await session.window(10_000))[2].id)).id, "corrected")
    expected = versions_of(await session.window(10_000))[:20]
    done = await compact_session(session, storage, toy)
    found = await session.expand(done.version)
    assert versions_of(found) == expected
    assert edited in [entry.id for entry in found]
    with pytest.raises(EntryNotFoundError):
        await session.expand(1)
    with pytest.raises(NotFoundError, match=f"ends at version {done.version - 1}"):
        await session.at(done.version - 1).expand(done.version)
    with pytest.raises(NotFoundError, match="ends at version 0"):
        await session_on(storage, "new").expand(done.version)


async def test_many_summaries_are_merged_into_one_of_the_next_level(
    session: ACMS, storage: Storage, toy: Toy
) -> None:
    for n in range(6):
        await say_messages(session, 30, start=30 * n)
        await compact_session(session, storage, toy)
    found = await session.compactions()
    assert [entry.kind for entry in await session.expand(found[4].version)].count(Kind.SUMMARY) == 4
    assert [one.in_force for one in found] == [False, False, False, False, True, True]
    assert versions_of(await session.window(10_000))[:2] == [found[4].version, found[5].version]


# ── who writes ──────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_without_a_summarizer_the_text_is_extracted(storage: Storage) -> None:
    async with session_on(storage, words=True, config=compaction_config()) as session:
        for n in range(30):
            await session.ingest(
                "user", f"We saw nothing new today. The file is /srv/orders/part-{n}.csv of host db-{n}."
            )
        job = await session.compact()
        config = session._shared.config
        handler = room.make_compaction_handler(config, None, {"words": Words()})
        await Worker(storage, {"compact": handler}, config=config.worker).drain()
        done = await session.wait(job)
    assert done is not None
    assert done.summarizer == "extractive2"
    assert "/srv/orders/part-" in done.summary
    assert Words().count(done.summary) <= done.tokens_before - done.tokens_after


async def test_details_that_a_summarizer_left_out_are_added(
    session: ACMS, storage: Storage, toy: Toy
) -> None:
    await say_messages(session, 20, words=30)
    await session.ingest("assistant", "the dump lies in /srv/backup/orders-2026.sql.gz on the usual host")
    await say_messages(session, 20, words=30, start=20)
    done = await compact_session(session, storage, toy)
    assert done.summary.startswith("so far: ")
    assert "/srv/backup/orders-2026.sql.gz" in done.summary


async def test_a_summary_that_is_too_long_is_shortened(session: ACMS, storage: Storage, toy: Toy) -> None:
    await say_messages(session, 40, words=30)
    toy.answer = " ".join(f"Sentence number {n} says little." for n in range(60))
    done = await compact_session(session, storage, toy)
    assert 0 < Words().count(done.summary) <= 180


@pytest.mark.parametrize(
    "answer",
    [
        TimeoutError(),
        ConnectionError("reset"),
        ProviderError("429", provider="toy", retryable=True),
        "",
        "  \n",
        None,
        17,
        "longer than everything " * 500,
        "\0\ud800",
    ],
    ids=["late", "broken", "busy", "empty", "blank", "none", "number", "long", "nothing left"],
)
async def test_t21_a_summarizer_that_fails_changes_nothing(storage: Storage, answer: Any) -> None:
    toy = Toy()

    async def summarize(request: SummaryRequest) -> Any:
        toy.requests.append(request)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    toy.summarize = summarize  # type: ignore[method-assign]
    async with session_on(storage, words=True, config=compaction_config(), summarizer=toy) as session:
        await say_messages(session, 30)
        before = await comparable_answers(session)
        job = await session.compact()
        await make_worker(session, storage, toy).drain()
        with pytest.raises(JobFailedError) as failed:
            await session.wait(job)
        assert failed.value.job_id == job.id
        assert await comparable_answers(session) == before
        assert await session.compactions() == []
        (ended,) = (await storage.jobs(JobQuery(ids=(job.id,)))).items
        assert (ended.state, ended.attempt) == (JobState.FAILED, 3)
        assert len(toy.requests) == 3
        assert await session.compact() != job  # given up: it may be asked for again


# ── tool groups ─────────────────────────────────────────────────────────────────────────────────────────────────────


def unpaired_calls(items: Sequence[Any]) -> list[str]:
    """Calls without an answer and answers without a call, among some items."""
    calls = {part.call_id for item in items for part in item.parts if isinstance(part, ToolCall)}
    answers = {part.call_id for item in items for part in item.parts if isinstance(part, ToolResult)}
    return sorted(calls ^ answers)


@pytest.mark.parametrize("recent", range(0, 20, 3))
async def test_t22_no_boundary_splits_a_tool_group(storage: Storage, toy: Toy, recent: int) -> None:
    config = compaction_config(preserve_recent_count=recent)
    async with session_on(storage, words=True, config=config, summarizer=toy) as session:
        for n in range(4):
            await session.ingest("user", f"please look at host {n} and tell me what you find there")
            calls = [{"id": f"{k}{n}", "name": "disk", "arguments": "{}"} for k in "ab"]
            await session.ingest("assistant", "looking at both", tool_calls=calls)
            await session.ingest("tool", f"disk of a{n} is nearly full", tool_call_id=f"a{n}")
            await tool_turn(
                session, f"c{n}", None if n == 1 else f"inner result of c{n}"
            )  # between the answers
            await session.ingest("tool", f"disk of b{n} is nearly empty", tool_call_id=f"b{n}")
        await compact_session(session, storage, toy)
        for budget in range(0, 200, 20):
            for view in (session, *(session.at(v) for v in range(1, 24, 4))):
                interrupted = set(unpaired_calls(await view.window(10_000)))
                assert interrupted.issuperset(unpaired_calls(await view.window(budget))), budget
        prompt = await session.messages("what did you find?", budget=500)
        called = [call["id"] for message in prompt for call in message.get("tool_calls", ())]
        answered = [message["tool_call_id"] for message in prompt if message["role"] == "tool"]
        assert sorted(called) == sorted(answered)


# ── what happens meanwhile ──────────────────────────────────────────────────────────────────────────────────────────


async def test_t23_new_messages_forks_and_edits_elsewhere_never_disturb_it(
    session: ACMS, storage: Storage, toy: Toy
) -> None:
    await say_messages(session, 30)
    job, working, go = await begin_compaction(session, storage, toy)
    assert await session.compact() == (await storage.jobs(JobQuery(ids=(job.id,)))).items[0]
    await say_messages(session, 25, start=30)
    child = await session.fork(session_id="meanwhile")
    newest = (await session.window(20))[-1]
    await session.replace(newest.id, "corrected meanwhile")  # a rewrite, but of nothing that is summarised
    go.set()
    await working
    done = await session.wait(job)
    assert done is not None
    assert (done.replaces, len(toy.requests)) == ((1, 20), 1), "one model call, and exactly what it had read"
    assert versions_of(await session.window(10_000))[:2] == [done.version, 21]
    async with child:
        assert versions_of(await child.window(10_000))[0] == 1


async def test_t23_a_slow_summarizer_is_never_starved_by_new_messages(storage: Storage) -> None:
    """The same by the session's own worker: it thinks for 40 messages."""
    begun, enough = asyncio.Event(), asyncio.Event()

    class Slow(Toy):
        async def summarize(self, request: SummaryRequest) -> str:
            begun.set()
            await enough.wait()
            return await super().summarize(request)

    slow = Slow()
    config = ACMSConfig(episodes=LONG_EPISODES, retry=PATIENT)
    async with session_on(storage, words=True, config=config, summarizer=slow) as session:
        await say_messages(session, 30)
        waiting = asyncio.ensure_future(session.wait(await session.compact()))
        await begun.wait()
        for number in range(40):
            await say_messages(session, 1, start=30 + number)
        enough.set()
        done = await waiting
    assert done is not None
    assert (done.replaces, len(slow.requests)) == ((1, 20), 1)


async def test_t23_a_rewrite_of_what_is_summarised_makes_it_start_again(
    session: ACMS, storage: Storage, toy: Toy
) -> None:
    await say_messages(session, 30)
    job, working, go = await begin_compaction(session, storage, toy)
    (third,) = [item for item in await session.window(10_000) if item.version == 3]
    await session.replace(third.id, "corrected")
    go.set()
    await working
    done = await session.wait(job)
    assert done is not None
    assert len(toy.requests) == 2
    assert "corrected" in [turn.text for turn in toy.requests[1].turns]
    assert "corrected" not in [turn.text for turn in toy.requests[0].turns]


async def test_t07_a_summary_that_comes_after_an_erasure_is_dropped(
    session: ACMS, storage: Storage, toy: Toy
) -> None:
    await say_messages(session, 30)
    job, working, go = await begin_compaction(session, storage, toy)
    await storage.blank(session._shared.context_id or "", [3], to=State.ERASED, audit={})
    go.set()
    await working
    with pytest.raises(JobFailedError, match="cancelled"):
        await session.wait(job)
    assert await session.compactions() == []


async def test_t07_a_summary_that_comes_after_the_deletion_is_dropped(
    session: ACMS, storage: Storage, toy: Toy
) -> None:
    await say_messages(session, 30)
    job, working, go = await begin_compaction(session, storage, toy)
    context = session._shared.context_id or ""
    await session.delete()
    go.set()
    await working
    (ended,) = (await storage.jobs(JobQuery(ids=(job.id,)))).items
    assert ended.state is JobState.CANCELLED
    assert (await storage.context(context)).deleted_at is not None


async def test_t24_a_log_that_cannot_be_read_is_never_taken_for_an_empty_one(
    storage: Storage, toy: Toy
) -> None:
    faulty = FaultyStorage(storage)
    async with session_on(storage, words=True, config=compaction_config(), summarizer=toy) as session:
        await say_messages(session, 30)
        before = await comparable_answers(session)
        job = await session.compact()
        for attempt in range(1, 4):
            faulty.fail("read", attempt, StorageError("the disk is gone"))
        await make_worker(session, faulty, toy).drain()
        with pytest.raises(JobFailedError):
            await session.wait(job)
        assert await comparable_answers(session) == before


@pytest.mark.parametrize("method", ["context", "head", "read", "append", "get"])
async def test_t24_a_fault_at_any_call_leaves_all_or_nothing(storage: Storage, toy: Toy, method: str) -> None:
    async with session_on(storage, words=True, config=compaction_config(), summarizer=toy) as session:
        await say_messages(session, 30)
        job = await session.compact()
        for nth in range(1, 4):
            faulty = FaultyStorage(storage)
            faulty.fail(method, nth, StorageError("broken", retryable=True))
            await make_worker(session, faulty, toy).drain()
            summaries = await session.compactions()
            assert len(summaries) <= 1
            if (await storage.jobs(JobQuery(ids=(job.id,)))).items[0].state is not JobState.DONE:
                assert summaries == []
        found = await session.window(10_000)
        assert versions_of(found)[-10:] == list(range(21, 31))


# ── how much ────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_t25_a_share_that_is_kept_is_kept(session: ACMS, storage: Storage, toy: Toy) -> None:
    await say_messages(session, 100)
    done = await compact_session(session, storage, toy, keep=0.85)
    evicted = sum(entry.tokens for entry in await session.expand(done.version))
    assert 0.10 <= evicted / done.tokens_before <= 0.20
    assert versions_of(await session.window(100_000))[1:] == list(range(done.replaces[1] + 1, 101))


async def test_t26_auto_compaction_keeps_the_log_within_its_budget(storage: Storage, toy: Toy) -> None:
    config = compaction_config(budget=600, threshold=0.8)
    async with session_on(storage, words=True, config=config, summarizer=toy) as session:
        works = make_worker(session, storage, toy)
        levels: dict[int, list[int]] = {}
        for n in range(1000):
            await session.ingest(("user", "assistant")[n % 2], f"{word_for_number(n)} " * 10)
            pending = (await storage.jobs(JobQuery(states=(JobState.READY,)))).items
            stats = await session.get_session_stats() if pending or n % 50 == 0 else None
            if pending:
                assert stats is not None
                assert stats.active_tokens >= 0.8 * 600, "nothing is asked for under the threshold"
                await works.drain()
            if n % 50 == 0:
                assert (await session.window(600)).tokens <= 600
        stats = await session.get_session_stats()
        assert stats.active_tokens < 600
        assert stats.messages == 1000
        for summary in await storage.read(session._shared.context_id or "", kinds=(Kind.SUMMARY,)):
            for entry in await session.expand(summary.version):
                levels.setdefault(entry.version, []).append(summary.data["level"])
        assert levels
        assert all(len(found) == len(set(found)) == 1 for found in levels.values()), "summarised twice"


async def test_a_log_that_cannot_shrink_does_not_ask_with_every_message(storage: Storage, toy: Toy) -> None:
    config = compaction_config(budget=100, preserve_recent_count=1000)
    async with session_on(storage, words=True, config=config, summarizer=toy) as session:
        works = make_worker(session, storage, toy)
        asked: set[str] = set()
        for n in range(60):
            await session.ingest("user", f"{word_for_number(n)} " * 3)
            asked |= {job.id for job in (await storage.jobs(JobQuery(limit=500))).items}
            await works.drain()
        assert 1 <= len(asked) <= 60 * 3 // 10
        assert toy.requests == []


async def test_an_append_never_asks_when_the_policy_is_off(storage: Storage, toy: Toy) -> None:
    config = compaction_config(budget=100)
    async with session_on(storage, words=True, config=config, summarizer=toy) as session:
        await session.set_policy(enabled=False)
        await say_messages(session, 60)
        assert (await storage.jobs(JobQuery())).items == ()
        await session.set_policy(enabled=None)
        await say_messages(session, 5)
        assert len((await storage.jobs(JobQuery())).items) == 1


async def test_reading_never_asks(storage: Storage, toy: Toy) -> None:
    async with session_on(storage, words=True, config=compaction_config(), summarizer=toy) as session:
        await say_messages(session, 60)
        await session.set_policy(budget=100)
        await comparable_answers(session)
        assert (await storage.jobs(JobQuery())).items == ()


async def test_summaries_of_pieces_that_are_no_shorter_end_the_attempt(storage: Storage) -> None:
    toy = Toy("and so on " * 200, window=300)
    async with session_on(storage, words=True, config=compaction_config(), summarizer=toy) as session:
        await say_messages(session, 60)
        with pytest.raises(JobFailedError, match="its summaries are no shorter than its input"):
            await compact_session(session, storage, toy)
        assert await session.compactions() == []


class Refusing(WrapperStorage):
    """Refuses a summary once, although nothing was rewritten."""

    refused = False

    async def append(self, ops: Sequence[Append]) -> Any:
        if not self.refused and any(draft.kind is Kind.SUMMARY for op in ops for draft in op.drafts):
            self.refused = True
            return [ConflictError("refused for another reason") for _ in ops]
        return await super().append(ops)


async def test_a_summary_that_is_refused_for_another_reason_is_written_by_the_next_attempt(
    session: ACMS, storage: Storage, toy: Toy
) -> None:
    await say_messages(session, 30)
    between = Refusing(storage)
    done = await compact_session(session, between, toy)
    assert between.refused
    assert len(toy.requests) == 2
    assert [one.version for one in await session.compactions()] == [done.version]


async def test_t27_a_range_larger_than_the_summarizers_window_is_read_in_pieces(storage: Storage) -> None:
    toy = Toy(window=300)
    async with session_on(storage, words=True, config=compaction_config(), summarizer=toy) as session:
        await say_messages(session, 60)
        await session.ingest("user", " ".join(word_for_number(n) for n in range(1000, 1700)))
        await say_messages(session, 12, start=60)
        done = await compact_session(session, storage, toy)
        read = " ".join(turn.text for request in toy.requests for turn in request.turns)
        for entry in await session.expand(done.version):
            assert all(word in read for word in entry.content.split())
        assert all(Words().count(request.text()) <= 300 for request in toy.requests)
        (summary,) = await storage.read(session._shared.context_id or "", kinds=(Kind.SUMMARY,))
        assert summary.data["coverage"] == 1.0
        assert len(toy.requests) > 3


# ── policy ──────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_policy_is_resolved_from_service_namespace_and_session(storage: Storage) -> None:
    from acms.log import policy as policy_levels

    async with session_on(storage, config=compaction_config(threshold=0.9, budget=1000)) as session:
        assert (await session.policy()).policy == CompactionPolicy(threshold=0.9, budget=1000)
        await policy_levels.change_namespace(
            storage, "default", {"threshold": 0.7, "preserve_recent_count": 3}
        )
        found = await session.set_policy(preserve_recent_count=4)
        assert (found.policy.threshold, found.policy.preserve_recent_count, found.policy.budget) == (
            0.7,
            4,
            1000,
        )
        assert found.levels["threshold"] == "namespace"
        assert found.levels["preserve_recent_count"] == "context"
        assert found.levels["budget"] == "service"
        found = await session.set_policy(preserve_recent_count=None)
        assert found.policy.preserve_recent_count == 3
        with pytest.raises(ValidationError):
            await session.set_policy(threshold=2)
        assert (await session.policy()).policy.threshold == 0.7


async def test_the_name_of_the_namespaces_settings_is_reserved(session: ACMS, storage: Storage) -> None:
    await say_messages(session, 1)
    with pytest.raises(ValidationError, match="reserved"):
        session_on(storage, "@namespace")
    with pytest.raises(ValidationError, match="reserved"):
        await session.fork(session_id="@namespace")


async def test_a_fork_takes_its_parents_policy_along(session: ACMS) -> None:
    await say_messages(session, 3)
    await session.set_policy(threshold=0.5)
    async with await session.fork(session_id="child") as child:
        assert (await child.policy()).policy.threshold == 0.5
        await child.set_policy(threshold=0.6)
    assert (await session.policy()).policy.threshold == 0.5


async def test_a_summary_of_the_child_is_not_seen_in_the_parent(
    session: ACMS, storage: Storage, toy: Toy
) -> None:
    await say_messages(session, 30)
    child = await session.fork(session_id="child")
    async with child:
        done = await compact_session(child, storage, toy)
        assert versions_of(await child.window(10_000))[0] == done.version
        assert len(await child.window(10_000)) == 11
    assert versions_of(await session.window(10_000)) == list(range(1, 31))
    assert await session.compactions() == []


async def test_a_long_compacted_log_is_read_without_what_is_out_of_force(storage: Storage, toy: Toy) -> None:
    counting = FaultyStorage(storage)
    now = datetime(2026, 3, 14, tzinfo=UTC)
    async with session_on(counting, words=True, config=compaction_config(), summarizer=toy) as session:
        rows = [
            {
                "role": "user",
                "content": f"{word_for_number(n)} " * 5,
                "created_at": now + timedelta(seconds=n),
            }
            for n in range(2000)
        ]
        for start in range(0, 2000, 250):
            await session.ingest_many(rows[start : start + 250])
        await compact_session(session, storage, toy)
    async with session_on(counting, words=True, config=compaction_config(), summarizer=toy) as session:
        window = await session.window(50_000)
        assert len(window) == 11
        assert window[0].role is None
        stats = await session.get_session_stats()
        assert (stats.active_messages, stats.messages, stats.active_tokens) == (10, 2000, 50 + 4)
        cache = session.internals.cache_stats
        assert cache is not None
        assert cache.misses < 200


async def test_retention_deletes_what_a_summary_stands_for_and_nothing_else(
    storage: Storage, toy: Toy
) -> None:
    config = ACMSConfig(episodes=LONG_EPISODES, retry=PATIENT, retention_seconds=0)
    async with session_on(storage, words=True, config=config, summarizer=toy) as session:
        await say_messages(session, 30)
        done = await session.wait(await session.compact())
        assert done is not None
        await session.wait_pending()  # the job that the compaction asked for in its own commit
        states = [entry.state for entry in (await session.history(limit=100)).entries]
        assert states == [State.EXPIRED] * 20 + [State.LIVE] * 11
        assert versions_of(await session.window(10_000)) == [31, *range(21, 31)]
        assert word_for_number(3) not in (await session.recall(word_for_number(3), token_budget=500)).text()
        with pytest.raises(ExpiredError):
            await session.undo(done.version)


@pytest.mark.parametrize("kept", [(0, None), (None, 0)])
async def test_sessions_that_share_a_worker_compact_each_as_it_was_told(
    storage: Storage, kept: tuple[float | None, float | None]
) -> None:
    heard: dict[str, list[Any]] = {"a": [], "b": []}
    toys = {name: Toy() for name in heard}
    sessions = {
        name: session_on(
            storage, name, words=True, summarizer=toys[name],
            config=ACMSConfig(
                episodes=LONG_EPISODES, retry=PATIENT, retention_seconds=seconds, on_event=heard[name].append
            ),
        )
        for name, seconds in zip(heard, kept, strict=True)
    }  # fmt: skip
    async with sessions["a"], sessions["b"]:
        for session, seconds in zip(sessions.values(), kept, strict=True):
            await say_messages(session, 30)
            await session.wait(await session.compact())
            await session.wait_pending()
            states = {entry.state for entry in (await session.history(limit=20)).entries}
            assert states == {State.LIVE if seconds is None else State.EXPIRED}
    for name, session in sessions.items():
        assert len(toys[name].requests) == 1
        told = [one for one in heard[name] if isinstance(one, Compacted | JobFinished)]
        assert {one.context_id for one in told} == {session._shared.context_id}
        assert len(told) == 2 + (kept[name == "b"] is not None)


async def test_a_summary_keeps_what_it_stands_for_as_long_as_the_session_said_that_asked(
    storage: Storage, toy: Toy
) -> None:
    """Also where that one is closed, and the worker of another one compacts."""
    session = session_on(storage, words=True, config=compaction_config(), summarizer=toy)
    config = ACMSConfig(episodes=LONG_EPISODES, retry=PATIENT, retention_seconds=0)
    async with session_on(storage, "other", words=True, config=config, summarizer=toy) as other:
        async with session:
            await say_messages(session, 30)
            job = await session.compact()
        await say_messages(other, 30)
        await other.wait(await other.compact())
        await other.wait_pending()
        assert (await storage.jobs(JobQuery(ids=(job.id,)))).items[0].state is JobState.DONE
        states = {entry.state for entry in await storage.read(job.context)}
        assert states == {State.LIVE}


async def test_a_worker_elsewhere_may_be_told_how_long_to_keep_for_all(storage: Storage, toy: Toy) -> None:
    config = ACMSConfig(retention_seconds=0)
    async with session_on(storage, words=True, config=compaction_config(), summarizer=toy) as session:
        await say_messages(session, 30)
        job = await session.compact()
        found = handlers(config, (toy,), {"words": Words()})
        await Worker(storage, found, retry=PATIENT).drain()
        assert (await storage.read(job.context))[0].state is State.EXPIRED


async def test_a_child_that_reads_the_messages_holds_retention_up(storage: Storage, toy: Toy) -> None:
    config = ACMSConfig(episodes=LONG_EPISODES, retry=PATIENT, retention_seconds=0)
    async with session_on(storage, words=True, config=config, summarizer=toy) as session:
        await say_messages(session, 30)
        child = await session.fork(at=25, session_id="child")
        await session.wait(await session.compact())
        jobs = [job for job in (await storage.jobs(JobQuery())).items if job.kind == "expire"]
        while jobs[0].state is JobState.RUNNING or jobs[0].attempt == 0:
            await asyncio.sleep(0.01)
            jobs = [job for job in (await storage.jobs(JobQuery())).items if job.kind == "expire"]
        assert jobs[0].state is JobState.READY, "it comes back later"
        assert versions_of(await child.window(10_000)) == list(range(1, 26))
