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
import random
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from itertools import product
from typing import Any

import pytest

from acms import ConflictError, Entry, GoneError, Kind, SessionNotFoundError, State, ValidationError
from acms.errors import LeaseLostError
from acms.log.encoding import genesis_hash
from acms.model import Context, ContextQuery, Derived, Done, Head, JobDraft, JobQuery, Search
from acms.ports import StorageBackend
from acms.storage import MemoryStorage
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
    pack_vector,
    stream_entries,
)
from tests.storage.suite.appends import AppendTests
from tests.storage.suite.erasure import ErasureTests
from tests.storage.suite.forks import ForkTests
from tests.storage.suite.jobs import JobTests
from tests.storage.suite.logs import all_refused, is_refused, mixed
from tests.storage.suite.records import RecordTests
from tests.storage.suite.vectors import VectorTests

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


class StorageBackendTests(AppendTests, ForkTests, VectorTests, ErasureTests, JobTests, RecordTests):
    """Everything a store promises; subclass it and give it a store."""

    #: True when the store is made with the fixture `clock`, so that a lease can run out.
    takes_clock = False

    @pytest.fixture
    def clock(self) -> ManualClock:
        """Return the clock to make the store with."""
        return ManualClock()

    # ── contexts ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def test_a_new_context_is_what_was_asked_for(self, store: StorageBackend) -> None:
        """A new context says what its draft said and starts with an empty log."""
        context = await create_log(
            store, "a", namespace="n", settings={"name": "A", "tags": ["x"]}, counter="bytes"
        )
        assert context == await store.context(context.id)
        assert (context.key, context.namespace, context.counter) == ("a", "n", "bytes")
        assert (context.root, context.parent, context.fork, context.lineage) == (context.id, None, None, ())
        assert (dict(context.settings), context.settings_rev) == ({"name": "A", "tags": ["x"]}, 0)
        assert (context.created_at, context.deleted_at) == (WHEN, None)
        assert await store.head(context.id) == Head(context=context.id, chain=genesis_hash(context.id))
        assert await sound(store, context.id) == []

    async def test_creating_a_key_again_returns_the_live_context(self, store: StorageBackend) -> None:
        """A key names one live context of a namespace, and creating it again changes nothing."""
        first = await create_log(store, "a", settings={"name": "A"})
        await append_drafts(store, first, draft_message("one"))
        assert await create_log(store, "a", settings={"name": "B"}, counter="other") == first
        assert (await store.head(first.id)).version == 1
        assert (await create_log(store, "a", namespace="other")).id != first.id
        assert (await create_log(store)).id != (await create_log(store)).id

    async def test_a_context_is_found_by_key_and_by_id(self, store: StorageBackend) -> None:
        """A key is looked up in its namespace only, an id everywhere."""
        one, two = await create_log(store, "a"), await create_log(store, "a", namespace="n")
        assert await store.context("a") == one
        assert await store.context("a", namespace="n") == two
        assert await store.context(two.id) == two
        assert await is_refused(store.context("a", namespace="elsewhere"), SessionNotFoundError)

    async def test_contexts_are_listed_newest_first_in_pages(self, store: StorageBackend) -> None:
        """Every context is on exactly one page, and the last page says that it is the last."""
        made = [await create_log(store, f"k{n}", namespace="odd" if n % 2 else "even") for n in range(7)]
        child = await fork_log(store, made[1])
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
        context = await create_log(store, settings={"name": "A", "tags": ["x"]})
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
        context = await create_log(store, "a")
        receipt = await append_drafts(
            store, context, draft_message("one", markers=("goal",)), draft_fact("wine")
        )
        child = await fork_log(store, context)
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
            append_drafts(store, context, draft_message("late")),
            fork_log(store, context, 1),
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
        old = await create_log(store, "a")
        await append_drafts(store, old, draft_message("old"))
        await store.settings(old.id, {"deleted": True}, rev=0)
        fresh = await create_log(store, "a")
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
        nobody = replace(await create_log(store), id="c_0000000000000000", key=None)
        calls = (
            store.context(nobody.id),
            store.head(nobody.id),
            store.read(nobody.id),
            store.settings(nobody.id, {}, rev=0),
            store.derived(nobody.id, "s"),
            store.missing("s", context=nobody.id, limit=1),
            store.put_derived(nobody.id, [Derived(version=1, space="s", data=b"")]),
            store.blank(nobody.id, [1], to=State.ERASED, audit={}),
            append_drafts(store, nobody, draft_message("one")),
            fork_log(store, nobody),
        )
        await all_refused(calls, SessionNotFoundError)

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
        context = await create_log(store)
        for newest, limit in ((1, 1), (-1, None), (None, -1)):
            with pytest.raises(ValidationError):
                await store.read(context.id, newest=newest, limit=limit)
        assert await is_refused(store.missing("s", limit=-1), ValidationError)
        assert await store.missing("s", limit=0) == []

    async def test_a_long_log_reads_whole_and_in_pages(self, store: StorageBackend) -> None:
        """The size of a log does not change the results of a read."""
        context = await create_log(store)
        for n in range(0, 1500, 500):
            await append_drafts(store, context, *[draft_message(f"message {m}") for m in range(n, n + 500)])
        entries = await sound(store, context.id)
        assert [entry.content for entry in entries] == [f"message {n}" for n in range(1500)]
        pages: list[Entry] = []
        while page := await store.read(context.id, after=len(pages), limit=401):
            pages.extend(page)
        assert pages == entries
        assert await store.read(context.id, newest=700, at=1400) == entries[700:1400]

    async def test_t11_what_was_read_at_a_version_is_read_there_for_ever(self, store: StorageBackend) -> None:
        """Later appends, summaries, retractions, forks and deletions of forks change nothing at a version."""
        context = await create_log(store)
        then: list[list[Entry]] = [[]]
        for n in range(8):
            extra = {
                3: draft_summary(1, 2),
                5: draft_retraction(2),
                6: draft_message("edit", replaces=((1, 1),)),
            }.get(n)
            await append_drafts(store, context, extra or draft_message(str(n)))
            then.append(await store.read(context.id))
            assert await store.read(context.id, replacing=True) == [e for e in then[-1] if e.replaces]
        child = await fork_log(store, context, 4)
        await append_drafts(store, child, draft_retraction(1, 2))
        await store.settings(child.id, {"deleted": True}, rev=0)
        for at, entries in enumerate(then):
            assert await store.read(context.id, at=at) == entries
            assert await store.read(context.id, at=at, replacing=True) == [e for e in entries if e.replaces]

    async def test_an_id_finds_its_entry_and_only_its_entry(self, store: StorageBackend) -> None:
        """An id with the right place and another random end is an id of something that is not there."""
        one, two = await create_log(store), await create_log(store)
        ids = [
            *(await append_drafts(store, one, draft_message("a"), draft_fact("b"))).ids,
            *(await append_drafts(store, two, draft_message("c"))).ids,
        ]
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
        await append_drafts(store, one, *[draft_message(str(n)) for n in range(3, 2001)])
        scattered = [entry.id for entry in await store.read(one.id)]
        for _ in range(2):
            found = await store.get([scattered[place - 1] for place in places])
            assert [entry and entry.version for entry in found] == places
        many = [*ids, unknown] * 300
        assert [entry is not None for entry in await store.get(many)] == [True, True, True, False] * 300

    async def test_t35_hostile_names_find_nothing_and_break_nothing(self, store: StorageBackend) -> None:
        """Whatever is asked for, the answer is "not found" or "not valid", and never more than was asked for."""
        context = await create_log(store, "plain")
        await append_drafts(
            store, context, draft_message("secret", markers=("goal",), key="k"), draft_fact("secret")
        )
        await store.put_derived(context.id, [Derived(version=1, space="s", data=b"x")])
        await append_drafts(store, context, jobs=(JobDraft(kind="k", dedupe="d"),))
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
                lambda text=text: create_log(store, parent=text),
                lambda text=text: append_drafts(store, replace(context, id=text), draft_message("x")),
            ]
            for call in calls:
                assert await is_refused(call(), *lost), text[:40]
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
                context = await create_log(one)
                verdicts.append(
                    [
                        await is_refused(create_log(one, text), ValidationError),
                        await is_refused(create_log(one, namespace=text), ValidationError),
                        await is_refused(
                            append_drafts(one, context, draft_message("x", key=text)), ValidationError
                        ),
                    ]
                )
                if not verdicts[-1][0]:
                    assert (await one.context(text)).key == text
                if not verdicts[-1][2]:
                    assert (await one.read(context.id))[0].key == text
            assert verdicts[0] == verdicts[1], text[:40]

    async def test_t35_numbers_out_of_range_select_nothing_or_everything(self, store: StorageBackend) -> None:
        """A bound that no log can reach is no error and no surprise."""
        context = await create_log(store)
        await append_drafts(store, context, draft_message("a"), draft_message("b"))
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
                await fork_log(store, context, at)
        await sound(store, context.id)

    # ── search ──────────────────────────────────────────────────────────────────────────────────────────────────────

    async def test_a_search_stays_in_its_namespace(self, store: StorageBackend) -> None:
        """Facts, summaries and marked messages of the live contexts of one namespace are found, and nothing else."""
        one, two = await create_log(store, namespace="ana"), await create_log(store, namespace="ana")
        other = await create_log(store, namespace="ben")
        a = await append_drafts(
            store,
            one,
            draft_fact("Ana likes red wine"),
            draft_message("wine, wine, wine"),
            draft_fact("Ana lives in Rome"),
        )
        b = await append_drafts(store, two, draft_message("no more wine", markers=("decision",)))
        c = await append_drafts(store, two, draft_summary(1, 1, content="about wine"))
        await append_drafts(store, other, draft_fact("Ben likes red wine"))
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
        mine = await create_log(store, "a", namespace="n")
        receipt = await append_drafts(
            store,
            mine,
            draft_fact("my secret", key="k"),
            draft_message("b"),
            jobs=(JobDraft(kind="k", dedupe="d"),),
        )
        await store.put_derived(mine.id, [Derived(version=1, space="s", data=pack_vector(1.0))])
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
            append_drafts(other_tenant, mine, draft_message("intruder")),
            fork_log(other_tenant, mine),
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
        theirs = await create_log(other_tenant, "a", namespace="n")
        assert theirs.id != mine.id
        calls = (
            other_tenant.settle(lease, Done()),
            other_tenant.extend(lease, by=timedelta(minutes=1)),
            append_drafts(other_tenant, theirs, finish=lease),
        )
        await all_refused(calls, LeaseLostError, GoneError)
        await append_drafts(
            other_tenant, theirs, draft_message("their k", key="k"), jobs=(JobDraft(kind="k", dedupe="d"),)
        )
        assert len((await other_tenant.jobs(JobQuery())).items) == 1
        await other_tenant.restore(replace(mine, key=None), stream_entries([]))
        assert (await other_tenant.head(mine.id)).version == 0
        assert [entry.content for entry in await sound(store, mine.id)] == ["my secret", "b"]
        assert [entry.content for entry in await sound(other_tenant, theirs.id)] == ["their k"]

    async def test_a_closed_store_opens_again(self, store: StorageBackend) -> None:
        """Closing is idempotent, and the next call finds everything as it was."""
        context = await create_log(store, "a")
        receipt = await append_drafts(
            store, context, draft_message("a", key="k"), jobs=(JobDraft(kind="k", dedupe="d"),)
        )
        await store.aclose()
        await store.aclose()
        assert await store.head(context.id) == receipt.head
        assert (await append_drafts(store, context, draft_message("a", key="k"))).repeated
        assert len((await store.jobs(JobQuery())).items) == 1
        await sound(store, context.id)
