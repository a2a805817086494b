"""Counts of requests that clients send and no codec writes: counting never fails."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acms.codecs import Exactness, named
from acms.providers.codecs.request_count import CountingCodec

MODELS = {
    "openai-chat": "gpt-4o",
    "openai-responses": "gpt-5",
    "anthropic": "claude-opus-4-8",
    "gemini": "gemini-3-pro",
}
SCHEMA = {"type": "object", "properties": {"host": {"type": "string"}}}
GRAMMAR = "start: /[a-z]+/ " * 40
HALF = "half a pair \ud83d of a smile"

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(st.characters(), max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
messages = st.dictionaries(
    st.sampled_from(["role", "content", "name", "tool_calls", "type", "parts", "call_id", "output"]),
    st.sampled_from(["user", "assistant", "tool", "message", "function_call"]) | json_values,
)
requests = st.fixed_dictionaries(
    {},
    optional={
        "messages": st.lists(messages, max_size=3) | json_values,
        "input": st.lists(messages, max_size=3) | json_values,
        "contents": st.lists(messages, max_size=3) | json_values,
        "system": json_values,
        "tools": json_values,
        "config": json_values,
    },
)


def codec(name: str) -> CountingCodec:
    found = named(name, MODELS[name])
    assert isinstance(found, CountingCodec)
    return found


def chat(*tools: dict[str, Any], text: str = "Where is web-1?") -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], "tools": list(tools)}


@pytest.mark.parametrize("name", MODELS)
@given(request=requests)
def test_any_request_is_counted(name: str, request: dict[str, Any]) -> None:
    count = codec(name).count(request)
    assert 0 <= count.tokens <= count.upper_bound


@pytest.mark.parametrize("model", ["gpt-4o", "gpt-5", "qwen3"])
def test_a_tool_without_parameters_is_counted(model: str) -> None:
    chats = named("openai-chat", model)
    bare = chats.count(chat({"type": "function", "function": {"name": "f"}}))
    full = chats.count(chat({"type": "function", "function": {"name": "f", "parameters": SCHEMA}}))
    assert chats.count(chat()).tokens < bare.tokens < full.tokens


def test_custom_tools_and_their_calls_are_counted_with_all_their_text() -> None:
    grammar = {"type": "grammar", "grammar": {"syntax": "lark", "definition": GRAMMAR}}
    chats = codec("openai-chat")
    count = chats.count(chat({"type": "custom", "custom": {"name": "f", "format": grammar}}))
    assert count.exactness is not Exactness.EXACT
    assert count.tokens > chats.counter.count(GRAMMAR)
    call = {"id": "c1", "type": "custom", "custom": {"name": "f", "input": GRAMMAR}}
    called = {"role": "assistant", "content": None, "tool_calls": [call]}
    assert chats.count({"messages": [called]}).tokens > chats.counter.count(GRAMMAR)
    responses = codec("openai-responses")
    request = {"input": "hi", "tools": [{"type": "custom", "name": "f", "format": grammar}]}
    assert responses.count(request).tokens > responses.counter.count(GRAMMAR)


@pytest.mark.parametrize("tool", [{"type": "web_search"}, {"type": "local_shell"}])
def test_hosted_tools_are_counted(tool: dict[str, str]) -> None:
    responses = codec("openai-responses")
    assert responses.count({"input": "hi", "tools": [tool]}).tokens > responses.count({"input": "hi"}).tokens


@pytest.mark.parametrize("name", ["openai-chat", "anthropic"])
async def test_half_a_surrogate_pair_counts_as_a_question_mark(name: str) -> None:
    found = codec(name)
    assert await found.count_request(chat(text=HALF)) == found.count(chat(text=HALF.replace("\ud83d", "?")))
