"""Key-value memory on servers: PostgreSQL and Redis, also when they are not there (T47)."""

from __future__ import annotations

import asyncio
import logging
import os
import signal

import psycopg
import pytest

from acms.errors import (
    ConfigurationError,
    HandleError,
    StorageBusyError,
    StorageError,
    StorageReadOnlyError,
    StorageUnavailableError,
    ValidationError,
)
from acms.kv import PostgresKV, open_kv, update_entry
from acms.testing import KVMemoryTests
from tests.storage.test_kv import counted_by_processes, counting


class TestPostgresKV(KVMemoryTests):
    takes_clock = True

    @pytest.fixture
    async def store(self, postgres_url, clock):
        async with PostgresKV(postgres_url, clock=clock) as store:
            yield store

    @pytest.fixture
    async def second(self, postgres_url, store, clock):
        async with PostgresKV(postgres_url, clock=clock) as second:
            yield second

    @pytest.fixture
    async def other_tenant(self, postgres_url, store):
        async with PostgresKV(postgres_url, tenant="other") as other:
            yield other
