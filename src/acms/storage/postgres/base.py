"""What every room of the PostgreSQL store needs: the handle, its queries, and finding rows."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, LiteralString, Self, TypeVar, cast

from acms.errors import ConfigurationError, SessionNotFoundError, ValidationError
from acms.log.entry_json import load_mapping
from acms.log.hash_chain import entry_id, locate
from acms.log.validation import name
from acms.model import Durability, Entry, Head, Kind, Migration
from acms.storage import append_rules, handles
from acms.storage.postgres.door import Door
from acms.storage.postgres.migrate import migrate, plan
from acms.storage.postgres.pool import Connection, Pool
from acms.storage.sql import VERSION_MASK, queries, read_entry, read_lineage

T = TypeVar("T")
Row = Sequence[Any]
Lineage = Sequence[tuple[str, int]]

_COMMIT: Mapping[Durability, str] = {"relaxed": "off", "disk": "local", "quorum": "on"}
REMEMBERED = 65_536
"""Lineages a handle remembers: they never change."""


class PostgresBase:
    """A handle on one tenant of a PostgreSQL database, opened by its first use."""

    def __init__(
        self,
        dsn: str | Pool,
        *,
        tenant: str = "default",
        durability: Durability | None = None,
        pool_size: int = 10,
        retry_seconds: float = 30.0,
        statement_seconds: float = 30.0,
    ) -> None:
        if durability not in (None, *_COMMIT):
            raise ValidationError("must be relaxed, disk or quorum", field="durability")
        if pool_size < 1:
            raise ValidationError("must be at least 1", field="pool_size")
        self.tenant = name(tenant, "tenant")
        self._pool = (
            dsn
            if isinstance(dsn, Pool)
            else Pool(dsn, size=pool_size, patience=retry_seconds, statement_seconds=statement_seconds)
        )
        self._wanted: Durability | None = durability
        #: What an acknowledged append survives: read from the server when the handle is opened.
        self.durability: Durability = durability or "disk"
        self._sql = queries("postgres")
        self._door = Door(self._pool, self._accept)
        self._lineages: dict[str, Lineage] = {}

    async def __aenter__(self) -> Self:
        """Keep the handle open until the block ends."""
        handles.retain(self)  # pyright: ignore[reportArgumentType] - a room of a store
        await self._open()
        return self

    async def __aexit__(self, *error: object) -> None:
        """Let go of the handle."""
        await handles.release(self)  # pyright: ignore[reportArgumentType]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._pool.name}, tenant={self.tenant!r})"

    # ── opening and closing ─────────────────────────────────────────────────────────────────────────────────────────

    async def _open(self) -> None:
        await self._door.open()

    def _accept(self) -> None:
        wanted, offered = self._wanted, self._pool.durability
        if wanted == "quorum" and offered != "quorum":
            raise ConfigurationError(
                "durability=quorum needs a server with synchronous standbys",
                options=("set synchronous_standby_names there", "leave durability out"),
            )
        if wanted == "disk" and offered == "relaxed":
            raise ConfigurationError(
                "durability=disk needs a server with fsync and synchronous_commit on",
                options=("turn them on there", "durability=relaxed"),
            )
        self.durability = wanted or offered

    async def aclose(self) -> None:
        """Finish what is under way and let go of the connections; the last handle closes them."""
        await self._door.close()

    # ── the schema ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def migrations(self, *, partitions: int | None = None) -> list[Migration]:
        """Return every step of the schema, also of an empty database."""
        return await plan(self._pool, partitions=partitions)

    async def migrate(
        self, *, partitions: int | None = None, progress: Callable[[Migration], None] | None = None
    ) -> list[Migration]:
        """Apply what is missing; return what was."""
        if partitions is None:
            return await migrate(self._pool, progress=progress)
        await plan(self._pool, partitions=partitions)  # refuses them where there are some already
        return await migrate(self._pool, partitions=partitions, progress=progress)

    # ── asking ──────────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def _preamble(self) -> tuple[str, str, str]:
        """Return what every transaction is told first; nothing of it outlives the transaction."""
        return self.tenant, self._pool.statement_ms, _COMMIT[self._wanted] if self._wanted else ""

    async def _ask(self, *names: tuple[str, Mapping[str, Any]], again: bool = True) -> list[list[Row]]:
        """Run named queries in one round trip, in one transaction; each sees what was committed before it."""
        await self._open()
        asked = [(self._sql[query], {"tenant": self.tenant, **values}) for query, values in names]
        return await self._pool.ask(self._preamble, *asked, again=again)

    async def _durably(
        self, *names: tuple[str, Mapping[str, Any]], again: bool = True
    ) -> tuple[list[list[Row]], Durability]:
        """Run named queries that write, as `_ask` does; return also what their commit survives."""
        await self._open()
        asked = [(self._sql[query], {"tenant": self.tenant, **values}) for query, values in names]
        return await self._pool.commit(self._preamble, *asked, again=again)

    async def _one(self, query: str, values: Mapping[str, Any]) -> list[Row]:
        (rows,) = await self._ask((query, values))
        return rows

    async def _within(self, work: Callable[[Connection], Awaitable[T]], *, again: bool = True) -> T:
        """Run `work` in one transaction, again where the server or another transaction got in the way."""
        return (await self._within_durably(work, again=again))[0]

    async def _within_durably(
        self, work: Callable[[Connection], Awaitable[T]], *, again: bool = True
    ) -> tuple[T, Durability]:
        """Run `work`, which writes, as `_within` does; return also what its commit survives."""
        await self._open()
        return await self._pool.within(self._preamble, work, again=again)

    async def _rows(self, connection: Connection, query: str, values: Mapping[str, Any]) -> list[Row]:
        cursor = connection.cursor(binary=True)
        await cursor.execute(cast(LiteralString, self._sql[query]), {"tenant": self.tenant, **values})
        return await cursor.fetchall() if cursor.description else []

    # ── finding rows ────────────────────────────────────────────────────────────────────────────────────────────────

    def _read_head(self, context: str, rows: Sequence[Row], *, deleted: bool = False) -> tuple[Head, Lineage]:
        """Build a head from the rows of the query `head`."""
        if not rows:
            raise SessionNotFoundError(f"no context has the id {context!r}")
        (
            deleted_at, lineage, version, messages, tokens, last_version, last_nonce, rewrites, derived, epoch, chain,
            tail, _root,
        ) = rows[0]  # fmt: skip
        if deleted_at is not None and not deleted:
            raise SessionNotFoundError(f"the context {context!r} was deleted", options=("undelete it first",))
        segments = read_lineage(lineage)
        if len(self._lineages) >= REMEMBERED:
            self._lineages.clear()
        self._lineages[context] = segments
        head = Head(
            context=context,
            version=version,
            messages=messages,
            tokens=tokens,
            last_message=last_id(context, segments, last_version, last_nonce),
            rewrites=rewrites,
            derived=derived,
            epoch=epoch,
            chain=chain,
            tail=dict(load_mapping(tail)),
        )
        return head, segments

    async def head(self, context: str) -> Head:
        """Return where the log stands."""
        return self._read_head(context, await self._one("head", {"context": context}))[0]

    async def _found(self, ids: Sequence[str]) -> list[Entry | None]:
        """Return entries by id, None for what does not exist."""
        places = {place for id in ids if (place := locate(id)) is not None and place[1] <= VERSION_MASK}
        if not places:
            return [None] * len(ids)
        contexts, versions = zip(*sorted(places), strict=True)
        rows = await self._one("entries_at", {"contexts": list(contexts), "versions": list(versions)})
        found = {entry.id: entry for entry in (read_entry(row[:-1], row[-1]) for row in rows)}
        return [found.get(id) for id in ids]


def last_id(context: str, lineage: Lineage, version: int | None, nonce: str | None) -> str | None:
    """Return the id of the newest message of a log, which may be inherited."""
    if version is None or nonce is None:
        return None
    ((owner, _, _),) = append_rules.segments(context, lineage, version, version)
    return entry_id(Kind.MESSAGE, owner, version, nonce)
