"""Messages of Pydantic AI as messages of a log: a response is one, and so is each prompt and each result of a tool."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from json import dumps, loads
from typing import Any, cast

from pydantic_ai import messages as ai

from acms.model import Media, Part, Raw, Reasoning, Role, Text, ToolCall, ToolResult

__all__ = [
    "DIALECT",
    "KEPT",
    "Piece",
    "Written",
    "asked",
    "dumped",
    "files",
    "loaded",
    "pieces",
    "unkept",
    "written",
]

KEPT = (ai.UserPromptPart, ai.ToolReturnPart, ai.RetryFeedbackPart)
"""Parts of requests that are kept; instructions, system prompts and notes of the framework are made anew."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A response, or one part of a request: what is one message of a log."""

    key: str
    #: A request has one part here.
    message: ai.ModelMessage
    #: The message it is a part of, where it is at hand.
    whole: ai.ModelMessage | None = None


class PieceDialect:
    """A piece is one message of a log, and kept in a `Raw` part with its key."""

    vendor = "pydantic-ai"

    def write(self, message: Piece) -> Mapping[str, Any]:
        """Return a piece as `sync` takes it."""
        return written(message)

    def read(self, json: str) -> Piece:
        """Return the piece that was kept."""
        kept = loads(json)
        return Piece(kept["key"], loaded(kept["message"]))


DIALECT = PieceDialect()


def dumped(message: ai.ModelMessage) -> Any:
    """Return a message as JSON."""
    return ai.ModelMessagesTypeAdapter.dump_python([message], mode="json")[0]


def loaded(message: Any) -> ai.ModelMessage:
    """Return the message that JSON says."""
    return ai.ModelMessagesTypeAdapter.validate_python([message])[0]


def pieces(messages: Sequence[ai.ModelMessage]) -> list[Piece]:
    """Return what of messages is kept, each under a key of its own: instructions are not, a run brings them anew."""
    return [piece for piece, _ in Written().of(messages)]


class Written:
    """The pieces of a history as `sync` takes them; those of the last one are remembered by the message's identity.

    A message is replaced, not changed in place: Pydantic AI says so itself.
    """

    def __init__(self) -> None:
        self._last: dict[int, list[tuple[Piece, dict[str, Any]]]] = {}

    def of(self, messages: Sequence[ai.ModelMessage]) -> list[tuple[Piece, dict[str, Any]]]:
        """Return the pieces of messages, oldest first, each as it is written."""
        last, self._last = self._last, {}
        seen: dict[str, int] = {}
        found: list[tuple[Piece, dict[str, Any]]] = []
        for message in messages:
            made = last.get(id(message), [])
            if not made or made[0][0].whole is not message:
                key = _key(message)
                seen[key] = seen.get(key, 0) + 1
                key = key if seen[key] == 1 else f"{key}:{seen[key]}"
                made = [(piece, written(piece)) for piece in _pieces(message, key)]
            self._last[id(message)] = made
            found += made
        return found


def _pieces(message: ai.ModelMessage, key: str) -> Iterator[Piece]:
    if isinstance(message, ai.ModelResponse):
        yield Piece(key, message, message)
        return
    for index, part in enumerate(message.parts):
        if isinstance(part, KEPT):
            yield Piece(f"{key}/{index}", replace(message, parts=[part], instructions=None), message)


def _key(message: ai.ModelMessage) -> str:
    """Return what names a message: the run it was made in and the moment; else what it says."""
    if message.run_id and message.timestamp:
        return f"{message.run_id}:{message.kind}:{message.timestamp.isoformat()}"
    said = dumped(replace(message, run_id=None, conversation_id=None))
    said.pop("instructions", None)
    return f"{message.kind}:{blake2b(dumps(said).encode(), digest_size=16).hexdigest()}"


def written(piece: Piece) -> dict[str, Any]:
    """Return a piece as `sync` takes it, itself in a `Raw` part; bytes are not kept."""
    message = piece.message
    if isinstance(message, ai.ModelResponse):
        role, parts = Role.ASSISTANT, [said for part in message.parts for said in _answered(part)]
    else:
        role, parts = asked(message.parts[0])
    if not unkept(piece):
        kept = {"key": piece.key, "message": dumped(message)}
        parts.append(Raw(DIALECT.vendor, dumps(kept, ensure_ascii=False)))
    return {"key": piece.key, "role": role, "parts": parts or [Text("")], "created_at": message.timestamp}


def unkept(piece: Piece) -> bool:
    """Return whether a log keeps only what a piece says, as it has bytes."""
    if isinstance(piece.message, ai.ModelResponse):
        return any(isinstance(part, ai.FilePart | ai.SpeechPart) for part in piece.message.parts)
    return bool(files(piece.message.parts[0]))


def _answered(part: ai.ModelResponsePart) -> list[Part]:
    if isinstance(part, ai.TextPart) and part.content:
        return [Text(part.content)]
    if isinstance(part, ai.ThinkingPart) and part.content:
        return [Reasoning(part.content, part.signature)]
    if isinstance(part, ai.ToolCallPart):
        return [ToolCall(part.tool_call_id, part.tool_name, part.args_as_json_str())]
    return []


def asked(part: ai.ModelRequestPart) -> tuple[Role, list[Part]]:
    """Return a kept part of a request as a message: who says it, and what."""
    if isinstance(part, ai.ToolReturnPart):
        failed = part.outcome != "success"
        return Role.TOOL, [ToolResult(part.tool_call_id, part.model_response_str(), failed)]
    if isinstance(part, ai.RetryFeedbackPart):
        return Role.USER, [Text(part.model_response())]
    content = cast(ai.UserPromptPart, part).content
    return Role.USER, [_given(one) for one in ([content] if isinstance(content, str) else content)]


def _given(content: ai.UserContent) -> Part:
    if isinstance(content, str):
        return Text(content)
    if isinstance(content, ai.TextContent):
        return Text(content.content)
    if isinstance(content, ai.ImageUrl):
        return Media(content.media_type, content.url)
    if isinstance(content, ai.CachePoint):
        return Text("")
    named = getattr(content, "url", None) or content.identifier
    return Text(f"[{content.media_type}: {named}]")


def files(part: ai.ModelRequestPart) -> list[object]:
    """Return the bytes that a part of a request holds."""
    if isinstance(part, ai.ToolReturnPart):
        return [one for one in part.files if isinstance(one, ai.BinaryContent)]
    content = part.content if isinstance(part, ai.UserPromptPart) else ""
    return [] if isinstance(content, str) else [one for one in content if isinstance(one, ai.BinaryContent)]
