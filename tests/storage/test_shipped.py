"""The suites that are shipped: stores and key-value memory of ours pass them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from acms.kv import InMemoryKV, SQLiteKV
from acms.ports import KVMemory, StorageBackend
from acms.storage import MemoryStorage, SQLiteStorage
from acms.testing import KVMemoryTests, StorageBackendTests


class TestMemory(StorageBackendTests):
    @pytest.fixture
    async def store(self) -> AsyncIterator[StorageBackend]:
        async with MemoryStorage() as store:
            yield store


class TestSQLite(StorageBackendTests):
    @pytest.fixture
    async def store(self, tmp_path: Path) -> AsyncIterator[StorageBackend]:
        async with SQLiteStorage(tmp_path / "a.db") as store:
            yield store

    @pytest.fixture
    async def other_tenant(self, tmp_path: Path) -> AsyncIterator[StorageBackend]:
        async with SQLiteStorage(tmp_path / "a.db", tenant="other") as store:
            yield store


class TestInMemoryKV(KVMemoryTests):
    @pytest.fixture
    async def store(self) -> AsyncIterator[KVMemory]:
        async with InMemoryKV() as store:
            yield store


class TestSQLiteKV(KVMemoryTests):
    @pytest.fixture
    async def store(self, tmp_path: Path) -> AsyncIterator[KVMemory]:
        async with SQLiteKV(tmp_path / "kv.db") as store:
            yield store

    @pytest.fixture
    async def other_tenant(self, tmp_path: Path) -> AsyncIterator[KVMemory]:
        async with SQLiteKV(tmp_path / "kv.db", tenant="other") as store:
            yield store
