"""What headers and bodies of known clients say about the conversation that a request belongs to."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from acms.gateway.protocols import Protocol
from acms.gateway.protocols.base import mappings_in, text_of_content

__all__ = ["find_session_hint", "is_marked_side_request", "matches_side_pattern"]

SESSION_HEADERS = (
    "x-acms-session",
    "x-claude-code-session-id",
    "x-session-id",
    "x-opencode-session",
    "thread-id",
    "session-id",
    "session_id",
    "x-session-affinity",
)
"""Headers in which clients name their session, the most certain first."""
_SIDE_CLASSES = ("auxiliary", "compaction")
_HINT_CHARS = 120
"""Characters of a session name: ACMS takes 255, and names of lines add to it."""
SIDE_PATTERNS = (
    r"CRITICAL: Respond with TEXT ONLY",
    r"You are a title generator",
    r"Your task is to create a detailed summary of the conversation",
    r"Analyze if this message indicates a new conversation topic",
)
"""Texts by which side requests of known clients are recognized, if no header marks them; configuration adds more."""


def find_session_hint(headers: Mapping[str, str], body: Mapping[str, Any]) -> str:
    """Return the client's name for the session of a request, from its headers or its body, or ""."""
    session = (
        next((headers[name] for name in SESSION_HEADERS if headers.get(name)), "")
        or _session_of_metadata(body.get("metadata"))
        or _name_in(body.get("conversation"))
        or _name_in(body.get("prompt_cache_key"))
    )
    agent = headers.get("x-claude-code-agent-id")
    parent = headers.get("x-parent-session-id")
    # An agent that a session starts has a conversation of its own.
    if session and agent:
        session = f"{session}/{agent}"
    elif session and parent and parent != session:
        session = f"{parent}/{session}"
    printable = "".join([char for char in session if char.isprintable()])
    return printable.lstrip("@")[:_HINT_CHARS]  # names that begin with @ are reserved for ACMS


def is_marked_side_request(headers: Mapping[str, str]) -> bool:
    """Return whether the client's headers mark a request as no part of the conversation."""
    if headers.get("x-acms-store", "").lower() in ("no", "0", "false", "off"):
        return True
    if headers.get("x-claude-code-request-class", "") in _SIDE_CLASSES:
        return True
    turn = _parse_object(headers.get("x-codex-turn-metadata", ""))
    return turn.get("request_kind", "turn") != "turn"


def matches_side_pattern(
    protocol: Protocol, body: Mapping[str, Any], items: Sequence[Any], patterns: Sequence[re.Pattern[str]]
) -> bool:
    """Return whether the instructions or the newest message look like a side request of a known client."""
    texts = [text_of_content(body.get("system")), text_of_content(body.get("instructions"))]
    for item in mappings_in(list(items)):
        if protocol.instructs(item):
            texts.append(text_of_content(item.get("content")))
    if items and isinstance(items[-1], Mapping):
        texts.append(text_of_content(items[-1].get("content")))
    return any(pattern.search(text) for text in texts for pattern in patterns)


def _name_in(value: object) -> str:
    """Return a name that a field holds as a text or as an object with an id, or ""."""
    name = value.get("id") if isinstance(value, Mapping) else value
    return name if isinstance(name, str) else ""


def _session_of_metadata(metadata: object) -> str:
    """Return the session in the `metadata` of a body; Claude Code writes it as JSON into `user_id`."""
    if not isinstance(metadata, Mapping):
        return ""
    user = metadata.get("user_id")
    in_user_id = _parse_object(user).get("session_id") if isinstance(user, str) else None
    session = in_user_id or metadata.get("session_id")
    return session if isinstance(session, str) else ""


def _parse_object(text: str) -> Mapping[str, Any]:
    """Return the JSON object in a text, or an empty one if there is none."""
    if not text.startswith("{"):
        return {}
    try:
        value = json.loads(text)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
