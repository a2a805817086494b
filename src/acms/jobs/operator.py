"""Jobs as an operator sees them: which ones every installation can run, trying one again, cancelling one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from acms.compaction.span import kind_of
from acms.config import ACMSConfig
from acms.errors import ConflictError, LeaseLostError, NotFoundError
from acms.jobs import requests
from acms.jobs.worker import Handler, Outcome
from acms.model import Failed, Job, JobQuery, JobState, Lease, Retry
from acms.ports import Reflector, StorageBackend, Summarizer, TokenCounter


def handlers(
    config: ACMSConfig,
    summarizers: Sequence[Summarizer] = (),
    counters: Mapping[str, TokenCounter] | None = None,
    *,
    reflectors: Sequence[Reflector] = (),
    handle: StorageBackend | None = None,
) -> dict[str, Handler]:
    """Return the handlers of every kind of job by kind; those of models have their name behind it.

    Reflecting by rules and compacting by extraction need no model: every worker can.

    `counters` are token counters by name, beside those that come along; `handle` is what the sessions of this process
    write to, which reflections keep out of the way of.
    """
    from acms.branches import forks
    from acms.compaction import job as compaction
    from acms.erasure import erase  # a worker alone needs them

    known = {} if counters is None else counters
    return {
        "adopt": forks.adopt,
        "collect": erase.collect,
        "expire": erase.expire,
        **{kind_of(one): compaction.handler(config, one, known) for one in (None, *summarizers)},
        requests.KIND: _offline(config, known, handle),
        **{requests.kind_of(one): _reflecting(config, one, known, handle) for one in reflectors},
    }


def _reflecting(
    config: ACMSConfig,
    reflector: Reflector,
    counters: Mapping[str, TokenCounter],
    handle: StorageBackend | None,
) -> Handler:
    from acms.facts import job as reflection

    return reflection.handler(config, reflector, counters, handle=handle)


def _offline(
    config: ACMSConfig, counters: Mapping[str, TokenCounter], handle: StorageBackend | None
) -> Handler:
    """Return what reflects without a model: every worker has it, and its rules are loaded when they are needed."""

    async def run(storage: StorageBackend, lease: Lease) -> Outcome:
        from acms.providers.offline.reflector import OfflineReflector

        return await _reflecting(config, OfflineReflector(), counters, handle)(storage, lease)

    return run


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
