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
    """Serve a session on stdin and stdout until stdin ends; nothing else of the process may use either.

    What was answered is stored. Calls under way when stdin ends are cancelled. A line that is no message is answered
    with an error of JSON-RPC.
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
    """Lines, for each of which neither who is interrupted waits, nor the end of the process."""

    def __init__(self, file: Any) -> None:
        super().__init__(file)
        self._outgoing: Any = None
        self._opened = anyio.Event()

    def answer_on(self, outgoing: Any) -> None:
        """Say where the answers go to lines that are no messages."""
        self._outgoing = outgoing
        self._opened.set()

    async def readline(self) -> str:
        """Read the next message in a thread that may be left behind; answer what comes before it and is none."""
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
