"""Scores of texts by HTTP: one question, one number for each text, and nothing else passes for one."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from acms import (
    ACMS,
    ACMSConfig,
    ConfigurationError,
    ProviderError,
    RecallConfig,
    ValidationError,
    open_storage,
)
from acms.providers import Endpoint, HTTPReranker, registry
from tests.providers.server import Behave, ModelServer
from tests.support.talk import LONG_EPISODES, PATIENT, contents_of, ingest_texts

TEXTS = ["orders run on PostgreSQL", "the cat sleeps", "which orders"]


@pytest.fixture
async def server() -> AsyncIterator[ModelServer]:
    async with ModelServer() as server:
        yield server


@pytest.fixture
async def reranker(server: ModelServer) -> AsyncIterator[HTTPReranker]:
    async with HTTPReranker(server.url, "test-reranker", api_key="sk-test-key-1234") as reranker:
        yield reranker


@pytest.mark.parametrize("shuffle", [False, True])
async def test_texts_are_scored_in_their_order(
    server: ModelServer, reranker: HTTPReranker, shuffle: bool
) -> None:
    server.otherwise = Behave(shuffle=shuffle)
    assert await reranker.rerank("which orders", TEXTS) == [0.5, 0.0, 1.0]
    (call,) = server.calls
    assert (call.path, call.key) == ("/v1/rerank", "sk-test-key-1234")
    assert call.body == {
        "model": "test-reranker",
        "query": "which orders",
        "documents": TEXTS,
        "return_documents": False,
    }


async def test_no_texts_are_no_call(server: ModelServer, reranker: HTTPReranker) -> None:
    assert await reranker.rerank("which orders", []) == []
    assert server.calls == []


@pytest.mark.parametrize("texts", ["text", [1], [None]])
async def test_only_a_list_of_texts_will_do(reranker: HTTPReranker, texts: Any) -> None:
    with pytest.raises(ValidationError):
        await reranker.rerank("which orders", texts)


async def test_a_long_text_is_cut_between_two_characters(server: ModelServer) -> None:
    async with HTTPReranker(server.url, "m", longest=5) as reranker:
        await reranker.rerank("ordersorders", ["aé€bcd", "ab"])
    assert server.calls[-1].body["documents"] == ["aé", "ab"]
    assert server.calls[-1].body["query"] == "order"


async def test_texts_that_are_refused_as_too_long_are_cut(server: ModelServer) -> None:
    server.longest = 1_000
    async with HTTPReranker(server.url, "m") as reranker:
        assert await reranker.rerank("orders", ["orders " * 400, "cat"]) == [1.0, 0.0]
    assert [len(call.body["documents"][0]) for call in server.calls] == [2_800, 2_800, 2_000, 1_000]


async def test_the_answer_of_voyage_is_read(server: ModelServer) -> None:
    found = [{"index": 1, "relevance_score": 0.4}, {"index": 0, "relevance_score": 0.3}]
    server.script = [Behave(body={"object": "list", "data": found})]
    async with HTTPReranker(server.url, "m") as reranker:
        assert await reranker.rerank("q", TEXTS[:2]) == [0.3, 0.4]


def answer_of_scores(*scores: Any) -> Behave:
    found = [{"index": place, "relevance_score": score} for place, score in enumerate(scores)]
    return Behave(body={"results": found})


async def test_logits_are_mapped_when_they_are_announced(server: ModelServer) -> None:
    async with HTTPReranker(server.url, "m", logits=True) as reranker:
        server.script = [answer_of_scores(0, 1e9, -1e9)]
        assert await reranker.rerank("q", TEXTS) == pytest.approx([0.5, 1.0, 0.0])
    async with HTTPReranker(server.url, "m") as reranker:
        server.script = [answer_of_scores(7.7, -2.3, 3.8)]
        with pytest.raises(ProviderError, match="outside") as caught:
            await reranker.rerank("q", TEXTS)
        assert "logits=True" in caught.value.options[0]
        assert not caught.value.retryable


@pytest.mark.parametrize(
    "answer",
    [
        answer_of_scores(0.5, 0.5),
        answer_of_scores(0.5, 0.5, 0.5, 0.5),
        answer_of_scores(0.5, 0.5, "0.5"),
        answer_of_scores(0.5, 0.5, None),
        answer_of_scores(0.5, 0.5, True),
        Behave(body={"results": None}),
        Behave(body={"results": [0.5, 0.5, 0.5]}),
        Behave(body={"results": [{"index": 0, "relevance_score": 0.5}] * 3}),
        Behave(body={"results": [{"relevance_score": 0.5}] * 3}),
        Behave(body={"data": []}),
        Behave(body=[{"index": 0, "score": 0.5}]),
        Behave(raw=json.dumps({"results": [{"index": 0, "relevance_score": float("nan")}]}).encode()),
        Behave(raw=b"{"),
    ],
)
async def test_what_is_no_scores_is_refused(
    server: ModelServer, reranker: HTTPReranker, answer: Behave
) -> None:
    server.otherwise = answer
    with pytest.raises(ProviderError) as caught:
        await reranker.rerank("q", TEXTS)
    assert caught.value.retryable


async def test_calls_are_tried_again_only_when_it_is_told_to(server: ModelServer) -> None:
    server.otherwise = Behave(status=503, headers={"retry-after": "0"})
    for retries in (0, 1):
        server.calls.clear()
        async with HTTPReranker(server.url, "m", max_retries=retries) as reranker:
            with pytest.raises(ProviderError):
                await reranker.rerank("q", TEXTS)
        assert len(server.calls) == retries + 1


@pytest.mark.parametrize(
    "given", [{"model": ""}, {"model": "  "}, {"model": None}, {"candidates": 0}, {"longest": 0}]
)
def test_what_it_cannot_be_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        HTTPReranker("http://127.0.0.1:1/v1", **{"model": "m", **given})


async def test_an_address_that_is_not_trusted_is_checked(server: ModelServer) -> None:
    with pytest.raises(ConfigurationError, match="https"):
        Endpoint(server.url, trusted=False)
    given = Endpoint(server.url.replace("http:", "https:"), trusted=False)
    async with HTTPReranker(given, "m") as reranker:
        with pytest.raises(ProviderError, match="not on the public internet"):
            await reranker.rerank("q", TEXTS)
    assert server.calls == []


async def test_it_is_made_by_its_name(server: ModelServer) -> None:
    made = registry.create("reranker", "http", base_url=server.url, model="m", candidates=8)
    assert isinstance(made, HTTPReranker)
    assert (made.model, made.candidates) == ("m", 8)
    assert await made.rerank("which orders", TEXTS[:1]) == [0.5]
    await made.aclose()


async def test_a_session_asks_again_and_does_without_it_while_the_server_is_down(server: ModelServer) -> None:
    config = ACMSConfig(
        episodes=LONG_EPISODES, retry=PATIENT, recall=RecallConfig(token_budget=500, rerank_seconds=10)
    )
    async with (
        HTTPReranker(server.url, "m") as reranker,
        ACMS("s", open_storage("memory://"), reranker=reranker, config=config) as session,
    ):
        await ingest_texts(session, *TEXTS, close=True)
        await ingest_texts(session, "now")
        server.script = [Behave(drop=True), Behave(status=500)]
        items = await session.recall("which orders")
        assert len(server.calls) == 3
        assert (max(item.relevance for item in items), items.ledger.warnings) == (1.0, ())
        server.otherwise = Behave(status=500)
        items = await session.recall("which orders")
        assert "which orders" in contents_of(items)
        assert items.ledger.warnings == ("the reranker m did not answer: ranked without it",)
