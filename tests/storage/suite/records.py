"""What a store that keeps records promises about them: a part of the conformance suite of stores."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from acms import ConflictError, SessionNotFoundError, State, ValidationError
from acms.model import Derived, Record
from acms.ports import HasRecords, StorageBackend
from acms.storage import MemoryStorage
from acms.testing import sound
from acms.testing.logs import append_drafts, create_log, draft_message, fork_log, restore_contexts
from tests.storage.suite.logs import all_refused, is_refused

KEPT = 32
"""Records a context keeps."""


def store_with_records(store: StorageBackend) -> HasRecords:
    """Return a store as one that keeps records; the test is skipped when it does not."""
    if not isinstance(store, HasRecords):
        pytest.skip("it keeps no records")
    return store


class RecordTests:
    """Derived state beside a log, by name; `StorageBackendTests` inherits it."""

    async def test_a_record_reads_back_as_it_was_put(self, store: StorageBackend) -> None:
        """Every put replaces the whole of it and counts its revision, for one context alone, across a closed handle."""
        records, context, other = store_with_records(store), await create_log(store), await create_log(store)
        assert await records.record(context.id, "shape") is None
        data: dict[str, Any] = {"b": [1, {"ü": None}], "a": -0.5, "n": 2**53, "": "\u202e\U0001f9e0"}
        first = await records.put_record(context.id, "shape", data, rev=0)
        assert first == Record(context=context.id, name="shape", rev=1, data=data)
        data["b"].append(2)
        assert first.data["b"] == [1, {"ü": None}]
        await store.aclose()
        assert await records.record(context.id, "shape") == first
        second = await records.put_record(context.id, "shape", {}, rev=1)
        assert (second.rev, second.data) == (2, {})
        assert await records.record(context.id, "shape") == second
        assert await records.record(context.id, "Shape") is None
        assert await records.record(other.id, "shape") is None

    async def test_a_record_is_put_only_at_the_revision_that_was_read(self, store: StorageBackend) -> None:
        """Of two writers that read the same revision exactly one wins, also where both write the same."""
        records, context = store_with_records(store), await create_log(store)
        assert await is_refused(records.put_record(context.id, "a", {}, rev=1), ConflictError)
        for rev in range(3):
            puts = [records.put_record(context.id, "a", {"n": n // 2}, rev=rev) for n in range(4)]
            results = await asyncio.gather(*puts, return_exceptions=True)
            (won,) = [result for result in results if isinstance(result, Record)]
            assert sum(isinstance(result, ConflictError) for result in results) == 3
            assert won.rev == rev + 1
            assert await records.record(context.id, "a") == won
        last = await records.record(context.id, "a")
        for rev in (0, 1, 2, 4, 2**63 - 1):
            assert await is_refused(records.put_record(context.id, "a", {}, rev=rev), ConflictError)
        assert await records.record(context.id, "a") == last

    async def test_a_record_moves_nothing_of_the_log(self, store: StorageBackend) -> None:
        """No entry, no version, no derived number, no settings: a watcher of the log sees nothing."""
        records, context = store_with_records(store), await create_log(store)
        await append_drafts(store, context, draft_message("a"), draft_message("b"))
        await store.put_derived(context.id, [Derived(version=1, space="s", data=b"x")])
        head, log = await store.head(context.id), await sound(store, context.id)
        record = await records.put_record(context.id, "a", {"version": 2}, rev=0)
        await records.put_record(context.id, "a", {"version": 2}, rev=record.rev)
        assert await store.head(context.id) == head
        assert await sound(store, context.id) == log
        assert await store.context(context.id) == context
        assert [row.seq for row in await store.derived(context.id, "s")] == [1]

    async def test_a_record_of_an_unknown_or_deleted_context_is_an_error(self, store: StorageBackend) -> None:
        """Deleting a context deletes its records: one that comes back has none."""
        records, context, other = store_with_records(store), await create_log(store), await create_log(store)
        for one in (context, other):
            await records.put_record(one.id, "a", {"n": 1}, rev=0)
        await store.settings(context.id, {"deleted": True}, rev=0)
        for id in (context.id, "c_0000000000000000", ""):
            calls = (
                records.record(id, "a"),
                records.put_record(id, "a", {}, rev=0),
                records.put_record(id, "a", {}, rev=1),
            )
            await all_refused(calls, SessionNotFoundError)
        await store.settings(context.id, {"deleted": False}, rev=1)
        assert await records.record(context.id, "a") is None
        assert (await records.put_record(context.id, "a", {}, rev=0)).rev == 1
        assert (await records.record(other.id, "a")) is not None

    async def test_an_erasure_deletes_the_records_of_its_fork_tree(self, store: StorageBackend) -> None:
        """Records name entries by id. An expiry, an erasure of nothing and other trees leave them alone."""
        records, root, apart = store_with_records(store), await create_log(store), await create_log(store)
        await append_drafts(store, root, draft_message("a"), draft_message("b"))
        child = await fork_log(store, root)
        grandchild = await fork_log(store, child)
        family = (root, child, grandchild)
        assert await records.record(child.id, "a") is None
        for one in (*family, apart):
            await records.put_record(one.id, "a", {"n": 1}, rev=0)
        assert await store.blank(child.id, [1], to=State.EXPIRED, audit={}) == 1
        assert await store.blank(child.id, [9], to=State.ERASED, audit={}) == 0
        assert all([await records.record(one.id, "a") for one in family])
        assert await store.blank(child.id, [2], to=State.ERASED, audit={}) == 1
        assert [await records.record(one.id, "a") for one in family] == [None, None, None]
        assert await is_refused(records.put_record(root.id, "a", {}, rev=1), ConflictError)
        assert (await records.put_record(root.id, "a", {}, rev=0)).rev == 1
        assert await records.record(apart.id, "a") is not None

    async def test_a_context_keeps_a_bounded_number_of_records(self, store: StorageBackend) -> None:
        """A new one drives out the one that was put longest ago; a repeated one stays."""
        records, context, other = store_with_records(store), await create_log(store), await create_log(store)
        await records.put_record(other.id, "n0", {}, rev=0)
        for n in range(KEPT):
            await records.put_record(context.id, f"n{n}", {"n": n}, rev=0)
        await records.put_record(context.id, "n0", {"n": 0}, rev=1)
        names = [f"n{n}" for n in range(KEPT, KEPT + 6)]
        await asyncio.gather(*[records.put_record(context.id, name, {}, rev=0) for name in names])
        there = [n for n in range(KEPT + 6) if await records.record(context.id, f"n{n}") is not None]
        assert there == [0, *range(7, KEPT + 6)]
        assert await records.record(other.id, "n0") is not None

    async def test_a_record_out_of_bounds_is_refused(self, store: StorageBackend) -> None:
        """Names, data and revisions are judged alike by all stores, before anything is stored."""
        records, context = store_with_records(store), await create_log(store)
        widest = {"x": "\u00e9" * ((65_536 - len('{"x":""}')) // 2)}
        assert (await records.put_record(context.id, "n" * 64, widest, rev=0)).data == widest
        names: tuple[Any, ...] = ("", " ", "n" * 65, "\0", "\ud800", None)
        datas: tuple[Any, ...] = ({"x": widest["x"] + "x"}, [], None, {"x": float("nan")}, {"x": b""}, {1: 2})
        calls: list[Callable[[], Awaitable[Any]]] = [
            *[lambda name=name: records.record(context.id, name) for name in names],
            *[lambda name=name: records.put_record(context.id, name, {}, rev=0) for name in names],
            *[lambda data=data: records.put_record(context.id, "a", data, rev=0) for data in datas],
            *[lambda rev=rev: records.put_record(context.id, "a", {}, rev=rev) for rev in (-1, 2**63)],
        ]
        for call in calls:
            assert await is_refused(call(), ValidationError)
        assert await records.record(context.id, "a") is None
        for name in ("';DROP TABLE records;--", "%", "$.", "\U0001f9e0" * 64):
            record = await records.put_record(context.id, name, {"of": name}, rev=0)
            assert await records.record(context.id, name) == record

    async def test_a_record_is_not_carried_to_another_store(self, store: StorageBackend) -> None:
        """Derived records are made again where a log is restored; existing ones stay when it is restored once more."""
        records, source = store_with_records(store), MemoryStorage()
        context = await create_log(source, "a")
        await append_drafts(source, context, draft_message("a"))
        await source.put_record(context.id, "a", {"n": 1}, rev=0)
        await restore_contexts(source, store, context)
        assert await records.record(context.id, "a") is None
        record = await records.put_record(context.id, "a", {"n": 2}, rev=0)
        await restore_contexts(source, store, context)
        assert await records.record(context.id, "a") == record

    async def test_a_record_stays_behind_the_wall_of_its_tenant(
        self, store: StorageBackend, other_tenant: StorageBackend
    ) -> None:
        """Also where both tenants have a context of the same id."""
        records, theirs = store_with_records(store), store_with_records(other_tenant)
        context = await create_log(store, "a")
        record = await records.put_record(context.id, "a", {"n": 1}, rev=0)
        calls = (theirs.record(context.id, "a"), theirs.put_record(context.id, "a", {}, rev=1))
        await all_refused(calls, SessionNotFoundError)
        await restore_contexts(store, other_tenant, replace(context, key=None))
        assert await theirs.record(context.id, "a") is None
        await theirs.put_record(context.id, "a", {"n": 2}, rev=0)
        await other_tenant.settings(context.id, {"deleted": True}, rev=0)
        assert await records.record(context.id, "a") == record
