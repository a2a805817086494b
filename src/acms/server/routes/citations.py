"""Citations over HTTP: record the entries that an answer used, and list them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import Field

from acms.errors import EntryNotFoundError, ValidationError
from acms.model import State
from acms.nouns import encode_noun
from acms.results import Citation
from acms.server.operation import Body, Call, Operations, Reply, Scope
from acms.server.replies import describe_list_reply
from acms.server.tenants import Tenant
from acms.text.citations import find_cited_ids, texts_of

__all__ = ["operations"]

operations = Operations("citations")

_PATH = "/contexts/{context_id}/citations"


class CitedBody(Body):
    """The entries that an answer used: their ids, or the answer itself, which names them."""

    ids: Annotated[list[str], Field(max_length=256)] | None = None
    """Ids of the entries that the answer used."""
    answer: Any = None
    """The answer as the provider sent it, or its text."""


@operations(
    "POST", _PATH, scope=Scope.APPEND, body=CitedBody, reply=describe_list_reply(str), example={"ids": []}
)
async def note_citations(call: Call[None, CitedBody]) -> Reply:
    """Record the entries that an answer used, and return their ids.

    They are read from the answer's citations and annotations, and from ids in its text.
    """
    body = call.body
    if (body.ids is None) == (body.answer is None):
        raise ValidationError("give either the ids or the answer", field="ids")
    session = await call.tenant.session(call.path["context_id"])
    answer = body.answer if body.ids is None else " ".join(body.ids)
    await _check_entries_visible(call.tenant, find_cited_ids(answer, texts_of(None)))
    return Reply(body={"data": list(await session.cite(answer))})


async def _check_entries_visible(tenant: Tenant, ids: Sequence[str]) -> None:
    """Raise `EntryNotFoundError` if an entry does not exist, was erased, or may not be seen by the request."""
    visible: dict[str, bool] = {}
    for id, entry in zip(ids, await tenant.handle.get(ids), strict=True):
        if entry is None or entry.state is State.ERASED:
            raise EntryNotFoundError(f"there is no entry {id!r}")
        if entry.context not in visible:
            visible[entry.context] = await tenant.may_see_context(entry.context)
        if not visible[entry.context]:
            raise EntryNotFoundError(f"there is no entry {id!r}")


@operations("GET", _PATH, scope=Scope.READ, reply=describe_list_reply(Citation))
async def list_citations(call: Call[None, None]) -> Reply:
    """List how often answers cited each entry, the last cited first.

    Entries that no answer cited are left out. Citations do not affect ranking.
    """
    session = await call.tenant.session(call.path["context_id"])
    return Reply(body={"data": [encode_noun(citation) for citation in await session.citations()]})
