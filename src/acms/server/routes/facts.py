"""Knowledge over HTTP: facts, episodes and reflection."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field

from acms.knowledge import Fact
from acms.log import validation
from acms.model import EpisodeStatus, Job
from acms.nouns import encode_noun
from acms.results import Episode
from acms.server.operation import Body, Call, Operations, Reply, Scope
from acms.server.replies import (
    describe_list_reply,
    describe_single_reply,
    paginate_reply,
    reply_with_data,
    reply_with_page,
)
from acms.server.routes.jobs import wait_for_requested_job
from acms.server.versions import VersionQuery, view_at

__all__ = ["operations"]

operations = Operations("knowledge")

_CONTEXT = "/contexts/{context_id}"


class ListFacts(VersionQuery):
    """The facts to list."""

    subject: str | None = None
    """List only facts about this subject."""
    attribute: str | None = None
    """List only facts of this attribute."""
    fact_type: str | None = None
    """List only facts of this type."""
    history: bool = False
    """Also list facts that are no longer active."""
    scope: Literal["session", "namespace"] = "session"
    """`session` for this conversation, `namespace` for the profile of its namespace."""
    as_of: str | None = None
    """List the facts as they were recorded at a version or at a time (RFC 3339)."""
    valid_at: str | None = None
    """List the facts that were valid at a time (RFC 3339)."""
    cursor: Annotated[int, Field(ge=0)] = 0
    """Version after which the page begins: `nextCursor` of the previous page."""
    limit: Annotated[int, Field(ge=1, le=500)] = 100
    """Largest number of items in the page."""


@operations(
    "GET", f"{_CONTEXT}/facts", scope=Scope.MEMORY_READ, query=ListFacts, reply=describe_list_reply(Fact, int)
)
async def list_facts(call: Call[ListFacts, None]) -> Reply:
    """List the active facts, oldest first. With `history` retired facts are listed too, each with the reason.

    Addresses match regardless of case, articles, plurals and punctuation. A fact is an entry: pass its `contextId` and
    `id` to retract or erase it.
    """
    query = call.query
    session = await view_at(call, query)
    facts = await session.facts(
        subject=query.subject,
        attribute=query.attribute,
        fact_type=query.fact_type,
        history=query.history,
        scope=query.scope,
        as_of=_parse_as_of(query.as_of),
        valid_at=None if query.valid_at is None else validation.parse_moment(query.valid_at, "valid_at"),
    )
    following = [fact for fact in facts if fact.version > query.cursor]
    following.sort(key=lambda fact: fact.version)
    return paginate_reply(following, query.limit, lambda fact: fact.version)


def _parse_as_of(text: str | None) -> int | datetime | None:
    """Parse a version or a time: a short number is a version."""
    if text is None:
        return None
    is_version = text.isascii() and text.isdecimal() and len(text) < 19
    if is_version:
        return int(text)
    return validation.parse_moment(text, "as_of")


class StateBody(Body):
    """A fact to store."""

    subject: str
    """Subject of the fact."""
    attribute: str
    """Attribute of the fact."""
    value: str
    """Value of the fact."""
    names: Annotated[list[str], Field(default_factory=list[str])]
    """Other names of the subject."""
    valid_from: str | None = None
    """First moment at which it is valid: a date, or a time (RFC 3339)."""
    valid_to: str | None = None
    """Moment at which it stops being valid: a date, or a time (RFC 3339)."""
    sources: Annotated[list[str], Field(default_factory=list[str])]
    """Ids or keys of the messages it comes from."""
    cardinality: Literal["one", "many"] = "one"
    """`one` replaces the known values of the subject and attribute, `many` adds another value."""
    scope: Literal["session", "namespace"] = "session"
    """`session` for this conversation, `namespace` for the profile of its namespace."""
    expected: Annotated[int, Field(ge=0)] | None = None
    """Version of the newest active fact there, as the client knows it; 0 for none. Any other is refused with 412."""


@operations(
    "POST",
    f"{_CONTEXT}/facts",
    scope=Scope.MEMORY_WRITE,
    body=StateBody,
    reply=describe_single_reply(Fact),
    example={"subject": "orders service", "attribute": "database", "value": "PostgreSQL 18"},
)
async def state_fact(call: Call[None, StateBody]) -> Reply:
    """Store a fact without a reflector. If the same fact is stored already, it is returned unchanged.

    It replaces the current value of its subject and attribute, unless `cardinality` is `many`. The replaced fact stays
    readable in the history of facts.
    """
    session = await call.tenant.session(call.path["context_id"])
    arguments = {name: getattr(call.body, name) for name in StateBody.model_fields}
    return reply_with_data(await session.state(**arguments))


class UnstateBody(Body):
    """The subject and attribute of facts to withdraw."""

    subject: str
    """Subject of the facts to withdraw."""
    attribute: str
    """Attribute of the facts to withdraw."""
    scope: Literal["session", "namespace"] = "session"
    """`session` for this conversation, `namespace` for the profile of its namespace."""


@operations(
    "POST",
    f"{_CONTEXT}/facts/withdraw",
    scope=Scope.MEMORY_WRITE,
    body=UnstateBody,
    reply=describe_list_reply(Fact, int),
    example={"subject": "orders service", "attribute": "database"},
)
async def unstate_facts(call: Call[None, UnstateBody]) -> Reply:
    """Withdraw the facts about a subject and an attribute without a replacement, and return them.

    They stay readable in the history of facts. Without such a fact the list is empty and nothing is written.
    """
    session = await call.tenant.session(call.path["context_id"])
    body = call.body
    facts = await session.unstate(body.subject, body.attribute, scope=body.scope)
    return reply_with_page([encode_noun(fact) for fact in facts], None)


class ListEpisodes(VersionQuery):
    """The episodes to list."""

    status: EpisodeStatus | None = None
    """List only episodes with this status."""
    cursor: Annotated[int, Field(ge=0)] = 0
    """Ordinal after which the page begins: `nextCursor` of the previous page."""
    limit: Annotated[int, Field(ge=1, le=500)] = 50
    """Largest number of items in the page."""


@operations(
    "GET",
    f"{_CONTEXT}/episodes",
    scope=Scope.READ,
    query=ListEpisodes,
    reply=describe_list_reply(Episode, int),
)
async def list_episodes(call: Call[ListEpisodes, None]) -> Reply:
    """List the episodes of a context, oldest first.

    An episode is a run of messages about one topic. The last one may be open; `status` selects open or closed ones.
    """
    query = call.query
    session = await view_at(call, query)
    following = [
        episode for episode in await session.episodes(query.status) if episode.ordinal > query.cursor
    ]
    return paginate_reply(following, query.limit, lambda episode: episode.ordinal)


class CloseBody(Body):
    """The reason for closing an episode."""

    reason: Annotated[str, Field(min_length=1, max_length=255)] = "manual"
    """Reason to record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Closed:
    """The episode that was closed."""

    episode_id: str


@operations(
    "POST",
    f"{_CONTEXT}/episodes/close",
    scope=Scope.APPEND,
    body=CloseBody,
    optional=True,
    reply=describe_single_reply(Closed),
    example={"reason": "topic changed"},
)
async def close_episode(call: Call[None, CloseBody]) -> Reply:
    """Close the current episode.

    If none is open, the last one is returned; 404 if there is none.
    """
    session = await call.tenant.session(call.path["context_id"])
    return reply_with_data(Closed(episode_id=await session.close_episode(call.body.reason)))


@operations(
    "POST",
    f"{_CONTEXT}/reflect",
    scope=Scope.MEMORY_WRITE,
    reply=describe_single_reply(Job),
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
    requested_job = await wait_for_requested_job(call, session, await session.reflect())
    return reply_with_data(
        requested_job.job, status=200 if requested_job.ended else 202, headers=requested_job.headers
    )
