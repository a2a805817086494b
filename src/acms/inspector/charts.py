"""Coordinates of the charts; the templates draw them as SVG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

__all__ = ["PARTS", "Bar", "Segment", "build_cost_bars", "build_waterfall"]

PARTS = ("system", "pins", "history", "recalled", "written", "tools", "free")
"""Parts of a request, in the order in which they are drawn."""


class Segment(NamedTuple):
    """One part of a stacked bar."""

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
    render: Mapping[str, Any]


def build_waterfall(use: Mapping[str, int], width: float) -> list[Segment]:
    """Return the parts of a request in the order of `PARTS`, by their tokens; the last of `PARTS` are the free ones."""
    tokens_by_part = {name: max(0, use.get(name, 0)) for name in PARTS}
    total = sum(tokens_by_part.values()) or 1
    segments: list[Segment] = []
    x = 0.0
    for name, tokens in tokens_by_part.items():
        if not tokens:
            continue
        segment_width = width * tokens / total
        percent = round(100 * tokens / total, 1)
        segments.append(Segment(name, round(x, 2), round(segment_width, 2), tokens, percent))
        x += segment_width
    return segments


def build_cost_bars(renders: Sequence[Mapping[str, Any]], width: float, height: float) -> list[Bar]:
    """Return a bar for each render, oldest first: cached tokens, paid ones, and those that a cache break cost."""
    largest = max((render["tokens"] for render in renders), default=1) or 1
    scale = height / largest
    step = width / max(1, len(renders))
    gap = min(2.0, step / 5)
    bar_width = max(0.5, min(step - gap, 40))
    bars: list[Bar] = []
    for index, render in enumerate(reversed(renders)):
        cached = render["cache"]["predictedTokens"] if render["cache"] else 0
        lost = min(render["lost"], render["tokens"] - cached)
        cached_height = cached * scale
        paid_height = (render["tokens"] - cached - lost) * scale
        lost_height = lost * scale
        cached_y = height - cached_height
        paid_y = cached_y - paid_height
        lost_y = paid_y - lost_height
        bars.append(
            Bar(
                x=round(index * step + gap / 2, 2),
                width=round(bar_width, 2),
                paid_y=round(paid_y, 2),
                paid_height=round(paid_height, 2),
                cached_y=round(cached_y, 2),
                cached_height=round(cached_height, 2),
                lost_y=round(lost_y, 2),
                lost_height=round(lost_height, 2),
                render=render,
            )
        )
    return bars
