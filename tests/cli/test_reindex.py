"""Derived rows made again from a shell."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from acms import ACMS, open_storage
from acms.cli import base
from acms.cli.commands import app
from acms.providers import LocalEmbedder
from acms.recall.embeddings import Embedding
from acms.storage import ChromaVectors, SQLiteStorage
from acms.testing.logs import fork_log
from acms.text import index_record

TEXTS = ("We chose PostgreSQL for orders. It is fast.", "Lunch is at noon.", "The cat sleeps.")


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("ACMS_DB", "ACMS_DEBUG", "NO_COLOR", "FORCE_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))


def run(*arguments: str, code: int = 0) -> Result:
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == code, (result.output, result.exception)
    assert "Traceback" not in result.output
    return result


def call(*arguments: str) -> dict[str, Any]:
    return json.loads(run(*arguments, "--json").stdout)


async def write(db: str) -> None:
    """Two sessions without vectors, one of them with a fork."""
    async with open_storage(db) as storage:
        for name in ("talk", "other"):
            async with ACMS(name, storage) as session:
                for text in TEXTS:
                    await session.ingest("user", text)
        await fork_log(storage, await storage.context("talk"), 2, key="fork")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    asyncio.run(write(base.file_url(tmp_path / "a.db")))
    return tmp_path / "a.db"


async def sizes(storage: Any) -> list[int]:
    """How long the vectors of the session "talk" are."""
    async with storage:
        context = await storage.context("talk")
        space = Embedding(storage, LocalEmbedder()).space
        assert len(await storage.derived(context.id, index_record.SPACE)) == len(TEXTS)
        return [len(row.data) for row in await storage.derived(context.id, space)]


def test_cards_are_made_of_one_session_or_of_all(file: Path) -> None:
    db = base.file_url(file)
    asyncio.run(_forget(file))
    assert call("reindex", "talk", "--db", db)["cards"] == 3
    assert "2 sessions" not in run("reindex", "talk", "--db", db).stdout
    done = call("reindex", "--db", db)
    assert (done["contexts"], done["entries"], done["cards"], done["vectors"]) == (3, 6, 3, 0)
    assert (
        "3 sessions, 6 entries: 0 index records and 0 vectors were made" in run("reindex", "--db", db).stdout
    )


async def _forget(file: Path) -> None:
    """Spoil every index record, as an older release may have written it."""
    async with SQLiteStorage(file) as storage:
        for name in ("talk", "other"):
            context = await storage.context(name)
            rows = await storage.derived(context.id, index_record.SPACE)
            await storage.put_derived(context.id, [_spoiled(row) for row in rows])


def _spoiled(row: Any) -> Any:
    from dataclasses import replace

    return replace(row, data=row.data[:-1] + b"?")


def test_vectors_of_the_local_embedder_go_to_chroma(file: Path, tmp_path: Path) -> None:
    db, folder = base.file_url(file), tmp_path / "vectors"
    done = call("reindex", "talk", "--embedder", "local", "--db", db)
    assert (done["vectors"], done["moved"], done["left"]) == (3, 0, 0)
    assert asyncio.run(sizes(SQLiteStorage(file))) == [768] * 3
    said = run("reindex", "--embedder", "local", "--chroma", str(folder), "--db", db).stdout
    assert "3 sessions, 6 entries: 0 index records and 3 vectors were made" in said
    assert "3 vectors moved to Chroma, 0 of erased entries deleted there" in said
    assert asyncio.run(sizes(SQLiteStorage(file))) == [21] * 3
    assert asyncio.run(sizes(ChromaVectors(SQLiteStorage(file), path=folder))) == [768] * 3
    again = call("reindex", "--embedder", "local", "--chroma", str(folder), "--db", db)
    assert (again["cards"], again["vectors"], again["moved"]) == (0, 0, 0)


def test_vectors_of_what_is_blocked_now_go(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    db = base.file_url(file)
    call("reindex", "--embedder", "local", "--db", db)
    assert asyncio.run(sizes(SQLiteStorage(file))) == [768] * 3
    monkeypatch.setenv("ACMS_PRIVACY_MODE", "block")
    call("reindex", "--embedder", "local", "--db", db)
    assert asyncio.run(sizes(SQLiteStorage(file))) == [0] * 3
    assert call("reindex", "--embedder", "local", "--db", db)["vectors"] == 0
    monkeypatch.setenv("ACMS_PRIVACY_MODE", "redact")
    call("reindex", "--embedder", "local", "--db", db)
    assert sorted(asyncio.run(sizes(SQLiteStorage(file)))) == [768] * 3


def test_wrong_words_are_refused(file: Path) -> None:
    db = base.file_url(file)
    run("reindex", "--embedder", "remote", "--db", db, code=2)
    assert "SESSION_NOT_FOUND" in run("reindex", "nobody", "--db", db, code=1).stderr
    assert "STORAGE" in run("reindex", "--db", f"{db}.not", code=1).stderr
