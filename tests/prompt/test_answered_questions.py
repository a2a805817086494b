"""A question that the user asked earlier is recalled with its answer, or not at all."""

from __future__ import annotations

import json

import pytest

from acms import ACMS, Prompt
from acms.codecs import OpenAIChat

ARTICLES = ("mug", "umbrella", "mat", "lamp", "bag", "headset", "towel", "shelf", "cooker", "fan")


async def quote(session: ACMS, question: str, budget: int) -> list[str]:
    """Return the excerpts that a request quotes for a question, in their order."""
    rendered = (
        await Prompt(OpenAIChat("gpt-4o"))
        .history(session)
        .recall(session, question)
        .user(question)
        .render(budget=budget)
    )
    excerpts: list[str] = []
    for message in rendered.payload["messages"]:
        text = str(message.get("content") or "")
        if text.startswith("<recalled>"):
            excerpts += text.removesuffix("</recalled>").strip().split("\n\n")[1:]
    return [excerpt.split(": ", 1)[1] for excerpt in excerpts]


def find_bare(excerpts: list[str], answers: dict[str, str]) -> list[str]:
    """Return the quoted questions of which neither the answer nor the beginning of it is quoted."""
    beginnings = {excerpt[:12] for excerpt in excerpts}
    return [excerpt for excerpt in excerpts if excerpt in answers and answers[excerpt][:12] not in beginnings]


@pytest.mark.parametrize(
    ("form", "answer", "question"),
    [
        (
            "Which {} do you recommend?",
            "The {} of Hallberg, at {} euros, has the best reviews and comes with two years of warranty.",
            "Which {} do you recommend to a friend of mine?",
        ),
        (
            "{}有什么推荐?",
            "{}推荐热销第三款,价格{}元,好评率九成,支持七天无理由退货,满两百元包邮。",
            "{}什么时候打折?",
        ),
    ],
)
@pytest.mark.parametrize("budget", [300, 400, 600, 1000])
async def test_a_question_is_quoted_with_its_answer(
    form: str, answer: str, question: str, budget: int
) -> None:
    answers = {form.format(name): answer.format(name, 30 + n) for n, name in enumerate(ARTICLES)}
    quoted = 0
    async with ACMS("s", "memory://", None) as session:
        for asked, answered in answers.items():
            await session.ingest("user", asked)
            await session.ingest("assistant", answered)
        for number in range(40):
            await session.ingest("user", f"The weather of day {number} was fine.")
            await session.ingest("assistant", f"I noted day {number}.")
        for name in ARTICLES:
            excerpts = await quote(session, question.format(name), budget)
            assert find_bare(excerpts, answers) == []
            quoted += len(answers.keys() & set(excerpts))
    assert quoted


@pytest.mark.parametrize("budget", [400, 800, 2000])
async def test_a_routine_request_is_quoted_with_its_answer(budget: int) -> None:
    answers = {
        f"Show week {week} by customer.": f"Week {week}: {week}47 kEUR in all." for week in range(1, 16)
    }
    async with ACMS("s", "memory://", None) as session:
        await session.ingest("user", "Report in kEUR, and exclude test customers from everything.")
        await session.ingest("assistant", "Will do.")
        for week, (asked, answered) in enumerate(answers.items(), 1):
            await session.ingest("user", asked)
            call = {"id": f"q{week}", "name": "sql", "arguments": json.dumps({"week": week})}
            await session.ingest("assistant", "", tool_calls=[call])
            rows = [{"region": region, "revenue": week * 1000 + region} for region in range(40)]
            await session.ingest("tool", json.dumps(rows), tool_call_id=f"q{week}")
            await session.ingest("assistant", answered)
        excerpts = await quote(session, "And how much was it in week 4 in all?", budget)
    assert find_bare(excerpts, answers) == []
    assert answers["Show week 4 by customer."] in excerpts


async def test_a_statement_and_an_unanswered_question_stay_alone() -> None:
    statement = "My cat Minka is allergic to chicken."
    unanswered = "Which food suits the cat Minka?"
    async with ACMS("s", "memory://", None) as session:
        await session.ingest("user", statement)
        await session.ingest(
            "assistant", "That is good to know, so we look for other kinds of meat from now on."
        )
        await session.ingest("user", unanswered)
        for number in range(30):
            await session.ingest("user", f"The weather of day {number} was fine.")
        items = await session.recall("What do I feed Minka?", budget=60, relevant_only=True)
    assert [item.content for item in items] == [statement, unanswered]


async def test_a_long_answer_is_cut_to_what_answers() -> None:
    question = "Can you tell me all about the Lyra lamp?"
    sentences = [f"Part {number} of the catalogue describes the shade in detail." for number in range(40)]
    sentences[20] = "The Lyra needs a bulb of 7 watts."
    async with ACMS("s", "memory://", None) as session:
        await session.ingest("user", question)
        await session.ingest("assistant", " ".join(sentences))
        for number in range(30):
            await session.ingest("user", f"The weather of day {number} was fine.")
        items = await session.recall("Which bulb for the Lyra lamp?", budget=200, relevant_only=True)
    assert items[0].content == question
    assert "a bulb of 7 watts" in items[1].content
    assert items[1].truncated
