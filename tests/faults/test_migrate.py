"""T46: files of an earlier release, upgraded under kills, errors and competition; files of a later one, left alone.

pytest -m faults tests/faults/test_migrate.py      every moment of a kill, and many rounds of processes side by side
"""

from __future__ import annotations

import random
import shutil
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import apsw
import pytest

from acms import ACMSError, Entry, Job, State
from acms.branches import export
from acms.errors import SchemaVersionError, StorageFullError
from acms.log.encoding import to_microseconds
from acms.model import Context, ContextQuery, Derived, JobDraft, JobQuery
from acms.storage import SQLiteStorage
from acms.storage.sql import load_migrations
from acms.storage.sqlite import schema as sqlite_schema
from acms.testing import sound
from acms.testing.logs import append_drafts, create_log, draft_message, fork_log
from tests.storage.suite.logs import mixed

from ._process import finish_process, start_python
from ._work import append_keys, content_of_key, shared_contexts

OPENERS = 8
NOW = datetime(2026, 2, 1, tzinfo=UTC)
KNOWN = load_migrations("sqlite")


@dataclass
class Written:
    """Everything a file held before it was upgraded."""

    contexts: list[Context]
    entries: dict[str, list[Entry]] = field(default_factory=dict)
    #: Context → (version, part, data) of the rows of its lineage.
    derived: dict[str, set[tuple[int, int, bytes]]] = field(default_factory=dict)
    #: Context → number of the newest derived row of its tree.
    newest: dict[str, int] = field(default_factory=dict)
    jobs: tuple[Job, ...] = ()


async def _write_file(path: Path) -> Written:
    """Fill a file of this release: a tree of forks, a log apart, an erasure, derived rows, a job, a deleted fork."""
    async with SQLiteStorage(path) as store:
        root, child = await mixed(store)
        grandchild = await fork_log(store, child, 10, key="grandchild")
        await append_drafts(
            store, grandchild, draft_message("eleven", key="k"), draft_message("twelve", tokens=7)
        )
        hidden = await fork_log(store, root, 4, key="hidden")
        apart = await create_log(store, "apart")
        await append_drafts(
            store,
            apart,
            draft_message("alone"),
            jobs=(JobDraft(kind="compact", dedupe="c", payload={"n": 1}),),
        )
        await store.blank(child.id, [2], to=State.ERASED, audit={"by": "test"})
        for context, versions in (
            (root, (1, 6, 9)),
            (child, (8, 10, 10)),
            (grandchild, (12,)),
            (apart, (1,)),
        ):
            for part, version in enumerate(versions):
                await store.put_derived(
                    context.id, [Derived(version=version, space="s", part=part, data=bytes([version, part]))]
                )
        await store.settings(hidden.id, {"deleted": True}, rev=0)
        return await _read_written(store)


async def _read_written(store: SQLiteStorage) -> Written:
    page = await store.contexts(ContextQuery(deleted=True, limit=1000))
    found = Written([context for context in page.items if not (context.key or "").startswith("shared")])
    for context in found.contexts:
        if context.deleted_at is None:
            found.entries[context.id] = await store.read(context.id)
            rows = await store.derived(context.id, "s")
            found.derived[context.id] = {(row.version, row.part, row.data) for row in rows}
            found.newest[context.id] = (await store.head(context.id)).derived
    found.jobs = (await store.jobs(JobQuery())).items
    return found


def _make_earlier(source: Path, path: Path) -> dict[str, int]:
    """Write the rows of a file as release 1 did; return per root the highest number one of its contexts gave.

    Its schema is the first migration; each context counted its own derived rows, from 1.
    """
    version, checksum, script = KNOWN[0]
    earlier = apsw.Connection(str(path))
    try:
        earlier.pragma("journal_mode", "wal")
        earlier.execute(script).fetchall()
        tables = [
            str(row[0]) for row in _query_rows(earlier, "SELECT name FROM sqlite_master WHERE type = 'table'")
        ]
        earlier.execute("ATTACH ? AS source", (str(source),)).fetchall()
        for table in tables:
            if table != "migrations":
                columns = ", ".join(
                    f'"{row[0]}"'
                    for row in _query_rows(earlier, "SELECT name FROM pragma_table_info(?)", table)
                )
                copy = f"INSERT INTO main.{table} ({columns}) SELECT {columns} FROM source.{table}"  # noqa: S608
                earlier.execute(copy if table != "sqlite_sequence" else "SELECT 1").fetchall()
        earlier.execute("DETACH source").fetchall()
        earlier.execute(
            "UPDATE derived SET seq ="
            " (SELECT count(*) FROM derived d WHERE d.ref = derived.ref AND d.seq <= derived.seq);"
            "UPDATE contexts SET derived = (SELECT count(*) FROM derived d WHERE d.ref = contexts.ref)"
        ).fetchall()
        earlier.execute(
            "INSERT INTO migrations VALUES (?, ?, ?)", (version, checksum, to_microseconds(NOW))
        ).fetchall()
        earlier.pragma("application_id", sqlite_schema.APPLICATION_ID)
        earlier.pragma("user_version", 1)
        highest = (
            "SELECT r.id, max(c.derived) FROM contexts c JOIN contexts r ON r.ref = c.root GROUP BY r.id"
        )
        return dict(_query_rows(earlier, highest))
    finally:
        earlier.close()


def _query_rows(connection: apsw.Connection, query: str, *values: Any) -> list[Any]:
    return list(connection.execute(query, values))


@pytest.fixture(scope="module")
async def earlier(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Written]:
    """A closed file of schema 1, and its contents."""
    folder = tmp_path_factory.mktemp("earlier")
    written = await _write_file(folder / "source.db")
    highest = _make_earlier(folder / "source.db", folder / "earlier.db")
    for context in written.contexts:
        if context.id in written.newest:
            written.newest[context.id] = highest[context.root]
    assert sorted(file.name for file in folder.glob("earlier*")) == ["earlier.db"]
    return folder / "earlier.db", written


async def assert_upgraded(path: Path, written: Written) -> None:
    """Open a file; assert that its schema is the newest, and that everything is there, sound and goes on."""
    async with SQLiteStorage(path) as store:
        assert await store.integrity() == []
        found = await _read_written(store)
        assert found == written
        for context in found.contexts:
            if context.deleted_at is None:
                assert await export.verify(store, context) == []
                await sound(store, context.id)
        context = next(one for one in found.contexts if one.key == "grandchild")
        before = found.newest[context.id]
        await append_drafts(store, context, draft_message("after the upgrade"))
        await store.put_derived(context.id, [Derived(version=13, space="s", data=b"new")])
        (row,) = await store.derived(context.id, "s", after=before)
        assert (row.version, row.seq) == (13, before + 1), "a new row is behind what a reader has seen"
    assert schema_of_file(path) == (len(KNOWN), [(version, checksum) for version, checksum, _ in KNOWN])


def schema_of_file(path: Path) -> tuple[int, list[tuple[int, str]]]:
    """Return the version of a file's schema, and its list of applied migrations."""
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        rows = _query_rows(connection, "SELECT version, checksum FROM migrations ORDER BY version")
        return int(connection.pragma("user_version")), rows
    finally:
        connection.close()


async def assert_new_file(path: Path) -> None:
    """Open a file that was new; assert that it has the newest schema and takes a message."""
    async with SQLiteStorage(path) as store:
        assert await store.integrity() == []
        context = await create_log(store, "first")
        await append_drafts(store, context, draft_message("one"))
        await sound(store, context.id)
    assert schema_of_file(path)[0] == len(KNOWN)


def folder_contents(folder: Path) -> dict[str, bytes]:
    """Return every file of a folder."""
    return {file.name: file.read_bytes() for file in folder.iterdir()}


# ── killed ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def killed() -> Iterator[Callable[..., bool]]:
    """Upgrades a file in a process that is killed at a moment; returns False when it was over before.

    `others` processes open it at the same moment, and all of them must succeed.
    """
    process = start_python("-m", "tests.faults._migrator")
    assert process.stdin is not None
    assert process.stdout is not None

    def upgrade(path: Path, what: str, nth: int, others: int = 0) -> bool:
        process.stdin.write(f"{path} {what} {nth} {others}\n")
        process.stdin.flush()
        code, *codes = map(int, process.stdout.readline().split())
        assert code in (0, -signal.SIGKILL)
        assert codes == [0] * others
        return code != 0

    yield upgrade
    assert finish_process(process) == 0


MOMENTS = {"statement": (12, 40), "file": (8, 30)}
"""At least so many moments there are in an upgrade, and in a first opening."""


@pytest.mark.parametrize(
    ("what", "step"),
    [
        pytest.param("statement", 1, marks=pytest.mark.faults, id="statement-every"),
        ("statement", 5),
        ("file", 7),
        pytest.param("file", 1, marks=pytest.mark.faults, id="file-every"),
    ],
)
async def test_t46_an_upgrade_killed_at_any_moment_is_taken_up_again(
    tmp_path: Path, earlier: tuple[Path, Written], killed: Any, what: str, step: int
) -> None:
    source, written = earlier
    for moment in range(1, 1000, step):
        path = tmp_path / f"{moment}.db"
        shutil.copy(source, path)
        if not killed(path, what, moment):
            break
        await assert_upgraded(path, written)
    assert moment > MOMENTS[what][0]


@pytest.mark.parametrize(
    ("what", "step"),
    [
        ("statement", 5),
        pytest.param("statement", 1, marks=pytest.mark.faults, id="statement-every"),
        pytest.param("file", 1, marks=pytest.mark.faults, id="file-every"),
    ],
)
async def test_t46_a_first_opening_killed_at_any_moment_is_taken_up_again(
    tmp_path: Path, killed: Any, what: str, step: int
) -> None:
    for moment in range(1, 1000, step):
        path = tmp_path / f"{moment}.db"
        if not killed(path, what, moment):
            break
        await assert_new_file(path)
    assert moment > MOMENTS[what][1]


async def _killed_again(
    folder: Path, earlier: tuple[Path, Written], killed: Any, rounds: int, seed: int
) -> None:
    source, written = earlier
    rng = random.Random(seed)
    for number in range(rounds):
        path = folder / f"{number}.db"
        shutil.copy(source, path)
        kills = [(rng.choice(("statement", "file")), rng.randint(1, 20)) for _ in range(rng.randint(2, 4))]
        for what, nth in kills:
            killed(path, what, nth)
        await assert_upgraded(path, written)


async def test_t46_an_upgrade_killed_again_and_again_is_taken_up_again(
    tmp_path: Path, earlier: tuple[Path, Written], killed: Any
) -> None:
    await _killed_again(tmp_path, earlier, killed, 8, 46)


@pytest.mark.faults
async def test_t46_many_upgrades_killed_again_and_again_are_taken_up_again(
    tmp_path: Path, earlier: tuple[Path, Written], killed: Any
) -> None:
    await _killed_again(tmp_path, earlier, killed, 200, 47)


async def test_t46_an_upgrade_that_fails_at_any_statement_changes_nothing_and_can_be_repeated(
    tmp_path: Path, earlier: tuple[Path, Written]
) -> None:
    source, written = earlier
    left = 0

    def trace(_cursor: apsw.Cursor, _statement: str, _bindings: object) -> bool:
        nonlocal left
        left -= 1
        if left == 0:
            raise apsw.FullError("injected")
        return True

    def hook(connection: apsw.Connection) -> None:
        connection.exec_trace = trace

    for moment in range(1, 1000):
        path = tmp_path / f"{moment}.db"
        shutil.copy(source, path)
        left = moment
        apsw.connection_hooks.append(hook)
        try:
            async with SQLiteStorage(path):
                pass
        except ACMSError as error:
            assert isinstance(error, StorageFullError), error
        finally:
            apsw.connection_hooks.remove(hook)
        if left > 0:
            break
        await assert_upgraded(path, written)
    assert moment > MOMENTS["statement"][0]


# ── side by side ────────────────────────────────────────────────────────────────────────────────────────────────────


async def _opened_at_once(folder: Path, earlier: tuple[Path, Written], killed: Any, rounds: int) -> None:
    """Let eight processes open one old file at the same moment; in every second round one of them dies meanwhile."""
    source, written = earlier
    rng = random.Random(rounds)
    deaths = 0
    for number in range(rounds):
        path = folder / f"{number}.db"
        shutil.copy(source, path)
        deaths += killed(path, "statement", rng.randint(1, 10) if number % 2 else 10**6, OPENERS - 1)
        async with SQLiteStorage(path) as store:
            (shared,) = await shared_contexts(store, 1)
            found = {entry.key: entry.content for entry in await sound(store, shared)}
            assert found == {f"key-{n}": content_of_key(f"key-{n}") for n in range(1, OPENERS)}
        await assert_upgraded(path, written)
    assert deaths >= rounds // 4, "most of those that were to die came too late"


async def test_t46_of_eight_processes_that_open_an_old_file_at_once_one_upgrades_it_and_all_work(
    tmp_path: Path, earlier: tuple[Path, Written], killed: Any
) -> None:
    await _opened_at_once(tmp_path, earlier, killed, 4)


@pytest.mark.faults
async def test_t46_many_old_files_are_opened_by_eight_processes_at_once(
    tmp_path: Path, earlier: tuple[Path, Written], killed: Any
) -> None:
    await _opened_at_once(tmp_path, earlier, killed, 200)


# ── refused ─────────────────────────────────────────────────────────────────────────────────────────────────────────


async def _assert_refused(path: Path, says: str, *, read_only: bool) -> None:
    """Assert that a file is refused, that the error says what to do, and that not one byte changes."""
    before = folder_contents(path.parent)
    with pytest.raises(SchemaVersionError, match=says) as caught:
        async with SQLiteStorage(path, read_only=read_only):
            pass
    assert caught.value.options
    assert folder_contents(path.parent) == before


@pytest.mark.parametrize("read_only", [False, True], ids=["writable", "read-only"])
async def test_t46_an_earlier_release_refuses_a_file_of_a_later_one(
    tmp_path: Path, earlier: tuple[Path, Written], monkeypatch: pytest.MonkeyPatch, read_only: bool
) -> None:
    path = tmp_path / "a.db"
    shutil.copy(earlier[0], path)
    async with SQLiteStorage(path):
        pass
    monkeypatch.setattr(sqlite_schema, "load_migrations", lambda _dialect: KNOWN[:1])
    await _assert_refused(path, f"has schema {len(KNOWN)}, this release knows up to 1", read_only=read_only)
    monkeypatch.undo()
    await assert_upgraded(path, earlier[1])


async def test_t46_a_file_of_an_earlier_release_is_upgraded_only_by_whoever_may_write(
    tmp_path: Path, earlier: tuple[Path, Written]
) -> None:
    path = tmp_path / "a.db"
    shutil.copy(earlier[0], path)
    await _assert_refused(path, f"has schema 1, this release reads {len(KNOWN)}", read_only=True)
    await assert_upgraded(path, earlier[1])


@pytest.mark.parametrize("read_only", [False, True], ids=["writable", "read-only"])
@pytest.mark.parametrize("number", [version for version, _, _ in KNOWN])
async def test_t46_a_file_that_another_release_migrated_otherwise_is_refused(
    tmp_path: Path, number: int, read_only: bool
) -> None:
    path = tmp_path / "a.db"
    async with SQLiteStorage(path) as store:
        (context,) = await shared_contexts(store, 1)
        await append_keys(store, context, "one")
    connection = apsw.Connection(str(path))
    connection.execute("UPDATE migrations SET checksum = 'of another script' WHERE version = ?", (number,))
    connection.close()
    await _assert_refused(path, f"migrated by a different release: its schema {number}", read_only=read_only)
