"""The command that appends one message: add."""

from __future__ import annotations

import json
import sys
from typing import Annotated, Any

import typer

from acms.cli.base import Session, Shell, command, continued, interruptible
from acms.cli.render import fields_of
from acms.model import Json, Origin, Privacy, Role


def _object(written: str | None) -> dict[str, Json] | None:
    """Read a JSON object that was given as an option."""
    if written is None:
        return None
    try:
        found = json.loads(written)
    except (ValueError, RecursionError) as error:
        raise typer.BadParameter(f"is not JSON: {error}", param_hint="--metadata") from error
    if not isinstance(found, dict):
        raise typer.BadParameter('is not an object such as {"run": 12}', param_hint="--metadata")
    return found


@command('acms add user_123 user "We use PostgreSQL 18 for orders."')
async def add(
    shell: Shell,
    session: Session,
    role: Annotated[Role, typer.Argument(metavar="ROLE", help="user, assistant, tool, system or developer.")],
    text: Annotated[str, typer.Argument(metavar="TEXT", help="What is said, or - for stdin.")],
    actor: Annotated[str | None, typer.Option("--actor", metavar="NAME", help="Who speaks.")] = None,
    marker: Annotated[
        list[str] | None,
        typer.Option(
            "--marker", metavar="NAME", help="decision, constraint…; else found in the text; repeat."
        ),
    ] = None,
    metadata: Annotated[
        str | None, typer.Option("--metadata", metavar="JSON", help='Kept beside it: {"run": 12}.')
    ] = None,
    answers: Annotated[
        str | None, typer.Option("--tool-call", metavar="ID", help="The call that a tool answers.")
    ] = None,
    created: Annotated[
        str | None,
        typer.Option("--created-at", metavar="TIME", help="When it was said, in ISO 8601; default: now."),
    ] = None,
    key: Annotated[
        str | None, typer.Option("--key", metavar="TEXT", help="The same key again stores nothing twice.")
    ] = None,
    privacy: Annotated[
        Privacy, typer.Option("--privacy", metavar="MODE", help="allow, redact or block.")
    ] = Privacy.ALLOW,
    origin: Annotated[
        Origin | None,
        typer.Option(
            "--origin", metavar="WHO", help="user, assistant, tool or external; default: by the role."
        ),
    ] = None,
) -> None:
    """Append a message; the first one begins the session.

    It is on disk when the command is done. The same text again is a new message, unless --key says that it is not.
    """
    with interruptible():
        content = sys.stdin.read().rstrip("\n") if text == "-" else text
    given: dict[str, Any] = {"metadata": _object(metadata), "created_at": created, "tool_call_id": answers}
    async with shell.opened(write=True) as storage, await continued(storage, session, shell.namespace) as one:
        await one.ingest(
            role,
            content,
            actor_id=actor,
            markers=marker,
            privacy=privacy,
            origin=origin,
            idempotency_key=key,
            **given,
        )
        receipt = one.last_receipt
    assert receipt is not None
    said = f"{session} v{receipt.version}" + (" (there already)" if receipt.repeated else "")
    shell.show(
        {"session": session, **fields_of(receipt)}, lambda: shell.line(f"{said}  {receipt.message_id}")
    )
