"""Commands for what happens to a log: following it, and telling it to addresses."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from acms.cli import render
from acms.cli.base import Session, Shell, command
from acms.log.in_force import preview
from acms.results import LogEvent

PREVIEW = 100
"""Characters of a text that a line shows."""


@command("acms events user_123 --after 40 --follow")
async def events(
    shell: Shell,
    session: Session,
    after: Annotated[
        str,
        typer.Option("--after", metavar="CURSOR", help="Start behind this event, or this version."),
    ] = "0",
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on with what happens, until it is interrupted.")
    ] = False,
) -> None:
    """List what happened to a session: what was appended, and how its jobs stand.

    A line each, in the order of versions. It begins with the cursor that --after goes on behind. With --json a line
    is a JSON object.
    """
    async with shell.reading(session) as one:
        async for event in one.events(after=after, follow=follow):
            _write(shell, event)


def _write(shell: Shell, event: LogEvent) -> None:
    """Write one line, at once: whoever reads it may be a pipe."""
    if shell.as_json:
        happened = {"entry": event.entry} if event.job is None else {"job": event.job}
        print(json.dumps(render.plain({"cursor": event.cursor, **happened}), ensure_ascii=False), flush=True)
        return
    print(render.clean(f"{event.cursor}\t{_said(event)}"), flush=True)


def _said(event: LogEvent) -> str:
    if (job := event.job) is not None:
        return f"job {job.id} {job.kind} {job.state}"
    entry = event.entry
    assert entry is not None
    who = entry.actor or entry.role or entry.kind
    text = preview(entry.content, PREVIEW) if entry.state == "live" else f"({entry.state})"
    return f"{entry.kind} v{entry.version} {who}: {text}"
