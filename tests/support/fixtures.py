"""Stores for sessions: what a flow promises holds on each."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from acms import open_storage
from acms.ports import StorageBackend
from tests.support.talk import Storage


@pytest.fixture
async def storage(any_url: str) -> AsyncIterator[Storage]:
    """A store that stays open for the whole test, and no longer: sessions that were left open hold it no more."""
    async with open_storage(any_url) as store:
        yield store
    await store.aclose()


class Plain:
    """A store of somebody else's: it has what is promised of every store, and cannot say which spaces there are."""

    def __init__(self, inner: StorageBackend) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        if name == "spaces":
            raise AttributeError(name)
        return getattr(self._inner, name)
