from __future__ import annotations

import asyncio
from typing import Any

import psycopg
import pytest

from acms.errors import ConflictError
from acms.model import Context
from acms.storage.postgres import PostgresStorage
from acms.testing import StorageBackendTests, run_story
from acms.testing.logs import new


class TestPostgres(StorageBackendTests):
    @pytest.fixture
    async def store(self, postgres_url):
        async with PostgresStorage(postgres_url) as store:
            yield store

    @pytest.fixture
    async def other_tenant(self, store):
        async with store.for_tenant("other") as other:
            yield other


class TestPostgres15(TestPostgres):
    """The oldest server, without pgvector."""

    @pytest.fixture
    async def store(self, postgres15_url):
        async with PostgresStorage(postgres15_url) as store:
            yield store


def test_the_postgres_store_and_plain_lists_tell_the_same_story(postgres):
    def store():
        return PostgresStorage(postgres.create_database())

    run_story(store, max_examples=15, steps=35)


@pytest.mark.parametrize("change", [{"deleted": True}, {"name": "A"}], ids=["delete", "rename"])
async def test_of_two_writers_of_the_same_settings_at_once_one_is_refused(
    postgres_url: str, change: dict[str, Any]
) -> None:
    """Both have read the settings and wait for the row; the one that comes second has changed nothing."""
    async with PostgresStorage(postgres_url) as one, PostgresStorage(postgres_url) as other:
        context = await new(one)
        async with (
            await psycopg.AsyncConnection.connect(postgres_url) as holder,
            await psycopg.AsyncConnection.connect(postgres_url, autocommit=True) as watch,
        ):
            await holder.execute("SELECT 1 FROM acms.contexts FOR UPDATE")
            tasks = [asyncio.ensure_future(s.settings(context.id, change, rev=0)) for s in (one, other)]
            query = (
                "SELECT count(*) FROM pg_stat_activity"
                " WHERE wait_event_type = 'Lock' AND datname = current_database()"
            )
            while (await (await watch.execute(query)).fetchall())[0][0] < 2:
                await asyncio.sleep(0.01)
            await holder.rollback()
        done = await asyncio.gather(*tasks, return_exceptions=True)
        assert {type(result) for result in done} == {ConflictError, Context}
        assert (await one.context(context.id)).settings_rev == 1
