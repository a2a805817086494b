"""Vectors in Chroma beside a store: the same promises, and what happens when Chroma is gone, slow or of last week."""

from __future__ import annotations

import asyncio
import itertools
import shutil
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import chromadb
import pytest

from acms import ACMS, ConfigurationError, Kind, State
from acms.erasure import proof
from acms.errors import VectorsUnavailableError
from acms.log.provenance import Link
from acms.model import ContextQuery, Derived, Search
from acms.ports import StorageBackend
from acms.recall.embeddings import Embedding
from acms.recall.reindex import reindex
from acms.storage import CachedStorage, ChromaVectors, MemoryStorage, SQLiteStorage
from acms.storage.chroma import write_queue
from acms.testing import HashEmbedder, ManualClock, run_story
from acms.testing.logs import (
    append_drafts,
    create_log,
    draft_fact,
    draft_message,
    fork_log,
    pack_vector,
    restore_contexts,
)
from acms.text import index_record
from tests.storage.suite import StorageBackendTests, VectorTests

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


def chroma_store(inner: StorageBackend, client: Any, name: str, **given: Any) -> ChromaVectors:
    """A store with vectors in collections of this name, patient enough for a busy machine."""
    return ChromaVectors(inner, client, collection=name, **{"timeout": 30, **given})


class TestChromaMemory(StorageBackendTests):
    takes_clock = True

    @pytest.fixture
    async def store(self, clock: ManualClock, client: Any, name: str) -> AsyncIterator[StorageBackend]:
        async with chroma_store(MemoryStorage(clock=clock), client, name) as store:
            yield store


class TestChromaSQLite(VectorTests):
    @pytest.fixture
    async def store(self, tmp_path: Path, client: Any, name: str) -> AsyncIterator[StorageBackend]:
        async with chroma_store(SQLiteStorage(tmp_path / "a.db"), client, name) as store:
            yield store

    @pytest.fixture
    async def other_tenant(
        self, tmp_path: Path, client: Any, name: str, store: StorageBackend
    ) -> AsyncIterator[StorageBackend]:
        inner = SQLiteStorage(tmp_path / "a.db", tenant="other")
        async with chroma_store(inner, client, name) as other:
            yield other


def test_vectors_in_chroma_and_plain_lists_tell_the_same_story(client: Any) -> None:
    run_story(lambda: chroma_store(MemoryStorage(), client, f"t{next(_numbers)}"), max_examples=8, steps=25)


class Gate:
    """A client of Chroma that can be taken away: it refuses, or hangs until it is let go."""

    def __init__(self, real: Any, state: Gate | None = None) -> None:
        self._real = real
        self._state = state or self
        if state is None:
            self.broken = False
            self.open = threading.Event()
            self.open.set()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._real, name)
        if not callable(found):
            return found

        def call(*given: Any, **named: Any) -> Any:
            self._state.open.wait(60)
            if self._state.broken:
                raise ConnectionError("nobody listens there")
            result = found(*given, **named)
            return (
                Gate(result, self._state)
                if name in ("get_collection", "get_or_create_collection")
                else result
            )

        return call


@pytest.fixture
def gate(client: Any) -> Iterator[Gate]:
    gate = Gate(client)
    yield gate
    gate.open.set()


TEAM = "team"
TALK = (
    "We chose PostgreSQL for the orders service. The invoices stay where they are.",
    "Lunch is at noon in the small room.",
    "Decision: invoices go through RabbitMQ.",
    "The cat sleeps all day on the warm mat.",
    "Rain is expected in Frankfurt tomorrow. Take an umbrella.",
    "The orders database needs a replica in Dublin.",
    "We must never store card numbers.",
)
ASKED = ("Which database runs the orders?", "How do invoices travel?", "umbrella weather")


async def write_conversation(storage: StorageBackend, name: str = "talk") -> str:
    """Write a conversation and wait until its vectors are stored; return the id of its context."""
    async with ACMS(name, storage, HashEmbedder(), namespace=TEAM) as session:
        for number, text in enumerate(TALK * 3):
            await session.ingest("user" if number % 2 else "assistant", text)
        await session.wait_pending()
    context = await storage.context(name, namespace=TEAM)
    await storage.put_derived(context.id, ())
    return context.id


async def recall_everything(storage: StorageBackend, name: str = "talk", scope: str = "session") -> list[Any]:
    """Ask everything in one new session, before anything is healed; without waiting for what it heals."""
    found: list[Any] = []
    async with ACMS(name, storage, HashEmbedder(), namespace=TEAM) as session:
        for query in ASKED:
            items = await session.recall(query, token_budget=120, scope=scope)
            found.append((items.coverage, [(item.id, item.score) for item in items]))
    return found


async def copy_logs(store: StorageBackend, to: SQLiteStorage) -> None:
    """Carry the logs to a store without their vectors, and have them made there."""
    for context in (await store.contexts(ContextQuery())).items:
        await restore_contexts(store, to, context)
    await reindex(to, embedder=HashEmbedder())


async def test_t47_recall_with_vectors_in_chroma_is_the_same_as_without(
    tmp_path: Path, client: Any, name: str
) -> None:
    inner, plain = SQLiteStorage(tmp_path / "a.db"), SQLiteStorage(tmp_path / "b.db")
    async with chroma_store(inner, client, name) as store, plain:
        await write_conversation(store)
        await write_conversation(store, "other")
        await copy_logs(store, plain)
        for scope in ("session", "namespace"):
            assert await recall_everything(store, scope=scope) == await recall_everything(plain, scope=scope)
        assert [coverage for coverage, _ in await recall_everything(store)] == [1.0, 1.0, 1.0]
        context = await store.context("talk", namespace=TEAM)
        space = Embedding(store, HashEmbedder()).space
        there = {(row.version, row.part): row.data for row in await store.derived(context.id, space)}
        assert there == {(row.version, row.part): row.data for row in await plain.derived(context.id, space)}
        assert {len(row.data) for row in await inner.derived(context.id, space)} == {21}


async def test_t47_after_chroma_was_emptied_recall_answers_and_reindex_makes_it_whole(
    tmp_path: Path, client: Any, name: str
) -> None:
    def again() -> ChromaVectors:
        """A handle that remembers nothing."""
        return chroma_store(inner, client, name)

    async with SQLiteStorage(tmp_path / "a.db") as inner:
        store = again()
        context = await write_conversation(store)
        before = await recall_everything(again())
        assert [coverage for coverage, _ in before] == [1.0, 1.0, 1.0]
        for collection in client.list_collections():
            if collection.name.startswith(f"{name}-"):
                client.delete_collection(collection.name)
        space = Embedding(store, HashEmbedder()).space
        assert await store.derived(context, space) == []
        assert await store.missing(space, context=context, limit=99) == [(context, n) for n in range(1, 22)]
        assert await store.missing(space, limit=4, after=3) == [(context, n) for n in range(4, 8)]
        async with ACMS("talk", again(), HashEmbedder(), namespace=TEAM) as session:
            items = await session.recall(ASKED[0], token_budget=120)
            assert items.coverage == 1, "a little that is missing is waited for"
            assert "PostgreSQL" in "".join(item.content for item in items)
        done = await reindex(store, embedder=HashEmbedder())
        assert (done.entries, done.moved, done.left) == (21, 0, 0)
        assert len(await inner.derived(context, space)) == 21
        assert await recall_everything(again()) == before
        assert (await reindex(store, embedder=HashEmbedder())).vectors == 0


async def test_t47_a_session_heals_what_chroma_lost(tmp_path: Path, client: Any, name: str) -> None:
    async with SQLiteStorage(tmp_path / "a.db") as inner:
        await write_conversation(chroma_store(inner, client, name))
        before = await recall_everything(chroma_store(inner, client, name))
        for collection in client.list_collections():
            if collection.name.startswith(f"{name}-"):
                collection.delete(ids=collection.get(limit=20)["ids"])
        async with ACMS("talk", chroma_store(inner, client, name), HashEmbedder(), namespace=TEAM) as session:
            items = await session.recall(ASKED[0], token_budget=120)
            assert items.coverage == 1
            await session.wait_pending()
        assert await recall_everything(chroma_store(inner, client, name)) == before


async def test_t47_chroma_of_last_week_gives_no_vector_of_another_day(tmp_path: Path) -> None:
    folder, old = tmp_path / "vectors", tmp_path / "old"
    inner = SQLiteStorage(tmp_path / "a.db")
    async with inner:
        async with ChromaVectors(inner, path=folder, timeout=60) as store:
            one = await write_conversation(store)
            await store.put_derived(one, [Derived(version=1, space="s", data=pack_vector(1, 0))])
        shutil.copytree(folder, old)
        async with ChromaVectors(inner, path=folder, timeout=60) as store:
            await write_conversation(store, "later")
            await store.put_derived(one, [Derived(version=1, space="s", data=pack_vector(0, 1))])
        async with ChromaVectors(inner, path=folder, timeout=60) as store:
            before = [await recall_everything(store, session) for session in ("talk", "later")]
        shutil.rmtree(folder)
        async with ChromaVectors(inner, path=old, timeout=60) as store:
            assert await store.derived(one, "s") == []
            assert (await store.missing("s", context=one, limit=1)) == [(one, 1)]
            assert await recall_everything(store) == before[0]
            async with ACMS("later", store, HashEmbedder(), namespace=TEAM) as session:
                items = await session.recall(ASKED[0], token_budget=120)
                assert items.coverage == 1
                assert "PostgreSQL" in "".join(item.content for item in items)
                await session.wait_pending()
            await reindex(store, embedder=HashEmbedder())
        async with ChromaVectors(inner, path=old, timeout=60) as store:
            assert [await recall_everything(store, session) for session in ("talk", "later")] == before


@pytest.mark.parametrize("how", ["absent", "slow"])
async def test_t47_without_an_answer_from_chroma_messages_are_stored_and_words_answer(
    how: str, tmp_path: Path, gate: Gate, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    inner = SQLiteStorage(tmp_path / "a.db")
    async with inner:
        await write_conversation(chroma_store(inner, gate, name))
    seconds = 5 if how == "absent" else 0.05
    async with chroma_store(inner, gate, name, timeout=seconds, backoff=0) as store:
        context = (await store.context("talk", namespace=TEAM)).id
        if how == "absent":
            gate.broken = True
        else:
            gate.open.clear()
        caplog.clear()
        async with ACMS("talk", store, HashEmbedder(), namespace=TEAM) as session:
            await session.ingest("user", "The replica in Dublin is ready.")
            items = await session.recall(ASKED[0], token_budget=120)
            assert items.coverage < 1
            assert "PostgreSQL" in "".join(item.content for item in items)
            assert (await session.recall("Dublin replica", token_budget=120, scope="namespace"))[-1].content
        assert {"vectors_unavailable", "vectors_not_stored"} <= {
            record.getMessage() for record in caplog.records
        }
        hits = await store.search(Search(namespace=TEAM, terms=("invoices",), space="s", vector=(1.0, 0.0)))
        assert hits
        space = Embedding(store, HashEmbedder()).space
        for call in (
            store.derived(context, space),
            store.missing(space, context=context, limit=9),
            store.put_derived(context, [Derived(version=1, space="s", data=pack_vector(1, 0))]),
        ):
            with pytest.raises(VectorsUnavailableError) as caught:
                await call
            assert caught.value.retryable
        assert await inner.derived(context, "s") == []
    gate.broken = False
    gate.open.set()
    async with inner:
        await reindex(chroma_store(inner, gate, name), embedder=HashEmbedder())
        assert [coverage for coverage, _ in await recall_everything(chroma_store(inner, gate, name))] == [
            1.0,
            1.0,
            1.0,
        ]


async def test_after_a_failure_chroma_is_left_alone_for_a_while(client: Any, gate: Gate, name: str) -> None:
    async with chroma_store(MemoryStorage(), gate, name, backoff=1000) as store:
        context = await create_log(store)
        await append_drafts(store, context, draft_message("a"))
        row = Derived(version=1, space="s", data=pack_vector(1, 0))
        await store.put_derived(context.id, [row])
        gate.broken = True
        with pytest.raises(VectorsUnavailableError, match="ConnectionError"):
            await store.derived(context.id, "s")
        gate.broken = False
        with pytest.raises(VectorsUnavailableError, match="does not answer"):
            await store.derived(context.id, "s")
    async with chroma_store(store.inner, client, name) as store:
        assert [one.data for one in await store.derived(context.id, "s")] == [row.data]


async def test_a_vector_whose_entry_was_erased_without_chroma_is_found_and_pruned(
    gate: Gate, name: str
) -> None:
    async with chroma_store(MemoryStorage(), gate, name, backoff=0) as store:
        root = await create_log(store)
        receipt = await append_drafts(store, root, draft_fact("a"), draft_fact("b"), draft_fact("c"))
        child = await fork_log(store, root)
        rows = [Derived(version=n, space=s, data=pack_vector(n, 1)) for n in (1, 2, 3) for s in ("s", "t")]
        await store.put_derived(child.id, rows)
        await store.blank(child.id, [1], to=State.ERASED, audit={})
        assert await store.residue(receipt.ids[:1], []) == []
        gate.broken = True
        await store.blank(child.id, [2], to=State.ERASED, audit={})
        (unsure,) = await store.residue(receipt.ids[1:2], [])
        assert "did not answer" in unsure
        gate.broken = False
        assert await store.residue(receipt.ids[1:2], []) == [f"{root.id}: 1 vectors in Chroma"] * 2
        links = [Link(receipt.ids[1], root.id, 2, Kind.FACT, State.ERASED)]
        assert len(await proof.find_residue(CachedStorage(store), links, [root.id], [])) == 2
        assert [
            hit.id for hit in await store.search(Search(namespace="default", space="s", vector=(0.0, 1.0)))
        ] == [receipt.ids[2]]
        assert (await reindex(store)).pruned == 2
        assert await store.residue(receipt.ids, []) == [f"{root.id}: 1 vectors in Chroma"] * 2, (
            "of the live one"
        )


async def test_vectors_move_from_the_store_to_chroma_and_back(tmp_path: Path, client: Any, name: str) -> None:
    async with SQLiteStorage(tmp_path / "a.db") as inner:
        context = await write_conversation(inner)
        before = await recall_everything(inner)
        space = Embedding(inner, HashEmbedder()).space
        rows = len(await inner.derived(context, space))
        store = chroma_store(inner, client, name)
        assert await recall_everything(store) == before, "what lies in the store is read from there"
        done = await reindex(store, context, embedder=HashEmbedder())
        assert (done.moved, done.vectors, done.cards) == (rows, 0, 0)
        assert await recall_everything(store) == before
        assert (await reindex(store, context, embedder=HashEmbedder())).moved == 0
        back = await reindex(inner, context, embedder=HashEmbedder())
        assert back.vectors == rows
        assert await recall_everything(inner) == before


async def test_what_an_erasure_overtakes_leaves_no_vector_in_chroma(gate: Gate, name: str) -> None:
    """The entry is erased while its vector is on its way."""
    async with chroma_store(MemoryStorage(), gate, name) as store:
        context = await create_log(store)
        receipt = await append_drafts(store, context, draft_fact("a"), draft_fact("b"))
        await store.put_derived(context.id, [Derived(version=1, space="s", data=pack_vector(1, 1))])
        gate.open.clear()
        rows = [Derived(version=n, space="s", data=pack_vector(n, 2)) for n in (1, 2)]
        writing = asyncio.create_task(store.put_derived(context.id, rows))
        await asyncio.sleep(0)
        await store.inner.blank(context.id, [2], to=State.ERASED, audit={})
        gate.open.set()
        assert await writing == 1
        assert await store.residue(receipt.ids[1:], []) == []
        assert [row.version for row in await store.derived(context.id, "s")] == [1]


async def test_too_much_at_once_is_dropped_and_found_missing(
    gate: Gate, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with chroma_store(MemoryStorage(), gate, name) as store:
        context = await create_log(store)
        await append_drafts(store, context, draft_message("a"), draft_message("b"))
        gate.open.clear()
        row = Derived(version=1, space="s", data=pack_vector(1, 1))
        for _ in range(write_queue.QUEUED):
            assert await store.put_derived(context.id, [row], wait=False) == 1
        assert await store.put_derived(context.id, [replace(row, version=2)], wait=False) == 0
        card = Derived(version=2, space=index_record.SPACE, data=b"card")
        assert await store.put_derived(context.id, [card], wait=False) == 1
        assert [one.data for one in await store.derived(context.id, index_record.SPACE)] == [b"card"], (
            "no card waits"
        )
        gate.open.set()
        await store.aclose()
        assert [one.version for one in await store.derived(context.id, "s")] == [1]
        assert await store.missing("s", context=context.id, limit=9) == [(context.id, 2)]
        assert "vectors_not_stored" in caplog.text


def test_one_place_must_be_named() -> None:
    inner = MemoryStorage()
    for given in ({}, {"path": "a", "url": "http://b"}, {"url": "b:8000"}, {"url": "file:///b"}):
        with pytest.raises(ConfigurationError):
            ChromaVectors(inner, **given)


async def test_a_server_that_is_not_there_is_no_reason_to_fail() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    async with ChromaVectors(MemoryStorage(), url=f"http://127.0.0.1:{port}") as store:
        context = await create_log(store)
        await append_drafts(store, context, draft_fact("red wine"))
        query = Search(namespace="default", terms=("wine",), space="s", vector=(1.0, 0.0))
        assert len(await store.search(query)) == 1
        row = Derived(version=1, space="s", data=pack_vector(1, 0))
        assert await store.put_derived(context.id, [row], wait=False) == 1
        await store.aclose()
        assert await store.inner.derived(context.id, "s") == []
