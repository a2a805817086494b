"""Conversion between content blocks of the Messages API and parts of messages, and the tokens that each of them costs.

Raw tokens are those of o200k_base plus constants, every one charged by the block, so that two messages cost the same
apart and joined. The framing of Claude is not public; the constants are guesses on the safe side, which a calibration
then corrects with everything else:

- `BLOCK`: the heading of a message, for every block of it.
- `CALL`: the tags that Claude once wrote calls in: function_calls, invoke, parameter, function_results. A call also
  pays for the placeholder that it gets if it has no result.
- A result: the tags that a result without a call is wrapped in. System text: the tags that wrap it as user text.
- An id: a token for two characters, because ids are random characters.
- Signed reasoning: its text, or a token for four characters of its signature, which holds the text when it is omitted.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from acms.log.native_items import EXTRA_FIELDS
from acms.model import Json, Media, Part, Raw, Reasoning, Text, ToolCall, ToolResult
from acms.ports import TokenCounter
from acms.providers.codecs.checks import reject_constant
from acms.text import chat_messages
from acms.text.chat_messages import NO_RESULT, ORPHAN

__all__ = [
    "REMINDER",
    "Prices",
    "Sizes",
    "block_to_part",
    "dump",
    "extra_fields_of_raw",
    "is_reasoning_part",
    "is_server_tool_block",
    "other_fields",
    "parse_call_arguments",
    "parse_json_text",
    "part_to_block",
    "passage_to_block",
    "raw_to_block",
    "restore_user_blocks",
    "server_tool_reference",
    "split_recalled_passages",
    "text_of",
    "to_sendable_media",
]

BLOCK = 4
CALL = 24
TOOL = 12
SEAM = 4
"""Tokens that a text between two tags may have more than the text and the tags counted apart."""
REMINDER = ("<system-reminder>\n", "\n</system-reminder>")
"""Tags around system text that is sent as text of the user, as the provider's guide recommends."""

DOCUMENT = 10_000
"""Tokens of a document of unknown length: some pages, each of them read as text and as an image."""

PER_BYTE = 3
"""The most tokens that Claude makes of a byte.

Words, capitals and the ends of words are marked by tokens of their own, so there can be more tokens than bytes: the
two bytes of a letter that its vocabulary lacks are written in lower case (three bytes) behind a mark for the capital,
between two for the word. Found by searching all of Unicode with ctok 1.3.0, a reconstruction of the tokenizer.
"""

ID = (12, 64)
"""The fewest and the most characters that an id is charged for."""

IMAGES = frozenset(("image/jpeg", "image/png", "image/gif", "image/webp"))
PDF = "application/pdf"

_DATA = re.compile(r"data:([a-z]+/[a-z0-9.+-]+);base64,([A-Za-z0-9+/=]+)\Z")
_REDACTED = "redacted_thinking"
_COMPACTION = frozenset(("content", "encrypted_content", "signature", "tool_changes"))
_CACHE_CONTROL = "cache_control"
_PART_TYPES = frozenset(("text", "thinking", "tool_use", "tool_result", "image_url", "input_audio", "file"))
"""Types of blocks that have a part of their own, and of Chat Completions. A `Raw` part that holds one is not sent."""
USER_ONLY = frozenset(("image", "document", "search_result", "container_upload"))
"""Blocks that only the user can have."""

dump = json.JSONEncoder(ensure_ascii=False).encode
"""Write JSON as a model is taken to read it."""


def _parse_finite_float(digits: str) -> float:
    number = float(digits)
    return number if math.isfinite(number) else reject_constant(digits)


_decode = json.JSONDecoder(parse_constant=reject_constant, parse_float=_parse_finite_float).decode


def _loads(text: str) -> Any:
    """Return the value of a JSON text with U+FFFD for NUL, which providers refuse."""
    value = _decode(text)
    return _replace_nul(value) if "\\u0000" in text else value


def _replace_nul(value: Any) -> Any:
    if isinstance(value, str):
        return value.replace("\0", "\ufffd")
    if isinstance(value, dict):
        return {_replace_nul(key): _replace_nul(item) for key, item in value.items()}
    return list(map(_replace_nul, value)) if isinstance(value, list) else value


def parse_call_arguments(text: str) -> tuple[dict[str, Json], str, bool]:
    """Return the arguments of a call as an object, its JSON, and whether the text was a JSON object.

    No text counts as an empty object; a text that is no object is sent under the name `_raw`.
    """
    try:
        value = _loads(text) if text.strip() else {}
        if isinstance(value, dict):
            serialized = dump(value)
            serialized.encode()  # raises UnicodeEncodeError, a ValueError, for lone surrogates
            return value, serialized, True
    except (ValueError, RecursionError):
        pass
    value = {"_raw": text}
    return value, dump(value), False


def prefix_user_name(name: str, first_part: Part) -> list[Part]:
    """Return the text of a user with the name before it."""
    return (
        [Text(f"{name}: {first_part.text}")]
        if isinstance(first_part, Text)
        else [Text(f"{name}:"), first_part]
    )


def parse_json_text(text: str) -> Json:
    """Return the value of a JSON text; None if it is invalid or cannot be sent."""
    try:
        return _loads(text)
    except (ValueError, RecursionError):
        return None


def raw_to_block(raw: Raw) -> dict[str, Json] | None:
    """Return the block that an item of Anthropic is sent as; None for other vendors, or if it would be refused."""
    item = parse_json_text(raw.json) if raw.vendor == "anthropic" else None
    match item:
        case {"type": "redacted_thinking", **rest_fields}:
            return (
                item
                if rest_fields.keys() == {"data"}
                and rest_fields["data"]
                and isinstance(rest_fields["data"], str)
                else None
            )
        case {"type": "compaction", **rest_fields}:
            return item if rest_fields.keys() <= _COMPACTION and rest_fields.get("content") != "" else None
        # Any other block, without its cache mark; types that a part holds are excluded.
        case {"type": str(kind), **rest_fields} if kind not in _PART_TYPES:
            return {
                "type": kind,
                **{name: value for name, value in rest_fields.items() if name != _CACHE_CONTROL},
            }
        case _:
            return None


def is_server_tool_block(kind: str) -> bool:
    """Return whether a block is about a tool that the provider runs itself: a call of one, or its result."""
    return kind.endswith(("_tool_use", "_tool_result"))


def server_tool_reference(part: Part) -> tuple[str, bool] | None:
    """Return the call id of a part that is a call or a result of the provider's own tools, and whether it is a result.

    Return None for other parts.
    """
    block = raw_to_block(part) if isinstance(part, Raw) else None
    if block is None or not is_server_tool_block(block["type"]):
        return None
    is_result = "tool_use_id" in block
    return str(block.get("tool_use_id" if is_result else "id")), is_result


def is_allowed_block(block: Mapping[str, Json], *, of_user: bool) -> bool:
    """Return whether the user, or else the assistant, can have a block."""
    kind = block["type"]
    if of_user:
        return not is_server_tool_block(kind) and kind not in (_REDACTED, "compaction")
    return kind not in USER_ONLY


_FIELDS_OF_PART = {
    "text": frozenset(("type", "text", _CACHE_CONTROL)),
    "thinking": frozenset(("type", "thinking", "signature", _CACHE_CONTROL)),
    "tool_use": frozenset(("type", "id", "name", "input", _CACHE_CONTROL)),
}
"""Fields of a block that its part holds."""


def extra_fields_of_raw(raw: Raw) -> dict[str, Json] | None:
    """Return the other fields of a block that stand behind its part; None for anything else."""
    match parse_json_text(raw.json):
        case {"type": "text" | "thinking" | "tool_use", **fields} if "vendor" not in fields:
            return fields
        case _:
            return None


def other_fields(block: Mapping[str, Json]) -> dict[str, Json]:
    """Return the fields of a block in a payload that its part does not hold."""
    held_fields = _FIELDS_OF_PART.get(block.get("type", ""))
    return (
        {}
        if held_fields is None
        else {name: value for name, value in block.items() if name not in held_fields}
    )


def restore_user_blocks(parts: Sequence[Part]) -> Sequence[Part]:
    """Return parts in which documents and search results of the user are their original blocks again.

    A log holds such a block as its texts and media, which every codec can send, followed by its other fields.
    """
    if not any(isinstance(part, Raw) and part.vendor == EXTRA_FIELDS for part in parts):
        return parts
    restored: list[Part] = []
    for part in parts:
        block_fields = (
            parse_json_text(part.json) if isinstance(part, Raw) and part.vendor == EXTRA_FIELDS else None
        )
        block = _restore_user_block(block_fields, restored) if isinstance(block_fields, dict) else None
        restored.append(part if block is None else Raw("anthropic", dump(block)))
    return restored


def _restore_user_block(fields: dict[str, Any], restored_parts: list[Part]) -> dict[str, Json] | None:
    """Return the original block from its other fields; its contents are taken from the end of `restored_parts`.

    In `fields`, the contents are replaced by the number of parts that hold them. Return None if it is no such block.
    """
    match fields:
        case {"type": "document", "source": {"type": "text", "data": int(number)} as source}:
            contents = _take_blocks(restored_parts, number)
            text = "" if contents is None else text_of(contents)
            return {**fields, "source": {**source, "data": text}} if text.strip() else None
        case {"type": "document", "source": {"type": "content", "content": int(number)}}:
            contents = _take_blocks(restored_parts, number)
            return (
                None if contents is None else {**fields, "source": {"type": "content", "content": contents}}
            )
        case {"type": "search_result", "content": int(number)}:
            contents = _take_blocks(restored_parts, number)
            return None if contents is None else {**fields, "content": contents}
        case {"type": "document"} if (
            "source" not in fields and restored_parts and isinstance(restored_parts[-1], Media)
        ):
            contents = _take_blocks(restored_parts, 1)
            return None if contents is None else {**contents[0], **fields}
        case _:
            return None


def _take_blocks(restored_parts: list[Part], number: int) -> list[dict[str, Json]] | None:
    """Remove the last `number` parts from a list and return them as blocks.

    Return None, and remove nothing, if there are fewer or one of them cannot be sent as a text or a file.
    """
    if not 0 < number <= len(restored_parts):
        return None
    blocks: list[dict[str, Json]] = []
    for part in restored_parts[-number:]:
        sendable = to_sendable_media(part) if isinstance(part, Media) else part
        if not isinstance(sendable, Text | Media):
            return None
        blocks.append(part_to_block(sendable))
    del restored_parts[-number:]
    return blocks


def is_effective_compaction(raw: Raw) -> bool:
    """Return whether an item is a compaction with a summary of the messages before it.

    A compaction that failed has no summary: it replaces nothing, and the provider accepts it anywhere.
    """
    block = raw_to_block(raw)
    return block is not None and block["type"] == "compaction" and block.get("content") is not None


def is_signed(raw: Raw) -> bool:
    """Return whether an item has a signature: the vendor refuses a signed compaction that does not come first."""
    block = raw_to_block(raw)
    return block is not None and bool(block.get("signature"))


def redacted_thinking_data(raw: Raw) -> str | None:
    """Return the hidden reasoning that a vendor's item holds; None when it is another one."""
    item = raw_to_block(raw)
    return None if item is None or item["type"] != _REDACTED else item["data"]


def is_reasoning_part(part: Part) -> bool:
    """Return whether a part is reasoning, open or hidden."""
    return isinstance(part, Reasoning) or (isinstance(part, Raw) and redacted_thinking_data(part) is not None)


def to_sendable_media(media: Media) -> Media | None:
    """Return media as the API takes them, perhaps with another MIME type; None if it does not take them."""
    kind = media.mime.partition("/")[0]
    inline = _DATA.match(media.ref)
    if inline:
        return _with_mime(media, inline[1]) if inline[1] in IMAGES or inline[1] == PDF else None
    if media.ref.startswith(("https://", "http://", "file_")):  # "file_" begins the id of an uploaded file
        if kind == "image":
            return _with_mime(media, "image/*")
        if media.mime == PDF:
            return media
    return None


def _with_mime(media: Media, mime: str) -> Media:
    return media if media.mime == mime else Media(mime, media.ref, media.sha256, media.tokens)


def describe_media(media: Media) -> str:
    """Return the words that replace media which cannot be sent."""
    return f"[{media.mime}]" if media.ref.startswith("data:") else f"[{media.mime}: {media.ref}]"


def _serialize_media_source(media: Media) -> dict[str, Json]:
    """Return the source of media: inline data, an uploaded file or a URL."""
    inline = _DATA.match(media.ref)
    if inline:
        return {"type": "base64", "media_type": inline[1], "data": inline[2]}
    if media.ref.startswith("file_"):
        return {"type": "file", "file_id": media.ref}
    return {"type": "url", "url": media.ref}


def part_to_block(part: Part) -> dict[str, Json]:
    """Write a part, in normal form, as a content block."""
    match part:
        case Text():
            return {"type": "text", "text": part.text}
        case Reasoning():
            return {"type": "thinking", "thinking": part.text, "signature": part.signature}
        case ToolCall():
            return {
                "type": "tool_use",
                "id": part.call_id,
                "name": part.name,
                "input": parse_call_arguments(part.arguments)[0],
            }
        case ToolResult():
            block: dict[str, Json] = {"type": "tool_result", "tool_use_id": part.call_id}
            if part.output:
                block["content"] = part.output
            if part.is_error:
                block["is_error"] = True
            return block
        case Media():
            return {
                "type": "document" if part.mime == PDF else "image",
                "source": _serialize_media_source(part),
            }
        case Raw():
            return raw_to_block(part) or {}


def split_recalled_passages(part: Part) -> list[Text]:
    """Return the recalled passages that a text is made of; none when it is anything else."""
    passages = chat_messages.parse_passages(part.text) if isinstance(part, Text) else []
    return [Text(chat_messages.wrap_passage(source, text)) for source, text in passages]


def passage_to_block(passage: Text) -> dict[str, Json]:
    """Write a recalled passage as a search result, which answers can cite by its source; any other text as a text."""
    passages = chat_messages.parse_passages(passage.text)
    if len(passages) != 1 or not passages[0][1].strip():
        return part_to_block(passage)
    source, text = passages[0]
    return {
        "type": "search_result",
        "source": source,
        "title": "Memory",
        "content": [{"type": "text", "text": text}],
        "citations": {"enabled": True},
    }


def block_to_part(block: Mapping[str, Json]) -> Part | None:
    """Parse a content block, or return None if no part represents it."""
    match block:
        case {"type": "text", "text": str(text)}:
            return Text(text)
        case {
            "type": "search_result",
            "title": "Memory",
            "source": str(source),
            "content": [{"type": "text", "text": str(text)}],
        }:
            return Text(chat_messages.wrap_passage(source, text))
        case {"type": "thinking", "thinking": str(text), "signature": str(signature)}:
            return Reasoning(text, signature)
        case {"type": "redacted_thinking", "data": str(data)}:
            return Raw("anthropic", dump({"type": _REDACTED, "data": data}))
        case {"type": "compaction"}:
            return Raw("anthropic", dump({key: block[key] for key in block if key != _CACHE_CONTROL}))
        case {"type": "tool_use", "id": str(call_id), "name": str(name), "input": dict(arguments)}:
            return ToolCall(call_id, name, dump(arguments))
        case {"type": "tool_result", "tool_use_id": str(call_id)}:
            return ToolResult(call_id, text_of(block.get("content", "")), block.get("is_error") is True)
        case {"type": str()}:
            return _parse_plain_media(block) or _parse_item(block)
        case _:
            return None


def _parse_plain_media(block: Mapping[str, Json]) -> Media | None:
    """Return the media of a block that holds nothing else, or None for any other block."""
    match block:
        case {"type": "image" | "document" as kind, "source": dict(source), **rest_fields} if (
            rest_fields.keys() <= {_CACHE_CONTROL}
        ):
            return _parse_media(kind, source)
        case _:
            return None


def _parse_item(block: Mapping[str, Json]) -> Raw | None:
    item = raw_to_block(Raw("anthropic", dump(dict(block))))
    return None if item is None else Raw("anthropic", dump(item))


def _parse_media(kind: str, source: Mapping[str, Any]) -> Media | None:
    """Return the media of a block's source, or None for an unknown kind of source."""
    mime = PDF if kind == "document" else "image/*"
    match source:
        case {"type": "base64", "media_type": str(mime), "data": str(data)}:
            return Media(mime, f"data:{mime};base64,{data}")
        case {"type": "url", "url": str(url)}:
            return Media(mime, url)
        case {"type": "file", "file_id": str(file)}:
            return Media(mime, file)
        case _:
            return None


def text_of(content: Json) -> str:
    """Return the text of a content that is a text or a list of blocks, a line for each block."""
    if isinstance(content, str):
        return content
    return "\n".join([block["text"] for block in content if block.get("type") == "text"])


class Sizes:
    """Token costs that callers stated for media, by the reference of the media.

    They are remembered because a payload has no field for them, and a payload is counted too.
    """

    KEPT = 4_096

    def __init__(self) -> None:
        self._tokens_of_ref: dict[str, int] = {}

    def state(self, media: Media) -> None:
        """Remember the stated cost of media."""
        if media.tokens > 0:
            if len(self._tokens_of_ref) >= self.KEPT:
                self._tokens_of_ref.clear()
            self._tokens_of_ref[_shorten_media_key(media.ref)] = media.tokens

    def stated_tokens(self, ref: str) -> int | None:
        """Return the stated cost of media, or None."""
        return self._tokens_of_ref.get(_shorten_media_key(ref))


def _shorten_media_key(ref: str) -> str:
    """Return a key of bounded length: a reference may be inline data of megabytes."""
    return ref if len(ref) <= 256 else f"{len(ref)}:{ref[:128]}{ref[-128:]}"


class Prices:
    """The raw tokens of parts and of the blocks that they become."""

    def __init__(self, counter: TokenCounter, *, image: int, sizes: Sizes, chars_per_token: int = 4) -> None:
        self._count = counter.count
        #: Characters of a signature for each raw token; an id takes half as many.
        self._chars_per_token = chars_per_token
        self._image = image
        self._sizes = sizes
        self._bytes = isinstance(counter, BytesCounter)
        self._result = BLOCK + self._around(ORPHAN)
        self._call = CALL + self._result + counter.count(NO_RESULT)
        self._names: dict[str, int] = {}
        #: Additional tokens of a system text.
        self.reminder = self._around(REMINDER)

    def _around(self, tags: tuple[str, str]) -> int:
        return self._count(tags[0]) + self._count(tags[1]) + SEAM

    def text(self, text: str) -> int:
        """Return the cost of a text; 0 for white space, which is left out."""
        return self._count(text) + BLOCK if text and not text.isspace() else 0

    def name(self, name: str) -> int:
        """Return the cost of a user's name: before a text it is part of the text, else a block of its own."""
        cost = self._names.get(name)
        if cost is None:
            if len(self._names) >= Sizes.KEPT:
                self._names.clear()
            cost = self._names[name] = self._count(f"{name}: ") + BLOCK
        return cost

    def id(self, text: str) -> int:
        """Return the cost of an id."""
        length = min(max(len(text), ID[0]), ID[1])
        return PER_BYTE * length if self._bytes else 2 * length // self._chars_per_token + 1

    def call(self, call_id: str, name: str, arguments: str) -> int:
        """Return the cost of a call, which pays for the frame of its answer as well."""
        return self._call + self.id(call_id) + self._count(name) + self._count(arguments)

    def result(self, output: str) -> int:
        """Return the cost of a tool result; 0 for the placeholder of a missing result, which the call has paid."""
        if output == NO_RESULT:
            return 0
        return self._result + (self._count(output) if output and not output.isspace() else 0)

    def signed(self, text: str, signature: str) -> int:
        """Return the cost of reasoning that is sent back."""
        hidden = len(signature) if self._bytes else len(signature) // self._chars_per_token
        return BLOCK + max(self._count(text) if text else 0, hidden)

    def fields(self, fields: Mapping[str, Json] | None) -> int:
        """Return the cost of fields that are sent back beside those of a part."""
        return BLOCK + self._count(dump(fields)) if fields else 0

    def raw(self, raw: Raw) -> int:
        """Return the cost of an item that is sent verbatim: hidden reasoning, media in a document, or all content."""
        data = redacted_thinking_data(raw)
        if data is not None:
            return self.signed("", data)
        block = raw_to_block(raw) or {}
        source = block.get("source") if block.get("type") in ("image", "document") else None
        media = _parse_media(block["type"], source) if isinstance(source, Mapping) else None
        if media is None:
            return BLOCK + self._count(dump(block))
        return self.media(media) + self._count(dump({**block, "source": None}))

    def media(self, media: Media) -> int:
        """Return the cost of media that are sent: the stated cost, otherwise the likely maximum."""
        stated = media.tokens or self._sizes.stated_tokens(media.ref)
        return BLOCK + (stated or (DOCUMENT if media.mime == PDF else self._image))

    def block(self, block: Mapping[str, Json], *, system: bool = False) -> int:
        """Return the cost of a block of a payload."""
        part = block_to_part(block)
        match part:
            case Text():
                cost = self.text(part.text)
                return cost + self.reminder if system and cost else cost
            case Reasoning():
                return self.signed(part.text, part.signature or "")
            case ToolCall():
                return self.call(part.call_id, part.name, part.arguments)
            case ToolResult():
                return self.result(part.output)
            case Media():
                return self.media(part)
            case Raw():
                return self.raw(part)
            case None:
                return BLOCK + self._count(dump(block))

    def tool(self, tool: Mapping[str, Json]) -> int:
        """Return the cost of a tool as it is sent."""
        if "input_schema" not in tool:
            return TOOL + self._count(dump(tool))
        described = tool.get("description") or ""
        return (
            TOOL
            + self._count(tool["name"])
            + (self._count(described) if described else 0)
            + self._count(dump(tool["input_schema"]))
        )


class BytesCounter:
    """Counts the maximum number of tokens that Claude can make of any text of this length."""

    name = "claude-bytes"

    def count(self, text: str) -> int:
        """Return `PER_BYTE` for every byte of its UTF-8 form."""
        return PER_BYTE * len(text.encode("utf-8", "surrogatepass"))
