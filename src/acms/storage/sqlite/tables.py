"""Finding the rows of an SQLite file, entries and derived ones, by named queries on whichever connection is given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import apsw

from acms.errors import CorruptRecordError, SessionNotFoundError
from acms.log.encoding import dump, load_mapping
from acms.model import Derived, Entry, Head, Hit, Kind, Search
from acms.storage import append_rules, search
from acms.storage.append_rules import Read
from acms.storage.records import deleted_session_error
from acms.storage.sql import VERSION_BITS, VERSION_MASK, read_derived, read_entry, read_lineage

Row = Sequence[Any]


class StoredLog(NamedTuple):
    """A context in a database."""

    #: Its number, which its rows refer to.
    ref: int
    head: Head
    lineage: tuple[tuple[str, int], ...]


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

    def log(self, connection: apsw.Connection, context: str, *, deleted: bool = False) -> StoredLog:
        """Return the state of a context: its number, head and lineage.

        `SessionNotFoundError` if there is none, or if it was deleted and `deleted` is false.
        """
        row = self.row(connection, "head", (self.tenant, context))
        if row is None:
            raise SessionNotFoundError(f"no context has the id {context!r}")
        ref, deleted_at, lineage, *columns = row
        if deleted_at is not None and not deleted:
            raise deleted_session_error(context)
        return StoredLog(ref, _build_head(context, columns), read_lineage(lineage))

    def heads(self, connection: apsw.Connection, contexts: Sequence[str]) -> list[Head | None]:
        """Return the heads of contexts in their order; None for one that is not there, or was deleted."""
        values = {"tenant": self.tenant, "contexts": dump(list(contexts))}
        head_of = {id: _build_head(id, columns) for id, *columns in self.rows(connection, "heads_of", values)}
        return [head_of.get(id) for id in contexts]

    def ref(self, connection: apsw.Connection, context: str) -> int:
        """Return the ref of a context from which a log inherits; `CorruptRecordError` if it is missing."""
        row = self.row(connection, "ref", (self.tenant, context))
        if row is None:
            raise CorruptRecordError(f"the ancestor {context} is missing")
        return int(row[0])

    def segments(
        self, connection: apsw.Connection, log: StoredLog, *, at: int | None = None
    ) -> list[tuple[int, int, int]]:
        """Return the segments (ref of the owner, first version, last version) of a log, up to a version."""
        ref, head, lineage = log
        newest = head.version if at is None else min(at, head.version)
        return [
            (ref if owner == head.context else self.ref(connection, owner), first, last)
            for owner, first, last in append_rules.split_segments(head.context, lineage, 1, newest)
        ]

    # ── entries ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def entries(self, connection: apsw.Connection, log: StoredLog, request: Read) -> list[Entry]:
        """Read entries of a log, inherited ones too, ascending.

        Each owner in the lineage holds a segment; they are read from the end that the limit counts from until it is
        reached.
        """
        ref, head, lineage = log
        backward = request.newest is not None
        limit = request.newest if backward else request.limit
        segments = append_rules.split_segments(
            head.context, lineage, request.after + 1, request.last_version(head.version)
        )
        if backward:
            segments.reverse()
        entries: list[Entry] = []
        for owner, first, last in segments:
            number = ref if owner == head.context else self.ref(connection, owner)
            remaining = -1 if limit is None else limit - len(entries)
            parameters = range_parameters(number, first, last, kinds=request.kinds, limit=remaining)
            # All rows are fetched before one is read: a corrupt row raises, and a cursor left open by the error would
            # keep this connection in an old snapshot.
            entries.extend(
                [read_entry(row, owner) for row in self.rows(connection, request.query, parameters)]
            )
            if limit is not None and len(entries) >= limit:
                break
        if backward:
            entries.reverse()
        return entries

    def entries_by_id(self, connection: apsw.Connection, ids: Sequence[str]) -> list[Entry | None]:
        """Return entries by id, with None for ids that do not exist."""
        locations = self.locations(connection, ids)
        owner_of = {ref: owner for owner, ref, _ in locations.values()}
        numbers = [ref << VERSION_BITS | version for _, ref, version in locations.values()]
        entries: dict[str, Entry] = {}
        for row in self.rows(connection, "entries_at", (dump(numbers),)):
            entry = read_entry(row, owner_of[row[0] >> VERSION_BITS])
            entries[entry.id] = entry
        return [entries.get(id) for id in ids]

    def locations(self, connection: apsw.Connection, ids: Sequence[str]) -> dict[str, tuple[str, int, int]]:
        """Return the location (log, number of the log in this database, version) of each id whose log exists.

        An id of a version above `VERSION_MASK` was never stored.
        """
        location_of = append_rules.parse_entry_ids(ids)
        ref_of: dict[str, int] = {}
        for owner in {owner for owner, _ in location_of.values()}:
            row = self.row(connection, "ref", (self.tenant, owner))
            if row is not None:
                ref_of[owner] = row[0]
        return {
            id: (owner, ref_of[owner], version)
            for id, (owner, version) in location_of.items()
            if owner in ref_of and version <= VERSION_MASK
        }


def range_parameters(
    ref: int, first: int, last: int, *, kinds: Sequence[Kind] | None = None, limit: int
) -> dict[str, Any]:
    """Return the parameters of a query for a range of entries of one log; `ref` is its number in this database."""
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
        """Store derived rows under the contexts that own their versions; rows of blanked versions are dropped."""
        log = self._tables.log(connection, context)
        ref, head = log.ref, log.head
        segments = self._tables.segments(connection, log)
        versions = {row.version for row in rows}
        numbers = [
            owner << VERSION_BITS | version
            for owner, first, last in segments
            for version in versions
            if first <= version <= last
        ]
        owner_of = {
            number & VERSION_MASK: number >> VERSION_BITS
            for (number,) in self._tables.rows(connection, "live", (dump(numbers),))
        }
        live_rows = [row for row in rows if row.version in owner_of]
        values = [
            (owner_of[row.version], row.space, row.version, row.part, seq, row.start, row.end, row.data)
            for seq, row in enumerate(live_rows, head.derived + 1)
        ]
        connection.executemany(self._tables.sql["put_derived"], values)
        self._tables.rows(connection, "count_derived", (head.derived + len(live_rows), ref))
        return len(live_rows)

    def read(
        self, connection: apsw.Connection, context: str, space: str, *, after: int, at: int | None
    ) -> list[Derived]:
        """Return the rows of one space by sequence number, from every context of the lineage.

        `after` is a sequence number, `at` a version of the log.
        """
        log = self._tables.log(connection, context)
        segments = self._tables.segments(connection, log, at=at)
        rows: list[Derived] = []
        for owner, first, last in segments:
            values = (owner, space, after, log.head.derived, first, last)
            rows += read_derived(connection.execute(self._tables.sql["derived"], values), space)
        return rows if len(segments) == 1 else sorted(rows, key=lambda row: row.seq)

    def missing(
        self, connection: apsw.Connection, space: str, context: str | None, *, limit: int, after: int
    ) -> list[tuple[str, int]]:
        """Return live messages, facts and summaries that have no row in the space."""
        tables = self._tables
        segments: Sequence[Row]
        if context is None:
            segments = tables.rows(connection, "live_logs", (tables.tenant,))
        else:
            owned = tables.segments(connection, tables.log(connection, context))
            segments = [(context, *segment) for segment in owned]
        missing: list[tuple[str, int]] = []
        for id, owner_ref, start, end in segments:
            for first in range(max(start, after + 1), end + 1, COVERAGE):
                if len(missing) >= limit:
                    return missing
                block = (owner_ref, space, first, min(first + COVERAGE - 1, end))
                # Counting rows by an index is cheap: most blocks are complete and need no search.
                ((covered_count,),) = tables.rows(connection, "count_covered", block)
                if covered_count <= block[3] - first:
                    rows = tables.rows(connection, "missing", (*block, limit - len(missing)))
                    missing.extend((id, version) for (version,) in rows)
        return missing

    def spaces(self, connection: apsw.Connection, context: str) -> list[str]:
        """Return the names of the spaces in which a context has its own rows."""
        ref = self._tables.log(connection, context).ref
        return [space for (space,) in self._tables.rows(connection, "spaces_of", (ref,))]

    def strays(self, connection: apsw.Connection, context: str) -> list[tuple[str, int]]:
        """Return (space, version) of a context's own rows that belong to no entry, or to an erased one."""
        ref = self._tables.log(connection, context).ref
        return [(space, version) for space, version in self._tables.rows(connection, "stray_derived", (ref,))]

    def delete_strays(self, connection: apsw.Connection, context: str) -> int:
        """Delete the rows that `strays` returns; return how many entries they were of."""
        strays = self.strays(connection, context)
        if strays:
            ref = self._tables.log(connection, context).ref
            self._tables.rows(connection, "delete_stray_derived", (ref,))
        return len(strays)

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
    version, messages, tokens, last_message, rewrites, derived, epoch, chain, tail = columns
    return Head(
        context=context,
        version=version,
        messages=messages,
        tokens=tokens,
        last_message=last_message,
        rewrites=rewrites,
        derived=derived,
        epoch=epoch,
        chain=chain,
        tail=dict(load_mapping(tail)),
    )
