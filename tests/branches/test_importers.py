"""Chat files become messages: the formats, the keys, the errors."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from acms import ACMS, Media, Raw, Reasoning, Text, ToolCall, ValidationError, open_storage
from acms.branches.importers import Turn, read_chat

CALL = {"id": "c1", "type": "function", "function": {"name": "disk", "arguments": '{"host": "db1"}'}}
CHAT: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "developer", "content": "Use metric units."},
    {
        "role": "user",
        "name": "maya",
        "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}],
    },
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c1", "content": ""},
    {"role": "assistant", "content": "Fine.", "created_at": "2026-03-02T10:00:00+01:00"},
]


def write_file(folder: Path, text: str, name: str = "chat.json") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def read_turns(folder: Path, value: Any, name: str = "chat.json") -> list[Turn]:
    return list(read_chat(write_file(folder, value if isinstance(value, str) else json.dumps(value), name)))


def json_lines(values: list[Any]) -> str:
    return "".join(json.dumps(value) + "\n" for value in values)


def test_list_of_messages(tmp_path: Path) -> None:
    turns = read_turns(tmp_path, CHAT)
    assert [turn["role"] for turn in turns] == [
        "system",
        "developer",
        "user",
        "assistant",
        "tool",
        "assistant",
    ]
    assert turns[2]["content"] == "one\ntwo"
    assert turns[2]["actor_id"] == "maya"
    assert turns[3]["parts"] == [ToolCall("c1", "disk", CALL["function"]["arguments"])]
    assert turns[4]["tool_call_id"] == "c1"
    assert turns[5]["created_at"] == datetime(2026, 3, 2, 9, tzinfo=UTC)
    assert "created_at" not in turns[0]


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (json.dumps(CHAT, indent=1), "chat.json"),
        (json.dumps({"messages": CHAT}), "chat.json"),
        (json.dumps({"messages": CHAT}, indent=2), "chat.txt"),
        (json_lines(CHAT), "chat.jsonl"),
        (json_lines(CHAT), "chat.json"),
        ("\n" + json_lines(CHAT).replace("\n", "\n\n"), "chat.ndjson"),
        (json_lines([{"messages": CHAT[:3]}, {"messages": CHAT[3:]}]), "chat.jsonl"),
        (json.dumps([{"messages": CHAT[:3]}, {"messages": CHAT[3:]}]), "chat.json"),
        ("\ufeff" + json.dumps(CHAT), "chat.json"),
    ],
)
def test_every_wrapping_says_the_same(tmp_path: Path, text: str, name: str) -> None:
    assert read_turns(tmp_path, text, name) == read_turns(tmp_path, CHAT)


def test_keys_are_stable_and_tell_messages_apart(tmp_path: Path) -> None:
    twice = [{"role": "user", "content": "yes"}, {"role": "user", "content": "yes"}]
    first, second = (turn["key"] for turn in read_turns(tmp_path, twice))
    assert first != second
    assert first.startswith("0-")
    longer = [turn["key"] for turn in read_turns(tmp_path, [*twice, {"role": "user", "content": "no"}])]
    assert longer[:2] == [first, second]
    assert [turn["key"] for turn in read_turns(tmp_path, [{"role": "user", "content": "no"}])] != [first]


def test_what_says_nothing_is_passed_over(tmp_path: Path) -> None:
    found = read_turns(
        tmp_path,
        [{"role": "assistant", "content": ""}, {"role": "assistant"}, {"role": "user", "content": "a"}],
    )
    assert [turn["content"] for turn in found] == ["a"]
    assert found[0]["key"].startswith("2-")


def test_images_are_references(tmp_path: Path) -> None:
    parts = [
        {"type": "text", "text": "look"},
        {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}},
    ]
    (turn,) = read_turns(tmp_path, [{"role": "user", "content": parts}])
    assert turn["content"] == "look"
    first, second = turn["parts"]
    assert first == Media("image/*", "https://example.org/a.png")
    assert second.mime == "image/png"
    assert second.ref == f"sha256:{second.sha256}"


def test_parts_and_items_that_are_not_known_are_kept_word_for_word(tmp_path: Path) -> None:
    hologram = {"type": "hologram", "depth": 3}
    search = {"type": "web_search_call", "id": "ws_1", "status": "completed"}
    answers = [{"type": "tool_result", "tool_use_id": f"t{n}", "content": "ok"} for n in (1, 2)]
    said = [{"role": "user", "content": [hologram]}, search, {"role": "user", "content": answers}]
    turns = read_turns(tmp_path, said)
    assert turns[0]["parts"] == [Raw("anthropic", json.dumps(hologram))]
    assert [turn.get("tool_call_id") for turn in turns[2:]] == ["t1", "t2"]
    assert turns[1]["parts"] == [Raw("openai-responses", json.dumps({"type": "web_search_call"} | search))]
    assert turns[3]["key"] == f"{turns[2]['key']}:1"


def test_what_a_model_thought_is_read_and_kept_for_its_server(tmp_path: Path) -> None:
    answer = {"role": "assistant", "content": "x", "reasoning_content": "hm", "weight": 0}
    (turn,) = read_turns(tmp_path, [answer])
    thought, text, fields = turn["parts"]
    assert (thought, text) == (Reasoning("hm"), Text("x"))
    assert json.loads(fields.json) == {"fields": {"openai-chat": {"reasoning_content": "hm"}}}


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("2026-03-02T10:00:00Z", datetime(2026, 3, 2, 10, tzinfo=UTC)),
        ("2026-03-02 10:00:00", datetime(2026, 3, 2, 10, tzinfo=UTC)),
        (1772445600, datetime(2026, 3, 2, 10, tzinfo=UTC)),
        (1772445600.5, datetime(2026, 3, 2, 10, 0, 0, 500_000, tzinfo=UTC)),
        (1772445600000, datetime(2026, 3, 2, 10, tzinfo=UTC)),
    ],
)
def test_times(tmp_path: Path, said: object, expected: datetime) -> None:
    for name in ("created_at", "timestamp", "create_time"):
        (turn,) = read_turns(tmp_path, [{"role": "user", "content": "a", name: said}])
        assert turn["created_at"] == expected


@pytest.mark.parametrize(
    ("text", "name", "field", "what"),
    [
        ("", "chat.json", "chat.json", "is empty"),
        (" \n\n", "chat.jsonl", "chat.jsonl", "is empty"),
        ("not a chat", "chat.txt", "chat.txt:1", "not JSON"),
        ('[\n{"role": "user", "content": "a"},\n{]', "chat.json", "chat.json:3", "not JSON"),
        ('{"role": "user", "content": "a"}\n\n{"role": "us', "chat.jsonl", "chat.jsonl:3", "not JSON"),
        (
            '{"role": "user", "content": "a"}\n{"role": "user",\n{}\n',
            "chat.jsonl",
            "chat.jsonl:2",
            "not JSON",
        ),
        ('{"role": "user", "content":\n\n', "chat.json", "chat.json:1", "not JSON"),
        (
            '{"role": "user", "content": "a"}\n[]\n',
            "chat.jsonl",
            "chat.jsonl:2",
            "no chat message|not a chat message",
        ),
        ('{"role": "robot", "content": "a"}\n', "chat.jsonl", "chat.jsonl:1", "robot"),
        ('[{"role": "user", "content": "a"}, {"content": "b"}]', "c.json", "c.json: messages[1]", "role"),
        (
            '{"messages": [{"role": "user", "content": 3}]}',
            "c.json",
            "c.json:1: messages[0]",
            "list of parts",
        ),
        ('[{"role": "user", "content": [{"text": "a"}]}]', "c.json", "c.json: messages[0]", "type"),
        ('[{"role": "user", "content": "a\\u0000"}]', "c.json", "c.json: messages[0]", "NUL"),
        (
            '[{"role": "user", "content": "a", "tool_calls": [{}]}]',
            "c.json",
            "c.json: messages[0]",
            "tool_calls",
        ),
        ('[{"role": "user", "content": "a", "created_at": "soon"}]', "c.json", "c.json: messages[0]", "time"),
        ('{"some": "thing"}', "c.json", "c.json:1", "chat message"),
        ("42", "c.json", "c.json", "chat message"),
        ("[" * 100_000, "c.json", "c.json:1", "nested deeper than 128 levels"),
    ],
)
def test_errors_name_the_place_and_what_was_expected(
    tmp_path: Path, text: str, name: str, field: str, what: str
) -> None:
    with pytest.raises(ValidationError, match=what) as caught:
        read_turns(tmp_path, text, name)
    assert caught.value.field == field


def test_not_utf8_and_not_there(tmp_path: Path) -> None:
    (tmp_path / "chat.jsonl").write_bytes(b'{"role": "user", "content": "\xff"}')
    with pytest.raises(ValidationError, match="UTF-8"):
        list(read_chat(tmp_path / "chat.jsonl"))
    with pytest.raises(ValidationError, match="cannot be read"):
        list(read_chat(tmp_path / "absent.json"))


def test_unknown_format_says_what_was_expected(tmp_path: Path) -> None:
    with pytest.raises(ValidationError) as caught:
        read_turns(tmp_path, {"some": "thing"})
    assert any("JSONL" in option for option in caught.value.options)


async def test_imported_messages_can_be_ingested_again(tmp_path: Path) -> None:
    turns = read_turns(tmp_path, CHAT)
    async with ACMS("s", open_storage("memory://")) as session:
        first = await session.ingest_many(turns)
        again = await session.ingest_many(read_turns(tmp_path, CHAT))
        assert [one.message_id for one in again] == [one.message_id for one in first]
        assert all(one.repeated for one in again)
        call, result = [await session.get(receipt.message_id) for receipt in first[3:5]]
        assert call.group == result.group is not None
