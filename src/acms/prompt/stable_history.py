"""A history that only grows at its end from request to request, with recalled passages among it.

`acms.prompt.cache_window` says what is stored of it. This module reads the log, recalls, decides what is shown, and
stores the positions once there is a prompt.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from acms.log import summary_levels
from acms.log.encoding import is_summary
from acms.log.in_force import EntryGroup, is_sealed
from acms.model import Context, Entry, Kind
from acms.plan.nodes import ComposedMessage, FittedPrompt, MessageGroup, Piece
from acms.ports import Codec, HasRecords
from acms.prompt import cache_window, excerpts
from acms.prompt import steps as content
from acms.prompt.answers import AnswerSearch
from acms.prompt.cache_window import Block, CacheWindow
from acms.prompt.fit_state import compose_message
from acms.prompt.placed_history import (
    HistoryRead,
    PlacedHistory,
    check_instructions_fit,
    find_missing_question,
    label_in_front,
    load_front_entries,
)
from acms.prompt.resolve import MARGIN, LogRead
from acms.prompt.steps import Readable
from acms.prompt.tool_outputs import CallCutter, is_call
from acms.prompt.window_record import WindowRecord, load_window_entries
from acms.recall.planner import SUMMARIES_SHARE
from acms.recall.window import LogSpan
from acms.text.chat_messages import EXCERPTS, EXCERPTS_OF_TURN, MORE_EXCERPTS

NEWEST_SHARE = 0.15
"""Share of the budget that the newest messages take when a window begins: questions about them need no recall."""
MIN_FILLED_SHARE = 0.4
"""Least share of the budget that a window begins with: tokens a recall does not need show more of the history."""
LAST_EXCHANGE_SHARE = 0.4
"""Share that the last exchange may take of the tokens beside the newest question, which often refers to it."""
CUT_EXCHANGE_SHARE = 0.5
"""Share of the budget filled, at most, by showing more of the last exchange, cut; the rest is for the next turns."""
EARLIER_CALLS_SHARE = 0.1
"""Share of the budget for the newest calls of a long turn that are not shown whole: a line for each."""


@dataclass(kw_only=True, eq=False)
class StableHistory:
    """The history and recalled passages of one render: `place` chooses them, `commit` stores their positions."""

    session: Readable
    #: None if the prompt recalls nothing.
    answers: AnswerSearch | None
    codec: Codec
    #: Raw tokens for history and recall together.
    budget: int
    #: Tokens of a condensed tool output.
    condensed_tokens: int
    #: Whether the caller put a user message behind the history: the question then is that one, not one of the log.
    question_follows: bool
    #: Whether the model may call tools.
    has_tools: bool
    #: Name of the record, which identifies the shape of the prompt.
    record_name: str
    #: Budget of the whole prompt.
    prompt_budget: int
    #: Entries that may be shown, by id.
    entries: dict[str, Any]
    #: Ids of entries in front that are never left out.
    first: Sequence[str] = ()

    _context: Context | None = field(default=None, init=False)
    #: None if nothing is stored.
    _record: WindowRecord | None = field(default=None, init=False)
    #: The stored window of this budget, which a new one replaces.
    _previous: CacheWindow | None = field(default=None, init=False)
    _warnings: list[str] = field(default_factory=list, init=False)
    #: Whether a new window must begin because the stored one did not fit, and whether one began in this render.
    _must_begin: bool = field(default=False, init=False)
    _began: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self._cutter = CallCutter(self.codec, budget=self.budget, condensed_tokens=self.condensed_tokens)

    @property
    def warnings(self) -> list[str]:
        """Warnings for the caller about the last placement."""
        return [*self._warnings, *(() if self._record is None else self._record.warnings)]

    # ── the stored window ───────────────────────────────────────────────────────────────────────────────────────────

    @property
    def _is_stored(self) -> bool:
        keeps_position = self.answers is None or self.answers.step.keeps_position
        return (
            keeps_position and self.session.ends_at is None and isinstance(self.session.storage, HasRecords)
        )

    async def _load_window(self, context: Context) -> CacheWindow | None:
        """Return the stored window of this log or of the nearest ancestor, or None if what it shows has changed."""
        storage = self.session.storage
        if not self._is_stored or not isinstance(storage, HasRecords):
            return None
        self._record = WindowRecord(storage, self.record_name, self.prompt_budget)
        window = await self._record.load(context)
        self._previous = self._record.own_window
        if window is None:
            return None
        entries = await load_window_entries(self.session, window, context)
        if entries is None:
            return None
        self.entries.update(entries)
        return window

    async def commit(self, placed: PlacedHistory, fitted: FittedPrompt, path: str, request_hash: str) -> bool:
        """Store the positions; return False if the history must be placed again.

        It must if another process stored other positions meanwhile, or if the fit left out entries of a continued
        window. `request_hash` is "" if the provider does not bind reasoning to a request. A store that cannot be
        written costs the next request its cache, not this one.
        """
        window = placed.window
        if window is None or self._context is None or self._record is None:
            return True
        lost_ids = cache_window.list_lost_entries(fitted, path)
        if lost_ids and not self._began:
            self._must_begin = True
            return False
        if lost_ids:
            window = cache_window.drop_lost_entries(window, placed.nodes, lost_ids)
        if request_hash and request_hash not in window.request_hashes:
            # The hashes of 400 requests are enough for any turn, and small in the record.
            window = window._replace(request_hashes=(*window.request_hashes, request_hash)[-400:])
        if window == self._previous:
            return True
        is_stored = await self._record.store(self._context.id, window, replaces=self._began)
        if not is_stored and self.answers is not None:
            self.answers.forget()  # the log may have grown, too
        return is_stored

    # ── placing ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def place(self) -> PlacedHistory:
        """Continue the stored window, or begin one if there is none or it no longer fits."""
        self._warnings = []
        context_id = await self.session.context_id()
        if context_id is None:
            return await self._place_without_log()
        self._context = await self.session.storage.context(context_id)
        window = await self._load_window(self._context)
        self._began = False
        previous_groups: Sequence[MessageGroup] = ()
        if window is not None and not self._must_begin:
            history = await self._read_window(window)
            placed = await self._continue(window, history)
            if placed is not None and self._shows_enough(placed, window):
                return placed
            previous_groups = cache_window.strip_old_reasoning(history.groups, window.began_at)
        self._began = True
        return await self._begin(previous_groups)

    async def _place_without_log(self) -> PlacedHistory:
        """Show matches from other sessions for a session without messages."""
        pieces: tuple[Piece, ...] = ()
        if self.answers is not None:
            pieces = await self.answers.find(self.budget, {}, None, take_all=True)
        return PlacedHistory((self._write_block(pieces),) if pieces else (), None, None)

    async def _continue(self, window: CacheWindow, history: HistoryRead) -> PlacedHistory | None:
        """Add the content of the newest turn after the content already shown; None if it does not fit."""
        if not self._has_same_labels(window, history):
            return None
        whole_groups = cache_window.strip_old_reasoning(history.groups, window.began_at)
        cut_result = self._cut_new_outputs(window, history, whole_groups)
        if cut_result is None:
            return None
        groups, limits = cut_result
        window = window._replace(outputs=tuple(sorted(limits.items())))
        history = history._replace(groups=groups)
        index = self._find_turn_start(history.front, groups)
        answers = self.answers
        if answers is not None and not cache_window.has_recalled(answers.step.query, window, groups, index):
            extended_window = await self._add_block(window, history, index, answers)
            if extended_window is None:
                return None
            window = extended_window
        placed = self._lay_out(window, history)
        return placed if self._cost(placed.nodes) <= self.budget else None

    async def _add_block(
        self, window: CacheWindow, history: HistoryRead, index: int, answers: AnswerSearch
    ) -> CacheWindow | None:
        """Return a window with a block for the newest question; None if it does not fit."""
        groups = history.groups
        recall_budget = answers.max_tokens
        block_positions = [cache_window.index_after_version(groups, block.after) for block in window.blocks]
        if index < len(groups) - 1 and index in block_positions:
            # Something else is asked in the middle of a turn: its block goes behind everything written so far.
            index = len(groups)
            recall_budget = min(recall_budget, int(self._tokens_left(window, history) / 2))
        if any(position >= index for position in block_positions):
            # Nothing was written since the newest block, so this request asks something else of the same log. It is
            # no next turn of the stored window, by whose turns `_reserve` must not judge it.
            self._previous = None
            return None
        visible = cache_window.collect_visible_texts([*history.front, *groups], window.blocks, self.entries)
        pieces = await answers.find(recall_budget, visible, self._context)
        if pieces and self._cost([self._write_block(pieces)]) > self._tokens_left(window, history):
            return None
        return window._replace(blocks=(*window.blocks, self._build_block(history, index, pieces)))

    def _shows_enough(self, placed: PlacedHistory, window: CacheWindow) -> bool:
        """Return whether a window made for another budget shows as much as one that would begin now.

        It does not if its recall was made for much less, if it fills too little of the budget, if the newest output is
        cut although much more of it would fit, or if the messages before it would fit now too.
        """
        assert self._record is not None
        if self._record.made_for == self._record.budget:
            return True
        is_same_question = placed.window is not None and placed.window.blocks == window.blocks
        if is_same_question and self._record.made_for < 0.8 * self._record.budget:
            return False  # its recall left out answers that the larger budget has tokens for
        cost = self._cost(placed.nodes)
        free_tokens = self.budget - cost
        whole_history_fits = 0 < window.start_tokens <= free_tokens
        could_show_more = whole_history_fits or placed.could_show_more(free_tokens)
        return cost >= self.budget * MIN_FILLED_SHARE and not could_show_more

    def _tokens_left(self, window: CacheWindow, history: HistoryRead) -> int:
        return self.budget - self._cost(self._lay_out(window, history).nodes)

    async def _begin(self, previous_groups: Sequence[MessageGroup]) -> PlacedHistory:
        """Begin a window with the newest messages and a recall; `previous_groups` are those of the last window.

        The newest turn comes first, then the recall; the tokens it leaves show older messages, or a line for each call.
        """
        history = await self._with_instructions(await self._read_newest())
        whole_groups = cache_window.strip_old_reasoning(history.groups, history.span.version)
        turn_start = self._find_turn_start(history.front, whole_groups)
        answer_tokens = 0
        if self.answers is not None:
            answer_tokens = await self.answers.measure(whole_groups[turn_start:], self._context)
        call_tokens = self._tokens_for_calls(whole_groups[turn_start:])
        groups, limits = self._cut_outputs(history, whole_groups, turn_start, answer_tokens + call_tokens)
        costs = self._costs(groups)
        start = self._choose_start(history, costs, turn_start, groups)
        start = min(start, content.find_newest_non_system(groups))
        with_question = self._move_question_to_front(history, start, costs, groups)
        budget = self.budget - self._cost(with_question.front)
        calls_budget = budget - answer_tokens - sum(costs[start:])
        calls = self._write_earlier_calls(whole_groups[turn_start:start], calls_budget)
        budget -= self._cost([self._write_block(calls)] if calls else [])
        tool_tokens, used_tool_tokens = self._estimate_tool_tokens(whole_groups, costs, previous_groups)
        reserve = self._reserve(groups, costs, tool_tokens, used_tool_tokens)
        pieces, recall_budget = tuple[Piece, ...](), 0
        take_all = reserve is not None or tool_tokens > 0
        if self.answers is not None:
            recall_budget = free_tokens = budget - sum(costs[start:])
            if start > 0 or not history.is_complete:
                recall_budget = self._first_recall_budget(free_tokens, reserve, tool_tokens, used_tool_tokens)
                recall_budget = max(recall_budget, min(answer_tokens, free_tokens))
            shown_groups = [*with_question.front, *groups[start:]]
            visible = cache_window.collect_visible_texts(shown_groups, (), self.entries)
            pieces = await self.answers.find(recall_budget, visible, self._context, take_all=take_all)
        fill_budget = int(budget * MIN_FILLED_SHARE) if reserve is None else budget - reserve
        if sum(costs[start:]) > budget / 2:  # the next turn will not fit in any case
            fill_budget = budget
        start, pieces = self._extend_back(groups, costs, start, fill_budget, pieces)
        if start > turn_start:  # the turn is not shown whole: each earlier call of it gets one line
            history = with_question
            recalled_ids = {id for piece in pieces for id in piece.sources}
            hidden_groups = [
                group
                for group in whole_groups[turn_start:start]
                if recalled_ids.isdisjoint(cache_window.visible_ids([group]))
            ]
            pieces += self._write_earlier_calls(hidden_groups, calls_budget)
        else:
            free_tokens = max(fill_budget, int(budget * CUT_EXCHANGE_SHARE)) - sum(costs[start:])
            start, limits, pieces = await self._show_last_exchange(
                whole_groups,
                turn_start,
                costs,
                limits,
                start,
                free_tokens,
                pieces,
                history.front,
                recall_budget,
                take_all=take_all,
            )
        shown_groups = self._cutter.cut(whole_groups[start:], limits, cache_window.question_of(history.front))
        return await self._place_begun(
            history._replace(groups=shown_groups), whole_groups[:start], limits, pieces
        )

    async def _place_begun(
        self,
        history: HistoryRead,
        older_groups: Sequence[MessageGroup],
        limits: Mapping[int, int],
        pieces: tuple[Piece, ...],
    ) -> PlacedHistory:
        """Return a history as it is placed in a new window; `older_groups` are those before the ones shown."""
        question = find_missing_question(history, older_groups)
        block = [self._write_block(pieces)] if pieces else []
        if question and self._cost([*history.front, *history.groups, *block, question]) <= self.budget:
            question_id = question.messages[0].sources[0]
            history = self._add_to_front(history, question_id, 0)
            pieces = tuple([piece for piece in pieces if question_id not in piece.sources])
        is_whole = not older_groups and history.is_complete
        window = await self._new_window(history, limits, pieces, is_whole=is_whole)
        placed = self._lay_out(window, history)
        left_out = [
            group for group in older_groups if history.front_ids.isdisjoint(group.messages[0].sources)
        ]
        return placed._replace(older=tuple(left_out))

    def _write_earlier_calls(self, groups: Sequence[MessageGroup], free_tokens: int) -> tuple[Piece, ...]:
        """Return the calls of a turn that are not shown, in short, within half of the free tokens or what is reserved.

        The other half is for the calls to come.
        """
        frame_cost = self.codec.cost(excerpts.write_frame(self.codec))
        line_tokens = int(self.budget * EARLIER_CALLS_SHARE)
        tokens = max(free_tokens // 2, min(free_tokens, line_tokens + frame_cost))
        return excerpts.write_earlier_calls(
            groups, self.codec.counter, line_tokens=line_tokens, tokens=tokens - frame_cost
        )

    def _tokens_for_calls(self, turn: Sequence[MessageGroup]) -> int:
        """Return the tokens that the newest output leaves for the names of the earlier calls of its turn."""
        if sum(map(is_call, turn)) < 2:
            return 0
        frame_cost = self.codec.cost(excerpts.write_frame(self.codec))
        tokens = frame_cost + int(self.budget * EARLIER_CALLS_SHARE)
        return tokens if tokens <= self.budget // 3 else 0

    async def _new_window(
        self, history: HistoryRead, limits: Mapping[int, int], pieces: Sequence[Piece], *, is_whole: bool
    ) -> CacheWindow:
        groups, span = history.groups, history.span
        blocks: tuple[Block, ...] = ()
        if self.answers is not None or pieces:
            blocks = (self._build_block(history, self._find_turn_start(history.front, groups), pieces),)
        starts_later = bool(groups) and not is_whole
        outputs = [(group.first, limits[group.first]) for group in groups if group.first in limits]
        head = await self.session.storage.head(span.context)
        return CacheWindow(
            start_tokens=groups[0].before if starts_later else 0,
            first_version=groups[0].first if starts_later else 0,
            began_at=span.version,
            generation=head.epoch,
            front_entries=history.front_entries,
            blocks=blocks,
            labels=tuple(sorted(history.collect_labels(self.entries).items())),
            outputs=tuple(sorted(outputs)),
        )

    # ── outputs of tools ────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def _newest_output_share(self) -> float:
        """Share of the budget for the newest output: half if a newer question needs the rest for its own answer."""
        return 0.5 if self.question_follows else 0.85

    def _cut_outputs(
        self, history: HistoryRead, groups: Sequence[MessageGroup], turn_start: int, reserved_tokens: int
    ) -> tuple[list[MessageGroup], dict[int, int]]:
        """Return the groups a window may begin with, and the most tokens for an output of each call.

        All are whole if the whole history fits. Otherwise the newest output may take its share of the tokens that the
        question leaves, the other outputs of the turn the rest of half of the budget; all others are condensed.
        """
        budget = self.budget - self._cost(history.front)
        condensed_groups, limits = self._cutter.condense(groups, {})
        if history.is_complete and self._cost(groups) <= budget:
            limits = dict.fromkeys(limits, self.budget)
            return self._cutter.cut(groups, limits), limits
        budget -= reserved_tokens
        last_index = len(groups) - 1
        turn_start = min(turn_start, max(0, last_index))
        turn_cost = self._cost(condensed_groups[turn_start:])
        for index in range(last_index, turn_start - 1, -1):
            group = groups[index]
            if group.first not in limits:
                continue
            other_cost = turn_cost - self._cost([condensed_groups[index]])
            available = int(budget / 2) - other_cost
            if index == last_index:
                question = self._cutter.shorten_question(groups[turn_start], self.budget // 2)
                has_question = turn_start < last_index and cache_window.is_question(groups[turn_start])
                question_cost = self._cost([question]) if has_question else 0
                available = max(available, int((budget - question_cost) * self._newest_output_share))
            limits[group.first] = self._cutter.limit_within(group, available)
            turn_cost = other_cost + self._cost(self._cutter.cut([group], limits))
        return self._cutter.cut(groups, limits), limits

    def _cut_new_outputs(
        self, window: CacheWindow, history: HistoryRead, groups: Sequence[MessageGroup]
    ) -> tuple[list[MessageGroup], dict[int, int]] | None:
        """Return the cut groups and the limits by call for a continued window: outputs shown before stay unchanged.

        New outputs of the current turn are whole if they fit the remaining tokens; all new outputs are whole if the
        whole history fits. None if a new window would show more than twice as much of the newest output.
        """
        known_limits = dict(window.outputs)
        question = cache_window.question_of(history.front)
        condensed_groups, limits = self._cutter.condense(groups, known_limits, question)
        new_indexes = [
            index
            for index, group in enumerate(groups)
            if group.first in limits and group.first not in known_limits and group.first > window.began_at
        ]
        if not new_indexes:
            return condensed_groups, limits
        if history.is_complete:
            whole_limits = limits | {groups[index].first: self.budget for index in new_indexes}
            whole_groups = self._cutter.cut(groups, whole_limits, question)
            if self._tokens_left(window, history._replace(groups=whole_groups)) >= 0:
                return whole_groups, whole_limits
        free_tokens = self._tokens_left(window, history._replace(groups=condensed_groups))
        turn_start = min(self._find_turn_start(history.front, groups), len(groups) - 1)
        min_tokens = self._newest_output_share / 2 * (self.budget - self._cost(history.front))
        for index in reversed(new_indexes):
            if index < turn_start:
                break
            group = groups[index]
            condensed_cost = self._cost([condensed_groups[index]])
            whole_fits = self._cost([group]) - condensed_cost <= free_tokens
            growth = free_tokens if whole_fits else int(free_tokens * self._newest_output_share)
            available = condensed_cost + growth
            limits[group.first] = self._cutter.limit_within(group, max(available, condensed_cost))
            is_cut = limits[group.first] < self.budget
            if index == len(groups) - 1 and is_cut and available < min_tokens:
                return None
            free_tokens -= self._cost(self._cutter.cut([group], limits)) - condensed_cost
        return self._cutter.cut(groups, limits, question), limits

    # ── how much ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _estimate_tool_tokens(
        self, groups: Sequence[MessageGroup], costs: Sequence[int], previous_groups: Sequence[MessageGroup]
    ) -> tuple[int, int]:
        """Return the tokens that the tools of the newest turn may take, and the tokens they took so far.

        They may take as much as the tools of an earlier turn, but no more than a third of the budget; nothing if a
        question follows the log and no tool is offered, since it is answered at once. If the log ends with a question,
        tools may be offered beside the prompt. `costs` are those of the shown groups; the estimate uses whole ones.
        """
        used_tokens = cache_window.call_tokens_by_turn(groups, costs)[-1]
        turns = cache_window.call_tokens_by_turn(groups, self._costs(groups))
        previous_turns = cache_window.call_tokens_by_turn(previous_groups, self._costs(previous_groups))
        if self.question_follows and not self.has_tools:
            return 0, 0
        if self.question_follows:
            used_tokens = 0
        else:
            turns.pop()
        return min(max([0, *turns, *previous_turns[:-1]]), self.budget // 3), used_tokens

    def _first_recall_budget(
        self, free_tokens: int, reserve: int | None, tool_tokens: int, used_tool_tokens: int
    ) -> int:
        """Return the tokens for the recall with which a window begins: without those that the turn's tools may take.

        Once tools run, it is half of the free tokens at most: the next calls of the turn need the rest.
        """
        if reserve is None:
            assert self.answers is not None
            expected_tokens = max(0, tool_tokens - used_tool_tokens)
            budget = min(self.answers.max_tokens, free_tokens - expected_tokens)
        else:
            budget = free_tokens - reserve
        max_tokens = free_tokens // 2 if used_tool_tokens and self._is_stored else free_tokens
        return max(0, min(budget, max_tokens))

    def _extend_back(
        self,
        groups: Sequence[MessageGroup],
        costs: Sequence[int],
        start: int,
        budget: int,
        pieces: tuple[Piece, ...],
    ) -> tuple[int, tuple[Piece, ...]]:
        """Show more of the history in the tokens that the recall left, and drop recalled pieces it now shows."""
        while True:
            free_tokens = budget - sum(costs[start:])
            free_tokens -= self._cost([self._write_block(pieces)]) if pieces else 0
            earlier_start = start
            while earlier_start and costs[earlier_start - 1] <= free_tokens:
                earlier_start -= 1
                free_tokens -= costs[earlier_start]
            earlier_start = cache_window.skip_answers(groups, earlier_start, start)
            if earlier_start == start:
                return start, pieces
            start = earlier_start
            pieces = cache_window.drop_visible_pieces(pieces, groups[start:], self.entries)

    async def _show_last_exchange(
        self,
        whole_groups: Sequence[MessageGroup],
        end: int,
        costs: Sequence[int],
        limits: Mapping[int, int],
        start: int,
        budget: int,
        pieces: tuple[Piece, ...],
        front: Sequence[MessageGroup],
        recall_budget: int,
        *,
        take_all: bool,
    ) -> tuple[int, dict[int, int], tuple[Piece, ...]]:
        """Show more of the exchange before `end`, which a question often refers to; return start, limits and pieces.

        `budget` holds the exchange and the recalled pieces. These are searched again if the exchange shows one of them.
        """
        exchange_start = cache_window.find_last_exchange(whole_groups[:end], costs, end, sum(costs[:end]))
        exchange = slice(exchange_start, end)

        def fill(pieces: tuple[Piece, ...]) -> tuple[int, dict[int, int]]:
            tokens = budget - self._cost([self._write_block(pieces)] if pieces else [])
            offset, filled_limits = self._cutter.fill(
                whole_groups[exchange], costs[exchange], limits, start - exchange_start, max(0, tokens)
            )
            return exchange_start + offset, filled_limits

        filled_start, filled_limits = fill(pieces)
        shown_groups = self._cutter.cut(whole_groups[filled_start:], filled_limits)
        visible = cache_window.collect_visible_texts([*front, *shown_groups], (), self.entries)
        if not any(piece.id in visible for piece in pieces):
            return filled_start, filled_limits, pieces
        assert self.answers is not None  # there are pieces
        new_pieces = await self.answers.find(recall_budget, visible, self._context, take_all=take_all)
        new_start, new_limits = fill(new_pieces)
        new_groups = self._cutter.cut(whole_groups[new_start:], new_limits)
        new_pieces = cache_window.drop_visible_pieces(new_pieces, new_groups, self.entries)
        new_ids = {piece.id for piece in new_pieces} | cache_window.visible_ids(new_groups)
        if any(piece.id in visible and piece.id not in new_ids for piece in pieces):
            # More was recalled, so less of the exchange is shown, and not what was recalled of it before.
            return (
                filled_start,
                filled_limits,
                cache_window.drop_visible_pieces(pieces, shown_groups, self.entries),
            )
        return new_start, new_limits, new_pieces

    def _reserve(
        self, groups: Sequence[MessageGroup], costs: Sequence[int], tool_tokens: int, used_tool_tokens: int
    ) -> int | None:
        """Return the tokens that a filled window leaves free for its turn, or None if more turns must fit.

        A request that shares its budget with no later turn is filled: the first of its kind, one that is not stored,
        and one whose turns are so long that the next would not fit, judged by the length of the last window. The
        requests of one turn share it in any case: its tools are expected to take as much as those of earlier turns.
        """
        if not self._is_stored:
            return 0
        if self.answers is None or (self.has_tools and not tool_tokens):
            return None
        previous = self._previous
        if previous is not None:
            new_cost = 0
            for group, cost in zip(groups, costs, strict=True):
                if group.first > previous.began_at:
                    new_cost += cost
            turns = max(1, len(previous.blocks))
            if new_cost <= turns * (self.budget * (1 - NEWEST_SHARE) - self.answers.max_tokens):
                return None
        return max(tool_tokens - used_tool_tokens, used_tool_tokens // 2)

    def _choose_start(
        self, history: HistoryRead, costs: Sequence[int], exchange_end: int, groups: Sequence[MessageGroup]
    ) -> int:
        """Return the index of the first group that a window shows: of all if they fit, or of the newest.

        At least those of the turn are shown, and the exchange before it if it is short. A turn that leaves nothing to
        grow begins with half of the budget: with its newest messages, and a line for each call before them.
        """
        budget = self.budget - self._cost(history.front)
        is_whole = history.is_complete or (self.answers is None and history.span.whole)
        if is_whole and sum(costs) <= budget:
            return 0
        last_index = len(groups) - 1
        turn_start = min(exchange_end, max(0, last_index))
        share = 0.5 if self.answers is None else NEWEST_SHARE
        leaves_room = turn_start == last_index or sum(costs[turn_start:]) <= budget * 2 / 3
        turn_budget = budget if leaves_room else int(budget * (0.5 - EARLIER_CALLS_SHARE))
        start = cache_window.find_newest_start(costs, int(budget * share), turn_budget, turn_start)
        start = cache_window.skip_answers(groups, start, turn_start)
        if not leaves_room:
            return start
        exchange_budget = int((budget - sum(costs[exchange_end:])) * LAST_EXCHANGE_SHARE)
        return min(start, cache_window.find_last_exchange(groups, costs, exchange_end, exchange_budget))

    def _move_question_to_front(
        self, history: HistoryRead, start: int, costs: Sequence[int], groups: Sequence[MessageGroup]
    ) -> HistoryRead:
        """Put the message that began the newest turn in front, if it is older than the messages shown.

        It may take half of the budget: what does not fit is cut.
        """
        turn_start = cache_window.find_turn_start(history.groups, question_follows=self.question_follows)
        if turn_start >= start:
            return history
        entry_id = groups[turn_start].messages[0].sources[0]
        tokens = self.budget // 2 if costs[turn_start] > self.budget // 2 else 0
        return self._add_to_front(history, entry_id, tokens)

    def _add_to_front(self, history: HistoryRead, entry_id: str, tokens: int) -> HistoryRead:
        """Put a message of the user in front of a history, cut to a number of tokens if that is not 0."""
        question = self._build_front_group(self.entries[entry_id], tokens, history.span)
        front_entries = (*history.front_entries, (entry_id, tokens))
        return history._replace(front=[*history.front, question], front_entries=front_entries)

    async def _with_instructions(self, history: HistoryRead) -> HistoryRead:
        """Put the system messages that the log begins with in front, if not all of it is shown.

        They are never left out: `FitError` if they leave no room for the newest message.
        """
        if history.is_complete and self._cost(history.groups) <= self.budget:
            return history
        units = await load_front_entries(self.session, history.span, self.first, self._context)
        groups = self._build_groups(units, history.span.labels.by_id([], units))
        check_instructions_fit(self._cost(groups), self.budget)
        front_ids = cache_window.visible_ids(groups)
        entries = [(group.messages[0].sources[0], 0) for group in groups]
        return history._replace(
            groups=[group for group in history.groups if front_ids.isdisjoint(group.messages[0].sources)],
            front=[*groups, *history.front],
            front_entries=(*entries, *history.front_entries),
        )

    def _find_turn_start(self, front: Sequence[MessageGroup], groups: Sequence[MessageGroup]) -> int:
        """Return the index of the group with which the newest turn begins, and before which its block stands.

        The question may be in front of all groups: then the turn begins with the first of them.
        """
        question = [group for group in front if cache_window.is_question(group)][-1:]
        start = cache_window.find_turn_start([*question, *groups], question_follows=self.question_follows)
        return max(0, start - len(question))

    def _build_block(self, history: HistoryRead, index: int, pieces: Sequence[Piece]) -> Block:
        groups = history.groups
        after = history.span.version if index >= len(groups) else groups[index].first - 1
        query = "" if self.answers is None else self.answers.step.query
        return cache_window.build_recall_block(after, query, pieces, self.entries)

    def _write_block(self, pieces: tuple[Piece, ...], explanation: str = EXCERPTS) -> ComposedMessage:
        return excerpts.write_block(pieces, self.codec, explanation)

    def _lay_out(self, window: CacheWindow, history: HistoryRead) -> PlacedHistory:
        """Return the nodes of a history with its blocks."""
        assert self._context is not None
        blocks: list[tuple[int, ComposedMessage]] = []
        for block in window.blocks:
            if block.pieces:
                explanation = MORE_EXCERPTS
                if not blocks:
                    index = cache_window.index_after_version(history.groups, block.after)
                    follows_question = index == 0 and bool(cache_window.question_of(history.front))
                    explanation = EXCERPTS_OF_TURN if follows_question else EXCERPTS
                pieces = cache_window.pieces_of_block(block, self.entries)
                blocks.append((block.after, self._write_block(pieces, explanation)))
        front = [group._replace(mandatory=True) for group in history.front]
        groups = content.mark_newest_mandatory(history.groups)
        cut_tokens = {id: cut for id, cut in self._cutter.question_cuts.items() if id in history.front_ids}
        for group in history.groups:
            cut_tokens.update(self._cutter.last_cuts.get(group.first, {}))
        from_start = not window.first_version
        span = replace(history.span, whole=history.span.whole and from_start)
        is_complete = history.is_complete and from_start
        log = LogRead(self.session, span, is_complete, self._context.lineage, window.first_version)
        nodes = (*front, *cache_window.interleave_blocks(groups, blocks))
        stored_window = window if self._is_stored else None
        return PlacedHistory(nodes, stored_window, log, cut_tokens=cut_tokens, front_ids=history.front_ids)

    def _cost(self, nodes: Iterable[MessageGroup | ComposedMessage]) -> int:
        """Return the raw tokens of some nodes."""
        tokens = 0
        for node in nodes:
            if isinstance(node, MessageGroup):
                tokens += sum(map(self.codec.cost, node.messages))
            else:
                tokens += self.codec.cost(compose_message(node, node.pieces))
        return tokens

    def _costs(self, groups: Sequence[MessageGroup]) -> list[int]:
        return [self._cost([group]) for group in groups]

    # ── reading ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _read_window(self, window: CacheWindow) -> HistoryRead:
        """Read the part of the log that a window shows."""
        span = await self.session.read_span(since=window.start_tokens, began=window.began_at)
        front_entries = [self.entries[id] for id, _ in window.front_entries]
        front = [self._build_front_group(self.entries[id], size, span) for id, size in window.front_entries]
        sealed_summary = next((entry for entry in front_entries if is_sealed(entry)), None)
        units = span.units
        if sealed_summary is not None:
            units = content.substitute_summary(units, sealed_summary)
        labels = span.labels.by_id(units)
        groups = self._build_groups([unit for unit in units if unit.entries[0] != sealed_summary], labels)
        if window.first_version:  # an edit has the position of the next message, as have groups before it
            starts = (index for index, group in enumerate(groups) if group.first == window.first_version)
            groups = groups[next(starts, len(groups)) :]
            groups = [group for group in groups if not any(map(is_summary, group.messages[0].sources))]
        return HistoryRead(span, groups, front, window.front_entries, not window.first_version, labels)

    async def _read_newest(self) -> HistoryRead:
        """Read the newest messages that could fit the budget, and the summaries of older ones."""
        span, groups = await self._gather_turn()
        labels = span.labels.by_id(span.units)
        units = [*span.older_summaries, *span.units]
        sealed_summary = content.find_sealed_compaction(self.session, span.replacements, self.codec.vendors)
        if sealed_summary is not None:
            units = content.substitute_summary(units, sealed_summary)
        summaries = [unit.entries[0] for unit in units if unit.entries[0].kind is Kind.SUMMARY]
        if summaries:
            groups = self._build_groups(
                [unit for unit in units if unit.entries[0].kind is not Kind.SUMMARY], labels
            )
        summaries_budget = int(self.budget * SUMMARIES_SHARE)
        if self.answers is None:  # nothing else needs what the messages leave
            summaries_budget = max(summaries_budget, self.budget - self._cost(self._cutter.cut(groups, {})))
        front_entries = self._choose_levels(summaries, summaries_budget, span)
        if summaries and not front_entries:
            self._warnings.append(
                "no summary of what is older fits: even the shortest takes half of the room"
            )
        front = [self._build_front_group(self.entries[id], tokens, span) for id, tokens in front_entries]
        is_whole = span.whole and not summaries
        return HistoryRead(span, groups, front, front_entries, is_whole, labels)

    async def _gather_turn(self) -> tuple[LogSpan, list[MessageGroup]]:
        """Read back until the budget is filled and, if the log ends with tool calls, their question is read."""
        read_budget = max(1, int(self.budget * MARGIN))
        while True:
            span = await self.session.read_span(budget=read_budget)
            groups = self._build_groups(span.units, span.labels.by_id(span.units))
            turn_start = cache_window.find_turn_start(groups, question_follows=self.question_follows)
            # Only a turn that ends with tool calls can begin further back.
            may_begin_earlier = cache_window.ends_with_call(groups) and not self.question_follows
            # The index is the number of groups if no question was found.
            has_turn_start = turn_start < len(groups) or not may_begin_earlier
            is_filled = self._cost(self._cutter.cut(groups, {})) > self.budget
            is_far = read_budget > cache_window.MOST_BUDGETS_SEARCHED * self.budget
            if span.whole or is_far or (is_filled and has_turn_start):
                return span, groups
            read_budget *= 2

    def _choose_levels(
        self, summaries: Sequence[Entry], budget: int, span: LogSpan
    ) -> tuple[tuple[str, int], ...]:
        """Return the newest summaries that fit, each with the tokens of the longest of its texts that fits.

        The newest is shown also if its shortest text takes more, up to half of the budget for history and recall.
        """
        newest_first: list[tuple[str, int]] = []
        for entry in reversed(summaries):
            level = summary_levels.choose_level(entry, budget)
            cost = self._cost([self._build_front_group(entry, level.tokens, span)])
            if cost > budget and (newest_first or cost > self.budget // 2):
                break
            newest_first.append((entry.id, level.tokens))
            budget -= cost
        return tuple(reversed(newest_first))

    def _build_front_group(self, entry: Entry, tokens: int, span: LogSpan) -> MessageGroup:
        """Return an entry for the front with its label; `tokens` name the text of a summary, or limit a message."""
        self.entries[entry.id] = entry
        levels = summary_levels.levels_of_summary(entry)
        level = next((level for level in levels if level.tokens == tokens), None)
        shown_entry = entry if level is None else summary_levels.at_level(entry, level)
        (group,) = self._build_groups([EntryGroup((shown_entry,))], {entry.id: label_in_front(entry, span)})
        return group if level is not None or not tokens else self._cutter.shorten_question(group, tokens)

    def _build_groups(
        self, units: Sequence[EntryGroup[Entry]], labels: Mapping[str, str]
    ) -> list[MessageGroup]:
        self.entries.update({entry.id: entry for unit in units for entry in unit.entries})
        return content.build_groups(units, self.session.counter.name, self.codec.vendors, labels)

    def _has_same_labels(self, window: CacheWindow, history: HistoryRead) -> bool:
        """Return whether every entry still shown has the label it was sent with: a new label would change its text."""
        if not window.labels and not history.span.labels.times:
            return True
        shown_ids = cache_window.visible_ids([*history.front, *history.groups])
        sent_labels = {id: label for id, label in window.labels if id in shown_ids}
        return history.collect_labels(self.entries) == sent_labels
