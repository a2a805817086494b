"""Key-value memory: JSON values under keys, for pins and stored summaries.

kv = open_kv("sqlite:///pins.db")
await kv.set("profile", {"name": "Sam"})
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote
from weakref import WeakKeyDictionary, WeakValueDictionary

from acms.errors import ConfigurationError, ConflictError, ValidationError
from acms.log import validation
from acms.model import Json, KVEntry, KVPage
from acms.ports import CompareAndSetKV, KVMemory, ListingKV
from acms.runtime.chance import chance
from acms.runtime.lazy import lazy_attributes
from acms.storage import urls
from acms.storage.kv_base import BaseKV, InMemoryKV

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

_HOMES = {
    "PostgresKV": "acms.storage.postgres.kv",
    "RedisKV": "acms.storage.kv.redis",
    "SQLiteKV": "acms.storage.sqlite.kv",
}
__getattr__, __dir__ = lazy_attributes(__name__, _HOMES)


ATTEMPTS = 100
"""How often a change is decided again when others were first."""

_key_locks: WeakKeyDictionary[
    asyncio.AbstractEventLoop, WeakValueDictionary[tuple[int, str], asyncio.Lock]
] = WeakKeyDictionary()
"""Per event loop: a lock for each store and key that is being changed."""
_key_locks_guard = threading.Lock()


async def update_entry(store: KVMemory, key: str, change: Callable[[KVEntry | None], Json]) -> KVEntry:
    """Change a value based on its current data without losing other writers' changes; return the stored entry.

    `change` gets the entry (None if there is none) and returns the new data; the metadata stays. It is called again
    when another process was first, so it must have no side effects. `ConflictError` after a hundred lost races.

    On a store that cannot compare and set, only changes made by this function in one event loop are safe.
    """

    def both(current: KVEntry | None) -> tuple[Json, Mapping[str, Json] | None]:
        return change(current), None if current is None else current.metadata

    stored = await change_entry(store, key, both)
    assert stored is not None
    return stored


async def list_entries(store: ListingKV, prefix: str = "") -> AsyncIterator[KVEntry]:
    """Yield every entry whose key begins with a prefix, by key; entries set during the iteration may be missing."""
    after: str | None = None
    while True:
        page = await store.list(prefix, after=after, limit=validation.PAGE)
        for entry in page.entries:
            yield entry
        after = page.next_after
        if after is None:
            return


async def change_entry(
    store: KVMemory,
    key: str,
    change: Callable[[KVEntry | None], tuple[Json, Mapping[str, Json] | None] | None],
) -> KVEntry | None:
    """Change a value and its metadata; `change` gets the entry, or None, and returns both, or None to leave them.

    If another writer changes the entry meanwhile, `change` is called again with what that one wrote.
    """
    async with _lock_for_key(store, key):
        attempt = 0
        while True:
            current = await store.get(key)
            decision = change(current)
            if decision is None:
                return None
            data, metadata = decision
            # Only the lock of this process protects such a store.
            if not isinstance(store, CompareAndSetKV):
                return await store.set(key, data, metadata)
            try:
                expect = None if current is None else current.revision
                return await store.compare_and_set(key, data, expect=expect, metadata=metadata)
            except ConflictError:
                attempt += 1
                if attempt == ATTEMPTS:
                    raise
            await asyncio.sleep(chance.random() * min(0.05, 0.001 * 2**attempt))


def _lock_for_key(store: KVMemory, key: str) -> asyncio.Lock:
    """Return the lock of a store's key: callers in one process queue instead of conflicting repeatedly."""
    loop = asyncio.get_running_loop()
    with _key_locks_guard:
        locks = _key_locks.setdefault(loop, WeakValueDictionary())
        return locks.setdefault((id(store), key), asyncio.Lock())


_FORMS = ("memory://", "sqlite:///file.db", "postgresql://host/database", "redis://host:6379/0")


def open_kv(url: str | Path) -> BaseKV:
    """Return a handle on the key-value memory a URL names; it is opened by its first use. A `Path` is a SQLite file.

        memory://                                      gone with the object
        sqlite:///pins.db                              a file; the file of a log store will do
        sqlite:///pins.db?mode=ro&tenant=acme          as in `acms.open_storage`, also durability=relaxed
        postgresql://user@host/database?tenant=acme    the database of a log store will do; extra `postgres`
        redis://host:6379/0?prefix=acms:kv:            also rediss:// and unix://, ttl_seconds=3600; extra `redis`

    `ConfigurationError` for anything else.
    """
    if isinstance(url, Path):
        from acms.storage.sqlite.kv import SQLiteKV

        return SQLiteKV(url)
    if not isinstance(url, str):
        raise ConfigurationError(
            f"a key-value store must be a URL or a Path, not {type(url).__name__}", options=_FORMS
        )
    urls.refuse_repeated_options(url)
    urls.refuse_mistakes(url, _FORMS)
    scheme, _, rest = url.partition("://")
    try:
        if scheme == "memory":
            address, options = _split_options(rest, "tenant")
            validation.validate_name(options.get("tenant", "default"), "tenant")
            if not address:
                return InMemoryKV()
        elif scheme == "sqlite":
            store = _open_sqlite(rest)
            if store is not None:
                return store
        elif scheme in ("postgresql", "postgres"):
            from acms.storage.postgres.kv import PostgresKV

            address, options = _split_options(rest, "tenant")
            return PostgresKV(f"{scheme}://{address}", tenant=options.get("tenant", "default"))
        elif scheme in ("redis", "rediss", "unix"):
            from acms.storage.kv.redis import RedisKV

            address, options = _split_options(rest, "prefix", "ttl_seconds")
            ttl = options.get("ttl_seconds")
            return RedisKV(
                f"{scheme}://{address}",
                prefix=options.get("prefix", "acms:kv:"),
                ttl_seconds=None if ttl is None else int(ttl),
            )
    except (ValidationError, ValueError) as error:
        raise ConfigurationError(
            f"{urls.without_password(url)!r} does not name a key-value memory: {error}"
        ) from error
    raise ConfigurationError(
        f"{urls.without_password(url)!r} does not name a key-value memory",
        options=_FORMS,
    )


def _open_sqlite(rest: str) -> BaseKV | None:
    """Return a handle on a SQLite file, or None if the rest of the URL names no path or has other options."""
    from acms.storage.sqlite.kv import SQLiteKV

    path, options = _split_options(rest, "tenant", "mode", "durability")
    mode, durability = options.get("mode", "rw"), options.get("durability", "disk")
    is_known = mode in ("ro", "rw") and durability in ("disk", "relaxed") and "?" not in path
    if is_known and path[:1] == "/" and path[1:]:
        return SQLiteKV(
            unquote(path[1:]),
            tenant=options.get("tenant", "default"),
            durability="disk" if durability == "disk" else "relaxed",
            read_only=mode == "ro",
        )
    return None


def _split_options(rest: str, *names: str) -> tuple[str, dict[str, str]]:
    """Remove the named options from a URL; the rest goes to the driver unchanged."""
    address, _, query = rest.partition("?")
    options: dict[str, str] = {}
    rest_options: list[str] = []
    for item in query.split("&") if query else ():
        name, _, value = item.partition("=")
        if name in names:
            options[name] = unquote(value)
        else:
            rest_options.append(item)
    return (f"{address}?{'&'.join(rest_options)}" if rest_options else address), options
