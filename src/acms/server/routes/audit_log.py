"""The audit trail over HTTP."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from acms.server import audit
from acms.server.operation import Call, Operations, Query, Reply, Scope, Shape
from acms.server.wire import plain

__all__ = ["operations"]

operations = Operations("service")


class ReadAudit(Query):
    """Which entries to read."""

    cursor: Annotated[int, Field(ge=1)] | None = None
    limit: Annotated[int, Field(ge=1, le=500)] = 50


class NotedShape(Shape):
    """An entry of the audit trail."""

    version: int
    at: str
    step: str
    operation: str
    key: str
    request: str | None
    context: str | None
    target: dict[str, Any]
    #: Version and hash of the context before and after.
    before: list[Any] | None
    after: list[Any] | None
    status: int | None
    code: str
    intent: int | None


class ManyNoted(Shape):
    """A page of the audit trail, newest first."""

    data: list[NotedShape]
    next_cursor: str | None
    has_more: bool


@operations("GET", "/audit", scope=Scope.ADMIN, query=ReadAudit, reply=ManyNoted)
async def read_audit(call: Call[ReadAudit, None]) -> Reply:
    """Read the audit trail, newest first.

    A change is two entries: the intent before it and the outcome after it. Neither holds what was said.
    """
    found = await audit.trail(call.tenant, before=call.query.cursor, limit=call.query.limit)
    after = str(found[-1].version) if found and found[-1].version > 1 else None
    return Reply(body={"data": plain(found), "nextCursor": after, "hasMore": after is not None})
