"""The format of Gemini's `generateContent`: contents of the user and the model, with parts."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from acms.errors import PayloadError, ValidationError
from acms.log import gemini, validation
from acms.log.native_items import EXTRA_FIELDS, item_text
from acms.model import Json, Media, Part, Raw, Reasoning, Role, Text, ToolCall, ToolResult
from acms.ports import RequestCounter, TokenCounter
from acms.prompt_types import CacheMark, CacheRates, Count, Exactness, PromptMessage, Tool, Usage
from acms.providers.codecs import anthropic_blocks as blocks
from acms.providers.codecs.answers import get_field, get_token_count
from acms.providers.codecs.anthropic_turns import (
    BEGINNING,
    Arranged,
    Arranging,
    SentMessage,
    SentPart,
    Turn,
    speaker_name,
)
from acms.providers.codecs.calibration import Calibration
from acms.providers.codecs.checks import require
from acms.providers.codecs.framing import check_strings, serialize_tool
from acms.providers.codecs.given_fields import Fields, Key, given_fields, key_of_part
from acms.providers.codecs.request_count import CountingCodec, request_counts
from acms.providers.tokens import default_counter
from acms.text.chat_messages import NO_RESULT, sanitize_tool_name

__all__ = ["Gemini"]

ESTIMATE = 1.6
"""Tokens of Gemini for each raw one, until there are reports. The vocabulary of Gemma 3, with which Google's own SDK
counts for Gemini 2 and 3, has 0.9 to 1.2 in 21 languages, 1.4 in Armenian (at most 1.57 in a passage), 1.1 in code and
1.0 in JSON, logs and tables."""
IMAGE = 4_128
"""Tokens of media that state none: sixteen tiles of 258, as an image of 3,072 by 3,072 pixels has."""

_NUMBER = re.compile(r"[0-9]{2,}")
VENDOR = "gemini"
SIGNATURE = "thoughtSignature"
REASONING = "reasoning is left out: what the model needs of it lies in its thought signatures"

UNSIGNED_CALLS = "calls of other models are sent with the provider's stand-in for a thought signature"
SKIP = "skip_thought_signature_validator"
"""The signature that the provider documents for calls its models did not make (ai.google.dev, "Thought signatures").

Gemini 3 and later refuse the first call of a step without one.
"""
_NEEDS_SIGNATURE = re.compile(r"(?:models/)?gemini-(?:[3-9]|\d\d)")
_DATA = re.compile(r"data:([a-z]+/[a-z0-9.+-]+);base64,([A-Za-z0-9+/=]+)\Z")
_FILE = re.compile(r"gs://|https://")
_YOUTUBE = re.compile(r"https://(?:www\.|m\.)?(?:youtube\.com|youtu\.be)/")
_SERVER_TOOL_FIELDS = frozenset(("executableCode", "codeExecutionResult", "toolCall", "toolResponse"))
"""Parts that the model makes of tools of the provider's own: sent back word for word."""
_SYSTEM = frozenset((Role.SYSTEM, Role.DEVELOPER))


class _Turns(Arranging):
    """Turns as Gemini takes them: no system message later on, and signatures in place of signed reasoning."""

    _vendor = VENDOR

    def __init__(self) -> None:
        super().__init__(has_system_messages=False, sends_reasoning=False, cites_passages=False)
        #: Whether a signature stands in front of the part that is read.
        self._is_signed = False

    def _sendable_part(self, part: Part, role: Role) -> Part | None:
        """Return a part as Gemini takes it from a role, or None to leave it out; reasoning must be signed."""
        match part:
            case Reasoning(text) if self._is_signed:
                return Reasoning(text) if text else None
            case Reasoning():
                return self._omit_with_note(REASONING)
            case Raw():
                item = raw_to_payload_part(part) if role is Role.ASSISTANT else None
                return self._item_to_text(part) if item is None else Raw(VENDOR, blocks.dump(item))
            case Media() if role is Role.ASSISTANT:  # an image that the model made
                return to_gemini_media(part) or super()._sendable_part(part, role)
            case _:
                return super()._sendable_part(part, role)

    def _split_parts(self, message: PromptMessage) -> Iterator[Part]:
        """Yield the parts of a message; a thought signature belongs to the part after it.

        A signature whose part is not sent is left out with it; one without a part is sent on an empty text.
        """
        signature: Raw | None = None
        for part in message.parts:
            if isinstance(part, Raw) and read_thought_signature(part) is not None:
                if signature is not None:
                    yield _detach_signature(signature)
                signature = part
                continue
            self._is_signed = signature is not None
            if signature is not None:
                carrier, signature = signature, None
                if _is_blank_text(part) or self._sendable_part(part, message.role) is None:
                    continue  # the signature is left out with its part
                yield carrier
            yield part
        if signature is not None:
            yield _detach_signature(signature)

    def _trim_turn(self, turn: Turn, *, is_continued: bool) -> None:
        """Do nothing: Gemini has no rule about the place of reasoning, which is only sent with its signature."""

    def _precedes_call(self, part: Part) -> bool:
        return isinstance(part, Raw) and read_thought_signature(part) is not None

    def _sendable_media(self, media: Media) -> Media | None:
        return to_gemini_media(media)


def read_thought_signature(raw: Raw) -> str | None:
    """Return the thought signature that an item of Gemini holds, for the part behind it; None for another item."""
    if raw.vendor != VENDOR:
        return None
    match blocks.parse_json_text(raw.json):
        case {"thoughtSignature": str(signature), **rest_fields} if signature and not rest_fields:
            return signature
        case _:
            return None


def _is_blank_text(part: Part) -> bool:
    return isinstance(part, Text) and not part.text.strip()


def raw_to_payload_part(raw: Raw) -> dict[str, Json] | None:
    """Return the part that an item of Gemini is sent as, a thought signature among them; None for another item."""
    signature = read_thought_signature(raw)
    if signature is not None:
        return {SIGNATURE: signature}
    match blocks.parse_json_text(raw.json) if raw.vendor == VENDOR else None:
        case {"text": "", "thoughtSignature": str(signature), **rest_fields} as item if (
            signature and not rest_fields
        ):
            return item
        case dict() as item if not _SERVER_TOOL_FIELDS.isdisjoint(item) and SIGNATURE not in item:
            return item
        case _:
            return None


def _detach_signature(raw: Raw) -> Raw:
    """Return a signature without a part, on an empty text: otherwise the next part would seem to be the signed one."""
    return Raw(VENDOR, blocks.dump({"text": "", SIGNATURE: read_thought_signature(raw)}))


def signature_to_raw(signature: str) -> Raw:
    """Return a thought signature as it is kept in front of the part that carries it."""
    return Raw(VENDOR, blocks.dump({SIGNATURE: signature}))


def _with_signed_call(message: SentMessage) -> SentMessage:
    """Return a message whose first call has a signature: the provider's stand-in where another model made the call."""
    shown = message.sent_parts
    first_call = next(
        (index for index, sent_part in enumerate(shown) if isinstance(sent_part.part, ToolCall)), None
    )
    if message.role is not Role.ASSISTANT or first_call is None:
        return message
    part_before = shown[first_call - 1].part if first_call else None
    if isinstance(part_before, Raw) and read_thought_signature(part_before) is not None:
        return message
    stand_in = SentPart(signature_to_raw(SKIP), shown[first_call].message_index)
    return message._replace(sent_parts=(*shown[:first_call], stand_in, *shown[first_call:]))


def to_gemini_media(media: Media) -> Media | None:
    """Return media as a part can hold them: inline, or a file that the provider has or fetches; None for others."""
    inline = _DATA.match(media.ref)
    if inline:
        return media if media.mime == inline[1] else Media(inline[1], media.ref, media.sha256, media.tokens)
    is_recognised = not media.mime.endswith("*") or _YOUTUBE.match(media.ref)
    return media if is_recognised and _FILE.match(media.ref) else None


class _Counter:
    """Counts tokens of o200k_base, but one for each digit, as in Gemini's vocabulary; o200k_base joins three digits."""

    name = "o200k_base, digits"

    def __init__(self) -> None:
        self._count = default_counter().count

    def count(self, text: str) -> int:
        """Return the number of tokens of a text."""
        return self._count(text) + sum(len(run) - -(-len(run) // 3) for run in _NUMBER.findall(text))


class Gemini(CountingCodec):
    """Prompts for Gemini, as arguments of `client.models.generate_content` of google-genai: `contents` and `config`.

    Leading messages of the system and the developer become the system instruction, a later one is told by the user,
    marked as a reminder. Answers follow their calls in a content of their own. A thought signature is a `Raw` part of
    the vendor "gemini", `{"thoughtSignature": …}`, in front of the part that carries it; it is sent back as it came.

    The tokenizer does not come with a package. Raw tokens are those of o200k_base, each digit one of its own, and of a
    cautious frame, and a budget is compared with their bound by `calibration`, which begins with 1.6 and learns from
    `usage`. Media cost what they state, else what a large image does: state it for audio and video.
    """

    name = "gemini"
    vendors: tuple[str, ...] = (VENDOR,)
    search_results = False
    marks_only = implicit_mark = marks_history = binds_reasoning = False
    #: Rates of the provider for reads from its prompt cache; writing to it is free.
    rates = CacheRates(cached=0.1, write=1.0, long=1.0)

    def __init__(
        self,
        model: str,
        *,
        request_counter: RequestCounter | None = None,
        calibration: Calibration | None = None,
        margin: float = 0.02,
    ) -> None:
        self.request_counts = request_counts(request_counter)
        self.model = validation.validate_name(model, "model")
        self.counter: TokenCounter = _Counter()
        self.calibration = calibration or Calibration(ESTIMATE, margin=margin)
        self._sizes = blocks.Sizes()
        self._prices = blocks.Prices(self.counter, image=IMAGE, sizes=self._sizes)
        self._beginning = self._prices.text(BEGINNING)
        #: Whether it refuses a call without a thought signature.
        self._needs_signatures = _NEEDS_SIGNATURE.match(self.model) is not None
        self._stand_in = self._prices.signed("", SKIP) if self._needs_signatures else 0

    # ── requests ────────────────────────────────────────────────────────────────────────────────────────────────────

    def normal(self, messages: Sequence[PromptMessage]) -> tuple[PromptMessage, ...]:
        """Return the messages as the provider can have them."""
        return tuple([message for turn in self._arrange(messages).turns for message in turn.messages()])

    def notes(self, messages: Sequence[PromptMessage]) -> tuple[str, ...]:
        """Describe the changes that `normal` makes to the messages, each kind of change once."""
        return self._arrange(messages).notes

    def _arrange(self, messages: Sequence[PromptMessage]) -> Arranged:
        """Arrange messages as turns; add a stand-in for a missing signature, for models that demand one."""
        arranged = _Turns().arrange(messages)
        if not self._needs_signatures:
            return arranged
        turns = tuple([_with_signed_call(turn) for turn in arranged.turns])
        if turns == arranged.turns:
            return arranged
        return Arranged(turns, (*arranged.notes, UNSIGNED_CALLS))

    def render(
        self,
        messages: Sequence[PromptMessage],
        *,
        tools: Sequence[Tool] = (),
        marks: Sequence[CacheMark] = (),
    ) -> dict[str, Json]:
        """Return `contents` and `config`: system instruction and tools; the provider caches prefixes without marks.

        `PayloadError` when the provider would refuse it: nothing that the user or the model says.
        """
        turns = self._arrange(messages).turns
        fields = given_fields(messages, _extra_fields_of_raw)
        config: dict[str, Json] = {}
        if turns and turns[0].role is Role.SYSTEM:
            (system,) = turns[0].messages()
            turns = turns[1:]
            config["systemInstruction"] = {"parts": self._serialize_parts(system, {}, {})}
        if tools:
            config["tools"] = [
                {"functionDeclarations": [serialize_tool(tool, "parametersJsonSchema") for tool in tools]}
            ]
        payload: dict[str, Json] = {"contents": self._serialize_turns(turns, fields)}
        if config:
            payload["config"] = config
        self.check(payload)
        return payload

    def _serialize_turns(self, turns: Sequence[SentMessage], fields: Mapping[Key, Fields]) -> list[Json]:
        """Serialize turns as contents of the user and the model."""
        tool_names: dict[str, str] = {}
        contents: list[Json] = []
        for message in [message for turn in turns for message in turn.messages()]:
            role = "model" if message.role is Role.ASSISTANT else "user"
            contents.append({"role": role, "parts": self._serialize_parts(message, tool_names, fields)})
        return contents

    def _serialize_parts(
        self, message: PromptMessage, tool_names: dict[str, str], fields: Mapping[Key, Fields]
    ) -> list[Json]:
        """Serialize the parts of a message.

        `tool_names` collects the names of called tools by call id, since a result must name its tool. A signature
        is a field of the part after it. `fields` are the extra fields that parts came with.
        """
        serialized: list[Json] = []
        signature: dict[str, Json] = {}
        for part in message.parts:
            held_signature = read_thought_signature(part) if isinstance(part, Raw) else None
            if held_signature is not None:
                signature = {SIGNATURE: held_signature}
                continue
            if isinstance(part, ToolCall):
                tool_names[part.call_id] = part.name
            if isinstance(part, Media):
                self._sizes.state(part)
            item = _serialize_part(part, tool_names)
            for name, value in fields.get(key_of_part(part), {}).items():
                # Extra fields of an object go into it; what the part states itself wins.
                inner = item.get(name)
                item[name] = {**value, **inner} if isinstance(inner, dict) else value
            serialized.append({**item, **signature})
            signature = {}
        return serialized

    def parse(self, payload: Mapping[str, Json]) -> tuple[PromptMessage, ...]:
        """Return the messages of a payload in normal form, without sources; `PayloadError` for another format."""
        self.check(payload)
        messages: list[PromptMessage] = []
        system = payload.get("config", {}).get("systemInstruction")
        if system:
            messages.append(PromptMessage(role=Role.SYSTEM, parts=tuple(_parse_parts(system["parts"]))))
        for content in payload["contents"]:
            parts = tuple(_parse_parts(content["parts"]))
            role = Role.ASSISTANT if content["role"] == "model" else Role.USER
            if any(isinstance(part, ToolResult) for part in parts):
                role = Role.TOOL
            messages.append(PromptMessage(role=role, parts=parts))
        return tuple(messages)

    def check(self, payload: Mapping[str, Json]) -> None:
        """Raise `PayloadError` if the API would refuse a payload: shapes, roles, and calls without their answers."""
        contents: Json = payload.get("contents", ())
        is_list = isinstance(contents, list) and contents
        require(is_list, "must be a list of contents, and not empty: give at least one message", "contents")
        open_calls: list[tuple[str, str]] = []
        previous_role = ""
        for index, content in enumerate(contents):
            path = ("contents", index)
            _check_content(content, *path)
            answers = _ids_and_names(content["parts"], "functionResponse")
            is_answered = sorted(answers) == sorted(open_calls)
            require(is_answered, "every call must be answered by the next content, once", *path)
            open_calls = _ids_and_names(content["parts"], "functionCall")
            may_call = content["role"] == "model" and previous_role != "model"
            problem = "only the model calls tools, behind a content of the user"
            require(may_call or not open_calls, problem, *path)
            previous_role = content["role"]
        require(not open_calls, "every call must be answered by the next content", "contents")
        require(contents[0]["role"] == "user", "the first content must be the user's", "contents[0].role")
        check_strings(payload)

    # ── costs ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def cost(self, message: PromptMessage) -> int:
        """Return the raw tokens of one message; an upper bound where it has to be mapped."""
        parts = message.parts
        if message.tokens and len(parts) == 1 and message.counter == self.counter.name:
            # The stored count of a single text or result, as in most messages, is used.
            only = parts[0]
            if isinstance(only, Text) and message.role not in _SYSTEM and message.name is None:
                return message.tokens + blocks.BLOCK
            if isinstance(only, ToolResult) and only.output != NO_RESULT:
                return message.tokens + self._prices.result("")
        tokens = sum([self._count_part(part, message.role) for part in parts])
        if not tokens:
            return 0
        if message.role in _SYSTEM:
            return tokens + self._prices.reminder * len(parts)
        name = speaker_name(message)
        return tokens + self._prices.name(name) if name else tokens

    def _count_part(self, part: Part, role: Role) -> int:
        """Return the cost of one part as a message of this role sends it."""
        prices = self._prices
        match part:
            case Text():
                return prices.text(part.text)
            case ToolResult():
                return prices.result(part.output)
            case ToolCall():
                name = sanitize_tool_name(part.name)
                _, arguments, _ = blocks.parse_call_arguments(part.arguments)
                # Its result repeats the name.
                return prices.call(part.call_id, f"{name} {name}", arguments) + self._stand_in
            case Media():
                media = None if role in _SYSTEM else to_gemini_media(part)
                return prices.text(blocks.describe_media(part)) if media is None else prices.media(media)
            case Raw() if part.vendor == EXTRA_FIELDS:
                return prices.fields(_extra_fields_of_raw(part))
            case Raw():
                return self._count_item(part, role)
            case Reasoning():  # sent when it is signed
                return prices.text(part.text)

    def _count_item(self, raw: Raw, role: Role) -> int:
        """Return the cost of a raw part: sent verbatim, as text, or as the signature of the part after it."""
        item = raw_to_payload_part(raw) if role is Role.ASSISTANT else None
        if item is None:
            return 0 if raw.vendor == VENDOR else self._prices.text(item_text(raw))
        if SIGNATURE not in item:
            return blocks.BLOCK + self.counter.count(blocks.dump(item))
        if item[SIGNATURE] == SKIP and self._needs_signatures:
            return 0  # the cost of the call includes the stand-in
        return self._prices.signed("", item[SIGNATURE])

    def base(self, tools: Sequence[Tool] = ()) -> int:
        """Return the raw tokens of everything besides messages, and of the text that may be added at the beginning."""
        return self._base([serialize_tool(tool, "parametersJsonSchema") for tool in tools]) + self._beginning

    def _base(self, declarations: Sequence[Json]) -> int:
        # The frame of a request and the instructions that come with tools are not published: both are estimates.
        tokens = 8 + (200 if declarations else 0)
        return tokens + sum(
            [blocks.TOOL + self.counter.count(blocks.dump(declaration)) for declaration in declarations]
        )

    def _count_payload(self, payload: Mapping[str, Json]) -> Count:
        tools = payload.get("config", {}).get("tools", ())
        base = self._base([declaration for tool in tools for declaration in tool["functionDeclarations"]])
        tool_tokens = base - self._base(())
        raw_tokens = base + self._beginning
        for message in self.parse(payload):
            if message.role is Role.USER and message.parts[0] == Text(BEGINNING):
                raw_tokens -= self._beginning  # counted once with the base and once with the message
            raw_tokens += self.cost(message)
        for content in payload["contents"]:
            for part in content["parts"]:
                if _SERVER_TOOL_FIELDS.isdisjoint(part):
                    raw_tokens += self._prices.fields(gemini.other_fields(part))
        upper = self.calibration.upper(raw_tokens, tool_tokens)
        return Count(tokens=raw_tokens, exactness=Exactness.CALIBRATED, upper_bound=upper, tools=tool_tokens)

    def cached(self, tokens: int) -> int:
        """Return how many tokens of an unchanged prefix are read from the cache: from 4,096 on, where all models do."""
        return tokens if tokens >= 4_096 else 0

    def diagnosed(self, payload: Mapping[str, Json], previous: str | None) -> dict[str, Json]:
        """Return the payload as it was: the API does not say why its cache missed."""
        return dict(payload)

    def usage(self, usage: object) -> Usage:
        """Read a response or its usage metadata, an SDK's object or a mapping; `ValidationError` when it is none."""
        metadata = get_field(usage, "usage_metadata") or get_field(usage, "usageMetadata") or usage
        total = get_token_count(metadata, "prompt_token_count", "promptTokenCount")
        cached = get_token_count(metadata, "cached_content_token_count", "cachedContentTokenCount") or 0
        if total is None:
            raise ValidationError(
                "has no prompt token count: pass the response, or its usage metadata", field="usage"
            )
        return Usage(input_tokens=total, cached_tokens=cached)


def _extra_fields_of_raw(raw: Raw) -> Fields | None:
    """Return the other fields of a part that stand behind it; None for anything else."""
    match blocks.parse_json_text(raw.json):
        case {"type": gemini.FIELDS, "fields": dict() as fields}:
            return fields
        case _:
            return None


def _check_content(content: Json, *path: str | int) -> None:
    """Raise `PayloadError` for a content without a valid role, without parts, or with an empty text."""
    is_content = isinstance(content, Mapping) and content.get("role") in ("user", "model")
    require(is_content, "must be a content of the user or the model", *path)
    parts: Json = content.get("parts", ())
    is_list = isinstance(parts, list) and parts and all(isinstance(part, Mapping) for part in parts)
    require(is_list, "must be a list of parts, and not empty", *path, "parts")
    require({"text": ""} not in parts, "a text must say something", *path, "parts")


def _ids_and_names(parts: Sequence[Mapping[str, Any]], kind: str) -> list[tuple[str, str]]:
    """Return the ids and names of the calls, or of the answers, among some parts."""
    functions = [part[kind] for part in parts if kind in part]
    return [(str(function.get("id")), str(function.get("name"))) for function in functions]


def _serialize_part(part: Part, tool_names: Mapping[str, str]) -> dict[str, Json]:
    """Write a part in normal form."""
    match part:
        case ToolCall(call_id, name, arguments):
            args, _, _ = blocks.parse_call_arguments(arguments)
            return {"functionCall": {"id": call_id, "name": name, "args": args}}
        case ToolResult(call_id, output, is_error):
            name = tool_names.get(call_id, "tool")
            response = {"error" if is_error else "output": output}
            return {"functionResponse": {"id": call_id, "name": name, "response": response}}
        case Media(mime, ref):
            inline = _DATA.match(ref)
            if inline:
                return {"inlineData": {"mimeType": inline[1], "data": inline[2]}}
            return {"fileData": {"mimeType": mime, "fileUri": ref}}
        case Text(text):
            return {"text": text}
        case Reasoning(text):
            return {"text": text, "thought": True}
        case Raw():
            return raw_to_payload_part(part) or {}


def _parse_parts(items: Sequence[Mapping[str, Any]]) -> list[Part]:
    """Parse the parts of a content; a signature becomes a raw part before its part, or with an empty text alone."""
    parts: list[Part] = []
    for item in items:
        if item.get("text") == "" and SIGNATURE in item:
            parts.append(Raw(VENDOR, blocks.dump({"text": "", SIGNATURE: item[SIGNATURE]})))
            continue
        if SIGNATURE in item:
            parts.append(signature_to_raw(item[SIGNATURE]))
        if item.get("text") != "":
            parts.append(_parse_part(item))
    return parts


def _parse_part(item: Mapping[str, Any]) -> Part:
    """Parse one part of a content, apart from its signature."""
    match item:
        case {"functionCall": {"id": call_id, "name": name, **rest_fields}}:
            return ToolCall(call_id, name, blocks.dump(rest_fields.get("args", {})))
        case {"functionResponse": {"id": call_id, "response": {"error": str(output)}}}:
            return ToolResult(call_id, output, True)
        case {"functionResponse": {"id": call_id, "response": {"output": str(output)}}}:
            return ToolResult(call_id, output)
        case {"inlineData": {"mimeType": mime, "data": data}}:
            return Media(mime, f"data:{mime};base64,{data}")
        case {"fileData": {"mimeType": mime, "fileUri": uri}}:
            return Media(mime, uri)
        case {"text": str(text), "thought": True}:
            return Reasoning(text)
        case {"text": str(text)}:
            return Text(text)
        case _:
            return _parse_server_tool_part(item)


def _parse_server_tool_part(item: Mapping[str, Any]) -> Raw:
    """Parse a part that the model made with a tool of the provider's own; `PayloadError` for any other."""
    fields = {name: value for name, value in item.items() if name != SIGNATURE}
    if _SERVER_TOOL_FIELDS.isdisjoint(fields):
        raise PayloadError("is not a supported part", field="contents")
    return Raw(VENDOR, blocks.dump(fields))
