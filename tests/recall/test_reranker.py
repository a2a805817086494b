"""A session with a reranker: it has a say in the order of the best of the past, and costs only time when it fails."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from acms import ACMS, ACMSConfig, ConfigurationError, RecallConfig
from acms.storage import MemoryStorage
from acms.sync import ACMS as BlockingACMS
from acms.testing.logs import append_drafts, draft_fact
from tests.support.talk import LONG_EPISODES, PATIENT, Storage, contents_of, ingest_texts, session_on

ABOUT = [
    "orders run on PostgreSQL",
    "orders of the database team",
    "the cat sleeps all day",
    "orders at noon",
]
QUERY = "which database runs orders?"


class FakeReranker:
    """Scores by shared letters of a word it is told to like; counts its calls; fails as it is told to."""

    def __init__(self, like: str = "noon") -> None:
        self.like = like
        #: Query and texts of every call.
        self.calls: list[tuple[str, list[str]]] = []
        #: Raised, one a call, before there is an answer.
        self.errors: list[Exception] = []
        self.answer: Callable[[Sequence[str]], Any] | None = None
        #: Calls wait for it.
        self.gate: asyncio.Event | None = None

    async def rerank(self, query: str, texts: Sequence[str]) -> Sequence[float]:
        self.calls.append((query, list(texts)))
        if self.gate is not None:
            await self.gate.wait()
        if self.errors:
            raise self.errors.pop(0)
        if self.answer is not None:
            found: Sequence[float] = self.answer(texts)
            return found
        return [0.9 if re.search(self.like, text) else 0.4 for text in texts]

    @property
    def texts(self) -> list[str]:
        return [text for _, texts in self.calls for text in texts]


async def session_with_past(storage: Any, reranker: Any, name: str = "user_123", **given: Any) -> ACMS:
    """A session with a past of four messages."""
    session = session_on(storage, name, reranker=reranker, **given)
    await ingest_texts(session, *ABOUT, close=True)
    await ingest_texts(session, "now")
    return session


def scores_of_items(items: Sequence[Any]) -> list[tuple[str, float, float]]:
    return [(item.content, item.relevance, item.score) for item in items]


# ── who is a reranker ───────────────────────────────────────────────────────────────────────────────────────────────


class Odd(FakeReranker):
    def __init__(self, candidates: Any) -> None:
        super().__init__()
        self.candidates = candidates


@pytest.mark.parametrize(
    "reranker", [object(), "model", 5, FakeReranker, Odd(0), Odd(-1), Odd(1.5), Odd(True), Odd("8")]
)
def test_what_cannot_rerank_is_refused_by_the_constructor(reranker: Any) -> None:
    with pytest.raises(ConfigurationError, match="reranker"):
        ACMS("s", MemoryStorage(), reranker=reranker)


def test_time_to_rerank_must_be_above_nothing() -> None:
    with pytest.raises(ConfigurationError, match="rerank_seconds"):
        RecallConfig(rerank_seconds=0)


# ── what it does ────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_its_scores_move_the_order_and_stand_in_the_ledger(storage: Storage) -> None:
    reranker = FakeReranker()
    async with await session_with_past(storage, reranker) as session:
        items = await session.recall(QUERY, token_budget=500)
        ((query, texts),) = reranker.calls
        assert query == QUERY
        assert texts[0] == "user: orders run on PostgreSQL"  # the best one first, under its speaker's name
        past = {item.content: item for item in items if item.content != "now"}
        async with session_on(storage) as plain:
            before = {item.content: item for item in await plain.recall(QUERY, token_budget=500)}
        noon, best = "orders at noon", "orders run on PostgreSQL"
        assert before[noon].score < past[noon].score
        assert past[best].score < before[best].score
        assert past[noon].relevance == before[noon].relevance
        verdict = items.ledger.why(past["orders at noon"].id)
        assert verdict.parts["rerank"] == 0.9
        assert verdict.score == past[noon].score
        assert verdict.parts["message"] > 0  # and what brought it before the reranker
        assert items.ledger.warnings == ()


async def test_what_it_likes_best_is_what_a_small_budget_holds(storage: Storage) -> None:
    async with await session_with_past(storage, FakeReranker(), words=True) as session:
        items = await session.recall(QUERY, token_budget=6)
        assert contents_of(items) == ["orders at noon", "now"]
    async with session_on(storage, words=True) as plain:
        items = await plain.recall(QUERY, token_budget=7)
        assert contents_of(items) == ["orders run on PostgreSQL", "now"]


async def test_a_mark_decides_between_equal_scores(storage: Storage) -> None:
    async with session_on(storage, reranker=FakeReranker("orders")) as session:
        await session.ingest("user", "orders at noon", markers=["decision"])
        await session.ingest("user", "orders at eight", markers=[])
        await session.close_episode()
        await session.ingest("user", "now")
        marked, plain, _ = await session.recall("orders", token_budget=500)
        assert marked.score > plain.score


async def test_only_the_best_candidates_are_asked_about(storage: Storage) -> None:
    reranker = Odd(2)
    async with await session_with_past(storage, reranker) as session:
        await session.recall(QUERY, token_budget=500)
        assert len(reranker.texts) == 2
    many = FakeReranker("point 7$")
    async with session_on(storage, "many", reranker=many) as session:
        await session.ingest_many([{"role": "user", "content": f"orders, point {n}"} for n in range(60)])
        await session.close_episode()
        await session.ingest("user", "now")
        await session.recall("orders", token_budget=2000)
        assert len(many.texts) == len(set(many.texts)) == 32


async def test_the_least_relevance_is_not_a_matter_of_the_reranker(storage: Storage) -> None:
    async with session_on(storage) as plain, await session_with_past(storage, FakeReranker()) as session:
        items = await session.recall(QUERY, token_budget=500, min_relevance=0.5)
        assert contents_of(items) == ["orders run on PostgreSQL", "orders of the database team", "now"]
        assert contents_of(await plain.recall(QUERY, token_budget=500, min_relevance=0.5)) == contents_of(
            items
        )


async def test_one_whose_scores_tell_nothing_moves_nothing(storage: Storage) -> None:
    flat = FakeReranker("orders|cat")  # 0.9 for all
    async with await session_with_past(storage, flat) as session, session_on(storage) as plain:
        items = await session.recall(QUERY, token_budget=500)
        found = [item.content for item in items.best(5)]
        assert found == [item.content for item in (await plain.recall(QUERY, token_budget=500)).best(5)]


async def test_facts_are_scored_beside_messages(storage: Storage) -> None:
    reranker = FakeReranker("2 TB")
    async with await session_with_past(storage, reranker) as session:
        context = await session._shared.storage.context("user_123")
        await append_drafts(storage, context, draft_fact("the orders database has 2 TB"))
        items = await session.recall(QUERY, token_budget=500)
        assert "the orders database has 2 TB" in reranker.texts
        assert items[0].source == "fact"
        assert items.ledger.why(items[0].id).parts["rerank"] == 0.9


async def test_every_door_that_recalls_asks_it(storage: Storage) -> None:
    reranker = FakeReranker()
    async with await session_with_past(storage, reranker, words=True) as session:
        version = (await session.get_session_stats()).version
        before = scores_of_items(await session.recall(QUERY, token_budget=500))
        await ingest_texts(session, "lunch is here", close=True)
        assert scores_of_items(await session.at(version).recall(QUERY, token_budget=500)) == before
        assert len(reranker.calls) == 2
        child = await session.fork(at=version)
        assert scores_of_items(await child.recall(QUERY, token_budget=500)) == before
        await session.ingest_many([{"role": "user", "content": f"something else {n}"} for n in range(30)])
        written = await session.messages(QUERY, budget=100)
        assert "orders at noon" in str(written)
        assert len(reranker.calls) == 4
        other = session_on(storage, "other", reranker=reranker, words=True, namespace="team")
        await other.recall(QUERY, token_budget=500, scope="namespace")
        assert scores_of_items(await session.recall(QUERY, token_budget=500)) == scores_of_items(
            await session.recall(QUERY, token_budget=500)
        )


def test_blocking_code_has_it_too() -> None:
    reranker = FakeReranker()
    with BlockingACMS("s", MemoryStorage(), reranker=reranker) as session:
        for text in ABOUT:
            session.ingest("user", text)
        session.close_episode()
        session.ingest("user", "now")
        items = session.recall(QUERY, token_budget=500)
        assert {verdict.parts.get("rerank") for verdict in items.ledger} == {0.9, 0.4, None}


# ── what it never sees ──────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_blocked_message_is_never_shown_to_it(storage: Storage) -> None:
    reranker = FakeReranker()
    async with session_on(storage, reranker=reranker) as session:
        await session.ingest("user", "the orders database has the password tiger", privacy="block")
        await ingest_texts(session, *ABOUT)
        calls = [{"id": "c", "name": "orders", "arguments": "{}"}]
        await session.ingest("assistant", "let me see the orders database", tool_calls=calls)
        await session.ingest("tool", "orders database key: lion", tool_call_id="c", privacy="block")
        await session.close_episode()
        await session.ingest("user", "now")
        items = await session.recall(QUERY, token_budget=2000)
        said = " ".join(reranker.texts)
        assert "tiger" not in said
        assert "lion" not in said
        assert "let me see" not in said  # a tool turn is one
        (blocked, *_) = [verdict for verdict in items.ledger if verdict.version == 1]
        assert "rerank" not in blocked.parts


async def test_nothing_to_ask_is_no_question(storage: Storage) -> None:
    reranker = FakeReranker()
    async with session_on(storage, reranker=reranker) as session:
        await session.recall("orders")
        await ingest_texts(session, "now")
        await session.recall("orders")
        assert await session.messages("orders", budget=1000) == [{"role": "user", "content": "now"}]
        assert reranker.calls == []


# ── when it fails ───────────────────────────────────────────────────────────────────────────────────────────────────

GARBAGE: dict[str, Callable[[Sequence[str]], Any]] = {
    "too few": lambda texts: [0.5] * (len(texts) - 1),
    "too many": lambda texts: [0.5] * (len(texts) + 1),
    "nan": lambda texts: [float("nan")] * len(texts),
    "infinite": lambda texts: [float("inf")] * len(texts),
    "above": lambda texts: [1.5] * len(texts),
    "below": lambda texts: [-0.5] * len(texts),
    "none": lambda texts: None,
    "some none": lambda texts: [None] * len(texts),
    "nothing": lambda texts: [],
    "a text": lambda texts: "1" * len(texts),
    "texts": lambda texts: ["high"] * len(texts),
    "mappings": lambda texts: [{"score": 0.5}] * len(texts),
    "a number": lambda texts: 0.5,
}


@pytest.mark.parametrize("garbage", GARBAGE)
async def test_an_answer_that_is_no_scores_changes_nothing_and_leaves_a_warning(
    storage: Storage, garbage: str
) -> None:
    reranker = FakeReranker()
    reranker.answer = GARBAGE[garbage]
    async with await session_with_past(storage, reranker) as session, session_on(storage) as plain:
        items = await session.recall(QUERY, token_budget=500)
        assert scores_of_items(items) == scores_of_items(await plain.recall(QUERY, token_budget=500))
        (warning,) = items.ledger.warnings
        assert warning.startswith("the reranker FakeReranker ")
        assert len(reranker.calls) == 1


async def test_one_that_fails_is_tried_again_as_the_config_says(storage: Storage) -> None:
    reranker = FakeReranker()
    async with await session_with_past(storage, reranker) as session:
        reranker.errors = [ConnectionError(), TimeoutError()]
        items = await session.recall(QUERY, token_budget=500)
        assert items.ledger.why(items[-2].id).parts["rerank"] == 0.9
        assert len(reranker.calls) == PATIENT.max_attempts
        reranker.errors = [ConnectionError() for _ in range(PATIENT.max_attempts)]
        items = await session.recall(QUERY, token_budget=500)
        assert items.ledger.warnings == ("the reranker FakeReranker did not answer: ranked without it",)
        reranker.errors = [ValueError("secret")]
        items = await session.recall(QUERY, token_budget=500)
        assert len(reranker.calls) == 2 * PATIENT.max_attempts + 1
        assert "secret" not in str(items.ledger.warnings)


async def test_one_that_hangs_delays_a_recall_by_its_time_and_no_longer(storage: Storage) -> None:
    reranker = FakeReranker()
    config = ACMSConfig(episodes=LONG_EPISODES, retry=PATIENT, recall=RecallConfig(rerank_seconds=0.05))
    async with (
        await session_with_past(storage, reranker, config=config) as session,
        session_on(storage) as plain,
    ):
        reranker.gate = asyncio.Event()
        async with asyncio.timeout(300):
            items = await session.recall(QUERY, token_budget=500)
            assert scores_of_items(items) == scores_of_items(await plain.recall(QUERY, token_budget=500))
            assert items.ledger.warnings == ("the reranker FakeReranker did not answer: ranked without it",)
            written = await session.messages(QUERY, budget=1000)
            assert written == await plain.messages(QUERY, budget=1000)
        reranker.gate.set()
        assert (await session.recall(QUERY, token_budget=500)).ledger.warnings == ()


async def test_a_recall_that_is_given_up_gives_up_the_question(storage: Storage) -> None:
    reranker = FakeReranker()
    async with await session_with_past(storage, reranker) as session:
        reranker.gate = asyncio.Event()
        task = asyncio.ensure_future(session.recall(QUERY, token_budget=500))
        while not reranker.calls:
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_what_is_erased_while_it_thinks_is_not_shown(storage: Storage) -> None:
    reranker = FakeReranker()
    async with await session_with_past(storage, reranker) as session:
        (noon,) = [one.id for one in (await session.history()).entries if one.preview == "orders at noon"]
        reranker.gate = asyncio.Event()
        task = asyncio.ensure_future(session.recall(QUERY, token_budget=500))
        while not reranker.calls:
            await asyncio.sleep(0)
        await session.erase(noon)
        reranker.gate.set()
        assert "orders at noon" not in contents_of(await task)
