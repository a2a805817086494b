"""Fields of a provider's blocks and parts that no part of ACMS holds: kept behind the part, and sent back with it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise
from typing import TypeAlias

from acms.log.native_items import EXTRA_FIELDS
from acms.model import Json, Media, Part, Raw, Reasoning, Text, ToolCall, ToolResult
from acms.prompt_types import PromptMessage

Fields: TypeAlias = Mapping[str, Json]
Key: TypeAlias = tuple[type[Part], str]


def key_of_part(part: Part) -> Key:
    """Return the key of a part, which does not depend on how its message is divided and joined."""
    match part:
        case ToolCall() | ToolResult():
            return type(part), part.call_id
        case Media():
            return Media, part.ref
        case Reasoning() | Text():
            return type(part), part.text
        case Raw():
            return Raw, part.json


def given_fields(
    messages: Iterable[PromptMessage], read: Callable[[Raw], Fields | None]
) -> dict[Key, Fields]:
    """Return the extra fields that parts of messages came with, by the part.

    They are stored in the part after it; those of a tool result anywhere in its message. `read` parses those of one
    API.
    """
    found: dict[Key, Fields] = {}
    for message in messages:
        parts = message.parts
        result = next((part for part in parts if isinstance(part, ToolResult)), None)
        for before, part in pairwise((None, *parts)):
            carrier = result or before
            if isinstance(part, Raw) and part.vendor == EXTRA_FIELDS and carrier and (fields := read(part)):
                found[key_of_part(carrier)] = fields
    return found
