"""Key-value memory on its four homes, and on a store of somebody else."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import threading

import apsw
import pytest

from acms import ConfigurationError, ConflictError, StorageError, ValidationError
from acms.errors import CorruptRecordError, StorageReadOnlyError
from acms.kv import CompareAndSetKV, InMemoryKV, KVEntry, SQLiteKV, open_kv, update_entry
from acms.model import ContextQuery
from acms.storage import SQLiteStorage
from acms.storage.sql import load_migrations
from acms.storage.sqlite.schema import APPLICATION_ID
from acms.testing import sound
from acms.testing.logs import append_drafts, create_log, draft_message
from tests.faults._process import finish_process, start_python
from tests.storage.suite import KVMemoryTests


class TestInMemoryKV(KVMemoryTests):
    takes_clock = True

    @pytest.fixture
    async def store(self, clock):
        return InMemoryKV(clock=clock)


class TestSQLiteKV(KVMemoryTests):
    takes_clock = True

    @pytest.fixture
    async def store(self, tmp_path, clock):
        async with SQLiteKV(tmp_path / "kv.db", clock=clock) as store:
            yield store

    @pytest.fixture
    async def second(self, tmp_path, store, clock):
        async with SQLiteKV(tmp_path / "kv.db", clock=clock) as second:
            yield second

    @pytest.fixture
    async def other_tenant(self, tmp_path, store):
        async with SQLiteKV(tmp_path / "kv.db", tenant="other") as other:
            yield other


class PlainKV:
    """A store of somebody else: get, set and delete over a medium that answers late, and nothing more."""

    def __init__(self, clock):
        self._memory = InMemoryKV(clock=clock)

    async def get(self, key):
        await asyncio.sleep(0)
        found = await self._memory.get(key)
        return found and KVEntry(
            key=key,
            data=found.data,
            created_at=found.created_at,
            updated_at=found.updated_at,
            metadata=found.metadata,
        )

    async def set(self, key, data, metadata=None):
        await asyncio.sleep(0)
        await self._memory.set(key, data, metadata)
        return await self.get(key)

    async def delete(self, key):
        return await self._memory.delete(key)

    async def aclose(self):
        pass


class TestAStoreThatCannotCompare(KVMemoryTests):
    takes_clock = True

    @pytest.fixture
    async def store(self, clock):
        store = PlainKV(clock)
        assert not isinstance(store, CompareAndSetKV)
        return store


# ── threads and processes ───────────────────────────────────────────────────────────────────────────────────────────


def next_count(entry):
    return 1 if entry is None else entry.data + 1


def in_threads(work, threads=4):
    """Run a coroutine function in an event loop of its own in each of some threads."""
    failed = []

    def run():
        try:
            asyncio.run(work())
        except BaseException as error:
            failed.append(error)

    running = [threading.Thread(target=run) for _ in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    assert failed == []


def test_threads_share_one_memory_and_lose_nothing():
    store = InMemoryKV()

    async def work():
        await asyncio.gather(*(update_entry(store, "n", next_count) for _ in range(50)))

    in_threads(work)
    assert asyncio.run(store.get("n")).data == 200


def test_threads_with_a_handle_each_lose_nothing(tmp_path):
    async def work():
        async with SQLiteKV(tmp_path / "kv.db") as store:
            for _ in range(10):
                await update_entry(store, "n", next_count)

    in_threads(work)

    async def read():
        async with SQLiteKV(tmp_path / "kv.db") as store:
            return (await store.get("n")).data

    assert asyncio.run(read()) == 40


async def counted_by_processes(url, processes=3, times=20):
    """Let processes count together; return every number one of them was answered."""
    running = [start_python("-m", "tests.storage._counter", url, "n", str(times)) for _ in range(processes)]
    seen = []
    for process in running:
        seen += [int(line) for line in await asyncio.to_thread(process.stdout.readlines)]
        assert finish_process(process) == 0
    return sorted(seen)


async def test_processes_on_one_file_lose_nothing(tmp_path):
    url = f"sqlite:///{tmp_path / 'kv.db'}"
    assert await counted_by_processes(url) == list(range(1, 61))


async def test_what_a_killed_process_was_answered_is_there(tmp_path):
    url = f"sqlite:///{tmp_path / 'kv.db'}"
    process = start_python("-m", "tests.storage._counter", url, "n", "100000")
    lines = [int(process.stdout.readline()) for _ in range(20)]
    os.kill(process.pid, signal.SIGKILL)
    lines += [int(line) for line in process.stdout if line.endswith("\n")]
    assert finish_process(process) == -signal.SIGKILL
    async with open_kv(url) as store:
        assert (await store.get("n")).data - lines[-1] in (0, 1), "one more may have been stored unanswered"
        await update_entry(store, "n", next_count)


async def test_a_change_that_others_always_forestall_is_given_up(monkeypatch):
    class Contended(InMemoryKV):
        async def get(self, key):
            found = await super().get(key)
            await self.set(key, "another was first")
            return found

    monkeypatch.setattr("acms.storage.kv.ATTEMPTS", 4)
    calls = itertools.count(1)
    with pytest.raises(ConflictError):
        await update_entry(Contended(), "a", lambda entry: next(calls))
    assert next(calls) == 5


# ── SQLite ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("first", ["log", "values"])
async def test_values_and_logs_share_a_file(tmp_path, first):
    path = tmp_path / "both.db"

    async def values():
        async with SQLiteKV(path) as store:
            await store.set("a", {"n": 1})

    async def log():
        async with SQLiteStorage(path) as store:
            await append_drafts(store, await create_log(store, "a"), draft_message("one"))

    for work in (log, values) if first == "log" else (values, log):
        await work()
    async with SQLiteStorage(path) as logs, SQLiteKV(path) as store, SQLiteKV(path, tenant="other") as other:
        context = await logs.context("a")
        before = (await logs.head(context.id)).version

        async def write(n):
            await append_drafts(logs, context, draft_message(str(n)))
            await store.set(f"k{n}", n)
            await update_entry(other, "n", next_count)

        await asyncio.gather(*(write(n) for n in range(30)))
        assert len(await sound(logs, context.id)) == before + 30
        assert [(await store.get(f"k{n}")).data for n in range(30)] == list(range(30))
        assert (await other.get("n")).data == 30
        assert (await store.get("a")).data == {"n": 1}
        assert await logs.integrity() == []


async def test_a_file_of_an_earlier_release_is_upgraded(tmp_path):
    path = tmp_path / "earlier.db"
    earlier = apsw.Connection(str(path))
    for version, checksum, script in load_migrations("sqlite")[:2]:
        earlier.execute(script).fetchall()
        earlier.execute("INSERT INTO migrations VALUES (?, ?, 0)", (version, checksum)).fetchall()
        earlier.pragma("user_version", version)
    earlier.pragma("application_id", APPLICATION_ID)
    earlier.close()
    with pytest.raises(StorageError):
        await SQLiteKV(path, read_only=True).get("a")
    async with SQLiteKV(path) as store:
        await store.set("a", 1)
    async with SQLiteStorage(path) as logs:
        assert (await logs.contexts(ContextQuery())).items == ()


async def test_a_file_of_another_application_is_left_alone(tmp_path):
    path = tmp_path / "other.db"
    other = apsw.Connection(str(path))
    other.execute("CREATE TABLE kv (key TEXT, value TEXT)").fetchall()
    other.close()
    before = path.read_bytes()
    with pytest.raises(StorageError, match="another application"):
        await SQLiteKV(path).set("a", 1)
    assert path.read_bytes() == before


async def test_a_read_only_handle_reads_and_refuses_to_write(tmp_path):
    path = tmp_path / "kv.db"
    async with SQLiteKV(path) as store:
        stored = await store.set("a", 1)
    async with SQLiteKV(path, read_only=True) as store:
        assert await store.get("a") == stored
        for call in (
            store.set("a", 2),
            store.delete("a"),
            store.compare_and_set("a", 2, expect=stored.revision),
        ):
            with pytest.raises(StorageReadOnlyError):
                await call
        assert await store.get("a") == stored


@pytest.mark.parametrize(
    "damage",
    [
        "data = '{'",
        "data = x'80'",
        "data = x'7b7d'",
        "metadata = '[1]'",
        "created_at = 'soon'",
        "updated_at = 9e18",
        "revision = x'00'",
    ],
)
async def test_a_row_nobody_of_ours_wrote_is_reported_and_can_be_replaced(tmp_path, damage):
    path = tmp_path / "kv.db"
    async with SQLiteKV(path) as store:
        await store.set("a", 1)
    connection = apsw.Connection(str(path))
    connection.execute(f"UPDATE kv SET {damage}").fetchall()  # noqa: S608
    connection.close()
    async with SQLiteKV(path) as store:
        with pytest.raises(CorruptRecordError) as found:
            await store.get("a")
        assert found.value.options
        assert await store.delete("a")
        assert (await store.set("a", 2)).data == 2


async def test_a_handle_serves_two_event_loops_at_once(tmp_path):
    store = SQLiteKV(tmp_path / "kv.db")
    await store.set("a", 1)

    async def elsewhere():
        assert (await store.get("a")).data == 1
        return await asyncio.gather(*(store.set(f"there{n}", n) for n in range(10)))

    there = asyncio.create_task(asyncio.to_thread(asyncio.run, elsewhere()))
    here = await asyncio.gather(*(store.set(f"here{n}", n) for n in range(10)))
    for entry in (*here, *await there):
        assert await store.get(entry.key) == entry
    assert (await store.get("a")).data == 1
    await store.aclose()


# ── URLs ────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_url_names_a_store(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    async with open_kv("sqlite:///kv%20of%20ana.db?tenant=a%26b") as store:
        assert (store.path.name, store.tenant) == ("kv of ana.db", "a&b")
        await store.set("a", 1)
    async with open_kv(f"sqlite:///{tmp_path}/kv of ana.db?tenant=a%26b&mode=ro") as store:
        assert (await store.get("a")).data == 1
    async with open_kv("sqlite:///kv%20of%20ana.db?durability=relaxed") as store:
        assert (store.durability, await store.get("a")) == ("relaxed", None)
    for url in ("memory://", "memory://?tenant=acme"):
        async with open_kv(url) as store:
            assert await store.get("a") is None


@pytest.mark.parametrize(
    "url",
    [
        "",
        "kv.db",
        "memory://name",
        "memory://?mode=ro",
        "memory://?tenant=",
        "sqlite://kv.db",
        "sqlite:///",
        "sqlite:///kv.db?mode=rwc",
        "sqlite:///kv.db?durability=none",
        "sqlite:///kv.db?tenant=%00",
        "sqlite:///kv.db?unknown=1",
        "postgresql://host/db?no_such_option=1",
        "postgresql://host/db?tenant=",
        "redis://host:port/0",
        "redis://host:6379/0?no_such_option=1",
        "redis://host:6379/0?ttl_seconds=0",
        "redis://host:6379/0?ttl_seconds=soon",
        "redis://host:6379/0?prefix=%00",
        "mysql://ana:secret@host/db?password=secret",
        "redis2://:pa/secret@host:6379/0",
    ],
)
def test_a_url_that_names_no_store_is_refused_without_its_password(url):
    with pytest.raises(ConfigurationError) as refused:
        open_kv(url)
    assert "secret" not in str(refused.value)


def test_a_handle_refuses_arguments_that_make_no_sense(tmp_path):
    for arguments in ({"tenant": ""}, {"tenant": "\0"}, {"durability": "quorum"}):
        with pytest.raises(ValidationError):
            SQLiteKV(tmp_path / "kv.db", **arguments)
    assert list(tmp_path.iterdir()) == []
