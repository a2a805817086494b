"""Who may use the gateway, and the memory of each tenant."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal
from urllib.parse import quote, unquote

from acms.config import ACMSConfig
from acms.errors import AuthenticationError, ConfigurationError, PermissionDeniedError
from acms.gateway.config import GatewayConfig
from acms.gateway.memory import Memory
from acms.kv import CompareAndSetKV, open_kv
from acms.ports import Embedder, StorageBackend
from acms.server.config import ServerConfig
from acms.server.principal import Principal, Scope
from acms.server.service import Service
from acms.server.tenants import Engine
from acms.storage import urls

__all__ = ["KV_TENANT", "Tenants", "has_gateway_records", "open_gateway_kv"]

KV_TENANT = "acms_gateway"
"""Tenant of the key-value memory that holds the records of lines."""
_NEEDED = (Scope.APPEND, Scope.MEMORY_READ)
_KEY_HEADERS = (b"authorization", b"x-api-key")


class Tenants:
    """The store, its keys, and a memory for each tenant in use."""

    def __init__(
        self, url: str, config: GatewayConfig, engine: ACMSConfig, embedder: Embedder | Literal["auto"] | None
    ) -> None:
        self._url = url
        self._config = config
        self._engine = engine
        self._embedder: Embedder | Literal["auto"] | None = embedder
        server = ServerConfig(auth=config.auth, host=config.host)
        self._service = Service(url, server, Engine(config=engine, embedder=embedder), describe=dict)
        self._memories: dict[str, Memory] = {}
        self._lock = asyncio.Lock()

    async def start(self) -> None:
        """Open the store, and warm up what the first request would wait for."""
        await self._service.start()
        if self._config.auth == "off" and self._config.store:
            await self.memory(self._service.config.tenant)

    async def stop(self) -> None:
        """Close all memories, then the store."""
        for memory in self._memories.values():
            await memory.aclose()
        await self._service.stop()

    def check_host(self, headers: Mapping[str, str]) -> None:
        """Raise `PermissionDeniedError` for a host name not of the gateway: a web page may point its own here."""
        self._service.gate.check_origin("GET", {"host": headers.get("host", "")})

    async def admit(self, headers: Mapping[str, str], address: str) -> Principal:
        """Return the principal of a request's ACMS key; raise `AuthenticationError` or `PermissionDeniedError`."""
        credentials = {"authorization": f"Bearer {_find_acms_key(headers)}"}
        caller = await self._service.gate.identify(credentials, address)
        for scope in _NEEDED:
            if scope not in caller.scopes:
                raise PermissionDeniedError(f"the key lacks the scope {scope.value}")
        return caller

    def replace_provider_key(
        self, headers: Sequence[tuple[bytes, bytes]], upstream: str
    ) -> list[tuple[bytes, bytes]]:
        """Replace an ACMS key in the headers by the configured key of the upstream; an ACMS key is never forwarded.

        Raises `AuthenticationError` if no key is configured for the upstream.
        """
        replaced: list[tuple[bytes, bytes]] = []
        for name, value in headers:
            is_key = name.lower() in _KEY_HEADERS
            if not is_key or not _bare_key(value.decode("latin-1")).startswith("acms_"):
                replaced.append((name, value))
                continue
            provider_key = self._config.provider_keys.get(upstream)
            if provider_key is None:
                raise AuthenticationError(
                    options=("send the provider's key beside x-acms-key", "acms gateway --keys")
                )
            bearer = b"Bearer " if name.lower() == b"authorization" else b""
            replaced.append((name, bearer + provider_key.encode("latin-1")))
        return replaced

    async def memory(self, tenant: str) -> Memory:
        """Return the memory of a tenant; the first call opens its store."""
        open_memory = self._memories.get(tenant)
        if open_memory is not None:
            return open_memory
        async with self._lock:
            if tenant not in self._memories:
                store = await self._service.stores.tenant(tenant)
                store.users += 1  # a store in use is not closed
                storage: StorageBackend = store.handle
                kv = open_gateway_kv(self._url, tenant)
                memory = Memory(storage, kv, self._config, self._engine, self._embedder)
                await memory.start()
                self._memories[tenant] = memory
        return self._memories[tenant]


def open_gateway_kv(url: str, tenant: str) -> CompareAndSetKV:
    """Return the key-value store for the records of lines.

    With PostgreSQL it is in the database of the store. With SQLite it is a separate file, so that a locked store does
    not stop requests; a power failure may lose the last records, and the next request then continues in a fork.
    """
    name = quote(KV_TENANT if tenant == "default" else f"{KV_TENANT}:{tenant}", safe="")
    scheme = url.partition(":")[0]
    if scheme == "memory":
        return open_kv("memory://")
    if scheme == "sqlite":
        return open_kv(f"sqlite:///{_records_file(url)}?durability=relaxed&tenant={name}")
    if scheme in ("postgresql", "postgres"):
        dsn = urls.parse_postgres_url(url).dsn
        separator = "&" if "?" in dsn else "?"
        return open_kv(f"{dsn}{separator}tenant={name}")
    raise ConfigurationError(
        f"the gateway keeps its conversations in SQLite or PostgreSQL, not in {scheme!r}",
        options=("sqlite:///memory.db", "postgresql://…"),
    )


def has_gateway_records(url: str) -> bool:
    """Return whether a gateway ever ran over a store; for a store on a server, which is not asked, return True."""
    return not url.startswith("sqlite:") or Path(unquote(_records_file(url))).is_file()


def _records_file(url: str) -> str:
    """Return the file of the records beside an SQLite store, quoted as in its URL."""
    return url.removeprefix("sqlite:///").partition("?")[0] + ".gateway"


def _find_acms_key(headers: Mapping[str, str]) -> str:
    """Return the ACMS key of a request, from its own header or from a header for the provider's key, or ""."""
    acms_key = headers.get("x-acms-key", "")
    if acms_key:
        return acms_key
    for name in ("authorization", "x-api-key"):
        key = _bare_key(headers.get(name, ""))
        if key.startswith("acms_"):
            return key
    return ""


def _bare_key(value: str) -> str:
    return value[7:] if value[:7].lower() == "bearer " else value
