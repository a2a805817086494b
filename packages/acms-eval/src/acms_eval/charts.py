"""Charts as SVG: lines, points and rows, drawn by rule, so that the same figures give the same bytes.

They need no script, no font and no network, follow the reader's light or dark scheme, tell series apart by shape as
well as by colour, and carry a title, a description and, on every mark, its figures.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil, floor, isfinite, log10
from typing import Literal
from xml.sax.saxutils import escape

__all__ = ["STYLE", "Axis", "Chart", "Point", "Series", "Unit", "cells", "svg", "written"]

Unit = Literal["share", "ms", "count", "number"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """What an axis shows."""

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
    #: What it is, where x does not say so.
    label: str = ""
    #: The ends of its interval, drawn as a whisker in a chart of rows.
    low: float | None = None
    high: float | None = None
    #: Stands for the others of its series, and is drawn larger.
    strong: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Points that belong together."""

    name: str
    points: tuple[Point, ...]
    #: Of shape and colour, counted from 0; by default the place of the series.
    style: int | None = None
    #: Tells it apart from one of the same style.
    dashed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A chart: what is drawn, and how it is read to who cannot see it."""

    #: Of a file, and unique on a page.
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


_WIDTH = 480.0
_HEIGHT = 220.0  # of the area in which lines and points are drawn
_SMALL = 12.0
_LEFT, _RIGHT = 54.0, 16.0
_STYLES = 8
_LIGHT = ("#0a66c2", "#c2410c", "#15803d", "#7e22ce", "#a16207", "#be185d", "#0f766e", "#525252")
_DARK = ("#62aeff", "#ff9d5c", "#5fd38a", "#cf9bff", "#e6bf4f", "#ff8fc1", "#58d0c4", "#b8b8b8")
_DASHES = ("", "7 3", "2 3", "9 3 2 3", "5 2", "12 4", "1 3", "4 4")


def _colours(colours: Sequence[str]) -> str:
    return "".join(
        f".chart .s{place}{{stroke:{colour};fill:{colour}}}.chart .l{place}{{stroke:{colour}}}"
        for place, colour in enumerate(colours)
    )


STYLE = (
    ".chart{font-family:system-ui,-apple-system,'Segoe UI',Roboto,'Helvetica Neue',Arial,sans-serif}"
    f".chart text{{font-size:{_SMALL:g}px;fill:#444}}.chart .head{{font-size:15px;font-weight:600;fill:#111}}"
    ".chart .back{fill:#fff}.chart .grid{stroke:#ddd;stroke-width:1}.chart .axis{stroke:#888;stroke-width:1}"
    ".chart .line{fill:none;stroke-width:2;stroke-linejoin:round}.chart .first{stroke-width:3}"
    ".chart .span{stroke:#bbb;stroke-width:2}.chart .band{fill:#f5f5f5}.chart .faint{opacity:.55}"
    + _colours(_LIGHT)
    + "@media (prefers-color-scheme:dark){.chart text{fill:#c8c8c8}.chart .head{fill:#f2f2f2}.chart .back{fill:#16181c}"
    ".chart .grid{stroke:#33373d}.chart .axis{stroke:#8a8f98}.chart .span{stroke:#555b64}.chart .band{fill:#1e2126}"
    + _colours(_DARK)
    + "}"
)
"""The look of every chart: once on a page, or inside a chart that stands alone."""


# ── numbers and words ───────────────────────────────────────────────────────────────────────────────────────────────


def written(value: float | None, unit: Unit) -> str:
    """Return a figure as it is read: percent with one place, milliseconds with three digits, counts whole."""
    if value is None or not isfinite(value):
        return "–"
    if unit == "share":
        return f"{100 * value:.1f} %"
    if unit == "ms":
        return f"{value:,.0f} ms" if abs(value) >= 100 else f"{value:.3g} ms"
    return f"{value:,.0f}" if unit == "count" else f"{value:.3g}"


def cells(chart: Chart) -> tuple[list[str], list[list[str]]]:
    """Return the figures of a chart as a table: its heads and its rows, numbers written as `written` does."""
    if chart.kind == "points":
        return ["of", "what", chart.x.label, chart.y.label], [
            [
                series.name,
                point.label,
                written(_number(point.x), chart.x.unit),
                written(point.y, chart.y.unit),
            ]
            for series in chart.series
            for point in series.points
        ]
    places = list(dict.fromkeys(point.x for series in chart.series for point in series.points))
    if chart.kind == "lines":
        places.sort(key=_number)
    rows: list[list[str]] = []
    for place in places:
        row = [place if isinstance(place, str) else written(place, chart.x.unit)]
        for series in chart.series:
            found = next((point for point in series.points if point.x == place), None)
            row.append("–" if found is None else _spanned(found, chart.y.unit))
        rows.append(row)
    return [chart.x.label, *(series.name for series in chart.series)], rows


def _spanned(point: Point, unit: Unit) -> str:
    value = written(point.y, unit)
    if point.low is None or point.high is None:
        return value
    return f"{value} ({written(point.low, unit)} to {written(point.high, unit)})"


def _number(value: float | str) -> float:
    return value if not isinstance(value, str) else float("nan")


def _n(value: float) -> str:
    """Return a coordinate: one decimal place is a tenth of a pixel."""
    text = f"{value:.1f}".removesuffix(".0")
    return "0" if text == "-0" else text


_BARRED = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")


def _safe(text: str) -> str:
    """Return a text as XML may hold it."""
    return escape(_BARRED.sub("\N{REPLACEMENT CHARACTER}", text), {'"': "&quot;"})


def _long(text: str, size: float = _SMALL) -> float:
    """Return about how long a text is: fonts differ, so this errs on the long side."""
    wide = sum(unicodedata.east_asian_width(sign) in "WF" for sign in text)
    return size * (0.58 * (len(text) - wide) + wide)


def _cut(text: str, room: float) -> str:
    if _long(text) <= room:
        return text
    while text and _long(text + "…") > room:
        text = text[:-1]
    return text.rstrip() + "…"


def _tick(value: float, unit: Unit) -> str:
    if unit == "share":
        return f"{100 * value:.3g} %"
    if abs(value) >= 10_000:
        return f"{value / 1000:,.4g}k"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


# ── scales ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class _Scale:
    """Where a number lies between two edges."""

    low: float
    high: float
    start: float
    end: float
    log: bool
    ticks: tuple[float, ...]

    def at(self, value: float) -> float:
        low, high = self.low, self.high
        if self.log:
            low, high, value = log10(low), log10(high), log10(value)
        return self.start + (self.end - self.start) * (value - low) / (high - low)

    def takes(self, value: float | None) -> bool:
        return value is not None and isfinite(value) and (value > 0 or not self.log)


def _scale(axis: Axis, values: Sequence[float], start: float, end: float, *, at_data: bool = False) -> _Scale:
    """Return a scale that holds the values; with `at_data` it ends at them, and its ticks are theirs."""
    found = sorted({value for value in values if isfinite(value) and (value > 0 or not axis.log)})
    if at_data and found:
        low, high = found[0], found[-1]
        if low == high:
            low, high = (low / 2, high * 2) if axis.log else (low - 1, high + 1)
        return _Scale(low, high, start, end, axis.log, tuple(found))
    if axis.log:
        low = 10.0 ** floor(log10(found[0])) if found else 1.0
        high = 10.0 ** ceil(log10(found[-1])) if found else 10.0
        high = high if high > low else low * 10
        count = round(log10(high / low))
        return _Scale(low, high, start, end, True, tuple(low * 10**step for step in range(count + 1)))
    if axis.unit == "share" and all(0 <= value <= 1 for value in found):
        return _Scale(0.0, 1.0, start, end, False, (0.0, 0.25, 0.5, 0.75, 1.0))
    low, high = min(0.0, *found, 0.0), max(0.0, *found, 0.0)
    high = high if high > low else low + 1
    rough = (high - low) / 4
    power = 10.0 ** floor(log10(rough))
    step = next(power * times for times in (1, 2, 2.5, 5, 10) if power * times >= rough * (1 - 1e-9))
    first, last = floor(low / step + 1e-9), ceil(high / step - 1e-9)
    ticks = tuple(place * step for place in range(first, last + 1))
    return _Scale(ticks[0], ticks[-1], start, end, False, ticks)


# ── marks ───────────────────────────────────────────────────────────────────────────────────────────────────────────

_SHAPES: tuple[Callable[[float], str], ...] = (
    lambda r: f"M{_n(-r)} 0a{_n(r)} {_n(r)} 0 1 0 {_n(2 * r)} 0a{_n(r)} {_n(r)} 0 1 0 {_n(-2 * r)} 0z",
    lambda r: f"M{_n(-r)} {_n(-r)}h{_n(2 * r)}v{_n(2 * r)}h{_n(-2 * r)}z",
    lambda r: f"M0 {_n(-1.3 * r)}L{_n(1.2 * r)} {_n(r)}H{_n(-1.2 * r)}z",
    lambda r: f"M0 {_n(-1.4 * r)}L{_n(1.4 * r)} 0L0 {_n(1.4 * r)}L{_n(-1.4 * r)} 0z",
    lambda r: f"M0 {_n(1.3 * r)}L{_n(1.2 * r)} {_n(-r)}H{_n(-1.2 * r)}z",
    lambda r: f"M{_n(-r)} {_n(-r)}L{_n(r)} {_n(r)}M{_n(-r)} {_n(r)}L{_n(r)} {_n(-r)}",
    lambda r: f"M{_n(-1.3 * r)} 0H{_n(1.3 * r)}M0 {_n(-1.3 * r)}V{_n(1.3 * r)}",
    lambda r: f"M{_n(-1.3 * r)} {_n(-0.4 * r)}h{_n(2.6 * r)}v{_n(0.8 * r)}h{_n(-2.6 * r)}z",
)


def _mark(x: float, y: float, style: int, told: str = "", *, size: float = 3.6, extra: str = "") -> str:
    title = f"<title>{_safe(told)}</title>" if told else ""
    shape = _SHAPES[style % _STYLES](size)
    return (
        f'<path class="mark s{style % _STYLES}{extra}" transform="translate({_n(x)} {_n(y)})" stroke-width="1.5"'
        f' d="{shape}">{title}</path>'
    )


def _text(x: float, y: float, text: str, *, anchor: str = "start", kind: str = "", whole: str = "") -> str:
    title = f"<title>{_safe(whole)}</title>" if whole and whole != text else ""
    shown = f' class="{kind}"' if kind else ""
    return f'<text x="{_n(x)}" y="{_n(y)}" text-anchor="{anchor}"{shown}>{title}{_safe(text)}</text>'


def _line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return f'<line class="{kind}" x1="{_n(x1)}" y1="{_n(y1)}" x2="{_n(x2)}" y2="{_n(y2)}"/>'


# ── the three kinds ─────────────────────────────────────────────────────────────────────────────────────────────────


class _Drawing:
    """A chart on its way to become text: what was drawn, and how far down it reaches."""

    def __init__(self, chart: Chart) -> None:
        self.chart = chart
        self.parts: list[str] = []
        self.y = 22.0
        for line in _wrapped(chart.title, _WIDTH - 2 * _RIGHT, 15.0):
            self.parts.append(_text(_RIGHT, self.y, line, kind="head"))
            self.y += 19
        self._legend()

    def _style(self, place: int) -> int:
        style = self.chart.series[place].style
        return place if style is None else style

    def _legend(self) -> None:
        if len(self.chart.series) < 2:
            return
        x = _RIGHT
        for place, series in enumerate(self.chart.series):
            name = _cut(series.name, _WIDTH - 2 * _RIGHT - 24)
            width = 24 + _long(name) + 12
            if x > _RIGHT and x + width > _WIDTH - _RIGHT:
                x, self.y = _RIGHT, self.y + 19
            if self.chart.kind == "lines":
                self.parts.append(self._joined([(x, self.y - 4), (x + 18, self.y - 4)], place))
            self.parts.append(_mark(x + 9, self.y - 4, self._style(place)))
            self.parts.append(_text(x + 24, self.y, name, whole=series.name))
            x += width
        self.y += 19

    def _joined(self, places: Sequence[tuple[float, float]], series: int) -> str:
        style = self._style(series)
        dash = "3 3" if self.chart.series[series].dashed else _DASHES[style % _STYLES]
        dashed = f' stroke-dasharray="{dash}"' if dash else ""
        path = "L".join(f"{_n(x)} {_n(y)}" for x, y in places)
        first = " first" if not series else ""
        return f'<path class="line l{style % _STYLES}{first}" d="M{path}"{dashed}/>'

    def field(self) -> None:
        """Draw lines or points over two axes."""
        chart = self.chart
        marks = [(place, point) for place, series in enumerate(chart.series) for point in series.points]
        top = self.y + 14
        bottom = top + _HEIGHT
        values = [value for _, point in marks for value in (point.y,) if value is not None]
        y = _scale(chart.y, values, bottom, top)
        ends = [_number(point.x) for _, point in marks]
        x = _scale(chart.x, ends, _LEFT + 8, _WIDTH - _RIGHT - 8, at_data=chart.kind == "lines")
        self.parts.append(_text(_RIGHT, self.y, chart.y.label))
        for tick in y.ticks:
            self.parts.append(_line(_LEFT, y.at(tick), _WIDTH - _RIGHT, y.at(tick), "grid"))
            self.parts.append(_text(_LEFT - 6, y.at(tick) + 4, _tick(tick, chart.y.unit), anchor="end"))
        self.parts.append(_line(_LEFT, bottom, _WIDTH - _RIGHT, bottom, "axis"))
        self._ticks(x, bottom)
        for place in reversed(range(len(chart.series))):
            self._series(place, x, y)
        self.y = bottom + 40

    def _ticks(self, x: _Scale, bottom: float) -> None:
        free = 0.0
        for tick in x.ticks:
            text = _tick(tick, self.chart.x.unit)
            half = _long(text) / 2
            if x.at(tick) - half < free:
                continue
            free = x.at(tick) + half + 6
            self.parts.append(_line(x.at(tick), bottom, x.at(tick), bottom + 4, "axis"))
            self.parts.append(_text(x.at(tick), bottom + 17, text, anchor="middle"))
        self.parts.append(_text((_LEFT + _WIDTH) / 2, bottom + 35, self.chart.x.label, anchor="middle"))

    def _series(self, place: int, x: _Scale, y: _Scale) -> None:
        chart, series = self.chart, self.chart.series[place]
        points = series.points
        run: list[tuple[float, float]] = []
        marks: list[str] = []
        if chart.kind == "lines":
            points = tuple(sorted(points, key=lambda point: _number(point.x)))
        strong = any(point.strong for point in points)
        for point in points:
            across = _number(point.x)
            if not x.takes(across) or point.y is None or not y.takes(point.y):
                self._end(run, place)
                run = []
                continue
            where = x.at(across), y.at(point.y)
            run.append(where)
            told = f"{series.name}{f', {point.label}' if point.label else ''}: "
            told += f"{chart.x.label} {written(across, chart.x.unit)}, {chart.y.label} {written(point.y, chart.y.unit)}"
            faint = " faint" if strong and not point.strong else ""
            size = (6.0 if point.strong else 3.0) if strong else 3.6
            marks.append(_mark(*where, self._style(place), told, size=size, extra=faint))
        self._end(run, place)
        self.parts += marks

    def _end(self, run: Sequence[tuple[float, float]], place: int) -> None:
        if self.chart.kind == "lines" and len(run) > 1:
            self.parts.append(self._joined(run, place))

    def rows(self) -> None:
        """Draw one row for each name, with a mark for each series along the axis."""
        chart = self.chart
        names = list(dict.fromkeys(str(point.x) for series in chart.series for point in series.points))
        left = min(_WIDTH * 0.42, max([_LEFT, *(_long(name) + 22 for name in names)]))
        found = [
            value
            for series in chart.series
            for point in series.points
            for value in (point.y, point.low, point.high)
            if value is not None
        ]
        x = _scale(chart.y, found, left + 6, _WIDTH - _RIGHT - 14)
        height = 24.0 if len(chart.series) < 3 else 5.0 * len(chart.series) + 9
        top, bottom = self.y, self.y + height * len(names) + 6
        for row in range(0, len(names) if len(chart.series) > 2 else 0, 2):
            y = _n(top + height * row + 3)
            self.parts.append(
                f'<rect class="band" x="{_n(_RIGHT)}" y="{y}" width="{_n(_WIDTH - 2 * _RIGHT)}" height="{_n(height)}"/>'
            )
        for tick in x.ticks:
            self.parts.append(_line(x.at(tick), top, x.at(tick), bottom, "grid"))
            self.parts.append(_text(x.at(tick), bottom + 15, _tick(tick, chart.y.unit), anchor="middle"))
        self.parts.append(_line(left, bottom, _WIDTH - _RIGHT, bottom, "axis"))
        self.parts.append(_text((left + _WIDTH) / 2, bottom + 33, chart.y.label, anchor="middle"))
        for row, name in enumerate(names):
            middle = top + height * (row + 0.5) + 3
            self.parts.append(_text(left - 8, middle + 4, _cut(name, left - 22), anchor="end", whole=name))
            self._row(name, middle, x)
        self.y = bottom + 38

    def _row(self, name: str, middle: float, x: _Scale) -> None:
        chart, count = self.chart, len(self.chart.series)
        apart = 5.0 if count > 2 else 0.0  # two are joined by a line, more lie under each other
        whiskers: list[str] = []
        marks: list[str] = []
        reached: list[float] = []
        for place, series in enumerate(chart.series):
            for point in series.points:
                if str(point.x) != name or point.y is None or not x.takes(point.y):
                    continue
                y = middle + (place - (count - 1) / 2) * apart
                reached.append(x.at(point.y))
                low, high = point.low, point.high
                if low is not None and high is not None and x.takes(low) and x.takes(high):
                    kind = f"line l{self._style(place) % _STYLES}"
                    whiskers.append(_line(x.at(low), y, x.at(high), y, kind))
                told = f"{series.name}, {name}: {_spanned(point, chart.y.unit)}"
                marks.append(
                    _mark(x.at(point.y), y, self._style(place), told, size=3.8 if not place else 3.2)
                )
        if count == 2 and len(reached) > 1:
            self.parts.append(_line(min(reached), middle, max(reached), middle, "span"))
        self.parts += [*whiskers, *reversed(marks)]


def _wrapped(text: str, room: float, size: float) -> list[str]:
    lines = [""]
    for word in text.split():
        longer = f"{lines[-1]} {word}".strip()
        if lines[-1] and _long(longer, size) > room:
            lines.append(word)
        else:
            lines[-1] = longer
    return lines


def svg(chart: Chart, *, alone: bool = True) -> str:
    """Return a chart as SVG; `alone` it carries `STYLE`, and can be a file or the source of an image."""
    drawing = _Drawing(chart)
    if chart.kind == "rows":
        drawing.rows()
    else:
        drawing.field()
    width, height = _n(_WIDTH), _n(drawing.y + 4)
    style = f"<style>{STYLE}</style>" if alone else ""
    size = f' width="{width}" height="{height}"' if alone else ""
    name = re.sub(r"[^\w-]", "-", chart.name)
    body = "\n".join(drawing.parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="chart" viewBox="0 0 {width} {height}"{size} role="img"'
        f' aria-labelledby="{name}-title {name}-text">'
        f'<title id="{name}-title">{_safe(chart.title)}</title><desc id="{name}-text">{_safe(chart.text)}</desc>{style}'
        f'<rect class="back" width="{width}" height="{height}"/>\n{body}\n</svg>\n'
    )
