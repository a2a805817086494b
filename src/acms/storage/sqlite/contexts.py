"""Finding and listing the contexts of an SQLite file, and changing their settings."""

from __future__ import annotations

from collections.abc import Mapping

import apsw

from acms.errors import ConflictError, SessionNotFoundError
from acms.log.entry_json import dump
from acms.log.hash_chain import micros
from acms.model import Context, ContextQuery, Json, Page
from acms.storage.sql import read_context
from acms.storage.sqlite.erase import SQLiteErase


class SQLiteContexts(SQLiteErase):
    """An SQLite file with its contexts."""

    async def context(self, id_or_key: str, *, namespace: str = "default") -> Context:
        """Return a context by its id or by the key of a live one."""

        def work(connection: apsw.Connection) -> Context:
            row = self._row(connection, "context_by_key", (self.tenant, namespace, id_or_key))
            row = row or self._row(connection, "context_by_id", (self.tenant, id_or_key))
            if row is None:
                raise SessionNotFoundError(f"no session or context is named {id_or_key!r}")
            return read_context(row)

        return await self._read(work)

    async def contexts(self, query: ContextQuery) -> Page[Context]:
        """List contexts, newest first."""

        def work(connection: apsw.Connection) -> Page[Context]:
            after: int | None = None
            if query.after is not None:
                row = self._row(connection, "ref", (self.tenant, query.after))
                if row is None:
                    raise SessionNotFoundError(f"no context has the id {query.after!r}")
                after = row[0]
            values = {
                "tenant": self.tenant,
                "namespace": query.namespace,
                "parent": query.parent,
                "root": query.root,
                "deleted": query.deleted,
                "after": after,
                "limit": query.limit + 1,
            }
            tree = "contexts" if query.root is None else "contexts_of_root"
            way = tree if query.parent is None else "contexts_of_parent"
            found = [read_context(row) for row in self._rows(connection, way, values)]
            more = len(found) > query.limit
            found = found[: query.limit]
            return Page(items=tuple(found), next_after=found[-1].id if more else None)

        return await self._read(work)

    async def settings(self, context: str, change: Mapping[str, Json], *, rev: int) -> Context:
        """Merge a change into the settings if they are still at `rev`."""

        def work(connection: apsw.Connection) -> Context:
            row = self._row(connection, "context_by_id", (self.tenant, context))
            if row is None:
                raise SessionNotFoundError(f"no context has the id {context!r}")
            old = read_context(row)
            if old.settings_rev != rev:
                raise ConflictError(f"the settings are at revision {old.settings_rev}, not {rev}")
            deleted_at = old.deleted_at
            if "deleted" in change:
                deleted_at = (deleted_at or self._clock()) if change["deleted"] else None
            merged = {**old.settings, **{k: v for k, v in change.items() if k != "deleted"}}
            merged = {key: value for key, value in merged.items() if value is not None}
            connection.execute(
                self._sql["update_settings"],
                (
                    dump(merged) if merged else None,
                    None if deleted_at is None else micros(deleted_at),
                    row[0],
                ),
            ).fetchall()
            row = self._row(connection, "context_by_id", (self.tenant, context))
            assert row is not None
            return read_context(row)

        return await self._write(work)

    async def spaces(self, context: str) -> list[str]:
        """Return the names of the spaces in which a context has derived rows of its own."""

        def work(connection: apsw.Connection) -> list[str]:
            ref, _, _ = self._head(connection, context)
            return [space for (space,) in self._rows(connection, "spaces_of", (ref,))]

        return await self._read(work)
