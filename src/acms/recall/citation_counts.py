"""Count citations: how often answers cited each entry, stored in a record of the log.

Counts are not entries and do not affect the ranking: an entry that was useful once is not more true. They are deleted
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

RECORD_NAME = "citations"


async def load_citations(storage: StorageBackend, context: str) -> list[Citation]:
    """Return how often each entry was cited, the one cited last first; none if a store keeps no records."""
    record = await storage.record(context, RECORD_NAME) if isinstance(storage, HasRecords) else None
    return [] if record is None else _parse_citations(record.data)


async def record_citations(storage: StorageBackend, context: str, ids: Sequence[str], now: datetime) -> None:
    """Count one citation of each of some entries; `EntryNotFoundError` names one that does not exist or is erased."""
    rows = await storage.get(ids)
    for id, row in zip(ids, rows, strict=True):
        if row is None or row.state is State.ERASED:
            raise EntryNotFoundError(f"there is no entry {id!r}")
    if not ids or not isinstance(storage, HasRecords):
        return
    for retries_left in reversed(range(16)):  # other answers may be counted at the same time
        record = await storage.record(context, RECORD_NAME)
        citations: list[Citation] = []
        revision = 0
        if record is not None:
            citations, revision = _parse_citations(record.data), record.rev
        try:
            await storage.put_record(
                context, RECORD_NAME, _count_citations(citations, ids, now), rev=revision
            )
            return
        except ConflictError:
            if not retries_left:
                raise


def _parse_citations(data: Mapping[str, Any]) -> list[Citation]:
    if data.get("format") != 1:
        return []
    return [
        Citation(id=id, count=count, at=datetime.fromisoformat(moment))
        for id, count, moment in data["entries"]
    ]


def _count_citations(citations: Sequence[Citation], ids: Sequence[str], now: datetime) -> dict[str, Json]:
    """Return the record after one more citation of each of some entries, the entries cited last first.

    The 500 newest are kept.
    """
    counts = {citation.id: citation.count for citation in citations}
    new_citations = [Citation(id=id, count=1 + counts.get(id, 0), at=now) for id in ids]
    other_citations = [citation for citation in citations if citation.id not in set(ids)]
    kept_citations = [*new_citations, *other_citations][:500]
    entries = [[citation.id, citation.count, citation.at.isoformat()] for citation in kept_citations]
    return {"format": 1, "entries": entries}
