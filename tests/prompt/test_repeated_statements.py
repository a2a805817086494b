"""What was said more than once: the newest statement counts, and a question comes with its answer."""

from __future__ import annotations

import pytest

from acms import ACMS, Prompt, open_storage
from acms.codecs import OpenAIChat


async def fill(session: ACMS, count: int) -> None:
    for number in range(count):
        await session.ingest("user", f"Ticket {number}: the printer is broken.")
        await session.ingest("assistant", f"Ticket {number} is noted.")


async def request_for(session: ACMS, question: str, budget: int) -> str:
    prompt = Prompt(OpenAIChat("gpt-4o")).history(session).recall(session, question).user(question)
    rendered = await prompt.render(budget=budget)
    return "\n".join(message.text for message in rendered.messages[:-1])


async def test_a_value_that_was_changed_and_changed_back_is_shown_as_the_newest() -> None:
    async with ACMS("units", open_storage("memory://")) as session:
        for units in ("metric", "imperial", "metric"):
            await session.ingest("user", f"Use {units} units.")
            await fill(session, 30)
        text = await request_for(session, "Which units should I use?", 300)
    assert text.index("imperial") < text.index("Use metric units.")
    assert text.count("Use metric units.") == 1


@pytest.mark.parametrize(
    "question", ["What is the wifi code of the office?", "What was the wifi code again?"]
)
async def test_a_question_asked_again_finds_the_answer_it_got(question: str) -> None:
    async with ACMS("wifi", open_storage("memory://")) as session:
        await session.ingest("user", "What is the wifi code of the office?")
        await session.ingest("assistant", "It is heron-42, on the second floor.")
        await fill(session, 80)
        text = await request_for(session, question, 300)
    assert "heron-42" in text


async def test_an_answer_stands_behind_its_own_question() -> None:
    async with ACMS("weather", open_storage("memory://")) as session:
        for degrees, city in enumerate(("Paris", "Rome", "Oslo"), 20):
            await session.ingest("user", f"What is the weather in {city}?")
            await session.ingest("assistant", f"Sunny, {degrees} degrees.")
            await fill(session, 30)
        text = await request_for(session, "What is the weather in Rome?", 300)
    lines = [
        line.split(": ", 1)[1] for line in text.splitlines() if line.startswith(("user: ", "assistant: "))
    ]
    for degrees, city in enumerate(("Paris", "Rome", "Oslo"), 20):
        if f"What is the weather in {city}?" in lines:
            question = lines.index(f"What is the weather in {city}?")
            assert lines[question + 1] == f"Sunny, {degrees} degrees."
    assert "Sunny, 21 degrees." in lines


@pytest.mark.parametrize("budget", [40, 50, 130])
async def test_the_newest_of_several_statements_stands_beside_the_best(budget: int) -> None:
    async with ACMS("offsite", open_storage("memory://"), None) as session:
        for city in ("Lisbon", "Porto", "Faro", "Braga", "Evora"):
            await session.ingest("user", f"The offsite takes place in {city}.")
            await fill(session, 10)
        items = await session.recall("Where does the offsite take place?", budget=budget)
    assert "The offsite takes place in Evora." in [item.content for item in items]
