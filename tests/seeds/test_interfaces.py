"""The interfaces of the implementation plan: its names, what `recall` returns, and what a reflector reads."""

from __future__ import annotations

from typing import Any

import acms
import acms.providers
import acms.storage
from acms import ACMS, ACMSConfig, EpisodeStatus, Fact, ReflectionConfig, Role, Source
from acms.providers import OfflineReflector, TiktokenCounter
from acms.storage import InMemoryBackend, SQLiteBackend, VectorSearchResult

ORDER = {Source.FACT: 0, Source.SUMMARY: 1, Source.MARKED: 1, Source.SIMILAR: 1, Source.CURRENT: 2}


def test_the_names_of_the_plan_are_those_in_use() -> None:
    assert InMemoryBackend is acms.storage.MemoryStorage
    assert SQLiteBackend is acms.storage.SQLiteStorage
    assert acms.storage.PostgresBackend is acms.storage.PostgresStorage
    assert TiktokenCounter is acms.providers.BPETokenCounter
    assert TiktokenCounter().count("hello world") == 2
    assert VectorSearchResult(context="c", id="m", score=0.5).score == 0.5


async def test_recall_is_a_list_in_the_order_of_the_plan_and_ranks_its_items() -> None:
    async with ACMS("plan", InMemoryBackend(), None, reflector=OfflineReflector()) as session:
        await session.ingest("user", "Which database should the orders service use?")
        await session.ingest("assistant", "Decision: the database of the orders service is PostgreSQL.")
        await session.close_episode()
        await session.ingest("user", "The invoices go to the finance team on Mondays.")
        await session.ingest("user", "Constraint: the orders database must run in Frankfurt.")
        await session.close_episode()
        await session.wait_pending()
        await session.ingest("user", "Today we move the orders database.")
        items = await session.recall("the database of the orders service", token_budget=2000)

    assert isinstance(items, list)
    groups = [(ORDER[item.source], item.version) for item in items]
    assert groups == sorted(groups)
    assert {group for group, _ in groups} == {0, 1, 2}

    best = items.best(len(items))
    assert [item.rank for item in best] == list(range(1, len(items) + 1))
    assert [item.score for item in best] == sorted((item.score for item in items), reverse=True)
    assert items.best(2) == best[:2]
    assert items.best(1)[0].score == max(item.score for item in items)


async def test_the_items_of_a_window_are_a_list_without_ranks() -> None:
    async with ACMS("plan", InMemoryBackend(), None) as session:
        await session.ingest("user", "hello")
        window = await session.window(budget=500)
    assert isinstance(window, list)
    assert [item.rank for item in window] == [0]
    assert window.best(1) == []


async def test_episodes_have_the_status_of_the_plan() -> None:
    async with ACMS("plan", InMemoryBackend(), None) as session:
        await session.ingest("user", "first")
        await session.close_episode()
        await session.ingest("user", "second")
        assert [one.status for one in await session.episodes()] == [EpisodeStatus.CLOSED, EpisodeStatus.OPEN]
        (closed,) = await session.episodes(EpisodeStatus.CLOSED)
        assert closed.first == 1


class Reading:
    """A reflector in the shape of the plan that keeps its requests."""

    def __init__(self) -> None:
        self.read: list[tuple[Any, list[Any]]] = []

    async def reflect(self, episode: Any, turns: list[Any]) -> list[Fact]:
        self.read.append((episode, turns))
        return []


async def test_a_reflector_of_the_plan_reads_turns_and_an_episode_with_its_fields() -> None:
    reflector: Any = Reading()
    config = ACMSConfig(reflection=ReflectionConfig(min_episode_turns=1))
    async with ACMS("plan", InMemoryBackend(), None, reflector=reflector, config=config) as session:
        message = await session.ingest(
            "user", "Decision: we keep bees.", actor_id="ann", metadata={"run": 12}
        )
        episode_id = await session.close_episode()
        await session.wait_pending()

    ((episode, (turn,)),) = reflector.read
    assert (episode.id, episode.session_id, episode.status) == (episode_id, "plan", EpisodeStatus.CLOSED)
    assert (episode.turn_count, dict(episode.metadata)) == (1, {})
    assert (turn.id, turn.session_id, turn.episode_id) == (message, "plan", episode_id)
    assert (turn.role, turn.content, turn.actor_id) == (Role.USER, "Decision: we keep bees.", "ann")
    assert (tuple(turn.markers), dict(turn.metadata)) == (("decision",), {"run": 12})
