"""The servers a test may ask for. None is started before a test asks."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.servers.postgres import Databases, Server, given


@pytest.fixture(scope="session")
def postgres() -> Iterator[Databases]:
    """PostgreSQL 18 with pgvector, shared by all tests: none stops it. Or the server of $ACMS_TEST_PG_URL."""
    external = given()
    if external is not None:
        yield external
        return
    with Server() as server:
        yield server


@pytest.fixture
def postgres_url(postgres: Databases) -> Iterator[str]:
    """The URL of an empty database, dropped after the test."""
    url = postgres.create_database()
    yield url
    postgres.drop_database(url)
