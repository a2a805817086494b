"""Rate limits: token buckets, kept in this process."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from ipaddress import IPv6Address, ip_address
from time import monotonic

__all__ = ["Buckets", "network_of_address"]


class Buckets:
    """Token buckets by name: each takes `burst` requests at once, and `rate` per second in the long run.

    Only the most recently used buckets are kept: a bucket that was not used for a while is full anyway.
    """

    def __init__(
        self, rate: float, burst: int, *, clock: Callable[[], float] = monotonic, most: int = 10_000
    ) -> None:
        self._rate = rate
        self._burst = float(burst)
        self._clock = clock
        self._most = most
        #: The tokens left in each bucket, and the time of that count.
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, name: str) -> float:
        """Take one token from a bucket and return 0; if it is empty, return the seconds to wait."""
        now = self._clock()
        tokens, updated_at = self._left.get(name, (self._burst, now))
        tokens = min(self._burst, tokens + (now - updated_at) * self._rate)
        wait = 0.0 if tokens >= 1 else (1 - tokens) / self._rate
        self._left[name] = (tokens if wait else tokens - 1, now)
        self._left.move_to_end(name)
        if len(self._left) > self._most:
            self._left.popitem(last=False)
        return wait


def network_of_address(address: str) -> str:
    """Return the network of an address: itself, or the /64 of IPv6, since one customer has all its addresses."""
    try:
        found = ip_address(address)
    except ValueError:
        return address
    if isinstance(found, IPv6Address):
        return str(found.ipv4_mapped or found.exploded[:19])
    return address
