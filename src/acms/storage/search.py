"""Search across contexts, the same for every store that scans: BM25 over the words, or the best cosine."""

from __future__ import annotations

import array
from collections.abc import Sequence
from math import sqrt

from acms.core.chain import entry_id
from acms.core.rank import relevance
from acms.model import Hit, Kind, Search


def hits(
    query: Search,
    rows: Sequence[tuple[str, int, str, str, str]] | Sequence[Sequence[object]],
    vectors: Sequence[tuple[str, int, bytes]] = (),
) -> list[Hit]:
    """Rank rows of (context, version, kind, nonce, content); vectors are little-endian float32."""
    ids: dict[tuple[str, int], str] = {}
    contents: list[str] = []
    for context, version, kind, nonce, content in rows:
        place = (str(context), int(str(version)))
        ids[place] = entry_id(Kind(str(kind)), place[0], place[1], str(nonce))
        contents.append(str(content))
    scores = dict.fromkeys(ids, 0.0)
    if query.terms:
        for place, score in zip(ids, relevance(" ".join(query.terms), contents), strict=True):
            scores[place] = score
    if query.vector is not None:
        for context, version, data in vectors:
            place = (context, version)
            if place in scores:
                scores[place] = max(scores[place], cosine(query.vector, data))
    found = [
        Hit(context=place[0], id=ids[place], score=score) for place, score in scores.items() if score > 0
    ]
    return sorted(found, key=lambda hit: (-hit.score, hit.id))[: query.limit]


def cosine(one: Sequence[float], other: bytes) -> float:
    """Return the cosine of a vector and a packed float32 one; 0 when either is zero or the lengths differ."""
    if not isinstance(other, bytes) or len(other) != 4 * len(one):
        return 0.0
    values = array.array("f", other)
    norm = sqrt(sum(x * x for x in one)) * sqrt(sum(x * x for x in values))
    return sum(x * y for x, y in zip(one, values, strict=True)) / norm if norm else 0.0
