"""Delivers the entries appended to a log to a webhook: at least once, in the order of the log, without text.

One job serves one log and one webhook. It sends entry after entry, stores its progress after each, and ends with an
append that the store refuses if the log has grown meanwhile. So no entry is skipped: a worker that dies leaves the job
behind, and the next attempt begins with the first entry not recorded as accepted.

Separate jobs report changes of jobs. A job also changes without an append, so a reporting job stays and looks again
until no job of the log continues. Each append that changes jobs brings a new reporting job; the newest one reports, and
the others end when they see it, so that the last look comes after the last append.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from time import monotonic
from typing import NamedTuple

from acms.config import RetryConfig
from acms.errors import ACMSError, ConflictError, GoneError, LeaseLostError, ProviderError
from acms.events.cursor import Cursor
from acms.events.follow import changed_jobs, list_unfinished_jobs
from acms.events.signing import sign_request
from acms.events.webhooks import Progress, Webhooks, delivers_job_changes, progress_key_of
from acms.jobs.worker import Outcome
from acms.log.validation import PAGE
from acms.model import (
    WEBHOOK,
    Append,
    Context,
    Done,
    Entry,
    Expect,
    Failed,
    Job,
    JobQuery,
    JobState,
    Json,
    Kind,
    Lease,
    Retry,
)
from acms.nouns import format_instant
from acms.ports import StorageBackend
from acms.providers.http import Endpoint
from acms.results import Webhook
from acms.runtime.chance import chance
from acms.storage.outbox import JOB

__all__ = ["Delivery", "try_finish_delivery"]

WAITS = (5, 30, 120, 600, 1800, 3600, 7200, 14_400, 28_800, 43_200)
"""Seconds before the next attempt, after each that failed; after the last one the delivery is given up."""
SECONDS = 10.0
"""For an answer."""
PLACES = 2
"""Logs that are delivered to one webhook at a time in one process: a slow one does not keep others waiting."""
TURN = timedelta(seconds=1)
REST = timedelta(minutes=1)
"""Until the next look at jobs of which none is due before."""


class _Task(NamedTuple):
    """What a job that delivers is about, and where how far it came is kept."""

    storage: StorageBackend
    lease: Lease
    webhooks: Webhooks
    context: Context
    webhook: Webhook
    secret: str


class Delivery:
    """What delivers in one process."""

    def __init__(
        self,
        *,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        elapsed: Callable[[], float] = monotonic,
        fraction: Callable[[], float] = chance.random,
    ) -> None:
        self._clock = clock
        self._elapsed = elapsed
        self._fraction = fraction
        self._busy: Counter[str] = Counter()
        #: Until when nothing is sent to a webhook that did not answer as it should, whatever the log.
        self._rests: dict[str, float] = {}

    async def __call__(self, storage: StorageBackend, lease: Lease) -> Outcome:
        """Deliver a log to a webhook up to its end; the handler of a job."""
        webhooks, id = Webhooks(storage), str(lease.job.payload["webhook"])
        found = await webhooks.find(id)
        if found is None:
            return Done(reason="the webhook was removed")
        context = await storage.context(lease.job.context)
        if context.deleted_at is not None:
            return Failed(error="the session was deleted", cancelled=True)
        if self._busy[id] >= PLACES:
            later = self._clock() + TURN * min(lease.attempt, 30)  # later each time, as many may wait
            return Retry(error="others are delivered to this webhook", not_before=later)
        rest = self._rests.get(id, 0.0) - self._elapsed()
        if rest > 0:
            later = self._clock() + timedelta(seconds=rest)
            return Retry(error="the webhook did not answer as it should", not_before=later)
        self._busy[id] += 1
        deliver = self._follow if delivers_job_changes(lease.job) else self._deliver
        try:
            return await deliver(_Task(storage, lease, webhooks, context, *found))
        finally:
            self._busy[id] -= 1

    async def _deliver(self, task: _Task) -> Outcome:
        """Send the entries appended after the recorded progress, until the end of the log."""
        storage, lease, webhooks, context, webhook, secret = task
        progress = await webhooks.progress(webhook.id, context.id)
        if progress is None:  # kept before anything is sent: the job that follows this one does not know it
            progress = Progress(version=_read_start_version(lease))
            await webhooks.keep(webhook.id, context.id, progress)
        async with _make_endpoint(webhook) as endpoint:
            while True:
                head = await storage.head(context.id)
                entries = await storage.read(
                    context.id,
                    after=progress.version,
                    at=head.version,
                    kinds=[Kind(kind) for kind in webhook.events if kind != JOB],
                    limit=50,
                )
                if not entries:
                    if await try_finish_delivery(storage, lease, head.version):
                        return None
                    continue
                for entry in entries:
                    try:
                        await endpoint.notify(*self._entry(context, entry, secret))
                    except ProviderError as error:
                        failed = Progress(version=progress.version, failures=progress.failures + 1)
                        await webhooks.keep(webhook.id, context.id, failed)
                        return self._schedule_retry(webhook.id, failed.failures, error)
                    progress = Progress(version=entry.version)
                    await webhooks.keep(webhook.id, context.id, progress)

    async def _follow(self, task: _Task) -> Outcome:
        """Report the job changes of a log, after the entries that the jobs appended, until no job continues."""
        storage, lease, webhooks, context, webhook, secret = task
        progress_key = progress_key_of(lease.job)
        progress = await webhooks.progress(webhook.id, progress_key)
        if progress is None:  # kept before anything is sent, as above
            progress = Progress(version=0, jobs=str(await _find_start_cursor(storage, lease)))
            await webhooks.keep(webhook.id, progress_key, progress)
        cursor = Cursor.read(progress.jobs)
        jobs, highest = await changed_jobs(storage, context.id, cursor)
        # Read after the jobs: later changes are reported by the delivery job that they enqueued.
        others = await _list_sibling_jobs(storage, lease)
        if any(delivers_job_changes(one) and int(one.id) > int(lease.job.id) for one in others):
            return Done(reason="a later one tells it")
        if any(not delivers_job_changes(one) or one.state is JobState.RUNNING for one in others):
            later = self._clock() + TURN
            return Retry(error="what was asked for before is delivered first", not_before=later)
        async with _make_endpoint(webhook) as endpoint:
            for job in jobs:
                try:
                    await endpoint.notify(*self._job(context, job, secret))
                except ProviderError as error:
                    failed = Progress(version=0, failures=progress.failures + 1, jobs=str(cursor))
                    await webhooks.keep(webhook.id, progress_key, failed)
                    return self._schedule_retry(webhook.id, failed.failures, error)
                cursor = cursor.behind(job)
                progress = Progress(version=0, jobs=str(cursor))
                await webhooks.keep(webhook.id, progress_key, progress)
        if cursor.upto(highest) != cursor:
            await webhooks.keep(webhook.id, progress_key, Progress(version=0, jobs=str(cursor.upto(highest))))
        return await self._look_again(storage, lease)

    async def _look_again(self, storage: StorageBackend, lease: Lease) -> Outcome:
        """Return when to look at the jobs again, or `Done` if none continues."""
        going = [job for job in await list_unfinished_jobs(storage, lease.job.context) if job.kind != WEBHOOK]
        if not going:
            return Done()
        now = self._clock()
        soon = now + TURN * min(lease.attempt, 15)
        due = min(job.not_before if job.state is JobState.READY else now for job in going)
        return Retry(error="it tells of jobs that go on", not_before=max(soon, min(due, now + REST)))

    def _entry(self, context: Context, entry: Entry, secret: str) -> tuple[bytes, dict[str, str]]:
        """Return the body of the message for an entry, and its header fields."""
        about = {"role": entry.role, "version": entry.version, "position": entry.position}
        data = {**_identify_log(context), "id": entry.id, "kind": entry.kind, **about}
        return self._message(entry.id, f"{entry.kind}.appended", entry.created_at, data, secret)

    def _job(self, context: Context, job: Job, secret: str) -> tuple[bytes, dict[str, str]]:
        """Return the body of the message for a job in its current state, and its header fields."""
        data = {
            **_identify_log(context),
            "id": job.id,
            "kind": job.kind,
            "state": job.state,
            "attempt": job.attempt,
        }
        id = f"{JOB}_{job.id}_{job.attempt}_{job.state}"
        return self._message(id, f"{JOB}.{job.state}", job.updated_at, data, secret)

    def _message(
        self, id: str, type: str, when: datetime, data: Mapping[str, Json], secret: str
    ) -> tuple[bytes, dict[str, str]]:
        """Return the body of a message, and its header fields."""
        body = {"type": type, "timestamp": format_instant(when), "data": data}
        content = json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()
        return content, sign_request(secret, id, int(self._clock().timestamp()), content)

    def _schedule_retry(self, id: str, failures: int, error: ProviderError) -> Retry | Failed:
        """Return when an attempt that failed is followed by the next one; `Failed` after the last."""
        if failures > len(WAITS):
            return Failed(error=str(error))
        seconds = WAITS[failures - 1] * (0.8 + 0.4 * self._fraction())
        if error.retry_after is not None:
            seconds = max(seconds, min(error.retry_after, WAITS[-1]))
        self._rests[id] = self._elapsed() + min(seconds, WAITS[0])
        return Retry(error=str(error), not_before=self._clock() + timedelta(seconds=seconds))


def _read_start_version(lease: Lease) -> int:
    """Return the version behind which delivery begins; all of the log in doubt."""
    after = lease.job.payload.get("after", 0)
    return after if isinstance(after, int) else 0


def _identify_log(context: Context) -> dict[str, Json]:
    """Return the fields that identify the log of an event."""
    return {
        "contextId": context.id,
        "sessionId": context.key or context.id,
        "namespace": context.namespace,
    }


async def _list_sibling_jobs(storage: StorageBackend, lease: Lease) -> list[Job]:
    """Return the other unfinished jobs that deliver the same log to the same webhook."""
    own, webhook = lease.job, lease.job.payload["webhook"]
    found = await list_unfinished_jobs(storage, own.context)
    return [
        job for job in found
        if job.kind == WEBHOOK and job.id != own.id and job.payload.get("webhook") == webhook
    ]  # fmt: skip


async def _find_start_cursor(storage: StorageBackend, lease: Lease) -> Cursor:
    """Return the cursor after all job changes that precede the first unfinished job reporting them."""
    context = lease.job.context
    requests = [
        lease.job,
        *[job for job in await _list_sibling_jobs(storage, lease) if delivers_job_changes(job)],
    ]
    since = min(job.created_at for job in requests) - TURN  # what one commit wrote may bear two times
    page = await storage.jobs(JobQuery(context=context, limit=PAGE))
    known = {
        job.id: job
        for job in [*page.items, *await list_unfinished_jobs(storage, context)]
        if job.kind != WEBHOOK
    }
    old = [job for job in known.values() if job.updated_at < since]
    cursor = Cursor(job=0)
    for job in old:
        cursor = cursor.behind(job)
    for job in known.values():  # an older one that changed meanwhile: no real job has this state
        if job not in old and int(job.id) < (cursor.job or 0):
            cursor = cursor.behind(replace(job, state=JobState.RUNNING, attempt=0))
    return cursor


def _make_endpoint(webhook: Webhook) -> Endpoint:
    return Endpoint(
        webhook.url,
        provider="the webhook",
        timeout=SECONDS,
        connect_timeout=SECONDS / 2,
        retry=RetryConfig(max_attempts=1),
        concurrency=1,
        trusted=webhook.private,
    )


async def try_finish_delivery(storage: StorageBackend, lease: Lease, version: int) -> bool:
    """End a job if the log still ends at a version; else there is more to deliver."""
    op = Append(context=lease.job.context, drafts=(), expect=Expect(version=version), finish=lease)
    (result,) = await storage.append([op])
    if isinstance(result, ConflictError) and not isinstance(result, LeaseLostError | GoneError):
        return False
    if isinstance(result, ACMSError):
        raise result
    return True
