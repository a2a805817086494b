"""A log as it was, over HTTP: the window, the state at a version, history, statistics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated

from pydantic import Field

from acms.errors import TooLargeError, ValidationError
from acms.log import validation
from acms.log.active_entries import Replacements, anchor_version, effective_sequence
from acms.log.read import replacements_at, version_to_read
from acms.model import Entry, Kind
from acms.nouns import WHEN_GIVEN, encode_noun
from acms.ports import StorageBackend
from acms.results import ContextItem, HistoryEntry, SessionStats, Verdict
from acms.server.operation import Call, Operations, Query, Reply, Scope
from acms.server.replies import describe_list_reply, describe_single_reply, reply_with_page
from acms.server.routes.contexts import build_etag_header
from acms.server.routes.messages import BriefEntry
from acms.server.routes.recall import Budget, list_verdicts
from acms.server.versions import Version, VersionQuery, view_at

__all__ = ["operations"]

operations = Operations("history")


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """The newest contiguous active messages within a budget, oldest first."""

    data: Sequence[ContextItem]
    #: What they cost of the budget.
    tokens: int
    budget: int
    #: That was read.
    version: int
    #: Active and not shown.
    omitted: int
    warnings: tuple[str, ...]
    #: With `why` only.
    verdicts: list[Verdict] | None = field(default=None, metadata=WHEN_GIVEN)


class WindowQuery(VersionQuery):
    """How much of a log to show."""

    budget: Budget
    """Largest number of tokens."""
    keep: str = ""
    """Roles, separated by commas, whose leading messages are always included: `system`."""
    why: bool = False
    """Explain for every candidate why it is shown or not."""


class HistoryQuery(VersionQuery):
    """The page of the history to list."""

    cursor: Version = 0
    """Version after which the page begins: `nextCursor` of the previous page."""
    limit: Annotated[int, Field(ge=1, le=validation.PAGE)] = 50
    """Largest number of items in the page."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PastState:
    """A page of the active entries at a version, in reading order."""

    data: list[BriefEntry]
    version: int
    next_cursor: int | None
    has_more: bool


class StateQuery(Query):
    """The page of a state to list."""

    cursor: Version = 0
    """Version after which the page begins: `nextCursor` of the previous page."""
    limit: Annotated[int, Field(ge=1, le=validation.PAGE)] = 50
    """Largest number of items in the page."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextStats(SessionStats):
    """Counts of a log at one version."""

    context_id: str


# ── reads ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@operations("GET", "/contexts/{context_id}/window", scope=Scope.READ, query=WindowQuery, reply=Window)
async def show_window(call: Call[WindowQuery, None]) -> Reply:
    """Return the newest contiguous active messages within a token budget, oldest first.

    Tool groups are complete. The newest message is always included, truncated and flagged if it alone exceeds the
    budget, which is never exceeded. At a version, a message or a tag the log is read as if it ended there.
    """
    query, max_tokens = call.query, call.config.limits.tokens
    if query.budget > max_tokens:
        raise TooLargeError(f"is {query.budget}, the limit is {max_tokens}", field="budget")
    view = await view_at(call, call.query)
    # The head is read first, so that its ETag cannot name a message that is newer than the window.
    head = await view.storage.head(call.path["context_id"])
    window = await view.window(query.budget, keep=[role.strip() for role in query.keep.split(",") if role])
    reply = Window(
        data=window,
        tokens=window.tokens,
        budget=window.budget,
        version=window.version,
        omitted=window.ledger.omitted,
        warnings=window.ledger.warnings,
        verdicts=list_verdicts(window) if query.why else None,
    )
    return Reply(body=encode_noun(reply), headers=build_etag_header(head))


@operations(
    "GET",
    "/contexts/{context_id}/history",
    scope=Scope.READ,
    query=HistoryQuery,
    reply=describe_list_reply(HistoryEntry, int),
)
async def list_history(call: Call[HistoryQuery, None]) -> Reply:
    """List every entry of a log, oldest first: messages, facts, summaries and retractions.

    The cursor is the version after which the page begins. `preview` is the beginning of the text, `inForce` whether the
    entry is active. Read the whole text of an entry by its id.
    """
    view = await view_at(call, call.query)
    page = await view.history(limit=call.query.limit, after=call.query.cursor)
    return reply_with_page([encode_noun(line) for line in page.entries], page.next_after)


@operations("GET", "/contexts/{context_id}/at/{version}", scope=Scope.READ, query=StateQuery, reply=PastState)
async def show_state(call: Call[StateQuery, None]) -> Reply:
    """List the active entries at a version, in reading order.

    An edit is listed at the position of the message it edits, a summary at the position of the entries it replaced;
    nothing is truncated. The same version always returns the same, except for entries that were erased or expired
    since.
    """
    context, query = call.path["context_id"], call.query
    session = await call.tenant.session(context)
    text = call.path["version"]
    is_number = text.isascii() and text.isdecimal() and len(text) < 20
    if not is_number:
        raise ValidationError("must be a version, a whole number from 0", field="version")
    version, storage = int(text), session.storage
    head = await storage.head(context)
    version_to_read(head, version)  # raises an error if the log does not reach the version
    replacements = await replacements_at(storage, context, head, version)
    entries = await _read_active_entries(
        storage, context, replacements, version, query.cursor, query.limit + 1
    )
    page = entries[: query.limit]
    cursor = anchor_version(page[-1]) if len(entries) > query.limit else None
    data = [encode_noun(entry, BriefEntry) for entry in session.internals.redactor.redact_entries(page)]
    body = {"data": data, "version": version, "nextCursor": cursor, "hasMore": cursor is not None}
    return Reply(body=body)


async def _read_active_entries(
    storage: StorageBackend, context: str, replacements: Replacements, version: int, after: int, limit: int
) -> list[Entry]:
    """Return the first `limit` active entries with a position above `after`.

    Only the spans of the log that have active entries are read, in batches, until there are enough of them.
    """
    entries_read: list[Entry] = []
    active: Sequence[Entry] = ()
    for first_version, last_version in replacements.spans_to_read(version):
        start = max(first_version - 1, after)
        while start < last_version:
            rows = await storage.read(
                context, at=last_version, after=start, kinds=(Kind.MESSAGE,), limit=limit
            )
            entries_read += rows
            start = rows[-1].version if len(rows) == limit else last_version
            # Entries with a higher position, such as edits, have to wait for entries that were not read yet.
            active = [
                entry
                for entry in effective_sequence(entries_read, replacements, after=after)
                if anchor_version(entry) <= start
            ]
            if len(active) >= limit:
                return active[:limit]
    return effective_sequence(entries_read, replacements, after=after)[:limit]


@operations(
    "GET",
    "/contexts/{context_id}/stats",
    scope=Scope.READ,
    query=VersionQuery,
    reply=describe_single_reply(ContextStats),
)
async def show_stats(call: Call[VersionQuery, None]) -> Reply:
    """Return counts of a log: all of its entries, and the active ones.

    Active entries are those that were not replaced, retracted or summarized.
    """
    stats = await (await view_at(call, call.query)).get_session_stats()
    return Reply(body={"data": {"contextId": call.path["context_id"], **encode_noun(stats)}})
