"""The command for the schema of a store: migrate."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import typer

from acms.cli import render
from acms.cli.base import Shell, command, data_file, file_url
from acms.cli.render import Column, Screen
from acms.errors import ACMSError
from acms.model import Migration
from acms.ports import Handle, HasMigrations
from acms.storage import Shards, open_storage
from acms.storage.files import create_folder


@dataclass(slots=True, kw_only=True)
class _Done:
    """What was found or done in one store."""

    #: None when there is but one store.
    shard: str | None
    #: None when the store has no schema.
    steps: list[Migration] | None = None
    applied: list[int] = field(default_factory=list)
    error: ACMSError | None = None


@command("acms migrate --status --db postgresql://db.example/acms", namespace="unused", resumes=True)
async def migrate(
    shell: Shell,
    status: Annotated[
        bool, typer.Option("--status", help="Only list the steps of the schema, and which are there.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only print the SQL that would run; psql can run it.")
    ] = False,
    partitions: Annotated[
        int | None,
        typer.Option(
            "--partitions", min=1, metavar="N", help="Hash partitions of an empty server database; else 16."
        ),
    ] = None,
    shard: Annotated[
        str | None, typer.Option("--shard", metavar="NAME", help="Only this shard of a shard file.")
    ] = None,
) -> int:
    """Bring the schema of a store up to what this release knows.

    Of a shard file every shard in turn. One migrator works at a time; interrupted, the same command goes on where it
    stopped.
    """
    if status and dry_run:
        raise typer.BadParameter("either --status or --dry-run", param_hint="--status")
    if status and partitions is not None:
        raise typer.BadParameter("nothing is made with --status", param_hint="--partitions")
    url = shell.db or file_url(data_file())
    shards = _shard_file(url)
    if shard is not None and shards is None:
        raise typer.BadParameter("only a shard file has shards", param_hint="--shard")
    if not (status or dry_run or shell.db):
        create_folder(data_file().parent)
    found: list[_Done] = []
    async for one, storage in _stores(url, shards, shard):
        found.append(one)
        if storage is not None:
            await _look_after(shell, one, storage, apply=not (status or dry_run), partitions=partitions)
        if one.shard is None and one.error is not None:
            raise one.error
        if not shell.as_json:
            _draw(shell, one, status=status, dry_run=dry_run)
    wrong = any(one.error is not None for one in found)
    if shell.as_json:
        shell.show({"ok": not wrong, "stores": [_plain(one, sql=dry_run) for one in found]}, lambda: None)
    return 1 if wrong else 0


def _shard_file(url: str) -> str | None:
    file, _, _ = url.partition("?")
    return file if "://" not in file and file.endswith(".toml") else None


async def _stores(
    url: str, shards: str | None, shard: str | None
) -> AsyncIterator[tuple[_Done, Handle | None]]:
    """Go through the stores a URL names, each closed before the next one; None for one whose URL is wrong."""
    if shards is None:
        storage = open_storage(url)
        try:
            yield _Done(shard=None), storage
        finally:
            await storage.aclose()
        return
    known = Shards(shards)
    for name in known.names() if shard is None else [shard]:
        one = _Done(shard=name)
        try:
            storage = known.at(name)
        except ACMSError as error:
            if shard is not None:
                raise
            one.error = error
            yield one, None
            continue
        try:
            yield one, storage
        finally:
            await storage.aclose()


async def _look_after(
    shell: Shell, one: _Done, storage: Handle, *, apply: bool, partitions: int | None
) -> None:
    """Read the steps of a store, and apply what is missing where that is wanted; what is refused is noted."""
    if not isinstance(storage, HasMigrations):
        return
    try:
        one.steps = await storage.migrations(partitions=partitions)
        missing = len(_missing(one.steps))
        if not apply or not missing:
            return
        with shell.progress("migrating") as tell:
            tell(0, missing)

            def count_step(step: Migration) -> None:
                one.applied.append(step.version)
                tell(len(one.applied), missing)

            try:
                await storage.migrate(partitions=partitions, progress=count_step)
            finally:
                one.steps = await storage.migrations()
    except ACMSError as error:
        one.error = error


STEPS = (
    Column("version", "cyan", right=True),
    Column("applied", of=lambda step: "yes" if step.applied else "no"),
    Column("needs", right=True),
    Column("checksum", "dim", of=lambda step: step.checksum[:12]),
    Column("waits for", "yellow", of="waits_for"),
)


def _draw(screen: Screen, one: _Done, *, status: bool, dry_run: bool) -> None:
    """Write what was found or done in one store."""
    prefix = "" if one.shard is None else f"{one.shard}: "
    if dry_run:
        if one.shard is not None:
            print(f"-- shard {one.shard}")
        print(_script(one.steps or ()) or "-- nothing to do\n", end="")
    elif one.steps is None:
        if one.error is None:
            screen.line(f"{prefix}this store has no schema: nothing to migrate")
    elif status:
        _draw_status(screen, one.shard, one.steps)
    else:
        _draw_applied(screen, one, one.steps, prefix)
    if one.error is not None:
        if one.shard is not None:
            screen.line(f"{prefix}failed", "red")
        render.fail(one.error, False)


def _draw_status(screen: Screen, shard: str | None, steps: Sequence[Migration]) -> None:
    if shard is not None:
        screen.line(shard, "bold")
    screen.list(STEPS if any(step.waits_for for step in steps) else STEPS[:-1], steps)
    if missing := _missing(steps):
        screen.line(f"{len(missing)} to apply: acms migrate", "yellow")


def _draw_applied(screen: Screen, one: _Done, steps: Sequence[Migration], prefix: str) -> None:
    at = max((step.version for step in steps if step.applied), default=0)
    if one.applied:
        screen.line(f"{prefix}applied {', '.join(map(str, one.applied))}; the schema is at {at}", "green")
    elif one.error is None:
        screen.line(f"{prefix}nothing to do: the schema is at {at}", "green")
    for step in steps:
        if step.waits_for is not None:
            screen.line(f"{prefix}{step.version} waits for {step.waits_for}", "yellow")


def _missing(steps: Sequence[Migration]) -> list[Migration]:
    """Return the steps that can be applied now."""
    return [step for step in steps if not step.applied and step.waits_for is None]


def _script(steps: Sequence[Migration]) -> str:
    return "".join(step.script for step in _missing(steps))


def _plain(one: _Done, *, sql: bool) -> dict[str, Any]:
    fields = ("version", "applied", "needs", "checksum", "waits_for")
    steps = [{field: getattr(step, field) for field in fields} for step in one.steps or ()]
    written: dict[str, Any] = {"shard": one.shard, "migrations": steps, "applied": one.applied}
    if sql:
        written["sql"] = _script(one.steps or ())
    if one.error is not None:
        written["error"] = render.error_json(one.error)
    return written
