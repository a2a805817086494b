"""The command line in the hands of a newcomer: paths instead of URLs, small budgets, several sessions."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.main import get_command

from acms import ACMS
from acms.cli import hints
from acms.cli.commands import app
from tests.cli.test_cli import call, run, shell


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
        in run("add", "u", "user", "x", "--db", "postgres", code=2).stderr
    )


def test_usage_errors_do_not_name_the_library() -> None:
    error = run("add", "u", "robot", "x", code=2).stderr
    assert "Invalid value for 'ROLE': 'robot' is not one of" in error
    assert (
        "'--budget': 'many' must be a whole number"
        in run("recall", "u", "x", "--budget", "many", code=2).stderr
    )
    assert "'--budget': '-5' must be at least 0" in run("recall", "u", "x", "--budget", "-5", code=2).stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("recall", "s", "q", "--budget", "-5"), "Invalid value for '--budget': '-5' must be at least 0"),
        (("recall", "s"), "Missing argument 'QUERY'."),
        (("recal", "s"), "No such command 'recal'. Did you mean"),
        (("sessions", "stat", "s"), "No such command 'stat'. Did you mean 'stats'"),
        (("import", "/absent/file.json"), "'/absent/file.json' does not exist"),
    ],
)
def test_a_usage_error_is_json_too(arguments: tuple[str, ...], message: str) -> None:
    result = run(*arguments, "--json", code=2)
    error = json.loads(result.stderr)["error"]
    assert message in error["message"]
    assert (error["code"], error["options"], error["retryable"]) == ("VALIDATION", [], False)
    assert result.stdout == ""


def test_a_text_that_looks_like_the_option_is_a_text(tmp_path: Path) -> None:
    result = run("add", "u", "--db", str(tmp_path / "notes.db"), "--", "robot", "--json", code=2)
    assert result.stderr.startswith("Usage: ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("sessions", "describe", "u"), "No such command 'describe'. The commands are list, stats"),
        (("facts", "histroy", "u", "orders"), "No such command 'histroy'. Did you mean 'history'?"),
        (("facts", "u", "orders"), "Got unexpected extra argument(s) (orders)"),
    ],
)
def test_a_command_that_a_group_does_not_have(arguments: tuple[str, ...], message: str) -> None:
    assert message in run(*arguments, code=2).stderr


def test_a_file_whose_messages_have_no_content_says_so(tmp_path: Path) -> None:
    file = tmp_path / "chat.jsonl"
    file.write_text('{"role": "user"}\n')
    error = run("import", str(file), "--db", str(tmp_path / "notes.db"), code=1).stderr
    assert "chat.jsonl: 1 message has no content" in error
    assert 'try: give each message a content: {"role": "user", "content": "…"}' in error
    file.write_text('{"role": "user"}\n{"role": "user", "content": "We use Redis."}\n')
    done = run("import", str(file), "--db", str(tmp_path / "notes.db"))
    assert "1 new of 1 message" in done.stdout
    assert "skipped 1 messages that say nothing" in done.stdout


def test_a_backup_is_not_restored_but_opened_or_copied(tmp_path: Path) -> None:
    store, backup = str(tmp_path / "notes.db"), str(tmp_path / "b.db")
    run("add", "u", "user", "We use Redis.", "--db", store)
    run("backup", backup, "--db", store)
    error = run("restore", backup, "--db", str(tmp_path / "other.db"), code=1).stderr
    assert "b.db: is a SQLite database, not an export of a session" in error
    assert f"try: acms copy {backup} TO copies all of its sessions into another store" in error
    assert call("sessions", "stats", "u", "--db", backup)["messages"] == 1


def test_eval_says_which_package_it_needs() -> None:
    code = "import sys; sys.modules['acms_eval'] = None; from acms.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", code, "eval", "run"], capture_output=True, text=True)
    assert done.returncode == 2
    assert "'eval' needs acms-eval: pip install ./packages/acms-eval" in done.stderr


def test_the_package_runs_as_a_module() -> None:
    done = subprocess.run([sys.executable, "-m", "acms", "--version"], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == (shell("--version").stdout, "")


# ── versions ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_versions_are_accepted_as_they_are_printed(tmp_path: Path) -> None:
    db = ("--db", str(tmp_path / "notes.db"))
    for text in ("We use Redis.", "We deploy on Tuesdays.", "Thank you."):
        run("add", "u", "user", text, *db)
    run("retract", "u", "v2", *db)
    assert call("window", "u", "--at", "v1", *db)["version"] == 1
    assert [one["version"] for one in call("history", "u", "--after", "v3", *db)["entries"]] == [4]
    assert call("fork", "u", "--at", "v2", "--as", "f", *db)["fork"] == 2
    assert call("tag", "u", "first", "v1", *db)["tags"] == {"first": 1}
    assert call("diff", "u@v1", "u@v3", *db)["different"] is True
    assert call("sessions", "at", "u", "v3", *db)["stats"]["version"] == 3
    assert run("events", "u", "--after", "v3", *db).stdout.startswith("4\t")
    assert call("undo", "u", "v4", *db)["undone"] == 4
    assert "does not exist yet" in run("window", "u", "--at", "v99", *db, code=1).stderr
    assert "'v' is not a version" in run("undo", "u", "v", *db, code=2).stderr


def test_a_new_tag_is_not_called_like_a_version(tmp_path: Path) -> None:
    db = ("--db", str(tmp_path / "notes.db"))
    run("add", "u", "user", "We use Redis.", *db)
    refused = run("tag", "u", "v3", *db, code=1).stderr
    assert "must not look like a version, as 'v3' does" in refused
    assert "try: choose another name, such as release-v3" in refused


def test_a_tag_of_an_earlier_release_goes_before_a_version(tmp_path: Path) -> None:
    db = ("--db", str(tmp_path / "notes.db"))
    for text in ("We use Redis.", "We deploy on Tuesdays.", "Thank you."):
        run("add", "u", "user", text, *db)

    async def store_tag() -> None:
        async with ACMS("u", tmp_path / "notes.db", None) as session:
            first = (await session.entries())[0]
            tags = {"v3": {"version": 1, "chain": first.chain.hex()}}
            await session.storage.settings(first.context, {"tags": tags}, rev=0)

    asyncio.run(store_tag())
    assert call("window", "u", "--at", "v3", *db)["version"] == 1
    assert call("window", "u", "--at", "3", *db)["version"] == 3
    assert call("verify", *db)["ok"]
    run("copy", str(tmp_path / "notes.db"), str(tmp_path / "copy.db"), "--verify")
    exported = run("export", "u", *db).stdout
    (tmp_path / "u.jsonl").write_text(exported)
    run("restore", str(tmp_path / "u.jsonl"), "--db", str(tmp_path / "restored.db"))
    assert call("tag", "u", "--db", str(tmp_path / "restored.db"))["tags"] == {"v3": 1}
    run("tag", "u", "v3", "--delete", *db)


# ── hints ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_commands_in_hints_keep_the_store(tmp_path: Path) -> None:
    db = str(tmp_path / "my notes.db")
    assert f"try: acms add --db '{db}' SESSION user TEXT" in run("facts", "u", "--db", db, code=1).stderr
    run("add", "u", "user", "Hello.", "--db", db)
    error = json.loads(run("recall", "nobody", "q", "--db", db, "--json", code=1).stderr)["error"]
    assert error["options"] == [f"acms sessions --db '{db}' --all lists them"]
    assert f"acms facts reflect --db '{db}' u finds them" in run("facts", "u", "--db", db).stdout


def test_hints_name_no_store_that_was_not_given_and_no_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACMS_DB", str(tmp_path / "notes.db"))
    assert "try: acms add SESSION user TEXT" in run("facts", "u", code=1).stderr
    hints.given_store.set("postgresql://me:secret@db/acms")
    assert hints.keep_store("acms jobs lists them") == "acms jobs --db URL lists them"
    hints.given_store.set(None)


def test_hints_know_every_command_of_a_group() -> None:
    def subcommands(group: object) -> set[str]:
        found: set[str] = set()
        for name, command in getattr(group, "commands", {}).items():
            found |= {name} | subcommands(command)
        return found

    groups = getattr(get_command(app), "commands", {}).values()
    assert set().union(*map(subcommands, groups)) == set(hints.SUBCOMMANDS)


def test_a_file_that_is_no_database(tmp_path: Path) -> None:
    file = tmp_path / "note.txt"
    file.write_text("Buy milk.")
    error = run("sessions", "--db", str(file), code=1).stderr
    assert f"{file} is not an ACMS database" in error
    assert "not a file such as notes.db" in run("sessions", "--db", "notes", code=2).stderr


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
    assert [warning for warning in fitting["warnings"] if "tokens" in warning] == []


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


# ── the guide ───────────────────────────────────────────────────────────────────────────────────────────────────────

_GUIDES = Path(__file__).parents[2] / "docs" / "how-to"
_SHELL_BLOCK = re.compile(r"^```sh([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.slow
@pytest.mark.parametrize(("page", "repetitions"), [("cli.md", 1), ("erasure.md", 2), ("explain.md", 2)])
def test_the_commands_of_a_page_run_from_an_empty_folder(
    page: str, repetitions: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A block that cannot run says why: ```sh no-run: needs a server."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    monkeypatch.delenv("ACMS_DB", raising=False)
    blocks = _SHELL_BLOCK.findall((_GUIDES / page).read_text(encoding="utf-8"))
    for info, block in blocks * repetitions:
        if info:
            assert re.fullmatch(r" no-run: \S.+", info), info
            continue
        done = subprocess.run(
            ["bash", "-eo", "pipefail", "-c", block],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
        )
        assert done.returncode == 0, f"{block}\n{done.stderr}"


@pytest.mark.parametrize(
    ("words", "message", "hint"),
    [
        (
            ("add", "talk", "user", ""),
            "TEXT: must not be empty",
            "give the text of the message, or - to read it from stdin",
        ),
        (
            ("replace", "talk", "v1", " "),
            "TEXT: must not be empty",
            "give the text of the message, or - to read it from stdin",
        ),
        (("add", "", "user", "tea"), "SESSION: must not be empty", None),
        (
            ("recall", "talk", ""),
            "QUERY: must not be blank",
            "acms window --db {db} talk shows the newest messages without a query",
        ),
        (
            ("prompt", "render", "talk", " "),
            "QUERY: must not be blank",
            "leave it out for the newest messages alone",
        ),
        (("pin", "user:1", "", "--value", "x"), "KEY: must have 1 to 512 characters, has 0", None),
        (("facts", "state", "talk", "", "likes", "tea"), "SUBJECT: must have 1 to 255 characters", None),
        (("merge", "talk", "talk"), "OTHER: is this session itself", None),
        (
            ("retract", "talk", "v99"),
            "the session 'talk' has no entry 'v99'",
            "acms history --db {db} SESSION lists the entries by version",
        ),
    ],
)
def test_an_error_about_an_argument_names_it_as_the_help_does(
    tmp_path: Path, words: tuple[str, ...], message: str, hint: str | None
) -> None:
    db = str(tmp_path / "log.db")
    run("add", "talk", "user", "I like tea.", "--db", db)
    error = json.loads(run(*words, "--db", db, "--json", code=1).stderr)["error"]
    assert (error["message"], error["options"]) == (message, [hint.format(db=db)] if hint else [])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("fork", "u", "u2"),
            "Got unexpected extra argument(s) (u2). Did you mean --as, the name of the fork?",
        ),
        (
            ("pin", "--namespace", "user:1", "style", "--value", "x"),
            "No such option: --namespace. NAMESPACE is an argument: write its value without --namespace.",
        ),
        (
            ("add", "u", "user", "--text", "x"),
            "No such option: --text. TEXT is an argument: write its value without --text.",
        ),
    ],
)
def test_an_argument_and_an_option_that_are_mistaken_for_each_other(
    words: tuple[str, ...], message: str
) -> None:
    assert message in run(*words, code=2).stderr
    assert json.loads(run(*words, "--json", code=2).stderr)["error"]["message"].startswith(message)


def test_a_word_that_is_no_command_leads_to_the_help() -> None:
    assert "No such command 'status'. acms --help lists the commands." in run("status", code=2).stderr
    assert "Did you mean 'recall'" in run("recal", code=2).stderr
