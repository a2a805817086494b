"""Stores for sessions: what a flow promises holds on each."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from acms import open_storage
from tests.support.talk import Storage


@pytest.fixture
async def storage(any_url: str) -> AsyncIterator[Storage]:
    """A store that stays open for the whole test, and no longer: sessions that were left open hold it no more."""
    async with open_storage(any_url) as store:
        yield store
    await store.aclose()
