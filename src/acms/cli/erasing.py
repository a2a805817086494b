"""The command that takes content away for ever: of a message, a session, a person or a namespace."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from typing import Annotated, TypedDict

import typer

from acms.cli import render
from acms.cli.base import AsJson, Db, app, known, opened, run
from acms.cli.render import Screen, plain
from acms.config import ACMSConfig
from acms.erasure import erase as erasure
from acms.log.policy import CompactionPolicy
from acms.model import Json
from acms.ports import Progress, StorageBackend
from acms.results import Erasure


@app.command(epilog="Example:  acms erase user_123 --message ID --verify")
def erase(
    session: Annotated[
        str | None, typer.Argument(metavar="[SESSION]", help="Name of the session, or its id.")
    ] = None,
    message: Annotated[
        list[str] | None,
        typer.Option("--message", metavar="ID", help="An entry of the session; may be repeated."),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Everything the session itself said.")] = False,
    actor: Annotated[
        str | None, typer.Option("--actor", metavar="NAME", help="What one speaker said, in every session.")
    ] = None,
    whole: Annotated[
        str | None, typer.Option("--namespace-all", metavar="NAME", help="All sessions of a namespace.")
    ] = None,
    verify: Annotated[
        bool, typer.Option("--verify", help="Search the store for what is left, every byte of it.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    db: Db = None,
    namespace: Annotated[
        str | None, typer.Option("--namespace", metavar="NAME", help="The group of sessions to look in.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Delete content for ever, in every fork; its versions stay as tombstones.

    Edits go too, and every summary and fact made from it; what such a summary stood for is in force again. With
    --verify it leaves with 1 when something is left. There is no way back, but for a backup. Not reached are pinned
    values, stored summaries of prompts, vectors in Chroma, and copies elsewhere; the output says what to do about them.
    """
    _check_who(session, actor, whole, named=bool(message), everything=everything, namespace=namespace)
    where = "every namespace" if namespace is None else f"namespace {namespace}"
    if session is not None:
        what = f"everything of {session}" if everything else f"{len(message or [])} entries of {session}"
    else:
        what = f"everything {actor} said in {where}" if whole is None else f"everything in namespace {whole}"
    if not yes:
        if not sys.stdin.isatty():
            raise typer.BadParameter("nobody can be asked here: say --yes")
        typer.confirm(f"Erase {what}, and whatever was made from it? There is no way back.", abort=True)

    async def go(storage: StorageBackend, progress: Progress) -> Erasure:
        how: _How = {"verify": verify, "service": ACMSConfig.from_env().compaction, "progress": progress}
        if session is None:
            who = {"actor": actor, "namespace": whole if whole is not None else namespace}
            given = {name: value for name, value in who.items() if value is not None}
            return await erasure.erase_subject(storage, **given, **how)
        context = await known(storage, session, namespace or "default")
        if everything:
            return await erasure.erase_context(storage, context.id, **how)
        return await erasure.erase(storage, context.id, message or [], **how)

    run(as_json, _erase(go, what, session, db, as_json))


class _How(TypedDict):
    """What every erasure is given."""

    verify: bool
    service: CompactionPolicy
    progress: Progress


def _check_who(
    session: str | None,
    actor: str | None,
    whole: str | None,
    *,
    named: bool,
    everything: bool,
    namespace: str | None,
) -> None:
    """Refuse options that do not name one thing to erase."""
    if [session is not None, actor is not None, whole is not None].count(True) != 1:
        raise typer.BadParameter("give SESSION, --actor or --namespace-all, and only one of them")
    if session is not None and named == everything:
        raise typer.BadParameter("give --message ID or --all", param_hint="SESSION")
    if session is None and (named or everything):
        raise typer.BadParameter("--message and --all belong to a session", param_hint="SESSION")
    if whole is not None and namespace is not None:
        raise typer.BadParameter("names a namespace already", param_hint="--namespace-all")


REMAINING = {
    "source": "kept: the message that the fact was made from,",
    "statement": "kept: a fact that was stated by hand and says the same,",
}


def _again(id: str, session: str | None) -> str:
    """Return the command that erases what was left."""
    return f"acms erase {session or 'SESSION'} --message {id}"


async def _erase(
    go: Callable[[StorageBackend, Progress], Awaitable[Erasure]],
    what: str,
    session: str | None,
    db: str | None,
    as_json: bool,
) -> int:
    async with opened(db) as storage:
        with render.progress("erasing") as tell:
            done = await go(storage, tell)
    screen = Screen(as_json)

    def draw() -> None:
        screen.line(
            f"{what}: {len(done.ids)} entries of {len(done.contexts)} sessions are erased,"
            f" {len(done.cascaded)} of them summaries and facts made from others"
        )
        for one in done.remaining:
            screen.line(f"{REMAINING[one.kind]} {one.id}: {_again(one.id, session)}", "yellow")
        for left in done.residue:
            screen.line(f"still there: {left}", "red")
        if done.verified and not done.residue:
            screen.line("nothing of it is left in the store", "green")
        for place in done.unreached:
            screen.line(f"not reached: {place}")

    value: dict[str, Json] = {"what": what, **plain(done)}
    screen.show(value, draw)
    return 1 if done.residue else 0
