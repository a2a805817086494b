"""An embedder on a model server that speaks `/embeddings`, as OpenAI, vLLM, Ollama, LM Studio and many others do."""

from __future__ import annotations

import base64
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from acms.errors import ConfigurationError, ProviderError, ValidationError
from acms.providers.arguments import model_name, whole
from acms.providers.http import Endpoint, OverEndpoint, endpoint

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["HTTPEmbedder", "ModelEmbedder"]

_KNOWN = {
    "text-embedding-3-small": 1536,
    "text-embedding-3-large": 3072,
    "text-embedding-ada-002": 1536,
    "nomic-embed-text": 768,
    "mxbai-embed-large": 1024,
    "bge-m3": 1024,
}
_SHORTENED = ("text-embedding-3-",)  # models that give a vector of any size below their own when asked to
_TEXTS = 256
_BYTES = 250_000  # of one request: a byte is at most a token, and OpenAI takes 300,000
_BLANK = "."  # stands for a text without a letter, which servers refuse


class ModelEmbedder(ABC):
    """What embedders of served models share: sizes, batches, and reading the vectors of an answer."""

    def __init__(self, model: str, provider: str, dimension: int | None, longest: int) -> None:
        model = model_name(model)
        size = _KNOWN.get(model) if dimension is None else dimension
        if size is None:
            raise ConfigurationError(
                f"the size of {model}'s vectors is not known: give dimension",
                options=("dimension=…, from the model's card",),
            )
        #: Names the model: vectors of two models are never compared.
        self.model = model
        #: Named in errors.
        self.provider = provider
        self._dimension = whole(size, "dimension")
        self._longest = whole(longest, "longest")

    @property
    def dimension(self) -> int:
        """Numbers in a vector."""
        return self._dimension

    async def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return one vector for each text, in order: float32 of shape (len(texts), dimension).

        A text without a letter has the vector of a full stop.
        """
        if isinstance(texts, str) or not all(isinstance(text, str) for text in texts):
            raise ValidationError("must be a list of texts", field="texts")
        vectors = np.empty((len(texts), self.dimension), np.float32)
        done = 0
        for batch in _batches([self._sent(text) for text in texts]):
            vectors[done : done + len(batch)] = await self._ask(batch)
            done += len(batch)
        return vectors

    @abstractmethod
    async def _ask(self, texts: list[str]) -> NDArray[np.float32]: ...

    def _sent(self, text: str) -> str:
        cut = text.encode("utf-8", "replace")[: self._longest].decode("utf-8", "ignore")
        return cut if any(map(str.isprintable, cut)) and cut.strip() else _BLANK

    def _settings(self) -> dict[str, Any]:
        """Return what is asked for besides the texts."""
        shortened = self.model.startswith(_SHORTENED) and self.dimension != _KNOWN.get(self.model)
        return {"model": self.model, **({"dimensions": self.dimension} if shortened else {})}

    def _vectors(self, found: list[dict[str, Any]], count: int) -> NDArray[np.float32]:
        """Read the rows of an answer; LookupError, TypeError or ValueError when they are not what was asked for."""
        rows = [_vector(row["embedding"]) for row in _in_order(found, count)]
        sizes = {len(row) for row in rows}
        if 0 in sizes:
            raise ValueError("no numbers")
        if sizes != {self.dimension}:
            raise ProviderError(
                f"{self.model} gives vectors of {', '.join(map(str, sorted(sizes)))} numbers, not {self.dimension}",
                provider=self.provider,
                options=("give the size of the model's vectors as dimension",),
            )
        vectors = np.stack(rows)
        if not np.isfinite(vectors).all():
            raise ValueError("not a number")
        return vectors


class HTTPEmbedder(OverEndpoint, ModelEmbedder):
    """An embedding model on a server: `base_url` ends where `/embeddings` is added, as in "https://api.openai.com/v1".

    `dimension` may be left out for models of OpenAI and a few others; for any other one it must be given, as vectors of
    the wrong size are refused. A model of the text-embedding-3 family is asked for as many numbers as `dimension` says.
    Of a longer text the first `longest` bytes of UTF-8 are embedded. Many texts go in several requests, one after the
    other; when one fails for good, `ProviderError` is raised and none of the vectors is returned.

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
        timeout: float = 30.0,
        max_retries: int = 3,
        longest: int = 8_000,
    ) -> None:
        self._endpoint = endpoint(base_url, api_key=api_key, timeout=timeout, max_retries=max_retries)
        super().__init__(model, self._endpoint.provider, dimension, longest)

    def __repr__(self) -> str:
        return f"HTTPEmbedder({self._endpoint!r}, {self.model!r}, dimension={self.dimension})"

    async def _ask(self, texts: list[str]) -> NDArray[np.float32]:
        return await self._endpoint.post(
            "embeddings",
            {**self._settings(), "input": texts},
            lambda answer: self._vectors(answer["data"], len(texts)),
        )


def _batches(texts: list[str]) -> list[list[str]]:
    batches: list[list[str]] = []
    size = _BYTES
    for text in texts:
        length = len(text.encode())
        if size + length > _BYTES or len(batches[-1]) == _TEXTS:
            batches.append([])
            size = 0
        batches[-1].append(text)
        size += length
    return batches


def _in_order(rows: list[dict[str, Any]], count: int) -> list[dict[str, Any]]:
    """Return the rows by their `index`; as they came where none of them has one."""
    if len(rows) != count:
        raise ValueError("not one vector for each text")
    if not any("index" in row for row in rows):
        return rows
    by_place = {row["index"]: row for row in rows}
    return [by_place[place] for place in range(count)]


def _vector(found: object) -> NDArray[np.float32]:
    """Read a list of numbers, or base64 of little-endian float32."""
    if isinstance(found, str):
        return np.frombuffer(base64.b64decode(found, validate=True), "<f4").astype(np.float32)
    if not isinstance(found, list):
        raise TypeError("neither a list nor base64")
    try:
        with np.errstate(over="ignore"):
            vector = np.asarray(found, np.float32)
    except OverflowError as error:
        raise ValueError("not a number") from error
    if vector.ndim != 1:
        raise ValueError("not a list of numbers")
    return vector
