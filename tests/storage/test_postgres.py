from __future__ import annotations

import pytest

from acms.storage.postgres import PostgresStorage
from acms.testing import StorageBackendTests, run_story


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
