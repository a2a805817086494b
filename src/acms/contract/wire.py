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

MAX_TEXT_CHARS = 1_000_000
"""Characters of one text on the wire, at most."""
MAX_LIST_ITEMS = 10_000
"""Items of one list on the wire, at most."""


def serialize_noun(noun: object, *unless_empty: str, **names: Json) -> dict[str, Json]:
    """Return a noun of the contract as JSON, without None values and without empty values of `unless_empty` fields.

    `names` maps fields to other names on the wire, or to None for fields that are left out.
    """
    wire: dict[str, Json] = {}
    for name, value in nouns.encode_noun(noun, wire=False).items():
        wire_name = names.get(name, name)
        is_empty = value is None or (not value and name in unless_empty)
        if wire_name is not None and not is_empty:
            wire[wire_name] = value
    return wire


def parse_text(value: object, field: str, *, min_chars: int = 0, max_chars: int = MAX_TEXT_CHARS) -> str:
    """Return a string; raise `ValidationError` for a wrong type or length, a NUL character or a lone surrogate."""
    if not isinstance(value, str):
        raise ValidationError(f"must be a string, not {type(value).__name__}", field=field)
    if not min_chars <= len(value) <= max_chars:
        raise ValidationError(
            f"must have {min_chars} to {max_chars} characters, has {len(value)}", field=field
        )
    if "\0" in value:
        raise ValidationError("must not contain a NUL character", field=field)
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise ValidationError("must not contain a lone surrogate", field=field) from error
    return value


def parse_number(
    value: object,
    field: str,
    *,
    minimum: float = -math.inf,
    greater_than: float = -math.inf,
    maximum: float = math.inf,
) -> float:
    """Return a number; raise `ValidationError` unless it is finite and within the bounds."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValidationError(f"must be a number, not {type(value).__name__}", field=field)
    is_finite = isinstance(value, int) or math.isfinite(value)  # an int may be too large for a float
    if not is_finite or not minimum <= value <= maximum or value <= greater_than:
        limit_text = f"more than {greater_than:g}" if greater_than > minimum else f"at least {minimum:g}"
        raise ValidationError(f"must be {limit_text} and at most {maximum:g}", field=field)
    return value


class Fields:
    """The fields of an object on the wire; errors name a field with its path."""

    def __init__(self, value: object, path: str = "", known_fields: Sequence[str] | None = None) -> None:
        """Validate an object; fields other than `known_fields` are refused, unless that is None."""
        self._body = parse_object(value, path, known_fields or (), known_fields is None)
        self._path = f"{path}." if path else ""

    def value(self, name: str, default: object = ...) -> object:
        """Return a field as it is, or the default; without a default the field is required."""
        value = self._body.get(name, default)
        if value is ...:
            raise ValidationError("is required", field=self._path + name)
        return value

    def text(
        self, name: str, default: object = ..., *, min_chars: int = 0, max_chars: int = MAX_TEXT_CHARS
    ) -> str:
        """Return a string field."""
        return parse_text(
            self.value(name, default), self._path + name, min_chars=min_chars, max_chars=max_chars
        )

    def number(self, name: str, default: object = ..., **bounds: float) -> float:
        """Return a number field; for the bounds see `parse_number`."""
        return parse_number(self.value(name, default), self._path + name, **bounds)

    def integer(self, name: str, default: object = ..., *, minimum: int = 0) -> int:
        """Return an integer field."""
        return parse_integer(self.value(name, default), self._path + name, minimum=minimum)

    def strings(
        self, name: str, default: object = ..., *, max_items: int = MAX_LIST_ITEMS
    ) -> tuple[str, ...]:
        """Return a field with a list of strings."""
        return parse_strings(self.value(name, default), self._path + name, max_items=max_items)

    def choice(self, kind: type[E], name: str, default: object = ...) -> E:
        """Return a field with a member of an enumeration."""
        return parse_choice(kind, self.value(name, default), self._path + name)

    def objects(
        self, name: str, default: object = ..., expected: str = "a list", *, max_items: float = math.inf
    ) -> list[tuple[object, str]]:
        """Return the items of a list field, each with its path."""
        path = self._path + name
        items = parse_list(self.value(name, default), path, expected, max_items=max_items)
        return [(item, f"{path}[{index}]") for index, item in enumerate(items)]


def parse_integer(value: object, field: str, *, minimum: int = 0, maximum: int = 100_000_000) -> int:
    """Validate an integer within bounds; 3.0 is an integer, as in JSON Schema."""
    number = parse_number(value, field, minimum=minimum, maximum=maximum)
    if number != int(number):
        raise ValidationError("must be an integer", field=field)
    return int(number)


def parse_strings(value: object, field: str, *, max_items: int = MAX_LIST_ITEMS) -> tuple[str, ...]:
    """Validate a list of at most `max_items` strings."""
    items = parse_list(value, field, f"a list of at most {max_items} strings", max_items=max_items)
    return tuple(parse_text(item, f"{field}[{index}]", max_chars=4096) for index, item in enumerate(items))


def parse_list(
    value: object, field: str, expected: str = "a list", *, max_items: float = math.inf
) -> Sequence[object]:
    """Validate a list of at most `max_items` items; `expected` describes it in the error."""
    if not isinstance(value, Sequence) or isinstance(value, str | bytes) or len(value) > max_items:
        raise ValidationError(f"must be {expected}", field=field)
    return value


def parse_object(value: object, field: str, names: Sequence[str], lenient: bool) -> Mapping[str, object]:
    """Validate an object; unknown fields are refused unless `lenient`."""
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise ValidationError("must be an object", field=field or "request")
    if not lenient:
        for name in value:
            if name not in names:
                raise ValidationError(
                    f"is not a field of this contract; known: {', '.join(names)}",
                    field=f"{field}.{name}" if field else name,
                )
    return value


def require_field(body: Mapping[str, object], name: str) -> object:
    """Return a required field."""
    if name not in body:
        raise ValidationError("is required", field=name)
    return body[name]


def parse_choice(kind: type[E], value: object, field: str) -> E:
    """Parse a member of an enumeration."""
    try:
        return kind(value)
    except ValueError as error:
        raise ValidationError(f"must be one of {', '.join(kind)}", field=field) from error
