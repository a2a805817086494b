"""Parses and checks requests, and serializes JSON. `acms.nouns` serializes the objects of replies."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, cast, get_args

import pydantic
from pydantic.alias_generators import to_camel
from pydantic_core import ErrorDetails

from acms.errors import ValidationError
from acms.model import Json
from acms.runtime.input_errors import (
    UNKNOWN_NAME,
    build_unknown_name_error,
    describe_input_error,
    select_input_error,
)
from acms.server.operation import Body, Operation, Query

__all__ = ["encode_json", "parse_query_parameters", "parse_request_body", "with_wire_field_name"]

_encode = pydantic.TypeAdapter(Any).dump_json  # four times as fast as json
_DIGITS = re.compile(r"-?[0-9]+")
_OPAQUE = frozenset({"metadata", "arguments", "payload", "settings", "data", "value"})
"""Names whose value belongs to the client: names in it are left unchanged."""


def encode_json(value: Json) -> bytes:
    """Serialize JSON."""
    return _encode(value)


# ── parsing ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def parse_request_body(operation: Operation, data: bytes) -> Any:
    """Parse the body of a request; raise `ValidationError` with the name of an invalid field."""
    model = operation.body
    assert model is not None
    if not data:
        if operation.optional:
            return {} if model is dict else _validate_body(model, b"{}")
        raise ValidationError("the request needs a body", field="body", options=("send a JSON object",))
    if model is dict:
        value = _parse_strict_json(data)
        if not isinstance(value, dict):
            raise ValidationError("must be a JSON object", field="body")
        return cast("dict[str, Json]", value)
    body = _validate_body(model, data)
    _load_json(data, float)  # raises an error for duplicate names, of which pydantic would take the last one
    return body


def _validate_body(model: type[Body], data: bytes) -> Body:
    """Parse a JSON body as a model; raise `ValidationError` for the first invalid field."""
    try:
        return model.model_validate_json(data)
    except pydantic.ValidationError as error:
        details = _select_error(error)
        if details["type"] == "json_invalid":
            _parse_strict_json(data)  # raises an error that names the fault and its position
            raise ValidationError(f"is no JSON that is understood: {details['msg']}", field="body") from None
        raise _build_validation_error(details, model, "field") from None


def _select_error(error: pydantic.ValidationError) -> ErrorDetails:
    return select_input_error(error.errors(include_url=False, include_input=False))


def parse_query_parameters(operation: Operation, pairs: Sequence[tuple[str, str]]) -> Query | None:
    """Parse the query parameters of a request; raise `ValidationError` for an unknown or repeated one."""
    texts: dict[str, str] = {}
    for name, text in pairs:
        if name in texts:
            raise ValidationError("is given twice", field=name[:64])
        if "\0" in name + text:
            raise ValidationError("must not contain a NUL character", field=name[:64].replace("\0", ""))
        texts[name] = text
    if operation.query is not None:
        return _validate_query(operation.query, texts)
    for name in texts:
        raise build_unknown_name_error(name[:64], "parameter", ())
    return None


def _validate_query(model: type[Query], texts: Mapping[str, str]) -> Query:
    """Parse query parameters as a model; numbers must be written in digits."""
    try:
        query = model.model_validate(texts)
    except pydantic.ValidationError as error:
        raise _build_validation_error(_select_error(error), model, "parameter") from None
    for name, field in model.model_fields.items():
        wire_name = field.alias or name
        is_number = type(getattr(query, name)) is int and wire_name in texts
        if is_number and not _DIGITS.fullmatch(texts[wire_name]):  # 1_000, +1, 1.0
            raise ValidationError("must be a whole number, in digits", field=wire_name)
    return query


def _build_validation_error(
    error: ErrorDetails, model: type[pydantic.BaseModel], kind: Literal["field", "parameter"]
) -> ValidationError:
    """Convert an error of pydantic to a `ValidationError` with the path of the field and a message."""
    field = ""
    for step in error["loc"]:
        if isinstance(step, int):
            field += f"[{step}]"
        elif "[" not in step and "(" not in step:  # steps with brackets name Python types of a union
            field += f".{step[:64]}" if field else step[:64]
    if error["type"] == UNKNOWN_NAME:
        return build_unknown_name_error(field, kind, _find_known_names(model, error["loc"]))
    return ValidationError(
        describe_input_error(error), field=field or ("body" if kind == "field" else "query")
    )


def _find_known_names(model: type[pydantic.BaseModel], path: Sequence[int | str]) -> Sequence[str]:
    """Return the names that the object of an unknown name may have; none if it may be of several kinds."""
    for step in path[:-1]:
        if isinstance(step, int):
            continue
        fields = [field for name, field in model.model_fields.items() if step in (name, field.alias)]
        models = [found for field in fields for found in _find_models(field.annotation)]
        if len(models) != 1:
            return ()
        model = models[0]
    return [field.alias or name for name, field in model.model_fields.items()]


def _find_models(annotation: Any) -> list[type[pydantic.BaseModel]]:
    """Return the models in the type of a field."""
    if isinstance(annotation, type) and issubclass(annotation, pydantic.BaseModel):
        return [annotation]
    return [model for argument in get_args(annotation) for model in _find_models(argument)]


def with_wire_field_name(error: ValidationError) -> ValidationError:
    """Return an error with the name that its field has in HTTP; names that the client chose are left unchanged."""
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
    """Parse JSON strictly: no NaN, no duplicate name, no lone surrogate; `ValidationError` names the fault."""
    value = _load_json(data, _reject_constant)
    for field, text in _iterate_texts(value):
        if any("\ud800" <= character <= "\udfff" for character in text):
            raise ValidationError("contains a lone surrogate", field=field)
    return value


def _load_json(data: bytes, parse_constant: Callable[[str], Json]) -> Json:
    """Parse JSON strictly: no repeated names; `ValidationError` names the fault."""
    try:
        return json.loads(data, parse_constant=parse_constant, object_pairs_hook=_reject_duplicate_names)
    except ValidationError:
        raise
    except RecursionError:
        raise ValidationError("is nested too deeply", field="body") from None
    except json.JSONDecodeError as error:
        message = f"{error.msg} at character {error.pos}"
    except ValueError:  # text that is no UTF-8, or a number of thousands of digits
        message = "bad text"
    raise ValidationError(f"is not valid JSON: {message}", field="body")


def _reject_constant(name: str) -> Json:
    raise ValidationError(f"{name} is not JSON", field="body")


def _reject_duplicate_names(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    """Return the fields of an object; `ValidationError` if one is repeated."""
    value = dict(pairs)
    if len(value) != len(pairs):
        names = [name for name, _ in pairs]
        duplicate = next(name for name in names if names.count(name) > 1)
        raise ValidationError(f"has the name {duplicate[:64]!r} twice", field="body")
    return value


def _iterate_texts(document: Json) -> Iterator[tuple[str, str]]:
    """Yield every text and name with its path, without recursion: the JSON may be deeply nested."""
    stack: list[tuple[str, Json]] = [("", document)]
    while stack:
        path, value = stack.pop()
        if isinstance(value, str):
            yield path or "body", value
        elif isinstance(value, dict):
            for name, item in cast("dict[str, Json]", value).items():
                yield path or "body", name
                stack.append((f"{path}.{name}" if path else name, item))
        elif isinstance(value, list):
            for index, item in enumerate(cast("list[Json]", value)):
                stack.append((f"{path}[{index}]", item))
