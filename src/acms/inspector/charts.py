"""Charts as numbers: where the rectangles of an SVG stand. The templates draw them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

__all__ = ["PARTS", "Bar", "Segment", "build_cost_bars", "build_waterfall"]

PARTS = ("system", "pins", "history", "recalled", "written", "tools", "free")
"""Parts of a request, in the order in which they are drawn."""


class Segment(NamedTuple):
    """A stretch of a bar."""

    name: str
    x: float
    width: float
    tokens: int
    percent: float


class Bar(NamedTuple):
    """A render in the chart of costs; heights grow downwards from `y`."""

    x: float
    width: float
    paid_y: float
    paid_height: float
    cached_y: float
    cached_height: float
    lost_y: float
    lost_height: float
    of: Mapping[str, Any]


def build_waterfall(use: Mapping[str, int], width: float) -> list[Segment]:
    """Return what the tokens of a request are used for, side by side; what is left of the budget comes last."""
    whole = sum(max(0, use.get(name, 0)) for name in PARTS) or 1
    found: list[Segment] = []
    x = 0.0
    for name in PARTS:
        tokens = max(0, use.get(name, 0))
        if tokens:
            wide = width * tokens / whole
            found.append(Segment(name, round(x, 2), round(wide, 2), tokens, round(100 * tokens / whole, 1)))
            x += wide
    return found


def build_cost_bars(renders: Sequence[Mapping[str, Any]], width: float, height: float) -> list[Bar]:
    """Return a bar for each render, oldest first: what came from the cache, what was paid, what a break cost."""
    ordered = list(reversed(renders))
    most = max((one["tokens"] for one in ordered), default=1) or 1
    step = width / max(1, len(ordered))
    found: list[Bar] = []
    for place, one in enumerate(ordered):
        cached = one["cache"]["predictedTokens"] if one["cache"] else 0
        scale = height / most
        lost = min(one["lost"], one["tokens"] - cached)
        tall = [cached * scale, (one["tokens"] - cached - lost) * scale, lost * scale]
        tops = [height - tall[0], height - tall[0] - tall[1], height - sum(tall)]
        (cached_y, paid_y, lost_y) = (round(y, 2) for y in tops)
        (cached_h, paid_h, lost_h) = (round(h, 2) for h in tall)
        gap = min(2.0, step / 5)
        found.append(
            Bar(
                x=round(place * step + gap / 2, 2),
                width=round(max(0.5, min(step - gap, 40)), 2),
                paid_y=paid_y,
                paid_height=paid_h,
                cached_y=cached_y,
                cached_height=cached_h,
                lost_y=lost_y,
                lost_height=lost_h,
                of=one,
            )
        )
    return found
