"""Commands that move and check whole sessions: import, export, restore, copy, backup, verify."""

from __future__ import annotations

import sys
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated, Any

import typer

from acms.branches import copying
from acms.branches import export as transfer
from acms.branches import witness as witnessed
from acms.branches.importers import Turn, read_chat, read_lines
from acms.cli import render
from acms.cli.base import (
    AsJson,
    Db,
    File,
    Namespace,
    Session,
    Unused,
    app,
    contexts,
    embedder,
    known,
    opened,
    run,
)
from acms.cli.render import Screen
from acms.config import ACMSConfig
from acms.errors import ACMSError, ConfigurationError, SessionNotFoundError
from acms.ports import HasBackup, HasIntegrity, StorageBackend
from acms.providers.tokens import token_counter
from acms.session import ACMS
from acms.storage.files import create

_BACKUPS = (
    "of a PostgreSQL database: pg_dump, or pg_basebackup with archived WAL",
    "of one tenant: acms copy FROM TO",
    "of one session: acms export SESSION",
)
BATCH = 200
"""Messages an import stores in one commit."""


@app.command("import", epilog="Example:  acms import chat.jsonl --session user_123")
def import_(
    file: File,
    session: Annotated[
        str | None, typer.Option("--session", metavar="NAME", help="Where to; default: the file's name.")
    ] = None,
    db: Db = None,
    namespace: Namespace = "default",
    as_json: AsJson = False,
) -> None:
    """Import a chat file; its format is detected.

    OpenAI-style JSON (a list of messages, or an object with "messages"), the same as JSONL, LoCoMo, REALTALK,
    BEAM. The whole file is checked first. Importing it again adds only what is new, so an interrupted import
    is continued by running it again.
    """
    if session is None and file.name == "-":
        raise typer.BadParameter("is needed when the messages come from stdin", param_hint="--session")

    async def work() -> None:
        turns = list(read_lines(sys.stdin, "stdin") if file.name == "-" else read_chat(file))
        name = session or file.stem
        new = 0
        async with opened(db, write=True) as storage:
            counter = await _counter(storage, name, namespace)
            async with ACMS(
                name,
                storage,
                embedder(),
                token_counter=counter,
                config=ACMSConfig.from_env(),
                namespace=namespace,
            ) as one:
                keys = await _keys(storage, name, namespace)
                with render.progress(f"importing {file.name}") as tell:
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
        screen = Screen(as_json)
        screen.show(
            value,
            lambda: screen.line(
                f"{name}: {new} new of {len(turns)} messages; it has {stats.messages:,} ({stats.tokens:,} tokens)"
            ),
        )

    run(as_json, work())


async def _counter(storage: StorageBackend, name: str, namespace: str) -> Any:
    try:
        return token_counter((await storage.context(name, namespace=namespace)).counter)
    except SessionNotFoundError:
        return None


async def _keys(storage: StorageBackend, name: str, namespace: str) -> set[str]:
    """Return the keys of everything a session holds."""
    try:
        context = await storage.context(name, namespace=namespace)
    except SessionNotFoundError:
        return set()
    head = await storage.head(context.id)
    pages = transfer.pages(storage, context.id, at=head.version)
    return {entry.key async for entries in pages for entry in entries if entry.key is not None}


async def _store(session: ACMS, turns: list[Turn], keys: set[str]) -> int:
    """Store a batch and return how many were new; what is known is offered again, so that a changed one is noticed."""
    again = [turn for turn in turns if turn["key"] in keys]
    fresh = [turn for turn in turns if turn["key"] not in keys]
    receipts = [receipt for part in (again, fresh) if part for receipt in await session.ingest_many(part)]
    return sum(not receipt.repeated for receipt in receipts)


@app.command(epilog="Example:  acms restore log.jsonl --db sqlite:///other.db")
def restore(file: File, db: Db = None, namespace: Unused = "default", as_json: AsJson = False) -> None:
    """Write an exported session back, verbatim.

    Same ids, versions and hashes, in the namespace it came from. Goes on where an interrupted one stopped.
    """

    async def work() -> None:
        async with opened(db, write=True) as storage:
            with render.progress("restoring") as tell:
                if file.name == "-":
                    context = await transfer.restore(storage, sys.stdin, progress=tell)
                else:
                    with file.open(encoding="utf-8", newline="\n") as lines:
                        context = await transfer.restore(storage, lines, progress=tell)
            head = await storage.head(context.id)
        value = {
            "session": context.key,
            "id": context.id,
            "namespace": context.namespace,
            "version": head.version,
            "messages": head.messages,
            "chain_hash": head.chain,
        }
        screen = Screen(as_json)
        name = context.key or context.id
        screen.show(value, lambda: screen.line(f"{name}: restored up to version {head.version:,}"))

    run(as_json, work())


@app.command(epilog="Example:  acms export user_123 > log.jsonl")
def export(
    session: Session, db: Db = None, namespace: Namespace = "default", as_json: AsJson = False
) -> None:
    """Write a session verbatim to stdout.

    One JSON object a line, which `acms restore` reads; --json changes nothing.
    """

    async def work() -> None:
        async with opened(db) as storage:
            context = await known(storage, session, namespace)
            with render.progress(f"exporting {session}") as tell:
                lines = transfer.export(storage, context.id, namespace=namespace, progress=tell)
                async for line in lines:
                    sys.stdout.write(line)

    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8", newline="\n")
    run(as_json, work())


@app.command(epilog="Example:  acms copy sqlite:///a.db 'postgresql://db/acms?tenant=acme' --verify")
def copy(
    stores: Annotated[
        list[str],
        typer.Argument(metavar="[FROM] TO", help="URLs of two stores; FROM is that of --db when left out."),
    ],
    derived: Annotated[
        bool, typer.Option(help="Copy vectors and other derived rows; else they are computed again.")
    ] = True,
    verify: Annotated[
        bool, typer.Option("--verify", help="Compare both sides afterwards and compute every hash again.")
    ] = False,
    db: Db = None,
    namespace: Unused = "default",
    as_json: AsJson = False,
) -> None:
    """Copy everything of a tenant into another store.

    All sessions of all namespaces with their forks, tags, tombstones, policies and unfinished jobs: same ids,
    versions and hashes. A second run brings what is new, so an interrupted one is continued by running it again.
    Stop what writes to either store first.
    """
    if len(stores) > 2:
        raise typer.BadParameter(f"two stores, not {len(stores)}", param_hint="[FROM] TO")
    source, target = stores if len(stores) == 2 else (db, stores[0])
    if source == target:
        raise typer.BadParameter("is the same store twice", param_hint="[FROM] TO")

    async def work() -> int:
        async with opened(source) as here, opened(target, write=True) as there:
            with render.progress("copying entries") as tell:
                done = await copying.copy(here, there, derived=derived, verify=verify, progress=tell)
        screen = Screen(as_json)

        def draw() -> None:
            screen.line(
                f"{done.contexts:,} sessions, {done.created:,} of them new; {done.entries:,} new entries,"
                f" {done.blanked:,} erased or expired since; {done.derived:,} derived rows, {done.jobs:,} jobs"
            )
            for what in done.left:
                screen.line(f"left behind: {what}", "yellow")
            for problem in done.problems:
                screen.line(str(problem), "red")
            if verify and not done.problems:
                screen.line("both sides are the same, and every hash is right", "green")

        screen.show({"ok": not done.problems, **render.plain(done)}, draw)
        return 1 if done.problems else 0

    run(as_json, work())


@app.command(epilog="Example:  acms backup monday.db")
def backup(
    to: Annotated[Path, typer.Argument(metavar="TO", help="The new file; it must not exist.")],
    db: Db = None,
    namespace: Unused = "default",
    as_json: AsJson = False,
) -> None:
    """Copy the database while it is in use."""

    async def work() -> None:
        async with opened(db) as storage:
            if not isinstance(storage, HasBackup):
                raise ConfigurationError("only a file can be backed up like this", options=_BACKUPS)
            with render.progress("copying pages") as tell:
                await storage.backup(str(to), progress=tell)
        size = to.stat().st_size
        screen = Screen(as_json)
        screen.show({"file": str(to), "bytes": size}, lambda: screen.line(f"{to}: {size:,} bytes"))

    run(as_json, work())


@app.command(epilog="Example:  acms verify user_123")
def verify(
    session: Annotated[
        str | None, typer.Argument(metavar="[SESSION]", help="One session; default: all.")
    ] = None,
    against: Annotated[
        Path | None,
        typer.Option("--witness", metavar="FILE", exists=True, dir_okay=False, help="See acms witness."),
    ] = None,
    db: Db = None,
    namespace: Namespace = "default",
    as_json: AsJson = False,
) -> None:
    """Recompute every hash and counter.

    Leaves with 1 when something is wrong, and names the session and the version. Without SESSION it checks
    the file too, and all sessions of all namespaces. With --witness it also notices what no hash shows: logs
    that lost their end, a file that was rolled back or swapped.
    """

    async def work() -> int:
        checked: list[dict[str, Any]] = []
        async with opened(db) as storage:
            broken = (
                await storage.integrity() if isinstance(storage, HasIntegrity) and session is None else []
            )
            if against is not None:
                broken += [str(one) for one in await witnessed.check(storage, _lines(against))]
            if session is not None:
                found = [await known(storage, session, namespace)]
            else:
                found = [context async for context in contexts(storage, None)]
            for context in found:
                with render.progress(f"checking {context.key or context.id}") as tell:
                    try:
                        problems = await transfer.verify(storage, context, progress=tell)
                    except (ACMSError, ValueError) as error:
                        problems = [transfer.Problem(context=context.id, version=0, what=str(error))]
                one = {
                    "session": context.key,
                    "id": context.id,
                    "namespace": context.namespace,
                    "problems": problems,
                }
                checked.append(one)
        wrong = sum(len(one["problems"]) for one in checked) + len(broken)
        screen = Screen(as_json)

        def draw() -> None:
            for what in broken:
                screen.line(f"store: {what}", "red")
            for one in checked:
                name = one["session"] or one["id"]
                for problem in one["problems"]:
                    screen.line(f"{name} {problem}", "red")
            screen.line(
                f"sessions checked: {len(checked)}, problems: {wrong}", "bold red" if wrong else "green"
            )

        screen.show({"ok": not wrong, "sessions": checked, "file": broken}, draw)
        return 1 if wrong else 0

    run(as_json, work())


@app.command(epilog="Example:  acms witness /mnt/elsewhere/heads.jsonl")
def witness(
    file: Annotated[Path, typer.Argument(metavar="FILE", dir_okay=False, help="Kept outside the store.")],
    db: Db = None,
    namespace: Unused = "default",
    as_json: AsJson = False,
) -> None:
    """Write down how far each log has come, with its chain hash.

    When FILE exists, the store is compared with it first: leaves with 1, and FILE as it was, when a log lost
    its end, or when the database was rolled back or swapped. Run it as often as you like; it reads one entry
    a session. Keep FILE where whoever writes to the database cannot: on another host, in an object store.
    """

    async def work() -> int:
        async with opened(db) as storage:
            wrong = await witnessed.check(storage, _lines(file)) if file.exists() else []
            if not wrong:
                found = await witnessed.lines(storage, contexts(storage, None))
                partial = file.with_name(f"{file.name}.partial")
                partial.unlink(missing_ok=True)
                create(partial)
                partial.write_text("".join(f"{line}\n" for line in found))
                partial.replace(file)
        screen = Screen(as_json)

        def draw() -> None:
            for one in wrong:
                screen.line(str(one), "red")
            screen.line(f"{file}: left as it was" if wrong else f"{file}: {len(found)} logs")

        screen.show({"ok": not wrong, "problems": wrong}, draw)
        return 1 if wrong else 0

    run(as_json, work())


def _lines(witness: Path) -> list[str]:
    return witness.read_text().splitlines()
