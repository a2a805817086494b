"""Calls to a reranker: one in each recall, with a timeout; without a usable answer, candidates keep their scores."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

from acms.config import ACMSConfig
from acms.errors import ACMSError, ConfigurationError
from acms.observability.logging import log_event
from acms.ports import Reranker
from acms.providers.retry import with_retry
from acms.recall.planner import RerankRequest, RerankScores


class Reranking:
    """The reranker of a session; it is asked about `candidates` texts at most."""

    def __init__(self, reranker: Reranker, config: ACMSConfig) -> None:
        if isinstance(reranker, type) or not callable(getattr(reranker, "rerank", None)):
            raise ConfigurationError("reranker must be an object with an async method rerank(query, texts)")
        candidates: Any = getattr(reranker, "candidates", 32)
        if isinstance(candidates, bool) or not isinstance(candidates, int) or candidates < 1:
            raise ConfigurationError("reranker.candidates must be a whole number above 0")
        self._reranker = reranker
        self._retry = config.retry
        self._seconds = config.recall.rerank_seconds
        self.candidates = candidates
        #: Names it in logs and warnings.
        self.model = getattr(reranker, "model", None) or type(reranker).__name__

    async def scores(self, pairs: RerankRequest) -> RerankScores:
        """Return a score for each text, or a warning if the reranker fails, takes too long, or gives invalid scores."""
        try:
            async with asyncio.timeout(self._seconds):
                answer = await with_retry(
                    lambda: self._reranker.rerank(pairs.query, pairs.texts), self._retry
                )
            values = _validate_scores(answer, len(pairs.texts))
        except Exception as error:
            code = error.code if isinstance(error, ACMSError) else type(error).__name__
            return self._build_warning("did not answer", code)
        if values is None:
            return self._build_warning("gave no score in [0, 1] for each text", "garbled")
        return RerankScores(values)

    def _build_warning(self, problem: str, code: str) -> RerankScores:
        log_event(logging.WARNING, "reranking_failed", model=self.model, code=code)
        return RerankScores(warning=f"the reranker {self.model} {problem}: ranked without it")


def _validate_scores(answer: Sequence[float], count: int) -> tuple[float, ...] | None:
    """Return the scores of an answer; None unless it is one number in [0, 1] for each text."""
    if isinstance(answer, str | bytes) or len(answer) != count:
        return None
    values = tuple([float(value) for value in answer])
    return values if all(0 <= value <= 1 for value in values) else None
