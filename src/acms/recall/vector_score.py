"""Meaning: how near the vectors of an entry, and of its neighbourhood, are to that of a query; of one space only.

An entry has one vector, or one for each chunk of a long text, of which the nearest counts. A single cosine means
little, so it is measured from the mean of all, in standard deviations (z-score normalisation). Neighbouring entries
count half, as they do for words: a message alone is often too short to mean much.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from acms.recall.corpus import Corpus
from acms.recall.index import Floats, Ints, Segment, Vectors, pack_signs

if TYPE_CHECKING:
    from acms.recall.query import Query

EXACT = 4_096
"""Vectors up to which all cosines are computed; above, sign bits choose which ones are."""
SAMPLED = 512
"""Entries, evenly spread, whose exact cosines tell the mean and the deviation where sign bits stand for the others."""
RESCORED = 640
"""Messages whose cosines are computed exactly where sign bits chose; fewer where they have many vectors each."""
VECTORS = 5_000
"""Vectors that these have together, at most."""


class Meaning(NamedTuple):
    """Cosines of a query with the entries in force, NaN for one without a vector."""

    cosines: Floats
    #: False when sign bits stand for the cosines.
    exact: bool
    #: Entries with a vector, and vectors that were compared.
    known: int
    vectors: int


def find_cosines(corpus: Corpus, space: str, query: Floats) -> Meaning:
    """Compare a query with the vectors of one space; other spaces are never looked at."""
    held = corpus.snapshot.vectors(space, len(query))
    seen = sum(_count_vectors(*one) for one in held)
    exact = seen <= EXACT
    code = None if exact else pack_signs(query[None, :])[:, 0]
    found = np.full(len(corpus), np.nan, np.float32)
    known = 0
    for segment, count, vectors, size in held:
        values = (
            _score_vectors(vectors, query, size)
            if code is None
            else _approximate_cosines(vectors, code, len(query), size)
        )
        if vectors.straight and corpus.position_by_document is None:
            count = min(count, size)
            found[segment.base : segment.base + count] = values[:count]
            known += count
            continue
        inside = vectors.documents[:size] < count
        positions = vectors.documents[:size][inside].astype(np.int64) + segment.base
        there = np.ones(len(positions), bool)
        if corpus.position_by_document is not None:
            positions = corpus.position_by_document[positions]
            there = positions >= 0
        found[positions[there]] = values[inside][there]
        known += int(np.count_nonzero(there))
    return Meaning(found, exact, known, seen)


def _score_vectors(vectors: Vectors, query: Floats, size: int) -> Floats:
    begin = vectors.begin[: size + 1]
    return _greatest_of_each(vectors.all_products(query, int(begin[-1])), begin[:-1])


@lru_cache(maxsize=16)
def _cosines_by_signs(dimension: int) -> Floats:
    """Return the cosine that each number of signs that differ stands for."""
    padded = -(-dimension // 64) * 64
    return np.cos(np.arange(padded + 1, dtype=np.float32) * np.float32(np.pi / dimension))


def _approximate_cosines(vectors: Vectors, code: NDArray[np.uint64], dimension: int, size: int) -> Floats:
    return _cosines_by_signs(dimension).take(vectors.count_sign_differences(code, size).astype(np.int64))


def _count_vectors(segment: Segment, count: int, vectors: Vectors, size: int) -> int:
    """Return how many vectors the first documents of a segment have."""
    if count >= segment.count:
        return int(vectors.begin[size])
    return int(np.diff(vectors.begin[: size + 1])[vectors.documents[:size] < count].sum())


def compute_cosines(corpus: Corpus, space: str, query: Floats, positions: Ints) -> Floats:
    """Return the exact cosines of some entries, the same whatever else is there; NaN for one without a vector."""
    found = np.full(len(positions), np.nan, np.float32)
    documents = corpus.documents(positions)
    for held in corpus.snapshot.vectors(space, len(query)):
        own, rows, starts = _find_vector_rows(documents, *held)
        if len(own):
            found[own] = _greatest_of_each(held[2].products(rows, query), starts)
    return found


def _find_vector_rows(
    documents: Ints, segment: Segment, count: int, vectors: Vectors, size: int
) -> tuple[Ints, Ints, Ints]:
    """Return which of some documents have vectors in a segment, the positions of these, and where those of each begin.

    The positions ascend.
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


def _greatest_of_each(products: Floats, starts: Ints) -> Floats:
    """Return the greatest product of each entry, which begin at some positions."""
    return products if len(products) == len(starts) else np.maximum.reduceat(products, starts)


def slots_of(documents: Ints, segment: Segment, count: int, vectors: Vectors, size: int) -> tuple[Ints, Ints]:
    """Return which of some documents have vectors in a segment, and their positions among those that have."""
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


def measure_cosines(corpus: Corpus, space: str, query: Floats, found: Meaning) -> tuple[float, float]:
    """Return mean and standard deviation of the cosines of a query with the messages of a log.

    Rounded to a thousandth, so that they are the same however the vectors came.
    """
    values = found.cosines
    if not found.exact and len(corpus):
        positions = np.unique(np.linspace(0, len(corpus) - 1, SAMPLED).astype(np.int64))
        values = compute_cosines(corpus, space, query, positions)
    values = values[~np.isnan(values)].astype(np.float64)
    if len(values) < 2:
        return (1.0, 1.0)
    return round(float(values.mean()), 3), max(0.001, round(float(values.std()), 3))


def rescore_exactly(corpus: Corpus, query: Query, found: Meaning, rough: Floats) -> Floats:
    """Return cosines of which those of the best messages are exact, where sign bits stood for all of them."""
    assert query.space is not None
    assert query.vector is not None
    size = min(RESCORED, VECTORS * found.known // max(1, found.vectors))
    likely = np.sort(find_largest_indices(rough, size))
    values = found.cosines.copy()
    values[likely] = compute_cosines(corpus, query.space, query.vector, likely)
    return values


def find_largest_indices(values: Floats, size: int) -> Ints:
    """Return the positions of the largest values, in no order."""
    if len(values) <= size:
        return np.arange(len(values))
    if len(values) > 4 * size:
        # A sixteenth of the values tells about where the largest begin, so few have to be put in order.
        rank = size // 8 + 1
        likely = np.flatnonzero(values >= np.partition(values[::16], -rank)[-rank])
        if size < len(likely) < 8 * size:
            near = values[likely]
            best = likely[near >= np.partition(near, -size)[-size]]
            if len(best) == size:  # no other value is as large as the last of them
                return best
    return np.argpartition(-values, size - 1)[:size]


def vectors_of(corpus: Corpus, space: str, dimension: int, documents: Ints) -> Floats:
    """Return the first vectors of some documents, a row each; zeros for one without a vector."""
    rows = np.zeros((len(documents), dimension), np.float32)
    for held in corpus.snapshot.vectors(space, dimension):
        vectors = held[2]
        own, slots = slots_of(documents, *held)
        vectors.fill(rows, own, vectors.begin[slots])
    return rows
