"""Key-value memory in a PostgreSQL database: one statement per change, in a transaction that names its tenant."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any

from acms.core.chain import Entropy
from acms.core.validate import name, whole
from acms.errors import (
    ACMSError,
    ConfigurationError,
    CorruptRecordError,
    MissingExtraError,
    StorageBusyError,
    StorageError,
    StorageFullError,
    StorageReadOnlyError,
    StorageUnavailableError,
)
from acms.storage.kv import Clock, How, KVHome, OneLoop, utc_now
from acms.storage.sql import migrations, queries

if TYPE_CHECKING:
    from psycopg import AsyncConnection
    from psycopg_pool import AsyncConnectionPool

PAUSE = 0.05
"""Seconds before a call is tried again whose connection broke."""
#: Both end with the transaction, so a pooler that gives the connection to somebody else in between does no harm.
_NAME_TENANT = "SELECT set_config('role', 'acms_app', true), set_config('acms.tenant', %s, true)"


class PostgresKV(KVHome, OneLoop):
    """Key-value memory in the table `acms.kv` of a PostgreSQL database (extra `postgres`).

    Values of one `tenant` are invisible to others: every query names it, and row-level security stands behind that. The
    first handle on a database makes the table, for which it must be allowed to; later ones need to be members of the
    role `acms_app` only. One call is one round trip, also through PgBouncer in transaction mode. When the connection is
    lost, `get`, `set` and `compare_and_set` are tried again; a call takes at most `timeout_seconds`.
    """

    def __init__(
        self,
        dsn: str,
        *,
        tenant: str = "default",
        connections: int = 4,
        timeout_seconds: float = 10.0,
        clock: Clock = utc_now,
        entropy: Entropy = os.urandom,
    ) -> None:
        OneLoop.__init__(self)
        try:
            from psycopg import ProgrammingError
            from psycopg.conninfo import conninfo_to_dict
            from psycopg_pool import AsyncConnectionPool
        except ImportError as missing:
            raise MissingExtraError("postgres", (missing.name or "psycopg").replace("_", "-")) from missing
        try:
            conninfo_to_dict(dsn)
        except ProgrammingError as error:
            raise ConfigurationError(
                f"the DSN does not name a PostgreSQL database: {error}",
                options=("postgresql://user@host/database", "host=… dbname=… user=…"),
            ) from error
        self.tenant = name(tenant, "tenant")
        self._dsn = dsn
        self._new_pool: Callable[[], AsyncConnectionPool] = partial(
            AsyncConnectionPool,
            dsn,
            min_size=1,
            max_size=whole(connections, "connections", least=1),
            timeout=timeout_seconds,
            kwargs={
                "prepare_threshold": None
            },  # a pooler may send the next transaction to another server process
            open=False,
        )
        self._timeout = timeout_seconds
        self._clock = clock
        self._entropy = entropy
        self._sql = queries("kv_postgres")
        self._opening: asyncio.Task[AsyncConnectionPool] | None = None

    async def _pool(self) -> AsyncConnectionPool:
        opening = self._opening
        if not self._own() or opening is None or (opening.done() and _failed(opening)):
            opening = self._opening = asyncio.create_task(self._start())
            opening.add_done_callback(_failed)
        return await asyncio.shield(opening)

    async def _start(self) -> AsyncConnectionPool:
        from psycopg import AsyncConnection

        # One connection apart from the pool: it says why it cannot be made, the pool would only try again.
        with _translated():
            async with asyncio.timeout(self._timeout):
                async with await AsyncConnection.connect(self._dsn, prepare_threshold=None) as connection:
                    await self._migrate(connection)
        pool = self._new_pool()
        await pool.open()
        return pool

    async def _migrate(self, connection: AsyncConnection) -> None:
        from psycopg.errors import DuplicateSchema, UniqueViolation

        while True:
            cursor = await connection.execute("SELECT to_regclass('acms.kv') IS NOT NULL")
            if await cursor.fetchone() == (True,):
                return
            try:
                for _, _, script in migrations("kv_postgres"):
                    await connection.execute(script.encode())
                return
            except (DuplicateSchema, UniqueViolation):  # a log store made the schema in this moment
                await connection.rollback()

    async def _get(self, key: str) -> tuple[Any, Any, Any, Any, Any] | None:
        rows = await self._run(self._sql["get"], {"key": key})
        return rows[0] if rows else None

    async def _put(self, how: How, values: Mapping[str, Any]) -> tuple[Any, Any] | None:
        query = "set" if how == "any" else "set_new" if how == "new" else "set_known"
        rows = await self._run(self._sql[query], values)
        return rows[0] if rows else None

    async def _delete(self, key: str) -> bool:
        return bool(await self._run(self._sql["delete"], {"key": key}, again=False))

    async def _run(self, query: str, values: Mapping[str, Any], *, again: bool = True) -> list[Any]:
        # A task of its own: on a server that hangs, ending a call in order takes longer than its caller may wait.
        call = asyncio.create_task(self._call(query, {"tenant": self.tenant, **values}, again))
        call.add_done_callback(_failed)
        try:
            done, _ = await asyncio.wait((call,), timeout=self._timeout)
        finally:
            call.cancel()
        with _translated():
            if not done:
                raise TimeoutError(f"nothing within {self._timeout} seconds")
            return call.result()

    async def _call(self, query: str, values: Mapping[str, Any], again: bool) -> list[Any]:
        from psycopg import OperationalError

        pool = await self._pool()
        while True:
            try:
                return await self._once(pool, query, values)
            except OperationalError as error:
                if not (again and _lost(error)):
                    raise
            await asyncio.sleep(PAUSE)
            await pool.check()  # throws out the connections that broke with this one

    async def _once(self, pool: AsyncConnectionPool, query: str, values: Mapping[str, Any]) -> list[Any]:
        async with pool.connection() as connection, connection.pipeline():
            async with connection.transaction():
                await connection.execute(_NAME_TENANT, (self.tenant,))
                cursor = await connection.execute(query.encode(), values)
            return await cursor.fetchall()

    async def aclose(self) -> None:
        """Close the connections; idempotent. A later call opens them again."""
        opening, open_here = self._opening, self._disown()
        self._opening = None
        if opening is not None and open_here:
            with suppress(ACMSError):
                await (await opening).close()


def _failed(task: asyncio.Task[Any]) -> bool:
    """Return whether a task that ended has no result; to ask is also to have noticed its error."""
    return task.cancelled() or task.exception() is not None


def _lost(error: Exception) -> bool:
    """Return whether the connection broke, or the server was about to end or to begin."""
    state = getattr(error, "sqlstate", None)
    return state is None or state.startswith(("08", "57P"))


_REPEAT = "repeat the call"
_KINDS: Sequence[tuple[str, type[StorageError], str]] = (
    ("08", StorageUnavailableError, _REPEAT),  # the connection
    ("25006", StorageReadOnlyError, "name the primary in the DSN: target_session_attrs=read-write"),
    ("28", StorageError, "check user and password in the DSN"),
    ("40", StorageBusyError, _REPEAT),  # serialization, deadlock
    ("42501", StorageError, "let the owner of the database open it once, then: GRANT acms_app TO …"),
    ("53100", StorageFullError, "free some space on the server"),
    ("53", StorageUnavailableError, _REPEAT),  # memory, connections
    ("55P03", StorageBusyError, _REPEAT),  # a lock
    ("57014", StorageBusyError, _REPEAT),  # the server's own time limit
    ("57P", StorageUnavailableError, _REPEAT),  # shutting down, starting up
    ("XX", CorruptRecordError, "restore the database from a backup"),
)
"""Beginnings of an SQLSTATE → what it is here, and what to do about it."""


class _translated:
    """Turn the errors of the driver and the server into ours."""

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, _type: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        if error is None or isinstance(error, ACMSError):
            return
        from psycopg import Error, InterfaceError, OperationalError
        from psycopg_pool import PoolClosed

        state = getattr(error, "sqlstate", None)
        if isinstance(error, Error) and state is not None:
            known = ((kind, advice) for start, kind, advice in _KINDS if state.startswith(start))
            kind, advice = next(known, (StorageError, ""))
            raise kind(f"PostgreSQL {state}: {error}", options=(advice,) if advice else ()) from error
        if isinstance(error, OperationalError | InterfaceError | PoolClosed | TimeoutError | OSError):
            raise StorageUnavailableError(
                f"PostgreSQL does not answer: {error}",
                options=(_REPEAT, "check that the server runs and the DSN is right"),
            ) from error
        if isinstance(error, Error):
            raise StorageError(f"PostgreSQL: {error}") from error
