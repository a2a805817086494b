"""`acms render`: a request of the v0 contract in, its reply out."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from acms.cli.base import File, Shell, command, interruptible
from acms.cli.render import LEDGER, Column, Screen, plain
from acms.contract.schema import RenderReply
from acms.errors import ValidationError
from acms.log.in_force import preview_text

FRAGMENTS = (
    Column("text", wide=True, of=lambda one: preview_text(one.text or "[blocked]", 160)),
    Column("lod", "magenta"),
    Column("source", "cyan"),
    Column("tokens", right=True, of="cost_tokens"),
    Column("id", "dim"),
)
WHY = (*LEDGER[:1], *LEDGER[2:5], LEDGER[7], Column("id", "dim"), LEDGER[8])
"""What the ledger of a reply says of each candidate."""


@command("acms render request.json --session user_123")
async def render(
    shell: Shell,
    request: File,
    session: Annotated[
        str, typer.Option("--session", metavar="SESSION", help="Name of the session, or its id.")
    ],
    extended: Annotated[
        bool, typer.Option("--extended", help="Add what is not in v0: sources, experience.")
    ] = False,
    why: Annotated[
        bool, typer.Option("--why", help="Also say of every candidate why it is shown or left out.")
    ] = False,
) -> int:
    """Answer a request of the ACS v0 contract from a session.

    A render_request.v0 in, fragments within the budget out, or an error with options. --json writes
    render_context_reply.v0; --why adds a list `ledger`. The exit code is 1 when the reply is an error.
    """
    body = _read(request)
    from acms.contract.engine import ACS

    async with shell.reading(session) as one:
        reply = await ACS([one]).render(body)
    written = reply.to_wire(extended=extended)
    if why:
        written["ledger"] = [plain(verdict) for verdict in reply.ledger]
    shell.show(written, lambda: _draw(shell, reply, extended, why))
    return 0 if reply.error is None else 1


def _read(file: Path) -> Any:
    """Return a JSON object from a file or from stdin."""
    try:
        with interruptible():
            raw = sys.stdin.buffer.read() if file.name == "-" else file.read_bytes()
        return json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise ValidationError("is not JSON", field="request") from error


def _draw(screen: Screen, reply: RenderReply, extended: bool, why: bool) -> None:
    if reply.fragments:
        screen.list(FRAGMENTS, reply.fragments)
    if reply.metrics is not None:
        covered = reply.metrics.coverage_entities
        share = "" if covered is None else f", {covered:.0%} of what was asked for"
        screen.line(
            f"{len(reply.fragments or ())} fragments, {reply.metrics.used_tokens} tokens{share}", "dim"
        )
    if extended:
        for unit in reply.experience:
            screen.line(f"experience {unit.unit_id}: {unit.reason}", "dim")
    if why:
        screen.list(WHY, reply.ledger)
    for warning in reply.warnings:
        screen.line(f"warning {warning.code}: {warning.message}", "yellow")
    if reply.error is not None:
        screen.line(f"error {reply.error.code}: {reply.error.message}", "red")
        for option in reply.error.options:
            screen.line(f"  try: {option.action}: {option.hint}")
