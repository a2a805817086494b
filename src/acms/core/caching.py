"""Caching: where a history starts so that consecutive prompts share their beginning, and how much of it they share.

A provider charges a tenth or so for the part of a prompt that is the same as before, up to the first change. A window
that slides changes its first message every turn, so nothing behind it is ever read from the cache. Here the start
stays where it is until what follows no longer fits, and then gives up a share of the room, the *slack*, at once: an
*epoch*. Starts lie on a grid over the tokens of the log, so that they follow from the log and the room alone; nothing
is remembered from one render to the next, and every process finds the same one (decision 0036).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from math import sqrt
from typing import NamedTuple

SLACK = 0.5
"""Share of a budget given up when a start moves: the best one for turns of a tenth of a budget, and at most a quarter
dearer than the best for turns between a fortieth and four tenths of it."""


class Prices(NamedTuple):
    """What input tokens cost beside one that is not cached."""

    #: Read from the cache, and written to it.
    read: float = 0.1
    write: float = 1.0


def step(scale: int, slack: float) -> int:
    """Return the distance of the lines of a grid: at most this share of a scale, and at least four fifths of that.

    Three significant bits, so that budgets which are nearly the same have the same grid.
    """
    most = max(1, int(scale * slack))
    unit = 1 << max(0, most.bit_length() - 3)
    return most // unit * unit


def start(
    befores: Sequence[int], costs: Sequence[int], room: int, slack: float, *, scale: int | None = None
) -> int:
    """Return the first of some atoms that is shown, so that it and all after it fit the room.

    `befores` are the tokens of the log before each atom and never fall; `costs` are what each takes of the room. The
    atoms are the whole history, or reach so far back that they do not fit. `scale` is what the grid is measured by: the
    budget, which is the same every turn, where the room is not; the room itself when None.

    Everything when it fits. Otherwise the start is the atom across the first line of the grid from which on it fits:
    it moves only when it must, and never back while the log grows and the room is the same. Next to atoms as large as
    the room the lines are set closer. The newest atom is always shown, also when it alone is too large.
    """
    if not costs:
        return 0
    # Sums from the end: what the atom at -n and all after it take.
    taken = list(accumulate(reversed(costs)))
    first = len(costs) - bisect_right(taken, room)
    newest = len(costs) - 1
    if first == 0:
        return 0
    if first >= newest:
        return newest
    distance = step(room if scale is None else scale, slack)
    while distance:
        line = -(-befores[first] // distance) * distance
        # A line behind the newest atom would be crossed by another one tomorrow.
        if line < befores[newest]:
            return bisect_right(befores, line) - 1
        distance //= 2
    return first


# ── the cost model ──────────────────────────────────────────────────────────────────────────────────────────────────


def cost(slack: float, turn: float, room: float, prices: Prices, value: float = 1.0) -> float:
    """Return what a turn costs, in uncached tokens, beyond writing what is new: reads, rewrites, and context given up.

    Between two epochs a window grows from `room * (1 - slack)` to `room` by `turn` tokens a turn, so one epoch falls on
    `slack * room / turn` turns, and writes what it would otherwise have read. `value` is what a token of context is
    worth each turn: 1 when a budget was chosen by the price without a cache.
    """
    shown = room * (1 - slack / 2)
    rewritten = turn * (1 - slack) / slack
    return prices.read * shown + (prices.write - prices.read) * rewritten + value * (room - shown)


def best(turn: float, room: float, prices: Prices, value: float = 1.0) -> float:
    """Return the slack that costs least: the square root law of stock keeping (Harris 1913), with rewrites as orders.

    `cost` is flat around it: half or twice as much slack costs a quarter more of what depends on it.
    """
    return min(1.0, sqrt(2 * (prices.write - prices.read) * turn / ((value - prices.read) * room)))
