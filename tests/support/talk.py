"""Ways to talk to a session, shared by the tests of flows."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, TypeAlias

from acms import ACMS, ACMSConfig, ContextItems, EpisodeBoundaryConfig, Kind, RetryConfig, View
from acms.ports import StorageBackend
from acms.storage import MemoryStorage, SQLiteStorage, WrapperStorage

Storage: TypeAlias = MemoryStorage | SQLiteStorage


class Words:
    """Counts words: an item costs its words and one for its speaker, so budgets can be done in the head."""

    name = "words"

    def count(self, text: str) -> int:
        return len(text.split())


class Bare(WrapperStorage):
    """A store that does no more than every store must: it keeps no records and knows no heads."""

    def __init__(self, inner: StorageBackend) -> None:
        self.inner, self.tenant = inner, inner.tenant


class Between(WrapperStorage):
    """Does something once, right before entries are read by their ids."""

    then: Callable[[], Awaitable[object]] | None = None

    async def get(self, ids: Sequence[str]) -> Any:
        then, self.then = self.then, None
        if then is not None:
            await then()
        return await super().get(ids)


LONG_EPISODES = EpisodeBoundaryConfig(
    max_turns=1000, max_time_gap_seconds=10**9, close_on_tool_result=False, close_on_patterns=[]
)
"""Episodes that end only when they are told to."""

PATIENT = RetryConfig(max_attempts=3, base_delay=0)
"""Tries again at once."""


def session_on(storage: Any, name: str = "user_123", *, words: bool = False, **given: Any) -> ACMS:
    """A session whose episodes end only by hand, unless a config is given."""
    given.setdefault("config", ACMSConfig(episodes=LONG_EPISODES, retry=PATIENT))
    if words:
        given["token_counter"] = Words()
    return ACMS(name, storage, **given)


async def ingest_texts(session: ACMS, *contents: str, role: str = "user", close: bool = False) -> list[str]:
    """Ingest texts and return their ids; `close` ends the episode after them."""
    ids = [await session.ingest(role, content) for content in contents]
    if close:
        await session.close_episode()
    return ids


async def tool_turn(session: ACMS, call: str, answer: str | None, text: str = "") -> None:
    await session.ingest("assistant", text, tool_calls=[{"id": call, "name": "disk", "arguments": "{}"}])
    if answer is not None:
        await session.ingest("tool", answer, tool_call_id=call)


def contents_of(items: Sequence[Any]) -> list[str]:
    return [item.content for item in items]


def versions_of(items: Sequence[Any]) -> list[int]:
    return [item.version for item in items]


async def log_of(session: ACMS) -> list[Any]:
    """Every entry of a session's log."""
    found: list[Any] = []
    after: int | None = 0
    while after is not None:
        page = await session.history(limit=100, after=after)
        found += page.entries
        after = page.next_after
    return found


async def message_ids(session: ACMS) -> list[str]:
    return [entry.id for entry in await log_of(session) if entry.kind is Kind.MESSAGE]


def comparable_items(items: ContextItems) -> Any:
    """A plan with everything in it, as values that compare."""
    return list(items), items.budget, items.tokens, items.confidence, items.version


def full_text(value: Any) -> str:
    """Return every field of a result as text; its repr shows only the beginning."""
    if is_dataclass(value) and not isinstance(value, type):
        named = [f"{field.name}={full_text(getattr(value, field.name))}" for field in fields(value)]
        return f"{type(value).__name__}({', '.join(named)})"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(full_text, value))}]"
    return repr(value)


async def comparable_answers(view: View, query: str = "orders database", budget: int = 300) -> Any:
    """What every reading verb says, as values that compare."""
    recalled = await view.recall(query, token_budget=budget)
    return (
        comparable_items(await view.window(budget)),
        comparable_items(recalled),
        list(recalled.ledger),
        recalled.ledger.warnings,
        await view.messages(query, budget=100_000),
        (await view.history(limit=500)).entries,
        await view.get_session_stats(),
        await view.episodes(),
    )
