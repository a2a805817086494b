import asyncio
import itertools

import pytest

from acms import Kind, State
from acms.log.active_entries import Replacements
from acms.log.read import replacements_at
from acms.storage import CachedStorage, MemoryStorage, SQLiteStorage, open_storage
from acms.testing import run_story, sound
from acms.testing.logs import append_drafts, create_log, draft_fact, draft_message, draft_summary, fork_log
from tests.servers.stores import another
from tests.storage.suite import StorageBackendTests
from tests.support.faulty import FaultyStorage


class TestCachedMemory(StorageBackendTests):
    takes_clock = True

    @pytest.fixture
    async def store(self, clock):
        async with CachedStorage(MemoryStorage(clock=clock)) as store:
            yield store


@pytest.mark.slow
class TestCachedSQLite(StorageBackendTests):
    takes_clock = True

    @pytest.fixture
    async def store(self, tmp_path, clock):
        async with CachedStorage(SQLiteStorage(tmp_path / "a.db", clock=clock)) as store:
            yield store

    @pytest.fixture
    async def other_tenant(self, tmp_path, store):
        async with CachedStorage(SQLiteStorage(tmp_path / "a.db", tenant="other")) as other:
            yield other


@pytest.mark.slow  # a server and this wrapper each pass the suite by themselves; the story below tells them together
class TestCachedPostgres(StorageBackendTests):
    crowd = (8, 80)

    @pytest.fixture
    async def store(self, tenant_url):
        async with CachedStorage(open_storage(tenant_url)) as store:
            yield store

    @pytest.fixture
    async def other_tenant(self, store, tenant_url):
        async with CachedStorage(open_storage(f"{tenant_url}-other")) as other:
            yield other


@pytest.mark.parametrize("examples", [3, pytest.param(50, marks=pytest.mark.slow)])
def test_a_cached_postgres_store_and_plain_lists_tell_the_same_story(postgres_home, examples):
    run_story(lambda: CachedStorage(open_storage(another(postgres_home))), max_examples=examples, steps=30)


@pytest.mark.parametrize("examples", [15, pytest.param(200, marks=pytest.mark.slow)])
def test_a_cached_memory_store_and_plain_lists_tell_the_same_story(examples):
    run_story(lambda: CachedStorage(MemoryStorage()), max_examples=examples, steps=35)


def test_a_cache_too_small_for_anything_and_plain_lists_tell_the_same_story():
    run_story(
        lambda: CachedStorage(MemoryStorage(), max_bytes=5_000, max_entries=20), max_examples=5, steps=30
    )


def test_a_cached_sqlite_store_and_plain_lists_tell_the_same_story(tmp_path):
    numbers = itertools.count()
    run_story(
        lambda: CachedStorage(SQLiteStorage(tmp_path / f"{next(numbers)}.db")), max_examples=5, steps=30
    )


async def assert_same_reads(cache, plain, context):
    """Assert that a cache reads what the store behind it reads, whole and in slices."""
    log = await sound(cache, context.id)
    assert log == await plain.read(context.id)
    length = len(log)
    for ask in (
        {"newest": 5},
        {"limit": 7},
        {"after": length // 2, "limit": 3},
        {"at": length // 2, "newest": 9},
        {"kinds": (Kind.MESSAGE,), "newest": 6},
        {"kinds": (Kind.FACT,)},
        {"replacing": True},
        {"replacing": True, "at": length // 2},
        {"before": length // 3},
        {"after": length},
        {"after": length + 3, "newest": 2},
    ):
        assert await cache.read(context.id, **ask) == await plain.read(context.id, **ask), ask
    head = await plain.head(context.id)
    for at, searchable in itertools.product((length, length // 2, length), (False, True)):
        replacements = await replacements_at(cache, context.id, head, at, searchable=searchable)
        made = Replacements(await plain.read(context.id, at=at, replacing=True), searchable=searchable)
        assert [replacements.replaced_by(one.version) for one in log] == [
            made.replaced_by(one.version) for one in log
        ]
        assert (replacements.replacing, replacements.substitutes, replacements.retirements) == (
            made.replacing,
            made.substitutes,
            made.retirements,
        )


async def test_a_cache_reads_the_same_as_its_store_while_others_write_and_erase(tmp_path):
    async with SQLiteStorage(tmp_path / "a.db") as other, SQLiteStorage(tmp_path / "a.db") as inner:
        cache = CachedStorage(inner)
        root = await create_log(other)
        await append_drafts(other, root, *[draft_message(f"start {n}") for n in range(9)])
        child = await fork_log(other, root, 6)
        await append_drafts(other, child, draft_message("of the child"))

        async def write(writer, turn):
            context = (root, child)[writer % 2]
            receipt = await append_drafts(
                other, context, draft_message(f"{turn}.{writer}"), draft_fact("a fact")
            )
            if writer % 3 == 0:
                await append_drafts(other, context, draft_summary(receipt.versions[0], receipt.versions[0]))
            if writer % 3 == 1:
                await other.blank(context.id, [turn + 1, receipt.versions[0]], to=State.ERASED, audit={})

        async def read(reader):
            context = (root, child)[reader % 2]
            entries = await cache.read(context.id, **({"newest": 4} if reader % 3 else {}))
            versions = [entry.version for entry in entries]
            assert versions == list(range(versions[0], versions[0] + len(versions)))

        for turn in range(8):
            tasks = [task for n in range(6) for task in (write(n, turn), read(n), read(n + 1))]
            await asyncio.gather(*tasks)
            for context in (root, child):
                await assert_same_reads(cache, inner, context)
        assert 0 < cache.stats.hit_rate < 1


async def test_what_was_read_once_is_read_from_memory():
    cache = CachedStorage(MemoryStorage())
    context = await create_log(cache)
    assert cache.stats.hit_rate == 0
    await append_drafts(cache, context, *[draft_message("x" * 100) for _ in range(10)])
    await cache.read(context.id)
    first = cache.stats
    assert (first.hits, first.misses, first.contexts) == (0, 10, 1)
    assert first.bytes > 10 * 100
    await cache.read(context.id)
    await append_drafts(cache, context, draft_message("news"))
    await cache.read(context.id, newest=3)
    second = cache.stats
    assert (second.hits, second.misses) == (10 + 2, 10 + 1)
    assert second.hit_rate == 12 / 23


async def test_what_was_got_by_id_is_got_from_memory_and_cuts_no_run():
    inner = FaultyStorage(MemoryStorage())
    cache = CachedStorage(inner)
    root = await create_log(cache)
    ids = (await append_drafts(cache, root, *[draft_message("x" * 100) for _ in range(50)])).ids
    child = await fork_log(cache, root)
    own = (await append_drafts(cache, child, draft_message("own"))).ids
    some = [*ids[::7], *own]
    assert [entry and entry.id for entry in await cache.get(some)] == some
    assert (cache.stats.hits, cache.stats.misses) == (0, len(some))
    before = inner.calls.copy()
    assert [entry and entry.id for entry in await cache.get(ids[::7])] == list(ids[::7])
    assert inner.calls - before == {"head": 1}, "one head, no entry"
    size = cache.stats.bytes
    assert len(await cache.read(root.id)) == 50
    assert inner.calls - before == {"head": 2, "read": 1}, "read in one run"
    assert size < cache.stats.bytes < 50 * 2_000, "nothing is counted twice"
    await cache.get([*ids, "m_0000000000000000_1_000000"])
    assert (inner.calls - before)["get"] == 1, "only for the id that nobody knows"
    assert await cache.blank(child.id, [1], to=State.ERASED, audit={}) == 1
    found = await cache.get(ids[:2])
    assert [entry and entry.content for entry in found] == ["", "x" * 100]


async def test_the_least_recently_used_contexts_go_first():
    cache = CachedStorage(MemoryStorage(), max_bytes=60_000)
    contexts = [await create_log(cache) for _ in range(5)]
    for context in contexts:
        await append_drafts(cache, context, *[draft_message("x" * 500) for _ in range(8)])
    for context in contexts:
        await cache.read(context.id)
        await cache.read(contexts[0].id)
        assert cache.stats.bytes <= 60_000
    assert 0 < cache.stats.contexts < 5
    before = cache.stats
    await cache.read(contexts[0].id)
    assert cache.stats.misses == before.misses, "the one that is always used stays"
    await cache.read(contexts[1].id)
    assert cache.stats.misses == before.misses + 8, "one that was not used went"
    for context in contexts:
        await assert_same_reads(cache, cache.inner, context)


async def test_entries_are_limited_by_number_and_read_again_when_they_are_old():
    now = 0.0
    cache = CachedStorage(MemoryStorage(), max_entries=12, ttl_seconds=60, clock=lambda: now)
    contexts = [await create_log(cache) for _ in range(3)]
    for context in contexts:
        await append_drafts(cache, context, *[draft_message("x") for _ in range(5)])
        await cache.read(context.id)
    assert cache.stats.contexts == 2, "ten entries: fifteen are too many"
    before = cache.stats.misses
    now = 59
    await cache.read(contexts[2].id)
    assert cache.stats.misses == before
    now = 60
    await cache.read(contexts[2].id)
    assert cache.stats.misses == before + 5
    assert cache.stats.contexts == 1, "the other one is as old"
    for context in contexts:
        await assert_same_reads(cache, cache.inner, context)


async def test_a_log_larger_than_the_cache_is_read_whole():
    cache = CachedStorage(MemoryStorage(), max_bytes=1)
    context = await create_log(cache)
    await append_drafts(cache, context, *[draft_message(str(n)) for n in range(20)])
    for _ in range(2):
        await assert_same_reads(cache, cache.inner, context)
    assert cache.stats.bytes == 0


async def test_an_erasure_anywhere_in_the_tree_empties_the_lines_it_concerns(tmp_path):
    async with SQLiteStorage(tmp_path / "a.db") as other, SQLiteStorage(tmp_path / "a.db") as inner:
        cache = CachedStorage(inner)
        root = await create_log(other)
        await append_drafts(other, root, draft_message("public"), draft_message("secret"))
        child, apart = await fork_log(other, root), await create_log(other)
        await append_drafts(other, apart, draft_message("untouched"))
        for context in (root, child, apart):
            await cache.read(context.id)
        await other.blank(child.id, [2], to=State.ERASED, audit={})
        for context in (root, child):
            assert [entry.content for entry in await cache.read(context.id)] == ["public", ""]
        before = cache.stats.misses
        await cache.read(apart.id)
        assert cache.stats.misses == before
