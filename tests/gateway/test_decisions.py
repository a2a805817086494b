"""What is noted about requests: none is lost, however many are noted at the same time."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from acms.gateway.decisions import Remembered, read_requests, record_request
from acms.kv import InMemoryKV


class YieldingKV(InMemoryKV):
    """A store that lets others run before its answer arrives, as a database does."""

    async def get(self, key: str) -> Any:
        entry = await super().get(key)
        await asyncio.sleep(0)
        return entry


async def test_requests_of_one_line_that_are_noted_at_once_are_all_kept() -> None:
    kv = YieldingKV()
    line: Any = SimpleNamespace(name="s1", reason="header")

    def remember(number: int) -> Remembered:
        request: Any = SimpleNamespace(
            namespace="n", protocol=SimpleNamespace(name="p"), model=f"m{number}", headers={}, items=[]
        )
        return Remembered(request=request, line=line)

    await asyncio.gather(*[record_request(kv, remember(number), line) for number in range(16)])
    noted = await read_requests(kv, "n", "s1")
    assert sorted(request["model"] for request in noted) == sorted(f"m{number}" for number in range(16))
