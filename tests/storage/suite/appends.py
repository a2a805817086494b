"""What a store promises about appends: versions, positions, preconditions, keys, and many writers at once."""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace
from datetime import timedelta
from typing import Any, cast

import pytest

from acms import (
    ACMSError,
    ConflictError,
    IdempotencyMismatchError,
    Kind,
    Role,
    SessionNotFoundError,
    State,
    Text,
    ValidationError,
)
from acms.model import Append, ContextQuery, Expect, JobDraft, JobQuery, Receipt
from acms.ports import StorageBackend
from acms.testing import sound
from acms.testing.logs import (
    WHEN,
    append_drafts,
    create_log,
    draft_fact,
    draft_message,
    draft_of_entry,
    draft_retraction,
    draft_summary,
    fork_log,
)
from tests.storage.suite.logs import every_draft


class AppendTests:
    """Appends, keys and many writers; `StorageBackendTests` inherits it."""

    #: Writers and appends of the crowd test; twice as many writers share contexts.
    crowd = (16, 800)

    # ── append ──────────────────────────────────────────────────────────────────────────────────────────────────────

    async def test_appends_take_the_next_versions_and_messages_the_next_positions(
        self, store: StorageBackend
    ) -> None:
        """Versions count entries, positions count messages, totals count their tokens, and receipts say so."""
        context = await create_log(store)
        one = await append_drafts(store, context, draft_message("a", tokens=5))
        two = await append_drafts(
            store,
            context,
            draft_fact("b"),
            draft_message("c", tokens=7),
            draft_summary(1, 1),
            draft_message("e", tokens=0),
        )
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
        context = await create_log(store)
        drafts = every_draft()
        await append_drafts(store, context, *drafts[:20])
        for draft in drafts[20:]:
            await append_drafts(store, context, draft)
        await store.aclose()
        entries = await sound(store, context.id)
        for draft, entry in zip(drafts, entries, strict=True):
            assert draft_of_entry(entry) == draft
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
        context = await create_log(store)
        await append_drafts(store, context, draft_message("a"), tail={"episode": 1, "open": ["x"]})
        await append_drafts(store, context, draft_message("b"))
        assert dict((await store.head(context.id)).tail) == {"episode": 1, "open": ["x"]}
        receipt = await append_drafts(store, context, draft_message("c"), tail={"episode": 2})
        assert dict(receipt.head.tail) == {"episode": 2}
        await append_drafts(store, context, tail={})
        assert dict((await store.head(context.id)).tail) == {}

    async def test_an_append_without_drafts_moves_no_version(self, store: StorageBackend) -> None:
        """An append may carry only a job; it takes no place in the log."""
        context = await create_log(store)
        before = (await append_drafts(store, context, draft_message("a"))).head
        receipt = await append_drafts(store, context, jobs=(JobDraft(kind="embed", dedupe="d"),))
        assert (receipt.head, receipt.ids, receipt.positions) == (before, (), ())
        assert len((await store.jobs(JobQuery())).items) == 1
        await sound(store, context.id)

    async def test_what_was_given_or_returned_cannot_change_the_log(self, store: StorageBackend) -> None:
        """A log keeps what was said, also when the caller goes on using the same objects."""
        context = await create_log(store)
        given = {"run": 1}
        await append_drafts(store, context, draft_message("a", metadata=given, data=given), tail=given)
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
        context = await create_log(store)
        with pytest.raises(ConflictError):
            await append_drafts(
                store, context, draft_message("a"), expect=Expect(last_message="m_0_1_000000")
            )
        one = await append_drafts(store, context, draft_message("a"), expect=Expect(last_message=None))
        for stale in (None, "m_0_1_000000", one.ids[0][:-1] + "!"):
            with pytest.raises(ConflictError) as caught:
                await append_drafts(store, context, draft_message("b"), expect=Expect(last_message=stale))
            assert caught.value.retryable
        two = await append_drafts(store, context, draft_message("b"), expect=Expect(last_message=one.ids[0]))
        await append_drafts(store, context, draft_fact("a fact is no message"), draft_summary(1, 1))
        await append_drafts(store, context, draft_message("c"), expect=Expect(last_message=two.ids[0]))
        await append_drafts(store, context, draft_message("d"))
        assert [entry.content for entry in await store.read(context.id, kinds=[Kind.MESSAGE])] == [
            "a",
            "b",
            "c",
            "d",
        ]

    async def test_expected_rewrites_are_not_disturbed_by_new_messages(self, store: StorageBackend) -> None:
        """A worker that was overtaken by messages succeeds, one that was overtaken by a rewrite does not."""
        context = await create_log(store)
        await append_drafts(store, context, draft_message("a"), draft_message("b"))
        for n in range(3):
            await append_drafts(store, context, draft_message(f"more {n}"), draft_fact("a fact"))
        receipt = await append_drafts(store, context, draft_summary(1, 1), expect=Expect(rewrites=0))
        assert receipt.head.rewrites == 1
        with pytest.raises(ConflictError) as caught:
            await append_drafts(store, context, draft_summary(1, 2), expect=Expect(rewrites=0))
        assert caught.value.retryable
        await append_drafts(
            store, context, draft_message("a better a", replaces=((1, 1),)), expect=Expect(rewrites=1)
        )
        await append_drafts(store, context, draft_retraction(2, 3), expect=Expect(rewrites=2))
        for wrong in (0, 2, 4, -1):
            with pytest.raises(ConflictError):
                await append_drafts(store, context, draft_message("late"), expect=Expect(rewrites=wrong))
        assert (await store.head(context.id)).rewrites == 3
        await sound(store, context.id)

    async def test_a_refused_operation_leaves_its_neighbours_alone(self, store: StorageBackend) -> None:
        """Operations of one call stand or fall alone, in order, and a refused one leaves no trace."""
        context, other = await create_log(store), await create_log(store)
        good = [draft_message(f"good {n}", key=f"g{n}") for n in range(4)]
        job = JobDraft(kind="k", dedupe="of a refused append")
        results = await store.append(
            [
                Append(context=context.id, drafts=(good[0], draft_message("with it"))),
                Append(
                    context=context.id,
                    drafts=(draft_message("bad"),),
                    expect=Expect(last_message=None),
                    jobs=(job,),
                ),
                Append(context=other.id, drafts=(good[1],)),
                Append(context="c_0000000000000000", drafts=(draft_message("bad"),)),
                Append(
                    context=context.id,
                    drafts=(draft_message("bad", key="b"), draft_message("bad", replaces=((9, 9),))),
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
        assert (await append_drafts(store, context, draft_message("b is new", key="b"))).repeated is False

    async def test_t05_a_batch_with_one_bad_item_stores_nothing(self, store: StorageBackend) -> None:
        """An operation is all or nothing: item 7 of 10 is bad, so the version does not move."""
        context = await create_log(store)
        await append_drafts(store, context, draft_message("before"), tail={"n": 1})
        before = await store.head(context.id)
        drafts = [draft_message(f"item {n}", key=f"i{n}") for n in range(10)]
        drafts[7] = replace(drafts[7], replaces=((5, 99),))
        with pytest.raises(ValidationError):
            await append_drafts(
                store, context, *drafts, tail={"n": 2}, jobs=(JobDraft(kind="k", dedupe="d"),)
            )
        assert await store.head(context.id) == before
        assert len(await sound(store, context.id)) == 1
        assert (await store.jobs(JobQuery())).items == ()
        drafts[7] = draft_message("item 7", key="i7")
        assert (await append_drafts(store, context, *drafts)).versions == (2, 11)

    async def test_what_cannot_be_stored_is_refused_alone(self, store: StorageBackend) -> None:
        """A draft that slipped past the border harms nobody else: it is refused, or kept to the letter."""
        context, other = await create_log(store), await create_log(store)
        unfit = [
            draft_message("\ud800"),
            draft_message("x", actor="\udfff"),
            draft_message("x", metadata={"object": object()}),
            draft_message("x", tokens=2**70),
            draft_message("x", data={"big": 10**5000}),
        ]
        for draft in unfit:
            before = await store.head(context.id)
            ops = [
                Append(context=other.id, drafts=(draft_message("neighbour before"),)),
                Append(context=context.id, drafts=(draft_message("with it"), draft)),
                Append(context=other.id, drafts=(draft_message("neighbour after"),)),
            ]
            first, second, third = await store.append(ops)
            assert isinstance(first, Receipt)
            assert isinstance(third, Receipt)
            if isinstance(second, Receipt):
                assert draft_of_entry((await store.read(context.id, newest=1))[0]) == draft
            else:
                assert isinstance(second, ACMSError)
                assert await store.head(context.id) == before
        assert len(await sound(store, other.id)) == 2 * len(unfit)

    async def test_replacing_what_does_not_exist_is_refused(self, store: StorageBackend) -> None:
        """Only versions that are already in the log can be put out of force."""
        context = await create_log(store)
        await append_drafts(store, context, *[draft_message(str(n)) for n in range(4)])
        for span in ((0, 1), (1, 5), (5, 5), (3, 2), (-1, 2), (2**40, 2**40)):
            with pytest.raises(ValidationError):
                await append_drafts(
                    store, context, draft_message("x"), draft_message("y", replaces=((1, 1), span))
                )
        assert len(await sound(store, context.id)) == 4
        await append_drafts(store, context, draft_message("y", replaces=((1, 1), (3, 4))))
        child = await fork_log(store, context, 2)
        with pytest.raises(ValidationError):
            await append_drafts(store, child, draft_message("y", replaces=((3, 3),)))
        await append_drafts(store, child, draft_message("y", replaces=((1, 2),)))

    # ── keys ────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def test_repeating_an_append_with_its_keys_changes_nothing(self, store: StorageBackend) -> None:
        """A repeat gets the first answer: the same versions, ids, positions and chain values."""
        context = await create_log(store)
        drafts = (
            draft_message("a", key="1"),
            draft_fact("b", key="2"),
            draft_message("c", key="3", parts=(Text("c"),), metadata={"m": 1}),
        )
        job = JobDraft(kind="k", dedupe="d")
        first = await append_drafts(store, context, *drafts, jobs=(job,), tail={"n": 1})
        await append_drafts(store, context, draft_message("later"), tail={"n": 2})
        head = await store.head(context.id)
        again = await append_drafts(
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
        assert (await append_drafts(store, context, *moved)).ids == first.ids
        assert (await append_drafts(store, context, drafts[1])).ids == first.ids[1:2]
        assert len(await sound(store, context.id)) == 4

    async def test_new_and_old_keys_do_not_mix(self, store: StorageBackend) -> None:
        """An append is all new or all repeat; anything else is the caller's mistake and stores nothing."""
        context = await create_log(store)
        await append_drafts(store, context, draft_message("a", key="a"))
        for drafts in (
            (draft_message("a", key="a"), draft_message("b", key="b")),
            (draft_message("b", key="b"), draft_message("a", key="a")),
            (draft_message("a", key="a"), draft_message("no key")),
        ):
            with pytest.raises(IdempotencyMismatchError) as caught:
                await append_drafts(store, context, *drafts)
            assert not caught.value.retryable
        assert len(await sound(store, context.id)) == 1

    async def test_a_key_never_stands_for_two_bodies(self, store: StorageBackend) -> None:
        """The same key with another role, text, part, data, metadata or kind is refused."""
        context = await create_log(store)
        draft = draft_message("a", key="a", metadata={"m": 1})
        await append_drafts(store, context, draft)
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
                await append_drafts(store, context, other)
        assert (await append_drafts(store, context, draft)).repeated
        assert len(await sound(store, context.id)) == 1

    async def test_a_key_twice_in_one_append_is_refused(self, store: StorageBackend) -> None:
        """One append cannot say two things under one name, not even when it is a repeat."""
        context = await create_log(store)
        with pytest.raises(ValidationError):
            await append_drafts(store, context, draft_message("a", key="a"), draft_message("b", key="a"))
        await append_drafts(store, context, draft_message("a", key="a"))
        with pytest.raises(ValidationError):
            await append_drafts(store, context, draft_message("a", key="a"), draft_message("a", key="a"))
        assert len(await sound(store, context.id)) == 1

    async def test_a_key_belongs_to_one_context(self, store: StorageBackend) -> None:
        """Two conversations may use the same keys, and so may a fork and its parent after the fork."""
        one, two = await create_log(store), await create_log(store)
        await append_drafts(store, one, draft_message("of one", key="k"))
        assert not (await append_drafts(store, two, draft_message("of two", key="k"))).repeated
        child = await fork_log(store, one)
        assert not (await append_drafts(store, one, draft_message("of one, later", key="l"))).repeated
        assert not (
            await append_drafts(
                store, child, draft_message("between"), draft_message("of the child", key="l")
            )
        ).repeated
        assert (await append_drafts(store, one, draft_message("of one, later", key="l"))).versions == (2, 2)
        assert (await append_drafts(store, child, draft_message("of the child", key="l"))).versions == (3, 3)
        for context in (one, two, child):
            await sound(store, context.id)

    async def test_a_fork_knows_the_keys_that_it_inherits(self, store: StorageBackend) -> None:
        """What was said before the fork is not said again: its keys are those of one log, until it is erased."""
        parent = await create_log(store)
        first = await append_drafts(store, parent, draft_message("a", key="a"), draft_message("b", key="b"))
        child = await fork_log(store, parent)
        own = await append_drafts(store, child, draft_message("c", key="c"))
        grandchild = await fork_log(store, child)
        await append_drafts(store, parent, draft_message("too late", key="d"))
        for context in (child, grandchild):
            again = await append_drafts(
                store,
                context,
                draft_message("b", key="b"),
                draft_message("a", key="a"),
                draft_message("c", key="c"),
            )
            assert again.repeated
            assert again.ids == (*reversed(first.ids), *own.ids)
            assert (again.positions, again.head.version) == ((2, 1, 3), 3)
            for drafts in (
                (draft_message("b", key="a"),),
                (draft_message("a", key="a"), draft_message("d", key="d")),
            ):
                with pytest.raises(IdempotencyMismatchError):
                    await append_drafts(store, context, *drafts)
            assert len(await sound(store, context.id)) == 3
        await store.blank(parent.id, [1], to=State.EXPIRED, audit={})
        await store.blank(parent.id, [2], to=State.ERASED, audit={})
        for context in (grandchild, child):
            assert (
                await append_drafts(store, context, draft_message("a, which nobody knows any more", key="a"))
            ).repeated
            for key in "bd":
                assert not (
                    await append_drafts(store, context, draft_message(f"new {key}", key=key))
                ).repeated
                assert (await append_drafts(store, context, draft_message(f"new {key}", key=key))).repeated
            await sound(store, context.id)

    async def test_a_fork_refuses_a_repeat_beside_others_alone(self, store: StorageBackend) -> None:
        """What a fork repeats of its parent harms no other operation, whoever asks first."""
        parent = await create_log(store)
        said_first = await append_drafts(store, parent, draft_message("a", key="a"))
        child = await fork_log(store, parent)
        await store.aclose()
        ops = [
            Append(context=child.id, drafts=(draft,))
            for draft in (
                draft_message("new"),
                draft_message("a", key="a"),
                draft_message("x", key="a"),
                draft_message("b", key="b"),
            )
        ]
        one, two, three, four = await store.append(ops)
        assert isinstance(one, Receipt)
        assert isinstance(two, Receipt)
        assert isinstance(four, Receipt)
        assert (two.repeated, two.ids) == (True, said_first.ids)
        assert isinstance(three, IdempotencyMismatchError)
        assert (one.versions, four.versions) == ((2, 2), (3, 3))

    async def test_t04_a_key_used_fifty_times_at_once_is_one_entry(self, store: StorageBackend) -> None:
        """However many tries arrive together, one is stored and all get the same answer."""
        context = await create_log(store)
        drafts = (draft_message("a", key="a"), draft_message("b", key="b"))
        receipts = await asyncio.gather(*[append_drafts(store, context, *drafts) for _ in range(50)])
        assert (
            len({(receipt.versions, receipt.ids, receipt.positions, receipt.chains) for receipt in receipts})
            == 1
        )
        assert sum(not receipt.repeated for receipt in receipts) == 1
        ops = [Append(context=context.id, drafts=(draft_message("c", key="c"),)) for _ in range(10)]
        together = await store.append(ops)
        assert [isinstance(result, Receipt) and result.repeated for result in together] == [
            False,
            *[True] * 9,
        ]
        assert len(await sound(store, context.id)) == 3
        with pytest.raises(IdempotencyMismatchError):
            await append_drafts(store, context, draft_message("another a", key="a"))

    # ── many writers ────────────────────────────────────────────────────────────────────────────────────────────────

    async def test_t01_a_crowd_of_writers_leaves_one_gapless_log(self, store: StorageBackend) -> None:
        """Every acknowledged append is there, under the version and the id that were acknowledged."""
        await self._crowd(store, *self.crowd)

    @pytest.mark.soak
    async def test_t01_a_crowd_of_32_writers_appends_ten_thousand(self, store: StorageBackend) -> None:
        """The same with 32 writers and 10,000 appends."""
        await self._crowd(store, 32, 10_000)

    async def _crowd(self, store: StorageBackend, writers: int, appends: int) -> None:
        context = await create_log(store)
        acknowledged: dict[int, tuple[str, str]] = {}

        async def write(writer: int) -> None:
            for n in range(appends // writers):
                text = f"writer {writer}, message {n}"
                receipt = await append_drafts(store, context, draft_message(text))
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
        context = await create_log(store)
        drafts = [[draft_message(f"{task}.{n}") for n in range(1 + task % 3)] for task in range(64)]
        receipts = await asyncio.gather(*[append_drafts(store, context, *some) for some in drafts])
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
        opening = (draft_message("hello", key="0"), draft_message("how can I help?", key="1"))
        writers = 2 * self.crowd[0]
        names = 5 * writers // 8  # fewer than writers, so that some begin with the same one

        async def write(writer: int) -> None:
            for n in range(names):
                context = await create_log(store, f"c{(writer + n) % names}")
                await append_drafts(store, context, *opening)
                await append_drafts(store, context, draft_message(f"writer {writer}"))

        await asyncio.gather(*[write(writer) for writer in range(writers)])
        contexts = (await store.contexts(ContextQuery(limit=100))).items
        assert sorted(context.key or "" for context in contexts) == sorted(f"c{n}" for n in range(names))
        for context in contexts:
            entries = await sound(store, context.id)
            assert [entry.content for entry in entries[:2]] == ["hello", "how can I help?"]
            told = sorted(f"writer {n}" for n in range(writers))
            assert sorted(entry.content for entry in entries[2:]) == told

    async def test_t03_of_two_appends_on_the_same_head_one_is_refused(self, store: StorageBackend) -> None:
        """There is no hidden branch: the loser is told, and the log is the winner's."""
        context = await create_log(store)
        last: str | None = None
        for n in range(10):
            tries = [
                append_drafts(
                    store, context, draft_message(f"{n}.{writer}"), expect=Expect(last_message=last)
                )
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
        context = await create_log(store)
        for turns in range(12):
            drafts = [draft_message(f"{turns}.{n}", key=f"{turns}.{n}") for n in range(3)]
            task = asyncio.ensure_future(append_drafts(store, context, *drafts))
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            before = len(await store.read(context.id))
            assert before in (3 * turns, 3 * turns + 3)
            await append_drafts(store, context, *drafts)
            assert len(await sound(store, context.id)) == 3 * turns + 3
