"""Caching: where a history starts so that consecutive prompts share their beginning, and how much of it they share.

A provider charges a tenth or so for the part of a prompt that is the same as before, up to the first change. A window
that slides changes its first message every turn, so nothing behind it is ever read from the cache. Here the start
stays until the messages after it no longer fit, and then moves far enough to free a share of the budget, the *slack*:
a new window begins. Starts lie on a grid over the tokens of the log, so that they follow from the log and the budget
alone; nothing is remembered from one render to the next, and every process finds the same start.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate

SLACK = 0.5
"""Share of a budget that is freed when a start moves: the best one for turns of a tenth of a budget, and at most a
quarter dearer than the best for turns between a fortieth and three tenths of it."""


LINES = 0.16
"""Share of a budget between the lines on which a start may lie: if the budget varies by less, the start rarely moves.
"""


def grid_step(budget: int, share: float) -> int:
    """Return the tokens between two lines of a grid: a share of a budget, rounded down by a fifth at most.

    Only the three highest bits of the number are kept, so that nearly equal budgets have the same grid.
    """
    step = max(1, int(budget * share))
    lowest_kept_bit = 1 << max(0, step.bit_length() - 3)
    return step // lowest_kept_bit * lowest_kept_bit


def window_length(budget: int, slack: float, tokens: int = 0, messages: int = 0) -> int:
    """Return by how many tokens a log grows before the start of its history moves; 0 if it moves every turn.

    `tokens` and `messages` count the whole log. Where the average message takes less than a sixtieth of the budget, the
    window is half as long: the best slack grows with the root of the length of a turn. A caller that knows no average
    passes 1 as `tokens` and gets the undivided length.
    """
    if not slack:
        return 0
    length = grid_step(budget, slack)
    has_short_messages = 60 * tokens <= budget * messages
    return length // 2 if has_short_messages else length


def find_start(
    tokens_before: Sequence[int], costs: Sequence[int], budget: int, window: int, whole_budget: int = 0
) -> int:
    """Return the index of the first message to show, so that it and all messages after it fit a budget.

    `tokens_before` are the tokens of the log before each message, ascending; `costs` are the tokens that each message
    takes of `budget`. The messages are the whole history, or its newest ones if these are more than fit. `window` is
    the number of tokens by which the log grows before the start moves; with 0 the start moves with every message.
    `whole_budget`, which is the same every turn, determines the grid; 0 means `budget`.

    If everything fits, the start is 0. Otherwise the current window began when the log passed a multiple of `window`,
    and the start is the first line of the grid from which all messages fit until the log passes the next multiple, if
    its tokens go on to cost as much. So the log alone determines when a start moves: prompts with a smaller budget
    start later, but do not move at other times. Windows are shorter where new messages cost more, or the budget is
    small. The newest message is always shown, even if it alone is too large.
    """
    if not costs:
        return 0
    newest = len(costs) - 1
    costs_from_end = list(accumulate(reversed(costs)))
    first_fitting = len(costs) - bisect_right(costs_from_end, budget)
    if first_fitting == 0:
        return 0
    if first_fitting >= newest:
        return newest
    while window > 0.7 * budget:  # the rest is for the messages shown at the start of a window
        window //= 2
    while window > 0:
        window_index = bisect_left(tokens_before, window_start(tokens_before[newest], window))
        if window_index > first_fitting:
            grid = grid_step(whole_budget or budget, LINES)
            return _start_on_grid(tokens_before, costs, window_index, first_fitting, budget, window, grid)
        window //= 2
    return first_fitting


def window_start(tokens: int, length: int) -> int:
    """Return how many tokens a log had when its current window began.

    `tokens` are those before its newest message now; `length` is that of a window.
    """
    return tokens // length * length


def _start_on_grid(
    tokens_before: Sequence[int],
    costs: Sequence[int],
    window_index: int,
    first_fitting: int,
    budget: int,
    window: int,
    grid: int,
) -> int:
    """Return the first message after the earliest grid line from which a whole window of messages fits the budget.

    The window begins at the message `window_index` and is `window` tokens long. Messages before `first_fitting`, which
    do not fit now, are not examined, so they need not have been read.
    """
    costs_before_window = [0, *accumulate(reversed(costs[first_fitting:window_index]))]
    start = window_index
    line = tokens_before[window_index] // grid * grid
    while line >= 0:
        index = bisect_left(tokens_before, line)
        if index < first_fitting:
            break
        if index < window_index:
            cost = costs_before_window[window_index - index]
            cost_per_token = cost / max(1, tokens_before[window_index] - tokens_before[index])
            # The frames of a few messages say little: a token of the log costs two tokens of a prompt at most.
            cost_per_token = max(1.0, min(2.0, cost_per_token))
            # Moving too early costs less than moving twice: a twentieth more is kept free.
            if cost + 1.05 * window * cost_per_token > budget:
                break
            start = index
        line -= grid
    return start


def recall_tokens(budget: int | None) -> int:
    """Return the default token limit of a recall in a prompt with a budget, or without one."""
    return 2000 if budget is None else budget // 2  # the rest is for the prompt around it
