"""What a model of Pydantic AI is shown: a session's log within a token budget."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pydantic_ai import messages as ai
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.models import ModelRequestContext
from pydantic_ai.run import AgentRunResult
from pydantic_ai.tools import AgentDepsT, RunContext

from acms.codecs import OpenAIChat
from acms.integrations.model_input import RenderedMessage, Request, model_input, text_of
from acms.integrations.pydantic_ai.pieces import DIALECT, KEPT, Piece, Written, asked, files
from acms.model import Role, Text, ToolCall, ToolResult
from acms.ports import Codec, TokenCounter
from acms.prompt_types import PromptMessage, Tool
from acms.session import ACMS
from acms.text.chat_messages import PER_MEDIUM

__all__ = ["ACMSHistory"]


@dataclass
class ACMSHistory(AbstractCapability[AgentDepsT]):
    """Store every message in a session, and show the model its log within a token budget.

    The budget covers the whole request: instructions, tools, messages, by the count of `codec`. Messages come back as
    they were made, with their ids; recalled text stands in a prompt of the user before the newest one. `session` may be
    a function of the run's context, for agents that serve many users. What the run itself keeps is not changed, so
    `result.all_messages()` is whole.
    """

    session: ACMS | Callable[[RunContext[AgentDepsT]], ACMS]
    budget: int
    codec: Codec = field(default_factory=lambda: OpenAIChat("gpt-5"))
    _written: Written = field(default_factory=Written, init=False, repr=False, compare=False)

    async def prepare_model_request(
        self, ctx: RunContext[AgentDepsT], request_context: ModelRequestContext
    ) -> ModelRequestContext:
        """Store what is new and put what the log shows in the place of the request's messages."""
        session = self._session(ctx)
        told = self._written.of(request_context.messages)
        await session.sync([message for _, message in told])
        found = [piece for piece, _ in told]
        parameters = request_context.model_request_parameters
        system = _system(request_context.messages)
        instructions = [part.content for part in (*system, *(parameters.instruction_parts or ()))]
        request = Request(
            codec=self.codec,
            budget=self.budget,
            query=_question(found),
            instructions="\n\n".join(instructions),
            tools=[
                Tool(name=one.name, description=one.description or "", parameters=one.parameters_json_schema)
                for one in (*parameters.function_tools, *parameters.output_tools)
            ],
        )
        shown = await model_input(
            session,
            request,
            DIALECT,
            known={piece.key: piece for piece in found},
            extra=lambda piece: _extra(piece, session.counter),
        )
        return replace(request_context, messages=_messages(shown, system))

    async def after_run(
        self, ctx: RunContext[AgentDepsT], *, result: AgentRunResult[Any]
    ) -> AgentRunResult[Any]:
        """Store the model's last answer."""
        await self._session(ctx).sync([message for _, message in self._written.of(result.all_messages())])
        return result

    def _session(self, ctx: RunContext[AgentDepsT]) -> ACMS:
        return self.session if isinstance(self.session, ACMS) else self.session(ctx)


def _extra(piece: Piece, counter: TokenCounter) -> int:
    """Count what the codec does not see of a piece: reasoning, calls of the provider's own tools, bytes."""
    message = piece.message
    if isinstance(message, ai.ModelRequest):
        return PER_MEDIUM * len(files(message.parts[0]))
    return sum(_unseen(part, counter) for part in message.parts)


def _unseen(part: ai.ModelResponsePart, counter: TokenCounter) -> int:
    if isinstance(part, ai.TextPart | ai.ToolCallPart):
        return 0
    if isinstance(part, ai.FilePart | ai.SpeechPart):
        return PER_MEDIUM
    return counter.count(part.content if isinstance(part, ai.ThinkingPart) else str(part))


def _system(messages: Sequence[ai.ModelMessage]) -> list[ai.SystemPromptPart]:
    """Return the system prompts of a history, one of each text; those of one request only where it is this one."""
    found: dict[str, ai.SystemPromptPart] = {}
    for message in messages:
        for part in message.parts:
            if isinstance(part, ai.SystemPromptPart) and (
                part.scope == "conversation" or message is messages[-1]
            ):
                found.setdefault(part.content, part)
    return list(found.values())


def _question(pieces: Sequence[Piece]) -> str:
    """Return what the user said last."""
    for piece in reversed(pieces):
        role, parts = asked(piece.message.parts[0]) if piece.message.kind == "request" else (None, [])
        if role is Role.USER:
            return "\n".join(part.text for part in parts if isinstance(part, Text))
    return ""


def _messages(
    shown: Sequence[RenderedMessage[Piece]], system: Sequence[ai.SystemPromptPart]
) -> list[ai.ModelMessage]:
    """Return what is shown as messages again, the parts of one request together, system prompts in the first."""
    groups: list[list[Piece]] = []
    names: dict[str, str] = {}
    for one in shown:
        names.update({part.call_id: part.name for part in one.message.parts if isinstance(part, ToolCall)})
        for piece in one.originals or [Piece("", _made(one.message, names))]:
            base = _base(piece)
            if base and groups and _base(groups[-1][0]) == base:
                groups[-1].append(piece)
            else:
                groups.append([piece])
    messages = [_joined(group) for group in groups]
    if system and (not messages or isinstance(messages[0], ai.ModelResponse)):
        messages.insert(0, ai.ModelRequest(list(system)))
    elif system:
        whole, parts = groups[0][0].whole, [*system, *messages[0].parts]
        messages[0] = whole if whole and whole.parts == parts else replace(messages[0], parts=parts)
    return messages


def _base(piece: Piece) -> str:
    """Return the key of the request that a piece is a part of; "" for everything else."""
    return piece.key.rpartition("/")[0] if isinstance(piece.message, ai.ModelRequest) else ""


def _joined(group: Sequence[Piece]) -> ai.ModelMessage:
    first = group[0]
    if not isinstance(first.message, ai.ModelRequest):
        return first.whole or first.message
    if first.whole is None:
        return replace(first.message, parts=[piece.message.parts[0] for piece in group])
    places = {int(piece.key.rpartition("/")[2]) for piece in group}
    parts = [
        part
        for place, part in enumerate(first.whole.parts)
        if place in places or not isinstance(part, (ai.SystemPromptPart, *KEPT))
    ]
    return first.whole if len(parts) == len(first.whole.parts) else replace(first.whole, parts=parts)


def _made(message: PromptMessage, names: Mapping[str, str]) -> ai.ModelMessage:
    """Return what ACMS wrote as a message of Pydantic AI; `names` are those of the tools called, by id of the call."""
    if message.role is Role.ASSISTANT:
        calls = [part for part in message.parts if isinstance(part, ToolCall)]
        said = [ai.TextPart(message.text)] if message.text else []
        return ai.ModelResponse(
            [*said, *(ai.ToolCallPart(one.name, one.arguments, one.call_id) for one in calls)]
        )
    results = [part for part in message.parts if isinstance(part, ToolResult)]
    if message.role is Role.TOOL:
        return ai.ModelRequest(
            [ai.ToolReturnPart(names.get(one.call_id, ""), one.output, one.call_id) for one in results]
        )
    return ai.ModelRequest([ai.UserPromptPart(text_of(message))])
