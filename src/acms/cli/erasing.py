"""The command that takes content away for ever: of a message, a session, a person or a namespace."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Annotated, TypedDict

import typer

from acms.cli.base import Shell, Yes, command, known
from acms.cli.render import plain, shell_words
from acms.config import ACMSConfig
from acms.erasure import erase as erasure
from acms.log.policy import CompactionPolicy
from acms.log.validation import UNNAMED
from acms.model import Context
from acms.ports import Progress
from acms.privacy.detect import safe_key
from acms.results import Erasure

KEPT = {
    "source": "stays: the message that the fact was made from",
    "statement": "stays: a fact that was stated by hand and says the same",
    "copy": "stays: the original or another copy of it, or something made from one",
}
"""What is said of each kind of `Erasure.remaining`."""
PROVED = {
    "rows": "nothing of it is left in the rows of the store; no file was searched for what it said",
    "bytes": "nothing of it is left in the store, in no row and no byte of the files that held it",
}
"""What is said of each `Erasure.proof`."""
LISTED = 20
"""Remaining entries that a terminal shows; --json lists all."""


@command("acms erase user_123 --message ID --verify", namespace=None, resumes=True)
async def erase(
    shell: Shell,
    session: Annotated[
        str | None, typer.Argument(metavar="[SESSION]", help="Name of the session, or its id.")
    ] = None,
    message: Annotated[
        list[str] | None,
        typer.Option("--message", metavar="ID", help="An entry, or your key of one; may be repeated."),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Everything the session itself said.")] = False,
    actor: Annotated[
        str | None, typer.Option("--actor", metavar="NAME", help="What one speaker said, in every session.")
    ] = None,
    whole: Annotated[
        str | None, typer.Option("--namespace-all", metavar="NAME", help="All sessions of a namespace.")
    ] = None,
    verify: Annotated[
        bool, typer.Option("--verify", help="Look for what is left; says how far that was possible.")
    ] = False,
    rewrite: Annotated[
        bool, typer.Option("--rewrite", help="Write the file, or tables of the server, anew without it.")
    ] = False,
    yes: Yes = False,
    namespace: Annotated[
        str | None, typer.Option("--namespace", metavar="NAME", help="The group of sessions to look in.")
    ] = None,
) -> int:
    """Delete content for ever, in every fork; tombstones stay.

    Edits go too, and every summary and fact made from it; what such a summary stood for is in force again. A message
    that a fact was made from stays, and so does what it was copied from by a merge or a copy: each is named. With
    --verify it also finds messages imported twice, and leaves with 1 when something is left. A PostgreSQL
    server keeps old versions of rows in its files until --rewrite, which makes others wait for their tables.
    Not reached are pinned values, stored summaries, vectors in Chroma and copies elsewhere: the output says more.
    """
    _check_who(session, actor, whole, named=bool(message), everything=everything, namespace=namespace)
    count = "everything" if everything else f"{len(message or [])} entries"
    what = _whose(actor, whole, namespace) if session is None else f"{count} of {session}"
    shell.confirm(f"Erase {what}, and whatever was made from it? There is no way back.", yes)
    context = None
    async with shell.opened() as storage:
        if session is not None:
            context = await known(storage, session, namespace or "default")
        with shell.progress("erasing") as tell:
            how = _How(
                verify=verify, rewrite=rewrite, service=ACMSConfig.from_env().compaction, progress=tell
            )
            if context is None:
                who = {"actor": actor, "namespace": whole if whole is not None else namespace}
                given = {name: value for name, value in who.items() if value is not None}
                done = await erasure.erase_subject(storage, **given, **how)
            elif everything:
                done = await erasure.erase_context(storage, context.id, **how)
            else:
                done = await erasure.erase_entries(storage, context.id, message or [], **how)
        owners = {one.context: await storage.context(one.context) for one in done.remaining}
    shell.show({"what": what, **plain(done)}, lambda: _draw(shell, what, done, owners))
    return 1 if done.residue or (verify and not done.verified) else 0


class _How(TypedDict):
    """What every erasure is given."""

    verify: bool
    rewrite: bool
    service: CompactionPolicy
    progress: Progress


def _whose(actor: str | None, whole: str | None, namespace: str | None) -> str:
    """Say whose content goes, in sessions of any name."""
    where = "every namespace" if namespace is None else f"namespace {namespace}"
    return f"everything {actor} said in {where}" if whole is None else f"everything in namespace {whole}"


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


def _name(context: Context) -> str:
    """Return what the shell calls a session by; a deleted one by its id alone."""
    return context.key if context.key and context.deleted_at is None else context.id


def _draw(shell: Shell, what: str, done: Erasure, owners: Mapping[str, Context]) -> None:
    """Show what an erasure did; `owners` are the contexts of the entries that remain."""
    shell.line(
        f"{what}: {len(done.ids)} entries of {len(done.contexts)} sessions are erased,"
        f" {len(done.cascaded)} of them summaries and facts made from others"
    )
    for one in done.remaining[:LISTED]:
        context = owners[one.context]
        shell.line(f"{_name(context)} v{one.version} {KEPT[one.kind]}", "yellow")
        words = ["acms", "erase", _name(context), "--message", one.id]
        words += [] if context.namespace == UNNAMED else ["--namespace", context.namespace]
        words += ["--db", shell.db] if shell.db else []
        if shell.db is None or safe_key(shell.db):  # an address with a password is left to the reader
            shell.line(f"  to erase it too: {shlex.join(words)}", "yellow")
    if len(done.remaining) > LISTED:
        shell.line(f"{len(done.remaining) - LISTED} more stay: --json lists them", "yellow")
    if done.rewritten:
        shell.line(f"written anew: {', '.join(done.rewritten)}")
    for rest in done.residue:
        shell.line(f"still there: {rest}", "red")
    if done.proof is not None and not done.residue:
        shell.line(PROVED[done.proof or "rows"], "green")
    for place in done.unreached:
        shell.line(f"not reached: {shell_words(place)}")
