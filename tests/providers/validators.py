"""What providers accept, written from what they publish, not from what our codecs do: nothing of them is imported here.

Every function raises `Refused` with the rule that a request breaks. Rules are cited by page:

- [C] platform.openai.com/docs/api-reference/chat/create
- [R] platform.openai.com/docs/api-reference/responses/create
- [F] platform.openai.com/docs/guides/function-calling and /structured-outputs (strict schemas)
- [A] platform.claude.com/docs/en/api/messages
- [T] platform.claude.com/docs/en/agents-and-tools/tool-use/handle-tool-calls and /define-tools
- [S] platform.claude.com/docs/en/build-with-claude/mid-conversation-system-messages
- [K] platform.claude.com/docs/en/build-with-claude/prompt-caching
- [H] platform.claude.com/docs/en/build-with-claude/thinking and /thinking-troubleshooting
- [E] the text of an error that the API answers with, as reported in public issue trackers

The shape is checked against the request types of the providers' own packages as well, where these are installed.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from itertools import dropwhile, pairwise
from typing import Any

from tests.providers import judge

Json = Any


class Refused(AssertionError):
    """A provider would refuse this request."""


def _require_rule(kept: object, rule: str) -> None:
    if not kept:
        raise Refused(rule)


def _require_keys(value: Json, required: set[str], optional: set[str], where: str) -> None:
    _require_rule(isinstance(value, dict), f"{where} is an object")
    _require_rule(required <= value.keys(), f"{where} has {sorted(required)}")
    _require_rule(
        value.keys() <= required | optional, f"{where} has no {sorted(value.keys() - required - optional)}"
    )


def _require_text(value: Json, where: str) -> None:
    _require_rule(isinstance(value, str), f"{where} is a text")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise Refused(f"{where} is valid Unicode") from None


# ── OpenAI Chat Completions ─────────────────────────────────────────────────────────────────────────────────────────

_FUNCTION_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}\Z")  # [C] tools.function.name
_SPEAKER = re.compile(
    r"[^\s<|\\/>]{1,64}\Z"
)  # [E] "Expected a string that matches the pattern '^[^\s<|\\/>]+$'"
_CHAT_PARTS = {
    # [C] each message type: which content parts it may have
    "system": {"text"},
    "developer": {"text"},
    "user": {"text", "image_url", "input_audio", "file"},
    "assistant": {"text", "refusal"},
    "tool": {"text"},
}


def openai_chat(payload: Json) -> None:
    """Raise `Refused` when Chat Completions would refuse the request."""
    _require_rule(not (found := judge.chat(payload)), f"the judge finds {found}")
    _require_rule(payload.keys() <= _HINTS | {"messages", "tools"}, "[C] has only known arguments")
    messages = payload["messages"]
    _require_rule(isinstance(messages, list) and messages, "[C] there is a message")
    _openai_hints(payload)
    for tool in payload.get("tools", ()):
        _require_keys(tool, {"type", "function"}, set(), "[C] a tool")
        _require_rule(tool["type"] == "function", "[C] a tool is a function")
        _openai_function(tool["function"])
    _require_unique_names([tool["function"]["name"] for tool in payload.get("tools", ())])
    waiting: Counter[str] = Counter()
    for message in messages:
        role = message.get("role")
        _require_rule(role in _CHAT_PARTS, "[C] a role is known")
        if role == "tool":
            _require_keys(message, {"role", "content", "tool_call_id"}, set(), "[C] a tool message")
            # [E] "messages with role 'tool' must be a response to a preceeding message with 'tool_calls'"
            _require_rule(
                waiting[message["tool_call_id"]] > 0, "[E] a tool message answers a call that is open"
            )
            waiting[message["tool_call_id"]] -= 1
        else:
            # [E] "An assistant message with 'tool_calls' must be followed by tool messages responding to each
            # 'tool_call_id'"
            _require_rule(not +waiting, "[E] every tool call is answered before the next message")
            optional = {"name", "tool_calls", "refusal"} if role == "assistant" else {"name"}
            _require_keys(message, {"role", "content"}, optional, f"[C] a message of the {role}")
        if "name" in message:
            _require_rule(_SPEAKER.match(message["name"]), "[E] a name has no space and none of <|\\/>")
        calls = message.get("tool_calls")
        if calls is not None:
            _require_rule(isinstance(calls, list) and calls, "[E] tool_calls is not empty")
            for call in calls:
                _openai_call(call)
            _require_rule(
                len({call["id"] for call in calls}) == len(calls),
                "[C] calls of a message have ids of their own",
            )
            waiting = Counter([call["id"] for call in calls])
        _chat_content(message["content"], role, bool(calls))
    _require_rule(not +waiting, "[E] every tool call is answered")


def _chat_content(content: Json, role: str, calls: bool) -> None:
    if content is None:
        _require_rule(
            role == "assistant" and calls, "[C] only an assistant message with calls may have no content"
        )
        return
    if isinstance(content, str):
        return _require_text(content, "[C] content")
    _require_rule(isinstance(content, list) and content, "[E] a list of content parts is not empty")
    for part in content:
        _require_rule(
            part.get("type") in _CHAT_PARTS[role], f"[C] a message of the {role} may have such a part"
        )
        if part["type"] == "text":
            _require_keys(part, {"type", "text"}, _BREAK, "[C] a text part")
            _require_text(part["text"], "[C] text")
        elif part["type"] == "image_url":
            _require_keys(part, {"type", "image_url"}, _BREAK, "[C] an image part")
            _require_keys(part["image_url"], {"url"}, {"detail"}, "[C] an image")
            _require_rule(
                part["image_url"]["url"].startswith(("https://", "http://", "data:image/")),
                "[C] an image has a URL",
            )
        elif part["type"] == "file":
            _require_keys(part["file"], set(), {"file_id", "file_data", "filename"}, "[C] a file")
            _require_rule({"file_id", "file_data"} & part["file"].keys(), "[C] a file has an id or data")


def _openai_call(call: Json) -> None:
    _require_keys(call, {"id", "type", "function"}, set(), "[C] a tool call")
    _require_rule(call["type"] == "function", "[C] a tool call calls a function")
    # [E] "Invalid 'messages[1].tool_calls[0].id': string too long. Expected a string with maximum length 40"
    _require_rule(
        isinstance(call["id"], str) and 1 <= len(call["id"]) <= 40,
        "[E] the id of a call has 1 to 40 characters",
    )
    _require_keys(call["function"], {"name", "arguments"}, set(), "[C] a called function")
    _require_rule(
        _FUNCTION_NAME.match(call["function"]["name"]), "[C] the name of a called function is that of one"
    )
    _require_text(call["function"]["arguments"], "[C] arguments")


def _openai_function(function: Json) -> None:
    _require_keys(function, {"name"}, {"description", "parameters", "strict"}, "[C] a function")
    _require_rule(
        _FUNCTION_NAME.match(function["name"]),
        "[C] a function has letters, digits, _ and - in its name, 64 at most",
    )
    parameters = function.get("parameters")
    if parameters is not None:
        _require_rule(
            isinstance(parameters, dict) and parameters.get("type") == "object",
            "[F] parameters are an object",
        )
        if function.get("strict"):
            _require_strict_schema(parameters)


def _require_strict_schema(schema: Json) -> None:
    # [F] supported schemas: every object rules out further properties and requires all it has
    if schema.get("type") == "object":
        _require_rule(
            schema.get("additionalProperties") is False, "[F] a strict schema rules out further properties"
        )
        properties = schema.get("properties", {})
        _require_rule(
            set(schema.get("required", ())) == properties.keys(),
            "[F] a strict schema requires all properties",
        )
        for inner in properties.values():
            _require_strict_schema(inner)


def _require_unique_names(names: list[str]) -> None:
    _require_rule(len(set(names)) == len(names), "a tool has a name of its own")
    _require_rule(len(names) <= 128, "[C] there are at most 128 functions")


_HINTS = {"prompt_cache_key", "prompt_cache_retention", "prompt_cache_options"}
_BREAK = {"prompt_cache_breakpoint"}


def _openai_hints(payload: Json) -> None:
    key = payload.get("prompt_cache_key")
    # [E] "Invalid 'prompt_cache_key': string too long. Expected a string with maximum length 64"
    _require_rule(
        key is None or (isinstance(key, str) and len(key) <= 64), "[E] a cache key has at most 64 characters"
    )
    _require_rule(
        payload.get("prompt_cache_retention") in (None, "in_memory", "24h"), "[C] a retention is known"
    )
    # [C] prompt_cache_options: each request can write up to four breakpoints
    found = [one for one in _iterate_objects(payload) if "prompt_cache_breakpoint" in one]
    _require_rule(len(found) <= 4, "[C] there are at most four breakpoints")


def _iterate_objects(value: Json) -> Iterable[dict[str, Json]]:
    if isinstance(value, dict):
        yield value
        for inner in value.values():
            yield from _iterate_objects(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _iterate_objects(inner)


# ── OpenAI Responses ────────────────────────────────────────────────────────────────────────────────────────────────

_INPUTS = {"input_text", "input_image", "input_file"}
_OUTPUTS = {"output_text", "refusal"}


def openai_responses(payload: Json) -> None:
    """Raise `Refused` when Responses would refuse the request."""
    _require_rule(not (found := judge.responses(payload)), f"the judge finds {found}")
    _require_rule(
        payload.keys() <= _HINTS | {"input", "instructions", "tools", "include", "store"},
        "[R] has known arguments",
    )
    _openai_hints(payload)
    items = payload.get("input")
    if isinstance(items, str):
        return _require_text(items, "[R] input")
    _require_rule(isinstance(items, list) and items, "[R] there is an input")
    for tool in payload.get("tools", ()):
        _require_rule(tool.get("type") == "function", "[R] a tool is a function")
        # [R] tools.function: name, parameters and strict are required
        _require_keys(tool, {"type", "name", "parameters", "strict"}, {"description"}, "[R] a tool")
        _openai_function({key: value for key, value in tool.items() if key != "type"})
    _require_unique_names([tool["name"] for tool in payload.get("tools", ())])
    called: list[str] = []
    answered: list[str] = []
    for item in items:
        kind = item.get("type", "message")
        if kind == "message":
            _responses_message(item)
        elif kind == "function_call":
            _require_keys(
                item, {"type", "call_id", "name", "arguments"}, {"id", "status"}, "[R] a function call"
            )
            _call_id(item["call_id"])
            _require_rule(
                _FUNCTION_NAME.match(item["name"]), "[R] the name of a called function is that of one"
            )
            _require_text(item["arguments"], "[R] arguments")
            called.append(item["call_id"])
        elif kind == "function_call_output":
            _require_keys(item, {"type", "call_id", "output"}, {"id", "status"}, "[R] the output of a call")
            _call_id(item["call_id"])
            # [E] "No tool call found for function call output with call_id …"
            _require_rule(item["call_id"] in called, "[E] an output comes after its call")
            answered.append(item["call_id"])
        elif kind == "reasoning":
            _require_rule("summary" in item, "[R] a reasoning item has a summary")
        else:
            _require_rule(isinstance(kind, str), "[R] an item has a type")
    # [E] "No tool output found for function call …"
    _require_rule(
        Counter(called) == Counter(answered), "[E] every call has one output, and every output a call"
    )


def _call_id(value: Json) -> None:
    # [E] "Invalid 'input[2].call_id': string too long. Expected a string with maximum length 64"
    _require_rule(
        isinstance(value, str) and 1 <= len(value) <= 64, "[E] the id of a call has 1 to 64 characters"
    )


def _responses_message(item: Json) -> None:
    role = item.get("role")
    _require_rule(role in ("user", "system", "developer", "assistant"), "[R] the role of a message is known")
    _require_keys(item, {"role", "content"}, {"type", "id", "status", "phase"}, "[R] a message")
    content = item["content"]
    if isinstance(content, str):
        return _require_text(content, "[R] content")
    _require_rule(isinstance(content, list) and content, "[R] a list of contents is not empty")
    for part in content:
        # [E] "Invalid value: 'input_text'. Supported values are: 'output_text' and 'refusal'"
        _require_rule(
            part.get("type") in (_OUTPUTS if role == "assistant" else _INPUTS),
            f"[E] the {role} may have such a part",
        )
        if part["type"] in ("input_text", "output_text"):
            _require_keys(part, {"type", "text"}, {"annotations", "logprobs", *_BREAK}, "[R] a text")
            _require_text(part["text"], "[R] text")
        elif part["type"] == "input_image":
            _require_rule({"image_url", "file_id"} & part.keys(), "[R] an image has a URL or a file id")
        elif part["type"] == "input_file":
            _require_rule(
                {"file_id", "file_url", "file_data"} & part.keys(), "[R] a file has an id, a URL or data"
            )


# ── Gemini ──────────────────────────────────────────────────────────────────────────────────────────────────────────


_MADE = {"executableCode", "codeExecutionResult", "toolCall", "toolResponse"}


def gemini(payload: Json) -> None:
    """Raise `Refused` when `generateContent` would refuse the request; [G] is its reference, [F] function calling."""
    _require_rule(not (found := judge.faults_of_gemini(payload)), f"the judge finds {found}")
    _require_rule(payload.keys() <= {"contents", "config"}, "[G] has only known arguments")
    config = payload.get("config", {})
    _require_rule(config.keys() <= {"systemInstruction", "tools"}, "[G] config has only known fields")
    for part in config.get("systemInstruction", {"parts": [{"text": "x"}]})["parts"]:
        _require_rule(set(part) == {"text"}, "[G] the system instruction is text only")
    for tool in config.get("tools", ()):
        _require_unique_names([one["name"] for one in tool["functionDeclarations"]])
    contents = payload["contents"]
    _require_rule(contents and contents[0]["role"] == "user", "[F] a call comes behind a turn of the user")
    called: list[str] = []
    for content in contents:
        _require_keys(content, {"role", "parts"}, set(), "[G] a content")
        _require_rule(content["parts"], "[G] a content has a part")
        kinds = [next(iter(part.keys() - {"thoughtSignature", "thought"})) for part in content["parts"]]
        of = {
            "user": {"text", "inlineData", "fileData", "functionResponse"},
            "model": {"text", "functionCall", "inlineData", "fileData", *_MADE},
        }
        _require_rule(set(kinds) <= of[content["role"]], "[G] a part that the role has")
        for part, kind in zip(content["parts"], kinds, strict=True):
            _require_rule(
                part[kind] != "" or "thoughtSignature" in part,
                "[G] a text says something, or carries a signature",
            )
        answers = [part["functionResponse"] for part in content["parts"] if "functionResponse" in part]
        _require_rule(
            [one["name"] for one in answers] == called, "[F] as many answers as calls, right behind them"
        )
        called = [part["functionCall"]["name"] for part in content["parts"] if "functionCall" in part]
    _require_rule(not called, "[F] every call is answered")


# ── Anthropic Messages ──────────────────────────────────────────────────────────────────────────────────────────────

_TOOL_ID = re.compile(
    r"[a-zA-Z0-9_-]+\Z"
)  # [E] "tool_use.id: String should match pattern '^[a-zA-Z0-9_-]+$'"
_THOUGHTS = ("thinking", "redacted_thinking")
_SERVED = ("server_tool_use", "web_search_tool_result")
_BLOCKS = {
    # [A] content block types by role; [E] "`tool_use` blocks can only be in `assistant` messages" and the reverse
    "user": {"text", "image", "document", "tool_result", "search_result", "container_upload"},
    "assistant": {"text", "tool_use", "compaction", *_SERVED, *_THOUGHTS},
    "system": {"text"},
}


def anthropic(payload: Json, *, prefill: bool = False, system: bool = False) -> None:
    """Raise `Refused` when Messages would refuse the request.

    `prefill` and `system` say whether the model goes on with an answer and takes system messages later on.
    """
    _require_rule(not (found := judge.anthropic(payload)), f"the judge finds {found}")
    _require_rule(
        payload.keys() <= {"messages", "system", "tools", "max_tokens"}, "[A] has only known arguments"
    )
    messages = payload["messages"]
    _require_rule(isinstance(messages, list) and messages, "[E] messages: at least one message is required")
    if "system" in payload:
        _require_rule(
            isinstance(payload["system"], list) and payload["system"], "[A] system is a list of blocks"
        )
        for block in payload["system"]:
            _require_rule(block.get("type") == "text", "[A] system is text")
            _require_valid_block(block)
    for tool in payload.get("tools", ()):
        _anthropic_tool(tool)
    _require_unique_names([tool["name"] for tool in payload.get("tools", ())])
    for message in messages:
        _require_keys(message, {"role", "content"}, set(), "[A] a message")
        _require_rule(message["role"] in _BLOCKS, "[A] a role is user, assistant or system")
        _require_rule(isinstance(message["content"], list) and message["content"], "[E] content is not empty")
        for block in message["content"]:
            _require_rule(
                block.get("type") in _BLOCKS[message["role"]],
                f"[A] the {message['role']} may have such a block",
            )
            _require_valid_block(block)
        if message["role"] == "assistant":
            _require_valid_answer(message["content"])
    _require_answered_calls(messages)
    _require_valid_compactions(messages)
    begins = messages[0]["content"][0]["type"] == "compaction"
    _require_rule(messages[0]["role"] == "user" or begins, "[A] the first message is the user's")
    for before, after in pairwise(messages):
        # [A] consecutive turns would be combined: a codec has no need to send them apart
        _require_rule(before["role"] != after["role"], "[A] roles alternate")
    _system_places(messages, system)
    _anthropic_pairs(messages)
    last = messages[-1]
    if last["role"] == "assistant":
        final = last["content"][-1]
        if final["type"] == "compaction":  # [A] "pause_after_compaction": the next request ends with it
            return _require_valid_breakpoints(payload)
        if final["type"] in _SERVED:  # [A] "pause_turn": the answer is given back as it is
            return _require_valid_breakpoints(payload)
        _require_rule(prefill, "[E] This model does not support assistant message prefill")
        kinds = {block["type"] for block in last["content"]}
        _require_rule(kinds.isdisjoint(_THOUGHTS), "[E] a final answer has no thinking")
        text = final["text"]
        # [E] "messages: final assistant content cannot end with trailing whitespace"
        _require_rule(text == text.rstrip(), "[E] a final answer does not end in white space")
    _require_valid_breakpoints(payload)


def _require_answered_calls(messages: Json) -> None:
    # [E] "`web_search` tool use with id … was found without a corresponding `web_search_tool_result` block"
    open_: set[str] = set()
    for at, message in enumerate(messages):
        for block in message["content"]:
            if block["type"] == "server_tool_use":
                open_.add(block["id"])
            elif block["type"] in _SERVED:
                open_.discard(block["tool_use_id"])
        spoken = any(block["type"] != "tool_result" for block in message["content"])
        _require_rule(
            not (open_ and spoken and message["role"] != "assistant" and at), "[E] a call has its result"
        )
    behind = dropwhile(lambda block: block.get("id") not in open_, messages[-1]["content"])
    aside = {*_SERVED, "tool_use", "tool_result"}
    _require_rule(all(block["type"] in aside for block in behind), "[E] nothing is said behind an open call")


def _require_valid_compactions(messages: Json) -> None:
    blocks = [
        (at, number, block)
        for at, message in enumerate(messages)
        for number, block in enumerate(message["content"])
        if block["type"] == "compaction" and block.get("content") is not None
    ]
    if any(block.get("signature") for _, _, block in blocks):
        # [E] compaction_block_misplaced, compaction_block_ambiguous
        _require_rule(len(blocks) == 1, "[E] messages holds more than one compaction block with content")
        _require_rule(
            blocks[0][:2] == (0, 0), "[E] a signed compaction is the first block of the conversation"
        )


def _require_valid_block(block: Json) -> None:
    kind = block["type"]
    marked = {"cache_control"}
    if kind == "text":
        _require_keys(block, {"type", "text"}, marked, "[A] a text block")
        _require_text(block["text"], "[A] text")
        # [E] "text content blocks must be non-empty", "text content blocks must contain non-whitespace text"
        _require_rule(block["text"].strip(), "[E] a text block has a word in it")
    elif kind == "thinking":
        _require_keys(
            block, {"type", "thinking", "signature"}, set(), "[A] a thinking block"
        )  # [K] cannot be marked
        _require_rule(block["signature"], "[H] thinking is signed")
    elif kind == "redacted_thinking":
        _require_keys(block, {"type", "data"}, set(), "[A] a redacted thinking block")
        _require_rule(block["data"], "[H] hidden thinking has its data")
    elif kind == "compaction":
        more = {"content", "encrypted_content", "signature", "tool_changes", *marked}
        _require_keys(block, {"type"}, more, "[A] a compaction block")
        _require_rule(block.get("content") != "", "[A] a compaction says something, or has failed")
    elif kind == "tool_use":
        _require_keys(block, {"type", "id", "name", "input"}, marked, "[A] a tool use block")
        _require_rule(_TOOL_ID.match(block["id"]), "[E] the id of a call has letters, digits, _ and -")
        _require_rule(_FUNCTION_NAME.match(block["name"]), "[T] the name of a called tool is that of one")
        _require_rule(isinstance(block["input"], dict), "[E] input is an object")
        json.dumps(block["input"], allow_nan=False).encode()
    elif kind == "container_upload":
        _require_keys(block, {"type", "file_id"}, marked, "[A] an uploaded file")
    elif kind in _SERVED:
        of = {"name", "input", "id"} if kind == "server_tool_use" else {"tool_use_id", "content"}
        _require_keys(block, {"type", *of}, marked, "[A] a block of a server tool")
    elif kind == "search_result":
        _require_keys(
            block, {"type", "source", "title", "content"}, {"citations", *marked}, "[A] a search result"
        )
        _require_rule(block["source"] and block["title"] and block["content"], "[A] its fields say something")
        for one in block["content"]:
            _require_rule(one["type"] == "text" and one["text"].strip(), "[A] it is made of texts")
    elif kind == "tool_result":
        _require_keys(
            block, {"type", "tool_use_id"}, {"content", "is_error", *marked}, "[A] a tool result block"
        )
        _require_rule(isinstance(block.get("content", ""), str), "[A] a result is a text here")
        _require_text(block.get("content", ""), "[A] a result")
    else:
        _require_keys(block, {"type", "source"}, marked, "[A] an image or a document")
        _require_valid_source(kind, block["source"])


def _require_valid_source(kind: str, source: Json) -> None:
    if source.get("type") == "base64":
        _require_keys(source, {"type", "media_type", "data"}, set(), "[A] a base64 source")
        images = {"image/jpeg", "image/png", "image/gif", "image/webp"}
        _require_rule(
            source["media_type"] in (images if kind == "image" else {"application/pdf"}),
            "[A] a type it reads",
        )
    elif source.get("type") == "url":
        _require_keys(source, {"type", "url"}, set(), "[A] a URL source")
        _require_rule(source["url"].startswith(("https://", "http://")), "[A] a URL")
    else:
        _require_keys(source, {"type", "file_id"}, set(), "[A] a file source")
        _require_rule(
            source["type"] == "file" and source["file_id"].startswith("file_"), "[A] an id of the Files API"
        )


def _require_valid_answer(content: Json) -> None:
    kinds = [block["type"] for block in content if block["type"] != "compaction"]
    if any(kind in _THOUGHTS for kind in kinds):
        # [E] "If an assistant message contains any thinking blocks, the first block must be thinking"
        _require_rule(kinds[0] in _THOUGHTS, "[E] thinking comes first")
        # [E] "The final block in an assistant message cannot be `thinking`"
        _require_rule(content[-1]["type"] not in _THOUGHTS, "[E] thinking does not come last")
    if "tool_use" in kinds:
        # [E] text after tool_use is not accepted, text before it is
        _require_rule(
            set(kinds[kinds.index("tool_use") :]) == {"tool_use"}, "[E] nothing follows a call but another"
        )


def _system_places(messages: Json, allowed: bool) -> None:
    for at, message in enumerate(messages):
        if message["role"] == "system":
            _require_rule(allowed, "[S] role 'system' is not supported on this model")
            _require_rule(
                at > 0 and messages[at - 1]["role"] == "user", "[S] a system message follows one of the user"
            )
            after = messages[at + 1 : at + 2]
            _require_rule(
                all(one["role"] == "assistant" for one in after),
                "[S] and is last or before one of the assistant",
            )


def _anthropic_pairs(messages: Json) -> None:
    ids: set[str] = set()
    waiting: list[str] = []
    for message in messages:
        results = [block for block in message["content"] if block["type"] == "tool_result"]
        # [T] "tool_result blocks must come first in the content array", "immediately follow" and one for each call;
        # [E] "unexpected `tool_use_id` found in `tool_result` blocks"
        _require_rule(results == message["content"][: len(results)], "[T] results come first")
        answered = [block["tool_use_id"] for block in results]
        _require_rule(
            sorted(answered) == sorted(waiting), "[T] the results are those of the calls before, each once"
        )
        waiting = [block["id"] for block in message["content"] if block["type"] == "tool_use"]
        # [E] "`tool_use` ids must be unique"
        _require_rule(len(set(waiting)) == len(waiting) and not ids & set(waiting), "[E] no id is used twice")
        ids.update(waiting)
    _require_rule(not waiting, "[T] every call has a result")


def _anthropic_tool(tool: Json) -> None:
    _require_keys(tool, {"name", "input_schema"}, {"description", "strict", "cache_control"}, "[A] a tool")
    _require_rule(
        _FUNCTION_NAME.match(tool["name"]), "[T] a tool has letters, digits, _ and - in its name, 64 at most"
    )
    schema = tool["input_schema"]
    _require_rule(
        isinstance(schema, dict) and schema.get("type") == "object", "[T] a schema is that of an object"
    )
    # [E] "input_schema does not support oneOf, allOf, or anyOf at the top level"
    _require_rule(not {"oneOf", "anyOf", "allOf"} & schema.keys(), "[E] a schema combines nothing at its top")
    if tool.get("strict"):
        _require_rule(
            schema.get("additionalProperties") is False, "[T] a strict schema rules out further properties"
        )


def _require_valid_breakpoints(payload: Json) -> None:
    blocks = [*payload.get("tools", ()), *payload.get("system", ())]
    blocks += [block for message in payload["messages"] for block in message["content"]]
    marks = [block["cache_control"] for block in blocks if "cache_control" in block]
    _require_rule(len(marks) <= 4, "[K] there are at most four breakpoints")
    hours = [mark.get("ttl") == "1h" for mark in marks]
    for mark in marks:
        _require_rule(
            mark["type"] == "ephemeral" and mark.get("ttl", "5m") in ("5m", "1h"), "[K] a mark is known"
        )
    _require_rule(
        hours == sorted(hours, reverse=True), "[K] entries of an hour come before those of five minutes"
    )


# ── the types of the providers' packages ────────────────────────────────────────────────────────────────────────────


@cache
def _type_adapter(module: str, name: str) -> Callable[[Json], Json]:
    pydantic = importlib.import_module("pydantic")
    return pydantic.TypeAdapter(getattr(importlib.import_module(module), name)).validate_python


def is_installed(package: str) -> bool:
    """Whether a provider's package is there."""
    return importlib.util.find_spec(package) is not None


def validate_type(module: str, name: str, value: Json) -> None:
    """Raise what pydantic raises when a value is not of a type of a provider's package; lists are read to their end."""
    _drain_iterables(_type_adapter(module, name)(value))


def _drain_iterables(value: Json) -> None:
    if isinstance(value, Mapping):
        for inner in value.values():
            _drain_iterables(inner)
    elif isinstance(value, Iterable) and not isinstance(value, str | bytes):
        for inner in value:
            _drain_iterables(inner)
