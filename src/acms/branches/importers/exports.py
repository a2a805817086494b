"""Files of other programs: which format they have, and the conversations in them, a piece at a time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from io import SEEK_END, BytesIO
from pathlib import Path
from typing import BinaryIO

from acms.branches import limits
from acms.branches.importers import langgraph
from acms.branches.importers.archives import ZIP, Member, read_archive, refuse_packed
from acms.branches.importers.conversation import Conversation, has_content
from acms.branches.importers.formats import FORMATS, LANGGRAPH, Format, find_format, get_format
from acms.branches.importers.source import Source
from acms.branches.importers.turns import admit_conversation
from acms.errors import ACMSError, TooLargeError, ValidationError
from acms.log import validation
from acms.model import Json

__all__ = ["FORMATS", "Conversation", "Export", "Import", "open_import", "read_export"]

_BEGINS = 512
"""Bytes at the start of a file that are used to detect its format."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Export:
    """What a file holds."""

    format: str
    #: Those that say something. One of the format "chat" has an empty id: the file does not name it.
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
        #: What the last reading passed over, by reason.
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
                if len(messages) < len(piece.messages):
                    self.skipped["messages that say nothing"] += len(piece.messages) - len(messages)
                if not messages and not piece.taken_back:
                    continue
                records += len(messages)
                if records > limits.RECORDS:
                    raise TooLargeError(f"has more than {limits.RECORDS:,} messages", field=self.name)
                yield self._admit(replace(piece, messages=messages))
        except (KeyError, TypeError, AttributeError, ValueError, RecursionError) as error:
            raise ValidationError(
                f"is no {self.format} file: {type(error).__name__}: {error}", field=self.name
            ) from error
        if not records:
            raise ValidationError(
                f"holds no conversation of {self.format}", field=self.name, options=("import it as chat",)
            )

    def _admit(self, piece: Conversation) -> Conversation:
        try:
            return replace(piece, messages=admit_conversation(piece.messages, trust=self._trust))
        except ValidationError as error:
            where = self.name
            if piece.id:
                where = f"{where}: conversation {piece.id[: validation.NAME_CHARS]}"
            raise type(error)(str(error), field=where, options=error.options) from error


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

    def opened() -> BinaryIO:
        return path.open("rb") if data is None else BytesIO(data)

    try:
        with opened() as file:
            begins = file.read(_BEGINS)
            file.seek(0)
            if begins.startswith(langgraph.MAGIC) or format == LANGGRAPH:
                if most is not None and file.seek(0, SEEK_END) > most:
                    raise TooLargeError(f"has more than {most:,} bytes", field=path.name)
                threads = langgraph.read_checkpoints
                return Import(path.name, LANGGRAPH, True, lambda _: threads(path), trust)
            refuse_packed(begins, path.name)
            members = (
                read_archive(file, path.name, most or limits.IMPORT_BYTES) if begins.startswith(ZIP) else None
            )
    except OSError as error:
        raise ValidationError(f"cannot be read: {error.strerror}", field=str(path)) from error
    if members is None:
        relative = path.relative_to(within).as_posix() if within else path.name
        users = _member_list_of(path)
        parts = [Source(opened, path.name, path=relative, users=users)]
    else:
        parts = _make_sources(members, path.name)
    if most is not None:
        for part in parts:
            part.check_size(most)
    found = _with_formats(parts, format)
    first = found[0][0]
    return Import(path.name, first.name, first.whole, lambda skipped: _read_all(found, skipped), trust)


def read_export(
    path: str | Path, *, format: str | None = None, data: bytes | None = None, trust: bool = False
) -> Export:
    """Read a file of any format as a whole, as `open_import` opens it: each conversation in one piece."""
    opened = open_import(path, format=format, data=data, trust=trust)
    held: dict[str, Conversation] = {}
    for piece in opened.pieces():
        before = held.get(piece.id)
        if before is not None:
            messages = [*before.messages, *piece.messages]
            piece = replace(piece, messages=messages, taken_back=[*before.taken_back, *piece.taken_back])
        held[piece.id] = piece
    return Export(format=opened.format, conversations=list(held.values()), skipped=dict(opened.skipped))


def _member_list_of(path: Path) -> Callable[[], Json]:
    """Return the reader of the member list of an unpacked Slack export: `users.json` above the channel's folder."""

    def read() -> Json:
        file = path.parent.parent / "users.json"
        return Source(lambda: file.open("rb"), file.name).document if file.is_file() else None

    return read


def _make_sources(members: Sequence[Member], name: str) -> list[Source]:
    by_path = {member.path: member.data for member in members}

    def users() -> Json:
        data = by_path.get("users.json") or by_path.get("org_users.json")
        return None if data is None else Source(lambda: BytesIO(data), "users.json").document

    found: list[Source] = []
    for member in members:
        found.append(
            Source(_make_opener(member.data), f"{name}/{member.path}", path=member.path, users=users)
        )
    return found


def _make_opener(data: bytes) -> Callable[[], BinaryIO]:
    return lambda: BytesIO(data)


def _with_formats(sources: Sequence[Source], format: str | None) -> list[tuple[Format, Source]]:
    """Return sources with their formats; of several, those of no known format are left out."""
    if format is not None:
        return [(get_format(format), source) for source in sources]
    found: list[tuple[Format, Source]] = []
    for source in sources:
        try:
            found.append((find_format(source), source))
        except ACMSError:
            if source is sources[-1] and not found:
                raise
    return [one for one in found if one[0] is found[0][0]]


def _read_all(found: Sequence[tuple[Format, Source]], skipped: Counter[str]) -> Iterator[Conversation]:
    for format, source in found:
        source.skipped = skipped
        try:
            yield from format.read(source)
        except ValidationError as error:
            if error.field.startswith(source.name):
                raise
            raise ValidationError(str(error), field=source.place, options=error.options) from error
        except OSError as error:
            raise ValidationError(f"cannot be read: {error.strerror}", field=source.name) from error
