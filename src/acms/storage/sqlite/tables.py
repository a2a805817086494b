"""Finding the rows of an SQLite file, entries and derived ones, by named queries on whichever connection is given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import apsw

from acms.errors import CorruptRecordError, SessionNotFoundError
from acms.log.encoding import dump, load_mapping, parse_entry_id
from acms.model import Derived, Entry, Head, Hit, Kind, Search
from acms.storage import append_rules, search
from acms.storage.append_rules import Read
from acms.storage.sql import VERSION_BITS, VERSION_MASK, read_derived, read_entry, read_lineage

Row = Sequence[Any]
Log = tuple[int, Head, tuple[tuple[str, int], ...]]
"""The ref of a context, where its log stands, and its lineage."""


class Tables:
    """The rows of one tenant."""

    def __init__(self, tenant: str, sql: Mapping[str, str]) -> None:
        self.tenant = tenant
        self.sql = sql

    def rows(self, connection: apsw.Connection, query: str, parameters: Any = ()) -> Sequence[Row]:
        """Run a query to its end."""
        return connection.execute(self.sql[query], parameters).fetchall()

    def row(self, connection: apsw.Connection, query: str, parameters: Any = ()) -> Row | None:
        """Run a query to its end; return its first row, if any."""
        rows = connection.execute(self.sql[query], parameters).fetchall()
        return rows[0] if rows else None

    # ── logs ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def log(self, connection: apsw.Connection, context: str, *, deleted: bool = False) -> Log:
        """Find a context."""
        row = self.row(connection, "head", (self.tenant, context))
        if row is None:
            raise SessionNotFoundError(f"no context has the id {context!r}")
        ref, deleted_at, lineage, *columns = row
        if deleted_at is not None and not deleted:
            raise SessionNotFoundError(f"the context {context!r} was deleted", options=("undelete it first",))
        return ref, _build_head(context, columns), read_lineage(lineage)

    def heads(self, connection: apsw.Connection, contexts: Sequence[str]) -> list[Head | None]:
        """Return the heads of contexts in their order; None for one that is not there, or was deleted."""
        asked = {"tenant": self.tenant, "contexts": dump(list(contexts))}
        found = {id: _build_head(id, columns) for id, *columns in self.rows(connection, "heads_of", asked)}
        return [found.get(id) for id in contexts]

    def ref(self, connection: apsw.Connection, context: str) -> int:
        """Return the ref of an ancestor."""
        row = self.row(connection, "ref", (self.tenant, context))
        if row is None:
            raise CorruptRecordError(f"the ancestor {context} is missing")
        return int(row[0])

    def runs(
        self, connection: apsw.Connection, log: Log, *, at: int | None = None
    ) -> list[tuple[int, int, int]]:
        """Return the (ref of the owner, first, last) runs of a log."""
        ref, head, lineage = log
        last = head.version if at is None else min(at, head.version)
        return [
            (ref if owner == head.context else self.ref(connection, owner), low, high)
            for owner, low, high in append_rules.split_segments(head.context, lineage, 1, last)
        ]

    # ── entries ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def entries(self, connection: apsw.Connection, log: Log, read: Read) -> list[Entry]:
        """Read entries, ascending: walk the segments of a lineage, from the end that the limit counts from."""
        ref, head, lineage = log
        backward = read.newest is not None
        limit = read.newest if backward else read.limit
        runs = append_rules.split_segments(head.context, lineage, read.after + 1, read.last(head.version))
        if backward:
            runs.reverse()
        entries: list[Entry] = []
        for owner, first, last in runs:
            number = ref if owner == head.context else self.ref(connection, owner)
            left = -1 if limit is None else limit - len(entries)
            parameters = range_parameters(number, first, last, kinds=read.kinds, limit=left)
            # Fetched first: a cursor left open by a corrupt row would keep this connection in an old snapshot.
            entries.extend([read_entry(row, owner) for row in self.rows(connection, read.query, parameters)])
            if limit is not None and len(entries) >= limit:
                break
        if backward:
            entries.reverse()
        return entries

    def found(self, connection: apsw.Connection, ids: Sequence[str]) -> list[Entry | None]:
        """Return entries by id, with None for ids that do not exist."""
        places = self.places(connection, ids)
        owners = {ref: owner for owner, ref, _ in places.values()}
        rows = [ref << VERSION_BITS | version for _, ref, version in places.values()]
        entries = [
            read_entry(row, owners[row[0] >> VERSION_BITS])
            for row in self.rows(connection, "entries_at", (dump(rows),))
        ]
        found = {entry.id: entry for entry in entries}
        return [found.get(id) for id in ids]

    def places(self, connection: apsw.Connection, ids: Sequence[str]) -> dict[str, tuple[str, int, int]]:
        """Return (owner, ref of the owner, version) of the ids that may exist."""
        located = {id: place for id in ids if (place := parse_entry_id(id)) is not None}
        refs = {
            owner: int(row[0])
            for owner in {owner for owner, _ in located.values()}
            if (row := self.row(connection, "ref", (self.tenant, owner))) is not None
        }
        return {
            id: (owner, refs[owner], version)
            for id, (owner, version) in located.items()
            if owner in refs and version <= VERSION_MASK
        }


def range_parameters(
    ref: int, first: int, last: int, *, kinds: Sequence[Kind] | None = None, limit: int
) -> dict[str, Any]:
    """Return the parameters of a query for entries of one owner."""
    base = ref << VERSION_BITS
    return {
        "first": base | first,
        "last": base | last,
        "kinds": None if kinds is None else dump([kind.value for kind in kinds]),
        "limit": limit,
    }


COVERAGE = 1024
"""Versions counted at once when looking for those without a derived row."""


class DerivedRows:
    """The derived rows of a tenant: operations that a writer, or a reader, runs on its connection."""

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
        """Return the rows of one space by sequence number, from every context of the lineage."""
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
        """Return the names of the spaces in which a context has its own rows."""
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
        return search.rank_hits(query, rows, vectors)


def _build_head(context: str, columns: Sequence[Any]) -> Head:
    """Build a head from its columns: from `version` up to and including `tail`."""
    version, messages, tokens, last, rewrites, derived, epoch, chain, tail = columns
    return Head(
        context=context,
        version=version,
        messages=messages,
        tokens=tokens,
        last_message=last,
        rewrites=rewrites,
        derived=derived,
        epoch=epoch,
        chain=chain,
        tail=dict(load_mapping(tail)),
    )
