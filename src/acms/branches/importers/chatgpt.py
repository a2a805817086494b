"""Exports of ChatGPT: `conversations.json`, a list of conversations whose messages form a tree.

`mapping` holds the nodes by id, each with its parent; `current_node` ends the branch that the user sees. Other
branches, abandoned edits and answers, become forks. Not read is what the user does not see: what the service told the
model, results of its own tools that say nothing, hidden messages. Instructions that the user wrote are.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from acms.branches.importers.chats import fork_branches
from acms.branches.importers.conversation import Conversation, as_mapping, as_mapping_list, make_turn
from acms.branches.importers.shapes import is_object
from acms.branches.importers.source import Source
from acms.log.foreign import Turn
from acms.model import Json, Media, Part, Reasoning

__all__ = ["SHAPES", "read_chatgpt"]

SHAPES = ((is_object("mapping"),), (is_object("conversations.0.mapping"),))
_SHOWN = ("execution_output", "tether_quote", "multimodal_text")
"""Kinds of content that a tool shows to the user."""
_SAYS_NOTHING = ("reasoning_recap", "tether_browsing_display", "model_editable_context")


def read_chatgpt(source: Source) -> Iterator[Conversation]:
    """Read the conversations of an export."""
    for _, value in source.records():
        for one in as_mapping_list(as_mapping(value).get("conversations")) or [as_mapping(value)]:
            yield from _read_branches(one, source)


def _read_branches(one: Mapping[str, Json], source: Source) -> Iterator[Conversation]:
    nodes = {id: as_mapping(node) for id, node in as_mapping(one.get("mapping")).items()}
    turns: dict[str, list[Turn]] = {}
    for id, node in nodes.items():
        turns[id] = list(_translate_message(as_mapping(node.get("message"))))
        if node.get("message") and not turns[id]:
            source.skip("messages that the user does not see")
    parents = {id: node.get("parent") for id, node in nodes.items()}
    current = str(one.get("current_node") or _find_newest_leaf(nodes))
    id = str(one.get("conversation_id") or one.get("id"))
    yield from fork_branches(id, str(one.get("title") or ""), parents, current, turns)


def _find_newest_leaf(nodes: Mapping[str, Mapping[str, Json]]) -> str | None:
    """Return the newest node without a child, for exports that do not say which one is current."""
    leaves = [id for id, node in nodes.items() if not node.get("children")]

    def time(id: str) -> float:
        created = as_mapping(nodes[id].get("message")).get("create_time")
        return created if isinstance(created, int | float) else 0.0

    return max(leaves, key=time, default=None)


def _translate_message(message: Mapping[str, Json]) -> Iterator[Turn]:
    author, content = as_mapping(message.get("author")), as_mapping(message.get("content"))
    metadata, role = as_mapping(message.get("metadata")), author.get("role")
    kind = content.get("content_type")
    wanted = role in ("user", "assistant") or (role == "tool" and kind in _SHOWN)
    if role == "system" or kind == "user_editable_context":
        wanted = bool(metadata.get("is_user_system_message")) or kind == "user_editable_context"
    if metadata.get("is_visually_hidden_from_conversation") and kind != "user_editable_context":
        wanted = False
    text, parts = _read_contents(content, metadata)
    if not wanted or kind in _SAYS_NOTHING or not (text.strip() or parts):
        return
    speaker = "assistant" if role == "tool" else "system" if kind == "user_editable_context" else str(role)
    recipient = message.get("recipient")
    # A tool's result names no call. It becomes an answer of the assistant, under the tool's name.
    yield make_turn(
        speaker,
        text,
        key=str(message.get("id")),
        at=message.get("create_time"),
        parts=parts,
        actor=author.get("name"),
        details={
            "recipient": None if recipient == "all" else recipient,
            "model": metadata.get("model_slug") if role == "assistant" else None,
        },
    )


def _read_contents(content: Mapping[str, Json], metadata: Mapping[str, Json]) -> tuple[str, list[Part]]:
    """Return the text of a content, and what else it holds; media stay where they are."""
    texts: list[str] = []
    parts: list[Part] = []
    for part in content.get("parts") or ():
        if isinstance(part, str):
            texts.append(part)
        elif isinstance(pointer := as_mapping(part).get("asset_pointer"), str):
            kind = str(part.get("content_type") or "").partition("_")[0]
            parts.append(Media(f"{kind if kind in ('image', 'audio', 'video') else 'image'}/*", pointer))
        elif isinstance(as_mapping(part).get("text"), str):
            texts.append(part["text"])  # the transcript of speech
    for name in ("text", "result"):
        if isinstance(content.get(name), str):
            texts.append(content[name])
    if content.get("content_type") == "user_editable_context":
        told = as_mapping(metadata.get("user_context_message_data")) or content
        names = ("about_user_message", "about_model_message", "user_profile", "user_instructions")
        texts += [told[name] for name in names if isinstance(told.get(name), str)]
    for thought in as_mapping_list(content.get("thoughts")):
        if said := thought.get("content") or thought.get("summary"):
            parts.append(Reasoning(str(said)))
    for file in as_mapping_list(metadata.get("attachments")):
        parts.append(
            Media(str(file.get("mime_type") or "application/octet-stream"), _reference_of_file(file))
        )
    return "\n".join(text for text in texts if text), parts


def _reference_of_file(file: Mapping[str, Json]) -> str:
    """Return what refers to a file of the export: its id, else its name."""
    return str(file.get("id") or file.get("name") or json.dumps(file, sort_keys=True))
