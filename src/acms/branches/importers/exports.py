"""What other products give out: which product, and which conversations."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from io import BytesIO, StringIO
from pathlib import Path

from acms.branches import limits
from acms.branches.importers import chatgpt, claude, langgraph, mem0
from acms.branches.importers.archives import ZIP, read_archive, refuse_packed
from acms.branches.importers.chat import read_lines
from acms.branches.importers.conversation import Conversation
from acms.branches.importers.turns import admit_conversation
from acms.errors import TooLargeError, ValidationError
from acms.log import validation
from acms.model import Json

__all__ = ["FORMATS", "Conversation", "Export", "read_export"]

_DOCUMENTS: Mapping[str, tuple[Callable[[Json], bool], Callable[[Json], Iterator[Conversation]]]] = {
    "chatgpt": (chatgpt.recognise, chatgpt.conversations),
    "claude": (claude.recognise, claude.conversations),
    "mem0": (mem0.recognise, mem0.conversations),
}
FORMATS = ("chat", *_DOCUMENTS, "langgraph")
"""Formats by name; "chat" is a file of one conversation, as `read_chat` reads it."""
_BEGINS = 512
"""Bytes at the start of a file that tell what it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Export:
    """What a file holds."""

    format: str
    #: Those that say something. One of the format "chat" has an empty id: the file does not name it.
    conversations: Sequence[Conversation]


def read_export(
    path: str | Path, *, format: str | None = None, data: bytes | None = None, trust: bool = False
) -> Export:
    """Read a file of any format, which is found by looking at it unless it is given.

    An archive as a product sends it is taken too: of what is in it, `conversations.json` is read. With `data` that is
    read in place of the file, whose name is for errors. System and developer messages are external text, which
    instructs nobody, unless you `trust` the file. Every message is validated. `ValidationError` names what is wrong,
    and what was expected, `TooLargeError` a limit; `ConfigurationError` when a package is missing that a format needs.
    """
    path = Path(path)
    if format is not None and format not in FORMATS:
        raise ValidationError(f"{format!r} is not one of {', '.join(FORMATS)}", field="format")
    try:
        with path.open("rb") if data is None else BytesIO(data) as file:
            begins = file.read(_BEGINS)
            file.seek(0)
            if begins.startswith(langgraph.MAGIC) or format == "langgraph":
                return _export("langgraph", langgraph.conversations(path), path.name, trust)
            refuse_packed(begins, path.name)
            packed = begins.startswith(ZIP)
            texts = read_archive(file, path.name) if packed else [limits.read_within(file, path.name)]
    except OSError as error:
        raise ValidationError(f"cannot be read: {error.strerror}", field=str(path)) from error
    found = [one for text in texts for one in _documents(text, path.name, format)]
    if format in _DOCUMENTS or found:
        name = format or found[0][0]
        return _export(name, (one for _, each in found for one in each), path.name, trust)
    lines = StringIO(_decoded(texts[0], path.name), newline="\n")
    messages = list(read_lines(lines, path.name, trust=trust))
    return Export(format="chat", conversations=[Conversation(id="", messages=messages)])


def _export(format: str, found: Iterator[Conversation], name: str, trust: bool) -> Export:
    """Return what a file of a product holds; every message of it is validated."""
    held: list[Conversation] = []
    records = 0
    try:
        for one in found:
            if one.messages:
                records += len(one.messages)
                held.append(_admit(one, name, trust))
            if records > limits.RECORDS:
                raise TooLargeError(f"has more than {limits.RECORDS:,} messages", field=name)
    except (KeyError, TypeError, AttributeError, ValueError, RecursionError) as error:
        raise ValidationError(
            f"is no {format} export: {type(error).__name__}: {error}", field=name
        ) from error
    if not held:
        raise ValidationError(
            f"holds no conversation of {format}", field=name, options=("import it as chat",)
        )
    return Export(format=format, conversations=held)


def _admit(one: Conversation, name: str, trust: bool) -> Conversation:
    try:
        return replace(one, messages=admit_conversation(one.messages, trust=trust))
    except ValidationError as error:
        where = f"{name}: conversation {one.id[: validation.NAME_CHARS]}"
        raise type(error)(str(error), field=where, options=error.options) from error


def _documents(data: bytes, name: str, format: str | None) -> Iterator[tuple[str, Iterator[Conversation]]]:
    """Yield what a text holds when it is the export of a product; memories may stand one a line."""
    if format == "chat":
        return
    text = _decoded(data, name)
    try:
        document = limits.parse_json(text, name)
    except ValueError:
        try:
            lines = enumerate(text.split("\n"), 1)
            document = [limits.parse_json(line, f"{name}:{number}") for number, line in lines if line.strip()]
        except ValueError:
            return
    for one, (recognise, read) in _DOCUMENTS.items():
        if format == one or (format is None and recognise(document)):
            yield one, read(document)
            return


def _decoded(data: bytes, name: str) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValidationError(f"is not UTF-8 text: byte {error.start}", field=name) from error
