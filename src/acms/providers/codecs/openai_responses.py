"""OpenAI Responses: `input` items, flat `tools` and cache hints.

Rules and instructions are items like all others, not `instructions`: that field stands before everything else, is not
kept from one response to the next, and cannot end a cached prefix.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from acms.log.foreign import AS_GIVEN
from acms.model import Json, Media, Part, Raw, Reasoning, Role, Text, ToolCall, ToolResult
from acms.prompt_types import CacheMark, Count, PromptMessage, Tool, Usage
from acms.providers.codecs import openai_answers, openai_base
from acms.providers.codecs.framing import Function, dump, thawed
from acms.providers.codecs.openai_base import BREAKPOINT, NAME, OpenAICodec, check_key, check_tools, fault
from acms.text import chat_messages

__all__ = ["OpenAIResponses"]

_VENDOR = "openai-responses"
_ROLES = {role.value: role for role in Role if role is not Role.TOOL}
_TEXTS = ("input_text", "output_text")
_UNDERSTOOD = ("message", "function_call", "function_call_output")
PREAMBLE, REASONING, TOOLBOX = 24, 72, 200
"""Tokens that every request, one to a model that reasons, and one with tools are charged besides.

Copies of the API reference's examples are all there is: 36 tokens for a message of 11 (gpt-4.1), 291 for one of 9 and a
tool (gpt-4o). For models that reason nothing was found: a guess on the safe side. Calibration finds out.
"""
HALF_AN_HOUR = 1_800
"""Seconds a prefix is kept at least when nothing is asked for."""


class OpenAIResponses(OpenAICodec):
    """The format of `client.responses.create`.

    There is no field for who speaks: a user's name stands before the text. A `Raw` part of the vendor
    "openai-responses" is an item of its own, sent verbatim: reasoning with encrypted content, searches, references. So
    is what the OpenAI Agents SDK has stored and ACMS does not understand. A `Reasoning` part is not sent: it does not
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
            return openai_base.mention(media)
        if chat_messages.is_url(media.ref) or chat_messages.is_file_id(media.ref):
            return media
        note("media that the API cannot fetch are mentioned in the text")
        return openai_base.mention(media)

    def _raw(self, raw: Raw, message: PromptMessage, note: openai_base.Note) -> Iterable[Part]:
        item = openai_base.canonical(raw) if raw.vendor in self.vendors else None
        if item is None or not isinstance(item.get("type", "message"), str) or message.role is Role.TOOL:
            if raw.vendor != AS_GIVEN:
                note("items of other vendors are left out")
            return ()
        return (Raw(_VENDOR, dump(item)),)

    def _laid(
        self, messages: Sequence[PromptMessage], note: openai_base.Note
    ) -> list[tuple[PromptMessage, int]]:
        return _grouped(super()._laid([_understood(message, note) for message in messages], note), note)

    def _cost(self, message: PromptMessage) -> int:
        return super()._cost(_understood(message, openai_base.ignore))

    def _start(self, offered: Sequence[Function]) -> tuple[int, bool]:
        tokens, _ = super()._start(offered)
        preamble = REASONING if self.known.reasons else PREAMBLE
        return tokens + preamble + (TOOLBOX if offered else 0), False

    def _headers(self, parts: Sequence[Part]) -> int:
        # Texts with an item between them are messages of their own.
        runs = [not isinstance(part, Raw) for part in parts if not isinstance(part, ToolCall)]
        return sum(now and not before for before, now in zip([False, *runs], runs, strict=False))

    def render(
        self,
        messages: Sequence[PromptMessage],
        *,
        tools: Sequence[Tool] = (),
        marks: Sequence[CacheMark] = (),
    ) -> dict[str, Json]:
        """Return `input`, `tools` and cache hints; see `Codec.render`."""
        laid = self._laid(messages, openai_base.ignore)
        written = [self._written(message) for message, _ in laid]
        payload: dict[str, Json] = {"input": [item for items in written for item in items]}
        if tools:
            payload["tools"] = [_tool(tool) for tool in tools]
        if marks:
            ends = self._prefixes(marks, len(messages), laid)
            self._hints(payload, marks[0], [item for items in written[: ends[0]] for item in items])
            if self.known.breakpoints:
                for end in sorted(set(ends))[-openai_base.WRITES :]:
                    _break([item for items in written[:end] for item in items])
                if max(mark.ttl or 0 for mark in marks) > HALF_AN_HOUR:
                    payload["prompt_cache_options"] = {"ttl": "12h"}
        self.check(payload)
        return payload

    def _written(self, message: PromptMessage) -> list[dict[str, Json]]:
        items: list[dict[str, Json]] = []
        contents: list[dict[str, Json]] = []
        for part in message.parts:
            match part:
                case Text(text):
                    contents.append({"type": "input_text", "text": text})
                case Media():
                    self._stated(part)
                    contents.append(_medium(part))
                case Raw():
                    items.append(openai_base.canonical(part) or {})
                case ToolCall(call_id, name, arguments):
                    call = {"call_id": call_id, "name": name, "arguments": arguments}
                    items.append({"type": "function_call", **call})
                case ToolResult(call_id, output):
                    items.append({"type": "function_call_output", "call_id": call_id, "output": output})
                case Reasoning():
                    pass  # the normal form has none
        if message.role is Role.TOOL:
            output = items[0]["output"]
            told = [{"type": "input_text", "text": output}] if output else []
            return [{**items[0], "output": [*told, *contents]}] if contents else items
        if contents:
            plain = len(contents) == 1 and contents[0]["type"] == "input_text"
            content: Json = contents[0]["text"] if plain else contents
            calls = next((at for at, item in enumerate(items) if item["type"] == "function_call"), len(items))
            items.insert(calls, {"type": "message", "role": message.role.value, "content": content})
        return items

    def parse(self, payload: Mapping[str, Json]) -> tuple[PromptMessage, ...]:
        """Return the messages of a payload in normal form; see `Codec.parse`."""
        self.check(payload)
        given = payload["input"]
        if isinstance(given, str):
            return self.normal([PromptMessage(role=Role.USER, parts=(Text(given),))])
        read = [(_read(item), 0) for item in given]
        return self.normal([message for message, _ in _grouped(read, openai_base.ignore)])

    def count(self, payload: Mapping[str, Json]) -> Count:
        """Count a payload from scratch."""
        framing = self.framing
        total, _ = self._start([openai_base.function(tool) for tool in payload.get("tools", ())])
        tools = total - framing.primer
        given = payload["input"]
        if isinstance(given, str):
            given = [{"role": "user", "content": given}]
        total -= framing.without_default([item.get("role", "") for item in given])
        for item in given:
            message = _read(item)
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
        return openai_answers.read(usage, "input_tokens", "input_tokens_details")

    def check(self, payload: Mapping[str, Json]) -> None:
        """Raise `PayloadError` for what the API would refuse: shapes, roles, and calls without their outputs."""
        given = payload.get("input")
        if not isinstance(given, str | list):
            raise fault("must be a text or a list of items: this is no payload of Responses", "input")
        if not given:
            raise fault("must not be empty: give at least one message", "input")
        waiting: dict[str, str] = {}
        for index, item in enumerate(given if isinstance(given, list) else ()):
            field = f"input[{index}]"
            if not isinstance(item, Mapping):
                raise fault("must be an object", field)
            kind = item.get("type", "message")
            if kind == "message":
                _check_message(item, field)
            elif kind == "function_call":
                _check_call(item, field)
                if item["call_id"] in waiting:
                    raise fault(
                        "is the id of a call that is still open: give each its own", f"{field}.call_id"
                    )
                waiting[item["call_id"]] = field
            elif kind == "function_call_output":
                _check_output(item, field, waiting)
                del waiting[item["call_id"]]
            elif not isinstance(kind, str):
                raise fault("must name the kind of item", f"{field}.type")
        for call_id, field in waiting.items():
            raise fault(f"has no output for {call_id!r}: answer every call", field)
        check_tools(payload, lambda tool: tool if tool.get("type") == "function" else None)
        check_key(payload)


def _understood(message: PromptMessage, note: openai_base.Note) -> PromptMessage:
    """Return a message with its verbatim items read where they say no more than a part does."""
    if not any(isinstance(part, Raw) for part in message.parts):
        return message
    told = any(not isinstance(part, Raw) for part in message.parts)
    parts: list[Part] = []
    for part in _phased(message):
        item = (
            openai_base.canonical(part)
            if isinstance(part, Raw) and part.vendor in OpenAIResponses.vendors
            else None
        )
        if item is None:
            parts.append(part)
        elif (
            isinstance(part, Raw)
            and part.vendor != _VENDOR
            and told
            and item.get("type", "message") in _UNDERSTOOD
        ):
            continue  # an Agents SDK item beside the parts that were read from it
        elif item.get("type", "message") in _UNDERSTOOD and _faulty(item):
            note("items that the API would refuse are left out")
        else:
            parts.extend(_read(item).parts)
    return replace(message, parts=tuple(parts), tokens=None, counter="")


def _phased(message: PromptMessage) -> Sequence[Part]:
    """Return the parts of a message with the text of an answer as an item that says which phase it was said in.

    The provider asks for it: without, what the model said on its way passes for its answer.
    """
    kept = [
        openai_base.canonical(part)
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


def _faulty(item: Mapping[str, Json]) -> bool:
    match item:
        case {"type": "function_call", "call_id": str(), "name": str(), "arguments": str()}:
            return False
        case {"type": "function_call_output", "call_id": str(), "output": str() | list()}:
            return False
        case {"role": str(role), "content": str() | [_, *_]} if role in _ROLES:
            return item.get("type", "message") != "message"
        case _:
            return True


def _grouped(
    laid: Iterable[tuple[PromptMessage, int]], note: openai_base.Note
) -> list[tuple[PromptMessage, int]]:
    """Return messages in the groups that can be read back from the items: what the model did in one go is one message.

    Verbatim items lead, at most one text follows, calls end it. Reasoning that nothing follows is refused: left out.
    """
    found: list[tuple[PromptMessage, int]] = []
    for message, last in laid:
        for fragment in _fragments(message):
            if found and _joins(found[-1][0], fragment):
                before, at = found[-1]
                found[-1] = (_join(before, fragment), max(at, last))
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


def _fragments(message: PromptMessage) -> list[PromptMessage]:
    """Split a message where an item stands between texts; items are the model's, whoever's message they were in."""
    if not any(isinstance(part, Raw) for part in message.parts) or len(message.parts) == 1:
        only = message.parts[0]
        if isinstance(only, Raw) and message.role is not Role.ASSISTANT:
            return [replace(message, role=Role.ASSISTANT, tokens=None, counter="")]
        return [message]
    found: list[tuple[Role, list[Part]]] = []
    for part in message.parts:
        role = Role.ASSISTANT if isinstance(part, Raw) else message.role
        if found and found[-1][0] is role and _follows(found[-1][1], part, role):
            found[-1][1].append(part)
        else:
            found.append((role, [part]))
    return [replace(message, role=role, parts=tuple(parts), tokens=None, counter="") for role, parts in found]


def _follows(parts: Sequence[Part], part: Part, role: Role) -> bool:
    if role is not Role.ASSISTANT:
        return True
    return isinstance(part, ToolCall) or all(isinstance(one, Raw) for one in parts)


def _joins(before: PromptMessage, message: PromptMessage) -> bool:
    both = before.role is Role.ASSISTANT and message.role is Role.ASSISTANT
    return both and _follows(before.parts, message.parts[0], Role.ASSISTANT)


def _join(before: PromptMessage, message: PromptMessage) -> PromptMessage:
    # Calls are in the later one, and the group is theirs; calls in both were made side by side.
    both = any(isinstance(part, ToolCall) for part in before.parts)
    return PromptMessage(
        role=Role.ASSISTANT,
        parts=(*before.parts, *message.parts),
        sources=(*before.sources, *(id for id in message.sources if id not in before.sources)),
        group=None if both else message.group,
    )


def _is_reasoning(raw: Raw) -> bool:
    return (openai_base.canonical(raw) or {}).get("type") == "reasoning"


def _medium(media: Media) -> dict[str, Json]:
    ref = media.ref
    if chat_messages.is_image(media):
        key = "image_url" if chat_messages.is_url(ref) else "file_id"
        return {"type": "input_image", "detail": "auto", key: ref}
    if ref.startswith("data:"):
        return {"type": "input_file", "filename": "file", "file_data": ref}
    return {"type": "input_file", "file_url" if chat_messages.is_url(ref) else "file_id": ref}


def _content(item: Json) -> Part | None:
    """Read one part of a content list; None when it says more than a part can hold."""
    match openai_base.unmarked(item) if isinstance(item, Mapping) else item:
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


def _read(item: Mapping[str, Json]) -> PromptMessage:
    """Read one item: as what it is, or verbatim when it says more than that."""
    match item:
        case {"type": "function_call", "call_id": call_id, "name": name, "arguments": arguments}:
            return PromptMessage(role=Role.ASSISTANT, parts=(ToolCall(call_id, name, arguments),))
        case {"type": "function_call_output", "call_id": call_id, "output": output}:
            return PromptMessage(role=Role.TOOL, parts=_output(call_id, output))
        case {"role": str(role), "content": content, **more} if more in ({}, {"type": "message"}):
            if isinstance(content, str):
                return PromptMessage(role=_ROLES[role], parts=(Text(content),))
            read = [_content(part) for part in content]
            parts = tuple([part for part in read if part is not None])
            if len(parts) == len(read):
                return PromptMessage(role=_ROLES[role], parts=parts)
        case _:
            pass
    return PromptMessage(role=Role.ASSISTANT, parts=(Raw(_VENDOR, dump(thawed(item))),))


def _output(call_id: str, output: Json) -> tuple[Part, ...]:
    if isinstance(output, str):
        return (ToolResult(call_id, output),)
    read = [_content(part) for part in output]
    text = "\n".join([part.text for part in read if isinstance(part, Text)])
    return (ToolResult(call_id, text), *[part for part in read if isinstance(part, Media)])


def _tool(tool: Tool) -> dict[str, Json]:
    written: dict[str, Json] = {"type": "function", "name": tool.name}
    if tool.description:
        written["description"] = tool.description
    return {**written, "parameters": thawed(tool.parameters), "strict": tool.strict}


def _break(items: Sequence[dict[str, Json]]) -> None:
    """Mark the end of a prefix on its last item that may carry a mark: one that the model did not write."""
    for item in reversed(items):
        key = {"message": "content", "function_call_output": "output"}.get(item.get("type", "message"))
        if key is None or item.get("role") == Role.ASSISTANT.value or not item.get(key):
            continue
        content: Any = item[key]
        parts = [{"type": "input_text", "text": content}] if isinstance(content, str) else content
        item[key] = [*parts[:-1], {**parts[-1], BREAKPOINT: {"mode": "explicit"}}]
        return


# ── what the API refuses ────────────────────────────────────────────────────────────────────────────────────────


def _check_message(item: Mapping[str, Json], field: str) -> None:
    if item.get("role") not in _ROLES:
        raise fault(f"must be one of {', '.join(_ROLES)}", f"{field}.role")
    content = item.get("content")
    if isinstance(content, str):
        return
    if not isinstance(content, list) or not content:
        raise fault("must be a text or a list of parts that is not empty", f"{field}.content")
    own = "output_" if item["role"] == Role.ASSISTANT.value else "input_"
    for index, part in enumerate(content):
        kind = part.get("type") if isinstance(part, Mapping) else None
        if not isinstance(kind, str) or not (
            kind.startswith(own) or (own == "output_" and kind == "refusal")
        ):
            raise fault(
                f"must be {own}… in a message of the {item['role']}", f"{field}.content[{index}].type"
            )
        if kind in _TEXTS and not isinstance(part.get("text"), str):
            raise fault("must be a text", f"{field}.content[{index}].text")


def _check_output(item: Mapping[str, Json], field: str, waiting: Container[Json]) -> None:
    if item.get("call_id") not in waiting:
        raise fault(
            f"answers {item.get('call_id')!r}, which is no open call before it: put it behind its call, once",
            f"{field}.call_id",
        )
    if not isinstance(item.get("output"), str | list):
        raise fault("must be a text or a list of parts", f"{field}.output")


def _check_call(item: Mapping[str, Json], field: str) -> None:
    call_id = item.get("call_id")
    if not isinstance(call_id, str) or not 1 <= len(call_id) <= OpenAIResponses.id_chars:
        raise fault(f"must have 1 to {OpenAIResponses.id_chars} characters", f"{field}.call_id")
    if not isinstance(item.get("name"), str) or not NAME.match(item["name"]):
        raise fault("must have 1 to 64 letters, digits, _ and -", f"{field}.name")
    if not isinstance(item.get("arguments"), str):
        raise fault("must be JSON text", f"{field}.arguments")
