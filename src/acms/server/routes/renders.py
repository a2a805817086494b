"""The log of renders over HTTP: list, get and delete the requests that were built from a context."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from acms.nouns import encode_noun
from acms.prompt_types import LoggedRender, RenderDetails
from acms.server.operation import Call, Operations, Query, Reply, Scope
from acms.server.replies import describe_list_reply, describe_single_reply, reply_with_data, reply_with_page

__all__ = ["operations"]

operations = Operations("prompts")


class ListRenders(Query):
    """The page of renders to list."""

    cursor: str | None = None
    """`nextCursor` of the previous page."""
    limit: Annotated[int, Field(ge=1, le=500)] = 50
    """Largest number of items in the page."""


@operations(
    "GET",
    "/contexts/{context_id}/renders",
    scope=Scope.MEMORY_READ,
    query=ListRenders,
    reply=describe_list_reply(LoggedRender, str),
)
async def list_renders(call: Call[ListRenders, None]) -> Reply:
    """List the requests that were built from a context, newest first: prompts, chat messages, replies of the contract.

    The service logs them if it is configured to, for a limited time. Each is compared with the previous one of its
    kind: the tokens that the provider could read from its cache, the reason for a break, and its cost.
    """
    limit = call.query.limit
    session = await call.tenant.session(call.path["context_id"])
    renders = await session.renders(limit=limit, after=call.query.cursor)
    cursor = renders[-1].id if len(renders) == limit else None
    return reply_with_page([encode_noun(render) for render in renders], cursor)


class GetRender(Query):
    """The comparison of one render."""

    against: str | None = None
    """Id of the render to compare it with; the previous one of its kind by default."""


@operations(
    "GET",
    "/contexts/{context_id}/renders/{render_id}",
    scope=Scope.MEMORY_READ,
    query=GetRender,
    reply=describe_single_reply(RenderDetails),
)
async def get_render(call: Call[GetRender, None]) -> Reply:
    """Return a logged request message by message, and the request as it was sent.

    Each message has the current text of its entries. Omitted entries are listed with the reasons.
    """
    session = await call.tenant.session(call.path["context_id"])
    return reply_with_data(await session.sent(call.path["render_id"], against=call.query.against))


@operations("DELETE", "/contexts/{context_id}/renders", scope=Scope.ERASE, status=204)
async def forget_renders(call: Call[None, None]) -> Reply:
    """Delete the logged requests of a context. The context itself is unchanged.

    Later requests are logged again if the service logs them.
    """
    await (await call.tenant.session(call.path["context_id"])).forget_renders()
    return Reply()
