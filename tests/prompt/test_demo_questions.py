"""The bundled conversation: its questions are answered in recalls, messages and default prompts of 1,000 tokens."""

from __future__ import annotations

from collections.abc import AsyncIterator
from importlib.resources import as_file, files

import pytest

from acms import ACMS, open_storage
from acms.branches.importers import read_chat
from acms.codecs import OpenAIChat
from acms.prompt import Prompt
from acms.providers import LocalEmbedder

ANSWERED = {
    "which database did we choose for orders?": "PostgreSQL 18, one primary",
    "which database do we use?": "PostgreSQL 18, one primary",
    "what did we decide about Kafka?": "no Kafka for now",
    "when is the cutover?": "17 March",
    "who is on call at the cutover?": "Priya",
    "how long are invoices kept?": "ten years",
    "how long do we keep addresses?": "24 months",
    "why did the migration fail?": "lock timeout",
    "what is our monthly budget?": "2,400",
    "how is the orders table partitioned?": "by month",
    "why is external_ref a problem?": "external_ref",
    "how long may we roll back?": "48 hours",
}
BY_MEANING = {
    "how do we prevent duplicate orders?": "Idempotency-Key",
    "how long may we roll back?": "48 hours",
}
"""No word of these answers is in the question: they take a model that knows what is meant."""


async def ingest_demo(session: ACMS) -> None:
    with as_file(files("acms") / "data" / "demo.jsonl") as path:
        await session.ingest_many([dict(turn) for turn in read_chat(path)])
    await session.wait_pending()


@pytest.fixture
async def demo() -> AsyncIterator[ACMS]:
    async with ACMS("demo", open_storage("memory://"), None) as session:
        await ingest_demo(session)
        yield session


async def texts_by_way(session: ACMS, question: str) -> dict[str, str]:
    """Return what each way of asking shows."""
    prompt = Prompt(OpenAIChat("gpt-4o")).history(session).recall(session, question).user(question)
    rendered = await prompt.render(budget=1000)
    assert rendered.tokens.upper_bound <= 1000
    messages = await session.messages(question, budget=1000)
    return {
        "recall": (await session.recall(question, token_budget=500)).text(),
        "messages": "\n".join(str(one["content"]) for one in messages),
        "prompt": "\n".join(message.text for message in rendered.messages),
    }


@pytest.mark.parametrize("question", ANSWERED)
async def test_a_question_is_answered_however_it_is_asked(demo: ACMS, question: str) -> None:
    shown = await texts_by_way(demo, question)
    assert [way for way, text in shown.items() if ANSWERED[question].lower() not in text.lower()] == []


async def test_what_was_chosen_are_the_decisions_in_force(demo: ACMS) -> None:
    items = await demo.recall("what did we choose?", token_budget=500)
    decided = [item for item in items if "decision" in item.markers]
    assert len(decided) >= 5
    answers = [item for item in items if item.relevance > 0]  # not what only stands beside them
    best = sorted(answers, key=lambda item: -item.score)[:5]
    assert all("decision" in item.markers for item in best)


async def test_with_a_model_a_prompt_answers_what_shares_no_word_with_its_answer() -> None:
    async with ACMS("demo", open_storage("memory://"), LocalEmbedder()) as session:
        await ingest_demo(session)
        for question, answer in BY_MEANING.items():
            assert answer.lower() in (await texts_by_way(session, question))["prompt"].lower(), question
