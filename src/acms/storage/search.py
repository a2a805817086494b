"""Search across contexts, the same for every store that scans: BM25 over the words, or the best cosine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import log, sqrt

from acms.core.chain import entry_id
from acms.core.terms import terms, words
from acms.model import Hit, Kind, Search

_K1 = 1.2
_B = 0.9


def hits(
    query: Search,
    rows: Sequence[tuple[str, int, str, str, str]] | Sequence[Sequence[object]],
    vectors: Sequence[tuple[str, int, bytes]] = (),
) -> list[Hit]:
    """Rank rows of (context, version, kind, nonce, content); vectors are little-endian float32 or float16."""
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


def relevance(query: str, documents: Sequence[str]) -> list[float]:
    """Return the relevance of each document in [0, 1): BM25 over the most a text could score for this query."""
    counts = [Counter(terms(words(text))) for text in documents]
    lengths = [sum(count.values()) for count in counts]
    total = len(documents)
    average = (sum(lengths) / total if total else 0) or 1.0
    weights: dict[int, float] = {}
    for term in dict.fromkeys(terms(words(query))):
        having = sum(term in count for count in counts)
        if having:
            weights[term] = log(1 + (total - having + 0.5) / (having + 0.5))
    best = sum(weights.values()) * (_K1 + 1)
    if not best:
        return [0.0] * total
    return [
        sum(
            weight * count[term] * (_K1 + 1) / (count[term] + _K1 * (1 - _B + _B * length / average))
            for term, weight in weights.items()
            if term in count
        )
        / best
        for count, length in zip(counts, lengths, strict=True)
    ]


def cosine(one: Sequence[float], other: bytes) -> float:
    """Return the cosine of a vector and a packed one, of float32 or float16 by its length.

    0 when either is zero, the lengths differ, or it holds what is no number.
    """
    import numpy as np

    if not isinstance(other, bytes) or len(other) not in (2 * len(one), 4 * len(one)):
        return 0.0
    values = np.frombuffer(other, "<f2" if len(other) == 2 * len(one) else "<f4")
    if not np.isfinite(values).all():
        return 0.0
    values = values.astype(np.float64)
    query = np.asarray(one, np.float64)
    norm = sqrt(float(query @ query)) * sqrt(float(values @ values))
    return float(query @ values) / norm if norm else 0.0
