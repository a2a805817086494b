"""A process that pins: `python -m tests.prompt._pinner URL NAMESPACE WHO TIMES`; prints a line after every change.

It opens the store, says "ready" and waits for a line, so that several can begin at once. Then it pins `WHO-0`, `WHO-1`,
…, and lets go of every third one again.
"""

from __future__ import annotations

import asyncio
import sys

from acms.kv import open_kv
from acms.pins import create_pin_registry


async def main(url: str, namespace: str, who: str, times: int) -> None:
    async with open_kv(url) as store:
        registry = create_pin_registry(store, namespace=namespace)
        await registry.list()
        print("ready", flush=True)
        sys.stdin.readline()
        for n in range(times):
            key = f"{who}-{n}"
            await registry.pin(key, label=who, priority=n % 5)
            print(f"+{key}", flush=True)
            if n % 3 == 2:
                await registry.unpin(key)
                print(f"-{key}", flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])))
