"""Paste each Python example of README.md into a file, run it, and compare what it prints.

    python tests/conventions/readme.py README.md

It needs nothing but an installed ACMS and the interpreter that runs it.
"""

from __future__ import annotations

import difflib
import re
import subprocess
import sys
import tempfile
from pathlib import Path

_EXAMPLE = re.compile(r"^```python\n(.*?)^```\n\n```text\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def examples(page: Path) -> list[tuple[str, str]]:
    """Return every Python block with the output that follows it."""
    return _EXAMPLE.findall(page.read_text(encoding="utf-8"))


def run(page: Path, folder: Path) -> list[str]:
    """Run the examples in order in one folder; return how outputs differ from what the page promises."""
    differences: list[str] = []
    for number, (code, promised) in enumerate(examples(page), 1):
        script = folder / f"example{number}.py"
        script.write_text(code, encoding="utf-8")
        done = subprocess.run(
            [sys.executable, script.name], cwd=folder, capture_output=True, text=True, encoding="utf-8"
        )
        if done.stdout != promised or done.returncode:
            lines = difflib.unified_diff(
                promised.splitlines(), done.stdout.splitlines(), "README", script.name
            )
            differences.append("\n".join([*lines, done.stderr]))
    return differences


if __name__ == "__main__":
    readme = Path(sys.argv[1])
    with tempfile.TemporaryDirectory() as temporary:
        found = run(readme, Path(temporary)) + run(readme, Path(temporary))
    print(
        "\n".join(found)
        or f"{len(examples(readme))} examples, each run twice, print what {readme.name} promises"
    )
    sys.exit(bool(found))
