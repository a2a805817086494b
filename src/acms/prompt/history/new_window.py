"""What a new cache window shows: the newest turn, what answers its question, and older messages.

The steps follow each other in the order of importance. Each takes its tokens of what the steps before it left.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple, TypeVar

from acms.model import Context
from acms.plan import turns
from acms.plan.nodes import MessageGroup, Piece
from acms.prompt import excerpts
from acms.prompt import steps as content
from acms.prompt.history import cache_window
from acms.prompt.history.answers import Answers
from acms.prompt.history.cache_window import CacheWindow
from acms.prompt.history.earlier_calls import write_earlier_calls
from acms.prompt.history.placed import HistoryRead
from acms.prompt.history.reader import HistoryReader, HistoryRequest, run_cut
from acms.prompt.history.tool_outputs import LEAST_SHOWN, CallCutter, is_call

T = TypeVar("T")

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


class TurnForecast(NamedTuple):
    """What the newest turn may still take of the budget of its window."""

    #: Tokens that its tool calls may take in all, and those they took so far.
    tool_tokens: int
    used_tool_tokens: int
    #: Tokens to leave free for it, or None if more turns must fit, too.
    reserve: int | None


class NewWindow:
    """Chooses what a window shows that begins now. Afterwards `history`, `pieces` and `limits` say what that is."""

    def __init__(
        self,
        request: HistoryRequest,
        history: HistoryRead,
        reader: HistoryReader,
        cutter: CallCutter,
        *,
        context: Context | None,
        is_stored: bool,
        previous: CacheWindow | None,
    ) -> None:
        self._request = request
        self._reader = reader
        self._cutter = cutter
        self._context = context
        self._is_stored = is_stored
        #: The stored window that this one replaces.
        self._previous = previous
        #: What was read: all its groups, whole.
        self.history = history
        #: Most tokens for an output of each tool call, by version of the call.
        self.limits: dict[int, int] = {}
        #: What is recalled, and the calls of the turn that are only named.
        self._answers = Answers()
        self._named_calls: tuple[Piece, ...] = ()
        #: Raw tokens of each group that was read.
        self._whole_costs = [request.cost([group]) for group in history.groups]
        #: The groups with their outputs cut, and the raw tokens of each.
        self._cut_groups: list[MessageGroup] = []
        self._costs: list[int] = []
        #: Index of the first group of the newest turn, and of the first that is shown.
        self._turn_start = request.find_turn_start(history)
        self._start = 0

    @property
    def pieces(self) -> tuple[Piece, ...]:
        """The pieces of the recalled block."""
        return self._answers.pieces + self._named_calls

    def cut_chosen_groups(self) -> list[MessageGroup]:
        """Return the groups to show, cut to their limits."""
        question = cache_window.question_of(self.history.front)
        return self._cutter.cut(self.history.groups[self._start :], self.limits, question)

    @property
    def older_groups(self) -> Sequence[MessageGroup]:
        """The groups before those shown."""
        return self.history.groups[: self._start]

    async def choose(self, previous_groups: Sequence[MessageGroup]) -> None:
        """Choose the newest turn, then a recall, then older messages, or a line for each call that is not shown.

        `previous_groups` are those that the last window showed.
        """
        answer_tokens = await self._measure_answers()
        reserved_tokens = answer_tokens + self._tokens_for_call_names()
        await self._run_cut(partial(self._cut_outputs, reserved_tokens))
        self._choose_start(await self._measure_hidden_answers())
        with_question = self._move_question_to_front()
        budget = self._request.budget - self._request.cost(with_question.front)
        names_budget = budget - answer_tokens - self._cost_of_groups()
        budget -= self._request.block_cost(self._name_earlier_calls(self._list_hidden_turn(), names_budget))
        forecast = self._forecast_turn(previous_groups)
        recall_budget = self._recall_budget(budget - self._cost_of_groups(), answer_tokens, forecast)
        take_all = forecast.reserve is not None or forecast.tool_tokens > 0
        self._answers = await self._recall(recall_budget, with_question.front, take_all=take_all)
        fill_budget = self._fill_budget(budget, forecast)
        await self._extend_back(fill_budget)
        if self._start > self._turn_start:
            self.history = with_question
            self._named_calls = self._name_earlier_calls(self._list_unrecalled_turn(), names_budget)
        else:
            exchange_budget = max(fill_budget, int(budget * CUT_EXCHANGE_SHARE))
            newest = len(self._costs) - 1
            await self._run_cut(partial(self._show_more, self._turn_start, newest, exchange_budget))
            self._answers = await self._drop_visible(self._answers, self._cut_groups[self._start :])
            await self._show_last_exchange(exchange_budget, recall_budget, take_all=take_all)
            filled_budget = int(budget * MIN_FILLED_SHARE)
            await self._run_cut(partial(self._show_more, self._start, self._turn_start, filled_budget))

    async def _run_cut(self, cut: Callable[[], T]) -> T:
        return await run_cut(cut, self.history.groups)

    def _cost_of_groups(self) -> int:
        """Return the raw tokens of the groups that are shown."""
        return sum(self._costs[self._start :])

    # ── the newest turn ─────────────────────────────────────────────────────────────────────────────────────────────

    def _cut_outputs(self, reserved_tokens: int) -> None:
        """Cut the outputs of tools to what they may take: see `limits`.

        All are whole if the whole history fits. Otherwise the newest output may take its share of the tokens that the
        question leaves, the other outputs of the turn the rest of half of the budget; all others are condensed.
        `reserved_tokens` are for what answers.
        """
        request, groups = self._request, self.history.groups
        budget = request.budget - request.cost(self.history.front)
        is_whole = self.history.is_complete and sum(self._whole_costs) <= budget
        older_groups = groups[: min(self._turn_start, len(groups) - 1)]
        newest_cost = sum(self._whole_costs[-1:])
        if request.question_follows and newest_cost > max(budget, request.prompt_budget // 2):
            older_groups = groups  # the newest message alone does not fit beside the question
        long_limits = {} if is_whole else self._cutter.limit_long_messages(older_groups)
        condensed_groups, limits = self._cutter.condense(groups, long_limits)
        if is_whole:
            self.limits = dict.fromkeys(limits, request.budget)
        else:
            self.limits = self._limit_outputs_of_turn(condensed_groups, limits, budget - reserved_tokens)
        self._cut_groups = self._cutter.cut(groups, self.limits)
        self._costs = list(self._whole_costs)
        for index, cut_group in enumerate(self._cut_groups):
            if cut_group is not groups[index]:
                self._costs[index] = request.cost([cut_group])

    def _limit_outputs_of_turn(
        self, condensed_groups: Sequence[MessageGroup], limits: Mapping[int, int], budget: int
    ) -> dict[int, int]:
        """Return the limits of condensed outputs with higher ones for those of the turn, the newest first."""
        request, groups = self._request, self.history.groups
        limits = dict(limits)
        last_index = len(groups) - 1
        turn_start = min(self._turn_start, max(0, last_index))
        turn_cost = request.cost(condensed_groups[turn_start:])
        for index in range(last_index, turn_start - 1, -1):
            group = groups[index]
            if group.first not in limits:
                continue
            other_cost = turn_cost - request.cost([condensed_groups[index]])
            available = int(budget / 2) - other_cost
            if index == last_index:
                question = self._cutter.shorten_question(groups[turn_start], request.budget // 2)
                has_question = turn_start < last_index and turns.is_question(groups[turn_start])
                question_cost = request.cost([question]) if has_question else 0
                available = max(available, int((budget - question_cost) * request.newest_output_share))
            limits[group.first] = self._cutter.limit_within(group, available)
            turn_cost = other_cost + request.cost(self._cutter.cut([group], limits))
        return limits

    def _choose_start(self, hidden_tokens: int) -> None:
        """Choose the first group to show: of all groups if they fit, or of the newest.

        All leave `hidden_tokens` for answers that they do not show. At least those of the turn are shown, and the
        exchange before it if it is short. A turn that leaves nothing to grow begins with half of the budget: with its
        newest messages, and a line for each call before them.
        """
        budget = self._request.budget - self._request.cost(self.history.front)
        self._start = min(
            self._find_newest_that_fit(budget, hidden_tokens),
            content.find_newest_non_system(self._cut_groups),
        )

    def _find_newest_that_fit(self, budget: int, hidden_tokens: int) -> int:
        groups, costs, recalls = self._cut_groups, self._costs, self._request.answers is not None
        is_whole = self.history.is_complete or (not recalls and self.history.span.whole)
        if is_whole and sum(costs) <= budget - hidden_tokens:
            return 0
        last_index = len(groups) - 1
        turn_start = min(self._turn_start, max(0, last_index))
        share = NEWEST_SHARE if recalls else 0.5
        leaves_room = turn_start == last_index or sum(costs[turn_start:]) <= budget * 2 / 3
        turn_budget = budget if leaves_room else int(budget * (0.5 - EARLIER_CALLS_SHARE))
        start = cache_window.find_newest_start(costs, int(budget * share), turn_budget, turn_start)
        start = turns.skip_answers(groups, start, turn_start)
        if not leaves_room:
            return start
        exchange_budget = int((budget - sum(costs[self._turn_start :])) * LAST_EXCHANGE_SHARE)
        return min(start, turns.find_last_exchange(groups, costs, self._turn_start, exchange_budget))

    def _move_question_to_front(self) -> HistoryRead:
        """Return the history with the message that began the turn in front, if it is older than what is shown.

        It may take half of the budget: what does not fit is cut.
        """
        turn_start = turns.find_turn_start(
            self.history.groups, question_follows=self._request.question_follows
        )
        if turn_start >= self._start:
            return self.history
        entry_id = self._cut_groups[turn_start].messages[0].sources[0]
        half = self._request.budget // 2
        tokens = half if self._costs[turn_start] > half else 0
        return self._reader.put_in_front(self.history, entry_id, tokens)

    # ── the calls of the turn that are only named ───────────────────────────────────────────────────────────────────

    def _tokens_for_call_names(self) -> int:
        """Return the tokens that the newest output leaves for the names of the earlier calls of its turn."""
        request = self._request
        if sum(map(is_call, self.history.groups[self._turn_start :])) < 2:
            return 0
        frame_cost = excerpts.cost_of_frame(request.codec)
        tokens = frame_cost + int(request.budget * EARLIER_CALLS_SHARE)
        return tokens if tokens <= request.budget // 3 else 0

    def _list_hidden_turn(self) -> list[MessageGroup]:
        """Return the groups of the turn that are not shown."""
        return self.history.groups[self._turn_start : self._start]

    def _list_unrecalled_turn(self) -> list[MessageGroup]:
        """Return the groups of the turn that are neither shown nor recalled."""
        recalled_ids = {id for piece in self.pieces for id in piece.sources}
        return [group for group in self._list_hidden_turn() if recalled_ids.isdisjoint(group.sources)]

    def _name_earlier_calls(self, groups: Sequence[MessageGroup], free_tokens: int) -> tuple[Piece, ...]:
        """Return calls in short, within half of the free tokens or what is reserved for them.

        The other half is for the calls to come.
        """
        codec = self._request.codec
        frame_cost = excerpts.cost_of_frame(codec)
        line_tokens = int(self._request.budget * EARLIER_CALLS_SHARE)
        tokens = max(free_tokens // 2, min(free_tokens, line_tokens + frame_cost))
        return write_earlier_calls(groups, codec.counter, line_tokens=line_tokens, tokens=tokens - frame_cost)

    # ── the recall ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def _measure_hidden_answers(self) -> int:
        """Return the tokens of answers that the whole history would not show: of other sessions, and of cut outputs.

        They are measured only if the history fits and leaves few tokens.
        """
        answers = self._request.answers
        free_tokens = self._request.budget - self._request.cost(self.history.front) - sum(self._costs)
        if (
            answers is None
            or not self.history.is_complete
            or not 0 <= free_tokens < answers.tokens_to_measure
        ):
            return 0
        visible = self._collect_visible(self.history.front, self._cut_groups)
        return await answers.measure_unseen(visible, self._context)

    async def _measure_answers(self) -> int:
        """Return the tokens to keep free for what answers the question, if there are tool calls, which may be cut."""
        if self._request.answers is None or not any(map(is_call, self.history.groups)):
            return 0
        return await self._request.answers.measure(self.history.groups[self._turn_start :], self._context)

    def _forecast_turn(self, previous_groups: Sequence[MessageGroup]) -> TurnForecast:
        """Estimate the tokens that the tools of the newest turn take, from those of earlier turns.

        They may take as much as in an earlier turn, whole, but no more than a third of the budget; nothing if a
        question follows the log and no tool is offered, since it is answered at once. If the log ends with a question,
        tools may be offered beside the prompt. The tokens used so far are those of the outputs as they are shown.
        """
        request = self._request
        if request.question_follows and not request.has_tools:
            return TurnForecast(0, 0, self._reserve(0, 0))
        call_tokens = self._list_call_tokens(self.history.groups)
        previous_call_tokens = self._list_call_tokens(previous_groups)
        used_tokens = 0
        if not request.question_follows:
            call_tokens.pop()
            used_tokens = turns.call_tokens_by_turn(self.history.groups, self._costs)[-1]
        tool_tokens = min(max([0, *call_tokens, *previous_call_tokens[:-1]]), request.budget // 3)
        return TurnForecast(tool_tokens, used_tokens, self._reserve(tool_tokens, used_tokens))

    def _list_call_tokens(self, groups: Sequence[MessageGroup]) -> list[int]:
        """Return the tokens of each turn's whole tool calls and outputs, oldest first."""
        costs = [self._request.cost([group]) if is_call(group) else 0 for group in groups]
        return turns.call_tokens_by_turn(groups, costs)

    def _reserve(self, tool_tokens: int, used_tool_tokens: int) -> int | None:
        """Return the tokens that a filled window leaves free for its turn, or None if more turns must fit.

        A request that shares its budget with no later turn is filled: the first of its kind, one that is not stored,
        and one whose turns are so long that the next would not fit, judged by the length of the last window. The
        requests of one turn share it in any case: its tools are expected to take as much as those of earlier turns.
        """
        request = self._request
        if not self._is_stored:
            return 0
        if request.answers is None or (request.has_tools and not tool_tokens):
            return None
        previous = self._previous
        if previous is not None:
            new_cost = 0
            for group, cost in zip(self._cut_groups, self._costs, strict=True):
                if group.first > previous.began_at:
                    new_cost += cost
            turn_count = max(1, len(previous.blocks))
            if new_cost <= turn_count * (request.budget * (1 - NEWEST_SHARE) - request.answers.max_tokens):
                return None
        return max(tool_tokens - used_tool_tokens, used_tool_tokens // 2)

    def _recall_budget(self, free_tokens: int, answer_tokens: int, forecast: TurnForecast) -> int:
        """Return the tokens for the recall: without those that the turn's tools may take, unless it answers.

        Once tools run, it is half of the free tokens at most: the next calls of the turn need the rest.
        """
        answers = self._request.answers
        if answers is None:
            return 0
        if self._start == 0 and self.history.is_complete:
            return free_tokens
        if forecast.reserve is None:
            expected_tokens = max(0, forecast.tool_tokens - forecast.used_tool_tokens)
            budget = min(answers.max_tokens, free_tokens - expected_tokens)
        else:
            budget = free_tokens - forecast.reserve
        max_tokens = free_tokens // 2 if forecast.used_tool_tokens and self._is_stored else free_tokens
        return max(0, min(budget, max_tokens), min(answer_tokens, free_tokens))

    async def _recall(self, budget: int, front: Sequence[MessageGroup], *, take_all: bool) -> Answers:
        """Search for what answers, without what is visible in front and among the groups shown."""
        if self._request.answers is None:
            return Answers()
        visible = self._collect_visible(front, self._cut_groups[self._start :])
        return await self._request.answers.find(budget, visible, self._context, take_all=take_all)

    def _collect_visible(
        self, front: Sequence[MessageGroup], groups: Sequence[MessageGroup]
    ) -> dict[str, str]:
        """Return the shown text of the entries of some groups, by id."""
        return cache_window.collect_visible_texts([*front, *groups], (), self._request.entries)

    async def _drop_visible(self, answers: Answers, groups: Sequence[MessageGroup]) -> Answers:
        """Return answers without what some groups show."""
        if self._request.answers is None:
            return answers
        visible = self._collect_visible((), groups)
        return await self._request.answers.drop_visible(answers, visible, self._context)

    # ── older messages ──────────────────────────────────────────────────────────────────────────────────────────────

    def _fill_budget(self, budget: int, forecast: TurnForecast) -> int:
        """Return the tokens, of those for messages and recall, that the window begins with."""
        if self._cost_of_groups() > budget / 2:  # the next turn will not fit in any case
            return budget
        return int(budget * MIN_FILLED_SHARE) if forecast.reserve is None else budget - forecast.reserve

    async def _extend_back(self, budget: int) -> None:
        """Show more of the history in the tokens that the recall left, and drop recalled pieces it now shows."""
        groups, costs = self._cut_groups, self._costs
        while True:
            free_tokens = budget - self._cost_of_groups() - self._request.block_cost(self.pieces)
            start = self._start
            while start and costs[start - 1] <= free_tokens:
                start -= 1
                free_tokens -= costs[start]
            start = turns.skip_answers(groups, start, self._start)
            if start == self._start:
                return
            self._start = start
            self._answers = await self._drop_visible(self._answers, groups[start:])

    async def _show_last_exchange(self, budget: int, recall_budget: int, *, take_all: bool) -> None:
        """Show more of the exchange before the turn, which a question often refers to.

        `budget` holds the messages and the recalled pieces. These are searched again if the exchange shows one of them.
        """
        groups, front = self.history.groups, self.history.front
        budget -= self._cost_of_groups()
        start, limits = await self._run_cut(partial(self._fill_exchange, budget, self.pieces))
        shown_groups = await self._run_cut(partial(self._cutter.cut, groups[start:], limits))
        visible = self._collect_visible(front, shown_groups)
        if any(piece.id in visible for piece in self.pieces):
            assert self._request.answers is not None  # there are pieces
            search = self._request.answers
            answers = await search.find(recall_budget, visible, self._context, take_all=take_all)
            new_start, new_limits = await self._run_cut(partial(self._fill_exchange, budget, answers.pieces))
            new_groups = await self._run_cut(partial(self._cutter.cut, groups[new_start:], new_limits))
            answers = await self._drop_visible(answers, new_groups)
            new_ids = {piece.id for piece in answers.pieces} | cache_window.visible_ids(new_groups)
            if any(piece.id in visible and piece.id not in new_ids for piece in self.pieces):
                # More was recalled, so less of the exchange is shown, and not what was recalled of it before.
                self._answers = await self._drop_visible(self._answers, shown_groups)
            else:
                self._answers, start, limits = answers, new_start, new_limits
        old_limits = self.limits
        self._start, self.limits = start, limits
        for index in range(start, self._turn_start):
            version = groups[index].first
            if limits.get(version) != old_limits.get(version):
                await self._run_cut(partial(self._cut_again, index))

    def _show_more(self, start: int, end: int, budget: int) -> None:
        """Show more of the cut groups between two indexes, the newest first, while everything shown fits a budget.

        The newest group of all has its share already: see `_cut_outputs`.
        """
        free_tokens = budget - self._cost_of_groups() - self._request.block_cost(self.pieces)
        for index in reversed(range(start, end)):
            group = self.history.groups[index]
            cost = self._costs[index]
            is_cut = cost < self._whole_costs[index]
            if is_cut and free_tokens >= LEAST_SHOWN:
                self.limits[group.first] = self._cutter.limit_within(group, cost + free_tokens)
                self._cut_again(index)
                free_tokens -= self._costs[index] - cost

    def _cut_again(self, index: int) -> None:
        """Cut a group to its new limit, for the newest question before it, and count it again."""
        groups = self.history.groups
        question = cache_window.question_of([*self.history.front, *groups[:index]])
        (self._cut_groups[index],) = self._cutter.cut([groups[index]], self.limits, question)
        self._costs[index] = self._request.cost([self._cut_groups[index]])

    def _fill_exchange(self, budget: int, pieces: tuple[Piece, ...]) -> tuple[int, dict[int, int]]:
        """Return an earlier start and higher limits that show more of the last exchange, beside some pieces."""
        end = self._turn_start
        costs = self._costs
        exchange_start = turns.find_last_exchange(self.history.groups[:end], costs, end, sum(costs[:end]))
        offset, limits = self._cutter.fill(
            self.history.groups[exchange_start:end],
            costs[exchange_start:end],
            self.limits,
            self._start - exchange_start,
            max(0, budget - self._request.block_cost(pieces)),
        )
        return exchange_start + offset, limits
