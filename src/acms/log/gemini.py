"""Contents of Gemini, of the user and the model, read as messages of a log, in either spelling of its SDK."""

from __future__ import annotations

from base64 import b64encode
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from acms.log import validation
from acms.log.inline_media import Place, keep_media_bytes, refer_to_media
from acms.log.native_items import AS_GIVEN
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


def other_fields(one: Mapping[str, Any]) -> dict[str, Json]:
    """Return the fields of a part that no part of a log holds; those of a call or a file are nested under its name."""
    found: dict[str, Json] = {}
    for name, value in one.items():
        camel = _to_camel_case(name)
        if camel in _HELD and isinstance(value, Mapping):
            value = {each: inner for each, inner in value.items() if _to_camel_case(each) not in _HELD[camel]}
            value = {each: inner for each, inner in value.items() if inner not in _NOTHING}
        if camel not in _TEXT and value not in _NOTHING:
            found[camel if camel in _HELD else name] = value
    return found


_NOTHING: tuple[Json, ...] = (None, "", [], {})


def read_content_parts(
    message: Mapping[str, Any], place: Place, dump: Any
) -> tuple[list[list[Part]], list[Part]]:
    """Return the function responses of a content, each with its other fields, and the remaining parts."""
    answers: list[list[Part]] = []
    parts: list[Part] = []
    seen = Counter[str]()
    for index, one in enumerate(message["parts"]):
        at = place.at(f"[{index}]")
        held = _field_value(one, "thought_signature")
        if held:
            text = b64encode(held).decode() if isinstance(held, bytes) else at.at(SIGNATURE).text(held)
            alone = {"text": ""} if _field_value(one, "text") == "" else {}
            parts.append(Raw(VENDOR, dump({**alone, SIGNATURE: text})))
        call, answer = _field_value(one, "function_call"), _field_value(one, "function_response")
        if isinstance(call, Mapping):
            given = {
                "id": _derive_call_id(call, seen, "call"),
                "name": call.get("name"),
                "arguments": call.get("args") or {},
            }
            parts.append(validation.parse_tool_call(given, at.field))
        elif isinstance(answer, Mapping):
            answers.append(
                [
                    _read_answer(answer, _derive_call_id(answer, seen, "answer"), at, dump),
                    *_keep_other_fields(one, dump),
                ]
            )
            continue
        else:
            said = _read_part(one, at, dump)
            parts += said
            if not said or isinstance(said[0], Raw):
                continue
        parts += _keep_other_fields(one, dump)
    return answers, parts


def _keep_other_fields(one: Mapping[str, Any], dump: Any) -> list[Part]:
    fields = other_fields(one)
    return [Raw(AS_GIVEN, dump({"type": FIELDS, "fields": fields}))] if fields else []


def _field_value(one: Mapping[str, Any], name: str) -> Any:
    """Return a field, which the API spells in camel case."""
    return one.get(name, one.get(_to_camel_case(name)))


def _to_camel_case(name: str) -> str:
    head, *rest = name.split("_")
    return head + "".join([word.capitalize() for word in rest])


def _derive_call_id(one: Mapping[str, Any], seen: Counter[str], kind: str) -> str:
    """Return the id of a call; where the API gave none, its name and which of that name it is in its content."""
    name = str(one.get("name"))
    seen[kind + name] += 1
    return str(one.get("id") or f"call_{name}_{seen[kind + name]}")


def _read_answer(one: Mapping[str, Any], id: str, place: Place, dump: Any) -> ToolResult:
    response = one.get("response") or {}
    failed = isinstance(response, Mapping) and "error" in response
    said: Json = response
    if isinstance(response, Mapping) and len(response) == 1:
        said = response.get("error" if failed else "output", response)
    return ToolResult(place.at("id").name(id), said if isinstance(said, str) else dump(said), failed)


def _read_part(one: Mapping[str, Any], place: Place, dump: Any) -> Sequence[Part]:
    text, inline, file = (
        _field_value(one, "text"),
        _field_value(one, "inline_data"),
        _field_value(one, "file_data"),
    )
    if isinstance(text, str):
        said = place.at("text").text(text)
        return [] if not said else [Reasoning(said)] if one.get("thought") else [Text(said)]
    if isinstance(inline, Mapping):
        data = inline.get("data")
        written = b64encode(data).decode() if isinstance(data, bytes) else data
        return [
            keep_media_bytes(written, str(_field_value(inline, "mime_type") or "*/*"), place.at("inlineData"))
        ]
    if isinstance(file, Mapping):
        return [
            refer_to_media(
                _field_value(file, "file_uri"),
                str(_field_value(file, "mime_type") or "*/*"),
                place.at("fileData"),
            )
        ]
    rest = {name: value for name, value in one.items() if name not in (SIGNATURE, "thought_signature")}
    return [Raw(VENDOR, dump(rest))] if any(rest.values()) else []
