"""Copying a database file while it is in use."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import apsw

from acms.errors import CorruptRecordError, StorageError, StorageFullError
from acms.storage.files import create_file


def backup_database(
    source: apsw.Connection, file: Path, target: Path, progress: Callable[[int, int], None] | None
) -> None:
    """Copy a whole database into a new file, and check the copy; `progress` receives (pages done, pages in all).

    `file` is the file of the source, for errors. A `CorruptRecordError` says that it is damaged. A `StorageError` names
    the target, also where its disk is full. What fails leaves no file behind.
    """
    if not target.parent.is_dir():
        raise StorageError(
            f"the folder {target.parent} does not exist", options=("create it", "choose another place")
        )
    try:
        is_new = create_file(target)
    except OSError as error:
        problem = f"{target} cannot be written: {error.strerror}"
        raise StorageError(problem, options=("choose another place",)) from error
    if not is_new:
        raise StorageError(f"{target} exists", options=("choose another name",))
    try:
        problems = _copy_pages(source, target, progress)
        if problems:
            raise _damaged_error(file, target, problems[0])
    except BaseException as error:
        target.unlink(missing_ok=True)
        if not isinstance(error, apsw.Error):
            raise
        if isinstance(error, apsw.CorruptError | apsw.NotADBError):
            raise _damaged_error(file, target, str(error)) from error
        is_disk_full = isinstance(error, apsw.FullError)
        cause = "the disk is full" if is_disk_full else f"{type(error).__name__}: {error}"
        problem = f"the backup to {target} failed: {cause}"
        raise (StorageFullError if is_disk_full else StorageError)(
            problem, options=("free space there", "choose another place")
        ) from error


def _damaged_error(file: Path, target: Path, problem: str) -> CorruptRecordError:
    return CorruptRecordError(
        f"{file} is damaged, so {target} was not written: {problem}",
        options=("restore the file from an earlier backup", "acms verify lists what is damaged"),
    )


def check_database(connection: apsw.Connection, *, pragma: str) -> list[str]:
    """Return the problems that SQLite finds in a database; empty if there are none.

    `pragma` is integrity_check, or quick_check, which does not compare the indexes with the tables.
    """
    problems: list[str] = []
    try:
        for (text,) in connection.execute(f"PRAGMA {pragma}"):
            for problem in str(text).splitlines():
                if problem != "ok" and not problem.startswith("***"):  # a heading
                    problems.append(problem)
    except apsw.CorruptError as error:  # the damage ends the check
        problems.append(str(error))
    return problems


def _copy_pages(
    source: apsw.Connection, target: Path, progress: Callable[[int, int], None] | None
) -> list[str]:
    """Copy the pages of a database into another file, and return the problems that SQLite finds in the copy."""
    destination = apsw.Connection(str(target))
    try:
        with destination.backup("main", source, "main") as copy:
            while not copy.done:
                copy.step(512)  # pages: 2 MiB between two reports
                if progress is not None:
                    progress(copy.page_count - copy.remaining, copy.page_count)
        return check_database(destination, pragma="integrity_check")
    finally:
        destination.close()
