"""The wire protocols that the gateway reads: one small adapter each."""

from __future__ import annotations

from acms.gateway.protocols.anthropic import AnthropicProtocol
from acms.gateway.protocols.base import Protocol, Reply, ReplyReader
from acms.gateway.protocols.chat import ChatProtocol
from acms.gateway.protocols.responses import ResponsesProtocol

__all__ = ["PROTOCOLS", "Protocol", "Reply", "ReplyReader", "find_protocol"]

PROTOCOLS: tuple[Protocol, ...] = (AnthropicProtocol(), ChatProtocol(), ResponsesProtocol())


def find_protocol(method: str, path: str) -> Protocol | None:
    """Return the protocol of a request that has memory, or None for one that is only forwarded."""
    if method != "POST":
        return None
    for protocol in PROTOCOLS:
        if path == protocol.path:
            return protocol
    return None
