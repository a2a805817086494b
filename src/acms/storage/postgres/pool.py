"""Connections to one PostgreSQL database: opened on demand, given back clean, tried again when the server goes away.

Nothing of a session outlives a transaction (no `SET`, no temporary table), so a pooler in transaction mode may stand
between. Statements are prepared only on a direct connection: behind a pooler a name may mean another client's
statement (decision 0022).
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import select
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any, TypeVar

import psycopg
from psycopg.abc import PQGen
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import ConnStatus, TransactionStatus
from psycopg.waiting import wait_async

from acms.errors import (
    ACMSError,
    ConfigurationError,
    ConflictError,
    CorruptRecordError,
    HandleError,
    SchemaVersionError,
    StorageBusyError,
    StorageError,
    StorageFullError,
    StorageReadOnlyError,
    StorageUnavailableError,
    ValidationError,
)
from acms.model import Durability
from acms.observability.logging import log_event
from acms.runtime.chance import chance
from acms.runtime.loops import PerLoop
from acms.storage.urls import without_password

T = TypeVar("T")
Row = Sequence[Any]
Connection = psycopg.AsyncConnection[Any]

ROLE = "acms_app"
"""The role every statement runs as: it owns nothing, so row-level security binds it."""
FIRST_WAIT, MOST_WAIT = 0.05, 1.0
"""Seconds between two tries, doubling, each drawn from half of it to all of it."""
_CONNECT: Mapping[str, Any] = {
    "connect_timeout": 5,  # a server that hangs must not eat the patience
    # A lost host or network sends nothing: the kernel detects it within 20 seconds.
    "keepalives_idle": 10,
    "keepalives_interval": 3,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
    "application_name": "acms",
}

UNREACHABLE = ("repeat the call", "check that the server is running and reachable")
"""What to do about a server that does not answer."""
_URL_FORM = ("postgresql://user@host:5432/database",)
_SERVER_GONE = {"25006", "57P01", "57P02", "57P03", "57P05"}
"""The server is going down, coming up, or is no primary any more: another one may be found."""
_TRANSIENT = {"40001", "40P01", "55P03", "57014", "53200", "53300", "53400"}
"""Nothing was written, and a later try may succeed."""
# A refusal before authentication has no code, only a message.
_REFUSAL = re.compile(
    r"FATAL: +(?:(?:database|role) .* does not exist|.* authentication failed for user|no pg_hba\.conf entry"
    r"|permission denied for database|role .* is not permitted to log in)"
)
_INVALID_OPTION = re.compile(r"\binvalid \w+ value: ")
_SECRET = re.compile(r"(?<=://)[^@/]*@|password=\S+", re.IGNORECASE)

_SERVER_SETTINGS = (
    "SELECT pg_backend_pid(), current_setting('synchronous_commit'), current_setting('synchronous_standby_names'),"
    " current_setting('fsync')"
)


class UnknownOutcomeError(StorageUnavailableError):
    """The connection was lost, or given up, while an answer was due; or the wait for standbys was broken off."""

    unknown = True


class UnconfirmedError(psycopg.OperationalError):
    """The server committed, but did not wait until its standbys had it."""


class Link(psycopg.AsyncConnection[Any]):
    """A connection that is closed when an answer takes too long or its caller stops waiting.

    psycopg would ask the server to cancel, and wait up to ten seconds for a server that hangs.
    """

    #: Seconds an answer may take; None is unlimited.
    limit: float | None = None
    #: Whether its user stopped waiting.
    caller_left = False
    #: The server's warnings that a commit was not confirmed by its standbys.
    unconfirmed: list[str]

    async def wait(self, gen: PQGen[T], interval: float = 0.1, timeout: float | None = None) -> T:
        """Wait for an answer; when it does not come in time, or the caller is cancelled, the connection is closed.

        An explicit `timeout` is psycopg's own: its end does not count as silence of the server.
        """
        if self.caller_left:  # only what cleans up behind a user who was cancelled gets here
            raise asyncio.CancelledError
        limit = self.limit if timeout is None else timeout
        try:
            return await wait_async(gen, self.pgconn.socket, interval=interval, timeout=limit)
        except (asyncio.CancelledError, KeyboardInterrupt, SystemExit):
            self.caller_left = True
            self._give_up(gen)
            raise
        except psycopg.OperationalError as error:
            if error.sqlstate is not None:
                raise
            is_silent = self.pgconn.status == ConnStatus.OK
            self._give_up(gen)
            if is_silent and timeout is None:
                raise psycopg.OperationalError(f"no answer within {limit:g} seconds") from error
            raise

    def _give_up(self, gen: PQGen[T]) -> None:
        self.pgconn.finish()
        with suppress(psycopg.Error):  # the connection it would clean up is gone
            gen.close()


class Lane:
    """The connections of one event loop."""

    def __init__(self, size: int) -> None:
        self.idle: list[Link] = []
        self.all: set[Link] = set()
        self.free = asyncio.Semaphore(size)
        #: True once returned connections are closed instead of kept.
        self.closed = False

    def close(self) -> None:
        """Close every connection: on its event loop, or when that does not run."""
        self.closed = True
        closing, self.all, self.idle = self.all, set(), []
        for connection in closing:
            connection.pgconn.finish()

    def drop(self) -> None:
        """Close the idle connections; those in use are closed when they are returned."""
        self.closed = True
        self.close_idle()

    def close_idle(self) -> None:
        """Close the idle connections."""
        idle, self.idle = self.idle, []
        for connection in idle:
            self.all.discard(connection)
            connection.pgconn.finish()


class Pool:
    """At most `size` connections for each event loop of one process.

    A statement that fails because of a lost server or connection, or because of another transaction, is retried for up
    to `patience` seconds where that is safe. If the server does not answer within the statement timeout plus a margin,
    the connection is closed; that is retried once even after `patience` has ended.
    """

    def __init__(
        self, dsn: str, *, size: int, patience: float, statement_seconds: float, read_only: bool = False
    ) -> None:
        try:
            parameters = conninfo_to_dict(dsn)
        except psycopg.Error as error:
            raise ConfigurationError(
                f"the address of the PostgreSQL server cannot be parsed: {_without_secrets(error, dsn)}",
                options=_URL_FORM,
            ) from None
        if not re.fullmatch(r"\d*(,\d*)*", str(parameters.get("port") or "")):
            raise ConfigurationError("the port of a PostgreSQL server must be a number", options=_URL_FORM)
        # On several hosts the one that takes writes is meant.
        self._has_several_hosts = any(
            "," in str(parameters.get(key) or "") for key in ("host", "hostaddr", "port")
        )
        primary = {"target_session_attrs": "read-write"} if self._has_several_hosts else {}
        self._conninfo = make_conninfo("", **{**_CONNECT, **primary, **parameters})
        #: Host and database, without secrets.
        self.name = f"{parameters.get('host') or 'localhost'}/{parameters.get('dbname') or ''}"
        self.size = size
        self.patience = patience
        #: Seconds the server may take for a statement.
        self.statement_seconds = statement_seconds
        #: Seconds an answer may take.
        self.limit = statement_seconds * 1.1 + 1.0  # the way there and back comes on top
        #: Whether every transaction is read-only.
        self.read_only = read_only
        #: What a commit survives, as the server was set when the newest connection was made.
        self.durability: Durability = "disk"
        #: Whether the connections lead through a pooler.
        self.pooled = False
        #: Whether the searched vectors are indexed: known once a handle was opened.
        self.vectors = False
        #: What the last migration lacked for them, if only the attempt revealed it.
        self.lacks_vectors: str | None = None
        #: Handles that use it.
        self.users: set[object] = set()
        self._pid = 0
        self._lanes: PerLoop[Lane] = PerLoop(lambda: Lane(size), Lane.close)

    @classmethod
    def from_dsn(cls, dsn: str | Pool, **options: Any) -> Pool:
        """Return a new pool for an address; an existing pool is returned unchanged."""
        return dsn if isinstance(dsn, Pool) else cls(dsn, **options)

    # ── connections ─────────────────────────────────────────────────────────────────────────────────────────────────

    def bind(self) -> Lane:
        """Return the connections of the running event loop; refuse those of another process."""
        if self._pid != os.getpid():
            if any(lane.all for _, lane in self._lanes.all()):
                raise HandleError(
                    "this handle was opened before os.fork(): two processes would share one connection",
                    options=("close it before os.fork() and open the store in the child process",),
                )
            self._lanes.clear()
            self._pid = os.getpid()
        return self._lanes.here()

    async def _wait_for_free_connection(self, free_connections: asyncio.Semaphore) -> None:
        """Wait until one of the connections is free; `StorageBusyError` after `limit` seconds."""
        if not free_connections.locked():
            await free_connections.acquire()  # at once
            return
        try:
            async with asyncio.timeout(self.limit):
                await free_connections.acquire()
        except TimeoutError:
            raise StorageBusyError(
                f"none of {self.size} connections was free within {self.limit:g} seconds; nothing was sent",
                options=("repeat the call", "a larger pool_size"),
            ) from None

    @asynccontextmanager
    async def connection(self) -> AsyncGenerator[Link]:
        """Borrow a connection; one that does not come back clean is closed."""
        lane = self.bind()
        await self._wait_for_free_connection(lane.free)
        try:
            connection = self._take_idle(lane) or await self._connect(lane)
            try:
                yield connection
            finally:
                is_clean = not connection.closed and (
                    connection.info.transaction_status is TransactionStatus.IDLE
                )
                if is_clean and not lane.closed:
                    lane.idle.append(connection)
                else:
                    lane.all.discard(connection)
                    connection.pgconn.finish()
        finally:
            lane.free.release()

    def _take_idle(self, lane: Lane) -> Link | None:
        """Return an idle connection on which nothing has arrived, or None; close the others.

        A server that shuts down, or is no primary any more, sends a message or hangs up. Noticing this before
        anything is sent leaves no doubt whether an append was written.
        """
        while lane.idle:
            connection = lane.idle.pop()
            poll = select.poll()
            poll.register(connection.fileno(), select.POLLIN)
            if not poll.poll(0):
                return connection
            lane.all.discard(connection)
            connection.pgconn.finish()
        return None

    async def _connect(self, lane: Lane) -> Link:
        """Open a connection, and learn from it whether there is a pooler and what a commit survives."""
        connection = await self.open_dedicated()
        lane.all.add(connection)
        try:
            # No prepared statements until it is known that no pooler shares the connection.
            connection.prepare_threshold = None
            row = await (await connection.execute(_SERVER_SETTINGS)).fetchone()
            assert row is not None
            pid, synchronous_commit, standbys, fsync = row
            # A pooler gives its clients a number of its own.
            self.pooled = pid != connection.info.backend_pid
            if not self.pooled:
                connection.prepare_threshold = 3  # executions
            self.durability = durability_of_commit(synchronous_commit, standbys, fsync)
        except BaseException:
            lane.all.discard(connection)
            connection.pgconn.finish()
            raise
        return connection

    async def open_dedicated(self) -> Link:
        """Return a connection outside the pool; the caller closes it."""
        connection = await Link.connect(self._conninfo, autocommit=True)
        connection.limit = self.limit
        connection.unconfirmed = []
        # Not a method of the connection: it would hold itself.
        connection.add_notice_handler(partial(_record_sync_warning, connection.unconfirmed))
        return connection

    async def close(self) -> None:
        """Close every connection, in other running event loops only the idle ones; a later call opens new ones."""
        if self._pid != os.getpid():
            return
        own_lane = self._lanes.pop()
        if own_lane is not None:
            own_lane.close()
        for loop, lane in self._lanes.clear():
            if loop.is_running():
                loop.call_soon_threadsafe(lane.drop)
            else:
                lane.close()

    # ── retries ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def retry(
        self, work: Callable[[Connection], Awaitable[T]], *, may_repeat: bool, limit: float | None = None
    ) -> T:
        """Call `work` with a connection; repeat it after transient errors until it succeeds or patience ends.

        `may_repeat` says that `work` may be repeated even if its first call may have been committed. `limit` is how
        many seconds an answer may take; by default a little more than a statement may.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.patience
        wait = FIRST_WAIT
        is_first = True
        while True:
            link: Link | None = None
            try:
                async with self.connection() as link:
                    link.limit = self.limit if limit is None else limit
                    link.unconfirmed.clear()
                    result = await work(link)
                    if link.unconfirmed:
                        raise UnconfirmedError(link.unconfirmed[0])
                    return result
            except (UnicodeEncodeError, OverflowError) as error:
                raise ValidationError(f"{type(error).__name__}: {error}") from error
            except psycopg.Error as error:
                if self.read_only and error.sqlstate == "25006":
                    raise StorageReadOnlyError(
                        f"{self.name} was opened read-only", options=("leave ?mode=ro out",)
                    ) from error
                is_transient, wrote_nothing = self._classify(error, link)
                repeatable = wrote_nothing or may_repeat
                remaining = deadline - loop.time()
                was_silent = error.sqlstate is None  # the server sent no error: the connection failed
                if is_first and was_silent and self.patience:
                    remaining = max(remaining, FIRST_WAIT)  # waiting for an answer may use up the patience
                if not is_transient or not repeatable or remaining <= 0:
                    if error.sqlstate in _SERVER_GONE:
                        self._close_idle()
                    # Whether a repeatable call was written does not matter: its caller may repeat it as well.
                    raise translate_error(error, outcome_known=repeatable) from error
                # The server or the node is gone: other idle connections to it are of no use either.
                if not wrote_nothing or error.sqlstate in _SERVER_GONE:
                    self._close_idle()
                name, state = type(error).__name__, error.sqlstate or ""
                log_event(logging.WARNING, "storage_retry", error=name, sqlstate=state)
            is_first = False
            await asyncio.sleep(min(remaining, wait * chance.uniform(0.5, 1.0)))
            wait = min(MOST_WAIT, wait * 2)

    def _classify(self, error: psycopg.Error, link: Link | None) -> tuple[bool, bool]:
        """Return whether an error may pass by itself, and whether it is known that nothing was written."""
        if error.sqlstate == "25006" and link is not None and not self._has_several_hosts:
            # A standby may become the primary; a server that was configured as read-only will not.
            return link.info.parameter_status("in_hot_standby") == "on", True
        return _classify_error(error, link is not None)

    def _close_idle(self) -> None:
        """Close the idle connections: they lead to a server that is gone, or is no primary any more."""
        lane = self._lanes.get()
        if lane is not None:
            lane.close_idle()


def _record_sync_warning(unconfirmed: list[str], notice: psycopg.errors.Diagnostic) -> None:
    """Record that a commit stopped waiting for standbys: the server only sends a warning.

    The words may be in any language; the name of the function is not.
    """
    message = notice.message_primary or ""
    if notice.source_function == "SyncRepWaitForLSN" or "synchronous replication" in message:
        unconfirmed.append(message)


def durability_of_commit(synchronous_commit: str, standbys: str, fsync: str) -> Durability:
    """Return the durability of a commit on a server with these settings."""
    if synchronous_commit == "off" or fsync == "off":
        return "relaxed"
    return "quorum" if standbys.strip() and synchronous_commit != "local" else "disk"


def _classify_error(error: psycopg.Error, was_connected: bool) -> tuple[bool, bool]:
    """Return whether an error is transient, and whether it is certain that nothing was written.

    `was_connected` says that there was a connection when it was raised.
    """
    state = error.sqlstate
    if state is None and not was_connected and _is_permanent_refusal(error):
        return False, True
    if state is None:  # of the connection: refused, cut, or timed out; or the query was never sent
        lost_connection = _is_connection_error(error)
        return lost_connection, not (lost_connection and was_connected)
    if state in _TRANSIENT:
        return True, True
    # The server ended the connection; read-only (25006) and starting up (57P03) mean that it wrote nothing.
    if state in _SERVER_GONE or state.startswith("08"):
        return True, not was_connected or state in ("25006", "57P03")
    return False, True


def _is_permanent_refusal(error: psycopg.Error) -> bool:
    """Return whether a retry is useless: an option of the address is invalid, or every server refused the login.

    A server refuses a login for its user, its password or its database.
    """
    message = str(error)
    if _INVALID_OPTION.search(message):
        return True
    # The message has one line for each address that was tried.
    failures = message.count(" failed: FATAL:")
    all_refused = failures > 0 and failures == len(_REFUSAL.findall(message))
    return all_refused and " refused" not in message


def _is_connection_error(error: psycopg.Error) -> bool:
    return isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)


_ADVICE = (
    ("database", "CREATE DATABASE there, or name another one in the URL"),
    ("authentication", "check user and password of the URL, or of ~/.pgpass"),
    ("pg_hba.conf", "let an administrator allow this user and host in pg_hba.conf"),
    ("role", "CREATE ROLE there with LOGIN, or name another user in the URL"),
    ("invalid", "correct the URL: postgresql://user@host:5432/database"),
)
"""Words in which a server refuses a connection, and what to do about it."""


_GRANT = f"let an administrator run: GRANT {ROLE} TO USER"
_FORBIDDEN = ("42501", "28000", "28P01", "3D000", "0LP01")
_MEANINGS: Sequence[tuple[tuple[str, ...], Callable[..., ACMSError], Sequence[str]]] = (
    (("53100",), StorageFullError, ()),
    (("42P01", "3F000", "42703"), SchemaVersionError, ("acms migrate",)),
    (_FORBIDDEN, ConfigurationError, (_GRANT, "run acms migrate as the owner of the schema")),
    (("XX001", "XX002"), CorruptRecordError, ("restore the database from a backup",)),
    (tuple(_TRANSIENT), StorageBusyError, ()),
    (("25006",), partial(StorageReadOnlyError, retryable=True), ("connect to the primary",)),
    (("22",), ValidationError, ()),  # data exceptions
    (("08", *_SERVER_GONE), StorageUnavailableError, UNREACHABLE),
)
"""By codes or their first digits: the error that they mean whenever they come, and what to do about it."""


def translate_error(error: psycopg.Error, *, outcome_known: bool = True) -> ACMSError:
    """Return the ACMS error that corresponds to an error of the server.

    Without `outcome_known`, it is not known whether the failed call has written anything.
    """
    state = error.sqlstate or ""
    first_line = _remove_credentials(str(error)).split("\n", 1)[0]
    text = f"{type(error).__name__}: {first_line}"
    if not outcome_known:
        outcome = f"the connection was lost while an answer was due, so it is not known whether it was written ({text})"
        if isinstance(error, UnconfirmedError):
            outcome = f"it was committed, but it is not known whether a standby has it ({first_line})"
        return UnknownOutcomeError(outcome, options=("try again with the same idempotency key",))
    if not state:
        return _translate_client_error(error, text)
    # unique_violation
    if state == "23505":
        return ConflictError(f"another writer was first: {first_line}")
    # invalid_parameter_value: SET ROLE of a role that is missing
    if state == "22023" and ROLE in first_line:
        roles = f"let an administrator run: CREATE ROLE {ROLE} NOLOGIN NOINHERIT; GRANT {ROLE} TO USER"
        return ConfigurationError(text, options=(roles, "then restore the dump again, which grants to it"))
    for states, meaning, options in _MEANINGS:
        if state.startswith(states):
            return meaning(text, options=options)
    return StorageError(text)


def _translate_client_error(error: psycopg.Error, text: str) -> ACMSError:
    """Return the ACMS error for an error without a code: no server was reached, or the driver raised it."""
    if _is_permanent_refusal(error):
        return ConfigurationError(text, options=tuple(advice for words, advice in _ADVICE if words in text))
    if isinstance(error, psycopg.DataError):  # a value that the driver could not convert
        return ValidationError(text)
    if _is_connection_error(error):
        return StorageUnavailableError(text, options=UNREACHABLE)
    return StorageError(text)


def _without_secrets(error: psycopg.Error, dsn: str) -> str:
    """Return a message of the parser, which may quote any part of the address, without what may not be shown of it."""
    visible = without_password(dsn)
    return re.sub(
        r'"([^"]*)"',
        lambda match: match[0] if match[1] in visible else '"…"',
        _remove_credentials(str(error)),
    )


def _remove_credentials(text: str) -> str:
    """Return a message without a user's name and password."""
    return _SECRET.sub("", text)
