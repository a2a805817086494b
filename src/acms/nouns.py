"""Nouns as JSON: encoders and decoders are derived from the dataclasses, and a new field needs no other change.

Over HTTP, names are camelCase, times are RFC 3339 in UTC, and bytes are hex. Stores and exports use the names of the
fields. JSON supplied by the caller (metadata, arguments, settings) is left unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from functools import cache
from operator import attrgetter
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
from acms.results import Branch, ContextItem, Diff, HistoryEntry, MessageReceipt, SessionStats

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
_TYPE_OF_PART = {kind: name for name, kind in PARTS.items()}

PAIRS = tuple[tuple[str, int], ...]
"""Numbers by name, in order; over HTTP an object."""

WHEN_GIVEN: Mapping[str, Json] = {"when_given": True}
"""Metadata of a field that is left out while it is None."""

_WIRE_NAMES: dict[type[Any], Mapping[str, str | None]] = {
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
    ContextItem: {"exchange": None},
    Job: {"context": "contextId", "dedupe": None, "payload": None, "lease_until": None},
    Branch: {
        "context_id": "id",
        "session_id": "key",
        "parent": "parentId",
        "fork": "forkVersion",
        "version": "latestVersion",
    },
}
"""Names over HTTP of the fields whose name differs there; None for a field that is not shown."""
_KEYED_BY_FIELDS = ("policy", "policy_config", "levels")
"""Fields whose value is a mapping by names of fields, which are camelCase over HTTP too."""


def answered_call_id(parts: Iterable[Part]) -> str | None:
    """Return the id of the call that a message answers, or None."""
    return next((part.call_id for part in parts if isinstance(part, ToolResult)), None)


def text_of(metadata: Mapping[str, Json], name: str) -> str | None:
    """Return the value under a name, or None if it is not a text."""
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
        # The digest of an erased text stays. With the salt, it could confirm a guess at the text.
        "salt": (str | None, lambda _: None),
    },
    Branch: {
        "key": (
            str | None,
            lambda branch: None if branch.session_id == branch.context_id else branch.session_id,
        )
    },
    Diff: {"text": (str, str)},
}
"""Members of the JSON over HTTP, each with its type and its function, in addition to the fields or instead of them."""

_DERIVED_FIELDS: Mapping[type[Any], Callable[[Mapping[str, Json]], dict[str, Any]]] = {
    Entry: lambda encoded: {"episode": int((encoded.get("episodeId") or "_0").rpartition("_")[2])},
    Branch: lambda encoded: {"session_id": encoded["key"] or encoded["id"]},
    Job: lambda encoded: {"dedupe": ""},
}
"""Functions that derive fields from other members of the JSON."""


def declare_wire_names(**names: str | None) -> Callable[[type[T]], type[T]]:
    """Declare the names over HTTP of the fields of a class, where they differ; None for a field that is not shown."""

    def declare(kind: type[T]) -> type[T]:
        _WIRE_NAMES[kind] = names
        return kind

    return declare


def to_camel_case(name: str) -> str:
    """Return the name of a field over HTTP."""
    first, *rest = name.split("_")
    return first + "".join(part.title() for part in rest)


def to_snake_case(name: str) -> str:
    """Return the field name for a name over HTTP."""
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name)


def format_instant(moment: datetime | None) -> str | None:
    """Format a point in time in UTC according to RFC 3339."""
    if moment is None:
        return None
    in_utc = moment if moment.tzinfo is UTC else moment.astimezone(UTC)
    return in_utc.isoformat().removesuffix("+00:00") + "Z"


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
    """Return the JSON members of a noun class, in order.

    With `wire` they have the names of the HTTP interface, and derived members come last. Without it the members are the
    fields of the class.
    """
    hints = get_type_hints(kind)
    wire_names: dict[str, str | None] = {}
    derived: dict[str, tuple[Any, Convert]] = {}
    if wire:
        for base in reversed(kind.__mro__):
            wire_names.update(_WIRE_NAMES.get(base, {}))
            derived.update(_DERIVED.get(base, {}))
    members: list[Member] = []
    for name, definition in _list_noun_fields(kind).items():
        json_name = wire_names.get(name, to_camel_case(name) if wire else name)
        if json_name is None:  # the field is not shown
            derived.pop(name, None)
            continue
        hint, derive = derived.pop(json_name, (hints[name], None))
        members.append(
            Member(
                field=name,
                name=json_name,
                hint=hint,
                needed=definition.default is MISSING and definition.default_factory is MISSING,
                when_given="when_given" in definition.metadata,
                derive=derive,
            )
        )
    members += [Member("", name, hint, False, derive=derive) for name, (hint, derive) in derived.items()]
    return tuple(members)


def is_noun(hint: Any) -> bool:
    """Return whether a type is a dataclass or a named tuple."""
    return isinstance(hint, type) and (is_dataclass(hint) or hasattr(hint, "_field_defaults"))


def _list_noun_fields(kind: type[Any]) -> dict[str, Field[Any]]:
    if is_dataclass(kind):
        return {definition.name: definition for definition in fields(kind)}
    return {name: field(default=kind._field_defaults.get(name, MISSING)) for name in kind._fields}


# ── conversions ─────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class _Codec:
    """How values of a type are converted to JSON and back."""

    #: None for values that are the same in JSON.
    encode: Convert | None = None
    #: The types that a value may have in JSON; empty for any.
    types: frozenset[type[Any]] = frozenset()
    decode: Convert | None = None

    def check_and_decode(self, value: Any, name: str = "") -> Any:
        """Return a value from JSON; `TypeError` if it has another type."""
        if self.types and type(value) not in self.types:
            wanted = " or ".join(sorted(kind.__name__ for kind in self.types))
            raise TypeError(f"{name}: {type(value).__name__} where {wanted} belongs".removeprefix(": "))
        return value if self.decode is None or value is None else self.decode(value)


_NONE = frozenset({NoneType})
_TEXT = frozenset({str})
_OBJECT = frozenset({dict})
_LIST = frozenset({list, tuple})


def _build_codec(hint: Any, wire: bool, name: str = "") -> _Codec:
    """Return the codec for values of a type; `name` is the field, as the keys of some mappings are converted."""
    origin, args = get_origin(hint), get_args(hint)
    if hint == PAIRS and wire:
        return _Codec(dict, _OBJECT, lambda value: tuple(value.items()))
    if origin in (Union, UnionType):
        return _build_union_codec(hint, wire)
    if origin in (tuple, Sequence):
        return _build_sequence_codec((args[0], ...) if origin is Sequence else args, wire)
    if origin is Literal:
        return _Codec(None, frozenset(map(type, args)))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        if wire and name in _KEYED_BY_FIELDS:
            return _Codec(_to_camel_case_keys, _OBJECT, _to_snake_case_keys)
        return _Codec(dict, _OBJECT, lambda value: MappingProxyType(dict(value)))
    if origin is list:
        return _Codec(_build_sequence_codec((args[0], ...), wire).encode)
    return _build_class_codec(hint, wire) if isinstance(hint, type) else _Codec()


def _to_camel_case_keys(value: Mapping[str, Json]) -> dict[str, Json]:
    return {to_camel_case(key): item for key, item in value.items()}


def _to_snake_case_keys(value: Mapping[str, Json]) -> Mapping[str, Json]:
    return MappingProxyType({to_snake_case(key): item for key, item in value.items()})


def _build_union_codec(hint: Any, wire: bool) -> _Codec:
    """Return the codec for `X | None` or for a part of a message; other unions are passed unchanged."""
    members = [member for member in get_args(hint) if member is not NoneType]
    if set(members) == set(_TYPE_OF_PART):
        return _Codec(
            lambda part: write_part(part, wire=wire), _OBJECT, lambda value: _decode_part(value, wire)
        )
    if len(members) > 1:
        return _Codec()
    codec = _build_codec(members[0], wire)
    return replace(codec, types=codec.types | _NONE) if codec.types else codec


def _build_sequence_codec(args: tuple[Any, ...], wire: bool) -> _Codec:
    """Return the codec for a tuple with the given type arguments; `(X, ...)` is a tuple of any length."""
    codecs = [_build_codec(arg, wire) for arg in args if arg is not Ellipsis]
    has_any_length = args[1:] == (Ellipsis,)
    if not has_any_length:
        return _Codec(list, _LIST, lambda value: tuple(_decode_each(codecs, value)))
    encode, decode = codecs[0].encode, codecs[0].check_and_decode
    return _Codec(
        list if encode is None else lambda value: [encode(item) for item in value],
        _LIST,
        lambda value: tuple([decode(item) for item in value]),
    )


def _decode_each(codecs: Sequence[_Codec], values: Sequence[Any]) -> list[Any]:
    return [codec.check_and_decode(value) for codec, value in zip(codecs, values, strict=True)]


def _build_class_codec(hint: type[Any], wire: bool) -> _Codec:
    """Return the codec for a noun, an enum, a time, bytes or a plain JSON type; other classes are passed unchanged."""
    if is_noun(hint):  # looked up late, because a noun may contain its own class
        return _Codec(
            lambda value: build_encoder(hint, wire)(value),
            _OBJECT,
            lambda value: _build_decoder(hint, wire)(value),
        )
    if issubclass(hint, StrEnum):
        return _Codec(
            attrgetter("_value_"), _TEXT, hint
        )  # faster than `value`, which calls two Python functions
    if issubclass(hint, datetime):
        return _Codec(format_instant if wire else datetime.isoformat, _TEXT, _parse_datetime)
    if issubclass(hint, bytes):
        return _Codec(bytes.hex, _TEXT, bytes.fromhex)
    if issubclass(hint, float):
        return _Codec(None, frozenset({int, float}), float)
    is_json_type = hint in (str, int, bool)
    return _Codec(None, frozenset({hint}) if is_json_type else frozenset())


def _parse_datetime(text: str) -> datetime:
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError(f"{text} has no time zone")
    return moment.astimezone(UTC)


# ── writing ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def encode_noun(noun: object, kind: type[Any] | None = None, *, wire: bool = True) -> dict[str, Json]:
    """Encode a noun as a JSON object; with `kind`, only the members that this class has."""
    return build_encoder(kind or type(noun), wire)(noun)


@cache
def build_encoder(kind: type[Any], wire: bool = True) -> Callable[[Any], dict[str, Json]]:
    """Return a function that encodes nouns of a class as JSON objects."""
    members = list_json_members(kind, wire)
    plain = [member for member in members if member.derive is None]
    names = [member.name for member in plain]
    get_values = _build_values_getter([member.field for member in plain])
    encoders: list[tuple[str, Convert]] = []
    for member in plain:
        encode_value = _build_codec(member.hint, wire, member.field).encode
        if encode_value is not None:
            encoders.append((member.name, encode_value))
    derived = [(member.name, member.derive) for member in members if member.derive is not None]
    optional = [member.name for member in plain if member.when_given]

    def encode(noun: Any) -> dict[str, Json]:
        encoded: dict[str, Json] = dict(zip(names, get_values(noun), strict=True))
        for name, encode_value in encoders:
            value = encoded[name]
            if value is not None:
                encoded[name] = encode_value(value)
        for name, derive in derived:
            encoded[name] = derive(noun)
        for name in optional:
            if encoded[name] is None:
                del encoded[name]
        return encoded

    return encode


def _build_values_getter(names: Sequence[str]) -> Convert:
    """Return a function that returns the values of some fields of a noun as a tuple."""
    if len(names) == 1:
        return lambda noun: (getattr(noun, names[0]),)
    return attrgetter(*names)


def write_part(part: Part, *, wire: bool = True) -> dict[str, Json]:
    """Encode a part of a message as a JSON object."""
    return {"type": _TYPE_OF_PART[type(part)], **build_encoder(type(part), wire)(part)}


# ── reading ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def decode_noun(kind: type[T], encoded: Any, *, wire: bool = True, **known: Any) -> T:
    """Decode a noun from JSON; raise `KeyError`, `TypeError` or `ValueError` if it is not valid.

    Unknown names are skipped. `known` are the values of fields that the JSON does not have.
    """
    return cast("T", _build_decoder(kind, wire)(encoded, **known))


@cache
def _build_decoder(kind: type[Any], wire: bool) -> Callable[..., Any]:
    """Return a function that builds nouns of a class from JSON objects; its keywords are fields known beforehand."""
    hints = get_type_hints(kind)
    members = [member for member in list_json_members(kind, wire) if member.field]
    codecs = [_build_codec(hints[member.field], wire, member.field) for member in members]
    plan = [
        (member.field, member.name, codec.types, codec.decode, codec, member.needed)
        for member, codec in zip(members, codecs, strict=True)
    ]
    derive_fields = _DERIVED_FIELDS.get(kind) if wire else None

    def decode(encoded: Any, **known: Any) -> Any:
        if not isinstance(encoded, Mapping):
            raise TypeError(f"{type(encoded).__name__} where an object belongs")
        values = known if derive_fields is None else {**derive_fields(encoded), **known}
        for field_name, name, types, decode_value, codec, needed in plan:
            if field_name in values:
                continue
            if name in encoded:
                value = encoded[name]
                if type(value) not in types:
                    value = codec.check_and_decode(value, name)
                elif decode_value is not None and value is not None:
                    value = decode_value(value)
                values[field_name] = value
            elif needed:
                raise KeyError(name)
        return kind(**values)

    return decode


def _decode_part(encoded: Any, wire: bool) -> Any:
    kind = PARTS[encoded["type"]]
    known_names = {"type", *(member.name for member in list_json_members(kind, wire))}
    unknown = encoded.keys() - known_names
    if unknown:
        raise TypeError(f"{min(unknown)} of a part is not known")
    return _build_decoder(kind, wire)(encoded)
