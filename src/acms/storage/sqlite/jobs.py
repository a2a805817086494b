"""The job queue of an SQLite file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

import apsw

from acms.errors import LeaseLostError
from acms.log.encoding import dump, from_microseconds, to_microseconds
from acms.model import Append, Done, Failed, Job, JobQuery, JobState, Lease, Page, Retry
from acms.storage import append_rules
from acms.storage.sql import read_job
from acms.storage.sqlite.tables import Row, Tables

CLOCKS_DIFFER = append_rules.CLOCKS_DIFFER // timedelta(microseconds=1)


class JobQueue:
    """The jobs of a tenant: operations that a writer, or a reader, runs on its connection."""

    def __init__(self, tables: Tables, clock: Callable[[], datetime]) -> None:
        self._tables = tables
        self._clock = clock
        #: When it was last checked, with no result, whether a job was changed in the future.
        self._last_check = -CLOCKS_DIFFER

    def enqueue(self, connection: apsw.Connection, op: Append) -> None:
        """Apply the job changes of an append: end the one it finishes, add new ones."""
        now, tenant = to_microseconds(self._clock()), self._tables.tenant
        if op.finish is not None:  # first: a job may enqueue its successor under its own name
            number = append_rules.job_number(op.finish.job.id)
            if self._tables.row(connection, "finish_job", (now, tenant, number, op.finish.attempt)) is None:
                raise self._lease_error(connection, op.finish)
        for job in op.jobs:
            due = now if job.not_before is None else to_microseconds(job.not_before)
            payload = dump(dict(job.payload)) if job.payload else None
            values = (tenant, op.context, job.kind, job.dedupe, payload, due, now, now)
            self._tables.rows(connection, "insert_job", values)

    def check_due(self, connection: apsw.Connection, kinds: Sequence[str], limit: int) -> tuple[bool, bool]:
        """Return whether jobs are due, and whether one was changed in the future; writes nothing."""
        now = to_microseconds(self._clock())
        has_future_job = self._has_job_from_future(connection, now)
        due_jobs = self._due(connection, kinds, now, has_future_job=has_future_job, limit=limit)
        return bool(due_jobs), has_future_job

    def _has_job_from_future(self, connection: apsw.Connection, now: int) -> bool:
        """Return whether a job was changed at a time that is still to come, because the clock was set back.

        Looked up once a minute, or at once when the clock goes back.
        """
        if 0 <= now - self._last_check < CLOCKS_DIFFER:
            return False
        values = (self._tables.tenant, now + CLOCKS_DIFFER)
        has_job = self._tables.row(connection, "jobs_ahead", values) is not None
        if not has_job:
            self._last_check = now
        return has_job

    def _due(
        self, connection: apsw.Connection, kinds: Sequence[str], now: int, *, has_future_job: bool, limit: int
    ) -> Sequence[Row]:
        values = {"tenant": self._tables.tenant, "kinds": dump(list(kinds)), "now": now, "limit": limit}
        if has_future_job:
            values["changed"] = now + CLOCKS_DIFFER
        return self._tables.rows(connection, "due_jobs_ahead" if has_future_job else "due_jobs", values)

    def claim(
        self,
        connection: apsw.Connection,
        kinds: Sequence[str],
        *,
        lease: timedelta,
        limit: int,
        has_future_job: bool,
    ) -> list[Lease]:
        """Take due jobs, oldest first.

        `has_future_job` says whether a job was changed at a time that is still to come (see `check_due`). A lease is
        `silent` if the job's last worker let its lease expire without settling the job.
        """
        now = to_microseconds(self._clock())
        lease_until = now + lease // timedelta(microseconds=1)
        leases: list[Lease] = []
        for id, state in self._due(connection, kinds, now, has_future_job=has_future_job, limit=limit):
            self._tables.rows(connection, "claim_job", (lease_until, now, self._tables.tenant, id))
            job, silent = self._job(connection, id), state == JobState.RUNNING
            leases.append(
                Lease(job=job, attempt=job.attempt, until=from_microseconds(lease_until), silent=silent)
            )
        return leases

    def extend(self, connection: apsw.Connection, lease: Lease, by: timedelta) -> Lease:
        """Prolong a lease."""
        now = to_microseconds(self._clock())
        lease_until = now + by // timedelta(microseconds=1)
        number = append_rules.job_number(lease.job.id)
        values = (lease_until, now, self._tables.tenant, number, lease.attempt)
        row = self._tables.row(connection, "extend_job", values)
        if row is None:
            raise self._lease_error(connection, lease)
        return replace(lease, job=self._job(connection, row[0]), until=from_microseconds(lease_until))

    def settle(self, connection: apsw.Connection, lease: Lease, outcome: Retry | Failed | Done) -> Job:
        """End an attempt that has no effect on the log."""
        now, tenant = to_microseconds(self._clock()), self._tables.tenant
        number = append_rules.job_number(lease.job.id)
        job = self._job(connection, number)
        state, error, due = append_rules.resolve_outcome(job, outcome)
        is_unchanged = (job.attempt, job.state) == (lease.attempt, lease.job.state)
        # Back in the queue, it must not share its name with another active job.
        if is_unchanged and state is JobState.READY:
            twin = self._tables.row(connection, "twin", (tenant, job.dedupe, number))
            if twin is not None:
                raise append_rules.duplicate_job_error(job.id, str(twin[0]))
        values = (
            state.value,
            error,
            to_microseconds(due),
            now,
            tenant,
            number,
            lease.attempt,
            lease.job.state.value,
        )
        if self._tables.row(connection, "settle_job", values) is None:
            raise self._lease_error(connection, lease)
        return self._job(connection, number)

    def _lease_error(self, connection: apsw.Connection, lease: Lease) -> LeaseLostError:
        """Return the error for a lease that another attempt took; raise `GoneError` when there is no such job."""
        self._job(connection, append_rules.job_number(lease.job.id))  # raises the `GoneError`
        return append_rules.lease_lost_error(lease)

    def _job(self, connection: apsw.Connection, id: int) -> Job:
        row = self._tables.row(connection, "job", (self._tables.tenant, id))
        if row is None:
            raise append_rules.job_missing_error(id)
        return read_job(row)

    def page(self, connection: apsw.Connection, query: JobQuery) -> Page[Job]:
        """List jobs, newest first."""
        values = {
            "tenant": self._tables.tenant,
            "context": query.context,
            "ids": dump([append_rules.job_number(id) for id in query.ids]) if query.ids else None,
            "states": dump([state.value for state in query.states]) if query.states else None,
            "after": None if query.after is None else append_rules.job_number(query.after),
            "limit": query.limit + 1,
        }
        query_name = "unfinished_jobs" if append_rules.is_unfinished_query(query) else "jobs"
        rows = self._tables.rows(connection, query_name, values)
        return append_rules.build_page(rows, query.limit, read_job)
