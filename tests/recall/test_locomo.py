"""A real conversation of two people over months: a recall includes the turn that answers its question."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from acms import ACMS, open_storage
from acms_eval.turns import read_file

BUDGET = 2000

#: Question → the turns that hold its answer; chosen among those whose words lead to them.
QUESTIONS = {
    "When did Caroline go to the LGBTQ support group?": ["D1:3"],
    "When did Melanie paint a sunrise?": ["D1:12"],
    "What did Caroline research?": ["D2:8"],
    "When did Melanie run a charity race?": ["D2:1"],
    "Where did Caroline move from 4 years ago?": ["D3:13", "D4:3"],
}


@pytest.fixture(scope="module")
def conversation(data_dir: Path) -> Path:
    return data_dir / "locomo-dev" / "conv-26.json"


async def test_the_turns_that_answer_a_question_are_recalled_for_it(conversation: Path) -> None:
    async with ACMS("conv-26", open_storage("memory://")) as session:
        turns = read_file(conversation)
        receipts = await session.ingest_many(turns)
        assert [receipt.position for receipt in receipts] == list(range(1, len(turns) + 1))
        assert len(turns) > 400
        for question, evidence in QUESTIONS.items():
            items = await session.recall(question, token_budget=BUDGET)
            assert items.tokens <= BUDGET
            assert session._shared.counter.count(items.text()) <= BUDGET
            found = {item.metadata["dia_id"] for item in items}
            assert set(evidence) & found, question
            assert items.confidence > 0


async def test_an_import_told_twice_is_stored_once_and_keeps_its_own_times(conversation: Path) -> None:
    async with ACMS("conv-26", open_storage("memory://")) as session:
        turns = read_file(conversation)
        await session.ingest_many(turns)
        again = await session.ingest_many(turns)
        assert all(receipt.repeated for receipt in again)
        stats = await session.get_session_stats()
        assert stats.messages == len(turns)
        first = (await session.history(limit=1)).entries[0]
        assert first.created_at.year == 2023
        sessions = [
            key for key in json.loads(conversation.read_text())[0]["conversation"] if "_date_time" not in key
        ]
        assert stats.episodes > len(sessions) / 2
