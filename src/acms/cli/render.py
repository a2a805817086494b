"""What the command line writes: tables and colours for a terminal, plain text for a pipe, JSON for a script."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass
from datetime import datetime
from functools import cached_property
from typing import Any

from rich.box import ROUNDED
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from acms.errors import ACMSError, ValidationError
from acms.log.in_force import preview
from acms.model import Json, ToolCall
from acms.ports import Progress
from acms.results import ContextItem, ContextItems, Verdict

_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table."""

    name: str
    style: str = ""
    right: bool = False


def clean(text: str) -> str:
    """Return a text that cannot steer a terminal: stored text comes from anywhere."""
    return _UNPRINTABLE.sub("\N{REPLACEMENT CHARACTER}", text)


def plain(value: Any) -> Json:
    """Return a value as JSON can write it: dataclasses as objects, times in ISO 8601, bytes in hex."""
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, str):
        return str(value)
    return value


class Screen:
    """Where a command writes its answer."""

    def __init__(self, as_json: bool) -> None:
        self.as_json = as_json

    @cached_property
    def console(self) -> Console | None:
        """Return the terminal; None when the output goes elsewhere."""
        return Console(highlight=False, markup=False, emoji=False) if sys.stdout.isatty() else None

    def show(self, value: Mapping[str, Any], draw: Callable[[], None]) -> None:
        """Write the answer as JSON, or draw it for people."""
        if self.as_json:
            print(json.dumps(plain(value), ensure_ascii=False))
        else:
            draw()

    def line(self, text: str = "", style: str = "") -> None:
        """Write one paragraph."""
        if self.console is None:
            print(clean(text))
        else:
            self.console.print(Text(clean(text), style=style))

    def title(self, text: str) -> None:
        """Write a heading, after an empty line."""
        self.line()
        self.line(text, "bold")

    def table(self, columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> None:
        """Write rows under headings; the last column takes the room that is left."""
        if self.console is None:
            self._aligned(columns, rows)
            return
        table = Table(box=ROUNDED, header_style="bold", border_style="dim")
        for index, column in enumerate(columns):
            last = index == len(columns) - 1
            table.add_column(
                column.name,
                justify="right" if column.right else "left",
                style=column.style or None,
                no_wrap=not last,
                overflow="fold" if last else "ellipsis",
            )
        for row in rows:
            table.add_row(*(Text(clean(cell)) for cell in row))
        self.console.print(table)

    def _aligned(self, columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> None:
        written = [[column.name for column in columns], *([clean(cell) for cell in row] for row in rows)]
        widths = [max(cell_len(row[index]) for row in written) for index in range(len(columns))]
        for row in written:
            cells: list[str] = []
            for cell, width, column in zip(row, widths, columns, strict=True):
                gap = " " * (width - cell_len(cell))
                cells.append(gap + cell if column.right else cell + gap)
            print("  ".join(cells).rstrip())


def fail(error: ACMSError, as_json: bool) -> None:
    """Write an error to stderr: what went wrong and what can be done."""
    if as_json:
        written: dict[str, Json] = {
            "code": error.code,
            "message": str(error),
            "options": list(error.options),
            "retryable": error.retryable,
        }
        if isinstance(error, ValidationError) and error.field:
            written["field"] = error.field
        print(json.dumps({"error": written}, ensure_ascii=False), file=sys.stderr)
        return
    print(clean(f"error {error.code}: {error}"), file=sys.stderr)
    for option in error.options:
        print(clean(f"  try: {option}"), file=sys.stderr)


@contextmanager
def progress(what: str) -> Generator[Progress]:
    """Show a bar on stderr while something long runs, when somebody is watching."""
    if not sys.stderr.isatty():
        yield lambda done, total: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(clean(what), total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


# ── items and verdicts ──────────────────────────────────────────────────────────────────────────────────────────────


def speaker(item: ContextItem) -> str:
    """Return who speaks: a name, or the role."""
    return item.actor_id or item.role or item.source


def ranked(items: ContextItems) -> list[tuple[int, ContextItem]]:
    """Return (rank, item), best score first."""
    return list(enumerate(sorted(items, key=lambda item: (-item.score, item.version)), 1))


def one_line(item: ContextItem) -> str:
    """Return what an item says on one line; a call that says nothing else shows its calls."""
    calls = " ".join(f"{part.name}({part.arguments})" for part in item.parts if isinstance(part, ToolCall))
    return preview(item.content or calls, 160) + (" [cut]" if item.truncated else "")


def item_json(item: ContextItem, rank: int | None = None) -> dict[str, Json]:
    """Return an item as JSON."""
    return {**({} if rank is None else {"rank": rank}), **plain(item)}


RANKED = (
    Column("rank", right=True),
    Column("score", "green", right=True),
    Column("version", "cyan", right=True),
    Column("source", "magenta"),
    Column("tokens", right=True),
    Column("speaker", "yellow"),
    Column("text"),
)


def ranked_row(rank: int, item: ContextItem) -> list[str]:
    """Return a recalled item as a row of the `RANKED` table."""
    row = [
        str(rank),
        f"{item.score:.2f}",
        f"v{item.version}",
        item.source,
        str(item.token_count),
        speaker(item),
    ]
    return [*row, one_line(item)]


def warn(screen: Screen, warnings: Iterable[str]) -> None:
    """Write each warning as a line of its own."""
    for warning in warnings:
        screen.line(f"warning: {warning}", "yellow")


WINDOWED = (
    Column("version", "cyan", right=True),
    Column("tokens", right=True),
    Column("speaker", "yellow"),
    Column("text"),
)


def windowed_row(item: ContextItem) -> list[str]:
    """Return an item of a window as a row of the `WINDOWED` table."""
    return [f"v{item.version}", str(item.token_count), speaker(item), one_line(item)]


LEDGER = (
    Column("version", "cyan", right=True),
    Column("decision"),
    Column("rule", "magenta"),
    Column("relevance", right=True),
    Column("boost", right=True),
    Column("score", "green", right=True),
    Column("tokens", right=True),
    Column("signals"),
    Column("reason"),
)


def verdict_row(verdict: Verdict) -> list[str]:
    """Return a verdict as a row of the `LEDGER` table."""
    return [
        f"v{verdict.version}",
        "shown" if verdict.included else "left out",
        verdict.rule,
        f"{verdict.relevance:.2f}",
        f"{verdict.boost:.2f}",
        f"{verdict.score:.2f}",
        str(verdict.tokens),
        " ".join(
            f"{name} {value:.2f}" for name, value in sorted(verdict.parts.items(), key=lambda part: -part[1])
        ),
        verdict.reason,
    ]


def block(screen: Screen, heading: str, text: str) -> None:
    """Write a message in full under its heading."""
    screen.line(heading, "bold cyan")
    screen.line(text)
    screen.line()
