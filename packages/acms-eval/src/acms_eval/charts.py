"""Charts as SVG, drawn with matplotlib and without its global state; the only module that imports it.

They need no script and no network, follow the reader's light or dark scheme, tell series apart by shape as well as by
colour, and carry a title, a description and, on every mark, its figures. The same figures give the same bytes.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Sequence
from io import StringIO
from math import ceil, floor, isfinite, log10
from textwrap import fill
from typing import TYPE_CHECKING, Any
from xml.sax.saxutils import escape

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.axis import XAxis, YAxis
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from acms_eval.chart_nouns import (
    Axis,
    Chart,
    Point,
    Series,
    Unit,
    axis_position,
    format_figure,
    format_with_interval,
    tabulate_chart,
)

if TYPE_CHECKING:
    from matplotlib.typing import RcKeyType

__all__ = ["STYLE", "Axis", "Chart", "Point", "Series", "Unit", "draw_svg", "format_figure", "tabulate_chart"]

#: Colours by their use, each in light and in dark: of series in their order, of the rest by name.
SERIES = (
    ("#0a66c2", "#62aeff"), ("#c2410c", "#ff9d5c"), ("#15803d", "#5fd38a"), ("#7e22ce", "#cf9bff"),
    ("#a16207", "#e6bf4f"), ("#be185d", "#ff8fc1"), ("#0f766e", "#58d0c4"), ("#525252", "#b8b8b8"),
)  # fmt: skip
BACK, BAND = ("#ffffff", "#16181c"), ("#f5f5f5", "#1e2126")
GRID, SPAN, AXIS = ("#dddddd", "#33373d"), ("#bbbbbb", "#555b64"), ("#888888", "#8a8f98")
TEXT, TITLE = ("#444444", "#c8c8c8"), ("#111111", "#f2f2f2")


def _dark_rules(colours: Sequence[tuple[str, str]]) -> str:
    return "".join(
        f'.chart [style*="{css_property}: {light}"]{{{css_property}:{dark}!important}}'
        for light, dark in colours
        for css_property in ("fill", "stroke")
    )


STYLE = (
    ".chart text{font-family:system-ui,-apple-system,'Segoe UI',Roboto,'Helvetica Neue',Arial,sans-serif!important}"
    "@media (prefers-color-scheme:dark){"
    + _dark_rules([*SERIES, BACK, BAND, GRID, SPAN, AXIS, TEXT, TITLE])
    + "}"
)
"""The style sheet of every chart: once on a page, or inside a chart that stands alone."""

_WIDTH, _HEIGHT = 480, 220  # of a chart, and of the area in which lines and points are drawn
_MARKS = "os^Dv*Pd"
_DASHES = ("-", "--", ":", "-.")
_DASHED = (0, (2, 2))
_LOOK: dict[RcKeyType, Any] = {
    "svg.fonttype": "none", "text.parse_math": False,
    "font.family": "DejaVu Sans", "font.size": 12, "text.color": TEXT[0],
    "axes.edgecolor": AXIS[0], "axes.labelcolor": TEXT[0], "axes.axisbelow": True, "axes.grid": True,
    "axes.spines.left": False, "axes.spines.right": False, "axes.spines.top": False,
    "axes.titlesize": 12, "axes.titlelocation": "left", "axes.formatter.useoffset": False,
    "grid.color": GRID[0], "grid.linewidth": 1, "legend.frameon": False, "legend.handlelength": 2,
    "legend.fontsize": 11,
    "xtick.color": AXIS[0], "xtick.labelcolor": TEXT[0],
    "ytick.color": GRID[0], "ytick.labelcolor": TEXT[0],
    "xtick.labelsize": 11, "ytick.labelsize": 11, "ytick.major.size": 0, "figure.facecolor": BACK[0],
    "axes.facecolor": "none", "figure.constrained_layout.w_pad": 0.12, "figure.constrained_layout.h_pad": 0.08,
}  # fmt: skip


def draw_svg(chart: Chart, *, alone: bool = True) -> str:
    """Return a chart as SVG; `alone` it carries `STYLE`, and can be a file or the source of an image."""
    file = StringIO()
    with rc_context({**_LOOK, "svg.hashsalt": chart.name}), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of characters that the font by which widths are measured lacks
        drawing = _Drawing(chart)
        for artist in drawing.figure.findobj():
            # Every scale holds all its values, and ids of clip paths would clash with other charts on the page.
            artist.set_clip_on(False)
        drawing.figure.savefig(file, format="svg", metadata={"Date": None})
    return _finish_svg(chart, file.getvalue(), drawing.mark_texts, alone=alone)


def _finish_svg(chart: Chart, text: str, mark_texts: Sequence[str], *, alone: bool) -> str:
    """Return what matplotlib wrote with our head, and with a title on every mark."""
    start = text.index('<g id="figure_1">')
    body = text[start:].replace("xlink:href", "href")
    body = re.sub(
        r' id="mark-(\d+)">',
        lambda match: f' class="mark"><title>{_escape_xml(mark_texts[int(match[1])])}</title>',
        body,
    )
    body = re.sub(r' id="class-(\w+)"', r' class="\1"', body)
    body = re.sub(r' id="[\w.]+_\d+"', "", body)
    width, height = re.findall(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', text[:start])[0]
    name = re.sub(r"[^\w-]", "-", chart.name)
    size, style = (f' width="{width}" height="{height}"', f"<style>{STYLE}</style>") if alone else ("", "")
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="chart" viewBox="0 0 {width} {height}"{size} role="img"'
        f' aria-labelledby="{name}-title {name}-text"><title id="{name}-title">{_escape_xml(chart.title)}</title>'
        f'<desc id="{name}-text">{_escape_xml(chart.text)}</desc>{style}\n{body}'
    )


class _Drawing:
    """A figure with one chart in it, and the text of each of its marks."""

    def __init__(self, chart: Chart) -> None:
        self.chart = chart
        self.mark_texts: list[str] = []
        names = [_remove_invalid_characters(series.name) for series in chart.series]
        columns = max(1, min(len(names), int(_WIDTH / max([1, *(6.6 * len(name) + 46 for name in names)]))))
        above = 20.0 * ceil(len(names) / columns) if len(names) > 1 else 0.0
        title = fill(_remove_invalid_characters(chart.title), 56) or " "
        above += 19 * (title.count("\n") + 1)
        rows = list(dict.fromkeys(str(point.x) for series in chart.series for point in series.points))
        row = 24 if len(names) < 3 else 5 * len(names) + 9
        area = max(48, row * len(rows)) if chart.kind == "rows" else _HEIGHT
        self.figure = Figure((_WIDTH / 72, (above + area + 70) / 72), dpi=72, layout="constrained")
        self.axes: Axes = self.figure.add_subplot()
        self.figure.suptitle(title, x=0.025, ha="left", fontsize=15, fontweight="bold", color=TITLE[0])
        if len(names) > 1:
            handles = [self._series_line(index, [], []) for index in range(len(names))]
            self.figure.legend(handles, names, loc="outside lower left", ncols=columns)
        if chart.kind == "rows":
            self._draw_rows(rows, row)
        else:
            self._draw_plane()

    def _style(self, index: int) -> int:
        style = self.chart.series[index].style
        return (index if style is None else style) % len(SERIES)

    def _series_line(self, index: int, x: Sequence[float], y: Sequence[float]) -> Line2D:
        """Return the line of a series, for the chart or for the legend."""
        style, lines = self._style(index), self.chart.kind == "lines"
        dash = _DASHED if self.chart.series[index].dashed else _DASHES[style % len(_DASHES)]
        return Line2D(
            x, y, color=SERIES[style][0], marker=_MARKS[style], markersize=6, markeredgewidth=0,
            linestyle=dash if lines else "none", linewidth=2 if index else 3, zorder=20 - index,
        )  # fmt: skip

    def _draw_mark(
        self, index: int, x: float, y: float, mark_text: str, *, size: float = 7, alpha: float = 1
    ) -> None:
        style = self._style(index)
        self.axes.plot(
            [x], [y], color=SERIES[style][0], marker=_MARKS[style], markersize=size, markeredgewidth=0,
            linestyle="none", alpha=alpha, zorder=40 - index, gid=f"mark-{len(self.mark_texts)}",
        )  # fmt: skip
        self.mark_texts.append(mark_text)

    def _draw_plane(self) -> None:
        """Draw lines or points over two axes."""
        chart, axes = self.chart, self.axes
        for index, series in reversed([*enumerate(chart.series)]):
            points = series.points
            if chart.kind == "lines":
                points = sorted(points, key=lambda point: axis_position(point.x))
            drawable = [
                (axis_position(point.x), _drawable_value(point, chart.y), point)
                for point in points
                if _can_show(axis_position(point.x), chart.x)
            ]
            if chart.kind == "lines":
                axes.add_line(
                    line := self._series_line(index, [x for x, _, _ in drawable], [y for _, y, _ in drawable])
                )
                line.set(marker="none", gid="class-line")
            strong = any(point.strong for point in points)
            for x, y, point in drawable:
                if isfinite(y):
                    mark_text = f"{series.name}{f', {point.label}' if point.label else ''}: {chart.x.label}"
                    mark_text += (
                        f" {format_figure(x, chart.x.unit)}, {chart.y.label} {format_figure(y, chart.y.unit)}"
                    )
                    size = 7
                    if strong:
                        size = 12 if point.strong else 6
                    self._draw_mark(
                        index, x, y, mark_text, size=size, alpha=0.55 if strong and not point.strong else 1
                    )
        places = [axis_position(point.x) for series in chart.series for point in series.points]
        _scale_axis(axes.xaxis, chart.x, places, at_data=chart.kind == "lines")
        _scale_axis(
            axes.yaxis,
            chart.y,
            [_drawable_value(point, chart.y) for series in chart.series for point in series.points],
        )
        axes.grid(visible=False, axis="x")
        axes.set_title(_remove_invalid_characters(chart.y.label))
        axes.set_xlabel(_remove_invalid_characters(chart.x.label))

    def _draw_rows(self, names: Sequence[str], height: float) -> None:
        """Draw one row for each name, with a mark for each series along the axis."""
        chart, axes, count = self.chart, self.axes, len(self.chart.series)
        # Two marks are joined by a line, more of them lie under each other.
        mark_distance = 5 / height if count > 2 else 0.0
        values: list[float] = []
        for row, name in enumerate(names):
            if count > 2 and not row % 2:
                axes.axhspan(row - 0.5, row + 0.5, color=BAND[0], linewidth=0, zorder=0)
            values += self._draw_row(row, name, mark_distance)
        _scale_axis(axes.xaxis, chart.y, values)
        labels = [fill(_remove_invalid_characters(name), 28, max_lines=2, placeholder=" …") for name in names]
        axes.set_yticks(range(len(names)), labels)
        axes.set_ylim(max(0, len(names) - 1) + 0.5, -0.5)
        axes.grid(visible=False, axis="y")
        axes.set_xlabel(_remove_invalid_characters(chart.y.label))

    def _draw_row(self, row: int, name: str, mark_distance: float) -> list[float]:
        """Draw the marks of one row and return their values, the ends of intervals included."""
        chart, axes, count = self.chart, self.axes, len(self.chart.series)
        values: list[float] = []
        for index, series in enumerate(chart.series):
            for point in series.points:
                mark_x, low, high = _drawable_value(point, chart.y), point.low, point.high
                if str(point.x) != name or not isfinite(mark_x):
                    continue
                mark_y = row + (index - (count - 1) / 2) * mark_distance
                if (
                    low is not None
                    and high is not None
                    and _can_show(low, chart.y)
                    and _can_show(high, chart.y)
                ):
                    colour = SERIES[self._style(index)][0]
                    axes.plot([low, high], [mark_y, mark_y], color=colour, linewidth=2, gid="class-whisker")
                    values += [low, high]
                self._draw_mark(
                    index,
                    mark_x,
                    mark_y,
                    f"{series.name}, {name}: {format_with_interval(point, chart.y.unit)}",
                )
                values.append(mark_x)
        if count == 2 and len(values) > 1:
            axes.plot(
                [min(values), max(values)],
                [row, row],
                color=SPAN[0],
                linewidth=2,
                zorder=1,
                gid="class-span",
            )
        return values


# ── numbers and words ───────────────────────────────────────────────────────────────────────────────────────────────


def _can_show(value: float, axis: Axis) -> bool:
    return isfinite(value) and (value > 0 or not axis.log)


def _drawable_value(point: Point, axis: Axis) -> float:
    return point.y if point.y is not None and _can_show(point.y, axis) else float("nan")


def _scale_axis(scale: XAxis | YAxis, axis: Axis, values: Iterable[float], *, at_data: bool = False) -> None:
    """Let a scale hold some values; with `at_data` its ticks are theirs, as many as there is room for."""
    drawable = sorted({value for value in values if _can_show(value, axis)})
    set_limits = scale.axes.set_xlim if scale.axis_name == "x" else scale.axes.set_ylim
    set_scale = scale.axes.set_xscale if scale.axis_name == "x" else scale.axes.set_yscale
    if axis.log:
        set_scale("log")
    if at_data and drawable:
        positions = [log10(value) if axis.log else value for value in drawable]
        ticks = drawable[:1]
        for value, position in zip(drawable, positions, strict=True):
            last_tick = log10(ticks[-1]) if axis.log else ticks[-1]
            if position - last_tick > 0.11 * (positions[-1] - positions[0]):
                ticks.append(value)
        scale.set_ticks(ticks)
    elif axis.log and drawable:
        low, high = floor(log10(drawable[0])), ceil(log10(drawable[-1]))
        set_limits(10.0**low, 10.0 ** max(high, low + 1))
    elif axis.unit == "share" and all(0 <= value <= 1 for value in drawable):
        set_limits(0, 1)
        scale.set_ticks([0, 0.25, 0.5, 0.75, 1])
    elif drawable:
        set_limits(min(0.0, drawable[0]), max(0.0, drawable[-1]) or 1.0)
    scale.set_major_formatter(lambda value, _: _format_tick(value, axis.unit))
    scale.axes.minorticks_off()


def _format_tick(value: float, unit: Unit) -> str:
    if unit == "share":
        return f"{100 * value:.3g} %"
    if abs(value) >= 10_000:
        return f"{value / 1000:,.4g}k"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


_BARRED = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")


def _remove_invalid_characters(text: str) -> str:
    """Return a text without what XML cannot hold."""
    return _BARRED.sub("\N{REPLACEMENT CHARACTER}", text)


def _escape_xml(text: str) -> str:
    return escape(_remove_invalid_characters(text), {'"': "&quot;"})
