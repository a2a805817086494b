"""Key-value memory on a Redis server: one hash per key, changed by one script, so in one step."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from acms.errors import (
    ACMSError,
    ConfigurationError,
    CorruptRecordError,
    HandleError,
    MissingExtraError,
    StorageBusyError,
    StorageError,
    StorageFullError,
    StorageReadOnlyError,
    StorageUnavailableError,
)
from acms.log.encoding import Entropy
from acms.log.validation import validate_integer, validate_text
from acms.runtime.loops import PerLoop
from acms.storage.kv_base import BaseKV, Clock, PutMode, Row, utc_now

if TYPE_CHECKING:
    from redis.asyncio import Redis

T = TypeVar("T")

_FIELDS = ("data", "metadata", "created_at", "updated_at", "revision")
_PUT = """
local old = redis.call('HMGET', KEYS[1], 'created_at', 'updated_at', 'revision')
local how, expect, data, metadata, now, revision, ttl = unpack(ARGV)
local found = old[3]
if found ~= revision and ((how == 'new' and found) or (how == 'known' and found ~= expect)) then
    return false
end
local created, updated = old[1] or now, now
if old[2] and tonumber(old[2]) > tonumber(now) then
    updated = old[2]
end
redis.call('HSET', KEYS[1], 'data', data, 'metadata', metadata, 'created_at', created, 'updated_at', updated,
    'revision', revision)
if ttl == '' then
    redis.call('PERSIST', KEYS[1])
else
    redis.call('EXPIRE', KEYS[1], ttl)
end
return {created, updated}
"""
"""Answers created_at and updated_at, or nothing when the key is not as expected.

A call whose answer was lost may be sent again: its own earlier result counts as expected.
"""


class RedisKV(BaseKV):
    """Key-value memory on a Redis server (extra `redis`).

    The key `profile` is the hash `acms:kv:profile`; `prefix` keeps applications, and tenants, apart. With
    `ttl_seconds`, a value expires that long after it was last set. The configuration of the server decides how much
    survives a crash (`appendonly`) and which keys are evicted when its memory is full.

    A call takes at most `timeout_seconds`. When the connection is lost, `get`, `set` and `compare_and_set` are tried
    once more.
    """

    def __init__(
        self,
        url: str,
        prefix: str = "acms:kv:",
        ttl_seconds: int | None = None,
        *,
        connections: int = 16,
        timeout_seconds: float = 5.0,
        clock: Clock = utc_now,
        entropy: Entropy = os.urandom,
    ) -> None:
        self.prefix = validate_text(prefix, "prefix", limit=255)
        self.ttl_seconds = (
            None
            if ttl_seconds is None
            else validate_integer(ttl_seconds, "ttl_seconds", minimum=1, maximum=2**31)
        )
        self._url = url
        self._connections = validate_integer(connections, "connections", minimum=1)
        self._timeout = timeout_seconds
        self._clock = clock
        self._entropy = entropy
        self._pid = 0
        #: A client and its script for each event loop, to which its sockets belong.
        self._clients: PerLoop[tuple[Redis, Any]] = PerLoop(self._client)
        self._connect()  # reports a bad URL at once; nothing is connected before the first call

    def __repr__(self) -> str:
        address = urlsplit(self._url)
        host = address.hostname or ""
        if address.port:
            host = f"{host}:{address.port}"
        url = f"{address.scheme}://{host}{address.path}"
        return f"{type(self).__name__}({url!r}, prefix={self.prefix!r})"

    def _connect(self) -> Redis:
        """Create a client; `ConfigurationError` for a bad URL. Nothing is connected before the first call."""
        try:
            from redis.asyncio import BlockingConnectionPool, Redis
            from redis.asyncio.retry import Retry
            from redis.backoff import NoBackoff
        except ImportError as missing:
            raise MissingExtraError("redis", "redis") from missing
        try:
            pool = BlockingConnectionPool.from_url(
                self._url,
                max_connections=self._connections,
                timeout=self._timeout,
                socket_timeout=self._timeout,
                socket_connect_timeout=self._timeout,
                retry=Retry(NoBackoff(), 0),
                decode_responses=True,
            )
            pool.make_connection()
        except (ValueError, TypeError, AttributeError) as error:
            raise ConfigurationError(
                f"the URL does not name a Redis server: {error}",
                options=(
                    "redis://host:6379/0",
                    "rediss://user:password@host:6379/0",
                    "unix:///run/redis.sock",
                ),
            ) from error
        return Redis.from_pool(pool)

    def _client(self) -> tuple[Redis, Any]:
        client = self._connect()
        return client, client.register_script(_PUT)

    def _open(self) -> tuple[Redis, Any]:
        """Return the client of the running event loop, and its script that writes a value if it is unchanged.

        `HandleError` in a child process if clients were opened before os.fork().
        """
        if self._pid != os.getpid():
            if self._clients.all():
                raise HandleError(
                    "this handle was opened before os.fork(): both processes would use the same sockets",
                    options=("close it before os.fork() and open the store in the child process",),
                )
            self._pid = os.getpid()
        return self._clients.here()

    async def _ask(self, key: str, call: Callable[[Redis], Awaitable[T]], *, again: bool = True) -> T:
        """Call the server; if its connection is broken, once more over a new one, unless `again` is false."""
        from redis.exceptions import ConnectionError

        client, _ = self._open()
        async with _call_to_server(key, self._timeout):
            try:
                return await call(client)
            except ConnectionError:
                if not again:
                    raise
            # After a restart of the server every idle connection is broken, which only its next use shows.
            await client.connection_pool.disconnect(inuse_connections=False)
            return await call(client)

    async def _get(self, key: str) -> tuple[Any, Any, Any, Any, Any] | None:
        return await self._ask(key, lambda client: _read_fields(client, self.prefix + key))

    async def _put(self, mode: PutMode, values: Mapping[str, Any]) -> tuple[Any, Any] | None:
        """Write an entry by a script on the server; return its times, or None if the mode does not allow it."""
        ttl = "" if self.ttl_seconds is None else self.ttl_seconds
        arguments = (
            mode, values["expect"] or "", values["data"], values["metadata"] or "", values["now"], values["revision"],
            ttl,
        )  # fmt: skip
        _, script = self._open()

        async def write(client: Redis) -> tuple[Any, Any] | None:
            times = await script(keys=[self.prefix + values["key"]], args=arguments, client=client)
            if times is None:
                return None
            created, updated = times
            return int(created), int(updated)

        return await self._ask(values["key"], write)

    async def _delete(self, key: str) -> bool:
        async def remove(client: Redis) -> bool:
            return await client.delete(self.prefix + key) > 0

        return await self._ask(key, remove, again=False)

    async def _list(self, prefix: str, after: str, limit: int) -> Sequence[Row]:
        """Return the first rows with a prefix behind a key; the server keeps no order, so all its keys are read."""
        start = self.prefix + prefix

        async def scan(client: Redis) -> list[Row]:
            keys = {key async for key in client.scan_iter(match=_escape_glob(start) + "*", count=1000)}
            rows: list[Row] = []
            for key in sorted(key for key in keys if key > self.prefix + after):
                row = await _read_fields(client, key)
                if row is not None:  # else deleted since
                    rows.append((key.removeprefix(self.prefix), *row))
                if len(rows) == limit:
                    break
            return rows

        return await self._ask(prefix, scan)

    async def aclose(self) -> None:
        """Close the connections of the running event loop; idempotent. A later call opens them again."""
        opened = self._clients.pop() if self._pid == os.getpid() else None
        if opened is not None:
            client, _ = opened
            await client.aclose()


async def _read_fields(client: Redis, key: str) -> tuple[Any, Any, Any, Any, Any] | None:
    data, metadata, created_at, updated_at, revision = await client.hmget(key, _FIELDS)
    if data is None:
        return None
    return data, metadata or None, int(created_at or ""), int(updated_at or ""), revision


def _escape_glob(text: str) -> str:
    """Return a pattern that matches a text and nothing else."""
    return re.sub(r"[*?[\]^\\-]", r"\\\g<0>", text)


_REPEAT = "repeat the call"
_KINDS: Mapping[str, tuple[type[StorageError], str]] = {
    "BUSY": (StorageBusyError, _REPEAT),
    "ClusterDownError": (StorageUnavailableError, _REPEAT),
    "MISCONF": (StorageReadOnlyError, "free some space where the server keeps its data"),
    "MasterDownError": (StorageUnavailableError, _REPEAT),
    "NOREPLICAS": (StorageReadOnlyError, "bring back the replicas"),
    "NoPermissionError": (StorageError, "give the user of the URL @read, @write and @scripting"),
    "OutOfMemoryError": (StorageFullError, "give the server more memory"),
    "ReadOnlyError": (StorageReadOnlyError, "name a server that takes writes"),
    "WRONGTYPE": (CorruptRecordError, "delete it and set it again"),
}
"""Driver's name of an error answer, or the first word of an unnamed one → the error raised here and its remedy."""


@asynccontextmanager
async def _call_to_server(key: str, seconds: float) -> AsyncGenerator[None]:
    """End a call in time, and raise our errors instead of those of the driver and the server."""
    try:
        async with asyncio.timeout(seconds):
            yield
    except ACMSError:
        raise
    except Exception as error:
        translated = _translate_error(error, key, seconds)
        if translated is None:
            raise
        raise translated from error


def _translate_error(error: Exception, key: str, seconds: float) -> StorageError | None:
    """Return the ACMS error that corresponds to an error of a call; None for one of another origin."""
    from redis import exceptions

    if isinstance(error, exceptions.AuthenticationError | exceptions.AuthorizationError):
        return StorageError(f"Redis: {error}", options=("check user and password in the URL",))
    if isinstance(error, exceptions.ConnectionError | exceptions.TimeoutError | OSError):
        text = str(error) or f"nothing within {seconds} seconds"
        return StorageUnavailableError(
            f"Redis does not answer: {text}", options=(_REPEAT, "check that the server runs")
        )
    if isinstance(error, exceptions.RedisError):
        code = str(error).partition(" ")[0]
        kind, advice = _KINDS.get(type(error).__name__) or _KINDS.get(code) or (StorageError, "")
        return kind(f"Redis, {key!r}: {error}", options=(advice,) if advice else ())
    if isinstance(error, ValueError | TypeError):  # bytes that are no text, a time that is no number
        return CorruptRecordError(
            f"the value of {key!r} cannot be read: {error}", options=("delete it and set it again",)
        )
    return None
