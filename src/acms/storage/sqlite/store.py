"""The embedded store: every log in one SQLite database; `SQLiteStorage` keeps it in a file."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial

import apsw

from acms.errors import ACMSError, ValidationError
from acms.log.encoding import Entropy
from acms.log.validation import validate_name
from acms.model import (
    Append,
    Context,
    ContextDraft,
    ContextQuery,
    Derived,
    Done,
    Durability,
    Entry,
    Failed,
    Head,
    Hit,
    Job,
    JobQuery,
    Json,
    Kind,
    Lease,
    Migration,
    Page,
    Receipt,
    Record,
    Retry,
    Search,
    SessionHead,
    State,
)
from acms.results import Rewriting, SessionPage
from acms.storage import append_rules, handles, records
from acms.storage.append_rules import Read
from acms.storage.outbox import Outbox, own_name
from acms.storage.sessions import read_session_page
from acms.storage.sql import load_queries
from acms.storage.sqlite.append import Appender
from acms.storage.sqlite.contexts import Contexts
from acms.storage.sqlite.database import CommitHooks, Database
from acms.storage.sqlite.erase import Eraser, FileEraser
from acms.storage.sqlite.file import SQLiteFile
from acms.storage.sqlite.jobs import JobQueue
from acms.storage.sqlite.kv import DatabaseKV
from acms.storage.sqlite.records import Records
from acms.storage.sqlite.tables import DerivedRows, Tables

INLINE_ROWS = 512
"""Reads of at most this many entries run on the event loop."""


class DatabaseStorage(ABC):
    """A store in a SQLite database, wherever that lies."""

    def __init__(
        self,
        database: Database,
        *,
        tenant: str,
        durability: Durability,
        clock: Callable[[], datetime],
        entropy: Entropy,
    ) -> None:
        self.durability: Durability = durability
        self.tenant = validate_name(tenant, "tenant")
        self._database = database
        self._tables = Tables(self.tenant, load_queries("sqlite"))
        self._contexts = Contexts(self._tables, clock=clock, entropy=entropy)
        self._jobs = JobQueue(self._tables, clock)
        self._appender = Appender(self._tables, self._jobs, durability=durability, entropy=entropy)
        self._derived = DerivedRows(self._tables)
        self._records = Records(self._tables)
        self._eraser = Eraser(self._tables, clock)
        self._own = DatabaseKV(database, own_name(self.tenant), clock, entropy)
        self._outbox = Outbox(self, self._own)
        database.hooks = CommitHooks(self._appender.write_together, self._appender.forget)

    async def __aexit__(self, *error: object) -> None:
        """Let go of the handle."""
        await handles.release_handle(self)

    @abstractmethod
    async def aclose(self) -> None:
        """Release what the handle has open; the next call opens it again."""

    # ── contexts ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def create(self, context: ContextDraft) -> Context:
        """Create a context, or return the live one with the same namespace and key."""
        return await self._database.write(lambda writer: self._contexts.create(writer, context))

    async def context(self, id_or_key: str, *, namespace: str = "default") -> Context:
        """Return a context by its id or by the key of a live one."""
        return await self._database.read(lambda reader: self._contexts.find(reader, id_or_key, namespace))

    async def seal_fits(self, context: str) -> bool:
        """Return whether a context is as ACMS wrote it; true of one that was stored before there were seals."""
        return await self._database.read(lambda reader: self._contexts.seal_fits(reader, context))

    async def contexts(self, query: ContextQuery) -> Page[Context]:
        """List contexts, newest first."""
        return await self._database.read(
            lambda reader: self._contexts.page(reader, query), large=bool(query.where)
        )

    sessions = read_session_page

    async def session_page(self, query: ContextQuery) -> SessionPage:
        """List contexts with the state of their logs, newest first."""
        return await self._database.read(
            lambda reader: self._contexts.sessions(reader, query), large=bool(query.where)
        )

    async def heads(self, namespace: str) -> list[SessionHead]:
        """Return the state of each live context of a namespace, oldest first."""
        return await self._database.read(lambda reader: self._contexts.heads(reader, namespace))

    async def heads_of(self, contexts: Sequence[str]) -> list[Head | None]:
        """Return the heads of contexts in their order; None for one that is not there, or was deleted."""
        return await self._database.read(lambda reader: self._tables.heads(reader, contexts))

    async def settings(self, context: str, change: Mapping[str, Json], *, rev: int) -> Context:
        """Merge a change into the settings if they are still at `rev`."""
        return await self._database.write(
            lambda writer: self._contexts.change_settings(writer, context, change, rev)
        )

    async def restore(self, context: Context, entries: AsyncIterator[Entry]) -> None:
        """Write a context verbatim, a batch a commit; resumes after the last stored version."""
        head = await self._database.write(lambda writer: self._contexts.restore(writer, context))
        async for batch in append_rules.whole_appends(context, head, entries):
            await self._database.write(partial(self._appender.restore, restored=context, entries=batch))

    # ── the log ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def head(self, context: str) -> Head:
        """Return the head of the log."""
        return await self._database.read(lambda reader: self._tables.log(reader, context).head)

    async def append(self, ops: Sequence[Append]) -> list[Receipt | ACMSError]:
        """Append; each operation is atomic on its own, all waiting ones share a commit."""
        return await self._outbox.append(ops, self._append)

    async def _append(self, ops: Sequence[Append]) -> list[Receipt | ACMSError]:
        return await self._database.write_all([self._appender.prepare(op) for op in ops])

    def own_values(self) -> DatabaseKV:
        """Return ACMS's own data about the tenant, in the same database."""
        return self._own

    async def read(
        self,
        context: str,
        *,
        at: int | None = None,
        after: int = 0,
        before: int | None = None,
        kinds: Sequence[Kind] | None = None,
        replacing: bool = False,
        newest: int | None = None,
        limit: int | None = None,
        deleted: bool = False,
    ) -> list[Entry]:
        """Read entries, ascending; inherited ones too."""
        append_rules.check_read(newest, limit)
        request = Read(at, after, before, kinds, replacing, newest, limit, deleted)

        def work(reader: apsw.Connection) -> list[Entry]:
            log = self._tables.log(reader, context, deleted=deleted)
            return self._tables.entries(reader, log, request)

        return await self._database.read(work, large=not request.at_most(INLINE_ROWS))

    async def get(self, ids: Sequence[str]) -> list[Entry | None]:
        """Return entries by id, with None for ids that do not exist."""
        return await self._database.read(
            lambda reader: self._tables.entries_by_id(reader, ids), large=len(ids) > INLINE_ROWS
        )

    async def blank(
        self, context: str, versions: Sequence[int], *, to: State, audit: Mapping[str, Json]
    ) -> int:
        """Delete the content of entries permanently, in every lineage."""
        if to is State.LIVE:
            raise ValidationError("must be expired or erased", field="to")
        return await self._database.write(
            lambda writer: self._eraser.blank(writer, context, versions, to=to, audit=audit)
        )

    async def find_messages(self, times: Sequence[datetime], keys: Sequence[str]) -> list[str]:
        """Return the ids of the tenant's messages with content that have one of these times or keys."""
        return await self._database.read(
            lambda connection: self._eraser.find_messages(connection, times, keys), large=True
        )

    # ── derived rows and search ─────────────────────────────────────────────────────────────────────────────────────

    async def put_derived(self, context: str, rows: Sequence[Derived], *, wait: bool = True) -> int:
        """Store derived rows; those of blanked versions are dropped."""
        if wait:
            return await self._database.write(lambda writer: self._derived.put(writer, context, rows))
        await self._database.defer(lambda writer: self._derived.put(writer, context, rows))
        return len(rows)

    async def derived(
        self, context: str, space: str, *, after: int = 0, at: int | None = None
    ) -> list[Derived]:
        """Return the derived rows of one space by sequence number, from every context of the lineage."""
        is_small = after > 0 and (await self.head(context)).derived - after <= INLINE_ROWS
        return await self._database.read(
            lambda reader: self._derived.read(reader, context, space, after=after, at=at), large=not is_small
        )

    async def missing(
        self, space: str, *, context: str | None = None, limit: int, after: int = 0
    ) -> list[tuple[str, int]]:
        """Return live messages, facts and summaries that have no row in the space."""
        append_rules.check_read(None, limit)
        return await self._database.read(
            lambda reader: self._derived.missing(reader, space, context, limit=limit, after=after), large=True
        )

    async def spaces(self, context: str) -> list[str]:
        """Return the names of the spaces in which a context has its own derived rows."""
        return await self._database.read(lambda reader: self._derived.spaces(reader, context))

    async def stray_rows(self, context: str) -> list[tuple[str, int]]:
        """Return (space, version) of a context's own derived rows that belong to no entry, or to an erased one."""
        return await self._database.read(lambda reader: self._derived.strays(reader, context), large=True)

    async def delete_stray_rows(self, context: str) -> int:
        """Delete the rows that `stray_rows` returns; return their number, counted per space and version."""
        return await self._database.write(lambda writer: self._derived.delete_strays(writer, context))

    async def search(self, query: Search) -> list[Hit]:
        """Search facts, summaries and marked messages across the live contexts of a namespace."""
        return await self._database.read(lambda reader: self._derived.search(reader, query), large=True)

    # ── records ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def record(self, context: str, name: str) -> Record | None:
        """Return the record a context itself has under a name."""
        valid_name = records.validate_record_name(name)
        return await self._database.read(lambda reader: self._records.get(reader, context, valid_name))

    async def put_record(self, context: str, name: str, data: Mapping[str, Json], *, rev: int) -> Record:
        """Store a record if it is still at `rev`."""
        valid_name, text = records.validate_record_name(name), records.serialize_record_data(data, rev)
        return await self._database.write(
            lambda writer: self._records.put(writer, context, valid_name, text, rev)
        )

    # ── jobs ────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def claim(self, kinds: Sequence[str], *, lease: timedelta, limit: int = 1) -> list[Lease]:
        """Take due jobs, oldest first."""
        # A worker that finds no job takes no write lock and syncs no disk, so idle workers cost little.
        has_due, has_future_job = await self._database.read(
            lambda reader: self._jobs.check_due(reader, kinds, limit)
        )
        if not has_due:
            return []
        return await self._database.write(
            lambda writer: self._jobs.claim(
                writer, kinds, lease=lease, limit=limit, has_future_job=has_future_job
            )
        )

    async def extend(self, lease: Lease, *, by: timedelta) -> Lease:
        """Prolong a lease."""
        return await self._database.write(lambda writer: self._jobs.extend(writer, lease, by))

    async def settle(self, lease: Lease, outcome: Retry | Failed | Done) -> Job:
        """End an attempt that has no effect on the log."""
        return await self._database.write(lambda writer: self._jobs.settle(writer, lease, outcome))

    async def jobs(self, query: JobQuery) -> Page[Job]:
        """List jobs, newest first."""
        return await self._database.read(lambda reader: self._jobs.page(reader, query))


class SQLiteStorage(DatabaseStorage):
    """A store in one SQLite file.

    `durability` is "disk" (default: nothing acknowledged is lost in a power cut) or "relaxed" (the last commits may
    be). `read_only` never creates, migrates or changes anything, also on a read-only file system.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        tenant: str = "default",
        durability: Durability = "disk",
        read_only: bool = False,
        busy_seconds: float = 10.0,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        entropy: Entropy = os.urandom,
    ) -> None:
        self._file = SQLiteFile(
            path, durability=durability, read_only=read_only, busy_seconds=busy_seconds, clock=clock
        )
        super().__init__(self._file, tenant=tenant, durability=durability, clock=clock, entropy=entropy)
        self.path = self._file.path
        self.read_only = read_only
        self._file_eraser = FileEraser(self._file, self._tables, self._eraser)
        self._file.hooks.after_commit = self._file_eraser.after_commit

    def __repr__(self) -> str:
        mode = ", read_only=True" if self.read_only else ""
        return f"{type(self).__name__}({str(self.path)!r}, tenant={self.tenant!r}{mode})"

    async def __aenter__(self) -> SQLiteStorage:
        """Keep the handle open until the block ends."""
        handles.retain_handle(self)
        await self._file.open()
        return self

    async def aclose(self) -> None:
        """Finish queued work and close the file."""
        await self._file.aclose()

    # ── erasing ───────────────────────────────────────────────────────────────────────────────────────────────────

    #: Where bytes of erased content stay until a rewrite: nowhere, as deleted rows are overwritten at once.
    until_rewritten: tuple[str, ...] = ()
    searches_bytes = True

    async def residue(self, ids: Sequence[str], texts: Sequence[bytes]) -> list[str]:
        """Return the remains of erased entries in the file, in words without their content.

        Checks the keys and derived rows of the ids, values that repeat a text, and every byte of the file and its
        write-ahead log for the texts. A text that another row still contains, of any tenant, is no residue; one of less
        than eight bytes is not searched for. When one is found, the file is rewritten once and searched again.
        """
        return await self._file_eraser.residue(ids, texts)

    async def rewrite(self, contexts: Sequence[str], texts: Sequence[bytes]) -> Rewriting:
        """Rewrite the whole file without erased content, and empty its write-ahead log.

        Needs disk space for a copy. `StorageFullError` and `StorageError` name the file, which is then
        unchanged.
        """
        del contexts, texts  # the whole file; it is searched by `residue`
        await self._file_eraser.rewrite()
        return Rewriting(rewritten=(self.path.name,))

    # ── the file ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def migrations(self, *, partitions: int | None = None) -> list[Migration]:
        """Return every step of the schema; the file is read, or left alone where there is none."""
        return await self._file.migrations(partitions)

    async def migrate(
        self, *, partitions: int | None = None, progress: Callable[[Migration], None] | None = None
    ) -> list[Migration]:
        """Open the file, which applies the missing migrations; return the applied ones."""
        return await self._file.migrate(partitions, progress)

    async def backup(
        self, to: str | os.PathLike[str], *, progress: Callable[[int, int], None] | None = None
    ) -> None:
        """Copy the whole file while it is in use; `progress` receives (pages done, pages in all)."""
        await self._file.backup(to, progress)

    async def integrity(self) -> list[str]:
        """Return the problems that SQLite finds in the file; empty if there are none."""
        return await self._file.integrity()

    async def commits(self) -> int:
        """Return a number that changes with every commit of another connection than the one that reads here."""
        return await self._file.read(lambda reader: reader.pragma("data_version"))


SQLiteBackend = SQLiteStorage
"""The name that the implementation plan gave it."""
