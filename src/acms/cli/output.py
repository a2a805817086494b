"""Command output: tables and colours for a terminal, plain text for a pipe, JSON for a script."""

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
from operator import itemgetter
from time import monotonic
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from rich.box import ROUNDED
from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.table import Table
from rich.text import Text

from acms.cli.hints import keep_store
from acms.errors import ACMSError, ValidationError
from acms.log.active_entries import preview_text
from acms.model import Entry, Json, ToolCall, client_supplied_key
from acms.ports import Progress
from acms.results import ContextItem, Verdict

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
PATIENCE = 1.0
"""Seconds before a terminal shows a progress bar: shorter work would only flicker."""
WIDEST = 32
"""Terminal cells of a column that is not wide: enough for an id, and three columns fit in 100 cells."""


def count_noun(count: int, noun: str) -> str:
    """Return a number with its noun: "1 session", "2,000 sessions", "3 entries"."""
    if count == 1:
        return f"1 {noun}"
    return f"{count:,} {noun[:-1]}ies" if noun.endswith("y") else f"{count:,} {noun}s"


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table."""

    name: str
    style: str = ""
    align_right: bool = False
    #: Field of a listed item, or a function of the item. Default: the field with the name of the column.
    value: str | Callable[[Any], object] = ""
    #: Whether it is the main column: it takes the remaining width, and later columns are dropped first.
    wide: bool = False

    def format_cell(self, item: Any) -> str:
        """Return the cell of an item."""
        source = self.value or self.name
        if callable(source):
            value = source(item)
        elif isinstance(item, Mapping):
            value = item[source]
        else:
            value = getattr(item, source)
        if value is None:
            return ""
        if isinstance(value, datetime):
            return f"{value:%Y-%m-%d %H:%M}"
        if isinstance(value, float):
            return f"{value:.2f}"
        if isinstance(value, int):
            return f"{value:,}"
        return str(value)


def strip_control_characters(text: str) -> str:
    """Replace control characters, so that stored text cannot control a terminal."""
    return _UNPRINTABLE.sub("\N{REPLACEMENT CHARACTER}", text)


def _escape_line_breaks(text: str) -> str:
    """Return a text in one line: a cell of a table must not begin a new one."""
    return text.replace("\n", "\\n").replace("\t", "\\t")


def format_version(entry: Any) -> str:
    """Return the version of an entry as commands accept it, such as v12."""
    return f"v{entry.version}"


def fields_of(value: Any) -> dict[str, Any]:
    """Return the fields of a dataclass by name, without copying the values."""
    return {field.name: getattr(value, field.name) for field in fields(value)}


def to_json_value(value: Any) -> Json:
    """Return a value for JSON: dataclasses as objects, times in ISO 8601, bytes in hex."""
    if isinstance(value, Entry):
        return to_json_value(fields_of(value) | {"key": client_supplied_key(value.key)})
    if is_dataclass(value) and not isinstance(value, type):
        return to_json_value(fields_of(value))
    if isinstance(value, Mapping):
        return {str(key): to_json_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_json_value(item) for item in value]
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, str):
        return str(value)
    return value


class Screen:
    """The output of a command, and its progress bar."""

    def __init__(self, as_json: bool) -> None:
        self.as_json = as_json
        self._bar: Bar | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._started_at = 0.0
        self._hidden_columns: set[str] = set()

    @cached_property
    def console(self) -> Console | None:
        """Return the terminal, or None if the output goes elsewhere."""
        return Console(highlight=False, markup=False, emoji=False) if sys.stdout.isatty() else None

    @cached_property
    def width(self) -> int | None:
        """Return the cells of a line, or None for no limit: a pipe without COLUMNS."""
        if self.console is not None:
            return self.console.width
        columns = os.environ.get("COLUMNS", "")
        return max(40, int(columns)) if columns.isdecimal() else None

    def show(self, value: Mapping[str, Any], draw: Callable[[], None]) -> None:
        """Write the result as JSON, or draw it for people."""
        self._remove_bar()
        if self.as_json:
            print(json.dumps(to_json_value(value), ensure_ascii=False))
        else:
            draw()

    def show_line(self, value: Mapping[str, Any], text: str) -> None:
        """Write the result as JSON, or one line for people."""
        self.show(value, lambda: self.line(text))

    def show_list(
        self, value: Mapping[str, Any], columns: Sequence[Column], items: Iterable[Any], if_empty: str = ""
    ) -> None:
        """Write the result as JSON, or a table for people."""
        self.show(value, lambda: self.list(columns, items, if_empty))

    def line(self, text: str = "", style: str = "") -> None:
        """Write one paragraph."""
        self._remove_bar()
        if self.console is None:
            print(strip_control_characters(text))
        else:
            self.console.print(Text(strip_control_characters(text), style=style))

    def title(self, text: str) -> None:
        """Write a heading, after an empty line."""
        self.line()
        self.line(text, "bold")

    def list(self, columns: Sequence[Column], items: Iterable[Any], if_empty: str = "") -> None:
        """Write a table with one row per item, or the line `if_empty` if there are no items."""
        rows = [[column.format_cell(item) for column in columns] for item in items]
        if rows or not if_empty:
            self.table(columns, rows)
        else:
            self.line(keep_store(if_empty))

    def table(self, columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> None:
        """Write rows under headings; the last columns are dropped, with a notice, if the line is too short."""
        self._remove_bar()
        if not any(column.wide for column in columns):  # one column must take what is left of the line
            columns = [*columns[:-1], replace(columns[-1], wide=True)]
        cells = [[_escape_line_breaks(strip_control_characters(cell)) for cell in row] for row in rows]
        widths = [_measure_column(column, index, cells) for index, column in enumerate(columns)]
        visible = self._find_visible_columns(columns, widths)
        visible_columns = [columns[index] for index in visible]
        visible_cells = [[row[index] for index in visible] for row in cells]
        if self.console is None:
            self._write_aligned(visible_columns, [widths[index] for index in visible], visible_cells)
        else:
            self.console.print(_build_table(visible_columns, visible_cells))
        hidden_names = [column.name for index, column in enumerate(columns) if index not in visible]
        if hidden_names:
            self._report_hidden(", ".join(hidden_names))

    def _report_hidden(self, names: str) -> None:
        if names in self._hidden_columns:  # reported once per command
            return
        self._hidden_columns.add(names)
        self.line(f"not enough room for: {names} (--json has them)", "dim")

    def _find_visible_columns(self, columns: Sequence[Column], widths: Sequence[int]) -> Sequence[int]:
        """Return the columns that fit; the wide one may need up to half of the line."""
        visible = list(range(len(columns)))
        if self.width is None:
            return visible
        minimum: list[int] = []
        for column, width in zip(columns, widths, strict=True):
            limit = self.width // 2 if column.wide else WIDEST
            minimum.append(min(width, limit))
        # Characters between two columns: a border with blanks, or two blanks.
        frame = 3 if self.console is not None else 2
        for index in reversed(range(len(columns))):
            needed = sum(minimum[position] + frame for position in visible) + 1
            if needed <= self.width:
                break
            if not columns[index].wide:
                visible.remove(index)
        return visible

    def _write_aligned(
        self, columns: Sequence[Column], widths: Sequence[int], rows: Sequence[Sequence[str]]
    ) -> None:
        if self.width is not None:
            widths = _fit_widths(columns, widths, self.width)
        heading = [column.name for column in columns]
        for row in (heading, *rows):
            aligned = [
                _align_cell(cell, width, align_right=column.align_right)
                for cell, width, column in zip(row, widths, columns, strict=True)
            ]
            print("  ".join(aligned).rstrip())

    @contextmanager
    def progress(self, task: str | None) -> Generator[Progress]:
        """Show a progress bar on stderr if the block takes longer than a second in a terminal.

        Inside another such block, its bar gets the new description.
        """
        if task is None or self.as_json or not sys.stderr.isatty() or self._bar is not None:
            yield self._progress_callback(task)
            return
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bar

        self._bar = Bar(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        self._bar.add_task(strip_control_characters(task), total=None)
        self._started_at = monotonic()
        self._timer = asyncio.get_running_loop().call_later(PATIENCE, self._bar.start)
        try:
            yield self._progress_callback(None)
        finally:
            self._remove_bar()

    def _progress_callback(self, description: str | None) -> Progress:
        """Return a callback that takes the amount done and the total."""
        bar = self._bar
        if bar is None:
            return lambda completed, total: None
        task = bar.task_ids[0]
        if description is not None:
            bar.update(task, description=strip_control_characters(description))

        def report(completed: int, total: int) -> None:
            bar.update(task, completed=completed, total=total)
            is_late = monotonic() - self._started_at > PATIENCE
            if is_late and self._bar is bar:
                bar.start()  # a busy event loop may not have run the timer

        return report

    def _remove_bar(self) -> None:
        if self._bar is None or self._timer is None:
            return
        self._timer.cancel()
        self._bar.stop()
        self._bar = None


def _measure_column(column: Column, index: int, rows: Sequence[Sequence[str]]) -> int:
    """Return the terminal cells of the widest cell, or of the heading."""
    widths = [cell_len(row[index]) for row in rows]
    return max([cell_len(column.name), *widths])


def _fit_widths(columns: Sequence[Column], widths: Sequence[int], line: int) -> Sequence[int]:
    """Limit narrow columns to `WIDEST`, and shorten the wide one until the row fits in the line."""
    fitted: list[int] = []
    for column, width in zip(columns, widths, strict=True):
        fitted.append(width if column.wide else min(width, WIDEST))
    gaps = 2 * (len(fitted) - 1)
    excess = sum(fitted) + gaps - line
    if excess > 0:
        wide = next(index for index, column in enumerate(columns) if column.wide)
        fitted[wide] -= excess
    return fitted


def _align_cell(cell: str, width: int, *, align_right: bool) -> str:
    if cell_len(cell) > width:
        cell = set_cell_size(cell, width - 1).rstrip() + "…"
    padding = " " * (width - cell_len(cell))
    return padding + cell if align_right else cell + padding


def _build_table(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> Table:
    """Return a terminal table: the wide column wraps, the others are truncated."""
    table = Table(box=ROUNDED, header_style="bold", border_style="dim")
    for column in columns:
        table.add_column(
            column.name,
            justify="right" if column.align_right else "left",
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


_COMMANDS = (
    (re.compile(r"\bundo\((\d+)\)"), r"acms undo SESSION \1"),
    (re.compile(r'\bretract\("(\S+)"\)'), r"acms retract SESSION \1"),
    (re.compile(r"\bretract\(id\)"), "acms retract SESSION MESSAGE"),
    (re.compile(r"storage\.settings\(.*"), ""),  # no command brings a deleted session back
    (re.compile(r"\bcompactions\(\)"), "acms compact list SESSION"),
    (re.compile(r"\bwindow\(budget\)"), "acms window SESSION --budget N"),
)
"""Calls that hints name, each with the command that does the same."""


def shell_words(text: str, flags: Mapping[str, str] = MappingProxyType({})) -> str:
    """Return a hint for the shell: commands and options replace calls and keywords; other calls are removed."""

    def replace_keyword(match: re.Match[str]) -> str:
        keyword, value = match.groups()
        flag = flags.get(keyword, "")
        if not flag.startswith("--"):
            return match[0]
        if value is None or value == "True":
            return flag
        unquoted = value.strip('"')
        return f"{flag} {unquoted}"

    for call, command in _COMMANDS:
        text = call.sub(command, text)
    without_calls = _CALL.sub("", text)
    hint = _KEYWORD.sub(replace_keyword, without_calls).strip(" ,:")
    return re.sub(r"\bsession_id\b", flags.get("session_id", "name"), hint)


_HINTS: Mapping[str, tuple[str, ...]] = {
    "ENTRY_NOT_FOUND": ("acms history SESSION lists the entries by version",),
}
"""Hints for errors without any, by code."""


def find_wrong_option(error: ACMSError, flags: Mapping[str, str]) -> str | None:
    """Return the Python name of the option or argument whose value an error is about, or None."""
    if not isinstance(error, ValidationError):
        return None
    argument = re.split(r"[.\[]", error.field)[0]
    return argument if argument in flags else None


def error_json(error: ACMSError, flags: Mapping[str, str] | None = None) -> dict[str, Json]:
    """Return an error as JSON, in shell words; `flags` maps Python names to the command's options and arguments."""
    flags = flags or {}
    field = error.field if isinstance(error, ValidationError) else ""
    message = str(error)
    argument = find_wrong_option(error, flags)
    if argument is not None:
        path = field.removeprefix(argument).removeprefix(".")
        text = message.removeprefix(f"{field}: ")
        message = f"{flags[argument]}: {path}: {text}" if path else f"{flags[argument]}: {text}"
    options = error.options or _HINTS.get(error.code, ())
    hints = [keep_store(shell_words(option, flags)) for option in options]
    value: dict[str, Json] = {
        "code": error.code,
        "message": message,
        "options": [hint for hint in hints if hint],
        "retryable": error.retryable,
    }
    if field:
        value["field"] = field
    return value


def write_error(error: ACMSError, as_json: bool, flags: Mapping[str, str] | None = None) -> None:
    """Write an error and its hints to stderr."""
    value = error_json(error, flags)
    if as_json:
        print(json.dumps({"error": value}, ensure_ascii=False), file=sys.stderr)
        return
    print(strip_control_characters(f"error {error.code}: {value['message']}"), file=sys.stderr)
    for option in value["options"]:
        print(strip_control_characters(f"  try: {option}"), file=sys.stderr)


def write_usage_error(message: str) -> None:
    """Write wrong usage to stderr as JSON."""
    value = {"code": ValidationError.code, "message": message, "options": [], "retryable": False}
    print(json.dumps({"error": value}, ensure_ascii=False), file=sys.stderr)


# ── items and verdicts ──────────────────────────────────────────────────────────────────────────────────────────────


def speaker_name(item: ContextItem) -> str:
    """Return the name of the speaker, else the role or source."""
    return item.actor_id or item.role or item.source


def preview_item(item: ContextItem) -> str:
    """Return an item on one line: its text, or its tool calls if it has no text."""
    text = item.content
    if not text:
        calls = [part for part in item.parts if isinstance(part, ToolCall)]
        text = " ".join(f"{call.name}({call.arguments})" for call in calls)
    preview = preview_text(text, 160)
    if not item.truncated:
        return preview
    return f"{preview} [cut]" if preview else "[none of it fits the budget]"


def item_json(item: ContextItem) -> dict[str, Json]:
    """Return an item as JSON, without a rank if it is from a window, and without what only prompts need."""
    value: dict[str, Json] = to_json_value(item)
    del value["exchange"]
    if not item.rank:
        del value["rank"]
    return value


RANKED = (
    Column("text", wide=True, value=preview_item),
    Column("score", "green", align_right=True),
    Column("version", "cyan", align_right=True, value=format_version),
    Column("speaker", "yellow", value=speaker_name),
    Column("source", "magenta"),
    Column("tokens", align_right=True, value="token_count"),
)
"""Recalled items, the best first."""

WINDOWED = (RANKED[0], RANKED[2], RANKED[3], RANKED[5])
"""Items of a window."""


ENTRIES = (
    Column("text", wide=True, value=lambda entry: preview_text(entry.content, 160)),
    Column("version", "cyan", align_right=True, value=format_version),
    Column("speaker", "yellow", value=lambda entry: entry.actor or entry.role or entry.kind),
    Column("tokens", align_right=True),
)
"""Entries of a log."""

ENTRIES_WITHOUT_TOKENS = ENTRIES[:3]


def describe_waiting_job(job_id: str) -> str:
    """Return how to get the result of a job that no worker has started."""
    return f"job {job_id} is waiting for a worker: {keep_store('acms worker')} runs it, or add --wait to run it here"


def write_warnings(screen: Screen, warnings: Iterable[str]) -> None:
    """Write one line per warning."""
    for warning in warnings:
        screen.line(f"warning: {warning}", "yellow")


def decision_label(verdict: Verdict) -> str:
    """Return the decision about a candidate as text."""
    return "shown" if verdict.included else "left out"


def format_signals(verdict: Verdict) -> str:
    """Return the contribution of each signal, the strongest first."""
    parts = sorted(verdict.parts.items(), key=itemgetter(1), reverse=True)
    return " ".join(f"{name} {value:.2f}" for name, value in parts)


LEDGER = (
    Column("reason", wide=True),
    Column("version", "cyan", align_right=True, value=format_version),
    Column("decision", value=decision_label),
    Column("score", "green", align_right=True),
    Column("rule", "magenta"),
    Column("relevance", align_right=True),
    Column("boost", align_right=True),
    Column("tokens", align_right=True),
    Column("signals", value=format_signals),
)


def write_block(screen: Screen, heading: str, text: str) -> None:
    """Write a message in full under its heading."""
    screen.line(heading, "bold cyan")
    screen.line(text)
    screen.line()
