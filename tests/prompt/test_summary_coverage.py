"""Summary coverage: a stored text covers exactly the messages it was made from, or none."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acms import Privacy, Role, Text, ToolCall, ToolResult
from acms.plan.nodes import MessageGroup
from acms.prompt.summary_coverage import (
    FIELD,
    Watermark,
    build_watermark,
    chain_digests,
    covers_more_groups,
    find_resume_offset,
    match_watermark,
    parse_watermark,
    turns_of_groups,
)
from acms.prompt_types import PromptMessage
from acms.text.chat_messages import NO_RESULT
from tests.support.logs import make_entry

MODEL = "m1"


def text_groups(*texts: str) -> list[MessageGroup]:
    return [MessageGroup((PromptMessage(role=Role.USER, parts=(Text(text),)),)) for text in texts]


def log_groups(count: int, *, start: int = 1) -> list[MessageGroup]:
    """Atoms of a log: message v is of entry `ev`, and every message has ten tokens."""
    return [
        MessageGroup(
            (PromptMessage(role=Role.USER, parts=(Text(f"message {v}"),), sources=(f"e{v}",)),),
            first=v,
            last=v,
            before=10 * (v - 1),
        )
        for v in range(start, start + count)
    ]


def make_watermark(groups: list[MessageGroup], covers: int, stamp: str = "") -> Watermark:
    return build_watermark(None, 0, groups, covers, model=MODEL, stamp=stamp)


texts = st.lists(st.text(max_size=3), max_size=6)


@given(texts, texts, st.integers(0, 6))
def test_a_summary_stands_for_equal_leading_messages_and_for_nothing_else(
    old: list[str], new: list[str], covers: int
) -> None:
    if not 0 < covers <= len(old):
        return
    found = match_watermark(make_watermark(text_groups(*old), covers), text_groups(*new), model=MODEL)
    assert found.covers == (covers if new[:covers] == old[:covers] else 0)
    assert bool(found.reason) != bool(found.covers)


@given(texts.filter(bool), st.data())
def test_a_watermark_grows_to_the_one_that_is_made_at_once(
    given_texts: list[str], data: st.DataObject
) -> None:
    groups = text_groups(*given_texts)
    first = data.draw(st.integers(1, len(groups)))
    then = data.draw(st.integers(first, len(groups)))
    grown = build_watermark(make_watermark(groups, first), first, groups, then, model=MODEL)
    assert grown == make_watermark(groups, then)


@given(st.integers(2, 12), st.data())
def test_the_end_of_a_log_goes_on_from_a_summary_of_its_beginning(size: int, data: st.DataObject) -> None:
    whole = log_groups(size)
    covers = data.draw(st.integers(1, size - 1))
    mark = make_watermark(whole, covers, "s1")
    start = data.draw(st.integers(0, size - 1))
    found = match_watermark(mark, whole[start:], model=MODEL, stamp="s1", whole=start == 0)
    assert found.covers == max(0, covers - start)
    if found.covers:
        to = data.draw(st.integers(covers, size))
        grown = build_watermark(mark, found.covers, whole[start:], to - start, model=MODEL, stamp="s1")
        assert grown == make_watermark(whole, to, "s1")


def test_of_a_log_that_was_rewritten_the_end_says_nothing() -> None:
    whole = log_groups(6)
    mark = make_watermark(whole, 4, "s1")
    assert match_watermark(mark, whole[2:], model=MODEL, stamp="s1", whole=False).covers == 2
    found = match_watermark(mark, whole[2:], model=MODEL, stamp="s2", whole=False)
    assert found.covers == 0
    assert "rewritten" in found.reason
    assert match_watermark(mark, whole, model=MODEL, stamp="s2").covers == 4  # read whole it is as it was


def test_an_answer_that_came_late_is_not_in_the_summary_of_its_call() -> None:
    call = PromptMessage(role=Role.ASSISTANT, parts=(ToolCall("c1", "look", "{}"),), sources=("e1",))
    waits = PromptMessage(role=Role.TOOL, parts=(ToolResult("c1", NO_RESULT),))
    answer = PromptMessage(role=Role.TOOL, parts=(ToolResult("c1", "found"),), sources=("e9",))
    before = [MessageGroup((call, waits), 1, 1, 0), *log_groups(3, start=2)]
    mark = make_watermark(before, 2, "s1")
    assert mark.entry == "e2"
    assert match_watermark(mark, before, model=MODEL, stamp="s1").covers == 2
    after = [MessageGroup((call, answer), 1, 9, 0), *before[1:]]
    assert match_watermark(mark, after, model=MODEL, stamp="s1").covers == 0
    assert match_watermark(mark, after[:3], model=MODEL, stamp="s1", whole=False).covers == 0


def test_what_the_caller_wrote_is_compared_whatever_the_log_says() -> None:
    """The state of a log says nothing about a message that is not in it."""
    mixed = [*text_groups("by hand"), *log_groups(3)]
    mark = make_watermark(mixed, 2, "s1")
    assert mark.stamp == mark.entry == ""
    assert match_watermark(mark, mixed, model=MODEL, stamp="s1").covers == 2
    assert (
        match_watermark(
            mark, [*text_groups("by another hand"), *log_groups(3)], model=MODEL, stamp="s1"
        ).covers
        == 0
    )
    between = [*log_groups(2), *text_groups("by hand"), *log_groups(1, start=3)]
    other = [*log_groups(2), *text_groups("by another hand"), *log_groups(1, start=3)]
    mark = make_watermark(between, 4, "s1")
    assert match_watermark(mark, other, model=MODEL, stamp="s1").covers == 0


def test_another_writer_and_fewer_messages_do_not_match() -> None:
    mark = make_watermark(text_groups("a", "b", "c"), 2)
    assert "written by m1" in match_watermark(mark, text_groups("a", "b"), model="m2").reason
    assert "covers 2 messages, there are 1" in match_watermark(mark, text_groups("a"), model=MODEL).reason
    assert match_watermark(None, text_groups("a"), model=MODEL).reason


def test_who_says_what_is_compared_too() -> None:
    (one,) = text_groups("a")
    (message,) = one.messages
    mark = make_watermark([one], 1)
    for other in (
        replace(message, role=Role.ASSISTANT),
        replace(message, name="Sam"),
        replace(message, parts=(Text("a"), Text(""))),
        replace(message, parts=(ToolCall("a", "a", "a"),)),
    ):
        assert match_watermark(mark, [MessageGroup((other,))], model=MODEL).covers == 0
    assert (
        match_watermark(
            mark, [MessageGroup((replace(message, sources=("e1",), group="g"),))], model=MODEL
        ).covers
        == 1
    )
    assert chain_digests([MessageGroup((message, message))]) != chain_digests([one, one])


def test_a_log_is_read_back_to_where_its_summary_ends() -> None:
    mark = make_watermark(log_groups(6), 4, "s1")
    assert find_resume_offset(mark, model=MODEL, stamp="s1") == 30
    assert (
        find_resume_offset(mark, model=MODEL, stamp="s2")
        == find_resume_offset(mark, model="m2", stamp="s1")
        == 0
    )
    assert (
        find_resume_offset(make_watermark(text_groups("a"), 1, "s1"), model=MODEL, stamp="s1")
        == find_resume_offset(None, model=MODEL, stamp="s1")
        == 0
    )


@pytest.mark.parametrize(
    "stored",
    [
        None, [], "x", {}, {"atoms": 1, "chain": "x"}, {"atoms": 0, "chain": "x", "model": "m"},
        {"atoms": True, "chain": "x", "model": "m"}, {"atoms": 1, "chain": 2, "model": "m"},
        {"atoms": 1, "chain": "x", "model": "m", "seen": "9"},
    ],
)  # fmt: skip
def test_what_is_no_watermark_is_read_as_none(stored: object) -> None:
    assert parse_watermark({} if stored is None else {FIELD: stored}) is None


@given(st.integers(1, 9), st.integers(0, 9), st.sampled_from(["", "s1"]))
def test_a_watermark_reads_back_as_it_was_written(groups: int, before: int, stamp: str) -> None:
    mark = Watermark(atoms=groups, chain="x", model="m", stamp=stamp, before=before)
    assert parse_watermark({FIELD: {**mark.to_json(), "later": 1}}) == mark


def test_of_two_the_one_that_stands_for_more_stays() -> None:
    two, three = make_watermark(text_groups("a", "b", "c"), 2), make_watermark(text_groups("a", "b", "c"), 3)
    assert covers_more_groups(three, two)
    assert not covers_more_groups(two, three)
    assert not covers_more_groups(two, two)
    assert covers_more_groups(two, None)


def test_entries_are_read_with_their_markers_and_without_what_is_blocked() -> None:
    groups = [*log_groups(2), *text_groups("by hand", " ")]
    entries = {
        "e1": make_entry(1, "text 1", markers=("decision",)),
        "e2": make_entry(2, "text 2", privacy=Privacy.BLOCK),
    }
    found = turns_of_groups(groups, "before", entries)
    assert [(turn.speaker, turn.text, turn.markers, turn.summary) for turn in found] == [
        ("summary", "before", (), True),
        ("user", "text 1", ("decision",), False),
        ("user", "by hand", (), False),
    ]
