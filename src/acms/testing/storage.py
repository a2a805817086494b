"""The conformance suite of stores: what `StorageBackend` promises, as tests.

A backend's own test file is five lines; the fixture gives every test a fresh, empty store:

    class TestMyStorage(StorageBackendTests):
        @pytest.fixture
        async def store(self, tmp_path):
            async with MyStorage(tmp_path / "a.db") as store:
                yield store

Optional: `takes_clock` with a store made with the fixture `clock`, and the fixture `other_tenant`.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from itertools import product
from typing import Any, cast

import pytest

from acms.errors import (
    ACMSError,
    ConflictError,
    CorruptRecordError,
    ForkDepthError,
    GoneError,
    IdempotencyMismatchError,
    LeaseLostError,
    SessionNotFoundError,
    ValidationError,
)
from acms.log.encoding import genesis, verify
from acms.model import (
    Append,
    Context,
    ContextQuery,
    Derived,
    Done,
    Entry,
    Expect,
    Head,
    JobDraft,
    JobQuery,
    Kind,
    Receipt,
    Role,
    Search,
    State,
    Text,
)
from acms.ports import StorageBackend
from acms.storage import MemoryStorage
from acms.testing.erasure import ErasureTests
from acms.testing.jobs import JobTests
from acms.testing.logs import (
    WHEN,
    ManualClock,
    all_refused,
    carry,
    drafted,
    everything,
    fork,
    mixed,
    new,
    noted,
    packed,
    put,
    refused,
    said,
    settled,
    sound,
    stream,
    summed_up,
    taken_back,
)
from acms.testing.records import RecordTests
from acms.testing.vectors import VectorTests

HOSTILE = (
    "",
    " ",
    "'",
    '"',
    "';DROP TABLE contexts;--",
    "$.",
    "$.ids[*]",
    "NEAR(",
    "a AND",
    "ctx:2",
    "*",
    "%",
    "_",
    "\\",
    "m_",
    "m___",
    "m_0000000000000000_1_000000",
    "m_0000000000000000_zzzzzzzzzzzzz_000000",
    "m_0000000000000000_zzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzz_000000",
    "c_0000000000000000",
    "\0",
    "c_\0",
    "\ud800",
    "m_\ud800_1_000000",
    "m_0000000000000000_\ud800_000000",
    "m_0000000000000000_1_\udfff",
    "\u202egnp.exe",
    "\U0001f9e0" * 400,
    "x" * 1_048_576,
    "[" * 10_000,
    "NaN",
    "-1",
    str(2**63),
    str(2**64),
    "9" * 5000,
)
"""Ids, keys, names and words that are meant to hurt (T35)."""


class StorageBackendTests(VectorTests, ErasureTests, JobTests, RecordTests):
    """Everything a store promises; subclass it and give it a store."""

    #: True when the store is made with the fixture `clock`, so that a lease can run out.
    takes_clock = False
    #: Appends and writers of the crowd test.
    crowd = (16, 800)

    @pytest.fixture
    def clock(self) -> ManualClock:
        """Return the clock to make the store with."""
        return ManualClock()

    # ── contexts ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def test_a_new_context_is_what_was_asked_for(self, store: StorageBackend) -> None:
        """A new context says what its draft said and starts with an empty log."""
        context = await new(store, "a", namespace="n", settings={"name": "A", "tags": ["x"]}, counter="bytes")
        assert context == await store.context(context.id)
        assert (context.key, context.namespace, context.counter) == ("a", "n", "bytes")
        assert (context.root, context.parent, context.fork, context.lineage) == (context.id, None, None, ())
        assert (dict(context.settings), context.settings_rev) == ({"name": "A", "tags": ["x"]}, 0)
        assert (context.created_at, context.deleted_at) == (WHEN, None)
        assert await store.head(context.id) == Head(context=context.id, chain=genesis(context.id))
        assert await sound(store, context.id) == []

    async def test_creating_a_key_again_returns_the_live_context(self, store: StorageBackend) -> None:
        """A key names one live context of a namespace, and creating it again changes nothing."""
        first = await new(store, "a", settings={"name": "A"})
        await put(store, first, said("one"))
        assert await new(store, "a", settings={"name": "B"}, counter="other") == first
        assert (await store.head(first.id)).version == 1
        assert (await new(store, "a", namespace="other")).id != first.id
        assert (await new(store)).id != (await new(store)).id

    async def test_a_context_is_found_by_key_and_by_id(self, store: StorageBackend) -> None:
        """A key is looked up in its namespace only, an id everywhere."""
        one, two = await new(store, "a"), await new(store, "a", namespace="n")
        assert await store.context("a") == one
        assert await store.context("a", namespace="n") == two
        assert await store.context(two.id) == two
        assert await refused(store.context("a", namespace="elsewhere"), SessionNotFoundError)

    async def test_contexts_are_listed_newest_first_in_pages(self, store: StorageBackend) -> None:
        """Every context is on exactly one page, and the last page says that it is the last."""
        made = [await new(store, f"k{n}", namespace="odd" if n % 2 else "even") for n in range(7)]
        child = await fork(store, made[1])
        found: list[Context] = []
        after: str | None = None
        for _ in range(5):
            page = await store.contexts(ContextQuery(after=after, limit=3))
            assert len(page.items) <= 3
            found.extend(page.items)
            after = page.next_after
            if after is None:
                break
        assert found == [child, *reversed(made)]
        odd = await store.contexts(ContextQuery(namespace="odd"))
        assert ([context.key for context in odd.items], odd.next_after) == (["k5", "k3", "k1"], None)
        assert (await store.contexts(ContextQuery(parent=made[1].id))).items == (child,)
        assert (await store.contexts(ContextQuery(root=made[1].id))).items == (child, made[1])
        assert (await store.contexts(ContextQuery(limit=8))).next_after is None

    async def test_settings_change_only_at_the_revision_that_was_read(self, store: StorageBackend) -> None:
        """Of two writers that read the same settings one is refused; None removes a name."""
        context = await new(store, settings={"name": "A", "tags": ["x"]})
        first = await store.settings(context.id, {"name": "B", "policy": {"keep": 3}}, rev=0)
        assert dict(first.settings) == {"name": "B", "tags": ["x"], "policy": {"keep": 3}}
        assert first.settings_rev == 1
        with pytest.raises(ConflictError):
            await store.settings(context.id, {"name": "C"}, rev=0)
        second = await store.settings(context.id, {"tags": None}, rev=1)
        assert dict(second.settings) == {"name": "B", "policy": {"keep": 3}}
        assert await store.context(context.id) == second
        changes = [store.settings(context.id, {"n": n // 2}, rev=2) for n in range(5)]  # two and two the same
        results = await asyncio.gather(*changes, return_exceptions=True)
        assert sum(isinstance(result, Context) for result in results) == 1
        assert sum(isinstance(result, ConflictError) for result in results) == 4

    async def test_a_deleted_context_is_hidden_from_every_read_and_append(
        self, store: StorageBackend
    ) -> None:
        """Deleting hides a context at once; only `context` by id, `get` and listing on request still know it."""
        context = await new(store, "a")
        receipt = await put(store, context, said("one", markers=("goal",)), noted("wine"))
        child = await fork(store, context)
        gone = await store.settings(context.id, {"deleted": True}, rev=0)
        assert gone.deleted_at is not None
        row = Derived(version=1, space="s", data=b"x")
        calls = (
            store.head(context.id),
            store.read(context.id),
            store.derived(context.id, "s"),
            store.missing("s", context=context.id, limit=10),
            store.put_derived(context.id, [row]),
            store.context("a"),
            put(store, context, said("late")),
            fork(store, context, 1),
        )
        await all_refused(calls, SessionNotFoundError)
        assert await store.context(context.id) == gone
        assert [context.id for context in (await store.contexts(ContextQuery())).items] == [child.id]
        assert len((await store.contexts(ContextQuery(deleted=True))).items) == 2
        assert await store.missing("s", limit=10) == []
        assert await store.search(Search(namespace="default", terms=("wine",))) == []
        assert [entry and entry.content for entry in await store.get(receipt.ids)] == ["one", "wine"]
        assert [entry.content for entry in await sound(store, child.id)] == ["one", "wine"]
        back = await store.settings(context.id, {"deleted": False}, rev=1)
        assert back.deleted_at is None
        assert [entry.content for entry in await sound(store, context.id)] == ["one", "wine"]

    async def test_the_key_of_a_deleted_context_is_free_again(self, store: StorageBackend) -> None:
        """After a deletion the key names a new log, and the old one cannot come back under it."""
        old = await new(store, "a")
        await put(store, old, said("old"))
        await store.settings(old.id, {"deleted": True}, rev=0)
        fresh = await new(store, "a")
        assert fresh.id != old.id
        assert await sound(store, fresh.id) == []
        with pytest.raises(ConflictError):
            await store.settings(old.id, {"deleted": False}, rev=1)
        assert (await store.context("a")).id == fresh.id
        await store.settings(fresh.id, {"deleted": True}, rev=0)
        await store.settings(old.id, {"deleted": False}, rev=1)
        assert (await store.context("a")).id == old.id

    async def test_an_unknown_context_is_an_error_everywhere(self, store: StorageBackend) -> None:
        """What does not exist is never made up."""
        nobody = replace(await new(store), id="c_0000000000000000", key=None)
        calls = (
            store.context(nobody.id),
            store.head(nobody.id),
            store.read(nobody.id),
            store.settings(nobody.id, {}, rev=0),
            store.derived(nobody.id, "s"),
            store.missing("s", context=nobody.id, limit=1),
            store.put_derived(nobody.id, [Derived(version=1, space="s", data=b"")]),
            store.blank(nobody.id, [1], to=State.ERASED, audit={}),
            put(store, nobody, said("one")),
            fork(store, nobody),
        )
        await all_refused(calls, SessionNotFoundError)

    # ── append ──────────────────────────────────────────────────────────────────────────────────────────────────────

    async def test_appends_take_the_next_versions_and_messages_the_next_positions(
        self, store: StorageBackend
    ) -> None:
        """Versions count entries, positions count messages, totals count their tokens, and receipts say so."""
        context = await new(store)
        one = await put(store, context, said("a", tokens=5))
        two = await put(store, context, noted("b"), said("c", tokens=7), summed_up(1, 1), said("e", tokens=0))
        assert (one.versions, one.positions, one.repeated) == ((1, 1), (1,), False)
        assert (two.versions, two.positions) == ((2, 5), (None, 2, None, 3))
        assert one.durability == two.durability == store.durability
        entries = await sound(store, context.id)
        assert [entry.total for entry in entries] == [5, 5, 12, 12, 12]
        assert [entry.batch for entry in entries] == [1, 2, 2, 2, 2]
        assert [entry.id for entry in entries] == [*one.ids, *two.ids]
        assert [entry.chain for entry in entries] == [*one.chains, *two.chains]
        assert two.head == await store.head(context.id)
        assert (two.head.version, two.head.messages, two.head.tokens, two.head.rewrites) == (5, 3, 12, 1)
        assert two.head.last_message == two.ids[-1]
        assert {entry.state for entry in entries} == {State.LIVE}
        assert len({entry.salt for entry in entries}) == 5

    async def test_every_field_reads_back_as_it_was_written(self, store: StorageBackend) -> None:
        """Nothing is lost, trimmed, reordered or normalised on the way through a store."""
        context = await new(store)
        drafts = everything()
        await put(store, context, *drafts[:20])
        for draft in drafts[20:]:
            await put(store, context, draft)
        await store.aclose()
        entries = await sound(store, context.id)
        for draft, entry in zip(drafts, entries, strict=True):
            assert drafted(entry) == draft
            assert (entry.kind, entry.origin, entry.privacy, entry.role) == (
                draft.kind,
                draft.origin,
                draft.privacy,
                draft.role,
            )
        zero = next(entry.metadata["zero"] for entry in entries if "zero" in entry.metadata)
        assert math.copysign(1, zero) == -1
        assert await store.get([entry.id for entry in entries]) == entries

    async def test_the_tail_is_replaced_only_when_one_is_given(self, store: StorageBackend) -> None:
        """The notes about the end of a log travel with the append that changes them."""
        context = await new(store)
        await put(store, context, said("a"), tail={"episode": 1, "open": ["x"]})
        await put(store, context, said("b"))
        assert dict((await store.head(context.id)).tail) == {"episode": 1, "open": ["x"]}
        receipt = await put(store, context, said("c"), tail={"episode": 2})
        assert dict(receipt.head.tail) == {"episode": 2}
        await put(store, context, tail={})
        assert dict((await store.head(context.id)).tail) == {}

    async def test_an_append_without_drafts_moves_no_version(self, store: StorageBackend) -> None:
        """An append may carry only a job; it takes no place in the log."""
        context = await new(store)
        before = (await put(store, context, said("a"))).head
        receipt = await put(store, context, jobs=(JobDraft(kind="embed", dedupe="d"),))
        assert (receipt.head, receipt.ids, receipt.positions) == (before, (), ())
        assert len((await store.jobs(JobQuery())).items) == 1
        await sound(store, context.id)

    async def test_what_was_given_or_returned_cannot_change_the_log(self, store: StorageBackend) -> None:
        """A log keeps what was said, also when the caller goes on using the same objects."""
        context = await new(store)
        given = {"run": 1}
        await put(store, context, said("a", metadata=given, data=given), tail=given)
        given["run"] = 2
        for mapping in (
            (await store.read(context.id))[0].metadata,
            (await store.head(context.id)).tail,
            (await store.context(context.id)).settings,
        ):
            try:
                cast(Any, mapping)["run"] = 3
            except TypeError:
                continue
        (entry,) = await sound(store, context.id)
        assert (dict(entry.metadata), dict(entry.data)) == ({"run": 1}, {"run": 1})
        assert dict((await store.head(context.id)).tail) == {"run": 1}
        assert dict((await store.context(context.id)).settings) == {}

    async def test_an_expected_last_message_must_still_be_the_last(self, store: StorageBackend) -> None:
        """A writer that names the newest message it has seen never writes after one it has not."""
        context = await new(store)
        with pytest.raises(ConflictError):
            await put(store, context, said("a"), expect=Expect(last_message="m_0_1_000000"))
        one = await put(store, context, said("a"), expect=Expect(last_message=None))
        for stale in (None, "m_0_1_000000", one.ids[0][:-1] + "!"):
            with pytest.raises(ConflictError) as caught:
                await put(store, context, said("b"), expect=Expect(last_message=stale))
            assert caught.value.retryable
        two = await put(store, context, said("b"), expect=Expect(last_message=one.ids[0]))
        await put(store, context, noted("a fact is no message"), summed_up(1, 1))
        await put(store, context, said("c"), expect=Expect(last_message=two.ids[0]))
        await put(store, context, said("d"))
        assert [entry.content for entry in await store.read(context.id, kinds=[Kind.MESSAGE])] == [
            "a",
            "b",
            "c",
            "d",
        ]

    async def test_expected_rewrites_are_not_disturbed_by_new_messages(self, store: StorageBackend) -> None:
        """A worker that was overtaken by messages succeeds, one that was overtaken by a rewrite does not."""
        context = await new(store)
        await put(store, context, said("a"), said("b"))
        for n in range(3):
            await put(store, context, said(f"more {n}"), noted("a fact"))
        receipt = await put(store, context, summed_up(1, 1), expect=Expect(rewrites=0))
        assert receipt.head.rewrites == 1
        with pytest.raises(ConflictError) as caught:
            await put(store, context, summed_up(1, 2), expect=Expect(rewrites=0))
        assert caught.value.retryable
        await put(store, context, said("a better a", replaces=((1, 1),)), expect=Expect(rewrites=1))
        await put(store, context, taken_back(2, 3), expect=Expect(rewrites=2))
        for wrong in (0, 2, 4, -1):
            with pytest.raises(ConflictError):
                await put(store, context, said("late"), expect=Expect(rewrites=wrong))
        assert (await store.head(context.id)).rewrites == 3
        await sound(store, context.id)

    async def test_a_refused_operation_leaves_its_neighbours_alone(self, store: StorageBackend) -> None:
        """Operations of one call stand or fall alone, in order, and a refused one leaves no trace."""
        context, other = await new(store), await new(store)
        good = [said(f"good {n}", key=f"g{n}") for n in range(4)]
        job = JobDraft(kind="k", dedupe="of a refused append")
        results = await store.append(
            [
                Append(context=context.id, drafts=(good[0], said("with it"))),
                Append(
                    context=context.id, drafts=(said("bad"),), expect=Expect(last_message=None), jobs=(job,)
                ),
                Append(context=other.id, drafts=(good[1],)),
                Append(context="c_0000000000000000", drafts=(said("bad"),)),
                Append(
                    context=context.id,
                    drafts=(said("bad", key="b"), said("bad", replaces=((9, 9),))),
                    jobs=(job,),
                ),
                Append(context=context.id, drafts=(good[2],), expect=Expect(last_message=None, rewrites=3)),
                Append(context=context.id, drafts=(good[0],)),
                Append(context=context.id, drafts=(good[3],), expect=Expect(rewrites=0)),
            ]
        )
        shape = [type(result) for result in results]
        assert shape == [
            Receipt,
            ConflictError,
            Receipt,
            SessionNotFoundError,
            ValidationError,
            ConflictError,
            IdempotencyMismatchError if shape[6] is not Receipt else Receipt,
            Receipt,
        ]
        assert [entry.content for entry in await sound(store, context.id)] == ["good 0", "with it", "good 3"]
        assert [entry.content for entry in await sound(store, other.id)] == ["good 1"]
        repeat = results[6]
        assert isinstance(repeat, Receipt)
        assert (repeat.repeated, repeat.versions) == (True, (1, 1))
        assert (await store.jobs(JobQuery())).items == ()
        assert (await put(store, context, said("b is new", key="b"))).repeated is False

    async def test_t05_a_batch_with_one_bad_item_stores_nothing(self, store: StorageBackend) -> None:
        """An operation is all or nothing: item 7 of 10 is bad, so the version does not move."""
        context = await new(store)
        await put(store, context, said("before"), tail={"n": 1})
        before = await store.head(context.id)
        drafts = [said(f"item {n}", key=f"i{n}") for n in range(10)]
        drafts[7] = replace(drafts[7], replaces=((5, 99),))
        with pytest.raises(ValidationError):
            await put(store, context, *drafts, tail={"n": 2}, jobs=(JobDraft(kind="k", dedupe="d"),))
        assert await store.head(context.id) == before
        assert len(await sound(store, context.id)) == 1
        assert (await store.jobs(JobQuery())).items == ()
        drafts[7] = said("item 7", key="i7")
        assert (await put(store, context, *drafts)).versions == (2, 11)

    async def test_what_cannot_be_stored_is_refused_alone(self, store: StorageBackend) -> None:
        """A draft that slipped past the border harms nobody else: it is refused, or kept to the letter."""
        context, other = await new(store), await new(store)
        unfit = [
            said("\ud800"),
            said("x", actor="\udfff"),
            said("x", metadata={"object": object()}),
            said("x", tokens=2**70),
            said("x", data={"big": 10**5000}),
        ]
        for draft in unfit:
            before = await store.head(context.id)
            ops = [
                Append(context=other.id, drafts=(said("neighbour before"),)),
                Append(context=context.id, drafts=(said("with it"), draft)),
                Append(context=other.id, drafts=(said("neighbour after"),)),
            ]
            first, second, third = await store.append(ops)
            assert isinstance(first, Receipt)
            assert isinstance(third, Receipt)
            if isinstance(second, Receipt):
                assert drafted((await store.read(context.id, newest=1))[0]) == draft
            else:
                assert isinstance(second, ACMSError)
                assert await store.head(context.id) == before
        assert len(await sound(store, other.id)) == 2 * len(unfit)

    async def test_replacing_what_does_not_exist_is_refused(self, store: StorageBackend) -> None:
        """Only versions that are already in the log can be put out of force."""
        context = await new(store)
        await put(store, context, *[said(str(n)) for n in range(4)])
        for span in ((0, 1), (1, 5), (5, 5), (3, 2), (-1, 2), (2**40, 2**40)):
            with pytest.raises(ValidationError):
                await put(store, context, said("x"), said("y", replaces=((1, 1), span)))
        assert len(await sound(store, context.id)) == 4
        await put(store, context, said("y", replaces=((1, 1), (3, 4))))
        child = await fork(store, context, 2)
        with pytest.raises(ValidationError):
            await put(store, child, said("y", replaces=((3, 3),)))
        await put(store, child, said("y", replaces=((1, 2),)))

    # ── keys ────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def test_repeating_an_append_with_its_keys_changes_nothing(self, store: StorageBackend) -> None:
        """A repeat gets the first answer: the same versions, ids, positions and chain values."""
        context = await new(store)
        drafts = (
            said("a", key="1"),
            noted("b", key="2"),
            said("c", key="3", parts=(Text("c"),), metadata={"m": 1}),
        )
        job = JobDraft(kind="k", dedupe="d")
        first = await put(store, context, *drafts, jobs=(job,), tail={"n": 1})
        await put(store, context, said("later"), tail={"n": 2})
        head = await store.head(context.id)
        again = await put(
            store, context, *drafts, expect=Expect(last_message=None, rewrites=7), tail={"n": 1}
        )
        assert again.repeated
        assert not first.repeated
        assert (again.versions, again.ids, again.positions, again.chains) == (
            first.versions,
            first.ids,
            first.positions,
            first.chains,
        )
        assert again.head == head == await store.head(context.id)
        moved = [replace(draft, created_at=WHEN + timedelta(days=1)) for draft in drafts]
        assert (await put(store, context, *moved)).ids == first.ids
        assert (await put(store, context, drafts[1])).ids == first.ids[1:2]
        assert len(await sound(store, context.id)) == 4

    async def test_new_and_old_keys_do_not_mix(self, store: StorageBackend) -> None:
        """An append is all new or all repeat; anything else is the caller's mistake and stores nothing."""
        context = await new(store)
        await put(store, context, said("a", key="a"))
        for drafts in (
            (said("a", key="a"), said("b", key="b")),
            (said("b", key="b"), said("a", key="a")),
            (said("a", key="a"), said("no key")),
        ):
            with pytest.raises(IdempotencyMismatchError) as caught:
                await put(store, context, *drafts)
            assert not caught.value.retryable
        assert len(await sound(store, context.id)) == 1

    async def test_a_key_never_stands_for_two_bodies(self, store: StorageBackend) -> None:
        """The same key with another role, text, part, data, metadata or kind is refused."""
        context = await new(store)
        draft = said("a", key="a", metadata={"m": 1})
        await put(store, context, draft)
        for other in (
            replace(draft, content="b"),
            replace(draft, role=Role.ASSISTANT),
            replace(draft, kind=Kind.FACT),
            replace(draft, parts=(Text("a"),)),
            replace(draft, data={"x": 1}),
            replace(draft, metadata={"m": 2}),
            replace(draft, metadata={}),
        ):
            with pytest.raises(IdempotencyMismatchError):
                await put(store, context, other)
        assert (await put(store, context, draft)).repeated
        assert len(await sound(store, context.id)) == 1

    async def test_a_key_twice_in_one_append_is_refused(self, store: StorageBackend) -> None:
        """One append cannot say two things under one name, not even when it is a repeat."""
        context = await new(store)
        with pytest.raises(ValidationError):
            await put(store, context, said("a", key="a"), said("b", key="a"))
        await put(store, context, said("a", key="a"))
        with pytest.raises(ValidationError):
            await put(store, context, said("a", key="a"), said("a", key="a"))
        assert len(await sound(store, context.id)) == 1

    async def test_a_key_belongs_to_one_context(self, store: StorageBackend) -> None:
        """Two conversations may use the same keys, a fork and its parent too."""
        one, two = await new(store), await new(store)
        await put(store, one, said("of one", key="k"))
        assert not (await put(store, two, said("of two", key="k"))).repeated
        child = await fork(store, one)
        assert not (await put(store, child, said("of the child", key="k"))).repeated
        assert (await put(store, one, said("of one", key="k"))).versions == (1, 1)
        assert (await put(store, child, said("of the child", key="k"))).versions == (2, 2)
        for context in (one, two, child):
            await sound(store, context.id)

    async def test_t04_a_key_used_fifty_times_at_once_is_one_entry(self, store: StorageBackend) -> None:
        """However many tries arrive together, one is stored and all get the same answer."""
        context = await new(store)
        drafts = (said("a", key="a"), said("b", key="b"))
        receipts = await asyncio.gather(*[put(store, context, *drafts) for _ in range(50)])
        assert (
            len({(receipt.versions, receipt.ids, receipt.positions, receipt.chains) for receipt in receipts})
            == 1
        )
        assert sum(not receipt.repeated for receipt in receipts) == 1
        ops = [Append(context=context.id, drafts=(said("c", key="c"),)) for _ in range(10)]
        together = await store.append(ops)
        assert [isinstance(result, Receipt) and result.repeated for result in together] == [
            False,
            *[True] * 9,
        ]
        assert len(await sound(store, context.id)) == 3
        with pytest.raises(IdempotencyMismatchError):
            await put(store, context, said("another a", key="a"))

    # ── many writers ────────────────────────────────────────────────────────────────────────────────────────────────

    async def test_t01_a_crowd_of_writers_leaves_one_gapless_log(self, store: StorageBackend) -> None:
        """Every acknowledged append is there, under the version and the id that were acknowledged."""
        await self._crowd(store, *self.crowd)

    @pytest.mark.soak
    async def test_t01_a_crowd_of_32_writers_appends_ten_thousand(self, store: StorageBackend) -> None:
        """The same with 32 writers and 10,000 appends."""
        await self._crowd(store, 32, 10_000)

    async def _crowd(self, store: StorageBackend, writers: int, appends: int) -> None:
        context = await new(store)
        acknowledged: dict[int, tuple[str, str]] = {}

        async def write(writer: int) -> None:
            for n in range(appends // writers):
                text = f"writer {writer}, message {n}"
                receipt = await put(store, context, said(text))
                assert receipt.versions[0] not in acknowledged
                acknowledged[receipt.versions[0]] = (receipt.ids[0], text)

        await asyncio.gather(*[write(writer) for writer in range(writers)])
        entries = await sound(store, context.id)
        assert {entry.version: (entry.id, entry.content) for entry in entries} == acknowledged
        assert len(entries) == appends // writers * writers
        found = await store.get([id for id, _ in acknowledged.values()])
        assert [entry and entry.content for entry in found] == [text for _, text in acknowledged.values()]

    async def test_64_tasks_at_once_agree_on_one_order(self, store: StorageBackend) -> None:
        """Appends of several entries never interleave, and the order is the same for every reader."""
        context = await new(store)
        drafts = [[said(f"{task}.{n}") for n in range(1 + task % 3)] for task in range(64)]
        receipts = await asyncio.gather(*[put(store, context, *some) for some in drafts])
        entries = await sound(store, context.id)
        for task, receipt in enumerate(receipts):
            first, last = receipt.versions
            mine = entries[first - 1 : last]
            assert [entry.content for entry in mine] == [draft.content for draft in drafts[task]]
            assert [entry.id for entry in mine] == list(receipt.ids)
            assert {entry.batch for entry in mine} == {first}
        assert sorted(id for receipt in receipts for id in receipt.ids) == sorted(
            entry.id for entry in entries
        )

    async def test_t02_many_writers_of_many_contexts_share_one_context_per_key(
        self, store: StorageBackend
    ) -> None:
        """A context that all create at once is one context, with its first messages once."""
        opening = (said("hello", key="0"), said("how can I help?", key="1"))

        async def write(writer: int) -> None:
            for n in range(20):
                context = await new(store, f"c{(writer + n) % 20}")
                await put(store, context, *opening)
                await put(store, context, said(f"writer {writer}"))

        await asyncio.gather(*[write(writer) for writer in range(32)])
        contexts = (await store.contexts(ContextQuery(limit=100))).items
        assert sorted(context.key or "" for context in contexts) == sorted(f"c{n}" for n in range(20))
        for context in contexts:
            entries = await sound(store, context.id)
            assert [entry.content for entry in entries[:2]] == ["hello", "how can I help?"]
            assert sorted(entry.content for entry in entries[2:]) == sorted(f"writer {n}" for n in range(32))

    async def test_t03_of_two_appends_on_the_same_head_one_is_refused(self, store: StorageBackend) -> None:
        """There is no hidden branch: the loser is told, and the log is the winner's."""
        context = await new(store)
        last: str | None = None
        for n in range(10):
            tries = [
                put(store, context, said(f"{n}.{writer}"), expect=Expect(last_message=last))
                for writer in range(4)
            ]
            results = await asyncio.gather(*tries, return_exceptions=True)
            won = [result for result in results if isinstance(result, Receipt)]
            lost = [result for result in results if isinstance(result, ConflictError) and result.retryable]
            assert (len(won), len(lost)) == (1, 3)
            last = won[0].ids[0]
            assert (await store.head(context.id)).last_message == last
        assert len(await sound(store, context.id)) == 10

    async def test_t06_a_cancelled_append_is_there_or_not_there(self, store: StorageBackend) -> None:
        """A caller that gives up leaves all or nothing, and repeating it with its keys gives one row each."""
        context = await new(store)
        for turns in range(12):
            drafts = [said(f"{turns}.{n}", key=f"{turns}.{n}") for n in range(3)]
            task = asyncio.ensure_future(put(store, context, *drafts))
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            before = len(await store.read(context.id))
            assert before in (3 * turns, 3 * turns + 3)
            await put(store, context, *drafts)
            assert len(await sound(store, context.id)) == 3 * turns + 3

    # ── reading ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def test_reading_any_slice_equals_slicing_a_list(self, store: StorageBackend) -> None:
        """Bounds, kinds and limits select from a log what they select from a list, in a fork as in its parent."""
        choices = list(
            product(
                (None, -1, 0, 1, 6, 7, 8, 12, 99),  # at
                (0, 3, 6, 7, 9, 12, 40),  # after
                (None, 0, 1, 4, 7, 8, 13, 99),  # before
                (
                    None,
                    (),
                    (Kind.MESSAGE,),
                    (Kind.FACT, Kind.SUMMARY),
                    (Kind.MESSAGE, Kind.RETRACTION),
                    tuple(Kind),
                ),
                (False, True),  # replacing
                ((None, None), (0, None), (1, None), (3, None), (99, None), (None, 0), (None, 1), (None, 4)),
            )
        )
        draw = random.Random(7)
        for context in await mixed(store):
            log = await sound(store, context.id)
            for at, after, before, kinds, replacing, (newest, limit) in draw.sample(choices, 700):
                expected = [
                    entry
                    for entry in log
                    if entry.version > after
                    and (at is None or entry.version <= at)
                    and (before is None or entry.version < before)
                    and (kinds is None or entry.kind in kinds)
                    and (not replacing or entry.replaces)
                ]
                if newest is not None:
                    expected = expected[len(expected) - min(newest, len(expected)) :]
                found = await store.read(
                    context.id,
                    at=at,
                    after=after,
                    before=before,
                    kinds=kinds,
                    replacing=replacing,
                    newest=newest,
                    limit=limit,
                )
                asked = f"{at=} {after=} {before=} {kinds=} {replacing=} {newest=} {limit=}"
                assert found == expected[:limit], asked

    async def test_newest_and_limit_are_one_number_from_zero(self, store: StorageBackend) -> None:
        """Counting from both ends at once has no meaning, nor has less than nothing."""
        context = await new(store)
        for newest, limit in ((1, 1), (-1, None), (None, -1)):
            with pytest.raises(ValidationError):
                await store.read(context.id, newest=newest, limit=limit)
        assert await refused(store.missing("s", limit=-1), ValidationError)
        assert await store.missing("s", limit=0) == []

    async def test_a_long_log_reads_whole_and_in_pages(self, store: StorageBackend) -> None:
        """The size of a log changes nothing about what is read."""
        context = await new(store)
        for n in range(0, 1500, 500):
            await put(store, context, *[said(f"message {m}") for m in range(n, n + 500)])
        entries = await sound(store, context.id)
        assert [entry.content for entry in entries] == [f"message {n}" for n in range(1500)]
        pages: list[Entry] = []
        while page := await store.read(context.id, after=len(pages), limit=401):
            pages.extend(page)
        assert pages == entries
        assert await store.read(context.id, newest=700, at=1400) == entries[700:1400]

    async def test_t11_what_was_read_at_a_version_is_read_there_for_ever(self, store: StorageBackend) -> None:
        """Later appends, summaries, retractions, forks and deletions of forks change nothing at a version."""
        context = await new(store)
        then: list[list[Entry]] = [[]]
        for n in range(8):
            extra = {3: summed_up(1, 2), 5: taken_back(2), 6: said("edit", replaces=((1, 1),))}.get(n)
            await put(store, context, extra or said(str(n)))
            then.append(await store.read(context.id))
            assert await store.read(context.id, replacing=True) == [e for e in then[-1] if e.replaces]
        child = await fork(store, context, 4)
        await put(store, child, taken_back(1, 2))
        await store.settings(child.id, {"deleted": True}, rev=0)
        for at, entries in enumerate(then):
            assert await store.read(context.id, at=at) == entries
            assert await store.read(context.id, at=at, replacing=True) == [e for e in entries if e.replaces]

    async def test_an_id_finds_its_entry_and_only_its_entry(self, store: StorageBackend) -> None:
        """An id with the right place and another random end is an id of something that is not there."""
        one, two = await new(store), await new(store)
        ids = [*(await put(store, one, said("a"), noted("b"))).ids, *(await put(store, two, said("c"))).ids]
        assert [entry and entry.content for entry in await store.get([ids[2], ids[0], ids[2]])] == [
            "c",
            "a",
            "c",
        ]
        wrong_end = ids[0][:-1] + ("0" if ids[0][-1] != "0" else "1")
        wrong_kind = "f" + ids[0][1:]
        wrong_version = ids[0].replace("_1_", "_2_")
        other_spelling = ids[0].replace("_1_", "_01_")
        unknown = "m_0000000000000000_1_000000"
        wrong = [
            wrong_end,
            wrong_kind,
            wrong_version,
            other_spelling,
            unknown,
            one.id,
            ids[0].upper(),
            ids[0] + "0",
        ]
        assert await store.get(wrong) == [None] * len(wrong)
        assert await store.get([]) == []
        places = random.Random(7).sample(range(1, 2001), 60)
        await put(store, one, *[said(str(n)) for n in range(3, 2001)])
        scattered = [entry.id for entry in await store.read(one.id)]
        for _ in range(2):
            found = await store.get([scattered[place - 1] for place in places])
            assert [entry and entry.version for entry in found] == places
        many = [*ids, unknown] * 300
        assert [entry is not None for entry in await store.get(many)] == [True, True, True, False] * 300

    async def test_t35_hostile_names_find_nothing_and_break_nothing(self, store: StorageBackend) -> None:
        """Whatever is asked for, the answer is "not found" or "not valid", and never more than was asked for."""
        context = await new(store, "plain")
        await put(store, context, said("secret", markers=("goal",), key="k"), noted("secret"))
        await store.put_derived(context.id, [Derived(version=1, space="s", data=b"x")])
        await put(store, context, jobs=(JobDraft(kind="k", dedupe="d"),))
        lost = (SessionNotFoundError, ValidationError)
        for text in HOSTILE:
            assert await store.get([text]) == [None]
            found = await store.get([text, (await store.head(context.id)).last_message or ""])
            assert [entry is not None for entry in found] == [False, True]
            calls: list[Callable[[], Awaitable[object]]] = [
                lambda text=text: store.context(text),
                lambda text=text: store.context("plain", namespace=text),
                lambda text=text: store.head(text),
                lambda text=text: store.read(text),
                lambda text=text: store.settings(text, {"deleted": True}, rev=0),
                lambda text=text: store.derived(text, "s"),
                lambda text=text: store.blank(text, [1], to=State.ERASED, audit={}),
                lambda text=text: store.contexts(ContextQuery(after=text)),
                lambda text=text: new(store, parent=text),
                lambda text=text: put(store, replace(context, id=text), said("x")),
            ]
            for call in calls:
                assert await refused(call(), *lost), text[:40]
            empty: list[Callable[[], Awaitable[Any]]] = [
                lambda text=text: store.search(Search(namespace=text, terms=("secret",))),
                lambda text=text: store.search(Search(namespace="default", terms=(text,))),
                lambda text=text: store.search(Search(namespace="default", space=text, vector=(1.0,))),
                lambda text=text: store.derived(context.id, text),
                lambda text=text: store.missing("s", context=text, limit=9),
                lambda text=text: store.missing(text, context=context.id, limit=9, after=2**70),
                lambda text=text: store.claim([text], lease=timedelta(seconds=1)),
            ]
            for ask in empty:
                try:
                    assert list(await ask()) == [], text[:40]
                except lost:
                    continue
            for query in (
                ContextQuery(namespace=text),
                ContextQuery(parent=text),
                JobQuery(ids=(text,)),
                JobQuery(context=text),
            ):
                asked = store.contexts(query) if isinstance(query, ContextQuery) else store.jobs(query)
                try:
                    assert (await asked).items == (), text[:40]
                except lost:
                    continue
        assert len(await sound(store, context.id)) == 2

    async def test_t35_hostile_keys_are_judged_alike_by_all_stores(self, store: StorageBackend) -> None:
        """A name is accepted and reads back, or is refused as not valid; the reference store decides which."""
        reference = MemoryStorage()
        for text in HOSTILE:
            verdicts: list[list[bool]] = []
            for one in (reference, store):
                context = await new(one)
                verdicts.append(
                    [
                        await refused(new(one, text), ValidationError),
                        await refused(new(one, namespace=text), ValidationError),
                        await refused(put(one, context, said("x", key=text)), ValidationError),
                    ]
                )
                if not verdicts[-1][0]:
                    assert (await one.context(text)).key == text
                if not verdicts[-1][2]:
                    assert (await one.read(context.id))[0].key == text
            assert verdicts[0] == verdicts[1], text[:40]

    async def test_t35_numbers_out_of_range_select_nothing_or_everything(self, store: StorageBackend) -> None:
        """A bound that no log can reach is no error and no surprise."""
        context = await new(store)
        await put(store, context, said("a"), said("b"))
        huge = 2**63
        assert await store.read(context.id, after=huge) == []
        assert await store.read(context.id, after=2**31) == []
        assert await store.read(context.id, after=2**32) == []
        assert len(await store.read(context.id, at=huge, before=huge)) == 2
        assert await store.read(context.id, before=-huge) == []
        assert await store.blank(context.id, [0, -1, 3, 2**32, huge], to=State.ERASED, audit={}) == 0
        rows = [
            Derived(version=version, space="s", data=b"") for version in (0, -1, 3, 2**32, 2**32 + 1, huge)
        ]
        assert await store.put_derived(context.id, rows) == 0
        for at in (3, -1, huge):
            with pytest.raises(ValidationError):
                await fork(store, context, at)
        await sound(store, context.id)

    # ── forks ───────────────────────────────────────────────────────────────────────────────────────────────────────

    async def test_t10_a_fork_at_any_version_reads_exactly_what_was_there(
        self, store: StorageBackend
    ) -> None:
        """A fork starts with its parent's first versions, whatever either does afterwards."""
        parent, _ = await mixed(store)
        log = await store.read(parent.id)
        children: list[Context] = []
        for at in range(len(log) + 1):
            child = await fork(store, parent, at)
            assert (child.parent, child.fork, child.root) == (parent.id, at, parent.id)
            assert child.lineage == (((parent.id, at),) if at else ())
            assert await sound(store, child.id) == log[:at]
            children.append(child)
        assert (await fork(store, parent)).fork == len(log)
        await put(store, parent, said("of the parent"), summed_up(1, 3))
        for at, child in enumerate(children):
            receipt = await put(store, child, said(f"of child {at}"), noted("and a fact"))
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
            grandchild = await fork(store, child, at)
            expected = ((root.id, min(at, 7)),) if at else ()
            assert grandchild.lineage == (expected if at <= 7 else (*expected, (child.id, at)))
            assert (grandchild.parent, grandchild.root) == (child.id, root.id)
            assert await sound(store, grandchild.id) == log[:at]
            await put(store, grandchild, said("deeper"))
            assert [entry.version for entry in await sound(store, grandchild.id)] == list(range(1, at + 2))
        assert await sound(store, child.id) == log

    async def test_t12_a_fork_during_appends_is_a_snapshot(self, store: StorageBackend) -> None:
        """A fork never sees half an append nor a version above the one it says it was forked at."""
        parent = await new(store)
        await put(store, parent, said("start"))
        results = await asyncio.gather(
            *[
                put(store, parent, said(f"{n}.0"), said(f"{n}.1")) if n % 3 else fork(store, parent)
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
        context = await new(store)
        await put(store, context, said("0"))
        for depth in range(1, 65):
            context = await fork(store, context)
            await put(store, context, said(str(depth)))
        assert [entry.content for entry in await sound(store, context.id)] == [str(n) for n in range(65)]
        with pytest.raises(ForkDepthError) as caught:
            await fork(store, context)
        assert caught.value.options
        assert (await fork(store, context, 64)).fork == 64

    async def test_a_fork_is_created_once_per_key(self, store: StorageBackend) -> None:
        """Forking again under the same key returns the first fork."""
        parent = await new(store)
        await put(store, parent, said("a"), said("b"))
        first = await fork(store, parent, 1, key="f")
        assert await fork(store, parent, 2, key="f") == first

    async def test_a_fork_survives_the_deletion_of_its_parent(self, store: StorageBackend) -> None:
        """What a fork inherited lives as long as the fork."""
        parent = await new(store)
        await put(store, parent, said("a"), said("b"))
        child = await fork(store, parent, 1)
        await store.settings(parent.id, {"deleted": True}, rev=0)
        await put(store, child, said("c"))
        assert [entry.content for entry in await sound(store, child.id)] == ["a", "c"]
        assert [entry.content for entry in await sound(store, (await fork(store, child)).id)] == ["a", "c"]

    # ── verifying ───────────────────────────────────────────────────────────────────────────────────────────────────

    async def test_t45_one_changed_byte_is_found_and_located(self, store: StorageBackend) -> None:
        """Verification names the version at which a log no longer is what was written."""
        context = await new(store)
        await put(store, context, said("a"), said("the price is 100"), noted("c"))
        await put(store, context, said("d"))
        entries = await sound(store, context.id)
        start = genesis(context.id)
        for change in (
            {"content": "the price is 900"},
            {"role": Role.ASSISTANT},
            {"created_at": WHEN + timedelta(microseconds=1)},
            {"metadata": {"x": 1}},
            {"digest": bytes(32)},
            {"salt": bytes(16)},
        ):
            forged = [*entries[:1], replace(entries[1], **change), *entries[2:]]
            found = [version for version, _ in verify(forged, head=start, version=0)]
            assert found
            assert found[0] == 2
        without = [entries[0], *entries[2:]]
        assert next(version for version, _ in verify(without, head=start, version=0)) == 2

    # ── moving logs ─────────────────────────────────────────────────────────────────────────────────────────────────

    async def _family(self, store: StorageBackend) -> tuple[Context, Context, Context, Context]:
        """Write a log with forks, tombstones, keys and settings."""
        root, child = await mixed(store)
        grandchild = await fork(store, child, 9, key="grandchild", settings={"tags": ["x"]})
        await put(store, grandchild, *everything())
        at_zero = await fork(store, root, 0, namespace="n")
        await put(store, at_zero, said("from nothing"))
        await store.blank(root.id, [2], to=State.ERASED, audit={})
        await store.blank(child.id, [8, 9], to=State.EXPIRED, audit={})
        await store.settings(child.id, {"name": "B"}, rev=0)
        return root, child, grandchild, at_zero

    async def test_a_restored_log_is_the_same_log(self, store: StorageBackend) -> None:
        """Ids, versions, hashes, salts, tombstones and settings are verbatim, and writing goes on from there."""
        source = MemoryStorage()
        family = await self._family(source)
        await carry(source, store, *family)
        for context in family:
            assert await store.context(context.id) == await source.context(context.id)
            assert await sound(store, context.id) == await source.read(context.id)
            assert settled(await store.head(context.id)) == settled(await source.head(context.id))
        await carry(source, store, *family)
        last = family[2]
        keyed = next(draft for draft in everything() if draft.key is not None)
        assert (await put(store, last, keyed)).repeated
        receipt = await put(
            store, last, said("more"), expect=Expect(last_message=(await source.head(last.id)).last_message)
        )
        assert receipt.versions[0] == (await source.head(last.id)).version + 1
        await sound(store, last.id)
        assert await new(store, "mixed") == await store.context("mixed")

    async def test_an_exported_log_restores_elsewhere(self, store: StorageBackend) -> None:
        """What a store reads out is all that another one needs."""
        target = MemoryStorage()
        family = await self._family(store)
        await carry(store, target, *family)
        for context in family:
            assert await target.context(context.id) == await store.context(context.id)
            assert await sound(target, context.id) == await store.read(context.id)

    async def test_an_interrupted_restore_goes_on_where_it_stopped(self, store: StorageBackend) -> None:
        """Cut anywhere, also within one append, the second try completes the first."""
        source = MemoryStorage()
        for cut in range(10):
            context = await new(source, f"cut {cut}")
            for n in (1, 4, 2, 3):
                await put(source, context, *[said(f"{n}.{m}", key=f"{n}.{m}") for m in range(n)])
            entries = await source.read(context.id)

            async def broken(entries: Sequence[Entry] = entries[:cut]) -> AsyncIterator[Entry]:
                for entry in entries:
                    yield entry
                raise ConnectionError("the line went dead")

            with pytest.raises(ConnectionError):
                await store.restore(context, broken())
            await store.restore(context, stream(entries[:cut]))
            assert await sound(store, context.id) == entries[:cut]
            await store.restore(context, stream(entries))
            assert await sound(store, context.id) == entries
            assert settled(await store.head(context.id)) == settled(await source.head(context.id))

    async def test_restoring_over_another_log_is_refused(self, store: StorageBackend) -> None:
        """Neither an id nor a key of another log is taken over, and what is there stays."""
        ours, theirs = MemoryStorage(), MemoryStorage()
        context = await new(ours, "a")
        await put(ours, context, said("a"))
        await carry(ours, theirs, context)
        await put(ours, context, said("ours"))
        await put(theirs, context, said("theirs"), said("theirs too"))
        await carry(ours, store, context)
        log = await sound(store, context.id)
        with pytest.raises(ConflictError):
            await carry(theirs, store, context)
        stranger = MemoryStorage()
        with pytest.raises(ConflictError):
            await carry(stranger, store, await new(stranger, "a"))
        with pytest.raises(ConflictError):
            await store.restore(replace(context, key="b"), stream([]))
        assert await sound(store, context.id) == log
        assert [c.id for c in (await store.contexts(ContextQuery(deleted=True))).items] == [context.id]

    async def test_restoring_a_broken_log_is_refused(self, store: StorageBackend) -> None:
        """A log that does not verify, has gaps, or holds what belongs elsewhere never becomes part of a store."""
        source = MemoryStorage()
        for wrong in range(6):
            context, other = await new(source), await new(source)
            await put(source, context, said("a"), said("b"))
            await put(source, context, said("c"))
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
                await store.restore(context, stream(broken))
            for entry in await sound(store, context.id):
                assert entry in entries

    async def test_a_fork_is_restored_after_its_parent(self, store: StorageBackend) -> None:
        """Without its parent a fork is refused; a parent that was deleted is still a parent."""
        source = MemoryStorage()
        root, child = await mixed(source)
        with pytest.raises(ConflictError):
            await carry(source, store, child)
        assert await refused(store.context(child.id), SessionNotFoundError)
        entries = await source.read(root.id)
        deleted = await source.settings(root.id, {"deleted": True}, rev=0)
        await store.restore(deleted, stream(entries))
        assert (await store.context(root.id)).deleted_at is not None
        await carry(source, store, child)
        assert await sound(store, child.id) == await source.read(child.id)

    # ── search ──────────────────────────────────────────────────────────────────────────────────────────────────────

    async def test_a_search_stays_in_its_namespace(self, store: StorageBackend) -> None:
        """Facts, summaries and marked messages of the live contexts of one namespace are found, and nothing else."""
        one, two = await new(store, namespace="ana"), await new(store, namespace="ana")
        other = await new(store, namespace="ben")
        a = await put(
            store, one, noted("Ana likes red wine"), said("wine, wine, wine"), noted("Ana lives in Rome")
        )
        b = await put(store, two, said("no more wine", markers=("decision",)))
        c = await put(store, two, summed_up(1, 1, content="about wine"))
        await put(store, other, noted("Ben likes red wine"))
        query = Search(namespace="ana", terms=("red", "wine"))
        hits = await store.search(query)
        assert {hit.id for hit in hits} == {a.ids[0], b.ids[0], c.ids[0]}
        assert hits[0].id == a.ids[0]
        assert hits[0].context == one.id
        assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
        assert [hit.id for hit in await store.search(replace(query, limit=1))] == [a.ids[0]]
        await store.blank(one.id, [1], to=State.ERASED, audit={})
        await store.settings(two.id, {"deleted": True}, rev=0)
        assert await store.search(query) == []
        assert len(await store.search(replace(query, namespace="ben"))) == 1
        assert await store.search(replace(query, namespace="nobody")) == []

    # ── tenants and handles ─────────────────────────────────────────────────────────────────────────────────────────

    async def test_t33_two_tenants_see_nothing_of_each_other(
        self, store: StorageBackend, other_tenant: StorageBackend
    ) -> None:
        """The same keys, names and even ids of two tenants are two worlds."""
        mine = await new(store, "a", namespace="n")
        receipt = await put(
            store, mine, noted("my secret", key="k"), said("b"), jobs=(JobDraft(kind="k", dedupe="d"),)
        )
        await store.put_derived(mine.id, [Derived(version=1, space="s", data=packed(1.0))])
        assert other_tenant.tenant != store.tenant
        calls = (
            other_tenant.context(mine.id),
            other_tenant.context("a", namespace="n"),
            other_tenant.head(mine.id),
            other_tenant.read(mine.id),
            other_tenant.derived(mine.id, "s"),
            other_tenant.missing("t", context=mine.id, limit=1),
            other_tenant.put_derived(mine.id, [Derived(version=1, space="s", data=b"")]),
            other_tenant.blank(mine.id, [1], to=State.ERASED, audit={}),
            other_tenant.settings(mine.id, {"deleted": True}, rev=0),
            put(other_tenant, mine, said("intruder")),
            fork(other_tenant, mine),
        )
        await all_refused(calls, SessionNotFoundError)
        assert await other_tenant.get(receipt.ids) == [None, None]
        assert (await other_tenant.contexts(ContextQuery(deleted=True))).items == ()
        assert await other_tenant.search(Search(namespace="n", terms=("secret",))) == []
        assert await other_tenant.search(Search(namespace="n", space="s", vector=(1.0,))) == []
        assert await other_tenant.missing("t", limit=9) == []
        assert (await other_tenant.jobs(JobQuery())).items == ()
        assert await other_tenant.claim(["k"], lease=timedelta(minutes=1)) == []
        (lease,) = await store.claim(["k"], lease=timedelta(minutes=1))
        theirs = await new(other_tenant, "a", namespace="n")
        assert theirs.id != mine.id
        calls = (
            other_tenant.settle(lease, Done()),
            other_tenant.extend(lease, by=timedelta(minutes=1)),
            put(other_tenant, theirs, finish=lease),
        )
        await all_refused(calls, LeaseLostError, GoneError)
        await put(other_tenant, theirs, said("their k", key="k"), jobs=(JobDraft(kind="k", dedupe="d"),))
        assert len((await other_tenant.jobs(JobQuery())).items) == 1
        await other_tenant.restore(replace(mine, key=None), stream([]))
        assert (await other_tenant.head(mine.id)).version == 0
        assert [entry.content for entry in await sound(store, mine.id)] == ["my secret", "b"]
        assert [entry.content for entry in await sound(other_tenant, theirs.id)] == ["their k"]

    async def test_a_closed_store_opens_again(self, store: StorageBackend) -> None:
        """Closing is idempotent, and the next call finds everything as it was."""
        context = await new(store, "a")
        receipt = await put(store, context, said("a", key="k"), jobs=(JobDraft(kind="k", dedupe="d"),))
        await store.aclose()
        await store.aclose()
        assert await store.head(context.id) == receipt.head
        assert (await put(store, context, said("a", key="k"))).repeated
        assert len((await store.jobs(JobQuery())).items) == 1
        await sound(store, context.id)
