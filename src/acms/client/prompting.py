"""Prompts of sessions at a service: sent as the steps they are made of, rendered there, read back."""

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
from acms.prompt.steps import Hint, Readable, Recalling, Shrinking, Step, WrittenMessage
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
"""Messages that codecs of one format differ about when their settings do."""


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
                left=(),
                after=after,
            )
            self._omitted = int(answer["omitted"])
            self._sources = tuple([tuple(map(str, one)) for one in answer["sources"]])
            self._answer = answer

    def __repr__(self) -> str:
        bound = f"{self.tokens.upper_bound} of {self.budget} tokens"
        return f"<Rendered {len(self._sources)} messages, {bound}, {self.codec.name}>"

    @cached_property
    def messages(self) -> tuple[PromptMessage, ...]:
        """The messages in the normal form of the codec, with their sources."""
        found = self.codec.parse(self.payload)
        return tuple(
            [_attach_sources(one, sources) for one, sources in zip(found, self._sources, strict=True)]
        )

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
        return any(id in one for one in self._sources)


def _attach_sources(message: PromptMessage, sources: tuple[str, ...]) -> PromptMessage:
    return PromptMessage(role=message.role, parts=message.parts, name=message.name, sources=sources)


@dataclass(frozen=True, slots=True)
class Home:
    """Asks one service to render a prompt."""

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
        """Ask for it; `ValidationError` for what cannot be sent."""
        if budget is None:
            raise ValidationError("is needed: a service renders within one", field="budget")
        written = [await _describe_step(one) for one in steps]
        body: dict[str, Json] = {
            **_describe_codec(codec, budget),
            "budget": budget,
            "steps": written,
            "tools": [encode_noun(one) for one in tools],
            "ledger": self.transport.why,
        }
        if after is not None:
            body["after"] = after.to_json()
        context = next(_find_context_ids(written))
        place = build_api_path("contexts", context, "prompt")
        answer = await self.transport.call("POST", place, body=body)
        return RemotelyRendered(answer.data, codec, after)


async def request_rendered_prompt(
    transport: Transport, context: str, description: Mapping[str, Json], after: Rendered | Manifest | None
) -> Rendered:
    """Ask for a prompt as it is described over HTTP."""
    earlier = after.outline if isinstance(after, Rendered) else after
    body = {to_camel_case(name): value for name, value in description.items()}
    body.setdefault("ledger", transport.why)
    if earlier is not None:
        body["after"] = earlier.to_json()
    data = (await transport.call("POST", build_api_path("contexts", context, "prompt"), body=body)).data
    codec = codecs.named(
        nouns.read_typed_field(str, data, "codec"),
        nouns.read_typed_field(str, data, "model"),
        max_tokens=body.get("maxTokens"),
    )
    return RemotelyRendered(data, codec, earlier)


def _find_context_ids(written: Sequence[Mapping[str, Json]]) -> Any:
    for one in written:
        if "session" in one:
            yield one["session"]["contextId"]
        yield from _find_context_ids(one.get("content", ()))


def _describe_codec(codec: Codec, budget: int) -> dict[str, Json]:
    """Serialize a codec: its model, and those of its settings that can be sent."""
    known = codec.name in ("openai-chat", "openai-responses", "anthropic-messages")
    most: int | None = getattr(codec, "max_tokens", None)
    learnt: Calibration | None = getattr(codec, "calibration", None)
    state = None if learnt is None or not any(learnt.state()["ratios"]) else learnt.state()
    if known:
        usual = codecs.named(codec.name, codec.model, max_tokens=most, calibrated=state)
        known = (
            type(usual) is type(codec)
            and getattr(codec, "request_counts", None) is None
            and usual.counter.name == codec.counter.name
            and usual.limit(budget) == codec.limit(budget)
            and usual.normal(_PROBE) == codec.normal(_PROBE)
        )
    if not known:
        raise ValidationError(
            f"{codec.name} {codec.model} has settings (a counter, a margin, …) that a service cannot be told",
            field="codec",
            options=("use the codec with its model alone", "render over a session of this process"),
        )
    given = {"maxTokens": most, "calibration": state}
    written = {"codec": codec.name.removesuffix("-messages"), "model": codec.model}
    return written | {name: value for name, value in given.items() if value is not None}


async def _describe_step(step: Step) -> dict[str, Json]:
    match step:
        case WrittenMessage(message):
            parts = [write_part(one) for one in message.parts]
            return {"type": "message", "role": message.role.value, "parts": parts, "name": message.name}
        case WholeLog(session, None):
            return {"type": "session", "session": await _describe_session(session)}
        case Shrinking():
            content = [await _describe_step(one) for one in step.steps]
            return {"content": content, "priority": step.priority, **_describe_shrinking(step)}
        case Recalling():
            options = {to_camel_case(name): value for name, value in step.options.items()}
            return {
                "type": "recall",
                "session": await _describe_session(step.session),
                "query": step.query,
                "tokens": step.tokens,
                "priority": step.priority,
                "inPlace": step.in_place,
                "keep": "turns" if step.stays else "turn",
                **options,
                "exclude": list(step.options["exclude"]),
            }
        case Hint():
            return {"type": "cacheHint", "id": step.id, "version": step.version, "ttl": step.ttl}
        case _:
            what = "pins and plugins run" if hasattr(step, "plugin") else "stored summaries and nodes lie"
            raise ValidationError(
                f"{what} in this process, and the sessions are at a service, which renders",
                field="prompt",
                options=("Client.prompt(session, {'pins': namespace, …})", "add what they say as messages"),
            )


def _describe_shrinking(step: Shrinking) -> dict[str, Json]:
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
    """Write which log is read; one that nothing was written to is made, and stays empty."""
    remote = cast("Remote", session)
    at, log = remote.ends_at, remote.log
    context = await log.find() or (await log.ensure() if at is None else await log.known())
    place = {} if at is None else {"atTag" if isinstance(at, str) else "atVersion": at}
    return {"contextId": context, **place}
