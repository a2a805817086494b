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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from time import monotonic
from typing import NamedTuple

from acms.config import RetryConfig
from acms.errors import ACMSError, ConflictError, GoneError, LeaseLostError, ProviderError
from acms.events.cursor import Cursor
from acms.events.follow import find_changed_jobs, list_unfinished_jobs
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
    Webhook,
)
from acms.nouns import format_instant
from acms.ports import StorageBackend
from acms.providers.http import Endpoint
from acms.runtime.chance import chance
from acms.storage.outbox import JOB

__all__ = ["Delivery", "try_finish_delivery"]

RETRY_SECONDS = (5, 30, 120, 600, 1800, 3600, 7200, 14_400, 28_800, 43_200)
"""Seconds to wait after each failed attempt; if one fails after the last wait, the delivery is given up."""
ANSWER_SECONDS = 10.0
"""Seconds in which a webhook must answer."""
MAX_LOGS_AT_ONCE = 2
"""Maximum logs that one process delivers to one webhook at a time: a slow webhook must not take all slots."""
SHORTEST_WAIT = timedelta(seconds=1)
"""Wait before the next attempt of a job that has to let others finish first."""
LONGEST_WAIT = timedelta(minutes=1)
"""Maximum wait before unfinished jobs are read again, if none is due earlier."""
MAX_SHORT_WAITS = 15
"""Maximum number of `SHORTEST_WAIT`s before unfinished jobs are read again; the number grows with the attempts."""


class _Task(NamedTuple):
    """The log and the webhook of a delivery job, and the store of its progress."""

    storage: StorageBackend
    lease: Lease
    webhooks: Webhooks
    context: Context
    webhook: Webhook
    secret: str


class Delivery:
    """Delivers to webhooks in one process."""

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
        self._deliveries_by_webhook: Counter[str] = Counter()
        #: By webhook id: the time until which nothing is sent to it after a failed attempt, for any log.
        self._paused_until: dict[str, float] = {}

    async def __call__(self, storage: StorageBackend, lease: Lease) -> Outcome:
        """Deliver a log to a webhook up to its end; the handler of a job."""
        webhooks = Webhooks(storage)
        id = str(lease.job.payload["webhook"])
        webhook_and_secret = await webhooks.find(id)
        if webhook_and_secret is None:
            return Done(reason="the webhook was removed")
        context = await storage.context(lease.job.context)
        if context.deleted_at is not None:
            return Failed(error="the session was deleted", cancelled=True)
        if self._deliveries_by_webhook[id] >= MAX_LOGS_AT_ONCE:
            # Each attempt waits longer, because many logs may wait for the same webhook.
            later = self._clock() + SHORTEST_WAIT * min(lease.attempt, 30)
            return Retry(error="others are delivered to this webhook", not_before=later)
        pause_seconds = self._paused_until.get(id, 0.0) - self._elapsed()
        if pause_seconds > 0:
            later = self._clock() + timedelta(seconds=pause_seconds)
            return Retry(error="the webhook did not answer as it should", not_before=later)
        self._deliveries_by_webhook[id] += 1
        webhook, secret = webhook_and_secret
        task = _Task(storage, lease, webhooks, context, webhook, secret)
        try:
            if delivers_job_changes(lease.job):
                return await self._report_job_changes(task)
            return await self._deliver_entries(task)
        finally:
            self._deliveries_by_webhook[id] -= 1

    async def _deliver_entries(self, task: _Task) -> Outcome:
        """Send the entries appended after the recorded progress, until the end of the log."""
        storage, lease, webhooks, context, webhook, secret = task
        progress = await webhooks.read_progress(webhook.id, context.id)
        if progress is None:
            # Stored before anything is sent: if this job is given up, the next one must not start at a later version.
            progress = Progress(version=_read_start_version(lease))
            await webhooks.store_progress(webhook.id, context.id, progress)
        kinds = [Kind(kind) for kind in webhook.events if kind != JOB]
        async with _create_endpoint(webhook) as endpoint:
            while True:
                head = await storage.head(context.id)
                entries = await storage.read(
                    context.id, after=progress.version, at=head.version, kinds=kinds, limit=50
                )
                if not entries:
                    if await try_finish_delivery(storage, lease, head.version):
                        return None
                    continue
                for entry in entries:
                    try:
                        await endpoint.notify(*self._build_entry_message(context, entry, secret))
                    except ProviderError as error:
                        failed = Progress(version=progress.version, failures=progress.failures + 1)
                        await webhooks.store_progress(webhook.id, context.id, failed)
                        return self._schedule_retry(webhook.id, failed.failures, error)
                    progress = Progress(version=entry.version)
                    await webhooks.store_progress(webhook.id, context.id, progress)

    async def _report_job_changes(self, task: _Task) -> Outcome:
        """Send the state changes of a log's jobs.

        The newest reporting job of the webhook does this. An older one ends, and the newest waits until entries are
        delivered and no other delivery job is running.
        """
        storage, lease, webhooks, context, webhook, secret = task
        progress_key = progress_key_of(lease.job)
        progress = await webhooks.read_progress(webhook.id, progress_key)
        if progress is None:
            # Stored before anything is sent: if this job is given up, the next one must not start later.
            progress = Progress(version=0, jobs=str(await _find_start_cursor(storage, lease)))
            await webhooks.store_progress(webhook.id, progress_key, progress)
        cursor = Cursor.parse(progress.jobs)
        jobs, highest = await find_changed_jobs(storage, context.id, cursor)
        # Read after the jobs: later changes are reported by the delivery job that they enqueued.
        siblings = await _list_sibling_jobs(storage, lease)
        outcome = self._yield_to_siblings(siblings, lease)
        if outcome is not None:
            return outcome
        async with _create_endpoint(webhook) as endpoint:
            for job in jobs:
                try:
                    await endpoint.notify(*self._build_job_message(context, job, secret))
                except ProviderError as error:
                    failed = Progress(version=0, failures=progress.failures + 1, jobs=str(cursor))
                    await webhooks.store_progress(webhook.id, progress_key, failed)
                    return self._schedule_retry(webhook.id, failed.failures, error)
                cursor = cursor.after_job(job)
                progress = Progress(version=0, jobs=str(cursor))
                await webhooks.store_progress(webhook.id, progress_key, progress)
        # Jobs that deliver webhooks are not reported: move the cursor past them too.
        end = cursor.after_jobs_upto(highest)
        if end != cursor:
            await webhooks.store_progress(webhook.id, progress_key, Progress(version=0, jobs=str(end)))
        return await self._retry_while_jobs_run(storage, lease)

    def _yield_to_siblings(self, siblings: Sequence[Job], lease: Lease) -> Done | Retry | None:
        """Return how a reporting job ends or waits because of other delivery jobs, or None if it may report now."""
        must_wait = False
        for job in siblings:
            if not delivers_job_changes(job):
                must_wait = True
            elif int(job.id) > int(lease.job.id):
                return Done(reason="a newer job reports the changes")
            elif job.state is JobState.RUNNING:
                must_wait = True
        if not must_wait:
            return None
        error = "entries, or changes that another job is sending, are delivered first"
        return Retry(error=error, not_before=self._clock() + SHORTEST_WAIT)

    async def _retry_while_jobs_run(self, storage: StorageBackend, lease: Lease) -> Outcome:
        """Return a retry at the time when the jobs are read again, or `Done` if none is unfinished.

        They are read again when the first of them is due, but in at most a minute, and not before one second for each
        attempt so far (15 at most), which prevents a busy loop.
        """
        unfinished = [
            job for job in await list_unfinished_jobs(storage, lease.job.context) if job.kind != WEBHOOK
        ]
        if not unfinished:
            return Done()
        now = self._clock()
        earliest = now + SHORTEST_WAIT * min(lease.attempt, MAX_SHORT_WAITS)
        due = min(job.not_before if job.state is JobState.READY else now for job in unfinished)
        next_read = max(earliest, min(due, now + LONGEST_WAIT))
        # A job can only wait by being retried.
        return Retry(error="it reports changes of jobs that are not finished", not_before=next_read)

    def _build_entry_message(
        self, context: Context, entry: Entry, secret: str
    ) -> tuple[bytes, dict[str, str]]:
        """Return the body of the message for an entry, and its header fields."""
        data = {
            **_identify_log(context),
            "id": entry.id,
            "kind": entry.kind,
            "role": entry.role,
            "version": entry.version,
            "position": entry.position,
        }
        return self._build_message(entry.id, f"{entry.kind}.appended", entry.created_at, data, secret)

    def _build_job_message(self, context: Context, job: Job, secret: str) -> tuple[bytes, dict[str, str]]:
        """Return the body of the message for a job in its current state, and its header fields."""
        data = {
            **_identify_log(context),
            "id": job.id,
            "kind": job.kind,
            "state": job.state,
            "attempt": job.attempt,
        }
        id = f"{JOB}_{job.id}_{job.attempt}_{job.state}"
        return self._build_message(id, f"{JOB}.{job.state}", job.updated_at, data, secret)

    def _build_message(
        self, id: str, type: str, when: datetime, data: Mapping[str, Json], secret: str
    ) -> tuple[bytes, dict[str, str]]:
        """Return the body of a message, and its header fields."""
        body = {"type": type, "timestamp": format_instant(when), "data": data}
        content = json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()
        return content, sign_request(secret, id, int(self._clock().timestamp()), content)

    def _schedule_retry(self, id: str, failures: int, error: ProviderError) -> Retry | Failed:
        """Return a retry after a failed attempt and pause the webhook, or return `Failed` after the last attempt."""
        if failures > len(RETRY_SECONDS):
            return Failed(error=str(error))
        seconds = RETRY_SECONDS[failures - 1] * (0.8 + 0.4 * self._fraction())  # spread by 20 percent
        if error.retry_after is not None:
            seconds = max(seconds, min(error.retry_after, RETRY_SECONDS[-1]))
        # Other logs may try the same webhook sooner than this one.
        self._paused_until[id] = self._elapsed() + min(seconds, RETRY_SECONDS[0])
        return Retry(error=str(error), not_before=self._clock() + timedelta(seconds=seconds))


def _read_start_version(lease: Lease) -> int:
    """Return the version after which delivery begins, by default 0 for the whole log."""
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
    own_job = lease.job
    siblings: list[Job] = []
    for job in await list_unfinished_jobs(storage, own_job.context):
        is_same_webhook = job.kind == WEBHOOK and job.payload.get("webhook") == own_job.payload["webhook"]
        if is_same_webhook and job.id != own_job.id:
            siblings.append(job)
    return siblings


async def _find_start_cursor(storage: StorageBackend, lease: Lease) -> Cursor:
    """Return the cursor after all job changes that precede the first unfinished job reporting them."""
    context = lease.job.context
    siblings = await _list_sibling_jobs(storage, lease)
    reporting_jobs = [lease.job, *[job for job in siblings if delivers_job_changes(job)]]
    # The commit that enqueued a reporting job may have written the changes it reports a little earlier.
    since = min(job.created_at for job in reporting_jobs) - SHORTEST_WAIT
    page = await storage.jobs(JobQuery(context=context, limit=PAGE))
    unfinished = await list_unfinished_jobs(storage, context)
    jobs_by_id = {job.id: job for job in [*page.items, *unfinished] if job.kind != WEBHOOK}
    changed: list[Job] = []
    cursor = Cursor(job=0)
    for job in jobs_by_id.values():
        if job.updated_at < since:
            cursor = cursor.after_job(job)
        else:
            changed.append(job)
    for job in changed:
        if int(job.id) < (cursor.job or 0):
            # The change must be reported: the cursor gets a state that no real job has.
            cursor = cursor.after_job(replace(job, state=JobState.RUNNING, attempt=0))
    return cursor


def _create_endpoint(webhook: Webhook) -> Endpoint:
    return Endpoint(
        webhook.url,
        provider="the webhook",
        timeout=ANSWER_SECONDS,
        connect_timeout=ANSWER_SECONDS / 2,
        retry=RetryConfig(max_attempts=1),
        concurrency=1,
        trusted=webhook.private,
    )


async def try_finish_delivery(storage: StorageBackend, lease: Lease, version: int) -> bool:
    """End a job if the log still ends at a version; return False if the log has grown and there is more to deliver."""
    append = Append(context=lease.job.context, drafts=(), expect=Expect(version=version), finish=lease)
    (result,) = await storage.append([append])
    if isinstance(result, ConflictError) and not isinstance(result, LeaseLostError | GoneError):
        return False
    if isinstance(result, ACMSError):
        raise result
    return True
