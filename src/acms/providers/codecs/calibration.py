"""Bound the error of token counts for a tokenizer that is not public, learnt from the counts its provider reports.

A count made here is called raw, a count from the provider is called reported. The bound on a request is a stated
quantile of reported / raw over the requests seen so far (split conformal prediction: Vovk, Gammerman and Shafer,
"Algorithmic Learning in a Random World", 2005): of n reports the ceil((n + 1) q)-th smallest is not exceeded by the
next one with a probability of at least q, for any distribution of the ratios, as long as the next request is like those
reported.

A conversation grows, so the next request is not like the last ones in one respect: its size. Therefore requests are
compared with others of their size only, in bands a factor of eight wide (Mondrian conformal prediction, ibid.), and a
band without enough reports keeps the cautious default however much is known about smaller ones. In the lowest band the
ratio says little, since the tokens that a provider adds to every request outweigh the text: it is never taken to be
below the default.

Tools have a ratio of their own, since a chat template may write them in more words than the text of a request. Least
squares over the reports of requests with tools separate the two; until they can, a surplus is attributed to tools.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Mapping
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

TOOL_REPORTS = 64
"""Reports of requests with tools that are kept: the newest ones."""

KEPT = 4
"""Reports that are kept of each band, in multiples of those that the quantile needs: the newest ones."""


class _Band(NamedTuple):
    #: Tokens for each raw token, the margin included.
    factor: float
    #: The bound on the largest request of the band below.
    min_bound: int


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
        exact_quantile = Fraction(repr(quantile))
        #: Reports of one band from which on the quantile is known.
        self.needed = math.ceil(exact_quantile / (1 - exact_quantile))
        self._exact_quantile = exact_quantile
        self._ratios_of_band = [deque[float](maxlen=KEPT * self.needed) for _ in STARTS]
        self._with_tools = deque[tuple[int, int, int]](maxlen=TOOL_REPORTS)
        #: Tokens for each raw token of tools in those, or in the restored ones until there are reports.
        self._tool_ratios: list[float] = []
        self._lock = Lock()
        self._bands = self._compute_bands()
        self._tool_factor = self._compute_tool_factor()

    def upper(self, raw: int, tools: int = 0) -> int:
        """Return an upper bound on the reported tokens of a request of `raw` tokens, of which `tools` are tools.

        It is never less than `raw`, and it never falls as `raw` grows.
        """
        return _upper_bound(self._bands, raw - tools) + math.ceil(tools * self._tool_factor)

    def limit(self, budget: int, tools: int = 0) -> int:
        """Return the most raw tokens whose upper bound is within a budget; `tools` of them are tools.

        Raises `ValidationError` for a negative budget.
        """
        if budget < 0:
            raise ValidationError("must be 0 or more tokens", field="budget")
        bands = self._bands
        for_text = budget - math.ceil(tools * self._tool_factor)
        if for_text < 0:  # not even the tools fit: the result is below `tools`, so no text fits either
            return max(0, tools + for_text)
        return tools + _text_limit(bands, for_text)

    def knows(self, raw: int) -> bool:
        """Return whether the bound on a request of so many raw tokens comes from reports alone."""
        band = bisect_right(STARTS, raw) - 1
        return band > 0 and len(self._ratios_of_band[band]) >= self.needed

    def observe(self, raw: int, reported: int, tools: int = 0) -> None:
        """Learn that the provider reported `reported` tokens for a request of `raw` tokens, `tools` of them tools.

        Raises `ValidationError` unless `raw` and `reported` are above 0.
        """
        if raw < 1:
            raise ValidationError("must be above 0", field="raw")
        if reported < 1:
            raise ValidationError("must be above 0", field="reported")
        with self._lock:
            if 0 < tools < raw:
                self._observe_with_tools(raw - tools, tools, reported)
            else:
                self._observe_text(raw, Fraction(reported))
            self._bands = self._compute_bands()
            self._tool_factor = self._compute_tool_factor()

    def _observe_text(self, text: int, reported: Fraction) -> None:
        band = bisect_right(STARTS, text) - 1
        # Tokens added to every request are subtracted only in the lowest band, where they weigh; else kept for safety.
        ratio = (reported - ADDED if band == 0 else reported) / text
        self._ratios_of_band[band].append(max(math.ceil(ratio * 10_000), 0) / 10_000)  # rounded up: a bound

    def _observe_with_tools(self, text: int, tools: int, reported: int) -> None:
        """Learn from a request with tools: split its reported tokens by the rates fitted to the requests so far."""
        self._with_tools.append((text, tools, reported))
        rates = _fit_rates(self._with_tools)
        if rates is not None:
            for_text = max(Fraction(0), reported - Fraction(rates[1]) * tools)
            self._observe_text(text, for_text)
        text_rate = self.default if rates is None else rates[0]
        tool_ratios = [(reported - text_rate * text) / tools for text, tools, reported in self._with_tools]
        self._tool_ratios = [max(0.0, math.ceil(ratio * 10_000) / 10_000) for ratio in tool_ratios]

    def state(self) -> dict[str, Json]:
        """Return the learnt ratios as JSON, without any text."""
        with self._lock:
            ratios = [list(ratios_of_band) for ratios_of_band in self._ratios_of_band]
            return {"version": 1, "starts": list(STARTS), "ratios": ratios, "tools": list(self._tool_ratios)}

    def restore(self, state: Mapping[str, Json]) -> None:
        """Replace the learnt ratios by a result of `state`, of any instance; `ValidationError` for anything else."""
        ratios = _parse_band_ratios(state.get("ratios"))
        of_tools = _parse_floats(state.get("tools", []))
        known_form = state.get("version") == 1 and state.get("starts") == list(STARTS)
        if not known_form or ratios is None or of_tools is None:
            raise ValidationError("is not a calibration of this release", field="state")
        with self._lock:
            for ratios_of_band, restored_ratios in zip(self._ratios_of_band, ratios, strict=True):
                ratios_of_band.clear()
                ratios_of_band.extend(restored_ratios)
            self._with_tools.clear()
            self._tool_ratios = list(of_tools)
            self._bands = self._compute_bands()
            self._tool_factor = self._compute_tool_factor()

    def _compute_tool_factor(self) -> float:
        """Return the tokens for each raw token of tools, the margin included."""
        return max(1, max(self._tool_ratios, default=self.default) * (1 + self.margin))

    def _compute_bands(self) -> tuple[_Band, ...]:
        """Return the ratio of each band of sizes, with the margin, and the bound of the band below at its end.

        A band with a lower ratio than the one below must not have a lower bound for a larger request.
        """
        bands: list[_Band] = []
        for index, start in enumerate(STARTS):
            min_bound = _upper_bound(tuple(bands), start - 1) if bands else 0
            bands.append(_Band(max(self._ratio(index) * (1 + self.margin), 1), min_bound))
        return tuple(bands)

    def _ratio(self, band: int) -> float:
        ratios = self._ratios_of_band[band]
        if band == 0 or len(ratios) < self.needed:  # never below the default
            return max(self.default, *ratios) if ratios else self.default
        return sorted(ratios)[math.ceil((len(ratios) + 1) * self._exact_quantile) - 1]


def _text_limit(bands: tuple[_Band, ...], budget: int) -> int:
    """Return the most raw tokens of text whose bound is within a budget."""
    low, high = 0, 1
    # Double until too large, then halve the interval.
    while _upper_bound(bands, high) <= budget:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        if _upper_bound(bands, middle) <= budget:
            low = middle
        else:
            high = middle
    return low


def _fit_rates(reports: Iterable[tuple[int, int, int]]) -> tuple[float, float] | None:
    """Return the reported tokens for each raw token of text and of tools, by least squares.

    None if the share of tools is too similar in all reports to separate the two.
    """
    text_squares = tool_squares = products = text_sum = tool_sum = 0
    for text, tools, reported in reports:
        text_squares += text * text
        tool_squares += tools * tools
        products += text * tools
        text_sum += text * reported
        tool_sum += tools * reported
    determinant = text_squares * tool_squares - products * products
    # Near 0 the two unknowns are almost proportional, and the solution would magnify the noise.
    if determinant <= 0.01 * text_squares * tool_squares:
        return None
    for_text = (text_sum * tool_squares - tool_sum * products) / determinant
    for_tools = (tool_sum * text_squares - text_sum * products) / determinant
    return max(0.0, for_text), max(0.0, for_tools)


def _upper_bound(bands: tuple[_Band, ...], raw: int) -> int:
    if raw <= 0:
        return 0
    band = bands[min(bisect_right(STARTS, raw), len(bands)) - 1]
    return max(math.ceil(raw * band.factor) + ADDED, band.min_bound)


def _parse_band_ratios(value: Json) -> list[list[float]] | None:
    if not isinstance(value, list) or len(value) != len(STARTS):
        return None
    return value if all(_parse_floats(ratios) is not None for ratios in value) else None


def _parse_floats(value: Json) -> list[float] | None:
    if not isinstance(value, list):
        return None
    are_valid = all(isinstance(item, int | float) and math.isfinite(item) and item >= 0 for item in value)
    return value if are_valid else None
