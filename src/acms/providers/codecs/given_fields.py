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
    messages: Iterable[PromptMessage], parse_fields: Callable[[Raw], Fields | None]
) -> dict[Key, Fields]:
    """Return the extra fields that parts of messages came with, by the key of the part.

    Extra fields are stored in a raw part after the part that they belong to; those of a tool result are anywhere in its
    message. `parse_fields` reads the fields of one API from such a raw part, or returns None.
    """
    fields_by_part: dict[Key, Fields] = {}
    for message in messages:
        parts = message.parts
        result = next((part for part in parts if isinstance(part, ToolResult)), None)
        for previous_part, part in pairwise((None, *parts)):
            carrier = result or previous_part
            if (
                isinstance(part, Raw)
                and part.vendor == EXTRA_FIELDS
                and carrier
                and (fields := parse_fields(part))
            ):
                fields_by_part[key_of_part(carrier)] = fields
    return fields_by_part
