"""Jobs over HTTP: how work that is done later stands, trying it again, giving it up."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field
from pydantic.alias_generators import to_camel

from acms.compaction import job as compaction
from acms.errors import NotFoundError, SessionNotFoundError
from acms.jobs import requests
from acms.jobs.requests import COMPACT
from acms.model import Job, JobQuery, JobState, Json
from acms.results import Compaction
from acms.server.operation import BASE, Call, Operations, Query, Reply, Scope, Shape
from acms.server.tenants import OWN, Tenant
from acms.server.wire import instant
from acms.session import ACMS

__all__ = ["CompactionShape", "JobShape", "OneJob", "asked", "compaction_json", "job_json", "operations"]

operations = Operations("jobs")

_PATH = "/jobs/{job_id}"
_WAIT = re.compile(r"wait=(\d{1,6})", re.IGNORECASE)
_MARGIN = 1.0
"""Seconds before the deadline of a request that its waiting ends."""


class JobShape(Shape):
    """Work done later by a worker."""

    id: str
    #: What is done, and behind a colon the model that does it: compact, reflect, embed, expire, collect, adopt.
    kind: str
    context_id: str
    state: Literal["ready", "running", "done", "failed", "cancelled"]
    #: Rises with every attempt.
    attempt: int
    error: str | None
    #: When it is due.
    not_before: str
    created_at: str
    updated_at: str


class LostShape(Shape):
    """What of a stretch of the log its summary does not say; the log still has it."""

    #: How many of each kind: a kind of detail, "instruction", "marked" or "question"; none of 0.
    counts: dict[str, int]
    #: Ids of messages it stood in, up to ten.
    ids: list[str]


class CompactionShape(Shape):
    """A summary that stands, or stood, for a stretch of the log."""

    version: int
    id: str
    summary: str
    #: First and last version of what it stands for; `spans` says which between them.
    replaces: tuple[int, int]
    spans: list[tuple[int, int]]
    #: Tokens in force before and after it.
    tokens_before: int
    tokens_after: int
    #: Messages that stayed as they were, and entries that it stands for.
    preserved: int
    removed: int
    #: The policy it was made under.
    policy: dict[str, float | int | bool | None]
    summarizer: str
    lost: LostShape
    created_at: str
    #: False when it was undone, or a later summary stands for it too.
    in_force: bool


class OneJob(Shape):
    """A job."""

    data: JobShape


class EndedJob(JobShape):
    """A job, and what came of it."""

    #: What a compaction made; null while it is not done, when nothing was worth it, and of other jobs.
    compaction: CompactionShape | None


class OneEnded(Shape):
    """A job, and what came of it."""

    data: EndedJob


class ManyJobs(Shape):
    """A page of jobs, newest first."""

    data: list[JobShape]
    next_cursor: str | None
    has_more: bool


class ListJobs(Query):
    """Which jobs to list."""

    context_id: str | None = None
    state: Literal["ready", "running", "done", "failed", "cancelled"] | None = None
    cursor: str | None = None
    limit: Annotated[int, Field(ge=1, le=500)] = 50


def job_json(job: Job) -> dict[str, Json]:
    """Write a job; what it is about stays inside."""
    return {
        "id": job.id,
        "kind": job.kind,
        "contextId": job.context,
        "state": job.state,
        "attempt": job.attempt,
        "error": job.error,
        "notBefore": instant(job.not_before),
        "createdAt": instant(job.created_at),
        "updatedAt": instant(job.updated_at),
    }


def compaction_json(found: Compaction) -> dict[str, Json]:
    """Write a compaction."""
    return {
        "version": found.version,
        "id": found.id,
        "summary": found.summary,
        "replaces": list(found.replaces),
        "spans": [list(span) for span in found.spans],
        "tokensBefore": found.tokens_before,
        "tokensAfter": found.tokens_after,
        "preserved": found.preserved,
        "removed": found.removed,
        "policy": {to_camel(name): value for name, value in found.policy.items()},
        "summarizer": found.summarizer,
        "lost": {"counts": dict(found.lost.counts), "ids": list(found.lost.ids)},
        "createdAt": instant(found.created_at),
        "inForce": found.in_force,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A job that was asked for, and what came of it while it was waited for."""

    job: Job
    ended: bool
    compaction: Compaction | None
    #: Where to ask after it.
    headers: Mapping[str, str]


async def asked(call: Call[Any, Any], session: ACMS, job: Job) -> Asked:
    """Wait for a job as long as the request prefers to, and within its deadline; `JobFailedError` when it failed."""
    headers = {"Location": f"{BASE}/jobs/{job.id}"}
    seconds = _preferred(call.headers.get("prefer", ""))
    ended, made = False, None
    if seconds is not None:
        headers["Preference-Applied"] = f"wait={seconds}"
        most = max(0.0, call.config.limits.deadline_seconds - _MARGIN)
        try:
            made = await session.wait(job, timeout=min(float(seconds), most))
            ended = True
        except TimeoutError:
            pass
        job = (await call.tenant.handle.jobs(JobQuery(ids=(job.id,)))).items[0]
    if not ended:
        headers["Retry-After"] = "1"
    return Asked(job=job, ended=ended, compaction=made, headers=headers)


def _preferred(prefer: str) -> int | None:
    """Return the seconds that a caller would wait; a preference that is not understood is none (RFC 7240)."""
    for one in re.split("[,;]", prefer):
        found = _WAIT.fullmatch(one.strip())
        if found:
            return int(found[1])
    return None


async def visible(tenant: Tenant, found: Iterable[Job]) -> list[Job]:
    """Return the jobs that are none of the service's own."""
    hidden: dict[str, bool] = {}
    jobs = list(found)
    for id in {job.context for job in jobs}:
        try:
            hidden[id] = (await tenant.handle.context(id)).namespace == OWN
        except SessionNotFoundError:  # a job may outlive what it was about
            hidden[id] = False
    return [job for job in jobs if not hidden[job.context]]


async def _job(tenant: Tenant, id: str) -> Job:
    found = await visible(tenant, (await tenant.handle.jobs(JobQuery(ids=(id,)))).items)
    if not found:
        raise NotFoundError(f"no job has the id {id!r}", options=("GET /api/v1/jobs lists them",))
    return found[0]


@operations("GET", "/jobs", scope=Scope.READ, query=ListJobs, reply=ManyJobs)
async def list_jobs(call: Call[ListJobs, None]) -> Reply:
    """List jobs, newest first.

    `contextId` and `state` choose; pass `nextCursor` as `cursor` for the next page.
    """
    query, tenant = call.query, call.tenant
    if query.context_id is not None:
        await tenant.context(query.context_id)
    page = await tenant.handle.jobs(
        JobQuery(
            context=query.context_id,
            states=(JobState(query.state),) if query.state else (),
            after=query.cursor,
            limit=query.limit,
        )
    )
    data = [job_json(job) for job in await visible(tenant, page.items)]
    after = page.next_after
    return Reply(body={"data": data, "nextCursor": after, "hasMore": after is not None})


@operations("GET", _PATH, scope=Scope.READ, reply=OneEnded)
async def get_job(call: Call[None, None]) -> Reply:
    """Return a job, and when it is done what it made.

    Ask again until `state` is done, failed or cancelled.
    """
    job = await _job(call.tenant, call.path["job_id"])
    made: Compaction | None = None
    if job.state is JobState.DONE and job.kind.partition(":")[0] == COMPACT:
        try:
            stage = (await call.tenant.session(job.context)).stage
            storage = call.tenant.handle
            found = await compaction.compactions(storage, job.context, None, job.id, stage=stage)
        except SessionNotFoundError:  # deleted since
            found = []
        made = found[-1] if found else None
    shown = job_json(job) | {"compaction": None if made is None else compaction_json(made)}
    return Reply(body={"data": shown})


@operations("POST", f"{_PATH}/cancel", scope=Scope.COMPACT, reply=OneJob)
async def cancel_job(call: Call[None, None]) -> Reply:
    """Give a job up.

    An attempt that runs will have no effect. Refused with 409 when the job is done.
    """
    job = await _job(call.tenant, call.path["job_id"])
    return Reply(body={"data": job_json(await requests.cancel(call.tenant.handle, job.id))})


@operations("POST", f"{_PATH}/retry", scope=Scope.COMPACT, reply=OneJob)
async def retry_job(call: Call[None, None]) -> Reply:
    """Make a job due now that waits, failed or was cancelled.

    Refused with 409 when it runs or is done, or when another job is to do its work by now.
    """
    job = await _job(call.tenant, call.path["job_id"])
    return Reply(body={"data": job_json(await requests.retry(call.tenant.handle, job.id))})
