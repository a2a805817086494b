"""Meaning: how much the vectors of an entry say of what a query says, by vectors of one space only.

An entry has a vector of the whole of it, which comes first, and those of its parts where it has several. Both count: of
a long message the best part tells more, of a short one the whole. A cosine tells nothing by itself, so it is taken as
its rise above the usual one, of entries that have nothing to do with the query. What follows a question also has some
of the meaning of the question.
"""

from __future__ import annotations

from functools import lru_cache, partial
from math import isnan
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from acms.recall.corpus import Field, Sample
from acms.recall.index import Segment
from acms.recall.vectors import Floats, Ints, Vectors, signs
from acms.recall.weights import Weights

EXACT = 4_096
"""Vectors up to which all cosines are computed; above, sign bits choose which ones are."""
SAMPLED = 256
"""Entries, evenly spread, whose exact cosines tell how far sign bits are off for the best of several vectors."""
BELIEF = 20
"""Entries that the usual cosine believed beforehand counts as."""


class Cosines(NamedTuple):
    """Cosines of a query and some entries, of the whole and of the best vector each; NaN for one without a vector."""

    whole: Floats
    #: The same object where no entry has several.
    best: Floats


class Usual(NamedTuple):
    """The same of an entry that has nothing to do with the query."""

    whole: float
    best: float


class Meaning(NamedTuple):
    """Cosines of the entries in force."""

    whole: Floats
    best: Floats
    #: False when sign bits stand for the cosines.
    exact: bool
    #: Entries with a vector.
    known: int
    #: Vectors that were compared.
    vectors: int


def by_meaning(field: Field, space: str, query: Floats) -> Meaning:
    """Score by vectors of one space; other spaces are never looked at."""
    held = field.snapshot.vectors(space, len(query))
    seen = sum(_seen(*one) for one in held)
    exact = seen <= EXACT
    code = None if exact else signs(query[None, :])[:, 0]

    def compared(vectors: Vectors, size: int) -> Cosines:
        return _scored(vectors, query, size) if code is None else _rough(vectors, code, len(query), size)

    if len(held) == 1 and field.place is None:
        _, count, vectors, size = held[0]
        if vectors.straight and count == len(field) and (size == count or (exact and size > count)):
            return Meaning(*compared(vectors, count), exact, count, seen)
    one = all(int(vectors.begin[size]) == size for _, _, vectors, size in held)
    best = np.full(len(field), np.nan, np.float32)
    whole = best if one else np.full(len(field), np.nan, np.float32)
    known = 0
    for segment, count, vectors, size in held:
        found = compared(vectors, size)
        targets = ((best, found.best),) if one else ((best, found.best), (whole, found.whole))
        if vectors.straight and field.place is None:
            count = min(count, size)
            for target, values in targets:
                target[segment.base : segment.base + count] = values[:count]
            known += count
            continue
        inside = vectors.documents[:size] < count
        places = vectors.documents[:size][inside].astype(np.int64) + segment.base
        there = np.ones(len(places), bool)
        if field.place is not None:
            places = field.place[places]
            there = places >= 0
        for target, values in targets:
            target[places[there]] = values[inside][there]
        known += int(np.count_nonzero(there))
    return Meaning(whole, best, exact, known, seen)


def _scored(vectors: Vectors, query: Floats, size: int) -> Cosines:
    begin = vectors.begin[: size + 1]
    scored = vectors.scored(query, int(begin[-1]))
    if len(scored) == size:
        return Cosines(scored, scored)
    return Cosines(scored.take(begin[:-1]), np.maximum.reduceat(scored, begin[:-1]))


@lru_cache(maxsize=16)
def _by_signs(dimension: int) -> Floats:
    """Return the cosine that each number of signs that differ stands for."""
    padded = -(-dimension // 64) * 64
    return np.cos(np.arange(padded + 1, dtype=np.float32) * np.float32(np.pi / dimension))


def _rough(vectors: Vectors, code: NDArray[np.uint64], dimension: int, size: int) -> Cosines:
    whole, least = vectors.apart(code, size)
    by_signs = _by_signs(dimension)
    best = by_signs.take(least.astype(np.int64))  # left to it, that takes longer
    return Cosines(best if whole is least else by_signs.take(whole.astype(np.int64)), best)


def _seen(segment: Segment, count: int, vectors: Vectors, size: int) -> int:
    """Return how many vectors the first documents of a segment have."""
    if count >= segment.count:
        return int(vectors.begin[size])
    return int(np.diff(vectors.begin[: size + 1])[vectors.documents[:size] < count].sum())


def cosines(field: Field, space: str, query: Floats, places: Ints) -> Cosines:
    """Return the exact cosines of some entries, the same whatever else is there."""
    whole, best = (np.full(len(places), np.nan, np.float32) for _ in range(2))
    documents = field.documents(places)
    for held in field.snapshot.vectors(space, len(query)):
        own, rows, starts = _rows(documents, *held)
        if len(own):
            products = held[2].products(rows, query)
            whole[own], best[own] = products[starts], _greatest(products, starts)
    return Cosines(whole, best)


def _rows(
    documents: Ints, segment: Segment, count: int, vectors: Vectors, size: int
) -> tuple[Ints, Ints, Ints]:
    """Return which of some documents have vectors in a segment, the places of these, and where those of each begin.

    The places ascend.
    """
    own, slots = slots_of(documents, segment, count, vectors, size)
    if np.count_nonzero(slots[1:] < slots[:-1]):  # memory is gone through in one direction
        order = np.argsort(slots)
        own, slots = own[order], slots[order]
    if int(vectors.begin[size]) == size:  # one each
        return own, slots, np.arange(len(slots))
    rows = vectors.begin[slots]
    sizes = vectors.begin[slots + 1] - rows
    starts = np.cumsum(sizes) - sizes
    if len(rows) and int(sizes.max()) > 1:
        rows = np.repeat(rows - starts, sizes) + np.arange(int(sizes.sum()))
    return own, rows, starts


def _greatest(products: Floats, starts: Ints) -> Floats:
    """Return the greatest product of each entry, which begin at some places."""
    return products if len(products) == len(starts) else np.maximum.reduceat(products, starts)


def slots_of(documents: Ints, segment: Segment, count: int, vectors: Vectors, size: int) -> tuple[Ints, Ints]:
    """Return which of some documents have vectors in a segment, and their places among those that have."""
    slot = vectors.slot
    end = segment.base + min(count, len(slot))
    if len(documents) and documents.min() >= segment.base and (last := documents.max()) < end:
        own = np.arange(len(documents))
        if vectors.straight and last < segment.base + size:
            return own, documents - segment.base
    else:
        own = np.flatnonzero((documents >= segment.base) & (documents < end))
    slots = slot[documents[own] - segment.base].astype(np.int64)
    known = (slots >= 0) & (slots < size)
    return (own, slots) if known.all() else (own[known], slots[known])


# ── how far they rise ───────────────────────────────────────────────────────────────────────────────────────────────


def usual(field: Field, space: str, query: Floats, found: Meaning) -> Usual:
    """Return the cosines of a question with entries that have nothing to do with it: the mean, for most have not."""
    weights = field.weights
    if found.exact:
        whole = _sum(found.whole)
        best = whole if found.best is found.whole else _sum(found.best)
    else:
        whole, best = _sums(field, space, query, found)
    return Usual(_mean(*whole, weights.unrelated_whole), _mean(*best, weights.unrelated_part))


def _sum(cosine: Floats) -> tuple[float, int]:
    """Return the sum of the cosines that are known, and their number."""
    total = float(cosine.sum(dtype=np.float64))
    if isnan(total):
        cosine = cosine[~np.isnan(cosine)]
        total = float(cosine.sum(dtype=np.float64))
    return total, len(cosine)


def _mean(total: float, count: int, believed: float) -> float:
    """Return the mean of cosines; with few of them what was believed before."""
    return min(0.95, round((total + BELIEF * believed) / (count + BELIEF), 3))


def _sums(
    field: Field, space: str, query: Floats, found: Meaning
) -> tuple[tuple[float, int], tuple[float, int]]:
    """Return the sums of exact cosines where sign bits stand for them, and their numbers.

    The sum of the products is the product with the sum of the vectors. Of the best of several there is no such sum: it
    is that of the sign bits, mended by how far these are off in a sample, beyond what they are off for the whole.
    """
    sample = field.sampled(space, len(query), partial(_sample, field, space, len(query)))
    total = float(np.vecdot(sample.total, query)) if sample.known else 0.0
    whole = total, sample.known
    if found.best is found.whole:
        return whole, whole
    exact, best = (np.full(len(sample.places), np.nan, np.float32) for _ in range(2))
    for own, rows, starts in sample.held:
        products = np.vecdot(rows, query)
        exact[own], best[own] = products[starts], _greatest(products, starts)
    off = (best - found.best[sample.places]) - (exact - found.whole[sample.places])
    off = off[~np.isnan(off)]
    more = float(off.mean(dtype=np.float64)) if len(off) else 0.0
    rough, count = _sum(found.best)
    return whole, (rough + total - _sum(found.whole)[0] + more * count, count)


def _sample(field: Field, space: str, dimension: int) -> Sample:
    """Return what the vectors of all entries sum up to, and entries, evenly spread, with theirs."""
    total = np.zeros(dimension, np.float64)
    known = 0
    held = field.snapshot.vectors(space, dimension)
    for segment, count, vectors, size in held:
        inside = vectors.documents[:size] < count
        if field.place is not None:
            inside &= field.place[segment.base + np.minimum(vectors.documents[:size], count - 1)] >= 0
        total += vectors.total(inside)
        known += int(np.count_nonzero(inside))
    if not len(field) or all(int(vectors.begin[size]) == size for _, _, vectors, size in held):
        return Sample(total, known, np.zeros(0, np.int64), ())
    places = np.unique(np.linspace(0, len(field) - 1, SAMPLED).astype(np.int64))
    documents = field.documents(places)
    rows: list[tuple[Ints, Floats, Ints]] = []
    for one in held:
        own, of, starts = _rows(documents, *one)
        if len(own):
            rows.append((own, one[2].rows(of), starts))
    return Sample(total, known, places, tuple(rows))


def risen(cosine: Floats, usual: float) -> Floats:
    """Return how far cosines rise above the usual one, in [0, 1]; 0 for an entry without a vector."""
    above = cosine - np.float32(usual)
    above *= np.float32(1 / (1 - usual))
    return np.asarray(np.fmax(above, 0, out=above), np.float32)  # of NaN and 0 it is 0


def answered(whole: Floats, best: Floats, before: Floats | None, weights: Weights) -> Floats:
    """Return how well entries answer by meaning, in [0, 1], of their rises and that of the question they follow.

    The last two are used up: of a long log, new memory takes longer than the sums.
    """
    best *= np.float32(weights.part / weights.meaning)
    if before is not None:
        before *= np.float32(weights.reply / weights.meaning)
        best += before
    best += np.multiply(whole, np.float32(weights.whole / weights.meaning), out=before)
    return np.asarray(np.minimum(best, 1, out=best), np.float32)
