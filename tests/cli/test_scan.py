"""`acms scan`: where something sensitive is, how it goes, and nothing of what it says."""

from __future__ import annotations

import asyncio
import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from acms import ACMS, open_storage
from acms.cli.commands import app


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("ACMS_DB", "ACMS_DEBUG", "NO_COLOR", "FORCE_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))


def run(*arguments: str, code: int = 0) -> Result:
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == code, (result.output, result.exception)
    assert "Traceback" not in result.output
    assert "swordfish" not in result.output
    assert "example.com" not in result.output
    return result


def call(*arguments: str, code: int = 0) -> dict[str, Any]:
    return json.loads(run(*arguments, "--json", code=code).stdout)


@pytest.fixture
def db(url: str) -> str:
    """Two sessions with a password and an address each, and one without."""

    async def work() -> None:
        async with open_storage(url) as storage:
            for namespace, name in (("default", "user_123"), ("work", "user 456"), ("work", "quiet")):
                async with ACMS(name, storage, namespace=namespace) as session:
                    await session.ingest("user", "hello there")
                    if name != "quiet":
                        await session.ingest(
                            "user", "the password: swordfish1", metadata={"x": "a@example.com"}
                        )

    asyncio.run(work())
    return url


def test_the_proposed_commands_leave_nothing_to_find(db: str) -> None:
    found = call("scan", "--db", db)
    assert (found["found"], found["affected"], found["contexts"], found["entries"]) == (4, 2, 3, 5)
    for command in dict.fromkeys(one["erase"] for one in found["findings"]):
        name, *words = shlex.split(command)
        assert name == "acms"
        run(*words, "--yes")
    assert call("scan", "--db", db)["found"] == 0


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)  # the same on every store
def test_a_report_for_people_names_places_counts_and_commands(db: str) -> None:
    out = run("scan", "--db", db, "--namespace", "work").output
    rows = [line.split() for line in out.splitlines()]
    assert ["password", "user", "456", "v2", "always", "content"] in [[*row[:4], *row[6:8]] for row in rows]
    assert ["email", "user", "456", "v2", "redact", "metadata.x"] in [[*row[:4], *row[6:8]] for row in rows]
    assert "2 findings in 1 entry: read 3 entries in 2 sessions, by the rules of " in out
    assert "acms erase 'user 456' --message m_" in out
    assert "--namespace work --db " in out


def test_kinds_and_a_session_narrow_the_scan_and_a_limit_the_list(db: str) -> None:
    found = call("scan", "--db", db, "--session", "user_123", "--kinds", "email, iban")
    assert [(one["kind"], one["clear"]) for one in found["findings"]] == [("email", False)]
    found = call("scan", "--db", db, "--limit", "1")
    assert (len(found["findings"]), found["found"]) == (1, 4)
    assert "… and 3 more" in run("scan", "--db", db, "--limit", "1").output


def test_findings_are_a_failure_only_when_asked(db: str) -> None:
    run("scan", "--db", db)
    run("scan", "--db", db, "--fail-on-findings", code=1)
    out = run("scan", "--db", db, "--fail-on-findings", "--session", "quiet", "--namespace", "work").output
    assert "nothing sensitive was found: read 1 entry in 1 session" in out


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)  # the same on every store
def test_wrong_use_leaves_with_two_and_an_unknown_session_with_one(db: str) -> None:
    assert "'passwords' is not one of" in run("scan", "--db", db, "--kinds", "passwords", code=2).output
    assert "SESSION_NOT_FOUND" in run("scan", "--db", db, "--session", "nobody", code=1).output
