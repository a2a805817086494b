"""A first hour with ACMS in one run: every verb that a new user tries, in the order in which they try it.

    python examples/first_hour.py [FOLDER]

Needs no key and no network. The database, the export and the service's files stay in FOLDER, which must be empty;
without one a temporary folder is used. Each step prints what it did and checks it.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from acms import ACMS, Prompt, open_storage
from acms.branches.export import export
from acms.branches.restoring import restore
from acms.client import Client
from acms.codecs import OpenAIChat
from acms.providers import OfflineReflector

SESSION = "orders-team"
QUESTION = "which database did we choose for the orders service?"


def say(step: str, text: object) -> None:
    print(f"{step:>10}  {text}")


def turn(number: int) -> list[dict[str, Any]]:
    """Return one turn as OpenAI's API has it; every tenth one calls a tool."""
    asked = {"role": "user", "content": f"Ticket {number}: is host db{number % 7} still healthy?"}
    if number == 40:
        asked = {"role": "user", "content": "Decision: we use MySQL for the orders service."}
    if number == 60:
        asked = {
            "role": "user",
            "content": "Decision: switch from MySQL to PostgreSQL for the orders service.",
        }
    if number % 10:
        return [asked, {"role": "assistant", "content": f"Ticket {number} is noted."}]
    call = {
        "id": f"call_{number}",
        "type": "function",
        "function": {"name": "health", "arguments": json.dumps({"host": f"db{number % 7}"})},
    }
    return [
        asked,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": call["id"], "content": f"db{number % 7}: up for {number} days"},
        {"role": "assistant", "content": "It is healthy."},
    ]


async def talk(url: str, first: int, last: int) -> None:
    """Hold some turns; the session is closed at the end, as when a program stops."""
    async with ACMS(SESSION, url, reflector=OfflineReflector()) as session:
        for number in range(first, last):
            await session.ingest_many(turn(number))
        await session.wait_pending()


async def remember(session: ACMS) -> None:
    """Ask what a model should see: a few items, or a whole request."""
    items = await session.recall(QUESTION, budget=300)
    best = items.best(1)[0]
    assert "PostgreSQL" in best.content
    assert items.tokens <= 300
    say("recall", f"{best.content}  ({items.tokens} of 300 tokens; {items.ledger.why(best.id)})")

    prompt = Prompt(OpenAIChat("gpt-5")).system("You help the orders team.").history(session)
    rendered = await prompt.recall(session, QUESTION).user(QUESTION).render(budget=2000)
    assert rendered.tokens.upper_bound <= 2000
    assert "PostgreSQL" in str(rendered.payload)
    say(
        "prompt",
        f"{len(rendered.payload['messages'])} messages, {rendered.tokens.upper_bound} tokens at most",
    )


async def branch(session: ACMS) -> None:
    """Go back to where the database was still MySQL and try something else; compare both."""
    entries = await session.entries()
    (decided,) = [entry.version for entry in entries if entry.content.startswith("Decision: switch")]
    async with await session.fork(at=decided - 1, session_id="what-if") as fork:
        await fork.ingest("user", "Decision: MySQL stays; we shard it.")
        delta = await session.diff(fork)
        assert len(delta.messages.added) == 1
        assert len(delta.messages.removed) > 90
        say("fork", f"at version {decided - 1}")
        say("diff", str(delta).splitlines()[3])


async def shorten(session: ACMS) -> None:
    """Let a summary stand for the older part of the log; the details are still found."""
    done = await session.wait(await session.compact())
    assert done is not None
    assert done.tokens_after < done.tokens_before
    items = await session.recall("ticket 17", budget=200)
    assert any("Ticket 17:" in item.content for item in items)
    say("compact", f"{done.tokens_before} tokens to {done.tokens_after}")


async def know(session: ACMS) -> None:
    """Read the facts that were found in the background, and what they replaced."""
    known = {fact.value: fact for fact in await session.facts()}
    assert "PostgreSQL" in known
    assert "MySQL" not in known
    for fact in await session.facts(history=True):
        if fact.value in ("MySQL", "PostgreSQL"):
            say("facts", f"{fact.content}  ({fact.retired.reason if fact.retired else 'active'})")


async def forget(session: ACMS) -> None:
    """Erase a message with everything made from it, and have it proved."""
    secret = await session.ingest("user", "My phone number is +33 6 12 34 56 78.")
    erased = await session.erase(secret, verify=True)
    assert not erased.residue
    assert "34 56" not in (await session.recall("what is my phone number?", budget=300)).text()
    say("erase", f"{len(erased.ids)} entry, nothing of it left in the file")


async def carry(session: ACMS, folder: Path) -> None:
    """Export the log as JSON lines and restore it, verbatim, in another store."""
    lines = [line async for line in export(session.storage, SESSION)]
    (folder / "log.jsonl").write_text("".join(lines), encoding="utf-8")
    async with open_storage("memory://") as other:
        await restore(other, lines)
        assert [line async for line in export(other, SESSION)] == lines
    say("export", f"{len(lines)} lines, the same after a restore")


async def share(url: str) -> None:
    """Write from two processes at once, and read what both wrote."""
    code = (
        "import sys; from acms.sync import ACMS\n"
        f"with ACMS('shared', {url!r}) as session:\n"
        "    for number in range(25): session.ingest('user', f'{sys.argv[1]} {number}')\n"
    )
    both = [await asyncio.create_subprocess_exec(sys.executable, "-c", code, name) for name in ("one", "two")]
    assert [await process.wait() for process in both] == [0, 0]
    async with ACMS("shared", url) as session:
        assert [entry.version for entry in await session.entries()] == list(range(1, 51))
    say("processes", "2 wrote 50 messages, versions 1 to 50 without a gap")


@asynccontextmanager
async def served(url: str) -> AsyncIterator[str]:
    """Run `acms serve` on a free port."""
    command = [sys.executable, "-m", "acms.cli", "serve", "--port", "0", "--json", "--db", url]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert process.stdout
    try:
        yield json.loads(await process.stdout.readline())["url"]
    finally:
        process.terminate()
        await process.wait()


async def remote(url: str) -> None:
    """Do the same over HTTP: a remote session has the verbs of a session."""
    async with served(url) as address, Client(address) as client:
        session = client.session(SESSION)
        items = await session.recall(QUESTION, budget=300)
        assert "PostgreSQL" in items.text()
        fork = await session.fork(at=120, session_id="over-http")
        secret = await fork.ingest("user", "My phone number is +33 6 12 34 56 78.")
        assert secret in [entry.id for entry in (await session.diff(fork)).messages.added]
        done = await fork.wait(await fork.compact())
        assert done is not None
        assert done.tokens_after < done.tokens_before
        assert "PostgreSQL" in {fact.value for fact in await session.facts()}
        assert not (await fork.erase(secret, verify=True)).residue
        lines = [line async for line in client.export(session)]
        assert json.loads(lines[0])["key"] == SESSION
        say("http", f"recall, fork, diff, compact, facts, erase and export at {address}")


async def main(folder: Path) -> None:
    url = f"sqlite:///{folder / 'memory.db'}"
    await talk(url, 1, 51)
    await talk(url, 51, 101)  # the program starts again and goes on
    async with ACMS(SESSION, url, reflector=OfflineReflector()) as session:
        stats = await session.get_session_stats()
        assert (stats.messages, stats.version >= stats.messages) == (220, True)
        say("turns", f"100 in two runs: {stats.messages} messages, {stats.tokens} tokens")
        await remember(session)
        await branch(session)
        await shorten(session)
        await know(session)
        await forget(session)
        await carry(session, folder)
    await share(url)
    await remote(url)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        asyncio.run(main(Path(sys.argv[1] if len(sys.argv) > 1 else temporary)))
