"""The records stored next to the logs of an SQLite file."""

from __future__ import annotations

import apsw

from acms.model import Record
from acms.storage import records
from acms.storage.sqlite.tables import Tables


class Records:
    """The records of a tenant: operations that a writer, or a reader, runs on its connection."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    def get(self, connection: apsw.Connection, context: str, name: str) -> Record | None:
        """Return the record a context itself has under a name."""
        values = {"tenant": self._tables.tenant, "context": context, "name": name}
        return records.record_from_rows(context, name, self._tables.rows(connection, "record", values))

    def put(self, connection: apsw.Connection, context: str, name: str, data: str, rev: int) -> Record:
        """Store a record if it is still at `rev`."""
        ref = self._tables.log(connection, context).ref
        values = {"ref": ref, "name": name, "data": data, "rev": rev}
        row = self._tables.row(connection, "put_record", values)
        if row is None:
            raise records.revision_conflict_error(name, rev)
        if rev == 0:
            self._tables.rows(connection, "bound_records", {"ref": ref, "kept": records.KEPT})
        return records.record_from_columns(context, name, row[0], data)
