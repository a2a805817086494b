"""The jobs of a PostgreSQL store: claimed past each other (SKIP LOCKED), timed by the clock of the database."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

from acms.errors import ConflictError, LeaseLostError
from acms.log.hash_chain import micros
from acms.model import Done, Failed, Job, JobQuery, JobState, Lease, Page, Retry
from acms.storage import append_rules
from acms.storage.postgres.base import PostgresBase
from acms.storage.sql import read_job

_MICROSECOND = timedelta(microseconds=1)
DIFFER = append_rules.CLOCKS_DIFFER // _MICROSECOND


class PostgresJobs(PostgresBase):
    """A PostgreSQL store with its jobs."""

    async def claim(self, kinds: Sequence[str], *, lease: timedelta, limit: int = 1) -> list[Lease]:
        """Take due jobs, oldest first; workers that claim at once take different ones."""
        values = {
            "kinds": list(kinds),
            "lease": lease // _MICROSECOND,
            "limit": limit,
            "differ": DIFFER,
        }
        # A claim that nobody heard of runs out with its lease: asking again is safe.
        rows = await self._one("claim_job", values)
        found: list[Lease] = []
        for *columns, before in rows:
            job = read_job(columns)
            assert job.lease_until is not None
            silent = before == JobState.RUNNING
            found.append(Lease(job=job, attempt=job.attempt, until=job.lease_until, silent=silent))
        return sorted(found, key=lambda lease: (lease.job.not_before, int(lease.job.id)))

    async def extend(self, lease: Lease, *, by: timedelta) -> Lease:
        """Prolong a lease."""
        values = {
            "id": append_rules.job_number(lease.job.id),
            "attempt": lease.attempt,
            "by": by // _MICROSECOND,
        }
        rows = await self._one("extend_job", values)
        if not rows:
            raise await self._lost(lease)
        job = read_job(rows[0])
        assert job.lease_until is not None
        return replace(lease, job=job, until=job.lease_until)

    async def settle(self, lease: Lease, outcome: Retry | Failed | Done) -> Job:
        """End an attempt that has no effect on the log."""
        number = append_rules.job_number(lease.job.id)
        job = await self._job(number)
        state, error, due = append_rules.outcome(job, outcome)
        values = {
            "state": state.value,
            "error": error,
            "not_before": micros(due),
            "id": number,
            "attempt": lease.attempt,
            "seen": lease.job.state.value,
        }
        as_seen = (job.attempt, job.state) == (lease.attempt, lease.job.state)
        if as_seen and state is JobState.READY:
            await self._no_twin(job, number)
        try:
            rows = await self._one("settle_job", values)
        except ConflictError:  # the unique index: another job took the name in this moment
            await self._no_twin(job, number)
            raise
        if rows:
            return read_job(rows[0])
        now = await self._job(number)
        unheard = as_seen and job.state is not JobState.DONE
        if unheard and (now.attempt, now.state, now.error) == (lease.attempt, state, error):
            return now  # written by a try of which nobody heard
        raise await self._lost(lease)

    async def _no_twin(self, job: Job, number: int) -> None:
        """Refuse to bring back a job while another one does its work."""
        twin = await self._one("twin", {"dedupe": job.dedupe, "id": number})
        if twin:
            raise append_rules.taken(job.id, str(twin[0][0]))

    async def _lost(self, lease: Lease) -> LeaseLostError:
        """Say that another attempt holds the job; `GoneError` when there is no such job."""
        await self._job(append_rules.job_number(lease.job.id))
        return append_rules.lost(lease)

    async def _job(self, number: int) -> Job:
        rows = await self._one("job", {"id": number})
        if not rows:
            raise append_rules.no_job(number)
        return read_job(rows[0])

    async def jobs(self, query: JobQuery) -> Page[Job]:
        """List jobs, newest first."""
        values = {
            "context": query.context,
            "ids": [append_rules.job_number(id) for id in query.ids] if query.ids else None,
            "states": [state.value for state in query.states] if query.states else None,
            "after": None if query.after is None else append_rules.job_number(query.after),
            "limit": query.limit + 1,
        }
        which = "unfinished_jobs" if append_rules.unfinished(query) else "jobs"
        rows = await self._one(which, values)
        found = [read_job(row) for row in rows[: query.limit]]
        return Page(items=tuple(found), next_after=found[-1].id if len(rows) > query.limit else None)
