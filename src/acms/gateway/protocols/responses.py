"""OpenAI Responses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from acms.gateway.protocols.base import Protocol, Reply, ReplyReader, encode_json, mappings_in

__all__ = ["ResponsesProtocol"]

_FINAL = ("response.completed", "response.incomplete", "response.failed", "error")
_RESULT = ("_call_output", "tool_search_output")


class ResponsesProtocol(Protocol):
    """`POST /v1/responses`."""

    name = "openai-responses"
    path = "/v1/responses"
    list_field = "input"
    upstream = "openai"

    def is_reply(self, item: Mapping[str, Any]) -> bool:
        """Return whether an element comes from the model."""
        return item.get("role") == "assistant" or _is_call(item)

    def call_ids(self, item: Mapping[str, Any]) -> list[str]:
        """Return the id of the call that an element is."""
        return [str(item["call_id"])] if _is_call(item) and item.get("call_id") else []

    def result_ids(self, item: Mapping[str, Any]) -> list[str]:
        """Return the id of the call that an element answers."""
        return [str(item["call_id"])] if _is_result(item) and item.get("call_id") else []

    def binds_to_next(self, item: Mapping[str, Any]) -> bool:
        """Return whether an element is reasoning, which is only valid before the item that it led to."""
        return item.get("type") == "reasoning"

    def write_note(self, text: str) -> str:
        """Return a message of the user."""
        content = [{"type": "input_text", "text": text}]
        return encode_json({"type": "message", "role": "user", "content": content})

    def parse_reply(self, response: Mapping[str, Any]) -> Reply:
        """Return the items of a response as the reply, or no items if its status is not "completed"."""
        items = tuple(mappings_in(response.get("output")))
        complete_items = items if response.get("status", "completed") == "completed" else ()
        return Reply(items=complete_items, response=response, id=str(response.get("id") or ""))

    def open_reply(self) -> ReplyReader:
        """Return a reader of streamed events."""
        return _EventReader(self)

    def find_problem(self, items: Sequence[Mapping[str, Any]]) -> str:
        """Return the first documented rule that a list breaks."""
        if not items:
            return "there is no item"
        open_calls: set[str] = set()
        for index, item in enumerate(items):
            if self.binds_to_next(item) and not self._follows_reasoning(items, index + 1):
                return "reasoning stands without the item that it led to"
            for call in self.result_ids(item):
                if call not in open_calls:
                    return "a result has no call"
                open_calls.discard(call)
            open_calls.update(self.call_ids(item))
        return "a call has no result" if open_calls else ""

    def _follows_reasoning(self, items: Sequence[Mapping[str, Any]], index: int) -> bool:
        if index >= len(items):
            return False
        return self.is_reply(items[index]) or self.binds_to_next(items[index])


def _is_result(item: Mapping[str, Any]) -> bool:
    return str(item.get("type", "")).endswith(_RESULT)


def _is_call(item: Mapping[str, Any]) -> bool:
    return str(item.get("type", "")).endswith("_call")


class _EventReader(ReplyReader):
    """Reads the response out of its last event; finished items are kept in case it has none."""

    def __init__(self, protocol: ResponsesProtocol) -> None:
        super().__init__()
        self._protocol = protocol
        self._response: Mapping[str, Any] = {}
        self._items: list[Mapping[str, Any]] = []

    def _read_event(self, event: Mapping[str, Any]) -> None:
        kind = event.get("type")
        if kind == "response.output_item.done":
            self._items.append(event["item"])
        if kind in _FINAL:
            self.finished = True
            self._response = event.get("response") or {"status": "failed"}

    def reply(self) -> Reply:
        """Return the response as far as it was read."""
        response = self._response
        if response.get("status") == "completed" and not response.get("output"):
            response = {**response, "output": self._items}
        return self._protocol.parse_reply(response)
