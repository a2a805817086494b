"""What small models make of a conversation: nothing they copy or make up is stored, and all of it is counted."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import pytest

from acms import ACMS, ACMSConfig, Decision, Origin, RetryConfig, WorkerConfig, open_storage
from acms.errors import JobFailedError
from acms.observability import Reflected
from acms.ports import Reflection, ReflectionRequest, Turn
from acms.providers import Endpoint, HeuristicTokenCounter, HTTPReflector
from acms.providers.reflector import ModelReflector
from acms.providers.summary_repair import repair_summary
from tests.providers.server import Behave, ModelServer

SAID = (
    ("user", Origin.USER, "We use PostgreSQL for the orders."),
    (
        "assistant",
        Origin.ASSISTANT,
        "Noted. That sounds like a big step. OK, PostgreSQL it is! I made the tag v2.4.1.",
    ),
    ("user", Origin.USER, "The deadline is March 15, and 我们下周开会。"),
    ("fetch", Origin.EXTERNAL, "The mirror runs on port 8443."),
)
MONDAY = datetime(2026, 3, 2, 9, tzinfo=UTC)
TURNS = tuple(
    Turn(speaker=speaker, text=text, version=version, origin=origin, created_at=MONDAY)
    for version, (speaker, origin, text) in enumerate(SAID, 1)
)


class Says:
    """A chat model that gives one answer."""

    def __init__(self, answer: object) -> None:
        self.answer = answer if isinstance(answer, str) else json.dumps(answer)

    async def complete(self, system: str, prompt: str, **settings: Any) -> str:
        return self.answer


async def reflect_with(*proposals: dict[str, Any], summary: str = "") -> Reflection:
    answer = {"proposals": list(proposals), "summary": summary}
    request = ReflectionRequest(turns=TURNS, max_summary_tokens=60, counter=HeuristicTokenCounter())
    return await ModelReflector(Says(answer), "small", "test", 500).reflect(request)


def fact_proposal(value: str, content: str = "", *sources: int, **fields: Any) -> dict[str, Any]:
    subject = {"subject": "orders", "attribute": "database"}
    return {
        "content": content or f"The orders use {value}.",
        "value": value,
        "sources": sources or (1,),
        **subject,
        **fields,
    }


async def decision_on_refused(*proposals: dict[str, Any]) -> Decision:
    found = await reflect_with(*proposals)
    assert found.proposals == ()
    (decision,) = found.rejected
    return decision


async def test_what_was_said_is_proposed() -> None:
    found = await reflect_with(
        fact_proposal("PostgreSQL"), fact_proposal("March 15", "The deadline is March 15.", 3)
    )
    assert [one.value for one in found.proposals] == ["PostgreSQL", "March 15"]
    assert found.rejected == ()


@pytest.mark.parametrize("field", ["content", "subject", "attribute", "value"])
async def test_a_placeholder_in_any_field_is_refused(field: str) -> None:
    decision = await decision_on_refused({**fact_proposal("PostgreSQL"), field: "…"})
    assert (decision.outcome, decision.reason) == ("placeholder", f"its {field} has no words")


async def test_a_value_that_no_turn_says_is_refused() -> None:
    decision = await decision_on_refused(fact_proposal("Oracle", "The orders use a database."))
    assert (decision.outcome, decision.reason) == ("ungrounded", "its value stands in no turn")
    assert decision.proposal.value == "Oracle"


@pytest.mark.parametrize("content", ["The orders use PostgreSQL 16.", "The orders use PostgreSQL and MySQL."])
async def test_a_content_that_names_more_than_was_said_is_refused(content: str) -> None:
    assert (await decision_on_refused(fact_proposal("PostgreSQL", content))).outcome == "ungrounded"


async def test_a_content_that_does_not_say_its_value_is_refused() -> None:
    decision = await decision_on_refused(fact_proposal("PostgreSQL", "The deadline is near."))
    assert (decision.outcome, decision.reason) == ("ungrounded", "its content does not say its value")


async def test_a_validity_that_no_turn_names_is_dropped_and_told() -> None:
    found = await reflect_with(
        fact_proposal("PostgreSQL", valid_from="2026-11-29"),
        fact_proposal("PostgreSQL", valid_to="2026-03-16"),
    )
    assert [(one.valid_from is None, one.valid_to is None) for one in found.proposals] == [
        (True, True),
        (True, False),
    ]
    assert found.unreadable == ("proposal 1: valid_from is a day that no turn names",)


async def test_a_content_without_a_value_must_stand_itself() -> None:
    assert (await decision_on_refused(fact_proposal("", "Alice prefers long walks."))).outcome == "ungrounded"
    found = await reflect_with(fact_proposal("", "PostgreSQL is used for orders."))
    assert len(found.proposals) == 1


async def test_a_value_that_another_turn_says_is_cited_from_there() -> None:
    """So what a page says is never believed as if the user had said it."""
    found = await reflect_with(fact_proposal("8443", "The mirror runs on port 8443.", 1))
    assert [one.sources for one in found.proposals] == [(4,)]


@pytest.mark.parametrize(
    "content",
    ["That sounds like a big step.", "OK, PostgreSQL it is!", "Noted."],
    ids=["courtesy", "echo", "ok"],
)
async def test_small_talk_of_the_assistant_is_refused(content: str) -> None:
    assert (await decision_on_refused(fact_proposal("", content, 2))).outcome == "small_talk"


async def test_what_the_assistant_did_is_a_fact() -> None:
    found = await reflect_with(fact_proposal("v2.4.1", "The tag v2.4.1 was made.", 2))
    assert [one.sources for one in found.proposals] == [(2,)]


async def test_a_summary_keeps_what_was_said_and_counts_the_rest() -> None:
    said = "They chose PostgreSQL. They chose PostgreSQL. MySQL costs 900 euros. The deadline is March 15. And so th"
    found = await reflect_with(summary=said)
    assert found.summary == "They chose PostgreSQL. The deadline is March 15."
    assert set(found.unreadable) == {"summary: 1 repeated", "summary: 1 unsaid", "summary: 1 cut"}


@pytest.mark.parametrize(
    ("answer", "left", "repairs"),
    [
        ("They chose PostgreSQL.", "They chose PostgreSQL.", {}),
        ("Sure, here it is:\n\nThey chose PostgreSQL.", "They chose PostgreSQL.", {"heading": 1}),
        ("```\nThey chose PostgreSQL.\n```", "They chose PostgreSQL.", {"heading": 1}),
        ("1. PostgreSQL\n2. March 15\n", "1. PostgreSQL\n2. March 15", {}),
        ("- PostgreSQL\n- PostgreSQL\n- March 15", "- PostgreSQL\n- March 15", {"repeated": 1}),
        ("MySQL costs 900 euros.", "", {"unsaid": 1}),
        ("下周开会。", "下周开会。", {}),
    ],
    ids=["good", "prose", "fence", "numbers", "loop", "made up", "chinese"],
)
def test_a_summary_is_repaired(answer: str, left: str, repairs: dict[str, int]) -> None:
    assert repair_summary(answer, TURNS) == (left, repairs)


@pytest.fixture
async def server() -> AsyncIterator[ModelServer]:
    async with ModelServer() as server:
        yield server


async def test_what_was_refused_is_in_the_report_and_not_in_the_log(server: ModelServer) -> None:
    answer = {
        "proposals": [
            fact_proposal("PostgreSQL"),
            fact_proposal("…"),
            fact_proposal("Oracle"),
            fact_proposal("MySQL", fact="F7", action="update"),
        ],
        "summary": "They chose PostgreSQL.",
    }
    server.say = lambda body: f"Sure!\n```json\n{json.dumps(answer)}\n```"
    heard: list[Any] = []
    async with (
        HTTPReflector(server.url, "small") as reflector,
        ACMS(
            "s", open_storage("memory://"), reflector=reflector, config=ACMSConfig(on_event=heard.append)
        ) as session,
    ):
        await session.ingest("user", "We use PostgreSQL for the orders.")
        await session.ingest("assistant", "Noted.")
        await session.close_episode()
        await session.wait_pending()
        assert [fact.value for fact in await session.facts()] == ["PostgreSQL"]
    (event,) = [one for one in heard if isinstance(one, Reflected)]
    assert [one.outcome for one in event.decisions] == ["added", "placeholder", "ungrounded"]
    assert event.unreadable == ("proposal 4: updates a fact that was not in the request",)


async def test_the_timeout_of_the_provider_ends_a_call_and_no_other(server: ModelServer) -> None:
    server.otherwise = Behave(until=asyncio.Event())
    once = RetryConfig(max_attempts=1)
    config = ACMSConfig(worker=WorkerConfig(max_attempts=1))
    async with (
        HTTPReflector(Endpoint(server.url, timeout=0.05, retry=once), "small") as reflector,
        ACMS("s", open_storage("memory://"), reflector=reflector, config=config) as session,
    ):
        await session.ingest("user", "We use PostgreSQL for the orders.")
        await session.close_episode()
        with pytest.raises(JobFailedError, match=r"no answer within 0\.05 s"):
            await session.wait(await session.reflect())
