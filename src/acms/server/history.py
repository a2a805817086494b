"""A log as it was, over HTTP (seed 001): the window, the state at a version, history, statistics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Field

from acms import branches
from acms.assembly import cover_at
from acms.core import validate
from acms.core.history import Cover, anchor, effective
from acms.errors import TooLargeError, ValidationError
from acms.model import Entry, Head, Json, Kind
from acms.protocols import StorageBackend
from acms.server.contexts import etag
from acms.server.messages import EntryShape, RoleName, entry_shown
from acms.server.operation import Call, Operations, Query, Reply, Scope, Shape
from acms.server.wire import instant, plain
from acms.session import ACMS
from acms.view import View

__all__ = ["Place", "operations", "placed"]

operations = Operations("history")

Version = Annotated[int, Field(ge=0)]


class Place(Query):
    """A version of a log: by its number, by how many messages were said, or by a name; the newest one without any."""

    at_version: Version | None = None
    at_message: Version | None = None
    at_tag: str | None = None


class ItemShape(Shape):
    """One thing the model should see."""

    id: str
    version: int
    position: int | None
    role: RoleName | None
    content: str
    source: Literal["fact", "summary", "marked", "similar", "current_episode", "window"]
    #: Of what was asked for by a query; 0 in a window.
    score: float
    relevance: float
    #: What it costs in the prompt, its frame included.
    token_count: int
    markers: list[str]
    parts: list[dict[str, Any]]
    group: str | None
    actor_id: str | None
    metadata: dict[str, Any]
    created_at: str
    #: Whether it was cut to fit.
    truncated: bool
    why: str


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


class WindowQuery(Place):
    """How much of a log to show."""

    budget: Annotated[int, Field(ge=1)]
    #: Roles, separated by commas, whose leading messages stay in front: "system".
    keep: str = ""


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
    limit: Annotated[int, Field(ge=1, le=validate.PAGE)] = 50


class StateShape(Shape):
    """A page of what is in force at a version, in the order in which it is read."""

    data: list[EntryShape]
    version: int
    next_cursor: int | None
    has_more: bool


class StateQuery(Query):
    """Which page of a state to show."""

    cursor: Version = 0
    limit: Annotated[int, Field(ge=1, le=validate.PAGE)] = 50


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


class OneStats(Shape):
    """Counts of a log."""

    data: StatsShape


# ── places ──────────────────────────────────────────────────────────────────────────────────────────────────────────


async def placed(
    session: ACMS, context: str, version: int | None, message: int | None, tag: str | None, side: str = "at"
) -> int | None:
    """Return the version that is meant; None for the newest one. `side` begins the names of the parameters.

    `ValidationError` when more than one is given or the log does not reach it, `NotFoundError` for an unknown tag.
    """
    if version is message is tag is None:
        return None
    if (version is not None) + (message is not None) + (tag is not None) > 1:
        options = (f"give one of {side}Version, {side}Message, {side}Tag",)
        raise ValidationError("says it twice", field=f"{side}Version", options=options)
    if tag is not None:
        return await branches.version_of(session.storage, context, validate.name(tag, f"{side}Tag"))
    head = await session.storage.head(context)
    if version is not None:
        if version > head.version:
            raise ValidationError(
                f"the log ends at version {head.version}, {version} does not exist yet",
                field=f"{side}Version",
            )
        return version
    assert message is not None
    if message > head.messages:
        raise ValidationError(
            f"the log has {head.messages} messages, {message} does not exist yet", field=f"{side}Message"
        )
    return await _of_message(session.storage, head, message)


async def _of_message(storage: StorageBackend, head: Head, message: int) -> int:
    """Return the version of a message by its position: positions rise with versions and are never higher."""
    if head.messages == head.version or message == 0:
        return message
    low, high = message, head.version
    while low < high:
        middle = (low + high) // 2
        newest = await storage.read(head.context, at=middle, kinds=(Kind.MESSAGE,), newest=1)
        if newest and (newest[0].position or 0) >= message:
            high = newest[0].version
        else:
            low = middle + 1
    return low


async def _view(call: Call[Any, Any]) -> View:
    """Return the log at the place a query names."""
    place: Place = call.query
    session = await call.tenant.session(call.path["context_id"])
    version = await placed(session, call.path["context_id"], place.at_version, place.at_message, place.at_tag)
    return session if version is None else session.at(version)


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
    view = await _view(call)
    window = await view.window(query.budget, keep=[one.strip() for one in query.keep.split(",") if one])
    head = await view.storage.head(call.path["context_id"])
    return Reply(
        body={
            "data": [plain(item) for item in window],
            "tokens": window.tokens,
            "budget": window.budget,
            "version": window.version,
            "omitted": window.ledger.omitted,
            "warnings": list(window.ledger.warnings),
        },
        headers=etag(head),
    )


@operations("GET", "/contexts/{context_id}/history", scope=Scope.READ, query=HistoryQuery, reply=HistoryShape)
async def list_history(call: Call[HistoryQuery, None]) -> Reply:
    """List every entry of a log, oldest first: what was said, learned, summarised and taken back."""
    view = await _view(call)
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
    found = await _standing(storage, context, cover, version, query.cursor, query.limit + 1)
    page = found[: query.limit]
    body = _page([entry_shown(one) for one in page], anchor(page[-1]) if len(found) > query.limit else None)
    return Reply(body={"version": version, **body})


async def _standing(
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
    stats: dict[str, Json] = plain(await (await _view(call)).get_session_stats())
    del stats["sessionId"]  # a context is known by its id here
    return Reply(body={"data": {"contextId": call.path["context_id"], **stats}})


def _page(data: Sequence[Json], cursor: int | None) -> dict[str, Json]:
    return {"data": data, "nextCursor": cursor, "hasMore": cursor is not None}
