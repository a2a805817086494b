"""Baselines: simple memories that every other one has to beat.

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
def _load_stemmer() -> Any:
    from snowballstemmer import EnglishStemmer

    return EnglishStemmer()


@lru_cache(maxsize=131_072)
def _stem_word(word: str) -> str:
    stem: str = _load_stemmer().stemWord(word)
    return stem


def _split_unspaced_word(word: str) -> list[str]:
    if _UNSPACED.search(word) is None or len(word) < 3:
        return [word]
    return [word[start : start + 2] for start in range(len(word) - 1)]


def stem_text(text: str) -> list[str]:
    """Return the stems of a text without stop words, by Porter2; of all its words when there are no others.

    Chinese and Japanese, which put nothing between words, are split into pairs of characters.

    ACMS has a tokenizer of its own. This one does not follow its changes: a baseline that improved with what is
    measured would hide the improvement.
    """
    words = [word_part for word in _WORD.findall(text.lower()) for word_part in _split_unspaced_word(word)]
    return [_stem_word(word) for word in words if word not in _STOP] or [_stem_word(word) for word in words]


class _MessageMemory:
    """Keeps messages as "speaker: text" lines, with their tokens."""

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
        """Do nothing: a baseline has no background work."""

    def _pack_within_budget(self, scores: Mapping[int, float], budget: int) -> list[Recalled]:
        """Return the messages that fit, best first, of equal scores the oldest first; skip those that do not fit."""
        remaining_tokens, packed = budget, list[Recalled]()
        for index in sorted(scores, key=lambda index: (-scores[index], index)):
            item = self._said[index]
            if item.tokens <= remaining_tokens:
                remaining_tokens -= item.tokens
                packed.append(replace(item, score=scores[index]))
        return packed


class MostRecent(_MessageMemory):
    """The newest messages that fit the budget; the newer, the higher the score."""

    name = "most recent window"

    async def ask(self, question: str, budget: int) -> Sequence[Recalled]:
        """Return the newest messages, oldest first."""
        remaining_tokens, recalled = budget, list[Recalled]()
        for item in reversed(self._said):
            remaining_tokens -= item.tokens
            if remaining_tokens < 0:
                break
            recalled.append(replace(item, score=1 / (1 + len(recalled))))
        return recalled[::-1]


class PlainBM25(_MessageMemory):
    """BM25 (k1 1.2, b 0.75) over the stems of the messages, without stop words, packed best first.

    Its confidence is the best score as a share of the highest score that the words of the question allow.
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
        for stem, term_count in counts.items():
            self._postings[stem].append((index, term_count))
        self._lengths.append(counts.total())
        self._total += self._lengths[-1]

    def _terms(self, message: Said) -> list[str]:
        return stem_text(message.text)

    async def ask(self, question: str, budget: int) -> Sequence[Recalled]:
        """Return the messages that share a term with the question and fit, best first."""
        return self._pack_within_budget(self.scores(question), budget)

    def scores(self, question: str) -> dict[int, float]:
        """Return the score of every message that shares a term with a question; sets the confidence."""
        count = len(self._said)
        average = max(1.0, self._total / max(1, count))
        scores: defaultdict[int, float] = defaultdict(float)
        highest_score = 0.0
        for stem in dict.fromkeys(stem_text(question)):
            postings = self._postings.get(stem, ())
            # The 1 keeps the weight of a stem positive that more than half of the messages hold.
            weight = log(1 + (count - len(postings) + 0.5) / (len(postings) + 0.5))
            highest_score += weight * (K1 + 1)
            for index, term_count in postings:
                norm = K1 * (1 - B + B * self._lengths[index] / average)
                scores[index] += weight * term_count * (K1 + 1) / (term_count + norm)
        self.confidence = max(scores.values(), default=0.0) / highest_score if highest_score else 0.0
        return scores


class WindowBM25(PlainBM25):
    """BM25 over the speaker's name and the text; each message also gets half the score of both its neighbours."""

    name = "BM25, speaker, ±1"

    def _terms(self, message: Said) -> list[str]:
        return stem_text(f"{message.speaker or message.role} {message.text}")

    def scores(self, question: str) -> dict[int, float]:
        """Return the score of every message that shares a term with a question, or stands beside one that does."""
        spread_scores: defaultdict[int, float] = defaultdict(float)
        for index, score in super().scores(question).items():
            for neighbor in range(max(0, index - 1), min(len(self._said), index + 2)):
                spread_scores[neighbor] += score if neighbor == index else score / 2
        return spread_scores


class PlainVectors(_MessageMemory):
    """The cosine of "speaker: text" with the question, packed best first; the best cosine is its confidence.

    One vector a message, as plain vector stores keep them. `settle` makes the vectors.
    """

    name = "plain vectors"

    def __init__(self, embedder: Embedder, counter: TokenCounter | None = None) -> None:
        super().__init__(counter)
        self._embedder = embedder
        self._vectors: NDArray[np.float32] | None = None

    async def settle(self) -> None:
        """Make the vectors that are missing."""
        import numpy as np

        vector_count = 0 if self._vectors is None else len(self._vectors)
        new_texts = [item.text for item in self._said[vector_count:]]
        if new_texts:
            new_vectors = await self._embed_normalized(new_texts)
            self._vectors = (
                new_vectors if self._vectors is None else np.concatenate([self._vectors, new_vectors])
            )

    async def ask(self, question: str, budget: int) -> Sequence[Recalled]:
        """Return the messages that are nearest to the question and fit, best first."""
        return self._pack_within_budget(await self.scores(question), budget)

    async def scores(self, question: str) -> dict[int, float]:
        """Return the cosine of every message; sets the confidence."""
        await self.settle()
        if self._vectors is None:
            self.confidence = 0.0
            return {}
        (query,) = await self._embed_normalized([question])
        cosines: list[float] = (self._vectors @ query).tolist()
        self.confidence = min(1.0, max(0.0, *cosines, 0.0))
        return dict(enumerate(cosines))

    async def _embed_normalized(self, texts: list[str]) -> NDArray[np.float32]:
        """Return one vector of length 1 for each text, as the rows of a matrix."""
        import numpy as np

        matrix: Any = np.asarray(await self._embedder.embed(texts), dtype=np.float32)
        return matrix / np.maximum(np.linalg.norm(matrix, axis=1, keepdims=True), 1e-12)


class ReciprocalRankFusion(_MessageMemory):
    """Reciprocal rank fusion (k = 60) of plain BM25 and plain vectors, packed best first.

    It has no confidence: fused ranks do not say how well anything matched. Cormack, Clarke and Büttcher, SIGIR 2009.
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

    async def ask(self, question: str, budget: int) -> Sequence[Recalled]:
        """Return the messages that either of the two ranks high and that fit, best first."""
        fused: defaultdict[int, float] = defaultdict(float)
        for scores in (self._words.scores(question), await self._meaning.scores(question)):
            for rank, index in enumerate(sorted(scores, key=lambda index: (-scores[index], index)), 1):
                fused[index] += 1 / (RRF_K + rank)
        return self._pack_within_budget(fused, budget)
