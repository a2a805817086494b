"""Meaning: how near the vectors of an entry, and of its neighbourhood, are to that of a query; of one space only.

An entry has one vector, or one for each chunk of a long text, of which the nearest counts. A single cosine means
little, so it is measured from the mean of all, in standard deviations (z-score normalisation). Neighbouring entries
count half, as they do for words: a message alone is often too short to mean much.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from acms.recall.corpus import Corpus
from acms.recall.index import Floats, Ints
from acms.text.index_record import EMPTY


class CosineStats(NamedTuple):
    """Mean and standard deviation of the cosines of a query with the messages of a log."""

    mean: float
    deviation: float


def find_cosines(corpus: Corpus, space: str, query: Floats) -> Floats:
    """Return the cosine of a query with the nearest vector of each active entry; NaN for an entry without vectors."""
    cosines = np.full(len(corpus), np.nan, np.float32)
    for segment, count, vectors, size in corpus.snapshot.vectors(space, len(query)):
        begin = vectors.begin[: size + 1]
        products = vectors.values[: begin[-1]] @ query
        values = products if len(products) == size else np.maximum.reduceat(products, begin[:-1])
        is_in_snapshot = vectors.documents[:size] < count
        positions = vectors.documents[:size][is_in_snapshot].astype(np.int64) + segment.base
        values = values[is_in_snapshot]
        if corpus.position_by_document is not None:
            positions = corpus.position_by_document[positions]
            active = positions >= 0
            positions, values = positions[active], values[active]
        cosines[positions] = values
    return cosines


def measure_cosines(cosines: Floats) -> CosineStats:
    """Return the mean and the standard deviation of the cosines of a query with the messages of a log.

    They are rounded to a thousandth, so that they do not depend on how the vectors are stored.
    """
    values = cosines[~np.isnan(cosines)].astype(np.float64)
    if len(values) < 2:
        return CosineStats(1.0, 1.0)
    return CosineStats(round(float(values.mean()), 3), max(0.001, round(float(values.std()), 3)))


def find_without_vectors(corpus: Corpus, space: str, dimension: int) -> Ints:
    """Return the positions of the entries with content that have no vector."""
    has_vector = np.zeros(corpus.snapshot.count, bool)
    for segment, count, vectors, size in corpus.snapshot.vectors(space, dimension):
        documents = vectors.documents[:size]
        has_vector[segment.base + documents[documents < count]] = True
    positions = np.flatnonzero((corpus.column("flags") & EMPTY) == 0)
    return positions[~has_vector[corpus.documents(positions)]]


def find_largest_indices(values: Floats, size: int) -> Ints:
    """Return the indexes of the `size` largest values, in no particular order."""
    if len(values) <= size:
        return np.arange(len(values))
    return np.argpartition(-values, size - 1)[:size]


def vectors_of(corpus: Corpus, space: str, dimension: int, documents: Ints) -> Floats:
    """Return the first vectors of some documents, a row each; zeros for one without a vector."""
    matrix = np.zeros((len(documents), dimension), np.float32)
    for segment, count, vectors, size in corpus.snapshot.vectors(space, dimension):
        end = segment.base + min(count, len(vectors.slot))
        rows = np.flatnonzero((documents >= segment.base) & (documents < end))
        slots = vectors.slot[documents[rows] - segment.base]
        has_vector = (slots >= 0) & (slots < size)
        matrix[rows[has_vector]] = vectors.values[vectors.begin[slots[has_vector]]]
    return matrix
