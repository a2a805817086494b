"""Certainty: how sure it is that a log holds what answers a query, from how well its best entries match.

Three things are measured, all absolute. Reach: the share of what the query asks for, by how rare its terms are, that
the five best entries and their neighbours hold, on average; the names of speakers ask for nothing. Lead: how much more
of it the speaker whom the query names has said in one message than anybody else. Rise: how well the best entry answers
by meaning. A logistic curve makes one number of them; where nothing was compared by meaning it has two terms. The
coefficients are fitted by `benchmarks/certainty.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp

import numpy as np
from numpy.typing import NDArray

from acms.recall.corpus import NEAR, Field
from acms.recall.fact_candidates import Known
from acms.recall.index import Floats, Ints
from acms.recall.rank import Question, Ranking
from acms.results import Certainty
from acms.text.tokenizer import rarity, terms, words

BEST = 5
"""Best entries whose neighbourhoods are looked at."""
LOOKED_AT = 64
"""Best entries of which the one is looked for that a named speaker said."""
BY_WORDS = (-1.9, 2.8, 3.6)
"""Of words alone: what the curve starts from, and what reach and lead add."""
BY_BOTH = (-2.3, 2.8, 3.6, 0.6)
"""Of words and meaning: the same, and what rise adds."""
COMPARED = 0.5
"""Share of the entries that must have vectors for meaning to count."""


def certainty(
    field: Field,
    ranking: Ranking,
    asked: Question,
    known: Sequence[Known] = (),
    *,
    asks: int = -1,
) -> Certainty:
    """Return how sure it is that a log, or a fact known beside it, holds what answers a query.

    `asks` is the place of the query itself when it is the last entry.
    """
    end = asks if asks >= 0 else len(field)
    best: Ints = ranking.places[:LOOKED_AT]
    best = best[best < end]
    weights = _weights(field, ranking, asked.terms)
    total = float(weights.sum()) or 1.0
    reach = lead = rise = 0.0
    if len(best):
        held = [ranking.held[number] for number in asked.terms]
        near = weights @ _held(
            held, np.maximum(best[:BEST] - NEAR, 0), np.minimum(best[:BEST] + NEAR + 1, end)
        )
        reach = float(near.mean()) / total
        lead = _lead(field, asked.terms, weights @ _held(held, best, best + 1), best) / total
    for one in known:
        if len(one.field):
            places = np.arange(len(one.field))
            own = [one.field.postings(number)[0] for number in asked.terms]
            reach = max(reach, float((weights @ _held(own, places, places + 1)).max()) / total)
    if asked.vector is None or asked.space is None or ranking.coverage < COMPARED:
        value = _curve(BY_WORDS, (reach, lead))
    else:
        rise = max(float(ranking.meaning(best).max(initial=0.0)), *(one.meaning for one in known), 0.0)
        value = _curve(BY_BOTH, (reach, lead, rise))
    if reach <= 0 and rise <= 0:
        value = 0.0
    return Certainty(value, reach, lead, rise)


def _curve(coefficients: Sequence[float], measured: Sequence[float]) -> float:
    start, *slopes = coefficients
    return 1 / (1 + exp(-start - sum(slope * one for slope, one in zip(slopes, measured, strict=True))))


def _weights(field: Field, ranking: Ranking, query: Sequence[int]) -> Floats:
    """Return what each term of a query asks for: rare ones more; the name of a speaker nothing, if there is more."""
    size = len(field)
    weights = np.array([rarity(size, ranking.often.get(number, 0)) for number in query], np.float32)
    names = {number for actor in field.speakers for number in terms(words(actor))}
    named = np.array([number in names for number in query], bool)
    return weights if named.all() else np.where(named, np.float32(0), weights)


def _held(postings: Sequence[Ints], first: Ints, end: Ints) -> NDArray[np.bool_]:
    """Return which terms occur in which stretches of entries, given their ascending places: terms by stretches."""
    return np.array([places.searchsorted(first) < places.searchsorted(end) for places in postings], bool)


def _lead(field: Field, query: Sequence[int], shares: Floats, places: Ints) -> float:
    """Return how much more the best message of the speakers named holds than the best of all others; 0 without any."""
    codes, labels = field.labels
    actors = field.speakers
    named = {actor for actor in actors if not set(query).isdisjoint(terms(words(actor)))}
    if not named or len(named) == len(actors):
        return 0.0
    own = np.array([label.actor in named for label in labels], bool)[codes[places]]
    return float(shares[own].max(initial=0.0) - shares[~own].max(initial=0.0))
