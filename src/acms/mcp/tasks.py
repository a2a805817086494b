"""Compaction and reflection as tasks: the extension `io.modelcontextprotocol/tasks` over the jobs of a session.

A task is a job, under the job's id: it is durable, any process answers for it, and nothing is kept of it here. The SDK
(2.3) has no runtime for the extension; it lets a server add methods, and passes on results of a type that it does not
know. Only in the revision of 2026-07-28: the earlier one had tasks of another form, which the SDK leaves out.
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
    "job_of",
    "read_task_status",
    "require_task_support",
    "start_memory_job",
    "supports_tasks",
]

EXTENSION = "io.modelcontextprotocol/tasks"
POLL_MS = 1_000
"""How often a client should ask how a task stands."""
_ENDED = 10.0
"""Seconds at most to read what a job made that has ended."""

Context: TypeAlias = ServerRequestContext[Any, Any]


class TaskParams(RequestParams):
    """The parameters of `tasks/get`, `tasks/update` and `tasks/cancel`; answers to questions are read by nobody."""

    task_id: str


def supports_tasks(context: Context) -> bool:
    """Return whether a client takes a task for an answer."""
    capabilities = context.session.client_capabilities
    known = (capabilities and capabilities.extensions) or {}
    return context.protocol_version in MODERN_PROTOCOL_VERSIONS and EXTENSION in known


def require_task_support(context: Context) -> None:
    """Refuse a client that did not declare the extension, as the extension asks for."""
    if not supports_tasks(context):
        wanted = MissingRequiredClientCapabilityErrorData(
            required_capabilities=ClientCapabilities(extensions={EXTENSION: {}})
        )
        data = wanted.model_dump(by_alias=True, mode="json", exclude_none=True)
        raise MCPError(MISSING_REQUIRED_CLIENT_CAPABILITY, f"declare the extension {EXTENSION}", data)


async def start_memory_job(memory: Memory, what: str) -> Job:
    """Ask for a reflection on all that was said, or for a compaction."""
    if what == "compact":
        return await memory.session.compact()
    await memory.session.close_episode()
    return await memory.session.reflect()


def job_of(job: Job) -> dict[str, Json]:
    """Return what a client is told of a job."""
    told = {"id": job.id, "kind": job.kind.partition(":")[0], "state": job.state.value}
    return {**told, **{name: text for name in ("error", "reason") if (text := getattr(job, name))}}


async def build_task_reply(memory: Memory, found: Mapping[str, Json]) -> dict[str, Json] | None:
    """Return what a call answers that goes on as a task, the job of its result; None when that has ended."""
    task = await read_task_status(memory, found["job"]["id"])
    said = f"The text was stored as {found['id']}. To {found['job']['kind']} takes a while."
    return {**task, "resultType": "task", "statusMessage": said} if task["status"] == "working" else None


async def read_task_status(memory: Memory, id: str) -> dict[str, Json]:
    """Return how a task stands, and what came of it once it has ended; `NotFoundError` for none of this session."""
    job = await _find_task_job(memory, id)
    task: dict[str, Json] = {
        "taskId": job.id,
        "status": "working" if job.state in UNFINISHED else "completed",
        "createdAt": job.created_at.isoformat(),
        "lastUpdatedAt": job.updated_at.isoformat(),
        "ttlMs": None,
        "pollIntervalMs": POLL_MS,
    }
    if job.state is JobState.CANCELLED:
        return {**task, "status": "cancelled", "statusMessage": job.error or "cancelled"}
    if job.state in UNFINISHED:
        return task
    try:
        made = await memory.session.wait(job, timeout=_ENDED)
        result = build_tool_result(
            {"job": job_of(job), **({} if made is None else {"compaction": encode_noun(made)})}
        )
    except JobFailedError as error:
        result = build_error_result(error)
    return {**task, "result": result.model_dump(by_alias=True, mode="json", exclude_none=True)}


async def cancel_task_job(memory: Memory, id: str) -> None:
    """Give a task up, unless it has ended."""
    job = await _find_task_job(memory, id)
    with suppress(ConflictError):
        await memory.cancel(job.id)


async def _find_task_job(memory: Memory, id: str) -> Job:
    try:
        return await memory.session.job(id)
    except (GoneError, NotFoundError) as error:
        raise NotFoundError(f"no task has the id {id[:64]!r}", options=("call the tool again",)) from error
