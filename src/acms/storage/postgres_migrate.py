"""The schema of a PostgreSQL database: what it is at, and bringing it up to what this release knows."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from dataclasses import dataclass

import psycopg
from psycopg import sql

from acms.errors import ConfigurationError, SchemaVersionError, StorageError
from acms.logs import log as tell
from acms.storage.postgres_pool import ROLE, Connection, Pool, translate
from acms.storage.sql import migrations

OLDEST_VECTOR = (0, 8, 2)
"""The oldest pgvector that is safe: an index build of an older one can leak what it reads (CVE-2026-3172)."""

_CREATE = (
    "CREATE SCHEMA IF NOT EXISTS acms",
    "CREATE TABLE IF NOT EXISTS acms.migrations (version integer PRIMARY KEY, needs integer NOT NULL,"
    " checksum text NOT NULL, partitions integer, applied_at timestamptz NOT NULL DEFAULT now())",
)
SEARCH_ROLE = "acms_search"
"""The role of the one function that looks into the index of words, which row-level security would keep closed."""
_ROLES = (ROLE, SEARCH_ROLE)
_ROLE = """
DO $$ BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = '{role}') THEN CREATE ROLE {role} NOLOGIN NOINHERIT; END IF;
EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL;
END $$
"""
_MEMBER = """
DO $$ BEGIN  -- from PostgreSQL 16 on who makes a role is a member, but may not act as it
    IF NOT pg_has_role(current_user, '{role}',
                       CASE WHEN current_setting('server_version_num')::int < 160000 THEN 'MEMBER' ELSE 'SET' END) THEN
        EXECUTE format('GRANT {role} TO %I', current_user);
    END IF;
END $$
"""
_VECTOR = """
SELECT (SELECT extversion FROM pg_extension WHERE extname = 'vector'),
       (SELECT default_version FROM pg_available_extensions WHERE name = 'vector')
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
    #: What the server lacks for it; everything but what it adds works without. It is applied by a later `migrate`.
    waits_for: str | None = None


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
    lacking = await _lacking(connection)
    for version, needs, checksum, script in release:
        if applied.get(version, (needs, checksum))[1] != checksum:
            raise SchemaVersionError(
                f"the database was migrated by a different release: its schema {version} is not the one this"
                " release has; it was not touched",
                options=("use the release that migrated it", "acms copy into a new database"),
            )
        found.append(
            Migration(
                version=version,
                needs=needs,
                checksum=checksum,
                applied=version in applied,
                script=script,
                waits_for=lacking if _wants_vector(script) and version not in applied else None,
            )
        )
    return found


def _wants_vector(script: str) -> bool:
    return re.search(r"^-- wants: vector$", script, re.MULTILINE) is not None


def _version(written: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", written))


async def _lacking(connection: Connection) -> str | None:
    """Return what the server lacks for vectors; refuse a pgvector that is in use and too old."""
    oldest = ".".join(map(str, OLDEST_VECTOR))
    row = await (await connection.execute(_VECTOR)).fetchone()
    installed, available = row or (None, None)
    if installed is not None:
        if _version(installed) < OLDEST_VECTOR:
            raise ConfigurationError(
                f"the database has pgvector {installed}, {oldest} is the oldest that is safe",
                options=(
                    "install a newer pgvector on the server, then run in this database:"
                    " ALTER EXTENSION vector UPDATE",
                ),
            )
        return None
    if available is None or _version(available) < OLDEST_VECTOR:
        return f"pgvector {oldest} or newer on the server" + (f" (it has {available})" if available else "")
    return None


async def migrate(
    pool: Pool,
    *,
    partitions: int = 16,
    vectors: bool = True,
    progress: Callable[[Migration], None] | None = None,
) -> list[Migration]:
    """Apply what is missing, each migration in a transaction of its own; return those that were applied.

    What the server lacks something for is left out, and with `vectors=False` all that wants pgvector.

    One migrator at a time: a second one waits and finds the work done. It may be killed at any statement and started
    again. Needs the right to create a schema, and a role unless `acms_app` exists.
    """
    if not 1 <= partitions <= 1024:
        raise ConfigurationError(f"partitions must be from 1 to 1024, was {partitions}")

    async def work(connection: Connection) -> list[Migration]:
        await _prepare(connection)
        done: list[Migration] = []
        for step in await status(connection):
            if step.applied or step.waits_for or (_wants_vector(step.script) and not vectors):
                continue
            try:
                async with connection.transaction():
                    await connection.execute("LOCK TABLE acms.migrations IN EXCLUSIVE MODE")
                    now = {one.version: one for one in await status(connection)}
                    if now[step.version].applied:
                        continue
                    await _apply(connection, step, partitions)
            except _ForbiddenError:
                tell(
                    logging.WARNING,
                    "vectors_left_out",
                    reason="let an administrator run: CREATE EXTENSION vector",
                )
                break
            done.append(step)
            if progress is not None:
                progress(step)
        return done

    return await pool.retry(work, again=True)


async def _prepare(connection: Connection) -> None:
    """Make sure of the schema, the list of migrations and the role."""
    for role in _ROLES:
        try:
            await connection.execute(sql.SQL(_ROLE.format(role=role)))  # pyright: ignore[reportArgumentType]
            await connection.execute(sql.SQL(_MEMBER.format(role=role)))  # pyright: ignore[reportArgumentType]
        except psycopg.errors.InsufficientPrivilege as error:
            raise ConfigurationError(
                f"this user may not create the role {role}: {translate(error)}",
                options=(
                    f"let an administrator run: CREATE ROLE {role} NOLOGIN; GRANT {role} TO <this user>",
                ),
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
        if error.sqlstate == "42501" and "extension" in str(error):
            raise _ForbiddenError(str(error)) from error
        raise StorageError(f"migration {step.version} failed: {translate(error)}") from error
    await connection.execute(
        "INSERT INTO acms.migrations (version, needs, checksum, partitions) VALUES (%s, %s, %s, %s)",
        (step.version, step.needs, step.checksum, partitions if ":partitions" in step.script else None),
    )


class _ForbiddenError(StorageError):
    """This user may not create the extension that the server has."""


async def check(pool: Pool) -> None:
    """Refuse a database this release cannot work with; make the schema where there is none.

    Tells the pool whether vectors are indexed. What waits for the server, or for nothing but a `migrate`, and only adds
    speed, is no reason to refuse.
    """

    async def work(connection: Connection) -> list[Migration]:
        return await status(connection)

    steps = await pool.retry(work, again=True)
    if not any(step.applied for step in steps):
        await migrate(pool)
        steps = await pool.retry(work, again=True)
    if not all(step.applied or _wants_vector(step.script) for step in steps):
        raise SchemaVersionError(
            f"the database has schema {sum(step.applied for step in steps)}, this release needs {len(steps)}",
            options=("run acms migrate",),
        )
    pool.vectors = all(step.applied for step in steps if _wants_vector(step.script))
