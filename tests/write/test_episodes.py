"""Where an episode ends and why: the rules, and the tail that remembers the end of a log."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acms import EpisodeBoundaryConfig, Role, ToolCall, ToolResult
from acms.config import CLOSING_PATTERNS
from acms.log.encoding import to_microseconds
from acms.write.episodes import (
    MAX_TURNS,
    PATTERN,
    TIME_GAP,
    TOOL_RESULT,
    Tail,
    build_episodes,
    rebuild_tail,
)
from tests.support.logs import CONTEXT, NOON, Log

MINUTE = 60


def episode_ordinals(log: Log) -> list[int]:
    return [one.episode for one in log.entries if one.role is not None and not one.replaces]


def close_reasons(log: Log) -> list[str | None]:
    return [one.reason for one in build_episodes(CONTEXT, log.entries)]


def rebuilt_tail(log: Log) -> Tail:
    return rebuild_tail(log.entries, [one for one in log.entries if one.replaces])


def is_closing(text: str) -> bool:
    return any(re.search(pattern, text) for pattern in CLOSING_PATTERNS)


# ── the four rules ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_an_episode_ends_after_six_messages() -> None:
    log = Log()
    for number in range(8):
        log.say("user" if number % 2 == 0 else "assistant", f"word {number}")
    assert episode_ordinals(log) == [1, 1, 1, 1, 1, 1, 2, 2]
    assert [one.closes for one in log.entries] == [None] * 5 + [MAX_TURNS, None, None]
    assert close_reasons(log) == [MAX_TURNS, None]


def test_a_single_turn_limit_makes_every_message_an_episode() -> None:
    log = Log(rules=EpisodeBoundaryConfig(max_turns=1))
    for word in "abc":
        log.say("user", word)
    assert episode_ordinals(log) == [1, 2, 3]


def test_a_silence_ends_the_episode_before_the_message_that_breaks_it() -> None:
    log = Log()
    log.say("user", "a")
    log.say("user", "b", after=30 * MINUTE)
    log.say("user", "c", after=30 * MINUTE + 1)
    assert episode_ordinals(log) == [1, 1, 2]
    assert [one.closes for one in log.entries] == [None, None, None]
    assert close_reasons(log) == [TIME_GAP, None]


def test_a_clock_that_runs_backwards_is_no_silence() -> None:
    log = Log()
    log.say("user", "a")
    log.say("user", "b", after=-3 * 3600)
    log.say("user", "c", after=1)
    assert episode_ordinals(log) == [1, 1, 1]


def test_a_tool_result_ends_the_episode_it_belongs_to() -> None:
    log = Log()
    log.say("user", "how full?")
    log.say("assistant", calls=["c1"])
    log.say("tool", "40 %", answers="c1")
    log.say("assistant", "40 %")
    assert episode_ordinals(log) == [1, 1, 1, 2]
    assert close_reasons(log) == [TOOL_RESULT, None]


def test_an_episode_waits_for_the_last_of_parallel_answers() -> None:
    log = Log()
    log.say("user", "all three")
    log.say("assistant", calls=["c1", "c2", "c3"])
    for call in ("c2", "c3", "c1"):
        log.say("tool", call, answers=call)
    log.say("user", "next")
    assert episode_ordinals(log) == [1, 1, 1, 1, 1, 2]


def test_open_calls_hold_every_end_back() -> None:
    log = Log(rules=EpisodeBoundaryConfig(max_turns=2))
    log.say("user", "go")
    log.say("assistant", "done", calls=["c1", "c2"])
    log.say("tool", "one", answers="c1")
    log.say("tool", "two", answers="c2")
    assert episode_ordinals(log) == [1, 1, 1, 1]
    assert [one.closes for one in log.entries] == [None, None, None, TOOL_RESULT]


def test_tool_results_may_be_told_not_to_end_an_episode() -> None:
    log = Log(rules=EpisodeBoundaryConfig(close_on_tool_result=False))
    log.say("assistant", calls=["c1"])
    log.say("tool", "40 %", answers="c1")
    log.say("assistant", "40 %")
    assert episode_ordinals(log) == [1, 1, 1]


def test_a_tool_answer_after_a_long_run_never_starts_an_episode() -> None:
    log = Log()
    log.say("assistant", calls=["c1", "c2"])
    log.say("tool", "after five hours", answers="c1", after=5 * 3600)
    log.say("tool", "after ten", answers="c2", after=5 * 3600)
    assert episode_ordinals(log) == [1, 1, 1]
    assert close_reasons(log) == [TOOL_RESULT]


def test_the_first_message_may_be_a_tool_result_and_leaves_no_empty_episode() -> None:
    log = Log()
    log.say("tool", "from nowhere", answers="c1")
    log.say("user", "hello")
    found = build_episodes(CONTEXT, log.entries)
    assert [(one.ordinal, one.messages) for one in found] == [(1, 1), (2, 1)]


def test_a_result_nobody_asked_for_does_not_end_an_episode_that_waits_for_answers() -> None:
    log = Log()
    log.say("assistant", calls=["c1"])
    log.say("tool", "stray", answers="c9")
    log.say("tool", "40 %", answers="c1")
    assert episode_ordinals(log) == [1, 1, 1]
    assert [one.closes for one in log.entries] == [None, None, TOOL_RESULT]


def test_a_late_answer_to_an_older_call_does_not_end_an_episode_that_waits_for_answers() -> None:
    log = Log(rules=EpisodeBoundaryConfig(max_turns=99))
    log.say("assistant", calls=["old"])
    log.say("user", "never mind, look here")
    log.say("assistant", calls=["new"])
    log.say("tool", "late", answers="old")
    log.say("tool", "in time", answers="new")
    assert [one.closes for one in log.entries] == [None, None, None, None, TOOL_RESULT]


def test_abandoned_calls_hold_nothing_back() -> None:
    log = Log(rules=EpisodeBoundaryConfig(max_turns=3))
    log.say("assistant", calls=["c1"])
    log.say("user", "never mind")
    log.say("user", "something else")
    log.say("user", "more")
    assert episode_ordinals(log) == [1, 1, 1, 2]
    late = log.say("tool", "late", answers="c1")
    assert late.group == log.entries[0].group


def test_a_tail_remembers_a_bounded_number_of_unanswered_calls() -> None:
    log = Log()
    for number in range(1_100):
        log.say("assistant", calls=[f"c{number}"])
    assert 1_000 < len(log.tail.calls) < 1_100
    assert "c1099" in log.tail.calls
    assert log.say("tool", "too late", answers="c0").group is None


def test_one_message_that_answers_calls_of_two_groups_belongs_to_the_first() -> None:
    log = Log()
    first = log.say("assistant", calls=["c1"])
    second = log.say("assistant", calls=["c2"])
    both = log.say("tool", parts=[ToolResult("c1", "one"), ToolResult("c2", "two")])
    assert both.group == first.group != second.group
    assert log.tail == rebuilt_tail(log)


# ── closing phrases ─────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "text",
    [
        "done",
        "Done.",
        "OK, that's finished.",
        "Okay, it's done now",
        "all done!",
        "We are done here.",
        "Perfect. Everything is complete",
        "Great, that’s completed!",
        "Thanks!",
        "thank you",
        "OK, thanks a lot!",
        "Thanks, that fixed it.",
        "Great, thank you for the help",
    ],
)
def test_a_closing_phrase_ends_the_episode_it_is_said_in(text: str) -> None:
    log = Log()
    log.say("user", "please look")
    assert log.say("user", text).closes == PATTERN
    log.say("user", "next")
    assert episode_ordinals(log) == [1, 1, 2]


@pytest.mark.parametrize(
    "text",
    [
        "that is not done yet",
        "give me the complete list",
        "Thanks, but it still fails",
        "I need this done by Friday",
        "is it done?",
        "done with the first file, the second one is open",
        "The migration finished with 3 errors",
        "Thanks, now please run the tests",
        "Thanks. What is next?",
        "thanks, could you also check the index",
        "no thanks needed, go on",
        "I would complete the form first",
        "Thanks!\nHere is the log:\nERROR 12",
        "",
    ],
)
def test_words_of_closing_inside_a_sentence_end_nothing(text: str) -> None:
    assert not is_closing(text)


def test_a_phrase_in_a_tool_result_or_a_system_message_ends_nothing() -> None:
    log = Log(rules=EpisodeBoundaryConfig(close_on_tool_result=False))
    log.say("system", "done")
    log.say("developer", "thanks")
    log.say("tool", "done")
    assert episode_ordinals(log) == [1, 1, 1]


def test_own_patterns_replace_the_default_ones() -> None:
    log = Log(rules=EpisodeBoundaryConfig(close_on_patterns=(r"over and out",)))
    assert log.say("user", "done").closes is None
    assert log.say("assistant", "Roger, over and out.").closes == PATTERN


def test_the_patterns_stay_fast_on_a_megabyte_of_almost_matching_text() -> None:
    for text in (" ", "ok ", "ok,", "all done now ", "thanks ", "thanks but", "\n", "-"):
        long = text * (1_000_000 // len(text))
        assert not is_closing(long + " and more")
        assert not is_closing("thanks " + long + "?")
    for text in ("done" + " " * 1_000_000 + "x", "thanks" + "x" * 1_000_000):
        assert not is_closing(text)


# ── the list of episodes ────────────────────────────────────────────────────────────────────────────────────────────


def test_a_manual_close_ends_the_episode_and_the_next_message_starts_one() -> None:
    log = Log()
    log.say("user", "a")
    log.close("lunch")
    log.say("user", "b")
    found = build_episodes(CONTEXT, log.entries)
    assert [(one.ordinal, one.status, one.reason) for one in found] == [
        (1, "closed", "lunch"),
        (2, "open", None),
    ]
    assert [(one.first, one.last) for one in found] == [(1, 1), (3, 3)]


def test_a_closed_episode_says_what_it_holds() -> None:
    log = Log()
    log.say("user", "four")
    log.say("assistant", "five!", after=60)
    log.say("user", "thanks", after=60)
    (found,) = build_episodes(CONTEXT, log.entries)
    assert (found.first, found.last, found.messages, found.tokens) == (1, 3, 3, 4 + 5 + 6)
    assert (found.ended_at - found.started_at).total_seconds() == 120
    assert found.status == "closed"


def test_an_edit_is_no_turn_and_moves_no_episode() -> None:
    log = Log(rules=EpisodeBoundaryConfig(max_turns=2))
    log.say("user", "a")
    log.edit(1, "A")
    log.say("user", "b")
    log.say("user", "c")
    assert [(one.ordinal, one.messages) for one in build_episodes(CONTEXT, log.entries)] == [(1, 2), (2, 1)]


def test_an_empty_log_has_no_episode() -> None:
    assert build_episodes(CONTEXT, []) == []
    assert rebuild_tail([], []) == Tail()


# ── the tail ────────────────────────────────────────────────────────────────────────────────────────────────────────


@st.composite
def generated_stories(draw: st.DrawFn) -> Log:
    rules = EpisodeBoundaryConfig(
        max_turns=draw(st.integers(1, 5)),
        close_on_tool_result=draw(st.booleans()),
        max_time_gap_seconds=draw(st.sampled_from([0, 60, 1800])),
    )
    log = Log(rules=rules)
    ids = st.sampled_from(["c1", "c2", "c3"])
    for _ in range(draw(st.integers(1, 20))):
        after = draw(st.sampled_from([-90, 0, 1, 61, 1801]))
        match draw(st.sampled_from(["say", "thanks", "call", "answer", "answers", "edit", "close"])):
            case "thanks":
                log.say("user", "thanks", after=after)
            case "call":
                log.say(
                    "assistant", "looking", calls=draw(st.lists(ids, min_size=1, unique=True)), after=after
                )
            case "answer":
                log.say("tool", "told", answers=draw(ids), after=after)
            case "answers":
                log.say("tool", "told", answers=draw(st.lists(ids, min_size=1, max_size=3)), after=after)
            case "edit" if log.version and log.entries[-1].role is not None:
                log.edit(log.version, "edited")
            case "close":
                log.close()
            case _:
                log.say(draw(st.sampled_from(list(Role))), "said", after=after)
    return log


@given(generated_stories())
def test_the_tail_rebuilt_from_a_log_is_the_tail_that_grew_with_it(log: Log) -> None:
    assert rebuilt_tail(log) == log.tail


@pytest.mark.parametrize(
    ("calls", "open_calls"), [(["c1", "c2"], {"c2": "g"}), (["c2"], {"c2": "g"}), ([], {})]
)
def test_a_tail_is_rebuilt_with_the_calls_that_edits_made(
    calls: list[str], open_calls: dict[str, str]
) -> None:
    log = Log()
    log.say("assistant", calls=["c1"])
    log.say("tool", "one", answers="c1")
    edit = log.edit(1, "more")
    parts = tuple([ToolCall(call, "disk") for call in calls])
    edited = replace(edit, parts=parts, group="g" if calls else None)
    log.entries[1] = replace(log.entries[1], group="g")
    tail = rebuild_tail([*log.entries[:2], edited], [edited])
    assert (tail.calls, tail.pending) == (open_calls, "g" if calls else None)


@given(generated_stories())
def test_a_tail_survives_being_written_down(log: Log) -> None:
    assert Tail.from_json(log.tail.to_json()) == log.tail


@given(generated_stories())
def test_episodes_count_from_one_without_gaps_and_hold_every_turn(log: Log) -> None:
    said = episode_ordinals(log)
    found = build_episodes(CONTEXT, log.entries)
    assert sorted(set(said)) == list(range(1, len(found) + 1))
    assert said == sorted(said)
    assert [one.messages for one in found] == [said.count(one.ordinal) for one in found]
    assert all(one.status == "closed" and one.reason for one in found[:-1])
    assert sum(one.status == "open" for one in found) <= 1


@given(generated_stories())
def test_the_newest_turn_decides_whether_the_episode_is_open(log: Log) -> None:
    found = build_episodes(CONTEXT, log.entries)
    assert [one.status for one in found][-1:] == (["closed" if log.tail.closed else "open"] if found else [])


def test_the_tail_keeps_the_time_of_the_newest_message() -> None:
    log = Log()
    log.say("user", "a", after=5)
    assert log.tail.last == to_microseconds(NOON) + 5_000_000
    assert replace(log.tail, last=0) == Tail(episode=1, turns=1)
