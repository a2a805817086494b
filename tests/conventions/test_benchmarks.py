"""Every benchmark can be started: what it imports from the library exists."""

from __future__ import annotations

import ast
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.conftest import ROOT

SCRIPTS = sorted((ROOT / "benchmarks").glob("*.py"))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_what_a_benchmark_imports_exists(script: Path) -> None:
    for node in ast.walk(ast.parse(script.read_text())):
        if not isinstance(node, ast.ImportFrom) or (node.module or "").split(".")[0] not in (
            "acms",
            "acms_eval",
        ):
            continue
        module = import_module(node.module or "")
        for imported in node.names:
            is_module = find_spec(f"{node.module}.{imported.name}") if hasattr(module, "__path__") else None
            assert hasattr(module, imported.name) or is_module, f"{node.module} has no {imported.name}"
