"""Several agents, one project: each agent keeps its own session, and reads what the others have found.

All sessions lie in one namespace of one store. An agent's prompt has its own history and recalls from the session of
another agent; messages say who wrote them.

    python examples/several_agents.py
"""

from __future__ import annotations

import asyncio
import sys

from acms import ACMS, Prompt, open_storage
from acms.codecs import AnthropicMessages

PROJECT = "orders-migration"


async def main(url: str = "memory://") -> None:
    async with (
        open_storage(url) as storage,
        ACMS("researcher", storage, namespace=PROJECT) as researcher,
        ACMS("writer", storage, namespace=PROJECT) as writer,
    ):
        await researcher.ingest("user", "How large is the legacy orders table?", actor_id="Ana")
        await researcher.ingest("assistant", "It has 4.2 billion rows, 1.9 TB.", actor_id="researcher")
        await researcher.close_episode()

        task = "Draft the migration plan for the orders table."
        await writer.ingest("user", task, actor_id="Ana")
        rendered = await (
            Prompt(AnthropicMessages("claude-sonnet-5-5"))
            .system("You write plans.")
            .recall(researcher, "orders table rows and size")
            .history(writer)
            .render(budget=1000)
        )
        for part in rendered.payload["messages"][0]["content"]:
            print(part["text"])


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:2]))
