"""Erase, expire, delete: three verbs. What goes, what stays, and that nothing of what went is found anywhere."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from acms import (
    ACMS,
    ACMSConfig,
    CompactionPolicy,
    ConfigurationError,
    ConflictError,
    EntryNotFoundError,
    GoneError,
    Kind,
    SessionNotFoundError,
    State,
    StorageBusyError,
    ValidationError,
    open_storage,
)
from acms.branches import export
from acms.branches.forks import COLLECT_AFTER
from acms.erasure import erase
from acms.erasure.erase import collect_deleted_entries, expire_messages
from acms.errors import LegalHoldError
from acms.log import policy as policy_levels
from acms.log.read import PROFILE
from acms.model import (
    Context,
    ContextQuery,
    Derived,
    Done,
    Draft,
    Expect,
    Failed,
    JobDraft,
    JobQuery,
    Lease,
    Retry,
    Search,
)
from acms.observability import JSONFormatter
from acms.storage import CachedStorage, MemoryStorage, PostgresStorage, SQLiteStorage
from acms.testing import ManualClock, sound
from acms.testing.logs import (
    WHEN,
    append_drafts,
    create_log,
    draft_fact,
    draft_message,
    draft_retraction,
    draft_summary,
    fork_log,
)
from acms.text.index_record import SPACE
from tests.servers.stores import another
from tests.support.fakes import FakeEmbedder
from tests.support.faulty import FaultyStorage
from tests.support.talk import LONG_EPISODES, Storage, session_on

SECRET = "the vault code is seven-four-one-nine"
"""What must not be found any more."""
MINUTE = timedelta(minutes=1)


async def states_by_version(storage: Any, context: Context) -> dict[int, State]:
    """State by version of everything a context reads that is not live, deleted or not."""
    entries = await storage.read(context.id, deleted=True)
    return {entry.version: entry.state for entry in entries if entry.state is not State.LIVE}


async def append_each(storage: Any, context: Context, *drafts: Draft) -> list[str]:
    """Append one by one, so that each may replace the ones before; return the ids."""
    return [(await append_drafts(storage, context, draft)).ids[0] for draft in drafts]


async def export_store(storage: Any) -> list[str]:
    """Everything the live contexts of a store hold, line by line."""
    page = await storage.contexts(ContextQuery(limit=500))
    return [
        line for context in page.items for line in [line async for line in export.export(storage, context.id)]
    ]


def found_in(folder: Path, *texts: str) -> list[str]:
    """Where a text stands in any file of a folder, byte for byte."""
    return [
        f"{file.name}: {text}"
        for file in sorted(folder.iterdir())
        for text in texts
        if text.encode() in file.read_bytes()
    ]


# ── erase: what goes ────────────────────────────────────────────────────────────────────────────────────────────────


async def test_an_erased_message_takes_its_edits_with_it_whichever_of_them_is_named(storage: Storage) -> None:
    for which in range(3):
        context = await create_log(storage)
        ids = list(
            (await append_drafts(storage, context, draft_message("before"), draft_message(SECRET))).ids[1:]
        )
        ids += (
            await append_drafts(
                storage, context, draft_message("edit", replaces=((2, 2),), sources=(ids[0],))
            )
        ).ids
        ids += (
            await append_drafts(
                storage, context, draft_message("again", replaces=((2, 2), (3, 3)), sources=(ids[1],))
            )
        ).ids
        erased = await erase.erase_entries(storage, context.id, [ids[which]], verify=True)
        assert sorted(erased.ids) == sorted(ids)
        assert (erased.cascaded, erased.contexts, erased.residue) == ((), (context.id,), ())
        assert await states_by_version(storage, context) == dict.fromkeys((2, 3, 4), State.ERASED)
        await sound(storage, context.id)


async def test_summaries_and_facts_made_from_it_go_and_others_stay(storage: Storage) -> None:
    context = await create_log(storage)
    receipt = await append_drafts(storage, context, *[draft_message(f"turn {n}") for n in range(1, 7)])
    (first,) = (await append_drafts(storage, context, draft_fact("from 2", sources=(receipt.ids[1],)))).ids
    await append_drafts(storage, context, draft_fact("from 5", sources=(receipt.ids[4],)))
    await append_drafts(storage, context, draft_fact("from a fact", sources=(first,)))
    await append_each(storage, context, draft_summary(1, 3), draft_summary(4, 5))
    await append_each(storage, context, draft_summary(1, 10, replaces=((1, 3), (10, 10))))
    erased = await erase.erase_entries(storage, context.id, [receipt.ids[1]], verify=True)
    assert await states_by_version(storage, context) == dict.fromkeys((2, 7, 9, 10, 12), State.ERASED)
    assert len(erased.cascaded) == 4
    assert (erased.verified, erased.residue) == (True, ())


async def test_an_erased_summary_brings_back_what_it_stood_for_and_a_compaction_is_asked_for(
    storage: Storage,
) -> None:
    config = ACMSConfig(episodes=LONG_EPISODES, compaction=CompactionPolicy(budget=100))
    async with session_on(storage, config=config) as session:
        ids = [await session.ingest("user", text) for text in ("one", SECRET, "three", "four")]
        context = await storage.context("user_123")
        await append_each(storage, context, draft_summary(1, 3))
        assert len(await session.window(1000)) == 2
        await session.erase(ids[1])
        assert [item.content for item in await session.window(1000)] == ["one", "three", "four"]
        (job,) = (await storage.jobs(JobQuery())).items
        assert (job.kind, job.dedupe, job.context) == ("compact", f"compact:{context.id}", context.id)
        assert dict(job.payload) == {}
        await session.erase(ids[1])
        assert len((await storage.jobs(JobQuery())).items) == 1


async def test_no_compaction_is_asked_for_where_the_policy_or_the_context_says_no(storage: Storage) -> None:
    context = await create_log(storage)
    receipt = await append_drafts(
        storage, context, draft_message("one"), draft_message("two"), draft_message("three")
    )
    child = await fork_log(storage, context)
    for one, first in ((context, 1), (child, 3)):
        await append_each(storage, one, draft_summary(first, first))
    await erase.erase_entries(storage, context.id, [receipt.ids[0]])
    await erase.erase_entries(storage, context.id, [receipt.ids[1]], service=CompactionPolicy(budget=9))
    off = CompactionPolicy(budget=9, enabled=False)
    await erase.erase_entries(storage, child.id, [receipt.ids[2]], service=off)
    assert (await storage.jobs(JobQuery())).items == ()


async def test_erasing_through_a_fork_erases_everywhere(storage: Storage) -> None:
    root = await create_log(storage)
    receipt = await append_drafts(
        storage, root, draft_message("one"), draft_message(SECRET), draft_message("three")
    )
    child = await fork_log(storage, root)
    cousin = await fork_log(storage, root)
    hidden = await fork_log(storage, child)
    await append_drafts(storage, root, draft_message("the root's own four"), draft_message("five"))
    await append_each(storage, child, draft_summary(1, 3))
    await append_drafts(storage, cousin, draft_fact("the cousin's own four", sources=(receipt.ids[1],)))
    await append_each(storage, hidden, draft_summary(1, 2), draft_message("edit", replaces=((2, 2),)))
    await append_each(storage, root, draft_summary(4, 5))
    await storage.settings(hidden.id, {"deleted": True}, rev=0)
    erased = await erase.erase_entries(storage, child.id, [receipt.ids[1]], verify=True)
    assert await states_by_version(storage, root) == {2: State.ERASED}
    assert await states_by_version(storage, child) == dict.fromkeys((2, 4), State.ERASED)
    assert await states_by_version(storage, cousin) == dict.fromkeys((2, 4), State.ERASED)
    assert await states_by_version(storage, hidden) == dict.fromkeys((2, 4, 5), State.ERASED)
    assert set(erased.contexts) == {root.id, child.id, cousin.id, hidden.id}
    assert erased.residue == ()


async def test_facts_of_the_profile_go_too_and_what_was_made_from_them(storage: Storage) -> None:
    context, profile = await create_log(storage), await create_log(storage, PROFILE)
    receipt = await append_drafts(storage, context, draft_message(SECRET))
    (fact,) = (
        await append_drafts(storage, profile, draft_fact("vault", sources=receipt.ids), draft_fact("other"))
    ).ids[:1]
    await append_drafts(storage, context, draft_fact("twice removed", sources=(fact,)))
    other = await create_log(storage, PROFILE, namespace="elsewhere")
    await append_drafts(storage, other, draft_fact("not asked", sources=receipt.ids))
    erased = await erase.erase_entries(storage, context.id, receipt.ids, verify=True)
    assert await states_by_version(storage, profile) == {1: State.ERASED}
    assert await states_by_version(storage, context) == dict.fromkeys((1, 2), State.ERASED)
    assert await states_by_version(storage, other) == {}
    assert erased.residue == ()


async def test_a_fact_and_a_retraction_are_no_citations(storage: Storage) -> None:
    context = await create_log(storage)
    await append_each(
        storage, context, draft_message("one"), draft_fact("Paris"), draft_fact("Berlin", replaces=((2, 2),))
    )
    await append_each(storage, context, draft_retraction(1))
    found = await storage.read(context.id)
    await erase.erase_entries(storage, context.id, [found[0].id, found[1].id])
    assert await states_by_version(storage, context) == dict.fromkeys((1, 2), State.ERASED)


async def test_what_a_context_does_not_read_cannot_be_erased_through_it(storage: Storage) -> None:
    context, other = await create_log(storage), await create_log(storage)
    receipt = await append_drafts(storage, context, draft_message("one"), draft_message("two"))
    child = await fork_log(storage, context, 1)
    mine = (await append_drafts(storage, child, draft_message("the child's own two"))).ids[0]
    before = await export_store(storage)
    for reader, id in (
        (other, receipt.ids[0]),
        (child, receipt.ids[1]),
        (context, mine),
        (context, "m_0000000000000000_1_000000"),
        (context, "nonsense"),
    ):
        with pytest.raises(EntryNotFoundError):
            await erase.erase_entries(storage, reader.id, [id])
    with pytest.raises(EntryNotFoundError):
        await erase.erase_entries(storage, context.id, [receipt.ids[0], mine])
    for ids in ([], "m_1", [""], [None]):
        with pytest.raises(ValidationError, match="ids"):
            await erase.erase_entries(storage, context.id, ids)  # type: ignore[arg-type]
    with pytest.raises(SessionNotFoundError):
        await erase.erase_entries(storage, "nobody", [mine])
    assert await export_store(storage) == before
    await erase.erase_entries(storage, child.id, [mine])
    assert await states_by_version(storage, context) == {}


async def test_a_hold_on_anyone_who_reads_it_forbids_it(storage: Storage) -> None:
    context, free = await create_log(storage, namespace="a"), await create_log(storage, namespace="b")
    receipt = await append_drafts(storage, context, draft_message("one"), draft_message("two"))
    other = (await append_drafts(storage, free, draft_message("three"))).ids
    child = await fork_log(storage, context, 1, namespace="b")
    await storage.settings(child.id, {"legal_hold": True}, rev=0)
    before = await export_store(storage)
    with pytest.raises(LegalHoldError, match=child.id):
        await erase.erase_entries(storage, context.id, receipt.ids)
    assert await export_store(storage) == before
    await erase.erase_entries(storage, context.id, receipt.ids[1:])  # the child does not read it
    await storage.settings(child.id, {"legal_hold": None}, rev=1)
    await policy_levels.set_hold(storage, "b", True)
    for call in (
        erase.erase_entries(storage, context.id, receipt.ids),
        erase.erase_entries(storage, free.id, other),
        erase.erase_context(storage, context.id),
        erase.erase_subject(storage, namespace="a"),
        erase.erase_tenant(storage, confirm=storage.tenant),
    ):
        with pytest.raises(LegalHoldError, match="'b'"):
            await call
    await policy_levels.set_hold(storage, "b", False)
    await erase.erase_entries(storage, context.id, receipt.ids)


async def test_a_message_is_erased_by_the_callers_key_through_a_fork_too(storage: Storage) -> None:
    async with session_on(storage) as session:
        await session.ingest("user", SECRET, idempotency_key="k")
        await session.ingest_many([{"role": "user", "content": SECRET}], idempotency_key="b")
        await session.replace("k", f"{SECRET}!")
        async with await session.fork(session_id="fork") as fork:
            await session.ingest("user", "not in the fork", idempotency_key="later")
            erased = await fork.erase("k", verify=True)
            assert (len(erased.ids), erased.residue) == (2, ())
            await fork.erase("b:0")
            for key in ("k", "later", "m_0000000000000000_1_000000"):
                with pytest.raises(EntryNotFoundError):
                    await fork.erase(key)
        assert [item.content for item in await session.window(100)] == ["not in the fork"]


async def test_a_message_of_a_deleted_session_is_erased_by_its_key(storage: Storage) -> None:
    async with session_on(storage) as session:
        id = await session.ingest("user", SECRET, idempotency_key="k")
        context = await session.context_id() or ""
        await session.delete()
    assert (await erase.erase_entries(storage, context, ["k"])).ids == (id,)
    with pytest.raises(EntryNotFoundError):
        await erase.erase_entries(storage, context, ["k"])


async def test_a_deleted_session_is_listed_and_erased_by_its_name(storage: Storage) -> None:
    async with session_on(storage) as session:
        name, id = session.session_id, await session.ingest("user", SECRET)
        await session.delete()
    assert (await storage.sessions()).sessions == ()
    (listed,) = (await storage.sessions(deleted=True)).sessions
    assert (listed.key, listed.message_count, listed.deleted_at is not None) == (name, 1, True)
    erased = await erase.erase_context(storage, name, verify=True)
    assert (erased.ids, erased.verified) == ((id,), True)


async def test_a_name_of_several_deleted_sessions_is_refused_with_their_ids(storage: Storage) -> None:
    ids: list[str] = []
    for text in ("first", "second"):
        async with session_on(storage) as session:
            name = session.session_id
            await session.ingest("user", text)
            ids.append(await session.context_id() or "")
            await session.delete()
    with pytest.raises(ConflictError) as refused:
        await erase.erase_context(storage, name)
    assert all(id in option for id, option in zip(ids, refused.value.options, strict=True))
    async with session_on(storage) as session:  # a live session has the name before them
        id = await session.ingest("user", "third")
    assert (await erase.erase_context(storage, name)).ids == (id,)


async def test_a_key_that_was_erased_is_free_again(storage: Storage) -> None:
    async with session_on(storage) as session:
        id = await session.ingest("user", SECRET, idempotency_key="k")
        await session.erase(id)
        again = await session.ingest("user", SECRET, idempotency_key="k")
        assert again != id
        assert session.last_receipt is not None
        assert not session.last_receipt.repeated


# ── erase: interrupted, overtaken, late ─────────────────────────────────────────────────────────────────────────────


async def _tangled_logs(storage: Any) -> tuple[Context, str, dict[str, dict[int, State]]]:
    """A message with everything that can be made from it, in three contexts; and what must go."""
    root = await create_log(storage)
    receipt = await append_drafts(
        storage,
        root,
        draft_message("one"),
        draft_message(SECRET, key="k", actor="Ana"),
        draft_message("three"),
    )
    child = await fork_log(storage, root)
    profile = await create_log(storage, PROFILE)
    await append_each(storage, root, draft_summary(1, 3), draft_fact("fact", sources=receipt.ids[1:2]))
    await append_each(storage, child, draft_message("edit", replaces=((2, 2),)), draft_summary(1, 4))
    await append_drafts(storage, profile, draft_fact("fact", sources=receipt.ids[1:2]))
    gone: dict[str, dict[int, State]] = {
        root.id: dict.fromkeys((2, 4, 5), State.ERASED),
        child.id: dict.fromkeys((2, 4, 5), State.ERASED),
        profile.id: {1: State.ERASED},
    }
    return root, receipt.ids[1], gone


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("keyed", [False, True], ids=["its id", "its key"])
async def test_an_interrupted_erasure_is_completed_by_repeating_it(keyed: bool, after: bool) -> None:
    methods = ("context", "contexts", "read", "get", "blank", "append")
    service = CompactionPolicy(budget=10)
    for method in methods:
        nth = 0
        while True:
            nth += 1
            storage = FaultyStorage(MemoryStorage())
            root, id, gone = await _tangled_logs(storage)
            name = "k" if keyed else id
            storage.fail(method, nth, StorageBusyError("told to"), after=after)
            try:
                await erase.erase_entries(storage, root.id, [name], service=service)
            except StorageBusyError:
                pass
            else:
                assert nth > 1, f"{method} was never called"
                break
            if (
                keyed and (await storage.get([id]))[0].state is State.ERASED
            ):  # the last of it went, the key too
                for context, expected in gone.items():
                    assert await states_by_version(storage, await storage.context(context)) == expected
                name = id
            erased = await erase.erase_entries(storage, root.id, [name], verify=True, service=service)
            assert len(erased.ids) == 6
            assert erased.residue == ()
            for context, expected in gone.items():
                assert await states_by_version(storage, await storage.context(context)) == expected
            assert {job.kind for job in (await storage.jobs(JobQuery())).items} == {"compact"}


async def test_what_cites_it_goes_before_it_or_with_it(storage: Storage) -> None:
    for nth in (1, 2, 3):  # one commit for each of three owners, that of the message last
        faulty = FaultyStorage(storage)
        root, id, gone = await _tangled_logs(faulty)
        faulty.fail("blank", nth, StorageBusyError("told to"))
        with pytest.raises(StorageBusyError):
            await erase.erase_entries(faulty, root.id, [id])
        assert await states_by_version(storage, root) == {}
        await erase.erase_entries(faulty, root.id, [id])
        assert await states_by_version(storage, root) == gone[root.id]


async def test_a_summary_that_was_committed_meanwhile_is_found(storage: Storage) -> None:
    class LogChangedError(CachedStorage):
        """Another process compacts between the look and the erasure, and again after it."""

        late = 2

        async def blank(self, context: str, *given: Any, **more: Any) -> int:
            if self.late:
                self.late -= 1
                await append_drafts(
                    self.inner, root, draft_summary(1, 3), draft_fact("late", sources=(other,))
                )
            return await super().blank(context, *given, **more)

    root = await create_log(storage)
    other, id, _ = (
        await append_drafts(
            storage, root, draft_message("one"), draft_message(SECRET), draft_message("three")
        )
    ).ids
    erased = await erase.erase_entries(LogChangedError(storage), root.id, [id], verify=True)
    assert erased.residue == ()
    assert len(erased.cascaded) == 2
    entries = await storage.read(root.id)
    assert [entry.kind for entry in entries if entry.state is State.LIVE] == [
        Kind.MESSAGE, Kind.MESSAGE, Kind.FACT, Kind.FACT,
    ]  # fmt: skip


async def test_t07_what_arrives_after_an_erasure_or_a_deletion_brings_nothing_back(storage: Storage) -> None:
    root = await create_log(storage)
    receipt = await append_drafts(
        storage, root, draft_message("one"), draft_message(SECRET), draft_message("three")
    )
    child = await fork_log(storage, root)
    read = {one.id: (await storage.head(one.id)).rewrites for one in (root, child)}
    await erase.erase_entries(storage, child.id, [receipt.ids[1]])
    for one in (root, child):
        with pytest.raises(ConflictError):  # a compaction that had read it
            await append_drafts(storage, one, draft_summary(1, 3), expect=Expect(rewrites=read[one.id]))
        for late in (
            draft_fact(SECRET, sources=(receipt.ids[0], receipt.ids[1])),
            draft_message(SECRET, replaces=((2, 2),), sources=(receipt.ids[1],)),
            draft_summary(1, 3, sources=(receipt.ids[1],)),
        ):
            with pytest.raises(GoneError):  # a reflection, an edit, an adoption
                await append_drafts(storage, one, late)
        rows = [Derived(version=version, space="v", data=b"late") for version in (1, 2)]
        assert await storage.put_derived(one.id, rows) == 1
    await append_drafts(
        storage, root, Draft(kind=Kind.RETRACTION, created_at=WHEN, sources=receipt.ids, replaces=((2, 2),))
    )
    rev = (await storage.context(child.id)).settings_rev
    await storage.settings(child.id, {"deleted": True}, rev=rev)
    for call in (
        append_drafts(storage, child, draft_message("late")),
        append_drafts(storage, child, draft_summary(1, 3)),
        storage.put_derived(child.id, [Derived(version=1, space="v", data=b"late")]),
    ):
        with pytest.raises(SessionNotFoundError):
            await call
    assert [entry.content for entry in await storage.read(root.id)] == ["one", "", "three", ""]
    assert SECRET not in json.dumps(await export_store(storage))


async def test_t07_an_embedder_that_answers_after_the_erasure_stores_nothing(storage: Storage) -> None:
    import asyncio

    embedder = FakeEmbedder()
    embedder.gate = asyncio.Event()
    async with session_on(storage, embedder=embedder) as session:
        ingesting = asyncio.ensure_future(session.ingest("user", SECRET))
        await embedder.called.wait()
        context = await storage.context("user_123")
        (entry,) = await storage.read(context.id)
        await session.erase(entry.id)
        embedder.gate.set()
        await ingesting
        await session.ingest("user", "on we go")
        await session.wait_pending()
        assert [item.content for item in await session.recall("vault code", token_budget=99)] == ["on we go"]
    for space in (f"{embedder.model}/{embedder.dimension}/f16/p1", SPACE):
        rows = await storage.derived(context.id, space)
        assert [row.version for row in rows if row.data] in ([], [2])
    assert 1 not in [row.version for row in await storage.derived(context.id, SPACE)]


# ── T38: nothing is found ───────────────────────────────────────────────────────────────────────────────────────────


async def _spread_message(storage: Storage) -> tuple[ACMS, str, list[Context]]:
    """One message in a parent with three forks, two summaries, five facts, vectors, a cache and a queued job."""
    session = session_on(storage, embedder=FakeEmbedder())
    for n in range(8):
        await session.ingest("user", f"talk number {n} about the weather")
    id = await session.ingest(
        "user", SECRET, actor_id="Ana Konda of Accounting", metadata={"where": f'said "{SECRET}" twice'},
        idempotency_key=f"key: {SECRET}", markers=["decision"],
    )  # fmt: skip
    await session.ingest("assistant", "noted")
    root = await storage.context("user_123")
    forks = [await fork_log(storage, root, key=f"fork {n}", counter=root.counter) for n in range(3)]
    await append_each(storage, root, draft_summary(1, 9, content=f"summary: {SECRET}"))
    await append_drafts(storage, forks[0], draft_summary(8, 10, content=f"another summary: {SECRET}"))
    for n, one in enumerate((root, root, *forks)):
        await append_drafts(storage, one, draft_fact(f"fact {n}: {SECRET}", sources=(id,)))
    payload = {"ids": [id], "text": SECRET}
    await append_drafts(storage, root, jobs=(JobDraft(kind="reflect", dedupe="r", payload=payload),))
    for one in forks:
        async with session_on(storage, one.key or "", embedder=FakeEmbedder()) as fork_session:
            assert SECRET in str(list(await fork_session.recall("vault code", token_budget=500)))
    assert SECRET in str([item.content for item in await session.recall("vault code", token_budget=500)])
    return session, id, [root, *forks]


async def test_t38_of_an_erased_message_nothing_is_found_anywhere(storage: Storage, tmp_path: Path) -> None:
    records: list[str] = []

    class Notes(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            records.append(JSONFormatter().format(record))

    notes = Notes()
    logger = logging.getLogger("acms")
    logger.addHandler(notes)
    logger.setLevel(logging.DEBUG)
    try:
        session, id, tree = await _spread_message(storage)
        hints = (SECRET, "vault code", "Ana Konda of Accounting")
        if isinstance(storage, SQLiteStorage):
            assert len(found_in(tmp_path, *hints)) >= 3
        erased = await session.erase(id, verify=True)
        assert (len(erased.ids), len(erased.cascaded), erased.residue) == (8, 7, ())
        if isinstance(storage, SQLiteStorage):
            assert found_in(tmp_path, *hints) == [], "while the file is open"
            assert (tmp_path / "log.db-wal").stat().st_size == 0
        for one in tree:
            async with session_on(storage, one.key or "", embedder=FakeEmbedder()) as each:
                for view in (each, *(each.at(version) for version in range(1, 11))):
                    for seen in (
                        [item.content for item in await view.window(1000)],
                        [
                            item.content
                            for item in await view.recall("vault code seven-four", token_budget=500)
                        ],
                        await view.messages("vault code", budget=1000),
                        (await view.history(limit=100)).entries,
                        await view.entries(),
                    ):
                        assert "seven-four" not in str(seen)
                tombstone = (await each.at(9).history(limit=9)).entries[-1]
                assert (tombstone.id, tombstone.state, tombstone.preview) == (id, State.ERASED, "")
            await sound(storage, one.id)
            assert await export.verify(storage, await storage.context(one.id)) == []
            for space in (SPACE, "fake-1/32/f16/p1"):
                assert 9 not in [row.version for row in await storage.derived(one.id, space)]
        assert await storage.search(Search(namespace="default", terms=("vault", "code"))) == []
        assert "seven-four" not in json.dumps(await export_store(storage))
        assert all(
            "seven-four" not in json.dumps(dict(job.payload))
            for job in (await storage.jobs(JobQuery())).items
        )
        await session.close()
    finally:
        logger.removeHandler(notes)
        logger.setLevel(logging.NOTSET)
    assert records
    assert "seven-four" not in "".join(records)
    if isinstance(storage, SQLiteStorage):
        await storage.backup(tmp_path / "copy.db")
        assert found_in(tmp_path, *hints) == []


async def test_t38_a_text_that_someone_else_still_says_is_no_residue(storage: Storage) -> None:
    context, other = await create_log(storage), await create_log(storage)
    receipt = await append_drafts(
        storage, context, draft_message(SECRET, metadata={"where": "kitchen table"})
    )
    await append_drafts(
        storage,
        other,
        draft_message(SECRET.upper()),
        draft_message(f"she told me: {SECRET}"),
        draft_fact("kitchen table"),
    )
    erased = await erase.erase_entries(storage, context.id, receipt.ids, verify=True)
    assert erased.residue == ()


async def test_what_an_earlier_release_left_in_free_pages_is_found_and_cleaned(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    long = " ".join(f"{SECRET} and {n} more" for n in range(400))
    async with SQLiteStorage(path) as storage:
        context = await create_log(storage)
        await append_drafts(storage, context, *[draft_message(f"padding {n}") for n in range(200)])
        receipt = await append_drafts(
            storage, context, draft_message(long), draft_message(SECRET, metadata={"quote": f'"{SECRET}"'})
        )
    import apsw

    careless = apsw.Connection(str(path))
    careless.pragma("secure_delete", False)
    careless.execute("CREATE TABLE x (y); INSERT INTO x SELECT content FROM entries; DROP TABLE x")
    careless.pragma("wal_checkpoint(TRUNCATE)")
    careless.close()
    async with SQLiteStorage(path) as storage:
        size = path.stat().st_size
        await storage.blank(context.id, [201, 202], to=State.ERASED, audit={})
        assert found_in(tmp_path, SECRET), "a free page still has it"
        texts = [long.encode(), SECRET.encode()]
        assert await storage.residue(receipt.ids, texts) == []
        assert found_in(tmp_path, SECRET) == []
        assert path.stat().st_size < size
        await sound(storage, context.id)


async def test_a_reader_that_keeps_the_log_is_reported_and_gives_way_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    import apsw

    path = tmp_path / "a.db"
    async with SQLiteStorage(path, busy_seconds=0.05) as storage:
        context = await create_log(storage)
        receipt = await append_drafts(storage, context, draft_message(SECRET))
        reader = apsw.Connection(str(path))
        reader.execute("BEGIN; SELECT content FROM entries").fetchall()
        with caplog.at_level(logging.WARNING, "acms"):
            erased = await erase.erase_entries(storage, context.id, receipt.ids, verify=True)
        assert [record.message for record in caplog.records].count("wal_not_emptied") >= 1
        assert all("a.db" in what and "byte" in what for what in erased.residue)
        assert erased.residue
        assert not erased.verified
        assert SECRET not in str(erased.residue)
        reader.close()
        monkeypatch.setattr("acms.storage.sqlite.erase.AGAIN", 0.0)
        monkeypatch.setattr(storage._file_eraser, "_retry_at", 1e-9)
        await append_drafts(storage, context, draft_message("on"))
        assert found_in(tmp_path, SECRET) == []


async def test_wrappers_have_the_file_behind_them_written_anew_and_a_store_without_one_erases_nothing(
    tmp_path: Path,
) -> None:
    async with MemoryStorage() as memory, SQLiteStorage(tmp_path / "a.db") as file:
        for store in (memory, file):
            await append_drafts(store, await create_log(store, "a"), draft_message(SECRET))
        with pytest.raises(ConfigurationError, match="MemoryStorage"):
            await erase.erase_context(memory, "a", rewrite=True)
        assert await states_by_version(memory, await memory.context("a")) == {}
        erased = await erase.erase_context(CachedStorage(FaultyStorage(file)), "a", verify=True, rewrite=True)
        assert (erased.rewritten, erased.proof, erased.residue) == (("a.db",), "bytes", ())
        assert (await erase.erase_context(memory, "a", verify=True)).proof == "rows"


# ── whole contexts, namespaces, people ──────────────────────────────────────────────────────────────────────────────


async def test_an_erased_context_leaves_tombstones_to_its_forks(storage: Storage) -> None:
    root = await create_log(storage, "root")
    await append_drafts(
        storage,
        root,
        draft_message("one"),
        draft_message("two"),
        draft_fact("three"),
        Draft(kind=Kind.EPISODE, created_at=WHEN),
    )
    child = await fork_log(storage, root, 3, key="child")
    await append_each(storage, child, draft_message("the child's own"), draft_summary(1, 2))
    await append_each(storage, root, draft_message("late"), draft_retraction(1))
    progress: list[tuple[int, int]] = []
    erased = await erase.erase_context(
        storage, "root", verify=True, progress=lambda done, all: progress.append((done, all))
    )
    assert await states_by_version(storage, root) == dict.fromkeys(range(1, 7), State.ERASED)
    assert await states_by_version(storage, child) == dict.fromkeys((1, 2, 3, 5), State.ERASED)
    assert erased.residue == ()
    assert progress[-1] == (7, 7)
    inherited = await erase.erase_context(storage, child.id, verify=True)
    assert await states_by_version(storage, child) == dict.fromkeys(range(1, 6), State.ERASED)
    assert len(inherited.ids) == 2


async def test_a_deleted_context_can_still_be_erased_and_is_verified(storage: Storage) -> None:
    context = await create_log(storage, "gone")
    for n in range(3):
        await append_drafts(storage, context, *[draft_message(f"{SECRET} {n} {m}") for m in range(300)])
    await storage.settings(context.id, {"deleted": True}, rev=0)
    erased = await erase.erase_context(storage, context.id, verify=True)
    assert (len(erased.ids), erased.residue) == (900, ())
    assert set((await states_by_version(storage, context)).values()) == {State.ERASED}


async def _logs_of_people(storage: Any) -> dict[str, list[Context]]:
    people = {}
    for name in "ABCD":
        one = await create_log(storage, f"talk of {name}", namespace=name)
        await append_drafts(
            storage, one, *[draft_message(f"{name} says {n}", actor=name, key=f"{n}") for n in range(5)]
        )
        two = await fork_log(storage, one, 3, key=f"fork of {name}", namespace=name)
        await append_each(
            storage,
            two,
            draft_message(f"{name} again", actor=name),
            draft_summary(1, 3),
            draft_fact(f"about {name}"),
        )
        people[name] = [one, two]
    return people


async def _everything_stored(storage: Any, contexts: list[Context]) -> list[Any]:
    """All that is stored of some contexts: exports, heads, settings, and what lies beside the log."""
    return [
        (
            [line async for line in export.export(storage, one.id)],
            await storage.head(one.id),
            await storage.context(one.id),
            await storage.derived(one.id, "s"),
        )
        for one in contexts
    ]


@pytest.mark.parametrize("empty", [None, "", " ", "*", 7])
async def test_t39_a_filter_that_names_nobody_erases_nothing(storage: Storage, empty: Any) -> None:
    people = await _logs_of_people(storage)
    everyone = [one for some in people.values() for one in some]
    before = await _everything_stored(storage, everyone)
    calls: list[tuple[str, Callable[[], Any]]] = [
        ("namespace", lambda: erase.erase_subject(storage, namespace=empty)),
        ("actor", lambda: erase.erase_subject(storage, actor=empty)),
        ("actor", lambda: erase.erase_subject(storage, namespace="A", actor=empty)),
        ("namespace", lambda: erase.erase_subject(storage, namespace=empty, actor="A")),
        ("namespace", lambda: erase.erase_subject(storage)),
        ("confirm", lambda: erase.erase_tenant(storage, confirm=empty)),
        ("id_or_key", lambda: erase.erase_context(storage, empty)),
        ("ids", lambda: erase.erase_entries(storage, everyone[0].id, empty)),
    ]
    for field, call in calls:
        if field == "id_or_key" and empty == "*":
            continue
        with pytest.raises(ValidationError) as refused:
            await call()
        assert refused.value.field == field
    assert await _everything_stored(storage, everyone) == before


async def test_t39_erasing_one_namespace_leaves_the_others_byte_for_byte(storage: Storage) -> None:
    people = await _logs_of_people(storage)
    for one in (one for some in people.values() for one in some):
        await storage.put_derived(one.id, [Derived(version=1, space="s", data=b"x")])
    others = [one for name, some in people.items() if name != "A" for one in some]
    before = await _everything_stored(storage, others)
    erased = await erase.erase_subject(storage, namespace="A", verify=True)
    assert await _everything_stored(storage, others) == before
    assert (len(erased.ids), erased.residue) == (8, ())
    for one in people["A"]:
        assert all(entry.state is State.ERASED for entry in await storage.read(one.id))


async def test_t39_erasing_one_person_leaves_the_others_byte_for_byte(storage: Storage) -> None:
    people = await _logs_of_people(storage)
    shared = await create_log(storage, "shared", namespace="D")
    await append_drafts(
        storage,
        shared,
        draft_message("hello", actor="A"),
        draft_message("hi A", actor="B"),
        draft_message("bye", actor="A"),
    )
    others = [one for name, some in people.items() if name != "A" for one in some]
    before = await _everything_stored(storage, others)
    within = await erase.erase_subject(storage, actor="A", namespace="D", verify=True)
    assert (len(within.ids), within.contexts, within.residue) == (2, (shared.id,), ())
    assert await states_by_version(storage, people["A"][0]) == {}
    assert [entry.content for entry in await storage.read(shared.id)] == ["", "hi A", ""]
    assert {entry.actor for entry in await storage.read(shared.id)} == {None, "B"}
    everywhere = await erase.erase_subject(storage, actor="A", verify=True)
    assert (len(everywhere.ids), everywhere.residue) == (7, ())
    assert await _everything_stored(storage, others) == before


async def test_erasing_a_tenant_takes_everything_of_it_and_nothing_of_another(url: str) -> None:
    home, _, tenant = url.partition("?tenant=")  # a database of many tenants has others with these names
    one_url, two_url = (f"{home}?tenant={tenant}{name}" for name in ("one", "two"))
    async with open_storage(one_url) as one, open_storage(two_url) as two:
        mine = [context for some in (await _logs_of_people(one)).values() for context in some]
        theirs = [context for some in (await _logs_of_people(two)).values() for context in some]
        before = await _everything_stored(two, theirs)
        with pytest.raises(ValidationError):
            await erase.erase_tenant(one, confirm=two.tenant)
        erased = await erase.erase_tenant(one, confirm=one.tenant, verify=True)
        assert erased.residue == ()
        for context in mine:
            assert all(entry.state is State.ERASED for entry in await one.read(context.id))
        assert await _everything_stored(two, theirs) == before


# ── expire ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@asynccontextmanager
async def _clocked_store(url: str) -> AsyncIterator[tuple[Storage, ManualClock]]:
    clock = ManualClock()
    place, _, tenant = url.partition("?tenant=")
    async with (
        MemoryStorage(clock=clock)
        if place == "memory://"
        else PostgresStorage(place, tenant=tenant, clock=clock)
        if tenant
        else SQLiteStorage(place.removeprefix("sqlite:///"), clock=clock)
    ) as store:
        yield store, clock


@pytest.fixture
async def clocked(any_url: str) -> AsyncIterator[tuple[Storage, ManualClock]]:
    """A store and its clock."""
    async with _clocked_store(any_url) as found:
        yield found


async def _claim_new_job(
    storage: Any, context: Context, kind: str, payload: dict[str, Any] | None = None
) -> Lease:
    job = JobDraft(kind=kind, dedupe=f"{kind}:{context.id}:{payload}", payload=payload or {})
    await append_drafts(storage, context, jobs=(job,))
    (lease,) = await storage.claim([kind], lease=MINUTE)
    return lease


async def test_old_messages_that_a_summary_stands_for_expire_and_the_rest_stays(
    clocked: tuple[Storage, ManualClock],
) -> None:
    storage, clock = clocked
    context = await create_log(storage)
    drafts = [draft_message(f"day {n}", created_at=WHEN + timedelta(days=n), key=f"{n}") for n in range(4)]
    await append_drafts(storage, context, *drafts, draft_fact("a fact"), draft_message("recent"))
    await append_each(storage, context, draft_summary(1, 4, content="the first days", data={"job": "7"}))
    await storage.put_derived(context.id, [Derived(version=1, space="s", data=b"x")])
    day = 86_400
    lease = await _claim_new_job(storage, context, "expire", {"job": "7", "seconds": 10 * day})
    assert await expire_messages(storage, lease, clock=clock) == Retry(
        error="some of it is not old enough", not_before=WHEN + timedelta(days=10)
    )
    assert await states_by_version(storage, context) == {}
    clock.advance(days=11)
    assert await expire_messages(storage, lease, clock=clock) == Retry(
        error="some of it is not old enough", not_before=WHEN + timedelta(days=12)
    )
    assert await states_by_version(storage, context) == dict.fromkeys((1, 2), State.EXPIRED)
    clock.advance(days=365)
    assert isinstance(await expire_messages(storage, lease, clock=clock), Done)
    assert isinstance(await expire_messages(storage, lease, clock=clock), Done)
    assert await states_by_version(storage, context) == dict.fromkeys((1, 2, 3, 4), State.EXPIRED)
    entries = await sound(storage, context.id)
    assert [entry.content for entry in entries] == ["", "", "", "", "a fact", "recent", "the first days"]
    assert [entry.key for entry in entries[:4]] == ["0", "1", "2", "3"]
    assert [row.version for row in await storage.derived(context.id, "s")] == [1]


async def test_nothing_expires_early_while_a_clock_is_set_back_nor_late_once_it_is_right(
    clocked: tuple[Storage, ManualClock],
) -> None:
    storage, clock = clocked
    context = await create_log(storage)
    await append_drafts(
        storage, context, *[draft_message(f"day {n}", created_at=WHEN + timedelta(days=n)) for n in range(3)]
    )
    await append_each(storage, context, draft_summary(1, 3, data={"job": "7"}))
    lease = await _claim_new_job(storage, context, "expire", {"job": "7", "seconds": 11 * 86_400})
    clock.advance(days=12)
    assert isinstance(await expire_messages(storage, lease, clock=clock), Retry)
    for back in (400, 4_000):
        clock.advance(days=-back)
        found = await expire_messages(storage, lease, clock=clock)
        assert isinstance(found, Retry)
        assert found.not_before is not None
        assert timedelta(0) < found.not_before - clock() <= timedelta(days=365)
        assert await states_by_version(storage, context) == dict.fromkeys((1, 2), State.EXPIRED)
        clock.advance(days=back)
    clock.advance(days=1)
    assert isinstance(await expire_messages(storage, lease, clock=clock), Done)
    assert await states_by_version(storage, context) == dict.fromkeys((1, 2, 3), State.EXPIRED)


async def test_nothing_expires_that_a_live_fork_reads_as_it_was_said(
    clocked: tuple[Storage, ManualClock],
) -> None:
    storage, clock = clocked
    root = await create_log(storage)
    await append_drafts(storage, root, *[draft_message(f"turn {n}") for n in range(1, 5)])
    early = await fork_log(storage, root, 2)
    await append_each(storage, root, draft_summary(1, 4, data={"job": "5"}))
    late = await fork_log(storage, root)
    lease = await _claim_new_job(storage, root, "expire", {"job": "5", "seconds": 0})
    clock.advance(days=1)
    again = clock() + timedelta(days=1)
    found = await expire_messages(storage, lease, clock=clock)
    assert isinstance(found, Retry)
    assert found.not_before == again
    assert await states_by_version(storage, root) == dict.fromkeys((3, 4), State.EXPIRED)
    await append_each(storage, early, draft_summary(1, 2))
    await append_drafts(storage, late, draft_retraction(5))  # the late fork undoes the summary
    assert isinstance(await expire_messages(storage, lease, clock=clock), Retry)
    assert await states_by_version(storage, early) == {}
    await storage.settings(late.id, {"deleted": True}, rev=0)
    assert isinstance(await expire_messages(storage, lease, clock=clock), Done)
    assert await states_by_version(storage, root) == dict.fromkeys((1, 2, 3, 4), State.EXPIRED)


async def test_nothing_expires_under_a_summary_that_is_undone_erased_or_none(
    clocked: tuple[Storage, ManualClock],
) -> None:
    storage, clock = clocked
    clock.advance(days=1)
    for undo in ("undone", "erased", "nothing"):
        context = await create_log(storage)
        await append_each(
            storage,
            context,
            draft_message("one"),
            draft_message("two"),
            draft_summary(1, 2, data={"job": "3"}),
        )
        writer = "another" if undo == "nothing" else "3"
        if undo == "undone":
            await append_each(storage, context, draft_retraction(3))
        if undo == "erased":
            await storage.blank(context.id, [3], to=State.ERASED, audit={})
        lease = await _claim_new_job(storage, context, "expire", {"job": writer, "seconds": 0})
        assert isinstance(await expire_messages(storage, lease, clock=clock), Done)
        assert State.EXPIRED not in (await states_by_version(storage, context)).values()
    lease = await _claim_new_job(storage, context, "expire", {"job": 7})
    assert isinstance(await expire_messages(storage, lease, clock=clock), Failed)


async def test_a_later_summary_expires_what_an_earlier_one_stood_for(
    clocked: tuple[Storage, ManualClock],
) -> None:
    storage, clock = clocked
    context = await create_log(storage)
    await append_each(
        storage,
        context,
        draft_message("one"),
        draft_message("two", replaces=((1, 1),)),
        draft_message("three"),
    )
    await append_each(
        storage,
        context,
        draft_summary(1, 2, data={"job": "4"}),
        draft_message("five"),
        draft_summary(1, 5, data={"job": "6"}),
    )
    clock.advance(days=1)
    first = await _claim_new_job(storage, context, "expire", {"job": "4", "seconds": 0})
    assert isinstance(await expire_messages(storage, first, clock=clock), Done)
    assert await states_by_version(storage, context) == {}
    second = await _claim_new_job(storage, context, "expire", {"job": "6", "seconds": 0})
    assert isinstance(await expire_messages(storage, second, clock=clock), Done)
    assert await states_by_version(storage, context) == dict.fromkeys((1, 2, 3, 5), State.EXPIRED)


async def test_a_legal_hold_lets_nothing_expire_nor_be_collected(
    clocked: tuple[Storage, ManualClock],
) -> None:
    storage, clock = clocked
    context = await create_log(storage)
    await append_each(storage, context, draft_message("one"), draft_summary(1, 1, data={"job": "2"}))
    lease = await _claim_new_job(storage, context, "expire", {"job": "2", "seconds": 0})
    other = await _claim_new_job(storage, context, "collect")
    await policy_levels.set_hold(storage, "default", True)
    clock.advance(days=1)
    found = await expire_messages(storage, lease, clock=clock)
    assert isinstance(found, Retry)
    assert found.not_before == clock() + timedelta(days=1)
    await storage.settings(context.id, {"deleted": True}, rev=0)
    clock.advance(days=31)
    found = await collect_deleted_entries(storage, other, clock=clock)
    assert isinstance(found, Retry)
    assert found.not_before == clock() + timedelta(days=1)
    assert await states_by_version(storage, context) == {}


# ── collect ─────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_what_no_live_fork_reads_of_a_deleted_context_is_collected(
    clocked: tuple[Storage, ManualClock],
) -> None:
    storage, clock = clocked
    root, profile = await create_log(storage, "root"), await create_log(storage, PROFILE)
    receipt = await append_drafts(storage, root, *[draft_message(f"turn {n}") for n in range(1, 7)])
    await append_drafts(storage, profile, draft_fact("learned", sources=receipt.ids))
    near, far = await fork_log(storage, root, 2), await fork_log(storage, root, 4)
    await append_drafts(storage, far, draft_message("own"))
    lease = await _claim_new_job(storage, root, "collect")
    assert isinstance(await collect_deleted_entries(storage, lease, clock=clock), Done)
    await storage.settings(root.id, {"deleted": True}, rev=0)
    found = await collect_deleted_entries(storage, lease, clock=clock)
    assert isinstance(found, Retry)
    assert found.not_before == clock() + COLLECT_AFTER
    clock.advance(days=30)
    assert isinstance(await collect_deleted_entries(storage, lease, clock=clock), Done)
    assert await states_by_version(storage, root) == dict.fromkeys((5, 6), State.ERASED)
    assert await states_by_version(storage, far) == {}
    await storage.settings(far.id, {"deleted": True}, rev=0)
    assert isinstance(await collect_deleted_entries(storage, lease, clock=clock), Done)
    assert await states_by_version(storage, root) == dict.fromkeys((3, 4, 5, 6), State.ERASED)
    assert await states_by_version(storage, far) == dict.fromkeys((3, 4), State.ERASED), (
        "its own can still come back"
    )
    clock.advance(days=30)
    await storage.settings(far.id, {"x": 1}, rev=1)
    assert isinstance(await collect_deleted_entries(storage, lease, clock=clock), Done)
    assert await states_by_version(storage, far) == dict.fromkeys((3, 4, 5), State.ERASED)
    assert await states_by_version(storage, near) == await states_by_version(storage, profile) == {}
    await sound(storage, near.id)
    await storage.settle(lease, Done())


@pytest.mark.parametrize("any_url", ["memory", "sqlite"], indirect=True)  # with a clock of their own
async def test_the_job_of_a_deleted_context_is_still_claimed(clocked: tuple[Storage, ManualClock]) -> None:
    storage, clock = clocked
    context = await create_log(storage)
    due = clock() + COLLECT_AFTER
    job = JobDraft(kind="collect", dedupe=f"collect:{context.id}", not_before=due)
    await append_drafts(storage, context, draft_message("one"), jobs=(job,))
    await storage.settings(context.id, {"deleted": True}, rev=0)
    assert await storage.claim(["collect"], lease=MINUTE) == []
    clock.advance(days=30)
    (lease,) = await storage.claim(["collect"], lease=MINUTE)
    assert isinstance(await collect_deleted_entries(storage, lease, clock=clock), Done)
    assert await states_by_version(storage, context) == {1: State.ERASED}
    await storage.settle(lease, Done())


# ── any tree, any erasure ───────────────────────────────────────────────────────────────────────────────────────────

WORDS = "amber basil cedar delta ember fjord gamma hazel ivory jade".split()


class _World:
    """A random fork tree whose every text has a word of its own, and what each entry was made from, kept by hand."""

    def __init__(self, storage: Any) -> None:
        self.storage = storage
        self.contexts: list[Context] = []
        #: Id → the word only its text has; ids it was made from; edits are made from each other both ways.
        self.words: dict[str, str] = {}
        self.made: dict[str, set[str]] = {}

    async def say(self, context: Context, kind: str, pick: int) -> None:
        entries = await self.storage.read(context.id)
        word = f"{WORDS[len(self.words) % 10]}-{len(self.words):04d}"
        target = entries[pick % len(entries)] if entries else None
        sources: set[str] = set()
        draft = draft_message(
            f"the {word} was said", actor=f"actor {word}", metadata={"note": f"meta {word}"}
        )
        if target is not None and kind == "fact":
            sources = {target.id}
            draft = draft_fact(f"the {word} is so", sources=(target.id,))
        elif target is not None and kind == "summary":
            last = min(target.version + 3, len(entries))
            sources = {entry.id for entry in entries[target.version - 1 : last]}
            draft = draft_summary(target.version, last, content=f"the {word} was summed up")
        elif target is not None and kind == "edit" and target.kind is Kind.MESSAGE:
            sources = {target.id}
            draft = draft_message(
                f"the {word} was meant", replaces=((target.version, target.version),), sources=(target.id,)
            )
        try:
            receipt = await append_drafts(self.storage, context, draft)
        except GoneError:
            assert target is not None
            assert target.state is State.ERASED
            return
        id = receipt.ids[0]
        self.words[id] = word
        self.made[id] = sources
        if draft.kind is Kind.MESSAGE:
            for source in sources:
                self.made[source].add(id)

    def must_go(self, id: str) -> set[str]:
        gone = {id}
        while True:
            more = {one for one, sources in self.made.items() if sources & gone} - gone
            if not more:
                return gone
            gone |= more


_steps = st.lists(
    st.tuples(
        st.sampled_from(["say", "say", "fact", "summary", "edit", "fork", "erase"]),
        st.integers(0, 50),
        st.integers(0, 50),
    ),
    min_size=4,
    max_size=18,
)


@pytest.mark.parametrize("kind", ["memory", "sqlite", "postgres"])
@settings(
    max_examples=15, deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)  # fmt: skip
@given(steps=_steps)
async def test_no_text_of_what_was_erased_is_read_anywhere(
    kind: str,
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    steps: list[tuple[str, int, int]],
) -> None:
    if kind == "postgres":
        url = another(request.getfixturevalue("postgres_home"))
    else:
        url = "memory://" if kind == "memory" else f"sqlite:///{tmp_path_factory.mktemp('world') / 'a.db'}"
    async with _clocked_store(url) as (storage, _):
        world = _World(storage)
        world.contexts.append(await create_log(storage, "talk 0"))
        gone: set[str] = set()
        for what, which, pick in [("say", 0, 0), *steps, ("erase", 1, 3)]:
            context = world.contexts[which % len(world.contexts)]
            if what == "fork":
                head = await storage.head(context.id)
                key = f"talk {len(world.contexts)}"
                world.contexts.append(await fork_log(storage, context, pick % (head.version + 1), key=key))
            elif what == "erase":
                entries = await storage.read(context.id)
                if entries:
                    id = entries[pick % len(entries)].id
                    expected = world.must_go(id)
                    erased = await erase.erase_entries(storage, context.id, [id], verify=True)
                    assert erased.residue == ()
                    assert set(erased.ids) >= expected
                    gone |= set(erased.ids)
            else:
                await world.say(context, what, pick)
        words = [world.words[id] for id in gone]
        for context in world.contexts:
            entries = await sound(storage, context.id)
            kept = {entry.id: entry.state for entry in entries}
            assert all((state is State.ERASED) == (id in gone) for id, state in kept.items())
            text = json.dumps([line async for line in export.export(storage, context.id)])
            async with session_on(storage, context.key or "", words=True) as session:
                for version in range(1, len(entries) + 1):
                    view = session.at(version)
                    text += str(list(await view.window(500)))
                    text += str(list(await view.recall("the was said amber", token_budget=500)))
                    text += str(await view.messages("the was said", budget=500))
                    text += str((await view.history(limit=100)).entries)
                    text += str(await view.entries())
                text += str(await session.compactions())
                text += str(await session.diff(0))
                for entry in entries:
                    if entry.kind is Kind.SUMMARY:
                        text += str(await session.expand(entry.version))
            assert [word for word in words if word in text] == []
