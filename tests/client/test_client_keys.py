"""The client with keys: which data it sees, which verbs are allowed, and jobs that another worker must do."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from acms import RetryConfig, SessionNotFoundError
from acms.client import Client
from acms.errors import AuthenticationError, JobFailedError, PermissionDeniedError, RateLimitError
from acms.server import Limits
from acms.server.operation import Scope
from tests.server.guarded import GUARDED, Guarded, guarded_service
from tests.server.serving import OPEN, Service, serving


@pytest.fixture(scope="module")
async def keyed() -> AsyncIterator[Guarded]:
    async with guarded_service("memory://") as running:
        yield running


async def test_a_key_opens_its_tenant_and_no_other(keyed: Guarded, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    _, ours = await keyed.app.keys.create("ours", scopes=tuple(Scope))
    _, theirs = await keyed.app.keys.create("theirs", scopes=tuple(Scope))
    async with Client(keyed.url, api_key=ours) as client, Client(keyed.url, api_key=theirs) as other:
        session = client.session("user_123")
        await session.ingest("user", "We decided on PostgreSQL.")
        (context,) = [one async for one in client.contexts()]
        assert [one async for one in other.contexts()] == []
        assert await other.session("user_123").window(100) == await other.session(context.id).window(100)
        with pytest.raises(SessionNotFoundError):
            await other.render(
                {
                    "version": "v0",
                    "id": "6f3b6f21-7a5f-4e3f-9af0-1b2c3d4e5f60",
                    "request_id": "r",
                    "intent": "?",
                    "budgets": {"tokens_max": 10, "time_ms": 1000},
                },
                [context.id],
            )
        moved = await other.restore([line async for line in client.export(session)])
        assert [one.key for one in moved] == ["user_123"]
        assert list(await other.session("user_123").window(100)) == list(await session.window(100))
    assert ours.rpartition("_")[2] not in caplog.text


async def test_a_key_is_for_what_it_is_for(keyed: Guarded) -> None:
    _, reader = await keyed.app.keys.create("ours", scopes=[Scope.READ])
    async with Client(keyed.url, api_key=reader) as client:
        session = client.session("nobody")
        assert list(await session.window(100)) == []
        with pytest.raises(PermissionDeniedError):
            await session.ingest("user", "a")
    for key in (None, "acms_0123456789abcdef_" + "0" * 43):
        async with Client(keyed.url, api_key=key) as client:
            with pytest.raises(AuthenticationError):
                await client.session("s").history()


async def test_too_much_at_a_time_says_when_to_come_back() -> None:
    slow = replace(GUARDED, limits=replace(Limits(), key_rate=0.01, key_burst=2))
    async with guarded_service("memory://", slow) as service:
        _, secret = await service.app.keys.create("t", scopes=tuple(Scope))
        once = RetryConfig(max_attempts=1)
        async with Client(service.url, api_key=secret, retry=once) as client:
            await client.session("s").ingest("user", "a")
            with pytest.raises(RateLimitError) as caught:
                await client.session("s").ingest("user", "b")
    assert caught.value.retry_after > 30


async def test_a_job_that_nobody_works_off_is_waited_for_only_so_long() -> None:
    with serving("memory://", replace(OPEN, works=False)) as service:
        async with Client(service.url) as client:
            session = client.session("s")
            await session.ingest_many([{"role": "user", "content": f"{n}"} for n in range(20)])
            job = await session.compact()
            with pytest.raises(TimeoutError):
                await session.wait(job, timeout=0.1)
            service.client.post(f"/jobs/{job.id}/cancel").raise_for_status()
            with pytest.raises(JobFailedError) as caught:
                await session.wait(job)
            assert caught.value.job_id == job.id


async def test_more_at_once_than_there_are_connections(sqlite_service: Service) -> None:
    async with Client(sqlite_service.url) as client:
        session = client.session("many")
        await asyncio.gather(*[session.ingest("user", f"{n}") for n in range(200)])
        assert (await session.get_session_stats()).messages == 200
