"""T20: files that cannot or must not be opened: an error that says what to do, and not one byte changed."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import apsw
import pytest

from acms import ACMSError, StorageError
from acms.errors import CorruptRecordError, SchemaVersionError, StorageReadOnlyError
from acms.storage import SQLiteStorage

from ._process import finish_process, start_writer
from ._work import append_keys, assert_store_sound, shared_contexts

NOBODY = 65534


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that every user may enter; pytest's own belong to one user."""
    where = Path(tempfile.mkdtemp())
    where.chmod(0o777)
    yield where
    shutil.rmtree(where)


@pytest.fixture
def disk(folder: Path) -> Iterator[Path]:
    """A file system of its own, where the tests may mount one; it can be made read-only."""
    where = folder / "disk"
    where.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=3m,mode=777", "tmpfs", str(where)]
    if subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip("a file system cannot be mounted here")
    yield where
    subprocess.run(["umount", "-l", str(where)], check=True)


def read_only(disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)


@contextmanager
def drop_privileges() -> Iterator[None]:
    """Become an unprivileged user for a while: permissions do not bind root."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


async def make_store(path: Path, *, messages: int = 3) -> str:
    """Write a store and close it; return the id of its context."""
    storage = SQLiteStorage(path)
    (context,) = await shared_contexts(storage, 1)
    for n in range(messages):
        await append_keys(storage, context, f"{n}")
    await storage.aclose()
    return context


def folder_contents(folder: Path) -> dict[str, bytes]:
    """Return every file below a folder."""
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


async def assert_refused(storage: SQLiteStorage, expected: type[ACMSError], says: str | None = None) -> None:
    """Assert that no verb works, that the error names what to do, and that a second try says the same."""
    for _ in range(2):
        with pytest.raises(ACMSError, match=says) as caught:
            await shared_contexts(storage, 1) if not storage.read_only else await storage.context("shared-0")
        assert type(caught.value) is expected
        assert caught.value.options, f"{caught.value} does not say what to do"
        assert str(storage.path.name) in str(caught.value) or str(storage.path.parent) in str(caught.value)
    await storage.aclose()


# ── files that are not ours, or broken ──────────────────────────────────────────────────────────────────────────────


def _write_garbage(path: Path, _context: str) -> None:
    path.write_bytes(random.Random(1).randbytes(20_000))


def _write_short_file(path: Path, _context: str) -> None:
    path.write_bytes(b"hello")


def _garbage_pages(path: Path, _context: str) -> None:
    data = path.read_bytes()
    path.write_bytes(data[:100] + random.Random(2).randbytes(len(data) - 100))


def _garbage_header(path: Path, _context: str) -> None:
    data = path.read_bytes()
    path.write_bytes(data[:16] + random.Random(3).randbytes(84) + data[100:])


def _truncate_file(path: Path, _context: str) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])


def _first_page(path: Path, _context: str) -> None:
    path.write_bytes(path.read_bytes()[:4096])


def _cut_in_the_header(path: Path, _context: str) -> None:
    path.write_bytes(path.read_bytes()[:50])


def _other_application(path: Path, _context: str) -> None:
    path.unlink()
    other = apsw.Connection(str(path))
    other.execute("CREATE TABLE songs (name); INSERT INTO songs VALUES ('one')").fetchall()
    other.close()


def _other_application_id(path: Path, _context: str) -> None:
    path.unlink()
    other = apsw.Connection(str(path))
    other.pragma("application_id", 0x12345678)
    other.close()


def _other_application_in_wal_mode(path: Path, context: str) -> None:
    _other_application(path, context)
    other = apsw.Connection(str(path))
    other.pragma("journal_mode", "wal")
    other.close()


def _write_newer_version(path: Path, _context: str) -> None:
    connection = apsw.Connection(str(path))
    connection.pragma("user_version", 999)
    connection.close()


BROKEN: dict[str, tuple[Callable[[Path, str], None], type[ACMSError], str | None]] = {
    "garbage": (_write_garbage, CorruptRecordError, "not an ACMS database"),
    "short": (_write_short_file, CorruptRecordError, "not an ACMS database"),
    "garbage-pages": (_garbage_pages, CorruptRecordError, None),
    "garbage-header": (_garbage_header, CorruptRecordError, None),
    "truncated": (_truncate_file, CorruptRecordError, None),
    "first-page-only": (_first_page, CorruptRecordError, None),
    "cut-in-the-header": (_cut_in_the_header, CorruptRecordError, None),
    "other-application": (_other_application, StorageError, "another application"),
    "other-application-id": (_other_application_id, StorageError, "another application"),
    "other-application-wal": (_other_application_in_wal_mode, StorageError, "another application"),
    "newer-schema": (_write_newer_version, SchemaVersionError, "schema 999"),
}


@pytest.mark.parametrize("read", [False, True], ids=["writable", "read-only"])
@pytest.mark.parametrize("what", BROKEN)
async def test_T20_a_file_that_is_broken_or_not_ours_is_refused_and_not_touched(
    tmp_path: Path, what: str, read: bool
) -> None:
    damage, expected, says = BROKEN[what]
    path = tmp_path / "a.db"
    damage(path, await make_store(path))
    before = folder_contents(tmp_path)
    await assert_refused(SQLiteStorage(path, read_only=read), expected, says)
    assert folder_contents(tmp_path) == before


@contextmanager
def crashed_copy(path: Path, script: str) -> Iterator[None]:
    """Let a program leave its last commits in the WAL, as one that was killed does."""
    copy = path.with_name("live.db")
    connection = apsw.Connection(str(copy))
    connection.pragma("journal_mode", "wal")
    connection.execute(script).fetchall()
    for end in ("", "-wal"):
        shutil.copyfile(f"{copy}{end}", f"{path}{end}")
    connection.close()
    copy.unlink()
    yield


@pytest.mark.parametrize("what", ["other-application", "newer-schema"])
async def test_T20_a_refused_file_keeps_the_commits_in_its_wal(tmp_path: Path, what: str) -> None:
    """Closing the last connection would move them into the file: also that is a change."""
    path = tmp_path / "a.db"
    script = "CREATE TABLE songs (name); INSERT INTO songs VALUES ('one');"
    if what == "newer-schema":
        script = (
            f"PRAGMA application_id = {0x41434D53}; CREATE TABLE contexts (a); PRAGMA user_version = 999;"
        )
    with crashed_copy(path, script):
        before = folder_contents(tmp_path)
        expected = StorageError if what == "other-application" else SchemaVersionError
        await assert_refused(SQLiteStorage(path), expected, "not changed")
        after = folder_contents(tmp_path)
    assert after["a.db"] == before["a.db"]
    assert after["a.db-wal"] == before["a.db-wal"]


@pytest.mark.parametrize("page", [0.3, 0.6, 0.9, 1.0])
async def test_T20_damage_that_is_met_later_is_named_and_not_made_worse(tmp_path: Path, page: float) -> None:
    """A file is not read whole when it is opened; damage met while reading is an error, never a shorter history."""
    path = tmp_path / "a.db"
    context = await make_store(path, messages=300)
    data = bytearray(path.read_bytes())
    if page == 1.0:
        del data[-1000:]  # cut within the last page: SQLite counts it as one and reads zeros
    else:
        start = int(len(data) // 4096 * page) * 4096
        data[start : start + 8192] = random.Random(page).randbytes(8192)
    path.write_bytes(bytes(data))
    storage = SQLiteStorage(path)
    noticed = False
    try:
        entries = await storage.read(context)
    except CorruptRecordError as error:
        noticed = True
        assert error.options
    else:  # the damage lies in an index
        assert [entry.version for entry in entries] == list(range(1, 301))
    try:
        noticed = bool(await storage.integrity()) or noticed  # SQLite does not look into a cut text
    except CorruptRecordError:
        noticed = True
    assert noticed
    await storage.aclose()
    assert folder_contents(tmp_path) == {"a.db": bytes(data)}


# ── places ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("read", [False, True], ids=["writable", "read-only"])
async def test_T20_a_missing_folder_is_named_and_not_made(tmp_path: Path, read: bool) -> None:
    await assert_refused(
        SQLiteStorage(tmp_path / "no" / "a.db", read_only=read), StorageError, "does not exist"
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("read", [False, True], ids=["writable", "read-only"])
async def test_T20_a_folder_is_not_a_file(tmp_path: Path, read: bool) -> None:
    (tmp_path / "a.db").mkdir()
    await assert_refused(SQLiteStorage(tmp_path / "a.db", read_only=read), StorageError, "folder")
    assert [file.name for file in tmp_path.rglob("*")] == ["a.db"]


async def test_T20_read_only_never_makes_a_file(tmp_path: Path) -> None:
    await assert_refused(SQLiteStorage(tmp_path / "a.db", read_only=True), StorageError, "does not exist")
    assert list(tmp_path.iterdir()) == []


async def test_T20_a_file_below_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    await assert_refused(SQLiteStorage(tmp_path / "file" / "a.db"), StorageError, "does not exist")


@pytest.mark.parametrize("read", [False, True], ids=["writable", "read-only"])
async def test_T20_a_file_without_permission_is_refused(folder: Path, read: bool) -> None:
    path = folder / "a.db"
    await make_store(path)
    before = folder_contents(folder)
    path.chmod(0o000)
    with drop_privileges():
        await assert_refused(SQLiteStorage(path, read_only=read), StorageReadOnlyError)
    path.chmod(0o644)
    assert folder_contents(folder) == before


async def test_T20_a_folder_without_permission_is_refused(folder: Path) -> None:
    inner = folder / "inner"
    inner.mkdir(mode=0o755)
    path = inner / "a.db"
    inner.chmod(0o555)
    with drop_privileges():
        await assert_refused(SQLiteStorage(path), StorageReadOnlyError)
    context = await make_store(path)
    path.chmod(0o644)  # its owner lets others read
    before = folder_contents(folder)
    with drop_privileges():
        await assert_refused(SQLiteStorage(path), StorageReadOnlyError)
        assert folder_contents(folder) == before
        storage = SQLiteStorage(path, read_only=True)
        assert len(await storage.read(context)) == 3
        await storage.aclose()
    inner.chmod(0o700)
    with drop_privileges():
        await assert_refused(SQLiteStorage(path), StorageReadOnlyError)
    assert folder_contents(folder) == before


async def test_T20_a_write_protected_file_is_refused_for_writing_and_can_be_read(folder: Path) -> None:
    path = folder / "a.db"
    context = await make_store(path)
    before = folder_contents(folder)
    path.chmod(0o444)
    with drop_privileges():
        await assert_refused(SQLiteStorage(path), StorageReadOnlyError)
        storage = SQLiteStorage(path, read_only=True)
        assert len(await storage.read(context)) == 3
        await storage.aclose()
    assert folder_contents(folder)["a.db"] == before["a.db"]


async def test_T20_read_only_refuses_every_verb_that_writes(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    context = await make_store(path)
    before = folder_contents(tmp_path)
    storage = SQLiteStorage(path, read_only=True)
    with pytest.raises(StorageReadOnlyError):
        await append_keys(storage, context, "new")
    with pytest.raises(StorageReadOnlyError):
        await shared_contexts(storage, 1)
    with pytest.raises(StorageReadOnlyError):
        await storage.settings(context, {"deleted": True}, rev=0)
    assert len(await storage.read(context)) == 3
    await storage.aclose()
    assert folder_contents(tmp_path) == before


async def test_T20_read_only_sees_what_another_process_is_writing(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    other = SQLiteStorage(path)
    (context,) = await shared_contexts(other, 1)
    storage = SQLiteStorage(path, read_only=True)
    for n in range(5):
        await append_keys(other, context, f"{n}")
        assert len(await storage.read(context)) == n + 1
    await storage.aclose()
    await append_keys(other, context, "last")
    await other.aclose()
    assert list(folder_contents(tmp_path)) == ["a.db"]


async def test_T20_a_read_only_file_system_can_be_read_and_says_so_otherwise(disk: Path) -> None:
    path = disk / "a.db"
    context = await make_store(path)
    read_only(disk)
    before = folder_contents(disk)
    await assert_refused(SQLiteStorage(path), StorageReadOnlyError)
    await assert_refused(SQLiteStorage(disk / "new.db"), StorageReadOnlyError)
    storage = SQLiteStorage(path, read_only=True)
    assert len(await storage.read(context)) == 3
    await assert_store_sound(storage)
    await storage.aclose()
    assert folder_contents(disk) == before


async def test_T20_commits_in_a_wal_on_a_read_only_file_system_are_never_silently_left_out(
    disk: Path,
) -> None:
    """A file that was killed with commits in its WAL, and then mounted read-only: an old state would be a lie."""
    path = disk / "a.db"
    process = start_writer("write", path, disk / "notes", "w", "0")
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.kill()
    finish_process(process)
    assert (disk / "a.db-wal").stat().st_size > 0
    (disk / "a.db-shm").unlink()
    read_only(disk)
    before = folder_contents(disk)
    await assert_refused(SQLiteStorage(path, read_only=True), StorageReadOnlyError, "a.db-wal")
    await assert_refused(SQLiteStorage(path), StorageReadOnlyError)
    assert folder_contents(disk) == before


async def test_T20_a_disk_that_becomes_read_only_refuses_appends_and_still_reads(disk: Path) -> None:
    path = disk / "a.db"
    storage = SQLiteStorage(path)
    (context,) = await shared_contexts(storage, 1)
    await append_keys(storage, context, "0")
    await storage.aclose()
    read_only(disk)
    await assert_refused(storage, StorageReadOnlyError)
    subprocess.run(["mount", "-o", "remount,rw", str(disk)], check=True)
    await append_keys(storage, context, "1")
    await assert_store_sound(storage)
    await storage.aclose()
