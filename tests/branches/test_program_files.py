"""What other programs write becomes sessions: their text, tools, times and order."""

from __future__ import annotations

import json
from io import BytesIO
from pathlib import Path
from typing import Any
from weakref import ReferenceType, ref

import pytest

from acms import ACMS, Prompt, ToolCall, ToolResult, ValidationError, open_storage
from acms.branches import limits
from acms.branches.importers import Fork, documents, open_import, read_export
from tests.branches.program_files import ARGUMENTS, ASK, FILES, START, WITH_TOOLS, File, at, lines, rewound
from tests.providers.test_transcripts import CODECS


def write_program_file(folder: Path, file: File) -> Path:
    path = folder / file.name
    path.write_text(file.text, encoding="utf-8")
    return path


def text_of(turn: dict[str, Any]) -> str:
    results = [part.output for part in turn.get("parts", ()) if isinstance(part, ToolResult)]
    return "".join(results) or turn.get("content", "")


@pytest.mark.parametrize("name", FILES)
def test_text_tools_times_and_order_are_as_in_the_file(name: str, tmp_path: Path) -> None:
    file = FILES[name]
    export = read_export(write_program_file(tmp_path, file))
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
    path = write_program_file(tmp_path, FILES[name])
    assert read_export(path) == read_export(path)


def test_with_tools_has_a_message_of_each_kind() -> None:
    assert {role for role, _ in WITH_TOOLS} == {"user", "assistant", "tool"}


class Record(dict[str, Any]):
    """A record of a file whose life can be followed."""


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many records were held whenever one more was parsed."""
    alive: list[ReferenceType[Record]] = []
    counts: list[int] = []
    parse_json, decode_json = limits.parse_json, limits.decode_json

    def follow(value: Any) -> Any:
        counts.append(sum(one() is not None for one in alive))
        if not isinstance(value, dict):
            return value
        record = Record(value)
        alive.append(ref(record))
        return record

    def decode(*arguments: Any) -> Any:
        value, end = decode_json(*arguments)
        return follow(value), end

    def parse(*arguments: Any) -> Any:
        return follow(parse_json(*arguments))

    monkeypatch.setattr(limits, "parse_json", parse)
    monkeypatch.setattr(limits, "decode_json", decode)
    return counts


def gemini_messages() -> list[dict[str, Any]]:
    return [
        {"id": f"m{n}", "timestamp": at(n), "type": "user", "content": f"Message {n}."} for n in range(40)
    ]


def langsmith_runs() -> list[dict[str, Any]]:
    """Return runs as an export has them: the newest first."""
    made: list[dict[str, Any]] = []
    for number in range(40):
        message = {"role": "user", "content": f"Message {number}."}
        made.append({"id": f"r{number:02}", "run_type": "llm", "inputs": {"messages": [message]}, "outputs": {},
                     "start_time": at(number), "trace_id": f"t{number}",
                     "extra": {"metadata": {"thread_id": "t"}}})  # fmt: skip
    return made[::-1]


GEMINI_HEAD = {"sessionId": "s1", "projectHash": "ab12", "startTime": at(0)}
#: Text of a file, and how many records of it are held when the next one is parsed.
LONG_FILES = {
    "rewritten.jsonl": (
        lines(GEMINI_HEAD, {"id": "m0", "type": "user", "content": "Draft."}, *gemini_messages()),
        1,
    ),
    "session.json": (
        json.dumps({"messages": gemini_messages(), **GEMINI_HEAD}),
        2,
    ),  # the first, for the format
    "runs.jsonl": (lines(*langsmith_runs()), 1),
    "runs.json": (json.dumps(langsmith_runs(), indent=1), 1),
    "conversations.json": (json.dumps(json.loads(FILES["chatgpt"].text) * 9), 1),
    "claude.jsonl": (FILES["claude-code"].text * 3, 4),  # the lines of one answer and its results
}


@pytest.mark.parametrize("name", LONG_FILES)
def test_no_more_than_one_record_is_held(name: str, held: list[int], tmp_path: Path) -> None:
    path = tmp_path / name
    text, most = LONG_FILES[name]
    path.write_text(text)
    read = [(piece.id, [turn["content"] for turn in piece.messages]) for piece in open_import(path).pieces()]
    assert max(held) == most
    assert len(held) >= 18, "each record was parsed, for the format and to be read"
    if name.startswith(("rewritten", "session", "runs")):
        id = "t" if name.startswith("runs") else "s1"
        assert read == [(id, [f"Message {number}."]) for number in range(40)], "in their order"


@pytest.mark.parametrize("read_ahead", [1, 7, 64])
@pytest.mark.parametrize(
    ("document", "members"),
    [
        ('[1, -2.5e3, "a\\"]\u20ac", {"é": [null, {}]}, [], true]', [None] * 6),
        (
            ' { "a" : [12, {"b": "[,]"}, "😀"],\n "c": {"d": [1]}, "e":[] , "f": 34 } ',
            ["a", "a", "a", "c", "e", "f"],
        ),
        ("[]", []),
        ("{}", []),
        ("1234", [None]),
        ('\ufeff["é", "x"]', [None, None]),
    ],
)
def test_a_document_is_split_wherever_its_buffer_ends(
    document: str, members: list[str | None], read_ahead: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(documents, "_READ_AHEAD", read_ahead)
    data = document.encode()
    pieces = list(documents.split_document(BytesIO(data), "a.json"))
    whole = json.loads(document.removeprefix("\ufeff"))
    parts = whole if isinstance(whole, list) else [whole]
    if isinstance(whole, dict):
        parts = [
            one
            for value in whole.values()
            for one in (value if isinstance(value, list) and value else [value])
        ]
    assert [piece.value for piece in pieces] == parts
    assert [piece.member for piece in pieces] == members
    for piece in pieces:
        read = data[piece.span.offset : piece.span.offset + piece.span.size]
        assert (json.loads(read) if read else []) == piece.value


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ("[1,\n 2", "a.json:2: is not JSON: Expecting ',' delimiter"),
        ('[{"a": 1},\n{"b" 2}]', "a.json:2: is not JSON: Expecting ':' delimiter"),
        ("[1] 2", "a.json:1: is not JSON: Extra data"),
        ('{"a": 1,\n\n b: 2}', "a.json:3: is not JSON: Expecting property name enclosed in double quotes"),
        ('{"a"}', "a.json:1: is not JSON: Expecting ':' delimiter"),
        ('{"a": "é', "a.json:1: is not JSON: Unterminated string starting at"),
        ("[1,]", "a.json:1: is not JSON: Expecting value"),
    ],
)
def test_a_document_that_is_not_json_is_an_error_with_its_line(
    document: str, message: str, tmp_path: Path
) -> None:
    (tmp_path / "a.json").write_text(document)
    with pytest.raises(ValidationError) as caught:
        read_export(tmp_path / "a.json")
    assert str(caught.value) == message


def test_a_member_that_is_an_empty_list_tells_the_format_too(tmp_path: Path) -> None:
    run = {"history": [{"role": "user", "content": ASK}], "trajectory": [], "info": {}}
    (tmp_path / "run.traj").write_text(json.dumps(run))
    assert read_export(tmp_path / "run.traj").format == "swe-agent"


def test_a_turn_that_was_abandoned_is_a_branch(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    path.write_text(rewound(rewinds=True))
    trunk, *branches = read_export(path).conversations
    assert (trunk.id, trunk.fork) == ("s2", None)
    assert [turn["key"] for turn in trunk.messages] == ["p1", "a1", "r1", "r2", "a3", "p5", "a6", "p6"]
    assert [(one.id, one.fork, [turn["key"] for turn in one.messages]) for one in branches] == [
        ("s2-p2", Fork("s2", "a3", "p2"), ["p2", "a4", "p3", "a5"]),
        ("s2-p4", Fork("s2-p2", "a4", "p4"), ["p4"]),
    ]
    path.write_text(rewound(rewinds=False))
    assert len(read_export(path).conversations) == 1, "results of parallel calls are no branches"


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
    for conversation in read_export(write_program_file(tmp_path, FILES[name])).conversations:
        async with ACMS("imported", open_storage("memory://"), None) as session:
            await session.ingest_many(list(conversation.messages))
            for codec, violations in CODECS:
                prompt = (
                    Prompt(codec).history(session).recall(session, "Which database?").user("Which database?")
                )
                rendered = await prompt.render(budget=2_000)
                assert violations(dict(rendered.payload)) == [], codec.name


def test_a_branch_that_leaves_an_empty_branch_forks_from_the_conversation_before_it(tmp_path: Path) -> None:
    """Branches without text are not imported: what leaves one of their messages leaves their own trunk."""

    def message(parent: str | None, role: str, content: str) -> dict[str, Any]:
        return {"parentId": parent, "childrenIds": [], "role": role, "content": content, "timestamp": 1.0}

    messages = {
        "a": message(None, "user", "Hello."),
        "b": message("a", "assistant", "Hi."),
        "x": message("a", "assistant", ""),
        "y": message("x", "user", ""),
        "z": message("x", "user", "Are you there?"),
    }
    identified = {id: {"id": id, **fields} for id, fields in messages.items()}
    chat = {
        "title": "T",
        "models": ["m"],
        "history": {"messages": identified, "currentId": "b"},
        "messages": [],
    }
    file = tmp_path / "chat-export-1.json"
    file.write_text(json.dumps([{"id": "o1", "user_id": "u", "title": "T", "chat": chat, "created_at": 1}]))
    trunk, branch = read_export(file).conversations
    assert [turn["content"] for turn in branch.messages] == ["Are you there?"]
    assert branch.fork == Fork(trunk.id, trunk.messages[0]["key"], "z")


async def test_calls_of_defined_tools_in_a_rollout_of_codex_are_imported(tmp_path: Path) -> None:
    items: list[dict[str, Any]] = [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Fix it."}]},
        {
            "type": "shell_call",
            "id": "sh_1",
            "call_id": "c1",
            "status": "completed",
            "action": {"commands": ["cat a.py"], "timeout_ms": 1000},
        },
        {
            "type": "shell_call_output",
            "call_id": "c1",
            "output": [
                {"stdout": "x = 1", "stderr": "warning", "outcome": {"type": "exit", "exit_code": 0}},
            ],
        },
        {
            "type": "apply_patch_call",
            "id": "apc_1",
            "call_id": "c2",
            "status": "completed",
            "operation": {"type": "update_file", "path": "a.py", "diff": "@@\n-x = 1\n+x = 2"},
        },
        {"type": "apply_patch_call_output", "call_id": "c2", "status": "failed", "output": "no such line"},
        {
            "type": "tool_search_call",
            "call_id": "c3",
            "status": "completed",
            "execution": "client",
            "arguments": {"query": "edit"},
        },
        {
            "type": "tool_search_output",
            "call_id": "c3",
            "status": "completed",
            "execution": "client",
            "tools": [{"type": "function", "name": "edit"}],
        },
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Done."}]},
    ]
    path = tmp_path / "rollout-2026-02-01T10-00-00-019a-2.jsonl"
    path.write_text(
        "".join(
            json.dumps({"timestamp": at(number), "type": "response_item", "payload": item}) + "\n"
            for number, item in enumerate(items)
        )
    )
    export = read_export(path)
    assert export.format == "codex"
    assert export.skipped == {}
    parts = [part for turn in export.conversations[0].messages for part in turn.get("parts", ())]
    assert parts == [
        ToolCall("c1", "shell", '{"commands": ["cat a.py"], "timeout_ms": 1000}'),
        ToolResult("c1", "x = 1\nwarning"),
        ToolCall("c2", "apply_patch", json.dumps(items[3]["operation"])),
        ToolResult("c2", "no such line", True),
        ToolCall("c3", "tool_search", '{"query": "edit"}'),
        ToolResult("c3", '[{"type": "function", "name": "edit"}]'),
    ]
    async with ACMS("imported", open_storage("memory://"), None) as session:
        await session.ingest_many(list(export.conversations[0].messages))
        for codec, violations in CODECS:
            rendered = await Prompt(codec).history(session).user("What did you change?").render(budget=2_000)
            assert violations(dict(rendered.payload)) == [], codec.name
