"""Known: how well the facts in force answer a query, on the scale on which messages are measured.

A fact stands alone. It is weighed as a message would be that is its own neighbourhood and its own day, terms are as
rare as they are in the whole log, and the usual cosine is that of the messages: a handful of facts tells neither. So
nothing is relative to the other facts (decision 0015), and a fact competes with what was said.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import log
from typing import NamedTuple

import numpy as np

from acms.core.field import DAY_LENGTH, FLOOR, LENGTH, WEIGHTS, Field
from acms.core.history import FACT, Doc, Lone
from acms.core.markers import boost
from acms.core.plan import Candidate
from acms.core.rank import CANDIDATES, LEXICAL, TERMS, Question, cosines, raise_score, risen
from acms.core.vectors import Floats
from acms.model import Source
from acms.protocols import Frame


class Usual(NamedTuple):
    """What is usual in the log in which a query is asked."""

    #: Entries that hold each of its terms, and entries in all.
    often: Mapping[int, int]
    size: int
    #: Cosine of the query and an entry that has nothing to do with it.
    cosine: float

    def beside(self, fields: Iterable[Field], query: Sequence[int]) -> Usual:
        """Return the same with the entries of some fields."""
        often, size = dict(self.often), self.size
        for field in fields:
            size += len(field)
            for number in dict.fromkeys(query):
                often[number] = often.get(number, 0) + len(field.postings(number)[0])
        return Usual(often, size, self.cosine)


class Known:
    """The facts in force of one log, and how well each of them answers."""

    def __init__(self, context: str, field: Field, words: Floats, meaning: Floats | None) -> None:
        self.context = context
        #: Of the facts alone.
        self.field = field
        self._words = words
        self._meaning = meaning
        worth = words if meaning is None else words + meaning * np.float32(1 / LEXICAL)
        relevance = words if meaning is None else words + meaning - words * meaning
        self._worth: list[float] = worth.tolist()
        self.relevance: list[float] = np.minimum(relevance, 1).tolist()

    def parts(self, place: int) -> dict[str, float]:
        """Return what each signal adds to the relevance of a fact."""
        found = {"fact": float(self._words[place])}
        if self._meaning is not None:
            found["meaning"] = float(self._meaning[place] * np.float32(1 / LEXICAL))
        return {name: round(value, 4) for name, value in found.items() if value > 0}

    def score(self, place: int, raised: float) -> float:
        """Return the score of a fact in [0, 1), raised by its markers."""
        return raise_score(self._worth[place], raised)

    def doc(self, place: int) -> Doc:
        """Return a fact as the index knows it."""
        return self.field.snapshot.doc(self.field.document(place))

    def candidates(self, weights: Mapping[str, float], frame: Frame) -> list[Candidate]:
        """Return the facts that answer, oldest first; of very many only the best."""
        places = [place for place, found in enumerate(self.relevance) if found > 0]
        if len(places) > CANDIDATES:
            places = sorted(sorted(places, key=lambda place: -self._worth[place])[:CANDIDATES])
        framing = frame.cost(None, (), FACT)
        found: list[Candidate] = []
        for place in places:
            doc = self.doc(place)
            raised = boost(doc.markers, weights)
            cost = doc.tokens + framing
            found.append(
                Candidate(
                    Lone(self.field.snapshot.doc, doc.version, doc.markers),
                    Source.FACT,
                    (cost,),
                    cost,
                    self.relevance[place],
                    raised,
                    self.score(place, raised),
                    self.parts(place),
                )
            )
        return found


def known(context: str, field: Field, asked: Question, usual: Usual) -> Known:
    """Say how well every fact in force answers."""
    size = len(field)
    length: Floats = field.column("length")
    own = np.float32(FLOOR) + length * np.float32(1 / LENGTH)
    day = np.float32(FLOOR) + length * np.float32(1 / DAY_LENGTH)
    alone = np.float32(WEIGHTS["message"] + WEIGHTS["window"])
    words = np.zeros(size, np.float32)
    held = sorted(dict.fromkeys(asked.terms), key=lambda number: (usual.often.get(number, 0), number))
    said = [number for number in held if usual.often.get(number, 0)][:TERMS]
    best = log(1 + (usual.size + 0.5) / 0.5) * sum(1 for number in held if not usual.often.get(number, 0))
    for number in said:
        often = usual.often[number]
        weight = log(1 + (usual.size - often + 0.5) / (often + 0.5))
        best += weight
        places, counts = field.postings(number)
        if len(places):
            found = alone * counts / (counts + own[places])
            found += np.float32(WEIGHTS["day"]) * counts / (counts + day[places])
            words[places] += np.float32(weight) * found
    if best:
        words *= np.float32(1 / (best * sum(WEIGHTS.values())))
    if asked.vector is None or asked.space is None:
        return Known(context, field, words, None)
    cosine = cosines(field, asked.space, asked.vector, np.arange(size))
    return Known(context, field, words, risen(cosine, usual.cosine))
