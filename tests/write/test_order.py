"""The first caller writes first, also while a session is being opened."""

from __future__ import annotations

import asyncio
from typing import Any

from acms import ACMS
from acms.ports import Reflection, ReflectionRequest
from acms.storage import MemoryStorage
from tests.support.talk import session_on


class Slow(MemoryStorage):
    """Lets the first who asks for jobs wait longest."""

    asked = 0

    async def jobs(self, query: Any) -> Any:
        self.asked += 1
        for _ in range(20 // self.asked):
            await asyncio.sleep(0)
        return await super().jobs(query)


class Silent:
    """Finds no facts."""

    async def reflect(self, request: ReflectionRequest) -> Reflection:
        return Reflection()


async def test_the_first_writes_of_a_session_that_is_opened_again_keep_their_order() -> None:
    storage = Slow()
    async with storage:
        async with session_on(storage) as session:
            await session.ingest("user", "first")
        again: ACMS = session_on(storage, reflector=Silent())
        async with again:
            first = asyncio.create_task(again.ingest("user", "second"))
            await asyncio.sleep(0)
            for _ in range(4):
                await asyncio.sleep(0)
            await asyncio.gather(first, again.ingest("user", "third"))
            assert [entry.preview for entry in (await again.history()).entries] == [
                "first",
                "second",
                "third",
            ]
