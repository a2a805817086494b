"""`acms render`: a request from a file or from stdin, the reply for people or as it is on the wire."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from acms import ACMS, open_storage
from acms.cli.commands import app
from tests.support.sources import request


@pytest.fixture(autouse=True)
def _talk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/acms.db"
    monkeypatch.setenv("ACMS_DB", url)

    async def say() -> None:
        async with ACMS("u", open_storage(url)) as session:
            await session.ingest("user", "Decision: the orders run on PostgreSQL 18.")
            await session.ingest("user", "The code of the safe is 4711.", privacy="block")

    asyncio.run(say())


def run(*arguments: str, code: int = 0, stdin: str | None = None) -> Result:
    result = CliRunner().invoke(app, ["render", *arguments], input=stdin)
    assert result.exit_code == code, (result.output, result.exception)
    assert "Traceback" not in result.output
    assert "4711" not in result.output
    return result


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "request.json"
    path.write_text(json.dumps(request("which database for orders")), encoding="utf-8")
    return str(path)


def wire(result: Result) -> dict[str, Any]:
    return json.loads(result.stdout)


def test_a_request_in_a_file_is_answered_for_people(file: str) -> None:
    output = run(file, "--session", "u", "--extended").output
    assert "PostgreSQL 18" in output
    assert "fragments" in output


def test_json_is_the_reply_as_it_is_on_the_wire(file: str) -> None:
    reply = wire(run(file, "--session", "u", "--json"))
    assert reply["request_id"] == "req-1"
    assert "source" not in reply["fragments"][0]
    assert wire(run(file, "--session", "u", "--json", "--extended"))["fragments"][0]["source"] == "L2"


def test_why_says_of_every_candidate_what_became_of_it(file: str) -> None:
    output = run(file, "--session", "u", "--why").output
    assert "decision  score" in output
    assert "from L2, among the best that fit, as atomic" in output
    ledger = wire(run(file, "--session", "u", "--json", "--why"))["ledger"]
    assert [(one["included"], one["rule"]) for one in ledger] == [(True, "score"), (True, "score")]


def test_a_request_may_come_from_stdin() -> None:
    reply = wire(run("-", "--session", "u", "--json", stdin=json.dumps(request("orders"))))
    assert reply["fragments"]


def test_an_error_is_a_reply_with_exit_code_1() -> None:
    body = json.dumps(request("orders", tokens=0))
    assert (
        wire(run("-", "--session", "u", "--json", stdin=body, code=1))["error"]["code"] == "BUDGET_TOO_SMALL"
    )
    told = run("-", "--session", "u", stdin=body, code=1).output
    assert "BUDGET_TOO_SMALL" in told
    assert "try: return_minimal" in told


@pytest.mark.parametrize("body", ["", "{", "[]", "{}", json.dumps(request(version="v1"))])
def test_what_is_no_request_is_refused(body: str) -> None:
    error = json.loads(run("-", "--session", "u", "--json", stdin=body, code=1).stderr)["error"]
    assert error["code"] == "VALIDATION"


def test_an_unknown_session_and_a_missing_file_are_told(file: str) -> None:
    run(file, "--session", "nobody", code=1)
    run("there-is-none.json", "--session", "u", code=2)
    run(file, code=2)


def test_a_reply_is_kept_and_shown_like_a_prompt_but_for_a_cache(
    file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACMS_RENDERS_ENABLED", "1")
    run(file, "--session", "u")
    logged = CliRunner().invoke(app, ["prompt", "log", "u", "--json"])
    (kept,) = json.loads(logged.stdout)["renders"]
    assert (kept["kind"], kept["cache"]) == ("acs", None)
    shown = CliRunner().invoke(app, ["prompt", "log", "u", kept["id"]])
    assert shown.exit_code == 0, shown.output
    assert "PostgreSQL 18" in shown.stdout
    assert "from a cache" not in shown.stdout
