"""Answers: nouns under `data`, written and described in the OpenAPI document by their dataclasses."""

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
"""Nouns that another one has the name of."""
_CLOSER: Mapping[tuple[type[Any], str], Any] = {
    (Compaction, "policy"): Mapping[str, float | int | bool | None]
}
"""Fields of which the document says more than their type."""


@dataclass(frozen=True, slots=True)
class Envelope:
    """What an answer holds under `data`."""

    kind: type[Any]
    many: bool = False
    #: Of a page: what its cursor is.
    cursor: type[Any] | None = None


def describe_single_reply(kind: type[Any]) -> Envelope:
    """Describe an answer that holds a noun."""
    return Envelope(kind)


def describe_list_reply(kind: type[Any], cursor: type[Any] | None = None) -> Envelope:
    """Describe an answer that holds a list of nouns, a page of them when it has a cursor."""
    return Envelope(kind, many=True, cursor=cursor)


def reply_with_data(noun: object, kind: type[Any] | None = None, **reply: Any) -> Reply:
    """Answer with a noun."""
    return Reply(body={"data": encode_noun(noun, kind)}, **reply)


def reply_with_page(data: Sequence[Json], cursor: Json, **reply: Any) -> Reply:
    """Answer with a page; without a cursor it is the last one."""
    return Reply(body={"data": data, "nextCursor": cursor, "hasMore": cursor is not None}, **reply)


def paginate_reply(found: Sequence[T], limit: int, place: Callable[[T], Json]) -> Reply:
    """Answer with the first of some nouns; the cursor is the place of the last of them when more follow."""
    page = found[:limit]
    return reply_with_page(
        [encode_noun(one) for one in page], place(page[-1]) if len(found) > limit else None
    )


def build_reply_schema(shown: Any, components: dict[str, Json]) -> dict[str, Json]:
    """Return the JSON Schema of a type as it is written; that of every noun in it is added to the components."""
    if isinstance(shown, Envelope):
        return _build_envelope_schema(shown, components)
    origin, args = get_origin(shown), get_args(shown)
    if shown == PAIRS:
        return {"type": "object", "additionalProperties": {"type": "integer"}}
    if shown == Part:
        return {"type": "object", "additionalProperties": True}
    if origin in (Union, UnionType):
        return {"anyOf": [build_reply_schema(one, components) for one in args]}
    if origin is Literal:
        return {"type": "string", "enum": list(args)}
    if isinstance(origin, type) and issubclass(origin, Sequence):
        if args[1:] in ((), (Ellipsis,)):
            return {"type": "array", "items": build_reply_schema(args[0], components)}
        items = [build_reply_schema(one, components) for one in args]
        return {"type": "array", "prefixItems": items, "minItems": len(args), "maxItems": len(args)}
    if origin is not None and issubclass(origin, Mapping):
        values = True if args[1] is Any else build_reply_schema(args[1], components)
        return {"type": "object", "additionalProperties": values}
    if isinstance(shown, type) and issubclass(shown, StrEnum):
        return {"type": "string", "enum": [str(one) for one in shown]}
    return _reference_noun_schema(shown, components) if is_noun(shown) else _build_scalar_schema(shown)


def _build_scalar_schema(kind: Any) -> dict[str, Json]:
    return {"type": _SCALARS[kind]} if kind in _SCALARS else {}


def _build_envelope_schema(shown: Envelope, components: dict[str, Json]) -> dict[str, Json]:
    data = build_reply_schema(list[shown.kind] if shown.many else shown.kind, components)
    properties: dict[str, Json] = {"data": data}
    if shown.cursor is not None:
        properties["nextCursor"] = build_reply_schema(shown.cursor | None, components)
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
    name = _COMPONENTS.get(kind, kind.__name__)
    if name not in components:
        components[name] = {}  # known before it is written: a noun may hold its own kind
        shown = list_json_members(kind)
        components[name] = {
            **_build_object_schema(
                {
                    one.name: build_reply_schema(_CLOSER.get((kind, one.name), one.hint), components)
                    for one in shown
                },
                [one.name for one in shown if not one.when_given],
            ),
            "description": cleandoc(kind.__doc__ or ""),
        }
    return {"$ref": REF.format(model=name)}
