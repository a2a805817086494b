"""Uses: how often answers cited each entry, kept in a record beside the log.

Uses are not entries and do not affect the ranking: an entry that was useful once is not more true. They are deleted
with an erasure, are not exported, and start empty in a fork.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from acms.errors import ConflictError, EntryNotFoundError
from acms.model import Json, State
from acms.ports import HasRecords, StorageBackend
from acms.results import Citation

RECORD = "citations"
FORMAT = 1
KEPT = 500
"""Entries that are counted, those cited last: a record is small."""
TRIES = 16


async def load_citations(storage: StorageBackend, context: str) -> list[Citation]:
    """Return how often each entry was cited, the one cited last first; nothing of a store that keeps no records."""
    found = await storage.record(context, RECORD) if isinstance(storage, HasRecords) else None
    return [] if found is None else _parse_citations(found.data)


async def record_citations(storage: StorageBackend, context: str, ids: Sequence[str], now: datetime) -> None:
    """Count that an answer cited some entries; `EntryNotFoundError` names one that does not exist or is gone."""
    rows = await storage.get(ids)
    for id, row in zip(ids, rows, strict=True):
        if row is None or row.state is State.ERASED:
            raise EntryNotFoundError(f"there is no entry {id!r}")
    if not ids or not isinstance(storage, HasRecords):
        return
    for left in reversed(range(TRIES)):
        found = await storage.record(context, RECORD)
        try:
            data = _count_citations(() if found is None else _parse_citations(found.data), ids, now)
            await storage.put_record(context, RECORD, data, rev=0 if found is None else found.rev)
            return
        except ConflictError:
            if not left:
                raise


def _parse_citations(data: Mapping[str, Any]) -> list[Citation]:
    if data.get("format") != FORMAT:
        return []
    return [Citation(id=id, count=count, at=datetime.fromisoformat(at)) for id, count, at in data["entries"]]


def _count_citations(known: Sequence[Citation], ids: Sequence[str], now: datetime) -> dict[str, Json]:
    """Return counts with some more, those cited last first."""
    before = {one.id: one for one in known}
    fresh = [Citation(id=id, count=1 + (before[id].count if id in before else 0), at=now) for id in ids]
    kept = [*fresh, *(one for one in known if one.id not in set(ids))][:KEPT]
    return {"format": FORMAT, "entries": [[one.id, one.count, one.at.isoformat()] for one in kept]}
