"""The command line in the hands of a newcomer: paths instead of URLs, small budgets, several sessions."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.test_cli import call, run


@pytest.mark.parametrize("name", ["notes.db", "notes.sqlite", "notes.sqlite3", "a folder/notes.db"])
def test_a_store_is_named_by_the_path_of_its_file(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a folder").mkdir()
    run("add", "u", "user", "We use Redis.", "--db", name)
    run("copy", name, "copy.db")
    run("pin", "user:123", "city", "--value", '"Paris"', "--kv", "pins.db")
    assert call("sessions", "stats", "u", "--db", f"sqlite:///{name}")["messages"] == 1
    assert call("sessions", "stats", "u", "--db", str(tmp_path / "copy.db"))["messages"] == 1


def test_other_names_are_still_refused() -> None:
    assert (
        "'postgres' is not the URL of a store"
        in run("add", "u", "user", "x", "--db", "postgres", code=1).stderr
    )


def test_usage_errors_do_not_name_the_library() -> None:
    error = run("add", "u", "robot", "x", code=2).stderr
    assert "Invalid value for 'ROLE': 'robot' is not one of" in error
    assert (
        "'--budget': 'many' must be a whole number"
        in run("recall", "u", "x", "--budget", "many", code=2).stderr
    )
    assert "'--budget': '-5' must be at least 0" in run("recall", "u", "x", "--budget", "-5", code=2).stderr


def test_a_text_that_was_cut_to_nothing_says_so(tmp_path: Path) -> None:
    db = str(tmp_path / "notes.db")
    run("add", "u", "user", "Orders " + "x" * 3000, "--db", db)
    assert "[none of it fits the budget]" in run("window", "u", "--budget", "6", "--db", db).stdout


def test_recall_says_what_the_smallest_relevant_message_takes(tmp_path: Path) -> None:
    db = str(tmp_path / "notes.db")
    run("add", "u", "user", "We use PostgreSQL for orders.", "--db", db)
    value = call("recall", "u", "What do we use for orders?", "--budget", "5", "--db", db)
    assert value["items"] == []
    needed = value["warnings"][-1].removesuffix(" tokens").rsplit(" ", 1)[1]
    assert (
        f"takes {needed} tokens"
        in run("recall", "u", "What do we use for orders?", "--budget", "5", "--db", db).stdout
    )
    fitting = call("recall", "u", "What do we use for orders?", "--budget", needed, "--db", db)
    assert [item["content"] for item in fitting["items"]] == ["We use PostgreSQL for orders."]
    assert fitting["warnings"] == []


def test_recall_of_a_namespace_names_the_session_of_each_message(tmp_path: Path) -> None:
    shared = ("--db", str(tmp_path / "notes.db"), "--namespace", "team")
    run("add", "monday", "user", "We use PostgreSQL for orders.", *shared)
    run("add", "tuesday", "user", "Lunch is at noon.", *shared)
    query = ("recall", "tuesday", "What do we use for orders?", "--scope", "namespace", "--why", *shared)
    value = call(*query)
    sessions = {verdict["id"]: verdict["session_id"] for verdict in value["ledger"]}
    assert set(sessions.values()) == {"monday", "tuesday"}
    assert all(sessions[item["id"]] == item["session_id"] for item in value["items"])
    ledger = run(*query).stdout.partition("Why")[2]
    assert "session" in ledger
    assert "monday" in ledger
