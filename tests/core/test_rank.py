"""Rank: BM25 against an implementation written from the formula, and what must never enter a score."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acms.core.rank import K1, B, document, fuse, relevance, terms
from tests.core.logs import NOON, entry

WORDS = ["orders", "database", "postgres", "cache", "redis", "blue", "deploy", "friday"]
texts = st.lists(st.sampled_from(WORDS), max_size=12).map(" ".join)


def bm25(query: str, documents: list[str]) -> list[float]:
    """Robertson and Zaragoza, equation 3.15 with the IDF that stays positive, over the most the query could give."""
    found: list[float] = []
    sizes = [len(terms(text)) for text in documents]
    average = sum(sizes) / len(sizes) if any(sizes) else 1.0

    def idf(term: str) -> float:
        with_term = len([text for text in documents if term in terms(text)])
        return math.log(1 + (len(documents) - with_term + 0.5) / (with_term + 0.5)) if with_term else 0.0

    wanted = set(terms(query))
    most = sum(idf(term) * (K1 + 1) for term in wanted)
    for text, size in zip(documents, sizes, strict=True):
        score = 0.0
        for term in wanted:
            times = terms(text).count(term)
            score += (
                idf(term) * times * (K1 + 1) / (times + K1 * ((1 - B) + B * size / average)) if times else 0.0
            )
        found.append(score / most if most else 0.0)
    return found


@given(texts, st.lists(texts, min_size=1, max_size=8))
def test_relevance_is_bm25(query: str, documents: list[str]) -> None:
    assert relevance(query, documents) == pytest.approx(bm25(query, documents), abs=1e-12)


@given(st.text(max_size=40), st.lists(st.text(max_size=60), max_size=6))
def test_relevance_stays_within_zero_and_one_for_any_text(query: str, documents: list[str]) -> None:
    scores = relevance(query, documents)
    assert len(scores) == len(documents)
    assert all(0 <= score < 1 for score in scores)


@given(texts, st.lists(texts, min_size=1, max_size=8), st.randoms(use_true_random=False))
def test_the_order_of_the_log_does_not_enter_the_score(
    query: str, documents: list[str], random: object
) -> None:
    order = list(range(len(documents)))
    random.shuffle(order)  # type: ignore[attr-defined]
    shuffled = relevance(query, [documents[index] for index in order])
    assert shuffled == pytest.approx([relevance(query, documents)[index] for index in order])


def test_statistics_are_those_of_exactly_the_documents_given() -> None:
    before = ["orders database postgres", "cache redis", "blue theme"]
    score = relevance("which database", before)
    assert relevance("which database", [*before, *["database again"] * 5])[0] < score[0]
    assert relevance("which database", before) == score


def test_a_rare_word_weighs_more_than_a_common_one() -> None:
    rare, *common = relevance(
        "database orders", ["orders blue", "database cache", "database redis", "database x"]
    )
    assert rare > max(common) > 0


def test_words_meet_in_all_their_forms() -> None:
    assert relevance("deploying databases", ["we deployed the database", "nothing here"])[0] > 0
    assert relevance("DATABASE", ["database", "x"])[0] > 0


def test_stop_words_alone_do_not_make_a_match() -> None:
    scores = relevance("what did we choose for the orders", ["what did we do for the cache", "orders"])
    assert scores[0] == 0
    assert scores[1] > 0


def test_a_text_of_stop_words_only_keeps_them() -> None:
    assert terms("to be or not to be") == ["to", "be", "or", "not", "to", "be"]
    assert relevance("to be", ["to be or not to be", "orders"])[0] > 0


def test_words_of_other_scripts_are_words() -> None:
    assert terms("Größe überprüft") == terms("größe ÜBERPRÜFT")
    assert relevance("données", ["les données sont là", "rien"])[0] > 0
    assert relevance("数据库", ["数据库", "缓存"])[0] > 0
    assert relevance("база", ["база данных", "кэш"])[0] > 0


@pytest.mark.parametrize("query", ["", "   ", "?!", "🙂"])
def test_a_query_without_a_word_finds_nothing(query: str) -> None:
    assert relevance(query, ["orders database", ""]) == [0.0, 0.0]


def test_nothing_to_rank_gives_nothing() -> None:
    assert relevance("orders", []) == []
    assert relevance("orders", ["", ""]) == [0.0, 0.0]


def test_a_word_nobody_wrote_changes_nothing() -> None:
    documents = ["orders database", "cache"]
    assert relevance("orders zanzibar", documents) == relevance("orders", documents)


def test_when_it_was_said_and_who_spoke_are_searchable() -> None:
    said = entry(1, "we painted a sunrise", actor="Melanie", created_at=NOON)
    assert document(said) == "14 March 2026 Melanie we painted a sunrise"
    scores = relevance(
        "What did Melanie do in March 2026?", [document(said), document(entry(2, "x", actor="Sam"))]
    )
    assert scores[0] > scores[1]


def test_markers_raise_relevance_but_never_make_it() -> None:
    assert fuse(0.0, 1.4) == 0.0
    assert fuse(0.5, 0.0) == 0.5
    assert fuse(0.5, 0.4) == pytest.approx(0.7)
    assert fuse(0.9, 0.7) == 1.0
