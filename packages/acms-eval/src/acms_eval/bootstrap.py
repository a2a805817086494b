"""How far a mean may be off: the percentile bootstrap over conversations and the questions in them.

Questions about one conversation stand and fall together, so a resample draws conversations first, and then questions
within each that was drawn, both with replacement. A mean of a resample is over its questions. With few conversations
the interval is rather too narrow than too wide: nothing can be drawn that was not seen.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

from acms.errors import ValidationError

__all__ = ["Interval", "difference_interval", "draw_weights", "mean_interval"]

LEVEL = 0.95
ROUNDS = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A mean and the percentile interval around it."""

    mean: float
    low: float
    high: float
    #: Over how many questions.
    count: int


def draw_weights(clusters: Sequence[Hashable], *, seed: int = 0, rounds: int = ROUNDS) -> NDArray[np.float64]:
    """Return how often each question is drawn in each resample: one row a resample, rows sum to 1.

    `clusters` names the conversation of each question. The same clusters, seed and rounds give the same resamples.
    """
    if not clusters:
        raise ValidationError("there is nothing to draw from", field="clusters")
    return _draw_weights(tuple(clusters), seed, rounds)


@lru_cache(maxsize=4)  # all figures of the same questions are resampled one after the other
def _draw_weights(clusters: tuple[Hashable, ...], seed: int, rounds: int) -> NDArray[np.float64]:
    random = np.random.default_rng(seed)
    members: dict[Hashable, list[int]] = {}
    for index, cluster in enumerate(clusters):
        members.setdefault(cluster, []).append(index)
    drawn = random.multinomial(len(members), np.full(len(members), 1 / len(members)), size=rounds)
    drawn_shares = np.zeros((rounds, len(clusters)))
    for draw_counts, places in zip(drawn.T, members.values(), strict=True):
        share = np.full(len(places), 1 / len(places))
        drawn_shares[:, places] = random.multinomial(draw_counts * len(places), share)
    drawn_shares /= drawn_shares.sum(axis=1, keepdims=True)
    drawn_shares.flags.writeable = False  # the cache hands the same array to every caller
    return drawn_shares


def mean_interval(
    values: ArrayLike, clusters: Sequence[Hashable], *, seed: int = 0, rounds: int = ROUNDS
) -> Interval:
    """Return the mean of a figure over questions and its 95 % interval.

    For the margin between two systems give the differences, question by question: a question that is
    hard for both systems then adds nothing.
    """
    resamples = draw_weights(clusters, seed=seed, rounds=rounds)
    figures = np.asarray(values, dtype=np.float64)
    if figures.shape != (len(clusters),):
        raise ValidationError(f"needs {len(clusters)} numbers, one a question", field="values")
    return _percentile_interval(float(figures.mean()), resamples @ figures, len(figures))


def difference_interval(
    first: tuple[ArrayLike, Sequence[Hashable]],
    second: tuple[ArrayLike, Sequence[Hashable]],
    *,
    seed: int = 0,
    rounds: int = ROUNDS,
) -> Interval:
    """Return the mean of `first` minus the mean of `second`, two independent sets of questions, with its 95 % interval.

    Each is (values, clusters), and is resampled by itself. `count` is the smaller number of questions.
    """
    first_values, second_values = (np.asarray(values, dtype=np.float64) for values, _ in (first, second))
    first_means = draw_weights(first[1], seed=seed, rounds=rounds) @ first_values
    second_means = draw_weights(second[1], seed=seed + 1, rounds=rounds) @ second_values
    return _percentile_interval(
        float(first_values.mean() - second_values.mean()),
        first_means - second_means,
        min(len(first_values), len(second_values)),
    )


def _percentile_interval(mean: float, resample_means: NDArray[np.float64], count: int) -> Interval:
    tail = 50 * (1 - LEVEL)
    low, high = np.percentile(resample_means, [tail, 100 - tail])
    return Interval(mean=mean, low=float(low), high=float(high), count=count)
