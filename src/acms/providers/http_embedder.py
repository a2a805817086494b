"""An embedder on a model server: of OpenAI, Cohere, Jina or Voyage, or one that speaks `/embeddings` as many do."""

from __future__ import annotations

import base64
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from acms.errors import ConfigurationError, ProviderError, ValidationError
from acms.model import Json
from acms.providers.arguments import check_texts, validate_model_name, validate_positive_int
from acms.providers.http import Endpoint, EndpointProvider, StatusError, resolve_endpoint
from acms.providers.model_prompts import PromptPrefixes, find_prompts, name_vector_space
from acms.providers.refusal import InputRefusedError

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["HTTPEmbedder", "ModelEmbedder"]

_DIMENSIONS = {
    "text-embedding-3-small": 1536,
    "text-embedding-3-large": 3072,
    "text-embedding-ada-002": 1536,
    "nomic-embed-text": 768,
    "mxbai-embed-large": 1024,
    "bge-m3": 1024,
    "embeddinggemma": 768,
    "embed-v4.0": 1536,
    "embed-multilingual-v3.0": 1024,
    "embed-english-v3.0": 1024,
    "voyage-3.5": 1024,
    "voyage-3.5-lite": 1024,
    "voyage-3-large": 1024,
    "jina-embeddings-v3": 1024,
    "jina-embeddings-v4": 2048,
}
"""Default dimension of the vectors of known models."""
_SHORTENABLE = (
    "text-embedding-3-",
    "embed-v4",
    "voyage-3.5",
    "voyage-3-large",
    "jina-embeddings-v3",
    "jina-embeddings-v4",
)
"""Models that can shorten their vectors to a requested size."""
_REQUEST_BYTES = 250_000
"""Bytes of the texts of one request. A byte is at most one token, and OpenAI takes 300,000 tokens."""
_BLANK = "."
"""Replaces a text without visible characters, which servers refuse."""


class API(NamedTuple):
    """How a server is asked for vectors, and how a query is distinguished from a passage."""

    path: str = "embeddings"
    #: Fields of the request: of the texts, and of the size of a vector.
    texts: str = "input"
    size: str = "dimensions"
    #: Fields that are sent with a query, and with passages.
    query: Mapping[str, Json] = {}
    passage: Mapping[str, Json] = {}
    #: Texts of one request, at most.
    max_texts: int = 256


_FLOAT: Mapping[str, Json] = {"embedding_types": ["float"]}
_APIS = {
    "openai": API(),
    "cohere": API(
        "embed",
        "texts",
        "output_dimension",
        {**_FLOAT, "input_type": "search_query"},
        {**_FLOAT, "input_type": "search_document"},
        96,
    ),
    "jina": API(query={"task": "retrieval.query"}, passage={"task": "retrieval.passage"}),
    "voyage": API(
        size="output_dimension",
        query={"input_type": "query"},
        passage={"input_type": "document"},
        max_texts=128,
    ),
}
"""APIs by name: docs.cohere.com/reference/embed, jina.ai/embeddings, docs.voyageai.com/reference/embeddings-api."""
_HOSTS = {"cohere.com": "cohere", "cohere.ai": "cohere", "jina.ai": "jina", "voyageai.com": "voyage"}
"""APIs of hosts and of those below them."""
_WITHOUT_TASKS = re.compile("jina-embeddings-v[12]|jina-clip-v1")
"""Models of Jina that have no tasks."""


class ModelEmbedder(ABC):
    """The base of embedders of served models: sizes, batches, prompts, and parsing the vectors of an answer."""

    def __init__(
        self,
        model: str,
        provider: str,
        dimension: int | None,
        longest: int,
        *,
        api: str = "openai",
        query_prefix: str | None = None,
        passage_prefix: str | None = None,
    ) -> None:
        model = validate_model_name(model)
        self._api = _APIS[api]
        if api == "jina" and _WITHOUT_TASKS.match(model):
            self._api = _APIS["openai"]
        default_prompts = find_prompts(model) if api == "openai" else PromptPrefixes()
        self._prompts = PromptPrefixes(
            default_prompts.query if query_prefix is None else query_prefix,
            default_prompts.passage if passage_prefix is None else passage_prefix,
        )
        size = _DIMENSIONS.get(model) if dimension is None else dimension
        if size is None:
            raise ConfigurationError(
                f"the size of {model}'s vectors is not known: give dimension",
                options=("dimension=…, from the model's card",),
            )
        self._model = model
        # A model embeds a text differently for each task, so the task is part of the name of its vectors.
        label = self._api.passage.get("input_type") or self._api.passage.get("task") or ""
        #: Names the model and how it marks a passage: vectors with different names are never compared.
        self.model = name_vector_space(model, f"{self._prompts.passage}{label}")
        #: Named in errors.
        self.provider = provider
        self._dimension = validate_positive_int(size, "dimension")
        self._longest = validate_positive_int(longest, "longest")

    @property
    def dimension(self) -> int:
        """Numbers in a vector."""
        return self._dimension

    async def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return one vector for each text, in order: float32 of shape (len(texts), dimension).

        A text without a letter has the vector of a full stop.
        """
        check_texts(texts)
        prepared = [self._prepare_text(text, self._prompts.passage) for text in texts]
        vectors = np.empty((len(texts), self.dimension), np.float32)
        row_count = 0
        for batch in _split_batches(prepared, self._api.max_texts):
            vectors[row_count : row_count + len(batch)] = await self._request_vectors(
                batch, self._api.passage
            )
            row_count += len(batch)
        return vectors

    async def embed_query(self, text: str) -> NDArray[np.float32]:
        """Return the vector of a question, to be compared with those of `embed`: float32 of shape (dimension,)."""
        if not isinstance(text, str):
            raise ValidationError("must be a text", field="text")
        (vector,) = await self._request_vectors(
            [self._prepare_text(text, self._prompts.query)], self._api.query
        )
        return vector

    async def _request_vectors(
        self, texts: list[str], extra_fields: Mapping[str, Json]
    ) -> NDArray[np.float32]:
        """Request the vectors of a batch; `InputRefusedError` if the server refuses its texts."""
        try:
            return await self._ask(texts, extra_fields)
        except StatusError as error:
            if not error.refuses_input:
                raise
            raise InputRefusedError(str(error), provider=self.provider, options=error.options) from error

    @abstractmethod
    async def _ask(self, texts: list[str], extra_fields: Mapping[str, Json]) -> NDArray[np.float32]:
        """Ask for the vectors of texts, with more fields in the request."""
        ...

    def _prepare_text(self, text: str, prefix: str) -> str:
        truncated = text.encode("utf-8", "replace")[: self._longest].decode("utf-8", "ignore")
        return prefix + truncated if any(map(str.isprintable, truncated)) and truncated.strip() else _BLANK

    def _settings(self) -> dict[str, Any]:
        """Return the fields of the request besides the texts."""
        shortens_vectors = self._model.startswith(_SHORTENABLE) and self.dimension != _DIMENSIONS.get(
            self._model
        )
        return {"model": self._model, **({self._api.size: self.dimension} if shortens_vectors else {})}

    def _parse_vectors(self, answer_rows: list[dict[str, Any]], count: int) -> NDArray[np.float32]:
        """Parse the rows of an answer; raise LookupError, TypeError or ValueError if they are malformed."""
        rows = [_parse_vector(row["embedding"]) for row in _sort_by_index(answer_rows, count)]
        sizes = {len(row) for row in rows}
        if 0 in sizes:
            raise ValueError("no numbers")
        if sizes != {self.dimension}:
            raise ProviderError(
                f"{self._model} returns vectors of {', '.join(map(str, sorted(sizes)))} numbers, not {self.dimension}",
                provider=self.provider,
                options=("give the size of the model's vectors as dimension",),
            )
        vectors = np.stack(rows)
        if not np.isfinite(vectors).all():
            raise ValueError("not a number")
        return vectors


class HTTPEmbedder(EndpointProvider, ModelEmbedder):
    """An embedding model on a server: `base_url` ends where `/embeddings` is added, as in "https://api.openai.com/v1".

    `api` is "openai", which most servers speak, llama.cpp, vLLM, Ollama and Text Embeddings Inference among them, or
    "cohere" (an address that ends in /v2), "jina" or "voyage"; by default the one of the host. The last three are told
    a query from a passage in their own field. Otherwise `query_prefix` and `passage_prefix` are put before a text: by
    default what the cards of e5, EmbeddingGemma, bge, nomic and a few others ask for, by the name of the model.

    `dimension` may be left out for models of OpenAI and a few others; for any other one it must be given, as vectors of
    the wrong size are refused. A model that can shorten its vectors is asked for as many numbers as `dimension` says.
    Of a longer text the first `longest` bytes of UTF-8 are embedded. Many texts go in several requests, one after the
    other; when one fails for good, `ProviderError` is raised and none of the vectors is returned;
    `InputRefusedError` when the server refuses the texts themselves.

    Give an `Endpoint` in place of the address for headers, limits and addresses that are not trusted. Close it, or use
    it as a block: connections are kept open between calls.
    """

    def __init__(
        self,
        base_url: str | Endpoint,
        model: str = "text-embedding-3-small",
        *,
        api_key: str | None = None,
        dimension: int | None = None,
        api: Literal["openai", "cohere", "jina", "voyage"] | None = None,
        query_prefix: str | None = None,
        passage_prefix: str | None = None,
        timeout: float = 30.0,
        max_retries: int = 3,
        longest: int = 8_000,
    ) -> None:
        self._endpoint = resolve_endpoint(base_url, api_key=api_key, timeout=timeout, max_retries=max_retries)
        if api is not None and api not in _APIS:
            raise ConfigurationError(
                f"api must be one of {', '.join(_APIS)}, not {api!r}", options=tuple(_APIS)
            )
        super().__init__(
            model,
            self._endpoint.provider,
            dimension,
            longest,
            api=api or _api_of_host(self._endpoint.host),
            query_prefix=query_prefix,
            passage_prefix=passage_prefix,
        )

    def __repr__(self) -> str:
        return f"HTTPEmbedder({self._endpoint!r}, {self._model!r}, dimension={self.dimension})"

    async def _ask(self, texts: list[str], extra_fields: Mapping[str, Json]) -> NDArray[np.float32]:
        body = {**self._settings(), **extra_fields, self._api.texts: texts}
        return await self._endpoint.post(
            self._api.path, body, lambda answer: self._parse_vectors(_rows_of(answer), len(texts))
        )


def _api_of_host(host: str) -> str:
    for known_host, api in _HOSTS.items():
        if host == known_host or host.endswith(f".{known_host}"):
            return api
    return "openai"


def _rows_of(answer: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the rows of an answer; Cohere gives the vectors alone, under their type."""
    if "data" in answer:
        return answer["data"]
    return [{"embedding": vector} for vector in answer["embeddings"]["float"]]


def _split_batches(texts: list[str], max_texts: int) -> list[list[str]]:
    """Split texts into batches of at most `max_texts` texts and `_REQUEST_BYTES` bytes; a longer text goes alone."""
    batches: list[list[str]] = []
    size = _REQUEST_BYTES  # full, so that the first text begins a batch
    for text in texts:
        length = len(text.encode())
        if size + length > _REQUEST_BYTES or len(batches[-1]) == max_texts:
            batches.append([])
            size = 0
        batches[-1].append(text)
        size += length
    return batches


def _sort_by_index(rows: list[dict[str, Any]], count: int) -> list[dict[str, Any]]:
    """Return the rows in the order of their `index`, or as they came if none of them has one."""
    if len(rows) != count:
        raise ValueError("not one vector for each text")
    if not any("index" in row for row in rows):
        return rows
    row_of_index = {row["index"]: row for row in rows}
    return [row_of_index[index] for index in range(count)]


def _parse_vector(value: object) -> NDArray[np.float32]:
    """Read a list of numbers, or base64 of little-endian float32."""
    if isinstance(value, str):
        return np.frombuffer(base64.b64decode(value, validate=True), "<f4").astype(np.float32)
    if not isinstance(value, list):
        raise TypeError("neither a list nor base64")
    try:
        # A number too large for float32 becomes infinite and is refused by the caller.
        with np.errstate(over="ignore"):
            vector = np.asarray(value, np.float32)
    except OverflowError as error:
        raise ValueError("not a number") from error
    if vector.ndim != 1:
        raise ValueError("not a list of numbers")
    return vector
