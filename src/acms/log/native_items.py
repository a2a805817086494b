"""Calls of provider-defined tools, their results, and the texts of a provider's other items.

A log holds a native call as a `ToolCall` and a native result as a `ToolResult`, so both are paired, counted, searched
and compacted like every other. A `Raw` part of the vendor `AS_GIVEN` after it holds the rest of the item, and
`write_call` and `write_result` rebuild the item for the provider it came from. An item that is both call and result
stays a `Raw` part of its vendor; `item_text` returns its text.

Items of the Responses API as of the package openai 3.54 (`response_input_item.py`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from acms.model import Json, Media, Part, Raw, ToolCall, ToolResult

AS_GIVEN = "as-given"
"""Vendor of a `Raw` part that holds additional fields of a part, such as annotations."""
RESPONSES = "openai-responses"
AGENTS = "openai"
"""Vendor of the items of the OpenAI Agents SDK, which stand beside the parts that were read from them."""
VENDORS = frozenset((RESPONSES, AGENTS, "openai-chat", "anthropic", "gemini"))
"""Vendors whose items have content of their own; items kept by other adapters repeat the parts beside them."""

NO_RESULT = "no result: interrupted"
"""Placeholder for a missing result of a tool call: providers refuse a call without a result."""

_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode


class CallForm(NamedTuple):
    """The form of a native call and of its result."""

    #: The type of the item that holds its result.
    output: str
    #: The field that holds the request; "" for all fields but the ids and the status.
    payload: str = ""
    #: The name of the tool; "" where the item says it.
    name: str = ""
    #: The field that its result refers to, and under which name the result does.
    id_field: str = "call_id"
    answer_field: str = "call_id"


CALLS: Mapping[str, CallForm] = {
    "function_call": CallForm("function_call_output", "arguments"),
    "custom_tool_call": CallForm("custom_tool_call_output", "input"),
    "local_shell_call": CallForm("local_shell_call_output", "action", "local_shell"),
    "shell_call": CallForm("shell_call_output", "action", "shell"),
    "apply_patch_call": CallForm("apply_patch_call_output", "operation", "apply_patch"),
    "computer_call": CallForm("computer_call_output", "", "computer"),
    "tool_search_call": CallForm("tool_search_output", "arguments", "tool_search"),
    "program": CallForm("program_output", "code", "program"),
    "mcp_approval_request": CallForm(
        "mcp_approval_response", "arguments", id_field="id", answer_field="approval_request_id"
    ),
}
RESULTS: Mapping[str, str] = {form.output: kind for kind, form in CALLS.items()}
"""The type of the call that an item answers, by the type of the item."""
NEEDS_ID = frozenset(
    ("local_shell_call", "computer_call", "program", "program_output", "mcp_approval_request")
)
"""Items that the API refuses without the id that it gave them."""

_FRAME = ("type", "call_id", "id", "status")
_ANSWER_ENDINGS = ("_output", "_result", "_response")


def form_of_call(kind: Json) -> CallForm | None:
    """Return how a type of call is written; an unknown `*_call` is answered by `*_call_output`."""
    if not isinstance(kind, str):
        return None
    known = CALLS.get(kind)
    if known is None and kind.endswith("_call"):
        return CallForm(f"{kind}_output", "", kind.removesuffix("_call"))
    return known


def call_of_result(kind: Json) -> str | None:
    """Return the type of the call that a type of item answers; None for an item that is no result."""
    if not isinstance(kind, str):
        return None
    if kind.endswith("_call_output"):
        return RESULTS.get(kind, kind.removesuffix("_output"))
    return RESULTS.get(kind)


def is_native(kind: Json) -> bool:
    """Return whether items of a type are calls or results of tools that are no functions of the caller."""
    return kind not in ("function_call", "function_call_output") and (
        form_of_call(kind) is not None or call_of_result(kind) is not None
    )


def is_tool_rest(rest: Mapping[str, Json]) -> bool:
    """Return whether the rest of an item belongs to a native call or result; of an unknown type it has a `call_id`."""
    return "call_id" in rest or is_native(rest["type"])


def _has_unknown_form(item: Mapping[str, Json]) -> bool:
    """Return whether an item of an unknown type shares a call id with others."""
    kind, call_id = item.get("type"), item.get("call_id")
    if not isinstance(kind, str) or not isinstance(call_id, str) or not call_id:
        return False
    return form_of_call(kind) is None and call_of_result(kind) is None


def _answers_by_form(item: Mapping[str, Json]) -> bool:
    """Return whether an item of an unknown type is a result: its type or a field says so."""
    return str(item["type"]).endswith(_ANSWER_ENDINGS) or not item.keys().isdisjoint(("output", "result"))


# ── items read as parts ─────────────────────────────────────────────────────────────────────────────────────────────


def read_call(item: Mapping[str, Any]) -> list[Part] | None:
    """Read an item as a native call and the rest of it; None for an item that is none."""
    kind = item.get("type")
    form = form_of_call(kind)
    unknown = _has_unknown_form(item)
    if unknown and not _answers_by_form(item):
        form = CallForm("", name=str(kind))
    call_id = None if form is None else item.get(form.id_field)
    if form is None or not isinstance(call_id, str) or not call_id or "output" in item:
        return None
    if form.payload:
        asked, held = item.get(form.payload), (form.payload, form.id_field)
    else:
        asked = {name: value for name, value in item.items() if name not in _FRAME}
        held = (*asked, form.id_field)
    name = form.name or item.get("name")
    if asked is None or not isinstance(name, str) or not name:
        return None
    arguments = asked if isinstance(asked, str) else _encode(asked)
    rest = {
        name: value for name, value in item.items() if name not in held or (unknown and name == "call_id")
    }
    if not form.name:
        rest.pop("name")
    return [ToolCall(call_id, name, arguments), Raw(AS_GIVEN, _encode(rest))]


def read_result(item: Mapping[str, Any]) -> list[Part] | None:
    """Read an item as the result of a native call and the rest of it; None for an item that is none.

    The caller reads images, and the texts of an output that is a list of parts.
    """
    kind = item.get("type")
    if _has_unknown_form(item) and _answers_by_form(item):
        return [ToolResult(str(item["call_id"]), item_text_of(item)), Raw(AS_GIVEN, _encode(dict(item)))]
    called = call_of_result(kind)
    form = form_of_call(called)
    if form is None:
        return None
    call_id = item.get(form.answer_field) or (item.get("id") if kind == "local_shell_call_output" else None)
    if not isinstance(call_id, str) or not call_id:
        return None
    text, rest = _result_text(item)
    rest.pop(form.answer_field, None)
    failed = item.get("status") == "failed" or item.get("approve") is False
    return [ToolResult(call_id, text, failed), Raw(AS_GIVEN, _encode(rest))]


def _result_text(item: Mapping[str, Any]) -> tuple[str, dict[str, Json]]:
    """Return what a native result says, and the rest of it: what `_result_fields` cannot make of the text."""
    rest = {name: value for name, value in item.items() if name not in ("output", "result", "tools")}
    match item:
        case {"type": "shell_call_output", "output": [*chunks]}:
            streams = [_stream_texts(chunk) for chunk in chunks]
            rest["output"] = [
                {**chunk, **{name: len(text) for name, text in texts.items()}}
                for chunk, texts in zip(chunks, streams, strict=True)
                if isinstance(chunk, Mapping)
            ]
            return "\n".join([text for texts in streams for text in texts.values() if text]), rest
        case {"type": "mcp_approval_response"}:
            reason = item.get("reason")
            return _approval_text(item.get("approve") is True, reason), rest
        case {"type": "tool_search_output", "tools": tools}:
            return _encode(tools), rest
        case {"type": "program_output", "result": str(text)}:
            return text, rest
        case {"output": str(text)}:
            return text, rest
        case {"type": "computer_call_output"}:
            return "", rest
        case {"type": "apply_patch_call_output"}:
            return str(item.get("status") or ""), {**rest, "output": None}
        case _:
            return item_text_of(item), {**rest, "output": item.get("output")}


def _stream_texts(chunk: object) -> dict[str, str]:
    """Return the texts of one command's output that say something."""
    if not isinstance(chunk, Mapping):
        return {}
    return {name: chunk[name] for name in ("stdout", "stderr") if isinstance(chunk.get(name), str)}


def _approval_text(approved: bool, reason: Json) -> str:
    verdict = "approved" if approved else "denied"
    return f"{verdict}: {reason}" if isinstance(reason, str) and reason else verdict


# ── parts written as items ──────────────────────────────────────────────────────────────────────────────────────────


def rest_of_item(part: Part | None) -> dict[str, Json] | None:
    """Return the rest of a native item that stands behind a call or a result; None for any other part."""
    if not isinstance(part, Raw) or part.vendor != AS_GIVEN:
        return None
    try:
        rest = json.loads(part.json)
    except ValueError:
        return None
    return rest if isinstance(rest, dict) and isinstance(rest.get("type"), str) else None


def write_call(call: ToolCall, rest: Mapping[str, Json]) -> dict[str, Json] | None:
    """Make the item again that a native call came as; None where its arguments no longer fit it."""
    form = CallForm("", name=call.name) if "call_id" in rest else form_of_call(rest["type"])
    if form is None:
        return None
    item: dict[str, Json] = {"type": rest["type"], form.id_field: call.call_id}
    if not form.name:
        item["name"] = call.name
    if form.payload in ("input", "code") or rest["type"] in ("mcp_approval_request", "function_call"):
        item[form.payload] = call.arguments
        return {**rest, **item}
    try:
        asked = json.loads(call.arguments)
    except (ValueError, RecursionError):
        return None
    if form.payload:
        return {**rest, **item, form.payload: asked}
    return {**asked, **rest, **item} if isinstance(asked, dict) else None


def write_result(
    result: ToolResult, media: Sequence[Media], called: str, rest: Mapping[str, Json]
) -> dict[str, Json] | None:
    """Build the item that answers a native call, or None if the result cannot answer it.

    `rest` holds the other fields of the original item; it is empty for a stand-in.
    """
    form = form_of_call(called)
    if form is None:
        return _write_unknown_result(result, rest)
    kind = form.output
    given = rest if rest.get("type") == kind else {}
    item: dict[str, Json] = {**given, "type": kind, form.answer_field: result.call_id}
    if kind == "local_shell_call_output" and "id" not in item:
        item["id"] = result.call_id
    text = result.output
    match kind:
        case "shell_call_output":
            chunks = _filled_chunks(text, given.get("output"))
            status = {"type": "exit", "exit_code": 1 if text == NO_RESULT else 0}
            item["output"] = chunks or [{"stdout": text, "stderr": "", "outcome": status}]
        case "computer_call_output":
            if not media:
                return None
            field = "image_url" if media[0].ref.startswith(("http", "data:")) else "file_id"
            item["output"] = {"type": "computer_screenshot", field: media[0].ref}
        case "apply_patch_call_output":
            item["status"] = given.get("status") or ("failed" if text == NO_RESULT else "completed")
            if "output" in given and text == item["status"]:
                del item["output"]
            else:
                item["output"] = text
        case "mcp_approval_response":
            if _approval_text(given.get("approve") is True, given.get("reason")) != text:
                item.update(approve=False, reason=text)
        case "tool_search_output":
            item["tools"] = _parse_tools(text)
        case "program_output":
            item["result"] = text
            item.setdefault("id", f"{result.call_id}_output")
            item.setdefault("status", "completed")
        case _:
            kept = given.get("output")
            same = kept is not None and sorted(item_text_of(given).split("\n")) == sorted(text.split("\n"))
            item["output"] = kept if same else text
    return item


def _write_unknown_result(result: ToolResult, rest: Mapping[str, Json]) -> dict[str, Json] | None:
    """Return a result of an unknown type as it came; None where its text was changed, and for any other one."""
    if "call_id" not in rest or item_text_of(rest) != result.output:
        return None
    return {**rest, "call_id": result.call_id}


def _filled_chunks(text: str, chunks: Json) -> list[dict[str, Json]]:
    """Return the outputs of commands with their texts, which follow each other in lines; [] where they do not fit."""
    if not isinstance(chunks, list):
        return []
    filled: list[dict[str, Json]] = []
    place = 0
    for chunk in chunks:
        if not isinstance(chunk, dict):
            return []
        made = dict(chunk)
        for name in ("stdout", "stderr"):
            length = chunk.get(name)
            if not isinstance(length, int):
                continue
            start = place + 1 if length and place else place
            made[name] = text[start : start + length]
            place = start + length if length else place
        filled.append(made)
    return filled if place == len(text) else []


def _parse_tools(text: str) -> list[Json]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return []
    return found if isinstance(found, list) else []


# ── texts of other items ────────────────────────────────────────────────────────────────────────────────────────────

_SILENT = frozenset(
    (
        "reasoning",
        "thinking",
        "redacted_thinking",
        "compaction",
        "compaction_summary",
        "compaction_trigger",
        "item_reference",
    )
)
"""Items without text of their own: reasoning, and items that refer to or replace others."""
_UNSAID = frozenset(
    (
        "type",
        "id",
        "call_id",
        "tool_use_id",
        "status",
        "encrypted_content",
        "encrypted_index",
        "encrypted_stdout",
        "signature",
        "thoughtSignature",
        "thought_signature",
        "fingerprint",
        "input_schema",
        "data",
        "cache_control",
    )
)
"""Fields whose values are names and secrets of the provider's."""


def item_text(part: Raw) -> str:
    """Return the text of a provider's own item, headed by its type, or "" if it has no readable text."""
    if part.vendor not in VENDORS:
        return ""
    try:
        item = json.loads(part.json)
    except (ValueError, RecursionError):
        return ""
    if not isinstance(item, dict) or (part.vendor == AGENTS and is_understood(item)):
        return ""
    return item_text_of(item)


def is_understood(item: Mapping[str, Json]) -> bool:
    """Return whether an item is read as parts: a message, a call or a result."""
    kind = item.get("type", "message")
    if kind in ("message", "function_call", "function_call_output"):
        return True
    return read_call(item) is not None or read_result(item) is not None


def item_text_of(item: Mapping[str, Json]) -> str:
    """Return the text of a provider's item: every string in it but ids, signatures and encrypted content."""
    kind = item.get("type")
    if kind in _SILENT:
        return ""
    said = "\n".join(_walk_strings(item))
    return f"[{kind}]\n{said}" if said and isinstance(kind, str) else said


def _walk_strings(value: Json, name: str = "") -> Iterator[str]:
    if isinstance(value, str):
        if value.strip() and not value.startswith("data:"):
            yield value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            if key not in _UNSAID:
                yield from _walk_strings(inner, key)
    elif isinstance(value, list):
        for inner in value:
            yield from _walk_strings(inner, name)
