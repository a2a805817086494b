"""The schema of an SQLite file: recognize ACMS files, read their version and migrate them to this release's."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import apsw

from acms.errors import (
    ConfigurationError,
    CorruptRecordError,
    SchemaVersionError,
    StorageError,
    StorageReadOnlyError,
)
from acms.log.encoding import to_microseconds
from acms.model import Migration
from acms.storage.sql import load_migrations

APPLICATION_ID = 0x41434D53  # "ACMS", in the header of the file


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
            f"{path} is not an ACMS database: it is not an SQLite file; it was not changed",
            options=("choose another path", "restore the file from a backup"),
        )


def check_partitions(partitions: int | None) -> None:
    """Refuse to divide a file."""
    if partitions is not None:
        raise ConfigurationError("an SQLite file has no partitions", options=("omit them",))


def check_schema(connection: apsw.Connection, path: Path, *, read_only: bool = False) -> Mapping[int, str]:
    """Refuse a file of another application or of a newer release, before anything is written.

    Returns the checksums of the steps that it has.
    """
    known_steps = load_migrations("sqlite")
    # One statement, so one snapshot: another process may be creating the file right now.
    row: Any = connection.execute(
        "SELECT (SELECT user_version FROM pragma_user_version),"
        " (SELECT application_id FROM pragma_application_id), (SELECT count(*) FROM sqlite_master)"
    ).fetchall()[0]
    version, application, tables = row
    # A new file has neither an id nor tables.
    if application != APPLICATION_ID and (application or tables):
        raise StorageError(
            f"{path} is a database of another application; it was not changed",
            options=("choose another path",),
        )
    if version > len(known_steps):
        raise SchemaVersionError(
            f"{path} has schema {version}, this release knows up to {len(known_steps)}; it was not changed",
            options=("upgrade acms-engine",),
        )
    rows: Any = connection.execute("SELECT version, checksum FROM migrations") if version else ()
    applied: dict[int, str] = dict(rows)
    for number, checksum, _ in known_steps:
        if applied.get(number, checksum) != checksum:
            raise SchemaVersionError(
                f"{path} was migrated by a different release: its schema {number} is not the one this"
                " release has; it was not changed",
                options=("open it with the release that wrote it", "export there and restore here"),
            )
    if read_only and version < len(known_steps):
        raise SchemaVersionError(
            f"{path} has schema {version}, this release reads {len(known_steps)}",
            options=("run acms migrate", "open it writable once"),
        )
    return applied


def migrate_file(
    writer: apsw.Connection, clock: Callable[[], datetime], on_applied: Callable[[int], None] | None
) -> None:
    """Apply the missing migrations, each in its own transaction; another process may apply one first."""
    known_steps = load_migrations("sqlite")
    if writer.pragma("user_version") == len(known_steps):
        return
    for version, checksum, script in known_steps:
        applied_here = False
        writer.execute("BEGIN IMMEDIATE").fetchall()
        try:
            # Read again under the lock: another process may have applied it.
            if int(writer.pragma("user_version")) < version:
                for _ in writer.execute(
                    _build_script(version, checksum, script, str(to_microseconds(clock())))
                ):
                    pass
                applied_here = True
            writer.execute("COMMIT").fetchall()
        except BaseException:
            with suppress(apsw.Error):
                writer.execute("ROLLBACK").fetchall()
            raise
        if applied_here and on_applied is not None:
            on_applied(version)


def _build_script(version: int, checksum: str, script: str, now: str) -> str:
    """Return the statements that run inside the transaction of one migration."""
    return (
        f"{script.rstrip()}\n\nINSERT INTO migrations VALUES ({version}, '{checksum}', {now});\n"
        f"PRAGMA application_id = {APPLICATION_ID};\nPRAGMA user_version = {version};\n"
    )


def list_schema_steps(path: Path) -> list[Migration]:
    """Return every step of the schema and whether a file has it; the file is not changed, and not created."""
    applied = _read_applied_steps(path)
    now_expression = "CAST(1000000 * unixepoch('subsec') AS INTEGER)"
    steps: list[Migration] = []
    for version, checksum, script in load_migrations("sqlite"):
        # The first step of a new file also switches it to WAL, which no transaction can do.
        transaction = f"BEGIN IMMEDIATE;\n{_build_script(version, checksum, script, now_expression)}COMMIT;\n"
        steps.append(
            Migration(
                version=version,
                needs=version,
                checksum=checksum,
                applied=version in applied,
                script=transaction if applied or steps else f"PRAGMA journal_mode = wal;\n{transaction}",
            )
        )
    return steps


def _read_applied_steps(path: Path) -> Mapping[int, str]:
    """Return the checksums of the steps that a file has, without changing or creating anything."""
    check_header(path)
    if not path.exists():
        return {}
    with closing(_open_untouched(path)) as connection:
        return check_schema(connection, path)


def is_blank_file(path: Path) -> bool:
    """Return whether nothing was ever created in a file; it is not changed. False for a file that cannot be read."""
    check_header(path)
    try:
        with closing(_open_untouched(path)) as connection:
            return (
                connection.pragma("application_id") == 0
                and not connection.execute("SELECT 1 FROM sqlite_master").fetchall()
            )
    except apsw.Error:
        return False


def _open_untouched(path: Path) -> apsw.Connection:
    """Open a file that exists for reading, without creating another file next to it."""
    wal = path.with_name(path.name + "-wal")
    # Without a WAL no process has the file open, and then no file may be created next to it.
    is_unused = not (wal.exists() and wal.stat().st_size)
    uri = f"{path.absolute().as_uri()}?mode=ro{'&immutable=1' if is_unused else ''}"
    connection = apsw.Connection(uri, flags=apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI)
    connection.set_busy_timeout(5000)
    return connection
