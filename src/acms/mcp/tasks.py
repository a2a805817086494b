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
from acms.mcp.failures import answered, failed
from acms.mcp.memory import Memory
from acms.model import UNFINISHED, Job, JobState, Json
from acms.nouns import write

__all__ = [
    "EXTENSION",
    "TaskParams",
    "begin",
    "cancel",
    "created",
    "declared",
    "job_of",
    "required",
    "status",
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


def declared(context: Context) -> bool:
    """Return whether a client takes a task for an answer."""
    capabilities = context.session.client_capabilities
    known = (capabilities and capabilities.extensions) or {}
    return context.protocol_version in MODERN_PROTOCOL_VERSIONS and EXTENSION in known


def required(context: Context) -> None:
    """Refuse a client that did not declare the extension, as the extension asks for."""
    if not declared(context):
        wanted = MissingRequiredClientCapabilityErrorData(
            required_capabilities=ClientCapabilities(extensions={EXTENSION: {}})
        )
        data = wanted.model_dump(by_alias=True, mode="json", exclude_none=True)
        raise MCPError(MISSING_REQUIRED_CLIENT_CAPABILITY, f"declare the extension {EXTENSION}", data)


async def begin(memory: Memory, what: str) -> Job:
    """Ask for a reflection on all that was said, or for a compaction."""
    if what == "compact":
        return await memory.session.compact()
    await memory.session.close_episode()
    return await memory.session.reflect()


def job_of(job: Job) -> dict[str, Json]:
    """Return what a client is told of a job."""
    told = {"id": job.id, "kind": job.kind.partition(":")[0], "state": job.state.value}
    return {**told, **{name: text for name in ("error", "reason") if (text := getattr(job, name))}}


async def created(memory: Memory, found: Mapping[str, Json]) -> dict[str, Json] | None:
    """Return what a call answers that goes on as a task, the job of its result; None when that has ended."""
    task = await status(memory, found["job"]["id"])
    said = f"The text was stored as {found['id']}. To {found['job']['kind']} takes a while."
    return {**task, "resultType": "task", "statusMessage": said} if task["status"] == "working" else None


async def status(memory: Memory, id: str) -> dict[str, Json]:
    """Return how a task stands, and what came of it once it has ended; `NotFoundError` for none of this session."""
    job = await _job(memory, id)
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
        result = answered({"job": job_of(job), **({} if made is None else {"compaction": write(made)})})
    except JobFailedError as error:
        result = failed(error)
    return {**task, "result": result.model_dump(by_alias=True, mode="json", exclude_none=True)}


async def cancel(memory: Memory, id: str) -> None:
    """Give a task up, unless it has ended."""
    job = await _job(memory, id)
    with suppress(ConflictError):
        await memory.cancel(job.id)


async def _job(memory: Memory, id: str) -> Job:
    try:
        return await memory.session.job(id)
    except (GoneError, NotFoundError) as error:
        raise NotFoundError(f"no task has the id {id[:64]!r}", options=("call the tool again",)) from error
