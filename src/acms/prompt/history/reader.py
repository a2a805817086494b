"""Reads the part of a log that a history shows: its newest messages, or those of a stored window.

`acms.prompt.history.placed` says what stands in front of a history, and `acms.prompt.history.cache_window` what a
window is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from acms.log import summary_levels
from acms.log.active_entries import EntryGroup, is_sealed
from acms.log.summary_levels import Level
from acms.model import Context, Entry, Kind
from acms.plan import turns
from acms.plan.nodes import ComposedMessage, MessageGroup, Piece
from acms.ports import Codec
from acms.prompt import steps as content
from acms.prompt.fit_state import compose_message
from acms.prompt.history import cache_window
from acms.prompt.history.answers import AnswerSearch
from acms.prompt.history.cache_window import CacheWindow
from acms.prompt.history.placed import (
    HistoryRead,
    check_instructions_fit,
    label_in_front,
    load_front_entries,
)
from acms.prompt.history.tool_outputs import CallCutter, measure_longest_text
from acms.prompt.resolve import MARGIN
from acms.prompt.steps import Readable
from acms.recall.planner import SUMMARIES_SHARE
from acms.recall.window import LogSpan
from acms.runtime.threads import off_loop

T = TypeVar("T")

CONDENSED_OUTPUTS = 12
"""Condensed tool outputs that a prompt could hold: several of them and the conversation fit."""


@dataclass(frozen=True, kw_only=True, eq=False)
class HistoryRequest:
    """What a prompt asks of its history."""

    session: Readable
    #: None if the prompt recalls nothing.
    answers: AnswerSearch | None
    codec: Codec
    #: Raw tokens for history and recall together.
    budget: int
    #: Returns the raw tokens of some recalled pieces as one message.
    block_cost: Callable[[tuple[Piece, ...]], int]
    #: Raw tokens for the whole prompt.
    prompt_budget: int
    #: Whether the caller put a user message behind the history: the question then is that one, not one of the log.
    question_follows: bool
    #: Whether the model may call tools.
    has_tools: bool
    #: Entries that may be shown, by id; whoever reads an entry adds it.
    entries: dict[str, Any]
    #: Ids of entries in front that are never left out.
    first: Sequence[str] = ()

    @property
    def condensed_tokens(self) -> int:
        """Tokens of a condensed tool output."""
        return self.prompt_budget // CONDENSED_OUTPUTS

    @property
    def newest_output_share(self) -> float:
        """Share of the budget for the newest output: half if a newer question needs the rest for its own answer."""
        return 0.5 if self.question_follows else 0.85

    def cost(self, nodes: Iterable[MessageGroup | ComposedMessage]) -> int:
        """Return the raw tokens of some nodes."""
        tokens = 0
        for node in nodes:
            if isinstance(node, MessageGroup):
                tokens += sum(map(self.codec.cost, node.messages))
            else:
                tokens += self.codec.cost(compose_message(node, node.pieces))
        return tokens

    def find_turn_start(self, history: HistoryRead) -> int:
        """Return the index of the group with which the newest turn begins, and before which its block stands.

        The question may be in front of all groups: then the turn begins with the first of them.
        """
        question = [group for group in history.front if turns.is_question(group)][-1:]
        groups = [*question, *history.groups]
        start = turns.find_turn_start(groups, question_follows=self.question_follows)
        return max(0, start - len(question))


class HistoryReader:
    """Reads histories as groups of messages, without the reasoning that a provider no longer accepts."""

    def __init__(self, request: HistoryRequest, cutter: CallCutter) -> None:
        self._request = request
        self._session = request.session
        self._cutter = cutter
        #: Warnings for the caller about what was read.
        self.warnings: list[str] = []

    async def read_window(self, window: CacheWindow) -> HistoryRead:
        """Read the part of the log that a window shows."""
        span = await self._session.read_span(since=window.start_tokens, began=window.began_at)
        entries = self._request.entries
        front = [self._restore_front_group(entries[id], tokens, span) for id, tokens in window.front_entries]
        sealed_summary = next((entries[id] for id, _ in window.front_entries if is_sealed(entries[id])), None)
        units = span.units
        if sealed_summary is not None:
            units = content.substitute_summary(units, sealed_summary)
        labels = span.labels.by_id(units)
        if window.first_version:  # an edit has the position of the next message, as have groups before it
            units = _select_from_version(units, window.first_version)
        units = [unit for unit in units if unit.entries[0] != sealed_summary]
        groups = cache_window.strip_old_reasoning(self._build_groups(units, labels), window.began_at)
        return HistoryRead(span, groups, front, window.front_entries, not window.first_version, labels)

    async def read_newest(self, context: Context | None) -> HistoryRead:
        """Read the newest messages that could fit the budget, with the instructions and summaries before them."""
        span, groups = await self._gather_turn()
        labels = span.labels.by_id(span.units)
        units = [*span.older_summaries, *span.units]
        sealed_summary = content.find_sealed_compaction(
            self._session, span.replacements, self._request.codec.vendors
        )
        if sealed_summary is not None:
            units = content.substitute_summary(units, sealed_summary)
        summaries = [unit.entries[0] for unit in units if unit.entries[0].kind is Kind.SUMMARY]
        if summaries:
            groups = self._build_groups(
                [unit for unit in units if unit.entries[0].kind is not Kind.SUMMARY], labels
            )
        summaries_budget = await run_cut(partial(self._summaries_budget, groups), groups)
        front, front_entries = self._choose_summaries(summaries, summaries_budget, span)
        if summaries and not front:
            self.warnings.append(
                "no summary of older messages fits: even the shortest takes half of the space"
            )
        groups = cache_window.strip_old_reasoning(groups, span.version)
        is_complete = span.whole and not summaries
        history = HistoryRead(span, groups, front, front_entries, is_complete, labels)
        return await self._with_instructions(history, context)

    async def _with_instructions(self, history: HistoryRead, context: Context | None) -> HistoryRead:
        """Put the system messages that the log begins with in front, if not all of it is shown.

        They are never left out: `FitError` if they leave no room for the newest message.
        """
        request = self._request
        if history.is_complete and request.cost(history.groups) <= request.budget:
            return history
        units = await load_front_entries(self._session, history.span, request.first, context)
        groups = self._build_groups(units, history.span.labels.by_id([], units))
        check_instructions_fit(request.cost(groups), request.budget)
        front_ids = cache_window.visible_ids(groups)
        front_entries = [(group.messages[0].sources[0], 0) for group in groups]
        return history._replace(
            groups=[group for group in history.groups if front_ids.isdisjoint(group.messages[0].sources)],
            front=[*groups, *history.front],
            front_entries=(*front_entries, *history.front_entries),
        )

    async def _gather_turn(self) -> tuple[LogSpan, list[MessageGroup]]:
        """Read back until the budget is filled and, if the log ends with tool calls, their question is read."""
        request = self._request
        read_budget = max(1, int(request.budget * MARGIN))
        while True:
            span = await self._session.read_span(budget=read_budget)
            groups = self._build_groups(span.units, span.labels.by_id(span.units))
            turn_start = turns.find_turn_start(groups, question_follows=request.question_follows)
            # Only a turn that ends with tool calls can begin further back.
            may_begin_earlier = turns.ends_with_call(groups) and not request.question_follows
            # The index is the number of groups if no question was found.
            has_turn_start = turn_start < len(groups) or not may_begin_earlier
            cost = await run_cut(partial(self._measure_when_cut, groups, turn_start), groups)
            is_filled = cost > request.budget
            is_far = read_budget > cache_window.MOST_BUDGETS_SEARCHED * request.budget
            if span.whole or is_far or (is_filled and has_turn_start):
                return span, groups
            read_budget *= 2

    def _measure_when_cut(self, groups: Sequence[MessageGroup], turn_start: int) -> int:
        """Return the raw tokens of groups whose calls, and long messages before the turn, are condensed."""
        limits = self._cutter.limit_long_messages(groups[:turn_start])
        return self._request.cost(self._cutter.cut(groups, limits))

    # ── what stands in front ────────────────────────────────────────────────────────────────────────────────────────

    def put_in_front(self, history: HistoryRead, entry_id: str, tokens: int) -> HistoryRead:
        """Put a message of the user in front of a history, cut to a number of tokens if that is not 0."""
        question = self._build_front_message(self._request.entries[entry_id], tokens, history.span)
        front_entries = (*history.front_entries, (entry_id, tokens))
        return history._replace(front=[*history.front, question], front_entries=front_entries)

    def _summaries_budget(self, groups: Sequence[MessageGroup]) -> int:
        """Return the tokens for summaries: a share, or all that the messages leave if nothing else needs it."""
        request = self._request
        share = int(request.budget * SUMMARIES_SHARE)
        if request.answers is not None:
            return share
        return max(share, request.budget - request.cost(self._cutter.cut(groups, {})))

    def _choose_summaries(
        self, summaries: Sequence[Entry], budget: int, span: LogSpan
    ) -> tuple[list[MessageGroup], tuple[tuple[str, int], ...]]:
        """Return the newest summaries that fit, in the longest of their texts that fits, and their `front_entries`.

        The newest is shown also if its shortest text takes more, up to half of the budget for history and recall.
        """
        groups: list[MessageGroup] = []
        front_entries: list[tuple[str, int]] = []
        for entry in reversed(summaries):
            level = summary_levels.choose_level(entry, budget)
            group = self._build_front_summary(entry, level, span)
            cost = self._request.cost([group])
            if cost > budget and (groups or cost > self._request.budget // 2):
                break
            groups.insert(0, group)
            front_entries.insert(0, (entry.id, level.tokens))
            budget -= cost
        return groups, tuple(front_entries)

    def _restore_front_group(self, entry: Entry, tokens: int, span: LogSpan) -> MessageGroup:
        """Return an entry in front as a stored window shows it; `tokens` are those of its `front_entries`."""
        if entry.kind is not Kind.SUMMARY:
            return self._build_front_message(entry, tokens, span)
        levels = summary_levels.levels_of_summary(entry)
        level = next((level for level in levels if level.tokens == tokens), levels[-1])
        return self._build_front_summary(entry, level, span)

    def _build_front_summary(self, entry: Entry, level: Level, span: LogSpan) -> MessageGroup:
        """Return a summary with its label, in one of its texts."""
        shown_entry = summary_levels.summary_at_level(entry, level)
        (group,) = self._build_groups([EntryGroup((shown_entry,))], {entry.id: label_in_front(entry, span)})
        # A manifest quotes the stored entry, which has all texts.
        self._request.entries[entry.id] = entry
        return group

    def _build_front_message(self, entry: Entry, limit: int, span: LogSpan) -> MessageGroup:
        """Return a message with its label, cut to a limit if that is not 0."""
        (group,) = self._build_groups([EntryGroup((entry,))], {entry.id: label_in_front(entry, span)})
        return self._cutter.shorten_question(group, limit) if limit else group

    def _build_groups(
        self, units: Sequence[EntryGroup[Entry]], labels: Mapping[str, str]
    ) -> list[MessageGroup]:
        self._request.entries.update({entry.id: entry for unit in units for entry in unit.entries})
        return content.build_groups(units, self._session.counter.name, self._request.codec.vendors, labels)


def _select_from_version(units: Sequence[EntryGroup[Entry]], version: int) -> list[EntryGroup[Entry]]:
    """Return the units from the one that begins with an entry of a version, without summaries."""
    starts = [
        index for index, unit in enumerate(units) if version == min(entry.version for entry in unit.entries)
    ]
    start = starts[0] if starts else len(units)
    return [unit for unit in units[start:] if unit.entries[0].kind is not Kind.SUMMARY]


async def run_cut(cut: Callable[[], T], groups: Sequence[MessageGroup]) -> T:
    """Run a function that cuts these groups: in a thread if a text of theirs is long, else on the event loop."""
    return await off_loop(cut, measure_longest_text(groups))
