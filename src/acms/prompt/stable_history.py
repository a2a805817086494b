"""A history that only grows at its end from request to request, with recalled passages among it.

`acms.prompt.cache_window` says what is stored of it. This module reads the log, recalls, decides what is shown, and
stores the positions once there is a prompt.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import ceil
from typing import Any

from acms.errors import FitError
from acms.log import summary_levels
from acms.log.encoding import is_summary
from acms.log.in_force import EntryGroup, is_sealed
from acms.model import Context, Entry, Kind, State
from acms.plan.nodes import ComposedMessage, FittedPrompt, MessageGroup, Piece
from acms.ports import Codec, HasRecords
from acms.prompt import cache_window, excerpts
from acms.prompt import steps as content
from acms.prompt.cache_window import Block, CacheWindow
from acms.prompt.fit_state import compose_message
from acms.prompt.placed_history import HistoryRead, PlacedHistory, label_in_front
from acms.prompt.resolve import MARGIN, LogRead
from acms.prompt.steps import Readable, Recalling
from acms.prompt.tool_outputs import CallCutter
from acms.prompt.window_record import WindowRecord, load_window_entries
from acms.recall.pipeline import LogSpan, load_instructions
from acms.recall.planner import SUMMARIES_SHARE
from acms.results import ContextItem, ContextItems

NEWEST = 0.15
"""Share of the budget that the newest messages take when a window begins: questions about them need no recall."""

LEAST_FILLED = 0.4
"""Least share of the budget that a window begins with: tokens a recall does not need show more of the history."""

LAST_EXCHANGE = 0.4
"""Share that the last exchange may take of the tokens beside the newest question, which often refers to it."""

CUT_EXCHANGE = 0.5
"""Share up to which a window is filled with what has to be cut of the last exchange; the rest is for the next turns."""

EARLIER_CALLS = 0.1
"""Share of the budget for the calls of a long turn that are not shown: a line for each."""

INSTRUCTIONS = 0.9
"""Share of the budget that the system messages of a log may take: the newest message needs the rest."""

MOST_RECALLED = 6_000
"""Tokens that a turn recalls at most: a larger budget holds more turns, which share their recalls."""


@dataclass(kw_only=True, eq=False)
class StableHistory:
    """The history and the recall of one render."""

    session: Readable
    recall: Recalling | None
    codec: Codec
    #: Raw tokens for history and recall together.
    budget: int
    #: Tokens of a condensed tool output.
    condensed_tokens: int
    #: Whether the caller wrote a message of the user behind the history.
    question_follows: bool
    #: Whether the model may call tools.
    has_tools: bool
    #: Name of the record, which identifies the shape of the prompt.
    record_name: str
    #: Budget of the whole prompt.
    prompt_budget: int
    #: Entries that may be shown, by id.
    entries: dict[str, Any]
    #: Recalls within so many tokens.
    search: Callable[[int], Awaitable[ContextItems]]
    #: Ids of entries in front that are never left out.
    first: Sequence[str] = ()

    #: The items recalled last, for the ledger.
    items: ContextItems | None = field(default=None, init=False)
    _context: Context | None = field(default=None, init=False)
    #: None if nothing is stored.
    _record: WindowRecord | None = field(default=None, init=False)
    #: The stored window of this budget, which a new one replaces.
    _previous: CacheWindow | None = field(default=None, init=False)
    _items_by_tokens: dict[int, ContextItems] = field(default_factory=dict, init=False)
    _warnings: list[str] = field(default_factory=list, init=False)
    #: Whether a window must begin, since the stored one did not fit, and whether one began.
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
        keeps_position = self.recall is None or self.recall.keeps_position
        return (
            keeps_position and self.session.ends_at is None and isinstance(self.session.storage, HasRecords)
        )

    async def _load_window(self, context: Context) -> CacheWindow | None:
        """Return the stored window of this log, or of the one it was forked from, if it can go on."""
        storage = self.session.storage
        if not self._is_stored or not isinstance(storage, HasRecords):
            return None
        self._record = WindowRecord(storage, self.record_name, self.prompt_budget)
        window = await self._record.load(context)
        self._previous = self._record.own
        if window is None:
            return None
        entries = await load_window_entries(self.session, window, context)
        if entries is None:
            return None
        self.entries.update(entries)
        return window

    async def commit(self, placed: PlacedHistory, fitted: FittedPrompt, path: str, request_hash: str) -> bool:
        """Store the positions; return False if the history must be placed again.

        That is if another process stored other positions meanwhile, and if a continued window was cut after all.
        `request_hash` is "" if the provider does not bind reasoning to a request. A store that cannot be written costs
        the next request its cache, not this one.
        """
        window = placed.window
        if window is None or self._context is None or self._record is None:
            return True
        lost = cache_window.list_lost_entries(fitted, path)
        if lost and not self._began:
            self._must_begin = True
            return False
        if lost:
            window = cache_window.drop_lost_entries(window, placed.nodes, lost)
        if request_hash and request_hash not in window.sent:
            # The hashes of 400 requests are enough for any turn, and small in the record.
            window = window._replace(sent=(*window.sent, request_hash)[-400:])
        if window == self._previous:
            return True
        stored = await self._record.store(self._context.id, window, replaces=self._began)
        if not stored:
            self._items_by_tokens.clear()  # the log may have grown, too
        return stored

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
            read = await self._read_window(window)
            placed = await self._continue(window, read)
            if placed is not None and self._shows_enough(placed, window):
                return placed
            previous_groups = cache_window.strip_old_reasoning(read.groups, window.began)
        self._began = True
        return await self._begin(previous_groups)

    async def _place_without_log(self) -> PlacedHistory:
        """Show matches from other sessions for a session without messages."""
        pieces: tuple[Piece, ...] = ()
        if self.recall is not None:
            pieces = await self._find_answers(self.budget, {}, take_all=True)
        return PlacedHistory((self._write_block(pieces),) if pieces else (), None, None)

    async def _continue(self, window: CacheWindow, read: HistoryRead) -> PlacedHistory | None:
        """Add the content of the newest turn after the content already shown; None if it does not fit."""
        if not self._has_same_labels(window, read):
            return None
        cut = self._cut_new_outputs(window, read, cache_window.strip_old_reasoning(read.groups, window.began))
        if cut is None:
            return None
        groups, limits = cut
        window = window._replace(outputs=tuple(sorted(limits.items())))
        read = read._replace(groups=groups)
        index = self._find_block_index(read.front, groups)
        query = None if self.recall is None else self.recall.query
        if query is not None and not cache_window.has_recalled(query, window, groups, index):
            extended = await self._add_block(window, read, index)
            if extended is None:
                return None
            window = extended
        placed = self._lay_out(window, read)
        return placed if self._cost(placed.nodes) <= self.budget else None

    async def _add_block(self, window: CacheWindow, read: HistoryRead, index: int) -> CacheWindow | None:
        """Return a window with a block for the newest question; None if it does not fit."""
        groups = read.groups
        depth = self._recall_depth
        places = [cache_window.index_after_version(groups, block.after) for block in window.blocks]
        if index < len(groups) - 1 and index in places:
            # Something else is asked in the middle of a turn: its block goes behind everything written so far.
            index = len(groups)
            depth = min(depth, int(self._tokens_left(window, read) / 2))
        if any(place >= index for place in places):  # nothing was written since: a request by itself
            self._previous = None
            return None
        visible = cache_window.collect_visible_texts([*read.front, *groups], window.blocks, self.entries)
        pieces = await self._find_answers(depth, visible)
        if pieces and self._cost([self._write_block(pieces)]) > self._tokens_left(window, read):
            return None
        return window._replace(blocks=(*window.blocks, self._build_block(read, index, pieces)))

    def _shows_enough(self, placed: PlacedHistory, window: CacheWindow) -> bool:
        """Return whether a window made for another budget shows as much as one that would begin now.

        It does not if its recall was made for much less, if it fills too little of the budget, or if the messages
        before it would fit now too.
        """
        assert self._record is not None
        if self._record.made_for == self._record.budget:
            return True
        is_same_question = placed.window is not None and placed.window.blocks == window.blocks
        if is_same_question and self._record.made_for < 0.8 * self._record.budget:
            return False  # its recall left out answers that the larger budget has tokens for
        cost = self._cost(placed.nodes)
        hidden_tokens = window.start
        whole_history_fits = 0 < hidden_tokens <= self.budget - cost
        return cost >= self.budget * LEAST_FILLED and not whole_history_fits

    def _tokens_left(self, window: CacheWindow, read: HistoryRead) -> int:
        return self.budget - self._cost(self._lay_out(window, read).nodes)

    async def _begin(self, previous_groups: Sequence[MessageGroup]) -> PlacedHistory:
        """Begin a window with the newest messages and a recall; `previous_groups` are those of the last window."""
        read = await self._with_instructions(await self._read_newest())
        whole_groups = cache_window.strip_old_reasoning(read.groups, read.gathered.version)
        groups, limits = self._cut_outputs(read, whole_groups)
        costs = self._costs(groups)
        start = min(self._choose_start(read, groups, costs), content.find_newest_non_system(groups))
        with_question = self._move_question_to_front(read, start, costs, groups)
        end = cache_window.find_turn_start(groups, question_follows=self.question_follows)
        budget = self.budget - self._cost(with_question.front)
        most_for_calls = min(int(self.budget * EARLIER_CALLS), budget - sum(costs[start:]))
        most_for_calls -= self.codec.cost(excerpts.write_frame(self.codec))
        calls = excerpts.write_short_calls(whole_groups[end:start], self.codec.counter, most_for_calls)
        budget -= self._cost([self._write_block(calls)] if calls else [])
        tool_tokens, used_tool_tokens = self._estimate_tool_tokens(whole_groups, costs, previous_groups)
        reserve = self._reserve(groups, costs, tool_tokens, used_tool_tokens)
        pieces, depth = tuple[Piece, ...](), 0
        take_all = reserve is not None or tool_tokens > 0
        if self.recall is not None:
            depth = left = budget - sum(costs[start:])
            if start > 0 or not read.whole:
                depth = self._first_depth(left, reserve, tool_tokens, used_tool_tokens)
            shown = [*with_question.front, *groups[start:]]
            visible = cache_window.collect_visible_texts(shown, (), self.entries)
            pieces = await self._find_answers(depth, visible, take_all=take_all)
        most = int(budget * LEAST_FILLED) if reserve is None else budget - reserve
        if sum(costs[start:]) > budget / 2:  # the next turn will not fit in any case
            most = budget
        start, pieces = self._extend_back(groups, costs, start, most, pieces)
        if start > end:
            read = with_question
            recalled_ids = {id for piece in pieces for id in piece.sources}
            calls = excerpts.write_short_calls(whole_groups[end:start], self.codec.counter, most_for_calls)
            pieces += tuple([call for call in calls if recalled_ids.isdisjoint(call.sources)])
        else:
            left = max(most, int(budget * CUT_EXCHANGE)) - sum(costs[start:])
            find = partial(self._find_answers, depth, take_all=take_all)
            start, limits, pieces = await self._show_last_exchange(
                whole_groups, end, costs, limits, start, left, pieces, find
            )
        shown = self._cutter.cut(whole_groups[start:], limits, cache_window.question_of(read.front))
        is_whole = start == 0 and read.whole
        window = await self._new_window(read._replace(groups=shown), limits, pieces, is_whole=is_whole)
        placed = self._lay_out(window, read._replace(groups=shown))
        return placed._replace(older=tuple(groups[:start]))

    async def _new_window(
        self, read: HistoryRead, limits: Mapping[int, int], pieces: Sequence[Piece], *, is_whole: bool
    ) -> CacheWindow:
        groups, gathered = read.groups, read.gathered
        blocks: tuple[Block, ...] = ()
        if self.recall is not None or pieces:
            blocks = (self._build_block(read, self._find_block_index(read.front, groups), pieces),)
        starts_later = bool(groups) and not is_whole
        outputs = [(group.first, limits[group.first]) for group in groups if group.first in limits]
        head = await self.session.storage.head(gathered.context)
        return CacheWindow(
            start=groups[0].before if starts_later else 0,
            first=groups[0].first if starts_later else 0,
            began=gathered.version,
            generation=head.epoch,
            lead=read.front_entries,
            blocks=blocks,
            labels=tuple(sorted(self._visible_labels(read).items())),
            outputs=tuple(sorted(outputs)),
        )

    # ── outputs of tools ────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def _newest_output_share(self) -> float:
        """Share of the budget for the newest output: half if a newer question needs the rest for its own answer."""
        return 0.5 if self.question_follows else 0.85

    def _cut_outputs(
        self, read: HistoryRead, groups: Sequence[MessageGroup]
    ) -> tuple[list[MessageGroup], dict[int, int]]:
        """Return the groups a window may begin with, and the most tokens for an output of each call.

        All are whole if the whole history fits. Otherwise the newest output may take its share of the tokens that the
        question leaves, the other outputs of the turn the rest of half of the budget; all others are condensed.
        """
        budget = self.budget - self._cost(read.front)
        condensed, limits = self._cutter.condense(groups, {})
        if read.whole and self._cost(groups) <= budget:
            limits = dict.fromkeys(limits, self.budget)
            return self._cutter.cut(groups, limits), limits
        last = len(groups) - 1
        turn_start = cache_window.find_turn_start(groups, question_follows=self.question_follows)
        turn_start = min(turn_start, max(0, last))
        turn_cost = self._cost(condensed[turn_start:])
        for index in range(last, turn_start - 1, -1):
            group = groups[index]
            if group.first not in limits:
                continue
            other_cost = turn_cost - self._cost([condensed[index]])
            available = int(budget / 2) - other_cost
            if index == last:
                question_cost = self._cost([groups[turn_start]]) if turn_start < last else 0
                available = max(available, int((budget - question_cost) * self._newest_output_share))
            limits[group.first] = self._cutter.limit_within(group, available)
            turn_cost = other_cost + self._cost(self._cutter.cut([group], limits))
        return self._cutter.cut(groups, limits), limits

    def _cut_new_outputs(
        self, window: CacheWindow, read: HistoryRead, groups: Sequence[MessageGroup]
    ) -> tuple[list[MessageGroup], dict[int, int]] | None:
        """Return the same for a window that goes on: outputs already shown stay unchanged.

        New outputs of the current turn are whole if they fit the remaining tokens; all of them if the whole history
        fits. None if a new window would show more than twice as much of the newest output.
        """
        known = dict(window.outputs)
        question = cache_window.question_of(read.front)
        condensed, limits = self._cutter.condense(groups, known, question)
        new = [
            index
            for index, group in enumerate(groups)
            if group.first in limits and group.first not in known and group.first > window.began
        ]
        if not new:
            return condensed, limits
        if read.whole:
            whole_limits = limits | {groups[index].first: self.budget for index in new}
            whole = self._cutter.cut(groups, whole_limits, question)
            if self._tokens_left(window, read._replace(groups=whole)) >= 0:
                return whole, whole_limits
        left = self._tokens_left(window, read._replace(groups=condensed))
        turn_start = min(self._find_block_index(read.front, groups), len(groups) - 1)
        least = self._newest_output_share / 2 * (self.budget - self._cost(read.front))
        for index in reversed(new):
            if index < turn_start:
                break
            group = groups[index]
            condensed_cost = self._cost([condensed[index]])
            whole_fits = self._cost([group]) - condensed_cost <= left
            growth = left if whole_fits else int(left * self._newest_output_share)
            available = condensed_cost + growth
            limits[group.first] = self._cutter.limit_within(group, max(available, condensed_cost))
            is_cut = limits[group.first] < self.budget
            if index == len(groups) - 1 and is_cut and available < least:
                return None
            left -= self._cost(self._cutter.cut([group], limits)) - condensed_cost
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
        used = cache_window.call_tokens_by_turn(groups, costs)[-1]
        turns = cache_window.call_tokens_by_turn(groups, self._costs(groups))
        previous_turns = cache_window.call_tokens_by_turn(previous_groups, self._costs(previous_groups))
        if self.question_follows and not self.has_tools:
            return 0, 0
        if self.question_follows:
            used = 0
        else:
            turns.pop()
        return min(max([0, *turns, *previous_turns[:-1]]), self.budget // 3), used

    def _first_depth(self, left: int, reserve: int | None, tool_tokens: int, used_tool_tokens: int) -> int:
        """Return the tokens that a window recalls first: not those its tools take, half of them once tools run."""
        if reserve is None:
            depth = min(self._recall_depth, left - max(0, tool_tokens - used_tool_tokens))
        else:
            depth = left - reserve
        most = left // 2 if used_tool_tokens and self._is_stored else left
        return max(0, min(depth, most))

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
            left = budget - sum(costs[start:])
            left -= self._cost([self._write_block(pieces)]) if pieces else 0
            earlier = start
            while earlier and costs[earlier - 1] <= left:
                earlier -= 1
                left -= costs[earlier]
            earlier = cache_window.skip_answers(groups, earlier, start)
            if earlier == start:
                return start, pieces
            start = earlier
            pieces = self._drop_visible_pieces(pieces, groups[start:])

    def _drop_visible_pieces(
        self, pieces: tuple[Piece, ...], groups: Sequence[MessageGroup]
    ) -> tuple[Piece, ...]:
        """Return recalled pieces without those that a history shows."""
        visible = cache_window.collect_visible_texts(groups, (), self.entries)
        return tuple(
            [one for one in pieces if not cache_window.covers_content(visible.get(one.id), one.text)]
        )

    async def _show_last_exchange(
        self,
        whole_groups: Sequence[MessageGroup],
        end: int,
        costs: Sequence[int],
        limits: Mapping[int, int],
        start: int,
        left: int,
        pieces: tuple[Piece, ...],
        find_answers: Callable[[Mapping[str, str]], Awaitable[tuple[Piece, ...]]],
    ) -> tuple[int, dict[int, int], tuple[Piece, ...]]:
        """Show more of the exchange before `end`, which a question often refers to; return start, limits and pieces.

        `left` are the tokens for all. Recalled pieces repeat nothing of what the exchange shows.
        """
        exchange = cache_window.find_last_exchange(whole_groups[:end], costs, end, sum(costs[:end]))

        def fill(pieces: tuple[Piece, ...]) -> tuple[int, dict[int, int]]:
            tokens = left - self._cost([self._write_block(pieces)] if pieces else [])
            offset, filled = self._cutter.fill(
                whole_groups[exchange:end], costs[exchange:end], limits, start - exchange, max(0, tokens)
            )
            return exchange + offset, filled

        filled_start, filled_limits = fill(pieces)
        visible = cache_window.collect_visible_texts(
            self._cutter.cut(whole_groups[filled_start:], filled_limits), (), self.entries
        )
        if not any(piece.id in visible for piece in pieces):
            return filled_start, filled_limits, pieces
        pieces = await find_answers(visible)
        filled_start, filled_limits = fill(pieces)
        shown = self._cutter.cut(whole_groups[filled_start:], filled_limits)
        return filled_start, filled_limits, self._drop_visible_pieces(pieces, shown)

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
        if self.recall is None or (self.has_tools and not tool_tokens):
            return None
        previous = self._previous
        if previous is not None:
            new_cost = 0
            for group, cost in zip(groups, costs, strict=True):
                if group.first > previous.began:
                    new_cost += cost
            turns = max(1, len(previous.blocks))
            if new_cost <= turns * (self.budget * (1 - NEWEST) - self._recall_depth):
                return None
        return max(tool_tokens - used_tool_tokens, used_tool_tokens // 2)

    def _choose_start(self, read: HistoryRead, groups: Sequence[MessageGroup], costs: Sequence[int]) -> int:
        """Return the index of the first group that a window shows: of all if they fit, or of the newest.

        At least those of the turn are shown, and the exchange before it if it is short. A turn that leaves nothing to
        grow begins with half of the budget: with its newest messages, and a line for each call before them.
        """
        budget = self.budget - self._cost(read.front)
        is_whole = read.whole or (self.recall is None and read.gathered.whole)
        if is_whole and sum(costs) <= budget:
            return 0
        last = len(groups) - 1
        end = cache_window.find_turn_start(groups, question_follows=self.question_follows)
        turn_start = min(end, max(0, last))
        share = 0.5 if self.recall is None else NEWEST
        leaves_room = turn_start == last or sum(costs[turn_start:]) <= budget * 2 / 3
        most = budget if leaves_room else int(budget * (0.5 - EARLIER_CALLS))
        start = cache_window.find_newest_start(costs, int(budget * share), most, turn_start)
        start = cache_window.skip_answers(groups, start, turn_start)
        if not leaves_room:
            return start
        most = int((budget - sum(costs[end:])) * LAST_EXCHANGE)
        return min(start, cache_window.find_last_exchange(groups, costs, end, most))

    def _move_question_to_front(
        self, read: HistoryRead, start: int, costs: Sequence[int], groups: Sequence[MessageGroup]
    ) -> HistoryRead:
        """Put the message that began the newest turn in front, if it is older than the messages shown."""
        turn_start = cache_window.find_turn_start(read.groups, question_follows=self.question_follows)
        if turn_start >= start or costs[turn_start] > self.budget // 2:
            return read
        entry_id = groups[turn_start].messages[0].sources[0]
        question = self._build_front_group(self.entries[entry_id], 0, read.gathered)
        return read._replace(
            front=[*read.front, question], front_entries=(*read.front_entries, (entry_id, 0))
        )

    async def _with_instructions(self, read: HistoryRead) -> HistoryRead:
        """Put the system messages that the log begins with in front, if not all of it is shown.

        They are never left out: `FitError` if they leave no room for the newest message.
        """
        if read.whole and self._cost(read.groups) <= self.budget:
            return read
        units = await self._load_front_entries(read.gathered)
        groups = self._build_groups(units, read.gathered.labels.by_id([], units))
        needed = self._cost(groups)
        most = int(self.budget * INSTRUCTIONS)
        if needed > most:
            raise FitError(
                f"the system messages that the log begins with, and what is to stand first, take {needed} tokens; "
                f"beside everything else the budget leaves {most} for them",
                budget=most,
                required=needed,
                where="prompt/history",
                options=(
                    f"raise the budget by {ceil((needed - most) / INSTRUCTIONS)}",
                    "retract some of them",
                ),
            )
        front_ids = cache_window.visible_ids(groups)
        entries = [(group.messages[0].sources[0], 0) for group in groups]
        return read._replace(
            groups=[group for group in read.groups if front_ids.isdisjoint(group.messages[0].sources)],
            front=[*groups, *read.front],
            front_entries=(*entries, *read.front_entries),
        )

    async def _load_front_entries(self, gathered: LogSpan) -> list[EntryGroup[Entry]]:
        """Return the system messages that the log begins with, and the entries that the caller wants in front."""
        storage, redactor = self.session.storage, self.session.redactor
        units = list(await load_instructions(storage, redactor, gathered))
        if self.first:
            instruction_ids = {entry.id for unit in units for entry in unit.entries}
            rows = await storage.get([id for id in self.first if id not in instruction_ids])
            active = [row for row in rows if row is not None and self._is_active(row, gathered)]
            units += [EntryGroup((entry,)) for entry in redactor.redact_entries(active)]
        return units

    def _is_active(self, entry: Entry, gathered: LogSpan) -> bool:
        """Return whether a message is of this conversation, active, and no part of a tool call."""
        if entry.group is not None or entry.state is not State.LIVE:
            return False
        is_own = entry.context in excerpts.find_own_logs(self._context)
        return is_own and gathered.replacements.replaced_by(entry.version) is None

    def _find_block_index(self, front: Sequence[MessageGroup], groups: Sequence[MessageGroup]) -> int:
        """Return the index of the group before which a block of the newest turn stands.

        The turn may begin with a question in front of all groups.
        """
        question = [group for group in front[-1:] if not any(map(is_summary, group.messages[0].sources))]
        start = cache_window.find_turn_start([*question, *groups], question_follows=self.question_follows)
        return max(0, start - len(question))

    def _build_block(self, read: HistoryRead, index: int, pieces: Sequence[Piece]) -> Block:
        groups = read.groups
        after = read.gathered.version if index >= len(groups) else groups[index].first - 1
        query = "" if self.recall is None else self.recall.query
        return cache_window.build_recall_block(after, query, pieces, self.entries)

    def _write_block(self, pieces: tuple[Piece, ...], *, is_first: bool = True) -> ComposedMessage:
        return excerpts.write_block(pieces, self.codec, first=is_first)

    def _lay_out(self, window: CacheWindow, read: HistoryRead) -> PlacedHistory:
        """Return the nodes of a history with its blocks."""
        assert self._context is not None
        blocks: list[tuple[int, ComposedMessage]] = []
        for block in window.blocks:
            if block.pieces:
                pieces = cache_window.pieces_of_block(block, self.entries)
                blocks.append((block.after, self._write_block(pieces, is_first=not blocks)))
        front = [group._replace(mandatory=True) for group in read.front]
        groups = content.mark_newest_mandatory(read.groups)
        condensed: dict[str, tuple[int, int]] = {}
        for group in read.groups:
            condensed.update(self._cutter.last_cuts.get(group.first, {}))
        from_start = not window.first
        gathered = replace(read.gathered, whole=read.gathered.whole and from_start)
        log = LogRead(self.session, gathered, read.whole and from_start, self._context.lineage, window.first)
        nodes = (*front, *cache_window.interleave_blocks(groups, blocks))
        return PlacedHistory(nodes, window if self._is_stored else None, log, condensed=condensed)

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
        gathered = await self.session.said(since=window.start, began=window.began)
        front = [self._build_front_group(self.entries[id], tokens, gathered) for id, tokens in window.lead]
        front_entries = [self.entries[id] for id, _ in window.lead]
        sealed = next((entry for entry in front_entries if is_sealed(entry)), None)
        units = gathered.units
        if sealed is not None:
            units = content.substitute_summary(units, sealed)
        labels = gathered.labels.by_id(units)
        groups = self._build_groups([unit for unit in units if unit.entries[0] != sealed], labels)
        if window.first:  # an edit has the position of the next message, as have groups before it
            starts = (index for index, group in enumerate(groups) if group.first == window.first)
            groups = groups[next(starts, len(groups)) :]
            groups = [group for group in groups if not any(map(is_summary, group.messages[0].sources))]
        return HistoryRead(gathered, groups, front, window.lead, not window.first, labels)

    async def _read_newest(self) -> HistoryRead:
        """Read the newest messages that could fit the budget, and the summaries of older ones."""
        gathered, groups = await self._gather_turn()
        labels = gathered.labels.by_id(gathered.units)
        units = [*gathered.older, *gathered.units]
        sealed = content.find_sealed_compaction(self.session, gathered.replacements, self.codec.vendors)
        if sealed is not None:
            units = content.substitute_summary(units, sealed)
        summaries = [unit.entries[0] for unit in units if unit.entries[0].kind is Kind.SUMMARY]
        if summaries:
            groups = self._build_groups(
                [unit for unit in units if unit.entries[0].kind is not Kind.SUMMARY], labels
            )
        most = int(self.budget * SUMMARIES_SHARE)
        if self.recall is None:  # nothing else needs what the messages leave
            most = max(most, self.budget - self._cost(self._cutter.cut(groups, {})))
        front_entries = self._choose_levels(summaries, most, gathered)
        if summaries and not front_entries:
            self._warnings.append(
                "no summary of what is older fits: even the shortest takes half of the room"
            )
        front = [self._build_front_group(self.entries[id], tokens, gathered) for id, tokens in front_entries]
        is_whole = gathered.whole and not summaries
        return HistoryRead(gathered, groups, front, front_entries, is_whole, labels)

    async def _gather_turn(self) -> tuple[LogSpan, list[MessageGroup]]:
        """Read back until the budget is filled and, if the log ends with tool calls, their question is read."""
        wanted = max(1, int(self.budget * MARGIN))
        while True:
            gathered = await self.session.said(budget=wanted)
            groups = self._build_groups(gathered.units, gathered.labels.by_id(gathered.units))
            turn_start = cache_window.find_turn_start(groups, question_follows=self.question_follows)
            # Only a turn that ends with tool calls can begin further back.
            may_begin_earlier = cache_window.ends_with_call(groups) and not self.question_follows
            # The index is the number of groups if no question was found.
            has_turn_start = turn_start < len(groups) or not may_begin_earlier
            is_filled = self._cost(self._cutter.cut(groups, {})) > self.budget
            is_far = wanted > cache_window.MOST_BUDGETS_SEARCHED * self.budget
            if gathered.whole or is_far or (is_filled and has_turn_start):
                return gathered, groups
            wanted *= 2

    def _choose_levels(
        self, summaries: Sequence[Entry], budget: int, gathered: LogSpan
    ) -> tuple[tuple[str, int], ...]:
        """Return the newest summaries that fit, each with the tokens of the longest of its texts that fits.

        The newest is shown also if its shortest text takes more, up to half of the budget for history and recall.
        """
        newest_first: list[tuple[str, int]] = []
        for entry in reversed(summaries):
            level = summary_levels.choose_level(entry, budget)
            cost = self._cost([self._build_front_group(entry, level.tokens, gathered)])
            if cost > budget and (newest_first or cost > self.budget // 2):
                break
            newest_first.append((entry.id, level.tokens))
            budget -= cost
        return tuple(reversed(newest_first))

    def _build_front_group(self, entry: Entry, tokens: int, gathered: LogSpan) -> MessageGroup:
        """Return an entry for the front with its label; for a summary, use its text of `tokens` tokens."""
        self.entries[entry.id] = entry
        levels = summary_levels.levels_of_summary(entry)
        level = next((level for level in levels if level.tokens == tokens), None)
        shown = entry if level is None else summary_levels.at_level(entry, level)
        labels = {entry.id: label_in_front(entry, gathered)}
        return content.build_groups(
            [EntryGroup((shown,))], self.session.counter.name, self.codec.vendors, labels
        )[0]

    def _build_groups(
        self, units: Sequence[EntryGroup[Entry]], labels: Mapping[str, str]
    ) -> list[MessageGroup]:
        self.entries.update({entry.id: entry for unit in units for entry in unit.entries})
        return content.build_groups(units, self.session.counter.name, self.codec.vendors, labels)

    def _visible_labels(self, read: HistoryRead) -> dict[str, str]:
        """Return the labels of the history that is shown, by id."""
        labels = {id: read.labels.get(id, "") for id in cache_window.visible_ids(read.groups)}
        for id, _ in read.front_entries:
            labels[id] = label_in_front(self.entries[id], read.gathered)
        return {id: label for id, label in labels.items() if label}

    def _has_same_labels(self, window: CacheWindow, read: HistoryRead) -> bool:
        """Return whether all that is still shown has the same labels: else it would be sent again changed."""
        if not window.labels and not read.gathered.labels.times:
            return True
        shown = cache_window.visible_ids([*read.front, *read.groups])
        return self._visible_labels(read) == {id: label for id, label in window.labels if id in shown}

    # ── recalling ───────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def _recall_depth(self) -> int:
        """Tokens that may be recalled for a turn."""
        assert self.recall is not None
        if self.recall.tokens is not None:
            return self.recall.tokens
        return min(int(self.session.effort * self.budget), MOST_RECALLED)

    async def _find_answers(
        self, depth: int, visible: Mapping[str, str], *, take_all: bool = False
    ) -> tuple[Piece, ...]:
        """Return answers of at most `depth` tokens that are not visible yet; visible ones count towards them.

        With `take_all` everything that fits; otherwise answers far below the best are not worth their tokens.
        """
        assert self.recall is not None
        frame_cost = self.codec.cost(excerpts.write_frame(self.codec))
        if self.recall.tokens is not None:
            depth = min(depth, self.recall.tokens)
        tokens = depth
        counted = self.codec.counter.name == self.session.counter.name
        while tokens > frame_cost:
            items: Sequence[Any] = await self._search_cached(tokens - frame_cost)
            if not take_all:
                # Score alone fills the first 60 %; the rest must be a fifth as relevant as the best.
                items = cache_window.select_answers(items, int(tokens * 0.6), 0.2)
            new: list[ContextItem] = []
            for item in excerpts.drop_repeated_facts(items):
                content = cache_window.drop_visible_ends(item.content, visible.get(item.id))
                if content:
                    new.append(item if content == item.content else replace(item, content=content))
            pieces = excerpts.write_pieces(new, excerpts.find_own_logs(self._context), counted=counted)
            over = self._cost([self._write_block(pieces)]) - depth if pieces else 0
            if over <= 0:
                return pieces
            # Where marks around each piece take more than the pieces, as much less as they take.
            tokens = tokens - over if over < tokens // 2 else tokens * depth // (depth + over) - 1
        return ()

    async def _search_cached(self, tokens: int) -> ContextItems:
        """Search the past within a number of tokens, and note the result in `items`.

        A result is kept: when the stored window does not fit and a new one is planned, the search is not repeated.
        """
        if tokens not in self._items_by_tokens:
            self._items_by_tokens[tokens] = await self.search(tokens)
        self.items = self._items_by_tokens[tokens]
        return self.items
