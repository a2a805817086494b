"""Replies: nouns under `data`, serialized and described in the OpenAPI document by their dataclasses."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from inspect import cleandoc
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

from acms import prompt_types
from acms.model import Json, Part
from acms.nouns import PAIRS, encode_noun, is_noun, list_json_members
from acms.results import Compaction
from acms.server.operation import Reply

__all__ = [
    "REF",
    "Envelope",
    "build_reply_schema",
    "describe_list_reply",
    "describe_single_reply",
    "paginate_reply",
    "reply_with_data",
    "reply_with_page",
]

T = TypeVar("T")

REF = "#/components/schemas/{model}"
_SCALARS: Mapping[Any, str] = {
    str: "string",
    int: "integer",
    float: "number",
    bool: "boolean",
    NoneType: "null",
    datetime: "string",
    bytes: "string",
}
_COMPONENTS = {prompt_types.Change: "FirstChange"}
"""Component names of nouns that share a class name with another noun."""
_MEMBER_TYPES: Mapping[tuple[type[Any], str], Any] = {
    (Compaction, "policy"): Mapping[str, float | int | bool | None]
}
"""Fields whose type in the document is narrower than in the code."""


@dataclass(frozen=True, slots=True)
class Envelope:
    """The type of a reply's `data`."""

    kind: type[Any]
    is_list: bool = False
    #: The type of a page's cursor.
    cursor: type[Any] | None = None


def describe_single_reply(kind: type[Any]) -> Envelope:
    """Describe a reply with one noun."""
    return Envelope(kind)


def describe_list_reply(kind: type[Any], cursor: type[Any] | None = None) -> Envelope:
    """Describe a reply with a list of nouns, or with a page of them if there is a cursor."""
    return Envelope(kind, is_list=True, cursor=cursor)


def reply_with_data(noun: object, **reply: Any) -> Reply:
    """Return a reply with one noun."""
    return Reply(body={"data": encode_noun(noun)}, **reply)


def reply_with_page(data: Sequence[Json], cursor: Json, **reply: Any) -> Reply:
    """Return a reply with a page; without a cursor it is the last page."""
    return Reply(body={"data": data, "nextCursor": cursor, "hasMore": cursor is not None}, **reply)


def paginate_reply(items: Sequence[T], limit: int, cursor_of: Callable[[T], Json]) -> Reply:
    """Return the first page of some nouns; its cursor is that of the last noun on it if more follow."""
    page = items[:limit]
    cursor = cursor_of(page[-1]) if len(items) > limit else None
    return reply_with_page([encode_noun(item) for item in page], cursor)


def build_reply_schema(kind: Any, components: dict[str, Json]) -> dict[str, Json]:
    """Return the JSON Schema of a type, and add the schemas of all nouns in it to the components."""
    if isinstance(kind, Envelope):
        return _build_envelope_schema(kind, components)
    if kind == PAIRS:
        return {"type": "object", "additionalProperties": {"type": "integer"}}
    if kind == Part:
        return {"type": "object", "additionalProperties": True}
    if get_origin(kind) is not None:
        return _build_generic_schema(get_origin(kind), get_args(kind), components)
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return {"type": "string", "enum": [str(member) for member in kind]}
    if is_noun(kind):
        return _reference_noun_schema(kind, components)
    return {"type": _SCALARS[kind]} if kind in _SCALARS else {}


def _build_generic_schema(origin: Any, args: Sequence[Any], components: dict[str, Json]) -> dict[str, Json]:
    """Return the JSON Schema of a union, a literal, a sequence or a mapping."""
    if origin in (Union, UnionType):
        return {"anyOf": [build_reply_schema(arg, components) for arg in args]}
    if origin is Literal:
        return {"type": "string", "enum": list(args)}
    if issubclass(origin, Mapping):
        values = True if args[1] is Any else build_reply_schema(args[1], components)
        return {"type": "object", "additionalProperties": values}
    if not issubclass(origin, Sequence):
        return {}
    if len(args) == 1 or args[1] is Ellipsis:
        return {"type": "array", "items": build_reply_schema(args[0], components)}
    items = [build_reply_schema(arg, components) for arg in args]
    return {
        "type": "array",
        "prefixItems": items,
        "items": {},  # linters want it; `maxItems` closes the tuple
        "minItems": len(args),
        "maxItems": len(args),
    }


def _build_envelope_schema(envelope: Envelope, components: dict[str, Json]) -> dict[str, Json]:
    """Return the schema of a reply: one noun, a list, or a page with its cursor."""
    data = build_reply_schema(list[envelope.kind] if envelope.is_list else envelope.kind, components)
    properties: dict[str, Json] = {"data": data}
    if envelope.cursor is not None:
        properties["nextCursor"] = build_reply_schema(envelope.cursor | None, components)
        properties["hasMore"] = {"type": "boolean"}
    return _build_object_schema(properties, list(properties))


def _build_object_schema(properties: Mapping[str, Json], required: Sequence[str]) -> dict[str, Json]:
    return {
        "type": "object",
        "additionalProperties": False,
        "properties": dict(properties),
        "required": list(required),
    }


def _reference_noun_schema(kind: type[Any], components: dict[str, Json]) -> dict[str, Json]:
    """Return a reference to the schema of a noun, which is added to the components."""
    name = _COMPONENTS.get(kind, kind.__name__)
    if name not in components:
        components[name] = {}  # added before it is built, because a noun may contain its own kind
        properties: dict[str, Json] = {}
        required: list[str] = []
        for member in list_json_members(kind):
            member_type = _MEMBER_TYPES.get((kind, member.name), member.hint)
            properties[member.name] = build_reply_schema(member_type, components)
            if not member.when_given:
                required.append(member.name)
        schema = _build_object_schema(properties, required)
        components[name] = {**schema, "description": cleandoc(kind.__doc__ or "")}
    return {"$ref": REF.format(model=name)}
