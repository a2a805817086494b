"""Exports of ChatGPT: `conversations.json`, a list of conversations whose messages form a tree.

`mapping` holds the nodes by id, each with its parent; `current_node` ends the branch that the user sees. Of other
branches, abandoned edits and answers, nothing is read. Not read either is what the user does not see: what the service
told the model, results of its own tools that say nothing, hidden messages. Instructions that the user wrote are.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from acms.branches.importers.chat import moment
from acms.branches.importers.conversation import Conversation, mapping, mappings
from acms.log.foreign import Turn
from acms.model import Json, Media, Part, Reasoning

__all__ = ["conversations", "recognise"]

_SHOWN = ("execution_output", "tether_quote", "multimodal_text")
"""Kinds of content that a tool shows to the user."""
_SAYS_NOTHING = ("reasoning_recap", "tether_browsing_display", "model_editable_context")


def recognise(document: Json) -> bool:
    """Return whether a document is such an export."""
    first = next(iter(_listed(document)), {})
    return isinstance(first.get("mapping"), dict)


def conversations(document: Json) -> Iterator[Conversation]:
    """Read the conversations of an export."""
    for one in _listed(document):
        id = one.get("conversation_id") or one.get("id")
        messages = [turn for node in _branch(one) for turn in _turns(mapping(node.get("message")))]
        yield Conversation(id=str(id), title=str(one.get("title") or ""), messages=messages)


def _listed(document: Json) -> list[Mapping[str, Json]]:
    inner = mapping(document).get("conversations")
    return mappings(inner if inner is not None else document if isinstance(document, list) else [document])


def _branch(conversation: Mapping[str, Json]) -> list[Mapping[str, Json]]:
    """Return the nodes from the root to the current one."""
    nodes = mapping(conversation.get("mapping"))
    at: Any = conversation.get("current_node") or _newest(nodes)
    found: list[Mapping[str, Json]] = []
    while isinstance(at, str) and at in nodes and len(found) <= len(nodes):
        found.append(mapping(nodes[at]))
        at = found[-1].get("parent")
    return found[::-1]


def _newest(nodes: Mapping[str, Json]) -> str | None:
    """Return the newest node without a child, for exports that do not say which one is current."""
    leaves = [id for id, node in nodes.items() if not mapping(node).get("children")]

    def time(id: str) -> float:
        said = mapping(mapping(nodes[id]).get("message")).get("create_time")
        return said if isinstance(said, int | float) else 0.0

    return max(leaves, key=time, default=None)


def _turns(message: Mapping[str, Json]) -> Iterator[Turn]:
    author, content = mapping(message.get("author")), mapping(message.get("content"))
    metadata, role = mapping(message.get("metadata")), author.get("role")
    kind = content.get("content_type")
    wanted = role in ("user", "assistant") or (role == "tool" and kind in _SHOWN)
    if role == "system" or kind == "user_editable_context":
        wanted = bool(metadata.get("is_user_system_message")) or kind == "user_editable_context"
    if metadata.get("is_visually_hidden_from_conversation") and kind != "user_editable_context":
        wanted = False
    text, parts = _contents(content, metadata)
    if not wanted or kind in _SAYS_NOTHING or not (text.strip() or parts):
        return
    # a tool's result names no call: it stands as what the assistant shows, under the tool's name
    turn: Turn = {
        "role": "assistant" if role == "tool" else "system" if kind == "user_editable_context" else role
    }
    turn |= {"content": text, "key": str(message.get("id"))}
    if parts:
        turn["parts"] = parts
    if author.get("name"):
        turn["actor_id"] = str(author["name"])
    if message.get("create_time") is not None:
        turn["created_at"] = moment(message["create_time"])
    recipient, model = message.get("recipient"), metadata.get("model_slug")
    more = {
        "recipient": None if recipient == "all" else recipient,
        "model": model if role == "assistant" else None,
    }
    if any(more.values()):
        turn["metadata"] = {name: value for name, value in more.items() if value}
    yield turn


def _contents(content: Mapping[str, Json], metadata: Mapping[str, Json]) -> tuple[str, list[Part]]:
    """Return the text of a content, and what else it holds; media stay where they are."""
    texts: list[str] = []
    parts: list[Part] = []
    for part in content.get("parts") or ():
        if isinstance(part, str):
            texts.append(part)
        elif isinstance(pointer := mapping(part).get("asset_pointer"), str):
            kind = str(part.get("content_type") or "").partition("_")[0]
            parts.append(Media(f"{kind if kind in ('image', 'audio', 'video') else 'image'}/*", pointer))
        elif isinstance(mapping(part).get("text"), str):
            texts.append(part["text"])  # what was said aloud
    for name in ("text", "result"):
        if isinstance(content.get(name), str):
            texts.append(content[name])
    if content.get("content_type") == "user_editable_context":
        told = mapping(metadata.get("user_context_message_data")) or content
        names = ("about_user_message", "about_model_message", "user_profile", "user_instructions")
        texts += [told[name] for name in names if isinstance(told.get(name), str)]
    for thought in mappings(content.get("thoughts")):
        if said := thought.get("content") or thought.get("summary"):
            parts.append(Reasoning(str(said)))
    for file in mappings(metadata.get("attachments")):
        parts.append(Media(str(file.get("mime_type") or "application/octet-stream"), _file(file)))
    return "\n".join(text for text in texts if text), parts


def _file(file: Mapping[str, Json]) -> str:
    """Return what refers to a file of the export: its id, else its name."""
    return str(file.get("id") or file.get("name") or json.dumps(file, sort_keys=True))
