"""What a window costs at a provider that caches prefixes, by its slack: the model behind the default."""

from __future__ import annotations

from math import sqrt
from typing import NamedTuple


class Prices(NamedTuple):
    """Prices of input tokens relative to an uncached one."""

    #: Read from the cache, and written to it.
    read: float = 0.1
    write: float = 1.0


def cost_per_turn(slack: float, turn: float, room: float, prices: Prices, value: float = 1.0) -> float:
    """Return the cost of a turn, in uncached tokens, beyond writing new text: reads, rewrites, and lost context.

    Between two epochs a window grows from `room * (1 - slack)` to `room` by `turn` tokens a turn, so there is one epoch
    every `slack * room / turn` turns, which writes tokens it would otherwise have read. `value` is the worth of a token
    of context each turn: 1 when a budget was chosen by the price without a cache.
    """
    shown = room * (1 - slack / 2)
    rewritten = turn * (1 - slack) / slack
    return prices.read * shown + (prices.write - prices.read) * rewritten + value * (room - shown)


def best_slack(turn: float, room: float, prices: Prices, value: float = 1.0) -> float:
    """Return the slack that costs least: the square root law of stock keeping (Harris 1913), with rewrites as orders.

    `cost` is flat around it: half or twice as much slack costs a quarter more of what depends on it.
    """
    return min(1.0, sqrt(2 * (prices.write - prices.read) * turn / ((value - prices.read) * room)))
