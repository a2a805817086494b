"""T06 and the life of a handle: cancelled calls, forked processes, several event loops, nothing left behind."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import sys
import threading
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from acms import ACMS, ACMSError, ConflictError, open_storage
from acms.errors import HandleError
from acms.model import ContextDraft, ContextQuery, Expect, Receipt
from acms.storage import SQLiteStorage

from ._process import finish_process, start_python
from ._work import append_keys, append_of_keys, assert_store_sound, shared_contexts, sound_file

# ── T06: cancelled at every step ────────────────────────────────────────────────────────────────────────────────────


async def cancel_after(storage: SQLiteStorage, context: str, keys: list[str], steps: int) -> bool:
    """Start an append and cancel it after some steps of the loop; return whether it had been answered by then."""
    task = asyncio.create_task(storage.append([append_of_keys(context, keys)]))
    for _ in range(steps):
        await asyncio.sleep(0)  # one step of the loop
    task.cancel()
    try:
        await task
    except asyncio.CancelledError:
        return False
    return True


async def all_or_nothing(storage: SQLiteStorage, context: str, keys: list[str]) -> bool:
    """Assert that an append is there in full or not at all, and that a retry makes it one row a key."""
    # The writer works in the order of its queue: what was handed over before this has been decided after it.
    await append_keys(storage, context, f"barrier {keys[0]}")
    before = [entry for entry in await storage.read(context) if entry.key in keys]
    assert len(before) in (0, len(keys))
    (result,) = await storage.append([append_of_keys(context, keys)])
    assert isinstance(result, Receipt)
    assert result.repeated is bool(before)
    if before:
        assert result.ids == tuple(entry.id for entry in before)
        assert result.versions == (before[0].version, before[-1].version)
    after = [entry for entry in await storage.read(context) if entry.key in keys]
    assert [entry.id for entry in after] == list(result.ids)
    return bool(before)


def kill_steps() -> list[int]:
    """Every step at first, then fewer: a commit takes the writer thread thousands of idle steps of the loop."""
    return [*range(40), *(2**n for n in range(6, 20))]


@pytest.mark.parametrize("opened", [True, False], ids=["open-handle", "unopened-handle"])
async def test_T06_an_append_cancelled_at_any_step_is_there_in_full_or_not_at_all(
    tmp_path: Path, opened: bool
) -> None:
    path = tmp_path / "a.db"
    storage = SQLiteStorage(path)
    (context,) = await shared_contexts(storage, 1)
    stored: list[bool] = []
    for count in kill_steps():
        if not opened:
            await storage.aclose()
        keys = [f"{count}-{n}" for n in range(3)]
        answered = await cancel_after(storage, context, keys, count)
        stored.append(await all_or_nothing(storage, context, keys))
        if answered:
            assert stored[-1]
            break
    else:
        pytest.fail("the append was never answered")
    assert not stored[0]  # cancelled before it began
    await assert_store_sound(storage)
    await storage.aclose()
    await sound_file(path)


async def test_T06_an_append_cancelled_at_each_of_its_awaits_driven_by_hand(tmp_path: Path) -> None:
    """The same without chance: the coroutine is resumed await by await, and the n-th one is where it is cancelled."""
    path = tmp_path / "a.db"
    storage = SQLiteStorage(path)
    (context,) = await shared_contexts(storage, 1)
    for opened in (True, False):
        for nth in range(10):
            if not opened:
                await storage.aclose()
            keys = [f"{opened}-{nth}-{n}" for n in range(3)]
            coroutine = storage.append([append_of_keys(context, keys)]).__await__()
            awaits = 0
            try:
                waiting = coroutine.send(None)
                while awaits < nth:
                    awaits += 1
                    await asyncio.wait([waiting])
                    waiting._asyncio_future_blocking = False
                    waiting = coroutine.send(None)
                with pytest.raises(asyncio.CancelledError):
                    coroutine.throw(asyncio.CancelledError())
            except StopIteration:
                break
            finally:
                coroutine.close()
            await all_or_nothing(storage, context, keys)
        assert awaits == nth
        assert nth >= (1 if opened else 2)
    await assert_store_sound(storage)
    await storage.aclose()


async def test_T06_a_cancelled_call_does_not_disturb_those_it_shares_a_commit_with(tmp_path: Path) -> None:
    storage = SQLiteStorage(tmp_path / "a.db")
    (context,) = await shared_contexts(storage, 1)
    for round in range(20):
        tasks = [
            asyncio.create_task(storage.append([append_of_keys(context, [f"{round}-{n}"])]))
            for n in range(30)
        ]
        for _ in range(round % 5):
            await asyncio.sleep(0)
        for task in tasks[::2]:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(result, list) and isinstance(result[0], Receipt) for result in results[1::2])
    found = await assert_store_sound(storage)
    assert {f"{r}-{n}" for r in range(20) for n in range(1, 30, 2)} <= {entry.key for entry in found[context]}
    await storage.aclose()


async def test_T06_a_cancelled_opening_can_be_repeated(tmp_path: Path) -> None:
    for count in range(12):
        storage = SQLiteStorage(tmp_path / f"{count}.db")
        task = asyncio.create_task(shared_contexts(storage, 1))
        for _ in range(count):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        (context,) = await shared_contexts(storage, 1)
        assert (await append_keys(storage, context, "works")).versions == (1, 1)
        await storage.aclose()
        await storage.aclose()


async def test_T06_a_cancelled_close_leaves_nothing_open(tmp_path: Path) -> None:
    for count in range(6):
        path = tmp_path / f"{count}.db"
        storage = SQLiteStorage(path)
        (context,) = await shared_contexts(storage, 1)
        await append_keys(storage, context, "kept")
        task = asyncio.create_task(storage.aclose())
        for _ in range(count):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert [entry.key for entry in await storage.read(context)] == ["kept"]
        await storage.aclose()
        await sound_file(path)


# ── closing ─────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_T06_closing_is_idempotent_and_a_later_call_opens_again(tmp_path: Path) -> None:
    storage = SQLiteStorage(tmp_path / "a.db")
    await storage.aclose()
    (context,) = await shared_contexts(storage, 1)
    await asyncio.gather(storage.aclose(), storage.aclose(), storage.aclose())
    await append_keys(storage, context, "again")
    await storage.aclose()
    await storage.aclose()
    assert [file.name for file in tmp_path.iterdir()] == ["a.db"]


@pytest.mark.parametrize("opened", [True, False], ids=["open-handle", "unopened-handle"])
async def test_T06_calls_around_a_close_are_all_answered(tmp_path: Path, opened: bool) -> None:
    """A call that meets a closing handle is answered before the close or opens the store again; it never hangs."""
    storage = SQLiteStorage(tmp_path / "a.db")
    (context,) = await shared_contexts(storage, 1)
    for round in range(10):
        if not opened:
            await storage.aclose()
        first = [append_keys(storage, context, f"{round}-a{n}") for n in range(3)]
        second = [append_keys(storage, context, f"{round}-b{n}") for n in range(3)]
        reads = [storage.read(context) for _ in range(3)]
        async with asyncio.timeout(300):
            await asyncio.gather(*first, storage.aclose(), *second, *reads)
    await assert_store_sound(storage)
    assert (await storage.head(context)).version == 60
    await storage.aclose()


async def test_T03_two_handles_on_one_file_never_decide_from_an_old_head(tmp_path: Path) -> None:
    """Each handle may remember the head it left; an expectation is held against the head as it is."""
    handles = [SQLiteStorage(tmp_path / "a.db") for _ in range(2)]
    (context,) = await shared_contexts(handles[0], 1)
    last: str | None = None
    for n in range(60):
        storage = handles[n * n % 7 % 2]  # each writes once or several times in a row
        right = replace(
            append_of_keys(context, [f"{n}"]),
            expect=Expect(last_message=last, rewrites=0),
            tail={"newest": f"{n}"},
        )
        wrong = replace(
            right,
            drafts=append_of_keys(context, [f"wrong-{n}"]).drafts,
            expect=Expect(last_message="m_x_1_x"),
        )
        # A refusal makes a handle forget, so most rounds have none.
        for ops in ([wrong, right], [wrong]) if n % 8 == 7 else ([right],):
            *_, result = await storage.append(ops)
            if ops[-1] is right:
                assert isinstance(result, Receipt)
                assert result.versions == (n + 1, n + 1)
                last = result.ids[-1]
            else:
                assert isinstance(result, ConflictError)
                assert str(last) in str(result)
    assert len(await handles[0].read(context)) == 60
    assert [(await handle.head(context)).tail for handle in handles] == [{"newest": "59"}] * 2
    for handle in handles:
        await handle.aclose()


def open_files(folder: Path) -> list[str]:
    """Return the files of a folder that this process has open; other tests of the process open theirs elsewhere."""
    gc.collect()
    found: list[str] = []
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the one that lists them
            found.append(os.readlink(descriptor))
    return [name for name in found if name.startswith(str(folder))]


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="counts open files in /proc")
def test_T06_fifty_handles_leave_no_file_and_no_thread_behind(tmp_path: Path) -> None:
    async def once(n: int) -> None:
        storage = SQLiteStorage(tmp_path / "a.db", read_only=n % 5 == 4)
        if not storage.read_only:
            (context,) = await shared_contexts(storage, 1)
            await append_keys(storage, context, f"{n}")
        await storage.context("shared-0")
        assert await storage.integrity() == []
        await storage.aclose()
        broken = SQLiteStorage(tmp_path / "no" / "a.db")
        with pytest.raises(ACMSError):
            await broken.context("shared-0")
        await broken.aclose()

    asyncio.run(once(0))
    threads, descriptors = threading.active_count(), len(os.listdir("/proc/self/fd"))
    for n in range(1, 51):
        asyncio.run(once(n))
    assert open_files(tmp_path) == []
    assert threading.active_count() <= threads
    assert len(os.listdir("/proc/self/fd")) < descriptors + 50  # not one a handle


# ── event loops ─────────────────────────────────────────────────────────────────────────────────────────────────────


def writer_threads() -> set[threading.Thread]:
    """Return the writer threads that run: those of other tests may be among them."""
    return {thread for thread in threading.enumerate() if thread.name == "acms-writer"}


def test_T06_two_event_loops_take_turns_on_one_handle(tmp_path: Path) -> None:
    others = writer_threads()
    storage = SQLiteStorage(tmp_path / "a.db")
    first, second = asyncio.new_event_loop(), asyncio.new_event_loop()
    (context,) = first.run_until_complete(shared_contexts(storage, 1))
    for number, loop in enumerate((second, first, second, first)):
        loop.run_until_complete(append_keys(storage, context, f"{number}"))
        assert loop.run_until_complete(storage.head(context)).version == number + 1
    first.run_until_complete(first.shutdown_default_executor())
    first.close()
    second.run_until_complete(
        append_keys(storage, context, "4")
    )  # what the first left behind is in nobody's way
    found = second.run_until_complete(assert_store_sound(storage))
    assert [entry.key for entry in found[context]] == ["0", "1", "2", "3", "4"]
    second.run_until_complete(storage.aclose())
    second.run_until_complete(second.shutdown_default_executor())
    second.close()
    assert writer_threads() <= others


def test_T06_threads_with_an_event_loop_each_share_a_handle_that_one_of_them_closes_again_and_again(
    tmp_path: Path,
) -> None:
    others = writer_threads()
    storage = SQLiteStorage(tmp_path / "a.db")
    start = threading.Barrier(4)
    ended = threading.Event()
    failed: list[BaseException] = []

    def run(key: str) -> None:
        async def use() -> None:
            start.wait()
            (context,) = await shared_contexts(storage, 1)
            for number in range(10):
                await asyncio.gather(*[append_keys(storage, context, f"{key}{number}{n}") for n in range(5)])
                assert await storage.read(context)

        try:
            asyncio.run(use())
        except BaseException as error:
            failed.append(error)

    def close() -> None:
        async def again() -> None:
            while not ended.is_set():
                await storage.aclose()
                await storage.contexts(ContextQuery())

        start.wait()
        try:
            asyncio.run(again())
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=run, args=(key,)) for key in ("a", "b", "c")]
    closing = threading.Thread(target=close)
    for thread in (*threads, closing):
        thread.start()
    for thread in threads:
        thread.join(60)
    ended.set()
    closing.join(60)
    assert failed == []
    asyncio.run(storage.aclose())
    (entries,) = asyncio.run(sound_file(tmp_path / "a.db")).values()
    wanted = [f"{key}{number}{n}" for key in "abc" for number in range(10) for n in range(5)]
    assert sorted(entry.key or "" for entry in entries) == wanted
    assert writer_threads() <= others


def test_T06_a_handle_works_again_after_its_loop_ended_without_a_close(tmp_path: Path) -> None:
    others = writer_threads()
    storage = SQLiteStorage(tmp_path / "a.db")

    async def use(key: str) -> int:
        (context,) = await shared_contexts(storage, 1)
        await append_keys(storage, context, key)
        return (await storage.head(context)).version

    assert [asyncio.run(use(f"{n}")) for n in range(5)] == [1, 2, 3, 4, 5]
    asyncio.run(storage.aclose())
    assert writer_threads() <= others
    assert [file.name for file in tmp_path.iterdir()] == ["a.db"]


def test_T06_a_loop_that_ended_in_the_middle_of_an_append_leaves_all_or_nothing(tmp_path: Path) -> None:
    storage = SQLiteStorage(tmp_path / "a.db")

    async def begin(context: str, keys: list[str], steps: int) -> None:
        task = asyncio.create_task(storage.append([append_of_keys(context, keys)]))
        for _ in range(steps):
            await asyncio.sleep(0)
        assert task is not None  # asyncio.run cancels what still runs

    async def new() -> str:
        return (await shared_contexts(storage, 1))[0]

    context = asyncio.run(new())
    for steps in range(8):
        keys = [f"{steps}-{n}" for n in range(3)]
        asyncio.run(begin(context, keys, steps))
        asyncio.run(all_or_nothing(storage, context, keys))
    asyncio.run(storage.aclose())
    asyncio.run(sound_file(tmp_path / "a.db"))


# ── fork ────────────────────────────────────────────────────────────────────────────────────────────────────────────

FORK = """
import asyncio, gc, os, sys
from pathlib import Path
from acms.errors import HandleError
from acms.storage.sqlite.store import SQLiteStorage
from tests.faults._work import append_keys, assert_store_sound, shared_contexts

path, what = Path(sys.argv[1]), sys.argv[2]
storage, unopened = SQLiteStorage(path), SQLiteStorage(path)
loop = asyncio.new_event_loop()
if what != "unopened":
    (context,) = loop.run_until_complete(shared_contexts(storage, 1))
    loop.run_until_complete(append_keys(storage, context, "parent before"))
if what == "closed":
    loop.run_until_complete(storage.aclose())
to_child, to_parent = os.pipe(), os.pipe()
child = os.fork()
if child == 0:
    async def use(handle):
        try:
            (context,) = await shared_contexts(handle, 1)
            await append_keys(handle, context, "child")
            return "ok"
        except HandleError as error:
            assert error.options
            return "HandleError"
        finally:
            await handle.aclose()
    answers = [asyncio.run(use(handle)) for handle in (storage, unopened)]
    if what == "parent-closes":
        os.write(to_parent[1], b"x")
        os.read(to_child[0], 1)
        answers.append(asyncio.run(use(SQLiteStorage(path))))
    print(*answers, flush=True)
    del storage, unopened
    gc.collect()  # closes what it can
    os._exit(0)  # not in order: asyncio would take the wake-up out of the epoll that both processes share
if what == "parent-closes":
    os.read(to_parent[0], 1)
    loop.run_until_complete(storage.aclose())
    os.write(to_child[1], b"x")
_, status = os.waitpid(child, 0)
assert os.waitstatus_to_exitcode(status) == 0
(context,) = loop.run_until_complete(shared_contexts(storage, 1))
loop.run_until_complete(append_keys(storage, context, "parent after"))
found = loop.run_until_complete(assert_store_sound(storage))[context]
loop.run_until_complete(storage.aclose())
print(*(entry.key.replace(" ", "-") for entry in found), flush=True)
"""


def run_fork_script(path: Path, what: str) -> tuple[list[str], list[str]]:
    """Run the script above; return what the child was answered, and the keys found afterwards."""
    # Python 3.12 warns of os.fork() beside threads; that is what is tested.
    process = start_python("-W", "ignore", "-c", FORK, str(path), what)
    assert process.stdout is not None
    lines = process.stdout.read().splitlines()
    assert finish_process(process) == 0
    child, parent = (line.split() for line in lines)
    return child, parent


needs_fork = pytest.mark.skipif(not hasattr(os, "fork") or sys.platform == "darwin", reason="forks")


@needs_fork
def test_T06_a_handle_opened_before_a_fork_is_refused_in_the_child(tmp_path: Path) -> None:
    child, parent = run_fork_script(tmp_path / "a.db", "open")
    assert child[0] == "HandleError"
    assert parent == ["parent-before", "parent-after"]


@needs_fork
def test_T06_a_file_that_was_open_during_a_fork_is_refused_in_the_child_by_every_handle(
    tmp_path: Path,
) -> None:
    """SQLite's own notes on who locks the file are inherited and wrong: an acknowledged message would be lost."""
    assert run_fork_script(tmp_path / "a.db", "open") == (
        ["HandleError"] * 2,
        ["parent-before", "parent-after"],
    )


@needs_fork
def test_T06_a_child_never_loses_a_message_because_its_parent_closes(tmp_path: Path) -> None:
    child, parent = run_fork_script(tmp_path / "a.db", "parent-closes")
    assert child == ["HandleError"] * 3
    assert parent == ["parent-before", "parent-after"]


@needs_fork
@pytest.mark.parametrize("what", ["unopened", "closed"])
def test_T06_a_handle_that_was_not_open_during_a_fork_works_in_the_child(tmp_path: Path, what: str) -> None:
    child, parent = run_fork_script(tmp_path / "a.db", what)
    assert child == ["ok", "ok"]
    assert parent == [*(["parent-before"] if what == "closed" else []), "child", "parent-after"]


@pytest.mark.parametrize("change", ["moved", "deleted", "replaced"])
@pytest.mark.skipif(os.name == "nt", reason="Windows does not move an open file")
async def test_nothing_is_acknowledged_once_the_file_has_left_its_path(tmp_path: Path, change: str) -> None:
    path, elsewhere = tmp_path / "a.db", tmp_path / "b.db"
    storage = open_storage(f"sqlite:///{path}")
    session = ACMS("chat", storage, None)
    await session.ingest("user", "stored")
    if change == "deleted":
        path.unlink()
    else:
        for suffix in ("", "-wal", "-shm"):
            path.with_name(path.name + suffix).rename(elsewhere.with_name(elsewhere.name + suffix))
        if change == "replaced":
            path.write_bytes(b"")
    for _ in range(2):
        with pytest.raises(HandleError, match="nothing was written"):
            await session.ingest("user", "lost")
    await storage.aclose()
    if change == "moved":  # put back, the same session goes on
        for suffix in ("", "-wal"):
            elsewhere.with_name(elsewhere.name + suffix).rename(path.with_name(path.name + suffix))
        await session.ingest("user", "later")
        assert [entry.content for entry in await session.entries()] == ["stored", "later"]
    await session.close()
    await storage.aclose()


@pytest.mark.skipif(not Path("/proc/locks").exists(), reason="only Linux says who locks what")
async def test_a_second_handle_leaves_the_locks_of_the_first_alone(tmp_path: Path) -> None:
    """Closing any descriptor of a file drops all locks its process has on it: the next to leave would take the WAL."""

    def locks() -> list[str]:
        end = f":{path.stat().st_ino} "
        lines = Path("/proc/locks").read_text().splitlines()
        return [line.partition(": ")[2] for line in lines if end in line]  # numbered among all of the machine

    path = tmp_path / "log.db"
    draft = ContextDraft(key="a", counter="words", created_at=datetime(2026, 3, 14, tzinfo=UTC))
    async with SQLiteStorage(path) as first:
        await first.create(draft)
        held = locks()
        assert held
        async with SQLiteStorage(path) as second:
            await second.create(draft)
        assert locks() == held


async def test_a_handle_is_closed_for_a_loop_that_stops_before_it_heard_of_it(tmp_path: Path) -> None:
    """A task for it would never begin: it was found pending, when it was collected."""
    storage = SQLiteStorage(tmp_path / "a.db")
    (context,) = await shared_contexts(storage, 1)
    other = asyncio.new_event_loop()
    stop = asyncio.Event()
    read = threading.Event()

    async def stay() -> None:
        await storage.head(context)
        read.set()
        await stop.wait()

    thread = threading.Thread(target=other.run_until_complete, args=(stay(),))
    thread.start()
    await asyncio.to_thread(read.wait)
    other.call_soon_threadsafe(stop.set)
    await storage.aclose()
    await asyncio.to_thread(thread.join)
    other.close()
    gc.collect()
    async with SQLiteStorage(tmp_path / "a.db") as again:
        assert (await again.head(context)).version == 0
