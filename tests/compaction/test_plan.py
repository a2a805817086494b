"""What a summary may stand for: whole units, older than what stays, and exactly as long as is allowed."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acms import CompactionPolicy, Entry, Kind, Privacy, Role
from acms.compaction import plan
from acms.compaction.plan import CompactionPlan, is_compaction_due, is_worthwhile, plan_compaction
from acms.log.active_entries import EntryGroups, Replacements, effective_sequence, fold_atomic_groups
from acms.ports import Turn
from acms.privacy.modes import privacy_of_sources
from acms.text.summary_form import sanitize_summary
from tests.support.logs import Log, make_entry


class Words:
    """Counts words."""

    name = "words"

    def count(self, text: str) -> int:
        return len(text.split())


def folded_units(log: Log) -> EntryGroups:
    return fold_atomic_groups(effective_sequence(log.entries, log.replacements()), whole=True)


def make_log(count: int, words: int = 20, marked: Sequence[int] = ()) -> Log:
    log = Log(Words().count)
    for n in range(1, count + 1):
        role = ("assistant", "user")[n % 2]
        log.say(role, " ".join([f"word{n}"] * words), markers=("decision",) if n in marked else ())
    return log


def choose_from_log(log: Log, **policy: object) -> CompactionPlan:
    found = plan_compaction(folded_units(log), CompactionPolicy(**policy))  # type: ignore[arg-type]
    assert isinstance(found, CompactionPlan), found
    return found


def planned_versions(found: CompactionPlan) -> list[int]:
    return [one.version for one in found.entries]


# ── when ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("policy", "active", "grown", "wanted"),
    [
        ({"budget": 100}, 80, 80, True),
        ({"budget": 100}, 79, 79, False),
        (
            {"budget": 100},
            500,
            9,
            False,
        ),  # asked for a moment ago: a log that cannot shrink does not ask for ever
        ({"budget": 100}, 500, 10, True),
        ({"budget": 100, "enabled": False}, 500, 500, False),
        ({"budget": None}, 10**9, 10**9, False),
    ],
)
def test_an_append_asks_when_the_threshold_is_reached_and_the_log_has_grown(
    policy: dict[str, object], active: int, grown: int, wanted: bool
) -> None:
    assert is_compaction_due(CompactionPolicy(**policy), active, grown) is wanted  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("budget", "wanted"), [(1000, True), (1500, True), (1501, False), (2100, False), (None, False)]
)
def test_what_an_append_asked_for_is_done_when_the_log_is_too_long_and_it_frees_enough(
    budget: int | None, wanted: bool
) -> None:
    found = choose_from_log(make_log(60), budget=1000, summary_tokens=400)
    assert (found.active_tokens, found.tokens - found.limit) == (1200, 600)
    assert is_worthwhile(CompactionPolicy(budget=budget), found, total_tokens=1200) is wanted
    assert not is_worthwhile(CompactionPolicy(budget=budget, enabled=False), found, total_tokens=1200)


@pytest.mark.parametrize(
    ("said", "wanted"), [(1200, False), (3 * 448 - 1, True), (3 * 448, False), (1231, False), (1232, True)]
)
def test_less_is_enough_in_the_last_quarter_of_an_epoch(said: int, wanted: bool) -> None:
    found = choose_from_log(make_log(60), budget=1000, summary_tokens=700)
    assert found.tokens - found.limit == 300
    assert is_worthwhile(CompactionPolicy(budget=1000), found, said) is wanted


def test_marked_messages_stay_only_where_half_of_the_budget_is_left_after_them() -> None:
    log = make_log(60, marked=range(1, 50))
    few, many = choose_from_log(log, budget=1000), choose_from_log(log, budget=1000, preserve_recent_count=22)
    assert few.preserved == 10 + 12  # a quarter of the budget, 20 tokens each
    assert many.preserved == 22 + 3


# ── what ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_everything_but_the_newest_messages_is_summarised() -> None:
    found = choose_from_log(make_log(30))
    assert planned_versions(found) == list(range(1, 21))
    assert found.spans == ((1, 20),)
    assert found.covers == (1, 20)
    assert (found.active_tokens, found.tokens, found.preserved, found.level) == (600, 400, 10, 1)
    assert found.limit == 80


@pytest.mark.parametrize("count", [0, 1, 10, 11])
def test_a_short_log_is_left_alone(count: int) -> None:
    assert isinstance(plan_compaction(folded_units(make_log(count)), CompactionPolicy()), str)


def test_leading_instructions_are_never_summarised() -> None:
    log = Log(Words().count)
    log.say("system", "you are the orders team's assistant " * 5)
    log.say("developer", "never drop a table " * 5)
    for n in range(30):
        log.say("user", f"message {n} " * 8)
    assert planned_versions(choose_from_log(log))[0] == 3


def test_marked_messages_stay_while_they_are_few() -> None:
    found = choose_from_log(make_log(40, marked=(3, 9)))
    assert 3 not in planned_versions(found)
    assert 9 not in planned_versions(found)
    assert found.spans == ((1, 2), (4, 8), (10, 30))


def test_of_many_marked_messages_the_oldest_are_summarised() -> None:
    found = choose_from_log(make_log(40, marked=range(1, 31)))
    assert planned_versions(found) == list(
        range(1, 21)
    )  # a quarter of 800 tokens stays: the ten newest of them


def test_the_open_group_at_the_end_stays() -> None:
    log = make_log(30)
    call = log.say("assistant", "looking", calls=["x"])
    assert call.version not in planned_versions(choose_from_log(log, preserve_recent_count=0))


def test_a_call_without_an_answer_stays_and_what_is_around_it_is_summarised() -> None:
    log = make_log(5)
    call = log.say("assistant", "looking", calls=["lost", "late"])
    half = log.say("tool", "one of two", answers="late")
    for n in range(30):
        log.say("user", f"message {n} " * 8)
    found = choose_from_log(log)
    assert not {call.version, half.version} & set(planned_versions(found))
    assert found.spans == ((1, 5), (8, 27))
    assert found.preserved == 12


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 12)), min_size=1, max_size=8),
    st.sampled_from([None, 200]),
)
def test_an_answer_is_shown_with_its_call_however_late_it_comes(
    calls: list[tuple[int, int]], budget: int | None
) -> None:
    log = make_log(3)
    waiting: dict[int, list[str]] = {}
    for number in range(12):
        for call, (late, at) in enumerate(calls):
            if at == number + 1:
                log.say("assistant", "looking", calls=[f"c{call}"])
                waiting.setdefault(number + late, []).append(f"c{call}")
        for n in range(12):
            log.say("user", f"message {number} {n} " * 4)
        for call in waiting.pop(number, ()):
            before = log.shown()
            answer = log.say("tool", f"of {call}", answers=call)
            others = [unit for unit in before if unit != (call_version(log, answer),)]
            assert log.shown() == [*others, (call_version(log, answer), answer.version)]
        found = plan_compaction(folded_units(log), CompactionPolicy(preserve_recent_count=2, budget=budget))
        if isinstance(found, CompactionPlan):
            summed_up(log, found)


def call_version(log: Log, answer: Entry) -> int:
    return next(one.version for one in log.entries if one.group == answer.group)


def test_an_edit_goes_with_what_it_replaced() -> None:
    log = make_log(30)
    edit = log.edit(4, "corrected text")
    found = choose_from_log(log)
    assert edit.version in planned_versions(found)
    assert 4 not in planned_versions(found)
    assert found.spans == ((1, 20), (31, 31))


def test_facts_and_retractions_between_are_never_replaced() -> None:
    log = make_log(10)
    fact = log.fact("orders: PostgreSQL")
    taken_back = log.retract(2)
    for n in range(20):
        log.say("user", f"message {n} " * 8)
    spans = choose_from_log(log).spans
    covered = {version for first, last in spans for version in range(first, last + 1)}
    assert {fact.version, taken_back.version, 2}.isdisjoint(covered)


def summed_up(log: Log, found: CompactionPlan, content: str = "short summary") -> Entry:
    made = log.summarise(*found.spans, content=content)
    return made


def test_a_few_summaries_stand_beside_each_other() -> None:
    log = make_log(30)
    summed_up(log, choose_from_log(log))
    for n in range(30):
        log.say("user", f"later message {n} " * 8)
    found = choose_from_log(log)
    assert all(one.kind is Kind.MESSAGE for one in found.entries)
    assert found.level == 1


def test_summaries_are_merged_when_they_crowd_the_budget() -> None:
    log = make_log(30)
    summed_up(log, choose_from_log(log), "a summary of some length " * 40)
    for n in range(30):
        log.say("user", f"later message {n} " * 8)
    found = choose_from_log(log, budget=500)
    assert any(one.kind is Kind.SUMMARY for one in found.entries)
    assert found.limit <= 200


@given(
    st.lists(st.tuples(st.sampled_from("umtxef"), st.integers(1, 40)), max_size=60),
    st.integers(0, 12),
    st.sampled_from([0.0, 0.3, 0.9]),
    st.sampled_from([None, 100, 400]),
)
def test_what_is_chosen_can_always_be_stood_for(
    steps: list[tuple[str, int]], recent: int, keep: float, budget: int | None
) -> None:
    log = Log(Words().count)
    calls = 0
    for kind, size in steps:
        text = " ".join(["word"] * size)
        if kind == "u":
            log.say("user", text)
        elif kind == "m":
            log.say("assistant", text, markers=("goal",))
        elif kind == "t":
            calls += 1
            log.say("assistant", text, calls=[f"c{calls}"])
        elif kind == "x" and calls:
            log.say("tool", text, answers=f"c{calls}")
        elif kind == "e" and log.entries and log.entries[size % log.version].kind is Kind.MESSAGE:
            log.edit(size % log.version + 1, text)
        elif kind == "f":
            log.fact(text)
    policy = CompactionPolicy(preserve_recent_count=recent, keep=keep, budget=budget)
    found = plan_compaction(folded_units(log), policy)
    if isinstance(found, str):
        return
    assert all(last + 1 < first for (_, last), (first, _) in pairwise(found.spans))
    assert found.tokens > found.limit
    before = log.replacements()
    assert plan.is_plan_current(found, before, found.entries)
    hidden = {v for v in range(1, log.version + 1) if before.replaced_by(v) is not None}
    log.summarise(*found.spans)
    after = log.replacements()
    now_hidden = {v for v in range(1, log.version) if after.replaced_by(v) is not None}
    assert now_hidden == hidden | set(planned_versions(found))
    sequence = effective_sequence(log.entries, after)
    assert [one.version for one in sequence if one.kind is Kind.SUMMARY] == [log.version]
    assert not plan.is_plan_current(found, after, found.entries)
    messages = [one for one in sequence if one.kind is Kind.MESSAGE]
    assert len(messages) == found.preserved


def test_a_plan_is_outdated_once_an_entry_of_it_was_rewritten() -> None:
    log = make_log(30)
    found = choose_from_log(log)
    log.say("user", "news")
    assert plan.is_plan_current(found, log.replacements(), found.entries)
    log.edit(3, "corrected")
    assert not plan.is_plan_current(found, log.replacements(), found.entries)
    assert not plan.is_plan_current(found, Replacements(()), [None, *found.entries[1:]])


# ── what a summarizer reads ─────────────────────────────────────────────────────────────────────────────────────────


def test_what_may_not_leave_is_not_read() -> None:
    rows = [
        make_entry(1, "plain"),
        make_entry(2, "secret", privacy=Privacy.BLOCK),
        make_entry(3, "card 4111", privacy=Privacy.REDACT, role=Role.ASSISTANT, actor="kim"),
        make_entry(4, " "),
        make_entry(5, "before", kind=Kind.SUMMARY, role=None),
    ]
    said = plan.turns_of_entries(rows)
    assert [(turn.speaker, turn.text, turn.summary) for turn in said] == [
        ("user", "plain", False),
        ("kim", "card 4111", False),
        ("summary", "before", True),
    ]
    assert privacy_of_sources(rows) is Privacy.REDACT
    assert privacy_of_sources(rows[:2]) is Privacy.ALLOW


@given(st.lists(st.integers(0, 80), min_size=1, max_size=20), st.integers(1, 30))
def test_pieces_fit_and_lose_no_word(sizes: list[int], most: int) -> None:
    said = [
        Turn(speaker="user", text=" ".join(f"w{n}.{m}." for m in range(size)), version=n)
        for n, size in enumerate(sizes, 1)
    ]
    found = plan.chunk_turns(said, most + 3, Words())
    for part in found:
        assert (
            sum(Words().count(f"{turn.speaker}: {turn.text}") + 2 for turn in part) <= most + 3
            or len(part) == 1
        )
    words = " ".join(turn.text for part in found for turn in part).split()
    assert words == " ".join(turn.text for turn in said).split()


def test_what_no_store_can_keep_is_taken_out_of_a_summary() -> None:
    assert sanitize_summary(" a\0b\ud800c \n") == "abc"
