"""The contexts of a PostgreSQL database: finding and listing them, making and restoring them, and their settings."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from functools import partial
from typing import Any

from acms.errors import ConflictError, CorruptRecordError, SessionNotFoundError
from acms.log.encoding import context_id, dump, genesis_hash, load_mapping, to_microseconds, verify_chain
from acms.log.validation import INNER, validate_name
from acms.model import Context, ContextDraft, ContextQuery, Entry, Head, Json, Kind, Page, SessionHead, State
from acms.results import SessionPage
from acms.storage import append_rules
from acms.storage.postgres.append_parameters import build_draft_row
from acms.storage.postgres.database import Database, Lineage, LogState, NamedQuery, last_message, read_columns
from acms.storage.postgres.pool import Connection, Row
from acms.storage.records import unknown_session_error
from acms.storage.sessions import build_session_page
from acms.storage.sql import (
    ENDLESS,
    read_context,
    read_entry,
    read_lineage,
    seal_columns,
    seal_fits,
    settings_column,
)


class Contexts:
    """The contexts of a tenant."""

    def __init__(self, db: Database) -> None:
        self._db = db

    async def create(self, context: ContextDraft) -> Context:
        """Create a context, or return the live one with the same namespace and key."""
        id = context_id(self._db.entropy)
        namespace = validate_name(context.namespace, "namespace")
        key = None if context.key is None else validate_name(context.key, "key")
        if key is not None:
            existing_rows = await self._db.query("context_by_key", {"namespace": namespace, "key": key})
            if existing_rows:
                return read_context(existing_rows[0])
        values = {**_new_context_columns(id, context), "namespace": namespace, "key": key}
        if context.parent is not None:
            values.update(await self._columns_of_fork(context.parent, context.fork))
            if context.inherit:
                rows = await self._db.query("settings", {"context": context.parent})
                settings = append_rules.settings_of_fork(load_mapping(rows[0][0]), context)
                values["settings"] = dump(settings) if settings else None
        values["settings"] = seal_columns(id, values)
        # The live context of the key may be deleted, and another created, between two of these queries.
        for _ in range(8):
            rows = await self._db.query("insert_context", values)
            if not rows and key is not None:
                rows = await self._db.query("context_by_key", {"namespace": namespace, "key": key})
            if not rows:  # an own earlier attempt whose answer was lost
                rows = await self._db.query("context_by_id", {"context": id})
            if rows:
                return read_context(rows[0])
        raise ConflictError(f"the session {key!r} is being created and deleted by others")

    async def _columns_of_fork(
        self, parent: str, fork: int | None, *, deleted: bool = False
    ) -> dict[str, Any]:
        """Return the columns of a fork: everything it inherits is a number, nothing is copied."""
        head, lineage, last_version, last_nonce, root = await self._db.log_state(parent, deleted=deleted)
        version = append_rules.resolve_fork_version(head, fork)
        columns: dict[str, Any] = {
            "root": root,
            "parent": parent,
            "fork": version,
            "lineage": dump(append_rules.lineage_of_fork(parent, lineage, version)),
            "version": version,
            "messages": head.messages,
            "tokens": head.tokens,
            "last_version": last_version,
            "last_nonce": last_nonce,
            "rewrites": 0,
            "chain": head.chain if version else genesis_hash(parent),
        }
        if version < head.version:
            columns.update(await self._columns_of_head_at(parent, lineage, version))
        if head.rewrites:
            segments = append_rules.split_segments(parent, lineage, 1, version)
            queries: list[NamedQuery] = [
                ("count_replacing", {"context": owner, "first": first, "last": last})
                for owner, first, last in segments
            ]
            counts = await self._db.query_all(*queries)
            columns["rewrites"] = sum(rows[0][0] for rows in counts)
        return columns

    async def _columns_of_head_at(self, parent: str, lineage: Lineage, version: int) -> dict[str, Any]:
        """Return the columns of a log's head at an earlier version."""
        columns: dict[str, Any] = {"messages": 0, "tokens": 0, "last_version": None, "last_nonce": None}
        chain: bytes | None = None
        for owner, low, high in reversed(append_rules.split_segments(parent, lineage, 1, version)):
            values = {"context": owner, "first": low, "last": high, "limit": 1}
            entry_rows, message_rows = await self._db.query_all(
                ("entries_backward", {**values, "kinds": None}),
                ("entries_backward", {**values, "kinds": [Kind.MESSAGE.value]}),
            )
            if chain is None and entry_rows:
                chain = read_entry(entry_rows[0], owner).chain
            if message_rows:
                message = read_entry(message_rows[0], owner)
                columns = {
                    "messages": message.position,
                    "tokens": message.total,
                    "last_version": message.version,
                    "last_nonce": message.id[-6:],
                }
                break
        columns["chain"] = genesis_hash(parent) if chain is None else chain
        return columns

    async def context(self, id_or_key: str, *, namespace: str = "default") -> Context:
        """Return a context by its id or by the key of a live one."""
        by_key, by_id = await self._db.query_all(
            ("context_by_key", {"namespace": namespace, "key": id_or_key}),
            ("context_by_id", {"context": id_or_key}),
        )
        for rows in (by_key, by_id):
            if rows:
                return read_context(rows[0])
        raise unknown_session_error(id_or_key)

    async def seal_fits(self, context: str) -> bool:
        """Return whether a context is as ACMS wrote it; true of one that was stored before there were seals."""
        rows = await self._db.query("context_by_id", {"context": context})
        return not rows or seal_fits(rows[0])

    async def contexts(self, query: ContextQuery) -> Page[Context]:
        """List contexts, newest first."""
        rows = await self._list_rows(append_rules.contexts_query(query), query)
        return append_rules.build_page(rows, query.limit, read_context)

    async def sessions(self, query: ContextQuery) -> SessionPage:
        """List contexts with the state of their logs, newest first."""
        rows = await self._list_rows("sessions", query)
        return build_session_page([(*row[:9], _last_message_id(row), *row[12:]) for row in rows], query.limit)

    async def _list_rows(self, name: str, query: ContextQuery) -> list[Row]:
        """Return the rows of a page, and one more where another page follows."""
        after = ENDLESS
        if query.after is not None:
            rows = await self._db.query("ref", {"context": query.after})
            if not rows:
                raise SessionNotFoundError(f"no context has the id {query.after!r}")
            after = rows[0][0]
        values: dict[str, Any] = {"namespace": query.namespace, "parent": query.parent, "root": query.root}
        values |= {"deleted": query.deleted, "after": after, "limit": query.limit + 1}
        values["inner"] = list(INNER) if query.spoken else None
        values["where"] = dump(dict(query.where)) if query.where else None
        return await self._db.query(name, values)

    async def heads(self, namespace: str) -> list[SessionHead]:
        """Return the state of each live context of a namespace, oldest first."""
        return list(map(SessionHead._make, await self._db.query("heads", {"namespace": namespace})))

    async def heads_of(self, contexts: Sequence[str]) -> list[Head | None]:
        """Return the heads of contexts in their order; None for one that is not there, or was deleted."""
        rows = await self._db.query("heads_of", {"contexts": list(contexts)})
        head_of = {id: read_columns(id, read_lineage(lineage), columns) for id, lineage, *columns in rows}
        return [head_of.get(id) for id in contexts]

    async def change_settings(self, context: str, change: Mapping[str, Json], *, rev: int) -> Context:
        """Merge a change into a context's settings if they are still at revision `rev`.

        The setting `deleted` hides the context; the records kept beside its log (not its entries) are then deleted
        for good.
        """
        rows = await self._db.query("context_by_id", {"context": context})
        if not rows:
            raise SessionNotFoundError(f"no context has the id {context!r}")
        new_context = append_rules.apply_settings_change(
            read_context(rows[0]), change, rev=rev, clock=self._db.clock
        )
        deleted_at = None if new_context.deleted_at is None else to_microseconds(new_context.deleted_at)
        new_settings = settings_column(rows[0], new_context)
        values = {"context": context, "settings": new_settings, "rev": rev, "deleted_at": deleted_at}
        may_have_written = False

        async def work(connection: Connection) -> Context:
            nonlocal may_have_written
            updated = await self._db.query_in(connection, "update_settings", values)
            if updated:
                may_have_written = True
                if deleted_at is not None:
                    await self._db.query_in(connection, "delete_records", {"contexts": [context]})
                return read_context(updated[0])
            (row,) = await self._db.query_in(connection, "context_by_id", {"context": context})
            current = read_context(row)
            # Written by an attempt whose commit was not confirmed.
            if may_have_written and current == new_context:
                return current
            # Another writer was first, even where it wrote the same: of two deletions only one succeeds.
            raise ConflictError(f"the settings are at revision {current.settings_rev}, not {rev}")

        return (await self._db.run_transaction(work))[0]

    # ── restoring ───────────────────────────────────────────────────────────────────────────────────────────────────

    async def restore(self, context: Context, entries: AsyncIterator[Entry]) -> None:
        """Write a context verbatim, a batch a commit; resumes after the last stored version."""
        head = await self._restore_context(context)
        async for batch in append_rules.whole_appends(context, head, entries):
            await self._db.run_transaction(partial(self._write_restored, context, batch))

    async def _restore_context(self, context: Context) -> Head:
        """Create a context verbatim unless it exists; return the head of its log."""
        rows = await self._db.query("context_by_id", {"context": context.id})
        if not rows:
            values = {**_new_context_columns(context.id, context), "settings_rev": context.settings_rev}
            values["deleted_at"] = None if context.deleted_at is None else to_microseconds(context.deleted_at)
            if context.parent is not None:
                try:
                    values.update(await self._columns_of_fork(context.parent, context.fork, deleted=True))
                except SessionNotFoundError:
                    raise append_rules.parent_missing_error(context.parent) from None
            values["settings"] = seal_columns(context.id, values)
            rows = await self._db.query("insert_context", values)
            if not rows:
                rows = await self._db.query("context_by_id", {"context": context.id})
            if not rows:
                raise append_rules.key_taken_error(context.key)
        append_rules.check_restored_context(read_context(rows[0]), context)
        return (await self._db.log_state(context.id, deleted=True)).head

    async def _write_restored(
        self, context: Context, entries: Sequence[Entry], connection: Connection
    ) -> None:
        """Write entries verbatim after the stored ones, inside a transaction."""
        target = {"context": context.id}
        await self._db.query_in(connection, "lock_context", target)
        log = await self._db.log_state(context.id, deleted=True, connection=connection)
        head = log.head
        new_entries = [entry for entry in entries if entry.version > head.version]
        if not new_entries:  # an earlier attempt whose answer was lost
            return
        await self._verify_restored(context, log, new_entries, connection)
        messages, tokens, rewrites = append_rules.count_drafts(new_entries)
        drafts = dump([_row_of_entry(entry) for entry in new_entries])
        await self._db.query_in(connection, "insert_entry", {**target, "drafts": drafts})
        # The newest message: of the new entries, or else the one the log had.
        last_version, last_nonce = log.last_version, log.last_nonce
        for entry in new_entries:
            if entry.kind is Kind.MESSAGE:
                last_version, last_nonce = entry.version, entry.id[-6:]
        values = {
            **target,
            "version": new_entries[-1].version,
            "chain": new_entries[-1].chain,
            "messages": head.messages + messages,
            "tokens": head.tokens + tokens,
            "rewrites": head.rewrites + rewrites,
            "last_version": last_version,
            "last_nonce": last_nonce,
        }
        await self._db.query_in(connection, "advance_restored", values)
        if any(entry.state is not State.LIVE for entry in new_entries):
            await self._db.query_in(connection, "note_blanks", target)

    async def _verify_restored(
        self, context: Context, log: LogState, new_entries: Sequence[Entry], connection: Connection
    ) -> None:
        """Raise `CorruptRecordError` if the hash chain of new entries does not continue that of the log.

        The chain can be checked only from the start of an append: stored entries of the same append are included.
        """
        stored_entries: list[Entry] = []
        chain, last_version = log.head.chain, log.head.version
        # The last export was cut within this append.
        if (context.fork or 0) < new_entries[0].batch <= last_version:
            last_version = new_entries[0].batch - 1
            chain = genesis_hash(context.parent or context.id)
            segments = append_rules.split_segments(
                context.id, log.lineage, max(last_version, 1), log.head.version
            )
            for owner, first, last in segments:
                values = {"context": owner, "first": first, "last": last, "kinds": None, "limit": None}
                for row in await self._db.query_in(connection, "entries_forward", values):
                    entry = read_entry(row, owner)
                    if entry.version > last_version:
                        stored_entries.append(entry)
                    elif entry.version == last_version:
                        chain = entry.chain
        for version, problem in verify_chain(
            [*stored_entries, *new_entries], head=chain, version=last_version
        ):
            raise CorruptRecordError(f"version {version} of {context.id}: {problem}")


def _new_context_columns(id: str, context: ContextDraft | Context) -> dict[str, Any]:
    """Return the columns of a context without entries."""
    return {
        **dict.fromkeys(("parent", "fork", "last_version", "last_nonce", "deleted_at")),
        **dict.fromkeys(("version", "messages", "tokens", "rewrites", "settings_rev"), 0),
        "context": id,
        "namespace": context.namespace,
        "key": context.key,
        "root": id,
        "lineage": "[]",
        "counter": context.counter,
        "settings": dump(dict(context.settings)) if context.settings else None,
        "created_at": to_microseconds(context.created_at),
        "chain": genesis_hash(id),
    }


def _last_message_id(row: Row) -> str | None:
    """Return the id of the newest message from a row of the query `sessions`."""
    lineage, version, nonce = row[9:12]
    return last_message(row[0], read_lineage(lineage), version, nonce)


def _row_of_entry(entry: Entry) -> dict[str, Any]:
    """Return an entry as the row that `restore` writes."""
    return {
        **build_draft_row(entry),
        "version": entry.version,
        "position": entry.position,
        "nonce": entry.id[-6:],
        "batch": entry.batch,
        "total": entry.total,
        "state": None if entry.state is State.LIVE else entry.state.value,
        "salt": None if entry.salt is None else entry.salt.hex(),
        "digest": entry.digest.hex(),
        "chain": entry.chain.hex(),
    }
