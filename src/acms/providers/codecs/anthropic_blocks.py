"""Content blocks of the Messages API and the parts that they stand for, and what each of them costs.

Raw tokens are those of o200k_base plus constants, every one charged by the block, so that two messages cost the same
apart and joined. The framing of Claude is not public; the constants are guesses on the safe side, which a calibration
then corrects with everything else:

- `BLOCK`: the heading of a message, for every block of it.
- `CALL`: the tags that Claude once wrote calls in: function_calls, invoke, parameter, function_results. A call also
  pays for the answer that it gets when none was given.
- An answer: the marks around one without a call. Text of the system: the marks around it when the user says it.
- An id: a token for two characters, for it is noise.
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
    "sanitize_tool_name",
    "server_tool_reference",
    "split_recalled_passages",
    "text_of",
    "to_sendable_media",
]

BLOCK = 4
CALL = 24
TOOL = 12
SEAM = 4
"""Tokens that a text and the marks around it may have more than each of them apart."""
REMINDER = ("<system-reminder>\n", "\n</system-reminder>")
"""Around system text that has to be told by the user: the marks that the provider's guide has for it."""

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
_NAME = re.compile(r"[^a-zA-Z0-9_-]")
_REDACTED = "redacted_thinking"
_COMPACTION = frozenset(("content", "encrypted_content", "signature", "tool_changes"))
_MARK = "cache_control"
_OTHERS = frozenset(("text", "thinking", "tool_use", "tool_result", "image_url", "input_audio", "file"))
"""Blocks that a part stands for, and those of Chat Completions: a `Raw` part that holds one is not sent."""
USERS = frozenset(("image", "document", "search_result", "container_upload"))
"""Blocks that only the user can have."""

dump = json.JSONEncoder(ensure_ascii=False).encode
"""Write JSON as a model is taken to read it."""


def _reject_constant(constant: str) -> float:
    raise ValueError(constant)


def _parse_finite_float(digits: str) -> float:
    number = float(digits)
    return number if math.isfinite(number) else _reject_constant(digits)


_loads = json.JSONDecoder(parse_constant=_reject_constant, parse_float=_parse_finite_float).decode


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


def sanitize_tool_name(text: str) -> str:
    """Return the name of a tool with nothing in it that a provider refuses."""
    return _NAME.sub("_", text)[:64] or "tool"


def prefix_user_name(who: str, said: Part) -> list[Part]:
    """Return the text of a user with the name before it."""
    return [Text(f"{who}: {said.text}")] if isinstance(said, Text) else [Text(f"{who}:"), said]


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
        case {"type": "redacted_thinking", **more}:
            return (
                item if more.keys() == {"data"} and more["data"] and isinstance(more["data"], str) else None
            )
        case {"type": "compaction", **more}:
            return item if more.keys() <= _COMPACTION and more.get("content") != "" else None
        # Any other block, without its cache mark; types that a part holds are excluded.
        case {"type": str(kind), **more} if kind not in _OTHERS:
            return {"type": kind, **{name: value for name, value in more.items() if name != _MARK}}
        case _:
            return None


def is_server_tool_block(kind: str) -> bool:
    """Return whether a block is about a tool that the provider runs itself: a call of one, or its result."""
    return kind.endswith(("_tool_use", "_tool_result"))


def server_tool_reference(one: Part) -> tuple[str, bool] | None:
    """Return the id of a call of a tool of the provider's own, and whether this is its result; None for other parts."""
    block = raw_to_block(one) if isinstance(one, Raw) else None
    if block is None or not is_server_tool_block(block["type"]):
        return None
    result = "tool_use_id" in block
    return str(block.get("tool_use_id" if result else "id")), result


def is_allowed_block(block: Mapping[str, Json], *, user: bool) -> bool:
    """Return whether the user, or else the assistant, can have a block."""
    kind = block["type"]
    if user:
        return not is_server_tool_block(kind) and kind not in (_REDACTED, "compaction")
    return kind not in USERS


_HELD = {
    "text": frozenset(("type", "text", _MARK)),
    "thinking": frozenset(("type", "thinking", "signature", _MARK)),
    "tool_use": frozenset(("type", "id", "name", "input", _MARK)),
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
    held = _HELD.get(block.get("type", ""))
    return {} if held is None else {name: value for name, value in block.items() if name not in held}


def restore_user_blocks(parts: Sequence[Part]) -> Sequence[Part]:
    """Return parts in which documents and search results of the user are their original blocks again.

    A log holds such a block as its texts and media, which every codec can send, followed by its other fields.
    """
    if not any(isinstance(one, Raw) and one.vendor == EXTRA_FIELDS for one in parts):
        return parts
    restored: list[Part] = []
    for one in parts:
        block_fields = (
            parse_json_text(one.json) if isinstance(one, Raw) and one.vendor == EXTRA_FIELDS else None
        )
        block = _restore_user_block(block_fields, restored) if isinstance(block_fields, dict) else None
        restored.append(one if block is None else Raw("anthropic", dump(block)))
    return restored


def _restore_user_block(given: dict[str, Any], before: list[Part]) -> dict[str, Json] | None:
    """Return the original block from its other fields; its contents are taken from the end of `before`.

    In `given`, a number stands for the contents: how many parts they are. None if it is no such block.
    """
    match given:
        case {"type": "document", "source": {"type": "text", "data": int(number)} as source}:
            contents = _take_blocks(before, number)
            text = "" if contents is None else text_of(contents)
            return {**given, "source": {**source, "data": text}} if text.strip() else None
        case {"type": "document", "source": {"type": "content", "content": int(number)}}:
            contents = _take_blocks(before, number)
            return None if contents is None else {**given, "source": {"type": "content", "content": contents}}
        case {"type": "search_result", "content": int(number)}:
            contents = _take_blocks(before, number)
            return None if contents is None else {**given, "content": contents}
        case {"type": "document"} if "source" not in given and before and isinstance(before[-1], Media):
            contents = _take_blocks(before, 1)
            return None if contents is None else {**contents[0], **given}
        case _:
            return None


def _take_blocks(before: list[Part], number: int) -> list[dict[str, Json]] | None:
    """Remove the last `number` parts from a list and return them as blocks.

    Return None, and remove nothing, if there are fewer or one of them cannot be sent as a text or a file.
    """
    if not 0 < number <= len(before):
        return None
    blocks: list[dict[str, Json]] = []
    for part in before[-number:]:
        sendable = to_sendable_media(part) if isinstance(part, Media) else part
        if not isinstance(sendable, Text | Media):
            return None
        blocks.append(part_to_block(sendable))
    del before[-number:]
    return blocks


def is_effective_compaction(raw: Raw) -> bool:
    """Return whether an item is a compaction with a summary; one without is accepted anywhere and has no content."""
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


def is_reasoning_part(one: Part) -> bool:
    """Return whether a part is reasoning, open or hidden."""
    return isinstance(one, Reasoning) or (isinstance(one, Raw) and redacted_thinking_data(one) is not None)


def to_sendable_media(media: Media) -> Media | None:
    """Return media as the API takes them, perhaps with another MIME type; None if it does not take them."""
    kind = media.mime.partition("/")[0]
    inline = _DATA.match(media.ref)
    if inline:
        return _with_mime(media, inline[1]) if inline[1] in IMAGES or inline[1] == PDF else None
    if media.ref.startswith(("https://", "http://", "file_")):
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


def part_to_block(one: Part) -> dict[str, Json]:
    """Write a part, in normal form, as a content block."""
    match one:
        case Text():
            return {"type": "text", "text": one.text}
        case Reasoning():
            return {"type": "thinking", "thinking": one.text, "signature": one.signature}
        case ToolCall():
            return {
                "type": "tool_use",
                "id": one.call_id,
                "name": one.name,
                "input": parse_call_arguments(one.arguments)[0],
            }
        case ToolResult():
            found: dict[str, Json] = {"type": "tool_result", "tool_use_id": one.call_id}
            if one.output:
                found["content"] = one.output
            if one.is_error:
                found["is_error"] = True
            return found
        case Media():
            return {
                "type": "document" if one.mime == PDF else "image",
                "source": _serialize_media_source(one),
            }
        case Raw():
            return raw_to_block(one) or {}


def split_recalled_passages(one: Part) -> list[Text]:
    """Return the recalled passages that a text is made of; none when it is anything else."""
    found = chat_messages.parse_passages(one.text) if isinstance(one, Text) else []
    return [Text(chat_messages.wrap_passage(source, text)) for source, text in found]


def passage_to_block(one: Text) -> dict[str, Json]:
    """Write a recalled passage as a search result, which answers cite by its source; any other text as it is."""
    found = chat_messages.parse_passages(one.text)
    if len(found) != 1 or not found[0][1].strip():
        return part_to_block(one)
    source, text = found[0]
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
            return Raw("anthropic", dump({key: block[key] for key in block if key != _MARK}))
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
        case {"type": "image" | "document" as kind, "source": dict(source), **more} if more.keys() <= {_MARK}:
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
    return "\n".join([one["text"] for one in content if one.get("type") == "text"])


class Sizes:
    """Stated costs of media, by where the media are kept: a payload has no field for them.

    A cost stated for a reference is the same in every prompt, so remembering it changes only the count of a payload
    made elsewhere.
    """

    KEPT = 4_096

    def __init__(self) -> None:
        self._known: dict[str, int] = {}

    def state(self, media: Media) -> None:
        """Remember the stated cost of media."""
        if media.tokens > 0:
            if len(self._known) >= self.KEPT:
                self._known.clear()
            self._known[_shorten_media_key(media.ref)] = media.tokens

    def of(self, ref: str) -> int | None:
        """Return the stated cost of media, or None."""
        return self._known.get(_shorten_media_key(ref))


def _shorten_media_key(ref: str) -> str:
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

    def _around(self, marks: tuple[str, str]) -> int:
        return self._count(marks[0]) + self._count(marks[1]) + SEAM

    def text(self, text: str) -> int:
        """Return the cost of a text: none when there is nothing in it but white space."""
        return self._count(text) + BLOCK if text and not text.isspace() else 0

    def name(self, who: str) -> int:
        """Return what a name before the text of a user costs, or, before something else, a text of its own."""
        cost = self._names.get(who)
        if cost is None:
            if len(self._names) >= Sizes.KEPT:
                self._names.clear()
            cost = self._names[who] = self._count(f"{who}: ") + BLOCK
        return cost

    def id(self, text: str) -> int:
        """Return the cost of an id."""
        length = min(max(len(text), ID[0]), ID[1])
        return PER_BYTE * length if self._bytes else 2 * length // self._chars_per_token + 1

    def call(self, id_: str, of: str, written: str) -> int:
        """Return the cost of a call, which pays for the frame of its answer as well."""
        return self._call + self.id(id_) + self._count(of) + self._count(written)

    def result(self, output: str) -> int:
        """Return the cost of an answer: none when it stands for one that was not given, which the call has paid."""
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
        stated = media.tokens or self._sizes.of(media.ref)
        return BLOCK + (stated or (DOCUMENT if media.mime == PDF else self._image))

    def block(self, one: Mapping[str, Json], *, system: bool = False) -> int:
        """Return the cost of a block of a payload."""
        found = block_to_part(one)
        match found:
            case Text():
                cost = self.text(found.text)
                return cost + self.reminder if system and cost else cost
            case Reasoning():
                return self.signed(found.text, found.signature or "")
            case ToolCall():
                return self.call(found.call_id, found.name, found.arguments)
            case ToolResult():
                return self.result(found.output)
            case Media():
                return self.media(found)
            case Raw():
                return self.raw(found)
            case None:
                return BLOCK + self._count(dump(one))

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
