"""Vectors in Chroma beside a store: the same promises, and what happens when Chroma is gone, slow or of last week."""

from __future__ import annotations

import itertools

import chromadb
import pytest
from chromadb.config import Settings

from acms.storage import ChromaVectors, MemoryStorage, SQLiteStorage
from acms.testing import StorageBackendTests, run_story

_numbers = itertools.count()


@pytest.fixture(scope="module")
def client():
    return chromadb.EphemeralClient(settings=Settings(anonymized_telemetry=False))


class TestChromaMemory(StorageBackendTests):
    takes_clock = True

    @pytest.fixture
    async def store(self, clock, client):
        inner = MemoryStorage(clock=clock)
        async with ChromaVectors(inner, client, collection=f"t{next(_numbers)}") as store:
            yield store
