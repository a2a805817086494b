"""An append that names the newest message its writer has seen (rule 1.2)."""

from __future__ import annotations

import asyncio

import pytest

from acms import ACMS, PreconditionError
from acms.ports import StorageBackend


def user_messages(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


async def test_an_append_is_refused_when_a_message_came_after_the_one_its_writer_saw(
    storage: StorageBackend,
) -> None:
    async with ACMS("s", storage) as session:
        (first,) = await session.ingest_many(user_messages("one"), last_message=None)
        (second,) = await session.ingest_many(user_messages("two"), last_message=first.message_id)
        with pytest.raises(PreconditionError, match=second.message_id):
            await session.ingest_many(user_messages("three"), last_message=first.message_id)
        assert (await session.get_session_stats()).messages == 2


async def test_of_many_appends_after_the_same_message_one_is_stored(storage: StorageBackend) -> None:
    async with ACMS("s", storage) as session:
        (first,) = await session.ingest_many(user_messages("one"))
        found = await asyncio.gather(
            *(session.ingest_many(user_messages(str(n)), last_message=first.message_id) for n in range(16)),
            return_exceptions=True,
        )
        assert sum(isinstance(one, list) for one in found) == 1
        assert sum(isinstance(one, PreconditionError) for one in found) == 15


async def test_a_repeated_append_is_answered_though_its_own_message_came_since(
    storage: StorageBackend,
) -> None:
    async with ACMS("s", storage) as session:
        (first,) = await session.ingest_many(user_messages("one"))
        before = await session.ingest_many(
            user_messages("two"), last_message=first.message_id, idempotency_key="k"
        )
        again = await session.ingest_many(
            user_messages("two"), last_message=first.message_id, idempotency_key="k"
        )
        assert again[0].repeated
        assert again[0].message_id == before[0].message_id


async def test_what_is_no_message_does_not_break_the_precondition(storage: StorageBackend) -> None:
    async with ACMS("s", storage) as session:
        (first,) = await session.ingest_many(user_messages("one"))
        await session.close_episode()
        await session.ingest_many(user_messages("two"), last_message=first.message_id)
        assert (await session.get_session_stats()).messages == 2
