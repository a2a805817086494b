"""Copying a database file while it is in use."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import apsw

from acms.errors import StorageError, StorageFullError
from acms.storage.files import create_file


def backup_database(
    source: apsw.Connection, target: Path, progress: Callable[[int, int], None] | None
) -> None:
    """Copy a whole database into a new file; `progress` receives (pages done, pages in all).

    A `StorageError` names the target, also where its disk is full. What fails leaves no file behind.
    """
    if not create_file(target):
        raise StorageError(f"{target} exists", options=("choose another name",))
    try:
        _copy_pages(source, target, progress)
    except BaseException as error:
        target.unlink(missing_ok=True)
        if not isinstance(error, apsw.Error):
            raise
        is_disk_full = isinstance(error, apsw.FullError)
        cause = "the disk is full" if is_disk_full else f"{type(error).__name__}: {error}"
        problem = f"the backup to {target} failed: {cause}"
        raise (StorageFullError if is_disk_full else StorageError)(
            problem, options=("make room there", "choose another place")
        ) from error


def _copy_pages(source: apsw.Connection, target: Path, progress: Callable[[int, int], None] | None) -> None:
    """Copy the pages of a database into another file."""
    destination = apsw.Connection(str(target))
    try:
        with destination.backup("main", source, "main") as copy:
            while not copy.done:
                copy.step(512)  # pages: 2 MiB between two reports
                if progress is not None:
                    progress(copy.page_count - copy.remaining, copy.page_count)
    finally:
        destination.close()
