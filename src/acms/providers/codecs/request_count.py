"""Counts of whole requests by a server or a local tokenizer, for every codec."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from statistics import median

from acms.model import Json
from acms.ports import RequestCounter
from acms.prompt_types import Count, Usage

__all__ = ["RequestCounts", "request_counts"]

_RECENT = 16
"""Requests whose ratio of counted to raw tokens predicts that of the next one."""


class RequestCounts:
    """What a codec's request counter counted, beside the raw tokens of the codec."""

    def __init__(self, counter: RequestCounter) -> None:
        self.counter = counter
        self._ratios = deque[float](maxlen=_RECENT)
        #: The most tokens that a provider reported beyond what was counted.
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
        """Return the raw tokens that a budget is expected to hold; the final count is checked against the budget."""
        expected = median(self._ratios) if self._ratios else 1.0
        return int(budget / expected) if expected > 0 else budget

    def observe(self, count: Count, usage: Usage) -> None:
        """Learn what the provider reported for a request that was counted here."""
        self._excess = max(self._excess, usage.input_tokens - count.tokens)


def request_counts(counter: RequestCounter | None) -> RequestCounts | None:
    """Return the counts of a request counter, or None if there is none that counts requests.

    A `LocalTokenizer` without a chat template counts texts only.
    """
    if counter is None or not getattr(counter, "counts_requests", True):
        return None
    return RequestCounts(counter)
