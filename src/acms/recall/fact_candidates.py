"""Fact candidates: how well the active facts answer a query, on the same scale as messages.

A fact has no neighbours. It is scored as a message that is its own neighbourhood; the rarity of terms comes from the
whole log, and the usual cosine from the messages, since a handful of facts gives neither. So facts compete with
messages.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from acms.log.in_force import FACT, Doc, Lone
from acms.log.validity import Period
from acms.model import Source
from acms.ports import Frame
from acms.recall.corpus import K1, Field
from acms.recall.index import Floats
from acms.recall.planner import LABEL, Candidate
from acms.recall.query import Query
from acms.recall.ranking import CANDIDATES, CUTOFF, Ranking
from acms.recall.scoring import LIFT, SIGMA, order_by_cost
from acms.recall.vector_score import compute_cosines
from acms.text.tokenizer import compute_idf


class When(NamedTuple):
    """When the facts of a log are so, and when it is asked; None when nothing was ever said there."""

    times: Mapping[int, Period]
    moment: datetime | None
    #: Show ended facts too.
    superseded: bool = False

    def hidden(self, version: int) -> str:
        """Return why a fact is not shown; "" when it is."""
        period = self.times.get(version)
        if period is None:
            return "a newer fact has its address"
        if self.moment is None or self.superseded or not period.over(self.moment):
            return ""
        return f"it is over {period.label(self.moment)}; include_superseded=True shows it"

    def label(self, version: int) -> str:
        """Return the label of a shown fact, the period for which it is valid; else ""."""
        period = self.times.get(version)
        return "" if period is None or self.moment is None else period.label(self.moment)


class Known:
    """The facts in force of one log, and how well each of them answers."""

    def __init__(
        self,
        context: str,
        field: Field,
        ranking: Ranking,
        rarities: Sequence[float],
        when: When,
        allowed: NDArray[np.bool_] | None = None,
    ) -> None:
        """Score facts like messages that are their own neighbourhood; `rarities` are those of the query's words."""
        self.context = context
        self.when = when
        self._allowed = allowed
        #: Of the facts alone.
        self.field = field
        self._ranking = ranking
        query = ranking.query
        own, information = _score_words(field, query, rarities)
        self._words = 2 * own
        self._meaning: Floats | None = None
        relevance = information
        plain = self._words
        if query.vector is not None and query.space is not None and ranking.scores.level is not None:
            mean, deviation = ranking.scores.level
            found = compute_cosines(field, query.space, query.vector, np.arange(len(field)))
            above = (found - np.float32(mean)) / np.float32(deviation)
            self._meaning = np.nan_to_num(above, nan=0.0)
            plain = plain + np.float32(SIGMA) * np.maximum(0, self._meaning)
            relevance = np.maximum(relevance, np.clip(self._meaning / np.float32(SIGMA), 0, 1))
        hidden = [place for place in range(len(field)) if when.hidden(field.document(place) + 1)]
        plain[hidden] = 0
        relevance[hidden] = 0
        self.plain: Floats = plain
        #: How far each fact answers, in [0, 1].
        self.relevance: list[float] = relevance.tolist()
        self._marks = self._weigh_marks(information)
        marked = np.asarray(plain + self._marks * np.float32(self._best_plain), np.float32)
        self._order = order_by_cost(marked, field.column("tokens"))
        self._best = max(ranking.best, 1e-9)

    @property
    def _best_plain(self) -> float:
        """Return the best relevance in nats without marks, of messages and facts."""
        return max(float(self._ranking.scores.plain.max(initial=0.0)), float(self.plain.max(initial=0.0)))

    def _weigh_marks(self, information: Floats) -> Floats:
        """Return the contributions of marks to facts, as shares of the best relevance, as for messages."""
        lifts = self.field.mark_weights(self._ranking.query.marker_weights)
        if lifts is None:
            return np.zeros(len(self.field), np.float32)
        return np.asarray(np.float32(LIFT) * lifts * information, np.float32)

    def allows(self, version: int) -> bool:
        """Whether a fact may be shown, by its version."""
        return self._allowed is None or bool(self._allowed[self.field.place_of(version - 1)])

    def answers(self, version: int) -> bool:
        """Whether a fact is above the cutoff, by its version."""
        place = self.field.place_of(version - 1)
        plain = float(self.plain[place])
        return plain >= CUTOFF * self._best_plain or float(self._marks[place]) > 0

    @property
    def meaning(self) -> float:
        """How well the best fact answers by meaning, in [0, 1]."""
        return 0.0 if self._meaning is None else float(np.clip(self._meaning.max(initial=0.0) / SIGMA, 0, 1))

    def measure_coverage(self, weights: Sequence[float]) -> float:
        """Return the largest share of the query that one fact holds; `weights` are the shares of its words."""
        held = np.zeros(len(self.field), np.float32)
        for word, weight in zip(self._ranking.query.words, weights, strict=True):
            held[self.field.word_postings(word)[0]] += np.float32(weight)
        return float(held.max(initial=0.0))

    def parts(self, place: int) -> dict[str, float]:
        """Return the contribution of each signal to the relevance of a fact, as shares of the best message."""
        best = float(self._ranking.scores.marked.max(initial=0.0)) or 1.0
        found = {"fact": float(self._words[place])}
        if self._meaning is not None:
            found["meaning"] = SIGMA * max(0.0, float(self._meaning[place]))
        return {name: round(value / best, 4) for name, value in found.items() if value > 0}

    def score(self, place: int) -> float:
        """Return the cost-scaled score of a fact, on the scale of messages, in [0, 1]."""
        return min(1.0, float(self._order[place]) / self._best)

    def doc(self, place: int) -> Doc:
        """Return a fact as the index knows it."""
        return self.field.snapshot.doc(self.field.document(place))

    def candidates(self, frame: Frame) -> list[Candidate]:
        """Return the facts that answer, oldest first; of very many only the best."""
        places = np.flatnonzero(self.plain > 0).tolist()
        if len(places) > CANDIDATES:
            best = sorted(places, key=lambda place: -self._order[place])
            outside = [place for place in best if self.doc(place).external]
            own = [place for place in best if not self.doc(place).external]
            places = sorted([*own[:CANDIDATES], *outside[:CANDIDATES]])
        framing = frame.cost(None, (), FACT)
        found: list[Candidate] = []
        for place in places:
            doc = self.doc(place)
            when = self.when.label(doc.version)
            cost = doc.tokens + framing + (LABEL if when else 0)
            found.append(
                Candidate(
                    Lone(self.field.snapshot.doc, doc.version, doc.markers),
                    Source.FACT,
                    (cost,),
                    cost,
                    self.relevance[place],
                    float(self._marks[place]),
                    self.score(place),
                    partial(self.parts, place),
                    label=when,
                    external=doc.external,
                )
            )
        return found


def measure_rarities(ranking: Ranking, fields: Iterable[Field]) -> list[float]:
    """Return how rare each word of a query is among the messages of a log and its facts together."""
    held = [len(places) for places in ranking.scores.holders]
    size = len(ranking.field)
    for field in fields:
        size += len(field)
        for number, word in enumerate(ranking.query.words):
            held[number] += len(field.word_postings(word)[0])
    return [compute_idf(size, often) for often in held]


def _score_words(field: Field, query: Query, rarities: Sequence[float]) -> tuple[Floats, Floats]:
    """Return BM25 of each fact, and the share of the query's information that it holds."""
    own, information = np.zeros(len(field), np.float32), np.zeros(len(field), np.float32)
    norms = field.norms
    total = 0.0
    for word, weight in zip(query.words, rarities, strict=True):
        total += weight
        places, counts = field.word_postings(word)
        own[places] += np.float32(weight * (K1 + 1)) * counts / (counts + norms[places])
        information[places] += np.float32(weight)
    return own, np.minimum(information / np.float32(total or 1), np.float32(1))
