"""The documentation is true: its Python runs, its links lead somewhere."""

from __future__ import annotations

import ast
import asyncio
import codeop
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [page for page in (*ROOT.glob("*.md"), *sorted(ROOT.glob("docs/**/*.md"))) if page.is_file()]
WITH_CODE = [page for page in PAGES if page.name == "README.md" or page.is_relative_to(ROOT / "docs")]

_FENCE = re.compile(
    r"^(?P<indent> *)```(?P<info>[^\n`]*)\n(?P<body>.*?)^(?P=indent)```$", re.MULTILINE | re.DOTALL
)
_LINK = re.compile(r"\[[^\]\n]*\]\(([^)\s]+)\)")
_SEPARATOR_ROW = re.compile(r" *\|( *:?-+:? *\|)+ *")
_CELL_BORDER = re.compile(r"(?<!\\)\|")
_HEADING = re.compile(r"^#+ +(.+?) *#*$", re.MULTILINE)
#: A block that cannot run says why: ```python no-run: needs a model server
_NO_RUN = re.compile(r"no-run:? +\S.{7,}")
#: Pages that measure for seconds: tests/evaluation/test_report.py writes a report over another one.
_ONCE = ("docs/how-to/report.md",)


def _page_name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def _python_blocks(page: Path) -> Iterator[tuple[int, str, str]]:
    """Yield (line, info, code) of every Python block."""
    text = page.read_text(encoding="utf-8")
    for match in _FENCE.finditer(text):
        language, _, info = match["info"].strip().partition(" ")
        if language in ("python", "py"):
            indent = len(match["indent"])
            code = "".join(line[indent:] or "\n" for line in match["body"].splitlines(keepends=True))
            yield text.count("\n", 0, match.start()) + 2, info.strip(), code


def _page_parameter(page: Path) -> Any:
    """Return a page as a parameter; one that measures for seconds is slow."""
    return pytest.param(page, id=_page_name(page), marks=[pytest.mark.slow] * (_page_name(page) in _ONCE))


@pytest.mark.parametrize("page", [_page_parameter(page) for page in WITH_CODE if any(_python_blocks(page))])
def test_python_blocks_run_and_run_again(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader who pastes a page a second time finds the files of the first, if any: it must still work."""
    monkeypatch.chdir(tmp_path)
    for name in ("ACMS_DB", "OPENAI_API_KEY", "ANTHROPIC_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    _run_page(page)
    if any(tmp_path.iterdir()) and _page_name(page) not in _ONCE:
        _run_page(page)


def _run_page(page: Path) -> None:
    """Run the blocks of a page in order, in one namespace; `await` works at top level."""
    namespace: dict[str, object] = {"__name__": "__main__"}
    with asyncio.Runner() as runner:
        for line, info, source in _python_blocks(page):
            if info:
                assert _NO_RUN.fullmatch(info), (
                    f"{_page_name(page)}:{line}: {info!r} is neither empty nor 'no-run: why'"
                )
                continue
            code = compile(
                "\n" * (line - 1) + source, str(page), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
            )
            if code.co_flags & inspect.CO_COROUTINE:

                async def block(code: object = code) -> None:
                    await eval(code, namespace)

                runner.run(block())
            else:
                exec(code, namespace)


@pytest.mark.parametrize("page", [page for page in WITH_CODE if any(_python_blocks(page))], ids=_page_name)
def test_python_blocks_can_be_pasted_line_by_line(page: Path) -> None:
    """The plain interpreter ends a statement at a blank line, and needs one after an indented block."""
    refused: list[str] = []
    for first_line, _, source in _python_blocks(page):
        refused += _lines_refused_by_the_interpreter(page, first_line, source)
    assert not refused


def _lines_refused_by_the_interpreter(page: Path, first_line: int, source: str) -> list[str]:
    compile_statement = codeop.CommandCompiler()
    compile_statement.compiler.flags |= ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    statement: list[str] = []
    for number, line in enumerate([*source.splitlines(), ""], first_line):
        statement.append(line)
        try:
            complete = compile_statement("\n".join(statement), _page_name(page)) is not None
        except SyntaxError as error:
            return [f"{_page_name(page)}:{number}: {error.msg}"]
        if complete:
            statement.clear()
    return [f"{_page_name(page)}:{first_line}: incomplete"] if any(statement) else []


@pytest.mark.parametrize(
    ("name", "printed"),
    [("tutorial.md", "Decision: PostgreSQL 18"), ("how-to/missing-message.md", "v21 left out (cutoff)")],
)
def test_a_page_prints_the_same_when_it_is_run_again(
    name: str,
    printed: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    page = ROOT / "docs" / name
    _run_page(page)
    first = capsys.readouterr().out
    _run_page(page)
    assert printed in first
    assert capsys.readouterr().out == first


def _heading_slugs(page: Path) -> set[str]:
    text = _FENCE.sub("", page.read_text(encoding="utf-8"))
    return {
        re.sub(r"[^\w\- ]", "", heading.lower().replace("`", "")).strip().replace(" ", "-")
        for heading in _HEADING.findall(text)
    }


@pytest.mark.parametrize("page", PAGES, ids=_page_name)
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"`[^`\n]*`", "", _FENCE.sub("", page.read_text(encoding="utf-8")))
    broken: list[str] = []
    for target in _LINK.findall(text):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        there = file.is_relative_to(ROOT) and file.exists()
        if not there or (anchor and file.suffix == ".md" and anchor not in _heading_slugs(file)):
            broken.append(target)
    assert not broken


def test_decisions_are_short_numbered_and_listed() -> None:
    records = sorted((ROOT / "docs" / "decisions").glob("*.md"))
    assert len({record.name[:4] for record in records}) == len(records)
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    for record in records:
        text = record.read_text(encoding="utf-8")
        assert len(text.splitlines()) <= 35, record.name
        assert re.findall(r"^## (.+)$", text, re.MULTILINE) == ["Context", "Decision", "Consequences"], (
            record.name
        )
        assert f"decisions/{record.name}" in index, f"{record.name} is not in docs/index.md"


def test_decisions_named_in_code_exist() -> None:
    known = {record.name[:4] for record in (ROOT / "docs" / "decisions").glob("*.md")}
    for file in (ROOT / "src").rglob("*"):
        if file.suffix in (".py", ".sql"):
            named = set(re.findall(r"decision (\d{4})", file.read_text(encoding="utf-8")))
            assert named <= known, file.name


# ── tables ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _tables_of_page(page: Path) -> Iterator[list[str]]:
    """Yield the rows of every table: adjacent lines that begin with a vertical bar, outside of code."""
    rows: list[str] = []
    for line in [*_FENCE.sub("", page.read_text(encoding="utf-8")).splitlines(), ""]:
        if line.lstrip().startswith("|"):
            rows.append(line)
        elif rows:
            yield rows
            rows = []


@pytest.mark.parametrize("page", PAGES, ids=_page_name)
def test_a_table_is_whole_and_each_row_has_its_cells(page: Path) -> None:
    """Rows after a blank line are a table without a separator row: they would be shown as text."""
    for header, *rows in _tables_of_page(page):
        separators = [bool(_SEPARATOR_ROW.fullmatch(row)) for row in rows]
        assert separators[:1] == [True], f"no separator row below {header}"
        assert sum(separators) == 1, f"two headers in one table: {header}"
        borders = len(_CELL_BORDER.findall(header))
        for row in rows:
            assert len(_CELL_BORDER.findall(row)) == borders, row
        assert not any(_SEPARATOR_ROW.fullmatch(row) for row in rows[1:]), (
            f"two separator rows below {header}"
        )
