"""What a query is about, and whose words it asks for."""

from __future__ import annotations

import pytest

from acms.model import Role
from acms.recall.query import of_replies, subject
from acms.recall.rank import Question, rank, unnamed
from acms.recall.weights import WEIGHTS
from tests.support.indexes import field_of
from tests.support.logs import entry


@pytest.mark.parametrize(
    ("query", "about"),
    [
        (
            "Can you list the order in which I brought up different aspects of the garden throughout our conversations,"
            " in order? Mention only five items.",
            "the garden?",
        ),
        ("Could you give me a clear summary of how the garden grew?", "how the garden grew?"),
        ("Summarize everything we said about the garden.", "the garden."),
        ("Tell me about the garden", "the garden"),
        ("can you remind me when we moved?", "when we moved?"),
        ("How many gardens did I mention across my chats?", "How many gardens did I mention?"),
        ("What did Ann give Bob to show support?", "What did Ann give Bob to show support?"),
        ("How does Ann describe the garden in the sessions of the choir?", None),
        ("Which plants are in order?", "Which plants are?"),
        ("Only five of them. Which ones?", None),
        ("Tell me about it", None),
        ("can you", None),
        ("", None),
    ],
)
def test_a_query_is_about_what_is_left_without_the_manner_of_its_answer(
    query: str, about: str | None
) -> None:
    assert subject(query) == (query if about is None else about)


def test_a_vector_and_the_words_of_a_query_are_those_of_what_it_is_about() -> None:
    query = "Can you list what Ann said about the garden?"
    assert Question.of(query).terms == Question.of("what Ann said about the garden?").terms
    assert unnamed(query, ["Ann", "Bob"]) == "what said about the garden?"


@pytest.mark.parametrize(
    ("query", "theirs"),
    [
        ("What did you recommend for the garden?", True),
        ("which plants have you listed", True),
        ("the plan you suggested", True),
        ("was your last suggestion about roses?", True),
        ("Can you suggest plants?", False),
        ("What would you plant?", False),
        ("What did Ann recommend?", False),
    ],
)
def test_a_query_may_ask_for_what_the_assistant_said(query: str, theirs: bool) -> None:
    assert of_replies(query) is theirs


def test_who_asks_what_the_assistant_said_finds_its_long_reply() -> None:
    reply = "roses " + "need a lot of sun and water and " * 12
    entries = [
        entry(
            version,
            "are roses easy?" if version % 2 else reply,
            role=Role.USER if version % 2 else Role.ASSISTANT,
        )
        for version in range(1, 9)
    ]
    asked, replied = (
        rank(field_of(entries), Question.of(query)) for query in ("roses?", "what did you say of roses?")
    )
    assert asked.score(0) > asked.score(1)
    assert replied.score(1) > replied.score(0)


def test_a_message_that_takes_the_room_of_several_must_answer_better() -> None:
    long = int(WEIGHTS.length) * 4
    entries = [entry(1, "x " * (long // 2)), entry(2, "x " * long)]
    short, longer = field_of(entries).factor(frozenset(), False).tolist()
    assert longer / short == pytest.approx(2**-WEIGHTS.long, rel=1e-2)
    assert field_of([entry(1, "x")]).factor(frozenset(), False).tolist() == [1.0]
