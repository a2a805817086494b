"""The embedded store: every log in one SQLite file, safe for many sessions and processes."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any

import apsw

from acms.errors import ConflictError, CorruptRecordError, ValidationError
from acms.log.entry_json import dump, load_mapping
from acms.log.hash_chain import Entropy, context_id, genesis, micros, verify
from acms.log.validation import name
from acms.model import Context, ContextDraft, Derived, Durability, Entry, Head, Hit, Kind, Search, State
from acms.storage import append_rules, handles, search
from acms.storage.sql import (
    VERSION_BITS,
    VERSION_MASK,
    draft_columns,
    queries,
    read_context,
    read_derived,
    read_entry,
    write_parts,
)
from acms.storage.sqlite.append import SQLiteAppends, span

Row = Sequence[Any]

INLINE_ROWS = 512
"""Reads of at most this many entries run on the event loop."""
COVERAGE = 1024
"""Versions counted at once when looking for those without a derived row."""


class SQLiteStorage(SQLiteAppends):
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
        super().__init__(
            path, durability=durability, read_only=read_only, busy_seconds=busy_seconds, clock=clock
        )
        self.tenant = name(tenant, "tenant")
        self._sql = queries("sqlite")
        self._entropy = entropy
        self._heads = {}

    async def __aenter__(self) -> SQLiteStorage:
        """Keep the handle open until the block ends."""
        handles.retain(self)
        await self._open()
        return self

    async def __aexit__(self, *error: object) -> None:
        """Let go of the handle."""
        await handles.release(self)

    # ── contexts ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def create(self, context: ContextDraft) -> Context:
        """Create a context, or return the live one with the same namespace and key."""

        def work(connection: apsw.Connection) -> Context:
            if context.key is not None:
                row = self._row(connection, "context_by_key", (self.tenant, context.namespace, context.key))
                if row is not None:
                    return read_context(row)
            id = context_id(self._entropy)
            values = {
                **self._fresh(id, context),
                "namespace": name(context.namespace, "namespace"),
                "key": None if context.key is None else name(context.key, "key"),
                "settings_rev": 0,
                "deleted_at": None,
            }
            if context.parent is not None:
                values.update(self._forked(connection, context.parent, context.fork))
                if context.inherit:
                    (row,) = self._rows(connection, "settings", (values["ref"],))
                    settings = append_rules.inherited(load_mapping(row[0]), context)
                    values["settings"] = dump(settings) if settings else None
            connection.execute(self._sql["insert_context"], values).fetchall()
            if context.parent is None:
                connection.execute(self._sql["root_itself"], (connection.last_insert_rowid(),)).fetchall()
            row = self._row(connection, "context_by_id", (self.tenant, id))
            assert row is not None
            return read_context(row)

        return await self._write(work)

    def _fresh(self, id: str, context: ContextDraft | Context) -> dict[str, Any]:
        """Return the columns of a context without entries."""
        return {
            "tenant": self.tenant,
            "id": id,
            "ref": None,
            "parent": None,
            "fork": None,
            "lineage": "[]",
            "counter": context.counter,
            "settings": dump(dict(context.settings)) if context.settings else None,
            "created_at": micros(context.created_at),
            "version": 0,
            "messages": 0,
            "tokens": 0,
            "last_message": None,
            "rewrites": 0,
            "chain": genesis(id),
        }

    def _forked(
        self, connection: apsw.Connection, parent: str, fork: int | None, *, deleted: bool = False
    ) -> dict[str, Any]:
        """Return the columns of a fork: everything it inherits is a number, nothing is copied."""
        ref, head, lineage = self._head(connection, parent, deleted=deleted)
        at = head.version if fork is None else fork
        if not 0 <= at <= head.version:
            raise ValidationError(f"must be from 0 to {head.version}, was {at}", field="fork")
        inherited = append_rules.inherit(parent, lineage, at)
        found = {
            "ref": ref,
            "parent": parent,
            "fork": at,
            "lineage": dump(inherited),
            "version": at,
            "messages": head.messages,
            "tokens": head.tokens,
            "last_message": head.last_message,
            "rewrites": 0,
            "chain": head.chain if at else genesis(parent),
        }
        if at < head.version:  # else the head says it all
            newest = self._select(connection, parent, lineage, ref, at, at)
            said = [entry for entry in newest if entry.kind is Kind.MESSAGE] or self._select(
                connection, parent, lineage, ref, 1, at, newest=1, kinds=(Kind.MESSAGE,)
            )
            found.update(
                messages=said[0].position if said else 0,
                tokens=said[0].total if said else 0,
                last_message=said[0].id if said else None,
                chain=newest[0].chain if newest else genesis(parent),
            )
        for owner, first, last in append_rules.segments(parent, lineage, 1, at) if head.rewrites else ():
            base = self._ref(connection, owner) << VERSION_BITS
            row = self._row(connection, "count_replacing", (base | first, base | last))
            assert row is not None
            found["rewrites"] += row[0]
        return found

    # ── the log ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def head(self, context: str) -> Head:
        """Return where the log stands."""
        return await self._read(lambda connection: self._head(connection, context)[1])

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

        def work(connection: apsw.Connection) -> list[Entry]:
            ref, head, lineage = self._head(connection, context, deleted=deleted)
            last = head.version
            if at is not None:
                last = min(last, at)
            if before is not None:
                last = min(last, before - 1)
            return self._select(
                connection, context, lineage, ref, after + 1, last,
                kinds=kinds, replacing=replacing, newest=newest, limit=limit,
            )  # fmt: skip

        bounded = min(n for n in (newest, limit, INLINE_ROWS + 1) if n is not None)
        if before is not None or at is not None:
            bounded = min(bounded, min(n for n in (before, at) if n is not None) - after)
        return await self._read(work, large=bounded > INLINE_ROWS)

    def _select(
        self,
        connection: apsw.Connection,
        context: str,
        lineage: Sequence[tuple[str, int]],
        ref: int,
        first: int,
        last: int,
        *,
        kinds: Sequence[Kind] | None = None,
        replacing: bool = False,
        newest: int | None = None,
        limit: int | None = None,
    ) -> list[Entry]:
        """Walk the segments of a lineage, from the end that the limit counts from."""
        table = "replacing" if replacing else "entries"
        if kinds is not None and not replacing and Kind.MESSAGE not in kinds:
            table = "others"
        left = newest if newest is not None else limit
        runs = append_rules.segments(context, lineage, first, last)
        found: list[Entry] = []
        for owner, low, high in reversed(runs) if newest is not None else runs:
            number = ref if owner == context else self._ref(connection, owner)
            parameters = span(number, low, high, kinds=kinds, limit=-1 if left is None else left - len(found))
            query = f"{table}_{'backward' if newest is not None else 'forward'}"
            # Fetched first: a cursor left open by a corrupt row would keep this connection in an old snapshot.
            found.extend([read_entry(row, owner) for row in self._rows(connection, query, parameters)])
            if left is not None and len(found) >= left:
                break
        if newest is not None:
            found.reverse()
        return found

    async def get(self, ids: Sequence[str]) -> list[Entry | None]:
        """Return entries by id, None for what does not exist."""
        return await self._read(partial(self._found, ids=ids), large=len(ids) > INLINE_ROWS)

    # ── derived rows ────────────────────────────────────────────────────────────────────────────────────────────────

    def _runs(
        self, connection: apsw.Connection, context: str, *, at: int | None = None
    ) -> tuple[int, Head, list[tuple[int, int, int]]]:
        """Return the ref, the head and the (ref of the owner, first, last) runs of a log."""
        ref, head, lineage = self._head(connection, context)
        last = head.version if at is None else min(at, head.version)
        runs = append_rules.segments(context, lineage, 1, last)
        refs = [ref if owner == context else self._ref(connection, owner) for owner, _, _ in runs]
        return ref, head, [(number, low, high) for number, (_, low, high) in zip(refs, runs, strict=True)]

    async def put_derived(self, context: str, rows: Sequence[Derived], *, wait: bool = True) -> int:
        """Store derived rows; those of blanked versions are dropped."""

        def work(connection: apsw.Connection) -> int:
            ref, head, runs = self._runs(connection, context)
            versions = {row.version for row in rows}
            places = [of << VERSION_BITS | n for of, low, high in runs for n in versions if low <= n <= high]
            live = {
                row & VERSION_MASK: row >> VERSION_BITS
                for (row,) in self._rows(connection, "live", (dump(places),))
            }
            kept = [row for row in rows if row.version in live]
            values = [
                (live[row.version], row.space, row.version, row.part, seq, row.start, row.end, row.data)
                for seq, row in enumerate(kept, head.derived + 1)
            ]
            connection.executemany(self._sql["put_derived"], values)
            connection.execute(self._sql["count_derived"], (head.derived + len(kept), ref)).fetchall()
            return len(kept)

        if wait:
            return await self._write(work)
        await self._ride(work)
        return len(rows)

    async def derived(
        self, context: str, space: str, *, after: int = 0, at: int | None = None
    ) -> list[Derived]:
        """Return the derived rows of one space by sequence number, whoever of a lineage stored them."""

        def work(connection: apsw.Connection) -> list[Derived]:
            _, head, runs = self._runs(connection, context, at=at)
            found: list[Derived] = []
            for of, low, high in runs:
                rows = connection.execute(self._sql["derived"], (of, space, after, head.derived, low, high))
                found += read_derived(rows, space)
            return found if len(runs) == 1 else sorted(found, key=lambda row: row.seq)

        few = after > 0 and (await self.head(context)).derived - after <= INLINE_ROWS
        return await self._read(work, large=not few)

    async def missing(
        self, space: str, *, context: str | None = None, limit: int, after: int = 0
    ) -> list[tuple[str, int]]:
        """Return live messages, facts and summaries that have no row in the space."""
        append_rules.check_read(None, limit)

        def work(connection: apsw.Connection) -> list[tuple[str, int]]:
            runs: Sequence[Row] = (
                self._rows(connection, "live_logs", (self.tenant,))
                if context is None
                else [(context, *run) for run in self._runs(connection, context)[2]]
            )
            found: list[tuple[str, int]] = []
            for id, number, start, end in runs:
                for low in range(max(start, after + 1), end + 1, COVERAGE):
                    if len(found) >= limit:
                        return found
                    block = (number, space, low, min(low + COVERAGE - 1, end))
                    if self._rows(connection, "count_covered", block)[0][0] <= block[3] - low:
                        rows = self._rows(connection, "missing", (*block, limit - len(found)))
                        found.extend((id, version) for (version,) in rows)
            return found

        return await self._read(work, large=True)

    # ── restoring, searching ────────────────────────────────────────────────────────────────────────────────────────

    async def restore(self, context: Context, entries: AsyncIterator[Entry]) -> None:
        """Write a context verbatim, a batch a commit; resumes after the last stored version."""
        head = await self._write(lambda connection: self._restore_context(connection, context))
        async for batch in append_rules.whole_appends(context, head, entries):
            await self._restore_batch(context, batch)

    def _restore_context(self, connection: apsw.Connection, context: Context) -> Head:
        row = self._row(connection, "context_by_id", (self.tenant, context.id))
        if row is not None:
            found = read_context(row)
            same = (found.namespace, found.key, found.lineage, found.created_at)
            if same != (context.namespace, context.key, context.lineage, context.created_at):
                raise ConflictError(f"{context.id} is another context here")
            return self._head(connection, context.id, deleted=True)[1]
        if context.key is not None and context.deleted_at is None:
            taken = self._row(connection, "context_by_key", (self.tenant, context.namespace, context.key))
            if taken is not None:
                raise ConflictError(
                    f"the session {context.key!r} exists here with another id",
                    options=("restore into another store",),
                )
        values = {
            **self._fresh(context.id, context),
            "namespace": context.namespace,
            "key": context.key,
            "settings_rev": context.settings_rev,
            "deleted_at": None if context.deleted_at is None else micros(context.deleted_at),
        }
        if context.parent is not None:
            if self._row(connection, "ref", (self.tenant, context.parent)) is None:
                raise ConflictError(f"the parent {context.parent} is not here", options=("restore it first",))
            values.update(self._forked(connection, context.parent, context.fork, deleted=True))
        connection.execute(self._sql["insert_context"], values).fetchall()
        if context.parent is None:
            connection.execute(self._sql["root_itself"], (connection.last_insert_rowid(),)).fetchall()
        return self._head(connection, context.id, deleted=True)[1]

    async def _restore_batch(self, restored: Context, entries: Sequence[Entry]) -> Head:
        context = restored.id

        def work(connection: apsw.Connection) -> Head:
            ref, head, lineage = self._head(connection, context, deleted=True)
            begun: list[Entry] = []
            chain, last = head.chain, head.version
            if (restored.fork or 0) < entries[0].batch <= last:  # the last export was cut within this append
                last = entries[0].batch - 1
                before = self._select(connection, context, lineage, ref, last, last)
                chain = before[0].chain if before else genesis(restored.parent or context)
                begun = self._select(connection, context, lineage, ref, last + 1, head.version)
            for version, wrong in verify([*begun, *entries], head=chain, version=last):
                raise CorruptRecordError(f"version {version} of {context}: {wrong}")
            messages, tokens, rewrites = append_rules.counts(entries)
            connection.executemany(
                self._sql["insert_entry"],
                [
                    (
                        ref << VERSION_BITS | entry.version, entry.kind.value, entry.position, entry.id[-6:],
                        entry.batch, entry.total, micros(entry.created_at), entry.tokens,
                        *draft_columns(entry),
                        None if entry.state is State.LIVE else entry.state.value, entry.salt, entry.digest,
                        entry.chain, entry.key, write_parts(entry.parts, entry.content), entry.content,
                    )
                    for entry in entries
                ],
            )  # fmt: skip
            for entry in entries:
                if entry.key is not None:
                    connection.execute(self._sql["insert_key"], (ref, entry.key, entry.version)).fetchall()
            said = [entry.id for entry in entries if entry.kind is Kind.MESSAGE]
            last = said[-1] if said else head.last_message
            values = (
                entries[-1].version, head.messages + messages, head.tokens + tokens, last,
                head.rewrites + rewrites, entries[-1].chain, ref,
            )  # fmt: skip
            connection.execute(self._sql["advance_restored"], values).fetchall()
            if any(entry.state is not State.LIVE for entry in entries):
                connection.execute(self._sql["note_blanks"], (ref,)).fetchall()
            return self._head(connection, context, deleted=True)[1]

        return await self._write(work)

    async def search(self, query: Search) -> list[Hit]:
        """Search facts, summaries and marked messages across the live contexts of a namespace."""

        def work(connection: apsw.Connection) -> list[Hit]:
            rows = self._rows(connection, "searchable", (self.tenant, query.namespace))
            vectors: list[tuple[str, int, bytes]] = []
            if query.vector is not None and query.space is not None:
                vectors = [
                    (id, version, data)
                    for id, version, data in self._rows(
                        connection, "searchable_vectors", (query.space, self.tenant, query.namespace)
                    )
                ]
            return search.hits(query, rows, vectors)

        return await self._read(work, large=True)
