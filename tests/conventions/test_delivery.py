"""The image, the workflows and the site, as far as they can be checked without their hosts."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from tests.conventions.readme import page_examples

ROOT = Path(__file__).parents[2]
DOCKERFILE = ROOT / "deploy" / "Dockerfile"
_KNOWN = {"FROM", "RUN", "COPY", "WORKDIR", "ENV", "USER", "VOLUME", "EXPOSE", "HEALTHCHECK", "CMD"}


def _run_command(*command: str | Path, **env: str) -> str:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=env or None)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def _dockerfile_stages() -> list[list[tuple[str, str]]]:
    """Return the instructions of every stage of the Dockerfile: `("USER", "acms")`."""
    text = re.sub(r"^ *#.*\n", "", DOCKERFILE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    lines = re.sub(r"\\\n *", "", text).split("\n")
    stages: list[list[tuple[str, str]]] = []
    for line in filter(None, lines):
        word, _, rest = line.partition(" ")
        assert word in _KNOWN, line
        if word == "FROM":
            stages.append([])
        stages[-1].append((word, rest))
    return stages


def test_the_image_is_built_in_one_stage_and_run_in_another_by_an_ordinary_user() -> None:
    build, final = _dockerfile_stages()
    assert build[0][1].removesuffix(" AS build") == final[0][1], "one interpreter: the environment is copied"
    words = [word for word, _ in final]
    assert words.index("USER") < words.index("HEALTHCHECK") < words.index("CMD")
    assert dict(final)["USER"] == "acms"
    assert all(part in str(build) for part in ("uv build --wheel", "--require-hashes"))
    copied = [name for word, rest in build if word == "COPY" for name in rest.split()[:-1]]
    assert all((ROOT / name).exists() for name in copied)
    passed = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert set(copied) == {line[1:] for line in passed if line.startswith("!")}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    extras = set(re.findall(r"--extra (\w+)", str(build)))
    assert {"cli", "server"} <= extras <= project["project"]["optional-dependencies"].keys()


def test_compose_starts_the_image_as_a_server_and_as_a_worker() -> None:
    services = yaml.safe_load((ROOT / "deploy" / "compose.yaml").read_text(encoding="utf-8"))["services"]
    assert {name: one["command"].split()[:2] for name, one in services.items() if "build" in one} == {
        "server": ["acms", "serve"],
        "worker": ["acms", "worker"],
    }


def test_workflows_hold_no_known_weakness() -> None:
    zizmor = Path(sys.executable).with_name("zizmor")
    _run_command(zizmor, "--offline", "--no-progress", "--persona", "regular", ROOT / ".github" / "workflows")


def test_a_release_is_the_script_that_runs_here() -> None:
    _run_command("bash", "-n", ROOT / ".ci" / "release")
    for name in ("release", "ci"):
        jobs = yaml.safe_load((ROOT / ".github" / "workflows" / f"{name}.yml").read_text(encoding="utf-8"))[
            "jobs"
        ]
        runs = [step.get("run", "") for job in jobs.values() for step in job["steps"]]
        assert sum("bash .ci/release" in run for run in runs) == 1
    assert "bash .ci/release" in (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")


def test_a_bill_of_materials_names_the_licence_of_each_installed_package(tmp_path: Path) -> None:
    file = tmp_path / "acms-engine.cdx.json"
    components = [{"name": "apsw"}, {"name": "numpy"}, {"name": "no-such-package"}]
    file.write_text(
        json.dumps({"metadata": {"component": {"name": "acms-engine"}}, "components": components})
    )
    printed = _run_command(sys.executable, ROOT / ".ci" / "licences.py", file)
    assert "3 components, without a licence: ['no-such-package']" in printed
    document = json.loads(file.read_text(encoding="utf-8"))
    assert document["metadata"]["component"]["licenses"] == [{"expression": "Apache-2.0"}]
    assert [bool(component.get("licenses")) for component in document["components"]] == [True, True, False]


@pytest.mark.parametrize("project", [ROOT, ROOT / "packages" / "acms-eval"], ids=["acms-engine", "acms-eval"])
def test_the_description_in_a_wheel_links_to_no_file(project: Path) -> None:
    """A wheel has no files beside its code, and there is no public address."""
    settings = tomllib.loads((project / "pyproject.toml").read_text(encoding="utf-8"))
    description = (project / settings["project"]["readme"]).read_text(encoding="utf-8")
    assert not re.findall(r"\]\((?!https?://)|<img|src=", description)


def test_the_description_of_the_package_has_the_first_example_of_the_readme() -> None:
    """So it is executed, and prints what it promises."""
    (example,) = page_examples(ROOT / "PACKAGE.md")
    assert example == page_examples(ROOT / "README.md")[0]


@pytest.mark.slow
def test_the_site_is_built_with_every_page_decision_and_image(tmp_path: Path) -> None:
    _run_command(sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", tmp_path)
    index = (tmp_path / "index.html").read_text(encoding="utf-8")
    for page in (ROOT / "docs").rglob("*.md"):
        name = page.relative_to(ROOT / "docs").with_suffix("").as_posix()
        assert name == "index" or f'href="{name}/"' in index, f"{name} is not in the navigation"
    for file in (*(ROOT / "docs" / "images").iterdir(), *(ROOT / "examples").glob("*.py")):
        assert (tmp_path / file.parent.name / file.name).exists()
