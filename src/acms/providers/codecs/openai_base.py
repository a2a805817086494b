"""The common part of the two APIs of OpenAI: how messages are mapped, and how a request is counted."""

from __future__ import annotations

import hashlib
import json
import re
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count, takewhile
from typing import Any

from acms.errors import PayloadError, ValidationError
from acms.log import validation
from acms.log.native_items import AS_GIVEN, item_text
from acms.model import Json, Media, Part, Raw, Reasoning, Role, Text, ToolCall, ToolResult
from acms.plan.nodes import Atom
from acms.plan.tool_groups import is_placeholder, join_answers
from acms.ports import RequestCounter, TokenCounter
from acms.prompt_types import CacheMark, Count, Exactness, PromptMessage, Tool
from acms.providers.codecs.calibration import Calibration
from acms.providers.codecs.framing import (
    KEY_CHARS,
    MEDIA,
    Framing,
    Function,
    cache_key,
    dump,
    find_published_traits,
    to_plain_json,
)
from acms.providers.codecs.request_count import CountingCodec, request_counts
from acms.providers.tokens import token_counter
from acms.text.chat_messages import ORPHAN, wrap_text

OWN_MODELS = re.compile(r"(?:ft:)?(?:gpt-(?!oss)|chatgpt-|o\d)")
"""Models that OpenAI serves itself."""
NAME = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")
"""A name of a tool, and of who speaks."""
FUNCTIONS = 128
"""Tools that a request may offer."""


def payload_error(message: str, field: str, *options: str) -> PayloadError:
    """Return the error of a payload that would be refused."""
    return PayloadError(message, field=field, options=options)


def check_key(payload: Mapping[str, Json]) -> None:
    """Raise `PayloadError` for a key of the prompt cache that is too long."""
    key = payload.get("prompt_cache_key", "")
    if not isinstance(key, str) or len(key) > KEY_CHARS:
        raise payload_error(f"must be a string of at most {KEY_CHARS} characters", "prompt_cache_key")


def check_name(name: Json, field: str) -> None:
    """Raise `PayloadError` for an invalid tool name."""
    if not isinstance(name, str) or not NAME.match(name):
        raise payload_error("must have 1 to 64 letters, digits, _ and -", field)


def check_tools(payload: Mapping[str, Json], function_of: Callable[[Mapping[str, Json]], Json]) -> None:
    """Raise `PayloadError` for tools that would be refused; `function_of` is None for one that is no function."""
    if "tools" not in payload:
        return
    tools = payload["tools"]
    if not isinstance(tools, list) or not 1 <= len(tools) <= FUNCTIONS:
        raise payload_error(f"must be a list of 1 to {FUNCTIONS} tools: leave it out without one", "tools")
    seen: set[str] = set()
    for index, tool in enumerate(tools):
        field = f"tools[{index}]"
        offered = function_of(tool) if isinstance(tool, Mapping) else {}
        if offered is None:
            continue
        if not isinstance(offered, Mapping) or not offered:
            raise payload_error('must be a tool of the type "function"', field)
        check_name(offered.get("name"), f"{field}.name")
        if offered["name"] in seen:
            raise payload_error("must be another name than that of the tools before it", f"{field}.name")
        seen.add(offered["name"])
        schema = offered.get("parameters", {"type": "object"})
        if not isinstance(schema, Mapping) or schema.get("type", "object") != "object":
            raise payload_error('must be a JSON Schema of {"type": "object"}', f"{field}.parameters")
        if offered.get("strict") and not _is_closed_schema(schema):
            raise payload_error(
                'of a strict tool must say "additionalProperties": false and list every property in "required": '
                "write it so, or leave `strict` out",
                f"{field}.parameters",
            )


def _is_closed_schema(schema: Mapping[str, Json]) -> bool:
    every = set(schema.get("properties", ()))
    return schema.get("additionalProperties") is False and every == set(schema.get("required", ()))


UNPUBLISHED = 1.25
"""Reported for counted tokens, at most, of a model of OpenAI whose vocabulary is not public, until it has reported."""
FOREIGN = 1.5
"""The same where texts are counted with a counter that is not the model's."""

NAMES = 4_096
"""Names and costs of media that are remembered."""

_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_-]")

BREAKPOINT = "prompt_cache_breakpoint"
WRITES = 3
"""Breakpoints of its own that a request may write, beside the one that the provider chooses."""

Note = Callable[[str], object]


class OpenAICodec(CountingCodec):
    """A codec of OpenAI: everything but the form of the payload."""

    #: The format, the longest id of a tool call, and whose items are sent verbatim.
    name: str
    id_chars: int
    vendors: tuple[str, ...]
    search_results = False
    #: Whether the counting recipe is about this API.
    recipe: bool

    def __init__(
        self,
        model: str,
        *,
        counter: TokenCounter | None = None,
        request_counter: RequestCounter | None = None,
        calibration: Calibration | None = None,
        margin: float | None = None,
    ) -> None:
        self.model = model = validation.validate_name(model, "model")
        self.known = find_published_traits(model)
        self.marks_only = self.implicit_mark = self.known.breakpoints
        #: Rates of the provider for reads from its prompt cache and writes to it.
        self.rates = self.known.rates
        #: Whether reasoning that is sent back counts only behind the very prefix that it was produced under.
        self.binds_reasoning = self.known.binds
        own_tokenizer = request_counter if isinstance(request_counter, TokenCounter) else None
        self.counter: TokenCounter = counter or own_tokenizer or token_counter(self.known.counter)
        self._vocabulary: str = getattr(self.counter, "name", type(self.counter).__name__)
        own = self._vocabulary == self.known.counter or self.counter is own_tokenizer
        #: Whether counts are estimates until enough was reported.
        self._estimated = self.counter is not own_tokenizer and not (own and self.known.vocabulary)
        self.request_counts = request_counts(request_counter)
        #: Whether a count is an upper bound by itself.
        self._bound = own and self.recipe and self.known.recipe and margin is None
        default = FOREIGN if not own else UNPUBLISHED if self.known.unpublished else 1.0
        self.calibration = calibration or Calibration(default, margin=0.02 if margin is None else margin)
        self.framing = Framing(self.known, self.counter)
        #: Additional tokens of a message of one text, by role and name; empty until the first count.
        self._frames: dict[Role, dict[str | None, int]] = {}
        self._media: dict[str, int] = {}

    # ── messages ────────────────────────────────────────────────────────────────────────────────────────────────

    def normal(self, messages: Sequence[PromptMessage]) -> tuple[PromptMessage, ...]:
        """Return the messages as the API can have them; see `Codec.normal`."""
        return tuple([message for message, _ in self._laid(messages, discard_note)])

    def notes(self, messages: Sequence[PromptMessage]) -> tuple[str, ...]:
        """Describe the changes that `normal` makes, each kind of change once."""
        found: dict[str, None] = {}
        self._laid(messages, found.setdefault)
        return tuple(found)

    def _laid(self, messages: Sequence[PromptMessage], note: Note) -> list[tuple[PromptMessage, int]]:
        """Return normal messages, each with how many of those given it takes to know it."""
        units = join_answers([Atom((message,), at, at) for at, message in enumerate(messages, 1)])
        found: list[tuple[PromptMessage, int]] = []
        for unit in units:
            told = unit.messages
            if len(told) > 2:
                told = _with_unique_call_ids(_merge_parallel_calls(told), note)
            for message in told:
                clean = self._clean(message, note)
                if clean is not None:
                    found.append((clean, unit.last))
        if note is not discard_note:
            _note_pairs(messages, [message for message, _ in found], note)
        return found

    def _clean(self, message: PromptMessage, note: Note) -> PromptMessage | None:
        """Return one message as the API can have it; None when there is nothing in it to send."""
        parts = message.parts
        if len(parts) == 1:
            only = parts[0]
            if type(only) is Text and only.text and self._named(message):
                return message
            if (
                type(only) is ToolResult
                and not only.is_error
                and message.name is None
                and len(only.call_id) <= self.id_chars
            ):
                return message
        said = self._parts(message, note)
        if message.role is Role.TOOL:
            said = list[Part](
                [_merge_tool_result(said), *[part for part in said if isinstance(part, Media | Raw)]]
            )
        elif not said:
            note("a message with nothing to send is left out")
            return None
        name = message.name
        if name is not None and not self._named(message):
            if message.role is Role.USER and name.strip():
                note("a name the API has no field for stands before the text")
                said = _prefix_speaker_name(said, name)
            else:
                note("a name the API has no field for is left out")
            name = None
        same = tuple(said) == parts
        if same and name == message.name:
            return message
        return replace(
            message,
            parts=tuple(said),
            name=name,
            tokens=message.tokens if same else None,
            counter=message.counter if same else "",
        )

    def _parts(self, message: PromptMessage, note: Note) -> list[Part]:
        """Return the parts of a message that can be sent: contents in order, then calls, then results."""
        role = message.role
        contents: list[Part] = []
        tools: list[Part] = []
        for at, part in enumerate(message.parts):
            match part:
                case Text():
                    if part.text:
                        contents.append(part)
                case ToolCall() if role is Role.ASSISTANT:
                    tools.append(self._call(part, note))
                case ToolCall():
                    note("a tool call outside an assistant message is shown as text")
                    contents.append(Text(f"{part.name}({part.arguments})"))
                case ToolResult():
                    if part.is_error:
                        note("whether a tool result is an error is not sent")
                    tools.append(ToolResult(self._id(part.call_id, note), part.output))
                case Media():
                    contents.append(self._medium(part, role, note))
                case Reasoning():
                    note("reasoning is left out")
                case Raw() if self._belongs_to_tool(part, message.parts[at + 1 : at + 2]):
                    tools.append(part)
                case Raw():
                    contents.extend(self._raw(part, message, note))
        return [*_join_adjacent_texts(contents), *tools]

    def _belongs_to_tool(self, raw: Raw, behind: Sequence[Part]) -> bool:
        """Return whether a part is sent with the call or result beside it; `behind` is the part behind it, if any."""
        return False

    def _call(self, call: ToolCall, note: Note) -> ToolCall:
        name = call.name
        if not NAME.match(name):
            note("the name of a tool is written with the characters that the API allows")
            name = _NOT_IN_NAMES.sub("_", name)[:64] or "_"
        return ToolCall(self._id(call.call_id, note), name, call.arguments)

    def _id(self, call_id: str, note: Note) -> str:
        if len(call_id) <= self.id_chars:
            return call_id
        note("a long id of a tool call is shortened")
        digest = hashlib.sha256(call_id.encode("utf-8", "surrogatepass")).hexdigest()
        return f"{call_id[: self.id_chars - 21]}_{digest[:20]}"

    def _headers(self, parts: Sequence[Part]) -> int:
        """Return how many messages these parts of one become."""
        return 1

    @abstractmethod
    def _named(self, message: PromptMessage) -> bool:
        """Return whether a message has no name, or one that can be sent as such."""

    @abstractmethod
    def _medium(self, media: Media, role: Role, note: Note) -> Part:
        """Return media as they can be sent in a message of this role: as such, or mentioned in a text."""

    @abstractmethod
    def _raw(self, raw: Raw, message: PromptMessage, note: Note) -> Iterable[Part]:
        """Return what can be sent of an item that is kept verbatim."""

    # ── counts ──────────────────────────────────────────────────────────────────────────────────────────────────

    def cost(self, message: PromptMessage) -> int:
        """Return the raw tokens of one message; see `Codec.cost`."""
        tokens = message.tokens
        if tokens is not None and message.counter == self._vocabulary and len(message.parts) == 1:
            # A history of thousands of messages is costed in one fit: the common ones take two look-ups.
            only = message.parts[0]
            if type(only) is Text:
                try:
                    return tokens + self._frames[message.role][message.name]
                except KeyError:
                    if message.role is not Role.TOOL:
                        return tokens + self._frame(message)
            elif tokens and type(only) is ToolResult:
                return tokens + self.framing.result(only.call_id)
        return self._cost(message)

    def _cost(self, message: PromptMessage) -> int:
        if message.role is Role.ASSISTANT and message.name is None and self._plain_calls(message.parts):
            return self._parts_cost(Role.ASSISTANT, message.parts)
        if message.role is Role.TOOL or any(isinstance(part, ToolResult) for part in message.parts):
            return self._answers_cost(message)
        clean = self._clean(message, discard_note)
        if clean is None:
            return 0
        named = 0 if clean.name is None else self.framing.name(clean.name)
        return named + self._parts_cost(clean.role, clean.parts)

    def _plain_calls(self, parts: Sequence[Part]) -> bool:
        """Return whether these are calls that are sent as they are, with at most one text before them."""
        for at, part in enumerate(parts):
            if type(part) is ToolCall:
                if len(part.call_id) > self.id_chars or not NAME.match(part.name):
                    return False
            elif at or type(part) is not Text or not part.text:
                return False
        return bool(parts)

    def _frame(self, message: PromptMessage) -> int:
        """Return the tokens of a message without its one text, and remember them; more where the name is mapped."""
        role, name = message.role, message.name
        frame = self.framing.role(role)
        if name is not None and self._named(message):
            frame += self.framing.name(name)
        elif name is not None and role is Role.USER:
            frame += self.counter.count(f"{name}: ") + 1
        known = self._frames.setdefault(role, {})
        if len(known) >= NAMES:
            known.clear()
        known[name] = frame
        return frame

    def _answers_cost(self, message: PromptMessage) -> int:
        """Return the tokens of tool results and the parts beside them, whether or not the prompt has their calls.

        A result costs more than the same text of the user, so the cost of a result is charged.
        """
        results = [part for part in message.parts if isinstance(part, ToolResult)]
        rest = replace(
            message, parts=tuple([part for part in message.parts if not isinstance(part, ToolResult)])
        )
        total = 0
        for part in results:
            total += self.framing.result(self._id(part.call_id, discard_note)) + self.counter.count(
                part.output
            )
        if not results:
            total += self.framing.role(Role.USER) + self.counter.count(wrap_text("", ORPHAN))
        if rest.parts and message.role is Role.TOOL:
            told = [self._parts(replace(rest, role=role), discard_note) for role in (Role.TOOL, Role.USER)]
            return total + max(self._parts_cost(Role.USER, parts) for parts in told)
        return total + (self._cost(rest) if rest.parts else 0)

    def _parts_cost(self, role: Role, parts: Sequence[Part]) -> int:
        frames = self._headers(parts) * self.framing.role(role)
        return frames + sum([self._part_cost(part) for part in parts])

    def _part_cost(self, part: Part) -> int:
        match part:
            case Text(text):
                return self.counter.count(text)
            case ToolCall(call_id, name, arguments):
                return self.framing.call(call_id, name, arguments)
            case Media():
                return self._stated(part)
            case Raw():
                return self.framing.raw(part.json)
            case Reasoning() | ToolResult():  # the first is left out, the caller counts the second
                return 0

    def _stated(self, media: Media) -> int:
        """Return the tokens of media, and remember them: a payload has no field for a stated cost."""
        tokens = media.tokens or MEDIA
        known = self._media.get(media.ref, 0)
        if tokens > known:
            if len(self._media) >= NAMES:
                self._media = {}
            self._media[media.ref] = tokens
            return tokens
        return known

    def referred(self, ref: str) -> int:
        """Return the tokens of media in a payload: the cost stated when they were rendered, else the default."""
        return self._media.get(ref, MEDIA)

    def base(self, tools: Sequence[Tool] = ()) -> int:
        """Return the raw tokens of everything that is no message: the reply's primer and the tools."""
        return self._start(
            [
                Function(tool.name, tool.description, to_plain_json(tool.parameters), tool.strict)
                for tool in tools
            ]
        )[0]

    def _start(self, offered: Sequence[Function]) -> tuple[int, bool]:
        """Return the tokens of a request without its messages, and whether the recipe covers them."""
        tokens, covered = self.framing.tools(offered)
        return self.framing.primer + tokens, covered

    def counted(self, raw: int, tools: int = 0, *, covered: bool) -> Count:
        """Return the count of so many raw tokens, of which all are covered by the published recipe or not."""
        if covered and self._bound:
            return Count(tokens=raw, exactness=Exactness.EXACT, upper_bound=raw, tools=tools)
        upper = raw if self._bound else self.calibration.upper(raw, tools)
        estimated = self._estimated and not self.calibration.knows(raw - tools)
        exactness = Exactness.ESTIMATE if estimated else Exactness.CALIBRATED
        return Count(tokens=raw, exactness=exactness, upper_bound=upper, tools=tools)

    def cached(self, tokens: int) -> int:
        """Return how many tokens of an unchanged prefix are read from the prompt cache.

        From 1,024 tokens on, in steps of 128; models with breakpoints read up to the last one exactly.
        """
        if tokens < 1_024 or not self.known.caches:
            return 0
        return tokens if self.known.breakpoints else tokens - tokens % 128

    def diagnosed(self, payload: Mapping[str, Json], previous: str | None) -> dict[str, Json]:
        """Return the payload as it was; see `Codec.diagnosed`."""
        return dict(payload)

    # ── cache hints ─────────────────────────────────────────────────────────────────────────────────────────────

    def _prefixes(self, marks: Sequence[CacheMark], given: int, laid: Sequence[tuple[Any, int]]) -> list[int]:
        """Return for each mark how many of the normal messages lie in its prefix."""
        found: list[int] = []
        for index, mark in enumerate(marks):
            if not 0 <= mark.messages <= given:
                raise ValidationError(
                    f"must be between 0 and the {given} messages", field=f"marks[{index}].messages"
                )
            inside = (at for at, (_, last) in enumerate(laid) if last > mark.messages)
            found.append(next(inside, len(laid)))
        return found

    def _hints(self, payload: dict[str, Json], mark: CacheMark, prefix: Sequence[Json]) -> None:
        payload["prompt_cache_key"] = cache_key(mark, payload.get("tools", []), prefix)
        if self.known.day and mark.ttl is not None and mark.ttl > 3_600:
            payload["prompt_cache_retention"] = "24h"


def discard_note(_: str) -> None:
    """Take no note."""


def _merge_parallel_calls(messages: Sequence[PromptMessage]) -> Sequence[PromptMessage]:
    """Return a unit in which calls that were made side by side are one message."""
    calls = list(takewhile(lambda message: message.role is Role.ASSISTANT, messages))
    if len(calls) < 2:
        return messages
    made = replace(
        calls[0],
        parts=tuple([part for message in calls for part in message.parts]),
        sources=tuple(dict.fromkeys([id for message in calls for id in message.sources])),
        group=None,
        tokens=None,
        counter="",
    )
    return (made, *messages[len(calls) :])


def _with_unique_call_ids(messages: Sequence[PromptMessage], note: Note) -> Sequence[PromptMessage]:
    """Return a unit in which no two calls of a message have one id; answers stand in the order of the calls."""
    told: list[PromptMessage] = []
    answers: Iterator[str] = iter(())
    for message in messages:
        ids = [part.call_id for part in message.parts if isinstance(part, ToolCall)]
        if len(set(ids)) < len(ids) and message.role is Role.ASSISTANT:
            note("calls with one id get ids of their own")
            own = _deduplicate_ids(ids)
            calls, answers = iter(own), iter(own)
            message = replace(
                message,
                parts=tuple(
                    [
                        replace(part, call_id=next(calls)) if isinstance(part, ToolCall) else part
                        for part in message.parts
                    ]
                ),
            )
        elif message.role is Role.TOOL and (call_id := next(answers, None)) is not None:
            message = replace(
                message,
                parts=tuple(
                    [
                        replace(part, call_id=call_id) if isinstance(part, ToolResult) else part
                        for part in message.parts
                    ]
                ),
            )
        told.append(message)
    return told


def _deduplicate_ids(ids: Sequence[str]) -> list[str]:
    """Return ids in which those that repeat are numbers: no longer than what they stand for."""
    numbers = (str(number) for number in count(2) if str(number) not in ids)
    return [next(numbers) if call_id in ids[:at] else call_id for at, call_id in enumerate(ids)]


def _note_pairs(before: Sequence[PromptMessage], after: Sequence[PromptMessage], note: Note) -> None:
    """Note the changes to tool calls and results without a counterpart."""

    def answers(messages: Sequence[PromptMessage]) -> int:
        results = [part for one in messages for part in one.parts if isinstance(part, ToolResult)]
        return len(results) - sum(map(is_placeholder, messages))

    if sum(map(is_placeholder, after)) > sum(map(is_placeholder, before)):
        note("a tool call without a result gets one that says so")
    untied = any(
        one.role is Role.TOOL and not any(isinstance(part, ToolResult) for part in one.parts)
        for one in before
    )
    if untied or answers(after) < answers(before):
        note("a tool result without a call is shown as text of the user")


def _join_adjacent_texts(contents: Iterable[Part]) -> list[Part]:
    """Join texts that stand side by side, a line each."""
    found: list[Part] = []
    for part in contents:
        if isinstance(part, Text) and found and isinstance(found[-1], Text):
            found[-1] = Text(f"{found[-1].text}\n{part.text}")
        else:
            found.append(part)
    return found


def _prefix_speaker_name(said: list[Part], name: str) -> list[Part]:
    first = said[0]
    if isinstance(first, Text):
        return [Text(f"{name}: {first.text}"), *said[1:]]
    return [Text(f"{name}:"), *said]


def _merge_tool_result(said: Sequence[Part]) -> ToolResult:
    """Return the one result of a tool message, with the texts around it; media stand beside it."""
    call_id, lines = "", list[str]()
    for part in said:
        if isinstance(part, ToolResult):
            call_id = part.call_id
            lines.append(part.output)
        elif isinstance(part, Text):
            lines.append(part.text)
    return ToolResult(call_id, "\n".join(lines))


def text_for_others(raw: Raw, note: Note) -> Sequence[Part]:
    """Return the content of an item of another vendor, as a text part; nothing if it has none."""
    said = item_text(raw)
    if said:
        note("items of other vendors are shown as text")
        return (Text(said),)
    if raw.vendor != AS_GIVEN:
        note("items of other vendors are left out")
    return ()


def media_to_text(media: Media) -> Text:
    """Return media as a line of text, for where they cannot be sent."""
    return Text(f"[{media.mime}: {media.ref}]")


def parse_raw_object(raw: Raw) -> dict[str, Json] | None:
    """Return the object that a vendor's item holds, None when it holds none."""
    try:
        item = json.loads(raw.json, parse_constant=_reject_constant)
        dump(item).encode()
    except (ValueError, RecursionError):
        return None
    return item if isinstance(item, dict) else None


def _reject_constant(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def remove_breakpoint(item: Mapping[str, Json]) -> dict[str, Json]:
    """Return a content part without the end of a cached prefix."""
    return {key: value for key, value in item.items() if key != BREAKPOINT}


def parse_function(tool: Mapping[str, Json]) -> Function:
    """Read a tool of a payload."""
    return Function(
        tool["name"], tool.get("description") or "", tool.get("parameters") or {}, bool(tool.get("strict"))
    )
