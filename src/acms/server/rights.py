"""Ends a request when the right to make it ends: an event stream, an export, an import, a wait for a job.

A request is admitted once and may last for hours. Therefore the right of every request that has lasted for
`LOOK_SECONDS` is looked up again in the store, because another process may have revoked it. Together with
`keys.FRESH` this closes a stream within two seconds.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from time import monotonic
from types import TracebackType
from typing import Protocol

from starlette.requests import ClientDisconnect
from starlette.types import Scope as Connection
from starlette.types import Send

from acms.errors import (
    ACMSError,
    AuthenticationError,
    DeadlineError,
    GoneError,
    PermissionDeniedError,
    SessionNotFoundError,
)
from acms.observability.logging import log_event, safe_error
from acms.server.principal import EVERYWHERE, Access, Action, Principal
from acms.server.principal import Scope as KeyScope
from acms.server.tenants import SERVICE_NAMESPACE, Stores
from acms.storage.records import unknown_session_error

__all__ = ["LOOK_SECONDS", "TRANSPORT", "Right", "Rights", "drop_client", "end_stream", "limit_send_buffer"]

LOOK_SECONDS = 0.5
"""Time between two look-ups of the rights of long requests."""
UNKNOWN_SECONDS = 10.0
"""Time after which a request ends if its right cannot be looked up, because a store or a provider is down."""
TRANSPORT = "acms.transport"
"""Extension of a connection's scope: its transport, which can be dropped with its unsent data."""
LAST_SECONDS = 0.2
"""Time that a client has to receive the end of its stream."""


class Confirming(Protocol):
    """Confirms that a request may continue: the gate that admitted it."""

    async def confirm(self, admitted: Principal, authorization: str, scope: KeyScope | None) -> Access:
        """Return the namespaces that the request may use now; raise the reason if it may not continue."""
        ...


class Right:
    """The right to make one request, as a block around it.

    When the right ends, the block is cancelled and raises the error that says why.
    """

    __slots__ = (
        "_cancelling", "_rights", "_task", "action", "authorization", "confirmed", "context", "epoch", "error",
        "principal", "scope", "streamed",
    )  # fmt: skip

    def __init__(
        self,
        rights: Rights,
        principal: Principal,
        headers: Mapping[str, str],
        scope: KeyScope | None = None,
        action: Action = Action.READ,
        context: str | None = None,
    ) -> None:
        self._rights = rights
        self.principal = principal
        self.authorization = headers.get("authorization", "")
        self.scope = scope
        self.action = action
        #: Id of the context that the path names.
        self.context = context
        #: Whether the log of the context is streamed: then the request ends when the log is deleted or erased.
        self.streamed = False
        #: Erasure generation of that log when the stream began.
        self.epoch = 0
        #: When the right was last known to exist.
        self.confirmed = 0.0
        #: Why it has ended.
        self.error: ACMSError | None = None

    def mark_as_stream(self, epoch: int) -> None:
        """Mark the request as a stream of the context's log, which began at an erasure generation."""
        self.streamed = True
        self.epoch = epoch

    def end(self, error: ACMSError) -> None:
        """End the request with an error."""
        if self.error is None:
            self.error = error
            self._task.cancel()

    def __enter__(self) -> Right:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._cancelling = task.cancelling()
        self._rights.begin(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._rights.leave(self)
        if self.error is None:
            return
        cancelled_by_others = self._task.uncancel() > self._cancelling
        if kind is asyncio.CancelledError and not cancelled_by_others:
            raise self.error from None


class Rights:
    """The rights of the requests in progress in this process."""

    def __init__(self, gate: Confirming, stores: Stores, *, elapsed: Callable[[], float] = monotonic) -> None:
        self._gate = gate
        self._stores = stores
        self._elapsed = elapsed
        #: Oldest first.
        self._running: dict[Right, None] = {}

    def begin(self, right: Right) -> None:
        """Add a request that was just admitted."""
        right.confirmed = self._elapsed()
        self._running[right] = None

    def leave(self, right: Right) -> None:
        """Remove a request that has ended."""
        self._running.pop(right, None)

    async def run(self) -> None:
        """Look up rights until cancelled."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            await self.recheck()

    async def recheck(self) -> None:
        """Look up the rights that were not confirmed for `LOOK_SECONDS`, and end the requests without one.

        Raises no error.
        """
        now = self._elapsed()
        tenants: dict[str, list[Right]] = defaultdict(list)
        for right in self._running:
            if now - right.confirmed >= LOOK_SECONDS:
                tenants[right.principal.tenant].append(right)
        if tenants:
            await asyncio.gather(*[self._confirm_tenant(*item) for item in tenants.items()])

    async def _confirm_tenant(self, tenant: str, rights: Iterable[Right]) -> None:
        """Look up the rights of one tenant's requests, and end the requests without one.

        Requests with the same key and log share a look-up. A request also ends if its right could not be looked up for
        `UNKNOWN_SECONDS`.
        """
        groups: dict[tuple[object, ...], list[Right]] = defaultdict(list)
        for right in rights:
            caller = (right.authorization, right.principal.key, right.scope)
            log = (right.context, right.action, right.streamed, right.epoch)
            groups[*caller, *log].append(right)
        # A slow store of one tenant must not delay the look-ups of other tenants.
        deadline = asyncio.get_running_loop().time() + 1.0
        for group in groups.values():
            looked_up_at = self._elapsed()
            error = await self._find_error(tenant, group[0], deadline)
            for right in group:
                if error is None:
                    right.confirmed = looked_up_at  # the start of the look-up: the right may have ended since
                elif _is_right_denied(error) or self._elapsed() - right.confirmed >= UNKNOWN_SECONDS:
                    right.end(error)

    async def _find_error(self, tenant: str, right: Right, deadline: float) -> ACMSError | None:
        """Return the error for which a request must end or its right is unknown, or None if it may continue."""
        try:
            async with asyncio.timeout_at(deadline):
                access = await self._gate.confirm(right.principal, right.authorization, right.scope)
                if right.context is not None:
                    await self._confirm_context(tenant, right, access)
                return None
        except ACMSError as error:
            return error
        except TimeoutError:
            return DeadlineError("the right to this request could not be checked in time")
        except Exception as error:
            log_event(logging.ERROR, "access_check_failed", error=safe_error(error))
            return ACMSError()

    async def _confirm_context(self, tenant: str, right: Right, access: Access) -> None:
        """Raise `SessionNotFoundError` or `GoneError` if a request may no longer use the context in its path.

        A deleted or erased log ends only streams of it; other requests end only if the namespace may no longer be used.
        """
        if access is EVERYWHERE and not right.streamed:
            return
        assert right.context is not None
        handle = (await self._stores.tenant(tenant)).handle
        try:
            context = await handle.context(right.context)
        except SessionNotFoundError:
            if not right.streamed:  # the operation decides what a missing context means
                return
            raise
        # The audit trail is never visible as a context.
        visible = context.namespace != SERVICE_NAMESPACE and access.allows(context.namespace, right.action)
        deleted = right.streamed and context.deleted_at is not None
        if deleted or not visible:
            raise unknown_session_error(right.context)
        if right.streamed and (await handle.head(right.context)).epoch != right.epoch:
            raise GoneError("something in this log was erased: resume after the last event")


def _is_right_denied(error: ACMSError) -> bool:
    """Return whether an error means that there is no right; other errors mean that it could not be looked up."""
    return isinstance(error, AuthenticationError | PermissionDeniedError | SessionNotFoundError | GoneError)


def limit_send_buffer(connection: Connection) -> None:
    """Limit the operating system's send buffer of a stream, which a client that reads nothing would fill."""
    transport = connection.get("extensions", {}).get(TRANSPORT)
    if transport is None:
        return
    connected_socket = transport.get_extra_info("socket")
    if connected_socket is not None:
        connected_socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65_536)  # Linux doubles it


async def end_stream(connection: Connection, send: Send) -> None:
    """Complete a stream whose right has ended; drop the connection if the client does not receive the end in time."""
    try:
        async with asyncio.timeout(LAST_SECONDS):
            await send({"type": "http.response.body", "body": b"", "more_body": False})
    except TimeoutError:
        drop_client(connection)
    transport = connection.get("extensions", {}).get(TRANSPORT)
    if transport is not None:
        await asyncio.sleep(LAST_SECONDS)  # the client may still receive the buffered data
        if transport.get_write_buffer_size():
            transport.abort()


def drop_client(connection: Connection) -> None:
    """Close a connection and drop its unsent data; raises `ClientDisconnect`."""
    transport = connection.get("extensions", {}).get(TRANSPORT)
    if transport is not None:  # closing it would wait for the client to read the rest
        transport.abort()
    raise ClientDisconnect
