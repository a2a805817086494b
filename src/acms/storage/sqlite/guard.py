"""What stands between SQLite and us: a look at a file before it is opened, and its errors as ours."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import apsw

from acms.errors import (
    ACMSError,
    CorruptRecordError,
    StorageBusyError,
    StorageError,
    StorageFullError,
    StorageReadOnlyError,
)
from acms.storage import append_rules

_FULL = (errno.ENOSPC, errno.EDQUOT)
_REFUSED = (errno.EACCES, errno.EPERM, errno.EROFS)


def check_header(path: Path) -> None:
    """Refuse a file that is no SQLite database, before SQLite opens it.

    Read by SQLite's own means: closing a file descriptor drops every lock this process has on the file (POSIX), also
    those of another handle on it, whose WAL the next process to leave would then delete.
    """
    if path.is_dir():
        raise StorageError(f"{path} is a folder", options=("name a file in it",))
    if not path.exists():
        return
    if not os.access(path, os.R_OK):
        raise StorageReadOnlyError(f"{path} cannot be read", options=("check its permissions",))
    flags: list[int] = [apsw.SQLITE_OPEN_MAIN_DB | apsw.SQLITE_OPEN_READONLY, 0]
    file = apsw.VFSFile("", str(path.absolute()), flags)
    try:
        header = file.xRead(16, 0)
    finally:
        file.xClose()
    if header and header != b"SQLite format 3\0":
        raise CorruptRecordError(
            f"{path} is not an SQLite database; it was not touched",
            options=("choose another path", "restore the file from a backup"),
        )


class translated:
    """Turn the errors of SQLite into ours."""

    __slots__ = ("path",)

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> None:
        return None

    def __exit__(self, _type: object, error: BaseException | None, _trace: object) -> None:
        if error is None:
            return
        if isinstance(error, UnicodeDecodeError):  # bytes that are no text, in a row somebody else wrote
            raise CorruptRecordError(f"{self.path}: {error}", options=("acms verify",)) from error
        if isinstance(
            error, UnicodeEncodeError | OverflowError
        ):  # a name or number that nothing stored can have
            raise append_rules.unexpected(error) from error
        if isinstance(error, ACMSError) or not isinstance(error, apsw.Error | OSError):
            return
        raise self._ours(error) from error

    def _ours(self, error: BaseException) -> StorageError:
        text = f"{self.path}: {error}"
        number = error.errno if isinstance(error, OSError) else None
        if isinstance(error, apsw.FullError) or number in _FULL:
            return StorageFullError(
                f"{text}; nothing of this commit was written",
                options=("free some space and repeat the call",),
            )
        if isinstance(error, apsw.BusyError | apsw.LockedError):
            return StorageBusyError(f"{text}; nothing was written", options=("repeat the call",))
        short = getattr(error, "extendedresult", 0) == apsw.SQLITE_IOERR_SHORT_READ
        if short or isinstance(error, apsw.CorruptError | apsw.NotADBError):
            return CorruptRecordError(text, options=("acms verify", "restore the file from a backup"))
        refused = isinstance(error, apsw.ReadOnlyError | apsw.PermissionsError | apsw.CantOpenError)
        if refused or number in _REFUSED:
            return StorageReadOnlyError(
                text, options=("check the permissions of the folder", "open it with ?mode=ro")
            )
        return StorageError(text)
