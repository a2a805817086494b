"""Sources that hang, raise, lie, answer for others, send too much or what they must not: all at the same time.

Whatever they do there is a reply, valid, within its tokens, without a secret, and no task is left behind.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from acms.contract import Candidate, Layer, ProviderRequest, ProviderResponse
from tests.support.sources import Source, checked_reply, make_engine, make_item, never_answer, request

KEY = "ghp_" + "aB3dE6gH9jK2" * 3
TEXT = "The orders are moved by night, and nobody at all is told about it in time."
Act = Callable[[ProviderRequest], Awaitable[Any]]


class Broken(dict[str, Any]):
    def __getitem__(self, key: str) -> Any:
        raise RecursionError(KEY)


class Endless(list[Any]):
    def __iter__(self) -> Any:
        while True:
            yield make_item("again", TEXT, "orders")


class Speechless(Exception):
    def __str__(self) -> str:
        raise RuntimeError(KEY)


class Hostile:
    """Makes sources that misbehave, each in another way."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        nested: list[Any] = []
        for _ in range(900):
            nested = [nested]
        self.odd = [
            None, -1, 10**30, float("nan"), "\0", "\ud800", "x" * 200_000, [], {}, nested, True, b"x", object(),
            "2026-01-01T00:00:00", "block", "L1", TEXT, [{"lod": "macro", "text": KEY}],
        ]  # fmt: skip
        self.large = [make_item(f"l{n}", TEXT, "orders") for n in range(2_000)]

    def candidate(self) -> dict[str, Any]:
        rng = self.rng
        texts = [TEXT, TEXT * 20, f"{KEY} {TEXT}", KEY, "orders " * 900, "", None]
        names = rng.sample(["orders", "migration", KEY, TEXT[:40]], rng.randint(0, 4))
        made = make_item(f"id:{rng.randint(0, 9)}", rng.choice(texts), *names, cost=rng.choice([0, 1, 10**6]))
        for _ in range(rng.randint(0, 2)):
            field = rng.choice([*made, "privacy", "variants", "lod", "relevance", "citations", "more"])
            made[field] = rng.choice(self.odd)
        return made

    def answer(self, asked: ProviderRequest, **more: Any) -> dict[str, Any]:
        found = [self.candidate() for _ in range(self.rng.randint(0, 20))]
        return {"request_id": asked.request_id, "candidates": found, "latency_ms": 1, **more}

    async def answers(self, asked: ProviderRequest) -> Any:
        return self.answer(asked)

    async def garbles(self, asked: ProviderRequest) -> Any:
        good = self.answer(asked)
        return self.rng.choice(
            [
                *self.odd,
                Broken(good),
                {**good, "request_id": "another"},
                {**good, "candidates": Endless([1, 2, 3])},
                {**good, "candidates": self.large * 6},
                {**good, "warnings": [KEY] * 5_000},
                {**good, "latency_ms": "soon"},
                ProviderResponse(
                    request_id=asked.request_id,
                    candidates=(Candidate(id="c", source=Layer.L2, text=KEY, lod=self.rng.choice(self.odd)),),
                ),
            ]
        )

    async def raises(self, asked: ProviderRequest) -> Any:
        raise self.rng.choice(
            [Speechless(), RuntimeError(KEY), TimeoutError(), ConnectionError(), MemoryError(), RecursionError(),
             asyncio.CancelledError(), GeneratorExit(), BaseException(KEY)]
        )  # fmt: skip

    async def sends_much(self, asked: ProviderRequest) -> Any:
        return {"request_id": asked.request_id, "candidates": self.large, "latency_ms": 1}

    async def will_not_end(self, asked: ProviderRequest) -> Any:
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                continue

    async def answers_when_cancelled(self, asked: ProviderRequest) -> Any:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return self.answer(asked)

    def source(self, number: int) -> Source:
        acts: list[Act] = [
            never_answer, self.answers, self.answers, self.garbles, self.raises, self.sends_much, self.will_not_end,
            self.answers_when_cancelled,
        ]  # fmt: skip
        layer = self.rng.choice(["L1", "L2", "L2", "L4"])
        return Source(
            layer, self.rng.choice(acts), name=f"s{number}", deadline_ms=self.rng.choice([None, 30, 5_000])
        )


async def survive_rounds(rounds: int) -> None:
    rng = random.Random(20)
    hostile = Hostile(rng)
    for turn in range(rounds):
        acs = make_engine(*(hostile.source(n) for n in range(rng.randint(1, 5))))
        mode, tokens = rng.choice(["allow", "redact", "block"]), rng.choice([0, 10, 300, 4_000])
        body = request(
            ms=rng.choice([40, 80, 120]), tokens=tokens, privacy=mode, risk=rng.choice(["low", "high"])
        )
        before = asyncio.all_tasks()
        reply = await acs.render(body, action=rng.choice([None, None, "explicit_l1_expansion"]))
        assert asyncio.all_tasks() <= before, turn
        told = json.dumps(checked_reply(reply)) + repr(list(reply.ledger))
        assert KEY not in told, turn
        if mode == "block":
            assert not any(one.text for one in reply.fragments or ()), turn
        if reply.fragments is not None:
            assert reply.metrics is not None
            assert sum(one.cost_tokens for one in reply.fragments) == reply.metrics.used_tokens <= tokens, (
                turn
            )
        assert reply.error is None or reply.error.code != "INTERNAL", turn


async def test_check_25_whatever_sources_do_there_is_a_reply() -> None:
    """The first 25 rounds; 1,000: `pytest -m slow tests/contract/test_hostile.py`."""
    await survive_rounds(25)


@pytest.mark.slow
async def test_check_25_whatever_sources_do_there_is_a_reply_a_thousand_times() -> None:
    await survive_rounds(1_000)
