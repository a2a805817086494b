"""Fact candidates: how well the active facts answer a query, on the same scale as messages.

A fact has no neighbours. It is scored as a message that is its own neighbourhood; the rarity of terms comes from the
whole log, and the usual cosine from the messages, since a handful of facts gives neither. So facts compete with
messages.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial

import numpy as np
from numpy.typing import NDArray

from acms.log.in_force import FACT, Doc, Lone
from acms.log.validity import Period
from acms.model import Source
from acms.ports import Frame
from acms.recall.corpus import K1, Corpus
from acms.recall.index import Floats
from acms.recall.planner import LABEL_TOKENS, Candidate
from acms.recall.query import Query
from acms.recall.ranking import CANDIDATES, CUTOFF, Ranking
from acms.recall.scoring import LIFT, SIGMA, order_by_cost
from acms.recall.vector_score import compute_cosines
from acms.text.tokenizer import compute_idf


class FactIndex:
    """The active facts of one log, and how well each of them answers a query."""

    def __init__(
        self,
        context: str,
        corpus: Corpus,
        ranking: Ranking,
        rarities: Sequence[float],
        times: Mapping[int, Period],
        moment: datetime | None,
        *,
        superseded: bool = False,
        allowed: NDArray[np.bool_] | None = None,
    ) -> None:
        """Score facts like messages that are their own neighbourhood.

        `rarities` are those of the query's words, `times` the validity periods of the facts by version. Facts that have
        ended at `moment` are hidden unless `superseded`.
        """
        self.context = context
        #: Of the facts alone.
        self.corpus = corpus
        self._times = times
        self._moment = moment
        self._superseded = superseded
        self._allowed = allowed
        self._ranking = ranking
        query = ranking.query
        bm25, information = _score_words(corpus, query, rarities)
        self._words = 2 * bm25
        self._meaning: Floats | None = None
        relevance = information
        plain = self._words
        if query.vector is not None and query.space is not None and ranking.scores.level is not None:
            mean, deviation = ranking.scores.level
            cosines = compute_cosines(corpus, query.space, query.vector, np.arange(len(corpus)))
            standardized = (cosines - np.float32(mean)) / np.float32(deviation)
            self._meaning = np.nan_to_num(standardized, nan=0.0)
            plain = plain + np.float32(SIGMA) * np.maximum(0, self._meaning)
            relevance = np.maximum(relevance, np.clip(self._meaning / np.float32(SIGMA), 0, 1))
        hidden = [
            position for position in range(len(corpus)) if self.why_hidden(corpus.document(position) + 1)
        ]
        plain[hidden] = 0
        relevance[hidden] = 0
        self.plain: Floats = plain
        #: How far each fact answers, in [0, 1].
        self.relevance: list[float] = relevance.tolist()
        #: The best relevance in nats without marks, of messages and facts.
        self._best_plain = max(
            float(ranking.scores.plain.max(initial=0.0)), float(self.plain.max(initial=0.0))
        )
        self._marks = self._weigh_marks(information)
        marked = np.asarray(plain + self._marks * np.float32(self._best_plain), np.float32)
        self._order = order_by_cost(marked, corpus.column("tokens"))
        self._best = max(ranking.best, 1e-9)

    def why_hidden(self, version: int) -> str:
        """Return why a fact is not shown; "" if it is."""
        period = self._times.get(version)
        if period is None:
            return "a newer fact has its address"
        if self._moment is None or self._superseded or not period.over(self._moment):
            return ""
        return f"it is over {period.label(self._moment)}; include_superseded=True shows it"

    def _period_label(self, version: int) -> str:
        """Return the label of a fact with the period in which it is valid, or ""."""
        period = self._times.get(version)
        return "" if period is None or self._moment is None else period.label(self._moment)

    def _weigh_marks(self, information: Floats) -> Floats:
        """Return the contributions of marks to facts, as shares of the best relevance, as for messages."""
        weights = self.corpus.mark_weights(self._ranking.query.marker_weights)
        if weights is None:
            return np.zeros(len(self.corpus), np.float32)
        return np.asarray(np.float32(LIFT) * weights * information, np.float32)

    def allows(self, version: int) -> bool:
        """Return whether the filter accepts a fact, by its version."""
        return self._allowed is None or bool(self._allowed[self.corpus.position_of(version - 1)])

    def answers(self, version: int) -> bool:
        """Return whether a fact is above the cutoff, by its version."""
        position = self.corpus.position_of(version - 1)
        plain = float(self.plain[position])
        return plain >= CUTOFF * self._best_plain or float(self._marks[position]) > 0

    @property
    def meaning(self) -> float:
        """How well the best fact answers by meaning, in [0, 1]."""
        if self._meaning is None:
            return 0.0
        return float(np.clip(self._meaning.max(initial=0.0) / SIGMA, 0, 1))

    def measure_coverage(self, weights: Sequence[float]) -> float:
        """Return the largest share of the query that one fact holds; `weights` are the shares of its words."""
        shares = np.zeros(len(self.corpus), np.float32)
        for word, weight in zip(self._ranking.query.words, weights, strict=True):
            positions, _ = self.corpus.word_postings(word)
            shares[positions] += np.float32(weight)
        return float(shares.max(initial=0.0))

    def parts(self, position: int) -> dict[str, float]:
        """Return the contribution of each signal to the relevance of a fact, as shares of the best message."""
        best = float(self._ranking.scores.marked.max(initial=0.0)) or 1.0
        signals = {"fact": float(self._words[position])}
        if self._meaning is not None:
            signals["meaning"] = SIGMA * max(0.0, float(self._meaning[position]))
        return {name: round(value / best, 4) for name, value in signals.items() if value > 0}

    def score(self, position: int) -> float:
        """Return the cost-scaled score of a fact, on the scale of messages, in [0, 1]."""
        return min(1.0, float(self._order[position]) / self._best)

    def doc(self, position: int) -> Doc:
        """Return a fact as the index knows it."""
        return self.corpus.snapshot.doc(self.corpus.document(position))

    def candidates(self, frame: Frame) -> list[Candidate]:
        """Return the facts that answer, oldest first; of very many only the best."""
        positions = np.flatnonzero(self.plain > 0).tolist()
        if len(positions) > CANDIDATES:
            best_first = sorted(positions, key=lambda position: -self._order[position])
            external = [position for position in best_first if self.doc(position).external]
            others = [position for position in best_first if not self.doc(position).external]
            positions = sorted([*others[:CANDIDATES], *external[:CANDIDATES]])
        framing = frame.cost(None, (), FACT)
        return [self._build_candidate(position, framing) for position in positions]

    def _build_candidate(self, position: int, framing: int) -> Candidate:
        doc = self.doc(position)
        label = self._period_label(doc.version)
        cost = doc.tokens + framing + (LABEL_TOKENS if label else 0)
        return Candidate(
            Lone(self.corpus.snapshot.doc, doc.version, doc.markers),
            Source.FACT,
            (cost,),
            cost,
            self.relevance[position],
            float(self._marks[position]),
            self.score(position),
            partial(self.parts, position),
            label=label,
            external=doc.external,
        )


def measure_rarities(ranking: Ranking, corpora: Iterable[Corpus]) -> list[float]:
    """Return how rare each word of a query is among the messages of a log and its facts together."""
    holders = [len(positions) for positions in ranking.scores.holders]
    size = len(ranking.corpus)
    for facts in corpora:
        size += len(facts)
        for number, word in enumerate(ranking.query.words):
            positions, _ = facts.word_postings(word)
            holders[number] += len(positions)
    return [compute_idf(size, count) for count in holders]


def _score_words(corpus: Corpus, query: Query, rarities: Sequence[float]) -> tuple[Floats, Floats]:
    """Return BM25 of each fact, and the share of the query's information that it holds."""
    bm25, information = np.zeros(len(corpus), np.float32), np.zeros(len(corpus), np.float32)
    norms = corpus.norms
    for word, weight in zip(query.words, rarities, strict=True):
        positions, counts = corpus.word_postings(word)
        bm25[positions] += np.float32(weight * (K1 + 1)) * counts / (counts + norms[positions])
        information[positions] += np.float32(weight)
    total = sum(rarities) or 1.0
    return bm25, np.minimum(information / np.float32(total), np.float32(1))
