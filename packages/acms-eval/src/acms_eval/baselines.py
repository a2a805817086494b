"""The simple ways to remember: what every other one has to beat.

They pack "Speaker: text" lines, each counted with its line break, by default in cl100k tokens.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from math import log
from typing import TYPE_CHECKING, Any

from acms.ports import Embedder, TokenCounter
from acms.providers.tokens import BPETokenCounter
from acms_eval.nouns import Recalled, Said

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["MostRecent", "PlainBM25", "PlainVectors", "ReciprocalRankFusion", "WindowBM25"]

K1, B = 1.2, 0.75
RRF_K = 60
_WORD = re.compile(r"\w+")
_UNSPACED = re.compile(r"[\u3040-\u30ff\u3400-\u9fff]")
_STOP = frozenset(
    """a about after all also am an and any are as at be because been before being but by can could did do does doing
    done for from get got had has have having he her here hers him his how i if in into is it its just let like me more
    most my no not now of off on once only or other our out over own really said same she should so some such than that
    the their them then there these they this those through to too under until up us very was we were what when where
    which while who whom why will with would you your yours d ll m re s t ve""".split()
)


@lru_cache(maxsize=1)
def _stemmer() -> Any:
    from snowballstemmer import EnglishStemmer

    return EnglishStemmer()


@lru_cache(maxsize=131_072)
def _stem(word: str) -> str:
    stem: str = _stemmer().stemWord(word)
    return stem


def _parts(word: str) -> list[str]:
    if _UNSPACED.search(word) is None or len(word) < 3:
        return [word]
    return [word[start : start + 2] for start in range(len(word) - 1)]


def stems(text: str) -> list[str]:
    """Return the stems of a text without stop words, by Porter2; of all its words when there are no others.

    Of Chinese and Japanese, where nothing stands between words, pairs of characters.

    It is not what ACMS makes of a text, and stays as it is: a measure that moves with what is measured is none.
    """
    words = [part for word in _WORD.findall(text.lower()) for part in _parts(word)]
    return [_stem(word) for word in words if word not in _STOP] or [_stem(word) for word in words]


class _Kept:
    """Keeps what is said as "speaker: text" lines, with their tokens."""

    def __init__(self, counter: TokenCounter | None = None) -> None:
        self._counter = counter or BPETokenCounter("cl100k_base")
        self._said: list[Recalled] = []
        #: How sure it was of its last answer; None while it cannot tell.
        self.confidence: float | None = None

    async def tell(self, said: Said) -> None:
        """Keep a message."""
        text = f"{said.speaker or said.role}: {said.text}"
        self._said.append(
            Recalled(
                text=text, tokens=self._counter.count(f"{text}\n"), source=said.role, index=len(self._said)
            )
        )

    async def settle(self) -> None:
        """Return: nothing goes on in the background."""

    def _pack(self, scores: Mapping[int, float], token_budget: int) -> list[Recalled]:
        """Return what fits, best first; what does not fit is skipped, and of equals the oldest comes first."""
        left, found = token_budget, list[Recalled]()
        for index in sorted(scores, key=lambda index: (-scores[index], index)):
            item = self._said[index]
            if item.tokens <= left:
                left -= item.tokens
                found.append(replace(item, score=scores[index]))
        return found


class MostRecent(_Kept):
    """The newest messages that fit the budget; the newer, the higher the score."""

    name = "most recent window"

    async def ask(self, question: str, token_budget: int) -> Sequence[Recalled]:
        """Return the newest messages, oldest first."""
        left, found = token_budget, list[Recalled]()
        for item in reversed(self._said):
            left -= item.tokens
            if left < 0:
                break
            found.append(replace(item, score=1 / (1 + len(found))))
        return found[::-1]


class PlainBM25(_Kept):
    """BM25 (k1 1.2, b 0.75) over the stems of what was said, without stop words, packed best first.

    It is as sure as its best message comes near the highest score the words of the question allow.
    """

    name = "plain BM25"

    def __init__(self, counter: TokenCounter | None = None) -> None:
        super().__init__(counter)
        self._postings: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
        self._lengths: list[int] = []
        self._total = 0

    async def tell(self, said: Said) -> None:
        """Keep a message and its terms."""
        index = len(self._said)
        await super().tell(said)
        counts = Counter(self._terms(said))
        for stem, times in counts.items():
            self._postings[stem].append((index, times))
        self._lengths.append(counts.total())
        self._total += self._lengths[-1]

    def _terms(self, said: Said) -> list[str]:
        return stems(said.text)

    async def ask(self, question: str, token_budget: int) -> Sequence[Recalled]:
        """Return what shares a term with the question and fits, best first."""
        return self._pack(self.scores(question), token_budget)

    def scores(self, question: str) -> dict[int, float]:
        """Return the score of every message that shares a term with a question; sets the confidence."""
        count = len(self._said)
        average = max(1.0, self._total / max(1, count))
        scores: defaultdict[int, float] = defaultdict(float)
        most = 0.0
        for stem in dict.fromkeys(stems(question)):
            having = self._postings.get(stem, ())
            weight = log(1 + (count - len(having) + 0.5) / (len(having) + 0.5))
            most += weight * (K1 + 1)
            for index, times in having:
                norm = K1 * (1 - B + B * self._lengths[index] / average)
                scores[index] += weight * times * (K1 + 1) / (times + norm)
        self.confidence = max(scores.values(), default=0.0) / most if most else 0.0
        return scores


class WindowBM25(PlainBM25):
    """BM25 over the speaker's name and the text; half the score of each message beside it counts too."""

    name = "BM25, speaker, ±1"

    def _terms(self, said: Said) -> list[str]:
        return stems(f"{said.speaker or said.role} {said.text}")

    def scores(self, question: str) -> dict[int, float]:
        """Return the score of every message that shares a term with a question, or stands beside one that does."""
        found: defaultdict[int, float] = defaultdict(float)
        for index, score in super().scores(question).items():
            for near in range(max(0, index - 1), min(len(self._said), index + 2)):
                found[near] += score if near == index else score / 2
        return found


class PlainVectors(_Kept):
    """The cosine of "speaker: text" with the question, packed best first; as sure as the best cosine.

    One vector a message, as plain vector stores keep them. Vectors are made when it settles.
    """

    name = "plain vectors"

    def __init__(self, embedder: Embedder, counter: TokenCounter | None = None) -> None:
        super().__init__(counter)
        self._embedder = embedder
        self._vectors: NDArray[np.float32] | None = None

    async def settle(self) -> None:
        """Make the vectors that are missing."""
        import numpy as np

        known = 0 if self._vectors is None else len(self._vectors)
        missing = [item.text for item in self._said[known:]]
        if missing:
            fresh = await self._units(missing)
            self._vectors = fresh if self._vectors is None else np.concatenate([self._vectors, fresh])

    async def ask(self, question: str, token_budget: int) -> Sequence[Recalled]:
        """Return the messages that are nearest to the question and fit, best first."""
        return self._pack(await self.scores(question), token_budget)

    async def scores(self, question: str) -> dict[int, float]:
        """Return the cosine of every message; sets the confidence."""
        await self.settle()
        if self._vectors is None:
            self.confidence = 0.0
            return {}
        (query,) = await self._units([question])
        found: list[float] = (self._vectors @ query).tolist()
        self.confidence = min(1.0, max(0.0, *found, 0.0))
        return dict(enumerate(found))

    async def _units(self, texts: list[str]) -> NDArray[np.float32]:
        import numpy as np

        matrix: Any = np.asarray(await self._embedder.embed(texts), dtype=np.float32)
        return matrix / np.maximum(np.linalg.norm(matrix, axis=1, keepdims=True), 1e-12)


class ReciprocalRankFusion(_Kept):
    """Reciprocal rank fusion (k = 60) of plain BM25 and plain vectors, packed best first.

    It cannot tell how sure it is. Cormack, Clarke and Büttcher, SIGIR 2009.
    """

    name = "RRF"

    def __init__(self, embedder: Embedder, counter: TokenCounter | None = None) -> None:
        super().__init__(counter)
        self._words = PlainBM25(counter)
        self._meaning = PlainVectors(embedder, counter)

    async def tell(self, said: Said) -> None:
        """Keep a message in both."""
        await super().tell(said)
        await self._words.tell(said)
        await self._meaning.tell(said)

    async def settle(self) -> None:
        """Make the vectors that are missing."""
        await self._meaning.settle()

    async def ask(self, question: str, token_budget: int) -> Sequence[Recalled]:
        """Return what either of them ranks high and fits, best first."""
        fused: defaultdict[int, float] = defaultdict(float)
        for scores in (self._words.scores(question), await self._meaning.scores(question)):
            for rank, index in enumerate(sorted(scores, key=lambda index: (-scores[index], index)), 1):
                fused[index] += 1 / (RRF_K + rank)
        return self._pack(fused, token_budget)
