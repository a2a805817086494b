"""Files and folders that hold what was said: only their owner may read them, from their first byte."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest

from acms import StorageError
from acms.kv import open_kv
from acms.storage import SQLiteStorage
from acms.storage.files import create_file, create_folder
from acms.storage.sqlite import file
from acms.testing.logs import append_drafts, create_log, draft_message

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the modes of POSIX")

READER = """
import asyncio, os, sys
from acms.model import ContextQuery
from acms.storage import SQLiteStorage

async def main():
    storage = SQLiteStorage(sys.argv[2], read_only=sys.argv[1] == "read")
    print(len((await storage.contexts(ContextQuery())).items), flush=True)
    sys.stdin.readline()
    await storage.aclose()

os.umask(0)
asyncio.run(main())
"""


@pytest.fixture(params=[0, 0o022, 0o077], ids=oct, autouse=True)
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    """Run with a umask and find it unchanged: it belongs to the host."""
    before = os.umask(request.param)
    yield request.param
    assert os.umask(before) == request.param


def file_modes(folder: Path) -> dict[str, str]:
    return {path.name: oct(path.stat().st_mode & 0o777) for path in sorted(folder.iterdir())}


def other_process(what: str, path: Path) -> subprocess.Popen[str]:
    """Start a process that opens a file, and wait until it has."""
    process = subprocess.Popen(
        [sys.executable, "-c", READER, what, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline().strip().isdecimal()
    return process


def let_go(process: subprocess.Popen[str]) -> None:
    process.communicate("\n", timeout=60)
    assert process.returncode == 0


async def write_store(path: Path) -> None:
    storage = SQLiteStorage(path)
    await append_drafts(storage, await create_log(storage), draft_message("hello"))
    await storage.aclose()


async def test_every_file_of_a_store_is_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    storage = SQLiteStorage(path)
    context = await create_log(storage)
    await append_drafts(storage, context, draft_message("hello"))
    opened = {"a.db": "0o600", "a.db-shm": "0o600", "a.db-wal": "0o600"}
    assert file_modes(tmp_path) == opened
    process = other_process("read", path)
    await append_drafts(storage, context, draft_message("again"))
    assert file_modes(tmp_path) == opened
    await storage.aclose()
    assert file_modes(tmp_path) == opened, "the other process keeps it open"
    connection = apsw.Connection(str(path))
    connection.pragma("wal_checkpoint(TRUNCATE)")
    connection.close()
    assert file_modes(tmp_path) == opened
    let_go(process)
    storage = SQLiteStorage(path)
    await append_drafts(storage, context, draft_message("and again"))
    assert set(file_modes(tmp_path).values()) == {"0o600"}
    await storage.backup(tmp_path / "copy.db")
    await storage.aclose()
    assert file_modes(tmp_path) == {"a.db": "0o600", "copy.db": "0o600"}
    connection = apsw.Connection(str(path))  # the journal that is written without a WAL
    connection.pragma("journal_mode", "delete")
    connection.execute("BEGIN IMMEDIATE; CREATE TABLE t (x); INSERT INTO t VALUES (zeroblob(100000))")
    assert file_modes(tmp_path)["a.db-journal"] == "0o600"
    connection.close()


async def test_a_file_is_narrow_before_sqlite_opens_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[dict[str, str]] = []
    opening = file.open_connection

    def opened(*given: Any) -> apsw.Connection:
        seen.append(file_modes(tmp_path))
        return opening(*given)

    monkeypatch.setattr(file, "open_connection", opened)
    await write_store(tmp_path / "a.db")
    assert seen[0] == {"a.db": "0o600"}


def test_a_file_that_another_process_makes_is_narrow_too(tmp_path: Path) -> None:
    process = other_process("write", tmp_path / "a.db")
    assert set(file_modes(tmp_path).values()) == {"0o600"}
    let_go(process)


async def test_values_by_key_are_for_their_owner_alone(tmp_path: Path) -> None:
    async with open_kv(f"sqlite:///{tmp_path / 'kv.db'}") as store:
        await store.set("key", "value")
        assert set(file_modes(tmp_path).values()) == {"0o600"}


async def test_a_file_that_is_there_keeps_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    await write_store(path)
    path.chmod(0o640)
    storage = SQLiteStorage(path)
    await append_drafts(storage, await create_log(storage), draft_message("shared with a group"))
    assert file_modes(tmp_path) == {"a.db": "0o640", "a.db-shm": "0o640", "a.db-wal": "0o640"}
    await storage.backup(tmp_path / "copy.db")
    await storage.aclose()
    assert file_modes(tmp_path) == {"a.db": "0o640", "copy.db": "0o600"}


async def test_a_backup_leaves_alone_what_is_there(tmp_path: Path) -> None:
    path, target = tmp_path / "a.db", tmp_path / "copy.db"
    await write_store(path)
    target.write_bytes(b"of somebody else")
    target.chmod(0o640)
    storage = SQLiteStorage(path)
    with pytest.raises(StorageError, match="exists"):
        await storage.backup(target)
    await storage.aclose()
    assert (file_modes(tmp_path)["copy.db"], target.read_bytes()) == ("0o640", b"of somebody else")


async def test_a_link_to_a_file_that_is_yet_to_be_made_is_followed(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "a.db").symlink_to(tmp_path / "data" / "real.db")
    await write_store(tmp_path / "a.db")
    assert file_modes(tmp_path / "data") == {"real.db": "0o600"}


def test_of_many_who_make_a_file_one_has_made_it(tmp_path: Path) -> None:
    made: list[bool] = []
    start = threading.Barrier(8)

    def one() -> None:
        start.wait()
        made.append(create_file(tmp_path / "a"))

    threads = [threading.Thread(target=one) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (made.count(True), made.count(False)) == (1, 7)
    assert file_modes(tmp_path) == {"a": "0o600"}


def test_folders_that_are_made_are_for_their_owner_alone(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    tmp_path.joinpath("there").chmod(0o755)
    for _ in range(2):
        create_folder(tmp_path / "there" / "a" / "b")
    assert file_modes(tmp_path) == {"there": "0o755"}
    assert file_modes(tmp_path / "there") == {"a": "0o700"}
    assert file_modes(tmp_path / "there" / "a") == {"b": "0o700"}
    create_file(tmp_path / "file")
    with pytest.raises(FileExistsError):
        create_folder(tmp_path / "file")
