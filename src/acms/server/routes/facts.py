"""What is known over HTTP: facts, episodes, and asking for a reflection."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from acms.knowledge import Fact
from acms.model import Json
from acms.results import Episode
from acms.server.operation import Body, Call, Operations, Reply, Scope, Shape
from acms.server.routes.jobs import OneJob, asked, job_json
from acms.server.versions import Place, view_at
from acms.server.wire import instant

__all__ = ["operations"]

operations = Operations("knowledge")

_CONTEXT = "/contexts/{context_id}"


class RetiredShape(Shape):
    """Why a fact is no longer in force."""

    reason: str
    #: Version and id of the entry that did it: taking that one back brings the fact back.
    version: int
    by: str
    evidence: list[str]


class FactShape(Shape):
    """A distilled statement, with its address, its evidence and how long it was in force."""

    id: str
    #: Whose log it is in: the profile of the namespace for one of scope namespace.
    context_id: str
    version: int
    content: str
    subject: str
    attribute: str
    value: str
    cardinality: Literal["one", "many"]
    fact_type: str
    confidence: float
    negative: bool
    scope: Literal["session", "namespace"]
    valid_from: str | None
    valid_to: str | None
    #: Where the least trusted of its sources came from.
    trust: str
    #: Ids of the messages it was made from, and of the facts it stands in for.
    sources: list[str]
    replaces: list[str]
    token_count: int
    created_at: str | None
    retired: RetiredShape | None


class ManyFacts(Shape):
    """A page of facts, oldest first."""

    data: list[FactShape]
    next_cursor: int | None
    has_more: bool


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


def fact_json(fact: Fact) -> dict[str, Json]:
    """Write a fact."""
    why = fact.retired
    return {
        "id": fact.id,
        "contextId": fact.context,
        "version": fact.version,
        "content": fact.content,
        "subject": fact.subject,
        "attribute": fact.attribute,
        "value": fact.value,
        "cardinality": fact.cardinality,
        "factType": fact.fact_type,
        "confidence": fact.confidence,
        "negative": fact.negative,
        "scope": fact.scope,
        "validFrom": instant(fact.valid_from),
        "validTo": instant(fact.valid_to),
        "trust": fact.trust,
        "sources": list(fact.sources),
        "replaces": list(fact.replaces),
        "tokenCount": fact.tokens,
        "createdAt": instant(fact.created_at),
        "retired": None
        if why is None
        else {
            "reason": why.reason,
            "version": why.version,
            "by": why.by,
            "evidence": list(why.evidence),
        },
    }


@operations("GET", f"{_CONTEXT}/facts", scope=Scope.MEMORY_READ, query=ListFacts, reply=ManyFacts)
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
    page = found[: query.limit]
    more = len(found) > len(page)
    data = [fact_json(one) for one in page]
    return Reply(body={"data": data, "nextCursor": page[-1].version if more else None, "hasMore": more})


class EpisodeShape(Shape):
    """A contiguous span of messages that belong together."""

    id: str
    ordinal: int
    status: Literal["open", "closed"]
    #: Versions of its first and last message.
    first: int
    last: int
    messages: int
    tokens: int
    #: Why it ended; null while it is open.
    reason: str | None
    summary: str | None
    started_at: str
    ended_at: str


class ManyEpisodes(Shape):
    """A page of episodes, oldest first."""

    data: list[EpisodeShape]
    next_cursor: int | None
    has_more: bool


class ListEpisodes(Place):
    """Which episodes to list."""

    status: Literal["open", "closed"] | None = None
    #: An ordinal: those after it are listed.
    cursor: Annotated[int, Field(ge=0)] = 0
    limit: Annotated[int, Field(ge=1, le=500)] = 50


def _episode(one: Episode) -> dict[str, Json]:
    return {
        "id": one.id,
        "ordinal": one.ordinal,
        "status": one.status,
        "first": one.first,
        "last": one.last,
        "messages": one.messages,
        "tokens": one.tokens,
        "reason": one.reason,
        "summary": one.summary,
        "startedAt": instant(one.started_at),
        "endedAt": instant(one.ended_at),
    }


@operations("GET", f"{_CONTEXT}/episodes", scope=Scope.READ, query=ListEpisodes, reply=ManyEpisodes)
async def list_episodes(call: Call[ListEpisodes, None]) -> Reply:
    """List the episodes of a context, oldest first."""
    query = call.query
    session = await view_at(call, query)
    found = [one for one in await session.episodes(query.status) if one.ordinal > query.cursor]
    page = found[: query.limit]
    more = len(found) > len(page)
    data = [_episode(one) for one in page]
    return Reply(body={"data": data, "nextCursor": page[-1].ordinal if more else None, "hasMore": more})


class CloseBody(Body):
    """Why an episode ends."""

    reason: Annotated[str, Field(min_length=1, max_length=255)] = "manual"


class Closed(Shape):
    """The episode that was ended."""

    episode_id: str


class OneClosed(Shape):
    """The episode that was ended."""

    data: Closed


@operations(
    "POST",
    f"{_CONTEXT}/episodes/close",
    scope=Scope.APPEND,
    body=CloseBody,
    optional=True,
    reply=OneClosed,
    example={"reason": "topic changed"},
)
async def close_episode(call: Call[None, CloseBody]) -> Reply:
    """End the current episode.

    With nothing open it answers the last one; 404 when there is none.
    """
    session = await call.tenant.session(call.path["context_id"])
    return Reply(body={"data": {"episodeId": await session.close_episode(call.body.reason)}})


@operations(
    "POST",
    f"{_CONTEXT}/reflect",
    scope=Scope.MEMORY_WRITE,
    reply=OneJob,
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
    return Reply(body={"data": job_json(done.job)}, status=200 if done.ended else 202, headers=done.headers)
