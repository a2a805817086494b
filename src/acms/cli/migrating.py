"""The command for the schema of a store: migrate."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import typer

from acms.cli import output
from acms.cli.base import Shell, define_command
from acms.cli.hints import keep_store
from acms.cli.output import Column, Screen
from acms.cli.stores import data_file, file_url, refuse_option
from acms.errors import ACMSError
from acms.model import Migration
from acms.ports import Handle, HasMigrations
from acms.storage import Shards, open_storage
from acms.storage.files import create_folder


@dataclass(slots=True, kw_only=True)
class _StoreResult:
    """The state of one store and the steps that were applied."""

    #: None unless the store is a shard.
    shard: str | None
    #: None if the store has no schema.
    steps: list[Migration] | None = None
    applied: list[int] = field(default_factory=list)
    error: ACMSError | None = None


StatusOption = Annotated[bool, typer.Option("--status", help="Only list the migrations and their state.")]
DryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="Only print the SQL, in a form that psql can run.")
]
PartitionsOption = Annotated[
    int | None,
    typer.Option(
        "--partitions", min=1, metavar="N", help="Hash partitions of a new server database; default: 16."
    ),
]
ShardOption = Annotated[
    str | None, typer.Option("--shard", metavar="NAME", help="Only this shard of a shard file.")
]


@define_command(
    "migrate", "acms migrate --status --db postgresql://db.example/acms", namespace="unused", resumes=True
)
async def migrate_store(
    shell: Shell,
    status: StatusOption = False,
    dry_run: DryRunOption = False,
    partitions: PartitionsOption = None,
    shard: ShardOption = None,
) -> int:
    """Migrate the schema of a store to this release.

    A shard file is migrated shard by shard. Only one migration runs at a time. Running an interrupted migration again
    continues it.
    """
    if status and dry_run:
        raise typer.BadParameter("pass --status or --dry-run, not both", param_hint="--status")
    if status and partitions is not None:
        raise typer.BadParameter("nothing is made with --status", param_hint="--partitions")
    url = shell.db or file_url(data_file())
    shard_file = _shard_file(url)
    if shard is not None and shard_file is None:
        raise typer.BadParameter("only a shard file has shards", param_hint="--shard")
    read_only = status or dry_run
    if not read_only and not shell.db:
        create_folder(data_file().parent)
    results: list[_StoreResult] = []
    async for result, storage in _open_stores(url, shard_file, shard):
        results.append(result)
        if storage is not None:
            await _migrate_one(shell, result, storage, apply=not read_only, partitions=partitions)
        if result.shard is None and result.error is not None:
            raise result.error
        if not shell.as_json:
            _draw_store(shell, result, status=status, dry_run=dry_run)
    has_failed = any(result.error is not None for result in results)
    if shell.as_json:
        stores = [_store_json(result, sql=dry_run) for result in results]
        shell.show({"ok": not has_failed, "stores": stores}, lambda: None)
    return 1 if has_failed else 0


def _shard_file(url: str) -> str | None:
    file, _, _ = url.partition("?")
    return file if "://" not in file and file.endswith(".toml") else None


async def _open_stores(
    url: str, shard_file: str | None, shard: str | None
) -> AsyncIterator[tuple[_StoreResult, Handle | None]]:
    """Yield the stores of a URL one after the other; None if the URL of a shard is invalid."""
    if shard_file is None:
        with refuse_option("db"):
            storage = open_storage(url)
        try:
            yield _StoreResult(shard=None), storage
        finally:
            await storage.aclose()
        return
    shards = Shards(shard_file)
    names = shards.names() if shard is None else [shard]
    for name in names:
        result = _StoreResult(shard=name)
        try:
            storage = shards.at(name)
        except ACMSError as error:
            if shard is not None:
                raise
            result.error = error
            yield result, None
            continue
        try:
            yield result, storage
        finally:
            await storage.aclose()


async def _migrate_one(
    shell: Shell, result: _StoreResult, storage: Handle, *, apply: bool, partitions: int | None
) -> None:
    """Read the migrations of a store, and apply the pending ones if requested; errors go into the result."""
    if not isinstance(storage, HasMigrations):
        return
    try:
        result.steps = await storage.migrations(partitions=partitions)
        pending = len(_pending_steps(result.steps))
        if not apply or not pending:
            return
        with shell.progress("migrating") as report:
            report(0, pending)

            def record_step(step: Migration) -> None:
                result.applied.append(step.version)
                report(len(result.applied), pending)

            try:
                await storage.migrate(partitions=partitions, progress=record_step)
            finally:
                result.steps = await storage.migrations()
    except ACMSError as error:
        result.error = error


STEPS = (
    Column("version", "cyan", align_right=True),
    Column("applied", value=lambda step: "yes" if step.applied else "no"),
    Column("needs", align_right=True),
    Column("checksum", "dim", value=lambda step: step.checksum[:12]),
    Column("waits for", "yellow", value="waits_for"),
)


def _draw_store(screen: Screen, result: _StoreResult, *, status: bool, dry_run: bool) -> None:
    prefix = "" if result.shard is None else f"{result.shard}: "
    if dry_run:
        _print_sql(result)
    elif result.steps is not None and status:
        _draw_status(screen, result.shard, result.steps)
    elif result.steps is not None:
        _draw_applied(screen, result, result.steps, prefix)
    elif result.error is None:
        screen.line(f"{prefix}this store has no schema: nothing to migrate")
    if result.error is not None:
        if result.shard is not None:
            screen.line(f"{prefix}failed", "red")
        output.write_error(result.error, False)


def _print_sql(result: _StoreResult) -> None:
    if result.shard is not None:
        print(f"-- shard {result.shard}")
    sql = _pending_sql(result.steps or ())
    print(sql or "-- nothing to do\n", end="")


def _draw_status(screen: Screen, shard: str | None, steps: Sequence[Migration]) -> None:
    if shard is not None:
        screen.line(shard, "bold")
    is_waiting = any(step.waits_for for step in steps)
    screen.list(STEPS if is_waiting else STEPS[:-1], steps)
    pending = len(_pending_steps(steps))
    if pending:
        screen.line(f"{pending} to apply: {keep_store('acms migrate')}", "yellow")


def _draw_applied(screen: Screen, result: _StoreResult, steps: Sequence[Migration], prefix: str) -> None:
    current = max((step.version for step in steps if step.applied), default=0)
    if result.applied:
        versions = ", ".join(map(str, result.applied))
        screen.line(f"{prefix}applied {versions}; the schema is at {current}", "green")
    elif result.error is None:
        screen.line(f"{prefix}nothing to do: the schema is at {current}", "green")
    for step in steps:
        if step.waits_for is not None:
            screen.line(f"{prefix}{step.version} waits for {step.waits_for}", "yellow")


def _pending_steps(steps: Sequence[Migration]) -> list[Migration]:
    """Return the migrations that can be applied now."""
    return [step for step in steps if not step.applied and step.waits_for is None]


def _pending_sql(steps: Sequence[Migration]) -> str:
    return "".join(step.script for step in _pending_steps(steps))


def _store_json(result: _StoreResult, *, sql: bool) -> dict[str, Any]:
    steps = result.steps or ()
    fields = ("version", "applied", "needs", "checksum", "waits_for")
    migrations = [{field: getattr(step, field) for field in fields} for step in steps]
    value: dict[str, Any] = {"shard": result.shard, "migrations": migrations, "applied": result.applied}
    if sql:
        value["sql"] = _pending_sql(steps)
    if result.error is not None:
        value["error"] = output.error_json(result.error)
    return value
