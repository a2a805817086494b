"""Certainty: how sure it is that a log holds an answer to a query, from how well its best messages match.

Three figures, all independent of the rest of the log. Reach: the share of the query, weighted by the rarity of its
words, that the five best messages and their neighbours hold on average; names of speakers do not count. Lead: how much
more of it the speaker whom the query names has said in one message than anybody else. Rise: how far the best message
rises above the log's own mean by meaning. A logistic curve combines them into one number; where nothing was compared by
meaning it has two terms. Its coefficients are fitted by `benchmarks/certainty.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp

import numpy as np

from acms.recall.corpus import Corpus
from acms.recall.fact_candidates import FactIndex
from acms.recall.index import Floats, Ints
from acms.recall.ranking import Ranking
from acms.recall.scoring import SIGMA
from acms.results import Certainty

BEST = 5
"""Best entries whose neighbourhoods are looked at."""
NEAR = 2
"""Entries before and after one that may hold a missing part of its answer."""
LOOKED_AT = 64
"""Best entries among which one by a named speaker is looked for."""
BY_WORDS = (-1.9, 2.8, 3.6)
"""For words alone: the start of the curve, and the contributions of reach and lead."""
BY_BOTH = (-2.3, 2.8, 3.6, 0.6)
"""For words and meaning: the same, and the contribution of rise."""
COMPARED = 0.5
"""Share of the entries that must have vectors for meaning to count."""


def estimate_confidence(
    corpus: Corpus, ranking: Ranking, known: Sequence[FactIndex] = (), *, asks: int = -1
) -> Certainty:
    """Return how sure it is that a log, or a fact known beside it, holds an answer to a query.

    `asks` is the position of the query itself when it is the last entry.
    """
    end = asks if asks >= 0 else len(corpus)
    best = ranking.positions[ranking.positions < end][:LOOKED_AT]
    weights = _weigh_words(ranking)
    reach, lead = max((one.measure_coverage(weights) for one in known), default=0.0), 0.0
    if len(best):
        # in a short log the fifth best is no answer at all: the best one is, whatever its score
        answers = ranking.scores.plain[best] >= ranking.least
        answers[0] = True
        positions = best[answers][:BEST]
        around = _share_held(ranking, weights, positions - NEAR, positions + NEAR + 1, end)
        reach = max(reach, float(around.mean()))
        lead = _measure_speaker_margin(
            corpus, ranking, best, _share_held(ranking, weights, best, best + 1, end)
        )
    rise = 0.0
    meaning = ranking.scores.meaning_own
    if meaning is None or ranking.coverage < COMPARED:
        value = _apply_logistic_curve(BY_WORDS, (reach, lead))
    else:
        rises = [*(np.clip(meaning[best] / SIGMA, 0, 1)), *(one.meaning for one in known)]
        rise = float(max(rises, default=0.0))
        value = _apply_logistic_curve(BY_BOTH, (reach, lead, rise))
    return Certainty(value if reach > 0 or rise > 0 else 0.0, reach, lead, rise)


def _weigh_words(ranking: Ranking) -> list[float]:
    """Return the share of each word in a query; 0 for the name of a speaker, unless there is nothing else."""
    words, rarities = ranking.query.words, ranking.scores.rarities
    only_names = all(word.is_name for word in words)
    found = [
        rare if only_names or not word.is_name else 0.0 for word, rare in zip(words, rarities, strict=True)
    ]
    total = sum(found) or 1.0
    return [one / total for one in found]


def _share_held(ranking: Ranking, weights: Sequence[float], first: Ints, last: Ints, end: int) -> Floats:
    """Return the share of the query that runs of messages hold, from the first to before the last position."""
    first, last = np.maximum(first, 0), np.minimum(last, end)
    found = np.zeros(len(first), np.float32)
    for weight, holders in zip(weights, ranking.scores.holders, strict=True):
        found += np.float32(weight) * (holders.searchsorted(first) < holders.searchsorted(last))
    return found


def _measure_speaker_margin(corpus: Corpus, ranking: Ranking, positions: Ints, held: Floats) -> float:
    """Return how much more the best message of the speakers named holds than the best of all others; 0 without any."""
    named = ranking.query.speakers
    if not named or len(named) == len(corpus.speakers):
        return 0.0
    codes, labels = corpus.labels
    own = np.array([label.actor in named for label in labels], bool)[codes[positions]]
    return float(held[own].max(initial=0.0) - held[~own].max(initial=0.0))


def _apply_logistic_curve(coefficients: Sequence[float], measured: Sequence[float]) -> float:
    start, *slopes = coefficients
    return 1 / (1 + exp(-start - sum(slope * one for slope, one in zip(slopes, measured, strict=True))))
