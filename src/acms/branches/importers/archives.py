"""Archives of exports: which of their files hold conversations, unpacked within the limits of an import.

The sizes that an archive names are not trusted: bytes are counted while they are unpacked. An archive inside an
archive is not unpacked.
"""

from __future__ import annotations

import zlib
from functools import partial
from pathlib import PurePosixPath
from typing import BinaryIO, NamedTuple
from zipfile import ZIP_DEFLATED, ZIP_STORED, BadZipFile, ZipFile, ZipInfo

from acms.branches import limits
from acms.errors import TooLargeError, ValidationError

ZIP = b"PK\x03\x04"
"""The first bytes of a ZIP archive."""
_DIRECTORY_ENTRY = b"PK\x01\x02"
"""The first bytes of each file's entry in the directory of an archive."""
_METHODS = (ZIP_STORED, ZIP_DEFLATED)
"""The methods that products use. Other methods unpack a few bytes to any size before these can be counted."""
_PACKED = ((0, b"\x1f\x8b", "gzip"), (257, b"ustar", "tar"), (0, b"BZh", "bzip2"), (0, b"\xfd7zXZ\x00", "xz"))
_ARCHIVE_ERRORS = (
    BadZipFile,
    RuntimeError,
    NotImplementedError,
    EOFError,
    OSError,
    ValueError,
    zlib.error,
)
_BLOCK = 1_048_576
"""Bytes of an archive that are held in memory while its files are counted."""
_SLACK_USERS = ("users.json", "org_users.json")
_EXPECTED = ("conversations.json of ChatGPT or Claude", "users.json and a folder for each channel of Slack")


class Member(NamedTuple):
    """A file of an archive."""

    path: str
    data: bytes


def refuse_packed(begins: bytes, name: str) -> None:
    """Raise `ValidationError` for a file that is packed in a way that is not read here."""
    for offset, magic, kind in _PACKED:
        if begins.startswith(magic, offset):
            raise ValidationError(
                f"is a {kind} file", field=name, options=("unpack it first, and import its files",)
            )


def read_archive(file: BinaryIO, name: str, max_bytes: int) -> list[Member]:
    """Return the files of an archive that hold conversations; large exports have several.

    Raises `TooLargeError` if they unpack to more than `max_bytes` together.
    """
    _count_entries(file, name)
    members: list[Member] = []
    remaining = max_bytes
    try:
        with ZipFile(file) as archive:
            for entry in _find_conversations(archive.infolist()):
                if entry.compress_type not in _METHODS:
                    raise ValidationError(f"holds {entry.filename} packed by an unknown method", field=name)
                with archive.open(entry) as member:
                    data = member.read(remaining + 1)  # one byte more shows that the limit is exceeded
                if len(data) > remaining:
                    raise TooLargeError(f"unpacks to more than {max_bytes:,} bytes", field=name)
                members.append(Member(entry.filename, data))
                remaining -= len(data)
    except _ARCHIVE_ERRORS as error:
        raise ValidationError(f"is an archive that cannot be read: {error}", field=name) from error
    if not members:
        raise ValidationError("is an archive without conversations", field=name, options=_EXPECTED)
    return members


def _find_conversations(entries: list[ZipInfo]) -> list[ZipInfo]:
    """Return `conversations*.json` of ChatGPT and Claude, else the channels of Slack with the names of the members."""
    conversations: list[ZipInfo] = []
    channels: list[ZipInfo] = []
    is_slack = False
    for entry in sorted(entries, key=lambda entry: entry.filename):
        path = PurePosixPath(entry.filename)
        if path.suffix != ".json":
            continue
        if path.name.startswith("conversations"):
            conversations.append(entry)
        elif path.name in _SLACK_USERS:
            channels.append(entry)
            is_slack |= len(path.parts) == 1  # a list of users at the top, and a folder for each channel
        elif len(path.parts) == 2:
            channels.append(entry)
    if conversations or not is_slack:
        return conversations
    return channels


def _count_entries(file: BinaryIO, name: str) -> None:
    """Raise `TooLargeError` for an archive of too many files, before its directory is read into memory.

    The directory entries are counted in the raw bytes, because the number that the archive states may be wrong.
    """
    count, tail = 0, b""
    for block in iter(partial(file.read, _BLOCK), b""):
        count += (tail + block).count(_DIRECTORY_ENTRY)
        tail = block[-len(_DIRECTORY_ENTRY) + 1 :]  # an entry may begin in one block and end in the next
        if count > limits.ARCHIVE_ENTRIES:
            raise TooLargeError(f"contains more than {limits.ARCHIVE_ENTRIES:,} files", field=name)
    file.seek(0)
