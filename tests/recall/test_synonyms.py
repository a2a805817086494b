"""Related: what stands for a word of a question that nobody has said, and what it may not do."""

from __future__ import annotations

import numpy as np
import pytest

from acms.recall.index_cache import related
from acms.recall.rank import Question, by_words, rank
from acms.recall.synonyms import Related
from acms.recall.weights import WEIGHTS
from acms.text.tokenizer import term
from tests.conventions.related import table
from tests.recall.test_rank import said
from tests.support.indexes import field_of

HELD = Related(
    table({term("undertaking"): {term("project"), term("venture")}, term("project"): {term("undertaking")}})
)


def relevances(query: str, *contents: str) -> list[float]:
    field = field_of(said(*contents))
    found = rank(field, Question.of(query).lending(field.snapshot, HELD))
    return [found.parts(place).get("message", 0.0) for place in range(len(field))]


def filled(*contents: str) -> tuple[str, ...]:
    """Messages among so many others that their words are rare."""
    return (*contents, *(f"Nothing much, number {place}." for place in range(30)))


def test_a_table_gives_back_what_it_was_made_of() -> None:
    assert HELD.of(term("undertaking")) == tuple(sorted([term("project"), term("venture")]))
    assert HELD.of(term("project")) == (term("undertaking"),)
    assert HELD.of(term("venture")) == HELD.of(term("zebra")) == HELD.of(0) == HELD.of(0xFFFFFF) == ()


@pytest.mark.parametrize(
    ("asked", "said"), [("undertakings", "project"), ("happened", "event"), ("doctor", "physician")]
)
def test_the_table_that_ships_knows_synonyms_derived_and_broader_words(asked: str, said: str) -> None:
    assert term(said) in related().of(term(asked))


def test_a_word_that_nobody_said_is_found_by_a_related_one() -> None:
    found = relevances("What about this undertaking?", *filled("It is the project Dunlin.", "It rains."))
    assert found[0] > 0
    assert not any(found[1:])


def test_it_tells_less_than_the_word_itself() -> None:
    query = "What about this undertaking?"
    (own, *_) = relevances(query, *filled("It is the undertaking Dunlin."))
    (lent, *_) = relevances(query, *filled("It is the project Dunlin."))
    assert 0 < lent <= own * WEIGHTS.related


def test_a_word_that_was_said_has_no_need_of_others() -> None:
    found = relevances("What about this undertaking?", *filled("Our undertaking.", "The project Dunlin."))
    assert found[0] > 0
    assert found[1] == 0


def test_what_is_asked_already_is_not_asked_twice() -> None:
    field = field_of(said(*filled("The project Dunlin.")))
    asked = Question.of("Is the project an undertaking?").lending(field.snapshot, HELD)
    assert asked.lent == ((term("venture"),),)


def test_a_related_word_that_is_everywhere_tells_nothing() -> None:
    assert not any(relevances("What about this undertaking?", *["The project goes on."] * 20))


def test_terms_of_one_group_count_as_one() -> None:
    field = field_of(said(*filled("The project, a venture.", "The project.", "A venture.")))
    group = (term("project"), term("venture"))
    both = by_words(field, [term("undertaking")], [group]).fields["message"]
    again = by_words(field, [term("undertaking")], [group[::-1]]).fields["message"]
    assert both[0] > both[1] == pytest.approx(float(both[2]), rel=0.1)
    assert np.array_equal(both, again)


def test_how_many_asks_for_a_number() -> None:
    found = relevances("How many developers?", *filled("Seven people.", "Some people."))
    assert found[0] > 0
    assert found[1] == 0
