"""Random stories told to a session: its answers are whole, within budget, and the past stays put."""

from __future__ import annotations

import asyncio
import tempfile
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from acms import (
    ACMS,
    ACMSConfig,
    ContextItems,
    Entry,
    EpisodeBoundaryConfig,
    GoneError,
    Kind,
    TokenBudgetExceededError,
    ToolCall,
    ToolResult,
    ValidationError,
    View,
    open_storage,
)
from acms.recall.planner import MIN_BUDGET_TOKENS
from acms.text import chat_messages
from tests.servers.stores import another
from tests.support.counters import COUNTERS
from tests.support.provider import check_valid
from tests.support.talk import comparable_answers, log_of

NOON = datetime(2026, 3, 14, 12, tzinfo=UTC)
WORDS = ["orders", "database", "Decision: cache", "数据库", "x" * 60, "  indented\n", "thanks", "🙂"]

texts = st.lists(st.sampled_from(WORDS), min_size=1, max_size=6).map(" ".join)
ids = st.sampled_from(["c1", "c2", "c3"])
calls = st.lists(ids, min_size=1, max_size=3, unique=True)
places = st.integers(0, 40)
budgets = st.integers(0, 60) | st.integers(0, 2000)

steps = st.one_of(
    st.tuples(st.just("say"), st.sampled_from(["user", "assistant", "system", "tool"]), texts),
    st.tuples(st.just("say"), st.just("user"), texts),
    st.tuples(st.just("mark"), st.sampled_from(["goal", "constraint", "custom:x"]), texts),
    st.tuples(st.just("wait"), st.sampled_from([-60, 10, 1801])),
    st.tuples(st.just("call"), calls, st.sampled_from(["", "let me look"])),
    st.tuples(st.just("answer"), ids, texts, st.sampled_from([1, 30])),
    st.tuples(st.just("answer"), ids, texts, st.just(1)),
    st.tuples(st.just("answers"), calls, texts),
    st.tuples(st.just("retract"), places, st.booleans()),
    st.tuples(st.just("replace"), places, texts),
    st.tuples(st.just("clear")),
    st.tuples(st.just("close")),
    st.tuples(st.just("reopen")),
    st.tuples(st.just("look"), places, budgets, texts),
    st.tuples(st.just("look"), st.just(40), budgets, texts),
    st.tuples(st.just("remember"), places),
)


@dataclass
class Story:
    """A session, the clock of its user, and the observations of its past."""

    url: str
    counter: Any
    time: datetime = NOON
    seen: dict[int, Any] = field(default_factory=dict)

    async def tell(self, told: list[tuple[Any, ...]]) -> None:
        store = open_storage(self.url)
        async with store:
            self.session = self.open(store)
            for name, *given in told:
                if name == "reopen":
                    await self.session.close()
                    if not self.url.startswith("memory"):
                        await store.aclose()
                    self.session = self.open(store)
                else:
                    await getattr(self, name)(*given)
            await self.gap_free()
            await self.look(40, 200, "orders database")
            for version, said in self.seen.items():
                assert await comparable_answers(self.session.at(version)) == said
            await self.session.close()

    def open(self, store: Any) -> ACMS:
        config = ACMSConfig(episodes=EpisodeBoundaryConfig(max_turns=4))
        return ACMS("story", store, token_counter=self.counter, config=config)

    # ── what may happen ─────────────────────────────────────────────────────────────────────────────────────────────

    async def put(self, role: str, content: str = "", **given: Any) -> None:
        self.time += timedelta(seconds=1)
        await self.session.ingest(role, content, created_at=self.time, **given)

    async def say(self, role: str, content: str) -> None:
        await self.put(role, content)

    async def mark(self, marker: str, content: str) -> None:
        await self.put("user", content, markers=[marker], actor_id="Sam")

    async def wait(self, seconds: int) -> None:
        self.time += timedelta(seconds=seconds)

    async def call(self, found: list[str], content: str) -> None:
        made = [{"id": id, "name": "look", "arguments": '{"at": 1}'} for id in found]
        await self.put("assistant", content, tool_calls=made)

    async def answer(self, id: str, content: str, times: int) -> None:
        await self.put("tool", content * times, tool_call_id=id)

    async def answers(self, found: list[str], content: str) -> None:
        await self.put("tool", parts=[ToolResult(id, content) for id in found])

    async def pick(self, place: int) -> Any:
        log = await log_of(self.session)
        return log[place % len(log)] if log else None

    async def retract(self, place: int, alone: bool) -> None:
        target = await self.pick(place)
        if target is not None:
            await self.session.retract(target.id, alone=alone)

    async def replace(self, place: int, content: str) -> None:
        target = await self.pick(place)
        if target is None:
            return
        try:
            await self.session.replace(target.id, content)
        except GoneError:
            assert not target.in_force
        except ValidationError:
            assert target.kind is not Kind.MESSAGE

    async def clear(self) -> None:
        await self.session.clear()
        assert await self.session.entries() == []

    async def close(self) -> None:
        if (await self.session.get_session_stats()).episodes:
            await self.session.close_episode()

    async def remember(self, place: int) -> None:
        version = await self.at(place)
        self.seen.setdefault(version, await comparable_answers(self.session.at(version)))

    # ── what must hold ──────────────────────────────────────────────────────────────────────────────────────────────

    async def at(self, place: int) -> int:
        return min(place, (await self.session.get_session_stats()).version)

    async def look(self, place: int, budget: int, query: str) -> None:
        version = await self.at(place)
        view: View = self.session.at(version)
        sequence = await view.entries()
        groups: dict[str, list[Entry]] = {}
        for entry in sequence:
            groups.setdefault(entry.group or entry.id, []).append(entry)

        window = await view.window(budget)
        self.sound(window, groups, sequence)
        whole = [item.id for item in await view.window(10**8)]
        assert [item.id for item in window] == whole[len(whole) - len(window) :]
        recalled = await view.recall(query, token_budget=budget)
        self.sound(recalled, groups, sequence, unless=("query",))
        assert await view.recall(query, token_budget=budget) == recalled
        try:
            messages = await view.messages(query, budget=budget)
        except TokenBudgetExceededError as error:
            assert error.required > budget
            return
        check_valid(messages)
        assert (chat_messages.count_message_tokens(messages, self.counter) if messages else 0) <= budget

    def sound(
        self,
        items: ContextItems,
        groups: dict[str, list[Entry]],
        sequence: list[Entry],
        unless: tuple[str, ...] = (),
    ) -> None:
        assert sum(item.token_count for item in items) == items.tokens <= items.budget
        assert self.counter.count(items.text()) <= items.budget
        shown = [item.id for item in items]
        assert len(set(shown)) == len(shown)
        for members in groups.values():
            found = [id for id in shown if id in {one.id for one in members}]
            assert found in ([], [one.id for one in members])
            asked = {part.call_id for one in members for part in one.parts if isinstance(part, ToolCall)}
            told = {part.call_id for one in members for part in one.parts if isinstance(part, ToolResult)}
            if found and members[0].group is not None:
                assert told <= asked
        if sequence:
            verdict = items.ledger.why(sequence[-1].id)
            assert verdict.included or verdict.rule in ("hidden", *unless) or items.budget < MIN_BUDGET_TOKENS
        said = {one.id: one.content for one in sequence}
        for item in items:
            assert item.truncated or item.content == said[item.id]

    async def gap_free(self) -> None:
        log = await log_of(self.session)
        assert [entry.version for entry in log] == list(range(1, len(log) + 1))
        positions = [entry.position for entry in log if entry.kind is Kind.MESSAGE]
        assert positions == list(range(1, len(positions) + 1))
        found = await self.session.episodes()
        assert [one.ordinal for one in found] == list(range(1, len(found) + 1))
        assert all(one.status == "closed" for one in found[:-1])


def run_story(url: str, told: list[tuple[Any, ...]], counter: Any) -> None:
    asyncio.run(Story(url, counter).tell(told))


@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(steps, min_size=1, max_size=25), st.sampled_from(COUNTERS))
def test_a_story_in_memory(told: list[tuple[Any, ...]], counter: Any) -> None:
    run_story("memory://", told, counter)


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(steps, min_size=1, max_size=25), st.sampled_from(COUNTERS))
def test_a_story_in_a_file(told: list[tuple[Any, ...]], counter: Any) -> None:
    with tempfile.TemporaryDirectory() as folder:
        run_story(f"sqlite:///{Path(folder) / 'log.db'}?durability=relaxed", told, counter)


@settings(max_examples=8, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(told=st.lists(steps, min_size=1, max_size=25), counter=st.sampled_from(COUNTERS))
def test_a_story_on_postgres(told: list[tuple[Any, ...]], counter: Any, postgres_home: str) -> None:
    run_story(another(postgres_home), told, counter)


@pytest.mark.slow
@settings(max_examples=3000, suppress_health_check=list(HealthCheck))
@given(st.lists(steps, min_size=10, max_size=60), st.sampled_from(COUNTERS))
def test_many_long_stories(told: list[tuple[Any, ...]], counter: Any) -> None:
    run_story("memory://", told, counter)
