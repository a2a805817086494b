"""A sub-agent that is a fork begins its requests with its parent's last one, byte by byte: it reads its cache."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acms import ACMS, ToolCall, open_storage
from acms.codecs import AnthropicMessages, OpenAIChat
from acms.ports import Codec
from acms.prompt import Prompt, Rendered
from tests.prompt.test_stable_history import STOCK, SYSTEM, random_sentence, random_table

CODECS = {
    "openai": OpenAIChat("gpt-5"),
    "anthropic": AnthropicMessages("claude-opus-5-5", cache_history=False),
}
NOW = datetime(2026, 7, 1, 9, tzinfo=UTC)


def request_blocks(rendered: Rendered) -> list[str]:
    """Return a request as a provider reads it, piece by piece: tools, system, and the blocks of each message."""

    def read() -> Iterator[Any]:
        payload = rendered.payload
        yield payload.get("tools")
        yield payload.get("system")
        for message in payload["messages"]:
            content = message.get("content")
            rest = {name: value for name, value in message.items() if name not in ("role", "content")}
            for block in content if isinstance(content, list) else [content]:
                yield message["role"], block
            if rest:
                yield message["role"], rest

    return [json.dumps(one, ensure_ascii=False) for one in read()]


class Parent:
    """An agent in the middle of its work, that hands something over."""

    def __init__(self, url: str, codec: Codec, rng: random.Random, budget: int) -> None:
        self.rng, self.codec, self.budget = rng, codec, budget
        self.storage = open_storage(url)
        self.session = ACMS("parent", self.storage, None)
        self.last: Rendered | None = None

    async def sent(self, session: ACMS, query: str) -> Rendered:
        prompt = Prompt(self.codec).tools([STOCK]).system(SYSTEM).history(session).recall(session, query)
        return await prompt.render(budget=self.budget)

    async def turn(self) -> None:
        text = random_sentence(self.rng)
        await self.session.ingest("user", text, created_at=NOW)
        for call in range(self.rng.choice((0, 0, 1, 2))):
            await self.sent(self.session, text)
            name = f"call_{self.rng.getrandbits(30)}_{call}"
            parts = [ToolCall(name, "stock", "{}")]
            await self.session.ingest("assistant", parts=parts, created_at=NOW)
            await self.session.ingest("tool", random_table(self.rng), tool_call_id=name, created_at=NOW)
        self.last = await self.sent(self.session, text)
        await self.session.ingest("assistant", random_sentence(self.rng), created_at=NOW)

    async def remember(self, messages: int) -> None:
        """Let a long past be said, of which nothing was rendered."""
        said_then = [
            {"role": "user", "content": random_sentence(self.rng), "created_at": NOW} for _ in range(messages)
        ]
        if said_then:
            await self.session.ingest_many(said_then)

    async def hand_over(self, task: str, *names: str) -> Rendered:
        """Let a sub-agent begin on a task: a fork, or a fork of a fork of which nothing was rendered."""
        line = [self.session]
        for name in names:
            line.append(await line[-1].fork(session_id=name))
        await line[-1].ingest("user", task, created_at=NOW)
        try:
            return await self.sent(line[-1], task)
        finally:
            for one in line[1:]:
                await one.close()

    def grows(self, rendered: Rendered) -> bool:
        """Return whether a request begins with the parent's last one."""
        assert self.last is not None
        before = request_blocks(self.last)
        return request_blocks(rendered)[: len(before)] == before

    async def close(self) -> None:
        await self.session.close()
        await self.storage.aclose()


@pytest.mark.parametrize("codec", CODECS)
@settings(max_examples=5)
@given(
    seed=st.integers(0, 2**32),
    past=st.sampled_from((0, 120)),
    turns=st.integers(1, 6),
    budget=st.sampled_from((2500, 6000, 60_000)),
)
async def test_a_fork_goes_on_as_its_parent_would(
    codec: str, seed: int, past: int, turns: int, budget: int
) -> None:
    """As long as the room lasts, which it does for the parent and its forks alike, requests only grow."""
    rng = random.Random(seed)
    parent = Parent("memory://", CODECS[codec], rng, budget)
    try:
        await parent.remember(past)
        for _ in range(turns):
            await parent.turn()
        tasks = [f"{random_sentence(rng)} Go and look for the {name}." for name in ("drill", "lathe")]
        children = [await parent.hand_over(task, f"child-{n}") for n, task in enumerate(tasks)]
        further = await parent.hand_over(tasks[0], "between", "grandchild")
        await parent.session.ingest("user", tasks[0], created_at=NOW)
        own = await parent.sent(parent.session, tasks[0])
        assert parent.grows(own) == parent.grows(children[0]) == parent.grows(further)
        if budget == 60_000:
            assert parent.grows(children[0])
            assert parent.grows(children[1])
        if parent.grows(own):
            assert own.payload == children[0].payload == further.payload
    finally:
        await parent.close()


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize(
    "seeds", [(4, 5, 10, 11), pytest.param(range(16), marks=pytest.mark.slow)], ids=["some", "all"]
)
async def test_what_was_recalled_is_at_the_beginning_of_a_fork_too(codec: str, seeds: Sequence[int]) -> None:
    """Long after the log has outgrown the budget, recalled messages stay in place while there is budget to grow."""
    grown = 0
    for seed in seeds:
        parent = Parent("memory://", CODECS[codec], random.Random(seed), 6000)
        await parent.remember(250)
        for _ in range(8):
            await parent.turn()
        assert parent.last is not None
        if "<recalled>" in json.dumps(parent.last.payload):
            child = await parent.hand_over("Go and look for the drill.", "child")
            grows = parent.grows(child)
            assert grows or parent.last.tokens.upper_bound > 3_700
            grown += grows
        await parent.close()
    assert grown
