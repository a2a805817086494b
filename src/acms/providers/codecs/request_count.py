"""Counts of whole requests by a server or a local tokenizer, for every codec."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping
from statistics import median

from acms.errors import ACMSError
from acms.model import Json
from acms.ports import RequestCounter, TokenCounter
from acms.prompt_types import Count, Exactness, Usage
from acms.providers.codecs.calibration import Calibration
from acms.providers.codecs.framing import dump

__all__ = ["CountingCodec", "RequestCounts", "request_counts"]

_RECENT = 16
"""Requests whose ratio of counted to raw tokens predicts that of the next one."""
_UNREADABLE = (ACMSError, AttributeError, LookupError, TypeError, ValueError)
"""Errors of counting a payload that is not as the codec writes it."""


class RequestCounts:
    """Counts whole requests by a server or tokenizer, and learns how they relate to the codec's own (raw) counts."""

    def __init__(self, counter: RequestCounter) -> None:
        self.counter = counter
        self._ratios = deque[float](maxlen=_RECENT)
        #: The most tokens by which a report of the provider exceeded the count.
        self._excess = 0

    async def count(self, payload: Mapping[str, Json], raw: Count, model: str) -> Count:
        """Count a request; `raw` is the codec's own count of it."""
        tokens = await self.counter.count_request(payload, model=model)
        if raw.tokens > 0:
            self._ratios.append(tokens / raw.tokens)
        return Count(
            tokens=tokens,
            exactness=self.counter.exactness,
            upper_bound=tokens + self._excess,
            tools=raw.tools,
        )

    def limit(self, budget: int) -> int:
        """Return the raw tokens that are expected to fit a budget. The finished request is counted again."""
        expected = median(self._ratios) if self._ratios else 1.0
        return int(budget / expected) if expected > 0 else budget

    def observe(self, count: Count, usage: Usage) -> None:
        """Learn from the count that the provider reported for a request that was counted here."""
        self._excess = max(self._excess, usage.input_tokens - count.tokens)


def request_counts(counter: RequestCounter | None) -> RequestCounts | None:
    """Return the counts of a request counter, or None if there is none that counts requests.

    A `LocalTokenizer` without a chat template counts texts only.
    """
    if counter is None or not getattr(counter, "counts_requests", True):
        return None
    return RequestCounts(counter)


class CountingCodec(ABC):
    """The part of a codec that compares raw tokens with budgets and learns from reports."""

    model: str
    counter: TokenCounter
    #: The calibration of this model's counts; keep its `state` to continue with it.
    calibration: Calibration
    request_counts: RequestCounts | None
    #: Whether raw tokens are an upper bound without calibration.
    _bound: bool = False

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.model!r})"

    def count(self, payload: Mapping[str, Json]) -> Count:
        """Count a payload from scratch; `tokens` are raw ones, a budget is compared with the upper bound.

        Half a surrogate pair counts as a question mark. A payload that the codec cannot read is counted by its JSON.
        """
        try:
            return self._count_payload(payload)
        except _UNREADABLE:
            serialized = dump(payload).encode("utf-8", "replace").decode()
        try:
            return self._count_payload(json.loads(serialized))
        except _UNREADABLE:
            tokens = self.counter.count(serialized)
            upper = self.calibration.upper(tokens, 0)
            return Count(tokens=tokens, exactness=Exactness.ESTIMATE, upper_bound=upper)

    @abstractmethod
    def _count_payload(self, payload: Mapping[str, Json]) -> Count:
        """Count a payload of the codec's format."""

    async def count_request(self, payload: Mapping[str, Json]) -> Count:
        """Count a payload by the request counter, or as `count` does if there is none."""
        raw = self.count(payload)
        if self.request_counts is None:
            return raw
        return await self.request_counts.count(payload, raw, self.model)

    def limit(self, budget: int, tools: int = 0) -> int:
        """Return the most raw tokens, of which so many are tools, whose upper bound is within a budget."""
        if self.request_counts is not None:
            return self.request_counts.limit(budget)
        return budget if self._bound else self.calibration.limit(budget, tools)

    def observe(self, count: Count, usage: Usage) -> None:
        """Learn how many tokens a request took; a report above a count ends the trust in uncalibrated counts."""
        if count.tokens < 1 or usage.input_tokens < 1:
            return
        counts = self.request_counts
        if counts is not None and count.exactness is counts.counter.exactness:
            counts.observe(count, usage)
        elif count.exactness is not Exactness.BYTES:
            self.calibration.observe(count.tokens, usage.input_tokens, count.tools)
            # A higher report shows that the recipe is no upper bound.
            self._bound = self._bound and usage.input_tokens <= count.tokens
