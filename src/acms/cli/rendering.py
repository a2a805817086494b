"""`acms render`: a request of the v0 contract in, its reply out."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from acms.cli.base import AsJson, Db, File, Namespace, app, reading, run
from acms.cli.render import Column, Screen
from acms.contract import RenderReply
from acms.core.history import preview
from acms.errors import ValidationError

FRAGMENTS = (
    Column("lod", "magenta"),
    Column("source", "cyan"),
    Column("tokens", right=True),
    Column("id", "dim"),
    Column("text"),
)


@app.command(epilog="Example:  acms render request.json --session user_123")
def render(
    request: File,
    session: Annotated[
        str, typer.Option("--session", metavar="SESSION", help="Name of the session, or its id.")
    ],
    extended: Annotated[
        bool, typer.Option("--extended", help="Add what is not in v0: sources, experience.")
    ] = False,
    db: Db = None,
    namespace: Namespace = "default",
    as_json: AsJson = False,
) -> None:
    """Answer a render_request.v0 from a session: fragments within the budget, or an error with options.

    --json writes render_context_reply.v0. The exit code is 1 when the reply is an error.
    """

    async def work() -> int:
        body = _read(request)
        from acms.acs import ACS

        async with reading(db, namespace, session) as one:
            reply = await ACS([one]).render(body)
        screen = Screen(as_json)
        screen.show(reply.to_wire(extended=extended), lambda: _draw(screen, reply, extended))
        return 0 if reply.error is None else 1

    run(as_json, work())


def _read(file: Path) -> Any:
    """Return a JSON object from a file or from stdin."""
    try:
        raw = sys.stdin.buffer.read() if file.name == "-" else file.read_bytes()
        return json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise ValidationError("is not JSON", field="request") from error


def _draw(screen: Screen, reply: RenderReply, extended: bool) -> None:
    if reply.fragments:
        screen.table(
            FRAGMENTS,
            [
                [one.lod, one.source, str(one.cost_tokens), one.id, preview(one.text or "[blocked]", 160)]
                for one in reply.fragments
            ],
        )
    if reply.metrics is not None:
        covered = reply.metrics.coverage_entities
        share = "" if covered is None else f", {covered:.0%} of what was asked for"
        screen.line(
            f"{len(reply.fragments or ())} fragments, {reply.metrics.used_tokens} tokens{share}", "dim"
        )
    if extended:
        for unit in reply.experience:
            screen.line(f"experience {unit.unit_id}: {unit.reason}", "dim")
    for warning in reply.warnings:
        screen.line(f"warning {warning.code}: {warning.message}", "yellow")
    if reply.error is not None:
        screen.line(f"error {reply.error.code}: {reply.error.message}", "red")
        for option in reply.error.options:
            screen.line(f"  try: {option.action}: {option.hint}")
