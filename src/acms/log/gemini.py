"""Parse contents of Gemini, its messages, into parts of a log; field names may be in snake case or camel case."""

from __future__ import annotations

from base64 import b64encode
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from acms.log import validation
from acms.log.inline_media import Location, keep_media_bytes, refer_to_media
from acms.log.native_items import EXTRA_FIELDS
from acms.model import Json, Part, Raw, Reasoning, Text, ToolResult

VENDOR = "gemini"
SIGNATURE = "thoughtSignature"
"""Field of a `Raw` part of Gemini: an opaque signature of the part after it, or of none if there is an empty text."""

FIELDS = "gemini-fields"
"""Type of the item kept after a part, with the fields that the part does not hold."""
_PARSED_FIELDS = {
    "functionCall": frozenset(("id", "name", "args")),
    "functionResponse": frozenset(("id", "name", "response")),
    "inlineData": frozenset(("mimeType", "data")),
    "fileData": frozenset(("mimeType", "fileUri")),
}
"""Fields of a call, a response or a file that the part of the log holds."""
_TEXT = frozenset(("text", "thought", SIGNATURE))


def other_fields(block: Mapping[str, Any]) -> dict[str, Json]:
    """Return the fields of a part that no part of a log holds; those of a call or a file are nested under its name."""
    fields: dict[str, Json] = {}
    for name, value in block.items():
        camel = _to_camel_case(name)
        parsed_fields = _PARSED_FIELDS.get(camel)
        if parsed_fields is not None and isinstance(value, Mapping):
            value = {key: inner for key, inner in value.items() if _to_camel_case(key) not in parsed_fields}
            value = {key: inner for key, inner in value.items() if inner not in _EMPTY_VALUES}
        if camel not in _TEXT and value not in _EMPTY_VALUES:
            fields[name if parsed_fields is None else camel] = value
    return fields


_EMPTY_VALUES: tuple[Json, ...] = (None, "", [], {})


def read_content_parts(
    message: Mapping[str, Any], location: Location, dump: Callable[[Json], str]
) -> tuple[list[list[Part]], list[Part]]:
    """Return the function responses of a content, each with its other fields, and the remaining parts."""
    answers: list[list[Part]] = []
    parts: list[Part] = []
    counts = Counter[str]()
    for index, block in enumerate(message["parts"]):
        at = location.at(f"[{index}]")
        signature = _field_value(block, "thought_signature")
        if signature:
            parts.append(_read_signature(signature, _field_value(block, "text") == "", at, dump))
        call, answer = _field_value(block, "function_call"), _field_value(block, "function_response")
        if isinstance(call, Mapping):
            call_id = _derive_call_id(call, counts, "call")
            plain_call = {"id": call_id, "name": call.get("name"), "arguments": call.get("args") or {}}
            parts.append(validation.parse_tool_call(plain_call, at.field))
        elif isinstance(answer, Mapping):
            call_id = _derive_call_id(answer, counts, "answer")
            answers.append([_read_answer(answer, call_id, at, dump), *_keep_other_fields(block, dump)])
            continue
        else:
            part = _read_part(block, at, dump)
            if part is None:
                continue
            parts.append(part)
            if isinstance(part, Raw):
                continue
        parts += _keep_other_fields(block, dump)
    return answers, parts


def _read_signature(signature: Any, is_alone: bool, location: Location, dump: Callable[[Json], str]) -> Raw:
    """Keep the signature of a thought in a `Raw` part; `is_alone` if no part follows that it signs."""
    text = location.at(SIGNATURE).text(_encode(signature))
    return Raw(VENDOR, dump({"text": "", SIGNATURE: text} if is_alone else {SIGNATURE: text}))


def _encode(data: Any) -> Any:
    """Return bytes as base64, and other values unchanged: the SDK has bytes where the API has base64."""
    return b64encode(data).decode() if isinstance(data, bytes) else data


def _keep_other_fields(block: Mapping[str, Any], dump: Callable[[Json], str]) -> list[Part]:
    fields = other_fields(block)
    return [Raw(EXTRA_FIELDS, dump({"type": FIELDS, "fields": fields}))] if fields else []


def _field_value(block: Mapping[str, Any], name: str) -> Any:
    """Return a field by its name in snake case, as in the SDK, or in camel case, as in the API."""
    return block.get(name, block.get(_to_camel_case(name)))


def _to_camel_case(name: str) -> str:
    head, *rest = name.split("_")
    return head + "".join([word.capitalize() for word in rest])


def _derive_call_id(block: Mapping[str, Any], counts: Counter[str], kind: str) -> str:
    """Return the id of a call; if the API gave none, its name and a number among the calls of that name."""
    name = str(block.get("name"))
    counts[kind + name] += 1
    return str(block.get("id") or f"call_{name}_{counts[kind + name]}")


def _read_answer(
    block: Mapping[str, Any], call_id: str, location: Location, dump: Callable[[Json], str]
) -> ToolResult:
    """Read the response of a function; an object with one field, "output" or "error", is that text."""
    output: Json = block.get("response") or {}
    is_error = isinstance(output, Mapping) and "error" in output
    if isinstance(output, Mapping) and len(output) == 1:
        output = output.get("error" if is_error else "output", output)
    text = output if isinstance(output, str) else dump(output)
    return ToolResult(location.at("id").name(call_id), text, is_error)


def _read_part(block: Mapping[str, Any], location: Location, dump: Callable[[Json], str]) -> Part | None:
    """Parse a part that is no call or answer; return None if it is empty."""
    text = _field_value(block, "text")
    inline, file = _field_value(block, "inline_data"), _field_value(block, "file_data")
    if isinstance(text, str):
        text = location.at("text").text(text)
        if not text:
            return None
        return Reasoning(text) if block.get("thought") else Text(text)
    if isinstance(inline, Mapping):
        mime = str(_field_value(inline, "mime_type") or "*/*")
        return keep_media_bytes(_encode(inline.get("data")), mime, location.at("inlineData"))
    if isinstance(file, Mapping):
        mime = str(_field_value(file, "mime_type") or "*/*")
        return refer_to_media(_field_value(file, "file_uri"), mime, location.at("fileData"))
    unknown = {name: value for name, value in block.items() if name not in (SIGNATURE, "thought_signature")}
    return Raw(VENDOR, dump(unknown)) if any(unknown.values()) else None
