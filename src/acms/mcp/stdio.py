"""MCP over stdin and stdout: one process, one client, one session."""

from __future__ import annotations

from mcp.server.stdio import stdio_server

from acms.mcp.memory import Local
from acms.mcp.server import build
from acms.session import ACMS

__all__ = ["serve_stdio"]


async def serve_stdio(session: ACMS) -> None:
    """Serve a session on stdin and stdout until stdin ends; nothing else of the process may write to stdout.

    What was answered is stored. Calls under way when stdin ends are cancelled.
    """
    memory = Local(session)
    server = build(lambda _: memory)
    async with stdio_server() as (incoming, outgoing):
        await server.run(incoming, outgoing, server.create_initialization_options())
