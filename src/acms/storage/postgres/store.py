"""The scale-out store: the same logs in a PostgreSQL database, for many processes and hosts."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from acms.errors import ACMSError, ConflictError, CorruptRecordError, SessionNotFoundError
from acms.log.entry_json import dump
from acms.log.hash_chain import Entropy, genesis, micros, verify
from acms.model import Context, Derived, Durability, Entry, Head, Kind, State
from acms.observability.logging import log as tell
from acms.storage import append_rules
from acms.storage.postgres.kv import PostgresKV
from acms.storage.postgres.ops import COLUMNS
from acms.storage.postgres.pool import Connection, Pool
from acms.storage.postgres.search import PostgresSearch
from acms.storage.sql import draft_columns, read_context, read_derived, read_entry, write_parts

COVERAGE = 4096
"""Versions looked through at once for those without a derived row."""
ENDLESS = 1 << 62
"""Above every version."""
RIDE_SECONDS = 0.02
"""How long derived rows that nobody waits for are gathered."""


class PostgresStorage(PostgresSearch):
    """A store in a PostgreSQL database (15 or newer), in the schema `acms`, which it makes where there is none.

    `durability` is what the server gives when it is left out; "relaxed", "disk" or "quorum" ask for it, and are refused
    when the server cannot. A lost connection, a failover and a conflict of transactions are tried again for
    `retry_seconds`, where the append has keys, an expectation or a lease, so that it cannot be written twice. With
    `hints=True` workers of other processes that listen are told when jobs were enqueued.
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
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        entropy: Entropy = os.urandom,
    ) -> None:
        super().__init__(
            dsn,
            tenant=tenant,
            durability=durability,
            pool_size=pool_size,
            retry_seconds=retry_seconds,
            statement_seconds=statement_seconds,
        )
        self._clock = clock
        self._entropy = entropy
        self._hints = hints
        self._riding: dict[str, list[Derived]] = {}
        self._ride: asyncio.Task[None] | None = None
        self._hurry = asyncio.Event()

    def for_tenant(self, tenant: str) -> PostgresStorage:
        """Return a handle on the data of another tenant that shares the connections of this one."""
        return PostgresStorage(
            self._pool,
            tenant=tenant,
            durability=self._wanted,
            hints=self._hints,
            clock=self._clock,
            entropy=self._entropy,
        )

    def kv(self) -> PostgresKV:
        """Return the key-value memory of this tenant, over the connections of this handle."""
        return PostgresKV(self._pool, tenant=self.tenant, clock=self._clock, entropy=self._entropy)

    async def aclose(self) -> None:
        """Finish what is under way and let go of the connections."""
        await self._arrived()
        await super().aclose()

    # ── the log ─────────────────────────────────────────────────────────────────────────────────────────────────────

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
        lineage = self._lineages.get(context)
        known = lineage is not None  # then where the log stands can be asked for with what is read of it
        if lineage is None:
            _, lineage = await self._head_of(context, deleted=deleted)
        last = ENDLESS if at is None else min(at, ENDLESS)
        if before is not None:
            last = min(last, before - 1)
        table = "replacing" if replacing else "entries"
        if kinds is not None and not replacing and Kind.MESSAGE not in kinds:
            table = "others"
        query = f"{table}_{'backward' if newest is not None else 'forward'}"
        left = newest if newest is not None else limit
        values = {"kinds": None if kinds is None else [kind.value for kind in kinds], "limit": left}
        runs = append_rules.segments(context, lineage, after + 1, last)
        if newest is not None:
            runs = runs[::-1]
        found: list[Entry] = []
        while runs or known:
            # Of a limited read the next run may not be needed.
            some = runs if left is None else runs[:1]
            asked = [(query, {**values, "context": of, "first": low, "last": high}) for of, low, high in some]
            answers = await self._ask(*([("head", {"context": context})] if known else []), *asked)
            if known:
                self._read_head(context, answers.pop(0), deleted=deleted)
            for (owner, _, _), rows in zip(some, answers, strict=True):
                found.extend([read_entry(row, owner) for row in rows])
            known, runs = False, runs[len(some) :]
            if left is not None and len(found) >= left:
                break
        found = found[:left]
        if newest is not None:
            found.reverse()
        return found

    async def get(self, ids: Sequence[str]) -> list[Entry | None]:
        """Return entries by id, None for what does not exist."""
        return await self._found(ids)

    # ── derived rows ────────────────────────────────────────────────────────────────────────────────────────────────

    async def put_derived(self, context: str, rows: Sequence[Derived], *, wait: bool = True) -> int:
        """Store derived rows; those of blanked versions are dropped."""
        if not wait:
            await self._open()
            self._riding.setdefault(context, []).extend(rows)
            if self._ride is None or self._ride.done():
                self._hurry = asyncio.Event()
                self._ride = asyncio.ensure_future(self._bring(self._hurry))
            return len(rows)
        await self._arrived()
        return await self._put_derived(context, rows)

    async def _put_derived(self, context: str, rows: Sequence[Derived]) -> int:
        lineage = self._lineages.get(context)
        if lineage is None:
            _, lineage = await self._head_of(context)
        owners = {
            version: owner
            for owner, low, high in append_rules.segments(context, lineage, 1, ENDLESS)
            for version in {row.version for row in rows}
            if low <= version <= high
        }
        kept = [row for row in rows if row.version in owners]
        values = {
            "context": context,
            "owners": [owners[row.version] for row in kept],
            "versions": [row.version for row in kept],
            "spaces": [row.space for row in kept],
            "parts": [row.part for row in kept],
            "starts": [row.start for row in kept],
            "ends": [row.end for row in kept],
            "datas": [row.data for row in kept],
        }
        head, _, counted = await self._ask(
            ("head", {"context": context}), ("lock_root", {"context": context}), ("put_derived", values)
        )
        self._read_head(context, head)  # refuses a context that is deleted
        return int(counted[0][0])

    async def _bring(self, hurry: asyncio.Event) -> None:
        """Store what was gathered; what fails is missing, and computed again."""
        with suppress(TimeoutError):
            await asyncio.wait_for(hurry.wait(), RIDE_SECONDS)
        while self._riding:
            context, rows = next(iter(self._riding.items()))
            del self._riding[context]
            try:
                await self._put_derived(context, rows)
            except ACMSError as error:
                tell(logging.WARNING, "derived_rows_lost", error=type(error).__name__, rows=len(rows))

    async def _arrived(self) -> None:
        """Let what rides arrive first: whoever waits for a row asks next which ones are missing."""
        ride = self._ride
        if ride is not None and not ride.done():
            self._hurry.set()
            await asyncio.shield(ride)

    async def derived(
        self, context: str, space: str, *, after: int = 0, at: int | None = None
    ) -> list[Derived]:
        """Return the derived rows of one space by sequence number, whoever of a lineage stored them."""
        head, lineage = await self._head_of(context)
        last = head.version if at is None else min(at, head.version)
        runs = append_rules.segments(context, lineage, 1, last)
        values = {"space": space, "after": after, "upto": head.derived}
        found: list[Derived] = []
        for owner, low, high in runs:
            rows = await self._one("derived", {**values, "context": owner, "first": low, "last": high})
            found += read_derived(rows, space)
        return found if len(runs) == 1 else sorted(found, key=lambda row: row.seq)

    async def missing(
        self, space: str, *, context: str | None = None, limit: int, after: int = 0
    ) -> list[tuple[str, int]]:
        """Return live messages, facts and summaries that have no row in the space."""
        append_rules.check_read(None, limit)
        if context is None:
            runs = [(id, id, first, last) for id, first, last in await self._one("live_logs", {})]
        else:
            head, lineage = await self._head_of(context)
            runs = [(context, *run) for run in append_rules.segments(context, lineage, 1, head.version)]
        found: list[tuple[str, int]] = []
        for id, owner, start, end in runs:
            for low in range(max(start, after + 1), end + 1, COVERAGE):
                if len(found) >= limit:
                    return found
                values = {
                    "context": owner,
                    "space": space,
                    "first": low,
                    "last": min(low + COVERAGE - 1, end),
                }
                rows = await self._one("missing", {**values, "limit": limit - len(found)})
                found += [(id, version) for (version,) in rows]
        return found

    # ── restoring ───────────────────────────────────────────────────────────────────────────────────────────────────

    async def restore(self, context: Context, entries: AsyncIterator[Entry]) -> None:
        """Write a context verbatim, a batch a commit; resumes after the last stored version."""
        head = await self._restore_context(context)
        async for batch in append_rules.whole_appends(context, head, entries):
            await self._restore_batch(context, batch)

    async def _restore_context(self, context: Context) -> Head:
        rows = await self._one("context_by_id", {"context": context.id})
        if not rows:
            values = {
                **self._fresh(context.id, context),
                "namespace": context.namespace,
                "key": context.key,
                "settings_rev": context.settings_rev,
                "deleted_at": None if context.deleted_at is None else micros(context.deleted_at),
            }
            if context.parent is not None:
                try:
                    values.update(await self._forked(context.parent, context.fork, deleted=True))
                except SessionNotFoundError:
                    raise ConflictError(
                        f"the parent {context.parent} is not here", options=("restore it first",)
                    ) from None
            rows = await self._one("insert_context", values)
            if not rows:
                rows = await self._one("context_by_id", {"context": context.id})
            if not rows:
                raise ConflictError(
                    f"the session {context.key!r} exists here with another id",
                    options=("restore into another store",),
                )
        found = read_context(rows[0])
        same = (found.namespace, found.key, found.lineage, found.created_at)
        if same != (context.namespace, context.key, context.lineage, context.created_at):
            raise ConflictError(f"{context.id} is another context here")
        return (await self._head_of(context.id, deleted=True))[0]

    async def _restore_batch(self, restored: Context, entries: Sequence[Entry]) -> Head:
        context = restored.id

        async def work(connection: Connection) -> None:
            await self._rows(connection, "lock_context", {"context": context})
            rows = await self._rows(connection, "head", {"context": context})
            head, lineage = self._read_head(context, rows, deleted=True)
            new = [entry for entry in entries if entry.version > head.version]
            if not new:  # a try of which nobody heard
                return
            begun: list[Entry] = []
            chain, last = head.chain, head.version
            if (restored.fork or 0) < new[0].batch <= last:  # the last export was cut within this append
                last = new[0].batch - 1
                chain = genesis(restored.parent or context)
                for owner, low, high in append_rules.segments(context, lineage, max(last, 1), head.version):
                    values = {"context": owner, "first": low, "last": high, "kinds": None, "limit": None}
                    read = [
                        read_entry(row, owner)
                        for row in await self._rows(connection, "entries_forward", values)
                    ]
                    begun += [entry for entry in read if entry.version > last]
                    chain = next((entry.chain for entry in read if entry.version == last), chain)
            for version, wrong in verify([*begun, *new], head=chain, version=last):
                raise CorruptRecordError(f"version {version} of {context}: {wrong}")
            messages, tokens, rewrites = append_rules.counts(new)
            said = [entry for entry in new if entry.kind is Kind.MESSAGE]
            await self._rows(
                connection,
                "insert_entry",
                {"context": context, "drafts": dump([_row(entry) for entry in new])},
            )
            values = {
                "context": context,
                "version": new[-1].version,
                "messages": head.messages + messages,
                "tokens": head.tokens + tokens,
                "last_version": said[-1].version if said else rows[0][5],
                "last_nonce": said[-1].id[-6:] if said else rows[0][6],
                "rewrites": head.rewrites + rewrites,
                "chain": new[-1].chain,
            }
            await self._rows(connection, "advance_restored", values)
            if any(entry.state is not State.LIVE for entry in new):
                await self._rows(connection, "note_blanks", {"context": context})

        await self._within(work)
        return (await self._head_of(context, deleted=True))[0]


def _row(entry: Entry) -> dict[str, Any]:
    """Return an entry as it is written by `restore`."""
    row: dict[str, Any] = {
        "version": entry.version,
        "kind": entry.kind.value,
        "position": entry.position,
        "nonce": entry.id[-6:],
        "batch": entry.batch,
        "total": entry.total,
        "created_at": micros(entry.created_at),
        "tokens": entry.tokens,
        "state": None if entry.state is State.LIVE else entry.state.value,
        "salt": None if entry.salt is None else entry.salt.hex(),
        "digest": entry.digest.hex(),
        "chain": entry.chain.hex(),
        "key": entry.key,
        "parts": write_parts(entry.parts, entry.content),
        "content": entry.content,
    }
    row.update(zip(COLUMNS, draft_columns(entry), strict=True))
    return row
