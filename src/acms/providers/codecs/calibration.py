"""How far a count can be off when the provider's tokenizer is not public, learnt from what it reports.

What is counted here is called raw, what the provider says it took is called reported. The bound on a request is a
stated quantile of reported / raw over the requests seen so far (split conformal prediction: Vovk, Gammerman and Shafer,
"Algorithmic Learning in a Random World", 2005): of n reports the ceil((n + 1) q)-th smallest is not exceeded by the
next one with a probability of at least q, whatever the ratios are distributed like, as long as the next request is
like those reported.

A conversation grows, so the next request is not like the last ones in one respect: its size. Therefore requests are
compared with others of their size only, in bands a factor of eight wide (Mondrian conformal prediction, ibid.), and a
band without enough reports keeps the cautious default however much is known about smaller ones. In the lowest band
the ratio says little, since what a provider adds to every request outweighs the text: it is never taken to be below
the default.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import deque
from collections.abc import Mapping
from fractions import Fraction
from threading import Lock
from typing import NamedTuple

from acms.errors import ValidationError
from acms.model import Json

__all__ = ["Calibration"]

STARTS = (0, 512, 4_096, 32_768, 262_144)
"""Raw tokens at which a band begins."""

ADDED = 16
"""Tokens that a provider may add to any request, however small."""

KEPT = 4
"""Reports that are kept of each band, in multiples of those that the quantile needs: the newest ones."""


class _Band(NamedTuple):
    #: Tokens for each raw token, the margin included.
    factor: float
    #: The bound on the largest request of the band below.
    least: int


class Calibration:
    """An upper bound on reported tokens, learnt from reports.

    `default` bounds reported / raw until there are enough reports; then the `quantile` of the newest ones does, which
    may be lower or higher. Until then a report above the default raises it. Either is widened by `margin`.

    The quantile is that of requests like those reported. Those of one conversation resemble each other: give each kind
    of traffic (a language, code, an application) a calibration of its own, and let many conversations report to it.
    Safe to use from several threads; one count is bounded by one consistent state.
    """

    def __init__(self, default: float, *, quantile: float = 0.99, margin: float = 0.02) -> None:
        if not (math.isfinite(default) and default > 0):
            raise ValidationError("must be a ratio above 0", field="default")
        if not 0.5 <= quantile <= 0.9999:
            raise ValidationError("must lie between 0.5 and 0.9999", field="quantile")
        if not (math.isfinite(margin) and margin >= 0):
            raise ValidationError("must be 0 or a share above it", field="margin")
        self.default = default
        self.quantile = quantile
        self.margin = margin
        exact = Fraction(repr(quantile))
        #: Reports of one band from which on the quantile is known.
        self.needed = math.ceil(exact / (1 - exact))
        self._exact = exact
        self._seen = [deque[float](maxlen=KEPT * self.needed) for _ in STARTS]
        self._lock = Lock()
        self._bands = self._bounds()

    def upper(self, raw: int) -> int:
        """Return the most tokens that a request of so many raw ones is taken to have.

        Never less than the raw ones, and never less for more of them.
        """
        return _upper(self._bands, raw)

    def limit(self, budget: int) -> int:
        """Return the most raw tokens whose `upper` is within a budget.

        Raises `ValidationError` for a negative budget.
        """
        if budget < 0:
            raise ValidationError("must be 0 or more tokens", field="budget")
        bands = self._bands
        low, high = 0, 1
        while _upper(bands, high) <= budget:
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            if _upper(bands, middle) <= budget:
                low = middle
            else:
                high = middle
        return low

    def observe(self, raw: int, reported: int) -> None:
        """Learn that a request of so many raw tokens took so many; `ValidationError` unless both are above 0."""
        if raw < 1:
            raise ValidationError("must be above 0", field="raw")
        if reported < 1:
            raise ValidationError("must be above 0", field="reported")
        band = bisect_right(STARTS, raw) - 1
        # What is added to every request is not counted twice where it weighs; elsewhere it is, to be on the safe side.
        share = Fraction(reported - ADDED if band == 0 else reported, raw)
        with self._lock:
            self._seen[band].append(max(math.ceil(share * 10_000), 0) / 10_000)
            self._bands = self._bounds()

    def state(self) -> dict[str, Json]:
        """Return what was learnt, as JSON: ratios only, no text."""
        with self._lock:
            return {"version": 1, "starts": list(STARTS), "ratios": [list(seen) for seen in self._seen]}

    def restore(self, state: Mapping[str, Json]) -> None:
        """Replace what was learnt by what `state` returned, here or elsewhere; `ValidationError` for anything else."""
        ratios = _ratios(state.get("ratios"))
        if state.get("version") != 1 or state.get("starts") != list(STARTS) or ratios is None:
            raise ValidationError("is not a calibration of this release", field="state")
        with self._lock:
            for seen, known in zip(self._seen, ratios, strict=True):
                seen.clear()
                seen.extend(known)
            self._bands = self._bounds()

    def _bounds(self) -> tuple[_Band, ...]:
        bands: list[_Band] = []
        for index, start in enumerate(STARTS):
            least = _upper(tuple(bands), start - 1) if bands else 0
            bands.append(_Band(max(self._ratio(index) * (1 + self.margin), 1), least))
        return tuple(bands)

    def _ratio(self, band: int) -> float:
        seen = self._seen[band]
        if band == 0 or len(seen) < self.needed:
            return max(self.default, *seen) if seen else self.default
        return sorted(seen)[math.ceil((len(seen) + 1) * self._exact) - 1]


def _upper(bands: tuple[_Band, ...], raw: int) -> int:
    if raw <= 0:
        return 0
    band = bands[min(bisect_right(STARTS, raw), len(bands)) - 1]
    return max(math.ceil(raw * band.factor) + ADDED, band.least)


def _ratios(value: Json) -> list[list[float]] | None:
    if not isinstance(value, list) or len(value) != len(STARTS):
        return None
    for seen in value:
        if not isinstance(seen, list):
            return None
        if not all(isinstance(one, int | float) and math.isfinite(one) and one >= 0 for one in seen):
            return None
    return value
