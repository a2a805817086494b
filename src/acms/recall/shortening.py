"""Shorten recalled items that do not fit a budget whole: sentences, records, and the arguments of calls.

`acms.text.condense` shortens the texts of tool calls and tool results, here and in a history.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from acms.model import Part, Role, ToolCall, ToolResult
from acms.ports import Frame, TokenCounter
from acms.recall.text_frame import CUT, speaker_of_item
from acms.results import ContextItem
from acms.text.condense import (
    bisect_largest,
    condense_arguments,
    condense_output,
    fill_steps,
    find_level,
    fits_budget,
    join_records,
    measure_contrast,
    sum_rarities,
)
from acms.text.records import Record, group_by_block, split_record, split_records
from acms.text.tokenizer import content_terms, split_words


def excerpt_item(
    item: ContextItem, budget: int, counter: TokenCounter, frame: Frame, query: str
) -> ContextItem:
    """Cut an item to the lines that share the most and the rarest words with the query, within a budget.

    Each line is shown with the object, section or function around it, in the order of the text. Of a tool's output
    only what shares a word is shown, and unless it is prose, the line that is most unlike the others, such as an error.
    If not even the best line fits, its best sentences are shown, or its beginning and its end.
    """
    framing = frame.cost(item.role, (), speaker_of_item(item))
    query_terms = set(content_terms(split_words(query)))
    records = split_records(item.content)
    content = ""
    indexes: Sequence[int] = range(len(records))
    while indexes and not content:
        ranked, steps = _order_records(item, records, indexes, query_terms)

        def fits(chosen: Sequence[int], records: Sequence[Record] = records) -> bool:
            return counter.count(join_records(item.content, records, chosen)) <= budget - framing

        content = join_records(item.content, records, fill_steps(steps, fits))
        best = records[ranked[0]]
        parts = split_record(item.content, best)
        if not content and len(parts) == 1:
            content = cut_middle(item.content[best.start : best.end].strip(), budget - framing, counter)
            break
        records = [*records[: ranked[0]], *parts, *records[ranked[0] + 1 :]]
        indexes = range(ranked[0], ranked[0] + len(parts))
    if not content:
        return _empty_item(item)
    tokens = counter.count(content) + framing
    return replace(item, content=content, parts=(), token_count=tokens, truncated=True)


def _order_records(
    item: ContextItem, records: Sequence[Record], indexes: Sequence[int], query_terms: set[int]
) -> tuple[list[int], list[list[int]]]:
    """Return some records of an item, best first, and the steps in which they are chosen, with their blocks."""
    shared_terms: dict[int, set[int]] = {}
    for index in indexes:
        terms = content_terms(split_words(item.content[records[index].start : records[index].end]))
        shared_terms[index] = query_terms.intersection(terms)
    likeness = dict(zip(indexes, sum_rarities(list(shared_terms.values()), len(shared_terms)), strict=True))
    is_output = item.role is Role.TOOL
    contrast = measure_contrast(item.content, records) if is_output else [0.0] * len(records)
    best_first = sorted(
        indexes, key=lambda index: (-likeness[index], -len(shared_terms[index]), -contrast[index])
    )
    ranked = [index for index in best_first if shared_terms[index]]
    if any(contrast):
        ranked.insert(1, max(indexes, key=contrast.__getitem__))
    blocks = group_by_block(item.content, records, ranked)
    best_block = blocks[0] if blocks else []  # it may be larger than the budget
    steps = [[index] for index in best_block] + blocks[1:]
    if not is_output or not ranked:
        steps += [[index] for index in best_first]
    return best_first, steps


def _empty_item(item: ContextItem) -> ContextItem:
    """Return an item cut to nothing, which costs nothing."""
    return replace(item, content="", parts=(), token_count=0, truncated=True)


def excerpt_group(
    items: Sequence[ContextItem], budget: int, counter: TokenCounter, frame: Frame, query: str
) -> list[ContextItem]:
    """Cut a tool call and its answers to the parts that share the most words with the query; keep short items whole."""
    rendered = list(items)
    shortest_first = sorted(range(len(items)), key=lambda index: items[index].token_count)
    remaining = budget
    for done_count, index in enumerate(shortest_first):
        item = items[index]
        share = remaining // (len(items) - done_count)
        if item.token_count > share and any(isinstance(part, ToolCall) for part in item.parts):
            item = _excerpt_call(item, share, counter, frame, query)
        elif item.token_count > share:
            excerpt = excerpt_item(item, share, counter, frame, query)
            item = _restore_result_part(excerpt, item) if item.role is Role.TOOL else excerpt
        rendered[index] = item
        remaining -= item.token_count
    return rendered if remaining >= 0 else cut_group(rendered, budget, counter, frame, query)


def _excerpt_call(
    item: ContextItem, budget: int, counter: TokenCounter, frame: Frame, query: str
) -> ContextItem:
    """Cut a message with tool calls: first their arguments, then the text before them.

    No call is left out, because its result would seem to belong to the call before it.
    """
    item = _cut_arguments(item, budget, counter, frame)
    calls = [part for part in item.parts if isinstance(part, ToolCall)]
    calls_text = "\n".join([f"{call.name}({call.arguments})" for call in calls])
    text_before = item.content.removesuffix(calls_text).rstrip()
    if item.token_count <= budget or text_before in ("", item.content):
        return item
    item_before = replace(item, content=text_before, parts=())
    excerpt = excerpt_item(item_before, budget - counter.count(calls_text), counter, frame, query)
    content = f"{excerpt.content}\n{calls_text}".lstrip("\n")
    tokens = counter.count(content) + frame.cost(item.role, tuple(calls), speaker_of_item(item))
    return replace(item, content=content, parts=tuple(calls), token_count=tokens, truncated=True)


def _restore_result_part(item: ContextItem, original: ContextItem) -> ContextItem:
    """Return a cut item with the tool result part of the whole item, shortened: it names the call it answers."""
    for part in original.parts:
        if isinstance(part, ToolResult):
            return replace(item, parts=(replace(part, output=item.content),))
    return replace(item, parts=())


def cut_group(
    items: list[ContextItem], budget: int, counter: TokenCounter, frame: Frame, query: str = ""
) -> list[ContextItem]:
    """Cut the items of one unit to a budget: the longest ones to an equal length.

    The parts of a tool's output that match the query are kept. A unit that still does not fit becomes empty items that
    cost nothing: each entry stays in the result, marked as truncated.
    """
    most_per_item = find_level([item.token_count for item in items], budget)
    cut_items = [_cut_part(item, most_per_item, counter, frame, query) for item in items]
    excess = sum(item.token_count for item in cut_items) - budget
    longest_first = sorted(range(len(cut_items)), key=lambda index: -cut_items[index].token_count)
    for index in longest_first:
        item = cut_items[index]
        can_shrink = item.role is Role.TOOL or len(items) == 1
        if excess > 0 and can_shrink:
            cut_items[index] = _cut_item(item, max(0, item.token_count - excess), counter, frame, query)
            excess -= item.token_count - cut_items[index].token_count
    # A tool call and its answers are shown together or not at all.
    has_empty_member = len(items) > 1 and any(not item.content and not item.parts for item in cut_items)
    if excess > 0 or has_empty_member:
        return [_empty_item(item) for item in items]
    return cut_items


def _cut_part(item: ContextItem, budget: int, counter: TokenCounter, frame: Frame, query: str) -> ContextItem:
    """Return an item within a budget: a tool call with shorter arguments, any other with its text cut."""
    if item.token_count <= budget:
        return item
    if any(isinstance(part, ToolCall) for part in item.parts):
        return _cut_arguments(item, budget, counter, frame)
    return _cut_item(item, budget, counter, frame, query)


def _cut_item(item: ContextItem, budget: int, counter: TokenCounter, frame: Frame, query: str) -> ContextItem:
    """Return an item with its text cut to a budget, frame included; of its parts only tool results are kept."""
    results = [part for part in item.parts if isinstance(part, ToolResult)]
    parts: tuple[Part, ...] = tuple([replace(part, output="") for part in results])
    framing = frame.cost(item.role, parts, speaker_of_item(item))
    content_budget = budget - framing
    content = ""
    if content_budget > 0 and results:
        content = condense_output(item.content, content_budget, counter, question=query, entry_id=item.id)
    elif content_budget > 0:
        content = cut_middle(item.content, content_budget, counter)
    if not content and content_budget < 0:
        return _empty_item(item)
    if results:
        parts = (replace(results[0], output=content), *parts[1:])
    tokens = 0
    if content or parts:
        tokens = framing + (counter.count(content) if content else 0)
    return replace(item, content=content, parts=parts, token_count=tokens, truncated=True)


def _cut_arguments(item: ContextItem, budget: int, counter: TokenCounter, frame: Frame) -> ContextItem:
    """Shorten the arguments of an item's tool calls, which stay valid JSON; keep them if that saves nothing."""
    costs = [counter.count(part.arguments) for part in item.parts if isinstance(part, ToolCall)]
    excess = item.token_count - budget
    most_per_call = max(1, find_level(costs, sum(costs) - excess))
    content = item.content
    parts: list[Part] = []
    for part in item.parts:
        if isinstance(part, ToolCall):
            call_text = f"{part.name}({part.arguments})"
            part = replace(part, arguments=condense_arguments(part.arguments, most_per_call, counter))
            content = content.replace(call_text, f"{part.name}({part.arguments})", 1)
        parts.append(part)
    tokens = counter.count(content) + frame.cost(item.role, parts, speaker_of_item(item))
    if tokens >= item.token_count:
        return item
    return replace(item, content=content, parts=tuple(parts), token_count=tokens, truncated=True)


def cut_middle(text: str, budget: int, counter: TokenCounter) -> str:
    """Cut the middle out of a text so that its head and tail, joined by a mark, fit a token budget.

    Returns "" if nothing fits. The head has two thirds of the kept characters, whose number is found by bisection.
    """

    def cut_to(size: int) -> str:
        tail = size // 3
        return text[: size - tail] + CUT + text[len(text) - tail :]

    def fits(size: int) -> bool:
        return counter.count(cut_to(size)) <= budget

    if budget <= 0:
        return ""
    if fits_budget(text, budget, counter):
        return text
    size = bisect_largest(len(text), fits)
    return cut_to(size) if size else ""
