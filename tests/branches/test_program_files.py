"""What other programs write becomes sessions: their text, tools, times and order."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from acms import ACMS, Prompt, ToolCall, ToolResult, open_storage
from acms.branches.importers import open_import, read_export
from acms.errors import ValidationError
from tests.branches.program_files import ARGUMENTS, FILES, START, WITH_TOOLS, File
from tests.providers.test_transcripts import CODECS


def written(folder: Path, file: File) -> Path:
    path = folder / file.name
    path.write_text(file.text, encoding="utf-8")
    return path


def text_of(turn: dict[str, Any]) -> str:
    results = [part.output for part in turn.get("parts", ()) if isinstance(part, ToolResult)]
    return "".join(results) or turn.get("content", "")


@pytest.mark.parametrize("name", FILES)
def test_text_tools_times_and_order_are_as_in_the_file(name: str, tmp_path: Path) -> None:
    file = FILES[name]
    export = read_export(written(tmp_path, file))
    assert export.format == file.format
    assert export.skipped == file.skipped
    if file.ids is not None:
        assert [one.id for one in export.conversations] == file.ids
    turns = export.conversations[0].messages
    assert [(turn["role"], text_of(turn)) for turn in turns] == file.messages
    calls = [part for turn in turns for part in turn.get("parts", ()) if isinstance(part, ToolCall)]
    results = [part for turn in turns for part in turn.get("parts", ()) if isinstance(part, ToolResult)]
    answered = [part.call_id for part in results] + [
        turn["tool_call_id"] for turn in turns if turn.get("tool_call_id")
    ]
    assert [call.call_id for call in calls] == answered
    if any(role == "tool" for role, _ in file.messages):
        assert [call.name for call in calls] == ["lookup", "incidents"]
        assert json.loads(calls[0].arguments) == ARGUMENTS
    times: list[Any] = [turn.get("created_at") for turn in turns]
    if file.times:
        assert times[0] == START
        assert times == sorted(times)
    else:
        assert times == [None] * len(turns)
    details = [turn.get("metadata", {}) for turn in turns if turn["role"] == "assistant"]
    assert any("model" in one for one in details) is file.models
    assert any("usage" in one for one in details) is file.usage
    assert len({turn["key"] for turn in turns}) == len(turns)


@pytest.mark.parametrize("name", FILES)
def test_the_same_file_has_the_same_keys(name: str, tmp_path: Path) -> None:
    path = written(tmp_path, FILES[name])
    assert read_export(path) == read_export(path)


def test_with_tools_has_a_message_of_each_kind() -> None:
    assert {role for role, _ in WITH_TOOLS} == {"user", "assistant", "tool"}


def test_a_message_is_read_before_the_next_line(tmp_path: Path) -> None:
    """A large transcript is not held: what is wrong at its end does not keep its first message from coming."""
    path = tmp_path / "run.jsonl"
    path.write_text(FILES["claude-code"].text * 30 + "no JSON\n")
    pieces = open_import(path).pieces()
    assert next(pieces).messages[0]["content"] == FILES["claude-code"].messages[0][1]
    with pytest.raises(ValidationError, match=r"run\.jsonl:451: is not JSON"):
        list(pieces)


def test_an_error_names_the_line_and_empty_messages_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"

    def line(content: Any) -> str:
        message = {"role": "user", "content": content}
        return json.dumps({"type": "user", "uuid": str(content)[:9], "message": message}) + "\n"

    path.write_text(line("hi") + line("") + line([]) + line(" "))
    export = read_export(path)
    assert [turn["content"] for turn in export.conversations[0].messages] == ["hi"]
    assert export.skipped == {"messages that say nothing": 3}
    path.write_text(line("hi") + line([5]))
    with pytest.raises(ValidationError, match=r"^run\.jsonl:2: content\[0\]: must be a text or an object"):
        read_export(path)


def test_a_last_line_that_is_not_finished_is_left_for_the_next_time(tmp_path: Path) -> None:
    path, file = tmp_path / "run.jsonl", FILES["codex"]
    path.write_text(file.text[:-20])
    export = read_export(path)
    assert export.skipped["last lines that are not finished"] == 1
    assert [text_of(turn) for turn in export.conversations[0].messages] == [
        said for _, said in file.messages[:-1]
    ]


@pytest.mark.parametrize("name", FILES)
async def test_requests_of_an_imported_file_are_valid(name: str, tmp_path: Path) -> None:
    for conversation in read_export(written(tmp_path, FILES[name])).conversations:
        async with ACMS("imported", open_storage("memory://"), None) as session:
            await session.ingest_many(list(conversation.messages))
            for codec, violations in CODECS:
                prompt = (
                    Prompt(codec).history(session).recall(session, "Which database?").user("Which database?")
                )
                rendered = await prompt.render(budget=2_000)
                assert violations(dict(rendered.payload)) == [], codec.name
