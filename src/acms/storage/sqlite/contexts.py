"""The contexts of an SQLite file: making, finding, listing and forking them, and changing their settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

import apsw

from acms.errors import SessionNotFoundError
from acms.log.encoding import Entropy, context_id, dump, genesis_hash, load_mapping, to_microseconds
from acms.log.validation import INNER, validate_name
from acms.model import Context, ContextDraft, ContextQuery, Head, Json, Kind, Page, SessionHead
from acms.results import SessionPage
from acms.storage import append_rules
from acms.storage.append_rules import Read
from acms.storage.records import unknown_session_error
from acms.storage.sessions import build_session_page
from acms.storage.sql import ENDLESS, VERSION_BITS, read_context, seal_columns, seal_fits, settings_column
from acms.storage.sqlite.tables import Row, StoredLog, Tables


class Contexts:
    """The contexts of a tenant: operations that a writer, or a reader, runs on its connection."""

    def __init__(self, tables: Tables, *, clock: Callable[[], datetime], entropy: Entropy) -> None:
        self._tables = tables
        self._clock = clock
        self._entropy = entropy

    def by_key(self, connection: apsw.Connection, namespace: str, key: str) -> Context | None:
        """Return the live context of a key."""
        row = self._tables.row(connection, "context_by_key", (self._tables.tenant, namespace, key))
        return None if row is None else read_context(row)

    def by_id(self, connection: apsw.Connection, id: str) -> Context | None:
        """Return a context by its id."""
        row = self._tables.row(connection, "context_by_id", (self._tables.tenant, id))
        return None if row is None else read_context(row)

    def seal_fits(self, connection: apsw.Connection, id: str) -> bool:
        """Return whether a context is as ACMS wrote it; true of one that was stored before there were seals."""
        row = self._tables.row(connection, "context_by_id", (self._tables.tenant, id))
        return row is None or seal_fits(row)

    def find(self, connection: apsw.Connection, id_or_key: str, namespace: str) -> Context:
        """Return a context by its id or by the key of a live one."""
        context = self.by_key(connection, namespace, id_or_key) or self.by_id(connection, id_or_key)
        if context is None:
            raise unknown_session_error(id_or_key)
        return context

    def page(self, connection: apsw.Connection, query: ContextQuery) -> Page[Context]:
        """List contexts, newest first."""
        rows = self._list_rows(connection, append_rules.contexts_query(query), query)
        return append_rules.build_page(rows, query.limit, read_context)

    def sessions(self, connection: apsw.Connection, query: ContextQuery) -> SessionPage:
        """List contexts with the state of their logs, newest first."""
        return build_session_page(self._list_rows(connection, "sessions", query), query.limit)

    def _list_rows(self, connection: apsw.Connection, name: str, query: ContextQuery) -> Sequence[Row]:
        """Return the rows of a page, and one more where another page follows."""
        after = ENDLESS
        if query.after is not None:
            row = self._tables.row(connection, "ref", (self._tables.tenant, query.after))
            if row is None:
                raise SessionNotFoundError(f"no context has the id {query.after!r}")
            after = row[0]
        values = {
            "tenant": self._tables.tenant,
            "namespace": query.namespace,
            "parent": query.parent,
            "root": query.root,
            "deleted": query.deleted,
            "inner": dump(list(INNER)) if query.spoken else None,
            "where": dump(dict(query.where)) if query.where else None,
            "after": after,
            "limit": query.limit + 1,
        }
        return self._tables.rows(connection, name, values)

    def heads(self, connection: apsw.Connection, namespace: str) -> list[SessionHead]:
        """Return the state of each live context of a namespace, oldest first."""
        values = {"tenant": self._tables.tenant, "namespace": namespace}
        rows = self._tables.rows(connection, "heads", values)
        return list(map(SessionHead._make, rows))

    def change_settings(
        self, connection: apsw.Connection, context: str, change: Mapping[str, Json], rev: int
    ) -> Context:
        """Merge a change into a context's settings if they are still at revision `rev`.

        The setting `deleted` hides the context; the records kept beside its log (not its entries) are then deleted
        for good.
        """
        row = self._tables.row(connection, "context_by_id", (self._tables.tenant, context))
        if row is None:
            raise SessionNotFoundError(f"no context has the id {context!r}")
        new_context = append_rules.apply_settings_change(
            read_context(row), change, rev=rev, clock=self._clock
        )
        ref = self._tables.ref(connection, context)
        deleted_at = _optional_microseconds(new_context.deleted_at)
        self._tables.rows(connection, "update_settings", (settings_column(row, new_context), deleted_at, ref))
        if deleted_at is not None:
            self._tables.rows(connection, "delete_records", (ref,))
        return self._get(connection, context)

    def create(self, connection: apsw.Connection, context: ContextDraft) -> Context:
        """Create a context, or return the live one with the same namespace and key."""
        if context.key is not None:
            existing = self.by_key(connection, context.namespace, context.key)
            if existing is not None:
                return existing
        id = context_id(self._entropy)
        values = {
            **self._fresh(id, context),
            "namespace": validate_name(context.namespace, "namespace"),
            "key": None if context.key is None else validate_name(context.key, "key"),
            "settings_rev": 0,
            "deleted_at": None,
        }
        if context.parent is not None:
            values.update(self._columns_of_fork(connection, context.parent, context.fork))
            if context.inherit:
                (row,) = self._tables.rows(connection, "settings", (values["ref"],))
                settings = append_rules.settings_of_fork(load_mapping(row[0]), context)
                values["settings"] = dump(settings) if settings else None
        self._insert(connection, values)
        return self._get(connection, id)

    def restore(self, connection: apsw.Connection, context: Context) -> Head:
        """Create a context verbatim, or return the head of the same one that is there."""
        existing = self.by_id(connection, context.id)
        if existing is not None:
            append_rules.check_restored_context(existing, context)
            return self._tables.log(connection, context.id, deleted=True).head
        live_key = context.key if context.deleted_at is None else None
        if live_key is not None and self.by_key(connection, context.namespace, live_key) is not None:
            raise append_rules.key_taken_error(live_key)
        values = {
            **self._fresh(context.id, context),
            "namespace": context.namespace,
            "key": context.key,
            "settings_rev": context.settings_rev,
            "deleted_at": _optional_microseconds(context.deleted_at),
        }
        if context.parent is not None:
            if self._tables.row(connection, "ref", (self._tables.tenant, context.parent)) is None:
                raise append_rules.parent_missing_error(context.parent)
            values.update(self._columns_of_fork(connection, context.parent, context.fork, deleted=True))
        self._insert(connection, values)
        return self._tables.log(connection, context.id, deleted=True).head

    def _insert(self, connection: apsw.Connection, values: Mapping[str, Any]) -> None:
        sealed_values = {**values, "settings": seal_columns(values["id"], values)}
        self._tables.rows(connection, "insert_context", sealed_values)
        if values["parent"] is None:
            self._tables.rows(connection, "root_itself", (connection.last_insert_rowid(),))

    def _get(self, connection: apsw.Connection, id: str) -> Context:
        context = self.by_id(connection, id)
        if context is None:
            raise SessionNotFoundError(f"no context has the id {id!r}")
        return context

    def _fresh(self, id: str, context: ContextDraft | Context) -> dict[str, Any]:
        """Return the columns of a context without entries."""
        return {
            "tenant": self._tables.tenant,
            "id": id,
            "ref": None,
            "parent": None,
            "fork": None,
            "lineage": "[]",
            "counter": context.counter,
            "settings": dump(dict(context.settings)) if context.settings else None,
            "created_at": to_microseconds(context.created_at),
            "version": 0,
            "messages": 0,
            "tokens": 0,
            "last_message": None,
            "rewrites": 0,
            "chain": genesis_hash(id),
        }

    def _columns_of_fork(
        self, connection: apsw.Connection, parent: str, fork: int | None, *, deleted: bool = False
    ) -> dict[str, Any]:
        """Return the columns of a fork: everything it inherits is a number, nothing is copied."""
        log = self._tables.log(connection, parent, deleted=deleted)
        ref, head, lineage = log
        version = append_rules.resolve_fork_version(head, fork)
        columns: dict[str, Any] = {
            "ref": ref,
            "parent": parent,
            "fork": version,
            "lineage": dump(append_rules.lineage_of_fork(parent, lineage, version)),
            "version": version,
            "messages": head.messages,
            "tokens": head.tokens,
            "last_message": head.last_message,
            "rewrites": 0,
            "chain": head.chain if version else genesis_hash(parent),
        }
        if version < head.version:
            columns.update(self._columns_of_head_at(connection, log, version))
        if head.rewrites:
            for owner_ref, first, last in self._tables.segments(connection, log, at=version):
                base = owner_ref << VERSION_BITS
                values = (base | first, base | last)
                ((count,),) = self._tables.rows(connection, "count_replacing", values)
                columns["rewrites"] += count
        return columns

    def _columns_of_head_at(
        self, connection: apsw.Connection, log: StoredLog, version: int
    ) -> dict[str, Any]:
        """Return the columns of a log's head at an earlier version."""
        entries = self._tables.entries(connection, log, Read(after=version - 1, at=version))
        messages = [entry for entry in entries if entry.kind is Kind.MESSAGE]
        if not messages:
            messages = self._tables.entries(
                connection, log, Read(at=version, newest=1, kinds=(Kind.MESSAGE,))
            )
        chain = entries[0].chain if entries else genesis_hash(log.head.context)
        if not messages:
            return {"messages": 0, "tokens": 0, "last_message": None, "chain": chain}
        (message,) = messages
        return {
            "messages": message.position,
            "tokens": message.total,
            "last_message": message.id,
            "chain": chain,
        }


def _optional_microseconds(time: datetime | None) -> int | None:
    return None if time is None else to_microseconds(time)
