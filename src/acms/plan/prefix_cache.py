"""Caching: where a history starts so that consecutive prompts share their beginning, and how much of it they share.

A provider charges a tenth or so for the part of a prompt that is the same as before, up to the first change. A window
that slides changes its first message every turn, so nothing behind it is ever read from the cache. Here the start
stays where it is until what follows no longer fits, and then gives up a share of the room, the *slack*, at once: a
new window begins. Starts lie on a grid over the tokens of the log, so that they follow from the log and the room alone;
nothing is remembered from one render to the next, and every process finds the same one.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate

SLACK = 0.5
"""Share of a budget given up when a start moves: the best one for turns of a tenth of a budget, and at most a quarter
dearer than the best for turns between a fortieth and three tenths of it."""


LINES = 0.16
"""Share of a budget between the lines on which a start may lie: a room that varies by less rarely changes it."""


def grid_step(scale: int, slack: float) -> int:
    """Return the distance of the lines of a grid: at most this share of a scale, and at least four fifths of that.

    Three significant bits, so that budgets which are nearly the same have the same grid.
    """
    most = max(1, int(scale * slack))
    unit = 1 << max(0, most.bit_length() - 3)
    return most // unit * unit


def window_length(scale: int, slack: float, tokens: int = 0, messages: int = 0) -> int:
    """Return how many tokens a log grows by in a window, of a log with so many tokens and messages.

    Half as many where a message is short beside the scale: the best slack grows with the root of a turn.
    """
    if not slack:
        return 0
    length = grid_step(scale, slack)
    is_short = 60 * tokens <= scale * messages  # the average message takes less than a sixtieth
    return length // 2 if is_short else length


def find_start(befores: Sequence[int], costs: Sequence[int], room: int, length: int, scale: int = 0) -> int:
    """Return the first of some atoms that is shown, so that it and all after it fit the room.

    `befores` are the tokens of the log before each atom and never fall; `costs` are what each takes of the room. The
    atoms are the whole history, or reach so far back that they do not fit. `length` are the tokens by which a log grows
    in a window; 0 moves the start with every message. `scale` is what lines are measured by: the budget,
    which is the same every turn, where the room is not; the room itself when 0.

    Everything when it fits. Otherwise a window began when the log passed a multiple of its length, and the start is
    the first line of a grid from which all fits until it passes the next one, if it goes on to cost as much a token. So
    when a start moves follows from the log alone: prompts with less room start later, not at other times. Where what
    comes is dearer than that, or the room is small, windows are shorter. The newest atom is always shown, also when it
    alone is too large.
    """
    if not costs:
        return 0
    # Sums from the end: the cost of the atom at -n and all after it.
    taken = list(accumulate(reversed(costs)))
    first = len(costs) - bisect_right(taken, room)
    newest = len(costs) - 1
    if first == 0:
        return 0
    if first >= newest:
        return newest
    while length > 0.7 * room:  # the rest is for the content shown at the start of a window
        length //= 2
    while length > 0:
        since = bisect_left(befores, window_start(befores[newest], length))
        if since > first:
            return _start_on_grid(befores, costs, since, first, room, length, grid_step(scale or room, LINES))
        length //= 2
    return first


def window_start(tokens: int, length: int) -> int:
    """Return how many tokens a log had when its window began that now has so many before its newest message."""
    return tokens // length * length


def _start_on_grid(
    befores: Sequence[int], costs: Sequence[int], since: int, first: int, room: int, length: int, grid: int
) -> int:
    """Return the atom on the earliest grid line from which all fits until `length` tokens follow those before `since`.

    Atoms that do not fit now are not examined, so they need not have been read.
    """
    sums = [0, *accumulate(reversed(costs[first:since]))]
    start, line = since, befores[since] // grid * grid
    while line >= 0:
        index = bisect_left(befores, line)
        if index < first:
            break
        if index < since:
            cost = sums[since - index]
            cost_per_token = cost / max(1, befores[since] - befores[index])
            # The frames of a few messages say little: a token of the log costs two tokens of a prompt at most.
            cost_per_token = max(1.0, min(2.0, cost_per_token))
            # Moving too early costs less than moving twice: a twentieth more is kept free.
            if cost + 1.05 * length * cost_per_token > room:
                break
            start = index
        line -= grid
    return start


def recall_tokens(budget: int | None) -> int:
    """Return how many tokens a recall may have that was given no number."""
    return 2000 if budget is None else budget // 2  # the rest is for the prompt around it
