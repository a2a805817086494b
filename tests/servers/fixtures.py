"""The servers a test may ask for. None is started before a test asks."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.servers.pgbouncer import PgBouncer
from tests.servers.postgres import Databases, Server, databases_of_environment
from tests.servers.redis import RedisServer


@pytest.fixture(scope="session")
def postgres() -> Iterator[Databases]:
    """PostgreSQL 18 with pgvector, shared by all tests: none stops it. Or the server of $ACMS_TEST_PG_URL."""
    external = databases_of_environment()
    if external is not None:
        yield external
        return
    with Server() as server:
        yield server


@pytest.fixture(scope="session")
def postgres15() -> Iterator[Databases]:
    """Debian's PostgreSQL 15, without pgvector; shared by all tests: none stops it."""
    with Server(version=15) as server:
        yield server


@pytest.fixture(scope="session")
def redis() -> Iterator[RedisServer]:
    """A Redis shared by all tests: none stops it."""
    with RedisServer() as server:
        yield server


@pytest.fixture
def postgres_url(postgres: Databases) -> Iterator[str]:
    """The URL of an empty database on PostgreSQL 18, dropped after the test."""
    url = postgres.create_database()
    yield url
    postgres.drop_database(url)


@pytest.fixture
def postgres15_url(postgres15: Databases) -> Iterator[str]:
    """The URL of an empty database on PostgreSQL 15 without pgvector, dropped after the test."""
    url = postgres15.create_database()
    yield url
    postgres15.drop_database(url)


@pytest.fixture
def pgbouncer_url(postgres_url: str) -> Iterator[str]:
    """The URL of the test's database behind a PgBouncer in transaction mode with four connections."""
    with PgBouncer(postgres_url) as pool:
        yield pool.url


@pytest.fixture
def redis_url(redis: RedisServer) -> str:
    """The URL of an empty Redis."""
    redis.clear()
    return redis.url


@pytest.fixture
def redis_server() -> Iterator[RedisServer]:
    """A Redis of the test's own, which it may stop, kill and start again."""
    with RedisServer() as server:
        yield server
