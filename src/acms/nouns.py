"""Nouns as JSON: reading and writing are derived from the dataclasses, and a new field needs no other change.

Over HTTP names are camelCase, times RFC 3339 in UTC, bytes hex. Stores and exports use the names of the fields. JSON
supplied by the caller (metadata, arguments, settings) is left unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from datetime import UTC, datetime
from enum import StrEnum
from functools import cache, reduce
from operator import attrgetter, or_
from types import MappingProxyType, NoneType, UnionType
from typing import Any, Literal, NamedTuple, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from acms.knowledge import Fact
from acms.model import (
    Entry,
    Job,
    Json,
    Media,
    Part,
    Raw,
    Reasoning,
    Text,
    ToolCall,
    ToolResult,
    client_supplied_key,
)
from acms.results import Branch, Diff, HistoryEntry, MessageReceipt, SessionStats

T = TypeVar("T")
Convert = Callable[[Any], Any]

PARTS: Mapping[str, type[Any]] = {
    "text": Text,
    "reasoning": Reasoning,
    "tool_call": ToolCall,
    "tool_result": ToolResult,
    "media": Media,
    "raw": Raw,
}
"""The parts of a message, by their `type`."""
_TYPES = {kind: name for name, kind in PARTS.items()}

PAIRS = tuple[tuple[str, int], ...]
"""Numbers by name, in order: an object over HTTP."""

WHEN_GIVEN: Mapping[str, Json] = {"when_given": True}
"""Metadata of a field that is left out while it is None."""

_NAMES: dict[type[Any], Mapping[str, str | None]] = {
    Entry: {
        "context": "contextId",
        "tokens": "tokenCount",
        "actor": "actorId",
        "chain": "chainHash",
        "episode": None,
    },
    Fact: {"context": "contextId", "tokens": "tokenCount"},
    HistoryEntry: {"tokens": "tokenCount"},
    MessageReceipt: {"message_id": "id", "tokens": "tokenCount"},
    SessionStats: {"session_id": None},
    Job: {"context": "contextId", "dedupe": None, "payload": None, "lease_until": None},
    Branch: {
        "context_id": "id",
        "session_id": "key",
        "parent": "parentId",
        "fork": "forkVersion",
        "version": "latestVersion",
    },
}
"""Fields whose name over HTTP is another one; None for what stays inside."""
_FIELD_NAMES = ("policy", "policy_config", "levels")
"""Mappings by names of fields: these are camelCase over HTTP too."""


def answered_call_id(parts: Iterable[Part]) -> str | None:
    """Return the id of the call that a message answers; None when it answers none."""
    return next((part.call_id for part in parts if isinstance(part, ToolResult)), None)


def text_of(metadata: Mapping[str, Json], name: str) -> str | None:
    """Return the value under a name if it is a text, else None."""
    value = metadata.get(name)
    return value if isinstance(value, str) else None


def episode_id(context: str, ordinal: int) -> str:
    """Return the id of an episode of a context."""
    return f"ep_{context[2:]}_{ordinal}"


_DERIVED: Mapping[type[Any], Mapping[str, tuple[Any, Convert]]] = {
    Entry: {
        "key": (str | None, lambda entry: client_supplied_key(entry.key)),
        "toolCallId": (str | None, lambda entry: answered_call_id(entry.parts)),
        "toolName": (str | None, lambda entry: text_of(entry.metadata, "toolName")),
        "model": (str | None, lambda entry: text_of(entry.metadata, "model")),
        "episodeId": (
            str | None,
            lambda entry: episode_id(entry.context, entry.episode) if entry.episode else None,
        ),
        # With it, once the text is erased, a guess at the text could be confirmed by the digest, which stays.
        "salt": (str | None, lambda _: None),
    },
    Branch: {"key": (str | None, lambda one: None if one.session_id == one.context_id else one.session_id)},
    Diff: {"text": (str, str)},
}
"""Members of the JSON over HTTP that are shown besides the fields, or replace them."""

_READ: Mapping[type[Any], Callable[[Mapping[str, Json]], dict[str, Any]]] = {
    Entry: lambda written: {"episode": int((written.get("episodeId") or "_0").rpartition("_")[2])},
    Branch: lambda written: {"session_id": written["key"] or written["id"]},
    Job: lambda written: {"dedupe": ""},
}
"""Fields that are not read from under their name."""


def declare_wire_names(**names: str | None) -> Callable[[type[T]], type[T]]:
    """Say of a class which of its fields have another name over HTTP; None for one that is not shown."""

    def note(kind: type[T]) -> type[T]:
        _NAMES[kind] = names
        return kind

    return note


def to_camel_case(name: str) -> str:
    """Return the name of a field over HTTP."""
    first, *rest = name.split("_")
    return first + "".join(part.title() for part in rest)


def to_snake_case(name: str) -> str:
    """Return the field name for a name over HTTP."""
    return "".join(f"_{one.lower()}" if one.isupper() else one for one in name)


def format_instant(moment: datetime | None) -> str | None:
    """Write a point in time in UTC, as RFC 3339 has it."""
    if moment is None:
        return None
    return (moment if moment.tzinfo is UTC else moment.astimezone(UTC)).isoformat()[:-6] + "Z"


class Member(NamedTuple):
    """One name of a noun in JSON."""

    #: Name of the field; "" for a member derived from several fields.
    field: str
    name: str
    hint: Any
    #: Whether it has no default.
    needed: bool
    #: Whether it is left out while it is None.
    when_given: bool = False
    derive: Convert | None = None


@cache
def list_json_members(kind: type[Any], wire: bool = True) -> tuple[Member, ...]:
    """Return the members in the JSON of a noun, in order: over HTTP, or without `wire` with the names of the fields."""
    hints = get_type_hints(kind)
    lines = [one for one in reversed(kind.__mro__) if wire]
    names = {name: shown for one in lines for name, shown in _NAMES.get(one, {}).items()}
    derived = {name: how for one in lines for name, how in _DERIVED.get(one, {}).items()}
    found: list[Member] = []
    for name, one in _list_noun_fields(kind).items():
        shown = names.get(name, to_camel_case(name) if wire else name)
        if shown is None:
            derived.pop(name, None)
            continue
        hint, derive = derived.pop(shown, (hints[name], None))
        found.append(
            Member(
                field=name,
                name=shown,
                hint=hint,
                needed=one.default is MISSING and one.default_factory is MISSING,
                when_given="when_given" in one.metadata,
                derive=derive,
            )
        )
    found += [Member("", name, hint, False, derive=how) for name, (hint, how) in derived.items()]
    return tuple(found)


def is_noun(hint: Any) -> bool:
    """Whether a type is a dataclass or a named tuple."""
    return isinstance(hint, type) and (is_dataclass(hint) or hasattr(hint, "_field_defaults"))


def _list_noun_fields(kind: type[Any]) -> dict[str, Field[Any]]:
    if is_dataclass(kind):
        return {one.name: one for one in fields(kind)}
    return {name: field(default=kind._field_defaults.get(name, MISSING)) for name in kind._fields}


def _split_union(hint: Any) -> tuple[Any, bool] | None:
    """Return the union's other members and whether it includes None; return None for a type that is no union."""
    if get_origin(hint) not in (Union, UnionType):
        return None
    others = tuple(one for one in get_args(hint) if one is not NoneType)
    return reduce(or_, others), len(others) < len(get_args(hint))


def _are_parts(hint: Any) -> bool:
    return set(get_args(hint)) == set(_TYPES)


# ── writing ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def encode_noun(noun: object, kind: type[Any] | None = None, *, wire: bool = True) -> dict[str, Json]:
    """Write a noun as JSON, as one of another class if that is given: what this one shows, and no more."""
    return build_encoder(kind or type(noun), wire)(noun)


@cache
def build_encoder(kind: type[Any], wire: bool = True) -> Callable[[Any], dict[str, Json]]:
    """Return what writes nouns of a class as JSON."""
    shown = list_json_members(kind, wire)
    plain = [one for one in shown if one.derive is None]
    names, one_by_one = [one.name for one in plain], attrgetter(*[one.field for one in plain])
    get: Convert = one_by_one if len(plain) > 1 else lambda noun: (one_by_one(noun),)
    converted = [
        (one.name, how) for one in plain if (how := _encoder_for_type(one.hint, wire, one.field)) is not None
    ]
    derived = [(one.name, one.derive) for one in shown if one.derive is not None]
    optional = [one.name for one in plain if one.when_given]

    def write(noun: Any) -> dict[str, Json]:
        written: dict[str, Json] = dict(zip(names, get(noun), strict=True))
        for name, how in converted:
            if (value := written[name]) is not None:
                written[name] = how(value)
        for name, how in derived:
            written[name] = how(noun)
        for name in optional:
            if written[name] is None:
                del written[name]
        return written

    return write


def _encoder_for_type(hint: Any, wire: bool, name: str = "") -> Convert | None:
    """Return the function that converts values of a type to JSON, or None if they need no conversion."""
    origin, args = get_origin(hint), get_args(hint)
    if hint == PAIRS and wire:
        return dict
    union = _split_union(hint)
    if union is not None:
        if _are_parts(union[0]):
            return lambda value: write_part(value, wire=wire)
        return None if union[0] == hint else _encoder_for_type(union[0], wire)
    if isinstance(origin, type) and issubclass(origin, Sequence):
        each = None if len(args) == 2 and args[1] is not Ellipsis else _encoder_for_type(args[0], wire)
        return list if each is None else lambda value: [each(one) for one in value]
    if isinstance(origin, type) and issubclass(origin, Mapping):
        if wire and name in _FIELD_NAMES:
            return lambda value: {to_camel_case(key): one for key, one in value.items()}
        return dict
    return _encoder_for_class(hint, wire) if isinstance(hint, type) else None


def _encoder_for_class(hint: type[Any], wire: bool) -> Convert | None:
    if is_noun(hint):
        return lambda value: build_encoder(hint, wire)(value)  # looked up late: a noun may hold its own kind
    if issubclass(hint, StrEnum):
        return attrgetter("_value_")  # not `value`, which is two calls of Python
    if issubclass(hint, datetime):
        return format_instant if wire else datetime.isoformat
    return bytes.hex if issubclass(hint, bytes) else None


def write_part(part: Part, *, wire: bool = True) -> dict[str, Json]:
    """Write a part of a message."""
    return {"type": _TYPES[type(part)], **build_encoder(type(part), wire)(part)}


# ── reading ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def decode_noun(kind: type[T], written: Any, *, wire: bool = True, **known: Any) -> T:
    """Read a noun; `KeyError`, `TypeError` or `ValueError` when it is none. Names that are not known are passed over.

    `known` are fields that are not written.
    """
    return cast("T", _build_decoder(kind, wire)(written, **known))


@dataclass(frozen=True, slots=True)
class _Take:
    """How a value is read."""

    #: The types it may have in JSON; empty for any.
    types: frozenset[type[Any]] = frozenset()
    convert: Convert | None = None

    def __call__(self, value: Any, name: str = "") -> Any:
        if self.types and type(value) not in self.types:
            wanted = " or ".join(sorted(one.__name__ for one in self.types))
            raise TypeError(f"{name}: {type(value).__name__} where {wanted} belongs".removeprefix(": "))
        return value if self.convert is None or value is None else self.convert(value)


@cache
def _build_decoder(kind: type[Any], wire: bool) -> Callable[..., Any]:
    hints = get_type_hints(kind)
    plan = [
        (one.field, one.name, take.types, take.convert, take, one.needed)
        for one in list_json_members(kind, wire)
        if one.field
        for take in [_decoder_for_type(hints[one.field], wire, one.field)]
    ]
    also = _READ.get(kind) if wire else None

    def read(written: Any, **known: Any) -> Any:
        if not isinstance(written, Mapping):
            raise TypeError(f"{type(written).__name__} where an object belongs")
        found = known if also is None else {**also(written), **known}
        for place, name, types, convert, take, needed in plan:
            if place in found:
                continue
            if name in written:
                value = written[name]
                if type(value) not in types:
                    value = take(value, name)
                elif convert is not None and value is not None:
                    value = convert(value)
                found[place] = value
            elif needed:
                raise KeyError(name)
        return kind(**found)

    return read


_NONE = frozenset({NoneType})
_OBJECT = frozenset({dict})


def _decoder_for_type(hint: Any, wire: bool, name: str = "") -> _Take:
    """Return how a value of a type is read."""
    origin, args = get_origin(hint), get_args(hint)
    if hint == PAIRS and wire:
        return _Take(_OBJECT, lambda value: tuple(value.items()))
    union = _split_union(hint)
    if union is not None:
        inner, optional = union
        if _are_parts(inner):
            return _Take(_OBJECT, lambda value: _read_part(value, wire))
        take = _Take() if inner == hint else _decoder_for_type(inner, wire)
        return _Take(take.types | _NONE if optional and take.types else take.types, take.convert)
    if origin is tuple:
        return _decoder_for_tuple(args, wire)
    if origin is Sequence:
        return _decoder_for_tuple((args[0], ...), wire)
    if origin is Literal:
        return _Take(frozenset(map(type, args)))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        if wire and name in _FIELD_NAMES:
            return _Take(
                _OBJECT, lambda value: MappingProxyType({to_snake_case(key): value[key] for key in value})
            )
        return _Take(_OBJECT, lambda value: MappingProxyType(dict(value)))
    return _decoder_for_class(hint, wire) if isinstance(hint, type) else _Take()


def _decoder_for_tuple(args: tuple[Any, ...], wire: bool) -> _Take:
    lists = frozenset({list, tuple})
    if args[1:] == (Ellipsis,):
        each = _decoder_for_type(args[0], wire)
        return _Take(lists, lambda value: tuple([each(one) for one in value]))
    several = [_decoder_for_type(one, wire) for one in args]
    return _Take(lists, lambda value: tuple([take(one) for take, one in zip(several, value, strict=True)]))


def _decoder_for_class(hint: type[Any], wire: bool) -> _Take:
    if is_noun(hint):
        return _Take(_OBJECT, lambda value: _build_decoder(hint, wire)(value))
    if issubclass(hint, StrEnum):
        return _Take(frozenset({str}), hint)
    if issubclass(hint, datetime):
        return _Take(frozenset({str}), _parse_datetime)
    if issubclass(hint, bytes):
        return _Take(frozenset({str}), bytes.fromhex)
    if issubclass(hint, float):
        return _Take(frozenset({int, float}), float)
    return _Take(frozenset({hint}) if hint in (str, int, bool) else frozenset())


def _parse_datetime(written: str) -> datetime:
    found = datetime.fromisoformat(written)
    if found.tzinfo is None:
        raise ValueError(f"{written} names no time zone")
    return found.astimezone(UTC)


def _read_part(written: Any, wire: bool) -> Any:
    kind = PARTS[written["type"]]
    unknown = written.keys() - {"type", *(one.name for one in list_json_members(kind, wire))}
    if unknown:
        raise TypeError(f"{min(unknown)} of a part is not known")
    return _build_decoder(kind, wire)(written)
