"""Follow-ups: a question without a subject is also searched with that of the user's message before it."""

from __future__ import annotations

import json

import pytest

from acms import ACMS, open_storage
from acms.codecs import OpenAIChat
from acms.prompt import Prompt, Rendered

ANSWER = "The Lyra lamp has a credit of 12 percent, at most 4,500 euros a month."
SEARCHED = "the question names no subject: that of the message before it is searched for too"


async def _session() -> ACMS:
    """Return a session that last talked about something it said long before."""
    session = ACMS("s", open_storage("memory://"), None)
    texts = [ANSWER, "Noted."]
    for number in range(40):
        texts += [
            f"Is clause {number} usual for the industry?",
            f"Clause {number} is common, as agreements go.",
        ]
    texts += ["Let's talk about the credit of the Lyra lamp.", "Sure, what about it?"]
    for index, text in enumerate(texts):
        await session.ingest("assistant" if index % 2 else "user", text)
    return session


async def _render(session: ACMS, question: str, *, stored: bool = False) -> Rendered:
    prompt = Prompt(OpenAIChat("gpt-4o")).history(session).recall(session, question)
    if not stored:
        return await prompt.user(question).render(budget=500)
    await session.ingest("user", question)
    return await prompt.render(budget=500)


@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize("question", ["And how much is it at most?", "How high is it?", "And that?"])
async def test_a_follow_up_finds_what_the_turn_before_is_about(question: str, stored: bool) -> None:
    rendered = await _render(await _session(), question, stored=stored)
    assert "4,500 euros" in json.dumps(rendered.payload)
    assert SEARCHED in rendered.warnings


async def test_a_recall_of_a_session_follows_up_too() -> None:
    session = await _session()
    items = await session.recall("And how much is it at most?", budget=500, relevant_only=True)
    assert ANSWER in [item.content for item in items]


@pytest.mark.parametrize("text", ["Thanks!", "Ok, go on.", "That was great, thank you!", "number"])
async def test_courtesies_and_single_words_search_nothing_else(text: str) -> None:
    rendered = await _render(await _session(), text)
    assert "4,500 euros" not in json.dumps(rendered.payload)
    assert SEARCHED not in rendered.warnings


async def test_a_pasted_text_is_no_subject() -> None:
    session = await _session()
    await session.ingest("user", "lamp " + " ".join(f"word{number}" for number in range(60)))
    rendered = await _render(session, "And how much is it at most?")
    assert SEARCHED not in rendered.warnings


@pytest.mark.parametrize("reply", ["12", "again", "Why?", "yes!"])
async def test_a_bare_reply_recalls_no_earlier_exchange(reply: str) -> None:
    """A child answers a tutor: an old question beside the new one would make the answer look wrong."""
    session = ACMS("s", open_storage("memory://"), None)
    for number in range(120):
        first, second = number % 7 + 2, number % 8 + 2
        replies = ("ok", "again", "next", str(first * second), "why?", "yes!", "12")
        await session.ingest("user", replies[number * number % 13 % 7])
        await session.ingest("assistant", f"What is {first} times {second}?")
    assert (await _render(session, reply)).use.recalled == 0
