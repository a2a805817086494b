"""OpenAI Chat Completions: `messages`, `tools` and cache hints."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from acms.log.native_items import AS_GIVEN
from acms.model import Json, Media, Part, Raw, Reasoning, Role, Text, ToolCall, ToolResult
from acms.prompt_types import CacheMark, Count, PromptMessage, Tool, Usage
from acms.providers.codecs import gemini, openai_answers, openai_base
from acms.providers.codecs.framing import check_strings, dump, to_plain_json
from acms.providers.codecs.openai_base import (
    BREAKPOINT,
    NAME,
    OWN_MODELS,
    OpenAICodec,
    check_key,
    check_name,
    check_tools,
    payload_error,
)
from acms.text import chat_messages

__all__ = ["OpenAIChat"]

_KEYS = {
    Role.SYSTEM: {"role", "content", "name"},
    Role.DEVELOPER: {"role", "content", "name"},
    Role.USER: {"role", "content", "name"},
    Role.ASSISTANT: {"role", "content", "name", "tool_calls", "refusal", "audio"},
    Role.TOOL: {"role", "content", "tool_call_id"},
}
_CONTENTS = {
    Role.SYSTEM: {"text"},
    Role.DEVELOPER: {"text"},
    Role.USER: {"text", "image_url", "input_audio", "file"},
    Role.ASSISTANT: {"text", "refusal"},
    Role.TOOL: {"text"},
}
_ROLES = {role.value: role for role in Role}
_REQUESTED = frozenset(("prefix", "partial"))
"""Fields with which a request asks that the model goes on with a message."""


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

    name = "openai-chat"
    id_chars = 40
    vendors: tuple[str, ...] = ("openai-chat",)
    recipe = True

    @property
    def _returns_fields(self) -> bool:
        """Return whether fields that OpenAI does not know go back to where they came from."""
        return OWN_MODELS.match(self.model) is None

    def _belongs_to_tool(self, raw: Raw, behind: Sequence[Part]) -> bool:
        called = any(isinstance(part, ToolCall) for part in behind)
        return called and self._returns_fields and gemini.read_thought_signature(raw) is not None

    def _parts(self, message: PromptMessage, note: openai_base.Note) -> list[Part]:
        found = super()._parts(message, note)
        return found if any(_read_server_fields(part) is None for part in found) else []

    def _named(self, message: PromptMessage) -> bool:
        name = message.name
        return name is None or (message.role is not Role.TOOL and NAME.match(name) is not None)

    def _medium(self, media: Media, role: Role, note: openai_base.Note) -> Part:
        if role is not Role.USER:
            note("media outside a message of the user are mentioned in its text")
            return openai_base.media_to_text(media)
        # Images are fetched, other files are not: they are uploaded before, or come along.
        fits = chat_messages.is_url if chat_messages.is_image(media) else chat_messages.is_file_id
        if media.ref.startswith("data:") or fits(media.ref):
            return media
        note("media that the API cannot fetch are mentioned in the text")
        return openai_base.media_to_text(media)

    def _raw(self, raw: Raw, message: PromptMessage, note: openai_base.Note) -> Iterable[Part]:
        fields = _read_server_fields(raw)
        if fields is not None:
            sent = self._returns_fields and message.role is Role.ASSISTANT
            return (_server_fields_to_raw(fields),) if sent else ()
        item = openai_base.parse_raw_object(raw) if raw.vendor in self.vendors else None
        if item is None or item.get("type") not in _CONTENTS[message.role]:
            return openai_base.text_for_others(raw, note)
        part = _parse_content_part(item)
        return () if part == Text("") else (part,)

    def render(
        self,
        messages: Sequence[PromptMessage],
        *,
        tools: Sequence[Tool] = (),
        marks: Sequence[CacheMark] = (),
    ) -> dict[str, Json]:
        """Return `messages`, `tools` and cache hints; see `Codec.render`."""
        laid = self._laid(messages, openai_base.discard_note)
        written = [self._written(message) for message, _ in laid]
        payload: dict[str, Json] = {"messages": written}
        if tools:
            payload["tools"] = [_serialize_tool(tool) for tool in tools]
        if marks:
            ends = self._prefixes(marks, len(messages), laid)
            self._hints(payload, marks[0], written[: ends[0]])
            if self.known.breakpoints:
                for end in sorted(set(ends))[-openai_base.WRITES :]:
                    _mark_breakpoint(written[:end])
        self.check(payload)
        return payload

    def _written(self, message: PromptMessage) -> dict[str, Json]:
        role = message.role
        written: dict[str, Json] = {"role": role.value}
        contents: list[dict[str, Json]] = []
        calls: list[dict[str, Json]] = []
        extra: dict[str, Json] = {}
        for part in message.parts:
            match part:
                case Text(text):
                    contents.append({"type": "text", "text": text})
                case Media():
                    self._stated(part)
                    contents.append(chat_messages.render_media_part(part))
                case Raw(vendor) if vendor != self.name:
                    extra = _extra_of_call(part)
                    written.update(_read_server_fields(part) or {})
                case Raw():
                    contents.append(openai_base.parse_raw_object(part) or {})
                case ToolCall(call_id, name, arguments):
                    function = {"name": name, "arguments": arguments}
                    calls.append({"id": call_id, "type": "function", "function": function, **extra})
                    extra = {}
                case ToolResult(call_id, output):
                    written["tool_call_id"] = call_id
                    contents.append({"type": "text", "text": output})
                case Reasoning():
                    pass  # the normal form has none
        if len(contents) == 1 and contents[0].keys() == {"type", "text"}:
            written["content"] = contents[0]["text"]
        else:
            written["content"] = contents or None
        if message.name is not None:
            written["name"] = message.name
        if calls:
            written["tool_calls"] = calls
        return written

    def parse(self, payload: Mapping[str, Json]) -> tuple[PromptMessage, ...]:
        """Return the messages of a payload in normal form; see `Codec.parse`."""
        self.check(payload)
        return self.normal([_parse_message(message) for message in payload["messages"]])

    def count(self, payload: Mapping[str, Json]) -> Count:
        """Count a payload from scratch."""
        count, framing = self.counter.count, self.framing
        offered = [openai_base.parse_function(tool["function"]) for tool in payload.get("tools", ())]
        total, covered = self._start(offered)
        tools = total - self.framing.primer
        for message in payload["messages"]:
            role = _ROLES[message["role"]]
            if role is Role.TOOL:
                covered = False
                total += framing.result(message["tool_call_id"])
            else:
                total += framing.role(role)
            if "name" in message:
                total += framing.name(message["name"])
            content = message.get("content")
            if isinstance(content, str):
                total += count(content)
            else:
                covered = covered and content is not None and len(content) == 1
                for item in content or ():
                    part = _parse_content_part(openai_base.remove_breakpoint(item))
                    covered = covered and isinstance(part, Text)
                    total += self.referred(part.ref) if isinstance(part, Media) else self._part_cost(part)
            if (kept := _unknown_fields(message)) is not None:
                covered = False
                total += self._part_cost(kept)
            for call in message.get("tool_calls", ()):
                covered = False
                total += sum([self._part_cost(part) for part in _signature_of(call)])
                total += framing.call(call["id"], call["function"]["name"], call["function"]["arguments"])
            for key in ("refusal", "audio"):
                if message.get(key):
                    covered = False
                    total += framing.raw(dump(message[key]))
        total -= framing.without_default([message["role"] for message in payload["messages"]])
        if offered and covered and self.known.recipe:
            covered, more = self._adopted(payload["messages"])
            total += more
        return self.counted(total, tools, covered=covered)

    def _adopted(self, messages: Sequence[Mapping[str, Json]]) -> tuple[bool, int]:
        """Return whether it is known who takes in the tools, and what that changes."""
        if not self._bound:
            return False, 0
        for message in messages:
            if message["role"] == Role.SYSTEM.value and isinstance(message["content"], str):
                return True, self.framing.adopted(message["content"])
        return all(message["role"] != Role.DEVELOPER.value for message in messages), 0

    def usage(self, usage: object) -> Usage:
        """Read an answer, or its `usage`."""
        return openai_answers.parse_usage(usage, "prompt_tokens", "prompt_tokens_details")

    def check(self, payload: Mapping[str, Json]) -> None:
        """Raise `PayloadError` if the API would refuse a payload: shapes, roles, tool calls without their answers."""
        messages = payload.get("messages")
        if not isinstance(messages, list):
            raise payload_error(
                "must be a list of messages: this is no payload of Chat Completions", "messages"
            )
        if not messages:
            raise payload_error("must not be empty: give at least one message", "messages")
        waiting: dict[str, None] = {}
        for index, message in enumerate(messages):
            field = f"messages[{index}]"
            role = _check_message(message, field, more=self._returns_fields)
            if role is Role.TOOL:
                call_id = message["tool_call_id"]
                if call_id not in waiting:
                    raise payload_error(
                        f"answers {call_id!r}, which is no open call of the assistant message before it: put it "
                        "directly behind its call, once",
                        f"{field}.tool_call_id",
                    )
                del waiting[call_id]
                continue
            if waiting:
                raise payload_error(
                    f"comes before the answer to {next(iter(waiting))!r}: answer every call first", field
                )
            waiting = {call["id"]: None for call in message.get("tool_calls", ())}
        if waiting:
            raise payload_error(
                f"ends before the answer to {next(iter(waiting))!r}: answer every call", "messages"
            )
        check_tools(payload, lambda tool: tool.get("function") if tool.get("type") == "function" else {})
        check_key(payload)
        check_strings(payload)


def _parse_content_part(item: Mapping[str, Json]) -> Part:
    """Parse one part of a content list; keep it verbatim if no type of part holds all of it."""
    match item:
        case {"type": "text", "text": str(text)} if len(item) == 2:
            return Text(text)
        case {"type": "image_url", "image_url": {"url": str(url), **more}} if len(item) == 2 and not more:
            return Media("image/*", url)
        case {"type": "file", "file": {"file_id": str(ref), **more}} if len(item) == 2 and not more:
            return Media("application/octet-stream", ref)
        case {"type": "file", "file": {"filename": "file", "file_data": str(ref), **more}} if (
            len(item) == 2 and not more
        ):
            return Media("application/octet-stream", ref)
        case _:
            return Raw("openai-chat", dump(to_plain_json(item)))


def _serialize_tool(tool: Tool) -> dict[str, Json]:
    function: dict[str, Json] = {"name": tool.name}
    if tool.description:
        function["description"] = tool.description
    function["parameters"] = to_plain_json(tool.parameters)
    if tool.strict:
        function["strict"] = True
    return {"type": "function", "function": function}


def _mark_breakpoint(messages: Sequence[dict[str, Json]]) -> None:
    """Mark the end of a prefix on its last message that may carry a mark: one that the model did not write."""
    for message in reversed(messages):
        if message["role"] == Role.ASSISTANT.value or not message["content"]:
            continue
        content: Any = message["content"]
        parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
        message["content"] = [*parts[:-1], {**parts[-1], BREAKPOINT: {"mode": "explicit"}}]
        return


def _parse_message(message: Mapping[str, Json]) -> PromptMessage:
    role = _ROLES[message["role"]]
    content = message.get("content")
    parts: list[Part] = []
    if role is Role.TOOL:
        text = content if isinstance(content, str) else "\n".join([item["text"] for item in content or ()])
        return PromptMessage(role=role, parts=(ToolResult(message["tool_call_id"], text),))
    if isinstance(content, str):
        parts.append(Text(content))
    else:
        parts.extend(_parse_content_part(openai_base.remove_breakpoint(item)) for item in content or ())
    if message.get("refusal"):
        parts.append(Raw("openai-chat", dump({"type": "refusal", "refusal": message["refusal"]})))
    if (kept := _unknown_fields(message)) is not None:
        parts.append(kept)
    for call in message.get("tool_calls", ()):
        parts.extend(_signature_of(call))
        parts.append(ToolCall(call["id"], call["function"]["name"], call["function"]["arguments"]))
    return PromptMessage(role=role, parts=tuple(parts), name=message.get("name"))


def _read_server_fields(part: Part) -> dict[str, Json] | None:
    """Return the fields of a message that its server alone knows; None for any other part."""
    if not isinstance(part, Raw) or part.vendor != AS_GIVEN or '"fields"' not in part.json:
        return None
    kept = (openai_base.parse_raw_object(part) or {}).get("fields")
    fields = kept.get("openai-chat") if isinstance(kept, dict) else None
    if not isinstance(fields, dict):
        return None
    return {name: value for name, value in fields.items() if name not in _REQUESTED}


def _server_fields_to_raw(fields: Mapping[str, Json]) -> Raw:
    return Raw(AS_GIVEN, dump({"fields": {"openai-chat": to_plain_json(fields)}}))


def _unknown_fields(message: Mapping[str, Json]) -> Raw | None:
    """Return the fields of a message of a payload that only its server knows, as a part; None for none."""
    known = _KEYS[Role.ASSISTANT]
    fields = {name: value for name, value in message.items() if name not in known}
    return _server_fields_to_raw(fields) if fields and message["role"] == Role.ASSISTANT.value else None


def _extra_of_call(part: Part) -> dict[str, Json]:
    """Return the other fields of the call behind a thought signature; none for any other part."""
    signed = gemini.read_thought_signature(part) if isinstance(part, Raw) else None
    return {} if signed is None else {"extra_content": {"google": {"thought_signature": signed}}}


def _signature_of(call: Mapping[str, Json]) -> Sequence[Part]:
    """Return the thought signature of a call of Gemini's as the part that stands before the call."""
    match call.get("extra_content"):
        case {"google": {"thought_signature": str(signed)}}:
            return (gemini.signature_to_raw(signed),)
        case _:
            return ()


# ── rules of the API ────────────────────────────────────────────────────────────────────────────────────────────


def _check_message(message: Json, field: str, *, more: bool) -> Role:
    role = _ROLES.get(str(message.get("role"))) if isinstance(message, Mapping) else None
    if role is None:
        raise payload_error(f"must have one of the roles {', '.join(_ROLES)}", f"{field}.role")
    unknown = sorted(set(message) - _KEYS[role])
    if unknown and not (more and role is Role.ASSISTANT):
        raise payload_error(
            f"does not belong to a message of the {role.value}: leave it out", f"{field}.{unknown[0]}"
        )
    _check_content(message, role, field)
    name = message.get("name")
    if name is not None and not (isinstance(name, str) and NAME.match(name)):
        raise payload_error("must have 1 to 64 letters, digits, _ and -", f"{field}.name")
    if role is Role.TOOL and not _is_valid_call_id(message.get("tool_call_id")):
        raise payload_error("must name a call, with at most 40 characters", f"{field}.tool_call_id")
    if "tool_calls" in message:
        _check_calls(message["tool_calls"], f"{field}.tool_calls")
    return role


def _check_content(message: Mapping[str, Json], role: Role, field: str) -> None:
    content = message.get("content")
    if not content and role is Role.ASSISTANT:
        if any(message.get(key) for key in ("tool_calls", "refusal", "audio")):
            return
        raise payload_error("must say something, or call a tool", f"{field}.content")
    if isinstance(content, str) and (content or role is Role.TOOL):
        return
    if not isinstance(content, list) or not content:
        raise payload_error("must be a text or a list of parts that is not empty", f"{field}.content")
    for index, part in enumerate(content):
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind not in _CONTENTS[role]:
            raise payload_error(
                f"must be one of {', '.join(sorted(_CONTENTS[role]))} in a message of the {role.value}",
                f"{field}.content[{index}].type",
            )
        if kind in ("text", "refusal") and not (isinstance(part.get(kind), str) and part[kind]):
            raise payload_error("must be a text, and not empty", f"{field}.content[{index}].{kind}")
        if kind in ("image_url", "input_audio", "file") and not isinstance(part.get(kind), Mapping):
            raise payload_error("must be an object", f"{field}.content[{index}].{kind}")


def _is_valid_call_id(call_id: Json) -> bool:
    return isinstance(call_id, str) and 1 <= len(call_id) <= OpenAIChat.id_chars


def _check_calls(calls: Json, field: str) -> None:
    if not isinstance(calls, list) or not calls:
        raise payload_error("must be a list of calls that is not empty: leave it out without one", field)
    seen: set[str] = set()
    for index, call in enumerate(calls):
        if not isinstance(call, Mapping) or call.get("type") != "function":
            raise payload_error('must be "function"', f"{field}[{index}].type")
        if not _is_valid_call_id(call.get("id")):
            raise payload_error("must have 1 to 40 characters", f"{field}[{index}].id")
        if call["id"] in seen:
            raise payload_error(
                "must be another one than that of the calls beside it", f"{field}[{index}].id"
            )
        seen.add(call["id"])
        function = call.get("function")
        if not isinstance(function, Mapping) or not isinstance(function.get("arguments"), str):
            raise payload_error("must be a name and arguments as JSON text", f"{field}[{index}].function")
        check_name(function.get("name"), f"{field}[{index}].function.name")
