"""The index behind recall is a cache: after any write, fork or erasure, every reader gets the same answer."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest

from acms import ACMS, ACMSConfig, CacheConfig, ContextItems, State, View, open_storage
from acms.log.read import PROFILE
from acms.model import ContextDraft
from acms.recall.index import Segment
from acms.storage import MemoryStorage
from acms.text import index_record as cards
from tests.recall.test_embedder import recall_when_settled
from tests.support.fakes import FakeEmbedder
from tests.support.talk import (
    LONG_EPISODES,
    PATIENT,
    Between,
    Storage,
    contents_of,
    ingest_texts,
    log_of,
    message_ids,
    session_on,
)

NOON = datetime(2026, 3, 14, 12, tzinfo=UTC)
QUERIES = ["which host runs orders?", "Frankfurt deploy of Sam", "14 March", "zanzibar"]
WHO = ["Sam", "Kim", None]
WHAT = [
    "orders run on host db-{n}",
    "Decision: deploy {n} goes to Frankfurt",
    "which host has the orders of week {n}?",
    "the weather is {n} degrees",
    "thanks",
]


def cache_config(cached: bool = True, **cache: Any) -> ACMSConfig:
    return ACMSConfig(episodes=LONG_EPISODES, retry=PATIENT, cache=CacheConfig(enabled=cached, **cache))


@pytest.fixture
def config(request: pytest.FixtureRequest) -> ACMSConfig:
    """Episodes end by hand; with a cache in front of memory and of a server, and without one in front of a file."""
    place = "any_url" if "any_url" in request.fixturenames else "url"
    return cache_config(not request.getfixturevalue(place).startswith("sqlite"))


def long_conversation(first: int, count: int) -> list[dict[str, Any]]:
    """Messages of a long conversation, always the same."""
    return [
        {
            "role": ("user", "assistant")[n % 2],
            "content": WHAT[n % len(WHAT)].format(n=n % 97),
            "actor_id": WHO[n % len(WHO)],
            "created_at": NOON + timedelta(minutes=90 * n),
        }
        for n in range(first, first + count)
    ]


def comparable_items(items: ContextItems) -> Any:
    """A plan without ids, as values that compare across logs."""
    return (
        [(item.version, item.content, item.source, item.score, item.relevance) for item in items],
        [
            (one.version, one.included, one.rule, one.source, one.score, one.relevance, dict(one.parts))
            for one in sorted(items.ledger, key=lambda one: one.version)
        ],
        items.tokens,
        items.confidence,
        items.coverage,
        items.ledger.warnings,
        items.ledger.omitted,
    )


async def comparable_recalls(view: View, budget: int = 400) -> Any:
    """What recall says to every query."""
    return [comparable_items(await view.recall(query, token_budget=budget)) for query in QUERIES]


async def fork_behind_back(session: ACMS, at: int, key: str) -> None:
    context = session._shared.context_id
    assert context is not None
    draft = ContextDraft(
        key=key, counter=session._shared.counter.name, created_at=NOON, parent=context, fork=at
    )
    await session._shared.handle.create(draft)


async def blank_entries(session: ACMS, versions: Sequence[int], to: State) -> None:
    context = session._shared.context_id
    assert context is not None
    assert await session._shared.handle.blank(context, versions, to=to, audit={}) == len(versions)


# ── company ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("size", [10, pytest.param(300, marks=pytest.mark.slow)])
async def test_a_cached_and_an_uncached_handle_agree_whoever_writes(url: str, size: int) -> None:
    async with (
        session_on(open_storage(url), config=cache_config()) as one,
        session_on(open_storage(url), config=cache_config(cached=False)) as two,
    ):

        async def agree() -> Any:
            left, right = await comparable_recalls(one), await comparable_recalls(two)
            assert left == right
            return left

        await one.ingest_many(long_conversation(0, size))
        await agree()
        for turn in range(2):
            first, second = (one, two) if turn % 2 else (two, one)
            await asyncio.gather(
                *(first.ingest_many(long_conversation(1000 + 10 * turn + n, 1)) for n in range(5)),
                *(second.ingest_many(long_conversation(1005 + 10 * turn + n, 1)) for n in range(5)),
                agree_somehow(one),
                agree_somehow(two),
            )
            await agree()
            ids = await message_ids(one)
            await second.replace(ids[turn], f"orders moved to host db-{turn}00")
            await agree()
            await first.retract(ids[5 + turn])
            await agree()
            await second.close_episode()
            await agree()
        before = await agree()
        first_shown, *others = [item.version for item in await one.recall(QUERIES[0], token_budget=400)]
        await blank_entries(two, [first_shown, 1, 2], State.ERASED)
        assert await agree() != before
        await blank_entries(one, others[:3], State.EXPIRED)
        await agree()
        await ingest_texts(two, "orders are back")
        await agree()
        for cached in (True, False):
            async with session_on(open_storage(url), config=cache_config(cached)) as late:
                assert await comparable_recalls(late) == await comparable_recalls(one)
                assert await comparable_recalls(late) == await comparable_recalls(two)


async def agree_somehow(session: ACMS) -> None:
    """Recall while others write: whole, sound, and of one version."""
    for query in QUERIES:
        items = await session.recall(query, token_budget=400)
        assert items.tokens <= 400
        assert all(item.version <= items.version for item in items)
        assert max(verdict.version for verdict in items.ledger) <= items.version
        await asyncio.sleep(0)


async def test_two_handles_agree_once_late_vectors_have_come(url: str) -> None:
    left, right = FakeEmbedder(), FakeEmbedder()
    async with (
        session_on(open_storage(url), config=cache_config(), embedder=left) as one,
        session_on(open_storage(url), config=cache_config(cached=False), embedder=right) as two,
    ):
        left.error = OSError("down")
        await one.ingest_many(long_conversation(0, 300))
        assert (await two.recall("orders", token_budget=400)).coverage < 1
        await recall_when_settled(two, "orders")
        left.error = None
        await recall_when_settled(one, "orders")
        assert await comparable_recalls(one) == await comparable_recalls(two)
        await two.ingest_many(long_conversation(300, 20))
        await recall_when_settled(two, "orders")
        await recall_when_settled(one, "orders")
        assert await comparable_recalls(one) == await comparable_recalls(two)
        assert "meaning" in (await one.recall("orders")).ledger.why((await message_ids(one))[0]).parts


# ── what is gone ────────────────────────────────────────────────────────────────────────────────────────────────────

SECRET = "xyzzy plugh"


@pytest.mark.parametrize(
    ("size", "to"),
    [
        (3, State.ERASED),
        (3, State.EXPIRED),
        pytest.param(300, State.ERASED, marks=pytest.mark.slow),
    ],
)
async def test_what_is_gone_is_nowhere_in_any_later_answer_of_parent_and_fork(
    storage: Storage, config: ACMSConfig, size: int, to: State
) -> None:
    async with asyncio.timeout(300), session_on(storage, config=config) as session:
        await session.ingest_many(long_conversation(0, size))
        await session.ingest("user", f"Decision: the secret is {SECRET}", actor_id="Sam")
        await session.ingest_many(long_conversation(size, 4))
        await session.close_episode()
        await ingest_texts(session, "now")
        await fork_behind_back(session, size + 3, "child")
        async with session_on(storage, "child", config=config) as child:
            for one in (session, child):
                assert SECRET in (await one.recall(SECRET)).text()
                assert SECRET in str(await one.messages(SECRET, budget=300))
            await blank_entries(session, [size + 1], to)
            for one in (session, child, session.at(size + 2), child.at(size + 2)):
                for query in (SECRET, *QUERIES):
                    items = await one.recall(query)
                    assert SECRET not in items.text()
                    assert size + 1 not in [item.version for item in items]
                    assert SECRET not in str(list(items.ledger))
                    (verdict,) = [found for found in items.ledger if found.version == size + 1]
                    assert (verdict.included, verdict.rule, verdict.relevance) == (False, "hidden", 0)
                    assert items.ledger.why(verdict.id) == verdict
                    assert SECRET not in str(await one.messages(query, budget=300))
            assert (await session.recall(SECRET)).confidence == 0


@pytest.mark.parametrize("to", [State.ERASED, State.EXPIRED])
async def test_a_log_of_which_everything_is_gone_answers_with_nothing(
    storage: Storage, config: ACMSConfig, to: State
) -> None:
    async with asyncio.timeout(300), session_on(storage, config=config) as session:
        await ingest_texts(session, "orders one", "orders two")
        await session.recall("orders")
        await blank_entries(session, [1, 2], to)
        for _ in range(2):
            items = await session.recall("orders")
            assert list(items) == []
            assert [verdict.rule for verdict in items.ledger] == ["hidden", "hidden"]
        await ingest_texts(session, "orders three")
        assert contents_of(await session.recall("orders")) == ["orders three"]


@pytest.mark.parametrize(
    ("size", "to"),
    [
        (3, State.ERASED),
        (3, State.EXPIRED),
        pytest.param(300, State.ERASED, marks=pytest.mark.slow),
    ],
)
async def test_an_edit_that_is_gone_does_not_bring_back_what_it_corrected(
    storage: Storage, config: ACMSConfig, size: int, to: State
) -> None:
    async with asyncio.timeout(300), session_on(storage, config=config) as session:
        await session.ingest_many(long_conversation(0, size))
        (id,) = await ingest_texts(session, "orders are secret")
        await session.replace(id, f"orders are {SECRET}")
        await session.close_episode()
        await ingest_texts(session, "now")
        assert SECRET in (await session.recall("orders")).text()
        await blank_entries(session, [size + 2], to)
        items = await session.recall(f"orders {SECRET}")
        assert SECRET not in items.text()
        assert "secret" not in items.text()
        assert [verdict.rule for verdict in items.ledger if verdict.version in (size + 1, size + 2)] == [
            "hidden",
            "hidden",
        ]


@pytest.mark.parametrize(("size", "to"), [(20, State.ERASED), (300, State.ERASED), (300, State.EXPIRED)])
async def test_after_something_went_a_warm_index_says_what_a_cold_one_says(
    url: str, config: ACMSConfig, size: int, to: State
) -> None:
    async with session_on(open_storage(url), config=config) as warm:
        await warm.ingest_many(long_conversation(0, size))
        await warm.close_episode()
        await ingest_texts(warm, "now")
        await comparable_recalls(warm)
        await blank_entries(warm, [2, 3, 7], to)
        await warm.recall("zanzibar")
        await ingest_texts(warm, "and then")
        found = await comparable_recalls(warm)
        for order in (QUERIES, QUERIES[::-1]):
            async with session_on(open_storage(url), config=config) as cold:
                for query in order:
                    await cold.recall(query)
                assert await comparable_recalls(cold) == found


# ── forks and the past ──────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("at", [7, 280])
async def test_a_fork_recalls_what_a_copy_of_its_messages_recalls(
    storage: Storage, config: ACMSConfig, at: int
) -> None:
    async with session_on(storage, config=config) as parent:
        await parent.ingest_many(long_conversation(0, 300))
        await comparable_recalls(parent)
        await fork_behind_back(parent, at, "fork")
        await parent.ingest_many(long_conversation(500, 10))
        async with (
            session_on(storage, "fork", config=config) as child,
            session_on(storage, "copy", config=config) as copy,
        ):
            await copy.ingest_many(long_conversation(0, at))
            assert await comparable_recalls(child) == await comparable_recalls(copy)
            for one in (child, copy):
                await one.ingest_many(long_conversation(700, 5))
                await one.replace((await message_ids(one))[0], "orders run on host db-1000")
                await one.retract((await message_ids(one))[3])
            assert await comparable_recalls(child) == await comparable_recalls(copy)
            await fork_behind_back(child, at + 2, "grandchild")
            async with session_on(storage, "grandchild", config=config) as grandchild:
                assert await comparable_recalls(grandchild) == await comparable_recalls(copy.at(at + 2))
        assert await comparable_recalls(parent) == await comparable_recalls(parent.at(310))


async def test_a_past_version_recalls_what_a_log_that_ends_there_recalls(
    storage: Storage, config: ACMSConfig
) -> None:
    """Frequencies, neighbours and days are those of the past, not of today."""
    steps: list[Any] = [("say", long_conversation(0, 260))]
    for n in range(4):
        steps += [
            ("say", long_conversation(260 + 5 * n, 5)),
            ("edit", 3 * n),
            ("retract", 3 * n + 1),
            ("close",),
        ]

    async def tell(session: ACMS, many: int) -> None:
        for name, *given in steps[:many]:
            if name == "say":
                await session.ingest_many(given[0])
            elif name == "close":
                await session.close_episode()
            else:
                id = (await message_ids(session))[given[0]]
                await (
                    session.replace(id, f"orders left {given[0]}") if name == "edit" else session.retract(id)
                )

    async with session_on(storage, config=config) as session:
        await tell(session, len(steps))
        await comparable_recalls(session)
        for many in (1, 3, 6, 11, len(steps)):
            async with session_on(storage, f"until {many}", config=config) as other:
                await tell(other, many)
                version = (await other.get_session_stats()).version
                assert await comparable_recalls(session.at(version)) == await comparable_recalls(other)


async def test_a_view_of_a_long_log_says_the_same_before_and_after_later_writes(
    storage: Storage, config: ACMSConfig
) -> None:
    async with session_on(storage, config=config) as session:
        await session.ingest_many(long_conversation(0, 300))
        ids = await message_ids(session)
        before = {
            version: await comparable_recalls(session.at(version)) for version in (0, 1, 100, 255, 256, 300)
        }
        items = {query: await session.at(300).recall(query) for query in QUERIES}
        await session.ingest_many(long_conversation(300, 100))
        await session.replace(ids[2], "orders moved")
        await session.retract(ids[7])
        await session.close_episode()
        await session.clear()
        await comparable_recalls(session)
        for version, found in before.items():
            assert await comparable_recalls(session.at(version)) == found
        for query in QUERIES:
            assert await session.at(300).recall(query) == items[query]


# ── the life of an index ────────────────────────────────────────────────────────────────────────────────────────────


async def test_nothing_is_kept_of_a_short_log(storage: Storage, config: ACMSConfig) -> None:
    async with session_on(storage, config=config) as session:
        await session.ingest_many(long_conversation(0, 255))
        for _ in range(2):
            await session.recall("orders")
        stats = session.internals.index_stats
        assert (stats.contexts, stats.bytes, stats.hits) == (0, 0, 0)
        await session.ingest_many(long_conversation(255, 1))
        for _ in range(3):
            await session.recall("orders")
        stats = session.internals.index_stats
        assert (stats.contexts, stats.hits) == (1, 2)
        assert stats.bytes > 10_000


async def test_twenty_first_recalls_at_once_build_one_index(storage: Storage, config: ACMSConfig) -> None:
    async with session_on(storage, config=config) as session:
        await session.ingest_many(long_conversation(0, 300))
        found = await asyncio.gather(*(session.recall("which host runs orders?") for _ in range(20)))
        assert all(comparable_items(items) == comparable_items(found[0]) for items in found)
        assert (session.internals.index_stats.builds, session.internals.index_stats.hits) == (1, 19)


async def test_an_index_that_nobody_waits_for_any_more_is_built_to_its_end_before_another_is_begun(
    storage: Storage, config: ACMSConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    extend = Segment.extend
    begun, go_on = threading.Event(), threading.Event()
    at_once: list[int] = []
    building = 0

    def slowly(segment: Segment, cards: Sequence[bytes | None]) -> None:
        nonlocal building
        building += 1
        at_once.append(building)
        begun.set()
        go_on.wait(60)
        extend(segment, cards)
        building -= 1

    monkeypatch.setattr("acms.recall.index_cache.THREAD_ABOVE", 100)
    async with session_on(storage, embedder=FakeEmbedder(), config=config) as session:
        await session.ingest_many(long_conversation(0, 400))
        await session.wait_pending()
        expected = await comparable_recalls(session)
        session._shared.indexes._logs.clear()
        session._shared.indexes._segments.clear()
        monkeypatch.setattr(Segment, "extend", slowly)
        first = asyncio.create_task(session.recall(QUERIES[0], token_budget=400))
        assert await asyncio.to_thread(begun.wait, 60)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        second = asyncio.create_task(comparable_recalls(session))
        await asyncio.sleep(0.05)
        go_on.set()
        assert await second == expected
        assert set(at_once) == {1}


async def test_the_least_recently_used_index_makes_room_and_comes_back_the_same(
    storage: Storage, config: ACMSConfig
) -> None:
    async with session_on(storage, "0", config=config) as session:
        await session.ingest_many(long_conversation(0, 300))
        await session.recall("orders")
        one = session.internals.index_stats.bytes
    small = cache_config(config.cache.enabled, index_bytes=int(one * 2.5))
    other = MemoryStorage()
    async with (
        session_on(other, "0", config=small) as first,
        session_on(other, "1", config=small) as second,
        session_on(other, "2", config=small) as third,
    ):
        sessions = (first, second, third)
        for session in sessions:
            await session.ingest_many(long_conversation(0, 300))
        before = [await comparable_recalls(session) for session in sessions]
        assert first.internals.index_stats.contexts == 2
        assert first.internals.index_stats.bytes <= small.cache.index_bytes
        builds = first.internals.index_stats.builds
        await third.recall("orders")
        await second.recall("orders")
        assert first.internals.index_stats.builds == builds  # both are still there
        assert [await comparable_recalls(session) for session in sessions] == before
        assert first.internals.index_stats.builds > builds


async def test_a_recall_counts_the_bytes_of_its_own_index_only(monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[Segment] = []
    size = Segment.bytes.fget
    assert size is not None

    def counting(segment: Segment) -> int:
        counted.append(segment)
        return int(size(segment))

    storage = MemoryStorage()
    async with AsyncExitStack() as stack:
        sessions = [await stack.enter_async_context(session_on(storage, str(number))) for number in range(12)]
        for session in sessions:
            await session.ingest_many(long_conversation(0, 300))
            await session.recall("orders")
        monkeypatch.setattr(Segment, "bytes", property(counting))
        await sessions[0].recall("orders")
        assert len(counted) == 1  # with thousands of sessions a recall is as fast as with one
        assert sessions[0].internals.index_stats.contexts == len(sessions)


async def test_forks_share_the_index_of_what_they_inherit(storage: Storage, config: ACMSConfig) -> None:
    async with session_on(storage, config=config) as session:
        await session.ingest_many(long_conversation(0, 1000))
        await session.recall("orders")
        alone = session.internals.index_stats.bytes
        for number in range(5):
            await fork_behind_back(session, 990 + number, f"fork {number}")
            async with session_on(storage, f"fork {number}", config=config) as child:
                await child.recall("orders")
        assert session.internals.index_stats.contexts == 6
        assert session.internals.index_stats.bytes < 1.5 * alone


async def test_a_reopened_file_ranks_the_same_and_writes_no_card_again(
    url: str, config: ACMSConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with session_on(open_storage(url), config=config) as session:
        await session.ingest_many(long_conversation(0, 300))
        ids = await message_ids(session)
        await session.replace(ids[4], "orders moved to db-9")
        await session.retract(ids[5])
        await session.close_episode()
        await ingest_texts(session, "now")
        before = await comparable_recalls(session)
        assert session.internals.index_stats.healed == 0
    written: list[int] = []
    write = cards.encode_index_record

    def counted(draft: Any, nonce: str) -> bytes:
        written.append(1)
        return write(draft, nonce)

    monkeypatch.setattr(cards, "encode_index_record", counted)
    async with session_on(open_storage(url), config=config) as again:
        assert await comparable_recalls(again) == before
        assert (again.internals.index_stats.healed, len(written)) == (0, 0)
        await ingest_texts(again, "one more about orders")
        await comparable_recalls(again)
        assert (again.internals.index_stats.healed, len(written)) == (0, 1)


async def test_the_words_of_old_messages_are_not_read_again_by_a_recall(
    storage: Storage, config: ACMSConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with session_on(storage, config=config) as session:
        await session.ingest_many(long_conversation(0, 300))
        written: list[int] = []
        write = cards.encode_index_record
        monkeypatch.setattr(
            cards, "encode_index_record", lambda draft, nonce: written.append(1) or write(draft, nonce)
        )
        await comparable_recalls(session)
        assert len(written) <= 300
        written.clear()
        for n in range(5):
            await session.ingest_many(long_conversation(300 + n, 1))
            await comparable_recalls(session)
        assert len(written) == 5
        written.clear()
        await comparable_recalls(session)
        await comparable_recalls(session.at(200))
        assert written == []


KILLED = """
import asyncio, json, os, sys
from datetime import datetime
from acms import ACMS, ACMSConfig, open_storage

async def main(url, messages):
    session = ACMS("user_123", open_storage(url))
    for message in messages:
        await session.ingest(**message)
    os._exit(9)

asyncio.run(main(sys.argv[1], json.load(sys.stdin)))
"""


async def test_the_cards_a_killed_process_did_not_store_are_written_by_the_next_one(
    url: str, config: ACMSConfig
) -> None:
    import json

    messages = [{**one, "created_at": one["created_at"].isoformat()} for one in long_conversation(0, 80)]
    ran = subprocess.run(
        [sys.executable, "-c", KILLED, url], input=json.dumps(messages), text=True, check=False
    )
    assert ran.returncode == 9
    async with session_on(open_storage(url), config=config) as session:
        found = await comparable_recalls(session)
        assert 0 < session.internals.index_stats.healed <= 80
        assert len(await log_of(session)) == 80
    async with session_on(open_storage(url), config=config) as session:
        assert await comparable_recalls(session) == found
        assert session.internals.index_stats.healed == 0
    async with session_on(MemoryStorage(), config=ACMSConfig()) as whole:
        await whole.ingest_many(long_conversation(0, 80))
        assert await comparable_recalls(whole) == found


# ── what goes while it is being read ────────────────────────────────────────────────────────────────────────────────


ASKS: list[tuple[str, Callable[[ACMS], Awaitable[Any]]]] = [
    ("recall", lambda session: session.recall(SECRET)),
    ("namespace", lambda session: session.recall(SECRET, scope="namespace")),
    ("messages", lambda session: session.messages(SECRET, budget=300)),
]


@pytest.mark.parametrize("ask", [ask for _, ask in ASKS], ids=[name for name, _ in ASKS])
@pytest.mark.parametrize("size", [3, 300])
async def test_what_goes_while_it_is_being_read_is_not_shown(
    size: int, ask: Callable[[ACMS], Awaitable[Any]]
) -> None:
    inner = MemoryStorage()
    storage = Between(inner)
    given = {"config": cache_config(False), "namespace": "team", "embedder": None}

    async def said(session: ACMS) -> str:
        found = await ask(session)
        return found.text() if isinstance(found, ContextItems) else str(found)

    async with asyncio.timeout(300), session_on(storage, "one", **given) as session:
        await session.ingest_many(long_conversation(0, size))
        (id,) = await ingest_texts(session, f"Decision: the secret is {SECRET}", close=True)
        fact = await session.state("Sam", "secret", f"{SECRET} too", scope="namespace")
        await session.ingest_many(long_conversation(size, 40))
        profile = await inner.context(PROFILE, namespace="team")
        for context, version, text in (
            (profile.id, fact.version, f"{SECRET} too"),
            (str(await session.context_id()), size + 1, SECRET),
        ):
            assert text in await said(session)
            storage.then = partial(inner.blank, context, [version], to=State.ERASED, audit={})
            assert text not in await said(session)
            assert storage.then is None
            assert text not in await said(session)
        assert id not in [item.id for item in await session.recall(SECRET)]


async def test_a_question_that_goes_while_it_is_looked_at_is_no_question() -> None:
    storage = Between(MemoryStorage())
    async with (
        asyncio.timeout(300),
        session_on(storage, config=cache_config(False), embedder=None) as session,
    ):
        await ingest_texts(session, "orders run on db-1", "deploys go to Frankfurt", close=True)
        (id,) = await ingest_texts(session, "which host runs orders?")
        asked = await session.get(id)
        storage.then = partial(storage.inner.blank, asked.context, [asked.version], to=State.ERASED, audit={})
        items = await session.recall("which host runs orders?")
        assert storage.then is None
        assert "orders run on db-1" in contents_of(items)
        assert items.ledger.why(id).rule == "hidden"


# ── how much is remembered ──────────────────────────────────────────────────────────────────────────────────────────


async def test_answers_do_not_depend_on_how_much_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("acms.recall.embeddings.PAUSE_SECONDS", 0)
    sizes: list[int] = []

    async def answers() -> list[Any]:
        storage, found = MemoryStorage(), list[Any]()
        async with AsyncExitStack() as stack:
            sessions = [
                await stack.enter_async_context(
                    session_on(
                        storage,
                        name,
                        config=cache_config(),
                        namespace=f"team {name}",
                        embedder=FakeEmbedder(),
                    )
                )
                for name in "ab"
            ]
            for turn in range(2):
                for session in sessions:
                    await session.ingest_many(long_conversation(6 * turn, 6))
                    await session.state("Sam", "city", f"Lyon {turn}")
                    if turn:
                        await session.state("deploys", "city", "Frankfurt", scope="namespace")
                for query in QUERIES[:2]:
                    found += [
                        comparable_items(await recall_when_settled(session, query)) for session in sessions
                    ]
                    for session in sessions:
                        found += [one["content"] for one in await session.messages(query, budget=300)]
            at, embedding = sessions[0]._shared.indexes, sessions[0]._shared.embedding
            assert embedding is not None
            known = at.profiles
            held = (
                at._active_states,
                at._valid_times,
                at._pending_vectors,
                at._new_records,
                at._lineages,
                known._ids,
            )
            sizes.append(max(map(len, (*held, known._absent, embedding._query_vectors))))
        return found

    expected = await answers()
    for name in (
        "index_cache.MAX_CACHED", "index_cache.CACHED_LOGS", "index.MAX_CACHED_DOCUMENTS",
        "text_frame.MOST_CACHED_COUNTS", "embeddings.MAX_CACHED_QUERIES",
    ):  # fmt: skip
        monkeypatch.setattr(f"acms.recall.{name}", 1)
    assert await answers() == expected
    assert sizes[0] > sizes[1] == 1
