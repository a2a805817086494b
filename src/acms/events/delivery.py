"""Delivers what was appended to a log to a webhook: at least once, in the order of the log, without text.

A job stands for one log and one webhook. It sends entry after entry, keeps how far it came after each, and ends in an
append that the store refuses when the log has grown meanwhile. So nothing is left out: whoever dies anywhere leaves the
job behind, and the next attempt begins with the first entry of which was not kept that it was taken.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from time import monotonic

from acms.config import RetryConfig
from acms.errors import ACMSError, ConflictError, GoneError, LeaseLostError, ProviderError
from acms.events.signing import signed
from acms.events.webhooks import Progress, Webhooks
from acms.jobs.worker import Outcome
from acms.model import Append, Context, Done, Entry, Expect, Failed, Kind, Lease, Retry
from acms.ports import StorageBackend
from acms.providers.http import Endpoint
from acms.results import Webhook

__all__ = ["Delivery", "ended"]

WAITS = (5, 30, 120, 600, 1800, 3600, 7200, 14_400, 28_800, 43_200)
"""Seconds before the next attempt, after each that failed; after the last one the delivery is given up."""
SECONDS = 10.0
"""For an answer."""
PLACES = 2
"""Logs that are delivered to one webhook at a time in one process: a slow one does not keep others waiting."""
TURN = timedelta(seconds=1)
TURNS = 30
"""After which a job looks again whether there is a place: later each time, as many may wait."""
ENTRIES = 50


class Delivery:
    """What delivers in one process."""

    def __init__(
        self,
        *,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        elapsed: Callable[[], float] = monotonic,
        fraction: Callable[[], float] = random.random,
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
            later = self._clock() + TURN * min(lease.attempt, TURNS)
            return Retry(error="others are delivered to this webhook", not_before=later)
        rest = self._rests.get(id, 0.0) - self._elapsed()
        if rest > 0:
            later = self._clock() + timedelta(seconds=rest)
            return Retry(error="the webhook did not answer as it should", not_before=later)
        self._busy[id] += 1
        try:
            return await self._deliver(storage, lease, webhooks, context, *found)
        finally:
            self._busy[id] -= 1

    async def _deliver(
        self,
        storage: StorageBackend,
        lease: Lease,
        webhooks: Webhooks,
        context: Context,
        webhook: Webhook,
        secret: str,
    ) -> Outcome:
        progress = await webhooks.progress(webhook.id, context.id)
        if progress is None:  # kept before anything is sent: the job that follows this one does not know it
            progress = Progress(version=_first(lease))
            await webhooks.keep(webhook.id, context.id, progress)
        async with _endpoint(webhook) as endpoint:
            while True:
                head = await storage.head(context.id)
                entries = await storage.read(
                    context.id,
                    after=progress.version,
                    at=head.version,
                    kinds=[Kind(kind) for kind in webhook.events],
                    limit=ENTRIES,
                )
                if not entries:
                    if await ended(storage, lease, head.version):
                        return None
                    continue
                for entry in entries:
                    try:
                        await endpoint.notify(*self._message(context, entry, secret))
                    except ProviderError as error:
                        failed = Progress(version=progress.version, failures=progress.failures + 1)
                        await webhooks.keep(webhook.id, context.id, failed)
                        return self._failed(webhook.id, failed.failures, error)
                    progress = Progress(version=entry.version)
                    await webhooks.keep(webhook.id, context.id, progress)

    def _message(self, context: Context, entry: Entry, secret: str) -> tuple[bytes, dict[str, str]]:
        """Return what is sent for an entry, and its header fields."""
        content = json.dumps(
            {
                "type": f"{entry.kind}.appended",
                "timestamp": entry.created_at.astimezone(UTC).isoformat().replace("+00:00", "Z"),
                "data": {
                    "contextId": context.id,
                    "sessionId": context.key or context.id,
                    "namespace": context.namespace,
                    "id": entry.id,
                    "kind": entry.kind,
                    "role": entry.role,
                    "version": entry.version,
                    "position": entry.position,
                },
            },
            ensure_ascii=False,
            separators=(",", ":"),
        ).encode()
        return content, signed(secret, entry.id, int(self._clock().timestamp()), content)

    def _failed(self, id: str, failures: int, error: ProviderError) -> Retry | Failed:
        """Return when an attempt that failed is followed by the next one; `Failed` after the last."""
        if failures > len(WAITS):
            return Failed(error=str(error))
        seconds = WAITS[failures - 1] * (0.8 + 0.4 * self._fraction())
        if error.retry_after is not None:
            seconds = max(seconds, min(error.retry_after, WAITS[-1]))
        self._rests[id] = self._elapsed() + min(seconds, WAITS[0])
        return Retry(error=str(error), not_before=self._clock() + timedelta(seconds=seconds))


def _first(lease: Lease) -> int:
    """Return the version behind which delivery begins; all of the log in doubt."""
    after = lease.job.payload.get("after", 0)
    return after if isinstance(after, int) else 0


def _endpoint(webhook: Webhook) -> Endpoint:
    return Endpoint(
        webhook.url,
        provider="the webhook",
        timeout=SECONDS,
        connect_timeout=SECONDS / 2,
        retry=RetryConfig(max_attempts=1),
        concurrency=1,
        trusted=webhook.private,
    )


async def ended(storage: StorageBackend, lease: Lease, version: int) -> bool:
    """End a job if the log still ends at a version; else there is more to deliver."""
    op = Append(context=lease.job.context, drafts=(), expect=Expect(version=version), finish=lease)
    (result,) = await storage.append([op])
    if isinstance(result, ConflictError) and not isinstance(result, LeaseLostError | GoneError):
        return False
    if isinstance(result, ACMSError):
        raise result
    return True
