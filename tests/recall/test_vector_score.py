"""Meaning: the best cosine of an entry, by vectors of one space only, exactly or by sign bits first."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from acms.log.in_force import Cover
from acms.recall import vector_score
from acms.recall.candidates import Terms, offer
from acms.recall.corpus import NEAR, Field
from acms.recall.index import BLOCK, Segment, Vectors, signs
from acms.recall.planner import TextFrame
from acms.recall.rank import MEANT, Question, rank
from acms.recall.selection import share
from acms.recall.vector_score import by_meaning, cosines, level, with_context
from acms.text.markers import WEIGHTS
from tests.recall.test_planner import BYTES
from tests.support.indexes import Row, built, field_of, half, packed, snapshot, unit
from tests.support.logs import entry
from tests.support.stories import embedded, randoms, told

FRAME = TextFrame(BYTES)


def drawn(seed: int, *shape: int) -> NDArray[np.float32]:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def messages(count: int, word: str = "x") -> Field:
    return field_of([entry(version, f"{word}{version}") for version in range(1, count + 1)])


def with_vectors(count: int, rows: list[Row], space: str = "s") -> Field:
    entries = [entry(version, f"x{version}") for version in range(1, count + 1)]
    return field_of(entries, rows, space)


# ── cosines ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@given(randoms, st.integers(0, 40))
def test_the_meaning_of_an_entry_is_that_of_its_nearest_vector(random: Random, steps: int) -> None:
    log = told(random, steps)
    rows = embedded(random, log)
    field = field_of(log.entries, rows)
    query = unit(drawn(random.getrandbits(30), 24))
    found = by_meaning(field, "s", query)
    expected: dict[int, list[float]] = {}
    for version, _, data in sorted(rows, key=lambda row: row[:2]):
        place = field.place_of(version - 1)
        if data and place >= 0:
            vector = np.frombuffer(data, "<f2").astype(np.float64)
            expected.setdefault(place, []).append(float(vector @ query / np.linalg.norm(vector)))
    again = cosines(field, "s", query, np.arange(len(field)))
    for place in range(len(field)):
        if place in expected:
            for one in (found.cosines, again):
                assert float(one[place]) == pytest.approx(max(expected[place]), abs=1e-5)
        else:
            assert np.isnan([found.cosines[place], again[place]]).all()
    assert found.exact
    assert found.known == len(expected)


def test_spaces_are_never_compared() -> None:
    field = with_vectors(3, [(1, 0, half([1, 0, 0, 0]))], "a/4")
    segment = field.snapshot.pieces[0][1]
    segment.add_vectors("b/2", [(2, 0, half([1, 0])), (3, 0, half([0, 1]))])
    field = Field(snapshot(segment), Cover([]))
    query = np.array([1, 0], np.float32)
    assert np.isnan(by_meaning(field, "b/2", query).cosines).tolist() == [True, False, False]
    assert np.isnan(by_meaning(field, "c/2", query).cosines).all()
    assert np.isnan(by_meaning(field, "a/4", query).cosines).all()
    found = rank(field, Question.of("", "b/2", query))
    assert found.places[0] == 1
    assert found.coverage == pytest.approx(2 / 3)
    assert found.relevance(0) == 0


def test_a_vector_of_another_length_is_left_out() -> None:
    field = with_vectors(3, [(1, 0, half([1, 0])), (2, 0, half([1, 0, 0])), (3, 0, b"")])
    assert np.isnan(by_meaning(field, "s", np.array([1, 0], np.float32)).cosines).tolist() == [
        False,
        True,
        True,
    ]


def test_an_entry_without_content_may_come_first() -> None:
    """Its row has no bytes: it says that there is nothing to embed, not how long the others are."""
    segment = built(packed([entry(1, ""), entry(2, "x")]))
    segment.add_vectors("s", [(1, 0, b"")])
    segment.add_vectors("s", [(2, 0, half([1, 0]))])
    found = by_meaning(Field(snapshot(segment), Cover([])), "s", np.array([1, 0], np.float32))
    assert np.isnan(found.cosines).tolist() == [True, False]


def test_an_entry_keeps_the_vectors_that_came_first() -> None:
    segment = built(packed([entry(1, "x")]))
    segment.add_vectors("s", [(1, 0, half([1, 0]))])
    segment.add_vectors("s", [(1, 0, half([0, 1]))])
    found = by_meaning(Field(snapshot(segment), Cover([])), "s", np.array([1, 0], np.float32))
    assert found.cosines.tolist() == [1.0]


def test_a_vector_of_zeros_is_like_nothing() -> None:
    field = with_vectors(2, [(1, 0, half([0, 0])), (2, 0, half([0, 1]))])
    for query in ([1.0, 0.0], [0.0, 0.0]):
        found = rank(field, Question.of("", "s", np.array(query, np.float32)))
        assert [found.relevance(place) for place in range(2)] == [0.0, 0.0]


@pytest.mark.parametrize("dimension", [1, 8, 63, 64, 65, 384])
def test_signs_are_the_signs(dimension: int) -> None:
    vectors = drawn(1, 20, dimension)
    codes = signs(vectors)
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
    values = drawn(most, sum(sizes), dimension)
    vectors = Vectors(dimension)
    owners = np.repeat(np.arange(len(sizes)), sizes).tolist()
    vectors.extend((owner, 0, half(row)) for owner, row in zip(owners, values, strict=True))
    query = drawn(1, dimension)
    for count in (1, 200, len(sizes)):  # the first ones, as a snapshot sees them
        total = sum(sizes[:count])
        differ = ((values[:total] > 0) != (query > 0)).sum(axis=1)
        begin = np.cumsum([0, *sizes[: count - 1]])
        least = vectors.apart(signs(query[None, :])[:, 0], count)
        assert least.tolist() == np.minimum.reduceat(differ, begin).tolist()


def test_vectors_fill_blocks_and_are_found_again() -> None:
    vectors = Vectors(3)
    values = drawn(2, BLOCK + 700, 3)
    rows = [(n, 0, half(value)) for n, value in enumerate(values)]
    for start in (0, 1, 700, 4095, 4097, 4700):
        end = next((n for n in (1, 700, 4095, 4097, 4700, len(rows)) if n > start), len(rows))
        vectors.extend(rows[start:end])
    assert (vectors.count, len(vectors.blocks)) == (len(rows), 2)
    places = np.array([0, 4795, 4095, 4096, 17])
    expected = values / np.linalg.norm(values, axis=1)[:, None]
    assert vectors.rows(places) == pytest.approx(expected[places], abs=2e-3)
    assert vectors.bytes > 2 * BLOCK * 3 * 4


# ── both signals ────────────────────────────────────────────────────────────────────────────────────────────────────


def distracted() -> tuple[list[str], NDArray[np.float32], NDArray[np.float32]]:
    """A thousand messages of common words, their vectors, and a query vector as unlike them as usual."""
    random = Random(3)
    vocabulary = [f"w{n}" for n in range(300)]
    contents = [" ".join(random.choices(vocabulary, k=18)) for _ in range(1000)]
    vectors = drawn(4, 1000, 64) + 0.6
    return contents, vectors, unit(drawn(5, 64) + 0.6)


def test_a_perfect_word_comes_first_although_no_vector_speaks_for_it() -> None:
    contents, vectors, query = distracted()
    contents[400] = "xk47"
    vectors[400] -= query * (vectors[400] @ query)
    entries = [entry(n, text) for n, text in enumerate(contents, 1)]
    rows = [(n, 0, half(vector)) for n, vector in enumerate(vectors, 1)]
    found = rank(field_of(entries, rows), Question.of("xk47", "s", query))
    assert found.places[0] == 400
    assert "meaning" not in found.parts(400)


def test_a_perfect_vector_comes_first_although_it_shares_no_word() -> None:
    contents, vectors, query = distracted()
    contents[400] = "azure"
    vectors[400] = query
    entries = [entry(n, text) for n, text in enumerate(contents, 1)]
    rows = [(n, 0, half(vector)) for n, vector in enumerate(vectors, 1)]
    found = rank(field_of(entries, rows), Question.of("w1 w2 w3 w4", "s", query))
    assert 400 in found.places[:5]
    assert found.relevance(400) == 1


@given(randoms, st.integers(0, 30), st.sampled_from(["orders database", "", "zanzibar"]))
def test_relevance_and_score_stay_within_zero_and_one(random: Random, steps: int, query: str) -> None:
    log = told(random, steps)
    rows = embedded(random, log)
    vector = unit(drawn(random.getrandbits(30), 24))
    if rows and rows[0][2] and random.random() < 0.5:
        vector = unit(np.frombuffer(rows[0][2], "<f2").astype(np.float32))
    field = field_of(log.entries, rows)
    found = rank(field, Question.of(query, "s", vector))
    for place in range(len(field)):
        assert 0 <= found.relevance(place) <= 1
        assert 0 <= found.score(place, 0.7) < 1
    assert 0 <= found.coverage <= 1


def test_of_several_vectors_of_an_entry_the_nearest_counts() -> None:
    query = np.array([1, 0, 0, 0], np.float32)
    one, other, some = [1, 0, 0, 0], [0, 1, 0, 0], [1, 1, 0, 0]
    rows = [
        (1, 0, half(some)), (1, 1, half(one)), (1, 2, half(other)),
        (2, 0, half(some)),
        (3, 0, half(other)), (3, 1, half(one)),
        (4, 0, half(one)),
    ]  # fmt: skip
    found = rank(with_vectors(4, rows), Question.of("zanzibar", "s", query))
    meant = found.meaning(np.arange(4))
    assert meant[0] == pytest.approx(meant[2], abs=1e-3)
    assert meant[0] == pytest.approx(meant[3], abs=1e-3)
    assert meant[1] < meant[0]


def test_an_entry_without_a_vector_is_found_by_its_words() -> None:
    entries = [entry(1, "orders"), *(entry(n, "x") for n in range(2, 9))]
    rows = [(n, 0, half(vector)) for n, vector in enumerate(drawn(6, 7, 16), 2)]
    found = rank(field_of(entries, rows), Question.of("orders", "s", unit(drawn(7, 16))))
    assert found.places[0] == 0
    assert found.coverage == pytest.approx(7 / 8)


# ── sign bits ───────────────────────────────────────────────────────────────────────────────────────────────────────


def clustered(seed: int, count: int = 3000, dimension: int = 256) -> tuple[Field, NDArray[np.float32]]:
    """A log of many vectors around sixty topics, and queries about these."""
    topics = drawn(seed, 60, dimension)
    random = np.random.default_rng(seed)
    of = random.integers(0, 60, count)
    vectors = topics[of] + 0.8 * drawn(seed + 1, count, dimension)
    entries = [
        entry(n, f"t{topic} w{n % 97} w{n % 31}", tokens=20, episode=n // 5)
        for n, topic in enumerate(of.tolist(), 1)
    ]
    rows = [(n, 0, half(vector)) for n, vector in enumerate(vectors, 1)]
    queries = topics[:8] + 0.9 * drawn(seed + 2, 8, dimension)
    return field_of(entries, rows), np.stack([unit(query) for query in queries])


def kept(field: Field, asked: Question) -> set[int]:
    terms = Terms(weights=WEIGHTS, episode=False)
    offered = offer(field, rank(field, asked), terms, FRAME)
    return {
        choice.candidate.unit.version
        for choice in share(offered.past, (), 2000, 0.0, 0.25)
        if choice.included
    }


def test_sign_bits_choose_what_exact_cosines_choose(monkeypatch: pytest.MonkeyPatch) -> None:
    field, queries = clustered(11)
    tops, sets = [], []
    for number, query in enumerate(queries):
        asked = Question.of(f"w{number} w{number + 7}", "s", query)
        monkeypatch.setattr(vector_score, "EXACT", 10**6)
        exact, exactly = rank(field, asked), kept(field, asked)
        monkeypatch.setattr(vector_score, "EXACT", 10)
        coded, roughly = rank(field, asked), kept(field, asked)
        assert not by_meaning(field, "s", query).exact
        tops.append(len({*exact.places[:10].tolist()} & {*coded.places[:10].tolist()}) / 10)
        sets.append(len(exactly & roughly) / len(exactly))
        assert len(coded.places) == 256
        usual = level(field, "s", query, by_meaning(field, "s", query))
        expected = usual.of(cosines(field, "s", query, coded.places))
        assert coded.meaning(coded.places) == pytest.approx(expected, abs=1e-4)
    assert np.mean(tops) >= 0.85  # what stands around an entry is not compared exactly
    assert np.mean(sets) >= 0.85


def test_a_past_version_counts_only_the_vectors_it_had(monkeypatch: pytest.MonkeyPatch) -> None:
    from acms.recall.index import Snapshot
    from tests.support.logs import CONTEXT

    monkeypatch.setattr(vector_score, "EXACT", 10)
    field = with_vectors(30, [(n, 0, half(vector)) for n, vector in enumerate(drawn(8, 30, 16), 1)])
    segment: Segment = field.snapshot.pieces[0][1]
    query = unit(drawn(9, 16))
    assert not by_meaning(field, "s", query).exact
    assert by_meaning(Field(Snapshot([(CONTEXT, segment, 10)]), Cover([])), "s", query).exact


@given(randoms, st.integers(0, 40))
def test_where_sign_bits_chose_the_usual_cosine_is_that_of_all_exact_ones(random: Random, steps: int) -> None:
    log = told(random, steps)
    field = field_of(log.entries, embedded(random, log, 64))
    query = unit(drawn(random.getrandbits(30), 64))
    levels = []
    with pytest.MonkeyPatch.context() as patch:
        for limit in (0, 1 << 30):
            patch.setattr(vector_score, "EXACT", limit)
            levels.append(level(field, "s", query, by_meaning(field, "s", query)))
    rough, exact = levels
    assert rough == pytest.approx(exact, abs=0.0011)  # both are rounded; so few entries are all in the sample


def test_a_log_of_which_nothing_is_in_force_has_no_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vector_score, "EXACT", 0)
    segment = built(packed([entry(1, "x"), entry(2, "y")]))
    segment.add_vectors("s", [(n, part, half([1, part])) for n in (1, 2) for part in (0, 1)])
    segment.blanked.update((0, 1))
    found = rank(Field(snapshot(segment), Cover([])), Question.of("x", "s", np.array([1, 0], np.float32)))
    assert len(found.places) == 0


def test_of_short_entries_more_are_compared_than_of_long_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vector_score, "EXACT", 0)
    monkeypatch.setattr("acms.recall.rank.RESCORED", range(10, 31))
    compared: list[int] = []
    monkeypatch.setattr("acms.recall.rank.cosines", lambda *of: compared.append(len(of[-1])) or cosines(*of))
    rows = [(n, 0, half(vector)) for n, vector in enumerate(drawn(8, 60, 16), 1)]
    for tokens in (5, 16, 4000):
        entries = [entry(n, f"x{n}", tokens=tokens) for n in range(1, 61)]
        rank(field_of(entries, rows), Question.of("y", "s", unit(drawn(9, 16))), 2)
    assert compared == [30, 20, 10]


# ── what stands around ──────────────────────────────────────────────────────────────────────────────────────────────


@given(st.lists(st.none() | st.floats(-1, 1, width=32), max_size=30))
def test_what_stands_around_an_entry_counts_half(values: list[float | None]) -> None:
    given = np.array([np.nan if one is None else one for one in values], np.float32)
    found = with_context(given)
    for place, own in enumerate(values):
        if own is None:
            assert np.isnan(found[place])
            continue
        near = [
            (other, 1 / max(1, abs(at - place)))
            for at, other in enumerate(values)
            if other is not None and abs(at - place) <= NEAR
        ]
        mean = sum(other * share for other, share in near) / sum(share for _, share in near)
        assert float(found[place]) == pytest.approx((own + mean) / 2, abs=1e-5)


@given(randoms, st.integers(0, 30), st.sampled_from(["orders database", "", "zanzibar"]))
def test_a_neighbour_never_makes_evidence(random: Random, steps: int, query: str) -> None:
    """By words or by meaning: relevance is that of the entry itself, whatever stands around it."""
    log = told(random, steps)
    vector = unit(drawn(random.getrandbits(30), 24))
    field = field_of(log.entries, embedded(random, log))
    asked = Question.of(query, "s", vector)
    found = rank(field, asked)
    said = set(asked.terms)
    meant = found.meaning(np.arange(len(field)))
    for place in range(len(field)):
        held = any(place in field.postings(number)[0] for number in said)
        assert (found.relevance(place) > 0) == (held or meant[place] >= np.float32(MEANT))
