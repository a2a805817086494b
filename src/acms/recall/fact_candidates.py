"""Fact candidates: how well the active facts answer a query, on the same scale as messages.

A fact has no neighbours, so it is scored like a message that is its own neighbourhood. The rarity of terms is that in
the whole log, and the mean cosine that of the messages: a handful of facts gives neither.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial

import numpy as np
from numpy.typing import NDArray

from acms.log.active_entries import FACT, IndexedEntry, SingleEntryGroup
from acms.log.validity import Period
from acms.model import Source
from acms.ports import Frame
from acms.recall.corpus import Corpus
from acms.recall.index import Floats
from acms.recall.planner import LABEL_TOKENS, Candidate
from acms.recall.ranking import ASKS_NOTHING, BELOW_CUTOFF, CUTOFF_SHARE, MIN_CANDIDATES, Ranking
from acms.recall.scoring import MARK_FACTOR, NATS_PER_DEVIATION, find_cosines, order_by_cost, score_words
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
        include_ended: bool = False,
        allowed: NDArray[np.bool_] | None = None,
    ) -> None:
        """Score the facts of a corpus like messages that are their own neighbourhood.

        `rarities` are the weights of the query's words, `times` the validity periods of the active facts by version.
        Facts that have ended at `moment` are hidden unless `include_ended`.
        """
        self.context = context
        #: The corpus of the facts alone; `ranking` has that of the messages.
        self.corpus = corpus
        self._times = times
        self._moment = moment
        self._include_ended = include_ended
        self._allowed_mask = allowed
        self._ranking = ranking
        query = ranking.query
        words = score_words(corpus, query.words, known_rarities=rarities)
        self._holders = words.holders
        self._words = 2 * words.own
        self._meaning: Floats | None = None
        relevance = words.information
        without_marks = self._words
        if query.vector is not None and query.space is not None and ranking.scores.cosine_stats is not None:
            mean, deviation = ranking.scores.cosine_stats
            cosines = find_cosines(corpus, query.space, query.vector)
            standardized = (cosines - np.float32(mean)) / np.float32(deviation)
            self._meaning = np.nan_to_num(standardized, nan=0.0)
            without_marks = without_marks + np.float32(NATS_PER_DEVIATION) * np.maximum(0, self._meaning)
            relevance = np.maximum(relevance, np.clip(self._meaning / np.float32(NATS_PER_DEVIATION), 0, 1))
        hidden = [
            position for position in range(len(corpus)) if self.why_hidden(corpus.document(position) + 1)
        ]
        without_marks[hidden] = 0
        relevance[hidden] = 0
        self.without_marks: Floats = without_marks
        #: How far each fact answers, in [0, 1].
        self.relevance: list[float] = relevance.tolist()
        #: The best relevance in nats without marks, of messages and facts.
        self._best_without_marks = max(
            float(ranking.scores.without_marks.max(initial=0.0)), float(self.without_marks.max(initial=0.0))
        )
        #: Contribution of marks to each fact, as a share of the best relevance.
        self._marks = self._weigh_marks(words.information)
        contributions = self._marks * np.float32(self._best_without_marks)
        with_marks = np.asarray(without_marks + contributions, np.float32)
        self._cost_scaled = order_by_cost(with_marks, corpus.column("tokens"))
        self._best = max(ranking.best, 1e-9)

    def why_hidden(self, version: int) -> str:
        """Return why a fact is not shown; "" if it is."""
        period = self._times.get(version)
        if period is None:
            return "a newer fact has its address"
        if self._moment is None or self._include_ended or not period.is_over(self._moment):
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
        return np.asarray(np.float32(MARK_FACTOR) * weights * information, np.float32)

    def allows(self, version: int) -> bool:
        """Return whether the filter accepts a fact, by its version."""
        return self._allowed_mask is None or bool(self._allowed_mask[self.corpus.position_of(version - 1)])

    def answers(self, version: int) -> bool:
        """Return whether a fact is above the cutoff, by its version; none is if the query asks nothing."""
        if self._ranking.asks_nothing:
            return False
        position = self.corpus.position_of(version - 1)
        without_marks = float(self.without_marks[position])
        return without_marks >= CUTOFF_SHARE * self._best_without_marks or float(self._marks[position]) > 0

    def why_no_answer(self) -> str:
        """Return why a fact does not answer."""
        return ASKS_NOTHING if self._ranking.asks_nothing else BELOW_CUTOFF

    @property
    def meaning(self) -> float:
        """How well the best fact answers by meaning, in [0, 1]."""
        if self._meaning is None:
            return 0.0
        return float(np.clip(self._meaning.max(initial=0.0) / NATS_PER_DEVIATION, 0, 1))

    def measure_coverage(self, weights: Sequence[float]) -> float:
        """Return the largest share of the query that one fact holds; `weights` are the shares of its words."""
        shares = np.zeros(len(self.corpus), np.float32)
        for positions, weight in zip(self._holders, weights, strict=True):
            shares[positions] += np.float32(weight)
        return float(shares.max(initial=0.0))

    def parts(self, position: int) -> dict[str, float]:
        """Return the contribution of each signal to the relevance of a fact, as shares of the best message."""
        best = float(self._ranking.scores.with_marks.max(initial=0.0)) or 1.0
        signals = {"fact": float(self._words[position])}
        if self._meaning is not None:
            signals["meaning"] = NATS_PER_DEVIATION * max(0.0, float(self._meaning[position]))
        return {name: round(value / best, 4) for name, value in signals.items() if value > 0}

    def score(self, position: int) -> float:
        """Return the cost-scaled score of a fact, on the scale of messages, in [0, 1]."""
        return min(1.0, float(self._cost_scaled[position]) / self._best)

    def doc(self, position: int) -> IndexedEntry:
        """Return the fact at a position, as stored in the index."""
        return self.corpus.snapshot.doc(self.corpus.document(position))

    def candidates(self, frame: Frame) -> list[Candidate]:
        """Return the facts with any relevance, oldest first; if there are more than `MIN_CANDIDATES`, only the best."""
        positions = np.flatnonzero(self.without_marks > 0).tolist()
        if len(positions) > MIN_CANDIDATES:
            best_first = sorted(positions, key=lambda position: -self._cost_scaled[position])
            external_positions = [position for position in best_first if self.doc(position).external]
            other_positions = [position for position in best_first if not self.doc(position).external]
            positions = sorted([*other_positions[:MIN_CANDIDATES], *external_positions[:MIN_CANDIDATES]])
        framing = frame.cost(None, (), FACT)
        return [self._build_candidate(position, framing) for position in positions]

    def _build_candidate(self, position: int, framing: int) -> Candidate:
        doc = self.doc(position)
        label = self._period_label(doc.version)
        cost = doc.tokens + framing + (LABEL_TOKENS if label else 0)
        return Candidate(
            SingleEntryGroup(self.corpus.snapshot.doc, doc.version, doc.markers),
            Source.FACT,
            costs=(cost,),
            tokens=cost,
            relevance=self.relevance[position],
            boost=float(self._marks[position]),
            score=self.score(position),
            parts=partial(self.parts, position),
            label=label,
            external=doc.external,
        )


def measure_rarities(ranking: Ranking, corpora: Iterable[Corpus]) -> list[float]:
    """Return the inverse document frequency of each word of a query, among the messages and the facts together.

    `corpora` are the corpora of the facts.
    """
    holder_counts = [len(positions) for positions in ranking.scores.holders]
    entry_count = len(ranking.corpus)
    for facts in corpora:
        entry_count += len(facts)
        for word_index, word in enumerate(ranking.query.words):
            positions, _ = facts.word_postings(word)
            holder_counts[word_index] += len(positions)
    return [compute_idf(entry_count, holder_count) for holder_count in holder_counts]
