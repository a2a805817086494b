"""Several agents, one project: each agent keeps its own session, and reads what the others have found.

In one process all sessions lie in one namespace of one store: an agent's prompt has its own history and recalls from
the session of another agent; messages say who wrote them. At a service each agent has a key that is bound to its own
namespace, and the project is shared with them until one is sent away.

    python examples/several_agents.py
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from acms import ACMS, NotFoundError, Prompt, open_storage
from acms.client import Client
from acms.codecs import AnthropicMessages
from acms.errors import PermissionDeniedError
from acms.server import create_app

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
    with tempfile.TemporaryDirectory() as folder:
        await shared(f"sqlite:///{Path(folder) / 'team.db'}")


@asynccontextmanager
async def served(url: str) -> AsyncIterator[str]:
    """Run `acms serve` on a free port; every request needs a key."""
    words = [
        sys.executable,
        "-m",
        "acms.cli",
        "serve",
        "--port",
        "0",
        "--auth",
        "required",
        "--json",
        "--db",
        url,
    ]
    process = await asyncio.create_subprocess_exec(*words, stdout=asyncio.subprocess.PIPE)
    assert process.stdout
    try:
        yield json.loads(await process.stdout.readline())["url"]
    finally:
        process.terminate()
        await process.wait()


async def shared(url: str) -> None:
    """Let three agents share what they know, and send one away."""
    app = create_app(url)
    keys = app.keys
    _, lead_secret = await keys.create("acme", name="lead", namespaces=["lead", PROJECT])
    writer, writer_secret = await keys.create("acme", name="writer", namespaces=["writer"])
    guest, guest_secret = await keys.create("acme", name="guest", namespaces=["guest"])
    await app.stop()
    async with (
        served(url) as address,
        Client(address, api_key=lead_secret) as one,
        Client(address, api_key=writer_secret) as two,
        Client(address, api_key=guest_secret) as three,
    ):
        for key in (writer, guest):
            await one.grant(PROJECT, key.id, actions=["write"])
        agents = [
            client.session(f"agent-{n}", namespace=PROJECT) for n, client in enumerate((one, two, three))
        ]
        await asyncio.gather(
            *[
                agent.state("orders table", "owner", owner, scope="namespace")
                for agent, owner in zip(agents, ("Ana", "Ben", "Cleo"), strict=True)
            ]
        )
        known = await agents[0].facts(scope="namespace", history=True)
        print(
            f"{len(known)} answers to who owns the table, {sum(one.retired is None for one in known)} active"
        )
        await one.revoke(PROJECT, guest.id)
        try:
            await agents[2].recall("Who owns the orders table?", budget=200, scope="namespace")
        except (NotFoundError, PermissionDeniedError) as error:
            print(f"the guest sees it no more: {error.code}")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:2]))
