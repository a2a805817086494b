"""Calls of provider-defined tools, their results, and the texts of a provider's other items.

A native call or result is one of a provider's own tool, not of a function of the caller. A log holds a native call as
a `ToolCall` and a native result as a `ToolResult`, so both are paired, counted, searched and compacted like others. A
`Raw` part of the vendor `EXTRA_FIELDS` after it holds the remaining fields of the item (`extra`), and `write_call` and
`write_result` rebuild the item for the provider it came from. An item that is both call and result stays a `Raw` part
of its vendor; `item_text` returns its text.

Items of the Responses API as of the package openai 3.54 (`response_input_item.py`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeGuard

from acms.model import Json, Media, Part, Raw, ToolCall, ToolResult

EXTRA_FIELDS = "as-given"
"""Vendor of a `Raw` part that holds additional fields of a part, such as annotations."""
RESPONSES = "openai-responses"
AGENTS = "openai"
"""Vendor of the items of the OpenAI Agents SDK, which are kept with the parts that were read from them."""
VENDORS = frozenset((RESPONSES, AGENTS, "openai-chat", "anthropic", "gemini"))
"""Vendors whose items have content of their own; items of other adapters repeat the parts before them."""

NO_RESULT = "no result: interrupted"
"""Placeholder for a missing result of a tool call: providers refuse a call without a result."""

_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode


class CallForm(NamedTuple):
    """The form of a native call and of its result."""

    #: The type of the item that holds its result.
    output: str
    #: The field that holds the request, or "" if it is all fields except the ids and the status.
    payload: str = ""
    #: The name of the tool, or "" if the item has a field for it.
    name: str = ""
    #: The field with the id of the call, and the field in which the result names that id.
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
"""Types of items that the API refuses without the id that it gave them."""

_ENVELOPE_FIELDS = ("type", "call_id", "id", "status")
_STREAMS = ("stdout", "stderr")
_ANSWER_ENDINGS = ("_output", "_result", "_response")


def form_of_call(kind: Json) -> CallForm | None:
    """Return the form of a type of item, or None if it is no call; an unknown `*_call` counts as a call."""
    if not isinstance(kind, str):
        return None
    form = CALLS.get(kind)
    if form is None and kind.endswith("_call"):
        return CallForm(f"{kind}_output", "", kind.removesuffix("_call"))
    return form


def call_of_result(kind: Json) -> str | None:
    """Return the type of call that a type of item answers, or None if the item is no result."""
    if not isinstance(kind, str):
        return None
    if kind.endswith("_call_output"):
        return RESULTS.get(kind, kind.removesuffix("_output"))
    return RESULTS.get(kind)


def is_native(kind: Json) -> bool:
    """Return whether items of a type are native calls or results: not of a function of the caller."""
    return kind not in ("function_call", "function_call_output") and (
        form_of_call(kind) is not None or call_of_result(kind) is not None
    )


def belongs_to_native_item(extra: Mapping[str, Json]) -> bool:
    """Return whether the extra fields after a part come from a native call or result.

    Those of an unknown type always have a `call_id`.
    """
    return "call_id" in extra or is_native(extra["type"])


def _has_unknown_form(item: Mapping[str, Json]) -> bool:
    """Return whether an item is of an unknown type and has a call id: it is a call or a result."""
    kind, call_id = item.get("type"), item.get("call_id")
    if not isinstance(kind, str) or not isinstance(call_id, str) or not call_id:
        return False
    return form_of_call(kind) is None and call_of_result(kind) is None


def _answers_by_form(item: Mapping[str, Json]) -> bool:
    """Return whether an item of an unknown type is a result, by the ending of its type or by a field for the output."""
    return str(item["type"]).endswith(_ANSWER_ENDINGS) or not item.keys().isdisjoint(("output", "result"))


# ── items read as parts ─────────────────────────────────────────────────────────────────────────────────────────────


def read_call(item: Mapping[str, Any]) -> list[Part] | None:
    """Parse an item into a tool call and a `Raw` part with its other fields; None if it is no native call."""
    kind = item.get("type")
    form = form_of_call(kind)
    is_unknown = _has_unknown_form(item) and not _answers_by_form(item)
    if is_unknown:
        form = CallForm("", name=str(kind))
    if form is None or "output" in item:  # with an output, the item is both call and result
        return None
    call_id, name = item.get(form.id_field), form.name or item.get("name")
    if not _is_filled(call_id) or not _is_filled(name):
        return None
    if form.payload:
        request = item.get(form.payload)
        call_fields = {
            form.payload,
            form.id_field,
        }  # fields that the call holds; the `Raw` part has the others
    else:
        request = {field: value for field, value in item.items() if field not in _ENVELOPE_FIELDS}
        call_fields = {*request, form.id_field}
    if request is None:
        return None
    if not form.name:
        call_fields.add("name")
    if is_unknown:
        call_fields.discard(
            "call_id"
        )  # by this field `write_call` recognizes the extra fields of an unknown type
    arguments = request if isinstance(request, str) else _encode(request)
    extra = {field: value for field, value in item.items() if field not in call_fields}
    return [ToolCall(call_id, name, arguments), Raw(EXTRA_FIELDS, _encode(extra))]


def _is_filled(value: object) -> TypeGuard[str]:
    return isinstance(value, str) and value != ""


def read_result(item: Mapping[str, Any]) -> list[Part] | None:
    """Parse an item into the result of a native call and its extra fields; None if it is no native result.

    The caller parses images, and the texts of an output that is a list of parts.
    """
    kind = item.get("type")
    if _has_unknown_form(item) and _answers_by_form(item):
        return [ToolResult(str(item["call_id"]), item_text_of(item)), Raw(EXTRA_FIELDS, _encode(dict(item)))]
    form = form_of_call(call_of_result(kind))
    if form is None:
        return None
    call_id = item.get(form.answer_field)
    if not call_id and kind == "local_shell_call_output":
        call_id = item.get("id")  # this type may have the id of the call there
    if not _is_filled(call_id):
        return None
    text, extra = _split_result(item)
    extra.pop(form.answer_field, None)
    is_error = item.get("status") == "failed" or item.get("approve") is False
    return [ToolResult(call_id, text, is_error), Raw(EXTRA_FIELDS, _encode(extra))]


def _split_result(item: Mapping[str, Any]) -> tuple[str, dict[str, Json]]:
    """Return the text of a native result, and the fields that `write_result` cannot rebuild from that text."""
    extra = {name: value for name, value in item.items() if name not in ("output", "result", "tools")}
    match item:
        case {"type": "shell_call_output", "output": [*chunks]}:
            text, extra["output"] = _split_chunks(chunks)
            return text, extra
        case {"type": "mcp_approval_response"}:
            return _approval_text(item.get("approve") is True, item.get("reason")), extra
        case {"type": "tool_search_output", "tools": tools}:
            return _encode(tools), extra
        case {"type": "program_output", "result": str(text)}:
            return text, extra
        case {"output": str(text)}:
            return text, extra
        case {"type": "computer_call_output"}:
            return "", extra  # its output is an image, which the caller reads
        case {"type": "apply_patch_call_output"}:  # without an output, its status is the text
            return str(item.get("status") or ""), {**extra, "output": None}
        case _:
            return item_text_of(item), {**extra, "output": item.get("output")}


def _split_chunks(chunks: Sequence[Any]) -> tuple[str, list[Json]]:
    """Return the joined texts of command outputs, and the outputs with the length of each text in its place."""
    texts: list[str] = []
    outputs: list[Json] = []
    for chunk in chunks:
        if not isinstance(chunk, Mapping):
            continue
        lengths: dict[str, Json] = {}
        for name in _STREAMS:
            text = chunk.get(name)
            if isinstance(text, str):
                lengths[name] = len(text)
                texts.append(text)
        outputs.append({**chunk, **lengths})
    return "\n".join(filter(None, texts)), outputs


def _approval_text(approved: bool, reason: Json) -> str:
    verdict = "approved" if approved else "denied"
    return f"{verdict}: {reason}" if isinstance(reason, str) and reason else verdict


# ── parts written as items ──────────────────────────────────────────────────────────────────────────────────────────


def extra_fields_of(part: Part | None) -> dict[str, Json] | None:
    """Return the extra fields in the `Raw` part after a call or a result, or None for any other part."""
    if not isinstance(part, Raw) or part.vendor != EXTRA_FIELDS:
        return None
    try:
        extra = json.loads(part.json)
    except ValueError:
        return None
    return extra if isinstance(extra, dict) and isinstance(extra.get("type"), str) else None


def write_call(call: ToolCall, extra: Mapping[str, Json]) -> dict[str, Json] | None:
    """Rebuild the item of a native call, or return None if its arguments were changed to something it cannot hold."""
    form = CallForm("", name=call.name) if "call_id" in extra else form_of_call(extra["type"])
    if form is None:
        return None
    item: dict[str, Json] = {"type": extra["type"], form.id_field: call.call_id}
    if not form.name:
        item["name"] = call.name
    is_text_payload = form.payload in ("input", "code")
    if is_text_payload or extra["type"] in ("mcp_approval_request", "function_call"):
        item[form.payload] = call.arguments
        return {**extra, **item}
    try:
        request = json.loads(call.arguments)
    except (ValueError, RecursionError):
        return None
    if form.payload:
        return {**extra, **item, form.payload: request}
    return {**request, **extra, **item} if isinstance(request, dict) else None


def write_result(
    result: ToolResult, media: Sequence[Media], call_type: str, extra: Mapping[str, Json]
) -> dict[str, Json] | None:
    """Build the item that answers a native call of a type, or None if the result cannot answer it.

    `extra` holds the other fields of the original item; it is empty for the placeholder of a missing result.
    """
    form = form_of_call(call_type)
    if form is None:
        return _write_unknown_result(result, extra)
    kind, text = form.output, result.output
    original = extra if extra.get("type") == kind else {}
    item: dict[str, Json] = {**original, "type": kind, form.answer_field: result.call_id}
    match kind:
        case "shell_call_output":
            return {**item, "output": _fill_chunks(text, original.get("output"))}
        case "computer_call_output":
            return {**item, "output": _write_screenshot(media[0])} if media else None
        case "apply_patch_call_output":
            return _write_patch_result(item, text)
        case "mcp_approval_response":
            is_unchanged = _approval_text(item.get("approve") is True, item.get("reason")) == text
            # A text that was changed is no approval.
            return item if is_unchanged else {**item, "approve": False, "reason": text}
        case "tool_search_output":
            return {**item, "tools": _parse_tools(text)}
        case "program_output":
            item["result"] = text
            item.setdefault("id", f"{result.call_id}_output")
            item.setdefault("status", "completed")
            return item
        case _:
            if kind == "local_shell_call_output":
                item.setdefault("id", result.call_id)
            return {**item, "output": original["output"] if _has_lines_of(original, text) else text}


def _write_screenshot(image: Media) -> dict[str, Json]:
    field = "image_url" if image.ref.startswith(("http", "data:")) else "file_id"
    return {"type": "computer_screenshot", field: image.ref}


def _write_patch_result(item: Mapping[str, Json], text: str) -> dict[str, Json]:
    """Return the result of a patch; one that had no output has its status as the text, and gets none again."""
    status = item.get("status") or ("failed" if text == NO_RESULT else "completed")
    written = {**item, "status": status, "output": text}
    had_no_output = "output" in item and text == status
    if had_no_output:
        del written["output"]
    return written


def _has_lines_of(item: Mapping[str, Json], text: str) -> bool:
    """Return whether the output of an item has the lines of a text, in any order."""
    if item.get("output") is None:
        return False
    return sorted(item_text_of(item).split("\n")) == sorted(text.split("\n"))


def _write_unknown_result(result: ToolResult, extra: Mapping[str, Json]) -> dict[str, Json] | None:
    """Return the original item of a result of an unknown type; None if its text was changed."""
    if "call_id" not in extra or item_text_of(extra) != result.output:
        return None
    return {**extra, "call_id": result.call_id}


def _fill_chunks(text: str, chunks: Json) -> list[dict[str, Json]]:
    """Return the outputs of commands with their texts, cut from a joined text by the lengths in `chunks`.

    If the lengths do not fit the text, which may have been edited, the whole text is one output.
    """
    exit_code = 1 if text == NO_RESULT else 0
    single = {"stdout": text, "stderr": "", "outcome": {"type": "exit", "exit_code": exit_code}}
    if not isinstance(chunks, list) or not all(isinstance(chunk, dict) for chunk in chunks):
        return [single]
    filled: list[dict[str, Json]] = []
    end = 0
    for chunk in chunks:
        texts: dict[str, Json] = {}
        for name in _STREAMS:
            length = chunk.get(name)
            if isinstance(length, int):
                start = end + 1 if length and end else end  # after a line break
                texts[name] = text[start : start + length]
                end = start + length if length else end
        filled.append({**chunk, **texts})
    return filled if filled and end == len(text) else [single]


def _parse_tools(text: str) -> list[Json]:
    try:
        tools = json.loads(text)
    except (ValueError, RecursionError):
        return []
    return tools if isinstance(tools, list) else []


# ── texts of other items ────────────────────────────────────────────────────────────────────────────────────────────

_TEXTLESS_TYPES = frozenset(
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
_NON_TEXT_FIELDS = frozenset(
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
"""Fields whose values are technical: ids, types, signatures, encrypted and inline data."""


def item_text(part: Raw) -> str:
    """Return the text of a provider's own item, headed by its type, or "" if it has no readable text."""
    if part.vendor not in VENDORS:
        return ""
    try:
        item = json.loads(part.json)
    except (ValueError, RecursionError):
        return ""
    if not isinstance(item, dict) or (part.vendor == AGENTS and is_parsed_into_parts(item)):
        return ""
    return item_text_of(item)


def is_parsed_into_parts(item: Mapping[str, Json]) -> bool:
    """Return whether an item is parsed into parts: a message, a call or a result."""
    kind = item.get("type", "message")
    if kind in ("message", "function_call", "function_call_output"):
        return True
    return read_call(item) is not None or read_result(item) is not None


def item_text_of(item: Mapping[str, Json]) -> str:
    """Return the text of a provider's item: every string in it but ids, signatures and encrypted content."""
    kind = item.get("type")
    if kind in _TEXTLESS_TYPES:
        return ""
    text = "\n".join(_walk_strings(item))
    return f"[{kind}]\n{text}" if text and isinstance(kind, str) else text


def _walk_strings(value: Json) -> Iterator[str]:
    """Yield the strings of a value that people may read, without ids, signatures and inline data."""
    if isinstance(value, str):
        if value.strip() and not value.startswith("data:"):
            yield value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            if key not in _NON_TEXT_FIELDS:
                yield from _walk_strings(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _walk_strings(inner)
