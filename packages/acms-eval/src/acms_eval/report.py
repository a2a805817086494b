"""A report of figures in three forms: JSON for programs, Markdown for a repository, one page of HTML for people.

Durations stand in a part of their own, `times`, the last one of every form: all the rest follows from the figures, so
two runs that measured the same write the same bytes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from importlib.resources import files
from math import isfinite
from pathlib import Path
from string import Template
from typing import Any

from acms.errors import ValidationError
from acms_eval.chart_nouns import Chart, Point, tabulate_chart

__all__ = ["Document", "Section", "Table"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Figures in rows, each already formatted as text."""

    title: str
    heads: tuple[str, ...]
    #: The first cell names the row.
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """One question that a report answers."""

    #: Unique in a report: the anchor of the page, the key of the JSON.
    name: str
    title: str
    #: What was measured and how, in paragraphs.
    text: tuple[str, ...]
    tables: tuple[Table, ...] = ()
    charts: tuple[Chart, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A report."""

    title: str
    text: tuple[str, ...]
    #: The settings of the run, such as the embedder.
    settings: Mapping[str, str]
    sections: tuple[Section, ...]
    #: Durations, which differ from run to run.
    times: tuple[Section, ...] = ()
    #: The systems that were not run, and the reasons.
    left_out: Mapping[str, str] = field(default_factory=dict)

    def write(self, folder: str | Path, beside: Mapping[str, str] | None = None) -> list[Path]:
        """Write report.json, report.md, report.html, charts/*.svg and the texts of `beside`, by name; return the files.

        A missing folder is created. Files of these names are replaced.
        """
        from acms_eval.charts import draw_svg  # it brings matplotlib

        folder_path = Path(folder)
        texts = {
            "report.json": self.to_json(),
            "report.md": self.to_markdown(),
            "report.html": self.to_html(),
            **{f"charts/{chart.name}.svg": draw_svg(chart) for chart in self.charts},
            **(beside or {}),
        }
        try:
            for name, text in texts.items():
                (folder_path / name).parent.mkdir(parents=True, exist_ok=True)
                (folder_path / name).write_text(text, encoding="utf-8", newline="\n")
        except OSError as error:
            raise ValidationError(
                f"cannot write to {folder_path}: {error.strerror or error}", field="folder"
            ) from error
        return [folder_path / name for name in texts]

    @property
    def charts(self) -> list[Chart]:
        """Every chart, in order."""
        return [chart for section in (*self.sections, *self.times) for chart in section.charts]

    # ── JSON ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def to_json(self) -> str:
        """Return every figure as JSON, as exactly as it was measured; `times` apart."""
        document = {
            "title": self.title,
            "settings": dict(self.settings),
            "left_out": dict(self.left_out),
            "sections": {section.name: _section_json(section) for section in self.sections},
            "times": {section.name: _section_json(section) for section in self.times},
        }
        return json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n"

    # ── Markdown ────────────────────────────────────────────────────────────────────────────────────────────────────

    def to_markdown(self) -> str:
        """Return the tables, with a link to each chart; the times come last, under a heading of their own."""
        parts = [f"# {self.title}", *self.text]
        for section in self.sections:
            parts += _section_markdown(section, "##")
        if self.left_out:
            parts += ["## Not run", *(f"- {name}: {reason}" for name, reason in self.left_out.items())]
        parts += ["## How it was run", _markdown_table(("setting", "value"), self.settings.items())]
        if self.times:
            parts.append("## Times")
            for section in self.times:
                parts += _section_markdown(section, "###")
        return "\n\n".join(parts) + "\n"

    # ── HTML ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def to_html(self) -> str:
        """Return one page that needs nothing else: no script, no network; light or dark as its reader prefers."""
        from acms_eval.charts import STYLE

        everything = (*self.sections, *self.times)
        template = Template((files("acms_eval") / "data" / "report.html").read_text(encoding="utf-8"))
        settings = "".join(
            f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in self.settings.items()
        )
        items = "".join(
            f"<li>{escape(name)}: {escape(reason)}</li>" for name, reason in self.left_out.items()
        )
        left_out = f"<p>Not run:</p><ul>{items}</ul>" if items else ""
        return template.substitute(
            title=escape(self.title),
            style=STYLE,
            intro=_html_paragraphs(self.text),
            contents="\n".join(
                f'<li><a href="#{escape(section.name)}">{escape(section.title)}</a></li>'
                for section in everything
            ),
            sections="\n".join(map(_section_html, self.sections)),
            times="\n".join(map(_section_html, self.times)),
            settings=f"<dl>{settings}</dl>{left_out}",
        )


# ── a section in each form ──────────────────────────────────────────────────────────────────────────────────────────


def _section_json(section: Section) -> dict[str, Any]:
    return {
        "title": section.title,
        "text": list(section.text),
        "tables": [
            {"title": table.title, "rows": [dict(zip(table.heads, row, strict=True)) for row in table.rows]}
            for table in section.tables
        ],
        "charts": {
            chart.name: {
                "title": chart.title,
                "x": chart.x.label,
                "y": chart.y.label,
                "series": {
                    series.name: [_point_json(point) for point in series.points] for series in chart.series
                },
            }
            for chart in section.charts
        },
    }


def _point_json(point: Point) -> dict[str, Any]:
    figures: dict[str, Any] = {"x": point.x, "y": _finite_or_none(point.y)}
    if point.label:
        figures["label"] = point.label
    if point.low is not None and point.high is not None:
        figures |= {"low": _finite_or_none(point.low), "high": _finite_or_none(point.high)}
    return figures


def _finite_or_none(value: float | None) -> float | None:
    return value if value is not None and isfinite(value) else None


def _section_markdown(section: Section, heading: str) -> list[str]:
    parts = [f"{heading} {section.title}", *section.text]
    for chart in section.charts:
        parts += [f"![{chart.title}](charts/{chart.name}.svg)", _markdown_table(*tabulate_chart(chart))]
    for table in section.tables:
        parts += [*([f"{table.title}:"] if table.title else []), _markdown_table(table.heads, table.rows)]
    return parts


def _markdown_table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [heads, ["---", *["---:"] * (len(heads) - 1)], *rows]
    return "\n".join(f"| {' | '.join(map(_markdown_cell, line))} |" for line in lines)


def _markdown_cell(text: str) -> str:
    return re.sub(r"\s+", " ", text).replace("|", "\\|")


def _html_paragraphs(text: Sequence[str]) -> str:
    return "\n".join(f"<p>{escape(paragraph)}</p>" for paragraph in text)


def _section_html(section: Section) -> str:
    from acms_eval.charts import draw_svg

    parts = [
        f'<section id="{escape(section.name)}">',
        f"<h2>{escape(section.title)}</h2>",
        _html_paragraphs(section.text),
    ]
    for chart in section.charts:
        heads, rows = tabulate_chart(chart)
        parts.append(f"<figure>\n{draw_svg(chart, alone=False)}</figure>")
        table = _html_table(chart.text, heads, rows)
        parts.append(f"<details><summary>The figures: {escape(chart.title)}</summary>\n{table}</details>")
    parts += [_html_table(table.title, table.heads, table.rows) for table in section.tables]
    return "\n".join([*parts, "</section>"])


def _html_table(title: str, heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    caption = f"<caption>{escape(title)}</caption>" if title else ""
    top = "".join(f'<th scope="col">{escape(head)}</th>' for head in heads)
    body = "\n".join(
        f'<tr><th scope="row">{escape(row[0])}</th>'
        + "".join(f"<td>{escape(cell)}</td>" for cell in row[1:])
        + "</tr>"
        for row in rows
    )
    return f'<div class="wide"><table>{caption}<thead><tr>{top}</tr></thead><tbody>\n{body}\n</tbody></table></div>'
