"""What the conventions look at: every module of the two distributions, parsed once."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
SRC = ROOT / "src" / "acms"
EVALUATION = ROOT / "packages" / "acms-eval" / "src" / "acms_eval"


@cache
def module_files() -> dict[str, Path]:
    """Return the file of every module by its name without `acms.`: `write.queue`, `acms_eval.report`."""
    found: dict[str, Path] = {}
    for root in (SRC, EVALUATION):
        for file in sorted(root.rglob("*.py")):
            parts = file.relative_to(root.parent).with_suffix("").parts
            kept = [part for part in parts if part not in ("acms", "__init__")]
            found[".".join(kept) or "acms"] = file
    return found


@cache
def parse_file(file: Path) -> ast.Module:
    """Return the syntax tree of a file."""
    return ast.parse(file.read_text(encoding="utf-8"))


def iterate_functions() -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Yield every function with its name, `write.queue.Queue.put`."""
    for name, file in module_files().items():
        yield from _functions_inside(name, parse_file(file))


def _functions_inside(
    name: str, node: ast.AST
) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield f"{name}.{child.name}", child
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield from _functions_inside(f"{name}.{child.name}", child)
        else:
            yield from _functions_inside(name, child)
