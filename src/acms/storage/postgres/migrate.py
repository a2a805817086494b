"""The schema of a PostgreSQL database: read its version and migrate it to the one this release needs."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import replace

import psycopg
from psycopg import sql

from acms.errors import ConfigurationError, SchemaVersionError, StorageError
from acms.model import Migration
from acms.observability.logging import log_event
from acms.storage.postgres.pool import ROLE, Connection, Pool, translate_error
from acms.storage.sql import load_migrations

OLDEST_VECTOR = (0, 8, 2)
"""The oldest safe pgvector: an index build of an older one can leak the data it reads (CVE-2026-3172)."""

SEARCH_ROLE = "acms_search"
"""The role of the one function that looks into the index of words, which row-level security would keep closed."""
ROLES = (ROLE, SEARCH_ROLE)
"""Server roles that the schema grants to; the migrating user is a member of all, other users of the first only."""
PARTITIONS = 16
MOST_PARTITIONS = 1024

_CREATE_LIST = (
    "CREATE TABLE IF NOT EXISTS acms.migrations (version integer PRIMARY KEY, needs integer NOT NULL,"
    " checksum text NOT NULL, partitions integer, applied_at timestamptz NOT NULL DEFAULT now())"
)
_USER_RIGHTS = """
SELECT current_user, current_setting('is_superuser') = 'on',
       (SELECT pg_get_userbyid(n.nspowner) FROM pg_namespace n WHERE n.nspname = 'acms'),
       (SELECT pg_has_role(n.nspowner, 'USAGE') FROM pg_namespace n WHERE n.nspname = 'acms')
"""
# Since PostgreSQL 16 the creator of a role administers it, but may not necessarily SET ROLE to it.
_MAY_SET_ROLE = """
SELECT pg_has_role(r.oid, CASE WHEN current_setting('server_version_num')::int >= 160000 THEN 'SET' ELSE 'MEMBER' END)
FROM pg_roles r WHERE r.rolname = %s
"""
_PGVECTOR_VERSIONS = """
SELECT (SELECT extversion FROM pg_extension WHERE extname = 'vector'),
       (SELECT default_version FROM pg_available_extensions WHERE name = 'vector')
"""
_ALREADY_CREATED = (
    psycopg.errors.UniqueViolation,
    psycopg.errors.DuplicateObject,
    psycopg.errors.DuplicateTable,
    psycopg.errors.DuplicateSchema,
)
"""Errors that mean another migrator created the object at the same moment."""
# By size, since row-level security hides the rows: the next migrator continues an interrupted migration.
_IS_UNUSED = "SELECT pg_relation_size('acms.contexts') = 0"
_HAS_LIST = "SELECT to_regclass('acms.migrations') IS NOT NULL"


def list_known_migrations() -> list[tuple[int, int, str, str]]:
    """Return (version, needs, checksum, script) of the migrations of this release."""
    migrations: list[tuple[int, int, str, str]] = []
    for version, checksum, script in load_migrations("postgres"):
        needs = re.search(r"^-- needs: (\d+)$", script, re.MULTILINE)
        migrations.append((version, int(needs[1]) if needs else version, checksum, script))
    return migrations


async def read_migration_status(connection: Connection) -> list[Migration]:
    """Return every migration this release knows, and whether it was applied.

    `SchemaVersionError` when the database was migrated by a release with which this one cannot share it.
    """
    release = list_known_migrations()
    newest_known = len(release)  # versions count from 1
    checksums: dict[int, str] = {}
    for version, needs, checksum in await _read_applied(connection, after=0):
        checksums[version] = checksum
        # A newer schema is no obstacle while it needs only a release that knows this one's newest.
        if needs > newest_known:
            raise SchemaVersionError(
                f"the database has schema {version}, which needs a release that knows schema {needs};"
                f" this one knows up to {newest_known}",
                options=("upgrade acms-engine",),
            )
    steps: list[Migration] = []
    missing_pgvector = await _describe_missing_pgvector(connection)
    for version, needs, checksum, script in release:
        applied = version in checksums
        if applied and checksums[version] != checksum:
            raise SchemaVersionError(
                f"the database was migrated by a different release: its schema {version} is not the one this"
                " release has; it was not changed",
                options=("use the release that migrated it", "acms copy into a new database"),
            )
        steps.append(
            Migration(
                version=version,
                needs=needs,
                checksum=checksum,
                applied=applied,
                script=script,
                waits_for=missing_pgvector if _wants_vector(script) and not applied else None,
            )
        )
    return steps


async def _read_applied(connection: Connection, after: int) -> list[tuple[int, int, str]]:
    """Return (version, needs, checksum) of the applied migrations after a version, ascending."""
    row = await (await connection.execute(_HAS_LIST)).fetchone()
    if row is None or not row[0]:
        return []
    cursor = await connection.execute(
        "SELECT version, needs, checksum FROM acms.migrations WHERE version > %s ORDER BY version", (after,)
    )
    return await cursor.fetchall()


def _wants_vector(script: str) -> bool:
    return re.search(r"^-- wants: vector$", script, re.MULTILINE) is not None


def _parse_version(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", text))


async def _describe_missing_pgvector(connection: Connection) -> str | None:
    """Return the requirement for vectors that the server does not meet; raise if its pgvector in use is too old."""
    oldest = ".".join(map(str, OLDEST_VECTOR))
    row = await (await connection.execute(_PGVECTOR_VERSIONS)).fetchone()
    installed, available = row or (None, None)
    if installed is not None:
        if _parse_version(installed) < OLDEST_VECTOR:
            raise ConfigurationError(
                f"the database has pgvector {installed}, {oldest} is the oldest that is safe",
                options=(
                    "install a newer pgvector on the server, then run in this database:"
                    " ALTER EXTENSION vector UPDATE",
                ),
            )
        return None
    if available is None or _parse_version(available) < OLDEST_VECTOR:
        return f"pgvector {oldest} or newer on the server" + (f" (it has {available})" if available else "")
    return None


async def plan_migrations(pool: Pool, *, partitions: int | None = None) -> list[Migration]:
    """Return every migration with the script to run it by hand, and those of newer releases that were applied.

    The first missing one also creates the roles and the schema. Raises `ConfigurationError` for a number of
    partitions if the database has partitions already.
    """

    async def work(connection: Connection) -> list[Migration]:
        steps = await read_migration_status(connection)
        _check_partitions(partitions, steps)
        planned: list[Migration] = []
        for step in steps:
            script = f"BEGIN;\n{_LOCK};\n{_build_script(step, partitions or PARTITIONS)}COMMIT;\n"
            waits_for = step.waits_for
            if not step.applied:
                if all(previous.applied for previous in planned):
                    statements = await _list_missing_statements(connection)
                    script = "".join(f"{statement};\n" for statement in statements) + script
                if waits_for is None and _wants_vector(step.script):
                    waits_for = pool.lacks_vectors
            planned.append(replace(step, script=script, waits_for=waits_for))
        for version, needs, checksum in await _read_applied(connection, after=len(steps)):
            newer = Migration(version=version, needs=needs, checksum=checksum, applied=True, script="")
            planned.append(newer)
        return planned

    return await pool.retry(work, may_repeat=True)


async def apply_migrations(
    pool: Pool,
    *,
    partitions: int = PARTITIONS,
    vectors: bool = True,
    progress: Callable[[Migration], None] | None = None,
    limit: float = math.inf,
) -> list[Migration]:
    """Apply the missing migrations, each in its own transaction; return the applied ones.

    Skips migrations that need something the server lacks and, with `vectors=False`, all that need pgvector.

    One migrator runs at a time: a second one waits and finds the work done. It may be killed at any statement and
    started again. A statement may take `limit` seconds. Needs the right to create the schema and roles if they do not
    exist; later, to own the schema.
    """
    _check_partitions(partitions, ())
    applied: list[Migration] = []

    async def work(connection: Connection) -> list[Migration]:
        nonlocal vectors
        steps = await read_migration_status(connection)
        if all(step.applied or step.waits_for for step in steps):
            return applied
        await _prepare_database(connection)
        for step in steps:
            is_left_out = _wants_vector(step.script) and not vectors
            if step.applied or step.waits_for or is_left_out:
                continue
            try:
                async with connection.transaction():
                    await connection.execute(_LOCK)
                    current = {
                        known_step.version: known_step
                        for known_step in await read_migration_status(connection)
                    }
                    if current[step.version].applied:
                        continue
                    await _apply_migration(connection, step, partitions)
            except _ForbiddenError:
                pool.lacks_vectors = "an administrator who runs: CREATE EXTENSION vector"
                log_event(logging.WARNING, "vectors_left_out", reason=pool.lacks_vectors)
                vectors = False
                continue
            applied.append(step)
            if progress is not None:
                progress(step)
        return applied

    return await pool.retry(work, may_repeat=True, limit=limit)


_LOCK = "LOCK TABLE acms.migrations IN EXCLUSIVE MODE"


def _check_partitions(partitions: int | None, steps: Sequence[Migration]) -> None:
    """Raise for a bad number of partitions, or for any number if the database has its tables already."""
    if partitions is None:
        return
    if not 1 <= partitions <= MOST_PARTITIONS:
        raise ConfigurationError(f"partitions must be from 1 to {MOST_PARTITIONS}, was {partitions}")
    if any(step.applied for step in steps):
        raise ConfigurationError(
            "the number of partitions can be set only for an empty database: this one has tables",
            options=("omit the number", "acms copy into a new database that was made with it"),
        )


async def _query_user_rights(connection: Connection) -> tuple[str, bool, str | None, bool]:
    """Return who is connected, whether he is superuser, who owns the schema, and whether he may act for the owner."""
    row = await (await connection.execute(_USER_RIGHTS)).fetchone()
    user, superuser, owner, may_act_for_owner = row or ("", False, None, None)
    return user, superuser, owner, bool(may_act_for_owner)


async def _list_missing_statements(connection: Connection) -> list[str]:
    """Return the statements without which no migration can run: roles, schema, the list of migrations."""
    user, superuser, owner, _ = await _query_user_rights(connection)
    quoted = sql.Identifier(user).as_string(connection)
    statements: list[str] = []
    for role in ROLES:
        may_set_role = await (await connection.execute(_MAY_SET_ROLE, (role,))).fetchone()
        if may_set_role is None:
            statements.append(f"CREATE ROLE {role} NOLOGIN NOINHERIT")
        if not superuser and (may_set_role is None or not may_set_role[0]):
            # A user that inherits from the search role can read all tenants outside of our transactions.
            must_not_inherit = role == SEARCH_ROLE and connection.info.server_version >= 160000
            options = " WITH INHERIT FALSE, SET TRUE" if must_not_inherit else ""
            statements.append(f"GRANT {role} TO {quoted}{options}")
    if owner is None:
        statements.append(f"CREATE SCHEMA acms AUTHORIZATION {quoted}")
    row = await (await connection.execute(_HAS_LIST)).fetchone()
    if row is None or not row[0]:
        statements.append(_CREATE_LIST)
    return statements


async def _prepare_database(connection: Connection) -> None:
    """Create the roles, the schema and the list of migrations where they are missing."""
    user, _, owner, may_act_for_owner = await _query_user_rights(connection)
    if owner is not None and not may_act_for_owner:
        raise ConfigurationError(
            f"the schema acms belongs to {owner}, and the user {user} may not change it",
            options=(f"run acms migrate as {owner}",),
        )
    statements = await _list_missing_statements(connection)
    while statements:
        try:
            await connection.execute(statements[0].encode())
        # Another process created it in this moment.
        except _ALREADY_CREATED:
            pass
        except psycopg.errors.InsufficientPrivilege as error:
            unprepared = "; ".join(statement for statement in statements if statement is not _CREATE_LIST)
            raise ConfigurationError(
                f"the database is not prepared, and this user may not do it: {translate_error(error)}",
                options=(f"let an administrator run in this database: {unprepared}",),
            ) from error
        del statements[0]


def _build_script(step: Migration, partitions: int) -> str:
    """Return the statements that run inside the transaction of one migration."""
    script = step.script.rstrip().removesuffix(";").replace(":partitions", str(partitions))
    partition_count = str(partitions) if ":partitions" in step.script else "NULL"
    return (
        f"{script};\n\nINSERT INTO acms.migrations (version, needs, checksum, partitions)"
        f" VALUES ({step.version}, {step.needs}, '{step.checksum}', {partition_count});\n"
    )


async def _apply_migration(connection: Connection, step: Migration, partitions: int) -> None:
    """Run the script of a migration.

    Transient errors are passed on unchanged; `_ForbiddenError` if this user may not install the extension.
    """
    try:
        await connection.execute(_build_script(step, partitions).encode())
    except psycopg.Error as error:
        # A lost connection, a rollback, an intervention of the operator: the caller retries.
        if error.sqlstate is None or error.sqlstate.startswith(("08", "40", "57")):
            raise
        # insufficient_privilege
        if error.sqlstate == "42501" and "extension" in str(error):
            raise _ForbiddenError(str(error)) from error
        raise StorageError(f"migration {step.version} failed: {translate_error(error)}") from error


class _ForbiddenError(StorageError):
    """This user may not create the extension that the server has."""


async def check_database(pool: Pool) -> None:
    """Refuse a database this release cannot work with; create the schema in an empty one.

    Missing migrations that only add speed (vector indexes), or wait for the server, are no reason to refuse; in a
    database without entries they are applied at once. Sets `pool.vectors` to whether vectors are indexed.
    """

    async def read_status(connection: Connection) -> tuple[list[Migration], bool]:
        steps = await read_migration_status(connection)
        if not any(step.applied for step in steps):
            return steps, True
        row = await (await connection.execute(_IS_UNUSED)).fetchone()
        return steps, bool(row and row[0])

    steps, is_unused = await pool.retry(read_status, may_repeat=True)
    applicable = any(not step.applied and not step.waits_for for step in steps)
    if is_unused and applicable and not pool.read_only:
        try:
            await apply_migrations(pool, limit=60)  # seconds a statement: tables and indexes are empty
        # A new database needs the schema; an older one works without the optional migrations.
        except ConfigurationError:
            if not any(step.applied for step in steps):
                raise
        steps, _ = await pool.retry(read_status, may_repeat=True)
    if any(not step.applied and not _wants_vector(step.script) for step in steps):
        applied = sum(step.applied for step in steps)
        raise SchemaVersionError(
            f"the database has schema {applied}, this release needs {len(steps)}",
            options=("run acms migrate",),
        )
    pool.vectors = all(step.applied for step in steps if _wants_vector(step.script))
