"""OpenAI Chat Completions, which many other servers have too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from acms.gateway.protocols.base import Protocol, Reply, ReplyReader, encode_json, mappings_in

__all__ = ["ChatProtocol"]


class ChatProtocol(Protocol):
    """`POST /v1/chat/completions`."""

    name = "openai-chat"
    path = "/v1/chat/completions"
    list_field = "messages"
    upstream = "openai"

    def is_reply(self, item: Mapping[str, Any]) -> bool:
        """Return whether an element comes from the model."""
        return item.get("role") == "assistant"

    def call_ids(self, item: Mapping[str, Any]) -> list[str]:
        """Return the ids of the calls of an element."""
        return [str(call.get("id")) for call in mappings_in(item.get("tool_calls"))]

    def result_ids(self, item: Mapping[str, Any]) -> list[str]:
        """Return the id of the call that an element answers."""
        return [str(item.get("tool_call_id"))] if item.get("role") == "tool" else []

    def write_note(self, text: str) -> str:
        """Return a message of the user."""
        return encode_json({"role": "user", "content": text})

    def parse_reply(self, response: Mapping[str, Any]) -> Reply:
        """Return the message of the first choice as the reply, without null fields."""
        choices = mappings_in(response.get("choices"))
        message = choices[0].get("message") if choices else None
        if not isinstance(message, Mapping):
            return Reply(response=response)
        without_nulls = {name: value for name, value in message.items() if value is not None}
        return Reply(items=(without_nulls,), response=response)

    def open_reply(self) -> ReplyReader:
        """Return a reader of streamed chunks."""
        return _ChunkReader()

    def find_problem(self, items: Sequence[Mapping[str, Any]]) -> str:
        """Return the first documented rule that a list breaks."""
        if not items:
            return "there is no message"
        pending: set[str] = set()
        for item in items:
            if item.get("role") == "tool":
                call = str(item.get("tool_call_id"))
                if call not in pending:
                    return "a result has no call"
                pending.discard(call)
            elif pending:
                return "a call has no result"
            else:
                pending = set(self.call_ids(item))
        return "a call has no result" if pending else ""


class _ChunkReader(ReplyReader):
    """Puts the chunks of the first choice together."""

    def __init__(self) -> None:
        super().__init__()
        self._content = ""
        self._calls: dict[int, dict[str, Any]] = {}
        self._reason: str | None = None
        self._usage: Mapping[str, Any] | None = None
        self._model = ""

    def _read_event(self, event: Mapping[str, Any]) -> None:
        self._usage = event.get("usage") or self._usage
        self._model = event.get("model") or self._model
        for choice in mappings_in(event.get("choices")):
            if choice.get("index", 0) == 0:
                self._reason = choice.get("finish_reason") or self._reason
                self._read_delta(choice.get("delta") or {})

    def _read_delta(self, delta: Mapping[str, Any]) -> None:
        self._content += delta.get("content") or ""
        for call_delta in mappings_in(delta.get("tool_calls")):
            new_call = {"id": "", "type": "function", "function": {"name": "", "arguments": ""}}
            call = self._calls.setdefault(call_delta.get("index", 0), new_call)
            call["id"] = call_delta.get("id") or call["id"]
            function = call_delta.get("function") or {}
            call["function"]["name"] += function.get("name") or ""
            call["function"]["arguments"] += function.get("arguments") or ""

    def reply(self) -> Reply:
        """Return the message if it is complete, that is, if it has a finish reason, and the usage if it came."""
        message: dict[str, Any] = {"role": "assistant", "content": self._content}
        if self._calls:
            message["tool_calls"] = [call for _, call in sorted(self._calls.items())]
        is_empty = not self._content and not self._calls
        response = {"model": self._model, "usage": self._usage} if self._usage else None
        items = (message,) if self._reason and not is_empty else ()
        return Reply(items=items, response=response)
