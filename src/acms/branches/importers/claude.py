"""Exports of Claude: `conversations.json`, a list of conversations with their messages in order.

Each message has blocks of text, thinking and calls of tools with their results; older exports have a text only. Where
messages name their parents, the branch that ends last is read. Text that was taken from an attached file is part of
what was said; a file without is a reference.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from acms.branches.importers.chat import moment
from acms.branches.importers.conversation import Conversation, mappings
from acms.log.foreign import Turn
from acms.model import Json, Media, Part, Reasoning, ToolCall, ToolResult

__all__ = ["conversations", "recognise"]


def recognise(document: Json) -> bool:
    """Return whether a document is such an export."""
    return any(isinstance(one.get("chat_messages"), list) for one in _listed(document)[:1])


def conversations(document: Json) -> Iterator[Conversation]:
    """Read the conversations of an export."""
    for one in _listed(document):
        branch = _branch(mappings(one.get("chat_messages")), one.get("current_leaf_message_uuid"))
        messages = [turn for message in branch for turn in _turns(message)]
        yield Conversation(id=str(one.get("uuid")), title=str(one.get("name") or ""), messages=messages)


def _listed(document: Json) -> list[Mapping[str, Json]]:
    return mappings(document if isinstance(document, list) else [document])


def _branch(messages: list[Mapping[str, Json]], leaf: Json) -> list[Mapping[str, Json]]:
    """Return the messages of the branch that ends last; all of them where none names a parent."""
    by_id = {str(one.get("uuid")): one for one in messages}
    if not any(one.get("parent_message_uuid") in by_id for one in messages):
        return messages
    at: Any = leaf if leaf in by_id else messages[-1].get("uuid")
    found: list[Mapping[str, Json]] = []
    while at in by_id and len(found) <= len(messages):
        found.append(by_id[at])
        at = found[-1].get("parent_message_uuid")
    return found[::-1]


def _turns(message: Mapping[str, Json]) -> Iterator[Turn]:
    """Yield what a message says and calls, and each result of a tool, in order."""
    key, sender = str(message.get("uuid")), message.get("sender")
    given: Turn = {"created_at": moment(message["created_at"])} if message.get("created_at") else {}
    blocks = mappings(message.get("content")) or [{"type": "text", "text": message.get("text") or ""}]
    texts: list[str] = []
    parts: list[Part] = []
    found: list[Turn] = []
    calls: list[str] = []

    def say() -> None:
        text = "\n".join(one for one in texts if one.strip())
        if text or parts:
            turn: Turn = {"role": "user" if sender == "human" else "assistant", "content": text, **given}
            found.append({**turn, "parts": list(parts)} if parts else turn)
        texts.clear()
        parts.clear()

    for number, block in enumerate(blocks):
        match block.get("type"):
            case "text":
                texts.append(str(block.get("text") or ""))
            case "thinking":
                parts.append(Reasoning(str(block.get("thinking") or "")))
            case "tool_use":
                calls.append(str(block.get("id") or f"{key}:{number}"))
                arguments = json.dumps(block.get("input") or {}, ensure_ascii=False)
                parts.append(ToolCall(calls[-1], str(block.get("name")), arguments))
            case "tool_result" if calls:
                say()
                call = str(block.get("tool_use_id") or calls[-1])
                answer = ToolResult(call, _text(block.get("content")), block.get("is_error") is True)
                found.append({"role": "tool", "content": "", "parts": [answer], **given})
            case _:
                pass  # a mark of the page, such as the use of a budget
    files = list(_files(message))
    texts += (one for one in files if isinstance(one, str))
    parts += (one for one in files if isinstance(one, Media))
    say()
    for number, turn in enumerate(found):
        yield {**turn, "key": f"{key}:{number}" if number else key}


def _files(message: Mapping[str, Json]) -> Iterator[str | Media]:
    """Yield what came with a message: the text that was taken from a file, a reference to one without."""
    for file in (*mappings(message.get("attachments")), *mappings(message.get("files"))):
        name = str(file.get("file_name") or file.get("file_uuid") or "")
        if file.get("extracted_content"):
            yield f"[{name}]\n{file['extracted_content']}"
        elif name:
            yield Media(str(file.get("file_type") or "application/octet-stream"), name)


def _text(content: Json) -> str:
    """Return the text of a tool's result; what is no text as JSON."""
    if isinstance(content, str):
        return content
    said = [one.get("text") if one.get("type") == "text" else dict(one) for one in mappings(content)]
    return "\n".join(one if isinstance(one, str) else json.dumps(one, ensure_ascii=False) for one in said)
