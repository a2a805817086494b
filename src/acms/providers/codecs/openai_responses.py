"""OpenAI Responses: `input` items, flat `tools` and cache hints.

Rules and instructions are items like all others, not `instructions`: that field stands before everything else, is not
kept from one response to the next, and cannot end a cached prefix.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from acms.log import native_items
from acms.log.native_items import (
    AS_GIVEN,
    CALLS,
    NEEDS_ID,
    NO_RESULT,
    RESULTS,
    is_native,
    rest_of_item,
)
from acms.model import Json, Media, Part, Raw, Reasoning, Role, Text, ToolCall, ToolResult
from acms.prompt_types import CacheMark, Count, PromptMessage, Tool, Usage
from acms.providers.codecs import openai_answers, openai_base
from acms.providers.codecs.framing import Function, check_strings, dump, to_plain_json
from acms.providers.codecs.openai_base import (
    BREAKPOINT,
    OpenAICodec,
    check_key,
    check_name,
    check_tools,
    payload_error,
)
from acms.text import chat_messages

__all__ = ["OpenAIResponses"]

_VENDOR = "openai-responses"
_ROLES = {role.value: role for role in Role if role is not Role.TOOL}
_TEXTS = ("input_text", "output_text")
_FUNCTION = ("function_call", "function_call_output")
_UNDERSTOOD = ("message", *_FUNCTION)
_SAID = ("output_text", "refusal")
_GIVEN = ("input_text", "input_image", "input_file", "input_audio")
_LISTED = ("function_call_output", "custom_tool_call_output")
"""Results that may be a list of parts."""
PREAMBLE, REASONING, TOOLBOX = 24, 72, 200
"""Tokens that every request, one to a model that reasons, and one with tools are charged besides.

Copies of the API reference's examples are all there is: 36 tokens for a message of 11 (gpt-4.1), 291 for one of 9 and a
tool (gpt-4o). For models that reason nothing was found: a guess on the safe side. Calibration finds out.
"""
NATIVE = 64
"""Tokens that a call of a native tool is charged for the frame of its result: a stand-in has none in the log.

The longest frame is that of `shell_call_output`, some 40 tokens.
"""
HALF_AN_HOUR = 1_800
"""Seconds a prefix is kept at least when nothing is asked for."""


class OpenAIResponses(OpenAICodec):
    """The format of `client.responses.create`.

    There is no field for who speaks: a user's name stands before the text. A `Raw` part of the vendor
    "openai-responses" is an item of its own, sent verbatim: reasoning with encrypted content, searches, references. So
    is what the OpenAI Agents SDK has stored and ACMS does not understand. Calls of native tools, such as
    `apply_patch_call`, and their results are sent as the items that they came as, in pairs; those whose text was cut
    so that it no longer fits are sent as calls of functions. A `Reasoning` part is not sent: it does not
    say which model may read its signature. `counter`, `calibration` and `margin` are those of `OpenAIChat`; how items
    are framed is not published, so no count is exact.
    """

    name = "openai-responses"
    id_chars = 64
    vendors: tuple[str, ...] = (_VENDOR, "openai")
    recipe = False

    def _named(self, message: PromptMessage) -> bool:
        return message.name is None

    def _medium(self, media: Media, role: Role, note: openai_base.Note) -> Part:
        if role not in (Role.USER, Role.TOOL):
            note("media outside a message of the user are mentioned in its text")
            return openai_base.media_to_text(media)
        if chat_messages.is_url(media.ref) or chat_messages.is_file_id(media.ref):
            return media
        note("media that the API cannot fetch are mentioned in the text")
        return openai_base.media_to_text(media)

    def _raw(self, raw: Raw, message: PromptMessage, note: openai_base.Note) -> Iterable[Part]:
        item = openai_base.parse_raw_object(raw) if raw.vendor in self.vendors else None
        if item is None or not isinstance(item.get("type", "message"), str) or message.role is Role.TOOL:
            return openai_base.text_for_others(raw, note)
        return (Raw(_VENDOR, dump(item)),)

    def _belongs_to_tool(self, raw: Raw, behind: Sequence[Part]) -> bool:
        rest = rest_of_item(raw)
        return rest is not None and (rest["type"] in _FUNCTION or native_items.is_tool_rest(rest))

    def _laid(
        self, messages: Sequence[PromptMessage], note: openai_base.Note
    ) -> list[tuple[PromptMessage, int]]:
        laid = super()._laid([_parse_known_items(message, note) for message in messages], note)
        return _with_unique_ids(_with_native_pairs(_group_messages(laid, note)), note)

    def _cost(self, message: PromptMessage) -> int:
        return super()._cost(_parse_known_items(message, openai_base.discard_note))

    def _part_cost(self, part: Part) -> int:
        cost = super()._part_cost(part)
        rest = rest_of_item(part)
        if rest is None or rest["type"] in _FUNCTION or "call_id" in rest:
            return cost
        if native_items.form_of_call(rest["type"]) is not None:
            return cost + NATIVE
        return max(0, cost - NATIVE)

    def _start(self, offered: Sequence[Function]) -> tuple[int, bool]:
        tokens, _ = super()._start(offered)
        preamble = REASONING if self.known.reasons else PREAMBLE
        return tokens + preamble + (TOOLBOX if offered else 0), False

    def _headers(self, parts: Sequence[Part]) -> int:
        # Texts with an item between them are messages of their own.
        runs = [not isinstance(part, Raw) for part in parts if not _ends_message(part)]
        return sum(now and not before for before, now in zip([False, *runs], runs, strict=False))

    def render(
        self,
        messages: Sequence[PromptMessage],
        *,
        tools: Sequence[Tool] = (),
        marks: Sequence[CacheMark] = (),
    ) -> dict[str, Json]:
        """Return `input`, `tools` and cache hints; see `Codec.render`."""
        laid = self._laid(messages, openai_base.discard_note)
        written = [self._written(message) for message, _ in laid]
        payload: dict[str, Json] = {"input": [item for items in written for item in items]}
        if tools:
            payload["tools"] = [_serialize_tool(tool) for tool in tools]
        if marks:
            ends = self._prefixes(marks, len(messages), laid)
            self._hints(payload, marks[0], [item for items in written[: ends[0]] for item in items])
            if self.known.breakpoints:
                for end in sorted(set(ends))[-openai_base.WRITES :]:
                    _mark_breakpoint([item for items in written[:end] for item in items])
                if max(mark.ttl or 0 for mark in marks) > HALF_AN_HOUR:
                    payload["prompt_cache_options"] = {"ttl": "12h"}
        self.check(payload)
        return payload

    def _written(self, message: PromptMessage) -> list[dict[str, Json]]:
        items: list[dict[str, Json]] = []
        contents: list[dict[str, Json]] = []
        media = [part for part in message.parts if isinstance(part, Media)]
        calls: int | None = None
        for part, rest in _pair_parts_with_rests(message.parts):
            match part:
                case Text(text):
                    contents.append({"type": "input_text", "text": text})
                case Media():
                    self._stated(part)
                    contents.append(_serialize_media(part))
                case Raw():
                    items.append(openai_base.parse_raw_object(part) or {})
                case ToolCall():
                    calls = len(items) if calls is None else calls
                    items.append(_serialize_call(part, rest))
                case ToolResult():
                    items.append(_serialize_result(part, media, rest))
                case Reasoning():
                    pass  # the normal form has none
        if message.role is Role.TOOL:
            if not contents or items[0]["type"] not in _LISTED:
                return items
            output = items[0]["output"]
            told = [{"type": "input_text", "text": output}] if output else []
            return [{**items[0], "output": [*told, *contents]}]
        if contents:
            plain = len(contents) == 1 and contents[0]["type"] == "input_text"
            content: Json = contents[0]["text"] if plain else contents
            place = len(items) if calls is None else calls
            items.insert(place, {"type": "message", "role": message.role.value, "content": content})
        return items

    def parse(self, payload: Mapping[str, Json]) -> tuple[PromptMessage, ...]:
        """Return the messages of a payload in normal form; see `Codec.parse`."""
        self.check(payload)
        given = payload["input"]
        if isinstance(given, str):
            return self.normal([PromptMessage(role=Role.USER, parts=(Text(given),))])
        read = [(_parse_item(item), 0) for item in given]
        return self.normal([message for message, _ in _group_messages(read, openai_base.discard_note)])

    def count(self, payload: Mapping[str, Json]) -> Count:
        """Count a payload from scratch."""
        framing = self.framing
        total, _ = self._start([openai_base.parse_function(tool) for tool in payload.get("tools", ())])
        tools = total - framing.primer
        given = payload["input"]
        if isinstance(given, str):
            given = [{"role": "user", "content": given}]
        total -= framing.without_default([item.get("role", "") for item in given])
        for item in given:
            message = _parse_item(item)
            for part in message.parts:
                match part:
                    case ToolResult(call_id, output):
                        total += framing.result(call_id) + self.counter.count(output)
                    case Media(_, ref):
                        total += self.referred(ref)
                    case _:
                        total += self._part_cost(part)
            if item.get("type", "message") == "message" and not isinstance(message.parts[0], Raw):
                total += framing.role(message.role)
        return self.counted(total, tools, covered=False)

    def diagnosed(self, payload: Mapping[str, Json], previous: str | None) -> dict[str, Json]:
        """Return the payload with the id of the response to compare with; as it was before GPT-5.6, and without one."""
        if previous is None or not self.known.breakpoints:
            return dict(payload)
        options = {**payload.get("prompt_cache_options", {}), "comparison_response_id": previous}
        return {**payload, "prompt_cache_options": options}

    def usage(self, usage: object) -> Usage:
        """Read an answer, or its `usage`."""
        return openai_answers.parse_usage(usage, "input_tokens", "input_tokens_details")

    def check(self, payload: Mapping[str, Json]) -> None:
        """Raise `PayloadError` if the API would refuse a payload: shapes, roles, and calls without their outputs."""
        given = payload.get("input")
        if not isinstance(given, str | list):
            raise payload_error("must be a text or a list of items: this is no payload of Responses", "input")
        if not given:
            raise payload_error("must not be empty: give at least one message", "input")
        items = given if isinstance(given, list) else ()
        pairs = _Pairs()
        seen: set[str] = set()
        for index, item in enumerate(items):
            field = f"input[{index}]"
            if not isinstance(item, Mapping):
                raise payload_error("must be an object", field)
            kind = item.get("type", "message")
            if not isinstance(kind, str):
                raise payload_error("must name the kind of item", f"{field}.type")
            id = item.get("id")
            if isinstance(id, str) and kind != "item_reference":
                if id in seen:
                    raise payload_error("is the id of an item before it: give each its own", f"{field}.id")
                seen.add(id)
            if kind == "message":
                _check_message(item, field)
            elif kind == "reasoning":
                _check_reasoning(items[index + 1 : index + 2], field)
            else:
                pairs.check(item, kind, field)
        pairs.check_end()
        check_strings(payload)
        check_tools(payload, lambda tool: tool if tool.get("type") == "function" else None)
        check_key(payload)


def _parse_known_items(message: PromptMessage, note: openai_base.Note) -> PromptMessage:
    """Return a message with its verbatim items read where they say no more than a part does."""
    if not any(isinstance(part, Raw) for part in message.parts):
        return message
    told = any(not isinstance(part, Raw) for part in message.parts)
    parts: list[Part] = []
    for part in _with_phase_item(message):
        item = (
            openai_base.parse_raw_object(part)
            if isinstance(part, Raw) and part.vendor in OpenAIResponses.vendors
            else None
        )
        if item is None:
            parts.append(part)
        elif (
            isinstance(part, Raw)
            and part.vendor != _VENDOR
            and told
            and (native_items.is_understood(item) or is_native(item.get("type")))
        ):
            continue  # an Agents SDK item beside the parts that were read from it
        elif _is_refused_item(item):
            note("items that the API would refuse are left out")
        else:
            parts.extend(_parse_item(item).parts)
    return replace(message, parts=tuple(parts), tokens=None, counter="")


def _with_phase_item(message: PromptMessage) -> Sequence[Part]:
    """Return the parts of a message with the text of an answer as an item that states its phase.

    The provider requires this: without it, interim text of the model counts as its answer.
    """
    kept = [
        openai_base.parse_raw_object(part)
        for part in message.parts
        if isinstance(part, Raw) and part.vendor in (AS_GIVEN, *OpenAIResponses.vendors)
    ]
    phase = next((one["phase"] for one in kept if one is not None and one.get("phase")), None)
    texts = [part for part in message.parts if isinstance(part, Text)]
    if message.role is not Role.ASSISTANT or not isinstance(phase, str) or not texts:
        return message.parts
    content = "\n".join([part.text for part in texts])
    item = {"type": "message", "role": "assistant", "content": content, "phase": phase}
    return [
        Raw(_VENDOR, dump(item)) if part is texts[0] else part
        for part in message.parts
        if part is texts[0] or not isinstance(part, Text)
    ]


def _is_refused_item(item: Mapping[str, Json]) -> bool:
    """Return whether the API would refuse an item that a part can stand for."""
    kind = item.get("type", "message")
    if kind in CALLS and kind not in _UNDERSTOOD:
        return native_items.read_call(item) is None and item.get("call_id", "") is not None
    if kind in RESULTS and kind not in _UNDERSTOOD:
        return native_items.read_result(item) is None and item.get("call_id", "") is not None
    if kind not in _UNDERSTOOD:
        return False
    match item:
        case {"type": "function_call", "call_id": str(), "name": str(), "arguments": str()}:
            return False
        case {"type": "function_call_output", "call_id": str(), "output": str() | list()}:
            return False
        case {"role": str(role), "content": str() | [_, *_]} if role in _ROLES:
            return item.get("type", "message") != "message"
        case _:
            return True


def _group_messages(
    laid: Iterable[tuple[PromptMessage, int]], note: openai_base.Note
) -> list[tuple[PromptMessage, int]]:
    """Return messages in the groups that can be read back from the items: what the model did in one go is one message.

    Verbatim items lead, at most one text follows, calls end it. Reasoning that nothing follows is refused: left out.
    """
    found: list[tuple[PromptMessage, int]] = []
    for message, last in laid:
        for fragment in _split_message(message):
            if found and _can_join_messages(found[-1][0], fragment):
                before, at = found[-1]
                found[-1] = (_join_messages(before, fragment), max(at, last))
            else:
                found.append((fragment, last))
    kept: list[tuple[PromptMessage, int]] = []
    for message, last in found:
        parts = list(message.parts)
        while parts and isinstance(parts[-1], Raw) and _is_reasoning(parts[-1]):
            note("reasoning that nothing follows is left out")
            parts.pop()
        if len(parts) == len(message.parts):
            kept.append((message, last))
        elif parts:
            kept.append((replace(message, parts=tuple(parts), tokens=None, counter=""), last))
    return kept


def _split_message(message: PromptMessage) -> list[PromptMessage]:
    """Split a message where an item stands between texts; items go to the assistant, in messages of any role."""
    if not any(_is_item(part) for part in message.parts) or len(message.parts) == 1:
        only = message.parts[0]
        if _is_item(only) and message.role is not Role.ASSISTANT:
            return [replace(message, role=Role.ASSISTANT, tokens=None, counter="")]
        return [message]
    found: list[tuple[Role, list[Part]]] = []
    for part in message.parts:
        role = Role.ASSISTANT if isinstance(part, Raw) else message.role
        if found and found[-1][0] is role and _can_append_part(found[-1][1], part, role):
            found[-1][1].append(part)
        else:
            found.append((role, [part]))
    return [replace(message, role=role, parts=tuple(parts), tokens=None, counter="") for role, parts in found]


def _can_append_part(parts: Sequence[Part], part: Part, role: Role) -> bool:
    if role is not Role.ASSISTANT:
        return True
    return _ends_message(part) or all(_is_item(one) for one in parts)


def _can_join_messages(before: PromptMessage, message: PromptMessage) -> bool:
    both = before.role is Role.ASSISTANT and message.role is Role.ASSISTANT
    return both and _can_append_part(before.parts, message.parts[0], Role.ASSISTANT)


def _join_messages(before: PromptMessage, message: PromptMessage) -> PromptMessage:
    # Calls are in the later one, and the group is theirs; calls in both were made side by side.
    both = any(isinstance(part, ToolCall) for part in before.parts)
    return PromptMessage(
        role=Role.ASSISTANT,
        parts=(*before.parts, *message.parts),
        sources=(*before.sources, *(id for id in message.sources if id not in before.sources)),
        group=None if both else message.group,
    )


def _is_reasoning(raw: Raw) -> bool:
    return (openai_base.parse_raw_object(raw) or {}).get("type") == "reasoning"


def _is_item(part: Part) -> bool:
    """Return whether a part is an item of its own."""
    return isinstance(part, Raw) and part.vendor != AS_GIVEN


def _ends_message(part: Part) -> bool:
    """Return whether a part is a call, or the rest of one."""
    return isinstance(part, ToolCall) or (isinstance(part, Raw) and part.vendor == AS_GIVEN)


# ── calls of native tools ───────────────────────────────────────────────────────────────────────────────────────────


def _pair_parts_with_rests(parts: Sequence[Part]) -> Iterator[tuple[Part, Mapping[str, Json] | None]]:
    """Yield the parts of a message, calls and results with the rest of the item that they came as."""
    for at, part in enumerate(parts):
        if isinstance(part, ToolCall):
            yield part, next(map(rest_of_item, parts[at + 1 : at + 2]), None)
        elif isinstance(part, ToolResult):
            yield part, next((rest for one in parts if (rest := rest_of_item(one)) is not None), None)
        elif rest_of_item(part) is None:
            yield part, None


def _with_native_pairs(laid: Sequence[tuple[PromptMessage, int]]) -> list[tuple[PromptMessage, int]]:
    """Return messages in which a native call and its result are both written natively, or both as a function's."""
    answers: dict[int, Sequence[Part]] = {}
    found: list[tuple[PromptMessage, int]] = []
    for at, (message, last) in enumerate(laid):
        if at in answers:
            if answers[at]:
                found.append((_with_parts(message, answers[at]), last))
            continue
        if not any(isinstance(part, ToolCall) for part in message.parts):
            found.append((message, last))
            continue
        parts: list[Part] = []
        thought = False
        places = _find_answer_indexes(laid, at)
        for part, rest in _pair_parts_with_rests(message.parts):
            thought = thought or (isinstance(part, Raw) and _is_reasoning(part))
            place = places.get(part.call_id) if isinstance(part, ToolCall) else None
            if isinstance(part, ToolCall) and place is not None:
                call, answers[place] = _native_pair(part, rest, laid[place][0], thought=thought)
                parts += call
            else:
                parts.append(part)
        found.append((_with_parts(message, parts), last))
    return found


def _with_parts(message: PromptMessage, parts: Sequence[Part]) -> PromptMessage:
    if message.parts == tuple(parts):
        return message
    return replace(message, parts=tuple(parts), tokens=None, counter="")


def _find_answer_indexes(laid: Sequence[tuple[PromptMessage, int]], at: int) -> dict[str, int]:
    """Return where the answers to the calls of a message stand, by the ids of the calls."""
    places: dict[str, int] = {}
    for place in range(at + 1, len(laid)):
        message = laid[place][0]
        if message.role is not Role.TOOL:
            break
        places.update({part.call_id: place for part in message.parts if isinstance(part, ToolResult)})
    return places


def _native_pair(
    call: ToolCall, rest: Mapping[str, Json] | None, answer: PromptMessage, *, thought: bool
) -> tuple[Sequence[Part], Sequence[Part]]:
    """Return the parts of a call and of its answer as they are sent; no answer where an unknown call has none."""
    result, given = next(
        (part, rest) for part, rest in _pair_parts_with_rests(answer.parts) if isinstance(part, ToolResult)
    )
    media = [part for part in answer.parts if isinstance(part, Media)]
    kind = "function_call" if rest is None else rest["type"]
    # The API takes an item with the id it gave it only behind the reasoning that led to it.
    kept = {
        name: value for name, value in (rest or {}).items() if name != "id" or thought or kind in NEEDS_ID
    }
    told = {
        name: value for name, value in (given or {}).items() if name != "id" or RESULTS.get(kind) in NEEDS_ID
    }
    called = (
        native_items.write_call(call, kept) if rest is not None and native_items.is_tool_rest(rest) else None
    )
    answered = native_items.write_result(result, media, kind, told) if called is not None else None
    if called is not None and kind not in CALLS and result.output == NO_RESULT:
        return _parse_item(called).parts, ()
    if called is not None and answered is not None:
        parts = _parse_item(answered).parts
        shown = () if any(isinstance(part, Media) for part in parts) else media
        return _parse_item(called).parts, (*parts, *shown)
    if kind == "function_call" and rest is not None:
        call_parts: Sequence[Part] = (call, Raw(AS_GIVEN, dump(to_plain_json(kept))))
    else:
        call_parts = (call,)
    own = given is not None and given["type"] == "function_call_output"
    return call_parts, (result, *([Raw(AS_GIVEN, dump(to_plain_json(told)))] if own else ()), *media)


def _with_unique_ids(
    laid: Sequence[tuple[PromptMessage, int]], note: openai_base.Note
) -> list[tuple[PromptMessage, int]]:
    """Return messages in which no two calls have one id, and no two items."""
    taken: set[str] = set()
    renamed: dict[str, str] = {}
    found: list[tuple[PromptMessage, int]] = []
    for message, last in laid:
        parts: list[Part] = []
        renamed = renamed if message.role is Role.TOOL else {}
        for part in message.parts:
            match part:
                case ToolCall(call_id):
                    renamed[call_id] = own = _unused_id(call_id, taken)
                    part = part if own == call_id else replace(part, call_id=own)
                case ToolResult(call_id) if renamed.get(call_id, call_id) != call_id:
                    part = replace(part, call_id=renamed[call_id])
                case Raw():
                    part = _with_unused_id(part, taken)
                case _:
                    pass
            parts.append(part)
        if tuple(parts) != message.parts:
            note("calls with one id get ids of their own")
        found.append((_with_parts(message, parts), last))
    return found


def _unused_id(id: str, taken: set[str]) -> str:
    """Return an id, or a number where it is taken, and take it: a number costs no more tokens than an id."""
    number = len(taken) + 1
    while id in taken:
        id, number = str(number), number + 1
    taken.add(id)
    return id


def _with_unused_id(raw: Raw, taken: set[str]) -> Raw:
    """Return an item, or the rest of one, with an id that no other has."""
    item = openai_base.parse_raw_object(raw) if '"id":' in raw.json else None
    id = None if item is None or item.get("type") == "item_reference" else item.get("id")
    if item is None or not isinstance(id, str):
        return raw
    own, number = id, 1
    while own in taken:
        number += 1
        ending = f"_{number}"
        own = id[: max(len(id) - len(ending), 0)] + ending
    taken.add(own)
    return raw if own == id else Raw(raw.vendor, dump({**item, "id": own}))


def _serialize_call(call: ToolCall, rest: Mapping[str, Json] | None) -> dict[str, Json]:
    item = None if rest is None else native_items.write_call(call, rest)
    if item is not None:
        return item
    return {"type": "function_call", "call_id": call.call_id, "name": call.name, "arguments": call.arguments}


def _serialize_result(
    result: ToolResult, media: Sequence[Media], rest: Mapping[str, Json] | None
) -> dict[str, Json]:
    called = None if rest is None else native_items.call_of_result(rest["type"]) or ""
    item = None if called is None else native_items.write_result(result, media, called, rest or {})
    return item or {"type": "function_call_output", "call_id": result.call_id, "output": result.output}


def _serialize_media(media: Media) -> dict[str, Json]:
    ref = media.ref
    if chat_messages.is_image(media):
        key = "image_url" if chat_messages.is_url(ref) else "file_id"
        return {"type": "input_image", "detail": "auto", key: ref}
    if ref.startswith("data:"):
        return {"type": "input_file", "filename": "file", "file_data": ref}
    return {"type": "input_file", "file_url" if chat_messages.is_url(ref) else "file_id": ref}


def _parse_content_part(item: Json) -> Part | None:
    """Parse one part of a content list; None if no type of part holds all of it."""
    match openai_base.remove_breakpoint(item) if isinstance(item, Mapping) else item:
        case {"type": "input_text" | "output_text", "text": str(text), **more} if not more:
            return Text(text)
        case {"type": "input_image", "image_url": str(ref), **more} if more in ({}, {"detail": "auto"}):
            return Media("image/*", ref)
        case {"type": "input_image", "file_id": str(ref), **more} if more in ({}, {"detail": "auto"}):
            return Media("image/*", ref)
        case {"type": "input_file", "file_id": str(ref), **more} if not more:
            return Media("application/octet-stream", ref)
        case {"type": "input_file", "file_url": str(ref), **more} if not more:
            return Media("application/octet-stream", ref)
        case {"type": "input_file", "filename": "file", "file_data": str(ref), **more} if not more:
            return Media("application/octet-stream", ref)
        case _:
            return None


def _parse_item(item: Mapping[str, Json]) -> PromptMessage:
    """Parse one item; keep it verbatim if no type of part holds all of it."""
    match item:
        case {"type": "function_call", "call_id": call_id, "name": name, "arguments": arguments, **more}:
            kept = _remaining_fields_part("function_call", more, "id", "status", "type")
            return PromptMessage(role=Role.ASSISTANT, parts=(ToolCall(call_id, name, arguments), *kept))
        case {"type": "function_call_output", "call_id": call_id, "output": output, **more}:
            kept = _remaining_fields_part("function_call_output", more, "id", "status", "type")
            return PromptMessage(role=Role.TOOL, parts=(*_parse_output(call_id, output), *kept))
        case {"type": str(kind)} if is_native(kind) or "call_id" in item:
            parts = _read_native(item)
            if parts:
                role = Role.TOOL if isinstance(parts[0], ToolResult) else Role.ASSISTANT
                return PromptMessage(role=role, parts=parts)
        case {"role": str(role), "content": content, **more} if more in ({}, {"type": "message"}):
            if isinstance(content, str):
                return PromptMessage(role=_ROLES[role], parts=(Text(content),))
            read = [_parse_content_part(part) for part in content]
            parts = tuple([part for part in read if part is not None])
            if len(parts) == len(read):
                return PromptMessage(role=_ROLES[role], parts=parts)
        case _:
            pass
    return PromptMessage(role=Role.ASSISTANT, parts=(Raw(_VENDOR, dump(to_plain_json(item))),))


def _remaining_fields_part(kind: str, more: Mapping[str, Json], *dropped: str) -> Sequence[Part]:
    """Return the rest of an item beside a call or a result; nothing where there is none."""
    rest = {name: value for name, value in more.items() if name not in dropped and value is not None}
    return (Raw(AS_GIVEN, dump(to_plain_json({"type": kind, **rest}))),) if rest else ()


def _read_native(item: Mapping[str, Json]) -> tuple[Part, ...]:
    """Read a native call or result: the part, the rest of the item, and media; nothing for any other item."""
    output = item.get("output")
    media: Sequence[Part] = ()
    if item["type"] == "custom_tool_call_output" and isinstance(output, list):
        result, *media = _parse_output("", output)
        assert isinstance(result, ToolResult)
        item = {**item, "output": result.output}
    elif item["type"] == "computer_call_output" and isinstance(output, Mapping):
        media = [Media("image/*", output[name]) for name in ("image_url", "file_id") if output.get(name)]
    found = native_items.read_call(item) or native_items.read_result(item)
    if found is None:
        return ()
    part, rest = found
    assert isinstance(rest, Raw)
    return (part, Raw(AS_GIVEN, dump(openai_base.parse_raw_object(rest))), *media)


def _parse_output(call_id: str, output: Json) -> tuple[Part, ...]:
    if isinstance(output, str):
        return (ToolResult(call_id, output),)
    read = [_parse_content_part(part) for part in output]
    text = "\n".join([part.text for part in read if isinstance(part, Text)])
    return (ToolResult(call_id, text), *[part for part in read if isinstance(part, Media)])


def _serialize_tool(tool: Tool) -> dict[str, Json]:
    written: dict[str, Json] = {"type": "function", "name": tool.name}
    if tool.description:
        written["description"] = tool.description
    return {**written, "parameters": to_plain_json(tool.parameters), "strict": tool.strict}


def _mark_breakpoint(items: Sequence[dict[str, Json]]) -> None:
    """Mark the end of a prefix on its last item that may carry a mark: one that the model did not write."""
    for item in reversed(items):
        key = {"message": "content", "function_call_output": "output"}.get(item.get("type", "message"))
        if key is None or item.get("role") == Role.ASSISTANT.value or not item.get(key):
            continue
        content: Any = item[key]
        parts = [{"type": "input_text", "text": content}] if isinstance(content, str) else content
        item[key] = [*parts[:-1], {**parts[-1], BREAKPOINT: {"mode": "explicit"}}]
        return


# ── rules of the API ────────────────────────────────────────────────────────────────────────────────────────────


def _check_message(item: Mapping[str, Json], field: str) -> None:
    if item.get("role") not in _ROLES:
        raise payload_error(f"must be one of {', '.join(_ROLES)}", f"{field}.role")
    content = item.get("content")
    if not isinstance(content, str | list) or not content:
        raise payload_error("must be a text or a list of parts that is not empty", f"{field}.content")
    if isinstance(content, str):
        return
    own = _SAID if item["role"] == Role.ASSISTANT.value else _GIVEN
    for index, part in enumerate(content):
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind not in own:
            wrong = f"must be one of {', '.join(own)} in a message of the {item['role']}"
            raise payload_error(wrong, f"{field}.content[{index}].type")
        if kind in _TEXTS and not isinstance(part.get("text"), str):
            raise payload_error("must be a text", f"{field}.content[{index}].text")


def _check_reasoning(behind: Sequence[Json], field: str) -> None:
    """Raise for reasoning that does not lead to something the model did."""
    item = behind[0] if behind and isinstance(behind[0], Mapping) else {}
    kind = item.get("type", "message")
    others = kind == "message" and item.get("role") != Role.ASSISTANT.value
    if not item or others or str(kind).endswith("_output"):
        raise payload_error("is reasoning: what the model did after it must follow, or leave it out", field)


class _Pairs:
    """The calls of a payload and their results, item by item."""

    def __init__(self) -> None:
        #: Open calls: their type, and where they stand.
        self._open: dict[str, tuple[str, str]] = {}
        self._taken: set[str] = set()

    def check(self, item: Mapping[str, Json], kind: str, field: str) -> None:
        """Raise `PayloadError` for an id that is used twice, and for a result that answers no open call of its type."""
        form = CALLS.get(kind)
        if form is not None:
            self._check_call(item, kind, form.id_field, field)
            return
        called = RESULTS.get(kind)
        if called is None:
            return
        name = CALLS[called].answer_field
        id = item.get(name)
        if id is None and kind == "tool_search_output":
            return  # of a search that the provider ran itself
        of, _ = self._open.pop(str(id), ("", ""))
        if of != called:
            raise payload_error(
                f"answers {id!r}, which is no open {called} before it: put it behind its call, once",
                f"{field}.{name}",
            )
        if kind == "function_call_output" and not isinstance(item.get("output"), str | list):
            raise payload_error("must be a text or a list of parts", f"{field}.output")

    def _check_call(self, item: Mapping[str, Json], kind: str, name: str, field: str) -> None:
        id = item.get(name)
        if id is None and kind == "tool_search_call":
            return
        if not isinstance(id, str) or not 1 <= len(id) <= OpenAIResponses.id_chars:
            raise payload_error(f"must have 1 to {OpenAIResponses.id_chars} characters", f"{field}.{name}")
        if id in self._taken:
            raise payload_error("is the id of a call before it: give each its own", f"{field}.{name}")
        self._taken.add(id)
        self._open[id] = kind, field
        if kind == "function_call":
            check_name(item.get("name"), f"{field}.name")
            if not isinstance(item.get("arguments"), str):
                raise payload_error("must be JSON text", f"{field}.arguments")

    def check_end(self) -> None:
        """Raise `PayloadError` for a call that has no result."""
        for id, (kind, field) in self._open.items():
            if kind not in ("tool_search_call", "mcp_approval_request"):
                raise payload_error(f"has no output for {id!r}: answer every call", field)
