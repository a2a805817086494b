"""Read a JSON body and keep where each element of one of its lists stands.

A new body is made by joining slices of the old one, so that an element is sent word for word or not at all.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["Body", "Span", "parse_body", "remove_list_elements"]

_decode = json.JSONDecoder().raw_decode
_BLANK = re.compile(r"[ \t\r\n]*")


@dataclass(frozen=True, slots=True)
class Span:
    """A part of a text, as a range of its characters."""

    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Body:
    """A parsed JSON object, and where the elements of one of its lists stand in the text."""

    text: str
    fields: Mapping[str, Any]
    #: The elements of the list, and their places; empty when the field holds no list.
    items: tuple[Any, ...]
    spans: tuple[Span, ...]
    #: The whole list with its brackets; None when the field holds no list.
    list_span: Span | None

    def slice(self, index: int) -> str:
        """Return an element as the client wrote it."""
        span = self.spans[index]
        return self.text[span.start : span.end]

    def with_elements(self, elements: Iterable[str]) -> str:
        """Return the text with other elements in the list; all else stays as it was written."""
        assert self.list_span is not None
        before = self.text[: self.list_span.start]
        behind = self.text[self.list_span.end :]
        return f"{before}[{','.join(elements)}]{behind}"


def parse_body(text: str, field: str) -> Body:
    """Parse a JSON object, and note the positions of the elements of the list in one field.

    Raises `ValueError` if the text is no JSON object, or if it has the field twice.
    """
    fields: dict[str, Any] = {}
    items: tuple[Any, ...] = ()
    spans: tuple[Span, ...] = ()
    list_span: Span | None = None
    position = _expect_character(text, _skip_blanks(text, 0), "{")
    position = _skip_blanks(text, position)
    while text[position : position + 1] != "}":
        name, position = _decode(text, position)
        if not isinstance(name, str):
            raise ValueError("a name of a field is not a string")
        position = _skip_blanks(text, _expect_character(text, _skip_blanks(text, position), ":"))
        # Parsers differ in which of two values they take, so the provider might read another list.
        if name == field and name in fields:
            raise ValueError(f"the field {field!r} is there twice")
        if name == field and text[position : position + 1] == "[":
            start = position
            items, spans, position = _parse_list(text, position)
            list_span = Span(start, position)
            fields[name] = list(items)
        else:
            fields[name], position = _decode(text, position)
        position = _next_member(text, position, "}")
    if text[position + 1 :].strip(" \t\r\n"):
        raise ValueError("there is more after the object")
    return Body(text=text, fields=fields, items=items, spans=spans, list_span=list_span)


def remove_list_elements(text: str, field: str, indexes: Iterable[int]) -> str:
    """Return the text of a JSON object without the elements of one list at some indexes."""
    body = parse_body(text, field)
    removed_indexes = set(indexes)
    kept_elements = [body.slice(index) for index in range(len(body.items)) if index not in removed_indexes]
    return body.with_elements(kept_elements)


def _parse_list(text: str, start: int) -> tuple[tuple[Any, ...], tuple[Span, ...], int]:
    """Return the elements of the list that begins at a position, their spans, and the end of the list."""
    items: list[Any] = []
    spans: list[Span] = []
    position = _skip_blanks(text, start + 1)
    while text[position : position + 1] != "]":
        value, end = _decode(text, position)
        items.append(value)
        spans.append(Span(position, end))
        position = _next_member(text, end, "]")
    return tuple(items), tuple(spans), position + 1


def _next_member(text: str, position: int, closing: str) -> int:
    """Return the position of the next member, after a comma, or of the closing bracket."""
    position = _skip_blanks(text, position)
    if text[position : position + 1] == closing:
        return position
    position = _skip_blanks(text, _expect_character(text, position, ","))
    if text[position : position + 1] == closing:
        raise ValueError("there is a comma before the closing bracket")
    return position


def _skip_blanks(text: str, position: int) -> int:
    blanks = _BLANK.match(text, position)
    return position if blanks is None else blanks.end()


def _expect_character(text: str, position: int, char: str) -> int:
    if text[position : position + 1] != char:
        raise ValueError(f"{char!r} is missing at character {position}")
    return position + 1
