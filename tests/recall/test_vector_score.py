"""Meaning: the best cosine of an entry, by vectors of one space only, exactly or by sign bits first."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from acms.log.in_force import Replacements
from acms.recall import vector_score
from acms.recall.candidates import Conditions, collect_candidates
from acms.recall.corpus import Corpus
from acms.recall.index import BLOCK, Segment, Vectors, pack_signs
from acms.recall.query import Query
from acms.recall.ranking import Ranking
from acms.recall.selection import divide_budget
from acms.recall.text_frame import TextFrame
from acms.recall.vector_score import compute_cosines, find_cosines, measure_cosines
from tests.recall.test_planner import BYTES
from tests.support.indexes import (
    Row,
    build_segment,
    field_of,
    index_records_of,
    make_query,
    pack_half_floats,
    rank_corpus,
    snapshot_of,
    unit_vector,
)
from tests.support.logs import make_entry
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
    again = compute_cosines(field, "s", query, np.arange(len(field)))
    for place in range(len(field)):
        if place in expected:
            for one in (found.cosines, again):
                assert float(one[place]) == pytest.approx(max(expected[place]), abs=1e-5)
        else:
            assert np.isnan([found.cosines[place], again[place]]).all()
    assert found.exact
    assert found.known_count == len(expected)


def test_spaces_are_never_compared() -> None:
    field = with_vectors(3, [(1, 0, pack_half_floats([1, 0, 0, 0]))], "a/4")
    segment = field.snapshot.pieces[0][1]
    segment.add_vectors("b/2", [(2, 0, pack_half_floats([1, 0])), (3, 0, pack_half_floats([0, 1]))])
    field = Corpus(snapshot_of(segment), Replacements([]))
    query = np.array([1, 0], np.float32)
    assert np.isnan(find_cosines(field, "b/2", query).cosines).tolist() == [True, False, False]
    assert np.isnan(find_cosines(field, "c/2", query).cosines).all()
    assert np.isnan(find_cosines(field, "a/4", query).cosines).all()
    found = rank_corpus(field, "", space="b/2", vector=query)
    assert found.positions[0] == 1
    assert found.coverage == pytest.approx(2 / 3)
    assert found.relevance(0) == 0


def test_a_vector_of_another_length_is_left_out() -> None:
    field = with_vectors(
        3, [(1, 0, pack_half_floats([1, 0])), (2, 0, pack_half_floats([1, 0, 0])), (3, 0, b"")]
    )
    assert np.isnan(find_cosines(field, "s", np.array([1, 0], np.float32)).cosines).tolist() == [
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
    assert np.isnan(found.cosines).tolist() == [True, False]


def test_an_entry_keeps_the_vectors_that_came_first() -> None:
    segment = build_segment(index_records_of([make_entry(1, "x")]))
    segment.add_vectors("s", [(1, 0, pack_half_floats([1, 0]))])
    segment.add_vectors("s", [(1, 0, pack_half_floats([0, 1]))])
    found = find_cosines(Corpus(snapshot_of(segment), Replacements([])), "s", np.array([1, 0], np.float32))
    assert found.cosines.tolist() == [1.0]


def test_a_vector_of_zeros_is_like_nothing() -> None:
    field = with_vectors(2, [(1, 0, pack_half_floats([0, 0])), (2, 0, pack_half_floats([0, 1]))])
    for query in ([1.0, 0.0], [0.0, 0.0]):
        found = rank_corpus(field, "", space="s", vector=np.array(query, np.float32))
        assert [found.relevance(place) for place in range(2)] == [0.0, 0.0]


@pytest.mark.parametrize("dimension", [1, 8, 63, 64, 65, 384])
def test_signs_are_the_signs(dimension: int) -> None:
    vectors = random_array(1, 20, dimension)
    codes = pack_signs(vectors)
    assert codes.shape == ((dimension + 63) // 64, 20)
    differ = [
        sum(int(row[0] ^ row[other]).bit_count() for row in codes.astype(object)) for other in range(20)
    ]
    expected = [int(((vectors[0] > 0) != (vectors[other] > 0)).sum()) for other in range(20)]
    assert differ == expected


@pytest.mark.parametrize("dimension", [8, 192, 200, 384])
@pytest.mark.parametrize("most", [1, 9, 70])
def test_signs_in_which_vectors_differ_are_counted_by_document(
    dimension: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if most == 9:  # many blocks, as of a million vectors
        monkeypatch.setattr("acms.recall.index.BLOCK", 64)
        monkeypatch.setattr("acms.recall.index.SLAB", 2)
    random = Random(most)
    sizes = [random.choice([1, random.randint(1, most)]) for _ in range(300)] + [most] * 100
    values = random_array(most, sum(sizes), dimension)
    vectors = Vectors(dimension)
    owners = np.repeat(np.arange(len(sizes)), sizes).tolist()
    vectors.extend((owner, 0, pack_half_floats(row)) for owner, row in zip(owners, values, strict=True))
    query = random_array(1, dimension)
    for count in (1, 200, len(sizes)):  # the first ones, as a snapshot sees them
        total = sum(sizes[:count])
        differ = ((values[:total] > 0) != (query > 0)).sum(axis=1)
        begin = np.cumsum([0, *sizes[: count - 1]])
        least = vectors.count_sign_differences(pack_signs(query[None, :])[:, 0], count)
        assert least.tolist() == np.minimum.reduceat(differ, begin).tolist()


def test_vectors_fill_blocks_and_are_found_again() -> None:
    vectors = Vectors(3)
    values = random_array(2, BLOCK + 700, 3)
    rows = [(n, 0, pack_half_floats(value)) for n, value in enumerate(values)]
    for start in (0, 1, 700, 4095, 4097, 4700):
        end = next((n for n in (1, 700, 4095, 4097, 4700, len(rows)) if n > start), len(rows))
        vectors.extend(rows[start:end])
    assert (vectors.count, len(vectors.blocks)) == (len(rows), 2)
    places = np.array([0, 4795, 4095, 4096, 17])
    expected = values / np.linalg.norm(values, axis=1)[:, None]
    rows_at_places = np.empty((len(places), 3), np.float32)
    vectors.fill(rows_at_places, np.arange(len(places)), places)
    assert rows_at_places == pytest.approx(expected[places], abs=2e-3)
    assert vectors.bytes > 2 * BLOCK * 3 * 4


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


# ── sign bits ───────────────────────────────────────────────────────────────────────────────────────────────────────


def clustered_corpus(
    seed: int, count: int = 3000, dimension: int = 256
) -> tuple[Corpus, NDArray[np.float32]]:
    """A log of many vectors around sixty topics, and queries about these."""
    topics = random_array(seed, 60, dimension)
    random = np.random.default_rng(seed)
    of = random.integers(0, 60, count)
    vectors = topics[of] + 0.8 * random_array(seed + 1, count, dimension)
    entries = [
        make_entry(n, f"t{topic} w{n % 97} w{n % 31}", tokens=20, episode=n // 5)
        for n, topic in enumerate(of.tolist(), 1)
    ]
    rows = [(n, 0, pack_half_floats(vector)) for n, vector in enumerate(vectors, 1)]
    queries = topics[:8] + 0.9 * random_array(seed + 2, 8, dimension)
    return field_of(entries, rows), np.stack([unit_vector(query) for query in queries])


def kept_versions(field: Corpus, asked: Query) -> set[int]:
    offered = collect_candidates(field, Ranking(field, asked), Conditions(episode=False), FRAME)
    return {
        choice.candidate.unit.version
        for choice in divide_budget(offered.past, (), 2000, 0.0, 0.25)
        if choice.included
    }


def test_sign_bits_choose_what_exact_cosines_choose(monkeypatch: pytest.MonkeyPatch) -> None:
    field, queries = clustered_corpus(11)
    tops, sets = [], []
    for number, query in enumerate(queries):
        asked = make_query(field, f"w{number} w{number + 7}", "s", query)
        monkeypatch.setattr(vector_score, "EXACT", 10**6)
        exact, exactly = Ranking(field, asked), kept_versions(field, asked)
        monkeypatch.setattr(vector_score, "EXACT", 10)
        coded, roughly = Ranking(field, asked), kept_versions(field, asked)
        assert not find_cosines(field, "s", query).exact
        tops.append(len({*exact.positions[:10].tolist()} & {*coded.positions[:10].tolist()}) / 10)
        sets.append(len(exactly & roughly) / len(exactly))
        assert len(coded.positions) == 256
        assert coded.scores.cosine_stats == pytest.approx(exact.scores.cosine_stats, abs=0.05)
    assert np.mean(tops) >= 0.85  # what stands around an entry is not compared exactly
    assert np.mean(sets) >= 0.85


def test_a_past_version_counts_only_the_vectors_it_had(monkeypatch: pytest.MonkeyPatch) -> None:
    from acms.recall.index import Snapshot
    from tests.support.logs import CONTEXT

    monkeypatch.setattr(vector_score, "EXACT", 10)
    field = with_vectors(
        30, [(n, 0, pack_half_floats(vector)) for n, vector in enumerate(random_array(8, 30, 16), 1)]
    )
    segment: Segment = field.snapshot.pieces[0][1]
    query = unit_vector(random_array(9, 16))
    assert not find_cosines(field, "s", query).exact
    assert find_cosines(Corpus(Snapshot([(CONTEXT, segment, 10)]), Replacements([])), "s", query).exact


@given(randoms, st.integers(0, 40))
def test_where_sign_bits_chose_the_usual_cosine_is_that_of_all_exact_ones(random: Random, steps: int) -> None:
    log = random_log(random, steps)
    field = field_of(log.entries, random_vectors(random, log, 64))
    query = unit_vector(random_array(random.getrandbits(30), 64))
    levels = []
    with pytest.MonkeyPatch.context() as patch:
        for limit in (0, 1 << 30):
            patch.setattr(vector_score, "EXACT", limit)
            levels.append(measure_cosines(field, "s", query, find_cosines(field, "s", query)))
    rough, exact = levels
    assert rough == pytest.approx(exact, abs=0.0011)  # both are rounded; so few entries are all in the sample


def test_a_log_of_which_nothing_is_in_force_has_no_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vector_score, "EXACT", 0)
    segment = build_segment(index_records_of([make_entry(1, "x"), make_entry(2, "y")]))
    segment.add_vectors("s", [(n, part, pack_half_floats([1, part])) for n in (1, 2) for part in (0, 1)])
    segment.blanked.update((0, 1))
    found = rank_corpus(
        Corpus(snapshot_of(segment), Replacements([])), "x", space="s", vector=np.array([1, 0], np.float32)
    )
    assert len(found.positions) == 0


def test_few_messages_are_compared_exactly_where_each_has_many_vectors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(vector_score, "EXACT", 0)
    monkeypatch.setattr(vector_score, "RESCORED", 30)
    monkeypatch.setattr(vector_score, "VECTORS", 40)
    compared: list[int] = []
    exact = vector_score.compute_cosines

    def counted(field: Corpus, space: str, query: NDArray[np.float32], places: NDArray[np.int64]) -> object:
        compared.append(len(places))
        return exact(field, space, query, places)

    monkeypatch.setattr(vector_score, "compute_cosines", counted)
    for parts in (1, 4):
        rows = [
            (n, part, pack_half_floats(one))
            for n, one in enumerate(random_array(8, 60, 16), 1)
            for part in range(parts)
        ]
        rank_corpus(with_vectors(60, rows), "y", space="s", vector=unit_vector(random_array(9, 16)))
    assert compared[1::2] == [30, 10]  # the others are the sample that tells mean and deviation


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
