"""What goes over the wire: requests are read and checked here, answers written. Nouns: `acms.nouns`."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import pydantic
from pydantic.alias_generators import to_camel

from acms.errors import ValidationError
from acms.model import Json
from acms.server.operation import Body, Operation, Query

__all__ = ["encode_json", "parse_query_parameters", "parse_request_body", "with_wire_field_name"]

_encode = pydantic.TypeAdapter(Any).dump_json  # four times as fast as json
_WHOLE = re.compile(r"-?[0-9]+")
_OPAQUE = frozenset({"metadata", "arguments", "payload", "settings", "data", "value"})
"""Names whose value belongs to the caller: the names in it are left unchanged."""


def encode_json(value: Json) -> bytes:
    """Write JSON."""
    return _encode(value)


# ── reading ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def parse_request_body(operation: Operation, data: bytes) -> Any:
    """Read the body of a request; `ValidationError` names the field at fault."""
    kind = operation.body
    assert kind is not None
    if not data:
        if operation.optional:
            return {} if kind is dict else _validate_body(kind, b"{}")
        raise ValidationError("the request needs a body", field="body", options=("send a JSON object",))
    if kind is dict:
        found = _parse_strict_json(data)
        if not isinstance(found, dict):
            raise ValidationError("must be a JSON object", field="body")
        return cast("dict[str, Json]", found)
    made = _validate_body(kind, data)
    _load_json(data, float)  # of a name that stands twice pydantic would take the last one
    return made


def _validate_body(kind: type[Body], data: bytes) -> Body:
    try:
        return kind.model_validate_json(data)
    except pydantic.ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        if first["type"] == "json_invalid":
            _parse_strict_json(data)  # raises an error that names the fault and its position
            raise ValidationError(f"is no JSON that is understood: {first['msg']}", field="body") from None
        raise _build_validation_error(first["loc"], first["type"], first["msg"], "body") from None


def parse_query_parameters(operation: Operation, given: Sequence[tuple[str, str]]) -> Query | None:
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
        found = operation.query.model_validate(values)
    except pydantic.ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        raise _build_validation_error(first["loc"], first["type"], first["msg"], "query") from None
    for name, field in operation.query.model_fields.items():
        written, value = values.get(field.alias or name), getattr(found, name)
        if written is not None and type(value) is int and not _WHOLE.fullmatch(written):  # 1_000, +1, 1.0
            raise ValidationError("must be a whole number, in digits", field=field.alias or name)
    return found


def _build_validation_error(at: tuple[int | str, ...], kind: str, said: str, where: str) -> ValidationError:
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


def with_wire_field_name(error: ValidationError) -> ValidationError:
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


def _parse_strict_json(data: bytes) -> Json:
    """Read JSON strictly: no NaN, no name twice, no lone surrogate; `ValidationError` says what and where."""
    found = _load_json(data, _no_constant)
    for field, text in _iterate_texts(found):
        if any("\ud800" <= character <= "\udfff" for character in text):
            raise ValidationError("holds half a character (a lone surrogate)", field=field)
    return found


def _load_json(data: bytes, constant: Callable[[str], Json]) -> Json:
    try:
        return json.loads(data, parse_constant=constant, object_pairs_hook=_reject_duplicate_names)
    except ValidationError:
        raise
    except RecursionError:
        raise ValidationError("is nested too deeply", field="body") from None
    except ValueError as error:  # also for text that is no UTF-8, and numbers of thousands of digits
        said = (
            f"{error.msg} at character {error.pos}" if isinstance(error, json.JSONDecodeError) else "bad text"
        )
        raise ValidationError(f"is not valid JSON: {said}", field="body") from None


def _no_constant(name: str) -> Json:
    raise ValidationError(f"{name} is not JSON", field="body")


def _reject_duplicate_names(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValidationError(f"has the name {twice[:64]!r} twice", field="body")
    return found


def _iterate_texts(found: Json) -> Iterator[tuple[str, str]]:
    """Yield every text and name with its path, without recursion: the JSON may be deeply nested."""
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
