"""The PostgreSQL launcher itself."""

from __future__ import annotations

import psycopg

from tests.servers.postgres import Databases


def test_pgvector_can_be_created(postgres_url: str) -> None:
    with psycopg.connect(postgres_url) as connection:
        connection.execute("CREATE EXTENSION vector")
        row = connection.execute("SELECT extversion FROM pg_extension WHERE extname = 'vector'").fetchone()
    assert row is not None
    assert tuple(map(int, row[0].split("."))) >= (0, 8, 2)


def test_a_database_is_empty_and_its_own(postgres: Databases) -> None:
    url = postgres.create_database()
    with psycopg.connect(url) as connection:
        tables = connection.execute("SELECT relname FROM pg_class WHERE oid >= 16384").fetchall()
        connection.execute("CREATE TABLE a (b int)")
        connection.commit()
        postgres.drop_database(url)  # although somebody is connected
    name = url.rpartition("/")[2]
    assert tables == []
    assert (name,) not in postgres.execute("SELECT datname FROM pg_database")
