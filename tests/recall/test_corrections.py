"""Succession: which later statement stands above which earlier one, and what must never be taken for one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from acms.model import Entry
from acms.recall.corrections import succeed
from acms.recall.rank import Question, Ranking, rank
from acms.text.markers import WEIGHTS, boost, detect
from tests.support.indexes import field_of
from tests.support.logs import entry

CHATTER = ("Let me look at that again.", "The weather is fine today.", "I had soup for lunch.") * 3


def said(*contents: str, **given: Any) -> list[Entry]:
    """Messages one second apart, with the markers that are found in them."""
    texts = [contents[0], *CHATTER, *contents[1:], *CHATTER]
    return [entry(version, text, markers=detect(text), **given) for version, text in enumerate(texts, 1)]


def ranked(query: str, log: list[Entry], weights: Mapping[str, float] = WEIGHTS) -> Ranking:
    """A ranking with succession: the texts that are asked for are given from the log."""
    found = rank(field_of(log), Question.of(query))
    steps = succeed(found, query, Question.of(query), weights)
    rows: Mapping[str, Entry] = {one.id: one for one in log}
    try:
        next(steps)
        while True:
            steps.send(rows)
    except StopIteration:
        return found


def order(query: str, *contents: str) -> list[str]:
    """The statements by score, best first."""
    log = said(*contents)
    found = ranked(query, log)
    best = sorted(range(len(log)), key=lambda place: -found.score(place, boost(log[place].markers, WEIGHTS)))
    return [log[place].content for place in best if log[place].content in contents]


@pytest.mark.parametrize(
    ("query", "old", "new"),
    [
        ("When do we launch?", "The launch is planned for June 12.", "The launch slipped to July 3."),
        ("What is the door code?", "The door code is 4711.", "They changed the door code, it is 9032."),
        (
            "What auth method are we using?",
            "Decision: Use JWT tokens for auth.",
            "Decision: We're switching to session cookies, JWT was too complex.",
        ),
        (
            "What API framework are we using?",
            "Decision: We'll use Flask for the API framework.",
            "Decision: Actually, we're switching from Flask to FastAPI for async support.",
        ),
        ("When do we launch?", "The launch is planned for June 12.", "Marketing moved the launch to July 3."),
        (
            "What colour is the door?",
            "Decision: paint the door crimson.",
            "Decision: teal for the door, crimson looked wrong.",
        ),
        ("When do we launch?", "Goal: the launch is on June 12.", "Today the launch was moved to July 3."),
        (
            "Where do we keep the secrets?",
            "We keep the secrets in Vault.",
            "Vault was slow, so the secrets moved to Doppler.",
        ),
        (
            "Who leads the design team?",
            "Sofia leads the design team.",
            "Marcus has taken over the design team from Sofia.",
        ),
        (
            "What is our release cadence?",
            "Release cadence: every two weeks.",
            "As of this quarter the release cadence is monthly.",
        ),
    ],
)
def test_a_correction_stands_above_what_it_corrects(query: str, old: str, new: str) -> None:
    assert order(query, old, new) == [new, old]
    assert order(query, old) == [old]  # before it was said, the old one is all there is


@pytest.mark.parametrize(
    ("query", "old", "new"),
    [
        (
            "What is our cache?",
            "Decision: we use Redis, that is our cache.",
            "Decision: our cache is Memcached.",
        ),
        (
            "What is our cache?",
            "Decision: the cache is Redis.",
            "Decision: we go with Memcached, that is our cache.",
        ),
        (
            "Which cache do we have?",
            "Decision: the cache is Redis, it is fast.",
            "Decision: Sorry, the cache is Ehcache.",
        ),
        (
            "What is our cache?",
            "Decision: the cache is Redis.",
            "Decision: In the end our cache plan is Memcached.",
        ),
        (
            "What is our limit?",
            "Limit: we pay 300, that is our limit.",
            "Limit: the limit is 500, says the boss.",
        ),
        (
            "Who paints the hall?",
            "Decision: Ann paints the hall.",
            "Decision: Tom holds the brush in the hall, Ann rests.",
        ),
    ],
)
def test_what_is_decided_again_stands_above_what_was_decided_without_a_word_of_change(
    query: str, old: str, new: str
) -> None:
    assert order(query, old, new) == [new, old]


@pytest.mark.parametrize(
    "other",
    [
        "Decision: the cache of the shop is Memcached.",
        "Decision: the cache backup runs nightly.",
        "Decision: a cache warms in Lisbon, the printer is red.",
        "Our cache is Memcached.",
        "Decision: somebody says the cache is Memcached.",
        "Decision: maybe the cache is Memcached.",
    ],
)
def test_another_case_another_kind_and_hearsay_decide_nothing_again(other: str) -> None:
    old = "Decision: for sessions the cache is Redis, what else."
    assert order("What is our cache?", old, other)[0] == old


def test_of_several_corrections_the_last_one_is_first() -> None:
    first, second, third = (
        "Decision: our search engine is Typesense.",
        "Decision: Actually, our search engine is OpenSearch now.",
        "Decision: On second thought, our search engine is Vespa.",
    )
    assert order("Which search engine do we use?", first, second, third)[0] == third


@pytest.mark.parametrize(
    "other",
    [
        "The bank I use moved its database to Oracle.",
        "I heard that they switched their database to Oracle.",
        "Have we switched the database to Oracle now?",
        "Maybe the database could be switched to Oracle.",
        "Our coffee machine was replaced with a new one.",
        "While we wait: the kindergarten replaced the database by Oracle.",
        "Databases of Oracle went up in price again.",
        "The flat upstairs changed the database to Oracle.",
        "There is a new database from Oracle.",
    ],
)
def test_what_others_do_what_is_asked_and_what_may_be_correct_nothing(other: str) -> None:
    fact = "Decision: our database is PostgreSQL."
    assert order("What is our database?", fact, other)[0] == fact


@pytest.mark.parametrize(
    "query", ["What was the launch date before?", "When did the team launch?", "How did we launch?"]
)
def test_a_question_about_the_past_lets_everything_stand(query: str) -> None:
    log = said("The launch is planned for June 12.", "The launch slipped to July 3.")
    assert not ranked(query, log).raised


def test_without_a_word_of_change_a_later_message_gains_nothing() -> None:
    log = said("The launch is on June 12.", "The launch of the neighbours was on July 3.")
    assert not ranked("When is the launch?", log).raised


def test_another_speaker_corrects_nobody() -> None:
    log = said("The launch is planned for June 12.")
    log.append(entry(len(log) + 1, "The launch slipped to July 3.", actor="bob"))
    assert not ranked("When is the launch?", log).raised


def test_a_successor_says_what_it_succeeds_and_stays_a_candidate_whatever_the_markers() -> None:
    log = said("Constraint: the budget is 40k.", "Our budget was raised to 55k.")
    found = ranked("What is our budget?", log)
    (place,) = found.raised
    assert "succeeds v1" in found.parts(place)
    assert found.score(place, 0.0) > found.score(0, 0.4)
    assert found.places.tolist()[:2] == [place, 0]
    assert sorted(found.places.tolist()) == sorted(set(found.places.tolist()))


def test_it_depends_on_nothing_but_the_log() -> None:
    log = said("The launch is planned for June 12.", "The launch slipped to July 3.")
    one, other = ranked("When do we launch?", log), ranked("When do we launch?", log)
    assert one.raised == other.raised != {}
    assert one.places.tolist() == other.places.tolist()


def test_where_we_is_asked_for_what_speaks_of_us_goes_before_hearsay() -> None:
    ours, told = "Decision: our cache is Redis.", "I heard the cache of many teams is Memcached."
    assert order("What is our cache?", ours, told)[0] == ours
    plain = rank(field_of(said(ours, told)), Question.of("What is our cache?"))
    found = ranked("What is our cache?", said(ours, told))
    assert found.relevance(10) == plain.relevance(10)  # how well it answers is another matter
    assert found.score(10) < plain.score(10)


@pytest.mark.parametrize("query", ["What is the cache called?", "Which cache do I ask for?"])
def test_so_it_does_where_nobody_is_asked_about(query: str) -> None:
    log = said("Decision: we call the cache Redis.", "I heard a cache called Memcached.")
    plain = rank(field_of(log), Question.of(query))
    found = ranked(query, log)
    assert found.score(10) < plain.score(10)
    assert found.places[0] == 0


@pytest.mark.parametrize(
    "query",
    ["What is your cache called?", "What was the cache called?", "What is the cache of Bob called?"],
)
def test_but_not_where_somebody_else_is_asked_about_or_what_was(query: str) -> None:
    log = said("Decision: we call the cache Redis.", "I heard a cache called Memcached.", actor="Bob")
    plain = rank(field_of(log), Question.of(query))
    assert ranked(query, log).score(10) == plain.score(10)


def test_nothing_is_read_where_nothing_was_said() -> None:
    assert not list(
        succeed(rank(field_of([]), Question.of("launch")), "launch", Question.of("launch"), WEIGHTS)
    )
