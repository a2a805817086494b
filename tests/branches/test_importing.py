"""An import writes the conversations of a file to sessions."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from acms import ACMS, open_storage
from acms.branches.importers import open_import, read_export
from acms.branches.importing import Importer, survey_import


def claude_export(*texts: str) -> list[dict[str, Any]]:
    """Return conversations of one message each, without ids."""
    conversations: list[dict[str, Any]] = []
    for text in texts:
        messages = [{"sender": "human", "text": text}, {"sender": "assistant", "text": "Good."}]
        conversations.append(
            {"name": "Trip", "created_at": "2026-03-02T10:00:00Z", "chat_messages": messages}
        )
    return conversations


def read_claude(tmp_path: Path, conversations: list[dict[str, Any]]) -> dict[str, list[str]]:
    """Return the texts of an export of Claude by the ids of its conversations."""
    file = tmp_path / "conversations.json"
    file.write_text(json.dumps(conversations))
    found = read_export(file)
    assert found.format == "claude"
    return {one.id: [turn["content"] for turn in one.messages] for one in found.conversations}


def test_conversations_of_claude_without_ids_do_not_collide(tmp_path: Path) -> None:
    found = read_claude(tmp_path, claude_export("To Rome.", "To Oslo.", "To Rome."))
    assert sorted(found.values()) == [["To Oslo.", "Good."], ["To Rome.", "Good."], ["To Rome.", "Good."]]


def test_a_conversation_of_claude_without_an_id_keeps_its_id_while_it_grows(tmp_path: Path) -> None:
    export = claude_export("To Rome.", "To Oslo.")
    before = read_claude(tmp_path, export)
    export[1]["chat_messages"].append({"sender": "human", "text": "By train."})
    after = read_claude(tmp_path, [export[1], *claude_export("To Kyiv."), export[0]])
    assert before.keys() < after.keys()


def test_a_conversation_of_chatgpt_without_an_id_has_one_of_its_own(tmp_path: Path) -> None:
    conversations: list[dict[str, Any]] = []
    for root in ("r1", "r2"):
        message = {"author": {"role": "user"}, "content": {"content_type": "text", "parts": ["Hello."]}}
        mapping = {root: {"parent": None}, f"{root}-1": {"parent": root, "message": message}}
        conversations.append({"mapping": mapping})
    file = tmp_path / "conversations.json"
    file.write_text(json.dumps(conversations))
    found = read_export(file)
    assert len({one.id for one in found.conversations} - {"None"}) == 2
    assert [one.messages[0]["key"] for one in found.conversations] == ["r1-1", "r2-1"]


def test_messages_and_calls_of_gemini_cli_without_ids_are_all_read(tmp_path: Path) -> None:
    calls = [{"name": "ls", "args": {}, "resultDisplay": text} for text in ("a.txt", "b.txt")]
    messages = [
        {"type": "user", "content": "List them."},
        {"type": "gemini", "content": "Here.", "toolCalls": calls},
        {"type": "user", "content": "Thanks."},
    ]
    for name in ("session-1", "session-2"):
        document = {"sessionId": None, "projectHash": "p", "messages": messages}
        file = tmp_path / f"{name}.json"
        file.write_text(json.dumps(document))
        (conversation,) = read_export(file, format="gemini-cli").conversations
        assert conversation.id == name
        assert [turn["key"] for turn in conversation.messages] == ["0", "1", "1:1", "1:2", "2"]
        called = [part.call_id for part in conversation.messages[1]["parts"]]
        answered = [turn["parts"][0].call_id for turn in conversation.messages[2:4]]
        assert called == answered == ["1:1", "1:2"]


class CountedSessions:
    """The sessions of a store, and how many of them were open at once."""

    def __init__(self) -> None:
        self.storage = open_storage("memory://")
        self.most = 0
        self._open = 0

    @asynccontextmanager
    async def session(self, name: str) -> AsyncGenerator[ACMS]:
        async with ACMS(name, self.storage, None) as one:
            self._open += 1
            self.most = max(self.most, self._open)
            yield one
            self._open -= 1


async def test_an_import_has_one_session_open_however_many_conversations_alternate(tmp_path: Path) -> None:
    lines: list[str] = []
    for number in range(12):
        message = {"role": "user", "content": f"Message {number}."}
        line = {"type": "user", "sessionId": f"s{number % 3}", "uuid": f"u{number}", "message": message}
        lines.append(json.dumps(line))
    file = tmp_path / "sessions.jsonl"
    file.write_text("\n".join(lines))
    opened = open_import(file)
    assert opened.format == "claude-code"
    sessions = CountedSessions()
    importer = Importer(sessions.storage, sessions, [], follows=True)
    done = await importer.import_file(opened, await survey_import(opened), None, "file")
    assert [(one.session, one.new) for one in done] == [("s0", 4), ("s1", 4), ("s2", 4)]
    assert sessions.most == 1
    again = await importer.import_file(opened, await survey_import(opened), None, "file")
    assert [one.new for one in again] == [0, 0, 0]
