"""Commands for single messages: add, replace, retract."""

from __future__ import annotations

import json
import sys
from typing import Annotated, Any

import typer

from acms.cli.base import (
    Session,
    Shell,
    allow_interrupt,
    define_command,
    get_or_create_session,
    resolve_entry,
)
from acms.cli.output import fields_of
from acms.errors import ValidationError
from acms.model import Json, Origin, Privacy, Role

MessageText = Annotated[str, typer.Argument(metavar="TEXT", help="Text of the message, or - for stdin.")]
Entry = Annotated[str, typer.Argument(metavar="ENTRY", help="Its id, its key, or its version as v12.")]


def _read_text(text: str) -> str:
    """Return the text argument, or the text from stdin for `-`."""
    if text != "-":
        return text
    with allow_interrupt():
        return sys.stdin.read().rstrip("\n")


def _check_text(text: str) -> None:
    """Raise `ValidationError` for a text without a word."""
    if not text.strip():
        raise ValidationError(
            "must not be empty",
            field="content",
            options=("give the text of the message, or - to read it from stdin",),
        )


def _parse_metadata(text: str | None) -> dict[str, Json] | None:
    """Parse the JSON object of an option."""
    if text is None:
        return None
    try:
        metadata = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise typer.BadParameter(f"is not JSON: {error}", param_hint="--metadata") from error
    if not isinstance(metadata, dict):
        raise typer.BadParameter('is not an object such as {"run": 12}', param_hint="--metadata")
    return metadata


RoleArgument = Annotated[
    Role, typer.Argument(metavar="ROLE", help="user, assistant, tool, system or developer.")
]
ActorOption = Annotated[str | None, typer.Option("--actor", metavar="NAME", help="Name of the speaker.")]
MarkerOption = Annotated[
    list[str] | None,
    typer.Option("--marker", metavar="NAME", help="decision, constraint…; default: detected; repeatable."),
]
MetadataOption = Annotated[
    str | None, typer.Option("--metadata", metavar="JSON", help='Stored with the message: {"run": 12}.')
]
ToolCallOption = Annotated[
    str | None, typer.Option("--tool-call", metavar="ID", help="The tool call that this message answers.")
]
CreatedOption = Annotated[
    str | None,
    typer.Option("--created-at", metavar="TIME", help="Time of the message in ISO 8601; default: now."),
]
KeyOption = Annotated[
    str | None,
    typer.Option("--key", metavar="TEXT", help="Idempotency key: the same key is stored once."),
]
PrivacyOption = Annotated[Privacy, typer.Option("--privacy", metavar="MODE", help="allow, redact or block.")]
OriginOption = Annotated[
    Origin | None,
    typer.Option("--origin", metavar="WHO", help="user, assistant, tool or external; default: by the role."),
]


@define_command("add", 'acms add user_123 user "We use PostgreSQL 18 for orders."')
async def add_message(
    shell: Shell,
    session: Session,
    role: RoleArgument,
    text: MessageText,
    actor: ActorOption = None,
    marker: MarkerOption = None,
    metadata: MetadataOption = None,
    tool_call: ToolCallOption = None,
    created: CreatedOption = None,
    key: KeyOption = None,
    privacy: PrivacyOption = Privacy.ALLOW,
    origin: OriginOption = None,
) -> None:
    """Append a message; the first one creates the session.

    The message is on disk when the command returns. Adding the same text again stores a new message, unless --key is
    the same.
    """
    content = _read_text(text)
    if tool_call is None:  # the output of a tool may be empty
        _check_text(content)
    details: dict[str, Any] = {
        "metadata": _parse_metadata(metadata),
        "created_at": created,
        "tool_call_id": tool_call,
    }
    async with (
        shell.open_store(write=True) as storage,
        await get_or_create_session(storage, session, shell.namespace) as writer,
    ):
        await writer.ingest(
            role,
            content,
            actor_id=actor,
            markers=marker,
            privacy=privacy,
            origin=origin,
            idempotency_key=key,
            **details,
        )
        receipt = writer.last_receipt
    assert receipt is not None
    suffix = " (there already)" if receipt.repeated else ""
    message = f"{session} v{receipt.version}{suffix}  {receipt.message_id}"

    def draw() -> None:
        shell.line(message)
        for note in receipt.notes:
            shell.line(f"note: {note}", "yellow")

    shell.show({"session": session, **fields_of(receipt)}, draw)


@define_command("replace", 'acms replace user_123 v12 "We use PostgreSQL 18 for all of it."')
async def replace_message(shell: Shell, session: Session, entry: Entry, text: MessageText) -> None:
    """Correct the text of a message.

    The new text takes the position of the old one; history keeps both. Facts from the old text are retired. `acms
    undo` reverts the replacement.
    """
    content = _read_text(text)
    _check_text(content)
    async with shell.open_for_writing(session, works=False) as writer:
        id = await writer.replace(await resolve_entry(writer, entry), content)
    value = {"session": session, "id": id, "replaced": entry}
    shell.show_line(value, f"{id} replaces {entry}")


@define_command("retract", "acms retract user_123 v12")
async def retract_entry(
    shell: Shell,
    session: Session,
    entry: Entry,
    alone: Annotated[bool, typer.Option("--alone", help="Keep the rest of its tool group.")] = False,
) -> None:
    """Retract an entry and the facts derived from it.

    Earlier versions still show the entry; `acms undo` reverts the retraction. A tool call is retracted with its
    results.
    """
    async with shell.open_for_writing(session, works=False) as writer:
        version = await writer.retract(await resolve_entry(writer, entry), alone=alone)
    value = {"session": session, "version": version, "retracted": entry}
    shell.show_line(value, f"v{version} retracts {entry}")
