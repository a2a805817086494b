"""What a store promises about jobs: a part of the conformance suite of stores."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from acms import ConflictError, GoneError, Job, JobState
from acms.errors import LeaseLostError
from acms.model import Append, Done, Failed, JobDraft, JobQuery, Lease, Receipt, Retry
from acms.ports import StorageBackend
from acms.testing import ManualClock, sound
from acms.testing.logs import WHEN, append_drafts, create_log, draft_message, draft_summary
from tests.storage.suite.logs import all_refused


class JobTests:
    """Leases, fencing, outcomes and lists of jobs; `StorageBackendTests` inherits it."""

    takes_clock: bool

    async def test_a_job_is_enqueued_with_its_append_and_once_per_name(self, store: StorageBackend) -> None:
        """Of unfinished jobs with one name there is one; when it is finished the name is free."""
        context = await create_log(store)
        draft = JobDraft(kind="compact", dedupe="compact:a", payload={"span": [1, 2], "\u00fc": None})
        await append_drafts(
            store, context, draft_message("a"), jobs=(draft, JobDraft(kind="embed", dedupe="embed:a"))
        )
        await append_drafts(store, context, draft_message("b"), jobs=(replace(draft, payload={"other": 1}),))
        embed, compact = (await store.jobs(JobQuery())).items
        assert (compact.kind, compact.dedupe, compact.context) == ("compact", "compact:a", context.id)
        assert (dict(compact.payload), compact.state, compact.attempt) == (
            {"span": [1, 2], "\u00fc": None},
            "ready",
            0,
        )
        assert (compact.lease_until, compact.error) == (None, None)
        assert embed.kind == "embed"
        (lease,) = await store.claim(["compact"], lease=timedelta(minutes=1))
        await append_drafts(store, context, jobs=(draft,))
        assert len((await store.jobs(JobQuery())).items) == 2
        await append_drafts(store, context, finish=lease, jobs=(draft,))
        states = [job.state for job in (await store.jobs(JobQuery(context=context.id))).items]
        assert states == [JobState.READY, JobState.READY, JobState.DONE], "a job may enqueue its successor"

    async def test_an_append_without_entries_carries_notes_and_jobs(self, store: StorageBackend) -> None:
        """The tail changes and jobs are asked for, many in one call; the log stays where it is."""
        contexts = [await create_log(store, f"k{n}") for n in range(3)]
        for context in contexts:
            await append_drafts(store, context, draft_message("a"), tail={"old": 1})
        before = [await store.head(context.id) for context in contexts]
        notes = [
            Append(context=contexts[0].id, drafts=(), tail={"n": 1}),
            Append(context=contexts[1].id, drafts=(), jobs=(JobDraft(kind="k", dedupe="a"),)),
            Append(context=contexts[1].id, drafts=(), jobs=(JobDraft(kind="k", dedupe="a"),)),
            Append(context=contexts[2].id, drafts=(), tail={}, jobs=(JobDraft(kind="k", dedupe="b"),)),
        ]
        results = await store.append(notes)
        assert all(isinstance(result, Receipt) and result.ids == () for result in results), results
        after = [await store.head(context.id) for context in contexts]
        assert [dict(head.tail) for head in after] == [{"n": 1}, {"old": 1}, {}]
        assert [replace(head, tail={}) for head in after] == [replace(head, tail={}) for head in before]
        assert {job.dedupe for job in (await store.jobs(JobQuery())).items} == {"a", "b"}
        for context in contexts:
            await append_drafts(store, context, draft_message("goes on"))
            await sound(store, context.id)

    async def test_jobs_are_claimed_oldest_first_and_only_when_due(self, store: StorageBackend) -> None:
        """A claim takes due jobs of the kinds asked for, in the order in which they became due."""
        context = await create_log(store)
        due = {"c": 3, "a": 1, "b": 2, "other": 0}
        jobs = [
            JobDraft(
                kind="other" if name == "other" else "k",
                dedupe=name,
                not_before=WHEN - timedelta(days=9 - day),
            )
            for name, day in due.items()
        ]
        late = JobDraft(kind="k", dedupe="late", not_before=datetime(9999, 1, 1, tzinfo=UTC))
        await append_drafts(store, context, jobs=(late, *jobs))
        first = await store.claim(["k"], lease=timedelta(minutes=1), limit=2)
        assert [lease.job.dedupe for lease in first] == ["a", "b"]
        assert {(lease.attempt, lease.job.attempt, lease.job.state) for lease in first} == {
            (1, 1, JobState.RUNNING)
        }
        assert [
            lease.job.dedupe for lease in await store.claim(["k", "x"], lease=timedelta(minutes=1), limit=9)
        ] == ["c"]
        assert await store.claim(["k"], lease=timedelta(minutes=1)) == []
        assert await store.claim([], lease=timedelta(minutes=1)) == []
        assert (await store.jobs(JobQuery(states=(JobState.RUNNING,)))).items[0].lease_until is not None

    async def test_a_job_is_claimed_by_one_of_many_workers(self, store: StorageBackend) -> None:
        """Workers that ask together share the jobs out."""
        context = await create_log(store)
        await append_drafts(store, context, jobs=tuple(JobDraft(kind="k", dedupe=str(n)) for n in range(20)))
        claims = [store.claim(["k"], lease=timedelta(minutes=1), limit=3) for _ in range(10)]
        taken = [lease.job.dedupe for leases in await asyncio.gather(*claims) for lease in leases]
        assert sorted(taken) == sorted(str(n) for n in range(20))

    async def test_a_lease_that_ran_out_is_due_again(self, store: StorageBackend, clock: ManualClock) -> None:
        """A worker that fell silent loses its job to the next one, unless it asked for more time."""
        if not self.takes_clock:
            pytest.skip("this backend takes no clock")
        context = await create_log(store)
        await append_drafts(store, context, jobs=(JobDraft(kind="k", dedupe="d"),))
        (lease,) = await store.claim(["k"], lease=timedelta(seconds=30))
        assert lease.until == clock.now + timedelta(seconds=30)
        clock.advance(seconds=29)
        assert await store.claim(["k"], lease=timedelta(seconds=30)) == []
        longer = await store.extend(lease, by=timedelta(seconds=30))
        assert longer.until == clock.now + timedelta(seconds=30)
        assert (longer.attempt, longer.job.lease_until) == (1, longer.until)
        clock.advance(seconds=29)
        assert await store.claim(["k"], lease=timedelta(seconds=30)) == []
        clock.advance(seconds=1)
        (second,) = await store.claim(["k"], lease=timedelta(seconds=30))
        assert (second.attempt, second.job.id) == (2, lease.job.id)
        settled = await store.settle(second, Retry(error="busy", not_before=clock.now + timedelta(hours=1)))
        assert settled.updated_at == clock.now
        assert await store.claim(["k"], lease=timedelta(seconds=30)) == []
        clock.advance(hours=1)
        assert [lease.attempt for lease in await store.claim(["k"], lease=timedelta(seconds=30))] == [3]

    async def test_a_stale_lease_is_fenced_off(self, store: StorageBackend) -> None:
        """A worker that lost a job can finish, extend or settle nothing, and nothing of such an append is stored."""
        context = await create_log(store)
        await append_drafts(
            store, context, draft_message("a"), jobs=(JobDraft(kind="k", dedupe="d"),), tail={"n": 1}
        )
        (stale,) = await store.claim(["k"], lease=timedelta(0))
        (fresh,) = await store.claim(["k"], lease=timedelta(minutes=1))
        assert (stale.job.id, stale.attempt, fresh.attempt) == (fresh.job.id, 1, 2)
        with pytest.raises(LeaseLostError):  # also while the other attempt runs
            await store.extend(stale, by=timedelta(minutes=1))
        before = await store.head(context.id)
        late = Append(
            context=context.id,
            drafts=(draft_message("late", key="late"), draft_summary(1, 1)),
            tail={"n": 2},
            jobs=(JobDraft(kind="k", dedupe="of the late one"),),
            finish=stale,
        )
        good = Append(context=context.id, drafts=(draft_message("good"),), finish=fresh)
        first, second = await store.append([late, good])
        assert isinstance(first, LeaseLostError)
        assert isinstance(second, Receipt)
        assert second.versions == (before.version + 1, before.version + 1)
        assert [entry.content for entry in await sound(store, context.id)] == ["a", "good"]
        assert dict((await store.head(context.id)).tail) == {"n": 1}
        (job,) = (await store.jobs(JobQuery())).items
        assert (job.state, job.attempt, job.lease_until) == (JobState.DONE, 2, None)
        for lease in (stale, fresh):
            with pytest.raises(LeaseLostError):
                await append_drafts(store, context, draft_message("again"), finish=lease)
            with pytest.raises(LeaseLostError):
                await store.extend(lease, by=timedelta(minutes=1))
        with pytest.raises(LeaseLostError):
            await store.settle(stale, Done())
        assert not (await append_drafts(store, context, draft_message("late", key="late"))).repeated

    async def test_an_attempt_is_settled_as_done_failed_cancelled_or_to_be_tried_again(
        self, store: StorageBackend
    ) -> None:
        """Every outcome ends the attempt; only a retry leaves the job to be claimed again."""
        context = await create_log(store)
        await append_drafts(store, context, jobs=tuple(JobDraft(kind="k", dedupe=str(n)) for n in range(4)))
        leases = await store.claim(["k"], lease=timedelta(minutes=1), limit=4)
        past, far = WHEN - timedelta(days=1), datetime(9999, 1, 1, tzinfo=UTC)
        done = await store.settle(leases[0], Done(reason="nothing to do"))
        assert (done.state, done.error, done.lease_until) == (JobState.DONE, None, None)
        assert done.reason == "nothing to do"
        failed = await store.settle(leases[1], Failed(error="no"))
        assert (failed.state, failed.error) == (JobState.FAILED, "no")
        cancelled = await store.settle(leases[2], Failed(error="unwanted", cancelled=True))
        assert (cancelled.state, cancelled.error) == (JobState.CANCELLED, "unwanted")
        retry = await store.settle(leases[3], Retry(error="busy", not_before=past))
        assert (retry.state, retry.error, retry.not_before) == (JobState.READY, "busy", past)
        (again,) = await store.claim(["k"], lease=timedelta(minutes=1), limit=9)
        assert (again.job.id, again.attempt) == (leases[3].job.id, 2)
        with pytest.raises(LeaseLostError):
            await store.settle(leases[3], Done())
        later = await store.settle(again, Retry(error="still busy", not_before=far))
        assert await store.claim(["k"], lease=timedelta(minutes=1), limit=9) == []
        assert (await store.jobs(JobQuery(ids=(later.id,)))).items == (later,)
        await append_drafts(
            store, context, jobs=(JobDraft(kind="k", dedupe="1"), JobDraft(kind="k", dedupe="3"))
        )
        assert len((await store.jobs(JobQuery())).items) == 5, (
            "a failed job's name is free, a waiting job's is not"
        )

    async def test_jobs_are_listed_newest_first_in_pages(self, store: StorageBackend) -> None:
        """Every job is on exactly one page; ids, context and states select."""
        one, two = await create_log(store), await create_log(store)
        for n in range(7):
            await append_drafts(store, two if n % 2 else one, jobs=(JobDraft(kind="k", dedupe=str(n)),))
        found: list[Job] = []
        after: str | None = None
        for _ in range(5):
            page = await store.jobs(JobQuery(after=after, limit=3))
            found.extend(page.items)
            after = page.next_after
            if after is None:
                break
        assert [job.dedupe for job in found] == ["6", "5", "4", "3", "2", "1", "0"]
        assert [job.dedupe for job in (await store.jobs(JobQuery(context=two.id))).items] == ["5", "3", "1"]
        chosen = (found[0].id, found[3].id)
        assert [job.dedupe for job in (await store.jobs(JobQuery(ids=chosen))).items] == ["6", "3"]
        (lease,) = await store.claim(["k"], lease=timedelta(minutes=1))
        running = await store.jobs(JobQuery(states=(JobState.RUNNING,)))
        assert [job.id for job in running.items] == [lease.job.id]
        waiting = await store.jobs(JobQuery(states=(JobState.READY, JobState.DONE)))
        assert len(waiting.items) == 6

    async def test_a_lease_on_a_job_that_does_not_exist_is_refused(self, store: StorageBackend) -> None:
        """A made-up lease finishes nothing."""
        context = await create_log(store)
        await append_drafts(store, context, jobs=(JobDraft(kind="k", dedupe="d"),))
        (real,) = await store.claim(["k"], lease=timedelta(minutes=1))
        for id in ("999999", "0", "-1", "no number", str(2**63), "\u0661", ""):
            lease = Lease(job=replace(real.job, id=id), attempt=1, until=real.until)
            calls = (
                append_drafts(store, context, draft_message("x"), finish=lease),
                store.extend(lease, by=timedelta(minutes=1)),
                store.settle(lease, Done()),
            )
            await all_refused(calls, GoneError)
        assert await sound(store, context.id) == []
        assert (await store.jobs(JobQuery())).items == (real.job,)

    async def test_t32_a_clock_that_is_set_back_stalls_no_job(
        self, store: StorageBackend, clock: ManualClock
    ) -> None:
        """A job enqueued, leased or put off under a clock that was ahead is due when the clock is right again."""
        if not self.takes_clock:
            pytest.skip("this backend takes no clock")
        context = await create_log(store)
        names = ("waiting", "leased", "put off")
        for ahead in (timedelta(hours=1), timedelta(days=1)):
            clock.now += ahead
            await append_drafts(
                store, context, jobs=tuple(JobDraft(kind=name, dedupe=name) for name in names)
            )
            (held,) = await store.claim(["leased"], lease=timedelta(seconds=30))
            (tried,) = await store.claim(["put off"], lease=timedelta(seconds=30))
            await store.settle(tried, Retry(error="busy", not_before=clock.now + timedelta(minutes=5)))
            clock.now -= ahead
            found = await store.claim(names, lease=timedelta(seconds=30), limit=9)
            assert sorted((lease.job.kind, lease.attempt) for lease in found) == [
                ("leased", 2),
                ("put off", 2),
                ("waiting", 1),
            ]
            assert await store.claim(names, lease=timedelta(seconds=30), limit=9) == []
            with pytest.raises(LeaseLostError):
                await append_drafts(
                    store, context, draft_message("of the worker that was ahead"), finish=held
                )
            for lease in found:
                await append_drafts(store, context, draft_message(lease.job.kind), finish=lease)
        assert [entry.content for entry in await sound(store, context.id)].count("leased") == 2

    async def test_t32_a_clock_that_jumps_ahead_ends_leases_and_still_has_one_effect(
        self, store: StorageBackend, clock: ManualClock
    ) -> None:
        """Two workers may run one job then; only the newer attempt counts."""
        if not self.takes_clock:
            pytest.skip("this backend takes no clock")
        context = await create_log(store)
        await append_drafts(store, context, jobs=(JobDraft(kind="k", dedupe="d"),))
        (first,) = await store.claim(["k"], lease=timedelta(seconds=30))
        clock.advance(days=1)
        (second,) = await store.claim(["k"], lease=timedelta(seconds=30))
        clock.advance(days=-1)
        with pytest.raises(LeaseLostError):
            await append_drafts(store, context, draft_message("first"), finish=first)
        await append_drafts(store, context, draft_message("second"), finish=second)
        assert [entry.content for entry in await sound(store, context.id)] == ["second"]
        assert await store.claim(["k"], lease=timedelta(seconds=30)) == []

    async def test_clocks_that_differ_a_little_take_no_job_away(
        self, store: StorageBackend, clock: ManualClock
    ) -> None:
        """Seconds between the clocks of two workers are no reason to run a job twice."""
        if not self.takes_clock:
            pytest.skip("this backend takes no clock")
        context = await create_log(store)
        await append_drafts(store, context, jobs=(JobDraft(kind="k", dedupe="d"),))
        (lease,) = await store.claim(["k"], lease=timedelta(seconds=30))
        clock.advance(seconds=-50)
        assert await store.claim(["k"], lease=timedelta(seconds=30)) == []
        await append_drafts(store, context, draft_message("done"), finish=lease)

    async def test_a_lease_says_whether_the_attempt_before_it_fell_silent(
        self, store: StorageBackend
    ) -> None:
        """A worker that was killed answers nothing; one that failed in order says so."""
        context = await create_log(store)
        await append_drafts(store, context, jobs=(JobDraft(kind="k", dedupe="d"),))
        (first,) = await store.claim(["k"], lease=timedelta(0))
        (second,) = await store.claim(["k"], lease=timedelta(0))
        await store.settle(second, Retry(error="busy", not_before=WHEN - timedelta(days=1)))
        (third,) = await store.claim(["k"], lease=timedelta(0))
        assert [lease.silent for lease in (first, second, third)] == [False, True, False]

    async def test_what_is_done_is_neither_settled_again_nor_retried(self, store: StorageBackend) -> None:
        """A finished job stays finished for every caller, with the lease it had or one made from the list."""
        context = await create_log(store)
        await append_drafts(
            store, context, jobs=(JobDraft(kind="k", dedupe="a"), JobDraft(kind="k", dedupe="b"))
        )
        one, two = await store.claim(["k"], lease=timedelta(minutes=1), limit=2)
        await store.settle(one, Retry(error="busy", not_before=WHEN - timedelta(days=1)))
        (one,) = await store.claim(["k"], lease=timedelta(minutes=1))
        await append_drafts(store, context, draft_message("done"), finish=one)
        await store.settle(two, Done())
        before = (await store.jobs(JobQuery())).items
        assert {(job.error, job.reason) for job in before} == {(None, None)}
        listed = [Lease(job=job, attempt=job.attempt, until=WHEN) for job in before]
        outcomes = (Retry(error="again", not_before=WHEN), Failed(error="no"), Done())
        await all_refused(
            [store.settle(lease, outcome) for lease in (one, two, *listed) for outcome in outcomes],
            LeaseLostError,
        )
        assert (await store.jobs(JobQuery())).items == before

    async def test_a_job_that_was_given_up_can_be_tried_again(self, store: StorageBackend) -> None:
        """A lease made from the list brings back what failed or was cancelled, once, as the next attempt."""
        context = await create_log(store)
        await append_drafts(
            store, context, jobs=(JobDraft(kind="k", dedupe="a"), JobDraft(kind="k", dedupe="b"))
        )
        again = Retry(error="by hand", not_before=WHEN - timedelta(days=1))
        for lease in await store.claim(["k"], lease=timedelta(minutes=1), limit=2):
            await store.settle(lease, Failed(error="no", cancelled=lease.job.dedupe == "b"))
        for job in (await store.jobs(JobQuery())).items:
            lease = Lease(job=job, attempt=job.attempt, until=WHEN)
            ready = await store.settle(lease, again)
            assert (ready.state, ready.error, ready.attempt) == (JobState.READY, "by hand", 1)
            with pytest.raises(LeaseLostError):
                await store.settle(lease, again)
        found = await store.claim(["k"], lease=timedelta(minutes=1), limit=9)
        assert [(lease.job.dedupe, lease.attempt) for lease in found] == [("a", 2), ("b", 2)]

    async def test_a_job_whose_name_was_taken_is_not_tried_again(self, store: StorageBackend) -> None:
        """Of unfinished jobs with one name there is one, also when an old one is to come back."""
        context = await create_log(store)
        draft = JobDraft(kind="k", dedupe="d")
        await append_drafts(store, context, jobs=(draft,))
        (lease,) = await store.claim(["k"], lease=timedelta(minutes=1))
        failed = await store.settle(lease, Failed(error="no"))
        await append_drafts(store, context, jobs=(draft,))
        old = Lease(job=failed, attempt=failed.attempt, until=WHEN)
        again = Retry(error="by hand", not_before=WHEN - timedelta(days=1))
        with pytest.raises(ConflictError) as refusal:
            await store.settle(old, again)
        assert not isinstance(refusal.value, LeaseLostError)
        assert refusal.value.options
        (lease,) = await store.claim(["k"], lease=timedelta(minutes=1))
        with pytest.raises(ConflictError):
            await store.settle(old, again)
        await append_drafts(store, context, draft_message("done"), finish=lease)
        assert (await store.settle(old, again)).state is JobState.READY

    async def test_a_cancelled_job_is_not_brought_back_by_the_worker_that_ran_it(
        self, store: StorageBackend
    ) -> None:
        """Cancelling a job ends the attempt that runs: it has no effect any more."""
        context = await create_log(store)
        await append_drafts(
            store, context, jobs=(JobDraft(kind="k", dedupe="a"), JobDraft(kind="k", dedupe="b"))
        )
        waiting, running = (await store.jobs(JobQuery())).items
        (lease,) = await store.claim(["k"], lease=timedelta(minutes=1))
        assert lease.job.id == running.id
        with pytest.raises(LeaseLostError):
            await store.settle(Lease(job=running, attempt=0, until=WHEN), Failed(error="", cancelled=True))
        for job in (waiting, lease.job):
            listed = Lease(job=job, attempt=job.attempt, until=WHEN)
            cancelled = await store.settle(listed, Failed(error="by hand", cancelled=True))
            assert cancelled.state is JobState.CANCELLED
        before = (await store.jobs(JobQuery())).items
        await all_refused(
            (
                store.settle(lease, Retry(error="busy", not_before=WHEN)),
                store.settle(lease, Failed(error="no")),
                store.extend(lease, by=timedelta(minutes=1)),
                append_drafts(store, context, draft_message("late"), finish=lease),
            ),
            LeaseLostError,
        )
        assert (await store.jobs(JobQuery())).items == before
        assert await store.claim(["k"], lease=timedelta(minutes=1), limit=9) == []
