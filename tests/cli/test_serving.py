"""The command that serves: what it announces, whom it lets in, whom it asks, and how it ends."""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
from typer.testing import CliRunner

from acms.cli.commands import app as commands
from acms.server import App
from tests.server.serving import visited

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the signals of POSIX")


@pytest.fixture
def db(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'log.db'}"


@pytest.fixture(autouse=True)
def _logs() -> Iterator[None]:
    """Take the handler away that `--log` leaves in the process."""
    logger = logging.getLogger("acms")
    before, level = list(logger.handlers), logger.level
    yield
    logger.handlers[:] = before
    logger.setLevel(level)


def test_a_store_is_served_until_the_process_is_told_to_stop(
    db: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def create(client: httpx2.AsyncClient, _: App) -> None:
        assert (await client.post("/api/v1/contexts", json={"key": "u"})).status_code == 201

    done = visited(monkeypatch, create, "serve", "--port", "0", "--log", "--db", db)
    said = r"serving on (\S+) \(nobody needs a key; \1/ is the inspector, \1/docs the reference\)\n"
    assert re.fullmatch(said, done.stdout)
    logged = [json.loads(line) for line in done.stderr.splitlines()]
    assert [one["status"] for one in logged if one.get("operation") == "createContext"] == [201]
    assert "u" in CliRunner().invoke(commands, ["sessions", "--db", db]).stdout


def test_where_keys_are_required_that_is_announced_and_so_it_is(
    db: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def ask(client: httpx2.AsyncClient, _: App) -> None:
        assert (await client.get("/api/v1/contexts")).status_code == 401

    assert CliRunner().invoke(commands, ["keys", "create", "--tenant", "acme", "--db", db]).exit_code == 0
    words = ("serve", "--port", "0", "--auth", "required", "--json", "--db", db)
    done = visited(monkeypatch, ask, *words)
    told = json.loads(done.stdout)
    assert (told["auth"], done.stderr) == ("required", "")
    assert told["url"].startswith("http://127.0.0.1:")
    wrong = CliRunner().invoke(commands, ["serve", "--auth", "maybe", "--db", db])
    assert (wrong.exit_code, wrong.stdout) == (2, "")
    assert "Invalid value for --auth: 'maybe' is not required or off" in wrong.stderr


def test_without_a_key_the_hint_is_about_the_option_that_asks_for_one(db: str) -> None:
    for words, hint in (
        (("--host", "0.0.0.0"), "try: --host 127.0.0.1: on an address of this machine no key is needed"),
        (("--auth", "required"), "try: leave --auth out: without keys, only this machine is served"),
    ):
        refused = CliRunner().invoke(commands, ["serve", "--port", "0", *words, "--db", db])
        assert refused.exit_code == 1
        hints = [line.strip() for line in refused.stderr.splitlines() if "try: " in line]
        assert hints[1:] == [hint]


def test_a_service_asks_what_its_options_name(
    db: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "sources.toml"
    file.write_text('[[sources]]\nlayer = "L2"\nurl = "http://127.0.0.1:9/search"\nname = "handbook"\n')

    async def look(_: httpx2.AsyncClient, app: App) -> None:
        oidc, engine = app.config.oidc, app.stores.engine
        assert oidc is not None
        assert (oidc.issuer, oidc.audience) == ("https://login.example.org", "acms")
        assert (oidc.tenant_claim, oidc.roles_claim, oidc.namespaces_claim) == ("org", "roles", "teams")
        assert [one.name for one in engine.sources] == ["handbook"]
        assert engine.reflector is not None
        assert engine.config.renders.enabled

    tokens = ("--oidc-issuer", "https://login.example.org", "--oidc-audience", "acms")
    claims = ("--oidc-claim", "tenant=org", "--oidc-claim", "namespaces=teams")
    options = ("--sources", str(file), "--reflector", "offline", "--renders")
    done = visited(monkeypatch, look, "serve", "--port", "0", *tokens, *claims, *options, "--db", db)
    assert "(a key is required; " in done.stdout
