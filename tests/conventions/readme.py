"""Paste each Python example of README.md into a file, run it, and compare what it prints: `python -m tests.conventions.readme`.

It needs nothing but the interpreter that runs it and an installed ACMS.
"""

from __future__ import annotations

import difflib
import re
import subprocess
import sys
import tempfile
from pathlib import Path

README = Path(__file__).parents[2] / "README.md"
_EXAMPLE = re.compile(r"^```python\n(.*?)^```\n\n```text\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def examples() -> list[tuple[str, str]]:
    """Return every Python block with the output that follows it."""
    return _EXAMPLE.findall(README.read_text(encoding="utf-8"))


def run(folder: Path) -> list[str]:
    """Run the examples in order in one folder; return how outputs differ from what the page promises."""
    differences: list[str] = []
    for number, (code, promised) in enumerate(examples(), 1):
        script = folder / f"example{number}.py"
        script.write_text(code, encoding="utf-8")
        done = subprocess.run(
            [sys.executable, script.name], cwd=folder, capture_output=True, text=True, encoding="utf-8"
        )
        if done.stdout != promised or done.returncode:
            lines = difflib.unified_diff(promised.splitlines(), done.stdout.splitlines(), "README", script.name)
            differences.append("\n".join([*lines, done.stderr]))
    return differences


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        found = run(Path(temporary)) + run(Path(temporary))
    print("\n".join(found) or f"{len(examples())} examples, each run twice, print what README.md promises")
    sys.exit(bool(found))
