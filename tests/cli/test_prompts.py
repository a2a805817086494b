"""The commands about prompts: what they print, as JSON, in a terminal, and with which exit code."""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from acms import ACMS, Media, Raw, Reasoning, ToolCall, ToolResult, open_storage
from acms.cli.commands import app

ASKED = "which database did we choose for orders?"


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("ACMS_DEBUG", "NO_COLOR", "FORCE_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ACMS_DB", f"sqlite:///{tmp_path}/notes.db")
    monkeypatch.chdir(tmp_path)


def run(*arguments: str, code: int = 0, **options: Any) -> Result:
    result = CliRunner().invoke(app, ["prompt", *arguments], **options)
    assert result.exit_code == code, (result.output, result.exception)
    assert "Traceback" not in result.output
    return result


def call(*arguments: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run(*arguments, "--json").stdout)
    return found


def refused(*arguments: str, code: int = 1) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run(*arguments, "--json", code=code).stderr)["error"]
    return found


async def _told(*said: tuple[str, str]) -> list[str]:
    async with open_storage(os.environ["ACMS_DB"]) as storage, ACMS("user_123", storage) as session:
        ids = [await session.ingest(role, text) for role, text in said]
    await storage.aclose()
    return ids


@pytest.fixture
def talk() -> list[str]:
    """Messages of user_123: a decision long ago, and small talk since."""
    chatter = [
        ("user" if n % 2 else "assistant", f"Small talk number {n} about the weather. " * 4)
        for n in range(40)
    ]
    said = [
        ("user", "Which database should the orders service use?"),
        ("assistant", "Decision: PostgreSQL 18 for orders, because we need transactions."),
        *chatter,
    ]
    return asyncio.run(_told(*said))


def saved(file: str, *arguments: str, query: str = ASKED) -> str:
    run("render", "user_123", query, "--budget", "900", "--system", "You help.", "--save", file, *arguments)
    return file


def test_a_rendered_prompt_shows_each_message_and_where_the_cache_ends(talk: list[str]) -> None:
    shown = run("render", "user_123", ASKED, "--budget", "900", "--system", "You help.").stdout
    lines = shown.splitlines()
    assert lines[0].split() == ["text", "role", "tokens", "log", "from", "#"]
    assert "You help." in lines[1]
    line = next(n for n, text in enumerate(lines) if "what is above stays the same next time" in text)
    assert ASKED in lines[line - 1]
    assert "PostgreSQL 18 for orders" in lines[line - 2]
    assert "recall" in lines[line - 2]
    assert "of 900 tokens" in shown
    assert "log at v42" in shown
    assert "v42 " in shown


@pytest.mark.parametrize(
    ("codec", "model", "holds"),
    [
        ("openai-chat", "gpt-4o", "messages"),
        ("openai-responses", "gpt-5", "input"),
        ("anthropic", "claude-sonnet-4-5", "messages"),
    ],
)
def test_a_prompt_as_json_holds_the_payload_and_the_manifest(
    talk: list[str], codec: str, model: str, holds: str
) -> None:
    found = call(
        "render", "user_123", ASKED, "--budget", "900", "--codec", codec, "--model", model, "--system", "S"
    )
    assert found["payload"][holds]
    assert found["manifest"]["model"] == model
    assert found["manifest"]["codec"].startswith(codec)
    assert found["tokens"]["upper_bound"] <= 900
    assert found["cache"]["first_change"] is None
    run("render", "user_123", ASKED, "--codec", codec, "--model", model, "--save", "a.json")
    assert call("replay", "a.json")["identical"] is True


def test_a_prompt_of_the_past_has_only_what_was_said_then(talk: list[str]) -> None:
    found = call("render", "user_123", "--at", "2")
    assert found["manifest"]["entries"] == talk[:2]
    assert found["manifest"]["reads"][0][1] == 2


def test_a_budget_that_is_too_small_and_a_codec_that_is_none_are_refused(talk: list[str]) -> None:
    error = refused("render", "user_123", ASKED, "--budget", "9", "--system", "You help. " * 9)
    assert error["code"] == "FIT"
    assert error["options"]
    error = refused("render", "user_123", "--codec", "morse", code=2)
    assert (error["code"], error["field"], error["options"]) == ("VALIDATION", "codec", [])
    error = refused("render", "user_123", "--codec", "openai", code=2)
    assert error["options"] == ["did you mean openai-chat or openai-responses?"]
    error = refused("render", "user_123", "--codec", "Claude", code=2)
    assert error["options"] == ["did you mean anthropic?"]
    assert refused("render", "nobody")["code"] == "SESSION_NOT_FOUND"
    error = refused("render", "user_123", "--save", ".")
    assert (error["code"], error["field"]) == ("VALIDATION", ".")
    for codec in ("openai-chat", "anthropic"):
        assert refused("render", "user_123", "--codec", codec, "--model", "", code=2)["field"] == "model"


def test_two_prompts_are_compared_from_where_they_part(talk: list[str]) -> None:
    saved("a.json")
    asyncio.run(_told(("user", ASKED), ("assistant", "PostgreSQL 18.")))
    saved("b.json", "--after", "a.json", "--system", "You help much.", query="and why?")
    shown = run("diff", "a.json", "b.json").stdout.splitlines()
    assert shown[0].startswith("--- a.json (openai-chat gpt-5, ")
    assert shown[1].startswith("+++ b.json (openai-chat gpt-5, ")
    assert shown[2].startswith("@@ ")
    assert any(line.startswith("- ") and "You help." in line for line in shown)
    assert any(line.startswith("+ ") and "and why?" in line for line in shown)
    assert any("because the cache breaks" in line for line in shown)
    found = call("diff", "a.json", "b.json")
    assert found["different"] is True
    assert found["cache"]["reason"]
    assert 0 <= found["break"] < found["paid"]
    shared = found["shared_messages"]
    assert [row["sign"] for row in found["rows"][:shared]] == [" "] * shared
    changed = found["rows"][shared]
    assert changed["sign"] != " "
    assert changed["left"]["tokens"] > 0
    assert found["cache"]["first_change"]["index"] == shared
    same = call("diff", "a.json", "a.json")
    assert same["different"] is False
    assert {row["sign"] for row in same["rows"]} == {" "}


def test_in_a_terminal_two_prompts_stand_side_by_side(
    talk: list[str], in_terminal: Callable[..., str]
) -> None:
    saved("a.json")
    saved("b.json", query="what about the weather?")
    shown = in_terminal("prompt", "diff", "a.json", "b.json")
    assert "│" in shown
    row = next(line for line in shown.splitlines() if ASKED[:20] in line and "weather" in line)
    assert row.index(ASKED[:20]) < row.index("what about the weather?")
    (fold,) = [line for line in shown.splitlines() if " the same" in line]
    assert fold.count(" messages the same") == 2
    assert "tokens of uncached input" in shown


def test_a_prompt_says_how_it_was_made_to_fit(talk: list[str]) -> None:
    shown = run("render", "user_123", "--codec", "anthropic", "--budget", "80").stdout
    assert re.search(r"^window prompt/history: \d+ → \d+ tokens$", shown, re.MULTILINE)


def test_a_prompt_says_what_was_taken_out_of_it() -> None:
    add = ("add", "user_123", "user")
    for said in (("The password: swordfish77 opens it.", "--privacy", "redact"), ("Noted.",)):
        assert CliRunner().invoke(app, [*add, *said]).exit_code == 0
    assert "privacy: 1 redacted (1 password)\n" in run("render", "user_123").stdout
    CliRunner().invoke(app, [*add, "The code of the safe is 4711.", "--privacy", "block"])
    shown = run("render", "user_123").stdout
    assert "privacy: 1 redacted (1 password), 1 withheld\n" in shown
    assert "swordfish77" not in shown
    assert "4711" not in shown


def test_a_message_is_shown_on_one_line_with_its_calls_results_and_media() -> None:
    call = ToolCall("c1", "find", '{"q": 1}')

    async def tell() -> None:
        async with open_storage(os.environ["ACMS_DB"]) as storage, ACMS("user_123", storage) as session:
            await session.ingest("user", "Look.", parts=[Media("image/png", "https://x.example/a.png")])
            await session.ingest("assistant", "One moment.", parts=[Reasoning("It is new."), call])
            await session.ingest("tool", "", parts=[ToolResult("c1", "3 rows")])
            await session.ingest("assistant", "Done.", parts=[Raw("anthropic", '{"type": "x"}')])
        await storage.aclose()

    asyncio.run(tell())
    lines = run("render", "user_123").stdout.splitlines()
    assert [line.split("  ")[0] for line in lines[1:5]] == [
        "Look. [image/png: https://x.example/a.png]",
        'One moment. (It is new.) → find({"q": 1})',
        "← 3 rows",
        "Done. [anthropic]",
    ]


def test_why_answers_by_id_version_pin_and_part(talk: list[str]) -> None:
    saved("a.json")
    (decision,) = call("why", "a.json", talk[1])["verdicts"]
    assert (decision["included"], decision["rule"], decision["version"]) == (True, "recall", 2)
    assert decision["score"] > 0
    assert call("why", "a.json", "v2")["verdicts"] == [decision]
    assert call("why", "a.json", "v42")["verdicts"][0]["rule"] == "history"
    (older,) = call("why", "a.json", "v4")["verdicts"]
    assert older["included"] is False
    assert older["reason"]
    assert call("why", "a.json", "prompt/history")["verdicts"][0]["included"] is True
    text = run("why", "a.json", "v2").stdout
    assert "shown" in text
    assert "in message" in text
    assert refused("why", "a.json", "nobody")["code"] == "ENTRY_NOT_FOUND"


def test_a_replay_says_that_it_is_identical_or_what_was_erased(talk: list[str]) -> None:
    saved("a.json")
    found = call("replay", "a.json")
    assert found["identical"] is True
    assert run("replay", "a.json").stdout.startswith("identical: ")

    async def erase() -> None:
        async with open_storage(os.environ["ACMS_DB"]) as storage, ACMS("user_123", storage) as session:
            await session.erase(talk[1])
        await storage.aclose()

    asyncio.run(erase())
    error = refused("replay", "a.json")
    assert error["code"] == "GONE"
    assert talk[1] in error["message"]


def test_a_file_that_is_no_prompt_or_was_changed_is_refused(talk: list[str]) -> None:
    saved("a.json")
    kept = json.loads(Path("a.json").read_text())
    for text in ("", "[]", "{}", '{"acms_prompt": 1}', "not JSON"):
        Path("b.json").write_text(text)
        assert refused("why", "b.json", "v1")["code"] == "VALIDATION"
    Path("b.json").write_text(json.dumps({**kept, "acms_prompt": 2}))
    assert "this release reads 1" in refused("why", "b.json", "v1")["message"]
    Path("b.json").write_text(json.dumps({**kept, "payload": {"messages": []}}))
    assert "the file was changed" in refused("replay", "b.json")["message"]
    run("why", "nothing.json", "v1", code=2)
    assert run("why", "-", "v2", input=json.dumps(kept)).stdout
