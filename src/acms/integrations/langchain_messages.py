"""Convert LangChain's messages to chat messages with additional fields beside them, and back."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple
from uuid import uuid4

from langchain_core.messages import (
    BaseMessage,
    BaseMessageChunk,
    ToolMessage,
    convert_to_messages,
    convert_to_openai_messages,
    message_chunk_to_message,
)
from langchain_core.tools import BaseTool
from langchain_core.utils.function_calling import convert_to_openai_tool

from acms.integrations.model_input import raw_of
from acms.model import Entry, Json, Media, Raw, Text, ToolCall, ToolResult
from acms.ports import TokenCounter
from acms.text.chat_messages import RECALLED, render_media_part, wrap_summary

__all__ = [
    "Restored",
    "chat_message",
    "convert_tool_schema",
    "message_of",
    "restore_message_extras",
    "serialize_message",
]

_VENDOR = "langchain"
_CALLED = {"tool_calls", "tool_call_id"}
_PLAIN = {"type", "id", *_CALLED}
_READ = ("content", "additional_kwargs")
"""Fields that may hold more than a chat message, and are sent to a model: reasoning, calls of server tools."""


class Restored(NamedTuple):
    """A LangChain message made of a chat message, and the fields of the original that a chat message does not have."""

    message: BaseMessage
    other_fields: dict[str, Any]


def serialize_message(message: BaseMessage) -> dict[str, Any]:
    """Return a message as ACMS stores it: a chat message under its id, and its other fields in a `Raw` part.

    A message without an id is given one.
    """
    if isinstance(message, BaseMessageChunk):
        message = message_chunk_to_message(message)
    if not message.id:
        message.id = str(uuid4())
    chat: dict[str, Any] = {**convert_to_openai_messages(message), "id": message.id}
    other_fields = message.model_dump(exclude_defaults=True, exclude=_PLAIN)
    if isinstance(message.content, str) or _has_inline_media(message.content):
        other_fields.pop("content", None)
    if isinstance(message, ToolMessage) and not _is_json(message.artifact):
        other_fields.pop("artifact", None)
    is_silent = not str(chat["content"] or "").strip() and not chat.keys() & _CALLED
    if other_fields or is_silent:  # an empty answer of a model is stored too, and needs a part
        chat["parts"] = [Raw(_VENDOR, _dump_json(other_fields))]
    return chat


def message_of(
    chat: dict[str, Json], ids: Sequence[str], keys: dict[str, str], entries: dict[str, Entry]
) -> Restored:
    """Return a chat message that shows some entries as a LangChain message, with the id under which it was stored.

    The other fields of the original are left out if its text changed: an excerpt, an edit, a redacted text.
    """
    (message,) = convert_to_messages([chat])
    recalled = str(chat["content"]).startswith(RECALLED[0])
    if recalled or len(ids) != 1 or ids[0] not in keys:
        return Restored(message, {})
    id = ids[0]
    message.id = keys[id]
    raw = raw_of(entries[id].parts, _VENDOR) if id in entries else None
    try:
        other_fields = json.loads(raw or "{}")
    except ValueError:  # redaction removed text from it, and it is no JSON any more
        return Restored(message, {})
    if "content" in other_fields and _text_of(other_fields["content"]) != _text_of(message.content):
        del other_fields["content"]
    return Restored(message, other_fields)


def restore_message_extras(
    restored: Sequence[Restored], spare: int, counter: TokenCounter
) -> list[BaseMessage]:
    """Return messages with their other fields.

    Fields that a model reads are only restored in the current turn, the newest first, as long as they cost no more than
    `spare` tokens: a provider may refuse older reasoning behind another prefix.
    """
    messages: list[BaseMessage] = []
    is_current_turn = True
    for message, other_fields in reversed(restored):
        is_current_turn = is_current_turn and message.type != "human"
        # Fields that the model reads, such as reasoning, cost tokens.
        costly_fields = {name: other_fields[name] for name in _READ if name in other_fields}
        if costly_fields:
            cost = counter.count(_dump_json(costly_fields))
            if is_current_turn and cost <= spare:
                spare -= cost
            else:
                other_fields = {
                    name: value for name, value in other_fields.items() if name not in costly_fields
                }
        messages.append(message.model_copy(update=other_fields))
    messages.reverse()
    return messages


def chat_message(entry: Entry) -> dict[str, Json]:
    """Return an entry as a chat message."""
    if entry.role is None:
        return {"role": "user", "content": wrap_summary(entry.content)}
    text = entry.content
    if entry.parts:
        text = "\n".join([part.text for part in entry.parts if isinstance(part, Text)])
    chat: dict[str, Json] = {"role": entry.role.value, "content": text}
    media = [render_media_part(part) for part in entry.parts if isinstance(part, Media)]
    if media:
        chat["content"] = [{"type": "text", "text": text}, *media]
    for part in entry.parts:
        if isinstance(part, ToolResult):
            chat |= {"tool_call_id": part.call_id, "content": part.output}
        elif isinstance(part, ToolCall):
            function = {"name": part.name, "arguments": part.arguments}
            call = {"id": part.call_id, "type": "function", "function": function}
            chat.setdefault("tool_calls", []).append(call)
    return chat


def convert_tool_schema(tool: BaseTool | dict[str, Any]) -> dict[str, Any] | None:
    """Return the schema of a function, or None for a tool that runs at the provider."""
    if isinstance(tool, dict) and tool.get("type", "function") != "function":
        return None
    return convert_to_openai_tool(tool)


def _dump_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


def _text_of(content: Any) -> str:
    """Return the text of a message's content, as a log has it: one line for each text."""
    if isinstance(content, str):
        return content
    texts: list[str] = []
    for part in content:
        if isinstance(part, str):
            texts.append(part)
        elif part.get("type") == "text":
            texts.append(part["text"])
    return "\n".join(filter(None, texts))


def _has_inline_media(value: Any) -> bool:
    """Return whether a content contains the bytes of media, which a log does not hold."""
    if isinstance(value, list):
        return any(map(_has_inline_media, value))
    if not isinstance(value, dict):
        return False
    if "base64" in value or "base64" in (value.get("type"), value.get("source_type")):
        return True
    for name in ("url", "image_url", "file_data"):
        link = value.get(name)
        if isinstance(link, str) and link.startswith("data:"):
            return True
    return any(map(_has_inline_media, value.values()))


def _is_json(value: Any) -> bool:
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return False
    return True
