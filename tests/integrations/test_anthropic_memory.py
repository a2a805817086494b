"""Claude's memory tool on a log, held against the SDK's own on a directory of files."""

from __future__ import annotations

import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from anthropic.tools import BetaLocalFilesystemMemoryTool, ToolError

from acms import ACMS, ACMSConfig, Kind, Privacy, PrivacyConfig, open_storage
from acms.integrations.anthropic_memory import PATH, AsyncMemoryTool, MemoryTool
from acms.sync import ACMS as BlockingACMS

A, B = "/memories/a.md", "/memories/notes/b.md"


def memory_session(name: str = "memory", config: ACMSConfig | None = None) -> ACMS:
    return ACMS(name, open_storage("memory://"), None, namespace="user:1", config=config)


async def call_tool(tool: AsyncMemoryTool, command: str, **more: Any) -> str:
    return str(await tool.call({"command": command, **more}))


async def tool_error(tool: AsyncMemoryTool, command: str, **more: Any) -> str:
    with pytest.raises(ToolError) as error:
        await call_tool(tool, command, **more)
    return str(error.value)


async def test_every_command_and_what_it_answers() -> None:
    session = memory_session()
    tool = AsyncMemoryTool(session)
    assert tool.to_dict() == {"type": "memory_20250818", "name": "memory"}
    assert (await call_tool(tool, "view", path="/memories")).endswith("\n0.0K\t/memories")
    created = await call_tool(tool, "create", path=A, file_text="Likes tea.\nLives in Ulm.\n")
    assert created == f"File created successfully at: {A}"
    assert "already exists" in await tool_error(tool, "create", path=A, file_text="x")
    assert "is a file" in await tool_error(tool, "create", path=f"{A}/b.md", file_text="x")
    shown = await call_tool(tool, "view", path=A)
    assert shown == (
        f"Here's the content of {A} with line numbers:\n     1\tLikes tea.\n     2\tLives in Ulm.\n     3\t"
    )
    assert (await call_tool(tool, "view", path=A, view_range=[2, 2])).endswith(":\n     2\tLives in Ulm.")
    edited = await call_tool(tool, "str_replace", path=A, old_str="tea", new_str="coffee")
    assert (
        edited == "The memory file has been edited.\n     1\tLikes coffee.\n     2\tLives in Ulm.\n     3\t"
    )
    assert "did not appear verbatim" in await tool_error(
        tool, "str_replace", path=A, old_str="tea", new_str="x"
    )
    assert "in lines: 1, 2, 2" in await tool_error(tool, "str_replace", path=A, old_str="i", new_str="x")
    await call_tool(tool, "insert", path=A, insert_line=0, insert_text="# Sam\n")
    assert "[0, 3]" in await tool_error(tool, "insert", path=A, insert_line=9, insert_text="x")
    await call_tool(tool, "create", path=B, file_text="")
    await call_tool(tool, "create", path="/memories/.hidden", file_text="x")
    await call_tool(tool, "create", path="/memories/notes/deep/er/c.md", file_text="Buried.")
    listed = (await call_tool(tool, "view", path="/memories")).splitlines()[1:]
    assert [line.split("\t")[1] for line in listed] == [
        "/memories", A, "/memories/notes/", B, "/memories/notes/deep/"]  # fmt: skip
    await call_tool(tool, "rename", old_path="/memories/notes", new_path="/memories/old")
    assert "does not exist" in await tool_error(tool, "view", path=B)
    assert "already exists" in await tool_error(tool, "rename", old_path=A, new_path="/memories/old")
    assert "Buried." in await call_tool(tool, "view", path="/memories/old/deep/er/c.md")
    await call_tool(tool, "delete", path="/memories/old")
    assert "does not exist" in await tool_error(tool, "delete", path="/memories/old")
    assert "Cannot delete" in await tool_error(tool, "delete", path="/memories/")
    shown = await call_tool(tool, "view", path=A)
    assert shown.endswith(":\n     1\t# Sam\n     2\tLikes coffee.\n     3\tLives in Ulm.\n     4\t")
    await call_tool(tool, "delete", path=A)
    await call_tool(tool, "create", path=A, file_text="Anew.")


@pytest.mark.parametrize(
    "path",
    ["/etc/passwd", "/memories/../x", "/memories/a/../../x", "/memories/%2e%2e/x", "/memories\\..\\x", "/memoriesx",
     "memories/a", "/memories//a", "/memories/./a", "/memories/a\n", "", None, 7],
)  # fmt: skip
async def test_a_path_never_leads_out(path: Any) -> None:
    tool = AsyncMemoryTool(memory_session())
    await call_tool(tool, "create", path=A, file_text="x")
    for command in ("view", "create", "str_replace", "insert", "delete"):
        more = {"file_text": "x", "old_str": "x", "new_str": "y", "insert_line": 0, "insert_text": "y"}
        assert "ath" in await tool_error(tool, command, path=path, **more)
    assert "ath" in await tool_error(tool, "rename", old_path=A, new_path=path)
    assert "ath" in await tool_error(tool, "rename", old_path=path, new_path=B)


async def test_every_edit_is_an_entry_and_the_past_can_be_viewed() -> None:
    session = memory_session()
    tool = AsyncMemoryTool(session)
    await call_tool(tool, "create", path=A, file_text="Likes tea.")
    await call_tool(tool, "str_replace", path=A, old_str="tea", new_str="coffee")
    await call_tool(tool, "rename", old_path=A, new_path=B)
    await call_tool(tool, "delete", path=B)
    kinds = [one.kind for one in (await session.history()).entries]
    assert kinds == [Kind.MESSAGE, Kind.MESSAGE, Kind.MESSAGE, Kind.RETRACTION, Kind.RETRACTION]
    for version, said in ((1, "Likes tea."), (2, "Likes coffee.")):
        past = AsyncMemoryTool(session.at(version))
        assert said in await call_tool(past, "view", path=A)
        assert "past version" in await tool_error(past, "delete", path=A)
    assert "coffee" in await call_tool(AsyncMemoryTool(session.at(4)), "view", path=B)
    await session.undo(5)
    assert "coffee" in await call_tool(tool, "view", path=B)
    (moved,) = await session.entries()
    assert moved.metadata[PATH] == B
    assert (await session.get(moved.metadata["renamed_from"])).content == "Likes coffee."


async def test_what_somebody_else_changed_is_not_edited() -> None:
    session = memory_session()
    one, other = AsyncMemoryTool(session), AsyncMemoryTool(session)
    await call_tool(one, "create", path=A, file_text="Likes tea.")
    await call_tool(other, "view", path=A)
    await call_tool(one, "str_replace", path=A, old_str="tea", new_str="tea and cake")
    changed = await tool_error(other, "str_replace", path=A, old_str="tea", new_str="coffee")
    assert changed == f"Error: {A} was changed since you viewed it. View it again before you edit it."
    await call_tool(other, "view", path=A)
    await call_tool(other, "str_replace", path=A, old_str="tea", new_str="coffee")
    assert "coffee and cake" in await call_tool(other, "view", path=A)


async def test_two_at_the_very_same_moment() -> None:
    session = memory_session()
    one, other = AsyncMemoryTool(session), AsyncMemoryTool(session)
    await call_tool(one, "create", path=A, file_text="0")
    await call_tool(other, "view", path=A)
    get = session.get

    async def slow(id: str) -> Any:
        found = await get(id)
        session.get = get  # type: ignore[method-assign]  # only the first reader is overtaken
        await call_tool(other, "str_replace", path=A, old_str="0", new_str="1")
        return found

    session.get = slow  # type: ignore[method-assign]  # the edit comes between reading and writing
    assert "was changed" in await tool_error(one, "str_replace", path=A, old_str="0", new_str="2")
    assert (await session.entries())[0].content == "1"

    ingest = session.ingest

    async def late(*args: Any, **more: Any) -> str:
        session.ingest = ingest  # type: ignore[method-assign]  # only the first writer is overtaken
        await call_tool(other, "create", path=B, file_text="first")
        return await ingest(*args, **more)

    session.ingest = late  # type: ignore[method-assign]  # the same file is created meanwhile
    assert "already exists" in await tool_error(one, "create", path=B, file_text="second")
    assert [entry.content for entry in await session.entries()] == ["1", "first"]


async def test_recall_finds_it_and_erasure_takes_it_away() -> None:
    session = memory_session()
    tool = AsyncMemoryTool(session)
    await call_tool(tool, "create", path=A, file_text="The orders service runs on PostgreSQL 18.")
    await call_tool(tool, "str_replace", path=A, old_str="18", new_str="19")
    talk = ACMS("talk", session.storage, None, namespace="user:1")
    await talk.ingest("user", "Hello.")
    found = await talk.recall("which database has the orders service?", scope="namespace")
    assert [(one.content, one.speaker) for one in found if "orders" in one.content] == [
        ("The orders service runs on PostgreSQL 19.", A)
    ]
    assert len(await session.recall("PostgreSQL", where={"metadata": {PATH: A}})) == 1
    (entry,) = await session.entries()
    await session.erase(entry.sources[0])
    assert "does not exist" in await tool_error(tool, "view", path=A)
    assert "19" not in str(await session.entries())
    assert not [one for one in await talk.recall("PostgreSQL", scope="namespace") if "orders" in one.content]


async def test_what_is_redacted_is_not_shown_and_not_lost() -> None:
    session = memory_session(config=ACMSConfig(privacy=PrivacyConfig(mode=Privacy.REDACT)))
    tool = AsyncMemoryTool(session)
    await call_tool(tool, "create", path=A, file_text="Write to ada@example.com.\nLikes tea.")
    assert "ada@" not in await call_tool(tool, "view", path=A)
    edited = await call_tool(tool, "str_replace", path=A, old_str="tea", new_str="coffee")
    assert "ada@" not in edited
    (entry,) = await session.entries()
    assert (await session.get(entry.id)).content == "Write to ada@example.com.\nLikes coffee."


def test_blocking_code_has_it_too(tmp_path: Path) -> None:
    with BlockingACMS("memory", f"sqlite:///{tmp_path}/log.db", None) as session:
        tool = MemoryTool(session)
        tool.call({"command": "create", "path": A, "file_text": "Likes tea."})
        assert "Likes tea." in str(tool.call({"command": "view", "path": A}))
        tool.call({"command": "insert", "path": A, "insert_line": 1, "insert_text": "Lives in Ulm."})
        with pytest.raises(ToolError, match="does not exist"):
            tool.call({"command": "delete", "path": B})
        past = MemoryTool(session.at(1))
        assert "Ulm" not in str(past.call({"command": "view", "path": A}))
        with pytest.raises(ToolError, match="past version"):
            past.call({"command": "delete", "path": A})


@pytest.mark.parametrize("seed", range(20))
async def test_random_commands_leave_what_the_tool_of_the_sdk_leaves(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    session, files = memory_session(), BetaLocalFilesystemMemoryTool(str(tmp_path))
    tool = AsyncMemoryTool(session)
    paths = [A, B, "/memories/notes", "/memories/notes/c/d.md", "/memories/a.md/e"]
    words = ["tea\n", "tea", "", "one\ntwo\n", "two", "x\n\ny"]
    for _ in range(40):
        command: dict[str, Any] = {
            "command": rng.choice("view create create str_replace insert delete rename".split()),
            "path": rng.choice(paths),
            "file_text": rng.choice(words),
            "old_str": rng.choice(words[:-1]) or "t",
            "new_str": rng.choice(words),
            "insert_line": rng.randint(0, 3),
            "insert_text": rng.choice(words),
            "old_path": rng.choice(paths),
            "new_path": rng.choice(paths),
        }
        before = {one.metadata[PATH]: one.content for one in await session.entries()}
        done = True
        try:
            await call_tool(tool, **command)
        except ToolError:
            done = False
        after = {one.metadata[PATH]: one.content for one in await session.entries()}
        if not done:
            assert after == before
            continue
        getattr(files, command["command"])(SimpleNamespace(view_range=None, **command))
        for one in sorted((tmp_path / "memories").rglob("*"), reverse=True):
            if one.is_dir() and not list(one.iterdir()):
                one.rmdir()  # a log has no empty directories
        there = {f"/memories/{one.relative_to(tmp_path / 'memories')}": one.read_text()
                 for one in (tmp_path / "memories").rglob("*") if one.is_file()}  # fmt: skip
        assert after == there, command


async def test_a_command_that_cannot_be_done_says_why() -> None:
    tool = AsyncMemoryTool(memory_session())
    await call_tool(tool, "create", path=A, file_text="Likes tea.\nLives in Ulm.\n")
    await call_tool(tool, "create", path=B, file_text="x")
    assert "is a file" in await tool_error(tool, "create", path=f"{A}/b.md", file_text="x")
    assert "is a file" in await tool_error(tool, "rename", old_path=B, new_path=f"{A}/b.md")
    assert "into itself" in await tool_error(
        tool, "rename", old_path="/memories/notes", new_path="/memories/notes/n"
    )
    for path in ("/memories//a.md", "/memories/./a.md"):
        assert "escape" not in await tool_error(tool, "view", path=path)
    for lines in ([3, 2], [0, 2], [9, 9], [1], "ab"):
        assert "view_range" in await tool_error(tool, "view", path=A, view_range=lines)
    assert "file_text" in await tool_error(tool, "create", path="/memories/c.md")
    assert "insert_line" in await tool_error(tool, "insert", path=A, insert_text="x")


async def test_a_replacement_without_a_new_text_deletes_the_old_one() -> None:
    tool = AsyncMemoryTool(memory_session())
    await call_tool(tool, "create", path=A, file_text="Likes tea. Lives in Ulm.")
    await call_tool(tool, "str_replace", path=A, old_str="Likes tea. ")
    assert (await call_tool(tool, "view", path=A)).endswith("\tLives in Ulm.")


async def test_two_spellings_that_look_the_same_are_one_path_or_refused() -> None:
    session = memory_session()
    tool = AsyncMemoryTool(session)
    composed, decomposed = "/memories/caf\u00e9.md", "/memories/cafe\u0301.md"
    assert await call_tool(tool, "create", path=decomposed, file_text="Opens at seven.") == (
        f"File created successfully at: {composed}"
    )
    assert "already exists" in await tool_error(tool, "create", path=composed, file_text="Opens at eight.")
    assert "Opens at seven." in await call_tool(tool, "view", path=composed)
    assert (await call_tool(tool, "view", path="/memories")).count("caf") == 1
    await call_tool(tool, "rename", old_path=composed, new_path="/memories/a\u0308.md")
    assert "Opens at seven." in await call_tool(tool, "view", path="/memories/\u00e4.md")
    for hidden in (
        "\u200b",
        "\u200d",
        "\ufeff",
        "\u202e",
        "\u00ad",
        "\u3164",
        "\ufe0f",
        "\u00a0",
        "\x00",
        "\n",
        "\ud83d",
    ):
        said = await tool_error(tool, "create", path=f"/memories/a{hidden}b.md", file_text="x")
        assert "invisible characters" in said, ascii(hidden)
        assert said.isascii()
    for spaced in ("/memories/ a.md", "/memories/a.md ", "/memories/a /b.md"):
        assert "spaces around a name" in await tool_error(tool, "view", path=spaced)
    await call_tool(tool, "create", path="/memories/two words.md", file_text="x")


async def test_a_file_that_was_stored_in_another_spelling_is_found() -> None:
    session = memory_session()
    decomposed = "/memories/cafe\u0301.md"
    await session.ingest("assistant", "Opens at seven.", metadata={PATH: decomposed})
    tool = AsyncMemoryTool(session)
    assert "Opens at seven." in await call_tool(tool, "view", path="/memories/caf\u00e9.md")
    await call_tool(tool, "delete", path=decomposed)
    assert "does not exist" in await tool_error(tool, "view", path="/memories/caf\u00e9.md")
