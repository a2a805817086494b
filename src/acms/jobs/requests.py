"""Requests for jobs: their kinds, their names, the drafts enqueued with an append; and the requests of an operator.

Separate from the work itself, because every append imports this.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import NamedTuple

from acms.errors import ConflictError, LeaseLostError, NotFoundError
from acms.log.policy import RETENTION, CompactionPolicy
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
"""Kinds of the jobs that every worker takes; one that needs a certain model adds its name."""
OFFLINE = "OfflineReflector"
"""Class of the reflector that every worker has."""
PRIVACY = "privacy"
"""Where the payload of a job has the mode of privacy of the session that asked for it."""


class CompactionRequest(NamedTuple):
    """How an append requests a compaction when the active log has grown too long."""

    namespace: str
    #: The service's level of the policy.
    service: CompactionPolicy
    #: Kind of the job.
    kind: str
    #: Mode of privacy of the session that asks.
    privacy: Privacy | None
    #: Seconds for which it keeps what a summary stands for.
    retention: float | None


class EpisodeReflection(NamedTuple):
    """How an append that ends an episode asks for a reflection."""

    #: Kind of the job.
    kind: str
    #: Mode of privacy of the session that asks.
    privacy: Privacy | None


def model_name(model: object) -> str:
    """Return the name of a summarizer or a reflector: its `model`, else that of its class."""
    name = getattr(model, "model", None)
    return name if isinstance(name, str) and name else type(model).__name__


def compaction_kind(summarizer: Summarizer | None) -> str:
    """Return the kind of job that workers with this summarizer take; every worker has the extractive one."""
    return COMPACT if summarizer is None else f"{COMPACT}:{model_name(summarizer)}"


def draft_compaction(
    context: str, asks: CompactionRequest, policy: CompactionPolicy, *, force: bool
) -> JobDraft:
    """Return the request to compact a log; while one is under way another is the same."""
    mode = asks.privacy and asks.privacy.value
    payload = {"policy": policy.to_json(), "force": force, PRIVACY: mode, RETENTION: asks.retention}
    return JobDraft(kind=asks.kind, dedupe=f"{COMPACT}:{context}", payload=payload)


def read_policy_field(job: Job, name: str) -> Json:
    """Return a field of the policy that a compaction was asked for with."""
    policy = job.payload.get("policy")
    return policy.get(name) if isinstance(policy, Mapping) else None


def reflection_kind(reflector: object) -> str:
    """Return the kind of job that workers with this reflector take; every worker has the offline one."""
    return REFLECT if type(reflector).__name__ == OFFLINE else f"{REFLECT}:{model_name(reflector)}"


def reflection_name(context: str) -> str:
    """Return the name of a log's reflection among jobs: one at a time."""
    return f"{REFLECT}:{context}"


def draft_reflection(context: str, kind: str, privacy: Privacy | None, *, force: bool = False) -> JobDraft:
    """Return the request to reflect on a log; `force` reads closed episodes that are too short to be read alone."""
    payload: dict[str, Json] = {PRIVACY: privacy and privacy.value}
    if force:
        payload["force"] = True
    return JobDraft(kind=kind, dedupe=reflection_name(context), payload=payload)


def privacy_of(job: Job, worker: Privacy | None, least: Privacy | None) -> Privacy | None:
    """Return the mode of privacy in which a job is done: that of the session that asked, or `least` if it is stricter.

    The worker's holds for a job that names none, as those of releases before this was stored.
    """
    requested = worker
    if PRIVACY in job.payload:
        mode = job.payload[PRIVACY]
        requested = None if mode is None else Privacy(mode)
    return stricter_mode(requested, least)


def satisfies_request(job: Job, mode: Privacy | None) -> bool:
    """Return whether a job satisfies a new request for a forced run at least as strict as `mode`."""
    requested = privacy_of(job, None, None)
    return bool(job.payload.get("force")) and stricter_mode(requested, mode) is requested


WITHDRAWN = "asked for in another way"
"""Why a job was cancelled that is to be asked for again at once."""


async def get_job_by_id(storage: StorageBackend, id: str) -> Job:
    """Return a job by its id; `NotFoundError` when there is none."""
    found = (await storage.jobs(JobQuery(ids=(id,)))).items
    if not found:
        raise NotFoundError(f"no job has the id {id!r}", options=("acms jobs lists them",))
    return found[0]


async def find_latest_job(storage: StorageBackend, context: str, name: str) -> Job | None:
    """Return the job of a name that is still to be done, else the one that ended last; None without one.

    That is not always the newest: an older one that was cancelled may have been made due again by hand.
    """
    for states in (UNFINISHED, ()):
        page = await storage.jobs(JobQuery(context=context, states=states, limit=500))
        jobs = [job for job in page.items if job.dedupe == name]
        if jobs:
            return max(jobs, key=lambda job: job.updated_at)
    return None


async def retry_job_by_id(storage: StorageBackend, id: str, *, now: datetime | None = None) -> Job:
    """Make a job due now that waits, failed or was cancelled; one that failed has one more attempt.

    `ConflictError` when it runs or is done, or when another job is to do its work by now.
    """
    found = await get_job_by_id(storage, id)
    if found.state is JobState.RUNNING:
        raise ConflictError(f"job {id} runs already", options=("let it end", f"acms jobs cancel {id}"))
    if found.state is JobState.DONE:
        raise ConflictError(f"job {id} is done", retryable=False)
    again = Retry(error=found.error or "tried again by hand", not_before=now or datetime.now(UTC))
    return await _settle_job(storage, found, again)


async def cancel_job_by_id(storage: StorageBackend, id: str) -> Job:
    """Give a job up; an attempt that runs will have no effect. `ConflictError` when it is done."""
    while True:
        found = await get_job_by_id(storage, id)
        if found.state is JobState.CANCELLED:
            return found
        if found.state is JobState.DONE:
            raise ConflictError(f"job {id} is done", retryable=False)
        with suppress(LeaseLostError):  # a worker took it, or gave it back, since it was read
            return await _settle_job(storage, found, Failed(error="cancelled by hand", cancelled=True))


async def withdraw_job(storage: StorageBackend, found: Job, reason: str) -> bool:
    """Cancel a job if it is still in the state in which it was listed; return whether it was."""
    try:
        await storage.settle(_lease_of_job(found), Failed(error=reason, cancelled=True))
        return True
    except LeaseLostError:
        return False


async def _settle_job(storage: StorageBackend, found: Job, outcome: Retry | Failed) -> Job:
    """Set the outcome of a job that is still in the state in which it was listed.

    An append without drafts enqueues the deliveries that report the change to webhooks.
    """
    settled = await storage.settle(_lease_of_job(found), outcome)
    if settled.kind != WEBHOOK:
        await storage.append([Append(context=settled.context, drafts=())])
    return settled


def _lease_of_job(found: Job) -> Lease:
    """Return the lease that settles a job as it was listed."""
    return Lease(job=found, attempt=found.attempt, until=found.updated_at)
