"""Known: how well the facts in force answer a query, on the scale on which messages are measured.

A fact stands alone. It is weighed as a message would be that is its own neighbourhood, terms are as rare as they are in
the whole log, and the usual cosine is that of the messages: a handful of facts tells neither. So a fact competes with
what was said.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from acms.log.in_force import FACT, Doc, Lone
from acms.log.validity import Period
from acms.model import Source
from acms.ports import Frame
from acms.recall.corpus import Field
from acms.recall.index import Floats
from acms.recall.planner import LABEL, Candidate
from acms.recall.rank import CANDIDATES, MEANT, Question, Ranking, raise_score
from acms.recall.vector_score import SPREAD, USUAL, Level, cosines
from acms.text.markers import boost
from acms.text.tokenizer import rarity


class Usual(NamedTuple):
    """What is usual in the log in which a query is asked: facts are measured by its messages."""

    ranking: Ranking
    #: Entries that hold each term of the query, and entries in all, facts included.
    often: Mapping[int, int]
    size: int

    @classmethod
    def of(cls, ranking: Ranking, fields: Iterable[Field]) -> Usual:
        """Return what is usual among the messages of a log and the facts of some fields."""
        often, size = dict(ranking.often), len(ranking.field)
        for field in fields:
            size += len(field)
            for number in often:
                often[number] += len(field.postings(number)[0])
        return cls(ranking, often, size)


class When(NamedTuple):
    """When the facts of a log are so, and when it is asked; None when nothing was ever said there."""

    times: Mapping[int, Period]
    moment: datetime | None
    #: Show also what is over.
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
        """Return what is said of a fact that is shown: from when on it is so, and until when; else ""."""
        period = self.times.get(version)
        return "" if period is None or self.moment is None else period.label(self.moment)


class Known:
    """The facts in force of one log, and how well each of them answers."""

    def __init__(
        self,
        context: str,
        field: Field,
        asked: Question,
        usual: Usual,
        when: When,
        allowed: NDArray[np.bool_] | None = None,
    ) -> None:
        self.context = context
        self.when = when
        self._allowed = allowed
        #: Of the facts alone.
        self.field = field
        weights, ranking = field.weights, usual.ranking
        total, self._words = _by_words(field, usual)
        own = self._words / np.float32(total or 1)
        worth = self._words * np.float32((1 + weights.near) / (ranking.best or 1))
        self._share = 1.0
        self._meant: Floats | None = None
        if asked.vector is not None and asked.space is not None:
            found = cosines(field, asked.space, asked.vector, np.arange(len(field)))
            meant = self._meant = (ranking.level or Level(USUAL, SPREAD)).of(found)
            self._share = 1 - weights.meaning
            worth = np.float32(self._share) * worth + np.float32(weights.meaning) * meant
            evident = np.where(meant >= np.float32(MEANT), meant, np.float32(0))
            own = own + evident - own * evident
        self._scale = self._share * (1 + weights.near) / (ranking.best or 1)
        self._worth: list[float] = (worth * field.prices).tolist()
        hidden = [place for place in range(len(field)) if when.hidden(field.document(place) + 1)]
        own[hidden] = 0
        measure = max(ranking.measure, float(own.max(initial=0.0)))
        #: How much of what was asked each fact holds, relative to the best entry of all, in [0, 1].
        self.relevance: list[float] = (own / np.float32(measure)).tolist()
        #: Versions of the messages that came later and speak of the same subject, by the place of the fact.
        self.later: dict[int, int] = {}

    def allows(self, version: int) -> bool:
        """Whether a fact may be shown, by its version."""
        return self._allowed is None or bool(self._allowed[self.field.place_of(version - 1)])

    @property
    def meaning(self) -> float:
        """How well the best fact answers by meaning, in [0, 1]."""
        return 0.0 if self._meant is None else float(self._meant.max(initial=0.0))

    def parts(self, place: int) -> dict[str, float]:
        """Return what each signal adds to the worth of a fact, before its price."""
        found = {"fact": float(self._words[place]) * self._scale}
        if self._meant is not None:
            found["meaning"] = float(self._meant[place]) * self.field.weights.meaning
        return {name: round(value, 4) for name, value in found.items() if value > 0}

    def worth(self, place: int) -> float:
        """Return what the score of a fact is made of by `raise_score`."""
        return self._worth[place]

    def score(self, place: int, raised: float) -> float:
        """Return the score of a fact in [0, 1), raised by its markers as far as it answers."""
        return raise_score(self._worth[place], raised * self.relevance[place])

    def doc(self, place: int) -> Doc:
        """Return a fact as the index knows it."""
        return self.field.snapshot.doc(self.field.document(place))

    def candidates(self, weights: Mapping[str, float], frame: Frame) -> list[Candidate]:
        """Return the facts that answer, oldest first; of very many only the best."""
        places = [place for place, found in enumerate(self.relevance) if found > 0]
        if len(places) > CANDIDATES:
            best = sorted(places, key=lambda place: -self._worth[place])
            outside = [place for place in best if self.doc(place).external]
            own = [place for place in best if not self.doc(place).external]
            places = sorted([*own[:CANDIDATES], *outside[:CANDIDATES]])
        framing = frame.cost(None, (), FACT)
        found: list[Candidate] = []
        for place in places:
            doc = self.doc(place)
            raised = boost(doc.markers, weights)
            when = self.when.label(doc.version)
            cost = doc.tokens + framing + (LABEL if when else 0)
            found.append(
                Candidate(
                    Lone(self.field.snapshot.doc, doc.version, doc.markers),
                    Source.FACT,
                    (cost,),
                    cost,
                    self.relevance[place],
                    raised * self.relevance[place],
                    self.score(place, raised),
                    self.parts(place),
                    self.later.get(place, 0),
                    when,
                    external=doc.external,
                )
            )
        return found


def _by_words(field: Field, usual: Usual) -> tuple[float, Floats]:
    """Return the weight of all that is asked, and how much of it every fact holds."""
    weights = field.weights
    found = np.zeros(len(field), np.float32)
    total = 0.0
    for number, often in usual.often.items():
        weight = rarity(usual.size, often) ** weights.rarity
        total += weight
        places, counts = field.postings(number)
        density = counts / field.norms[places]
        found[places] += np.float32(weight) * density / (density + np.float32(weights.k))
    return total, found
