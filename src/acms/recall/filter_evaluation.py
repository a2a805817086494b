"""Evaluate a filter: by the index where it decides, else by the entries themselves.

Times to the second and metadata are not in the index. They are read once for each entry and kept beside it.
"""

from __future__ import annotations

from contextlib import suppress

import numpy as np

from acms.errors import SessionNotFoundError
from acms.ports import StorageBackend
from acms.recall.corpus import Corpus
from acms.recall.filters import Mask, Where, complete_tool_groups
from acms.recall.index import Ints, Segment


async def evaluate_filter(
    storage: StorageBackend, corpus: Corpus, where: Where | None, namespace: str
) -> Mask | None:
    """Return which active entries a filter accepts; None without one. It names sessions of the namespace."""
    if where is None:
        return None
    owners: set[str] = set()
    for name in where.sessions or ():
        with suppress(SessionNotFoundError):
            owners.add((await storage.context(name, namespace=namespace)).id)
    is_accepted = where.match_index(corpus, owners)
    undecided_positions = np.flatnonzero(is_accepted & where.find_undecided(corpus))
    await _load_filter_fields(storage, corpus, undecided_positions)
    for position in undecided_positions.tolist():
        _, segment, segment_position = corpus.snapshot.find_segment(corpus.document(position))
        fields = segment.filter_fields.get(segment_position)
        is_accepted[position] = fields is not None and where.matches(*fields)
    return complete_tool_groups(corpus, is_accepted)


async def _load_filter_fields(storage: StorageBackend, corpus: Corpus, positions: Ints) -> None:
    """Cache the times and the metadata of the entries at some positions in their segments."""
    missing: dict[str, dict[int, tuple[Segment, int]]] = {}  # segment and position, by owner and version
    for document in corpus.documents(positions).tolist():
        _, segment, position = corpus.snapshot.find_segment(document)
        if position not in segment.filter_fields:
            owner, version = corpus.snapshot.locate(document)
            missing.setdefault(owner, {})[version] = segment, position
    page_size = 4_096  # entries
    for owner, places in missing.items():
        first_version, last_version = min(places), max(places)
        for start in range(first_version, last_version + 1, page_size):
            end = min(last_version, start + page_size - 1)
            for entry in await storage.read(owner, after=start - 1, before=end + 1, deleted=True):
                place = places.get(entry.version)
                if place is not None:
                    segment, position = place
                    segment.filter_fields[position] = entry.created_at, entry.metadata
