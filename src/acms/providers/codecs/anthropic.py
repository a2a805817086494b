"""The format of Anthropic's Messages API."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Literal

from acms.errors import ConfigurationError, PayloadError, ValidationError
from acms.log import validation
from acms.log.native_items import EXTRA_FIELDS, item_text
from acms.model import Json, Media, Part, Raw, Reasoning, Role, Text, ToolCall, ToolResult
from acms.ports import RequestCounter, TokenCounter
from acms.prompt_types import CacheMark, CacheRates, Count, Exactness, PromptMessage, Tool, Usage, with_parts
from acms.providers.codecs import anthropic_answers, anthropic_blocks
from acms.providers.codecs.answers import get_token_count, split_usage
from acms.providers.codecs.anthropic_rules import BREAKPOINTS, ESTIMATE, check_payload, find_claude_family
from acms.providers.codecs.anthropic_turns import (
    BEGINNING,
    Arranged,
    Arranging,
    SentMessage,
    speaker_name,
)
from acms.providers.codecs.calibration import Calibration
from acms.providers.codecs.framing import serialize_tool
from acms.providers.codecs.given_fields import Fields, Key, given_fields, key_of_part
from acms.providers.codecs.request_count import CountingCodec, request_counts
from acms.providers.codecs.weighted_counter import WeightedTokenCounter
from acms.text.chat_messages import NO_RESULT, sanitize_tool_name

__all__ = ["AnthropicMessages"]

_SYSTEM = frozenset((Role.SYSTEM, Role.DEVELOPER))
_ROLES = {"user": Role.USER, "assistant": Role.ASSISTANT, "system": Role.SYSTEM}


class AnthropicMessages(CountingCodec):
    """Prompts for Claude, as arguments of `messages.create`.

    The tokenizer is not public. Raw tokens are those of o200k_base and characters, weighted by script, and a cautious
    frame. A budget is compared with their bound by `calibration`, which starts at 1.15 and learns from reported counts.
    `bound="bytes"` relies on no measurement: raw tokens are three for every byte, the most that the tokenizer can make
    of any text.

    Leading messages of the system and the developer become `system`; a later one keeps its position on models that
    accept it, otherwise it is sent as user text, marked as a reminder. Messages of one role are joined, results follow
    their calls, the name of a user precedes the text. `notes` lists the other changes.

    Claude caches only prefixes that end with a cache marker. A prompt with a history sets markers at the beginning and
    at the end of the history, unless it has a `cache_hint`. Writing to the cache costs 1.25 times the input: pass
    `cache_history=False` if no later request repeats the beginning of a prompt.

    `system_messages` and `reasoning` are for platforms and models that differ from the published rules: whether system
    messages may come later, and whether signed reasoning is sent back. Newer models refuse it when anything before it
    has changed, as it does when a history is cut: `binds_reasoning` says so, and reasoning that is given is sent.

    With `search_results` each recalled entry is a `search_result` block whose source is its id: answers cite it, and
    `session.cite` notes that. Without, recalled text is one delimited text, as for every other provider.

    Media cost the tokens that they state, otherwise the most that an image of the model has, or 10,000 for a document.
    """

    name = "anthropic-messages"
    vendors: tuple[str, ...] = ("anthropic",)
    marks_only = True
    implicit_mark = False

    def __init__(
        self,
        model: str,
        *,
        max_tokens: int | None = None,
        request_counter: RequestCounter | None = None,
        calibration: Calibration | None = None,
        bound: Literal["calibrated", "bytes"] = "calibrated",
        margin: float = 0.02,
        system_messages: bool | None = None,
        reasoning: bool | None = None,
        search_results: bool = False,
        cache_history: bool = True,
    ) -> None:
        if bound not in ("calibrated", "bytes"):
            raise ConfigurationError(f'unknown bound {bound!r}; known: "calibrated", "bytes"')
        self.model = validation.validate_name(model, "model")
        family = find_claude_family(model)
        if system_messages is not None:
            family = family._replace(takes_system_messages=system_messages)
        if reasoning is not None:
            family = family._replace(takes_reasoning=reasoning)
        if max_tokens is not None and max_tokens < 1:
            raise ConfigurationError(f"max_tokens must be at least 1, was {max_tokens}")
        self.max_tokens = max_tokens
        #: Rates of the provider for reads from its prompt cache and writes to it.
        self.rates = CacheRates(cached=family.cache_read_rate, write=1.25, long=2.0)
        #: Whether reasoning that is sent back is refused unless all before it is as it was when it was produced.
        self.binds_reasoning = family.binds_reasoning
        self.calibration = calibration or Calibration(ESTIMATE, margin=margin)
        self._weighted = WeightedTokenCounter("claude", family.weights)
        self.counter: TokenCounter = anthropic_blocks.BytesCounter() if bound == "bytes" else self._weighted
        #: Whether recalled entries are sent as search results, which answers cite by the ids of the entries.
        self.search_results = search_results
        self.marks_history = cache_history
        self.request_counts = request_counts(request_counter)
        self._family = family
        self._bound = bound == "bytes"
        self._sizes = anthropic_blocks.Sizes()
        self._prices = anthropic_blocks.Prices(
            self.counter, image=family.max_image_tokens, sizes=self._sizes, chars_per_token=2
        )
        self._beginning = self._prices.text(BEGINNING)
        self._system_frame = anthropic_blocks.BLOCK + self._prices.reminder

    # ── requests ────────────────────────────────────────────────────────────────────────────────────────────────────

    def normal(self, messages: Sequence[PromptMessage]) -> tuple[PromptMessage, ...]:
        """Return the messages as the provider can have them."""
        turns = self._arrange(messages).turns
        return tuple([message for turn in turns for message in turn.messages()])

    def notes(self, messages: Sequence[PromptMessage]) -> tuple[str, ...]:
        """Describe the changes that `normal` makes to the messages, each kind of change once."""
        return self._arrange(messages).notes

    def render(
        self,
        messages: Sequence[PromptMessage],
        *,
        tools: Sequence[Tool] = (),
        marks: Sequence[CacheMark] = (),
    ) -> dict[str, Json]:
        """Return the arguments of a request: messages, tools, cache marks, and `max_tokens` if it was given.

        Of more than four marks the first and the last three are kept; what ends before a prefix that is kept for an
        hour is kept for an hour too. `PayloadError` when the provider would refuse it: no message but the system's, an
        answer last where the model does not go on with one, a tool that it cannot have.
        """
        turns = self._arrange(messages).turns
        payload: dict[str, Json] = {}
        if self.max_tokens is not None:
            payload["max_tokens"] = self.max_tokens
        if tools:
            payload["tools"] = [_serialize_tool(tool) for tool in tools]
        fields = given_fields(messages, anthropic_blocks.extra_fields_of_raw)
        contents = [
            [self._serialize_part(sent_part.part, turn.role, fields) for sent_part in turn.sent_parts]
            for turn in turns
        ]
        has_system = bool(turns) and turns[0].role is Role.SYSTEM
        if has_system:
            payload["system"] = contents[0]
        start = 1 if has_system else 0
        turns_and_contents = zip(turns[start:], contents[start:], strict=True)
        payload["messages"] = [
            {"role": turn.role.value, "content": content} for turn, content in turns_and_contents
        ]
        if marks:
            blocks = [block for content in contents for block in content]
            _apply_cache_marks(payload.get("tools", []), blocks, turns, marks)
        check_payload(payload, self._family)
        return payload

    def parse(self, payload: Mapping[str, Json]) -> tuple[PromptMessage, ...]:
        """Return the messages of a payload in normal form, without sources; `PayloadError` for another format."""
        parsed: list[PromptMessage] = []
        if payload.get("system"):
            parsed += _parse_message("system", payload["system"], "system")
        messages = payload.get("messages")
        if not isinstance(messages, list):
            raise PayloadError("must be a list of messages", field="messages")
        for index, message in enumerate(messages):
            role = message.get("role") if isinstance(message, Mapping) else None
            if role not in _ROLES:
                raise PayloadError(
                    "must be a message of the user, the assistant or the system", field=f"messages[{index}]"
                )
            parsed += _parse_message(role, message.get("content"), f"messages[{index}].content")
        return tuple(parsed)

    def check(self, payload: Mapping[str, Json]) -> None:
        """Raise `PayloadError` when the provider would refuse a payload: role order, tool pairs, system placement."""
        check_payload(payload, self._family)

    def _serialize_part(self, part: Part, role: Role, fields: Mapping[Key, Fields]) -> dict[str, Json]:
        """Serialize a part as a content block; `fields` are the extra fields of assistant parts, by part."""
        if isinstance(part, Media):
            self._sizes.state(part)
        if self.search_results and isinstance(part, Text) and role is Role.USER:
            return anthropic_blocks.passage_to_block(part)
        block = anthropic_blocks.part_to_block(part)
        if role is Role.ASSISTANT and fields:
            block.update(fields.get(key_of_part(part), {}))
        return block

    def _arrange(self, messages: Sequence[PromptMessage]) -> Arranged:
        family = self._family
        arranging = Arranging(
            family.takes_system_messages, family.takes_reasoning, cites_passages=self.search_results
        )
        return arranging.arrange([self._restore_blocks(message) for message in messages])

    def _restore_blocks(self, message: PromptMessage) -> PromptMessage:
        """Return a message of the user with its documents and search results restored to their original blocks.

        The log stores such a block as texts and media, which every provider takes, and its other fields behind them.
        """
        if message.role is not Role.USER:
            return message
        restored = anthropic_blocks.restore_user_blocks(message.parts)
        if restored is message.parts:
            return message
        for part in message.parts:
            if isinstance(part, Media):
                self._sizes.state(part)
        return with_parts(message, restored)

    # ── costs ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def cost(self, message: PromptMessage) -> int:
        """Return the raw tokens of one message; an upper bound where it has to be mapped."""
        if self._has_stored_count(message):
            # One fit costs a history of thousands of messages: use the count that a message already has.
            tokens = self._cost_of_stored_count(message)
            if tokens is not None:
                return tokens
        parts = self._restore_blocks(message).parts
        tokens = sum([self._count_part(part, message.role) for part in parts])
        if not tokens:
            return 0
        if message.role in _SYSTEM:
            return tokens + self._prices.reminder * len(parts)
        return tokens + self._count_name(message)

    def _has_stored_count(self, message: PromptMessage) -> bool:
        if self._bound or not message.tokens:
            return False
        return len(message.parts) == 1 and message.counter == self._weighted.base.name

    def _cost_of_stored_count(self, message: PromptMessage) -> int | None:
        """Return the cost of a message of one part from its stored count, or None if its text is sent changed."""
        part = message.parts[0]
        stored_tokens = message.tokens or 0
        if isinstance(part, ToolResult) and part.output != NO_RESULT:
            return self._weighted.weigh(stored_tokens, part.output) + self._prices.result("")
        if not isinstance(part, Text):
            return None
        if self.search_results and anthropic_blocks.split_recalled_passages(part):
            return None
        tokens = self._weighted.weigh(stored_tokens, part.text)
        tokens += self._system_frame if message.role in _SYSTEM else anthropic_blocks.BLOCK
        return tokens if message.name is None else tokens + self._count_name(message)

    def _count_name(self, message: PromptMessage) -> int:
        name = speaker_name(message)
        return self._prices.name(name) if name else 0

    def _count_part(self, part: Part, role: Role) -> int:
        """Return the cost of one part as a message of this role sends it; 0 if it is left out."""
        prices = self._prices
        match part:
            case Text():
                # Each recalled passage is sent as a block of its own, where answers are to cite them.
                passages = anthropic_blocks.split_recalled_passages(part) if self.search_results else ()
                return sum([prices.text(passage.text) for passage in passages or (part,)])
            case ToolResult():
                return prices.result(part.output)
            case ToolCall():
                _, arguments, _ = anthropic_blocks.parse_call_arguments(part.arguments)
                return prices.call(part.call_id, sanitize_tool_name(part.name), arguments)
            case Media():
                is_sent = role in (Role.USER, Role.TOOL)
                media = anthropic_blocks.to_sendable_media(part) if is_sent else None
                if media is None:
                    return prices.text(anthropic_blocks.describe_media(part))
                return prices.media(media)
            case Reasoning():
                if part.signature and self._sends_reasoning(role):
                    return prices.signed(part.text, part.signature)
                return 0
            case Raw():
                return self._count_item(part, role)

    def _count_item(self, raw: Raw, role: Role) -> int:
        """Return the cost of a raw part: an item sent verbatim, or the extra fields of the part before it.

        What this API would refuse is left out; items of other vendors are sent as text.
        """
        if raw.vendor == EXTRA_FIELDS:
            fields = anthropic_blocks.extra_fields_of_raw(raw) if role is Role.ASSISTANT else None
            return self._prices.fields(fields)
        if anthropic_blocks.raw_to_block(raw) is None:
            return 0 if raw.vendor == "anthropic" else self._prices.text(item_text(raw))
        if role in _SYSTEM:
            return 0
        if anthropic_blocks.is_reasoning_part(raw) and not self._sends_reasoning(role):
            return 0
        return self._prices.raw(raw)

    def _sends_reasoning(self, role: Role) -> bool:
        return self._family.takes_reasoning and role is Role.ASSISTANT

    def base(self, tools: Sequence[Tool] = ()) -> int:
        """Return the raw tokens of everything besides messages, and of the text that may be added at the beginning."""
        return self._count_base([_serialize_tool(tool) for tool in tools]) + self._beginning

    def _count_base(self, tools: Sequence[Mapping[str, Json]]) -> int:
        """Return the cost of a request without messages: a constant, the instructions for citing, and the tools."""
        # Measured on requests with almost no text: six to eleven tokens.
        tokens = 8
        if self.search_results:
            # The provider says that it adds instructions for citing to the system prompt, but not how many tokens.
            tokens += 300
        if tools:
            tokens += self._family.tool_prompt_tokens
            tokens += sum([self._prices.tool(tool) for tool in tools])
        return tokens

    def _count_payload(self, payload: Mapping[str, Json]) -> Count:
        base = self._count_base(payload.get("tools") or ())
        tools = base - self._count_base(())
        raw_tokens = base + self._beginning
        raw_tokens += self._count_content(payload.get("system") or (), is_system=True)
        for index, message in enumerate(payload["messages"]):
            content = message["content"] or ""
            blocks = [] if isinstance(content, str) else content
            if index == 0 and blocks and blocks[0].get("text") == BEGINNING:
                content = content[1:]  # the cost of BEGINNING is in `raw_tokens` already
            raw_tokens += self._count_content(content, is_system=message["role"] == "system")
        exactness = Exactness.BYTES if self._bound else Exactness.CALIBRATED
        upper = raw_tokens if self._bound else self.calibration.upper(raw_tokens, tools)
        return Count(tokens=raw_tokens, exactness=exactness, upper_bound=upper, tools=tools)

    def _count_content(self, content: Json, *, is_system: bool) -> int:
        """Return the cost of a message's content: its blocks, and the fields that no part holds."""
        if isinstance(content, str):
            content = [{"type": "text", "text": content}]
        tokens = 0
        for block in content:
            tokens += self._prices.block(block, system=is_system)
            tokens += self._prices.fields(anthropic_blocks.other_fields(block))
        return tokens

    def cached(self, tokens: int) -> int:
        """Return how many tokens of an unchanged prefix of so many are read from the cache, when it ends at a mark."""
        return tokens if tokens >= self._family.min_cached_tokens else 0

    def diagnosed(self, payload: Mapping[str, Json], previous: str | None) -> dict[str, Json]:
        """Return the payload with the request for a cache diagnosis against the message with the id `previous`.

        With None the provider only remembers this request, so that the next one can be compared with it. This works on
        the Claude API only: other platforms refuse it.
        """
        return {**payload, "diagnostics": {"previous_message_id": previous}}

    def usage(self, usage: object) -> Usage:
        """Read a reply or its `usage`, an SDK's object or a mapping; `ValidationError` when it is none of its.

        `input_tokens` there are only those that came neither out of the cache nor into it.
        """
        reported, answer = split_usage(usage)
        uncached_tokens = get_token_count(reported, "input_tokens")
        if uncached_tokens is None or get_token_count(reported, "total_tokens") is not None:
            raise ValidationError("is not the usage of a message of Anthropic's", field="usage")
        written_tokens = get_token_count(reported, "cache_creation_input_tokens") or 0
        read_tokens = get_token_count(reported, "cache_read_input_tokens") or 0
        return Usage(
            input_tokens=uncached_tokens + written_tokens + read_tokens,
            cached_tokens=read_tokens,
            written_tokens=written_tokens,
            diagnosis=None if answer is None else anthropic_answers.parse_diagnosis(answer),
            edits=() if answer is None else anthropic_answers.parse_server_edits(answer),
        )


def _serialize_tool(tool: Tool) -> dict[str, Json]:
    serialized = serialize_tool(tool, "input_schema")
    if tool.strict:
        serialized["strict"] = True
    return serialized


def _parse_message(role: str, content: Json, field: str) -> list[PromptMessage]:
    """Parse the content of a message of a payload: its tool results as one message, all other blocks as another."""
    if isinstance(content, str):
        content = [{"type": "text", "text": content}]
    if not isinstance(content, list):
        raise PayloadError("must be a text or a list of blocks", field=field)
    results: list[Part] = []
    other_parts: list[Part] = []
    for index, block in enumerate(content):
        part = anthropic_blocks.block_to_part(block) if isinstance(block, Mapping) else None
        if part is None:
            raise PayloadError("is not a supported block", field=f"{field}[{index}]")
        (results if isinstance(part, ToolResult) else other_parts).append(part)
    messages: list[PromptMessage] = []
    if results:
        messages.append(PromptMessage(role=Role.TOOL, parts=tuple(results)))
    if other_parts:
        messages.append(PromptMessage(role=_ROLES[role], parts=tuple(other_parts)))
    return messages


def _apply_cache_marks(
    tools: list[dict[str, Json]],
    blocks: Sequence[dict[str, Json]],
    turns: Sequence[SentMessage],
    marks: Sequence[CacheMark],
) -> None:
    """Put a cache mark on the last block of each prefix to cache; the last tool ends a prefix without blocks."""
    # The highest message index up to each block: blocks are not quite in the order of messages.
    newest_message_index = list(
        accumulate([sent.message_index for turn in turns for sent in turn.sent_parts], max)
    )
    ttl_of_end: dict[int, int] = {}
    for mark in marks:
        end = bisect_left(newest_message_index, mark.messages) - 1
        while end >= 0 and blocks[end]["type"] in ("thinking", "redacted_thinking"):  # these take no mark
            end -= 1
        # `end` is -1 for a prefix without blocks.
        if end >= 0 or tools:
            ttl_of_end[end] = max(ttl_of_end.get(end, 0), mark.ttl or 0)
    ends = sorted(ttl_of_end)
    if len(ends) > BREAKPOINTS:  # the shortest prefix is shared by most requests, the longest ones save most
        longest = ends[-(BREAKPOINTS - 1) :]
        ends = [ends[0], *longest]
    keeps_an_hour = False
    for end in reversed(ends):
        # Marks with a longer time must come first: once one has an hour, all before it have.
        keeps_an_hour = keeps_an_hour or ttl_of_end[end] >= 3_600
        cache_control: dict[str, Json] = {"type": "ephemeral"}
        if keeps_an_hour:
            cache_control["ttl"] = "1h"
        elif ttl_of_end[end]:
            cache_control["ttl"] = "5m"
        block = blocks[end] if end >= 0 else tools[-1]
        block["cache_control"] = cache_control
