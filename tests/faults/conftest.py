"""What the fault tests share."""

from __future__ import annotations

import pytest


@pytest.fixture
def anyio_backend() -> str:
    """The embedded store is written for asyncio."""
    return "asyncio"
