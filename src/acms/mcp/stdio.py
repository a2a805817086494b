"""MCP over stdin and stdout: one process, one client, one session."""

from __future__ import annotations

import os

from anyio import AsyncFile
from mcp.server.stdio import stdio_server

from acms.mcp.memory import Local
from acms.mcp.server import build
from acms.runtime.threads import in_thread
from acms.session import ACMS

__all__ = ["serve_stdio"]


async def serve_stdio(session: ACMS) -> None:
    """Serve a session on stdin and stdout until stdin ends; nothing else of the process may use either.

    What was answered is stored. Calls under way when stdin ends are cancelled.
    """
    memory = Local(session)
    server = build(lambda _: memory)
    # A file of its own: `sys.stdin` could not be closed at exit while it is read.
    said = os.fdopen(0, encoding="utf-8", errors="replace", closefd=False)
    async with stdio_server(_Lines(said)) as (incoming, outgoing):
        await server.run(incoming, outgoing, server.create_initialization_options())


class _Lines(AsyncFile[str]):
    """Lines, for each of which neither who is interrupted waits, nor the end of the process."""

    async def readline(self) -> str:
        """Read one in a thread that may be left behind."""
        return await in_thread(self.wrapped.readline)
