"""Key-value memory in a SQLite database: in a file of its own, or in the database of a log store."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from acms.log.encoding import Entropy
from acms.log.validation import validate_name
from acms.model import Durability, Migration
from acms.storage.kv_base import QUERY_TO_PUT, BaseKV, Clock, PutMode, upper_bound_of_prefix, utc_now
from acms.storage.sql import load_queries
from acms.storage.sqlite.database import Database
from acms.storage.sqlite.file import SQLiteFile
from acms.storage.sqlite.tables import Tables


class DatabaseKV(BaseKV):
    """The values of a tenant in a database that the caller opens and closes."""

    def __init__(self, database: Database, tenant: str, clock: Clock, entropy: Entropy) -> None:
        self.tenant = tenant
        self._database = database
        self._clock = clock
        self._entropy = entropy
        self._tables = Tables(tenant, load_queries("kv_sqlite"))

    def __repr__(self) -> str:
        return f"{type(self).__name__}(tenant={self.tenant!r})"

    async def _get(self, key: str) -> Any:
        values = {"tenant": self.tenant, "key": key}
        return await self._database.read(lambda reader: self._tables.row(reader, "get", values))

    async def _put(self, mode: PutMode, values: Mapping[str, Any]) -> Any:
        values = {"tenant": self.tenant, **values}
        return await self._database.write(lambda writer: self._tables.row(writer, QUERY_TO_PUT[mode], values))

    async def _delete(self, key: str) -> bool:
        values = {"tenant": self.tenant, "key": key}
        return bool(await self._database.write(lambda writer: self._tables.rows(writer, "delete", values)))

    async def _list(self, prefix: str, after: str, limit: int) -> Any:
        values = {
            "tenant": self.tenant,
            "prefix": prefix,
            "end": upper_bound_of_prefix(prefix),
            "after": after,
            "limit": limit,
        }
        return await self._database.read(lambda reader: self._tables.rows(reader, "list", values), large=True)

    async def aclose(self) -> None:
        """Do nothing: the database belongs to the caller."""


class SQLiteKV(DatabaseKV):
    """Key-value memory in one SQLite file, safe for many handles and processes.

    The file may be that of a log store: it has the same schema, and the two take turns like two processes. A value is
    on the disk when the call that set it returns; concurrent calls share a commit. Values of one `tenant` are invisible
    to others. `durability` and `read_only` are those of `SQLiteStorage`.
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
        self._file = SQLiteFile(
            path, durability=durability, read_only=read_only, busy_seconds=busy_seconds, clock=clock
        )
        super().__init__(self._file, validate_name(tenant, "tenant"), clock, entropy)
        self.path = self._file.path
        self.durability = durability
        self.read_only = read_only

    def __repr__(self) -> str:
        mode = ", read_only=True" if self.read_only else ""
        return f"{type(self).__name__}({str(self.path)!r}, tenant={self.tenant!r}{mode})"

    async def aclose(self) -> None:
        """Finish queued work and close the file; idempotent. A later call opens it again."""
        await self._file.aclose()

    async def migrations(self, *, partitions: int | None = None) -> list[Migration]:
        """Return every step of the schema; the file is read, or left alone where there is none."""
        return await self._file.migrations(partitions)

    async def migrate(
        self, *, partitions: int | None = None, progress: Callable[[Migration], None] | None = None
    ) -> list[Migration]:
        """Open the file, which applies the missing migrations; return the applied ones."""
        return await self._file.migrate(partitions, progress)
