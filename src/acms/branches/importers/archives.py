"""Archives of exports: which of their files hold conversations, unpacked within the limits of an import.

What an archive says about its sizes is not believed: bytes are counted while they are unpacked. An archive inside an
archive is not unpacked.
"""

from __future__ import annotations

import zlib
from pathlib import PurePosixPath
from typing import BinaryIO, NamedTuple
from zipfile import ZIP_DEFLATED, ZIP_STORED, BadZipFile, ZipFile, ZipInfo

from acms.branches import limits
from acms.errors import TooLargeError, ValidationError

__all__ = ["ZIP", "Member", "read_archive", "refuse_packed"]

ZIP = b"PK\x03\x04"
"""How an archive begins."""
_DIRECTORY_ENTRY = b"PK\x01\x02"
"""How each file begins in the directory of an archive."""
_METHODS = (ZIP_STORED, ZIP_DEFLATED)
"""What products pack with. Other methods unpack a few bytes to any size before these can be counted."""
_PACKED = ((0, b"\x1f\x8b", "gzip"), (257, b"ustar", "tar"), (0, b"BZh", "bzip2"), (0, b"\xfd7zXZ\x00", "xz"))
_PIECE = 1_048_576
_SLACK_USERS = ("users.json", "org_users.json")
_HOLDERS = ("conversations.json of ChatGPT or Claude", "users.json and a folder for each channel of Slack")


class Member(NamedTuple):
    """A file of an archive."""

    path: str
    data: bytes


def refuse_packed(begins: bytes, name: str) -> None:
    """Raise `ValidationError` for a file that is packed in a way that is not read here."""
    for place, magic, kind in _PACKED:
        if begins[place : place + len(magic)] == magic:
            raise ValidationError(
                f"is a {kind} file", field=name, options=("unpack it first, and import what is in it",)
            )


def read_archive(file: BinaryIO, name: str, most: int) -> list[Member]:
    """Return the files of an archive that hold conversations, unpacked `most` bytes; large exports have several."""
    _count_entries(file, name)
    try:
        with ZipFile(file) as archive:
            unpacked: list[Member] = []
            size = 0
            for one in _find_conversations(archive.infolist()):
                data = _unpack_member(archive, one, name, size, most)
                unpacked.append(Member(one.filename, data))
                size += len(data)
    except (
        BadZipFile,
        RuntimeError,
        NotImplementedError,
        EOFError,
        OSError,
        ValueError,
        zlib.error,
    ) as error:
        raise ValidationError(f"is an archive that cannot be read: {error}", field=name) from error
    if not unpacked:
        raise ValidationError("is an archive without conversations", field=name, options=_HOLDERS)
    return unpacked


def _find_conversations(entries: list[ZipInfo]) -> list[ZipInfo]:
    """Return `conversations*.json` of ChatGPT and Claude, else the channels of Slack with the names of the members."""
    entries = sorted(entries, key=lambda one: one.filename)
    paths = [PurePosixPath(one.filename) for one in entries]
    found = [
        entry
        for entry, path in zip(entries, paths, strict=True)
        if path.name.startswith("conversations") and path.suffix == ".json"
    ]
    if found or not any(path.name in _SLACK_USERS and len(path.parts) == 1 for path in paths):
        return found
    return [
        entry
        for entry, path in zip(entries, paths, strict=True)
        if path.suffix == ".json" and (len(path.parts) == 2 or path.name in _SLACK_USERS)
    ]


def _unpack_member(archive: ZipFile, one: ZipInfo, name: str, size: int, most: int) -> bytes:
    """Unpack a file of an archive, from which `size` bytes are unpacked already."""
    if one.compress_type not in _METHODS:
        raise ValidationError(f"holds {one.filename} packed by an unknown method", field=name)
    pieces: list[bytes] = []
    with archive.open(one) as member:
        while piece := member.read(_PIECE):
            size += len(piece)
            if size > most:
                raise TooLargeError(f"unpacks to more than {most:,} bytes", field=name)
            pieces.append(piece)
    return b"".join(pieces)


def _count_entries(file: BinaryIO, name: str) -> None:
    """Refuse an archive of too many files before its directory is read, whatever number it names."""
    found, tail = 0, b""
    while piece := file.read(_PIECE):
        found += (tail + piece).count(_DIRECTORY_ENTRY)
        tail = piece[-len(_DIRECTORY_ENTRY) + 1 :]
        if found > limits.ARCHIVE_ENTRIES:
            raise TooLargeError(f"holds more than {limits.ARCHIVE_ENTRIES:,} files", field=name)
    file.seek(0)
