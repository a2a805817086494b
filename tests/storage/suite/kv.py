"""The conformance suite of key-value memory: what `KVMemory` and `CompareAndSetKV` promise, as tests.

A store's own test file is five lines; the fixture gives every test a fresh, empty store:

    class TestMyKV(KVMemoryTests):
        @pytest.fixture
        async def store(self, tmp_path):
            async with MyKV(tmp_path / "kv.db") as store:
                yield store

Optional: `takes_clock` with a store made with the fixture `clock`, and the fixtures `second` and `other_tenant`.
What only a `CompareAndSetKV` or a `ListingKV` can do is skipped for other stores.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from datetime import UTC, timedelta
from decimal import Decimal
from typing import Any

import pytest

from acms import ConflictError, ValidationError
from acms.kv import KVEntry, ListingKV, update_entry
from acms.log.validation import KEY_CHARS, METADATA_BYTES, VALUE_BYTES, VALUE_DEPTH
from acms.model import Json
from acms.ports import CompareAndSetKV, KVMemory
from acms.testing import ManualClock
from acms.testing.logs import WHEN
from tests.storage.suite.storage import HOSTILE

VALUES: tuple[Json, ...] = (
    None,
    True,
    False,
    0,
    -1,
    2**53 + 1,
    2**63 - 1,
    -(2**63),
    0.1,
    -0.0,
    1.0,
    1e16,
    1e-300,
    1.7976931348623157e308,
    "",
    "null",
    '\u0001\t\n\r"\\/\u007f\u2028\ufeff',
    "Zo\u00eb \u5317\u4eac \U0001f9e0 e\u0301 \u202egnp.exe",
    [],
    {},
    [[], [[]], {}, [None]],
    {"": "", " ": 1, "\u00e9": 2, "e\u0301": 3, "$.a": 4, "__proto__": 5, "'": 6},
    {"z": 1, "a": {"z": [1, "1", 1.0, True, None], "a": {"b": {"c": []}}}, "m": 2},
)
"""JSON values that a store is tempted to change: numbers, names, their order, characters."""


def _nest_value(levels: int) -> Json:
    value: Json = "innermost"
    for level in range(levels):
        value = [value] if level % 2 else {"in": value}
    return value


def _share_value(levels: int) -> Json:
    """Return a small value that is huge when it is written out."""
    value: Json = []
    for _ in range(levels):
        value = [value, value]
    return value


REFUSED: Mapping[str, Json] = {
    "not a number": float("nan"),
    "endless": [1, float("inf")],
    "65 bits": {"n": 2**63},
    "-65 bits": -(2**63) - 1,
    "NUL": "a\0b",
    "lone surrogate": ["\ud800"],
    "lone surrogate as a name": {"\udfff": 1},
    "a name that is a number": {1: "a"},
    "a name that is nothing": {None: "a"},
    "bytes": b"a",
    "a set": {"a"},
    "a time": WHEN,
    "a decimal": Decimal("1.5"),
    "an object": object(),
    "too deep": _nest_value(VALUE_DEPTH + 1),
    "far too deep": _nest_value(100_000),
    "too long": "x" * VALUE_BYTES,
    "too long in bytes": "\u00e9" * (VALUE_BYTES // 2),
    "too many": ["x" * 1024] * (VALUE_BYTES // 1024),
    "small, and endless when written out": _share_value(VALUE_DEPTH),
}
"""What is no JSON value, or too large a one."""

REFUSED_METADATA: Mapping[str, Json] = {
    "a list": ["a"],
    "a text": "a",
    "not a number": {"a": float("nan")},
    "NUL": {"a": "\0"},
    "lone surrogate": {"a": "\ud800"},
    "too long": {"a": "x" * METADATA_BYTES},
    "too many": {str(n): n for n in range(65)},
}


def _value_as_json(value: Json) -> str:
    return json.dumps(value, ensure_ascii=True)


async def _assert_conflict(store: CompareAndSetKV, key: str, expect: str | None) -> None:
    before = await store.get(key)
    with pytest.raises(ConflictError) as refused:
        await store.compare_and_set(key, "never stored", expect=expect, metadata={"never": "stored"})
    assert refused.value.retryable
    assert refused.value.options
    assert await store.get(key) == before


class KVMemoryTests:
    """Everything a key-value memory promises; subclass it and give it a store."""

    #: True when the store is made with the fixture `clock`.
    takes_clock = False

    @pytest.fixture
    def anyio_backend(self) -> str:
        """Run the tests on asyncio."""
        return "asyncio"

    @pytest.fixture
    def clock(self) -> ManualClock:
        """Return the clock to make the store with."""
        return ManualClock()

    @pytest.fixture
    async def store(self) -> KVMemory:
        """Return or yield a fresh, empty store."""
        raise NotImplementedError("override the fixture `store`")

    @pytest.fixture
    async def second(self, store: KVMemory) -> KVMemory:
        """Return or yield another handle on what `store` holds."""
        pytest.skip("this store has one handle")

    @pytest.fixture
    async def other_tenant(self, store: KVMemory) -> KVMemory:
        """Return or yield a handle of another tenant on the medium of `store`."""
        pytest.skip("this store has one tenant")

    @pytest.fixture
    def comparing(self, store: KVMemory) -> CompareAndSetKV:
        """Return the store if it can compare and set."""
        if not isinstance(store, CompareAndSetKV):
            pytest.skip("this store cannot compare and set")
        return store

    @pytest.fixture
    def listing(self, store: KVMemory) -> ListingKV:
        """Return the store if it can list its keys."""
        if not isinstance(store, ListingKV):
            pytest.skip("this store cannot list")
        return store

    # ── get, set, delete ────────────────────────────────────────────────────────────────────────────────────────────

    async def test_what_was_never_set_is_not_there(self, store: KVMemory) -> None:
        """A key without a value is None, and deleting it says so."""
        assert await store.get("a") is None
        assert await store.delete("a") is False
        assert await store.get("a") is None

    async def test_what_is_set_is_returned_and_read_back(self, store: KVMemory) -> None:
        """An entry carries its key, its value, its metadata and aware times."""
        stored = await store.set("a", {"name": "Sam"}, {"label": "User profile"})
        assert (stored.key, stored.data, dict(stored.metadata)) == (
            "a",
            {"name": "Sam"},
            {"label": "User profile"},
        )
        assert stored.created_at == stored.updated_at
        assert stored.created_at.tzinfo is UTC
        assert await store.get("a") == stored
        assert await store.get("b") is None
        assert await store.get("A") is None

    async def test_setting_again_keeps_the_day_it_was_created(
        self, store: KVMemory, clock: ManualClock
    ) -> None:
        """`created_at` survives every update, `updated_at` moves with it."""
        first = await store.set("a", 1)
        clock.advance(hours=1, microseconds=1)
        second = await store.set("a", 2)
        assert second.data == 2
        assert second.created_at == first.created_at
        assert second.updated_at >= first.updated_at
        if self.takes_clock:
            assert (first.created_at, second.updated_at) == (
                WHEN,
                WHEN + timedelta(hours=1, microseconds=1),
            )
        assert await store.get("a") == second

    async def test_a_clock_that_is_set_back_does_not_set_back_an_entry(
        self, store: KVMemory, clock: ManualClock
    ) -> None:
        """`updated_at` is never before an earlier one, nor before `created_at`."""
        first = await store.set("a", 1)
        clock.advance(days=-1)
        second = await store.set("a", 2)
        assert (second.created_at, second.updated_at >= first.updated_at) == (first.created_at, True)
        if isinstance(store, CompareAndSetKV):
            third = await store.compare_and_set("a", 3, expect=second.revision)
            assert (third.created_at, third.updated_at >= first.updated_at) == (first.created_at, True)
        assert (await store.set("b", 1)).updated_at >= (await store.set("b", 2)).created_at

    async def test_metadata_is_replaced_whole(self, store: KVMemory) -> None:
        """What a write does not say about an entry is not kept from the one before."""
        assert dict((await store.set("a", 1, {"x": 1, "y": [1, {"z": None}]})).metadata) == {
            "x": 1,
            "y": [1, {"z": None}],
        }
        assert dict((await store.set("a", 1, {"x": 2})).metadata) == {"x": 2}
        assert dict((await store.set("a", 1)).metadata) == {}
        assert dict((await store.set("b", 1, {})).metadata) == {}
        for key in "ab":
            found = await store.get(key)
            assert found is not None
            assert dict(found.metadata) == {}

    async def test_a_key_that_was_deleted_starts_anew(self, store: KVMemory, clock: ManualClock) -> None:
        """Deleting takes everything along: the next entry has times and a revision of its own."""
        first = await store.set("a", 1, {"x": 1})
        assert await store.delete("a") is True
        assert await store.delete("a") is False
        assert await store.get("a") is None
        clock.advance(seconds=1)
        second = await store.set("a", 2)
        assert (second.data, dict(second.metadata)) == (2, {})
        assert second.created_at == second.updated_at
        assert second.created_at >= first.created_at
        if self.takes_clock:
            assert second.created_at == WHEN + timedelta(seconds=1)

    async def test_keys_do_not_touch_each_other(self, store: KVMemory) -> None:
        """Every key has its own value."""
        keys = [f"{space}:{n}" for space in ("user", "user:1", "__cria:pins:v1__") for n in range(10)]
        for key in keys:
            await store.set(key, {"is": key})
        assert await store.delete(keys[3])
        for key in keys:
            found = await store.get(key)
            assert (found is None) if key == keys[3] else (found is not None and found.data == {"is": key})

    # ── values ──────────────────────────────────────────────────────────────────────────────────────────────────────

    @pytest.mark.parametrize("value", VALUES, ids=lambda value: ascii(value)[:40])
    async def test_a_value_comes_back_as_it_was_written(self, store: KVMemory, value: Json) -> None:
        """Numbers keep their kind and every digit, objects their order, texts every character."""
        stored = await store.set("a", value)
        found = await store.get("a")
        assert found == stored
        assert _value_as_json(stored.data) == _value_as_json(value)
        wrapped = await store.set("a", [value, {"in": value}], {"value": "x"})
        assert _value_as_json(wrapped.data) == _value_as_json([value, {"in": value}])

    async def test_a_large_value_comes_back(self, store: KVMemory) -> None:
        """A value may be as long and as deep as the limits say."""
        for value in (
            "x" * (VALUE_BYTES - 2),
            "\u00e9" * (VALUE_BYTES // 2 - 1),
            _nest_value(VALUE_DEPTH),
            {"k" * 300: 1},
        ):
            await store.set("a", value)
            found = await store.get("a")
            assert found is not None
            assert found.data == value

    async def test_nobody_changes_what_is_stored_by_changing_what_he_holds(self, store: KVMemory) -> None:
        """Neither the caller's object nor an entry that was returned is the stored one."""
        given: dict[str, Any] = {"list": [1], "in": {"x": 1}}
        labels: dict[str, Any] = {"tags": ["a"]}
        stored = await store.set("a", given, labels)
        given["list"].append(2)
        labels["tags"].append("b")
        for entry in (stored, await store.get("a")):
            assert entry is not None
            entry.data["in"]["x"] = 2
            entry.metadata["tags"].append("c")
        found = await store.get("a")
        assert found is not None
        assert (found.data, dict(found.metadata)) == ({"list": [1], "in": {"x": 1}}, {"tags": ["a"]})

    async def test_what_json_calls_the_same_is_stored_alike(self, store: KVMemory) -> None:
        """Tuples are lists, and so they come back."""
        assert (await store.set("a", {"pair": (1, (2,))})).data == {"pair": [1, [2]]}

    @pytest.mark.parametrize("why", REFUSED)
    async def test_what_is_no_json_value_is_refused_and_changes_nothing(
        self, store: KVMemory, why: str
    ) -> None:
        """Every store refuses the same values, and says which field is at fault."""
        before = await store.set("a", 1, {"x": 1})
        with pytest.raises(ValidationError) as refused:
            await store.set("a", REFUSED[why])
        assert refused.value.field.startswith("data")
        if isinstance(store, CompareAndSetKV):
            with pytest.raises(ValidationError):
                await store.compare_and_set("a", REFUSED[why], expect=before.revision)
        assert await store.get("a") == before

    @pytest.mark.parametrize("why", REFUSED_METADATA)
    async def test_metadata_has_the_limits_of_all_metadata(self, store: KVMemory, why: str) -> None:
        """It is a JSON object of 64 names and 16 kB, here as on a message."""
        with pytest.raises(ValidationError) as refused:
            await store.set("a", 1, REFUSED_METADATA[why])
        assert refused.value.field.startswith("metadata")
        assert await store.get("a") is None

    # ── keys ────────────────────────────────────────────────────────────────────────────────────────────────────────

    @pytest.mark.parametrize(
        "key",
        [*HOSTILE, "k" * KEY_CHARS, "\U0001f9e0" * KEY_CHARS, "k" * (KEY_CHARS + 1)],
        ids=lambda key: ascii(key)[:40],
    )
    async def test_t35_a_hostile_key_is_a_key_or_refused(self, store: KVMemory, key: str) -> None:
        """1 to 512 characters without NUL and lone surrogates are a key, whatever they would mean elsewhere."""
        if 1 <= len(key) <= KEY_CHARS and not any(bad in key for bad in ("\0", "\ud800", "\udfff")):
            stored = await store.set(key, key)
            assert stored.key == key
            assert await store.get(key) == stored
            assert await store.get(f"{key[:-1]}!") is None
            assert await store.delete(key)
            assert await store.get(key) is None
            return
        for call in (store.get(key), store.set(key, 1), store.delete(key)):
            with pytest.raises(ValidationError) as refused:
                await call
            assert refused.value.field == "key"

    @pytest.mark.parametrize("key", [None, 1, b"a", ["a"], True])
    async def test_a_key_is_a_text(self, store: KVMemory, key: Any) -> None:
        """Anything else is refused."""
        for call in (store.get(key), store.set(key, 1), store.delete(key)):
            with pytest.raises(ValidationError):
                await call

    # ── compare and set ─────────────────────────────────────────────────────────────────────────────────────────────

    async def test_a_value_is_replaced_only_at_the_revision_that_was_read(
        self, comparing: CompareAndSetKV, clock: ManualClock
    ) -> None:
        """A writer with an older revision changes nothing and gets an error."""
        first = await comparing.set("a", 1, {"x": 1})
        clock.advance(seconds=1)
        second = await comparing.compare_and_set("a", 2, expect=first.revision, metadata={"x": 2})
        assert (second.data, dict(second.metadata)) == (2, {"x": 2})
        assert (second.created_at, second.updated_at >= first.updated_at) == (first.created_at, True)
        assert await comparing.get("a") == second
        await _assert_conflict(comparing, "a", first.revision)
        third = await comparing.compare_and_set("a", 3, expect=second.revision)
        assert dict(third.metadata) == {}
        assert await comparing.get("a") == third

    async def test_a_value_is_created_only_where_none_is(self, comparing: CompareAndSetKV) -> None:
        """To expect None is to expect that there is no such key."""
        first = await comparing.compare_and_set("a", 1, expect=None)
        assert await comparing.get("a") == first
        await _assert_conflict(comparing, "a", None)
        await comparing.delete("a")
        assert (await comparing.compare_and_set("a", None, expect=None)).data is None
        await _assert_conflict(comparing, "a", None)

    async def test_a_revision_never_comes_back(self, comparing: CompareAndSetKV) -> None:
        """Not for the same value, and not for a deleted key: a write since the read is always noticed."""
        seen: list[KVEntry] = []
        for _ in range(5):
            seen.append(await comparing.set("a", 1))
            seen.append(await comparing.compare_and_set("a", 1, expect=seen[-1].revision))
            await comparing.delete("a")
        assert len({entry.revision for entry in seen} | {""}) == 11
        for entry in seen:
            await _assert_conflict(comparing, "a", entry.revision)
        assert await comparing.get("a") is None

    @pytest.mark.parametrize("expect", ["", " ", "'", "nonsense", "1", "\U0001f9e0"])
    async def test_a_revision_nobody_gave_is_never_met(self, comparing: CompareAndSetKV, expect: str) -> None:
        """Whatever is expected that is not the revision is a conflict, also where there is no entry."""
        await _assert_conflict(comparing, "a", expect)
        await comparing.set("a", 1)
        await _assert_conflict(comparing, "a", expect)

    @pytest.mark.parametrize("expect", [1, b"a", "\0", "\ud800", "x" * 2000], ids=lambda one: ascii(one)[:20])
    async def test_a_revision_is_a_text(self, comparing: CompareAndSetKV, expect: Any) -> None:
        """Anything else is refused."""
        with pytest.raises(ValidationError) as refused:
            await comparing.compare_and_set("a", 1, expect=expect)
        assert refused.value.field == "expect"

    # ── list ────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def test_keys_are_listed_in_order_page_by_page(self, listing: ListingKV) -> None:
        """Pages of any size, of any prefix, are the keys that begin with it in the order of code points."""
        keys = [
            *("a", "a/", "a/1", "a/10", "a/2", "a0", "A/1", "a*", "a?", "a[b]", "a\\", "a^", "%", "_", "a%b", " "),
            *("\u00e9", "e\u0301", "\ud7ff", "\ue000", "\uffff", "\U0001f9e0", "\U0001f9e0a", "\U0010ffff"),
            "\U0010ffff\U0010ffff", "\u5317\u4eac/1",
        ]  # fmt: skip
        for key in keys:
            await listing.set(key, {"key": key}, {"m": key})
        for prefix in ["", *keys, "a[", "b", "\u5317"]:
            wanted = sorted(key for key in keys if key.startswith(prefix))
            for limit in (1, 3, 500):
                found: list[KVEntry] = []
                after: str | None = None
                while True:
                    page = await listing.list(prefix, after=after, limit=limit)
                    found += page.entries
                    assert len(page.entries) <= limit
                    if page.next_after is None:
                        break
                    assert page.next_after == page.entries[-1].key
                    after = page.next_after
                assert [entry.key for entry in found] == wanted
        for entry in (await listing.list()).entries:
            assert entry == await listing.get(entry.key)

    async def test_a_page_is_of_what_is_there(self, listing: ListingKV) -> None:
        """Deleted keys are gone, a page may begin behind a key that never was, and bad input is refused."""
        assert (await listing.list()).entries == ()
        for key in ("a", "b", "c"):
            await listing.set(key, 1)
        await listing.delete("b")
        page = await listing.list(after="aa", limit=1)
        assert ([entry.key for entry in page.entries], page.next_after) == (["c"], None)
        assert (await listing.list(after="c")).entries == ()
        for wrong in ({"prefix": 1}, {"after": b"a"}, {"limit": 0}, {"limit": 501}, {"prefix": "\0"}):
            given: dict[str, Any] = wrong
            with pytest.raises(ValidationError) as refused:
                await listing.list(**given)
            assert refused.value.field in wrong

    # ── many at once ────────────────────────────────────────────────────────────────────────────────────────────────

    async def test_fifty_tasks_that_count_lose_nothing(self, comparing: CompareAndSetKV) -> None:
        """Every round one writer is first and the others notice, so each count arrives once."""

        async def add() -> None:
            while True:
                entry = await comparing.get("n")
                try:
                    await comparing.compare_and_set(
                        "n",
                        1 if entry is None else entry.data + 1,
                        expect=None if entry is None else entry.revision,
                    )
                    return
                except ConflictError:
                    continue

        await asyncio.gather(*(add() for _ in range(50)))
        found = await comparing.get("n")
        assert found is not None
        assert found.data == 50

    async def test_fifty_changes_of_one_index_lose_nothing(self, store: KVMemory) -> None:
        """`update_entry` in many tasks of one process is safe on every store, and it keeps the metadata."""
        await store.set("index", {}, {"version": 1})

        def adding(name: str) -> Callable[[KVEntry | None], Json]:
            def change(entry: KVEntry | None) -> Json:
                assert entry is not None
                return {**entry.data, name: len(entry.data)}

            return change

        await asyncio.gather(*(update_entry(store, "index", adding(f"k{n}")) for n in range(50)))
        found = await store.get("index")
        assert found is not None
        assert sorted(found.data) == sorted(f"k{n}" for n in range(50))
        assert sorted(found.data.values()) == list(range(50))
        assert dict(found.metadata) == {"version": 1}
        created = await update_entry(store, "other", lambda entry: entry is None)
        assert created.data is True

    async def test_an_entry_is_of_one_write(self, store: KVMemory) -> None:
        """Of writers that meet one is last, with its value and its metadata."""
        await asyncio.gather(*(store.set("a", {"n": n}, {"n": n}) for n in range(50)))
        found = await store.get("a")
        assert found is not None
        assert found.data == dict(found.metadata)
        assert sum(await asyncio.gather(*(store.delete("a") for _ in range(10)))) == 1

    # ── several handles ─────────────────────────────────────────────────────────────────────────────────────────────

    async def test_two_handles_see_each_other(self, store: KVMemory, second: KVMemory) -> None:
        """What one handle acknowledged the other reads, and it keeps the day the first created."""
        stored = await store.set("a", 1, {"x": 1})
        assert await second.get("a") == stored
        changed = await second.set("a", 2)
        assert changed.created_at == stored.created_at
        assert await store.get("a") == changed
        assert await store.delete("a")
        assert await second.get("a") is None

    async def test_two_handles_lose_no_change(self, store: KVMemory, second: KVMemory) -> None:
        """Comparing holds between handles as it does between tasks."""
        if not (isinstance(store, CompareAndSetKV) and isinstance(second, CompareAndSetKV)):
            pytest.skip("this store cannot compare and set")
        first = await store.set("a", 0)
        await second.compare_and_set("a", 1, expect=first.revision)
        await _assert_conflict(store, "a", first.revision)

        def add(entry: KVEntry | None) -> Json:
            assert entry is not None
            return entry.data + 1

        await asyncio.gather(*(update_entry(handle, "a", add) for handle in (store, second) * 20))
        found = await store.get("a")
        assert found is not None
        assert found.data == 41

    async def test_tenants_are_apart(self, store: KVMemory, other_tenant: KVMemory) -> None:
        """The same key of another tenant is another key."""
        stored = await store.set("a", "mine")
        assert await other_tenant.get("a") is None
        assert await other_tenant.delete("a") is False
        await other_tenant.set("a", "theirs")
        assert await store.get("a") == stored
        if isinstance(other_tenant, CompareAndSetKV):
            await _assert_conflict(other_tenant, "a", stored.revision)
        if isinstance(other_tenant, ListingKV):
            assert [entry.data for entry in (await other_tenant.list()).entries] == ["theirs"]
        assert await store.delete("a")
        found = await other_tenant.get("a")
        assert found is not None
        assert found.data == "theirs"

    async def test_a_store_that_was_closed_opens_again(self, store: KVMemory) -> None:
        """Closing twice is no error, and stored values stay for the next call."""
        stored = await store.set("a", 1)
        await store.aclose()
        await store.aclose()
        assert await store.get("a") == stored
