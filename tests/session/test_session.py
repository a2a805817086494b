"""A session as its callers see it: the front door, recall, time, restarts, company, events and logs."""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import io
import json
import logging
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from acms import (
    ACMS,
    ACMSConfig,
    ConfigurationError,
    Entry,
    EntryNotFoundError,
    EpisodeBoundaryConfig,
    EpisodeNotFoundError,
    GoneError,
    HistoryPage,
    Kind,
    Media,
    NotFoundError,
    PreconditionError,
    RecallConfig,
    Source,
    Text,
    ValidationError,
    open_storage,
)
from acms.errors import HandleError
from acms.log import active_entries
from acms.log import read as log_read
from acms.log.active_entries import Replacements
from acms.observability import EpisodeClosed, Event, Ingested, JSONFormatter, Planned, Rewritten, correlation
from acms.recall.window import gather_all, plan_window
from acms.session import withdraw_from_session
from acms.storage import MemoryStorage, WrapperStorage, cache
from acms.write import retirement, rewrite
from tests.support.talk import (
    LONG_EPISODES,
    Storage,
    comparable_answers,
    comparable_items,
    contents_of,
    ingest_texts,
    log_of,
    message_ids,
    session_on,
    tool_turn,
    versions_of,
)

# ── the front door ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_ten_lines_run_as_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)

    async def main() -> None:
        async with ACMS("user_123", open_storage("sqlite:///memory.db")) as session:
            await session.ingest("user", "Which database should the orders service use? We expect 2 TB.")
            await session.ingest(
                "assistant", "Decision: PostgreSQL 18 with pgvector, because we need transactions and search."
            )
            for item in await session.recall("what did we choose for orders?", token_budget=500):
                print(
                    f"{item.score:.2f} v{item.version} {item.source} {item.token_count} tokens:"
                    f" {item.content}  ({item.why})"
                )

    asyncio.run(main())
    first, second = capsys.readouterr().out.splitlines()
    assert "v1 current_episode" in first
    assert "PostgreSQL 18" in second
    assert (tmp_path / "memory.db").is_file()


async def test_a_session_works_as_the_api_page_shows_it(storage: Storage) -> None:
    async with ACMS("user_123", storage) as session:
        message_id = await session.ingest(
            "user", "Keep it under 5 ms.", markers=["constraint"], actor_id="agent-7", metadata={"run": 12}
        )
        await session.ingest(
            "assistant", "", tool_calls=[{"id": "call_1", "name": "disk", "arguments": '{"host": "db1"}'}]
        )
        await session.ingest("tool", "40% used", tool_call_id="call_1")
        messages = await session.messages("what did we choose for orders?", budget=6000)
        assert [message["role"] for message in messages] == ["user", "assistant", "tool"]
        receipts = await session.ingest_many(
            [{"role": "user", "content": "done"}], idempotency_key="import-1"
        )
        receipt = session.last_receipt
        assert receipt == receipts[-1]
        assert (receipt.version, receipt.position, receipt.repeated) == (4, 4, False)
        assert receipt.message_id.startswith("m_")
        assert len(bytes.fromhex(receipt.chain_hash)) == 32
        assert receipt.durability == storage.durability
        assert receipt.embedded == "stored"
        items = await session.recall(
            "query", token_budget=4000, include_current_episode=True, min_relevance=0.0
        )
        assert items.ledger.why(items[0].id).included
        assert items.ledger.why_not(message_id) is None  # the whole session is shown
        assert items.tokens <= 4000
        assert 0 <= items.confidence <= 1
        window = await session.window(budget=8000)
        assert versions_of(window) == [1, 2, 3, 4]
        assert await session.close_episode("manual") == receipt.episode_id
        stats = await session.get_session_stats()
        assert (stats.version, stats.messages, stats.episodes, stats.facts) == (4, 4, 2, 0)
        assert stats.tokens == stats.active_tokens > 0
        page = await session.history(limit=50, after=0)
        assert page.next_after is None
        entry = page.entries[0]
        assert (entry.version, entry.kind, entry.role, entry.preview) == (
            1,
            "message",
            "user",
            "Keep it under 5 ms.",
        )
        stored = await session.get(message_id)
        assert (stored.actor, dict(stored.metadata), stored.markers) == (
            "agent-7",
            {"run": 12},
            ("constraint",),
        )
        (closed,) = [one for one in await session.episodes(status="closed") if one.ordinal == 1]
        assert (closed.first, closed.last, closed.reason) == (1, 3, "tool_result")


async def test_a_session_without_a_message_answers_everything_with_nothing(storage: Storage) -> None:
    async with session_on(storage) as session:
        assert list(await session.recall("anything")) == []
        assert list(await session.window(100)) == []
        assert await session.messages("anything", budget=100) == []
        assert await session.history() == HistoryPage(entries=())
        assert await session.episodes() == []
        assert (await session.get_session_stats()).version == 0
        assert await session.ingest_many([]) == []
        with pytest.raises(EpisodeNotFoundError):
            await session.close_episode()
        with pytest.raises(EntryNotFoundError):
            await session.get("m_x_1_abcdef")
    with pytest.raises(Exception, match="no session"):
        await storage.context("user_123")


async def test_a_past_that_does_not_exist_is_an_error_for_every_verb(storage: Storage) -> None:
    async with session_on(storage) as session:
        for count in (0, 1):
            view = session.at(count + 1)
            for verb in (
                view.recall("x"),
                view.window(10),
                view.messages("x", budget=10),
                view.history(),
                view.episodes(),
                view.get_session_stats(),
                view.facts(),
                view.entries(),
                view.tags(),
                view.forks(),
                view.keys([]),
                view.expand(1),
                session.tag("next", count + 1),
                session.undo(count + 1),
                session.facts(as_of=count + 1),
            ):
                with pytest.raises(NotFoundError):
                    await verb
            await ingest_texts(session, "hello")


async def test_content_comes_back_byte_for_byte(storage: Storage) -> None:
    text = "\n    def f():\n\treturn 'ä'  \r\n\n    # 🙂 e\u0301 \u200b\n"
    async with session_on(storage) as session:
        id = await session.ingest("user", text)
        await ingest_texts(session, "next")
        assert (await session.get(id)).content == text
        assert (await session.window(1000))[0].content == text
        assert (await session.messages("x", budget=1000))[0]["content"] == text
        assert (await session.recall("x"))[0].content == text


async def test_a_window_is_the_newest_that_fits_whoever_spoke(storage: Storage) -> None:
    async with session_on(storage, token_counter=Chars()) as session:
        for number in range(120):
            await session.ingest("user", "word" * (number % 5 + 1), actor_id="I" if number % 7 else None)
            if number % 10 == 0:
                await tool_turn(session, f"c{number}", None)
        shared = session._shared
        for budget in (0, 5, 50, 333, 900, 2000, 10_000):
            gathered = await gather_all(storage, str(shared.context_id), None)
            whole = plan_window(gathered, budget, shared.counter, shared.frame)
            assert comparable_items(await session.window(budget)) == comparable_items(whole)


class Chars:
    name = "characters"

    def count(self, text: str) -> int:
        return len(text)


async def test_a_window_may_keep_its_leading_instructions(storage: Storage) -> None:
    async with session_on(storage, words=True) as session:
        await session.ingest("system", "be kind")
        await session.ingest("developer", "and short")
        await ingest_texts(session, *("some words in here" for _ in range(20)))
        assert versions_of(await session.window(16, keep=["system", "developer"])) == [1, 2, 21, 22]
        assert versions_of(await session.window(16, keep=["system"])) == [1, 21, 22]
        assert versions_of(await session.window(16)) == [20, 21, 22]
        assert versions_of(await session.window(5, keep=["system", "developer"])) == []


# ── recall ──────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_recall_shows_the_past_and_then_the_current_episode_each_oldest_first(storage: Storage) -> None:
    async with session_on(storage) as session:
        weather = [f"the weather is {how}" for how in ("fine", "cold", "wet", "mild", "foggy")]
        await ingest_texts(session, "orders use PostgreSQL", *weather, close=True)
        await ingest_texts(session, "Constraint: orders answer in 5 ms", *weather, close=True)
        await ingest_texts(session, "orders have 2 TB", *weather, close=True)
        await ingest_texts(session, "a new topic", "orders again")
        items = await session.recall("orders")
        assert versions_of(items) == sorted(versions_of(items))
        assert versions_of(items)[-2:] == [22, 23]
        sources = [item.source for item in items]
        assert sources[-2:] == [Source.CURRENT] * 2
        assert Source.CURRENT not in sources[:-2]
        by_score = sorted(items[:-2], key=lambda item: -item.score)
        assert {item.content for item in by_score[:3]} == {
            "orders use PostgreSQL",
            "Constraint: orders answer in 5 ms",
            "orders have 2 TB",
        }
        marked = [item.content for item in items if item.source is Source.MARKED]
        assert marked == ["Constraint: orders answer in 5 ms"]
        assert all(0 <= item.relevance <= 1 and 0 <= item.score <= 1 for item in items)


async def test_a_marker_raises_the_score_of_what_is_relevant_by_its_weight(storage: Storage) -> None:
    async with session_on(storage) as session:
        for markers in ([], ["decision"], ["constraint"], ["decision", "constraint"]):
            await session.ingest("user", "orders use PostgreSQL", markers=markers)
            await ingest_texts(session, *(f"filler {number} {markers}" for number in range(6)), close=True)
        await ingest_texts(session, "and now?")
        items = await session.recall("PostgreSQL")
        verdicts = [items.ledger.why(entry.id) for entry in await log_of(session)]
        said = [one for one in verdicts if one.parts.get("message")]
        weights = [one.boost / said[1].boost * 0.3 for one in said]
        assert weights == pytest.approx([0, 0.3, 0.4, 0.7])
        assert sorted(said, key=lambda one: one.score) == said
        best = [one.score for one in said]
        assert len(set(best)) == 4


async def test_what_stands_beside_an_answer_is_found_with_it(storage: Storage) -> None:
    """A question, and its answer that repeats no word of it."""
    async with session_on(storage) as session:
        await ingest_texts(session, *(f"chatter {number}" for number in range(10)))
        await ingest_texts(session, "which host runs staging?", "db-7 in Frankfurt")
        await ingest_texts(session, *(f"more chatter {number}" for number in range(10)), close=True)
        await ingest_texts(session, "next topic")
        items = await session.recall("host of staging")
        assert "db-7 in Frankfurt" in contents_of(items)
        answer = next(item for item in items if item.content == "db-7 in Frankfurt")
        assert "near" in items.ledger.why(answer.id).parts
        assert answer.relevance == 0  # nothing of its own answers


async def test_a_closed_episode_stays_the_current_one_until_the_next_message(storage: Storage) -> None:
    async with session_on(storage) as session:
        await ingest_texts(session, "first topic", close=True)
        await ingest_texts(session, "second topic", "still the second", close=True)
        assert contents_of(await session.recall("unrelated", min_relevance=0.1)) == [
            "second topic",
            "still the second",
        ]
        await ingest_texts(session, "third topic")
        assert contents_of(await session.recall("unrelated", min_relevance=0.1)) == ["third topic"]


NINE = "orders one two three four five six seven"
NUMBERS = "ada bob cyd dan eve fay gus hal ivy jon".split()


def texts_of_nine(count: int = 10) -> list[str]:
    """Texts of nine words that answer "orders" alike and say different things."""
    return [f"{NINE} {word}" for word in NUMBERS[:count]]


def idle_texts(count: int) -> list[str]:
    """Texts of nine words that have nothing to do with anything."""
    return [f"idle a b c d e f g {number}" for number in range(count)]


async def test_the_current_episode_has_its_forty_percent_against_a_better_past(storage: Storage) -> None:
    async with session_on(storage, words=True) as session:
        await ingest_texts(session, *texts_of_nine(), close=True)
        await ingest_texts(session, *idle_texts(8))
        items = await session.recall("orders", token_budget=100)
        assert versions_of(items)[-4:] == [16, 17, 18, 19]
        assert all(version <= 10 for version in versions_of(items)[:-4])
        assert (len(items), items.tokens) == (10, 100)


async def test_shares_that_are_not_used_flow_both_ways(storage: Storage) -> None:
    async with session_on(storage, words=True) as session:
        await ingest_texts(session, *texts_of_nine(), close=True)
        await ingest_texts(session, "idle a b c d e f g h")
        shown = versions_of(await session.recall("orders", token_budget=100))
        assert len(shown) == 10
        assert shown[-1] == 12
        await ingest_texts(session, *idle_texts(11))
        assert versions_of(await session.recall("nothing", token_budget=100)) == list(range(14, 24))


async def test_a_current_episode_larger_than_its_share_keeps_the_newest_and_the_marked(
    storage: Storage,
) -> None:
    async with session_on(storage, words=True) as session:
        await ingest_texts(session, *texts_of_nine(), close=True)
        await session.ingest("user", "idle a b c d e f g h", markers=["goal"])
        await ingest_texts(session, *idle_texts(8))
        shown = versions_of(await session.recall("orders", token_budget=100))
        assert shown[-4:] == [12, 18, 19, 20]
        assert all(version <= 10 for version in shown[:-4])
        assert len(shown) == 10


async def test_the_reserved_share_is_a_setting(storage: Storage) -> None:
    config = ACMSConfig(
        episodes=LONG_EPISODES, recall=RecallConfig(token_budget=100, current_episode_budget_pct=0.0)
    )
    async with session_on(storage, words=True, config=config) as session:
        await ingest_texts(session, *texts_of_nine(), close=True)
        await ingest_texts(session, *idle_texts(8))
        shown = versions_of(await session.recall("orders"))
        assert shown[-1] == 19
        assert all(version <= 10 for version in shown[:-1])
        assert len(shown) == 10


async def test_a_marker_does_not_make_up_for_relevance(storage: Storage) -> None:
    async with session_on(storage) as session:
        await ingest_texts(session, "Constraint: lunch is at noon", close=True)
        await ingest_texts(session, "hello")
        items = await session.recall("orders database", min_relevance=0.1)
        assert contents_of(items) == ["hello"]
        assert items.confidence == 0


async def test_what_is_excluded_is_not_shown_and_a_group_goes_whole(storage: Storage) -> None:
    async with session_on(storage) as session:
        first, second = await ingest_texts(session, "orders one", "orders two", close=True)
        await tool_turn(session, "c1", "orders three")
        answer = (await message_ids(session))[-1]
        items = await session.recall("orders", exclude=[first, answer])
        assert contents_of(items) == ["orders two"]
        assert {verdict.rule for verdict in items.ledger if not verdict.included} == {"excluded"}
        assert items.ledger.why(second).included


async def test_one_id_may_be_excluded_without_a_list(storage: Storage) -> None:
    async with session_on(storage) as session:
        (id,) = await ingest_texts(session, "orders one")
        with pytest.raises(ValidationError) as caught:
            await session.recall("orders", exclude=id)
        assert caught.value.field == "exclude"


async def test_without_the_current_episode_none_of_it_is_shown(storage: Storage) -> None:
    async with session_on(storage) as session:
        await ingest_texts(session, "orders one", close=True)
        await ingest_texts(session, "orders two", "orders three")
        items = await session.recall("orders", include_current_episode=False)
        assert contents_of(items) == ["orders one"]
        assert {verdict.rule for verdict in items.ledger if not verdict.included} == {"current_episode"}


async def test_an_assistant_message_equal_to_the_query_is_shown(storage: Storage) -> None:
    async with session_on(storage) as session:
        await session.ingest("assistant", "orders?")
        assert contents_of(await session.recall("orders?")) == ["orders?"]


async def test_every_message_of_the_log_is_in_the_ledger_exactly_once(storage: Storage) -> None:
    async with session_on(storage) as session:
        ids = await ingest_texts(
            session, "orders one", "weather", "Constraint: orders", "mistake", "typo", close=True
        )
        await tool_turn(session, "c1", "orders two")
        await tool_turn(session, "abandoned", None)
        await ingest_texts(session, "go on", close=True)
        await session.ingest("tool", "stray", tool_call_id="c9")
        await session.retract(ids[3])
        await session.replace(ids[4], "right")
        await ingest_texts(session, "the end")
        everything = await message_ids(session)
        for budget in (0, 12, 30, 4000):
            items = await session.recall("orders", token_budget=budget)
            assert sorted(verdict.id for verdict in items.ledger) == sorted(everything)
            shown = {item.id for item in items}
            for id in everything:
                assert items.ledger.why(id).included == (id in shown)
                assert items.ledger.why(id).reason
                assert (items.ledger.why_not(id) is None) == (id in shown)
        window = await session.window(10_000)
        assert sorted(verdict.id for verdict in window.ledger) == sorted(everything)
        with pytest.raises(EntryNotFoundError):
            window.ledger.why("m_never_1_abcdef")
        assert "shown" in str(items.ledger.why(everything[-1]))


async def test_joined_text_names_the_speakers(storage: Storage) -> None:
    async with session_on(storage) as session:
        await session.ingest("user", "hi", actor_id="Sam")
        await session.ingest("assistant", "hello")
        assert (await session.window(100)).text() == "Sam: hi\n\nassistant: hello"


# ── time ────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_stats_are_those_of_the_version_they_are_asked_for(storage: Storage) -> None:
    async with session_on(storage, words=True) as session:
        first, second = await ingest_texts(session, "one two", "three")
        await session.close_episode()
        await ingest_texts(session, "four five six")
        await session.retract(second)
        await session.replace(first, "one two and more")
        found = [await session.at(version).get_session_stats() for version in range(7)]
        assert [stats.version for stats in found] == [0, 1, 2, 3, 4, 5, 6]
        assert [stats.messages for stats in found] == [0, 1, 2, 2, 3, 3, 4]
        assert [stats.tokens for stats in found] == [0, 2, 3, 3, 6, 6, 10]
        assert [stats.active_messages for stats in found] == [0, 1, 2, 2, 3, 2, 2]
        assert [stats.active_tokens for stats in found] == [0, 2, 3, 3, 6, 5, 7]
        assert [stats.episodes for stats in found] == [0, 1, 1, 1, 2, 2, 2]
        assert await session.get_session_stats() == found[-1]


async def test_a_view_says_the_same_before_and_after_whatever_comes_later(storage: Storage) -> None:
    config = ACMSConfig(episodes=EpisodeBoundaryConfig(max_turns=4))
    async with session_on(storage, config=config) as session:
        ids: list[str] = []
        before: list[Any] = []

        async def look() -> None:
            version = (await session.get_session_stats()).version
            while len(before) <= version:
                before.append(await comparable_answers(session.at(len(before))))

        ids += await ingest_texts(session, "orders use a database", "Constraint: orders in 5 ms", "thanks!")
        await look()
        await tool_turn(session, "c1", "orders database: 40 % full")
        await tool_turn(session, "c2", None)
        await look()
        await session.replace(ids[0], "orders use PostgreSQL as database")
        await look()
        await session.retract(ids[1])
        await look()
        await session.close_episode("lunch")
        await look()
        ids += await ingest_texts(session, "and the orders cache?", "Redis")
        await session.ingest("tool", "late answer about orders", tool_call_id="c2")
        await look()
        await session.clear()
        await ingest_texts(session, "a fresh start")
        await look()
        assert len(before) == 15
        assert [await comparable_answers(session.at(version)) for version in range(len(before))] == before
        assert await comparable_answers(session) == before[-1]
    async with session_on(storage, config=config) as again:
        assert [await comparable_answers(again.at(version)) for version in range(len(before))] == before


async def test_a_retracted_message_is_there_at_earlier_versions_only(storage: Storage) -> None:
    async with session_on(storage) as session:
        await ingest_texts(session, "keep")
        await tool_turn(session, "c1", "gone")
        call, answer = (await message_ids(session))[1:]
        version = await session.retract(answer)
        assert version == 4
        assert contents_of(await session.window(100)) == ["keep"]
        assert len(await session.at(3).window(100)) == 3
        assert await session.retract(call) == version
        assert [entry.in_force for entry in await log_of(session)] == [True, False, False, True]
        undone = await session.retract((await log_of(session))[3].id)
        assert undone == 5
        assert len(await session.window(100)) == 3


async def test_the_work_of_a_rewrite_does_not_grow_with_those_before_it(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_at = 0

    class Counted(Replacements):
        def __init__(self, replacing: Iterable[Entry], *, searchable: bool = False) -> None:
            nonlocal looked_at
            super().__init__(replacing, searchable=searchable)
            looked_at += len(self.replacing)

    for module in (log_read, rewrite, retirement, cache, active_entries):
        monkeypatch.setattr(module, "Replacements", Counted)
    async with session_on(storage) as session:
        ids = await ingest_texts(session, *[f"message {number}" for number in range(80)])
        for id in ids[:40]:
            await session.retract(id)
        for id in ids[40:]:
            await session.replace(id, "something else")
        assert contents_of(await session.window(2000)) == ["something else"] * 40
    assert looked_at < 3 * len(ids)


async def test_what_is_withdrawn_goes_with_one_retraction_and_comes_back_with_it(storage: Storage) -> None:
    async with session_on(storage) as session:
        ids = await ingest_texts(session, *[f"message {number}. " * 30 for number in range(12)])
        await session.replace(ids[1], "edited")
        await session.retract(ids[2])
        await session.wait(await session.compact(preserve_recent_count=4))
        await session.replace(ids[3], "edited behind the summary")
        before, version = await session.entries(), (await session.get_session_stats()).version
        assert before[0].kind is Kind.SUMMARY
        done = await withdraw_from_session(session, before[:3], reason="over")
        assert done == version + 1
        assert [entry.id for entry in await session.entries()] == [entry.id for entry in before[3:]]
        assert await withdraw_from_session(session, before[:3], reason="over") == done
        await session.undo(done)
        assert [entry.id for entry in await session.entries()] == [entry.id for entry in before]
        await session.retract(before[0].id)
        assert len(await session.entries()) == 11


async def test_an_edit_is_read_at_the_old_place_and_history_keeps_both(storage: Storage) -> None:
    async with session_on(storage) as session:
        first, *_ = await ingest_texts(session, "Decision: MySQL", "fine", "go on")
        edit = await session.replace(first, "Decision: PostgreSQL")
        window = await session.window(100)
        assert contents_of(window) == ["Decision: PostgreSQL", "fine", "go on"]
        assert window[0].markers == ("decision",)
        assert contents_of(await session.at(3).window(100))[0] == "Decision: MySQL"
        assert (await session.get(first)).content == "Decision: MySQL"
        again = await session.replace(edit, "Decision: SQLite")
        assert contents_of(await session.window(100))[0] == "Decision: SQLite"
        await session.retract(again)
        assert contents_of(await session.window(100))[0] == "Decision: PostgreSQL"
        await session.replace(first, "Decision: by its first id")
        assert contents_of(await session.window(100))[0] == "Decision: by its first id"


async def test_retracting_an_edited_message_takes_its_edits_with_it(storage: Storage) -> None:
    async with session_on(storage) as session:
        first, _ = await ingest_texts(session, "one", "two")
        await session.replace(await session.replace(first, "uno"), "eins")
        version = await session.retract(first)
        assert contents_of(await session.window(100)) == ["two"]
        assert await session.retract(first) == version
        with pytest.raises(GoneError, match="is no longer active") as caught:
            await session.replace(first, "too late")
        anew = "store the corrected text as a new message"
        assert caught.value.options == (f"undo({version}) first", anew)
        await session.undo(version)
        await session.replace(first, "in time")
        await session.erase(first)
        with pytest.raises(GoneError, match="is gone") as caught:
            await session.replace(first, "too late")
        assert caught.value.options == (anew,)


async def test_undoing_an_edit_of_a_tool_answer_brings_the_first_answer_back(storage: Storage) -> None:
    async with session_on(storage) as session:
        await tool_turn(session, "c1", "first")
        edit = await session.replace((await message_ids(session))[1], "second")
        assert contents_of(await session.window(100))[1] == "second"
        await session.retract(edit)
        assert contents_of(await session.window(100))[1] == "first"


async def test_of_two_edits_at_once_only_one_is_in_force(storage: Storage) -> None:
    async with session_on(storage) as session:
        (id,) = await ingest_texts(session, "first")
        results = await asyncio.gather(session.replace(id, "second"), session.replace(id, "third"))
        assert all(isinstance(result, str) for result in results)
        (shown,) = await session.window(100)
        assert shown.id in results


async def test_an_edit_that_meets_a_retraction_does_not_bring_the_message_back(storage: Storage) -> None:
    for order in (0, 1):
        async with session_on(storage, f"s{order}") as session:
            (id,) = await ingest_texts(session, "first")
            verbs = [session.retract(id), session.replace(id, "second")]
            await asyncio.gather(*(verbs[::-1] if order else verbs), return_exceptions=True)
            retracted = [entry for entry in await log_of(session) if entry.kind == "retraction"]
            shown = contents_of(await session.window(100))
            assert shown == ([] if retracted else ["second"])


@pytest.mark.parametrize(
    ("verb", "left"),
    [
        ("retract", ["b", "c", "d"]),
        ("replace", ["A", "b", "c", "d"]),
        ("withdraw", ["b", "c", "d"]),
        ("undo", ["a", "b", "c"]),
        ("clear", []),
    ],
)
async def test_a_rewrite_that_another_one_outruns_is_decided_again(verb: str, left: list[str]) -> None:
    class Outrun(WrapperStorage):
        """Appends after another session has rewritten something."""

        retracted: str | None = None

        async def append(self, ops: Any) -> Any:
            id, self.retracted = self.retracted, None
            if id is not None:
                await other.retract(id)
            return await self.inner.append(ops)

    async with MemoryStorage() as inner:
        other = session_on(inner, "s")
        ids = await ingest_texts(other, "a", "b", "c", "x")
        fork = await other.fork(session_id="fork")
        await ingest_texts(fork, "d")
        merged = (await other.merge(fork)).version or 0
        outrun = Outrun(inner)
        session = session_on(outrun, "s")
        first = (await session.entries())[0]
        outrun.retracted = ids[3]
        if verb == "retract":
            await session.retract(ids[0])
        elif verb == "replace":
            await session.replace(ids[0], "A")
        elif verb == "withdraw":
            await withdraw_from_session(session, [first], reason="over")
        elif verb == "undo":
            await session.undo(merged)
        else:
            await session.clear()
        assert outrun.retracted is None
        for one in (session, other):
            assert contents_of(await one.window(100)) == left
        gone = [entry.version for entry in await log_of(session) if not entry.in_force]
        assert 4 in gone, "what came between stands"


async def test_an_edit_says_one_text_and_leaves_what_is_no_text_as_it_is(storage: Storage) -> None:
    async with session_on(storage) as session:
        picture = Media("image/png", "https://example.org/a.png")
        id = await session.ingest("user", parts=[Text("first"), picture, Text("second")])
        edit = await session.get(await session.replace(id, "both"))
        assert (edit.content, edit.parts) == ("both", (Text("both"), picture))
        assert (await session.get(id)).parts == (Text("first"), picture, Text("second"))


async def test_history_comes_in_pages_without_gap_or_repetition(storage: Storage) -> None:
    async with session_on(storage) as session:
        await ingest_texts(session, *(f"message {number}" for number in range(25)))
        pages: list[Any] = []
        after: int | None = 0
        while after is not None:
            page = await session.history(limit=10, after=after)
            pages.append([entry.version for entry in page.entries])
            after = page.next_after
        assert pages == [list(range(1, 11)), list(range(11, 21)), list(range(21, 26))]
        assert (await session.history(after=25)).entries == ()
        assert [entry.version for entry in (await session.at(12).history(after=10)).entries] == [11, 12]


async def test_an_entry_of_another_session_or_of_the_future_is_not_found(storage: Storage) -> None:
    async with session_on(storage, "a") as one, session_on(storage, "b") as two:
        _, second = await ingest_texts(one, "x", "y")
        (other,) = await ingest_texts(two, "z")
        assert (await one.get(second)).content == "y"
        for missing in (other, second[:-1] + ("0" if second[-1] != "0" else "1"), "", "nonsense"):
            with pytest.raises(EntryNotFoundError):
                await one.get(missing)
        with pytest.raises(EntryNotFoundError):
            await one.at(1).get(second)


async def test_what_a_reader_does_with_metadata_does_not_reach_the_log(storage: Storage) -> None:
    async with session_on(storage) as session:
        given = {"run": 12}
        id = await session.ingest("user", "x", metadata=given)
        given["run"] = 13
        item = (await session.window(100))[0]
        with pytest.raises(TypeError):
            item.metadata["run"] = 14  # type: ignore[index]
        assert dict((await session.get(id)).metadata) == {"run": 12}


# ── restarts and company ────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_restart_continues_episodes_groups_and_positions(url: str) -> None:
    async with ACMS("s", open_storage(url)) as session:
        await ingest_texts(session, "a", "b")
        await session.ingest(
            "assistant", "", tool_calls=[{"id": "c1", "name": "x"}, {"id": "c2", "name": "y"}]
        )
        await session.ingest("tool", "one", tool_call_id="c2")
    async with ACMS("s", open_storage(url)) as session:
        await session.ingest("tool", "two", tool_call_id="c1")
        assert session.last_receipt is not None
        assert (session.last_receipt.position, session.last_receipt.version) == (5, 5)
    async with ACMS("s", open_storage(url)) as session:
        await ingest_texts(session, "c")
        assert [one.reason for one in await session.episodes()] == ["tool_result", None]
        assert [one.messages for one in await session.episodes()] == [5, 1]
        items = await session.window(1000)
        assert len({item.group for item in items[2:5]}) == 1
        assert items[2].group is not None


async def test_a_restart_in_the_middle_of_an_episode_counts_its_turns_on(url: str) -> None:
    for number in range(13):
        async with ACMS("s", open_storage(url)) as session:
            await session.ingest("user", f"turn {number}")
    async with ACMS("s", open_storage(url)) as session:
        assert [one.messages for one in await session.episodes()] == [6, 6, 1]


async def test_two_sessions_on_one_key_share_one_log(storage: Storage) -> None:
    async with session_on(storage) as one, session_on(storage) as two:
        await ingest_texts(one, "a")
        await ingest_texts(two, "b")
        await ingest_texts(one, "c")
        assert contents_of(await one.window(100)) == contents_of(await two.window(100)) == ["a", "b", "c"]


async def test_a_manual_close_by_another_handle_ends_the_episode_for_all(url: str) -> None:
    async with session_on(open_storage(url)) as one, session_on(open_storage(url)) as two:
        await ingest_texts(one, "a")
        await two.close_episode("lunch")
        await ingest_texts(one, "b")
        assert [(found.messages, found.reason) for found in await one.episodes()] == [(1, "lunch"), (1, None)]


async def test_sixty_four_concurrent_ingests_get_sixty_four_versions_in_one_order(storage: Storage) -> None:
    async with session_on(storage) as one, session_on(storage) as two:

        async def say(number: int) -> tuple[int, str]:
            session = (one, two)[number % 2]
            (receipt,) = await session.ingest_many([{"role": "user", "content": f"m{number}"}])
            return receipt.version, f"m{number}"

        said = await asyncio.gather(*(say(number) for number in range(64)))
        assert sorted(version for version, _ in said) == list(range(1, 65))
        log = await log_of(one)
        assert [(entry.version, entry.preview) for entry in log] == sorted(said)
        assert [entry.position for entry in log] == list(range(1, 65))


async def test_a_batch_is_never_interleaved_with_other_writers(storage: Storage) -> None:
    async with session_on(storage) as session:
        batches = [[{"role": "user", "content": f"{batch}:{n}"} for n in range(5)] for batch in range(20)]
        receipts = await asyncio.gather(*(session.ingest_many(batch) for batch in batches))
        for one in receipts:
            assert [receipt.version for receipt in one] == list(range(one[0].version, one[0].version + 5))
        assert sorted(entry.version for entry in await log_of(session)) == list(range(1, 101))


WRITER = """
import asyncio, sys
from acms import ACMS, open_storage

async def main(url, who):
    async with ACMS("shared", open_storage(url)) as session:
        print("ready", flush=True)
        sys.stdin.readline()
        for number in range(10):
            await asyncio.gather(*(session.ingest("user", f"{who} {number} {n}") for n in range(3)))

asyncio.run(main(*sys.argv[1:]))
"""


async def test_two_processes_writing_at_once_leave_no_gap_and_lose_nothing(url: str) -> None:
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, url, who],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for who in ("left", "right")
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    for process in processes:
        process.communicate(timeout=60)
        assert process.returncode == 0
    async with ACMS("shared", open_storage(url)) as session:
        log = [entry for entry in await log_of(session) if entry.kind == "message"]
        assert [entry.position for entry in log] == list(range(1, 61))
        assert [entry.version for entry in log] == list(range(1, 61))
        expected = {
            f"{who} {number} {n}" for who in ("left", "right") for number in range(10) for n in range(3)
        }
        assert {entry.preview for entry in log} == expected
        assert [one.messages for one in await session.episodes()] == [6] * 10


async def test_namespaces_keep_equal_names_apart(storage: Storage) -> None:
    async with session_on(storage, namespace="alice") as one, session_on(storage, namespace="bob") as two:
        await ingest_texts(one, "mine")
        await ingest_texts(two, "yours")
        assert contents_of(await one.window(100)) == ["mine"]
        assert contents_of(await two.window(100)) == ["yours"]


# ── counters and configuration ──────────────────────────────────────────────────────────────────────────────────────


async def test_a_log_counted_with_another_counter_is_refused(storage: Storage) -> None:
    async with session_on(storage, words=True) as session:
        await ingest_texts(session, "x")
    async with session_on(storage) as other:
        for verb in (
            other.window(10),
            other.ingest("user", "y"),
            other.recall("x"),
            other.get_session_stats(),
        ):
            with pytest.raises(ConfigurationError, match="words"):
                await verb
    async with session_on(storage, words=True) as again:
        assert contents_of(await again.window(100)) == ["x"]


class Seed:
    """A counter with no name."""

    def count(self, text: str) -> int:
        return len(text) // 4


async def test_a_counter_without_a_name_goes_by_its_class(storage: Storage) -> None:
    async with session_on(storage, token_counter=Seed()) as session:
        await ingest_texts(session, "twelve chars")
        stats = await session.get_session_stats()
        assert (stats.counter, stats.tokens) == ("Seed", 3)


@pytest.mark.parametrize("counter", [len, 5, "o200k_base", object()])
def test_what_cannot_count_is_no_counter(counter: Any) -> None:
    with pytest.raises(ConfigurationError):
        ACMS("s", MemoryStorage(), token_counter=counter)


def test_providers_this_release_has_no_use_for_are_refused() -> None:
    reflector: Any = object()
    with pytest.raises(ConfigurationError):
        ACMS("s", MemoryStorage(), reflector=reflector)


# ── events and logs ─────────────────────────────────────────────────────────────────────────────────────────────────


async def test_events_are_frozen_facts_in_the_past_tense(storage: Storage) -> None:
    events: list[Event] = []
    config = ACMSConfig(on_event=events.append, episodes=EpisodeBoundaryConfig(max_turns=2))
    async with session_on(storage, config=config) as session:
        (first,) = await ingest_texts(session, "Goal: ship")
        await session.ingest("user", "two", idempotency_key="k")
        await session.ingest("user", "two", idempotency_key="k")
        await session.replace(first, "Goal: ship soon")
        await session.recall("ship", token_budget=9)
        await ingest_texts(session, "three", close=True)
        assert [type(event) for event in events] == [
            Ingested,
            Ingested,
            EpisodeClosed,
            Ingested,
            Rewritten,
            Planned,
            Ingested,
            EpisodeClosed,
        ]
        ingested, planned = events[0], events[5]
        assert isinstance(ingested, Ingested)
        assert (ingested.message_id, ingested.version, ingested.markers) == (first, 1, ("goal",))
        assert isinstance(events[3], Ingested)
        assert events[3].repeated
        assert isinstance(planned, Planned)
        assert (planned.verb, planned.budget, planned.items, planned.omitted) == ("recall", 9, 1, 1)
        assert planned.used_tokens <= 9
        for event in events:
            with pytest.raises(dataclasses.FrozenInstanceError):
                event.context_id = "x"  # type: ignore[misc]
            assert "ship" not in repr(event)


def json_lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


@pytest.fixture
def stream() -> Any:
    """What the logger of ACMS writes at DEBUG, as JSON."""
    written = io.StringIO()
    handler = logging.StreamHandler(written)
    handler.setFormatter(JSONFormatter())
    logger = logging.getLogger("acms")
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    yield written
    logger.removeHandler(handler)
    logger.setLevel(before)


async def test_a_listener_that_fails_changes_nothing_and_is_logged(
    storage: Storage, stream: io.StringIO
) -> None:
    def listen(event: Event) -> None:
        raise RuntimeError("listener broke")

    async with session_on(storage, config=ACMSConfig(on_event=listen)) as session:
        with correlation("request-17"):
            await ingest_texts(session, "hello")
        assert contents_of(await session.window(100)) == ["hello"]
    (failed, *_) = [line for line in json_lines(stream) if line["level"] == "warning"]
    assert failed["event"] == "on_event_failed"
    assert failed["correlation_id"] == "request-17"
    assert failed["event_type"] == "Ingested"
    assert failed["error"].startswith("RuntimeError at test_session.py:")  # where, and not what it said


CANARY = "xyzzy-canary"


async def test_records_carry_ids_and_counts_and_never_what_was_said(
    storage: Storage, stream: io.StringIO
) -> None:
    async with session_on(storage, words=True, config=ACMSConfig(on_event=lambda event: None)) as session:
        with correlation("request-17"):
            id = await session.ingest("user", f"Constraint: {CANARY} secret", metadata={"token": CANARY})
            await session.ingest(
                "assistant", CANARY, tool_calls=[{"id": "c1", "name": CANARY, "arguments": CANARY}]
            )
            await session.ingest("tool", f"{CANARY} " * 90, tool_call_id="c1", actor_id=CANARY)
            await session.recall(CANARY, token_budget=10)
            await session.window(5)
            await session.messages(CANARY, budget=500)
            await session.replace(id, f"{CANARY} again")
            await session.close_episode()
            await session.retract(id)
            with pytest.raises(ValidationError):
                await session.ingest("robot", CANARY)
    written = stream.getvalue()
    assert CANARY not in written
    records = json_lines(stream)
    assert {record["event"] for record in records} >= {
        "ingest",
        "recall",
        "window",
        "messages",
        "plan_warning",
    }
    assert all(record["correlation_id"] == "request-17" for record in records)
    assert all({"time", "level", "logger", "event"} <= set(record) for record in records)


async def test_correlation_ends_with_its_block_and_stays_in_its_task(stream: io.StringIO) -> None:
    async with session_on(MemoryStorage()) as session:

        async def say(name: str) -> None:
            with correlation(name):
                await asyncio.gather(session.ingest("user", name))

        await asyncio.gather(say("one"), say("two"))
        await session.ingest("user", "three")
    found = [record.get("correlation_id") for record in json_lines(stream) if record["event"] == "ingest"]
    assert sorted(found, key=str) == [None, "one", "two"]


QUIET = """
import asyncio
from acms import ACMS, ACMSConfig, open_storage

async def main():
    config = ACMSConfig(on_event=lambda event: 1 / 0)
    async with ACMS("s", open_storage("memory://"), config=config) as session:
        await session.ingest("user", "x " * 100)
        await session.recall("x", token_budget=5)

asyncio.run(main())
"""


def test_nothing_is_written_anywhere_unless_logging_is_set_up() -> None:
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", QUIET], capture_output=True, text=True, check=False
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")


# ── opening and closing ─────────────────────────────────────────────────────────────────────────────────────────────


class Counted(WrapperStorage):
    """Counts how often it was closed."""

    closed = 0

    async def aclose(self) -> None:
        self.closed += 1
        await super().aclose()


async def test_close_is_idempotent_and_lets_the_store_go(url: str) -> None:
    storage = Counted(open_storage(url))
    session = session_on(storage)
    async with session:
        await ingest_texts(session, "x")
    await session.close()
    assert storage.closed == 1


async def test_a_session_needs_no_with_block(url: str) -> None:
    session = session_on(open_storage(url))
    await ingest_texts(session, "x")
    assert contents_of(await session.window(100)) == ["x"]
    await session.close()


async def test_a_closed_session_does_nothing_until_it_is_entered_again(storage: Storage) -> None:
    session = session_on(storage)
    await ingest_texts(session, "x")
    view = session.at(1)
    await session.close()
    for call in (ingest_texts(session, "y"), session.recall("x"), session.compact(), view.window(100)):
        with pytest.raises(HandleError, match="the session is closed"):
            await call
    async with session:
        await ingest_texts(session, "y")
        assert contents_of(await session.window(100)) == ["x", "y"]


async def test_a_session_opens_the_store_that_a_url_or_a_path_names(tmp_path: Path) -> None:
    async with ACMS("s", f"sqlite:///{tmp_path}/log.db", None) as session:
        await session.ingest("user", "x")
    async with ACMS("s", tmp_path / "log.db", None) as session:
        assert contents_of(await session.window(100)) == ["x"]


async def test_items_read_as_a_list(storage: Storage) -> None:
    async with session_on(storage) as session:
        await ingest_texts(session, "x", "y")
        items = await session.window(100)
        assert items == list(items)
        assert items[:1] + items[1:] == items
        assert [*items, *items] == items + items
        assert contents_of(items[:1]) == ["x"]


async def test_a_shared_store_stays_open_until_its_last_session_leaves(url: str) -> None:
    storage = Counted(open_storage(url))
    async with session_on(storage, "a") as one:
        async with session_on(storage, "b") as two:
            await ingest_texts(two, "x")
        assert storage.closed == 0
        await ingest_texts(one, "y")
    assert storage.closed == 1


async def test_a_with_block_around_the_store_keeps_it_open(url: str) -> None:
    storage = Counted(open_storage(url))
    async with storage:
        for name in "ab":
            async with session_on(storage, name) as session:
                await ingest_texts(session, "x")
        assert storage.closed == 0
    assert storage.closed == 1


async def test_closing_waits_for_what_other_tasks_are_writing(url: str) -> None:
    storage = Counted(open_storage(url))
    session = session_on(storage)
    await ingest_texts(session, "first")
    writes = [asyncio.ensure_future(session.ingest("user", f"m{number}")) for number in range(10)]
    await asyncio.sleep(0)
    await session.close()
    assert storage.closed == 1
    assert all(write.done() for write in writes)
    async with session_on(open_storage(url)) as again:
        assert len(await again.window(1000)) == 11


async def test_a_correction_may_say_which_text_it_corrects(storage: Storage) -> None:
    session = session_on(storage)
    id = await session.ingest("user", "The port is 80.")
    await session.replace(id, "The port is 81.", sha256=hashlib.sha256(b"The port is 80.").hexdigest())
    with pytest.raises(PreconditionError, match="has another text now"):
        await session.replace(id, "The port is 82.", sha256=hashlib.sha256(b"The port is 80.").hexdigest())
    assert [one.content for one in await session.entries()] == ["The port is 81."]
    await session.replace(
        id, "The port is 82.", sha256=hashlib.sha256(b"The port is 81.").hexdigest().upper()
    )
    assert [one.content for one in await session.entries()] == ["The port is 82."]


async def test_a_result_whose_call_is_unknown_is_stored_with_a_note() -> None:
    answer = {"role": "tool", "tool_call_id": "call_1", "content": "40 % used"}
    async with ACMS("alone", "memory://", None) as session:
        await session.ingest(answer)
        receipt = session.last_receipt
        assert receipt is not None
        assert "no earlier message makes the tool call" in receipt.notes[0]
        (synced,) = (await session.sync([{**answer, "tool_call_id": "call_2"}])).notes
        assert synced == receipt.notes[0]
    async with ACMS("together", "memory://", None) as session:
        await session.ingest(
            "assistant", "", tool_calls=[{"id": "call_1", "name": "disk", "arguments": "{}"}]
        )
        await session.ingest(answer)
        receipt = session.last_receipt
        assert receipt is not None
        assert receipt.notes == ()
