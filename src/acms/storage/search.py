"""Search across contexts, the same for every store that scans: BM25 over the words, or the best cosine."""

from __future__ import annotations

import heapq
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite, sqrt
from typing import Any

from acms.log.encoding import entry_id
from acms.model import Hit, Kind, Search
from acms.text.tokenizer import compute_idf, searchable_terms

_K1 = 1.2
_B = 0.9
_BLOCK = 4_096
"""Vectors that are compared at a time."""
_NAMED = re.compile(r"/(\d{1,5})/(f16|f32)/[^/]*$")


@dataclass(frozen=True, slots=True, kw_only=True)
class CorpusStatistics:
    """Statistics over all entries of a namespace, used when only some of them are ranked."""

    #: Number of entries; 0 means the number of ranked ones.
    total: int = 0
    #: Number of entries that contain a term, by term.
    having: Mapping[int, int] = field(default_factory=dict[int, int])


def rank_hits(
    query: Search,
    rows: Sequence[Sequence[object]],
    vectors: Iterable[Sequence[object]] = (),
    known: CorpusStatistics | None = None,
) -> list[Hit]:
    """Rank rows of (context, version, kind, nonce, content); vectors are (context, version, bytes)."""
    ids: dict[tuple[str, int], str] = {}
    contents: list[str] = []
    for context, version, kind, nonce, content in rows:
        location = (str(context), int(str(version)))
        ids[location] = entry_id(Kind(str(kind)), location[0], location[1], str(nonce))
        contents.append(str(content))
    scores = dict.fromkeys(ids, 0.0)
    if query.terms:
        found = score_bm25(" ".join(query.terms), contents, known or CorpusStatistics())
        for location, score in zip(ids, found, strict=True):
            scores[location] = score
    for location, score in score_cosines(query, vectors):
        if location in scores:
            scores[location] = max(scores[location], score)
    best = [
        Hit(context=location[0], id=ids[location], score=score)
        for location, score in scores.items()
        if score > 0
    ]
    return sorted(best, key=lambda hit: (-hit.score, hit.id))[: query.limit]


def score_bm25(query: str, documents: Sequence[str], known: CorpusStatistics) -> list[float]:
    """Return the relevance of each document in [0, 1): BM25 over the most a text could score for this query."""
    counts = [Counter(searchable_terms(text)) for text in documents]
    lengths = [sum(count.values()) for count in counts]
    average = (sum(lengths) / len(lengths) if lengths else 0) or 1.0
    total = max(known.total, len(documents))
    weights: dict[int, float] = {}
    for term in dict.fromkeys(searchable_terms(query)):
        having = max(sum(term in count for count in counts), min(known.having.get(term, 0), total))
        if having:
            weights[term] = compute_idf(total, having)
    best = sum(weights.values()) * (_K1 + 1)
    if not best:
        return [0.0] * len(documents)
    return [
        sum(
            weight * count[term] * (_K1 + 1) / (count[term] + _K1 * (1 - _B + _B * length / average))
            for term, weight in weights.items()
            if term in count
        )
        / best
        for count, length in zip(counts, lengths, strict=True)
    ]


# ── vectors ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def is_named(space: str, dimension: int) -> bool:
    """Return whether the name of a space (model/dimension/number type/recipe) states this dimension."""
    match = _NAMED.search(space)
    return match is not None and int(match[1]) == dimension


def scale_vector(vector: Sequence[float]) -> list[float] | None:
    """Return a vector scaled to at most 1; None for one that points nowhere."""
    biggest = max(map(abs, vector), default=0.0)
    if not biggest or not isfinite(biggest) or not all(map(isfinite, vector)):
        return None
    return [value / biggest if abs(value) > biggest * 1e-8 else 0.0 for value in vector]


def select_nearest(query: Search, vectors: Iterable[Sequence[object]], limit: int) -> set[tuple[str, int]]:
    """Return the places whose best vector is nearest."""
    best: dict[tuple[str, int], float] = {}
    for location, score in score_cosines(query, vectors):
        best[location] = max(best.get(location, 0.0), score)
    return set(heapq.nlargest(limit, best, key=lambda location: best[location]))


def score_cosines(
    query: Search, vectors: Iterable[Sequence[object]]
) -> Iterator[tuple[tuple[str, int], float]]:
    """Compare a vector with packed little-endian ones of (context, version, bytes); other lengths are left out.

    Their numbers have 16 or 32 bits: what the name of the space says, else what fits the length. Each score is computed
    by itself, in 64 bits, so it does not depend on what else is score_block.
    """
    if query.vector is None or query.space is None:
        return
    norm = sqrt(sum(value * value for value in query.vector))
    if not norm:
        return
    import numpy as np  # needed only with vectors

    match = _NAMED.search(query.space)
    kinds = {np.dtype(kind).itemsize * len(query.vector): kind for kind in ("<f2", "<f4")}
    if match is not None:
        kinds = {size: kind for size, kind in kinds.items() if (kind == "<f2") == (match[2] == "f16")}
    query_vector = np.array(query.vector, np.float64)
    locations: list[tuple[str, int]] = []
    held: list[Any] = []

    def score_block() -> Iterator[tuple[tuple[str, int], float]]:
        with np.errstate(all="ignore"):  # NaN matches nothing
            block = np.array(held, np.float64)
            norms = np.sqrt((block * block).sum(axis=1)) * norm
            scores = (block * query_vector).sum(axis=1) / np.where(norms > 0, norms, 1.0)
        yield from zip(locations, scores.tolist(), strict=True)
        locations.clear()
        held.clear()

    for context, version, data in vectors:
        if isinstance(data, bytes) and len(data) in kinds:
            locations.append((str(context), int(str(version))))
            held.append(np.frombuffer(data, kinds[len(data)]))
            if len(held) == _BLOCK:
                yield from score_block()
    if held:
        yield from score_block()
