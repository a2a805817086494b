"""The rules of providers that decide whether a request is valid, written without our codecs: each returns violations.

An independent judge beside `validators`: it knows less of shapes, and more of what belongs together: calls and results
of every kind of item, ids, the order of turns. A request is valid when no function here finds anything.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}\Z")
_LONG_NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}\Z")
_SPEAKER = re.compile(r"[^\s<|\\/>]{1,64}\Z")
_RESULT_OF = {
    f"{kind}_output": kind
    for kind in (
        "function_call",
        "custom_tool_call",
        "local_shell_call",
        "shell_call",
        "apply_patch_call",
        "computer_call",
    )
} | {"tool_search_output": "tool_search_call"}
_CALLS = frozenset(_RESULT_OF.values())


def faulty_text(value: Any, place: str = "") -> Iterator[str]:
    """Yield where half a surrogate pair or a NUL character stands."""
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            yield f"{place}: lone surrogate"
        if "\0" in value:
            yield f"{place}: NUL"
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from faulty_text(key, place)
            yield from faulty_text(inner, f"{place}.{key}")
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from faulty_text(inner, f"{place}[{index}]")


def chat(payload: dict[str, Any]) -> list[str]:
    """Return what Chat Completions would refuse."""
    found: list[str] = []
    waiting: set[str] = set()
    for at, message in enumerate(payload["messages"]):
        role, content = message["role"], message.get("content")
        if role not in ("system", "developer", "user", "assistant", "tool"):
            found.append(f"{at}: role {role}")
        if waiting and role != "tool":
            found.append(f"{at}: {role} while {sorted(waiting)} are unanswered")
            waiting = set()
        if role == "tool":
            if message["tool_call_id"] not in waiting:
                found.append(f"{at}: answers no call")
            waiting.discard(message["tool_call_id"])
            if content is None or (
                isinstance(content, list) and any(one["type"] != "text" for one in content)
            ):
                found.append(f"{at}: content of a result")
        elif role == "assistant":
            calls = message.get("tool_calls")
            ids = [call["id"] for call in calls or ()]
            if calls == [] or len(set(ids)) < len(ids):
                found.append(f"{at}: ids of calls {ids}")
            for call in calls or ():
                if not _NAME.match(call["function"]["name"]) or not isinstance(
                    call["function"]["arguments"], str
                ):
                    found.append(f"{at}: call {call}")
            if not calls and not content and not message.get("refusal"):
                found.append(f"{at}: says nothing")
            if isinstance(content, list) and any(one["type"] not in ("text", "refusal") for one in content):
                found.append(f"{at}: part of the assistant")
            waiting = set(ids)
        else:
            if not content:
                found.append(f"{at}: says nothing")
            for one in content if isinstance(content, list) else ():
                if one["type"] == "text" and not one["text"]:
                    found.append(f"{at}: empty text")
                if role != "user" and one["type"] != "text":
                    found.append(f"{at}: {one['type']} of the {role}")
        if message.get("name") is not None and not _SPEAKER.match(message["name"]):
            found.append(f"{at}: name {message['name']!r}")
    if waiting:
        found.append(f"end: {sorted(waiting)} are unanswered")
    return [*found, *faulty_text(payload)]


def responses(payload: dict[str, Any]) -> list[str]:
    """Return what Responses would refuse."""
    found: list[str] = []
    items = payload["input"]
    if isinstance(items, str):
        return []
    waiting: dict[str, str] = {}
    called: set[str] = set()
    asked: set[str] = set()
    ids: set[str] = set()
    for at, item in enumerate(items):
        kind = item.get("type", "message")
        if item.get("id"):
            if item["id"] in ids:
                found.append(f"{at}: item id {item['id']} again")
            ids.add(item["id"])
        if kind == "message":
            found += [f"{at}: {wrong}" for wrong in _faults_of_message(item)]
        elif kind in _CALLS:
            id = item.get("call_id")
            if id is None and kind == "tool_search_call":
                continue
            if not id or len(id) > 64 or id in called:
                found.append(f"{at}: call_id {id!r}")
            called.add(id)
            waiting[id] = kind
            if kind == "function_call" and not _NAME.match(item["name"]):
                found.append(f"{at}: name {item['name']!r}")
        elif kind in _RESULT_OF:
            id = item.get("call_id")
            if id is None and kind == "tool_search_output":
                continue
            if waiting.pop(str(id), None) != _RESULT_OF[kind]:
                found.append(f"{at}: {kind} {id} answers no such call before it")
        elif kind == "mcp_approval_request":
            asked.add(item["id"])
        elif kind == "mcp_approval_response":
            if item["approval_request_id"] not in asked:
                found.append(f"{at}: approves nothing")
        elif kind == "reasoning":
            behind = items[at + 1] if at + 1 < len(items) else {"type": "message"}
            said = behind.get("type", "message") == "message" and behind.get("role") != "assistant"
            if said or behind.get("type", "").endswith("_output"):
                found.append(f"{at}: reasoning without what follows from it")
    found += [f"end: {kind} {id} has no output" for id, kind in waiting.items() if kind != "tool_search_call"]
    return [*found, *faulty_text(payload)]


def _faults_of_message(item: dict[str, Any]) -> Iterator[str]:
    role, content = item["role"], item.get("content")
    if role not in ("system", "developer", "user", "assistant"):
        yield f"role {role}"
    if not content:
        yield "says nothing"
    said, given = ("output_text", "refusal"), ("input_text", "input_image", "input_file", "input_audio")
    for part in content if isinstance(content, list) else ():
        if part["type"] not in (said if role == "assistant" else given):
            yield f"{part['type']} of the {role}"


def anthropic(payload: dict[str, Any]) -> list[str]:
    """Return what the Messages API would refuse."""
    found: list[str] = []
    messages = payload["messages"]
    first = messages[0]["content"]
    # A compaction comes first, for what it stands for: platform.claude.com/docs/en/build-with-claude/compaction
    compacted = isinstance(first, list) and first[0]["type"] == "compaction"
    if messages[0]["role"] != "user" and not compacted:
        found.append("the first message is not the user's")
    waiting: set[str] = set()
    called: set[str] = set()
    served: set[str] = set()
    last: dict[str, Any] = {}
    for at, message in enumerate(messages):
        role, content = message["role"], message["content"]
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        if not blocks:
            found.append(f"{at}: says nothing")
        if role == "system":
            continue
        results = [block["tool_use_id"] for block in blocks if block["type"] == "tool_result"]
        if set(results) != waiting or (waiting and role != "user"):
            found.append(f"{at}: results {results} for calls {sorted(waiting)}")
        if results and blocks[0]["type"] != "tool_result":
            found.append(f"{at}: results do not come first")
        waiting = set()
        for place, block in enumerate(blocks):
            found += [
                f"{at}.{place}: {wrong}" for wrong in _faults_of_block(block, role, place == len(blocks) - 1)
            ]
            kind, last = block["type"], block
            if kind == "tool_use":
                if block["id"] in called:
                    found.append(f"{at}.{place}: id again")
                called.add(block["id"])
                waiting.add(block["id"])
            elif kind in ("server_tool_use", "mcp_tool_use"):
                served.add(block["id"])
            elif kind.endswith("_tool_result"):
                if block["tool_use_id"] not in served:
                    found.append(f"{at}.{place}: {kind} answers no call")
                served.discard(block["tool_use_id"])
    if messages[-1]["role"] == "assistant":
        # A paused turn is sent back as it came, its last server_tool_use still without a result: "completes in a later
        # response" (platform.claude.com/docs/en/build-with-claude/handling-stop-reasons).
        served.discard(str(last.get("id")))
        if last["type"] == "text" and last["text"] != last["text"].rstrip():
            found.append("the last answer ends in white space")
    if waiting or served:
        found.append(f"end: open calls {sorted(waiting | served)}")
    return [*found, *faulty_text(payload)]


def _faults_of_block(block: dict[str, Any], role: str, last: bool) -> Iterator[str]:
    kind = block["type"]
    if kind == "text" and not block["text"].strip():
        yield "blank text"
    if kind == "tool_use":
        if role != "assistant" or not isinstance(block["input"], dict):
            yield "call"
        if not _LONG_NAME.match(block["name"]) or not _LONG_NAME.match(block["id"]):
            yield f"name or id {block['name']!r} {block['id']!r}"
    if kind == "thinking" and not block.get("signature"):
        yield "thinking without signature"
    if kind in ("thinking", "redacted_thinking") and (role != "assistant" or last):
        yield "misplaced thinking"
    inner = block.get("content") if kind == "tool_result" else None
    for one in inner if isinstance(inner, list) else ():
        if one["type"] == "text" and not one["text"]:
            yield "empty text in a result"


def faults_of_gemini(payload: dict[str, Any]) -> list[str]:
    """Return what `generateContent` would refuse."""
    found: list[str] = []
    contents = payload["contents"]
    if contents[0]["role"] != "user":
        found.append("the first content is not the user's")
    waiting: list[str] = []
    before = ""
    for at, content in enumerate(contents):
        role, parts = content["role"], content["parts"]
        if role not in ("user", "model") or not parts:
            found.append(f"{at}: role {role}, {len(parts)} parts")
        answers = sorted(part["functionResponse"]["name"] for part in parts if "functionResponse" in part)
        if answers != waiting:
            found.append(f"{at}: answers of {answers} for calls of {waiting}")
        waiting = sorted(part["functionCall"]["name"] for part in parts if "functionCall" in part)
        if waiting and (role != "model" or before != "user"):
            found.append(f"{at}: calls behind a content of the {before}")
        found += [f"{at}: empty text" for part in parts if part == {"text": ""}]
        before = role
    if waiting:
        found.append(f"end: open calls of {waiting}")
    return [*found, *faulty_text(payload)]
