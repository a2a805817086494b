"""What other programs write becomes sessions: their text, tools, times and order."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from acms import ToolCall, ToolResult
from acms.branches.importers import read_export
from tests.branches.program_files import ARGUMENTS, FILES, START, WITH_TOOLS, File


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
