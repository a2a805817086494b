"""A text file that is imported: its lines, its records, or its one JSON document, each as often as needed."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cached_property
from itertools import islice
from pathlib import PurePosixPath
from typing import BinaryIO, cast

from acms.branches import limits
from acms.errors import TooLargeError, ValidationError
from acms.model import Json

__all__ = ["EXPECTED", "Source", "is_object", "parse_record"]

EXPECTED = (
    '[{"role": "user", "content": "…"}, …]',
    '{"messages": [{"role": "user", "content": "…"}, …]}',
    'JSONL: one {"role": …, "content": …} or one {"messages": […]} a line',
)
LINES = (".jsonl", ".ndjson")
"""How the names of files end that have one JSON value a line."""
_SAMPLE = 64
"""Records that are looked at to find the format. Programs write a few lines of settings before the first message."""


class Source:
    """A file, or a member of an archive. Nothing of it is held but what a caller keeps; a document is held whole."""

    def __init__(
        self,
        opened: Callable[[], BinaryIO],
        name: str,
        *,
        path: str = "",
        users: Callable[[], Json] = lambda: None,
    ) -> None:
        self._opened = opened
        #: What errors call it.
        self.name = name
        #: Where it is in the folder or archive that is imported, with forward slashes.
        self.path = PurePosixPath(path or name)
        #: What was read and not imported, by reason.
        self.skipped = Counter[str]()
        #: The record that was read last, for errors.
        self.place = name
        #: The list of members that a Slack export keeps beside its channels.
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
        with self._opened() as file:
            yield from limits.read_lines_within(file, self.name)

    @cached_property
    def has_records(self) -> bool:
        """Whether it has one JSON value a line."""
        if self.name.lower().endswith(LINES):
            return True
        filled = [line for line in islice(self.lines(), _SAMPLE) if line.strip()]
        return len(filled) > 1 and is_object(filled[0])

    def records(self) -> Iterator[tuple[str, Json]]:
        """Yield (place, value) of each line; of a document its elements, or itself when it is no list."""
        if self.has_records:
            for number, line in enumerate(self.lines(), 1):
                if line.strip():
                    self.place = f"{self.name}:{number}"
                    try:
                        value = parse_record(line, self.name, number)
                    except ValidationError:
                        if number == 1 or line.endswith("\n"):
                            raise
                        self.skip(
                            "last lines that are not finished"
                        )  # the program is still writing, or was killed
                        return
                    yield self.place, value
            return
        document = self.document
        for index, value in enumerate(document if isinstance(document, list) else [document]):
            self.place = f"{self.name}[{index}]" if isinstance(document, list) else self.name
            yield self.place, value

    @cached_property
    def document(self) -> Json:
        """The whole as one JSON value; the values of a file with one a line as a list."""
        if self.has_records:
            return [value for _, value in self.records()]
        pieces: list[str] = []
        size = 0
        for line in self.lines():
            size += len(line)
            if size > limits.IMPORT_BYTES:
                raise TooLargeError(f"has more than {limits.IMPORT_BYTES:,} bytes", field=self.name)
            pieces.append(line)
        return parse_record("".join(pieces), self.name, 1)

    def sample(self) -> list[Json]:
        """Return the values by which a format is known: the first records, or the document and its first elements."""
        if self.has_records:
            return [value for _, value in islice(self.records(), _SAMPLE)]
        found: list[Json] = [self.document]
        level = self.document
        while isinstance(level, list) and level:
            found += level[:_SAMPLE]
            level = cast("list[Json]", level)[0]
        return found


def is_object(line: str) -> bool:
    """Return whether a line is a whole JSON object."""
    if not line.lstrip().startswith("{"):
        return False
    try:
        limits.parse_json(line, "line")
    except (ValueError, TooLargeError):
        return False  # the error is raised with its place when the line is parsed
    return True


def parse_record(text: str, name: str, number: int) -> Json:
    """Parse a JSON value that begins at a line of a file; `ValidationError` names the line at fault."""
    try:
        return limits.parse_json(text, f"{name}:{number}")
    except json.JSONDecodeError as error:
        line = number + error.lineno - 1
        raise ValidationError(
            f"is not JSON: {error.msg}", field=f"{name}:{line}", options=EXPECTED
        ) from error
    except ValueError as error:
        raise ValidationError(
            "is not JSON that can be read", field=f"{name}:{number}", options=EXPECTED
        ) from error
