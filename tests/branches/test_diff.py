"""What differs between two logs, found without reading what they share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from acms import Change, Delta, Diff, Entry, Kind, State
from acms.branches.diff import (
    READ_GAP,
    LogState,
    Run,
    compute_deltas,
    find_common_version,
    find_disputed_spans,
)
from acms.facts.adopt import clip_spans, filter_adoptable, filter_grounded
from acms.log.active_entries import Replacements, join_spans
from acms.log.encoding import entry_id
from tests.support.logs import NONCE, make_entry

P, A, B = "c_parent0000000", "c_branch000000a", "c_branch000000b"


def entry_of(owner: str, version: int, content: str = "", **given: Any) -> Entry:
    """One entry of an owner."""
    kind = given.get("kind", Kind.MESSAGE)
    return make_entry(
        version, content, context=owner, **{"id": entry_id(kind, owner, version, NONCE), **given}
    )


def fact_entry(owner: str, version: int, value: str, address: str = "host", **given: Any) -> Entry:
    subject, _, attribute = f"{address}/name".partition("/")
    data = {"subject": subject, "attribute": attribute, "value": value}
    return entry_of(owner, version, f"{address} is {value}", kind=Kind.FACT, data=data, **given)


def summary_entry(owner: str, version: int, first: int, last: int, content: str = "in short") -> Entry:
    return entry_of(
        owner, version, content, kind=Kind.SUMMARY, replaces=((first, last),), covers=(first, last)
    )


class Side:
    """A log as its entries, oldest first, and where it stands."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        self.entries = list(entries)
        self.runs: list[Run] = []
        for one in self.entries:
            if self.runs and self.runs[-1][0] == one.context:
                self.runs[-1] = (one.context, self.runs[-1][1], one.version)
            else:
                self.runs.append((one.context, one.version, one.version))
        self.replacements = Replacements(one for one in self.entries if one.replaces)
        self.standing = LogState(self.runs, self.replacements)


def compare_logs(left: Sequence[Entry], right: Sequence[Entry]) -> dict[Kind, Delta]:
    """Compare two logs as a reader does, who reads only the disputed entries of the shared part."""
    one, other = Side(left), Side(right)
    upto = find_common_version(one.runs, other.runs)
    read = [
        entry
        for first, last in join_spans(
            find_disputed_spans(one.replacements, other.replacements, upto), READ_GAP
        )
        for entry in one.entries[first - 1 : last]
    ]
    return compute_deltas(
        one.standing, other.standing, [*read, *one.entries[upto:]], [*read, *other.entries[upto:]]
    )


def versions_of_delta(delta: Delta) -> tuple[list[int], list[int], list[tuple[int, int]]]:
    return (
        [entry.version for entry in delta.added],
        [entry.version for entry in delta.removed],
        [(change.before.version, change.after.version) for change in delta.changed],
    )


NOTHING: tuple[list[int], list[int], list[tuple[int, int]]] = ([], [], [])


# ── where they part ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_logs_are_one_up_to_the_version_at_which_another_owner_takes_over() -> None:
    assert find_common_version([(P, 1, 9)], [(P, 1, 9)]) == 9
    assert find_common_version([(P, 1, 9)], [(P, 1, 4)]) == 4
    assert find_common_version([(P, 1, 9)], [(P, 1, 4), (A, 5, 7)]) == 4
    assert find_common_version([(P, 1, 4), (A, 5, 7)], [(P, 1, 4), (A, 5, 6), (B, 7, 9)]) == 6
    assert find_common_version([(P, 1, 4), (A, 5, 7)], [(P, 1, 4), (B, 5, 7)]) == 4
    assert find_common_version([(P, 1, 4)], [(A, 1, 4)]) == 0
    assert find_common_version([], [(P, 1, 4)]) == 0


def test_only_what_one_side_alone_has_put_out_of_force_is_disputed() -> None:
    left = Replacements([entry_of(P, 9, replaces=((2, 3), (6, 6)), kind=Kind.RETRACTION)])
    right = Replacements([entry_of(P, 9, replaces=((3, 4),), kind=Kind.RETRACTION)])
    assert find_disputed_spans(left, right, 8) == [(2, 2), (4, 4), (6, 6)]
    assert find_disputed_spans(left, right, 5) == [(2, 2), (4, 4)]
    assert find_disputed_spans(left, left, 8) == []
    assert find_disputed_spans(left, right, 0) == []


def test_spans_that_lie_close_are_read_at_once() -> None:
    assert join_spans([(1, 2), (10, 12), (90, 91)], READ_GAP) == [(1, 12), (90, 91)]
    assert join_spans([], READ_GAP) == []


# ── what differs ────────────────────────────────────────────────────────────────────────────────────────────────────

SHARED = [entry_of(P, 1, "a"), entry_of(P, 2, "b"), entry_of(P, 3, "c")]


def test_a_log_does_not_differ_from_itself() -> None:
    assert not any(compare_logs(SHARED, SHARED).values())


def test_messages_of_one_side_are_added_or_removed() -> None:
    found = compare_logs([*SHARED, entry_of(A, 4, "x")], [*SHARED, entry_of(B, 4, "y"), entry_of(B, 5, "z")])
    assert versions_of_delta(found[Kind.MESSAGE]) == ([4, 5], [4], [])


def test_an_edit_is_a_change_of_the_message_it_edits() -> None:
    edited = [*SHARED, entry_of(A, 4, "B", replaces=((2, 2),))]
    assert versions_of_delta(compare_logs(SHARED, edited)[Kind.MESSAGE]) == ([], [], [(2, 4)])
    assert versions_of_delta(compare_logs(edited, SHARED)[Kind.MESSAGE]) == ([], [], [(4, 2)])
    again = [*edited, entry_of(A, 5, "BB", replaces=((2, 2), (4, 4)))]
    assert versions_of_delta(compare_logs(edited, again)[Kind.MESSAGE]) == ([], [], [(4, 5)])
    other = [*SHARED, entry_of(B, 4, "ß", replaces=((2, 2),))]
    assert versions_of_delta(compare_logs(again, other)[Kind.MESSAGE]) == ([], [], [(5, 4)])
    alike = [*SHARED, entry_of(B, 4, "x"), entry_of(B, 5, "B", replaces=((2, 2),))]
    assert versions_of_delta(compare_logs(edited, alike)[Kind.MESSAGE]) == ([4], [], [])


def test_edits_of_two_messages_at_the_same_version_are_two_things() -> None:
    left = [*SHARED, entry_of(A, 4, "x"), entry_of(A, 5, "X", replaces=((4, 4),))]
    right = [*SHARED, entry_of(B, 4, "y"), entry_of(B, 5, "Y", replaces=((4, 4),))]
    assert versions_of_delta(compare_logs(left, right)[Kind.MESSAGE]) == ([5], [5], [])


def test_a_retraction_removes_a_message_and_an_undone_one_does_not() -> None:
    gone = [*SHARED, entry_of(A, 4, kind=Kind.RETRACTION, replaces=((1, 1),))]
    assert versions_of_delta(compare_logs(SHARED, gone)[Kind.MESSAGE]) == ([], [1], [])
    back = [*gone, entry_of(A, 5, kind=Kind.RETRACTION, replaces=((4, 4),))]
    assert not any(compare_logs(SHARED, back).values())


def test_a_summary_is_added_where_its_messages_are_removed() -> None:
    short = [*SHARED, summary_entry(A, 4, 1, 2)]
    found = compare_logs(SHARED, short)
    assert versions_of_delta(found[Kind.MESSAGE]) == ([], [1, 2], [])
    assert versions_of_delta(found[Kind.SUMMARY]) == ([4], [], [])


def test_two_summaries_of_one_span_are_a_change_and_of_two_spans_are_not() -> None:
    one = [*SHARED, summary_entry(A, 4, 1, 2, "shorter")]
    assert versions_of_delta(compare_logs(one, [*SHARED, summary_entry(B, 4, 1, 2)])[Kind.SUMMARY]) == (
        [],
        [],
        [(4, 4)],
    )
    assert versions_of_delta(compare_logs(one, [*SHARED, summary_entry(B, 4, 1, 3)])[Kind.SUMMARY]) == (
        [4],
        [4],
        [],
    )
    assert (
        versions_of_delta(compare_logs(one, [*SHARED, summary_entry(B, 4, 1, 2, "shorter")])[Kind.SUMMARY])
        == NOTHING
    )


def test_a_fact_with_another_value_is_a_change_and_one_with_the_same_is_none() -> None:
    one = [*SHARED, fact_entry(A, 4, "db1")]
    assert versions_of_delta(compare_logs(one, [*SHARED, fact_entry(B, 4, "db2")])[Kind.FACT]) == (
        [],
        [],
        [(4, 4)],
    )
    assert (
        versions_of_delta(
            compare_logs(one, [*SHARED, entry_of(B, 4, "x"), fact_entry(B, 5, "db1")])[Kind.FACT]
        )
        == NOTHING
    )
    assert versions_of_delta(compare_logs(one, [*SHARED, fact_entry(B, 4, "db1", "port")])[Kind.FACT]) == (
        [4],
        [4],
        [],
    )


def test_facts_that_are_a_set_do_not_become_one_another() -> None:
    one = [*SHARED, fact_entry(A, 4, "nuts", "allergy"), fact_entry(A, 5, "eggs", "allergy")]
    other = [
        *SHARED,
        fact_entry(B, 4, "eggs", "allergy"),
        fact_entry(B, 5, "fish", "allergy"),
        fact_entry(B, 6, "milk", "allergy"),
    ]
    assert versions_of_delta(compare_logs(one, other)[Kind.FACT]) == ([5, 6], [4], [])


def test_what_was_erased_has_no_side() -> None:
    left = [*SHARED, entry_of(A, 4, state=State.ERASED)]
    assert not any(compare_logs(left, SHARED).values())


def test_unrelated_logs_share_nothing_and_say_so() -> None:
    left = [entry_of(A, 1, "a"), summary_entry(A, 2, 1, 1), fact_entry(A, 3, "db1")]
    right = [entry_of(B, 1, "a"), summary_entry(B, 2, 1, 1), fact_entry(B, 3, "db1")]
    found = compare_logs(left, right)
    assert versions_of_delta(found[Kind.SUMMARY]) == ([2], [2], [])
    assert versions_of_delta(found[Kind.MESSAGE]) == NOTHING
    assert versions_of_delta(found[Kind.FACT]) == NOTHING


# ── against everything that is in force ─────────────────────────────────────────────────────────────────────────────


@st.composite
def diverged_logs(draw: st.DrawFn) -> tuple[list[Entry], list[Entry]]:
    """Two logs with a shared beginning, full of edits, retractions, summaries and facts."""

    def more(owner: str, entries: list[Entry], count: int) -> list[Entry]:
        grown = list(entries)
        for _ in range(count):
            version = len(grown) + 1
            kind = draw(
                st.sampled_from([Kind.MESSAGE, Kind.MESSAGE, Kind.RETRACTION, Kind.SUMMARY, Kind.FACT])
            )
            if version == 1 and kind is Kind.SUMMARY:  # one that hides nothing is no difference
                kind = Kind.MESSAGE
            replaces = ()
            if version > 1 and (kind in (Kind.RETRACTION, Kind.SUMMARY) or draw(st.booleans())):
                first = draw(st.integers(1, version - 1))
                replaces = ((first, draw(st.integers(first, min(version - 1, first + 3)))),)
            data = {
                "subject": draw(st.sampled_from("xy")),
                "attribute": "is",
                "value": draw(st.integers(0, 1)),
            }
            grown.append(
                entry_of(
                    owner,
                    version,
                    draw(st.sampled_from("abc")),
                    kind=kind,
                    replaces=replaces,
                    data=data if kind is Kind.FACT else {},
                )
            )
        return grown

    shared = more(P, [], draw(st.integers(0, 8)))
    return more(A, shared, draw(st.integers(0, 6))), more(B, shared, draw(st.integers(0, 6)))


@given(diverged_logs())
def test_reading_little_finds_what_reading_everything_finds(pair: tuple[list[Entry], list[Entry]]) -> None:
    left, right = map(Side, pair)
    whole = compute_deltas(left.standing, right.standing, left.entries, right.entries)
    assert compare_logs(*pair) == whole


@given(diverged_logs())
def test_applying_a_difference_to_one_side_gives_the_other(pair: tuple[list[Entry], list[Entry]]) -> None:
    left, right = map(Side, pair)
    for kind, delta in compare_logs(*pair).items():

        def here(side: Side, kind: Kind = kind) -> dict[str, Entry]:
            active = side.standing.select_active(side.entries)
            return {id: entry for id, entry in active.items() if entry.kind is kind}

        mine, theirs = here(left), here(right)
        gone = [*delta.removed, *(change.before for change in delta.changed)]
        come = [*delta.added, *(change.after for change in delta.changed)]
        assert {entry.id for entry in gone} <= mine.keys() - theirs.keys()
        assert {entry.id for entry in come} <= theirs.keys() - mine.keys()
        kept = [entry for id, entry in mine.items() if id not in {one.id for one in gone}]
        same = sorted((entry.content, str(dict(entry.data))) for entry in [*kept, *come])
        assert same == sorted((entry.content, str(dict(entry.data))) for entry in theirs.values())


@given(diverged_logs())
def test_the_other_way_round_is_the_reverse(pair: tuple[list[Entry], list[Entry]]) -> None:
    for kind, delta in compare_logs(*pair).items():
        back = compare_logs(*reversed(pair))[kind]
        assert sorted(map(str, versions_of_delta(delta)[0])) == sorted(map(str, versions_of_delta(back)[1]))
        assert {(one.before.id, one.after.id) for one in delta.changed} == {
            (one.after.id, one.before.id) for one in back.changed
        }


# ── in words ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_difference_reads_well() -> None:
    before, after = (
        entry_of(P, 2, "orders uses MySQL"),
        entry_of(A, 5, "orders uses\nPostgreSQL " + "x" * 200),
    )
    diff = Diff(
        left="user_123 v4",
        right="what-if v6",
        common=4,
        messages=Delta(added=(entry_of(A, 6, "go"),), changed=(Change(before=before, after=after),)),
        facts=Delta(removed=(fact_entry(P, 3, "db1"),)),
    )
    assert diff
    assert str(diff).splitlines() == [
        "--- user_123 v4",
        "+++ what-if v6",
        "    the same up to v4",
        "@@ messages: 1 added, 1 changed @@",
        "- v2 user: orders uses MySQL",
        f"+ v5 user: orders uses PostgreSQL {'x' * 130}…",
        "+ v6 user: go",
        "@@ facts: 1 removed @@",
        "- v3 host is db1",
    ]
    same = Diff(left="a v1", right="b v1", common=0)
    assert not same
    assert str(same) == "--- a v1\n+++ b v1\n    nothing in common, no difference"
    assert str(Delta()) == "no difference"


# ── late facts ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_fact_of_facts_is_grounded_when_they_are() -> None:
    runs = [(P, 1, 2)]
    one, two, three = SHARED
    early = fact_entry(P, 4, "1", sources=(one.id,))
    late = fact_entry(P, 5, "2", sources=(three.id,))
    chained = fact_entry(P, 6, "3", sources=(two.id, early.id))
    tainted = fact_entry(P, 7, "4", sources=(two.id, late.id))
    further = fact_entry(P, 8, "5", sources=(tainted.id, early.id))
    facts = [early, late, chained, tainted, further]
    maybe = filter_adoptable(facts, runs, 2)
    assert maybe == [early, chained, tainted, further]
    known = {one.id: one for one in (*SHARED, *facts)}
    assert filter_grounded(maybe, known, runs) == [early, chained]
    assert filter_grounded(maybe, {**known, one.id: None}, runs) == []
    assert clip_spans([(1, 1), (2, 5), (4, 4)], 3) == ((1, 1), (2, 3))
