"""The commands about forks and versions: what they print, as JSON, and with which exit code."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import subprocess
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from acms import ACMS, Branch, Tree, open_storage
from acms.cli.branching import ASCII, BOXES, BranchNotes, draw_tree
from acms.cli.commands import app
from acms.providers import HeuristicTokenCounter
from acms.testing.logs import WHEN, append_drafts, draft_retraction, draft_summary


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    for name in ("ACMS_DEBUG", "NO_COLOR", "FORCE_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ACMS_DB", url)


def run(*arguments: str, code: int = 0, **options: Any) -> Result:
    result = CliRunner().invoke(app, list(arguments), **options)
    assert result.exit_code == code, (result.output, result.exception)
    assert "Traceback" not in result.output
    return result


def call(*arguments: str) -> dict[str, Any]:
    return json.loads(run(*arguments, "--json").stdout)


def refused(*arguments: str, code: int = 1) -> dict[str, Any]:
    return json.loads(run(*arguments, "--json", code=code).stderr)["error"]


def on_store(work: Callable[[Any], Awaitable[None]]) -> None:
    """Do something with the store of the test."""

    async def do() -> None:
        async with open_storage(os.environ["ACMS_DB"]) as storage:
            await work(storage)
        await storage.aclose()  # whatever session was left open

    asyncio.run(do())


@pytest.fixture
def talk() -> None:
    """Six messages of user_123."""

    async def fill(storage: Any) -> None:
        session = ACMS("user_123", storage, token_counter=HeuristicTokenCounter())
        await session.ingest_many([{"role": "user", "content": f"point {n}"} for n in range(1, 7)])

    on_store(fill)


pytestmark = pytest.mark.usefixtures("talk")


def test_a_fork_can_be_a_copy_that_shares_nothing() -> None:
    run("tag", "user_123", "early", "2")
    told = "flat is a copy of user_123 up to v4\n"
    assert run("fork", "user_123", "--at", "4", "--as", "flat", "--copy").stdout == told
    assert run("fork", "user_123", "--at", "4", "--as", "flat", "--copy").stdout == told
    found = call("fork", "user_123", "--at", "early", "--copy")
    assert (found["parent"], found["fork"], found["version"]) == (None, None, 2)
    assert call("tag", "flat")["tags"] == {"early": 2}
    assert refused("fork", "user_123", "--at", "3", "--as", "flat", "--copy")["code"] == "CONFLICT"
    assert call("verify", "flat")["ok"]


def test_a_fork_goes_on_from_a_version_or_a_tag() -> None:
    assert run("fork", "user_123", "--at", "4", "--as", "what-if").stdout == (
        "what-if forks user_123 at v4\n"
    )
    assert run("fork", "user_123", "--as", "what-if").stdout == (
        "what-if forks user_123 at v4: it was created then; user_123 is at v6 now\n"
    )
    run("tag", "user_123", "early", "2")
    found = call("fork", "user_123", "--at", "early", "--as", "retry")
    assert (found["session"], found["parent"], found["fork"], found["version"]) == (
        "retry",
        "user_123",
        2,
        2,
    )
    nameless = call("fork", "user_123")
    assert (nameless["session"], nameless["fork"]) == (nameless["id"], 6)
    assert call("sessions", "stats", nameless["session"])["messages"] == 6
    assert call("fork", "user_123", "--at", "4", "--as", "what-if")["fork"] == 4


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)  # the same on every store
def test_errors_of_forks_and_tags_say_what_to_do() -> None:
    run("tag", "user_123", "early", "2")
    assert refused("fork", "user_123", "--at", "9")["code"] == "NOT_FOUND"
    assert refused("fork", "user_123", "--at", "nowhere")["options"] == ["'early' is version 2"]
    assert refused("fork", "user_123", "--as", "user_123")["code"] == "CONFLICT"
    assert refused("fork", "nobody")["code"] == "SESSION_NOT_FOUND"
    assert refused("tag", "user_123", "early", "3")["code"] == "CONFLICT"
    assert refused("tag", "user_123", "7")["field"] == "name"
    assert refused("tag", "user_123", "x", "--delete")["code"] == "NOT_FOUND"
    for wrong in (
        ("fork", "user_123", "--at", "-1"),
        ("tag", "user_123", "--delete"),
        ("tag", "user_123", "--move"),
        ("tag", "user_123", "early", "3", "--delete"),
        ("sessions", "at", "user_123"),
        ("diff",),
        ("log", "user_123", "--limit", "0"),
        ("delete", "user_123"),
    ):
        run(*wrong, code=2)
    assert call("tag", "user_123")["tags"] == {"early": 2}


def test_tags_are_given_moved_listed_and_taken_off() -> None:
    assert run("tag", "user_123").stdout == "there are no tags\n"
    assert run("tag", "user_123", "now").stdout == "now is v6\n"
    assert call("tag", "user_123", "early", "2")["tags"] == {"early": 2, "now": 6}
    assert run("tag", "user_123", "now", "early", "--move").stdout == "now is v2\n"
    assert run("tag", "user_123").stdout.split() == ["tag", "version", "early", "v2", "now", "v2"]
    assert run("tag", "user_123", "now", "--delete").stdout == "the tag now is deleted\n"
    assert call("tag", "user_123")["tags"] == {"early": 2}


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)  # the same on every store
@pytest.mark.parametrize(
    "command", ["window SESSION", "history SESSION", "sessions stats SESSION", "recall SESSION point"]
)
def test_reading_commands_take_a_tag_for_a_version(command: str) -> None:
    run("tag", "user_123", "early", "2")
    named = command.replace("SESSION", "user_123").split()
    assert call(*named, "--at", "early") == call(*named, "--at", "2")
    assert refused(*named, "--at", "nowhere")["code"] == "NOT_FOUND"
    assert refused(*named, "--at", "7")["code"] == "NOT_FOUND"
    run(*named, "--at", "-1", code=2)


def test_at_shows_counts_tags_and_the_last_messages_of_a_version() -> None:
    run("tag", "user_123", "early", "2")
    run("tag", "user_123", "late", "5")
    lines = run("sessions", "at", "user_123", "4", "--last", "2").stdout.splitlines()
    assert lines[0] == "user_123 at v4"
    assert "tags: early (v2)" in lines
    assert [line.split()[1] for line in lines[-2:]] == ["3", "4"]
    found = call("sessions", "at", "user_123", "early")
    assert (found["version"], found["stats"]["messages"]) == (2, 2)
    assert [message["content"] for message in found["messages"]] == ["point 1", "point 2"]


def test_a_difference_is_shown_in_words_and_as_json() -> None:
    run("fork", "user_123", "--at", "4", "--as", "what-if")
    run("tag", "user_123", "early", "3")
    assert run("diff", "user_123", "what-if").stdout.splitlines() == [
        "--- user_123 v6",
        "+++ what-if v4",
        "    the same up to v4",
        "@@ messages: 2 removed @@",
        "- v5 user: point 5",
        "- v6 user: point 6",
    ]
    found = call("diff", "user_123@early", "user_123")
    assert (found["different"], found["common"], found["left"]) == (True, 3, "user_123 v3")
    assert [entry["content"] for entry in found["messages"]["added"]] == ["point 4", "point 5", "point 6"]
    assert call("diff", "user_123", "--at", "3") == found
    assert call("diff", "user_123@3") == found
    assert call("diff", "user_123")["different"] is False
    assert refused("diff", "user_123", "nobody")["code"] == "SESSION_NOT_FOUND"
    error = refused("diff", "user_123@9", "what-if")
    assert (error["code"], error["message"]) == (
        "NOT_FOUND",
        "the log ends at version 6, 9 does not exist yet",
    )
    assert refused("sessions", "at", "user_123", "9")["message"] == error["message"]
    assert refused("diff", "user_123@3", "what-if", "--at", "2", code=2)["field"] == "at"


def test_a_session_whose_name_has_an_at_sign_can_be_compared() -> None:
    run("fork", "user_123", "--at", "4", "--as", "sam@example.com")
    assert call("diff", "sam@example.com")["right"] == "sam@example.com v4"
    assert call("diff", "sam@example.com@2")["left"] == "sam@example.com v2"


def test_deleting_says_which_forks_keep_content() -> None:
    run("fork", "user_123", "--at", "4", "--as", "what-if")
    found = call("delete", "user_123", "--yes")
    assert [(branch["session_id"], branch["version"]) for branch in found["kept_by"]] == [("what-if", 4)]
    assert refused("delete", "user_123", "--yes")["code"] == "SESSION_NOT_FOUND"
    assert refused("window", "user_123")["code"] == "SESSION_NOT_FOUND"
    assert call("sessions", "stats", "what-if")["messages"] == 4
    assert "what-if is deleted; it is collected from 20" in run("delete", "what-if", "--yes").stdout


def family() -> None:
    """Forks of forks with tags, a compaction that was undone, and a deleted one."""
    run("fork", "user_123", "--at", "4", "--as", "what-if")
    run("fork", "what-if", "--as", "retry")
    run("fork", "user_123", "--at", "2", "--as", "old")
    run("tag", "user_123", "early", "2")
    run("tag", "retry", "checkpoint")

    async def compact(storage: Any) -> None:
        context = await storage.context("user_123")
        await append_drafts(storage, context, draft_summary(1, 3))
        await append_drafts(storage, context, draft_summary(1, 5, replaces=((1, 5), (7, 7))))
        await append_drafts(storage, context, draft_retraction(8))

    on_store(compact)
    run("delete", "what-if", "--yes")


def test_log_says_where_a_session_comes_from_and_who_said_what() -> None:
    family()
    lines = run("log", "retry", "--limit", "2").stdout.splitlines()
    assert lines[:3] == ["user_123 v9", "what-if v4 (deleted), from v4", "retry v4, from v4"]
    assert lines[-1].split() == ["point", "4", "v4", "user", "checkpoint", "user_123", "message"]
    assert len(lines) == 6
    found = call("log", "user_123", "--limit", "3")
    assert [entry["kind"] for entry in found["entries"]] == ["summary", "summary", "retraction"]
    assert [branch["session_id"] for branch in found["ancestry"]] == ["user_123"]


def test_the_graph_draws_the_tree_in_ascii_into_a_pipe() -> None:
    family()
    assert run("log", "retry", "--graph").stdout.splitlines() == [
        "user_123 v9",
        "| # v2 early",
        "|- from v2: old v2",
        "|- from v4: what-if v4 (deleted)",
        "|  `- from v4: retry v4 <- here",
        "|     ` # v4 checkpoint",
        "| * v7 replaces v1 to v3",
        "` * v8 replaces v1 to v5 (not active)",
    ]
    found = call("log", "retry", "--graph")["branches"]
    assert [(one["depth"], one["session_id"], one["deleted"], one["here"]) for one in found] == [
        (0, "user_123", False, False),
        (1, "what-if", True, False),
        (2, "retry", False, True),
        (1, "old", False, False),
    ]
    assert found[0]["tags"] == {"early": 2}
    assert found[0]["compactions"][1] == {"version": 8, "first": 1, "last": 5, "in_force": False}


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)  # the same on every store
@pytest.mark.skipif(sys.platform == "win32", reason="needs a terminal of Unix")
@pytest.mark.parametrize(("encoding", "corner"), [("utf-8", "└"), ("ascii", "`")])
def test_the_graph_has_boxes_in_a_terminal_that_shows_them(encoding: str, corner: str) -> None:
    family()
    main, side = pty.openpty()
    done = subprocess.run(
        [sys.executable, "-m", "acms.cli", "log", "retry", "--graph"],
        stdout=side,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONIOENCODING": encoding, "NO_COLOR": "1", "TERM": "dumb"},
        timeout=60,
    )
    os.close(side)
    shown = b""
    while True:
        try:
            read = os.read(main, 65536)
        except OSError:
            break
        if not read:
            break
        shown += read
    os.close(main)
    assert (done.returncode, done.stderr) == (0, b"")
    text = shown.decode(encoding)
    assert f"{corner}{'─' if encoding == 'utf-8' else '-'} from v4: retry v4" in text
    assert ("◆ v7 replaces v1 to v3" in text) == (encoding == "utf-8")


def test_a_deep_tree_is_drawn_without_recursion() -> None:
    def branch(n: int) -> Branch:
        return Branch(
            context_id=f"c{n}",
            session_id=f"s{n}",
            parent=f"c{n - 1}" if n else None,
            fork=1 if n else None,
            version=1,
            created_at=WHEN,
        )

    depth = 1200
    tree = Tree(branch=branch(depth))
    for n in reversed(range(depth)):
        tree = Tree(branch=branch(n), forks=(tree,))
    notes = {f"c{n}": BranchNotes({}, ()) for n in range(depth + 1)}
    for signs in (BOXES, ASCII):
        lines = draw_tree(tree, notes, "c0", signs)
        assert len(lines) == depth + 1
        assert lines[-1] == "   " * (depth - 1) + f"{signs.last_branch}{signs.dash} from v1: s{depth} v1"


@pytest.mark.usefixtures("talk")
def test_merge_shows_what_would_come_merges_it_and_is_taken_back() -> None:
    run("fork", "user_123", "--as", "what-if")

    async def disagree(storage: Any) -> None:
        for name, text in (("user_123", "ours"), ("what-if", "theirs")):
            session = ACMS(name, storage, None, token_counter=HeuristicTokenCounter())
            first = (await session.history(limit=1)).entries[0].id
            await session.replace(first, text)
            if name == "what-if":
                await session.ingest("user", "and something new")
            await session.close()

    on_store(disagree)
    shown = run("merge", "user_123", "what-if", "--dry-run").stdout
    assert "+ v8 user: and something new" in shown
    assert "!! message" in shown
    assert "nothing was written" in shown
    refusal = refused("merge", "user_123", "what-if")
    assert refusal["code"] == "MERGE_CONFLICT"
    assert any("--strategy theirs" in option for option in refusal["options"])
    done = call("merge", "user_123", "what-if", "--strategy", "theirs")
    assert done["merged"] is True
    assert call("merge", "user_123", "what-if")["merged"] is False
    assert "already up to date" in run("merge", "user_123", "what-if@8").stdout
    run("undo", "user_123", str(done["version"]))
    assert "and something new" not in run("window", "user_123").stdout
