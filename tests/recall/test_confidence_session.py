"""How sure a recall is that memory holds an answer, and where it stops because the rest is noise."""

from __future__ import annotations

from acms import Band
from acms.storage import MemoryStorage
from tests.support.fakes import FakeEmbedder
from tests.support.talk import ingest_texts, session_on

TALK = (
    "The deploy pipeline runs on Jenkins these days",
    "Lunch was late again, the queue went around the corner",
    "We moved the invoices to a bucket in Frankfurt",
    "My sister sent photos of her garden",
)


async def test_what_was_said_is_told_from_what_never_was() -> None:
    async with session_on(MemoryStorage()) as session:
        await ingest_texts(session, *TALK, close=True)
        said = await session.recall("On what does the deploy pipeline run?")
        assert said.band is Band.STRONG
        assert str(said.ledger.certainty).startswith(f"strong ({said.confidence:.2f}): the best places match")
        near = await session.recall("Which bucket holds the Jenkins backups of the mobile team in Oslo?")
        assert near.band is Band.NONE
        assert 0 < near.confidence < said.confidence
        assert (await session.recall("zanzibar")).confidence == 0
        assert (await session.window(500)).band is Band.NONE


async def test_a_past_version_is_as_sure_as_it_was_then() -> None:
    async with session_on(MemoryStorage()) as session:
        await ingest_texts(session, *TALK[:2])
        items = await session.recall("Which team owns the deploy pipeline?")
        then, version = items.ledger.certainty, items.version
        await ingest_texts(session, "The platform team owns the deploy pipeline", "Ada likes gardens")
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
        assert "another speaker said" in str(wrong)
        # names alone ask for something too, where nothing else is asked
        assert (await session.recall("Bob?")).confidence > 0


async def test_the_newest_message_does_not_answer_itself() -> None:
    async with session_on(MemoryStorage()) as session:
        await ingest_texts(session, *TALK, close=True)
        query = "Which submarine did we order?"
        await ingest_texts(session, query)
        assert (await session.recall(query)).band is Band.NONE
        assert (await session.recall("Which submarine did we order, again?")).band is not Band.NONE


async def test_meaning_counts_where_there_are_vectors() -> None:
    async with session_on(MemoryStorage(), embedder=FakeEmbedder()) as session:
        await ingest_texts(session, *TALK, close=True)
        await session.wait_pending()
        items = await session.recall("deploy pipeline runs on Jenkins")
        assert items.ledger.certainty.rise > 0
        assert "by meaning" in str(items.ledger.certainty)
        assert items.band is not Band.NONE
