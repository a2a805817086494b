"""What is decided over columns is what a plain loop over entries decides: candidates, choices, vectors."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import numpy as np
import pytest
from hypothesis import given

from acms.log.in_force import Doc, Lone, Unit
from acms.model import Kind, Role, Source
from acms.recall import vector_score
from acms.recall.candidates import Offer, Terms, offer, unit_at
from acms.recall.corpus import Field
from acms.recall.index import Floats, widened
from acms.recall.planner import (
    LEAST,
    Candidate,
    Choice,
    TextFrame,
    candidate,
)
from acms.recall.rank import Question, Ranking, alike, raise_score, rank
from acms.recall.request import EVIDENT
from acms.recall.selection import EXCERPT, EXCERPTS, RESULT, best_first, share
from acms.recall.vector_score import by_meaning, cosines
from acms.text.markers import WEIGHTS, boost
from tests.support.counters import Counting
from tests.support.indexes import Row, field_of, half, unit
from tests.support.logs import entry
from tests.support.stories import QUERIES, embedded, randoms, told

FRAME = TextFrame(Counting("bytes", lambda text: len(text.encode())))
DIMENSION = 24


def asked(random: Random, dimension: int = DIMENSION) -> Question:
    vector = unit(np.random.default_rng(random.getrandbits(32)).normal(size=dimension))
    return Question.of(random.choice(QUERIES), *random.choice([(None, None), ("s", vector)]))


# ── candidates ──────────────────────────────────────────────────────────────────────────────────────────────────────


def plain_candidate(found: Unit[Doc], field: Field, ranking: Ranking, source: Source) -> Candidate:
    places = [field.place_of(one.version - 1) for one in found.entries]
    best = max(places, key=lambda place: (ranking.relevance(place), ranking.score(place), -place))
    raised = boost(found.markers, WEIGHTS) * ranking.relevance(best)
    made = candidate(found, source, FRAME)
    worth = ranking.worth(np.array([best]))[1][0]
    if len(places) > 1:  # one shows them all
        worth *= ranking.cheaper(best, made.tokens)
    return made._replace(
        relevance=ranking.relevance(best),
        boost=raised,
        score=raise_score(worth, raised),
        parts=ranking.parts(best),
    )


def plain_past(field: Field, ranking: Ranking, terms: Terms) -> tuple[list[Candidate], list[Choice]]:
    """What a recall without a current episode offers, entry by entry."""
    past: list[tuple[int, Candidate]] = []
    rejected: list[Choice] = []
    taken: set[int] = set(terms.shown)
    stands: dict[int, int] = {}
    for place, family in zip(ranking.places.tolist(), alike(field, ranking), strict=True):
        version = field.document(place) + 1
        if version in taken:
            if version in terms.shown:
                stands.setdefault(family, version)
            continue
        found, reason = unit_at(field, place)
        taken.update(one.version for one in found.entries)
        source = Source.MARKED if any(one.markers for one in found.entries) else Source.SIMILAR
        if any(one.kind is Kind.SUMMARY for one in found.entries):
            source = Source.SUMMARY
        one = plain_candidate(found, field, ranking, source)
        other = stands.get(family)
        markers = set(field.snapshot.doc(version - 1).markers)
        if reason:
            rejected.append(Choice(one, False, "hidden", reason))
        elif any(each.id in terms.exclude for each in found.entries):
            rejected.append(Choice(one, False, "excluded", "excluded by the caller"))
        elif one.relevance < min(terms.min_relevance, EVIDENT):
            rejected.append(Choice(one, False, "irrelevant", "nothing of its own has to do with the query"))
        elif one.relevance < terms.min_relevance:
            reason = f"below the least relevance of {terms.min_relevance:.2f}"
            rejected.append(Choice(one, False, "min_relevance", reason))
        elif (
            other is not None
            and len(found.entries) == 1
            and markers <= set(field.snapshot.doc(other - 1).markers)
        ):
            rejected.append(Choice(one, False, "duplicate", f"says the same as v{other}"))
        else:
            stands.setdefault(family, version)
            past.append((field.place_of(found.entries[-1].version - 1), one))
    return [one for _, one in sorted(past, key=lambda row: row[0])], rejected


@given(randoms)
def test_the_past_is_offered_as_a_loop_over_entries_offers_it(random: Random) -> None:
    log = told(random, random.randint(5, 60))
    field = field_of(log.entries, embedded(random, log, DIMENSION))
    ranking = rank(field, asked(random), random.choice([8, 256]))
    if random.random() < 0.5:
        ranking.keep(random.randint(1, 400))
    versions = range(1, log.version + 1)
    terms = Terms(
        weights=WEIGHTS,
        episode=False,
        min_relevance=random.choice([0.0, 0.0, 0.1]),
        shown=random.sample(versions, min(len(versions), random.choice([0, 3]))),
        exclude=frozenset(one.id for one in random.sample(log.entries, random.choice([0, 2]))),
    )
    found = offer(field, ranking, terms, FRAME)
    assert (list(found.past), list(found.rejected)) == plain_past(field, ranking, terms)


@given(randoms)
def test_the_current_episode_is_ranked_as_a_loop_over_entries_ranks_it(random: Random) -> None:
    log = told(random, random.randint(5, 60))
    field = field_of(log.entries, embedded(random, log, DIMENSION))
    ranking = rank(field, asked(random))
    found: Offer = offer(field, ranking, Terms(weights=WEIGHTS, budget=10_000), FRAME)
    for one in found.current:
        assert not isinstance(one.unit, Lone)
        last = one.unit.entries[-1]
        place = field.place_of(last.version - 1)
        assert one.relevance == ranking.relevance(place)
        assert one.score == ranking.score(place, boost(one.markers, WEIGHTS))
        assert one.parts == ranking.parts(place)


# ── choices ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def plain_share(
    past: Sequence[Candidate], current: Sequence[Candidate], budget: int, floor: float
) -> list[Choice]:
    """Divide a budget by the rules of `share`, one candidate after the other."""
    choices: dict[int, Choice] = {}
    left = budget
    for one in current[-1:]:
        rule = "latest" if one.tokens <= left else "cut"
        choices[id(one)] = Choice(one, True, rule, "the latest message is always shown", left)
        left -= one.tokens
    reserved = min(left, int(budget * floor) - (budget - left))
    for one in sorted(current[:-1], key=lambda one: (not one.markers, -one.unit.version)):
        if one.tokens <= reserved:
            why = "in the current episode, within its reserved share"
            choices[id(one)] = Choice(one, True, "episode", why)
            reserved -= one.tokens
            left -= one.tokens
    competing = [one for one in current[:-1] if id(one) not in choices and one.relevance > 0]
    whole = sum(one.tokens for one in (*past, *competing)) <= left
    for place, one in enumerate(sorted([*past, *competing], key=best_first)):
        excerpt = min(left, max(budget // 3, LEAST))
        part = min(left, max(int(budget * RESULT), LEAST)) if len(one.costs) > 1 and not whole else 0
        if one.tokens > part >= min(one.costs) + LEAST:
            why = f"what answers in a tool call of {one.tokens} tokens"
            choices[id(one)] = Choice(one, True, "excerpt", why, part)
            left -= part
        elif one.tokens <= left:
            why = f"marked {', '.join(one.markers)}, and relevant" if one.markers else "relevant to the query"
            choices[id(one)] = Choice(one, True, "score", why)
            left -= one.tokens
        elif place < EXCERPTS and one.tokens > budget * EXCERPT and excerpt >= LEAST and len(one.costs) == 1:
            why = f"an excerpt of {one.tokens} tokens, relevant to the query"
            choices[id(one)] = Choice(one, True, "excerpt", why, excerpt)
            left -= excerpt
        else:
            why = f"needs {one.tokens} tokens, {max(left, 0)} are left"
            choices[id(one)] = Choice(one, False, "budget", why)
    for one in sorted(current[:-1], key=lambda one: -one.unit.version):
        if id(one) in choices:
            continue
        if one.tokens <= left:
            why = "in the current episode, in the share others left"
            choices[id(one)] = Choice(one, True, "episode", why)
            left -= one.tokens
        else:
            why = f"needs {one.tokens} tokens, {max(left, 0)} are left"
            choices[id(one)] = Choice(one, False, "budget", why)
    return [choices[id(one)] for one in (*past, *current)]


def drawn_candidates(random: Random, first: int, count: int) -> list[Candidate]:
    found: list[Candidate] = []
    for version in range(first, first + count):
        markers = random.choice([(), (), ("goal",), ("goal", "custom:x")])
        doc = Doc(f"m_{version}", version, Kind.MESSAGE, Role.USER, None, markers, 1, 0, None)
        costs = tuple(random.choices([1, 30, 60, 61, 400, 900], k=random.choice([1, 1, 1, 2])))
        found.append(
            Candidate(
                Lone(lambda _, doc=doc: doc, version, markers),
                Source.SIMILAR,
                costs,
                sum(costs),
                random.choice([0.0, 0.1, 0.5, 0.9]),
                0.0,
                random.choice([0.2, 0.4, 0.8]),
            )
        )
    return found


@given(randoms)
def test_a_budget_is_divided_as_a_loop_over_candidates_divides_it(random: Random) -> None:
    past = drawn_candidates(random, 1, random.randint(0, 30))
    current = drawn_candidates(random, 100, random.randint(0, 6))
    budget, floor = random.choice([0, 50, 150, 1000, 4000]), random.choice([0.0, 0.4, 1.0])
    assert share(past, current, budget, floor, 0.25) == plain_share(past, current, budget, floor)


# ── vectors ─────────────────────────────────────────────────────────────────────────────────────────────────────────


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
    log = told(random, random.randint(5, 60))
    rows = embedded(random, log, DIMENSION)
    field = field_of(log.entries, rows)
    query = unit(np.random.default_rng(random.getrandbits(32)).normal(size=DIMENSION))
    held = by_version(rows)
    places = np.array(random.sample(range(len(field)), len(field)), np.int64)
    exact = cosines(field, "s", query, places)
    for index, place in enumerate(places.tolist()):
        vectors = held.get(field.document(place) + 1)
        products = np.array([np.nan]) if vectors is None else np.array([one @ query for one in vectors])
        assert exact[index] == pytest.approx(products.max(), abs=0, rel=0, nan_ok=True)
    found = by_meaning(field, "s", query)
    assert found.cosines[places] == pytest.approx(exact, abs=1e-5, nan_ok=True)


@pytest.mark.parametrize("dimension", [8, 64, 384, 1100])
def test_sign_bits_stand_for_the_cosine_of_the_share_of_signs_that_differ(
    monkeypatch: pytest.MonkeyPatch, dimension: int
) -> None:
    monkeypatch.setattr(vector_score, "EXACT", 0)
    drawn = np.random.default_rng(dimension)
    rows: list[Row] = [
        (version, part, half(drawn.normal(size=dimension)))
        for version in range(1, 41)
        for part in range(version % 3)
    ]
    field = field_of([entry(version, "orders") for version in range(1, 41)], rows)
    query = unit(drawn.normal(size=dimension))
    held = by_version(rows)
    found = by_meaning(field, "s", query)
    assert (found.exact, found.known) == (False, len(held))
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
    widened(halves.view(np.int16)[None], found)
    assert found.tobytes() == halves.astype(np.float32).tobytes()
