"""Exports of Claude: `conversations.json`, a list of conversations with their messages in order.

Each message has blocks of text, thinking and calls of tools with their results; older exports have a text only. Where
messages name their parents, branches other than the one that ends last become forks. A conversation without an id gets
one derived from its beginning. A result that names no call answers the first call that has no result yet. Text that
was taken from an attached file is part of the message; a file without text is a reference.
"""

from __future__ import annotations

from collections.abc import Iterator

from acms.branches.importers.chats import fork_branches
from acms.branches.importers.conversation import (
    Conversation,
    DerivedIds,
    Record,
    TurnBuilder,
    make_media,
    make_tool_call,
    records_at,
)
from acms.branches.importers.shapes import is_list
from acms.branches.importers.source import Source
from acms.log.provider_messages import Turn
from acms.model import Json, Reasoning

SHAPES = ((is_list("chat_messages"),),)


def read_claude(source: Source) -> Iterator[Conversation]:
    """Read the conversations of an export."""
    derived = DerivedIds()
    for record in source.records():
        messages = records_at(record, "chat_messages")
        parents: dict[str, Json] = {}
        turns: dict[str, list[Turn]] = {}
        for number, message in enumerate(messages):
            key = str(message.get("uuid") or number)
            parents[key] = message.get("parent_message_uuid")
            turns[key] = _translate_message(message, key)
        keys = list(parents)
        if not any(parent in parents for parent in parents.values()):
            # Older exports name no parents: each message follows on the one before it.
            parents = dict(zip(keys, [None, *keys], strict=False))
        current = str(record.get("current_leaf_message_uuid"))
        if current not in parents:
            current = keys[-1] if keys else None
        id = record.get("uuid") or derived.derive(record.get("created_at"), *messages[:1])
        yield from fork_branches(str(id), str(record.get("name") or ""), parents, current, turns)


def _translate_message(message: Record, key: str) -> list[Turn]:
    """Translate the text and the calls of a message, and each result of a tool, in order."""
    role = "user" if message.get("sender") == "human" else "assistant"
    builder = TurnBuilder(role, key, message.get("created_at"))
    blocks = records_at(message, "content") or [{"type": "text", "text": message.get("text")}]
    pending: list[str] = []
    for number, block in enumerate(blocks):
        match block.get("type"):
            case "text":
                _add_text(builder, block.get("text"))
            case "thinking":
                builder.parts.append(Reasoning(str(block.get("thinking") or "")))
            case "tool_use":
                id = str(block.get("id") or f"{key}:{number}")
                pending.append(id)
                builder.parts.append(make_tool_call(id, block.get("name"), block.get("input")))
            case "tool_result" if pending or block.get("tool_use_id"):
                id = str(block.get("tool_use_id") or pending[0])
                if id in pending:
                    pending.remove(id)
                builder.add_result(id, block.get("content"), is_error=block.get("is_error") is True)
            case _:
                pass  # a block that is no content, such as a notice about the token budget
    for file in (*records_at(message, "attachments"), *records_at(message, "files")):
        _add_file(builder, file)
    builder.finish()
    return builder.turns


def _add_text(builder: TurnBuilder, text: Json) -> None:
    text = str(text or "")
    if text.strip():
        builder.texts.append(text)


def _add_file(builder: TurnBuilder, file: Record) -> None:
    """Add the text that was taken from a file, or a reference to a file without one."""
    name = str(file.get("file_name") or file.get("file_uuid") or "")
    if file.get("extracted_content"):
        builder.texts.append(f"[{name}]\n{file['extracted_content']}")
    elif name:
        builder.parts.append(make_media(file.get("file_type"), name))
