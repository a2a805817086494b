"""A remote session in a prompt: the request is byte for byte that of a session of this process over the same store."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from acms import Text, ValidationError, View, open_storage, sync
from acms.client import Client, RemoteSession
from acms.codecs import AnthropicMessages, OpenAIChat, OpenAIResponses
from acms.kv import open_kv
from acms.ports import Codec
from acms.prompt import Prompt
from tests.server.serving import Service, serving
from tests.support.talk import session_on

TOOL = {
    "name": "disk",
    "description": "How full a disk is.",
    "parameters": {"type": "object", "properties": {}},
}
QUESTION = "which database does the orders service use?"


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The address of a store."""
    return f"sqlite:///{tmp_path_factory.mktemp('prompting') / 'log.db'}"


@pytest.fixture(scope="module")
def service(url: str) -> Iterator[Service]:
    """A service over it."""
    with serving(url) as running:
        yield running


@pytest.fixture
async def client(service: Service) -> AsyncIterator[Client]:
    """A client of it."""
    async with Client(service.url) as made:
        yield made


async def ingest_decisions(session: RemoteSession) -> None:
    await session.ingest("user", "Decision: the orders service uses PostgreSQL 18.")
    await session.ingest("assistant", "", tool_calls=[{"id": "c1", "name": "disk", "arguments": "{}"}])
    await session.ingest("tool", "40% used", tool_call_id="c1")
    talk = [f"Message {n}: {n} rows a second are written by the cart." for n in range(160)]
    await session.ingest_many([{"role": "user", "content": text} for text in talk])
    await session.tag("then", 20)


def plain_prompt(codec: Codec, session: View | RemoteSession) -> Prompt:
    return (
        Prompt(codec)
        .system("Be brief.")
        .history(session)
        .recall(session, QUESTION)
        .user(QUESTION)
        .tools([TOOL])
    )


def intricate_prompt(codec: Codec, session: Any) -> Prompt:
    return (
        Prompt(codec)
        .system([Text("Be brief."), Text("Be kind.")])
        .truncate([session.at("then"), "and then?"], tokens=60, keep="start", priority=7)
        .section("recent", lambda empty: empty.last(session, n=3), ceiling=200, priority=3)
        .omit("An example.")
        .cache_hint(id="rules", version="2", ttl=600)
        .recall(session, QUESTION, tokens=200, keep="turn", exclude=["m_x"], min_relevance=0.01)
        .assistant("Let me see.", tool_calls=[{"id": "c9", "name": "disk", "arguments": '{"a": 1}'}])
        .tool("c9", "full", is_error=True)
        .user(QUESTION, name="ann")
        .tools([TOOL])
    )


BUDGET = 2500
LEARNT = OpenAIChat("some-model")
LEARNT.calibration.observe(1000, 3000)


@pytest.mark.parametrize("build", [plain_prompt, intricate_prompt])
@pytest.mark.parametrize(
    "codec",
    [
        OpenAIChat("gpt-5"),
        OpenAIResponses("gpt-5"),
        AnthropicMessages("claude-sonnet-4-5", max_tokens=512),
        LEARNT,
    ],
    ids=["chat", "responses", "anthropic", "learnt"],
)
async def test_a_remote_session_renders_the_same_bytes(
    client: Client, url: str, build: Any, codec: Codec
) -> None:
    remote = client.session(f"{build.__name__}-{codec.name}-{codec.model}")
    await ingest_decisions(remote)
    await build(codec, remote).render(budget=BUDGET)  # from now on what was recalled stays
    over_http = await build(codec, remote).render(budget=BUDGET)
    async with session_on(open_storage(url), remote.session_id) as own:
        in_process = await build(codec, own).render(budget=BUDGET)
        assert json.dumps(over_http.payload) == json.dumps(in_process.payload)
        assert over_http.manifest.to_json() == in_process.manifest.to_json()
        for name in ("tokens", "use", "cache", "steps", "warnings", "budget"):
            assert getattr(over_http, name) == getattr(in_process, name), name
        assert [one.sources for one in over_http.messages] == [one.sources for one in in_process.messages]
        assert [one.parts for one in over_http.messages] == [one.parts for one in in_process.messages]
        page = await own.history(limit=500)
        for entry in page.entries:
            assert over_http.seen(entry.id) == in_process.seen(entry.id)
            assert over_http.ledger.why(entry.id).included == in_process.ledger.why(entry.id).included
        await remote.ingest("user", "And now?")
        later = await build(codec, remote).render(budget=BUDGET, after=over_http)
        assert later.cache.compared
        assert later.cache == (await build(codec, own).render(budget=BUDGET, after=in_process)).cache
    assert codec.name in repr(later)


async def test_what_a_service_cannot_be_told_is_refused(client: Client, service: Service) -> None:
    remote = client.session("refused")
    await remote.ingest("user", "x")
    store, kv = open_storage("memory://"), open_kv("memory://")
    async with session_on(store) as own, Client(service.url) as other:
        elsewhere = other.session("refused")
        chat = OpenAIChat("gpt-5")
        for prompt, field, hint in (
            (Prompt(chat).history(remote).recall(own, "x"), "prompt", "one Client"),
            (Prompt(chat).history(remote).section("s", [elsewhere]), "prompt", "one Client"),
            (Prompt(chat).history(remote).pinned_kv(store=kv, namespace="n"), "prompt", "Client.prompt"),
            (Prompt(chat).summary(remote, id="s", store=kv), "prompt", "Client.prompt"),
            (Prompt(OpenAIChat("gpt-5", margin=0.5)).history(remote), "codec", "model alone"),
            (
                Prompt(AnthropicMessages("claude-sonnet-4-5", reasoning=False)).history(remote),
                "codec",
                "alone",
            ),
        ):
            with pytest.raises(ValidationError) as caught:
                await prompt.render(budget=500)
            assert caught.value.field == field
            assert hint in " ".join(caught.value.options)
        with pytest.raises(ValidationError, match="within a budget"):
            await Prompt(chat).history(remote).render()
    blocking: Any = sync.RemoteSession(remote)
    with pytest.raises(ValidationError) as caught:
        Prompt(chat).history(blocking)
    assert caught.value.options == ("from acms.sync import Prompt",)
    await kv.aclose()
    for body, field in (
        ({"steps": [], "user": "x"}, "user"),
        ({"steps": [{"type": "nothing"}]}, "steps[0]"),
        ({"steps": [{"type": "section", "name": "a/b", "content": []}]}, "name"),
        ({"maxTokens": 5}, "maxTokens"),
        ({"calibration": {}}, "state"),
    ):
        reply = service.client.post(f"/contexts/{remote.log.id}/prompt", json={"budget": 500, **body})
        assert (reply.status_code, reply.json()["errors"][0]["field"]) == (400, field), reply.text


async def test_a_prompt_can_be_described_and_waited_for(client: Client, service: Service) -> None:
    remote = client.session("described")
    await remote.ingest("user", "We chose PostgreSQL.")
    service.client.put("/pins/user:1", json={"key": "user:1/name", "value": "Sam"})
    asked = {"codec": "openai-chat", "model": "gpt-5", "budget": 500, "pins": "user:1", "user": "Go on."}
    rendered = await client.prompt(remote, asked)
    assert [part in str(rendered.payload) for part in ("Sam", "PostgreSQL", "Go on.")] == [True] * 3
    assert rendered.tokens.upper_bound <= 500

    def waiting() -> list[Any]:
        with sync.Client(service.url) as blocking:
            session = blocking.session("described")
            made = sync.Prompt(OpenAIChat("gpt-5")).history(session).user("Go on.").render(budget=500)
            new = sync.Prompt(OpenAIChat("gpt-5")).history(blocking.session("new")).user("Hi.").render(100)
            return [blocking.prompt(session, asked).payload, made.payload, new.payload]

    described, made, new = await asyncio.to_thread(waiting)
    assert described == rendered.payload
    assert [one["content"] for one in made["messages"]] == ["We chose PostgreSQL.", "Go on."]
    assert [one["content"] for one in new["messages"]] == ["Hi."]
