"""The jobs of a store in one SQLite file, and its upkeep: copies and checks."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import apsw

from acms.errors import LeaseLostError, StorageError
from acms.log.entry_json import dump
from acms.log.hash_chain import micros, moment
from acms.model import Done, Failed, Job, JobQuery, JobState, Lease, Page, Retry
from acms.storage import append_rules
from acms.storage.files import create
from acms.storage.sql import read_job
from acms.storage.sqlite.file import SQLiteFile

Row = Sequence[Any]

CLOCKS_DIFFER = append_rules.CLOCKS_DIFFER // timedelta(microseconds=1)


class SQLiteJobs(SQLiteFile):
    """An SQLite file with its named queries, its jobs and its upkeep."""

    #: Owner of everything this handle reads and writes.
    tenant: str
    _sql: Mapping[str, str]
    #: When no job was found that was changed in the future.
    _looked = -CLOCKS_DIFFER

    def _rows(self, connection: apsw.Connection, query: str, parameters: Any = ()) -> Sequence[Row]:
        return connection.execute(self._sql[query], parameters).fetchall()

    def _row(self, connection: apsw.Connection, query: str, parameters: Any = ()) -> Row | None:
        rows = connection.execute(self._sql[query], parameters).fetchall()
        return rows[0] if rows else None

    # ── jobs ────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def claim(self, kinds: Sequence[str], *, lease: timedelta, limit: int = 1) -> list[Lease]:
        """Take due jobs, oldest first."""

        def due(connection: apsw.Connection, now: int, ahead: bool) -> Sequence[Row]:
            given = {"tenant": self.tenant, "kinds": dump(list(kinds)), "now": now, "limit": limit}
            if ahead:
                return self._rows(connection, "due_jobs_ahead", {**given, "changed": now + CLOCKS_DIFFER})
            return self._rows(connection, "due_jobs", given)

        def look(connection: apsw.Connection) -> tuple[bool, bool]:
            now = micros(self._clock())
            ahead = self._ahead(connection, now)
            return bool(due(connection, now, ahead)), ahead

        # A worker that finds nothing takes no write lock and syncs no disk: idle ones disturb nobody.
        some, ahead = await self._read(look)
        if not some:
            return []

        def work(connection: apsw.Connection) -> list[Lease]:
            now = micros(self._clock())
            until = now + lease // timedelta(microseconds=1)
            found: list[Lease] = []
            for id, state in due(connection, now, ahead):
                connection.execute(self._sql["claim_job"], (until, now, self.tenant, id)).fetchall()
                job, silent = self._job(connection, id), state == JobState.RUNNING
                found.append(Lease(job=job, attempt=job.attempt, until=moment(until), silent=silent))
            return found

        return await self._write(work)

    def _ahead(self, connection: apsw.Connection, now: int) -> bool:
        """Return whether a job was changed in the future; looked up when the clock was set back, else once a minute."""
        if 0 <= now - self._looked < CLOCKS_DIFFER:
            return False
        found = self._row(connection, "jobs_ahead", (self.tenant, now + CLOCKS_DIFFER)) is not None
        if not found:
            self._looked = now
        return found

    async def extend(self, lease: Lease, *, by: timedelta) -> Lease:
        """Prolong a lease."""

        def work(connection: apsw.Connection) -> Lease:
            now = micros(self._clock())
            until = now + by // timedelta(microseconds=1)
            number = append_rules.job_number(lease.job.id)
            row = self._row(connection, "extend_job", (until, now, self.tenant, number, lease.attempt))
            if row is None:
                raise self._lost(connection, lease)
            return replace(lease, job=self._job(connection, row[0]), until=moment(until))

        return await self._write(work)

    async def settle(self, lease: Lease, outcome: Retry | Failed | Done) -> Job:
        """End an attempt that has no effect on the log."""

        def work(connection: apsw.Connection) -> Job:
            now = micros(self._clock())
            number = append_rules.job_number(lease.job.id)
            job = self._job(connection, number)
            state, error, due = append_rules.outcome(job, outcome)
            as_seen = (job.attempt, job.state) == (lease.attempt, lease.job.state)
            if as_seen and state is JobState.READY:
                twin = self._row(connection, "twin", (self.tenant, job.dedupe, number))
                if twin is not None:
                    raise append_rules.taken(job.id, str(twin[0]))
            values = (state.value, error, micros(due), now, self.tenant, number, lease.attempt)
            if self._row(connection, "settle_job", (*values, lease.job.state.value)) is None:
                raise self._lost(connection, lease)
            return self._job(connection, number)

        return await self._write(work)

    def _lost(self, connection: apsw.Connection, lease: Lease) -> LeaseLostError:
        """Say that another attempt holds the job; `GoneError` when there is no such job."""
        self._job(connection, append_rules.job_number(lease.job.id))
        return append_rules.lost(lease)

    def _job(self, connection: apsw.Connection, id: int) -> Job:
        row = self._row(connection, "job", (self.tenant, id))
        if row is None:
            raise append_rules.no_job(id)
        return read_job(row)

    async def jobs(self, query: JobQuery) -> Page[Job]:
        """List jobs, newest first."""
        values = {
            "tenant": self.tenant,
            "context": query.context,
            "ids": dump([append_rules.job_number(id) for id in query.ids]) if query.ids else None,
            "states": dump([state.value for state in query.states]) if query.states else None,
            "after": None if query.after is None else append_rules.job_number(query.after),
            "limit": query.limit + 1,
        }
        which = "unfinished_jobs" if append_rules.unfinished(query) else "jobs"
        rows = await self._read(lambda connection: self._rows(connection, which, values))
        found = [read_job(row) for row in rows[: query.limit]]
        return Page(items=tuple(found), next_after=found[-1].id if len(rows) > query.limit else None)

    # ── maintenance of the file ─────────────────────────────────────────────────────────────────────────────────────

    async def backup(
        self, to: str | os.PathLike[str], *, progress: Callable[[int, int], None] | None = None
    ) -> None:
        """Copy the whole file while it is in use; `progress` receives (pages done, pages in all)."""
        target = Path(to)

        def work(source: apsw.Connection) -> None:
            if not create(target):
                raise StorageError(f"{target} exists", options=("choose another name",))
            destination = apsw.Connection(str(target))
            try:
                with destination.backup("main", source, "main") as copy:
                    while not copy.done:
                        copy.step(512)
                        if progress is not None:
                            progress(copy.page_count - copy.remaining, copy.page_count)
            finally:
                destination.close()

        await self._read(work, large=True)

    async def integrity(self) -> list[str]:
        """Return what SQLite finds wrong with the file; nothing when it is sound."""
        rows = await self._read(
            lambda connection: connection.execute("PRAGMA integrity_check").fetchall(), large=True
        )
        return [str(row[0]) for row in rows if row[0] != "ok"]
