"""The command that serves a session to an MCP client."""

from __future__ import annotations

from typing import Annotated

import typer

from acms.cli.base import Shell, command, continued


@command("acms mcp --db sqlite:///memory.db --session user_123", waits=False)
async def mcp(
    shell: Shell,
    session: Annotated[
        str, typer.Option("--session", metavar="SESSION", help="Name of the session, or its id.")
    ] = "default",
) -> None:
    """Serve a session to an MCP client, on stdin and stdout.

    The client starts this command itself: see the guide for the lines of its configuration. The first thing that is
    remembered begins the session. What was answered is on disk.
    """
    from acms.mcp import serve_stdio

    async with (
        shell.opened(write=True) as storage,
        await continued(storage, session, shell.namespace) as one,
    ):
        await serve_stdio(one)
