"""Charts: well-formed whatever they are given, every figure drawn, the same bytes for the same figures."""

from __future__ import annotations

import math
import re
from itertools import pairwise
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acms_eval.charts import STYLE, Axis, Chart, Point, Series, draw_svg, format_figure, tabulate_chart

SVG = "{http://www.w3.org/2000/svg}"
SHARE = Axis(label="hit rate", unit="share")
MESSAGES = Axis(label="messages", log=True)


def make_chart(*series: Series, **fields: Any) -> Chart:
    given: dict[str, Any] = {"x": MESSAGES, "y": SHARE, "title": "Hits", "text": "How often.", **fields}
    return Chart(name="hits", series=series, **given)


def line_series(name: str, *points: tuple[float, float | None]) -> Series:
    return Series(name=name, points=tuple(Point(x=x, y=y) for x, y in points))


def row_series(name: str, *points: tuple[str, float | None]) -> Series:
    return Series(name=name, points=tuple(Point(x=x, y=y) for x, y in points))


def draw_chart(one: Chart, *, alone: bool = True) -> ElementTree.Element:
    """Parse a drawn chart, and check the properties of every chart."""
    text = draw_svg(one, alone=alone)
    assert draw_svg(one, alone=alone) == text
    root = ElementTree.fromstring(text)
    assert root.tag == f"{SVG}svg"
    assert not re.search(r"\b(nan|inf|None)\b", re.sub(r">[^<]*<", "><", text))
    assert not re.search(
        r"(?:href|src)=[\"'](?!#)|url\((?!#)", re.sub(r">[^<]*<", "><", text)
    )  # it loads nothing
    width, height = map(float, root.attrib["viewBox"].split()[2:])
    for mark in data_marks(root):
        x, y = place_of_mark(mark)
        assert 0 <= x <= width
        assert 0 <= y <= height
    title, text_ = root.attrib["aria-labelledby"].split()
    found = {element.attrib["id"]: element.text for element in root if "id" in element.attrib}
    assert set(found) == {title, text_}
    return root


def data_marks(root: ElementTree.Element) -> list[ElementTree.Element]:
    """Return the marks that carry figures: those of the legend say nothing."""
    return [element for element in root.iter(f"{SVG}g") if element.attrib.get("class") == "mark"]


def place_of_mark(mark: ElementTree.Element) -> tuple[float, float]:
    (use,) = mark.iter(f"{SVG}use")
    return float(use.attrib["x"]), float(use.attrib["y"])


def colour_of_mark(mark: ElementTree.Element) -> str:
    """Return how a mark is coloured."""
    (use,) = mark.iter(f"{SVG}use")
    return use.attrib["style"]


def mark_titles(root: ElementTree.Element) -> list[str]:
    return [str(mark.findtext(f"{SVG}title")) for mark in data_marks(root)]


def line_ends(root: ElementTree.Element, kind: str) -> list[list[tuple[float, float]]]:
    """Return where each line of a kind goes; samples in the legend are of none."""
    return [
        [(float(x), float(y)) for x, y in re.findall(r"[ML] (-?[\d.]+) (-?[\d.]+)", path.attrib["d"])]
        for group in root.iter(f"{SVG}g")
        if group.attrib.get("class") == kind
        for path in group.iter(f"{SVG}path")
    ]


# ── lines ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_every_point_is_drawn_and_says_what_it_is() -> None:
    root = draw_chart(
        make_chart(line_series("acms", (50, 1.0), (100, 0.95)), line_series("BM25", (50, 0.5), (100, 0.25)))
    )
    assert sorted(mark_titles(root)) == [
        "BM25: messages 100, hit rate 25.0 %",
        "BM25: messages 50, hit rate 50.0 %",
        "acms: messages 100, hit rate 95.0 %",
        "acms: messages 50, hit rate 100.0 %",
    ]
    top, low = (place_of_mark(mark)[1] for mark in data_marks(root)[2:])
    assert top < low, "a better figure is higher up"
    assert mark_titles(root)[-1].startswith("acms"), "the first series lies on top"


def test_a_gap_breaks_the_line() -> None:
    root = draw_chart(
        make_chart(
            line_series("acms", (1, 0.1), (2, 0.2), (3, None), (4, 0.4), (5, math.nan), (6, 0.6)),
            line_series("b", (1, 1)),
        )
    )
    assert len(data_marks(root)) == 5
    (*_, path) = (path for one in root.iter(f"{SVG}g") if one.get("class") == "line" for path in one)
    assert path.attrib["d"].count("L") == 1


def test_points_are_joined_in_the_order_of_x() -> None:
    root = draw_chart(
        make_chart(line_series("acms", (100, 0.5), (10, 0.1), (50, 0.3)), line_series("b", (10, 0)))
    )
    across = [x for x, _ in line_ends(root, "line")[-1]]
    assert len(across) == 3
    assert across == sorted(across)


@pytest.mark.parametrize("log", [True, False])
@pytest.mark.parametrize("unit", ["share", "ms", "count", "number"])
def test_one_point_is_a_chart(log: bool, unit: Any) -> None:
    root = draw_chart(
        make_chart(line_series("acms", (10, 0.5)), x=Axis(label="n", log=log), y=Axis(label="y", unit=unit))
    )
    assert len(data_marks(root)) == 1


def test_an_empty_series_and_no_series_are_charts() -> None:
    assert data_marks(draw_chart(make_chart(Series(name="acms", points=())))) == []
    assert data_marks(draw_chart(make_chart())) == []
    assert data_marks(draw_chart(make_chart(Series(name="acms", points=()), kind="rows"))) == []
    assert (
        data_marks(
            draw_chart(make_chart(line_series("acms", (1, None)), y=Axis(label="ms", unit="ms", log=True)))
        )
        == []
    )


def test_a_log_axis_leaves_out_what_is_not_above_zero() -> None:
    root = draw_chart(make_chart(line_series("acms", (0, 0.5), (10, 0.5), (20, 0.5))))
    assert len(data_marks(root)) == 2


def test_marks_of_the_axis_do_not_overlap() -> None:
    root = draw_chart(
        make_chart(line_series("acms", *((n, 0.5) for n in range(1000, 1100))), x=Axis(label="n"))
    )
    ticks = [float(text.attrib["x"]) for text in root.iter(f"{SVG}text") if text.text and "1,0" in text.text]
    assert len(ticks) > 4
    assert all(after - before > 30 for before, after in pairwise(ticks))


# ── rows and points ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_rows_stand_under_each_other_and_long_names_are_cut_but_told() -> None:
    long = "a scenario with a name that would never fit beside a chart on a telephone"
    one = make_chart(
        row_series("acms", ("easy", 1.0), (long, 0.5)), row_series("BM25", ("easy", 0.4)), kind="rows"
    )
    root = draw_chart(one)
    assert len(data_marks(root)) == 3
    assert any("…" in (text.text or "") for text in root.iter(f"{SVG}text"))
    acms = {
        mark_told: place_of_mark(mark)
        for mark, mark_told in zip(data_marks(root), mark_titles(root), strict=True)
    }
    assert acms["acms, easy: 100.0 %"][1] < acms[f"acms, {long}: 50.0 %"][1]
    assert acms["acms, easy: 100.0 %"][0] > acms[f"acms, {long}: 50.0 %"][0]


def test_an_interval_is_a_whisker_through_its_mark() -> None:
    series = Series(name="acms", points=(Point(x="LoCoMo", y=0.7, low=0.6, high=0.8),))
    root = draw_chart(make_chart(series, kind="rows"))
    ((low, high),) = line_ends(root, "whisker")
    x, y = place_of_mark(data_marks(root)[0])
    assert low[0] < x < high[0]
    assert low[1] == high[1] == y
    assert mark_titles(root) == ["acms, LoCoMo: 70.0 % (60.0 % to 80.0 %)"]
    assert tabulate_chart(make_chart(series, kind="rows"))[1] == [["LoCoMo", "70.0 % (60.0 % to 80.0 %)"]]


def test_two_series_of_rows_are_joined_row_by_row() -> None:
    one = make_chart(
        row_series("marked", ("acms", 1.0), ("gleanr", 0.9)), row_series("plain", ("acms", 0.9)), kind="rows"
    )
    assert len(line_ends(draw_chart(one), "span")) == 1


def test_the_strong_point_of_a_series_stands_out() -> None:
    series = Series(
        name="acms",
        points=(Point(x=0.5, y=0.9, label="mean", strong=True), Point(x=0.4, y=1.0, label="easy")),
    )
    one = make_chart(series, kind="points", x=Axis(label="precision", unit="share"))
    faint = ["opacity" in colour_of_mark(mark) for mark in data_marks(draw_chart(one))]
    assert faint == [False, True]
    assert tabulate_chart(one) == (
        ["of", "what", "precision", "hit rate"],
        [["acms", "mean", "50.0 %", "90.0 %"], ["acms", "easy", "40.0 %", "100.0 %"]],
    )


# ── whatever it is given ────────────────────────────────────────────────────────────────────────────────────────────

_WORDS = st.text(max_size=60)
_AXES = st.builds(
    Axis, label=_WORDS, unit=st.sampled_from(["share", "ms", "count", "number"]), log=st.booleans()
)


@settings(max_examples=5)
@given(data=st.data(), kind=st.sampled_from(["lines", "points", "rows"]), x=_AXES, y=_AXES, title=_WORDS)
def test_whatever_is_drawn_is_well_formed(
    data: st.DataObject, kind: Any, x: Axis, y: Axis, title: str
) -> None:
    numbers = st.floats(-1e12, 1e12).filter(lambda value: not 0 < abs(value) < 1e-9)
    point = st.builds(
        Point,
        x=_WORDS if kind == "rows" else numbers,
        y=st.none() | st.sampled_from([math.nan, math.inf, -math.inf]) | numbers | st.floats(0.01, 1),
        label=_WORDS,
        strong=st.booleans(),
    )
    series = st.builds(Series, name=_WORDS, points=st.lists(point, max_size=6).map(tuple))
    one = Chart(
        name="any", title=title, text=title, kind=kind, x=x, y=y,
        series=tuple(data.draw(st.lists(series, max_size=10))),
    )  # fmt: skip
    draw_chart(one)
    heads, found = tabulate_chart(one)
    assert all(len(row) == len(heads) for row in found)


def test_words_cannot_leave_their_place() -> None:
    name = "</text><script>alert(1)</script>\x00\x1b[31m&amp;"
    root = draw_chart(
        make_chart(line_series(name, (1, 0.5)), line_series("b", (1, 0.4)), title=name, text=name)
    )
    assert not list(root.iter(f"{SVG}script"))
    assert "\x1b" not in draw_svg(make_chart(line_series(name, (1, 0.5))))


def test_a_chart_alone_carries_its_look_and_one_on_a_page_does_not() -> None:
    one = make_chart(line_series("acms", (1, 0.5)))
    assert STYLE in draw_svg(one)
    assert "prefers-color-scheme:dark" in STYLE
    assert "<style" not in draw_svg(one, alone=False)
    light = set(re.findall(r"(?:fill|stroke): (#\w+)", draw_svg(one, alone=False)))
    assert light
    assert all(f'"fill: {colour}"' in STYLE for colour in light), "each has a colour for the dark"


def test_series_differ_by_shape_and_not_by_colour_alone() -> None:
    root = draw_chart(make_chart(*(line_series(str(place), (1, place / 10)) for place in range(8))))
    shapes = {use.attrib["href"] for mark in data_marks(root) for use in mark.iter(f"{SVG}use")}
    assert len(shapes) == 8


def test_two_series_of_one_style_differ_by_their_dashes() -> None:
    one = Series(name="acms", points=(Point(x=1, y=0.5), Point(x=2, y=0.5)))
    other = Series(name="acms, with facts", points=one.points, style=0, dashed=True)
    styles = [
        path.attrib["style"]
        for group in draw_chart(make_chart(one, other)).iter(f"{SVG}g")
        if group.attrib.get("class") == "line"
        for path in group.iter(f"{SVG}path")
    ]
    assert ["stroke-dasharray" in style for style in styles] == [True, False]


# ── tables ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_table_of_lines_has_a_row_for_each_x() -> None:
    one = make_chart(line_series("acms", (1000, 0.5), (50, 1.0)), line_series("BM25", (50, None)))
    assert tabulate_chart(one) == (
        ["messages", "acms", "BM25"],
        [["50", "100.0 %", "–"], ["1,000", "50.0 %", "–"]],
    )


@pytest.mark.parametrize(
    ("value", "unit", "expected"),
    [
        (0.9333, "share", "93.3 %"),
        (0.0123, "ms", "0.0123 ms"),
        (12.345, "ms", "12.3 ms"),
        (1234.5, "ms", "1,234 ms"),
        (4000, "count", "4,000"),
        (0.12345, "number", "0.123"),
        (None, "share", "–"),
        (math.inf, "share", "–"),
    ],
)
def test_figures_are_written_as_they_are_read(value: float | None, unit: Any, expected: str) -> None:
    assert format_figure(value, unit) == expected
