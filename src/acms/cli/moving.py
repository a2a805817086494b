"""Commands that move and verify whole sessions and stores: export, restore, copy, backup, verify, witness."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated, Any

import typer

from acms.branches import copying, limits, restoring
from acms.branches import export as transfer
from acms.branches import witness as witnesses
from acms.branches.forks import find_context
from acms.cli import output
from acms.cli.base import File, Session, Shell, allow_interrupt, define_command, iterate_contexts, write_file
from acms.cli.hints import given_store, keep_store
from acms.cli.output import Screen, count_noun
from acms.cli.stores import open_store, parse_store
from acms.errors import ACMSError, ConfigurationError, CorruptRecordError
from acms.log import validation
from acms.model import Context
from acms.ports import HasBackup, HasIntegrity, StorageBackend
from acms.recall.reindex import DerivedCheck, check_derived_rows
from acms.storage import open_storage

_BACKUPS = (
    "of a PostgreSQL database: pg_dump, or pg_basebackup with archived WAL",
    "of one tenant: acms copy FROM TO",
    "of one session: acms export SESSION",
)


LISTED = 20
"""Sessions without problems that `verify` names: a few lines of a terminal."""
STDIN = "stdin"
"""Name of stdin in errors."""


def _read_stdin_lines() -> Iterator[str]:
    """Yield the lines of stdin. Ctrl-C works while it waits for a line, not while a line is stored."""
    lines = limits.read_lines_within(sys.stdin.buffer, STDIN)
    while True:
        with allow_interrupt():
            line = next(lines, None)
        if line is None:
            return
        yield line


@define_command("restore", "acms restore log.jsonl --db sqlite:///other.db", namespace="unused", resumes=True)
async def restore_session(shell: Shell, file: File) -> None:
    """Restore an exported session verbatim.

    Ids, versions, hashes, roles and the namespace are those of the file, so restore only files that you trust. The
    whole file is checked before anything is stored. Running an interrupted restore again continues it.
    """
    from_stdin = file.name == "-"
    lines = _read_stdin_lines() if from_stdin else file
    source = STDIN if from_stdin else file.name
    async with restoring.make_rereadable(lines, source) as read_lines:
        if not await shell.has_store():  # a refused file must not create one
            async with open_storage("memory://") as empty_store:
                await restoring.check_exports(empty_store, [read_lines()], source)
        async with shell.open_store(write=True) as storage:
            checked, *_ = await restoring.check_exports(storage, [read_lines()], source)
            previous = await _stored_version(storage, checked)
            with shell.progress("restoring") as report:
                context = await restoring.write_export(storage, read_lines(), source, progress=report)
            head = await storage.head(context.id)
    value = {
        "session": context.key,
        "id": context.id,
        "namespace": context.namespace,
        "version": head.version,
        "restored": head.version - previous,
        "messages": head.messages,
        "chain_hash": head.chain,
    }
    name = context.key or context.id
    message = f"{name}: restored up to version {head.version:,}"
    if head.version == previous:
        message = (
            f"{name}: nothing to restore, the store has all of {source}; the log is at version {previous:,}"
        )
    shell.show_line(value, message)


async def _stored_version(storage: StorageBackend, context: Context) -> int:
    """Return the newest stored version of a context, or the version of its fork if it is not stored."""
    stored = await find_context(storage, context.id)
    return (context.fork or 0) if stored is None else (await storage.head(stored.id)).version


REQUESTS = {
    "openai-chat": "openai-chat",
    "responses": "openai-responses",
    "anthropic": "anthropic",
    "gemini": "gemini",
}
"""Codecs by the names of `export --as`."""


def _check_format(name: str | None) -> str | None:
    if name is not None and name not in REQUESTS:
        raise typer.BadParameter(f"{name!r} is not one of {', '.join(REQUESTS)}")
    return name


RequestOption = Annotated[
    str | None,
    typer.Option(
        "--as",
        metavar="FORMAT",
        callback=_check_format,
        help=f"Write a request body: {', '.join(REQUESTS)}.",
    ),
]
BudgetOption = Annotated[
    int | None,
    typer.Option("--budget", min=1, metavar="N", help="With --as: token budget for the newest messages."),
]


@define_command("export", "acms export user_123 > log.jsonl", waits=False)
async def export_session(
    shell: Shell,
    session: Session,
    request: RequestOption = None,
    budget: BudgetOption = None,
) -> None:
    """Write a session to stdout, verbatim or as a request body.

    The verbatim form has one JSON object per line; `acms restore` reads it. With --as, the output is one JSON object
    with the current messages of the session, without private content; --budget limits it to the newest messages.
    --json has no effect.
    """
    if budget is not None and request is None:
        raise typer.BadParameter("needs --as: a verbatim export is always whole", param_hint="--budget")
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8", newline="\n")
    if request is not None:
        from acms.prompt import Prompt
        from acms.providers import codecs

        async with shell.open_session(session) as reader:
            prompt = Prompt(codecs.named(REQUESTS[request])).history(reader)
            rendered = await prompt.render(budget=budget or validation.BUDGET)
        sys.stdout.write(json.dumps(rendered.payload, ensure_ascii=False, indent=2) + "\n")
        return
    async with shell.open_store() as storage:
        context = await shell.find_session(storage, session)
        task = None if sys.stdout.isatty() else f"exporting {session}"
        with shell.progress(task) as report:
            lines = transfer.export(storage, context.id, namespace=shell.namespace, progress=report)
            async for line in lines:
                sys.stdout.write(line)


def _take_source(stores: list[str]) -> list[str]:
    """Let hints name the store that is copied."""
    if len(stores) == 2:
        given_store.set(stores[0])
    return stores


StoresArgument = Annotated[
    list[str],
    typer.Argument(
        metavar="[FROM] TO", callback=_take_source, help="URLs of two stores; FROM defaults to --db."
    ),
]
DerivedOption = Annotated[
    bool, typer.Option(help="Copy vectors and other derived rows instead of recomputing them.")
]
VerifyOption = Annotated[
    bool, typer.Option("--verify", help="Compare both stores afterwards and recompute every hash.")
]


@define_command(
    "copy",
    "acms copy sqlite:///a.db 'postgresql://db/acms?tenant=acme' --verify",
    namespace="unused",
    resumes=True,
)
async def copy_store(
    shell: Shell,
    stores: StoresArgument,
    derived: DerivedOption = True,
    verify: VerifyOption = False,
) -> int:
    """Copy all data of a tenant to another store.

    Copies all sessions of all namespaces with their forks, tags, tombstones, policies and unfinished jobs; ids,
    versions and hashes stay the same. A second run copies new data, so running an interrupted copy again continues it.
    Stop all writers to both stores first.
    """
    if len(stores) > 2:
        raise typer.BadParameter(f"two stores, not {len(stores)}", param_hint="[FROM] TO")
    source = parse_store(stores[0]) if len(stores) == 2 else shell.db
    target = parse_store(stores[-1])
    if source == target:
        raise typer.BadParameter("must be another store than the first", param_hint="[FROM] TO")
    source_field = "" if len(stores) == 2 else "db"
    async with (
        open_store(source, field=source_field) as source_store,
        open_store(target, write=True, field="") as target_store,
    ):
        with shell.progress("copying entries") as report:
            copied = await copying.copy(
                source_store, target_store, derived=derived, verify=verify, progress=report
            )

    def draw() -> None:
        shell.line(
            f"{count_noun(copied.contexts, 'session')}, {copied.created:,} of them new; {copied.entries:,} new entries,"
            f" {copied.blanked:,} erased or expired since; {copied.derived:,} derived rows, {copied.jobs:,} jobs"
        )
        for item in copied.left:
            shell.line(f"left behind: {item}", "yellow")
        for problem in copied.problems:
            shell.line(str(problem), "red")
        if verify and not copied.problems:
            shell.line("both sides are the same, and every hash is right", "green")

    verified = not copied.problems if verify else None
    value = {"ok": not copied.problems, **output.to_json_value(copied), "verified": verified}
    shell.show(value, draw)
    return 1 if copied.problems else 0


@define_command("backup", "acms backup monday.db", namespace="unused")
async def back_up_database(
    shell: Shell,
    target: Annotated[Path, typer.Argument(metavar="TO", help="The new file; it must not exist.")],
) -> None:
    """Back up the database while it is in use."""
    async with shell.open_store() as storage:
        if not isinstance(storage, HasBackup):
            raise ConfigurationError("this command backs up only SQLite files", options=_BACKUPS)
        with shell.progress("copying pages") as report:
            await storage.backup(str(target), progress=report)
    size = target.stat().st_size
    shell.show_line({"file": str(target), "bytes": size}, f"{target}: {size:,} bytes")


SessionArgument = Annotated[
    str | None, typer.Argument(metavar="[SESSION]", help="One session; default: all.")
]
WitnessOption = Annotated[
    Path | None,
    typer.Option("--witness", metavar="FILE", exists=True, dir_okay=False, help="See acms witness."),
]


@define_command("verify", "acms verify user_123")
async def verify_hashes(
    shell: Shell,
    session: SessionArgument = None,
    witness: WitnessOption = None,
) -> int:
    """Recompute every hash, counter and index record.

    Exits with 1 on a mismatch and prints the session and version, and the sessions without problems. Without SESSION it
    checks the file and all sessions of all namespaces. It detects sessions whose namespace, name, parent or settings
    were changed by other programs. With --witness it also detects truncated logs, a file that was rolled back or
    replaced, and a changed witness.
    """
    try:
        store_problems, checked = await _verify_store(shell, session, witness)
    except CorruptRecordError as error:
        raise CorruptRecordError(
            f"{error}; no session can be read", options=("restore the file from a backup",)
        ) from error
    count = len(store_problems) + sum(len(result["problems"]) for result in checked)
    derived_count = sum(len(result["derived"]) for result in checked)

    def draw() -> None:
        _draw_problems(shell, store_problems, checked, count)
        _draw_derived_rows(shell, checked, derived_count)

    ok = not (count or derived_count)
    shell.show({"ok": ok, "sessions": checked, "file": store_problems}, draw)
    return 0 if ok else 1


async def _verify_store(
    shell: Shell, session: str | None, witness: Path | None
) -> tuple[list[str], list[dict[str, Any]]]:
    """Return the problems of the store, and each session with its problems."""
    async with shell.open_store() as storage:
        store_problems: list[str] = []
        if session is None and isinstance(storage, HasIntegrity):
            store_problems += await storage.integrity()
        if witness is not None:
            mismatches = await witnesses.check_witness(storage, _read_lines(witness))
            store_problems += [str(mismatch) for mismatch in mismatches]
        if session is None:
            contexts = [context async for context in iterate_contexts(storage, None)]
        else:
            contexts = [await shell.find_session(storage, session)]
        return store_problems, [await _verify_context(shell, storage, context) for context in contexts]


async def _verify_context(shell: Shell, storage: StorageBackend, context: Context) -> dict[str, Any]:
    """Check a log, and if it has no problem, the rows derived from it."""
    name = context.key or context.id
    derived = DerivedCheck()
    with shell.progress(f"checking {name}") as report:
        try:
            problems = await transfer.verify(storage, context, progress=report)
        except (ACMSError, ValueError) as error:
            problems = [transfer.Problem(context=context.id, version=0, what=str(error))]
    if not problems:
        with shell.progress(f"checking derived rows of {name}") as report:
            derived = await check_derived_rows(storage, context, progress=report)
    return {
        "session": context.key,
        "id": context.id,
        "namespace": context.namespace,
        "problems": problems,
        "derived": [
            transfer.Problem(context=context.id, version=version, what=what)
            for version, what in derived.faults
        ],
        "not_indexed": derived.missing,
    }


def _draw_problems(
    screen: Screen, store_problems: Sequence[str], checked: Sequence[dict[str, Any]], count: int
) -> None:
    for problem in store_problems:
        screen.line(f"store: {problem}", "red")
    for result in checked:
        name = result["session"] or result["id"]
        for problem in result["problems"]:
            screen.line(f"{name} {problem}", "red")
    style = "bold red" if count else "green"
    screen.line(f"sessions checked: {len(checked)}, problems: {count}", style)
    if count:
        intact = [result["session"] or result["id"] for result in checked if not result["problems"]]
        names = ", ".join(intact[:LISTED]) or "none"
        if len(intact) > LISTED:
            names += f" and {len(intact) - LISTED:,} more (--json has them)"
        screen.line(f"sessions without problems: {names}")
        export = keep_store("acms export")
        screen.line(f"restore the store from a backup, or save those sessions: {export} SESSION > FILE")


def _draw_derived_rows(screen: Screen, checked: Sequence[dict[str, Any]], count: int) -> None:
    """Write the faults of derived rows, which are no damage of a log, and how to repair them."""
    faults = [(result["session"] or result["id"], fault) for result in checked for fault in result["derived"]]
    for name, fault in faults[:LISTED]:
        screen.line(f"{name} {fault}", "yellow")
    if count > LISTED:
        screen.line(f"{count - LISTED:,} more (--json has them)", "yellow")
    if count:
        command = keep_store("acms reindex")
        screen.line(f"derived rows at fault: {count:,}; the log is not. Repair them: {command}", "yellow")
    missing = sum(result["not_indexed"] for result in checked)
    if missing:
        screen.line(f"entries without an index record: {missing:,}; the next recall makes them", "dim")


@define_command("witness", "acms witness /mnt/elsewhere/heads.jsonl", namespace="unused")
async def write_witness(
    shell: Shell,
    file: Annotated[Path, typer.Argument(metavar="FILE", dir_okay=False, help="A file outside the store.")],
) -> int:
    """Record the version and chain hash of each log in a file.

    An existing FILE is compared with the store first. The command exits with 1 and does not change FILE if a log was
    truncated, a session or its settings were changed by other programs, the database was rolled back or replaced, or
    FILE was emptied, truncated or rolled back. The store records the number and digest of FILE. Keep FILE where
    writers to the database cannot change it: on another host, or in an object store.
    """
    async with shell.open_store() as storage:
        previous = _read_lines(file) if file.exists() else None
        other_witnesses = 0
        problems: list[transfer.Problem] = []
        if previous is None:
            other_witnesses = await witnesses.count_recorded_witnesses(storage)
        else:
            problems = await witnesses.check_witness(storage, previous)
        lines: list[str] = []
        if not problems:
            contexts = iterate_contexts(storage, None)
            lines = await witnesses.build_witness(storage, contexts, previous or ())
            _replace_file(file, lines)
            await witnesses.record_witness(storage, lines)

    def draw() -> None:
        for problem in problems:
            shell.line(str(problem), "red")
        if other_witnesses:
            shell.line(f"{file} is new; the store has recorded {other_witnesses} other witnesses", "yellow")
        result = "left as it was" if problems else count_noun(len(lines) - 1, "session")
        shell.line(f"{file}: {result}")

    shell.show({"ok": not problems, "problems": problems}, draw)
    return 1 if problems else 0


def _replace_file(file: Path, lines: Sequence[str]) -> None:
    """Replace a file atomically."""
    partial = file.with_name(f"{file.name}.partial")
    partial.unlink(missing_ok=True)
    write_file(partial, "".join(f"{line}\n" for line in lines))
    partial.replace(file)


def _read_lines(witness: Path) -> list[str]:
    return witness.read_text().splitlines()
