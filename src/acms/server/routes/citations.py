"""What answers used, over HTTP: note it, and list it."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from acms.errors import ValidationError
from acms.nouns import write
from acms.results import Citation
from acms.server.operation import Body, Call, Operations, Reply, Scope
from acms.server.replies import many

__all__ = ["operations"]

operations = Operations("citations")

_PATH = "/contexts/{context_id}/citations"
_MOST = 256


class CitedBody(Body):
    """What an answer used: the ids of entries, or the answer itself, in which they are named."""

    ids: Annotated[list[str], Field(max_length=_MOST)] | None = None
    #: As the provider sent it, or its text.
    answer: Any = None


@operations("POST", _PATH, scope=Scope.APPEND, body=CitedBody, reply=many(str), example={"ids": []})
async def note_citations(call: Call[None, CitedBody]) -> Reply:
    """Note which entries an answer used, and return their ids.

    An answer's citations and annotations are read, and ids in its text.
    """
    body = call.body
    if (body.ids is None) == (body.answer is None):
        raise ValidationError("give the ids or the answer, one of them", field="ids")
    session = await call.tenant.session(call.path["context_id"])
    found = await session.cite(body.answer if body.ids is None else " ".join(body.ids))
    return Reply(body={"data": list(found)})


@operations("GET", _PATH, scope=Scope.READ, reply=many(Citation))
async def list_citations(call: Call[None, None]) -> Reply:
    """List how often answers cited which entry, the one cited last first."""
    session = await call.tenant.session(call.path["context_id"])
    return Reply(body={"data": [write(one) for one in await session.citations()]})
