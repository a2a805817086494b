"""Where a history starts, so that consecutive prompts share their beginning.

A provider charges a tenth or so for the part of a prompt that is the same as before, up to the first change. A history
that slides changes its first message every turn, so nothing behind it is ever read from the cache. Here the start lies
on a grid over the tokens of the log: it stays until the messages after it no longer fit, and then moves by a share of
the budget, the *slack*. It follows from the log and the budget alone: nothing is remembered from one render to the
next, and every process finds the same start.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate

SLACK = 0.5
"""Share of a budget that is freed when a start moves: the best one for turns of a tenth of a budget, and at most a
quarter dearer than the best for turns between a fortieth and three tenths of it."""


def grid_step(budget: int, share: float) -> int:
    """Return the tokens between two lines of a grid: a share of a budget, rounded down by a fifth at most.

    Only the three highest bits of the number are kept, so that nearly equal budgets have the same grid.
    """
    step = max(1, int(budget * share))
    lowest_kept_bit = 1 << max(0, step.bit_length() - 3)
    return step // lowest_kept_bit * lowest_kept_bit


def find_start(tokens_before: Sequence[int], costs: Sequence[int], budget: int, step: int) -> int:
    """Return the index of the first message to show, so that it and all messages after it fit a budget.

    `tokens_before` are the tokens of the log before each message, ascending; `costs` are the tokens that each message
    takes of `budget`. The messages are the whole history, or its newest ones if these are more than fit. If not all
    fit, the start is the first message behind a line of the grid, whose lines are `step` tokens of the log apart; with
    0 it is the oldest message that fits. Lines are closer where no line lies between the messages that fit. The newest
    message is always shown, even if it alone is too large.
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
    while step > 0:
        last_line = tokens_before[first_fitting - 1] // step
        start = bisect_left(tokens_before, (last_line + 1) * step)
        if start <= newest:
            return start
        step //= 2
    return first_fitting
