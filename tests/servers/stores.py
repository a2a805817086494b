"""Empty stores of every kind for tests that hold on each."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.servers.postgres import Databases


@pytest.fixture(scope="session")
def postgres_home(postgres: Databases) -> Iterator[str]:
    """The URL of one database that many tests share, each as a tenant of its own: the first one makes the schema."""
    url = postgres.create_database()
    yield url
    postgres.drop_database(url)


@pytest.fixture(scope="session")
def postgres15_home(postgres15: Databases) -> Iterator[str]:
    """The URL of a database on PostgreSQL 15 without pgvector that many tests share, each as a tenant of its own."""
    url = postgres15.create_database()
    yield url
    postgres15.drop_database(url)


@pytest.fixture
def tenant_url(postgres_home: str) -> str:
    """The URL of an empty store in PostgreSQL: a new tenant, ten times as fast as a new database."""
    return another(postgres_home)


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def any_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty store of each kind."""
    return url_of(request, tmp_path)


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty store of each kind that outlives its handles."""
    return url_of(request, tmp_path)


def another(home: str) -> str:
    """Return the URL of a new tenant of a database."""
    return f"{home}?tenant=t-{secrets.token_hex(6)}"


def run_inside(url: str, statement: str) -> list[tuple[Any, ...]]:
    """Run one statement in a database, as its user, past every policy; return its rows."""
    import psycopg

    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(statement)  # type: ignore[arg-type]
        return cursor.fetchall() if cursor.description else []


def url_of(request: pytest.FixtureRequest, folder: Path) -> str:
    """Return the URL of an empty store of the kind that the fixture's parameter names; a server only if it is asked."""
    if request.param == "postgres":
        return request.getfixturevalue("tenant_url")
    return "memory://" if request.param == "memory" else f"sqlite:///{folder / 'log.db'}"
