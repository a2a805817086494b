"""Layout: the packages as the architecture page has them, named queries, one test command."""

from __future__ import annotations

import ast
import re
import tomllib
from itertools import product
from pathlib import Path

import pytest

from acms.storage import sql

ROOT = Path(__file__).parents[2]
SRC = ROOT / "src" / "acms"


# ── architecture.md ─────────────────────────────────────────────────────────────────────────────────────────────────

PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")


def test_every_file_named_on_the_page_exists() -> None:
    named = set(re.findall(r"`([\w./-]+\.(?:py|sql|toml|jsonl))`", PAGE))
    assert len(named) > 40
    assert not {name for name in named if not (SRC / name).exists() and not (ROOT / name).exists()}


def test_every_function_and_class_named_on_the_page_is_in_its_file() -> None:
    missing: list[str] = []
    for file, name in re.findall(r"`([\w./-]+\.py)`\s+`(\w+)`", PAGE):
        definition = re.compile(rf"^ *(?:async )?(?:def|class) {name}\b", re.MULTILINE)
        if not definition.search((SRC / file).read_text(encoding="utf-8")):
            missing.append(f"{file} {name}")
    assert not missing


def test_the_layers_of_the_page_are_those_that_are_held() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    (contract,) = [one for one in project["tool"]["importlinter"]["contracts"] if one["id"] == "layers"]
    held = [set(layer.split(" | ")) for layer in contract["layers"]]
    block = PAGE.partition("## Packages")[2].partition("```text\n")[2].partition("```")[0]
    shown = [set(re.split(r"  +", line)[0].split(" · ")) for line in block.splitlines()]
    assert shown == held
    assert {folder.parent.name for folder in SRC.glob("*/__init__.py")} <= set().union(*shown)


def test_no_module_imports_with_a_star() -> None:
    star = re.compile(r"^\s*from \S+ import \*", re.MULTILINE)
    files = [*SRC.rglob("*.py"), *(ROOT / "packages").rglob("*.py")]
    assert not [file for file in files if star.search(file.read_text(encoding="utf-8"))]


# ── queries ─────────────────────────────────────────────────────────────────────────────────────────────────────────

_DIALECTS = sorted(
    file.stem for file in (SRC / "storage" / "sql").glob("*.sql") if not re.search(r"_\d+$", file.stem)
)


def _possible_texts(node: ast.AST, assigned: dict[str, list[ast.expr]]) -> set[str]:
    """Return the strings an expression can be: constants, either branch of an `if`, f-strings of those."""
    if isinstance(node, ast.Constant):
        return {node.value} if isinstance(node.value, str) else set()
    if isinstance(node, ast.FormattedValue):
        return _possible_texts(node.value, assigned)
    if isinstance(node, ast.IfExp):
        return _possible_texts(node.body, assigned) | _possible_texts(node.orelse, assigned)
    if isinstance(node, ast.Name):
        return set().union(*(_possible_texts(value, assigned) for value in assigned.get(node.id, ())))
    if isinstance(node, ast.JoinedStr):
        return set(map("".join, product(*(_possible_texts(part, assigned) for part in node.values))))
    return set()


def _files_of(dialect: str) -> list[Path]:
    """Return the code of a backend; that of its key-value memory is a dialect of its own."""
    storage = SRC / "storage"
    if dialect.startswith("kv_"):
        return [storage / dialect.removeprefix("kv_") / "kv.py", storage / "kv_base.py"]
    own = [file for file in sorted((storage / dialect).glob("*.py")) if file.name != "kv.py"]
    return [*own, storage / "append_rules.py"]


def _last_name(node: ast.expr) -> str:
    """Return the name of an attribute of any object: `sql` of `self._tables.sql`."""
    return ast.unparse(node).rpartition(".")[2].lstrip("_")


def _queries_of(dialect: str) -> tuple[set[str], set[str]]:
    """Return (every string in a backend's code, every one it looks up as a query)."""
    nodes = [
        node for file in _files_of(dialect) for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
    ]
    assigned: dict[str, list[ast.expr]] = {}
    for node in nodes:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            assigned.setdefault(node.targets[0].id, []).append(node.value)
    said: set[str] = set()
    asked: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Constant | ast.JoinedStr):
            said |= _possible_texts(node, assigned)
        elif isinstance(node, ast.Subscript) and _last_name(node.value) == "sql":
            asked |= _possible_texts(node.slice, assigned)
        elif isinstance(node, ast.Call) and _last_name(node.func) in ("row", "rows") and len(node.args) > 1:
            asked |= _possible_texts(node.args[1], assigned)
    return said, asked


@pytest.mark.parametrize("dialect", _DIALECTS)
def test_every_query_is_used_and_every_used_one_exists(dialect: str) -> None:
    written = set(sql.load_queries(dialect))
    said, asked = _queries_of(dialect)
    assert not written - said, "nothing uses these"
    assert not asked - written, "these do not exist"


#: What only one dialect asks. SQLite has one writer, so its append is many small statements inside a transaction, and
#: its keys lie in a table of their own; PostgreSQL appends in one statement, locks rows and searches by indexes.
_OWN = {
    "sqlite": {
        "advance", "count_covered", "count_derived", "due_jobs", "due_jobs_ahead", "forget_key",
        "delete_records_of_tree", "inherited", "insert_job", "insert_key", "jobs_ahead", "key_version", "live",
        "root_itself", "stored_texts",
    },
    "postgres": {
        "append", "append_with_jobs", "cited", "count_searchable", "feed", "hint", "horizon", "keyed", "lock_context",
        "lock_root", "lock_tree", "nearest", "places", "searchable_at", "searchable_vectors_at", "written",
    },
}  # fmt: skip


@pytest.mark.parametrize("of", ["", "kv_"], ids=["logs", "key-value memory"])
def test_dialects_have_the_same_queries(of: str) -> None:
    family = [dialect for dialect in _DIALECTS if dialect.startswith("kv_") == bool(of)]
    names = {dialect: set(sql.load_queries(dialect)) for dialect in family}
    own = {dialect: _OWN.get(dialect, set()) for dialect in family}
    assert len({frozenset(names[dialect] - own[dialect]) for dialect in family}) == 1
    for dialect in family:
        others = set().union(*(names[other] for other in family if other != dialect))
        assert own[dialect] <= names[dialect] - others, dialect


def test_no_query_name_is_written_twice() -> None:
    for dialect in _DIALECTS:
        text = (SRC / "storage" / "sql" / f"{dialect}.sql").read_text(encoding="utf-8")
        code = re.sub(r"^--.*$", "", text, flags=re.MULTILINE)
        fragments = re.findall(r"^-- fragment: (\w+)", text, re.MULTILINE)
        queries = re.findall(r"^-- name: (\w+)", text, re.MULTILINE)
        assert len(queries) == len(set(queries))
        assert set(re.findall(r"@(\w+)", code)) == set(fragments)


# ── manners ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_nothing_is_left_for_later() -> None:
    mark = re.compile(r"\b(?:TO" + r"DO|FIX" + r"ME|X" + r"XX|HA" + r"CK)\b")
    left: list[str] = []
    for folder in ("src", "tests", "benchmarks", "examples"):
        for file in (ROOT / folder).rglob("*"):
            if file.suffix in (".py", ".sql") and mark.search(file.read_text(encoding="utf-8")):
                left.append(file.relative_to(ROOT).as_posix())
    assert not left


def test_readme_and_ci_run_the_same_command() -> None:
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    commands = [line for line in script.splitlines() if "uv run --locked" in line]
    assert len(commands) == 1
    assert commands[0] in (ROOT / "README.md").read_text(encoding="utf-8").splitlines()


def test_readme_and_workflow_run_the_same_demo() -> None:
    workflow = (ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8")
    found = re.search(r"^ *- run: (.*acms demo)$", workflow, re.MULTILINE)
    assert found
    assert found[1] in (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert "- run: bash .ci/run" in workflow
