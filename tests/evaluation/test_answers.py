"""Letting a model answer: rows of memory, corrections, days of an agent, and a cache that lets a run go on."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from acms import ProviderError, ValidationError
from acms.cli.commands import app
from acms.providers import BPETokenCounter
from acms_eval import Conversation, Question, Said, exact_match, token_f1
from acms_eval.agent_days import Day, count_days, load_days, run_day
from acms_eval.answers import Row, answer_questions, choose_questions, compare_rows, load_instruction
from acms_eval.cached import CachedEndpoint
from tests.providers.server import Behave, ModelServer

START = datetime(2026, 3, 2, 9, tzinfo=UTC)
COLOURS = ("amber", "crimson", "indigo", "turquoise")
THINGS = ("kayak", "bicycle", "tent", "sledge")


def colour_conversation(name: str) -> Conversation:
    """Thirty remarks, four of which give a colour, and a question about each of them."""
    said: list[Said] = []
    for place in range(30):
        colour = COLOURS[place // 2] if place < 8 and place % 2 == 0 else ""
        text = (
            f"My {THINGS[place // 2]} is {colour}."
            if colour
            else f"Remark {place} about the weather of {name}."
        )
        said.append(Said(role="user", text=text, speaker="Ines", created_at=START + timedelta(minutes=place)))
    questions = [
        Question(text=f"Which colour has the {thing}?", group="4", gold=frozenset({2 * place}), answer=colour)
        for place, (thing, colour) in enumerate(zip(THINGS, COLOURS, strict=True))
    ]
    questions.append(Question(text="Which colour has the sea?", group="5", gold=frozenset(), answer="blue"))
    return Conversation(name=name, dataset="LoCoMo", said=tuple(said), questions=tuple(questions))


def answer_from_request(body: dict[str, Any]) -> str:
    """Answer as a model that reads well: the colour of the thing that is asked about, if the request says it."""
    question = body["messages"][-1]["content"].rpartition("\n")[2]
    thing = question.rpartition(" ")[2].strip("?")
    found = re.search(rf"My {thing} is (\w+)", json.dumps(body["messages"]))
    return found[1] if found else "unknown"


@pytest.fixture
async def server() -> AsyncIterator[ModelServer]:
    async with ModelServer(say=answer_from_request) as server:
        yield server


@pytest.mark.parametrize(
    ("answer", "expected", "f1", "exact"),
    [
        ("The red kayak.", "red kayak", 1.0, True),
        ("a red one", "red kayak", 0.5, False),
        ("7 May 2023", "May 7, 2023", 1.0, False),
        ("2023-05-07", "7 May 2023", 1.0, True),
        ("2023-13-07", "7 May 2023", 0.0, False),
        ("$1,000", "1000", 1.0, True),
        ("在公园", "公园", 0.8, False),
        ("", "red", 0.0, False),
        ("unknown", "red", 0.0, False),
    ],
)
def test_answers_are_compared_word_by_word(answer: str, expected: str, f1: float, exact: bool) -> None:
    assert token_f1(answer, expected) == pytest.approx(f1)
    assert exact_match(answer, expected) is exact


def test_questions_come_evenly_from_all_conversations_and_a_smaller_choice_is_part_of_a_larger_one() -> None:
    talks = [colour_conversation(name) for name in ("one", "two", "three")]
    few, many = choose_questions(talks, 4), choose_questions(talks, 9)
    assert [len(questions) for _, questions in many] == [3, 3, 3]
    assert [len(questions) for _, questions in few] == [2, 1, 1]
    for (_, some), (_, more) in zip(few, many, strict=True):
        assert more[: len(some)] == some
    assert sum(len(questions) for _, questions in choose_questions(talks, 100)) == 12
    with pytest.raises(ValidationError):
        choose_questions([], 4)


async def test_every_memory_is_asked_the_same_within_its_budget(server: ModelServer) -> None:
    chosen = choose_questions([colour_conversation("one"), colour_conversation("two")], 8)
    async with CachedEndpoint(server.url) as endpoint:
        found = await answer_questions(endpoint, "test-model", chosen, budget=120)
    means = {row: figures["F1"].mean for row, figures in compare_rows(found).items()}
    assert list(means) == list(Row)
    assert (means[Row.NONE], means[Row.WINDOW]) == (0.0, 0.0)  # the colours are further back
    assert means[Row.BM25] == means[Row.RECALL] == means[Row.PROMPT] == means[Row.GOLD] == 1.0
    counter = BPETokenCounter("cl100k_base")
    for call in server.calls:
        messages = call.body["messages"]
        assert messages[0]["content"] == load_instruction()
        question = messages[-1]["content"].rpartition("\n")[2]
        assert question in {one.question for one in found}
        shown = sum(counter.count(message["content"]) for message in messages[1:])
        assert shown <= 120 + counter.count(question) + 1


async def test_margins_are_paired_by_question(server: ModelServer) -> None:
    chosen = choose_questions([colour_conversation("one"), colour_conversation("two")], 8)
    async with CachedEndpoint(server.url) as endpoint:
        found = await answer_questions(
            endpoint, "test-model", chosen, rows=(Row.NONE, Row.PROMPT, Row.GOLD), budget=120
        )
    compared = compare_rows(found)
    gold, none = compared[Row.GOLD]["F1 margin"], compared[Row.NONE]["F1 margin"]
    assert (gold.mean, gold.low, gold.high, gold.count) == (0.0, 0.0, 0.0, 8)
    assert none.high == -1.0
    assert "F1 margin" not in compared[Row.PROMPT]


async def test_an_interrupted_run_asks_only_what_is_missing(server: ModelServer, tmp_path: Path) -> None:
    chosen = choose_questions([colour_conversation("one")], 4)
    file = tmp_path / "answers.db"
    server.script = [*[Behave()] * 5, Behave(status=401)]
    async with CachedEndpoint(server.url, file) as endpoint:
        with pytest.raises(ProviderError):
            await answer_questions(endpoint, "test-model", chosen)
    assert len(server.calls) == 6
    async with CachedEndpoint(server.url, file) as endpoint:
        first = await answer_questions(endpoint, "test-model", chosen)
    bodies = [json.dumps(call.body) for call in server.calls]
    assert len(bodies) == len({*bodies}) + 1  # the one that was refused
    async with CachedEndpoint(server.url, file) as endpoint:
        assert await answer_questions(endpoint, "test-model", chosen) == first
        assert endpoint.sent == 0


# ── days of an agent ────────────────────────────────────────────────────────────────────────────────────────────────


def answer_as_agent(body: dict[str, Any]) -> str:
    """Call the tool of the request about the text in quotation marks, or repeat the last message."""
    last = body["messages"][-1]
    if last["role"] != "user" or '"' not in last["content"]:
        return last["content"]
    tool = body["tools"][0]["function"]
    (parameter,) = tool["parameters"]["properties"]
    call = {"name": tool["name"], "arguments": {parameter: last["content"].split('"')[1]}}
    return f"```json\n{json.dumps(call)}\n```" if "A17" in json.dumps(call) else f"{{{json.dumps(call)}}}}}"


def make_day(*turns: dict[str, Any]) -> Day:
    shipped = load_days()[0]
    return Day(
        name="test",
        instructions="Be brief.",
        tools=shipped.tools,
        outputs={"lookup_order": {"A17": "Order A17 is with Blitzpost."}},
        turns=turns,
    )


async def test_an_agent_calls_tools_and_is_judged_by_what_it_says() -> None:
    turns = (
        {"user": 'Where is "A17"?', "call": ["lookup_order", "A17"], "expected": ["Blitzpost"]},
        {"user": 'And "B42"?', "call": ["lookup_order", "A17"], "expected": ["Blitzpost"]},
        {"user": "Thanks."},
        {"user": "Marco, no, Helen signs.", "expected": ["Helen"], "forbidden": ["Marco"]},
    )
    async with ModelServer(say=answer_as_agent) as server, CachedEndpoint(server.url) as endpoint:
        done = await run_day(endpoint, "test-model", make_day(*turns))
    assert [turn.called for turn in done] == [True, False, None, None]
    assert [turn.right for turn in done] == [True, False, None, False]
    assert count_days(done)["test"] == {
        "called": 1, "needed": 2, "right": 1, "graded": 3, "requests": 6, "over budget": 0,
    }  # fmt: skip
    roles = [message["role"] for message in server.calls[-1].body["messages"]]
    assert roles.count("tool") == 2


def native_call(tokens: int) -> dict[str, Any]:
    """An answer that calls a tool in the form of the API."""
    function = {"name": "lookup_order", "arguments": '{"order": "A17"}'}
    call = {"id": "x", "type": "function", "function": function}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    return {
        "choices": [{"message": message, "finish_reason": "tool_calls"}],
        "usage": {"prompt_tokens": tokens, "completion_tokens": 1, "total_tokens": tokens + 1},
    }


@pytest.mark.parametrize(("tokens", "right", "over_budget"), [(120, True, 0), (5_000, False, 1)])
async def test_a_call_in_the_form_of_the_api_is_a_call_too(
    tokens: int, right: bool, over_budget: int
) -> None:
    turn = {"user": "Where is A17?", "call": ["lookup_order", "A17"], "expected": ["Blitzpost"]}
    async with ModelServer(say=answer_as_agent) as server, CachedEndpoint(server.url) as endpoint:
        server.script = [Behave(body=native_call(tokens))]
        (done,) = await run_day(endpoint, "test-model", make_day(turn))
    assert (done.called, done.right, done.over_budget) == (True, right, over_budget)


def test_the_days_that_come_along_can_be_lived() -> None:
    days = load_days()
    assert len(days) == 3
    for one in days:
        assert {tool["function"]["name"] for tool in one.tools} == set(one.outputs)
        for turn in one.turns:
            if "call" in turn:
                name, argument = turn["call"]
                assert argument in one.outputs[name]


# ── the command ─────────────────────────────────────────────────────────────────────────────────────────────────────


def write_locomo(folder: Path) -> Path:
    talk = colour_conversation("pair-1")
    turns = [
        {"speaker": said.speaker, "dia_id": f"D1:{place}", "text": said.text}
        for place, said in enumerate(talk.said)
    ]
    asked = [
        {"question": one.text, "answer": one.answer, "evidence": [f"D1:{min(one.gold)}"], "category": 4}
        for one in talk.questions
        if one.gold
    ]
    record = {
        "sample_id": talk.name,
        "conversation": {
            "speaker_a": "Ines",
            "speaker_b": "Bo",
            "session_1_date_time": "1:05 pm on 3 May, 2024",
            "session_1": turns,
        },
        "qa": asked,
    }
    file = folder / "talk.json"
    file.write_text(json.dumps(record), encoding="utf-8")
    return file


async def run_answers_command(*arguments: str) -> str:
    """Run the command in another thread: a server of this event loop can answer it."""
    result = await asyncio.to_thread(CliRunner().invoke, app, ["eval", "answers", *arguments])
    assert (result.exit_code, result.stderr) == (0, ""), result.stderr
    return result.stdout


async def test_the_command_writes_a_table_and_asks_nothing_twice(server: ModelServer, tmp_path: Path) -> None:
    file = write_locomo(tmp_path)
    fixed = ("--model-url", server.url, "--model", "test-model", "--cache", str(tmp_path))
    asked = (*fixed, "--data", str(file), "--part", "questions", "--budget", "120")
    out = await run_answers_command(*asked)
    for row in Row:
        assert re.search(rf"^{row} +[\d.]+ \[[\d.]+, [\d.]+\] ", out, re.MULTILINE)
    assert "model test-model, budget 120, temperature 0, date " in out
    assert {call.body["temperature"] for call in server.calls} == {0}
    sent = len(server.calls)
    found = json.loads(await run_answers_command(*asked, "--json"))
    assert len(server.calls) == sent
    assert found["rows"]["default prompt"]["F1"]["mean"] == 1.0
    assert found["rows"]["no memory"]["F1 margin"]["mean"] == -1.0
    assert len(found["answers"]) == 24


async def test_the_command_needs_no_data(tmp_path: Path) -> None:
    def say(body: dict[str, Any]) -> str:
        if "You grade answers" in body["messages"][0]["content"]:
            return '{"reason": "says nothing", "rating": 0}'
        return "I cannot tell."

    async with ModelServer(say=say) as server:
        fixed = ("--model-url", server.url, "--model", "test-model", "--cache", str(tmp_path))
        small = ("--questions", "2", "--row", "default prompt", "--judge-model", "test-judge")
        found = json.loads(await run_answers_command(*fixed, *small, "--json"))
    assert len(found["answers"]) == 2
    assert found["corrections"] == {"neither": 20}
    assert [one["called"] for one in found["days"].values()] == [0, 0, 0]
    assert found["judge"]["default prompt"] == {"rating": 0.0, "rated": 2, "unreadable": 0, "failed": 0}
