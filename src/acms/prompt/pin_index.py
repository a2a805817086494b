"""Pins: the index that says which keys are always shown, their order, and the block they are shown as.

The index is one JSON object: `{"version", "pins": {key: {"label"?, "role"?, "priority"?,
"tags"?, "updatedAt"}}, "updatedAt"}`, times in milliseconds. Whatever else another program keeps in it stays there.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeGuard, cast

from acms.errors import CorruptRecordError, SchemaVersionError, ValidationError
from acms.log import validation
from acms.model import Json, Role
from acms.observability.events import PinsSkipped, PinsTruncated
from acms.plan.nodes import ComposedMessage, FittedPrompt, KeptEnd, Omission, Omit, Piece, Scope, Truncate

INDEX_KEY = "__cria:pins:v1__"
"""Prefix of the key of an index; a colon and the namespace follow."""
VERSION = 1
MOST_PINS = 1_000
"""Pins that a namespace may have."""
INDEX_BYTES = 262_144
"""Bytes of JSON that its index may have: every change reads and writes the whole of it."""
TAGS = 64
"""Tags that a pin may have."""
MAX_PINS = 20
"""Pins that a block shows unless the caller asks for more."""
TRUNCATE_TOKENS = 1200
"""Tokens of a block unless the caller says otherwise: twenty pins of sixty tokens."""
OPENING = "Pinned context:\n"
INDENT = "\n  "

_SAFE = 2**53 - 1
"""The largest whole number that every reader of JSON keeps."""
_ROLES = (Role.SYSTEM, Role.DEVELOPER, Role.USER)
_FIELDS = ("label", "role", "priority", "tags", "updatedAt")
_LINE_BREAKS = {0x85: "\\u0085", 0x2028: "\\u2028", 0x2029: "\\u2029"}
"""Line breaks that JSON leaves as they are, escaped as it may."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PinMetadata:
    """The metadata of a pin besides its key."""

    #: Shown behind the key; one line.
    label: str | None = None
    #: Kept for other programs: all pins of a block share the role of the block.
    role: Role | None = None
    #: The higher, the earlier; a pin without one comes after all that have one.
    priority: float | None = None
    tags: tuple[str, ...] = ()
    #: Milliseconds since 1970; of equal priorities the newest comes first. None when creating a pin means now.
    updated_at: int | None = None


class Pin(NamedTuple):
    """A key that is always shown, as long as something is stored under it."""

    key: str
    metadata: PinMetadata


class Pinned(NamedTuple):
    """A pin with its value, as passed to a formatter."""

    key: str
    data: Json
    metadata: PinMetadata


# ── the index ───────────────────────────────────────────────────────────────────────────────────────────────────────


def index_key(namespace: object, prefix: object = INDEX_KEY) -> str:
    """Return the key under which the index of a namespace lies."""
    return (
        f"{validation.validate_name(prefix, 'index_key')}:{validation.validate_name(namespace, 'namespace')}"
    )


def validate_pin_metadata(metadata: PinMetadata) -> PinMetadata:
    """Return metadata that every program which reads the index understands."""
    if not isinstance(metadata, PinMetadata):
        raise ValidationError(
            f"must be PinMetadata, not {type(metadata).__name__}",
            field="metadata",
            options=('pin(key, label="…", priority=…)',),
        )
    label = validation.validate_optional_name(metadata.label, "label")
    if label is not None and len(label.splitlines()) > 1:
        raise ValidationError("must be one line", field="label")
    when = metadata.updated_at
    return PinMetadata(
        label=label,
        role=None if metadata.role is None else parse_block_role(metadata.role),
        priority=None if metadata.priority is None else _validate_number(metadata.priority, "priority"),
        tags=_validate_tags(metadata.tags),
        updated_at=None if when is None else validation.validate_integer(when, "updated_at", maximum=_SAFE),
    )


def _validate_number(value: object, field: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not -_SAFE <= value <= _SAFE:
        raise ValidationError(f"must be a number from {-_SAFE} to {_SAFE}, was {value!r}", field=field)
    return int(value) if value == int(value) else value


def _validate_tags(value: object) -> tuple[str, ...]:
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise ValidationError(f"must be a list of texts, not {type(value).__name__}", field="tags")
    if len(value) > TAGS:
        raise ValidationError(f"has {len(value)} tags, the limit is {TAGS}", field="tags")
    return tuple(
        dict.fromkeys([validation.validate_name(tag, f"tags[{number}]") for number, tag in enumerate(value)])
    )


def parse_pins(index: Json, where: str) -> tuple[Pin, ...]:
    """Return the pins of an index (None when there is none), in order.

    Higher priority first, then the newest, then by key.
    """
    stored_pins = _pins_of_index(_open_index(index, where))
    pins = [Pin(key, _metadata_from_json(stored, key, where)) for key, stored in stored_pins.items()]
    return tuple(sorted(pins, key=_pin_sort_key))


def _pin_sort_key(pin: Pin) -> tuple[float, int, str]:
    priority = pin.metadata.priority
    return (math.inf if priority is None else -priority), -(pin.metadata.updated_at or 0), pin.key


def add_pin(index: Json, where: str, pin: Pin, *, now: int) -> Json:
    """Return an index with a pin added; its metadata replaces the earlier metadata of the key.

    Each change is at least a millisecond later than the last one, so the newest comes first regardless of the writers'
    clocks and speed. Raise `ValidationError` when the index gets too large.
    """
    old_index = _open_index(index, where)
    pins = dict(_pins_of_index(old_index))
    is_new = pin.key not in pins
    old_fields = _object_or_none(pins.get(pin.key)) or {}
    foreign_fields = {name: value for name, value in old_fields.items() if name not in _FIELDS}
    now = _next_timestamp(old_index, now)
    pins[pin.key] = {**_metadata_to_json(pin.metadata, now), **foreign_fields}
    new_index = {**old_index, "version": VERSION, "pins": pins, "updatedAt": now}
    if is_new and len(pins) > MOST_PINS:
        raise _too_large(f"{len(pins)} pins, the limit is {MOST_PINS}", old_index, where)
    size = _json_size(new_index)
    # An index that is too large already accepts changes that make it no larger.
    if size > INDEX_BYTES and size > _json_size(old_index):
        raise _too_large(f"{size} bytes of JSON, the limit is {INDEX_BYTES}", old_index, where)
    return new_index


def remove_pin(index: Json, where: str, key: str, *, now: int) -> Json:
    """Return an index without a pin; the index itself if it has no pin of that key."""
    old_index = _open_index(index, where)
    pins = dict(_pins_of_index(old_index))
    if key not in pins:
        return index
    del pins[key]
    return {**old_index, "pins": pins, "updatedAt": _next_timestamp(old_index, now)}


def _next_timestamp(old_index: Mapping[str, Json], now: int) -> int:
    last = old_index.get("updatedAt")
    return max(now, int(last) + 1) if _is_number(last) and last < _SAFE else now


def pin_of_key(index: Json, where: str, key: str) -> Pin:
    """Return the pin of a key; `KeyError` if the key is not pinned."""
    stored = _pins_of_index(_open_index(index, where))[key]
    return Pin(key, _metadata_from_json(stored, key, where))


def _open_index(index: Json, where: str) -> Mapping[str, Json]:
    if index is None:
        return {"version": VERSION, "pins": {}}
    parsed = _object_or_none(index) or {}
    version = parsed.get("version")
    if _is_number(version) and version > VERSION:
        raise SchemaVersionError(
            f"the pin index {where!r} has version {version}, this release reads version {VERSION}",
            options=("upgrade acms-engine", "pin in another namespace"),
        )
    if version != VERSION or _object_or_none(parsed.get("pins")) is None:
        raise CorruptRecordError(
            f"the value of {where!r} is not a pin index", options=(f"delete {where!r} and pin again",)
        )
    return parsed


def _pins_of_index(index: Mapping[str, Json]) -> Mapping[str, Json]:
    return index["pins"]


def _object_or_none(value: Json) -> Mapping[str, Json] | None:
    return cast("Mapping[str, Json]", value) if isinstance(value, Mapping) else None


def _is_number(value: Json) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _metadata_to_json(metadata: PinMetadata, now: int) -> dict[str, Json]:
    stored: dict[str, Json] = {
        "label": metadata.label,
        "role": metadata.role and metadata.role.value,
        "priority": metadata.priority,
        "tags": list(metadata.tags) or None,
        "updatedAt": now if metadata.updated_at is None else metadata.updated_at,
    }
    return {name: value for name, value in stored.items() if value is not None}


def _metadata_from_json(stored: Json, key: str, where: str) -> PinMetadata:
    """Parse the stored metadata of a pin; null values count as missing."""
    try:
        fields = _object_or_none(stored)
        if fields is None:
            raise ValidationError(f"must be an object, not {type(stored).__name__}")
        updated_at = fields.get("updatedAt")
        if not _is_number(updated_at):
            raise ValidationError(f"must be a number, was {updated_at!r}", field="updatedAt")
        label, role, tags = fields.get("label"), fields.get("role"), fields.get("tags")
        priority = fields.get("priority")
        return PinMetadata(
            label=None if label is None else validation.validate_text(label, "label"),
            role=None if role is None else validation.parse_choice(role, Role, "role"),
            priority=None if priority is None else _validate_number(priority, "priority"),
            tags=() if tags is None else _validate_tags(tags),
            updated_at=int(updated_at),
        )
    except ValidationError as error:
        raise CorruptRecordError(
            f"the stored pin {key!r} in {where!r} cannot be read: {error}",
            options=(f"pin {key!r} again", f"unpin {key!r}"),
        ) from error


def _json_size(index: Json) -> int:
    return len(json.dumps(index, ensure_ascii=False, separators=(",", ":")).encode())


def _too_large(problem: str, old_index: Json, where: str) -> ValidationError:
    last_keys = ", ".join(repr(pin.key) for pin in parse_pins(old_index, where)[-3:])
    return ValidationError(
        f"{where!r} would have {problem}",
        field="key",
        options=(
            f"unpin the last ones: {last_keys}",
            "use several namespaces, each with a block of its own",
        ),
    )


# ── the block ───────────────────────────────────────────────────────────────────────────────────────────────────────


def format_pin(entry: Pinned) -> str:
    r"""Format a pin as the seed shows it: `- key (label)`, with its value below, indented by two spaces.

    A string is shown verbatim, any other value as compact JSON with its names in stored order. Every line of a value is
    indented, and key and label are reduced to one line, so a value cannot pass for another pin or for text outside the
    block. Line breaks of any kind become "\n".
    """
    key, data, metadata = entry
    value = data if isinstance(data, str) else compact_json(data)
    head = f"- {_one_line(key)}"
    if metadata.label:
        head += f" ({_one_line(metadata.label)})"
    return INDENT.join([head, *value.splitlines()])


def compact_json(data: Json) -> str:
    """Write a value as JSON on one line, its names in the order in which they are stored."""
    return json.dumps(data, ensure_ascii=False, separators=(",", ":")).translate(_LINE_BREAKS)


def _one_line(name: str) -> str:
    return " ".join(name.splitlines())


def apply_formatter(entry: Pinned, namespace: str, formatter: Callable[[Pinned], object]) -> str:
    """Return the output of a formatter for a pin; `ValidationError` (field "format") when it fails.

    The error names key and namespace, and never quotes the value; its cause is the formatter's exception.
    """
    where = f"on pin {entry.key!r} of namespace {namespace!r}"
    try:
        text = formatter(entry)
    except Exception as error:
        raise ValidationError(f"raised {type(error).__name__} {where}", field="format") from error
    try:
        return validation.validate_text(text, "format", limit=4 * validation.VALUE_BYTES)
    except ValidationError as error:
        problem = str(error).removeprefix("format: ")
        raise ValidationError(f"its result {where} {problem}", field="format") from error


def scope_id(namespace: str) -> str:
    """Return the id of the scope of a block; it has no slash, which separates the ids of a path."""
    return "pins:" + namespace.replace("%", "%25").replace("/", "%2F")


def parse_pin_strategy(value: object) -> Truncate | Omit:
    """Parse the strategy for shrinking pins: "omit", or {"truncate_tokens": n}."""
    if value == "omit":
        return Omit()
    if isinstance(value, Mapping) and set(value) == {"truncate_tokens"}:
        tokens = validation.validate_integer(
            value["truncate_tokens"], "strategy.truncate_tokens", minimum=1, maximum=validation.BUDGET
        )
        return Truncate(tokens, KeptEnd.START)
    raise ValidationError(
        f"{value!r} is not a way to shrink pins",
        field="strategy",
        options=('"omit"', '{"truncate_tokens": 1200}'),
    )


def parse_block_role(value: object) -> Role:
    """Return a role that a block of pins may have: system, developer or user."""
    role = validation.parse_choice(value, Role, "role")
    if role not in _ROLES:
        raise ValidationError(f"{role.value!r} is not one of {', '.join(_ROLES)}", field="role")
    return role


def build_pin_block(
    namespace: str,
    texts: Sequence[tuple[str, str]],
    *,
    role: Role,
    priority: int,
    strategy: Truncate | Omit,
    floor: int,
) -> Scope:
    """Return one message of all pins, given as (key, text) in order; an empty scope when there are none."""
    ranks = range(len(texts), 0, -1)
    pieces = tuple(Piece(text, key, float(rank)) for (key, text), rank in zip(texts, ranks, strict=True))
    return Scope(
        id=scope_id(namespace),
        children=(ComposedMessage(role, pieces, opening=OPENING, kind="pins"),) if pieces else (),
        priority=priority,
        strategy=strategy,
        floor=floor if pieces else 0,
    )


# ── verdicts on pins ────────────────────────────────────────────────────────────────────────────────────────────────


def list_skipped_pins(event: PinsSkipped) -> tuple[Omission, ...]:
    """Return the ledger's verdicts on pins that never reached a prompt."""
    path = scope_id(event.namespace)
    missing = [
        Omission((key,), path, "missing", "nothing is stored under the key", 0) for key in event.missing
    ]
    beyond = [Omission((key,), path, "max_pins", "others come before it", 0) for key in event.beyond]
    return (*missing, *beyond)


def find_truncated_pins(namespace: str, fitted: FittedPrompt) -> PinsTruncated | None:
    """Return which pins of a namespace a fit left out or cut; None when all are shown whole."""
    name = scope_id(namespace)
    omitted_keys: dict[str, None] = {}
    cut_keys: dict[str, None] = {}
    for omission in fitted.omissions:
        if omission.path.rpartition("/")[2] == name:
            keys = omitted_keys if omission.gone else cut_keys
            keys.update(dict.fromkeys(omission.ids))
    if not omitted_keys and not cut_keys:
        return None
    cut_only = tuple(key for key in cut_keys if key not in omitted_keys)
    return PinsTruncated(namespace=namespace, left_out=tuple(omitted_keys), cut=cut_only)
