"""Say something, change your mind, ask: what is known stays true. No key, no network.

python examples/facts.py
"""

from __future__ import annotations

import asyncio
import sys

from acms import ACMS, open_storage
from acms.providers import OfflineReflector


async def main(url: str = "memory://") -> None:
    async with ACMS("user_123", open_storage(url), reflector=OfflineReflector()) as session:
        for said in ("Constraint: the deadline is March 15.", "Constraint: the deadline is March 20."):
            await session.ingest("user", said)
            await session.ingest("assistant", "Noted.")
            await session.close_episode()
            await session.wait_pending()
        for fact in await session.facts(history=True):
            until = f"{fact.retired.reason} at v{fact.retired.version}" if fact.retired else "active"
            print(f"v{fact.version} {fact.subject} | {fact.attribute} | {fact.value} ({until})")
        print((await session.recall("when is the deadline?", budget=100)).text())


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:2]))
