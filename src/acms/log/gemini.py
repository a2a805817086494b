"""Contents of Gemini, of the user and the model, read as messages of a log, in either spelling of its SDK."""

from __future__ import annotations

from base64 import b64encode
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from acms.log import validation
from acms.log.inline_media import Location, keep_media_bytes, refer_to_media
from acms.log.native_items import EXTRA_FIELDS
from acms.model import Json, Part, Raw, Reasoning, Text, ToolResult

__all__ = ["FIELDS", "SIGNATURE", "VENDOR", "other_fields", "read_content_parts"]

VENDOR = "gemini"
SIGNATURE = "thoughtSignature"
"""What a `Raw` part of Gemini holds: opaque, and for the part behind it unless it has an empty text with it."""

FIELDS = "gemini-fields"
"""Type of the item kept after a part, with the fields that the part does not hold."""
_HELD = {
    "functionCall": frozenset(("id", "name", "args")),
    "functionResponse": frozenset(("id", "name", "response")),
    "inlineData": frozenset(("mimeType", "data")),
    "fileData": frozenset(("mimeType", "fileUri")),
}
_TEXT = frozenset(("text", "thought", SIGNATURE))


def other_fields(block: Mapping[str, Any]) -> dict[str, Json]:
    """Return the fields of a part that no part of a log holds; those of a call or a file are nested under its name."""
    fields: dict[str, Json] = {}
    for name, value in block.items():
        camel = _to_camel_case(name)
        held = _HELD.get(camel)
        if held is not None and isinstance(value, Mapping):
            value = {key: inner for key, inner in value.items() if _to_camel_case(key) not in held}
            value = {key: inner for key, inner in value.items() if inner not in _NOTHING}
        if camel not in _TEXT and value not in _NOTHING:
            fields[name if held is None else camel] = value
    return fields


_NOTHING: tuple[Json, ...] = (None, "", [], {})


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
            given = {"id": call_id, "name": call.get("name"), "arguments": call.get("args") or {}}
            parts.append(validation.parse_tool_call(given, at.field))
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


def _read_signature(signature: Any, alone: bool, location: Location, dump: Callable[[Json], str]) -> Raw:
    """Keep the signature of a thought; `alone` if it signs no part of its own."""
    text = location.at(SIGNATURE).text(_encode(signature))
    return Raw(VENDOR, dump({"text": "", SIGNATURE: text} if alone else {SIGNATURE: text}))


def _encode(data: Any) -> Any:
    """Return bytes as base64, and anything else as it is: the SDK has bytes where the API has base64."""
    return b64encode(data).decode() if isinstance(data, bytes) else data


def _keep_other_fields(block: Mapping[str, Any], dump: Callable[[Json], str]) -> list[Part]:
    fields = other_fields(block)
    return [Raw(EXTRA_FIELDS, dump({"type": FIELDS, "fields": fields}))] if fields else []


def _field_value(block: Mapping[str, Any], name: str) -> Any:
    """Return a field, which the API spells in camel case."""
    return block.get(name, block.get(_to_camel_case(name)))


def _to_camel_case(name: str) -> str:
    head, *rest = name.split("_")
    return head + "".join([word.capitalize() for word in rest])


def _derive_call_id(block: Mapping[str, Any], counts: Counter[str], kind: str) -> str:
    """Return the id of a call; where the API gave none, its name and which of that name it is in its content."""
    name = str(block.get("name"))
    counts[kind + name] += 1
    return str(block.get("id") or f"call_{name}_{counts[kind + name]}")


def _read_answer(
    block: Mapping[str, Any], call_id: str, location: Location, dump: Callable[[Json], str]
) -> ToolResult:
    """Read the response of a function; an object with one field, "output" or "error", is that text."""
    output: Json = block.get("response") or {}
    failed = isinstance(output, Mapping) and "error" in output
    if isinstance(output, Mapping) and len(output) == 1:
        output = output.get("error" if failed else "output", output)
    text = output if isinstance(output, str) else dump(output)
    return ToolResult(location.at("id").name(call_id), text, failed)


def _read_part(block: Mapping[str, Any], location: Location, dump: Callable[[Json], str]) -> Part | None:
    """Read a part that is no call or answer; None if nothing is in it."""
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
    rest = {name: value for name, value in block.items() if name not in (SIGNATURE, "thought_signature")}
    return Raw(VENDOR, dump(rest)) if any(rest.values()) else None
