"""Turns: a question of the user, the tool calls it leads to, and its answer, among the groups of a history."""

from __future__ import annotations

from collections.abc import Sequence

from acms.log.encoding import is_summary_id
from acms.model import Role, ToolCall
from acms.plan.nodes import MessageGroup
from acms.text.chat_messages import ORPHAN


def is_question(group: MessageGroup) -> bool:
    """Return whether a group is a message of the user: no summary, and no result of a tool without its call."""
    message = group.messages[0]
    if message.role is not Role.USER or any(map(is_summary_id, message.sources)):
        return False
    return not message.text.startswith(ORPHAN[0])


def find_turn_start(groups: Sequence[MessageGroup], *, question_follows: bool) -> int:
    """Return the index of the newest question, before which recalled text is placed.

    Return the number of groups if the newest question was answered (by a text with no tool call after it), or if there
    is none. `question_follows` says that the caller wrote a question after the groups.
    """
    if question_follows:
        return len(groups)
    has_later_call = False
    for index in reversed(range(len(groups))):
        if is_question(groups[index]):
            return index
        # A text before a tool call only announces the call: the turn goes on.
        message = groups[index].messages[0]
        has_later_call = has_later_call or any(isinstance(part, ToolCall) for part in message.parts)
        if message.role is Role.ASSISTANT and message.text and not has_later_call:
            break
    return len(groups)


def find_last_exchange(
    groups: Sequence[MessageGroup], costs: Sequence[int], end: int, max_tokens: int
) -> int:
    """Return the index of the last answered question before `end`, if it and its answer fit `max_tokens` tokens.

    Else return the index of the last group before `end` if that fits, and `end` if it does not fit either.
    """
    start = end - 2
    while start >= 0 and (is_question(groups[start + 1]) or not is_question(groups[start])):
        start -= 1
    if start >= 0 and sum(costs[start:end]) <= max_tokens:
        return start
    last = max(0, end - 1)
    return last if sum(costs[last:end]) <= max_tokens else end


def call_tokens_by_turn(groups: Sequence[MessageGroup], costs: Sequence[int]) -> list[int]:
    """Return the tokens of each turn's tool calls and their answers, oldest first."""
    turns = [0]
    for group, cost in zip(groups, costs, strict=True):
        if group.messages[0].role is Role.USER:
            turns.append(0)
        elif len(group.messages) > 1:
            turns[-1] += cost
    return turns


def skip_answers(groups: Sequence[MessageGroup], start: int, end: int) -> int:
    """Return the first index from `start` on, at most `end`, that does not answer an omitted message."""
    while 0 < start < end and groups[start].messages[0].role is Role.ASSISTANT:
        start += 1
    return start


def ends_with_call(groups: Sequence[MessageGroup]) -> bool:
    """Return whether the newest group is a tool call with its answer."""
    return bool(groups) and len(groups[-1].messages) > 1
