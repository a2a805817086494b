"""Items of the Responses API, read as parts and written from parts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

from acms.log import native_items
from acms.log.native_items import CALLS, EXTRA_FIELDS, RESULTS, extra_fields_of, is_native
from acms.model import Json, Media, Part, Raw, Role, Text, ToolCall, ToolResult
from acms.prompt_types import PromptMessage, with_parts
from acms.providers.codecs.framing import dump, to_plain_json
from acms.providers.codecs.openai_base import Note, parse_raw_object, remove_breakpoint
from acms.text import chat_messages

VENDOR = "openai-responses"
VENDORS = (VENDOR, "openai")
"""Vendors of items: this API, and the OpenAI Agents SDK."""
ROLES = {role.value: role for role in Role if role is not Role.TOOL}
CALL = "function_call"
RESULT = "function_call_output"

ItemFields: TypeAlias = Mapping[str, Json] | None
"""The fields of an item that its call or result does not hold, or None if the part did not come as an item."""


# ── items read as parts ─────────────────────────────────────────────────────────────────────────────────────────────


def parse_own_item(part: Part) -> dict[str, Json] | None:
    """Return the item that a part holds, or None if it holds none of this API."""
    if not isinstance(part, Raw) or part.vendor not in VENDORS:
        return None
    return parse_raw_object(part)


def parse_known_items(message: PromptMessage, note: Note) -> PromptMessage:
    """Return a message with its verbatim items parsed, where a part can hold all of an item.

    Items that repeat the parts beside them, and items that the API would refuse, are left out.
    """
    if not any(isinstance(part, Raw) for part in message.parts):
        return message
    has_other_parts = any(not isinstance(part, Raw) for part in message.parts)
    parts: list[Part] = []
    for part in _with_phase_item(message):
        item = parse_own_item(part)
        if item is None:
            parts.append(part)
        elif has_other_parts and _repeats_parts(part, item):
            continue
        elif _is_refused_item(item):
            note("items that the API would refuse are left out")
        else:
            parts.extend(parse_item(item).parts)
    return with_parts(message, parts)


def _repeats_parts(part: Part, item: Mapping[str, Json]) -> bool:
    """Return whether an item of the Agents SDK stands beside the parts that were read from it."""
    if not isinstance(part, Raw) or part.vendor == VENDOR:
        return False
    return native_items.is_parsed_into_parts(item) or is_native(item.get("type"))


def _with_phase_item(message: PromptMessage) -> Sequence[Part]:
    """Return the parts of a message, its text as an item that states whether it is interim text or the answer.

    Without a stated phase the provider takes interim text of the model for its answer.
    """
    texts = [part for part in message.parts if isinstance(part, Text)]
    phase = _find_phase(message.parts)
    if message.role is not Role.ASSISTANT or not isinstance(phase, str) or not texts:
        return message.parts
    content = "\n".join([part.text for part in texts])
    item = {"type": "message", "role": "assistant", "content": content, "phase": phase}
    parts: list[Part] = []
    for part in message.parts:
        if part is texts[0]:
            parts.append(Raw(VENDOR, dump(item)))
        elif not isinstance(part, Text):
            parts.append(part)
    return parts


def _find_phase(parts: Sequence[Part]) -> Json:
    """Return the first `phase` in the raw items of a message, or None: interim "commentary", or the "final_answer".

    It is in an item of this API, or in the extra fields that are stored after a part.
    """
    for part in parts:
        if isinstance(part, Raw) and part.vendor in (EXTRA_FIELDS, *VENDORS):
            phase = (parse_raw_object(part) or {}).get("phase")
            if phase:
                return phase
    return None


def _is_refused_item(item: Mapping[str, Json]) -> bool:
    """Return whether the API would refuse an item of a type that parts can hold."""
    kind = item.get("type", "message")
    match item:
        case {"type": "function_call", "call_id": str(), "name": str(), "arguments": str()}:
            return False
        case {"type": "function_call_output", "call_id": str(), "output": str() | list()}:
            return False
        case {"role": str(role), "content": str() | [_, *_]} if kind == "message" and role in ROLES:
            return False
        case _:
            pass
    if kind in ("message", CALL, RESULT):
        return True
    is_broken_call = kind in CALLS and native_items.read_call(item) is None
    is_broken_result = kind in RESULTS and native_items.read_result(item) is None
    # Without a call id it belongs to a search that the provider ran itself.
    return (is_broken_call or is_broken_result) and item.get("call_id", "") is not None


def parse_item(item: Mapping[str, Json]) -> PromptMessage:
    """Parse one item; keep it verbatim if no type of part holds all of it."""
    match item:
        case {
            "type": "function_call",
            "call_id": call_id,
            "name": name,
            "arguments": arguments,
            **rest_fields,
        }:
            call = ToolCall(call_id, name, arguments)
            return PromptMessage(role=Role.ASSISTANT, parts=(call, *_fields_to_parts(CALL, rest_fields)))
        case {"type": "function_call_output", "call_id": call_id, "output": output, **rest_fields}:
            parts = (*_parse_output(call_id, output), *_fields_to_parts(RESULT, rest_fields))
            return PromptMessage(role=Role.TOOL, parts=parts)
        case {"type": str(kind)} if is_native(kind) or "call_id" in item:
            parts = _parse_native(item)
            if parts:
                role = Role.TOOL if isinstance(parts[0], ToolResult) else Role.ASSISTANT
                return PromptMessage(role=role, parts=parts)
        # A message: parsed unless one of its parts cannot be.
        case {"role": str(role), "content": content, **rest_fields} if rest_fields in (
            {},
            {"type": "message"},
        ):
            parsed = [Text(content)] if isinstance(content, str) else list(map(_parse_content_part, content))
            parts = tuple([part for part in parsed if part is not None])
            if len(parts) == len(parsed):
                return PromptMessage(role=ROLES[role], parts=parts)
        case _:
            pass
    return PromptMessage(role=Role.ASSISTANT, parts=(Raw(VENDOR, dump(to_plain_json(item))),))


def _fields_to_parts(kind: str, item_fields: Mapping[str, Json]) -> Sequence[Part]:
    """Return the further fields of a function's call or result as a part; none where there are none."""
    fields: dict[str, Json] = {"type": kind}
    for name, value in item_fields.items():
        if name not in ("id", "status", "type") and value is not None:
            fields[name] = value
    return (Raw(EXTRA_FIELDS, dump(to_plain_json(fields))),) if len(fields) > 1 else ()


def _parse_native(item: Mapping[str, Json]) -> tuple[Part, ...]:
    """Parse a native call or result: the part, the other fields of the item, and media; nothing for any other item."""
    output = item.get("output")
    media: Sequence[Part] = ()
    # Its output may be a list, of which only the text is read below.
    if item["type"] == "custom_tool_call_output" and isinstance(output, list):
        result, *media = _parse_output("", output)
        assert isinstance(result, ToolResult)
        item = {**item, "output": result.output}
    elif item["type"] == "computer_call_output" and isinstance(output, Mapping):
        refs = [output.get("image_url"), output.get("file_id")]
        media = [Media("image/*", ref) for ref in refs if ref]
    parsed = native_items.read_call(item) or native_items.read_result(item)
    if parsed is None:
        return ()
    part, fields = parsed
    assert isinstance(fields, Raw)
    return (part, Raw(EXTRA_FIELDS, dump(parse_raw_object(fields))), *media)


def _parse_output(call_id: str, output: Json) -> tuple[Part, ...]:
    """Parse an output: the result with its texts, then its media."""
    if isinstance(output, str):
        return (ToolResult(call_id, output),)
    parts = [_parse_content_part(part) for part in output]
    text = "\n".join([part.text for part in parts if isinstance(part, Text)])
    return (ToolResult(call_id, text), *[part for part in parts if isinstance(part, Media)])


def _parse_content_part(item: Json) -> Part | None:
    """Parse one part of a content list, or return None if no type of part holds all of it."""
    if not isinstance(item, Mapping):
        return None
    fields = remove_breakpoint(item)
    kind = fields.pop("type", None)
    if kind == "input_image" and fields.get("detail") == "auto":
        del fields["detail"]
    match kind, fields:
        case "input_text" | "output_text", {"text": str(text)} if len(fields) == 1:
            return Text(text)
        case "input_image", {"image_url": str(ref)} | {"file_id": str(ref)} if len(fields) == 1:
            return Media("image/*", ref)
        case "input_file", {"file_id": str(ref)} | {"file_url": str(ref)} if len(fields) == 1:
            return Media("application/octet-stream", ref)
        case "input_file", {"filename": "file", "file_data": str(ref)} if len(fields) == 2:
            return Media("application/octet-stream", ref)
        case _:
            return None


def pair_with_fields(parts: Sequence[Part]) -> Iterator[tuple[Part, ItemFields]]:
    """Yield each part with None, but a call or result with the other fields of the item that it came as.

    The raw parts that hold such fields are not yielded.
    """
    all_fields = [extra_fields_of(part) for part in parts]
    result_fields = next((fields for fields in all_fields if fields is not None), None)
    for part, own_fields, next_fields in zip(parts, all_fields, [*all_fields[1:], None], strict=True):
        # Fields of a call are in the part after it; those of a result anywhere in its message.
        if isinstance(part, ToolCall):
            yield part, next_fields
        elif isinstance(part, ToolResult):
            yield part, result_fields
        elif own_fields is None:
            yield part, None


# ── parts written as items ──────────────────────────────────────────────────────────────────────────────────────────


def serialize_call(call: ToolCall, fields: ItemFields) -> dict[str, Json]:
    """Write a call as the item that it came as, or as a function's call where it no longer fits that."""
    item = None if fields is None else native_items.write_call(call, fields)
    if item is not None:
        return item
    return {"type": CALL, "call_id": call.call_id, "name": call.name, "arguments": call.arguments}


def serialize_result(result: ToolResult, media: Sequence[Media], fields: ItemFields) -> dict[str, Json]:
    """Write a result as the item that it came as, or as a function's output where it no longer fits that."""
    item: dict[str, Json] | None = None
    if fields is not None:
        kind = native_items.call_of_result(fields["type"]) or ""
        item = native_items.write_result(result, media, kind, fields)
    return item or {"type": RESULT, "call_id": result.call_id, "output": result.output}


def add_contents_to_result(
    items: list[dict[str, Json]], contents: list[dict[str, Json]]
) -> list[dict[str, Json]]:
    """Return the item of a result with texts and media beside its output, where its type can hold them."""
    result = items[0]
    if result["type"] not in (RESULT, "custom_tool_call_output"):
        return items
    output = [{"type": "input_text", "text": result["output"]}] if result["output"] else []
    return [{**result, "output": [*output, *contents]}]


def serialize_media(media: Media) -> dict[str, Json]:
    """Write media as a part of a content list."""
    ref = media.ref
    if chat_messages.is_image(media):
        key = "image_url" if chat_messages.is_url(ref) else "file_id"
        return {"type": "input_image", "detail": "auto", key: ref}
    if ref.startswith("data:"):
        return {"type": "input_file", "filename": "file", "file_data": ref}
    return {"type": "input_file", "file_url" if chat_messages.is_url(ref) else "file_id": ref}
