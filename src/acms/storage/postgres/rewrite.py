"""Rewrite the tables of a PostgreSQL database so that no erased content is left in the server's files.

An erased row remains as an old version in the file of its table, in its indexes, in the sampled values used for query
plans, and in the write-ahead log. A vacuum frees the space but leaves the bytes; a rewrite copies only live rows.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import psycopg

from acms.errors import ConfigurationError, StorageBusyError, StorageError
from acms.results import Rewriting
from acms.storage.postgres.database import Database
from acms.storage.postgres.pool import Connection, translate_error
from acms.storage.traces import Traces

CHUNK = 4 << 20
"""Bytes of a file that are searched at once."""
SEGMENT = 1 << 30
"""Bytes of a file of a table; a larger table has several."""
STATISTICS = "pg_catalog.pg_statistic"

_ELSEWHERE = (
    "standbys until they have replayed it, archives of the write-ahead log, the message log of the server",
)
_NOT_ALLOWED = (
    "the write-ahead log and the sampled values of the server, and a search of bytes: repeat it as a superuser",
)
_USER_RIGHTS = """
SELECT current_setting('is_superuser') = 'on', pg_has_role('pg_read_all_stats', 'USAGE'),
       ARRAY(SELECT c.oid::regclass::text FROM pg_class c
             WHERE c.oid = ANY (%(tables)s::regclass[]) AND NOT pg_has_role(c.relowner, 'USAGE')),
       (SELECT pg_get_userbyid(n.nspowner) FROM pg_namespace n WHERE n.nspname = 'acms')
"""
# The partitions of some contexts, and the tables that have none.
_TABLES = """
WITH many AS (SELECT count(*)::int AS p FROM pg_inherits WHERE inhparent = 'acms.entries'::regclass),
     homes AS (SELECT DISTINCT n FROM many, generate_series(0, p - 1) AS n, unnest(%(contexts)s::text[]) AS c (id)
               WHERE satisfies_hash_partition('acms.entries'::regclass, p, n, c.id))
SELECT c.oid::regclass::text FROM pg_class c
WHERE c.relnamespace = 'acms'::regnamespace AND c.relkind = 'r'
  AND (c.relname IN ('jobs', 'kv', 'vectors')
       OR c.relname IN (SELECT name || '_' || n FROM homes, unnest(ARRAY['entries', 'derived', 'records']) AS name))
ORDER BY c.relname
"""
# Old versions are kept for readers that began before the blanking: a session, a standby that reports back, a slot.
_OLDER_TRANSACTIONS = """
SELECT format('the session %%s %%s', pid, application_name) FROM pg_stat_activity
WHERE pid <> pg_backend_pid() AND (datname = current_database() OR datname IS NULL)
  AND greatest(age(backend_xmin), age(backend_xid)) > age(%(mark)s::xid)
UNION ALL SELECT 'the replication slot ' || slot_name FROM pg_replication_slots WHERE age(xmin) > age(%(mark)s::xid)
UNION ALL SELECT 'the prepared transaction ' || gid FROM pg_prepared_xacts
WHERE database = current_database() AND age(transaction) > age(%(mark)s::xid)
"""
_DELETE_STATISTICS = "DELETE FROM pg_catalog.pg_statistic WHERE starelid = ANY (%(tables)s::regclass[])"
_FILES = """
WITH homes AS (SELECT unnest(%(tables)s::regclass[])::oid AS id),
     all_of AS (SELECT id FROM homes UNION SELECT c.reltoastrelid FROM pg_class c JOIN homes h ON h.id = c.oid)
SELECT c.oid::regclass::text, pg_relation_filepath(c.oid), pg_relation_size(c.oid)
FROM pg_class c
WHERE c.oid IN (SELECT id FROM all_of UNION SELECT i.indexrelid FROM pg_index i JOIN all_of a ON a.id = i.indrelid)
"""
# The pieces that a current row of any tenant contains.
_PIECES_IN_ROWS = """
SELECT p FROM unnest(%(pieces)s::bytea[]) AS p
WHERE EXISTS (SELECT FROM acms.entries e WHERE position(p IN convert_to(concat_ws(chr(10),
          e.content, e.parts, e.data, e.metadata, e.key, e.actor, e.markers, e.sources, e.grp, e.origin), 'UTF8')) > 0)
   OR EXISTS (SELECT FROM acms.contexts c WHERE position(p IN convert_to(concat_ws(chr(10),
          c.tenant_id, c.namespace, c.key, c.settings, c.tail), 'UTF8')) > 0)
   OR EXISTS (SELECT FROM acms.kv k WHERE position(p IN convert_to(concat_ws(chr(10),
          k.key, k.data, k.metadata), 'UTF8')) > 0)
"""


class Rewriter:
    """Rewrites the tables that held erased content."""

    def __init__(self, db: Database) -> None:
        self._db = db

    async def rewrite(self, contexts: Sequence[str], texts: Sequence[bytes]) -> Rewriting:
        """Rewrite the tables that held erased entries, so that no old row version is left.

        A superuser's call also empties the write-ahead log, and searches the server's files for `texts`.
        """
        await self._db.open()
        async with self._dedicated_connection() as connection:
            tables = [name for (name,) in await _run_query(connection, _TABLES, {"contexts": list(contexts)})]
            superuser, sees_all = await _check_rights(connection, tables)
            await self._wait_for_others(connection)
            if superuser:
                stale = {"tables": [*tables, "acms.entries", "acms.derived"]}
                await _run_query(connection, _DELETE_STATISTICS, stale)
                tables.append(STATISTICS)
            for table in tables:
                options = "FULL" if table == STATISTICS else "FULL, ANALYZE"
                with _translate_table_errors(table):
                    await connection.execute(f"VACUUM ({options}) {table}".encode())
            found_in: list[str] = []
            if superuser:
                with _translate_table_errors("the write-ahead log"):
                    await _empty_wal(connection)
                    found_in = await _search_files(connection, tables, Traces(texts)) if texts else []
        unseen_versions = () if sees_all else ("old versions of rows that sessions of other users still see",)
        not_allowed = () if superuser else _NOT_ALLOWED
        return Rewriting(
            rewritten=tuple(tables),
            searched=superuser and bool(texts),
            found=tuple(found_in),
            unreached=(*not_allowed, *unseen_versions, *_ELSEWHERE),
        )

    @asynccontextmanager
    async def _dedicated_connection(self) -> AsyncGenerator[Connection]:
        """Open a dedicated connection, whose statements may take as long as the server allows the user."""
        if self._db.pool.pooled:
            raise ConfigurationError(
                "tables cannot be rewritten through a pooler", options=("connect to the server directly",)
            )
        try:
            connection = await self._db.pool.open_dedicated()
        except psycopg.Error as error:
            raise translate_error(error) from error
        try:
            connection.limit = None
            yield connection
        finally:
            connection.pgconn.finish()

    async def _wait_for_others(self, connection: Connection) -> None:
        """Wait until no transaction can see the rows as they were before this call blanked them."""
        ((mark,),) = await _run_query(connection, "SELECT pg_current_xact_id()::xid::text", {})
        deadline = asyncio.get_running_loop().time() + self._db.pool.patience
        while older := await _run_query(connection, _OLDER_TRANSACTIONS, {"mark": mark}):
            if asyncio.get_running_loop().time() > deadline:
                raise StorageBusyError(
                    f"what was erased is gone from the rows; no table was written anew, for {older[0][0]} began before"
                    " and keeps their old versions in the files",
                    options=("end it, then repeat the call",),
                )
            await asyncio.sleep(0.05)


async def _run_query(connection: Connection, query: str, values: dict[str, Any]) -> list[tuple[Any, ...]]:
    with _translate_table_errors("the server"):
        cursor = await connection.execute(query.encode(), values)
        return await cursor.fetchall() if cursor.description else []


@contextmanager
def _translate_table_errors(table: str) -> Generator[None]:
    """Raise an error that names the table that could not be rewritten; that table is unchanged."""
    try:
        yield
    except psycopg.Error as error:
        translated = translate_error(error)
        kind = type(translated) if isinstance(translated, StorageError) else StorageError
        raise kind(
            f"{table} could not be rewritten, and is unchanged;"
            f" what was erased is gone from its rows ({translated})",
            options=("repeat the call: it goes on", *translated.options),
        ) from error


async def _check_rights(connection: Connection, tables: Sequence[str]) -> tuple[bool, bool]:
    """Return whether this user is superuser and whether he sees other users' transactions; he must own the tables."""
    (row,) = await _run_query(connection, _USER_RIGHTS, {"tables": list(tables)})
    superuser, sees_all, foreign_tables, owner = row
    if foreign_tables:
        raise ConfigurationError(
            f"what was erased is gone from the rows; only {owner}, who owns the tables, may rewrite them",
            options=(
                f"repeat it as {owner}",
                "repeat it as a superuser, who also empties the write-ahead log",
            ),
        )
    return superuser, sees_all


async def _empty_wal(connection: Connection) -> None:
    """Have the server overwrite every segment of its log that holds data written until now.

    A checkpoint renames old segments and leaves their content, so every named segment is switched through, and those
    renamed meanwhile a second time. The server fills a segment with zeros when it switches away from it.
    """
    for _ in range(2):
        await connection.execute("CHECKPOINT")
        ((last_segment,),) = await _run_query(
            connection, "SELECT max(name) FROM pg_ls_waldir() WHERE name ~ '^[0-9A-F]{24}$'", {}
        )
        segment = ""
        while segment <= last_segment:
            # A segment without a record is not switched away from, so each gets an empty message before and after.
            await _run_query(connection, "SELECT pg_logical_emit_message(true, 'acms', '')", {})
            await _run_query(connection, "SELECT pg_switch_wal()", {})
            await _run_query(connection, "SELECT pg_logical_emit_message(true, 'acms', '')", {})
            ((segment,),) = await _run_query(
                connection, "SELECT pg_walfile_name(pg_current_wal_insert_lsn())", {}
            )
    await connection.execute("CHECKPOINT")


async def _search_files(connection: Connection, tables: Sequence[str], traces: Traces) -> list[str]:
    """Return where the files of tables and the write-ahead log contain texts that no row contains any more.

    Consecutive chunks of a file overlap, so that a text across their border is found.
    """
    files: list[tuple[str, str]] = []
    for name, path, size in await _run_query(connection, _FILES, {"tables": list(tables)}):
        # A table of several segments has the files path, path.1, path.2, …
        segment_count = max(1, -(-size // SEGMENT))
        files += [(name, f"{path}.{number}" if number else path) for number in range(segment_count)]
    wal_files = await _run_query(connection, "SELECT name FROM pg_ls_waldir()", {})
    files += [("the write-ahead log", f"pg_wal/{name}") for (name,) in wal_files]
    found_in: dict[bytes, str] = {}
    for name, path in files:
        overlap, start = b"", 0
        while data := await _read_chunk(connection, path, start):
            for piece in traces.find(overlap + data):
                found_in.setdefault(piece, f"{name}: in {path} of the server")
            start += len(data)
            overlap = (overlap + data)[1 - traces.longest :]
    if found_in:
        for (piece_in_row,) in await _run_query(connection, _PIECES_IN_ROWS, {"pieces": list(found_in)}):
            found_in.pop(bytes(piece_in_row), None)
    return list(dict.fromkeys(found_in.values()))


async def _read_chunk(connection: Connection, path: str, start: int) -> bytes:
    cursor = connection.cursor(binary=True)
    await cursor.execute("SELECT pg_read_binary_file(%s, %s, %s, true)", (path, start, CHUNK))
    row = await cursor.fetchone()
    return bytes(row[0]) if row is not None and row[0] is not None else b""
