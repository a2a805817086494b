"""Chat messages of LlamaIndex as messages of a log, and back."""

from __future__ import annotations

from collections.abc import Sequence
from json import dumps
from typing import Any

from llama_index.core.base.llms.types import (
    AudioBlock,
    ChatMessage,
    DocumentBlock,
    ImageBlock,
    MessageRole,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
    VideoBlock,
)

from acms.integrations.model_input import RenderedMessage, text_of
from acms.model import Media, Part, Raw, Reasoning, Role, Text, ToolCall, ToolResult
from acms.prompt_types import PromptMessage
from acms.session import ACMS
from acms.text.chat_messages import PER_MEDIUM

__all__ = ["DIALECT", "extra", "restored"]

_FILES = (ImageBlock, AudioBlock, VideoBlock, DocumentBlock)
_ROLES = {
    MessageRole.SYSTEM: Role.SYSTEM,
    MessageRole.DEVELOPER: Role.DEVELOPER,
    MessageRole.USER: Role.USER,
    MessageRole.TOOL: Role.TOOL,
    MessageRole.FUNCTION: Role.TOOL,
}


class ChatDialect:
    """A chat message is one message of a log; one with bytes is kept as text only."""

    vendor = "llama-index"

    def write(self, message: ChatMessage) -> dict[str, Any]:
        """Return a message as `ingest` takes it."""
        role = _ROLES.get(message.role, Role.ASSISTANT)
        call = message.additional_kwargs.get("tool_call_id") or message.additional_kwargs.get("name")
        parts: list[Part]
        if role is Role.TOOL and call:
            parts = [ToolResult(str(call), message.content or "")]
        else:
            role = Role.USER if role is Role.TOOL else role
            parts = [part for block in message.blocks for part in _part(block)]
            if not any(isinstance(part, ToolCall) for part in parts):
                parts += [_call(one) for one in message.additional_kwargs.get("tool_calls") or ()]
        if not _bytes(message):
            parts.append(Raw(self.vendor, message.model_dump_json()))
        return {"role": role, "parts": parts or [Text("")]}

    def read(self, json: str) -> ChatMessage:
        """Return the message that was kept."""
        return ChatMessage.model_validate_json(json)


DIALECT = ChatDialect()


def _part(block: Any) -> list[Part]:
    if isinstance(block, TextBlock):
        return [Text(block.text)] if block.text else []
    if isinstance(block, ToolCallBlock):
        given = block.tool_kwargs
        return [
            ToolCall(
                block.tool_call_id or block.tool_name,
                block.tool_name,
                given if isinstance(given, str) else dumps(given, ensure_ascii=False),
            )
        ]
    if isinstance(block, ThinkingBlock):
        return [Reasoning(block.content)] if block.content else []
    if isinstance(block, ImageBlock) and block.url:
        return [Media(block.image_mimetype or "image/*", str(block.url))]
    if isinstance(block, _FILES):
        return [Text(f"[{block.block_type}: {getattr(block, 'url', None) or getattr(block, 'path', None)}]")]
    return [Text(text)] if (text := getattr(block, "text", "")) else []


def _call(given: Any) -> ToolCall:
    """Read a call as clients of Chat Completions leave it beside a message."""
    call = given if isinstance(given, dict) else given.model_dump()
    function = call["function"]
    return ToolCall(call["id"], function["name"], function["arguments"])


def _bytes(message: ChatMessage) -> int:
    """Count the blocks that hold bytes."""
    held = ("image", "audio", "video", "data")
    return sum(
        isinstance(block, _FILES) and any(getattr(block, one, None) for one in held)
        for block in message.blocks
    )


def extra(message: ChatMessage, session: ACMS) -> int:
    """Count what the codec does not see of a message: reasoning and bytes."""
    thought = [block.content or "" for block in message.blocks if isinstance(block, ThinkingBlock)]
    return PER_MEDIUM * _bytes(message) + sum(map(session.counter.count, thought))


def restored(shown: Sequence[RenderedMessage[ChatMessage]]) -> list[ChatMessage]:
    """Return what a request shows as chat messages."""
    found: list[ChatMessage] = []
    for one in shown:
        found += one.originals or [_made(one.message)]
    return found


def _made(message: PromptMessage) -> ChatMessage:
    """Return what ACMS wrote as a chat message."""
    blocks: list[Any] = [TextBlock(text=text_of(message))] if text_of(message) else []
    more: dict[str, Any] = {}
    for part in message.parts:
        if isinstance(part, ToolCall):
            blocks.append(
                ToolCallBlock(tool_call_id=part.call_id, tool_name=part.name, tool_kwargs=part.arguments)
            )
        elif isinstance(part, ToolResult):
            more["tool_call_id"] = part.call_id
    return ChatMessage(role=MessageRole(message.role.value), blocks=blocks, additional_kwargs=more)
