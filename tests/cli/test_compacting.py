"""The commands that shorten a log: what they print, as JSON, and with which exit code."""

from __future__ import annotations

import asyncio
import json
import os
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from acms import ACMS, open_storage
from acms.cli.commands import app


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    for name in ("ACMS_DEBUG", "NO_COLOR", "FORCE_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ACMS_DB", url)


@pytest.fixture(autouse=True)
def talk(_clean_environment: None) -> None:
    """Forty messages of user_123."""

    async def do() -> None:
        async with ACMS("user_123", open_storage(os.environ["ACMS_DB"])) as session:
            for n in range(40):
                await session.ingest(
                    "user", f"Step {n}: I copied /srv/orders/part-{n}.csv and then went for lunch."
                )

    asyncio.run(do())


def run(*arguments: str, code: int = 0) -> Result:
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == code, (result.output, result.exception)
    assert "Traceback" not in result.output
    return result


def call(*arguments: str) -> dict[str, Any]:
    return json.loads(run(*arguments, "--json").stdout)


def refused(*arguments: str, code: int = 1) -> dict[str, Any]:
    return json.loads(run(*arguments, "--json", code=code).stderr)["error"]


def test_compact_asks_and_a_worker_does_it() -> None:
    asked = call("compact", "user_123")
    assert asked["compaction"] is None
    assert call("compact", "user_123")["job"] == asked["job"]
    waits = f"job {asked['job']} is waiting for a worker: acms worker runs it, or add --wait to run it here\n"
    assert run("compact", "user_123").stdout == waits
    run("worker", "--once")
    (done,) = call("compact", "list", "user_123")["compactions"]
    assert done["replaces"] == [1, 30]
    assert done["summarizer"] == "extractive2"
    assert set(done["lost"]) == {"counts", "ids"}
    assert len(done["lost"]["ids"]) <= 10


def test_compact_and_wait_shows_what_was_done() -> None:
    done = call("compact", "user_123", "--wait", "--recent", "5", "--tokens", "200")["compaction"]
    assert done["replaces"] == [1, 35]
    assert done["tokens_after"] < done["tokens_before"]
    assert "part-" in run("compact", "list", "user_123", "--full").stdout
    shown = call("window", "user_123", "--budget", "4000")["items"]
    assert [item["version"] for item in shown] == [41, *range(36, 41)]
    assert call("compact", "user_123", "--wait", "--recent", "5")["compaction"] is None
    assert "nothing was compacted: 0 of " in run("compact", "user_123", "--wait", "--recent", "5").stdout


def test_compact_tells_what_the_summary_says_and_what_it_does_not() -> None:
    shown = run("compact", "user_123", "--wait", "--tokens", "120", "--full").stdout
    (done,) = call("compact", "list", "user_123")["compactions"]
    assert "v1-v30" in shown
    assert f"v41\n{done['summary']}\n" in shown
    lost = ", ".join(f"{count} {kind}" for kind, count in done["lost"]["counts"].items())
    assert f"the summary does not say: {lost} ({' '.join(done['lost']['ids'])})\n" in shown
    assert "path" in lost


def test_a_summary_that_says_everything_is_told_without_a_loss() -> None:
    async def walk() -> None:
        async with ACMS("walks", open_storage(os.environ["ACMS_DB"])) as session:
            for _ in range(12):
                await session.ingest("user", "We went for a walk in the garden and had a quiet lunch there.")

    asyncio.run(walk())
    shown = run("compact", "walks", "--wait", "--recent", "2").stdout
    assert "v1-v10" in shown
    assert "does not say" not in shown


def test_expand_and_undo() -> None:
    done = call("compact", "user_123", "--wait")["compaction"]
    entries = call("compact", "expand", "user_123", str(done["version"]))["entries"]
    assert [entry["version"] for entry in entries] == list(range(1, 31))
    assert "part-7.csv" in run("compact", "expand", "user_123", str(done["version"])).stdout
    whole = run("compact", "expand", "user_123", str(done["version"]), "--full").stdout
    assert f"v8 {entries[7]['tokens']} tokens user\n{entries[7]['content']}\n" in whole
    assert call("undo", "user_123", str(done["version"])) == {
        "session": "user_123",
        "version": 42,
        "undone": 41,
    }
    assert [one["in_force"] for one in call("compact", "list", "user_123")["compactions"]] == [False]
    assert call("undo", "user_123", "41")["version"] == 42  # done once, however often it is asked for
    assert refused("undo", "user_123", "3")["field"] == "version"
    assert refused("compact", "expand", "user_123", "3")["code"] == "ENTRY_NOT_FOUND"


def test_a_policy_is_shown_with_its_levels_and_changed_field_by_field() -> None:
    found = call("compact", "policy", "get", "user_123")
    assert found["policy"]["threshold"] == 0.8
    assert set(found["levels"].values()) == {"service"}
    found = call(
        "compact", "policy", "set", "user_123", "--threshold", "0.7", "--budget", "8000", "--disabled"
    )
    assert (found["policy"]["threshold"], found["policy"]["enabled"]) == (0.7, False)
    assert found["levels"]["budget"] == "session"
    run("compact", "policy", "set", "--recent", "3", "--reset", "budget")
    found = call("compact", "policy", "get", "user_123")
    assert (found["policy"]["preserve_recent_count"], found["levels"]["preserve_recent_count"]) == (
        3,
        "namespace",
    )
    found = call("compact", "policy", "set", "user_123", "--reset", "threshold")
    assert (found["policy"]["threshold"], found["levels"]["threshold"]) == (0.8, "service")
    assert "namespace" in run("compact", "policy", "get", "user_123").stdout


def test_a_wrong_policy_is_refused() -> None:
    change = ("compact", "policy", "set", "user_123")
    assert "'--threshold': '2' must be at most 1.0" in refused(*change, "--threshold", "2", code=2)["message"]
    assert "'--budget': '0' must be at least 1" in refused(*change, "--budget", "0", code=2)["message"]
    assert "'nonsense' is not one of threshold" in refused(*change, "--reset", "nonsense", code=2)["message"]
    assert refused(*change)["field"] == "policy"
    assert refused(*change, "--hold", code=2)["field"] == "hold"
    assert call("compact", "policy", "get", "user_123")["policy"]["threshold"] == 0.8


def test_a_hold_and_a_retention_are_shown_where_policies_are() -> None:
    set_policy = ("compact", "policy", "set")
    changed = call(*set_policy, "--hold", "--retention", "100", "--recent", "3")
    assert (changed["namespace"], "session" in changed) == ("default", False)
    assert (changed["policy"]["legal_hold"], changed["policy"]["retention_seconds"]) == (True, 100)
    run(*set_policy, "user_123", "--recent", "4")
    shown = call("compact", "policy", "get", "user_123")
    assert (shown["policy"]["legal_hold"], shown["levels"]["legal_hold"]) == (True, "namespace")
    assert (shown["policy"]["preserve_recent_count"], shown["levels"]["preserve_recent_count"]) == (
        4,
        "session",
    )
    namespace = call(*set_policy, "--keep", "0.5")
    assert namespace["policy"]["preserve_recent_count"] == 3, "that of the namespace, not of the session"
    table = run("compact", "policy", "get", "user_123").stdout.splitlines()
    assert ["legal_hold", "true", "namespace"] in [line.split() for line in table]
    (row,) = call("sessions")["sessions"]
    assert (row["legal_hold"], row["retention_seconds"]) == (True, 100)
    assert "legal hold" in run("sessions").stdout
    stats = call("sessions", "stats", "user_123")
    assert (stats["legal_hold"], stats["retention_seconds"]) == (True, 100)
    run(*set_policy, "--no-hold")
    assert call("compact", "policy", "get", "user_123")["policy"]["legal_hold"] is False
    assert "legal hold" not in run("sessions").stdout


def test_a_hold_of_a_namespace_needs_no_session() -> None:
    of_namespace = ("--namespace", "support")
    run("add", "ticket", "user", "Hello.", *of_namespace)
    run("compact", "policy", "set", "--hold", *of_namespace)
    run("delete", "ticket", "--yes", *of_namespace)
    assert call("compact", "policy", "get", *of_namespace)["policy"]["legal_hold"] is True
    assert refused("erase", "ticket", "--all", "--yes", *of_namespace)["code"] == "LEGAL_HOLD"
    assert call("compact", "policy", "set", "--no-hold", *of_namespace)["policy"]["legal_hold"] is False
    run("erase", "ticket", "--all", "--yes", *of_namespace)


def test_a_hold_on_one_session_is_shown_for_that_session() -> None:
    run("add", "other", "user", "Hello.")

    async def hold() -> None:
        async with open_storage(os.environ["ACMS_DB"]) as storage:
            context = await storage.context("user_123", namespace="default")
            await storage.settings(context.id, {"legal_hold": True}, rev=context.settings_rev)

    asyncio.run(hold())
    assert call("compact", "policy", "get", "user_123")["levels"]["legal_hold"] == "session"
    held = {row["session"]: row["legal_hold"] for row in call("sessions")["sessions"]}
    assert held == {"user_123": True, "other": False}


def test_a_hold_and_a_retention_belong_to_the_namespace() -> None:
    from acms.log import policy as policy_levels

    run("compact", "policy", "set", "--hold", "--retention", "60")

    async def read() -> Any:
        async with open_storage(os.environ["ACMS_DB"]) as storage:
            return dict(await policy_levels.namespace_settings(storage, "default"))

    assert asyncio.run(read()) == {policy_levels.RETENTION: 60, policy_levels.HOLD: True}
    assert [one["session"] for one in call("sessions")["sessions"]] == ["user_123"]
    run("compact", "policy", "set", "--no-hold")
    assert policy_levels.HOLD not in asyncio.run(read())
    run("compact", "policy", "set", "--retention", "0.5")
    assert asyncio.run(read())[policy_levels.RETENTION] == 1, "half a second is not at once"
    assert (
        "must be a number of seconds" in run("compact", "policy", "set", "--retention", "inf", code=2).stderr
    )
