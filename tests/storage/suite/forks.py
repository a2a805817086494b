"""What a store promises about forks, and about logs that are verified and carried to another store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from datetime import timedelta

import pytest

from acms import ConflictError, Entry, Role, SessionNotFoundError, State
from acms.errors import CorruptRecordError, ForkDepthError
from acms.log.encoding import genesis_hash, verify_chain
from acms.model import Context, ContextQuery, Expect
from acms.ports import StorageBackend
from acms.storage import MemoryStorage
from acms.testing import sound
from acms.testing.logs import (
    WHEN,
    append_drafts,
    create_log,
    draft_fact,
    draft_message,
    draft_summary,
    fork_log,
    restore_contexts,
    stream_entries,
)
from tests.storage.suite.logs import every_draft, is_refused, mixed, settled


class ForkTests:
    """Forks, verification and logs on the move; `StorageBackendTests` inherits it."""

    # ── forks ───────────────────────────────────────────────────────────────────────────────────────────────────────

    async def test_t10_a_fork_at_any_version_reads_exactly_what_was_there(
        self, store: StorageBackend
    ) -> None:
        """A fork starts with its parent's first versions, whatever either does afterwards."""
        parent, _ = await mixed(store)
        log = await store.read(parent.id)
        children: list[Context] = []
        for at in range(len(log) + 1):
            child = await fork_log(store, parent, at)
            assert (child.parent, child.fork, child.root) == (parent.id, at, parent.id)
            assert child.lineage == (((parent.id, at),) if at else ())
            assert await sound(store, child.id) == log[:at]
            children.append(child)
        assert (await fork_log(store, parent)).fork == len(log)
        await append_drafts(store, parent, draft_message("of the parent"), draft_summary(1, 3))
        for at, child in enumerate(children):
            receipt = await append_drafts(
                store, child, draft_message(f"of child {at}"), draft_fact("and a fact")
            )
            assert receipt.versions == (at + 1, at + 2)
        for at, child in enumerate(children):
            entries = await sound(store, child.id)
            assert entries[:at] == log[:at]
            assert [entry.content for entry in entries[at:]] == [f"of child {at}", "and a fact"]
            assert {entry.context for entry in entries[at:]} == {child.id}
            assert await store.read(child.id, at=at) == log[:at]
        assert [entry.content for entry in await sound(store, parent.id)][-2:] == [
            "of the parent",
            "what was said from 1 to 3",
        ]

    async def test_t10_a_fork_of_a_fork_inherits_from_both(self, store: StorageBackend) -> None:
        """A fork below its parent's own entries hangs on the grandparent, above them on both."""
        root, child = await mixed(store)
        log = await store.read(child.id)
        for at in range(len(log) + 1):
            grandchild = await fork_log(store, child, at)
            expected = ((root.id, min(at, 7)),) if at else ()
            assert grandchild.lineage == (expected if at <= 7 else (*expected, (child.id, at)))
            assert (grandchild.parent, grandchild.root) == (child.id, root.id)
            assert await sound(store, grandchild.id) == log[:at]
            await append_drafts(store, grandchild, draft_message("deeper"))
            assert [entry.version for entry in await sound(store, grandchild.id)] == list(range(1, at + 2))
        assert await sound(store, child.id) == log

    async def test_t12_a_fork_during_appends_is_a_snapshot(self, store: StorageBackend) -> None:
        """A fork never sees half an append nor a version above the one it says it was forked at."""
        parent = await create_log(store)
        await append_drafts(store, parent, draft_message("start"))
        results = await asyncio.gather(
            *[
                append_drafts(store, parent, draft_message(f"{n}.0"), draft_message(f"{n}.1"))
                if n % 3
                else fork_log(store, parent)
                for n in range(45)
            ]
        )
        log = await sound(store, parent.id)
        for child in results:
            if isinstance(child, Context):
                assert child.fork is not None
                assert child.fork % 2 == 1
                assert await sound(store, child.id) == log[: child.fork]

    async def test_t13_a_fork_too_deep_is_refused_with_advice(self, store: StorageBackend) -> None:
        """64 inherited segments read well; one more is a typed error that says what to do."""
        context = await create_log(store)
        await append_drafts(store, context, draft_message("0"))
        for depth in range(1, 65):
            context = await fork_log(store, context)
            await append_drafts(store, context, draft_message(str(depth)))
        assert [entry.content for entry in await sound(store, context.id)] == [str(n) for n in range(65)]
        with pytest.raises(ForkDepthError) as caught:
            await fork_log(store, context)
        assert caught.value.options
        assert (await fork_log(store, context, 64)).fork == 64

    async def test_a_fork_is_created_once_per_key(self, store: StorageBackend) -> None:
        """Forking again under the same key returns the first fork."""
        parent = await create_log(store)
        await append_drafts(store, parent, draft_message("a"), draft_message("b"))
        first = await fork_log(store, parent, 1, key="f")
        assert await fork_log(store, parent, 2, key="f") == first

    async def test_a_fork_survives_the_deletion_of_its_parent(self, store: StorageBackend) -> None:
        """What a fork inherited lives as long as the fork."""
        parent = await create_log(store)
        await append_drafts(store, parent, draft_message("a"), draft_message("b"))
        child = await fork_log(store, parent, 1)
        await store.settings(parent.id, {"deleted": True}, rev=0)
        await append_drafts(store, child, draft_message("c"))
        assert [entry.content for entry in await sound(store, child.id)] == ["a", "c"]
        assert [entry.content for entry in await sound(store, (await fork_log(store, child)).id)] == [
            "a",
            "c",
        ]

    # ── verifying ───────────────────────────────────────────────────────────────────────────────────────────────────

    async def test_t45_one_changed_byte_is_found_and_located(self, store: StorageBackend) -> None:
        """Verification names the first version at which a log was changed."""
        context = await create_log(store)
        await append_drafts(
            store, context, draft_message("a"), draft_message("the price is 100"), draft_fact("c")
        )
        await append_drafts(store, context, draft_message("d"))
        entries = await sound(store, context.id)
        start = genesis_hash(context.id)
        for change in (
            {"content": "the price is 900"},
            {"role": Role.ASSISTANT},
            {"created_at": WHEN + timedelta(microseconds=1)},
            {"metadata": {"x": 1}},
            {"digest": bytes(32)},
            {"salt": bytes(16)},
        ):
            forged = [*entries[:1], replace(entries[1], **change), *entries[2:]]
            found = [version for version, _ in verify_chain(forged, head=start, version=0)]
            assert found
            assert found[0] == 2
        without = [entries[0], *entries[2:]]
        assert next(version for version, _ in verify_chain(without, head=start, version=0)) == 2

    # ── moving logs ─────────────────────────────────────────────────────────────────────────────────────────────────

    async def _family(self, store: StorageBackend) -> tuple[Context, Context, Context, Context]:
        """Write a log with forks, tombstones, keys and settings."""
        root, child = await mixed(store)
        grandchild = await fork_log(store, child, 9, key="grandchild", settings={"tags": ["x"]})
        await append_drafts(store, grandchild, *every_draft())
        at_zero = await fork_log(store, root, 0, namespace="n")
        await append_drafts(store, at_zero, draft_message("from nothing"))
        await store.blank(root.id, [2], to=State.ERASED, audit={})
        await store.blank(child.id, [8, 9], to=State.EXPIRED, audit={})
        await store.settings(child.id, {"name": "B"}, rev=0)
        return root, child, grandchild, at_zero

    async def test_a_restored_log_is_the_same_log(self, store: StorageBackend) -> None:
        """Ids, versions, hashes, salts, tombstones and settings are verbatim, and writing goes on from there."""
        source = MemoryStorage()
        family = await self._family(source)
        await restore_contexts(source, store, *family)
        for context in family:
            assert await store.context(context.id) == await source.context(context.id)
            assert await sound(store, context.id) == await source.read(context.id)
            assert settled(await store.head(context.id)) == settled(await source.head(context.id))
        await restore_contexts(source, store, *family)
        last = family[2]
        keyed = next(draft for draft in every_draft() if draft.key is not None)
        assert (await append_drafts(store, last, keyed)).repeated
        receipt = await append_drafts(
            store,
            last,
            draft_message("more"),
            expect=Expect(last_message=(await source.head(last.id)).last_message),
        )
        assert receipt.versions[0] == (await source.head(last.id)).version + 1
        await sound(store, last.id)
        assert await create_log(store, "mixed") == await store.context("mixed")

    async def test_an_exported_log_restores_elsewhere(self, store: StorageBackend) -> None:
        """What a store reads out is all that another one needs."""
        target = MemoryStorage()
        family = await self._family(store)
        await restore_contexts(store, target, *family)
        for context in family:
            assert await target.context(context.id) == await store.context(context.id)
            assert await sound(target, context.id) == await store.read(context.id)

    async def test_an_interrupted_restore_goes_on_where_it_stopped(self, store: StorageBackend) -> None:
        """Cut anywhere, also within one append, the second try completes the first."""
        source = MemoryStorage()
        for cut in range(10):
            context = await create_log(source, f"cut {cut}")
            for n in (1, 4, 2, 3):
                await append_drafts(
                    source, context, *[draft_message(f"{n}.{m}", key=f"{n}.{m}") for m in range(n)]
                )
            entries = await source.read(context.id)

            async def broken(entries: Sequence[Entry] = entries[:cut]) -> AsyncIterator[Entry]:
                for entry in entries:
                    yield entry
                raise ConnectionError("the line went dead")

            with pytest.raises(ConnectionError):
                await store.restore(context, broken())
            await store.restore(context, stream_entries(entries[:cut]))
            assert await sound(store, context.id) == entries[:cut]
            await store.restore(context, stream_entries(entries))
            assert await sound(store, context.id) == entries
            assert settled(await store.head(context.id)) == settled(await source.head(context.id))

    async def test_restoring_over_another_log_is_refused(self, store: StorageBackend) -> None:
        """Neither an id nor a key of another log is taken over, and stored entries stay."""
        ours, theirs = MemoryStorage(), MemoryStorage()
        context = await create_log(ours, "a")
        await append_drafts(ours, context, draft_message("a"))
        await restore_contexts(ours, theirs, context)
        await append_drafts(ours, context, draft_message("ours"))
        await append_drafts(theirs, context, draft_message("theirs"), draft_message("theirs too"))
        await restore_contexts(ours, store, context)
        log = await sound(store, context.id)
        with pytest.raises(ConflictError):
            await restore_contexts(theirs, store, context)
        stranger = MemoryStorage()
        with pytest.raises(ConflictError):
            await restore_contexts(stranger, store, await create_log(stranger, "a"))
        with pytest.raises(ConflictError) as another:
            await store.restore(replace(context, key="b"), stream_entries([]))
        assert not another.value.retryable
        assert await sound(store, context.id) == log
        assert [c.id for c in (await store.contexts(ContextQuery(deleted=True))).items] == [context.id]

    async def test_restoring_a_broken_log_is_refused(self, store: StorageBackend) -> None:
        """A log that does not verify, has gaps, or holds what belongs elsewhere never becomes part of a store."""
        source = MemoryStorage()
        for wrong in range(6):
            context, other = await create_log(source), await create_log(source)
            await append_drafts(source, context, draft_message("a"), draft_message("b"))
            await append_drafts(source, context, draft_message("c"))
            entries = await source.read(context.id)
            (stranger,) = await source.read(other.id) or [replace(entries[2], context=other.id)]
            broken: list[Entry] = [
                [entries[0], replace(entries[1], content="forged"), entries[2]],
                [entries[0], replace(entries[1], chain=bytes(32)), entries[2]],
                [entries[0], entries[2]],
                [entries[1], entries[2]],
                [entries[0], entries[1], stranger],
                [entries[0], replace(entries[1], salt=None), entries[2]],
            ][wrong]
            with pytest.raises(CorruptRecordError):
                await store.restore(context, stream_entries(broken))
            for entry in await sound(store, context.id):
                assert entry in entries

    async def test_a_fork_is_restored_after_its_parent(self, store: StorageBackend) -> None:
        """Without its parent a fork is refused; a parent that was deleted is still a parent."""
        source = MemoryStorage()
        root, child = await mixed(source)
        with pytest.raises(ConflictError):
            await restore_contexts(source, store, child)
        assert await is_refused(store.context(child.id), SessionNotFoundError)
        entries = await source.read(root.id)
        deleted = await source.settings(root.id, {"deleted": True}, rev=0)
        await store.restore(deleted, stream_entries(entries))
        assert (await store.context(root.id)).deleted_at is not None
        await restore_contexts(source, store, child)
        assert await sound(store, child.id) == await source.read(child.id)
