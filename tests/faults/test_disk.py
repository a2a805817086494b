"""T19: disks that are full or fail, at every single call; and what a failed commit means for those who shared it."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import apsw
import pytest

from acms import ACMSError, ConflictError, StorageBusyError, StorageError
from acms.erasure.erase import erase_context, erase_entries
from acms.errors import StorageFullError
from acms.model import Append, ContextDraft, Expect, Receipt
from acms.storage import SQLiteStorage
from acms.testing.logs import append_drafts, draft_message

from ._vfs import FaultyVFS, checkpoint_every, make_failure
from ._work import (
    NOW,
    append_keys,
    append_of_keys,
    assert_store_sound,
    draft_of_key,
    shared_contexts,
    sound_file,
)

TOGETHER = 50


async def append_concurrently(
    storage: SQLiteStorage, context: str, keys: list[str]
) -> list[Receipt | ACMSError]:
    """Append one message per key, all at once, each by its own call."""

    async def one(key: str) -> Receipt | ACMSError:
        (result,) = await storage.append([append_of_keys(context, [key])])
        return result

    return list(await asyncio.gather(*(one(key) for key in keys)))


async def keys_of(storage: SQLiteStorage, context: str) -> list[str | None]:
    return [entry.key for entry in await storage.read(context)]


FAULTS: dict[str, tuple[set[str], Callable[[], None], type[StorageError]]] = {
    "full": ({"write -wal"}, make_failure(apsw.FullError), StorageFullError),
    "write": ({"write -wal"}, make_failure(apsw.IOError, apsw.SQLITE_IOERR_WRITE), StorageError),
    "sync": ({"sync -wal"}, make_failure(apsw.IOError, apsw.SQLITE_IOERR_FSYNC), StorageError),
    "read": ({"read"}, make_failure(apsw.IOError, apsw.SQLITE_IOERR_READ), StorageError),
}


@pytest.mark.parametrize("stays", [False, True], ids=["once", "until-repaired"])
@pytest.mark.parametrize("fault", FAULTS)
async def test_T19_a_fault_at_the_nth_call_stores_nothing_and_harms_nothing(
    tmp_path: Path, fault: str, stays: bool
) -> None:
    kinds, act, expected = FAULTS[fault]
    path = tmp_path / "a.db"
    failed = 0
    with FaultyVFS() as vfs:
        storage = SQLiteStorage(path)
        (context,) = await shared_contexts(storage, 1)
        acked: list[str | None] = []
        for nth in range(1, 200):
            if fault == "read":  # nothing is read that is still cached: begin with an empty cache
                await storage.aclose()
                await storage.head(context)
            vfs.arm(kinds, nth, act, times=None if stays else 1)
            keys = [f"{nth}-{n}" for n in range(8)]
            results = await append_concurrently(storage, context, keys)
            refused = [
                key for key, result in zip(keys, results, strict=True) if not isinstance(result, Receipt)
            ]
            for result in results:
                if isinstance(result, ACMSError):
                    assert type(result) is expected
                    assert result.retryable is (expected is StorageFullError)
            acked += [key for key in keys if key not in refused]
            if stays and fault != "read":  # reading goes on while nothing can be written
                assert await keys_of(storage, context) == acked
            tripped = vfs.disarm()
            assert await keys_of(storage, context) == acked
            if refused:
                failed += 1
                again = await append_concurrently(storage, context, refused)
                assert all(isinstance(result, Receipt) and not result.repeated for result in again)
                acked += refused
                assert await keys_of(storage, context) == acked
            if not tripped:
                break
        else:
            pytest.fail("the appends never came to an end")
        await assert_store_sound(storage)
        await storage.aclose()
    print(f"{fault}, stays={stays}: failed at {failed} places of an append shared by 8 callers")
    assert failed > 0
    assert [entry.key for entry in (await sound_file(path))[context]] == acked


async def test_T19_a_failed_sync_of_a_commit_is_the_error_of_all_who_shared_it(tmp_path: Path) -> None:
    with FaultyVFS() as vfs:
        storage = SQLiteStorage(tmp_path / "a.db")
        (context,) = await shared_contexts(storage, 1)
        await append_keys(storage, context, "before")
        # The writer is kept busy by the first call's commit, so the rest shares the next ones.
        vfs.arm({"sync -wal"}, 1, make_failure(apsw.IOError, apsw.SQLITE_IOERR_FSYNC), times=None)
        results = await append_concurrently(storage, context, [f"{n}" for n in range(TOGETHER)])
        assert vfs.disarm() < TOGETHER
        assert [type(result) for result in results] == [StorageError] * TOGETHER
        assert await keys_of(storage, context) == ["before"]
        results = await append_concurrently(storage, context, [f"{n}" for n in range(TOGETHER)])
        assert all(isinstance(result, Receipt) for result in results)
        await assert_store_sound(storage)
        await storage.aclose()


async def test_T19_a_commit_whose_sync_failed_is_unknown_after_a_crash_and_a_retry_makes_it_one_row(
    tmp_path: Path,
) -> None:
    """Its frames lie in the WAL: as long as the store lives they are overwritten, a crash may bring them back."""
    path, crashed = tmp_path / "a.db", tmp_path / "crashed.db"
    with FaultyVFS() as vfs:
        storage = SQLiteStorage(path)
        (context,) = await shared_contexts(storage, 1)
        await append_keys(storage, context, "before")
        vfs.arm({"sync -wal"}, 1, make_failure(apsw.IOError, apsw.SQLITE_IOERR_FSYNC))
        with pytest.raises(StorageError):
            await append_keys(storage, context, "unknown")
        assert vfs.disarm() == 1
        for end in ("", "-wal"):
            shutil.copyfile(f"{path}{end}", f"{crashed}{end}")
        await append_keys(storage, context, "over it")
        assert await keys_of(storage, context) == ["before", "over it"]
        await assert_store_sound(storage)
        await storage.aclose()
    storage = SQLiteStorage(crashed)
    found = await keys_of(storage, context)
    assert found in (["before"], ["before", "unknown"])
    assert (await append_keys(storage, context, "unknown")).repeated is ("unknown" in found)
    assert await keys_of(storage, context) == ["before", "unknown"]
    print(f"after a crash: {found}")
    await assert_store_sound(storage)
    await storage.aclose()


async def test_T19_a_checkpoint_that_fails_costs_no_acknowledged_message(tmp_path: Path) -> None:
    """The WAL is moved into the file after a commit; when that fails the commit is still a commit."""
    path = tmp_path / "a.db"
    for number, fault in enumerate(
        (make_failure(apsw.FullError), make_failure(apsw.IOError, apsw.SQLITE_IOERR_WRITE))
    ):
        with FaultyVFS() as vfs, checkpoint_every(20):
            storage = SQLiteStorage(path)
            (context,) = await shared_contexts(storage, 1)
            acked = await keys_of(storage, context)
            vfs.arm({"write a.db", "sync a.db"}, 3, fault, times=None)
            results = await append_concurrently(storage, context, [f"{number}-{n}" for n in range(TOGETHER)])
            refused = [result for result in results if not isinstance(result, Receipt)]
            assert vfs.disarm() > 0
            acked += [f"{number}-{n}" for n, result in enumerate(results) if isinstance(result, Receipt)]
            stored = await keys_of(storage, context)
            assert set(acked) <= set(stored)
            assert all(isinstance(result, StorageError) for result in refused)
            again = await append_concurrently(storage, context, [f"{number}-{n}" for n in range(TOGETHER)])
            assert all(isinstance(result, Receipt) for result in again)
            await assert_store_sound(storage)
            await storage.aclose()
    assert len((await sound_file(path))[context]) == 2 * TOGETHER


@pytest.mark.parametrize("step", [7, pytest.param(1, marks=pytest.mark.faults)])
@pytest.mark.parametrize("fault", ["full", "write"])
async def test_T19_a_fault_at_the_nth_call_of_a_first_opening_leaves_a_file_that_opens(
    tmp_path: Path, fault: str, step: int
) -> None:
    _, act, expected = FAULTS[fault]
    descriptors = len(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").is_dir() else 0
    with FaultyVFS() as vfs:
        for nth in range(1, 200, step):
            path = tmp_path / f"{nth}.db"
            storage = SQLiteStorage(path)
            vfs.arm({"write", "sync"}, nth, act, times=None)
            try:
                await shared_contexts(storage, 1)
            except StorageError as error:
                assert type(error) in (expected, StorageError)
            tripped = vfs.disarm()
            (context,) = await shared_contexts(storage, 1)
            await append_keys(storage, context, "works")
            assert [list(map(str, await keys_of(storage, context)))] == [["works"]]
            await storage.aclose()
            if not tripped:
                break
        else:
            pytest.fail("the opening never came to an end")
    print(f"{fault}: failed at every {step}th of {nth - 1} places of a first opening")
    assert nth > 10
    if descriptors:
        assert len(os.listdir("/proc/self/fd")) <= descriptors


# ── a real full disk ────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 3 MB, where the tests may mount one."""
    where = tmp_path / "small"
    where.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(where)], check=False, capture_output=True
    )
    if mounted.returncode:
        pytest.skip("a file system cannot be mounted here")
    yield where
    subprocess.run(["umount", "-l", str(where)], check=True)


async def test_T19_a_full_disk_refuses_appends_until_there_is_space(small_disk: Path) -> None:
    path, ballast = small_disk / "a.db", small_disk / "ballast"
    ballast.write_bytes(bytes(1_000_000))
    storage = SQLiteStorage(path)
    (context,) = await shared_contexts(storage, 1)
    acked: list[str | None] = []
    for _ in range(2):  # full, space again, full again
        refused: list[str] = []
        while not refused:
            keys = [f"{len(acked)}-{n}" for n in range(TOGETHER)]
            results = await append_concurrently(storage, context, keys)
            acked += [key for key, result in zip(keys, results, strict=True) if isinstance(result, Receipt)]
            refused = [
                key for key, result in zip(keys, results, strict=True) if not isinstance(result, Receipt)
            ]
            errors = [result for result in results if not isinstance(result, Receipt)]
            assert all(type(error) is StorageFullError and error.retryable for error in errors)
        assert len(acked) > TOGETHER
        assert await keys_of(storage, context) == acked
        await assert_store_sound(storage)
        if ballast.exists():
            ballast.unlink()
            results = await append_concurrently(storage, context, refused)
            assert all(isinstance(result, Receipt) and not result.repeated for result in results)
            acked += refused
            assert await keys_of(storage, context) == acked
    await storage.aclose()
    # Also a process that starts while the disk is full can read.
    assert [entry.key for entry in (await sound_file(path))[context]] == acked


async def test_T19_a_store_cannot_be_begun_on_a_full_disk_and_says_so(small_disk: Path) -> None:
    ballast = small_disk / "ballast"
    with pytest.raises(OSError, match="No space"):
        ballast.write_bytes(bytes(4_000_000))
    storage = SQLiteStorage(small_disk / "a.db")
    with pytest.raises(StorageFullError):
        await shared_contexts(storage, 1)
    ballast.unlink()
    (context,) = await shared_contexts(storage, 1)
    await append_keys(storage, context, "works")
    await storage.aclose()


async def test_a_backup_to_a_full_disk_names_the_target_and_leaves_nothing(
    small_disk: Path, tmp_path: Path
) -> None:
    storage = SQLiteStorage(tmp_path / "a.db")
    (context,) = await shared_contexts(storage, 1)
    await append_concurrently(storage, context, [str(n) for n in range(500)])
    room = shutil.disk_usage(small_disk).free
    (small_disk / "ballast").write_bytes(bytes(room - 50_000))
    with pytest.raises(StorageFullError, match=str(small_disk / "b.db")):
        await storage.backup(str(small_disk / "b.db"))
    assert [path.name for path in small_disk.iterdir()] == ["ballast"]
    (small_disk / "ballast").unlink()
    await storage.backup(str(small_disk / "b.db"))
    await storage.aclose()
    assert len((await sound_file(small_disk / "b.db"))[context]) == 500


@pytest.mark.parametrize("verify", [False, True], ids=["rewrite", "verify"])
async def test_T19_a_full_disk_inside_a_vacuum_names_the_file_and_leaves_nothing_half_done(
    small_disk: Path, verify: bool
) -> None:
    """The new file goes through the write-ahead log: where that has no room the old one stays, and stays in use."""
    path, ballast = small_disk / "a.db", small_disk / "ballast"
    secret = "the vault code is seven-four-one-nine"
    async with SQLiteStorage(path) as storage:
        (context,) = await shared_contexts(storage, 1)
        receipt = await append_drafts(storage, await storage.context(context), draft_message(secret))
        await append_concurrently(storage, context, [str(n) for n in range(250)])
    careless = apsw.Connection(str(path))  # what an earlier release left in free pages
    careless.pragma("secure_delete", False)
    careless.execute("CREATE TABLE x (y); INSERT INTO x SELECT content FROM entries; DROP TABLE x")
    careless.close()
    async with SQLiteStorage(path) as storage:
        size = path.stat().st_size
        ballast.write_bytes(bytes(shutil.disk_usage(small_disk).free - 300_000))
        if verify:
            erased = await erase_entries(storage, context, receipt.ids, verify=True)
            assert any(f"{path} could not be rewritten" in what for what in erased.residue)
            assert any("at byte" in what for what in erased.residue)
            assert not erased.verified
        else:
            with pytest.raises(StorageFullError, match=f"{path} could not be rewritten") as told:
                await erase_entries(storage, context, receipt.ids, rewrite=True)
            assert told.value.retryable
        left = {file.name: file.stat().st_size for file in small_disk.iterdir()}
        assert (left["a.db"], left["a.db-wal"], len(left)) == (size, 0, 4), "of the new file nothing is left"
        assert await storage.integrity() == []
        assert (await storage.read(context))[0].content == "", "erased all the same"
        ballast.unlink()
        again = await erase_entries(storage, context, receipt.ids, verify=True, rewrite=True)
        assert (again.residue, again.rewritten) == ((), ("a.db",))
        assert path.stat().st_size < size
        assert secret.encode() not in path.read_bytes()
        await append_keys(storage, context, "works")
        assert await storage.integrity() == []


async def test_T19_a_fault_at_the_nth_write_of_a_vacuum_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with FaultyVFS() as vfs:
        async with SQLiteStorage(path) as storage:
            (context,) = await shared_contexts(storage, 1)
            await append_concurrently(storage, context, [str(n) for n in range(20)])
            erased = await erase_context(storage, context)
            failed = 0
            for nth in range(1, 2_000, 7):
                vfs.arm({"write"}, nth, make_failure(apsw.FullError), times=None)
                try:
                    await erase_context(storage, context, rewrite=True)
                except StorageError as error:
                    failed += 1
                    assert str(path) in str(error)
                    assert type(error) in (StorageFullError, StorageBusyError)
                if not vfs.disarm():
                    break
                assert await storage.integrity() == []
            else:
                pytest.fail("the vacuum never came to an end")
            assert failed > 3
            again = await erase_context(storage, context, verify=True, rewrite=True)
            assert (again.ids, again.residue) == (erased.ids, ())


# ── one refused operation among many ────────────────────────────────────────────────────────────────────────────────


def _stale_append(context: str) -> Append:
    return replace(append_of_keys(context, ["bad"]), expect=Expect(last_message="m_nobody_1_000000"))


def _constraint_append(context: str) -> Append:
    return replace(
        append_of_keys(context, ["bad"]), drafts=(replace(draft_of_key("bad"), episode=cast(int, None)),)
    )


def _unwritable_append(context: str) -> Append:
    return replace(
        append_of_keys(context, ["bad"]),
        drafts=(draft_of_key("fine"), replace(draft_of_key("bad"), metadata={"a": object()})),
    )


def _surrogate_append(context: str) -> Append:
    return replace(
        append_of_keys(context, ["bad"]),
        drafts=(draft_of_key("fine"), replace(draft_of_key("bad"), content="\ud800")),
    )


def _huge_append(context: str) -> Append:
    return replace(
        append_of_keys(context, ["bad"]),
        drafts=(draft_of_key("fine"), replace(draft_of_key("bad"), tokens=2**70)),
    )


def _unknown_append(context: str) -> Append:
    return append_of_keys("c_0000000000000000", ["bad"])


@pytest.mark.parametrize(
    ("bad", "expected"),
    [
        (_stale_append, ConflictError),
        (_constraint_append, ConflictError),
        (_unwritable_append, ACMSError),
        (_surrogate_append, ACMSError),
        (_huge_append, ACMSError),
        (_unknown_append, ACMSError),
    ],
    ids=["stale", "constraint", "unwritable", "surrogate", "huge", "unknown-context"],
)
@pytest.mark.parametrize("place", [0, 25, 49])
async def test_T05_a_refused_operation_never_takes_its_neighbours(
    tmp_path: Path, bad: Callable[[str], Append], expected: type[ACMSError], place: int
) -> None:
    storage = SQLiteStorage(tmp_path / "a.db")
    (context,) = await shared_contexts(storage, 1)
    ops = [append_of_keys(context, [f"{n}"]) for n in range(TOGETHER)]
    ops[place] = bad(context)
    in_one_call = await storage.append(ops)
    ops = [append_of_keys(context, [f"again-{n}"]) for n in range(TOGETHER)]
    ops[place] = bad(context)
    each = await asyncio.gather(*(storage.append([each]) for each in ops))
    for results in (in_one_call, [result for (result,) in each]):
        assert isinstance(results[place], expected)
        assert [n for n, result in enumerate(results) if not isinstance(result, Receipt)] == [place]
    stored = await keys_of(storage, context)
    assert len(stored) == 2 * (TOGETHER - 1)
    assert not {"bad", "fine"} & set(stored)
    (alone,) = await storage.append([bad(context)])
    assert isinstance(alone, expected)
    await append_keys(storage, context, "after")
    await assert_store_sound(storage)
    await storage.aclose()


async def test_T19_no_answer_before_the_commit_is_on_the_disk(tmp_path: Path) -> None:
    """Every answer must come after the sync of the commit that holds it."""
    with FaultyVFS() as vfs:
        storage = SQLiteStorage(tmp_path / "a.db")
        (context,) = await shared_contexts(storage, 1)
        for n in range(20):
            before = vfs.calls["sync"]
            await append_keys(storage, context, f"{n}")
            assert vfs.calls["sync"] > before
        await storage.aclose()


async def test_T19_creating_a_context_fails_and_works_like_an_append(tmp_path: Path) -> None:
    with FaultyVFS() as vfs:
        storage = SQLiteStorage(tmp_path / "a.db")
        await shared_contexts(storage, 1)
        vfs.arm({"write -wal"}, 1, make_failure(apsw.FullError), times=None)
        wanted: Any = ContextDraft(key="new", counter="chars", created_at=NOW)
        with pytest.raises(StorageFullError):
            await storage.create(wanted)
        vfs.disarm()
        context = await storage.create(wanted)
        await append_keys(storage, context.id, "works")
        await assert_store_sound(storage)
        await storage.aclose()
