"""Limits on the files that a restore and an import read. Each is checked while reading, before anything is stored."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from tempfile import SpooledTemporaryFile
from typing import Any, BinaryIO, cast

from acms.errors import TooLargeError, ValidationError
from acms.model import Json

__all__ = [
    "ARCHIVE_ENTRIES",
    "DEPTH",
    "IMPORT_BYTES",
    "LINE_BYTES",
    "RECORDS",
    "VALUES",
    "Spool",
    "decode_json",
    "parse_json",
    "read_lines_within",
    "read_within",
    "spool_lines",
]

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

_SPOOL_BYTES = 1_048_576
"""Bytes of lines that are kept in memory before they go to a temporary file."""
_MIB = 1_048_576
_DECODER = json.JSONDecoder()


def parse_json(text: str, field: str, *, parse_constant: Callable[[str], Any] | None = None) -> Json:
    """Parse JSON within the limits on nesting and on the number of values.

    Raises `ValueError` if the text is not JSON, and `TooLargeError` with `field` if it exceeds a limit.
    """
    opened = text.count("[") + text.count("{")
    if opened + text.count(",") > VALUES:
        raise TooLargeError(f"has more than {VALUES:,} values", field=field)
    try:
        value = json.loads(text, parse_constant=parse_constant)
    except RecursionError:
        raise _too_deep(field) from None
    if opened > DEPTH and _is_deep(value):
        raise _too_deep(field)
    return value


def decode_json(text: str, start: int, field: str) -> tuple[Json, int]:
    """Parse the JSON value that begins at an index of a text; return it and the index behind it.

    The limits and errors are those of `parse_json`. A value that the text ends within is a `JSONDecodeError`.
    """
    try:
        value, end = _DECODER.raw_decode(text, start)
    except RecursionError:
        raise _too_deep(field) from None
    opened = text.count("[", start, end) + text.count("{", start, end)
    if opened + text.count(",", start, end) > VALUES:
        raise TooLargeError(f"has more than {VALUES:,} values", field=field)
    if opened > DEPTH and _is_deep(value):
        raise _too_deep(field)
    return value, end


def _too_deep(field: str) -> TooLargeError:
    return TooLargeError(f"is nested deeper than {DEPTH} levels", field=field)


def _is_deep(value: Json) -> bool:
    level: list[Any] = [value]
    for _ in range(DEPTH):
        inside: list[Any] = []
        for one in level:
            if isinstance(one, dict):
                inside += cast("dict[str, Json]", one).values()
            elif isinstance(one, list):
                inside += one
        level = [one for one in inside if isinstance(one, dict | list)]
        if not level:
            return False
    return True


def read_within(file: BinaryIO, name: str) -> bytes:
    """Read a file to its end; `TooLargeError` when it is more than an import may hold."""
    pieces: list[bytes] = []
    size = 0
    while piece := file.read(_MIB):
        size += len(piece)
        if size > IMPORT_BYTES:
            raise TooLargeError(f"has more than {IMPORT_BYTES:,} bytes", field=name)
        pieces.append(piece)
    return b"".join(pieces)


def read_lines_within(file: BinaryIO, name: str) -> Iterator[str]:
    """Yield the lines of a file as text; `ValidationError` names the line that is too long or is not UTF-8."""
    number = 0
    while line := file.readline(LINE_BYTES + 1):
        number += 1
        if len(line) > LINE_BYTES:
            raise TooLargeError(f"has more than {LINE_BYTES:,} bytes", field=f"{name}:{number}")
        try:
            yield line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise ValidationError(
                f"is not UTF-8 text: byte {error.start}", field=f"{name}:{number}"
            ) from error


class Spool:
    """Numbered lines in a temporary file: what arrives once and must be read twice, to be checked and to be stored."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def add(self, number: int, line: str) -> None:
        """Keep a line."""
        text = line.strip().replace("\n", " ")
        self._file.write(f"{number} {text}\n".encode("utf-8", "surrogatepass"))

    def lines(self) -> Iterator[tuple[int, str]]:
        """Yield the lines from the first one on."""
        self._file.seek(0)
        for line in self._file:
            number, _, text = line.decode("utf-8", "surrogatepass").partition(" ")
            yield int(number), text.rstrip("\n")


@asynccontextmanager
async def spool_lines(lines: AsyncIterator[tuple[int, str]], name: str) -> AsyncGenerator[Spool]:
    """Keep numbered lines while the block runs; blank ones are passed over."""
    with SpooledTemporaryFile(max_size=_SPOOL_BYTES) as file:
        spool = Spool(cast("BinaryIO", file))
        async for number, line in lines:
            if len(line) > LINE_BYTES:
                raise TooLargeError(f"has more than {LINE_BYTES:,} bytes", field=f"{name}:{number}")
            if line.strip():
                spool.add(number, line)
        yield spool
