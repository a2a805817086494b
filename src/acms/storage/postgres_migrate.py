"""The schema of a PostgreSQL database: what it is at, and bringing it up to what this release knows."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql

from acms.errors import ConfigurationError, SchemaVersionError, StorageError
from acms.storage.postgres_pool import ROLE, Connection, Pool, translate
from acms.storage.sql import migrations

OLDEST_VECTOR = (0, 8, 2)
"""The oldest pgvector that is safe: an index build of an older one can leak what it reads (CVE-2026-3172)."""

MAKING = 60.0
"""Seconds the server may take for a statement while a handle that finds no schema makes it."""

_CREATE = (
    "CREATE SCHEMA IF NOT EXISTS acms",
    "CREATE TABLE IF NOT EXISTS acms.migrations (version integer PRIMARY KEY, needs integer NOT NULL,"
    " checksum text NOT NULL, partitions integer, applied_at timestamptz NOT NULL DEFAULT now())",
)
_ROLE = f"""
DO $$ BEGIN CREATE ROLE {ROLE} NOLOGIN NOINHERIT; EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL; END $$
"""
_MEMBER = f"""
DO $$ BEGIN
    IF NOT pg_has_role(current_user, '{ROLE}', 'MEMBER') THEN
        EXECUTE format('GRANT {ROLE} TO %I', current_user);
    END IF;
END $$
"""
_MADE = (
    psycopg.errors.UniqueViolation,
    psycopg.errors.DuplicateObject,
    psycopg.errors.DuplicateTable,
    psycopg.errors.DuplicateSchema,
)
"""What it means that another migrator made it in this moment."""
_FIND = "SELECT to_regclass('acms.migrations') IS NOT NULL"


@dataclass(frozen=True, slots=True, kw_only=True)
class Migration:
    """One numbered step of the schema."""

    version: int
    #: Oldest release schema that can go on working beside it.
    needs: int
    checksum: str
    #: Whether this database has it.
    applied: bool
    script: str


def known() -> list[tuple[int, int, str, str]]:
    """Return (version, needs, checksum, script) of the migrations of this release."""
    found: list[tuple[int, int, str, str]] = []
    for version, checksum, script in migrations("postgres"):
        needs = re.search(r"^-- needs: (\d+)$", script, re.MULTILINE)
        found.append((version, int(needs[1]) if needs else version, checksum, script))
    return found


async def status(connection: Connection) -> list[Migration]:
    """Return every migration this release knows, and whether it was applied.

    `SchemaVersionError` when the database was migrated by a release that this one cannot work beside.
    """
    row = await (await connection.execute(_FIND)).fetchone()
    applied: dict[int, tuple[int, str]] = {}
    if row is not None and row[0]:
        cursor = await connection.execute(
            "SELECT version, needs, checksum FROM acms.migrations ORDER BY version"
        )
        applied = {version: (needs, checksum) for version, needs, checksum in await cursor.fetchall()}
    release = known()
    mine = len(release)
    for version, (needs, _) in applied.items():
        if version > mine and needs > mine:
            raise SchemaVersionError(
                f"the database has schema {version}, which needs a release that knows schema {needs};"
                f" this one knows up to {mine}",
                options=("upgrade acms-engine",),
            )
    found: list[Migration] = []
    for version, needs, checksum, script in release:
        if applied.get(version, (needs, checksum))[1] != checksum:
            raise SchemaVersionError(
                f"the database was migrated by a different release: its schema {version} is not the one this"
                " release has; it was not touched",
                options=("use the release that migrated it", "acms copy into a new database"),
            )
        found.append(
            Migration(
                version=version, needs=needs, checksum=checksum, applied=version in applied, script=script
            )
        )
    return found


async def migrate(
    pool: Pool,
    *,
    partitions: int = 16,
    progress: Callable[[Migration], None] | None = None,
    limit: float = math.inf,
) -> list[Migration]:
    """Apply what is missing, each migration in a transaction of its own; return those that were applied.

    One migrator at a time: a second one waits and finds the work done. It may be killed at any statement and started
    again. A statement may take `limit` seconds. Needs the right to create a schema, and a role unless `acms_app`
    exists.
    """
    if not 1 <= partitions <= 1024:
        raise ConfigurationError(f"partitions must be from 1 to 1024, was {partitions}")

    async def work(connection: Connection) -> list[Migration]:
        await _prepare(connection)
        done: list[Migration] = []
        for step in await status(connection):
            if step.applied:
                continue
            async with connection.transaction():
                await connection.execute("LOCK TABLE acms.migrations IN EXCLUSIVE MODE")
                now = {one.version: one for one in await status(connection)}
                if now[step.version].applied:
                    continue
                await _apply(connection, step, partitions)
            done.append(step)
            if progress is not None:
                progress(step)
        return done

    return await pool.retry(work, again=True, limit=limit)


async def _prepare(connection: Connection) -> None:
    """Make sure of the schema, the list of migrations and the role."""
    try:
        await connection.execute(_ROLE)
        await connection.execute(_MEMBER)
    except psycopg.errors.InsufficientPrivilege as error:
        raise ConfigurationError(
            f"this user may not create the role {ROLE}: {translate(error)}",
            options=(f"let an administrator run: CREATE ROLE {ROLE} NOLOGIN; GRANT {ROLE} TO <this user>",),
        ) from error
    for statement in _CREATE:
        try:
            await connection.execute(sql.SQL(statement))  # pyright: ignore[reportArgumentType]
        except _MADE:
            continue


async def _apply(connection: Connection, step: Migration, partitions: int) -> None:
    script = step.script.replace(":partitions", str(partitions))
    try:
        await connection.execute(sql.SQL(script))  # pyright: ignore[reportArgumentType]
    except psycopg.Error as error:
        if error.sqlstate is None or error.sqlstate.startswith(("08", "40", "57")):
            raise
        raise StorageError(f"migration {step.version} failed: {translate(error)}") from error
    await connection.execute(
        "INSERT INTO acms.migrations (version, needs, checksum, partitions) VALUES (%s, %s, %s, %s)",
        (step.version, step.needs, step.checksum, partitions if ":partitions" in step.script else None),
    )


async def check(pool: Pool) -> None:
    """Refuse a database this release cannot work with; make the schema where there is none."""

    async def work(connection: Connection) -> list[Migration]:
        return await status(connection)

    steps: list[Any] = await pool.retry(work, again=True)
    if not any(step.applied for step in steps):
        await migrate(pool, limit=MAKING)
    elif not all(step.applied for step in steps):
        raise SchemaVersionError(
            f"the database has schema {sum(step.applied for step in steps)}, this release needs {len(steps)}",
            options=("run acms migrate",),
        )
