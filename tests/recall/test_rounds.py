"""Several statements about one thing in one answer: each is stored, and the last one is in force."""

from __future__ import annotations

from typing import Any

import pytest

from acms.facts.consolidate import MAX_ROUNDS, split_rounds
from acms.ports import Proposal, Reflection, ReflectionRequest
from acms.providers import OfflineReflector
from tests.support.talk import ingest_texts, session_on


def port_proposal(value: str, turn: int = 0, **given: Any) -> Proposal:
    given = {"cardinality": "one", "sources": (turn,) if turn else (), **given}
    return Proposal(
        content=f"The API runs on {value}.", subject="API", attribute="framework", value=value, **given
    )


def test_an_answer_is_divided_where_it_contradicts_itself() -> None:
    assert split_rounds([], []) == [[]]
    assert split_rounds(
        [port_proposal("Flask"), port_proposal("Flask"), port_proposal("Django"), port_proposal("Flask")], []
    ) == [[0, 1], [2], [3]]
    assert split_rounds(
        [port_proposal("Flask", cardinality="many"), port_proposal("Django", cardinality="many")], []
    ) == [[0, 1]]
    named = [
        port_proposal("Flask", action="update", fact_id="f"),
        port_proposal("Django", action="update", fact_id="f"),
    ]
    assert split_rounds(named, []) == [[0], [1]]


def test_what_is_said_and_ended_in_one_answer_is_stored_first() -> None:
    many = port_proposal("Flask", cardinality="many")
    gone = port_proposal("Flask", cardinality="many", action="remove")
    assert split_rounds([many, gone, port_proposal("Django", cardinality="many")], []) == [[0], [1, 2]]
    assert split_rounds([many, port_proposal("Django", cardinality="many", action="remove")], []) == [[0, 1]]
    named = [
        port_proposal("Flask", action="update", fact_id="f"),
        port_proposal("Flask", action="remove", fact_id="f"),
    ]
    assert split_rounds(named, []) == [[0], [1]]


def test_what_cannot_be_read_divides_nothing() -> None:
    broken: Any = Proposal(content="x", subject=None, cardinality="one")  # type: ignore[arg-type]
    assert split_rounds([broken, port_proposal("Flask"), broken], []) == [[0, 1, 2]]


def test_an_answer_is_divided_into_few_parts() -> None:
    found = split_rounds([port_proposal(str(number)) for number in range(50)], [])
    assert len(found) == MAX_ROUNDS
    assert [index for part in found for index in part] == list(range(50))


class Changing:
    """Says that the API ran on Flask and then on FastAPI."""

    model = "changing"

    async def reflect(self, request: ReflectionRequest) -> Reflection:
        said = {
            word: turn.version for turn in request.turns for word in ("Flask", "FastAPI") if word in turn.text
        }
        return Reflection(proposals=tuple(port_proposal(word, version) for word, version in said.items()))


async def test_a_correction_read_together_with_what_it_corrects_keeps_history_and_leaves_no_stale_text(
    storage: Any,
) -> None:
    async with session_on(storage, reflector=Changing()) as session:
        await ingest_texts(
            session, "We built the API with Flask.", "Fine.", "It runs on FastAPI now.", "Good.", close=True
        )
        await session.wait_pending()
        assert [fact.value for fact in await session.facts()] == ["FastAPI"]
        old, new = await session.facts(history=True)
        assert (old.value, new.value) == ("Flask", "FastAPI")
        assert old.retired is not None
        assert old.retired.reason == "updated"
        assert new.replaces == (old.id,)
        await ingest_texts(session, "What a day.", "Yes.")
        shown = [
            item.content for item in await session.recall("what is the API built with?", token_budget=500)
        ]
        assert not [text for text in shown if "Flask." in text]
        await session.undo(new.version)
        assert [fact.value for fact in await session.facts()] == ["Flask"]


@pytest.mark.parametrize(
    ("first", "then", "old", "new", "reason"),
    [
        (
            "Constraint: the deadline is March 15.",
            "Constraint: the deadline is March 20.",
            "March 15",
            "March 20",
            "updated",
        ),
        (
            "Decision: we use Flask for the API.",
            "Decision: we are switching from Flask to FastAPI.",
            "Flask",
            "FastAPI",
            "removed",
        ),
    ],
)
async def test_what_the_rules_find_and_see_end_in_one_episode_has_a_history(
    storage: Any, first: str, then: str, old: str, new: str, reason: str
) -> None:
    async with session_on(storage, reflector=OfflineReflector()) as session:
        await ingest_texts(session, first, "Fine.", "What a day.", "Yes.", then, "Good.", close=True)
        await session.wait_pending()
        assert [fact.value for fact in await session.facts()] == [new]
        before = (await session.facts(history=True))[0]
        assert (before.value, before.retired is not None and before.retired.reason) == (old, reason)
