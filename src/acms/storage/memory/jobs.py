"""The job queue of the store in memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from dataclasses import replace
from datetime import datetime, timedelta

from acms.model import EMPTY, UNFINISHED, Append, Done, Failed, Job, JobQuery, JobState, Lease, Page, Retry
from acms.storage import append_rules


class JobQueue:
    """The jobs of a store in plain Python."""

    def __init__(self, clock: Callable[[], datetime]) -> None:
        self._clock = clock
        self._jobs: dict[str, Job] = {}

    def enqueue(self, op: Append) -> None:
        """Do what an append does to jobs: end the one it finishes, add new ones."""
        now = self._clock()
        if op.finish is not None:
            job = self._held(op.finish)
            self._jobs[job.id] = replace(job, state=JobState.DONE, lease_until=None, updated_at=now)
        for draft in op.jobs:
            if self._twin(draft.dedupe) is not None:
                continue
            id = str(len(self._jobs) + 1)
            self._jobs[id] = Job(
                id=id,
                kind=draft.kind,
                dedupe=draft.dedupe,
                context=op.context,
                payload=dict(draft.payload),
                not_before=draft.not_before or now,
                created_at=now,
                updated_at=now,
            )

    def forget(self, contexts: Set[str], ids: Set[str]) -> None:
        """Empty the payloads of jobs of these contexts that name erased entries."""
        for id, job in self._jobs.items():
            if job.context in contexts and not ids.isdisjoint(job.payload.get("ids", ())):
                self._jobs[id] = replace(job, payload=EMPTY)

    def _twin(self, dedupe: str) -> Job | None:
        """Return the unfinished job of a name."""
        named = (job for job in self._jobs.values() if job.dedupe == dedupe)
        return next((job for job in named if job.state in UNFINISHED), None)

    def _held(self, lease: Lease) -> Job:
        job = self._jobs.get(lease.job.id)
        if job is None:
            raise append_rules.no_job(lease.job.id)
        if job.attempt != lease.attempt or job.state is not JobState.RUNNING:
            raise append_rules.lost(lease)
        return job

    def claim(self, kinds: Sequence[str], lease: timedelta, limit: int) -> list[Lease]:
        """Take due jobs, oldest first."""
        now = self._clock()
        due = [job for job in self._jobs.values() if job.kind in kinds and self._due(job, now)]
        found: list[Lease] = []
        for job in sorted(due, key=lambda job: (job.not_before, int(job.id)))[:limit]:
            taken = replace(
                job, state=JobState.RUNNING, attempt=job.attempt + 1, lease_until=now + lease, updated_at=now
            )
            self._jobs[job.id] = taken
            silent = job.state is JobState.RUNNING
            found.append(Lease(job=taken, attempt=taken.attempt, until=now + lease, silent=silent))
        return found

    def _due(self, job: Job, now: datetime) -> bool:
        if job.state not in UNFINISHED:
            return False
        when = job.not_before if job.state is JobState.READY else job.lease_until
        return when is None or when <= now or job.updated_at > now + append_rules.CLOCKS_DIFFER

    def extend(self, lease: Lease, by: timedelta) -> Lease:
        """Prolong a lease."""
        now = self._clock()
        job = self._jobs[lease.job.id] = replace(self._held(lease), lease_until=now + by, updated_at=now)
        return replace(lease, job=job, until=now + by)

    def settle(self, lease: Lease, outcome: Retry | Failed | Done) -> Job:
        """End an attempt that has no effect on the log."""
        job = self._jobs.get(lease.job.id)
        if job is None:
            raise append_rules.no_job(lease.job.id)
        if (job.attempt, job.state) != (lease.attempt, lease.job.state) or job.state is JobState.DONE:
            raise append_rules.lost(lease)
        state, error, due = append_rules.outcome(job, outcome)
        twin = self._twin(job.dedupe) if state is JobState.READY else None
        if twin is not None and twin.id != job.id:
            raise append_rules.taken(job.id, twin.id)
        job = replace(
            job, state=state, error=error, not_before=due, lease_until=None, updated_at=self._clock()
        )
        self._jobs[job.id] = job
        return job

    def page(self, query: JobQuery) -> Page[Job]:
        """List jobs, newest first."""
        found = [
            job
            for job in sorted(self._jobs.values(), key=lambda job: -int(job.id))
            if (not query.ids or job.id in query.ids)
            and (query.context is None or job.context == query.context)
            and (not query.states or job.state in query.states)
            and (query.after is None or int(job.id) < append_rules.job_number(query.after))
        ]
        shown = tuple(found[: query.limit])
        return Page(items=shown, next_after=shown[-1].id if len(found) > query.limit else None)
