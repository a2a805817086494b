"""Connections: limits on the size and the time of a request outside its body."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any, cast

from uvicorn import Config, Server
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from acms.server.rights import TRANSPORT

__all__ = ["BoundedProtocol", "StoppingServer", "build_bounded_protocol"]

MAX_PIPELINED = 100
"""Requests that a connection may send before the first of them is answered; clients send fewer than ten."""


class _LimitExceededError(Exception):
    """A connection exceeds a limit: the parser stops."""


class BoundedProtocol(HttpToolsProtocol):
    """A connection with the limits that uvicorn lacks: beyond them it answers 431 or 408 and closes the connection.

    uvicorn collects header fields, trailer fields and pipelined requests in lists without a limit. Trailer fields are
    counted and dropped: nothing reads them, and uvicorn would add them to the header fields, where one named
    `Authorization` would be used.
    """

    #: Bytes of the request line, all header fields and the trailer fields together.
    head_bytes = 65_536
    #: Time for a complete head from its first byte, and for the rest of a body that no handler reads.
    head_seconds = 10.0
    _timer: asyncio.TimerHandle | None = None
    #: Bytes received since the last head, piece of a body or request ended: a line without an end counts here.
    _unfinished_bytes = 0
    #: Bytes of the parsed lines of the request that is being received: request line, header and trailer fields.
    _head_size = 0
    #: Whether the head of a request was received and its end was not. uvicorn forgets this when it has answered.
    _in_body = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        """Start the timer of the first head."""
        super().connection_made(transport)
        self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timer."""
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse more data, and refuse a request whose head is too large or takes too long."""
        cycle = self.cycle
        self._unfinished_bytes += len(data)
        super().data_received(data)
        if self._unfinished_bytes > self.head_bytes:
            self._refuse(b"431 Request Header Fields Too Large")
        elif self.cycle is not cycle:
            self._stop_timer()
        elif self._timer is None and (cycle is None or cycle.response_complete):
            self._start_timer()

    def send_400_response(self, msg: str) -> None:
        """Answer why the parser stopped."""
        if self._head_size > self.head_bytes or len(self.pipeline) > MAX_PIPELINED:
            self._refuse(b"431 Request Header Fields Too Large")
        else:
            super().send_400_response(msg)

    def on_message_begin(self) -> None:
        """Begin a request."""
        self._head_size, self._in_body = 0, False
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        """Count a piece of a request line."""
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Count a header field, and drop a trailer field."""
        self._count(len(name) + len(value) + 4)
        if not self._in_body:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Begin to answer, or queue the request."""
        self._unfinished_bytes, self._in_body = 0, True
        cast("dict[str, Any]", self.scope)["extensions"] = {TRANSPORT: self.transport}
        super().on_headers_complete()
        if len(self.pipeline) > MAX_PIPELINED:
            raise _LimitExceededError

    def on_body(self, body: bytes) -> None:
        """Receive a piece of a body."""
        self._unfinished_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """End a request."""
        self._unfinished_bytes, self._in_body = 0, False
        super().on_message_complete()

    def _count(self, size: int) -> None:
        self._head_size += size
        if self._head_size > self.head_bytes:
            raise _LimitExceededError

    def _start_timer(self) -> None:
        self._timer = self.loop.call_later(self.head_seconds, self._refuse, b"408 Request Timeout")

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _refuse(self, status: bytes) -> None:
        """Close the connection, and send an error status first if no other request waits for its answer.

        A client would take the status for the answer to that other request.
        """
        self._stop_timer()
        if self.transport.is_closing():
            return
        if self._in_body:
            may_answer = not self.cycle.response_started and not self.pipeline
        else:
            may_answer = self.cycle is None or self.cycle.response_complete
        if may_answer:
            self.transport.write(
                b"HTTP/1.1 " + status + b"\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
            )
        self.transport.close()


def build_bounded_protocol(
    *, head_bytes: int = BoundedProtocol.head_bytes, head_seconds: float = BoundedProtocol.head_seconds
) -> type[BoundedProtocol]:
    """Return the HTTP protocol of `acms serve`, for `http=` of any uvicorn."""
    return type(
        "BoundedProtocol", (BoundedProtocol,), {"head_bytes": head_bytes, "head_seconds": head_seconds}
    )


class StoppingServer(Server):
    """A server that calls `stopping` when it begins to stop, so that open requests such as streams can end."""

    def __init__(self, config: Config, stopping: Callable[[], object]) -> None:
        super().__init__(config)
        self._stopping = stopping

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Call `stopping`, then stop."""
        self._stopping()
        await super().shutdown(sockets)
