"""T14: a commit acknowledged by two machines is on two machines: two servers, the second in quorum commit.

pytest -m faults tests/faults/test_postgres_quorum.py      every kind of append, and a failover
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from acms import ACMS, ACMSError
from acms.model import Append, Expect, JobDraft, Receipt
from acms.storage import PostgresStorage
from acms.storage.postgres.pool import UnknownOutcomeError
from acms.testing import sound
from acms.testing.logs import append_drafts, create_log, draft_fact, draft_message
from tests.servers.postgres import Server, Standby

KINDS = [
    "keyed",
    "bare",
    "finishing without a word",
    *(
        pytest.param(kind, marks=pytest.mark.faults)
        for kind in ("expecting", "together", "citing", "finishing")
    ),
]
WAITING = "SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep' ORDER BY backend_start"


@dataclass(frozen=True)
class Pair:
    """A primary, and its standby, which has every commit that is acknowledged with durability quorum."""

    primary: Server
    standby: Standby

    def name(self, standbys: str) -> None:
        """Let commits wait for these standbys from now on."""
        self.primary.execute(f"ALTER SYSTEM SET synchronous_standby_names = '{standbys}'")
        self.primary.execute("SELECT pg_reload_conf()")
        query = "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'quorum'"
        while self.primary.execute(query) != [(int(bool(standbys)),)]:
            time.sleep(0.01)

    def waiting(self) -> set[int]:
        """Return the backends whose commits wait for the standby."""
        return {pid for (pid,) in self.primary.execute(WAITING)}

    async def waits(self, task: asyncio.Future[Any]) -> int:
        """Return a backend that waits, once there is one; its client must not be answered before."""
        while not (found := self.waiting()):
            assert not task.done(), task.result()
            await asyncio.sleep(0.01)
        return min(found)


@contextmanager
def pair_of_servers() -> Generator[Pair]:
    with Server(fsync=True) as primary, Standby(primary) as standby:
        pair = Pair(primary, standby)
        pair.name("ANY 1 (standby)")
        yield pair


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    with pair_of_servers() as pair:
        yield pair


@pytest.fixture
async def url(pair: Pair) -> AsyncIterator[str]:
    url = pair.primary.create_database()
    yield url
    pair.primary.drop_database(url)


async def append_ops(store: PostgresStorage, *ops: Append) -> list[Receipt | ACMSError]:
    return await store.append(ops)


async def operations_of_kind(store: PostgresStorage, kind: str) -> list[Append]:
    """Return what to append so that a lost commit is looked for in a certain way."""
    context = await create_log(store)
    first = await append_drafts(
        store, context, draft_message("first"), jobs=(JobDraft(kind="k", dedupe=context.id),)
    )
    if kind == "together":
        return [Append(context=context.id, drafts=(draft_message(key, key=key),), tail={}) for key in "abc"]
    if kind == "keyed":
        return [Append(context=context.id, drafts=(draft_message("x", key="k"),))]
    if kind == "expecting":
        return [Append(context=context.id, drafts=(draft_message("x"),), expect=Expect(version=1))]
    if kind == "bare":
        return [Append(context=context.id, drafts=(draft_message("x"),))]
    if kind == "citing":
        return [Append(context=context.id, drafts=(draft_fact("x", sources=first.ids, key="k"),))]
    (lease,) = await store.claim(["k"], lease=timedelta(minutes=1))
    drafts = () if kind == "finishing without a word" else (draft_fact("x"),)
    return [Append(context=context.id, drafts=drafts, finish=lease)]


async def test_a_record_waits_for_no_standby(pair: Pair, url: str) -> None:
    async with PostgresStorage(url, durability="quorum") as store:
        context = await create_log(store)
        with pair.standby.deaf():
            for rev in range(2):
                record = await asyncio.wait_for(store.put_record(context.id, "a", {"n": rev}, rev=rev), 60)
            assert await store.record(context.id, "a") == record
        assert (await append_drafts(store, context, draft_message("x"))).durability == "quorum"


@pytest.mark.parametrize("end", ["terminate", pytest.param("cancel", marks=pytest.mark.faults)])
@pytest.mark.parametrize("kind", KINDS)
async def test_t14_a_commit_whose_wait_was_broken_off_is_confirmed_by_another_one(
    pair: Pair, url: str, kind: str, end: str
) -> None:
    """It can be read on the primary, and is lost with it: it was never acknowledged as on a second machine."""
    # Of a cancelled wait the server only warns: also where nobody wants to hear of warnings.
    pair.primary.execute(f"ALTER DATABASE {url.rpartition('/')[2]} SET client_min_messages = 'error'")
    async with PostgresStorage(url, durability="quorum") as store:
        ops = await operations_of_kind(store, kind)
        with pair.standby.deaf():
            task = asyncio.ensure_future(append_ops(store, *ops))
            first = await pair.waits(task)
            pair.primary.execute(f"SELECT pg_{end}_backend({first})")
            while first in pair.waiting():
                await asyncio.sleep(0.01)
            await pair.waits(task)
            await asyncio.sleep(0.1)
            assert not task.done()
        receipts = await task
    for receipt in receipts:
        assert isinstance(receipt, Receipt)
        assert receipt.durability == "quorum"
    async with PostgresStorage(url) as found:
        entries = await sound(found, ops[0].context)
        assert len(entries) == 1 + sum(len(op.drafts) for op in ops), "written twice, or not at all"


@pytest.mark.parametrize(
    "end", ["cancel", *(pytest.param(end, marks=pytest.mark.faults) for end in ("terminate", None))]
)
async def test_t14_what_no_standby_confirms_is_not_acknowledged(
    pair: Pair, url: str, end: str | None
) -> None:
    async with (
        PostgresStorage(url, durability="quorum") as patient,
        PostgresStorage(url, durability="quorum", retry_seconds=0.3, statement_seconds=0.3) as store,
    ):
        ops = [*await operations_of_kind(patient, "keyed"), *await operations_of_kind(patient, "bare")]
        with pair.standby.deaf():
            task = asyncio.ensure_future(append_ops(store, *ops))
            while not task.done():
                for pid in pair.waiting():
                    if end is not None:
                        pair.primary.execute(f"SELECT pg_{end}_backend({pid})")
                await asyncio.sleep(0.01)
            for result in task.result():
                assert isinstance(result, UnknownOutcomeError)
                assert result.retryable
                assert "not known" in str(result)
        (again, _) = await append_ops(patient, *ops)
        assert isinstance(again, Receipt)
        assert again.durability == "quorum"


@pytest.mark.parametrize("key", [None, "k"])
async def test_t14_a_message_of_a_session_is_not_written_twice(pair: Pair, url: str, key: str | None) -> None:
    """An append that is on the primary only is behind the head that a session would take for its next try."""
    async with (
        PostgresStorage(url, durability="quorum", retry_seconds=0.3, statement_seconds=0.3) as store,
        ACMS("s", store) as session,
    ):
        await session.ingest("user", "first")
        with pair.standby.deaf():
            task = asyncio.ensure_future(session.ingest("user", "second", idempotency_key=key))
            pair.primary.execute(f"SELECT pg_terminate_backend({await pair.waits(task)})")
            await asyncio.sleep(2.5)
        if key is None:
            with pytest.raises(UnknownOutcomeError):
                await task
        else:
            await asyncio.wait([task])  # its tries may end before a standby answers
            await session.ingest("user", "second", idempotency_key=key)
        history = await session.history()
        assert [entry.preview for entry in history.entries] == ["first", "second"]


async def test_t14_a_repetition_is_acknowledged_with_what_it_survives(pair: Pair, url: str) -> None:
    """The first writer did not wait for a standby; the one that repeats it does."""
    async with PostgresStorage(url, durability="disk") as local, PostgresStorage(url) as store:
        assert store.durability == "quorum"
        context = await create_log(store)
        ops = [
            Append(context=context.id, drafts=(draft_message("x", key="k"),)),
            Append(context=context.id, drafts=(draft_fact("y", sources=("m_0_0_x",), key="l"),)),
        ]
        with pair.standby.deaf():
            for op in ops:
                for again in (False, True):
                    (receipt,) = await append_ops(local, op)
                    assert isinstance(receipt, Receipt)
                    assert (receipt.durability, receipt.repeated) == ("disk", again)
            tasks: list[asyncio.Future[list[Receipt | ACMSError]]] = []
            for op in ops:
                tasks.append(asyncio.ensure_future(append_ops(store, op)))
                await pair.waits(tasks[0])
            await asyncio.sleep(0.1)
            assert not any(task.done() for task in tasks)
        for task in tasks:
            (receipt,) = await task
            assert isinstance(receipt, Receipt)
            assert (receipt.durability, receipt.repeated) == ("quorum", True)


async def test_t14_standbys_that_are_given_up_are_not_promised(pair: Pair, url: str) -> None:
    """A waiting commit is released without a word when no standby is named any more."""
    async with PostgresStorage(url) as store:
        context = await create_log(store)
        assert (await append_drafts(store, context, draft_message("on both"))).durability == "quorum"
        try:
            with pair.standby.deaf():
                task = asyncio.ensure_future(append_drafts(store, context, draft_message("waits")))
                await pair.waits(task)
                pair.name("")
                assert (await task).durability == "disk"
                assert (await append_drafts(store, context, draft_message("on one"))).durability == "disk"
        finally:
            pair.name("ANY 1 (standby)")
        assert (await append_drafts(store, context, draft_message("on both again"))).durability == "quorum"


@pytest.mark.faults
@pytest.mark.parametrize("end", ["terminate", "restart"])
async def test_t14_a_failover_loses_nothing_acknowledged(end: str) -> None:
    """The standby never gets the commit and becomes the primary: there the append is sent again."""
    with pair_of_servers() as pair:
        old, young = pair.primary, pair.standby
        database = old.create_database().rpartition("/")[2]
        ports = f"127.0.0.1:{old.port},127.0.0.1:{young.port}"
        both = f"postgresql://postgres@{ports}/{database}?target_session_attrs=read-write"
        async with PostgresStorage(both, durability="quorum", retry_seconds=120) as store:
            context = await create_log(store)
            assert (
                await append_drafts(store, context, draft_message("first", key="0"))
            ).durability == "quorum"
            with young.deaf():
                task = asyncio.ensure_future(append_drafts(store, context, draft_message("second", key="1")))
                first = await pair.waits(task)
                if end == "terminate":
                    old.execute(f"SELECT pg_terminate_backend({first})")
                    while first in pair.waiting():
                        await asyncio.sleep(0.01)
                else:
                    await asyncio.to_thread(old.kill)
                    await asyncio.to_thread(old.start)
                await pair.waits(task)
                await asyncio.to_thread(old.kill)
            young.execute("SELECT pg_promote()")
            receipt = await task
            # The new primary has no standby yet, and says so.
            assert (receipt.versions, receipt.durability, receipt.repeated) == ((2, 2), "disk", False)
            assert [entry.content for entry in await sound(store, context.id)] == ["first", "second"]
