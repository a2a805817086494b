"""The command that serves a session to an MCP client."""

from __future__ import annotations

from typing import Annotated

import typer

from acms.cli.base import Shell, define_command, get_or_create_session


@define_command("mcp", "acms mcp --db sqlite:///memory.db --session user_123", waits=False)
async def serve_session(
    shell: Shell,
    session: Annotated[
        str, typer.Option("--session", metavar="SESSION", help="Name of the session, or its id.")
    ] = "default",
) -> None:
    """Serve a session to an MCP client on stdin and stdout.

    The client starts this command; the guide shows its configuration. The first write creates the session. Acknowledged
    writes are on disk.
    """
    from acms.mcp import serve_stdio

    async with (
        shell.open_store(write=True) as storage,
        await get_or_create_session(storage, session, shell.namespace) as served,
    ):
        await serve_stdio(served)
