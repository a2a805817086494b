"""Recall on PostgreSQL is recall on SQLite: the same entries in the same order with the same scores."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from acms import open_storage
from acms.ports import StorageBackend
from acms.storage import SQLiteStorage
from acms.testing import HashEmbedder
from acms.testing.logs import WHEN, restore_contexts
from acms_eval.turns import read_file
from tests.faults._process import start_python

from ._recaller import NAMESPACE, Lines, recall_questions, write_lines

QUESTIONS = (
    "What did we decide about invoices and RabbitMQ?",
    "Which service broke after the deploy?",
    "src/acms/core.py",
    "Where do backups go?",
    "Note 17",
)


def make_conversation(seed: int, count: int = 90) -> list[dict[str, Any]]:
    """Make a talk about a few subjects, one line in nine a decision."""
    chance = random.Random(seed)
    subjects = ("invoices", "orders", "payroll", "search", "the deploy", "the queue", "login", "backups")
    verbs = ("go through", "wait for", "broke", "were moved to", "depend on", "were tested with")
    things = ("RabbitMQ", "PostgreSQL 18", "src/acms/core.py", "Redis", "the old host", "E2E-7", "a cron job")
    lines: list[dict[str, Any]] = []
    for number in range(count):
        text = f"{chance.choice(subjects)} {chance.choice(verbs)} {chance.choice(things)}"
        lead = "Decision: " if number % 9 == 0 else ""
        line = {"role": ("user", "assistant")[number % 2], "content": f"{lead}{text}. Note {number}."}
        lines.append({**line, "created_at": (WHEN + timedelta(minutes=number)).isoformat()})
    return lines


@pytest.fixture
async def stores(tenant_url: str, tmp_path: Path) -> AsyncIterator[tuple[StorageBackend, StorageBackend]]:
    async with open_storage(tenant_url) as one, SQLiteStorage(tmp_path / "log.db") as other:
        yield one, other


async def assert_same_recall(
    stores: tuple[StorageBackend, StorageBackend],
    talks: dict[str, Lines],
    questions: Sequence[str],
    embedder: HashEmbedder | None,
) -> None:
    """Tell talks to one store, move them to the other with all their ids, and ask both."""
    here, there = stores
    for key, lines in talks.items():
        await write_lines(there, key, lines, embedder)
        await restore_contexts(there, here, await there.context(key, namespace=NAMESPACE))
        await write_lines(here, key, (), embedder)  # its vectors do not move: they are computed again
    for key in talks:
        mine, theirs = [await recall_questions(store, key, questions, embedder) for store in stores]
        assert any(len(found) > 3 for found in mine)
        assert mine == theirs


@pytest.mark.parametrize("embedder", [None, HashEmbedder()], ids=["words", "vectors"])
async def test_recall_is_the_same_as_on_sqlite(
    stores: tuple[StorageBackend, StorageBackend], embedder: HashEmbedder | None
) -> None:
    talks: dict[str, Lines] = {f"talk-{seed}": make_conversation(seed) for seed in range(3)}
    await assert_same_recall(stores, talks, QUESTIONS, embedder)


@pytest.mark.parametrize("count", [1, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize("embedder", [None, HashEmbedder()], ids=["words", "vectors"])
async def test_real_conversations_are_recalled_as_on_sqlite(
    stores: tuple[StorageBackend, StorageBackend], data_dir: Path, embedder: HashEmbedder | None, count: int
) -> None:
    files = sorted((data_dir / "locomo-dev").glob("conv-*.json"))[:count]
    assert files
    talks: dict[str, Lines] = {file.stem: read_file(file) for file in files}
    asked = [one["question"] for one in json.loads(files[0].read_text())[0]["qa"][:15]]
    await assert_same_recall(stores, talks, asked, embedder)


@pytest.mark.slow
async def test_two_processes_on_one_context_recall_as_one(tenant_url: str, tmp_path: Path) -> None:
    """What another process wrote is in the index of this one, and the other way round."""
    lines, embedder = make_conversation(1, 60), HashEmbedder()
    async with SQLiteStorage(tmp_path / "log.db") as alone:
        await write_lines(alone, "talk", lines, embedder)
        expected = await recall_questions(alone, "talk", QUESTIONS, embedder)
    async with open_storage(tenant_url) as here:
        await write_lines(here, "talk", lines[:30], embedder)
        await recall_questions(here, "talk", QUESTIONS, embedder)  # an index that is short from now on
        process = start_python("-m", "tests.storage._recaller", tenant_url, "talk")
        task = json.dumps({"lines": lines[30:], "questions": QUESTIONS})
        said, _ = await asyncio.to_thread(process.communicate, task)
        assert process.returncode == 0
        mine = await recall_questions(here, "talk", QUESTIONS, embedder)
    assert json.loads(said) == mine
    assert [[one[1:] for one in found] for found in mine] == [
        [one[1:] for one in found] for found in expected
    ]
