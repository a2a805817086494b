"""Certainty: how sure it is that a log holds what answers a query.

Two figures, both independent of what else the log holds: the share of what the query asks for, by how rare its words
are, that the best messages and their neighbours hold; and how far the best message rises above the log's own mean by
meaning. A logistic curve makes one number of them; its coefficients are fitted by `benchmarks/certainty.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp

import numpy as np

from acms.recall.corpus import Field
from acms.recall.fact_candidates import Known
from acms.recall.ranking import Ranking
from acms.results import Certainty

BEST = 5
"""Best entries whose neighbourhoods are looked at."""
NEAR = 2
"""Entries before and after one that may hold what it lacks of an answer."""
BY_WORDS = (-1.9, 2.8)
"""Of words alone: what the curve starts from, and what reach adds."""
BY_BOTH = (-2.3, 2.8, 0.6)
"""Of words and meaning: the same, and what rise adds."""
COMPARED = 0.5
"""Share of the entries that must have vectors for meaning to count."""


def certainty(field: Field, ranking: Ranking, known: Sequence[Known] = (), *, asks: int = -1) -> Certainty:
    """Return how sure it is that a log, or a fact known beside it, holds what answers a query.

    `asks` is the place of the query itself when it is the last entry.
    """
    end = asks if asks >= 0 else len(field)
    best = ranking.places[ranking.places < end][:BEST]
    reach = max([float(one) for known_log in known for one in known_log.relevance], default=0.0)
    if len(best):
        reach = max(reach, float(_information_around(ranking, best, end).mean()))
    scores = ranking.scores
    if scores.meaning_own is None or scores.coverage < COMPARED:
        rise, value = 0.0, _curve(BY_WORDS, (reach,))
    else:
        rise = max(float(ranking.relevances[best].max(initial=0.0)), *(one.meaning for one in known), 0.0)
        value = _curve(BY_BOTH, (reach, rise))
    return Certainty(value if reach > 0 or rise > 0 else 0.0, reach, 0.0, rise)


def _information_around(ranking: Ranking, places: np.ndarray, end: int) -> np.ndarray:
    """Return the share of the query's information that some messages hold together with their neighbours."""
    scores = ranking.scores
    first, last = np.maximum(places - NEAR, 0), np.minimum(places + NEAR + 1, end)
    found = np.zeros(len(places))
    for rare, holders in zip(scores.rarities, scores.holders, strict=True):
        found += rare * (holders.searchsorted(first) < holders.searchsorted(last))
    return found / (scores.total or 1)


def _curve(coefficients: Sequence[float], measured: Sequence[float]) -> float:
    start, *slopes = coefficients
    return 1 / (1 + exp(-start - sum(slope * one for slope, one in zip(slopes, measured, strict=True))))
