"""The fields that identify a format, and how many of them a file has."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple, TypeAlias

from acms.branches.importers.conversation import find_value
from acms.model import Json


class Field(NamedTuple):
    """A field that a record of a format has, and the check of its value."""

    #: Names joined by dots; a number is an index of a list.
    path: str
    accepts: Callable[[Json], bool]
    expected: str


Shape: TypeAlias = tuple[Field, ...]
"""Fields that a record has together, the most specific one first."""


def has_value(path: str) -> Field:
    """Return a field that is not null."""
    return Field(path, _is_not_null, "a value")


def any_of(path: str, *values: Json) -> Field:
    """Return a field with one of some values."""
    return Field(path, values.__contains__, " or ".join(f'"{value}"' for value in values))


def is_text(path: str) -> Field:
    """Return a field with a text."""
    return Field(path, partial(_has_json_type, str), "a text")


def is_list(path: str) -> Field:
    """Return a field with a list."""
    return Field(path, partial(_has_json_type, list), "a list")


def is_object(path: str) -> Field:
    """Return a field with an object."""
    return Field(path, partial(_has_json_type, dict), "an object")


def _is_not_null(value: Json) -> bool:
    return value is not None


def _has_json_type(kind: type, value: Json) -> bool:
    return isinstance(value, kind)


class Misfit(NamedTuple):
    """The first field of a shape that a file lacks."""

    #: Number of fields before it, which the file has, and of all fields of the shape.
    fitting: int
    total: int
    message: str


def find_misfit(shape: Shape, sample: Json) -> Misfit | None:
    """Return the first field of a shape that a sample of the file lacks, or None if the sample has the shape."""
    for fitting, field in enumerate(shape):
        value = find_value(sample, field.path)
        if not field.accepts(value):
            problem = "is missing" if value is None else f"is not {field.expected}"
            return Misfit(fitting, len(shape), f'"{field.path}" {problem}')
    return None
