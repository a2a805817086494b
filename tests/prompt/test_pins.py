"""The registry of pins: its order, its index, and that nothing is lost on any store."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import threading
from datetime import UTC, datetime

import apsw
import pytest

from acms import Role, ValidationError
from acms.errors import CorruptRecordError, SchemaVersionError
from acms.kv import CompareAndSetKV, InMemoryKV, SQLiteKV, open_kv
from acms.pins import Pin, PinMetadata, create_pin_registry
from acms.prompt.pin_index import INDEX_BYTES, INDEX_KEY, MOST_PINS, TAGS
from acms.testing import ManualClock
from tests.faults._process import finish_process, start_python
from tests.storage.test_kv import PlainKV, in_threads

WHEN = datetime(2026, 11, 22, 9, 0, tzinfo=UTC)
NOW = int(WHEN.timestamp()) * 1000
INDEX = f"{INDEX_KEY}:user:123"


@pytest.fixture
def clock():
    return ManualClock(WHEN)


@pytest.fixture(params=["sqlite", "postgres", "redis"])
def url(request, tmp_path):
    """The URL of an empty key-value memory that other processes find."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'pins.db'}"
    return request.getfixturevalue("tenant_url" if request.param == "postgres" else "redis_url")


@pytest.fixture(params=["memory", "sqlite", "postgres", "redis", "a plain one"])
async def store(request, tmp_path, clock):
    """An empty key-value memory of every kind, and a foreign one that cannot compare and set."""
    if request.param == "a plain one":
        plain = PlainKV(clock)
        assert not isinstance(plain, CompareAndSetKV)
        yield plain
        return
    urls = {"memory": "memory://", "sqlite": f"sqlite:///{tmp_path / 'pins.db'}"}
    names = {"postgres": "tenant_url", "redis": "redis_url"}
    url = urls.get(request.param) or request.getfixturevalue(names[request.param])
    async with open_kv(url) as opened:
        yield opened


@pytest.fixture
def registry(store, clock):
    return create_pin_registry(store, namespace="user:123", clock=clock)


def pin_keys(pins):
    return [pin.key for pin in pins]


# ── what a registry does ────────────────────────────────────────────────────────────────────────────────────────────


async def test_pins_are_listed_by_priority_then_by_time_then_by_key(registry, clock):
    assert await registry.list() == ()
    for key, said in {
        "old": {"priority": 5},
        "low": {"priority": -1},
        "none, old": {},
        "top": {"priority": 10.5},
        "new": {"priority": 5},
        "none, new": {},
    }.items():
        await registry.pin(key, **said)
        clock.advance(seconds=1)
    for key in ("same b", "same a"):
        await registry.pin(key, PinMetadata(priority=1, updated_at=1000))
    expected = ["top", "new", "old", "same a", "same b", "low", "none, new", "none, old"]
    assert pin_keys(await registry.list()) == expected


async def test_the_index_is_that_of_the_seed(registry, store):
    pinned = await registry.pin(
        "profile", label="User profile", role="user", priority=10, tags=["person", "person", "ui"]
    )
    assert pinned == Pin(
        "profile",
        PinMetadata(label="User profile", role=Role.USER, priority=10, tags=("person", "ui"), updated_at=NOW),
    )
    await registry.pin("preferences")
    assert list(await registry.list()) == [pinned, Pin("preferences", PinMetadata(updated_at=NOW + 1))]
    stored = await store.get("__cria:pins:v1__:user:123")
    assert json.dumps(stored.data, separators=(",", ":")) == (
        '{"version":1,"pins":{"profile":{"label":"User profile","role":"user","priority":10,'
        f'"tags":["person","ui"],"updatedAt":{NOW}}},"preferences":{{"updatedAt":{NOW + 1}}}}},'
        f'"updatedAt":{NOW + 1}}}'
    )


async def test_what_is_said_of_a_pin_replaces_what_was_said_before(registry):
    await registry.pin("profile", label="User profile", priority=10, tags=["person"])
    again = await registry.pin("profile", priority=1)
    assert again.metadata == PinMetadata(priority=1, updated_at=NOW + 1)
    assert await registry.list() == (again,)


async def test_unpin_lets_go_of_the_pin_and_keeps_the_value(registry, store):
    assert await registry.unpin("profile") is False
    assert await store.get(INDEX) is None, "nothing is written where there is nothing to do"
    await store.set("profile", {"name": "Sam"})
    await registry.pin("profile")
    await registry.pin("other")
    assert await registry.unpin("profile") is True
    assert await registry.unpin("profile") is False
    assert pin_keys(await registry.list()) == ["other"]
    assert (await store.get("profile")).data == {"name": "Sam"}


async def test_namespaces_and_index_keys_are_apart(registry, store, clock):
    other = create_pin_registry(store, namespace="user:1234", clock=clock)
    elsewhere = create_pin_registry(store, namespace="user:123", index_key="__ours__", clock=clock)
    await registry.pin("a")
    await other.pin("b")
    await elsewhere.pin("c")
    assert [pin_keys(await each.list()) for each in (registry, other, elsewhere)] == [["a"], ["b"], ["c"]]
    await other.unpin("a")
    assert pin_keys(await registry.list()) == ["a"]
    assert (await store.get("__ours__:user:123")).data["pins"] == {"c": {"updatedAt": NOW}}


async def test_the_newest_pin_comes_first_even_where_clocks_disagree(store):
    """A clock that stands still, and one that is an hour slow: the order is that of the calls."""
    clock = ManualClock(WHEN)
    fast = create_pin_registry(store, namespace="user:123", clock=clock)
    slow = create_pin_registry(
        store, namespace="user:123", clock=ManualClock(datetime(2020, 1, 1, tzinfo=UTC))
    )
    for key, registry in (("first", fast), ("second", fast), ("third", slow), ("fourth", fast)):
        await registry.pin(key)
    assert pin_keys(await fast.list()) == ["fourth", "third", "second", "first"]


async def test_a_key_may_be_anything_that_a_store_keeps(registry):
    names = ["__proto__", "Zoë 北京", "a:b/c", " ", '"', "10", "9", "é", "x" * 512]
    for name in names:
        await registry.pin(name)
    assert pin_keys(await registry.list()) == names[::-1]


# ── an index that another program wrote ─────────────────────────────────────────────────────────────────────────────

THEIRS = (
    '{"version":1,"pins":{"10":{"priority":2.5,"tags":["a"],"updatedAt":1700000000000,"pinnedBy":"ana"},'
    '"profile":{"label":"Profil «Sam»","role":"developer","updatedAt":1700000000001,"sha":"ab","note":null}},'
    '"updatedAt":1700000000001,"owner":{"team":"ops"}}'
)


async def test_an_index_of_another_program_keeps_what_we_do_not_know(tmp_path, clock):
    path = tmp_path / "pins.db"

    def stored():
        with apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY) as connection:
            return connection.execute("SELECT data FROM kv WHERE key = ?", (INDEX,)).get

    async with SQLiteKV(path) as store:
        registry = create_pin_registry(store, namespace="user:123", clock=clock)
        await store.set(INDEX, json.loads(THEIRS), {"by": "them"})
        assert stored() == THEIRS
        assert await registry.list() == (
            Pin("10", PinMetadata(priority=2.5, tags=("a",), updated_at=1700000000000)),
            Pin("profile", PinMetadata(label="Profil «Sam»", role=Role.DEVELOPER, updated_at=1700000000001)),
        )
        await registry.pin("new", label="ours")
        assert stored() == THEIRS.replace(
            '},"updatedAt":1700000000001,"owner"',
            f',"new":{{"label":"ours","updatedAt":{NOW}}}}},"updatedAt":{NOW},"owner"',
        )
        await registry.unpin("new")
        assert stored() == THEIRS.replace('},"updatedAt":1700000000001,', f'}},"updatedAt":{NOW + 1},')
        await registry.pin("profile", priority=1)
        assert f'"profile":{{"priority":1,"updatedAt":{NOW + 2},"sha":"ab","note":null}}' in stored()
        assert (await store.get(INDEX)).metadata == {"by": "them"}


async def test_what_a_program_says_of_time_may_be_out_of_range(clock):
    store = InMemoryKV()
    registry = create_pin_registry(store, namespace="user:123", clock=clock)
    for last in (2**60, None, "yesterday", -5, 1700000000000.5):
        await store.set(INDEX, {"version": 1, "pins": {}, "updatedAt": last})
        assert (await registry.pin("a")).metadata.updated_at == NOW


@pytest.mark.parametrize(
    "index",
    [
        [], "text", 7, {}, {"version": 1}, {"version": 0, "pins": {}}, {"version": "1", "pins": {}},
        {"version": 1, "pins": []}, {"version": None, "pins": {}},
    ],
    ids=json.dumps,
)  # fmt: skip
async def test_what_is_no_index_is_reported_and_not_written_over(index, clock):
    store = InMemoryKV()
    await store.set(INDEX, index)
    registry = create_pin_registry(store, namespace="user:123", clock=clock)
    for call in (registry.list(), registry.pin("a"), registry.unpin("a")):
        with pytest.raises(CorruptRecordError) as found:
            await call
        assert INDEX in str(found.value)
        assert found.value.options
    assert (await store.get(INDEX)).data == index


async def test_an_index_of_a_later_version_is_left_alone(clock):
    store = InMemoryKV()
    await store.set(INDEX, {"version": 2, "pins": {}})
    registry = create_pin_registry(store, namespace="user:123", clock=clock)
    for call in (registry.list(), registry.pin("a")):
        with pytest.raises(SchemaVersionError) as found:
            await call
        assert found.value.options
    assert (await store.get(INDEX)).data == {"version": 2, "pins": {}}


@pytest.mark.parametrize(
    "stored",
    [
        [], None, {}, {"updatedAt": None}, {"updatedAt": "now"}, {"updatedAt": True},
        {"updatedAt": 1, "label": 7}, {"updatedAt": 1, "priority": "high"}, {"updatedAt": 1, "priority": True},
        {"updatedAt": 1, "tags": "a"}, {"updatedAt": 1, "tags": [1]}, {"updatedAt": 1, "role": "boss"},
    ],
    ids=json.dumps,
)  # fmt: skip
async def test_a_pin_that_does_not_read_back_is_named_and_can_be_replaced_or_let_go(stored, clock):
    store = InMemoryKV()
    registry = create_pin_registry(store, namespace="user:123", clock=clock)
    for repair in (registry.pin, registry.unpin):
        await store.set(
            INDEX, {"version": 1, "pins": {"good": {"updatedAt": 1}, "bad": stored}, "updatedAt": 1}
        )
        with pytest.raises(CorruptRecordError, match="'bad'") as found:
            await registry.list()
        assert found.value.options
        await registry.pin("another")
        await repair("bad")
        assert {"good", "another"} <= set(pin_keys(await registry.list()))


# ── the border ──────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "namespace", ["", " ", "x" * 256, "a\0b", "\ud800", None, 123, b"user:123"], ids=repr
)
async def test_a_namespace_that_makes_no_sense_is_refused_at_once(namespace):
    with pytest.raises(ValidationError) as refused:
        create_pin_registry(InMemoryKV(), namespace=namespace)
    assert refused.value.field == "namespace"


@pytest.mark.parametrize("namespace", ["user:123", "Zoë/北京", "x" * 255, "a b", "%", "\U0001f9e0" * 255])
async def test_a_namespace_that_makes_sense_is_taken_on_every_store(namespace, store, clock):
    registry = create_pin_registry(store, namespace=namespace, clock=clock)
    await registry.pin("a")
    assert pin_keys(await registry.list()) == ["a"]


@pytest.mark.parametrize(
    ("field", "said"),
    [
        ("key", {"key": ""}),
        ("key", {"key": "x" * 513}),
        ("key", {"key": "a\0"}),
        ("key", {"key": 5}),
        ("key", {"key": "__cria:pins:v1__:user:9"}),
        ("label", {"label": ""}),
        ("label", {"label": "a\nb"}),
        ("label", {"label": "x" * 256}),
        ("label", {"label": 5}),
        ("role", {"role": "assistant"}),
        ("role", {"role": "tool"}),
        ("role", {"role": "boss"}),
        ("priority", {"priority": "high"}),
        ("priority", {"priority": True}),
        ("priority", {"priority": float("nan")}),
        ("priority", {"priority": float("inf")}),
        ("priority", {"priority": 2**60}),
        ("tags", {"tags": "a"}),
        ("tags", {"tags": ["a"] * (TAGS + 1)}),
        ("tags", {"tags": 5}),
        ("tags[1]", {"tags": ["a", ""]}),
        ("metadata", {"metadata": {"label": "a"}}),
        ("metadata", {"metadata": PinMetadata(), "label": "a"}),
        ("updated_at", {"metadata": PinMetadata(updated_at=-1)}),
        ("updated_at", {"metadata": PinMetadata(updated_at=1.5)}),
    ],
    ids=repr,
)
async def test_what_makes_no_sense_is_refused_and_nothing_is_stored(field, said, clock):
    store = InMemoryKV()
    registry = create_pin_registry(store, namespace="user:123", clock=clock)
    with pytest.raises(ValidationError) as refused:
        await registry.pin(said.pop("key", "a"), **said)
    assert refused.value.field == field
    assert await store.get(INDEX) is None


async def test_a_namespace_holds_so_many_pins_and_says_which_come_last(clock):
    store = InMemoryKV()
    registry = create_pin_registry(store, namespace="user:123", clock=clock)
    pins = {f"k{n}": {"priority": n, "updatedAt": 1} for n in range(MOST_PINS)}
    await store.set(INDEX, {"version": 1, "pins": pins, "updatedAt": 1})
    with pytest.raises(ValidationError, match="1001 pins, the limit is 1000") as refused:
        await registry.pin("one more")
    assert "'k2', 'k1', 'k0'" in refused.value.options[0]
    await registry.pin("k5", priority=7)
    assert await registry.unpin("k0")
    await registry.pin("one more")
    assert len(await registry.list()) == MOST_PINS


async def test_an_index_has_so_many_bytes(clock):
    store = InMemoryKV()
    registry = create_pin_registry(store, namespace="user:123", clock=clock)
    big = "\U0001f9e0" * 255
    pins = {f"k{n}": {"label": big, "priority": 1, "updatedAt": 1} for n in range(235)}
    await store.set(INDEX, {"version": 1, "pins": pins, "updatedAt": 1})
    for n in range(5):
        await registry.pin(f"more {n}", label=big)
    with pytest.raises(ValidationError, match=f"bytes of JSON, the limit is {INDEX_BYTES}") as refused:
        await asyncio.gather(*(registry.pin(f"too many {n}", label=big) for n in range(10)))
    assert "'more 0'" in refused.value.options[0], "what has no priority comes last, the oldest at the end"
    await registry.pin("k0")


# ── at once ─────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_tasks_that_pin_at_once_lose_nothing(registry):
    await asyncio.gather(*(registry.pin(f"k{n}", priority=-n) for n in range(30)))
    await asyncio.gather(
        *(registry.unpin(f"k{n}") for n in range(0, 30, 2)), *(registry.pin(f"new{n}") for n in range(5))
    )
    assert pin_keys(await registry.list())[:15] == [f"k{n}" for n in range(1, 30, 2)]
    assert len(await registry.list()) == 20


def test_threads_that_share_a_memory_lose_nothing(monkeypatch):
    before = sys.getswitchinterval()
    monkeypatch.setattr(
        "acms.storage.kv.ATTEMPTS", 10_000
    )  # tasks of one thread can be first a hundred times in a row
    sys.setswitchinterval(1e-6)
    try:
        _share_a_memory()
    finally:
        sys.setswitchinterval(before)


def _share_a_memory():
    store = InMemoryKV()

    async def work():
        registry = create_pin_registry(store, namespace="user:123")
        thread = threading.current_thread().name
        await asyncio.gather(*(registry.pin(f"{thread} {n}") for n in range(25)))

    in_threads(work)
    assert len(asyncio.run(create_pin_registry(store, namespace="user:123").list())) == 100


def test_threads_with_a_handle_each_lose_nothing(url):
    async def work():
        async with open_kv(url) as store:
            registry = create_pin_registry(store, namespace="user:123")
            for n in range(8):
                await registry.pin(f"{threading.current_thread().name} {n}")

    in_threads(work)

    async def read():
        async with open_kv(url) as store:
            return await create_pin_registry(store, namespace="user:123").list()

    assert len(asyncio.run(read())) == 32


def keys_left_pinned(lines):
    """Return which keys are pinned after some lines of a pinner."""
    pinned = {}
    for line in lines:
        key = line[1:].strip()
        if line[0] == "+":
            pinned[key] = True
        else:
            del pinned[key]
    return set(pinned)


async def test_processes_that_pin_at_once_lose_nothing_even_when_one_is_killed(url):
    """What a process was answered is there, whatever the others do and however one of them ends."""
    start = ("-m", "tests.prompt._pinner", url, "user:123")
    running = {who: start_python(*start, who, "15") for who in ("ana", "ben")}
    doomed = start_python(*start, "eve", "100000")
    for process in (doomed, *running.values()):
        assert await asyncio.to_thread(process.stdout.readline) == "ready\n"
    for process in (doomed, *running.values()):
        process.stdin.write("go\n")
        process.stdin.flush()
    answered = [await asyncio.to_thread(doomed.stdout.readline) for _ in range(8)]
    os.kill(doomed.pid, signal.SIGKILL)
    answered += [line for line in await asyncio.to_thread(doomed.stdout.readlines) if line.endswith("\n")]
    assert finish_process(doomed) == -signal.SIGKILL
    expected = set()
    for who, process in running.items():
        expected |= keys_left_pinned(await asyncio.to_thread(process.stdout.readlines))
        assert finish_process(process) == 0, who
    assert len(expected) == 20

    async with open_kv(url) as store:
        registry = create_pin_registry(store, namespace="user:123")
        found = set(pin_keys(await registry.list()))
        hers = {key for key in found if key.startswith("eve")}
        assert found - hers == expected
        assert len(hers ^ keys_left_pinned(answered)) <= 1, "one more change may have been stored unanswered"
        await registry.pin("afterwards")
        assert "afterwards" in pin_keys(await registry.list())
