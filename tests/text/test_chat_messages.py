"""Chat messages: what a provider accepts, at a cost that never exceeds the budget."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acms import (
    ContextItem,
    Entry,
    EpisodeBoundaryConfig,
    Kind,
    Media,
    Raw,
    Reasoning,
    Role,
    Source,
    Text,
    TokenBudgetExceededError,
    ToolCall,
    ToolResult,
)
from acms.log.active_entries import EntryGroup, effective_sequence, fold_atomic_groups
from acms.log.trust import is_instruction
from acms.model import Head
from acms.ports import TokenCounter
from acms.prompt.messages import ChatPlan, Material, plan_chat
from acms.recall.candidates import Conditions, collect_candidates
from acms.recall.planner import LoadedEntries, build_candidate, choose_newest_suffix, render_choice
from acms.recall.request import RankedLog, Recall
from acms.recall.text_frame import TextFrame
from acms.recall.window import LogSpan, _build_span
from acms.text import chat_messages
from acms.text.chat_messages import wrap_summary
from acms.text.markers import WEIGHTS
from tests.support.counters import COUNTERS, Counting
from tests.support.indexes import field_of, rank_corpus
from tests.support.logs import Log
from tests.support.provider import check_valid

SHOWN = (Kind.MESSAGE, Kind.SUMMARY)
BYTES = Counting("bytes", lambda text: len(text.encode()))


def gather_messages(log: Log, budget: int, counter: TokenCounter) -> LogSpan:
    """The messages read back from the end of a log until a budget is filled, eight entries at a time."""
    frame = chat_messages.ChatFrame(counter)
    for after in (*range(log.version - 8, 0, -8), 0):
        folded = fold_atomic_groups(
            effective_sequence(log.entries[max(0, after) :], log.replacements(), after=max(0, after)),
            whole=after <= 0,
        )
        cost = sum(build_candidate(unit, Source.WINDOW, frame).tokens for unit in folded.units)
        if not folded.unresolved and (after <= 0 or cost > budget):
            read = [entry for entry in log.entries[max(0, after) :] if entry.kind in SHOWN]
            return _build_span(
                Head(context="c_x"), log.version, read, log.replacements(), folded, max(0, after)
            )
    raise AssertionError("the loop ends with the whole log")


def plan_from_log(log: Log, query: str, budget: int, counter: TokenCounter) -> ChatPlan:
    """A plan as the pipeline makes it, with the log as its store."""
    asked = Recall(query=query, budget=budget, weights=WEIGHTS)
    newest = gather_messages(log, budget, counter)
    lead: list[EntryGroup[Entry]] = []
    for unit in log.units() if not newest.whole else log.units()[:-1]:
        if not is_instruction(unit.entries[0]):
            break
        lead.append(unit)
    led = {entry.version for unit in lead for entry in unit.entries}
    rest = [unit for unit in newest.units if unit.entries[0].version not in led]
    frame = chat_messages.ChatFrame(counter)
    cost = sum(build_candidate(unit, Source.WINDOW, frame).tokens for unit in newest.units)
    found = candidates = None
    if not newest.whole or cost + chat_messages.PRIMER_TOKENS > budget:
        field = field_of(log.entries)
        found = RankedLog("c_x", log.version, field, rank_corpus(field, query))
        terms = Conditions(shown=led, episode=False)
        candidates = collect_candidates(field, found.ranking, terms, TextFrame(counter))
    steps = plan_chat(Material(newest, lead, rest, found, candidates), asked, counter, TextFrame(counter))
    rows = {entry.id: entry for entry in log.entries}
    try:
        wanted = next(steps)
        while True:
            wanted = steps.send(LoadedEntries({id: rows[id] for id in wanted}, {}))
    except StopIteration as end:
        plan: ChatPlan = end.value
        return plan


def messages_of_log(log: Log, counter: TokenCounter = BYTES) -> list[dict[str, Any]]:
    """The whole log as messages."""
    return chat_messages.render_chat_messages(items_of(log, counter))


def items_of(log: Log, counter: TokenCounter = BYTES) -> list[ContextItem]:
    frame = chat_messages.ChatFrame(counter)
    choices = choose_newest_suffix(
        [build_candidate(unit, Source.WINDOW, frame) for unit in log.units()], 10**9
    )
    return [item for choice in choices for item in render_choice(choice, counter, frame)]


words = st.lists(
    st.sampled_from(["orders", "database", "cache", "数据库", "🙂", "x" * 80, "\n", "done"]),
    min_size=1,
    max_size=9,
).map(" ".join)
ids = st.sampled_from(["c1", "c2", "c3"])


@st.composite
def generated_logs(draw: st.DrawFn, counter: TokenCounter) -> Log:
    log = Log(counter.count, EpisodeBoundaryConfig(max_turns=draw(st.integers(2, 6))))
    for _ in range(draw(st.integers(0, 3))):
        log.say(draw(st.sampled_from(["system", "developer"])), draw(words))
    for _ in range(draw(st.integers(1, 14))):
        text = draw(words)
        actor = draw(st.sampled_from([None, "Sam", "no name: at all", "a-b_c"]))
        match draw(st.sampled_from("say say call answer answer answers odd edit retract summarise".split())):
            case "call":
                calls = draw(st.lists(ids, min_size=1, unique=True))
                log.say("assistant", draw(st.sampled_from(["", text])), calls=calls, actor=actor)
            case "answer":
                log.say("tool", text * draw(st.sampled_from([1, 40])), answers=draw(ids))
            case "answers":
                log.say("tool", text, answers=draw(st.lists(ids, min_size=1, unique=True)), actor=actor)
            case "odd":
                odd = [
                    Reasoning("hm"),
                    Raw("openai", "{}"),
                    Media("image/png", "s3://b/k", tokens=50),
                    Text(""),
                ]
                log.say("assistant", "", parts=draw(st.lists(st.sampled_from(odd), min_size=1)))
            case "edit" if log.version and log.entries[-1].role is not None:
                log.edit(log.version, text)
            case "retract" if log.version:
                target = log.entries[draw(st.integers(1, log.version)) - 1]
                members = [one.version for one in log.entries if one.group and one.group == target.group]
                log.retract(*(members or [target.version]))
            case "summarise" if log.version > 2 and all(one.group is None for one in log.entries[:2]):
                log.summarise((1, 2), content=text)
            case _:
                log.say(draw(st.sampled_from(["user", "assistant", "system"])), text, actor=actor)
    return log


@given(st.data(), st.sampled_from(COUNTERS), words, st.integers(0, 300) | st.integers(0, 8000))
def test_messages_are_valid_and_within_the_budget_whatever_the_log(
    data: st.DataObject, counter: TokenCounter, query: str, budget: int
) -> None:
    log = data.draw(generated_logs(counter))
    try:
        plan = plan_from_log(log, query, budget, counter)
    except TokenBudgetExceededError as error:
        assert error.required > error.budget == budget
        return
    check_valid(plan.messages)
    assert plan.tokens == (chat_messages.count_message_tokens(plan.messages, counter) if plan.messages else 0)
    assert plan.tokens <= budget
    shown = [item.id for item in plan.items]
    assert len(set(shown)) == len(shown)
    groups = log.units()
    for unit in groups:
        members = [one.id for one in unit.entries]
        assert [id for id in shown if id in members] in ([], members)
    assert not groups or {one.id for one in groups[-1].entries} <= set(shown)
    assert {verdict.id for verdict in plan.items.ledger if verdict.included} == set(shown)
    said = [entry.id for entry in log.entries if entry.kind in SHOWN]
    assert sorted(verdict.id for verdict in plan.items.ledger) == sorted(said)


@given(st.data(), st.sampled_from(COUNTERS), words)
def test_the_whole_history_is_sent_when_it_fits_for_sure(
    data: st.DataObject, counter: TokenCounter, query: str
) -> None:
    log = data.draw(generated_logs(counter))
    plan = plan_from_log(log, query, 10**7, counter)
    assert plan.messages == messages_of_log(log, counter)


@given(st.data(), st.sampled_from(COUNTERS))
def test_the_same_question_gives_the_same_messages(data: st.DataObject, counter: TokenCounter) -> None:
    log = data.draw(generated_logs(counter))
    budget = data.draw(st.integers(100, 2000))
    try:
        first = plan_from_log(log, "orders database", budget, counter)
    except TokenBudgetExceededError:
        return
    assert plan_from_log(log, "orders database", budget, counter) == first


# ── how a message is written ────────────────────────────────────────────────────────────────────────────────────────


def test_a_conversation_with_a_tool_reads_as_a_provider_wants_it() -> None:
    log = Log(BYTES.count)
    log.say("system", "You help.")
    log.say("user", "how full?", actor="Sam")
    log.say("assistant", "Let me look.", calls=["c1"])
    log.say("tool", "40 %", answers="c1")
    log.say("assistant", "40 %")
    function = {"name": "look", "arguments": '{"at": "c1"}'}
    assert messages_of_log(log) == [
        {"role": "system", "content": "You help."},
        {"role": "user", "content": "how full?", "name": "Sam"},
        {
            "role": "assistant",
            "content": "Let me look.",
            "tool_calls": [{"id": "c1", "type": "function", "function": function}],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "40 %"},
        {"role": "assistant", "content": "40 %"},
    ]


def test_a_call_without_text_has_no_content() -> None:
    log = Log(BYTES.count)
    log.say("assistant", calls=["c1"])
    log.say("tool", "", answers="c1")
    assert [message["content"] for message in messages_of_log(log)] == [None, ""]


def test_a_call_that_waits_is_answered_by_a_placeholder() -> None:
    log = Log(BYTES.count)
    log.say("assistant", calls=["c1", "c2"])
    log.say("tool", "one", answers="c2")
    found = messages_of_log(log)
    check_valid(found)
    assert [(message.get("tool_call_id"), message["content"]) for message in found[1:]] == [
        ("c2", "one"),
        ("c1", chat_messages.NO_RESULT),
    ]


def test_parallel_answers_in_one_message_become_one_each() -> None:
    log = Log(BYTES.count)
    log.say("assistant", calls=["c1", "c2"])
    log.say("tool", parts=[ToolResult("c1", "one"), ToolResult("c2", "two")])
    assert [message["content"] for message in messages_of_log(log)[1:]] == ["one", "two"]


def test_a_stray_result_beside_an_answer_is_kept_as_its_text() -> None:
    log = Log(BYTES.count)
    log.say("assistant", calls=["c1"])
    log.say("tool", parts=[ToolResult("c9", "stray"), ToolResult("c1", "asked for")])
    found = messages_of_log(log)
    check_valid(found)
    assert found[1] == {"role": "tool", "tool_call_id": "c1", "content": "asked for\nstray"}


def test_a_result_without_a_call_reads_as_marked_text_of_the_user() -> None:
    log = Log(BYTES.count)
    log.say("tool", "from nowhere", answers="c9")
    (message,) = messages_of_log(log)
    assert message == {"role": "user", "content": "<tool_result>\nfrom nowhere\n</tool_result>"}


def test_a_summary_reads_as_marked_text() -> None:
    log = Log(BYTES.count)
    log.say("user", "a")
    log.summarise((1, 1), content="they said a")
    assert messages_of_log(log) == [{"role": "user", "content": wrap_summary("they said a")}]


def test_media_are_named_and_what_other_vendors_wrote_is_left_out() -> None:
    log = Log(BYTES.count)
    log.say("user", parts=[Text("look"), Media("image/png", "s3://b/k"), Text("closely"), Raw("x", "{}")])
    assert messages_of_log(log) == [{"role": "user", "content": "look\n[image/png: s3://b/k]\nclosely"}]


@pytest.mark.parametrize(
    ("actor", "shown"),
    [
        ("Thomas Carter", "Thomas Carter: hi"),
        ("用户", "用户: hi"),
        ("a\n\nb: c", "a b: c: hi"),
        ("system ", "hi"),
    ],
)
def test_a_speaker_a_provider_has_no_field_for_stands_before_the_text(actor: str, shown: str) -> None:
    log = Log(BYTES.count)
    log.say("user", "hi", actor=actor)
    assert messages_of_log(log)[0]["content"] == shown


@pytest.mark.parametrize(
    ("actor", "named"), [("Sam", True), ("agent-7", True), ("Sam Smith", False), ("名", False)]
)
def test_only_a_speaker_a_provider_accepts_is_named(actor: str, named: bool) -> None:
    log = Log(BYTES.count)
    log.say("user", "hi", actor=actor)
    assert ("name" in messages_of_log(log)[0]) is named


@given(st.data(), st.sampled_from(COUNTERS))
def test_a_frame_is_an_upper_bound_of_what_rendering_adds(data: st.DataObject, counter: TokenCounter) -> None:
    """For one message of plain text or calls, by a counter whose parts add up: bytes."""
    log = Log(BYTES.count)
    log.say(
        data.draw(st.sampled_from(["user", "assistant", "tool"])),
        data.draw(words),
        actor=data.draw(st.sampled_from([None, "Sam"])),
    )
    (item,) = items_of(log)
    assert (
        chat_messages.count_message_tokens(chat_messages.render_chat_messages([item]), BYTES)
        <= chat_messages.PRIMER_TOKENS + item.token_count
    )
    assert counter.count(item.content) >= 0


# ── what stands where ───────────────────────────────────────────────────────────────────────────────────────────────


def long_log() -> Log:
    log = Log(BYTES.count)
    log.say("system", "You are the orders team's assistant.")
    log.say("user", "We chose PostgreSQL for the orders database.")
    for number in range(40):
        log.say("user", f"note {number} about the weather and the garden")
    log.say("user", "Which database did we choose for orders?")
    return log


def test_recalled_text_stands_as_data_right_before_the_newest_question() -> None:
    plan = plan_from_log(long_log(), "Which database did we choose for orders?", 1200, BYTES)
    roles = [message["role"] for message in plan.messages]
    assert roles[0] == "system"
    assert plan.messages[-1]["content"] == "Which database did we choose for orders?"
    recalled = plan.messages[-2]
    assert recalled["content"].startswith(chat_messages.RECALLED[0])
    assert recalled["content"].endswith(chat_messages.RECALLED[1])
    assert "PostgreSQL" in recalled["content"]


def test_a_retrieved_message_does_not_come_twice() -> None:
    plan = plan_from_log(long_log(), "note 39 garden", 1200, BYTES)
    everything = "".join(message["content"] for message in plan.messages)
    assert everything.count("note 39 ") == 1


def test_what_is_shown_as_new_is_told_so_although_it_answers_nothing() -> None:
    log = long_log()
    plan = plan_from_log(log, "zanzibar", 1200, BYTES)
    newest = plan.items.ledger.why(log.entries[-1].id)
    assert (newest.included, newest.rule) == (True, "latest")
    assert plan.items.ledger.why(log.entries[1].id).rule == "irrelevant"


def test_instructions_that_do_not_fit_are_an_error_that_says_so() -> None:
    log = Log(BYTES.count)
    log.say("system", "s" * 500)
    log.say("user", "hi")
    with pytest.raises(TokenBudgetExceededError) as caught:
        plan_from_log(log, "hi", 200, BYTES)
    assert caught.value.budget == 200
    assert caught.value.required > 500
    assert caught.value.options


def test_a_newest_message_that_is_too_long_is_cut_and_flagged() -> None:
    log = Log(BYTES.count)
    log.say("user", "x" * 5000)
    plan = plan_from_log(log, "anything", 300, BYTES)
    assert plan.tokens <= 300
    assert plan.items[-1].truncated
    assert plan.items.ledger.warnings


def test_an_empty_log_needs_no_message_and_no_budget() -> None:
    plan = plan_from_log(Log(), "hello", 0, BYTES)
    assert (plan.messages, plan.tokens) == ([], 0)


def test_the_cost_of_a_call_counts_its_name_and_arguments() -> None:
    call = ToolCall("c1", "disk", '{"host": "db1"}')
    message = {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "disk", "arguments": call.arguments}}
        ],
    }
    assert (
        chat_messages.count_message_tokens([message], BYTES)
        == chat_messages.PRIMER_TOKENS + chat_messages.MESSAGE_TOKENS + chat_messages.CALL_TOKENS + 2 + 4 + 15
    )
    assert (
        chat_messages.ChatFrame(BYTES).cost(Role.ASSISTANT, [call])
        == chat_messages.MESSAGE_TOKENS + chat_messages.CALL_TOKENS + 2
    )
