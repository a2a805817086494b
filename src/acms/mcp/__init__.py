"""The MCP server (extra `mcp`): the memory of one session as tools, resources and a prompt for any MCP client.

`serve_stdio(session)` speaks it over stdin and stdout, as `acms mcp` does; `mount_mcp(app)` serves it over streamable
HTTP below `/mcp` of a service, with the service's keys.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from acms.errors import MissingExtraError
from acms.runtime.lazy import lazy_attributes

try:
    from acms.mcp.stdio import serve_stdio
except ImportError as missing:
    package = (missing.name or "").partition(".")[0]
    if package not in ("mcp", "mcp_types", "pydantic"):
        raise
    raise MissingExtraError("mcp", package) from None

if TYPE_CHECKING:
    from acms.mcp.http import mount_mcp

__all__ = ["mount_mcp", "serve_stdio"]

__getattr__, __dir__ = lazy_attributes(__name__, {"mount_mcp": "acms.mcp.http"})
