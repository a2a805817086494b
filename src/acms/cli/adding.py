"""Commands for single messages: add, replace, retract."""

from __future__ import annotations

import json
import re
import sys
from contextlib import suppress
from typing import Annotated, Any

import typer

from acms.cli.base import Session, Shell, command, continued, interruptible
from acms.cli.render import fields_of
from acms.errors import EntryNotFoundError, GoneError
from acms.model import Json, Origin, Privacy, Role
from acms.session import ACMS

Said = Annotated[str, typer.Argument(metavar="TEXT", help="What is said, or - for stdin.")]
Entry = Annotated[str, typer.Argument(metavar="ENTRY", help="Its id, its key, or its version as v12.")]


def _content(text: str) -> str:
    """Return a text that was given, or that stands on stdin."""
    with interruptible():
        return sys.stdin.read().rstrip("\n") if text == "-" else text


async def _named(session: ACMS, entry: str) -> str:
    """Return what a session calls an entry by: its id, where a version was given that is no key."""
    if not re.fullmatch(r"v[1-9][0-9]{0,17}", entry):
        return entry
    with suppress(EntryNotFoundError, GoneError):
        return (await session.get(entry)).id
    page = await session.history(limit=1, after=int(entry[1:]) - 1)
    return page.entries[0].id if page.entries else entry


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
    text: Said,
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
    content = _content(text)
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


@command('acms replace user_123 v12 "We use PostgreSQL 18 for all of it."')
async def replace(shell: Shell, session: Session, entry: Entry, text: Said) -> None:
    """Correct the text of a message.

    It is read at the old place; history keeps both. Facts made from the old text are retired. undo takes it back.
    """
    content = _content(text)
    async with shell.writing(session, works=False) as one:
        id = await one.replace(await _named(one, entry), content)
    shell.show(
        {"session": session, "id": id, "replaced": entry}, lambda: shell.line(f"{id} replaces {entry}")
    )


@command("acms retract user_123 v12")
async def retract(
    shell: Shell,
    session: Session,
    entry: Entry,
    alone: Annotated[bool, typer.Option("--alone", help="Leave the rest of its tool group.")] = False,
) -> None:
    """Put an entry out of force, with the facts made from it.

    Earlier versions still show it, and undo takes it back. A tool call goes with its results.
    """
    async with shell.writing(session, works=False) as one:
        version = await one.retract(await _named(one, entry), alone=alone)
    value = {"session": session, "version": version, "retracted": entry}
    shell.show(value, lambda: shell.line(f"v{version} retracts {entry}"))
