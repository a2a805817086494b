"""Stores: `open_storage(url)` and the wrappers that stand in front of one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, unquote, urlsplit

from acms.errors import ConfigurationError
from acms.storage.cached import CachedStorage, CacheStats
from acms.storage.faulty import FaultyStorage
from acms.storage.memory import MemoryStorage
from acms.storage.wrapper import WrapperStorage

if TYPE_CHECKING:
    from acms.storage.chroma import ChromaVectors
    from acms.storage.sqlite import SQLiteStorage

__all__ = [
    "CacheStats",
    "CachedStorage",
    "ChromaVectors",
    "FaultyStorage",
    "MemoryStorage",
    "SQLiteStorage",
    "WrapperStorage",
    "open_storage",
]


def __getattr__(name: str) -> Any:
    """Load SQLite, and what Chroma needs, only when it is used."""
    if name == "ChromaVectors":
        from acms.storage.chroma import ChromaVectors

        return ChromaVectors
    if name == "SQLiteStorage":
        from acms.storage.sqlite import SQLiteStorage

        return SQLiteStorage
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__


def open_storage(url: str) -> MemoryStorage | SQLiteStorage:
    """Return a handle on the store a URL names; it is opened by its first use.

        memory://                                      gone with the object
        sqlite:///notes.db                             a file, relative to the working folder
        sqlite:////var/lib/acms/notes.db               a file by its absolute path
        sqlite:///notes.db?mode=ro                     never changes anything
        sqlite:///notes.db?durability=relaxed          faster; a power cut may lose the last commits
        sqlite:///notes.db?tenant=acme                 data of one owner, invisible to others

    `ConfigurationError` for anything else.
    """
    parts = urlsplit(url)
    options = {name: values[-1] for name, values in parse_qs(parts.query).items()}
    tenant = options.pop("tenant", "default")
    if parts.scheme == "memory" and not options:
        return MemoryStorage(tenant=tenant)
    if parts.scheme == "sqlite":
        path = unquote(parts.path)[1:]
        mode = options.pop("mode", "rw")
        durability = options.pop("durability", "disk")
        if (
            path
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
        f"{url!r} does not name a store",
        options=("memory://", "sqlite:///file.db", "sqlite:///file.db?mode=ro&tenant=acme"),
    )
