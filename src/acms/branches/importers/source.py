"""A text file that is imported: its lines, its records, or its one JSON document, each as often as needed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property, partial
from itertools import islice
from pathlib import PurePosixPath
from typing import BinaryIO

from acms.branches import limits
from acms.branches.importers.conversation import Record, as_mapping
from acms.branches.importers.documents import Piece, RecordSpan, join_lines, parse_record, split_document
from acms.errors import TooLargeError, ValidationError
from acms.model import Json

LINES = (".jsonl", ".ndjson")
"""How the names of files end that have one JSON value a line."""
_BLOCK = 65_536
"""Bytes that are read at once to see how a file begins."""


class Source:
    """A file, or a member of an archive. It is streamed and not kept in memory, except a document, which is whole."""

    def __init__(
        self,
        opener: Callable[[], BinaryIO],
        name: str,
        *,
        path: str = "",
        users: Callable[[], Json] = lambda: None,
    ) -> None:
        self._open = opener
        #: Its name in errors.
        self.name = name
        #: Where it is in the folder or archive that is imported, with forward slashes.
        self.path = PurePosixPath(path or name)
        #: Number of records that were read and not imported, by reason.
        self.skipped = Counter[str]()
        #: The record that was read last, for errors.
        self.place = name
        #: Returns the list of members of a Slack export.
        self.users = users

    @property
    def stem(self) -> str:
        """The path without suffix, as a name for a conversation to which the file gives none."""
        return "-".join(self.path.with_suffix("").parts).lstrip(".")

    def skip(self, reason: str, number: int = 1) -> None:
        """Count something that is not imported."""
        self.skipped[reason] += number

    def lines(self) -> Iterator[str]:
        """Yield the lines from the first one on."""
        with self._open() as file:
            yield from limits.read_lines_within(file, self.name)

    @cached_property
    def opening(self) -> str:
        """Up to 64 KiB of text from the first character that is not blank; empty for a blank file."""
        with self._open() as file:
            for data in iter(partial(file.read, _BLOCK), b""):
                text = data.decode("utf-8-sig", "replace").lstrip()
                if text:
                    return text
        return ""

    @cached_property
    def has_records(self) -> bool:
        """Whether it has one JSON value a line."""
        if self.name.lower().endswith(LINES):
            return True
        if not self.opening.startswith("{") or not self._has_second_line_of_text():
            return False
        # A JSON document over several lines begins with "{" too, but its first line is no complete object.
        return is_object(next(line for line in self.lines() if line.strip()))

    def _has_second_line_of_text(self) -> bool:
        """Return whether a second line has text. Lines are read in blocks: one of them may be a whole document."""
        has_first_line = first_line_ended = False
        with self._open() as file:
            for block in iter(partial(file.readline, _BLOCK), b""):
                has_text = not block.isspace()
                if has_text and first_line_ended:
                    return True
                has_first_line = has_first_line or has_text
                first_line_ended = has_first_line and (first_line_ended or block.endswith(b"\n"))
        return False

    def check_size(self, max_bytes: int) -> None:
        """Raise `TooLargeError` for a larger file, unless it has one record a line: such a file is streamed."""
        with self._open() as file:
            size = file.seek(0, 2)
        if size > max_bytes and not self.has_records:
            raise TooLargeError(
                f"has more than {max_bytes:,} bytes, and not one record a line", field=self.name
            )

    def records(self) -> Iterator[Record]:
        """Yield the object of each line; of a document its elements, or itself when it is no list."""
        for _, value in self.located():
            yield as_mapping(value)

    def located(self) -> Iterator[tuple[RecordSpan, Json]]:
        """Yield each record with its place in the file, from which `load` reads it again."""
        if self.has_records:
            yield from self._located_lines()
        elif self.opening.startswith("["):
            for piece in self.split():
                yield piece.span, piece.value
        else:
            self.place = self.name
            yield RecordSpan(0, -1, 0), self.document  # the size -1 says that the span is the whole document

    def split(self) -> Iterator[Piece]:
        """Yield each line; of a document the elements of the list that it is, or of the members that are lists."""
        if self.has_records:
            for span, value in self._located_lines():
                yield Piece(None, value, span)
            return
        with self._open() as file:
            for piece in split_document(file, self.name):
                self.place = self._place_of(piece.member, piece.span) if piece.is_element else self.name
                yield piece

    def load(self, spans: Iterable[RecordSpan]) -> Iterator[Json]:
        """Read lines again, one at a time, in the order of their places."""
        with self._open() as file:
            for span in spans:
                self.place = self._place_of(None, span)
                file.seek(span.offset)
                text = file.read(span.size).decode("utf-8" if span.offset else "utf-8-sig")
                yield parse_record(text, self.name, span.number if self.has_records else 1)

    def _place_of(self, member: str | None, span: RecordSpan) -> str:
        """Return the place of a record in errors: its line, or its index in the document or in a member."""
        if self.has_records:
            return f"{self.name}:{span.number}"
        if span.size < 0:  # the whole document
            return self.name
        if member is None:
            return f"{self.name}[{span.number}]"
        return f"{self.name}: {member}[{span.number}]"

    def _located_lines(self) -> Iterator[tuple[RecordSpan, Json]]:
        """Yield each record of a file with one a line, and its span; an unfinished last line is skipped."""
        start = 0
        with self._open() as file:
            for number, line in enumerate(limits.read_lines_within(file, self.name), 1):
                span = RecordSpan(start, file.tell() - start, number)
                start += span.size
                if not line.strip():
                    continue
                self.place = f"{self.name}:{number}"
                try:
                    value = parse_record(line, self.name, number)
                except ValidationError:
                    if number == 1 or line.endswith("\n"):
                        raise
                    # The program is still writing, or was killed. A reader with two passes comes here twice.
                    self.skipped["last lines that are not finished"] = 1
                    return
                yield span, value

    @property
    def document(self) -> Json:
        """The whole as one JSON value; the values of a file with one a line as a list."""
        if self.has_records:
            return [value for _, value in self._located_lines()]
        return parse_record(join_lines(self.lines(), self.name), self.name, 1)

    def samples(self) -> Iterator[Json]:
        """Yield the values by which a format is known: the first records, or the outline of a document."""
        if not self.has_records and not self.opening.startswith("["):
            yield from self._outline()
            return
        # Programs write a few lines of settings before the first message.
        for _, value in islice(self.located(), 64):
            yield value
            while isinstance(value, list) and value:
                value = value[0]
                yield value

    def _outline(self) -> Iterator[Json]:
        """Yield the document with one element of each list, or as it is when it is no object."""
        outline: dict[str, Json] = {}
        for piece in self.split():
            if piece.member is None:
                yield piece.value
            elif piece.is_element:
                outline.setdefault(piece.member, [piece.value])
            else:
                outline[piece.member] = piece.value
        yield outline


def is_object(line: str) -> bool:
    """Return whether a line is a whole JSON object."""
    if not line.lstrip().startswith("{"):
        return False
    try:
        limits.parse_json(line, "line")
    except (ValueError, TooLargeError):
        return False  # the error is raised with its place when the line is parsed
    return True
