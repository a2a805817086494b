"""The eraser of an SQLite file: removes content from its tables, its pages and its write-ahead log.

`secure_delete` overwrites deleted content with zeros, but the write-ahead log still holds the old pages. So after an
erasure the log is checkpointed into the file and truncated, on the writer's thread, before the caller gets an answer.

`traces` searches the raw bytes of the file for remains of erased content.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import apsw

from acms.errors import StorageBusyError, StorageError, StorageFullError
from acms.log.encoding import dump, entry_id, to_microseconds
from acms.model import Json, Kind, State
from acms.observability.logging import log_event
from acms.storage import append_rules
from acms.storage.sql import VERSION_BITS, read_entry
from acms.storage.sqlite.file import SQLiteFile
from acms.storage.sqlite.tables import Tables
from acms.storage.traces import Traces, find_repeating_values

AGAIN = 1.0
"""Seconds after which a commit tries again to empty the write-ahead log; it does not wait for readers then."""
CHUNK = 4 << 20
"""Bytes of a file that are searched at once."""


class Eraser:
    """Removes the content of a tenant's entries from the rows of a database, and finds what refers to it."""

    def __init__(self, tables: Tables, clock: Callable[[], datetime]) -> None:
        self._tables = tables
        self._clock = clock
        #: Set when content was erased since the last commit hook; used by the thread that writes only.
        self.content_erased = False

    def blank(
        self,
        connection: apsw.Connection,
        context: str,
        versions: Sequence[int],
        *,
        to: State,
        audit: Mapping[str, Json],
    ) -> int:
        """Delete the content of entries permanently, in every log that inherits them; return how many were blanked."""
        ref, head, lineage = self._tables.log(connection, context, deleted=True)
        blanked_versions: list[int] = []
        for owner, low, high in append_rules.split_segments(context, lineage, 1, head.version):
            owner_ref = self._tables.ref(connection, owner)
            for version in sorted({version for version in versions if low <= version <= high}):
                if self._blank_entry(connection, ref, (owner, owner_ref, version), to):
                    blanked_versions.append(version)
        if blanked_versions:
            self._tables.rows(connection, "count_rewrite", (ref,))
            self._tables.rows(connection, "raise_epoch", (ref,))
            detail, now = dump(dict(audit)) if audit else None, to_microseconds(self._clock())
            values = (self._tables.tenant, context, to.value, dump(blanked_versions), detail, now)
            self._tables.rows(connection, "insert_audit", values)
            if to is State.ERASED:
                self._tables.rows(connection, "delete_records_of_tree", (ref,))
                self.content_erased = True
        return len(blanked_versions)

    def _blank_entry(
        self, connection: apsw.Connection, ref: int, location: tuple[str, int, int], to: State
    ) -> bool:
        """Blank an entry; return whether it was not blank before.

        `location` is its owner, the owner's number and its version; `ref` is the number of the context that asked.
        """
        owner, owner_ref, version = location
        row_number = owner_ref << VERSION_BITS | version
        entry_row = self._tables.row(connection, "entries_at", (dump([row_number]),))
        if entry_row is None:
            return False
        entry = read_entry(entry_row, owner)
        # An erased entry stays erased; an expired one may still be erased.
        if entry.state is to or entry.state is State.ERASED:
            return False
        self._tables.rows(connection, "blank_entry", (to.value, row_number))
        if to is State.ERASED:
            if entry.key is not None:
                self._tables.rows(connection, "forget_key", (owner_ref, entry.key))
            self._tables.rows(connection, "delete_derived", (owner_ref, version))
            self._tables.rows(connection, "delete_payload", (self._tables.tenant, ref, entry.id))
        return True

    def find_messages(
        self, connection: apsw.Connection, times: Sequence[datetime], keys: Sequence[str]
    ) -> list[str]:
        """Return the ids of the tenant's messages with content that have one of these times or keys."""
        microseconds = [to_microseconds(time) for time in times]
        rows = self._tables.rows(
            connection, "find_messages", (self._tables.tenant, dump(microseconds), dump(list(keys)))
        )
        return [entry_id(Kind.MESSAGE, context, version, nonce) for context, version, nonce in rows]

    def find_remains(self, connection: apsw.Connection, ids: Sequence[str]) -> list[str]:
        """Return descriptions of the keys and derived rows that erased entries still have."""
        versions_of: dict[tuple[str, int], list[int]] = {}
        for owner, ref, version in self._tables.locations(connection, ids).values():
            versions_of.setdefault((owner, ref), []).append(version)
        remains: list[str] = []
        for (owner, ref), versions in versions_of.items():
            values = (ref, dump(versions))
            for name, query in (("keys", "left_keys"), ("derived rows", "left_derived")):
                count = self._tables.rows(connection, query, values)[0][0]
                if count:
                    remains.append(f"{owner}: {count} {name}")
        return remains


class FileEraser:
    """Removes erased content from the pages and the write-ahead log of a file, and proves that it is gone."""

    def __init__(self, file: SQLiteFile, tables: Tables, rows: Eraser) -> None:
        self._file = file
        self._tables = tables
        self._rows = rows
        #: Whether the write-ahead log may hold erased content, and when to retry; used by the writer's thread only.
        self._wal_stale = False
        self._retry_at = 0.0
        #: Whether to rewrite the file after the next commit, and the error that prevented it the last time.
        self._rewrite_requested = False
        self._rewrite_error: apsw.Error | None = None

    def after_commit(self, writer: apsw.Connection) -> None:
        """Remove erased content from the write-ahead log, and from the pages if requested."""
        if self._rows.content_erased:
            self._rows.content_erased, self._wal_stale = False, True
        if self._rewrite_requested:
            self._rewrite_requested, self._wal_stale, self._rewrite_error = False, True, None
            try:
                writer.execute("VACUUM").fetchall()
            except apsw.Error as error:
                self._rewrite_error = error
                log_event(logging.WARNING, "vacuum_failed", error=type(error).__name__)
        if self._wal_stale and time.monotonic() >= self._retry_at:
            self._empty_wal(writer)

    def _empty_wal(self, writer: apsw.Connection) -> None:
        """Move the write-ahead log into the file and cut it to nothing, unless a reader still needs it."""
        is_first_attempt = self._retry_at == 0.0
        # Readers get a second to finish, but only the first time: all writers wait meanwhile.
        writer.set_busy_timeout(min(self._file.busy, 1_000) if is_first_attempt else 0)
        try:
            is_busy = writer.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()[0][0]
        except apsw.Error:
            is_busy = True
        finally:
            writer.set_busy_timeout(self._file.busy)
        if not is_busy:
            self._wal_stale, self._retry_at = False, 0.0
            return
        self._retry_at = time.monotonic() + AGAIN
        # Reported once, not at every retry.
        if is_first_attempt:
            log_event(logging.WARNING, "wal_not_emptied", file=self._file.path.name)

    # ── search for residue ──────────────────────────────────────────────────────────────────────────────────────────

    async def residue(self, ids: Sequence[str], texts: Sequence[bytes]) -> list[str]:
        """Return the remains of erased entries: keys, derived rows, stored values, bytes of the file.

        If a text is still in the file's bytes, the file is rewritten and searched once more.
        """
        remains = await self._file.read(
            lambda connection: self._rows.find_remains(connection, ids), large=True
        )
        traces = Traces(texts)
        if not traces:
            return remains
        if not self._file.read_only:
            await self._clean(rewrite=False)
        remains += await self._file.read(
            lambda connection: self._find_repeating_values(connection, texts), large=True
        )
        file_remains = await self._file.read(
            lambda connection: self._find_traces(connection, traces), large=True
        )
        if file_remains and not self._file.read_only:
            try:
                await self._rewrite_file()
            except StorageError as error:  # the erasure holds; the caller learns where bytes remain
                remains.append(str(error))
            file_remains = await self._file.read(
                lambda connection: self._find_traces(connection, traces), large=True
            )
        return [*remains, *file_remains]

    async def rewrite(self) -> None:
        """See `SQLiteStorage.rewrite`."""
        await self._rewrite_file()
        if self._wal_stale:
            raise StorageBusyError(
                f"{self._file.path} was rewritten, but a reader keeps its write-ahead log from being emptied",
                options=("end the reader, then repeat the call",),
            )

    async def _rewrite_file(self) -> None:
        await self._clean(rewrite=True)
        if self._rewrite_error is not None:
            is_disk_full = isinstance(self._rewrite_error, apsw.FullError)
            raise (StorageFullError if is_disk_full else StorageError)(
                f"{self._file.path} could not be rewritten, and is unchanged: {self._rewrite_error}",
                options=(
                    "free space for one more copy of it, there and in the folder for temporary files ($SQLITE_TMPDIR)",
                    "repeat the call: the erased content stays erased",
                ),
            ) from self._rewrite_error

    async def _clean(self, *, rewrite: bool) -> None:
        """Let the writer empty the write-ahead log, after rewriting the whole file if `rewrite` is set."""

        def work(_connection: apsw.Connection) -> None:
            self._wal_stale, self._retry_at, self._rewrite_requested = True, 0.0, rewrite

        await self._file.write(work)

    def _find_repeating_values(self, connection: apsw.Connection, texts: Sequence[bytes]) -> list[str]:
        """Return where the key-value memory of this tenant repeats erased content."""
        return find_repeating_values(
            connection.execute(self._tables.sql["left_values"], (self._tables.tenant,)), texts
        )

    def _find_traces(self, connection: apsw.Connection, traces: Traces) -> list[str]:
        """Return where the files contain texts that no row contains any more.

        Consecutive chunks overlap, so that a text across their border is found.
        """
        found_at: dict[bytes, str] = {}
        for file in (self._file.path, self._file.path.with_name(self._file.path.name + "-wal")):
            overlap, start = b"", 0
            for data in _bytes_of(file, raw=file is not self._file.path):
                for piece, position in traces.find(overlap + data).items():
                    found_at.setdefault(piece, f"{file.name}: at byte {start - len(overlap) + position}")
                start += len(data)
                overlap = (overlap + data)[1 - traces.longest :]
        if found_at:
            for text in self._stored_texts(connection):
                for piece in traces.find(text):
                    found_at.pop(piece, None)
        return list(found_at.values())

    def _stored_texts(self, connection: apsw.Connection) -> Iterator[bytes]:
        """Yield the texts of all rows in blocks of about `CHUNK` bytes, in which the search for residue looks."""
        texts: list[bytes] = []
        size = 0
        for (text,) in connection.execute(self._tables.sql["stored_texts"]):
            texts.append(text.encode())
            size += len(texts[-1])
            if size >= CHUNK:
                yield b"\n".join(texts)
                texts, size = [], 0
        yield b"\n".join(texts)


def _bytes_of(file: Path, *, raw: bool) -> Iterator[bytes]:
    """Yield the bytes of a file; of a database by SQLite: closing it otherwise would drop the locks of this process."""
    if raw:
        with suppress(FileNotFoundError), file.open("rb") as opened:
            while data := opened.read(CHUNK):
                yield data
        return
    flags: list[Any] = [apsw.SQLITE_OPEN_MAIN_DB | apsw.SQLITE_OPEN_READONLY, 0]
    database = apsw.VFSFile("", str(file), flags)
    try:
        size = database.xFileSize()
        for start in range(0, size, CHUNK):
            yield database.xRead(min(CHUNK, size - start), start)
    finally:
        database.xClose()
