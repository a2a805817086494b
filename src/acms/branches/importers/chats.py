"""Exports of chat programs whose messages form a tree: LibreChat and Open WebUI."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from acms.branches.importers.conversation import (
    Conversation,
    Fork,
    Record,
    TurnBuilder,
    as_mapping,
    as_mapping_list,
    has_content,
    make_media,
    make_tool_call,
    make_turn,
    record_at,
    records_at,
    split_branches,
    text_of,
)
from acms.branches.importers.shapes import has_value, is_list, is_object, is_text
from acms.branches.importers.source import Source
from acms.log.provider_messages import Turn
from acms.model import Json, Part, Reasoning

LIBRECHAT = (
    (is_text("conversationId"), is_list("messages"), has_value("messages.0.messageId")),
    (is_text("conversationId"), is_list("messagesTree"), has_value("messagesTree.0.messageId")),
)
OPEN_WEBUI = (
    (is_object("chat"), is_object("chat.history"), is_object("chat.history.messages")),
    (is_object("chat"), is_list("chat.messages"), has_value("title")),
)


def fork_branches(
    id: str, title: str, parents: Mapping[str, Any], current: str | None, turns: Mapping[str, list[Turn]]
) -> Iterator[Conversation]:
    """Yield the current branch of a tree of messages, and every other branch as a fork of an earlier one."""
    branch_of: dict[str, str] = {}
    last_key: dict[str, str | None] = {}
    for fork_node, nodes in split_branches(parents, current):
        key = None if fork_node is None else last_key[fork_node]
        branch, fork = id, None
        if branch_of:
            branch = f"{id}-{nodes[0]}"
            origin = id if fork_node is None else branch_of[fork_node]
            fork = Fork(origin, key, nodes[0])
        messages: list[Turn] = []
        for node in nodes:
            messages += filter(has_content, turns.get(node, ()))
            if messages:
                key = str(messages[-1]["key"])
            # A later branch may fork from a node of a fork that is not yielded: then it leaves the same conversation.
            branch_of[node] = branch if messages or fork is None else fork.conversation
            last_key[node] = key
        if messages or fork is None:  # a fork without messages of its own would only repeat its trunk
            yield Conversation(id=branch, title=title, messages=messages, fork=fork)


# ── LibreChat ───────────────────────────────────────────────────────────────────────────────────────────────────────


def read_librechat(source: Source) -> Iterator[Conversation]:
    """Read a conversation: a list of messages that name their parents, or a tree of them."""
    for record in source.records():
        messages = records_at(record, "messages")
        if not messages:
            messages = list(_flatten_messages(records_at(record, "messagesTree")))
        parents: dict[str, Json] = {}
        turns: dict[str, list[Turn]] = {}
        current: str | None = None
        for message in messages:
            current = str(message["messageId"])
            parents[current] = message.get("parentMessageId")
            turns[current] = _translate_librechat(message)
        title = str(record.get("title") or "")
        yield from fork_branches(str(record["conversationId"]), title, parents, current, turns)


def _flatten_messages(messages: list[Record]) -> Iterator[Record]:
    for message in messages:
        yield message
        yield from _flatten_messages(records_at(message, "children"))


def _translate_librechat(message: Record) -> list[Turn]:
    """Translate a message: text and thoughts, and each call with its output."""
    key, created_at = str(message["messageId"]), message.get("createdAt")
    blocks = records_at(message, "content")
    if message.get("isCreatedByUser"):
        files: list[Part] = []
        for file in records_at(message, "files"):
            files.append(make_media(file.get("type"), file.get("filename") or file.get("file_id")))
        texts = [text_of(block["text"]) for block in blocks if block.get("text")]
        text = text_of(message.get("text")) or "\n".join(texts)
        return [make_turn("user", text, key=key, created_at=created_at, parts=files)]
    tokens = message.get("tokenCount")
    usage = {"tokens": tokens} if isinstance(tokens, int) else None
    builder = TurnBuilder("assistant", key, created_at, {"model": message.get("model"), "usage": usage})
    for block in blocks:
        _add_librechat_block(builder, block, key)
    if not message.get("content") and message.get("text"):
        builder.texts.append(text_of(message["text"]))
    builder.finish()
    return builder.turns


def _add_librechat_block(builder: TurnBuilder, block: Record, key: str) -> None:
    """Add a block of an answer: a text, reasoning, or a call of a tool with its result."""
    kind = block.get("type")
    content = block.get(str(kind))
    fields = as_mapping(content)
    if kind in ("text", "error"):
        builder.texts.append(text_of(fields.get("value", content)))
    elif kind == "think" and content:
        builder.parts.append(Reasoning(text_of(content)))
    elif kind == "tool_call":
        id = fields.get("id") or f"{key}:{len(builder.turns)}"
        builder.parts.append(make_tool_call(id, fields.get("name"), fields.get("args")))
        builder.add_result(id, fields.get("output"))


# ── Open WebUI ──────────────────────────────────────────────────────────────────────────────────────────────────────


def read_open_webui(source: Source) -> Iterator[Conversation]:
    """Read the chats of an export: messages by id, each with its parent."""
    for record in source.records():
        chat = record_at(record, "chat")
        history = record_at(chat, "history")
        by_id = record_at(history, "messages")
        messages = as_mapping_list(list(by_id.values())) or records_at(chat, "messages")
        parents: dict[str, Json] = {}
        turns: dict[str, list[Turn]] = {}
        last_id = ""
        for number, message in enumerate(messages):
            id = str(message.get("id", number))
            parents[id] = message.get("parentId") if history else last_id or None
            turns[id] = _translate_open_webui(id, message)
            last_id = id
        title = str(record.get("title") or chat.get("title") or "")
        current = str(history.get("currentId") or last_id)
        yield from fork_branches(str(record.get("id") or source.stem), title, parents, current, turns)


def _translate_open_webui(id: str, message: Record) -> list[Turn]:
    """Translate a message with its files; none without content."""
    role, text = str(message.get("role")), text_of(message.get("content"))
    files: list[Part] = []
    for file in records_at(message, "files"):
        kind = file.get("type") or "application"
        files.append(make_media(f"{kind}/*", file.get("name") or file.get("url") or file.get("id")))
    if not text.strip() and not files:
        return []
    model = message.get("model") if role == "assistant" else None
    details = {"model": model, "usage": message.get("usage")}
    return [make_turn(role, text, key=id, created_at=message.get("timestamp"), parts=files, details=details)]
