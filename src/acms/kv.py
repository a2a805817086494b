"""Key-value memory: JSON values under keys, for pins and stored summaries.

kv = open_kv("sqlite:///pins.db")
await kv.set("profile", {"name": "Sam"})
"""

from typing import TYPE_CHECKING

from acms.storage.kv import (
    CompareAndSetKV,
    InMemoryKV,
    KVEntry,
    KVMemory,
    KVPage,
    ListingKV,
    change_entry,
    list_entries,
    open_kv,
    update_entry,
)
from acms.storage.kv import __dir__ as __dir__
from acms.storage.kv import __getattr__ as __getattr__

if TYPE_CHECKING:
    from acms.storage.kv.redis import RedisKV
    from acms.storage.postgres.kv import PostgresKV
    from acms.storage.sqlite.kv import SQLiteKV

__all__ = [
    "CompareAndSetKV",
    "InMemoryKV",
    "KVEntry",
    "KVMemory",
    "KVPage",
    "ListingKV",
    "PostgresKV",
    "RedisKV",
    "SQLiteKV",
    "change_entry",
    "list_entries",
    "open_kv",
    "update_entry",
]
