"""The providers' own SDKs through the gateway: only the base URL differs."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest

from acms.gateway import GatewayConfig
from tests.gateway.conversations import TOOLS
from tests.gateway.serving import Running, running_gateway

openai = pytest.importorskip("openai")
anthropic = pytest.importorskip("anthropic")

TURNS = 12
TEXT = "ledger invoice harbour " * 100


@pytest.fixture
def running() -> Iterator[Running]:
    with running_gateway(GatewayConfig(budget=2_500)) as made:
        yield made


def check(running: Running) -> None:
    """Nothing was refused, something was trimmed, and it was one conversation."""
    assert not running.upstream.problems
    (texts,) = running.sessions().values()
    assert len([text for text in texts if "Turn" in text]) == TURNS
    lengths = [len(one.body) for one in running.upstream.received]
    assert any(later < earlier for earlier, later in pairwise(lengths))


@pytest.mark.parametrize("streams", [False, True])
def test_openai_chat(running: Running, streams: bool) -> None:
    client = openai.OpenAI(base_url=f"{running.url}/v1", api_key="sk-test", max_retries=0)
    messages: list[dict[str, Any]] = []
    for turn in range(TURNS):
        messages.append({"role": "user", "content": f"Turn {turn} {TEXT}"})
        asked: dict[str, Any] = {"model": "gpt-4o", "messages": messages, "tools": TOOLS["openai-chat"]}
        if streams:
            with client.chat.completions.stream(**asked) as stream:
                answer = stream.get_final_completion()
        else:
            answer = client.chat.completions.create(**asked)
        messages.append({"role": "assistant", "content": answer.choices[0].message.content})
    check(running)


@pytest.mark.parametrize("streams", [False, True])
def test_openai_responses(running: Running, streams: bool) -> None:
    client = openai.OpenAI(base_url=f"{running.url}/v1", api_key="sk-test", max_retries=0)
    items: list[Any] = []
    for turn in range(TURNS):
        items.append({"role": "user", "content": f"Turn {turn} THINK {TEXT}"})
        asked: dict[str, Any] = {"model": "gpt-4o", "input": items, "store": False}
        if streams:
            with client.responses.stream(**asked) as stream:
                for _ in stream:
                    pass
                answer = stream.get_final_response()
        else:
            answer = client.responses.create(**asked)
        for one in answer.output:
            item = one.model_dump(exclude_none=True)
            for part in item.get("content", ()):
                part.pop("parsed", None)
            items.append(item)
    check(running)


@pytest.mark.parametrize("streams", [False, True])
def test_anthropic(streams: bool) -> None:
    with running_gateway(GatewayConfig(budget=4_500)) as running:
        client = anthropic.Anthropic(base_url=running.url, api_key="sk-test", max_retries=0)
        messages: list[Any] = []
        for turn in range(TURNS):
            messages.append({"role": "user", "content": f"Turn {turn} THINK {TEXT}"})
            asked: dict[str, Any] = {"model": "claude-opus-4-8", "max_tokens": 99, "messages": messages}
            if streams:
                with client.messages.stream(**asked) as stream:
                    answer = stream.get_final_message()
            else:
                answer = client.messages.create(**asked)
            content = [
                block.model_dump(exclude_none=True, exclude={"parsed_output"}) for block in answer.content
            ]
            messages.append({"role": "assistant", "content": content})
        check(running)


def test_an_error_of_the_provider_is_the_sdks_error(running: Running) -> None:
    client = openai.OpenAI(base_url=f"{running.url}/v1", api_key="sk-test", max_retries=0)
    with pytest.raises(openai.BadRequestError, match="answers no call"):
        client.chat.completions.create(
            model="gpt-4o", messages=[{"role": "tool", "tool_call_id": "x", "content": "y"}]
        )
    listed = client.models.list()
    assert listed.data[0].id == "gpt-5"
