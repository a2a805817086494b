"""Ingest two messages, ask for what matters: no key, no network. Run it twice, and it remembers.

python examples/quickstart.py
"""

from __future__ import annotations

import asyncio
import sys

from acms import ACMS, open_storage


async def main(url: str = "sqlite:///memory.db") -> None:
    async with ACMS("user_123", open_storage(url)) as session:
        await session.ingest("user", "Which database should the orders service use? We expect 2 TB.")
        await session.ingest(
            "assistant", "Decision: PostgreSQL 18 with pgvector, because we need transactions and search."
        )
        for item in await session.recall("what did we choose for orders?", budget=500):
            print(f"{item.score:.2f} v{item.version} {item.source} {item.token_count} tokens: {item.content}")
            print(f"     {item.why}")

        stats = await session.get_session_stats()
        print(f"{stats.messages} messages, {stats.tokens} tokens, version {stats.version}")

        # The log never forgets: the same question as if the conversation had ended after its first message.
        view = session.at(1)
        print(f"at version 1: {(await view.window(500)).text()}")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:2]))
