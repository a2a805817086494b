"""`acms render`: a request of the v0 contract in, its reply out."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from acms.cli.base import AsJson, Db, File, Namespace, app, reading, run
from acms.cli.render import Column, Screen, plain
from acms.contract.schema import RenderReply
from acms.errors import ValidationError
from acms.log.in_force import preview
from acms.results import Verdict

FRAGMENTS = (
    Column("lod", "magenta"),
    Column("source", "cyan"),
    Column("tokens", right=True),
    Column("id", "dim"),
    Column("text"),
)

WHY = (
    Column("decision"),
    Column("rule", "magenta"),
    Column("score", "green", right=True),
    Column("tokens", right=True),
    Column("id", "dim"),
    Column("signals"),
    Column("reason"),
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
    why: Annotated[
        bool, typer.Option("--why", help="Also say of every candidate why it is shown or left out.")
    ] = False,
    db: Db = None,
    namespace: Namespace = "default",
    as_json: AsJson = False,
) -> None:
    """Answer a render_request.v0 from a session: fragments within the budget, or an error with options.

    --json writes render_context_reply.v0; --why adds a list `ledger`. The exit code is 1 when the reply
    is an error.
    """

    async def work() -> int:
        body = _read(request)
        from acms.contract.engine import ACS

        async with reading(db, namespace, session) as one:
            reply = await ACS([one]).render(body)
        screen = Screen(as_json)
        written = reply.to_wire(extended=extended)
        if why:
            written["ledger"] = [plain(verdict) for verdict in reply.ledger]
        screen.show(written, lambda: _draw(screen, reply, extended, why))
        return 0 if reply.error is None else 1

    run(as_json, work())


def _read(file: Path) -> Any:
    """Return a JSON object from a file or from stdin."""
    try:
        raw = sys.stdin.buffer.read() if file.name == "-" else file.read_bytes()
        return json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise ValidationError("is not JSON", field="request") from error


def _draw(screen: Screen, reply: RenderReply, extended: bool, why: bool) -> None:
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
    if why:
        screen.table(WHY, [_why(verdict) for verdict in reply.ledger])
    for warning in reply.warnings:
        screen.line(f"warning {warning.code}: {warning.message}", "yellow")
    if reply.error is not None:
        screen.line(f"error {reply.error.code}: {reply.error.message}", "red")
        for option in reply.error.options:
            screen.line(f"  try: {option.action}: {option.hint}")


def _why(verdict: Verdict) -> list[str]:
    """Return a verdict as a row of the `WHY` table."""
    parts = sorted(verdict.parts.items(), key=lambda part: -part[1])
    return [
        "shown" if verdict.included else "left out",
        verdict.rule,
        f"{verdict.score:.2f}",
        str(verdict.tokens),
        verdict.id,
        " ".join(f"{name} {value:.2f}" for name, value in parts),
        verdict.reason,
    ]
