"""The command line: what it prints, where, and with which exit code."""

from __future__ import annotations

import asyncio
import errno
import io
import json
import os
import re
import select
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from importlib.resources import files
from pathlib import Path
from typing import Any

import apsw
import pytest
from rich.cells import cell_len
from typer.testing import CliRunner, Result

from acms import ACMS, State, View, open_storage
from acms.cli import base, output
from acms.cli.commands import app
from acms.cli.loading import MODULES
from acms.model import ContextQuery
from acms.providers import HeuristicTokenCounter
from tests.branches.test_exports import chatgpt

COMMANDS = (
    "add", "backup", "compact", "copy", "delete", "demo", "diff", "erase", "events", "export", "facts", "fork",
    "gateway", "grants", "history", "import", "inspect", "jobs", "log", "mcp", "merge", "messages", "migrate", "pin",
    "keys", "prompt", "recall", "reindex", "render", "replace", "restore", "retract", "scan", "serve", "sessions",
    "tag", "undo", "verify", "window", "witness", "worker",
)  # fmt: skip
DEFAULTS = {
    "compact": "run",
    "events": "list",
    "facts": "list",
    "pin": "set",
    "sessions": "list",
}
"""The command that a group runs without a name."""
DEMO = Path(str(files("acms") / "data" / "demo.jsonl"))
ANSI = "\x1b"
BOXES = re.compile(r"[\u2500-\u257f]")


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("ACMS_DB", "ACMS_DEBUG", "NO_COLOR", "FORCE_COLOR", "TERM", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))


@pytest.fixture
def db(url: str) -> str:
    return url


def run(*arguments: str, code: int = 0) -> Result:
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == code, (result.output, result.exception)
    assert ANSI not in result.output
    assert "Traceback" not in result.output
    return result


def call(*arguments: str) -> dict[str, Any]:
    return json.loads(run(*arguments, "--json").stdout)


def shell(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "acms.cli", *arguments], capture_output=True, text=True, timeout=60, **options
    )


@pytest.fixture
def demo(db: str) -> str:
    run("import", str(DEMO), "--db", db)
    return db


# ── help and usage ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_every_command_is_there() -> None:
    help = run("--help").stdout
    listed = re.findall(r"^  ([a-z]+)  ", help.partition("Every day:")[2], re.MULTILINE)
    assert sorted(listed) == sorted([*COMMANDS, "eval"])  # which reads no store
    assert listed[:5] == ["demo", "add", "recall", "window", "facts"]
    assert re.findall(r"^(\S.*):$", help, re.MULTILINE) == ["Options", *base.GROUPS]
    assert max(map(len, help.splitlines())) <= 80
    assert "..." not in help.partition("Every day:")[2]
    assert sorted(" ".join(MODULES.values()).split()) == sorted(listed)
    for one in app.registered_commands:  # an entry that names another module would not be found by `main`
        named = one.name or one.callback.__name__
        assert named in MODULES[one.callback.__module__].split()


def test_only_the_command_that_is_asked_for_is_loaded(tmp_path: Path) -> None:
    code = "import sys; from acms.cli import main\ntry: main()\nexcept SystemExit: print(*sys.modules)"
    options = ("sessions", "--db", base.file_url(tmp_path / "none.db"))
    done = subprocess.run([sys.executable, "-c", code, *options], capture_output=True, text=True)
    assert "there is no database" in done.stderr
    assert {"acms.cli.sessions"} == {*done.stdout.split()} & {
        "acms.cli.sessions",
        "acms.cli.serving",
        "httpx2",
    }


@pytest.mark.parametrize(
    "command",
    [
        *(command for command in COMMANDS if command not in ("grants", "keys", "prompt", *DEFAULTS)),
        *(f"{group} {command}" for group, command in DEFAULTS.items()),
        *("events webhook add", "events webhook list", "events webhook remove", "events webhook replay"),
        *("facts history", "facts why", "facts undo", "facts state", "facts unstate", "facts reflect"),
        *("sessions stats", "sessions episodes", "sessions at"),
        *("compact list", "compact expand", "compact policy get", "compact policy set"),
        *("pin list", "pin remove", "grants add", "grants list", "grants revoke"),
        *("keys create", "keys list", "keys audit", "prompt render", "prompt replay"),
    ],
)
def test_help_has_an_example_and_the_common_options(command: str) -> None:
    text = run(*command.split(), "--help").stdout
    group, _, name = command.partition(" ")
    shown = group if DEFAULTS.get(group) == name else command
    assert f"Example:  acms {shown}" in text
    assert "--json" in text
    assert "--db" in text


@pytest.mark.parametrize(("group", "command"), DEFAULTS.items())
def test_a_group_with_a_default_lists_its_commands(group: str, command: str) -> None:
    """The help of the group names the default; words after the group that are no command belong to the default."""
    assert f"acms {group} {command} --help" in run(group, "--help").stdout
    assert f" {group} {command} [OPTIONS]" in run(group, "--nonsense", code=2).stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_the_guide_shows_every_command(command: str) -> None:
    guide = Path(__file__).parents[2] / "docs" / "how-to" / "cli.md"
    assert re.search(rf"^(?:cat .* \| )?acms {command}\b", guide.read_text(encoding="utf-8"), re.MULTILINE)


@pytest.mark.parametrize(
    "arguments",
    [
        ("nonsense",),
        ("recall",),
        ("recall", "s"),
        ("recall", "s", "q", "--budget", "-1"),
        ("recall", "s", "q", "--budget", "many"),
        ("recall", "s", "q", "--min-relevance", "2"),
        ("history", "s", "--limit", "0"),
        ("window", "s", "--colour"),
        ("import", "/absent/file.json"),
    ],
)
def test_wrong_usage_leaves_with_2(arguments: tuple[str, ...]) -> None:
    result = run(*arguments, code=2)
    assert result.stdout == ""
    assert result.stderr


def test_a_message_is_replaced_and_retracted(db: str) -> None:
    for text in ("We use Redis.", "We deploy on Tuesdays.", "Thank you."):
        run("add", "u", "user", text, "--db", db)
    there = ("--db", db, "--json")
    replaced = json.loads(run("replace", "u", "v1", "We use Valkey.", *there).stdout)
    retracted = json.loads(run("retract", "u", "v2", *there).stdout)
    assert retracted == {"session": "u", "version": 5, "retracted": "v2"}
    window = json.loads(run("window", "u", *there).stdout)["items"]
    assert [(one["content"], one["version"]) for one in window] == [("We use Valkey.", 4), ("Thank you.", 3)]
    assert window[0]["id"] == replaced["id"]
    run("undo", "u", "5", "--db", db)
    run("retract", "u", replaced["id"], "--db", db)
    assert "We deploy on Tuesdays." in run("window", "u", "--db", db).stdout
    advice = run("undo", "u", "3", "--db", db, code=1).stderr.partition("try: ")[2].split()
    assert advice[:2] == ["acms", "retract"]
    run("retract", "u", next(word for word in advice if word.startswith(("m_", "v"))), "--db", db)
    run("retract", "u", "v99", "--db", db, code=1)
    run("add", "u", "user", "Called like a version.", "--key", "v1", "--db", db)
    run("retract", "u", "v1", "--db", db)
    assert "Called like a version." not in run("window", "u", "--db", db).stdout
    assert "We use Redis." in run("window", "u", "--db", db).stdout


_TELLS = """
import io, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job ignores it

class Told(io.FileIO):
    def readall(self):
        print("reading", file=sys.stderr, flush=True)
        return super().readall()

    def readinto(self, into):
        print("reading", file=sys.stderr, flush=True)
        return super().readinto(into)

sys.stdin = io.TextIOWrapper(io.BufferedReader(Told(0)))
from acms.cli import main
main()
"""


def test_one_interrupt_ends_what_waits_for_stdin(tmp_path: Path) -> None:
    words = [sys.executable, "-c", _TELLS, "add", "u", "user", "-", "--db", base.file_url(tmp_path / "a.db")]
    pipe = subprocess.PIPE
    with subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stderr is not None
        try:
            assert process.stderr.readline() == "reading\n"
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 130
            assert process.stderr.read() == "interrupted\n"
        finally:
            process.kill()


class _Pressed(io.RawIOBase):
    """What nobody writes into: who reads it presses Ctrl-C."""

    went_on = False

    def readable(self) -> bool:
        return True

    def readinto(self, into: Any) -> int:
        signal.raise_signal(signal.SIGINT)
        self.went_on = True
        return 0


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("import - --session u", "interrupted; the same command goes on where it stopped\n"),
        ("restore -", "interrupted; the same command goes on where it stopped\n"),
        ("render - --session u", "interrupted\n"),
    ],
)
def test_an_interrupt_is_not_waited_for_until_stdin_ends(
    command: str,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pressed = _Pressed()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(pressed)))
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job ignores it
    try:
        with pytest.raises(SystemExit) as left:
            app([*command.split(), "--db", base.file_url(tmp_path / "a.db")])
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
    assert (left.value.code, capsys.readouterr().err) == (130, said)
    assert not pressed.went_on


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no device that is full")
def test_output_that_cannot_be_written_is_told_in_words(tmp_path: Path) -> None:
    db = ("--db", base.file_url(tmp_path / "a.db"))
    run("add", "u", "user", "hello", *db)
    with open("/dev/full", "w") as full:
        words = [sys.executable, "-m", "acms.cli", "history", "u", *db, "--json"]
        done = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "No space left on device" in done.stderr
    assert "report it" not in done.stderr


def test_a_witness_that_cannot_be_written_is_named(db: str, tmp_path: Path) -> None:
    run("add", "u", "user", "hello", "--db", db)
    told = run("witness", str(tmp_path / "absent" / "w"), "--db", db, code=1).stderr
    assert "cannot be written" in told
    assert str(tmp_path / "absent") in told


def test_a_shell_may_close_stdin_and_stdout(tmp_path: Path) -> None:
    url = base.file_url(tmp_path / "a.db")
    words = [sys.executable, "-m", "acms.cli", "add", "u", "user", "hello", "--db", url]
    code = "import os, sys; os.close(0); os.close(1); os.execv(sys.argv[1], sys.argv[1:])"
    done = subprocess.run([sys.executable, "-c", code, *words], stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert "hello" in run("history", "u", "--db", url).stdout


def test_version_and_no_arguments() -> None:
    assert run("--version").stdout.strip()
    assert "Every day:" in CliRunner().invoke(app, []).output


# ── errors ──────────────────────────────────────────────────────────────────────────────────────────────────────────

READING = (
    ("recall", "nobody", "q"),
    ("messages", "nobody", "q"),
    ("window", "nobody"),
    ("history", "nobody"),
    ("sessions", "stats", "nobody"),
    ("export", "nobody"),
    ("verify", "nobody"),
)


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)  # the same on every store
@pytest.mark.parametrize("arguments", READING, ids=lambda arguments: arguments[0])
def test_an_unknown_session_is_an_error(demo: str, arguments: tuple[str, ...]) -> None:
    result = run(*arguments, "--db", demo, code=1)
    assert result.stdout == ""
    assert result.stderr.startswith("error SESSION_NOT_FOUND: no session is named 'nobody'")
    assert "try: acms sessions" in result.stderr
    error = json.loads(run(*arguments, "--db", demo, "--json", code=1).stderr)["error"]
    assert error["code"] == "SESSION_NOT_FOUND"
    assert error["retryable"] is False
    assert error["options"]
    known = ["demo" if word == "nobody" else word for word in arguments]
    run(*known, "--db", demo, "--namespace", "other", code=1)
    id = json.loads(run("sessions", "--db", demo, "--json").stdout)["sessions"][0]["id"]
    by_id = [id if word == "nobody" else word for word in arguments]
    result = run(*by_id, "--db", demo, "--namespace", "other", code=2)
    assert "is the id of a log of another one" in result.stderr


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)  # about the file
def test_typed_errors(demo: str, tmp_path: Path) -> None:
    error = json.loads(run("window", "demo", "--db", demo, "--at", "999", "--json", code=1).stderr)["error"]
    assert error["code"] == "NOT_FOUND"
    assert "is not the URL of a store" in run("sessions", "--db", "mysql://x", code=2).stderr
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"role": "user", "content": "a"}\n{"role": "us', encoding="utf-8")
    error = run("import", str(bad), "--db", demo, code=1).stderr
    assert error.startswith(f"error VALIDATION: {bad}:2: is not JSON")
    error = run("import", os.devnull, "--session", "x", "--db", demo, code=1).stderr
    assert error.startswith(f"error VALIDATION: {os.devnull}: is empty")
    assert "bad" not in [one["session"] for one in call("sessions", "--db", demo)["sessions"]], (
        "nothing was stored"
    )
    assert "CORRUPT_RECORD" in run("restore", str(bad), "--db", demo, code=1).stderr
    bad.write_text("no database at all, but long enough", encoding="utf-8")
    assert "CORRUPT_RECORD" in run("sessions", "--db", base.file_url(bad), code=1).stderr
    assert "exists" in run("backup", str(bad), "--db", demo, code=1).stderr
    nowhere = tmp_path / "nowhere"
    refused = run("backup", str(nowhere / "copy.db"), "--db", demo, code=1).stderr
    assert f"the folder {nowhere} does not exist" in refused
    assert "try: create it" in refused
    assert "a store in memory ends" in run("backup", str(tmp_path / "x"), "--db", "memory://", code=2).stderr


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)  # the same on every store
def test_an_unexpected_error_is_no_traceback(demo: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("oops")

    monkeypatch.setattr(View, "window", broken)
    assert "error ACMS: ZeroDivisionError: oops" in run("window", "demo", "--db", demo, code=1).stderr
    monkeypatch.setenv("ACMS_DEBUG", "1")
    assert isinstance(run("window", "demo", "--db", demo, code=1).exception, ZeroDivisionError)


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)  # the same on every store
def test_what_the_system_refuses_is_told_in_its_words(demo: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/srv/notes")

    monkeypatch.setattr(View, "window", full)
    said = f"/srv/notes: {os.strerror(errno.ENOSPC)}"
    assert run("window", "demo", "--db", demo, code=1).stderr == f"error ACMS: {said}\n"
    told = json.loads(run("window", "demo", "--db", demo, "--json", code=1).stderr)["error"]
    assert (told["message"], told["options"]) == (said, [])


@pytest.mark.parametrize("missing", ["typer", "rich"])
def test_a_missing_extra_is_named(missing: str) -> None:
    code = f"import sys; sys.modules[{missing!r}] = None; from acms.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith("error MISSING_EXTRA:")
    assert done.stderr.count("pip install '.[cli]'") == 1
    assert "try: pip install 'acms_engine-VERSION-py3-none-any.whl[cli]', with a wheel" in done.stderr
    done = subprocess.run([sys.executable, "-c", code, "--json"], capture_output=True, text=True)
    assert json.loads(done.stderr)["error"]["code"] == "MISSING_EXTRA"


# ── where the data is ───────────────────────────────────────────────────────────────────────────────────────────────


def test_the_default_file_is_made_by_the_first_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    file = tmp_path / "data" / "acms" / "acms.db"
    assert "there is no database" in run("sessions", code=1).stderr
    assert not file.exists()
    run("import", str(DEMO))
    assert file.exists()
    assert [one["session"] for one in call("sessions")["sessions"]] == ["demo"]


def test_data_folders_of_other_systems(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "AppData"))
    assert base.data_file() == tmp_path / "AppData" / "acms" / "acms.db"
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert base.data_file() == tmp_path / "Library" / "Application Support" / "acms" / "acms.db"
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.delenv("XDG_DATA_HOME")
    assert base.data_file() == tmp_path / ".local" / "share" / "acms" / "acms.db"


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)  # the same on every store
def test_db_from_the_environment(demo: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACMS_DB", demo)
    assert call("sessions", "stats", "demo")["messages"] == 82


def test_a_reading_command_creates_nothing(tmp_path: Path) -> None:
    run("history", "s", "--db", base.file_url(tmp_path / "typo.db"), code=1)
    assert not (tmp_path / "typo.db").exists()


# ── the verbs ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_recall(demo: str) -> None:
    query = ("recall", "demo", "Why did the migration fail on staging?", "--budget", "300", "--db", demo)
    value = call(*query)
    assert value["tokens"] <= value["budget"] == 300
    best, second = sorted(value["items"], key=lambda item: item["rank"])[:2]
    assert second["content"].startswith("Failed: the migration")
    assert "ledger" not in value
    text = run(*query).stdout
    assert text.splitlines()[0].split() == ["text", "score", "version", "speaker", "source", "tokens"]
    assert text.splitlines()[2].startswith("Failed: the migration")
    assert f"  {best['score']:.2f}  " in text.splitlines()[1]
    assert not BOXES.search(text)
    assert best["content"] in run(*query, "--full").stdout
    assert call(*query, "--at", "20")["version"] == 20
    strict = call(*query, "--min-relevance", "0.9")
    assert len(strict["items"]) < len(value["items"])


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)  # the same on every store
def test_recall_why(demo: str) -> None:
    query = (
        "recall",
        "demo",
        "How do order events reach the warehouse?",
        "--budget",
        "200",
        "--why",
        "--db",
        demo,
    )
    value = call(*query)
    shown = [verdict for verdict in value["ledger"] if verdict["included"]]
    rejected = [verdict for verdict in value["ledger"] if not verdict["included"]]
    assert {verdict["id"] for verdict in shown} == {item["id"] for item in value["items"]}
    assert len(rejected) == 10 < value["left_out"]
    assert all(verdict["reason"] and verdict["rule"] for verdict in value["ledger"])
    text = run(*query).stdout
    assert "Why" in text
    assert value["band"] in ("strong", "possible", "none")
    assert f"{value['band']} ({value['confidence']:.2f}): the best places match" in text
    assert "left out" in text
    assert f"{value['left_out'] - 10} more were left out" in text
    for warning in value["warnings"]:
        assert f"warning: {warning}" in text


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)  # the same on every store
def test_recall_why_of_a_short_log_shows_every_decision(db: str) -> None:
    for text in ("We use Redis.", "We deploy on Tuesdays."):
        run("add", "u", "user", text, "--db", db)
    asked = ("recall", "u", "When do we deploy?", "--why", "--db", db)
    assert len(call(*asked)["ledger"]) == 2
    assert "more were left out" not in run(*asked).stdout


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)  # the same on every store
def test_messages(demo: str) -> None:
    value = call("messages", "demo", "Which database?", "--budget", "400", "--db", demo)
    assert {message["role"] for message in value["messages"]} <= {"system", "user", "assistant", "tool"}
    whole = call("messages", "demo", "Which database?", "--budget", "100000", "--db", demo)
    assert len(whole["messages"]) == 82
    text = run("messages", "demo", "Which database?", "--budget", "100000", "--db", demo).stdout
    assert "→ table_sizes(" in text
    assert "82 messages" in text


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)  # the same on every store
def test_window(demo: str) -> None:
    value = call("window", "demo", "--budget", "300", "--db", demo)
    assert value["tokens"] <= 300
    assert [item["version"] for item in value["items"]] == list(range(73, 83))
    assert call("window", "demo", "--budget", "300", "--at", "12", "--db", demo)["items"][-1]["version"] == 12
    assert "v82" in run("window", "demo", "--budget", "300", "--db", demo).stdout
    assert "SUP-2214 opened" in run("window", "demo", "--budget", "300", "--full", "--db", demo).stdout


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)  # the same on every store
def test_history(demo: str) -> None:
    seen: list[int] = []
    after: int | None = 0
    while after is not None:
        page = call("history", "demo", "--limit", "30", "--after", str(after), "--db", demo)
        seen += [entry["version"] for entry in page["entries"]]
        after = page["next_after"]
    assert seen == list(range(1, 83))
    assert "more: --after 5" in run("history", "demo", "--limit", "5", "--db", demo).stdout


def test_stats_and_sessions(demo: str) -> None:
    value = call("sessions", "stats", "demo", "--db", demo)
    assert (value["messages"], value["version"], value["counter"]) == (82, 82, "o200k_base")
    assert call("sessions", "stats", "demo", "--at", "10", "--db", demo)["messages"] == 10
    assert "2,844" in run("sessions", "stats", "demo", "--db", demo).stdout
    run("import", str(DEMO), "--session", "second", "--namespace", "elsewhere", "--db", demo)
    assert [one["session"] for one in call("sessions", "--db", demo)["sessions"]] == ["demo"]
    everywhere = call("sessions", "--all", "--db", demo)["sessions"]
    assert [(one["session"], one["namespace"]) for one in everywhere] == [
        ("second", "elsewhere"),
        ("demo", "default"),
    ]
    assert call("sessions", "stats", everywhere[0]["id"], "--db", demo)["messages"] == 82
    assert "second" in run("sessions", "--all", "--db", demo).stdout
    assert "no sessions in namespace 'empty'" in run("sessions", "--namespace", "empty", "--db", demo).stdout


def test_sessions_are_listed_by_what_they_are_labelled_with_and_a_page_at_a_time(db: str) -> None:
    async def make() -> None:
        async with open_storage(db) as storage:
            for name, label, tier in (("a", "7", "gold"), ("b", "7", "iron"), ("c", "8", "gold")):
                about: dict[str, Any] = {"labels": [label], "metadata": {"tier": tier, "run": 7}}
                async with ACMS(name, storage, **about) as session:
                    await session.ingest("user", "Hello.")
        await storage.aclose()

    asyncio.run(make())

    def listed(*where: str) -> list[str]:
        return [one["session"] for one in call("sessions", *where, "--db", db)["sessions"]]

    assert listed("--where", "label=7") == ["b", "a"]
    assert listed("--where", "label=7", "--where", "tier=gold") == ["a"]
    assert listed("--where", "run=7") == ["c", "b", "a"], "a number is one"
    assert listed("--where", "label=7", "--where", "label=8") == []
    nobody = run("sessions", "--where", "name=nobody", "--db", db).stdout
    assert nobody == f"no sessions like that in namespace 'default'; see acms sessions --db {db} --all\n"
    assert "'gold' is not KEY=VALUE" in run("sessions", "--where", "gold", "--db", db, code=2).stderr
    first = run("sessions", "--limit", "2", "--db", db).stdout
    assert first.splitlines()[1].split()[0] == "c"
    more = first.splitlines()[-1]
    assert more.startswith("more: --after ")
    assert listed(*more.split()[1:]) == ["a"]


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)  # the same on every store
def test_every_session_is_checked_however_many_there_are(db: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "ContextQuery", lambda **given: ContextQuery(**{**given, "limit": 2}))
    for name in ("a", "b", "c"):
        run("add", name, "user", "Hello.", "--db", db)
    assert [one["session"] for one in call("verify", "--db", db)["sessions"]] == ["c", "b", "a"]


class _Typed(io.StringIO):
    """A terminal at which something was typed."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)  # the same on every store
@pytest.mark.parametrize(("typed", "left"), [("n\n", 1), ("\n", 1), ("y\n", 0)])
def test_who_sits_at_a_terminal_is_asked_before_what_cannot_be_taken_back(
    db: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], typed: str, left: int
) -> None:
    run("add", "u", "user", "Hello.", "--db", db)
    monkeypatch.setattr(sys, "stdin", _Typed(typed))
    with pytest.raises(SystemExit) as ended:
        app(["delete", "u", "--db", db])
    assert (ended.value.code, "Delete u?" in capsys.readouterr().out) == (left, True)
    assert len(call("sessions", "--db", db)["sessions"]) == left


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)  # the same on every store
def test_a_session_keeps_its_own_token_counter(db: str) -> None:
    async def write() -> None:
        async with ACMS("s", open_storage(db), token_counter=HeuristicTokenCounter()) as session:
            await session.ingest("user", "counted by another counter")

    asyncio.run(write())
    assert call("recall", "s", "counter", "--db", db)["items"]
    assert call("import", str(DEMO), "--session", "s", "--db", db)["messages"] == 83


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)  # the same on every store
def test_stored_text_cannot_steer_the_terminal(db: str, tmp_path: Path) -> None:
    evil = "\x1b[2J\x1b]0;owned\x07 hello\r[bold red]markup[/] \u202eabc"
    file = tmp_path / "evil.json"
    file.write_text(json.dumps([{"role": "user", "name": "a\x1bb", "content": evil}]), encoding="utf-8")
    run("import", str(file), "--db", db)
    for arguments in (
        ("window", "evil"),
        ("window", "evil", "--full"),
        ("history", "evil"),
        ("recall", "evil", "hello"),
    ):
        text = run(*arguments, "--db", db).stdout
        assert "\x07" not in text
        assert "\u202e" not in text
        assert "[bold red]markup[/]" in text
    assert call("window", "evil", "--db", db)["items"][0]["content"] == evil


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)  # the same on every store
def test_tables_are_readable_at_80_columns(demo: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The value comes first and keeps half of a line; what has no room is named."""
    run("facts", "reflect", "demo", "--wait", "--db", demo)
    monkeypatch.setenv("COLUMNS", "80")
    facts = run("facts", "demo", "--db", demo).stdout.splitlines()
    assert facts[0].split() == ["value", "subject", "attribute", "version", "sure"]
    assert facts[1].startswith("move orders out of the monolith into its ow")
    assert facts[-1] == "not enough room for: from, type, since, id (--json has them)"
    query = ("recall", "demo", "Why did the migration fail on staging?", "--db", demo)
    recalled = run(*query).stdout.splitlines()
    assert recalled[0].split()[:4] == ["text", "score", "version", "speaker"]
    assert recalled[2].startswith("Failed: the migration 0001_external_ref")
    for line in (*facts, *recalled, *run("history", "demo", "--db", demo).stdout.splitlines()):
        assert cell_len(line) <= 80
    monkeypatch.delenv("COLUMNS")
    assert run("facts", "demo", "--db", demo).stdout.splitlines()[0].split()[-1] == "id"


def test_columns_without_room_are_named_once_and_the_wide_one_is_cut(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    screen = output.Screen(as_json=False)
    columns = (output.Column("name"), output.Column("value"), output.Column("note", wide=True))
    for _ in range(2):
        screen.list(columns, [dict.fromkeys(("name", "value", "note"), "word " * 12)])
    lines = capsys.readouterr().out.splitlines()
    assert lines.count("not enough room for: name, value (--json has them)") == 1
    assert [line for line in lines if line.startswith("word")] == [lines[1], lines[1]]
    assert (len(lines), cell_len(lines[1])) == (5, 40)


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)  # the same on every store
def test_add(db: str) -> None:
    first = call("add", "u", "user", "We deploy on Tuesdays.", "--actor", "ana", "--metadata", '{"run": 1}',
                 "--marker", "decision", "--created-at", "2026-03-02T10:00:00Z", "--key", "k1", "--db", db)  # fmt: skip
    assert (first["version"], first["repeated"]) == (1, False)
    same = ("add", "u", "user", "We deploy on Tuesdays.", "--actor", "ana", "--metadata", '{"run": 1}',
            "--marker", "decision", "--created-at", "2026-03-02T10:00:00Z", "--key", "k1", "--db", db)  # fmt: skip
    assert "u v1 (there already)" in run(*same).stdout
    piped = CliRunner().invoke(app, ["add", "u", "assistant", "-", "--db", db], input="Noted.\nTuesdays.\n")
    assert (piped.exit_code, piped.stdout.split()[:2]) == (0, ["u", "v2"])
    said, noted = call("window", "u", "--db", db)["items"]
    assert (said["actor_id"], said["metadata"], said["markers"]) == ("ana", {"run": 1}, ["decision"])
    assert said["created_at"] == "2026-03-02T10:00:00+00:00"
    assert noted["content"] == "Noted.\nTuesdays."
    for wrong in (("wizard", "x"), ("user", "x", "--metadata", "[]"), ("user", "x", "--privacy", "maybe")):
        run("add", "u", *wrong, "--db", db, code=2)
    error = json.loads(
        run("add", "u", "user", "x", "--created-at", "yesterday", "--db", db, "--json", code=2).stderr
    )["error"]
    assert error["message"].startswith("--created-at: ")
    assert "--key: " in run("add", "u", "user", "x", "--key", "", "--db", db, code=2).stderr
    assert call("sessions", "stats", "u", "--db", db)["messages"] == 2, "nothing half stored"


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)  # the same on every store
def test_hints_are_in_the_words_of_a_shell(demo: str) -> None:
    run("tag", "demo", "mark", "3", "--db", demo)
    told = run("tag", "demo", "mark", "4", "--db", demo, code=1).stderr
    assert "try: tag it with --move" in told
    run("fork", "demo", "--at", "3", "--as", "other", "--db", demo)
    told = run("fork", "demo", "--at", "4", "--as", "other", "--db", demo, code=1).stderr
    assert "choose another --as" in told
    assert "--budget: " in run("window", "demo", "--budget", str(2**40), "--db", demo, code=2).stderr


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)  # the same on every store
def test_recall_with_an_embedder(db: str) -> None:
    run("add", "u", "user", "The cat is called Minou.", "--db", db)
    run("reindex", "u", "--embedder", "local", "--db", db)
    asked = ("recall", "u", "pet", "--db", db, "--embedder")
    assert call(*asked, "none")["tier"] == "words"
    assert call(*asked, "local")["tier"] != "words"
    assert call(*asked, "auto")["tier"] == "words", "no model is there in tests"
    run(*asked, "http://127.0.0.1:9/v1", code=2)
    for wrong, words in (
        ("ftp://models.example.org/v1#bge-m3@1024", "URL must be an address such as https://"),
        ("https://me:secret@models.example.org/v1#bge-m3@1024", "use ACMS_MODEL_KEY"),
        ("https://models.example.org/v1#new", "name the model as MODEL@DIMENSION"),
        ("https://models.example.org/v1#new@0", "DIMENSION must be a whole number above 0"),
    ):
        assert words in run(*asked, wrong, code=1).stderr
    told = run(*asked, "nonsense", code=2).stderr
    assert "there is no embedder 'nonsense', only fastembed, http, local, openai" in told


# ── import ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_import_is_idempotent_and_adds_what_is_new(db: str, tmp_path: Path) -> None:
    file = tmp_path / "growing.jsonl"
    lines = [json.dumps({"role": "user", "content": f"message {n}"}) + "\n" for n in range(501)]
    file.write_text("".join(lines[:450]), encoding="utf-8")
    assert call("import", str(file), "--db", db) == {
        "session": "growing", "read": 450, "new": 450, "messages": 450, "tokens": 1350,
        "skipped": {},
    }  # fmt: skip
    assert call("import", str(file), "--db", db)["new"] == 0
    file.write_text("".join(lines), encoding="utf-8")
    assert call("import", str(file), "--db", db)["new"] == 51
    assert "0 new of 501 messages; it has 501" in run("import", str(file), "--db", db).stdout
    page = call("history", "growing", "--limit", "500", "--after", "1", "--db", db)
    assert [entry["preview"] for entry in page["entries"]] == [f"message {n}" for n in range(1, 501)]


_KILLED = """
import os, signal, threading
from acms.cli import main
from acms.storage.sqlite.store import SQLiteStorage

append, batches = SQLiteStorage.append, []

def killed(self, ops):
    batches.append(ops)
    if len(batches) == 3:  # while it is being stored
        threading.Thread(target=os.kill, args=(os.getpid(), signal.SIGKILL)).start()
    return append(self, ops)

SQLiteStorage.append = killed
main()
"""


def test_import_goes_on_after_a_kill(tmp_path: Path) -> None:
    file = tmp_path / "long.jsonl"
    total = 1_000
    with file.open("w", encoding="utf-8") as out:
        for n in range(total // 2):
            made = [{"id": f"c{n}", "name": "count", "arguments": json.dumps({"n": n})}]
            out.write(json.dumps({"role": "assistant", "content": None, "tool_calls": made}) + "\n")
            out.write(
                json.dumps({"role": "tool", "tool_call_id": f"c{n}", "content": f"result {n} " * 20}) + "\n"
            )
    db = base.file_url(tmp_path / "long.db")
    arguments = [sys.executable, "-c", _KILLED, "import", str(file), "--db", db]
    child = subprocess.run(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=120)
    assert child.returncode == -signal.SIGKILL
    before = _stored(tmp_path / "long.db")
    assert 200 <= before < total
    assert before % 200 == 0, "a batch is stored whole or not at all"
    done = shell("import", str(file), "--db", db, "--json")
    assert done.returncode == 0, done.stderr
    value = json.loads(done.stdout)
    assert (value["new"], value["messages"]) == (total - before, total)
    keys, distinct = _query(tmp_path / "long.db", "SELECT count(*), count(DISTINCT key) FROM entries")
    assert keys == distinct == total
    assert call("verify", "--db", db)["ok"]
    assert call("import", str(file), "--db", db)["new"] == 0


def _query(path: Path, statement: str) -> tuple[Any, ...]:
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)
    try:
        connection.set_busy_timeout(5000)
        return next(iter(connection.execute(statement)))
    finally:
        connection.close()


def _stored(path: Path) -> int:
    try:
        return int(_query(path, "SELECT max(messages) FROM contexts")[0] or 0)
    except apsw.Error:
        return 0


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)  # the same on every store
def test_import_of_an_export(db: str, tmp_path: Path) -> None:
    """Each conversation becomes a session, whose name survives another title; a second import stores nothing."""
    exported = [*chatgpt(), *chatgpt(id="f1", conversation_id="f1", title="")]
    file = tmp_path / "conversations.json"
    file.write_text(json.dumps(exported), encoding="utf-8")
    done = call("import", str(file), "--db", db)
    assert (done["format"], done["read"], done["new"]) == ("chatgpt", 14, 14)
    named = ["a-photo-minou-6714a2c9", "a-photo-minou-6714a2c9-n4", "f1", "f1-n4"]
    assert [one["session"] for one in done["sessions"]] == named
    branch = call("messages", "f1-n4", "what is on it?", "--budget", "2000", "--db", db)["messages"]
    assert branch[-1]["content"] == "A dog, I think.", "an abandoned answer is a fork"
    assert call("recall", "f1", "who is Minou?", "--db", db)["items"]
    exported[0]["title"] = "Another title"
    file.write_text(json.dumps(exported), encoding="utf-8")
    again = call("import", str(file), "--format", "chatgpt", "--db", db)
    assert (again["new"], [one["session"] for one in again["sessions"]]) == (
        0,
        named,
    )
    assert "4 sessions from chatgpt: 0 new of 14 messages" in run("import", str(file), "--db", db).stdout
    assert (
        "--session: names one session"
        in run("import", str(file), "--session", "s", "--db", db, code=2).stderr
    )
    run("import", str(file), "--format", "bard", "--db", db, code=2)
    first = call("history", "f1", "--db", db)["entries"][0]["id"]
    run("erase", "f1", "--message", first, "--yes", "--db", db)
    erased = call("import", str(file), "--db", db)
    assert (erased["new"], [one["erased"] for one in erased["sessions"]]) == (0, [0, 0, 1, 0])
    piped = CliRunner().invoke(app, ["import", "-", "--db", db], input=json.dumps(exported))
    assert piped.exit_code == 0


def test_import_from_stdin_and_restore_from_stdin(tmp_path: Path) -> None:
    db, other = base.file_url(tmp_path / "a.db"), base.file_url(tmp_path / "b.db")
    text = DEMO.read_text(encoding="utf-8")
    done = shell("import", "-", "--session", "mine", "--db", db, input=text)
    assert done.returncode == 0, done.stderr
    log = run("export", "mine", "--db", db).stdout
    done = shell("restore", "-", "--db", other, "--json", input=log)
    assert json.loads(done.stdout)["messages"] == 82
    assert run("export", "mine", "--db", other).stdout == log


# ── moving and checking ─────────────────────────────────────────────────────────────────────────────────────────────


async def _rewrite(db: str) -> None:
    storage = open_storage(db)
    async with ACMS("demo", storage) as session:
        entries = (await session.history(limit=100)).entries
        await session.retract(entries[7].id)
        await session.replace(entries[3].id, "Goal: corrected")
        context = await storage.context("demo")
        assert await storage.blank(context.id, [5, 9], to=State.ERASED, audit={"by": "test"}) == 2


def test_export_and_restore_are_verbatim(demo: str, tmp_path: Path) -> None:
    asyncio.run(_rewrite(demo))
    log = run("export", "demo", "--db", demo).stdout
    assert len([json.loads(line) for line in log.splitlines()]) == 85
    file = tmp_path / "log.jsonl"
    file.write_text(log, encoding="utf-8")
    other = base.file_url(tmp_path / "other.db")
    value = call("restore", str(file), "--db", other)
    assert (value["session"], value["version"], value["restored"]) == ("demo", 84, 84)
    assert run("export", "demo", "--db", other).stdout == log
    assert "nothing to restore" in run("restore", str(file), "--db", other).stdout
    for command in (
        ("window", "demo", "--budget", "100000"),
        ("history", "demo"),
        ("sessions", "stats", "demo"),
    ):
        assert run(*command, "--db", other).stdout == run(*command, "--db", demo).stdout
    assert "erased" in run("history", "demo", "--db", other).stdout
    assert "replaced" in run("history", "demo", "--db", other).stdout
    assert call("verify", "--db", other)["ok"]


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)  # about the file
def test_backup(demo: str, tmp_path: Path) -> None:
    copy = tmp_path / "copy.db"
    value = call("backup", str(copy), "--db", demo)
    assert value == {"file": str(copy), "bytes": copy.stat().st_size}
    assert call("sessions", "stats", "demo", "--db", base.file_url(copy))["messages"] == 82
    assert "bytes" in run("backup", str(tmp_path / "second.db"), "--db", demo).stdout


@pytest.mark.skipif(sys.platform == "win32", reason="the modes of POSIX")
@pytest.mark.parametrize("url", ["sqlite"], indirect=True)  # about the file
def test_what_a_command_makes_is_for_its_owner_alone(url: str, tmp_path: Path) -> None:
    """The folder of the default database, the database, a backup of it, and a prompt that was kept."""
    run("import", str(DEMO), "--session", "s")
    run("backup", str(tmp_path / "copy.db"))
    run("prompt", "render", "s", "which database?", "--budget", "900", "--save", str(tmp_path / "a.json"))
    file = base.data_file()
    places = (file, tmp_path / "copy.db", tmp_path / "a.json", file.parent, file.parent.parent)
    assert [oct(path.stat().st_mode & 0o777) for path in places] == ["0o600"] * 3 + ["0o700"] * 2


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)  # about the file
def test_verify(demo: str, tmp_path: Path) -> None:
    value = call("verify", "--db", demo)
    assert value["ok"]
    assert [one["problems"] for one in value["sessions"]] == [[]]
    assert "sessions checked: 1, problems: 0" in run("verify", "demo", "--db", demo).stdout
    connection = apsw.Connection(str(tmp_path / "log.db"))
    statement = (
        "UPDATE entries SET content = replace(content, 'PostgreSQL 18', 'PostgreSQL 19') WHERE position = 13"
    )
    connection.execute(statement).fetchall()
    assert connection.changes() == 1
    connection.close()
    for arguments in (("verify",), ("verify", "demo")):
        text = run(*arguments, "--db", demo, code=1).stdout
        assert re.search(r"^demo c_\w+ v13: the content does not match its digest$", text, re.MULTILINE)
    value = json.loads(run("verify", "--db", demo, "--json", code=1).stdout)
    assert not value["ok"]
    assert [problem["version"] for problem in value["sessions"][0]["problems"]] == [13]


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)  # about the file
def test_a_witness_notices_a_store_that_was_rolled_back_or_swapped(demo: str, tmp_path: Path) -> None:
    file, witness = tmp_path / "log.db", tmp_path / "heads.jsonl"
    run("backup", str(tmp_path / "old.db"), "--db", demo)
    run("fork", "demo", "--at", "5", "--as", "aside", "--db", demo)
    run(
        "erase",
        "demo",
        "--message",
        call("history", "demo", "--db", demo)["entries"][0]["id"],
        "--yes",
        "--db",
        demo,
    )
    assert call("witness", str(witness), "--db", demo)["ok"]
    assert oct(witness.stat().st_mode & 0o777) == "0o600"
    kept = witness.read_bytes()
    assert call("verify", "--witness", str(witness), "--db", demo)["ok"]
    add_one = tmp_path / "more.json"
    add_one.write_text('[{"role": "user", "content": "One more."}]')
    run("import", str(add_one), "--session", "demo", "--db", demo)
    assert call("witness", str(witness), "--db", demo)["ok"]
    assert witness.read_bytes() != kept
    file.rename(tmp_path / "newer.db")
    (tmp_path / "old.db").rename(file)
    seen = witness.read_bytes()
    assert call("verify", "--db", demo)["ok"]
    text = run("witness", str(witness), "--db", demo, code=1).stdout
    assert "the log ends before this version" in text
    assert "does not hold this log" in text
    assert witness.read_bytes() == seen
    run("import", str(add_one), "--session", "demo", "--db", demo)
    assert (
        "the chain hash is another one"
        in run("verify", "--witness", str(witness), "--db", demo, code=1).stdout
    )
    witness.write_text("{}\n")
    assert (
        "line 1: is not a line of a witness file" in run("witness", str(witness), "--db", demo, code=1).stderr
    )


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)  # about the file
def test_verify_looks_at_the_file(demo: str, tmp_path: Path) -> None:
    connection = apsw.Connection(str(tmp_path / "log.db"))
    connection.pragma("writable_schema", True)
    connection.execute("DELETE FROM sqlite_master WHERE name = 'contexts_parent'").fetchall()
    connection.close()
    value = json.loads(run("verify", "--db", demo, "--json", code=1).stdout)
    assert value["file"]


# ── demo ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_demo_is_plain_when_piped(tmp_path: Path) -> None:
    done = shell("demo", env={**os.environ, "TMPDIR": str(tmp_path)})
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert ANSI not in done.stdout
    assert not BOXES.search(done.stdout)
    for expected in (
        "a second",
        "window demo --budget 300",
        "Failed: the migration",
        "left out",
        "acms sessions episodes demo",
        "takes v18 back",
        "Go on",
    ):
        assert expected in done.stdout
    assert list(tmp_path.iterdir()) == [], "nothing is left behind"
    assert not re.search(r"python|\w\(\w+=|session\.", done.stdout), "every hint is a command line"


@pytest.mark.parametrize("embedder", ["none", pytest.param("local", marks=pytest.mark.slow)])
def test_the_demo_ends_with_commands_that_do_what_they_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, embedder: str
) -> None:
    """As a newcomer pastes them, one after the other."""
    monkeypatch.setenv("ACMS_EMBEDDER", embedder)
    monkeypatch.chdir(tmp_path)
    hints = [line.strip() for line in run("demo").stdout.partition("Go on\n")[2].splitlines()]
    pasted = [shlex.split(re.split(r"  +", hint)[0]) for hint in hints]
    assert [words[0] for words in pasted] == ["acms"] * 5
    kept, asked, _, answered = (run(*words[1:]).stdout for words in pasted[:4])
    assert kept.endswith(hints[-1] + "\n")
    assert asked.splitlines()[1].startswith("Decision: no Kafka for now.")
    assert answered.splitlines()[1].startswith("We deploy on Tuesdays.")


def test_demo_as_json_and_kept(db: str) -> None:
    value = call("demo", "--db", db)
    assert value["ingested"]["new"] == value["ingested"]["messages"] == 82
    assert value["window"]["tokens"] <= value["window"]["budget"]
    assert [answer["tokens"] <= answer["budget"] for answer in value["recall"]] == [True] * 3
    assert value["time"]["before"]["version"] == value["time"]["retracted"]
    assert value["time"]["after"]["version"] > value["time"]["retracted"]
    again = call("demo", "--db", db)
    assert again["ingested"]["new"] == 0
    assert again["stats"] == value["stats"]
    assert "nothing is stored twice" in run("demo", "--db", db).stdout
    assert call("verify", "--db", db)["ok"]


def test_demo_conversation_has_what_it_should() -> None:
    lines = [json.loads(line) for line in DEMO.read_text(encoding="utf-8").splitlines()]
    calls = [call["id"] for line in lines for call in line.get("tool_calls", ())]
    assert sorted(calls) == sorted(line["tool_call_id"] for line in lines if line["role"] == "tool")
    assert max(len(line.get("tool_calls", ())) for line in lines) >= 3
    assert len({line["created_at"][:10] for line in lines}) == 3


def _terminal(arguments: list[str], *keys: str, until: str, **environment: str) -> str:
    """Run a program in a terminal, type keys, and return what is seen until some text is there, or it ends."""
    pty = pytest.importorskip("pty", reason="no terminals here")
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100", **environment}
    child = subprocess.Popen(arguments, stdout=theirs, stderr=theirs, stdin=theirs, env=environment)
    os.close(theirs)
    for key in keys:
        os.write(ours, key.encode())
    seen = b""
    with suppress(OSError):  # it has ended
        while until.encode() not in seen and select.select([ours], [], [], 60)[0]:
            seen += os.read(ours, 65536)
    child.kill()
    child.wait()
    os.close(ours)
    return seen.decode()


def test_tab_completes_commands_options_and_sessions_in_bash(tmp_path: Path) -> None:
    file = tmp_path / "acms.db"
    run("add", "holiday-plans", "user", "Lyon in May.", "--db", base.file_url(file))
    environment = {
        "ACMS_DB": base.file_url(file),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    start = 'eval "$(_ACMS_COMPLETE=source_bash acms)"\n'
    leave = "\x1b#"  # makes a comment of what was typed
    typed = f"acms hist\t{leave}acms window hol\t{leave}acms recall holiday-plans x --bud\t"
    seen = _terminal(["bash", "--norc", "-i"], start, typed, until="--budget ", **environment)
    assert "acms history " in seen
    assert "window holiday-plans " in seen
    assert "--budget " in seen


@pytest.mark.parametrize(
    "shell_name", ["bash", *(pytest.param(name, marks=pytest.mark.slow) for name in ("zsh", "fish"))]
)
def test_there_is_a_completion_for_every_shell(shell_name: str) -> None:
    done = shell(
        env={**os.environ, "_PYTHON_M_ACMS_CLI_COMPLETE": "", "_ACMS_COMPLETE": f"source_{shell_name}"}
    )
    assert done.returncode == 0, done.stderr
    assert f"complete_{shell_name}" in done.stdout


@pytest.mark.parametrize("quiet", [False, True])
def test_a_bar_is_shown_to_who_waits_longer_than_a_second_in_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], quiet: bool
) -> None:
    """Seconds are set to none here; another bar within takes the place of the first; an answer takes it away."""
    monkeypatch.setattr(output, "PATIENCE", 0.0)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")

    async def work() -> None:
        screen = output.Screen(as_json=quiet)
        with screen.progress("working"), screen.progress("importing") as tell:
            tell(1, 3)
            await asyncio.sleep(0)
            screen.show({}, lambda: None)
            tell(2, 3)

    asyncio.run(work())
    assert ("importing" in capsys.readouterr().err) is not quiet


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)  # the same on every store
def test_colours_and_boxes_in_a_terminal_only(
    demo: str, monkeypatch: pytest.MonkeyPatch, in_terminal: Callable[..., str]
) -> None:
    coloured = in_terminal("recall", "demo", "database", "--db", demo)
    assert "\x1b[36m" in coloured
    assert BOXES.search(coloured)
    assert "tokens, log at" in coloured
    monkeypatch.setenv("NO_COLOR", "1")
    assert not re.search(r"\x1b\[[0-9;]*3[0-9]m", in_terminal("recall", "demo", "database", "--db", demo))


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)  # the same on every store
def test_a_reader_that_goes_away_is_no_error_message(demo: str) -> None:
    child = subprocess.Popen(
        [sys.executable, "-m", "acms.cli", "export", "demo", "--db", demo],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert child.stdout is not None
    assert child.stderr is not None
    child.stdout.close()
    errors = child.stderr.read()
    child.stderr.close()
    assert child.wait() == 1
    assert errors == b""


async def test_storage_stays_usable_beside_the_cli(demo: str) -> None:
    """A command in another process reads and writes a store that this one has open."""
    storage = open_storage(demo)
    async with ACMS("demo", storage) as session:
        await session.ingest("user", "written here")
        done = await asyncio.to_thread(shell, "window", "demo", "--budget", "20", "--db", demo)
        assert "written here" in done.stdout


def test_prompt_log(db: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACMS_RENDERS_ENABLED", "1")
    run("import", str(DEMO), "--db", db)
    for question in ("which database did we choose?", "why did the migration fail?"):
        run("prompt", "render", "demo", question, "--budget", "900", "--db", db)
    newest, first = call("prompt", "log", "demo", "--db", db)["renders"]
    assert (newest["previous"], newest["kind"], newest["budget"]) == (first["id"], "prompt", 900)
    assert newest["id"] in run("prompt", "log", "demo", "--db", db).stdout
    text = run("prompt", "log", "demo", newest["id"], "--db", db).stdout
    assert "left out" in text
    assert "from a cache" in text
    run("prompt", "log", "demo", "--clear", "--db", db)
    assert call("prompt", "log", "demo", "--db", db)["renders"] == []


def test_help_of_every_command_needs_no_extra_but_cli() -> None:
    code = (
        "import sys\n"
        "for name in ('starlette', 'uvicorn', 'jinja2', 'mcp'):\n"
        "    sys.modules[name] = None\n"
        "from acms.cli.loading import load_commands\n"
        "load_commands()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
