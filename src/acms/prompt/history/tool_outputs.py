"""Outputs and arguments of finished tool calls, and long messages, cut to the tokens that a prompt has for them.

As much of the newest call is shown as fits; of older ones the most relevant parts. A message that is longer than the
budget, such as a pasted document, is shown with its beginning and its end. Text shown in one request is shown again
word for word, so the tokens of each are kept with the cache window (`acms.prompt.history.cache_window`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from acms.model import Part, Role, Text, ToolCall, ToolResult
from acms.plan.nodes import MessageGroup
from acms.plan.turns import is_question
from acms.ports import Codec
from acms.prompt_types import PromptMessage, with_parts
from acms.text import condense

NOTE_TOKENS = 24
"""Tokens for the note that images are left out."""
LEAST_SHOWN = 64
"""Fewest tokens of a long message that are worth showing."""
LONG_SHARE = 1 / 3
"""Share of the budget for history and recall from which a message is long."""
MOST_FULL_PARTS = 4
"""Parts of one condensed call, its arguments and outputs, that may each have the tokens of a condensed output."""


class CallCutter:
    """Cuts the tool calls and the long messages of a history, and remembers the last cuts."""

    def __init__(self, codec: Codec, *, budget: int, condensed_tokens: int) -> None:
        self._codec = codec
        #: The limit for calls that are shown whole, which no part of them exceeds, and that for a condensed output.
        self._budget = budget
        self._condensed_tokens = condensed_tokens
        #: Of the calls that were cut last, by version: tokens of each message, whole and as shown.
        self.last_cuts: dict[int, dict[str, tuple[int, int]]] = {}
        #: The same of questions that were cut, by id.
        self.question_cuts: dict[str, tuple[int, int]] = {}

    def cut(
        self, groups: Sequence[MessageGroup], limits: Mapping[int, int], question: str = ""
    ) -> list[MessageGroup]:
        """Return groups with each part of a finished tool call cut to its limit; `limits` are by version of the call.

        Calls without a limit of their own are condensed, other messages without one are left whole. The user message
        before an output decides which parts of it are kept; `question` is the user message before all groups.
        """
        self.last_cuts = {}
        if not limits and not any(map(is_call, groups)):
            return list(groups)
        cut_groups: list[MessageGroup] = []
        for group in groups:
            if is_question(group):
                question = group.messages[0].text
            cut_groups.append(self._cut_group(group, limits.get(group.first), question))
        return cut_groups

    def _cost(self, group: MessageGroup) -> int:
        return sum(map(self._codec.cost, group.messages))

    def limit_long_messages(self, groups: Sequence[MessageGroup]) -> dict[int, int]:
        """Return limits for messages that would hide all older ones, such as a pasted document, by version.

        They are condensed like outputs, but not to fewer tokens than are worth showing.
        """
        longest = max(LEAST_SHOWN, self._budget * LONG_SHARE)
        limits: dict[int, int] = {}
        for group in groups:
            if self._cost(group) > longest and not is_call(group):
                limits[group.first] = max(LEAST_SHOWN, self._condensed_limit(group))
        return limits

    def _cut_group(self, group: MessageGroup, limit: int | None, question: str) -> MessageGroup:
        """Return a group with each part cut to a limit, and note the tokens of what was cut."""
        if limit is None:
            if not is_call(group):
                return group
            limit = self._condensed_limit(group)
        if is_call(group):
            messages = tuple([self._cut_message(message, limit, question) for message in group.messages])
        else:
            messages = tuple([self._cut_long_message(message, limit) for message in group.messages])
        shown: list[PromptMessage] = []
        cuts: dict[str, tuple[int, int]] = {}
        for original, shortened in zip(group.messages, messages, strict=True):
            shown.append(original)
            if shortened is original:
                continue
            tokens = self._codec.cost(original), self._codec.cost(shortened)
            if tokens[1] < tokens[0]:  # the marks of a cut may take more than it saves
                shown[-1] = shortened
                cuts.update(dict.fromkeys(original.sources, tokens))
        if not cuts:
            return group
        self.last_cuts[group.first] = cuts
        return group._replace(messages=tuple(shown))

    def _cut_message(self, message: PromptMessage, limit: int, question: str) -> PromptMessage:
        """Return a message with each part cut to a limit; itself if nothing has to be cut."""
        known_tokens = message.tokens if message.counter == self._codec.counter.name else None
        if message.role is Role.TOOL and known_tokens is not None and known_tokens <= limit:
            return message  # the stored count shows that it fits, which saves counting its parts
        entry = message.sources[0] if message.sources else ""
        return with_parts(message, [self._cut_part(part, limit, question, entry) for part in message.parts])

    def _cut_part(self, part: Part, limit: int, question: str, entry: str) -> Part:
        """Return the arguments of a call or the output of a tool, cut to a limit; other parts unchanged."""
        counter = self._codec.counter
        if isinstance(part, ToolCall):
            arguments = condense.condense_arguments(part.arguments, limit, counter)
            return part if arguments == part.arguments else replace(part, arguments=arguments)
        if isinstance(part, ToolResult) and part.output:
            output = condense.condense_output(part.output, limit, counter, question=question, entry_id=entry)
            return replace(part, output=output or condense.CUT)
        return part

    def _cut_long_message(self, message: PromptMessage, limit: int) -> PromptMessage:
        entry = message.sources[0] if message.sources else ""
        parts: list[Part] = []
        for part in message.parts:
            if isinstance(part, Text):
                part = Text(condense.keep_ends(part.text, limit, self._codec.counter, entry_id=entry))
            parts.append(part)
        return with_parts(message, parts)

    def shorten_question(self, group: MessageGroup, budget: int) -> MessageGroup:
        """Return a message of the user within a budget: at most half of it for text, then the images that fit.

        A message that fits is returned whole, and so is anything else.
        """
        message = group.messages[0]
        whole_cost = self._codec.cost(message)
        if not is_question(group) or whole_cost <= budget:
            return group
        texts = [part for part in message.parts if isinstance(part, Text)]
        has_others = len(texts) < len(message.parts)
        text_message = with_parts(message, texts)
        limit = self.limit_within(MessageGroup((text_message,)), budget // 2 if has_others else budget)
        shortened = self._cut_long_message(text_message, limit)
        parts, left_out = list(shortened.parts), 0
        for part in message.parts:
            if isinstance(part, Text):
                continue
            longer = replace(shortened, parts=(*parts, part))
            if self._codec.cost(longer) + NOTE_TOKENS <= budget:
                parts.append(part)
            else:
                left_out += 1
        if left_out:
            parts.append(Text(f"[{left_out} of the images or files of this message are left out]"))
        shortened = replace(shortened, parts=tuple(parts))
        self.question_cuts.update(dict.fromkeys(message.sources, (whole_cost, self._codec.cost(shortened))))
        return group._replace(messages=(shortened,))

    def condense(
        self, groups: Sequence[MessageGroup], limits: Mapping[int, int], question: str = ""
    ) -> tuple[list[MessageGroup], dict[int, int]]:
        """Return groups cut to the given limits, all other calls condensed, and the limits of all calls cut."""
        cut_groups = self.cut(groups, limits, question)
        condensed_limits = {
            group.first: self._condensed_limit(group) for group in groups if group.first in self.last_cuts
        }
        return cut_groups, condensed_limits | dict(limits)

    def _condensed_limit(self, group: MessageGroup) -> int:
        """Return the tokens of each part of a condensed call, which has at most four times those of one output.

        Parts that need less leave the rest to the longer ones.
        """
        parts = sum(len(message.parts) for message in group.messages)
        if parts <= MOST_FULL_PARTS:
            return max(1, self._condensed_tokens)
        level = condense.find_level(self._part_costs(group), MOST_FULL_PARTS * self._condensed_tokens)
        return max(1, min(self._condensed_tokens, level))

    def _part_costs(self, group: MessageGroup) -> list[int]:
        """Return the tokens of each text of a group that may be cut."""
        costs: list[int] = []
        for message in group.messages:
            for part in message.parts:
                text = _text_to_cut(part, is_call=is_call(group))
                if text is not None:
                    costs.append(self._codec.counter.count(text))
        return costs

    def fill(
        self,
        groups: Sequence[MessageGroup],
        costs: Sequence[int],
        limits: Mapping[int, int],
        start: int,
        budget: int,
    ) -> tuple[int, dict[int, int]]:
        """Return an earlier start and higher limits that show more of some whole groups, newest first.

        `costs` are those of the groups as they would be shown, `budget` is how much the groups from `start` on may
        grow. What does not fit whole is cut.
        """
        limits = dict(limits)
        for index in reversed(range(len(groups))):
            group = groups[index]
            shown_tokens = costs[index] if index >= start else 0
            whole_tokens = self._cost(group)
            if whole_tokens > shown_tokens + budget:
                if shown_tokens + budget < LEAST_SHOWN:
                    break
                limits[group.first] = self.limit_within(group, shown_tokens + budget)
            elif is_call(group):
                limits[group.first] = self._budget
            (cut_group,) = self.cut([group], limits)
            budget -= self._cost(cut_group) - shown_tokens
            start = min(start, index)
        return start, limits

    def limit_within(self, group: MessageGroup, budget: int) -> int:
        """Return the tokens that each part of a call or message may have so that all of it fits a budget."""
        whole_cost = self._cost(group)
        if whole_cost <= budget:
            return self._budget
        costs = self._part_costs(group)
        frame_cost = whole_cost - sum(costs)
        return max(self._condensed_limit(group), condense.find_level(costs, budget - frame_cost))


def measure_longest_text(groups: Sequence[MessageGroup]) -> int:
    """Return the characters of the longest text of some groups that may be cut."""
    longest = 0
    for group in groups:
        for message in group.messages:
            for part in message.parts:
                longest = max(longest, len(_text_to_cut(part, is_call=False) or ""))
    return longest


def is_call(group: MessageGroup) -> bool:
    """Return whether a group is a tool call with its results."""
    return len(group.messages) > 1 and any(message.role is Role.TOOL for message in group.messages)


def _text_to_cut(part: Part, *, is_call: bool) -> str | None:
    """Return the text of a part that may be cut: arguments and outputs of a call, or the text of another message."""
    match part:
        case ToolCall():
            return part.arguments
        case ToolResult():
            return part.output
        case Text():
            return None if is_call else part.text
        case _:
            return None
