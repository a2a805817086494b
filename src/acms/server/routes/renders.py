"""The log of renders over HTTP: what was really sent of a context, and forgetting it."""

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
    """Which page of the log of renders to show."""

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
    """List what was really sent of a context, newest first: prompts, chat messages, replies of the contract.

    The service keeps it when it was told to, for a limited time. Each is compared with the one of
    its kind before it: what the provider could read from its cache, why no more, and what that costs.
    """
    session = await call.tenant.session(call.path["context_id"])
    found = await session.renders(limit=call.query.limit, after=call.query.cursor)
    return reply_with_page(
        [encode_noun(one) for one in found], found[-1].id if len(found) == call.query.limit else None
    )


@operations(
    "GET",
    "/contexts/{context_id}/renders/{render_id}",
    scope=Scope.MEMORY_READ,
    reply=describe_single_reply(RenderDetails),
)
async def get_render(call: Call[None, None]) -> Reply:
    """Return one request message by message: what each shows as the log has it now, and what was left out, and why.

    What the caller wrote is not kept: of that only its place and its tokens are told.
    """
    session = await call.tenant.session(call.path["context_id"])
    return reply_with_data(await session.sent(call.path["render_id"]))


@operations("DELETE", "/contexts/{context_id}/renders", scope=Scope.ERASE, status=204)
async def forget_renders(call: Call[None, None]) -> Reply:
    """Delete what was kept of the requests that were sent. The log itself stays as it is."""
    await (await call.tenant.session(call.path["context_id"])).forget_renders()
    return Reply()
