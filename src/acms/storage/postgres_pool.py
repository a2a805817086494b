"""Connections to one PostgreSQL database: opened on demand, given back clean, tried again when the server goes away.

Nothing of a session outlives a transaction (no `SET`, no temporary table), so a pooler in transaction mode may stand
between. Statements are prepared only on a direct connection: behind a pooler a name may mean another client's
statement (decision 0022).
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import re
import select
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, LiteralString, TypeVar, cast

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import TransactionStatus

from acms.errors import (
    ACMSError,
    ConfigurationError,
    ConflictError,
    HandleError,
    SchemaVersionError,
    StorageBusyError,
    StorageError,
    StorageFullError,
    StorageReadOnlyError,
    ValidationError,
)
from acms.logs import log as tell
from acms.model import Durability
from acms.storage.urls import shown

T = TypeVar("T")
Row = Sequence[Any]
Connection = psycopg.AsyncConnection[Any]

ROLE = "acms_app"
"""The role every statement runs as: it owns nothing, so row-level security binds it."""
FIRST_WAIT, MOST_WAIT = 0.05, 1.0
"""Seconds between two tries, doubling, each drawn from half of it to all of it."""
PREPARE_AFTER = 3
"""Executions after which a statement is prepared on a direct connection."""

_LOST = {"25006", "57P01", "57P02", "57P03", "57P05"}
"""The server is going down, coming up, or is no primary any more: another one may be found."""
_AGAIN = {"40001", "40P01", "55P03", "57014", "53300", "53400"}
"""Nothing was written, and a later try may succeed."""
# What a server says before it lets anybody in has no code, only words.
_REFUSED = re.compile(
    r"FATAL: +(?:(?:database|role) .* does not exist|.* authentication failed for user|no pg_hba\.conf entry"
    r"|permission denied for database|role .* is not permitted to log in)"
)
_MISTAKEN = re.compile(r"\binvalid \w+ value: ")
_SECRET = re.compile(r"(?<=://)[^@/]*@|password=\S+", re.IGNORECASE)

_LOOK = (
    "SELECT pg_backend_pid(), current_setting('synchronous_commit'), current_setting('synchronous_standby_names'),"
    " current_setting('fsync')"
)


class UnknownOutcomeError(StorageBusyError):
    """The connection was lost while an answer was due."""


class Pool:
    """At most `size` connections, bound to one event loop of one process.

    A statement that fails because the server or the connection went away, or because of another transaction, is tried
    again for up to `patience` seconds where that is safe.
    """

    def __init__(self, dsn: str, *, size: int, patience: float, statement_seconds: float) -> None:
        try:
            given = conninfo_to_dict(dsn)
        except psycopg.Error as error:
            raise ConfigurationError(
                f"the address of the PostgreSQL server is not understood: {_without_secrets(error, dsn)}",
                options=("postgresql://user@host:5432/database",),
            ) from None
        if not re.fullmatch(r"\d*(,\d*)*", str(given.get("port") or "")):
            raise ConfigurationError(
                "the port of a PostgreSQL server must be a number",
                options=("postgresql://user@host:5432/database",),
            )
        # On several hosts the one that takes writes is meant; a connection that hangs must not eat the patience.
        defaults = {"target_session_attrs": "read-write", "connect_timeout": 5, "application_name": "acms"}
        self._conninfo = make_conninfo("", **{**defaults, **given})
        #: Where it leads, without what is secret.
        self.name = f"{given.get('host') or 'localhost'}/{given.get('dbname') or ''}"
        self.size = size
        self.patience = patience
        self.statement_ms = str(int(statement_seconds * 1000))
        #: What a commit survives, as the server was set when the newest connection was made.
        self.durability: Durability = "disk"
        #: Whether a pooler stands between.
        self.pooled = False
        #: Whether the vectors of what is searched are indexed: known when a handle was opened.
        self.vectors = False
        #: What the last migration lacked for them, if that was only found out by trying.
        self.lacks_vectors: str | None = None
        #: Handles that use it.
        self.users: set[object] = set()
        self._pid = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._idle: list[Connection] = []
        self._all: set[Connection] = set()
        self._free = asyncio.Semaphore(size)

    # ── connections ─────────────────────────────────────────────────────────────────────────────────────────────────

    def bind(self) -> None:
        """Refuse another process or event loop; start anew where the old loop is gone."""
        loop = asyncio.get_running_loop()
        if self._loop is loop and self._pid == os.getpid():
            return
        if self._pid == os.getpid() and self._loop is not None and not self._loop.is_closed():
            raise HandleError(
                "this handle belongs to another event loop", options=("open one handle per event loop",)
            )
        if self._pid == os.getpid():
            for connection in self._all:  # of a loop that ended without `aclose`
                connection.pgconn.finish()
        elif self._loop is not None and self._all:
            raise HandleError(
                "this handle was opened before os.fork(): two processes would talk on one connection",
                options=("close it before os.fork() and open the store in the child process",),
            )
        self._pid, self._loop = os.getpid(), loop
        self._idle, self._all, self._free = [], set(), asyncio.Semaphore(self.size)

    @asynccontextmanager
    async def connection(self) -> AsyncGenerator[Connection]:
        """Borrow a connection; one that does not come back clean is closed."""
        self.bind()
        async with self._free:
            connection = self._rested() or await self._connect()
            try:
                yield connection
            finally:
                if connection.closed or connection.info.transaction_status is not TransactionStatus.IDLE:
                    self._all.discard(connection)
                    connection.pgconn.finish()
                else:
                    self._idle.append(connection)

    def _rested(self) -> Connection | None:
        """Return an idle connection to which nothing happened.

        A server that goes away, or is no primary any more, says so or hangs up: noticed before anything is sent, it
        leaves no doubt about an append.
        """
        while self._idle:
            connection = self._idle.pop()
            poll = select.poll()
            poll.register(connection.fileno(), select.POLLIN)
            if not poll.poll(0):
                return connection
            self._all.discard(connection)
            connection.pgconn.finish()
        return None

    async def _connect(self) -> Connection:
        connection = await psycopg.AsyncConnection.connect(self._conninfo, autocommit=True)
        self._all.add(connection)
        try:
            connection.prepare_threshold = None
            row = await (await connection.execute(_LOOK)).fetchone()
            assert row is not None
            pid, commit, standbys, fsync = row
            # A pooler gives its clients a number of its own.
            self.pooled = pid != connection.info.backend_pid
            if not self.pooled:
                connection.prepare_threshold = PREPARE_AFTER
            self.durability = _durability(commit, standbys, fsync)
        except BaseException:
            self._all.discard(connection)
            connection.pgconn.finish()
            raise
        return connection

    async def dedicated(self) -> Connection:
        """Return a connection that is not of the pool; whoever asked closes it."""
        return await psycopg.AsyncConnection.connect(self._conninfo, autocommit=True)

    async def close(self) -> None:
        """Close every connection; a later call opens new ones."""
        if self._pid != os.getpid() or self._loop is None:
            return
        closing, self._all, self._idle = self._all, set(), []
        for connection in closing:
            if self._loop is asyncio.get_running_loop():
                with suppress(psycopg.Error):
                    await connection.close()
            else:
                connection.pgconn.finish()
        self._loop = None

    # ── transactions ────────────────────────────────────────────────────────────────────────────────────────────────

    async def ask(
        self, preamble: Sequence[Any], *queries: tuple[str, Any], again: bool = True
    ) -> list[list[Row]]:
        """Run queries in one transaction and one round trip; return the rows of each.

        With `again` a lost connection is no reason to fail; without it the outcome of a write may be unknown.
        """

        async def work(connection: Connection) -> list[list[Row]]:
            cursors: list[psycopg.AsyncCursor[Any]] = []
            async with connection.pipeline():
                await connection.execute(PREAMBLE, preamble)
                for query, parameters in queries:
                    cursor = connection.cursor(binary=True)
                    await cursor.execute(cast(LiteralString, query), parameters)
                    cursors.append(cursor)
            return [await cursor.fetchall() if cursor.description else [] for cursor in cursors]

        return await self.retry(work, again=again)

    async def within(
        self, preamble: Sequence[Any], work: Callable[[Connection], Awaitable[T]], *, again: bool = True
    ) -> T:
        """Run `work` in one transaction; what it raises rolls it back."""

        async def attempt(connection: Connection) -> T:
            async with connection.pipeline():
                await connection.execute("BEGIN")
                await connection.execute(PREAMBLE, preamble)
            try:
                result = await work(connection)
            except ACMSError:
                await connection.execute("ROLLBACK")
                raise
            except psycopg.Error:
                if not connection.closed:
                    await connection.execute("ROLLBACK")
                raise
            await connection.execute("COMMIT")
            return result

        return await self.retry(attempt, again=again)

    async def retry(self, work: Callable[[Connection], Awaitable[T]], *, again: bool) -> T:
        """Call `work` with a connection, again after what passes by itself, until it succeeds or patience ends."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.patience
        wait = FIRST_WAIT
        while True:
            reached = False
            try:
                async with self.connection() as connection:
                    reached = True
                    return await work(connection)
            except (UnicodeEncodeError, OverflowError) as error:
                raise ValidationError(f"{type(error).__name__}: {error}") from error
            except psycopg.Error as error:
                passing, known = _passing(error, reached)
                left = deadline - loop.time()
                if not passing or left <= 0 or not (known or again):
                    raise translate(error, known=known or again) from error
                if not known or error.sqlstate in _LOST:
                    self._drop()
                tell(
                    logging.WARNING,
                    "storage_retry",
                    error=type(error).__name__,
                    sqlstate=error.sqlstate or "",
                )
            await asyncio.sleep(min(left, wait * random.uniform(0.5, 1.0)))
            wait = min(MOST_WAIT, wait * 2)

    def _drop(self) -> None:
        """Close the idle connections: they lead to a server that is gone, or is no primary any more."""
        idle, self._idle = self._idle, []
        for connection in idle:
            self._all.discard(connection)
            connection.pgconn.finish()


PREAMBLE = (
    f"SELECT set_config('role', '{ROLE}', true), set_config('acms.tenant', %s, true),"
    " set_config('statement_timeout', %s, true),"
    " set_config('synchronous_commit', coalesce(nullif(%s, ''), current_setting('synchronous_commit')), true)"
)


def _durability(commit: str, standbys: str, fsync: str) -> Durability:
    """Return what a commit survives on a server with these settings."""
    if commit == "off" or fsync == "off":
        return "relaxed"
    return "quorum" if standbys.strip() and commit != "local" else "disk"


def _passing(error: psycopg.Error, reached: bool) -> tuple[bool, bool]:
    """Return whether it may pass by itself, and whether it is known that nothing was written."""
    state = error.sqlstate
    if state is None and not reached and _hopeless(error):
        return False, True
    if state is None:  # of the connection: refused, cut, or timed out; or what is not even sent
        connection = isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
        return connection, not (connection and reached)
    if state in _AGAIN:
        return True, True
    if state in _LOST or state.startswith("08"):
        return True, not reached or state in ("25006", "57P03")
    return False, True


def _hopeless(error: psycopg.Error) -> bool:
    """Return whether every server that was asked refused this user or knows no such database, or none was asked."""
    said = str(error)
    if _MISTAKEN.search(said):
        return True
    return 0 < said.count(" failed: FATAL:") == len(_REFUSED.findall(said)) and " refused" not in said


_ADVICE = (
    ("database", "CREATE DATABASE there, or name another one in the URL"),
    ("authentication", "check user and password of the URL, or of ~/.pgpass"),
    ("pg_hba.conf", "let an administrator allow this user and host in pg_hba.conf"),
    ("role", "CREATE ROLE there with LOGIN, or name another user in the URL"),
    ("invalid", "correct the URL: postgresql://user@host:5432/database"),
)
"""Words in which a server refuses a connection, and what to do about it."""


def translate(error: psycopg.Error, *, known: bool = True) -> ACMSError:
    """Return what an error of the server means to a caller."""
    state = error.sqlstate or ""
    first = _clean(str(error)).split("\n", 1)[0]
    text = f"{type(error).__name__}: {first}"
    if not known:
        return UnknownOutcomeError(
            f"the connection was lost while an answer was due, so it is not known whether it was written ({text})",
            options=("try again with the same idempotency key",),
        )
    if not state and _hopeless(error):
        return ConfigurationError(text, options=tuple(advice for words, advice in _ADVICE if words in text))
    if state == "23505":
        return ConflictError(f"another writer was first: {first}")
    if state == "53100":
        return StorageFullError(text)
    if state in ("42P01", "3F000", "42703"):
        return SchemaVersionError(text, options=("acms migrate",))
    if state == "22023" and ROLE in first:
        roles = f"CREATE ROLE {ROLE} NOLOGIN NOINHERIT; GRANT {ROLE} TO USER"
        return ConfigurationError(
            text,
            options=(f"let an administrator run: {roles}", "then restore the dump again, which grants to it"),
        )
    if state in ("42501", "28000", "28P01", "3D000", "0LP01"):
        return ConfigurationError(
            text,
            options=(
                f"let an administrator run: GRANT {ROLE} TO USER",
                "run acms migrate as the owner of the schema",
            ),
        )
    if state == "25006":
        return StorageReadOnlyError(text, retryable=True, options=("connect to the primary",))
    if state.startswith("22") or (not state and isinstance(error, psycopg.DataError)):
        return ValidationError(text)
    if state in _AGAIN or state in _LOST or state.startswith("08"):
        return StorageBusyError(text)
    if not state and isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
        return StorageBusyError(text, options=("check that the server is running and reachable",))
    return StorageError(text)


def _without_secrets(error: psycopg.Error, dsn: str) -> str:
    """Return a message of the parser, which may quote any part of the address, without what may not be shown of it."""
    visible = shown(dsn)
    return re.sub(
        r'"([^"]*)"', lambda quoted: quoted[0] if quoted[1] in visible else '"…"', _clean(str(error))
    )


def _clean(text: str) -> str:
    """Return a message without a user's name and password."""
    return _SECRET.sub("", text)
