"""Requests that are too long: within the budget, valid, word for word, growing at their end."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest

from acms.codecs import named
from acms.gateway import GatewayConfig
from tests.gateway.conversations import Conversation
from tests.gateway.serving import Running, running_gateway

WORDS = "ledger invoice harbour cargo printer valve turbine sensor archive tunnel bridge orchard pigment copper".split()
FACTS = {
    3: "Remember: the harbour office moved to 14 Kestrel Street.",
    6: "Decision: orders use PostgreSQL 18.",
}
QUESTIONS = {
    30: ("Where is the harbour office?", "Kestrel Street"),
    35: ("Which database do orders use?", "PostgreSQL 18"),
}
BUDGETS = {"openai-chat": 6_000, "openai-responses": 6_000, "anthropic": 14_000}
"""About thirty turns; Anthropic's vocabulary is not public, and its counts are bounds."""


@pytest.fixture
def running() -> Iterator[Running]:
    with running_gateway(GatewayConfig(budget=BUDGETS["openai-chat"])) as made:
        yield made


def talk(client: Conversation, turns: int, seed: int = 5) -> None:
    """Talk for some turns with tool calls and thinking, as an agent does."""
    chance = random.Random(seed)
    for turn in range(turns):
        text = FACTS.get(turn) or f"Turn {turn}: " + " ".join(chance.choices(WORDS, k=60))
        if turn in QUESTIONS:
            text = QUESTIONS[turn][0]
        if turn % 3 == 0:
            text = "THINK " + text
        text += '\nCALL f {"a": 1}\nCALL f {"a": 2}' if turn % 4 == 1 else " SIZE=400"
        client.say(text, result="result " + " ".join(chance.choices(WORDS, k=80)))


def list_of(body: Any) -> list[dict[str, Any]]:
    return body.get("messages") or body["input"]


LONG_TALKS = {
    "openai-chat": ("openai-chat", False, {}),
    "openai-chat, named": ("openai-chat", True, {"x-acms-session": "long"}),
    "openai-responses": ("openai-responses", True, {}),
    "anthropic": ("anthropic", True, {}),
}
"""The protocol of a conversation, whether its answers are streamed, and its header fields."""


@pytest.fixture(scope="module", params=LONG_TALKS)
def long_talk(request: pytest.FixtureRequest) -> Iterator[tuple[Running, Conversation]]:
    """A conversation of 42 turns and the gateway that trimmed its requests."""
    protocol, stream, headers = LONG_TALKS[request.param]
    with running_gateway(GatewayConfig(budget=BUDGETS[protocol])) as running:
        client = Conversation(running.client, protocol, headers=headers, stream=stream)
        talk(client, 42)
        yield running, client


def test_a_long_conversation_stays_within_its_budget(long_talk: tuple[Running, Conversation]) -> None:
    running, client = long_talk
    assert not running.upstream.problems
    received = [one.json for one in running.upstream.received]
    assert len(received) == len(client.answers), "nothing was sent twice"
    codec = named(client.protocol, "gpt-4o" if client.protocol != "anthropic" else None)
    outcomes = [answer.headers["x-acms-memory"] for answer in client.answers]
    assert not [one for one in outcomes if one.startswith("bypassed")]
    assert "recalled" in outcomes
    for body in received:
        assert codec.count(body).tokens <= BUDGETS[client.protocol]
    assert len(running.sessions()) == 1
    for question, answer in QUESTIONS.values():
        asked = next(body for body in received if question in json.dumps(list_of(body)[-1]))
        assert answer in json.dumps(asked)


def test_requests_grow_at_their_end(long_talk: tuple[Running, Conversation]) -> None:
    running, _ = long_talk
    lists = [list_of(one.json) for one in running.upstream.received]
    grown = 0
    for before, after in pairwise(lists):
        grown += after[: len(before)] == before
    assert grown >= 45, f"{grown} of {len(lists) - 1}"


def test_messages_of_the_client_are_sent_word_for_word(long_talk: tuple[Running, Conversation]) -> None:
    running, client = long_talk
    sent = list_of(running.newest.json)
    own = [message for message in sent if message not in client.messages and message.get("role") != "system"]
    for message in own:
        text = json.dumps(message)
        thinking_lost = client.protocol == "anthropic" and message["role"] == "assistant"
        assert thinking_lost or "<recalled>" in text or "left out here" in text
    raw = running.newest.body.decode()
    for message in sent:
        if message in client.messages:
            assert json.dumps(message, separators=(",", ":"), ensure_ascii=False) in raw


def test_text_of_the_gateway_is_not_learned(long_talk: tuple[Running, Conversation]) -> None:
    running, _ = long_talk
    texts = [text for texts in running.sessions().values() for text in texts]
    assert texts
    assert not [text for text in texts if "<recalled>" in text]


def test_what_cannot_be_trimmed_is_sent_as_it_is(running: Running) -> None:
    client = Conversation(running.client, "anthropic", system="rule " * 8_000)
    client.say("hello")
    assert client.memory == "bypassed;the system text and the tools alone exceed the budget"
    assert running.newest.json == json.loads(client.answers[-1].request.content)
    big = Conversation(running.client, "openai-chat")
    big.say("word " * 8_000)
    assert big.memory.startswith("bypassed;")


def test_the_budget_of_one_request_is_in_its_header(running: Running) -> None:
    client = Conversation(running.client, "openai-chat", headers={"x-acms-budget": "900"})
    for turn in range(12):
        client.say(f"Turn {turn} " + "ledger invoice " * 40)
    codec = named("openai-chat", "gpt-4o")
    assert codec.count(running.newest.json).tokens <= 900
    assert client.memory in ("trimmed", "recalled")


def test_a_refused_body_of_the_gateway_is_followed_by_the_clients_own(running: Running) -> None:
    client = Conversation(running.client, "openai-chat", headers={"x-acms-budget": "900"})
    for turn in range(12):
        client.say(f"Turn {turn} " + "ledger invoice " * 40)
    running.upstream.refuses_shorter_than = 14
    before = len(running.upstream.received)
    client.say("one more")
    assert client.memory == "bypassed;refused with 400"
    ours, theirs = running.upstream.received[before:]
    assert len(list_of(ours.json)) < len(list_of(theirs.json))
    assert theirs.body == client.answers[-1].request.content


def test_other_sessions_of_the_namespace_are_recalled_when_that_is_on() -> None:
    config = GatewayConfig(recall="namespace")
    with running_gateway(config) as running:
        Conversation(running.client, "openai-chat").say("The harbour office moved to 14 Kestrel Street.")
        running.settle()
        related = Conversation(running.client, "openai-chat")
        related.say("Where is the harbour office?")
        assert related.memory == "recalled"
        assert "Kestrel Street" in running.newest.body.decode()
        before = running.newest.json["messages"]
        related.say("Thanks, bye.")
        assert running.newest.json["messages"][: len(before)] == before, "what was inserted stays"
        other = Conversation(running.client, "openai-chat")
        other.say("Write a poem about spring rain.")
        assert other.memory == "untouched"


@pytest.mark.parametrize("blocks", [False, True])
def test_a_cache_mark_of_a_message_that_is_left_out_moves_to_the_next_one(blocks: bool) -> None:
    mark = {"type": "ephemeral", "ttl": "1h"}
    with running_gateway(GatewayConfig(budget=1_500)) as running:
        client = Conversation(running.client, "anthropic", tools=False)
        client.say("Keep the books.")
        ledger = [{"type": "text", "text": "invoice " * 60, "cache_control": mark}]
        client.messages.append({"role": "user", "content": ledger})
        client.ask()
        for turn in range(12):
            text = f"Turn {turn} " + "harbour " * 60
            content = [{"type": "text", "text": text}] if blocks else text
            client.messages.append({"role": "user", "content": content})
            client.ask()
        sent = running.newest.json["messages"]
        assert not running.upstream.problems
    assert "invoice" not in json.dumps(sent)
    marked = [one for one in sent if "cache_control" in json.dumps(one)]
    assert len(marked) == 1, "no mark is lost, and none is there twice"
    assert marked[0]["content"][-1]["cache_control"] == mark


def test_a_system_message_in_the_list_stays_where_the_provider_takes_it() -> None:
    """Claude Code writes one behind the first message of the user."""
    rules = {"role": "system", "content": "Answer in one word. " * 20}
    with running_gateway(GatewayConfig(budget=1_500)) as running:
        client = Conversation(running.client, "anthropic", tools=False)
        client.messages += [{"role": "user", "content": "Keep the books."}, rules]
        client.ask()
        outcomes = {client.memory}
        for turn in range(12):
            client.messages.append({"role": "user", "content": f"Turn {turn} " + "harbour " * 60})
            client.ask()
            outcomes.add(client.memory)
            sent = running.newest.json["messages"]
            place = sent.index(rules)
            assert sent[place - 1]["role"] == "user"
            assert place > 0
            assert [one["role"] for one in sent[place + 1 : place + 2]] in ([], ["assistant"])
        assert not running.upstream.problems
    assert outcomes & {"trimmed", "recalled"}
    assert not any(outcome.startswith("bypassed") for outcome in outcomes)
    assert len(sent) < 20
