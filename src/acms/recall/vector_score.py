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
from acms.text.index_record import EMPTY

if TYPE_CHECKING:
    from acms.recall.query import Query

EXACT = 4_096
"""Vectors up to which all cosines are computed; above, sign bits choose which ones are."""
RESCORED = 640
"""Messages whose cosines are computed exactly where sign bits chose; fewer where they have many vectors each."""
VECTORS = 5_000
"""Vectors that these have together, at most."""


class CosineStats(NamedTuple):
    """Mean and standard deviation of the cosines of a query with the messages of a log."""

    mean: float
    deviation: float


class Cosines(NamedTuple):
    """Cosines of a query with the active entries, NaN for one without a vector."""

    cosines: Floats
    #: False if sign bits were compared instead of vectors.
    exact: bool
    #: Number of entries with a vector, and of vectors that were compared.
    known_count: int
    vectors: int


def find_cosines(corpus: Corpus, space: str, query: Floats) -> Cosines:
    """Compare a query with the vectors of one space: exactly up to `EXACT` vectors, by their sign bits above."""
    segments = corpus.snapshot.vectors(space, len(query))
    vector_count = sum(_count_vectors(*segment) for segment in segments)
    exact = vector_count <= EXACT
    query_signs = pack_signs(query[None, :])[:, 0]
    cosines = np.full(len(corpus), np.nan, np.float32)
    known_count = 0
    for segment, count, vectors, size in segments:
        if exact:
            values = _exact_cosines(vectors, query, size)
        else:
            values = _approximate_cosines(vectors, query_signs, len(query), size)
        is_in_snapshot = vectors.documents[:size] < count
        positions = vectors.documents[:size][is_in_snapshot].astype(np.int64) + segment.base
        values = values[is_in_snapshot]
        if corpus.position_by_document is not None:
            positions = corpus.position_by_document[positions]
            active = positions >= 0
            positions, values = positions[active], values[active]
        cosines[positions] = values
        known_count += len(positions)
    return Cosines(cosines, exact, known_count, vector_count)


def _exact_cosines(vectors: Vectors, query: Floats, size: int) -> Floats:
    """Return the cosine of a query with the nearest vector of each of the first `size` documents."""
    begin = vectors.begin[: size + 1]
    return _greatest_of_each(vectors.all_products(query, int(begin[-1])), begin[:-1])


@lru_cache(maxsize=16)
def _cosines_by_signs(dimension: int) -> Floats:
    """Return the estimated cosine for each number of signs that differ."""
    most_bits = -(-dimension // 64) * 64  # whole words of 64 bits
    return np.cos(np.arange(most_bits + 1, dtype=np.float32) * np.float32(np.pi / dimension))


def _approximate_cosines(
    vectors: Vectors, query_signs: NDArray[np.uint64], dimension: int, size: int
) -> Floats:
    """Return the cosines that `_exact_cosines` returns, estimated from the signs of the components."""
    differences = vectors.count_sign_differences(query_signs, size).astype(np.int64)
    return _cosines_by_signs(dimension).take(differences)


def _count_vectors(segment: Segment, count: int, vectors: Vectors, size: int) -> int:
    """Return how many vectors the first `count` documents of a segment have, among the first `size` with vectors."""
    if count >= segment.count:
        return int(vectors.begin[size])
    return int(np.diff(vectors.begin[: size + 1])[vectors.documents[:size] < count].sum())


def find_without_vectors(corpus: Corpus, space: str, dimension: int) -> Ints:
    """Return the positions of the entries with content that have no vector."""
    positions = np.flatnonzero((corpus.column("flags") & EMPTY) == 0)
    documents = corpus.documents(positions)
    is_missing = np.ones(len(positions), bool)
    for segment, count, vectors, size in corpus.snapshot.vectors(space, dimension):
        with_vectors, _ = find_slots(documents, segment, count, vectors, size)
        is_missing[with_vectors] = False
    return positions[is_missing]


def compute_cosines(corpus: Corpus, space: str, query: Floats, positions: Ints) -> Floats:
    """Return the exact cosines of the entries at some positions; NaN for one without a vector."""
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
    """Return the vectors of some documents in a segment, as three arrays.

    The first holds the indexes of the documents that have vectors there, the second the rows of all their vectors, the
    third the offset in the second at which the rows of each document begin. Rows ascend, so that memory is read in one
    direction.
    """
    indexes, slots = find_slots(documents, segment, count, vectors, size)
    is_unsorted = np.count_nonzero(slots[1:] < slots[:-1]) > 0
    if is_unsorted:
        order = np.argsort(slots)
        indexes, slots = indexes[order], slots[order]
    has_one_vector_each = int(vectors.begin[size]) == size
    if has_one_vector_each:
        return indexes, slots, np.arange(len(slots))
    first_rows = vectors.begin[slots]
    sizes = vectors.begin[slots + 1] - first_rows
    starts = np.cumsum(sizes) - sizes
    rows = np.repeat(first_rows - starts, sizes) + np.arange(int(sizes.sum()))
    return indexes, rows, starts


def _greatest_of_each(products: Floats, starts: Ints) -> Floats:
    """Return the greatest product of each entry, whose products begin at one of the `starts`."""
    return products if len(products) == len(starts) else np.maximum.reduceat(products, starts)


def find_slots(
    documents: Ints, segment: Segment, count: int, vectors: Vectors, size: int
) -> tuple[Ints, Ints]:
    """Return the indexes of those documents that have vectors in a segment, and their slots in `vectors`."""
    end = segment.base + min(count, len(vectors.slot))
    indexes = np.flatnonzero((documents >= segment.base) & (documents < end))
    slots = vectors.slot[documents[indexes] - segment.base].astype(np.int64)
    has_vectors = (slots >= 0) & (slots < size)
    return indexes[has_vectors], slots[has_vectors]


def measure_cosines(corpus: Corpus, space: str, query: Floats, query_cosines: Cosines) -> CosineStats:
    """Return the mean and the standard deviation of the cosines of a query with the messages of a log.

    They are rounded to a thousandth, so that they do not depend on how the vectors are stored. If only sign bits were
    compared, 512 evenly spread entries are compared exactly.
    """
    values = query_cosines.cosines
    if not query_cosines.exact and len(corpus):
        sample = np.unique(np.linspace(0, len(corpus) - 1, 512).astype(np.int64))
        values = compute_cosines(corpus, space, query, sample)
    values = values[~np.isnan(values)].astype(np.float64)
    if len(values) < 2:
        return CosineStats(1.0, 1.0)
    return CosineStats(round(float(values.mean()), 3), max(0.001, round(float(values.std()), 3)))


def rescore_exactly(corpus: Corpus, query: Query, query_cosines: Cosines, rough_relevance: Floats) -> Floats:
    """Return the cosines found by sign bits, with exact ones for the messages that are best by a rough relevance."""
    assert query.space is not None
    assert query.vector is not None
    size = min(RESCORED, VECTORS * query_cosines.known_count // max(1, query_cosines.vectors))
    likely_positions = np.sort(find_largest_indices(rough_relevance, size))
    cosines = query_cosines.cosines.copy()
    cosines[likely_positions] = compute_cosines(corpus, query.space, query.vector, likely_positions)
    return cosines


def find_largest_indices(values: Floats, size: int) -> Ints:
    """Return the indexes of the `size` largest values, in no particular order."""
    if len(values) <= size:
        return np.arange(len(values))
    if len(values) > 4 * size:
        # A sample of a sixteenth estimates the limit of the largest values, so that few have to be compared.
        sample_rank = size // 8 + 1
        estimated_limit = np.partition(values[::16], -sample_rank)[-sample_rank]
        likely = np.flatnonzero(values >= estimated_limit)
        if size < len(likely) < 8 * size:
            likely_values = values[likely]
            exact_limit = np.partition(likely_values, -size)[-size]
            best = likely[likely_values >= exact_limit]
            if len(best) == size:  # no other value equals the last of them
                return best
    return np.argpartition(-values, size - 1)[:size]


def vectors_of(corpus: Corpus, space: str, dimension: int, documents: Ints) -> Floats:
    """Return the first vectors of some documents, a row each; zeros for one without a vector."""
    matrix = np.zeros((len(documents), dimension), np.float32)
    for segment, count, vectors, size in corpus.snapshot.vectors(space, dimension):
        rows, slots = find_slots(documents, segment, count, vectors, size)
        vectors.fill(matrix, rows, vectors.begin[slots])
    return matrix
