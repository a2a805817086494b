"""Forks, tags, the fork tree, time travel and deletion of sessions."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from acms import (
    ACMS,
    ACMSConfig,
    Branch,
    ConflictError,
    EntryNotFoundError,
    Job,
    JobState,
    Kind,
    NotFoundError,
    Role,
    SessionNotFoundError,
    State,
    Tree,
    ValidationError,
    View,
    WorkerConfig,
    open_storage,
)
from acms.branches import forks as rooms
from acms.errors import ForkDepthError
from acms.facts import adopt
from acms.model import ContextDraft, ContextQuery, Done, Failed, JobQuery, Lease
from acms.ports import StorageBackend
from acms.storage import CachedStorage
from acms.testing.logs import (
    append_drafts,
    draft_fact,
    draft_message,
    draft_retraction,
    draft_summary,
    fork_log,
)
from tests.servers.stores import url_of
from tests.support.talk import (
    LONG_EPISODES,
    comparable_answers,
    contents_of,
    full_text,
    ingest_texts,
    session_on,
    tool_turn,
    versions_of,
)
from tests.support.talk import Storage as Storage

KINDS = ("memory", "sqlite", "postgres", "cached")


@pytest.fixture(params=KINDS)
async def store(request: pytest.FixtureRequest, tmp_path: Any) -> Any:
    """A store of each kind; a session on `cached` has no second cache in front of it."""
    async with open_storage(url_of(request, tmp_path)) as inner:
        yield CachedStorage(inner) if request.param == "cached" else inner
    await inner.aclose()  # whatever session was left open


async def context_of(session: View) -> Any:
    return await session._shared.storage.context(session.session_id)


async def session_with_points(storage: Any, name: str = "user_123", messages: int = 6) -> ACMS:
    session = session_on(storage, name)
    await session.ingest_many([{"role": "user", "content": f"point {n}"} for n in range(1, messages + 1)])
    return session


async def jobs_of(storage: StorageBackend, context: str) -> Sequence[Job]:
    return (await storage.jobs(JobQuery(context=context))).items


# ── forks ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", ["@profile", "@namespace", "c_0123456789abcdef"])
async def test_a_name_that_stands_for_something_else_is_given_to_no_session(store: Any, name: str) -> None:
    session = await session_with_points(store, messages=2)
    for make in (
        lambda: session.fork(session_id=name),
        lambda: session.copy(session_id=name),
        lambda: session_on(store, name).ingest("user", "hello"),
    ):
        with pytest.raises(ValidationError) as refused:
            await make()
        assert refused.value.field == "session_id"
    assert len((await store.sessions()).sessions) == 1


async def test_a_session_of_an_older_release_with_such_a_name_is_opened_by_its_id(store: Any) -> None:
    for name in ("@profile", "c_0123456789abcdef"):
        now = datetime.now(UTC)
        made = await store.create(
            ContextDraft(key=name, namespace="old", counter="o200k_base", created_at=now)
        )
        session = session_on(store, made.id)
        await session.ingest("user", "hello")
        assert contents_of(await session_on(store, made.id).window(100)) == ["hello"]
    assert contents_of(await session_on(store, "c_0123456789abcdef", namespace="old").window(100)) == [
        "hello"
    ]


async def test_t10_a_fork_at_any_version_is_its_parent_there_on_every_verb(store: Any) -> None:
    parent = session_on(store)
    await ingest_texts(parent, "which database for orders?", "we chose PostgreSQL 18", close=True)
    first, *_ = await ingest_texts(parent, "orders expects 2 TB", "the cache is Redis")
    await tool_turn(parent, "call_1", "40% used", text="let me see")
    await parent.replace(first, "orders expects 3 TB")
    await parent.ingest("assistant", "the database of orders will be PostgreSQL")
    head = (await parent.get_session_stats()).version
    forks = [await parent.fork(at=n) for n in range(head + 1)]
    before = {n: await answers_of_view(parent.at(n)) for n in range(head + 1)}
    await ingest_texts(parent, "the parent goes on", "we chose MySQL for orders after all")
    await parent.retract(first)
    for n, child in enumerate(forks):
        assert versions_of((await child.history(limit=500)).entries) == list(range(1, n + 1))
        await child.ingest("user", f"what if, from {n}")
        grandchild = await child.fork(at=n)
        for k in {0, n // 2, max(0, n - 1), n}:
            assert await answers_of_view(parent.at(k)) == before[k]
            assert await answers_of_view(child.at(k)) == before[k]
            assert await answers_of_view(grandchild.at(k)) == before[k]
        assert (await child.history(after=n)).entries[-1].preview == f"what if, from {n}"
    told = "\n".join(entry.preview for entry in (await parent.history(limit=500)).entries)
    assert "what if" not in told


async def answers_of_view(view: View) -> Any:
    """What every reading verb says, without the name and id of the context that says it."""
    window, recall, ledger, warnings, messages, history, stats, episodes = await comparable_answers(view)
    return (
        *(window, recall, ledger, warnings, messages, history),
        replace(stats, session_id="", current_episode_id=None),
        [replace(episode, id="") for episode in episodes],
    )


async def test_t11_a_version_reads_the_same_whatever_comes_after_it(store: Any) -> None:
    session = session_on(store)
    ids = await ingest_texts(session, *(f"the orders database, point {n}" for n in range(8)))
    context = await context_of(session)
    await append_drafts(store, context, draft_fact("orders uses PostgreSQL", sources=(ids[0],)))
    before = {n: full_text(await comparable_answers(session.at(n))) for n in range(10)}
    await append_drafts(store, context, draft_summary(1, 4))
    await session.replace(ids[5], "the orders database, corrected")
    await session.retract(ids[6])
    await append_drafts(store, context, draft_fact("orders uses MySQL", replaces=((9, 9),)))
    await append_drafts(
        store, context, draft_summary(1, 10, replaces=((1, 8), (10, 10))), draft_retraction(10)
    )
    child = await session.fork(at=5)
    await child.ingest("user", "and the child goes on")
    await (await session.fork(at=3, session_id="gone")).delete()
    for n, said_before in before.items():
        assert full_text(await comparable_answers(session.at(n))) == said_before


async def test_t12_a_fork_during_appends_and_summaries_is_a_snapshot(store: Any) -> None:
    session = await session_with_points(store, messages=4)
    context = await context_of(session)

    async def talk(n: int) -> None:
        await session.ingest_many([{"role": "user", "content": f"{n}.{half}"} for half in "ab"])

    async def sum_up(n: int) -> None:
        await append_drafts(store, context, draft_summary(1, 2 + n % 3))

    work = [talk(n) if n % 3 == 0 else sum_up(n) if n % 3 == 1 else session.fork() for n in range(45)]
    done = await asyncio.gather(*work)
    whole = await answers_of_view(session.at((await session.get_session_stats()).version))
    children = [child for child in done if isinstance(child, ACMS)]
    assert len(children) == 15
    for child in children:
        fork = (await child.ancestry())[-1].fork
        assert fork is not None
        assert await answers_of_view(child) == await answers_of_view(session.at(fork))
        said_there = (await child.history(limit=500)).entries
        assert [entry.id for entry in said_there] == [entry.id for entry in whole[5][:fork]]
        assert sum(entry.preview.endswith((".a", ".b")) for entry in said_there) % 2 == 0


async def test_t13_too_deep_a_fork_is_refused_with_advice(store: Any) -> None:
    session = session_on(store, "deep")
    await session.ingest("user", "0")
    for n in range(1, 65):
        session = await session.fork()
        await session.ingest("user", str(n))
    assert contents_of(await session.window(10_000)) == [str(n) for n in range(65)]
    with pytest.raises(ForkDepthError) as refused:
        await session.fork(session_id="too-deep")
    assert "copy" in refused.value.options[0]
    with pytest.raises(SessionNotFoundError):
        await store.context("too-deep")
    assert len(await session.ancestry()) == 65
    assert (await session.fork(at=64)) is not None


async def test_t13_a_long_line_of_forks_without_messages_needs_no_recursion() -> None:
    async with open_storage("memory://") as storage:
        root = session = await session_with_points(storage, messages=2)
        for _ in range(1500):
            session = await session.fork()
        tree = await root.tree()
        assert tree is not None
        assert [depth for depth, _ in tree] == list(range(1501))
        assert tree == await session.tree()
        assert "1501 branches" in repr(tree)
        assert len({tree}) == 1
        assert str(tree).count("\n") == 1500
        assert len(await session.ancestry()) == 1501
        assert contents_of(await session.window(100)) == ["point 1", "point 2"]


@pytest.mark.parametrize(
    ("store", "forks"),
    [(kind, 600) for kind in KINDS] + [pytest.param(kind, 10_000, marks=pytest.mark.slow) for kind in KINDS],
    indirect=["store"],
)
async def test_t13_many_forks_of_one_parent_are_made_alike_and_listed_in_pages(
    store: Any, forks: int
) -> None:
    session = await session_with_points(store)
    counted = Counting(session._shared.storage)
    session._shared.storage = counted
    spent: list[int] = []
    for n in range(forks):
        before = counted.calls
        await session.fork(at=n % 7)
        spent.append(counted.calls - before)
    assert set(spent) == {3}, "a fork costs as many calls as the first one"
    listed = await session.forks()
    assert [branch.fork for branch in listed] == [n % 7 for n in range(forks)]
    tree = await session.tree()
    assert tree is not None
    assert [branch.context_id for branch in listed] == [fork.branch.context_id for fork in tree.forks]


class Counting:
    """Counts the calls a store gets."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.calls = 0

    def __getattr__(self, name: str) -> Any:
        self.calls += 1
        return getattr(self._inner, name)


async def test_a_fork_is_one_commit() -> None:
    async with open_storage("memory://") as inner:
        session = await session_with_points(inner)
        await session.tags()
        asked: list[str] = []

        class Noting(Counting):
            def __getattr__(self, name: str) -> Any:
                asked.append(name)
                return super().__getattr__(name)

        session._shared.storage = Noting(inner)  # type: ignore[assignment]
        await session.fork()
        assert asked == ["create"]
        asked.clear()
        await session.fork(at=6)
        assert asked == ["context", "head", "create"]
        asked.clear()
        await session.fork(at=3)
        assert asked == ["context", "head", "create"]
        asked.clear()
        await append_drafts(inner, await inner.context("user_123"), draft_fact("from nothing"))
        await session.fork(at=7)
        assert asked == ["context", "head", "create"]
        asked.clear()
        await session.fork(at=3)
        assert asked == ["context", "head", "create", "read"]


async def test_a_fork_at_a_version_that_does_not_exist_is_refused(store: Any) -> None:
    session = await session_with_points(store)
    with pytest.raises(NotFoundError) as missing:
        await session.fork(at=7)
    assert missing.value.options == ("give a version from 0 to 6",)
    for wrong in (-1, 2.5, True):
        with pytest.raises(ValidationError) as refused:
            await session.fork(at=wrong)  # type: ignore[arg-type]
        assert refused.value.field == "at"
    assert await session.forks() == []


async def test_a_session_nobody_wrote_cannot_be_forked_compared_or_deleted(store: Any) -> None:
    other = await session_with_points(store)
    session = session_on(store, "nobody")
    for work in (session.fork(), session.fork(session_id="x"), session.tag("x"), session.delete()):
        with pytest.raises(SessionNotFoundError):
            await work
    with pytest.raises(SessionNotFoundError):
        await session.diff(other)
    assert await session.forks() == []
    assert await session.ancestry() == []
    assert await session.tree() is None
    assert await session.tags() == {}


async def test_a_named_fork_is_made_once(store: Any) -> None:
    session = await session_with_points(store)
    child = await session.fork(at=4, session_id="what-if")
    await child.ingest("user", "only here")
    for again in (await session.fork(at=4, session_id="what-if"), await session.fork(session_id="what-if")):
        assert again.session_id == "what-if"
        assert contents_of(await again.window(1000))[-1] == "only here"
    assert len(await session.forks()) == 1


async def test_a_name_that_stands_for_something_else_is_refused_and_said(store: Any) -> None:
    session = await session_with_points(store)
    await session_with_points(store, "alone", 1)
    child = await session.fork(at=4, session_id="what-if")
    with pytest.raises(ConflictError, match="a session that is no fork"):
        await session.fork(session_id="alone")
    with pytest.raises(ConflictError, match="a session that is no fork"):
        await session.fork(session_id="user_123")
    with pytest.raises(ConflictError, match="a fork of 'user_123' at version 4"):
        await session.fork(at=5, session_id="what-if")
    with pytest.raises(ConflictError, match="a fork of 'user_123' at version 4") as refused:
        await child.fork(at=4, session_id="what-if")
    assert not refused.value.retryable
    with pytest.raises(ValidationError) as empty:
        await session.fork(session_id=" ")
    assert empty.value.field == "session_id"


async def test_concurrent_forks_of_one_name_are_one_fork(store: Any) -> None:
    session = await session_with_points(store)
    made = await asyncio.gather(*(session.fork(at=3, session_id="once") for _ in range(8)))
    assert len({(await context_of(child)).id for child in made}) == 1
    assert len(await session.forks()) == 1


async def test_a_fork_without_a_name_is_named_by_its_id(store: Any) -> None:
    session = await session_with_points(store)
    child = await session.fork(at=2)
    await child.ingest("user", "mine")
    again = session_on(store, child.session_id)
    assert contents_of(await again.window(100)) == ["point 1", "point 2", "mine"]


async def test_a_fork_takes_over_the_policy_and_not_the_tags(store: Any) -> None:
    session = await session_with_points(store)
    await session.set_policy(threshold=0.5)
    await session.tag("late")
    child = await session.fork(at=3)
    assert (await child.policy()).policy.threshold == 0.5
    assert (await child.policy()).levels["threshold"] == "context"
    assert dict((await context_of(child)).settings) == {"policy": {"threshold": 0.5}}
    await session.set_policy(threshold=0.9)
    assert (await child.policy()).policy.threshold == 0.5


async def test_a_child_shares_the_index_of_its_parent(store: Any) -> None:
    session = session_on(store)
    await session.ingest_many(
        [{"role": "user", "content": f"note {n} about orders and databases"} for n in range(600)]
    )
    await session.recall("orders databases", token_budget=100)
    before = session.internals.index_stats
    assert before.builds
    child = await session.fork()
    await child.recall("orders databases", token_budget=100)
    after = child.internals.index_stats
    assert after.builds - before.builds <= 1, "a sight of the same parts"
    assert after.bytes < before.bytes * 1.1, "nothing is kept twice"
    assert after.healed == before.healed


# ── late facts ──────────────────────────────────────────────────────────────────────────────────────────────────────


def by_hand(storage: Any) -> ACMS:
    """A session whose jobs wait for the test."""
    return session_on(storage, config=ACMSConfig(episodes=LONG_EPISODES, worker=WorkerConfig(enabled=False)))


async def claim_job(storage: StorageBackend, kind: str = "adopt") -> Lease:
    (lease,) = await storage.claim([kind], lease=timedelta(minutes=5))
    return lease


async def run_adopt_job(storage: StorageBackend) -> Any:
    """Do what a worker does with an adopt job; return the outcome."""
    lease = await claim_job(storage)
    outcome = await adopt.handle_adopt_job(storage, lease)
    if outcome is not None:
        await storage.settle(lease, outcome)
    return outcome


async def facts_of(session: View) -> list[Any]:
    context = await context_of(session)
    return [
        entry
        for entry in await session._shared.storage.read(context.id, kinds=(Kind.FACT,))
        if entry.state is State.LIVE
    ]


async def test_late_facts_are_adopted_with_their_sources(store: Any) -> None:
    session = by_hand(store)
    ids = await ingest_texts(session, "orders uses PostgreSQL", "it runs on db1", "now we move to MySQL")
    context = await context_of(session)
    await append_drafts(
        store,
        context,
        draft_fact("orders: PostgreSQL", sources=(ids[0],)),
        draft_fact("host: db1", sources=tuple(ids[:2]), metadata={"n": 1}),
        draft_fact("orders: MySQL", sources=(ids[2],)),
        draft_fact("from nothing"),
    )
    child = await session.fork(at=2, session_id="what-if")
    (job,) = await jobs_of(store, (await context_of(child)).id)
    assert (job.kind, job.dedupe) == ("adopt", f"adopt:{(await context_of(child)).id}")
    assert await run_adopt_job(store) is None
    originals = (await facts_of(session))[:2]
    copies = await facts_of(child)
    assert contents_of(copies) == ["orders: PostgreSQL", "host: db1"]
    assert versions_of(copies) == [3, 4]
    for original, copy in zip(originals, copies, strict=True):
        assert copy.sources == (*original.sources, original.id)
        assert (copy.data, copy.metadata, copy.created_at) == (
            original.data,
            original.metadata,
            original.created_at,
        )
        assert copy.key == f"adopt:{original.id}"
    assert [job.state for job in await jobs_of(store, (await context_of(child)).id)] == [JobState.DONE]
    assert len(await facts_of(session)) == 4
    await child.ingest("user", "the child goes on")
    assert contents_of(await child.window(1000)) == [
        "orders uses PostgreSQL",
        "it runs on db1",
        "the child goes on",
    ]


async def test_adopting_again_adds_nothing(store: Any) -> None:
    session = by_hand(store)
    ids = await ingest_texts(session, "a", "b")
    context = await context_of(session)
    await append_drafts(store, context, draft_fact("of a", sources=(ids[0],)))
    child = await session.fork(at=2, session_id="x")
    await run_adopt_job(store)
    await session.fork(at=2, session_id="x")
    assert [job.state for job in await jobs_of(store, (await context_of(child)).id)] == [JobState.DONE]
    await append_drafts(store, context, draft_fact("also of a", sources=(ids[0],)))
    await session.fork(at=2, session_id="x")
    await run_adopt_job(store)
    assert contents_of(await facts_of(child)) == ["of a", "also of a"]


async def test_a_named_fork_that_was_cut_short_gets_its_late_facts_when_it_is_made_again(store: Any) -> None:
    session = by_hand(store)
    ids = await ingest_texts(session, "a", "b")
    context = await context_of(session)
    await append_drafts(store, context, draft_fact("of a", sources=(ids[0],)))
    made = await fork_log(store, context, 2, key="x", counter=context.counter)
    assert await jobs_of(store, made.id) == ()
    child = await session.fork(at=2, session_id="x")
    await run_adopt_job(store)
    assert contents_of(await facts_of(child)) == ["of a"]


async def test_this_process_adopts_by_itself(store: Any) -> None:
    session = session_on(store)
    ids = await ingest_texts(session, "a", "b")
    await append_drafts(store, await context_of(session), draft_fact("of a", sources=(ids[0],)))
    child = await session.fork(at=2)
    await child.wait_pending()
    assert contents_of(await facts_of(child)) == ["of a"]


async def test_a_fork_of_a_fork_adopts_what_the_fork_had_adopted(store: Any) -> None:
    session = by_hand(store)
    ids = await ingest_texts(session, "a", "b")
    await append_drafts(store, await context_of(session), draft_fact("of a", sources=(ids[0],)))
    child = await session.fork(at=2)
    await run_adopt_job(store)
    grandchild = await child.fork(at=2)
    await run_adopt_job(store)
    (copy,) = await facts_of(child)
    (again,) = await facts_of(grandchild)
    assert again.sources == (*copy.sources, copy.id)


async def test_nothing_of_the_future_is_adopted_through_another_fact(store: Any) -> None:
    session = by_hand(store)
    ids = await ingest_texts(session, "a", "b", "c")
    context = await context_of(session)
    receipt = await append_drafts(store, context, draft_fact("of c", sources=(ids[2],)))
    await append_drafts(store, context, draft_fact("of a and of c", sources=(ids[0], *receipt.ids)))
    child = await session.fork(at=2)
    assert isinstance(await run_adopt_job(store), Done)
    assert await facts_of(child) == []


async def test_facts_that_are_replaced_retracted_or_erased_are_not_adopted(store: Any) -> None:
    session = by_hand(store)
    ids = await ingest_texts(session, "a", "b", "c")
    context = await context_of(session)
    old = await append_drafts(store, context, draft_fact("old", sources=(ids[0],)))
    await append_drafts(
        store, context, draft_fact("new", sources=(ids[0],), replaces=((old.versions[0],) * 2,))
    )
    gone = await append_drafts(store, context, draft_fact("gone", sources=(ids[0],)))
    await session.retract(gone.ids[0])
    await append_drafts(store, context, draft_fact("of an erased one", sources=(ids[1],)))
    child = await session.fork(at=3)
    await store.blank(context.id, [2], to=State.ERASED, audit={})
    assert await run_adopt_job(store) is None
    (copy,) = await facts_of(child)
    assert (copy.content, copy.replaces) == ("new", ())


async def test_an_adopted_fact_replaces_what_the_child_has(store: Any) -> None:
    session = by_hand(store)
    (first,) = await ingest_texts(session, "a")
    context = await context_of(session)
    await append_drafts(store, context, draft_fact("old", sources=(first,)))
    (second,) = await ingest_texts(session, "b")
    between = await append_drafts(
        store, context, draft_fact("between", sources=(second,), replaces=((2, 2),))
    )
    await append_drafts(store, context, draft_fact("new", sources=(second,), replaces=((2, 2), (4, 4))))
    assert between.versions == (4, 4)
    child = await session.fork(at=3)
    await run_adopt_job(store)
    old, copy = await facts_of(child)
    assert (old.content, copy.content, copy.replaces) == ("old", "new", ((2, 2),))
    assert (await child.get_session_stats()).facts == 1


async def test_what_the_child_decided_itself_is_not_overruled_by_a_late_fact(store: Any) -> None:
    session = by_hand(store)
    (first,) = await ingest_texts(session, "a")
    context = await context_of(session)
    await append_drafts(store, context, draft_fact("old", sources=(first,)))
    data = {"subject": "host", "attribute": "name", "value": "db1", "cardinality": "one"}
    late = [
        draft_fact("late", sources=(first,), replaces=((2, 2),)),
        draft_fact("host: db1", sources=(first,), data=data),
    ]
    await append_drafts(store, context, *late)
    child = await session.fork(at=2)
    mine = await context_of(child)
    await append_drafts(store, mine, draft_fact("mine", replaces=((2, 2),)))
    await append_drafts(store, mine, draft_fact("host: db2", data={**data, "value": "db2"}))
    assert isinstance(await run_adopt_job(store), Done)
    assert contents_of(await facts_of(child)) == ["old", "mine", "host: db2"]


async def test_adopting_decides_again_when_something_is_erased_meanwhile(store: Any) -> None:
    session = by_hand(store)
    ids = await ingest_texts(session, "a", "b")
    context = await context_of(session)
    await append_drafts(
        store, context, draft_fact("of a", sources=(ids[0],)), draft_fact("of b", sources=(ids[1],))
    )
    child = await session.fork(at=2)
    lease = await claim_job(store)

    class Racing(Counting):
        async def append(self, ops: Any) -> Any:
            if not self.calls:
                self.calls = 1
                await store.blank(context.id, [1], to=State.ERASED, audit={})
            return await store.append(ops)

        def __getattr__(self, name: str) -> Any:
            return getattr(store, name)

    assert await adopt.handle_adopt_job(Racing(store), lease) is None  # type: ignore[arg-type]
    assert contents_of(await facts_of(child)) == ["of b"]


async def test_t07_adoption_into_or_from_a_deleted_session_is_cancelled(store: Any) -> None:
    session = by_hand(store)
    ids = await ingest_texts(session, "a", "b")
    await append_drafts(store, await context_of(session), draft_fact("of a", sources=(ids[0],)))
    child = await session.fork(at=2)
    await child.delete()
    outcome = await adopt.handle_adopt_job(store, await claim_job(store))
    assert isinstance(outcome, Failed)
    assert outcome.cancelled
    other = await session.fork(at=2)
    await session.delete()
    outcome = await adopt.handle_adopt_job(store, await claim_job(store))
    assert isinstance(outcome, Failed)
    assert outcome.cancelled
    assert await facts_of(other) == []


# ── tags ────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_tag_names_a_version_to_fork_at_and_to_compare_with(store: Any) -> None:
    session = await session_with_points(store)
    assert await session.tag("before-migration") == 6
    assert await session.tag("start", 2) == 2
    await session.ingest("user", "after")
    assert await session.tags() == {"start": 2, "before-migration": 6}
    assert list(await session.tags()) == ["start", "before-migration"]
    child = await session.fork(at="before-migration", session_id="retry")
    assert (await child.get_session_stats()).version == 6
    assert contents_of((await session.diff("start")).messages.removed) == [
        *(f"point {n}" for n in range(3, 7)),
        "after",
    ]
    assert await session.at(3).tags() == {"start": 2}
    assert await rooms.resolve_version(store, (await context_of(session)).id, "start") == 2


async def test_a_tag_moves_only_when_told(store: Any) -> None:
    session = await session_with_points(store)
    await session.tag("here", 3)
    assert await session.tag("here", 3) == 3
    with pytest.raises(ConflictError, match="'here' names version 3, not 6"):
        await session.tag("here")
    assert await session.tag("here", move=True) == 6
    await session.untag("here")
    assert await session.tags() == {}
    with pytest.raises(NotFoundError, match="has no tag 'here'"):
        await session.untag("here")


async def test_an_unknown_tag_lists_the_known_ones(store: Any) -> None:
    session = await session_with_points(store)
    with pytest.raises(NotFoundError, match="there are no tags") as refused:
        await session.fork(at="v5")
    assert refused.value.options == ("a version is a number: 5",)
    await session.tag("begin", 1)
    await session.tag("later", 4)
    with pytest.raises(NotFoundError, match="there are: begin, later") as refused:
        await session.fork(at="start")
    assert refused.value.options == ("'begin' is version 1", "'later' is version 4")


@pytest.mark.parametrize("wrong", ["", "  ", "12", "v1", "v12", "a\0b", "x" * 300, None, 3])
async def test_a_tag_needs_a_name_that_is_no_number(storage: Storage, wrong: Any) -> None:
    session = await session_with_points(storage)
    with pytest.raises(ValidationError) as refused:
        await session.tag(wrong)
    assert refused.value.field == "name"


@pytest.mark.parametrize("wrong", [-1, "2", 1.5])
async def test_a_tag_needs_a_version_that_exists(storage: Storage, wrong: Any) -> None:
    session = await session_with_points(storage)
    with pytest.raises(ValidationError) as refused:
        await session.tag("x", wrong)
    assert refused.value.field == "version"
    with pytest.raises(NotFoundError, match="ends at version 6"):
        await session.tag("x", 7)


async def test_a_session_has_at_most_a_thousand_tags(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert rooms.MAX_TAGS == 1000
    monkeypatch.setattr(rooms, "MAX_TAGS", 3)
    session = await session_with_points(storage)
    for n in range(3):
        await session.tag(f"tag-{n}", n)
    with pytest.raises(ValidationError, match="which is the limit"):
        await session.tag("one-more")
    assert await session.tag("tag-0", 5, move=True) == 5


async def test_a_fork_knows_the_tags_of_what_it_inherited(store: Any) -> None:
    session = await session_with_points(store)
    await session.tag("early", 2)
    await session.tag("late", 5)
    child = await session.fork(at=4)
    grandchild = await child.fork(at=3)
    await session.tag("given-later", 3)
    assert await child.tags() == {"early": 2, "given-later": 3}
    with pytest.raises(ConflictError, match="'early' names version 2"):
        await child.tag("early", 3)
    await child.tag("early", 3, move=True)
    assert await child.tags() == {"early": 3, "given-later": 3}
    assert await grandchild.tags() == {"early": 3, "given-later": 3}
    assert (await session.tags())["early"] == 2
    with pytest.raises(NotFoundError):
        await child.untag("given-later")
    await child.untag("early")
    assert (await child.tags())["early"] == 2
    retry = await grandchild.fork(at="early")
    assert (await retry.get_session_stats()).version == 2


async def test_concurrent_tags_are_all_kept(store: Any) -> None:
    session = await session_with_points(store)
    await asyncio.gather(*(session.tag(f"t{n}", n % 7) for n in range(20)))
    assert len(await session.tags()) == 20


async def test_a_tag_of_a_version_that_was_lost_and_used_again_is_noticed(storage: Storage) -> None:
    """After a failover that lost versions, a number alone may name another message."""
    session = await session_with_points(storage)
    await session.tag("here", 4)
    context = await context_of(session)
    tags = dict(context.settings["tags"])
    await storage.settings(
        context.id, {"tags": {"here": {**tags["here"], "chain": "00" * 32}}}, rev=context.settings_rev
    )
    with pytest.raises(ConflictError, match="not in this log any more"):
        await session.fork(at="here")


# ── the tree ────────────────────────────────────────────────────────────────────────────────────────────────────────


async def fork_family(store: Any) -> tuple[ACMS, ACMS, ACMS, ACMS]:
    root = await session_with_points(store, "root")
    one = await root.fork(at=4, session_id="one")
    await ingest_texts(one, "a", "b")
    two = await one.fork(at=5, session_id="two")
    three = await root.fork(at=2, session_id="three")
    return root, one, two, three


def comparable_branches(branches: Sequence[Branch]) -> list[tuple[str, int | None, int, bool]]:
    return [(branch.session_id, branch.fork, branch.version, branch.deleted) for branch in branches]


async def test_forks_ancestry_and_tree_say_who_came_from_whom(store: Any) -> None:
    root, one, two, _ = await fork_family(store)
    assert comparable_branches(await root.forks()) == [("one", 4, 6, False), ("three", 2, 2, False)]
    assert comparable_branches(await root.at(3).forks()) == [("three", 2, 2, False)]
    assert comparable_branches(await two.ancestry()) == [
        ("root", None, 6, False),
        ("one", 4, 6, False),
        ("two", 5, 5, False),
    ]
    tree = await two.tree()
    assert isinstance(tree, Tree)
    assert tree == await root.tree()
    assert [(depth, branch.session_id) for depth, branch in tree] == [
        (0, "root"),
        (1, "one"),
        (2, "two"),
        (1, "three"),
    ]
    assert str(tree) == (
        "root v6\n  one v6, forked at v4\n    two v5, forked at v5\n  three v2, forked at v2"
    )
    assert tree.forks[0].branch.parent == tree.branch.context_id
    assert (await one.tree()) == tree


async def test_a_deleted_parent_stays_in_the_lineage_and_its_forks_stay_readable(store: Any) -> None:
    root, one, two, three = await fork_family(store)
    before = await answers_of_view(two)
    assert {branch.session_id for branch in await one.delete()} == {"two"}
    assert comparable_branches(await root.delete()) == [("two", 5, 5, False), ("three", 2, 2, False)]
    assert await answers_of_view(two) == before
    assert contents_of(await three.window(100)) == ["point 1", "point 2"]
    await two.ingest("user", "the fork goes on")
    assert comparable_branches(await two.ancestry()) == [
        ("root", None, 6, True),
        ("one", 4, 6, True),
        ("two", 5, 6, False),
    ]
    tree = await three.tree()
    assert tree is not None
    assert (
        str(tree)
        == "root v6 (deleted)\n  one v6, forked at v4 (deleted)\n    two v6, forked at v5\n  three v2, forked at v2"
    )
    retry = await two.fork(at=1)
    assert contents_of(await retry.window(100)) == ["point 1"]


async def test_deleting_hides_a_session_everywhere_and_asks_for_its_collection(store: Any) -> None:
    session = await session_with_points(store)
    context = await context_of(session)
    other = session_on(store)
    await other.window(100)
    started = datetime.now(UTC)
    assert await session.delete() == []
    (job,) = await jobs_of(store, context.id)
    assert (job.kind, job.dedupe) == ("collect", f"collect:{context.id}")
    assert timedelta(days=30) <= job.not_before - started <= timedelta(days=30, minutes=5)
    assert (await session.get_session_stats()).messages == 0
    assert (await store.contexts(ContextQuery(namespace="default"))).items == ()
    for work in (
        other.ingest("user", "late"),
        other.window(100),
        other.delete(),
        other.fork(),
        other.tag("x"),
    ):
        with pytest.raises(SessionNotFoundError):
            await work
    with pytest.raises(SessionNotFoundError):
        await session.delete()
    with pytest.raises(EntryNotFoundError):
        await session.get(f"m_{context.id[2:]}_1_000000")


async def test_a_deleted_name_is_free_again_and_undeleting_brings_a_session_back(store: Any) -> None:
    session = await session_with_points(store)
    context = await context_of(session)
    await session.delete()
    await session.ingest("user", "a new start")
    assert contents_of(await session.window(100)) == ["a new start"]
    await session.delete()
    found = await store.context(context.id)
    await store.settings(context.id, {"deleted": False}, rev=found.settings_rev)
    assert len(await session_on(store).window(1000)) == 6


async def test_deleting_twice_at_once_succeeds_once(store: Any) -> None:
    await session_with_points(store)
    one, other = session_on(store), session_on(store)
    await one.window(10)
    await other.window(10)
    done = await asyncio.gather(one.delete(), other.delete(), return_exceptions=True)
    assert sorted(type(result).__name__ for result in done) == ["SessionNotFoundError", "list"]


# ── a story ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 9), st.integers(0, 99)), max_size=25))
async def test_every_branch_is_the_list_it_should_be(steps: list[tuple[int, int, int]]) -> None:
    """Random talk in a growing family: each session reads what a plain list would hold."""
    async with open_storage("memory://") as storage:
        root = session_on(storage)
        await root.ingest("user", "0")
        family = [(root, ["0"])]
        for number, (who, action, where) in enumerate(steps, 1):
            session, log = family[who % len(family)]
            if action < 5:
                await session.ingest("user", str(number))
                log.append(str(number))
            else:
                at = where % (len(log) + 1)
                family.append((await session.fork(at=at), log[:at]))
        for session, log in family:
            assert contents_of(await session.window(100_000)) == log
        for (one, ours), (other, theirs) in pairwise(family):
            delta = await one.diff(other)
            common = delta.common
            assert ours[:common] == theirs[:common]
            assert contents_of(delta.messages.removed) == ours[common:]
            assert contents_of(delta.messages.added) == theirs[common:]


async def test_messages_may_be_said_in_every_role_on_a_fork(store: Any) -> None:
    """A tool call that the fork cuts off from its answer is shown as interrupted."""
    session = await session_with_points(store, messages=1)
    await tool_turn(session, "call_1", "40% used", text="let me see")
    child = await session.fork(at=2)
    assert contents_of(await child.window(1000))[-1].startswith("let me see")
    await child.ingest("user", "never mind")
    assert contents_of(await child.window(1000)) == ["point 1", "let me see\ndisk({})", "never mind"]
    await append_drafts(store, await context_of(child), draft_message("ok", role=Role.ASSISTANT))
    assert contents_of(await child.window(1000))[2:] == ["never mind", "ok"]


async def test_a_fork_that_misses_very_many_facts_leaves_them_to_the_job(store: Any) -> None:
    session = by_hand(store)
    ids = await ingest_texts(session, "a", "b")
    context = await context_of(session)
    await append_drafts(store, context, *(draft_fact(f"of b {n}", sources=(ids[1],)) for n in range(40)))
    await append_drafts(store, context, *(draft_fact(f"of a {n}", sources=(ids[0],)) for n in range(40)))
    child = await session.fork(at=1)
    assert await run_adopt_job(store) is None
    assert contents_of(await facts_of(child)) == [f"of a {n}" for n in range(40)]
