"""Everything of a tenant moves from store to store: verbatim, again and again, and never over something else."""

from __future__ import annotations

import asyncio
import itertools
import json
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, ClassVar

import apsw
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import precondition, rule, run_state_machine_as_test
from typer.testing import CliRunner, Result

from acms import ACMS, ACMSConfig, State, WorkerConfig, open_storage
from acms.branches import export as exporting
from acms.branches.copying import Copied, copy
from acms.cli.commands import app
from acms.erasure import erase
from acms.errors import ConflictError, StorageFullError, ValidationError
from acms.log import policy as policy_levels
from acms.log.encoding import dump
from acms.model import ContextQuery, Derived, JobDraft, JobQuery, JobState, Lease, Retry
from acms.ports import HasSpaces, StorageBackend
from acms.storage import MemoryStorage, SQLiteStorage
from acms.storage.wrapper import WrapperStorage
from acms.testing import StorageStory, sound
from acms.testing.logs import WHEN, append_drafts, create_log, draft_fact, draft_message, draft_summary
from tests.servers.stores import another
from tests.storage.suite.logs import mixed, settled
from tests.support.faulty import FaultyStorage
from tests.support.fixtures import Plain

QUIET = ACMSConfig(worker=WorkerConfig(enabled=False))
"""Jobs wait for a worker of their own, so nothing is written behind the back of a test."""

Open = Callable[[str], AbstractAsyncContextManager[Any]]


def _tenants(home: str) -> Open:
    url = another(home)
    return lambda name: open_storage(f"{url}-{name}")


STORES: dict[str, Callable[[Path, pytest.FixtureRequest], Open]] = {
    "memory": lambda folder, request: lambda name: MemoryStorage(tenant=name),
    "sqlite": lambda folder, request: lambda name: SQLiteStorage(folder / f"{name}.db", tenant=name),
    "postgres": lambda folder, request: _tenants(request.getfixturevalue("postgres_home")),
}
"""How an empty store of each kind is made under a name; a new backend is one more line."""

PAIRS = [*itertools.pairwise((*STORES, next(iter(STORES))))]


@pytest.fixture(params=PAIRS, ids="-to-".join)
async def ways(
    request: pytest.FixtureRequest, tmp_path: Path
) -> AsyncIterator[tuple[Any, Callable[..., Any]]]:
    """A source, and a way to open a fresh target, or a fresh store of the kind of the source."""
    source, target = (STORES[kind](tmp_path, request) for kind in request.param)
    numbers = itertools.count()
    async with AsyncExitStack() as stack:

        async def fresh(kind: Open = target) -> Any:
            store = kind(f"t{next(numbers)}")
            stack.push_async_callback(store.aclose)  # sessions that are left open hold it no more
            return await stack.enter_async_context(store)

        yield await fresh(source), lambda back=False: fresh(source if back else target)


async def tenancy(store: StorageBackend) -> dict[str, str]:
    """Write everything a tenant can have; return the ids of contexts by what they are."""
    parent, child = await mixed(store)
    await store.put_derived(child.id, [derived_row(n, part) for n in (1, 2, 8) for part in (0, 1)])
    async with ACMS("talk", store, namespace="ana", config=QUIET) as talk:
        ids = [
            await talk.ingest("user", f"message {n}", actor_id="Ana", idempotency_key=f"k{n}")
            for n in range(6)
        ]
        await talk.ingest("assistant", "", tool_calls=[{"id": "c1", "name": "disk", "arguments": "{}"}])
        await talk.ingest("tool", "61 %", tool_call_id="c1")
        await talk.ingest_many([{"role": "user", "content": f"many {n}"} for n in range(40)])
        await talk.replace(ids[0], "message zero")
        await talk.retract(ids[1])
        await talk.close_episode()
        await talk.tag("before", 3)
        await talk.set_policy(budget=10_000)
        fork = await talk.fork(5, "fork")
        await fork.ingest("assistant", "in the fork")
        await fork.tag("in it")
        gone = await talk.fork(4, "gone")
        await gone.ingest("user", "soon hidden")
        await gone.delete()
        again = await talk.fork(2, "gone")
        await again.ingest("user", "another one of that name")
        context = await store.context("talk", namespace="ana")
        await append_drafts(
            store, context, draft_fact("Ana lives in Rome", sources=(ids[3],)), draft_summary(3, 5)
        )
        await talk.erase(ids[5])
        await store.blank(context.id, [3], to=State.EXPIRED, audit={"reason": "retention"})
        await talk.compact(budget=1)
        for one in (fork, gone, again):
            await one.close()
    await policy_levels.set_retention(store, "ana", 1000.0)
    empty = await create_log(store, "empty", namespace="ben")
    later = JobDraft(
        kind="expire", dedupe="expire:x", payload={"job": "1"}, not_before=WHEN + timedelta(days=9)
    )
    await append_drafts(store, parent, jobs=(later,))
    await store.aclose()  # derived rows that ride on a later commit are written now
    return {"parent": parent.id, "child": child.id, "talk": context.id, "empty": empty.id}


def derived_row(version: int, part: int = 0, data: bytes = b"vector") -> Derived:
    return Derived(version=version, space="model/3/f16", part=part, start=1, end=2, data=data)


async def everything(store: StorageBackend) -> dict[str, Any]:
    """What two stores have in common when one is a copy of the other."""
    assert isinstance(store, HasSpaces)
    found: dict[str, Any] = {}
    query = ContextQuery(deleted=True, limit=3)
    while True:
        page = await store.contexts(query)
        for context in page.items:
            hidden = context.deleted_at is not None
            entries = await store.read(context.id, deleted=True)
            one: list[Any] = [replace(context, deleted_at=None), hidden, entries]
            if not hidden:
                head = await store.head(context.id)
                await sound(store, context.id)
                one += [settled(head), dict(head.tail), bool(head.epoch)]
                rows = [
                    replace(row, seq=0)
                    for space in await store.spaces(context.id)
                    for row in await store.derived(context.id, space)
                ]
                one.append(sorted(rows, key=repr))
            found[context.id] = one
        if page.next_after is None:
            break
        query = replace(query, after=page.next_after)
    states = (JobState.READY, JobState.RUNNING)
    jobs = (await store.jobs(JobQuery(states=states))).items
    found["jobs"] = sorted((job.kind, job.dedupe, job.context, dump(dict(job.payload))) for job in jobs)
    found["due"] = sorted(job.not_before for job in jobs if job.not_before > datetime.now(UTC))
    return found


def nothing_new(done: Copied) -> bool:
    return not (done.created or done.entries or done.blanked or done.derived or done.left or done.problems)


# ── there and back ──────────────────────────────────────────────────────────────────────────────────────────────────


async def test_everything_arrives_and_comes_back(ways: Any) -> None:
    source, fresh = ways
    await tenancy(source)
    target = await fresh()
    told: list[tuple[int, int]] = []
    done = await copy(source, target, verify=True, progress=lambda *step: told.append(step))
    assert (done.problems, done.left, done.verified) == ((), (), True)
    assert done.created == done.contexts == 8
    assert told[-1] == (done.entries, done.entries)
    assert told == sorted(told)
    before = await everything(source)
    assert await everything(target) == before
    back = await fresh(back=True)
    assert not (await copy(target, back, verify=True)).problems
    assert await everything(back) == before
    assert nothing_new(await copy(source, target, verify=True))
    assert nothing_new(await copy(back, target))
    assert await everything(target) == before


async def test_sessions_go_on_where_they_were(ways: Any) -> None:
    source, fresh = ways
    await tenancy(source)
    target = await fresh()
    await copy(source, target)
    async with (
        ACMS("talk", source, namespace="ana", config=QUIET) as here,
        ACMS("talk", target, namespace="ana", config=QUIET) as there,
    ):
        assert await there.tags() == await here.tags()
        assert (await there.policy()).policy == (await here.policy()).policy
        assert (await there.window(400)).text() == (await here.window(400)).text()
        assert str(await there.tree()) == str(await here.tree())
        assert (await there.ingest_many([{"role": "user", "content": "message 4", "key": "k4"}]))[0].repeated
        receipt = await there.ingest_many([{"role": "user", "content": "on"}])
        assert receipt[0].version == (await here.get_session_stats()).version + 1
    claimed = await target.claim(["collect", "compact"], lease=timedelta(minutes=1), limit=9)
    assert {lease.job.kind for lease in claimed} <= {"collect", "compact"}


async def test_a_second_run_brings_what_is_new(ways: Any) -> None:
    source, fresh = ways
    ids = await tenancy(source)
    target = await fresh()
    await copy(source, target)
    async with ACMS("talk", source, namespace="ana", config=QUIET) as talk:
        first = (await talk.entries(newest=500))[0]
        await talk.ingest("user", "said later")
        await talk.erase(first.id)
        await talk.tag("later")
        await talk.untag("before")
        await (await talk.fork(3, "late fork")).ingest("user", "in the late fork")
        await (await ACMS("fork", source, namespace="ana", config=QUIET).fork(6, "of the fork")).delete()
    async with ACMS("fork", source, namespace="ana", config=QUIET) as fork:
        await fork.delete()
    hidden = await source.context(ids["empty"])
    await source.settings(ids["empty"], {"deleted": True}, rev=hidden.settings_rev)
    await source.put_derived(ids["child"], [derived_row(9, 0, b"late")])
    await source.aclose()
    done = await copy(source, target, verify=True)
    assert (done.problems, done.left) == ((), ())
    assert (done.created, done.blanked > 0, done.derived > 0) == (2, True, True)
    assert await everything(target) == await everything(source)
    shown = await source.context(ids["empty"])
    await source.settings(ids["empty"], {"deleted": False, "name": "back"}, rev=shown.settings_rev)
    assert nothing_new(await copy(source, target, verify=True))
    assert await everything(target) == await everything(source)


async def test_without_derived_rows_they_are_computed_again(ways: Any) -> None:
    source, fresh = ways
    ids = await tenancy(source)
    target = await fresh()
    assert (await copy(source, target, derived=False)).derived == 0
    assert await target.missing("model/3/f16", context=ids["parent"], limit=1)
    assert (await copy(source, target)).derived > 0
    assert await everything(target) == await everything(source)


async def test_a_running_job_is_owed_and_a_finished_one_is_not() -> None:
    async with MemoryStorage() as source, MemoryStorage() as target:
        context = await create_log(source, "a")
        jobs = tuple(JobDraft(kind=f"kind {n}", dedupe=f"job {n}") for n in range(3))
        await append_drafts(source, context, jobs=jobs)
        (lease,) = await source.claim(["kind 0"], lease=timedelta(days=1))
        await source.settle(lease, Retry(error="busy", not_before=WHEN + timedelta(days=40_000)))
        await source.claim(["kind 1"], lease=timedelta(days=1))
        (done,) = await source.claim(["kind 2"], lease=timedelta(days=1))
        await append_drafts(source, context, draft_message("effect"), finish=done)
        assert (await copy(source, target)).jobs == 2
        assert (await copy(source, target)).jobs == 2
        found = (await target.jobs(JobQuery())).items
        assert {(job.dedupe, job.state) for job in found} == {("job 0", "ready"), ("job 1", "ready")}
        (later,) = [job for job in found if job.dedupe == "job 0"]
        assert later.not_before == WHEN + timedelta(days=40_000)


async def test_what_was_deleted_is_collected_after_the_move(ways: Any) -> None:
    """The job that collects a deleted session is part of what is owed, although a hidden context takes no job."""
    source, fresh = ways
    await tenancy(source)
    target = await fresh()
    await copy(source, target)
    (job,) = [job for job in (await target.jobs(JobQuery())).items if job.kind == "collect"]
    context = await target.context(job.context)
    assert context.deleted_at is not None
    lease = Lease(job=job, attempt=1, until=job.not_before)
    await erase.collect_deleted_entries(target, lease, clock=lambda: job.not_before + timedelta(days=31))
    left = await target.read(context.id, after=context.fork or 0, deleted=True)
    assert left
    assert all(entry.state is State.ERASED for entry in left)


async def test_a_name_that_was_taken_again_leaves_its_job_behind_and_says_so() -> None:
    async with MemoryStorage() as source, MemoryStorage() as target:
        async with ACMS("name", source, config=QUIET) as first:
            await first.ingest("user", "one")
            await first.delete()
        one = (await source.contexts(ContextQuery(deleted=True))).items[0]
        async with ACMS("name", source, config=QUIET) as second:
            await second.ingest("user", "two")
            await second.delete()
        await source.settings(one.id, {"deleted": False}, rev=one.settings_rev)
        done = await copy(source, target, verify=True)
        assert done.problems == ()
        assert len(done.left) == 1
        assert "collect" in done.left[0]
        assert (await everything(target)).keys() == (await everything(source)).keys()


@pytest.mark.parametrize("page", [1, 3])
async def test_the_size_of_its_pages_is_not_seen_in_a_copy(
    page: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with MemoryStorage() as source, MemoryStorage() as target:
        await tenancy(source)
        whole = await copy(source, MemoryStorage(), verify=True)
        monkeypatch.setattr(exporting, "PAGE", page)
        assert await copy(source, target, verify=True) == whole
        assert (whole.problems, whole.left, whole.contexts) == ((), (), 8)
        assert await everything(target) == await everything(source)
        assert nothing_new(await copy(source, target))


async def test_a_source_that_cannot_say_which_spaces_it_has_is_copied_without_derived_rows() -> None:
    async with MemoryStorage() as source, MemoryStorage() as target:
        ids = await tenancy(source)
        plain: Any = Plain(source)
        done = await copy(plain, target, verify=True)
        assert (done.problems, done.derived, done.created) == ((), 0, 8)
        assert await target.missing("model/3/f16", context=ids["parent"], limit=1)
        assert (await copy(source, target)).derived > 0
        assert await everything(target) == await everything(source)


async def test_settings_that_changed_before_a_deletion_are_counted_in_the_copy_too() -> None:
    async with MemoryStorage() as source, MemoryStorage() as target:
        context = await create_log(source, "a")
        await append_drafts(source, context, draft_message("one"))
        await copy(source, target)
        for rev, change in enumerate(
            ({"name": "one"}, {"name": "two"}, {"name": "three"}, {"deleted": True})
        ):
            await source.settings(context.id, change, rev=rev)
        assert (await copy(source, target, verify=True)).problems == ()
        hidden = await target.context(context.id)
        assert (hidden.settings_rev, hidden.settings, hidden.deleted_at is None) == (
            4,
            {"name": "three"},
            False,
        )
        assert await everything(target) == await everything(source)


# ── stories ─────────────────────────────────────────────────────────────────────────────────────────────────────────


class _CopyStory(StorageStory):
    """A story whose stores are copied, deleted contexts too; it goes on in the copy."""

    kinds: ClassVar[tuple[Callable[[], AbstractAsyncContextManager[StorageBackend]], ...]]

    @precondition(lambda self: self.moves < 3)
    @rule()
    def move(self) -> None:
        self.moves += 1
        kind = type(self).kinds[self.moves % len(type(self).kinds)]
        target = self.run(self.stack.enter_async_context(kind()))
        self.run(self.moved(target))
        self.store = target

    async def moved(self, target: StorageBackend) -> None:
        """Copy, and write into the books what a copy does not keep: counters of what was blanked and derived."""
        done = await copy(self.store, target, verify=True)
        assert done.problems == ()
        again = await copy(self.store, target)
        assert nothing_new(again)
        for book in self.books:
            book.rewrites = sum(bool(entry.replaces) for entry in book.entries)
            book.tree.epoch = book.tree.derived = 0
        for book in self.books:
            blanks = any(entry.state is not State.LIVE for entry in book.entries)
            book.tree.epoch = max(book.tree.epoch, int(blanks))
        hidden = {book.id for book in self.books if book.deleted}
        for book in self.books:
            for cell in book.cells:
                if cell.entry.context in hidden or cell.entry.state is not State.LIVE:
                    cell.derived.clear()
            if book.deleted:
                book.tail = {}  # what a session noted at the end; found again in the log
            for space in () if book.deleted else ("s", "t"):
                for row in await target.derived(book.id, space):
                    before = book.cells[row.version - 1].derived[space, row.part]
                    assert before[1] == row.data
                    book.cells[row.version - 1].derived[space, row.part] = (row.seq, row.data)
                    book.tree.derived = max(book.tree.derived, row.seq)


@pytest.mark.parametrize("examples", [6, pytest.param(100, marks=pytest.mark.slow)])
def test_a_story_goes_on_in_every_copy(tmp_path: Path, request: pytest.FixtureRequest, examples: int) -> None:
    numbers = itertools.count()
    makers = [STORES[kind](tmp_path, request) for kind in ("sqlite", *STORES)]
    kinds = tuple((lambda make=make: make(f"s{next(numbers)}")) for make in makers)
    story = type("Story", (_CopyStory,), {"kinds": kinds, "factory": staticmethod(kinds[0])})
    checks = (HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much)
    run_state_machine_as_test(
        story,
        settings=settings(
            max_examples=examples, stateful_step_count=30, deadline=None, suppress_health_check=checks
        ),
    )


# ── interruptions ───────────────────────────────────────────────────────────────────────────────────────────────────

WRITES = ("restore", "append", "settings", "put_derived")
READS = ("read", "context", "head", "jobs", "derived", "contexts")


@pytest.mark.parametrize("method", WRITES)
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
async def test_t10_a_copy_interrupted_at_any_write_goes_on(method: str, after: bool) -> None:
    async with MemoryStorage() as source:
        await tenancy(source)
        wanted = await everything(source)
        for nth in itertools.count(1):
            target = MemoryStorage()
            faulty = FaultyStorage(target)
            faulty.fail(method, nth, OSError("the cable"), after=after)
            try:
                await copy(source, faulty)
            except OSError:
                assert (await copy(source, target, verify=True)).problems == ()
                assert await everything(target) == wanted
            else:
                assert nth > 1
                break


@pytest.mark.parametrize("method", READS)
async def test_t10_a_copy_interrupted_at_any_read_goes_on(method: str, tmp_path: Path) -> None:
    async with MemoryStorage() as source:
        await tenancy(source)
        wanted = await everything(source)
        for nth in itertools.count(1):
            faulty = FaultyStorage(source)
            faulty.fail(method, nth, OSError("the cable"))
            async with MemoryStorage() if nth % 8 else SQLiteStorage(tmp_path / f"{nth}.db") as target:
                try:
                    await copy(faulty, target)
                except OSError:
                    assert (await copy(source, target, verify=True)).problems == ()
                    assert await everything(target) == wanted
                else:
                    assert nth > 1
                    break


async def test_an_erasure_that_was_not_copied_whole_is_completed() -> None:
    async with MemoryStorage() as source, MemoryStorage() as target:
        await tenancy(source)
        await copy(source, target)
        await erase.erase_subject(source, actor="Ana")
        faulty = FaultyStorage(target)
        faulty.fail("blank", 1, OSError("the cable"), after=True)
        with pytest.raises(OSError, match="cable"):
            await copy(source, faulty)
        assert (await copy(source, target, verify=True)).problems == ()
        assert await everything(target) == await everything(source)


async def test_a_job_that_the_target_refuses_ends_the_copy_and_comes_with_the_next_run() -> None:
    class Full(WrapperStorage):
        async def append(self, ops: Any) -> Any:
            return [StorageFullError("no room is left") for _ in ops]

    async with MemoryStorage() as source, MemoryStorage() as target:
        context = await create_log(source, "a")
        await append_drafts(
            source, context, draft_message("one"), jobs=(JobDraft(kind="kind", dedupe="job"),)
        )
        with pytest.raises(StorageFullError):
            await copy(source, Full(target))
        assert (await target.jobs(JobQuery())).items == ()
        assert (await copy(source, target, verify=True)).jobs == 1
        assert await everything(target) == await everything(source)


_COPIER = """
import asyncio, sys
from acms.branches.copying import copy
from acms.storage import SQLiteStorage

async def main():
    async with SQLiteStorage(sys.argv[1]) as source, SQLiteStorage(sys.argv[2]) as target:
        await copy(source, target, progress=lambda done, total: print(done, flush=True))

asyncio.run(main())
"""


async def test_t10_a_copier_that_is_killed_leaves_whole_appends_and_is_continued(tmp_path: Path) -> None:
    async with SQLiteStorage(tmp_path / "a.db") as source:
        context = await create_log(source, "long")
        for start in range(0, 3000, 150):
            await append_drafts(source, context, *[draft_message(f"message {start + n}") for n in range(150)])
        for lines in (1, 5, 9):
            with subprocess.Popen(
                [sys.executable, "-c", _COPIER, str(tmp_path / "a.db"), str(tmp_path / "b.db")],
                stdout=subprocess.PIPE,
            ) as copier:
                assert copier.stdout is not None
                for _ in range(lines):
                    await asyncio.to_thread(copier.stdout.readline)
                copier.send_signal(signal.SIGKILL)
        async with SQLiteStorage(tmp_path / "b.db") as target:
            done = await copy(source, target, verify=True)
            assert done.problems == ()
            assert done.entries <= 3000
            assert await everything(target) == await everything(source)


# ── what is refused ─────────────────────────────────────────────────────────────────────────────────────────────────


async def test_another_log_in_the_target_is_refused_and_nothing_is_written(ways: Any) -> None:
    source, fresh = ways
    ids = await tenancy(source)

    async def refused(target: Any, what: str) -> None:
        before = await everything(target)
        with pytest.raises(ConflictError, match=what) as caught:
            await copy(source, target)
        assert not caught.value.retryable
        assert await everything(target) == before

    named = await fresh()
    await create_log(named, "talk", namespace="ana")
    await refused(named, "'talk' of namespace 'ana' exists in the target")
    ahead, forked, tagged, same_tagged = [await fresh() for _ in range(4)]
    for target in (ahead, forked, tagged, same_tagged):
        await copy(source, target)
    child = await source.context(ids["child"])
    await append_drafts(ahead, child, draft_message("only there"))
    await refused(ahead, "was changed in the target")
    await append_drafts(forked, child, draft_message("there"))
    before = await tagged.context(child.id)
    await tagged.settings(child.id, {"name": "there"}, rev=before.settings_rev)
    await refused(tagged, "other settings")
    await append_drafts(source, child, draft_message("here"))
    await refused(forked, "another log")
    await source.settings(child.id, {"name": "here"}, rev=before.settings_rev)
    await refused(tagged, "other settings")


async def test_another_context_under_an_id_is_refused() -> None:
    async with MemoryStorage() as source, MemoryStorage() as target:
        context = await create_log(source, "a")

        async def nothing() -> AsyncIterator[Any]:
            for entry in ():
                yield entry

        await target.restore(replace(context, key="b"), nothing())
        with pytest.raises(ConflictError, match="another context"):
            await copy(source, target)


async def test_a_store_is_not_copied_onto_itself() -> None:
    async with MemoryStorage() as store:
        with pytest.raises(ValidationError, match="target"):
            await copy(store, store)


async def test_what_is_written_meanwhile_is_named_and_comes_with_the_next_run() -> None:
    async with MemoryStorage() as source, MemoryStorage() as target:
        context = await create_log(source, "a")
        await append_drafts(source, context, draft_message("one"))

        class Busy(FaultyStorage):
            async def restore(self, context: Any, entries: Any) -> None:
                await super().restore(context, entries)
                await append_drafts(source, context, draft_message("meanwhile"))

        done = await copy(source, Busy(target), verify=True)
        assert [problem.what for problem in done.problems] == [
            "the source has gone on to v2 meanwhile: copy again"
        ]
        assert nothing_new(replace(await copy(source, target, verify=True), entries=0))
        assert await everything(target) == await everything(source)


async def test_what_is_written_on_both_sides_meanwhile_is_told_as_another_log() -> None:
    async with MemoryStorage() as source, MemoryStorage() as target:
        context = await create_log(source, "a")
        await append_drafts(source, context, draft_message("one"))

        class Busy(WrapperStorage):
            async def restore(self, context: Any, entries: Any) -> None:
                await super().restore(context, entries)
                await append_drafts(source, context, draft_message("here"))
                await append_drafts(target, context, draft_message("there"))

        done = await copy(source, Busy(target), verify=True)
        assert [(problem.version, problem.what) for problem in done.problems] == [
            (2, "the chain hash is not that of the source")
        ]
        with pytest.raises(ConflictError, match="another log"):
            await copy(source, target)


# ── from the shell ──────────────────────────────────────────────────────────────────────────────────────────────────


def run(*arguments: str, code: int = 0) -> Result:
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == code, (result.output, result.exception)
    assert "Traceback" not in result.output
    return result


@pytest.fixture
def databases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, str]:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.delenv("ACMS_DB", raising=False)

    async def write() -> None:
        async with SQLiteStorage(tmp_path / "a.db") as store:
            await tenancy(store)

    asyncio.run(write())
    return f"sqlite:///{tmp_path / 'a.db'}", f"sqlite:///{tmp_path / 'b.db'}"


def test_the_shell_copies_from_url_to_url(databases: tuple[str, str]) -> None:
    one, two = databases
    told = run("copy", one, two, "--verify").stdout
    assert "8 sessions, 8 of them new" in told
    assert "both sides are the same" in told
    again = json.loads(run("copy", two, "--db", one, "--json", "--no-derived").stdout)
    assert (again["ok"], again["contexts"], again["created"], again["entries"]) == (True, 8, 0, 0)
    assert "problems: 0" in run("verify", "--db", two).stdout
    run("copy", one, f"{two}?tenant=acme")
    assert "fork" in run("sessions", "--all", "--db", f"{two}?tenant=acme").stdout


def test_the_shell_moves_a_tenant_to_a_server_and_back(databases: tuple[str, str], tenant_url: str) -> None:
    one, two = databases
    server = tenant_url
    assert "both sides are the same" in run("copy", one, server, "--verify").stdout
    assert "problems: 0" in run("verify", "--db", server).stdout
    assert "fork" in run("sessions", "--all", "--db", server).stdout
    backup = run("backup", "x.db", "--db", server, code=1).stderr
    assert "pg_dump" in backup
    assert "acms copy" in backup
    assert "both sides are the same" in run("copy", server, two, "--verify").stdout
    for export in ("talk", "fork"):
        told = [run("export", export, "--namespace", "ana", "--db", db).stdout for db in (one, server, two)]
        assert told[0] == told[1] == told[2]


def test_the_shell_leaves_with_1_when_the_copy_is_not_sound(
    databases: tuple[str, str], tmp_path: Path
) -> None:
    one, two = databases
    run("copy", one, two)
    connection = apsw.Connection(str(tmp_path / "b.db"))
    connection.execute("UPDATE entries SET content = 'forged' WHERE content = 'message 4'").fetchall()
    connection.close()
    assert "does not match its digest" in run("copy", one, two, "--verify", code=1).stdout


def test_the_shell_refuses_wrong_usage_of_copy(databases: tuple[str, str]) -> None:
    one, two = databases
    run("copy", code=2)
    run("copy", one, one, code=2)
    run("copy", one, two, two, code=2)
    assert "there is no database" in run("copy", two, one, code=1).stderr
    assert "is not the URL of a store" in run("copy", one, "nowhere://", code=1).stderr
