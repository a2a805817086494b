"""The event loop stays free while a reply is made, however much there is to choose from.

How long it is held is measured by benchmarks/selection.py; here it is shown where the work is done.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
from collections.abc import Generator, Iterator
from itertools import pairwise
from typing import Any

import pytest

from acms import ACMS, ACMSConfig, Privacy, open_storage
from acms.acs import ACS
from acms.config import PrivacyConfig
from acms.privacy import redact_entry
from acms.privacy.redact_entry import cleared
from acms.providers.tokens import default_counter
from acms.runtime.threads import INLINE, TURN, Quiet, driven, in_thread
from acms.runtime.threads import MANY as NEW
from tests.support.sources import Source, engine, hang, ids, item, request

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
        if key == "text":
            Read.total += 1
        return super().get(key, default)


def many(size: int = MANY) -> list[Read]:
    return [
        Read(item(f"a:{n}", f"orders and migration {n} and so on", "orders", cost=1)) for n in range(size)
    ]


async def watched(acs: ACS, body: dict[str, Any]) -> tuple[Any, list[int]]:
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
    acs = engine(Source("L2", many(), deadline_ms=60_000), token_counter=counter)
    counter.threads.clear()
    reply = await acs.render(request(ms=120_000))
    assert len(ids(reply)) > 10
    assert len(counter.threads) >= MANY
    assert threading.get_ident() not in counter.threads


async def test_what_little_there_is_needs_no_thread() -> None:
    counter = Counter()
    await engine(Source("L2", many(5)), token_counter=counter).render(request())
    assert set(counter.threads) == {threading.get_ident()}


async def test_answers_that_come_together_are_read_in_turns() -> None:
    sources = [Source("L2", many(2_500), name=f"s{n}", deadline_ms=60_000) for n in range(4)]
    before = Read.total
    reply, seen = await watched(engine(*sources), request(ms=120_000))
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


async def test_long_texts_are_searched_for_secrets_beside_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[int] = []

    def note(*arguments: Any) -> Any:
        threads.append(threading.get_ident())
        return cleared(*arguments)

    monkeypatch.setattr(redact_entry, "cleared", note)
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
    assert await driven(steps(None), answer, INLINE) == (here, here)
    asked, ended = await driven(steps(None), answer, INLINE + 1)
    assert here not in (asked, ended)
    with pytest.raises(LookupError):
        await driven(steps(LookupError()), answer, INLINE + 1)


# ── the garbage collector ───────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def collected() -> Iterator[list[int]]:
    """Note every generation that is collected."""
    found: list[int] = []

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            found.append(info["generation"])

    gc.callbacks.append(note)
    yield found
    gc.callbacks.remove(note)
    assert gc.isenabled()


async def test_objects_that_are_gone_soon_are_not_looked_at(collected: list[int]) -> None:
    acs = engine(Source("L2", many(2_000), deadline_ms=60_000))
    await acs.render(request())
    collected.clear()
    await acs.render(request())
    assert len(collected) < 10  # of more than forty


@pytest.mark.parametrize("act", [hang, RuntimeError("x"), [1, 2, 3]], ids=["late", "fails", "garbled"])
async def test_it_is_on_again_whatever_becomes_of_a_reply(act: Any, collected: list[int]) -> None:
    acs = engine(Source("L2", many(500)), Source("L4", act, deadline_ms=30))
    await acs.render(request(ms=500))
    assert gc.isenabled()
    task = asyncio.create_task(engine(Source("L2", many(500)), Source("L4", hang)).render(request()))
    for _ in range(8):
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert gc.isenabled()


async def test_the_last_of_those_who_need_it_off_switches_it_on(collected: list[int]) -> None:
    one, other = Quiet(), Quiet()
    one.begin()
    other.begin()
    one.end()
    one.end()
    assert not gc.isenabled()
    other.end()
    assert gc.isenabled()


async def test_who_has_it_off_already_finds_it_off(collected: list[int]) -> None:
    gc.disable()
    try:
        await engine(Source("L2", many(500))).render(request())
        assert not gc.isenabled()
    finally:
        gc.enable()


async def test_nobody_has_it_off_for_long(collected: list[int]) -> None:
    quiet = Quiet(longest=0.0)
    quiet.begin()
    assert not gc.isenabled()
    for _ in range(3):
        await asyncio.sleep(0)
    assert gc.isenabled()
    quiet.end()


async def test_many_new_objects_count_as_old_without_being_looked_at(collected: list[int]) -> None:
    quiet = Quiet()
    quiet.begin()
    made: list[list[int]] = [[] for _ in range(NEW + 1_000)]
    collected.clear()
    quiet.end()
    assert collected == []
    assert gc.get_freeze_count() == 0
    assert any(one is made[0] for one in gc.get_objects(generation=2))  # a full collection will look at it


async def test_what_somebody_else_has_frozen_stays_frozen(collected: list[int]) -> None:
    gc.freeze()
    try:
        frozen = gc.get_freeze_count()
        quiet = Quiet()
        quiet.begin()
        made: list[list[int]] = [[] for _ in range(NEW + 1_000)]
        quiet.end()
        assert gc.get_freeze_count() == pytest.approx(frozen, rel=0.01)
        assert len(made) > NEW
    finally:
        gc.unfreeze()


# ── turns of threads ────────────────────────────────────────────────────────────────────────────────────────────────


async def test_turns_are_short_while_there_is_work_beside_the_loop() -> None:
    before = sys.getswitchinterval()
    both = threading.Barrier(2, timeout=10)

    def work() -> float:
        both.wait()
        return sys.getswitchinterval()

    found = await asyncio.gather(in_thread(work), in_thread(work))
    assert found == pytest.approx([TURN, TURN])
    assert sys.getswitchinterval() == before


async def test_turns_that_somebody_else_sets_are_kept() -> None:
    before = sys.getswitchinterval()
    try:
        await in_thread(lambda: sys.setswitchinterval(0.002))
        assert sys.getswitchinterval() == pytest.approx(0.002)
        sys.setswitchinterval(0.0005)
        assert await in_thread(sys.getswitchinterval) == pytest.approx(0.0005)
        assert sys.getswitchinterval() == pytest.approx(0.0005)
    finally:
        sys.setswitchinterval(before)
