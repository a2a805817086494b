"""The reason of a recalled message says whether it matches the query itself or stands beside a message that does."""

from __future__ import annotations

from typing import Any

from tests.support.talk import Storage, session_on

FILLER = [f"Ticket {number}: the printer on floor {number} has no paper." for number in range(30)]


async def _reasons(storage: Storage, *texts: str, **of_last: Any) -> dict[str, str]:
    """Return the reasons of a recall about Kafka from a log of these texts and much else, by text."""
    async with session_on(storage) as session:
        for text in (*FILLER, *texts[:-1]):
            await session.ingest("user", text)
        await session.ingest("user", texts[-1], **of_last)
        for text in FILLER:
            await session.ingest("user", text)
        await session.close_episode()
        await session.ingest("user", "Good morning")
        items = await session.recall("Is Kafka expensive?", budget=60, include_current_episode=False)
    return {item.content: item.why for item in items}


async def test_a_message_without_a_word_of_the_query_is_not_called_relevant(storage: Storage) -> None:
    reasons = await _reasons(storage, "Kafka is expensive.", "Billing agrees.")
    assert reasons["Kafka is expensive."] == "relevant to the query"
    assert reasons["Billing agrees."] == "said beside something relevant"


async def test_a_marked_message_beside_an_answer_says_both(storage: Storage) -> None:
    reasons = await _reasons(storage, "Kafka is expensive.", "Billing agrees.", markers=["decision"])
    assert reasons["Billing agrees."] == "marked decision, and said beside something relevant"
