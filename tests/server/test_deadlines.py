"""Deadlines of requests: slow requests end, fast ones are kept, and other cancellations are obeyed."""

from __future__ import annotations

import asyncio

import pytest

from acms.server.deadlines import Deadline, Deadlines


async def test_what_takes_too_long_ends() -> None:
    deadline = Deadline(Deadlines(0.0))
    with pytest.raises(TimeoutError), deadline:
        await asyncio.Event().wait()
    assert deadline.expired
    task = asyncio.current_task()
    assert task is not None
    assert not task.cancelling()


async def test_what_is_in_time_goes_on_after_its_time() -> None:
    deadlines = Deadlines(0.0)
    first = Deadline(deadlines)
    with first:
        pass
    with pytest.raises(TimeoutError), Deadline(deadlines):  # the timer has looked by then
        await asyncio.Event().wait()
    assert not first.expired


async def test_all_that_are_due_end_at_once_and_later_ones_have_a_timer_again() -> None:
    deadlines = Deadlines(0.001)

    async def wait() -> None:
        with Deadline(deadlines):
            await asyncio.Event().wait()

    for _ in range(2):
        ended = await asyncio.gather(*[wait() for _ in range(3)], return_exceptions=True)
        assert [type(one) for one in ended] == [TimeoutError] * 3


async def test_whoever_is_cancelled_by_somebody_else_too_stays_cancelled() -> None:
    deadlines = Deadlines(0.0)

    async def wait() -> None:
        with Deadline(deadlines):
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                own.cancel()
                raise

    own = asyncio.ensure_future(wait())
    with pytest.raises(asyncio.CancelledError):
        await own


async def test_an_error_inside_stays_what_it_is() -> None:
    deadline = Deadline(Deadlines(30.0))
    with pytest.raises(TimeoutError, match="another"), deadline:
        raise TimeoutError("another")
    assert not deadline.expired


def test_a_new_event_loop_has_a_timer_of_its_own() -> None:
    deadlines = Deadlines(0.0)

    async def wait() -> None:
        with pytest.raises(TimeoutError), Deadline(deadlines):
            await asyncio.Event().wait()

    async def leave() -> None:
        with Deadline(deadlines):
            pass

    asyncio.run(leave())
    asyncio.run(wait())
