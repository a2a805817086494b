"""A reranker on a model server that speaks `/rerank`, as Cohere, Jina, Voyage, vLLM, llama.cpp and many others do."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from acms.errors import ProviderError
from acms.providers.arguments import check_texts, validate_model_name, validate_positive_int
from acms.providers.http import Endpoint, EndpointProvider, StatusError, resolve_endpoint

__all__ = ["HTTPReranker"]

_MAX_BYTES = 8_000
"""Default limit of UTF-8 bytes of each text: some 2,000 tokens."""
_MIN_BYTES = 500
"""Texts that a server refuses as too long are not cut to fewer bytes than this."""


class HTTPReranker(EndpointProvider):
    """A cross-encoder on a server: `base_url` ends where `/rerank` is added, as in "https://api.jina.ai/v1".

    All texts go in one request; of a longer one the first `longest` bytes of UTF-8. At most `candidates` are asked
    about in a recall. Some servers, llama.cpp among them, answer with logits for most models: `logits=True` maps these
    to [0, 1] by the logistic function; without it a score outside of [0, 1] is a `ProviderError`.
    Texts that a server refuses as too long are cut to half, and asked about again, down to 500 bytes.
    A session asks again by itself, within `RecallConfig.rerank_seconds`; `max_retries` is for who calls it directly.

    Give an `Endpoint` in place of the address for headers, limits and addresses that are not trusted. Close it, or use
    it as a block: connections are kept open between calls.
    """

    def __init__(
        self,
        base_url: str | Endpoint,
        model: str,
        *,
        api_key: str | None = None,
        candidates: int = 32,
        logits: bool = False,
        timeout: float = 5.0,
        max_retries: int = 0,
        longest: int = _MAX_BYTES,
    ) -> None:
        self._endpoint = resolve_endpoint(base_url, api_key=api_key, timeout=timeout, max_retries=max_retries)
        #: Names the model.
        self.model = validate_model_name(model)
        #: Named in errors.
        self.provider = self._endpoint.provider
        #: Texts it is asked about in a recall, at most.
        self.candidates = validate_positive_int(candidates, "candidates")
        self._logits = logits
        self._max_bytes = validate_positive_int(longest, "longest")

    def __repr__(self) -> str:
        return f"HTTPReranker({self._endpoint!r}, {self.model!r})"

    async def rerank(self, query: str, texts: Sequence[str]) -> list[float]:
        """Return one score in [0, 1] for each text, in order; none for no texts.

        If the server refuses the texts as too long, they are cut to half the bytes and sent again, down to a
        minimum.
        """
        check_texts(texts)
        if not texts:
            return []
        max_bytes = self._max_bytes
        while True:
            try:
                return await self._ask(query, texts, max_bytes)
            except StatusError as error:
                smaller = max_bytes // 2
                if not error.refuses_input or smaller < _MIN_BYTES:
                    raise
                max_bytes = smaller

    async def _ask(self, query: str, texts: Sequence[str], max_bytes: int) -> list[float]:
        body = {
            "model": self.model,
            "query": _truncate_bytes(query, max_bytes),
            "documents": [_truncate_bytes(text, max_bytes) for text in texts],
            "return_documents": False,
        }
        return await self._endpoint.post("rerank", body, lambda answer: self._scores(answer, len(texts)))

    def _scores(self, answer: dict[str, Any], count: int) -> list[float]:
        """Parse the scores of an answer; raise LookupError, TypeError or ValueError if they are malformed."""
        rows = answer["results"] if "results" in answer else answer["data"]  # Voyage says "data"
        # The rows come sorted by score.
        score_of_index = {row["index"]: row["relevance_score"] for row in rows}
        if len(rows) != count:
            raise ValueError("not one score for each text")
        values = [score_of_index[index] for index in range(count)]
        if any(isinstance(value, bool) or not isinstance(value, int | float) for value in values):
            raise TypeError("not a number")
        scores = [_apply_logistic(value) if self._logits else float(value) for value in values]
        if not all(0 <= score <= 1 for score in scores):
            raise ProviderError(
                f"{self.provider}: {self.model} returns scores outside of [0, 1]",
                provider=self.provider,
                options=("pass logits=True when the server answers with logits",),
            )
        return scores


def _truncate_bytes(text: str, max_bytes: int) -> str:
    return text.encode("utf-8", "replace")[:max_bytes].decode("utf-8", "ignore")


def _apply_logistic(value: float) -> float:
    # Clamped: beyond 700 `exp` would overflow, and the result is 0 or 1 anyway.
    return 1 / (1 + math.exp(-min(max(value, -700.0), 700.0)))
