"""Exchanges: a question is recalled with its answer, whoever asks."""

from __future__ import annotations

from acms import ACMS, open_storage
from acms.codecs import OpenAIChat
from acms.prompt import Prompt


async def _interview(*turns: tuple[str, str]) -> ACMS:
    """Return a session of questions of the assistant with replies, and much else behind them."""
    session = ACMS("s", open_storage("memory://"), None)
    for question, reply in turns:
        await session.ingest("assistant", question)
        await session.ingest("user", reply)
    for number in range(40):
        await session.ingest("user", f"Bird {number} sings at dawn.")
        await session.ingest("assistant", f"Bird {number} lives in forest {number}.")
    return session


async def _recall(session: ACMS, query: str) -> list[str]:
    items = await session.recall(query, budget=300, relevant_only=True)
    return [item.content for item in items]


async def test_a_question_of_the_assistant_is_recalled_with_the_reply() -> None:
    session = await _interview(
        ("What brings you here?", "The intake."), ("Your weight and height?", "94 kilos")
    )
    recalled = await _recall(session, "Which weight and height did I mention?")
    assert recalled[-2:] == ["Your weight and height?", "94 kilos"]
    assert "What brings you here?" not in recalled


async def test_of_two_questions_before_a_reply_the_last_is_answered() -> None:
    session = await _interview(("What brings you here?", "The intake."))
    await session.ingest("assistant", "Which ward shall I note?")
    await session.ingest("assistant", "Which hospital did the stent?")
    await session.ingest("user", "St. Mary's.")
    await session.ingest("assistant", "Noted.")
    recalled = await _recall(session, "Was it the ward or the hospital?")
    assert recalled[:2] == ["Which hospital did the stent?", "St. Mary's."]
    assert "Which ward shall I note?" not in recalled


async def test_a_question_of_the_assistant_without_a_reply_is_not_recalled() -> None:
    session = await _interview(("Your weight and height?", "Why do you ask?"))
    items = await session.recall("Which weight did I mention?", budget=300, relevant_only=True)
    assert "Your weight and height?" not in [item.content for item in items]
    question = (await session.entries())[0]
    assert "without its answer" in str(items.ledger.why(question.id))


async def test_a_prompt_quotes_no_bare_question_of_the_assistant() -> None:
    session = await _interview(("Your weight and height?", "94 kilos, 1.78 m."))
    question = "What were my weight and height?"
    prompt = Prompt(OpenAIChat("gpt-4o")).history(session).recall(session, question)
    rendered = await prompt.user(question).render(budget=300)
    excerpts = str(rendered.payload["messages"][-2]["content"])
    assert "Your weight and height?" in excerpts
    assert "94 kilos, 1.78 m." in excerpts
