"""Key-value memory in a PostgreSQL database: one statement per change, over the connections of a log store."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from acms.errors import MissingExtraError, StorageUnavailableError
from acms.log.encoding import Entropy
from acms.log.validation import validate_integer
from acms.storage.kv_base import QUERY_TO_PUT, BaseKV, Clock, PutMode, Row, upper_bound_of_prefix, utc_now

if TYPE_CHECKING:
    from acms.storage.postgres.pool import Pool


class PostgresKV(BaseKV):
    """Key-value memory in the table `acms.kv` of a PostgreSQL database (extra `postgres`).

    Values of one `tenant` are invisible to others: every query names it, and row-level security stands behind that. The
    first handle on a database makes the schema, as that of a log store does. One call is one round trip, also through
    PgBouncer in transaction mode. When the connection is lost, `get`, `set` and `compare_and_set` are tried again; a
    call takes at most `timeout_seconds`. `PostgresStorage.kv()` returns one that shares its connections.
    """

    def __init__(
        self,
        dsn: str | Pool,
        *,
        tenant: str = "default",
        connections: int = 4,
        timeout_seconds: float = 10.0,
        clock: Clock = utc_now,
        entropy: Entropy = os.urandom,
    ) -> None:
        try:
            from acms.storage.postgres.database import Database
            from acms.storage.postgres.pool import Pool
        except ImportError as missing:
            raise MissingExtraError("postgres", missing.name or "psycopg") from missing
        size = validate_integer(connections, "connections", minimum=1)
        # Less than the time for a call: the side that gives up first reports the error.
        pool = Pool.from_dsn(
            dsn, size=size, patience=0.8 * timeout_seconds, statement_seconds=timeout_seconds
        )
        self._db = Database(pool, tenant, dialect="kv_postgres", statement_seconds=timeout_seconds)
        self.tenant = self._db.tenant
        self._timeout = timeout_seconds
        self._clock = clock
        self._entropy = entropy

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._db.pool.name}, tenant={self.tenant!r})"

    async def _get(self, key: str) -> tuple[Any, Any, Any, Any, Any] | None:
        rows = await self._run("get", {"key": key})
        return rows[0] if rows else None

    async def _put(self, mode: PutMode, values: Mapping[str, Any]) -> tuple[Any, Any] | None:
        rows = await self._run(QUERY_TO_PUT[mode], values)
        return rows[0] if rows else None

    async def _delete(self, key: str) -> bool:
        return bool(await self._run("delete", {"key": key}, may_repeat=False))

    async def _list(self, prefix: str, after: str, limit: int) -> Sequence[Row]:
        return await self._run(
            "list", {"prefix": prefix, "end": upper_bound_of_prefix(prefix), "after": after, "limit": limit}
        )

    async def _run(self, query: str, values: Mapping[str, Any], *, may_repeat: bool = True) -> list[Any]:
        """Run a query within the time for a call; return its rows."""
        try:
            async with asyncio.timeout(self._timeout):
                (rows,) = await self._db.query_all((query, values), may_repeat=may_repeat)
        except TimeoutError:
            raise StorageUnavailableError(
                f"PostgreSQL did not answer within {self._timeout:g} seconds; the request may have arrived",
                options=("repeat the call", "check that the server is running and reachable"),
            ) from None
        return rows

    async def aclose(self) -> None:
        """Let go of the connections, which the last handle closes; idempotent. A later call opens them again."""
        await self._db.close()
