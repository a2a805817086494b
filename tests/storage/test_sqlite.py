import asyncio
import itertools
import os
import pickle
import subprocess
import sys
import threading
from datetime import timedelta
from pathlib import Path

import apsw
import pytest

import acms
from acms import ConflictError, Entry, SessionNotFoundError, State
from acms.branches import export
from acms.errors import CorruptRecordError, LeaseLostError, SchemaVersionError
from acms.log.encoding import genesis_hash, verify_chain
from acms.model import Append, ContextQuery, Derived, Expect, JobDraft, JobQuery, Receipt, Search
from acms.storage import SQLiteStorage
from acms.storage.sql import load_migrations, load_queries
from acms.storage.sqlite.writer import Answer, StoppedError
from acms.testing import run_story, sound
from acms.testing.logs import append_drafts, create_log, draft_fact, draft_message, draft_summary, fork_log
from tests.storage.suite import StorageBackendTests


class TestSQLite(StorageBackendTests):
    takes_clock = True

    @pytest.fixture
    async def store(self, tmp_path, clock):
        async with SQLiteStorage(tmp_path / "a.db", clock=clock) as store:
            yield store

    @pytest.fixture
    async def other_tenant(self, tmp_path, store):
        async with SQLiteStorage(tmp_path / "a.db", tenant="other") as other:
            yield other


def test_the_sqlite_store_and_plain_lists_tell_the_same_story(tmp_path):
    numbers = itertools.count()
    run_story(lambda: SQLiteStorage(tmp_path / f"{next(numbers)}.db"), max_examples=5, steps=35)


@pytest.mark.soak
def test_the_sqlite_store_and_plain_lists_tell_the_same_long_story(tmp_path):
    numbers = itertools.count()
    run_story(lambda: SQLiteStorage(tmp_path / f"{next(numbers)}.db"), max_examples=1000, steps=60)


# ── several handles and processes ───────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
async def store(tmp_path):
    async with SQLiteStorage(tmp_path / "a.db") as store:
        yield store


@pytest.fixture
async def second(tmp_path, store):
    async with SQLiteStorage(tmp_path / "a.db") as second:
        yield second


async def test_what_one_handle_acknowledged_the_other_reads(store, second):
    context = await create_log(store, "a")
    receipt = await append_drafts(store, context, draft_message("a", key="k"), tail={"n": 1})
    assert await second.context("a") == context
    assert await second.head(context.id) == receipt.head
    assert (await append_drafts(second, context, draft_message("a", key="k"))).repeated
    await append_drafts(second, context, draft_message("b"))
    await store.put_derived(context.id, [Derived(version=2, space="s", data=b"x")])
    assert [row.data for row in await second.derived(context.id, "s")] == [b"x"]
    await second.blank(context.id, [1], to=State.ERASED, audit={})
    assert [entry.content for entry in await sound(store, context.id)] == ["", "b"]


async def test_a_query_is_planned_once_whatever_it_asks_for(tmp_path, monkeypatch):
    planned = []

    def watch(connection):  # an authorizer is asked while a query is planned
        connection.authorizer = lambda *what: planned.append(what) or apsw.SQLITE_OK

    monkeypatch.setattr(apsw, "connection_hooks", [*apsw.connection_hooks, watch])
    async with SQLiteStorage(tmp_path / "a.db") as store:
        contexts = [await create_log(store, key) for key in ("a", "b", "c")]
        planned.clear()
        await store.head(contexts[0].id)
        assert planned
        planned.clear()
        for context in contexts:
            assert (await store.head(context.id)).context == context.id
        assert planned == []


async def test_two_handles_that_write_in_turns_agree_on_every_head(store, second):
    context = await create_log(store)
    child = await fork_log(store, context)
    for n in range(20):
        writer, reader = (store, second) if n % 3 else (second, store)
        if n % 5 == 4:
            await writer.blank(context.id, [n // 2], to=State.ERASED, audit={})
        if n % 4 == 3:
            await writer.put_derived(context.id, [Derived(version=1 + n // 2, space="s", data=b"x")])
        draft = draft_summary(1, 1) if n % 7 == 6 else draft_message(str(n))
        receipt = await append_drafts(writer, context, draft, tail={"n": n})
        assert receipt.head == await reader.head(context.id) == await writer.head(context.id)
        await append_drafts(reader, child, draft_message(str(n)), tail={"n": n})
        await sound(reader, context.id)
        await sound(writer, child.id)


async def test_a_tail_that_another_handle_changed_is_not_undone(store, second):
    context = await create_log(store)
    await append_drafts(store, context, draft_message("a"), tail={"of": "the first handle"})
    await append_drafts(second, context, tail={"of": "the second handle"})
    receipt = await append_drafts(store, context, draft_message("b"))
    assert receipt.head.tail == {"of": "the second handle"}
    assert (await second.head(context.id)).tail == {"of": "the second handle"}


async def test_a_refused_append_leaves_the_next_one_on_the_right_head(store, second):
    context = await create_log(store)
    await append_drafts(store, context, draft_message("a"), tail={}, jobs=(JobDraft(kind="k", dedupe="d"),))
    (stale,) = await second.claim(["k"], lease=timedelta(0))
    await second.claim(["k"], lease=timedelta(0))
    for n in range(3):
        with pytest.raises(LeaseLostError):
            await append_drafts(store, context, draft_message("late", key=f"late {n}"), tail={}, finish=stale)
        await append_drafts(store, context, draft_message(str(n), key=f"late {n}"), tail={})
    assert [entry.content for entry in await sound(second, context.id)] == ["a", "0", "1", "2"]


async def test_logs_that_others_changed_do_not_take_along_those_written_with_them(store, second):
    contexts = [await create_log(store) for _ in range(8)]
    for context in contexts:
        await append_drafts(store, context, draft_message("a"), tail={"n": 0})

    async def all_at_once(text: str, expected: int) -> list[object]:
        ops = [
            Append(
                context=one.id, drafts=(draft_message(text),), tail={"n": 1}, expect=Expect(version=expected)
            )
            for one in contexts
        ]
        return await store.append(ops)

    for result in await all_at_once("b", 1):
        assert isinstance(result, Receipt)
    moved, deleted = contexts[2], contexts[5]
    await append_drafts(second, moved, draft_message("theirs"), tail={"n": 2})
    await second.settings(deleted.id, {"deleted": True}, rev=0)
    found = await all_at_once("c", 2)
    assert isinstance(found.pop(5), SessionNotFoundError)
    assert isinstance(found.pop(2), ConflictError)
    others = [one for one in contexts if one not in (moved, deleted)]
    for context, receipt in zip(others, found, strict=True):
        assert receipt.head == await second.head(context.id)
        assert [entry.content for entry in await sound(second, context.id)] == ["a", "b", "c"]
    assert [entry.content for entry in await sound(store, moved.id)] == ["a", "b", "theirs"]


async def test_two_appends_to_one_log_in_one_call_follow_each_other(store, second):
    context = await create_log(store)
    await append_drafts(store, context, draft_message("a"), tail={"n": 0})
    found = await store.append(
        [
            Append(context=context.id, drafts=(draft_message(text),), tail={"n": n})
            for n, text in enumerate("bc", 1)
        ]
    )
    assert [receipt.versions for receipt in found] == [(2, 2), (3, 3)]
    assert found[1].head == await second.head(context.id)
    assert [entry.content for entry in await sound(second, context.id)] == ["a", "b", "c"]


async def test_rows_computed_for_a_head_that_moved_are_computed_again(store, second):
    context = await create_log(store)
    await append_drafts(store, context, draft_message("a"), tail={})
    await append_drafts(second, context, draft_message("b"), tail={})
    receipt = await append_drafts(store, context, draft_message("c"), tail={"n": 1})
    assert receipt.versions == (3, 3)
    assert receipt.head == await second.head(context.id)
    assert [entry.content for entry in await sound(second, context.id)] == ["a", "b", "c"]


# ── the answer of the writer ────────────────────────────────────────────────────────────────────────────────────────


async def await_into(answer, seen):
    try:
        seen.append(await answer)
    except asyncio.CancelledError:
        seen.append("cancelled")
        raise


async def test_an_answer_resumes_its_task_before_it_returns():
    answer, seen = Answer(), []
    task = asyncio.create_task(await_into(answer, seen))
    await asyncio.sleep(0)
    asyncio.get_running_loop().call_soon(lambda: (answer.answer([1]), seen.append("returned")))
    await task
    assert seen == [[1], "returned"]
    assert answer.result() == [1]


async def test_an_answer_that_comes_after_a_cancellation_changes_nothing():
    answer, seen = Answer(), []
    task = asyncio.create_task(await_into(answer, seen))
    await asyncio.sleep(0)
    task.cancel()
    answer.answer([1])
    with pytest.raises(asyncio.CancelledError):
        await task
    assert seen == ["cancelled"]
    assert answer.cancelled()


async def test_a_cancellation_that_comes_after_the_answer_is_of_what_the_task_does_next():
    answer, seen = Answer(), []

    async def go_on():
        await await_into(answer, seen)
        await asyncio.sleep(60)

    task = asyncio.create_task(go_on())
    await asyncio.sleep(0)
    asyncio.get_running_loop().call_soon(answer.answer, [1])
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert seen == [[1]]


async def test_everybody_who_waits_for_an_answer_gets_it_once_and_who_left_does_not():
    answer, seen, left = Answer(), [], []
    tasks = [asyncio.create_task(await_into(answer, seen)) for _ in range(3)]
    await asyncio.sleep(0)
    answer.add_done_callback(left.append)
    answer.remove_done_callback(left.append)
    asyncio.get_running_loop().call_soon(answer.answer, [1])
    await asyncio.gather(*tasks)
    answer.answer([2])
    assert seen == [[1]] * 3
    assert left == []
    assert answer.result() == [1]


async def test_an_answer_nobody_waits_for_yet_is_kept():
    answer = Answer()
    answer.answer([1])
    assert await answer == [1]


class _WithoutReaders(asyncio.SelectorEventLoop):
    """A loop that watches no file descriptors for others, like the default one of Windows."""

    def add_reader(self, fd, callback, *args):
        raise NotImplementedError


@pytest.mark.parametrize(
    ("loop_factory", "eventfd"),
    [(asyncio.SelectorEventLoop, True), (_WithoutReaders, True), (asyncio.SelectorEventLoop, False)],
)
def test_callers_on_any_event_loop_are_answered(tmp_path, loop_factory, eventfd, monkeypatch):
    if not eventfd:  # as outside of Linux
        monkeypatch.delattr(os, "eventfd", raising=False)

    async def talk():
        async with SQLiteStorage(tmp_path / "a.db") as store:
            context = await create_log(store)
            for number in range(3):
                assert await append_drafts(store, context, draft_message(f"alone {number}"))
            await asyncio.gather(
                *[append_drafts(store, context, draft_message(f"together {number}")) for number in range(9)]
            )
            return (await store.head(context.id)).version

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        assert runner.run(talk()) == 12


async def test_what_is_committed_while_the_handle_closes_is_answered(tmp_path):
    store = SQLiteStorage(tmp_path / "a.db")
    context = await create_log(store)
    late = [
        asyncio.create_task(append_drafts(store, context, draft_message(f"late {number}")))
        for number in range(3)
    ]
    await asyncio.sleep(0)  # they are with the writer now
    await store.aclose()
    assert len({receipt.versions for receipt in await asyncio.gather(*late)}) == 3
    await store.aclose()


async def test_a_large_read_that_waits_while_the_handle_closes_reads_the_file_that_is_opened_again(tmp_path):
    file = SQLiteStorage(tmp_path / "a.db")._file
    begun, go_on = threading.Event(), threading.Event()

    def slow(_):
        begun.set()
        return go_on.wait(60)

    port = await file.open()
    first = asyncio.create_task(file.read(slow, large=True))
    assert await asyncio.to_thread(begun.wait, 60)
    second = asyncio.create_task(file.read(lambda reader: reader.execute("SELECT 1").fetchall(), large=True))
    closing = asyncio.create_task(file.aclose())
    while port._ended is None:  # it closes behind the read that is under way
        await asyncio.sleep(0.001)
    go_on.set()
    assert await first
    assert await second == [(1,)]
    await closing
    assert (port.closed, file.is_open) == (True, True)
    await file.aclose()


async def test_what_waits_to_be_written_while_another_thread_closes_the_handle_is_written(tmp_path):
    store = SQLiteStorage(tmp_path / "a.db")
    file = store._file
    queue = (await file.open()).queue
    begun, go_on = threading.Event(), threading.Event()

    def slow(_):
        begun.set()
        go_on.wait(60)

    def close():
        asyncio.run(store.aclose())

    closer = threading.Thread(target=close)

    async def create(number):
        await create_log(store, f"{number} first")
        if number == 2:  # the last of those that were answered at once: the others have posted again
            closer.start()
            queue.thread.join(60)
        await create_log(store, f"{number} second")

    writing = asyncio.create_task(file.write(slow))
    assert await asyncio.to_thread(begun.wait, 60)
    tasks = [asyncio.create_task(create(number)) for number in range(3)]
    await asyncio.sleep(0)  # all three wait for the next commit
    go_on.set()
    await asyncio.gather(writing, *tasks)
    await asyncio.to_thread(closer.join)
    found = (await store.contexts(ContextQuery())).items
    assert {one.key for one in found} == {f"{n} {which}" for n in range(3) for which in ("first", "second")}
    await store.aclose()


async def test_a_writer_that_has_ended_takes_nothing_more(tmp_path):
    file = SQLiteStorage(tmp_path / "a.db")._file
    port = await file.open()
    port.queue.stop()
    with pytest.raises(StoppedError):
        port.post(port.queue, [lambda writer: pytest.fail("nobody is there to do it")])
    await file.aclose()


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="needs /proc")
async def test_a_closed_handle_gives_its_file_descriptors_back(tmp_path):
    async def once():
        async with SQLiteStorage(tmp_path / "a.db") as store:
            await store.contexts(ContextQuery())

    await once()  # the loop has its threads now
    before = set(os.listdir("/proc/self/fd"))
    await once()
    assert set(os.listdir("/proc/self/fd")) <= before


async def test_writers_on_two_handles_share_one_order(store, second):
    context = await create_log(store)

    async def write(handle, name):
        return [
            await append_drafts(handle, context, draft_message(f"{name}.{n}"), draft_fact("a fact"))
            for n in range(15)
        ]

    names = [
        (handle, f"{number}.{task}") for number, handle in enumerate((store, second)) for task in range(4)
    ]
    receipts = await asyncio.gather(*[write(handle, name) for handle, name in names])
    entries = await sound(store, context.id)
    assert entries == await sound(second, context.id)
    assert len(entries) == 2 * 15 * len(names)
    acknowledged = {receipt.versions[0]: receipt.ids for some in receipts for receipt in some}
    assert {entry.batch: (entry.id, entries[entry.version].id) for entry in entries[::2]} == acknowledged


_CREATOR = """
import asyncio, sys
from acms.storage import SQLiteStorage
from acms.testing.logs import append_drafts, create_log, draft_message

async def main():
    async with SQLiteStorage(sys.argv[1]) as store:
        print("ready", flush=True)
        sys.stdin.readline()
        for n in range(10):
            context = await create_log(store, f"shared {n}")
            await append_drafts(store, context, draft_message("hello", key="0"), draft_message("welcome", key="1"))
            print(context.id, flush=True)

asyncio.run(main())
"""


async def test_t02_four_processes_that_create_one_key_get_one_context(tmp_path):
    path = tmp_path / "a.db"
    env = {**os.environ, "PYTHONPATH": str(Path(acms.__file__).parents[1])}
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", _CREATOR, str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=env,
            text=True,
        )
        for _ in range(4)
    ]
    try:
        for worker in workers:
            assert worker.stdout.readline() == "ready\n"
        for worker in workers:
            worker.stdin.write("go\n")
            worker.stdin.flush()
        answers = [worker.communicate(timeout=60)[0] for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    assert [worker.returncode for worker in workers] == [0] * 4
    assert len(set(answers)) == 1
    async with SQLiteStorage(path) as store:
        contexts = (await store.contexts(ContextQuery())).items
        assert len(contexts) == 10
        for context in contexts:
            assert [entry.content for entry in await sound(store, context.id)] == ["hello", "welcome"]


# ── what someone else wrote into the file ───────────────────────────────────────────────────────────────────────────


def change_file(path, statement, *values):
    """Change the file behind the store's back."""
    connection = apsw.Connection(str(path))
    try:
        connection.execute(statement, values).fetchall()
        assert connection.changes()
    finally:
        connection.close()


class Planted:
    """Pickles to something that imports a module when it is revived."""

    def __reduce__(self):
        return (__import__, ("acms_planted",))


_imported: list[str] = []


@pytest.fixture
def imports(tmp_path, monkeypatch):
    """Return the names of the modules that are imported from now on; `acms_planted` could be."""
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "acms_planted.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path / "modules")
    names: list[str] = []
    monkeypatch.setattr(sys.modules[__name__], "_imported", names)
    if not _hooked:
        sys.addaudithook(lambda event, args: _imported.append(args[0]) if event == "import" else None)
        _hooked.append(True)
    return names


_hooked: list[bool] = []  # an audit hook stays for ever, so there is one

PLANTED = [
    pickle.dumps(Planted()),
    pickle.dumps(Planted()).hex(),
    '{"lc": 2, "type": "constructor", "id": ["acms_planted", "X"], "kwargs": {}}',
    '[{"lc": 2, "type": "constructor", "id": ["acms_planted", "X"], "kwargs": {}}]',
    '{"py/object": "acms_planted.X", "py/reduce": [{"py/function": "builtins.eval"}, ["1"]]}',
    "!!python/object/apply:os.system ['true']",
    '{"n": ' + "9" * 5000 + "}",
    '{"n": 1e999}',
    "[" * 5000 + "]" * 5000,
    "[1, 2",
    '"text"',
    "null",
    "\x00\x01",
    2**62,
    -(2**62),
    1.5,
]


def is_plain_data(value):
    """Return whether a value is nothing but data."""
    if isinstance(value, dict):
        return all(isinstance(key, str) and is_plain_data(item) for key, item in value.items())
    if isinstance(value, list):
        return all(map(is_plain_data, value))
    return value is None or type(value) in (str, int, float, bool)


async def test_t44_a_planted_entry_is_plain_data_or_corrupt(store, tmp_path, imports):
    path = tmp_path / "a.db"
    context = await create_log(store)
    await append_drafts(
        store, context, draft_message("a"), draft_message("b", metadata={"x": 1}), draft_message("c")
    )
    (good,) = await store.read(context.id, after=1, before=3)
    row = "row & 4294967295 = 2"
    for column in (
        "kind", "nonce", "created_at", "tokens", "total", "origin", "privacy", "role", "markers", "covers", "replaces",
        "sources", "data", "metadata", "state", "parts", "content",
    ):  # fmt: skip
        connection = apsw.Connection(str(path))
        ((before,),) = connection.execute(f"SELECT {column} FROM entries WHERE {row}")  # noqa: S608
        connection.close()
        for value in PLANTED:
            change_file(path, f"UPDATE entries SET {column} = ? WHERE {row}", value)  # noqa: S608
            for ask in (lambda: store.read(context.id), lambda: store.get([good.id])):
                try:
                    found = await ask()
                except CorruptRecordError as error:
                    assert "2" in str(error)
                    assert context.id in str(error)
                    continue
                for entry in found:
                    if entry is not None:
                        check_plain(entry)
            assert len(await store.read(context.id, after=2)) == 1, "its neighbours can be read"
        change_file(path, f"UPDATE entries SET {column} = ? WHERE {row}", before)  # noqa: S608
    assert (await sound(store, context.id))[1] == good
    assert "acms_planted" not in imports
    assert "acms_planted" not in sys.modules


def check_plain(entry: Entry):
    assert isinstance(entry.content, str)
    assert type(entry.tokens) is int
    assert type(entry.total) is int
    assert is_plain_data(dict(entry.data))
    assert is_plain_data(dict(entry.metadata))
    for part in entry.parts:
        assert type(part).__module__ == "acms.model"


async def test_t44_planted_settings_tails_lineages_and_jobs_are_plain_data_or_corrupt(
    store, tmp_path, imports
):
    path = tmp_path / "a.db"
    context = await create_log(store, "a", settings={"name": "A"})
    await append_drafts(
        store,
        context,
        draft_message("a"),
        tail={"n": 1},
        jobs=(JobDraft(kind="k", dedupe="d", payload={"x": 1}),),
    )
    places = {
        "UPDATE contexts SET settings = ?": lambda: store.context("a"),
        "UPDATE contexts SET created_at = ?": lambda: store.contexts(ContextQuery()),
        "UPDATE contexts SET tail = ?": lambda: store.head(context.id),
        "UPDATE contexts SET lineage = ?": lambda: store.read(context.id),
        "UPDATE jobs SET payload = ?": lambda: store.jobs(JobQuery()),
        "UPDATE jobs SET not_before = ?": lambda: store.jobs(JobQuery()),
        "UPDATE jobs SET state = ?": lambda: store.jobs(JobQuery()),
        "UPDATE derived SET data = ?": lambda: store.search(
            Search(namespace="default", space="s", vector=(1.0,))
        ),
    }
    await append_drafts(store, context, draft_fact("b"))
    await store.put_derived(context.id, [Derived(version=2, space="s", data=b"\x00\x00\x80\x3f")])
    for statement, ask in places.items():
        table, column = statement.split()[1], statement.split()[3]
        connection = apsw.Connection(str(path))
        ((before,),) = connection.execute(f"SELECT {column} FROM {table}")  # noqa: S608
        connection.close()
        for value in PLANTED:
            change_file(path, statement, value)
            try:
                found = await ask()
            except CorruptRecordError:
                continue
            if statement.endswith("tail = ?"):
                assert is_plain_data(dict(found.tail))
            if statement.endswith("settings = ?"):
                assert is_plain_data(dict(found.settings))
        change_file(path, statement, before)
        await ask()
    assert "acms_planted" not in imports
    await sound(store, context.id)


async def test_t44_a_planted_record_is_plain_data_or_corrupt(store, tmp_path, imports):
    path = tmp_path / "a.db"
    context = await create_log(store)
    good = await store.put_record(context.id, "a", {"n": 1}, rev=0)
    for column, before in (("data", '{"n":1}'), ("rev", 1)):
        for value in [*PLANTED, 0, b'{"n":1}']:
            change_file(path, f"UPDATE records SET {column} = ?", value)  # noqa: S608
            try:
                found = await store.record(context.id, "a")
            except CorruptRecordError as error:
                assert context.id in str(error) or "a.db" in str(error)
                continue
            assert found is not None
            assert is_plain_data(dict(found.data))
            assert type(found.rev) is int
            assert found.rev > 0
        change_file(path, f"UPDATE records SET {column} = ?", before)  # noqa: S608
    assert await store.record(context.id, "a") == good
    assert "acms_planted" not in imports


async def test_what_an_erased_record_said_is_nowhere_in_the_file(store):
    context = await create_log(store)
    (id,) = (await append_drafts(store, context, draft_message("a"))).ids
    await store.put_record(context.id, "a", {"shown": "on the blackboard of room 12"}, rev=0)
    assert await store.residue([], [b"on the blackboard of room 12"]) == [], "a record says it still"
    await store.blank(context.id, [1], to=State.ERASED, audit={})
    assert await store.residue([id], [b"on the blackboard of room 12"]) == []
    assert b"blackboard" not in store.path.read_bytes()


async def test_t45_one_flipped_byte_in_the_file_is_found_and_located(store, tmp_path):
    path = tmp_path / "a.db"
    root = await create_log(store)
    await append_drafts(
        store, root, draft_message("a"), draft_message("the price is 100"), draft_message("c")
    )
    child = await fork_log(store, root)
    await append_drafts(store, child, draft_message("d"))
    flip = "UPDATE entries SET content = replace(content, '100', '900') WHERE row & 4294967295 = 2"
    change_file(path, flip)
    for context in (root, child):
        entries = await store.read(context.id)
        problems = list(verify_chain(entries, head=genesis_hash(root.id), version=0))
        assert [version for version, _ in problems] == [2]
        found = await export.verify(store, await store.context(context.id))
        assert {(problem.context, problem.version) for problem in found} == {(context.id, 2)}


# ── a file of an earlier release ────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
async def earlier(tmp_path):
    """A file of schema 1: a root, a fork and its fork with rows that each counted for itself, and a log apart."""
    path = tmp_path / "a.db"
    async with SQLiteStorage(path) as store:
        root, apart = await create_log(store, "root"), await create_log(store, "apart")
        await append_drafts(store, root, draft_message("a"), draft_message("b"), draft_message("c"))
        await append_drafts(store, apart, draft_message("x"))
        child = await fork_log(store, root, 2, key="child")
        await append_drafts(store, child, draft_message("d"))
        grandchild = await fork_log(store, child, key="grandchild")
        await append_drafts(store, grandchild, draft_message("e"))
        for context, versions in ((root, (1, 2)), (child, (3,)), (grandchild, (4,)), (apart, (1,))):
            rows = [Derived(version=n, space="s", data=b"old") for n in versions]
            await store.put_derived(context.id, rows)
    connection = apsw.Connection(str(path))
    connection.execute("UPDATE derived SET seq = CASE version WHEN 2 THEN 2 ELSE 1 END")
    connection.execute(
        "UPDATE contexts SET derived = (SELECT count(*) FROM derived d WHERE d.ref = contexts.ref)"
    )
    connection.execute("UPDATE contexts SET derived = 7 WHERE key = 'grandchild'")  # rows that were replaced
    connection.execute("DROP TABLE kv; DROP TABLE records")
    connection.execute("DELETE FROM migrations WHERE version > 1; PRAGMA user_version = 1")
    connection.close()
    return path


async def test_the_counters_of_an_earlier_file_become_one_per_tree(earlier):
    with pytest.raises(SchemaVersionError):
        async with SQLiteStorage(earlier, read_only=True):
            pass
    async with SQLiteStorage(earlier) as store:
        tree = [await store.context(key) for key in ("root", "child", "grandchild")]
        apart = await store.context("apart")
        assert [(await store.head(context.id)).derived for context in tree] == [7, 7, 7]
        assert (await store.head(apart.id)).derived == 1
        found = await store.derived(tree[2].id, "s")
        assert sorted(row.version for row in found) == [1, 2, 3, 4], "nothing stored is lost"
        assert [row.seq for row in found] == sorted(row.seq for row in found)
        await store.put_derived(tree[1].id, [Derived(version=1, space="s", data=b"new")])
        for context in tree:
            await sound(store, context.id)
            assert (await store.put_record(context.id, "a", {}, rev=0)).rev == 1
            (row,) = await store.derived(context.id, "s", after=7)
            assert (row.version, row.seq, row.data) == (1, 8, b"new")
            assert (await append_drafts(store, context, draft_message("on"))).head.derived == 8
    async with SQLiteStorage(earlier, read_only=True) as store:
        assert (await store.head(tree[0].id)).derived == 8


async def test_what_an_earlier_file_lacks_is_applied_once_and_named(earlier):
    store = SQLiteStorage(earlier)
    missing = [version for version, _, _ in load_migrations("sqlite")[1:]]
    assert [step.version for step in await store.migrate()] == missing
    assert await store.migrate() == []
    await store.aclose()


async def test_a_list_of_contexts_goes_on_where_its_page_ended(store, tmp_path):
    """SQLite seeks that place: it does not go through all that came before it for every page."""
    await create_log(store, "a")
    connection = apsw.Connection(str(store.path))
    connection.create_scalar_function("holds", lambda settings, where: True)
    values = {"tenant": store.tenant, "namespace": None, "deleted": False, "inner": None, "where": None}
    for name in ("contexts", "sessions"):
        query = f"EXPLAIN QUERY PLAN {load_queries('sqlite')[name]}"
        plan = [row[3] for row in connection.execute(query, {**values, "after": 7, "limit": 3})]
        assert plan[0] == "SEARCH c USING INTEGER PRIMARY KEY (rowid<?)"
        assert not any("TEMP B-TREE" in step for step in plan)
    connection.close()
