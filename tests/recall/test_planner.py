"""The planner never exceeds a budget, whatever the log, the counter and the options."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acms import ContextItem, ContextItems, EpisodeBoundaryConfig, Media, Role, Source, Text, results
from acms.log.active_entries import EntryGroup
from acms.ports import TokenCounter
from acms.recall.planner import (
    MIN_BUDGET_TOKENS,
    Candidate,
    Choice,
    build_candidate,
    build_choice_ledger,
    choose_newest_suffix,
    finish_plan,
    fit_to_budget,
    media_tokens,
    render_choice,
)
from acms.recall.selection import divide_budget
from acms.recall.shortening import cut_middle
from acms.recall.text_frame import CUT, TextFrame
from acms.text.condense import MARK
from tests.support.counters import COUNTERS, NAMES, Counting
from tests.support.logs import Log, make_entry

BYTES = Counting("bytes", lambda text: len(text.encode()))

pieces = st.sampled_from(
    [
        "the orders service",
        "PostgreSQL 18",
        "数据库迁移",
        "🙂🙂",
        "  indented\n\n\tcode",
        "\n",
        " ",
        "a",
        "x" * 300,
    ]
)
texts = st.lists(pieces, min_size=1, max_size=8).map(" ".join) | st.text(min_size=1, max_size=40)


@st.composite
def generated_logs(draw: st.DrawFn, counter: TokenCounter) -> Log:
    log = Log(counter.count, EpisodeBoundaryConfig(max_turns=draw(st.integers(2, 8))))
    for _ in range(draw(st.integers(1, 14))):
        text = draw(texts)
        match draw(st.sampled_from(["say", "say", "call", "answer", "answer", "media", "edit", "summarise"])):
            case "call":
                calls = draw(st.sampled_from([["c1"], ["c1", "c2"]]))
                log.say("assistant", draw(st.sampled_from(["", text])), calls=calls)
            case "answer":
                log.say(
                    "tool", text * draw(st.sampled_from([1, 30])), answers=draw(st.sampled_from(["c1", "c2"]))
                )
            case "media":
                log.say(
                    "user",
                    parts=[Text(text), Media("image/png", "s3://b/k", tokens=draw(st.integers(0, 900)))],
                )
            case "edit" if log.version and log.entries[-1].role is not None:
                log.edit(log.version, text)
            case "summarise" if log.version > 3:
                log.summarise((1, 1), content=text)
            case _:
                log.say(
                    draw(st.sampled_from(["user", "assistant", "system"])),
                    text,
                    actor=draw(st.sampled_from([None, "Sam", "a speaker with a long name: he"])),
                    markers=draw(st.sampled_from([(), (), ("constraint",), ("goal", "custom:x")])),
                )
    return log


@dataclass
class Made:
    """A plan and everything it was made from."""

    counter: TokenCounter
    budget: int
    candidates: list[Candidate]
    choose: Callable[[int], list[Choice]]
    #: The newest unit must be shown.
    latest: bool

    def __post_init__(self) -> None:
        self.frame = TextFrame(self.counter)
        self.items, self.choices = finish_plan(
            fit_to_budget(self.choose, self.budget, self.counter, self.frame)
        )


@st.composite
def generated_plans(draw: st.DrawFn) -> Made:
    counter = draw(st.sampled_from(COUNTERS))
    log = draw(generated_logs(counter))
    frame = TextFrame(counter)
    ranked: list[Candidate] = []
    for unit in log.units():
        relevance = draw(st.sampled_from([0.0, 0.2, 0.5, 0.9]))
        one = build_candidate(unit, Source.SIMILAR, frame)
        ranked.append(one._replace(relevance=relevance, score=relevance))
    budget = draw(st.integers(0, 120) | st.integers(0, 8000))
    if draw(st.booleans()):
        return Made(counter, budget, ranked, lambda limit: choose_newest_suffix(ranked, limit), True)
    start = draw(st.integers(0, len(ranked)))
    floor = draw(st.sampled_from([0.0, 0.4, 1.0]))
    past, current = ranked[:start], ranked[start:]
    return Made(
        counter, budget, ranked, lambda limit: divide_budget(past, current, limit, floor, 0.25), bool(current)
    )


def text_of_items(items: Sequence[ContextItem], budget: int = 0) -> str:
    return ContextItems(
        items, budget=budget, ledger=build_choice_ledger([], []), context="", version=0
    ).text()


@given(generated_plans())
def test_t28_items_and_their_joined_text_never_exceed_the_budget(made: Made) -> None:
    assert sum(item.token_count for item in made.items) <= made.budget
    assert made.counter.count(text_of_items(made.items)) <= made.budget
    assert all(item.token_count >= 0 for item in made.items)
    assert text_of_items(made.items) == results.join_items(made.items)
    for _ in range(2):  # what was counted is kept
        assert made.frame.count_joined(made.items) == made.counter.count(text_of_items(made.items))


@given(generated_plans())
def test_the_latest_is_always_in_and_flagged_when_it_was_cut(made: Made) -> None:
    shown = {item.id: item for item in made.items}
    if made.latest and made.candidates and made.budget >= MIN_BUDGET_TOKENS:
        for one in made.candidates[-1].unit.entries:
            assert one.id in shown
    shortened = [choice.candidate.unit for choice in made.choices if choice.rule in ("cut", "excerpt")]
    cut = {one.id for unit in shortened for one in unit.entries}
    for item in made.items:
        assert not item.truncated or item.id in cut


@given(generated_plans())
def test_what_is_not_flagged_is_shown_exactly_as_it_was_said(made: Made) -> None:
    said = {one.id: one for candidate in made.candidates for one in candidate.unit.entries}
    for item in made.items:
        if not item.truncated:
            assert (item.content, item.parts) == (said[item.id].content, said[item.id].parts)
        else:
            assert item.content == "" or item.content in said[item.id].content or MARK.search(item.content)


@given(generated_plans())
def test_tool_groups_are_shown_whole_or_not_at_all(made: Made) -> None:
    shown = [item.id for item in made.items]
    assert len(set(shown)) == len(shown)
    for one in made.candidates:
        members = [member.id for member in one.unit.entries]
        assert [id for id in shown if id in members] in ([], members)


@given(generated_plans())
def test_items_stand_in_the_order_of_the_log(made: Made) -> None:
    order = [one.id for candidate in made.candidates for one in candidate.unit.entries]
    assert [id for id in order if id in {item.id for item in made.items}] == [item.id for item in made.items]


@given(generated_plans())
def test_the_same_plan_twice_is_the_same(made: Made) -> None:
    again = finish_plan(fit_to_budget(made.choose, made.budget, made.counter, TextFrame(made.counter)))
    assert again == (made.items, made.choices)


@given(generated_plans())
def test_every_candidate_gets_exactly_one_verdict_with_a_reason(made: Made) -> None:
    written = build_choice_ledger(made.choices, [])
    entries = [one.id for candidate in made.candidates for one in candidate.unit.entries]
    assert len(written) == len(entries)
    shown = {item.id for item in made.items}
    for id in entries:
        assert written.why(id).included == (id in shown)
        assert written.why(id).rule
        assert written.why(id).reason
        assert (written.why_not(id) is None) == (id in shown)


@given(generated_plans())
def test_everything_is_shown_when_everything_fits(made: Made) -> None:
    everything = [
        item for choice in made.choose(10**9) for item in render_choice(choice, made.counter, made.frame)
    ]
    room = sum(one.tokens for one in made.candidates)
    if max(room, made.counter.count(results.join_items(everything))) <= made.budget:
        assert [item.content for item in made.items] == [item.content for item in everything]
        assert not any(item.truncated for item in made.items)


@given(st.sampled_from(COUNTERS), texts, st.integers(-5, 400))
def test_a_cut_text_fits_and_is_head_and_tail_of_the_text(
    counter: TokenCounter, text: str, budget: int
) -> None:
    shorter = cut_middle(text, budget, counter)
    assert counter.count(shorter) <= max(0, budget)
    if shorter not in ("", text):
        marks = [index for index in range(len(shorter)) if shorter.startswith(CUT, index)]
        splits = [(shorter[:index], shorter[index + len(CUT) :]) for index in marks]
        assert any(text.startswith(head) and text.endswith(tail) for head, tail in splits)


@given(st.integers(8, 300), st.integers(1, 400))
def test_a_cut_uses_all_the_room_there_is(budget: int, more: int) -> None:
    assert len(cut_middle("x" * (budget + more), budget, BYTES).encode()) == budget


def test_a_text_that_fits_is_not_cut_and_no_room_leaves_nothing() -> None:
    assert cut_middle("exactly", 7, BYTES) == "exactly"
    assert cut_middle("exactly", 0, BYTES) == cut_middle("exactly", -3, BYTES) == ""


class Sparse:
    """Counts a token for every 40 characters, as some tokenizers do for runs of blanks."""

    name = "sparse"

    def count(self, text: str) -> int:
        return -(-len(text) // 40)


@pytest.mark.parametrize("size", [400, 438, 440])
def test_a_text_of_many_characters_per_token_that_fits_is_not_cut(size: int) -> None:
    text = "x" * size
    assert cut_middle(text, 11, Sparse()) == text
    assert CUT in cut_middle(text + "y" * 41, 11, Sparse())


@pytest.mark.parametrize("counter", COUNTERS, ids=NAMES)
def test_a_megabyte_is_cut_in_no_time(counter: TokenCounter) -> None:
    text = "line of output\n" * 70_000
    shorter = cut_middle(text, 500, counter)
    assert counter.count(shorter) <= 500
    assert shorter.startswith("line of") or counter.name == "constant"


# ── shares ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def ranked_candidates(
    *tokens: int, first: int = 1, score: float = 0.5, marked: Sequence[int] = ()
) -> list[Candidate]:
    """Candidates of exactly so many tokens, framed by nothing."""
    return [
        Candidate(
            EntryGroup((make_entry(version, tokens=size, markers=("goal",) if version in marked else ()),)),
            Source.SIMILAR,
            (size,),
            size,
            relevance=score,
            score=score,
        )
        for version, size in enumerate(tokens, first)
    ]


def included_versions(choices: list[Choice]) -> list[int]:
    return [choice.candidate.unit.version for choice in choices if choice.included]


def test_what_answers_in_the_current_episode_competes_beyond_its_share() -> None:
    past = ranked_candidates(10, 10, 10, 10, 10, 10, score=0.5)
    current = [
        *ranked_candidates(10, first=7, score=0.9),
        *ranked_candidates(10, 10, 10, 10, 10, first=8, score=0.0),
    ]
    assert included_versions(divide_budget(past, current, 100, 0.4, 0.25)) == [
        1,
        2,
        3,
        4,
        5,
        7,
        9,
        10,
        11,
        12,
    ]
    assert included_versions(divide_budget(past, current, 100, 0.0, 0.25)) == [
        1,
        2,
        3,
        4,
        5,
        6,
        7,
        10,
        11,
        12,
    ]


def test_a_latest_message_above_the_floor_takes_from_the_past() -> None:
    assert included_versions(
        divide_budget(ranked_candidates(30, 30), ranked_candidates(10, 70, first=3), 100, 0.4, 0.25)
    ) == [1, 4]


def test_the_past_is_filled_by_score_and_then_the_older_first() -> None:
    scores = (0.2, 0.9, 0.2, 0.5)
    past = [
        one._replace(score=score)
        for one, score in zip(ranked_candidates(40, 40, 40, 40), scores, strict=True)
    ]
    assert included_versions(divide_budget(past, (), 100, 0.4, 0.25)) == [2, 4]
    assert included_versions(divide_budget(past, (), 120, 0.4, 0.25)) == [1, 2, 4]


def test_a_large_candidate_does_not_keep_smaller_ones_out() -> None:
    assert included_versions(
        divide_budget(ranked_candidates(45, 46, 5), ranked_candidates(30, first=4), 100, 0.4, 0.25)
    ) == [1, 3, 4]


def test_of_a_candidate_larger_than_half_the_budget_an_excerpt_is_taken() -> None:
    choices = divide_budget(ranked_candidates(900, 20), ranked_candidates(30, first=3), 150, 0.4, 0.25)
    assert [(choice.rule, choice.max_tokens) for choice in choices] == [
        ("excerpt", 50),
        ("score", 0),
        ("latest", 150),
    ]
    assert included_versions(choices) == [1, 2, 3]


def test_only_the_best_may_be_excerpts_and_only_where_there_is_room() -> None:
    scores = (0.2, 0.9, 0.8, 0.7)
    past = [
        one._replace(score=score) for one, score in zip(ranked_candidates(*[900] * 4), scores, strict=True)
    ]
    assert [choice.rule for choice in divide_budget(past, (), 1000, 0.4, 0.25)] == [
        "budget",
        "score",
        "excerpt",
        "budget",
    ]
    assert [choice.rule for choice in divide_budget(past, (), 600, 0.4, 0.25)] == [
        "budget",
        "excerpt",
        "excerpt",
        "excerpt",
    ]
    assert included_versions(divide_budget(past, (), 40, 0.4, 0.25)) == []


def test_a_window_stops_at_the_first_message_that_does_not_fit() -> None:
    choices = choose_newest_suffix(ranked_candidates(5, 50, 10, 10), 30)
    assert included_versions(choices) == [3, 4]
    assert [choice.rule for choice in choices] == ["contiguous", "budget", "window", "latest"]


def test_nothing_to_choose_from_gives_nothing() -> None:
    assert choose_newest_suffix([], 100) == divide_budget([], [], 100, 0.4, 0.25) == []
    assert finish_plan(fit_to_budget(lambda limit: [], 0, BYTES, TextFrame(BYTES))) == ([], [])


# ── cutting a tool group ────────────────────────────────────────────────────────────────────────────────────────────


def window_items(log: Log, budget: int) -> list[ContextItem]:
    frame = TextFrame(BYTES)
    candidates = [build_candidate(unit, Source.WINDOW, frame) for unit in log.units()]
    return finish_plan(
        fit_to_budget(lambda limit: choose_newest_suffix(candidates, limit), budget, BYTES, frame)
    )[0]


def test_of_a_group_too_large_the_results_are_cut_and_the_calls_kept() -> None:
    log = Log(BYTES.count)
    log.say("assistant", "let me look", calls=["c1", "c2"])
    log.say("tool", "a" * 500, answers="c1")
    log.say("tool", "short", answers="c2")
    call, large, small = window_items(log, 200)
    assert (call.truncated, large.truncated, small.truncated) == (False, True, False)
    assert call.parts == log.entries[0].parts
    assert large.content.startswith("aaa")
    assert MARK.search(large.content)
    assert [part.call_id for part in large.parts] == ["c1"]  # type: ignore[union-attr]
    assert large.parts[0].output == large.content  # type: ignore[union-attr]


def test_the_text_of_a_cut_message_with_several_results_is_not_lost() -> None:
    log = Log(BYTES.count)
    log.say("assistant", calls=["c1", "c2"])
    log.say("tool", "b" * 300, answers=["c1", "c2"])
    _, answer = window_items(log, 200)
    assert answer.truncated
    assert "bbb" in "".join(part.output for part in answer.parts)  # type: ignore[union-attr]
    assert [part.call_id for part in answer.parts] == ["c1", "c2"]  # type: ignore[union-attr]


def test_a_group_whose_calls_alone_are_too_large_stays_as_empty_flagged_items() -> None:
    log = Log(BYTES.count)
    log.say("assistant", "thinking aloud " * 40, calls=["c1"])
    log.say("tool", "x", answers="c1")
    found = window_items(log, 50)
    assert [(item.content, item.truncated, item.token_count) for item in found] == [("", True, 0)] * 2


@pytest.mark.parametrize("budget", [0, MIN_BUDGET_TOKENS - 1])
def test_a_budget_of_nearly_nothing_shows_nothing(budget: int) -> None:
    log = Log(BYTES.count)
    log.say("user", "hello")
    assert window_items(log, budget) == []


def test_media_cost_what_their_sender_said() -> None:
    assert (
        media_tokens([Text("x"), Media("image/png", "ref", tokens=800), Media("image/png", "ref", tokens=5)])
        == 805
    )


def test_a_frame_charges_the_speaker_and_the_separator() -> None:
    frame = TextFrame(BYTES)
    assert frame.cost(Role.USER, ()) == len("user: ") + 2
    assert frame.cost(Role.USER, (), "Sam") == len("Sam: ") + 2
    assert frame.cost(None, ()) == 2
