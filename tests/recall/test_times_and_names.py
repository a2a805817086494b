"""Times and names in a question, from the verb to the store and back."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from acms import ACMS, ContextItems, open_storage
from acms.recall.reindex import reindex
from acms.text import index_record

FIRST = datetime(2026, 3, 2, 19, tzinfo=UTC)
DISHES = ("ramen", "pierogi", "falafel", "paella")


def best_content(items: ContextItems) -> str:
    return max(items, key=lambda item: item.score).content


async def test_cards_of_before_answer_as_they_did_and_are_written_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    texts = ("see src/billing/invoice_total.py", "my café is open", "Good morning", "The bus was late")
    url = f"sqlite:///{tmp_path / 'a.db'}"
    monkeypatch.setattr(index_record, "find_names", lambda _: [])  # pyright: ignore[reportUnknownLambdaType]
    async with open_storage(url) as storage, ACMS("old", storage) as session:
        for number, text in enumerate(texts):
            await session.ingest("user", text, created_at=FIRST + timedelta(days=number))
    monkeypatch.undo()

    async def asked(question: str) -> list[str]:
        async with open_storage(url) as storage, ACMS("old", storage) as session:
            items = await session.recall(question, budget=300, relevant_only=True)
            return [item.content for item in sorted(items, key=lambda item: -item.score)]

    for question, text in (
        ("invoice_total", texts[0]),
        ("src/billing/invoice_total.py", texts[0]),
        ("café", texts[1]),
    ):
        assert (await asked(question))[0] == text
    assert not await asked("invoice")
    async with open_storage(url) as storage:
        assert (await reindex(storage)).cards == 1
        assert (await reindex(storage)).cards == 0
    assert (await asked("invoice"))[0] == texts[0]
