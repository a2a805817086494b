"""Prompts over HTTP: a provider's request within a budget, and why."""

from __future__ import annotations

from typing import Any

import pytest

from acms import codecs
from tests.server.document import checked_by_document
from tests.server.serving import Service

SAID = [f"Message {number}: the orders service writes {number} rows a second." for number in range(30)]
TOOL = {
    "name": "disk",
    "description": "How full a disk is.",
    "parameters": {"type": "object", "properties": {"host": {"type": "string"}}},
}


@pytest.fixture(scope="module")
def one(sqlite_service: Service) -> Service:
    """A service, every answer of which is held against its document."""
    return checked_by_document(sqlite_service)


def _post_prompt(service: Service, context: str, **body: Any) -> Any:
    reply = service.client.post(f"/contexts/{context}/prompt", json={"budget": 8000, **body})
    assert reply.status_code == 200, reply.text
    return reply.json()["data"]


def _texts_of_prompt(data: Any) -> list[str]:
    codec = codecs.named(data["codec"], data["model"])
    return [message.text for message in codec.parse(data["payload"])]


@pytest.mark.parametrize("codec", ["openai-chat", "openai-responses", "anthropic", "anthropic-messages"])
def test_every_format_gets_its_request_within_the_budget(one: Service, codec: str) -> None:
    context = one.talk(*SAID)
    data = _post_prompt(
        one, context, codec=codec, budget=3000, system="You are brief.", user="Go on.", tools=[TOOL]
    )
    made = codecs.named(codec)
    made.check(data["payload"])
    assert made.count(data["payload"]).upper_bound == data["tokens"]["upperBound"] <= 3000
    texts = _texts_of_prompt(data)
    assert texts[0] == "You are brief."
    assert "Go on." in texts[-1]
    assert "tools" in data["payload"]
    assert data["model"] == made.model


def test_its_parts_stand_in_their_order(service: Service) -> None:
    context = service.talk("Decision: the orders service uses PostgreSQL.", *SAID)
    service.client.put("/pins/user:1", json={"key": "user:1/name", "value": "Sam"})
    data = _post_prompt(
        service,
        context,
        system="You are brief.",
        developer="Answer in German.",
        pins="user:1",
        last=3,
        recall={"query": "PostgreSQL decision", "tokens": 400},
        user="Go on.",
    )
    texts = _texts_of_prompt(data)
    assert texts[:2] == ["You are brief.", "Answer in German."]
    assert "Sam" in texts[2]
    assert texts[3:6] == SAID[-3:]
    assert "uses PostgreSQL" in texts[6]
    assert texts[7] == "Go on."


def test_a_prompt_may_leave_the_history_out(one: Service) -> None:
    context = one.talk(*SAID)
    assert _texts_of_prompt(_post_prompt(one, context, history=False, user="Go on.")) == ["Go on."]


def test_a_prompt_is_made_of_the_log_as_it_was(one: Service) -> None:
    context = one.talk(*SAID)
    assert _texts_of_prompt(_post_prompt(one, context, atMessage=2)) == SAID[:2]
    assert _texts_of_prompt(_post_prompt(one, context, atVersion=3)) == SAID[:3]


def test_the_next_prompt_knows_what_is_cached(one: Service) -> None:
    context = one.talk(*(SAID * 4))
    first = _post_prompt(one, context, system="You are brief.", cacheHint={"id": "orders", "ttl": 300})
    assert first["cache"]["predictedTokens"] == 0
    one.say(context, "And now?")
    second = _post_prompt(one, context, system="You are brief.", after=first["manifest"])
    assert second["cache"]["predictedTokens"] > 1024
    assert second["cache"]["firstChange"] is None
    third = _post_prompt(one, context, system="You are long.", after=second["manifest"])
    assert third["cache"]["firstChange"]["path"] == "prompt/system"


def test_everything_has_a_reason_when_it_is_asked_for(one: Service) -> None:
    context = one.talk(*SAID)
    data = _post_prompt(one, context, budget=400, user="Go on.", ledger=True)
    verdicts = {each["version"]: each for each in data["verdicts"] if each["version"]}
    assert verdicts[30]["included"]
    assert not verdicts[1]["included"]
    assert verdicts[1]["reason"].startswith("older than the first message of the history")
    assert "verdicts" not in _post_prompt(one, context, budget=400)


def test_what_is_required_and_does_not_fit_is_told_where(one: Service) -> None:
    context = one.talk("a")
    reply = one.client.post(
        f"/contexts/{context}/prompt", json={"budget": 50, "system": "You are brief. " * 40}
    )
    assert (reply.status_code, reply.json()["code"]) == (422, "FIT")
    assert reply.json()["where"]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"codec": "cohere"}, "codec"),
        ({"budget": 0}, "budget"),
        ({"budget": 3_000_000}, "budget"),
        ({"recall": {"query": " "}}, "query"),
        ({"after": {"format": 99}}, "manifest"),
        ({"tools": [{"description": "nameless"}]}, "tools[0].name"),
        ({"assistant": "Hello."}, "assistant"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_what_makes_no_sense_is_refused_with_the_field(
    one: Service, body: dict[str, Any], field: str
) -> None:
    context = one.talk("a")
    reply = one.client.post(f"/contexts/{context}/prompt", json={"budget": 800, **body})
    assert (reply.status_code, reply.json()["errors"][0]["field"]) == (400, field)
