"""The derived rows of an SQLite file, and search across its logs."""

from __future__ import annotations

from collections.abc import Sequence

import apsw

from acms.log.entry_json import dump
from acms.model import Derived, Hit, Search
from acms.storage import search
from acms.storage.sql import VERSION_BITS, VERSION_MASK, read_derived
from acms.storage.sqlite.tables import Row, Tables

COVERAGE = 1024
"""Versions counted at once when looking for those without a derived row."""


class DerivedRows:
    """The derived rows of a tenant: what the writer, or a reader, does with them on its connection."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    def put(self, connection: apsw.Connection, context: str, rows: Sequence[Derived]) -> int:
        """Store rows; those of blanked versions are dropped."""
        log = ref, head, _ = self._tables.log(connection, context)
        runs = self._tables.runs(connection, log)
        versions = {row.version for row in rows}
        places = [of << VERSION_BITS | n for of, low, high in runs for n in versions if low <= n <= high]
        live = {
            row & VERSION_MASK: row >> VERSION_BITS
            for (row,) in self._tables.rows(connection, "live", (dump(places),))
        }
        kept = [row for row in rows if row.version in live]
        values = [
            (live[row.version], row.space, row.version, row.part, seq, row.start, row.end, row.data)
            for seq, row in enumerate(kept, head.derived + 1)
        ]
        connection.executemany(self._tables.sql["put_derived"], values)
        self._tables.rows(connection, "count_derived", (head.derived + len(kept), ref))
        return len(kept)

    def read(
        self, connection: apsw.Connection, context: str, space: str, *, after: int, at: int | None
    ) -> list[Derived]:
        """Return the rows of one space by sequence number, whoever of a lineage stored them."""
        log = _, head, _ = self._tables.log(connection, context)
        runs = self._tables.runs(connection, log, at=at)
        found: list[Derived] = []
        for of, low, high in runs:
            values = (of, space, after, head.derived, low, high)
            found += read_derived(connection.execute(self._tables.sql["derived"], values), space)
        return found if len(runs) == 1 else sorted(found, key=lambda row: row.seq)

    def missing(
        self, connection: apsw.Connection, space: str, context: str | None, *, limit: int, after: int
    ) -> list[tuple[str, int]]:
        """Return live messages, facts and summaries that have no row in the space."""
        tables = self._tables
        runs: Sequence[Row] = (
            tables.rows(connection, "live_logs", (tables.tenant,))
            if context is None
            else [(context, *run) for run in tables.runs(connection, tables.log(connection, context))]
        )
        found: list[tuple[str, int]] = []
        for id, number, start, end in runs:
            for low in range(max(start, after + 1), end + 1, COVERAGE):
                if len(found) >= limit:
                    return found
                block = (number, space, low, min(low + COVERAGE - 1, end))
                if tables.rows(connection, "count_covered", block)[0][0] <= block[3] - low:
                    rows = tables.rows(connection, "missing", (*block, limit - len(found)))
                    found.extend((id, version) for (version,) in rows)
        return found

    def spaces(self, connection: apsw.Connection, context: str) -> list[str]:
        """Return the names of the spaces in which a context has rows of its own."""
        ref, _, _ = self._tables.log(connection, context)
        return [space for (space,) in self._tables.rows(connection, "spaces_of", (ref,))]

    def search(self, connection: apsw.Connection, query: Search) -> list[Hit]:
        """Search facts, summaries and marked messages across the live contexts of a namespace."""
        tenant = self._tables.tenant
        rows = self._tables.rows(connection, "searchable", (tenant, query.namespace))
        vectors: Sequence[Row] = ()
        if query.vector is not None and query.space is not None:
            values = (query.space, tenant, query.namespace)
            vectors = self._tables.rows(connection, "searchable_vectors", values)
        return search.hits(query, rows, vectors)
