"""Parse the messages of model providers into messages of a log.

Supports Chat Completions (`content` as text, parts or None, `tool_calls`, the roles tool and function), items of
Responses, and messages of Anthropic (text or blocks). Each known part becomes a part of the log; its other fields are
kept after it, verbatim, in a `Raw` part of the vendor `EXTRA_FIELDS`, which no codec sends. An unknown part is a `Raw`
of its vendor. Cache marks belong to a request, not to the message, and are dropped. Bytes are never stored: a
`KeepMedia` passed by the caller receives them and returns their reference; without one they are refused.

A *turn* is the keyword arguments of one `ingest`. One message of a provider may become several turns.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from acms.errors import ValidationError
from acms.log import validation
from acms.log.inline_media import KeepMedia, Location, keep_media_bytes, refer_to_media, replace_inline_bytes
from acms.log.native_items import EXTRA_FIELDS, RESPONSES, call_of_result, read_call, read_result
from acms.model import Json, Part, Raw, Reasoning, Text, ToolCall, ToolResult

__all__ = [
    "EXTRA_FIELDS",
    "FIELDS",
    "KNOWN",
    "REASONING_FIELDS",
    "KeepMedia",
    "Turn",
    "is_gemini_content",
    "parse_provider_message",
]

Turn: TypeAlias = dict[str, Any]
"""The keyword arguments of one `ingest`, its idempotency key under "key"."""

WINDOW = "response.compaction"
"""OpenAI's type of a conversation compacted on demand: user messages, and an item that replaces all others."""

FIELDS = frozenset((*validation.MESSAGE_CONTENT, *validation.MESSAGE_ATTRIBUTES, "key"))
"""Fields of a message that `ingest` accepts."""

_OPENAI = frozenset(("name", "refusal", "audio", "function_call", "annotations"))
_ANSWER = frozenset(
    "type id status phase model stop_reason stop_sequence stop_details usage container".split()
)
KNOWN = FIELDS | _OPENAI | _ANSWER | {"idempotency_key"}
"""Fields that a message with a role may have."""
_COPIED_FIELDS = tuple([name for name in validation.MESSAGE_ATTRIBUTES if name != "metadata"])
"""Attributes that are copied as they are; metadata also takes unknown fields."""
_ENVELOPE = ("audio", "annotations", "phase", "model", "stop_reason", "stop_sequence", "stop_details", "usage",
             "container")  # fmt: skip
_EMPTY_VALUES: tuple[Json, ...] = (None, "", [], {})
REASONING_FIELDS = ("reasoning_content", "reasoning", "reasoning_details", "thinking_blocks")
"""Fields in which servers of the chat format return reasoning."""
_CACHE_MARKS = frozenset(("cache_control", "prompt_cache_breakpoint"))
_CHAT_PART_TYPES = frozenset(("image_url", "input_audio", "file"))
_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode


def encode_strict_json(value: Json) -> str:
    """Encode a JSON value; raise `ValidationError` if it is not JSON."""
    try:
        return _encode(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValidationError(f"contains a value that is not JSON: {error}", field="message") from error


def parse_provider_message(
    message: Mapping[str, Any], field: str = "", *, keep: KeepMedia | None = None, strict: bool = False
) -> list[Turn]:
    """Parse a message of a provider, or one of ACMS, into messages of a log.

    An unknown field is kept for the provider that it came from; with `strict` it is an error.

    The result has several messages if a user message holds several tool results. `field` is the name in errors. An
    ACMS message is returned unchanged.
    """
    location = Location(field, keep)
    if message.get("object") == WINDOW:
        return [_read_compacted_window(message, location._replace(vendor=RESPONSES))]
    is_gemini = is_gemini_content(message)
    if not is_gemini and _is_own_message(message):
        return [dict(message)]
    kind = message.get("type", "message")
    if "role" not in message or (isinstance(kind, str) and kind != "message"):
        return [_read_item_message(message, location._replace(vendor=RESPONSES))]
    if is_gemini:
        return _read_content_of_gemini(message, location.at("parts"))
    unknown = sorted(set(message) - KNOWN, key=str)
    if unknown and strict:
        raise unknown_field_error(unknown, field)
    return _read_role_message(message, location, unknown)


def _is_own_message(message: Mapping[str, Any]) -> bool:
    """Return whether a message has the form of ACMS."""
    if "role" not in message or not message.keys() <= FIELDS:
        return False
    return not message.get("tool_calls") and isinstance(message.get("content", ""), str)


def _read_item_message(message: Mapping[str, Any], location: Location) -> Turn:
    """Read an item of Responses, with the arguments of `ingest` beside it."""
    adapter_parts = _adapter_parts(message)
    ingest_fields = {*_COPIED_FIELDS, "key", "idempotency_key"}
    if adapter_parts:
        ingest_fields.add("parts")
    item = {name: value for name, value in message.items() if name not in ingest_fields}
    turn = _read_item(item, location)
    if adapter_parts:
        turn["parts"] = [*turn.get("parts", ()), *adapter_parts]
    return _copy_ingest_fields(turn, message)


def _adapter_parts(item: Mapping[str, Any]) -> Sequence[Raw]:
    """Return the `Raw` parts that an adapter keeps beside an item; items of providers have no such parts."""
    parts: object = item.get("parts")
    if isinstance(parts, list | tuple) and all(isinstance(part, Raw) for part in parts):
        return parts
    return ()


def unknown_field_error(
    unknown: Collection[object], field: str, known_names: Collection[str] = KNOWN
) -> ValidationError:
    """Return the error for the first of the unknown fields of a mapping; `field` is the mapping."""
    from acms.runtime.input_errors import build_unknown_name_error  # few messages have unknown fields

    name = min(map(str, unknown))
    return build_unknown_name_error(f"{field}.{name}" if field else name, "field", sorted(known_names))


def check_privacy_field(message: Mapping[str, Any], field: str) -> None:
    """Refuse a field name that resembles "privacy": the misspelled setting would leave content unprotected."""
    unknown = [name for name in message if isinstance(name, str) and name not in KNOWN]
    if not unknown:
        return
    from difflib import get_close_matches  # few messages have unknown fields

    # A similarity of 0.8 is a misspelling, less is a field of a provider.
    for name in get_close_matches("privacy", unknown, n=1, cutoff=0.8):
        raise unknown_field_error([name], field)


def _copy_ingest_fields(turn: Turn, message: Mapping[str, Any]) -> Turn:
    """Copy the other arguments of `ingest` from a message to a turn; the id given by a provider becomes its key."""
    # An item has no role, and its metadata are the provider's.
    for name in _COPIED_FIELDS if "role" not in message else (*_COPIED_FIELDS, "metadata"):
        if message.get(name) is not None:
            turn.setdefault(name, message[name])
    key = message.get("key", message.get("idempotency_key"))
    if key is None and isinstance(message.get("id"), str):
        key = message["id"] or None
    if key is not None:
        turn["key"] = key
    return turn


# ── messages with a role ────────────────────────────────────────────────────────────────────────────────────────────


def _read_role_message(message: Mapping[str, Any], location: Location, unknown: Sequence[str]) -> list[Turn]:
    """Parse a message of a chat API; tool results in its content become turns of their own before the other parts.

    `unknown` names its unknown fields, which are kept.
    """
    location = location._replace(vendor=_guess_vendor(message))
    name = message.get("name")
    if message["role"] == "function" and isinstance(name, str):  # an older form, in which calls have no ids
        turn = {"role": "tool", "content": message.get("content") or "", "tool_call_id": f"call_{name}"}
        return [_copy_ingest_fields(turn, message)]
    answers, content = _read_contents(message.get("content"), location.at("content"))
    parts = [*_read_reasoning(message, location), *content]
    if message.get("refusal"):
        parts.append(Text(location.at("refusal").text(message["refusal"])))
    parts += _read_calls(message, location)
    own_parts = message.get("parts") or ()
    if not isinstance(own_parts, list | tuple):
        raise ValidationError(
            f"must be a list, not {type(own_parts).__name__}", field=location.at("parts").field
        )
    parts += own_parts
    turn: Turn = {"role": message["role"], "content": ""}
    if message.get("tool_call_id") is not None:
        return [
            _copy_ingest_fields(_make_tool_answer(turn, parts, message["tool_call_id"], location), message)
        ]
    if answers and not parts:
        return _number_keys(answers, message)
    actor = message.get("actor_id") or name
    if actor is not None:
        turn["actor_id"] = location.at("name" if name == actor else "actor_id").name(actor)
    _set_content(turn, parts, _read_envelope(message, location, unknown, parts))
    return _number_keys([*answers, turn], message)


def _read_envelope(
    message: Mapping[str, Any], location: Location, unknown: Sequence[str], parts: list[Part]
) -> dict[str, Json]:
    """Return the other fields of a message; the transcript and the bytes of audio are added to `parts`."""
    extra = {name: message[name] for name in _ENVELOPE if message.get(name)}
    if isinstance(extra.get("audio"), Mapping):
        extra["audio"] = _read_audio_answer(extra["audio"], location.at("audio"), parts)
    if message.get("status") not in (None, "completed"):
        extra["status"] = message["status"]
    unknown_fields: dict[str, Json] = {}
    for name in unknown:
        if name not in _CACHE_MARKS and message[name] not in _EMPTY_VALUES:
            unknown_fields[name] = message[name]
    if unknown_fields:
        extra["fields"] = {location.vendor: replace_inline_bytes(unknown_fields, location)}
    return extra


def _read_reasoning(message: Mapping[str, Any], location: Location) -> list[Part]:
    """Return the reasoning of a model from the first field that has it: servers repeat it in several fields."""
    if message["role"] != "assistant":
        return []
    parts: list[Part] = []
    blocks = _only_mappings(message.get("thinking_blocks"))
    blocks = [block for block in blocks if isinstance(block.get("thinking"), str)]
    for block in blocks:
        parts += _read_thinking(block, location.at("thinking_blocks"))
    if blocks:
        return parts
    for detail in _only_mappings(message.get("reasoning_details")):
        text = detail.get("text") or detail.get("summary")
        if _is_text(text):
            is_signed = str(detail.get("format")).startswith("anthropic")
            signature = detail.get("signature") if is_signed else None
            text = location.at("reasoning_details").text(text)
            parts.append(Reasoning(text, signature if isinstance(signature, str) else None))
    for name in ("reasoning_content", "reasoning"):
        if not parts and _is_text(message.get(name)):
            parts.append(Reasoning(location.at(name).text(message[name])))
    return parts


def _is_text(value: object) -> bool:
    return isinstance(value, str) and value != ""


def _only_mappings(value: object) -> list[Mapping[str, Any]]:
    return [block for block in value if isinstance(block, Mapping)] if isinstance(value, list | tuple) else []


def is_gemini_content(message: Mapping[str, Any]) -> bool:
    """Return whether a message is a content of Gemini: its parts are mappings that name no type."""
    parts = message.get("parts")
    if not isinstance(parts, list | tuple) or not parts:
        return False
    return all(isinstance(block, Mapping) and "type" not in block for block in parts)


def _read_content_of_gemini(message: Mapping[str, Any], location: Location) -> list[Turn]:
    """Read a content of Gemini; answers to calls come first, each a message of its own."""
    from acms.log import gemini  # most programs never need this module

    answers, parts = gemini.read_content_parts(message, location, encode_strict_json)
    turns: list[Turn] = [{"role": "tool", "content": "", "parts": answer} for answer in answers]
    if parts or not answers:
        turn: Turn = {"role": "assistant" if message["role"] == "model" else message["role"], "content": ""}
        _set_content(turn, parts, {})
        turns.append(turn)
    return _number_keys(turns, {name: value for name, value in message.items() if name != "parts"})


def _read_audio_answer(audio: Mapping[str, Any], location: Location, parts: list[Part]) -> Json:
    """Add the transcript and the bytes of an audio answer to `parts`, as text and as media; return its other fields."""
    if audio.get("transcript"):
        parts.append(Text(location.at("transcript").text(audio["transcript"])))
    if audio.get("data"):
        parts.append(keep_media_bytes(audio["data"], "audio/*", location.at("data")))
    return {name: value for name, value in audio.items() if name not in ("transcript", "data")}


def _read_contents(content: object, location: Location) -> tuple[list[Turn], list[Part]]:
    """Return the results of tools in a content, each a message of its own, and its other parts."""
    if isinstance(content, str):
        return [], [Text(content)] if content else []
    if content is not None and not isinstance(content, list | tuple):
        raise validation.content_type_error(content, location.field)
    answers: list[Turn] = []
    parts: list[Part] = []
    for index, block in enumerate(content or ()):
        at = location.at(f"[{index}]")
        if isinstance(block, Mapping) and block.get("type") == "tool_result":
            answers.append(_read_tool_result(block, at))
        else:
            parts += _read_part(block, at)
    return answers, parts


def _read_calls(message: Mapping[str, Any], location: Location) -> Iterator[Part]:
    """Yield the calls of tools in a message, also one in the older form `function_call`, which has no id."""
    calls, function_call = message.get("tool_calls"), message.get("function_call")
    if calls is not None and not isinstance(calls, list | tuple):
        raise ValidationError("must be a list", field=location.at("tool_calls").field)
    for index, call in enumerate(calls or ()):
        yield from _read_tool_call(call, location.at(f"tool_calls[{index}]"))
    if isinstance(function_call, Mapping):
        call = {"id": f"call_{function_call.get('name')}", **function_call}
        yield from _read_tool_call(call, location.at("function_call"))


def _number_keys(turns: list[Turn], message: Mapping[str, Any]) -> list[Turn]:
    """Copy the fields of a message to the turns made from it; keys after the first get a number as suffix."""
    numbered = [_copy_ingest_fields(turn, message) for turn in turns]
    for index, turn in enumerate(numbered[1:], 1):
        if "key" in turn:
            turn["key"] = f"{turn['key']}:{index}"
    return numbered


def _set_content(turn: Turn, parts: list[Part], extra: Mapping[str, Json]) -> None:
    """Put parts and extra fields into a turn; if all parts are texts they become its content."""
    if extra:
        parts = [*parts, Raw(EXTRA_FIELDS, encode_strict_json(dict(extra)))]
    if parts and all(type(part) is Text for part in parts):
        turn["content"] = "\n".join([part.text for part in parts if isinstance(part, Text)])
        return
    if parts and isinstance(parts[0], Text):
        turn["content"], parts = parts[0].text, parts[1:]
    if parts:
        turn["parts"] = parts


def _make_tool_answer(turn: Turn, parts: Sequence[Part], call_id: Json, location: Location) -> Turn:
    """Make a turn the answer to a call: its texts become the output, and media become parts after it."""
    turn["tool_call_id"] = location.at("tool_call_id").name(call_id)
    turn["content"] = "\n".join([part.text for part in parts if isinstance(part, Text)])
    others = [part for part in parts if not isinstance(part, Text)]
    if others:
        turn["parts"] = others
    return turn


def _guess_vendor(message: Mapping[str, Any]) -> str:
    """Guess the vendor of a message from its fields and parts; unknown parts are kept under this name."""
    content = message.get("content")
    kinds = [part.get("type") for part in _only_mappings(content)]
    kinds = [kind for kind in kinds if isinstance(kind, str)]
    if any(kind.startswith(("input_", "output_")) for kind in kinds):
        return "openai-chat" if "input_audio" in kinds else "openai-responses"
    if isinstance(content, str) or not _CHAT_PART_TYPES.isdisjoint(kinds):
        return "openai-chat"
    if message.get("role") in ("tool", "developer"):
        return "openai-chat"
    has_chat_field = any(message.get(name) for name in ("tool_calls", *_OPENAI, *REASONING_FIELDS))
    return "openai-chat" if has_chat_field else "anthropic"


def _read_tool_call(call: object, location: Location) -> Iterator[Part]:
    """Read a call of a function, or of a custom tool, whose input is any text."""
    if not isinstance(call, Mapping):
        raise ValidationError(f"must be a mapping, not {type(call).__name__}", field=location.field)
    custom = call.get("custom")
    if isinstance(custom, Mapping):
        call_id, at = location.at("id").name(call.get("id")), location.at("custom")
        yield ToolCall(
            call_id, at.at("name").name(custom.get("name")), at.at("input").text(custom.get("input"))
        )
        yield Raw(EXTRA_FIELDS, encode_strict_json({"id": call.get("id"), "type": "custom"}))
        return
    # A thought signature of Gemini, as its chat endpoint nests it.
    signature: object = call
    for name in ("extra_content", "google", "thought_signature"):
        signature = signature.get(name) if isinstance(signature, Mapping) else None
    if _is_text(signature):
        signature = location.at("extra_content").text(signature)
        yield Raw("gemini", encode_strict_json({"thoughtSignature": signature}))
    yield validation.parse_tool_call(call, location.field)


# ── parts of a content ──────────────────────────────────────────────────────────────────────────────────────────────


def _read_part(block: object, location: Location) -> list[Part]:
    """Parse one part of a content into its text or media, and its other fields."""
    if isinstance(block, str):
        return [Text(location.text(block))]
    if not isinstance(block, Mapping) or not isinstance(block.get("type"), str):
        raise ValidationError('must be a text or an object with a "type"', field=location.field)
    reader = _READERS.get(block["type"])
    parts = None if reader is None else reader(block, location)
    return (
        [_make_raw_part(block, location)] if parts is None else [part for part in parts if part != Text("")]
    )


def _extra_parts(block: Mapping[str, Any], *parsed_names: str) -> list[Part]:
    """Return the fields of a block except the parsed ones, in a `Raw` part; no part if none is left.

    Cache marks and empty or default values are left out.
    """
    skipped_names = {*parsed_names, *_CACHE_MARKS, "type"}
    extra: dict[str, Json] = {}
    for name, value in block.items():
        if name not in skipped_names and value not in (None, [], {}, "auto"):
            extra[name] = value
    return [Raw(EXTRA_FIELDS, encode_strict_json({"type": block["type"], **extra}))] if extra else []


def _read_text(block: Mapping[str, Any], location: Location) -> list[Part]:
    extra_parts = _extra_parts(block, "text")
    if extra_parts and location.vendor != "anthropic":
        # Fields of a text, such as citations, fit only their vendor; without this field it is Anthropic.
        extra_parts = _extra_parts({**block, "vendor": location.vendor}, "text")
    return [Text(location.at("text").text(block.get("text"))), *extra_parts]


def _read_refusal(block: Mapping[str, Any], location: Location) -> list[Part]:
    text = location.at("refusal").text(block.get("refusal"))
    return [Text(text), Raw(EXTRA_FIELDS, encode_strict_json({"type": "refusal"}))]


def _read_thinking(block: Mapping[str, Any], location: Location) -> list[Part]:
    signature = block.get("signature")
    text = location.at("thinking").text(block.get("thinking"))
    if signature is not None:
        signature = location.at("signature").text(signature)
    return [Reasoning(text, signature), *_extra_parts(block, "thinking", "signature")]


def _read_tool_use(block: Mapping[str, Any], location: Location) -> list[Part]:
    call = {"id": block.get("id"), "name": block.get("name"), "arguments": block.get("input") or {}}
    return [validation.parse_tool_call(call, location.field), *_extra_parts(block, "id", "name", "input")]


def _read_image_url(block: Mapping[str, Any], location: Location) -> list[Part]:
    image = block.get("image_url")
    inner: Mapping[str, Any] = image if isinstance(image, Mapping) else {"url": image}
    media = refer_to_media(inner.get("url"), "image/*", location.at("image_url"))
    return [media, *_extra_parts({**block, **inner}, "url", "image_url")]


def _read_input_image(block: Mapping[str, Any], location: Location) -> list[Part] | None:
    """Parse an image of Responses by its URL or the id of its file; None if it has neither."""
    if block.get("image_url") is not None:
        return _read_image_url(block, location)
    if block.get("file_id") is None:
        return None
    media = refer_to_media(block["file_id"], "image/*", location.at("file_id"))
    return [media, *_extra_parts(block, "file_id")]


def _read_input_audio(block: Mapping[str, Any], location: Location) -> list[Part]:
    audio, at = block.get("input_audio"), location.at("input_audio")
    if not isinstance(audio, Mapping):
        raise ValidationError("must be an object", field=at.field)
    return [keep_media_bytes(audio.get("data"), f"audio/{audio.get('format') or '*'}", at.at("data"))]


def _read_file(block: Mapping[str, Any], location: Location) -> list[Part] | None:
    """Parse a file of Chat Completions or Responses by its bytes, URL or id; None if it has none of these."""
    file, at = block, location
    if block["type"] == "file":
        file, at = block.get("file"), location.at("file")
    if not isinstance(file, Mapping):
        raise ValidationError("must be an object", field=at.field)
    mime = "application/octet-stream"
    for name in ("file_data", "file_url", "file_id"):
        value = file.get(name)
        if value is None:
            continue
        is_base64 = name == "file_data" and isinstance(value, str) and not value.startswith("data:")
        keep_or_refer = keep_media_bytes if is_base64 else refer_to_media
        media = keep_or_refer(value, mime, at.at(name))
        return [media, *_extra_parts({"type": block["type"], **file}, name)]
    return None


def _read_media_block(block: Mapping[str, Any], location: Location) -> list[Part] | None:
    """Parse an image or a document of Anthropic; None for an unknown kind of source.

    For a document of texts, its other fields are kept with the number of these texts, from which the codec rebuilds the
    block.
    """
    source, at = block.get("source"), location.at("source")
    mime = "image/*" if block["type"] == "image" else "application/pdf"
    match source:
        case {"type": "base64", "data": data}:
            media = keep_media_bytes(data, str(source.get("media_type") or mime), at.at("data"))
            return [media, *_extra_parts(block, "source")]
        case {"type": "url", "url": ref} | {"type": "file", "file_id": ref}:
            media = refer_to_media(ref, mime, at.at("url" if source["type"] == "url" else "file_id"))
            return [media, *_extra_parts(block, "source")]
        case {"type": "text", "data": data}:
            field = "data"
            texts: list[Part] = [Text(at.at("data").text(data))] if data else []
        case {"type": "content", "content": content}:
            field = "content"
            texts = _read_contents(content, at.at("content"))[1]
        case _:
            return None
    return [*texts, *_extra_parts({**block, "source": {**source, field: len(texts)}})]


def _read_compaction(block: Mapping[str, Any], location: Location) -> list[Part]:
    """Keep a compaction in the form in which it can be sent back, without fields that an SDK adds as null."""
    fields = {name: value for name, value in block.items() if name not in _CACHE_MARKS and value is not None}
    # Its content may be null: that marks a failed compaction.
    return [_make_raw_part({**fields, "content": block.get("content")}, location)]


def _read_search_result(block: Mapping[str, Any], location: Location) -> list[Part]:
    _, parts = _read_contents(block.get("content"), location.at("content"))
    return [*parts, *_extra_parts({**block, "content": len(parts)})]


def _read_tool_result(block: Mapping[str, Any], location: Location) -> Turn:
    """Read the result of a tool as a message of its own."""
    _, parts = _read_contents(block.get("content"), location.at("content"))
    call_id = location.at("tool_use_id").name(block.get("tool_use_id"))
    parts += _extra_parts(block, "tool_use_id", "content", "is_error")
    turn = _make_tool_answer({"role": "tool", "content": ""}, parts, call_id, location)
    if block.get("is_error") is True:
        # The field `tool_call_id` of a turn cannot say that the call failed: the result becomes a part.
        failed_result = ToolResult(turn.pop("tool_call_id"), turn["content"], True)
        return {**turn, "content": "", "parts": [failed_result, *turn.get("parts", ())]}
    return turn


_READERS: dict[str, Callable[[Mapping[str, Any], Location], list[Part] | None]] = {
    "text": _read_text, "input_text": _read_text, "output_text": _read_text, "refusal": _read_refusal,
    "thinking": _read_thinking, "tool_use": _read_tool_use, "image_url": _read_image_url,
    "input_image": _read_input_image, "input_audio": _read_input_audio, "file": _read_file, "input_file": _read_file,
    "image": _read_media_block, "document": _read_media_block, "search_result": _read_search_result,
    "compaction": _read_compaction,
}  # fmt: skip


# ── items of Responses ──────────────────────────────────────────────────────────────────────────────────────────────


def _read_item(item: Mapping[str, Any], location: Location) -> Turn:
    """Parse an item that is no message: calls and outputs into such parts, every other item into a verbatim part."""
    kind = item.get("type")
    if kind is None and item and item.keys() <= {"id", "type"}:  # an item reference may omit its type
        item = {**item, "type": "item_reference"}
        return {"role": "assistant", "content": "", "parts": [_make_raw_part(item, location)]}
    if not isinstance(kind, str):
        raise ValidationError("needs a role", field=location.field)
    if kind == "function_call":
        fields = {"id": item.get("call_id"), "name": item.get("name"), "arguments": item.get("arguments")}
        call = validation.parse_tool_call(fields, location.field, id_field="call_id")
        return {"role": "assistant", "content": "", "parts": [call, *_extra_item_parts(item, *fields)]}
    if kind == "function_call_output" and item.get("call_id") is not None:
        _, parts = _read_contents(item.get("output"), location.at("output"))
        parts += _extra_item_parts(item, "output")
        return _make_tool_answer({"role": "tool", "content": ""}, parts, item["call_id"], location)
    if call_of_result(kind) is not None:
        return _read_native_result(item, location)
    item = _item_without_bytes(item, location)
    answer = read_result(item)
    if answer is not None:
        return {"role": "tool", "content": "", "parts": answer}
    parts = read_call(item) or [Raw(location.vendor, encode_strict_json(item))]
    return {"role": "assistant", "content": "", "parts": parts}


def _read_native_result(item: Mapping[str, Any], location: Location) -> Turn:
    """Parse the result of a native call with its media; keep it verbatim if it answers no call."""
    output, at = item.get("output"), location.at("output")
    contents: list[Part] = []
    if item["type"] == "custom_tool_call_output" and isinstance(output, list | tuple):
        contents = _read_contents(output, at)[1]
        item = {**item, "output": "\n".join([part.text for part in contents if isinstance(part, Text)])}
    elif item["type"] == "computer_call_output" and isinstance(output, Mapping):
        contents = _read_input_image({"type": "computer_screenshot", **output}, at) or []
        item = {name: value for name, value in item.items() if name != "output"}
    item = _item_without_bytes(item, location)
    answer = read_result(item)
    if answer is None:
        raw = Raw(location.vendor, encode_strict_json(item))
        return {"role": "assistant", "content": "", "parts": [raw, *contents]}
    media = [part for part in contents if not isinstance(part, Text)]
    return {"role": "tool", "content": "", "parts": [*answer, *media]}


def _read_compacted_window(message: Mapping[str, Any], location: Location) -> Turn:
    """Parse a conversation that was compacted on demand; every item of it is kept verbatim."""
    output = message.get("output")
    if not isinstance(output, list | tuple) or not output:
        raise ValidationError("must be a list of items", field=location.at("output").field)
    parts: list[Part] = []
    for index, item in enumerate(output):
        at = location.at(f"output[{index}]")
        if not isinstance(item, Mapping):
            raise ValidationError(f"must be a mapping, not {type(item).__name__}", field=at.field)
        parts.append(_make_raw_part(item, at))
    # Its time and metadata are in the form of the provider, which `ingest` does not accept.
    fields = {name: value for name, value in message.items() if name not in ("created_at", "metadata")}
    if not fields.get("id"):
        fields["id"] = output[-1].get("id")  # its last item identifies it
    return _copy_ingest_fields({"role": "assistant", "content": "", "parts": parts}, fields)


def _extra_item_parts(item: Mapping[str, Any], *parsed_names: str) -> list[Part]:
    """Return the fields of an item except those of a call or its output, its id and its status."""
    return _extra_parts(item, "call_id", "id", "status", *parsed_names, *FIELDS)


def _make_raw_part(block: Mapping[str, Any], location: Location) -> Raw:
    """Keep a part or an item verbatim, except that bytes within it are kept elsewhere."""
    return Raw(location.vendor, encode_strict_json(_item_without_bytes(block, location)))


def _item_without_bytes(block: Mapping[str, Any], location: Location) -> dict[str, Json]:
    """Return an item in which bytes are references."""
    try:
        return dict(replace_inline_bytes(block, location))
    except RecursionError as error:
        raise ValidationError("is nested too deep", field=location.field) from error
