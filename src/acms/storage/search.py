"""Search across contexts, the same for every store that scans: BM25 over the words, or the best cosine."""

from __future__ import annotations

import heapq
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite, sqrt
from typing import Any, cast

from acms.log.encoding import entry_id
from acms.model import Hit, Kind, Search
from acms.text.tokenizer import compute_idf, searchable_terms

_K1 = 1.2
_B = 0.9
_BLOCK = 4_096
"""Vectors that are compared at a time."""
_SPACE_NAME = re.compile(r"/(\d{1,5})/(f16|f32)/[^/]*$")


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
    statistics: CorpusStatistics | None = None,
) -> list[Hit]:
    """Rank entries by the better of their word score and their vector score, best first.

    Rows are (context, version, kind, nonce, content), vectors (context, version, bytes). `statistics` describe the
    whole corpus if the rows are only a part of it.
    """
    ids: dict[tuple[str, int], str] = {}
    contents: list[str] = []
    for context, version, kind, nonce, content in rows:
        location = (str(context), int(str(version)))
        ids[location] = entry_id(Kind(str(kind)), location[0], location[1], str(nonce))
        contents.append(str(content))
    scores = dict.fromkeys(ids, 0.0)
    if query.terms:
        word_scores = score_bm25(" ".join(query.terms), contents, statistics or CorpusStatistics())
        for location, score in zip(ids, word_scores, strict=True):
            scores[location] = score
    for location, score in score_cosines(query, vectors):
        if location in scores:
            scores[location] = max(scores[location], score)
    hits = [
        Hit(context=location[0], id=ids[location], score=score)
        for location, score in scores.items()
        if score > 0
    ]
    return sorted(hits, key=lambda hit: (-hit.score, hit.id))[: query.limit]


def score_bm25(query: str, documents: Sequence[str], statistics: CorpusStatistics) -> list[float]:
    """Return the relevance of each document in [0, 1): BM25 over the most a text could score for this query."""
    counts = [Counter(searchable_terms(text)) for text in documents]
    lengths = [count.total() for count in counts]
    average_length = (sum(lengths) / len(lengths) if lengths else 0) or 1.0
    total = max(statistics.total, len(documents))
    # The documents may be only a selection, in which words of the query are frequent: the database counts in all.
    weights: dict[int, float] = {}
    for term in dict.fromkeys(searchable_terms(query)):
        entries_with_term = sum(term in count for count in counts)
        entries_with_term = max(entries_with_term, min(statistics.having.get(term, 0), total))
        if entries_with_term:
            weights[term] = compute_idf(total, entries_with_term)
    # The score that a text of only query words, repeated without end, would approach.
    highest_score = sum(weights.values()) * (_K1 + 1)
    scores: list[float] = []
    for count, length in zip(counts, lengths, strict=True):
        saturation = _K1 * (1 - _B + _B * length / average_length)
        score = 0.0
        for term, weight in weights.items():
            if term in count:
                score += weight * count[term] * (_K1 + 1) / (count[term] + saturation)
        scores.append(score / highest_score if highest_score else 0.0)
    return scores


# ── vectors ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def is_named(space: str, dimension: int) -> bool:
    """Return whether the name of a space (model/dimension/number type/recipe) states this dimension."""
    match = _SPACE_NAME.search(space)
    return match is not None and int(match[1]) == dimension


def scale_vector(vector: Sequence[float]) -> list[float] | None:
    """Return a vector scaled to at most 1; None for one that points nowhere."""
    biggest = max(map(abs, vector), default=0.0)
    if not biggest or not isfinite(biggest) or not all(map(isfinite, vector)):
        return None
    return [value / biggest if abs(value) > biggest * 1e-8 else 0.0 for value in vector]


def select_nearest(query: Search, vectors: Iterable[Sequence[object]], limit: int) -> set[tuple[str, int]]:
    """Return the locations whose best vector is nearest."""
    best: dict[tuple[str, int], float] = {}
    for location, score in score_cosines(query, vectors):
        best[location] = max(best.get(location, 0.0), score)
    return set(heapq.nlargest(limit, best, key=lambda location: best[location]))


def score_cosines(
    query: Search, vectors: Iterable[Sequence[object]]
) -> Iterator[tuple[tuple[str, int], float]]:
    """Compare a vector with packed little-endian ones of (context, version, bytes); other lengths are left out.

    Their numbers have 16 or 32 bits: as the name of the space states, else as fits the length. Each score is computed
    by itself, in 64 bits, so it does not depend on the other vectors.
    """
    if query.vector is None or query.space is None:
        return
    norm = sqrt(sum(value * value for value in query.vector))
    if not norm:
        return
    import numpy as np  # needed only with vectors

    # By the number of bytes: which float type a vector of this length has.
    types = {2 * len(query.vector): "<f2", 4 * len(query.vector): "<f4"}
    match = _SPACE_NAME.search(query.space)
    if match is not None:
        stated = "<f2" if match[2] == "f16" else "<f4"
        types = {size: type for size, type in types.items() if type == stated}
    query_vector = np.array(query.vector, np.float64)
    locations: list[tuple[str, int]] = []
    values: list[Any] = []

    def score_block() -> Iterator[tuple[tuple[str, int], float]]:
        with np.errstate(all="ignore"):  # NaN matches nothing
            block = np.array(values, np.float64)
            norms = np.sqrt((block * block).sum(axis=1)) * norm
            scores = (block * query_vector).sum(axis=1) / np.where(norms > 0, norms, 1.0)
        yield from zip(locations, scores.tolist(), strict=True)
        locations.clear()
        values.clear()

    for context, version, data in vectors:
        type = types.get(len(data)) if isinstance(data, bytes) else None
        if type is None:
            continue
        locations.append((str(context), int(str(version))))
        values.append(np.frombuffer(cast(bytes, data), type))
        if len(values) == _BLOCK:
            yield from score_block()
    if values:
        yield from score_block()
