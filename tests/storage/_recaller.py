"""Tells talks to a store and asks for them again; also a process of its own: python -m tests.storage._recaller URL."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from acms import ACMS, open_storage
from acms.log.validation import BATCH
from acms.ports import StorageBackend
from acms.testing import HashEmbedder

Lines: TypeAlias = Sequence[Mapping[str, Any]]
Found: TypeAlias = list[list[Any]]

NAMESPACE = "team"


async def write_lines(storage: StorageBackend, key: str, lines: Lines, embedder: HashEmbedder | None) -> None:
    """Write lines to a session; they have their vectors when this ends."""
    async with ACMS(key, storage, embedder, namespace=NAMESPACE) as session:
        for start in range(0, len(lines), BATCH):
            await session.ingest_many(lines[start : start + BATCH])
        await session.wait_pending()


async def recall_questions(
    storage: StorageBackend, key: str, questions: Sequence[str], embedder: HashEmbedder | None
) -> list[Found]:
    """Return what each question recalls, of the session and of its namespace: id, text and scores, in order."""
    answers: list[Found] = []
    async with ACMS(key, storage, embedder, namespace=NAMESPACE) as session:
        await session.wait_pending()
        for question in questions:
            for scope in ("session", "namespace"):
                items = await session.recall(question, token_budget=800, scope=scope)
                answers.append([[one.id, one.content, one.score, one.relevance] for one in items])
    return answers


async def _write_and_recall(url: str, key: str, task: Mapping[str, Any]) -> list[Found]:
    async with open_storage(url) as storage:
        embedder = HashEmbedder()
        await write_lines(storage, key, task["lines"], embedder)
        return await recall_questions(storage, key, task["questions"], embedder)


if __name__ == "__main__":
    print(json.dumps(asyncio.run(_write_and_recall(sys.argv[1], sys.argv[2], json.load(sys.stdin)))))
