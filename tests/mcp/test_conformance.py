"""The conformance suite of MCP finds only the listed faults."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.mcp.conformance import find_node, run_suite

pytestmark = pytest.mark.slow


def test_nothing_fails_but_what_is_expected(tmp_path: Path) -> None:
    if shutil.which("npm") is None:
        pytest.fail("npm is missing. Install Node.js, which brings it.", pytrace=False)
    if find_node() is None:
        pytest.fail("Node.js 22 or newer is missing. Run: uv sync --group lint", pytrace=False)
    assert run_suite(tmp_path) == 0
