"""Check the addresses that a server may be asked to call: only public ones, checked after the name is resolved.

Letting data or a request choose where a server connects exposes everything that only the server can reach: its own
loopback, a database on the same network, the credentials that a cloud serves at 169.254.169.254. Checking the name is
not enough, because it may resolve differently between the check and the connection. So the name is resolved here once,
every resolved address is checked, and the connection goes to one of those addresses.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import TypeAlias

from acms.errors import ConfigurationError, ProviderError

__all__ = ["AddressGuard", "Resolve", "is_loopback_host", "is_public", "resolve_host"]

Resolve: TypeAlias = Callable[[str, int], Awaitable[Sequence[str]]]
"""Returns the addresses of a host name; raises `OSError` when it has none."""

_UNICAST = IPv6Network("2000::/3")
_NOT_V6 = tuple(
    IPv6Network(network)
    for network in (
        "2001::/23",  # protocols, Teredo among them, which wraps an IPv4 address
        "2001:db8::/32",  # documentation
        "2002::/16",  # 6to4, which wraps an IPv4 address
        "3fff::/20",  # documentation
    )
)
_NOT_V4 = tuple(
    IPv4Network(network)
    for network in (
        "0.0.0.0/8",
        "10.0.0.0/8",
        "100.64.0.0/10",  # shared by the customers of a carrier; metadata of one cloud
        "127.0.0.0/8",
        "168.63.129.16/32",  # metadata of one cloud, behind a public address
        "169.254.0.0/16",  # link-local; metadata of most clouds
        "172.16.0.0/12",
        "192.0.0.0/24",  # protocols; metadata of one cloud
        "192.0.2.0/24",  # documentation
        "192.88.99.0/24",  # relays of 6to4
        "192.168.0.0/16",
        "198.18.0.0/15",  # benchmarks
        "198.51.100.0/24",  # documentation
        "203.0.113.0/24",  # documentation
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",  # reserved; broadcast
    )
)


def is_public(address: str) -> bool:
    """Tell whether an address belongs to the public internet.

    Not loopback, private, link-local, shared, multicast, reserved or unspecified ones, not those that serve a cloud's
    credentials, and no IPv6 address that wraps an IPv4 one (mapped, NAT64, 6to4, Teredo).
    """
    try:
        parsed = ip_address(address)
    except ValueError:  # an address with a zone is link-local as well
        return False
    if isinstance(parsed, IPv4Address):
        return not any(parsed in network for network in _NOT_V4)
    return (
        parsed.scope_id is None and parsed in _UNICAST and not any(parsed in network for network in _NOT_V6)
    )


async def resolve_host(host: str, port: int) -> list[str]:
    """Return the addresses of a host name, as the system resolves it."""
    entries = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in entries))


class AddressGuard:
    """Resolves names for connections, and refuses those that lead to an address which is not public.

    `allow` lists networks that are permitted although they are not public, such as "10.20.0.0/16".
    """

    def __init__(self, allow: Sequence[str] = (), resolve: Resolve = resolve_host) -> None:
        if isinstance(allow, str):
            raise ConfigurationError("allow must be a list of networks, not a string")
        try:
            self._allow: tuple[IPv4Network | IPv6Network, ...] = tuple(
                ip_network(network) for network in allow
            )
        except ValueError as error:
            raise ConfigurationError(f"allow: {error}") from error
        self._resolve = resolve

    async def addresses(self, host: str, port: int, *, provider: str) -> list[str]:
        """Return the addresses to connect to. One refused address refuses the name; the error does not show it.

        Otherwise a name with a public and a private address could be steered to the private one.
        """
        try:
            addresses = list(await self._resolve(host, port))
        except OSError as error:
            raise ProviderError(
                f"{host} cannot be resolved", provider=provider, retryable=True, cause=error
            ) from error
        if not addresses or not all(map(self._permits, addresses)):
            raise ProviderError(
                f"{host} is not on the public internet; nothing was sent",
                provider=provider,
                options=("use a public address", "allow=(network,) permits one that is not"),
            )
        return addresses

    def _permits(self, address: str) -> bool:
        """Return whether an address is public, or in one of the networks that are allowed."""
        if is_public(address):
            return True
        try:
            parsed: IPv4Address | IPv6Address = ip_address(address)
        except ValueError:
            return False
        return any(parsed in network for network in self._allow)


def is_loopback_host(host: str) -> bool:
    """Return whether an address can be reached from this machine only."""
    if host == "localhost":
        return True
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
