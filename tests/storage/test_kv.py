"""Key-value memory on its four homes, and on a store of somebody else."""

from __future__ import annotations

import pytest

from acms.kv import InMemoryKV, SQLiteKV
from acms.testing import KVMemoryTests


class TestInMemoryKV(KVMemoryTests):
    takes_clock = True

    @pytest.fixture
    async def store(self, clock):
        return InMemoryKV(clock=clock)


class TestSQLiteKV(KVMemoryTests):
    takes_clock = True

    @pytest.fixture
    async def store(self, tmp_path, clock):
        async with SQLiteKV(tmp_path / "kv.db", clock=clock) as store:
            yield store

    @pytest.fixture
    async def second(self, tmp_path, store, clock):
        async with SQLiteKV(tmp_path / "kv.db", clock=clock) as second:
            yield second

    @pytest.fixture
    async def other_tenant(self, tmp_path, store):
        async with SQLiteKV(tmp_path / "kv.db", tenant="other") as other:
            yield other
