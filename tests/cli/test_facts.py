"""What is known, in a shell: facts, their history and evidence, taking changes back, and asking for more."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from acms import ACMS, open_storage
from acms.cli.commands import app
from acms.knowledge import Proposal
from tests.providers.server import ModelServer
from tests.support.reflectors import Scripted, one, says


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    for name in ("ACMS_DEBUG", "NO_COLOR", "FORCE_COLOR", "TERM", "OPENAI_API_KEY", "ANTHROPIC_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ACMS_DB", url)


def run(*arguments: str, code: int = 0) -> Result:
    where = [] if "--namespace" in arguments else ["--namespace", "team"]
    result = CliRunner().invoke(app, [*arguments, *where])
    assert result.exit_code == code, (result.output, result.exception)
    assert "Traceback" not in result.output
    return result


def call(*arguments: str) -> dict[str, Any]:
    return json.loads(run(*arguments, "--json").stdout)


def refused(*arguments: str, code: int = 1) -> dict[str, Any]:
    return json.loads(run(*arguments, "--json", code=code).stderr)["error"]


def shell(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "acms.cli", *arguments], capture_output=True, text=True, timeout=60, **options
    )


async def say(name: str, *episodes: list[str], reflector: Any = None) -> None:
    async with ACMS(
        name, open_storage(os.environ["ACMS_DB"]), namespace="team", reflector=reflector
    ) as session:
        for texts in episodes:
            for text in texts:
                await session.ingest("user", text, actor_id="Ana")
            await session.ingest("assistant", "Noted.")
            await session.close_episode()
            await session.wait_pending()


@pytest.fixture
def talk() -> None:
    """A session that changed its database: PostgreSQL at first, Spanner now."""
    database = one("orders service", "database", "PostgreSQL", sources=(1,), fact_type="decision")
    region = one("orders service", "region", "Frankfurt", sources=(2,), confidence=0.9)
    nuts = Proposal(
        subject="Ana", attribute="allergy", value="nuts", content="Ana is allergic to nuts.",
        scope="namespace", fact_type="constraint",
    )  # fmt: skip

    city = one("Ana", "city", "Berlin", scope="namespace")

    def later(request: Any) -> Any:
        newest = request.turns[0].version
        spanner = replace(database, value="Spanner", content="Orders run on Spanner.", sources=(newest,))
        return says(spanner, replace(city, value="Munich"))

    reflector = Scripted(says(database, region, nuts, city), later)
    first = ["We use PostgreSQL for orders.", "They run in Frankfurt.", "I am allergic to nuts."]
    asyncio.run(say("orders", first, ["We moved the orders to Spanner."], reflector=reflector))


def listed(*arguments: str) -> dict[str, dict[str, Any]]:
    return {fact["value"]: fact for fact in call("facts", *arguments)["facts"]}


# ── what is known ───────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.usefixtures("talk")
def test_facts_in_force_are_listed() -> None:
    facts = listed("orders")
    assert set(facts) == {"Spanner", "Frankfurt"}
    lines = run("facts", "orders").stdout.splitlines()
    assert lines[0].split() == [
        "value", "subject", "attribute", "version", "sure", "from", "type", "since", "id",
    ]  # fmt: skip
    (line,) = [line for line in lines if "Frankfurt" in line]
    for shown in (f"v{facts['Frankfurt']['version']}", facts["Frankfurt"]["id"], "0.90", "v2", "region"):
        assert shown in line.split()
    assert run("facts", "list", "orders").stdout.splitlines() == lines


@pytest.mark.usefixtures("talk")
def test_the_list_is_cut_by_address_type_scope_and_version() -> None:
    assert set(listed("orders", "--subject", "the Orders Service", "--attribute", "region")) == {"Frankfurt"}
    assert set(listed("orders", "--type", "decision")) == {"Spanner"}
    assert set(listed("orders", "--scope", "namespace")) == {"nuts", "Munich"}
    before = listed("history", "orders")["PostgreSQL"]["retired"]["version"] - 1
    assert set(listed("orders", "--at", str(before))) == {"PostgreSQL", "Frankfurt"}
    assert (
        run("facts", "orders", "--subject", "the weather").stdout
        == "no facts; acms facts reflect orders finds them\n"
    )


@pytest.mark.usefixtures("talk")
def test_the_history_of_an_address_has_every_value_and_why_it_went() -> None:
    both = call("facts", "history", "orders", "orders service", "database")["facts"]
    assert [fact["value"] for fact in both] == ["PostgreSQL", "Spanner"]
    old, new = both
    assert (old["retired"]["reason"], old["retired"]["by"], new["retired"]) == ("updated", new["id"], None)
    lines = run("facts", "history", "orders", "orders service", "database").stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["value", "PostgreSQL", "Spanner"]
    assert "updated" in lines[1]
    assert f"v{new['version']}" in lines[1]
    assert "active" in lines[2]
    assert set(listed("history", "orders", "orders service")) == {"PostgreSQL", "Spanner", "Frankfurt"}
    assert set(listed("history", "orders")) == {"PostgreSQL", "Spanner", "Frankfurt"}
    assert "nothing was ever known" in run("facts", "history", "orders", "the weather").stdout


@pytest.mark.usefixtures("talk")
def test_why_shows_who_said_it_what_it_replaced_and_what_replaced_it() -> None:
    old = listed("history", "orders")["PostgreSQL"]
    new = listed("orders")["Spanner"]
    why = call("facts", "why", "orders", old["id"])
    assert [(one["speaker"], one["version"], one["session"], one["preview"]) for one in why["sources"]] == [
        ("Ana", 1, "orders", "We use PostgreSQL for orders.")
    ]
    assert why["replaced_by"]["id"] == new["id"]
    assert [one["preview"] for one in why["evidence"]] == ["We moved the orders to Spanner."]
    assert [one["id"] for one in call("facts", "why", "orders", new["id"])["replaced"]] == [old["id"]]
    text = run("facts", "why", "orders", f"v{old['version']}").stdout
    assert text == run("facts", "why", "orders", str(old["version"])).stdout
    for shown in ("PostgreSQL", "Ana", "It was said", f"since v{new['version']}: updated", "facts undo"):
        assert shown in text
    assert "It replaced" in run("facts", "why", "orders", new["id"]).stdout


@pytest.mark.usefixtures("talk")
def test_a_fact_of_the_profile_says_in_which_session_it_was_said() -> None:
    nuts = listed("orders", "--scope", "namespace")["nuts"]
    why = call("facts", "why", "orders", nuts["id"], "--scope", "namespace")
    assert "I am allergic to nuts." in [one["preview"] for one in why["sources"]]
    assert {one["session"] for one in why["sources"]} == {"orders"}
    assert "elsewhere" in run("facts", "orders", "--scope", "namespace").stdout
    sessions = [one["session"] for one in call("sessions")["sessions"]]
    assert sessions == ["orders"]  # the profile is no conversation


@pytest.mark.usefixtures("talk")
def test_undo_brings_back_what_was_replaced() -> None:
    retired = listed("history", "orders")["PostgreSQL"]["retired"]
    undone = call("facts", "undo", "orders", str(retired["version"]))
    assert undone["undone"] == retired["version"]
    assert set(listed("orders")) == {"PostgreSQL", "Frankfurt"}
    assert (
        f"takes back v{undone['version']}" in run("facts", "undo", "orders", f"v{undone['version']}").stdout
    )
    assert set(listed("orders")) == {"Spanner", "Frankfurt"}
    assert call("verify", "orders")["ok"]


@pytest.mark.usefixtures("talk")
def test_undo_in_the_profile() -> None:
    munich = listed("orders", "--scope", "namespace")["Munich"]
    call("facts", "undo", "orders", str(munich["version"]), "--scope", "namespace")
    assert set(listed("orders", "--scope", "namespace")) == {"nuts", "Berlin"}
    assert set(listed("orders")) == {"Spanner", "Frankfurt"}


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)  # the same on every store
@pytest.mark.usefixtures("talk")
def test_what_cannot_be_is_an_error_in_words() -> None:
    assert refused("facts", "nobody")["code"] == "SESSION_NOT_FOUND"
    assert refused("facts", "why", "orders", "f_nobody")["code"] == "ENTRY_NOT_FOUND"
    assert refused("facts", "undo", "orders", "9999")["code"]
    assert refused("facts", "undo", "orders", "1", "--scope", "namespace", "--namespace", "x")["code"]
    for wrong in (
        ("facts",), ("facts", "why", "orders"), ("facts", "undo", "orders", "soon"), ("facts", "list"),
        ("facts", "orders", "--scope", "world"), ("facts", "list", "orders", "more"),
        ("facts", "history", "orders", "a", "b", "c"), ("facts", "undo", "orders", "5", "--at", "3"),
        ("facts", "why", "orders", "5", "--type", "goal"),
    ):  # fmt: skip
        run(*wrong, code=2)


def test_a_session_may_be_called_like_a_word() -> None:
    asyncio.run(say("history", ["Nothing."]))
    assert call("facts", "list", "history")["facts"] == []


# ── reflect ─────────────────────────────────────────────────────────────────────────────────────────────────────────

PLAIN = ["Constraint: the deadline is March 15.", "Decision: we use PostgreSQL for the orders service."]


def test_reflect_and_wait_finds_facts_without_a_model() -> None:
    asyncio.run(say("plain", PLAIN))
    assert listed("plain") == {}
    assert (
        run("sessions", "episodes", "plain", "--full").stdout == run("sessions", "episodes", "plain").stdout
    )  # no summary yet
    done = call("facts", "reflect", "plain", "--wait")
    (trace,) = done["reflected"]
    assert (trace["episodes"], done["waiting"]) == ([1], 0)
    assert {"March 15", "PostgreSQL"} <= set(listed("plain"))
    (closed,) = call("sessions", "episodes", "plain")["episodes"]
    assert (closed["ordinal"], closed["reason"]) == (1, "manual")
    assert closed["summary"]
    assert "manual" in run("sessions", "episodes", "plain").stdout
    assert closed["summary"].splitlines()[0] in run("sessions", "episodes", "plain", "--full").stdout
    assert call("facts", "reflect", "plain", "--wait")["reflected"] == []
    assert "0 episodes" in run("facts", "reflect", "plain", "--wait").stdout


def test_reflect_shows_what_became_of_each_proposal() -> None:
    asyncio.run(say("plain", PLAIN))
    lines = run("facts", "reflect", "plain", "--wait", "--reflector", "offline").stdout.splitlines()
    assert lines[0].split() == ["value", "outcome", "subject", "attribute", "reason", "asked"]
    assert any("  added  " in line and "March 15" in line for line in lines)
    assert lines[-1] == "1 episode reflected on; 0 are too short yet and wait"


def test_a_worker_reflects_when_nobody_waits() -> None:
    asyncio.run(say("plain", PLAIN))
    asked = call("facts", "reflect", "plain")
    assert "waiting for a worker" in run("facts", "reflect", "plain").stdout
    assert call("facts", "reflect", "plain")["job"] == asked["job"]
    done = shell("worker", "--once")
    assert done.returncode == 0, done.stderr
    assert f"job {asked['job']} reflect done" in done.stdout
    assert "PostgreSQL" in listed("plain")
    assert call("sessions", "stats", "plain")["facts"] == len(listed("plain"))


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)  # the same on every store
async def test_a_worker_reflects_with_a_model_whose_key_is_in_its_environment() -> None:
    fact = {
        "action": "add", "subject": "project", "attribute": "deadline", "value": "March 15",
        "content": "The deadline is March 15.", "confidence": 0.9,
    }  # fmt: skip
    await say("plain", PLAIN)
    async with ModelServer(say=lambda body: json.dumps({"proposals": [fact]})) as server:
        model = ("--reflector", "http", "--url", server.url, "--model", "test-model")
        asked = await asyncio.to_thread(
            shell, "facts", "reflect", "plain", *model, "--json", "--namespace", "team"
        )
        job = json.loads(asked.stdout)["job"]
        assert (
            "done" not in (await asyncio.to_thread(shell, "worker", "--once")).stdout
        )  # it has no such model
        environment = {**os.environ, "ACMS_MODEL_KEY": "sk-secret"}
        done = await asyncio.to_thread(shell, "worker", "--once", *model, env=environment)
        assert done.returncode == 0, done.stderr
        assert f"job {job} reflect:test-model done" in done.stdout
        assert [call.key for call in server.calls] == ["sk-secret"]
        assert "sk-secret" not in done.stdout + done.stderr
    assert set(await asyncio.to_thread(listed, "plain")) == {"March 15"}


IMPATIENT = "import acms.cli.output as r; r.PATIENCE = 0.0; from acms.cli import main; main()"
"""The shell, for someone who waits no second before a bar is shown."""


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)  # the same on every store
def test_reflect_shows_how_far_it_is_in_a_terminal() -> None:
    pty = pytest.importorskip("pty", reason="no terminals here")
    asyncio.run(say("plain", PLAIN))
    ours, theirs = pty.openpty()
    child = subprocess.Popen(
        [sys.executable, "-c", IMPATIENT, "facts", "reflect", "plain", "--wait", "--namespace", "team"],
        stdout=subprocess.DEVNULL,
        stderr=theirs,
        env={**os.environ, "TERM": "xterm-256color", "COLUMNS": "100"},
    )
    os.close(theirs)
    seen = b""
    while True:
        try:
            block = os.read(ours, 65536)
        except OSError:
            break
        if not block:
            break
        seen += block
    os.close(ours)
    assert child.wait() == 0
    assert b"reflecting" in seen
    assert b"1/1" in seen


def test_an_unknown_reflector_and_a_key_on_the_command_line_are_refused() -> None:
    asyncio.run(say("plain", PLAIN))
    assert "offline" in json.dumps(refused("facts", "reflect", "plain", "--reflector", "oracle", code=2))
    assert "offline" in json.dumps(refused("worker", "--once", "--reflector", "oracle", code=2))
    for command in (("facts", "reflect", "plain"), ("worker", "--once")):
        run(*command, "--reflector", "http", "--api-key", "secret", code=2)
        wrong = refused(*command, "--reflector", "http", "--url", "ftp://models", "--model", "qwen3")
        assert wrong["message"].startswith("--url must be an address")


def test_a_worker_says_which_kinds_it_can_do_when_its_reflector_has_another_name() -> None:
    model = ("--reflector", "http", "--url", "http://127.0.0.1:1/v1", "--model", "qwen3")
    told = json.dumps(refused("worker", "--once", *model, "--kinds", "reflect:qwen"))
    assert "cannot run reflect:qwen, only adopt, collect, compact, expire, reflect, reflect:qwen3" in told


def test_facts_by_hand() -> None:
    """The same again changes nothing, the list says until when, and an erasure says what it leaves."""
    asyncio.run(say("ana", ["The till runs on PostgreSQL 18."]))
    stating = (
        "facts",
        "state",
        "ana",
        "orders service",
        "database",
        "PostgreSQL 18",
        "--name",
        "till",
        "--valid-to",
        "2990-01-01",
    )
    first, again = call(*stating), call(*stating)
    assert (first["new"], again["new"]) == (True, False)
    assert first["fact"] == again["fact"]
    assert "PostgreSQL 18 [until 2990-01-01]" in " ".join(run("facts", "ana").stdout.split())
    assert [one["value"] for one in call("facts", "ana", "--valid-at", "now")["facts"]] == ["PostgreSQL 18"]
    assert call("facts", "ana", "--valid-at", "2990-01-01")["facts"] == []
    run("facts", "ana", "--valid-at", "soon", code=2)
    run("facts", "history", "ana", "--valid-at", "now", code=2)
    stating_badly = ("facts", "state", "ana", "x", "y", "z", "--valid-from", "soon")
    assert refused(*stating_badly, code=2)["code"] == "VALIDATION"
    known = ("facts", "state", "ana", "till", "owner")
    assert refused(*known, "Ada", "--expected", "7")["code"] == "PRECONDITION"
    owner = call(*known, "Ada", "--expected", "0")["fact"]
    assert call(*known, "Grace", "--expected", str(owner["version"]))["new"]
    shared = call("facts", "state", "ana", "team", "city", "Lyon", "--scope", "namespace")
    assert (shared["new"], call("facts", "ana", "--subject", "team")["facts"]) == (True, [])
    assert not call("facts", "state", "ana", "team", "city", "Lyon", "--scope", "namespace")["new"]
    assert [one["value"] for one in call("facts", "ana", "--scope", "namespace")["facts"]] == ["Lyon"]
    run(*known, "Ada", "--scope", "everything", code=2)
    assert (
        call("facts", "unstate", "ana", "team", "city", "--scope", "namespace")["facts"][0]["value"] == "Lyon"
    )
    source = call("history", "ana")["entries"][0]["id"]
    done = run("erase", "ana", "--message", source, "--yes").stdout
    assert f"acms erase ana --message {first['fact']['id']}" in " ".join(done.split())
    assert "v" in run("facts", "unstate", "ana", "orders service", "database").stdout
    assert call("facts", "unstate", "ana", "orders service", "database")["facts"] == []


def test_the_log_behind_the_profile_can_be_looked_at() -> None:
    run("add", "orders", "user", "hello")
    run("facts", "state", "orders", "team", "city", "Lyon", "--scope", "namespace")
    assert "team, city: Lyon" in run("history", "@profile").stdout
    assert "reserved" in run("add", "@profile", "user", "hello", "--namespace", "new", code=1).stderr
