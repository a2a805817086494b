"""Meaning and vectors, computed over columns, are what a plain loop over entries computes."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import numpy as np
import pytest
from hypothesis import given

from acms.recall.index import Floats
from acms.recall.scoring import find_cosines
from tests.support.indexes import Row, field_of, unit_vector
from tests.support.stories import random_log, random_vectors, randoms

DIMENSION = 24


def by_version(rows: Sequence[Row]) -> dict[int, Floats]:
    """The vectors of each entry, as an index holds them."""
    held: dict[int, list[Row]] = {}
    for row in sorted(rows, key=lambda row: row[:2]):
        if row[2]:
            held.setdefault(row[0], []).append(row)
    found: dict[int, Floats] = {}
    for version, some in held.items():
        values = np.frombuffer(b"".join(row[2] for row in some), "<f2").astype(np.float32)
        values = values.reshape(len(some), -1)
        found[version] = values / np.sqrt(np.einsum("ij,ij->i", values, values))[:, None]
    return found


@given(randoms)
def test_meaning_is_the_best_of_the_vectors_of_an_entry(random: Random) -> None:
    log = random_log(random, random.randint(5, 60))
    rows = random_vectors(random, log, DIMENSION)
    field = field_of(log.entries, rows)
    query = unit_vector(np.random.default_rng(random.getrandbits(32)).normal(size=DIMENSION))
    held = by_version(rows)
    found = find_cosines(field, "s", query)
    for place in range(len(field)):
        vectors = held.get(field.document(place) + 1)
        products = np.array([np.nan]) if vectors is None else np.array([one @ query for one in vectors])
        assert found[place] == pytest.approx(products.max(), abs=1e-5, nan_ok=True)
