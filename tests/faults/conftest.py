"""Servers that fault tests may kill."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.servers.postgres import Server


@pytest.fixture(scope="session")
def mortal() -> Iterator[Server]:
    """A PostgreSQL server that keeps every acknowledged commit: a test may kill it and must leave it running."""
    # A deadlock is looked for after 100 ms, so that a test need not wait a second for one.
    with Server(fsync=True, settings={"deadlock_timeout": "100ms"}) as server:
        yield server


@pytest.fixture
def mortal_url(mortal: Server) -> Iterator[str]:
    """The URL of an empty database on the server that may be killed."""
    url = mortal.create_database()
    yield url
    mortal.drop_database(url)
