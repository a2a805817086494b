"""Read the entries of a PostgreSQL store by range, by id or as a feed, and the rows derived from them.

The log is its own outbox: a feed returns every appended entry, in an order in which no entry can turn up late.
Reading after the highest number seen would miss entries that a slower transaction commits later under a lower number (a
third of all events in a measurement with 16 writers). So a window of the feed ends where the oldest running transaction
began.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from acms.errors import ACMSError, ValidationError
from acms.model import Derived, Entry, Page
from acms.observability.logging import log_event
from acms.storage import append_rules
from acms.storage.append_rules import Read
from acms.storage.postgres.database import Database, NamedQuery
from acms.storage.sql import ENDLESS, VERSION_MASK, read_derived, read_entry

COVERAGE = 4096
"""Versions looked through at once for those without a derived row."""


class Reader:
    """Reads the logs of a tenant."""

    def __init__(self, db: Database) -> None:
        self._db = db

    async def read(self, context: str, request: Read) -> list[Entry]:
        """Read the entries of a log, inherited ones too, ascending.

        Each owner in the lineage holds a segment of the log; a limited read asks one segment after the other until
        it has enough.
        """
        append_rules.check_read(request.newest, request.limit)
        lineage = self._db.lineages.get(context)
        # With a cached lineage the segments are known, so one round trip reads both the head and the entries.
        reads_head = lineage is not None
        if lineage is None:
            lineage = (await self._db.log_state(context, deleted=request.deleted)).lineage
        backward = request.newest is not None
        limit = request.newest if backward else request.limit
        kinds = None if request.kinds is None else [kind.value for kind in request.kinds]
        segments = append_rules.split_segments(
            context, lineage, request.after + 1, request.last_version(ENDLESS)
        )
        if backward:
            segments.reverse()
        entries: list[Entry] = []
        # The head is read even without a segment: it shows that the context exists.
        while segments or reads_head:
            # A limited read may have enough entries before it comes to the next segment.
            batch = segments if limit is None else segments[:1]
            segments = segments[len(batch) :]
            queries: list[NamedQuery] = [("head", {"context": context})] if reads_head else []
            for owner, first, last in batch:
                values = {"context": owner, "first": first, "last": last, "kinds": kinds, "limit": limit}
                queries.append((request.query, values))
            answers = await self._db.query_all(*queries)
            if reads_head:
                self._db.read_head(context, answers.pop(0), deleted=request.deleted)
                reads_head = False
            for (owner, _, _), rows in zip(batch, answers, strict=True):
                entries.extend([read_entry(row, owner) for row in rows])
            if limit is not None and len(entries) >= limit:
                break
        entries = entries[:limit]
        if backward:
            entries.reverse()
        return entries

    async def get(self, ids: Sequence[str]) -> list[Entry | None]:
        """Return entries by id, with None for ids that do not exist."""
        locations = locate_entries(ids)
        if locations is None:
            return [None] * len(ids)
        entries: dict[str, Entry] = {}
        for *columns, owner in await self._db.query("entries_at", locations):
            entry = read_entry(columns, owner)
            entries[entry.id] = entry
        return [entries.get(id) for id in ids]


def locate_entries(ids: Sequence[str]) -> dict[str, list[Any]] | None:
    """Return the contexts and versions of the ids that may exist, as values of a query; None if there are none."""
    locations = sorted(set(append_rules.parse_entry_ids(ids).values()))
    contexts = [context for context, version in locations if version <= VERSION_MASK]
    versions = [version for _, version in locations if version <= VERSION_MASK]
    return {"contexts": contexts, "versions": versions} if versions else None


class _Cursor(NamedTuple):
    """A range of transactions that a reader goes through, and the last entry that it was given."""

    low: int = 0
    #: The end of the range; 0 until it is known.
    high: int = 0
    context: str = ""
    version: int = 0

    def encode(self) -> str:
        """Return the cursor as text."""
        return f"{self.low}.{self.high}.{self.context}.{self.version}"


class Feed:
    """Reads the feed of a tenant."""

    def __init__(self, db: Database) -> None:
        self._db = db

    async def page(self, after: str | None, limit: int) -> Page[Entry]:
        """Return entries of all logs of the tenant that were appended since a cursor, and the next cursor.

        A range of transactions is finished when a page is not full; the next range begins where it ended.
        """
        cursor = _parse_cursor(after)
        if limit < 1:
            raise ValidationError(f"must be at least 1, was {limit}", field="limit")
        # All transactions below the horizon have ended: no entry can still appear there.
        horizon = int((await self._db.query("horizon", {}))[0][0])
        if max(cursor.low, cursor.high) > horizon:
            raise ValidationError(
                "the cursor belongs to another server: start again from None", field="after"
            )
        if cursor.high == 0:
            cursor = cursor._replace(high=horizon)
        rows = await self._db.query("feed", {**cursor._asdict(), "limit": limit})
        entries = tuple(read_entry(columns, owner) for *columns, owner in rows)
        if len(entries) == limit:
            next_cursor = cursor._replace(context=entries[-1].context, version=entries[-1].version)
        else:
            next_cursor = _Cursor(low=cursor.high)
        return Page(items=entries, next_after=next_cursor.encode())


class DerivedRows:
    """The derived rows of a tenant."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._gathered: dict[str, list[Derived]] = {}
        self._writing: asyncio.Task[None] | None = None
        self._flush_now = asyncio.Event()

    async def put(self, context: str, rows: Sequence[Derived], *, wait: bool) -> int:
        """Store derived rows, except those of blanked versions.

        Without `wait`, rows are gathered for a moment, so that they share a commit, and written in the background.
        """
        if not wait:
            await self._db.open()
            self._gathered.setdefault(context, []).extend(rows)
            if self._writing is None or self._writing.done():
                self._flush_now = asyncio.Event()
                self._writing = asyncio.ensure_future(self._write_gathered(self._flush_now))
            return len(rows)
        await self.flush()
        return await self._write_rows(context, rows)

    async def _write_rows(self, context: str, rows: Sequence[Derived]) -> int:
        """Store derived rows under the contexts that own their versions; rows of unknown versions are dropped."""
        lineage = self._db.lineages.get(context)
        if lineage is None:
            lineage = (await self._db.log_state(context)).lineage
        versions = {row.version for row in rows}
        owner_of: dict[int, str] = {}
        for owner, first, last in append_rules.split_segments(context, lineage, 1, ENDLESS):
            owner_of.update({version: owner for version in versions if first <= version <= last})
        known_rows = [row for row in rows if row.version in owner_of]
        values = {
            "context": context,
            "owners": [owner_of[row.version] for row in known_rows],
            "versions": [row.version for row in known_rows],
            "spaces": [row.space for row in known_rows],
            "parts": [row.part for row in known_rows],
            "starts": [row.start for row in known_rows],
            "ends": [row.end for row in known_rows],
            "datas": [row.data for row in known_rows],
        }
        head_rows, _, count_rows = await self._db.query_all(
            ("head", {"context": context}), ("lock_root", {"context": context}), ("put_derived", values)
        )
        self._db.read_head(context, head_rows)  # refuses a context that is deleted
        return int(count_rows[0][0])

    async def _write_gathered(self, flush_now: asyncio.Event) -> None:
        """Store the gathered rows; rows that fail count as missing and are computed again."""
        with suppress(TimeoutError):
            await asyncio.wait_for(flush_now.wait(), 0.02)  # more rows may come and share the commit
        while self._gathered:
            context, rows = next(iter(self._gathered.items()))
            del self._gathered[context]
            try:
                await self._write_rows(context, rows)
            except ACMSError as error:
                log_event(logging.WARNING, "derived_rows_lost", error=type(error).__name__, rows=len(rows))

    async def flush(self) -> None:
        """Wait until gathered rows are stored: a caller that waits for a row asks next which ones are missing."""
        writing = self._writing
        if writing is not None and not writing.done():
            self._flush_now.set()
            await asyncio.shield(writing)

    async def read(self, context: str, space: str, *, after: int, at: int | None) -> list[Derived]:
        """Return the derived rows of one space by sequence number, from every context of the lineage.

        `after` is a sequence number, `at` a version of the log.
        """
        lineage = self._db.lineages.get(context)
        if lineage is None:
            lineage = (await self._db.log_state(context)).lineage
        last_version = ENDLESS if at is None else min(at, ENDLESS)  # a column holds no larger number
        segments = append_rules.split_segments(context, lineage, 1, last_version)
        values = {"space": space, "after": after}
        queries = [
            ("derived", {**values, "context": owner, "first": first, "last": last})
            for owner, first, last in segments
        ]
        head_rows, *answers = await self._db.query_all(("head", {"context": context}), *queries)
        head = self._db.read_head(context, head_rows).head
        rows: list[Derived] = []
        for answer in answers:
            # Rows past the head were stored after it was read; rows with smaller numbers may be missing before them.
            rows += [row for row in read_derived(answer, space) if row.seq <= head.derived]
        return rows if len(segments) == 1 else sorted(rows, key=lambda row: row.seq)

    async def missing(
        self, space: str, *, context: str | None, limit: int, after: int
    ) -> list[tuple[str, int]]:
        """Return live messages, facts and summaries that have no row in the space."""
        append_rules.check_read(None, limit)
        if context is None:
            segments = [(id, id, start, end) for id, start, end in await self._db.query("live_logs", {})]
        else:
            head, lineage, *_ = await self._db.log_state(context)
            owned = append_rules.split_segments(context, lineage, 1, head.version)
            segments = [(context, *segment) for segment in owned]
        missing: list[tuple[str, int]] = []
        for id, owner, start, end in segments:
            # In steps, so that one query does not compare a whole long log.
            for first in range(max(start, after + 1), end + 1, COVERAGE):
                if len(missing) >= limit:
                    return missing
                last, remaining = min(first + COVERAGE - 1, end), limit - len(missing)
                values = {"context": owner, "space": space, "first": first, "last": last, "limit": remaining}
                rows = await self._db.query("missing", values)
                missing += [(id, version) for (version,) in rows]
        return missing

    async def strays(self, context: str) -> list[tuple[str, int]]:
        """Return (space, version) of a context's own rows that belong to no entry, or to an erased one."""
        await self._db.log_state(context)
        rows = await self._db.query("stray_derived", {"context": context})
        return [(space, version) for space, version in rows]

    async def delete_strays(self, context: str) -> int:
        """Delete the rows that `strays` returns; return their number, counted per space and version."""
        strays = await self.strays(context)
        if strays:
            await self._db.query("delete_stray_derived", {"context": context})
        return len(strays)

    async def spaces(self, context: str) -> list[str]:
        """Return the names of the spaces in which a context has its own derived rows."""
        await self._db.log_state(context)
        return [space for (space,) in await self._db.query("spaces_of", {"context": context})]


def _parse_cursor(after: str | None) -> _Cursor:
    """Parse a cursor of the feed; None is the beginning."""
    if after is None:
        return _Cursor()
    fields = after.split(".")
    malformed = ValidationError("is not a cursor of a feed", field="after")
    if len(fields) != 4:
        raise malformed
    low, high, context, version = fields
    for number in (low, high, version):
        if not (number.isascii() and number.isdecimal() and len(number) <= 18):
            raise malformed
    return _Cursor(int(low), int(high), context, int(version))
