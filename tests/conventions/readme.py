"""Paste each Python example of README.md into a file, run it, and compare its output.

    python tests/conventions/readme.py README.md

It needs nothing but an installed ACMS and the interpreter that runs it.
"""

from __future__ import annotations

import difflib
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

_EXAMPLE = re.compile(r"^```python\n(.*?)^```\n\n```text\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def page_examples(page: Path) -> list[tuple[str, str]]:
    """Return every Python block with the output that follows it."""
    return _EXAMPLE.findall(page.read_text(encoding="utf-8"))


def run_script(script: Path) -> tuple[str, str]:
    """Run a script in its own process; return its output, and the error it ended with, if any."""
    done = subprocess.run(
        [sys.executable, script.name], cwd=script.parent, capture_output=True, text=True, encoding="utf-8"
    )
    return done.stdout, (done.stderr or str(done.returncode)) if done.returncode else ""


def run_examples(
    page: Path, folder: Path, start: Callable[[Path], tuple[str, str]] = run_script
) -> list[str]:
    """Run the examples in order in one folder; return how outputs differ from what the page promises."""
    differences: list[str] = []
    for number, (code, promised) in enumerate(page_examples(page), 1):
        script = folder / f"example{number}.py"
        script.write_text(code, encoding="utf-8")
        printed, error = start(script)
        if printed != promised or error:
            lines = difflib.unified_diff(promised.splitlines(), printed.splitlines(), "README", script.name)
            differences.append("\n".join([*lines, error]))
    return differences


if __name__ == "__main__":
    readme = Path(sys.argv[1])
    with tempfile.TemporaryDirectory() as temporary:
        found = run_examples(readme, Path(temporary)) + run_examples(readme, Path(temporary))
    print(
        "\n".join(found)
        or f"{len(page_examples(readme))} examples, each run twice, print what {readme.name} promises"
    )
    sys.exit(bool(found))
