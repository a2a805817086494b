"""The command that brings conversations from elsewhere: import."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from acms.branches import export as transfer
from acms.branches import limits
from acms.branches.importers import FORMATS, Conversation, Turn, read_export
from acms.cli.base import File, Shell, command, contexts, continued, interruptible
from acms.cli.render import Column
from acms.errors import IdempotencyMismatchError, SessionNotFoundError, ValidationError
from acms.log import validation
from acms.ports import StorageBackend
from acms.session import ACMS

BATCH = 200
"""Messages of a chat file that an import stores in one commit."""
IMPORTED = (
    Column("session", "cyan", wide=True),
    Column("new", right=True),
    Column("read", right=True),
    Column("changed", right=True, of=lambda one: one["replaced"] + one["retracted"]),
    Column("title", of=lambda one: one["title"][:28]),
)


def _format(name: str | None) -> str | None:
    if name is not None and name not in FORMATS:
        raise typer.BadParameter(f"{name!r} is not one of {', '.join(FORMATS)}")
    return name


@command("acms import chat.jsonl --session user_123", name="import", resumes=True)
async def import_(
    shell: Shell,
    file: File,
    session: Annotated[
        str | None, typer.Option("--session", metavar="NAME", help="Where to; default: the file's name.")
    ] = None,
    format: Annotated[
        str | None,
        typer.Option(
            "--format", metavar="NAME", callback=_format, help=f"{', '.join(FORMATS)}; else it is detected."
        ),
    ] = None,
    trust: Annotated[
        bool,
        typer.Option("--trust", help="Let system and developer messages of the file instruct the model."),
    ] = False,
) -> None:
    """Import a chat file or an export of another product.

    A chat file becomes a session: messages of a provider as JSON or JSONL. Of an export of ChatGPT, Claude or mem0, or
    a SQLite file of LangGraph's checkpoints, every conversation becomes one. All of it is checked first. Importing it
    again adds only what is new, and follows what was edited or taken out of an export; so an import that was
    interrupted is continued by running it again. System and developer messages become external text, shown as text of
    a user, unless --trust says that you know who wrote the file.
    """
    with interruptible():
        data = limits.read_within(sys.stdin.buffer, "stdin") if file.name == "-" else None
    path = Path("stdin") if data is not None else file
    found = read_export(path, format=format, data=data, trust=trust)
    if found.format != "chat":
        await _import_export(shell, found.conversations, found.format, session)
        return
    if session is None and data is not None:
        raise typer.BadParameter("is needed when the messages come from stdin", param_hint="--session")
    await _import_chat(shell, found.conversations[0].messages, session or file.stem)


async def _import_chat(shell: Shell, turns: Sequence[Turn], name: str) -> None:
    new = 0
    async with shell.opened(write=True) as storage:
        keys = await _keys(storage, name, shell.namespace)
        async with await continued(storage, name, shell.namespace) as one:
            with shell.progress(f"importing {name}") as tell:
                for start in range(0, len(turns), BATCH):
                    new += await _store(one, turns[start : start + BATCH], keys)
                    tell(min(start + BATCH, len(turns)), len(turns))
            stats = await one.get_session_stats()
    value = {
        "session": name,
        "read": len(turns),
        "new": new,
        "messages": stats.messages,
        "tokens": stats.tokens,
    }
    told = f"{name}: {new} new of {len(turns)} messages; it has {stats.messages:,} ({stats.tokens:,} tokens)"
    shell.show(value, lambda: shell.line(told))


async def _keys(storage: StorageBackend, name: str, namespace: str) -> set[str]:
    """Return the keys of everything a session holds."""
    try:
        context = await storage.context(name, namespace=namespace)
    except SessionNotFoundError:
        return set()
    head = await storage.head(context.id)
    pages = transfer.pages(storage, context.id, at=head.version)
    return {entry.key async for entries in pages for entry in entries if entry.key is not None}


async def _store(session: ACMS, turns: Sequence[Turn], keys: set[str]) -> int:
    """Store a batch and return how many were new; what is known is offered again, so that a changed one is noticed."""
    again = [turn for turn in turns if turn["key"] in keys]
    fresh = [turn for turn in turns if turn["key"] not in keys]
    try:
        receipts = [receipt for part in (again, fresh) if part for receipt in await session.ingest_many(part)]
    except IdempotencyMismatchError as error:
        option = "import it into another session, if it was imported with another --trust before"
        raise IdempotencyMismatchError(str(error), options=(option, *error.options)) from error
    return sum(not receipt.repeated for receipt in receipts)


async def _import_export(
    shell: Shell, found: Sequence[Conversation], format: str, session: str | None
) -> None:
    if session is not None and len(found) > 1:
        raise ValidationError(
            f"names one session, and the file holds {len(found)} conversations",
            field="session",
            options=("leave it out: each conversation becomes a session",),
        )
    done: list[dict[str, Any]] = []
    async with shell.opened(write=True) as storage:
        named = [one.key async for one in contexts(storage, shell.namespace) if one.key]
        names = [session or _called(one, named) for one in found]
        _check_names(names)
        with shell.progress(f"importing from {format}") as tell:
            for number, (one, name) in enumerate(zip(found, names, strict=True), 1):
                async with await continued(storage, name, shell.namespace) as log:
                    synced = await log.sync(one.messages, gone="retract")
                counts = {"read": len(one.messages), "new": len(synced.appended)}
                changed = {"replaced": len(synced.replaced), "retracted": len(synced.retracted)}
                changed["erased"] = len(synced.erased)
                done.append({"session": name, "title": one.title, **counts, **changed})
                tell(number, len(found))
    read, new = (sum(one[field] for one in done) for field in ("read", "new"))

    def draw() -> None:
        shell.list(IMPORTED, done)
        shell.line(f"{len(done)} sessions from {format}: {new:,} new of {read:,} messages")

    shell.show({"format": format, "read": read, "new": new, "sessions": done}, draw)


def _check_names(names: Sequence[str]) -> None:
    """Refuse names that no session may have, and two conversations under one name."""
    for name in names:
        validation.session_name(name, "session")
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ValidationError(f"two conversations of the file are named {twice!r}", field="session")


def _called(one: Conversation, named: Sequence[str]) -> str:
    """Return the session of a conversation: the one that an earlier import made, whatever its title was then."""
    if not one.title:
        return one.name
    return next((name for name in named if name.endswith(f"-{one.ending}")), one.name)
