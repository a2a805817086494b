"""A report: three forms of the same figures, the same bytes in every run, and what the clock says apart."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest

from acms import ValidationError
from acms_eval.charts import Axis, Chart, Point, Series
from acms_eval.deliverables import FULL, QUICK, Sizes, measure_deliverables
from acms_eval.report import Document, Section, Table
from acms_eval.suite import line_up

TINY = Sizes(
    seeds=1,
    distance_seeds=1,
    noise_seeds=1,
    turns=100,
    lengths=(50, 100),
    token_budgets=(500, 1000),
    distances=(10, 20),
    distance_noises=(0.0, 0.5),
    noises=(0.9,),
    noise_distance=20,
    with_facts=(),
    as_requests=("noise",),
    episode_turns=(4, 8),
    current_pcts=(0.2, 0.4),
    clock=(10, 50),
    asks=1,
)
PLANNED = {
    "persistence",
    "budget",
    "overhead",
    "precision",
    "difficulty",
    "degradation",
    "marked",
    "noise",
    "limits",
}
"""The deliverables of the evaluation plan, and where each sweep breaks."""


def make_chart(name: str = "hits") -> Chart:
    points = (Point(x=10, y=1.0), Point(x=20, y=None))
    return Chart(
        name=name,
        title="Hits",
        text="How often.",
        x=Axis(label="messages"),
        y=Axis(label="hit rate", unit="share"),
        series=(Series(name="acms", points=points), Series(name="a<b", points=(Point(x=10, y=0.25),))),
    )


def make_document(**fields: object) -> Document:
    table = Table(title="Means", heads=("", "hit"), rows=(("acms", "100.0"), ("a|b\n<c>", "25.0")))
    section = Section(
        name="hits", title="Hits & misses", text=("One.", "Two."), tables=(table,), charts=(make_chart(),)
    )
    slow = Section(name="slow", title="Slow", text=(), tables=(), charts=(make_chart("speed"),))
    given = {"title": "A report", "text": ("What & why.",), "settings": {"seed": "0"}, "sections": (section,)}
    return Document(**{**given, "times": (slow,), "left_out": {"gleanr": "not installed"}, **fields})  # type: ignore[arg-type]


class Page(HTMLParser):
    """The contents of a page: closed tags, ids, links, and the place of each text."""

    VOID = ("meta", "br", "hr", "img", "link", "input")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        given = dict(attrs)
        if "id" in given:
            self.ids.append(str(given["id"]))
        if tag == "a":
            self.links.append(str(given["href"]))
        self.loaded += [str(given[name]) for name in ("src", "srcset", "data", "poster") if name in given]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in self.VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def without_times(found: Document) -> tuple[object, str, str]:
    """Return the three forms without measured times."""
    plain = json.loads(found.to_json())
    del plain["times"]
    markdown, _, _ = found.to_markdown().partition("\n## Times\n")
    html = re.sub(r'<section id="times">.*?</section>\n</section>', "", found.to_html(), flags=re.DOTALL)
    return plain, markdown, html


# ── the three forms ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_json_has_every_figure_and_the_times_apart() -> None:
    plain = json.loads(make_document().to_json())
    assert plain["sections"]["hits"]["tables"] == [
        {"title": "Means", "rows": [{"": "acms", "hit": "100.0"}, {"": "a|b\n<c>", "hit": "25.0"}]}
    ]
    assert plain["sections"]["hits"]["charts"]["hits"]["series"] == {
        "acms": [{"x": 10, "y": 1.0}, {"x": 20, "y": None}],
        "a<b": [{"x": 10, "y": 0.25}],
    }
    assert list(plain["times"]) == ["slow"]
    assert plain["left_out"] == {"gleanr": "not installed"}


def test_markdown_ends_with_the_times() -> None:
    markdown = make_document().to_markdown()
    assert re.findall(r"^#+ .*$", markdown, re.MULTILINE) == [
        "# A report", "## Hits & misses", "## Not run", "## How it was run", "## Times", "### Slow",
    ]  # fmt: skip
    assert "| a\\|b <c> | 25.0 |" in markdown
    assert "| messages | acms | a<b |\n| --- | ---: | ---: |\n| 10 | 100.0 % | 25.0 % |" in markdown
    assert "![Hits](charts/hits.svg)" in markdown


def test_the_page_stands_alone() -> None:
    html = make_document().to_html()
    page = Page(html)
    assert page.open == []
    assert not {"script", "link", "img", "iframe", "object"} & set(page.tags)
    assert page.loaded == []
    assert re.findall(r"(?:https?:)?//[\w.-]+", re.sub(r'xmlns="[^"]*"', "", html)) == []
    assert "@import" not in html
    assert "url(" not in html
    assert len(set(page.ids)) == len(page.ids)
    assert page.links == ["#hits", "#slow"]
    assert {link[1:] for link in page.links} <= set(page.ids)


def test_the_page_can_be_read_by_anybody() -> None:
    html = make_document().to_html()
    assert '<html lang="en">' in html
    assert 'name="viewport"' in html
    assert html.count("prefers-color-scheme:dark") == 2, "the page's own colours, and those of the charts"
    assert html.count('role="img"') == 2
    assert html.count("<details>") == 2, "the figures of each chart can be read as a table"
    assert "<td>100.0 %</td>" in html
    assert "a|b\n&lt;c&gt;" in html
    assert "a&lt;b" in html


def test_writing_makes_the_folder_and_names_its_files(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "out"
    files = make_document().write(folder, {"raw.json": "{}"})
    assert [file.relative_to(folder).as_posix() for file in files] == [
        "report.json", "report.md", "report.html", "charts/hits.svg", "charts/speed.svg", "raw.json",
    ]  # fmt: skip
    assert all(file.is_file() for file in files)
    ElementTree.parse(folder / "charts" / "hits.svg")
    again = {file: file.read_bytes() for file in files}
    assert {file: file.read_bytes() for file in make_document().write(folder, {"raw.json": "{}"})} == again


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way", encoding="utf-8")
    with pytest.raises(ValidationError, match="cannot write"):
        make_document().write(tmp_path / "file" / "out")


def test_a_report_without_times_and_without_anything_left_out_is_one_too() -> None:
    markdown = make_document(times=(), left_out={}).to_markdown()
    assert "Times" not in markdown
    assert "Not run" not in markdown
    assert Page(make_document(times=(), left_out={}).to_html()).open == []


# ── the seven figures ───────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_report_has_the_seven_figures() -> None:
    steps: list[tuple[str, int, int]] = []
    made = await measure_deliverables(
        line_up(names=("acms", "bm25")),
        sizes=TINY,
        seed=3,
        progress=lambda what, done, of: steps.append((what, done, of)),
    )
    names = {section.name for section in (*made.sections, *made.times)}
    assert names >= PLANNED
    assert "overhead" in {section.name for section in made.times}
    for section in (*made.sections, *made.times):
        for one in section.charts:
            assert one.series, one.name
            assert all(series.points for series in one.series), one.name
            assert "acms" in {series.name for series in one.series} | {
                point.x for series in one.series for point in series.points
            }
    assert len({one.name for one in made.charts}) == len(made.charts)
    assert all(0 <= done <= of for _, done, of in steps)
    assert Page(made.to_html()).open == []
    json.loads(made.to_json())


@pytest.mark.slow
@pytest.mark.parametrize("names", [("bm25",), ("acms", "bm25")], ids=" ".join)
async def test_a_report_is_the_same_in_every_run_and_another_with_another_seed(
    names: tuple[str, ...],
) -> None:
    """Figures of ACMS are the same each time: test_sweeps.py and test_cli.py."""
    one, same, other = [
        without_times(await measure_deliverables(line_up(names=names), sizes=TINY, seed=seed))
        for seed in (0, 0, 1)
    ]
    assert one == same
    assert one != other


def test_the_full_report_reaches_as_far_as_the_plan_asks() -> None:
    assert (min(FULL.token_budgets), max(FULL.token_budgets)) == (100, 4000)
    assert max(FULL.lengths) == 1000
    assert {10, 20, 30, 50, 75, 100, 150, 200, 1000} <= set(FULL.distances)
    assert FULL.episode_turns == (4, 6, 8, 12, 16)
    assert FULL.current_pcts == (0.2, 0.3, 0.4, 0.5, 0.6)
    assert QUICK.turns <= 100


# ── who is measured ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_line_up_names_what_cannot_be_run_and_puts_acms_first() -> None:
    found = line_up(names=("bm25", "vectors", "acms"))
    assert list(found.systems) == ["acms", "plain BM25"]
    assert found.left_out == {"plain vectors": "needs an embedder"}


def test_what_uses_an_embedder_runs_once_in_each_tier() -> None:
    from acms.testing import HashEmbedder

    found = line_up((("none", None), ("local", HashEmbedder())), names=("acms", "recent", "vectors"))
    assert list(found.systems) == ["acms", "acms + local", "most recent window", "plain vectors"]
    assert list(found.acms) == ["acms", "acms + local"]
    assert found.left_out == {}


def test_an_unknown_system_is_an_error() -> None:
    with pytest.raises(ValidationError, match="nobody"):
        line_up(names=("nobody",))
