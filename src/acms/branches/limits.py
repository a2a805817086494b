"""Limits on the files that a restore and an import read. Each is checked while reading, before anything is stored."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from tempfile import SpooledTemporaryFile
from typing import Any, BinaryIO, cast

from acms.errors import TooLargeError, ValidationError
from acms.model import Json

LINE_BYTES = 67_108_864
"""Bytes of one line. A line is held in memory; a message with the longest text and that text again takes 12 MiB."""
IMPORT_BYTES = 536_870_912
"""Bytes that an import holds at once: a file of an archive, a JSON document, or an element of one that is streamed."""
RECORDS = 1_000_000
"""Messages of one file. All are checked before the first is stored; more than this is hours of work."""
VALUES = 10_000_000
"""Values of one JSON document. However short a value is written, it takes about 100 bytes of memory."""
DEPTH = 128
"""Levels of nesting in JSON. SQLite and PostgreSQL refuse more than 1,000, Python's parser about as many."""
ARCHIVE_ENTRIES = 100_000
"""Files in an archive. Its directory is held in memory, about 1 kB a file, before any of it is unpacked."""

_BLOCK = 1_048_576
"""Bytes that are read or kept in memory at once."""
_DECODER = json.JSONDecoder()


def parse_json(text: str, field: str, *, parse_constant: Callable[[str], Any] | None = None) -> Json:
    """Parse JSON within the limits on nesting and on the number of values.

    Raises `ValueError` if the text is not JSON, and `TooLargeError` with `field` if it exceeds a limit.
    """
    opened = _count_opened(text, 0, len(text), field)
    try:
        value = json.loads(text, parse_constant=parse_constant)
    except RecursionError:
        raise _too_deep_error(field) from None
    if opened > DEPTH:  # fewer lists and objects than that cannot be nested deeper
        _check_depth(value, field)
    return value


def decode_json(text: str, start: int, field: str) -> tuple[Json, int]:
    """Parse the JSON value that begins at an index of a text; return it and the index after it.

    The limits and errors are those of `parse_json`. Raises `JSONDecodeError` for a value that is cut off.
    """
    try:
        value, end = _DECODER.raw_decode(text, start)
    except RecursionError:
        raise _too_deep_error(field) from None
    if _count_opened(text, start, end, field) > DEPTH:
        _check_depth(value, field)
    return value, end


@contextmanager
def set_error_field(field: str) -> Generator[None]:
    """Set the field of any `ValidationError` raised inside."""
    try:
        yield
    except ValidationError as error:
        raise ValidationError(str(error), field=field, options=error.options) from error


def _count_opened(text: str, start: int, end: int, field: str) -> int:
    """Return how many lists and objects JSON opens; raise `TooLargeError` if it has too many values.

    Brackets and commas inside strings count too, so both numbers are upper bounds.
    """
    opened = text.count("[", start, end) + text.count("{", start, end)
    if opened + text.count(",", start, end) > VALUES:
        raise TooLargeError(f"has more than {VALUES:,} values", field=field)
    return opened


def _check_depth(value: Json, field: str) -> None:
    """Raise `TooLargeError` for a value that is nested too deep."""
    level: list[Any] = [value]
    for _ in range(DEPTH):
        children: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                children += cast("dict[str, Json]", item).values()
            elif isinstance(item, list):
                children += item
        level = [child for child in children if isinstance(child, dict | list)]
    if level:
        raise _too_deep_error(field)


def _too_deep_error(field: str) -> TooLargeError:
    return TooLargeError(f"is nested deeper than {DEPTH} levels", field=field)


def read_within(file: BinaryIO, name: str) -> bytes:
    """Read a file to its end; raise `TooLargeError` if it is larger than `IMPORT_BYTES`."""
    blocks: list[bytes] = []
    size = 0
    for block in iter(partial(file.read, _BLOCK), b""):
        size += len(block)
        if size > IMPORT_BYTES:
            raise TooLargeError(f"has more than {IMPORT_BYTES:,} bytes", field=name)
        blocks.append(block)
    return b"".join(blocks)


def read_lines_within(file: BinaryIO, name: str) -> Iterator[str]:
    """Yield the lines of a file as text; `ValidationError` names the line that is too long or is not UTF-8."""
    for number, line in enumerate(iter(partial(file.readline, LINE_BYTES + 1), b""), 1):
        if len(line) > LINE_BYTES:
            raise TooLargeError(f"has more than {LINE_BYTES:,} bytes", field=f"{name}:{number}")
        try:
            yield line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise ValidationError(
                f"is not UTF-8 text: byte {error.start}", field=f"{name}:{number}"
            ) from error


class Spool:
    """Numbered lines in a temporary file. A stream arrives once but is read twice: to be checked, then to be stored."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def add(self, number: int, line: str) -> None:
        """Keep a line."""
        text = line.strip().replace("\n", " ")  # a newline between two JSON values means the same as a space
        self._file.write(f"{number} {text}\n".encode("utf-8", "surrogatepass"))

    def lines(self) -> Iterator[tuple[int, str]]:
        """Yield the lines from the first one on."""
        self._file.seek(0)
        for line in self._file:
            number, _, text = line.decode("utf-8", "surrogatepass").partition(" ")
            yield int(number), text.rstrip("\n")


@asynccontextmanager
async def spool_lines(lines: AsyncIterator[tuple[int, str]], name: str) -> AsyncGenerator[Spool]:
    """Keep numbered lines until the `with` block ends; blank lines are skipped."""
    with SpooledTemporaryFile(max_size=_BLOCK) as file:
        spool = Spool(cast("BinaryIO", file))
        async for number, line in lines:
            if len(line) > LINE_BYTES:
                raise TooLargeError(f"has more than {LINE_BYTES:,} bytes", field=f"{name}:{number}")
            if line.strip():
                spool.add(number, line)
        yield spool
