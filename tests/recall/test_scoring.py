"""Scoring: the formula against a reference in plain Python, and whom it finds through a session."""

from __future__ import annotations

from collections.abc import Sequence
from math import log
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acms import Role
from acms.log.active_entries import Replacements
from acms.recall.corpus import Corpus
from acms.recall.query import Query, QueryWord, parse_query
from acms.recall.ranking import Ranking
from acms.recall.scoring import SPEAKER_FACTOR, score_messages
from acms.storage import MemoryStorage
from acms.text.tokenizer import primary_term
from tests.support.indexes import build_segment, field_of, index_records_of, snapshot_of
from tests.support.logs import make_entry
from tests.support.talk import ingest_texts, session_on

K1, B, REACH = 0.9, 0.4, 5
DECISION = "decision"
DATE = 3
"""Words that its date adds to every message."""
COMMON = ("orders", "database", "garden")
RARE = ("zanzibar", "lighthouse")


def write_texts(random: Random, size: int) -> list[str]:
    """Messages in which some words are common, and others stand in one or two of them, beside each other or not."""
    texts = [
        " ".join(random.choices([*COMMON, "blue", "river"], k=random.randint(0, 9))) for _ in range(size)
    ]
    for word in RARE:
        for place in random.sample(range(size), min(size, random.choice([1, 2]))):
            texts[place] += f" {word}" * random.choice([1, 3])
    return texts


def query_of(*words: str, **given: Any) -> Query:
    return Query(words=tuple(QueryWord((primary_term(word),)) for word in words), **given)


def reference_scores(
    logs: Sequence[Sequence[str]], words: Sequence[str]
) -> tuple[list[float], list[float], list[float]]:
    """BM25 of each message of some logs and of its neighbourhood, and its share of the question's information."""
    split = [[text.split() for text in texts] for texts in logs]
    said = [(number, place, held) for number, texts in enumerate(split) for place, held in enumerate(texts)]
    mean = sum(len(held) + DATE for *_, held in said) / len(said)
    own, near, information = [0.0] * len(said), [0.0] * len(said), [0.0] * len(said)
    total = 0.0
    for word in words:
        often = sum(1 for *_, held in said if word in held)
        weight = log(1 + (len(said) - often + 0.5) / (often + 0.5))
        total += weight
        for index, (number, place, held) in enumerate(said):
            norm = K1 * (1 - B + B * (len(held) + DATE) / mean)
            count = held.count(word)
            around = sum(
                split[number][there].count(word) * 0.5 ** abs(there - place)
                for there in range(max(0, place - REACH), min(len(split[number]), place + REACH + 1))
            )
            own[index] += weight * (K1 + 1) * count / (count + norm)
            near[index] += weight * (K1 + 1) * around / (around + norm)
            information[index] += weight if count else 0.0
    return own, near, [share / total for share in information]


# ── words ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@settings(max_examples=30, deadline=None)
@given(
    st.randoms(use_true_random=False),
    st.sampled_from([1, 2, 11, 60, 200]),
    st.sampled_from([COMMON, RARE, (*COMMON, *RARE)]),
)
def test_words_are_scored_as_the_reference_says(random: Random, size: int, words: tuple[str, ...]) -> None:
    texts = write_texts(random, size)
    found = score_messages(
        field_of([make_entry(version, text) for version, text in enumerate(texts, 1)]), query_of(*words)
    )
    own, near, information = reference_scores([texts], words)
    assert np.allclose(found.own, own, rtol=1e-4, atol=1e-5)
    assert np.allclose(found.near, near, rtol=1e-4, atol=1e-5)
    assert np.allclose(found.information, information, rtol=1e-4, atol=1e-5)
    assert np.allclose(found.without_marks, found.own + found.near)


@settings(max_examples=20, deadline=None)
@given(
    st.randoms(use_true_random=False),
    st.lists(st.integers(1, 130), min_size=2, max_size=4),
    st.sampled_from([COMMON, RARE]),
)
def test_logs_of_a_namespace_never_reach_into_each_other(
    random: Random, sizes: list[int], words: tuple[str, ...]
) -> None:
    logs = [write_texts(random, size) for size in sizes]
    texts = [text for log_texts in logs for text in log_texts]
    held = snapshot_of(
        build_segment(index_records_of([make_entry(version, text) for version, text in enumerate(texts, 1)]))
    )
    held.logs = np.repeat(np.arange(len(sizes)), sizes)
    found = score_messages(Corpus(held, Replacements(())), query_of(*words))
    own, near, _ = reference_scores(logs, words)
    assert np.allclose(found.own, own, rtol=1e-4, atol=1e-5)
    assert np.allclose(found.near, near, rtol=1e-4, atol=1e-5)


# ── speakers and marks ──────────────────────────────────────────────────────────────────────────────────────────────


def test_the_user_counts_more_where_others_speak_too() -> None:
    def plain(*roles: Role) -> list[float]:
        field = field_of([make_entry(version, "orders", role=role) for version, role in enumerate(roles, 1)])
        return score_messages(field, query_of("orders")).without_marks.tolist()

    user, assistant = plain(Role.USER, Role.ASSISTANT)
    assert user == pytest.approx(SPEAKER_FACTOR * assistant)
    assert plain(Role.USER, Role.USER) == pytest.approx([assistant, assistant])
    assert plain(Role.ASSISTANT, Role.ASSISTANT) == pytest.approx([assistant, assistant])


def test_the_user_counts_no_more_than_others_where_the_query_names_a_speaker() -> None:
    field = field_of(
        [
            make_entry(1, "orders", role=Role.USER, actor="Ada"),
            make_entry(2, "orders", role=Role.ASSISTANT, actor="Bob"),
        ]
    )
    user, assistant = score_messages(field, query_of("orders")).without_marks.tolist()
    assert user == pytest.approx(SPEAKER_FACTOR * assistant)
    named = parse_query("orders of Bob", field.speakers)
    unnamed = Query(words=named.words)
    ratio = score_messages(field, named).without_marks / score_messages(field, unnamed).without_marks
    assert ratio.tolist() == pytest.approx([1 / SPEAKER_FACTOR, SPEAKER_FACTOR])


def test_a_speaker_who_is_named_counts_more() -> None:
    field = field_of([make_entry(1, "orders", actor="Ada"), make_entry(2, "orders", actor="Bob")])
    named = parse_query("orders of Ada", field.speakers)
    assert named.speakers == {"Ada"}
    unnamed = Query(words=named.words)
    ratio = score_messages(field, named).without_marks / score_messages(field, unnamed).without_marks
    assert ratio.tolist() == pytest.approx([SPEAKER_FACTOR, 1.0])


def test_a_mark_adds_what_it_weighs_and_one_of_weight_0_changes_nothing() -> None:
    texts = ["orders go by mail", "orders are late", "lunch was late", "orders were blue"]

    def ranked(weight: float, *marked: int) -> Ranking:
        entries = [
            make_entry(version, text, markers=(DECISION,) if version in marked else ())
            for version, text in enumerate(texts, 1)
        ]
        return Ranking(field_of(entries), query_of("orders", marker_weights={DECISION: weight}))

    without, weightless, lifted = ranked(0.0), ranked(0.0, 3, 4), ranked(1.0, 3, 4)
    assert weightless.scores.with_marks.tolist() == without.scores.with_marks.tolist()
    assert [weightless.score(place) for place in range(4)] == [without.score(place) for place in range(4)]
    assert weightless.marks_of(np.arange(4)) == [0.0] * 4
    # it is added to what is about the question alone
    assert lifted.positions[0] == 3
    assert lifted.marks_of(np.arange(4))[2] == 0
    assert lifted.marks_of(np.arange(4))[3] > 0


# ── languages ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("question", "texts"),
    [
        (
            "Onde está a chave do portão?",
            (
                "Hoje choveu muito na cidade",
                "A chave do portão fica com a vizinha",
                "O jantar é às oito",
                "Comprei pão e leite",
            ),
        ),
        (
            "Kapının anahtarı nerede?",
            (
                "Bugün çok yağmur yağdı",
                "Kapının anahtarı komşuda duruyor",
                "Akşam yemeği saat sekizde",
                "Ekmek ve süt aldım",
            ),
        ),
    ],
    ids=["portuguese", "turkish"],
)
async def test_an_answer_in_another_language_is_found(question: str, texts: tuple[str, ...]) -> None:
    async with session_on(MemoryStorage(), embedder=None) as session:
        await ingest_texts(session, *texts, close=True)
        items = await session.recall(question)
        (best,) = [item for item in items if item.rank == 1]
        assert best.content == texts[1]
        assert best.relevance > 0.25
