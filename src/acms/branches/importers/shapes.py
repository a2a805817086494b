"""The fields by which a format is known, and how near a file comes to them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple, TypeAlias

from acms.branches.importers.conversation import find_value
from acms.model import Json

__all__ = [
    "Field",
    "Misfit",
    "Shape",
    "any_of",
    "find_misfit",
    "has_value",
    "is_list",
    "is_object",
    "is_text",
]


class Field(NamedTuple):
    """A field that a record of a format has."""

    #: Names joined by dots; a number is an index of a list.
    path: str
    fits: Callable[[Json], bool]
    wanted: str


Shape: TypeAlias = tuple[Field, ...]
"""Fields that a record has together, the most specific one first."""


def has_value(path: str) -> Field:
    """Return a field that is not null."""
    return Field(path, _is_not_null, "a value")


def any_of(path: str, *values: Json) -> Field:
    """Return a field with one of some values."""
    return Field(path, values.__contains__, " or ".join(f'"{one}"' for one in values))


def is_text(path: str) -> Field:
    """Return a field with a text."""
    return Field(path, partial(_is_a, str), "a text")


def is_list(path: str) -> Field:
    """Return a field with a list."""
    return Field(path, partial(_is_a, list), "a list")


def is_object(path: str) -> Field:
    """Return a field with an object."""
    return Field(path, partial(_is_a, dict), "an object")


def _is_not_null(value: Json) -> bool:
    return value is not None


def _is_a(kind: type, value: Json) -> bool:
    return isinstance(value, kind)


class Misfit(NamedTuple):
    """The first field of a shape that a file lacks."""

    #: Fields before it that the file has, and all of the shape.
    fitting: int
    total: int
    message: str


def find_misfit(shape: Shape, sample: Json) -> Misfit | None:
    """Return what keeps a value from having a shape, or None if it has it."""
    for fitting, field in enumerate(shape):
        value = find_value(sample, field.path)
        if not field.fits(value):
            problem = "is missing" if value is None else f"is not {field.wanted}"
            return Misfit(fitting, len(shape), f'"{field.path}" {problem}')
    return None
