"""`acms render`: reply to a request of the v0 contract."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from acms.cli.base import File, Shell, allow_interrupt, define_command
from acms.cli.output import LEDGER, Column, Screen, to_json_value
from acms.contract.schema import RenderReply
from acms.errors import ValidationError
from acms.log.active_entries import preview_text

FRAGMENTS = (
    Column("text", wide=True, value=lambda fragment: preview_text(fragment.text or "[blocked]", 160)),
    Column("lod", "magenta"),
    Column("source", "cyan"),
    Column("tokens", align_right=True, value="cost_tokens"),
    Column("id", "dim"),
)
WHY = (*LEDGER[:1], *LEDGER[2:5], LEDGER[7], Column("id", "dim"), LEDGER[8])
"""Columns of the ledger of a reply."""


SessionOption = Annotated[
    str, typer.Option("--session", metavar="SESSION", help="Name of the session, or its id.")
]
ExtendedOption = Annotated[
    bool, typer.Option("--extended", help="Add fields outside v0: sources, experience.")
]
WhyOption = Annotated[bool, typer.Option("--why", help="Add the decision about each candidate.")]


@define_command("render", "acms render request.json --session user_123")
async def render_request(
    shell: Shell,
    request: File,
    session: SessionOption,
    extended: ExtendedOption = False,
    why: WhyOption = False,
) -> int:
    """Reply to a request of the ACS v0 contract from a session.

    Reads a render_request.v0 and prints fragments within the budget, or an error with options. --json writes
    render_context_reply.v0; --why adds the list `ledger`. Exits with 1 if the reply is an error.
    """
    body = _read_json_input(request)
    from acms.contract.engine import ACS

    async with shell.open_session(session) as reader:
        reply = await ACS([reader]).render(body)
    value = reply.to_wire(extended=extended)
    if why:
        value["ledger"] = [to_json_value(verdict) for verdict in reply.ledger]
    shell.show(value, lambda: _draw_reply(shell, reply, extended, why))
    return 0 if reply.error is None else 1


def _read_json_input(file: Path) -> Any:
    """Read a JSON value from a file or stdin."""
    try:
        with allow_interrupt():
            data = sys.stdin.buffer.read() if file.name == "-" else file.read_bytes()
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ValidationError("is not JSON", field="request") from error


def _draw_reply(screen: Screen, reply: RenderReply, extended: bool, why: bool) -> None:
    if reply.fragments:
        screen.list(FRAGMENTS, reply.fragments)
    if reply.metrics is not None:
        coverage = reply.metrics.coverage_entities
        share = "" if coverage is None else f", {coverage:.0%} of what was asked for"
        count = len(reply.fragments or ())
        screen.line(f"{count} fragments, {reply.metrics.used_tokens} tokens{share}", "dim")
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
