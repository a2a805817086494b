"""The commands about the gateway."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from typer.testing import CliRunner

from acms.cli.commands import app
from acms.gateway import GatewayConfig
from tests.gateway.conversations import Conversation
from tests.gateway.serving import running_gateway, serve_app
from tests.gateway.upstream import Upstream


def run(*words: str) -> Any:
    done = CliRunner().invoke(app, ["gateway", *words, "--json"])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


@contextmanager
def served(db: str, upstream: str, *options: str, kills: bool = False) -> Generator[str]:
    """Run the command, and yield its URL; end it by SIGTERM or SIGKILL."""
    command = [sys.executable, "-m", "acms.cli", "gateway", "--json", "--db", db, "--port", "0"]
    command += ["--upstream", f"openai={upstream}", "--embedder", "none", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield json.loads(process.stdout.readline())["url"]
        finally:
            process.kill() if kills else process.terminate()


def test_the_command_serves_and_the_others_say_what_it_did(tmp_path: Path) -> None:
    db = f"sqlite:///{tmp_path / 'log.db'}"
    upstream = Upstream()
    with serve_app(upstream.app, "off") as (address, _), served(db, address, "--budget", "900") as url:
        with httpx2.Client(base_url=url, headers={"authorization": "Bearer k"}, timeout=60) as client:
            talk = Conversation(client, "openai-chat", headers={"x-acms-session": "s1"})
            for turn in range(16):
                talk.say(f"Turn {turn} " + "ledger invoice " * 40)
        assert run("status", "--db", db, "--url", url)["answers"]
    # Decisions are stored behind the answers: all of them are there once the gateway has ended.
    assert sum(run("status", "--db", db, "--url", url)["outcomes"].values()) == 16
    (session,) = run("sessions", "--db", db)["sessions"]
    assert session["session"] == "s1"
    assert session["recalled"] + session["trimmed"] > 0
    newest = run("why", "s1", "--db", db)["requests"][-1]
    assert newest["left_out"]
    assert newest["tokens"] <= newest["budget"] == 900
    assert newest["sent"] < newest["asked"]
    shown = CliRunner().invoke(app, ["gateway", "why", "s1", "--db", db])
    assert "left out of the newest one: messages" in shown.stdout
    stopped = CliRunner().invoke(app, ["gateway", "status", "--url", url, "--db", db]).stdout
    assert f"{url} does not answer" in stopped
    assert db in stopped


def test_why_says_what_was_searched_when_nothing_was_recalled(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'log.db'}"
    with running_gateway(GatewayConfig(recall="namespace"), url) as running:
        Conversation(running.client, "openai-chat").say("ledger invoice " * 40)
        running.settle()
        talk = Conversation(running.client, "openai-chat", headers={"x-acms-session": "birds"})
        talk.say("Where does the penguin live on weekends?")
        running.settle()
    (request,) = run("why", "birds", "--db", url)["requests"]
    assert request["outcome"] == "untouched"
    assert request["not_searched"] == ""
    assert request["search"]["not_shown"] == {"min_relevance": 3}
    assert request["search"]["free"] > 90_000
    shown = CliRunner().invoke(app, ["gateway", "why", "birds", "--db", url]).stdout
    assert "recalled for the newest one: nothing" in shown
    assert "searched and not shown: 3 messages (3 are below the minimum relevance)" in shown


def test_why_says_that_nothing_had_to_be_searched(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'log.db'}"
    with running_gateway(url=url) as running:
        Conversation(running.client, "openai-chat", headers={"x-acms-session": "short"}).say("hello")
        running.settle()
    shown = CliRunner().invoke(app, ["gateway", "why", "short", "--db", url]).stdout
    assert "nothing was searched for the newest one: it fits, and nothing was left out" in shown


def test_why_says_that_a_short_request_was_not_counted(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'log.db'}"
    with running_gateway(url=url) as running:
        Conversation(running.client, "openai-chat", headers={"x-acms-session": "short"}).say("hello")
        running.settle()
    (request,) = run("why", "short", "--db", url)["requests"]
    assert request["asked_tokens"] is None
    shown = CliRunner().invoke(app, ["gateway", "why", "short", "--db", url]).stdout
    assert "without tokens: the request fits the budget even if each byte is a token" in shown


def test_status_names_the_default_store_and_the_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACMS_DB", "")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    shown = CliRunner().invoke(app, ["gateway", "status", "--url", "http://127.0.0.1:9"])
    assert shown.exit_code == 0, shown.output
    assert "http://127.0.0.1:9 does not answer" in shown.stdout
    assert f"sqlite:///{tmp_path}" in shown.stdout


def test_a_store_without_a_gateway_says_so(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["gateway", "sessions", "--db", f"sqlite:///{tmp_path / 'none.db'}"])
    assert done.exit_code == 1
    assert "no gateway has recorded requests" in done.output
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "words",
    [
        ["--recall", "sometimes"],
        ["--budget", "much"],
        ["--upstream", "x"],
        ["--host", "0.0.0.0", "--auth", "off"],
    ],
)
def test_wrong_options_are_errors(words: list[str], tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["gateway", "--db", f"sqlite:///{tmp_path / 'x.db'}", *words])
    assert done.exit_code == 2


def test_an_unknown_session_is_an_error(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'log.db'}"
    with running_gateway(url=url) as running:
        Conversation(running.client, "openai-chat").say("hello")
        running.settle()
    done = CliRunner().invoke(app, ["gateway", "why", "nobody", "--db", url])
    assert done.exit_code == 1
    assert "nobody" in done.output
