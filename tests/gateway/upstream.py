"""A scripted upstream: answers as the providers do, and refuses what they would refuse.

What the newest message of the user says decides the answer: `CALL name {json}` calls a tool, `THINK` thinks first,
`SIZE=n` answers with n characters, `SLOW` pauses between pieces, `FAIL` answers 500.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from tests.providers import judge

METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]


@dataclass(frozen=True)
class Received:
    """One request as it arrived."""

    method: str
    target: str
    headers: tuple[tuple[str, str], ...]
    body: bytes
    problem: str

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True)
class Script:
    """What an answer consists of."""

    text: str
    calls: tuple[tuple[str, Any], ...]
    thinks: bool
    pause: float


@dataclass
class Upstream:
    """The app, and what it received."""

    received: list[Received] = field(default_factory=list)
    #: Seconds between two pieces of a SLOW answer.
    pause: float = 0.1
    #: Whether requests are kept: not in a long benchmark.
    keeps: bool = True
    answers: int = 0
    #: Lists of fewer messages are refused, as a provider does that keeps a rule of its own.
    refuses_shorter_than: int = 0
    #: Whether streams end in their middle.
    breaks: bool = False

    @property
    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/v1/messages", self._messages, methods=["POST"]),
                Route("/v1/chat/completions", self._chat, methods=["POST"]),
                Route("/v1/responses", self._responses, methods=["POST"]),
                Route("/{path:path}", self._other, methods=METHODS),
            ]
        )

    @property
    def problems(self) -> list[str]:
        return [one.problem for one in self.received if one.problem]

    async def _read(self, request: Request, check: Callable[[Any], list[str]] | None) -> tuple[Any, str]:
        body = await request.body()
        target = request.scope["raw_path"].partition(b"?")[0].decode()
        if request.scope["query_string"]:
            target += "?" + request.scope["query_string"].decode()
        parsed: Any = None
        problem = ""
        if check is not None:
            try:
                parsed = json.loads(body)
                problem = "; ".join(check(parsed))
                if len(parsed.get("messages", ())) < self.refuses_shorter_than:
                    problem = "the list is too short"
            except Exception as error:
                problem = f"{type(error).__name__}: {error}"
        headers = tuple((name.decode(), value.decode("latin-1")) for name, value in request.headers.raw)
        if self.keeps:
            self.received.append(Received(request.method, target, headers, body, problem))
        return parsed, problem

    async def _other(self, request: Request) -> Response:
        await self._read(request, None)
        if request.url.path.endswith("/models"):
            listed = {"object": "list", "data": [{"id": "gpt-5", "object": "model", "type": "model"}]}
            return JSONResponse({**listed, "models": [], "has_more": False})
        if request.url.path.endswith("/count_tokens"):
            return JSONResponse({"input_tokens": 7})
        return Response(b'{"odd":  1.0}', 418, {"x-odd": "Yes", "content-type": "application/json"})

    async def _messages(self, request: Request) -> Response:
        body, problem = await self._read(request, judge.anthropic)
        if problem:
            error = {"type": "invalid_request_error", "message": problem}
            return JSONResponse({"type": "error", "error": error}, 400)
        script = self._script(body, body["messages"])
        if script is None:
            return JSONResponse({"type": "error", "error": {"type": "api_error", "message": "no"}}, 500)
        blocks = _anthropic_blocks(script, self.answers)
        usage = {"input_tokens": _tokens(body), "output_tokens": 10}
        message = {
            "id": f"msg_{self.answers:08}",
            "type": "message",
            "role": "assistant",
            "model": body.get("model"),
            "content": blocks,
            "stop_reason": "tool_use" if script.calls else "end_turn",
            "stop_sequence": None,
            "usage": {**usage, "cache_read_input_tokens": 0, "cache_creation_input_tokens": 0},
        }
        if not body.get("stream"):
            return JSONResponse(message, headers={"request-id": "req_x"})
        return StreamingResponse(_anthropic_events(message, script.pause), media_type="text/event-stream")

    async def _chat(self, request: Request) -> Response:
        body, problem = await self._read(request, judge.chat)
        if problem:
            return JSONResponse({"error": {"message": problem, "type": "invalid_request_error"}}, 400)
        script = self._script(body, body["messages"])
        if script is None:
            return JSONResponse({"error": {"message": "no", "type": "server_error"}}, 500)
        calls = [
            {
                "id": f"call_{self.answers:06}_{index}",
                "type": "function",
                "function": {"name": name, "arguments": json.dumps(arguments)},
            }
            for index, (name, arguments) in enumerate(script.calls)
        ]
        message: dict[str, Any] = {"role": "assistant", "content": script.text, "refusal": None}
        if calls:
            message["tool_calls"] = calls
        tokens = _tokens(body)
        base = {"id": f"chatcmpl-{self.answers:06}", "created": 1, "model": body.get("model")}
        usage = {"prompt_tokens": tokens, "completion_tokens": 5, "total_tokens": tokens + 5}
        reason = "tool_calls" if calls else "stop"
        if not body.get("stream"):
            choice = {"index": 0, "message": message, "finish_reason": reason, "logprobs": None}
            return JSONResponse({**base, "object": "chat.completion", "choices": [choice], "usage": usage})
        events = _chat_events(base, script, calls, reason)
        if self.breaks:
            events = _break_off(events)
        return StreamingResponse(events, media_type="text/event-stream")

    async def _responses(self, request: Request) -> Response:
        body, problem = await self._read(request, _check_responses)
        if problem:
            return JSONResponse({"error": {"message": problem, "type": "invalid_request_error"}}, 400)
        items = body["input"]
        if isinstance(items, str):
            items = [{"role": "user", "content": items}]
        script = self._script(body, items)
        if script is None:
            return JSONResponse({"error": {"message": "no", "type": "server_error"}}, 500)
        output = _response_items(script, self.answers)
        tokens = _tokens(body)
        response = {
            "id": f"resp_{self.answers:06}",
            "object": "response",
            "created_at": 1,
            "status": "completed",
            "model": body.get("model"),
            "output": output,
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
            "error": None,
            "incomplete_details": None,
            "instructions": None,
            "metadata": {},
            "temperature": 1,
            "top_p": 1,
            "usage": {
                "input_tokens": tokens,
                "input_tokens_details": {"cached_tokens": 0},
                "output_tokens": 5,
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": tokens + 5,
            },
        }
        if not body.get("stream"):
            return JSONResponse(response)
        events = _response_events(response, script.pause)
        return StreamingResponse(events, media_type="text/event-stream")

    def _script(self, body: Mapping[str, Any], messages: list[Any]) -> Script | None:
        self.answers += 1
        newest = messages[-1]
        answers_tool = _is_tool_result(newest)
        text = next(
            (_text(one) for one in reversed(messages) if one.get("role") == "user" and _text(one)), ""
        )
        if "FAIL" in text:
            return None
        calls: list[tuple[str, Any]] = []
        for line in text.splitlines():
            if line.startswith("CALL ") and not answers_tool:
                _, name, arguments = line.split(" ", 2)
                calls.append((name, json.loads(arguments)))
        answer = f"{'done' if answers_tool else 'answer'} {self.answers}"
        for word in text.split():
            if word.startswith("SIZE="):
                answer += " " + "lorem ipsum dolor " * (int(word[5:]) // 18)
        pause = self.pause if "SLOW" in text else 0.0
        return Script(answer.strip(), tuple(calls), "THINK" in text, pause)


def _tokens(value: Any) -> int:
    """Return about as many tokens as the strings of a value have."""
    if isinstance(value, str):
        return 1 + len(value) // 5
    if isinstance(value, dict):
        return sum(_tokens(inner) for inner in value.values())
    return sum(_tokens(inner) for inner in value) if isinstance(value, list) else 0


def _check_responses(body: Any) -> list[str]:
    if body.get("previous_response_id"):
        return []
    return judge.responses(body)


def _text(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    if isinstance(content, str):
        return content
    parts = [part for part in content or [] if isinstance(part, dict)]
    return "\n".join(part["text"] for part in parts if isinstance(part.get("text"), str))


def _is_tool_result(message: Mapping[str, Any]) -> bool:
    if message.get("role") == "tool" or str(message.get("type", "")).endswith("_output"):
        return True
    content = message.get("content")
    parts = content if isinstance(content, list) else []
    return any(isinstance(part, dict) and part.get("type") == "tool_result" for part in parts)


def _event(name: str, data: Any) -> bytes:
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {json.dumps(data)}\n\n".encode()


def _words(text: str) -> list[str]:
    return [word + " " for word in text.split(" ")]


def _anthropic_blocks(script: Script, number: int) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = []
    if script.thinks:
        signature = "sig-" + hashlib.sha256(str(number).encode()).hexdigest()[:16]
        blocks.append({"type": "thinking", "thinking": "hmm " * 5, "signature": signature})
    blocks.append({"type": "text", "text": script.text})
    for index, (name, arguments) in enumerate(script.calls):
        blocks.append(
            {"type": "tool_use", "id": f"toolu_{number:06}_{index}", "name": name, "input": arguments}
        )
    return blocks


async def _anthropic_events(message: Mapping[str, Any], pause: float) -> AsyncGenerator[bytes]:
    start = {**message, "content": [], "stop_reason": None}
    yield _event("message_start", {"type": "message_start", "message": start})
    yield _event("ping", {"type": "ping"})
    for index, block in enumerate(message["content"]):
        kind = block["type"]
        empty = {
            "text": {"text": ""},
            "thinking": {"thinking": "", "signature": ""},
            "tool_use": {"input": {}},
        }
        opened = {**block, **empty[kind]}
        yield _event(
            "content_block_start", {"type": "content_block_start", "index": index, "content_block": opened}
        )
        for delta in _anthropic_deltas(block):
            data = {"type": "content_block_delta", "index": index, "delta": delta}
            yield _event("content_block_delta", data)
            await asyncio.sleep(pause)
        yield _event("content_block_stop", {"type": "content_block_stop", "index": index})
    delta = {"stop_reason": message["stop_reason"], "stop_sequence": None}
    yield _event("message_delta", {"type": "message_delta", "delta": delta, "usage": {"output_tokens": 10}})
    yield _event("message_stop", {"type": "message_stop"})


def _anthropic_deltas(block: Mapping[str, Any]) -> list[dict[str, Any]]:
    if block["type"] == "text":
        return [{"type": "text_delta", "text": word} for word in _words(block["text"])]
    if block["type"] == "thinking":
        return [
            {"type": "thinking_delta", "thinking": block["thinking"]},
            {"type": "signature_delta", "signature": block["signature"]},
        ]
    written = json.dumps(block["input"])
    pieces = [written[at : at + 7] for at in range(0, len(written), 7)]
    return [{"type": "input_json_delta", "partial_json": piece} for piece in pieces]


async def _chat_events(
    base: Mapping[str, Any], script: Script, calls: list[dict[str, Any]], reason: str
) -> AsyncGenerator[bytes]:
    def chunk(delta: Mapping[str, Any], reason: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": reason}
        return _event("", {**base, "object": "chat.completion.chunk", "choices": [choice]})

    yield chunk({"role": "assistant", "content": ""})
    for word in _words(script.text):
        yield chunk({"content": word})
        await asyncio.sleep(script.pause)
    for index, call in enumerate(calls):
        name, arguments = call["function"]["name"], call["function"]["arguments"]
        function = {"name": name, "arguments": ""}
        yield chunk(
            {"tool_calls": [{"index": index, "id": call["id"], "type": "function", "function": function}]}
        )
        for at in range(0, len(arguments), 5):
            piece = {"index": index, "function": {"arguments": arguments[at : at + 5]}}
            yield chunk({"tool_calls": [piece]})
    yield chunk({}, reason)
    yield b"data: [DONE]\n\n"


async def _break_off(events: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
    for _ in range(3):
        yield await anext(events)
    raise ConnectionResetError


def _response_items(script: Script, number: int) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = []
    if script.thinks:
        items.append(
            {
                "id": f"rs_{number:06}",
                "type": "reasoning",
                "summary": [],
                "encrypted_content": f"gAAA{number}",
            }
        )
    content = [{"type": "output_text", "text": script.text, "annotations": []}]
    items.append(
        {
            "id": f"msg_{number:06}",
            "type": "message",
            "role": "assistant",
            "status": "completed",
            "content": content,
        }
    )
    for index, (name, arguments) in enumerate(script.calls):
        items.append(
            {
                "id": f"fc_{number:06}_{index}",
                "type": "function_call",
                "status": "completed",
                "call_id": f"call_{number:06}_{index}",
                "name": name,
                "arguments": json.dumps(arguments),
            }
        )
    return items


async def _response_events(response: Mapping[str, Any], pause: float) -> AsyncGenerator[bytes]:
    number = 0

    def event(name: str, **data: Any) -> bytes:
        nonlocal number
        number += 1
        return _event(name, {"type": name, "sequence_number": number, **data})

    started = {**response, "status": "in_progress", "output": [], "usage": None}
    yield event("response.created", response=started)
    for index, item in enumerate(response["output"]):
        opened = {**item, "status": "in_progress"}
        if item["type"] == "message":
            opened["content"] = []
        if item["type"] == "function_call":
            opened["arguments"] = ""
        yield event("response.output_item.added", output_index=index, item=opened)
        at = {"item_id": item["id"], "output_index": index}
        if item["type"] == "message":
            part = item["content"][0]
            empty = {**part, "text": ""}
            yield event("response.content_part.added", **at, content_index=0, part=empty)
            for word in _words(part["text"]):
                yield event("response.output_text.delta", **at, content_index=0, delta=word, logprobs=[])
                await asyncio.sleep(pause)
            yield event("response.output_text.done", **at, content_index=0, text=part["text"], logprobs=[])
            yield event("response.content_part.done", **at, content_index=0, part=part)
        elif item["type"] == "function_call":
            yield event("response.function_call_arguments.delta", **at, delta=item["arguments"])
            yield event("response.function_call_arguments.done", **at, arguments=item["arguments"])
        yield event("response.output_item.done", output_index=index, item=item)
    yield event("response.completed", response=response)
