"""Stores for sessions: what a flow promises holds on each."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Iterator

import pytest
import typer.testing

from acms import open_storage
from tests.support.talk import Storage


@pytest.fixture(scope="session", autouse=True)
def _commands_built_once() -> Iterator[None]:
    """Let the runner of commands keep what it builds of an application: that takes four times as long as a command."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(typer.testing, "_get_command", functools.cache(typer.testing._get_command))
        yield


@pytest.fixture
async def storage(any_url: str) -> AsyncIterator[Storage]:
    """A store that stays open for the whole test, and no longer: sessions that were left open hold it no more."""
    async with open_storage(any_url) as store:
        yield store
    await store.aclose()
