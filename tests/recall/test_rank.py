"""Rank: the fields against an implementation written from the formula, and what must and must never enter a score."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acms.model import Entry, Role
from acms.recall.corpus import NEAR, WEIGHTS, Field, Weights
from acms.recall.index import DAY
from acms.recall.rank import FLOOR, Question, Ranking, alike, by_words, largest, rank, unnamed
from acms.text.markers import boost
from acms.text.tokenizer import day_terms, found_by, tally, terms, words
from tests.support.indexes import field_of
from tests.support.logs import NOON, entry
from tests.support.stories import QUERIES, randoms, told

texts = st.lists(
    st.sampled_from("orders database postgres cache redis blue deploy friday ?".split()), max_size=12
).map(" ".join)


def said(*contents: str, **given: Any) -> list[Entry]:
    """Messages one second apart."""
    return [entry(version, content, **given) for version, content in enumerate(contents, 1)]


def ranked(query: str, *contents: str) -> list[float]:
    """The relevance of each of some messages."""
    field = field_of(said(*contents))
    found = rank(field, Question.of(query))
    return [found.relevance(place) for place in range(len(field))]


def best(found: Ranking) -> int:
    return int(found.places[0])


# ── the formula ─────────────────────────────────────────────────────────────────────────────────────────────────────


def formula(query: str, entries: Sequence[Entry]) -> list[tuple[float, float]]:
    """What each entry in force says of what is asked, and its neighbourhood, by BM25 and nothing else."""
    counts: list[Counter[int]] = []
    length: list[int] = []
    for one in entries:
        day = int(one.created_at.timestamp()) // 60 // DAY
        actor = found_by(one.actor) if one.actor else []
        said = tally(words(one.content))
        counts.append(Counter([*Counter(said).elements(), *day_terms(day), *actor]))
        length.append(counts[-1].total())
        counts[-1].update([number for number, count in said.items() if not count])
    size, given = len(entries), WEIGHTS
    norms = [1 - given.b + (long + 1) * given.b / given.length for long in length]
    found = [(0.0, 0.0)] * size
    for number in dict.fromkeys(terms(words(query))):
        holders = sum(number in count for count in counts)
        weight = math.log(1 + (size - holders + 0.5) / (holders + 0.5)) ** given.rarity
        density = [count[number] / norm for count, norm in zip(counts, norms, strict=True)]
        for place in range(size):
            around = range(max(0, place - NEAR), min(size, place + NEAR + 1))
            near = sum(density[other] / max(1, abs(other - place)) for other in around)
            found[place] = (
                found[place][0] + weight * density[place] / (density[place] + given.k),
                found[place][1] + given.near * weight * near / (near + given.k),
            )
    return found


def agree(field: Field, entries: Sequence[Entry], query: str) -> None:
    found = by_words(field, Question.of(query))
    expected = formula(query, entries)
    assert list(zip(found.message.tolist(), found.near.tolist(), strict=True)) == [
        pytest.approx(one, abs=1e-3) for one in expected
    ]


@given(randoms, st.integers(0, 60), st.sampled_from(QUERIES))
def test_words_are_weighed_by_the_formula(random: Random, steps: int, query: str) -> None:
    log = told(random, steps, erasing=False)
    agree(field_of(log.entries), log.sequence(), query)


@given(st.lists(st.tuples(st.integers(0, 299), texts), max_size=12), texts)
def test_rare_words_of_a_long_log_are_weighed_by_the_same_formula(
    put: list[tuple[int, str]], query: str
) -> None:
    """A word in less than one of forty entries takes another path through the window."""
    contents = ["nothing here"] * 300
    for place, text in put:
        contents[place] = text
    entries = [entry(n, text, created_at=NOON + timedelta(hours=n)) for n, text in enumerate(contents, 1)]
    agree(field_of(entries), entries, query)


@pytest.mark.parametrize("place", [0, 1, 2, 150, 297, 298, 299])
def test_a_rare_word_reaches_its_neighbourhood_and_no_further(place: int) -> None:
    contents = ["nothing here"] * 300
    contents[place] = "orders"
    near = by_words(field_of(said(*contents)), Question.of("orders")).near
    assert np.flatnonzero(near).tolist() == list(range(max(0, place - NEAR), min(300, place + NEAR + 1)))


@pytest.mark.parametrize("place", range(0, 40, 3))
def test_every_word_of_a_long_query_counts(place: int) -> None:
    asked = [f"word{n}" for n in range(40)]
    contents = ["nothing here"] * 30
    contents[11] = f"it is {asked[place]}"
    agree(field_of(said(*contents)), said(*contents), " ".join(asked))
    found = ranked(" ".join(asked), *contents)
    assert [found.index(max(found)), sum(one > 0 for one in found)] == [11, 1]


def test_the_best_entries_lend_the_words_that_set_them_apart() -> None:
    gap = ["nothing at all was said"] * 8
    contents = ["the orders live in postgres", *gap, "postgres was upgraded", *gap, "lunch was late", *gap]
    found = rank(field_of(said(*contents)), Question.of("orders"))
    assert found.parts(9).keys() == {"feedback"}
    assert found.relevance(9) == 0  # it ranks, and is no evidence
    assert found.score(9) > found.score(18) == 0


# ── what enters a score ─────────────────────────────────────────────────────────────────────────────────────────────


@given(randoms, st.integers(0, 40), st.text(max_size=40) | st.sampled_from(QUERIES))
def test_relevance_and_score_stay_within_zero_and_one(random: Random, steps: int, query: str) -> None:
    log = told(random, steps)
    field = field_of(log.entries)
    found = rank(field, Question.of(query))
    for place in range(len(field)):
        assert 0 <= found.relevance(place) <= 1
        for raised in (0.0, 0.7, 16 * 0.4):
            assert 0 <= found.score(place, raised) < 1
        assert found.score(place, 0.3) >= found.score(place)
        assert all(0 < part <= 1 for part in found.parts(place).values())
    assert len(set(found.places.tolist())) == len(found.places)
    assert all(found.score(place) > 0 for place in found.places.tolist())


@given(st.text(max_size=40), st.lists(st.text(max_size=60), max_size=6))
def test_any_text_can_be_asked_and_answered(query: str, contents: list[str]) -> None:
    assert all(0 <= one <= 1 for one in ranked(query, *contents))


def test_statistics_are_those_of_exactly_the_entries_given() -> None:
    before = ["orders database postgres", "cache redis", "blue theme"]
    (first, *_) = ranked("which database", *before)
    assert ranked("which database", *before, *["database again"] * 5)[0] != first
    assert ranked("which database", *before)[0] == first


def test_a_rare_word_weighs_more_than_a_common_one() -> None:
    gap = ["nothing"] * 4
    scores = ranked("database orders", "orders blue", *gap, "database blue", *gap, *["database x"] * 5)
    assert scores[0] > scores[5] > 0


def test_words_meet_in_all_their_forms() -> None:
    assert ranked("deploying databases", "we deployed the database", "nothing here")[0] > 0
    assert ranked("DATABASE", "database", "x")[0] > 0


def test_stop_words_alone_do_not_make_a_match() -> None:
    scores = ranked("what did we choose for the orders", "what did we do for the cache", *"abcd", "orders")
    assert scores[0] == 0
    assert scores[-1] > 0


def test_a_query_of_stop_words_finds_a_text_of_them() -> None:
    assert ranked("to be", "to be or not to be", *"abcd", "orders")[0] > 0


@pytest.mark.parametrize(
    ("query", "text"), [("données", "les données sont là"), ("数据库", "数据库"), ("база", "база данных")]
)
def test_words_of_other_scripts_are_found(query: str, text: str) -> None:
    assert ranked(query, text, *"abcd", "rien")[0] > 0
    assert ranked(query, text, *"abcd", "rien")[-1] == 0


@pytest.mark.parametrize("query", ["", "   ", "?!", "🙂"])
def test_a_query_without_a_word_finds_nothing(query: str) -> None:
    assert ranked(query, "orders database", "") == [0.0, 0.0]


@pytest.mark.parametrize("contents", [[], ["orders"], [""], ["", ""], ["", "", "orders"], ["?", "?"]])
@pytest.mark.parametrize("query", ["orders", "", "zanzibar"])
def test_the_smallest_logs_are_ranked_without_a_warning(query: str, contents: list[str]) -> None:
    field = field_of(said(*contents))
    found = rank(field, Question.of(query))
    assert set(found.places.tolist()) <= set(range(len(contents)))
    asked = Question.of(query, "s", np.array([1, 0], np.float32))
    found = rank(field, asked)
    assert found.coverage == (0.0 if any(contents) else 1.0)  # an entry without a text lacks no vector
    assert alike(field, found) == list(range(len(found.places)))


def test_a_question_of_unknown_words_is_answered_less_by_the_few_that_are_known() -> None:
    gap = ["nothing"] * 5
    assert ranked("orders", "orders", *gap)[0] == ranked("orders zanzibar", "orders", *gap)[0] == 1
    unknown = " ".join(f"zanzibar{n}" for n in range(20))
    found = rank(field_of(said("orders", *gap)), Question.of(f"orders {unknown}"))
    assert found.measure == FLOOR
    assert 0 < found.relevance(0) < 0.5  # the best of all is not an answer for that
    assert ranked("zanzibar", "orders", *gap) == [0.0] * 6


def test_when_it_was_said_and_who_spoke_are_searchable() -> None:
    entries = [
        entry(1, "we painted a sunrise", actor="Melanie", created_at=NOON),
        *(entry(n, "x", actor="Sam", created_at=NOON + timedelta(days=100 * n)) for n in range(2, 8)),
    ]
    for query in ("What did Melanie do?", "what happened in March 2026?", "on the 14th, 14 March"):
        assert best(rank(field_of(entries), Question.of(query))) == 0


def test_a_speaker_who_is_named_comes_first() -> None:
    entries = [
        entry(version, "I like the blue one", actor=actor)
        for version, actor in enumerate(["Sam", "Sam", "Melanie", "Sam", "Sam", "Melanie", "Sam", "Sam"], 1)
    ]
    found = rank(field_of(entries), Question.of("what does melanie like, blue?"))
    assert set(found.places[:2].tolist()) == {2, 5}


def test_who_is_named_counts_for_more_than_who_names() -> None:
    """Of two who say the same the one who is asked about gains more than the word of the name is worth."""
    actors = ["Sam", "Melanie"] * 4
    entries = [entry(n, "the blue one", actor=actor) for n, actor in enumerate(actors, 1)]
    found = rank(field_of(entries), Question.of("does Melanie like blue?"))
    worth = [-math.log(1 - found.score(place)) for place in range(8)]
    assert min(worth[1::2]) > WEIGHTS.named * max(worth[::2]) > 0


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("What does Melanie paint?", "What does paint?"),
        ("What is Melanie's plan for Sam?", "What is plan for ?"),
        ("What does melanie like?", "What does melanie like?"),
        ("Melanie", "Melanie"),
        ("what is  blue?", "what is  blue?"),
    ],
)
def test_names_of_speakers_are_taken_out_of_a_query_that_asks_for_more(query: str, expected: str) -> None:
    assert unnamed(query, ["Sam", "Melanie"]) == expected
    assert unnamed(query, []) == query


def test_other_weights_are_those_of_a_field() -> None:
    field = field_of(said("orders", "nothing", "you"))
    other = Field(field.snapshot, field.cover, Weights(near=0.0))
    one, two = (rank(held, Question.of("orders")) for held in (field, other))
    assert one.score(1) > two.score(1)


def test_naming_everybody_names_nobody() -> None:
    entries = [entry(n, "the blue one", actor=("Sam", "Melanie")[n % 2]) for n in range(1, 9)]
    field = field_of(entries)
    found = rank(field, Question.of("do Sam and Melanie like blue?"))
    plain = rank(field, Question.of("do Sam and Melanie like blue? Sam"))
    assert [found.score(place) for place in range(8)] == [plain.score(place) for place in range(8)]
    assert max(found.score(n) for n in range(2, 6)) < 1.01 * min(found.score(n) for n in range(2, 6))


def test_a_speaker_who_comes_later_does_not_change_the_past() -> None:
    """The labels of a segment may know of speakers that a prefix has never heard."""
    from acms.recall.index import Snapshot
    from tests.support.indexes import built, cover_of, packed, snapshot
    from tests.support.logs import CONTEXT

    entries = [entry(n, "the blue one", actor="Sam") for n in range(1, 5)]
    later = [*entries, entry(5, "green", actor="Melanie")]
    asked = Question.of("does Sam like blue?")
    then = rank(Field(snapshot(built(packed(entries))), cover_of(entries)), asked)
    at = rank(Field(Snapshot([(CONTEXT, built(packed(later)), 4)]), cover_of(entries)), asked)
    assert [at.score(place) for place in range(4)] == [then.score(place) for place in range(4)]


def test_a_terse_speaker_gains_on_a_verbose_one() -> None:
    def spoken(terse: str) -> Ranking:
        entries = [
            entry(n, "one two three four five six seven eight " * 6 if n % 2 else "fine", role=Role.ASSISTANT)
            if n % 2
            else entry(n, "fine")
            for n in range(1, 41)
        ]
        for version, text in ((10, "blue orders"), (31, "blue orders")):
            role = Role.USER if (version == 10) == (terse == "user") else Role.ASSISTANT
            entries[version - 1] = entry(version, text, role=role)
        return rank(field_of(entries), Question.of("blue orders"))

    assert best(spoken("user")) == 9
    assert best(spoken("assistant")) == 30


def test_age_does_not_enter() -> None:
    """Decision 0007: the same words in the same surroundings weigh the same wherever they stand."""
    gap = ["nothing"] * 6
    scores = ranked("orders", *gap, "orders", *gap, "orders", *gap)
    assert scores[6] == scores[13] > 0


def test_markers_raise_relevance_but_never_make_it() -> None:
    found = rank(field_of(said("orders", *["x"] * 5)), Question.of("orders"))
    assert found.score(5, 1.4) == found.score(5)
    assert found.score(0, boost(("constraint",))) > found.score(0, boost(("failure",))) > found.score(0)


def test_an_exact_word_comes_first_among_a_thousand() -> None:
    random = Random(7)
    vocabulary = [f"w{n}" for n in range(400)]
    contents = [" ".join(random.choices(vocabulary, k=20)) for _ in range(1000)]
    contents[617] = "the code is xk47"
    assert best(rank(field_of(said(*contents)), Question.of("what was xk47?"))) == 617


# ── saying the same ─────────────────────────────────────────────────────────────────────────────────────────────────


def collapsed(*contents: str, query: str = "orders") -> list[int]:
    """For each message the best one that says the same."""
    field = field_of(said(*contents))
    found = rank(field, Question.of(query))
    better = alike(field, found)
    places = found.places.tolist()
    best = {place: places[better[index]] for index, place in enumerate(places)}
    return [best[place] for place in range(len(contents))]


def test_the_same_words_collapse_into_the_best() -> None:
    found = collapsed("the orders database", "x", "Database: the orders!", "y", "the orders database")
    assert found[0] == found[2] == found[4]
    assert found[0] in (0, 2, 4)
    assert (found[1], found[3]) == (1, 3)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("orders take 5 days", "orders take 6 days"),
        ("orders will ship", "orders will not ship"),
        ("orders ship on friday", "orders never ship on friday"),
        ("switch orders on", "switch orders off"),
        ("orders", "orders cache"),
    ],
)
def test_what_differs_in_a_number_or_a_negation_does_not_collapse(one: str, other: str) -> None:
    assert collapsed(one, "x", other) == [0, 1, 2]


def test_texts_without_a_word_do_not_collapse() -> None:
    assert collapsed("🙂", "🙂", "", "", query="March 2026") == [0, 1, 2, 3]


def test_a_small_budget_keeps_few_candidates_and_all_that_are_marked() -> None:
    log = [entry(1, "orders " + "far away " * 200, markers=("goal",), tokens=400)]
    log += [entry(version, f"orders {version}", tokens=3) for version in range(2, 301)]
    found = rank(field_of(log), Question.of("orders"))
    assert len(found.places) == 257  # the best, and the marked one behind them
    found.keep(10)
    assert len(found.places) == 65
    assert 0 in found.places.tolist()
    everything = rank(field_of(log), Question.of("orders"))
    everything.keep(10**9)
    assert len(everything.places) == 257


@given(
    random=randoms,
    held=st.integers(0, 3),
    marker=st.sampled_from(["decision", "constraint", "goal", "failure", "custom:x"]),
    chatter=st.integers(0, 30),
    extra=st.integers(0, 8),
)
def test_a_marker_never_puts_half_an_answer_above_an_exact_one(
    random: Random, held: int, marker: str, chatter: int, extra: int
) -> None:
    asked = ["orders", "database", "postgres", "friday", "redis"]
    spare = "lunch rain train window paper kettle garden bridge violin".split()
    exact = " ".join(random.sample(asked, 5) + random.sample(spare, extra))
    half = " ".join(random.sample(asked, held) + random.sample(spare, random.randint(1, 8)))
    log = [" ".join(random.sample(spare, random.randint(1, 5))) for _ in range(chatter)]
    gap = ["lunch"] * (NEAR + 1)  # what stands beside the exact one is worth almost as much
    log[random.randint(0, len(log)) : 0] = [
        *gap,
        *random.choice([(exact, *gap, half), (half, *gap, exact)]),
        *gap,
    ]
    field = field_of(said(*log))
    found = rank(field, Question.of(" ".join(asked)))
    raised = boost([marker])
    right, wrong = found.score(log.index(exact)), found.score(log.index(half), raised)
    assert right > wrong
    if wrong:
        assert wrong >= found.score(log.index(half))  # and they never lower one


def test_of_equals_the_marked_one_comes_first() -> None:
    texts = ["orders database postgres", *["lunch"] * 9, "orders database postgres", *["lunch"] * 9]
    found = rank(field_of(said(*texts)), Question.of("orders database postgres friday"))
    assert found.score(10, boost(("decision",))) > found.score(0)


@given(
    st.integers(1, 6_000),
    st.sampled_from((1, 7, 64, 256)),
    st.sampled_from((2, 50, 1 << 30)),
    st.integers(0, 999),
)
def test_the_largest_values_are_found_in_any_order_and_where_many_are_equal(
    count: int, size: int, levels: int, seed: int
) -> None:
    shuffled = np.random.default_rng(seed).integers(0, levels, count).astype(np.float32)
    for values in (shuffled, np.sort(shuffled), np.sort(shuffled)[::-1]):
        places = largest(values, size)
        assert len(set(places.tolist())) == len(places)
        assert sorted(values[places].tolist()) == sorted(values.tolist())[-size:]
