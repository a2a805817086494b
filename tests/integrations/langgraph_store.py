"""What a process is driven by that puts items into a store until it is killed."""

from __future__ import annotations

from typing import Self

from acms.integrations.langgraph import ACMSStore
from acms.kv import open_kv


class Driver:
    """A store that is put an item for each turn."""

    def __init__(self, url: str) -> None:
        self._store = ACMSStore(open_kv(url))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._store.kv.aclose()

    async def turn(self, text: str, id: str) -> None:
        """Put the statements."""
        await self._store.aput(("user:1", "said"), id, {"text": text})
