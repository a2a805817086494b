"""A log as it was, over HTTP: the window, the state at a version, history, statistics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field

from acms.errors import TooLargeError, ValidationError
from acms.log import validation
from acms.log.in_force import Cover, anchor, effective
from acms.log.read import cover_at
from acms.model import Entry, Json, Kind
from acms.ports import StorageBackend
from acms.server.operation import Call, Operations, Query, Reply, Scope, Shape
from acms.server.routes.contexts import etag
from acms.server.routes.messages import EntryShape, RoleName, entry_json
from acms.server.routes.recall import ItemShape, VerdictShape, item_json, verdicts_json
from acms.server.versions import Place, Version, view_at
from acms.server.wire import instant, plain

__all__ = ["operations"]

operations = Operations("history")


class WindowShape(Shape):
    """The newest contiguous messages in force within a budget, oldest first."""

    data: list[ItemShape]
    #: What they cost of the budget.
    tokens: int
    budget: int
    #: That was read.
    version: int
    #: In force and not shown.
    omitted: int
    warnings: list[str]
    #: With `why` only.
    verdicts: list[VerdictShape] | None = None


class WindowQuery(Place):
    """How much of a log to show."""

    budget: Annotated[int, Field(ge=1)]
    #: Roles, separated by commas, whose leading messages stay in front: "system".
    keep: str = ""
    #: Say of every candidate why it is shown or not.
    why: bool = False


class LineShape(Shape):
    """One line of a log's history."""

    id: str
    kind: Literal["message", "fact", "summary", "episode", "retraction"]
    version: int
    position: int | None
    role: RoleName | None
    #: About 100 characters of the content, on one line.
    preview: str
    token_count: int
    created_at: str
    state: Literal["live", "expired", "erased"]
    #: Whether it is neither replaced nor retracted.
    in_force: bool


class HistoryShape(Shape):
    """A page of history, oldest first."""

    data: list[LineShape]
    next_cursor: int | None
    has_more: bool


class HistoryQuery(Place):
    """Which page of the history to show."""

    #: A version: what comes after it is listed.
    cursor: Version = 0
    limit: Annotated[int, Field(ge=1, le=validation.PAGE)] = 50


class StateShape(Shape):
    """A page of what is in force at a version, in the order in which it is read."""

    data: list[EntryShape]
    version: int
    next_cursor: int | None
    has_more: bool


class StateQuery(Query):
    """Which page of a state to show."""

    cursor: Version = 0
    limit: Annotated[int, Field(ge=1, le=validation.PAGE)] = 50


class StatsShape(Shape):
    """Counts of a log at one version."""

    context_id: str
    version: int
    #: Everything ever said; neither decreases.
    messages: int
    tokens: int
    #: What is in force: messages and the summaries that stand for some.
    active_messages: int
    active_tokens: int
    episodes: int
    current_episode_id: str | None
    facts: int
    summaries: int
    counter: str
    #: What ranks its recalls: "words", or the name of the embedder's model.
    tier: str
    #: Share of its entries that lack no vectors.
    coverage: float


class OneStats(Shape):
    """Counts of a log."""

    data: StatsShape


# ── reads ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@operations("GET", "/contexts/{context_id}/window", scope=Scope.READ, query=WindowQuery, reply=WindowShape)
async def show_window(call: Call[WindowQuery, None]) -> Reply:
    """Show the newest contiguous messages in force within a token budget, oldest first.

    Tool groups are whole. The newest message is always in, cut and flagged if it alone is larger than the budget, which
    is never exceeded. At a version, a message or a tag it is as if the log ended there.
    """
    query, most = call.query, call.config.limits.tokens
    if query.budget > most:
        raise TooLargeError(f"is {query.budget}, the limit is {most}", field="budget")
    view = await view_at(call, call.query)
    # The head first: its ETag may not name a message that the window does not show.
    head = await view.storage.head(call.path["context_id"])
    window = await view.window(query.budget, keep=[one.strip() for one in query.keep.split(",") if one])
    body: dict[str, Json] = {
        "data": [item_json(item) for item in window],
        "tokens": window.tokens,
        "budget": window.budget,
        "version": window.version,
        "omitted": window.ledger.omitted,
        "warnings": list(window.ledger.warnings),
    }
    if query.why:
        body["verdicts"] = verdicts_json(window)
    return Reply(body=body, headers=etag(head))


@operations("GET", "/contexts/{context_id}/history", scope=Scope.READ, query=HistoryQuery, reply=HistoryShape)
async def list_history(call: Call[HistoryQuery, None]) -> Reply:
    """List every entry of a log, oldest first: what was said, learned, summarised and taken back."""
    view = await view_at(call, call.query)
    page = await view.history(limit=call.query.limit, after=call.query.cursor)
    data = [
        {
            "id": line.id,
            "kind": line.kind,
            "version": line.version,
            "position": line.position,
            "role": line.role,
            "preview": line.preview,
            "tokenCount": line.tokens,
            "createdAt": instant(line.created_at),
            "state": line.state,
            "inForce": line.in_force,
        }
        for line in page.entries
    ]
    return Reply(body=_page(data, page.next_after))


@operations(
    "GET", "/contexts/{context_id}/at/{version}", scope=Scope.READ, query=StateQuery, reply=StateShape
)
async def show_state(call: Call[StateQuery, None]) -> Reply:
    """List what is in force at a version, in the order in which it is read.

    Messages, edits at the place of what they edit, summaries at the place of what they stand for; nothing is cut. The
    same version is always the same, save for what was erased or has expired.
    """
    context, query = call.path["context_id"], call.query
    session = await call.tenant.session(context)
    given = call.path["version"]
    if not (given.isascii() and given.isdecimal() and len(given) < 20):
        raise ValidationError("must be a version, a whole number from 0", field="version")
    version, storage = int(given), session.storage
    head = await storage.head(context)
    if version > head.version:
        raise ValidationError(
            f"the log ends at version {head.version}, {version} does not exist yet", field="version"
        )
    cover = await cover_at(storage, context, head, version)
    found = await _read_in_force(storage, context, cover, version, query.cursor, query.limit + 1)
    page = found[: query.limit]
    shown = session.stage.entries(page)
    body = _page([entry_json(one) for one in shown], anchor(page[-1]) if len(found) > query.limit else None)
    return Reply(body={"version": version, **body})


async def _read_in_force(
    storage: StorageBackend, context: str, cover: Cover, version: int, after: int, limit: int
) -> list[Entry]:
    """Return the first entries in force whose place is above `after`; reads no more of the log than it must."""
    read: list[Entry] = []
    found: Sequence[Entry] = ()
    for first, last in cover.stretches(version):
        start = max(first - 1, after)
        while start < last:
            rows = await storage.read(context, at=last, after=start, kinds=(Kind.MESSAGE,), limit=limit)
            read += rows
            start = rows[-1].version if len(rows) == limit else last
            # An edit or a summary that is read further on must not come before what was not read yet.
            found = [one for one in effective(read, cover, after=after) if anchor(one) <= start]
            if len(found) >= limit:
                return found[:limit]
    return effective(read, cover, after=after)[:limit]


@operations("GET", "/contexts/{context_id}/stats", scope=Scope.READ, query=Place, reply=OneStats)
async def show_stats(call: Call[Place, None]) -> Reply:
    """Count a log: everything ever said, and what is in force."""
    stats: dict[str, Json] = plain(await (await view_at(call, call.query)).get_session_stats())
    del stats["sessionId"]  # a context is known by its id here
    return Reply(body={"data": {"contextId": call.path["context_id"], **stats}})


def _page(data: Sequence[Json], cursor: int | None) -> dict[str, Json]:
    return {"data": data, "nextCursor": cursor, "hasMore": cursor is not None}
