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
from acms.recall.weights import WEIGHTS, Weights
from hypothesis import given, settings
from hypothesis import strategies as st

from acms.model import Entry, Role
from acms.recall.corpus import AFTER, BEFORE, Field
from acms.recall.index import DAY
from acms.recall.rank import TERMS, Question, Ranking, alike, by_words, largest, rank, unnamed
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


def formula(query: str, entries: Sequence[Entry]) -> list[dict[str, float]]:
    """The four fields of each entry in force, from the words of the docstring and nothing else."""
    counts: list[Counter[int]] = []
    days: list[int] = []
    length: list[int] = []
    for one in entries:
        day = int(one.created_at.timestamp()) // 60 // DAY
        actor = found_by(one.actor) if one.actor else []
        said = tally(words(one.content))
        counts.append(Counter([*Counter(said).elements(), *day_terms(day), *actor]))
        length.append(counts[-1].total())
        counts[-1].update([number for number, count in said.items() if not count])
        days.append(day)
    size = len(entries)
    holders = {
        number: sum(number in count for count in counts) for number in dict.fromkeys(terms(words(query)))
    }
    known = sorted((n for n in holders if holders[n]), key=lambda n: (holders[n], n))[:TERMS]
    idf = {n: math.log(1 + (size - holders[n] + 0.5) / (holders[n] + 0.5)) for n in holders}
    most = sum(idf[n] for n in known) + sum(idf[n] for n in holders if not holders[n])
    scale = 1 / (most * WEIGHTS.words) if known else 0.0

    def bm25(places: Sequence[int], full: float) -> float:
        room = WEIGHTS.floor + sum(length[place] for place in places) / full
        found = 0.0
        for n in known:
            times = sum(counts[place][n] for place in places)
            found += idf[n] * times / (times + room)
        return found

    everything: list[dict[str, float]] = []
    for place in range(size):
        window = range(max(0, place - BEFORE), min(size, place + AFTER + 1))
        day = [other for other in range(size) if days[other] == days[place]]
        asked = place > 0 and entries[place - 1].content.rstrip().endswith("?")
        fields = {
            "message": bm25([place], WEIGHTS.length),
            "window": bm25(window, WEIGHTS.length),
            "day": bm25(day, WEIGHTS.day_length),
            "question": bm25([place - 1], WEIGHTS.length) if asked else 0.0,
        }
        if length[place] <= WEIGHTS.few and not any(counts[place][n] for n in known):
            fields["window"] *= WEIGHTS.remark
        everything.append({name: value * getattr(WEIGHTS, name) * scale for name, value in fields.items()})
    return everything


def agree(field: Field, entries: Sequence[Entry], query: str) -> None:
    found = by_words(field, Question.of(query).terms)
    for place, expected in enumerate(formula(query, entries)):
        for name, value in expected.items():
            assert float(found.fields[name][place]) == pytest.approx(value, abs=1e-5), (name, place)


@settings(max_examples=60)
@given(randoms, st.integers(0, 60), st.sampled_from(QUERIES))
def test_words_are_weighed_by_the_formula(random: Random, steps: int, query: str) -> None:
    log = told(random, steps, erasing=False)
    agree(field_of(log.entries), log.sequence(), query)


@settings(max_examples=25)
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
    window = by_words(field_of(said(*contents)), Question.of("orders").terms).fields["window"]
    reached = range(max(0, place - AFTER), min(300, place + BEFORE + 1))
    assert np.flatnonzero(window).tolist() == list(reached)
    assert place != 150 or list(reached) == [149, 150, 151, 152]


def test_days_far_apart_are_kept_apart() -> None:
    entries = [
        entry(n, text, created_at=NOON + timedelta(days=days))
        for n, (text, days) in enumerate(
            [("orders", -70_000), ("cache", -70_000), ("x", 0), ("y", 300_000)], 1
        )
    ]
    agree(field_of(entries), entries, "orders cache")


def test_of_a_long_query_the_rarest_words_count() -> None:
    contents = [" ".join(f"word{n}" for n in range(min(place, 20))) for place in range(1, 30)]
    entries = said(*contents)
    query = " ".join(f"word{n}" for n in range(20))
    agree(field_of(entries), entries, query)
    assert by_words(field_of(entries), Question.of(query).terms).known == TERMS


# ── what enters a score ─────────────────────────────────────────────────────────────────────────────────────────────


@settings(max_examples=60)
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
    assert sorted(found.places.tolist()) == list(range(len(field)))


@given(st.text(max_size=40), st.lists(st.text(max_size=60), max_size=6))
def test_any_text_can_be_asked_and_answered(query: str, contents: list[str]) -> None:
    assert all(0 <= one < 1 for one in ranked(query, *contents))


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
    assert len(rank(field, Question.of(query)).places) == len(contents)
    asked = Question.of(query, "s", np.array([1, 0], np.float32))
    found = rank(field, asked)
    assert len(found.places) == len(contents)
    assert found.coverage == (0.0 if any(contents) else 1.0)  # an entry without a text lacks no vector
    assert alike(field, found) == list(range(len(contents)))


def test_a_question_of_unknown_words_is_answered_less_by_the_few_that_are_known() -> None:
    gap = ["nothing"] * 5
    known = ranked("orders", "orders", *gap)[0]
    less = ranked("orders zanzibar", "orders", *gap)[0]
    assert 0 < less < known / 2
    assert ranked("zanzibar", "orders", *gap) == [0.0] * 6


def test_when_it_was_said_and_who_spoke_are_searchable() -> None:
    entries = [
        entry(1, "we painted a sunrise", actor="Melanie", created_at=NOON),
        *(entry(n, "x", actor="Sam", created_at=NOON + timedelta(days=100 * n)) for n in range(2, 8)),
    ]
    for query in ("What did Melanie do?", "what happened in March 2026?", "on the 14th, 14 March"):
        assert best(rank(field_of(entries), Question.of(query))) == 0


def test_the_answer_to_a_question_is_found_by_the_words_of_the_question() -> None:
    gap = ["nothing at all"] * 6
    contents = [*gap, "Which database do we use?", "Postgres.", *gap]
    field = field_of(said(*contents))
    found = rank(field, Question.of("database"))
    assert found.places[:2].tolist() == [6, 7]
    assert found.parts(7)["question"] > 0
    assert "question" not in found.parts(8)


def test_a_remark_in_passing_has_less_of_what_is_said_around_it() -> None:
    gap = ["apples pears plums cherries lemons limes figs dates"] * 6
    contents = [*gap, "the orders are in Postgres", "Nice story.", *gap]
    window = rank(field_of(said(*contents)), Question.of("orders"))
    assert window.parts(7)["window"] < window.parts(5)["window"]
    asked = rank(field_of(said(*contents)), Question.of("orders story"))
    assert asked.parts(7)["window"] > asked.parts(5)["window"]


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
    gained = [-math.log(1 - found.score(place)) / 2 / found.relevance(place) for place in range(8)]
    assert gained == pytest.approx([1, WEIGHTS.named] * 4, abs=1e-4)
    assert WEIGHTS.named > 1


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


def test_what_is_said_of_the_hearer_or_asked_counts_for_less() -> None:
    found = rank(field_of(said("I like blue", "you like blue", "I like blue?")), Question.of("blue"))
    raised = [-math.log(1 - found.score(place)) / 2 / found.relevance(place) for place in range(3)]
    assert raised == pytest.approx([1, WEIGHTS.addressed, WEIGHTS.asking], abs=1e-4)


@pytest.mark.parametrize(
    ("query", "asks"),
    [
        ("when did I paint?", True),
        ("what day did I paint?", True),
        ("how long did I paint?", True),
        ("what did I paint?", False),
        ("did I paint when it rained?", False),
    ],
)
def test_a_message_that_names_a_time_answers_a_question_for_one(query: str, asks: bool) -> None:
    found = rank(field_of(said("I paint", "I paint yesterday")), Question.of(query))
    raised = [-math.log(1 - found.score(place)) / 2 / found.relevance(place) for place in range(2)]
    assert raised == pytest.approx([1, WEIGHTS.timed if asks else 1], abs=1e-4)


def test_other_weights_are_those_of_a_field() -> None:
    log = said("orders", "orders?", "you")
    field = field_of(log)
    other = Field(field.snapshot, field.cover, field, Weights(asking=0.5, addressed=1.0, length=10.0))
    one, two = (rank(held, Question.of("orders")) for held in (field, other))
    assert two.score(1) < one.score(1)
    assert two.relevance(0) < one.relevance(0)
    assert other.measures.message[0] > field.measures.message[0]


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
    assert found.score(5, 1.4) == 0.0
    assert found.score(0, boost(("constraint",))) > found.score(0, boost(("failure",))) > found.score(0)


def test_an_exact_word_comes_first_among_a_thousand() -> None:
    random = Random(7)
    vocabulary = [f"w{n}" for n in range(400)]
    contents = [" ".join(random.choices(vocabulary, k=20)) for _ in range(1000)]
    contents[617] = "the code is xk47"
    assert best(rank(field_of(said(*contents)), Question.of("what was xk47?"))) == 617


# ── saying the same ─────────────────────────────────────────────────────────────────────────────────────────────────


def collapsed(*contents: str) -> list[int]:
    """For each message the best one that says the same."""
    field = field_of(said(*contents))
    found = rank(field, Question.of("orders"))
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
    assert collapsed("🙂", "🙂", "", "") == [0, 1, 2, 3]


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


@settings(max_examples=60)
@given(
    random=randoms,
    held=st.integers(0, 3),
    markers=st.lists(st.sampled_from(["decision", "constraint", "goal", "failure", "custom:x"]), min_size=1),
    chatter=st.integers(0, 30),
    extra=st.integers(0, 8),
)
def test_markers_never_put_half_an_answer_above_an_exact_one(
    random: Random, held: int, markers: list[str], chatter: int, extra: int
) -> None:
    asked = ["orders", "database", "postgres", "friday", "redis"]
    spare = "lunch rain train window paper kettle garden bridge violin".split()
    exact = " ".join(random.sample(asked, 5) + random.sample(spare, extra))
    half = " ".join(random.sample(asked, held) + random.sample(spare, random.randint(1, 8)))
    log = [" ".join(random.sample(spare, random.randint(1, 5))) for _ in range(chatter)]
    for text in (exact, half):
        log.insert(random.randint(0, len(log)), text)
    field = field_of(said(*log))
    found = rank(field, Question.of(" ".join(asked)))
    raised = boost(markers)
    right, wrong = found.score(log.index(exact)), found.score(log.index(half), raised)
    assert right > wrong
    if wrong:
        assert wrong >= found.score(log.index(half))  # and they never lower one


def test_of_equals_the_marked_one_comes_first() -> None:
    texts = ["orders database postgres", *["lunch"] * 9, "orders database postgres", *["lunch"] * 9]
    found = rank(field_of(said(*texts)), Question.of("orders database postgres friday"))
    assert found.score(10, boost(("decision",))) > found.score(0)


@settings(max_examples=60)
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
