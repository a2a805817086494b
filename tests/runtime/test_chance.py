"""Chance: what a program that seeds `random` draws is its own, and its processes do not wait alike."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from acms import ACMS, ConflictError, RetryConfig
from acms.providers import with_retry
from tests.server.serving import serving


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    """What other tests draw is as it was."""
    before = random.getstate()
    yield
    random.setstate(before)


async def in_vain(waits: list[float]) -> None:
    """Try three times, and tell the waits in between."""

    async def fails() -> None:
        raise ConflictError("Somebody else was first.")

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    with pytest.raises(ConflictError):
        await with_retry(fails, RetryConfig(max_attempts=3), sleep=sleep)


async def test_what_a_program_seeds_is_its_own() -> None:
    random.seed(7)
    before = random.getstate()
    async with ACMS("a", "memory://") as session:
        await session.ingest("user", "We ship on Friday.")
        assert await session.recall("When do we ship?")
    await in_vain([])
    assert random.getstate() == before


def test_also_beside_a_service() -> None:
    with serving("memory://") as service:
        random.seed(7)
        before = random.getstate()
        service.talk("We ship on Friday.")
        assert random.getstate() == before


async def test_programs_that_seed_alike_do_not_wait_alike() -> None:
    one: list[float] = []
    other: list[float] = []
    for waits in (one, other):
        random.seed(7)
        await in_vain(waits)
    assert len(one) == len(other) == 2
    assert one != other
