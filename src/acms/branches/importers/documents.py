"""Read JSON documents one element at a time: a list, or an object whose members are lists.

A document is decoded from a buffer that slides over the file: memory holds one element and the part of the file that
was read ahead. Each element comes with its position in the file, from which it can be read again.
"""

from __future__ import annotations

import json
from codecs import BOM_UTF8, getincrementaldecoder
from collections.abc import Iterable, Iterator
from typing import BinaryIO, NamedTuple

from acms.branches import limits
from acms.errors import TooLargeError, ValidationError
from acms.model import Json

EXPECTED = (
    '[{"role": "user", "content": "…"}, …]',
    '{"messages": [{"role": "user", "content": "…"}, …]}',
    'JSONL: one {"role": …, "content": …} or one {"messages": […]} a line',
)
_READ_AHEAD = 262_144
"""Bytes that are read at once, at least: large enough that reads are few. A larger element doubles it until it fits."""
_BLANKS = " \t\n\r"
_AFTER_VALUES = frozenset(",:]}" + _BLANKS)
"""Characters that may follow a value. A number that none of them follows may be cut off by the end of the text."""


class RecordSpan(NamedTuple):
    """The place of a record in its file."""

    #: Bytes before the record, and bytes of it.
    offset: int
    size: int
    #: The line that it is in, from 1; of an element of a list its index, from 0.
    number: int


class Piece(NamedTuple):
    """A part of a document: an element of a list, or a member that is no list or an empty one."""

    #: The member that it is in, or is; None in a document that is a list.
    member: str | None
    value: Json
    span: RecordSpan
    #: Whether it is an element of a list.
    is_element: bool = True


def split_document(file: BinaryIO, name: str) -> Iterator[Piece]:
    """Yield the elements of a list, or the members of an object, in which each list is yielded element by element."""
    cursor = _Cursor(file, name)
    first_character = cursor.peek()
    if first_character == "[":
        yield from _split_list(cursor, None)
    elif first_character == "{":
        yield from _split_object(cursor)
    else:
        yield Piece(None, *cursor.take_value(0), is_element=False)
    if cursor.peek():
        raise cursor.error("Extra data")


def _split_list(cursor: _Cursor, member: str | None) -> Iterator[Piece]:
    """Yield the elements of the list at the cursor; an empty member is yielded as one empty list."""
    cursor.skip()
    if cursor.peek() == "]":
        cursor.skip()
        if member is not None:
            yield Piece(member, [], cursor.empty_span(), is_element=False)
        return
    number = 0
    while True:
        yield Piece(member, *cursor.take_value(number))
        number += 1
        if cursor.peek() not in ("]", ","):
            raise cursor.error("Expecting ',' delimiter")
        if cursor.skip() == "]":
            return


def _split_object(cursor: _Cursor) -> Iterator[Piece]:
    """Yield the members of the object at the cursor, lists element by element."""
    cursor.skip()
    if cursor.peek() == "}":
        cursor.skip()
        return
    while True:
        if cursor.peek() != '"':
            raise cursor.error("Expecting property name enclosed in double quotes")
        member, _ = cursor.take_value(0)
        if cursor.peek() != ":":
            raise cursor.error("Expecting ':' delimiter")
        cursor.skip()
        if cursor.peek() == "[":
            yield from _split_list(cursor, str(member))
        else:
            yield Piece(str(member), *cursor.take_value(0), is_element=False)
        if cursor.peek() not in ("}", ","):
            raise cursor.error("Expecting ',' delimiter")
        if cursor.skip() == "}":
            return


class _Cursor:
    """A position in a file of JSON, and the text that was read ahead: `_index` is the position in that text."""

    def __init__(self, file: BinaryIO, name: str) -> None:
        self._file = file
        self._name = name
        self._decoder = getincrementaldecoder("utf-8")()
        self._text = ""
        self._index = 0
        #: Bytes of the file before the position.
        self._offset = 0
        #: Bytes of the file that were read.
        self._bytes_read = 0
        #: Lines of the file before the text.
        self._lines = 0
        self._ended = False
        if file.read(len(BOM_UTF8)) == BOM_UTF8:
            self._offset = self._bytes_read = len(BOM_UTF8)
        else:
            file.seek(0)

    def peek(self) -> str:
        """Return the next character that is not blank, or an empty text at the end of the file."""
        while True:
            while self._index < len(self._text):
                if self._text[self._index] not in _BLANKS:
                    return self._text[self._index]
                self.skip()
            if self._ended:
                return ""
            self._read_ahead()

    def skip(self) -> str:
        """Return the next character and move behind it; the caller knows that it is ASCII, and so one byte."""
        self._index += 1
        self._offset += 1
        return self._text[self._index - 1]

    def take_value(self, number: int) -> tuple[Json, RecordSpan]:
        """Return the next value and its span with a number; read on until the value is complete."""
        self.peek()
        while True:
            try:
                value, end = limits.decode_json(self._text, self._index, self._name)
            except json.JSONDecodeError as error:
                # Before the end of the file, the value may only be cut off by the end of the text.
                if self._ended:
                    raise self.error(error.msg, error.pos) from error
            except ValueError as error:
                position = f"{self._name}:{self._line(self._index)}"
                raise ValidationError(
                    "is not JSON that can be read", field=position, options=EXPECTED
                ) from error
            else:
                # A number at the end of the text may go on after it.
                if self._ended or self._text[end : end + 1] in _AFTER_VALUES:
                    break
            self._read_more_of_value()
        size = len(self._text[self._index : end].encode())
        span = RecordSpan(self._offset, size, number)
        self._index = end
        self._offset += size
        return value, span

    def empty_span(self) -> RecordSpan:
        """Return an empty span at the current position."""
        return RecordSpan(self._offset, 0, 0)

    def error(self, message: str, index: int | None = None) -> ValidationError:
        """Return the error of a document that is not JSON at an index of the text, else at the position."""
        line = self._line(self._index if index is None else index)
        return ValidationError(f"is not JSON: {message}", field=f"{self._name}:{line}", options=EXPECTED)

    def _line(self, index: int) -> int:
        return self._lines + self._text.count("\n", 0, index) + 1

    def _read_more_of_value(self) -> None:
        """Read on in a value that the text ends within; `TooLargeError` when an import may not hold it."""
        if self._bytes_read - self._offset > limits.IMPORT_BYTES:
            raise TooLargeError(f"has more than {limits.IMPORT_BYTES:,} bytes", field=self._name)
        self._read_ahead()
        if sum(map(self._text.count, "[{,")) > limits.VALUES:
            raise TooLargeError(f"has more than {limits.VALUES:,} values", field=self._name)

    def _read_ahead(self) -> None:
        """Drop the text before the position, and read at least as many bytes as there are characters after it."""
        self._lines += self._text.count("\n", 0, self._index)
        unread_text = self._text[self._index :]
        data = self._file.read(max(_READ_AHEAD, len(unread_text)))
        self._bytes_read += len(data)
        self._ended = not data
        try:
            self._text = unread_text + self._decoder.decode(data, final=self._ended)
        except UnicodeDecodeError as error:
            self._file.seek(0)
            # Reading the file again by lines raises the error with the number of the line.
            for _ in limits.read_lines_within(self._file, self._name):
                pass
            raise ValidationError(
                "is not UTF-8 text", field=self._name
            ) from error  # the file changed meanwhile
        self._index = 0


def join_lines(lines: Iterable[str], name: str) -> str:
    """Return lines as one text; `TooLargeError` when it has more bytes than an import may hold."""
    pieces: list[str] = []
    size = 0
    for line in lines:
        size += len(line.encode())
        if size > limits.IMPORT_BYTES:
            raise TooLargeError(f"has more than {limits.IMPORT_BYTES:,} bytes", field=name)
        pieces.append(line)
    return "".join(pieces)


def parse_record(text: str, name: str, number: int) -> Json:
    """Parse a JSON value that begins at a line of a file; `ValidationError` names the line at fault."""
    try:
        return limits.parse_json(text, f"{name}:{number}")
    except json.JSONDecodeError as error:
        # A value that is cut off fails at the end of the text, behind the newline of its last line.
        line = number + min(error.lineno - 1, text.rstrip().count("\n"))
        raise ValidationError(
            f"is not JSON: {error.msg}", field=f"{name}:{line}", options=EXPECTED
        ) from error
    except ValueError as error:
        raise ValidationError(
            "is not JSON that can be read", field=f"{name}:{number}", options=EXPECTED
        ) from error
