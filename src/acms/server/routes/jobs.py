"""Jobs over HTTP: get, list, cancel and retry background work."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field

from acms.compaction import job as compaction
from acms.errors import NotFoundError, SessionNotFoundError, ValidationError
from acms.jobs import requests
from acms.jobs.requests import COMPACT
from acms.model import Job, JobQuery, JobState
from acms.nouns import encode_noun
from acms.results import Compaction
from acms.server.operation import BASE, Call, Operations, Query, Reply, Scope
from acms.server.replies import describe_list_reply, describe_single_reply, reply_with_data, reply_with_page
from acms.server.tenants import Tenant
from acms.session import ACMS

__all__ = ["operations", "wait_for_requested_job"]

operations = Operations("jobs")

_PATH = "/jobs/{job_id}"
_WAIT = re.compile(r"wait=(\d{1,6})", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedJob(Job):
    """A job with its result."""

    #: Result of a compaction; null before its end, if there was nothing worth compacting, and for other jobs.
    compaction: Compaction | None


class ListJobs(Query):
    """The jobs to list."""

    context_id: str | None = None
    """List only the jobs of this context."""
    state: Literal["ready", "running", "done", "failed", "cancelled"] | None = None
    """List only jobs in this state."""
    cursor: str | None = None
    """`nextCursor` of the previous page."""
    limit: Annotated[int, Field(ge=1, le=500)] = 50
    """Largest number of items in the page."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedJob:
    """A requested job, with its result if it ended within the wait."""

    job: Job
    ended: bool
    compaction: Compaction | None
    #: Header fields of the reply, with the address of the job.
    headers: Mapping[str, str]


async def wait_for_requested_job(call: Call[Any, Any], session: ACMS, job: Job) -> RequestedJob:
    """Wait for a job as long as the request prefers, within its deadline; raise `JobFailedError` if it fails."""
    headers = {"Location": f"{BASE}/jobs/{job.id}"}
    seconds = _parse_wait_preference(call.headers.get("prefer", ""))
    ended, compaction = False, None
    if seconds is not None:
        headers["Preference-Applied"] = f"wait={seconds}"
        max_seconds = max(0.0, call.config.limits.deadline_seconds - 1.0)  # a second remains for the reply
        try:
            compaction = await session.wait(job, timeout=min(float(seconds), max_seconds))
            ended = True
        except TimeoutError:
            pass
        job = (await call.tenant.handle.jobs(JobQuery(ids=(job.id,)))).items[0]
    if not ended:
        headers["Retry-After"] = "1"
    return RequestedJob(job=job, ended=ended, compaction=compaction, headers=headers)


def _parse_wait_preference(prefer: str) -> int | None:
    """Return the seconds that a client prefers to wait, or None; unknown preferences are ignored (RFC 7240)."""
    for preference in re.split("[,;]", prefer):
        match = _WAIT.fullmatch(preference.strip())
        if match:
            return int(match[1])
    return None


async def filter_visible_jobs(tenant: Tenant, jobs: Sequence[Job]) -> list[Job]:
    """Return the jobs that the current request may see; the service's own are never visible."""
    visible: dict[str, bool] = {}
    for id in {job.context for job in jobs}:
        try:
            namespace = (await tenant.handle.context(id)).namespace
        except SessionNotFoundError:  # a job may outlive its context, whose namespace is not known any more
            visible[id] = not tenant.bound
            continue
        visible[id] = tenant.may_see(namespace)
        if visible[id]:
            tenant.check(namespace)
    return [job for job in jobs if visible[job.context]]


async def _find_job(tenant: Tenant, id: str) -> Job:
    """Return a job if the request may see it; raise `NotFoundError` if not."""
    page = await tenant.handle.jobs(JobQuery(ids=(id,)))
    jobs = await filter_visible_jobs(tenant, page.items)
    if not jobs:
        raise NotFoundError(f"no job has the id {id!r}", options=("GET /api/v1/jobs lists them",))
    return jobs[0]


@operations("GET", "/jobs", scope=Scope.READ, query=ListJobs, reply=describe_list_reply(Job, str))
async def list_jobs(call: Call[ListJobs, None]) -> Reply:
    """List jobs, newest first.

    `contextId` and `state` filter the list. Pass `nextCursor` as `cursor` for the next page.
    """
    query, tenant = call.query, call.tenant
    if query.cursor is not None and not (query.cursor.isascii() and query.cursor.isdecimal()):
        raise ValidationError("is not a cursor of this list", field="cursor")
    if query.context_id is not None:
        await tenant.context(query.context_id)
    states = (JobState(query.state),) if query.state else ()
    page = await tenant.handle.jobs(
        JobQuery(context=query.context_id, states=states, after=query.cursor, limit=query.limit)
    )
    jobs = await filter_visible_jobs(tenant, page.items)
    return reply_with_page([encode_noun(job) for job in jobs], page.next_after)


@operations("GET", _PATH, scope=Scope.READ, reply=describe_single_reply(EndedJob))
async def get_job(call: Call[None, None]) -> Reply:
    """Return a job, with its result when it is done.

    Poll it until `state` is done, failed or cancelled.
    """
    job = await _find_job(call.tenant, call.path["job_id"])
    data = encode_noun(job)
    data["compaction"] = None
    is_compaction = job.kind.partition(":")[0] == COMPACT  # a kind may end with ":" and an id
    if is_compaction and job.state is JobState.DONE:
        compactions = await _list_compactions_of_job(call.tenant, job)
        if compactions:
            data["compaction"] = encode_noun(compactions[-1])
    return Reply(body={"data": data})


async def _list_compactions_of_job(tenant: Tenant, job: Job) -> Sequence[Compaction]:
    try:
        session = await tenant.session(job.context)
        return await compaction.read_compactions(
            tenant.handle, job.context, None, job.id, redactor=session.internals.redactor
        )
    except SessionNotFoundError:  # deleted since
        return []


@operations("POST", f"{_PATH}/cancel", scope=Scope.COMPACT, reply=describe_single_reply(Job))
async def cancel_job(call: Call[None, None]) -> Reply:
    """Cancel a job.

    A running attempt has no effect. Refused with 409 if the job is done.
    """
    job = await _find_job(call.tenant, call.path["job_id"])
    return reply_with_data(await requests.cancel_job_by_id(call.tenant.handle, job.id))


@operations("POST", f"{_PATH}/retry", scope=Scope.COMPACT, reply=describe_single_reply(Job))
async def retry_job(call: Call[None, None]) -> Reply:
    """Make a waiting, failed or cancelled job due now.

    Refused with 409 if it is running or done, or if another job has taken over its work.
    """
    job = await _find_job(call.tenant, call.path["job_id"])
    return reply_with_data(await requests.retry_job_by_id(call.tenant.handle, job.id))
