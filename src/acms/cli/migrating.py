"""The command for the schema of a store: migrate."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Annotated, Any

import typer

from acms.cli import render
from acms.cli.base import AsJson, Db, Unused, app, data_file, file_url, run
from acms.cli.render import Column, Screen
from acms.errors import ACMSError
from acms.model import Migration
from acms.ports import Handle, HasMigrations
from acms.storage import Shards, open_storage
from acms.storage.files import create_folder

PATIENCE = 1.0
"""Seconds after which a single step gets a progress bar too."""


@dataclass(slots=True, kw_only=True)
class _Done:
    """What was found or done in one store."""

    #: None when there is but one store.
    shard: str | None
    #: None when the store has no schema.
    steps: list[Migration] | None = None
    applied: list[int] = field(default_factory=list)
    error: ACMSError | None = None


@app.command(epilog="Example:  acms migrate --status --db postgresql://db.example/acms")
def migrate(
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
    db: Db = None,
    namespace: Unused = "default",
    as_json: AsJson = False,
) -> None:
    """Bring the schema of a store up to what this release knows.

    Of a shard file every shard in turn. One migrator works at a time; interrupted, the same command goes on where it
    stopped.
    """
    if status and dry_run:
        raise typer.BadParameter("either --status or --dry-run", param_hint="--status")
    if status and partitions is not None:
        raise typer.BadParameter("nothing is made with --status", param_hint="--partitions")
    url = db or file_url(data_file())
    shards = _shard_file(url)
    if shard is not None and shards is None:
        raise typer.BadParameter("only a shard file has shards", param_hint="--shard")
    if not (status or dry_run or db):
        create_folder(data_file().parent)

    async def work() -> int:
        screen = Screen(as_json)
        found: list[_Done] = []
        async for one, storage in _stores(url, shards, shard):
            found.append(one)
            if storage is not None:
                await _look_after(one, storage, apply=not (status or dry_run), partitions=partitions)
            if one.shard is None and one.error is not None:
                raise one.error
            if not as_json:
                _draw(screen, one, status=status, dry_run=dry_run)
        wrong = any(one.error is not None for one in found)
        if as_json:
            screen.show(
                {"ok": not wrong, "stores": [_plain(one, sql=dry_run) for one in found]}, lambda: None
            )
        return 1 if wrong else 0

    run(as_json, work())


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


async def _look_after(one: _Done, storage: Handle, *, apply: bool, partitions: int | None) -> None:
    """Read the steps of a store, and apply what is missing where that is wanted; what is refused is noted."""
    if not isinstance(storage, HasMigrations):
        return
    try:
        one.steps = await storage.migrations(partitions=partitions)
        missing = len(_missing(one.steps))
        if not apply or not missing:
            return
        with _progress(missing) as told:
            try:
                await storage.migrate(partitions=partitions, progress=lambda step: told(one, step))
            finally:
                one.steps = await storage.migrations()
    except ACMSError as error:
        one.error = error


@contextmanager
def _progress(missing: int) -> Generator[Any]:
    """Show a bar, at once for several steps and for a single one when it takes long."""
    with ExitStack() as stack:
        tell: list[render.Progress] = []

        def begin() -> None:
            tell.append(stack.enter_context(render.progress("migrating")))
            tell[0](0, missing)

        def count_step(one: _Done, step: Migration) -> None:
            one.applied.append(step.version)
            if tell:
                tell[0](len(one.applied), missing)

        timer = asyncio.get_running_loop().call_later(0 if missing > 1 else PATIENCE, begin)
        stack.callback(timer.cancel)
        yield count_step


_COLUMNS = (
    Column("version", "cyan", right=True),
    Column("applied"),
    Column("needs", right=True),
    Column("checksum", "dim"),
    Column("waits for", "yellow"),
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
    columns = _COLUMNS if any(step.waits_for for step in steps) else _COLUMNS[:-1]
    screen.table(columns, [_row(step)[: len(columns)] for step in steps])
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


def _row(step: Migration) -> list[str]:
    return [
        str(step.version),
        "yes" if step.applied else "no",
        str(step.needs),
        step.checksum[:12],
        step.waits_for or "",
    ]


def _plain(one: _Done, *, sql: bool) -> dict[str, Any]:
    steps = [] if one.steps is None else one.steps
    written: dict[str, Any] = {
        "shard": one.shard,
        "migrations": [
            {
                "version": s.version,
                "applied": s.applied,
                "needs": s.needs,
                "checksum": s.checksum,
                "waits_for": s.waits_for,
            }
            for s in steps
        ],
        "applied": one.applied,
    }
    if sql:
        written["sql"] = _script(steps)
    if one.error is not None:
        written["error"] = {
            "code": one.error.code,
            "message": str(one.error),
            "options": list(one.error.options),
            "retryable": one.error.retryable,
        }
    return written
