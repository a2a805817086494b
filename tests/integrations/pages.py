"""Runs what a page shows of a framework, and its example: the default environment cannot."""

from __future__ import annotations

import ast
import inspect
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
#: The blocks of a page that say they run here.
_BLOCK = re.compile(r"^```python no-run: by `python -m tests\.integrations [a-z_]+`\n(.*?)^```$", re.M | re.S)


async def run_page(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Run the blocks of `docs/how-to/<name>` in order, in one namespace, and return that."""
    monkeypatch.chdir(folder)
    page = ROOT / "docs" / "how-to" / name
    blocks = _BLOCK.findall(page.read_text(encoding="utf-8"))
    assert blocks
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for block in blocks:
        code = compile(block, str(page), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        if code.co_flags & inspect.CO_COROUTINE:
            await eval(code, namespace)
        else:
            exec(code, namespace)
    return namespace


def run_example(name: str, folder: Path) -> str:
    """Run `examples/integrations/<name>` in its own process and return its output."""
    script = ROOT / "examples" / "integrations" / name
    environment = {**os.environ, "ACMS_EMBEDDER": "none"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", script], cwd=folder, capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
