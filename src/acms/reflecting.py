"""What a session asks of reflection: a job now, an end to wait for, and that nothing waits for a model that is gone."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from acms.core import asked
from acms.errors import ACMSError, LeaseLostError
from acms.logs import log
from acms.model import Append, Failed, Job, JobQuery, JobState, Lease
from acms.protocols import StorageBackend

if TYPE_CHECKING:
    from acms.shared import SharedSession

UNFINISHED = (JobState.READY, JobState.RUNNING)
POLL = 0.02
"""Seconds between two looks at a job that another process works off."""


async def request(shared: SharedSession, context: str) -> Job:
    """Enqueue a reflection on everything closed, also on what is short, and return its job."""
    storage = shared.storage
    kind = asked.KIND if shared.reflector is None else asked.kind_of(shared.reflector)
    draft = asked.requested(context, kind, force=True)
    while True:
        (result,) = await storage.append([Append(context=context, drafts=(), jobs=(draft,))])
        if isinstance(result, ACMSError):
            raise result
        found = await _unfinished(storage, context) or await _newest(storage, context)
        if found is None:
            continue
        shared.work()
        if found.payload.get("force") and (found.kind == kind or found.state is not JobState.READY):
            return found
        if found.state is JobState.READY:
            await _withdraw(storage, found)
        else:  # what it leaves is asked for again
            while await _running(storage, context):
                await asyncio.sleep(POLL)


async def catch_up(shared: SharedSession, context: str) -> None:
    """See to it that a reflection another process asked for and did not finish is worked off.

    One that waits for a reflector of another name is asked of this session's: nothing waits for a model that is gone.
    Whoever only reads is not disturbed by a store that refuses.
    """
    try:
        await _take_over(shared, context)
    except ACMSError as error:
        log(logging.WARNING, "catch_up_failed", context=context, code=error.code)


async def _take_over(shared: SharedSession, context: str) -> None:
    found = await _unfinished(shared.storage, context)
    if found is None:
        return
    kind = asked.kind_of(shared.reflector)
    if found.state is JobState.READY and found.kind != kind and await _withdraw(shared.storage, found):
        draft = asked.requested(context, kind, force=bool(found.payload.get("force")))
        (result,) = await shared.storage.append([Append(context=context, drafts=(), jobs=(draft,))])
        if isinstance(result, ACMSError):
            raise result
    shared.work()


async def finished(shared: SharedSession, context: str) -> None:
    """Wait until the reflection of a session has ended or an attempt of it has failed, at most `call_seconds`."""
    try:
        async with asyncio.timeout(shared.config.worker.call_seconds):
            while (job := await _unfinished(shared.storage, context)) is not None and job.error is None:
                await asyncio.sleep(POLL)
    except TimeoutError:
        log(logging.WARNING, "reflection_late", context=context)
    except ACMSError as error:
        log(logging.WARNING, "reflection_unknown", context=context, code=error.code)


async def _unfinished(storage: StorageBackend, context: str) -> Job | None:
    name = asked.named(context)
    page = await storage.jobs(JobQuery(context=context, states=UNFINISHED, limit=500))
    return next((job for job in page.items if job.dedupe == name), None)


async def _running(storage: StorageBackend, context: str) -> bool:
    found = await _unfinished(storage, context)
    return found is not None and found.state is JobState.RUNNING


async def _newest(storage: StorageBackend, context: str) -> Job | None:
    name = asked.named(context)
    page = await storage.jobs(JobQuery(context=context, limit=500))
    return next((job for job in page.items if job.dedupe == name), None)


async def _withdraw(storage: StorageBackend, job: Job) -> bool:
    """Cancel a job that waits, to be asked for in another way; False when it was claimed meanwhile."""
    seen = Lease(job=job, attempt=job.attempt, until=job.updated_at)
    try:
        await storage.settle(seen, Failed(error="asked for in another way", cancelled=True))
        return True
    except LeaseLostError:
        return False
