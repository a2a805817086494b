"""Key-value memory in an SQLite file: one of its own, or that of a log store."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import apsw

from acms.log.hash_chain import Entropy
from acms.log.validation import name
from acms.model import Durability
from acms.storage.kv_home import Clock, How, KVHome, utc_now
from acms.storage.sql import queries
from acms.storage.sqlite.file import SQLiteFile


class SQLiteKV(KVHome, SQLiteFile):
    """Key-value memory in one SQLite file, safe for many handles and processes.

    The file may be that of a log store: it has the same schema, and the two take turns as two processes do. What was
    set is on the disk when the call returns; calls that wait together share a commit. Values of one `tenant` are
    invisible to others. `durability` and `read_only` are those of `SQLiteStorage`.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        tenant: str = "default",
        durability: Durability = "disk",
        read_only: bool = False,
        busy_seconds: float = 10.0,
        clock: Clock = utc_now,
        entropy: Entropy = os.urandom,
    ) -> None:
        SQLiteFile.__init__(
            self, path, durability=durability, read_only=read_only, busy_seconds=busy_seconds, clock=clock
        )
        self.tenant = name(tenant, "tenant")
        self._entropy = entropy
        self._sql = queries("kv_sqlite")

    async def _get(self, key: str) -> tuple[Any, Any, Any, Any, Any] | None:
        def work(connection: apsw.Connection) -> Any:
            values = {"tenant": self.tenant, "key": key}
            return next(iter(connection.execute(self._sql["get"], values).fetchall()), None)

        return await self._read(work)

    async def _put(self, how: How, values: Mapping[str, Any]) -> tuple[Any, Any] | None:
        query = "set" if how == "any" else "set_new" if how == "new" else "set_known"

        def work(connection: apsw.Connection) -> Any:
            rows = connection.execute(self._sql[query], {"tenant": self.tenant, **values}).fetchall()
            return next(iter(rows), None)

        return await self._write(work)

    async def _delete(self, key: str) -> bool:
        def work(connection: apsw.Connection) -> bool:
            values = {"tenant": self.tenant, "key": key}
            return bool(connection.execute(self._sql["delete"], values).fetchall())

        return await self._write(work)

    async def aclose(self) -> None:
        """Finish what is queued and close the file; idempotent. A later call opens it again."""
        await SQLiteFile.aclose(self)
