"""Commands that move and check whole sessions: export, restore, copy, backup, verify."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated, Any

import typer

from acms.branches import copying, limits, restoring
from acms.branches import export as transfer
from acms.branches import witness as witnessed
from acms.cli import render
from acms.cli.base import File, Session, Shell, command, contexts, interruptible, opened, write_file
from acms.errors import ACMSError, ConfigurationError
from acms.log import validation
from acms.ports import HasBackup, HasIntegrity

_BACKUPS = (
    "of a PostgreSQL database: pg_dump, or pg_basebackup with archived WAL",
    "of one tenant: acms copy FROM TO",
    "of one session: acms export SESSION",
)


STDIN = "stdin"
"""What errors call a file that is read from stdin."""


def _typed() -> Iterator[str]:
    """Return the lines of stdin, one at a time."""
    lines = limits.read_lines_within(sys.stdin.buffer, STDIN)
    while True:
        with interruptible():
            line = next(lines, None)
        if line is None:
            return
        yield line


@command("acms restore log.jsonl --db sqlite:///other.db", namespace="unused", resumes=True)
async def restore(shell: Shell, file: File) -> None:
    """Write an exported session back, verbatim.

    Same ids, versions, hashes and roles, in the namespace it came from: restore files that you trust. All of it is
    checked before anything is stored. Goes on where an interrupted one stopped.
    """
    typed = file.name == "-"
    lines, name = (_typed(), STDIN) if typed else (file, file.name)
    async with shell.opened(write=True) as storage:
        with shell.progress("restoring") as tell:
            context = await restoring.restore(storage, lines, name=name, progress=tell)
        head = await storage.head(context.id)
    value = {
        "session": context.key,
        "id": context.id,
        "namespace": context.namespace,
        "version": head.version,
        "messages": head.messages,
        "chain_hash": head.chain,
    }
    name = context.key or context.id
    shell.show(value, lambda: shell.line(f"{name}: restored up to version {head.version:,}"))


REQUESTS = {
    "openai-chat": "openai-chat",
    "responses": "openai-responses",
    "anthropic": "anthropic",
    "gemini": "gemini",
}
"""Codecs by the names of `export --as`."""


def _request(name: str | None) -> str | None:
    if name is not None and name not in REQUESTS:
        raise typer.BadParameter(f"{name!r} is not one of {', '.join(REQUESTS)}")
    return name


@command("acms export user_123 > log.jsonl", waits=False)
async def export(
    shell: Shell,
    session: Session,
    request: Annotated[
        str | None,
        typer.Option(
            "--as", metavar="FORMAT", callback=_request, help=f"The body of a request: {', '.join(REQUESTS)}."
        ),
    ] = None,
    budget: Annotated[
        int | None,
        typer.Option(
            "--budget", min=1, metavar="N", help="With --as: the newest messages in so many tokens."
        ),
    ] = None,
) -> None:
    """Write a session to stdout, verbatim or for a model provider.

    Verbatim it is one JSON object a line, which `acms restore` reads. With --as it is one JSON object with the messages
    of the session as they read now, without what is private; --budget keeps its newest part. --json changes nothing.
    """
    if budget is not None and request is None:
        raise typer.BadParameter("is for --as: a verbatim export is whole", param_hint="--budget")
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8", newline="\n")
    if request is not None:
        from acms.prompt import Prompt
        from acms.providers import codecs

        async with shell.reading(session) as one:
            prompt = Prompt(codecs.named(REQUESTS[request])).history(one)
            rendered = await prompt.render(budget=budget or validation.BUDGET)
        sys.stdout.write(json.dumps(rendered.payload, ensure_ascii=False, indent=2) + "\n")
        return
    async with shell.opened() as storage:
        context = await shell.known(storage, session)
        with shell.progress(None if sys.stdout.isatty() else f"exporting {session}") as tell:
            lines = transfer.export(storage, context.id, namespace=shell.namespace, progress=tell)
            async for line in lines:
                sys.stdout.write(line)


@command(
    "acms copy sqlite:///a.db 'postgresql://db/acms?tenant=acme' --verify", namespace="unused", resumes=True
)
async def copy(
    shell: Shell,
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
) -> int:
    """Copy everything of a tenant into another store.

    All sessions of all namespaces with their forks, tags, tombstones, policies and unfinished jobs: same ids,
    versions and hashes. A second run brings what is new, so an interrupted one is continued by running it again.
    Stop what writes to either store first.
    """
    if len(stores) > 2:
        raise typer.BadParameter(f"two stores, not {len(stores)}", param_hint="[FROM] TO")
    source, target = stores if len(stores) == 2 else (shell.db, stores[0])
    if source == target:
        raise typer.BadParameter("is the same store twice", param_hint="[FROM] TO")
    async with opened(source) as here, opened(target, write=True) as there:
        with shell.progress("copying entries") as tell:
            done = await copying.copy(here, there, derived=derived, verify=verify, progress=tell)

    def draw() -> None:
        shell.line(
            f"{done.contexts:,} sessions, {done.created:,} of them new; {done.entries:,} new entries,"
            f" {done.blanked:,} erased or expired since; {done.derived:,} derived rows, {done.jobs:,} jobs"
        )
        for what in done.left:
            shell.line(f"left behind: {what}", "yellow")
        for problem in done.problems:
            shell.line(str(problem), "red")
        if verify and not done.problems:
            shell.line("both sides are the same, and every hash is right", "green")

    shell.show({"ok": not done.problems, **render.plain(done)}, draw)
    return 1 if done.problems else 0


@command("acms backup monday.db", namespace="unused")
async def backup(
    shell: Shell, to: Annotated[Path, typer.Argument(metavar="TO", help="The new file; it must not exist.")]
) -> None:
    """Copy the database while it is in use."""
    async with shell.opened() as storage:
        if not isinstance(storage, HasBackup):
            raise ConfigurationError("only a file can be backed up like this", options=_BACKUPS)
        with shell.progress("copying pages") as tell:
            await storage.backup(str(to), progress=tell)
    size = to.stat().st_size
    shell.show({"file": str(to), "bytes": size}, lambda: shell.line(f"{to}: {size:,} bytes"))


@command("acms verify user_123")
async def verify(
    shell: Shell,
    session: Annotated[
        str | None, typer.Argument(metavar="[SESSION]", help="One session; default: all.")
    ] = None,
    against: Annotated[
        Path | None,
        typer.Option("--witness", metavar="FILE", exists=True, dir_okay=False, help="See acms witness."),
    ] = None,
) -> int:
    """Recompute every hash and counter.

    Leaves with 1 when something is wrong, and names the session and the version. Without SESSION it checks
    the file too, and all sessions of all namespaces. It notices a session whose namespace, name, parent or
    settings something else than ACMS changed. With --witness it also notices what no hash shows: logs that
    lost their end, a file that was rolled back or swapped, a witness that was.
    """
    checked: list[dict[str, Any]] = []
    async with shell.opened() as storage:
        broken = await storage.integrity() if isinstance(storage, HasIntegrity) and session is None else []
        if against is not None:
            broken += [str(one) for one in await witnessed.check_witness(storage, _lines(against))]
        if session is not None:
            found = [await shell.known(storage, session)]
        else:
            found = [context async for context in contexts(storage, None)]
        for context in found:
            with shell.progress(f"checking {context.key or context.id}") as tell:
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

    def draw() -> None:
        for what in broken:
            shell.line(f"store: {what}", "red")
        for one in checked:
            name = one["session"] or one["id"]
            for problem in one["problems"]:
                shell.line(f"{name} {problem}", "red")
        shell.line(f"sessions checked: {len(checked)}, problems: {wrong}", "bold red" if wrong else "green")

    shell.show({"ok": not wrong, "sessions": checked, "file": broken}, draw)
    return 1 if wrong else 0


@command("acms witness /mnt/elsewhere/heads.jsonl", namespace="unused")
async def witness(
    shell: Shell,
    file: Annotated[Path, typer.Argument(metavar="FILE", dir_okay=False, help="Kept outside the store.")],
) -> int:
    """Write down how far each log has come, and its chain hash.

    When FILE exists, the store is compared with it first: leaves with 1, and FILE as it was, when a log lost
    its end, when a session was moved or its settings were changed behind ACMS, when the database was rolled
    back or swapped, or when FILE was emptied, shortened or rolled back. The store records the number and digest
    of FILE. Keep FILE where whoever writes to the database cannot: on another host, in an object store.
    """
    async with shell.opened() as storage:
        before = _lines(file) if file.exists() else None
        wrong = [] if before is None else await witnessed.check_witness(storage, before)
        others = await witnessed.count_known(storage) if before is None else 0
        found = [] if wrong else await witnessed.build_witness(storage, contexts(storage, None), before or ())
        if not wrong:
            partial = file.with_name(f"{file.name}.partial")
            partial.unlink(missing_ok=True)
            write_file(partial, "".join(f"{line}\n" for line in found))
            partial.replace(file)
            await witnessed.record_witness(storage, found)

    def draw() -> None:
        for one in wrong:
            shell.line(str(one), "red")
        if others:
            shell.line(f"{file} is new; the store has recorded {others} other witnesses", "yellow")
        shell.line(f"{file}: left as it was" if wrong else f"{file}: {len(found) - 1} sessions")

    shell.show({"ok": not wrong, "problems": wrong}, draw)
    return 1 if wrong else 0


def _lines(witness: Path) -> list[str]:
    return witness.read_text().splitlines()
