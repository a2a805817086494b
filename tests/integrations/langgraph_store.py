"""A process that puts items into a store until it is killed."""

from __future__ import annotations

import asyncio

from acms.integrations.langgraph import ACMSStore
from acms.kv import open_kv
from tests.integrations import agent as script


def main(url: str, first: int, last: int) -> None:
    """Put an item for each turn, and tell of each."""

    async def run() -> None:
        store = ACMSStore(open_kv(url))
        for turn in range(first, last):
            await store.aput(("user:1", "said"), str(turn), {"text": script.said(turn)})
            script.acknowledge(turn)

    asyncio.run(run())
