"""The job queue in PostgreSQL: claimed past each other (SKIP LOCKED), timed by the clock of the database."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from datetime import timedelta

import psycopg

from acms.errors import ACMSError, ConflictError, LeaseLostError
from acms.log.encoding import to_microseconds
from acms.model import Done, Failed, Job, JobQuery, JobState, Lease, Page, Retry
from acms.observability.logging import log_event
from acms.storage import append_rules
from acms.storage.postgres.database import Database
from acms.storage.postgres.pool import Connection
from acms.storage.sql import read_job

_MICROSECOND = timedelta(microseconds=1)
CLOCKS_DIFFER = append_rules.CLOCKS_DIFFER // _MICROSECOND
CHANNEL = "acms_jobs"


class JobQueue:
    """The job queue of a tenant; with `hints` it notifies other processes of enqueued jobs."""

    def __init__(self, db: Database, *, hints: bool) -> None:
        self._db = db
        #: Whether workers in other processes are notified of new jobs, so that they need not poll.
        self.hints = hints
        #: Collects jobs for one notification.
        self._next_notification: asyncio.Task[None] | None = None
        #: Notifications to finish before the handle is closed.
        self.notifications: set[asyncio.Task[None]] = set()

    async def claim(self, kinds: Sequence[str], *, lease: timedelta, limit: int = 1) -> list[Lease]:
        """Take due jobs, oldest first; workers that claim at once take different ones.

        A lease is `silent` if the job's last worker let its lease expire without settling the job.
        """
        lease_microseconds = lease // _MICROSECOND
        values = {"kinds": list(kinds), "lease": lease_microseconds, "limit": limit, "differ": CLOCKS_DIFFER}
        # A claim whose answer was lost expires with its lease, so asking again is safe.
        rows = await self._db.query("claim_job", values)
        leases: list[Lease] = []
        for *columns, state_before in rows:
            job = read_job(columns)
            assert job.lease_until is not None
            silent = state_before == JobState.RUNNING
            leases.append(Lease(job=job, attempt=job.attempt, until=job.lease_until, silent=silent))
        return sorted(leases, key=lambda lease: (lease.job.not_before, int(lease.job.id)))

    async def extend(self, lease: Lease, *, by: timedelta) -> Lease:
        """Prolong a lease."""
        number = append_rules.job_number(lease.job.id)
        values = {"id": number, "attempt": lease.attempt, "by": by // _MICROSECOND}
        rows = await self._db.query("extend_job", values)
        if not rows:
            raise await self._lease_error(lease)
        job = read_job(rows[0])
        assert job.lease_until is not None
        return replace(lease, job=job, until=job.lease_until)

    async def settle(self, lease: Lease, outcome: Retry | Failed | Done) -> Job:
        """End an attempt that has no effect on the log.

        If the update finds no row, either this attempt wrote it and the answer was lost, or the lease is not valid
        any more.
        """
        number = append_rules.job_number(lease.job.id)
        job = await self._job(number)
        state, error, due = append_rules.resolve_outcome(job, outcome)
        values = {"state": state.value, "error": error, "not_before": to_microseconds(due)}
        values |= {"id": number, "attempt": lease.attempt, "seen": lease.job.state.value}
        is_unchanged = (job.attempt, job.state) == (lease.attempt, lease.job.state)
        # Back in the queue, it must not share its name with another active job.
        if is_unchanged and state is JobState.READY:
            await self._refuse_active_twin(job, number)
        try:
            rows = await self._db.query("settle_job", values)
        except ConflictError:  # the unique index: another job took the name in this moment
            await self._refuse_active_twin(job, number)
            raise
        if rows:
            return read_job(rows[0])
        current = await self._job(number)
        may_have_been_written = is_unchanged and job.state is not JobState.DONE
        if may_have_been_written and (current.attempt, current.state, current.error) == (
            lease.attempt,
            state,
            error,
        ):
            return current  # written by an attempt whose answer was lost
        raise await self._lease_error(lease)

    async def finish(self, connection: Connection, lease: Lease) -> None:
        """End an attempt as done inside a transaction; if its lease was lost, the error rolls the transaction back."""
        values = {"id": append_rules.job_number(lease.job.id), "attempt": lease.attempt}
        if not await self._db.query_in(connection, "finish_job", values):
            raise await self._lease_error(lease)

    async def _refuse_active_twin(self, job: Job, number: int) -> None:
        """Refuse to bring back a job while another one does its work."""
        twin = await self._db.query("twin", {"dedupe": job.dedupe, "id": number})
        if twin:
            raise append_rules.duplicate_job_error(job.id, str(twin[0][0]))

    async def _lease_error(self, lease: Lease) -> LeaseLostError:
        """Return the error for a lease that another attempt took; raise `GoneError` when there is no such job."""
        await self._job(append_rules.job_number(lease.job.id))  # raises the `GoneError`
        return append_rules.lease_lost_error(lease)

    async def _job(self, number: int) -> Job:
        rows = await self._db.query("job", {"id": number})
        if not rows:
            raise append_rules.job_missing_error(number)
        return read_job(rows[0])

    async def jobs(self, query: JobQuery) -> Page[Job]:
        """List jobs, newest first."""
        ids = [append_rules.job_number(id) for id in query.ids] or None
        states = [state.value for state in query.states] or None
        after = None if query.after is None else append_rules.job_number(query.after)
        values = {"context": query.context, "ids": ids, "states": states, "after": after}
        values["limit"] = query.limit + 1
        query_name = "unfinished_jobs" if append_rules.is_unfinished_query(query) else "jobs"
        rows = await self._db.query(query_name, values)
        return append_rules.build_page(rows, query.limit, read_job)

    # ── hints ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def announce(self) -> None:
        """Notify other processes that jobs were enqueued: one notification for all of the next 20 milliseconds."""
        if self.hints and self._next_notification is None:
            self._next_notification = asyncio.ensure_future(self._notify())
            self.notifications.add(self._next_notification)
            self._next_notification.add_done_callback(self.notifications.discard)

    async def _notify(self) -> None:
        await asyncio.sleep(0.02)  # more jobs may come and share the notification
        self._next_notification = None
        with suppress(ACMSError):  # only a hint
            await self._db.query("hint", {"channel": CHANNEL})

    @asynccontextmanager
    async def listen(self, wake: Callable[[], object]) -> AsyncGenerator[None]:
        """Call `wake`, inside the block, when a handle opened with `hints=True` reports enqueued jobs."""
        await self._db.open()
        if self._db.pool.pooled:
            yield
            return
        task = asyncio.ensure_future(self._listen(wake))
        try:
            yield
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def _listen(self, wake: Callable[[], object]) -> None:
        """Call `wake` for each notification for this tenant; reconnect when the connection breaks."""
        while True:
            try:
                async with await self._db.pool.open_dedicated() as connection:
                    await connection.execute(f"LISTEN {CHANNEL}")
                    connection.limit = None  # it may be quiet for long
                    async for notification in connection.notifies():
                        if notification.payload == self._db.tenant:
                            wake()
            except psycopg.Error as error:
                log_event(logging.WARNING, "hints_interrupted", error=type(error).__name__)
            await asyncio.sleep(1)  # before the next attempt to connect
