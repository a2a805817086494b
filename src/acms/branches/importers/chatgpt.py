"""Exports of ChatGPT: `conversations.json`, a list of conversations whose messages form a tree.

`mapping` holds the nodes by id, each with its parent; `current_node` ends the branch that the user sees. Other
branches, abandoned edits and answers, become forks. Messages that the user does not see are not read: instructions of
the service, results of its own tools without content, hidden messages. Instructions that the user wrote are read.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from acms.branches.importers.chats import fork_branches
from acms.branches.importers.conversation import (
    Conversation,
    DerivedIds,
    Record,
    as_mapping,
    make_media,
    make_turn,
    record_at,
    records_at,
)
from acms.branches.importers.shapes import is_object
from acms.branches.importers.source import Source
from acms.log.provider_messages import Turn
from acms.model import Json, Part, Reasoning

SHAPES = ((is_object("mapping"),), (is_object("conversations.0.mapping"),))
_TOOL_OUTPUT = ("execution_output", "tether_quote", "multimodal_text")
"""Kinds of content that a tool shows to the user."""
_WITHOUT_CONTENT = ("reasoning_recap", "tether_browsing_display", "model_editable_context")
_USER_CONTEXT = "user_editable_context"
"""The kind of content that holds instructions of the user."""
_USER_CONTEXT_FIELDS = ("about_user_message", "about_model_message", "user_profile", "user_instructions")


def read_chatgpt(source: Source) -> Iterator[Conversation]:
    """Read the conversations of an export."""
    derived = DerivedIds()
    for record in source.records():
        for conversation in records_at(record, "conversations") or [record]:
            yield from _read_branches(conversation, source, derived)


def _read_branches(record: Record, source: Source, derived: DerivedIds) -> Iterator[Conversation]:
    """Read a conversation, a tree of messages, as its current branch and forks for the others."""
    nodes = {id: as_mapping(node) for id, node in record_at(record, "mapping").items()}
    parents = {id: node.get("parent") for id, node in nodes.items()}
    turns: dict[str, list[Turn]] = {}
    for id, node in nodes.items():
        message = record_at(node, "message")
        turn = _translate_message(message, str(message.get("id") or id))
        turns[id] = [] if turn is None else [turn]
        if message and turn is None:
            source.skip("messages that the user does not see")
    current = str(record.get("current_node") or _find_newest_leaf(nodes))
    id = record.get("conversation_id") or record.get("id")
    if not id:
        roots = [id for id, parent in parents.items() if not parent]
        id = derived.derive(record.get("create_time"), roots)
    yield from fork_branches(str(id), str(record.get("title") or ""), parents, current, turns)


def _find_newest_leaf(nodes: Mapping[str, Record]) -> str | None:
    """Return the newest node without a child, for exports that do not say which one is current."""
    newest, newest_time = None, 0.0
    for id, node in nodes.items():
        if node.get("children"):
            continue
        created = record_at(node, "message").get("create_time")
        time = created if isinstance(created, int | float) else 0.0
        if newest is None or time > newest_time:
            newest, newest_time = id, time
    return newest


def _translate_message(message: Record, key: str) -> Turn | None:
    """Translate a message, or return None for one that the user does not see."""
    author, content = record_at(message, "author"), record_at(message, "content")
    metadata = record_at(message, "metadata")
    kind = content.get("content_type")
    if kind in _WITHOUT_CONTENT or not _is_visible(author.get("role"), kind, metadata):
        return None
    text, parts = _read_content(content, metadata)
    if not text.strip() and not parts:
        return None
    role = str(author.get("role"))
    details: dict[str, Json] = {}
    if message.get("recipient") != "all":
        details["recipient"] = message.get("recipient")
    if role == "assistant":
        details["model"] = metadata.get("model_slug")
    if kind == _USER_CONTEXT:
        role = "system"
    elif role == "tool":  # a tool's result names no call: it becomes an answer under the tool's name
        role = "assistant"
    created_at, actor = message.get("create_time"), author.get("name")
    return make_turn(role, text, key=key, created_at=created_at, parts=parts, actor=actor, details=details)


def _is_visible(role: Json, kind: Json, metadata: Record) -> bool:
    """Return whether the user sees a message or wrote it."""
    if kind == _USER_CONTEXT:
        return True
    if metadata.get("is_visually_hidden_from_conversation"):
        return False
    if role == "system":
        return bool(metadata.get("is_user_system_message"))
    if role == "tool":
        return kind in _TOOL_OUTPUT
    return role in ("user", "assistant")


def _read_content(content: Record, metadata: Record) -> tuple[str, list[Part]]:
    """Return the text of a message and its other parts; media stay where they are."""
    texts: list[Json] = []
    parts: list[Part] = []
    for part in content.get("parts") or ():
        pointer = as_mapping(part).get("asset_pointer")
        if isinstance(pointer, str):
            kind = str(part.get("content_type")).partition("_")[0]
            if kind not in ("image", "audio", "video"):  # an unknown kind is taken as an image
                kind = "image"
            parts.append(make_media(f"{kind}/*", pointer))
        else:
            texts.append(as_mapping(part).get("text", part))  # a text or the transcript of speech
    texts += [content.get("text"), content.get("result")]
    if content.get("content_type") == _USER_CONTEXT:
        context = record_at(metadata, "user_context_message_data") or content
        texts += [context.get(name) for name in _USER_CONTEXT_FIELDS]
    for thought in records_at(content, "thoughts"):
        reasoning = thought.get("content") or thought.get("summary")
        if reasoning:
            parts.append(Reasoning(str(reasoning)))
    for file in records_at(metadata, "attachments"):
        reference = file.get("id") or file.get("name") or json.dumps(file, sort_keys=True)
        parts.append(make_media(file.get("mime_type"), reference))
    return "\n".join(text for text in texts if text and isinstance(text, str)), parts
