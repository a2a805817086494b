"""The store in memory: a SQLite database that ends with the object."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar

import apsw

from acms.errors import ACMSError
from acms.log.encoding import Entropy
from acms.storage import handles
from acms.storage.sqlite import schema
from acms.storage.sqlite.database import (
    CommitHooks,
    ErrorTranslation,
    Function,
    open_connection,
    run_transaction,
)
from acms.storage.sqlite.store import DatabaseStorage

T = TypeVar("T")


class MemoryDatabase:
    """A SQLite database in memory with one connection, on which everything runs at once, in the caller's thread."""

    def __init__(self, clock: Callable[[], datetime]) -> None:
        self.hooks = CommitHooks()
        self._errors = ErrorTranslation("memory://")
        self._connection = open_connection(":memory:", apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE)
        schema.migrate_file(self._connection, clock, None)
        #: Held during reads and writes: several event loops run in several threads.
        self._lock = threading.Lock()

    async def read(self, function: Callable[[apsw.Connection], T], *, large: bool = False) -> T:
        """Run a function that only reads, however long it takes."""
        del large
        with self._lock, self._errors:
            return function(self._connection)

    async def write_all(self, functions: Sequence[Function]) -> list[Any]:
        """Run functions in one transaction, each undone on its own when it fails; return results and errors."""
        with self._lock:
            try:
                return run_transaction(self._connection, functions, self.hooks, self._errors)
            except ACMSError as error:
                return [error] * len(functions)

    async def write(self, function: Callable[[apsw.Connection], T]) -> T:
        """Run a function in a transaction."""
        (result,) = await self.write_all([function])
        if isinstance(result, ACMSError):
            raise result
        return result

    async def defer(self, function: Function) -> None:
        """Run a function in a transaction; its error, if any, is dropped."""
        await self.write_all([function])


class MemoryStorage(DatabaseStorage):
    """A store in memory; its data lives as long as the object. Any event loop and thread may use it."""

    def __init__(
        self,
        *,
        tenant: str = "default",
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        entropy: Entropy = os.urandom,
    ) -> None:
        super().__init__(
            MemoryDatabase(clock), tenant=tenant, durability="memory", clock=clock, entropy=entropy
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}(tenant={self.tenant!r})"

    async def __aenter__(self) -> MemoryStorage:
        """Use the store in a block."""
        handles.retain_handle(self)
        return self

    async def aclose(self) -> None:
        """Do nothing: the stored data lives as long as the object."""

    async def residue(self, ids: Sequence[str], texts: Sequence[bytes]) -> list[str]:
        """Return the remains of erased entries outside the log; there are no bytes to search for texts."""
        del texts
        return await self._database.read(lambda connection: self._eraser.find_remains(connection, ids))


InMemoryBackend = MemoryStorage
"""The name that the implementation plan gave it."""
