"""Wrong values of options: exit code 2, whichever layer finds them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.test_cli import call, run


@pytest.fixture
def file(tmp_path: Path) -> str:
    """A database with one session."""
    file = str(tmp_path / "notes.db")
    run("add", "u", "user", "We use Redis.", "--db", file)
    return file


@pytest.mark.parametrize(
    "words",
    [
        ("recall", "u", "x", "--min-relevance", "7"),
        ("recall", "u", "x", "--embedder", "banana"),
        ("recall", "u", "x", "--budget", "abc"),
        ("recall", "u", "x", "--scope", "universe"),
        ("prompt", "render", "u", "--codec", "banana"),
        ("prompt", "render", "u", "--after", "nowhere.json"),
        ("compact", "policy", "set", "u", "--threshold", "7"),
        ("compact", "policy", "set", "u", "--budget", "0"),
        ("compact", "policy", "set", "u", "--reset", "banana"),
        ("facts", "reflect", "u", "--reflector", "banana"),
        ("facts", "state", "u", "a", "b", "c", "--valid-from", "soon"),
        ("add", "u", "user", "x", "--created-at", "soon"),
        ("add", "u", "user", "x", "--marker", "banana"),
        ("add", "u", "user", "x", "--metadata", '{"a": {"b": 1e999}}'),
        ("events", "u", "--after", "banana"),
        ("reindex", "--chroma", "ftp://host"),
        ("pin", "list", "u", "--kv", "mysql://host"),
        ("serve", "--auth", "banana"),
        ("serve", "--origin", "banana"),
        ("serve", "--host", "no.such.host.invalid", "--auth", "required"),
        ("serve", "--oidc-issuer", "http://login.example.org", "--oidc-audience", "acms"),
        ("gateway", "--recall", "banana"),
        ("gateway", "--upstream", "openai=ftp://host"),
    ],
    ids=" ".join,
)
def test_a_wrong_value_of_an_option_is_wrong_usage(file: str, words: tuple[str, ...]) -> None:
    if words[:2] == ("serve", "--host"):
        run("keys", "create", "--tenant", "default", "--db", file)
    error = json.loads(run(*words, "--json", "--db", file, code=2).stderr)["error"]
    assert error["code"] == "VALIDATION"
    options = [word for word in words if word.startswith("--")]
    assert any(option in error["message"] for option in options)


@pytest.mark.parametrize("db", ["memory://", "", "banana", "mysql://host"])
def test_a_store_that_does_not_last_or_is_none_is_refused(db: str) -> None:
    error = json.loads(run("add", "u", "user", "Hello.", "--db", db, "--json", code=2).stderr)["error"]
    assert error["code"] == "VALIDATION"
    assert "--db" in error["message"]
    assert not any("memory://" in hint for hint in error["options"])


def test_a_version_or_tag_that_does_not_exist_is_not_found(file: str) -> None:
    for words in (
        ("window", "u", "--at", "9"),
        ("window", "u", "--at", "early"),
        ("sessions", "at", "u", "9"),
        ("diff", "u@9"),
    ):
        assert run(*words, "--db", file, code=1).stderr.startswith("error NOT_FOUND: "), words


def test_an_empty_query_is_refused(file: str) -> None:
    for query in ("", "  "):
        error = json.loads(run("recall", "u", query, "--db", file, "--json", code=1).stderr)["error"]
        assert (error["code"], error["field"]) == ("VALIDATION", "query")
        assert error["options"][0].endswith("u shows the newest messages without a query")


def test_a_budget_below_every_message_says_so(file: str) -> None:
    stdout = run("window", "u", "--budget", "1", "--db", file).stdout
    assert "warning: nothing fits --budget 1: a recall needs at least 6 tokens, and has 1" in stdout
    (warning,) = call("window", "u", "--budget", "1", "--db", file)["warnings"]
    assert f"warning: {warning}" in stdout
    assert call("window", "u", "--db", file)["warnings"] == []


def test_nothing_to_list_is_a_sentence(file: str) -> None:
    assert run("prompt", "log", "u", "--db", file).stdout.startswith("no requests are stored; acms serve ")
    assert run("history", "u", "--after", "20", "--db", file).stdout == "no entries after v20\n"


def test_a_folder_without_conversations_is_an_error_and_creates_no_store(tmp_path: Path) -> None:
    folder = tmp_path / "empty"
    folder.mkdir()
    store = tmp_path / "notes.db"
    stderr = run("import", str(folder), "--db", str(store), code=1).stderr
    assert stderr.startswith(f"error VALIDATION: {folder}: has no files")
    assert not store.exists()
    (folder / "note.txt").write_text("Buy milk.")
    result = run("import", str(folder), "--db", str(store), code=1)
    assert "note.txt" in result.stdout
    assert result.stderr.startswith(f"error VALIDATION: {folder}: has no file with conversations")


def test_a_name_with_line_breaks_stays_in_one_row(file: str) -> None:
    run("add", "two\nlines\t\x1b[31m", "user", "Hello.", "--db", file)
    lines = run("sessions", "--db", file).stdout.splitlines()
    assert len(lines) == 3
    assert lines[1].startswith("two\\nlines\\t\N{REPLACEMENT CHARACTER}[31m ")


def test_a_copy_says_only_with_verify_whether_it_is_verified(file: str, tmp_path: Path) -> None:
    target = str(tmp_path / "copy.db")
    assert call("copy", file, target)["verified"] is None
    assert call("copy", file, target, "--verify")["verified"] is True


# ── restore ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_restore_says_what_it_did(file: str, tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    log.write_text(run("export", "u", "--db", file).stdout)
    run("add", "u", "user", "Thank you.", "--db", file)
    assert run("restore", str(log), "--db", file).stdout == (
        "u: nothing to restore, the store has all of log.jsonl; the log is at version 2\n"
    )
    other = str(tmp_path / "other.db")
    assert run("restore", str(log), "--db", other).stdout == "u: restored up to version 1\n"
    log.write_text(run("export", "u", "--db", file).stdout)
    assert call("restore", str(log), "--db", other)["restored"] == 1


def test_a_refused_restore_creates_no_store(tmp_path: Path) -> None:
    other, store = tmp_path / "note.txt", tmp_path / "new.db"
    for text, message in (
        ("Buy milk.", "error CORRUPT_RECORD: line 1 of note.txt is not JSON"),
        ("", "error CORRUPT_RECORD: note.txt is empty"),
    ):
        other.write_text(text)
        assert run("restore", str(other), "--db", str(store), code=1).stderr.startswith(message)
        assert not store.exists()
