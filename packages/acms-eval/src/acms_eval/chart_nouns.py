"""The nouns of a chart: axes, series and points; the format of figures, and the chart as a table."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import Literal

__all__ = [
    "Axis",
    "Chart",
    "Point",
    "Series",
    "Unit",
    "axis_position",
    "format_figure",
    "format_with_interval",
    "tabulate_chart",
]

Unit = Literal["share", "ms", "count", "number"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """An axis of a chart."""

    label: str
    #: "share" is drawn as percent, from 0 to 100.
    unit: Unit = "count"
    #: Leaves out what is not above 0.
    log: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One figure, or two."""

    #: A number; in a chart of rows the name of the row.
    x: float | str
    #: None, or what is not finite, leaves a gap.
    y: float | None
    #: The name of the point, where x does not say it.
    label: str = ""
    #: The ends of its interval, drawn as a whisker in a chart of rows.
    low: float | None = None
    high: float | None = None
    #: Drawn larger: it stands for the others of its series.
    strong: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Points of one colour and shape, such as those of one system."""

    name: str
    points: tuple[Point, ...]
    #: The number of its shape and colour, counted from 0; by default the place of the series.
    style: int | None = None
    #: Tells it apart from one of the same style.
    dashed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A chart: its series, its axes, and the text that a screen reader speaks."""

    #: The name of its file, unique on a page.
    name: str
    title: str
    #: One sentence: what is shown, and against what.
    text: str
    #: "lines" joins points, "points" does not, "rows" has a name at the left of each row and y along its axis.
    kind: Literal["lines", "points", "rows"] = "lines"
    x: Axis
    y: Axis
    #: The first one is drawn on top.
    series: tuple[Series, ...]


# ── numbers and words ───────────────────────────────────────────────────────────────────────────────────────────────


def format_figure(value: float | None, unit: Unit) -> str:
    """Return a figure with its unit: percent with one place, milliseconds with three digits, counts whole."""
    if value is None or not isfinite(value):
        return "–"
    if unit == "share":
        return f"{100 * value:.1f} %"
    if unit == "ms":
        return f"{value:,.0f} ms" if abs(value) >= 100 else f"{value:.3g} ms"
    return f"{value:,.0f}" if unit == "count" else f"{value:.3g}"


def tabulate_chart(chart: Chart) -> tuple[list[str], list[list[str]]]:
    """Return the figures of a chart as a table: its heads and its rows, numbers in the format of `format_figure`."""
    if chart.kind == "points":
        return ["of", "what", chart.x.label, chart.y.label], [
            [
                series.name,
                point.label,
                format_figure(axis_position(point.x), chart.x.unit),
                format_figure(point.y, chart.y.unit),
            ]
            for series in chart.series
            for point in series.points
        ]
    places = list(dict.fromkeys(point.x for series in chart.series for point in series.points))
    if chart.kind == "lines":
        places.sort(key=axis_position)
    rows: list[list[str]] = []
    for place in places:
        row = [place if isinstance(place, str) else format_figure(place, chart.x.unit)]
        for series in chart.series:
            point_there = next((point for point in series.points if point.x == place), None)
            row.append("–" if point_there is None else format_with_interval(point_there, chart.y.unit))
        rows.append(row)
    return [chart.x.label, *(series.name for series in chart.series)], rows


def format_with_interval(point: Point, unit: Unit) -> str:
    """Return a figure with its interval, where it has one."""
    value = format_figure(point.y, unit)
    if point.low is None or point.high is None:
        return value
    return f"{value} ({format_figure(point.low, unit)} to {format_figure(point.high, unit)})"


def axis_position(value: float | str) -> float:
    """Return the position along an axis; NaN for the name of a row, which has none."""
    return value if not isinstance(value, str) else float("nan")
