"""Exports of Claude: `conversations.json`, a list of conversations with their messages in order.

Each message has blocks of text, thinking and calls of tools with their results; older exports have a text only. Where
messages name their parents, branches other than the one that ends last become forks. Calls and results may have no
ids: then a result answers the first call that waits. Text that was taken from an attached file is part of the message;
a file without is a reference.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from acms.branches.importers.chats import fork_branches
from acms.branches.importers.conversation import (
    Conversation,
    as_mapping,
    as_mapping_list,
    make_result_parts,
    make_tool_call,
    make_turn,
)
from acms.branches.importers.shapes import is_list
from acms.branches.importers.source import Source
from acms.log.foreign import Turn
from acms.model import Json, Media, Part, Reasoning

__all__ = ["SHAPES", "read_claude"]

SHAPES = ((is_list("chat_messages"),),)


def read_claude(source: Source) -> Iterator[Conversation]:
    """Read the conversations of an export."""
    for _, value in source.records():
        one = as_mapping(value)
        listed = as_mapping_list(one.get("chat_messages"))
        ids = [str(message.get("uuid")) for message in listed]
        parents = {id: message.get("parent_message_uuid") for id, message in zip(ids, listed, strict=True)}
        if not any(parent in parents for parent in parents.values()):
            parents = dict(zip(ids, [None, *ids], strict=False))
        leaf = one.get("current_leaf_message_uuid")
        current = str(leaf) if leaf in parents else ids[-1] if ids else None
        turns = {id: list(_translate_message(message)) for id, message in zip(ids, listed, strict=True)}
        yield from fork_branches(str(one.get("uuid")), str(one.get("name") or ""), parents, current, turns)


def _translate_message(message: Mapping[str, Json]) -> Iterator[Turn]:
    """Yield what a message says and calls, and each result of a tool, in order."""
    key, sender = str(message.get("uuid")), message.get("sender")
    at = message.get("created_at")
    blocks = as_mapping_list(message.get("content")) or [{"type": "text", "text": message.get("text") or ""}]
    texts: list[str] = []
    parts: list[Part] = []
    found: list[Turn] = []
    waiting: list[str] = []

    def numbered() -> str:
        return f"{key}:{len(found)}" if found else key

    def end() -> None:
        text = "\n".join(one for one in texts if one.strip())
        if text or parts:
            role = "user" if sender == "human" else "assistant"
            found.append(make_turn(role, text, key=numbered(), at=at, parts=parts))
        texts.clear()
        parts.clear()

    for number, block in enumerate(blocks):
        match block.get("type"):
            case "text":
                texts.append(str(block.get("text") or ""))
            case "thinking":
                parts.append(Reasoning(str(block.get("thinking") or "")))
            case "tool_use":
                waiting.append(str(block.get("id") or f"{key}:{number}"))
                parts.append(make_tool_call(waiting[-1], block.get("name"), block.get("input")))
            case "tool_result" if waiting or block.get("tool_use_id"):
                end()
                named = str(block.get("tool_use_id") or waiting[0])
                if named in waiting:
                    waiting.remove(named)
                answer = make_result_parts(
                    named, block.get("content"), is_error=block.get("is_error") is True
                )
                found.append(make_turn("tool", key=numbered(), at=at, parts=answer))
            case _:
                pass  # a mark of the page, such as the use of a budget
    files = list(_read_files(message))
    texts += (one for one in files if isinstance(one, str))
    parts += (one for one in files if isinstance(one, Media))
    end()
    yield from found


def _read_files(message: Mapping[str, Json]) -> Iterator[str | Media]:
    """Yield what came with a message: the text that was taken from a file, a reference to one without."""
    for file in (*as_mapping_list(message.get("attachments")), *as_mapping_list(message.get("files"))):
        name = str(file.get("file_name") or file.get("file_uuid") or "")
        if file.get("extracted_content"):
            yield f"[{name}]\n{file['extracted_content']}"
        elif name:
            yield Media(str(file.get("file_type") or "application/octet-stream"), name)
