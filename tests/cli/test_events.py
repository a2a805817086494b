"""`acms events`: what happened to a session, a line each."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

from acms.model import ONCE
from tests.cli.test_cli import call, run


def test_events_are_lines_that_begin_with_the_cursor_behind_them(url: str) -> None:
    for text in ("one", "two\nlines", "three"):
        call("add", "user_123", "user", text, "--key", f"{ONCE}{text[:3]}", "--db", url)
    lines = run("events", "user_123", "--db", url).stdout.splitlines()
    assert [line.split("\t")[1] for line in lines] == [
        "message v1 user: one",
        "message v2 user: two lines",
        "message v3 user: three",
    ]
    cursor = lines[1].split("\t")[0]
    (line,) = run("events", "user_123", "--after", cursor, "--json", "--db", url).stdout.splitlines()
    found = json.loads(line)
    assert (found["cursor"], found["entry"]["content"], found["entry"]["key"]) == ("3", "three", None)
    run("events", "user_123", "--after", "9", "--db", url, code=1)
    run("events", "nobody", "--db", url, code=1)


def test_follow_goes_on_until_it_is_interrupted(tmp_path: object) -> None:
    db = f"sqlite:///{tmp_path}/log.db"
    call("add", "user_123", "user", "one", "--db", db)
    heeded = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"  # a background job ignores it
    run_cli = f"{heeded}; from acms.cli import main; main()"
    command = (sys.executable, "-c", run_cli, "events", "user_123", "--follow", "--db", db)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "1\tmessage v1 user: one\n"
        call("add", "user_123", "user", "two", "--db", db)
        assert process.stdout.readline().endswith("\tmessage v2 user: two\n")
        os.kill(process.pid, signal.SIGINT)
        assert process.wait(60) == 130
        assert process.stderr is not None
        assert process.stderr.read() == "interrupted\n"
