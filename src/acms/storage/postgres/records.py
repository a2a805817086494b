"""The records stored next to the logs of a PostgreSQL database."""

from __future__ import annotations

from acms.model import Record
from acms.storage import records
from acms.storage.postgres.database import Database, NamedQuery


class Records:
    """The records of a tenant."""

    def __init__(self, db: Database) -> None:
        self._db = db

    async def get(self, context: str, name: str) -> Record | None:
        """Return the record a context itself has under a name."""
        rows = await self._db.query("record", {"context": context, "name": name})
        return records.record_from_rows(context, name, rows)

    async def put(self, context: str, name: str, data: str, rev: int) -> Record:
        """Store a record if it is still at `rev`."""
        target = {"context": context}
        queries: list[NamedQuery] = [
            ("lock_context", target),
            ("head", target),
            ("put_record", {**target, "name": name, "data": data, "rev": rev}),
        ]
        if rev == 0:
            queries.append(("bound_records", {**target, "kept": records.KEPT}))
        _, head_rows, put_rows, *_ = await self._db.query_all(*queries)
        self._db.read_head(context, head_rows)  # refuses a context that is deleted
        if not put_rows:
            raise records.revision_conflict_error(name, rev)
        return records.record_from_columns(context, name, put_rows[0][0], data)
