"""What other products give out: which product, and which conversations."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO, StringIO
from pathlib import Path
from zipfile import BadZipFile, ZipFile

from acms.branches.importers import chatgpt, claude, langgraph, mem0
from acms.branches.importers.chat import read_lines
from acms.branches.importers.conversation import Conversation
from acms.errors import ValidationError
from acms.model import Json

__all__ = ["FORMATS", "Conversation", "Export", "read_export"]

_DOCUMENTS: Mapping[str, tuple[Callable[[Json], bool], Callable[[Json], Iterator[Conversation]]]] = {
    "chatgpt": (chatgpt.recognise, chatgpt.conversations),
    "claude": (claude.recognise, claude.conversations),
    "mem0": (mem0.recognise, mem0.conversations),
}
FORMATS = ("chat", *_DOCUMENTS, "langgraph")
"""Formats by name; "chat" is a file of one conversation, as `read_chat` reads it."""
_ZIP = b"PK\x03\x04"


@dataclass(frozen=True, slots=True, kw_only=True)
class Export:
    """What a file holds."""

    format: str
    #: Those that say something. One of the format "chat" has an empty id: the file does not name it.
    conversations: Sequence[Conversation]


def read_export(path: str | Path, *, format: str | None = None, data: bytes | None = None) -> Export:
    """Read a file of any format, which is found by looking at it unless it is given.

    An archive as a product sends it is taken too: of what is in it, `conversations.json` is read. With `data` that is
    read in place of the file, whose name is for errors. `ValidationError` names what is wrong, and what was expected;
    `ConfigurationError` when a package is missing that a format needs.
    """
    path = Path(path)
    if format is not None and format not in FORMATS:
        raise ValidationError(f"{format!r} is not one of {', '.join(FORMATS)}", field="format")
    try:
        data = path.read_bytes() if data is None else data
    except OSError as error:
        raise ValidationError(f"cannot be read: {error.strerror}", field=str(path)) from error
    if data.startswith(langgraph.MAGIC) or format == "langgraph":
        return _export("langgraph", langgraph.conversations(path), path.name)
    texts = _unpacked(data, path.name) if data.startswith(_ZIP) else [data]
    found = [one for text in texts for one in _documents(text, path.name, format)]
    if format in _DOCUMENTS or found:
        name = format or found[0][0]
        return _export(name, (one for _, each in found for one in each), path.name)
    lines = StringIO(_decoded(data, path.name), newline="\n")
    return Export(
        format="chat", conversations=[Conversation(id="", messages=list(read_lines(lines, path.name)))]
    )


def _export(format: str, found: Iterator[Conversation], name: str) -> Export:
    try:
        held = [one for one in found if one.messages]
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValidationError(
            f"is no {format} export: {type(error).__name__}: {error}", field=name
        ) from error
    if not held:
        raise ValidationError(
            f"holds no conversation of {format}", field=name, options=("import it as chat",)
        )
    return Export(format=format, conversations=held)


def _unpacked(data: bytes, name: str) -> list[bytes]:
    """Return the files of an archive that hold conversations; large exports have several."""
    try:
        with ZipFile(BytesIO(data)) as archive:
            names = sorted(
                one
                for one in archive.namelist()
                if Path(one).name.startswith("conversations") and one.endswith(".json")
            )
            found = [archive.read(one) for one in names]
    except (BadZipFile, RuntimeError, NotImplementedError) as error:
        raise ValidationError(f"is an archive that cannot be read: {error}", field=name) from error
    if not found:
        raise ValidationError("is an archive without conversations.json", field=name)
    return found


def _documents(data: bytes, name: str, format: str | None) -> Iterator[tuple[str, Iterator[Conversation]]]:
    """Yield what a text holds when it is the export of a product; memories may stand one a line."""
    if format == "chat":
        return
    text = _decoded(data, name)
    try:
        document: Json = json.loads(text)
    except (ValueError, RecursionError):
        try:
            document = [json.loads(line) for line in text.split("\n") if line.strip()]
        except (ValueError, RecursionError):
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
