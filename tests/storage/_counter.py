"""A process that counts: `python -m tests.storage._counter URL KEY TIMES`; prints a line after every count."""

from __future__ import annotations

import asyncio
import sys

from acms.kv import KVEntry, open_kv, update_entry


def next_count(entry: KVEntry | None) -> int:
    return 1 if entry is None else entry.data + 1


async def main(url: str, key: str, times: int) -> None:
    async with open_kv(url) as store:
        for _ in range(times):
            print((await update_entry(store, key, next_count)).data, flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
