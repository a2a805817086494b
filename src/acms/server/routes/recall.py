"""Recall over HTTP: the entries that match a query, and chat messages ready for a provider."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import Field

from acms.errors import EntryNotFoundError, ValidationError
from acms.nouns import WHEN_GIVEN
from acms.results import Band, Certainty, ContextItem, ContextItems, Verdict
from acms.server.config import Limits
from acms.server.operation import Body, Call, Operations, Reply, Scope
from acms.server.replies import describe_single_reply, reply_with_data
from acms.server.versions import Version, view_at
from acms.text import chat_messages as chat
from acms.view import View

__all__ = ["Budget", "check_token_limit", "list_verdicts", "operations"]

operations = Operations("memory")

_CONTEXT = "/contexts/{context_id}"

Budget = Annotated[int, Field(ge=0)]
Excluded = Annotated[list[str], Field(max_length=10_000, default_factory=list[str])]


class RecallBody(Body):
    """A query, and limits of its result."""

    query: str
    """Text to search for."""
    budget: Budget | None = None
    """Largest number of tokens of all items together; 4000 unless the service is configured otherwise."""
    token_budget: Budget | None = None
    """Another name of `budget`."""
    include_current_episode: bool = True
    """Give the current episode a share of the budget."""
    min_relevance: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Omit items whose relevance, from 0 to 1, is lower."""
    exclude: Excluded
    """Ids of entries to omit."""
    scope: Literal["session", "namespace"] = "session"
    """`session` searches this context, `namespace` also the others of its namespace."""
    where: dict[str, Any] | None = None
    """Search only entries that match all of it: `role`, `actor`, `marker` and `session` (one or several), `after`,
    `before`, and `metadata` (an object)."""
    limit: Annotated[int, Field(ge=1)] | None = None
    """Largest number of items; the best by rank."""
    include_superseded: bool = False
    """Also show facts that a newer fact replaced."""
    relevant_only: bool = False
    """Give the current episode no share of its own: its messages compete like all others."""
    words_only: bool = False
    """Rank by words alone, as a service without an embedder does."""
    at_version: Version | None = None
    """Version of the log to read; the newest by default. Give at most one of `atVersion`, `atMessage`, `atTag`."""
    at_message: Version | None = None
    """Number of messages after which to read the log."""
    at_tag: str | None = None
    """Tag of the version to read."""
    why: bool = False
    """Explain for every candidate why it is shown or not."""
    about: Annotated[list[str], Field(max_length=100, default_factory=list[str])]
    """Ids of further entries to explain, even if they were no candidates."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recalled:
    """The entries that a model should see for a query."""

    #: In reading order: facts, past messages, the current episode.
    items: Sequence[ContextItem]
    #: Tokens of all items together, with their frames, and the budget.
    tokens: int
    budget: int
    #: Version of the log.
    version: int
    #: Confidence that the log holds an answer, from 0 to 1 and in words.
    confidence: float
    band: Band
    #: Share of the active entries that have vectors.
    coverage: float
    #: Ranking: "words", or the name of the embedder's model.
    tier: str
    warnings: tuple[str, ...]
    #: Candidates that are not shown.
    omitted: int
    #: Only with `why` or `about`: best first, then the entries of `about`.
    verdicts: list[Verdict] | None = field(default=None, metadata=WHEN_GIVEN)
    certainty: Certainty | None = field(default=None, metadata=WHEN_GIVEN)


def check_token_limit(budget: int | None, limits: Limits, field: str) -> None:
    """Raise `ValidationError` if one request asks for too many tokens."""
    if budget is not None and budget > limits.tokens:
        raise ValidationError(f"must be at most {limits.tokens}", field=field)


def list_verdicts(result: ContextItems, *, why: bool = True, about: Sequence[str] = ()) -> list[Verdict]:
    """Return the verdicts on all candidates, if `why`, and on the entries whose ids are in `about`.

    Candidates that are shown come first, the best first.
    """
    candidates = result.ledger.candidates
    verdicts: list[Verdict] = []
    if why:
        verdicts = sorted(candidates.values(), key=_rendered_and_best_first)
    for id in about:
        if not why or id not in candidates:
            with suppress(EntryNotFoundError):
                verdicts.append(result.ledger.why(id))
    return verdicts


def _rendered_and_best_first(verdict: Verdict) -> tuple[bool, float, int]:
    return not verdict.included, -verdict.score, verdict.version


def _build_recall_result(result: ContextItems, body: RecallBody) -> Recalled:
    """Return the reply to a recall, with the reasons that were asked for."""
    ledger = result.ledger
    verdicts = None
    if body.why or body.about:
        verdicts = list_verdicts(result, why=body.why, about=body.about)
    return Recalled(
        items=result,
        tokens=result.tokens,
        budget=result.budget,
        version=result.version,
        confidence=result.confidence,
        band=result.band,
        coverage=result.coverage,
        tier=result.tier,
        warnings=ledger.warnings,
        omitted=ledger.omitted,
        verdicts=verdicts,
        certainty=ledger.certainty if body.why else None,
    )


@operations(
    "POST",
    f"{_CONTEXT}/recall",
    scope=Scope.MEMORY_READ,
    body=RecallBody,
    reply=describe_single_reply(Recalled),
    writes=False,
    example={"query": "what did we choose for orders?", "tokenBudget": 60},
)
async def recall(call: Call[None, RecallBody]) -> Reply:
    """Return the entries that a model should see for a query, within a hard token budget.

    Facts come first, then past messages and summaries, then the current episode, each oldest first; `score` is the
    rank. The newest message is always included, unless it is the query itself, is excluded, or `includeCurrentEpisode`
    is false. The method is POST because a query is private, and addresses are logged.
    """
    body = call.body
    check_token_limit(body.token_budget, call.config.limits, "tokenBudget")
    check_token_limit(body.budget, call.config.limits, "budget")
    if body.budget is not None and body.token_budget is not None:
        raise ValidationError("is another name of budget: give one of them", field="tokenBudget")
    if not body.words_only:
        return await _reply_with_recall(await view_at(call, body), body)
    async with call.tenant.words_session(call.path["context_id"]) as session:
        return await _reply_with_recall(await view_at(call, body, session), body)


async def _reply_with_recall(view: View, body: RecallBody) -> Reply:
    result = await view.recall(
        body.query,
        budget=body.budget,
        token_budget=body.token_budget,
        include_current_episode=body.include_current_episode,
        min_relevance=body.min_relevance,
        exclude=body.exclude,
        scope=body.scope,
        where=body.where,
        limit=body.limit,
        include_superseded=body.include_superseded,
        relevant_only=body.relevant_only,
    )
    return reply_with_data(_build_recall_result(result, body))


class ChatBody(Body):
    """The query and the budget of chat messages."""

    query: str
    """Text to recall entries for; usually the newest message of the user."""
    budget: Budget
    """Largest number of tokens of all messages together."""
    at_version: Version | None = None
    """Version of the log to read; the newest by default. Give at most one of `atVersion`, `atMessage`, `atTag`."""
    at_message: Version | None = None
    """Number of messages after which to read the log."""
    at_tag: str | None = None
    """Tag of the version to read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chat:
    """Messages that can be sent to a model unchanged."""

    #: In the format of chat completions.
    messages: list[dict[str, Any]]
    #: The ids of the entries in each message; none for a text that comes from no entry.
    sources: list[tuple[str, ...]]
    tokens: int
    budget: int


@operations(
    "POST",
    f"{_CONTEXT}/chat",
    scope=Scope.MEMORY_READ,
    body=ChatBody,
    reply=describe_single_reply(Chat),
    writes=False,
    example={"query": "what did we choose for orders?", "budget": 6000},
)
async def chat_messages(call: Call[None, ChatBody]) -> Reply:
    """Return chat messages ready for a provider: the newest ones, and recalled entries for the query.

    A history that fits is returned whole. No message is included twice, and every tool call is followed by its results.
    For other formats, tools and pins see `/prompt`.
    """
    body = call.body
    check_token_limit(body.budget, call.config.limits, "budget")
    session = await view_at(call, body)
    messages = await session.messages(body.query, budget=body.budget)
    tokens = chat.count_message_tokens(messages, session.counter)
    return reply_with_data(
        Chat(messages=messages, sources=messages.sources, tokens=tokens, budget=body.budget)
    )
