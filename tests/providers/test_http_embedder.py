"""Vectors by HTTP: one for each text, in order, of the right size; anything else is an error and not a vector."""

from __future__ import annotations

import base64
import socket
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest

from acms import ACMS, ConfigurationError, Embedder, ProviderError, RetryConfig, ValidationError, open_storage
from acms.providers import Endpoint, HTTPEmbedder
from acms.testing import EmbedderTests, HashEmbedder
from tests.providers.server import Behave, ModelServer

ONCE = RetryConfig(max_attempts=1)


@pytest.fixture
async def server() -> AsyncIterator[ModelServer]:
    async with ModelServer() as server:
        yield server


@pytest.fixture
async def embedder(server: ModelServer) -> AsyncIterator[HTTPEmbedder]:
    endpoint = Endpoint(server.url, api_key="sk-canary", retry=ONCE)
    async with HTTPEmbedder(endpoint, "test-embedding", dimension=server.dimension) as embedder:
        yield embedder


class TestHTTPEmbedder(EmbedderTests):
    @pytest.fixture
    async def embedder(self, server: ModelServer) -> AsyncIterator[Embedder]:
        async with HTTPEmbedder(server.url, "test-embedding", dimension=server.dimension) as embedder:
            yield embedder


async def vectors(*texts: str) -> Any:
    return await HashEmbedder(16).embed(texts)


# ── what it is made of ──────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("model", "size"),
    [("text-embedding-3-small", 1536), ("text-embedding-3-large", 3072), ("text-embedding-ada-002", 1536)],
)
def test_the_size_of_a_known_model_need_not_be_given(model: str, size: int) -> None:
    assert HTTPEmbedder("http://localhost", model).dimension == size


def test_the_default_model_is_that_of_the_seed() -> None:
    embedder = HTTPEmbedder("http://localhost/v1", api_key="sk-canary-7Q2xK9vLw3")
    assert (embedder.model, embedder.dimension) == ("text-embedding-3-small", 1536)
    assert repr(embedder) == (
        "HTTPEmbedder(Endpoint('http://localhost/v1'), 'text-embedding-3-small', dimension=1536)"
    )
    assert "canary" not in repr(vars(embedder))


def test_the_size_of_another_model_must_be_given() -> None:
    with pytest.raises(ConfigurationError, match="give dimension"):
        HTTPEmbedder("http://localhost", "my-model")
    assert HTTPEmbedder("http://localhost", "my-model", dimension=7).dimension == 7


@pytest.mark.parametrize(
    "given",
    [
        {"model": ""}, {"model": None}, {"dimension": 0}, {"dimension": 1.5}, {"dimension": True}, {"longest": 0},
        {"max_retries": -1}, {"max_retries": 1.5}, {"timeout": 0}, {"api_key": "a\nb"},
    ],
)  # fmt: skip
def test_what_it_cannot_be_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        HTTPEmbedder("http://localhost", **given)


def test_an_endpoint_has_the_key_already() -> None:
    with pytest.raises(ConfigurationError, match="its own api_key"):
        HTTPEmbedder(Endpoint("http://localhost"), api_key="x")


async def test_a_shortened_vector_is_asked_for_where_the_model_can(server: ModelServer) -> None:
    async with HTTPEmbedder(server.url, dimension=8) as embedder:
        assert (await embedder.embed(["a"])).shape == (1, 8)
    assert server.calls[0].body["dimensions"] == 8


async def test_max_retries_counts_the_calls_after_the_first(server: ModelServer) -> None:
    server.otherwise = Behave(status=500, headers={"retry-after": "0"})
    async with HTTPEmbedder(server.url, "test", dimension=16, max_retries=0) as embedder:
        with pytest.raises(ProviderError):
            await embedder.embed(["a"])
    assert len(server.calls) == 1


# ── what it sends ───────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("texts", ["one text", [1], [None], ["a", b"b"]])
async def test_only_a_list_of_texts_will_do(embedder: HTTPEmbedder, texts: Any) -> None:
    with pytest.raises(ValidationError):
        await embedder.embed(texts)


async def test_no_texts_are_no_call(server: ModelServer, embedder: HTTPEmbedder) -> None:
    assert (await embedder.embed([])).shape == (0, 16)
    assert server.calls == []


async def test_a_text_without_a_letter_is_sent_as_a_full_stop(
    server: ModelServer, embedder: HTTPEmbedder
) -> None:
    found = await embedder.embed(["", " \n\t", "\x00\x01", "a"])
    assert server.calls[0].body["input"] == [".", ".", ".", "a"]
    np.testing.assert_allclose(found, await vectors(".", ".", ".", "a"))


async def test_a_long_text_is_cut_between_two_characters(server: ModelServer, embedder: HTTPEmbedder) -> None:
    await embedder.embed(["a" + "é" * 8_000])
    assert server.calls[0].body["input"] == ["a" + "é" * 3_999]


async def test_many_texts_go_in_several_calls(server: ModelServer, embedder: HTTPEmbedder) -> None:
    texts = [f"text number {number}" for number in range(600)]
    np.testing.assert_allclose(await embedder.embed(texts), await vectors(*texts))
    assert [len(call.body["input"]) for call in server.calls] == [256, 256, 88]


async def test_long_texts_go_in_several_calls(server: ModelServer, embedder: HTTPEmbedder) -> None:
    await embedder.embed(["x" * 8_000] * 40)
    assert [len(call.body["input"]) for call in server.calls] == [31, 9]


# ── what it accepts ─────────────────────────────────────────────────────────────────────────────────────────────────


async def test_order_is_restored(server: ModelServer, embedder: HTTPEmbedder) -> None:
    server.otherwise = Behave(shuffle=True)
    texts = ["red", "green", "blue"]
    np.testing.assert_allclose(await embedder.embed(texts), await vectors(*texts))


def row(vector: Any, index: Any = 0) -> dict[str, Any]:
    return {"embedding": vector, **({} if index is None else {"index": index})}


def answer(*rows: Any) -> Behave:
    return Behave(body={"data": list(rows)})


RIGHT = [0.5] * 16


@pytest.mark.parametrize(
    "vector", [RIGHT, base64.b64encode(np.full(16, 0.5, "<f4").tobytes()).decode()], ids=["numbers", "base64"]
)
@pytest.mark.parametrize("index", [0, None], ids=["with its place", "without"])
async def test_numbers_and_base64_are_read(
    server: ModelServer, embedder: HTTPEmbedder, vector: Any, index: int | None
) -> None:
    server.script = [answer(row(vector, index))]
    assert (await embedder.embed(["a"])).tolist() == [RIGHT]


_WRONG = [
    answer(),
    answer(row(RIGHT), row(RIGHT, 1)),
    answer(row(RIGHT), row(RIGHT)),
    answer(row(RIGHT, 1)),
    answer(row(RIGHT, "0")),
    answer(row(RIGHT[1:])),
    answer(row([*RIGHT, 0.5])),
    answer(row([])),
    answer(row([RIGHT])),
    answer(row([*RIGHT[1:], "x"])),
    answer(row([*RIGHT[1:], None])),
    answer(row([*RIGHT[1:], 1e39])),
    answer(row([*RIGHT[1:], 10**400])),
    answer(row("AAAA")),
    answer(row("not base64")),
    answer(row(base64.b64encode(np.full(16, np.nan, "<f4").tobytes()).decode())),
    answer(row(None)),
    answer(row({})),
    answer(None),
    answer({}),
    Behave(body={"data": None}),
    Behave(body={}),
    Behave(raw=b'{"data": [{"index": 0, "embedding": [NaN]}]}'),
]


@pytest.mark.parametrize("wrong", _WRONG, ids=range(len(_WRONG)))
async def test_what_is_no_vector_is_refused(
    server: ModelServer, embedder: HTTPEmbedder, wrong: Behave
) -> None:
    server.script = [wrong]
    with pytest.raises(ProviderError):
        await embedder.embed(["a"])
    assert (await embedder.embed(["a"])).shape == (1, 16)


async def test_vectors_of_another_size_are_no_passing_failure(server: ModelServer) -> None:
    async with HTTPEmbedder(server.url, "test", dimension=15) as embedder:
        with pytest.raises(ProviderError, match="test gives vectors of 16 numbers, not 15") as raised:
            await embedder.embed(["a"])
    assert (raised.value.retryable, len(server.calls)) == (False, 1)


async def test_when_one_call_fails_for_good_there_are_no_vectors(
    server: ModelServer, embedder: HTTPEmbedder
) -> None:
    server.script = [Behave(), Behave(status=400)]
    with pytest.raises(ProviderError):
        await embedder.embed(["a"] * 600)
    assert len(server.calls) == 2


# ── in a session ────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_message_is_stored_while_the_server_is_down_and_gets_its_vector_later() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    storage = open_storage("memory://")
    endpoint = Endpoint(f"http://127.0.0.1:{port}/v1", retry=RetryConfig(max_attempts=2, base_delay=0))
    async with storage, HTTPEmbedder(endpoint, "test", dimension=16) as embedder:
        async with ACMS("s", storage, embedder) as session:
            await session.ingest("user", "We chose PostgreSQL for the orders.")
            assert session.last_receipt is not None
            assert session.last_receipt.embedded == "queued"
            items = await session.recall("orders", token_budget=200)  # words must do
            assert [item.content for item in items] == ["We chose PostgreSQL for the orders."]
        async with ModelServer(port=port) as server, ACMS("s", storage, embedder) as session:
            await session.recall("orders", token_budget=200)  # asks for what is missing
            await session.wait_pending()
            items = await session.recall("orders", token_budget=200)
            assert items.coverage == 1.0
            assert any("We chose PostgreSQL" in text for call in server.calls for text in call.body["input"])
            await embedder.aclose()
