"""Deadlines of the contract run on virtual time, however busy the machine is."""

from __future__ import annotations

import pytest

from tests.support.virtual_time import VIRTUAL_TIME


@pytest.fixture(scope="session")
def anyio_backend() -> tuple[str, dict[str, object]]:
    return VIRTUAL_TIME
