"""The conformance suite of MCP finds nothing wanting but what is listed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.mcp.conformance import node, run

pytestmark = pytest.mark.slow


@pytest.mark.skipif(
    shutil.which("npm") is None or node() is None, reason="needs npm and a Node of at least 22"
)
def test_nothing_fails_but_what_is_expected(tmp_path: Path) -> None:
    assert run(tmp_path) == 0
