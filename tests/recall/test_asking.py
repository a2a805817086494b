"""A question that is itself in the log: it is no answer, and changes nothing of what answers it."""

from __future__ import annotations

import pytest

from acms import ACMS, open_storage

QUESTION = "At which address do we reach the Napera report?"


@pytest.mark.parametrize("relevant_only", [False, True])
async def test_a_question_that_was_ingested_first_finds_what_it_finds_otherwise(relevant_only: bool) -> None:
    async with ACMS("s", open_storage("memory://"), None) as session:
        answer = await session.ingest("user", "Napera lives at pozega-1.internal:8863 these days.")
        for number in range(40):
            await session.ingest("user", f"The cluster number {number} can wait until we split the test.")
        before = await session.recall(QUESTION, budget=300, relevant_only=relevant_only)
        await session.ingest("user", QUESTION)
        after = await session.recall(QUESTION, budget=300, relevant_only=relevant_only)
        assert before.best(1)[0].id == after.best(1)[0].id == answer
        assert after.best(1)[0].score == before.best(1)[0].score == 1


async def test_messages_show_the_answer_to_the_newest_message() -> None:
    async with ACMS("s", open_storage("memory://"), None) as session:
        await session.ingest("user", "Napera lives at pozega-1.internal:8863 these days.")
        for number in range(40):
            await session.ingest("user", f"The cluster number {number} can wait until we split the test.")
        await session.ingest("user", QUESTION)
        messages = await session.messages(QUESTION, budget=200)
        assert any("pozega-1.internal:8863" in str(message["content"]) for message in messages)


@pytest.mark.parametrize("query", ["deadline March 15", "Is the deadline March 15?"])
async def test_the_newest_statement_answers_its_own_words(query: str) -> None:
    async with ACMS("s", open_storage("memory://"), None) as session:
        await session.ingest("user", "Hello there, how are you?")
        answer = await session.ingest("user", "The deadline is March 15.")
        items = await session.recall(query, budget=200, relevant_only=True)
        assert [item.id for item in items] == [answer]


async def test_a_question_asked_in_fewer_words_is_no_answer() -> None:
    """A model that searches with key words is not shown the question that it was asked."""
    async with ACMS("s", open_storage("memory://"), None) as session:
        answer = await session.ingest("user", "The deadline for the garden report is March 15.")
        await session.ingest("user", "And what is the deadline for the garden report?")
        items = await session.recall("garden report deadline", budget=200, relevant_only=True)
        assert [item.id for item in items.best(1)] == [answer]


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("Quelles règles t'ai-je données ?", "Règles : pas de requêtes SQL dans les vues."),
        ("¿Qué reglas te di para los importes?", "Reglas: los importes siempre en Decimal."),
        ("Welche Regeln habe ich dir gegeben?", "Meine Regeln: keine Abfragen in den Ansichten."),
        ("제가 말한 규칙이 뭐였죠?", "규칙: 항상 존댓말로 답해 주세요."),
        ("How do I roll back the Napera service?", "Napera needs a rollback of the schema first."),
    ],
)
async def test_a_stored_question_finds_the_same_in_every_language(question: str, answer: str) -> None:
    async with ACMS("s", open_storage("memory://"), None) as session:
        await session.ingest("user", answer)
        for number in range(40):
            await session.ingest("user", f"numero_{number}.py est correct.")
        before = await session.recall(question, budget=300, relevant_only=True)
        await session.ingest("user", question)
        after = await session.recall(question, budget=300, relevant_only=True)
        assert answer in [item.content for item in before]
        assert [item.id for item in after] == [item.id for item in before]
