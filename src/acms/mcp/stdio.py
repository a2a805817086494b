"""MCP over stdin and stdout: one process, one client, one session."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Any

import anyio
from anyio import AsyncFile
from mcp.server.stdio import stdio_server
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCError

from acms.mcp.memory import Local
from acms.mcp.messages import check_message
from acms.mcp.server import build_mcp_server
from acms.runtime.threads import in_thread
from acms.session import ACMS

__all__ = ["serve_stdio"]


async def serve_stdio(session: ACMS) -> None:
    """Serve a session on stdin and stdout until stdin ends; nothing else in the process may use either.

    Messages in answered calls are stored. Calls in progress when stdin ends are cancelled. A line that is no message is
    answered with a JSON-RPC error.
    """
    memory = Local(session)
    server = build_mcp_server(lambda _: memory)
    # A file of its own: `sys.stdin` could not be closed at exit while it is read.
    stdin = os.fdopen(0, encoding="utf-8", errors="replace", newline="\n", closefd=False)
    lines = _Lines(stdin)
    async with stdio_server(lines) as (incoming, outgoing):
        lines.answer_on(outgoing)
        await server.run(incoming, outgoing, server.create_initialization_options())


class _Lines(AsyncFile[str]):
    """Lines of stdin. Neither an interrupted reader nor the end of the process waits for the next line."""

    def __init__(self, file: Any) -> None:
        super().__init__(file)
        self._outgoing: Any = None
        self._opened = anyio.Event()

    def answer_on(self, outgoing: Any) -> None:
        """Set the stream for answers to lines that are no messages."""
        self._outgoing = outgoing
        self._opened.set()

    async def readline(self) -> str:
        """Read the next message in a thread that may be abandoned, and answer lines before it that are no messages."""
        await self._opened.wait()
        while True:
            checked = await in_thread(self._read)
            if isinstance(checked, str):
                return checked
            for error in checked:
                with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):  # the client has gone
                    await self._outgoing.send(SessionMessage(error))

    def _read(self) -> str | list[JSONRPCError]:
        """Return the next line as `check_message` does; an empty text at the end."""
        line = self.wrapped.readline()
        return check_message(line) if line else ""
