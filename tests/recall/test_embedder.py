"""A session with an embedder: a message never waits for one that is down, and no vector is missed for long."""

from __future__ import annotations

import asyncio
import gc
import threading
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from acms import (
    ACMS,
    ACMSConfig,
    CacheConfig,
    ConfigurationError,
    ContextItems,
    Privacy,
    ProviderError,
    SessionNotFoundError,
    State,
    open_storage,
)
from acms.model import ContextDraft, ContextQuery
from acms.recall import embeddings as module
from acms.recall.embeddings import BATCH_TEXTS
from acms.recall.reindex import reindex
from acms.runtime.patience import patience
from acms.storage import MemoryStorage, WrapperStorage
from tests.support.fakes import DIMENSION, FakeEmbedder, SeedEmbedder, hash_vector
from tests.support.talk import LONG_EPISODES, PATIENT, Storage, contents_of, ingest_texts, session_on

ABOUT = ["orders run on PostgreSQL", "the cat sleeps all day", "rain in Frankfurt tomorrow", "lunch at noon"]
NOON = datetime(2026, 3, 14, 12, tzinfo=UTC)
DEAF = "the embedder did not answer: ranked by words alone"


@pytest.fixture(params=["cached", "uncached"])
def config(request: pytest.FixtureRequest) -> ACMSConfig:
    """Episodes end by hand; with and without a cache in front of the store."""
    cache = CacheConfig(enabled=request.param == "cached")
    return ACMSConfig(episodes=LONG_EPISODES, retry=PATIENT, cache=cache)


def with_embedder(storage: Any, embedder: Any, name: str = "user_123", **given: Any) -> ACMS:
    return session_on(storage, name, embedder=embedder, **given)


async def versions_without_vectors(session: ACMS) -> list[int]:
    """Versions without a vector in the session's space."""
    shared = session._shared
    assert shared.embedding is not None
    assert shared.context_id is not None
    found = await shared.handle.missing(shared.embedding.space, context=shared.context_id, limit=1000)
    return [version for _, version in found]


def embedded_state(session: ACMS) -> str:
    assert session.last_receipt is not None
    return session.last_receipt.embedded


def embed_unless_poisoned(texts: list[str]) -> Any:
    if any("poison" in text for text in texts):
        raise ValueError("input too long")
    return [hash_vector(text) for text in texts]


# ── who is an embedder ──────────────────────────────────────────────────────────────────────────────────────────────


class NoDimension:
    async def embed(self, texts: list[str]) -> list[list[float]]:
        return []


class Odd(NoDimension):
    def __init__(self, dimension: Any) -> None:
        self.dimension = dimension


class NoMethod:
    dimension = 8


@pytest.mark.parametrize(
    "embedder",
    [
        object(),
        "model",
        5,
        NoDimension(),
        Odd(0),
        Odd(-1),
        Odd(1.5),
        Odd(True),
        Odd("8"),
        NoMethod(),
        FakeEmbedder,
    ],
)
def test_what_cannot_embed_is_refused_by_the_constructor(embedder: Any) -> None:
    with pytest.raises(ConfigurationError, match="embedder"):
        ACMS("s", MemoryStorage(), embedder)


async def test_an_embedder_as_the_seed_has_it_is_accepted(storage: Storage, config: ACMSConfig) -> None:
    async with with_embedder(storage, SeedEmbedder(), config=config) as session:
        await ingest_texts(session, *ABOUT, close=True)
        assert embedded_state(session) == "queued"
        await ingest_texts(session, "now")
        await session.wait_pending()
        items = await session.recall("PostgreSQL orders")
        assert items.coverage == 1
        assert "meaning" in items.ledger.why(items[0].id).parts
        assert session._shared.embedding is not None
        assert session._shared.embedding.space.startswith(f"SeedEmbedder/{DIMENSION}/")


# ── ranking by meaning ──────────────────────────────────────────────────────────────────────────────────────────────


def embed_with_synonyms(texts: list[str]) -> list[list[float]]:
    """An embedder that knows that a mog is a cat, which no table of words does."""
    return [hash_vector(text.lower().replace("mog", "cat sleeps all day")) for text in texts]


async def test_meaning_finds_what_words_do_not(storage: Storage, config: ACMSConfig) -> None:
    embedder = FakeEmbedder()
    embedder.answer = embed_with_synonyms
    async with with_embedder(storage, embedder, config=config) as session:
        await ingest_texts(session, *ABOUT, *(f"chatter {n} of m{n}" for n in range(20)), close=True)
        await ingest_texts(session, "now")
        await session.wait_pending()
        items = await session.recall("mog")
        best = max(items[:-1], key=lambda item: item.score)
        assert best.content == "the cat sleeps all day"
        assert items.ledger.why(best.id).parts.keys() == {"meaning"}
        assert (items.coverage, items.ledger.warnings) == (1, ())
        assert items.confidence > 0 < best.relevance


async def test_a_query_is_embedded_once(storage: Storage, config: ACMSConfig) -> None:
    embedder = FakeEmbedder()
    async with with_embedder(storage, embedder, config=config) as session:
        await ingest_texts(session, *ABOUT)
        for _ in range(3):
            await session.recall("orders?")
        assert embedder.texts.count("orders?") == 1


async def test_identical_texts_are_embedded_once_per_batch(storage: Storage, config: ACMSConfig) -> None:
    embedder = FakeEmbedder()
    when = "2026-03-14T12:00:00Z"
    async with with_embedder(storage, embedder, config=config) as session:
        said = [{"role": "user", "content": "yes", "created_at": when} for _ in range(30)]
        await session.ingest_many(said)
        await session.wait_pending()
        assert embedder.sizes == [1]
        assert await versions_without_vectors(session) == []


async def test_concurrent_ingests_share_calls_of_at_most_a_batch(
    storage: Storage, config: ACMSConfig
) -> None:
    embedder = FakeEmbedder()
    async with with_embedder(storage, embedder, config=config) as session:
        await asyncio.gather(*(session.ingest("user", f"message m{n}") for n in range(201)))
        await session.wait_pending()
        assert max(embedder.sizes) <= BATCH_TEXTS
        assert len(embedder.calls) < 20
        assert await versions_without_vectors(session) == []
        assert sum(embedder.sizes) == 201


async def test_a_batch_of_messages_goes_in_few_calls(storage: Storage, config: ACMSConfig) -> None:
    embedder = FakeEmbedder()
    async with with_embedder(storage, embedder, config=config) as session:
        await session.ingest_many([{"role": "user", "content": f"message m{n}"} for n in range(150)])
        await session.wait_pending()
        assert embedder.sizes == [64, 64, 22]


# ── an embedder that is down ────────────────────────────────────────────────────────────────────────────────────────


async def test_a_message_is_stored_although_the_embedder_raises_and_healed_once_it_works(
    storage: Storage, config: ACMSConfig
) -> None:
    embedder = FakeEmbedder()
    async with with_embedder(storage, embedder, config=config) as session:
        await ingest_texts(session, ABOUT[0])
        assert embedded_state(session) == "queued"
        await session.wait_pending()
        embedder.error = OSError("connection refused")
        await ingest_texts(session, ABOUT[1])
        assert embedded_state(session) == "queued", "nobody knows yet"
        await session.wait_pending()
        await ingest_texts(session, *ABOUT[2:])
        assert embedded_state(session) == "pending"
        assert contents_of(await session.window(1000)) == ABOUT
        await session.wait_pending()
        assert await versions_without_vectors(session) == [2, 3, 4]
        embedder.error = None
        await session.wait_pending()
        assert await versions_without_vectors(session) == []
        assert (await session.recall("orders")).coverage == 1


async def test_a_query_that_cannot_be_embedded_is_answered_by_words_with_a_warning(
    storage: Storage, config: ACMSConfig
) -> None:
    embedder = FakeEmbedder()
    async with session_on(storage, config=config) as plain:
        await ingest_texts(plain, *ABOUT, close=True)
        await ingest_texts(plain, "now")
        words = await plain.recall("PostgreSQL orders")
    async with with_embedder(storage, embedder, config=config) as session:
        await session.wait_pending()
        embedder.error = OSError("down")
        items = await session.recall("PostgreSQL orders")
        assert [(item.version, item.score) for item in items] == [(i.version, i.score) for i in words]
        assert items.ledger.warnings == (DEAF,)
        assert items.coverage == 0  # nothing could be compared by meaning
        assert words.coverage == 1  # nobody asked for it
        embedder.error = None
        again = await session.recall("PostgreSQL orders")
        assert (again.coverage, again.ledger.warnings) == (1, ())


def embed_ragged(texts: list[str]) -> Any:
    return [[1.0] * (DIMENSION - n % 2) for n, _ in enumerate(texts)]


GARBAGE = {
    "too short": lambda texts: [[1.0] * (DIMENSION - 1) for _ in texts],
    "too long": lambda texts: [[1.0] * (DIMENSION + 1) for _ in texts],
    "too few": lambda texts: [hash_vector(text) for text in texts][1:],
    "too many": lambda texts: [hash_vector(text) for text in (*texts, "more")],
    "ragged": lambda texts: embed_ragged([*texts, "more"]),
    "nan": lambda texts: [[float("nan")] * DIMENSION for _ in texts],
    "infinite": lambda texts: [[float("inf")] * DIMENSION for _ in texts],
    "huge": lambda texts: [[1e300] * DIMENSION for _ in texts],
    "strings": lambda texts: ["vector" for _ in texts],
    "none": lambda texts: None,
    "nothing": lambda texts: [],
    "mappings": lambda texts: [{"embedding": hash_vector(text)} for text in texts],
    "flat": lambda texts: hash_vector("flat"),
}


@pytest.mark.parametrize("garbage", GARBAGE)
async def test_an_answer_that_is_no_vectors_costs_vectors_and_nothing_else(
    storage: Storage, garbage: str
) -> None:
    embedder = FakeEmbedder()
    embedder.answer = GARBAGE[garbage]
    async with with_embedder(storage, embedder) as session:
        await ingest_texts(session, *ABOUT, close=True)
        await session.wait_pending()
        await ingest_texts(session, "now")
        assert embedded_state(session) == "pending"
        items = await session.recall("PostgreSQL orders")
        assert "orders run on PostgreSQL" in contents_of(items)
        assert items.ledger.warnings == (DEAF,)
        embedder.answer = None
        await session.wait_pending()
        assert await versions_without_vectors(session) == []
        assert (await session.recall("PostgreSQL orders")).coverage == 1


async def test_vectors_of_any_length_are_compared_by_angle(storage: Storage) -> None:
    scores: list[list[float]] = []
    for number, size in enumerate((1.0, 1e-3, 4e4)):
        embedder = FakeEmbedder()
        embedder.answer = lambda texts, size=size: [[size * x for x in hash_vector(text)] for text in texts]
        async with with_embedder(storage, embedder, f"s{number}") as session:
            await ingest_texts(session, *ABOUT, close=True)
            await ingest_texts(session, "now")
            await session.wait_pending()
            items = await session.recall("PostgreSQL orders")
            assert items.coverage == 1
            scores.append([item.score for item in items])
    assert scores[1] == pytest.approx(scores[0], abs=1e-3)
    assert scores[2] == pytest.approx(scores[0], abs=1e-3)


async def test_a_vector_of_zeros_is_like_nothing(storage: Storage) -> None:
    embedder = FakeEmbedder()
    embedder.answer = lambda texts: [[0.0] * DIMENSION for _ in texts]
    async with with_embedder(storage, embedder) as session:
        await ingest_texts(session, *ABOUT, close=True)
        await ingest_texts(session, "now")
        await session.wait_pending()
        items = await session.recall("zanzibar", min_relevance=0.1)
        assert contents_of(items) == ["now"]
        assert items.coverage == 1


async def test_an_embedder_that_hangs_holds_up_nobody_for_ever(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CALL_SECONDS", 0.05)
    embedder = FakeEmbedder()
    embedder.gate = asyncio.Event()
    async with with_embedder(storage, embedder) as session:
        async with asyncio.timeout(300):
            await ingest_texts(session, *ABOUT[:2])
            items = await session.recall("PostgreSQL")
            assert items.ledger.warnings == (DEAF,)
            await ingest_texts(session, ABOUT[2])
            assert embedded_state(session) == "pending"
        embedder.gate.set()
        monkeypatch.setattr(module, "CALL_SECONDS", 60.0)
        async with asyncio.timeout(300):
            await session.wait_pending()
        assert await versions_without_vectors(session) == []


async def test_a_question_waits_briefly_and_its_late_vector_serves_the_next_time(storage: Storage) -> None:
    embedder = FakeEmbedder()
    async with with_embedder(storage, embedder) as session:
        await ingest_texts(session, *ABOUT)
        await session.wait_pending()
        embedder.gate = asyncio.Event()
        token = patience.set(0.01)
        assert (await session.recall("PostgreSQL")).ledger.warnings == (DEAF,)
        patience.reset(token)
        calls = len(embedder.calls)
        # While that call goes on, other questions do not wait, however patient they are.
        assert (await session.recall("rain")).ledger.warnings == (DEAF,)
        assert len(embedder.calls) == calls
        embedder.gate.set()
        async with asyncio.timeout(300):
            while (await session.recall("PostgreSQL")).ledger.warnings:
                await asyncio.sleep(0)
        assert embedder.texts.count("PostgreSQL") == 1


async def test_no_question_waits_right_after_one_has_timed_out(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    embedder = FakeEmbedder()
    async with with_embedder(storage, embedder) as session:
        await ingest_texts(session, *ABOUT)
        await session.wait_pending()
        embedder.gate = asyncio.Event()
        monkeypatch.setattr(module, "CALL_SECONDS", 0.01)
        monkeypatch.setattr(module, "BACKOFF_SECONDS", 3_600.0)
        assert (await session.recall("PostgreSQL")).ledger.warnings == (DEAF,)
        calls = len(embedder.calls)
        assert (await session.recall("rain")).ledger.warnings == (DEAF,)
        assert len(embedder.calls) == calls


class Blocking:
    """An embedder without a coroutine: it notes the threads that call it."""

    dimension = DIMENSION
    model = "blocking"

    def __init__(self) -> None:
        self.threads: set[threading.Thread] = set()

    def embed(self, texts: list[str]) -> list[list[float]]:
        self.threads.add(threading.current_thread())
        return [hash_vector(text) for text in texts]

    def embed_query(self, text: str) -> list[float]:
        self.threads.add(threading.current_thread())
        return hash_vector(text)


async def test_an_embedder_of_plain_functions_runs_outside_of_the_event_loop(storage: Storage) -> None:
    embedder = Blocking()
    async with with_embedder(storage, embedder) as session:
        await ingest_texts(session, *ABOUT)
        await session.wait_pending()
        assert (await session.recall("PostgreSQL")).coverage == 1
    assert len(embedder.threads) >= 2
    assert threading.current_thread() not in embedder.threads


async def test_closing_while_vectors_are_asked_for_leaves_nothing_behind(
    url: str, config: ACMSConfig
) -> None:
    async with session_on(open_storage(url), config=config) as plain:
        await ingest_texts(plain, *ABOUT)
    embedder = FakeEmbedder()
    embedder.gate = asyncio.Event()
    before = asyncio.all_tasks()
    session = with_embedder(open_storage(url), embedder, config=config)
    waiting = asyncio.ensure_future(session.wait_pending())
    await embedder.called.wait()
    async with asyncio.timeout(300):
        await session.close()
        await waiting
    assert asyncio.all_tasks() == before
    gc.collect()  # a task that was forgotten would say so
    async with with_embedder(open_storage(url), FakeEmbedder(), config=config) as again:
        await again.wait_pending()
        assert await versions_without_vectors(again) == []


async def test_closing_while_a_message_is_embedded_keeps_the_message(
    url: str, config: ACMSConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PATIENCE", 0.05)
    embedder = FakeEmbedder()
    embedder.gate = asyncio.Event()
    session = with_embedder(open_storage(url), embedder, config=config)
    id = await session.ingest("user", ABOUT[0])
    async with asyncio.timeout(300):
        await embedder.called.wait()
        await session.close()
    embedder.gate = None
    async with with_embedder(open_storage(url), embedder, config=config) as again:
        assert (await again.get(id)).content == ABOUT[0]
        await again.wait_pending()
        assert await versions_without_vectors(again) == []


@pytest.mark.parametrize("blank", [" ", "\n\t \n", "\u2003", "?!", "\u200b"])
async def test_messages_of_nothing_but_space_do_not_make_healing_go_round(
    storage: Storage, blank: str
) -> None:
    embedder = FakeEmbedder()
    async with session_on(storage) as plain:
        await plain.ingest("assistant", "", tool_calls=[{"id": "c", "name": "x", "arguments": "{}"}])
        await plain.ingest("tool", blank, tool_call_id="c")
        await plain.ingest("tool", f"{blank}{blank}", tool_call_id="c")
        await ingest_texts(plain, "orders")
    async with with_embedder(storage, embedder) as session:
        async with asyncio.timeout(300):
            await session.wait_pending()
        assert await versions_without_vectors(session) == []
        calls = len(embedder.calls)
        await session.wait_pending()
        await session.recall("orders")
        await session.wait_pending()
        assert [call for call in embedder.calls[calls:] if call != ["orders"]] == []


async def test_messages_another_session_wrote_without_an_embedder_are_healed_while_this_one_is_open(
    storage: Storage, config: ACMSConfig
) -> None:
    async with (
        with_embedder(storage, FakeEmbedder(), config=config) as session,
        session_on(storage, config=config) as plain,
    ):
        await ingest_texts(session, ABOUT[0])
        await session.recall("orders")
        await session.wait_pending()
        await ingest_texts(plain, *ABOUT[1:])
        assert (await session.recall("orders")).coverage < 1
        await recall_when_settled(session, "orders")


async def recall_when_settled(session: ACMS, query: str) -> ContextItems:
    """Recall until all vectors that were asked for in the background have come."""
    async with asyncio.timeout(300):
        while True:
            items = await session.recall(query)
            if items.coverage == 1:
                return items
            await asyncio.sleep(0.01)


async def test_an_edit_gets_a_vector_too(storage: Storage, config: ACMSConfig) -> None:
    embedder = FakeEmbedder()
    async with with_embedder(storage, embedder, config=config) as session:
        first, *_ = await ingest_texts(session, *ABOUT)
        await session.wait_pending()
        await session.replace(first, "orders run on SQLite")
        items = await recall_when_settled(session, "SQLite")
        assert items[0].content == "orders run on SQLite"
        assert "user: orders run on SQLite" in "\n".join(embedder.texts)


# ── models ──────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_vectors_of_two_models_are_never_compared_and_a_new_one_heals_the_old_messages(
    storage: Storage, config: ACMSConfig
) -> None:
    old, new = FakeEmbedder("old"), FakeEmbedder("new")
    new.answer = lambda texts: [[-x for x in hash_vector(text)] for text in texts]
    async with with_embedder(storage, old, config=config) as session:
        await ingest_texts(session, *ABOUT, close=True)
        await ingest_texts(session, "now")
        await session.wait_pending()
        before = await session.recall("PostgreSQL orders")
        assert before.coverage == 1
    new.gate = asyncio.Event()
    impatient = patience.set(0)
    async with with_embedder(storage, new, config=config) as session:
        asked = asyncio.ensure_future(session.recall("PostgreSQL orders"))
        await new.called.wait()
        new.gate.set()
        first = await asked
        patience.reset(impatient)
        assert (first.coverage, first.tier) == (0, "words")
        assert all("meaning" not in verdict.parts for verdict in first.ledger)
        await session.wait_pending()
        after = await session.recall("PostgreSQL orders")
        assert after.coverage == 1
        assert [item.score for item in after] == pytest.approx([item.score for item in before], abs=1e-3)
    async with with_embedder(storage, FakeEmbedder("old"), config=config) as session:
        assert await session.recall("PostgreSQL orders") == before


async def test_a_model_with_another_dimension_is_another_model(storage: Storage) -> None:
    async with with_embedder(storage, FakeEmbedder(dimension=32)) as session:
        await ingest_texts(session, *ABOUT)
        await session.wait_pending()
    async with with_embedder(storage, FakeEmbedder(dimension=16)) as session:
        await session.window(100)
        assert await versions_without_vectors(session) == [1, 2, 3, 4]
        assert (await session.recall("orders")).coverage == 1


async def test_a_reopened_file_ranks_the_same_without_asking_for_a_vector_again(
    url: str, config: ACMSConfig
) -> None:
    async with with_embedder(open_storage(url), FakeEmbedder(), config=config) as session:
        await session.ingest_many(
            [{"role": "user", "content": f"orders of m{n}. And the cat c{n} sleeps."} for n in range(300)]
        )
        await ingest_texts(session, "now")
        await session.wait_pending()
        before = await session.recall("which orders has m17?")
    embedder = FakeEmbedder()
    async with with_embedder(open_storage(url), embedder, config=config) as session:
        after = await session.recall("which orders has m17?")
        await session.wait_pending()
        assert after == before
        assert (after.coverage, after.confidence) == (1, before.confidence)
        assert embedder.texts == ["which orders has m17?"]
        assert session.internals.index_stats.healed == 0


# ── erasure ─────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_what_is_erased_loses_its_vectors_in_parent_and_fork_and_gets_no_new_ones(
    storage: Storage, config: ACMSConfig
) -> None:
    embedder = FakeEmbedder()
    async with with_embedder(storage, embedder, config=config) as session:
        await ingest_texts(session, "the secret is xyzzy plugh", *ABOUT)
        await session.wait_pending()
        context = session._shared.context_id
        assert context is not None
        draft = ContextDraft(
            key="child", counter=session._shared.counter.name, created_at=NOON, parent=context, fork=4
        )
        await storage.create(draft)
        async with with_embedder(storage, embedder, "child", config=config) as child:
            for one in (session, child):
                assert "xyzzy" in (await one.recall("xyzzy plugh")).text()
            await storage.blank(context, [1], to=State.ERASED, audit={})
            for one in (session, child):
                embedder.calls.clear()
                items = await one.recall("xyzzy plugh")
                await one.wait_pending()
                assert "xyzzy" not in items.text()
                assert 1 not in [item.version for item in items]
                assert "xyzzy" not in "".join(text for text in embedder.texts if text != "xyzzy plugh")
                assert items.coverage == 1
                space = one._shared.embedding.space if one._shared.embedding else ""
                rows = await storage.derived(str(one._shared.context_id), space)
                assert 1 not in [row.version for row in rows]


async def test_a_message_that_is_embedded_right_now_is_not_embedded_a_second_time(
    storage: Storage, config: ACMSConfig
) -> None:
    embedder = FakeEmbedder()
    async with with_embedder(storage, embedder, config=config) as session:
        embedder.gate = asyncio.Event()
        await session.ingest("user", ABOUT[0])
        await embedder.called.wait()
        waiting = asyncio.ensure_future(session.wait_pending())
        asked = asyncio.ensure_future(session.recall("orders"))
        await asyncio.sleep(0)
        embedder.gate.set()
        await asyncio.gather(waiting, asked)
        for n in range(5):
            await session.close_episode()
            await ingest_texts(session, f"message m{n}")
            await session.wait_pending()
            await session.recall("orders")
        said = [text for text in embedder.texts if text != "orders"]
        assert len(said) == len(set(said)) == 6
        assert (await session.recall("orders")).coverage == 1


async def test_one_text_an_embedder_refuses_keeps_no_other_from_its_vector(
    storage: Storage, config: ACMSConfig
) -> None:
    embedder = FakeEmbedder()
    embedder.answer = embed_unless_poisoned
    async with session_on(storage, config=config) as plain:
        await ingest_texts(plain, *ABOUT, "poison", *(f"message m{n}" for n in range(100)))
    async with with_embedder(storage, embedder, config=config) as session:
        await session.wait_pending()
        assert await versions_without_vectors(session) == [5]
        items = await session.recall("orders")
        assert items.coverage == pytest.approx(104 / 105)
        await ingest_texts(session, "poison too", "soup at noon")
        await session.wait_pending()
        assert await versions_without_vectors(session) == [5, 106]
        embedder.answer = None
        await session.wait_pending()
        assert await versions_without_vectors(session) == []


# ── queries, and languages ──────────────────────────────────────────────────────────────────────────────────────────


class Asymmetric(FakeEmbedder):
    """Tells a question from a passage."""

    def __init__(self) -> None:
        super().__init__()
        self.questions: list[str] = []

    async def embed_query(self, text: str) -> list[float]:
        self.questions.append(text)
        return hash_vector("cat sleeps all day" if text == "mog" else text)


async def test_a_question_is_embedded_as_one_where_the_embedder_can(storage: Storage) -> None:
    embedder = Asymmetric()
    async with with_embedder(storage, embedder) as session:
        await ingest_texts(session, *ABOUT, close=True)
        await session.wait_pending()
        await ingest_texts(session, "now")
        items = await session.recall("mog")
        assert items.best(1)[0].content == "the cat sleeps all day"
        assert embedder.questions == ["mog"]
        assert "mog" not in embedder.texts


class Latin(FakeEmbedder):
    """Reads ASCII only."""

    def reads(self, text: str) -> bool:
        return text.isascii()


async def test_what_an_embedder_does_not_read_is_found_by_words_and_said_once(storage: Storage) -> None:
    embedder = Latin()
    async with with_embedder(storage, embedder) as session:
        await ingest_texts(session, "我们的数据库是PostgreSQL", "orders run on PostgreSQL", close=True)
        await ingest_texts(session, "now")
        await session.wait_pending()
        assert await versions_without_vectors(session) == []
        assert all(text.isascii() for text in embedder.texts)
        items = await session.recall("数据库")
        assert "我们的数据库是PostgreSQL" in contents_of(items)
        assert items.coverage == 0  # the question was not compared by meaning
        assert items.ledger.warnings == (
            "fake-1 does not read the language of the question: ranked by words alone",
        )
        assert (await session.recall("数据库")).ledger.warnings == ()
        items = await session.recall("orders")
        unread_id = next(item.id for item in items if not item.content.isascii())
        assert items.ledger.warnings == (
            f"1 of 3 messages contain no text that fake-1 can read: ranked by words alone ({unread_id})",
        )
        assert (await session.recall("orders")).ledger.warnings == ()


async def test_a_vector_that_is_stored_after_the_ranking_is_not_called_unreadable(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    embedder = FakeEmbedder()
    async with with_embedder(storage, embedder) as session:
        await ingest_texts(session, "orders run on PostgreSQL", "lunch is at noon")
        await session.recall("orders")  # the vector of the question is kept
        embedder.gate = asyncio.Event()
        embedding = session._shared.embedding
        assert embedding is not None
        find_missing = embedding.storage.missing

        async def find_missing_once_all_are_stored(*arguments: Any, **options: Any) -> Any:
            assert embedder.gate is not None
            if not embedder.gate.is_set():
                embedder.gate.set()
                await session.wait_pending()
            return await find_missing(*arguments, **options)

        monkeypatch.setattr(embedding.storage, "missing", find_missing_once_all_are_stored)
        impatient = patience.set(0.05)
        await ingest_texts(session, "the printer is broken")
        items = await session.recall("orders")
        patience.reset(impatient)
        assert items.coverage < 1
        assert items.ledger.warnings == ()


async def test_a_vector_that_is_being_computed_is_no_reason_for_a_warning(storage: Storage) -> None:
    embedder = FakeEmbedder()
    async with with_embedder(storage, embedder) as session:
        await ingest_texts(session, "orders run on PostgreSQL", "lunch is at noon")
        await session.recall("orders")  # the vector of the question is kept
        embedder.gate = asyncio.Event()
        impatient = patience.set(0.05)
        await ingest_texts(session, "the printer is broken")
        items = await session.recall("orders")
        patience.reset(impatient)
        embedder.gate.set()
        assert items.coverage < 1
        assert items.ledger.warnings == ()


async def test_vectors_that_stay_missing_are_reported_every_time(storage: Storage) -> None:
    embedder = FakeEmbedder()
    async with with_embedder(storage, embedder) as session:
        await ingest_texts(session, "orders run on PostgreSQL", "lunch is at noon")
        await session.wait_pending()
        embedder.answer = embed_unless_poisoned
        (late,) = await ingest_texts(session, "the poison moved to Valkey")
        await session.wait_pending()
        for _ in range(2):
            items = await session.recall("orders")
            assert items.ledger.warnings == (
                f"1 of 3 messages have no vector yet: ranked by words alone ({late})",
            )


# ── made again ──────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_made_again_is_all_that_is_there_and_not_refused() -> None:
    storage, embedder = MemoryStorage(), FakeEmbedder()
    async with session_on(storage, embedder=None) as session:
        ids = await ingest_texts(session, *(f"message m{n}" for n in range(BATCH_TEXTS + 8)), "poison")
        await session.erase(ids[3])
        context = str(await session.context_id())
        embedder.answer = embed_unless_poisoned
        done = await reindex(storage, context, embedder=embedder)
        assert (done.contexts, done.vectors, done.left) == (1, BATCH_TEXTS + 7, 1)
        assert max(embedder.sizes) <= BATCH_TEXTS
        embedder.answer = None
        done = await reindex(storage, context, embedder=embedder)
        assert (done.vectors, done.left) == (1, 0)


@pytest.mark.parametrize("poison", [2, 3])
async def test_making_again_ends_where_text_after_text_is_refused(poison: int) -> None:
    storage, embedder = MemoryStorage(), FakeEmbedder()
    embedder.answer = embed_unless_poisoned
    async with session_on(storage, embedder=None) as session:
        await ingest_texts(session, *(f"poison {n}" for n in range(poison)))
        if poison == 2:  # it may be a matter of these two
            done = await reindex(storage, embedder=embedder)
            assert (done.vectors, done.left) == (0, 2)
            return
        with pytest.raises(ProviderError, match="refused 3 texts in a row") as caught:
            await reindex(storage, embedder=embedder)
        assert caught.value.options


async def test_all_vectors_of_a_long_text_that_is_blocked_now_go_and_come_back() -> None:
    storage, embedder = MemoryStorage(), FakeEmbedder()
    async with session_on(storage, embedder=None) as session:
        await ingest_texts(session, "The cat sleeps all day. " * 400)
        made = (await reindex(storage, embedder=embedder)).vectors
        assert made > 2
        for privacy, vectors in ((Privacy.BLOCK, made), (Privacy.BLOCK, 0), (None, made), (None, 0)):
            done = await reindex(storage, embedder=embedder, privacy=privacy)
            assert (done.vectors, done.left) == (vectors, 0)


class Deleted(WrapperStorage):
    """Lists two sessions at a time, and deletes one right before it is read."""

    gone = ""

    async def contexts(self, query: ContextQuery) -> Any:
        return await super().contexts(replace(query, limit=2))

    async def derived(self, context: str, *given: Any, **more: Any) -> Any:
        if context == self.gone:
            rev = (await self.inner.context(context)).settings_rev
            await self.inner.settings(context, {"deleted": True}, rev=rev)
        return await super().derived(context, *given, **more)


async def test_a_session_that_is_deleted_while_all_are_made_again_is_passed_over() -> None:
    inner = MemoryStorage()
    storage = Deleted(inner)
    for name in "abcde":
        async with session_on(inner, name, embedder=None) as session:
            await ingest_texts(session, "lunch at noon")
            storage.gone = str(await session.context_id()) if name in "bd" else storage.gone
    done = await reindex(storage, embedder=FakeEmbedder())
    assert (done.contexts, done.vectors) == (4, 4)
    storage.gone = (await inner.context("a")).id
    with pytest.raises(SessionNotFoundError):
        await reindex(storage, storage.gone, embedder=FakeEmbedder())
