"""The scale-out store: the same logs in a PostgreSQL database, for many processes and hosts."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime, timedelta
from typing import NamedTuple, Self

from acms.errors import ACMSError, ValidationError
from acms.log.encoding import Entropy
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
)  # fmt: skip
from acms.results import Rewriting, SessionPage
from acms.runtime.loops import PerLoop
from acms.storage import handles, records
from acms.storage.append_rules import Read
from acms.storage.kv_base import Clock, utc_now
from acms.storage.outbox import Outbox, own_name
from acms.storage.postgres.append import Appender
from acms.storage.postgres.contexts import Contexts
from acms.storage.postgres.database import Database
from acms.storage.postgres.entries import DerivedRows, Feed, Reader
from acms.storage.postgres.erase import Eraser
from acms.storage.postgres.jobs import JobQueue
from acms.storage.postgres.kv import PostgresKV
from acms.storage.postgres.migrate import apply_migrations, plan_migrations
from acms.storage.postgres.pool import Pool
from acms.storage.postgres.records import Records
from acms.storage.postgres.rewrite import Rewriter
from acms.storage.postgres.search import Searcher
from acms.storage.sessions import read_session_page


class _Outgoing(NamedTuple):
    """The writers of one event loop, which gather work before it is sent."""

    appender: Appender
    derived: DerivedRows
    jobs: JobQueue


class PostgresStorage:
    """A store in a PostgreSQL database (15 or newer), in the schema `acms`, which it makes where there is none.

    `durability` is what the server gives when it is left out; "relaxed", "disk" or "quorum" ask for it, and are refused
    when the server cannot. A lost connection, a failover and a conflict of transactions are tried again for
    `retry_seconds`, where the append has keys, an expectation or a lease, so that it cannot be written twice. With
    `hints=True` workers of other processes that listen are told when jobs were enqueued. `read_only` never creates,
    migrates or changes anything: every transaction is a read-only one.
    """

    def __init__(
        self,
        dsn: str | Pool,
        *,
        tenant: str = "default",
        durability: Durability | None = None,
        pool_size: int = 10,
        retry_seconds: float = 30.0,
        statement_seconds: float = 30.0,
        hints: bool = False,
        read_only: bool = False,
        clock: Clock = utc_now,
        entropy: Entropy = os.urandom,
    ) -> None:
        if pool_size < 1:
            raise ValidationError("must be at least 1", field="pool_size")
        pool = Pool.from_dsn(
            dsn,
            size=pool_size,
            patience=retry_seconds,
            statement_seconds=statement_seconds,
            read_only=read_only,
        )
        self._db = db = Database(pool, tenant, durability=durability, clock=clock, entropy=entropy)
        self.tenant = db.tenant
        self._contexts, self._reader, self._records = Contexts(db), Reader(db), Records(db)
        self._eraser, self._searcher, self._feed = Eraser(db), Searcher(db), Feed(db)
        self._hints = hints
        patience = retry_seconds + statement_seconds
        own = own_name(db.tenant)
        self._own = PostgresKV(pool, tenant=own, timeout_seconds=patience, clock=clock, entropy=entropy)
        self._outbox = Outbox(self, self._own)
        #: The queues of each event loop: appends, derived rows and jobs that wait to be sent.
        self._loops = PerLoop(self._outgoing)

    def _outgoing(self) -> _Outgoing:
        jobs = JobQueue(self._db, hints=self._hints)
        return _Outgoing(Appender(self._db, jobs), DerivedRows(self._db), jobs)

    @property
    def _appender(self) -> Appender:
        return self._loops.here().appender

    @property
    def _derived(self) -> DerivedRows:
        return self._loops.here().derived

    @property
    def _jobs(self) -> JobQueue:
        return self._loops.here().jobs

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._db.pool.name}, tenant={self.tenant!r})"

    @property
    def durability(self) -> Durability:
        """The failures that an acknowledged append survives: read from the server when the handle is opened."""
        return self._db.durability

    def for_tenant(self, tenant: str) -> PostgresStorage:
        """Return a handle on the data of another tenant that shares the connections of this one."""
        db, hints = self._db, self._hints
        return PostgresStorage(
            db.pool,
            tenant=tenant,
            durability=db.requested_durability,
            hints=hints,
            clock=db.clock,
            entropy=db.entropy,
        )

    def kv(self) -> PostgresKV:
        """Return the key-value memory of this tenant, over the connections of this handle."""
        return PostgresKV(self._db.pool, tenant=self.tenant, clock=self._db.clock, entropy=self._db.entropy)

    async def __aenter__(self) -> Self:
        """Keep the handle open until the block ends."""
        handles.retain_handle(self)
        await self._db.open()
        return self

    async def __aexit__(self, *error: object) -> None:
        """Let go of the handle."""
        await handles.release_handle(self)

    async def aclose(self) -> None:
        """Finish pending work and release the connections; the last handle closes them."""
        await self._derived.flush()
        await self._outbox.wait_until_idle()
        await self._appender.close()
        await self._own.aclose()
        await self._db.close()

    # ── the schema ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def migrations(self, *, partitions: int | None = None) -> list[Migration]:
        """Return every step of the schema, also of an empty database."""
        return await plan_migrations(self._db.pool, partitions=partitions)

    async def migrate(
        self, *, partitions: int | None = None, progress: Callable[[Migration], None] | None = None
    ) -> list[Migration]:
        """Apply the missing migrations; return the applied ones."""
        if partitions is None:
            return await apply_migrations(self._db.pool, progress=progress)
        # The plan refuses a number of partitions for a store that has some already.
        await plan_migrations(self._db.pool, partitions=partitions)
        return await apply_migrations(self._db.pool, partitions=partitions, progress=progress)

    # ── contexts ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def create(self, context: ContextDraft) -> Context:
        """Create a context, or return the live one with the same namespace and key."""
        return await self._contexts.create(context)

    async def context(self, id_or_key: str, *, namespace: str = "default") -> Context:
        """Return a context by its id or by the key of a live one."""
        return await self._contexts.context(id_or_key, namespace=namespace)

    async def seal_fits(self, context: str) -> bool:
        """Return whether a context is as ACMS wrote it; true of one that was stored before there were seals."""
        return await self._contexts.seal_fits(context)

    async def contexts(self, query: ContextQuery) -> Page[Context]:
        """List contexts, newest first."""
        return await self._contexts.contexts(query)

    sessions = read_session_page

    async def session_page(self, query: ContextQuery) -> SessionPage:
        """List contexts with the state of their logs, newest first."""
        return await self._contexts.sessions(query)

    async def heads(self, namespace: str) -> list[SessionHead]:
        """Return the state of each live context of a namespace, oldest first."""
        return await self._contexts.heads(namespace)

    async def heads_of(self, contexts: Sequence[str]) -> list[Head | None]:
        """Return the heads of contexts in their order; None for one that is not there, or was deleted."""
        return await self._contexts.heads_of(contexts)

    async def settings(self, context: str, change: Mapping[str, Json], *, rev: int) -> Context:
        """Merge a change into the settings if they are still at `rev`."""
        return await self._contexts.change_settings(context, change, rev=rev)

    async def restore(self, context: Context, entries: AsyncIterator[Entry]) -> None:
        """Write a context verbatim, a batch a commit; resumes after the last stored version."""
        await self._contexts.restore(context, entries)

    # ── the log ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def head(self, context: str) -> Head:
        """Return the head of the log."""
        return (await self._db.log_state(context)).head

    async def append(self, ops: Sequence[Append]) -> list[Receipt | ACMSError]:
        """Append; each operation is atomic on its own, operations that wait together share a commit."""
        return await self._outbox.append(ops, self._append)

    async def _append(self, ops: Sequence[Append]) -> list[Receipt | ACMSError]:
        return await self._appender.append(ops)

    def own_values(self) -> PostgresKV:
        """Return ACMS's own data about the tenant, over the connections of this handle."""
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
        return await self._reader.read(
            context, Read(at, after, before, kinds, replacing, newest, limit, deleted)
        )

    async def get(self, ids: Sequence[str]) -> list[Entry | None]:
        """Return entries by id, with None for ids that do not exist."""
        return await self._reader.get(ids)

    async def blank(
        self, context: str, versions: Sequence[int], *, to: State, audit: Mapping[str, Json]
    ) -> int:
        """Delete the content of entries permanently, in every lineage."""
        return await self._eraser.blank(context, versions, to=to, audit=audit)

    async def residue(self, ids: Sequence[str], texts: Sequence[bytes]) -> list[str]:
        """Return the remains of erased entries outside the log: keys, derived rows, and values that repeat a text.

        This covers rows only. The server's files keep old versions of them until `rewrite`, which also searches bytes.
        """
        return await self._eraser.residue(ids, texts)

    async def find_messages(self, times: Sequence[datetime], keys: Sequence[str]) -> list[str]:
        """Return the ids of the tenant's messages with content that have one of these times or keys."""
        return await self._eraser.find_messages(times, keys)

    until_rewritten: tuple[str, ...] = (
        "old versions of rows in the files and the write-ahead log of the server: acms erase --rewrite",
    )

    async def rewrite(self, contexts: Sequence[str], texts: Sequence[bytes]) -> Rewriting:
        """Rewrite the tables that held the content of some contexts, so that their files keep no old versions of rows.

        Rewrites table by table, each under a lock that makes readers and writers wait, and needs disk space for one
        more copy. Waits until no transaction sees the old versions any more, at most as long as this handle's patience.
        As a superuser it empties the write-ahead log and searches every byte of both for the texts; `unreached` lists
        the steps other users cannot do. `StorageError` names a table that could not be rewritten and is unchanged;
        repeat to continue.
        """
        return await Rewriter(self._db).rewrite(contexts, texts)

    async def search(self, query: Search) -> list[Hit]:
        """Search facts, summaries and marked messages across the live contexts of a namespace."""
        return await self._searcher.search(query)

    async def feed(self, after: str | None = None, *, limit: int = 1000) -> Page[Entry]:
        """Return entries of all logs of the tenant that were appended since a cursor, and the next cursor.

        No entry is missed, however late its transaction commits; the entries of one log come in the order of their
        versions. Delivery is at least once: a consumer that did not keep the new cursor gets the same page again. A
        page may be empty, but its cursor is never None and must be kept. An entry is returned as it is now, so one that
        was erased meanwhile is blank; erasing or expiring an entry does not add it to the feed. A long transaction
        elsewhere on the server delays the feed, and loses nothing.

        `ValidationError` for a cursor that is none, or of another server: start again from None.
        """
        return await self._feed.page(after, limit)

    # ── derived rows ────────────────────────────────────────────────────────────────────────────────────────────────

    async def put_derived(self, context: str, rows: Sequence[Derived], *, wait: bool = True) -> int:
        """Store derived rows; those of blanked versions are dropped."""
        return await self._derived.put(context, rows, wait=wait)

    async def derived(
        self, context: str, space: str, *, after: int = 0, at: int | None = None
    ) -> list[Derived]:
        """Return the derived rows of one space by sequence number, from every context of the lineage."""
        return await self._derived.read(context, space, after=after, at=at)

    async def missing(
        self, space: str, *, context: str | None = None, limit: int, after: int = 0
    ) -> list[tuple[str, int]]:
        """Return live messages, facts and summaries that have no row in the space."""
        return await self._derived.missing(space, context=context, limit=limit, after=after)

    async def spaces(self, context: str) -> list[str]:
        """Return the names of the spaces in which a context has derived rows of its own."""
        return await self._derived.spaces(context)

    async def stray_rows(self, context: str) -> list[tuple[str, int]]:
        """Return (space, version) of a context's own derived rows that belong to no entry, or to an erased one."""
        return await self._derived.strays(context)

    async def delete_stray_rows(self, context: str) -> int:
        """Delete the rows that `stray_rows` returns; return their number, counted per space and version."""
        return await self._derived.delete_strays(context)

    # ── records ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def record(self, context: str, name: str) -> Record | None:
        """Return the record a context itself has under a name."""
        return await self._records.get(context, records.validate_record_name(name))

    async def put_record(self, context: str, name: str, data: Mapping[str, Json], *, rev: int) -> Record:
        """Store a record if it is still at `rev`; the commit waits for no standby."""
        return await self._records.put(
            context, records.validate_record_name(name), records.serialize_record_data(data, rev), rev
        )

    # ── jobs ────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def claim(self, kinds: Sequence[str], *, lease: timedelta, limit: int = 1) -> list[Lease]:
        """Take due jobs, oldest first; workers that claim at once take different ones."""
        return await self._jobs.claim(kinds, lease=lease, limit=limit)

    async def extend(self, lease: Lease, *, by: timedelta) -> Lease:
        """Prolong a lease."""
        return await self._jobs.extend(lease, by=by)

    async def settle(self, lease: Lease, outcome: Retry | Failed | Done) -> Job:
        """End an attempt that has no effect on the log."""
        return await self._jobs.settle(lease, outcome)

    async def jobs(self, query: JobQuery) -> Page[Job]:
        """List jobs, newest first."""
        return await self._jobs.jobs(query)

    def hints(self, wake: Callable[[], object]) -> AbstractAsyncContextManager[None]:
        """Call `wake`, inside the block, when a handle opened with `hints=True` reports enqueued jobs.

        Hints are optional: without them, jobs only wait until the next poll. This takes a connection of its own, and is
        not tried through a pooler in transaction mode, which would give the connection to others.
        """
        return self._jobs.listen(wake)


PostgresBackend = PostgresStorage
"""The name that the implementation plan gave it."""
