"""Vectors by HTTP: one for each text, in order, of the right size; anything else is an error and not a vector."""

from __future__ import annotations

import base64
import socket
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest

from acms import ACMS, ConfigurationError, ProviderError, RetryConfig, ValidationError, open_storage
from acms.ports import Embedder
from acms.providers import Endpoint, HTTPEmbedder, InputRefusedError
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


async def hash_vectors(*texts: str) -> Any:
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
    np.testing.assert_allclose(found, await hash_vectors(".", ".", ".", "a"))


async def test_a_long_text_is_cut_between_two_characters(server: ModelServer, embedder: HTTPEmbedder) -> None:
    await embedder.embed(["a" + "é" * 8_000])
    assert server.calls[0].body["input"] == ["a" + "é" * 3_999]


async def test_many_texts_go_in_several_calls(server: ModelServer, embedder: HTTPEmbedder) -> None:
    texts = [f"text number {number}" for number in range(600)]
    np.testing.assert_allclose(await embedder.embed(texts), await hash_vectors(*texts))
    assert [len(call.body["input"]) for call in server.calls] == [256, 256, 88]


async def test_long_texts_go_in_several_calls(server: ModelServer, embedder: HTTPEmbedder) -> None:
    await embedder.embed(["x" * 8_000] * 40)
    assert [len(call.body["input"]) for call in server.calls] == [31, 9]


# ── a query and a passage ───────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("model", "query", "passage"),
    [
        ("intfloat/multilingual-e5-small", "query: ", "passage: "),
        ("multilingual-e5-large-instruct", "Instruct: Given a web search query", ""),
        ("google/embeddinggemma-300m", "task: search result | query: ", "title: none | text: "),
        ("embeddinggemma", "task: search result | query: ", "title: none | text: "),
        ("nomic-embed-text:v1.5", "search_query: ", "search_document: "),
        ("BAAI/bge-small-en-v1.5", "Represent this sentence for searching relevant passages: ", ""),
        ("BAAI/bge-base-zh-v1.5", "为这个句子生成表示以用于检索相关文章：", ""),
        ("bge-m3", "", ""),
        ("text-embedding-3-small", "", ""),
        ("all-MiniLM-L6-v2", "", ""),
    ],
)
async def test_what_a_model_wants_is_put_before_a_query_and_a_passage(
    server: ModelServer, model: str, query: str, passage: str
) -> None:
    async with HTTPEmbedder(server.url, model, dimension=16) as embedder:
        await embedder.embed(["the cat sleeps"])
        found = await embedder.embed_query("who sleeps?")
    assert found.shape == (16,)
    assert server.calls[0].body["input"] == [f"{passage}the cat sleeps"]
    (sent,) = server.calls[1].body["input"]
    assert sent.startswith(query)
    assert sent.endswith("who sleeps?")
    assert server.calls[0].body["model"] == model
    assert embedder.model == f"{model} {passage.strip()}".strip()


async def test_words_of_your_own_are_put_before_them(server: ModelServer) -> None:
    async with HTTPEmbedder(
        server.url, "e5", dimension=16, query_prefix="Q: ", passage_prefix="P: "
    ) as embedder:
        await embedder.embed(["a"])
        await embedder.embed_query("b")
    assert [call.body["input"] for call in server.calls] == [["P: a"], ["Q: b"]]
    assert embedder.model == "e5 P:"


@pytest.mark.parametrize(
    ("api", "path", "texts", "passage", "query"),
    [
        (
            "cohere",
            "/v1/embed",
            "texts",
            {"input_type": "search_document", "embedding_types": ["float"]},
            {"input_type": "search_query", "embedding_types": ["float"]},
        ),
        ("jina", "/v1/embeddings", "input", {"task": "retrieval.passage"}, {"task": "retrieval.query"}),
        ("voyage", "/v1/embeddings", "input", {"input_type": "document"}, {"input_type": "query"}),
        ("openai", "/v1/embeddings", "input", {}, {}),
    ],
)
async def test_each_api_is_told_a_query_from_a_passage_as_it_wants_it(
    server: ModelServer, api: Any, path: str, texts: str, passage: dict[str, Any], query: dict[str, Any]
) -> None:
    async with HTTPEmbedder(server.url, "m", dimension=16, api=api) as embedder:
        np.testing.assert_allclose(await embedder.embed(["a", "b"]), await hash_vectors("a", "b"))
        np.testing.assert_allclose(await embedder.embed_query("c"), (await hash_vectors("c"))[0])
    assert {call.path for call in server.calls} == {path}
    assert [call.body for call in server.calls] == [
        {"model": "m", texts: ["a", "b"], **passage},
        {"model": "m", texts: ["c"], **query},
    ]


@pytest.mark.parametrize(
    ("address", "model", "name", "field"),
    [
        ("https://api.cohere.com/v2", "embed-v4.0", "embed-v4.0 search_document", "output_dimension"),
        (
            "https://api.jina.ai/v1",
            "jina-embeddings-v3",
            "jina-embeddings-v3 retrieval.passage",
            "dimensions",
        ),
        ("https://api.voyageai.com/v1", "voyage-3.5", "voyage-3.5 document", "output_dimension"),
        ("https://api.openai.com/v1", "text-embedding-3-large", "text-embedding-3-large", "dimensions"),
    ],
)
def test_the_api_is_that_of_the_host(address: str, model: str, name: str, field: str) -> None:
    assert HTTPEmbedder(address, model).model == name
    assert HTTPEmbedder(address, model, dimension=256)._settings() == {"model": model, field: 256}


def test_an_older_model_of_jina_has_no_tasks() -> None:
    assert HTTPEmbedder("https://api.jina.ai/v1", "jina-embeddings-v2-base-de", dimension=768).model == (
        "jina-embeddings-v2-base-de"
    )


async def test_cohere_takes_96_texts_a_call(server: ModelServer) -> None:
    async with HTTPEmbedder(server.url, "m", dimension=16, api="cohere") as embedder:
        await embedder.embed([f"text {number}" for number in range(100)])
    assert [len(call.body["texts"]) for call in server.calls] == [96, 4]


# ── what a server refuses ───────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("status", [400, 413, 422])
async def test_a_refused_input_is_not_sent_again(server: ModelServer, status: int) -> None:
    server.otherwise = Behave(status=status)
    async with HTTPEmbedder(server.url, "m", dimension=16) as embedder:
        with pytest.raises(InputRefusedError) as caught:
            await embedder.embed(["a"])
        with pytest.raises(InputRefusedError):
            await embedder.embed_query("a")
    assert (caught.value.retryable, len(server.calls)) == (False, 2)


@pytest.mark.parametrize(
    "error",
    [
        {"error": {"message": "input (992 tokens) is too large to process. increase the physical batch size"}},
        {"error": {"message": "This model's maximum context length is 8192 tokens, however you requested 9000"}},
        {"error": "the input length exceeds the context length"},
        {"error": {"message": "Input validation error: `inputs` must have less than 512 tokens. Given: 600"}},
    ],
)  # fmt: skip
async def test_an_error_that_says_that_the_input_is_too_long_is_a_refusal(
    server: ModelServer, error: Any
) -> None:
    server.otherwise = Behave(status=500, body=error)
    async with HTTPEmbedder(server.url, "m", dimension=16) as embedder:
        with pytest.raises(InputRefusedError):
            await embedder.embed(["a"])
    assert len(server.calls) == 1


async def test_a_rate_limit_that_calls_a_request_too_large_is_none(server: ModelServer) -> None:
    server.script = [
        Behave(status=429, headers={"retry-after": "0"}, body={"error": {"message": "too large"}})
    ]
    async with HTTPEmbedder(server.url, "m", dimension=16) as embedder:
        assert (await embedder.embed(["a"])).shape == (1, 16)


# ── what it accepts ─────────────────────────────────────────────────────────────────────────────────────────────────


async def test_order_is_restored(server: ModelServer, embedder: HTTPEmbedder) -> None:
    server.otherwise = Behave(shuffle=True)
    texts = ["red", "green", "blue"]
    np.testing.assert_allclose(await embedder.embed(texts), await hash_vectors(*texts))


def vector_row(vector: Any, index: Any = 0) -> dict[str, Any]:
    return {"embedding": vector, **({} if index is None else {"index": index})}


def answer_of_rows(*rows: Any) -> Behave:
    return Behave(body={"data": list(rows)})


RIGHT = [0.5] * 16


@pytest.mark.parametrize(
    "vector", [RIGHT, base64.b64encode(np.full(16, 0.5, "<f4").tobytes()).decode()], ids=["numbers", "base64"]
)
@pytest.mark.parametrize("index", [0, None], ids=["with its place", "without"])
async def test_numbers_and_base64_are_read(
    server: ModelServer, embedder: HTTPEmbedder, vector: Any, index: int | None
) -> None:
    server.script = [answer_of_rows(vector_row(vector, index))]
    assert (await embedder.embed(["a"])).tolist() == [RIGHT]


_WRONG = [
    answer_of_rows(),
    answer_of_rows(vector_row(RIGHT), vector_row(RIGHT, 1)),
    answer_of_rows(vector_row(RIGHT), vector_row(RIGHT)),
    answer_of_rows(vector_row(RIGHT, 1)),
    answer_of_rows(vector_row(RIGHT, "0")),
    answer_of_rows(vector_row(RIGHT[1:])),
    answer_of_rows(vector_row([*RIGHT, 0.5])),
    answer_of_rows(vector_row([])),
    answer_of_rows(vector_row([RIGHT])),
    answer_of_rows(vector_row([*RIGHT[1:], "x"])),
    answer_of_rows(vector_row([*RIGHT[1:], None])),
    answer_of_rows(vector_row([*RIGHT[1:], 1e39])),
    answer_of_rows(vector_row([*RIGHT[1:], 10**400])),
    answer_of_rows(vector_row("AAAA")),
    answer_of_rows(vector_row("not base64")),
    answer_of_rows(vector_row(base64.b64encode(np.full(16, np.nan, "<f4").tobytes()).decode())),
    answer_of_rows(vector_row(None)),
    answer_of_rows(vector_row({})),
    answer_of_rows(None),
    answer_of_rows({}),
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
        with pytest.raises(ProviderError, match="test returns vectors of 16 numbers, not 15") as raised:
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


LONG = "The cat sleeps all day and the dog barks at night. " * 8


async def test_a_message_that_a_server_refuses_is_embedded_in_parts(server: ModelServer) -> None:
    server.longest = 250
    async with (
        HTTPEmbedder(server.url, "m", dimension=16) as embedder,
        ACMS("s", open_storage("memory://"), embedder) as session,
    ):
        await session.ingest("user", "We chose PostgreSQL for the orders.")
        await session.ingest("user", LONG)
        await session.wait_pending()
        items = await session.recall("which orders", budget=500)
        assert (items.coverage, items.ledger.warnings) == (1.0, ())
        accepted = [text for call in server.calls for text in call.body["input"] if len(text) <= 250]
        assert sum("cat sleeps" in text for text in accepted) == 2
        assert len(server.calls) < 10
        calls = len(server.calls)
        await session.wait_pending()
        assert len(server.calls) == calls


async def test_a_message_that_is_refused_in_parts_too_has_no_vector_and_the_ledger_says_so(
    server: ModelServer,
) -> None:
    server.longest = 80
    async with (
        HTTPEmbedder(server.url, "m", dimension=16) as embedder,
        ACMS("s", open_storage("memory://"), embedder) as session,
    ):
        ids = [
            await session.ingest("user", text)
            for text in ("We chose PostgreSQL for the orders.", "x" * 300, "Lunch is at noon.")
        ]
        await session.wait_pending()
        items = await session.recall("which orders", budget=500)
        assert items.coverage == pytest.approx(2 / 3)
        assert items.ledger.warnings == (
            f"1 of 3 messages contain no text that m can read: ranked by words alone ({ids[1]})",
        )
        calls = len(server.calls)
        await session.wait_pending()
        await session.recall("which orders", budget=500)
        assert len(server.calls) == calls  # and it is not asked for again


async def test_a_question_that_is_refused_is_embedded_in_halves(server: ModelServer) -> None:
    async with (
        HTTPEmbedder(server.url, "m", dimension=16) as embedder,
        ACMS("s", open_storage("memory://"), embedder) as session,
    ):
        await session.ingest("user", "We chose PostgreSQL for the orders.")
        await session.wait_pending()
        server.longest = 250
        items = await session.recall(LONG, budget=500)
        assert (items.coverage, items.ledger.warnings) == (1.0, ())


async def test_a_server_that_refuses_everything_is_no_matter_of_the_texts(server: ModelServer) -> None:
    server.otherwise = Behave(status=400)
    async with (
        HTTPEmbedder(server.url, "m", dimension=16) as embedder,
        ACMS("s", open_storage("memory://"), embedder) as session,
    ):
        for number in range(8):
            await session.ingest("user", f"Order number {number} is shipped.")
        await session.wait_pending()
        assert (await session.recall("orders", budget=500)).coverage == 0.0
        server.otherwise = Behave()
        await session.wait_pending()
        assert (await session.recall("orders?", budget=500)).coverage == 1.0
