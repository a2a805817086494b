"""Following a log: nothing is missed and nothing is told twice, wherever the reader is cut off."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from acms import (
    ACMS,
    JobState,
    NotFoundError,
    SessionNotFoundError,
    State,
    ValidationError,
    open_storage,
)
from acms.events import follow, pages
from acms.events.cursor import MAX_UNFINISHED, Cursor
from acms.events.follow import LogFollower
from acms.jobs import requests
from acms.model import Done, Failed, JobDraft, JobQuery, Retry
from acms.privacy.redactor import NO_REDACTION
from acms.results import LogEvent
from acms.testing.logs import WHEN, append_drafts, create_log, draft_message, fork_log
from tests.support.talk import Storage


async def follow_log(storage: Any, context: str, after: str | int = 0, most: int = 10**6) -> list[LogEvent]:
    """Return the events behind a cursor until the log ends, or until the reader is cut off."""
    followed = LogFollower(storage, context, await follow.parse_cursor(storage, context, after), NO_REDACTION)
    found: list[LogEvent] = []
    async with aclosing(followed.events(follow=False)) as events:
        async for event in events:
            if event is not None:
                found.append(event)
            if len(found) == most:
                break
    return found


MINUTE = timedelta(minutes=1)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 20)),
        st.tuples(
            st.sampled_from(("enqueue", "claim", "done", "fail", "retry", "cancel")), st.integers(0, 5)
        ),
        st.tuples(st.just("read"), st.integers(1, 9)),
    ),
    max_size=25,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS)
async def test_a_reader_that_is_cut_off_anywhere_is_told_each_entry_once_and_how_every_job_ends(
    steps: list[tuple[str, int]],
) -> None:
    """A story of appends and jobs, read in pieces by readers that keep nothing but the last cursor."""
    async with open_storage("memory://") as storage:
        context = await create_log(storage)
        cursor: str | int = 0
        seen: list[LogEvent] = []
        leases: list[Any] = []
        for step, number in [*steps, ("read", 10**6)]:
            if step == "append":
                await append_drafts(storage, context, *[draft_message(f"{n}") for n in range(number)])
            elif step == "enqueue":
                await append_drafts(storage, context, jobs=(JobDraft(kind="k", dedupe=str(number)),))
            elif step == "claim":
                leases += await storage.claim(["k"], lease=MINUTE)
            elif step in ("done", "fail", "retry") and leases:
                lease = leases.pop(number % len(leases))
                outcome = {
                    "done": Done(), "fail": Failed(error="no"), "retry": Retry(error="no", not_before=WHEN),
                }[step]  # fmt: skip
                found = (await storage.jobs(JobQuery(ids=(lease.job.id,)))).items[0]
                if found.state is JobState.RUNNING:
                    await storage.settle(lease, outcome)
            elif step == "cancel":
                waiting = (await storage.jobs(JobQuery(states=(JobState.READY,)))).items
                for job in waiting[:1]:
                    await requests.cancel_job_by_id(storage, job.id)
            elif step == "read":
                found = await follow_log(storage, context.id, cursor, number)
                seen += found
                cursor = found[-1].cursor if found else cursor
        versions = [one.entry.version for one in seen if one.entry is not None]
        assert versions == list(range(1, (await storage.head(context.id)).version + 1))
        changes = [(one.job.id, one.job.state, one.job.attempt) for one in seen if one.job is not None]
        assert all(one != two for one, two in pairwise(changes) if one[0] == two[0])
        last = {id: state for id, state, _ in changes}
        now = (await storage.jobs(JobQuery(context=context.id))).items
        known = {job.id: job.state for job in now if job.id in last}
        assert last == known, "the last that was told of a job is how it stands"
        assert all(job.id in last for job in now if job.state in (JobState.READY, JobState.RUNNING))
        assert await follow_log(storage, context.id, cursor) == []


async def test_every_kind_of_store_tells_a_fork_what_it_inherited_and_what_is_erased_blank(
    storage: Storage,
) -> None:
    parent = await create_log(storage)
    await append_drafts(storage, parent, *[draft_message(f"secret {n}") for n in range(40)])
    child = await fork_log(storage, parent, at=30)
    await append_drafts(storage, child, draft_message("of the child"))
    first = await follow_log(storage, child.id, most=20)
    await storage.blank(parent.id, [25], to=State.ERASED, audit={})
    rest = await follow_log(storage, child.id, first[-1].cursor)
    entries = [one.entry for one in first + rest if one.entry is not None]
    assert [one.version for one in entries] == list(range(1, 32))
    assert entries[24].content == ""
    assert entries[24].state is State.ERASED
    assert entries[30].content == "of the child"


async def test_what_is_erased_while_a_slow_reader_holds_the_one_before_it_comes_blank(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "FRESH", 0.0)
    context = await create_log(storage)
    await append_drafts(
        storage, context, draft_message("first"), draft_message("secret"), draft_message("third")
    )
    followed = LogFollower(storage, context.id, Cursor(), NO_REDACTION)
    async with aclosing(followed.events(follow=False)) as events:
        texts: list[str] = []
        async for event in events:
            assert event is not None
            assert event.entry is not None
            if not texts:
                await storage.blank(context.id, [2], to=State.ERASED, audit={})
            texts.append(event.entry.content)
    assert texts == ["first", "", "third"]


async def test_a_job_that_is_done_is_told_after_what_it_appended_on_every_store(storage: Storage) -> None:
    context = await create_log(storage)
    await append_drafts(storage, context, draft_message("a"), jobs=(JobDraft(kind="k", dedupe="d"),))
    first = await follow_log(storage, context.id)
    assert [type(one.job) is type(None) for one in first] == [True, False]
    (lease,) = await storage.claim(["k"], lease=MINUTE)
    await append_drafts(storage, context, draft_message("b"), finish=lease)
    second = await follow_log(storage, context.id, first[-1].cursor)
    assert [(one.entry and one.entry.version, one.job and one.job.state) for one in second] == [
        (2, None),
        (None, JobState.DONE),
    ]
    assert await follow_log(storage, context.id, second[-1].cursor) == []


async def test_what_happens_is_told_as_it_happens_and_the_end_of_the_log_ends_it(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow, "POLL_SECONDS", (0.02, 0.05))
    async with ACMS("user_123", storage, None) as session:
        await session.ingest("user", "first")
        seen: list[str] = []
        deleted = asyncio.Event()

        async def read() -> None:
            try:
                async for event in session.events():
                    if event.entry is not None:  # else it is the job that will collect the deleted log
                        seen.append(event.entry.content)
            except SessionNotFoundError:
                deleted.set()

        reading = asyncio.create_task(read())
        while seen != ["first"]:
            await asyncio.sleep(0.01)
        await session.ingest("user", "card 4111 1111 1111 1111", privacy="redact")
        context = await storage.context("user_123")
        await append_drafts(storage, context, draft_message("of another process"))
        while len(seen) < 3:
            await asyncio.sleep(0.01)
        assert seen == ["first", "card [REDACTED: credit_card]", "of another process"]
        await session.delete()
        await asyncio.wait_for(deleted.wait(), 60)
        await reading


@pytest.mark.parametrize("text", ["", "x", "-1", "1.", "1-", "1-2.3", "1-2.3x1", "1-2.3w1.", "9" * 19, "1\n"])
def test_what_is_no_cursor_is_refused(text: str) -> None:
    with pytest.raises(ValidationError, match="after"):
        Cursor.parse(text)


@given(
    version=st.integers(0, 10**12),
    job=st.none() | st.integers(0, 10**9),
    known=st.dictionaries(
        st.integers(1, 10**9), st.tuples(st.sampled_from(list(JobState)[:2]), st.integers(0, 99)), max_size=64
    ),
)
def test_a_cursor_reads_back_as_it_was_written(version: int, job: int | None, known: Any) -> None:
    cursor = Cursor(version=version, job=job, unfinished={} if job is None else known)
    assert Cursor.parse(str(cursor)) == cursor


async def test_a_cursor_stays_short_however_many_jobs_wait() -> None:
    async with open_storage("memory://") as storage:
        context = await create_log(storage)
        jobs = tuple([JobDraft(kind="k", dedupe=str(n)) for n in range(3 * MAX_UNFINISHED)])
        await append_drafts(storage, context, jobs=jobs)
        found = await follow_log(storage, context.id)
        assert len(found) == len(jobs)
        assert len(Cursor.parse(found[-1].cursor).unfinished) == MAX_UNFINISHED
        assert await follow_log(storage, context.id, found[-1].cursor) == []


async def test_a_cursor_behind_the_end_of_the_log_is_refused(storage: Storage) -> None:
    context = await create_log(storage)
    with pytest.raises(NotFoundError, match="ends at version 0"):
        await follow_log(storage, context.id, 1)
