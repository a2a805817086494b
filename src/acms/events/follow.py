"""Follows a log: its entries from a cursor on, the changes of its jobs, and later events as they happen."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable

from acms.events.cursor import Cursor
from acms.events.pages import PAGE_ENTRIES, Page, PageSpan, get_page_reader
from acms.log.validation import PAGE, missing_version_error
from acms.model import UNFINISHED, WEBHOOK, Head, Job, JobQuery
from acms.ports import StorageBackend
from acms.privacy.redactor import Redactor
from acms.results import LogEvent
from acms.session_state import SharedSession
from acms.storage import handles

__all__ = ["LogFollower", "find_changed_jobs", "list_unfinished_jobs", "parse_cursor", "session_events"]

POLL_SECONDS = (0.1, 1.0)
"""Initial and maximum seconds between two reads of a log in which nothing happens."""
HEARTBEAT_SECONDS = 15.0
"""Seconds after which a reader gets a heartbeat when there are no events."""


async def parse_cursor(storage: StorageBackend, context: str, after: str | int) -> Cursor:
    """Return a cursor that is checked against the log; `NotFoundError` when the log ends before it."""
    cursor = Cursor.parse(after)
    head = await storage.head(context)
    if cursor.version > head.version:
        raise missing_version_error(head.version, cursor.version)
    return cursor


async def find_changed_jobs(storage: StorageBackend, context: str, cursor: Cursor) -> tuple[list[Job], int]:
    """Return the jobs that changed since a cursor, oldest first, and the highest job number of the log.

    Jobs that deliver webhooks are left out.
    """
    if cursor.job is None:  # a reader without a cursor for jobs begins with the unfinished ones
        newest = await storage.jobs(JobQuery(context=context, limit=1))
        highest = int(newest.items[0].id) if newest.items else 0
        jobs = await list_unfinished_jobs(storage, context)
    else:
        jobs = await _list_jobs_since(storage, context, cursor.job)
        highest = max([cursor.job, *[int(job.id) for job in jobs]])
        listed_ids = {job.id for job in jobs}
        older_ids = [id for id in map(str, cursor.unfinished) if id not in listed_ids]
        if older_ids:
            jobs += (await storage.jobs(JobQuery(ids=tuple(older_ids)))).items
    changed = [job for job in jobs if not cursor.has_sent(job) and job.kind != WEBHOOK]
    return sorted(changed, key=lambda job: int(job.id)), highest


async def _list_jobs_since(storage: StorageBackend, context: str, number: int) -> list[Job]:
    """Return the jobs of a log down to a job number, page by page, newest first."""
    jobs: list[Job] = []
    after: str | None = None
    while True:
        page = await storage.jobs(JobQuery(context=context, after=after, limit=PAGE))
        jobs += page.items
        if page.next_after is None or int(page.next_after) <= number:
            return jobs
        after = page.next_after


async def list_unfinished_jobs(storage: StorageBackend, context: str) -> list[Job]:
    """Return the newest jobs of a log that are neither done nor failed for good."""
    query = JobQuery(context=context, states=UNFINISHED, limit=PAGE)
    return list((await storage.jobs(query)).items)


class LogFollower:
    """The events of one log after a cursor.

    Each entry is yielded once, in the order of versions, regardless of the process that appended it. It is processed by
    the privacy stage and yielded in its current state: an erased one comes without its text. A job is yielded in its
    state at the time of the check, after the entries that it appended; intermediate states are skipped. Jobs that
    deliver webhooks are left out.
    """

    def __init__(
        self,
        storage: StorageBackend,
        context: str,
        cursor: Cursor,
        redactor: Redactor,
        *,
        handle: StorageBackend | None = None,
        ended: Callable[[], bool] = lambda: False,
    ) -> None:
        self._storage = storage
        self._context = context
        self.cursor = cursor
        self._redactor = redactor
        #: The handle that reports the appends of this process.
        self._handle = handle or storage
        self._ended = ended
        #: The page of the last entry; None before the first.
        self.page: Page | None = None
        #: Maximum entries of the next page. The first pages are short, because a client may read no more than these.
        self._limit = 1

    async def events(self, *, follow: bool = True) -> AsyncGenerator[LogEvent | None]:
        """Yield the events since the cursor, then new ones as they happen.

        Yields None when it has caught up: once at first, and then after every `HEARTBEAT_SECONDS` without an event.
        With `follow=False` it ends where the log does. `SessionNotFoundError` once the log is deleted.
        """
        with handles.listen_for_appends(self._handle, self._context) as appended:
            shortest_pause, longest_pause = POLL_SECONDS
            pause, quiet_seconds = shortest_pause, HEARTBEAT_SECONDS
            while not self._ended():
                appended.clear()
                has_events = False
                async for event in self._new_events():
                    has_events = True
                    yield event
                if has_events:
                    pause = shortest_pause
                    continue
                if not follow:
                    return
                if quiet_seconds >= HEARTBEAT_SECONDS:
                    quiet_seconds = 0.0
                    yield None
                try:
                    async with asyncio.timeout(pause):
                        await appended.wait()
                except TimeoutError:  # appends of other processes are only found by reading the log again
                    quiet_seconds += pause
                    pause = min(longest_pause, pause * 1.5)

    async def _new_events(self) -> AsyncGenerator[LogEvent]:
        """Yield the events since the cursor."""
        # Jobs are read first, so that the entries that a finished job appended are sent before it.
        jobs, highest = await find_changed_jobs(self._storage, self._context, self.cursor)
        head = await self._storage.head(self._context)
        while self.cursor.version < head.version and not self._ended():
            self.page = page = await self._read_page(head)
            if not page.entries:
                break
            for entry in page.entries:
                self.cursor = self.cursor.after_entry(entry.version)
                yield LogEvent(cursor=str(self.cursor), entry=entry)
                # If the client is slow, the next entries may have been erased since they were read.
                if page.is_outdated:
                    break
        for job in jobs:  # by number: a reader that is cut off gets the rest when it reconnects
            self.cursor = self.cursor.after_job(job)
            yield LogEvent(cursor=str(self.cursor), job=job)
        self.cursor = self.cursor.after_jobs_upto(highest)

    async def _read_page(self, head: Head) -> Page:
        """Read a page of entries after the cursor; the next page may have twice as many entries as this one."""
        after = self.cursor.version
        span = PageSpan(
            context=self._context,
            after=after,
            version=head.version,
            epoch=head.epoch,
            limit=min(self._limit, head.version - after),
        )
        page = await get_page_reader(self._handle).read(span, self._redactor)
        self._limit = min(PAGE_ENTRIES, 2 * max(1, len(page.entries)))
        return page


async def session_events(
    shared: SharedSession, after: str | int, *, follow: bool
) -> AsyncGenerator[LogEvent]:
    """Yield the events of a session's log after a cursor; see `acms.ACMS.events`."""
    context = await shared.require_context()
    cursor = await parse_cursor(shared.storage, context, after)
    followed = LogFollower(shared.storage, context, cursor, shared.redactor, handle=shared.handle)
    events = followed.events(follow=follow)
    try:
        async for event in events:
            if event is not None:
                yield event
    finally:
        await events.aclose()
