"""Clients of a gateway in each protocol: they keep their own list, as SDKs do."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import httpx2

TOOL = {"type": "object", "properties": {"a": {"type": "integer"}}}
TOOLS: dict[str, list[dict[str, Any]]] = {
    "anthropic": [{"name": "f", "input_schema": TOOL}],
    "openai-chat": [{"type": "function", "function": {"name": "f", "parameters": TOOL}}],
    "openai-responses": [{"type": "function", "name": "f", "parameters": TOOL}],
}
PATHS = {
    "anthropic": "/v1/messages",
    "openai-chat": "/v1/chat/completions",
    "openai-responses": "/v1/responses",
}


@dataclass
class Conversation:
    """One client, its list, and the answers it got."""

    client: httpx2.Client
    protocol: str
    headers: dict[str, str] = field(default_factory=dict)
    model: str = "gpt-4o"
    system: str = "You keep the books."
    stream: bool = False
    tools: bool = True
    messages: list[dict[str, Any]] = field(default_factory=list)
    answers: list[httpx2.Response] = field(default_factory=list)

    def say(self, text: str, result: str = "fine") -> list[httpx2.Response]:
        """Say something, answer the calls that come back, and return all answers."""
        self.messages.append(self._user(text))
        first = len(self.answers)
        while True:
            calls = self.ask()
            if not calls:
                return self.answers[first:]
            self._answer_calls(calls, result)

    def ask(self) -> list[str]:
        """Send the list as it is, keep the answer, and return the ids of its calls."""
        answer = self.client.post(PATHS[self.protocol], json=self.body(), headers=self.headers)
        self.answers.append(answer)
        assert answer.status_code == 200, answer.text
        items = (
            read_stream(self.protocol, answer.text)
            if self.stream
            else read_answer(self.protocol, answer.json())
        )
        self.messages += items
        return [id for item in items for id in calls_of(self.protocol, item)]

    def body(self) -> dict[str, Any]:
        """Return the request."""
        body: dict[str, Any] = {"model": self.model, "stream": self.stream}
        if self.tools:
            body["tools"] = TOOLS[self.protocol]
        if self.protocol == "anthropic":
            return body | {"max_tokens": 99, "system": self.system, "messages": self.messages}
        if self.protocol == "openai-chat":
            system = {"role": "system", "content": self.system}
            return body | {"messages": [system, *self.messages]}
        return body | {"instructions": self.system, "store": False, "input": self.messages}

    def _user(self, text: str) -> dict[str, Any]:
        if self.protocol == "openai-responses":
            return {"role": "user", "content": [{"type": "input_text", "text": text}]}
        return {"role": "user", "content": text}

    def _answer_calls(self, calls: list[str], result: str) -> None:
        if self.protocol == "anthropic":
            blocks = [{"type": "tool_result", "tool_use_id": id, "content": result} for id in calls]
            self.messages.append({"role": "user", "content": blocks})
        elif self.protocol == "openai-chat":
            self.messages += [{"role": "tool", "tool_call_id": id, "content": result} for id in calls]
        else:
            self.messages += [
                {"type": "function_call_output", "call_id": id, "output": result} for id in calls
            ]

    @property
    def session(self) -> str:
        return self.answers[-1].headers.get("x-acms-session", "")

    @property
    def memory(self) -> str:
        return self.answers[-1].headers.get("x-acms-memory", "")


def read_answer(protocol: str, answer: Any) -> list[dict[str, Any]]:
    """Return an answer as a client sends it back."""
    if protocol == "anthropic":
        return [{"role": "assistant", "content": answer["content"]}]
    if protocol == "openai-chat":
        message = answer["choices"][0]["message"]
        return [{name: value for name, value in message.items() if value is not None}]
    return list(answer["output"])


def read_stream(protocol: str, text: str) -> list[dict[str, Any]]:
    """Return a streamed answer as a client sends it back."""
    events = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
    if protocol == "openai-responses":
        return list(events[-1]["response"]["output"])
    if protocol == "openai-chat":
        return [_join_chunks(events)]
    return [{"role": "assistant", "content": _join_blocks(events)}]


def _join_chunks(events: list[Any]) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": ""}
    calls: dict[int, dict[str, Any]] = {}
    for event in events:
        delta = event["choices"][0]["delta"]
        message["content"] += delta.get("content") or ""
        for part in delta.get("tool_calls", ()):
            empty = {"id": part.get("id"), "type": "function", "function": {"name": "", "arguments": ""}}
            call = calls.setdefault(part["index"], empty)
            call["function"]["name"] += part["function"].get("name", "")
            call["function"]["arguments"] += part["function"]["arguments"]
    if calls:
        message["tool_calls"] = list(calls.values())
    return message


def _join_blocks(events: list[Any]) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = []
    written: dict[int, str] = {}
    for event in events:
        if event["type"] == "content_block_start":
            blocks.append(dict(event["content_block"]))
        elif event["type"] == "content_block_delta":
            block, delta = blocks[event["index"]], event["delta"]
            for name in ("text", "thinking"):
                if name in delta:
                    block[name] += delta[name]
            if "signature" in delta:
                block["signature"] = delta["signature"]
            if "partial_json" in delta:
                written[event["index"]] = written.get(event["index"], "") + delta["partial_json"]
    for index, text in written.items():
        blocks[index]["input"] = json.loads(text)
    return blocks


def calls_of(protocol: str, item: dict[str, Any]) -> list[str]:
    """Return the ids of the calls in an item of an answer."""
    if protocol == "openai-responses":
        return [item["call_id"]] if item["type"] == "function_call" else []
    if protocol == "openai-chat":
        return [call["id"] for call in item.get("tool_calls", ())]
    return [block["id"] for block in item["content"] if block["type"] == "tool_use"]
