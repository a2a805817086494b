"""Stores: `open_storage(url)`, the wrappers that stand in front of one, and the shards of many tenants."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, unquote, urlsplit

from acms.errors import ConfigurationError, MissingExtraError
from acms.protocols import Handle
from acms.storage.cached import CachedStorage, CacheStats
from acms.storage.wrapper import WrapperStorage

if TYPE_CHECKING:
    from acms.storage.chroma import ChromaVectors
    from acms.storage.faulty import FaultyStorage
    from acms.storage.memory import MemoryStorage
    from acms.storage.postgres import PostgresStorage
    from acms.storage.shards import Shards
    from acms.storage.sqlite import SQLiteStorage

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

_LATER = {
    "ChromaVectors": "chroma",
    "FaultyStorage": "faulty",
    "MemoryStorage": "memory",
    "PostgresStorage": "postgres",
    "SQLiteStorage": "sqlite",
    "Shards": "shards",
}
"""The rooms that are loaded only when they are used."""


def __getattr__(name: str) -> Any:
    """Load a store only when it is used."""
    room = _LATER.get(name)
    if room is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{room}"), name)


def __dir__() -> list[str]:
    return __all__


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
            from acms.storage.memory import MemoryStorage

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
            from acms.storage.sqlite import SQLiteStorage

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
        from acms.storage.postgres import PostgresStorage
    except ImportError as missing:
        package = (missing.name or "psycopg").partition(".")[0]  # it has no name when only libpq is missing
        if package != "psycopg":
            raise
        raise MissingExtraError("postgres", package) from None
    return PostgresStorage(found.dsn, tenant=found.tenant, **found.options)
