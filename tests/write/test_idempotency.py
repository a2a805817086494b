"""All or nothing: repeated keys, cancelled callers, and a store that fails at the worst moment (T04, T05, T06)."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from acms import (
    ACMS,
    ACMSConfig,
    ConflictError,
    IdempotencyMismatchError,
    PrivacyConfig,
    RetryConfig,
    StorageBusyError,
    StorageError,
    ValidationError,
    open_storage,
)
from acms.errors import StorageFullError, StorageUnavailableError
from acms.model import Append, Draft, Expect
from acms.observability import Ingested
from tests.support.faulty import FaultyStorage
from tests.support.talk import (
    LONG_EPISODES,
    Storage,
    contents_of,
    ingest_texts,
    log_of,
    session_on,
    tool_turn,
)

# ── keys ────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_one_key_fifty_times_at_once_is_one_row_and_one_answer(storage: Storage) -> None:
    async with session_on(storage) as one, session_on(storage) as two:
        ids = await asyncio.gather(
            *((one, two)[number % 2].ingest("user", "hello", idempotency_key="k") for number in range(50))
        )
        assert len(set(ids)) == 1
        assert [entry.version for entry in await log_of(one)] == [1]


async def test_a_repeat_gives_the_receipt_of_the_first_time(storage: Storage) -> None:
    async with session_on(storage) as session:
        message = {"role": "user", "content": "Goal: ship", "key": "k"}
        (first,) = await session.ingest_many([message])
        await ingest_texts(session, "later", close=True)
        (again,) = await session.ingest_many([message])
        assert again.repeated
        assert not first.repeated
        for name in ("message_id", "version", "position", "chain_hash", "episode_id", "tokens", "markers"):
            assert getattr(again, name) == getattr(first, name)
    async with session_on(storage) as session:
        (after,) = await session.ingest_many([message])
        assert after.message_id == first.message_id


async def test_a_try_that_wrote_nothing_says_nothing_of_an_earlier_one_whose_outcome_is_unknown(
    storage: Storage,
) -> None:
    store = FaultyStorage(storage)
    lost = StorageUnavailableError("nobody answered")
    lost.unknown = True
    store.fail("append", 1, lost, after=True)
    for nth in (2, 3):
        store.fail("append", nth, StorageBusyError())
    config = ACMSConfig(episodes=LONG_EPISODES, retry=RetryConfig(base_delay=0.001))
    async with session_on(store, config=config) as session:
        with pytest.raises(StorageUnavailableError, match="nobody answered"):
            await session.ingest("user", "hello", idempotency_key="k")
        await session.ingest("user", "hello", idempotency_key="k")
        assert [entry.version for entry in await log_of(session)] == [1]


@pytest.mark.parametrize(
    "other",
    [
        {"content": "goodbye"},
        {"role": "assistant"},
        {"metadata": {"run": 2}},
        {"content": "hello "},
        {"privacy": "block"},
        {"origin": "external"},
    ],
)
async def test_one_key_for_another_message_is_a_mismatch_and_stores_nothing(
    storage: Storage, other: dict[str, Any]
) -> None:
    async with session_on(storage) as session:
        given: dict[str, Any] = {"role": "user", "content": "hello", "idempotency_key": "k"}
        await session.ingest(**given)
        with pytest.raises(IdempotencyMismatchError) as caught:
            await session.ingest(**{**given, **other})
        assert caught.value.code == "IDEMPOTENCY_MISMATCH"
        assert not caught.value.retryable
        assert (await session.get_session_stats()).version == 1


async def test_a_repetition_is_the_same_whatever_the_mode_of_the_configuration(storage: Storage) -> None:
    given: dict[str, Any] = {"role": "user", "content": "mail ann@example.org", "idempotency_key": "k"}
    found: set[str] = set()
    for mode in (None, "redact", "block"):
        config = ACMSConfig(privacy=PrivacyConfig(mode=mode))  # type: ignore[arg-type]  # a word is read as a mode
        async with session_on(storage, config=config) as session:
            found.add(await session.ingest(**given))
    assert len(found) == 1


async def test_fifty_different_messages_under_one_key_leave_exactly_the_first(storage: Storage) -> None:
    async with session_on(storage) as session:
        await ingest_texts(session, "first")
        results = await asyncio.gather(
            *(session.ingest("user", f"m{number}", idempotency_key="k") for number in range(50)),
            return_exceptions=True,
        )
        assert isinstance(results[0], str)
        assert {type(result) for result in results[1:]} == {IdempotencyMismatchError}
        assert contents_of(await session.window(100)) == ["first", "m0"]


async def test_keys_and_messages_without_a_key_share_a_queue_unharmed(storage: Storage) -> None:
    async with session_on(storage) as session:
        await session.ingest("user", "old", idempotency_key="old")
        results = await asyncio.gather(
            session.ingest("user", "a"),
            session.ingest("user", "b"),
            session.ingest("user", "old", idempotency_key="old"),
            session.ingest("user", "new", idempotency_key="new"),
            session.ingest("user", "wrong", idempotency_key="old"),
            session.ingest("user", "new", idempotency_key="new"),
            session.ingest("user", "c"),
            return_exceptions=True,
        )
        assert [type(result) for result in results] == [
            str,
            str,
            str,
            str,
            IdempotencyMismatchError,
            str,
            str,
        ]
        assert results[3] == results[5]
        log = await log_of(session)
        assert [entry.preview for entry in log] == ["old", "a", "b", "new", "c"]
        assert [entry.position for entry in log] == [1, 2, 3, 4, 5]
        assert results[2] == log[0].id


async def test_a_batch_repeats_as_a_whole_or_not_at_all(storage: Storage) -> None:
    async with session_on(storage) as session:
        batch = [{"role": "user", "content": f"m{number}"} for number in range(5)]
        first = await session.ingest_many(batch, idempotency_key="import-1")
        again = await session.ingest_many(batch, idempotency_key="import-1")
        assert [receipt.message_id for receipt in again] == [receipt.message_id for receipt in first]
        assert all(receipt.repeated for receipt in again)
        with pytest.raises(IdempotencyMismatchError):
            await session.ingest_many(
                [*batch, {"role": "user", "content": "one more"}], idempotency_key="import-1"
            )
        assert [receipt.version for receipt in first] == [1, 2, 3, 4, 5]
        assert len(await log_of(session)) == 5


async def test_an_import_that_stopped_half_way_goes_on(storage: Storage) -> None:
    messages = [{"role": "user", "content": f"m{number}", "key": f"id-{number}"} for number in range(9)]
    async with session_on(storage) as session:
        for start in (0, 3):
            await session.ingest_many(messages[start : start + 3])
    async with session_on(storage) as session:
        for start in (0, 3, 6):
            await session.ingest_many(messages[start : start + 3])
        assert contents_of(await session.window(1000)) == [f"m{number}" for number in range(9)]


async def test_a_key_belongs_to_its_session(storage: Storage) -> None:
    async with session_on(storage, "a") as one, session_on(storage, "b") as two:
        first = await one.ingest("user", "x", idempotency_key="k")
        second = await two.ingest("user", "y", idempotency_key="k")
        assert first != second


async def test_a_fork_repeats_what_was_said_before_it_and_nothing_later(storage: Storage) -> None:
    message = {"id": "m1", "role": "user", "content": "one"}
    batch = [{"role": "user", "content": f"m{number}"} for number in range(3)]
    async with session_on(storage) as session:
        first = await session.ingest(message)
        imported = await session.ingest_many(batch, idempotency_key="monday")
        async with await session.fork(session_id="fork") as fork:
            await session.ingest("user", "here", idempotency_key="later")
            assert await fork.ingest(message) == first
            assert fork.last_receipt is not None
            assert (fork.last_receipt.repeated, fork.last_receipt.version) == (True, 1)
            again = await fork.ingest_many(batch, idempotency_key="monday")
            assert [receipt.message_id for receipt in again] == [one.message_id for one in imported]
            for wrong in ({**message, "content": "two"}, {"id": "monday:1", "role": "user", "content": "m2"}):
                with pytest.raises(IdempotencyMismatchError):
                    await fork.ingest(wrong)
            with pytest.raises(IdempotencyMismatchError):
                await fork.ingest_many([*batch, {"role": "user", "content": "new"}], idempotency_key="monday")
            await fork.ingest("user", "there", idempotency_key="later")
            assert contents_of(await fork.window(100)) == ["one", "m0", "m1", "m2", "there"]
            await fork.retract("m1")
            assert await fork.ingest(message) == first
            await session.erase(first)
            assert await fork.ingest(message) != first
            assert contents_of(await fork.window(100)) == ["m0", "m1", "m2", "there", "one"]


async def test_a_fork_finds_an_entry_by_the_key_that_it_inherits(storage: Storage) -> None:
    async with session_on(storage) as session:
        first = await session.ingest("user", "one", idempotency_key="k")
        async with await session.fork(session_id="fork") as fork:
            assert (await fork.get("k")).id == first
            await fork.replace("k", "two")
            assert (await fork.get("k")).content == "two"
            await fork.retract("k")
            assert contents_of(await fork.window(100)) == []
        assert contents_of(await session.window(100)) == ["one"]


async def test_a_repeated_tool_call_is_answered_once_and_stays_one_group(storage: Storage) -> None:
    async with session_on(storage) as session:
        call: dict[str, Any] = {
            "role": "assistant",
            "tool_calls": [{"id": "c1", "name": "x"}],
            "idempotency_key": "k",
        }
        first = await session.ingest(**call)
        assert await session.ingest(**call) == first
        await session.ingest("tool", "40 %", tool_call_id="c1")
        assert await session.ingest(**call) == first
        await session.ingest("user", "next")
        window = await session.window(1000)
        assert [item.role for item in window] == ["assistant", "tool", "user"]
        assert window[0].group == window[1].group is not None


# ── T06: cancelled callers ──────────────────────────────────────────────────────────────────────────────────────────


async def cancelled_after(steps: int, work: Coroutine[Any, Any, Any]) -> None:
    """Run some work and cancel it after so many turns of the event loop."""
    task = asyncio.ensure_future(work)
    for _ in range(steps):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])


CASES: list[Callable[[ACMS], Coroutine[Any, Any, Any]]] = [
    lambda session: session.ingest("user", "hello", idempotency_key="k:0"),
    lambda session: session.ingest_many([{"role": "user", "content": "hello"}] * 3, idempotency_key="k"),
]


@pytest.mark.parametrize("case", range(len(CASES)))
@pytest.mark.parametrize("crowded", [False, True], ids=["alone", "in company"])
async def test_a_cancelled_ingest_is_fully_there_or_fully_absent_and_its_key_finds_it(
    storage: Storage, case: int, crowded: bool
) -> None:
    size = (1, 3)[case]
    for steps in (*range(20), 50, 100, 200, 400):  # a commit in a thread takes some hundred turns
        async with session_on(storage, f"s{steps}") as session:
            company = [
                asyncio.ensure_future(session.ingest("user", f"other {n}")) for n in range(3 * crowded)
            ]
            await cancelled_after(steps, CASES[case](session))
            others = await asyncio.gather(*company)
            stored = [entry for entry in await log_of(session) if entry.preview == "hello"]
            assert len(stored) in (0, size)
            answer = await CASES[case](session)
            log = await log_of(session)
            found = [entry for entry in log if entry.preview == "hello"]
            assert len(found) == size
            assert [entry.version for entry in log] == list(range(1, len(log) + 1))
            assert {*others} <= {entry.id for entry in log}
            assert stored in ([], found)
            assert (answer if case == 0 else answer[0].message_id) == found[0].id


async def test_a_cancelled_caller_leaves_its_neighbours_in_the_queue_unharmed(storage: Storage) -> None:
    async with session_on(storage) as session:
        await ingest_texts(session, "first")
        writes = [asyncio.ensure_future(session.ingest("user", f"m{number}")) for number in range(8)]
        await asyncio.sleep(0)
        for number in (0, 3, 7):
            writes[number].cancel()
        await asyncio.wait(writes)
        shown = contents_of(await session.window(1000))
        for number, write in enumerate(writes):
            if not write.cancelled():
                assert f"m{number}" in shown
        assert not writes[3].cancelled() or "m3" not in shown  # it never left the queue
        assert [entry.version for entry in await log_of(session)] == list(range(1, len(shown) + 1))
        await ingest_texts(session, "last")
        assert contents_of(await session.window(1000))[-1] == "last"


# ── a store that fails ──────────────────────────────────────────────────────────────────────────────────────────────


async def test_an_append_that_fails_before_stores_nothing_and_says_why(storage: Storage) -> None:
    faulty = FaultyStorage(storage)
    async with session_on(faulty) as session:
        await ingest_texts(session, "first")
        faulty.fail("append", 1, StorageFullError(retryable=False))
        with pytest.raises(StorageFullError) as caught:
            await session.ingest("user", "lost")
        assert caught.value.code == "STORAGE_FULL"
        await ingest_texts(session, "next")
        assert contents_of(await session.window(100)) == ["first", "next"]


async def test_an_append_whose_answer_was_lost_is_found_by_its_key(storage: Storage) -> None:
    faulty = FaultyStorage(storage)
    async with session_on(faulty) as session:
        await ingest_texts(session, "first")
        faulty.fail("append", 1, StorageError("the connection broke"), after=True)
        with pytest.raises(StorageError, match="the connection broke"):
            await session.ingest("user", "hello", idempotency_key="k")
        await session.ingest("user", "between")
        id = await session.ingest("user", "hello", idempotency_key="k")
        assert contents_of(await session.window(100)) == ["first", "hello", "between"]
        assert session.last_receipt is not None
        assert (session.last_receipt.version, session.last_receipt.repeated) == (2, True)
        assert (await session.get(id)).version == 2


@pytest.mark.parametrize("failures", [1, 2])
async def test_a_busy_store_is_tried_again(storage: Storage, failures: int) -> None:
    faulty = FaultyStorage(storage)
    async with session_on(faulty) as session:
        await ingest_texts(session, "first")
        before = faulty.calls["append"]
        for number in range(failures):
            faulty.fail("append", number + 1, StorageBusyError())
        await ingest_texts(session, "second")
        assert faulty.calls["append"] == before + failures + 1
        assert contents_of(await session.window(100)) == ["first", "second"]


async def test_a_store_that_stays_busy_is_an_error_after_the_last_attempt(storage: Storage) -> None:
    faulty = FaultyStorage(storage)
    config = ACMSConfig(retry=RetryConfig(max_attempts=4, base_delay=0))
    async with session_on(faulty, config=config) as session:
        await ingest_texts(session, "first")
        before = faulty.calls["append"]
        for number in range(9):
            faulty.fail("append", number + 1, StorageBusyError())
        with pytest.raises(StorageBusyError) as caught:
            await session.ingest("user", "second")
        assert caught.value.retryable
        assert faulty.calls["append"] == before + 4


async def test_a_failing_append_fails_everybody_who_waited_for_it_and_nobody_else(storage: Storage) -> None:
    faulty = FaultyStorage(storage)
    async with session_on(faulty) as session:
        await ingest_texts(session, "first")
        faulty.fail("append", 2, StorageError("broken"))
        results = await asyncio.gather(
            *(session.ingest("user", f"m{number}") for number in range(5)), return_exceptions=True
        )
        assert isinstance(results[0], str)
        assert {type(result) for result in results} == {str, StorageError}
        await ingest_texts(session, "last")
        stored = [f"m{number}" for number, result in enumerate(results) if isinstance(result, str)]
        assert contents_of(await session.window(100)) == ["first", *stored, "last"]


async def test_a_conflict_is_decided_again_at_once(storage: Storage) -> None:
    faulty = FaultyStorage(storage)
    async with session_on(faulty) as session:
        await ingest_texts(session, "first")
        faulty.fail("append", 1, ConflictError())
        await ingest_texts(session, "second")
        assert contents_of(await session.window(100)) == ["first", "second"]


async def test_a_store_that_is_busy_after_a_conflict_is_tried_again(storage: Storage) -> None:
    faulty = FaultyStorage(storage)
    async with session_on(faulty) as session:
        await ingest_texts(session, "first")
        faulty.fail("append", 1, ConflictError())
        faulty.fail("head", 1, StorageBusyError())
        await ingest_texts(session, "second")
        assert contents_of(await session.window(100)) == ["first", "second"]


async def test_a_store_that_refuses_for_ever_is_an_error_and_no_endless_loop(storage: Storage) -> None:
    faulty = FaultyStorage(storage)
    async with session_on(faulty) as session:
        await ingest_texts(session, "first")
        for number in range(100):
            faulty.fail("append", number + 1, ConflictError("always"))
        with pytest.raises(ConflictError, match="always"):
            await session.ingest("user", "second")
        assert faulty.calls["append"] < 20


async def test_another_writer_between_two_messages_is_taken_into_account(storage: Storage) -> None:
    async with session_on(storage) as session:
        await ingest_texts(session, "mine")
        context = str(session._shared.context_id)
        head = await storage.head(context)
        draft = Draft(
            content="theirs",
            created_at=(await storage.context(context)).created_at,
            role=None,
            episode=1,
            closes="x",
        )
        await storage.append(
            [Append(context=context, drafts=(draft,), expect=Expect(last_message=head.last_message))]
        )
        await ingest_texts(session, "mine again")
        assert [entry.position for entry in await log_of(session)] == [1, 2, 3]


async def half_states(session: ACMS) -> None:
    """Nothing a story leaves behind may be half done."""
    log = await log_of(session)
    assert [entry.version for entry in log] == list(range(1, len(log) + 1))
    said = [entry for entry in log if entry.kind == "message"]
    assert [entry.position for entry in said] == list(range(1, len(said) + 1))
    batch = [entry.preview for entry in said if entry.preview.startswith("batch")]
    assert batch in ([], ["batch 0", "batch 1", "batch 2"])
    stored = Counter(entry.group for entry in await session.entries())
    shown = Counter(item.group for item in await session.window(10_000))
    assert all(size == stored[group] for group, size in shown.items() if group is not None)
    ordinals = [one.ordinal for one in await session.episodes()]
    assert ordinals == list(range(1, len(ordinals) + 1))


FAULTS = [
    ("refused", StorageError("refused"), False),
    ("answer lost", StorageError("answer lost"), True),
    ("busy", StorageBusyError(), False),
]


@pytest.mark.parametrize(
    ("error", "after"), [fault[1:] for fault in FAULTS], ids=[fault[0] for fault in FAULTS]
)
@pytest.mark.parametrize("method", ["append", "head", "read", "get", "context", "create"])
async def test_no_call_of_the_store_leaves_a_half_state_when_it_fails(
    method: str, error: Exception, after: bool
) -> None:
    """A whole story, told once for every call of a method, with that call failing; then told again with its keys."""

    async def story(session: ACMS) -> list[str]:
        ids: list[str] = []

        async def attempt(work: Coroutine[Any, Any, Any]) -> Any:
            try:
                return await work
            except StorageError:
                return None

        ids.append(await attempt(session.ingest("user", "one", idempotency_key="k1")))
        batch = [{"role": "user", "content": f"batch {number}"} for number in range(3)]
        await attempt(session.ingest_many(batch, idempotency_key="b"))
        call = {"id": "c1", "name": "x", "arguments": "{}"}
        asked = await attempt(session.ingest("assistant", "", tool_calls=[call], idempotency_key="k2"))
        if asked is not None:
            await attempt(session.ingest("tool", "told", tool_call_id="c1", idempotency_key="k3"))
        await attempt(session.close_episode())
        ids.append(await attempt(session.ingest("user", "two", idempotency_key="k4")))
        if ids[0] is not None:
            await attempt(session.retract(ids[0]))
        await attempt(session.recall("one"))
        return ids

    reached = True
    nth = 0
    while reached:
        nth += 1
        store = open_storage("memory://")
        faulty = FaultyStorage(store)
        faulty.fail(method, nth, error, after=after)
        config = ACMSConfig(episodes=LONG_EPISODES, retry=RetryConfig(max_attempts=3, base_delay=0))
        async with session_on(faulty, config=config) as session:
            await story(session)
            reached = faulty.calls[method] >= nth
            async with session_on(store) as witness:
                if await log_of(witness):
                    await half_states(witness)
        async with session_on(store) as again:
            await story(again)
            await half_states(again)
            assert [entry.preview for entry in await log_of(again) if entry.kind == "message"].count(
                "one"
            ) == 1
    assert nth > 1, f"the story never calls {method}"


async def test_an_answer_that_was_lost_does_not_end_the_episode_twice(storage: Storage) -> None:
    faulty = FaultyStorage(storage)
    async with session_on(faulty) as session:
        await ingest_texts(session, "a")
        faulty.fail("append", 1, StorageError("lost"), after=True)
        with pytest.raises(StorageError):
            await session.close_episode("lunch")
        first = await session.close_episode("again")
        await ingest_texts(session, "b")
        found = await session.episodes()
        assert [(one.reason, one.messages) for one in found] == [("lunch", 1), (None, 1)]
        assert found[0].id == first


async def test_events_tell_of_a_repeat_as_a_repeat(storage: Storage) -> None:
    events: list[Any] = []
    async with session_on(storage, config=ACMSConfig(on_event=events.append)) as session:
        for _ in range(2):
            await session.ingest("user", "thanks", idempotency_key="k")
    assert [event.repeated for event in events if isinstance(event, Ingested)] == [False, True]
    assert len(events) == 3


async def test_a_failed_check_takes_no_part_in_the_queue(storage: Storage) -> None:
    async with session_on(storage) as session:
        await ingest_texts(session, "first")
        results = await asyncio.gather(
            session.ingest("user", "a"),
            session.ingest("user", "x", privacy="odd"),
            session.ingest("bot", "b"),
            session.ingest("user", "c"),
            return_exceptions=True,
        )
        assert [type(result) for result in results] == [str, ValidationError, ValidationError, str]
        assert contents_of(await session.window(100)) == ["first", "a", "c"]


async def test_interleaved_tool_calls_of_two_sessions_keep_their_groups(storage: Storage) -> None:
    async with session_on(storage) as one, session_on(storage) as two:
        await asyncio.gather(
            *(tool_turn((one, two)[number % 2], f"c{number}", f"answer {number}") for number in range(10))
        )
        for message in await one.messages("x", budget=10_000):
            if message["role"] == "tool":
                assert message["content"] == message["tool_call_id"].replace("c", "answer ")
