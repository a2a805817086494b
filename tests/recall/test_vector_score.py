"""Meaning: the best cosine of an entry, by vectors of one space only."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from acms.log.active_entries import Replacements
from acms.recall.corpus import Corpus
from acms.recall.index import Segment, Snapshot, Vectors
from acms.recall.scoring import find_cosines
from acms.recall.text_frame import TextFrame
from tests.recall.test_planner import BYTES
from tests.support.indexes import (
    Row,
    build_segment,
    field_of,
    index_records_of,
    pack_half_floats,
    rank_corpus,
    snapshot_of,
    unit_vector,
)
from tests.support.logs import CONTEXT, make_entry
from tests.support.stories import random_log, random_vectors, randoms

FRAME = TextFrame(BYTES)


def random_array(seed: int, *shape: int) -> NDArray[np.float32]:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def corpus_of_messages(count: int, word: str = "x") -> Corpus:
    return field_of([make_entry(version, f"{word}{version}") for version in range(1, count + 1)])


def with_vectors(count: int, rows: list[Row], space: str = "s") -> Corpus:
    entries = [make_entry(version, f"x{version}") for version in range(1, count + 1)]
    return field_of(entries, rows, space)


# ── cosines ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@given(randoms, st.integers(0, 40))
def test_the_meaning_of_an_entry_is_that_of_its_nearest_vector(random: Random, steps: int) -> None:
    log = random_log(random, steps)
    rows = random_vectors(random, log)
    field = field_of(log.entries, rows)
    query = unit_vector(random_array(random.getrandbits(30), 24))
    found = find_cosines(field, "s", query)
    expected: dict[int, list[float]] = {}
    for version, _, data in sorted(rows, key=lambda row: row[:2]):
        place = field.position_of(version - 1)
        if data and place >= 0:
            vector = np.frombuffer(data, "<f2").astype(np.float64)
            expected.setdefault(place, []).append(float(vector @ query / np.linalg.norm(vector)))
    for place in range(len(field)):
        if place in expected:
            assert float(found[place]) == pytest.approx(max(expected[place]), abs=1e-5)
        else:
            assert np.isnan(found[place])


def test_spaces_are_never_compared() -> None:
    field = with_vectors(3, [(1, 0, pack_half_floats([1, 0, 0, 0]))], "a/4")
    segment = field.snapshot.pieces[0][1]
    segment.add_vectors("b/2", [(2, 0, pack_half_floats([1, 0])), (3, 0, pack_half_floats([0, 1]))])
    field = Corpus(snapshot_of(segment), Replacements([]))
    query = np.array([1, 0], np.float32)
    assert np.isnan(find_cosines(field, "b/2", query)).tolist() == [True, False, False]
    assert np.isnan(find_cosines(field, "c/2", query)).all()
    assert np.isnan(find_cosines(field, "a/4", query)).all()
    found = rank_corpus(field, "", space="b/2", vector=query)
    assert found.positions[0] == 1
    assert found.coverage == pytest.approx(2 / 3)
    assert found.relevance(0) == 0


def test_a_vector_of_another_length_is_left_out() -> None:
    field = with_vectors(
        3, [(1, 0, pack_half_floats([1, 0])), (2, 0, pack_half_floats([1, 0, 0])), (3, 0, b"")]
    )
    assert np.isnan(find_cosines(field, "s", np.array([1, 0], np.float32))).tolist() == [
        False,
        True,
        True,
    ]


def test_an_entry_without_content_may_come_first() -> None:
    """Its row has no bytes: it says that there is nothing to embed, not how long the others are."""
    segment = build_segment(index_records_of([make_entry(1, ""), make_entry(2, "x")]))
    segment.add_vectors("s", [(1, 0, b"")])
    segment.add_vectors("s", [(2, 0, pack_half_floats([1, 0]))])
    found = find_cosines(Corpus(snapshot_of(segment), Replacements([])), "s", np.array([1, 0], np.float32))
    assert np.isnan(found).tolist() == [True, False]


def test_an_entry_keeps_the_vectors_that_came_first() -> None:
    segment = build_segment(index_records_of([make_entry(1, "x")]))
    segment.add_vectors("s", [(1, 0, pack_half_floats([1, 0]))])
    segment.add_vectors("s", [(1, 0, pack_half_floats([0, 1]))])
    found = find_cosines(Corpus(snapshot_of(segment), Replacements([])), "s", np.array([1, 0], np.float32))
    assert found.tolist() == [1.0]


def test_a_vector_of_zeros_is_like_nothing() -> None:
    field = with_vectors(2, [(1, 0, pack_half_floats([0, 0])), (2, 0, pack_half_floats([0, 1]))])
    for query in ([1.0, 0.0], [0.0, 0.0]):
        found = rank_corpus(field, "", space="s", vector=np.array(query, np.float32))
        assert [found.relevance(place) for place in range(2)] == [0.0, 0.0]


def test_a_past_version_counts_only_the_vectors_it_had() -> None:
    field = with_vectors(
        30, [(n, 0, pack_half_floats(vector)) for n, vector in enumerate(random_array(8, 30, 16), 1)]
    )
    segment: Segment = field.snapshot.pieces[0][1]
    query = unit_vector(random_array(9, 16))
    past = find_cosines(Corpus(Snapshot([(CONTEXT, segment, 10)]), Replacements([])), "s", query)
    assert past == pytest.approx(find_cosines(field, "s", query)[:10])


def test_vectors_are_found_again_however_they_arrived() -> None:
    vectors = Vectors(3)
    values = random_array(2, 4800, 3)
    rows = [(n, 0, pack_half_floats(value)) for n, value in enumerate(values)]
    for start, end in pairwise((0, 1, 700, 4095, 4097, 4700, 4800)):
        vectors.extend(rows[start:end])
    assert vectors.count == len(rows)
    expected = values / np.linalg.norm(values, axis=1)[:, None]
    assert vectors.values[: len(rows)] == pytest.approx(expected, abs=2e-3)
    assert vectors.bytes > len(rows) * 3 * 4


# ── both signals ────────────────────────────────────────────────────────────────────────────────────────────────────


def distracting_corpus() -> tuple[list[str], NDArray[np.float32], NDArray[np.float32]]:
    """A thousand messages of common words, their vectors, and a query vector as unlike them as usual."""
    random = Random(3)
    vocabulary = [f"w{n}" for n in range(300)]
    contents = [" ".join(random.choices(vocabulary, k=18)) for _ in range(1000)]
    vectors = random_array(4, 1000, 64) + 0.6
    return contents, vectors, unit_vector(random_array(5, 64) + 0.6)


def test_a_perfect_word_comes_first_although_no_vector_speaks_for_it() -> None:
    contents, vectors, query = distracting_corpus()
    contents[400] = "xk47"
    vectors[400] -= query * (vectors[400] @ query)
    entries = [make_entry(n, text) for n, text in enumerate(contents, 1)]
    rows = [(n, 0, pack_half_floats(vector)) for n, vector in enumerate(vectors, 1)]
    found = rank_corpus(field_of(entries, rows), "xk47", space="s", vector=query)
    assert found.positions[0] == 400
    assert "meaning" not in found.parts(400)


def test_a_perfect_vector_comes_first_although_it_shares_no_word() -> None:
    contents, vectors, query = distracting_corpus()
    contents[400] = "azure"
    vectors[400] = query
    entries = [make_entry(n, text) for n, text in enumerate(contents, 1)]
    rows = [(n, 0, pack_half_floats(vector)) for n, vector in enumerate(vectors, 1)]
    found = rank_corpus(field_of(entries, rows), "w1 w2 w3 w4", space="s", vector=query)
    assert 400 in found.positions[:5]
    assert found.relevance(400) > 0.8


@given(randoms, st.integers(0, 30), st.sampled_from(["orders database", "", "zanzibar"]))
def test_relevance_and_score_stay_within_zero_and_one(random: Random, steps: int, query: str) -> None:
    log = random_log(random, steps)
    rows = random_vectors(random, log)
    vector = unit_vector(random_array(random.getrandbits(30), 24))
    if rows and rows[0][2] and random.random() < 0.5:
        vector = unit_vector(np.frombuffer(rows[0][2], "<f2").astype(np.float32))
    field = field_of(log.entries, rows)
    found = rank_corpus(field, query, space="s", vector=vector)
    for place in range(len(field)):
        assert 0 <= found.relevance(place) <= 1
        assert 0 <= found.score(place) <= 1
    assert 0 <= found.coverage <= 1


def test_of_several_vectors_of_an_entry_the_nearest_counts() -> None:
    query = np.array([1, 0, 0, 0], np.float32)
    one, other, some = [1, 0, 0, 0], [0, 1, 0, 0], [1, 1, 0, 0]
    rows = [
        (1, 0, pack_half_floats(some)), (1, 1, pack_half_floats(one)), (1, 2, pack_half_floats(other)),
        (2, 0, pack_half_floats(some)),
        (3, 0, pack_half_floats(other)), (3, 1, pack_half_floats(one)),
        (4, 0, pack_half_floats(one)),
    ]  # fmt: skip
    found = rank_corpus(with_vectors(4, rows), "zanzibar", space="s", vector=query)
    meant = found.scores.meaning_own
    assert meant is not None
    assert meant[0] == pytest.approx(meant[2], abs=1e-3)
    assert meant[0] == pytest.approx(meant[3], abs=1e-3)
    assert meant[1] < meant[0]


def test_an_entry_without_a_vector_is_found_by_its_words() -> None:
    entries = [make_entry(1, "orders"), *(make_entry(n, "x") for n in range(2, 9))]
    rows = [(n, 0, pack_half_floats(vector)) for n, vector in enumerate(random_array(6, 7, 16), 2)]
    found = rank_corpus(field_of(entries, rows), "orders", space="s", vector=unit_vector(random_array(7, 16)))
    assert 0 in found.positions
    assert found.relevance(0) == 1
    assert found.coverage == pytest.approx(7 / 8)


@given(randoms, st.integers(0, 30), st.sampled_from(["orders database", "", "zanzibar"]))
def test_a_neighbour_never_makes_evidence(random: Random, steps: int, query: str) -> None:
    """By words or by meaning: relevance is that of the entry itself, whatever stands around it."""
    log = random_log(random, steps)
    vector = unit_vector(random_array(random.getrandbits(30), 24))
    field = field_of(log.entries, random_vectors(random, log))
    found = rank_corpus(field, query, space="s", vector=vector)
    meant = found.scores.meaning_own
    assert meant is not None
    for place in range(len(field)):
        held = any(place in field.word_postings(word)[0] for word in found.query.words)
        assert (found.relevance(place) > 0) == (held or meant[place] > 0)
