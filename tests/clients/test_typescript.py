"""The TypeScript client: its types are those of the service, it compiles strictly, and its tests pass against it."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.server.serving import serving

CLIENT = Path(__file__).parents[2] / "clients" / "typescript"


@pytest.mark.slow
def test_the_types_are_those_of_the_service_and_the_tests_pass(tmp_path: Path) -> None:
    npm = shutil.which("npm")
    if npm is None:
        pytest.fail("npm is missing. Install Node.js, which brings it.", pytrace=False)
    here = tmp_path / "typescript"
    shutil.copytree(CLIENT, here, ignore=shutil.ignore_patterns("node_modules", "dist"))

    def run(*command: str, url: str = "") -> None:
        done = subprocess.run(
            [npm, *command],
            cwd=here,
            env={**os.environ, "ACMS_URL": url},
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, f"npm {' '.join(command)}\n{done.stdout}\n{done.stderr}"

    run("ci", "--no-audit", "--no-fund")
    with serving(f"sqlite:///{tmp_path}/served.db") as service:
        run("run", "generate", url=service.url)
        made, kept = (one / "src" / "schema.ts" for one in (here, CLIENT))
        assert made.read_text() == kept.read_text(), "npm run generate, and commit src/schema.ts"
        run("test", url=service.url)
