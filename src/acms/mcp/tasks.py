"""Compaction and reflection as tasks: the extension `io.modelcontextprotocol/tasks` over the jobs of a session.

A task is a job, under the job's id: it is durable, and any process can answer for it. The SDK (2.3) has no runtime for
the extension, but lets a server add methods, and passes on results of unknown types. Only in the revision of
2026-07-28: the earlier one had tasks of another form, which the SDK omits.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, TypeAlias

from mcp.server.context import ServerRequestContext
from mcp.shared.exceptions import MCPError
from mcp_types import (
    MISSING_REQUIRED_CLIENT_CAPABILITY,
    ClientCapabilities,
    MissingRequiredClientCapabilityErrorData,
    RequestParams,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from acms.errors import ConflictError, GoneError, JobFailedError, NotFoundError
from acms.mcp.failures import build_error_result, build_tool_result
from acms.mcp.memory import Memory
from acms.model import UNFINISHED, Job, JobState, Json
from acms.nouns import encode_noun

__all__ = [
    "EXTENSION",
    "TaskParams",
    "build_task_reply",
    "cancel_task_job",
    "describe_job",
    "read_task_status",
    "require_task_support",
    "start_memory_job",
    "supports_tasks",
]

EXTENSION = "io.modelcontextprotocol/tasks"
POLL_MS = 1_000
"""Milliseconds between two requests for the state of a task, as the client should send them."""

Context: TypeAlias = ServerRequestContext[Any, Any]


class TaskParams(RequestParams):
    """The parameters of `tasks/get`, `tasks/update` and `tasks/cancel`; answers to questions are ignored."""

    task_id: str


def supports_tasks(context: Context) -> bool:
    """Return whether a client accepts a task as a result."""
    capabilities = context.session.client_capabilities
    extensions = (capabilities and capabilities.extensions) or {}
    return context.protocol_version in MODERN_PROTOCOL_VERSIONS and EXTENSION in extensions


def require_task_support(context: Context) -> None:
    """Refuse a client that did not declare the extension, as the extension asks for."""
    if not supports_tasks(context):
        missing_capability = MissingRequiredClientCapabilityErrorData(
            required_capabilities=ClientCapabilities(extensions={EXTENSION: {}})
        )
        data = missing_capability.model_dump(by_alias=True, mode="json", exclude_none=True)
        raise MCPError(MISSING_REQUIRED_CLIENT_CAPABILITY, f"declare the extension {EXTENSION}", data)


async def start_memory_job(memory: Memory, kind: str) -> Job:
    """Request a compaction or a reflection."""
    if kind == "compact":
        return await memory.session.compact()
    await memory.session.close_episode()  # a reflection reads closed episodes only
    return await memory.session.reflect()


def describe_job(job: Job) -> dict[str, Json]:
    """Return the description of a job for a client."""
    described: dict[str, Json] = {"id": job.id, "kind": job.kind.partition(":")[0], "state": job.state.value}
    if job.error:
        described["error"] = job.error
    if job.reason:
        described["reason"] = job.reason
    return described


async def build_task_reply(memory: Memory, reply: Mapping[str, Json]) -> dict[str, Json] | None:
    """Return the reply of a call that continues as the task of its job, or None if the job has ended."""
    job = reply["job"]
    task = await read_task_status(memory, job["id"])
    if task["status"] != "working":
        return None
    message = f"The text was stored as {reply['id']}. To {job['kind']} takes a while."
    return {**task, "resultType": "task", "statusMessage": message}


async def read_task_status(memory: Memory, id: str) -> dict[str, Json]:
    """Return the state of a task, with its result if it has ended; `NotFoundError` if the session has no such task."""
    job = await _find_task_job(memory, id)
    unfinished = job.state in UNFINISHED
    task: dict[str, Json] = {
        "taskId": job.id,
        "status": "working" if unfinished else "completed",
        "createdAt": job.created_at.isoformat(),
        "lastUpdatedAt": job.updated_at.isoformat(),
        "ttlMs": None,
        "pollIntervalMs": POLL_MS,
    }
    if job.state is JobState.CANCELLED:
        return {**task, "status": "cancelled", "statusMessage": job.error or "cancelled"}
    if unfinished:
        return task
    try:
        compaction = await memory.session.wait(job, timeout=10.0)  # it has ended: this reads its result
        outcome: dict[str, Json] = {"job": describe_job(job)}
        if compaction is not None:
            outcome["compaction"] = encode_noun(compaction)
        result = build_tool_result(outcome)
    except JobFailedError as error:
        result = build_error_result(error)
    return {**task, "result": result.model_dump(by_alias=True, mode="json", exclude_none=True)}


async def cancel_task_job(memory: Memory, id: str) -> None:
    """Cancel a task, unless it has ended."""
    job = await _find_task_job(memory, id)
    with suppress(ConflictError):
        await memory.cancel(job.id)


async def _find_task_job(memory: Memory, id: str) -> Job:
    try:
        return await memory.session.job(id)
    except (GoneError, NotFoundError) as error:
        raise NotFoundError(f"no task has the id {id[:64]!r}", options=("call the tool again",)) from error
