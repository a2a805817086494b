"""What the command line writes: tables and colours for a terminal, plain text for a pipe, JSON for a script."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass, replace
from datetime import datetime
from functools import cached_property
from time import monotonic
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from rich.box import ROUNDED
from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.table import Table
from rich.text import Text

from acms.errors import ACMSError, ValidationError
from acms.log.in_force import preview_text
from acms.model import Entry, Json, ToolCall, client_supplied_key
from acms.ports import Progress
from acms.results import ContextItem, Verdict

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
PATIENCE = 1.0
"""Seconds that pass before a terminal shows that something is being worked on."""
WIDEST = 32
"""Cells that a column may have in a terminal, but the wide one."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table."""

    name: str
    style: str = ""
    right: bool = False
    #: What it says of a thing that is listed: a field of it, by default the one of its own name, or what is made of it.
    of: str | Callable[[Any], object] = ""
    #: Whether it is what the table is about: it gets the room that is left, and columns behind it give way.
    wide: bool = False

    def cell(self, thing: Any) -> str:
        """Return what it says of a thing, as people read it."""
        name = self.of or self.name
        if not isinstance(name, str):
            value = name(thing)
        else:
            value = thing[name] if isinstance(thing, Mapping) else getattr(thing, name)
        if value is None:
            return ""
        if isinstance(value, datetime):
            return f"{value:%Y-%m-%d %H:%M}"
        if isinstance(value, float):
            return f"{value:.2f}"
        return f"{value:,}" if isinstance(value, int) else str(value)


def clean(text: str) -> str:
    """Return a text that cannot steer a terminal: stored text comes from anywhere."""
    return _UNPRINTABLE.sub("\N{REPLACEMENT CHARACTER}", text)


def version(of: Any) -> str:
    """Return where an entry stands, as commands take it."""
    return f"v{of.version}"


def fields_of(value: Any) -> dict[str, Any]:
    """Return a dataclass as what it holds by name."""
    return {field.name: getattr(value, field.name) for field in fields(value)}


def plain(value: Any) -> Json:
    """Return a value as JSON can write it: dataclasses as objects, times in ISO 8601, bytes in hex."""
    if isinstance(value, Entry):
        return plain(fields_of(value) | {"key": client_supplied_key(value.key)})
    if is_dataclass(value) and not isinstance(value, type):
        return plain(fields_of(value))
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
    """Where a command writes its answer, and says that it works when that takes long."""

    def __init__(self, as_json: bool) -> None:
        self.as_json = as_json
        self._bar: Bar | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._began = 0.0
        self._left_out: set[str] = set()

    @cached_property
    def console(self) -> Console | None:
        """Return the terminal; None when the output goes elsewhere."""
        return Console(highlight=False, markup=False, emoji=False) if sys.stdout.isatty() else None

    @cached_property
    def width(self) -> int | None:
        """Return how many cells a line may have; None for no limit, as in a pipe whose reader says nothing."""
        if self.console is not None:
            return self.console.width
        said = os.environ.get("COLUMNS", "")
        return max(40, int(said)) if said.isdecimal() else None

    def show(self, value: Mapping[str, Any], draw: Callable[[], None]) -> None:
        """Write the answer as JSON, or draw it for people."""
        self._end()
        if self.as_json:
            print(json.dumps(plain(value), ensure_ascii=False))
        else:
            draw()

    def line(self, text: str = "", style: str = "") -> None:
        """Write one paragraph."""
        self._end()
        if self.console is None:
            print(clean(text))
        else:
            self.console.print(Text(clean(text), style=style))

    def title(self, text: str) -> None:
        """Write a heading, after an empty line."""
        self.line()
        self.line(text, "bold")

    def list(self, columns: Sequence[Column], things: Iterable[Any], none: str = "") -> None:
        """Write a table with a row for each thing, or a line when there is none."""
        rows = [[column.cell(thing) for column in columns] for thing in things]
        if rows or not none:
            self.table(columns, rows)
        else:
            self.line(none)

    def table(self, columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> None:
        """Write rows under headings; where there is not room for all, the last columns are left out, and told."""
        self._end()
        columns = (
            columns if any(one.wide for one in columns) else [*columns[:-1], replace(columns[-1], wide=True)]
        )
        cells = [[clean(cell) for cell in row] for row in rows]
        widths = [
            max([cell_len(column.name), *(cell_len(row[index]) for row in cells)])
            for index, column in enumerate(columns)
        ]
        kept = self._fitting(columns, widths)
        shown, left = [columns[index] for index in kept], len(columns) - len(kept)
        cells = [[row[index] for index in kept] for row in cells]
        if self.console is None:
            self._aligned(shown, [widths[index] for index in kept], cells)
        else:
            self.console.print(_boxed(shown, cells))
        if left:
            names = ", ".join(column.name for index, column in enumerate(columns) if index not in kept)
            if names not in self._left_out:  # said once
                self._left_out.add(names)
                self.line(f"not enough room for: {names} (--json has them)", "dim")

    def _fitting(self, columns: Sequence[Column], widths: Sequence[int]) -> Sequence[int]:
        """Return the columns for which there is room: the wide one keeps half of a line, if it needs that."""
        kept = list(range(len(columns)))
        if self.width is None:
            return kept
        frame = 3 if self.console is not None else 2
        for index in reversed(range(len(columns))):
            needed = sum(
                min(widths[one], self.width // 2) if columns[one].wide else min(widths[one], WIDEST)
                for one in kept
            )
            if needed + frame * len(kept) + 1 <= self.width:
                break
            if not columns[index].wide:
                kept.remove(index)
        return kept

    def _aligned(
        self, columns: Sequence[Column], widths: Sequence[int], rows: Sequence[Sequence[str]]
    ) -> None:
        room = [min(width, WIDEST) if self.width and not one.wide else width
                for one, width in zip(columns, widths, strict=True)]  # fmt: skip
        if self.width is not None and (over := sum(room) + 2 * (len(room) - 1) - self.width) > 0:
            wide = next(index for index, one in enumerate(columns) if one.wide)
            room[wide] -= over
        for row in ([column.name for column in columns], *rows):
            written: list[str] = []
            for cell, width, column in zip(row, room, columns, strict=True):
                cell = cell if cell_len(cell) <= width else set_cell_size(cell, width - 1).rstrip() + "…"
                gap = " " * (width - cell_len(cell))
                written.append(gap + cell if column.right else cell + gap)
            print("  ".join(written).rstrip())

    @contextmanager
    def progress(self, what: str | None) -> Generator[Progress]:
        """Show a bar on stderr for who waits longer than a second in a terminal; within another, in its place."""
        if what is None or self.as_json or not sys.stderr.isatty() or self._bar is not None:
            yield self._reporting(what)
            return
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bar

        text, count = TextColumn("{task.description}", markup=False), MofNCompleteColumn()
        columns = (text, BarColumn(), count, TimeRemainingColumn())
        self._bar = Bar(*columns, console=Console(stderr=True), transient=True)
        self._bar.add_task(clean(what), total=None)
        self._began = monotonic()
        self._timer = asyncio.get_running_loop().call_later(PATIENCE, self._bar.start)
        try:
            yield self._reporting(None)
        finally:
            self._end()

    def _reporting(self, what: str | None) -> Progress:
        """Return what is called with how much is done, and of how much."""
        bar = self._bar
        if bar is None:
            return lambda done, total: None
        task = bar.task_ids[0]
        if what is not None:
            bar.update(task, description=clean(what))

        def tell(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)
            if monotonic() - self._began > PATIENCE and self._bar is bar:
                bar.start()  # a loop that has no time for a timer

        return tell

    def _end(self) -> None:
        """Take the bar away."""
        if self._bar is not None and self._timer is not None:
            self._timer.cancel()
            self._bar.stop()
            self._bar = None


def _boxed(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> Table:
    """Return a table as a terminal shows it: the wide column is folded, others are cut."""
    table = Table(box=ROUNDED, header_style="bold", border_style="dim")
    for column in columns:
        table.add_column(
            column.name,
            justify="right" if column.right else "left",
            style=column.style or None,
            no_wrap=not column.wide,
            max_width=None if column.wide else WIDEST,
            overflow="fold" if column.wide else "ellipsis",
        )
    for row in rows:
        table.add_row(*map(Text, row))
    return table


_CALL = re.compile(r"\b[\w.]+\([^)]*\),? ?")
_KEYWORD = re.compile(r"\b([a-z_]+)=(True\b|\"[^\"]*\"|\S+)?")


def shell_words(text: str, known: Mapping[str, str] = MappingProxyType({})) -> str:
    """Return a hint in the words of a shell: options in place of keyword arguments, no calls."""

    def option(match: re.Match[str]) -> str:
        flag, value = known.get(match[1]), match[2]
        if flag is None:
            return match[0]
        return flag if value in (None, "True") else f"{flag} {value.strip(chr(34))}"

    text = _KEYWORD.sub(option, _CALL.sub("", text)).strip(" ,:")
    return re.sub(r"\bsession_id\b", lambda match: known.get(match[0], "name"), text)


def error_json(error: ACMSError, known: Mapping[str, str] | None = None) -> dict[str, Json]:
    """Return an error as JSON, in the words of a shell.

    `known` are the options of the command, by the names that arguments have in Python.
    """
    known = known or {}
    field = error.field if isinstance(error, ValidationError) else ""
    message = str(error)
    if field in known:
        message = f"{known[field]}{message.removeprefix(field)}"
    return {
        "code": error.code,
        "message": message,
        "options": [hint for hint in (shell_words(option, known) for option in error.options) if hint],
        "retryable": error.retryable,
        **({"field": field} if field else {}),
    }


def fail(error: ACMSError, as_json: bool, known: Mapping[str, str] | None = None) -> None:
    """Write an error to stderr: what went wrong and what can be done."""
    written = error_json(error, known)
    if as_json:
        print(json.dumps({"error": written}, ensure_ascii=False), file=sys.stderr)
        return
    print(clean(f"error {error.code}: {written['message']}"), file=sys.stderr)
    for option in written["options"]:
        print(clean(f"  try: {option}"), file=sys.stderr)


# ── items and verdicts ──────────────────────────────────────────────────────────────────────────────────────────────


def speaker(item: ContextItem) -> str:
    """Return who speaks: a name, or the role."""
    return item.actor_id or item.role or item.source


def one_line(item: ContextItem) -> str:
    """Return what an item says on one line; a call that says nothing else shows its calls."""
    calls = " ".join(f"{part.name}({part.arguments})" for part in item.parts if isinstance(part, ToolCall))
    return preview_text(item.content or calls, 160) + (" [cut]" if item.truncated else "")


def item_json(item: ContextItem) -> dict[str, Json]:
    """Return an item as JSON; one of a window has no rank."""
    written: dict[str, Json] = plain(item)
    if not item.rank:
        del written["rank"]
    return written


RANKED = (
    Column("text", wide=True, of=one_line),
    Column("score", "green", right=True),
    Column("version", "cyan", right=True, of=version),
    Column("speaker", "yellow", of=speaker),
    Column("source", "magenta"),
    Column("tokens", right=True, of="token_count"),
)
"""Recalled items, the best first."""

WINDOWED = (RANKED[0], RANKED[2], RANKED[3], RANKED[5])
"""Items of a window."""


ENTRIES = (
    Column("text", wide=True, of=lambda entry: preview_text(entry.content, 160)),
    Column("version", "cyan", right=True, of=version),
    Column("speaker", "yellow", of=lambda entry: entry.actor or entry.role or entry.kind),
    Column("tokens", right=True),
)
"""Entries of a log."""


def warn(screen: Screen, warnings: Iterable[str]) -> None:
    """Write each warning as a line of its own."""
    for warning in warnings:
        screen.line(f"warning: {warning}", "yellow")


def decision(verdict: Verdict) -> str:
    """Return what was decided about a candidate."""
    return "shown" if verdict.included else "left out"


def signals(verdict: Verdict) -> str:
    """Return what each signal added, the strongest first."""
    parts = sorted(verdict.parts.items(), key=lambda part: -part[1])
    return " ".join(f"{name} {value:.2f}" for name, value in parts)


LEDGER = (
    Column("reason", wide=True),
    Column("version", "cyan", right=True, of=version),
    Column("decision", of=decision),
    Column("score", "green", right=True),
    Column("rule", "magenta"),
    Column("relevance", right=True),
    Column("boost", right=True),
    Column("tokens", right=True),
    Column("signals", of=signals),
)


def block(screen: Screen, heading: str, text: str) -> None:
    """Write a message in full under its heading."""
    screen.line(heading, "bold cyan")
    screen.line(text)
    screen.line()
