"""The input of a model of Pydantic AI: a session's log within a token budget.

A response is one message of the log, and so is each prompt and each result of a tool in a request.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from json import dumps, loads
from operator import is_
from typing import Any, NamedTuple

from pydantic_ai import messages as ai
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.models import ModelRequestContext
from pydantic_ai.run import AgentRunResult
from pydantic_ai.tools import AgentDepsT, RunContext

from acms.codecs import OpenAIChat
from acms.integrations.left_out import LeftBehind
from acms.integrations.model_input import Request, WrittenMessage, build_model_input, json_text
from acms.model import Media, Part, Raw, Reasoning, Role, Text, ToolCall, ToolResult
from acms.ports import Codec, TokenCounter
from acms.prompt_types import Tool
from acms.session import ACMS
from acms.text.chat_messages import MEDIA_TOKENS

__all__ = [
    "DIALECT",
    "ACMSHistory",
    "Piece",
    "dump_model_message",
    "has_binary_content",
    "load_model_message",
    "split_into_pieces",
]

_KEPT = (ai.UserPromptPart, ai.ToolReturnPart, ai.RetryFeedbackPart)
"""Parts of requests that are stored; the framework rebuilds instructions, system prompts and notes."""
_COUNTED = (*_KEPT, ai.TextPart, ai.ThinkingPart, ai.ToolCallPart, ai.FilePart, ai.SpeechPart)
"""Parts that are counted by their written text, or as files."""


class Piece(NamedTuple):
    """A response, or one part of a request: one message of a log."""

    key: str
    #: A request has one part here.
    message: ai.ModelMessage


class _Stored(NamedTuple):
    """The history that was stored last: the messages after it are new.

    The framework replaces messages and never changes one, so identity is enough to recognize them.
    """

    session: ACMS | None = None
    messages: Sequence[ai.ModelMessage] = ()
    pieces: Mapping[str, Piece] = {}
    #: How many messages have the same key.
    key_counts: Mapping[str, int] = {}
    #: Ids of the entries of the log that are not in this history.
    hidden: frozenset[str] = frozenset()


@dataclass
class ACMSHistory(AbstractCapability[AgentDepsT]):
    """Store every message in a session, and show the model its log within a token budget.

    The budget covers the whole request: instructions, tools, messages, by the count of `codec`. Messages come back as
    they were made, with their ids; recalled text stands in a prompt of the user before the newest one. `session` may be
    a function of the run's context, for agents that serve many users. The history that the run itself keeps is not
    changed, so `result.all_messages()` is whole.
    """

    session: ACMS | Callable[[RunContext[AgentDepsT]], ACMS]
    budget: int
    codec: Codec = field(default_factory=lambda: OpenAIChat("gpt-5"))
    _stored: _Stored = field(default=_Stored(), init=False, repr=False, compare=False)
    _left_behind: LeftBehind = field(default_factory=LeftBehind, init=False, repr=False, compare=False)

    async def prepare_model_request(
        self, ctx: RunContext[AgentDepsT], request_context: ModelRequestContext
    ) -> ModelRequestContext:
        """Store the new messages and replace the request's messages by those that the log shows."""
        pieces_by_key = await self._store(ctx, request_context.messages)
        parameters = request_context.model_request_parameters
        system = _find_system_prompts(request_context.messages)
        instructions = [part.content for part in (*system, *(parameters.instruction_parts or ()))]
        tools = [
            Tool(name=tool.name, description=tool.description or "", parameters=tool.parameters_json_schema)
            for tool in (*parameters.function_tools, *parameters.output_tools)
        ]
        request = Request(
            codec=self.codec,
            budget=self.budget,
            query=_find_last_question(pieces_by_key),
            instructions="\n\n".join(instructions),
            tools=tools,
        )
        pieces = await build_model_input(
            self._session(ctx), request, DIALECT, pieces_by_key, self._stored.hidden
        )
        messages: list[ai.ModelMessage] = []
        if system:
            messages.append(ai.ModelRequest(list(system)))
        messages += [piece.message for piece in pieces]
        newest = request_context.messages[-1]
        if isinstance(newest, ai.ModelRequest):
            # Parts that are rebuilt for each run are not in the log: they stay at the end.
            notes = [part for part in newest.parts if not isinstance(part, (ai.SystemPromptPart, *_KEPT))]
            if notes:
                messages.append(replace(newest, parts=notes))
        return replace(request_context, messages=messages)  # which puts adjacent requests together

    async def after_run(
        self, ctx: RunContext[AgentDepsT], *, result: AgentRunResult[Any]
    ) -> AgentRunResult[Any]:
        """Store the model's last answer."""
        await self._store(ctx, result.all_messages())
        return result

    def _session(self, ctx: RunContext[AgentDepsT]) -> ACMS:
        return self.session if isinstance(self.session, ACMS) else self.session(ctx)

    async def _store(
        self, ctx: RunContext[AgentDepsT], messages: Sequence[ai.ModelMessage]
    ) -> dict[str, Piece]:
        """Store the new pieces of a history, and return all of its pieces by key.

        If the history begins with the messages stored last, only the messages after them are looked at.
        """
        session = self._session(ctx)
        last_stored = self._stored if self._stored.session is session else _Stored()
        is_longer = len(messages) >= len(last_stored.messages)
        continues_last = is_longer and all(map(is_, messages, last_stored.messages))
        # Another list is synced whole: the log has to find where in it the list ends.
        stored = last_stored if continues_last else _Stored()
        key_counts = Counter(stored.key_counts)
        new_pieces = split_into_pieces(messages[len(stored.messages) :], key_counts)
        new_by_key = {piece.key: piece for piece in new_pieces}
        changed_pieces = [piece for key, piece in new_by_key.items() if stored.pieces.get(key) != piece]
        hidden = stored.hidden
        if changed_pieces:
            synced = await session.sync([DIALECT.write(piece) for piece in changed_pieces])
            hidden |= await self._left_behind.find(session, synced)
        pieces_by_key = {**stored.pieces, **new_by_key}
        self._stored = _Stored(session, tuple(messages), pieces_by_key, key_counts, hidden)
        return pieces_by_key


def _find_system_prompts(messages: Sequence[ai.ModelMessage]) -> list[ai.SystemPromptPart]:
    """Return the system prompts of a history without repetitions.

    A system prompt with the scope of a single request counts only if that request is the newest message.
    """
    prompts: dict[str, ai.SystemPromptPart] = {}
    for message in messages:
        is_newest = message is messages[-1]
        for part in message.parts:
            if isinstance(part, ai.SystemPromptPart) and (is_newest or part.scope == "conversation"):
                prompts.setdefault(part.content, part)
    return list(prompts.values())


def _find_last_question(pieces_by_key: dict[str, Piece]) -> str:
    """Return the last message of the user."""
    for piece in reversed(pieces_by_key.values()):
        if piece.message.kind == "request" and not isinstance(piece.message.parts[0], ai.ToolReturnPart):
            texts = [part.text for part in DIALECT.write(piece)["parts"] if isinstance(part, Text)]
            return "\n".join(texts)
    return ""


class _Dialect:
    """A piece is one message of a log, and kept in a `Raw` part with its key, unless it has bytes."""

    vendor = "pydantic-ai"

    def write(self, message: Piece) -> Mapping[str, Any]:
        """Return a piece as a message to store: its parts, then the original in a `Raw` part.

        A piece with bytes has no `Raw` part, since a log does not store bytes.
        """
        framework_message = message.message
        role = Role.ASSISTANT
        if isinstance(framework_message, ai.ModelRequest):
            # A piece of a request has exactly one part.
            role = Role.TOOL if isinstance(framework_message.parts[0], ai.ToolReturnPart) else Role.USER
        parts: list[Part] = []
        for part in framework_message.parts:
            parts += _convert_part(part)
        if not has_binary_content(message):
            raw = {"key": message.key, "message": dump_model_message(framework_message)}
            parts.append(Raw(self.vendor, dumps(raw, ensure_ascii=False)))
        # A message needs a part, even if its only part is empty or of an unknown kind.
        return {
            "key": message.key,
            "role": role,
            "parts": parts or [Text("")],
            "created_at": framework_message.timestamp,
        }

    def read(self, json: str) -> Piece:
        raw = loads(json)
        return Piece(raw["key"], load_model_message(raw["message"]))

    def make(self, message: WrittenMessage) -> Piece:
        """Return a message that ACMS wrote as a piece of the framework; it has no key."""
        if message.role is Role.ASSISTANT:
            response: list[ai.ModelResponsePart] = []
            if message.text:
                response.append(ai.TextPart(message.text))
            for call in message.calls:
                response.append(ai.ToolCallPart(call.name, call.arguments, call.call_id))
            return Piece("", ai.ModelResponse(response))
        results = [ai.ToolReturnPart(name, result.output, result.call_id) for name, result in message.results]
        return Piece("", ai.ModelRequest(results or [ai.UserPromptPart(message.text)]))

    def count_unwritten_tokens(self, message: Piece, counter: TokenCounter) -> int:
        original = message.message
        other_parts = [str(part) for part in original.parts if not isinstance(part, _COUNTED)]
        return MEDIA_TOKENS * len(_find_binary_content(original)) + sum(map(counter.count, other_parts))


DIALECT = _Dialect()


def dump_model_message(message: ai.ModelMessage) -> Any:
    """Return a message as JSON."""
    return ai.ModelMessagesTypeAdapter.dump_python([message], mode="json")[0]


def load_model_message(message: Any) -> ai.ModelMessage:
    """Parse a message from JSON."""
    return ai.ModelMessagesTypeAdapter.validate_python([message])[0]


def split_into_pieces(
    messages: Sequence[ai.ModelMessage], key_counts: Counter[str] | None = None
) -> list[Piece]:
    """Return the kept pieces of messages, each with its own key; not the instructions, which each run adds again.

    `key_counts` counts the keys of the messages before these, so that a repeated key gets a number; the keys of these
    messages are added to it.
    """
    key_counts = Counter() if key_counts is None else key_counts
    pieces: list[Piece] = []
    for message in messages:
        key = _key_of_message(message)
        key_counts[key] += 1
        key = key if key_counts[key] == 1 else f"{key}:{key_counts[key]}"
        if isinstance(message, ai.ModelResponse):
            pieces.append(Piece(key, message))
            continue
        for index, part in enumerate(message.parts):
            if isinstance(part, _KEPT):
                pieces.append(Piece(f"{key}/{index}", replace(message, parts=[part], instructions=None)))
    return pieces


def has_binary_content(piece: Piece) -> bool:
    """Return whether a piece has bytes; a log then keeps only its text."""
    return bool(_find_binary_content(piece.message))


def _key_of_message(message: ai.ModelMessage) -> str:
    """Return the key of a message: its run and timestamp, otherwise a hash of its content."""
    if message.run_id and message.timestamp:
        return f"{message.run_id}:{message.kind}:{message.timestamp.isoformat()}"
    content = dump_model_message(replace(message, run_id=None, conversation_id=None))
    content.pop("instructions", None)
    return f"{message.kind}:{blake2b(dumps(content).encode(), digest_size=16).hexdigest()}"


def _convert_part(part: ai.ModelResponsePart | ai.ModelRequestPart) -> list[Part]:
    """Convert a part of a framework message to parts to store; none for kinds that a log does not hold."""
    match part:
        case ai.TextPart():
            return [Text(part.content)] if part.content else []
        case ai.ThinkingPart():
            return [Reasoning(part.content, part.signature)] if part.content else []
        case ai.ToolCallPart():
            return [ToolCall(part.tool_call_id, part.tool_name, json_text(part.args or {}))]
        case ai.ToolReturnPart():
            failed = part.outcome != "success"
            return [ToolResult(part.tool_call_id, part.model_response_str(), failed)]
        case ai.RetryFeedbackPart():
            return [Text(part.model_response())]
        case ai.UserPromptPart():
            contents = [part.content] if isinstance(part.content, str) else part.content
            return [_convert_user_content(content) for content in contents]
        case _:
            return []


def _convert_user_content(content: ai.UserContent) -> Part:
    """Convert a content of a user prompt to a part; files are named in text."""
    match content:
        case str():
            return Text(content)
        case ai.TextContent():
            return Text(content.content)
        case ai.ImageUrl():
            return Media(content.media_type, content.url)
        case ai.CachePoint():
            return Text("")
        case _:
            name = getattr(content, "url", None) or content.identifier
            return Text(f"[{content.media_type}: {name}]")


def _find_binary_content(message: ai.ModelMessage) -> list[object]:
    """Return the binary contents of a message."""
    if isinstance(message, ai.ModelResponse):
        return [part for part in message.parts if isinstance(part, ai.FilePart | ai.SpeechPart)]
    part = message.parts[0]
    contents = part.files if isinstance(part, ai.ToolReturnPart) else getattr(part, "content", "")
    return (
        []
        if isinstance(contents, str)
        else [content for content in contents if isinstance(content, ai.BinaryContent)]
    )
