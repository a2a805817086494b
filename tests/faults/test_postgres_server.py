"""T08, T17, T18: a PostgreSQL server that is killed, restarted, demoted, full, or at odds with itself.

pytest -m faults tests/faults/test_postgres_server.py      the long run: 100 kills
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta

import psycopg
import pytest

from acms import ACMSError, ConfigurationError, JobState, StorageBusyError
from acms.errors import StorageReadOnlyError, StorageUnavailableError
from acms.model import Append, ContextDraft, Expect, JobDraft, JobQuery, Receipt
from acms.storage import PostgresStorage
from acms.storage.postgres.pool import UnknownOutcomeError
from acms.testing import sound
from acms.testing.logs import WHEN, append_drafts, create_log, draft_message
from tests.servers.postgres import Databases, Server

MINUTE = timedelta(minutes=1)


# ── T08: killed under load ──────────────────────────────────────────────────────────────────────────────────────────


@dataclass
class Ledger:
    """What writers were told."""

    #: (context, content) → (version, id) of what was acknowledged.
    acked: dict[tuple[str, str], tuple[int, str]] = field(default_factory=dict)
    #: What nobody knows about.
    unknown: set[tuple[str, str]] = field(default_factory=set)
    #: Appends with keys, as they were sent.
    keyed: list[Append] = field(default_factory=list)

    def note(self, op: Append, result: Receipt | ACMSError) -> None:
        for n, draft in enumerate(op.drafts):
            place = (op.context, draft.content)
            if isinstance(result, Receipt):
                self.acked[place] = (result.versions[0] + n, result.ids[n])
            else:
                assert isinstance(result, UnknownOutcomeError), result
                self.unknown.add(place)


async def append_until_stopped(
    store: PostgresStorage, context: str, who: int, ledger: Ledger, stop: asyncio.Event
) -> None:
    """Append until told to stop: with keys, with an expectation, and with nothing to be known by."""
    rng = random.Random(who)
    n = 0
    while not stop.is_set():
        n += 1
        kind = ("key", "expectation", "nothing")[who % 3]
        texts = [
            f"{kind} {who}.{n}.{part} {'x' * rng.choice((1, 400, 3000))}"
            for part in range(rng.choice((1, 3)))
        ]
        drafts = tuple(
            draft_message(text, key=f"{who}/{n}/{i}" if kind == "key" else None)
            for i, text in enumerate(texts)
        )
        expect = Expect()
        if kind == "expectation":  # the only writer of its log
            expect = Expect(version=(await store.head(context)).version)
        op = Append(context=context, drafts=drafts, expect=expect)
        (result,) = await store.append([op])
        ledger.note(op, result)
        if kind != "nothing":
            assert isinstance(result, Receipt), "it can be known again, so it is tried until it is there"
        if kind == "key":
            ledger.keyed.append(op)


async def killed_under_load(server: Server, url: str, kills: int) -> None:
    ledger, stop = Ledger(), asyncio.Event()
    rng = random.Random(kills)
    async with (
        PostgresStorage(url, retry_seconds=120) as store,
        PostgresStorage(url, retry_seconds=120) as other,
    ):
        shared = [(await create_log(store, f"shared-{n}")).id for n in range(2)]
        own = [(await create_log(store, f"own-{n}")).id for n in range(9)]
        tasks = [
            asyncio.ensure_future(
                append_until_stopped(
                    (store, other)[who % 2], own[who] if who % 3 == 1 else shared[who % 2], who, ledger, stop
                )
            )
            for who in range(9)
        ]
        for _ in range(kills):
            acknowledged = len(ledger.acked)
            while len(ledger.acked) < acknowledged + 5:
                await asyncio.sleep(0.01)
            await asyncio.sleep(rng.uniform(0, 0.1))  # the moment of the kill, not a wait for anything
            await asyncio.to_thread(server.kill)
            await asyncio.to_thread(server.start)
        stop.set()
        await asyncio.gather(*tasks)
    async with PostgresStorage(url) as found:
        rows: dict[tuple[str, str], list[tuple[int, str]]] = {}
        for context in (*shared, *own):
            for entry in await sound(found, context):
                rows.setdefault((context, entry.content), []).append((entry.version, entry.id))
        lost = [place for place, where in ledger.acked.items() if where not in rows.get(place, [])]
        assert lost == [], "acknowledged and lost"
        assert {place for place, where in rows.items() if len(where) > 1} == set(), "written twice"
        assert rows.keys() <= ledger.acked.keys() | ledger.unknown, "nobody asked for it"
        for op in ledger.keyed[-50:]:
            (again,) = await found.append([op])
            assert isinstance(again, Receipt)
            assert again.repeated
    print(f"{kills} kills: {len(ledger.acked)} acknowledged, 0 lost; {len(ledger.unknown)} unknown")


async def test_t08_sigkill_of_the_server_loses_nothing_acknowledged(mortal: Server, mortal_url: str) -> None:
    await killed_under_load(mortal, mortal_url, 1)


@pytest.mark.faults
async def test_t08_a_hundred_sigkills_of_the_server_lose_nothing_acknowledged(
    mortal: Server, mortal_url: str
) -> None:
    await killed_under_load(mortal, mortal_url, 100)


# ── T18: restarts, conflicts, limits ────────────────────────────────────────────────────────────────────────────────


async def test_t18_a_restart_between_two_calls_is_not_noticed(mortal: Server, mortal_url: str) -> None:
    """Not even by an append without a key: a connection that hung up is not used."""
    async with PostgresStorage(mortal_url) as store:
        context = await create_log(store)
        await asyncio.gather(
            *(store.head(context.id) for _ in range(20))
        )  # so that there are several connections
        for end in (mortal.stop, mortal.kill):
            await asyncio.to_thread(end)
            await asyncio.to_thread(mortal.start)
            receipts = await asyncio.gather(
                *(append_drafts(store, context, draft_message(f"m{n}")) for n in range(8))
            )
            assert len({receipt.versions for receipt in receipts}) == 8
        assert len(await sound(store, context.id)) == 16


async def test_t18_a_server_that_is_away_is_a_retryable_error_once_the_patience_ends(
    mortal: Server, mortal_url: str
) -> None:
    async with PostgresStorage(mortal_url, retry_seconds=0.3) as store:
        context = await create_log(store)
        await asyncio.to_thread(mortal.stop)
        try:
            for key in ("k", None):
                (result,) = await store.append(
                    [Append(context=context.id, drafts=(draft_message("x", key=key),))]
                )
                assert isinstance(result, StorageBusyError | StorageUnavailableError)
                assert result.retryable
                assert not isinstance(result, UnknownOutcomeError), "nothing was sent"
            with pytest.raises((StorageBusyError, StorageUnavailableError)) as caught:
                await store.head(context.id)
            assert "postgres@" not in str(caught.value)
        finally:
            await asyncio.to_thread(mortal.start)
        assert (await append_drafts(store, context, draft_message("x", key="k"))).versions == (1, 1)


async def test_t18_a_call_outlives_a_restart(mortal: Server, mortal_url: str) -> None:
    async with PostgresStorage(mortal_url, retry_seconds=120) as store:
        context = await create_log(store)
        await asyncio.to_thread(mortal.stop)
        waiting = [
            asyncio.ensure_future(append_drafts(store, context, draft_message("keyed", key="k"))),
            asyncio.ensure_future(append_drafts(store, context, draft_message("bare"))),
            asyncio.ensure_future(store.head(context.id)),
        ]
        await asyncio.sleep(0.05)
        await asyncio.to_thread(mortal.start)
        await asyncio.gather(*waiting)
        assert sorted(entry.content for entry in await sound(store, context.id)) == ["bare", "keyed"]


@asynccontextmanager
async def hold_locks(url: str, *statements: str) -> AsyncIterator[psycopg.AsyncConnection]:
    """Hold what some statements lock."""
    async with await psycopg.AsyncConnection.connect(url) as other:
        for statement in statements:
            await other.execute(statement)  # type: ignore[arg-type]
        yield other


def lock_statement(context: str) -> str:
    return f"SELECT 1 FROM acms.contexts WHERE context_id = '{context}' FOR UPDATE"  # noqa: S608


async def waits_for_a_lock(server: Databases, count: int = 1) -> None:
    """Return once some statements wait for a lock."""
    query = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
    while server.execute(query)[0][0] < count:  # type: ignore[operator]
        await asyncio.sleep(0.01)


async def test_t18_a_deadlock_is_tried_again(mortal: Server, mortal_url: str) -> None:
    async with PostgresStorage(mortal_url) as store:
        ids = sorted([(await create_log(store)).id for _ in range(2)])
        async with hold_locks(mortal_url, lock_statement(ids[1])) as other:
            ops = [Append(context=id, drafts=(draft_message("from us", key=id),)) for id in ids]
            task = asyncio.ensure_future(store.append(ops))
            await waits_for_a_lock(mortal)
            # The statement has the first one, or asks for it next: now each waits for the other.
            try:
                await other.execute(lock_statement(ids[0]))  # type: ignore[arg-type]
                await other.commit()
            except psycopg.errors.DeadlockDetected:
                await other.rollback()
            assert all(isinstance(result, Receipt) for result in await task)
        for id in ids:
            assert [entry.content for entry in await sound(store, id)] == ["from us"]


async def test_t18_a_serialisation_failure_is_tried_again(mortal: Server, mortal_url: str) -> None:
    """40001 on a server whose default is a stricter isolation than we ask for."""
    name = mortal_url.rpartition("/")[2]
    mortal.execute(f"ALTER DATABASE {name} SET default_transaction_isolation = 'repeatable read'")
    async with AsyncExitStack() as stack:
        stores = [await stack.enter_async_context(PostgresStorage(mortal_url)) for _ in range(3)]
        context = await create_log(stores[0])
        await asyncio.gather(
            *(
                append_drafts(stores[n % 3], context, draft_message(f"m{n}", key=str(n) if n % 2 else None))
                for n in range(60)
            )
        )
        assert len(await sound(stores[1], context.id)) == 60
    conflicts = mortal.execute(f"SELECT xact_rollback FROM pg_stat_database WHERE datname = '{name}'")[0][0]  # noqa: S608
    assert conflicts, "nothing was in anybody's way"


async def test_t18_a_statement_that_takes_too_long_leaves_nothing_and_works_later(
    mortal: Server, mortal_url: str
) -> None:
    async with PostgresStorage(mortal_url, statement_seconds=0.1, retry_seconds=0.4) as store:
        context, free = await create_log(store), await create_log(store)
        async with hold_locks(mortal_url, lock_statement(context.id)):
            for key in ("k", None):
                (result,) = await store.append(
                    [Append(context=context.id, drafts=(draft_message("x", key=key),))]
                )
                assert isinstance(result, StorageBusyError | StorageUnavailableError)
                assert result.retryable
                assert not isinstance(result, UnknownOutcomeError)
            with pytest.raises((StorageBusyError, StorageUnavailableError)):
                await append_drafts(
                    store, context, draft_message("y"), jobs=(JobDraft(kind="k", dedupe="d"),)
                )
            assert await store.read(context.id) == []
            await append_drafts(store, free, draft_message("z"))
        assert (await store.jobs(JobQuery())).items == ()
        assert (await append_drafts(store, context, draft_message("x", key="k"))).versions == (1, 1)
        assert len(await sound(store, context.id)) == 1


async def test_t18_a_lock_that_is_let_go_in_time_costs_only_time(mortal: Server, mortal_url: str) -> None:
    async with PostgresStorage(mortal_url, statement_seconds=0.1, retry_seconds=60) as store:
        context = await create_log(store)
        async with hold_locks(mortal_url, lock_statement(context.id)):
            task = asyncio.ensure_future(append_drafts(store, context, draft_message("x")))
            await asyncio.sleep(0.25)
            assert not task.done()
        assert (await task).versions == (1, 1)


async def test_t18_too_many_connections_are_waited_for() -> None:
    settings = {"max_connections": 5, "superuser_reserved_connections": 0, "reserved_connections": 0}
    with Server(settings=settings) as small:
        url = small.create_database()
        async with PostgresStorage(url, retry_seconds=60) as patient:
            context = await create_log(patient)
            await patient._db.pool.close()
            with ExitStack() as stack:
                taken: list[psycopg.Connection] = []
                while True:
                    try:
                        taken.append(stack.enter_context(psycopg.connect(url)))
                    except psycopg.OperationalError:
                        break
                hasty = PostgresStorage(url, retry_seconds=0.2)
                with pytest.raises((StorageBusyError, StorageUnavailableError)) as caught:
                    await hasty.head(context.id)
                assert caught.value.retryable
                tasks = [
                    asyncio.ensure_future(append_drafts(patient, context, draft_message(f"m{n}")))
                    for n in range(20)
                ]
                await asyncio.sleep(0.2)
                assert not any(task.done() for task in tasks)
                taken[0].close()
                await asyncio.gather(*tasks)  # one connection is enough
            assert len(await sound(patient, context.id)) == 20
            await hasty.aclose()


async def test_t18_backends_that_an_administrator_ends_cost_nothing(mortal: Server, mortal_url: str) -> None:
    name = mortal_url.rpartition("/")[2]
    end = f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'"  # noqa: S608
    async with PostgresStorage(mortal_url) as store:
        context = await create_log(store)
        stop = asyncio.Event()

        async def ending() -> None:
            while not stop.is_set():
                await asyncio.to_thread(mortal.execute, end)

        task = asyncio.ensure_future(ending())
        receipts = [await append_drafts(store, context, draft_message(f"m{n}", key=str(n))) for n in range(4)]
        stop.set()
        await task
        entries = await sound(store, context.id)
        assert [entry.id for entry in entries] == [receipt.ids[0] for receipt in receipts]


async def test_t18_what_no_patience_helps_is_said_at_once(mortal: Server, mortal_url: str) -> None:
    """A wrong database is a mistake in the address."""
    with pytest.raises(ConfigurationError, match="does not exist"):
        await PostgresStorage(f"{mortal_url}_not", retry_seconds=60).head("x")
    mortal.execute("CREATE ROLE stranger LOGIN")
    try:
        with pytest.raises(ConfigurationError):
            await PostgresStorage(mortal_url.replace("postgres@", "stranger@"), retry_seconds=60).head("x")
    finally:
        mortal.execute("DROP ROLE stranger")


# ── T17: the primary moves ──────────────────────────────────────────────────────────────────────────────────────────


def read_only(server: Server, on: bool) -> None:
    """Let a server refuse writes, also on connections that are open, as one that was demoted does."""
    server.execute(f"ALTER SYSTEM SET default_transaction_read_only = {'on' if on else 'off'}")
    server.execute("SELECT pg_reload_conf()")


def is_writable(server: Server) -> bool:
    with psycopg.connect(server.url(), autocommit=True) as connection:
        row = connection.execute("SHOW default_transaction_read_only").fetchone()
    return row == ("off",)


@pytest.mark.faults
async def test_t17_nothing_is_written_to_an_old_primary_and_the_pool_finds_the_new_one() -> None:
    """Two servers with the same log; the first one is demoted while its connections are open."""
    with Server() as old, Server() as young:
        ports = f"127.0.0.1:{old.port},127.0.0.1:{young.port}"
        both = f"postgresql://postgres@{ports}/postgres"
        fixed = bytes(range(256))
        async with PostgresStorage(old.url()) as one, PostgresStorage(young.url()) as two:
            context = await one.create(ContextDraft(key="s", counter="words", created_at=WHEN))

            async def nothing() -> AsyncIterator[object]:
                for _ in ():
                    yield fixed

            await two.restore(context, nothing())  # type: ignore[arg-type]
        read_only(young, True)
        async with PostgresStorage(both, retry_seconds=0.3) as store:
            await asyncio.gather(*(store.head(context.id) for _ in range(10)))
            assert (await append_drafts(store, context, draft_message("to the old one"))).versions == (1, 1)
            assert len(store._db.pool.bind().idle) > 1
            read_only(old, True)
            while is_writable(old):
                await asyncio.sleep(0.01)
            for key in ("k", None):
                (result,) = await store.append(
                    [Append(context=context.id, drafts=(draft_message("x", key=key),))]
                )
                assert isinstance(result, StorageReadOnlyError | StorageBusyError | StorageUnavailableError)
                assert result.retryable
                assert not isinstance(result, UnknownOutcomeError)
            read_only(young, False)
            while not is_writable(young):
                await asyncio.sleep(0.01)
            receipt = await append_drafts(store, context, draft_message("to the new one", key="k"))
            assert receipt.versions == (1, 1), "it never saw the message of the old one"
            receipts = await asyncio.gather(
                *(append_drafts(store, context, draft_message(f"m{n}")) for n in range(20))
            )
            assert len(receipts) == 20
        async with PostgresStorage(f"{old.url()}?target_session_attrs=any") as one:
            assert [entry.content for entry in await one.read(context.id)] == ["to the old one"]
        async with PostgresStorage(young.url()) as two:
            assert len(await sound(two, context.id)) == 21


# ── jobs ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.faults
async def test_t18_a_job_is_neither_lost_nor_done_twice_by_a_restart(mortal: Server, mortal_url: str) -> None:
    async with PostgresStorage(mortal_url, retry_seconds=120) as store:
        context = await create_log(store)
        await append_drafts(store, context, jobs=tuple(JobDraft(kind="k", dedupe=str(n)) for n in range(10)))
        leases = await store.claim(["k"], lease=MINUTE, limit=10)
        await asyncio.to_thread(mortal.kill)
        finishing = [
            asyncio.ensure_future(
                append_drafts(store, context, draft_message(lease.job.dedupe), finish=lease)
            )
            for lease in leases
        ]
        await asyncio.to_thread(mortal.start)
        await asyncio.gather(*finishing)
        assert sorted(entry.content for entry in await sound(store, context.id)) == [
            str(n) for n in range(10)
        ]
        assert {job.state for job in (await store.jobs(JobQuery())).items} == {JobState.DONE}
