"""T17, T47: a PostgreSQL server that hangs, or a network that swallows data, blocks no caller without end."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from datetime import timedelta
from typing import Any, Self

import psutil
import pytest

from acms import State, StorageBusyError
from acms.errors import StorageUnavailableError
from acms.kv import PostgresKV
from acms.model import Append, Context, ContextDraft, ContextQuery, Derived, JobQuery, Receipt, Search
from acms.storage import PostgresStorage
from acms.storage.postgres.pool import UnknownOutcomeError
from acms.testing import sound
from acms.testing.logs import WHEN, append_drafts, create_log, draft_message
from tests.servers.postgres import Databases, Server

HASTY: dict[str, Any] = {"statement_seconds": 0.2, "retry_seconds": 0.5, "pool_size": 4}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server() as server:
        yield server


@pytest.fixture
def url(server: Server) -> Iterator[str]:
    url = server.create_database()
    yield f"{url}?connect_timeout=2"
    server.drop_database(url)


@contextmanager
def suspended_server(server: Server) -> Iterator[None]:
    """Suspend every process of a server; the kernel still accepts data for them."""
    assert server.pid is not None
    postmaster = psutil.Process(server.pid)
    postmaster.suspend()
    family = postmaster.children(recursive=True)
    try:
        for process in family:
            process.suspend()
        yield
    finally:
        for process in [*family, postmaster]:
            with suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGCONT)


class Hole:
    """A wire to a server; `swallow(…)` loses what one side says on the connections there are now."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._lost: dict[int, set[str]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        #: How many connections were made.
        self.made = 0
        #: Set when something was lost.
        self.lost = asyncio.Event()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    def url(self, of: str) -> str:
        """Return the URL of a database by way of this wire."""
        return of.replace(f":{self._target}/", f":{self._server.sockets[0].getsockname()[1]}/")

    def swallow(self, side: str) -> None:
        """From now on lose what the client or the server says."""
        self.lost.clear()
        for sides in self._lost.values():
            sides.add(side)

    async def _accept(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.made += 1
        number = self.made
        self._lost[number] = set()
        server, to_server = await asyncio.open_connection("127.0.0.1", self._target)
        try:
            await asyncio.gather(
                self._carry("client", number, client, to_server),
                self._carry("server", number, server, to_client),
            )
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            to_server.transport.abort()
            to_client.transport.abort()

    async def _carry(
        self, side: str, number: int, source: asyncio.StreamReader, target: asyncio.StreamWriter
    ) -> None:
        while data := await source.read(65536):
            if side in self._lost[number]:
                self.lost.set()
            else:
                target.write(data)
                await target.drain()
        target.close()


@pytest.fixture
async def hole(server: Server) -> AsyncIterator[Hole]:
    async with Hole(server.port) as hole:
        yield hole


@asynccontextmanager
async def warm_store(url: str, **options: Any) -> AsyncIterator[PostgresStorage]:
    """Open a store, all of whose connections are open."""
    async with PostgresStorage(url) as patient:
        await patient.contexts(ContextQuery())  # makes the schema
    async with PostgresStorage(url, **{**HASTY, **options}) as store:
        size, lane = store._db.pool.size, store._db.pool.bind()
        await asyncio.gather(*(store.contexts(ContextQuery()) for _ in range(3 * size)))
        while len(lane.idle) < size:
            await asyncio.gather(*(store.contexts(ContextQuery()) for _ in range(3 * size)))
        yield store
        assert store._db.pool.bind() is lane
        async with asyncio.timeout(300):  # the last to be told may still be on its way back
            while lane.free._value < size:
                await asyncio.sleep(0.01)
        assert lane.free._value == size
        assert len(lane.idle) == len(lane.all) <= size


async def count_connections(databases: Databases, url: str, most: int) -> int:
    """Count the connections to a database, once there are no more than some: those that were closed take a moment."""
    name = url.rpartition("/")[2].partition("?")[0]
    query = f"SELECT count(*) FROM pg_stat_activity WHERE datname = '{name}'"  # noqa: S608
    async with asyncio.timeout(300):
        while (found := (await asyncio.to_thread(databases.execute, query))[0][0]) > most:
            await asyncio.sleep(0.01)
    return found


def call_every_verb(store: PostgresStorage, place: Context) -> dict[str, Any]:
    """Return every verb, called."""
    context = place.id
    return {
        "head": store.head(context),
        "context": store.context("key"),
        "contexts": store.contexts(ContextQuery()),
        "create": store.create(ContextDraft(key="other", counter="words", created_at=WHEN)),
        "settings": store.settings(context, {"a": 1}, rev=0),
        "read": store.read(context),
        "blank": store.blank(context, [1], to=State.EXPIRED, audit={}),
        "put_derived": store.put_derived(context, [Derived(version=1, space="s", data=bytes(8))]),
        "derived": store.derived(context, "s"),
        "missing": store.missing("s", limit=9),
        "search": store.search(Search(namespace="default", terms=("a",))),
        "claim": store.claim(["k"], lease=timedelta(minutes=1)),
        "jobs": store.jobs(JobQuery()),
        "feed": store.feed(),
        "append": append_drafts(store, place, draft_message("bare")),
        "keyed": append_drafts(store, place, draft_message("keyed", key="k")),
    }


async def test_t17_every_call_on_a_server_that_hangs_ends_with_a_retryable_error(
    server: Server, url: str
) -> None:
    async with warm_store(url) as store:
        context = await create_log(store, "key")
        await append_drafts(store, context, draft_message("first"))
        with suspended_server(server):
            calls = call_every_verb(store, context)
            async with asyncio.timeout(120):
                found = dict(
                    zip(calls, await asyncio.gather(*calls.values(), return_exceptions=True), strict=True)
                )
            for name, error in found.items():
                assert isinstance(error, StorageUnavailableError | StorageBusyError), name
                assert error.retryable, name
                assert error.options, name
        await append_drafts(store, context, draft_message("keyed", key="k"))
        stored = [entry.content for entry in await sound(store, context.id)]
        assert stored.count("keyed") == 1
        assert stored.count("bare") <= 1
        assert await count_connections(server, url, HASTY["pool_size"]) >= 1
    assert await count_connections(server, url, 0) == 0


async def test_t17_a_handle_on_a_server_that_hangs_is_not_opened_for_ever(server: Server, url: str) -> None:
    with suspended_server(server):
        store, values = PostgresStorage(url, **HASTY), PostgresKV(url, timeout_seconds=0.5)
        async with asyncio.timeout(120):
            for call in (store.head("x"), values.get("a")):
                with pytest.raises(StorageUnavailableError) as away:
                    await call
                assert away.value.retryable
                assert not isinstance(away.value, UnknownOutcomeError), "nothing was sent"
        await store.aclose()
        await values.aclose()
    assert await count_connections(server, url, 0) == 0


async def test_t17_many_appends_that_wait_are_told_together(server: Server, url: str) -> None:
    """Each would have to wait until patience ends; a hundred of them do not wait one after the other."""
    async with warm_store(url) as store:
        contexts = [await create_log(store) for _ in range(3)]
        with suspended_server(server):
            ops = [Append(context=contexts[n % 3].id, drafts=(draft_message(str(n)),)) for n in range(100)]
            async with asyncio.timeout(300):
                results = [result for (result,) in await asyncio.gather(*(store.append([op]) for op in ops))]
            assert all(isinstance(result, StorageUnavailableError | StorageBusyError) for result in results)
            unknown = {
                op.drafts[0].content
                for op, result in zip(ops, results, strict=True)
                if isinstance(result, UnknownOutcomeError)
            }
        stored = [entry.content for context in contexts for entry in await sound(store, context.id)]
        assert len(stored) == len(set(stored))
        assert set(stored) <= unknown, "whoever was told that nothing was sent may rely on it"


@pytest.mark.parametrize("side", ["client", "server"])
async def test_t17_what_a_connection_swallows_is_sent_again_on_another(
    server: Server, url: str, hole: Hole, side: str
) -> None:
    async with warm_store(hole.url(url), retry_seconds=20) as store:
        context = await create_log(store, "key")
        await append_drafts(store, context, draft_message("first"))
        head = await store.head(context.id)
        hole.swallow(side)
        assert await store.head(context.id) == head
        hole.swallow(side)
        receipt = await append_drafts(store, context, draft_message("keyed", key="k"))
        assert receipt.versions == (2, 2)
        hole.swallow(side)
        assert (await store.settings(context.id, {"a": 1}, rev=0)).settings_rev == 1
        await append_drafts(store, context, draft_message("seen"))  # reads, too, which webhooks there are
        hole.swallow(side)
        (result,) = await store.append([Append(context=context.id, drafts=(draft_message("bare"),))])
        assert isinstance(result, Receipt if side == "server" else UnknownOutcomeError)
        stored = [entry.content for entry in await sound(store, context.id)]
        assert stored == ["first", "keyed", "seen", *(["bare"] if side == "server" else [])]


async def test_t17_whoever_stops_waiting_is_let_go_at_once(server: Server, url: str, hole: Hole) -> None:
    """No caller waits until a hanging server confirms that it may stop: no further connection asks it to."""
    async with warm_store(hole.url(url), statement_seconds=600) as store, store.kv() as values:
        context = await create_log(store, "key")
        await values.set("a", 1)
        calls = (
            lambda: store.head(context.id),
            lambda: store.claim(["k"], lease=timedelta(minutes=1)),
            lambda: values.get("a"),
            lambda: store.blank(context.id, [1], to=State.EXPIRED, audit={}),
        )
        for call in calls:
            made = hole.made
            hole.swallow("client")
            task = asyncio.ensure_future(call())
            await hole.lost.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert hole.made == made
            assert store._db.pool.bind().free._value == store._db.pool.size
        async with store.hints(lambda: None):
            while hole.made == made:
                await asyncio.sleep(0.005)
            hole.swallow("server")
        assert hole.made == made + 1
        assert (await store.head(context.id)).version == 0
        assert (await values.get("a")).data == 1


async def test_t47_values_on_a_server_that_hangs_are_a_typed_error(server: Server, url: str) -> None:
    async with PostgresKV(url) as patient:
        await patient.set("a", 1)
    async with PostgresKV(url, timeout_seconds=0.5) as store:
        await store.get("a")
        with suspended_server(server):
            async with asyncio.timeout(300):
                for call in (store.get("a"), store.set("a", 2), store.delete("a")):
                    with pytest.raises(StorageUnavailableError) as late:
                        await call
                    assert late.value.retryable
        await store.set("b", 1)
        assert (await store.get("b")).data == 1
    assert await count_connections(server, url, 0) == 0


async def test_t17_the_kernel_notices_a_host_that_is_gone(url: str) -> None:
    async with warm_store(url) as store, store._db.pool.connection() as connection:
        with socket.socket(fileno=socket.dup(connection.fileno())) as wire:
            assert wire.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 10_000
            assert wire.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    chosen = PostgresStorage(f"{url}&tcp_user_timeout=7")
    assert "tcp_user_timeout=7" in chosen._db.pool._conninfo
