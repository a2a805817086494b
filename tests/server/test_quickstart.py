"""The pages about HTTP are true: `acms serve` runs, and so do the lines of curl and of Python behind it."""

from __future__ import annotations

import ast
import asyncio
import inspect
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

DOCS = Path(__file__).parents[2] / "docs" / "how-to"
_FENCE = re.compile(r"^```(?P<info>[^\n`]*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
WRITTEN = "http://127.0.0.1:8000"
"""Where the pages say the service is."""


def code_blocks(page: str) -> list[tuple[str, str]]:
    text = (DOCS / page).read_text(encoding="utf-8")
    return [(found["info"].strip(), found["body"]) for found in _FENCE.finditer(text)]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of `acms serve` as the page starts it, on a free port and with an empty data folder."""
    home = tmp_path_factory.mktemp("home")
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ACMS_")}
    environment = {**kept, "XDG_DATA_HOME": str(home / "data"), "HOME": str(home)}
    served = subprocess.Popen(
        [sys.executable, "-m", "acms.cli", "serve", "--port", "0", "--json"],
        stdout=subprocess.PIPE,
        env=environment,
        text=True,
    )
    try:
        assert served.stdout is not None
        yield json.loads(served.stdout.readline())["url"]
    finally:
        served.terminate()
        served.communicate(timeout=60)
    assert served.returncode in (0, -15)


def page_matches(shown: Any, said: Any) -> bool:
    """Return whether an answer matches the page: `…` matches any text, and omitted fields match."""
    if isinstance(shown, str):
        head, dots, _ = shown.partition("…")
        return shown == said or (
            bool(dots) and (not head or (isinstance(said, str) and said.startswith(head)))
        )
    if isinstance(shown, dict):
        if not isinstance(said, dict):
            return False
        named = {name: value for name, value in shown.items() if name != "…"}
        whole = named.keys() == said.keys() if len(named) == len(shown) else named.keys() <= said.keys()
        return whole and all(page_matches(value, said[name]) for name, value in named.items())
    if isinstance(shown, list):
        return isinstance(said, list) and len(shown) == len(said) and all(map(page_matches, shown, said))
    return shown == said


def test_the_lines_of_curl_do_what_the_page_shows(url: str, tmp_path: Path) -> None:
    missing = [program for program in ("bash", "curl") if shutil.which(program) is None]
    if missing:
        pytest.fail(f"Install {' and '.join(missing)}.", pytrace=False)
    found = [(info, body) for info, body in code_blocks("http.md") if info in ("sh", "json")]
    script = ["set -euo pipefail"]
    shown: list[tuple[int, str]] = []
    for number, (info, body) in enumerate(found):
        if info == "sh":
            script += [f"{{\n{body.replace(WRITTEN, url)}}} > {number}.out"]
        else:
            assert found[number - 1][0] == "sh", f"{body}: what is it an answer to?"
            shown.append((number - 1, body))
    ran = subprocess.run(
        ["bash", "-c", "\n".join(script)], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert ran.returncode == 0, ran.stderr
    assert shown
    for number, body in shown:
        said = json.loads((tmp_path / f"{number}.out").read_text(encoding="utf-8"))
        assert page_matches(json.loads(body), said), f"{body}\nis shown, said was\n{json.dumps(said)}"


def test_the_page_of_the_client_runs(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run its Python in order, in one namespace and an empty folder; `await` works at top level."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "__main__"}
    ran = 0
    with asyncio.Runner() as runner:
        for info, body in code_blocks("client.md"):
            if info != "python no-run: needs a service":
                continue
            code = compile(
                body.replace(WRITTEN, url), "client.md", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
            )
            if code.co_flags & inspect.CO_COROUTINE:

                async def block(code: object = code) -> None:
                    await eval(code, names)  # type: ignore[arg-type]

                runner.run(block())
            else:
                exec(code, names)
            ran += 1
    assert ran > 3
