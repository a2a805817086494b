"""OpenAI Responses: `input` items, flat `tools` and cache hints.

Rules and instructions are items like all others, not `instructions`: that field stands before everything else, is not
kept from one response to the next, and cannot end a cached prefix.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from acms.log import native_items
from acms.log.native_items import CALLS, EXTRA_FIELDS, NEEDS_ID, NO_RESULT, RESULTS, extra_fields_of
from acms.model import Json, Media, Part, Raw, Reasoning, Role, Text, ToolCall, ToolResult
from acms.prompt_types import CacheMark, Count, PromptMessage, Tool, Usage, with_parts
from acms.providers.codecs import openai_answers
from acms.providers.codecs.checks import refuse, require
from acms.providers.codecs.framing import check_strings, dump, serialize_tool, to_plain_json
from acms.providers.codecs.openai_base import (
    Arranged,
    Note,
    OpenAICodec,
    check_key,
    check_name,
    check_tools,
    discard_note,
    media_to_text,
    parse_raw_object,
    parse_tool,
    unsupported_item_to_text,
)
from acms.providers.codecs.responses_items import (
    CALL,
    RESULT,
    ROLES,
    VENDOR,
    VENDORS,
    ItemFields,
    add_contents_to_result,
    pair_with_fields,
    parse_item,
    parse_known_items,
    parse_own_item,
    serialize_call,
    serialize_media,
    serialize_result,
)
from acms.text import chat_messages

__all__ = ["OpenAIResponses"]

NATIVE = 64
"""Tokens that a call of a native tool is charged for the frame of its result: a placeholder has none in the log.

The longest frame is that of `shell_call_output`, some 40 tokens.
"""


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
    vendors: tuple[str, ...] = VENDORS
    recipe = False
    messages_field = "input"
    text_type = "input_text"

    # ── messages ────────────────────────────────────────────────────────────────────────────────────────────────

    def _accepts_name(self, message: PromptMessage) -> bool:
        return message.name is None

    def _sendable_media(self, media: Media, role: Role, note: Note) -> Part:
        """Return media of the user or a tool if the API can fetch them; otherwise a text that mentions them."""
        if role not in (Role.USER, Role.TOOL):
            note("media outside a message of the user are mentioned in its text")
            return media_to_text(media)
        if chat_messages.is_url(media.ref) or chat_messages.is_file_id(media.ref):
            return media
        note("media that the API cannot fetch are mentioned in the text")
        return media_to_text(media)

    def _sendable_item(self, raw: Raw, message: PromptMessage, note: Note) -> Iterable[Part]:
        item = parse_own_item(raw)
        if item is None or not isinstance(item.get("type", "message"), str) or message.role is Role.TOOL:
            return unsupported_item_to_text(raw, note)
        return (Raw(VENDOR, dump(item)),)

    def _belongs_to_tool(self, raw: Raw, following: Sequence[Part]) -> bool:
        fields = extra_fields_of(raw)
        return fields is not None and (
            fields["type"] in (CALL, RESULT) or native_items.belongs_to_native_item(fields)
        )

    def _arrange(self, messages: Sequence[PromptMessage], note: Note) -> Arranged:
        parsed = [parse_known_items(message, note) for message in messages]
        grouped = _group_messages(super()._arrange(parsed, note), note)
        return _with_unique_ids(_write_native_pairs(grouped), note)

    # ── requests ────────────────────────────────────────────────────────────────────────────────────────────────

    def _add_cache_hints(
        self, payload: dict[str, Json], marks: Sequence[CacheMark], prefixes: Sequence[list[dict[str, Json]]]
    ) -> None:
        super()._add_cache_hints(payload, marks, prefixes)
        longest_ttl = max(mark.ttl or 0 for mark in marks)
        # By default a prefix is kept for half an hour.
        if self.traits.has_breakpoints and longest_ttl > 1_800:
            payload["prompt_cache_options"] = {"ttl": "12h"}

    def _serialize_message(self, message: PromptMessage) -> list[dict[str, Json]]:
        """Serialize a message as items: verbatim ones, its text, then its calls or results."""
        items: list[dict[str, Json]] = []
        contents: list[dict[str, Json]] = []
        media = [part for part in message.parts if isinstance(part, Media)]
        first_call: int | None = None
        for part, fields in pair_with_fields(message.parts):
            match part:
                case Text(text):
                    contents.append({"type": "input_text", "text": text})
                case Media():
                    self._remember_media(part)
                    contents.append(serialize_media(part))
                case Raw():
                    items.append(parse_raw_object(part) or {})
                case ToolCall():
                    if first_call is None:
                        first_call = len(items)
                    items.append(serialize_call(part, fields))
                case ToolResult():
                    items.append(serialize_result(part, media, fields))
                case Reasoning():
                    pass  # the normal form has none
        if not contents:
            return items
        if message.role is Role.TOOL:
            return add_contents_to_result(items, contents)
        content: Json = contents
        if len(contents) == 1 and contents[0]["type"] == "input_text":
            content = contents[0]["text"]
        # The text comes before the calls.
        index = len(items) if first_call is None else first_call
        items.insert(index, {"type": "message", "role": message.role.value, "content": content})
        return items

    def _serialize_tool(self, tool: Tool) -> dict[str, Json]:
        return {"type": "function", **serialize_tool(tool, "parameters"), "strict": tool.strict}

    def parse(self, payload: Mapping[str, Json]) -> tuple[PromptMessage, ...]:
        """Return the messages of a payload in normal form; see `Codec.parse`."""
        self.check(payload)
        parsed: Arranged = [(parse_item(item), 0) for item in _list_items(payload)]
        return self.normal([message for message, _ in _group_messages(parsed, discard_note)])

    def diagnosed(self, payload: Mapping[str, Json], previous: str | None) -> dict[str, Json]:
        """Return the payload with the id of the response to compare with for a cache diagnosis.

        It is unchanged without an id, and for models before GPT-5.6, which give no diagnosis.
        """
        if previous is None or not self.traits.has_breakpoints:
            return dict(payload)
        options = {**payload.get("prompt_cache_options", {}), "comparison_response_id": previous}
        return {**payload, "prompt_cache_options": options}

    def usage(self, usage: object) -> Usage:
        """Read an answer, or its `usage`."""
        return openai_answers.parse_usage(usage, "input_tokens", "input_tokens_details")

    # ── counts ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _count_message(self, message: PromptMessage) -> int:
        return super()._count_message(parse_known_items(message, discard_note))

    def _count_part(self, part: Part) -> int:
        """Return the tokens of a part; the fields of a native call cost `NATIVE` more, those of its result less."""
        tokens = super()._count_part(part)
        fields = extra_fields_of(part)
        if fields is None or fields["type"] in (CALL, RESULT) or "call_id" in fields:
            return tokens
        if native_items.form_of_call(fields["type"]) is not None:
            return tokens + NATIVE
        return max(0, tokens - NATIVE)

    def _count_headers(self, parts: Sequence[Part]) -> int:
        """Return how many messages the texts and media make: an item between them begins a new one."""
        headers = 0
        previous_is_item = True
        for part in parts:
            if _is_call(part):
                continue
            is_item = isinstance(part, Raw)
            headers += previous_is_item and not is_item
            previous_is_item = is_item
        return headers

    def _count_base(self, tools: Sequence[Tool]) -> tuple[int, bool]:
        """Return the tokens of a request without its messages; the recipe does not cover them.

        The framing is not published. Every request is charged 24 tokens more (72 for a model that reasons), and another
        200 if it has tools. The only sources are examples in the API reference: 36 tokens for a message of 11
        (gpt-4.1), and 291 for a message of 9 with a tool (gpt-4o). The 72 are a guess on the safe side. Calibration
        corrects all of them.
        """
        tokens, _ = super()._count_base(tools)
        tokens += 72 if self.traits.reasons else 24
        return (tokens + 200 if tools else tokens), False

    def _count_payload(self, payload: Mapping[str, Json]) -> Count:
        framing = self.framing
        tools_given = payload.get("tools") or ()
        functions = [tool for tool in tools_given if tool.get("type", "function") == "function"]
        other_tools = [tool for tool in tools_given if tool.get("type", "function") != "function"]
        tokens, _ = self._count_base([parse_tool(tool) for tool in functions])
        tokens += sum([framing.raw(dump(tool)) for tool in other_tools])
        tool_tokens = tokens - framing.primer
        items = _list_items(payload)
        tokens -= framing.count_default_system([item.get("role", "") for item in items])
        for item in items:
            message = parse_item(item)
            for part in message.parts:
                if isinstance(part, ToolResult):
                    tokens += framing.result(part.call_id) + self.counter.count(part.output)
                else:
                    tokens += self._count_payload_part(part)
            is_message = item.get("type", "message") == "message"
            is_verbatim = bool(message.parts) and isinstance(message.parts[0], Raw)
            if is_message and not is_verbatim:
                tokens += framing.role(message.role)
        return self.counted(tokens, tool_tokens, covered=False)

    # ── rules of the API ────────────────────────────────────────────────────────────────────────────────────────

    def check(self, payload: Mapping[str, Json]) -> None:
        """Raise `PayloadError` if the API would refuse a payload: shapes, roles, and calls without their outputs."""
        items = payload.get("input")
        is_input = isinstance(items, str | list)
        require(is_input, "must be a text or a list of items: this is no payload of Responses", "input")
        require(items, "must not be empty: give at least one message", "input")
        if isinstance(items, list):
            _check_items(items)
        check_strings(payload)
        check_tools(payload, lambda tool: tool if tool.get("type") == "function" else None)
        check_key(payload)


def _list_items(payload: Mapping[str, Json]) -> Sequence[Mapping[str, Json]]:
    """Return the items of a payload; a text alone is a message of the user."""
    items = payload["input"]
    return [{"role": "user", "content": items}] if isinstance(items, str) else items


# ── messages of the model ───────────────────────────────────────────────────────────────────────────────────────────


def _group_messages(arranged: Iterable[tuple[PromptMessage, int]], note: Note) -> Arranged:
    """Return messages grouped as they can be read back from the items: a step of the model is one message.

    In a message, verbatim items come first, then at most one text, then the calls. The API refuses reasoning that
    nothing follows, so it is left out.
    """
    fragments: Arranged = []
    for message, given_count in arranged:
        fragments += [(fragment, given_count) for fragment in _split_message(message)]
    grouped: Arranged = []
    for message, given_count in _join_fragments(fragments):
        parts = list(message.parts)
        while parts and _is_reasoning(parts[-1]):
            note("reasoning that nothing follows is left out")
            parts.pop()
        if parts:
            grouped.append((with_parts(message, parts), given_count))
    return grouped


def _split_message(message: PromptMessage) -> list[PromptMessage]:
    """Split a message where an item stands between texts; items go to the assistant, in messages of any role."""
    if len(message.parts) == 1 and _is_item(message.parts[0]):
        return [with_parts(message, message.parts, Role.ASSISTANT)]
    if not any(map(_is_item, message.parts)):
        return [message]
    fragments: list[tuple[Role, list[Part]]] = []
    for part in message.parts:
        role = Role.ASSISTANT if isinstance(part, Raw) else message.role
        if fragments and fragments[-1][0] is role and _can_append_part(fragments[-1][1], part, role):
            fragments[-1][1].append(part)
        else:
            fragments.append((role, [part]))
    return [with_parts(message, parts, role) for role, parts in fragments]


def _can_append_part(parts: Sequence[Part], part: Part, role: Role) -> bool:
    return role is not Role.ASSISTANT or _is_call(part) or all(map(_is_item, parts))


def _join_fragments(fragments: Arranged) -> Arranged:
    """Return messages in which adjacent ones of the assistant are one, as far as they can be."""
    joined_messages: Arranged = []
    for message, given_count in fragments:
        previous, previous_count = joined_messages[-1] if joined_messages else (None, 0)
        if previous is not None and _can_join_messages(previous, message):
            joined_messages[-1] = (_join_messages(previous, message), max(previous_count, given_count))
        else:
            joined_messages.append((message, given_count))
    return joined_messages


def _can_join_messages(previous: PromptMessage, message: PromptMessage) -> bool:
    are_of_assistant = previous.role is Role.ASSISTANT and message.role is Role.ASSISTANT
    return are_of_assistant and _can_append_part(previous.parts, message.parts[0], Role.ASSISTANT)


def _join_messages(previous: PromptMessage, message: PromptMessage) -> PromptMessage:
    # The tool group is that of the calls in `message`. Calls in both were made side by side and have no common group.
    has_calls = any(isinstance(part, ToolCall) for part in previous.parts)
    return PromptMessage(
        role=Role.ASSISTANT,
        parts=(*previous.parts, *message.parts),
        sources=tuple(dict.fromkeys((*previous.sources, *message.sources))),
        group=None if has_calls else message.group,
    )


def _is_reasoning(part: Part) -> bool:
    return isinstance(part, Raw) and (parse_raw_object(part) or {}).get("type") == "reasoning"


def _is_item(part: Part) -> bool:
    """Return whether a part is an item of its own."""
    return isinstance(part, Raw) and part.vendor != EXTRA_FIELDS


def _is_call(part: Part) -> bool:
    """Return whether a part is a call, or holds further fields of one."""
    return isinstance(part, ToolCall) or (isinstance(part, Raw) and part.vendor == EXTRA_FIELDS)


# ── calls of native tools ───────────────────────────────────────────────────────────────────────────────────────────


def _write_native_pairs(arranged: Arranged) -> Arranged:
    """Return messages in which a native call and its result are both written natively, or both as a function's.

    The placeholder of a result is left out behind a call of an unknown type, which may need none.
    """
    answers: dict[int, Sequence[Part]] = {}
    written_messages: Arranged = []
    for index, (message, given_count) in enumerate(arranged):
        if index in answers:
            parts = answers[index]
        elif any(isinstance(part, ToolCall) for part in message.parts):
            parts = _write_native_calls(arranged, index, answers)
        else:
            parts = message.parts
        if parts:
            written_messages.append((with_parts(message, parts), given_count))
    return _join_fragments(written_messages)


def _write_native_calls(arranged: Arranged, index: int, answers: dict[int, Sequence[Part]]) -> list[Part]:
    """Return the parts of a message in the form that the API expects, each call written together with its answer.

    The rewritten parts of the answering messages are put into `answers`, by index.
    """
    parts: list[Part] = []
    follows_reasoning = False
    answer_indexes = _find_answer_indexes(arranged, index)
    for part, fields in pair_with_fields(arranged[index][0].parts):
        follows_reasoning = follows_reasoning or _is_reasoning(part)
        answer_index = answer_indexes.get(part.call_id) if isinstance(part, ToolCall) else None
        if isinstance(part, ToolCall) and answer_index is not None:
            answer = arranged[answer_index][0]
            # The API accepts an item under the id that it assigned only after the reasoning that led to the item.
            call_parts, answer_parts = _write_pair(part, fields, answer, keep_id=follows_reasoning)
            parts += call_parts
            answers[answer_index] = answer_parts
        else:
            parts.append(part)
    return parts


def _find_answer_indexes(arranged: Arranged, index: int) -> dict[str, int]:
    """Return the indexes of the answers to the calls of a message, by the ids of the calls."""
    indexes: dict[str, int] = {}
    for answer_index in range(index + 1, len(arranged)):
        message = arranged[answer_index][0]
        if message.role is not Role.TOOL:
            break
        for part in message.parts:
            if isinstance(part, ToolResult):
                indexes[part.call_id] = answer_index
    return indexes


def _write_pair(
    call: ToolCall, fields: ItemFields, answer: PromptMessage, *, keep_id: bool
) -> tuple[Sequence[Part], Sequence[Part]]:
    """Return the parts of a call and of its answer as they are sent; no answer where an unknown call has none."""
    pairs = pair_with_fields(answer.parts)
    result, result_fields = next(
        (part, fields_after) for part, fields_after in pairs if isinstance(part, ToolResult)
    )
    assert isinstance(result, ToolResult)
    media = [part for part in answer.parts if isinstance(part, Media)]
    if fields is not None and not keep_id:
        fields = _remove_optional_id(fields)
    if result_fields is not None:
        result_fields = _remove_optional_id(result_fields)
    if fields is not None and native_items.belongs_to_native_item(fields):
        pair = _write_native_pair(call, fields, result, result_fields, media)
        if pair is not None:
            return pair
    call_parts: list[Part] = [call]
    if fields is not None and fields["type"] == CALL:
        call_parts.append(Raw(EXTRA_FIELDS, dump(to_plain_json(fields))))
    result_parts: list[Part] = [result]
    if result_fields is not None and result_fields["type"] == RESULT:
        result_parts.append(Raw(EXTRA_FIELDS, dump(to_plain_json(result_fields))))
    return call_parts, [*result_parts, *media]


def _remove_optional_id(fields: Mapping[str, Json]) -> Mapping[str, Json]:
    """Return the fields of an item without its id, unless the API refuses items of its type without one."""
    if fields["type"] in NEEDS_ID:
        return fields
    return {name: value for name, value in fields.items() if name != "id"}


def _write_native_pair(
    call: ToolCall,
    fields: Mapping[str, Json],
    result: ToolResult,
    result_fields: ItemFields,
    media: Sequence[Media],
) -> tuple[Sequence[Part], Sequence[Part]] | None:
    """Return the parts of a native call and of its answer, or None if their texts no longer fit their items."""
    kind = fields["type"]
    call_item = native_items.write_call(call, fields)
    if call_item is None:
        return None
    is_unknown = "call_id" in fields
    if is_unknown:
        call_item["call_id"] = fields["call_id"]
    if kind not in CALLS and result.output == NO_RESULT:
        return parse_item(call_item).parts, ()
    result_item = native_items.write_result(result, media, kind, result_fields or {})
    if result_item is None:
        return None
    if is_unknown:
        result_item["call_id"] = fields["call_id"]
    result_parts = parse_item(result_item).parts
    if not any(isinstance(part, Media) for part in result_parts):
        result_parts = (*result_parts, *media)
    return parse_item(call_item).parts, result_parts


# ── ids ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _with_unique_ids(arranged: Arranged, note: Note) -> Arranged:
    """Return messages in which no two calls have the same id, and no two items.

    A result takes the new id of its call, which is in the message before it. Items of an unknown type keep their
    call id, since it is not known which of them may share one.
    """
    used_ids: set[str] = set()
    new_id_of_call: dict[str, str] = {}
    unique: Arranged = []
    for message, given_count in arranged:
        parts: list[Part] = []
        if message.role is not Role.TOOL:
            new_id_of_call = {}
        for part, following in zip(message.parts, (*message.parts[1:], None), strict=True):
            match part:
                case ToolCall(call_id) if _has_unknown_type(following):
                    used_ids.add(call_id)
                case ToolCall(call_id):
                    new_id_of_call[call_id] = _take_unused_id(call_id, used_ids)
                    part = _with_call_id(part, new_id_of_call[call_id])
                case ToolResult(call_id) if not _has_unknown_type(following):
                    part = _with_call_id(part, new_id_of_call.get(call_id, call_id))
                case Raw():
                    part = _with_unused_item_id(part, used_ids)
                case _:
                    pass
            parts.append(part)
        if tuple(parts) != message.parts:
            note("calls with one id get ids of their own")
        unique.append((with_parts(message, parts), given_count))
    return unique


def _has_unknown_type(following: Part | None) -> bool:
    """Return whether a call or result, of which this is the part behind it, came as an item of an unknown type."""
    return "call_id" in (extra_fields_of(following) or ())


def _with_call_id(part: ToolCall | ToolResult, call_id: str) -> ToolCall | ToolResult:
    return part if part.call_id == call_id else replace(part, call_id=call_id)


def _take_unused_id(id: str, used_ids: set[str]) -> str:
    """Return an id, or a number if the id is used, and add it to the used ids; a number costs no more tokens."""
    number = len(used_ids) + 1
    while id in used_ids:
        id, number = str(number), number + 1
    used_ids.add(id)
    return id


def _with_unused_item_id(raw: Raw, used_ids: set[str]) -> Raw:
    """Return an item, or the further fields of one, with an id that no other has."""
    item = parse_raw_object(raw) if '"id":' in raw.json else None
    if item is None or item.get("type") == "item_reference":
        return raw
    id = item.get("id")
    if not isinstance(id, str):
        return raw
    unused, number = id, 1
    while unused in used_ids:
        number += 1
        suffix = f"_{number}"
        unused = id[: max(len(id) - len(suffix), 0)] + suffix
    used_ids.add(unused)
    return raw if unused == id else Raw(raw.vendor, dump({**item, "id": unused}))


# ── rules of the API ────────────────────────────────────────────────────────────────────────────────────────────────


def _check_items(items: Sequence[Json]) -> None:
    """Raise `PayloadError` for an invalid item, a repeated item id, or a call without its output."""
    pairs = _Pairs()
    ids: set[str] = set()
    for index, item in enumerate(items):
        path = ("input", index)
        require(isinstance(item, Mapping), "must be an object", *path)
        kind = item.get("type", "message")
        require(isinstance(kind, str), "must name the kind of item", *path, "type")
        id = item.get("id")
        if isinstance(id, str) and kind != "item_reference":
            require(id not in ids, "is the id of an item before it: give each its own", *path, "id")
            ids.add(id)
        if kind == "message":
            _check_message(item, *path)
        elif kind == "reasoning":
            _check_reasoning(items[index + 1 : index + 2], *path)
        else:
            pairs.check(item, kind, *path)
    pairs.check_end()


def _check_message(item: Mapping[str, Json], *path: str | int) -> None:
    """Raise `PayloadError` for an invalid message item: its role, or parts that this role cannot have."""
    role = item.get("role")
    if role not in ROLES:
        refuse(f"must be one of {', '.join(ROLES)}", *path, "role")
    content: Json = item.get("content", "")
    is_valid = isinstance(content, str | list) and content
    require(is_valid, "must be a text or a list of parts that is not empty", *path, "content")
    if isinstance(content, str):
        return
    kinds = ("input_text", "input_image", "input_file", "input_audio")
    if role == Role.ASSISTANT.value:
        kinds = ("output_text", "refusal")
    for index, part in enumerate(content):
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind not in kinds:
            problem = f"must be one of {', '.join(kinds)} in a message of the {role}"
            refuse(problem, *path, "content", index, "type")
        if kind in ("input_text", "output_text"):
            require(isinstance(part.get("text"), str), "must be a text", *path, "content", index, "text")


def _check_reasoning(following: Sequence[Json], *path: str | int) -> None:
    """Raise for reasoning that does not lead to something the model did."""
    item = following[0] if following and isinstance(following[0], Mapping) else {}
    kind = str(item.get("type", "message"))
    is_of_model = kind != "message" or item.get("role") == Role.ASSISTANT.value
    follows = item and is_of_model and not kind.endswith("_output")
    require(follows, "is reasoning: what the model did after it must follow, or leave it out", *path)


class _Pairs:
    """The calls of a payload and their results, item by item."""

    def __init__(self) -> None:
        #: Open calls: their type and path, by their ids.
        self._open: dict[str, tuple[str, tuple[str | int, ...]]] = {}
        self._ids: set[str] = set()

    def check(self, item: Mapping[str, Json], kind: str, *path: str | int) -> None:
        """Raise `PayloadError` for an id that is used twice, and for a result that answers no open call of its type."""
        if kind in CALLS:
            self._check_call(item, kind, *path)
        elif kind in RESULTS:
            self._check_result(item, kind, *path)

    def _check_result(self, item: Mapping[str, Json], kind: str, *path: str | int) -> None:
        """Raise `PayloadError` unless a result answers an open call of its kind; close that call."""
        call_kind = RESULTS[kind]
        id_field = CALLS[call_kind].answer_field
        id = item.get(id_field)
        if id is None and kind == "tool_search_output":
            return  # of a search that the provider ran itself
        open_kind, _ = self._open.pop(str(id), ("", ()))
        if open_kind != call_kind:
            problem = f"answers {id!r}, which is no open {call_kind} before it: put it behind its call, once"
            refuse(problem, *path, id_field)
        if kind == RESULT:
            is_output = isinstance(item.get("output"), str | list)
            require(is_output, "must be a text or a list of parts", *path, "output")

    def _check_call(self, item: Mapping[str, Json], kind: str, *path: str | int) -> None:
        """Raise `PayloadError` for a call with an invalid or repeated id; add it to the open calls."""
        id_field = CALLS[kind].id_field
        id = item.get(id_field)
        # A search that the provider ran itself has no id.
        if id is None and kind == "tool_search_call":
            return
        longest = OpenAIResponses.id_chars
        is_id = isinstance(id, str) and 1 <= len(id) <= longest
        require(is_id, f"must have 1 to {longest} characters", *path, id_field)
        require(id not in self._ids, "is the id of a call before it: give each its own", *path, id_field)
        self._ids.add(str(id))
        self._open[str(id)] = kind, path
        if kind == CALL:
            check_name(item.get("name"), *path, "name")
            require(isinstance(item.get("arguments"), str), "must be JSON text", *path, "arguments")

    def check_end(self) -> None:
        """Raise `PayloadError` for a call that has no result."""
        for id, (kind, path) in self._open.items():
            if kind not in ("tool_search_call", "mcp_approval_request"):
                refuse(f"has no output for {id!r}: answer every call", *path)
