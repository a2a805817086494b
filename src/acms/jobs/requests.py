"""Requests for jobs: their kinds, names and drafts, which an append enqueues, and the requests of an operator.

The handlers of the jobs are in other modules, because every append imports this one.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import NamedTuple

from acms.errors import ConflictError, LeaseLostError, NotFoundError
from acms.log.policy import RETENTION, CompactionPolicy
from acms.log.validation import PAGE
from acms.model import (
    UNFINISHED,
    WEBHOOK,
    Append,
    Failed,
    Job,
    JobDraft,
    JobQuery,
    JobState,
    Json,
    Lease,
    Privacy,
    Retry,
)
from acms.ports import StorageBackend, Summarizer
from acms.privacy.modes import stricter_mode

COMPACT = "compact"
REFLECT = "reflect"
"""Kinds of the jobs that every worker takes; the kind of a job for one model also has the name of the model."""
PRIVACY = "privacy"
"""Key in the payload of a job: the privacy mode of the session that requested it."""
WITHDRAWN = "asked for in another way"
"""Error of a job that was cancelled because the same work is requested again with other settings."""


class CompactionRequest(NamedTuple):
    """How an append requests a compaction when the active log has grown too long."""

    namespace: str
    #: The service's level of the policy.
    service: CompactionPolicy
    #: Kind of the job.
    kind: str
    #: Privacy mode of the session that requests it.
    privacy: Privacy | None
    #: Seconds for which the session keeps the messages behind a summary; None keeps them.
    retention: float | None


class EpisodeReflection(NamedTuple):
    """How an append that ends an episode requests a reflection."""

    #: Kind of the job.
    kind: str
    #: Privacy mode of the session that requests it.
    privacy: Privacy | None


def model_name(model: object) -> str:
    """Return the name of a summarizer or a reflector: its `model`, else that of its class."""
    name = getattr(model, "model", None)
    return name if isinstance(name, str) and name else type(model).__name__


def compaction_kind(summarizer: Summarizer | None) -> str:
    """Return the kind of job that workers with this summarizer take; every worker has the extractive one."""
    return COMPACT if summarizer is None else f"{COMPACT}:{model_name(summarizer)}"


def draft_compaction(
    context: str, request: CompactionRequest, policy: CompactionPolicy, *, force: bool
) -> JobDraft:
    """Draft the job that compacts a log; while such a job is unfinished, a second one is not enqueued."""
    payload = {
        "policy": policy.to_json(),
        "force": force,
        PRIVACY: None if request.privacy is None else request.privacy.value,
        RETENTION: request.retention,
    }
    return JobDraft(kind=request.kind, dedupe=f"{COMPACT}:{context}", payload=payload)


def read_policy_field(job: Job, name: str) -> Json:
    """Return a field of the policy with which a compaction was requested."""
    policy = job.payload.get("policy")
    return policy.get(name) if isinstance(policy, Mapping) else None


def reflection_kind(reflector: object) -> str:
    """Return the kind of job that workers with this reflector take; every worker has the offline one."""
    is_offline = type(reflector).__name__ == "OfflineReflector"  # importing the class would load its rules
    return REFLECT if is_offline else f"{REFLECT}:{model_name(reflector)}"


def reflection_name(context: str) -> str:
    """Return the name of the reflection jobs of a log, of which only one is unfinished at a time."""
    return f"{REFLECT}:{context}"


def draft_reflection(context: str, kind: str, privacy: Privacy | None, *, force: bool = False) -> JobDraft:
    """Draft the job that reflects on a log; `force` also reads closed episodes that are too short to be read alone."""
    payload: dict[str, Json] = {PRIVACY: None if privacy is None else privacy.value}
    if force:
        payload["force"] = True
    return JobDraft(kind=kind, dedupe=reflection_name(context), payload=payload)


def privacy_of_job(job: Job, default: Privacy | None, minimum: Privacy | None) -> Privacy | None:
    """Return the privacy mode in which a job runs: that of the session that requested it, or a stricter `minimum`.

    A job of an older release, which did not store the mode, has the `default`: the mode of its worker.
    """
    requested = default
    if PRIVACY in job.payload:
        mode = job.payload[PRIVACY]
        requested = None if mode is None else Privacy(mode)
    return stricter_mode(requested, minimum)


def satisfies_request(job: Job, mode: Privacy | None) -> bool:
    """Return whether a job serves a new request: it is forced, and redacts at least as much as `mode`."""
    is_forced = bool(job.payload.get("force"))
    requested = privacy_of_job(job, None, None)
    return is_forced and stricter_mode(requested, mode) is requested


async def get_job_by_id(storage: StorageBackend, id: str) -> Job:
    """Return a job by its id; raise `NotFoundError` if there is none."""
    jobs = (await storage.jobs(JobQuery(ids=(id,)))).items
    if not jobs:
        raise NotFoundError(f"no job has the id {id!r}", options=("acms jobs lists them",))
    return jobs[0]


async def find_latest_job(storage: StorageBackend, context: str, name: str) -> Job | None:
    """Return the unfinished job of a name, else the job of that name that ended last, or None.

    It is not always the newest job: an older cancelled one may have been retried by hand.
    """
    any_state: tuple[JobState, ...] = ()
    for states in (UNFINISHED, any_state):
        page = await storage.jobs(JobQuery(context=context, states=states, limit=PAGE))
        jobs = [job for job in page.items if job.dedupe == name]
        if jobs:
            return max(jobs, key=lambda job: job.updated_at)
    return None


async def retry_job_by_id(storage: StorageBackend, id: str) -> Job:
    """Make a waiting, failed or cancelled job due now; a failed job gets one more attempt.

    `ConflictError` if the job is running or done, or if another unfinished job has its name.
    """
    job = await get_job_by_id(storage, id)
    if job.state is JobState.RUNNING:
        raise ConflictError(
            f"job {id} is already running", options=("wait until it has ended", f"acms jobs cancel {id}")
        )
    if job.state is JobState.DONE:
        raise ConflictError(f"job {id} is done", retryable=False)
    retry = Retry(error=job.error or "tried again by hand", not_before=datetime.now(UTC))
    return await _settle_job(storage, job, retry)


async def cancel_job_by_id(storage: StorageBackend, id: str) -> Job:
    """Cancel a job; a running attempt will have no effect. `ConflictError` if the job is done."""
    while True:
        job = await get_job_by_id(storage, id)
        if job.state is JobState.CANCELLED:
            return job
        if job.state is JobState.DONE:
            raise ConflictError(f"job {id} is done", retryable=False)
        with suppress(LeaseLostError):  # a worker took the job, or gave it back, since it was read
            return await _settle_job(storage, job, Failed(error="cancelled by hand", cancelled=True))


async def withdraw_job(storage: StorageBackend, job: Job, reason: str) -> bool:
    """Cancel a job if it is still in the state in which it was read; return whether it was cancelled."""
    try:
        await storage.settle(_lease_of_job(job), Failed(error=reason, cancelled=True))
        return True
    except LeaseLostError:
        return False


async def _settle_job(storage: StorageBackend, job: Job, outcome: Retry | Failed) -> Job:
    """Set the outcome of a job that is still in the state in which it was read.

    An append without drafts enqueues the deliveries that report the change to webhooks.
    """
    settled = await storage.settle(_lease_of_job(job), outcome)
    if settled.kind != WEBHOOK:
        await storage.append([Append(context=settled.context, drafts=())])
    return settled


def _lease_of_job(job: Job) -> Lease:
    """Return a lease that settles a job only if it is still in the state in which it was read."""
    return Lease(job=job, attempt=job.attempt, until=job.updated_at)
