"""Relevance: how far a message answers by itself, whatever stands around it."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given

from acms import ACMSConfig, Source
from acms.storage import MemoryStorage
from tests.support.stories import randoms
from tests.support.talk import LONG_EPISODES, PATIENT, Storage, contents_of, ingest_texts, session_on

ASKED = "orders database friday".split()
OTHER = "lunch rain train window paper kettle garden bridge violin".split()


@given(randoms)
async def test_relevance_is_that_of_a_message_itself(random: Random) -> None:
    async with session_on(MemoryStorage(), words=True) as session:
        for _ in range(random.randint(2, 25)):
            words = random.choices(ASKED * (random.random() < 0.3) + OTHER, k=random.randint(1, 9))
            await session.ingest("user", " ".join(words))
        await session.close_episode()
        await ingest_texts(session, "now")
        query = " ".join(ASKED)
        everything = await session.recall(query, token_budget=2000)
        past = [item for item in everything if item.source is not Source.CURRENT]
        own = {item.id for item in past if item.relevance > 0}
        assert own == {item.id for item in past if set(ASKED) & set(item.content.split())}
        strict = await session.recall(query, token_budget=2000, min_relevance=0.01)
        assert {item.id for item in strict if item.source is not Source.CURRENT} == own


@pytest.mark.parametrize(
    ("patterns", "said", "question"),
    [
        (None, "Decision: PostgreSQL 18, because of the transactions.", "what did we choose?"),
        (None, "Constraint: under five milliseconds.", "which constraints are there?"),
        (
            {"custom:rueckfrage": ["Rückfrage:"]},
            "Rückfrage: wer bezahlt das?",
            "Welche Rückfrage ist offen?",
        ),
        ({"decision": ["Beschluss:"]}, "Beschluss: wir nehmen PostgreSQL.", "Welcher Beschluss gilt?"),
    ],
)
async def test_what_is_marked_is_found_by_the_name_of_its_marker_and_by_its_patterns(
    storage: Storage, patterns: dict[str, list[str]] | None, said: str, question: str
) -> None:
    config = ACMSConfig(episodes=LONG_EPISODES, retry=PATIENT)
    if patterns is not None:
        config = ACMSConfig(episodes=LONG_EPISODES, retry=PATIENT, marker_patterns=patterns)
    async with session_on(storage, config=config) as session:
        await ingest_texts(session, *(f"small talk about the {word}" for word in OTHER))
        await ingest_texts(session, said)
        await ingest_texts(session, *(f"more talk about the {word}" for word in OTHER), close=True)
        await ingest_texts(session, "now")
        items = await session.recall(question, min_relevance=0.01)
        assert contents_of(items) == [said, "now"]
        (marked, _) = items
        assert marked.source is Source.MARKED
