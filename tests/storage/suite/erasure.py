"""What a store promises about erasing and expiring: a part of the conformance suite of stores."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from acms import ConflictError, GoneError, JobState, Kind, SessionNotFoundError, State, Text, ValidationError
from acms.model import Derived, Expect, JobDraft, JobQuery, Retry
from acms.ports import HasSpaces, StorageBackend
from acms.testing import sound
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
from tests.storage.suite.logs import is_refused, mixed

MINUTE = timedelta(minutes=1)


class ErasureTests:
    """Tombstones, what lies beside them, and who comes too late; `StorageBackendTests` inherits it."""

    async def test_t07_what_arrives_after_an_erasure_brings_nothing_back(self, store: StorageBackend) -> None:
        """A vector or summary that was being computed meanwhile is dropped or refused."""
        root = await create_log(store)
        await append_drafts(store, root, draft_message("a"), draft_message("b"), draft_message("c"))
        child = await fork_log(store, root)
        worker = (await store.head(root.id)).rewrites
        cousin = (await store.head(child.id)).rewrites
        await store.blank(root.id, [1, 3], to=State.ERASED, audit={})
        rows = [Derived(version=n, space="s", data=b"x") for n in (1, 2, 3)]
        assert await store.put_derived(root.id, rows) == 1
        assert await store.put_derived(child.id, rows) == 1
        assert [row.version for row in await store.derived(child.id, "s")] == [2]
        with pytest.raises(ConflictError):
            await append_drafts(store, root, draft_summary(1, 2), expect=Expect(rewrites=worker))
        with pytest.raises(ConflictError):
            await append_drafts(store, child, draft_summary(1, 2), expect=Expect(rewrites=cousin))
        await store.settings(child.id, {"deleted": True}, rev=0)
        assert await is_refused(store.put_derived(child.id, rows), SessionNotFoundError)

    async def test_expiring_deletes_the_content_and_keeps_the_rest(self, store: StorageBackend) -> None:
        """An expired entry keeps its place, its key, its hash and its derived rows."""
        context = await create_log(store)
        draft = draft_message(
            "secret", key="k", parts=(Text("secret"),), data={"x": 1}, metadata={"y": 2}, markers=("goal",)
        )
        await append_drafts(store, context, draft_message("a"), draft, draft_message("c"))
        await store.put_derived(context.id, [Derived(version=2, space="s", data=b"x")])
        before, old = await store.head(context.id), (await store.read(context.id))[1]
        assert await store.blank(context.id, [2], to=State.EXPIRED, audit={"by": "policy"}) == 1
        entry = (await sound(store, context.id))[1]
        assert entry.state is State.EXPIRED
        assert (entry.key, entry.role, entry.tokens, entry.id) == ("k", old.role, old.tokens, old.id)
        assert (entry.digest, entry.chain, entry.created_at) == (old.digest, old.chain, old.created_at)
        assert await store.get([entry.id]) == [entry]
        after = await store.head(context.id)
        assert after == replace(before, epoch=before.epoch + 1, rewrites=before.rewrites + 1)
        assert [row.data for row in await store.derived(context.id, "s")] == [b"x"]
        assert (await append_drafts(store, context, draft)).repeated

    async def test_erasing_also_deletes_keys_derived_rows_and_job_payloads(
        self, store: StorageBackend
    ) -> None:
        """Nothing that was made from an erased entry in this store outlives it."""
        context = await create_log(store)
        draft = draft_message("secret", key="k", parts=(Text("secret"),), data={"x": 1}, metadata={"y": 2})
        receipt = await append_drafts(store, context, draft, draft_message("b", key="b"))
        child = await fork_log(store, context)
        await store.put_derived(
            context.id, [Derived(version=n, space=space, data=b"x") for n in (1, 2) for space in ("s", "t")]
        )
        payload = {"ids": list(receipt.ids), "text": "secret"}
        await append_drafts(store, context, jobs=(JobDraft(kind="k", dedupe="parent", payload=payload),))
        await append_drafts(store, child, jobs=(JobDraft(kind="k", dedupe="child", payload=payload),))
        keep = JobDraft(kind="k", dedupe="other", payload={"ids": [receipt.ids[1]]})
        await append_drafts(store, context, jobs=(keep,))
        assert await store.blank(context.id, [1], to=State.ERASED, audit={}) == 1
        (entry, other) = await sound(store, context.id)
        assert (entry.state, other.state) == (State.ERASED, State.LIVE)
        for space in ("s", "t"):
            assert [row.version for row in await store.derived(context.id, space)] == [2]
        payloads = {job.dedupe: dict(job.payload) for job in (await store.jobs(JobQuery())).items}
        assert payloads == {"parent": {}, "child": {}, "other": {"ids": [receipt.ids[1]]}}
        again = await append_drafts(store, context, draft)
        assert (again.repeated, again.versions) == (False, (3, 3))
        assert (await append_drafts(store, context, draft_message("b", key="b"))).repeated
        await sound(store, context.id)

    async def test_blanking_twice_changes_nothing_more(self, store: StorageBackend) -> None:
        """An expired entry can still be erased, never the other way round, and a repeat raises no epoch."""
        context = await create_log(store)
        await append_drafts(
            store, context, draft_message("a", key="a"), draft_message("b"), draft_message("c")
        )
        assert await store.blank(context.id, [1, 1, 2], to=State.EXPIRED, audit={}) == 2
        before = await store.head(context.id)
        assert await store.blank(context.id, [1, 2], to=State.EXPIRED, audit={}) == 0
        assert await store.head(context.id) == before
        assert await store.blank(context.id, [1, 3], to=State.ERASED, audit={}) == 2
        assert (await store.head(context.id)).epoch == before.epoch + 1
        assert await store.blank(context.id, [1, 3], to=State.EXPIRED, audit={}) == 0
        assert await store.blank(context.id, [], to=State.ERASED, audit={}) == 0
        states = [entry.state for entry in await sound(store, context.id)]
        assert states == [State.ERASED, State.EXPIRED, State.ERASED]
        with pytest.raises(ValidationError):
            await store.blank(context.id, [2], to=State.LIVE, audit={})

    async def test_an_erasure_is_seen_in_every_fork_and_raises_one_epoch(self, store: StorageBackend) -> None:
        """One row holds an entry for a whole tree: erased anywhere, it is erased everywhere, and caches know."""
        root, child = await mixed(store)
        sibling, apart = await fork_log(store, root, 3), await create_log(store)
        grandchild = await fork_log(store, child)
        tree = (root, child, sibling, grandchild)
        assert {(await store.head(context.id)).epoch for context in tree} == {0}
        assert await store.blank(grandchild.id, [2, 8], to=State.ERASED, audit={}) == 2
        for context in tree:
            entries = await sound(store, context.id)
            assert entries[1].state is State.ERASED
            head = await store.head(context.id)
            assert head.epoch == 1
            assert head.rewrites > sum(1 for entry in entries if entry.replaces), "a worker would not notice"
        assert (await store.read(child.id))[7].state is State.ERASED
        assert (await store.read(root.id))[7].state is State.LIVE
        assert (await store.head(apart.id)).epoch == 0
        assert (await fork_log(store, root, 2)).root == root.id

    async def test_what_was_got_before_an_erasure_is_got_blank_after_it(self, store: StorageBackend) -> None:
        """An id finds the entry as it is now, after an erasure anywhere in the tree and after any earlier read."""
        root = await create_log(store)
        ids = list((await append_drafts(store, root, *[draft_message(f"secret {n}") for n in range(9)])).ids)
        child = await fork_log(store, root, 6)
        ids += (await append_drafts(store, child, draft_message("own 1"), draft_message("own 2"))).ids
        erased: set[str] = set()
        for context, version in ((child, 2), (root, 9), (child, 8), (root, 1)):
            for reads in range(3):
                found = [entry for entry in await store.get(ids) if entry is not None]
                assert [entry.id for entry in found] == ids
                assert {entry.id for entry in found if entry.state is State.ERASED} == erased
                assert all((entry.content == "") == (entry.id in erased) for entry in found)
                if reads:
                    await store.read(child.id, newest=reads + 1)
            await store.blank(context.id, [version], to=State.ERASED, audit={})
            erased.add((await store.read(context.id, after=version - 1, limit=1))[0].id)
        await store.settings(root.id, {"deleted": True}, rev=0)
        await store.blank(child.id, [3], to=State.ERASED, audit={})
        erased.add(ids[2])
        found = [entry for entry in await store.get(ids) if entry is not None]
        assert {entry.id for entry in found if not entry.content} == erased

    async def test_a_deleted_context_can_be_erased(self, store: StorageBackend) -> None:
        """Hiding a log first does not protect its content."""
        context = await create_log(store)
        receipt = await append_drafts(store, context, draft_message("a"))
        await store.settings(context.id, {"deleted": True}, rev=0)
        assert await store.blank(context.id, [1], to=State.ERASED, audit={}) == 1
        (entry,) = await store.get(receipt.ids)
        assert entry is not None
        assert (entry.state, entry.content) == (State.ERASED, "")

    async def test_who_said_it_goes_with_an_erasure_and_stays_when_it_expires(
        self, store: StorageBackend
    ) -> None:
        """A tombstone of an erasure names no actor; retention keeps the speaker."""
        context = await create_log(store)
        await append_drafts(store, context, draft_message("a", actor="Ana"), draft_message("b", actor="Bob"))
        await store.blank(context.id, [1], to=State.ERASED, audit={})
        await store.blank(context.id, [2], to=State.EXPIRED, audit={})
        assert [entry.actor for entry in await sound(store, context.id)] == [None, "Bob"]

    async def test_t07_what_was_made_from_an_erased_entry_is_refused(self, store: StorageBackend) -> None:
        """A fact, a summary or an edit that names it comes too late; a retraction repeats nothing of it."""
        root, profile = await create_log(store), await create_log(store)
        ids = (
            await append_drafts(store, root, draft_message("a"), draft_message("b"), draft_message("c"))
        ).ids
        child = await fork_log(store, root)
        await store.blank(root.id, [1], to=State.ERASED, audit={})
        await store.blank(root.id, [2], to=State.EXPIRED, audit={})
        for context in (root, child, profile):
            before = await store.read(context.id)
            for late in (
                draft_fact("x", sources=(ids[2], ids[0])),
                draft_summary(1, 3, sources=ids)
                if context is not profile
                else draft_fact("y", sources=ids[:1]),
                draft_message("x", sources=ids[:1], key="k"),
            ):
                assert await is_refused(
                    append_drafts(store, context, draft_message("with it"), late), GoneError
                )
            assert await store.read(context.id) == before
            await append_drafts(
                store,
                context,
                draft_fact("z", sources=(*ids[1:], "elsewhere", "m_0000000000000000_1_000000")),
            )
        await append_drafts(store, root, replace(draft_retraction(1), sources=ids[:1]))
        await append_drafts(store, root, draft_message("free again", key="k"))

    async def test_what_was_made_from_it_before_is_still_a_repeat(self, store: StorageBackend) -> None:
        """Repeating an append that was stored before an erasure changes nothing and is no new citation."""
        context = await create_log(store)
        ids = (await append_drafts(store, context, draft_message("a"))).ids
        made = draft_fact("from a", sources=ids, key="k")
        first = await append_drafts(store, context, made)
        await store.blank(context.id, [1], to=State.ERASED, audit={})
        again = await append_drafts(store, context, made)
        assert (again.repeated, again.ids) == (True, first.ids)

    async def test_a_deleted_context_is_read_by_whoever_asks_for_it(self, store: StorageBackend) -> None:
        """An erasure must see hidden entries: every selection, inherited entries, also of a deleted ancestor."""
        root, child = await mixed(store)
        everything = [await store.read(one.id) for one in (root, child)]
        for one in (root, child):
            await store.settings(one.id, {"deleted": True}, rev=0)
        for one, entries in zip((root, child), everything, strict=True):
            assert await store.read(one.id, deleted=True) == entries
            assert await store.read(one.id, after=2, limit=3, deleted=True) == entries[2:5]
            assert await store.read(one.id, at=6, newest=2, deleted=True) == entries[4:6]
            facts = [entry for entry in entries if entry.kind is Kind.FACT]
            assert await store.read(one.id, kinds=(Kind.FACT,), deleted=True) == facts
            assert await store.read(one.id, replacing=True, deleted=True) == [
                e for e in entries if e.replaces
            ]
            assert await is_refused(store.read(one.id), SessionNotFoundError)
        await store.blank(child.id, [2], to=State.ERASED, audit={})
        for one in (root, child):
            assert (await store.read(one.id, deleted=True))[1].state is State.ERASED
        assert await is_refused(store.read("c_0000000000000000", deleted=True), SessionNotFoundError)
        live = await create_log(store)
        await append_drafts(store, live, draft_message("a"))
        assert await store.read(live.id, deleted=True) == await store.read(live.id)

    async def test_a_job_of_a_deleted_context_can_still_be_worked_off(self, store: StorageBackend) -> None:
        """A job enqueued before the deletion is claimed and settled; it can append nothing."""
        context = await create_log(store)
        await append_drafts(store, context, draft_message("a"), jobs=(JobDraft(kind="k", dedupe="a"),))
        await store.settings(context.id, {"deleted": True}, rev=0)
        (lease,) = await store.claim(["k"], lease=MINUTE)
        assert await is_refused(
            append_drafts(store, context, draft_fact("late"), finish=lease), SessionNotFoundError
        )
        assert (await store.settle(lease, Retry(error="later", not_before=WHEN))).state is JobState.READY

    async def test_a_store_that_lists_its_spaces_names_those_that_are_left(
        self, store: StorageBackend
    ) -> None:
        """Of the entries a context owns, sorted, without erased ones. A copy of a store asks for them."""
        if not isinstance(store, HasSpaces):
            pytest.skip("it does not say which spaces it has")
        root = await create_log(store)
        await append_drafts(store, root, draft_message("a"), draft_message("b"))
        child = await fork_log(store, root)
        await append_drafts(store, child, draft_message("c"))
        assert await store.spaces(root.id) == []
        rows = [(1, "s"), (1, "model/3"), (2, "t"), (3, "of the child"), (3, "s")]
        await store.put_derived(child.id, [Derived(version=n, space=space, data=b"x") for n, space in rows])
        assert await store.spaces(root.id) == ["model/3", "s", "t"]
        assert await store.spaces(child.id) == ["of the child", "s"]
        await store.blank(root.id, [1], to=State.ERASED, audit={})
        await store.blank(child.id, [3], to=State.EXPIRED, audit={})
        assert await store.spaces(root.id) == ["t"]
        assert await store.spaces(child.id) == ["of the child", "s"]
        await store.settings(child.id, {"deleted": True}, rev=0)
        assert await is_refused(store.spaces(child.id), SessionNotFoundError)
