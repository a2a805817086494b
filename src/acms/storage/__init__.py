"""Stores: `open_storage(url)`, the wrappers that stand in front of one, and the shards of many tenants."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import parse_qs, unquote, urlsplit

from acms.errors import ConfigurationError, MissingExtraError
from acms.ports import Handle
from acms.runtime.lazy import lazily
from acms.storage.cached import CachedStorage, CacheStats
from acms.storage.wrapper import WrapperStorage

if TYPE_CHECKING:
    from acms.storage.chroma.vectors import ChromaVectors
    from acms.storage.faulty import FaultyStorage
    from acms.storage.memory.store import MemoryStorage
    from acms.storage.postgres.store import PostgresStorage
    from acms.storage.shards import Shards
    from acms.storage.sqlite.store import SQLiteStorage

__all__ = [
    "CacheStats",
    "CachedStorage",
    "ChromaVectors",
    "FaultyStorage",
    "MemoryStorage",
    "PostgresStorage",
    "SQLiteStorage",
    "Shards",
    "WrapperStorage",
    "open_storage",
]

_HOMES = {
    "ChromaVectors": "acms.storage.chroma.vectors",
    "FaultyStorage": "acms.storage.faulty",
    "MemoryStorage": "acms.storage.memory.store",
    "PostgresStorage": "acms.storage.postgres.store",
    "SQLiteStorage": "acms.storage.sqlite.store",
    "Shards": "acms.storage.shards",
}
__getattr__, __dir__ = lazily(__name__, _HOMES)


def open_storage(url: str) -> Handle:
    """Return a handle on the store a URL names; it is opened by its first use.

        memory://                                      gone with the object
        sqlite:///notes.db                             a file, relative to the working folder
        sqlite:////var/lib/acms/notes.db               a file by its absolute path
        sqlite:///notes.db?mode=ro                     never changes anything
        sqlite:///notes.db?durability=relaxed          faster; a power cut may lose the last commits
        sqlite:///notes.db?tenant=acme                 data of one owner, invisible to others
        postgresql://user@host/acms?tenant=acme        a database; needs the extra `postgres`
        postgresql://h1,h2/acms?target_session_attrs=read-write&durability=quorum
                                                       the node of several that takes writes
        postgresql://host/acms?hints=on                wake `acms worker` at once
        postgresql://host/acms?pool_size=20&retry_seconds=5
                                                       connections of this process (10), and how long what passes by
                                                       itself is tried again (30); other options are libpq's
        shards.toml?tenant=acme                        the store that holds a tenant, see `Shards`

    `ConfigurationError` for anything else; a password is never part of an error.
    """
    from acms.storage import urls

    scheme, _, _ = url.partition("://")
    if scheme in ("postgresql", "postgres"):
        return _postgres(url)
    file, _, query = url.partition("?")
    if "://" not in file and file.endswith(".toml"):
        options = _options(query)
        if not options.keys() - {"tenant"}:
            from acms.storage.shards import Shards

            return Shards(file).open(options.get("tenant", "default"))
    if scheme in ("memory", "sqlite"):
        parts = urlsplit(url)
        options = _options(parts.query)
        tenant = options.pop("tenant", "default")
        if scheme == "memory" and not options:
            from acms.storage.memory.store import MemoryStorage

            return MemoryStorage(tenant=tenant)
        path = unquote(parts.path)[1:]
        mode = options.pop("mode", "rw")
        durability = options.pop("durability", "disk")
        if (
            scheme == "sqlite"
            and path
            and not parts.netloc
            and mode in ("ro", "rw")
            and durability in ("disk", "relaxed")
            and not options
        ):
            from acms.storage.sqlite.store import SQLiteStorage

            return SQLiteStorage(
                path,
                tenant=tenant,
                durability="disk" if durability == "disk" else "relaxed",
                read_only=mode == "ro",
            )
    raise ConfigurationError(
        f"{urls.shown(url)!r} does not name a store",
        options=(
            "memory://",
            "sqlite:///file.db",
            "sqlite:///file.db?mode=ro&tenant=acme",
            "postgresql://user@host/database?tenant=acme",
            "shards.toml?tenant=acme",
        ),
    )


def _options(query: str) -> dict[str, str]:
    return {name: values[-1] for name, values in parse_qs(query).items()}


def _postgres(url: str) -> Handle:
    from acms.storage import urls

    found = urls.postgres(url)
    try:
        from acms.storage.postgres.store import PostgresStorage
    except ImportError as missing:
        package = (missing.name or "psycopg").partition(".")[0]  # it has no name when only libpq is missing
        if package != "psycopg":
            raise
        raise MissingExtraError("postgres", package) from None
    return PostgresStorage(found.dsn, tenant=found.tenant, **found.options)
