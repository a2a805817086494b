"""The audit trail over HTTP."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from acms.nouns import encode_noun
from acms.server import audit
from acms.server.audit import Noted
from acms.server.operation import Call, Operations, Query, Reply, Scope
from acms.server.replies import describe_list_reply, reply_with_page

__all__ = ["operations"]

operations = Operations("service")


class ReadAudit(Query):
    """Which entries to read."""

    cursor: Annotated[int, Field(ge=1)] | None = None
    """Version before which the page begins: `nextCursor` of the previous page."""
    limit: Annotated[int, Field(ge=1, le=500)] = 50
    """Largest number of items in the page."""


@operations("GET", "/audit", scope=Scope.ADMIN, query=ReadAudit, reply=describe_list_reply(Noted, str))
async def read_audit(call: Call[ReadAudit, None]) -> Reply:
    """Read the audit trail, newest first.

    A change has two entries: the intent before it and the outcome after it. Neither holds the content of messages.
    """
    entries = await audit.read_audit_trail(call.tenant, before=call.query.cursor, limit=call.query.limit)
    next_cursor = str(entries[-1].version) if entries and entries[-1].version > 1 else None
    return reply_with_page([encode_noun(entry) for entry in entries], next_cursor)
