"""The connection handle of one tenant: a pool, the queries, a clock and entropy, and transactions that are tried again.

The store owns it and hands it to its appender, eraser, job queue and the other parts.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, LiteralString, NamedTuple, TypeVar, cast

import psycopg

from acms.errors import ACMSError, ConfigurationError, SessionNotFoundError, ValidationError
from acms.log.encoding import Entropy, entry_id, load_mapping
from acms.log.validation import validate_name
from acms.model import Durability, Head, Kind
from acms.runtime.loops import PerLoop
from acms.storage import append_rules
from acms.storage.kv_base import Clock, utc_now
from acms.storage.postgres.migrate import check_database
from acms.storage.postgres.pool import ROLE, Connection, Pool, Row, UnconfirmedError, durability_of_commit
from acms.storage.records import deleted_session_error
from acms.storage.sql import load_queries, read_lineage

T = TypeVar("T")
Lineage = Sequence[tuple[str, int]]
NamedQuery = tuple[str, Mapping[str, Any]]
"""The name of a query and its values."""

PREAMBLE = (
    f"SELECT set_config('role', '{ROLE}', true), set_config('acms.tenant', %s, true),"
    " set_config('statement_timeout', %s, true),"
    " set_config('client_min_messages', 'warning', true),"  # or a wait for standbys may end without a word
    " set_config('synchronous_commit', coalesce(nullif(%s, ''), current_setting('synchronous_commit')), true),"
    " current_setting('synchronous_standby_names'), current_setting('fsync')"
)
"""The first statement of every transaction; its settings end with the transaction."""
_READ_ONLY_PREAMBLE = PREAMBLE.replace(
    "SELECT ", "SELECT set_config('transaction_read_only', 'on', true), ", 1
)
"""The same for a transaction in which the server refuses every write, also behind a pooler."""
_STANDBYS = "SELECT current_setting('synchronous_standby_names')"
_COMMIT: Mapping[Durability, str] = {"relaxed": "off", "disk": "local", "quorum": "on"}


class LogState(NamedTuple):
    """The head of a log and its inherited lineage."""

    head: Head
    lineage: Lineage
    #: Version and nonce of the newest message.
    last_version: int | None
    last_nonce: str | None
    #: The root of its fork tree.
    root: str


class Database:
    """A handle on one tenant of a database, opened by its first use, and again after it was closed."""

    def __init__(
        self,
        pool: Pool,
        tenant: str,
        *,
        dialect: str = "postgres",
        durability: Durability | None = None,
        statement_seconds: float | None = None,
        clock: Clock = utc_now,
        entropy: Entropy = os.urandom,
    ) -> None:
        if durability not in (None, *_COMMIT):
            raise ValidationError("must be relaxed, disk or quorum", field="durability")
        self.pool = pool
        self.tenant = validate_name(tenant, "tenant")
        self.clock, self.entropy = clock, entropy
        #: The requested durability; None uses the server's.
        self.requested_durability: Durability | None = durability
        #: Durability of an acknowledged append: read from the server when the handle is opened.
        self.durability: Durability = durability or "disk"
        self.lineages: dict[str, Lineage] = {}
        self._sql = load_queries(dialect)
        commit = _COMMIT[durability] if durability else ""
        seconds = pool.statement_seconds if statement_seconds is None else statement_seconds
        self._preamble: LiteralString = _READ_ONLY_PREAMBLE if pool.read_only else PREAMBLE
        self._settings = (
            self.tenant,
            str(max(1, int(seconds * 1000))),
            commit,
        )  # 0 would disable the timeout
        self._opening: PerLoop[asyncio.Task[None]] = PerLoop()
        self.opened = False

    # ── opening and closing ─────────────────────────────────────────────────────────────────────────────────────────

    async def open(self) -> None:
        """Open the pool and check the schema, once for all calls at the same time."""
        self.pool.bind()
        if self.opened:
            return
        opening = self._opening.get()
        if opening is None or opening.done():
            opening = asyncio.ensure_future(self._check_and_join_pool())
            opening.add_done_callback(_retrieve_exception)
            self._opening.set(opening)
        await asyncio.shield(opening)  # one caller that gives up does not close it to the others

    async def _check_and_join_pool(self) -> None:
        """Check the schema and the durability of the server, and count this handle as a user of the pool."""
        try:
            await check_database(self.pool)
            self._accept_durability()
        except BaseException:
            if not self.pool.users:  # else other handles use its connections
                await self.pool.close()
            raise
        self.pool.users.add(self)
        self.opened = True

    def _accept_durability(self) -> None:
        """Set the durability; refuse a server that cannot give the one that was asked for."""
        requested, offered = self.requested_durability, self.pool.durability
        if requested == "quorum" and offered != "quorum":
            raise ConfigurationError(
                "durability=quorum needs a server with synchronous standbys",
                options=("set synchronous_standby_names there", "leave durability out"),
            )
        if requested == "disk" and offered == "relaxed":
            raise ConfigurationError(
                "durability=disk needs a server with fsync and synchronous_commit on",
                options=("turn them on there", "durability=relaxed"),
            )
        self.durability = requested or offered

    async def close(self) -> None:
        """Leave the pool; the last handle closes its connections."""
        opening = self._opening.get()
        if opening is not None and not opening.done():
            opening.cancel()
            await asyncio.wait((opening,))
        self.opened = False
        self.pool.users.discard(self)
        if not self.pool.users:
            await self.pool.close()

    # ── transactions ────────────────────────────────────────────────────────────────────────────────────────────────

    async def query(self, query: str, values: Mapping[str, Any]) -> list[Row]:
        """Run one named query in its own transaction."""
        (rows,) = await self.query_all((query, values))
        return rows

    async def query_all(self, *queries: NamedQuery, may_repeat: bool = True) -> list[list[Row]]:
        """Run named queries in one transaction and one round trip; return the rows of each.

        Each query sees the data committed before it. With `may_repeat`, a lost connection is retried; without it, the
        outcome of a write may be unknown.
        """
        await self.open()

        async def work(connection: Connection) -> list[list[Row]]:
            return (await self._exchange(connection, queries))[1]

        return await self.pool.retry(work, may_repeat=may_repeat)

    async def commit_queries(
        self, *queries: NamedQuery, may_repeat: bool = True
    ) -> tuple[list[list[Row]], Durability]:
        """Run queries as `query_all` does; return also the durability of their commit, for which they must write."""
        await self.open()

        async def work(connection: Connection) -> tuple[list[list[Row]], Durability]:
            preamble, rows = await self._exchange(connection, queries)
            return rows, await _confirm_durability(connection, preamble)

        return await self.pool.retry(work, may_repeat=may_repeat)

    async def run_transaction(
        self, work: Callable[[Connection], Awaitable[T]], *, may_repeat: bool = True
    ) -> tuple[T, Durability]:
        """Run `work` in one transaction; retry it if the server or another transaction interferes.

        Returns the result and the durability of the commit. An exception in `work` rolls the transaction back.
        """
        await self.open()

        async def attempt(connection: Connection) -> tuple[T, Durability]:
            async with connection.pipeline():
                await connection.execute("BEGIN")
                preamble = await connection.execute(self._preamble, self._settings)
            try:
                result = await work(connection)
            except (ACMSError, psycopg.Error):
                if not connection.closed:
                    await connection.execute("ROLLBACK")
                raise
            await connection.execute("COMMIT")
            return result, await _confirm_durability(connection, preamble)

        return await self.pool.retry(attempt, may_repeat=may_repeat)

    async def query_in(self, connection: Connection, query: str, values: Mapping[str, Any]) -> list[Row]:
        """Run one named query inside a transaction."""
        cursor = await self._execute(connection, query, values)
        return await _fetch_rows(cursor)

    async def _exchange(
        self, connection: Connection, queries: Sequence[NamedQuery]
    ) -> tuple[psycopg.AsyncCursor[Any], list[list[Row]]]:
        """Run queries in one transaction and one round trip; return the cursor of the preamble and the rows of each."""
        async with connection.pipeline():
            preamble = await connection.execute(self._preamble, self._settings)
            cursors = [await self._execute(connection, query, values) for query, values in queries]
        return preamble, [await _fetch_rows(cursor) for cursor in cursors]

    async def _execute(
        self, connection: Connection, query: str, values: Mapping[str, Any]
    ) -> psycopg.AsyncCursor[Any]:
        cursor = connection.cursor(binary=True)
        await cursor.execute(cast(LiteralString, self._sql[query]), {"tenant": self.tenant, **values})
        return cursor

    # ── state of a log ──────────────────────────────────────────────────────────────────────────────────────────────

    async def log_state(
        self, context: str, *, deleted: bool = False, connection: Connection | None = None
    ) -> LogState:
        """Return the state of a log, read in its own transaction or within a given one."""
        values = {"context": context}
        rows = await (
            self.query("head", values) if connection is None else self.query_in(connection, "head", values)
        )
        return self.read_head(context, rows, deleted=deleted)

    def read_head(self, context: str, rows: Sequence[Row], *, deleted: bool = False) -> LogState:
        """Return the state of a log from the rows of the query `head`.

        `SessionNotFoundError` if there is none, or if its context was deleted and `deleted` is false.
        """
        if not rows:
            raise SessionNotFoundError(f"no context has the id {context!r}")
        deleted_at, lineage, *columns, root = rows[0]
        if deleted_at is not None and not deleted:
            raise deleted_session_error(context)
        segments = read_lineage(lineage)
        if len(self.lineages) >= 65_536:  # tens of megabytes
            self.lineages.clear()
        self.lineages[context] = segments
        head = read_columns(context, segments, columns)
        return LogState(head, segments, columns[3], columns[4], root)


def read_columns(context: str, lineage: Lineage, columns: Row) -> Head:
    """Build a head from its columns: from `version` up to and including `tail`."""
    version, messages, tokens, last_version, last_nonce, rewrites, derived, epoch, chain, tail = columns
    return Head(
        context=context,
        version=version,
        messages=messages,
        tokens=tokens,
        last_message=last_message(context, lineage, last_version, last_nonce),
        rewrites=rewrites,
        derived=derived,
        epoch=epoch,
        chain=chain,
        tail=dict(load_mapping(tail)),
    )


def last_message(context: str, lineage: Lineage, version: int | None, nonce: str | None) -> str | None:
    """Return the id of the newest message of a log, which may be inherited."""
    if version is None or nonce is None:
        return None
    owner = context
    # An id names the context that owns the message.
    if lineage:
        ((owner, _, _),) = append_rules.split_segments(context, lineage, version, version)
    return entry_id(Kind.MESSAGE, owner, version, nonce)


async def _fetch_rows(cursor: psycopg.AsyncCursor[Any]) -> list[Row]:
    """Return the rows of an answer; none where the statement has none. `description` would read every column's type."""
    answer = cursor.pgresult
    return await cursor.fetchall() if answer is not None and answer.nfields else []


async def _confirm_durability(connection: Connection, preamble: psycopg.AsyncCursor[Any]) -> Durability:
    """Return the durability of the commit that was just answered.

    Standbys removed from the configuration while a commit waits for them release it without notice, so the setting is
    read once more.
    """
    row = await preamble.fetchone()
    assert row is not None
    *_, commit, standbys, fsync = row
    durability = durability_of_commit(commit, standbys, fsync)
    if durability != "quorum":
        return durability
    try:
        row = await (await connection.execute(_STANDBYS)).fetchone()
    except psycopg.Error as error:  # the commit is valid in any case
        raise UnconfirmedError(f"the standbys could not be checked after the commit: {error}") from error
    assert row is not None
    return durability_of_commit(commit, row[0], fsync)


def _retrieve_exception(task: asyncio.Task[None]) -> None:
    """Retrieve the exception of a task: its waiter may be gone."""
    if not task.cancelled():
        task.exception()
