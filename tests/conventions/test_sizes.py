"""Sizes that serve the reader: functions, branches, files, folders, depth of inheritance.

Larger ones are listed with their size. A list only shrinks: an entry that is no longer needed fails.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections import Counter

from tests.conventions.code import EVALUATION, ROOT, SRC, iterate_functions, module_files, parse_file

FUNCTION_LINES = 60
COMPLEXITY = 12
FILE_LINES = 800
FOLDER_FILES = 30
INHERITANCE = 3
"""Classes of ACMS one behind the other, the class itself included; errors have a tree of their own."""

LONG_FUNCTIONS = {}
COMPLEX_FUNCTIONS: dict[str, int] = {}
LONG_FILES: dict[str, int] = {}
LARGE_FOLDERS: dict[str, int] = {}
DEEP_CLASSES = {
    "server.routes.compaction.ListCompactions": 4,
    "server.routes.contexts.ListContexts": 4,
    "server.routes.facts.ListEpisodes": 4,
    "server.routes.facts.ListFacts": 4,
    "server.routes.forks.DiffQuery": 4,
    "server.routes.forks.ForkBody": 4,
    "server.routes.forks.TagBody": 4,
    "server.routes.history.HistoryQuery": 4,
    "server.routes.history.WindowQuery": 4,
}


def _assert_within(found: dict[str, int], most: int, allowed: dict[str, int]) -> None:
    over = {name: size for name, size in found.items() if size > allowed.get(name, most)}
    assert over == {}, f"more than {most}"
    done = [name for name in allowed if found.get(name, 0) <= most]
    assert not done, "within the limit, or gone: take it off the list"


def _count_body_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """The lines of a function without its signature and docstring: nobody should save on these."""
    has_docstring = ast.get_docstring(function) is not None
    statements = function.body[1:] if has_docstring else function.body
    return (function.end_lineno or 0) - statements[0].lineno + 1 if statements else 0


def test_functions_are_short() -> None:
    lengths = Counter[str]()
    for name, function in iterate_functions():
        lengths[name] = max(lengths[name], _count_body_lines(function))
    _assert_within(lengths, FUNCTION_LINES, LONG_FUNCTIONS)


def test_functions_have_few_branches() -> None:
    command = ["check", "--select", "C901", "--config", f"lint.mccabe.max-complexity={COMPLEXITY}"]
    options = ["--output-format", "json", "--ignore-noqa", "--no-cache", str(SRC), str(EVALUATION)]
    ran = subprocess.run(
        [sys.executable, "-m", "ruff", *command, *options], cwd=ROOT, capture_output=True, text=True
    )
    assert ran.returncode in (0, 1), ran.stderr
    files = {str(file): name for name, file in module_files().items()}
    found: dict[str, int] = {}
    for problem in json.loads(ran.stdout):
        match = re.match(r"`(\w+)` is too complex \((\d+) >", problem["message"])
        assert match
        found[f"{files[problem['filename']]}.{match[1]}"] = int(match[2])
    _assert_within(found, COMPLEXITY, COMPLEX_FUNCTIONS)


def test_files_are_not_endless() -> None:
    lengths = {
        name: len(file.read_text(encoding="utf-8").splitlines()) for name, file in module_files().items()
    }
    _assert_within(lengths, FILE_LINES, LONG_FILES)


def test_folders_can_be_read_at_a_glance() -> None:
    sizes = Counter(file.parent.relative_to(ROOT).as_posix() for file in module_files().values())
    _assert_within(sizes, FOLDER_FILES, LARGE_FOLDERS)


def test_inheritance_is_shallow() -> None:
    bases = _bases_of_classes()

    def depth(name: str) -> int:
        return 1 + max((depth(base) for base in bases[name] if base in bases), default=0)

    depths = {name: depth(name) for name in bases if not name.endswith("Error")}
    _assert_within(depths, INHERITANCE, DEEP_CLASSES)


def _bases_of_classes() -> dict[str, list[str]]:
    """Return the names of the classes that each class is made of, as they are imported."""
    found: dict[str, list[str]] = {}
    for module, file in module_files().items():
        tree = parse_file(file)
        known: dict[str, str] = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module:
                origin = node.module.removeprefix("acms.")
                known |= {alias.asname or alias.name: f"{origin}.{alias.name}" for alias in node.names}
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                known[node.name] = f"{module}.{node.name}"
                written = [ast.unparse(base).partition("[")[0] for base in node.bases]
                found[known[node.name]] = [known.get(base, base) for base in written]
    return found
