"""Certainty: the probability that a log holds an answer to a query, from how well its best messages match.

A logistic curve combines three figures:

- Reach: the share of the query, weighted by the rarity of its words, that the five best messages and their neighbours
  hold on average; names of speakers do not count.
- Lead: how much more of the query one message of the speaker named in it holds than any message of the others.
- Rise: how far the best message rises above the log's own mean by meaning; left out if nothing was compared by meaning.

The coefficients of the curve are fitted by `benchmarks/certainty.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp

import numpy as np

from acms.recall.corpus import Corpus
from acms.recall.fact_candidates import FactIndex
from acms.recall.index import Floats, Ints
from acms.recall.ranking import Ranking
from acms.recall.scoring import NATS_PER_DEVIATION
from acms.recall.topic import EXAMINED_MESSAGES, EXCHANGE_DISTANCE
from acms.results import Certainty

BY_WORDS = (-1.9, 2.8, 3.6)
"""For words alone: the intercept of the curve, and the slopes of reach and lead."""
BY_BOTH = (-2.3, 2.8, 3.6, 0.6)
"""For words and meaning: the same, and the slope of rise."""


def estimate_confidence(
    corpus: Corpus, ranking: Ranking, fact_indexes: Sequence[FactIndex] = ()
) -> Certainty:
    """Return the certainty that a log, or the facts searched with it, hold an answer to a query.

    If the last entry is the query itself, it does not count.
    """
    end = len(corpus) if ranking.query_position < 0 else ranking.query_position
    best = ranking.positions[ranking.positions < end][:EXAMINED_MESSAGES]
    weights = _weigh_words(ranking)
    reach = max((facts.measure_coverage(weights) for facts in fact_indexes), default=0.0)
    lead = 0.0
    if len(best):
        is_answer = ranking.scores.without_marks[best] >= ranking.cutoff
        is_answer[0] = True  # in a short log only the best one is an answer, whatever its score
        answers = best[is_answer][:5]
        shares = _share_held(
            ranking, weights, answers - EXCHANGE_DISTANCE, answers + EXCHANGE_DISTANCE + 1, end
        )
        reach = max(reach, float(shares.mean()))
        own_shares = _share_held(ranking, weights, best, best + 1, end)
        lead = _measure_speaker_margin(corpus, ranking, best, own_shares)
    meaning = ranking.scores.meaning_own
    rise = 0.0
    if meaning is None or ranking.coverage < 0.5:  # too few messages were compared by meaning
        value = _apply_logistic_curve(BY_WORDS, (reach, lead))
    else:
        rises = [
            *np.clip(meaning[best] / NATS_PER_DEVIATION, 0, 1),
            *(facts.meaning for facts in fact_indexes),
        ]
        rise = float(max(rises, default=0.0))
        value = _apply_logistic_curve(BY_BOTH, (reach, lead, rise))
    has_evidence = reach > 0 or rise > 0
    return Certainty(value if has_evidence else 0.0, reach, lead, rise)


def _weigh_words(ranking: Ranking) -> list[float]:
    """Return the weight of each word of a query, by rarity; their sum is 1.

    The name of a speaker has weight 0, unless all words are such names.
    """
    words = ranking.query.words
    only_names = all(word.is_name for word in words)
    weights: list[float] = []
    for word, rarity in zip(words, ranking.scores.rarities, strict=True):
        counts = only_names or not word.is_name
        weights.append(rarity if counts else 0.0)
    total = sum(weights) or 1.0
    return [weight / total for weight in weights]


def _share_held(ranking: Ranking, weights: Sequence[float], starts: Ints, ends: Ints, end: int) -> Floats:
    """Return the share of the query that each run of messages holds; a run is from `starts` to before `ends`.

    Runs are cut at the start of the log and at the position `end`.
    """
    starts, ends = np.maximum(starts, 0), np.minimum(ends, end)
    shares = np.zeros(len(starts), np.float32)
    for weight, holders in zip(weights, ranking.scores.holders, strict=True):
        is_held = holders.searchsorted(starts) < holders.searchsorted(ends)
        shares += np.float32(weight) * is_held
    return shares


def _measure_speaker_margin(corpus: Corpus, ranking: Ranking, positions: Ints, shares: Floats) -> float:
    """Return how much more of the query the best message of the named speakers holds than the best of the others.

    0 if the query names no speaker or all of them. `shares` are those of the messages at `positions`.
    """
    named_speakers = ranking.query.speakers
    if not named_speakers or len(named_speakers) == len(corpus.speakers):
        return 0.0
    codes, labels = corpus.labels
    is_named = np.array([label.actor in named_speakers for label in labels], bool)[codes[positions]]
    return float(shares[is_named].max(initial=0.0) - shares[~is_named].max(initial=0.0))


def _apply_logistic_curve(coefficients: Sequence[float], figures: Sequence[float]) -> float:
    """Return the value of a logistic curve; the first coefficient is its intercept."""
    intercept, *slopes = coefficients
    exponent = -intercept - sum(slope * figure for slope, figure in zip(slopes, figures, strict=True))
    return 1 / (1 + exp(exponent))
