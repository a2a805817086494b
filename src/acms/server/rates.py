"""Rate limits: token buckets, kept in this process."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from ipaddress import IPv6Address, ip_address
from time import monotonic

__all__ = ["Buckets", "network_of_address"]


class Buckets:
    """Token buckets by name: each takes `burst` requests at once, and `rate` per second in the long run.

    Only the `max_buckets` most recently used buckets are kept: a bucket that was not used for a while is full anyway.
    """

    def __init__(
        self, rate: float, burst: int, *, clock: Callable[[], float] = monotonic, max_buckets: int = 10_000
    ) -> None:
        self._rate = rate
        self._burst = float(burst)
        self._clock = clock
        self._max_buckets = max_buckets
        #: The tokens left in each bucket, and the time of that count.
        self._tokens: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, name: str) -> float:
        """Take one token from a bucket and return 0, or return the seconds to wait if it has none."""
        now = self._clock()
        stored_tokens, updated_at = self._tokens.get(name, (self._burst, now))
        tokens = min(self._burst, stored_tokens + (now - updated_at) * self._rate)
        is_allowed = tokens >= 1
        self._tokens[name] = (tokens - 1 if is_allowed else tokens, now)
        self._tokens.move_to_end(name)
        if len(self._tokens) > self._max_buckets:
            self._tokens.popitem(last=False)
        return 0.0 if is_allowed else (1 - tokens) / self._rate


def network_of_address(address: str) -> str:
    """Return an IPv4 address itself, and for IPv6 its /64 network, since one customer has all addresses of it."""
    try:
        ip = ip_address(address)
    except ValueError:
        return address
    if not isinstance(ip, IPv6Address):
        return address
    first_64_bits = ip.exploded[:19]
    return str(ip.ipv4_mapped or first_64_bits)
