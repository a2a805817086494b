"""What goes over the wire: requests are read and checked here, nouns written as JSON with camelCase names."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime
from enum import StrEnum
from functools import cache
from typing import Any, cast

import pydantic
from pydantic.alias_generators import to_camel

from acms.errors import ValidationError
from acms.model import Json, Media, Raw, Reasoning, Redaction, Text, ToolCall, ToolResult
from acms.server.operation import Body, Operation, Query

__all__ = ["body", "instant", "named", "named_on_wire", "parameters", "plain", "written"]

_encode = pydantic.TypeAdapter(Any).dump_json  # four times as fast as json
_OPAQUE = frozenset({"metadata", "arguments", "payload", "settings", "data", "value"})
"""Names whose value is somebody else's: the names in it are left as they are."""
_PARTS: Mapping[type[Any], str] = {
    Text: "text",
    Reasoning: "reasoning",
    ToolCall: "tool_call",
    ToolResult: "tool_result",
    Media: "media",
    Raw: "raw",
}
"""By which `type` a part of a message is known."""


def written(value: Json) -> bytes:
    """Write JSON."""
    return _encode(value)


def instant(moment: datetime | None) -> str | None:
    """Write a point in time in UTC, as RFC 3339 has it."""
    return None if moment is None else moment.astimezone(UTC).isoformat().replace("+00:00", "Z")


def named(choice: StrEnum | None) -> str | None:
    """Write one of some names; as text, since the writer of JSON is slow with enums."""
    return None if choice is None else str(choice)


@cache
def _names(noun: type[Any]) -> tuple[tuple[str, str], ...]:
    return tuple((field.name, to_camel(field.name)) for field in fields(noun))


def plain(value: Any) -> Json:
    """Return a noun as JSON with camelCase names; what is the caller's own stays as it is."""
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str):
        return str(value)
    if isinstance(value, Redaction):
        return {"mode": value.mode, "kinds": dict(value.kinds)}
    if is_dataclass(value) and not isinstance(value, type):
        kind = _PARTS.get(type(value))
        return ({"type": kind} if kind else {}) | {
            name: _own(getattr(value, field)) if field in _OPAQUE else plain(getattr(value, field))
            for field, name in _names(type(value))
        }
    if isinstance(value, datetime):
        return instant(value)
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in cast("Mapping[Any, Any]", value).items()}
    if isinstance(value, Sequence):
        return [plain(item) for item in cast("Sequence[Any]", value)]
    raise TypeError(f"{type(value).__name__} cannot be written")


def _own(value: Any) -> Json:
    if isinstance(value, Mapping):
        return {str(key): _own(item) for key, item in cast("Mapping[Any, Any]", value).items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_own(item) for item in cast("Sequence[Any]", value)]
    return value


# ── reading ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def body(operation: Operation, data: bytes) -> Any:
    """Read the body of a request; `ValidationError` names the field at fault."""
    kind = operation.body
    assert kind is not None
    if not data:
        if operation.optional:
            return {} if kind is dict else _checked(kind, b"{}")
        raise ValidationError("the request needs a body", field="body", options=("send a JSON object",))
    if kind is dict:
        found = _json(data)
        if not isinstance(found, dict):
            raise ValidationError("must be a JSON object", field="body")
        return cast("dict[str, Json]", found)
    return _checked(kind, data)


def _checked(kind: type[Body], data: bytes) -> Body:
    try:
        return kind.model_validate_json(data)
    except pydantic.ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        if first["type"] == "json_invalid":
            _json(data)  # says what is wrong, and where
            raise ValidationError(f"is no JSON that is understood: {first['msg']}", field="body") from None
        raise _refused(first["loc"], first["type"], first["msg"], "body") from None


def parameters(operation: Operation, given: Sequence[tuple[str, str]]) -> Query | None:
    """Read the query parameters of a request; one that is not known, or comes twice, is refused."""
    values: dict[str, str] = {}
    for name, value in given:
        if name in values:
            raise ValidationError("is given twice", field=name[:64])
        if "\0" in name + value:
            raise ValidationError("must not contain a NUL character", field=name[:64].replace("\0", ""))
        values[name] = value
    if operation.query is None:
        if values:
            name = next(iter(values))
            raise ValidationError("is no parameter of this operation", field=name[:64])
        return None
    try:
        return operation.query.model_validate(values)
    except pydantic.ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        raise _refused(first["loc"], first["type"], first["msg"], "query") from None


def _refused(at: tuple[int | str, ...], kind: str, said: str, where: str) -> ValidationError:
    field = ""
    for step in at:
        if isinstance(step, int):
            field += f"[{step}]"
        elif "[" not in step and "(" not in step:  # names of ours in a union say nothing to the caller
            field += f".{step[:64]}" if field else step[:64]
    if kind == "extra_forbidden":
        said = "is not known here"
    elif kind == "missing":
        said = "is required"
    return ValidationError(said[:1].lower() + said[1:], field=field or where)


def named_on_wire(error: ValidationError) -> ValidationError:
    """Return an error whose field has its name on the wire; names that are the caller's own stay as they are."""
    steps = error.field.split(".")
    for index, step in enumerate(steps):
        name = step.partition("[")[0]
        if "_" in name:
            steps[index] = to_camel(name) + step[len(name) :]
        if name in _OPAQUE:
            break
    field = ".".join(steps)
    if field == error.field:
        return error
    return type(error)(str(error).removeprefix(f"{error.field}: "), field=field, options=error.options)


def _json(data: bytes) -> Json:
    """Read JSON strictly: no NaN, no name twice, no lone surrogate; `ValidationError` says what and where."""
    try:
        found = json.loads(data, parse_constant=_no_constant, object_pairs_hook=_once)
    except ValidationError:
        raise
    except RecursionError:
        raise ValidationError("is nested too deeply", field="body") from None
    except ValueError as error:  # also what is no UTF-8, and numbers of thousands of digits
        said = (
            f"{error.msg} at character {error.pos}" if isinstance(error, json.JSONDecodeError) else "bad text"
        )
        raise ValidationError(f"is not valid JSON: {said}", field="body") from None
    for field, text in _texts(found):
        if any("\ud800" <= character <= "\udfff" for character in text):
            raise ValidationError("holds half a character (a lone surrogate)", field=field)
    return found


def _no_constant(name: str) -> Json:
    raise ValidationError(f"{name} is not JSON", field="body")


def _once(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValidationError(f"has the name {twice[:64]!r} twice", field="body")
    return found


def _texts(found: Json) -> Iterator[tuple[str, str]]:
    """Yield every text and name with where it stands; no recursion: what was read may be deep."""
    waiting: list[tuple[str, Json]] = [("", found)]
    while waiting:
        at, value = waiting.pop()
        if isinstance(value, str):
            yield at or "body", value
        elif isinstance(value, dict):
            for name, item in cast("dict[str, Json]", value).items():
                yield at or "body", name
                waiting.append((f"{at}.{name}" if at else name, item))
        elif isinstance(value, list):
            waiting.extend((f"{at}[{index}]", item) for index, item in enumerate(cast("list[Json]", value)))
