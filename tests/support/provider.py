"""What a model provider accepts: the rules of chat completions, written down once for all tests."""

from __future__ import annotations

from typing import Any


def check_valid(messages: list[dict[str, Any]]) -> None:
    """What chat completions ask: every call answered at once and exactly once, every answer to a call."""
    waiting: set[str] = set()
    for message in messages:
        if message["role"] == "tool":
            assert message["tool_call_id"] in waiting
            assert isinstance(message["content"], str)
            waiting.remove(message["tool_call_id"])
            continue
        assert not waiting, "a call was not answered before somebody else spoke"
        assert message["role"] in ("system", "developer", "user", "assistant")
        assert isinstance(message["content"], str) or message.get("tool_calls")
        assert "tool_call_id" not in message
        for call in message.get("tool_calls", ()):
            assert message["role"] == "assistant"
            assert set(call) == {"id", "type", "function"}
            assert set(call["function"]) == {"name", "arguments"}
            assert call["id"] not in waiting
            waiting.add(call["id"])
    assert not waiting
