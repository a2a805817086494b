"""Meaning and vectors, computed over columns, are what a plain loop over entries computes."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import numpy as np
import pytest
from hypothesis import given

from acms.recall import vector_score
from acms.recall.index import Floats, widen_halves
from acms.recall.vector_score import compute_cosines, find_cosines
from tests.support.indexes import Row, field_of, pack_half_floats, unit_vector
from tests.support.logs import make_entry
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
    places = np.array(random.sample(range(len(field)), len(field)), np.int64)
    exact = compute_cosines(field, "s", query, places)
    for index, place in enumerate(places.tolist()):
        vectors = held.get(field.document(place) + 1)
        products = np.array([np.nan]) if vectors is None else np.array([one @ query for one in vectors])
        assert exact[index] == pytest.approx(products.max(), abs=0, rel=0, nan_ok=True)
    found = find_cosines(field, "s", query)
    assert found.cosines[places] == pytest.approx(exact, abs=1e-5, nan_ok=True)


@pytest.mark.parametrize("dimension", [8, 64, 384, 1100])
def test_sign_bits_stand_for_the_cosine_of_the_share_of_signs_that_differ(
    monkeypatch: pytest.MonkeyPatch, dimension: int
) -> None:
    monkeypatch.setattr(vector_score, "EXACT", 0)
    drawn = np.random.default_rng(dimension)
    rows: list[Row] = [
        (version, part, pack_half_floats(drawn.normal(size=dimension)))
        for version in range(1, 41)
        for part in range(version % 3)
    ]
    field = field_of([make_entry(version, "orders") for version in range(1, 41)], rows)
    query = unit_vector(drawn.normal(size=dimension))
    held = by_version(rows)
    found = find_cosines(field, "s", query)
    assert (found.exact, found.known_count) == (False, len(held))
    for place, best in enumerate(found.cosines.tolist()):
        if place + 1 not in held:
            assert np.isnan(best)
            continue
        differ = ((held[place + 1] > 0) != (query > 0)).sum(axis=1)
        assert best == pytest.approx(np.cos(np.pi * differ.min() / dimension), abs=1e-5)


def test_every_finite_half_is_widened_exactly() -> None:
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    halves = halves[np.isfinite(halves)]
    found = np.empty((1, len(halves)), np.float32)
    widen_halves(halves.view(np.int16)[None], found)
    assert found.tobytes() == halves.astype(np.float32).tobytes()
