"""Key-value memory: JSON values under keys, for pins and stored summaries.

kv = open_kv("sqlite:///pins.db")
await kv.set("profile", {"name": "Sam"})
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary, WeakValueDictionary

from acms.errors import ConflictError
from acms.model import Json, KVEntry
from acms.ports import CompareAndSetKV, KVMemory
from acms.runtime.lazy import lazily
from acms.storage.kv.base import InMemoryKV, open_kv

if TYPE_CHECKING:
    from acms.storage.kv.postgres import PostgresKV
    from acms.storage.kv.redis import RedisKV
    from acms.storage.kv.sqlite import SQLiteKV

__all__ = [
    "CompareAndSetKV",
    "InMemoryKV",
    "KVEntry",
    "KVMemory",
    "PostgresKV",
    "RedisKV",
    "SQLiteKV",
    "change_entry",
    "open_kv",
    "update_entry",
]

_HOMES = {
    "PostgresKV": "acms.storage.kv.postgres",
    "RedisKV": "acms.storage.kv.redis",
    "SQLiteKV": "acms.storage.kv.sqlite",
}
__getattr__, __dir__ = lazily(__name__, _HOMES)


ATTEMPTS = 100
"""How often a change is decided again when others were first."""

_turns: WeakKeyDictionary[asyncio.AbstractEventLoop, WeakValueDictionary[tuple[int, str], asyncio.Lock]] = (
    WeakKeyDictionary()
)
"""Per event loop: a lock for each store and key that is being changed."""
_making = threading.Lock()


async def update_entry(store: KVMemory, key: str, change: Callable[[KVEntry | None], Json]) -> KVEntry:
    """Change a value by what it is now, so that no other writer's change is lost; return it as stored.

    `change` gets the entry (None when there is none) and returns the new data; the metadata stays. It is called again
    when another process was first, so it must do nothing else. `ConflictError` when others were first a hundred times.

    On a store that cannot compare and set, only changes made by this function in one event loop are safe.
    """

    def both(before: KVEntry | None) -> tuple[Json, Mapping[str, Json] | None]:
        return change(before), None if before is None else before.metadata

    stored = await change_entry(store, key, both)
    assert stored is not None
    return stored


async def change_entry(
    store: KVMemory,
    key: str,
    change: Callable[[KVEntry | None], tuple[Json, Mapping[str, Json] | None] | None],
) -> KVEntry | None:
    """Change a value and its metadata as `update_entry` changes a value; `change` returns None to leave them."""
    async with _turn(store, key):
        attempt = 0
        while True:
            before = await store.get(key)
            decided = change(before)
            if decided is None:
                return None
            data, metadata = decided
            if not isinstance(store, CompareAndSetKV):
                return await store.set(key, data, metadata)
            try:
                expect = None if before is None else before.revision
                return await store.compare_and_set(key, data, expect=expect, metadata=metadata)
            except ConflictError:
                attempt += 1
                if attempt == ATTEMPTS:
                    raise
            await asyncio.sleep(random.random() * min(0.05, 0.001 * 2**attempt))


def _turn(store: KVMemory, key: str) -> asyncio.Lock:
    """Return the lock of a store's key: callers of one process queue up instead of overtaking each other for ever."""
    loop = asyncio.get_running_loop()
    with _making:
        locks = _turns.setdefault(loop, WeakValueDictionary())
        return locks.setdefault((id(store), key), asyncio.Lock())
