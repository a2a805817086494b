"""OpenAI Chat Completions: `messages`, `tools` and cache hints."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from acms.log.native_items import EXTRA_FIELDS
from acms.model import Json, Media, Part, Raw, Reasoning, Role, Text, ToolCall, ToolResult
from acms.prompt_types import Count, PromptMessage, Tool, Usage
from acms.providers.codecs import gemini, openai_answers
from acms.providers.codecs.checks import refuse, require
from acms.providers.codecs.framing import check_strings, dump, serialize_tool, to_plain_json
from acms.providers.codecs.openai_base import (
    NAME,
    OWN_MODELS,
    Note,
    OpenAICodec,
    check_key,
    check_name,
    check_tools,
    media_to_text,
    parse_raw_object,
    parse_tool,
    remove_breakpoint,
    unsupported_item_to_text,
)
from acms.text import chat_messages

__all__ = ["OpenAIChat"]

_VENDOR = "openai-chat"
_FIELDS = {
    Role.SYSTEM: {"role", "content", "name"},
    Role.DEVELOPER: {"role", "content", "name"},
    Role.USER: {"role", "content", "name"},
    Role.ASSISTANT: {"role", "content", "name", "tool_calls", "refusal", "audio"},
    Role.TOOL: {"role", "content", "tool_call_id"},
}
_CONTENT_TYPES = {
    Role.SYSTEM: ("text",),
    Role.DEVELOPER: ("text",),
    Role.USER: ("file", "image_url", "input_audio", "text"),
    Role.ASSISTANT: ("refusal", "text"),
    Role.TOOL: ("text",),
}
_PLAIN_FIELDS = {"role", "content"}
"""Fields of a message that is one text and no answer of a tool, as most are."""
_ROLES = {role.value: role for role in Role}
_CONTINUATION_FIELDS = ("prefix", "partial")
"""Fields with which a request asks that the model continues a message."""


class OpenAIChat(OpenAICodec):
    """The format of `client.chat.completions.create`.

    All five roles exist. Images go with messages of the user, and a `Raw` part of the vendor "openai-chat" is one part
    of a content list. Fields that only other servers of the format have, such as `reasoning_content`, and the thought
    signatures of Gemini's calls are sent back to models that are not OpenAI's; reasoning is not sent otherwise.

    Texts are counted by `counter`, by default the model's own vocabulary. Counts are exact for messages of text and
    plain tools on the models of the published recipe. For all others a budget is compared with a bound by
    `calibration`, which learns from reported counts, or until then with `margin` above the count (0.02). An explicit
    margin applies to all requests: then none is exact.
    """

    name = _VENDOR
    id_chars = 40
    vendors: tuple[str, ...] = (_VENDOR,)
    recipe = True
    messages_field = "messages"
    text_type = "text"

    # ── messages ────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def _returns_fields(self) -> bool:
        """Whether fields that OpenAI does not know go back to where they came from."""
        return OWN_MODELS.match(self.model) is None

    def _belongs_to_tool(self, raw: Raw, following: Sequence[Part]) -> bool:
        precedes_call = any(isinstance(part, ToolCall) for part in following)
        return precedes_call and self._returns_fields and gemini.read_thought_signature(raw) is not None

    def _sendable_parts(self, message: PromptMessage, note: Note) -> list[Part]:
        parts = super()._sendable_parts(message, note)
        # A message of nothing but extra fields has no content that a server would accept.
        return parts if any(_read_server_fields(part) is None for part in parts) else []

    def _accepts_name(self, message: PromptMessage) -> bool:
        name = message.name
        return name is None or (message.role is not Role.TOOL and NAME.match(name) is not None)

    def _sendable_media(self, media: Media, role: Role, note: Note) -> Part:
        """Return media of the user as they are if the API takes them; otherwise a text that mentions them."""
        if role is not Role.USER:
            note("media outside a message of the user are mentioned in its text")
            return media_to_text(media)
        # The API fetches images by URL. Other files must be uploaded before, or be inline data.
        if media.ref.startswith("data:") or chat_messages.can_send(media):
            return media
        note("media that the API cannot fetch are mentioned in the text")
        return media_to_text(media)

    def _sendable_item(self, raw: Raw, message: PromptMessage, note: Note) -> Iterable[Part]:
        """Return an item as this format can send it: server fields, a part of the content, or a text."""
        fields = _read_server_fields(raw)
        if fields is not None:
            is_sent = self._returns_fields and message.role is Role.ASSISTANT
            return (_server_fields_to_raw(fields),) if is_sent else ()
        item = parse_raw_object(raw) if raw.vendor == _VENDOR else None
        if item is None or item.get("type") not in _CONTENT_TYPES[message.role]:
            return unsupported_item_to_text(raw, note)
        part = _parse_content_part(item)
        return () if part == Text("") else (part,)

    # ── requests ────────────────────────────────────────────────────────────────────────────────────────────────

    def _serialize_message(self, message: PromptMessage) -> list[dict[str, Json]]:
        """Serialize a message.

        Raw parts of other vendors hold extra fields: a thought signature of the next call, or fields that one
        server knows.
        """
        serialized: dict[str, Json] = {"role": message.role.value}
        contents: list[dict[str, Json]] = []
        calls: list[dict[str, Json]] = []
        signature: dict[str, Json] = {}
        for part in message.parts:
            match part:
                case Text(text):
                    contents.append({"type": "text", "text": text})
                case Media():
                    self._remember_media(part)
                    contents.append(chat_messages.render_media_part(part))
                # Extra fields: of the call that follows, or of the message.
                case Raw(vendor) if vendor != _VENDOR:
                    signature = _serialize_signature(part)
                    serialized.update(_read_server_fields(part) or {})
                case Raw():
                    contents.append(parse_raw_object(part) or {})
                case ToolCall(call_id, name, arguments):
                    function = {"name": name, "arguments": arguments}
                    calls.append({"id": call_id, "type": "function", "function": function, **signature})
                    signature = {}
                case ToolResult(call_id, output):
                    serialized["tool_call_id"] = call_id
                    contents.append({"type": "text", "text": output})
                case Reasoning():
                    pass  # the normal form has none
        if len(contents) == 1 and contents[0].keys() == {"type", "text"}:
            serialized["content"] = contents[0]["text"]
        else:
            serialized["content"] = contents or None
        if message.name is not None:
            serialized["name"] = message.name
        if calls:
            serialized["tool_calls"] = calls
        return [serialized]

    def _serialize_tool(self, tool: Tool) -> dict[str, Json]:
        function = serialize_tool(tool, "parameters")
        if tool.strict:
            function["strict"] = True
        return {"type": "function", "function": function}

    def parse(self, payload: Mapping[str, Json]) -> tuple[PromptMessage, ...]:
        """Return the messages of a payload in normal form; see `Codec.parse`."""
        self.check(payload)
        return self.normal([_parse_message(message) for message in payload["messages"]])

    def usage(self, usage: object) -> Usage:
        """Read an answer, or its `usage`."""
        return openai_answers.parse_usage(usage, "prompt_tokens", "prompt_tokens_details")

    # ── counts ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _count_payload(self, payload: Mapping[str, Json]) -> Count:
        messages = payload["messages"]
        tools_given = payload.get("tools") or ()
        functions = [parse_tool(tool["function"]) for tool in tools_given if "function" in tool]
        tokens, is_covered = self._count_base(functions)
        for tool in tools_given:
            if "function" not in tool:
                tokens += self.framing.raw(dump(tool))
                is_covered = False
        tool_tokens = tokens - self.framing.primer
        for message in messages:
            if message.keys() == _PLAIN_FIELDS and isinstance(message["content"], str):
                tokens += self.framing.role(_ROLES[message["role"]]) + self.counter.count(message["content"])
                continue
            parts = [*_parse_contents(message), *_parse_calls(message)]
            tokens += self._count_frame(message) + sum([self._count_payload_part(part) for part in parts])
            is_covered = is_covered and _is_plain_text(message, parts)
        tokens -= self.framing.count_default_system([message["role"] for message in messages])
        if functions and is_covered and self.traits.follows_recipe:
            is_covered, added_tokens = self._count_adopted_tools(messages)
            tokens += added_tokens
        return self.counted(tokens, tool_tokens, covered=is_covered)

    def _count_frame(self, message: Mapping[str, Json]) -> int:
        """Return the tokens of a message of a payload without its parts."""
        framing = self.framing
        role = _ROLES[message["role"]]
        tokens = framing.result(message["tool_call_id"]) if role is Role.TOOL else framing.role(role)
        if message.get("name"):
            tokens += framing.name(message["name"])
        for field in ("refusal", "audio"):
            if message.get(field):
                tokens += framing.raw(dump(message[field]))
        return tokens

    def _count_adopted_tools(self, messages: Sequence[Mapping[str, Json]]) -> tuple[bool, int]:
        """Return whether the count of the tools is exact, and the tokens to add for where they are shown.

        The API shows the tools within the first system message if its content is a text. With a developer message it is
        not known where they are shown.
        """
        if not self._bound:
            return False, 0
        for message in messages:
            if message["role"] == Role.SYSTEM.value and isinstance(message["content"], str):
                return True, self.framing.count_tools_in_system(message["content"])
        return all(message["role"] != Role.DEVELOPER.value for message in messages), 0

    # ── rules of the API ────────────────────────────────────────────────────────────────────────────────────────

    def check(self, payload: Mapping[str, Json]) -> None:
        """Raise `PayloadError` if the API would refuse a payload: shapes, roles, tool calls without their answers."""
        messages: Json = payload.get("messages", "")
        is_list = isinstance(messages, list)
        require(is_list, "must be a list of messages: this is no payload of Chat Completions", "messages")
        require(messages, "must not be empty: give at least one message", "messages")
        open_calls: list[str] = []
        for index, message in enumerate(messages):
            path = ("messages", index)
            role = _check_message(message, *path, has_server_fields=self._returns_fields)
            if role is Role.TOOL:
                _close_call(message["tool_call_id"], open_calls, *path)
                continue
            if open_calls:
                refuse(f"comes before the answer to {open_calls[0]!r}: answer every call first", *path)
            open_calls = [call["id"] for call in message.get("tool_calls", ())]
        if open_calls:
            refuse(f"ends before the answer to {open_calls[0]!r}: answer every call", "messages")
        check_tools(payload, lambda tool: tool.get("function") if tool.get("type") == "function" else {})
        check_key(payload)
        check_strings(payload)


# ── parts of a payload ──────────────────────────────────────────────────────────────────────────────────────────────


def _parse_message(message: Mapping[str, Json]) -> PromptMessage:
    """Parse a message of a payload; a refusal is kept as a raw part."""
    role = _ROLES[message["role"]]
    if role is Role.TOOL:
        content = message.get("content") or ""
        text = content if isinstance(content, str) else "\n".join([item["text"] for item in content])
        return PromptMessage(role=role, parts=(ToolResult(message["tool_call_id"], text),))
    parts = _parse_contents(message)
    if message.get("refusal"):
        parts.append(Raw(_VENDOR, dump({"type": "refusal", "refusal": message["refusal"]})))
    parts += _parse_calls(message)
    return PromptMessage(role=role, parts=tuple(parts), name=message.get("name"))


def _parse_contents(message: Mapping[str, Json]) -> list[Part]:
    content = message.get("content")
    if isinstance(content, str):
        return [Text(content)]
    return [_parse_content_part(remove_breakpoint(item)) for item in content or ()]


def _parse_content_part(item: Mapping[str, Json]) -> Part:
    """Parse one part of a content list; keep it verbatim if no type of part holds all of it."""
    inner = item.get(item.get("type", ""))
    if len(item) == 2:
        match item["type"], inner:
            case "text", str(text):
                return Text(text)
            case "image_url", {"url": str(url)} if len(inner) == 1:
                return Media("image/*", url)
            case "file", {"file_id": str(ref)} if len(inner) == 1:
                return Media("application/octet-stream", ref)
            case "file", {"filename": "file", "file_data": str(ref)} if len(inner) == 2:
                return Media("application/octet-stream", ref)
            case _:
                pass
    return Raw(_VENDOR, dump(to_plain_json(item)))


def _parse_calls(message: Mapping[str, Json]) -> list[Part]:
    """Return the calls of a message, each behind its thought signature, after the fields that only its server knows."""
    parts: list[Part] = []
    unknown = message.keys() - _FIELDS[Role.ASSISTANT]
    if unknown and message["role"] == Role.ASSISTANT.value:
        parts.append(_server_fields_to_raw({name: message[name] for name in unknown}))
    for call in message.get("tool_calls") or ():
        match call.get("extra_content"):
            case {"google": {"thought_signature": str(signature)}}:
                parts.append(gemini.signature_to_raw(signature))
            case _:
                pass
        if "function" in call:
            parts.append(ToolCall(call["id"], call["function"]["name"], call["function"]["arguments"]))
        else:
            parts.append(ToolCall(call["id"], call["custom"]["name"], call["custom"]["input"]))
    return parts


def _is_plain_text(message: Mapping[str, Json], parts: Sequence[Part]) -> bool:
    """Return whether a message is one text, which is all that the counting recipe is about."""
    if message["role"] == Role.TOOL.value or message.get("refusal") or message.get("audio"):
        return False
    return len(parts) == 1 and isinstance(parts[0], Text)


def _read_server_fields(part: Part) -> dict[str, Json] | None:
    """Return the fields of a message that its server alone knows, or None for any other part."""
    if not isinstance(part, Raw) or part.vendor != EXTRA_FIELDS or '"fields"' not in part.json:
        return None
    match parse_raw_object(part):
        case {"fields": {"openai-chat": dict() as fields}}:
            return {name: value for name, value in fields.items() if name not in _CONTINUATION_FIELDS}
        case _:
            return None


def _server_fields_to_raw(fields: Mapping[str, Json]) -> Raw:
    return Raw(EXTRA_FIELDS, dump({"fields": {_VENDOR: to_plain_json(fields)}}))


def _serialize_signature(raw: Raw) -> dict[str, Json]:
    """Return a thought signature as a field of the call behind it; no field for any other item."""
    signature = gemini.read_thought_signature(raw)
    return {} if signature is None else {"extra_content": {"google": {"thought_signature": signature}}}


# ── rules of the API ────────────────────────────────────────────────────────────────────────────────────────────────


def _check_message(message: Json, *path: str | int, has_server_fields: bool) -> Role:
    """Raise `PayloadError` for an invalid message; return its role."""
    role = _ROLES.get(str(message.get("role"))) if isinstance(message, Mapping) else None
    if role is None:
        refuse(f"must have one of the roles {', '.join(_ROLES)}", *path, "role")
    unknown = sorted(set(message) - _FIELDS[role])
    if unknown and not (has_server_fields and role is Role.ASSISTANT):
        refuse(f"does not belong to a message of the {role.value}: leave it out", *path, unknown[0])
    _check_content(message, role, *path)
    name = message.get("name")
    if name is not None:
        check_name(name, *path, "name")
    if role is Role.TOOL:
        is_id = _is_valid_call_id(message.get("tool_call_id"))
        require(is_id, "must name a call, with at most 40 characters", *path, "tool_call_id")
    if "tool_calls" in message:
        _check_calls(message["tool_calls"], *path, "tool_calls")
    return role


def _close_call(call_id: str, open_calls: list[str], *path: str | int) -> None:
    """Remove the call that a tool message answers from the open ones; raise if it answers none of them."""
    if call_id not in open_calls:
        refuse(
            f"answers {call_id!r}, which is no open call of the assistant message before it: put it "
            "directly behind its call, once",
            *path,
            "tool_call_id",
        )
    open_calls.remove(call_id)


def _check_content(message: Mapping[str, Json], role: Role, *path: str | int) -> None:
    """Raise `PayloadError` for a content that a message of this role cannot have."""
    content = message.get("content")
    if not content and role is Role.ASSISTANT:
        has_other_content = any(message.get(key) for key in ("tool_calls", "refusal", "audio"))
        require(has_other_content, "must say something, or call a tool", *path, "content")
        return
    if isinstance(content, str) and (content or role is Role.TOOL):
        return
    if not isinstance(content, list) or not content:
        refuse("must be a text or a list of parts that is not empty", *path, "content")
    kinds = _CONTENT_TYPES[role]
    for index, part in enumerate(content):
        kind = part.get("type") if isinstance(part, Mapping) else ""
        if kind not in kinds:
            problem = f"must be one of {', '.join(kinds)} in a message of the {role.value}"
            refuse(problem, *path, "content", index, "type")
        inner = part.get(kind)
        if kind in ("text", "refusal"):
            is_text = isinstance(inner, str) and inner
            require(is_text, "must be a text, and not empty", *path, "content", index, kind)
        else:
            require(isinstance(inner, Mapping), "must be an object", *path, "content", index, str(kind))


def _is_valid_call_id(call_id: Json) -> bool:
    return isinstance(call_id, str) and 1 <= len(call_id) <= OpenAIChat.id_chars


def _check_calls(calls: Json, *path: str | int) -> None:
    """Raise `PayloadError` for invalid tool calls of one message."""
    is_list = isinstance(calls, list) and calls
    require(is_list, "must be a list of calls that is not empty: leave it out without one", *path)
    ids: set[str] = set()
    for index, call in enumerate(calls):
        is_function = isinstance(call, Mapping) and call.get("type") == "function"
        require(is_function, 'must be "function"', *path, index, "type")
        id: Json = call.get("id", "")
        require(_is_valid_call_id(id), "must have 1 to 40 characters", *path, index, "id")
        require(id not in ids, "must be another one than that of the calls beside it", *path, index, "id")
        ids.add(id)
        function: Json = call.get("function", {})
        is_call = isinstance(function, Mapping) and isinstance(function.get("arguments"), str)
        require(is_call, "must be a name and arguments as JSON text", *path, index, "function")
        check_name(function.get("name"), *path, index, "function.name")
