"""Deadlines: a reply comes in time, and nothing is left running (checks 18 to 20).

Time is virtual (see conftest.py): computing takes none, and a deadline passes as soon as all there is to do is to wait.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest

from acms import ACMS, ConfigurationError, open_storage
from acms.acs import ACS
from acms.contract import Action, providers
from acms.providers import Endpoint, HTTPSource
from acms.storage import WrapperStorage
from tests.providers.server import Behave, ModelServer
from tests.support.sources import (
    Source,
    checked_reply,
    fragment_ids,
    make_engine,
    make_item,
    never_answer,
    offered_actions,
    request,
    warning_codes,
)
from tests.support.virtual_time import REAL_TIME, pass_time

PAST = [make_item("exp:1", "We moved the orders before.", "orders", source="L4")]


async def swallow_cancellation(asked: Any) -> Any:
    while True:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            continue


async def answers_late(asked: Any) -> Any:
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        return {"request_id": asked.request_id, "candidates": [make_item("late", "x", "orders")]}


async def blocks_a_thread(asked: Any) -> Any:
    await asyncio.wrap_future(THREADS.submit(RELEASE.wait, 60))


async def cleans_up_for_ever(asked: Any) -> Any:
    try:
        await asyncio.Event().wait()
    finally:
        await asyncio.Event().wait()


async def in_a_group(asked: Any) -> Any:
    async with asyncio.TaskGroup() as group:
        for _ in range(5):
            group.create_task(never_answer(asked))


RELEASE = threading.Event()
THREADS = ThreadPoolExecutor(8)
"""Not the loop's own: virtual time waits for those."""
LATE = [never_answer, swallow_cancellation, answers_late, blocks_a_thread, cleans_up_for_ever, in_a_group]


async def render_and_time(
    acs: ACS, body: dict[str, Any], *, server: bool = False, **more: Any
) -> tuple[Any, float]:
    """Return a reply and the share of the allowed time that it took; check that it leaves no task behind.

    A `server` in the same loop has tasks of its own.
    """
    loop, before = asyncio.get_running_loop(), asyncio.all_tasks()
    ms = body["budgets"]["time_ms"]
    began = loop.time()
    RELEASE.clear()
    try:
        reply = await acs.render(body, **more)
        spent = (loop.time() - began) * 1000
    finally:
        RELEASE.set()
    assert server or asyncio.all_tasks() <= before
    checked_reply(reply)
    return reply, spent / (ms + max(0.05 * ms, 25))


@pytest.mark.parametrize("late", LATE, ids=lambda one: one.__name__)
async def test_check_18_a_project_that_is_late_is_a_timeout(late: Any) -> None:
    reply, _ = await render_and_time(make_engine(Source("L2", late, deadline_ms=40)), request(ms=500))
    assert reply.error is not None
    assert (reply.error.code, reply.error.retriable) == ("PROVIDER_TIMEOUT", True)
    assert (reply.error.attempt, reply.error.max_attempts) == (1, 2)
    assert reply.error.options
    assert set(offered_actions(reply)) <= set(Action)


async def test_check_18_the_slice_of_the_project_is_three_fifths() -> None:
    reply, share = await render_and_time(
        make_engine(Source("L2", never_answer, deadline_ms=None), Source("L4")), request(ms=500)
    )
    assert reply.error.message == "L2 provider 'L2-source' exceeded its deadline (300 ms budgeted)"
    assert offered_actions(reply) == ["retry_with_reduced_scope", "return_minimal"]
    assert reply.error.options[0].hint == "Ask L2 for 8 instead of 20 items, within 400 ms"
    assert share > 0.5


@pytest.mark.parametrize("late", LATE, ids=lambda one: one.__name__)
async def test_check_19_what_came_in_time_comes_back(late: Any) -> None:
    sources = Source("L2", late, deadline_ms=40), Source("L4", PAST)
    reply, _ = await render_and_time(make_engine(*sources), request(ms=500))
    assert (reply.error, fragment_ids(reply)) == (None, ["exp:1"])
    assert warning_codes(reply)[0] == "PARTIAL_DATA"


@pytest.mark.parametrize("late", LATE, ids=lambda one: one.__name__)
async def test_check_20_no_hung_source_delays_the_reply(late: Any) -> None:
    sources = [Source("L2", late, name=f"p{n}", deadline_ms=10_000) for n in range(3)]
    sources.append(Source("L4", late))
    _, share = await render_and_time(make_engine(*sources), request(ms=1_000))
    assert share < 1


async def test_a_source_answers_with_what_it_has_when_its_time_is_over() -> None:
    async def part(asked: Any) -> Any:
        found = [make_item("a", "x", "orders")]
        return {"request_id": asked.request_id, "candidates": found, "latency_ms": 1, "partial": True}

    reply = await make_engine(Source("L2", part)).render(request())
    assert (fragment_ids(reply), warning_codes(reply)[0]) == (["a"], "PARTIAL_DATA")


async def test_a_slice_that_is_too_short_is_not_begun() -> None:
    project = Source("L2", [make_item("a", "x", "orders")])
    reply, _ = await render_and_time(make_engine(project), request(ms=25))
    assert (reply.error.code, reply.error.retriable) == ("DEADLINE_EXCEEDED", False)
    assert (offered_actions(reply), project.calls) == (["return_minimal"], [])
    slow = Source("L4", PAST, deadline_ms=5)
    reply = await make_engine(Source("L2", [make_item("a", "x", "orders")]), slow).render(request())
    assert (fragment_ids(reply), slow.calls, warning_codes(reply)[0]) == (["a"], [], "PARTIAL_DATA")


async def test_a_reply_that_nobody_waits_for_leaves_nothing_behind() -> None:
    before = asyncio.all_tasks()
    for late in LATE:
        RELEASE.clear()
        task = asyncio.create_task(make_engine(Source("L2", late)).render(request(ms=60_000)))
        for _ in range(5):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        RELEASE.set()
        assert asyncio.all_tasks() <= before


class Slow(WrapperStorage):
    """A store that takes for ever to say where a log ends."""

    async def head(self, context: str) -> Any:
        await asyncio.Event().wait()


async def test_our_own_memory_is_treated_like_any_other_when_it_is_late() -> None:
    async with ACMS("u", open_storage("memory://")) as session:
        await session.ingest("user", "The orders run on PostgreSQL.")
        async with ACMS("u", Slow(session.storage)) as late:
            past = Source("L4", PAST)
            reply, share = await render_and_time(ACS([late, past]), request(ms=300))
            assert (fragment_ids(reply), set(warning_codes(reply))) == (["exp:1"], {"PARTIAL_DATA"})
            assert share < 1


async def test_our_own_memory_alone_may_be_asked_for_less_in_the_same_time() -> None:
    async with ACMS("u", open_storage("memory://")) as session:
        await session.ingest("user", "The orders run on PostgreSQL.")
        async with ACMS("u", Slow(session.storage)) as late:
            reply, _ = await render_and_time(ACS([late]), request(ms=25))
    assert "budgeted" not in reply.error.message  # it has no deadline of its own
    assert reply.error.options[0].hint == "Ask L2 for 8 instead of 20 items, within 15 ms"


async def test_a_source_that_nothing_ends_is_abandoned_and_that_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    over = asyncio.Event()

    async def stay() -> None:
        while not over.is_set():
            with suppress(asyncio.CancelledError):
                await asyncio.Event().wait()

    async def leave_it_to_another(asked: Any) -> Any:
        await asyncio.create_task(stay())

    before = asyncio.all_tasks()
    try:
        with caplog.at_level(logging.ERROR, logger="acms"):
            acs = make_engine(Source("L2", leave_it_to_another, deadline_ms=20, name="stuck"))
            reply = await acs.render(request(ms=1_000))
    finally:
        over.set()
        left = asyncio.all_tasks() - before
        for task in left:
            task.cancel()
        await asyncio.wait(left)
    assert reply.error is not None
    assert reply.error.code == "PROVIDER_TIMEOUT"
    assert caplog.messages == ["provider.abandoned"]
    assert [vars(one)["acms"]["provider"] for one in caplog.records] == ["stuck"]


async def test_what_fails_when_no_time_is_left_is_not_tried_again() -> None:
    async def stumble(asked: Any) -> Any:
        pass_time(0.18)
        raise ConnectionResetError

    project = Source("L2", stumble)
    reply, _ = await render_and_time(make_engine(project), request(ms=200))
    assert (reply.error.code, len(project.calls)) == ("PROVIDER_UNAVAILABLE", 1)


async def test_what_there_was_no_time_to_choose_from_comes_back_with_return_minimal() -> None:
    found = [make_item(f"a:{n}", "orders and migration " * 500, "orders") for n in range(30)]

    async def dawdle(asked: Any) -> Any:
        pass_time(0.23)  # until nothing is left to choose in
        return {"request_id": asked.request_id, "candidates": found}

    project = Source("L2", dawdle)
    acs = make_engine(project)
    reply = await acs.render(request(ms=200))
    assert reply.error is not None
    assert reply.error.message == "there was no time left to choose from what was found"
    assert (reply.error.code, offered_actions(reply)) == ("DEADLINE_EXCEEDED", ["return_minimal"])
    assert fragment_ids(await acs.render(request(ms=120_000), action="return_minimal", attempt=2))
    assert len(project.calls) == 1


async def test_what_was_found_outlives_a_choice_that_ends_too_late(monkeypatch: pytest.MonkeyPatch) -> None:
    async def late(work: Callable[[], Any], size: int) -> Any:
        done = work()
        if "_choose" in work.__qualname__:
            await asyncio.sleep(60)
        return done

    acs = make_engine(Source("L2", [make_item("a:1", "We moved the orders.", "orders")]))
    with monkeypatch.context() as patch:
        patch.setattr("acms.contract.engine.off_loop", late)
        reply = await acs.render(request(ms=200))
    assert reply.error is not None
    assert offered_actions(reply) == ["return_minimal"]
    assert fragment_ids(await acs.render(request(), action="return_minimal", attempt=2)) == ["a:1"]


async def test_long_lists_do_not_hold_the_loop() -> None:
    found = [make_item(f"a:{n}", f"orders and migration {n} " * 20, "orders", cost=1) for n in range(3_000)]
    acs = make_engine(Source("L2", found, deadline_ms=30_000))
    await acs.render(request(ms=60_000))
    turns = 0
    done = asyncio.Event()

    async def watch() -> None:
        nonlocal turns
        while not done.is_set():
            turns += 1
            await asyncio.sleep(0)

    watching = asyncio.create_task(watch())
    reply = await acs.render(request(ms=60_000))
    done.set()
    await watching
    assert len(fragment_ids(reply)) > 10
    assert turns > 30


# ── by HTTP ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def provider_answer(*found: dict[str, Any], request_id: str = "req-1") -> dict[str, Any]:
    return {"request_id": request_id, "candidates": list(found), "latency_ms": 2}


@REAL_TIME
async def test_a_source_on_a_server_is_asked_and_answers() -> None:
    async with (
        ModelServer() as server,
        HTTPSource(f"{server.root}/v1/search", layer="L2", name="kb", deadline_ms=60_000) as kb,
    ):
        server.script = [Behave(body=provider_answer(make_item("proj:1", "The orders.", "orders")))]
        reply = await make_engine(kb).render(request(ms=100_000))
        assert fragment_ids(reply) == ["proj:1"]
        (call,) = server.calls
        assert call.path == "/v1/search"
        assert call.body == {
            "request_id": "req-1",
            "query": "implement orders migration",
            "entities": ["orders", "migration"],
            "top_k": 20,
            "deadline_ms": 60_000,
            "expansion": False,
            "privacy_mode": "allow",
        }


@REAL_TIME
async def test_a_server_that_stumbles_is_asked_again() -> None:
    async with (
        ModelServer() as server,
        HTTPSource(f"{server.root}/search", layer="L2", deadline_ms=60_000) as kb,
    ):
        server.script = [
            Behave(status=503),
            Behave(body=provider_answer(make_item("proj:1", "The orders.", "orders"))),
        ]
        assert fragment_ids(await make_engine(kb).render(request(ms=120_000))) == ["proj:1"]
        assert len(server.calls) == 2


@REAL_TIME
@pytest.mark.parametrize(
    ("behave", "code"),
    [
        (Behave(until=asyncio.Event()), "PROVIDER_TIMEOUT"),
        (Behave(drip=True, body=provider_answer()), "PROVIDER_TIMEOUT"),
        (Behave(status=503), "PROVIDER_UNAVAILABLE"),
        (Behave(status=429), "PROVIDER_UNAVAILABLE"),
        (Behave(status=400), "PROVIDER_ERROR"),
        (Behave(raw=b"not JSON"), "PROVIDER_ERROR"),
        (Behave(cut=True, body=provider_answer()), "PROVIDER_ERROR"),
        (Behave(drop=True), "PROVIDER_ERROR"),
        (Behave(blanks=9_000_000, body=provider_answer()), "PROVIDER_ERROR"),
        (Behave(body=provider_answer(request_id="another")), "PROVIDER_ERROR"),
        (Behave(body={"candidates": [{}]}), "PROVIDER_ERROR"),
    ],
    ids=["hung", "drip", "503", "429", "400", "no json", "cut", "dropped", "too long", "other id", "garbled"],
)
async def test_a_server_that_fails_is_contained(behave: Behave, code: str) -> None:
    deadline = 300 if code == "PROVIDER_TIMEOUT" else 60_000
    async with (
        ModelServer() as server,
        HTTPSource(f"{server.root}/search", layer="L2", deadline_ms=deadline, timeout=120) as kb,
    ):
        server.otherwise = behave
        reply, _ = await render_and_time(make_engine(kb), request(ms=120_000), server=True)
        assert reply.error is not None
        assert reply.error.code == code


@REAL_TIME
async def test_a_server_that_is_not_there_is_unavailable() -> None:
    async with ModelServer() as server:
        address = f"{server.root}/search"
    async with HTTPSource(address, layer="L2", deadline_ms=60_000) as kb:
        reply = await make_engine(kb, Source("L1"), Source("L4")).render(request(ms=120_000))
        assert reply.error is not None
        assert reply.error.code == "PROVIDER_UNAVAILABLE"
        assert offered_actions(reply) == ["explicit_l1_expansion", "return_minimal"]


@REAL_TIME
async def test_an_address_from_data_must_be_public() -> None:
    async with Endpoint("https://127.0.0.1:9", trusted=False) as endpoint:
        kb = HTTPSource(endpoint, layer="L1", path="search")
        reply = await make_engine(kb).render(request(), action="explicit_l1_expansion")
        assert reply.error is not None
        assert reply.error.code == "PROVIDER_ERROR"


def test_the_source_on_a_server_is_found_beside_what_a_source_is() -> None:
    assert providers.HTTPSource is HTTPSource
    with pytest.raises(AttributeError, match="has no attribute 'FTPSource'"):
        providers.FTPSource  # noqa: B018


@pytest.mark.parametrize(
    "wrong",
    [
        {"url": "ftp://x/y"},
        {"url": "https://kb.example.com"},
        {"url": "https://kb.example.com/search?key=1"},
        {"url": "https://kb.example.com/search", "layer": "L3"},
        {"url": "https://kb.example.com/search", "path": "search"},
        {"url": 7},
    ],
    ids=str,
)
def test_an_address_that_is_none_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        HTTPSource(**{"layer": "L2", **wrong})


async def test_reading_a_long_answer_is_not_the_time_of_its_provider() -> None:
    many = [
        make_item(f"c{number}", text=f"The orders migration of step {number}.") for number in range(8_000)
    ]
    source = Source("L2", many, name="flood", deadline_ms=20)  # it answers at once; reading takes far longer
    reply = await make_engine(source).render(request())
    assert "PROVIDER_TIMEOUT" not in warning_codes(reply)
    assert reply.fragments
