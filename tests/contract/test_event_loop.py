"""The event loop stays free while a reply is made, however much there is to choose from.

How long it is held is measured by benchmarks/selection.py; here it is shown where the work is done.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from itertools import pairwise
from typing import Any

import pytest

from acms import ACMS, ACMSConfig, Privacy, PrivacyConfig, Prompt, open_storage
from acms.acs import ACS
from acms.codecs import OpenAIChat
from acms.privacy import redact_entry
from acms.privacy.redact_entry import apply_privacy_mode
from acms.prompt.history import cache_window
from acms.providers.tokens import default_counter
from acms.recall import shortening
from acms.runtime import threads
from acms.runtime.threads import INLINE, drive_generator, in_thread, pause_if_busy
from acms.text import condense, index_record
from tests.support.sources import Source, fragment_ids, make_engine, make_item, never_answer, request

MANY = 10_000


class Counter:
    """Counts tokens, and in which threads it did so."""

    name = "noted"

    def __init__(self) -> None:
        self._count = default_counter().count
        self.threads: list[int] = []

    def count(self, text: str) -> int:
        self.threads.append(threading.get_ident())
        return self._count(text)


class Read(dict[str, Any]):
    """A candidate that notes that it was read."""

    total = 0

    def get(self, key: str, default: Any = None) -> Any:
        if key == "id":
            Read.total += 1
        return super().get(key, default)


def many_candidates(size: int = MANY) -> list[Read]:
    return [
        Read(make_item(f"a:{n}", f"orders and migration {n} and so on", "orders", cost=1))
        for n in range(size)
    ]


async def render_and_watch(acs: ACS, body: dict[str, Any]) -> tuple[Any, list[int]]:
    """Render, and note at each turn of the loop how many candidates had been read."""
    seen: list[int] = []
    done = asyncio.Event()

    async def watch() -> None:
        while not done.is_set():
            seen.append(Read.total)
            await asyncio.sleep(0)

    watching = asyncio.create_task(watch())
    reply = await acs.render(body)
    done.set()
    await watching
    return reply, seen


async def test_ten_thousand_candidates_are_weighed_beside_the_loop() -> None:
    counter = Counter()
    acs = make_engine(Source("L2", many_candidates(), deadline_ms=60_000), token_counter=counter)
    counter.threads.clear()
    reply = await acs.render(request(ms=120_000))
    assert len(fragment_ids(reply)) > 10
    assert len(counter.threads) >= MANY
    assert threading.get_ident() not in counter.threads


async def test_what_little_there_is_needs_no_thread() -> None:
    counter = Counter()
    await make_engine(Source("L2", many_candidates(5)), token_counter=counter).render(request())
    assert set(counter.threads) == {threading.get_ident()}


async def test_answers_that_come_together_are_read_in_turns() -> None:
    sources = [Source("L2", many_candidates(2_500), name=f"s{n}", deadline_ms=60_000) for n in range(4)]
    before = Read.total
    reply, seen = await render_and_watch(make_engine(*sources), request(ms=120_000))
    assert reply.error is None
    assert Read.total - before == MANY
    assert max(after - now for now, after in pairwise(seen)) < MANY / 5


async def test_long_messages_of_our_own_are_read_beside_the_loop() -> None:
    counter = Counter()
    async with ACMS("u", open_storage("memory://"), token_counter=counter) as session:
        for number in range(40):
            await session.ingest("user", f"The orders of day {number} " + "moved by night. " * 100)
        counter.threads.clear()
        await ACS([session]).render(request(tokens=100_000, ms=120_000))
        assert set(counter.threads) - {threading.get_ident()}


@pytest.mark.parametrize("read", ["recall", "messages"])
async def test_what_shows_many_tokens_is_planned_beside_the_loop(read: str) -> None:
    counter = Counter()
    async with ACMS("u", open_storage("memory://"), token_counter=counter) as session:
        for number in range(80):
            await session.ingest("user", f"The orders of day {number} " + "moved by night. " * 100)
        for budget, beside in ((2_000, False), (20_000, True)):
            counter.threads.clear()
            if read == "recall":
                await session.recall("the orders of day 7", token_budget=budget)
            else:
                await session.messages("the orders of day 7", budget=budget)
            assert bool(set(counter.threads) - {threading.get_ident()}) is beside


async def test_a_long_output_is_indexed_quoted_and_cut_beside_the_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    used: dict[str, set[int]] = {}

    def note(module: Any, name: str) -> None:
        function = getattr(module, name)

        def noted(*arguments: Any, **options: Any) -> Any:
            used.setdefault(f"{module.__name__}.{name}", set()).add(threading.get_ident())
            return function(*arguments, **options)

        monkeypatch.setattr(module, name, noted)

    note(condense, "split_records")
    note(shortening, "split_records")
    note(index_record, "encode_index_record")
    note(cache_window, "build_recall_block")
    output = "\n".join(f"{number} GET /orders/{number * 7_919 % 9_973} 200" for number in range(3_000))
    async with ACMS("u", open_storage("memory://"), None) as session:
        call = {"id": "c", "type": "function", "function": {"name": "log", "arguments": "{}"}}
        await session.ingest("assistant", tool_calls=[call])
        await session.ingest("tool", output, tool_call_id="c")
        await session.recall("which order is 4711?", budget=1_000)
        await session.ingest("user", "Thanks.")
        for question in ("Which order is 4711?", "Which order is 4712?"):
            prompt = Prompt(OpenAIChat("gpt-4o")).history(session).recall(session, question).user(question)
            await prompt.render(budget=1_000)
    assert len(used) == 4
    here = threading.get_ident()
    # Of the index records, those of the short messages are written on the loop.
    assert len(used.pop("acms.text.index_record.encode_index_record") - {here}) == 1
    assert [name for name, threads in used.items() if here in threads] == []


async def test_long_texts_are_searched_for_secrets_beside_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[int] = []

    def note(*arguments: Any) -> Any:
        threads.append(threading.get_ident())
        return apply_privacy_mode(*arguments)

    monkeypatch.setattr(redact_entry, "apply_privacy_mode", note)
    config = ACMSConfig(privacy=PrivacyConfig(mode=Privacy.REDACT))
    async with ACMS("u", open_storage("memory://"), config=config) as session:
        for number in range(20):
            await session.ingest("user", f"Day {number}, mail me@example.com " + "moved by night. " * 100)
        shown = await session.window(100_000)
        assert all("me@example.com" not in item.content for item in shown)
        assert len(threads) == 20
        assert threading.get_ident() not in threads
        await session.window(100_000)
        assert len(threads) == 20  # what was found is remembered


async def test_a_generator_is_driven_to_its_end_and_may_fail() -> None:
    def steps(ends: Exception | None) -> Generator[int, int, tuple[int, int]]:
        found = yield threading.get_ident()
        if ends is not None:
            raise ends
        return found, threading.get_ident()

    async def answer(asked: int) -> int:
        return asked

    here = threading.get_ident()
    assert await drive_generator(steps(None), answer, lambda: INLINE) == (here, here)
    asked, ended = await drive_generator(steps(None), answer, lambda: INLINE + 1)
    assert here not in (asked, ended)
    with pytest.raises(LookupError):
        await drive_generator(steps(LookupError()), answer, lambda: INLINE + 1)


# ── the host is left alone ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def host() -> Iterator[None]:
    """Check that what belongs to the whole process is afterwards as it was before."""

    def state() -> tuple[object, ...]:
        return gc.isenabled(), gc.get_threshold(), gc.get_freeze_count(), sys.getswitchinterval()

    gc.unfreeze()  # the suite froze its own objects, of which some end during a test
    before, threads = state(), set(threading.enumerate())
    yield
    assert state() == before
    for thread in set(threading.enumerate()) - threads:
        thread.join(60)
    assert set(threading.enumerate()) <= threads


@pytest.mark.usefixtures("host")
async def test_a_large_reply_leaves_the_host_alone() -> None:
    during: set[tuple[bool, float]] = set()

    class Noting(Counter):
        def count(self, text: str) -> int:
            during.add((gc.isenabled(), sys.getswitchinterval()))
            return super().count(text)

    counter = Noting()
    await make_engine(Source("L2", many_candidates(2_000), deadline_ms=60_000), token_counter=counter).render(
        request(ms=60_000)
    )
    assert set(counter.threads) - {threading.get_ident()}
    assert during == {(True, sys.getswitchinterval())}


@pytest.mark.usefixtures("host")
@pytest.mark.parametrize(
    "act", [never_answer, RuntimeError("x"), [1, 2, 3]], ids=["late", "fails", "garbled"]
)
async def test_the_host_is_left_alone_whatever_becomes_of_a_reply(act: Any) -> None:
    acs = make_engine(Source("L2", many_candidates(500)), Source("L4", act, deadline_ms=30))
    await acs.render(request(ms=500))
    task = asyncio.create_task(
        make_engine(Source("L2", many_candidates(500)), Source("L4", never_answer)).render(request())
    )
    for _ in range(8):
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.usefixtures("host")
async def test_a_first_recall_leaves_the_host_alone() -> None:
    async with ACMS("u", open_storage("memory://")) as session:
        await session.ingest_many(
            [{"role": "user", "content": f"The orders of day {n} moved."} for n in range(300)]
        )
        assert await session.recall("the orders of day 7", token_budget=2_000)
        await asyncio.get_running_loop().shutdown_default_executor()


# ── threads ─────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_thread_does_not_wait_for_the_default_executor() -> None:
    loop = asyncio.get_running_loop()
    released = threading.Event()
    with ThreadPoolExecutor(1) as executor:
        loop.set_default_executor(executor)
        filling_up = loop.run_in_executor(None, released.wait, 60)
        try:
            ident, daemon = await in_thread(
                lambda: (threading.get_ident(), threading.current_thread().daemon)
            )
            assert not filling_up.done()
        finally:
            released.set()
        assert await filling_up
    assert ident != threading.get_ident()
    assert daemon


async def test_a_thread_has_the_context_variables_of_its_caller() -> None:
    said: ContextVar[str] = ContextVar("said", default="nothing")
    said.set("something")

    def work() -> str:
        found = said.get()
        said.set("else")
        return found

    assert await in_thread(work) == "something"
    assert said.get() == "something"


async def test_a_thread_whose_caller_is_cancelled_runs_to_its_end() -> None:
    begun, released, ended = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        released.wait(60)
        ended.set()

    task = asyncio.create_task(in_thread(work))
    assert await asyncio.to_thread(begun.wait, 60)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not ended.is_set()
    released.set()
    assert ended.wait(60)


async def test_a_pause_is_taken_in_threads_only(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[int] = []
    monkeypatch.setattr(threads, "BREATH", -1.0)
    monkeypatch.setattr(threads, "sleep", lambda _: pauses.append(threading.get_ident()))
    pause_if_busy()
    assert not pauses
    ident = await in_thread(lambda: pause_if_busy() or threading.get_ident())
    assert pauses == [ident, ident]  # before the work, and within it
