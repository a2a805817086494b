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
RESCORED = 640
"""Messages whose cosines are computed exactly where sign bits chose; fewer where they have many vectors each."""
VECTORS = 5_000
"""Vectors that these have together, at most."""


class Cosines(NamedTuple):
    """Cosines of a query with the active entries, NaN for one without a vector."""

    cosines: Floats
    #: False if sign bits were compared instead of vectors.
    exact: bool
    #: Entries with a vector, and vectors that were compared.
    known: int
    vectors: int


def find_cosines(corpus: Corpus, space: str, query: Floats) -> Cosines:
    """Compare a query with the vectors of one space; other spaces are ignored."""
    held = corpus.snapshot.vectors(space, len(query))
    compared = sum(_count_vectors(*one) for one in held)
    exact = compared <= EXACT
    code = pack_signs(query[None, :])[:, 0]
    cosines = np.full(len(corpus), np.nan, np.float32)
    known = 0
    for segment, count, vectors, size in held:
        if exact:
            values = _exact_cosines(vectors, query, size)
        else:
            values = _approximate_cosines(vectors, code, len(query), size)
        inside = vectors.documents[:size] < count
        positions = vectors.documents[:size][inside].astype(np.int64) + segment.base
        values = values[inside]
        if corpus.position_by_document is not None:
            positions = corpus.position_by_document[positions]
            active = positions >= 0
            positions, values = positions[active], values[active]
        cosines[positions] = values
        known += len(positions)
    return Cosines(cosines, exact, known, compared)


def _exact_cosines(vectors: Vectors, query: Floats, size: int) -> Floats:
    begin = vectors.begin[: size + 1]
    return _greatest_of_each(vectors.all_products(query, int(begin[-1])), begin[:-1])


@lru_cache(maxsize=16)
def _cosines_by_signs(dimension: int) -> Floats:
    """Return the estimated cosine for each number of signs that differ."""
    padded = -(-dimension // 64) * 64
    return np.cos(np.arange(padded + 1, dtype=np.float32) * np.float32(np.pi / dimension))


def _approximate_cosines(vectors: Vectors, code: NDArray[np.uint64], dimension: int, size: int) -> Floats:
    differences = vectors.count_sign_differences(code, size).astype(np.int64)
    return _cosines_by_signs(dimension).take(differences)


def _count_vectors(segment: Segment, count: int, vectors: Vectors, size: int) -> int:
    """Return how many vectors the first documents of a segment have."""
    if count >= segment.count:
        return int(vectors.begin[size])
    return int(np.diff(vectors.begin[: size + 1])[vectors.documents[:size] < count].sum())


def compute_cosines(corpus: Corpus, space: str, query: Floats, positions: Ints) -> Floats:
    """Return the exact cosines of some entries, whatever else is there; NaN for one without a vector."""
    cosines = np.full(len(positions), np.nan, np.float32)
    documents = corpus.documents(positions)
    for segment, count, vectors, size in corpus.snapshot.vectors(space, len(query)):
        indexes, rows, starts = _find_vector_rows(documents, segment, count, vectors, size)
        if len(indexes):
            cosines[indexes] = _greatest_of_each(vectors.products(rows, query), starts)
    return cosines


def _find_vector_rows(
    documents: Ints, segment: Segment, count: int, vectors: Vectors, size: int
) -> tuple[Ints, Ints, Ints]:
    """Return which of some documents have vectors in a segment, their rows, and where those of each begin.

    The rows ascend, so that memory is read in one direction.
    """
    indexes, slots = find_slots(documents, segment, count, vectors, size)
    if np.count_nonzero(slots[1:] < slots[:-1]):
        order = np.argsort(slots)
        indexes, slots = indexes[order], slots[order]
    if int(vectors.begin[size]) == size:  # one vector each
        return indexes, slots, np.arange(len(slots))
    rows = vectors.begin[slots]
    sizes = vectors.begin[slots + 1] - rows
    starts = np.cumsum(sizes) - sizes
    if len(rows) and int(sizes.max()) > 1:
        rows = np.repeat(rows - starts, sizes) + np.arange(int(sizes.sum()))
    return indexes, rows, starts


def _greatest_of_each(products: Floats, starts: Ints) -> Floats:
    """Return the greatest product of each entry; the products of each begin at one of the starts."""
    return products if len(products) == len(starts) else np.maximum.reduceat(products, starts)


def find_slots(
    documents: Ints, segment: Segment, count: int, vectors: Vectors, size: int
) -> tuple[Ints, Ints]:
    """Return which of some documents have vectors in a segment, and their indexes among those that have."""
    end = segment.base + min(count, len(vectors.slot))
    indexes = np.flatnonzero((documents >= segment.base) & (documents < end))
    slots = vectors.slot[documents[indexes] - segment.base].astype(np.int64)
    known = (slots >= 0) & (slots < size)
    return indexes[known], slots[known]


def measure_cosines(corpus: Corpus, space: str, query: Floats, found: Cosines) -> tuple[float, float]:
    """Return mean and standard deviation of the cosines of a query with the messages of a log.

    Rounded to a thousandth, so that they do not depend on how the vectors are stored. If only sign bits were compared,
    512 evenly spread entries are compared exactly.
    """
    values = found.cosines
    if not found.exact and len(corpus):
        sample = np.unique(np.linspace(0, len(corpus) - 1, 512).astype(np.int64))
        values = compute_cosines(corpus, space, query, sample)
    values = values[~np.isnan(values)].astype(np.float64)
    if len(values) < 2:
        return (1.0, 1.0)
    return round(float(values.mean()), 3), max(0.001, round(float(values.std()), 3))


def rescore_exactly(corpus: Corpus, query: Query, found: Cosines, rough: Floats) -> Floats:
    """Return cosines of which those of the best messages are exact, if only sign bits were compared."""
    assert query.space is not None
    assert query.vector is not None
    size = min(RESCORED, VECTORS * found.known // max(1, found.vectors))
    likely = np.sort(find_largest_indices(rough, size))
    cosines = found.cosines.copy()
    cosines[likely] = compute_cosines(corpus, query.space, query.vector, likely)
    return cosines


def find_largest_indices(values: Floats, size: int) -> Ints:
    """Return the indexes of the largest values, in no order."""
    if len(values) <= size:
        return np.arange(len(values))
    if len(values) > 4 * size:
        # A sixteenth of the values shows about where the largest begin, so few have to be compared.
        rank = size // 8 + 1
        likely = np.flatnonzero(values >= np.partition(values[::16], -rank)[-rank])
        if size < len(likely) < 8 * size:
            likely_values = values[likely]
            best = likely[likely_values >= np.partition(likely_values, -size)[-size]]
            if len(best) == size:  # no other value is as large as the last of them
                return best
    return np.argpartition(-values, size - 1)[:size]


def vectors_of(corpus: Corpus, space: str, dimension: int, documents: Ints) -> Floats:
    """Return the first vectors of some documents, a row each; zeros for one without a vector."""
    matrix = np.zeros((len(documents), dimension), np.float32)
    for segment, count, vectors, size in corpus.snapshot.vectors(space, dimension):
        rows, slots = find_slots(documents, segment, count, vectors, size)
        vectors.fill(matrix, rows, vectors.begin[slots])
    return matrix
