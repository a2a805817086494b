"""Exports of other products become sessions: ChatGPT, Claude, mem0, checkpoints of LangGraph."""

from __future__ import annotations

import json
import sqlite3
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest

from acms import (
    ACMS,
    ConfigurationError,
    Media,
    Reasoning,
    ToolCall,
    ToolResult,
    ValidationError,
    open_storage,
)
from acms import sync as blocking
from acms.branches.importers import Conversation, Fork, read_export

CHATGPT_ID, CLAUDE_ID = "6714a2c9-0001-4000-8000-000000000001", "0b7e55aa-0001-4000-8000-000000000002"


def tree_node(
    id: str, parent: str | None, role: str, *parts: Any, kind: str = "text", **more: Any
) -> dict[str, Any]:
    content = (
        {"content_type": kind, "parts": list(parts)} if kind in ("text", "multimodal_text") else parts[0]
    )
    message = {
        "id": id,
        "author": {"role": role, "name": more.pop("name", None), "metadata": {}},
        "create_time": 1_772_445_600.0 + int(id[1:]),
        "content": content if "content_type" in content else {"content_type": kind, **content},
        "status": "finished_successfully",
        "end_turn": True,
        "weight": 1.0,
        "recipient": more.pop("recipient", "all"),
        "metadata": more,
    }
    return {"id": id, "message": message, "parent": parent, "children": []}


def chatgpt(**changes: Any) -> list[dict[str, Any]]:
    """One conversation with instructions, an abandoned answer, an image, code and its output."""
    hidden = {"is_visually_hidden_from_conversation": True}
    told = {"about_user_message": "I live in Lyon.", "about_model_message": "Be brief."}
    nodes = [
        tree_node("n1", "root", "system", "", **hidden),
        tree_node("n2", "n1", "user", told, kind="user_editable_context", **hidden),
        tree_node("n3", "n2", "user", {"content_type": "image_asset_pointer", "asset_pointer": "sediment://file_1"},
             "What is on it?", kind="multimodal_text"),
        tree_node("n4", "n3", "assistant", "A dog, I think."),
        tree_node("n5", "n3", "assistant", {"text": "print(6*7)"}, kind="code", recipient="python", model_slug="gpt-5"),
        tree_node("n6", "n5", "tool", {"text": "42"}, kind="execution_output", name="python"),
        tree_node("n7", "n6", "tool", {"text": "searched"}, kind="tether_browsing_display", name="web.run"),
        tree_node("n8", "n7", "assistant", {"thoughts": [{"summary": "look", "content": "whiskers"}]}, kind="thoughts"),
        tree_node("n9", "n8", "assistant", changes.pop("answer", "A cat named Minou.")),
    ]  # fmt: skip
    mapping = {"root": {"id": "root", "message": None, "parent": None, "children": ["n1"]}}
    one = {
        "title": "A photo: Minou?",
        "create_time": 1_772_445_600.0,
        "current_node": "n9",
        "mapping": mapping | {each["id"]: each for each in nodes},
        "conversation_id": CHATGPT_ID,
        "id": CHATGPT_ID,
    }
    return [one | changes]


def claude_export() -> list[dict[str, Any]]:
    """One conversation with an attachment, thinking, a call, and an edited question."""

    def message(id: str, parent: str, sender: str, *blocks: Any, **more: Any) -> dict[str, Any]:
        text = "".join(one.get("text", "") for one in blocks)
        times = {"created_at": "2026-03-02T10:00:00.123456Z", "updated_at": "2026-03-02T10:00:00.123456Z"}
        return {"uuid": id, "parent_message_uuid": parent, "sender": sender, "text": text, "content": list(blocks),
                "attachments": [], "files": [], **times, **more}  # fmt: skip

    root = "00000000-0000-4000-8000-000000000000"
    notes = {"file_name": "notes.txt", "file_type": "txt", "file_size": 9, "extracted_content": "Buy milk."}
    said = [
        message("u1", root, "human", {"type": "text", "text": "Helo"}),
        message("a1", "u1", "assistant", {"type": "text", "text": "Hello!"}),
        message("u2", root, "human", {"type": "text", "text": "Read it."}, attachments=[notes],
                files=[{"file_name": "cat.png"}]),
        message("a2", "u2", "assistant", {"type": "thinking", "thinking": "Search first."},
                {"type": "text", "text": "One moment."},
                {"type": "tool_use", "id": "toolu_1", "name": "web_search", "input": {"query": "milk"}},
                {"type": "tool_result", "tool_use_id": "toolu_1", "is_error": False,
                 "content": [{"type": "text", "text": "1.20 EUR"}]},
                {"type": "token_budget"}, {"type": "text", "text": "Milk is 1.20 EUR."}),
    ]  # fmt: skip
    return [{"uuid": CLAUDE_ID, "name": "Milk", "account": {"uuid": "x"}, "created_at": "2026-03-02T10:00:00Z",
             "updated_at": "2026-03-02T10:00:00Z", "chat_messages": said}]  # fmt: skip


def mem0_export() -> dict[str, Any]:
    """What `Memory.get_all` returns, version 2: fields that are not set are left out or null."""
    first = {"id": "m1", "memory": "Lives in Lyon with a cat named Minou", "hash": "h", "user_id": "ana",
             "created_at": "2026-03-02T10:00:00", "updated_at": None, "metadata": {"category": "home"}}  # fmt: skip
    second = {"id": "m2", "memory": "Is a nurse", "hash": "h", "created_at": "2026-03-01T10:00:00Z", "user_id": "ana",
              "agent_id": "desk", "role": "assistant", "metadata": None}  # fmt: skip
    third = {
        "id": "m3",
        "memory": "Prefers e-mail",
        "created_at": "2026-03-03T10:00:00+01:00",
        "agent_id": "desk",
    }
    return {"results": [first, second, third]}


def write_export(folder: Path, value: Any, name: str = "export.json") -> Path:
    path = folder / name
    path.write_text(value if isinstance(value, str) else json.dumps(value), encoding="utf-8")
    return path


def test_chatgpt_is_the_branch_that_the_user_sees(tmp_path: Path) -> None:
    export = read_export(write_export(tmp_path, chatgpt()))
    assert export.format == "chatgpt"
    one, branch = export.conversations
    assert (branch.fork, [turn["content"] for turn in branch.messages]) == (
        Fork(CHATGPT_ID, "n3", "n4"),
        ["A dog, I think."],
    )
    assert (one.id, one.title, one.name) == (CHATGPT_ID, "A photo: Minou?", "a-photo-minou-6714a2c9")
    assert [(turn["role"], turn["content"]) for turn in one.messages] == [
        ("system", "I live in Lyon.\nBe brief."),
        ("user", "What is on it?"),
        ("assistant", "print(6*7)"),
        ("assistant", "42"),
        ("assistant", ""),
        ("assistant", "A cat named Minou."),
    ]
    assert one.messages[1]["parts"] == [Media("image/*", "sediment://file_1")]
    assert one.messages[2]["metadata"] == {"recipient": "python", "model": "gpt-5"}
    assert one.messages[3]["actor_id"] == "python"
    assert one.messages[4]["parts"] == [Reasoning("whiskers")]
    assert one.messages[5]["created_at"] == datetime(2026, 3, 2, 10, 0, 9, tzinfo=UTC)
    assert [turn["key"] for turn in one.messages] == ["n2", "n3", "n5", "n6", "n8", "n9"]


def test_claude_is_the_branch_that_ends_last(tmp_path: Path) -> None:
    export = read_export(write_export(tmp_path, claude_export()))
    assert export.format == "claude"
    one, branch = export.conversations
    assert branch.fork == Fork(CLAUDE_ID, None, "u1"), "it shares no message"
    assert [turn["content"] for turn in branch.messages] == ["Helo", "Hello!"]
    assert one.name == "milk-0b7e55aa"
    asked, called, result, answered = one.messages
    assert (asked["content"], asked["parts"]) == (
        "Read it.\n[notes.txt]\nBuy milk.",
        [Media("application/octet-stream", "cat.png")],
    )
    assert called["parts"] == [
        Reasoning("Search first."),
        ToolCall("toolu_1", "web_search", '{"query": "milk"}'),
    ]
    assert result["parts"] == [ToolResult("toolu_1", "1.20 EUR", False)]
    assert answered["content"] == "Milk is 1.20 EUR."
    assert [turn["key"] for turn in one.messages] == ["u2", "a2", "a2:1", "a2:2"]
    old = [{"uuid": "c", "name": "", "chat_messages": [{"uuid": "m", "sender": "human", "text": "Hi"}]}]
    assert read_export(write_export(tmp_path, old)).conversations[0].messages[0]["content"] == "Hi"


@pytest.mark.parametrize("form", ["results", "list", "lines"])
def test_memories_of_mem0_are_messages_by_owner(tmp_path: Path, form: str) -> None:
    held = mem0_export()["results"]
    forms = {"results": mem0_export(), "list": held, "lines": "\n".join(json.dumps(one) for one in held)}
    export = read_export(write_export(tmp_path, forms[form]))
    assert export.format == "mem0"
    ana, desk = export.conversations
    assert (ana.name, desk.name) == ("ana", "desk")
    assert [(turn["role"], turn["content"]) for turn in ana.messages] == [
        ("assistant", "Is a nurse"),
        ("user", "Lives in Lyon with a cat named Minou"),
    ]
    assert ana.messages[0]["metadata"] == {"agent_id": "desk"}
    assert ana.messages[1]["metadata"] == {"category": "home"}


def write_checkpoints(path: Path, *threads: str) -> Path:
    """Write a file as LangGraph does."""
    from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
    from langgraph.checkpoint.base import empty_checkpoint
    from langgraph.checkpoint.sqlite import SqliteSaver

    call = {"id": "c1", "name": "disk", "args": {"host": "db1"}}
    block = {"type": "tool_use", "id": "c1", "name": "disk", "input": {"host": "db1"}}
    said = [
        SystemMessage("Be brief.", id="1"),
        HumanMessage("How full is db1?", name="ana", id="2"),
        AIMessage([{"type": "text", "text": "I look."}, block], tool_calls=[call], id="3"),
        ToolMessage("40%", tool_call_id="c1", id="4"),
        AIMessage("40 percent.", id="5"),
    ]
    with SqliteSaver.from_conn_string(str(path)) as saver:
        for thread in threads:
            config = {"configurable": {"thread_id": thread, "checkpoint_ns": ""}}
            for count in (2, 5):
                state = {**empty_checkpoint(), "channel_values": {"messages": said[:count], "step": count}}
                config = saver.put(config, state, {"source": "loop", "step": count}, {})
    return path


def test_checkpoints_of_langgraph_are_read_by_its_own_serializer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_checkpoints(tmp_path / "graph.sqlite", "t1", "t2")
    export = read_export(path)
    assert export.format == "langgraph"
    assert [one.name for one in export.conversations] == ["t1", "t2"]
    assert export.conversations[0].messages == [
        {"role": "system", "content": "Be brief.", "key": "1", "origin": "external"},
        {"role": "user", "content": "How full is db1?", "key": "2", "name": "ana"},
        {
            "role": "assistant",
            "content": [{"type": "text", "text": "I look."}],
            "key": "3",
            "tool_calls": [{"id": "c1", "name": "disk", "arguments": {"host": "db1"}}],
        },
        {"role": "tool", "content": "40%", "key": "4", "tool_call_id": "c1"},
        {"role": "assistant", "content": "40 percent.", "key": "5"},
    ]
    other = tmp_path / "other.db"
    sqlite3.connect(other).execute("CREATE TABLE notes (x)").connection.close()
    with pytest.raises(ValidationError, match="none of LangGraph's checkpoints"):
        read_export(other)
    own = tmp_path / "own.db"
    with blocking.ACMS("a", f"sqlite:///{own}", None) as session:
        session.ingest("user", "Hello.")
    with pytest.raises(ValidationError, match="is a store of ACMS") as refused:
        read_export(own)
    assert refused.value.options[0].startswith(f"acms copy {own} TO")
    monkeypatch.setitem(sys.modules, "langgraph.checkpoint.serde.jsonplus", None)
    with pytest.raises(ConfigurationError) as missing:
        read_export(path)
    assert missing.value.options == ("pip install langgraph-checkpoint-sqlite",)


async def test_every_message_of_an_export_is_stored_once(tmp_path: Path) -> None:
    """A second import stores nothing, an edit is one entry, a removed message is retracted."""
    files = [
        write_export(tmp_path, chatgpt(), "a.json"),
        write_export(tmp_path, claude_export(), "b.json"),
        write_export(tmp_path, mem0_export(), "c.json"),
        write_checkpoints(tmp_path / "d.sqlite", "t1"),
    ]
    storage = open_storage(f"sqlite:///{tmp_path}/log.db")
    async with storage:
        for conversation in [one for file in files for one in read_export(file).conversations]:
            if conversation.fork is not None:
                continue
            async with ACMS(conversation.name, storage, None) as session:
                stored = await session.sync(conversation.messages, gone="retract")
                again = await session.sync(conversation.messages, gone="retract")
                assert len(stored.appended) == len(conversation.messages) == len(again.unchanged)
                assert not again.appended
        edited = chatgpt(answer="A dog after all.")
        edited[0]["mapping"]["n9"]["parent"] = "n6"
        one, *_ = read_export(write_export(tmp_path, edited)).conversations
        async with ACMS(one.name, storage, None) as session:
            done = await session.sync(one.messages, gone="retract")
            assert (len(done.replaced), len(done.retracted), len(done.appended)) == (1, 1, 0)


def test_a_format_may_be_given_and_an_archive_is_opened(tmp_path: Path) -> None:
    with ZipFile(tmp_path / "data.zip", "w") as archive:
        archive.writestr("user.json", "{}")
        archive.writestr("data/conversations-000.json", json.dumps(chatgpt()))
        archive.writestr("data/conversations-001.json", json.dumps(chatgpt(id="b", conversation_id="b")))
    held = read_export(tmp_path / "data.zip").conversations
    assert [one.id for one in held] == [CHATGPT_ID, f"{CHATGPT_ID}-n4", "b", "b-n4"]
    wrapped = write_export(tmp_path, {"conversations": chatgpt()})
    assert read_export(wrapped, format="chatgpt").conversations == read_export(wrapped).conversations
    chat = write_export(tmp_path, [{"role": "user", "content": "Hi"}], "chat.json")
    assert read_export(chat).format == "chat"
    for path, format, said in (
        (chat, "claude", "contains no conversation of claude"),
        (wrapped, "chat", "is not a chat message"),
        (chat, "bard", "'bard' is not one of aider, anthropic, chat, chatgpt"),
        (tmp_path / "absent", None, "cannot be read"),
    ):
        with pytest.raises(ValidationError, match=said):
            read_export(path, format=format)
    for name, data in (("broken.zip", b"PK\x03\x04 no archive"), ("bytes.json", b"\xff\xfe")):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(ValidationError):
            read_export(tmp_path / name)


def test_a_session_is_named_by_what_does_not_change() -> None:
    titled = Conversation(
        id=CHATGPT_ID, title="Ünïcode & spaces — a very long title that goes on, and on, and on"
    )
    assert titled.name == "ünïcode-spaces-a-very-long-title-that-goes-on-an-6714a2c9"
    assert Conversation(id="thread 7").name == "thread 7"
