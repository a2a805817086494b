"""Prompts of sessions at a service: their steps are sent, the service renders them, and the answer is parsed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, cast

from acms.client import nouns
from acms.client.log import Log
from acms.client.transport import Transport, build_api_path
from acms.errors import ValidationError
from acms.model import Json, Reasoning, Role, Text
from acms.nouns import encode_noun, to_camel_case, write_part
from acms.plan.nodes import Omit, Truncate, Window
from acms.plan.nodes import Step as Shrunk
from acms.ports import Codec
from acms.prompt.manifest import Manifest
from acms.prompt.render import Rendered
from acms.prompt.steps import Hint, Readable, RecallStep, ShrinkingContent, Step, WrittenMessage
from acms.prompt.steps import Log as WholeLog
from acms.prompt_types import CachePrediction, Count, PromptMessage, Tool, Use
from acms.providers import codecs
from acms.providers.codecs import Calibration

__all__ = ["Home", "RemotelyRendered", "request_rendered_prompt"]

_PROBE = (
    PromptMessage(role=Role.USER, parts=(Text("a"),)),
    PromptMessage(role=Role.SYSTEM, parts=(Text("b"),)),
    PromptMessage(role=Role.ASSISTANT, parts=(Reasoning("c", "d"), Text("e"))),
    PromptMessage(role=Role.USER, parts=(Text("f"),)),
)
"""Messages that codecs of one format write differently if their settings differ."""


class Remote(Protocol):
    """A session at a service, or a view of one."""

    @property
    def log(self) -> Log:
        """Which log it is."""
        ...

    @property
    def ends_at(self) -> int | str | None:
        """The version at which it ends, or its tag."""
        ...


class RemotelyRendered(Rendered):
    """A prompt that a service rendered; see `Rendered`."""

    def __init__(self, answer: Mapping[str, Json], codec: Codec, after: Manifest | None) -> None:
        with nouns.wrap_read_errors("prompt"):
            super().__init__(
                payload=dict(answer["payload"]),
                placed=(),
                count=nouns.read_noun(Count, answer["tokens"]),
                budget=answer["budget"],
                codec=codec,
                steps=nouns.read_noun_list(Shrunk, answer["steps"]),
                warnings=answer["warnings"],
                manifest=lambda: Manifest.from_json(answer["manifest"]),
                recalls=(),
                omissions=(),
                previous=after,
            )
            self._omitted = int(answer["omitted"])
            self._sources = tuple([tuple(map(str, ids)) for ids in answer["sources"]])
            self._answer = answer

    def __repr__(self) -> str:
        bound = f"{self.tokens.upper_bound} of {self.budget} tokens"
        return f"<Rendered {len(self._sources)} messages, {bound}, {self.codec.name}>"

    @cached_property
    def messages(self) -> tuple[PromptMessage, ...]:
        """The messages in the normal form of the codec, with their sources."""
        messages = zip(self.codec.parse(self.payload), self._sources, strict=True)
        return tuple([_attach_sources(message, sources) for message, sources in messages])

    @cached_property
    def manifest(self) -> Manifest:
        """Where every stretch of text comes from; with the candidates of recalls where the client asks for reasons."""
        return self.outline

    @cached_property
    def cache(self) -> CachePrediction:
        """The part of the request that the provider can read from its cache, after the earlier render `after`."""
        return nouns.read_noun(CachePrediction, self._answer["cache"])

    @cached_property
    def use(self) -> Use:
        """How its tokens are used; `free` is the unused part of the budget."""
        return nouns.read_noun(Use, self._answer["use"])

    def seen(self, id: str) -> bool:
        """Return whether an entry is in the request: its text, or the part that its rendition shows."""
        return any(id in sources for sources in self._sources)


def _attach_sources(message: PromptMessage, sources: tuple[str, ...]) -> PromptMessage:
    return PromptMessage(role=message.role, parts=message.parts, name=message.name, sources=sources)


@dataclass(frozen=True, slots=True)
class Home:
    """The place where the prompts of a session are rendered: one service."""

    transport: Transport

    async def render(
        self,
        steps: Sequence[Step],
        codec: Codec,
        budget: int | None,
        *,
        tools: Sequence[Tool],
        after: Manifest | None,
    ) -> Rendered:
        """Request the prompt; raise `ValidationError` for a step that cannot be sent."""
        if budget is None:
            raise ValidationError("is required: a service renders within a budget", field="budget")
        descriptions = [await _describe_step(step) for step in steps]
        body: dict[str, Json] = {
            **_describe_codec(codec, budget),
            "budget": budget,
            "steps": descriptions,
            "tools": [encode_noun(tool) for tool in tools],
            "ledger": self.transport.why,
        }
        if after is not None:
            body["after"] = after.to_json()
        context = next(_find_context_ids(descriptions))
        path = build_api_path("contexts", context, "prompt")
        answer = await self.transport.call("POST", path, body=body)
        return RemotelyRendered(answer.data, codec, after)


async def request_rendered_prompt(
    transport: Transport, context: str, description: Mapping[str, Json], after: Rendered | Manifest | None
) -> Rendered:
    """Request a prompt by its description in the HTTP API."""
    manifest = after.outline if isinstance(after, Rendered) else after
    body = {to_camel_case(name): value for name, value in description.items()}
    body.setdefault("ledger", transport.why)
    if manifest is not None:
        body["after"] = manifest.to_json()
    answer = await transport.call("POST", build_api_path("contexts", context, "prompt"), body=body)
    codec = codecs.named(
        nouns.read_typed_field(str, answer.data, "codec"),
        nouns.read_typed_field(str, answer.data, "model"),
        max_tokens=body.get("maxTokens"),
    )
    return RemotelyRendered(answer.data, codec, manifest)


def _find_context_ids(descriptions: Sequence[Mapping[str, Json]]) -> Any:
    for description in descriptions:
        if "session" in description:
            yield description["session"]["contextId"]
        yield from _find_context_ids(description.get("content", ()))


def _describe_codec(codec: Codec, budget: int) -> dict[str, Json]:
    """Serialize a codec: its model and settings; raise `ValidationError` if it has settings that cannot be sent."""
    max_tokens: int | None = getattr(codec, "max_tokens", None)
    calibration: Calibration | None = getattr(codec, "calibration", None)
    state = None if calibration is None else calibration.state()
    if state is not None and not any(state["ratios"]):  # it has not learned anything yet
        state = None
    if not _can_be_sent(codec, budget, max_tokens, state):
        raise ValidationError(
            f"{codec.name} {codec.model} has settings (a counter, a margin, …) that cannot be sent to a service",
            field="codec",
            options=("use the codec with its model alone", "render over a session of this process"),
        )
    description: dict[str, Json] = {"codec": codec.name.removesuffix("-messages"), "model": codec.model}
    if max_tokens is not None:
        description["maxTokens"] = max_tokens
    if state is not None:
        description["calibration"] = state
    return description


def _can_be_sent(codec: Codec, budget: int, max_tokens: int | None, state: Any) -> bool:
    """Return whether a service would create an equal codec from the settings that can be sent."""
    if codec.name not in ("openai-chat", "openai-responses", "anthropic-messages"):
        return False
    if getattr(codec, "request_counts", None) is not None:
        return False
    equal = codecs.named(codec.name, codec.model, max_tokens=max_tokens, calibrated=state)
    if type(equal) is not type(codec) or equal.counter.name != codec.counter.name:
        return False
    return equal.limit(budget) == codec.limit(budget) and equal.normal(_PROBE) == codec.normal(_PROBE)


async def _describe_step(step: Step) -> dict[str, Json]:
    """Serialize a step of a prompt; raise `ValidationError` for a step that only this process can run."""
    match step:
        case WrittenMessage(message):
            parts = [write_part(part) for part in message.parts]
            return {"type": "message", "role": message.role.value, "parts": parts, "name": message.name}
        case WholeLog(session):
            return {"type": "session", "session": await _describe_session(session)}
        case ShrinkingContent():
            content = [await _describe_step(inner) for inner in step.steps]
            return {"content": content, "priority": step.priority, **_describe_shrinking(step)}
        case RecallStep():
            return await _describe_recall(step)
        case Hint():
            return {"type": "cacheHint", "id": step.id, "version": step.version, "ttl": step.ttl}
        case _:
            subject = "pins and plugins run" if hasattr(step, "plugin") else "stored summaries and nodes lie"
            raise ValidationError(
                f"{subject} in this process, and the sessions are at a service, which renders",
                field="prompt",
                options=("Client.prompt(session, {'pins': namespace, …})", "add their content as messages"),
            )


async def _describe_recall(step: RecallStep) -> dict[str, Json]:
    """Serialize a recall step."""
    description: dict[str, Json] = {
        "type": "recall",
        "session": await _describe_session(step.session),
        "query": step.query,
        "tokens": step.tokens,
        "priority": step.priority,
        "inPlace": step.in_place,
        "keep": "turns" if step.keeps_position else "turn",
    }
    for name, value in step.options.items():
        description[to_camel_case(name)] = value
    description["exclude"] = list(step.options["exclude"])
    return description


def _describe_shrinking(step: ShrinkingContent) -> dict[str, Json]:
    """Serialize the shrinking strategy of a step as fields of the HTTP API."""
    match step.strategy:
        case Window() if step.newest is not None:
            return {"type": "last", "n": step.newest}
        case Window():
            return {"type": "history"}
        case Omit():
            return {"type": "omit"}
        case Truncate(tokens, keep) if tokens is not None:
            return {"type": "truncate", "tokens": tokens, "keep": keep.value}
        case _:
            return {
                "type": "section",
                "name": step.name,
                "floor": step.floor,
                "ceiling": step.ceiling,
                "share": step.share,
                "priority": None if step.strategy is None else step.priority,
            }


async def _describe_session(session: Readable) -> dict[str, Json]:
    """Serialize a session or a view of one; a session that was never written is created, and stays empty."""
    remote = cast("Remote", session)
    log, end = remote.log, remote.ends_at
    if end is None:
        return {"contextId": await log.find() or await log.ensure()}
    end_field = "atTag" if isinstance(end, str) else "atVersion"
    return {"contextId": await log.require_id(), end_field: end}
