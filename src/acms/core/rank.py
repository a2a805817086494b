"""Rank: how well the entries in force answer a query, by shared words, by meaning, and by what stands around them.

Words are weighed as in BM25 (Robertson and Zaragoza, "The Probabilistic Relevance Framework", 2009), but a text is
measured against a fixed length instead of the average one, so that a field of many short messages speaks and one of a
few long ones does not. Four fields are added: the message, its neighbourhood, everything said on its day, and, for the
message after a question, the question. Meaning is the best cosine of any of its vectors. Nothing is relative to the
other results, so a handful of messages ranks as well as a hundred thousand (decision 0015). No recency enters (decision
0007). All statistics are those of the entries the reader sees, so a past version ranks as it did then (rule 2.9).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from math import exp, isnan, log
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from acms.core.field import AFTER, BEFORE, WEIGHTS, Field, Sample, sum_around
from acms.core.index import Segment
from acms.core.terms import terms, words
from acms.core.vectors import Floats, Ints, Vectors, signs

NAMED = 1.35
"""Factor of the messages of a speaker whom the query names, when it does not name all."""
TERMS = 16
"""Terms of a query that count: the rarest ones."""
EXACT = 20_000
"""Vectors up to which all cosines are computed; above, sign bits choose which ones are."""
RESCORED = 640
"""Entries whose cosines are computed exactly when sign bits chose."""
SAMPLED = 256
"""Entries, evenly spread, whose exact cosines tell how far sign bits are off on average."""
CANDIDATES = 256
"""Entries that planning considers, at least."""
FEWEST = 64
"""Candidates that are kept however small the budget is."""
MARKED = 64
"""Marked entries that planning considers, however many unmarked ones answer better."""


# ── words ───────────────────────────────────────────────────────────────────────────────────────────────────────────


class Words(NamedTuple):
    """How well every entry in force answers by words: each field, weighted, over the most a text could reach."""

    fields: Mapping[str, Floats]
    #: Query terms that occur anywhere.
    known: int
    #: How many entries hold each query term.
    often: Mapping[int, int]


def by_words(field: Field, query: Sequence[int]) -> Words:
    """Score by words."""
    size = len(field)
    message, window = np.zeros(size, np.float32), np.zeros(size, np.float32)
    held = [(number, *field.postings(number)) for number in dict.fromkeys(query)]
    found = sorted((one for one in held if len(one[1])), key=lambda one: (len(one[1]), one[0]))[:TERMS]
    often = {number: len(places) for number, places, _ in held}
    if not found:
        return Words(dict.fromkeys(WEIGHTS, message), 0, often)
    own, around, by_day, codes, question = field.measures[:5]
    day = np.zeros(len(by_day), np.float32)
    wide = np.zeros(size + 2 * _MARGIN, np.float32)
    spread = wide[_MARGIN:-_MARGIN]
    sums, part = np.empty(size, np.float32), np.empty(size, np.float32)
    # Also the terms that nobody has said: a question of unknown words is answered less by the few that are known.
    best = log(1 + (size + 0.5) / 0.5) * sum(1 for one in held if not len(one[1]))
    for _, places, counts in found:
        weight = log(1 + (size - len(places) + 0.5) / (len(places) + 0.5))
        gain = np.float32(weight)
        best += weight
        spread[places] = counts
        if len(places) * 8 < size:
            message[places] += gain * counts / (counts + own[places])
        else:
            np.add(spread, own, out=part)
            np.multiply(spread, gain, out=sums)
            np.divide(sums, part, out=part)
            message += part
        if len(places) * 40 < size:
            near, values = _near(wide, places)
            spread[places] = 0
            # A place that comes twice comes with the same value, and is read before it is written.
            window[near] += gain * values / (values + around[near])
        else:
            sum_around(spread, sums)
            spread[places] = 0
            np.add(sums, around, out=part)
            np.divide(sums, part, out=part)
            part *= gain
            window += part
        in_day = np.bincount(codes[places], counts, len(by_day)).astype(np.float32)
        day += gain * in_day / (in_day + by_day)
    scale = np.float32(1 / (best * sum(WEIGHTS.values())))
    before = np.zeros(size, np.float32)
    np.multiply(message[:-1], question[1:], out=before[1:])
    message *= scale * np.float32(WEIGHTS["message"])
    window *= scale * np.float32(WEIGHTS["window"])
    day *= scale * np.float32(WEIGHTS["day"])
    before *= scale
    return Words(
        {"message": message, "window": window, "day": day.take(codes), "question": before}, len(found), often
    )


_SHIFTS = range(-AFTER, BEFORE + 1)
_MARGIN = BEFORE + AFTER


def _near(wide: Floats, places: Ints) -> tuple[Ints, Floats]:
    """Return the places whose neighbourhood reaches some ascending ones, and the sum of the values around each.

    The values have a margin of zeros on both sides, so that no place needs a check.
    """
    inner = places + _MARGIN
    held = {shift: wide[inner + shift] for shift in range(-_MARGIN, _MARGIN + 1)}
    near = np.concatenate([places + shift for shift in _SHIFTS])
    sums = np.concatenate([sum([held[shift - other] for other in _SHIFTS]) for shift in _SHIFTS])
    last = len(wide) - 2 * _MARGIN - 1
    if places[0] < AFTER or places[-1] > last - BEFORE:
        inside = (near >= 0) & (near <= last)
        near, sums = near[inside], sums[inside]
    return near, sums


# ── meaning ─────────────────────────────────────────────────────────────────────────────────────────────────────────


class Meaning(NamedTuple):
    """Best cosine of every entry in force; NaN for one without a vector."""

    cosine: Floats
    #: False when sign bits stand for the cosines.
    exact: bool
    #: Entries with a vector.
    known: int


def by_meaning(field: Field, space: str, query: Floats) -> Meaning:
    """Score by vectors of one space; other spaces are never looked at."""
    held = field.snapshot.vectors(space, len(query))
    exact = sum(_seen(*one) for one in held) <= EXACT
    if len(held) == 1 and exact and field.place is None:
        _, count, vectors, size = held[0]
        if vectors.straight and count == len(field) and size >= count == vectors.begin[count]:
            return Meaning(vectors.scored(query, count), True, count)
    cosine = np.full(len(field), np.nan, np.float32)
    code = signs(query[None, :])[:, 0]
    by_signs = np.cos(np.arange(64 * len(code) + 1, dtype=np.float32) * np.float32(np.pi / len(query)))
    known = 0
    for segment, count, vectors, size in held:
        documents = vectors.documents[:size]
        begin = vectors.begin[: size + 1]
        best: Floats
        if exact:
            scored = vectors.scored(query, int(begin[-1]))
            best = scored if len(scored) == size else np.maximum.reduceat(scored, begin[:-1])
        else:
            best = by_signs.take(vectors.apart(code, size))
        if vectors.straight and field.place is None:
            count = min(count, size)
            cosine[segment.base : segment.base + count] = best[:count]
            known += count
            continue
        inside = documents < count
        places = documents[inside].astype(np.int64) + segment.base
        best = best[inside]
        if field.place is not None:
            places = field.place[places]
            best, places = best[places >= 0], places[places >= 0]
        cosine[places] = best
        known += len(places)
    return Meaning(cosine, exact, known)


def _seen(segment: Segment, count: int, vectors: Vectors, size: int) -> int:
    """Return how many vectors the first documents of a segment have."""
    if count >= segment.count:
        return int(vectors.begin[size])
    return int(np.diff(vectors.begin[: size + 1])[vectors.documents[:size] < count].sum())


def cosines(field: Field, space: str, query: Floats, places: Ints) -> Floats:
    """Return the exact best cosine of some entries; NaN for one without a vector. The same whatever else is there."""
    found = np.full(len(places), np.nan, np.float32)
    documents = field.documents(places)
    for held in field.snapshot.vectors(space, len(query)):
        own, rows, starts = _rows(documents, *held)
        if len(own):
            found[own] = _greatest(held[2].products(rows, query), starts)
    return found


def _rows(
    documents: Ints, segment: Segment, count: int, vectors: Vectors, size: int
) -> tuple[Ints, Ints, Ints]:
    """Return which of some documents have vectors in a segment, the places of these, and where those of each begin.

    The places ascend.
    """
    own, slots = _slots(documents, segment, count, vectors, size)
    order = np.argsort(slots)  # so that memory is gone through in one direction
    own, slots = own[order], slots[order]
    rows = vectors.begin[slots]
    sizes = vectors.begin[slots + 1] - rows
    starts = np.cumsum(sizes) - sizes
    if len(rows) and int(sizes.max()) > 1:
        rows = np.repeat(rows - starts, sizes) + np.arange(int(sizes.sum()))
    return own, rows, starts


def _greatest(products: Floats, starts: Ints) -> Floats:
    """Return the greatest product of each entry, which begin at some places."""
    return products if len(products) == len(starts) else np.maximum.reduceat(products, starts)


def _slots(documents: Ints, segment: Segment, count: int, vectors: Vectors, size: int) -> tuple[Ints, Ints]:
    """Return which of some documents have vectors in a segment, and their places among those that have."""
    slot = vectors.slot
    end = segment.base + min(count, len(slot))
    if len(documents) and documents.min() >= segment.base and documents.max() < end:
        own = np.arange(len(documents))
        if vectors.straight and documents.max() < segment.base + size:
            return own, documents - segment.base
    else:
        own = np.flatnonzero((documents >= segment.base) & (documents < end))
    slots = slot[documents[own] - segment.base].astype(np.int64)
    known = (slots >= 0) & (slots < size)
    return (own, slots) if known.all() else (own[known], slots[known])


# ── both ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Question:
    """What a recall asks with: the terms of the query, its vector and the space that one belongs to."""

    terms: tuple[int, ...]
    space: str | None = None
    vector: Floats | None = None

    @classmethod
    def of(cls, query: str, space: str | None = None, vector: Floats | None = None) -> Question:
        """Return a query as the index asks it."""
        return cls(tuple(dict.fromkeys(terms(words(query)))), space, vector)


class Raised(NamedTuple):
    """What an entry is worth because it takes the place of an earlier one."""

    #: Version of the earlier one.
    after: int
    relevance: float
    worth: float


class Ranking:
    """The entries in force that answer a query best, and by how much each signal spoke for them."""

    def __init__(
        self,
        field: Field,
        fields: Mapping[str, Floats],
        lexical: Floats,
        rise: Floats | None,
        factor: Floats,
        places: Ints,
        *,
        coverage: float,
        known: int,
        often: Mapping[int, int],
        space: str | None,
        dimension: int = 0,
        usual: float = 0.0,
    ) -> None:
        self.field = field
        self._fields = fields
        self._lexical = lexical
        self._rise = rise
        self._factor = factor
        #: Places of the candidates, best first.
        self.places = places
        #: Share of the entries that have a vector in the space of the query; 1 when nobody asked by meaning.
        self.coverage = coverage
        #: Terms of the query that occur anywhere.
        self.known = known
        #: How many entries hold each of its terms.
        self.often = often
        #: Cosine of the query and an entry that has nothing to do with it; 0 when nobody asked by meaning.
        self.usual = usual
        #: By place, what is worth more than its own words and meaning say.
        self.raised: dict[int, Raised] = {}
        #: Space and dimension of the query's vector; None when nobody asked by meaning.
        self.space = space
        self.dimension = dimension

    def keep(self, tokens: int) -> None:
        """Keep the best candidates that hold this many tokens together, a few at least, and the marked ones."""
        held = np.cumsum(self.field.column("tokens")[self.places], dtype=np.int64)
        size = max(FEWEST, int(np.searchsorted(held, tokens)) + 1)
        if size < len(self.places):
            marked = self.field.marked()
            rest = self.places[size:]
            more = rest[marked[rest]] if marked is not None else rest[:0]
            self.places = np.concatenate([self.places[:size], more])

    def worth(self, places: Ints) -> tuple[list[float], list[float]]:
        """Return the relevance of some entries, and what their scores are made of by `raise_score`."""
        near = self._fields["window"][places] > 0
        relevance: Floats = self._lexical[places]
        score = _scored(relevance, self._rise, self._factor, places)
        if self._rise is not None:
            rise = self._rise[places]
            near |= rise > 0
            relevance = np.asarray(relevance + rise - relevance * rise, np.float32)
        found: list[float] = (np.minimum(np.maximum(relevance, 0), 1) * near).tolist()
        worth: list[float] = (np.maximum(score, 0) * near).tolist()
        if self.raised:
            for index, place in enumerate(places.tolist()):
                if place in self.raised:
                    _, found[index], worth[index] = self.raised[place]
        return found, worth

    def adjust(self, factor: Floats) -> None:
        """Multiply the scores of the candidates, one factor each, and put them in order again."""
        whole = np.ones(len(self.field), np.float32)
        whole[self.places] = factor
        self._factor = np.asarray(self._factor * whole, np.float32)
        score = _scored(self._lexical[self.places], self._rise, self._factor, self.places)
        self.places = self.places[np.lexsort((self.places, -score))]

    def meaning(self, places: Ints) -> Floats:
        """Return how far the cosines of some entries rise above the usual one, in [0, 1]."""
        return np.zeros(len(places), np.float32) if self._rise is None else self._rise[places]

    def relevance(self, place: int) -> float:
        """Return how well an entry answers, in [0, 1]; 0 when neither it nor a neighbour has anything to do with it."""
        return self.worth(np.array([place]))[0][0]

    def parts(self, place: int) -> Mapping[str, float]:
        """Return what each signal adds to the relevance of an entry."""
        found = {name: float(values[place]) for name, values in self._fields.items()}
        if self._rise is not None:
            found["meaning"] = float(self._rise[place] * np.float32(1 / LEXICAL))
        parts = {name: round(value, 4) for name, value in found.items() if value > 0}
        raised = self.raised.get(place)
        if raised is not None:
            parts[f"succeeds v{raised.after}"] = round(raised.worth, 4)
        return parts

    def score(self, place: int, boost: float = 0.0) -> float:
        """Return the score of an entry in [0, 1): its relevance, by whose it is, raised by its markers."""
        return raise_score(self.worth(np.array([place]))[1][0], boost)


def raise_score(worth: float, boost: float) -> float:
    """Return the score of an entry in [0, 1) by what it is worth and the boost of its markers."""
    return 1 - exp(-2 * worth * (1 + boost))


def _scored(lexical: Floats, rise: Floats | None, factor: Floats, places: Ints) -> Floats:
    """Return what entries are ranked by, from their answers by words, given for these places, and by meaning."""
    own = factor if len(factor) == 1 else factor[places]
    if rise is None:
        return np.asarray(lexical * own, np.float32)
    return np.asarray((lexical + rise[places] * np.float32(1 / LEXICAL)) * own, np.float32)


def rank(field: Field, asked: Question, size: int = CANDIDATES) -> Ranking:
    """Rank the entries in force; `size` of them become candidates."""
    said = by_words(field, asked.terms)
    first, *rest = said.fields.values()
    lexical = first + rest[0]
    for part in rest[1:]:
        lexical += part
    factor = _speakers(field, asked.terms)
    rise: Floats | None = None
    coverage = 1.0
    dimension = 0
    usual = 0.0
    if asked.vector is None or asked.space is None:
        places = _best(lexical * factor, size)
    else:
        dimension = len(asked.vector)
        found = by_meaning(field, asked.space, asked.vector)
        coverage = min(1.0, found.known / field.texts) if field.texts else 1.0
        usual = _usual(
            found.cosine, 0.0 if found.exact else _off(field, asked.space, asked.vector, found.cosine)
        )
        rise = risen(found.cosine, usual)
        both = LEXICAL * lexical
        both += rise
        both *= factor
        places = _best(both, size if found.exact else max(size, RESCORED))
        rise[places] = risen(cosines(field, asked.space, asked.vector, places), usual)
    score = _scored(lexical[places], rise, factor, places)
    places = places[np.lexsort((places, -score))][:size]
    marked = field.marked()
    if marked is not None and len(places) < len(field):
        marked[places] = False
        others = np.flatnonzero(marked)
        near = said.fields["window"][others] > 0
        others = others[near if rise is None else near | (rise[others] > 0)]
        score = _scored(lexical[others], rise, factor, others)
        best = _best(score, MARKED)
        others, score = others[best], score[best]
        places = np.concatenate([places, others[np.lexsort((others, -score))]])
    return Ranking(
        field,
        said.fields,
        lexical,
        rise,
        factor,
        places,
        coverage=coverage,
        known=said.known,
        often=said.often,
        space=asked.space,
        dimension=dimension,
        usual=usual,
    )


ALIKE = 0.95
"""Cosine from which two entries with the same numbers and the same negations say the same."""
COMPARED = 112
"""Best candidates whose vectors are compared with each other."""


def alike(field: Field, ranking: Ranking) -> list[int]:
    """Return for each candidate the index of the best one that says the same: its own when there is no better one.

    Two entries say the same when they hold the same terms, or when their vectors almost coincide; but never when the
    numbers in them differ or one of them says no.
    """
    documents = field.documents(ranking.places)
    prints = field.snapshot.column("print")[documents].tolist()
    exact = field.snapshot.column("exact")[documents].tolist()
    first: dict[tuple[int, int], int] = {}
    found: list[int] = []
    for index, key in enumerate(zip(prints, exact, strict=True)):
        found.append(first.setdefault(key, index) if key[0] else index)
    if ranking.space is not None:
        same = _coincide(field, ranking.space, ranking.dimension, documents[:COMPARED])
        for index, other in np.argwhere(same).tolist() if same.any() else ():
            if (
                other < index
                and found[index] == index
                and found[other] == other
                and exact[index] == exact[other]
            ):
                found[index] = other
    return [found[better] for better in found]


def _coincide(field: Field, space: str, dimension: int, documents: Ints) -> NDArray[np.bool_]:
    """Return which documents have almost the same vector as which other ones."""
    same = np.asarray(pairs(field, space, dimension, documents) >= ALIKE)
    np.fill_diagonal(same, False)
    return same


def pairs(field: Field, space: str, dimension: int, documents: Ints) -> Floats:
    """Return the cosine of every document and every other one, as wholes; 0 for one without a vector."""
    rows = np.zeros((len(documents), dimension), np.float32)
    for held in field.snapshot.vectors(space, dimension):
        vectors = held[2]
        own, slots = _slots(documents, *held)
        vectors.fill(rows, own, vectors.begin[slots])
    return np.asarray(rows @ rows.T, np.float32)


LEXICAL = 2.5
"""What a full answer by words is worth against a full answer by meaning."""
UNRELATED = 0.3
"""Cosine of a question and the best sentence of an unrelated entry, believed until entries show what is usual."""
BELIEF = 20
"""Entries that this belief counts as."""


def _off(field: Field, space: str, query: Floats, cosine: Floats) -> float:
    """Return how much higher cosines are on average than what sign bits say; most for the best of several vectors."""
    sample = field.sampled(space, len(query), partial(_sample, field, space, len(query)))
    exact = np.full(len(sample.places), np.nan, np.float32)
    for own, rows, starts in sample.held:
        exact[own] = _greatest(np.einsum("ij,j->i", rows, query), starts)
    off = exact - cosine[sample.places]
    off = off[~np.isnan(off)]
    return float(off.mean(dtype=np.float64)) if len(off) else 0.0


def _sample(field: Field, space: str, dimension: int) -> Sample:
    """Return entries, evenly spread, with their vectors: each recall compares them all."""
    places = np.unique(np.linspace(0, len(field) - 1, SAMPLED).astype(np.int64))
    documents = field.documents(places)
    held: list[tuple[Ints, Floats, Ints]] = []
    for one in field.snapshot.vectors(space, dimension):
        own, rows, starts = _rows(documents, *one)
        if len(own):
            held.append((own, one[2].rows(rows), starts))
    return Sample(places, tuple(held))


def _usual(cosine: Floats, off: float = 0.0) -> float:
    """Return the cosine of a question with entries that have nothing to do with it: the mean, for most have not.

    `off` is what the cosines given are too low on average.
    """
    known = cosine
    total = float(known.sum(dtype=np.float64))
    if isnan(total):
        known = cosine[~np.isnan(cosine)]
        total = float(known.sum(dtype=np.float64))
    total += off * len(known)
    return min(0.95, round((total + BELIEF * UNRELATED) / (len(known) + BELIEF), 3))


def risen(cosine: Floats, usual: float) -> Floats:
    """Return how far cosines rise above the usual one, in [0, 1]; 0 for an entry without a vector."""
    above = cosine - np.float32(usual)
    above *= np.float32(1 / (1 - usual))
    return np.asarray(np.fmax(above, 0, out=above), np.float32)  # of NaN and 0 it is 0


def _speakers(field: Field, query: Sequence[int]) -> Floats:
    """Return a factor for every entry: of its speaker's terseness, and of being named."""
    labels = field.labels[1]
    asked = set(query)
    actors = {label.actor for label in labels if label.actor is not None}
    named = {actor for actor in actors if not asked.isdisjoint(_name(actor))}
    if len(named) == len(actors):
        named.clear()
    return field.factor(frozenset(named), NAMED)


@lru_cache(maxsize=1024)
def _name(actor: str) -> frozenset[int]:
    return frozenset(terms(words(actor)))


def _best(values: Floats, size: int) -> Ints:
    """Return the places of the largest values, in no order."""
    if len(values) <= size:
        return np.arange(len(values))
    return np.argpartition(-values, size - 1)[:size]
