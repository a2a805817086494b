"""What recall promises: its edge cases one by one, and budgets, exclusions, duplicates and cuts."""

from __future__ import annotations

from typing import Any

import pytest

from acms import ACMS, ACMSConfig, Band, CacheConfig, RecallConfig, Source
from acms.observability import Planned
from acms.recall.planner import MIN_BUDGET_TOKENS
from acms.storage import MemoryStorage
from acms.text import chat_messages
from tests.support.talk import (
    LONG_EPISODES,
    PATIENT,
    Storage,
    Words,
    contents_of,
    ingest_texts,
    log_of,
    message_ids,
    session_on,
    tool_turn,
    versions_of,
)


@pytest.fixture(params=["cached", "uncached"])
def config(request: pytest.FixtureRequest) -> ACMSConfig:
    """Episodes end by hand; with and without a cache in front of the store."""
    cache = CacheConfig(enabled=request.param == "cached")
    return ACMSConfig(episodes=LONG_EPISODES, retry=PATIENT, cache=cache)


def distinct_texts(count: int, text: str = "orders") -> list[str]:
    """Texts of five words that answer "orders" and say different things."""
    return [f"{text} are kept by {one}" for one in NAMES[:count]]


NAMES = [f"{first}{last}" for first in "ada bob cyd dan eve fay gus hal ivy jon".split() for last in "xyz"]


# ── the edge cases of the seed ──────────────────────────────────────────────────────────────────────────────────────


async def test_no_relevant_result_gives_the_current_episode_only(
    storage: Storage, config: ACMSConfig
) -> None:
    async with session_on(storage, config=config) as session:
        await ingest_texts(session, *distinct_texts(5), close=True)
        await ingest_texts(session, "hello", "good morning")
        items = await session.recall("zanzibar", min_relevance=0.1)
        assert contents_of(items) == ["hello", "good morning"]
        assert {item.source for item in items} == {Source.CURRENT}
        assert (items.confidence, items.coverage) == (0, 1)


@pytest.mark.parametrize("query", ["?!", "the of and", "🙂", "数据库"])
async def test_a_query_without_a_word_that_was_said_gives_the_current_episode_only(
    storage: Storage, config: ACMSConfig, query: str
) -> None:
    async with session_on(storage, config=config) as session:
        await ingest_texts(session, *distinct_texts(5), close=True)
        await ingest_texts(session, "hello")
        assert contents_of(await session.recall(query, min_relevance=0.1)) == ["hello"]


async def test_a_current_episode_over_the_budget_keeps_the_newest_and_the_marked(
    storage: Storage, config: ACMSConfig
) -> None:
    async with session_on(storage, config=config, words=True) as session:
        await session.ingest("user", "idle one two three four", markers=["goal"])
        await ingest_texts(session, *(f"idle chat of day {name}" for name in NAMES))
        items = await session.recall("anything", token_budget=30)
        assert versions_of(items) == [1, 28, 29, 30, 31]
        assert items.tokens == 30


async def test_marked_messages_over_the_budget_are_shown_by_score_with_a_warning(
    storage: Storage, config: ACMSConfig
) -> None:
    async with session_on(storage, config=config, words=True) as session:
        for name in NAMES[:12]:
            await session.ingest("user", f"orders are kept by {name}", markers=["constraint"])
        await session.close_episode()
        await ingest_texts(session, "now")
        items = await session.recall("orders", token_budget=26)
        assert [item.source for item in items] == [Source.MARKED] * 4 + [Source.CURRENT]
        assert items.tokens <= 26
        (warning,) = items.ledger.warnings
        assert warning.startswith("8 relevant marked messages did not fit: they take ")
        assert warning.endswith(f" tokens, {26 - items.tokens} of 26 for recall are left")
        assert (await session.recall("orders", token_budget=4000)).ledger.warnings == ()
        scores = {verdict.rule: verdict.score for verdict in items.ledger}
        assert scores["score"] >= scores["budget"]


async def test_a_marked_message_that_answers_less_than_hundreds_of_others_is_still_considered(
    storage: Storage, config: ACMSConfig
) -> None:
    """The candidates are many but not all: marked entries are among them, and reported as left out."""
    async with session_on(storage, config=config, words=True) as session:
        long = " ".join(f"w{number}" for number in range(60))
        await session.ingest("user", f"orders {long}", markers=["constraint"])
        await ingest_texts(session, *(f"chat {name}" for name in NAMES[:9]))
        await session.ingest_many(
            [{"role": "user", "content": f"orders orders {number}x{number}"} for number in range(600)]
        )
        await session.close_episode()
        await ingest_texts(session, "now")
        items = await session.recall("orders", token_budget=40)
        (warning,) = items.ledger.warnings
        assert warning.startswith("1 relevant marked messages did not fit: they take ")
        verdict = items.ledger.why_not((await message_ids(session))[0])
        assert verdict is not None
        assert verdict.rule == "budget"
        assert (verdict.boost or 0) > 0


async def test_there_is_no_recency_an_old_answer_scores_like_a_new_one(
    storage: Storage, config: ACMSConfig
) -> None:
    async with session_on(storage, config=config) as session:
        for word in ("red", "blue", "green"):
            await ingest_texts(session, *(f"{word} chatter {name}" for name in NAMES[:9]))
            await ingest_texts(session, f"orders on host {word}", *NAMES[9:18])
        await session.close_episode()
        await ingest_texts(session, "now")
        items = await session.recall("orders")
        scores = [item.score for item in items if item.content.startswith("orders")]
        assert scores == pytest.approx([scores[0]] * 3, rel=0.02)


async def test_a_log_without_markers_and_with_one_message_only(storage: Storage, config: ACMSConfig) -> None:
    async with session_on(storage, config=config) as session:
        await ingest_texts(session, "orders run on db-7", close=True)
        for _ in range(2):
            (item,) = await session.recall("orders")
            assert (item.content, item.source) == ("orders run on db-7", Source.CURRENT)


# ── budgets and cuts ────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("budget", [0, 1, 2, 3, 5, 8, 13, 50, 200, 10_000])
async def test_no_budget_is_exceeded_and_the_latest_message_is_always_there(
    storage: Storage, config: ACMSConfig, budget: int
) -> None:
    async with session_on(storage, config=config) as session:
        await ingest_texts(session, *distinct_texts(10), close=True)
        await tool_turn(session, "c1", "orders: 40 % of the disk " * 20)
        await ingest_texts(session, "Constraint: orders within 5 ms", "and now, about the orders?")
        items = await session.recall("orders", token_budget=budget)
        assert items.tokens <= budget
        assert session._shared.counter.count(items.text()) <= budget
        assert (items[-1].version if items else None) == (15 if budget >= MIN_BUDGET_TOKENS else None)
        assert any(item.truncated for item in items[-1:]) == any(
            "was cut to fit" in warning for warning in items.ledger.warnings
        )
        assert all(item.content or item.truncated or item.parts for item in items)


async def test_a_latest_message_over_the_budget_is_cut_flagged_and_warned_of(
    storage: Storage, config: ACMSConfig
) -> None:
    async with session_on(storage, config=config, words=True) as session:
        await ingest_texts(session, *distinct_texts(3), close=True)
        (id,) = await ingest_texts(session, " ".join(f"w{number}" for number in range(300)))
        (item,) = await session.recall("orders", token_budget=30)
        items = await session.recall("orders", token_budget=30)
        assert item.truncated
        assert item.content.startswith("w0 w1 ")
        assert item.content.endswith(" w299")
        assert items.ledger.why(id).rule == "cut"
        assert [warning for warning in items.ledger.warnings if id in warning]


async def test_a_huge_answer_of_the_past_comes_as_an_excerpt_of_what_was_asked(
    storage: Storage, config: ACMSConfig
) -> None:
    async with session_on(storage, config=config, words=True) as session:
        pages = [f"Page {number} is about nothing of interest at all." for number in range(400)]
        pages[231] = "The staging database of orders runs on db-7."
        await ingest_texts(session, " ".join(pages), close=True)
        await ingest_texts(session, "thanks")
        items = await session.recall("where does the staging database run", token_budget=200)
        excerpt, latest = items
        assert latest.content == "thanks"
        assert "The staging database of orders runs on db-7." in excerpt.content
        assert excerpt.truncated
        assert " […] " in excerpt.content
        assert items.ledger.why(excerpt.id).rule == "excerpt"
        assert items.tokens <= 200


async def test_the_settings_hold_where_the_call_says_nothing(storage: Storage, config: ACMSConfig) -> None:
    given = ACMSConfig(episodes=LONG_EPISODES, cache=config.cache, recall=RecallConfig(token_budget=12))
    async with session_on(storage, config=given, words=True) as session:
        await ingest_texts(session, *distinct_texts(5))
        assert (await session.recall("orders")).budget == 12
        assert versions_of(await session.recall("zanzibar")) == [4, 5]
        assert (await session.recall("orders", token_budget=0)).budget == 0


# ── what is left out ────────────────────────────────────────────────────────────────────────────────────────────────


async def test_what_is_excluded_makes_room_for_what_comes_next(storage: Storage, config: ACMSConfig) -> None:
    async with session_on(storage, config=config, words=True) as session:
        ids = await ingest_texts(session, *distinct_texts(6), close=True)
        (latest,) = await ingest_texts(session, "now")
        shown = await session.recall("orders", token_budget=14)
        assert len(shown) == 3
        without = await session.recall("orders", token_budget=14, exclude=[shown[0].id])
        assert len(without) == 3
        assert shown[0].id not in [item.id for item in without]
        assert without.ledger.why(shown[0].id).rule == "excluded"
        none = await session.recall("orders", exclude=[*ids, latest])
        assert list(none) == []
        assert none.tokens == 0


async def test_excluding_one_of_two_equal_messages_shows_the_other(
    storage: Storage, config: ACMSConfig
) -> None:
    async with session_on(storage, config=config) as session:
        first, second = await ingest_texts(session, "orders run on db-7", "orders run on db-7", close=True)
        await ingest_texts(session, "now")
        items = await session.recall("orders")
        (shown,) = [item.id for item in items if item.source is Source.SIMILAR]
        (other,) = {first, second} - {shown}
        assert items.ledger.why(other).rule == "duplicate"
        items = await session.recall("orders", exclude=[shown])
        assert [item.id for item in items if item.source is Source.SIMILAR] == [other]


async def test_what_was_said_before_is_shown_when_the_current_episode_is_not(
    storage: Storage, config: ACMSConfig
) -> None:
    async with session_on(storage, config=config) as session:
        (old,) = await ingest_texts(session, "orders run on db-7", close=True)
        await ingest_texts(session, "orders run on db-7", "orders run on db-7 in May")
        items = await session.recall("orders run on db-7", include_current_episode=False)
        assert [item.id for item in items] == [old]


async def test_a_marker_is_not_lost_to_an_equal_message_without_one(
    storage: Storage, config: ACMSConfig
) -> None:
    async with session_on(storage, config=config) as session:
        await session.ingest("user", "orders run on db-7")
        marked = await session.ingest("user", "orders run on db-7", markers=["decision"])
        again = await session.ingest("user", "orders run on db-7", markers=["decision"])
        await session.close_episode()
        await ingest_texts(session, "now")
        items = await session.recall("orders")
        assert [item.id for item in items if item.source is Source.MARKED] in ([marked], [again])


@pytest.mark.parametrize(
    ("one", "two"),
    [
        ("the orders budget is 500 euros", "the orders budget is 600 euros"),
        ("orders may use the cache", "orders may not use the cache"),
        ("orders moved to db-7", "orders moved to db-8"),
    ],
)
async def test_messages_that_differ_in_a_number_or_a_no_are_both_shown(
    storage: Storage, config: ACMSConfig, one: str, two: str
) -> None:
    async with session_on(storage, config=config) as session:
        await ingest_texts(session, one, two, close=True)
        await ingest_texts(session, "now")
        assert contents_of(await session.recall("orders")) == [one, two, "now"]


async def test_min_relevance_drops_the_past_by_the_relevance_it_reports(
    storage: Storage, config: ACMSConfig
) -> None:
    async with session_on(storage, config=config) as session:
        await ingest_texts(
            session, "orders database", *distinct_texts(3), *(f"chat {name}" for name in NAMES), close=True
        )
        await ingest_texts(session, "now")
        everything = await session.recall("orders database")
        levels = sorted({item.relevance for item in everything if item.source is not Source.CURRENT})
        assert len(levels) > 2
        for least in levels:
            items = await session.recall("orders database", min_relevance=least)
            assert contents_of(items) == [
                item.content
                for item in everything
                if item.relevance >= least or item.source is Source.CURRENT
            ]
        assert "min_relevance" in {verdict.rule for verdict in items.ledger if not verdict.included}
        assert contents_of(await session.recall("orders database", min_relevance=1.0)) == [
            "orders database",
            "now",
        ]


async def test_confidence_is_of_the_past_and_does_not_depend_on_the_budget(
    storage: Storage, config: ACMSConfig
) -> None:
    async with session_on(storage, config=config) as session:
        await ingest_texts(
            session, "orders database PostgreSQL", *(f"chat {name}" for name in NAMES), close=True
        )
        await ingest_texts(session, "orders database PostgreSQL, right here and now")
        full = await session.recall("orders database")
        assert 0 < full.confidence <= 1
        assert full.band is Band.STRONG
        assert (await session.recall("orders database", token_budget=1)).confidence == full.confidence
        assert (await session.recall("orders database", min_relevance=0.99)).confidence == full.confidence
        assert (await session.recall("orders", include_current_episode=False)).confidence > 0
        nothing = await session.recall("zanzibar")
        assert (nothing.confidence, nothing.band) == (0, Band.NONE)


async def test_a_newest_question_equal_to_the_query_is_not_its_own_answer(
    storage: Storage, config: ACMSConfig
) -> None:
    async with session_on(storage, config=config) as session:
        old = await ingest_texts(session, "which host runs orders?", "it is db-7", close=True)
        (asked,) = await ingest_texts(session, "which host runs orders?")
        items = await session.recall(" which host runs orders?\n")
        assert [item.id for item in items] == old
        assert items.ledger.why(asked).rule == "query"
        assert asked in [item.id for item in await session.recall("which host")]


async def test_the_current_episode_is_the_one_of_the_question_before_it(
    storage: Storage, config: ACMSConfig
) -> None:
    """The question is left out; the messages before it are not."""
    async with session_on(storage, config=config) as session:
        await ingest_texts(session, "we are moving", "to Frankfurt", "which host runs orders?")
        assert contents_of(await session.recall("which host runs orders?")) == [
            "we are moving",
            "to Frankfurt",
        ]


async def test_events_and_ledger_count_the_same_as_left_out(storage: Storage, config: ACMSConfig) -> None:
    events: list[Any] = []
    given = ACMSConfig(episodes=LONG_EPISODES, cache=config.cache, on_event=events.append)
    async with session_on(storage, config=given, words=True) as session:
        await ingest_texts(session, *distinct_texts(9), close=True)
        await ingest_texts(session, "now")
        items = await session.recall("orders", token_budget=20)
        left_out = [verdict for verdict in items.ledger if not verdict.included]
        (planned,) = [event for event in events if isinstance(event, Planned)]
        assert planned.omitted == items.ledger.omitted == len(left_out) == 10 - len(items)
        assert all(verdict.reason for verdict in items.ledger)


# ── a whole prompt ──────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_prompt_of_a_long_log_is_the_window_and_what_the_past_answers_nothing_twice(
    storage: Storage, config: ACMSConfig
) -> None:
    async with session_on(storage, config=config, words=True) as session:
        await session.ingest("system", "be kind")
        await ingest_texts(session, "orders run on db-7 in Frankfurt")
        for number in range(20):
            batch = [
                {"role": ("user", "assistant")[n % 2], "content": f"chatter m{number}x{n}"} for n in range(30)
            ]
            await session.ingest_many(batch)
        await tool_turn(session, "c1", "40 %")
        await ingest_texts(session, "where do the orders run?")
        for budget in (70, 100, 300, 1000, 10_000):
            messages = await session.messages("where do the orders run?", budget=budget)
            assert chat_messages.count_message_tokens(messages, Words()) <= budget
            assert messages[0]["content"] == "be kind"
            assert messages[-1]["content"] == "where do the orders run?"
            written = "\n".join(str(message["content"]) for message in messages)
            assert written.count("db-7") == 1
            said = [line for line in written.splitlines() if "chatter" in line]
            assert len(set(said)) == len(said)
        assert len(messages) == 605


async def test_a_ledger_of_a_long_log_answers_for_every_message(storage: Storage, config: ACMSConfig) -> None:
    async with session_on(storage, config=config) as session:
        await session.ingest_many([{"role": "user", "content": f"orders {number}x"} for number in range(400)])
        await session.ingest_many(
            [{"role": "user", "content": f"chatter y{number}"} for number in range(400)]
        )
        await ingest_texts(session, "now")
        items = await session.recall("orders", token_budget=100, include_current_episode=False)
        rules: dict[str, int] = {}
        for entry in await log_of(session):
            verdict = items.ledger.why(entry.id)
            rules[verdict.rule] = rules.get(verdict.rule, 0) + 1
            assert verdict.reason
        assert sum(rules.values()) == 801
        assert len(items.ledger) == 801


@pytest.mark.parametrize("budget", [1_000, 2_000, 5_000])
async def test_a_long_document_that_answers_is_shown_in_part(budget: int) -> None:
    clauses = [
        f"Clause {n}: zinc plates of type {7 * n} are delivered to hall {n % 9} on day {n}."
        for n in range(320)
    ]
    async with ACMS("s", MemoryStorage(), None) as session:
        await session.ingest("user", "\n".join(["The vendor contract for zinc plates:", *clauses]))
        await session.ingest("assistant", "Read it.")
        for number in range(140):
            await session.ingest("user", f"Report {number} from office {number % 7}, it came in at noon.")
            await session.ingest("assistant", f"Filed report {number} in the archive of today.")
        question = "What does the vendor contract say about zinc plates of type 70, which hall?"
        items = await session.recall(question, budget=budget, include_current_episode=False)
    assert "type 70 are delivered to hall 1" in items.text()
    assert items.ledger.why(items[0].id).rule == "excerpt"
