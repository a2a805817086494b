"""Parsing values from the wire: each is validated once, with an error that names the field."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import TypeVar

from acms import nouns
from acms.errors import ValidationError
from acms.model import Json

E = TypeVar("E", bound=StrEnum)

CHARS = 1_000_000
"""Characters of one text on the wire, at most."""
ITEMS = 10_000
"""Items of one list on the wire, at most."""


def serialize_noun(noun: object, *unless_empty: str, **named: Json) -> dict[str, Json]:
    """Write a noun of the contract as JSON, without None values and without empty values of `unless_empty` fields.

    `named` maps fields to other names on the wire, or to None for fields that are left out.
    """
    return {
        named.get(name, name): value
        for name, value in nouns.encode_noun(noun, wire=False).items()
        if value is not None and (value or name not in unless_empty) and named.get(name, name) is not None
    }


def parse_text(value: object, field: str, *, least: int = 0, most: int = CHARS) -> str:
    """Validate a string: its length, no NUL, no lone surrogates."""
    if not isinstance(value, str):
        raise ValidationError(f"must be a string, not {type(value).__name__}", field=field)
    if not least <= len(value) <= most:
        raise ValidationError(f"must have {least} to {most} characters, has {len(value)}", field=field)
    if "\0" in value:
        raise ValidationError("must not contain a NUL character", field=field)
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise ValidationError("must not contain a lone surrogate", field=field) from error
    return value


def parse_number(
    value: object, field: str, *, least: float = -math.inf, above: float = -math.inf, most: float = math.inf
) -> float:
    """Validate a finite number within bounds."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValidationError(f"must be a number, not {type(value).__name__}", field=field)
    finite = isinstance(value, int) or math.isfinite(value)  # an int may be too large for a float
    if not (finite and least <= value <= most and value > above):
        bound = f"more than {above:g}" if above > least else f"at least {least:g}"
        raise ValidationError(f"must be {bound} and at most {most:g}", field=field)
    return value


def parse_integer(value: object, field: str, *, least: int = 0, most: int = 100_000_000) -> int:
    """Validate an integer within bounds; 3.0 is an integer, as in JSON Schema."""
    found = parse_number(value, field, least=least, most=most)
    if found != int(found):
        raise ValidationError("must be an integer", field=field)
    return int(found)


def parse_strings(value: object, field: str, *, most: int = ITEMS) -> tuple[str, ...]:
    """Validate a list of at most `most` strings."""
    if not isinstance(value, Sequence) or isinstance(value, str | bytes) or len(value) > most:
        raise ValidationError(f"must be a list of at most {most} strings", field=field)
    return tuple(parse_text(one, f"{field}[{index}]", most=4096) for index, one in enumerate(value))


def parse_object(value: object, field: str, names: Sequence[str], lenient: bool) -> Mapping[str, object]:
    """Validate an object; unknown fields are refused unless `lenient`."""
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise ValidationError("must be an object", field=field or "request")
    if not lenient:
        for name in value:
            if name not in names:
                raise ValidationError(
                    f"is no field of this contract; known: {', '.join(names)}",
                    field=f"{field}.{name}" if field else name,
                )
    return value


def require_field(body: Mapping[str, object], name: str, within: str = "") -> object:
    """Return a required field."""
    if name not in body:
        raise ValidationError("is required", field=within + name)
    return body[name]


def one_of(kind: type[E], value: object, field: str) -> E:
    """Parse a member of an enumeration."""
    try:
        return kind(value)
    except ValueError as error:
        raise ValidationError(f"must be one of {', '.join(kind)}", field=field) from error
