"""Prompts over HTTP: the whole request for a model, in its provider's format, within a token budget."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Annotated, Any, Literal

from pydantic import Field

from acms.errors import ValidationError
from acms.nouns import WHEN_GIVEN
from acms.plan.nodes import Step
from acms.ports import Codec
from acms.prompt.builder import Prompt, Rendered
from acms.prompt.manifest import Manifest
from acms.prompt_types import CachePrediction, Count, Use
from acms.providers import codecs
from acms.results import Verdict
from acms.server.operation import Body, Call, Operations, Reply, Scope
from acms.server.replies import describe_single_reply, reply_with_data
from acms.server.routes.prompt_steps import StepBody, apply_prompt_steps
from acms.server.routes.recall import Excluded, check_token_limit
from acms.server.versions import Version, view_at
from acms.view import View

__all__ = ["operations"]

operations = Operations("prompts")

Budget = Annotated[int, Field(ge=1)]
Words = Annotated[str, Field(max_length=1_048_576)]


class RecallPart(Body):
    """The recall of a prompt."""

    query: str
    """Text to search for."""
    tokens: Budget | None = None
    """Largest number of tokens; by default recall and history share the budget."""
    min_relevance: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Omit items whose relevance, from 0 to 1, is lower."""
    exclude: Excluded
    """Ids of entries to omit."""
    scope: Literal["session", "namespace"] | None = None
    where: dict[str, Any] | None = None
    limit: Annotated[int, Field(ge=1)] | None = None
    """Largest number of items; the best by rank."""


class HintPart(Body):
    """A prefix that the provider is asked to cache: everything up to the end of the history."""

    id: Annotated[str, Field(min_length=1, max_length=255)] = "prompt"
    """Id of the prefix."""
    version: Annotated[str, Field(max_length=255)] = ""
    """Version of the prefix."""
    ttl: Annotated[int, Field(ge=1)] | None = None
    """Seconds for which the provider should cache it."""


class PromptBody(Body):
    """The parts of a prompt, in this order. Recalled entries come before the newest text of the user."""

    codec: Literal["openai-chat", "openai-responses", "anthropic", "anthropic-messages", "gemini"] = (
        "openai-chat"
    )
    """Format of the request. Replies call `anthropic` by its full name, `anthropic-messages`."""
    model: Annotated[str, Field(min_length=1, max_length=255)] | None = None
    """Model to count tokens for; by default a current one of the format."""
    budget: Budget
    """Largest number of tokens of the whole request, with tools and framing."""
    system: Words | None = None
    """Text of the system message."""
    developer: Words | None = None
    """Text of the developer message."""
    pins: Annotated[str, Field(min_length=1, max_length=255)] | None = None
    """Namespace of the pins to show."""
    history: bool = True
    """Whether to show the newest messages that fit."""
    last: Annotated[int, Field(ge=1)] | None = None
    """Number of newest messages to show instead."""
    cache_hint: HintPart | None = None
    """Prefix that the provider should cache."""
    recall: RecallPart | None = None
    """What to recall."""
    user: Words | None = None
    """Text of the newest user message."""
    tools: Annotated[list[dict[str, Any]], Field(max_length=1000, default_factory=list[dict[str, Any]])]
    """Functions the model may call: `{name, description, parameters, strict}`, or as in chat completions."""
    steps: Annotated[list[StepBody], Field(max_length=1000)] | None = None
    """Steps of the library's `Prompt`, in order. They replace all other parts but the tools."""
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    """Largest number of tokens of the answer, for formats that require it."""
    calibration: dict[str, Any] | None = None
    """Calibration of the token counts, from an earlier prompt."""
    after: dict[str, Any] | None = None
    """`manifest` of an earlier prompt, to predict how much of this one the provider has cached."""
    ledger: bool = False
    """Explain for every candidate why it is in the prompt or not."""
    at_version: Version | None = None
    """Version of the log to read; the newest by default. Give at most one of `atVersion`, `atMessage`, `atTag`."""
    at_message: Version | None = None
    """Number of messages after which to read the log."""
    at_tag: str | None = None
    """Tag of the version to read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderedPrompt:
    """A prompt within its budget."""

    #: Arguments of the provider's request, by its own names; not the model.
    payload: dict[str, Any]
    codec: str
    model: str
    tokens: Count
    budget: int
    cache: CachePrediction
    #: Tokens by their use.
    use: Use
    #: For each message of the payload the entries in it, in order.
    sources: list[tuple[str, ...]]
    #: Candidates that are not shown.
    omitted: int
    #: The steps that made it fit, in order.
    steps: Sequence[Step]
    warnings: tuple[str, ...]
    #: The source of every part of the text, with `ledger` also of recalled text that was not chosen. Pass it as `after`
    #: of the next prompt.
    manifest: dict[str, Any]
    #: With `ledger` only.
    verdicts: list[Verdict] | None = field(default=None, metadata=WHEN_GIVEN)


@lru_cache(maxsize=64)
def _get_cached_codec(name: str, model: str | None) -> Codec:
    return codecs.named(name, model)


def _resolve_codec(body: PromptBody) -> Codec:
    if body.max_tokens is None and body.calibration is None:
        return _get_cached_codec(body.codec, body.model)
    return codecs.named(body.codec, body.model, max_tokens=body.max_tokens, calibrated=body.calibration)


@operations(
    "POST",
    "/contexts/{context_id}/prompt",
    scope=Scope.MEMORY_READ,
    body=PromptBody,
    reply=describe_single_reply(RenderedPrompt),
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
    """Build a request for a model: instructions, pins, history, recalled entries, the user's text and tools.

    The whole request is within the budget by the format's own count. Texts in this body are required; history, recall
    and pins shrink. Recalled entries change every turn: they come at the end, so that the provider can cache everything
    before them. 422 if the required parts do not fit: the reply names the part, and the attempts.
    """
    body = call.body
    check_token_limit(body.budget, call.config.limits, "budget")
    previous_manifest = None if body.after is None else Manifest.from_json(body.after)
    prompt = Prompt(_resolve_codec(body))
    if body.steps is None:
        prompt = _build_simple_prompt(call, prompt, await view_at(call, body))
    elif other_fields := body.model_fields_set & _SIMPLE:
        raise ValidationError(
            "cannot be combined with steps", field=min(other_fields), options=("pass it as a step",)
        )
    else:
        prompt = await apply_prompt_steps(call, prompt, body.steps)
    if body.tools:
        prompt = prompt.tools(body.tools)
    rendered = await prompt.render(
        budget=body.budget, after=previous_manifest, on_event=call.app.metrics.count_event
    )
    return reply_with_data(_build_rendered_prompt(rendered, body.budget, ledger=body.ledger))


_SIMPLE = frozenset(
    "system developer pins history last cache_hint recall user at_version at_message at_tag".split()
)


def _build_simple_prompt(call: Call[None, PromptBody], prompt: Prompt, session: View) -> Prompt:
    """Build the prompt of a request without steps."""
    body = call.body
    if body.system is not None:
        prompt = prompt.system(body.system)
    if body.developer is not None:
        prompt = prompt.developer(body.developer)
    if body.pins is not None:
        prompt = prompt.pinned_kv(store=call.tenant.kv, namespace=body.pins)
    if body.last is not None:
        prompt = prompt.last(session, n=body.last)
    elif body.history:
        prompt = prompt.history(session)
    if body.cache_hint is not None:
        hint = body.cache_hint
        prompt = prompt.cache_hint(id=hint.id, version=hint.version, ttl=hint.ttl)
    if body.recall is not None:
        part = body.recall
        prompt = prompt.recall(
            session,
            part.query,
            tokens=part.tokens,
            min_relevance=part.min_relevance,
            exclude=part.exclude,
            scope=part.scope,
            where=part.where,
            limit=part.limit,
        )
    if body.user is not None:
        prompt = prompt.user(body.user)
    return prompt


def _build_rendered_prompt(rendered: Rendered, budget: int, *, ledger: bool) -> RenderedPrompt:
    return RenderedPrompt(
        payload=rendered.payload,
        codec=rendered.codec.name,
        model=rendered.codec.model,
        tokens=rendered.tokens,
        budget=budget,
        cache=rendered.cache,
        use=rendered.use,
        sources=[message.sources for message in rendered.messages],
        omitted=rendered.ledger.omitted,
        steps=rendered.steps,
        warnings=rendered.warnings,
        manifest=(rendered.manifest if ledger else rendered.outline).to_json(),
        verdicts=list(rendered.ledger.candidates.values()) if ledger else None,
    )
