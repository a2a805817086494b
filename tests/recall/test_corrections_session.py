"""What a recall shows first when something was said again, differently, and nothing was distilled yet."""

from __future__ import annotations

from acms import ACMS
from tests.support.talk import Storage, contents_of, ingest_texts, session_on

OLD = "We will build the backend on Flask, the web framework."
NEW = "We talked again and are switching the web framework from Flask to FastAPI."
CHATTER = ("How was your weekend?", "It rained a lot.", "The train was late again.", "Let us go on.")


async def session_with_correction(storage: Storage) -> ACMS:
    session = session_on(storage)
    await ingest_texts(session, OLD, *CHATTER, NEW, *CHATTER, close=True)
    await ingest_texts(session, "next topic")
    return session


async def test_both_statements_are_shown_in_order_and_nothing_is_claimed(storage: Storage) -> None:
    async with await session_with_correction(storage) as session:
        items = await session.recall("Which web framework are we using?", token_budget=60)
        assert [one for one in contents_of(items) if one in (OLD, NEW)] == [OLD, NEW]
        assert "[" not in items.text()


async def test_before_the_correction_the_old_statement_is_first(storage: Storage) -> None:
    async with await session_with_correction(storage) as session:
        items = await session.at(1 + len(CHATTER)).recall("Which web framework are we using?")
        best = max(items, key=lambda item: item.score)
        assert best.content == OLD
        assert NEW not in contents_of(items)


async def test_an_erased_predecessor_lifts_nobody(storage: Storage) -> None:
    async with await session_with_correction(storage) as session:
        question = "Which web framework are we using?"
        found = {item.content: item.id for item in await session.recall(question)}
        await session.erase(found[OLD])
        items = await session.recall(question)
        assert OLD not in contents_of(items)
        assert NEW in contents_of(items)
