"""How sure a recall is that memory holds an answer, and where it stops because the rest is noise."""

from __future__ import annotations

import pytest

from acms import ACMS, ACMSConfig, Band
from acms.providers import OfflineReflector
from acms.storage import MemoryStorage
from tests.support.fakes import FakeEmbedder
from tests.support.talk import LONG_EPISODES, fill, session_on

TALK = (
    "The deploy pipeline runs on Jenkins these days",
    "Lunch was late again, the queue went around the corner",
    "We moved the invoices to a bucket in Frankfurt",
    "My sister sent photos of her garden",
)


async def test_what_was_said_is_told_from_what_never_was() -> None:
    async with session_on(MemoryStorage()) as session:
        await fill(session, *TALK, close=True)
        said = await session.recall("On what does the deploy pipeline run?")
        assert said.band is Band.STRONG
        assert str(said.ledger.certainty).startswith(f"strong ({said.confidence:.2f}): the best places hold")
        near = await session.recall("Which bucket holds the Jenkins backups of the mobile team in Oslo?")
        assert near.band is Band.NONE
        assert 0 < near.confidence < said.confidence
        assert (await session.recall("zanzibar")).confidence == 0
        assert (await session.window(500)).band is Band.NONE


async def test_it_does_not_depend_on_the_budget_or_on_what_is_shown() -> None:
    async with session_on(MemoryStorage()) as session:
        await fill(session, *TALK, close=True)
        query = "Where are the invoices?"
        full = (await session.recall(query)).confidence
        assert (await session.recall(query, token_budget=1)).confidence == full
        assert (await session.recall(query, min_relevance=0.99)).confidence == full


async def test_a_past_version_is_as_sure_as_it_was_then() -> None:
    async with session_on(MemoryStorage()) as session:
        await fill(session, *TALK[:2])
        items = await session.recall("Which team owns the deploy pipeline?")
        then, version = items.ledger.certainty, items.version
        await fill(session, "The platform team owns the deploy pipeline", "Ada likes gardens")
        now = (await session.recall("Which team owns the deploy pipeline?")).ledger.certainty
        assert now.confidence > then.confidence
        assert (
            await session.at(version).recall("Which team owns the deploy pipeline?")
        ).ledger.certainty == then


async def test_a_question_about_somebody_else_is_less_sure() -> None:
    async with session_on(MemoryStorage()) as session:
        for name, text in (
            ("Ada", "I painted a sunset over the lake"),
            ("Bob", "How nice! I only watched the football match"),
            ("Ada", "The lake was frozen that week"),
            ("Bob", "I should go there once"),
        ):
            await session.ingest("user", text, actor_id=name)
        await session.close_episode()
        right = (await session.recall("What sunset did Ada paint?")).ledger.certainty
        wrong = (await session.recall("What sunset did Bob paint?")).ledger.certainty
        assert right.lead > 0 > wrong.lead
        assert right.confidence > wrong.confidence
        assert "somebody else said" in str(wrong)
        # names alone ask for something too, where nothing else is asked
        assert (await session.recall("Bob?")).confidence > 0


async def test_the_newest_message_does_not_answer_itself() -> None:
    async with session_on(MemoryStorage()) as session:
        await fill(session, *TALK, close=True)
        query = "Which submarine did we order?"
        await fill(session, query)
        assert (await session.recall(query)).band is Band.NONE
        assert (await session.recall("Which submarine did we order, again?")).band is not Band.NONE


async def test_meaning_counts_where_there_are_vectors() -> None:
    async with session_on(MemoryStorage(), embedder=FakeEmbedder()) as session:
        await fill(session, *TALK, close=True)
        await session.wait_pending()
        items = await session.recall("deploy pipeline runs on Jenkins")
        assert items.ledger.certainty.rise > 0
        assert "by meaning" in str(items.ledger.certainty)
        assert items.band is Band.STRONG


async def learned() -> ACMS:
    session = session_on(
        MemoryStorage(), config=ACMSConfig(episodes=LONG_EPISODES), reflector=OfflineReflector()
    )
    await fill(session, "The database is Postgres.", "The deadline is March 15.", close=True)
    await session.wait_pending()
    return session


async def test_a_fact_that_says_what_was_asked_settles_it() -> None:
    async with await learned() as session:
        await fill(session, *(f"a database of {name} had an outage" for name in ("Ada", "Bob", "Cyd")))
        items = await session.recall("What is the database of the project?")
        assert items.ledger.certainty.says
        assert items.confidence >= 0.95
        assert "a fact says what was asked" in str(items.ledger.certainty)


async def test_what_is_made_of_another_fact_is_noise_however_it_scores() -> None:
    async with await learned() as session:
        other = await fill(session, "Funny, a deadline around March 15 is bad luck they say", close=True)
        items = await session.recall("When is the deadline?")
        assert {item.content for item in items if item.source != "current_episode"} >= {
            "The deadline is March 15."
        }
        assert all("Postgres" not in item.content for item in items)
        assert items.ledger.why(other[0])  # names the value: it stays, and there is a reason


async def test_what_is_too_little_beside_a_sure_answer_is_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    async with session_on(MemoryStorage()) as session:
        await fill(session, *TALK, "a garden in Frankfurt", close=True)
        await fill(session, "hello")
        query = "We moved the invoices to a bucket in Frankfurt"
        before = await session.recall(query)
        far = next(item for item in before if item.content == "a garden in Frankfurt")
        best = max(item.score for item in before)
        monkeypatch.setattr("acms.recall.cutoff.FLOOR", (far.score + 0.01) / best**2)
        items = await session.recall(query)
        verdict = items.ledger.why(far.id)
        assert (verdict.included, verdict.rule) == (False, "noise")
        assert "is noise beside one of" in verdict.reason
        assert query in [item.content for item in items]
