"""Files of other programs: which format they have, and the conversations in them, a piece at a time."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from io import SEEK_END, BytesIO
from pathlib import Path
from typing import BinaryIO

from acms.branches import limits
from acms.branches.importers import langgraph
from acms.branches.importers.archives import ZIP, Member, read_archive, refuse_packed
from acms.branches.importers.conversation import SAYS_NOTHING, Conversation, has_content
from acms.branches.importers.documents import EXPECTED
from acms.branches.importers.formats import FORMATS, LANGGRAPH, Format, find_format, get_format
from acms.branches.importers.source import Source
from acms.branches.importers.turns import admit_conversation
from acms.errors import ACMSError, TooLargeError, ValidationError
from acms.log import validation
from acms.model import Json

__all__ = ["FORMATS", "Conversation", "Export", "Import", "open_import", "read_export"]

_APPLICATION_ID = slice(68, 72)
"""Where the header of a SQLite file names the application that wrote it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Export:
    """The conversations of a file."""

    format: str
    #: Conversations without content are left out. In the format "chat" the id is empty: the file does not name it.
    conversations: Sequence[Conversation]
    #: Number of records that were read and not imported, by reason.
    skipped: Mapping[str, int] = field(default_factory=dict[str, int])


class Import:
    """A file whose format is known; its conversations can be read as often as needed, and none of them is held."""

    def __init__(
        self,
        name: str,
        format: str,
        whole: bool,
        read: Callable[[Counter[str]], Iterator[Conversation]],
        trust: bool,
    ) -> None:
        self.name = name
        self.format = format
        #: Whether every conversation comes in one piece, with all that the program has of it.
        self.whole = whole
        #: Number of records that the last reading skipped, by reason.
        self.skipped = Counter[str]()
        self._read = read
        self._trust = trust

    def pieces(self) -> Iterator[Conversation]:
        """Yield the conversations, each in one piece or message by message; every message is validated.

        Pieces of several conversations may alternate.
        """
        self.skipped.clear()
        records = 0
        try:
            for piece in self._read(self.skipped):
                messages = [turn for turn in piece.messages if has_content(turn)]
                empty_count = len(piece.messages) - len(messages)
                if empty_count:
                    self.skipped[SAYS_NOTHING] += empty_count
                if not messages and not piece.taken_back:  # nothing to store and nothing to retract
                    continue
                records += len(messages)
                if records > limits.RECORDS:
                    raise TooLargeError(f"has more than {limits.RECORDS:,} messages", field=self.name)
                yield self._admit(replace(piece, messages=messages))
        # Readers do not check the types of every field: a file of another program raises any of these.
        except (KeyError, TypeError, AttributeError, ValueError, RecursionError) as error:
            raise ValidationError(
                f"is no {self.format} file: {type(error).__name__}: {error}", field=self.name
            ) from error
        if not records:
            raise self._empty_error()

    def _empty_error(self) -> ValidationError:
        """Return the error for a file without a message to store; it gives the reason that is known."""
        empty_count = self.skipped[SAYS_NOTHING]
        if empty_count:
            noun = "message has" if empty_count == 1 else "messages have"
            return ValidationError(
                f"{empty_count} {noun} no content, and no other message was found",
                field=self.name,
                options=('give each message a content: {"role": "user", "content": "…"}',),
            )
        return ValidationError(
            f"contains no conversation of {self.format}",
            field=self.name,
            options=("leave the format out: the content shows it", *EXPECTED),
        )

    def _admit(self, piece: Conversation) -> Conversation:
        """Check the messages of a piece; an error names the conversation."""
        try:
            return replace(piece, messages=admit_conversation(piece.messages, trust=self._trust))
        except ValidationError as error:
            position = self.name
            if piece.id:
                position = f"{position}: conversation {piece.id[: validation.NAME_CHARS]}"
            raise type(error)(str(error), field=position, options=error.options) from error


def open_import(
    path: str | Path,
    *,
    format: str | None = None,
    data: bytes | None = None,
    trust: bool = False,
    within: Path | None = None,
    most: int | None = None,
) -> Import:
    """Open a file of any format, which is detected from the content unless `format` is given.

    In an archive, the files that hold conversations are read. `data` is read in place of the file, whose name is then
    only used in errors. System and developer messages are treated as external text, not as instructions, unless you
    `trust` the file. Conversations without an id are named after the file, with its path `within` a folder. A file
    without one record per line, which may have to be held in memory, has at most `most` bytes, unpacked.
    `ValidationError` names the fault, and the nearest format for a file of no known one; `TooLargeError` names a
    limit; `ConfigurationError` names a package that a format needs.
    """
    path = Path(path)
    if format is not None and format not in FORMATS:
        raise ValidationError(f"{format!r} is not one of {', '.join(FORMATS)}", field="format")

    def opener() -> BinaryIO:
        return path.open("rb") if data is None else BytesIO(data)

    members: list[Member] = []
    try:
        with opener() as file:
            beginning = file.read(512)  # long enough for the mark of a tar archive, at byte 257
            size = file.seek(0, SEEK_END)
            file.seek(0)
            if beginning.startswith(langgraph.MAGIC) or format == LANGGRAPH:
                _refuse_own_store(beginning, path)
                if most is not None and size > most:
                    raise TooLargeError(f"has more than {most:,} bytes", field=path.name)
                return Import(path.name, LANGGRAPH, True, lambda _: langgraph.read_checkpoints(path), trust)
            refuse_packed(beginning, path.name)
            if beginning.startswith(ZIP):
                members = read_archive(file, path.name, most or limits.IMPORT_BYTES)
    except OSError as error:
        raise ValidationError(f"cannot be read: {error.strerror}", field=str(path)) from error
    sources = _make_sources(members, path.name)
    if not members:
        relative = path.relative_to(within).as_posix() if within else path.name
        sources = [Source(opener, path.name, path=relative, users=partial(_read_member_list, path))]
    if most is not None:
        for source in sources:
            source.check_size(most)
    if format is None:
        detected, sources = _detect_format(sources)
    else:
        detected = get_format(format)
    return Import(path.name, detected.name, detected.whole, partial(_read_all, detected, sources), trust)


def _refuse_own_store(beginning: bytes, path: Path) -> None:
    """Refuse a SQLite file that is a store of ACMS: its sessions are copied, not imported."""
    if beginning[_APPLICATION_ID] == b"ACMS":
        raise ValidationError(
            "is a store of ACMS, not an export of conversations",
            field=path.name,
            options=(f"acms copy {shlex.quote(str(path))} TO copies all of its sessions into another store",),
        )


def read_export(
    path: str | Path, *, format: str | None = None, data: bytes | None = None, trust: bool = False
) -> Export:
    """Read a file of any format as a whole, as `open_import` opens it: each conversation in one piece."""
    opened = open_import(path, format=format, data=data, trust=trust)
    conversations: dict[str, Conversation] = {}
    for piece in opened.pieces():
        previous = conversations.get(piece.id)
        if previous is not None:
            messages = [*previous.messages, *piece.messages]
            piece = replace(piece, messages=messages, taken_back=[*previous.taken_back, *piece.taken_back])
        conversations[piece.id] = piece
    return Export(
        format=opened.format, conversations=list(conversations.values()), skipped=dict(opened.skipped)
    )


def _read_member_list(path: Path) -> Json:
    """Return the member list of an unpacked Slack export: `users.json` above the channel's folder."""
    file = path.parent.parent / "users.json"
    if not file.is_file():
        return None
    return Source(lambda: file.open("rb"), file.name).document


def _make_sources(members: Sequence[Member], name: str) -> list[Source]:
    """Return the files of an archive as sources, with the member list of a Slack export."""
    by_path = {member.path: member.data for member in members}

    def read_users() -> Json:
        data = by_path.get("users.json") or by_path.get("org_users.json")
        return None if data is None else Source(partial(BytesIO, data), "users.json").document

    sources: list[Source] = []
    for member in members:
        opener = partial(BytesIO, member.data)
        sources.append(Source(opener, f"{name}/{member.path}", path=member.path, users=read_users))
    return sources


def _detect_format(sources: Sequence[Source]) -> tuple[Format, list[Source]]:
    """Return the format of the first source that has a known one, and all sources of this format."""
    format: Format | None = None
    readable: list[Source] = []
    for source in sources:
        try:
            source_format = find_format(source)
        except ACMSError:  # an archive also holds other files; it is an error if none has a known format
            if format is None and source is sources[-1]:
                raise
            continue
        format = format or source_format
        if source_format is format:
            readable.append(source)
    assert format is not None
    return format, readable


def _read_all(format: Format, sources: Sequence[Source], skipped: Counter[str]) -> Iterator[Conversation]:
    """Read the conversations of some sources; an error names the place in the source."""
    for source in sources:
        source.skipped = skipped
        try:
            yield from format.read(source)
        except ValidationError as error:
            if error.field.startswith(source.name):  # the error names its place already
                raise
            raise ValidationError(str(error), field=source.place, options=error.options) from error
        except OSError as error:
            raise ValidationError(f"cannot be read: {error.strerror}", field=source.name) from error
