"""T01, T03, T12, T32 with several handles on one PostgreSQL database, and the suite behind a PgBouncer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from datetime import timedelta

import pytest

from acms import ConflictError, open_storage
from acms.model import Append, Expect, JobDraft, JobQuery, Receipt
from acms.storage import PostgresStorage
from acms.testing import ManualClock, run_story, sound
from acms.testing.logs import WHEN, append_drafts, create_log, draft_message, draft_summary, fork_log
from tests.servers.pgbouncer import PgBouncer
from tests.servers.stores import another
from tests.storage.suite import StorageBackendTests

HANDLES = 4


@pytest.fixture
async def stores(postgres_home: str) -> AsyncIterator[list[PostgresStorage]]:
    """Handles of one tenant, each with connections of its own, as if they were in different processes."""
    place, _, tenant = another(postgres_home).partition("?tenant=")
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(PostgresStorage(place, tenant=tenant)) for _ in range(HANDLES)]


async def append_from_many(stores: list[PostgresStorage], writers: int, appends: int) -> None:
    context = await create_log(stores[0])
    acked: dict[int, tuple[str, str]] = {}

    async def write(writer: int) -> None:
        store = stores[writer % HANDLES]
        for n in range(appends // writers):
            text = f"writer {writer}, message {n}"
            receipt = await append_drafts(
                store, context, draft_message(text, key=text if n % 3 == 0 else None)
            )
            assert receipt.versions[0] not in acked
            acked[receipt.versions[0]] = (receipt.ids[0], text)

    await asyncio.gather(*(write(writer) for writer in range(writers)))
    entries = await sound(stores[1], context.id)
    assert {entry.version: (entry.id, entry.content) for entry in entries} == acked
    assert len(entries) == appends // writers * writers


async def test_t01_32_writers_on_four_handles_leave_one_gapless_log(stores: list[PostgresStorage]) -> None:
    await append_from_many(stores, 32, 320)


@pytest.mark.faults
async def test_t01_32_writers_on_four_handles_append_ten_thousand(stores: list[PostgresStorage]) -> None:
    await append_from_many(stores, 32, 10_000)


async def test_t03_of_many_appends_on_one_head_from_four_handles_one_is_written(
    stores: list[PostgresStorage],
) -> None:
    context = await create_log(stores[0])
    head = await stores[0].head(context.id)
    for turn in range(10):
        expects = (Expect(version=head.version), Expect(last_message=head.last_message))
        ops = [
            Append(context=context.id, drafts=(draft_message(f"{turn}.{n}"),), expect=expects[n % 2])
            for n in range(16)
        ]
        results = [
            result
            for (result,) in await asyncio.gather(
                *(stores[n % HANDLES].append([op]) for n, op in enumerate(ops))
            )
        ]
        (won,) = [result for result in results if isinstance(result, Receipt)]
        assert all(isinstance(result, ConflictError) for result in results if result is not won)
        head = won.head
    assert len(await sound(stores[1], context.id)) == 10


async def test_t12_a_fork_while_other_handles_append_and_compact_is_a_snapshot(
    stores: list[PostgresStorage],
) -> None:
    parent = await create_log(stores[0])
    await append_drafts(stores[0], parent, draft_message("first"))
    done = asyncio.Event()

    async def appending(store: PostgresStorage) -> None:
        for n in range(60):
            receipt = await append_drafts(store, parent, draft_message(f"m{n}"))
            if n % 10 == 9:
                first = receipt.versions[0] - 5
                await append_drafts(store, parent, draft_summary(max(1, first), receipt.versions[0]))
        done.set()

    async def forking(store: PostgresStorage) -> list[str]:
        found: list[str] = []
        while not done.is_set():
            head = await store.head(parent.id)
            child = await fork_log(store, parent)
            assert child.fork is not None
            assert child.fork >= head.version
            found.append(child.id)
        return found

    _, _, *made = await asyncio.gather(*map(appending, stores[:2]), *map(forking, stores[2:]))
    whole = await sound(stores[0], parent.id)
    children = [id for some in made for id in some]
    assert children
    for id in children[:: max(1, len(children) // 20)]:
        context = await stores[1].context(id)
        inherited = await sound(stores[1], id)
        assert inherited == whole[: context.fork]
        head = await stores[1].head(id)
        assert head.rewrites == sum(bool(entry.replaces) for entry in inherited)
        receipt = await append_drafts(stores[3], context, draft_message("own"))
        assert receipt.versions == (len(inherited) + 1,) * 2


@pytest.mark.parametrize("shift", [timedelta(hours=-1), timedelta(days=1)], ids=["-1 h", "+1 day"])
async def test_t32_the_clocks_of_hosts_order_nothing_and_end_no_lease(
    postgres_home: str, shift: timedelta
) -> None:
    place, _, tenant = another(postgres_home).partition("?tenant=")
    here, there = ManualClock(), ManualClock()
    there.now += shift
    async with (
        PostgresStorage(place, tenant=tenant, clock=here) as one,
        PostgresStorage(place, tenant=tenant, clock=there) as two,
    ):
        context = await create_log(one)
        for n in range(6):
            store, when = ((one, WHEN), (two, WHEN + shift))[n % 2]
            await append_drafts(store, context, draft_message(f"m{n}", created_at=when))
        entries = await sound(one, context.id)
        assert [entry.content for entry in entries] == [f"m{n}" for n in range(6)]
        await append_drafts(one, context, jobs=(JobDraft(kind="k", dedupe="d"),))
        (lease,) = await one.claim(["k"], lease=timedelta(minutes=1))
        assert await two.claim(["k"], lease=timedelta(minutes=1)) == [], "the database says what time it is"
        longer = await two.extend(lease, by=timedelta(minutes=2))
        assert timedelta(0) < longer.until - lease.until < timedelta(minutes=2)
        await append_drafts(two, context, draft_message("effect"), finish=lease)
        assert [job.attempt for job in (await one.jobs(JobQuery())).items] == [1]


# ── behind a pooler in transaction mode ─────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def bouncer(postgres_home: str) -> Iterator[PgBouncer]:
    """Four connections for everybody, and each transaction may get another one."""
    with PgBouncer(postgres_home) as pool:
        yield pool


def test_a_store_behind_a_pooler_and_plain_lists_tell_the_same_story(bouncer: PgBouncer) -> None:
    run_story(lambda: open_storage(another(bouncer.url)), max_examples=2, steps=35)


@pytest.mark.slow
class TestPostgresBehindPgBouncer(StorageBackendTests):
    crowd = (4, 40)

    @pytest.fixture
    async def store(self, bouncer: PgBouncer, postgres_home: str) -> AsyncIterator[PostgresStorage]:
        tenant = another(postgres_home).partition("?tenant=")[2]
        async with PostgresStorage(bouncer.url, tenant=tenant) as store:
            yield store
            assert store._db.pool.pooled
            assert {connection.prepare_threshold for connection in store._db.pool.bind().idle} <= {None}

    @pytest.fixture
    async def other_tenant(self, store: PostgresStorage) -> AsyncIterator[PostgresStorage]:
        async with store.for_tenant(f"{store.tenant}-other") as other:
            yield other


async def test_t33_tenants_behind_a_pooler_never_get_each_others_setting(
    bouncer: PgBouncer, postgres_home: str
) -> None:
    """Forty clients share four connections; each transaction names its tenant anew."""
    home = another(postgres_home).partition("?tenant=")[2]
    async with AsyncExitStack() as stack:
        found = [
            await stack.enter_async_context(PostgresStorage(bouncer.url, tenant=f"{home}-{n}", pool_size=2))
            for n in range(20)
        ]

        async def talk(store: PostgresStorage) -> None:
            context = await create_log(store, "talk")
            for n in range(5):
                await append_drafts(store, context, draft_message(f"{store.tenant} {n}"))
            assert [entry.content for entry in await sound(store, context.id)] == [
                f"{store.tenant} {n}" for n in range(5)
            ]

        await asyncio.gather(*map(talk, found))
