"""One handle, and one session, in several event loops: one after the other, and in threads at the same time."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from acms import ACMS, open_storage, sync
from acms.integrations.openai_agents import ACMSSession
from acms.kv import open_kv
from acms.runtime.portal import run_in_portal
from acms.testing import HashEmbedder

WORDS = "harbour lantern violin meadow copper ginger walnut saddle".split()


@pytest.fixture
def store(any_url: str):
    """Return a handle; the caller closes it."""
    before = set(threading.enumerate())
    yield open_storage(any_url)
    gc.collect()
    left = [one.name for one in threading.enumerate() if one not in before and one.name != "acms-portal"]
    assert [name for name in left if not name.startswith("asyncio_")] == []


async def say_and_count(session: ACMS, key: str) -> int:
    """Say something in many tasks and find it again; return how many messages there are."""
    await asyncio.gather(
        *[session.ingest("user", f"{key} {word}", idempotency_key=f"{key}-{word}") for word in WORDS]
    )
    assert any(key in item.content for item in await session.recall(f"{key} violin", token_budget=200))
    return (await session.get_session_stats()).messages


def in_threads(work: Callable[[int], Any], number: int = 4) -> list[Any]:
    """Return what some work gives back in so many threads at once."""
    found: list[Any] = []
    failed: list[BaseException] = []
    start = threading.Barrier(number)

    def run(one: int) -> None:
        try:
            start.wait()
            found.append(work(one))
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=run, args=(one,)) for one in range(number)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert failed == []
    assert not any(thread.is_alive() for thread in threads)
    return found


def test_a_session_is_used_by_one_event_loop_after_another(store: Any) -> None:
    session = ACMS("s", store, HashEmbedder(64))
    for number in range(3):  # no loop closes it
        assert asyncio.run(say_and_count(session, f"k{number}")) == (number + 1) * len(WORDS)
    assert asyncio.run(say_and_count(session, "k0")) == 3 * len(WORDS), "the keys of the first loop are known"
    asyncio.run(session.wait_pending())
    assert asyncio.run(session.get_session_stats()).coverage == 1.0
    asyncio.run(session.close())


def test_two_event_loops_that_stay_open_take_turns(store: Any) -> None:
    session = ACMS("s", store, None)
    first, second = asyncio.new_event_loop(), asyncio.new_event_loop()
    for number, loop in enumerate((first, second, second, first)):
        assert loop.run_until_complete(say_and_count(session, f"k{number}")) == (number + 1) * len(WORDS)
    second.run_until_complete(session.close())
    for loop in (first, second):
        loop.run_until_complete(asyncio.sleep(0))
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()


def test_threads_share_a_session_and_lose_nothing(store: Any) -> None:
    session = ACMS("s", store, None)

    async def both(one: int) -> None:
        async with ACMS(f"own{one}", store, None) as own:
            assert await say_and_count(own, "k") == len(WORDS)
            for turn in range(3):
                await say_and_count(session, f"k{one}{turn}")

    in_threads(lambda one: asyncio.run(both(one)))

    async def said() -> set[str]:
        async with session:
            page = await session.history(limit=500)
            assert [entry.version for entry in page.entries] == list(range(1, len(page.entries) + 1))
            return {entry.preview for entry in page.entries}

    wanted = {f"k{one}{turn} {word}" for one in range(4) for turn in range(3) for word in WORDS}
    assert asyncio.run(said()) == wanted


def test_blocking_code_and_an_event_loop_share_a_handle(store: Any) -> None:
    for number in range(2):
        with sync.ACMS("s", store, None) as blocking:
            blocking.ingest("user", f"blocking {number}")
            session = ACMS("s", store, None)
            assert asyncio.run(say_and_count(session, f"k{number}")) == (number + 1) * (len(WORDS) + 1)
            assert blocking.get_session_stats().messages == (number + 1) * (len(WORDS) + 1)
            asyncio.run(session.close())


async def test_an_event_loop_that_waits_for_the_last_user_to_close_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As code that cannot await closes an object it shares with the loop that it is called from."""
    path = tmp_path / "log.db"
    store = open_storage(f"sqlite:///{path}")
    session = ACMS("s", store, None)
    await say_and_count(session, "k")
    monkeypatch.setattr("acms.storage.handles.STOPPING", 3_600.0)
    monkeypatch.setattr("acms.storage.sqlite.file.CLOSING", 3_600.0)
    run_in_portal(asyncio.wait_for(session.close(), 60))
    assert not path.with_name("log.db-wal").exists(), "the file is closed"
    for _ in range(3):
        await asyncio.sleep(0.01)
    async with ACMS("s", store, None) as again:
        assert (await again.get_session_stats()).messages == len(WORDS)
    assert not path.with_name("log.db-wal").exists()


def writer_threads() -> set[threading.Thread]:
    """Return the writer threads that run: those of other tests may be among them."""
    return {thread for thread in threading.enumerate() if thread.name == "acms-writer"}


def test_whoever_closes_a_session_ends_what_other_event_loops_do_for_it(store: Any) -> None:
    others = writer_threads()
    session = ACMS("s", store, HashEmbedder(64))
    said, closed = threading.Event(), threading.Event()

    async def stay() -> None:
        await say_and_count(session, "there")
        said.set()
        await asyncio.to_thread(closed.wait, 60)

    async def close() -> None:
        await say_and_count(session, "here")
        await session.close()

    other = threading.Thread(target=lambda: asyncio.run(stay()))
    other.start()
    assert said.wait(60)
    asyncio.run(close())
    assert writer_threads() <= others
    closed.set()
    other.join(60)


def test_a_session_of_the_agents_sdk_is_used_by_one_run_after_another(store: Any) -> None:
    session = ACMSSession("s", store, embedder=None)

    async def turn(number: int) -> list[Any]:
        await asyncio.gather(
            session.add_items([{"role": "user", "content": f"{number}"}]), session.get_items()
        )
        return await session.get_items()

    loop = asyncio.new_event_loop()  # as `Runner.run_sync` keeps one
    assert [len(loop.run_until_complete(turn(number))) for number in range(2)] == [1, 2]
    assert len(asyncio.run(turn(2))) == 3
    popped = loop.run_until_complete(asyncio.wait_for(session.pop_item(), 60))
    assert popped == {"role": "user", "content": "2"}
    assert len(asyncio.run(session.get_items())) == 2
    asyncio.run(session.close())
    loop.run_until_complete(asyncio.sleep(0))
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()


def test_key_value_memory_is_used_by_several_event_loops(tmp_path: Path) -> None:
    kv = open_kv(f"sqlite:///{tmp_path / 'kv.db'}")

    async def count(key: str) -> int:
        await kv.set(key, key)
        return len((await kv.list()).entries)

    assert [asyncio.run(count(key)) for key in "ab"] == [1, 2]
    in_threads(lambda one: asyncio.run(count(f"t{one}")))
    assert asyncio.run(count("c")) == 7
    asyncio.run(kv.aclose())
