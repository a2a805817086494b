"""`acms mcp` as a client starts it: a process that speaks on stdin and stdout, may die, and keeps answered calls."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters
from typer.testing import CliRunner

from acms.cli.commands import app as commands
from tests.mcp.conftest import text_of

HELLO = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}


def _mcp_command(db: str, session: str) -> list[str]:
    return ["-m", "acms.cli", "mcp", "--db", db, "--namespace", "user:1", "--session", session]


class Raw:
    """A process, line by line."""

    def __init__(self, db: str, session: str) -> None:
        command = [sys.executable, *_mcp_command(db, session)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def ask(self, id: int, method: str, **params: Any) -> Any:
        """Send a request and return the result; whatever else stands on stdout is no JSON, and fails."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        sent = {"jsonrpc": "2.0", "id": id, "method": method, "params": params}
        self.process.stdin.write(json.dumps(sent).encode() + b"\n")
        self.process.stdin.flush()
        answer = json.loads(self.process.stdout.readline())
        assert answer["id"] == id
        return answer["result"]

    def close(self) -> None:
        """Let go of the pipes."""
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()


async def test_what_was_answered_outlives_a_kill_and_other_sessions_find_it(tmp_path: Path) -> None:
    db = f"sqlite:///{tmp_path / 'memory.db'}"
    killed = Raw(db, "monday")
    try:
        killed.ask(1, "initialize", **HELLO)
        said = {"text": "We deploy on Tuesdays.", "origin": "user", "key": "k"}
        made = killed.ask(2, "tools/call", name="remember", arguments=said)["structuredContent"]
    finally:
        killed.process.kill()
        killed.process.wait()
        killed.close()
    parameters = StdioServerParameters(
        command=sys.executable, args=_mcp_command(db, "tuesday"), env=dict(os.environ)
    )
    query = {"query": "When do we deploy?"}
    async with Client(parameters) as client:
        assert client.protocol_version == "2026-07-28"
        assert (await client.call_tool("recall", query)).structured_content["items"] == []
        found = await client.call_tool("recall", {**query, "scope": "namespace"})
        assert [(one["id"], one["session"]) for one in found.structured_content["items"]] == [
            (made["id"], "monday")
        ]
        assert "We deploy on Tuesdays." in text_of(found)


def test_what_was_asked_before_the_end_of_stdin_is_answered(tmp_path: Path) -> None:
    command = [sys.executable, *_mcp_command(f"sqlite:///{tmp_path / 'memory.db'}", "one")]
    lines: list[dict[str, Any]] = [
        {"id": 1, "method": "initialize", "params": HELLO},
        {"method": "notifications/initialized"},
    ]
    for number, text in enumerate(("We deploy on Tuesdays.", "One\0two.", "We use Redis."), 2):
        params = {"name": "remember", "arguments": {"text": text}}
        lines.append({"id": number, "method": "tools/call", "params": params})
    stdin = "".join([json.dumps({"jsonrpc": "2.0", **line}) + "\n" for line in lines])
    done = subprocess.run(command, input=stdin.encode(), capture_output=True, timeout=60)
    assert done.returncode == 0
    answers = {answer["id"]: answer for answer in map(json.loads, done.stdout.splitlines())}
    assert sorted(answers) == [1, 2, 3, 4]
    notes = [answers[id]["result"]["structuredContent"].get("notes") for id in (2, 3, 4)]
    assert notes[0] is notes[2] is None
    assert "NUL" in notes[1][0]


def test_a_client_that_goes_away_ends_the_process(tmp_path: Path) -> None:
    command = [sys.executable, *_mcp_command(f"sqlite:///{tmp_path / 'memory.db'}", "one")]
    done = subprocess.run(command, input=b"not JSON\n\n", capture_output=True, timeout=60)
    assert done.returncode == 0
    assert b"Traceback" not in done.stdout + done.stderr
    for line in done.stdout.splitlines():
        assert json.loads(line)["jsonrpc"] == "2.0"


@pytest.mark.skipif(sys.platform == "win32", reason="needs a terminal of its own")
def test_one_interrupt_at_a_terminal_ends_the_process(tmp_path: Path) -> None:
    import pty

    terminal, stdin = pty.openpty()
    heeded = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"  # a background job ignores it
    arguments = _mcp_command(f"sqlite:///{tmp_path / 'memory.db'}", "one")[2:]
    command = [sys.executable, "-c", f"{heeded}; from acms.cli import main; main()", *arguments]
    with subprocess.Popen(
        command, stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        os.close(stdin)
        try:
            assert process.stdout is not None
            hello = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": HELLO}
            os.write(terminal, json.dumps(hello).encode() + b"\n")
            assert json.loads(process.stdout.readline())["id"] == 1
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 130
            assert process.stderr is not None
            assert process.stderr.read() == "interrupted\n"
        finally:
            process.kill()
            os.close(terminal)


def test_without_the_extra_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [one for one in sys.modules if one.partition(".")[0] == "acms" and ".mcp" in one]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "mcp", None)
    monkeypatch.setitem(sys.modules, "mcp.server", None)
    monkeypatch.setitem(sys.modules, "mcp.server.stdio", None)
    done = CliRunner().invoke(commands, ["mcp", "--db", f"sqlite:///{tmp_path / 'memory.db'}"])
    assert done.exit_code == 1
    assert "MISSING_EXTRA" in done.output
    assert "[mcp]" in done.output
