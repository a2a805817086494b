"""Key-value memory on a Redis server: one hash per key, changed by one script, so in one step."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import TracebackType
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
from acms.storage.kv_home import Clock, KVHome, PutMode, Row, utc_now

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


class RedisKV(KVHome):
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
            None if ttl_seconds is None else validate_integer(ttl_seconds, "ttl_seconds", least=1, most=2**31)
        )
        self._url = url
        self._connections = validate_integer(connections, "connections", least=1)
        self._timeout = timeout_seconds
        self._clock = clock
        self._entropy = entropy
        self._pid = 0
        #: A client and its script for each event loop, to which its sockets belong.
        self._clients: PerLoop[tuple[Redis, Any]] = PerLoop(self._client)
        self._connect()  # reports a bad URL at once; nothing is connected before the first call

    def __repr__(self) -> str:
        address = urlsplit(self._url)
        host = f"{address.hostname or ''}{f':{address.port}' if address.port else ''}"
        return (
            f"{type(self).__name__}({f'{address.scheme}://{host}{address.path}'!r}, prefix={self.prefix!r})"
        )

    def _connect(self) -> Redis:
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
        """Return the client of the running event loop; refuse those of another process."""
        if self._pid != os.getpid():
            if self._clients.all():
                raise HandleError(
                    "this handle was opened before os.fork(): both processes would use the same sockets",
                    options=("close it before os.fork() and open the store in the child process",),
                )
            self._pid = os.getpid()
        return self._clients.here()

    async def _ask(self, key: str, call: Callable[[Redis], Awaitable[T]], *, again: bool = True) -> T:
        from redis.exceptions import ConnectionError

        client, _ = self._open()
        async with _Asking(key, self._timeout):
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
        arguments = (
            mode, values["expect"] or "", values["data"], values["metadata"] or "", values["now"], values["revision"],
            "" if self.ttl_seconds is None else self.ttl_seconds,
        )  # fmt: skip

        async def write(client: Redis) -> tuple[Any, Any] | None:
            times = await self._open()[1](keys=[self.prefix + values["key"]], args=arguments, client=client)
            return None if times is None else (int(times[0]), int(times[1]))

        return await self._ask(values["key"], write)

    async def _delete(self, key: str) -> bool:
        async def remove(client: Redis) -> bool:
            return await client.delete(self.prefix + key) > 0

        return await self._ask(key, remove, again=False)

    async def _list(self, prefix: str, after: str, limit: int) -> Sequence[Row]:
        """Look through all keys of the server: it keeps them in no order."""
        start = self.prefix + prefix

        async def look(client: Redis) -> list[Row]:
            found = {key async for key in client.scan_iter(match=_escape_glob(start) + "*", count=1000)}
            rows: list[Row] = []
            for key in sorted(key for key in found if key > self.prefix + after):
                row = await _read_fields(client, key)
                if row is not None:  # else deleted since
                    rows.append((key.removeprefix(self.prefix), *row))
                if len(rows) == limit:
                    break
            return rows

        return await self._ask(prefix, look)

    async def aclose(self) -> None:
        """Close the connections of the running event loop; idempotent. A later call opens them again."""
        found = self._clients.pop() if self._pid == os.getpid() else None
        if found is not None:
            await found[0].aclose()


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


class _Asking:
    """One call: ends in time, and with our errors instead of those of the driver and the server."""

    def __init__(self, key: str, seconds: float) -> None:
        self._key = key
        self._seconds = seconds
        self._deadline = asyncio.timeout(seconds)

    async def __aenter__(self) -> None:
        await self._deadline.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self._deadline.__aexit__(kind, error, trace)
        except TimeoutError as late:
            error = late
        if isinstance(error, Exception) and not isinstance(error, ACMSError):
            self._raise(error)

    def _raise(self, error: Exception) -> None:
        from redis import exceptions

        if isinstance(error, exceptions.AuthenticationError | exceptions.AuthorizationError):
            raise StorageError(f"Redis: {error}", options=("check user and password in the URL",)) from error
        if isinstance(error, exceptions.ConnectionError | exceptions.TimeoutError | OSError):
            text = str(error) or f"nothing within {self._seconds} seconds"
            raise StorageUnavailableError(
                f"Redis does not answer: {text}", options=(_REPEAT, "check that the server runs")
            ) from error
        if isinstance(error, exceptions.RedisError):
            word = str(error).partition(" ")[0]
            kind, advice = _KINDS.get(type(error).__name__) or _KINDS.get(word) or (StorageError, "")
            raise kind(f"Redis, {self._key!r}: {error}", options=(advice,) if advice else ()) from error
        if isinstance(error, ValueError | TypeError):  # bytes that are no text, a time that is no number
            raise CorruptRecordError(
                f"the value of {self._key!r} does not read back: {error}",
                options=("delete it and set it again",),
            ) from error
