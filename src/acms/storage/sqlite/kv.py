"""Key-value memory in an SQLite file: one of its own, or that of a log store."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from acms.log.encoding import Entropy
from acms.log.validation import validate_name
from acms.model import Durability, Migration
from acms.storage.kv_home import Clock, How, KVHome, upper_bound_of_prefix, utc_now
from acms.storage.sql import load_queries
from acms.storage.sqlite.file import SQLiteFile
from acms.storage.sqlite.tables import Tables


class SQLiteKV(KVHome):
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
        self._owns = True
        self._file = SQLiteFile(
            path, durability=durability, read_only=read_only, busy_seconds=busy_seconds, clock=clock
        )
        self.path, self.durability, self.read_only = self._file.path, self._file.durability, read_only
        self.tenant = validate_name(tenant, "tenant")
        self._clock = clock
        self._entropy = entropy
        self._tables = Tables(self.tenant, load_queries("kv_sqlite"))

    @classmethod
    def over(cls, file: SQLiteFile, tenant: str, clock: Clock, entropy: Entropy) -> SQLiteKV:
        """Return the values of a tenant in a file that the caller opens and closes."""
        made = cls.__new__(cls)
        made._file, made._clock, made._entropy = file, clock, entropy
        made.path, made.durability, made.read_only = file.path, file.durability, file.read_only
        made.tenant, made._owns = tenant, False
        made._tables = Tables(tenant, load_queries("kv_sqlite"))
        return made

    def __repr__(self) -> str:
        mode = ", read_only=True" if self.read_only else ""
        return f"{type(self).__name__}({str(self.path)!r}, tenant={self.tenant!r}{mode})"

    async def _get(self, key: str) -> Any:
        values = {"tenant": self.tenant, "key": key}
        return await self._file.read(lambda reader: self._tables.row(reader, "get", values))

    async def _put(self, how: How, values: Mapping[str, Any]) -> Any:
        query = "set" if how == "any" else "set_new" if how == "new" else "set_known"
        values = {"tenant": self.tenant, **values}
        return await self._file.write(lambda writer: self._tables.row(writer, query, values))

    async def _delete(self, key: str) -> bool:
        values = {"tenant": self.tenant, "key": key}
        return bool(await self._file.write(lambda writer: self._tables.rows(writer, "delete", values)))

    async def _list(self, prefix: str, after: str, limit: int) -> Any:
        values = {
            "tenant": self.tenant,
            "prefix": prefix,
            "end": upper_bound_of_prefix(prefix),
            "after": after,
            "limit": limit,
        }
        return await self._file.read(lambda reader: self._tables.rows(reader, "list", values), large=True)

    async def aclose(self) -> None:
        """Finish queued work and close the file; idempotent. A later call opens it again."""
        if self._owns:
            await self._file.aclose()

    async def migrations(self, *, partitions: int | None = None) -> list[Migration]:
        """Return every step of the schema; the file is read, or left alone where there is none."""
        return await self._file.migrations(partitions)

    async def migrate(
        self, *, partitions: int | None = None, progress: Callable[[Migration], None] | None = None
    ) -> list[Migration]:
        """Open the file, which applies the missing migrations; return the applied ones."""
        return await self._file.migrate(partitions, progress)
