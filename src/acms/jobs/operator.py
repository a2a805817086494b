"""Jobs as an operator sees them: looking at one, trying it again, cancelling it."""

from __future__ import annotations

from datetime import UTC, datetime

from acms.errors import ConflictError, LeaseLostError, NotFoundError
from acms.model import Failed, Job, JobQuery, JobState, Lease, Retry
from acms.ports import StorageBackend


async def job(storage: StorageBackend, id: str) -> Job:
    """Return a job by its id; `NotFoundError` when there is none."""
    found = (await storage.jobs(JobQuery(ids=(id,)))).items
    if not found:
        raise NotFoundError(f"no job has the id {id!r}", options=("acms jobs lists them",))
    return found[0]


async def retry(storage: StorageBackend, id: str, *, now: datetime | None = None) -> Job:
    """Make a job due now that waits, failed or was cancelled; one that failed has one more attempt.

    `ConflictError` when it runs or is done, or when another job is to do its work by now.
    """
    found = await job(storage, id)
    if found.state is JobState.RUNNING:
        raise ConflictError(f"job {id} runs already", options=("let it end", f"acms jobs cancel {id}"))
    if found.state is JobState.DONE:
        raise ConflictError(f"job {id} is done", retryable=False)
    again = Retry(error=found.error or "tried again by hand", not_before=now or datetime.now(UTC))
    return await storage.settle(_seen(found), again)


async def cancel(storage: StorageBackend, id: str) -> Job:
    """Give a job up; an attempt that runs will have no effect. `ConflictError` when it is done."""
    found = await job(storage, id)
    if found.state is JobState.CANCELLED:
        return found
    if found.state is JobState.DONE:
        raise ConflictError(f"job {id} is done", retryable=False)
    return await storage.settle(_seen(found), Failed(error="cancelled by hand", cancelled=True))


async def withdraw(storage: StorageBackend, found: Job, reason: str) -> bool:
    """Cancel a job as it was listed; False when something happened to it since."""
    try:
        await storage.settle(_seen(found), Failed(error=reason, cancelled=True))
        return True
    except LeaseLostError:
        return False


def _seen(found: Job) -> Lease:
    """Return the lease that settles a job as it was listed."""
    return Lease(job=found, attempt=found.attempt, until=found.updated_at)
