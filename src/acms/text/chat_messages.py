"""Items as provider-ready chat messages, and what they cost.

The count is that of OpenAI's published recipe (cookbook, "How to count tokens with tiktoken"): three tokens a message,
its encoded values, and three for the reply. Tool calls are not documented there; they are charged as an upper bound.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from acms.model import Json, Media, Part, Role, Text, ToolCall, ToolResult
from acms.ports import TokenCounter
from acms.results import ContextItem

PER_MESSAGE = 4
PER_CALL = 8
PRIMER = 3
"""Tokens every reply is primed with."""

NO_RESULT = "(no result was recorded)"
"""Stands for the answer to a tool call that has none yet: providers refuse a call without an answer."""

RECALLED = ("<recalled>\n", "\n</recalled>")
"""Around text from the past, so that it reads as data and not as something said now."""

ORPHAN = ("<tool_result>\n", "\n</tool_result>")
SUMMARY = ("<summary>\n", "\n</summary>")

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")


class ChatFrame:
    """The frame of a chat message: role, name, tool ids and wrapping."""

    def __init__(self, counter: TokenCounter) -> None:
        self._count = counter.count
        self._known: dict[str, int] = {}

    def _of(self, text: str) -> int:
        cost = self._known.get(text)
        if cost is None:
            cost = self._known[text] = self._count(text)
        return cost

    def cost(self, role: Role | None, parts: Sequence[Part], speaker: str | None = None) -> int:
        """Return the tokens around the content of one message."""
        cost = PER_MESSAGE
        if speaker is not None and _NAME.match(speaker):
            cost += 1 + self._of(speaker)
        if role is None:
            cost += self._of(SUMMARY[0]) + self._of(SUMMARY[1])
        for part in parts:
            if isinstance(part, ToolCall):
                cost += PER_CALL + self._count(part.call_id)
            elif isinstance(part, ToolResult):
                cost += PER_CALL + self._count(part.call_id)
                if role is Role.USER:
                    cost += self._of(ORPHAN[0]) + self._of(ORPHAN[1])
        return cost


def render(items: Sequence[ContextItem]) -> list[dict[str, Json]]:
    """Write items as chat messages, valid for a provider: every tool call is followed by its answers."""
    written: list[dict[str, Json]] = []
    waiting: dict[tuple[str | None, str], None] = {}
    for item in items:
        results = [part for part in item.parts if isinstance(part, ToolResult)]
        if item.role is Role.TOOL and results:
            stray: list[str] = []
            for part in results:
                if (item.group, part.call_id) in waiting:
                    del waiting[item.group, part.call_id]
                    written.append(_answer(part.call_id, part.output))
                else:
                    stray.append(part.output)
            if stray and written:  # they answer no call here: kept as text of the answer beside them
                written[-1]["content"] = "\n".join([written[-1]["content"] or "", *stray])
            continue
        message = _message(item)
        written.append(message)
        calls = [part for part in item.parts if isinstance(part, ToolCall)]
        if calls:
            message["tool_calls"] = [
                {
                    "id": call.call_id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments},
                }
                for call in calls
            ]
            waiting.update({(item.group, call.call_id): None for call in calls})
    written.extend(_answer(call_id, NO_RESULT) for _, call_id in waiting)
    return written


def _answer(call_id: str, output: str) -> dict[str, Json]:
    return {"role": "tool", "tool_call_id": call_id, "content": output}


def _message(item: ContextItem) -> dict[str, Json]:
    if item.role is None:
        return {"role": "user", "content": wrap(item.content, SUMMARY)}
    content: str | None = item.content
    if item.parts and not item.truncated:
        lines = [
            part.text if isinstance(part, Text) else f"[{part.mime}: {part.ref}]"
            for part in item.parts
            if isinstance(part, Text | Media)
        ]
        content = "\n".join(lines) or None
        if any(isinstance(part, ToolResult) for part in item.parts):
            content = wrap(item.content, ORPHAN)
    message: dict[str, Json] = {"role": item.role.value, "content": content}
    if content is None and not any(isinstance(part, ToolCall) for part in item.parts):
        message["content"] = ""
    if item.actor_id is not None and _NAME.match(item.actor_id):
        message["name"] = item.actor_id
    return message


def wrap(text: str, around: tuple[str, str]) -> str:
    """Put a text between two marks."""
    return around[0] + text + around[1]


def recalled(text: str) -> dict[str, Json]:
    """Write recalled text as one message of delimited data."""
    return {"role": "user", "content": wrap(text, RECALLED)}


def tokens(messages: Sequence[Mapping[str, Json]], counter: TokenCounter) -> int:
    """Return what chat messages cost, the primer of the reply included."""
    total = PRIMER
    for message in messages:
        total += PER_MESSAGE
        if message.get("content"):
            total += counter.count(message["content"])
        if "name" in message:
            total += 1 + counter.count(message["name"])
        if "tool_call_id" in message:
            total += PER_CALL + counter.count(message["tool_call_id"])
        for call in message.get("tool_calls", ()):
            function = call["function"]
            total += PER_CALL + counter.count(call["id"])
            total += counter.count(function["name"]) + counter.count(function["arguments"])
    return total
