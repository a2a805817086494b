"""Damaged database files: what the commands say of them, and that no backup is made of one."""

from __future__ import annotations

import json
import shlex
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from acms import ACMS, ACMSConfig, CacheConfig, Prompt, open_storage
from acms.codecs import OpenAIChat
from acms.errors import CorruptRecordError
from tests.cli.test_cli import call, run

SESSIONS = ("one", "two", "three")


@pytest.fixture(scope="module")
def whole_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with three sessions, of which each fills many pages."""
    folder = tmp_path_factory.mktemp("whole")
    chat = folder / "chat.jsonl"
    messages = [
        {"role": "user", "content": f"Step {number}: " + "copied a part. " * 40} for number in range(300)
    ]
    chat.write_text("\n".join(map(json.dumps, messages)))
    file = folder / "notes.db"
    for session in SESSIONS:
        run("import", str(chat), "--session", session, "--db", str(file))
    return file


@pytest.fixture
def file(whole_file: Path, tmp_path: Path) -> Path:
    """A copy of that database, which a test may damage."""
    return Path(shutil.copy(whole_file, tmp_path))


def damage_entries(file: Path) -> None:
    """Overwrite some pages with the texts of one session."""
    content = bytearray(file.read_bytes())
    middle = content.find(b"Step 150: ")
    for offset in range(middle, middle + 8 * 4096):
        content[offset] = 0xA5
    file.write_bytes(content)


def test_verify_names_the_sessions_that_can_still_be_read(file: Path) -> None:
    damage_entries(file)
    result = run("verify", "--db", str(file), code=1)
    assert "store: " in result.stdout
    (intact,) = [
        line for line in result.stdout.splitlines() if line.startswith("sessions without problems: ")
    ]
    names = intact.partition(": ")[2].split(", ")
    assert len(names) == 2
    assert f"acms export --db {shlex.quote(str(file))} SESSION" in result.stdout
    for name in names:
        assert run("export", name, "--db", str(file)).stdout.count("\n") == 301
    checked = json.loads(run("verify", "--db", str(file), "--json", code=1).stdout)["sessions"]
    assert {session["session"] for session in checked if not session["problems"]} == set(names)


def test_verify_of_a_file_that_cannot_be_opened_names_what_helps(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:100_000])
    error = json.loads(run("verify", "--db", str(file), "--json", code=1).stderr)["error"]
    assert error["code"] == "CORRUPT_RECORD"
    assert "no session can be read" in error["message"]
    assert error["options"] == ["restore the file from a backup"]
    others = json.loads(run("sessions", "--db", str(file), "--json", code=1).stderr)["error"]["options"]
    assert others[-1] == f"acms verify --db {shlex.quote(str(file))} lists what is damaged"


def flip_byte(file: Path) -> None:
    """Change one letter of message 150 of every session, wherever the file has its text."""
    content = file.read_bytes()
    assert b"Step 150: copied" in content
    file.write_bytes(content.replace(b"Step 150: copied", b"Step 150: copies"))


@pytest.mark.parametrize("cached", [True, False])
async def test_a_flipped_byte_never_reaches_a_request(file: Path, cached: bool) -> None:
    flip_byte(file)
    storage = open_storage(f"sqlite:///{file}")
    config = ACMSConfig(cache=CacheConfig(enabled=cached))
    async with ACMS("one", storage, None, config=config) as session:
        prompt = Prompt(OpenAIChat("gpt-4o")).history(session)
        # The damaged message is not read for a short request, which is built as ever.
        assert "Step 299" in str((await prompt.render(budget=500)).payload)
        for read in (
            lambda: prompt.recall(session, "Step 150").render(budget=2_000),
            lambda: prompt.render(budget=100_000),
            lambda: session.recall("Step 150", budget=1_000),
            lambda: session.window(budget=100_000),
            lambda: session.entries(),
        ):
            with pytest.raises(CorruptRecordError, match="does not match its digest") as caught:
                await read()
            assert "acms verify lists what is damaged" in caught.value.options
        await session.ingest("user", "Still stored.")
    await storage.aclose()


def test_a_damaged_message_is_erased_by_the_version_that_verify_names(file: Path) -> None:
    flip_byte(file)
    db = ("--db", str(file))
    assert "one " in run("verify", *db, code=1).stdout
    for session in SESSIONS:
        run("erase", session, "--message", "v151", "--yes", *db)
    assert call("verify", *db)["ok"]


def test_a_damaged_file_is_not_backed_up(file: Path, tmp_path: Path) -> None:
    damage_entries(file)
    target = tmp_path / "copy.db"
    error = json.loads(run("backup", str(target), "--db", str(file), "--json", code=1).stderr)["error"]
    assert error["code"] == "CORRUPT_RECORD"
    assert f"{file} is damaged, so {target} was not written: " in error["message"]
    assert "\n" not in error["message"]
    assert list(tmp_path.glob("copy.db*")) == []


def test_a_copy_of_a_damaged_file_names_the_command_for_that_file(file: Path, tmp_path: Path) -> None:
    file.write_bytes(file.read_bytes()[:100_000])
    stderr = run("copy", str(file), str(tmp_path / "copy.db"), code=1).stderr
    assert f"try: acms verify --db {shlex.quote(str(file))} lists what is damaged" in stderr


def test_a_whole_file_is_backed_up(file: Path, tmp_path: Path) -> None:
    target = tmp_path / "copy.db"
    run("backup", str(target), "--db", str(file))
    assert list(tmp_path.glob("copy.db*")) == [target]
    assert call("verify", "--db", str(target))["ok"]


def test_a_blank_file_holds_no_store(tmp_path: Path) -> None:
    file = tmp_path / "blank.db"
    file.touch()
    for command in ("verify", "sessions"):
        error = json.loads(run(command, "--db", str(file), "--json", code=1).stderr)["error"]
        assert error["code"] == "STORAGE"
        assert "holds no ACMS store" in error["message"]
    assert file.stat().st_size == 0
    run("add", "one", "user", "Hello.", "--db", str(file))
    assert call("verify", "--db", str(file))["ok"]


def test_verify_finds_derived_rows_that_do_not_fit_the_log_and_reindex_repairs_them(file: Path) -> None:
    db = ("--db", str(file))
    checked = {one["session"]: one for one in call("verify", *db)["sessions"]}
    assert all(one["derived"] == [] for one in checked.values())
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute(
            "UPDATE derived SET data = x'00' WHERE ref = 1 AND version = 2 AND space LIKE 'cards%'"
        )
        connection.execute("UPDATE derived SET version = 900 WHERE ref = 2 AND version = 3")
    report = json.loads(run("verify", *db, "--json", code=1).stdout)
    assert report["ok"] is False
    assert all(one["problems"] == [] for one in report["sessions"])
    faults = {one["session"]: one["derived"] for one in report["sessions"]}
    assert [fault["what"] for fault in faults["one"]] == ["its index record differs from its text"]
    assert {fault["version"] for fault in faults["two"]} == {900}
    assert faults["three"] == []
    text = run("verify", *db, code=1).stdout
    assert "problems: 0" in text
    assert f"Repair them: acms reindex --db {shlex.quote(str(file))}" in text
    run("reindex", *db)
    assert call("verify", *db)["ok"]
