"""Which facts are taken for the answer to a question, so that what answers far worse is left out."""

from __future__ import annotations

import pytest

from acms.model import Kind
from acms.recall.cutoff import says
from acms.text.tokenizer import terms, words
from tests.support.logs import entry


def _says(question: str, content: str, cardinality: str = "one", **address: str) -> bool:
    fact = entry(1, content, kind=Kind.FACT, data={"cardinality": cardinality, **address})
    return says(fact, terms(words(question)))


DATABASE = {"subject": "project", "attribute": "database", "value": "MySQL"}
OPENING = {"subject": "project", "attribute": "official opening", "value": "Friday"}


@pytest.mark.parametrize(
    "question",
    [
        "Which database do we use?",
        "What database did we choose for the orders?",
        "database",
        "The project's database",
    ],
)
def test_a_question_that_names_the_address_is_answered_by_its_fact(question: str) -> None:
    assert _says(question, "The project uses MySQL as its database.", **DATABASE)


def test_a_question_that_goes_beyond_a_shared_word_is_not() -> None:
    content = "The official opening is on Friday."
    assert _says("When is the official opening?", content, **OPENING)
    assert not _says("How does Gina describe the studio that Jon has opened downtown?", content, **OPENING)
    assert not _says("How long did it take for Jon to open the shop?", content, **OPENING)


def test_a_question_that_names_the_value_asks_for_something_else() -> None:
    assert not _says("Why is MySQL our database?", "The project uses MySQL as its database.", **DATABASE)


def test_an_address_of_many_values_is_never_the_one_answer() -> None:
    assert not _says("Which database do we use?", "The project uses MySQL.", cardinality="many", **DATABASE)


def test_words_that_ask_name_nothing() -> None:
    data = {"subject": "project", "attribute": "team size", "value": "four engineers"}
    assert _says("How many engineers are on the team?", "The team has four engineers.", **data)
    assert _says("Which tool do we use as database?", "The project uses MySQL as its database.", **DATABASE)


def test_what_is_called_asks_for_a_name() -> None:
    data = {"subject": "project", "attribute": "name", "value": "Wagtail"}
    assert _says("What is the project called?", "The project's name is Wagtail.", **data)
    assert not _says("What is my name?", "The project's name is Wagtail.", **data)
    assert not _says("What is it called?", "The project uses MySQL as its database.", **DATABASE)


def test_an_attribute_that_is_named_in_full_may_stand_among_more_words() -> None:
    data = {"subject": "project", "attribute": "CDN", "value": "Fastly"}
    assert _says("What CDN serves our static files?", "Fastly is our CDN.", **data)
    assert not _says("What CDN serves static files and big images?", "Fastly is our CDN.", **data)
