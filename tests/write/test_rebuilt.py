"""State rebuilt from a log equals the stored state, after any operations on the log."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from acms import ACMS, ACMSError, Entry, Kind, open_storage
from acms.log.known_messages import KnownMessages
from acms.ports import StorageBackend
from acms.storage import MemoryStorage
from acms.write.episodes import Tail
from acms.write.queue import WriteQueue
from tests.support.talk import Storage, session_on

pytestmark = pytest.mark.anyio

VERBS = [
    *["say"] * 4,
    *["sync"] * 2,
    *"replace retract alone undo clear close state compact fork merge".split(),
]


async def rebuild_tail(storage: StorageBackend, context: str) -> Tail:
    return await WriteQueue(storage, context, os.urandom)._rebuild_tail(await storage.head(context))


async def restore_log(storage: StorageBackend, context: str) -> MemoryStorage:
    async def entries() -> AsyncIterator[Entry]:
        for entry in await storage.read(context):
            yield entry

    found = MemoryStorage()
    await found.restore(await storage.context(context), entries())
    return found


# ── by hand ─────────────────────────────────────────────────────────────────────────────────────────────────────────

CALL = {"id": "x", "type": "function", "function": {"name": "look", "arguments": "{}"}}
FIRST, SECOND = [
    {"role": "assistant", "content": "", "id": key, "tool_calls": [CALL]} for key in ("k1", "k2")
]


async def message_groups(session: ACMS) -> list[str | None]:
    context = await session.context_id()
    return [one.group for one in await session.storage.read(context or "", kinds=(Kind.MESSAGE,))]


async def test_a_result_in_a_log_without_a_tail_joins_the_call_in_force() -> None:
    session = session_on(MemoryStorage(), "first")
    await session.sync([FIRST, SECOND])
    await session.sync([FIRST], gone="retract")
    copy = session_on(await restore_log(session.storage, await session.context_id() or ""), "first")
    for one in (await session.fork(session_id="fork"), copy, session):
        await one.ingest("tool", "found", tool_call_id="x")
        first, second, found = await message_groups(one)
        assert found == first != second


async def test_a_result_joins_the_older_call_when_the_newer_one_was_retracted(storage: Storage) -> None:
    session = session_on(storage, "first")
    await session.sync([FIRST, SECOND])
    await session.retract("k2")
    await session.ingest("tool", "found", tool_call_id="x")
    first, second, found = await message_groups(session)
    assert found == first != second
    await session.close()


async def test_a_result_joins_a_call_that_came_back(storage: Storage) -> None:
    session = session_on(storage, "first")
    begin = {"role": "user", "content": "look", "id": "k"}
    await session.sync([begin, FIRST])
    await session.sync([begin], gone="retract")
    await session.undo(3)
    await session.ingest("tool", "found", tool_call_id="x")
    assert [one.content for one in await session.window(900)] == ["look", "look({})", "found"]
    await session.close()


async def test_the_result_of_a_call_that_was_taken_back_is_not_shown_in_a_fork(storage: Storage) -> None:
    session = session_on(storage, "first")
    await session.sync([FIRST])
    await session.clear()
    fork = await session.fork(session_id="fork")
    for one in (session, fork):
        await one.ingest("tool", "found", tool_call_id="x")
        assert len(await one.window(900)) == 0
        await one.close()


# ── by chance ───────────────────────────────────────────────────────────────────────────────────────────────────────


class Branch:
    """A session, and the list that a framework holds of it."""

    def __init__(self, session: ACMS, held: list[dict[str, Any]]) -> None:
        self.session, self.held = session, held

    async def act(self, verb: str, rng: Random, number: int, branches: list[Branch]) -> None:
        session, context = self.session, await self.session.context_id()
        log = await session.storage.read(context or "") if context else []
        if verb == "say" or not log:
            await session.ingest_many([random_message(rng)])
        elif verb == "sync":
            await self.sync(rng, f"{session.session_id}{number}")
        elif verb == "replace":
            await session.replace(rng.choice([one for one in log if one.kind is Kind.MESSAGE]).id, "edited")
        elif verb in ("retract", "alone"):
            await session.retract(rng.choice(log).id, alone=verb == "alone")
        elif verb == "undo":
            await session.undo(rng.choice([one for one in log if one.replaces] or log).version)
        elif verb == "clear":
            await session.clear()
            self.held = []
        elif verb == "close":
            await session.close_episode()
        elif verb == "state":
            await session.state("api", "port", str(number))
        elif verb == "compact":
            await session.wait(await session.compact(preserve_recent_count=rng.randrange(4)))
        elif verb == "fork":
            branches.append(Branch(await session.fork(session_id=f"f{number}"), list(self.held)))
        else:
            await session.merge(rng.choice(branches).session, strategy=rng.choice(["ours", "theirs"]))

    async def sync(self, rng: Random, key: str) -> None:
        held = [*self.held, *({**random_message(rng), "id": f"{key}-{n}"} for n in range(rng.randrange(3)))]
        if held and rng.random() < 0.5:
            at = rng.randrange(len(held))
            held[at] = {**random_message(rng, held[at]["role"]), "id": held[at]["id"]}
        if len(held) > 1 and rng.random() < 0.3:
            del held[rng.randrange(1, len(held))]
        await self.session.sync(held, gone=rng.choice(["retract", "keep"]))
        self.held = held

    async def check(self) -> None:
        storage, context = self.session.storage, await self.session.context_id()
        if context is None:
            return
        tail, new, known = await rebuild_tail(storage, context), KnownMessages(), self.session._shared.known
        kept = (await storage.head(context)).tail
        if kept:
            assert replace(Tail.from_json(kept), asked=0) == tail
        await new.catch_up(storage, context)
        await known.catch_up(storage, context)
        assert (new.rows, new._by_key) == (known.rows, known._by_key)
        if not (await storage.context(context)).lineage:
            copy, again = await restore_log(storage, context), KnownMessages()
            assert await rebuild_tail(copy, context) == tail
            await again.catch_up(copy, context)
            assert again.rows == new.rows


def random_message(rng: Random, role: str | None = None) -> dict[str, Any]:
    role = role or rng.choice(["user", "assistant", "assistant", "tool", "tool"])
    if role == "tool":
        return {"role": role, "tool_call_id": rng.choice("xy"), "content": "found"}
    calls = rng.choice(["", "x", "y", "xy"]) if role == "assistant" else ""
    function = {"name": "look", "arguments": "{}"}
    asked = [{"id": call, "type": "function", "function": function} for call in calls]
    return {"role": role, "content": rng.choice(["so", "thanks"])} | ({"tool_calls": asked} if asked else {})


async def run_story(storage: Storage, seed: int, steps: int) -> None:
    rng = Random(seed)
    branches = [Branch(session_on(storage, "first"), [])]
    for number in range(steps):
        branch = rng.choice(branches)
        try:
            await branch.act(rng.choice(VERBS), rng, number, branches)
        except ACMSError as error:
            assert not error.retryable
        for one in branches:
            await one.check()
    for one in branches:
        await one.session.close()


@pytest.mark.parametrize("seed", range(4))
async def test_tails_and_known_messages_are_rebuilt_as_they_were_kept(seed: int, tmp_path: Path) -> None:
    await run_story(MemoryStorage(), seed, 24)
    async with open_storage(f"sqlite:///{tmp_path}/log.db") as storage:
        await run_story(storage, 100 + seed, 8)
