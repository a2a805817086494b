"""Recall across the sessions of a namespace."""

from __future__ import annotations

import pytest

from acms import ACMS, ValidationError
from acms.model import Source
from acms.ports import StorageBackend
from acms.testing import HashEmbedder


async def test_a_namespace_answers_with_what_its_other_sessions_decided(storage: StorageBackend) -> None:
    async with storage:
        async with ACMS("monday", storage, namespace="orders") as monday:
            await monday.ingest("user", "Which queue for the invoices?")
            await monday.ingest("assistant", "Decision: invoices go through RabbitMQ.")
            decided = monday.last_receipt
        async with ACMS("elsewhere", storage, namespace="payroll") as other:
            await other.ingest("assistant", "Decision: invoices go by pigeon.")
        async with ACMS("tuesday", storage, namespace="orders") as tuesday:
            await tuesday.ingest("user", "Good morning.")
            alone = await tuesday.recall("How do invoices travel?", token_budget=200)
            together = await tuesday.recall("How do invoices travel?", token_budget=200, scope="namespace")
        assert decided is not None
        assert [item.content for item in alone] == ["Good morning."]
        assert decided.message_id in [item.id for item in together]
        assert together[-1].content == "Good morning."
        assert together[-1].source is Source.CURRENT
        assert not any("pigeon" in item.content for item in together)
        assert together.tokens <= 200
        assert together.ledger.why(decided.message_id).included


async def test_a_session_without_a_word_of_its_own_can_ask_its_namespace(storage: StorageBackend) -> None:
    async with storage:
        async with ACMS("monday", storage) as monday:
            await monday.ingest("assistant", "Decision: invoices go through RabbitMQ.")
        async with ACMS("new", storage) as new:
            items = await new.recall("invoices", token_budget=100, scope="namespace")
        assert [item.content for item in items] == ["Decision: invoices go through RabbitMQ."]


async def test_other_sessions_are_asked_by_meaning_too(storage: StorageBackend) -> None:
    embedder = HashEmbedder()
    async with storage:
        async with ACMS("monday", storage, embedder) as monday:
            await monday.ingest("assistant", "Decision: invoices go through RabbitMQ.")
        async with ACMS("tuesday", storage, embedder) as tuesday:
            await tuesday.ingest("user", "Good morning.")
            items = await tuesday.recall("invoices RabbitMQ", token_budget=100, scope="namespace")
        found = next(item for item in items if "RabbitMQ" in item.content)
        assert "meaning" in items.ledger.why(found.id).parts


async def test_messages_counted_by_another_counter_are_not_mixed_in(storage: StorageBackend) -> None:
    class Letters:
        name = "letters"

        def count(self, text: str) -> int:
            return len(text)

    async with storage:
        async with ACMS("monday", storage, token_counter=Letters()) as monday:
            await monday.ingest("assistant", "Decision: invoices go through RabbitMQ.")
        async with ACMS("tuesday", storage) as tuesday:
            await tuesday.ingest("user", "Good morning.")
            items = await tuesday.recall("invoices", token_budget=100, scope="namespace")
        assert [item.content for item in items] == ["Good morning."]


async def test_scopes_that_make_no_sense_are_refused(storage: StorageBackend) -> None:
    async with storage, ACMS("monday", storage) as monday:
        await monday.ingest("user", "Good morning.")
        with pytest.raises(ValidationError) as wrong:
            await monday.recall("invoices", scope="world")
        assert wrong.value.field == "scope"
        with pytest.raises(ValidationError) as past:
            await monday.at(1).recall("invoices", scope="namespace")
        assert past.value.field == "scope"
