"""The simple ways to remember: what every other one has to beat."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import log

from acms.core.terms import terms, words
from acms.evaluation.nouns import Recalled, Said
from acms.protocols import TokenCounter
from acms.providers.tokens import default_counter

__all__ = ["MostRecent", "PlainBM25"]


class _Kept:
    """Keeps what is said, with its tokens."""

    def __init__(self, counter: TokenCounter | None = None) -> None:
        self._counter = counter or default_counter()
        self._said: list[Recalled] = []

    async def tell(self, said: Said) -> None:
        """Keep a message."""
        text = f"{said.role}: {said.text}"
        self._said.append(Recalled(text=text, tokens=self._counter.count(text), source=said.role))

    async def settle(self) -> None:
        """Return: nothing goes on in the background."""


class MostRecent(_Kept):
    """The newest messages that fit the budget, as "role: text" lines."""

    name = "most recent window"

    async def ask(self, question: str, token_budget: int) -> Sequence[Recalled]:
        """Return the newest messages, oldest first."""
        left, found = token_budget, []
        for item in reversed(self._said):
            left -= item.tokens
            if left < 0:
                break
            found.append(item)
        return found[::-1]


class PlainBM25(_Kept):
    """BM25 (k1 1.2, b 0.75) over stems without stop words, packed best first until the budget is full."""

    name = "plain BM25"

    async def ask(self, question: str, token_budget: int) -> Sequence[Recalled]:
        """Return what shares a term with the question and fits, best first."""
        counts = [Counter(terms(words(item.text))) for item in self._said]
        lengths = [count.total() for count in counts]
        average = max(1.0, sum(lengths) / max(1, len(lengths)))
        scores = [0.0] * len(counts)
        for term in dict.fromkeys(terms(words(question))):
            having = sum(term in count for count in counts)
            weight = log(1 + (len(counts) - having + 0.5) / (having + 0.5))
            for index, count in enumerate(counts):
                if times := count[term]:
                    scores[index] += (
                        weight * times * 2.2 / (times + 1.2 * (0.25 + 0.75 * lengths[index] / average))
                    )
        left, found = token_budget, []
        for index in sorted(range(len(scores)), key=lambda index: -scores[index]):
            item = self._said[index]
            if scores[index] > 0 and item.tokens <= left:
                left -= item.tokens
                found.append(
                    Recalled(text=item.text, score=scores[index], tokens=item.tokens, source=item.source)
                )
        return found
