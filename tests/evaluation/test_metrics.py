"""The metrics (E4) on recalls that can be checked by eye."""

from __future__ import annotations

from math import log2

import pytest

from acms_eval import (
    Probe,
    Recalled,
    carries,
    hit,
    hit_at,
    ndcg,
    outdated,
    precision,
    score,
    stale,
    stale_anywhere,
    surfaced,
)

PROBE = Probe(question="Which framework?", expected=("FastAPI",), forbidden=("Flask",), after=0)


def _recalled_items(*texts: str) -> list[Recalled]:
    return [Recalled(text=text, score=1 - place / 10) for place, text in enumerate(texts)]


@pytest.mark.parametrize(
    ("text", "keyword"),
    [
        ("That is of some interest to us.", "REST"),
        ("The rest of it is done.", "REST"),
        ("by March 14 at the latest", "March 1"),
        ("it costs $148,000", "48,000"),
        ("it costs 48,000,000", "48,000"),
        ("it costs 48,000.50", "48,000"),
        ("a PostgreSQLish dialect", "PostgreSQL"),
        ("anything", ""),
    ],
)
def test_a_keyword_is_not_found_inside_another_word(text: str, keyword: str) -> None:
    assert not carries(text, keyword)


@pytest.mark.parametrize(
    ("text", "keyword"),
    [
        ("Our API is REST.", "REST"),
        ("we use fastapi's router", "FastAPI"),
        ("GitHub\n  Actions builds it", "GitHub Actions"),
        ("hosted on Fly.io, close to us", "Fly.io"),
        ("a budget of $48,000.", "48,000"),
        ("(JSON-RPC)", "JSON-RPC"),
    ],
)
def test_a_keyword_is_found_as_a_word(text: str, keyword: str) -> None:
    assert carries(text, keyword)


def test_a_hit_needs_every_keyword_in_whatever_items() -> None:
    probe = Probe(question="Who am I?", expected=("Mara", "Lindqvist"), after=0)
    assert not hit(probe, _recalled_items("Mara called", "the report"))
    assert hit(probe, _recalled_items("Mara called", "a report by Lindqvist"))
    assert not hit(probe, [])


def test_stale_is_an_old_value_without_the_present_one() -> None:
    switch = _recalled_items("We switch from Flask to FastAPI.")
    assert not stale(PROBE, switch)
    assert stale_anywhere(PROBE, switch)
    assert stale(PROBE, [*switch, Recalled(text="We use Flask.")])
    assert not stale(PROBE, _recalled_items("We use FastAPI.", "Django is nice."))


def test_the_current_episode_does_not_count_as_stale_anywhere() -> None:
    assert not stale_anywhere(PROBE, [Recalled(text="What about Flask?", current=True)])
    assert stale(PROBE, [Recalled(text="What about Flask?", current=True)])


def test_precision_is_the_share_of_items_that_carry_a_keyword() -> None:
    assert precision(PROBE, _recalled_items("FastAPI", "tea", "coffee", "FastAPI again")) == 0.5
    assert precision(PROBE, []) is None


def test_precision_is_stated_with_and_without_the_current_episode() -> None:
    items = [Recalled(text="FastAPI"), *[Recalled(text="tea", current=True)] * 3]
    found = score(PROBE, items)
    assert found.precision == 0.25
    assert found.precision_past == 1.0
    assert score(PROBE, items[1:]).precision_past is None


def test_ndcg_is_one_when_the_answer_comes_first_and_falls_with_its_place() -> None:
    assert ndcg(PROBE, _recalled_items("FastAPI", "a", "b")) == 1.0
    assert ndcg(PROBE, _recalled_items("a", "FastAPI", "b")) == pytest.approx(1 / log2(3))
    assert ndcg(PROBE, _recalled_items("a", "b", "c", "d", "e", "FastAPI")) == 0.0
    assert ndcg(PROBE, _recalled_items("a", "b")) == 0.0
    assert ndcg(PROBE, []) == 0.0


def test_ndcg_ranks_by_score_whatever_the_order_of_show() -> None:
    shown = [Recalled(text="a", score=0.1), Recalled(text="FastAPI", score=0.9)]
    assert ndcg(PROBE, shown) == 1.0


def test_ndcg_grades_a_low_score_lower() -> None:
    shown = [Recalled(text="a", score=0.9), Recalled(text="FastAPI", score=0.3)]
    assert ndcg(PROBE, shown) == pytest.approx(1 / log2(3) / 3)


def test_tokens_are_those_of_the_items_unless_they_are_given() -> None:
    items = [Recalled(text="FastAPI", tokens=3), Recalled(text="tea", tokens=2)]
    assert score(PROBE, items).tokens == 5
    assert score(PROBE, items, tokens=9, seconds=0.5).tokens == 9


def test_a_hit_at_k_is_by_score_whatever_the_order_of_show() -> None:
    shown = [
        Recalled(text="tea", score=0.2),
        Recalled(text="coffee", score=0.5),
        Recalled(text="FastAPI", score=0.4),
    ]
    assert [hit_at(k, PROBE, shown) for k in (1, 2, 3)] == [False, True, True]
    assert not hit_at(5, PROBE, [])


def test_outdated_is_the_superseded_above_its_successor() -> None:
    old, new = "We use Flask.", "We use FastAPI."
    assert outdated(PROBE, _recalled_items(old, new)) is True
    assert outdated(PROBE, _recalled_items(new, old)) is False
    assert outdated(PROBE, _recalled_items("We switch from Flask to FastAPI.", old)) is False
    assert outdated(PROBE, _recalled_items("tea", old)) is True
    assert outdated(PROBE, _recalled_items("tea")) is False
    assert outdated(PROBE, []) is False
    shown = [Recalled(text=new, score=0.1), Recalled(text=old, score=0.2)]
    assert outdated(PROBE, shown) is True
    assert score(PROBE, shown).hit
    assert not score(PROBE, shown).answered


def test_nothing_is_outdated_where_nothing_was_superseded() -> None:
    probe = Probe(question="Which framework?", expected=("FastAPI",), after=0)
    assert outdated(probe, _recalled_items("We use FastAPI.")) is None
    assert score(probe, _recalled_items("We use FastAPI.")).answered


def test_a_decoy_names_the_value_and_is_no_answer() -> None:
    gossip = "FastAPI is popular, but some teams prefer Sanic."
    probe = Probe(question="Which framework?", expected=("FastAPI",), decoys=(gossip,), after=0)
    heard = _recalled_items(f"user: {gossip}", "tea")
    assert not hit(probe, heard)
    assert precision(probe, heard) == 0.0
    assert ndcg(probe, heard) == 0.0
    both = _recalled_items(f"user: {gossip}\nuser: Decision: we use FastAPI.", "tea")
    assert hit(probe, both)
    assert hit_at(1, probe, both)
    assert precision(probe, both) == 0.5


def test_a_bonus_is_the_share_of_what_an_answer_follows_from() -> None:
    probe = Probe(
        question="Which pattern?", expected=("declarative base",), bonus=("Python", "SQLAlchemy"), after=0
    )
    assert surfaced(probe, _recalled_items("SQLAlchemy, with the declarative base")) == 0.5
    assert surfaced(probe, []) == 0.0
    assert surfaced(PROBE, _recalled_items("FastAPI")) is None
