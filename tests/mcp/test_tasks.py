"""Compaction and reflection as tasks, by the SDK's client with the extension, in this process and at a service."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any, Literal

import anyio
import httpx2
import pytest
from mcp.client.client import Client
from mcp.client.extension import ClientExtension, ResultClaim, advertise
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError
from mcp_types import CallToolRequest, CallToolRequestParams, CallToolResult, Request, RequestParams, Result

from acms import ACMS, ACMSConfig, JobState, WorkerConfig
from acms.jobs import requests
from acms.mcp import mount_mcp
from acms.mcp.memory import Local
from acms.mcp.server import build_mcp_server
from acms.mcp.tasks import EXTENSION
from acms.ports import StorageBackend
from acms.server import ServerConfig, create_app
from tests.mcp.conftest import error_of_result


class Created(Result):
    """What a call answers that goes on as a task."""

    result_type: Literal["task"]
    task_id: str
    status: str
    status_message: str
    poll_interval_ms: int


class About(RequestParams):
    task_id: str


class Asked(Request[About, str]):
    name_param = "taskId"


class Told(Result):
    """A task, or nothing."""

    status: str | None = None
    result: CallToolResult | None = None


class Tasks(ClientExtension):
    """Polls until a task has ended."""

    identifier = EXTENSION

    def __init__(self) -> None:
        self.created: list[Created] = []

    def claims(self) -> list[ResultClaim[Any]]:
        return [ResultClaim(result_type="task", model=Created, resolve=self._resolve)]

    async def _resolve(self, created: Created, context: Any) -> CallToolResult:
        self.created.append(created)
        with anyio.fail_after(60):
            while (found := await ask_task(context.session, "get", created.task_id)).status == "working":
                await anyio.sleep(0.02)
        assert found.result is not None, found
        return found.result


async def ask_task(session: Any, what: str, task: str) -> Told:
    given = Asked(method=f"tasks/{what}", params=About(task_id=task))
    return await session.send_request(given, Told)


@pytest.fixture
async def session() -> AsyncIterator[ACMS]:
    async with ACMS("one", "memory://", None, namespace="team") as made:
        yield made


def local_client(session: ACMS, *extensions: Any, mode: str = "auto") -> Client:
    return Client(build_mcp_server(lambda _: Local(session)), mode=mode, extensions=extensions)


async def test_a_reflection_is_a_task_and_its_facts_are_there_when_it_has_ended(session: ACMS) -> None:
    tasks = Tasks()
    async with local_client(session, tasks) as client:
        said = {"text": "Decision: the office is in Lyon.", "origin": "user", "then": "reflect"}
        done = await client.call_tool("remember", said)
        assert not done.is_error, done
        assert done.structured_content["job"] == {
            "id": tasks.created[0].task_id,
            "kind": "reflect",
            "state": "done",
        }
        assert tasks.created[0].status == "working"
        stored = (await session.entries())[0]
        assert stored.id in tasks.created[0].status_message
        assert "Lyon" in str((await client.call_tool("facts", {})).structured_content)


async def test_a_compaction_is_a_task_that_tells_what_it_made_or_why_not(session: ACMS) -> None:
    for number in range(60):
        await session.ingest("user", f"The build {number} took a while, as builds of the shop do. " * 20)
    async with local_client(session, Tasks()) as client:
        done = await client.call_tool("remember", {"text": "We go on tomorrow.", "then": "compact"})
        (made,) = await session.compactions()
        assert done.structured_content["compaction"]["id"] == made.id
        assert done.structured_content["compaction"]["summary"] == made.summary
        again = await client.call_tool("remember", {"text": "Good night.", "then": "compact"})
        assert again.structured_content["job"]["reason"]
        assert "compaction" not in again.structured_content


async def test_a_task_that_is_given_up_or_fails_says_so(
    session: ACMS, monkeypatch: pytest.MonkeyPatch
) -> None:
    await session.ingest("user", "Hello.")
    job = await session.compact()
    found = job

    async def current(_: Any, id: str) -> Any:
        return found

    async with local_client(session, Tasks()) as client:
        await session.wait(job)
        assert (await ask_task(client.session, "cancel", job.id)).status is None, (
            "one that has ended stays as it is"
        )
        assert (await ask_task(client.session, "get", job.id)).status == "completed"
        assert (await ask_task(client.session, "update", job.id)).status is None
        monkeypatch.setattr("acms.compaction.job.read_current_job", current)
        found = replace(job, state=JobState.CANCELLED, error="cancelled by hand")
        assert (await ask_task(client.session, "get", job.id)).status == "cancelled"
        found = replace(job, state=JobState.FAILED, error="the model is down")
        told = await ask_task(client.session, "get", job.id)
        assert told.status == "completed"
        assert "the model is down" in error_of_result(told.result, "JOB_FAILED")["message"]


async def test_a_task_that_waits_is_given_up(storage: StorageBackend) -> None:
    idle = ACMSConfig(worker=WorkerConfig(enabled=False))
    async with ACMS("one", storage, None, config=idle) as session:
        await session.ingest("user", "Hello.")
        job = await session.compact()
        async with local_client(session, Tasks()) as client:
            assert (await ask_task(client.session, "get", job.id)).status == "working"
            await ask_task(client.session, "cancel", job.id)
            assert (await requests.get_job_by_id(session.storage, job.id)).state is JobState.CANCELLED
            assert (await ask_task(client.session, "get", job.id)).status == "cancelled"


async def test_a_task_that_waits_is_given_up_at_a_service() -> None:
    app = mount_mcp(create_app("memory://", ServerConfig(auth="off", works=False)))
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app)) as network:
        where = streamable_http_client("http://localhost/mcp/team/one", http_client=network)
        async with Client(where, extensions=[advertise(EXTENSION)]) as client:
            said = CallToolRequestParams(name="remember", arguments={"text": "Hello.", "then": "compact"})
            made = await client.session.send_request(CallToolRequest(params=said), Created)
            await ask_task(client.session, "cancel", made.task_id)
            assert (await ask_task(client.session, "get", made.task_id)).status == "cancelled"
    await app.stop()


async def test_a_client_without_the_extension_is_told_of_the_job(session: ACMS) -> None:
    for mode in ("auto", "legacy"):
        async with local_client(session, mode=mode) as client:
            said = {"text": f"My name is Ada, {mode}.", "origin": "user", "then": "reflect"}
            made = (await client.call_tool("remember", said)).structured_content
            assert made["job"]["kind"] == "reflect"
            assert (
                await requests.get_job_by_id(session.storage, made["job"]["id"])
            ).context == await session.context_id()
            with pytest.raises(MCPError) as refused:
                await ask_task(client.session, "get", made["job"]["id"])
            assert refused.value.error.code == -32021
            assert EXTENSION in refused.value.error.data["requiredCapabilities"]["extensions"]


async def test_a_task_belongs_to_its_session_also_at_a_service() -> None:
    app = mount_mcp(create_app("memory://", ServerConfig(auth="off")))
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app)) as network:

        def at(session: str, *extensions: Any) -> Client:
            where = streamable_http_client(f"http://localhost/mcp/team/{session}", http_client=network)
            return Client(where, extensions=extensions)

        tasks = Tasks()
        async with at("one", tasks) as client:
            assert EXTENSION in (client.server_capabilities.extensions or {})
            said = {"text": "My name is Ada. I live in Lyon.", "origin": "user", "then": "reflect"}
            done = await client.call_tool("remember", said)
            assert done.structured_content["job"]["state"] == "done"
            id = tasks.created[0].task_id
            assert (await ask_task(client.session, "cancel", id)).status is None
        async with at("two", advertise(EXTENSION)) as other:
            await other.call_tool("remember", {"text": "Hello."})
            for what in ("get", "update", "cancel"):
                with pytest.raises(MCPError) as refused:
                    await ask_task(other.session, what, id)
                assert refused.value.error.code == -32602
    await app.stop()
