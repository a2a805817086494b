"""The examples are true: those of README.md as pasted into a file, those in examples/ as scripts."""

from __future__ import annotations

import asyncio
import importlib.util
import re
import runpy
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx2
import pytest

from tests.conventions import readme

ROOT = Path(__file__).parents[2]
#: What each script prints when it has done what it says.
SCRIPTS = {
    "agent_loop": r"assistant: We said: the orders service runs on PostgreSQL 18\.",
    "facts": r"deadline \| March 20 \(active\)",
    "first_hour": r"http +recall, fork, diff, compact, facts, erase and export at http://127\.0\.0\.1:\d+\n$",
    "langchain_agent": r"friday: We said: the orders service runs on PostgreSQL 18\.\nsomebody else: I do not know",
    "langgraph_store": r"ana: Where do my deploys go\? → You said: My deploys go to Frankfurt\.\nben: .* I do not know",
    "openai_agent": r"friday: We said: the orders service runs on PostgreSQL 18\.",
    "quickstart": r"at version 1: user: Which database should the orders service use\?",
    "several_agents": r"researcher: It has 4\.2 billion rows[\s\S]*3 answers .* 1 active\nthe guest sees it no more",
}


@pytest.fixture
def _loop() -> Iterator[None]:
    """The loop of a script that runs none of its own: `run_sync` of a framework would leave one open."""
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    yield
    asyncio.set_event_loop(None)
    loop.close()


@pytest.fixture
def here(
    _loop: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[[Path], str]:
    """Run scripts in this process: each of its own would load ACMS and a vocabulary. `.ci/release` runs some alone."""

    def run(script: Path) -> str:
        monkeypatch.setattr(sys, "argv", [str(script)])
        runpy.run_path(str(script), run_name="__main__")
        return capsys.readouterr().out

    monkeypatch.chdir(tmp_path)
    return run


def test_readme_examples_print_what_they_promise_twice(tmp_path: Path, here: Callable[[Path], str]) -> None:
    page = ROOT / "README.md"
    assert len(readme.page_examples(page)) == page.read_text(encoding="utf-8").count("```python\n") >= 3
    for _ in range(2):
        assert readme.run_examples(page, tmp_path, lambda script: (here(script), "")) == []


@pytest.mark.slow
def test_readme_examples_run_in_processes_of_their_own(tmp_path: Path) -> None:
    """As `.ci/release` runs them, with an installed wheel."""
    assert readme.run_examples(ROOT / "README.md", tmp_path) == []


@pytest.mark.parametrize("name", SCRIPTS)
def test_scripts_run(name: str, here: Callable[[Path], str]) -> None:
    printed = here(ROOT / "examples" / f"{name}.py")
    assert re.search(SCRIPTS[name], printed), printed


async def test_the_service_remembers_each_user() -> None:
    spec = importlib.util.spec_from_file_location("service", ROOT / "examples" / "service.py")
    assert spec
    assert spec.loader
    service = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(service)
    app = service.create_app("memory://")
    transport = httpx2.ASGITransport(app)
    async with app.router.lifespan_context(app), httpx2.AsyncClient(transport=transport) as client:
        for user, shown in (("ana", 2), ("ana", 4), ("ben", 2)):
            reply = await client.post(f"http://service/chat/{user}", json={"text": "I am allergic to nuts."})
            assert reply.json()["reply"] == f"I was shown {shown} messages."


def test_every_example_is_run_and_linked() -> None:
    written = {file.stem for file in (ROOT / "examples").glob("*.py")}
    assert written == {*SCRIPTS, "service"}
    pages = "".join(page.read_text(encoding="utf-8") for page in (ROOT / "docs").rglob("*.md"))
    assert {name for name in written if f"examples/{name}.py" not in pages} == set()
