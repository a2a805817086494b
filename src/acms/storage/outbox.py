"""The outbox: an append requests, in the same commit, its delivery to the webhooks of the tenant.

The request is a job enqueued with the append, one for each webhook and log. The append and its job are committed
together or not at all, in every process. An append that changes jobs requests another job, which reports their
progress. The tenant's own values list the webhooks. The list is cached for two seconds, so a tenant without webhooks
pays one read in that time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from time import monotonic
from typing import Any, TypeAlias
from uuid import uuid4

from acms.errors import ACMSError
from acms.log.validation import NAME_CHARS
from acms.model import WEBHOOK, Append, JobDraft, Json, Receipt
from acms.ports import KVMemory, StorageBackend
from acms.runtime.loops import PerLoop
from acms.storage import handles

WEBHOOKS = "webhooks"
"""Key of the tenant's own value that has its webhooks by their ids."""
JOB = "job"
"""The event kind of a webhook for changes of jobs; the others are kinds of entries."""
FRESH = 2.0
"""Seconds for which the list of webhooks is cached."""

Appender: TypeAlias = Callable[[Sequence[Append]], Awaitable[list[Receipt | ACMSError]]]


def own_name(tenant: str) -> str:
    """Return the name under which a store keeps ACMS's own data about a tenant."""
    name = f"@{tenant}"
    return name if len(name) <= NAME_CHARS else f"@{sha256(tenant.encode()).hexdigest()}"


class Outbox:
    """Adds the jobs that deliver webhooks to the appends of a storage handle."""

    def __init__(
        self, storage: StorageBackend, kv: KVMemory, *, elapsed: Callable[[], float] = monotonic
    ) -> None:
        self._storage = storage
        self._kv = kv
        self._elapsed = elapsed
        self._valid_until = -1.0
        #: The kinds that each webhook subscribes to.
        self._events_of: Mapping[str, frozenset[str]] | None = None
        #: (webhook, log) whose delivery has begun; ("", log) for a log of the service's own.
        self._begun_deliveries: set[tuple[str, str]] = set()
        #: Held while the list is read: other appends wait for the result, including a failure.
        self._reading: PerLoop[asyncio.Lock] = PerLoop(asyncio.Lock)
        self._reads = 0
        #: Why the list of webhooks could not be read.
        self._read_error: ACMSError | None = None
        #: Appends that read the list first: closing the store waits for them.
        self._waiting: PerLoop[set[asyncio.Future[None]]] = PerLoop(set)

    async def append(self, ops: Sequence[Append], append: Appender) -> list[Receipt | ACMSError]:
        """Append, and request the webhook deliveries in the same commit.

        The list of webhooks is read again when it is older than `FRESH`; appends at the same time share one read.
        """
        if self._elapsed() < self._valid_until:
            return await self._append(ops, append)
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting = self._waiting.here()
        waiting.add(done)
        try:
            reads_before = self._reads
            async with self._reading.here():
                # Another append may have read the list while this one waited for the lock; a failure counts too.
                if self._elapsed() >= self._valid_until and self._reads == reads_before:
                    await self._read_webhooks()
            error = self._read_error
            if error is not None:  # nothing was written
                return [error] * len(ops)
            return await self._append(ops, append)
        finally:
            waiting.discard(done)
            done.set_result(None)

    async def wait_until_idle(self) -> None:
        """Wait for the appends under way that read the list first."""
        waiting = self._waiting.get()
        while waiting:
            await asyncio.wait(waiting)
            waiting = self._waiting.get()

    async def _append(self, ops: Sequence[Append], append: Appender) -> list[Receipt | ACMSError]:
        """Append with the jobs that deliver to webhooks, and wake the worker for them."""
        if not self._events_of:
            return await append(ops)
        extended = [await self._with_deliveries(op) for op in ops]
        results = await append(extended)
        if any(op.jobs for op in extended):
            background = handles.get_loop_state(self._storage).background
            if background is not None:
                background.poke()
        return results

    async def _read_webhooks(self) -> None:
        """Read the list of webhooks; if the store does not answer, the previous list stays valid."""
        valid_until = self._elapsed() + FRESH
        try:
            entry = await self._kv.get(WEBHOOKS)
        except ACMSError as error:
            self._read_error = error if self._events_of is None else None
            self._reads += 1
            return
        self._read_error = None
        self._reads += 1
        rows: Mapping[str, Any] = {} if entry is None else entry.data
        events_of = {id: frozenset(row["events"]) for id, row in rows.items()}
        # The first job of a new webhook must say at which version its delivery begins.
        if events_of != self._events_of:
            self._begun_deliveries.clear()
        self._events_of, self._valid_until = events_of, valid_until

    async def _with_deliveries(self, op: Append) -> Append:
        """Return an append with the jobs that deliver it."""
        kinds = {draft.kind.value for draft in op.drafts}
        reports_jobs = _changes_jobs(op)
        jobs: list[JobDraft] = []
        for id, events in (self._events_of or {}).items():
            name = f"{WEBHOOK}:{id}:{op.context}"
            if kinds & events:
                payload = await self._build_payload(id, op.context)
                if payload is not None:
                    jobs.append(JobDraft(kind=WEBHOOK, dedupe=name, payload=payload))
            if reports_jobs and JOB in events:
                payload = await self._build_payload(id, op.context, JOB)
                if payload is not None:
                    # A name of its own: an unfinished job may have read the jobs a moment ago.
                    name = f"{name}:{uuid4().hex}"
                    jobs.append(JobDraft(kind=WEBHOOK, dedupe=name, payload={**payload, "follows": JOB}))
        return replace(op, jobs=(*op.jobs, *jobs)) if jobs else op

    async def _build_payload(self, id: str, context: str, suffix: str = "") -> Mapping[str, Json] | None:
        """Return the payload of a job: the log's version when its delivery began; None for a log of the service's own.

        Only the first job of a log needs the version, and only the first one requested by this process has it.
        """
        if (id + suffix, context) in self._begun_deliveries:
            return {"webhook": id}
        if ("", context) in self._begun_deliveries:
            return None
        try:
            namespace = (await self._storage.context(context)).namespace
            version = (await self._storage.head(context)).version
        except ACMSError:  # the append reports it better
            return {"webhook": id}
        if len(self._begun_deliveries) >= 100_000:  # tens of megabytes
            self._begun_deliveries.clear()
        # The log holds data of the service itself: no webhook reports it.
        if namespace.startswith("@"):
            self._begun_deliveries.add(("", context))
            return None
        self._begun_deliveries.add((id + suffix, context))
        return {"webhook": id, "after": version}


def _changes_jobs(op: Append) -> bool:
    """Return whether an append changes jobs other than those that deliver webhooks."""
    if op.finish is not None and op.finish.job.kind == WEBHOOK:
        return False
    # An append without entries exists for this purpose: a job was settled that no job follows any more.
    is_empty = not op.drafts and op.tail is None
    return bool(op.jobs) or op.finish is not None or is_empty
