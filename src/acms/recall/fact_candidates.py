"""Known: how well the facts in force answer a query, on the scale on which messages are measured.

A fact stands alone. It is weighed as a message would be that is its own neighbourhood and its own day, terms are as
rare as they are in the whole log, and the usual cosine is that of the messages: a handful of facts tells neither. So
nothing is relative to the other facts (decision 0015), and a fact competes with what was said.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from acms.log.in_force import FACT, Doc, Lone
from acms.model import Source
from acms.ports import Frame
from acms.recall import vector_score as meaning
from acms.recall.corpus import Field, room
from acms.recall.planner import Candidate
from acms.recall.rank import CANDIDATES, TERMS, Question, raise_score
from acms.recall.vector_score import answered, cosines, risen
from acms.recall.vectors import Floats
from acms.text.markers import boost
from acms.text.tokenizer import rarity


class Usual(NamedTuple):
    """What is usual in the log in which a query is asked."""

    #: Entries that hold each of its terms, and entries in all.
    often: Mapping[int, int]
    size: int
    #: Cosines of the query and an entry that has nothing to do with it; None when nobody asked by meaning.
    cosine: meaning.Usual | None

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

    def __init__(self, context: str, field: Field, words: Floats, meant: Floats | None) -> None:
        self.context = context
        #: Of the facts alone.
        self.field = field
        self._words = words
        self._meant = meant
        worth = words if meant is None else words + meant * np.float32(field.weights.meaning)
        relevance = words if meant is None else words + meant - words * meant
        self._worth: list[float] = worth.tolist()
        self.relevance: list[float] = np.minimum(relevance, 1).tolist()

    @property
    def meaning(self) -> float:
        """How well the best fact answers by meaning, in [0, 1]."""
        return 0.0 if self._meant is None else float(self._meant.max(initial=0.0))

    def parts(self, place: int) -> dict[str, float]:
        """Return what each signal adds to the relevance of a fact."""
        found = {"fact": float(self._words[place])}
        if self._meant is not None:
            found["meaning"] = float(self._meant[place]) * self.field.weights.meaning
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
    weights = field.weights
    own = room(length, weights.length, weights)
    day = room(length, weights.day_length, weights)
    alone = np.float32(weights.message + weights.window)
    words = np.zeros(size, np.float32)
    held = sorted(dict.fromkeys(asked.terms), key=lambda number: (usual.often.get(number, 0), number))
    said = [number for number in held if usual.often.get(number, 0)][:TERMS]
    best = rarity(usual.size, 0) * sum(1 for number in held if not usual.often.get(number, 0))
    for number in said:
        often = usual.often[number]
        weight = rarity(usual.size, often)
        best += weight
        places, counts = field.postings(number)
        if len(places):
            found = alone * counts / (counts + own[places])
            found += np.float32(weights.day) * counts / (counts + day[places])
            words[places] += np.float32(weight) * found
    if best:
        words *= np.float32(1 / (best * weights.words))
    if asked.vector is None or asked.space is None:
        return Known(context, field, words, None)
    found = cosines(field, asked.space, asked.vector, np.arange(size))
    level = usual.cosine or meaning.Usual(weights.unrelated_whole, weights.unrelated_part)
    meant = answered(risen(found.whole, level.whole), risen(found.best, level.best), None, weights)
    return Known(context, field, words, meant)
