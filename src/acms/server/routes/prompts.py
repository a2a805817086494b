"""Prompts over HTTP: the whole request for a model, in its provider's format, within a token budget."""

from __future__ import annotations

from functools import lru_cache
from typing import Annotated, Any, Literal

from pydantic import Field

from acms.model import Json
from acms.ports import Codec
from acms.prompt.builder import Prompt, Rendered
from acms.prompt.manifest import Manifest
from acms.prompt_types import Changed
from acms.providers import codecs
from acms.server.operation import Body, Call, Operations, Reply, Scope, Shape
from acms.server.routes.recall import Budget, Excluded, VerdictShape, verdict_json, within
from acms.server.versions import Version, view_at
from acms.server.wire import plain

__all__ = ["operations"]

operations = Operations("prompts")

Words = Annotated[str, Field(max_length=1_048_576)]


class RecallPart(Body):
    """What of the past a prompt shows."""

    query: str
    #: When it is left out, it shares the room with the history by what answers.
    tokens: Budget | None = None
    min_relevance: Annotated[float, Field(ge=0, le=1)] = 0.0
    exclude: Excluded
    scope: Literal["session", "namespace"] = "session"


class HintPart(Body):
    """A prefix that the provider is asked to cache: all up to the end of the history."""

    id: Annotated[str, Field(min_length=1, max_length=255)] = "prompt"
    version: Annotated[str, Field(max_length=255)] = ""
    #: In seconds.
    ttl: Annotated[int, Field(ge=1)] | None = None


class PromptBody(Body):
    """What a prompt is made of; its parts stand in this order, what is recalled before the newest of the user."""

    codec: Literal["openai-chat", "openai-responses", "anthropic"] = "openai-chat"
    #: Which model it is counted for; a current one of the format when it is left out.
    model: Annotated[str, Field(min_length=1, max_length=255)] | None = None
    #: Tokens of the whole request, tools and framing included.
    budget: Budget
    system: Words | None = None
    developer: Words | None = None
    #: Namespace of the pins that are shown.
    pins: Annotated[str, Field(min_length=1, max_length=255)] | None = None
    #: The newest messages that fit: all, the last n, or none of them.
    history: bool = True
    last: Annotated[int, Field(ge=1)] | None = None
    cache_hint: HintPart | None = None
    recall: RecallPart | None = None
    user: Words | None = None
    #: Functions the model may call: `{name, description, parameters, strict}`, or as chat completions have them.
    tools: Annotated[list[dict[str, Any]], Field(max_length=1000, default_factory=list[dict[str, Any]])]
    #: The `manifest` of an earlier prompt: what of it the provider has cached is predicted.
    after: dict[str, Any] | None = None
    #: Say of everything why it is in the prompt or not.
    ledger: bool = False
    #: Look at the log as it was at a version, right after a message, or at a tag.
    at_version: Version | None = None
    at_message: Version | None = None
    at_tag: str | None = None


class CountShape(Shape):
    """The tokens of a whole request."""

    #: By the format's counter; the truth when exact.
    tokens: int
    exactness: Literal["exact", "calibrated", "bytes"]
    #: What is within the budget.
    upper_bound: int


class FirstChange(Shape):
    """The first message that is not as it was."""

    index: int
    role: str | None
    path: str


class CacheShape(Shape):
    """What of a prompt its provider can read from the prompt cache."""

    predicted_tokens: int
    #: Tokens of what both prompts begin with.
    shared_tokens: int
    first_change: FirstChange | None
    reason: str
    key: str
    #: Tokens of the whole request.
    total_tokens: int
    #: Whether there was an earlier prompt, and the part that differs first from it.
    compared: bool
    changed: Changed | None


class StepShape(Shape):
    """What was done to one part to make the prompt fit."""

    path: str
    priority: int
    strategy: str
    #: Tokens before and after it.
    before: int
    after: int


class PromptShape(Shape):
    """A prompt within its budget."""

    #: Arguments of the provider's request, by its own names; not the model.
    payload: dict[str, Any]
    codec: str
    model: str
    tokens: CountShape
    budget: int
    cache: CacheShape
    #: What was done to make it fit, in order.
    steps: list[StepShape]
    warnings: list[str]
    #: Where every stretch of text comes from, with `ledger` also what was recalled and not chosen; give it as `after`
    #: next time.
    manifest: dict[str, Any]
    #: With `ledger` only.
    verdicts: list[VerdictShape] | None = None


class OnePrompt(Shape):
    """A prompt within its budget."""

    data: PromptShape


@lru_cache(maxsize=64)
def _codec(name: str, model: str | None) -> Codec:
    return codecs.named(name, model)


@operations(
    "POST",
    "/contexts/{context_id}/prompt",
    scope=Scope.MEMORY_READ,
    body=PromptBody,
    reply=OnePrompt,
    writes=False,
    example={
        "codec": "openai-chat",
        "model": "gpt-5",
        "budget": 8000,
        "system": "You are the orders team's assistant.",
        "recall": {"query": "what did we choose for orders?", "tokens": 2000},
        "last": 20,
        "user": "Write the migration plan.",
    },
)
async def render_prompt(call: Call[None, PromptBody]) -> Reply:
    """Return the request for a model: rules, pins, history, what the past says, the user's text and tools.

    The whole request is within the budget by the format's own count; what is written here is required, history,
    recall and pins shrink. What is recalled is new every turn: it stands at the end, so that all before it can be
    cached. 422 when what is required does not fit: the answer says where, and what was tried.
    """
    body = call.body
    within(body.budget, call.config.limits, "budget")
    after = None if body.after is None else Manifest.from_json(body.after)
    session = await view_at(call, body)
    made = Prompt(_codec(body.codec, body.model))
    if body.system is not None:
        made = made.system(body.system)
    if body.developer is not None:
        made = made.developer(body.developer)
    if body.pins is not None:
        made = made.pinned_kv(store=call.tenant.kv, namespace=body.pins)
    if body.last is not None:
        made = made.last(session, n=body.last)
    elif body.history:
        made = made.history(session)
    if body.cache_hint is not None:
        hint = body.cache_hint
        made = made.cache_hint(id=hint.id, version=hint.version, ttl=hint.ttl)
    if body.recall is not None:
        asked = body.recall
        made = made.recall(
            session,
            asked.query,
            tokens=asked.tokens,
            min_relevance=asked.min_relevance,
            exclude=asked.exclude,
            scope=asked.scope,
        )
    if body.user is not None:
        made = made.user(body.user)
    if body.tools:
        made = made.tools(body.tools)
    rendered = await made.render(budget=body.budget, after=after, on_event=call.app.metrics.event)
    return Reply(body={"data": _prompt_json(rendered, ledger=body.ledger)})


def _prompt_json(found: Rendered, *, ledger: bool) -> dict[str, Json]:
    shown: dict[str, Json] = {
        "payload": found.payload,
        "codec": found.codec.name,
        "model": found.codec.model,
        "tokens": plain(found.tokens),
        "budget": found.budget,
        "cache": plain(found.cache),
        "steps": [
            {
                "path": step.path,
                "priority": step.priority,
                "strategy": step.strategy,
                "before": step.before,
                "after": step.after,
            }
            for step in found.steps
        ],
        "warnings": list(found.warnings),
        "manifest": (found.manifest if ledger else found.outline).to_json(),
    }
    if ledger:
        shown["verdicts"] = [verdict_json(one) for one in found.ledger.candidates.values()]
    return shown
