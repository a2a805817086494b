"""`acms erase`: what it asks, what it takes, what it says."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import apsw
import pytest
from typer.testing import CliRunner, Result

from acms import ACMS, open_storage
from acms.cli.commands import app
from acms.log import policy as policy_levels
from acms.testing.logs import append_drafts, draft_fact, draft_summary

SECRET = "the vault code is seven-four-one-nine"


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("ACMS_DB", "ACMS_DEBUG", "NO_COLOR", "FORCE_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))


@pytest.fixture
def db(url: str) -> str:
    return url


def run(*arguments: str, code: int = 0) -> Result:
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == code, (result.output, result.exception)
    assert "Traceback" not in result.output
    return result


def call(*arguments: str, code: int = 0) -> dict[str, Any]:
    return json.loads(run(*arguments, "--json", code=code).stdout)


@pytest.fixture
def ids(db: str) -> dict[str, str]:
    """Two people in two sessions of two namespaces; the ids of what they said."""

    async def work() -> dict[str, str]:
        found: dict[str, str] = {}
        async with open_storage(db) as storage:
            for namespace, name in (("default", "user_123"), ("work", "user_456")):
                async with ACMS(name, storage, namespace=namespace) as session:
                    for who, text in (("Ana", SECRET), ("Bob", f"hello {namespace}"), ("Ana", "bye then")):
                        found[text] = await session.ingest("user", text, actor_id=who)
            context = await storage.context("user_123")
            found["secret"] = (await storage.read(context.id, limit=1))[0].id
            await append_drafts(
                storage, context, draft_summary(1, 2), draft_fact(SECRET, sources=(found["secret"],))
            )
        return found

    return asyncio.run(work())


def said(db: str, session: str = "user_123", namespace: str = "default") -> list[str]:
    found = call("history", session, "--namespace", namespace, "--db", db)
    return [entry["preview"] for entry in found["entries"]]


def test_a_message_goes_with_what_was_made_from_it_and_the_file_is_searched(
    db: str, ids: dict[str, str], tmp_path: Path
) -> None:
    found = call("erase", "user_123", "--message", ids["secret"], "--verify", "--yes", "--db", db)
    assert (len(found["ids"]), len(found["cascaded"]), found["verified"], found["residue"]) == (
        3,
        2,
        True,
        [],
    )
    assert said(db) == ["", "hello default", "bye then", "", ""]
    again = run("erase", "user_123", "--message", ids["secret"], "--verify", "--yes", "--db", db).stdout
    assert again.startswith(
        "1 entry of user_123: erased 3 entries in 1 session, 2 of them summaries and facts made from others\n"
        "nothing of it is left in the rows of the store; no file was searched for what it said\n"
        "not reached: "
    )
    on_a_server = db.startswith("postgresql")
    assert found["proof"] == ("rows" if on_a_server else "bytes")
    assert len(found["unreached"]) == 3 + on_a_server
    assert call("verify", "--db", db)["ok"]


def test_a_message_goes_by_the_callers_key(db: str, ids: dict[str, str]) -> None:
    run("add", "user_123", "user", SECRET, "--key", "mine", "--db", db)
    found = call("erase", "user_123", "--message", "mine", "--message", ids["secret"], "--yes", "--db", db)
    assert len(found["ids"]) == 4
    assert said(db)[-1] == ""


def test_a_message_goes_by_its_version(db: str, ids: dict[str, str]) -> None:
    found = call("erase", "user_123", "--message", "v1", "--yes", "--db", db)
    assert ids["secret"] in found["ids"]
    assert said(db)[0] == ""


def test_the_message_that_a_fact_was_made_from_stays_and_is_told(db: str, ids: dict[str, str]) -> None:
    entries = map(json.loads, run("export", "user_123", "--db", db).stdout.splitlines()[1:])
    fact = next(entry["id"] for entry in entries if entry["kind"] == "fact")
    assert (
        f"--message {ids['secret']}"
        in run("erase", "user_123", "--message", fact, "--yes", "--db", db).stdout
    )
    assert said(db)[0] == SECRET
    found = call("erase", "user_123", "--message", fact, "--message", ids["secret"], "--yes", "--db", db)
    assert found["remaining"] == []


def test_a_name_that_nobody_has_is_told(db: str, ids: dict[str, str]) -> None:
    """A script that repeats erasures allows for those that were made before."""
    missing = "everything 'Anna' said in every namespace: nothing was found to erase"
    refused = run("erase", "--actor", "Anna", "--yes", "--db", db, code=1)
    assert refused.stderr.startswith(f"error NOT_FOUND: {missing}\n")
    error = json.loads(run("erase", "--actor", "Anna", "--yes", "--json", "--db", db, code=1).stderr)["error"]
    assert (error["code"], error["message"]) == ("NOT_FOUND", missing)
    run("erase", "--namespace-all", "nowhere", "--yes", "--db", db, code=1)
    run("erase", "--actor", "Ana", "--yes", "--db", db)
    repeated = ("erase", "--actor", "Ana", "--verify", "--yes", "--db", db)
    run(*repeated, code=1)
    assert "nothing was found to erase" in run(*repeated, "--missing-ok").stdout
    assert call(*repeated, "--missing-ok")["ids"] == []
    for _ in range(2):  # a namespace keeps its name, so it is found again
        assert call("erase", "--namespace-all", "work", "--yes", "--db", db)["ids"]


def test_a_session_a_person_and_a_namespace(db: str, ids: dict[str, str], tmp_path: Path) -> None:
    assert len(call("erase", "--actor", "Ana", "--namespace", "work", "--yes", "--db", db)["ids"]) == 2
    assert said(db, "user_456", "work") == ["", "hello work", ""]
    assert said(db)[0] == SECRET
    assert len(call("erase", "--actor", "Ana", "--yes", "--verify", "--db", db)["ids"]) == 4
    assert said(db) == ["", "hello default", "", "", ""]
    assert SECRET.encode() not in b"".join(file.read_bytes() for file in tmp_path.glob("log.db*"))
    assert len(call("erase", "--namespace-all", "work", "--yes", "--db", db)["ids"]) == 3
    assert said(db, "user_456", "work") == ["", "", ""]
    run("erase", "user_123", "--all", "--yes", "--db", db)
    assert said(db) == [""] * 5


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)  # the same on every store
@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("user_123",),
        ("user_123", "--all", "--message", "m"),
        ("user_123", "--actor", "Ana"),
        ("--actor", "Ana", "--namespace-all", "work"),
        ("--actor", "Ana", "--all"),
        ("--namespace-all", "work", "--message", "m"),
        ("--namespace-all", "work", "--namespace", "default"),
    ],
)
def test_what_is_not_one_clear_wish_is_wrong_usage(
    db: str, ids: dict[str, str], arguments: tuple[str, ...]
) -> None:
    assert run("erase", *arguments, "--yes", "--db", db, code=2).stdout == ""
    assert said(db)[0] == SECRET


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)  # the same on every store
@pytest.mark.parametrize(
    ("arguments", "code", "field"),
    [
        (("--actor", "*"), "VALIDATION", "actor"),
        (("--actor", ""), "VALIDATION", "actor"),
        (("--namespace-all", " "), "VALIDATION", "namespace_all"),
        (("user_123", "--message", ""), "VALIDATION", "ids"),
        (("user_123", "--message", "m_0000000000000000_1_000000"), "ENTRY_NOT_FOUND", None),
        (("nobody", "--all"), "SESSION_NOT_FOUND", None),
    ],
)
def test_t39_what_names_nobody_erases_nothing(
    db: str, ids: dict[str, str], arguments: tuple[str, ...], code: str, field: str | None
) -> None:
    before = run("export", "user_123", "--db", db).stdout
    exit_code = 2 if field in ("actor", "namespace_all") else 1
    reply = run("erase", *arguments, "--yes", "--json", "--db", db, code=exit_code)
    error = json.loads(reply.stderr)["error"]
    assert (error["code"], error.get("field")) == (code, field)
    assert run("export", "user_123", "--db", db).stdout == before


def test_a_deleted_session_is_listed_and_erased_by_its_name(db: str, ids: dict[str, str]) -> None:
    run("delete", "user_123", "--yes", "--db", db)
    assert call("sessions", "--db", db)["sessions"] == []
    (row,) = call("sessions", "--deleted", "--db", db)["sessions"]
    assert (row["session"], row["messages"], row["deleted_at"] is None) == ("user_123", 3, False)
    assert "deleted" in run("sessions", "--deleted", "--db", db).stdout
    erased = call("erase", "user_123", "--message", ids["secret"], "--yes", "--db", db)
    assert ids["secret"] in erased["ids"]
    assert call("erase", "user_123", "--all", "--verify", "--yes", "--db", db)["verified"]
    (row,) = call("sessions", "--deleted", "--db", db)["sessions"]
    assert row["messages"] == 0


def test_a_hold_is_told(db: str, ids: dict[str, str]) -> None:
    async def hold() -> None:
        async with open_storage(db) as storage:
            await policy_levels.set_hold(storage, "default", True)

    asyncio.run(hold())
    error = json.loads(run("erase", "user_123", "--all", "--yes", "--json", "--db", db, code=1).stderr)[
        "error"
    ]
    assert error["code"] == "LEGAL_HOLD"
    assert said(db)[0] == SECRET
    (hint,) = error["options"]
    command = hint.removesuffix(" lifts it")
    assert command.startswith("acms compact policy set --db ")
    assert command.endswith(" --no-hold")
    run("compact", "policy", "set", "--no-hold", "--db", db)
    run("erase", "user_123", "--all", "--yes", "--db", db)


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)  # about the file
def test_what_is_left_is_told_with_exit_code_1(db: str, ids: dict[str, str], tmp_path: Path) -> None:
    reader = apsw.Connection(str(tmp_path / "log.db"))
    reader.execute("BEGIN; SELECT content FROM entries").fetchall()
    found = call("erase", "user_123", "--all", "--verify", "--yes", "--db", db, code=1)
    assert not found["verified"]
    assert all("log.db" in what for what in found["residue"])
    assert found["residue"]
    reader.close()
    assert said(db) == [""] * 5


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)  # the same on every store
def test_a_pipe_must_say_yes_and_a_terminal_is_asked(db: str, ids: dict[str, str]) -> None:
    assert "--yes" in run("erase", "user_123", "--all", "--db", db, code=2).stderr
    for answer, left in ((b"n\n", SECRET), (b"y\n", "")):
        ours, theirs = pty.openpty()
        with subprocess.Popen(
            [sys.executable, "-m", "acms.cli", "erase", "user_123", "--all", "--db", db],
            stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        ) as process:  # fmt: skip
            os.write(ours, answer)
            output, _ = process.communicate(timeout=60)
        os.close(ours)
        os.close(theirs)
        assert b"There is no way back" in output
        assert said(db)[0] == left


def counters(db: str, session: str, namespace: str) -> list[int]:
    """Return messages and tokens of a session as its stats and as a list of sessions have them."""
    stats = call("sessions", "stats", session, "--namespace", namespace, "--db", db)
    listed = call("sessions", "--namespace", namespace, "--db", db)["sessions"]
    (row,) = [one for one in listed if one["session"] == session]
    return [stats["messages"], stats["active_messages"], row["messages"], stats["tokens"], row["tokens"]]


def test_counters_of_sessions_follow_an_erasure(ids: dict[str, str], db: str) -> None:
    run("fork", "user_456", "--as", "early", "--at", "1", "--namespace", "work", "--db", db)
    run("fork", "user_456", "--as", "late", "--namespace", "work", "--db", db)
    before = counters(db, "user_456", "work")
    assert before[:3] == [3, 3, 3]
    run("erase", "user_456", "--message", ids["hello work"], "--namespace", "work", "--yes", "--db", db)
    after = counters(db, "user_456", "work")
    assert after[:3] == [2, 2, 2]
    assert after[3] == after[4] < before[3]
    assert counters(db, "late", "work") == after
    assert counters(db, "early", "work")[:3] == [1, 1, 1]
    run("fork", "user_456", "--as", "later", "--namespace", "work", "--db", db)
    run("fork", "user_456", "--as", "first", "--at", "1", "--namespace", "work", "--db", db)
    assert counters(db, "later", "work") == after
    assert counters(db, "first", "work")[:3] == [1, 1, 1]
    run("fork", "user_456", "--as", "copy", "--copy", "--namespace", "work", "--db", db)
    assert counters(db, "copy", "work") == after
    run("add", "user_456", "user", "What now?", "--namespace", "work", "--db", db)
    assert counters(db, "user_456", "work")[:3] == [3, 3, 3]

    run("erase", "--namespace-all", "work", "--yes", "--db", db)
    for session in ("user_456", "early", "late", "later", "first", "copy"):
        assert counters(db, session, "work") == [0, 0, 0, 0, 0]
    assert call("verify", "--db", db)["ok"]
    assert counters(db, "user_123", "default")[:3] == [3, 1, 3]


@pytest.mark.usefixtures("ids")
def test_the_namespace_of_the_service_is_reserved(db: str, tmp_path: Path) -> None:
    own = ("--namespace", "@acms", "--db", db)
    file = tmp_path / "log.jsonl"
    file.write_text(run("export", "user_123", "--db", db).stdout.replace('"default"', '"@acms"', 1))
    other = f"sqlite:///{tmp_path / 'other.db'}"
    for code, command in (
        (2, ("add", "talk", "user", "Hello", *own)),
        (2, ("mcp", *own)),
        (2, ("erase", "--namespace-all", "@acms", "--yes", "--db", db)),
        (1, ("restore", str(file), "--db", other)),
    ):
        assert "'@acms' is reserved" in run(*command, code=code).stderr, command
    assert "there is no database" in run("sessions", "--all", "--db", other, code=1).stderr
