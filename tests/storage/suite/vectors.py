"""What a store promises about vectors and other derived rows: a part of the conformance suite of stores.

`StorageBackendTests` inherits it. A place that keeps only vectors, in front of a store, needs five lines:

    class TestMyVectors(VectorTests):
        @pytest.fixture
        async def store(self):
            async with MyVectors(MemoryStorage()) as store:
                yield store

Optional: the fixture `other_tenant`.
"""

from __future__ import annotations

import random
import struct
from dataclasses import replace

import pytest

from acms import State
from acms.model import Context, Derived, Search
from acms.ports import StorageBackend
from acms.testing.logs import (
    append_drafts,
    create_log,
    draft_fact,
    draft_message,
    draft_retraction,
    draft_summary,
    fork_log,
    pack_vector,
)
from acms.text import index_record

ONE = pack_vector(1, 0.5)
"""A vector where any will do."""
HALVES = "model/8/f16/recipe"
"""A space as the embedding names it; its vectors are of 16-bit floats."""


def pack_half_floats(*numbers: float) -> bytes:
    """Return a vector of 16-bit floats."""
    return struct.pack(f"<{len(numbers)}e", *numbers)


def cosine_of_packed(one: tuple[float, ...], data: bytes, kind: str = "f") -> float:
    """Return the cosine of two vectors, one of them packed."""
    other = struct.unpack(f"<{len(one)}{kind}", data)
    norm = sum(x * x for x in one) ** 0.5 * sum(x * x for x in other) ** 0.5
    return float(sum(x * y for x, y in zip(one, other, strict=True)) / norm)


class VectorTests:
    """Derived rows, what a space lacks, and searching by vector; subclass it and give it a store."""

    @pytest.fixture
    def anyio_backend(self) -> str:
        """Run the tests on asyncio."""
        return "asyncio"

    @pytest.fixture
    async def store(self) -> StorageBackend:
        """Return or yield a fresh, empty store."""
        raise NotImplementedError("override the fixture `store`")

    @pytest.fixture
    async def other_tenant(self, store: StorageBackend) -> StorageBackend:
        """Return or yield a handle of another tenant on what `store` holds."""
        pytest.skip("this backend has one tenant")

    # ── derived rows ────────────────────────────────────────────────────────────────────────────────────────────────

    async def test_derived_rows_come_back_in_the_order_they_were_written(self, store: StorageBackend) -> None:
        """A reader that knows a sequence number gets exactly the later rows."""
        context = await create_log(store)
        await append_drafts(store, context, *[draft_message(str(n)) for n in range(4)])
        rows = [
            Derived(version=3, space="a", data=pack_vector(3, 1), start=1, end=9),
            Derived(version=1, space="a", data=b"", part=1),
            Derived(version=1, space="b", data=pack_vector(2, 2)),
            Derived(version=1, space="a", data=pack_vector(0, 1)),
        ]
        assert await store.put_derived(context.id, rows) == 4
        found = await store.derived(context.id, "a")
        assert [replace(row, seq=0) for row in found] == [rows[0], rows[1], rows[3]]
        assert [row.seq for row in found] == sorted({row.seq for row in found})
        assert [replace(row, seq=0) for row in await store.derived(context.id, "b")] == [rows[2]]
        assert (await store.head(context.id)).derived == max(row.seq for row in found)
        assert await store.derived(context.id, "a", after=found[0].seq) == found[1:]
        assert await store.derived(context.id, "a", after=found[-1].seq) == []
        assert [row.version for row in await store.derived(context.id, "a", at=2)] == [1, 1]
        assert await store.derived(context.id, "elsewhere") == []

    async def test_a_derived_row_replaces_the_one_of_the_same_part(self, store: StorageBackend) -> None:
        """A part of a space has one row; a new one is news to readers of the old one."""
        context = await create_log(store)
        await append_drafts(store, context, draft_message("a"))
        await store.put_derived(
            context.id, [Derived(version=1, space="s", data=pack_vector(1, 0), start=0, end=1)]
        )
        before = (await store.head(context.id)).derived
        await store.put_derived(
            context.id, [Derived(version=1, space="s", data=pack_vector(0, 1), start=2, end=3)]
        )
        (row,) = await store.derived(context.id, "s", after=before)
        assert (row.data, row.start, row.end) == (pack_vector(0, 1), 2, 3)
        assert await store.derived(context.id, "s") == [row]
        assert row.seq == (await store.head(context.id)).derived > before

    async def test_missing_lists_what_a_space_does_not_cover(self, store: StorageBackend) -> None:
        """Live messages, facts and summaries without a row are listed, per space, and nothing else is."""
        context, other = await create_log(store), await create_log(store)
        await append_drafts(store, context, draft_message("a"), draft_fact("b"))
        await append_drafts(
            store, context, draft_summary(1, 1), draft_retraction(2), draft_message(""), draft_message("f")
        )
        await append_drafts(store, other, draft_message("x"))
        assert await store.missing("s", context=context.id, limit=9) == [
            (context.id, n) for n in (1, 2, 3, 6)
        ]
        assert len(await store.missing("s", limit=9)) == 5
        assert await store.missing("s", context=context.id, limit=2) == [(context.id, 1), (context.id, 2)]
        rows = [Derived(version=1, space="s", data=ONE), Derived(version=6, space="s", part=3, data=ONE)]
        await store.put_derived(context.id, rows)
        assert await store.missing("s", context=context.id, limit=9) == [(context.id, 2), (context.id, 3)]
        assert len(await store.missing("t", context=context.id, limit=9)) == 4
        await store.blank(context.id, [2], to=State.EXPIRED, audit={})
        assert await store.missing("s", context=context.id, limit=9) == [(context.id, 3)]

    async def test_a_fork_shares_the_derived_rows_of_what_it_inherited(self, store: StorageBackend) -> None:
        """A vector computed once for an entry serves every fork that reads it."""
        parent = await create_log(store)
        await append_drafts(store, parent, draft_message("a"), draft_message("b"), draft_message("c"))
        await store.put_derived(
            parent.id, [Derived(version=n, space="s", data=pack_vector(n, 1)) for n in (1, 3)]
        )
        child = await fork_log(store, parent, 2)
        await append_drafts(store, child, draft_message("d"))
        rows = [
            Derived(version=2, space="s", data=pack_vector(2, 2)),
            Derived(version=3, space="s", data=pack_vector(3, 3)),
        ]
        assert await store.put_derived(child.id, rows) == 2
        of_child = {row.version: row.data for row in await store.derived(child.id, "s")}
        assert of_child == {1: pack_vector(1, 1), 2: pack_vector(2, 2), 3: pack_vector(3, 3)}
        of_parent = {row.version: row.data for row in await store.derived(parent.id, "s")}
        assert of_parent == {1: pack_vector(1, 1), 2: pack_vector(2, 2), 3: pack_vector(3, 1)}
        assert {row.version for row in await store.derived(child.id, "s", at=1)} == {1}

    async def test_derived_rows_are_counted_once_for_a_whole_fork_tree(self, store: StorageBackend) -> None:
        """Every row of a tree has its own number, ascending across writers, and all heads report the same."""
        root, apart = await create_log(store), await create_log(store)
        await append_drafts(store, root, draft_message("a"), draft_message("b"), draft_message("c"))
        await append_drafts(store, apart, draft_message("x"))
        child = await fork_log(store, root, 2)
        await append_drafts(store, child, draft_message("of the child"))
        grandchild, cousin = await fork_log(store, child), await fork_log(store, root)
        tree = (root, child, grandchild, cousin)
        numbers: dict[tuple[str, int], int] = {}
        turns = [
            (child, 3),
            (root, 3),
            (cousin, 1),
            (grandchild, 2),
            (child, 1),
            (cousin, 3),
            (grandchild, 3),
        ]
        for turn, (context, version) in enumerate(turns, 1):
            row = Derived(version=version, space="s", data=pack_vector(turn, 1))
            assert await store.put_derived(context.id, [row]) == 1
            assert {(await store.head(one.id)).derived for one in tree} == {turn}
            owner = child.id if version == 3 and context in (child, grandchild) else root.id
            numbers[owner, version] = turn
        assert (await store.head(apart.id)).derived == 0
        for context in tree:
            own = child.id if context in (child, grandchild) else root.id
            expected = sorted(
                (n, v) for (of, v), n in numbers.items() if (of == own if v == 3 else of == root.id)
            )
            found = await store.derived(context.id, "s")
            assert [(row.seq, row.version) for row in found] == expected
            assert [row.data for row in found] == [pack_vector(seq, 1) for seq, _ in expected]
        assert (await store.head((await fork_log(store, child, 0)).id)).derived == len(turns)
        receipt = await append_drafts(store, grandchild, draft_message("later"))
        assert receipt.head == await store.head(grandchild.id)
        assert receipt.head.derived == len(turns)

    async def test_one_watermark_misses_no_row_of_a_lineage(self, store: StorageBackend) -> None:
        """A reader that goes on behind the head it read keeps up with its parent, its own rows and its sibling's."""
        root = await create_log(store)
        await append_drafts(store, root, *[draft_message(str(n)) for n in range(6)])
        child, sibling = await fork_log(store, root, 4), await fork_log(store, root, 3)
        for context in (child, sibling):
            await append_drafts(store, context, *[draft_message(str(n)) for n in range(6)])
        chance = random.Random(5)
        kept: dict[str, dict[int, Derived]] = {context.id: {} for context in (root, child, sibling)}
        marks = dict.fromkeys(kept, 0)
        for turn in range(40):
            writer = chance.choice((root, child, sibling))
            version = chance.randint(1, (await store.head(writer.id)).version)
            await store.put_derived(
                writer.id, [Derived(version=version, space="s", data=pack_vector(turn, 1))]
            )
            reader = chance.choice(list(kept))
            head = await store.head(reader)
            news = await store.derived(reader, "s", after=marks[reader])
            assert all(marks[reader] < row.seq <= head.derived for row in news)
            kept[reader].update({row.version: row for row in news})
            marks[reader] = head.derived
            assert sorted(kept[reader].values(), key=lambda row: row.seq) == await store.derived(reader, "s")

    async def test_missing_of_a_fork_names_what_it_inherited(self, store: StorageBackend) -> None:
        """Of one context its whole lineage is asked about, under its name; without one each entry once."""
        root = await create_log(store)
        await append_drafts(
            store, root, draft_message("a"), draft_message("b"), draft_message("c"), draft_message("d")
        )
        child = await fork_log(store, root, 3)
        await append_drafts(store, child, draft_message("four"), draft_retraction(1), draft_message("six"))
        grandchild = await fork_log(store, child, 5)
        await append_drafts(store, grandchild, draft_message("six of the grandchild"))

        everyone = {root.id, child.id, grandchild.id}

        async def lacks(context: Context | None, after: int = 0, limit: int = 99) -> list[int]:
            id = None if context is None else context.id
            found = await store.missing("s", context=id, limit=limit, after=after)
            assert {of for of, _ in found} <= ({id} if id is not None else everyone)
            return [version for _, version in found]

        assert await lacks(grandchild) == [1, 2, 3, 4, 6]
        assert await lacks(None) == [1, 2, 3, 4, 4, 6, 6]
        await store.put_derived(root.id, [Derived(version=n, space="s", data=ONE) for n in (1, 4)])
        await store.put_derived(grandchild.id, [Derived(version=3, space="s", data=ONE)])
        assert await lacks(root) == [2]
        assert await lacks(child) == [2, 4, 6]
        assert await lacks(grandchild) == [2, 4, 6]
        assert await lacks(grandchild, limit=2) == [2, 4]
        assert await lacks(grandchild, after=2) == [4, 6]
        assert await lacks(grandchild, after=-(2**70)) == [2, 4, 6]
        for after in (6, 2**31, 2**32, 2**70):
            assert await lacks(grandchild, after=after) == await lacks(None, after=after) == []
        assert await lacks(None, after=4) == [6, 6]
        assert await lacks(None, after=1, limit=3) == [2, 4, 6]
        await store.blank(child.id, [2], to=State.EXPIRED, audit={})
        await store.blank(grandchild.id, [3, 4], to=State.ERASED, audit={})
        assert await lacks(grandchild) == [6]
        assert await lacks(root) == []
        await store.put_derived(grandchild.id, [Derived(version=6, space="s", data=ONE)])
        assert await lacks(None) == [6], "the child's own"
        await append_drafts(store, root, *[draft_message(str(n)) for n in range(1300)])
        late = await fork_log(store, root)
        assert len(await store.missing("s", context=late.id, limit=9999)) == 1300
        rows = [Derived(version=5 + n, space="s", data=ONE) for n in range(1300) if n != 1150]
        assert await store.put_derived(late.id, rows) == 1299
        assert await store.missing("s", context=late.id, limit=9) == [(late.id, 1155)]
        await store.settings(root.id, {"deleted": True}, rev=0)
        assert await store.missing("s", context=late.id, limit=9) == [(late.id, 1155)]
        assert await store.missing("s", limit=9, after=6) == [], "of a deleted context nothing is looked for"

    async def test_derived_rows_nobody_waits_for_arrive_by_the_next_close(
        self, store: StorageBackend
    ) -> None:
        """Without waiting a row may be late, but closing a store loses none."""
        context = await create_log(store)
        await append_drafts(store, context, draft_message("a"))
        await store.put_derived(context.id, [Derived(version=1, space="s", data=ONE)], wait=False)
        await store.aclose()
        assert [row.data for row in await store.derived(context.id, "s")] == [ONE]

    async def test_the_bytes_of_a_vector_come_back_as_they_went_in(self, store: StorageBackend) -> None:
        """Numbers of 16 or 32 bits, any length, and values that are no vectors; also after reopening."""
        context = await create_log(store)
        chance = random.Random(7)
        drawn = [tuple(chance.gauss(0, 1) for _ in range(8)) for _ in range(40)]
        rows = [
            Derived(version=1, space=HALVES, part=part, data=pack_half_floats(*numbers))
            for part, numbers in enumerate(drawn)
        ]
        rows += [
            Derived(version=1, space="s", part=part, data=pack_vector(*numbers))
            for part, numbers in enumerate(drawn)
        ]
        odd = [
            b"", b"x", bytes(8), bytes(32), pack_vector(float("nan")), pack_vector(float("inf"), 1),
            pack_vector(3e38, 3e38), pack_vector(1e-40), pack_vector(-1.5), pack_vector(*range(1, 100)),
            chance.randbytes(21), chance.randbytes(1000),
        ]  # fmt: skip
        rows += [Derived(version=2, space="s", part=part, data=data) for part, data in enumerate(odd)]
        rows += [
            Derived(version=2, space=HALVES, part=part, data=data)
            for part, data in enumerate(
                [*odd, pack_half_floats(6e-8, 1), pack_half_floats(65504, -65504), pack_half_floats(-0.0, 1)]
            )
        ]
        rows.append(Derived(version=1, space=index_record.SPACE, data=pack_vector(1, 2)))
        await append_drafts(store, context, draft_message("a"), draft_message("b"))
        assert await store.put_derived(context.id, rows) == len(rows)
        for _ in range(2):
            for space in (HALVES, "s", index_record.SPACE):
                found = await store.derived(context.id, space)
                assert [replace(row, seq=0) for row in found] == [row for row in rows if row.space == space]
            await store.aclose()

    async def test_an_entry_has_as_many_vectors_as_it_has_parts(self, store: StorageBackend) -> None:
        """Hundreds of parts of a few entries keep their places, and one of them is enough to cover an entry."""
        context = await create_log(store)
        await append_drafts(store, context, *[draft_message(str(n)) for n in range(5)])
        rows = [
            Derived(
                version=version,
                space=HALVES,
                part=part,
                start=part,
                end=part + 9,
                data=pack_half_floats(version, part, 1),
            )
            for version in range(1, 5)
            for part in range(300)
        ]
        assert await store.put_derived(context.id, rows) == 1200
        found = await store.derived(context.id, HALVES)
        assert [replace(row, seq=0) for row in found] == rows
        assert await store.derived(context.id, HALVES, after=found[700].seq) == found[701:]
        assert await store.derived(context.id, HALVES, at=2) == found[:600]
        assert await store.missing(HALVES, context=context.id, limit=9) == [(context.id, 5)]

    async def test_two_rows_of_one_part_in_a_call_leave_the_later_one(self, store: StorageBackend) -> None:
        """A later write in one call replaces an earlier one."""
        context = await create_log(store)
        await append_drafts(store, context, draft_message("a"))
        rows = [Derived(version=1, space="s", data=pack_vector(n, 1)) for n in (1, 2, 3)]
        await store.put_derived(context.id, rows)
        (row,) = await store.derived(context.id, "s")
        assert row.data == pack_vector(3, 1)
        assert row.seq == (await store.head(context.id)).derived

    async def test_two_spaces_are_never_mixed(self, store: StorageBackend) -> None:
        """The same part of two spaces is two rows, whatever the spaces are called."""
        context = await create_log(store)
        await append_drafts(store, context, draft_fact("a"))
        spaces = ["s", "S", "s/2", "s/2/f32/r", "model \N{SNOWMAN}", "x" * 300]
        for number, space in enumerate(spaces, 1):
            await store.put_derived(
                context.id, [Derived(version=1, space=space, data=pack_vector(number, 1))]
            )
        for number, space in enumerate(spaces, 1):
            assert [row.data for row in await store.derived(context.id, space)] == [pack_vector(number, 1)]
            (hit,) = await store.search(Search(namespace="default", space=space, vector=(1.0, 0.0)))
            assert hit.score == pytest.approx(cosine_of_packed((1.0, 0.0), pack_vector(number, 1)), abs=1e-9)
        assert await store.search(Search(namespace="default", space="elsewhere", vector=(1.0, 0.0))) == []
        assert await store.search(Search(namespace="default", vector=(1.0, 0.0))) == []

    async def test_vectors_of_what_is_erased_go_and_do_not_come_back(self, store: StorageBackend) -> None:
        """Erased from a fork or its parent, an entry has no vector in any of them; an expired one keeps it."""
        root = await create_log(store)
        await append_drafts(store, root, *[draft_fact(str(n)) for n in range(4)])
        child = await fork_log(store, root, 3)
        await append_drafts(store, child, draft_fact("its own"))
        rows = [
            Derived(version=n, space="s", part=part, data=pack_vector(n, part))
            for n in (1, 2, 3, 4)
            for part in (0, 1)
        ]
        assert await store.put_derived(child.id, rows) == 8
        await store.blank(child.id, [2, 4], to=State.ERASED, audit={})
        await store.blank(root.id, [1], to=State.EXPIRED, audit={})
        assert await store.put_derived(child.id, rows) == 2, "of the one that is live"
        assert await store.put_derived(child.id, rows[:4], wait=False) >= 0
        await store.aclose()
        assert sorted((row.version, row.part) for row in await store.derived(child.id, "s")) == [
            (1, 0), (1, 1), (3, 0), (3, 1),
        ]  # fmt: skip
        hits = await store.search(Search(namespace="default", space="s", vector=(1.0, 0.0)))
        assert [(hit.context, hit.score) for hit in hits] == [(root.id, pytest.approx(1))]

    async def test_a_search_gives_the_best_first_with_exact_cosines(self, store: StorageBackend) -> None:
        """Of many vectors the nearest entries, each with the best of its parts, whatever kind of number they are of."""
        chance = random.Random(3)
        one, two = await create_log(store), await create_log(store)
        drafts = [draft_fact(f"fact {n}") for n in range(30)] + [
            draft_message("plain"),
            draft_message("marked", markers=("goal",)),
        ]
        ids = {context.id: (await append_drafts(store, context, *drafts)).ids for context in (one, two)}
        best: dict[tuple[str, str], float] = {}
        query = tuple(chance.gauss(0, 1) for _ in range(8))
        for space, pack, kind in (("s", pack_vector, "f"), (HALVES, pack_half_floats, "e")):
            for context in (one, two):
                rows = [
                    Derived(
                        version=version,
                        space=space,
                        part=part,
                        data=pack(*[chance.gauss(0, 1) for _ in range(8)]),
                    )
                    for version in range(1, 33)
                    for part in range(3)
                ]
                await store.put_derived(context.id, rows)
                for row in rows:
                    if row.version != 31:
                        place = space, ids[context.id][row.version - 1]
                        best[place] = max(best.get(place, 0.0), cosine_of_packed(query, row.data, kind))
        for space in ("s", HALVES):
            expected = sorted(
                ((id, score) for (of, id), score in best.items() if of == space and score > 0),
                key=lambda found: (-found[1], found[0]),
            )
            for limit in (1, 5, 200):
                hits = await store.search(Search(namespace="default", space=space, vector=query, limit=limit))
                assert [hit.id for hit in hits] == [id for id, _ in expected[:limit]]
                assert [hit.score for hit in hits] == pytest.approx(
                    [score for _, score in expected[:limit]], abs=1e-6
                )
                assert all(hit.id in ids[hit.context] for hit in hits)

    async def test_a_search_joins_words_and_vectors(self, store: StorageBackend) -> None:
        """An entry counts for the better of the two; one that has no vector is found by its words."""
        context = await create_log(store)
        receipt = await append_drafts(
            store, context, draft_fact("red wine"), draft_fact("grape juice"), draft_fact("blue sky")
        )
        rows = [
            Derived(version=n, space="s", data=pack_vector(*numbers))
            for n, numbers in ((2, (1, 0)), (3, (-1, 0)))
        ]
        await store.put_derived(context.id, rows)
        query = Search(namespace="default", terms=("wine",), space="s", vector=(1.0, 0.0))
        hits = await store.search(query)
        assert [hit.id for hit in hits] == [receipt.ids[1], receipt.ids[0]]
        assert hits[0].score == pytest.approx(1)
        (words,) = await store.search(replace(query, vector=None))
        assert hits[1] == words
        assert [hit.id for hit in await store.search(replace(query, limit=1))] == [receipt.ids[1]]

    async def test_a_search_finds_nothing_of_others(self, store: StorageBackend) -> None:
        """Neither another namespace, nor a deleted context, however many vectors they have that are nearer."""
        mine, theirs, gone = (
            await create_log(store, namespace="n"),
            await create_log(store),
            await create_log(store, namespace="n"),
        )
        receipt = await append_drafts(store, mine, draft_fact("mine"))
        await store.put_derived(mine.id, [Derived(version=1, space="s", data=pack_vector(1, 1))])
        for context in (theirs, gone):
            await append_drafts(store, context, *[draft_fact(str(n)) for n in range(100)])
            await store.put_derived(
                context.id, [Derived(version=n, space="s", data=pack_vector(1, 0)) for n in range(1, 101)]
            )
        await store.settings(gone.id, {"deleted": True}, rev=0)
        hits = await store.search(Search(namespace="n", space="s", vector=(1.0, 0.0), limit=3))
        assert [hit.id for hit in hits] == list(receipt.ids)
        await store.settings(gone.id, {"deleted": False}, rev=1)
        assert {
            hit.context for hit in await store.search(Search(namespace="n", space="s", vector=(1.0, 0.0)))
        } == {gone.id}

    async def test_t33_vectors_of_two_tenants_are_apart(
        self, store: StorageBackend, other_tenant: StorageBackend
    ) -> None:
        """The same ids under another tenant are other rows."""
        mine = await create_log(store, "a")
        await append_drafts(store, mine, draft_fact("a"))
        await store.put_derived(mine.id, [Derived(version=1, space="s", data=pack_vector(1, 0))])
        theirs = await create_log(other_tenant, "a")
        await append_drafts(other_tenant, theirs, draft_fact("b"))
        await other_tenant.put_derived(theirs.id, [Derived(version=1, space="s", data=pack_vector(0, 1))])
        for one, context, vector in ((store, mine, (1.0, 0.0)), (other_tenant, theirs, (0.0, 1.0))):
            (hit,) = await one.search(Search(namespace="default", space="s", vector=vector))
            assert hit.context == context.id
            assert [row.data for row in await one.derived(context.id, "s")] == [pack_vector(*vector)]

    async def test_vectors_that_are_made_again_are_news(self, store: StorageBackend) -> None:
        """The same vectors written again are the same rows with new numbers, so that waiting readers are notified."""
        context = await create_log(store)
        await append_drafts(store, context, draft_fact("a"), draft_fact("b"))
        rows = [Derived(version=n, space="s", data=pack_vector(n, 1)) for n in (1, 2)]
        await store.put_derived(context.id, rows)
        before = await store.derived(context.id, "s")
        await store.put_derived(context.id, rows)
        after = await store.derived(context.id, "s")
        assert [replace(row, seq=0) for row in after] == [replace(row, seq=0) for row in before]
        assert min(row.seq for row in after) > max(row.seq for row in before)

    # ── searching ───────────────────────────────────────────────────────────────────────────────────────────────────

    async def test_a_search_by_vector_uses_one_space(self, store: StorageBackend) -> None:
        """The nearest vector of the named space comes first; other spaces and lengths do not count."""
        context = await create_log(store)
        receipt = await append_drafts(
            store, context, draft_fact("north"), draft_fact("east"), draft_fact("nowhere")
        )
        rows = [
            Derived(version=1, space="s", data=pack_vector(0, 1)),
            Derived(version=2, space="s", data=pack_vector(1, 0.1)),
            Derived(version=2, space="s", part=1, data=pack_vector(0, -1)),
            Derived(version=3, space="other", data=pack_vector(1, 0)),
        ]
        await store.put_derived(context.id, rows)
        hits = await store.search(Search(namespace="default", space="s", vector=(1.0, 0.2)))
        assert [hit.id for hit in hits] == [receipt.ids[1], receipt.ids[0]]
        assert await store.search(Search(namespace="default", space="s", vector=(1.0, 0.2, 0.3))) == []
