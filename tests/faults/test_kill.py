"""T08: processes killed under load and while they open a file.

pytest -m faults tests/faults      the long loops: 100 kills, 20 killed openings
"""

from __future__ import annotations

import os
import random
import select
import signal
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import apsw
import psycopg
import pytest

from acms import ACMS, ACMSConfig, ACMSError, Prompt, RetryConfig, StorageBusyError
from acms.codecs import OpenAIChat
from acms.prompt.history import cache_window
from acms.storage import SQLiteStorage

from ._process import finish_process, start_writer
from ._work import append_keys, append_of_keys, assert_store_sound, open_at, shared_contexts, sound_file

WRITERS = 4
ROUNDS_PER_FILE = 3  # keeps the files small enough to be read whole after every kill


@dataclass
class Notes:
    """The notes of the writers: which appends they began, and which were acknowledged."""

    tried: dict[tuple[str, str], tuple[str, ...]] = field(default_factory=dict)
    acked: dict[tuple[str, str], tuple[int, str]] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)

    def add(self, file: Path) -> None:
        """Read the notes of one writer; a last line cut short by the kill does not count."""
        for line in file.read_text().splitlines(keepends=True):
            if not line.endswith("\n"):
                continue
            what, context, *rest = line.split()
            if what == "try":
                keys = tuple(rest[0].split(","))
                self.tried[context, keys[0]] = keys
            elif what == "ack":
                version, id, key = rest
                self.acked[context, key] = (int(version), id)
            else:
                self.errors.append(line)

    def unknown(self) -> list[tuple[str, tuple[str, ...]]]:
        """Return (context, keys) of the appends without an acknowledgement."""
        return [
            (context, keys)
            for (context, _), keys in self.tried.items()
            if any((context, key) not in self.acked for key in keys)
        ]


def server_processes(path: str | Path) -> set[int]:
    """Return the processes of a server that work for our clients of a database; none for a file."""
    if not str(path).startswith("postgresql://"):
        return set()
    query = (
        "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'acms'"
    )
    with psycopg.connect(str(path).partition("?")[0], autocommit=True) as connection:
        return {pid for (pid,) in connection.execute(query)}


async def kill_round(path: str | Path, folder: Path, seed: int, notes: Notes) -> tuple[int, int, int]:
    """Let four processes write, kill them all at once, check everything; return (acks, unknown, found stored)."""
    rng = random.Random(seed)
    others = server_processes(path)
    files = [folder / f"notes-{seed}-{n}" for n in range(WRITERS)]
    processes = [start_writer("write", path, file, f"w{n}", str(seed)) for n, file in enumerate(files)]
    before = len(notes.acked)
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    time.sleep(rng.uniform(0.0, 0.2))  # the moment of the kill, not a wait for anything
    for process in rng.sample(processes, WRITERS):
        os.kill(process.pid, signal.SIGKILL)
    assert [finish_process(process) for process in processes] == [-signal.SIGKILL] * WRITERS
    for file in files:
        notes.add(file)
    assert notes.errors == []
    # A server goes on with what it was sent by a client that is gone: what it commits late was sent in time.
    while server_processes(path) - others:
        time.sleep(0.01)

    storage = open_at(path)
    try:
        ids = await shared_contexts(storage, 1)
        await storage.head(ids[0])
        found = await assert_store_sound(storage)
        for (context, key), (version, id) in notes.acked.items():
            entry = found[context][version - 1]
            assert (entry.key, entry.id) == (key, id), f"seed {seed}: an acknowledged message is lost"

        unknown = notes.unknown()
        stored = {(entry.context, entry.key) for entries in found.values() for entry in entries}
        results = await storage.append([append_of_keys(context, keys) for context, keys in unknown])
        landed = 0
        for (context, keys), result in zip(unknown, results, strict=True):
            assert not isinstance(result, ACMSError)
            there = {(context, key) in stored for key in keys}
            assert len(there) == 1, f"seed {seed}: {keys} were stored in part"
            assert result.repeated is there.pop()
            landed += result.repeated
            for version, id, key in zip(
                range(result.versions[0], result.versions[1] + 1), result.ids, keys, strict=True
            ):
                notes.acked[context, key] = (version, id)
        found = await assert_store_sound(storage)  # also: one row per key
        rows = Counter((entry.context, entry.key) for entries in found.values() for entry in entries)
        for (context, key), (version, id) in notes.acked.items():
            assert rows[context, key] == 1
            assert found[context][version - 1].id == id
        # Nothing appears that nobody asked for.
        assert sum(rows.values()) == sum(len(keys) for keys in notes.tried.values())
    finally:
        await storage.aclose()
    return len(notes.acked) - before, len(unknown), landed


async def kill_rounds(folder: Path, rounds: int, home: str | None = None) -> None:
    acked = unknown = landed = 0
    notes = Notes()
    for number in range(rounds):
        if number % ROUNDS_PER_FILE == 0:
            notes = Notes()
        store = number // ROUNDS_PER_FILE
        where = folder / f"{store}.db" if home is None else f"{home}?tenant={folder.name}-{store}"
        result = await kill_round(where, folder, number, notes)
        acked, unknown, landed = acked + result[0], unknown + result[1], landed + result[2]
    print(f"{rounds} kills of {WRITERS} writers: {acked} messages acknowledged, 0 lost; "
          f"{unknown} appends without an answer, {landed} of them were stored")  # fmt: skip
    assert acked > rounds * WRITERS


async def test_T08_sigkill_loses_no_acknowledged_message(tmp_path: Path) -> None:
    await kill_rounds(tmp_path, 1)


@pytest.mark.faults
async def test_T08_a_hundred_sigkills_lose_no_acknowledged_message(tmp_path: Path) -> None:
    await kill_rounds(tmp_path, 100)


async def test_T08_sigkill_of_writers_to_postgres_loses_no_acknowledged_message(
    tmp_path: Path, postgres_home: str
) -> None:
    await kill_rounds(tmp_path, 1, postgres_home)


@pytest.mark.faults
async def test_T08_fifty_sigkills_of_writers_to_postgres_lose_no_acknowledged_message(
    tmp_path: Path, postgres_home: str
) -> None:
    await kill_rounds(tmp_path, 50, postgres_home)


async def killed_openings(folder: Path, moments: list[int]) -> int:
    """Kill a process at given calls of its first opening of a file; return how many were over before."""
    survived = 0
    for nth in moments:
        path = folder / f"fresh-{nth}.db"
        process = start_writer("die", path, str(nth))
        assert process.stdout is not None
        if process.stdout.readline() == "survived\n":
            survived += 1
            assert finish_process(process) == 0
        else:
            assert finish_process(process) == -signal.SIGKILL
        storage = SQLiteStorage(path)
        try:
            (context,) = await shared_contexts(storage, 1)
            receipt = await append_keys(storage, context, "first")
            assert receipt.versions == (1, 1)
        finally:
            await storage.aclose()
        assert await sound_file(path)
    print(f"{len(moments) - survived} first openings killed, {survived} over before; all files open")
    return survived


async def test_T08_a_killed_first_opening_leaves_a_file_that_opens(tmp_path: Path) -> None:
    await killed_openings(tmp_path, random.Random(8).sample(range(1, 50), 3))


@pytest.mark.faults
async def test_T08_twenty_killed_first_openings_leave_files_that_open(tmp_path: Path) -> None:
    # The first opening changes the disk about 50 times; past the last of them the process lives.
    survived = await killed_openings(tmp_path, [*range(1, 58, 3), 1000])
    assert survived >= 1


def test_T08_processes_that_open_a_fresh_file_at_once_all_work(tmp_path: Path) -> None:
    processes = [start_writer("open") for _ in range(WRITERS)]
    try:
        for number in range(4):
            for n, process in enumerate(processes):
                assert process.stdin is not None
                process.stdin.write(f"{tmp_path / f'{number}.db'} key-{n}\n")
            for process in processes:  # all lines lie ready before the first is read
                assert process.stdin is not None
                process.stdin.flush()
            answers = [process.stdout.readline() for process in processes if process.stdout is not None]
            assert answers == ["ok\n"] * WRITERS
    finally:
        codes = [finish_process(process) for process in processes]
    assert codes == [0] * WRITERS


async def test_T08_a_first_opening_waits_for_another_process_that_is_at_it(tmp_path: Path) -> None:
    """SQLite does not wait by itself when a file is switched to WAL while someone else writes it."""
    path = tmp_path / "fresh.db"
    other = apsw.Connection(str(path))
    other.execute("BEGIN IMMEDIATE").fetchall()
    done = threading.Timer(0.2, lambda: other.execute("COMMIT").fetchall())
    done.start()
    storage = SQLiteStorage(path)
    (context,) = await shared_contexts(storage, 1)
    await append_keys(storage, context, "waited")
    done.join()
    other.close()
    await storage.aclose()

    other = apsw.Connection(str(tmp_path / "held.db"))
    other.execute("BEGIN IMMEDIATE").fetchall()
    storage = SQLiteStorage(tmp_path / "held.db", busy_seconds=0.1)
    with pytest.raises(StorageBusyError) as caught:  # not for ever
        await shared_contexts(storage, 1)
    assert caught.value.retryable
    other.execute("COMMIT").fetchall()
    other.close()
    await shared_contexts(storage, 1)
    await storage.aclose()


async def test_a_locked_file_delays_an_append_once_and_a_render_hardly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time limit counts from the call, with the work before it and without repetitions."""
    monkeypatch.setattr(cache_window, "STORE_SECONDS", 0.05)
    path = tmp_path / "held.db"
    storage = SQLiteStorage(path, busy_seconds=0.5)
    async with ACMS("chat", storage, None, config=ACMSConfig(retry=RetryConfig(max_attempts=100))) as session:
        for number in range(5):
            await session.ingest("user", f"message {number}")
        prompt = Prompt(OpenAIChat("gpt-4o")).history(session).user("message 3?")
        other = apsw.Connection(str(path))
        other.execute("BEGIN IMMEDIATE").fetchall()
        rendered = await prompt.render(budget=300)
        assert [warning for warning in rendered.warnings if "misses the provider's cache" in warning]
        assert "message 4" in str(rendered.payload)
        with pytest.raises(StorageBusyError) as caught:
            await session.ingest("user", "refused")
        assert caught.value.waited
        other.execute("COMMIT").fetchall()
        other.close()
        await session.ingest("user", "stored")
        assert [entry.content for entry in await session.entries()][4:] == ["message 4", "stored"]
    await storage.aclose()


async def test_T08_a_second_process_may_migrate_between_two_looks_at_the_header(tmp_path: Path) -> None:
    """The checks of a fresh file must see one state of it, not a fresh half and a migrated half."""
    path = tmp_path / "fresh.db"
    seen: list[str] = []
    other = start_writer("open")
    assert other.stdin is not None
    assert other.stdout is not None

    def trace(cursor: apsw.Cursor, statement: str, _bindings: object) -> bool:
        if "sqlite_master" in statement and not seen:
            seen.append(statement)
            other.stdin.write(f"{path} other\n")
            other.stdin.flush()
            # It answers at once when nothing keeps it from writing, and else waits for this process.
            select.select([other.stdout], [], [], 1)
        return True

    def hook(connection: apsw.Connection) -> None:
        connection.exec_trace = trace

    apsw.connection_hooks.append(hook)
    try:
        storage = SQLiteStorage(path)
        try:
            (context,) = await shared_contexts(storage, 1)
            await append_keys(storage, context, "own")
        finally:
            await storage.aclose()
    finally:
        apsw.connection_hooks.remove(hook)
    assert seen
    assert other.stdout.readline() == "ok\n"
    assert finish_process(other) == 0
    assert {entry.key for entry in (await sound_file(path))[context]} == {"other", "own"}
