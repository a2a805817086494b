"""Stores: `open_storage(url)`, the wrappers around a store, and the shards of many tenants."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, unquote, urlsplit

from acms.errors import ConfigurationError, MissingExtraError
from acms.model import VectorSearchResult
from acms.ports import Handle
from acms.runtime.lazy import lazy_attributes
from acms.storage import urls
from acms.storage.cache import CachedStorage, CacheStats
from acms.storage.wrapper import WrapperStorage

if TYPE_CHECKING:
    from acms.storage.chroma.vectors import ChromaVectors
    from acms.storage.postgres.store import PostgresBackend, PostgresStorage
    from acms.storage.shards import Shards
    from acms.storage.sqlite.memory import InMemoryBackend, MemoryStorage
    from acms.storage.sqlite.store import SQLiteBackend, SQLiteStorage

__all__ = [
    "CacheStats",
    "CachedStorage",
    "ChromaVectors",
    "InMemoryBackend",
    "MemoryStorage",
    "PostgresBackend",
    "PostgresStorage",
    "SQLiteBackend",
    "SQLiteStorage",
    "Shards",
    "VectorSearchResult",
    "WrapperStorage",
    "open_storage",
]

_HOMES = {
    "ChromaVectors": "acms.storage.chroma.vectors",
    "InMemoryBackend": "acms.storage.sqlite.memory",
    "MemoryStorage": "acms.storage.sqlite.memory",
    "PostgresBackend": "acms.storage.postgres.store",
    "PostgresStorage": "acms.storage.postgres.store",
    "SQLiteBackend": "acms.storage.sqlite.store",
    "SQLiteStorage": "acms.storage.sqlite.store",
    "Shards": "acms.storage.shards",
}
__getattr__, __dir__ = lazy_attributes(__name__, _HOMES)


def open_storage(url: str | Path) -> Handle:
    """Return a handle on the store a URL names; it is opened by its first use. A `Path` is that of a SQLite file.

        memory://                                      gone with the object
        sqlite:///notes.db                             a file, relative to the working folder
        sqlite:////var/lib/acms/notes.db               a file by its absolute path
        sqlite:///notes.db?mode=ro                     never changes anything
        sqlite:///notes.db?durability=relaxed          faster; a power cut may lose the last commits
        sqlite:///notes.db?tenant=acme                 data of one owner, invisible to others
        postgresql://user@host/acms?tenant=acme        a database; needs the extra `postgres`
        postgresql://user@host/acms?mode=ro            every transaction is read-only
        postgresql://h1,h2/acms?target_session_attrs=read-write&durability=quorum
                                                       the node of several that takes writes
        postgresql://host/acms?hints=on                wake `acms worker` at once
        postgresql://host/acms?pool_size=20&retry_seconds=5
                                                       connections of this process (10), and seconds that temporary
                                                       failures are retried (30); other options are libpq's
        shards.toml?tenant=acme                        the store that holds a tenant, see `Shards`

    `ConfigurationError` for anything else; a password is never part of an error.
    """
    if isinstance(url, Path):
        from acms.storage.sqlite.store import SQLiteStorage

        return SQLiteStorage(url)
    if not isinstance(url, str):
        raise ConfigurationError(
            f"a store must be a URL or a Path, not {type(url).__name__}", options=_STORES
        )
    urls.refuse_repeated_options(url)
    scheme, separator, _ = url.partition("://")
    if separator and scheme in ("postgresql", "postgres"):
        return _open_postgres(url)
    urls.refuse_mistakes(url, _STORES)
    openers = {"memory": _open_memory, "sqlite": _open_sqlite}
    open_handle = openers.get(scheme) if separator else _open_shard  # without :// it is a map of shards
    handle = None if open_handle is None else open_handle(url)
    if handle is None and url and not separator and Path(url).is_dir():
        raise ConfigurationError(f"{url!r} is a folder", options=("name a file in it, such as memory.db",))
    if handle is None:
        raise ConfigurationError(f"{urls.without_password(url)!r} is not the URL of a store", options=_STORES)
    return handle


_STORES = (
    "memory://",
    "sqlite:///file.db",
    "sqlite:///file.db?mode=ro&tenant=acme",
    "postgresql://user@host/database?tenant=acme",
    "shards.toml?tenant=acme",
)


def _parse_options(query: str) -> dict[str, str]:
    return dict(parse_qsl(query, keep_blank_values=True))


def _open_shard(url: str) -> Handle | None:
    """Return a handle on the shard of a tenant if a URL names a file of shards, or None."""
    file, _, query = url.partition("?")
    options = _parse_options(query)
    if "://" in file or not file.endswith(".toml") or options.keys() - {"tenant"}:
        return None
    from acms.storage.shards import Shards

    return Shards(file).open(options.get("tenant", "default"))


def _open_memory(url: str) -> Handle:
    options = _parse_options(urlsplit(url).query)
    urls.refuse_options(url, options, "tenant")
    from acms.storage.sqlite.memory import MemoryStorage

    return MemoryStorage(tenant=options.get("tenant", "default"))


def _open_sqlite(url: str) -> Handle | None:
    """Return a handle on a SQLite file, or None if the URL names no path."""
    parts = urlsplit(url)
    path, options = unquote(parts.path)[1:], _parse_options(parts.query)
    urls.refuse_options(url, options, "tenant", mode=("ro", "rw"), durability=("disk", "relaxed"))
    tenant, mode = options.get("tenant", "default"), options.get("mode", "rw")
    durability = options.get("durability", "disk")
    if not path or parts.netloc:
        return None
    from acms.storage.sqlite.store import SQLiteStorage

    return SQLiteStorage(
        path,
        tenant=tenant,
        durability="disk" if durability == "disk" else "relaxed",
        read_only=mode == "ro",
    )


def _open_postgres(url: str) -> Handle:
    """Return a handle on a PostgreSQL database; `MissingExtraError` without its driver."""
    parsed = urls.parse_postgres_url(url)
    try:
        from acms.storage.postgres.store import PostgresStorage
    except ImportError as missing:
        package = (missing.name or "psycopg").partition(".")[0]  # it has no name when only libpq is missing
        if package != "psycopg":
            raise
        raise MissingExtraError("postgres", package) from None
    return PostgresStorage(parsed.dsn, tenant=parsed.tenant, **parsed.options)
