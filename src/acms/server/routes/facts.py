"""What is known over HTTP: facts, episodes, and asking for a reflection."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from acms.knowledge import Fact
from acms.model import Job
from acms.results import Episode
from acms.server.operation import Body, Call, Operations, Reply, Scope
from acms.server.replies import many, paged, show, single
from acms.server.routes.jobs import asked
from acms.server.versions import Place, view_at

__all__ = ["operations"]

operations = Operations("knowledge")

_CONTEXT = "/contexts/{context_id}"


class ListFacts(Place):
    """Which facts to list."""

    subject: str | None = None
    attribute: str | None = None
    fact_type: str | None = None
    #: Also those that are no longer in force.
    history: bool = False
    #: Those of this conversation, or of the profile of its namespace.
    scope: Literal["session", "namespace"] = "session"
    #: A version: those after it are listed.
    cursor: Annotated[int, Field(ge=0)] = 0
    limit: Annotated[int, Field(ge=1, le=500)] = 100


@operations("GET", f"{_CONTEXT}/facts", scope=Scope.MEMORY_READ, query=ListFacts, reply=many(Fact, int))
async def list_facts(call: Call[ListFacts, None]) -> Reply:
    """List the facts in force, oldest first; with `history` also those that were retired, each with the reason.

    Addresses match without regard to case, articles, plurals and punctuation. A fact is an entry: its `contextId` and
    `id` are what retract and erase take.
    """
    query = call.query
    session = await view_at(call, query)
    found = await session.facts(
        subject=query.subject,
        attribute=query.attribute,
        fact_type=query.fact_type,
        history=query.history,
        scope=query.scope,
    )
    found = sorted([one for one in found if one.version > query.cursor], key=lambda one: one.version)
    return paged(found, query.limit, lambda one: one.version)


class ListEpisodes(Place):
    """Which episodes to list."""

    status: Literal["open", "closed"] | None = None
    #: An ordinal: those after it are listed.
    cursor: Annotated[int, Field(ge=0)] = 0
    limit: Annotated[int, Field(ge=1, le=500)] = 50


@operations("GET", f"{_CONTEXT}/episodes", scope=Scope.READ, query=ListEpisodes, reply=many(Episode, int))
async def list_episodes(call: Call[ListEpisodes, None]) -> Reply:
    """List the episodes of a context, oldest first."""
    query = call.query
    session = await view_at(call, query)
    found = [one for one in await session.episodes(query.status) if one.ordinal > query.cursor]
    return paged(found, query.limit, lambda one: one.ordinal)


class CloseBody(Body):
    """Why an episode ends."""

    reason: Annotated[str, Field(min_length=1, max_length=255)] = "manual"


@dataclass(frozen=True, slots=True, kw_only=True)
class Closed:
    """The episode that was ended."""

    episode_id: str


@operations(
    "POST",
    f"{_CONTEXT}/episodes/close",
    scope=Scope.APPEND,
    body=CloseBody,
    optional=True,
    reply=single(Closed),
    example={"reason": "topic changed"},
)
async def close_episode(call: Call[None, CloseBody]) -> Reply:
    """End the current episode.

    With nothing open it answers the last one; 404 when there is none.
    """
    session = await call.tenant.session(call.path["context_id"])
    return show(Closed(episode_id=await session.close_episode(call.body.reason)))


@operations(
    "POST",
    f"{_CONTEXT}/reflect",
    scope=Scope.MEMORY_WRITE,
    reply=single(Job),
    status=202,
    takes=("Prefer",),
    also={200: "It ended while it was waited for."},
)
async def reflect_context(call: Call[None, None]) -> Reply:
    """Ask for everything closed to be reflected on now.

    Facts appear once the job is done, which `GET /jobs/{id}` tells; with `Prefer: wait=n` the answer comes when it has
    ended, or after n seconds. The open episode is not read: close it first.
    """
    session = await call.tenant.session(call.path["context_id"])
    done = await asked(call, session, await session.reflect())
    return show(done.job, status=200 if done.ended else 202, headers=done.headers)
