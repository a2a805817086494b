"""The choice of fragments: checks 7 to 17 of the contract, and what `quality` adds."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from math import log, nan

import pytest

from acms.contract import Candidate, Layer, Lod, Purpose, RiskLevel, Variant
from acms.contract import benefit as formula
from acms.contract.selection import PROFILES, Profile, Selection, select_fragments

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
HALF = 168 * log(2)
"""Hours after which recency is one half."""


def count_words(text: str) -> int:
    """Count as a tokenizer would, one token a word."""
    return len(text.split())


def make_candidate(
    id: str,
    entities: str = "",
    age: float | None = 0.0,
    cites: int = 0,
    cost: int = 0,
    **more: object,
) -> Candidate:
    """Make a candidate without a text, with the claimed cost."""
    return replace(
        Candidate(
            id=id,
            source=Layer.L2,
            entities=tuple(entities),
            timestamp=None if age is None else NOW - timedelta(hours=age),
            citations=tuple(f"ref:{n}" for n in range(cites)),
            cost_tokens=cost,
        ),
        **more,
    )


def choose_fragments(
    candidates: list[Candidate], gaze: str = "abcd", tokens: int = 10_000, **more: object
) -> Selection:
    return select_fragments(
        candidates, **{"gaze": gaze, "tokens_max": tokens, "now": NOW, "count": count_words, **more}
    )


def chosen_ids(chosen: Selection) -> str:
    return "".join(fragment.id for fragment in chosen.fragments)


def selection_as_wire(chosen: Selection) -> str:
    """Return all that must not depend on the order in which candidates come, byte for byte."""
    fragments = [one.to_wire(extended=True) for one in chosen.fragments]
    kept = [fragments, chosen.used_tokens, chosen.coverage, chosen.rejected]
    return json.dumps([*kept, sorted(chosen.scores.items()), sorted(chosen.benefits.items())])


SET_T = [
    make_candidate("B", "ab", 0, 1, 400),
    make_candidate("F", "cd", 0, 0, 300),
    make_candidate("G", "abcd", HALF, 1, 700),
    make_candidate("D", "", 0, 0, 250),
]


# ── the published formula ───────────────────────────────────────────────────────────────────────────────────────────

#: Entities of four asked for, age in hours, citations, tokens; recency, benefit, score.
GOLDEN = [
    ("abcd", 0.0, 1, 0, 1.0, 1.0, 1.0),
    ("ab", 0.0, 1, 400, 1.0, 0.7, 0.5),
    ("ab", 0.0, 0, 300, 1.0, 0.65, 0.5),
    ("abcd", HALF, 1, 700, 0.5, 0.85, 0.5),
    ("abcd", 168.0, 0, 1000, 0.367879441171, 0.760363832351, 0.380181916176),
    ("a", 24.0, 1, 120, 0.866877899750, 0.510063369925, 0.455413723147),
    ("", 0.0, 0, 250, 1.0, 0.35, 0.28),
]


@pytest.mark.parametrize(("entities", "age", "cites", "cost", "recency", "benefit", "score"), GOLDEN)
def test_check_07_the_golden_rows_come_out(
    entities: str, age: float, cites: int, cost: int, recency: float, benefit: float, score: float
) -> None:
    one = make_candidate("x", entities, age, cites, cost)
    assert formula.recency_of_age(3600 * age) == pytest.approx(recency, abs=1e-9)
    chosen = choose_fragments([one], profile="published")
    assert chosen.benefits["x"] == pytest.approx(benefit, abs=1e-9)
    assert chosen.scores["x"] == pytest.approx(score, abs=1.1e-9)


@pytest.mark.parametrize("profile", PROFILES)
def test_check_08_without_a_gaze_there_is_no_overlap_and_no_coverage(profile: Profile) -> None:
    chosen = choose_fragments(SET_T, gaze="", profile=profile)
    assert chosen.coverage is None
    assert len(chosen.fragments) == 4
    assert chosen.benefits["G"] == pytest.approx(0.3 * 0.5 + 0.1, abs=1e-9)


@pytest.mark.parametrize("profile", PROFILES)
def test_check_09_an_entity_that_is_listed_twice_counts_once(profile: Profile) -> None:
    once, twice = (choose_fragments([make_candidate("x", said)], profile=profile) for said in ("a", "aa"))
    assert once.scores == twice.scores
    assert once.coverage == twice.coverage == 0.25


@pytest.mark.parametrize(
    ("tokens", "expected", "used", "coverage"),
    [
        (1000, "BFD", 950, 1.0),
        (400, "B", 400, 0.5),
        (399, "F", 300, 0.5),
        (299, "D", 250, 0.0),
        (249, "", 0, 0.0),
        (1650, "BFGD", 1650, 1.0),
        (8000, "BFGD", 1650, 1.0),
    ],
)
def test_check_10_set_t_is_chosen_as_published(
    tokens: int, expected: str, used: int, coverage: float
) -> None:
    chosen = choose_fragments(SET_T, tokens=tokens, profile="published")
    assert (chosen_ids(chosen), chosen.used_tokens, chosen.coverage) == (expected, used, coverage)
    assert {one.id for one in chosen.rejected} == set("BFGD") - set(expected)


# ── always ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def random_set(rng: random.Random) -> tuple[list[Candidate], dict[str, object]]:
    """Return candidates of all sorts, ids that repeat and costs that are lied about among them, and what to ask."""
    found: list[Candidate] = []
    for number in range(rng.randint(0, 25)):
        entities = tuple(rng.choices("abcdefgh", k=rng.randint(0, 5)))
        variants = [
            Variant(lod=lod, text="v " * rng.randint(0, 800), cost_tokens=rng.choice((0, 10, 700)))
            for lod in Lod
            if rng.random() < 0.4
        ]
        found.append(
            Candidate(
                id=f"c{rng.randint(0, number + 3)}",
                source=rng.choice(tuple(Layer)),
                lod=rng.choice(tuple(Lod)),
                text=None if rng.random() < 0.3 else "w " * rng.choice((0, 5, 40, 1500)),
                entities=entities,
                cost_tokens=rng.choice((0, 1, 100, rng.randint(0, 5000))),
                timestamp=None
                if rng.random() < 0.2
                else NOW - timedelta(hours=rng.choice((-5, 0, 0, 24, rng.uniform(0, 900)))),
                citations=("r",) * rng.randint(0, 2),
                variants=tuple(variants),
                relevance=rng.choice((None, 0.0, 0.5, rng.random())),
            )
        )
    asked: dict[str, object] = {
        "gaze": tuple(rng.sample("abcdefgh", rng.randint(0, 8))),
        "tokens_max": rng.choice((0, 1, rng.randint(0, 8000))),
        "risk": rng.choice(tuple(RiskLevel)),
        "order": rng.choice(("selection", "lod")),
    }
    return found, asked


def hold_random_sets(count: int, shuffles: int) -> None:
    """Check what must hold of every selection, on random sets of candidates."""
    for seed in range(count):
        rng = random.Random(seed)
        candidates, asked = random_set(rng)
        for profile in PROFILES:
            chosen = choose_fragments(candidates, profile=profile, **asked)
            said = f"seed {seed}, {profile}"
            assert sum(one.cost_tokens for one in chosen.fragments) == chosen.used_tokens, said
            assert chosen.used_tokens <= asked["tokens_max"], said
            assert all(one.cost_tokens >= count_words(one.text or "") for one in chosen.fragments), said
            shown = [one.id for one in chosen.fragments]
            assert len(shown) == len(set(shown)), said
            left = [one.id for one in chosen.rejected if one.rule != "duplicate"]
            assert sorted([*shown, *left]) == sorted({one.id for one in candidates}), said
            covered = set(asked["gaze"]) & {name for one in chosen.fragments for name in one.entities}
            assert chosen.coverage == (len(covered) / len(asked["gaze"]) if asked["gaze"] else None), said
            first = selection_as_wire(chosen)
            for _ in range(shuffles):
                rng.shuffle(candidates)
                assert selection_as_wire(choose_fragments(candidates, profile=profile, **asked)) == first, (
                    said
                )


@pytest.mark.parametrize("profile", PROFILES)
def test_check_11_a_thousand_shuffles_give_the_same_bytes(profile: Profile) -> None:
    rng = random.Random(11)
    candidates, _ = random_set(random.Random(4))
    candidates = [*candidates, *SET_T]
    first = selection_as_wire(choose_fragments(candidates, tokens=2000, profile=profile))
    for _ in range(1000):
        rng.shuffle(candidates)
        assert selection_as_wire(choose_fragments(candidates, tokens=2000, profile=profile)) == first


def test_checks_11_12_14_hold_for_random_sets_of_candidates() -> None:
    """The first 400 of the sets; all 10,000: `pytest -m slow tests/contract/test_selection.py`."""
    hold_random_sets(400, shuffles=2)


@pytest.mark.slow
def test_checks_11_12_14_hold_for_ten_thousand_random_sets_of_candidates() -> None:
    hold_random_sets(10_000, shuffles=3)


@pytest.mark.parametrize("profile", PROFILES)
def test_check_13_a_cost_that_is_claimed_too_low_is_counted_again(profile: Profile) -> None:
    liar = make_candidate("liar", "a", cost=10, text="word " * 500)
    assert choose_fragments([liar], tokens=499, profile=profile).fragments == ()
    chosen = choose_fragments([liar], tokens=500, profile=profile)
    assert chosen.used_tokens == chosen.fragments[0].cost_tokens == 500
    short = replace(liar, variants=(Variant(lod=Lod.MACRO, text="word " * 300, cost_tokens=1),))
    assert choose_fragments([short], tokens=299, profile=profile).fragments == ()


def test_check_13_a_cost_that_is_claimed_too_high_is_believed() -> None:
    assert choose_fragments([make_candidate("x", "a", cost=80, text="three words here")]).used_tokens == 80


def test_check_14_the_sum_and_the_coverage_are_those_of_the_fragments() -> None:
    chosen = choose_fragments(
        [make_candidate("x", "ab", cost=300), make_candidate("y", "bxz", cost=20)], gaze="abcd"
    )
    assert chosen.used_tokens == 320
    assert chosen.coverage == 0.5


@pytest.mark.parametrize("profile", PROFILES)
def test_check_15_ties_go_to_the_fresher_the_more_cited_the_smaller_the_lesser_id(profile: Profile) -> None:
    ahead, now, cited = -2.0, -1.0, {"cites": 2}  # what lies ahead is not fresher than new by the score
    candidates = [
        make_candidate("d", "a", now, 1, 100),
        make_candidate("c", "a", now, 1, 100),
        make_candidate("b", "a", now, **cited, cost=100),
        make_candidate("e", "a", ahead, 1, 100),
    ]
    chosen = choose_fragments(candidates, gaze="a", profile=profile)
    assert len(set(chosen.scores.values())) == 1
    assert chosen_ids(chosen) == "ebcd"
    # Of no benefit at all, so that the cost does not show in the score.
    sizes = [
        make_candidate("a", age=None, cost=9),
        make_candidate("z", age=None, cost=8),
        make_candidate("y", age=None, cost=9),
    ]
    assert chosen_ids(choose_fragments(sizes, gaze="a", risk=RiskLevel.HIGH, profile=profile)) == "zay"


@pytest.mark.parametrize("profile", PROFILES)
def test_check_16_what_does_not_fit_comes_as_its_title(profile: Profile) -> None:
    one = make_candidate(
        "x",
        "a",
        lod=Lod.ATOMIC,
        text="word " * 900,
        variants=(
            Variant(lod=Lod.MACRO, text="a short title", cost_tokens=2),
            Variant(lod=Lod.MICRO, text="word " * 200, cost_tokens=200),
        ),
    )
    for tokens, lod, used in ((899, Lod.MICRO, 200), (199, Lod.MACRO, 3), (900, Lod.ATOMIC, 900)):
        chosen = choose_fragments([one], tokens=tokens, profile=profile)
        assert [(found.lod, found.cost_tokens) for found in chosen.fragments] == [(lod, used)]


def test_check_17_ten_thousand_candidates_are_chosen_from() -> None:
    """Speed is measured by benchmarks/selection.py; here all of them must be accounted for."""
    rng = random.Random(17)
    many = [
        make_candidate(
            f"{n}", "".join(rng.sample("abcdefgh", 3)), rng.uniform(0, 900), n % 3, rng.randint(1, 300)
        )
        for n in range(10_000)
    ]
    chosen = choose_fragments(many, gaze="abcd", tokens=4000)
    assert len(chosen.fragments) + len(chosen.rejected) == 10_000
    assert 3900 < chosen.used_tokens <= 4000


# ── risk, duplicates, order ─────────────────────────────────────────────────────────────────────────────────────────


def test_where_the_risk_is_high_what_cites_nothing_earns_nothing_by_it() -> None:
    for risk, benefit in ((RiskLevel.LOW, 0.95), (RiskLevel.MEDIUM, 0.95), (RiskLevel.HIGH, 0.9)):
        chosen = choose_fragments([make_candidate("x", "abcd")], risk=risk, profile="published")
        assert chosen.benefits["x"] == pytest.approx(benefit)
    assert choose_fragments([make_candidate("x", "abcd", cites=1)], risk=RiskLevel.HIGH).benefits[
        "x"
    ] == pytest.approx(1.0)


def test_of_two_with_the_same_id_the_fresher_is_kept_then_the_cheaper() -> None:
    old, new = make_candidate("x", "a", 5, cost=1), make_candidate("x", "a", 1, cost=9)
    cheap = replace(new, cost_tokens=7)
    chosen = choose_fragments([old, new, cheap])
    assert chosen.used_tokens == 7
    assert [(one.id, one.rule, one.cost) for one in chosen.rejected] == [
        ("x", "duplicate", 9),
        ("x", "duplicate", 1),
    ]


def test_a_provider_that_lies_about_relevance_gains_nothing_beyond_full_relevance() -> None:
    for claimed, believed in ((7.0, 1.0), (-1.0, 0.0), (nan, 0.0)):
        one, other = (
            choose_fragments([make_candidate("x", "a", relevance=number)]) for number in (claimed, believed)
        )
        assert one.scores == other.scores


def test_a_time_that_lies_ahead_is_as_fresh_as_now() -> None:
    assert choose_fragments([make_candidate("x", "a", -900)], profile="published").benefits[
        "x"
    ] == pytest.approx(0.5)


def test_fragments_may_come_by_level_of_detail() -> None:
    mixed = [
        make_candidate(f"{n}", "a", n, cost=10, lod=lod)
        for n, lod in enumerate((Lod.ATOMIC, Lod.MICRO, Lod.MACRO))
    ]
    assert chosen_ids(choose_fragments(mixed, profile="published")) == "012"
    assert chosen_ids(choose_fragments(mixed, profile="published", order="lod")) == "210"


def test_entities_are_compared_whatever_their_case() -> None:
    one = replace(make_candidate("x"), entities=("OAuth", "Tokens"))
    assert choose_fragments([one], gaze=("oauth ", "TOKENS", "flow")).coverage == 2 / 3


# ── quality ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_what_is_fresh_and_cited_does_not_displace_what_was_asked_for() -> None:
    junk = [make_candidate(f"junk{n}", "", 0, 2, 100) for n in range(10)]
    old = make_candidate("answer", "a", 5000, 0, 900)
    assert choose_fragments([*junk, old], tokens=1000, profile="published").coverage == 0.0
    chosen = choose_fragments([*junk, old], tokens=1000)
    assert chosen.fragments[0].id == "answer"
    assert len(chosen.fragments) == 2  # junk may fill what is left


def test_an_entity_that_is_covered_counts_less_the_next_time() -> None:
    twins = [
        make_candidate("x", "a", 0, 1, 100),
        make_candidate("y", "a", 0, 1, 100),
        make_candidate("z", "b", 0, 0, 100),
    ]
    assert chosen_ids(choose_fragments(twins, gaze="ab", tokens=200, profile="published")) == "xy"
    chosen = choose_fragments(twins, gaze="ab", tokens=200)
    assert chosen_ids(chosen) == "xz"
    assert chosen.coverage == 1.0


def test_a_provider_that_judges_relevance_is_believed() -> None:
    judged = [
        make_candidate("far", "a", 0, 1, 100, relevance=0.2),
        make_candidate("near", "", 9000, 0, 100, relevance=0.9),
    ]
    assert chosen_ids(choose_fragments(judged, tokens=100, profile="published")) == "far"
    assert chosen_ids(choose_fragments(judged, tokens=100)) == "near"


def test_what_covers_nothing_and_is_hardly_relevant_is_left_out_even_if_there_is_room() -> None:
    offers = [
        make_candidate("near", "", relevance=0.9),
        make_candidate("noise", "", relevance=0.05),
        make_candidate("x", "a", relevance=0.05),
    ]
    chosen = choose_fragments(offers)
    assert sorted(one.id for one in chosen.fragments) == ["near", "x"]
    assert [(one.id, one.rule) for one in chosen.rejected] == [("noise", "irrelevant")]
    assert len(choose_fragments(offers, gaze="").fragments) == 3


def test_what_a_session_offers_as_an_answer_is_never_below_the_cutoff() -> None:
    offers = [
        make_candidate("near", "", relevance=0.9),
        make_candidate("far", "", relevance=0.05, purpose=Purpose.ANSWER),
    ]
    chosen = choose_fragments(offers)
    assert [one.id for one in chosen.fragments] == ["near", "far"]
    assert not chosen.rejected


def test_what_only_fills_comes_last_the_newest_first_then_the_best() -> None:
    offers = [
        make_candidate("good", "ab", 0, 1, 100, relevance=0.8, purpose=Purpose.FILL),
        make_candidate("fair", "ab", 0, 1, 100, relevance=0.6, purpose=Purpose.FILL),
        make_candidate("old", "abcd", 9, 1, 100, purpose=Purpose.FILL),
        make_candidate("new", "", 1, 1, 100, purpose=Purpose.FILL),
        make_candidate("poor", "a", 500, 0, 100, relevance=0.3),
        make_candidate("none", "", 500, 0, 100),
    ]
    order = ["poor", "none", "new", "old", "good", "fair"]
    for fit in range(len(order) + 1):
        chosen = choose_fragments(offers, tokens=100 * fit)
        assert [one.id for one in chosen.fragments] == order[:fit]
    assert {rejected.rule for rejected in choose_fragments(offers, tokens=300).rejected} == {"budget"}


def test_fill_takes_nothing_from_others_and_leaves_no_room_for_what_would_fit() -> None:
    rng = random.Random(7)
    for _ in range(300):
        offers = [
            make_candidate(
                f"o{n}",
                "".join(rng.sample("abcdef", rng.randint(0, 3))),
                rng.choice([0, 5, 400]),
                rng.randint(0, 1),
                rng.randint(0, 900),
                relevance=rng.choice([None, round(rng.random(), 2)]),
                purpose=rng.choice([None, Purpose.ANSWER, Purpose.FILL]),
            )
            for n in range(rng.randint(0, 20))
        ]
        tokens = rng.randint(0, 5000)
        chosen = choose_fragments(offers, tokens=tokens)
        assert chosen.used_tokens == sum(one.cost_tokens for one in chosen.fragments) <= tokens
        others = [one for one in offers if one.purpose is not Purpose.FILL]
        alone = choose_fragments(others, tokens=tokens).fragments
        assert chosen.fragments[: len(alone)] == alone
        left = [one for one in chosen.rejected if one.rule == "budget"]
        assert all(one.cost > tokens - chosen.used_tokens for one in left)
        rng.shuffle(offers)
        assert selection_as_wire(choose_fragments(offers, tokens=tokens)) == selection_as_wire(chosen)


def test_one_large_answer_is_kept_against_many_small_ones_that_say_little() -> None:
    small = [make_candidate(f"s{n}", "", 0, 0, 30, relevance=0.3) for n in range(30)]
    large = make_candidate("large", "", 0, 0, 1000, relevance=0.95)
    assert chosen_ids(choose_fragments([*small, large], tokens=1000)) == "large"


def test_many_good_answers_are_kept_against_one_that_is_hardly_better() -> None:
    small = [make_candidate(f"{n}", "", 0, 0, 100, relevance=0.8) for n in range(9)]
    large = make_candidate("large", "", 0, 0, 1000, relevance=0.95)
    assert len(choose_fragments([*small, large], tokens=1000).fragments) == 9


def candidate_with_renditions(id: str, relevance: float) -> Candidate:
    """Make a candidate of 400 tokens that may also come with 100 or with 5."""
    return make_candidate(
        id,
        relevance=relevance,
        lod=Lod.ATOMIC,
        text="w " * 400,
        variants=(
            Variant(lod=Lod.MICRO, text="w " * 100, cost_tokens=0),
            Variant(lod=Lod.MACRO, text="w " * 5, cost_tokens=0),
        ),
    )


def test_detail_is_given_to_what_answers_best_while_the_rest_is_shortened() -> None:
    chosen = choose_fragments(
        [
            candidate_with_renditions("best", 0.9),
            candidate_with_renditions("good", 0.8),
            candidate_with_renditions("fair", 0.7),
        ],
        tokens=620,
    )
    assert {one.id: one.lod for one in chosen.fragments} == {
        "best": Lod.ATOMIC,
        "good": Lod.MICRO,
        "fair": Lod.MICRO,
    }
    assert chosen.fragments[0].id == "best"


def test_all_come_in_full_where_there_is_room() -> None:
    chosen = choose_fragments(
        [candidate_with_renditions("x", 0.9), candidate_with_renditions("y", 0.1)], gaze="", tokens=800
    )
    assert [one.lod for one in chosen.fragments] == [Lod.ATOMIC, Lod.ATOMIC]


def test_a_longer_rendition_than_the_offered_one_is_taken_where_there_is_room() -> None:
    one = make_candidate(
        "x", "a", text="w " * 9, variants=(Variant(lod=Lod.ATOMIC, text="w " * 50, cost_tokens=0),)
    )
    assert choose_fragments([one], profile="published").used_tokens == 9
    assert choose_fragments([one]).used_tokens == 50


def test_a_rendition_that_says_less_than_a_cheaper_one_is_never_taken() -> None:
    one = make_candidate(
        "x", "a", lod=Lod.ATOMIC, text="w " * 50, variants=(Variant(lod=Lod.MICRO, text="w", cost_tokens=60),)
    )
    assert choose_fragments([one], tokens=55).fragments[0].lod is Lod.ATOMIC
    assert choose_fragments([one], tokens=49).fragments == ()


def test_lazy_choice_by_score_is_the_choice_of_a_full_search() -> None:
    """Taking the best of a heap repeatedly gives the same result as comparing all candidates."""
    for seed in range(200):
        rng = random.Random(seed)
        offers = [
            make_candidate(
                f"{n}", "".join(rng.sample("abcdef", rng.randint(1, 4))), rng.uniform(0, 500), n % 2, 100
            )
            for n in range(8)
        ]
        chosen = choose_fragments(
            offers, gaze="abcdef", tokens=10_000
        )  # all of them: the order is what counts
        covered: set[str] = set()
        rest = {one.id: one for one in offers}
        for fragment in chosen.fragments:

            def gain(one: Candidate, covered: set[str] = covered) -> float:
                asked = set(one.entities)
                assert one.timestamp is not None
                recency = formula.recency_of_age((NOW - one.timestamp).total_seconds())
                static = 0.3 * recency + 0.1 * formula.score_citations(one, RiskLevel.MEDIUM)
                return (0.6 * (len(asked) - len(asked & covered) / 2) + static * len(asked)) / 6 / 1.1

            assert gain(rest.pop(fragment.id)) >= max(map(gain, rest.values()), default=0.0) - 2e-9
            covered |= set(fragment.entities)
