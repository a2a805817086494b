"""Vectors in Chroma beside a store: the same promises, and what happens when Chroma is gone, slow or of last week."""

from __future__ import annotations

import asyncio
import itertools
import logging
import shutil
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from acms import ACMS, ContextItems, VectorsUnavailableError
from acms.core import cards
from acms.errors import ConfigurationError
from acms.model import Derived, Search, State
from acms.protocols import StorageBackend
from acms.storage import CachedStorage, ChromaVectors, MemoryStorage, SQLiteStorage
from acms.testing import HashEmbedder, ManualClock, StorageBackendTests, VectorTests
from acms.testing.logs import fork, new, noted, packed, put, said

chromadb = pytest.importorskip("chromadb")

_numbers = itertools.count()


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    """One Chroma in memory; each test has collections of its own name in it."""
    from chromadb.config import Settings

    client = chromadb.EphemeralClient(settings=Settings(anonymized_telemetry=False))
    yield client
    client.close()


@pytest.fixture
def name() -> str:
    return f"t{next(_numbers)}"


class TestChromaMemory(StorageBackendTests):
    takes_clock = True

    @pytest.fixture
    async def store(self, clock: ManualClock, client: Any, name: str) -> AsyncIterator[StorageBackend]:
        async with ChromaVectors(MemoryStorage(clock=clock), client, collection=name) as store:
            yield store


class TestChromaSQLite(VectorTests):
    @pytest.fixture
    async def store(self, tmp_path: Path, client: Any, name: str) -> AsyncIterator[StorageBackend]:
        async with ChromaVectors(SQLiteStorage(tmp_path / "a.db"), client, collection=name) as store:
            yield store

    @pytest.fixture
    async def other_tenant(
        self, tmp_path: Path, client: Any, name: str, store: StorageBackend
    ) -> AsyncIterator[StorageBackend]:
        inner = SQLiteStorage(tmp_path / "a.db", tenant="other")
        async with ChromaVectors(inner, client, collection=name) as other:
            yield other


class TestCachedChroma(VectorTests):
    @pytest.fixture
    async def store(self, tmp_path: Path) -> AsyncIterator[StorageBackend]:
        inner = SQLiteStorage(tmp_path / "a.db")
        async with CachedStorage(ChromaVectors(inner, path=tmp_path / "vectors")) as store:
            yield store
