"""Which entries are in force at a version, in which order they are read, and which must stay together."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acms import Entry, Kind, Raw, Role, State, ToolCall
from acms.log.active_entries import (
    LONG_RUN,
    NO_CALL,
    Replacements,
    effective_sequence,
    fold_atomic_groups,
    group_spans,
    preview_text,
    rendered_role,
)
from acms.model import Draft
from tests.support.logs import NOON, Log, make_entry, versions_of

# ── what is in force ────────────────────────────────────────────────────────────────────────────────────────────────


def build_log(*steps: tuple[Any, ...]) -> Log:
    """Return a log of six messages on which these steps were taken."""
    log = Log()
    for word in "abcdef":
        log.say("user", word)
    for verb, *arguments in steps:
        if verb == "edit":
            log.edit(*arguments, "edited")
        elif verb == "retract":
            log.retract(*arguments)
        elif verb == "say":
            log.say("user", *arguments)
        else:
            log.summarise(*arguments, state=State(verb))
    return log


@pytest.mark.parametrize(
    ("steps", "shown"),
    [
        ([], [1, 2, 3, 4, 5, 6]),
        ([("retract", 1)], [2, 3, 4, 5, 6]),
        ([("edit", 1)], [7, 2, 3, 4, 5, 6]),
        ([("edit", 2), ("edit", 7)], [1, 8, 3, 4, 5, 6]),
        ([("edit", 2), ("edit", 7), ("retract", 8)], [1, 7, 3, 4, 5, 6]),
        ([("retract", 1), ("retract", 7)], [1, 2, 3, 4, 5, 6]),
        ([("retract", 1), ("retract", 7), ("retract", 8)], [2, 3, 4, 5, 6]),
        ([("live", (3, 4)), ("say", "g")], [1, 2, 7, 5, 6, 8]),
        ([("live", (1, 3)), ("retract", 7)], [1, 2, 3, 4, 5, 6]),
        ([("live", (1, 3)), ("retract", 7), ("retract", 8)], [7, 4, 5, 6]),
        ([("live", (1, 2)), ("live", (3, 4)), ("live", (1, 4), (7, 8))], [9, 5, 6]),
        ([("live", (1, 2)), ("live", (3, 4)), ("live", (1, 4), (7, 8)), ("retract", 9)], [7, 8, 5, 6]),
        ([("erased", (1, 2))], [1, 2, 3, 4, 5, 6]),
        ([("expired", (1, 2))], [3, 4, 5, 6]),
        ([("live", (1, 99)), ("say", "g")], [7, 8]),
    ],
)
def test_the_newest_rewrite_in_force_decides_at_every_version(
    steps: list[tuple[Any, ...]], shown: list[int]
) -> None:
    log = build_log(*steps)
    assert log.versions() == shown
    assert_agrees_with_model(log)


def test_a_newer_replacement_keeps_its_claim_on_an_overlap() -> None:
    replacements = Replacements(
        [
            make_entry(10, replaces=((1, 6),)),
            make_entry(11, replaces=((4, 8),)),
            make_entry(12, replaces=((2, 2),)),
        ]
    )
    assert [replacements.replaced_by(version) for version in range(1, 10)] == [
        10,
        12,
        10,
        11,
        11,
        11,
        11,
        11,
        None,
    ]


def test_facts_and_episode_ends_are_never_part_of_the_sequence() -> None:
    entries = [
        make_entry(1, "a"),
        make_entry(2, "fact", kind=Kind.FACT),
        make_entry(3, kind=Kind.EPISODE),
        make_entry(4, "b"),
        make_entry(5, "newer fact", kind=Kind.FACT, replaces=((2, 2),)),
    ]
    assert [one.version for one in effective_sequence(entries, Replacements([entries[4]]))] == [1, 4]


def test_a_sequence_that_starts_late_leaves_out_what_stands_before_it() -> None:
    log = Log()
    for word in "abcdef":
        log.say("user", word)
    log.edit(2, "B")
    log.edit(5, "E")
    tail = effective_sequence(log.entries[3:], log.replacements(), after=3)
    assert [one.content for one in tail] == ["d", "E", "f"]


# ── tool groups ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_call_and_its_answer_are_one_unit() -> None:
    log = Log()
    log.say("user", "how full?")
    log.say("assistant", calls=["c1"])
    log.say("tool", "40 %", answers="c1")
    log.say("assistant", "40 %")
    assert log.shown() == [(1,), (2, 3), (4,)]


def test_parallel_calls_are_one_unit_whatever_the_order_of_the_answers() -> None:
    log = Log()
    log.say("assistant", calls=["c1", "c2", "c3"])
    for call in ("c3", "c1", "c2"):
        log.say("tool", call, answers=call)
    assert log.shown() == [(1, 2, 3, 4)]
    assert [unit.complete for unit in log.units()] == [True]


def test_one_message_may_answer_all_parallel_calls() -> None:
    log = Log()
    log.say("assistant", calls=["c1", "c2"])
    log.say("tool", "both", answers=["c1", "c2"])
    assert log.shown() == [(1, 2)]


def test_two_groups_may_interleave_and_each_stays_whole() -> None:
    log = Log()
    log.say("assistant", calls=["c1"])
    log.say("assistant", calls=["c2"])
    log.say("tool", "one", answers="c1")
    log.say("tool", "two", answers="c2")
    assert log.shown() == [(1, 3), (2, 4)]


def test_a_late_answer_moves_its_group_and_nothing_else() -> None:
    log = Log()
    log.say("user", "a")
    log.say("assistant", calls=["c1"])
    log.say("user", "b")
    log.say("assistant", "c")
    before = log.shown()
    log.say("tool", "late", answers="c1")
    assert before == [(1,), (2,), (3,), (4,)]
    assert log.shown() == [(1,), (3,), (4,), (2, 5)]
    assert log.units()[-1].version == 5


def test_an_unfinished_group_is_shown_whole_while_it_is_the_newest() -> None:
    log = Log()
    log.say("user", "a")
    log.say("assistant", calls=["c1", "c2"])
    assert [(unit.complete, versions_of([unit])[0]) for unit in log.units()] == [(True, (1,)), (False, (2,))]
    log.say("tool", "one of two", answers="c2")
    assert [(unit.complete, versions_of([unit])[0]) for unit in log.units()] == [
        (True, (1,)),
        (False, (2, 3)),
    ]


def test_an_interrupted_group_stays_where_its_newest_answer_stands() -> None:
    log = Log()
    log.say("assistant", calls=["c1", "c2"])
    log.say("tool", "one of two", answers="c1")
    log.say("user", "never mind")
    folded = fold_atomic_groups(log.sequence(), whole=True)
    assert versions_of(folded.units) == [(1, 2), (3,)]
    assert [unit.complete for unit in folded.units] == [False, True]
    assert folded.hidden == []


def test_a_result_without_a_call_has_no_group_and_is_shown_as_text_of_the_user() -> None:
    log = Log()
    orphan = log.say("tool", "nobody asked", answers="c9")
    assert orphan.group is None
    assert log.shown() == [(1,)]
    assert rendered_role(orphan) is Role.USER


def test_a_second_answer_to_the_same_call_has_no_group() -> None:
    log = Log()
    log.say("assistant", calls=["c1"])
    log.say("tool", "once", answers="c1")
    again = log.say("tool", "twice", answers="c1")
    assert again.group is None
    assert log.shown() == [(1, 2), (3,)]


def test_a_reused_call_id_is_answered_for_its_newest_call() -> None:
    log = Log()
    log.say("assistant", calls=["c1"])
    log.say("tool", "first", answers="c1")
    log.say("assistant", calls=["c1"])
    log.say("tool", "second", answers="c1")
    assert log.shown() == [(1, 2), (3, 4)]


def test_answers_whose_call_was_retracted_are_hidden() -> None:
    log = Log()
    log.say("assistant", calls=["c1", "c2"])
    log.say("tool", "one", answers="c1")
    log.retract(1, 2)
    log.say("tool", "two", answers="c2")
    folded = fold_atomic_groups(log.sequence(), whole=True)
    assert folded.units == []
    assert [(one.version, reason) for one, reason in folded.hidden] == [(4, "its tool call is not active")]


@pytest.mark.parametrize("between", [3, 2 * LONG_RUN])
@pytest.mark.parametrize("merged", [False, True])
def test_an_answer_to_a_call_that_a_summary_took_is_shown_alone(between: int, merged: bool) -> None:
    log = Log()
    log.say("user", "a")
    log.say("assistant", calls=["c1", "c2"])
    log.say("tool", "one", answers="c1")
    for n in range(between):
        log.say("user", f"line {n}")
    summary = log.summarise((1, log.version))  # as releases did that took calls without all their answers
    if merged:
        summary = log.summarise((1, summary.version))
    late = log.say("tool", "two", answers="c2")
    last = log.say("user", "b")
    replacements = log.replacements()
    read = [
        log.entries[v - 1]
        for first, end in replacements.spans_to_read(log.version)
        for v in range(first, end + 1)
    ]
    folded = fold_atomic_groups(effective_sequence(read, replacements), whole=True)
    assert versions_of(folded.units) == [(summary.version,), (late.version,), (last.version,)]
    assert folded.hidden == []
    (shown,) = folded.units[1].entries
    assert (shown.group, rendered_role(shown)) == (None, Role.USER)
    part = effective_sequence(log.entries[late.version - 1 :], replacements, after=late.version - 1)
    assert fold_atomic_groups(part, whole=False).unresolved == [late]


@pytest.mark.parametrize("between", [3, 2 * LONG_RUN])
def test_an_answer_to_a_call_that_was_cleared_is_hidden_also_behind_a_summary(between: int) -> None:
    log = Log()
    log.say("assistant", calls=["c1"])
    for n in range(between):
        log.say("user", f"line {n}")
    log.add(Draft(kind=Kind.RETRACTION, created_at=NOON, replaces=((1, log.version),)))
    first = log.say("user", "a").version
    summary = log.summarise((first, first))
    late = log.say("tool", "one", answers="c1")
    replacements = log.replacements()
    read = [
        log.entries[v - 1]
        for first, end in replacements.spans_to_read(log.version)
        for v in range(first, end + 1)
    ]
    folded = fold_atomic_groups(effective_sequence(read, replacements), whole=True)
    assert versions_of(folded.units) == [(summary.version,)]
    assert folded.hidden == [(late, NO_CALL)]


def test_answers_whose_call_lies_before_the_sequence_ask_for_more() -> None:
    log = Log()
    log.say("user", "a")
    log.say("assistant", calls=["c1"])
    log.say("tool", "one", answers="c1")
    log.say("user", "b")
    folded = fold_atomic_groups(effective_sequence(log.entries[2:], log.replacements(), after=2), whole=False)
    assert versions_of(folded.units) == [(4,)]
    assert [one.version for one in folded.unresolved] == [3]
    assert folded.hidden == []


def test_an_edited_answer_stays_in_its_group() -> None:
    log = Log()
    log.say("assistant", calls=["c1"])
    log.say("tool", "wrong", answers="c1")
    log.say("user", "next")
    log.edit(2, "right")
    assert log.shown() == [(1, 4), (3,)]


def test_a_retraction_takes_the_whole_group() -> None:
    log = Log()
    log.say("user", "a")
    log.say("assistant", calls=["c1"])
    answer = log.say("tool", "one", answers="c1")
    log.say("user", "b")
    assert group_spans(answer, log.entries) == ((2, 2), (3, 3))
    assert group_spans(log.entries[0], log.entries) == ((1, 1),)


def test_a_retraction_of_a_group_takes_what_its_edits_replaced() -> None:
    log = Log()
    said = log.say("assistant", "let me look")
    call = replace(log.edit(1, "let me look"), group="g")
    answer = replace(log.say("tool", "one"), group="g")
    assert group_spans(answer, [said, call, answer]) == ((1, 1), (2, 2), (3, 3))
    assert group_spans(call, [call]) == ((2, 2),)


def test_a_preview_is_one_line_of_about_a_hundred_characters() -> None:
    assert preview_text("one\n  two\tthree") == "one two three"
    assert preview_text("") == ""
    long = preview_text("word " * 400)
    assert len(long) <= 100
    assert long.endswith("…")


# ── against a naive model ───────────────────────────────────────────────────────────────────────────────────────────


def naive_by(entries: list[Entry], version: int) -> int | None:
    """The newest replacement that has an effect itself and reaches the version: asked from the definition."""
    for one in sorted(entries, key=lambda one: -one.version):
        reaches = any(first <= version <= min(last, one.version - 1) for first, last in one.replaces)
        undone = one.kind is Kind.SUMMARY and one.state is State.ERASED
        if reaches and not undone and naive_by(entries, one.version) is None:
            return one.version
    return None


def naive_sequence(entries: list[Entry]) -> list[int]:
    placed: list[tuple[int, int]] = []
    for one in entries:
        gone = one.kind is Kind.SUMMARY and one.state is not State.LIVE
        if one.kind in (Kind.MESSAGE, Kind.SUMMARY) and not gone and naive_by(entries, one.version) is None:
            placed.append((min([first for first, _ in one.replaces], default=one.version), one.version))
    return [version for _, version in sorted(placed)]


def naive_units(sequence: list[Entry]) -> set[tuple[int, ...]]:
    """Every message without a group alone; every group whose calls are there."""
    found: set[tuple[int, ...]] = set()
    for one in sequence:
        members = [other for other in sequence if one.group is not None and other.group == one.group] or [one]
        asked = {part.call_id for member in members for part in member.parts if isinstance(part, ToolCall)}
        if one.group is None or asked:
            found.add(tuple(member.version for member in members))
    return found


@st.composite
def generated_logs(draw: st.DrawFn) -> Log:
    log = Log()
    for _ in range(draw(st.integers(1, 14))):
        known = st.integers(1, max(1, log.version))
        match draw(st.sampled_from("say say call answer answer edit retract summarise close".split())):
            case "call":
                log.say("assistant", calls=draw(st.sampled_from([["c1"], ["c2"], ["c1", "c2"]])))
            case "answer":
                log.say("tool", "told", answers=draw(st.sampled_from(["c1", "c2"])))
            case "edit" if log.version and log.entries[-1].kind is Kind.MESSAGE:
                messages = [one.version for one in log.entries if one.kind is Kind.MESSAGE]
                log.edit(draw(st.sampled_from(messages)), "edited")
            case "retract" if log.version:
                log.retract(*draw(st.lists(known, min_size=1, max_size=3)))
            case "summarise" if log.version:
                first = draw(known)
                last = draw(st.integers(first, log.version))
                log.summarise(
                    (first, last), state=draw(st.sampled_from([State.LIVE, State.ERASED, State.EXPIRED]))
                )
            case "close":
                log.close()
            case _:
                log.say(draw(st.sampled_from(["user", "assistant"])), "said")
    return log


def assert_agrees_with_model(log: Log) -> None:
    """Assert that cover and sequence are those of the naive model at every version."""
    for at in range(log.version + 1):
        entries = log.entries[:at]
        replacements = log.replacements(at)
        assert [replacements.replaced_by(version) for version in range(1, at + 1)] == [
            naive_by(entries, version) for version in range(1, at + 1)
        ]
        assert log.versions(at) == naive_sequence(entries)


@given(generated_logs())
def test_cover_and_sequence_agree_with_a_naive_model_at_every_version(log: Log) -> None:
    assert_agrees_with_model(log)


KINDS = (Kind.MESSAGE, Kind.RETRACTION, Kind.FACT, Kind.SUMMARY)


@st.composite
def replacing_entries(draw: st.DrawFn) -> list[Entry]:
    """Entries that replace whatever there is, as rewrites do and as no caller would."""
    found: list[Entry] = []
    for version in range(1, draw(st.integers(1, 14))):
        kind = draw(st.sampled_from(KINDS))
        known = st.integers(1, max(1, version - 1))
        spans = [(min(a, b), max(a, b)) for a, b in draw(st.lists(st.tuples(known, known), max_size=2))]
        old = [one for one in found if one.kind is kind and one.kind in (Kind.MESSAGE, Kind.FACT)]
        if old and draw(st.booleans()):  # an edit, or a fact that stands in for another
            spans = [*old[-1].replaces, (old[-1].version, old[-1].version)]
        given: dict[str, object] = {"state": draw(st.sampled_from([State.LIVE, State.LIVE, State.ERASED]))}
        if kind is Kind.RETRACTION:
            given["data"] = {"reason": draw(st.sampled_from(["retracted", "removed"]))}
        if kind is Kind.SUMMARY and draw(st.booleans()):
            given["parts"] = (Raw("v", "{}"),)
        found.append(make_entry(version, kind=kind, replaces=tuple(spans) if version > 1 else (), **given))
    return [one for one in found if one.replaces]


@given(replacing_entries(), st.booleans(), st.data())
def test_a_cover_that_newer_entries_follow_is_what_all_of_them_make(
    entries: list[Entry], searchable: bool, data: st.DataObject
) -> None:
    replacements, size = Replacements((), searchable=searchable), 0
    while size < len(entries):
        before, more = replacements.spans(), data.draw(st.integers(1, len(entries) - size))
        longer = replacements.apply_newer(entries[size : size + more])
        assert replacements.spans() == before
        replacements, size = longer, size + more
        made = Replacements(entries[:size], searchable=searchable)
        assert [replacements.replaced_by(version) for version in range(16)] == [
            made.replaced_by(version) for version in range(16)
        ]
        for name in ("replacing", "substitutes", "retirements", "sealed_summaries"):
            assert getattr(replacements, name) == getattr(made, name)


@given(generated_logs())
def test_units_are_exactly_the_whole_groups_and_nothing_is_lost(log: Log) -> None:
    for at in range(log.version + 1):
        sequence = log.sequence(at)
        folded = fold_atomic_groups(sequence, whole=True)
        assert set(versions_of(folded.units)) == naive_units(sequence)
        newest = [unit.entries[-1].version for unit in folded.units]
        order = [one.version for one in sequence]
        assert newest == sorted(newest, key=order.index)
        placed = [version for unit in versions_of(folded.units) for version in unit]
        assert sorted(placed + [one.version for one, _ in folded.hidden]) == sorted(order)
        assert folded.unresolved == []


@given(generated_logs(), st.integers(0, 14))
def test_reading_only_the_end_of_a_log_gives_the_end_of_its_units(log: Log, after: int) -> None:
    after = min(after, log.version)
    part = fold_atomic_groups(
        effective_sequence(log.entries[after:], log.replacements(), after=after), whole=after == 0
    )
    if not part.unresolved:
        whole = log.shown()
        assert versions_of(part.units) == whole[len(whole) - len(part.units) :]
