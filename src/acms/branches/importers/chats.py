"""Exports of chat programs whose messages form a tree: LibreChat and Open WebUI."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from acms.branches.importers.conversation import (
    Conversation,
    Fork,
    as_mapping,
    as_mapping_list,
    has_content,
    make_result_parts,
    make_tool_call,
    make_turn,
    split_branches,
    text_of,
)
from acms.branches.importers.shapes import has_value, is_list, is_object, is_text
from acms.branches.importers.source import Source
from acms.log.foreign import Turn
from acms.model import Json, Media, Part, Reasoning

__all__ = ["LIBRECHAT", "OPEN_WEBUI", "fork_branches", "read_librechat", "read_open_webui"]

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
    """Yield the current branch of a tree of messages, and every other branch as a fork of one before it."""
    owner: dict[str, str] = {}
    last: dict[str, str | None] = {}
    for leaves, nodes in split_branches(parents, current):
        branch = f"{id}-{nodes[0]}" if owner else id
        key = None if leaves is None else last[leaves]
        fork = Fork(id if leaves is None else owner[leaves], key, nodes[0]) if owner else None
        messages: list[Turn] = []
        for node in nodes:
            messages += [turn for turn in turns.get(node, []) if has_content(turn)]
            key = str(messages[-1]["key"]) if messages else key
            owner[node], last[node] = branch, key
        if messages or fork is None:
            yield Conversation(id=branch, title=title, messages=messages, fork=fork)


# ── LibreChat ───────────────────────────────────────────────────────────────────────────────────────────────────────


def read_librechat(source: Source) -> Iterator[Conversation]:
    """Read a conversation: a list of messages that name their parents, or a tree of them."""
    for _, value in source.records():
        one = as_mapping(value)
        listed = as_mapping_list(one.get("messages")) or list(
            _flatten_messages(as_mapping_list(one.get("messagesTree")))
        )
        parents = {str(message["messageId"]): message.get("parentMessageId") for message in listed}
        turns = {str(message["messageId"]): list(_librechat_turns(message)) for message in listed}
        current = str(listed[-1]["messageId"]) if listed else None
        yield from fork_branches(
            str(one["conversationId"]), str(one.get("title") or ""), parents, current, turns
        )


def _flatten_messages(messages: list[Mapping[str, Json]]) -> Iterator[Mapping[str, Json]]:
    for message in messages:
        yield message
        yield from _flatten_messages(as_mapping_list(message.get("children")))


def _librechat_turns(message: Mapping[str, Json]) -> Iterator[Turn]:
    """Translate a message: text and thoughts, and each call with its output."""
    key, at = str(message["messageId"]), message.get("createdAt")
    if message.get("isCreatedByUser"):
        files = [Media(str(f.get("type") or "application/octet-stream"), str(f.get("filename") or f.get("file_id")))
                 for f in as_mapping_list(message.get("files"))]  # fmt: skip
        yield make_turn(
            "user", text_of(message.get("text")) or _join_texts(message), key=key, at=at, parts=files
        )
        return
    details = {"model": message.get("model"), "usage": _read_token_count(message)}
    texts: list[str] = []
    parts: list[Part] = []
    found: list[Turn] = []

    def end(calls: list[Part]) -> None:
        if texts or parts or calls:
            number = f"{key}:{len(found)}" if found else key
            found.append(
                make_turn(
                    "assistant", "\n".join(texts), key=number, at=at, parts=[*parts, *calls], details=details
                )
            )
        texts.clear()
        parts.clear()

    for block in as_mapping_list(message.get("content")):
        kind, inner = block.get("type"), block.get(str(block.get("type")))
        if kind in ("text", "error"):
            texts.append(text_of(as_mapping(inner).get("value", inner) if isinstance(inner, dict) else inner))
        elif kind == "think" and inner:
            parts.append(Reasoning(text_of(inner)))
        elif kind == "tool_call":
            made = as_mapping(inner)
            id = made.get("id") or f"{key}:{len(found)}"
            end([make_tool_call(id, made.get("name"), made.get("args"))])
            answer = make_result_parts(id, made.get("output"))
            found.append(make_turn("tool", key=f"{key}:{len(found)}", at=at, parts=answer))
    if not message.get("content") and message.get("text"):
        texts.append(text_of(message["text"]))
    end([])
    yield from found


def _join_texts(message: Mapping[str, Json]) -> str:
    return "\n".join(
        text_of(block.get("text")) for block in as_mapping_list(message.get("content")) if block.get("text")
    )


def _read_token_count(message: Mapping[str, Json]) -> Json:
    count = message.get("tokenCount")
    return {"tokens": count} if isinstance(count, int) else None


# ── Open WebUI ──────────────────────────────────────────────────────────────────────────────────────────────────────


def read_open_webui(source: Source) -> Iterator[Conversation]:
    """Read the chats of an export: messages by id, each with its parent."""
    for _, value in source.records():
        one = as_mapping(value)
        chat = as_mapping(one.get("chat"))
        history = as_mapping(chat.get("history"))
        listed = as_mapping_list(list(as_mapping(history.get("messages")).values())) or as_mapping_list(
            chat.get("messages")
        )
        ids = [str(message.get("id", number)) for number, message in enumerate(listed)]
        parents = {id: message.get("parentId") for id, message in zip(ids, listed, strict=True)}
        if not history:
            parents = dict(zip(ids, [None, *ids], strict=False))
        turns = {id: _webui_turns(id, message) for id, message in zip(ids, listed, strict=True)}
        title = str(one.get("title") or chat.get("title") or "")
        current = str(history.get("currentId") or (ids[-1] if ids else ""))
        yield from fork_branches(str(one.get("id") or source.stem), title, parents, current, turns)


def _webui_turns(id: str, message: Mapping[str, Json]) -> list[Turn]:
    role, text = str(message.get("role")), text_of(message.get("content"))
    files = [Media(f"{file.get('type') or 'application'}/*", str(file.get("name") or file.get("url") or file.get("id")))
             for file in as_mapping_list(message.get("files"))]  # fmt: skip
    if not text.strip() and not files:
        return []
    model = message.get("model") if role == "assistant" else None
    return [
        make_turn(
            role,
            text,
            key=id,
            at=message.get("timestamp"),
            parts=files,
            details={"model": model, "usage": message.get("usage")},
        )
    ]
