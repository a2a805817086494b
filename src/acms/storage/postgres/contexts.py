"""Finding and listing the contexts of a PostgreSQL database, making them, and changing their settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from acms.errors import ConflictError, SessionNotFoundError, ValidationError
from acms.log.entry_json import dump, load_mapping
from acms.log.hash_chain import context_id, genesis, micros
from acms.log.validation import name
from acms.model import Context, ContextDraft, ContextQuery, Head, Json, Kind, Page
from acms.storage import append_rules
from acms.storage.postgres.base import Lineage
from acms.storage.postgres.erase import PostgresErase
from acms.storage.postgres.pool import Connection
from acms.storage.sql import read_context, read_entry


class PostgresContexts(PostgresErase):
    """A PostgreSQL store with its contexts."""

    _clock: Callable[[], datetime] = staticmethod(lambda: datetime.now(UTC))

    async def create(self, context: ContextDraft) -> Context:
        """Create a context, or return the live one with the same namespace and key."""
        id = context_id(self._entropy)
        namespace = name(context.namespace, "namespace")
        key = None if context.key is None else name(context.key, "key")
        if key is not None:
            found = await self._one("context_by_key", {"namespace": namespace, "key": key})
            if found:
                return read_context(found[0])
        values = {
            **self._fresh(id, context),
            "namespace": namespace,
            "key": key,
            "settings_rev": 0,
            "deleted_at": None,
        }
        if context.parent is not None:
            values.update(await self._forked(context.parent, context.fork))
            if context.inherit:
                rows = await self._one("settings", {"context": context.parent})
                settings = append_rules.inherited(load_mapping(rows[0][0]), context)
                values["settings"] = dump(settings) if settings else None
        for _ in range(8):
            rows = await self._one("insert_context", values)
            if not rows and key is not None:
                rows = await self._one("context_by_key", {"namespace": namespace, "key": key})
            if not rows:  # its own try, of which nobody heard
                rows = await self._one("context_by_id", {"context": id})
            if rows:
                return read_context(rows[0])
        raise ConflictError(f"the session {key!r} is being created and deleted by others")

    def _fresh(self, id: str, context: ContextDraft | Context) -> dict[str, Any]:
        """Return the columns of a context without entries."""
        return {
            "context": id,
            "root": id,
            "parent": None,
            "fork": None,
            "lineage": "[]",
            "counter": context.counter,
            "settings": dump(dict(context.settings)) if context.settings else None,
            "created_at": micros(context.created_at),
            "version": 0,
            "messages": 0,
            "tokens": 0,
            "last_version": None,
            "last_nonce": None,
            "rewrites": 0,
            "chain": genesis(id),
        }

    async def _forked(self, parent: str, fork: int | None, *, deleted: bool = False) -> dict[str, Any]:
        """Return the columns of a fork: everything it inherits is a number, nothing is copied."""
        (rows,) = await self._ask(("head", {"context": parent}))
        head, lineage = self._read_head(parent, rows, deleted=deleted)
        root = rows[0][-1]
        at = head.version if fork is None else fork
        if not 0 <= at <= head.version:
            raise ValidationError(f"must be from 0 to {head.version}, was {at}", field="fork")
        inherited = append_rules.inherit(parent, lineage, at)
        found: dict[str, Any] = {
            "root": root,
            "parent": parent,
            "fork": at,
            "lineage": dump(inherited),
            "version": at,
            "messages": head.messages,
            "tokens": head.tokens,
            "last_version": rows[0][5],
            "last_nonce": rows[0][6],
            "rewrites": 0,
            "chain": head.chain if at else genesis(parent),
        }
        if at < head.version:
            found.update(await self._stood(parent, lineage, at))
        if head.rewrites:
            runs = append_rules.segments(parent, lineage, 1, at)
            counts = await self._ask(
                *[("count_replacing", {"context": of, "first": a, "last": b}) for of, a, b in runs]
            )
            found["rewrites"] = sum(rows[0][0] for rows in counts)
        return found

    async def _stood(self, parent: str, lineage: Lineage, at: int) -> dict[str, Any]:
        """Return where a log stood at an earlier version."""
        newest = last = None
        for owner, low, high in reversed(append_rules.segments(parent, lineage, 1, at)):
            values = {"context": owner, "first": low, "last": high, "limit": 1}
            ends, said = await self._ask(
                ("entries_backward", {**values, "kinds": None}),
                ("entries_backward", {**values, "kinds": [Kind.MESSAGE.value]}),
            )
            newest = newest or (read_entry(ends[0], owner) if ends else None)
            last = read_entry(said[0], owner) if said else None
            if last is not None:
                break
        return {
            "messages": 0 if last is None else last.position,
            "tokens": 0 if last is None else last.total,
            "last_version": None if last is None else last.version,
            "last_nonce": None if last is None else last.id[-6:],
            "chain": genesis(parent) if newest is None else newest.chain,
        }

    async def context(self, id_or_key: str, *, namespace: str = "default") -> Context:
        """Return a context by its id or by the key of a live one."""
        by_key, by_id = await self._ask(
            ("context_by_key", {"namespace": namespace, "key": id_or_key}),
            ("context_by_id", {"context": id_or_key}),
        )
        for rows in (by_key, by_id):
            if rows:
                return read_context(rows[0])
        raise SessionNotFoundError(f"no session or context is named {id_or_key!r}")

    async def contexts(self, query: ContextQuery) -> Page[Context]:
        """List contexts, newest first."""
        after: int | None = None
        if query.after is not None:
            rows = await self._one("ref", {"context": query.after})
            if not rows:
                raise SessionNotFoundError(f"no context has the id {query.after!r}")
            after = rows[0][0]
        values = {
            "namespace": query.namespace,
            "parent": query.parent,
            "root": query.root,
            "deleted": query.deleted,
            "after": after,
            "limit": query.limit + 1,
        }
        tree = "contexts" if query.root is None else "contexts_of_root"
        way = tree if query.parent is None else "contexts_of_parent"
        found = [read_context(row) for row in await self._one(way, values)]
        more = len(found) > query.limit
        found = found[: query.limit]
        return Page(items=tuple(found), next_after=found[-1].id if more else None)

    async def settings(self, context: str, change: Mapping[str, Json], *, rev: int) -> Context:
        """Merge a change into the settings if they are still at `rev`."""
        rows = await self._one("context_by_id", {"context": context})
        if not rows:
            raise SessionNotFoundError(f"no context has the id {context!r}")
        old = read_context(rows[0])
        if old.settings_rev != rev:
            raise ConflictError(f"the settings are at revision {old.settings_rev}, not {rev}")
        deleted_at = old.deleted_at
        if "deleted" in change:
            deleted_at = (deleted_at or self._clock()) if change["deleted"] else None
        merged = {**old.settings, **{k: v for k, v in change.items() if k != "deleted"}}
        merged = {key: value for key, value in merged.items() if value is not None}
        values = {
            "context": context,
            "settings": dump(merged) if merged else None,
            "deleted_at": None if deleted_at is None else micros(deleted_at),
            "rev": rev,
        }
        tried = False

        async def work(connection: Connection) -> Context:
            nonlocal tried
            found = await self._rows(connection, "update_settings", values)
            if found:
                tried = True
                return read_context(found[0])
            now = read_context((await self._rows(connection, "context_by_id", {"context": context}))[0])
            written = (now.settings_rev, now.settings, now.deleted_at) == (rev + 1, merged, deleted_at)
            if tried and written:  # by a try of whose commit nobody heard
                return now
            # Another writer was first, even where it wrote the same: of two deletions only one succeeds.
            raise ConflictError(f"the settings are at revision {now.settings_rev}, not {rev}")

        return await self._within(work)

    async def spaces(self, context: str) -> list[str]:
        """Return the names of the spaces in which a context has derived rows of its own."""
        await self._head_of(context)
        return [space for (space,) in await self._one("spaces_of", {"context": context})]

    async def _head_of(self, context: str, *, deleted: bool = False) -> tuple[Head, Lineage]:
        """Return where a log stands and what it inherits."""
        return self._read_head(context, await self._one("head", {"context": context}), deleted=deleted)
