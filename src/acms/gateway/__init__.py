"""A gateway in front of model providers: clients change their base URL and get a log, a budget and recall.

It forwards bytes. It remembers what was said, and makes a request that is too long fit out of slices of the client's
own body. Whatever goes wrong in the memory, the client's own bytes are sent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from acms.runtime.lazy import lazy_attributes

if TYPE_CHECKING:
    from acms.gateway.app import Gateway, create_gateway
    from acms.gateway.config import GatewayConfig

__all__ = ["Gateway", "GatewayConfig", "create_gateway"]

_HOMES = {
    "Gateway": "acms.gateway.app",
    "GatewayConfig": "acms.gateway.config",
    "create_gateway": "acms.gateway.app",
}
__getattr__, __dir__ = lazy_attributes(__name__, _HOMES)
