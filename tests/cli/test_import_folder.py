"""`acms import FOLDER`: every file that holds conversations, once; what was skipped, and why."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from functools import partial
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from acms import ACMS, open_storage
from acms.cli.commands import app
from acms.codecs import AnthropicMessages, Gemini, OpenAIChat, OpenAIResponses
from acms.ports import Codec, StorageBackend
from acms.prompt import Prompt
from tests.branches.program_files import (
    ANSWER,
    ASK,
    DEPLOY,
    FILES,
    LOOK,
    NOTED,
    OTHER_OUTPUT,
    OUTPUT,
    OWNER,
    QUESTIONS,
    at,
    lines,
    rewound,
    write_checkpoints,
)
from tests.providers import validators

LANGGRAPH = "langgraph"
CODECS: dict[str, tuple[Codec, Callable[[Any], None]]] = {
    "openai-chat": (OpenAIChat("gpt-5"), validators.openai_chat),
    "responses": (OpenAIResponses("gpt-5"), validators.openai_responses),
    "anthropic": (AnthropicMessages("claude-opus-4-5"), partial(validators.anthropic, prefill=True)),
    "gemini": (Gemini("gemini-2.5-pro"), validators.gemini),
}


def run(*arguments: str, code: int = 0) -> Result:
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == code, (result.output, result.exception)
    return result


def call(*arguments: str, code: int = 0) -> Any:
    return json.loads(run(*arguments, "--json", code=code).stdout)


def write_folder(folder: Path) -> Path:
    """Write a file of every format, each in a folder named after its case, and files that are none."""
    for name, file in FILES.items():
        place = folder / name.replace(" ", "-")
        if file.format == "slack":
            place.mkdir(parents=True)
            users = [{"id": "U1", "real_name": "Ana Lima"}, {"id": "U2", "profile": {"real_name": "Ben Roy"}}]
            (place / "users.json").write_text(json.dumps(users))
            place = place / "orders"
        place.mkdir(parents=True, exist_ok=True)
        (place / file.name).write_text(file.text, encoding="utf-8")
    (folder / LANGGRAPH).mkdir()
    write_checkpoints(folder / LANGGRAPH / "graph.sqlite")
    (folder / "notes.txt").write_text("Buy milk.")
    (folder / "picture.png").write_bytes(b"\x89PNG\r\n\xff\xfe")
    (folder / ".git").mkdir()
    (folder / ".git" / "chat.json").write_text('[{"role": "user", "content": "not read"}]')
    return folder


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, Any]:
    """A folder, the database it was imported into, and what the command said."""
    folder = tmp_path_factory.mktemp("files")
    write_folder(folder)
    db = f"sqlite:///{tmp_path_factory.mktemp('db')}/log.db"
    return folder, db, call("import", str(folder), "--namespace", "old", "--db", db)


def test_a_folder_is_imported_with_a_summary(imported: tuple[Path, str, Any]) -> None:
    folder, db, done = imported
    formats = {one["file"].split("/")[0]: one["format"] for one in done["files"]}
    assert formats.pop(LANGGRAPH) == LANGGRAPH
    assert formats == {name.replace(" ", "-"): file.format for name, file in FILES.items()}
    assert done["new"] == done["read"] == sum(one["read"] for one in done["sessions"])
    left_out = {one["file"]: one["why"] for one in done["skipped"]["files"]}
    assert left_out == {
        "notes.txt": "notes.txt:1: is not JSON: Expecting value",
        "picture.png": "picture.png:1: is not UTF-8 text: byte 0",
        "slack/users.json": "has none of the fields of a known format",
    }
    assert done["skipped"]["messages"]["meta lines"] == 1
    text = run("import", str(folder), "--namespace", "old", "--db", db).stdout
    assert "skipped 1 meta lines" in text
    assert "29 files" in text
    assert "0 new; 3 files skipped" in text


def test_importing_a_folder_again_changes_nothing(imported: tuple[Path, str, Any]) -> None:
    folder, db, done = imported
    before = call("sessions", "--namespace", "old", "--limit", "100", "--db", db)
    again = call("import", str(folder), "--namespace", "old", "--db", db)
    assert (again["new"], again["read"]) == (0, done["read"])
    assert all(one["replaced"] == one["retracted"] == 0 for one in again["sessions"])
    assert call("sessions", "--namespace", "old", "--limit", "100", "--db", db) == before
    assert again["skipped"] == done["skipped"], "the first run left no files behind"


def test_a_dry_run_stores_nothing(imported: tuple[Path, str, Any], tmp_path: Path) -> None:
    folder, _, done = imported
    db = f"sqlite:///{tmp_path}/none.db"
    planned = call("import", str(folder), "--dry-run", "--db", db)
    assert (planned["read"], planned["new"]) == (done["read"], 0)
    assert not (tmp_path / "none.db").exists()
    one = call("import", str(folder / "codex" / FILES["codex"].name), "--dry-run", "--db", db)
    assert [(each["session"], each["read"]) for each in one["sessions"]] == [("019a-1", 8)]
    assert not (tmp_path / "none.db").exists()


def session_of(name: str, done: Any) -> str:
    """Return the session of the first conversation of a file."""
    if name == LANGGRAPH:
        return "lg1"
    file = FILES[name]
    listed = [one["session"] for one in done["sessions"]]
    stem = "-".join(Path(name.replace(" ", "-"), file.name).with_suffix("").parts).lstrip(".")
    wanted = [one for one in listed if one in (file.ids or [])] or [
        one for one in listed if one.startswith(stem)
    ]
    titled = {"claude": "orders-c1", "chatgpt": "orders-g1", "librechat": "orders-l1", "librechat tree": "orders-l2",
              "open-webui": "orders-o1", "slack": "orders", "discord": "orders-7"}  # fmt: skip
    return titled.get(name) or wanted[0]


@pytest.mark.parametrize("name", [*FILES, LANGGRAPH])
def test_three_questions_are_answered_and_every_prompt_is_valid(
    name: str, imported: tuple[Path, str, Any]
) -> None:
    _, db, done = imported
    session = session_of(name, done)

    async def ask() -> None:
        async with open_storage(db) as storage, ACMS(session, storage, None, namespace="old") as one:
            for question, answer in QUESTIONS:
                items = await one.recall(question, token_budget=400)
                assert any(answer in item.content for item in items), (question, items)
            for codec, check in CODECS.values():
                for budget in (2000, 8000):
                    prompt = Prompt(codec).history(one).user("What is open?")
                    check((await prompt.render(budget=budget)).payload)

    asyncio.run(ask())


def test_speakers_threads_and_replies_are_kept(imported: tuple[Path, str, Any]) -> None:
    _, db, _ = imported

    async def read(storage: StorageBackend, session: str) -> list[tuple[Any, ...]]:
        async with ACMS(session, storage, None, namespace="old") as one:
            entries = await one.entries()
            return [(entry.role, entry.content, entry.actor, sorted(entry.metadata)) for entry in entries]

    async def check() -> None:
        async with open_storage(db) as storage:
            assert await read(storage, "orders") == [
                ("user", DEPLOY, "Ana Lima", []),
                ("assistant", OUTPUT, "lookup", []),
                ("user", OWNER, "Ben Roy", ["thread"]),
            ]
            assert await read(storage, "orders-7") == [
                ("user", DEPLOY, "Ana", []),
                ("assistant", OUTPUT, "Lookup", []),
                ("user", OWNER, "Ben", ["reply_to"]),
            ]

    asyncio.run(check())


def test_a_transcript_that_goes_on_is_continued(tmp_path: Path) -> None:
    """The answer that was open when the file was read has more blocks the next time."""
    db = f"sqlite:///{tmp_path}/log.db"
    path = tmp_path / "run.jsonl"
    lines = FILES["claude-code"].text.splitlines(keepends=True)
    path.write_text("".join(lines[:4]))
    assert call("import", str(path), "--db", db)["new"] == 2
    path.write_text("".join(lines))
    done = call("import", str(path), "--db", db)
    main = next(one for one in done["sessions"] if one["session"] == "s1")
    assert (main["new"], main["replaced"]) == (6, 1)
    shown = call("messages", "s1", "orders", "--budget", "4000", "--db", db)["messages"]
    assert [one["role"] for one in shown].count("tool") == 2
    assert len(next(one["tool_calls"] for one in shown if one.get("tool_calls"))) == 2
    assert call("import", str(path), "--db", db)["new"] == 0


def counts_of(done: Any) -> dict[str, tuple[int, int, int]]:
    """Return what became of each session: new messages, replaced and retracted ones."""
    return {one["session"]: (one["new"], one["replaced"], one["retracted"]) for one in done["sessions"]}


def texts_of(session: str, db: str) -> list[str]:
    """Return the texts of the active messages of a session."""

    async def read() -> list[str]:
        async with open_storage(db) as storage, ACMS(session, storage, None) as one:
            said = [entry for entry in await one.entries() if entry.role in ("user", "assistant")]
            return [entry.content for entry in said if not entry.parts or entry.content == LOOK]

    return asyncio.run(read())


def test_turns_that_were_abandoned_since_the_last_import_become_forks(tmp_path: Path) -> None:
    db = f"sqlite:///{tmp_path}/log.db"
    path = tmp_path / "run.jsonl"
    path.write_text(rewound(rewinds=False))
    assert counts_of(call("import", str(path), "--db", db)) == {"s2": (9, 0, 0)}
    path.write_text(rewound(rewinds=True))
    done = counts_of(call("import", str(path), "--db", db))
    assert done == {"s2": (3, 0, 4), "s2-p2": (4, 0, 0), "s2-p2-p4": (1, 0, 0)}
    shared = [ASK, ANSWER]
    assert texts_of("s2", db) == [*shared, DEPLOY, NOTED, OWNER]
    assert texts_of("s2-p2", db) == [*shared, "Deploy now.", "Deployed.", "Roll it back.", "Rolled back."]
    assert texts_of("s2-p2-p4", db) == [*shared, "Deploy now.", "Deployed.", "Is it up?"]
    again = counts_of(call("import", str(path), "--db", db))
    assert set(again.values()) == {(0, 0, 0)}
    fresh = f"sqlite:///{tmp_path}/fresh.db"
    assert call("import", str(path), "--db", fresh)["new"] == 13
    for session in done:
        assert texts_of(session, fresh) == texts_of(session, db)


def test_messages_that_gemini_took_back_or_rewrote_since_the_last_import(tmp_path: Path) -> None:
    db = f"sqlite:///{tmp_path}/log.db"
    path = tmp_path / "session.jsonl"
    head = {"sessionId": "g1", "projectHash": "ab12", "startTime": at(0)}
    answer = {"id": "2", "timestamp": at(1), "type": "gemini", "content": ANSWER}
    messages = [
        {"id": "1", "timestamp": at(0), "type": "user", "content": ASK},
        answer,
        {"id": "3", "timestamp": at(2), "type": "user", "content": "Delete it all."},
    ]
    path.write_text(lines(head, *messages))
    assert counts_of(call("import", str(path), "--db", db)) == {"g1": (3, 0, 0)}
    later = {"id": "4", "timestamp": at(3), "type": "user", "content": DEPLOY}
    rewritten = lines(head, *messages, {**answer, "tokens": {"total": 9}}, {"$rewindTo": "3"}, later)
    path.write_text(rewritten)
    assert counts_of(call("import", str(path), "--db", db)) == {"g1": (1, 1, 1)}
    assert texts_of("g1", db) == [ASK, ANSWER, DEPLOY]
    assert counts_of(call("import", str(path), "--db", db)) == {"g1": (0, 0, 0)}
    compressed = {"$set": {"messages": [messages[0], later]}}
    path.write_text(rewritten + lines(compressed, {**later, "id": "5", "content": OWNER}))
    assert counts_of(call("import", str(path), "--db", db)) == {"g1": (1, 0, 1)}
    assert texts_of("g1", db) == [ASK, DEPLOY, OWNER]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "a.jsonl",
            '{"type": "user", "message": {"content": "hi"}, "uuid": "u1"}',
            'a.jsonl: is not in a known format. The nearest is claude-code, but "message.role" is missing',
        ),
        (
            "b.json",
            '{"conversationId": "c", "messages": "none"}',
            'b.json: is not in a known format. The nearest is librechat, but "messages" is not a list',
        ),
        ("c.json", '{"a": 1}', "c.json: has none of the fields of a known format"),
    ],
)
def test_an_unknown_file_names_the_nearest_format(
    tmp_path: Path, name: str, content: str, message: str
) -> None:
    (tmp_path / name).write_text(content)
    assert message in run("import", str(tmp_path / name), "--db", f"sqlite:///{tmp_path}/l.db", code=1).stderr
    assert call("import", str(tmp_path), "--dry-run", code=1)["files"] == []


def test_a_broken_file_is_named_and_the_others_are_imported(tmp_path: Path) -> None:
    folder = tmp_path / "files"
    folder.mkdir()
    (folder / "a.jsonl").write_text('{"role": "user", "content": "hi"}\n{"role": "user", "content": 7}\n')
    (folder / "b.jsonl").write_text('{"role": "user", "content": "hello"}\n')
    done = call("import", str(folder), "--db", f"sqlite:///{tmp_path}/l.db", code=1)
    assert [one["session"] for one in done["sessions"]] == ["b"]
    assert [one["file"] for one in done["skipped"]["files"]] == ["a.jsonl"]
    assert "a.jsonl:2" in done["skipped"]["files"][0]["why"]


# ── the reverse ─────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("form", CODECS)
def test_every_session_is_exported_as_a_valid_request(form: str, imported: tuple[Path, str, Any]) -> None:
    _, db, done = imported
    check = CODECS[form][1]
    for one in done["sessions"]:
        written = run("export", one["session"], "--as", form, "--namespace", "old", "--db", db).stdout
        check(json.loads(written))
    whole = run("export", "s1", "--as", form, "--namespace", "old", "--db", db).stdout
    for text in (ASK, LOOK, OUTPUT, OTHER_OUTPUT, ANSWER, DEPLOY, NOTED, OWNER):
        assert whole.count(text) == 1
    window = run("export", "s1", "--as", form, "--budget", "110", "--namespace", "old", "--db", db).stdout
    check(json.loads(window))
    assert OWNER in window
    assert len(window) < len(whole)


def test_what_was_exported_is_imported_again(imported: tuple[Path, str, Any], tmp_path: Path) -> None:
    _, db, _ = imported
    for form in CODECS:
        path = tmp_path / f"{form}.json"
        path.write_text(run("export", "s1", "--as", form, "--namespace", "old", "--db", db).stdout)
        run("import", str(path), "--session", form, "--db", db)
        shown = call("messages", form, "orders", "--budget", "4000", "--db", db)["messages"]
        roles = [role for role, _ in groupby(shown, key=itemgetter("role"))]
        assert roles == ["user", "assistant", "tool", "assistant", "user", "assistant", "user"], form


def test_options_of_an_export_that_do_not_fit(imported: tuple[Path, str, Any]) -> None:
    _, db, _ = imported
    told = run("export", "s1", "--as", "bard", "--namespace", "old", "--db", db, code=2).stderr
    assert "'bard' is not one of openai-chat, responses, anthropic, gemini" in told
    run("export", "s1", "--budget", "60", "--namespace", "old", "--db", db, code=2)
