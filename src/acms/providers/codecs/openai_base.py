"""The common part of the two APIs of OpenAI: how messages are mapped, and how a request is counted."""

from __future__ import annotations

import hashlib
import json
import re
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count, repeat, takewhile
from typing import Any

from acms.errors import ValidationError
from acms.log import validation
from acms.log.native_items import EXTRA_FIELDS, item_text
from acms.model import Json, Media, Part, Raw, Reasoning, Role, Text, ToolCall, ToolResult
from acms.plan.nodes import MessageGroup
from acms.plan.tool_groups import is_placeholder, join_answers
from acms.ports import RequestCounter, TokenCounter
from acms.prompt_types import CacheMark, Count, Exactness, PromptMessage, Tool, with_parts
from acms.providers.codecs.calibration import Calibration
from acms.providers.codecs.checks import reject_constant, require
from acms.providers.codecs.framing import KEY_CHARS, MEDIA, Framing, cache_key, dump, find_published_traits
from acms.providers.codecs.request_count import CountingCodec, request_counts
from acms.providers.tokens import token_counter
from acms.text.chat_messages import ORPHAN, sanitize_tool_name, wrap_text

OWN_MODELS = re.compile(r"(?:ft:)?(?:gpt-(?!oss)|chatgpt-|o\d)")
"""Models that OpenAI serves itself."""
NAME = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")
"""A name of a tool, and of who speaks."""

NAMES = 4_096
"""Names, and costs of media, that are remembered: some 100 kB."""

BREAKPOINT = "prompt_cache_breakpoint"

Note = Callable[[str], object]
"""Takes a description of a change to the messages."""
Arranged = list[tuple[PromptMessage, int]]
"""Messages in normal form, each with the number of given messages, from the first on, that determine it."""


class OpenAICodec(CountingCodec):
    """A codec of OpenAI: everything but the form of the payload."""

    #: The format, the longest id of a tool call, and whose items are sent verbatim.
    name: str
    id_chars: int
    vendors: tuple[str, ...]
    search_results = False
    #: Whether the counting recipe is about this API.
    recipe: bool
    #: The field of a payload that holds the messages, and the type of a part that is a text.
    messages_field: str
    text_type: str

    def __init__(
        self,
        model: str,
        *,
        counter: TokenCounter | None = None,
        request_counter: RequestCounter | None = None,
        calibration: Calibration | None = None,
        margin: float | None = None,
    ) -> None:
        self.model = validation.validate_name(model, "model")
        self.traits = find_published_traits(model)
        self.marks_only = self.implicit_mark = self.traits.has_breakpoints
        self.marks_history = False
        #: Rates of the provider for reads from its prompt cache and writes to it.
        self.rates = self.traits.rates
        #: Whether reasoning that is sent back counts only behind the very prefix that it was produced under.
        self.binds_reasoning = self.traits.binds_reasoning
        own_tokenizer = request_counter if isinstance(request_counter, TokenCounter) else None
        self.counter: TokenCounter = counter or own_tokenizer or token_counter(self.traits.counter)
        self._vocabulary: str = getattr(self.counter, "name", type(self.counter).__name__)
        is_own_tokenizer = self.counter is own_tokenizer
        counts_exactly = is_own_tokenizer or self._vocabulary == self.traits.counter
        #: Whether counts are estimates until enough was reported.
        self._estimated = not is_own_tokenizer and not (counts_exactly and self.traits.has_public_vocabulary)
        self.request_counts = request_counts(request_counter)
        #: Whether a count is an upper bound by itself.
        self._bound = counts_exactly and self.recipe and self.traits.follows_recipe and margin is None
        if calibration is None:
            # Reported tokens for each counted one, at most, until the provider has reported some.
            ratio = 1.0
            if not counts_exactly:
                ratio = 1.5
            elif self.traits.is_unpublished_openai:
                ratio = 1.25
            calibration = Calibration(ratio, margin=0.02 if margin is None else margin)
        self.calibration = calibration
        self.framing = Framing(self.traits, self.counter)
        #: Additional tokens of a message of one text, by role and name; empty until the first count.
        self._frames: dict[Role, dict[str | None, int]] = {}
        self._media: dict[str, int] = {}

    # ── messages ────────────────────────────────────────────────────────────────────────────────────────────────

    def normal(self, messages: Sequence[PromptMessage]) -> tuple[PromptMessage, ...]:
        """Return the messages as the API can have them; see `Codec.normal`."""
        return tuple([message for message, _ in self._arrange(messages, discard_note)])

    def notes(self, messages: Sequence[PromptMessage]) -> tuple[str, ...]:
        """Describe the changes that `normal` makes, each kind of change once."""
        notes: dict[str, None] = {}
        self._arrange(messages, notes.setdefault)
        return tuple(notes)

    def _arrange(self, messages: Sequence[PromptMessage], note: Note) -> Arranged:
        """Return the messages in normal form and order, each with how many given messages determine it.

        Calls made side by side become one message, and results follow their calls.
        """
        groups = [MessageGroup((message,), number, number) for number, message in enumerate(messages, 1)]
        arranged: Arranged = []
        for group in join_answers(groups):
            members: Sequence[PromptMessage] = group.messages
            if len(members) > 2:  # one call with its result needs neither merging nor new ids
                members = _with_unique_call_ids(_merge_parallel_calls(members), note)
            for message in members:
                normal = self._normalize(message, note)
                if normal is not None:
                    arranged.append((normal, group.last))
        if note is not discard_note:  # the comparison is only needed for notes
            _note_pairs(messages, [message for message, _ in arranged], note)
        return arranged

    def _normalize(self, message: PromptMessage, note: Note) -> PromptMessage | None:
        """Return one message as the API can have it, or None if nothing in it can be sent."""
        if self._is_plainly_normal(message):
            return message
        parts = self._sendable_parts(message, note)
        if message.role is Role.TOOL:
            other_parts = [part for part in parts if isinstance(part, Media | Raw)]
            parts = [_merge_tool_result(parts), *other_parts]
        elif not parts:
            note("a message with nothing to send is left out")
            return None
        if not self._accepts_name(message):
            parts = _name_speaker_in_text(message, parts, note)
            message = replace(message, name=None)
        return with_parts(message, parts)

    def _is_plainly_normal(self, message: PromptMessage) -> bool:
        """Return whether a message is one text, or one result, that is sent as it is: most messages are."""
        if len(message.parts) != 1:
            return False
        part = message.parts[0]
        if type(part) is Text:
            return bool(part.text) and self._accepts_name(message)
        if type(part) is not ToolResult or part.is_error:
            return False
        return message.name is None and len(part.call_id) <= self.id_chars

    def _sendable_parts(self, message: PromptMessage, note: Note) -> list[Part]:
        """Return the parts of a message that can be sent: contents in order, then calls, then results."""
        contents: list[Part] = []
        tools: list[Part] = []
        for index, part in enumerate(message.parts):
            match part:
                case Text():
                    if part.text:
                        contents.append(part)
                case ToolCall() if message.role is Role.ASSISTANT:
                    tools.append(self._normalize_call(part, note))
                case ToolCall():
                    note("a tool call outside an assistant message is shown as text")
                    contents.append(Text(f"{part.name}({part.arguments})"))
                case ToolResult():
                    if part.is_error:
                        note("whether a tool result is an error is not sent")
                    tools.append(ToolResult(self._shorten_id(part.call_id, note), part.output))
                case Media():
                    contents.append(self._sendable_media(part, message.role, note))
                case Reasoning():
                    note("reasoning is left out")
                case Raw() if self._belongs_to_tool(part, message.parts[index + 1 : index + 2]):
                    tools.append(part)
                case Raw():
                    contents.extend(self._sendable_item(part, message, note))
        return [*_join_adjacent_texts(contents), *tools]

    def _belongs_to_tool(self, raw: Raw, following: Sequence[Part]) -> bool:
        """Return whether a part is sent with the call or result next to it; `following` is the part after it."""
        return False

    def _normalize_call(self, call: ToolCall, note: Note) -> ToolCall:
        """Return a call whose name and id the API accepts; note what was changed."""
        name = call.name
        if not NAME.match(name):
            note("the name of a tool is written with the characters that the API allows")
            name = sanitize_tool_name(name)
        return ToolCall(self._shorten_id(call.call_id, note), name, call.arguments)

    def _shorten_id(self, call_id: str, note: Note) -> str:
        """Return an id within the API's limit; the end of a longer one is replaced by a digest."""
        if len(call_id) <= self.id_chars:
            return call_id
        note("a long id of a tool call is shortened")
        suffix = "_" + hashlib.sha256(call_id.encode("utf-8", "surrogatepass")).hexdigest()[:20]
        return call_id[: self.id_chars - len(suffix)] + suffix

    def _count_headers(self, parts: Sequence[Part]) -> int:
        """Return how many messages these parts of one become."""
        return 1

    @abstractmethod
    def _accepts_name(self, message: PromptMessage) -> bool:
        """Return whether a message has no name, or one that can be sent as such."""

    @abstractmethod
    def _sendable_media(self, media: Media, role: Role, note: Note) -> Part:
        """Return media as they can be sent in a message of this role: as such, or mentioned in a text."""

    @abstractmethod
    def _sendable_item(self, raw: Raw, message: PromptMessage, note: Note) -> Iterable[Part]:
        """Return the parts that can be sent of an item that is kept verbatim."""

    # ── requests ────────────────────────────────────────────────────────────────────────────────────────────────

    def render(
        self,
        messages: Sequence[PromptMessage],
        *,
        tools: Sequence[Tool] = (),
        marks: Sequence[CacheMark] = (),
    ) -> dict[str, Json]:
        """Return messages, tools and cache hints; see `Codec.render`."""
        arranged = self._arrange(messages, discard_note)
        items = [self._serialize_message(message) for message, _ in arranged]
        payload: dict[str, Json] = {self.messages_field: _flatten(items)}
        if tools:
            payload["tools"] = [self._serialize_tool(tool) for tool in tools]
        if marks:
            _check_marks(marks, len(messages))
            prefixes = [_flatten(items[: _find_prefix_end(mark, arranged)]) for mark in marks]
            self._add_cache_hints(payload, marks, prefixes)
        self.check(payload)
        return payload

    @abstractmethod
    def check(self, payload: Mapping[str, Json]) -> None:
        """Raise `PayloadError` if the API would refuse a payload."""

    @abstractmethod
    def _serialize_message(self, message: PromptMessage) -> list[dict[str, Json]]:
        """Return the items of a payload that a normal message becomes."""

    @abstractmethod
    def _serialize_tool(self, tool: Tool) -> dict[str, Json]:
        """Return a tool as it is sent."""

    def _add_cache_hints(
        self, payload: dict[str, Json], marks: Sequence[CacheMark], prefixes: Sequence[list[dict[str, Json]]]
    ) -> None:
        """Ask for the prefixes of a payload to be cached: one for each mark."""
        mark = marks[0]
        payload["prompt_cache_key"] = cache_key(mark, payload.get("tools", []), prefixes[0])
        if self.traits.keeps_a_day and mark.ttl is not None and mark.ttl > 3_600:
            payload["prompt_cache_retention"] = "24h"
        if self.traits.has_breakpoints:
            by_length = {len(prefix): prefix for prefix in prefixes}
            # A request may write three breakpoints, besides the one that the provider chooses.
            for length in sorted(by_length)[-3:]:
                self._mark_breakpoint(by_length[length])

    def _mark_breakpoint(self, prefix: Sequence[dict[str, Json]]) -> None:
        """Mark the end of a prefix on its last item that may carry a mark: one that the model did not write."""
        for item in reversed(prefix):
            field = {"message": "content", "function_call_output": "output"}.get(item.get("type", "message"))
            if field is None or item.get("role") == Role.ASSISTANT.value or not item.get(field):
                continue
            content: Any = item[field]
            parts = [{"type": self.text_type, "text": content}] if isinstance(content, str) else content
            item[field] = [*parts[:-1], {**parts[-1], BREAKPOINT: {"mode": "explicit"}}]
            return

    def diagnosed(self, payload: Mapping[str, Json], previous: str | None) -> dict[str, Json]:
        """Return the payload as it was; see `Codec.diagnosed`."""
        return dict(payload)

    # ── counts ──────────────────────────────────────────────────────────────────────────────────────────────────

    def cost(self, message: PromptMessage) -> int:
        """Return the raw tokens of one message; see `Codec.cost`."""
        tokens = message.tokens
        if tokens is not None and message.counter == self._vocabulary and len(message.parts) == 1:
            # Planning a prompt costs thousands of messages: for most, a stored count and two look-ups are enough.
            part = message.parts[0]
            if type(part) is Text:
                try:
                    return tokens + self._frames[message.role][message.name]
                except KeyError:
                    if message.role is not Role.TOOL:
                        return tokens + self._remember_frame(message)
            elif tokens and type(part) is ToolResult:
                return tokens + self.framing.result(part.call_id)
        return self._count_message(message)

    def _count_message(self, message: PromptMessage) -> int:
        """Return the tokens of a message as it is sent; calls that are sent as they are need no normal form."""
        if message.role is Role.ASSISTANT and message.name is None and self._are_plain_calls(message.parts):
            return self._count_parts(Role.ASSISTANT, message.parts)
        if message.role is Role.TOOL or any(isinstance(part, ToolResult) for part in message.parts):
            return self._count_answers(message)
        normal = self._normalize(message, discard_note)
        if normal is None:
            return 0
        tokens = self._count_parts(normal.role, normal.parts)
        return tokens if normal.name is None else tokens + self.framing.name(normal.name)

    def _are_plain_calls(self, parts: Sequence[Part]) -> bool:
        """Return whether these are calls that are sent as they are, with at most one text before them."""
        for index, part in enumerate(parts):
            if type(part) is ToolCall:
                if len(part.call_id) > self.id_chars or not NAME.match(part.name):
                    return False
            elif index or type(part) is not Text or not part.text:
                return False
        return bool(parts)

    def _remember_frame(self, message: PromptMessage) -> int:
        """Return the tokens of a message of one text beside that text, and remember them by role and name.

        A name that the API has no field for is written before a user's text; other such names are left out.
        """
        role, name = message.role, message.name
        frame = self.framing.role(role)
        if name is not None and self._accepts_name(message):
            frame += self.framing.name(name)
        elif name is not None and role is Role.USER:
            frame += self.counter.count(f"{name}: ") + 1
        frames = self._frames.setdefault(role, {})
        if len(frames) >= NAMES:
            frames.clear()
        frames[name] = frame
        return frame

    def _count_answers(self, message: PromptMessage) -> int:
        """Return the tokens of tool results and the parts beside them.

        Whether the prompt has the calls is not known here. A result without its call is sent as text of the user,
        which costs less; so the cost of a result is charged.
        """
        results = [part for part in message.parts if isinstance(part, ToolResult)]
        other_parts = tuple([part for part in message.parts if not isinstance(part, ToolResult)])
        total = 0
        for part in results:
            total += self.framing.result(self._shorten_id(part.call_id, discard_note))
            total += self.counter.count(part.output)
        if not results:
            total += self.framing.role(Role.USER) + self.counter.count(wrap_text("", ORPHAN))
        if not other_parts:
            return total
        if message.role is not Role.TOOL:
            return total + self._count_message(replace(message, parts=other_parts))
        as_result = self._sendable_parts(replace(message, parts=other_parts, role=Role.TOOL), discard_note)
        as_text = self._sendable_parts(replace(message, parts=other_parts, role=Role.USER), discard_note)
        return total + max(self._count_parts(Role.USER, parts) for parts in (as_result, as_text))

    def _count_parts(self, role: Role, parts: Sequence[Part]) -> int:
        frames = self._count_headers(parts) * self.framing.role(role)
        return frames + sum([self._count_part(part) for part in parts])

    def _count_part(self, part: Part) -> int:
        """Return the tokens of a part, without the frame of its message."""
        match part:
            case Text(text):
                return self.counter.count(text)
            case ToolCall(call_id, name, arguments):
                return self.framing.call(call_id, name, arguments)
            case Media():
                return self._remember_media(part)
            case Raw():
                return self.framing.raw(part.json)
            case Reasoning() | ToolResult():  # the first is left out, the caller counts the second
                return 0

    def _remember_media(self, media: Media) -> int:
        """Return the tokens of media, and remember them: a payload has no field for a stated cost."""
        tokens = media.tokens or MEDIA
        remembered = self._media.get(media.ref, 0)
        if tokens <= remembered:
            return remembered
        if len(self._media) >= NAMES:
            self._media = {}
        self._media[media.ref] = tokens
        return tokens

    def referred(self, ref: str) -> int:
        """Return the tokens of media in a payload: the cost stated when they were rendered, else the default."""
        return self._media.get(ref, MEDIA)

    def _count_payload_part(self, part: Part) -> int:
        return self.referred(part.ref) if isinstance(part, Media) else self._count_part(part)

    def base(self, tools: Sequence[Tool] = ()) -> int:
        """Return the raw tokens of everything that is no message: the reply's primer and the tools."""
        return self._count_base(tools)[0]

    def _count_base(self, tools: Sequence[Tool]) -> tuple[int, bool]:
        """Return the tokens of a request without its messages, and whether the recipe covers them."""
        tokens, is_covered = self.framing.tools(tools)
        return self.framing.primer + tokens, is_covered

    def counted(self, raw: int, tools: int = 0, *, covered: bool) -> Count:
        """Return the count of `raw` tokens, of which `tools` are tools.

        `covered` says that the published recipe covers all of them, so that the count may be exact.
        """
        if covered and self._bound:
            return Count(tokens=raw, exactness=Exactness.EXACT, upper_bound=raw, tools=tools)
        upper = raw if self._bound else self.calibration.upper(raw, tools)
        is_estimate = self._estimated and not self.calibration.knows(raw - tools)
        exactness = Exactness.ESTIMATE if is_estimate else Exactness.CALIBRATED
        return Count(tokens=raw, exactness=exactness, upper_bound=upper, tools=tools)

    def cached(self, tokens: int) -> int:
        """Return how many tokens of an unchanged prefix are read from the prompt cache.

        From 1,024 tokens on, in steps of 128; models with breakpoints read up to the last one exactly.
        """
        if tokens < 1_024 or not self.traits.has_cache:
            return 0
        return tokens if self.traits.has_breakpoints else tokens - tokens % 128


def discard_note(_: str) -> None:
    """Ignore a note, for callers that need only the messages."""


def _flatten(lists: Iterable[list[dict[str, Json]]]) -> list[dict[str, Json]]:
    return [item for items in lists for item in items]


def _check_marks(marks: Sequence[CacheMark], messages: int) -> None:
    for index, mark in enumerate(marks):
        if not 0 <= mark.messages <= messages:
            problem = f"must be between 0 and the {messages} messages"
            raise ValidationError(problem, field=f"marks[{index}].messages")


def _find_prefix_end(mark: CacheMark, arranged: Arranged) -> int:
    """Return how many of the normal messages lie in the prefix of a mark."""
    for index, (_, given_count) in enumerate(arranged):
        if given_count > mark.messages:
            return index
    return len(arranged)


def _merge_parallel_calls(messages: Sequence[PromptMessage]) -> Sequence[PromptMessage]:
    """Return messages of one group in which calls that were made side by side are one message."""
    calls = list(takewhile(lambda message: message.role is Role.ASSISTANT, messages))
    if len(calls) < 2:
        return messages
    parts = [part for message in calls for part in message.parts]
    sources = dict.fromkeys([id for message in calls for id in message.sources])
    merged_message = replace(
        calls[0], parts=tuple(parts), sources=tuple(sources), group=None, tokens=None, counter=""
    )
    return (merged_message, *messages[len(calls) :])


def _with_unique_call_ids(messages: Sequence[PromptMessage], note: Note) -> Sequence[PromptMessage]:
    """Return messages of one group in which no two calls have the same id.

    Results are in the order of the calls, so each takes the id of its call.
    """
    renamed: list[PromptMessage] = []
    answer_ids: Iterator[str] = iter(())
    for message in messages:
        if message.role is Role.ASSISTANT:
            ids = [part.call_id for part in message.parts if isinstance(part, ToolCall)]
            if len(set(ids)) < len(ids):
                note("calls with one id get ids of their own")
                unique = _deduplicate_ids(ids)
                message = _replace_ids(message, ToolCall, iter(unique))
                answer_ids = iter(unique)
        elif message.role is Role.TOOL:
            call_id = next(answer_ids, None)
            if call_id is not None:
                message = _replace_ids(message, ToolResult, repeat(call_id))
        renamed.append(message)
    return renamed


def _replace_ids(
    message: PromptMessage, kind: type[ToolCall | ToolResult], ids: Iterator[str]
) -> PromptMessage:
    """Return a message whose calls, or results, have these ids."""
    parts = [replace(part, call_id=next(ids)) if isinstance(part, kind) else part for part in message.parts]
    return replace(message, parts=tuple(parts))


def _deduplicate_ids(ids: Sequence[str]) -> list[str]:
    """Return ids without repeats. A repeated id becomes a number, which costs no more tokens than the id."""
    numbers = (str(number) for number in count(2) if str(number) not in ids)
    unique: list[str] = []
    for index, call_id in enumerate(ids):
        unique.append(next(numbers) if call_id in ids[:index] else call_id)
    return unique


def _note_pairs(
    given_messages: Sequence[PromptMessage], arranged_messages: Sequence[PromptMessage], note: Note
) -> None:
    """Note the changes to tool calls and results without a counterpart, by comparing counts before and after."""
    placeholders_before = sum(map(is_placeholder, given_messages))
    placeholders_after = sum(map(is_placeholder, arranged_messages))
    if placeholders_after > placeholders_before:
        note("a tool call without a result gets one that says so")
    has_text_of_tool = any(
        message.role is Role.TOOL and not _count_results(message) for message in given_messages
    )
    results_before = sum(map(_count_results, given_messages)) - placeholders_before
    results_after = sum(map(_count_results, arranged_messages)) - placeholders_after
    if has_text_of_tool or results_after < results_before:
        note("a tool result without a call is shown as text of the user")


def _count_results(message: PromptMessage) -> int:
    return sum(isinstance(part, ToolResult) for part in message.parts)


def _join_adjacent_texts(contents: Iterable[Part]) -> list[Part]:
    """Join adjacent texts, a line each."""
    joined_parts: list[Part] = []
    for part in contents:
        last_part = joined_parts[-1] if joined_parts else None
        if isinstance(part, Text) and isinstance(last_part, Text):
            joined_parts[-1] = Text(f"{last_part.text}\n{part.text}")
        else:
            joined_parts.append(part)
    return joined_parts


def _name_speaker_in_text(message: PromptMessage, parts: Sequence[Part], note: Note) -> Sequence[Part]:
    """Return the parts of a message with the name of the user, which the API has no field for, before them."""
    name = message.name or ""
    if message.role is not Role.USER or not name.strip():
        note("a name the API has no field for is left out")
        return parts
    first_part = parts[0]
    if isinstance(first_part, Text):
        return [Text(f"{name}: {first_part.text}"), *parts[1:]]
    return [Text(f"{name}:"), *parts]


def _merge_tool_result(parts: Sequence[Part]) -> ToolResult:
    """Return the one result of a tool message, with the texts around it."""
    call_id, lines = "", list[str]()
    for part in parts:
        if isinstance(part, ToolResult):
            call_id = part.call_id
            lines.append(part.output)
        elif isinstance(part, Text):
            lines.append(part.text)
    return ToolResult(call_id, "\n".join(lines))


def unsupported_item_to_text(raw: Raw, note: Note) -> Sequence[Part]:
    """Return an item that this API does not take as a text part; nothing if it has no text."""
    text = item_text(raw)
    if text:
        note("items that this API does not take are shown as text")
        return (Text(text),)
    # EXTRA_FIELDS has only additional fields of the part before it, which is sent.
    if raw.vendor != EXTRA_FIELDS:
        note("items that this API does not take are left out")
    return ()


def media_to_text(media: Media) -> Text:
    """Return media as a line of text, for where they cannot be sent."""
    return Text(f"[{media.mime}: {media.ref}]")


def parse_raw_object(raw: Raw) -> dict[str, Json] | None:
    """Return the object that a vendor's item holds, or None if it holds none."""
    try:
        item = json.loads(raw.json, parse_constant=reject_constant)
        dump(item).encode()
    except (ValueError, RecursionError):
        return None
    return item if isinstance(item, dict) else None


def remove_breakpoint(item: Mapping[str, Json]) -> dict[str, Json]:
    """Return a content part without the end of a cached prefix."""
    return {key: value for key, value in item.items() if key != BREAKPOINT}


def parse_tool(tool: Mapping[str, Json]) -> Tool:
    """Parse a tool of a payload."""
    return Tool(
        name=tool["name"],
        description=tool.get("description") or "",
        parameters=tool.get("parameters") or {},
        strict=bool(tool.get("strict")),
    )


# ── rules of both APIs ──────────────────────────────────────────────────────────────────────────────────────────


def check_key(payload: Mapping[str, Json]) -> None:
    """Raise `PayloadError` for a key of the prompt cache that is too long."""
    key = payload.get("prompt_cache_key", "")
    is_valid = isinstance(key, str) and len(key) <= KEY_CHARS
    require(is_valid, f"must be a string of at most {KEY_CHARS} characters", "prompt_cache_key")


def is_name(name: Json) -> bool:
    """Return whether a value is a valid name of a tool or speaker."""
    return isinstance(name, str) and NAME.match(name) is not None


def check_name(name: Json, *path: str | int) -> None:
    """Raise `PayloadError` for an invalid name of a tool or speaker."""
    require(is_name(name), "must have 1 to 64 letters, digits, _ and -", *path)


def check_tools(payload: Mapping[str, Json], function_of: Callable[[Mapping[str, Json]], Json]) -> None:
    """Raise `PayloadError` for tools that would be refused.

    `function_of` returns the function of a tool; None for a tool that is no function and is not checked.
    """
    if "tools" not in payload:
        return
    tools = payload["tools"]
    is_valid = isinstance(tools, list) and 1 <= len(tools) <= 128
    require(is_valid, "must be a list of 1 to 128 tools: leave it out without one", "tools")
    names: set[str] = set()
    for index, tool in enumerate(tools):
        function = function_of(tool) if isinstance(tool, Mapping) else {}
        if function is not None:
            _check_function(function, names, index)
            names.add(function["name"])


def _check_function(function: Json, names: set[str], index: int) -> None:
    """Raise `PayloadError` for an invalid function; `names` are those of the tools before it."""
    path = ("tools", index)
    require(isinstance(function, Mapping) and function, 'must be a tool of the type "function"', *path)
    check_name(function.get("name"), *path, "name")
    is_new = function["name"] not in names
    require(is_new, "must be another name than that of the tools before it", *path, "name")
    schema = function.get("parameters", {"type": "object"})
    is_object = isinstance(schema, Mapping) and schema.get("type", "object") == "object"
    require(is_object, 'must be a JSON Schema of {"type": "object"}', *path, "parameters")
    require(
        not function.get("strict") or _is_closed_schema(schema),
        'of a strict tool must say "additionalProperties": false and list every property in "required": '
        "write it so, or leave `strict` out",
        *path,
        "parameters",
    )


def _is_closed_schema(schema: Mapping[str, Json]) -> bool:
    properties = set(schema.get("properties", ()))
    return schema.get("additionalProperties") is False and properties == set(schema.get("required", ()))
