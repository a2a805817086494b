"""MCP over stdin and stdout: one process, one client, one session."""

from __future__ import annotations

import os
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

import anyio
from anyio import AsyncFile
from mcp.server.stdio import stdio_server
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCError, JSONRPCMessage, JSONRPCRequest, JSONRPCResponse, RequestId
from mcp_types.jsonrpc import JSONRPCNotification, jsonrpc_message_adapter

from acms.mcp.memory import Local
from acms.mcp.messages import check_message
from acms.mcp.server import build_mcp_server
from acms.runtime.threads import in_thread
from acms.session import ACMS

__all__ = ["serve_stdio"]


async def serve_stdio(session: ACMS) -> None:
    """Serve a session on stdin and stdout until stdin ends; nothing else in the process may use either.

    Messages in answered calls are stored. Every request that was read before stdin ends is answered. A line that is no
    message is answered with a JSON-RPC error.
    """
    memory = Local(session)
    server = build_mcp_server(lambda _: memory)
    # A file of its own: `sys.stdin` could not be closed at exit while it is read.
    stdin = os.fdopen(0, encoding="utf-8", errors="replace", newline="\n", closefd=False)
    answers = _Answers()
    async with stdio_server(_Lines(stdin, answers)) as (incoming, outgoing):
        answers.open(outgoing)
        await server.run(incoming, answers, server.create_initialization_options())


class _Answers:
    """The stream of answers, which records the requests that still wait for theirs."""

    def __init__(self) -> None:
        self._outgoing: Any = None
        self._opened = anyio.Event()
        self._waiting: set[RequestId] = set()
        self._changed = anyio.Event()

    def open(self, outgoing: Any) -> None:
        """Set the stream to which answers are sent."""
        self._outgoing = outgoing
        self._opened.set()

    def note_request(self, message: JSONRPCMessage) -> None:
        """Record a message that was read: a request waits for its answer, a cancelled one does not."""
        if isinstance(message, JSONRPCRequest):
            self._waiting.add(message.id)
        elif isinstance(message, JSONRPCNotification) and message.method == "notifications/cancelled":
            self._mark_answered((message.params or {}).get("requestId"))

    async def wait_until_answered(self) -> None:
        """Wait until no request waits for its answer."""
        while self._waiting:
            await self._changed.wait()

    async def reject_line(self, error: JSONRPCError) -> None:
        """Answer a line that is no message."""
        await self._opened.wait()
        with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):  # the client has gone
            await self._outgoing.send(SessionMessage(error))

    async def send(self, item: SessionMessage, /) -> None:
        """Send a message of the server."""
        answer = item.message
        try:
            await self._outgoing.send(item)
        finally:
            if isinstance(answer, JSONRPCResponse | JSONRPCError):
                self._mark_answered(answer.id)

    def _mark_answered(self, id: RequestId | None) -> None:
        self._waiting.discard(id)
        self._changed.set()
        self._changed = anyio.Event()

    async def aclose(self) -> None:
        """Close the stream."""
        await self._outgoing.aclose()

    async def __aenter__(self) -> Self:
        """Return the stream."""
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_val: BaseException | None,
        exc_tb: TracebackType | None,
    ) -> None:
        """Close the stream."""
        await self.aclose()


class _Lines(AsyncFile[str]):
    """Lines of stdin. Neither an interrupted reader nor the end of the process waits for the next line."""

    def __init__(self, file: Any, answers: _Answers) -> None:
        super().__init__(file)
        self._answers = answers

    async def readline(self) -> str:
        """Read the next message in a thread that may be abandoned, and answer lines before it that are no messages.

        The end of stdin is returned once all requests are answered, because it ends the server.
        """
        while True:
            checked = await in_thread(self._read)
            if checked == "":  # the end; an empty line is an empty list
                await self._answers.wait_until_answered()
                return ""
            if isinstance(checked, str):
                self._answers.note_request(jsonrpc_message_adapter.validate_json(checked, by_name=False))
                return checked
            for error in checked:
                await self._answers.reject_line(error)

    def _read(self) -> str | list[JSONRPCError]:
        """Return the next line as `check_message` does; an empty text at the end."""
        line = self.wrapped.readline()
        return check_message(line) if line else ""
