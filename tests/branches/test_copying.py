"""A flat copy of a session: everything it reads, in a log of its own."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from acms import (
    ACMS,
    ACMSConfig,
    ConflictError,
    Entry,
    Kind,
    NotFoundError,
    SessionNotFoundError,
    State,
    StorageBusyError,
    WorkerConfig,
)
from acms.branches import export
from acms.erasure import erase
from acms.errors import ForkDepthError, LegalHoldError
from acms.log import policy as policy_levels
from acms.log.provenance import COPIES, COPYING
from acms.model import Context, ContextQuery, Derived, Done, JobDraft, JobQuery, Lease
from acms.storage import MemoryStorage, WrapperStorage, append_rules
from acms.testing import HashEmbedder, sound
from acms.testing.logs import append_drafts, draft_fact, draft_message, draft_summary
from tests.support.faulty import FaultyStorage
from tests.support.fixtures import Plain
from tests.support.talk import (
    LONG_EPISODES,
    PATIENT,
    Storage,
    comparable_answers,
    contents_of,
    ingest_texts,
    session_on,
    tool_turn,
)

QUIET = ACMSConfig(episodes=LONG_EPISODES, retry=PATIENT, worker=WorkerConfig(enabled=False))


async def eventful_fork(storage: Any) -> tuple[ACMS, list[str]]:
    """A fork with everything in it, whose parent went on."""
    parent = session_on(storage, "parent", config=QUIET)
    ids = await ingest_texts(
        parent, "which database for orders?", "orders expects 2 TB", "the cache is Redis", close=True
    )
    await parent.tag("asked", 1)
    await parent.set_policy(budget=5000)
    await tool_turn(parent, "call_1", "40% used", text="let me see")
    child = await parent.fork(5, "child")
    await ingest_texts(parent, "the parent goes on")
    ids += await ingest_texts(child, "what if orders used MySQL?", "we would lose nothing", "and then?")
    await child.replace(ids[1], "orders expects 3 TB")
    context = (await storage.context("child")).id
    await append_drafts(
        storage,
        await storage.context(context),
        draft_fact("orders uses MySQL", sources=(ids[3], "m_elsewhere_1_000000")),
        draft_fact("and is sure of it", sources=(ids[3],)),
        draft_summary(6, 7),
    )
    await child.retract(ids[5])
    await child.tag("decided", 7)
    await storage.blank(context, [3], to=State.ERASED, audit={})
    await child.ingest_many(
        [{"role": "user", "content": f"orders, batch {n}", "key": f"k{n}"} for n in range(30)]
    )
    return child, ids


async def as_read(view: Any) -> Any:
    """What every reading verb says, without what names the session and its entries."""
    window, recalled, ledger, warnings, messages, history, stats, episodes = await comparable_answers(view)
    items = [
        (item.version, item.content, item.source, item.token_count, item.score)
        for item in window[0] + recalled[0]
    ]
    reasons = [(one.version, one.included, one.rule, one.score) for one in ledger]
    told = [
        (one.version, one.kind, one.role, one.preview, one.state, one.in_force, one.created_at)
        for one in history
    ]
    counts = (
        stats.version,
        stats.messages,
        stats.tokens,
        stats.active_messages,
        stats.facts,
        stats.summaries,
    )
    spans = [(one.ordinal, one.first, one.last, one.messages, one.reason) for one in episodes]
    return items, reasons, warnings, len(messages), told, counts, spans


async def test_a_copy_reads_at_every_version_as_its_original(storage: Storage) -> None:
    child, _ = await eventful_fork(storage)
    head = (await child.get_session_stats()).version
    made = await child.copy(session_id="flat")
    assert made.session_id == "flat"
    for version in range(head + 1):
        assert await as_read(made.at(version)) == await as_read(child.at(version)), version
    assert await made.tags() == await child.tags()
    assert (await made.policy()).policy == (await child.policy()).policy
    context = await storage.context("flat")
    assert (context.parent, context.lineage, context.deleted_at) == (None, (), None)
    assert COPYING not in context.settings
    entries = await sound(storage, context.id)
    theirs = await storage.read((await storage.context("child")).id)
    assert not {entry.id for entry in entries} & {entry.id for entry in theirs}
    assert not {entry.salt for entry in entries if entry.salt} & {entry.salt for entry in theirs}
    assert not {entry.digest for entry in entries if entry.salt} & {entry.digest for entry in theirs}
    assert await export.verify(storage, context) == []


async def test_a_copy_cites_itself_and_what_lies_elsewhere(storage: Storage) -> None:
    child, ids = await eventful_fork(storage)
    await child.copy(session_id="flat")
    entries = await storage.read((await storage.context("flat")).id)
    (version,) = [entry.version for entry in await storage.get([ids[3]]) if entry is not None]
    facts = [entry for entry in entries if entry.kind is Kind.FACT]
    assert facts[0].sources == (entries[version - 1].id, "m_elsewhere_1_000000")
    assert facts[1].sources == (entries[version - 1].id,)


async def test_both_sides_go_on_apart(storage: Storage) -> None:
    child, _ = await eventful_fork(storage)
    made = await child.copy(at=7)
    assert made.session_id == (await storage.context(made.session_id)).id
    assert (await made.get_session_stats()).version == 7
    before = await as_read(child)
    await made.ingest("user", "only in the copy")
    repeated = await made.ingest_many([{"role": "user", "content": "orders, batch 1", "key": "k1"}])
    assert not repeated[0].repeated
    assert await as_read(child) == before
    at_tag = await child.copy(at="decided")
    assert (await at_tag.get_session_stats()).version == 7
    with pytest.raises(NotFoundError):
        await child.copy(at="never")
    with pytest.raises(SessionNotFoundError):
        await session_on(storage, "nobody").copy()
    empty = await child.copy(at=0, session_id="empty")
    assert (await empty.get_session_stats()).version == 0
    await empty.ingest("user", "a start")


@pytest.mark.parametrize("any_url", ["memory"], indirect=True)
async def test_t13_what_is_too_deep_to_fork_is_copied_and_forked_on(storage: Storage) -> None:
    session = session_on(storage, "deep", config=QUIET)
    await session.ingest("user", "0")
    for n in range(1, 65):
        session = await session.fork()
        await session.ingest("user", str(n))
    with pytest.raises(ForkDepthError) as refused:
        await session.fork()
    assert "session.copy()" in refused.value.options[0]
    made = await session.copy(session_id="flat")
    again = await made.fork(session_id="again")
    await again.ingest("user", "65")
    assert contents_of(await again.window(10_000)) == [str(n) for n in range(66)]
    assert [branch.session_id for branch in await again.ancestry()] == ["flat", "again"]


async def test_a_fork_that_did_not_know_the_keys_it_inherits_is_copied(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with session_on(storage) as session:
        await session.ingest("user", "a", idempotency_key="k")
        async with await session.fork(session_id="fork") as fork:
            with monkeypatch.context() as before:
                before.setattr(append_rules, "is_repeated_append", lambda op, known: False)
                await fork.ingest("user", "b", idempotency_key="k")
            async with await fork.copy(session_id="copy") as copy:
                assert [entry.key for entry in await copy.entries()] == ["k", None]
                assert contents_of(await copy.window(100)) == ["a", "b"]
                await sound(storage, await copy.context_id() or "")


async def test_a_named_copy_is_made_once(storage: Storage) -> None:
    child, _ = await eventful_fork(storage)
    one, two, three = await asyncio.gather(*(child.copy(session_id="flat") for _ in range(3)))
    ids = {(await storage.context(one.session_id)).id for one in (one, two, three)}
    assert len(ids) == 1
    await one.ingest("user", "goes on")
    with pytest.raises(ConflictError, match="another session"):
        await child.copy(at=3, session_id="flat")
    with pytest.raises(ConflictError, match="another session"):
        await child.copy(session_id="parent")
    await one.delete()
    fresh = await child.copy(session_id="flat")
    assert (await storage.context(fresh.session_id)).id not in ids
    assert "goes on" not in contents_of(await fresh.window(10_000))


async def test_a_copy_that_another_task_begins_in_between_is_made_once() -> None:
    class Slow(WrapperStorage):
        """Restores after another task has made the same copy."""

        other: ACMS | None = None

        async def restore(self, context: Context, entries: AsyncIterator[Entry]) -> None:
            other, self.other = self.other, None
            if other is not None:
                await other.copy(session_id="flat")
            await self.inner.restore(context, entries)

    async with MemoryStorage() as inner:
        original, _ = await eventful_fork(inner)
        slow = Slow(inner)
        session = session_on(slow, "child", config=QUIET)
        await session._shared.find()
        slow.other = original
        made = await session.copy(session_id="flat")
        assert await as_read(made) == await as_read(original)


@pytest.mark.parametrize(
    "method", ["restore", "settings", "append", "put_derived", "read", "context", "head"]
)
@pytest.mark.parametrize(
    "after", [False, pytest.param(True, marks=pytest.mark.faults)], ids=["before", "after"]
)
async def test_t10_an_interrupted_copy_is_not_seen_and_goes_on(method: str, after: bool) -> None:
    for nth in itertools.count(1):
        async with MemoryStorage() as inner:
            original, _ = await eventful_fork(inner)
            context = await inner.context("child")
            await inner.put_derived(context.id, [Derived(version=8, space="model/3/f16/x", data=b"v")])
            await append_drafts(inner, context, jobs=(expiry_job(context.id, "7"),))
            want = await as_read(original)
            faulty = FaultyStorage(inner)
            session = session_on(faulty, "child", config=QUIET)
            await session._shared.find()
            faulty.fail(method, nth, OSError("the cable"), after=after)
            try:
                await session.copy(session_id="flat")
            except OSError:
                listed = (await inner.contexts(ContextQuery(limit=100))).items
                for shown in [one for one in listed if one.key == "flat"]:
                    assert (await inner.head(shown.id)).version == (await inner.head(context.id)).version
            made = await original.copy(session_id="flat")
            assert await as_read(made) == want
            flat = await inner.context("flat")
            assert COPYING not in flat.settings
            assert [row.data for row in await inner.derived(flat.id, "model/3/f16/x")] == [b"v"]
            jobs = (await inner.jobs(JobQuery(context=flat.id))).items
            assert [job.kind for job in jobs] == ["expire"]
            known = (await inner.context(context.id)).settings[COPIES]
            assert known == [flat.id]
            if not faulty._faults.keys() & {(method, n) for n in range(1, faulty.calls[method] + 1)}:
                break


def expiry_job(context: str, job: str) -> JobDraft:
    payload = {"job": job, "after": 0, "seconds": 0}
    return JobDraft(kind="expire", dedupe=f"expire:{context}:0:{job}", payload=payload)


# ── content that goes ───────────────────────────────────────────────────────────────────────────────────────────────


async def test_what_is_erased_in_the_original_goes_in_its_copies(storage: Storage) -> None:
    child, ids = await eventful_fork(storage)
    made = await child.copy(session_id="flat")
    second = await made.copy(session_id="copy of a copy")
    early = await child.copy(at=2, session_id="early")
    parent = session_on(storage, "parent", config=QUIET)
    erased = await parent.erase(ids[0], verify=True)
    assert erased.residue == ()
    for one in (made, second, early, child, parent):
        assert "which database for orders?" not in contents_of(await one.window(10_000))
        context = await storage.context(one.session_id)
        assert (await sound(storage, context.id))[0].state is State.ERASED
    erased = await child.erase(ids[3], verify=True)
    assert erased.residue == ()
    facts = await storage.read((await storage.context("flat")).id, kinds=(Kind.FACT,))
    assert {fact.state for fact in facts} == {State.ERASED}, "facts that were made from it go in the copy too"


async def test_what_is_erased_in_a_copy_stays_in_the_original(storage: Storage) -> None:
    child, _ = await eventful_fork(storage)
    made = await child.copy(session_id="flat")
    await erase.erase_context(storage, "flat")
    assert not contents_of(await made.window(10_000))
    assert "which database for orders?" in contents_of(await child.window(10_000))


async def test_a_hold_on_a_copy_holds_the_original(storage: Storage) -> None:
    child, ids = await eventful_fork(storage)
    await child.copy(session_id="flat")
    flat = await storage.context("flat")
    await storage.settings(flat.id, {policy_levels.HOLD: True}, rev=flat.settings_rev)
    with pytest.raises(LegalHoldError):
        await child.erase(ids[0])


async def test_an_erasure_during_the_copy_reaches_it(storage: Storage) -> None:
    _, ids = await eventful_fork(storage)

    class Erasing(FaultyStorage):
        async def restore(self, context: Any, entries: Any) -> None:
            await super().restore(context, entries)
            await erase.erase_entries(storage, (await storage.context("child")).id, [ids[0]])

    session = session_on(Erasing(storage), "child", config=QUIET)
    made = await session.copy(session_id="flat")
    assert (await sound(storage, (await storage.context("flat")).id))[0].state is State.ERASED
    assert "which database for orders?" not in contents_of(await made.window(10_000))


async def test_retention_goes_on_in_a_copy(storage: Storage) -> None:
    session = session_on(storage, "talk", config=QUIET)
    await ingest_texts(session, "one", "two", "three")
    context = await storage.context("talk")
    await append_drafts(
        storage, context, draft_summary(1, 2, data={"job": "7"}), jobs=(expiry_job(context.id, "7"),)
    )
    await session.copy(session_id="flat")
    flat = await storage.context("flat")
    (job,) = (await storage.jobs(JobQuery(context=flat.id))).items
    lease = Lease(job=job, attempt=1, until=job.not_before)
    later = datetime.now(UTC) + timedelta(days=1)
    assert await erase.expire_messages(storage, lease, clock=lambda: later) == Done()
    states = [entry.state for entry in await storage.read(flat.id)]
    assert states == [State.EXPIRED, State.EXPIRED, State.LIVE, State.LIVE]
    assert {entry.state for entry in await storage.read(context.id)} == {State.LIVE}


async def test_a_copy_whose_retention_was_refused_is_made_again_with_it() -> None:
    class Busy(WrapperStorage):
        async def append(self, ops: Any) -> Any:
            return [StorageBusyError("try again") for _ in ops]

    async with MemoryStorage() as inner:
        session = session_on(inner, "talk", config=QUIET)
        await ingest_texts(session, "one", "two", "three")
        context = await inner.context("talk")
        await append_drafts(
            inner, context, draft_summary(1, 2, data={"job": "7"}), jobs=(expiry_job(context.id, "7"),)
        )
        with pytest.raises(StorageBusyError):
            await session_on(Busy(inner), "talk", config=QUIET).copy(session_id="flat")
        flat = await inner.context("flat")
        assert (COPYING in flat.settings, (await inner.jobs(JobQuery(context=flat.id))).items) == (True, ())
        await session.copy(session_id="flat")
        assert COPYING not in (await inner.context("flat")).settings
        assert [job.kind for job in (await inner.jobs(JobQuery(context=flat.id))).items] == ["expire"]


async def test_an_expiry_names_the_summary_of_its_own_job(storage: Storage) -> None:
    """Ids of jobs count per store: a log that was copied may have the summary of another job 7."""
    session = session_on(storage, "talk", config=QUIET)
    await ingest_texts(session, "one", "two", "three", "four")
    context = await storage.context("talk")
    await append_drafts(storage, context, draft_summary(1, 1, data={"job": "7"}))
    await append_drafts(storage, context, draft_message("six"))
    payload = {"job": "7", "after": 6, "seconds": 0}
    await append_drafts(
        storage,
        context,
        draft_summary(2, 3, data={"job": "7"}),
        jobs=(JobDraft(kind="expire", dedupe="e", payload=payload),),
    )
    (job,) = (await storage.jobs(JobQuery(context=context.id))).items
    later = datetime.now(UTC) + timedelta(days=1)
    await erase.expire_messages(storage, Lease(job=job, attempt=1, until=later), clock=lambda: later)
    gone = [entry.version for entry in await storage.read(context.id) if entry.state is State.EXPIRED]
    assert gone == [2, 3]


async def test_vectors_are_copied_and_cards_are_written_anew(storage: Storage) -> None:
    embedder = HashEmbedder()
    session = ACMS("talk", storage, embedder, config=QUIET)
    await session.ingest_many(
        [{"role": "user", "content": f"the orders database, point {n}"} for n in range(300)]
    )
    await session.wait_pending()
    made = await (await session.fork(250)).copy(session_id="flat")
    context = await storage.context("flat")
    space = session._shared.embedding.space  # type: ignore[union-attr]
    assert not await storage.missing(space, context=context.id, limit=1)
    found = await made.recall("orders point 7", token_budget=100)
    assert any(item.content.endswith("point 7") for item in found)
    assert {entry.context for entry in await storage.get([item.id for item in found]) if entry} == {
        context.id
    }
    await session.close()


async def test_a_store_that_cannot_say_which_spaces_it_has_leaves_vectors_to_be_computed_again() -> None:
    async with MemoryStorage() as inner:
        original, _ = await eventful_fork(inner)
        context = await inner.context("child")
        await inner.put_derived(context.id, [Derived(version=8, space="model/3/f16/x", data=b"v")])
        made = await session_on(Plain(inner), "child", config=QUIET).copy(session_id="flat")
        assert await as_read(made) == await as_read(original)
        flat = await inner.context("flat")
        assert COPYING not in flat.settings
        assert await inner.derived(flat.id, "model/3/f16/x") == []
        assert await inner.missing("model/3/f16/x", context=flat.id, limit=1)
