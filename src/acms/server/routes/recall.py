"""Recall over HTTP: what the past says about a query, and messages that can be sent to a model as they stand."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from acms.errors import ValidationError
from acms.model import Json
from acms.results import ContextItem, ContextItems, Verdict
from acms.server.config import Limits
from acms.server.operation import Body, Call, Operations, Reply, Scope, Shape
from acms.server.routes.messages import RoleName
from acms.server.versions import Version, view_at
from acms.server.wire import instant, named, plain
from acms.text import chat_messages as chat

__all__ = [
    "ItemShape",
    "VerdictShape",
    "item_json",
    "operations",
    "verdict_json",
    "verdicts_json",
    "within",
]

operations = Operations("memory")

_CONTEXT = "/contexts/{context_id}"

Budget = Annotated[int, Field(ge=1)]
Excluded = Annotated[list[str], Field(max_length=10_000, default_factory=list[str])]


class RecallBody(Body):
    """What to recall."""

    query: str
    #: Tokens of all items together, a hard limit; 4000 unless the service is told otherwise.
    token_budget: Budget | None = None
    include_current_episode: bool = True
    #: In [0, 1]: what answers less well is left out.
    min_relevance: Annotated[float, Field(ge=0, le=1)] = 0.0
    #: Ids of entries that are not to be shown.
    exclude: Excluded
    #: Whether other contexts of the namespace are asked too.
    scope: Literal["session", "namespace"] = "session"
    #: Also show what a newer fact has replaced.
    include_superseded: bool = False
    #: The current episode has no part of its own: its messages compete like all others.
    relevant_only: bool = False
    #: Look at the log as it was at a version, right after a message, or at a tag.
    at_version: Version | None = None
    at_message: Version | None = None
    at_tag: str | None = None
    #: Say of every candidate why it is shown or not.
    why: bool = False


class RedactionShape(Shape):
    """What was taken out of an entry before it was shown."""

    mode: Literal["allow", "redact", "block"]
    #: How often what was taken out, by kind.
    kinds: dict[str, int]


class ItemShape(Shape):
    """One thing the model should see, and why."""

    #: Of the entry it shows.
    id: str
    version: int
    position: int | None
    role: RoleName | None
    content: str
    source: Literal["fact", "summary", "marked", "similar", "current_episode", "window"]
    #: Relevance raised by the markers, and how well it answers, both in [0, 1]; 0 in a window.
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
    #: Null when it is shown as it was said.
    redaction: RedactionShape | None


class VerdictShape(Shape):
    """What was decided about one candidate, and by which rule."""

    id: str
    version: int
    included: bool
    rule: str
    source: str | None
    relevance: float
    #: Sum of the marker weights.
    boost: float
    score: float
    #: What each signal adds to the relevance, by name.
    parts: dict[str, float]
    tokens: int
    reason: str


class CertaintyShape(Shape):
    """How sure it is that memory holds an answer, and what that was read off."""

    confidence: float
    #: Share of what was asked for that the best places hold.
    reach: float
    #: How much more of it the speaker whom the query names has said than anybody else.
    lead: float
    #: How well the best entry answers by meaning.
    rise: float


class Recalled(Shape):
    """What the model should see for a query."""

    #: In the order in which the model should see them: facts, past messages, the current episode.
    items: list[ItemShape]
    #: What they cost together, frames included, and what they may cost.
    tokens: int
    budget: int
    #: Of the log that was read.
    version: int
    #: How sure it is that memory holds an answer, in [0, 1] and in words.
    confidence: float
    band: Literal["strong", "possible", "none"]
    #: Share of the entries in force that could be compared by meaning.
    coverage: float
    #: What ranked them: "words", or the name of the embedder's model.
    tier: str
    warnings: list[str]
    #: Candidates that are not shown.
    omitted: int
    #: With `why` only: best first.
    verdicts: list[VerdictShape] | None = None
    certainty: CertaintyShape | None = None


class OneRecall(Shape):
    """What the model should see for a query."""

    data: Recalled


def within(budget: int | None, limits: Limits, field: str) -> None:
    """Raise `ValidationError` for more tokens than one request may ask for."""
    if budget is not None and budget > limits.tokens:
        raise ValidationError(f"must be at most {limits.tokens}", field=field)


def item_json(item: ContextItem) -> dict[str, Json]:
    """Write a recalled or windowed item."""
    found = item.redaction
    return {
        "id": item.id,
        "version": item.version,
        "position": item.position,
        "role": named(item.role),
        "content": item.content,
        "source": str(item.source),
        "score": item.score,
        "relevance": item.relevance,
        "tokenCount": item.token_count,
        "markers": list(item.markers),
        "parts": plain(item.parts) if item.parts else [],
        "group": item.group,
        "actorId": item.actor_id,
        "metadata": dict(item.metadata),
        "createdAt": instant(item.created_at),
        "truncated": item.truncated,
        "why": item.why,
        "redaction": None if found is None else {"mode": found.mode, "kinds": dict(found.kinds)},
    }


def verdict_json(one: Verdict) -> dict[str, Json]:
    """Write a verdict."""
    return {
        "id": one.id,
        "version": one.version,
        "included": one.included,
        "rule": one.rule,
        "source": one.source,
        "relevance": one.relevance,
        "boost": one.boost,
        "score": one.score,
        "parts": dict(one.parts),
        "tokens": one.tokens,
        "reason": one.reason,
    }


def verdicts_json(found: ContextItems) -> list[Json]:
    """Write why each candidate is shown or not, best first."""
    verdicts = sorted(
        found.ledger.candidates.values(), key=lambda one: (not one.included, -one.score, one.version)
    )
    return [verdict_json(one) for one in verdicts]


def _recalled(found: ContextItems, *, why: bool) -> dict[str, Json]:
    shown: dict[str, Json] = {
        "items": [item_json(item) for item in found],
        "tokens": found.tokens,
        "budget": found.budget,
        "version": found.version,
        "confidence": found.confidence,
        "band": found.band,
        "coverage": found.coverage,
        "tier": found.tier,
        "warnings": list(found.ledger.warnings),
        "omitted": found.ledger.omitted,
    }
    if why:
        shown["verdicts"] = verdicts_json(found)
        shown["certainty"] = found.ledger.certainty._asdict()
    return shown


@operations(
    "POST",
    f"{_CONTEXT}/recall",
    scope=Scope.MEMORY_READ,
    body=RecallBody,
    reply=OneRecall,
    writes=False,
    example={"query": "what did we choose for orders?", "tokenBudget": 500},
)
async def recall(call: Call[None, RecallBody]) -> Reply:
    """Return what the model should see for a query, within a hard token budget.

    Facts come first, then past messages and summaries, then the current episode, each oldest first; `score` is the
    rank. The newest message is always in unless it is the query itself, is excluded, or the current episode was not
    asked for. It is a POST as a query is private, and addresses are logged.
    """
    body = call.body
    within(body.token_budget, call.config.limits, "tokenBudget")
    session = await view_at(call, body)
    found = await session.recall(
        body.query,
        token_budget=body.token_budget,
        include_current_episode=body.include_current_episode,
        min_relevance=body.min_relevance,
        exclude=body.exclude,
        scope=body.scope,
        include_superseded=body.include_superseded,
        relevant_only=body.relevant_only,
    )
    return Reply(body={"data": _recalled(found, why=body.why)})


class ChatBody(Body):
    """What messages are for, and what they may cost."""

    query: str
    budget: Budget
    at_version: Version | None = None
    at_message: Version | None = None
    at_tag: str | None = None


class ChatShape(Shape):
    """Messages that can be sent to a model as they stand."""

    #: As chat completions take them.
    messages: list[dict[str, Any]]
    tokens: int
    budget: int


class OneChat(Shape):
    """Messages that can be sent to a model as they stand."""

    data: ChatShape


@operations(
    "POST",
    f"{_CONTEXT}/chat",
    scope=Scope.MEMORY_READ,
    body=ChatBody,
    reply=OneChat,
    writes=False,
    example={"query": "what did we choose for orders?", "budget": 6000},
    reply_example={
        "data": {
            "messages": [{"role": "user", "content": "Which database should the orders service use?"}],
            "tokens": 16,
            "budget": 6000,
        }
    },
)
async def chat_messages(call: Call[None, ChatBody]) -> Reply:
    """Return chat messages ready for a provider: the newest ones, and what the past says about the query.

    The whole history when it fits. Nothing stands there twice, and every tool call is followed by its answers. For
    other formats, tools and pins see `/prompt`.
    """
    body = call.body
    within(body.budget, call.config.limits, "budget")
    session = await view_at(call, body)
    messages = await session.messages(body.query, budget=body.budget)
    tokens = chat.tokens(messages, session.counter)
    return Reply(body={"data": {"messages": messages, "tokens": tokens, "budget": body.budget}})
