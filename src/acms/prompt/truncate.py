"""Cutting: a message or a whole tool group made shorter between words, and marked where something is missing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from acms.model import Part, Text, ToolCall, ToolResult
from acms.plan.nodes import KeptEnd
from acms.ports import Codec, TokenCounter
from acms.prompt_types import PromptMessage, with_parts
from acms.text.condense import condense_arguments, end_of_head, find_level, fits_budget, start_of_tail

MARK = "[…]"
"""Marks the part cut off a text."""


def shorten_text(text: str, budget: int, counter: TokenCounter, keep: KeptEnd | None = None) -> str:
    """Return as much of a text as a budget holds, with a mark where it was cut; "" when nothing fits.

    `keep` names the end that is kept: its head, its tail, or with None two thirds head and one third tail. The longest
    such text is found by bisection. No word and no number is cut.
    """

    def cut_to(kept_chars: int) -> str:
        if keep is KeptEnd.START:
            return f"{text[: end_of_head(text, kept_chars)].rstrip()} {MARK}".strip()
        if keep is KeptEnd.END:
            return f"{MARK} {text[start_of_tail(text, kept_chars) :].lstrip()}".strip()
        tail_chars = kept_chars // 3
        head = text[: end_of_head(text, kept_chars - tail_chars)].rstrip()
        tail = text[start_of_tail(text, tail_chars) :].lstrip()
        return f"{head} {MARK} {tail}".strip()

    if budget <= 0:
        return ""
    if fits_budget(text, budget, counter):
        return text
    low, high = 0, min(len(text), max(4, budget))  # as a rule, so many characters fit
    while high < len(text) and counter.count(cut_to(high)) <= budget:
        low, high = high, min(len(text), high * 2)
    while low < high:
        middle = (low + high + 1) // 2
        if counter.count(cut_to(middle)) <= budget:
            low = middle
        else:
            high = middle - 1
    shortened = cut_to(low)
    return shortened if shortened != MARK and counter.count(shortened) <= budget else ""


def cut_messages(
    messages: Sequence[PromptMessage],
    costs: Sequence[int],
    room: int,
    codec: Codec,
    keep: KeptEnd | None = None,
) -> tuple[tuple[PromptMessage, ...], tuple[int, ...]]:
    """Return the messages of one unit with their costs, within `room` or as close to it as cutting gets.

    Results of tools are cut first, the longest ones to an equal length; then texts, then arguments of calls that have a
    result. Reasoning and media are never cut, and a role never changes.
    """
    shorter_messages, cut_costs = list(messages), list(costs)
    # Each step: the indexes of the messages that it may cut, and the function that cuts one of them.
    results = [index for index, message in enumerate(messages) if _has_result(message)]
    texts = [index for index in range(len(messages)) if index not in results]
    steps: list[tuple[list[int], Callable[..., tuple[PromptMessage, int]]]]
    steps = [(results, _cut_message), (texts, _cut_message)]
    if results:
        calls = [index for index, message in enumerate(messages) if _has_call(message)]
        steps.append((calls, _cut_calls))
    for indexes, cut_one in steps:
        excess = sum(cut_costs) - room
        if excess <= 0 or not indexes:
            continue
        costs_before = [cut_costs[index] for index in indexes]
        level = find_level(costs_before, sum(costs_before) - excess)
        for index in indexes:
            if cut_costs[index] > level:
                shorter_messages[index], cut_costs[index] = cut_one(
                    shorter_messages[index], cut_costs[index], level, codec, keep
                )
    return tuple(shorter_messages), tuple(cut_costs)


def _cut_message(
    message: PromptMessage, cost: int, room: int, codec: Codec, keep: KeptEnd | None
) -> tuple[PromptMessage, int]:
    """Return one message within `room`, or as short as it gets; itself when cutting makes it no shorter."""
    text = _text_of_message(message)
    if not text:
        return message, cost
    _, shorter, price = cut_text(text, lambda content: _replace_text(message, content), room, codec, keep)
    return (shorter, price) if price < cost else (message, cost)


def _cut_calls(
    message: PromptMessage, cost: int, room: int, codec: Codec, keep: KeptEnd | None
) -> tuple[PromptMessage, int]:
    """Return a message with shorter arguments in its calls, still valid JSON; unchanged if that saves nothing."""
    costs = [codec.counter.count(part.arguments) for part in message.parts if isinstance(part, ToolCall)]
    max_tokens = max(1, find_level(costs, sum(costs) - (cost - room)))
    parts: list[Part] = []
    for part in message.parts:
        if isinstance(part, ToolCall):
            part = replace(part, arguments=condense_arguments(part.arguments, max_tokens, codec.counter))
        parts.append(part)
    shorter = with_parts(message, parts)
    price = codec.cost(shorter)
    return (shorter, price) if price < cost else (message, cost)


def cut_text(
    text: str, write: Callable[[str], PromptMessage], room: int, codec: Codec, keep: KeptEnd | None = None
) -> tuple[str, PromptMessage, int]:
    """Return the longest cut of a text whose message costs at most `room`, the message, and its cost.

    `write` makes the message of a text. When not even the mark fits, the mark is returned: the caller must check the
    cost.
    """
    mark_message = write(MARK)
    price = codec.cost(mark_message)
    framing = price - codec.counter.count(MARK)
    limit = room - framing
    while limit > 0:
        content = shorten_text(text, limit, codec.counter, keep)
        if not content:
            break
        message = write(content)
        cost = codec.cost(message)
        if cost <= room:
            return content, message, cost
        limit -= cost - room
    return MARK, mark_message, price


def _has_result(message: PromptMessage) -> bool:
    return any(isinstance(part, ToolResult) for part in message.parts)


def _has_call(message: PromptMessage) -> bool:
    return any(isinstance(part, ToolCall) for part in message.parts)


def _text_of_message(message: PromptMessage) -> str:
    for part in message.parts:
        if isinstance(part, ToolResult):
            return part.output
    return message.text


def _replace_text(message: PromptMessage, text: str) -> PromptMessage:
    """Return a message with another text: in its first tool result, or without results in place of all its texts.

    Further results stay. The stored token count is dropped: the message has to be counted again.
    """
    kind = ToolResult if _has_result(message) else Text
    parts: list[Part] = []
    is_replaced = False
    for part in message.parts:
        if not isinstance(part, kind):
            parts.append(part)
        elif not is_replaced:
            is_replaced = True
            parts.append(replace(part, output=text) if isinstance(part, ToolResult) else Text(text))
        elif kind is ToolResult:
            parts.append(part)
    return with_parts(message, parts)
