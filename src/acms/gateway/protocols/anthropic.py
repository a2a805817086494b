"""Anthropic Messages."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from acms.gateway.json_spans import parse_body
from acms.gateway.protocols.base import Element, Protocol, Reply, ReplyReader, encode_json, mappings_in

__all__ = ["AnthropicProtocol"]

_THINKING = ("thinking", "redacted_thinking")
MARKS = 4
"""Cache marks that a request may have, by the provider's documentation."""


class AnthropicProtocol(Protocol):
    """`POST /v1/messages`."""

    name = "anthropic"
    path = "/v1/messages"
    list_field = "messages"
    upstream = "anthropic"
    begins_with_user = True

    def is_reply(self, item: Mapping[str, Any]) -> bool:
        """Return whether an element comes from the model."""
        return item.get("role") == "assistant"

    def call_ids(self, item: Mapping[str, Any]) -> list[str]:
        """Return the ids of the `tool_use` blocks of an element."""
        blocks = mappings_in(item.get("content"))
        return [str(block.get("id")) for block in blocks if block.get("type") == "tool_use"]

    def result_ids(self, item: Mapping[str, Any]) -> list[str]:
        """Return the ids of the calls that the `tool_result` blocks of an element answer."""
        blocks = mappings_in(item.get("content"))
        return [str(block.get("tool_use_id")) for block in blocks if block.get("type") == "tool_result"]

    def write_note(self, text: str) -> str:
        """Return a message of the user with one block of text."""
        return encode_json({"role": "user", "content": [{"type": "text", "text": text}]})

    def parse_reply(self, response: Mapping[str, Any]) -> Reply:
        """Read a message."""
        content = response.get("content")
        if not content:
            return Reply(response=response)
        return Reply(items=({"role": "assistant", "content": content},), response=response)

    def open_reply(self) -> ReplyReader:
        """Return a reader of a streamed message."""
        return _MessageReader()

    def thinking_blocks(self, item: Mapping[str, Any]) -> list[int]:
        """Return the places of thinking in the content of an element."""
        content = item.get("content")
        if not isinstance(content, list) or not self.is_reply(item):
            return []
        return [index for index, block in enumerate(content) if _is_thinking(block)]

    def cache_mark(self, item: Mapping[str, Any]) -> str:
        """Return the last `cache_control` in the blocks of a message, as JSON, or ""."""
        for block in reversed(mappings_in(item.get("content"))):
            inner_blocks = mappings_in(block.get("content"))
            for candidate in (block, *reversed(inner_blocks)):
                if candidate.get("cache_control"):
                    return encode_json(candidate["cache_control"])
        return ""

    def with_cache_mark(self, message: str, mark: str) -> str:
        """Return a message, given as JSON, with a cache mark on its last block that can have one.

        Thinking and empty text cannot; if no block can, the message is returned unchanged.
        """
        body = parse_body(message, "content")
        content = body.fields.get("content")
        if isinstance(content, str) and content:
            block = {"type": "text", "text": content, "cache_control": json.loads(mark)}
            return encode_json({**body.fields, "content": [block]})
        elements = [body.slice(index) for index in range(len(body.items))]
        for index in reversed(range(len(elements))):
            if _can_be_marked(body.items[index]):
                without_brace = elements[index].removesuffix("}")
                elements[index] = f'{without_brace},"cache_control":{mark}}}'
                return body.with_elements(elements)
        return message

    def arrange(self, elements: Sequence[Element]) -> list[str]:
        """Return the elements of a trimmed list with each system message where the provider takes it.

        That is between the user and the assistant, or at the end. Where a message beside a system message was left out,
        its place may not be allowed any more, and the system message moves to the next allowed place.
        """
        spoken = [element for element in elements if element.role != "system"]
        if len(spoken) == len(elements):
            return super().arrange(elements)
        roles = [element.role for element in spoken]
        places = [
            index
            for index in range(1, len(roles) + 1)
            if roles[index - 1] == "user" and roles[index : index + 1] != ["user"]
        ]
        instructions: dict[int, list[str]] = {}
        position = 0  # number of spoken elements before this one
        for element in elements:
            if element.role != "system":
                position += 1
                continue
            place = next(
                (place for place in places if place >= position and place not in instructions), position
            )
            instructions.setdefault(place, []).append(element.text)
        arranged = list(instructions.get(0, ()))
        for number, element in enumerate(spoken, 1):
            arranged += [element.text, *instructions.get(number, ())]
        return arranged

    def find_problem(self, items: Sequence[Mapping[str, Any]]) -> str:
        """Return the first documented rule that a list breaks."""
        if not items:
            return "there is no message"
        if items[0].get("role") != "user":
            return "the first message is not of the user"
        if encode_json(list(items)).count('"cache_control"') > MARKS:
            return "there are too many cache marks"
        roles = [item.get("role") for item in items]
        for index, role in enumerate(roles):
            if role == "system" and (
                roles[index - 1] != "user" or roles[index + 1 : index + 2] not in ([], ["assistant"])
            ):
                return "a system message stands neither between the user and the assistant nor at the end"
        pending: set[str] = set()
        for item in items:
            if item.get("role") == "system":
                continue
            results = set(self.result_ids(item))
            if results != pending:
                return "calls and results do not match"
            if not item.get("content"):
                return "a message is empty"
            pending = set(self.call_ids(item))
        return "a call has no result" if pending else ""


def _is_thinking(block: object) -> bool:
    return isinstance(block, Mapping) and block.get("type") in _THINKING


def _can_be_marked(block: object) -> bool:
    if not isinstance(block, Mapping) or _is_thinking(block) or "cache_control" in block:
        return False
    return block.get("type") != "text" or bool(block.get("text"))


class _MessageReader(ReplyReader):
    """Puts a streamed message together."""

    def __init__(self) -> None:
        super().__init__()
        self._blocks: dict[int, dict[str, Any]] = {}
        self._inputs: dict[int, str] = {}
        self._usage: dict[str, Any] = {}
        self._model = ""

    def _read_event(self, event: Mapping[str, Any]) -> None:
        match event.get("type"):
            case "message_start":
                self._model = event["message"].get("model", "")
                self._usage.update(event["message"].get("usage") or {})
            case "content_block_start":
                self._blocks[event["index"]] = dict(event["content_block"])
            case "content_block_delta":
                self._read_delta(event["index"], event["delta"])
            case "message_delta":
                self._usage.update(event.get("usage") or {})
            case "message_stop":
                self.finished = True
            case _:
                pass

    def _read_delta(self, index: int, delta: Mapping[str, Any]) -> None:
        block = self._blocks[index]
        match delta.get("type"):
            case "text_delta":
                block["text"] = block.get("text", "") + delta["text"]
            case "thinking_delta":
                block["thinking"] = block.get("thinking", "") + delta["thinking"]
            case "signature_delta":
                block["signature"] = delta["signature"]
            case "input_json_delta":
                self._inputs[index] = self._inputs.get(index, "") + delta["partial_json"]
            case _:
                pass

    def reply(self) -> Reply:
        """Return the message as far as it was received."""
        blocks: list[dict[str, Any]] = []
        for index, block in sorted(self._blocks.items()):
            tool_input = self._inputs.get(index)
            blocks.append({**block, "input": json.loads(tool_input)} if tool_input else block)
        response = {"model": self._model, "content": blocks, "usage": self._usage}
        items = ({"role": "assistant", "content": blocks},) if blocks else ()
        return Reply(items=items, response=response)
