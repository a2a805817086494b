"""The steps of a prompt as JSON: what `Prompt` of the library has as methods, by the same names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Field

from acms.model import Role
from acms.prompt.builder import Prompt
from acms.prompt_types import PromptMessage
from acms.server.operation import Body, Call
from acms.server.routes.messages import PartBody, read_part
from acms.server.versions import Version, resolve_version
from acms.view import View

__all__ = ["StepBody", "apply_prompt_steps"]

Priority: TypeAlias = Annotated[int, Field(ge=0, le=1_000_000)]
Tokens: TypeAlias = Annotated[int, Field(ge=0)]


class SessionPart(Body):
    """A log, at its head or at a version; by default the one in the path."""

    context_id: str | None = None
    """Id of the context; by default the one in the path."""
    at_version: Version | None = None
    """Version of the log to read; the newest by default. Give at most one of `atVersion`, `atMessage`, `atTag`."""
    at_message: Version | None = None
    """Number of messages after which to read the log."""
    at_tag: str | None = None
    """Tag of the version to read."""


class MessageStep(Body):
    """A literal message."""

    type: Literal["message"]
    role: Role
    parts: list[PartBody]
    name: str | None = None


class SessionStep(Body):
    """All active messages of a log."""

    type: Literal["session"]
    session: SessionPart = SessionPart()


class ContentStep(Body):
    """Content with a way to shrink it."""

    type: Literal["history", "last", "truncate", "omit", "section"]
    priority: Priority | None = None
    """Steps with a higher priority are shortened first. In a section: the priority of the section as a whole."""
    content: list[StepBody]
    """Steps inside this one."""
    n: Annotated[int, Field(ge=1)] | None = None
    """Number of messages of a `last` step."""
    tokens: Tokens | None = None
    """Largest number of tokens of a `truncate` step."""
    keep: Literal["start", "end"] = "end"
    """End of the text that a `truncate` step keeps."""
    name: str = ""
    """Name of a section."""
    floor: Tokens = 0
    """Smallest number of tokens of a section."""
    ceiling: Tokens | None = None
    """Largest number of tokens of a section."""
    share: Annotated[float, Field(ge=0, le=1)] | None = None
    """Share of the budget, from 0 to 1, of a section."""


class RecallStep(Body):
    """A recall from a log."""

    type: Literal["recall"]
    session: SessionPart = SessionPart()
    query: str
    tokens: Tokens | None = None
    priority: Priority
    keep: Literal["turns", "turn"] = "turns"
    in_place: bool = False
    min_relevance: Annotated[float, Field(ge=0, le=1)] = 0.0
    exclude: Annotated[list[str], Field(max_length=10_000, default_factory=list[str])]
    scope: Literal["session", "namespace"] | None = None
    where: dict[str, Any] | None = None
    limit: Annotated[int, Field(ge=1)] | None = None
    include_superseded: bool = False


class HintStep(Body):
    """The end of a prefix that the provider is asked to cache."""

    type: Literal["cacheHint"]
    id: str
    """Id of the prefix."""
    version: str = ""
    """Version of the prefix."""
    ttl: Annotated[int, Field(ge=1)] | None = None
    """Seconds for which the provider should cache it."""


StepBody: TypeAlias = Annotated[
    MessageStep | SessionStep | ContentStep | RecallStep | HintStep, Field(discriminator="type")
]
ContentStep.model_rebuild()


async def apply_prompt_steps(call: Call[None, Any], prompt: Prompt, steps: Sequence[StepBody]) -> Prompt:
    """Return a prompt with more steps; raise `ValidationError` if `Prompt` refuses one."""
    for step in steps:
        match step:
            case MessageStep():
                parts = tuple([read_part(part) for part in step.parts])
                prompt = prompt.raw(PromptMessage(role=step.role, parts=parts, name=step.name))
            case SessionStep():
                prompt = prompt.add(await _open_view(call, step.session))
            case ContentStep():
                prompt = _add_content_step(
                    prompt, step, await apply_prompt_steps(call, Prompt(), step.content)
                )
            case RecallStep():
                prompt = prompt.recall(
                    await _open_view(call, step.session),
                    step.query,
                    tokens=step.tokens,
                    priority=step.priority,
                    keep=step.keep,
                    in_place=step.in_place,
                    min_relevance=step.min_relevance,
                    exclude=step.exclude,
                    scope=step.scope,
                    where=step.where,
                    limit=step.limit,
                    include_superseded=step.include_superseded,
                )
            case HintStep():
                prompt = prompt.cache_hint(id=step.id, version=step.version, ttl=step.ttl)
    return prompt


def _add_content_step(prompt: Prompt, step: ContentStep, content: Prompt) -> Prompt:
    """Add a step that contains other steps, which were applied to `content`."""
    options: dict[str, Any] = {} if step.priority is None else {"priority": step.priority}
    match step.type:
        case "history":
            return prompt.history(content, **options)
        case "last":
            return prompt.last(content, 1 if step.n is None else step.n, **options)
        case "truncate":
            return prompt.truncate(content, step.tokens or 0, keep=step.keep, **options)
        case "omit":
            return prompt.omit(content, **options)
        case "section":
            return prompt.section(
                step.name, content, floor=step.floor, ceiling=step.ceiling, share=step.share, **options
            )


async def _open_view(call: Call[None, Any], part: SessionPart) -> View:
    context = part.context_id or call.path["context_id"]
    session = await call.tenant.session(context)
    version = await resolve_version(session, context, part.at_version, part.at_message, part.at_tag)
    return session if version is None else session.at(version)
