"""Stores for sessions: what a flow promises holds on each."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from acms import open_storage
from tests.flows.talk import Storage


@pytest.fixture(params=["memory", "sqlite"])
async def storage(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Storage]:
    """A store that stays open for the whole test."""
    url = "memory://" if request.param == "memory" else f"sqlite:///{tmp_path / 'log.db'}"
    async with open_storage(url) as store:
        yield store
