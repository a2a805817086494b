"""The conformance suite of key-value memory: what `KVMemory`, `CompareAndSetKV` and `ListingKV` promise, in short.

A store's own test file is five lines; the fixture gives every test a fresh, empty store:

    class TestMyKV(KVMemoryTests):
        @pytest.fixture
        async def store(self, tmp_path):
            async with MyKV(tmp_path / "kv.db") as store:
                yield store

Optional: the fixture `other_tenant`. What only a `CompareAndSetKV` or a `ListingKV` can do is skipped for other stores.
"""

from __future__ import annotations

import asyncio
import json
from datetime import UTC
from typing import Any

import pytest

from acms.errors import ConflictError, ValidationError
from acms.log.validation import KEY_CHARS, VALUE_BYTES
from acms.model import Json, KVEntry
from acms.ports import CompareAndSetKV, KVMemory, ListingKV
from acms.storage.kv import update_entry

VALUES: tuple[Json, ...] = (
    None,
    -(2**63),
    1.0,
    -0.0,
    1e-300,
    '\u0001\t\n\r"\\/\u2028\ufeff \U0001f9e0',
    [[], {}, [None]],
    {"z": {"a": [1, "1", True]}, "a": "", "": 0, "e\u0301": 1, "\u00e9": 2},
    "x" * (VALUE_BYTES - 2),
)
"""JSON values that a store is tempted to change: numbers, names, their order, characters."""
REFUSED: tuple[Any, ...] = (
    float("nan"),
    2**63,
    "a\0b",
    ["\ud800"],
    {1: "a"},
    b"a",
    object(),
    "x" * VALUE_BYTES,
)
"""Values that are no JSON, or too large."""


class KVMemoryTests:
    """What a key-value memory promises; subclass it and give it a store."""

    @pytest.fixture
    def anyio_backend(self) -> str:
        """Run the tests on asyncio."""
        return "asyncio"

    @pytest.fixture
    async def store(self) -> KVMemory:
        """Return or yield a fresh, empty store."""
        raise NotImplementedError("override the fixture `store`")

    @pytest.fixture
    async def other_tenant(self, store: KVMemory) -> KVMemory:
        """Return or yield a handle of another tenant on the medium of `store`."""
        pytest.skip("this store has one tenant")

    async def test_an_entry_is_set_replaced_and_deleted(self, store: KVMemory) -> None:
        """An entry has its key, its value, its metadata and aware times; a later value keeps `created_at`."""
        assert await store.get("a") is None
        first = await store.set("a", {"name": "Sam"}, {"label": "User"})
        assert (first.key, first.data, dict(first.metadata)) == ("a", {"name": "Sam"}, {"label": "User"})
        assert first.created_at.tzinfo is UTC
        assert await store.get("a") == first
        second = await store.set("a", 2)
        assert (second.created_at, second.updated_at >= first.updated_at) == (first.created_at, True)
        await store.aclose()
        assert await store.get("a") == second
        assert await store.delete("a")
        assert not await store.delete("a")

    async def test_values_are_read_as_they_were_written(self, store: KVMemory) -> None:
        """Numbers keep their kind and digits, objects their order, texts every character."""
        for value in VALUES:
            await store.set("a", value)
            entry = await store.get("a")
            assert entry is not None
            assert json.dumps(entry.data) == json.dumps(value)

    async def test_other_values_and_keys_are_refused(self, store: KVMemory) -> None:
        """Every store refuses the same input, and names the field."""
        for value in REFUSED:
            with pytest.raises(ValidationError, match="data"):
                await store.set("a", value)
        for key in ("", "\0", "\ud800", "k" * (KEY_CHARS + 1)):
            with pytest.raises(ValidationError, match="key"):
                await store.set(key, 1)
        assert await store.get("a") is None

    async def test_a_value_is_replaced_only_at_the_revision_that_was_read(self, store: KVMemory) -> None:
        """None expects that there is no entry; a revision never comes back."""
        if not isinstance(store, CompareAndSetKV):
            pytest.skip("this store cannot compare and set")
        first = await store.compare_and_set("a", 1, expect=None)
        second = await store.compare_and_set("a", 1, expect=first.revision)
        await store.delete("a")
        await store.set("a", 1)
        for expect in (None, first.revision, second.revision, "nonsense"):
            with pytest.raises(ConflictError):
                await store.compare_and_set("a", 2, expect=expect)

    async def test_concurrent_changes_are_all_stored(self, store: KVMemory) -> None:
        """`update_entry` in many tasks loses no change."""

        def add(entry: KVEntry | None) -> Json:
            return 1 if entry is None else entry.data + 1

        await asyncio.gather(*(update_entry(store, "n", add) for _ in range(50)))
        found = await store.get("n")
        assert found is not None
        assert found.data == 50

    async def test_keys_are_listed_in_order_page_by_page(self, store: KVMemory) -> None:
        """Pages list the keys of a prefix in the order of code points."""
        if not isinstance(store, ListingKV):
            pytest.skip("this store cannot list")
        keys = ["a", "a/1", "a/10", "a/2", "A/1", "%", "_", "\ue000", "\U0001f9e0"]
        for key in keys:
            await store.set(key, key)
        for prefix in ("", "a", "a/", "b"):
            found: list[str] = []
            after: str | None = None
            while True:
                page = await store.list(prefix, after=after, limit=2)
                found += [entry.key for entry in page.entries]
                after = page.next_after
                if after is None:
                    break
            assert found == sorted(key for key in keys if key.startswith(prefix))

    async def test_tenants_see_nothing_of_each_other(self, store: KVMemory, other_tenant: KVMemory) -> None:
        """The same key of another tenant is another entry."""
        stored = await store.set("a", "mine")
        assert await other_tenant.get("a") is None
        await other_tenant.set("a", "theirs")
        assert await other_tenant.delete("a")
        assert await store.get("a") == stored
