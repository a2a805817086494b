"""Connections: how much may arrive of a request before it is understood, and for how long."""

from __future__ import annotations

import asyncio
from typing import Any

__all__ = ["bounded"]

HEAD_BYTES = 65_536
"""Of the request line and all header fields together."""
HEAD_SECONDS = 10.0
"""Until they are there, from the first byte; and until the rest of a body is there that nobody waits for."""


def bounded(*, head_bytes: int = HEAD_BYTES, head_seconds: float = HEAD_SECONDS) -> type[asyncio.Protocol]:
    """Return the HTTP protocol of uvicorn, with bounds that it lacks: 431 and 408 when they are crossed.

    uvicorn bounds the size of header fields with one of its two parsers, and the time they take with neither.
    """
    from uvicorn.protocols.http.auto import AutoHTTPProtocol

    base: Any = AutoHTTPProtocol

    class Bounded(base):
        """A connection."""

        _timer: asyncio.TimerHandle | None = None
        _size = 0

        def connection_made(self, transport: asyncio.Transport) -> None:
            super().connection_made(transport)
            self._start()

        def connection_lost(self, exc: Exception | None) -> None:
            self._end()
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            cycle = self.cycle
            body = cycle is not None and cycle.more_body
            if not body:
                end = data.find(b"\r\n\r\n")
                self._size += len(data) if end < 0 else end
                if self._size > head_bytes:
                    self._refuse(b"431 Request Header Fields Too Large")
                    return
            super().data_received(data)
            if self.cycle is not cycle:
                self._end()
            elif self._timer is None and (cycle is None or cycle.response_complete):
                self._start()

        def _start(self) -> None:
            self._timer = self.loop.call_later(head_seconds, self._refuse, b"408 Request Timeout")

        def _end(self) -> None:
            self._size = 0
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

        def _refuse(self, status: bytes) -> None:
            transport: asyncio.Transport = self.transport
            self._end()
            if not transport.is_closing():
                if self.cycle is None or not self.cycle.more_body:  # else it was answered already
                    transport.write(
                        b"HTTP/1.1 " + status + b"\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
                    )
                transport.close()

    return Bounded
