"""The conformance suite of stores: what `StorageBackend` promises, in short.

The fixture gives every test a fresh, empty store. `run_story` tells random stories to one and compares the whole state:

    class TestMyStorage(StorageBackendTests):
        @pytest.fixture
        async def store(self, tmp_path):
            async with MyStorage(tmp_path / "a.db") as store:
                yield store

    def test_stories(tmp_path):
        names = count()
        run_story(lambda: MyStorage(tmp_path / f"{next(names)}.db"))

Optional: the fixture `other_tenant`.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta

import pytest

from acms.errors import ConflictError, IdempotencyMismatchError, SessionNotFoundError
from acms.model import Append, Derived, Expect, JobDraft, Receipt, Search
from acms.ports import StorageBackend
from acms.testing.logs import (
    append_drafts,
    create_log,
    draft_fact,
    draft_message,
    fork_log,
    pack_vector,
    sound,
)


class StorageBackendTests:
    """What a store promises; subclass it and give it a store."""

    @pytest.fixture
    def anyio_backend(self) -> str:
        """Run the tests on asyncio."""
        return "asyncio"

    @pytest.fixture
    async def store(self) -> StorageBackend:
        """Return or yield a fresh, empty store."""
        raise NotImplementedError("override the fixture `store`")

    @pytest.fixture
    async def other_tenant(self, store: StorageBackend) -> StorageBackend:
        """Return or yield a handle of another tenant on what `store` holds."""
        pytest.skip("this store has one tenant")

    async def test_a_key_names_one_context_of_a_namespace(self, store: StorageBackend) -> None:
        """Creating a key again returns the live context; an unknown one is an error."""
        context = await create_log(store, "a", namespace="n", settings={"name": "A"})
        assert await create_log(store, "a", namespace="n", settings={"name": "B"}) == context
        assert await store.context("a", namespace="n") == await store.context(context.id) == context
        with pytest.raises(SessionNotFoundError):
            await store.context("a")

    async def test_settings_change_only_at_the_revision_that_was_read(self, store: StorageBackend) -> None:
        """Of several writers that read the same settings exactly one succeeds."""
        context = await create_log(store)
        changes = [store.settings(context.id, {"n": n}, rev=0) for n in range(5)]
        results = await asyncio.gather(*changes, return_exceptions=True)
        assert sum(isinstance(result, ConflictError) for result in results) == 4

    async def test_a_refused_operation_leaves_its_neighbours_alone(self, store: StorageBackend) -> None:
        """Operations of one call succeed or fail alone, in order; a refused one changes nothing."""
        context = await create_log(store)
        late = Append(context=context.id, drafts=(draft_message("late"),), expect=Expect(last_message=None))
        good = [Append(context=context.id, drafts=(draft_message(text),)) for text in ("one", "two")]
        results = await store.append([good[0], late, good[1]])
        assert [isinstance(result, Receipt) for result in results] == [True, False, True]
        assert isinstance(results[1], ConflictError)
        assert [entry.content for entry in await sound(store, context.id)] == ["one", "two"]

    async def test_an_append_with_its_key_can_be_repeated(self, store: StorageBackend) -> None:
        """A repeated append returns the receipt of the first; another text under the same key is refused."""
        context = await create_log(store)
        draft = draft_message("a", key="k", metadata={"m": 1})
        first = await append_drafts(store, context, draft)
        again = await asyncio.gather(*(append_drafts(store, context, draft) for _ in range(50)))
        assert {receipt.ids for receipt in again} == {first.ids}
        assert all(receipt.repeated for receipt in again)
        with pytest.raises(IdempotencyMismatchError):
            await append_drafts(store, context, replace(draft, content="b"))
        assert len(await sound(store, context.id)) == 1

    async def test_many_writers_agree_on_one_order(self, store: StorageBackend) -> None:
        """Concurrent appends leave one log without gaps that holds every message once."""
        context = await create_log(store)
        writes = [
            append_drafts(store, context, draft_message(f"{n} a"), draft_message(f"{n} b")) for n in range(64)
        ]
        receipts = await asyncio.gather(*writes)
        entries = await sound(store, context.id)
        for receipt in receipts:
            first, last = receipt.versions
            assert [entry.id for entry in entries[first - 1 : last]] == list(receipt.ids)
        assert len(entries) == 128

    async def test_a_closed_store_opens_again(self, store: StorageBackend) -> None:
        """Closing is idempotent; the next call finds the log, its keys and its jobs."""
        context = await create_log(store, "a")
        receipt = await append_drafts(
            store, context, draft_message("a", key="k"), jobs=(JobDraft(kind="k", dedupe="d"),)
        )
        await store.aclose()
        await store.aclose()
        assert await store.head(context.id) == receipt.head
        assert (await append_drafts(store, context, draft_message("a", key="k"))).repeated
        assert len(await store.claim(["k"], lease=timedelta(minutes=1))) == 1

    async def test_a_job_is_claimed_by_one_of_many_workers(self, store: StorageBackend) -> None:
        """Concurrent claims return every due job exactly once."""
        context = await create_log(store)
        await append_drafts(store, context, jobs=tuple(JobDraft(kind="k", dedupe=str(n)) for n in range(20)))
        claims = [store.claim(["k"], lease=timedelta(minutes=1), limit=3) for _ in range(10)]
        taken = [lease.job.dedupe for leases in await asyncio.gather(*claims) for lease in leases]
        assert sorted(taken) == sorted(str(n) for n in range(20))

    async def test_a_search_joins_words_and_vectors(self, store: StorageBackend) -> None:
        """An entry counts for the better of the two, best first, within its namespace."""
        context = await create_log(store)
        receipt = await append_drafts(
            store, context, draft_fact("red wine"), draft_fact("grape juice"), draft_fact("blue sky")
        )
        vectors = {2: pack_vector(1, 0), 3: pack_vector(-1, 0)}
        rows = [Derived(version=version, space="s", data=data) for version, data in vectors.items()]
        await store.put_derived(context.id, rows)
        query = Search(namespace="default", terms=("wine",), space="s", vector=(1.0, 0.0))
        assert [hit.id for hit in await store.search(query)] == [receipt.ids[1], receipt.ids[0]]
        assert await store.search(replace(query, namespace="other")) == []

    async def test_tenants_see_nothing_of_each_other(
        self, store: StorageBackend, other_tenant: StorageBackend
    ) -> None:
        """The same keys, and even the ids, of another tenant do not exist."""
        mine = await create_log(store, "a")
        receipt = await append_drafts(store, mine, draft_fact("my secret", key="k"))
        for call in (
            other_tenant.context("a"),
            other_tenant.read(mine.id),
            append_drafts(other_tenant, mine, draft_message("x")),
            fork_log(other_tenant, mine),
        ):
            with pytest.raises(SessionNotFoundError):
                await call
        assert await other_tenant.get(receipt.ids) == [None]
        assert await other_tenant.search(Search(namespace="default", terms=("secret",))) == []
        assert (await create_log(other_tenant, "a")).id != mine.id
